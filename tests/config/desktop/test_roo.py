"""Roo Code's files."""

from __future__ import annotations

import pytest

from tests.config.desktop.kit import ALLOW, DENY, OFF, PROBLEM, Home, state, states
from tests.config.kit import http, stdio

TAIL = "User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json"
PLACES = (
    f"~/.config/Code/{TAIL}",
    f"~/Library/Application Support/Code - Insiders/{TAIL}",
    f"~/.vscode-server/data/{TAIL}",
)


@pytest.mark.parametrize("place", PLACES)
def test_the_users_file(home: Home, place: str) -> None:
    home.environ = {"GH_TOKEN": "g", "SEARCH_KEY": "s"}
    made = home.load(
        place,
        {
            "mcpServers": {
                "github": {
                    "command": "docker",
                    "args": ["run", "-i", "-e", "GH=${env:GH_TOKEN}", "${HOME}"],
                    "alwaysAllow": ["get_pull_request"],
                    "disabledTools": ["delete_repo", "merge"],
                    "timeout": 90,
                },
                "search": {
                    "type": "streamable-http",
                    "url": "https://search.example/mcp",
                    "headers": {"X-Key": "${env:SEARCH_KEY}"},
                    "disabled": False,
                },
                "unset": {"command": "x", "env": {"K": "${env:UNSET}"}},
                "folder": {"command": "x", "cwd": "${workspaceFolder}"},
            }
        },
    )
    assert made.notices == ("read as a Roo Code file",)
    assert states(made, "github", "delete_repo", "merge", "get_pull_request") == [DENY, DENY, ALLOW]
    assert [word.reveal() for word in stdio(made, "github").command[4:]] == ["GH=g", "${HOME}"]
    assert (stdio(made, "github").timeout, stdio(made, "github").cwd) == (90.0, home.path)
    assert http(made, "search").headers["X-Key"].reveal() == "s"
    assert "UNSET is not set" in made.servers["unset"].problem
    assert made.servers["folder"].problem.startswith("it names the folder of a project")


def test_a_projects_file(home: Home) -> None:
    """Relative paths start from the project."""
    made = home.load(
        ".roo/mcp.json",
        {
            "mcpServers": {
                "github": {
                    "command": "./tools/gh.js",
                    "args": ["${workspaceFolder}/data"],
                    "watchPaths": ["tools/gh.js"],
                    "disabledTools": [],
                },
                "sub": {"command": "x", "cwd": "sub", "env": {"A": "b"}},
                "old": {"type": "sse", "url": "http://localhost:9000/sse", "disabled": True, "alwaysAllow": []},
            }
        },
    )
    assert [word.reveal() for word in stdio(made, "github").command] == [
        str(home.project / "tools/gh.js"),
        str(home.project / "data"),
    ]
    assert (stdio(made, "github").cwd, stdio(made, "sub").cwd) == (home.project, home.project / "sub")
    assert state(made, "old") == OFF


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "disabled": True}, OFF),
        ({"command": "x", "disabledTools": ["read"]}, DENY),
        ({"command": "x", "alwaysAllow": ["read"]}, ALLOW),
        ({"command": "x", "enabledTools": ["write"]}, PROBLEM),
        ({"command": "x", "timeout": 5000}, PROBLEM),
        ({"url": "https://x.example/mcp"}, PROBLEM),
        ({"type": "http", "url": "https://x.example/mcp"}, PROBLEM),
        ({"command": "a", "url": "https://x.example", "type": "sse"}, PROBLEM),
    ],
)
def test_keys_that_restrict(home: Home, entry: dict[str, object], expected: str) -> None:
    assert state(home.server(PLACES[0], entry), "files") == expected
