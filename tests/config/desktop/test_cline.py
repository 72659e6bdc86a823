"""Cline's files."""

from __future__ import annotations

import pytest

from tests.config.desktop.kit import ALLOW, DENY, OFF, PROBLEM, Home, state, states
from tests.config.kit import http, stdio

TAIL = "User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
EXTENSION = f"~/.config/Code/{TAIL}"
PLACE = "~/.cline/data/settings/cline_mcp_settings.json"
PLACES = (EXTENSION, f"~/Library/Application Support/Cursor/{TAIL}", PLACE)


@pytest.mark.parametrize("place", PLACES)
def test_a_usual_file(home: Home, place: str) -> None:
    home.environ = {"WIKI_TOKEN": "w"}
    made = home.load(
        place,
        {
            "mcpServers": {
                "files": {
                    "command": "npx",
                    "args": ["-y", "@acme/files-mcp", "${HOME}"],
                    "env": {"LOG": "warn"},
                    "disabled": False,
                    "autoApprove": ["list_dir"],
                    "timeout": 120,
                },
                "wiki": {
                    "type": "streamableHttp",
                    "url": "https://wiki.example/mcp",
                    "headers": {"Authorization": "Bearer ${env:WIKI_TOKEN}"},
                    "autoApprove": [],
                    "remoteConfigured": True,
                },
                "legacy": {"url": "https://old.example/sse", "transportType": "sse", "timeout": 30, "disabled": True},
                "unset": {"command": "x", "env": {"K": "${env:UNSET}"}},
            }
        },
    )
    assert made.notices == ("read as a Cline file",)
    assert [state(made, id) for id in made.servers] == [ALLOW, ALLOW, OFF, PROBLEM]
    assert [word.reveal() for word in stdio(made, "files").command[1:]] == ["-y", "@acme/files-mcp", "${HOME}"]
    assert (stdio(made, "files").timeout, stdio(made, "files").start_timeout) == (120.0, 120.0)
    assert stdio(made, "files").cwd == home.path
    assert http(made, "wiki").headers["Authorization"].reveal() == "Bearer w"
    assert "UNSET is not set" in made.servers["unset"].problem


def test_a_connection_in_a_map_of_its_own(home: Home) -> None:
    """As its command line writes it."""
    database = {"type": "stdio", "command": "uvx", "args": ["pg"], "cwd": "/srv/shop", "env": {"PGHOST": "localhost"}}
    made = home.load(
        PLACE,
        {
            "mcpServers": {
                "wiki": {
                    "transport": {"type": "streamableHttp", "url": "https://w.example/mcp", "headers": {"A": "b"}}
                },
                "db": {"transport": database, "timeout": 300, "metadata": {"source": "user"}},
                "off": {"transport": {"type": "sse", "url": "https://w.example/sse"}, "disabled": True},
                "both": {"transport": database, "command": "x"},
                "text": {"transport": "stdio", "command": "x"},
                "unknown": {"transport": {**database, "sandbox": True}},
                "wrong": {"transport": {**database, "env": {"K": "${env:UNSET}"}}},
                "login": {"transport": database, "oauth": {"tokens": {}}, "oauthClient": {"clientId": "c"}},
            }
        },
    )
    assert made.notices == ("read as a Cline file",)
    assert [state(made, id) for id in made.servers] == [ALLOW, ALLOW, OFF, *[PROBLEM] * 5]
    assert http(made, "wiki").headers["A"].reveal() == "b"
    assert (stdio(made, "db").timeout, str(stdio(made, "db").cwd)) == (300.0, "/srv/shop")
    assert made.servers["both"].problem == 'it has both the key "transport" and the key "command"; remove one'
    assert made.servers["text"].problem == 'its key "transport" is text; expected a map'
    assert made.servers["wrong"].problem.startswith("transport.env.K: the environment variable UNSET is not set")
    assert '"oauth" needs OAuth' in made.servers["login"].problem
    assert '"oauthClient" needs OAuth' in made.servers["login"].problem


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "disabled": True}, OFF),
        ({"command": "x", "disabledTools": ["read"]}, DENY),
        ({"command": "x", "autoApprove": ["read"], "alwaysAllow": ["read"]}, ALLOW),
        ({"command": "x", "enabledTools": ["write"]}, PROBLEM),
        ({"type": "http", "url": "https://x.example/mcp"}, PROBLEM),
    ],
)
def test_keys_that_restrict(home: Home, entry: dict[str, object], expected: str) -> None:
    assert state(home.server(PLACE, entry), "files") == expected


@pytest.mark.parametrize(("mode", "expected"), [("off", OFF), ("server-use-only", ALLOW), ("new", PROBLEM)])
def test_the_switch_in_the_editors_settings(home: Home, mode: str, expected: str) -> None:
    home.write("~/.config/Code/User/settings.json", f'{{"editor.fontSize": 13, // mine\n"cline.mcp.mode": "{mode}",}}')
    assert state(home.server(EXTENSION, {"command": "x"}), "files") == expected


def test_tools_that_are_off_in_the_settings_of_the_command_line(home: Home) -> None:
    """By their full names, which are cut and end in a digest where they are long."""
    shared = {
        "disabledTools": ["files__read", "files__a_long_0123abcd"],
        "tools": {"files__write": {"enabled": False}, "files__list": {"enabled": True}},
    }
    home.write("~/.cline/data/settings/global-settings.json", shared)
    made = home.server(PLACE, {"command": "x"})
    assert states(made, "files", "read", "write", "b-long", "list") == [DENY, DENY, ALLOW, ALLOW]
    assert states(made, "files", "a.long.name") == [DENY]


def test_the_settings_of_the_command_line_may_be_elsewhere(home: Home) -> None:
    home.environ["CLINE_GLOBAL_SETTINGS_PATH"] = str(home.write("~/moved", {"disabledTools": ["files__read"]}))
    assert state(home.server(PLACE, {"command": "x"}), "files") == DENY
