"""Gemini CLI's files."""

from __future__ import annotations

import pytest

from config.hosts.gemini import GEMINI
from tests.config.hosts.kit import ALLOW, DENY, OFF, PROBLEM, Home, places, state, states
from tests.config.kit import http, stdio

USER, PROJECT = "~/.gemini/settings.json", ".gemini/settings.json"


@pytest.mark.parametrize("place", [USER, PROJECT])
def test_a_usual_file(home: Home, place: str) -> None:
    home.environ = {"TICKETS_TOKEN": "t", "NOTES": "n"}
    made = home.load(
        place,
        """{
  // mine
  "ui": {"theme": "GitHub"},
  "mcpServers": {
    "tickets": {"httpUrl": "https://tickets.example/mcp", "headers": {"Authorization": "Bearer ${TICKETS_TOKEN}"},
      "timeout": 20000, "includeTools": ["search", "get", "list(x)"], "excludeTools": ["get"]},
    "notes": {"command": "notes", "args": ["$NOTES", "${NOTES:-x}", "$5"], "env": {"A": "$UNSET", "B": "${NOTES}"},
      "trust": true, "description": "Notes", "extension": {}, "extensionName": "x"},
    "unset": {"command": "x", "args": ["$UNSET"]},
    "typed": {"type": "sse", "url": "https://h.example/sse", "authProviderType": "dynamic_discovery",
      "oauth": {"enabled": false}}
  }
}""",
    )
    assert made.notices == ("read as a Gemini CLI file",)
    assert [state(made, id, "search") for id in made.servers] == [ALLOW, ALLOW, PROBLEM, ALLOW]
    assert states(made, "tickets", "search", "list", "get", "delete") == [ALLOW, ALLOW, DENY, DENY]
    assert http(made, "tickets").headers["Authorization"].reveal() == "Bearer t"
    assert [word.reveal() for word in stdio(made, "notes").command[1:]] == ["n", "${NOTES:-x}", "$5"]
    assert {name: value.reveal() for name, value in stdio(made, "notes").env.items()} == {"A": "", "B": "n"}
    assert "UNSET is not set" in made.servers["unset"].problem
    assert stdio(made, "notes").cwd == (home.path if place == USER else home.project)


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_places(system: str) -> None:
    assert places(GEMINI, system) == {"/u/.gemini/settings.json", "/p/.gemini/settings.json"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"includeTools": []}, [DENY, DENY]),
        ({"includeTools": ["write"]}, [DENY, ALLOW]),
        ({"excludeTools": ["read"]}, [DENY, ALLOW]),
        ({"includeTools": ["read", "write"], "excludeTools": ["read"]}, [DENY, ALLOW]),
        ({"disabled": True}, [PROBLEM, PROBLEM]),
        ({"oauth": {"enabled": True}}, [PROBLEM, PROBLEM]),
        ({"authProviderType": "google_credentials"}, [PROBLEM, PROBLEM]),
        ({"targetAudience": "x"}, [PROBLEM, PROBLEM]),
        ({"targetServiceAccount": "x"}, [PROBLEM, PROBLEM]),
        ({"tcp": "ws://h"}, [PROBLEM, PROBLEM]),
        ({"cwd": "sub"}, [ALLOW, ALLOW]),
    ],
)
def test_keys_that_restrict(home: Home, more: dict[str, object], expected: list[str]) -> None:
    assert states(home.server(USER, {"command": "x", **more}), "files", "read", "write") == expected


@pytest.mark.parametrize("place", [USER, "copy.json"])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mcp": {"allowed": ["Other"]}}, OFF),
        ({"mcp": {"allowed": [" FILES "]}}, ALLOW),
        ({"mcp": {"allowed": []}}, ALLOW),
        ({"mcp": {"allowed": ["files"], "excluded": ["files"]}}, OFF),
        ({"mcp": {"excluded": ["*"]}}, OFF),
        ({"mcp": {}, "tools": {"exclude": ["mcp_files_read"]}}, DENY),
        ({"mcp": {}, "tools": {"exclude": ["mcp_files_*"]}}, DENY),
        ({"mcp": {}, "tools": {"exclude": ["mcp_*_read"]}}, DENY),
        ({"mcp": {}, "tools": {"exclude": ["mcp_*"]}}, DENY),
        ({"mcp": {}, "tools": {"exclude": ["files__read"]}}, DENY),
        ({"mcp": {}, "tools": {"exclude": ["read"]}}, DENY),
        ({"mcp": {}, "tools": {"exclude": ["mcp_files_write", "ls"]}}, ALLOW),
        ({"mcp": {"allowed": "files"}}, PROBLEM),
    ],
)
def test_keys_beside_the_servers(home: Home, place: str, settings: dict[str, object], expected: str) -> None:
    """They count in a copy of the file too."""
    made = home.load(place, {"mcpServers": {"files": {"command": "x"}}, **settings})
    assert state(made, "files") == expected


@pytest.mark.parametrize("place", [USER, PROJECT])
def test_servers_that_the_command_line_has_switched_off(home: Home, place: str) -> None:
    home.write("~/.gemini/mcp-server-enablement.json", {"files": {"enabled": False}})
    assert state(home.load(place, {"mcpServers": {"Files": {"command": "x"}}}), "files") == OFF
