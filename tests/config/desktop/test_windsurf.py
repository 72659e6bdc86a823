"""Windsurf's file."""

from __future__ import annotations

import pytest

from tests.config.desktop.kit import ALLOW, DENY, OFF, PROBLEM, Home, state, states
from tests.config.kit import http, stdio

PLACE = "~/.codeium/windsurf/mcp_config.json"


def test_a_usual_file(home: Home) -> None:
    home.environ = {"GH_TOKEN": "g", "DOCS_TOKEN": "d"}
    made = home.load(
        PLACE,
        {
            "mcpServers": {
                "github": {
                    "command": "npx",
                    "args": ["-y", "@acme/github-mcp", "$HOME", "${HOME}"],
                    "env": {"GH_TOKEN": "${env:GH_TOKEN}"},
                    "disabled": False,
                    "disabledTools": ["delete_repository", "fork"],
                },
                "docs": {"serverUrl": "https://docs.example/mcp", "headers": {"KEY": "Bearer ${env:DOCS_TOKEN}"}},
                "other": {"url": "https://x.example/mcp", "type": "http", "disabledTools": []},
                "off": {"command": "uvx", "args": ["old-mcp"], "disabled": True},
                "unset": {"command": "uvx", "env": {"K": "${env:UNSET}"}},
            }
        },
    )
    assert made.notices == ("read as a Windsurf file",)
    assert states(made, "github", "fork", "delete_repository", "star") == [DENY, DENY, ALLOW]
    assert [state(made, id) for id in ("docs", "other", "off", "unset")] == [ALLOW, ALLOW, OFF, PROBLEM]
    assert [word.reveal() for word in stdio(made, "github").command[2:]] == ["@acme/github-mcp", "$HOME", "${HOME}"]
    assert stdio(made, "github").env["GH_TOKEN"].reveal() == "g"
    assert http(made, "docs").url.reveal() == "https://docs.example/mcp"
    assert http(made, "docs").headers["KEY"].reveal() == "Bearer d"
    assert "UNSET is not set" in made.servers["unset"].problem


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"disabled": True}, [OFF, OFF]),
        ({"disabledTools": ["read"]}, [DENY, ALLOW]),
        ({"autoApprove": ["read"], "alwaysAllow": ["read"]}, [ALLOW, ALLOW]),
        ({"enabledTools": ["read"]}, [PROBLEM, PROBLEM]),
    ],
)
def test_keys_that_restrict(home: Home, more: dict[str, object], expected: list[str]) -> None:
    assert states(home.server(PLACE, {"command": "x", **more}), "files", "read", "write") == expected
