"""The text of a configuration as its file has it, without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config import load
from config.references import Secret
from config.written import rules_digest, shown_change, written_sections


def shown(before: dict[str, Any] | None, after: dict[str, Any]) -> tuple[Any, Any]:
    old, new = shown_change(None if before is None else Secret(json.dumps(before)), Secret(json.dumps(after)))
    return None if old is None else json.loads(old), json.loads(new)


@pytest.mark.parametrize(
    ("section", "without"),
    [
        ({"command": ["python3", "x.py", "--port", "1"]}, {"command": ["python3", "x.py", "--port", "1"]}),
        ({"command": ["x", "--api-key", "abc", "y"]}, {"command": ["x", "--api-key", "***", "y"]}),
        ({"command": ["x", "--token=abc"]}, {"command": ["x", "--token=***"]}),
        ({"command": "x --token abc -v"}, {"command": "x --token *** -v"}),
        ({"command": "x", "args": ["-e", "A_SECRET=abc"]}, {"command": "x", "args": ["-e", "A_SECRET=***"]}),
        ({"command": ["x", "--token", "${env:T}"]}, {"command": ["x", "--token", "${env:T}"]}),
        ({"env": {"A": "abc", "B": "${env:B}"}}, {"env": {"A": "***", "B": "${env:B}"}}),
        ({"env": {"B": "${env:B:-abc}"}}, {"env": {"B": "${env:B:-***}"}}),
        ({"headers": {"Authorization": "Bearer ${file:t}"}}, {"headers": {"Authorization": "Bearer ${file:t}"}}),
        ({"headers": {"Authorization": "Bearer abc"}}, {"headers": {"Authorization": "***"}}),
        ({"url": "http://me:abc@h/mcp?key=abc&a=b#c"}, {"url": "http://***@h/mcp?key=***&a=***#c"}),
        ({"url": "http://h/mcp?key=${env:K}"}, {"url": "http://h/mcp?key=${env:K}"}),
        (
            {"notify": ["desktop", {"webhook": "https://h/a/b?c"}]},
            {"notify": ["desktop", {"webhook": "https://h/***"}]},
        ),
        ({"webhook": "https://h/${env:HOOK}"}, {"webhook": "https://h/${env:HOOK}"}),
        ({"consent": {"tools": {"allow": ["get_*"]}}}, {"consent": {"tools": {"allow": ["get_*"]}}}),
    ],
)
def test_what_may_be_secret_is_not_shown_and_the_rest_is(section: dict[str, Any], without: dict[str, Any]) -> None:
    assert shown(None, section) == (None, without)
    assert shown(section, section) == (without, without)


@pytest.mark.parametrize(
    ("before", "after", "differ"),
    [
        ({"env": {"A": "abc", "B": "x"}}, {"env": {"A": "abd", "B": "x"}}, {"env": {"A": "*** (changed)", "B": "***"}}),
        ({"env": {"A": "abc"}}, {"env": {"A": "abc", "C": "x"}}, {"env": {"A": "***", "C": "***"}}),
        ({"url": "http://h/?k=a"}, {"url": "http://h/?k=b"}, {"url": "http://h/?k=*** (changed)"}),
        (
            {"command": ["x", "--token", "a"]},
            {"command": ["x", "--token", "b"]},
            {"command": ["x", "--token", "*** (changed)"]},
        ),
        ({"command": ["x"]}, {"command": ["x", "y"]}, {"command": ["x", "y"]}),
        ({"command": "x"}, {"command": ["x"]}, {"command": ["x"]}),
    ],
)
def test_a_secret_that_changed_is_said_to_have_changed(
    before: dict[str, Any], after: dict[str, Any], differ: dict[str, Any]
) -> None:
    assert shown(before, after)[1] == differ


def test_the_file_is_remembered_by_section_and_no_value_of_a_reference_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRITTEN_TOKEN", "very secret")
    file = tmp_path / "c.yaml"
    file.write_text(
        "ask: {timeout: 20s}\nservers:\n  a: {command: [x], env: {T: '${env:WRITTEN_TOKEN}'}}\n  b: {command: [y]}\n"
    )
    config = load(file)
    assert list(config.written) == ["", "a", "b"]
    assert json.loads(config.written[""].reveal()) == {"ask": {"timeout": "20s"}}
    assert json.loads(config.written["a"].reveal()) == {"command": ["x"], "env": {"T": "${env:WRITTEN_TOKEN}"}}
    assert "secret" not in repr(config) + repr(config.written)
    desktop = tmp_path / "d.json"
    desktop.write_text('{"mcpServers": {"A b": {"command": "x", "args": ["y"]}}}')
    assert [*load(desktop).written] == ["", *load(desktop).servers]
    assert written_sections({"servers": {}}).keys() == {""}


def test_a_digest_of_the_rules_is_that_of_another_file_with_the_same_rules(tmp_path: Path) -> None:
    """Whatever its address, its secrets and the order of its keys; another rule, also in the defaults, is another."""

    def digest(text: str) -> str:
        (tmp_path / "c.yaml").write_text(text)
        return rules_digest(load(tmp_path / "c.yaml").written)

    servers = "servers:\n  a: {command: [x, --token, abc], consent: {tools: ask}}\n  b: {url: 'http://h/'}\n"
    usual = digest(servers)
    for equal in (
        f"listen: {{address: '127.0.0.1:1'}}\nmemory: 64MiB\n{servers}",
        servers.replace("abc", "def"),
        "servers:\n  b: {url: 'http://h/'}\n  a: {consent: {tools: ask}, command: [x, --token, abc]}\n",
    ):
        assert digest(equal) == usual
    for other in (
        servers.replace("ask", "allow"),
        servers.replace("//h/", "//g/"),
        f"defaults: {{consent: {{tools: deny}}}}\n{servers}",
        f"ask: {{timeout: 5s}}\n{servers}",
    ):
        assert digest(other) != usual
