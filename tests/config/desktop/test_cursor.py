"""Cursor's files."""

from __future__ import annotations

import pytest

from config import OAuth, Secret
from config.desktop.cursor import CURSOR
from tests.config.desktop.kit import ALLOW, DENY, OFF, PROBLEM, Home, detected, state, states
from tests.config.kit import http, stdio
from tests.kit.cost import assert_costs_less

USER, PROJECT = "~/.cursor/mcp.json", ".cursor/mcp.json"

REDIRECT = "the client for its login must permit the redirect http://127.0.0.1:PORT/oauth/callback at the issuer"


def test_the_users_file(home: Home) -> None:
    home.environ = {"NOTES_KEY": "n", "SEARCH_TOKEN": "s"}
    made = home.load(
        USER,
        {
            "mcpServers": {
                "notes": {
                    "type": "stdio",
                    "command": "npx",
                    "args": ["${userHome}/notes", "${/}${pathSeparator}", "${NAME}", "$NAME"],
                    "env": {"NOTES_KEY": "${env:NOTES_KEY}"},
                    "timeout": 60000,
                },
                "search": {
                    "url": "https://search.example/mcp",
                    "headers": {"Authorization": "Bearer ${env:SEARCH_TOKEN}"},
                },
                "crm": {
                    "url": "https://crm.example/mcp",
                    "auth": {"CLIENT_ID": "${env:SEARCH_TOKEN}", "scopes": ["a"]},
                },
                "odd": {"url": "https://crm.example/mcp", "auth": {"CLIENT": "x"}},
                "unset": {"command": "x", "env": {"K": "${env:UNSET}"}},
                "folder": {"command": "x", "cwd": "${workspaceFolder}"},
                "setting": {"command": "x", "args": ["${config:a.b}"]},
            }
        },
    )
    assert made.notices == ("read as a Cursor file", f"crm: {REDIRECT}")
    assert [state(made, id) for id in made.servers] == [ALLOW, ALLOW, ALLOW, *[PROBLEM] * 4]
    assert [word.reveal() for word in stdio(made, "notes").command[1:]] == [
        f"{home.path}/notes",
        "//",
        "${NAME}",
        "$NAME",
    ]
    assert stdio(made, "notes").env["NOTES_KEY"].reveal() == "n"
    assert http(made, "search").headers["Authorization"].reveal() == "Bearer s"
    assert http(made, "crm").oauth == OAuth(client_id=Secret("s"), scopes=("a",))
    assert 'its key "auth.CLIENT" is not known here' in made.servers["odd"].problem
    assert "UNSET is not set" in made.servers["unset"].problem
    assert made.servers["folder"].problem.startswith("it names the folder of a project")
    assert made.servers["setting"].problem == "the reference ${config} has a value only in the editor"
    assert CURSOR.hides_switches


def test_a_projects_file(home: Home) -> None:
    """Its servers are served, and it is said that no file shows whether the person has approved them."""
    home.write(".env", "TOKEN=t\n")
    made = home.load(
        PROJECT,
        {
            "mcpServers": {
                "build": {
                    "command": "python",
                    "args": ["${workspaceFolder}${/}tools${/}mcp.py", "${workspaceFolderBasename}"],
                    "envFile": "${workspaceFolder}/.env",
                },
                "relative": {"command": "./run", "envFile": ".env", "cwd": "sub"},
                "off": {"command": "uvx", "args": ["notes-mcp"], "disabled": True},
            }
        },
    )
    assert [word.reveal() for word in stdio(made, "build").command[1:]] == [f"{home.project}/tools/mcp.py", "shop"]
    assert (stdio(made, "build").env["TOKEN"].reveal(), stdio(made, "build").cwd) == ("t", home.project)
    relative = stdio(made, "relative")
    assert (relative.program.reveal(), relative.cwd) == (f"{home.project}/run", home.project / "sub")
    assert relative.env["TOKEN"].reveal() == "t"
    assert state(made, "off") == OFF
    assert made.notices[1].startswith("no file says that Cursor may start build, relative of this project")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"disabled": True}, [OFF, OFF]),
        ({"disabledTools": ["read"]}, [DENY, ALLOW]),
        ({"autoApprove": ["read"], "alwaysAllow": ["read"]}, [ALLOW, ALLOW]),
        ({"enabledTools": ["read"]}, [PROBLEM, PROBLEM]),
        ({"envFile": "missing.env"}, [PROBLEM, PROBLEM]),
    ],
)
def test_keys_that_restrict(home: Home, more: dict[str, object], expected: list[str]) -> None:
    assert states(home.server(USER, {"command": "x", **more}), "files", "read", "write") == expected


@pytest.mark.parametrize(
    ("place", "of_user"),
    [
        ("~/.cursor/cli-config.json", DENY),
        ("~/.config/cursor/cli-config.json", DENY),
        (".cursor/cli.json", ALLOW),
        ("../.cursor/cli.json", ALLOW),
    ],
)
def test_permissions_of_the_command_line(home: Home, place: str, of_user: str) -> None:
    """Those of a project, and of the folders around it, are for its own servers."""
    rules = ["Mcp(files:delete*)", "Mcp(*:purge)", "Mcp(Other:*)", "Shell(ls)"]
    home.write(place, {"permissions": {"allow": ["Mcp(files:*)"], "deny": rules}})
    servers = {"mcpServers": {"files": {"command": "x"}, "other": {"command": "x"}}}
    made = home.load(PROJECT, servers)
    assert states(made, "files", "delete_all", "purge", "read") == [DENY, DENY, ALLOW]
    assert states(made, "other", "read") == [DENY]
    assert states(home.load(USER, servers), "files", "delete_all", "read") == [of_user, ALLOW]


def test_settings_may_be_elsewhere(home: Home) -> None:
    home.write("~/xdg/cursor/cli-config.json", {"permissions": {"deny": ["Mcp(files:read)"]}})
    home.environ = {"XDG_CONFIG_HOME": str(home.path / "xdg")}
    assert state(home.server(USER, {"command": "x"}), "files") == DENY


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("~/.cursor/cli-config.json", {"permissions": {"deny": ["Mcp files"]}}),
        ("~/.cursor/cli-config.json", {"permissions": {"deny": "Mcp(files:read)"}}),
        ("~/.cursor/cli-config.json", "{ no JSON"),
    ],
)
def test_what_is_not_understood_stops_all_servers(home: Home, place: str, content: object) -> None:
    home.write(place, content)
    assert state(home.server(USER, {"command": "x"}), "files") == PROBLEM


@pytest.mark.parametrize(
    ("place", "hooks"),
    [
        ("~/.cursor/hooks.json", {"beforeMCPExecution": [{"command": "./audit.sh", "matcher": "Shell"}]}),
        ("/etc/cursor/hooks.json", {"beforeMCPExecution": [{"command": "./audit.sh"}]}),
        ("~/.cursor/hooks.json", {"preToolUse": [{"command": "./audit.sh"}]}),
        ("~/.cursor/hooks.json", {"preToolUse": [{"command": "./audit.sh", "matcher": "Shell|MCP"}]}),
    ],
)
def test_hooks_are_detected(home: Home, place: str, hooks: object) -> None:
    home.write(place, {"version": 1, "hooks": hooks})
    home.write(USER, {"mcpServers": {"files": {"command": "x"}}})
    assert detected(home, USER, "files") == OFF


@pytest.mark.parametrize("content", ['{"mcpAllowlist": ["files:read", "files:*"], // mine\n}', "{ no JSON"])
def test_what_only_approves_stops_nothing(home: Home, content: str) -> None:
    home.write("~/.cursor/permissions.json", content)
    home.write("~/.cursor/hooks.json", {"hooks": {"afterFileEdit": [{"command": "x"}]}})
    home.write("/etc/cursor/hooks.json", {"hooks": {"preToolUse": [{"command": "x", "matcher": "Shell|Read"}]}})
    assert state(home.server(USER, {"command": "x"}), "files") == ALLOW


def test_the_settings_of_the_command_line_may_be_elsewhere(home: Home) -> None:
    home.write("~/moved/cli-config.json", {"permissions": {"deny": ["Mcp(files:read)"]}})
    home.environ["CURSOR_CONFIG_DIR"] = str(home.path / "moved")
    assert state(home.server(USER, {"command": "x"}), "files") == DENY


def test_a_long_rule_costs_little(home: Home) -> None:
    home.write("~/.cursor/cli-config.json", {"permissions": {"deny": ["Mcp(" + " " * 20_000]}})
    home.write(USER, {"mcpServers": {"files": {"command": "x"}}})
    assert_costs_less(lambda: home.read(USER), 1)


def test_spaces_in_a_rule_do_not_count(home: Home) -> None:
    home.write("~/.cursor/cli-config.json", {"permissions": {"deny": ["Mcp( files : read )", "Mcp( : purge)"]}})
    assert states(home.server(USER, {"command": "x"}), "files", "read", "purge", "list") == [DENY, DENY, ALLOW]
