"""The difference of a host's file, without its secrets."""

from __future__ import annotations

import json

import pytest

from host.cli.file_difference import difference
from tests.kit.cost import assert_costs_less


def shown(root: dict[str, object], more: str = "") -> str:
    text = json.dumps(root, indent=1)
    return "\n".join(difference("f.json", "", text, [root], more))


SECRETS: list[dict[str, object]] = [
    {"env": {"A": "S3CRET"}},
    {"env": {"DEEP": {"x": ["S3CRET"]}}},
    {"requestOptions": {"headers": {"X": "S3CRET"}}},
    {"http_headers": {"X": "S3CRET é"}},
    {"apiKey": "S3CRET"},
    {"oauth": {"client_secret": "S3CRET"}},
    {"args": ["x", "--token", "S3CRET"]},
    {"args": ["--api-key=S3CRET"]},
    {"args": ["-e", "GH_TOKEN=S3CRET"]},
    {"url": "https://x.example/mcp?k=S3CRET"},
    {"url": "https://me:S3CRET@x.example/mcp"},
    {"args": ["sk-S3CRET4b5c6d7e8f9g0h1i2j"]},
    {"env": {"A": "S3C"}},
    {"args": ["postgresql://bob:S3CRET@localhost/db"]},
    {"args": ["--header", "Authorization: Bearer S3CRET"]},
    {"args": ["-H", "X-Api-Key: S3CRET"]},
    {"env": {"HEADERS": '{"Authorization": "Bearer S3CRET"}'}},
]


@pytest.mark.parametrize("root", SECRETS, ids=json.dumps)
def test_secrets_are_hidden(root: dict[str, object]) -> None:
    text = shown({"mcpServers": {"a": root}})
    assert "***" in text
    assert "S3C" not in text


def test_what_is_no_secret_stays() -> None:
    root: dict[str, object] = {
        "command": "/opt/a-long-folder-0123456789/colonnade",
        "args": ["serve", "--stdio", "/home/kim/0123456789abcdef0123/c.yaml"],
        "url": "https://x.example/mcp",
        "bearer_token_env_var": "TOKEN",
        "headers": {"Authorization": "Bearer ${env:TOKEN}", "X": "{env:TOKEN}", "Y": "$TOKEN"},
    }
    assert "***" not in shown(root)


def test_a_short_value_hides_no_parts_of_words() -> None:
    text = shown({"env": {"DEBUG": "1", "ON": "so"}, "also": ["1st", "1", "also"]})
    assert '"also"' in text
    assert '"1st"' in text
    assert '"DEBUG": "***"' in text


def test_the_token_that_is_written_is_hidden_and_nothing_moves_the_cursor() -> None:
    assert "abc" not in shown({"x": "Bearer abcdefgh"}, "abcdefgh")
    assert difference("f", "", "\x1b[2Ja\u202e\n", [])[-1] == "+⟨U+001B⟩[2Ja⟨U+202E⟩"


def test_values_of_yaml_without_quotes() -> None:
    lines = difference("f", "", "env:\n  PIN: 123\n  port: 1234\n", [{"env": {"PIN": "123"}, "port": 1234}])
    assert lines[-2:] == ["+  PIN: ***", "+  port: 1234"]


def test_a_line_that_holds_everything_shows_its_changes_alone() -> None:
    root = {
        "history": ["buy a present", "--pw=bare"] * 50,
        "mcpServers": {"a": {"command": "x", "args": ["--pw=hunter2", "y"]}, "b": {"command": "z"}},
        "oauthAccount": {"refresh": "hunter2-refresh"},
    }
    after = {**root, "mcpServers": {"b": {"command": "z"}, "colonnade": {"command": "/c"}}}
    lines = difference("f.json", json.dumps(root), json.dumps(after), [root, after])
    text = "\n".join(lines)
    assert '+"command": "/c"}' in text
    assert '"--pw=***"' in text
    assert "present" not in text
    assert "hunter2" not in text
    assert len(lines) < 20


def test_secrets_under_an_account_are_hidden_beside_a_change() -> None:
    text = "\n".join(
        difference(
            "f", '{\n"oauthAccount": {"refresh": "abcdefg"}\n}', "{\n}", [{"oauthAccount": {"refresh": "abcdefg"}}]
        )
    )
    assert "refresh" in text
    assert "abcdefg" not in text


def test_lines_have_their_numbers_in_the_file() -> None:
    before = "".join(f"line {n}\n" for n in range(1, 101))
    lines = difference("f", before, before.replace("line 50\n", "another\n"), [])
    assert lines[2] == "@@ -47,7 +47,7 @@"
    assert len(lines) == 11


@pytest.mark.slow
@pytest.mark.parametrize("indent", [None, 1])
def test_a_large_file_costs_little(indent: int | None) -> None:
    """A host keeps its history in the same file."""
    root = {
        "history": [{"text": "x" * 5000, "id": f"id{n:020}", "odd": "a-" * 50} for n in range(1000)],
        "s": {"a": "1"},
    }
    before, after = (json.dumps({**root, "s": {key: "1"}}, indent=indent) for key in ("a", "b"))
    assert_costs_less(lambda: difference("f", before, after, [root, root]), 3)
    letters = "a" * 1_000_000
    assert_costs_less(lambda: difference("f", "", "x", [{"x": [letters, "-" * 1_000_000]}]), 1)
