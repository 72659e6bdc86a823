"""Claude Desktop's file."""

from __future__ import annotations

import pytest

from config.desktop.claude_desktop import CLAUDE_DESKTOP
from tests.config.desktop.kit import ALLOW, DENY, OFF, PROBLEM, Home, state, states
from tests.config.kit import stdio

PLACES = {
    "linux": "~/.config/Claude/claude_desktop_config.json",
    "darwin": "~/Library/Application Support/Claude/claude_desktop_config.json",
}
PLACE = PLACES["linux"]


@pytest.mark.parametrize("place", PLACES.values())
def test_a_usual_file(home: Home, place: str) -> None:
    """No reference is known, and paths start from the user's folder."""
    made = home.load(
        place,
        {
            "globalShortcut": "",
            "mcpServers": {
                "filesystem": {"command": "npx", "args": ["-y", "@acme/files-mcp", "/Users/kim/My Documents"]},
                "mail": {"command": "/usr/local/bin/uvx", "args": ["mail"], "env": {"MAIL_HOME": "${HOME}/mail"}},
                "docker": {"command": "docker", "args": ["run", "-i", "acme/db"], "type": "stdio"},
            },
            "preferences": {"menuBarEnabled": True},
        },
    )
    assert made.notices == ("read as a Claude Desktop file",)
    assert [state(made, id) for id in made.servers] == [ALLOW] * 3
    assert stdio(made, "mail").env["MAIL_HOME"].reveal() == "${HOME}/mail"
    assert stdio(made, "filesystem").cwd == home.path
    assert CLAUDE_DESKTOP.hides_switches


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"disabled": True}, [OFF, OFF]),
        ({"disabledTools": ["read"]}, [DENY, ALLOW]),
        ({"autoApprove": ["read"], "alwaysAllow": ["read"]}, [ALLOW, ALLOW]),
        ({"type": "http"}, [PROBLEM, PROBLEM]),
        ({"includeTools": []}, [PROBLEM, PROBLEM]),
    ],
)
def test_keys_that_restrict(home: Home, more: dict[str, object], expected: list[str]) -> None:
    assert states(home.server(PLACE, {"command": "x", **more}), "files", "read", "write") == expected


def test_servers_at_a_url_are_not_read_there(home: Home) -> None:
    made = home.server(PLACE, {"url": "https://h.example/mcp", "headers": {"A": "b"}})
    assert made.servers["files"].problem.startswith('its key "url" belongs to a server at a URL, which Claude Desktop')
