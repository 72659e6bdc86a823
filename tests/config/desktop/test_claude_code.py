"""Claude Code's files."""

from __future__ import annotations

from pathlib import Path

import pytest

import config
from config import OAuth, Secret
from tests.config.desktop.kit import ALLOW, ASK, DENY, OFF, PROBLEM, Home, detected, opening, state, states
from tests.config.kit import http, stdio

USER, PROJECT = "~/.claude.json", ".mcp.json"
SETTINGS, SHARED, LOCAL = "~/.claude/settings.json", ".claude/settings.json", ".claude/settings.local.json"


def test_the_users_file(home: Home) -> None:
    """Servers of single projects are off, since this endpoint has no project."""
    home.environ = {"HOME": "/u", "ISSUES_TOKEN": "i"}
    made = home.load(
        USER,
        {
            "numStartups": 41,
            "mcpServers": {
                "notes": {
                    "type": "stdio",
                    "command": "npx",
                    "args": ["-y", "@acme/notes-mcp", "$HOME", "${env:HOME}"],
                    "env": {"NOTES_DIR": "${HOME}/notes"},
                    "timeout": 120000,
                },
                "issues": {
                    "type": "http",
                    "url": "https://mcp.issues.example/mcp",
                    "headers": {"Authorization": "Bearer ${ISSUES_TOKEN}"},
                    "alwaysLoad": True,
                },
                "unset": {"command": "x", "env": {"K": "${UNSET}"}},
            },
            "projects": {
                "/home/kim/shop": {
                    "allowedTools": [],
                    "history": [{"display": "x" * 100}],
                    "mcpServers": {"db": {"command": "./pg", "args": ["${SHOP_DSN:-postgresql://localhost/shop}"]}},
                },
                "/srv/shop": {"mcpServers": {"db": {"command": "uvx"}}},
                "/srv/other": {},
            },
        },
    )
    assert made.notices[:2] == (
        "read as a Claude Code file",
        "switched off, as Claude Code uses them in one project alone: db (shop), db (/srv/shop)",
    )
    assert [state(made, id) for id in made.servers] == [ALLOW, ALLOW, PROBLEM, OFF, OFF]
    notes = stdio(made, "notes")
    assert [word.reveal() for word in notes.command[3:]] == ["$HOME", "${env:HOME}"]
    assert (notes.env["NOTES_DIR"].reveal(), notes.timeout, notes.cwd) == ("/u/notes", 120.0, home.path)
    assert http(made, "issues").headers["Authorization"].reveal() == "Bearer i"
    assert "UNSET is not set" in made.servers["unset"].problem
    assert str(stdio(made, "db-shop").cwd) == "/home/kim/shop"
    assert stdio(made, "db-shop").program.reveal() == "/home/kim/shop/pg"


OAUTH = {"clientId": "c", "callbackPort": 8080}


def test_a_projects_file(home: Home) -> None:
    """Its servers are served, and it is said which ones the person has not approved."""
    made = home.load(
        PROJECT,
        {
            "mcpServers": {
                "catalog": {"command": "${CLAUDE_PROJECT_DIR:-.}/tools/catalog-mcp", "args": ["--readonly"]},
                "intranet": {"type": "sse", "url": "https://mcp.intra.example/sse", "headersHelper": "/opt/bin/h"},
                "calendar": {"type": "streamable-http", "url": "https://cal.example/mcp", "oauth": OAUTH},
                "odd": {
                    "type": "http",
                    "url": "https://cal.example/mcp",
                    "oauth": {"authServerMetadataUrl": "https://x"},
                },
            }
        },
    )
    assert [state(made, id) for id in made.servers] == [ALLOW, ALLOW, ALLOW, PROBLEM]
    assert http(made, "calendar").oauth == OAuth(client_id=Secret("c"), redirect_port=8080)
    assert Path(stdio(made, "catalog").program.reveal()) == home.project / "tools/catalog-mcp"
    assert stdio(made, "catalog").cwd == home.project
    assert [word.reveal() for word in http(made, "intranet").headers_helper or ()] == ["/bin/sh", "-c", "/opt/bin/h"]
    assert made.notices[1].startswith(
        "no file says that Claude Code may start catalog, intranet, calendar, odd of this"
    )


def test_the_shape_alone(home: Home) -> None:
    """A copy of the user's file, whose switches count there too."""
    made = home.load(
        "backup.json",
        {"mcpServers": {"a": {"command": "x"}}, "projects": {"/p": {"disabledMcpServers": ["a"]}}},
    )
    assert made.notices[0] == "read as a Claude Code file"
    assert state(made, "a") == OFF


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "disabled": True}, OFF),
        ({"type": "http", "url": ""}, OFF),
        ({"url": "https://h/mcp"}, PROBLEM),
        ({"type": "ws", "url": "wss://h/mcp"}, PROBLEM),
        ({"command": "x", "disabledTools": ["read"]}, PROBLEM),
        (
            {"type": "http", "url": "https://h/mcp", "tools": [{"name": "read", "permission_policy": "always_deny"}]},
            DENY,
        ),
        ({"type": "http", "url": "https://h/mcp", "tools": [{"name": "read", "permission_policy": "always_ask"}]}, ASK),
        (
            {"type": "http", "url": "https://h/mcp", "tools": [{"name": "read", "permission_policy": "always_allow"}]},
            ALLOW,
        ),
        ({"type": "http", "url": "https://h/mcp", "tools": [{"name": "read", "org_max_permission": "blocked"}]}, DENY),
        ({"type": "http", "url": "https://h/mcp", "tools": [{"name": "read", "org_max_permission": "allow"}]}, ALLOW),
        ({"type": "http", "url": "https://h/mcp", "tools": [{"name": "read", "permission_policy": "never"}]}, PROBLEM),
        ({"type": "http", "url": "https://h/mcp", "tools": [{"name": "read", "mode": "off"}]}, PROBLEM),
        ({"type": "http", "url": "https://h/mcp", "tools": ["read"]}, ALLOW),
        ({"type": "http", "url": "https://h/mcp", "tools": ["write"]}, DENY),
        ({"type": "http", "url": "https://h/mcp", "tools": ["*"]}, ALLOW),
        ({"type": "http", "url": "https://h/mcp", "tools": ["r*"]}, PROBLEM),
        ({"type": "http", "url": "https://h/mcp", "tools": "*"}, PROBLEM),
        ({"type": "local", "command": "x", "tools": []}, DENY),
        ({"type": "http", "url": "https://h/mcp", "toolPermissions": {"read": "blocked"}}, DENY),
        ({"type": "http", "url": "https://h/mcp", "toolPermissions": {"read": "ask"}}, ASK),
        ({"type": "http", "url": "https://h/mcp", "toolPermissions": {"read": "allow"}}, ALLOW),
        ({"type": "http", "url": "https://h/mcp", "request_timeout_ms": 5, "displayName": "A", "role": "x"}, ALLOW),
        ({"command": "x", "timeout": 5, "bareElicitationCapability": True, "discoveryCache": {}}, ALLOW),
    ],
)
def test_keys_that_restrict(home: Home, entry: dict[str, object], expected: str) -> None:
    assert state(home.server(USER, entry), "files") == expected


def test_tools_that_are_no_list_are_told_so(home: Home) -> None:
    made = home.server(USER, {"type": "http", "url": "https://h/mcp", "tools": "*"})
    assert made.servers["files"].problem == 'its key "tools" is not a list of names of tools'


def test_names_that_the_host_keeps(home: Home) -> None:
    assert state(home.load(USER, {"mcpServers": {"workspace": {"command": "x"}}}), "workspace") == PROBLEM


# Restrictions in other places.


TWO = {"mcpServers": {"git hub": {"command": "x"}, "db": {"command": "y"}}}


@pytest.mark.parametrize(
    ("rules", "read", "write", "other"),
    [
        ({"deny": ["mcp__git_hub"]}, DENY, DENY, ALLOW),
        ({"deny": ["mcp__git_hub__*"]}, DENY, DENY, ALLOW),
        ({"deny": ["mcp__git_hub__read"]}, DENY, ALLOW, ALLOW),
        ({"deny": ["mcp__git_hub__re*"]}, DENY, ALLOW, ALLOW),
        ({"deny": ["mcp__git_hub__read(x)"]}, DENY, ALLOW, ALLOW),
        ({"deny": ["mcp__git_hub__re_d"], "ask": ["mcp__git_hub__wr_te"]}, DENY, ASK, ALLOW),
        ({"deny": ["mcp__*"]}, DENY, DENY, DENY),
        ({"deny": ["mcp__*__read"]}, DENY, ALLOW, DENY),
        ({"deny": ["mcp__git*"]}, DENY, DENY, ALLOW),
        ({"deny": ["Bash(rm:*)", "mcp__git"]}, ALLOW, ALLOW, ALLOW),
        ({"ask": ["mcp__git_hub"]}, ASK, ASK, ALLOW),
        ({"ask": ["mcp__git_hub__r*"], "deny": ["mcp__git_hub__write"]}, ASK, DENY, ALLOW),
        ({"allow": ["mcp__git_hub__read"]}, ALLOW, ALLOW, ALLOW),
        ({"allow": ["mcp__git_hub__read"], "defaultMode": "dontAsk"}, PROBLEM, PROBLEM, PROBLEM),
        ({"deny": "mcp__git_hub"}, PROBLEM, PROBLEM, PROBLEM),
    ],
)
def test_permissions(home: Home, rules: dict[str, object], read: str, write: str, other: str) -> None:
    home.write(SETTINGS, {"permissions": rules})
    made = home.load(USER, TWO)
    assert states(made, "git-hub", "read", "write") == [read, write]
    assert state(made, "db") == other


@pytest.mark.parametrize(
    ("place", "file"),
    [(SETTINGS, PROJECT), (SHARED, PROJECT), (LOCAL, PROJECT), ("/etc/claude-code/managed-settings.json", USER)],
)
def test_settings_elsewhere_restrict(home: Home, place: str, file: str) -> None:
    home.write(place, {"permissions": {"deny": ["mcp__db"]}, "deniedMcpServers": [{"serverName": "git hub"}]})
    made = home.load(file, TWO)
    assert (state(made, "git-hub"), state(made, "db")) == (OFF, DENY)


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"deniedMcpServers": [{"serverName": "git hub"}]}, OFF, ALLOW),
        ({"deniedMcpServers": [{"serverCommand": ["x"]}]}, PROBLEM, PROBLEM),
        ({"allowedMcpServers": []}, OFF, OFF),
        ({"allowedMcpServers": [{"serverName": "db"}]}, OFF, ALLOW),
        ({"strictPluginOnlyCustomization": True}, OFF, OFF),
        ({"strictPluginOnlyCustomization": ["mcp"]}, OFF, OFF),
        ({"strictPluginOnlyCustomization": ["skills"]}, ALLOW, ALLOW),
        ({"disabledMcpjsonServers": ["db"]}, ALLOW, ALLOW),
    ],
)
def test_lists_of_servers(home: Home, settings: dict[str, object], first: str, second: str) -> None:
    home.write(SETTINGS, settings)
    made = home.load(USER, TWO)
    assert (state(made, "git-hub"), state(made, "db")) == (first, second)


def test_an_administrators_servers_replace_all(home: Home) -> None:
    home.write("/etc/claude-code/managed-mcp.json", {})
    assert states(home.load(USER, TWO), "db", "read") == [OFF]


def test_a_server_that_one_project_has_switched_off(home: Home) -> None:
    """Here it would be on in that project too."""
    made = home.load(USER, {**TWO, "projects": {"/p": {"disabledMcpServers": ["db", "plugin:a:b"]}, "/q": {}}})
    assert (state(made, "git-hub"), state(made, "db")) == (ALLOW, OFF)
    assert "db is switched off, since it is so in one of the user's projects" in made.notices


def test_settings_may_be_elsewhere(home: Home) -> None:
    home.environ = {"CLAUDE_CONFIG_DIR": str(home.path / "moved")}
    home.write("~/moved/settings.json", {"permissions": {"deny": ["mcp__db"]}})
    assert state(home.load("~/moved/.claude.json", TWO), "db") == DENY
    home.write("~/moved/.claude.json", {"projects": {str(home.project): {"disabledMcpServers": ["git hub"]}}})
    made = home.load(PROJECT, TWO)
    assert (state(made, "git-hub"), state(made, "db")) == (OFF, DENY)


def test_restrictions_that_cannot_be_read(home: Home) -> None:
    home.write(SETTINGS, "{ no JSON")
    made = home.load(USER, TWO)
    assert made.servers["db"].problem.startswith("the file settings.json of its host, which may restrict it, cannot be")


# Approvals of a project's servers.


def unapproved(home: Home) -> list[str]:
    """The servers of the project of which the notice says that they are not approved."""
    said = [notice for notice in home.load(PROJECT, TWO).notices if notice.startswith("no file says")]
    return (
        said[0].removeprefix("no file says that Claude Code may start ").partition(" of this")[0].split(", ")
        if said
        else []
    )


def trust(home: Home, folder: Path) -> None:
    home.write(USER, {"projects": {str(folder): {"hasTrustDialogAccepted": True}}})


@pytest.mark.parametrize("place", [SETTINGS, SHARED, LOCAL, "/etc/claude-code/managed-settings.json"])
@pytest.mark.parametrize(
    ("settings", "left"),
    [({"enabledMcpjsonServers": ["db"]}, ["git hub"]), ({"enableAllProjectMcpServers": True}, [])],
)
def test_approvals(home: Home, place: str, settings: dict[str, object], left: list[str]) -> None:
    """Those in the project's own files count once its folder is trusted."""
    home.write(place, settings)
    assert unapproved(home) == (["git hub", "db"] if place in (SHARED, LOCAL) else left)
    trust(home, home.project.parent)
    assert unapproved(home) == left


@pytest.mark.parametrize(
    ("index", "left"),
    [
        (b"DIRC\0\0\0\2...README.md", ["git hub"]),
        (b"DIRC\0\0\0\2....claude/settings.local.json", ["git hub", "db"]),
        (b"DIRC\0\0\0\4...README.md", ["git hub", "db"]),
        (None, ["git hub"]),
    ],
)
def test_approvals_that_others_may_have_written(home: Home, index: bytes | None, left: list[str]) -> None:
    home.write(LOCAL, {"enabledMcpjsonServers": ["db"]})
    trust(home, home.project)
    (home.project / ".git").mkdir()
    if index is not None:
        (home.project / ".git" / "index").write_bytes(index)
    assert unapproved(home) == left


def test_a_work_tree_is_taken_for_tracked(home: Home) -> None:
    home.write(LOCAL, {"enabledMcpjsonServers": ["db"]})
    trust(home, home.project)
    home.write(".git", "gitdir: /elsewhere")
    assert unapproved(home) == ["git hub", "db"]


@pytest.mark.parametrize("place", [SETTINGS, SHARED, LOCAL])
def test_rejections_count_wherever_they_are(home: Home, place: str) -> None:
    home.write(place, {"disabledMcpjsonServers": ["db"], "enabledMcpjsonServers": ["db"]})
    assert state(home.load(PROJECT, TWO), "db") == OFF


@pytest.mark.parametrize("key", ["disabledMcpServers", "disabledMcpjsonServers"])
def test_switches_of_the_project_in_the_users_file(home: Home, key: str) -> None:
    home.write(USER, {"projects": {str(home.project): {key: ["db"]}, "/other": {key: ["git hub"]}}})
    made = home.load(PROJECT, TWO)
    assert (state(made, "git-hub"), state(made, "db")) == (ALLOW, OFF)


def test_a_large_file_of_the_user(home: Home) -> None:
    """Only its parts that mean something are read."""
    projects: dict[str, object] = {f"/p{n}": {"history": [{"display": "x" * 1000}] * 20} for n in range(100)}
    projects[str(home.project)] = {"disabledMcpServers": ["db"]}
    file = home.write(USER, {"mcpServers": {"a": {"command": "x"}}, "projects": projects})
    assert file.stat().st_size > 2_000_000
    assert state(config.load(file, {}, home=home.path), "a") == ALLOW
    assert state(home.load(PROJECT, TWO), "db") == OFF


@pytest.mark.parametrize(
    ("hooks", "stops"),
    [
        ({"PreToolUse": [{"matcher": "mcp__files__.*", "hooks": []}]}, True),
        ({"PreToolUse": [{"matcher": "Bash|mcp__files__read", "hooks": []}]}, True),
        ({"PreToolUse": [{"matcher": "Bash"}, {"matcher": "*"}]}, True),
        ({"PreToolUse": [{"hooks": []}]}, True),
        ({"PreToolUse": [{"matcher": None, "hooks": []}]}, True),
        ({"PreToolUse": [{"matcher": "Bash|Edit", "hooks": []}]}, False),
        ({"PostToolUse": [{"matcher": "mcp__.*"}], "PreToolUse": []}, False),
    ],
)
def test_a_hook_that_decides_about_calls_is_detected(home: Home, hooks: dict[str, object], stops: bool) -> None:
    home.write(LOCAL, {"hooks": hooks})
    problem = home.server(PROJECT, {"command": "x"}).servers["files"].problem
    assert ("a hook of Claude Code (PreToolUse) could" in problem) is stops
    assert detected(home, PROJECT, "files") == (OFF if stops else "")


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("/etc/claude-code/managed-settings.d/10-a.json", {"permissions": {"deny": ["mcp__db"]}}, DENY),
        (
            "/Library/Application Support/ClaudeCode/managed-settings.json",
            {"permissions": {"deny": ["mcp__db"]}},
            DENY,
        ),
        ("~/.claude/remote-settings.json", {"permissions": {"deny": ["mcp__db"]}}, DENY),
        ("/etc/claude-code/managed-settings.json", {"managedMcpServers": {"db": {}}}, PROBLEM),
    ],
)
@pytest.mark.parametrize("where", [USER, PROJECT])
def test_settings_of_the_administrator(
    home: Home, where: str, file: str, content: dict[str, object], expected: str
) -> None:
    home.write(file, content)
    assert state(home.load(where, TWO), "db") == expected


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("hooks/hooks.json", {"hooks": {"PreToolUse": [{"matcher": ".*"}]}}),
        (".claude-plugin/plugin.json", {"hooks": {"PreToolUse": [{"matcher": ".*"}]}}),
        (".claude-plugin/plugin.json", {"hooks": ["./other.json"]}),
    ],
)
def test_hooks_of_plugins(home: Home, file: str, content: dict[str, object]) -> None:
    home.write("~/plugin/other.json", {"hooks": {"PreToolUse": [{}]}})
    home.write(f"~/plugin/{file}", content)
    place = str(home.path / "plugin")
    home.write("~/.claude/plugins/installed_plugins.json", {"plugins": {"a@b": [{"installPath": place}]}})
    assert state(home.load(USER, TWO), "db") == ALLOW
    home.write(SHARED, {"enabledPlugins": {"a@b": True}})
    assert state(home.load(PROJECT, TWO), "db") == PROBLEM
    home.environ["CLAUDE_CODE_PLUGIN_CACHE_DIR"] = str(home.path / "moved")
    home.file("~/.claude/plugins/installed_plugins.json").rename(home.write("~/moved/installed_plugins.json", ""))
    assert state(home.load(PROJECT, TWO), "db") == PROBLEM
    home.write("~/moved/installed_plugins.json", {"plugins": {"a@b": [{}]}})
    assert "at an unknown place" in home.load(PROJECT, TWO).servers["db"].problem


def test_a_hook_for_permissions_stops_a_server(home: Home) -> None:
    home.write("~/.claude/settings.json", {"hooks": {"PermissionRequest": [{"matcher": "mcp__.*", "hooks": []}]}})
    assert state(home.load(".mcp.json", {"mcpServers": {"files": {"command": "x"}}}), "files") == PROBLEM


@pytest.mark.parametrize(("is_on", "expected"), [(["1.0"], PROBLEM), (True, PROBLEM), (False, ALLOW), (None, ALLOW)])
def test_a_plugin_may_be_on_in_some_versions(home: Home, is_on: object, expected: str) -> None:
    installed = {"plugins": {"guard@shop": [{"installPath": str(home.file("~/guard"))}]}}
    home.write("~/.claude/settings.json", {"enabledPlugins": {"guard@shop": is_on}})
    home.write("~/.claude/plugins/installed_plugins.json", installed)
    home.write("~/guard/hooks/hooks.json", {"hooks": {"PreToolUse": [{"matcher": "mcp__.*"}]}})
    assert state(home.load(".mcp.json", {"mcpServers": {"files": {"command": "x"}}}), "files") == expected


def test_a_project_behind_a_link_has_the_switches_of_its_folder(home: Home) -> None:
    home.write(".mcp.json", {"mcpServers": {"files": {"command": "x"}}})
    home.write("~/.claude.json", {"projects": {str(home.project.resolve()): {"disabledMcpServers": ["files"]}}})
    (home.path / "link").symlink_to(home.project)
    assert state(home.read("~/link/.mcp.json"), "files") == OFF


def test_settings_are_read_once_for_all_servers(home: Home) -> None:
    settings = home.write("~/.claude/settings.json", {"permissions": {"deny": ["mcp__files__read"]}})
    projects = {f"/p/{n}": {"mcpServers": {"files": {"command": "x"}}} for n in range(5)}
    file = home.write("~/.claude.json", {"projects": projects})
    with opening() as opened:
        config.load(file, {}, home=home.path)
    assert opened.count(settings) == 2  # for its state, and for its values
