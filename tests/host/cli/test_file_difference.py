"""The difference of a host's file, without its secrets."""

from __future__ import annotations

import json

import pytest

from host.cli.file_difference import difference


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
