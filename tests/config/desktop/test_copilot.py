"""Files of Copilot CLI."""

from __future__ import annotations

import pytest

from config import OAuth, Secret
from tests.config.desktop.kit import Home, detected, state, states
from tests.config.kit import http, stdio

USER = "~/.copilot/mcp-config.json"
PROJECT = ".github/mcp.json"
MANAGED = "/etc/github-copilot/managed-settings.json"
HOOK = {"hooks": {"preToolUse": [{"type": "command", "bash": "exit 1"}]}}


def server(**keys: object) -> dict[str, object]:
    return {"mcpServers": {"notes": {"type": "local", "command": "notes-mcp", "args": ["-v"], **keys}}}


def test_a_usual_file(home: Home) -> None:
    home.environ = {"HOME": "/home/kim", "TOKEN": "t"}
    made = home.load(
        USER,
        {
            "mcpServers": {
                "notes": {
                    "type": "local",
                    "command": "uvx",
                    "args": ["notes-mcp", "$HOME/notes", "${MODE:-fast}"],
                    "env": {"A": "TOKEN", "B": "$TOKEN", "C": "OTHER", "D": "a TOKEN"},
                    "cwd": "/srv/notes",
                    "tools": ["*"],
                    "excludeTools": ["purge"],
                    "timeout": 20000,
                    "displayName": "Notes",
                    "safeForTelemetry": True,
                    "isDefaultServer": False,
                    "slowConnectionThresholdMs": 1000,
                    "deferTools": "never",
                    "disableToolCache": True,
                    "disableSecretMasking": True,
                    "events": [],
                    "notifications": [],
                    "auth": False,
                    "oidc": False,
                },
                "tickets": {
                    "type": "http",
                    "url": "https://tickets.example.com/mcp",
                    "headers": {"Authorization": "Bearer ${TOKEN}"},
                    "headersRefreshTtlMs": 1000,
                    "tools": ["search"],
                },
                "off": {"type": "stdio", "command": "x", "disabled": True},
            }
        },
    )
    assert made.notices == ("read as a Copilot CLI file",)
    assert {id: spec.problem for id, spec in made.servers.items()} == dict.fromkeys(made.servers, "")
    assert [id for id, spec in made.servers.items() if spec.disabled] == ["off"]
    notes, tickets = stdio(made, "notes"), http(made, "tickets")
    assert [word.reveal() for word in notes.command] == ["uvx", "notes-mcp", "/home/kim/notes", "fast"]
    assert {name: value.reveal() for name, value in notes.env.items()} == {
        "A": "t", "B": "t", "C": "OTHER", "D": "a TOKEN"
    }  # fmt: skip
    assert (notes.timeout, str(notes.cwd)) == (20.0, "/srv/notes")
    assert tickets.headers["Authorization"].reveal() == "Bearer t"
    assert states(made, "notes", "read", "purge") == ["allow", "deny"]
    assert states(made, "tickets", "search", "close") == ["allow", "deny"]


@pytest.mark.parametrize(
    ("tools", "decided"), [(["read", "*"], "allow"), ([], "deny"), (["write"], "deny"), (["re*"], "problem")]
)
def test_the_only_tools(home: Home, tools: list[str], decided: str) -> None:
    assert state(home.load(USER, server(tools=tools)), "notes", "read") == decided


@pytest.mark.parametrize(
    ("file", "content", "decided"),
    [
        ("~/.copilot/settings.json", {"disabledMcpServers": ["notes"]}, "off"),
        ("~/.copilot/settings.json", {"disabledMcpServers": ["Notes"]}, "allow"),
        ("~/.copilot/settings.json", {"disabledMcpServers": "notes"}, "problem"),
        ("~/.copilot/settings.json", {"permissions": {"deny": ["notes(read)"]}}, "allow"),
        ("~/.copilot/settings.json", {"deniedMcpServers": [{"serverName": "notes"}]}, "allow"),
        ("~/.copilot/settings.json", HOOK, "problem"),
        ("~/.copilot/settings.json", {"hooks": {"PermissionRequest": [{"matcher": "notes-.*"}]}}, "problem"),
        ("~/.copilot/settings.json", {"hooks": {"preToolUse": [{"matcher": "bash|edit"}]}}, "allow"),
        ("~/.copilot/settings.json", {"hooks": {"postToolUse": [{}]}}, "allow"),
        ("~/.copilot/settings.json", "{", "problem"),
        ("~/.copilot/config.json", {"disabledMcpServers": ["notes"]}, "allow"),
        ("~/.copilot/hooks/a.json", HOOK, "problem"),
        ("~/.copilot/installed-plugins/_direct/plug/hooks.json", HOOK, "problem"),
        ("~/.copilot/installed-plugins/market/plug/plugin.json", HOOK, "problem"),
        ("~/.copilot/installed-plugins/market/plug/data.json", "{", "allow"),
        ("/etc/github-copilot/policy.d/a.json", HOOK, "problem"),
        (MANAGED, {"deniedMcpServers": [{"serverName": "notes"}]}, "off"),
        (MANAGED, {"deniedMcpServers": [{"serverCommand": ["notes-mcp", "-v"]}]}, "problem"),
        (MANAGED, {"allowedMcpServers": []}, "off"),
        (MANAGED, {"allowedMcpServers": [{"serverName": "notes"}]}, "allow"),
        (MANAGED, {"allowManagedMcpServersOnly": True}, "off"),
        (MANAGED, {"allowManagedMcpServersOnly": True, "allowedMcpServers": [{"serverName": "notes"}]}, "allow"),
        (MANAGED, {"strictPluginOnlyCustomization": True}, "off"),
        (MANAGED, {"strictPluginOnlyCustomization": ["mcp"]}, "off"),
        (MANAGED, {"strictPluginOnlyCustomization": ["hooks"]}, "allow"),
        (MANAGED, {"permissions": {"deny": ["notes(read)"]}}, "problem"),
        (MANAGED, {"permissions": {"disableBypassPermissionsMode": "disable"}}, "allow"),
        (MANAGED, {"sandbox": {}}, "problem"),
        (MANAGED, {"policyHelper": {"path": "/x"}}, "problem"),
        (MANAGED, {**HOOK}, "problem"),
    ],
)
def test_settings_restrict(home: Home, file: str, content: object, decided: str) -> None:
    home.write(USER, server())
    home.write(file, content)
    assert state(home.read(USER), "notes", "read") == decided
    if decided == "problem" and isinstance(content, dict) and "disabledMcpServers" not in content:
        assert detected(home, USER, "notes") == "off"


def test_a_plugin_may_name_the_file_of_its_hooks(home: Home) -> None:
    home.write(USER, server())
    plugin = "~/.copilot/installed-plugins/market/plug"
    home.write(f"{plugin}/.claude-plugin/plugin.json", {"hooks": ["./own.json"]})
    assert state(home.read(USER), "notes") == "allow"
    home.write(f"{plugin}/own.json", HOOK)
    assert state(home.read(USER), "notes") == "problem"


@pytest.mark.parametrize(
    ("file", "content", "decided"),
    [
        (".github/copilot/settings.json", {"disabledMcpServers": ["notes"]}, "off"),
        (".github/copilot/settings.local.json", {"disabledMcpServers": ["notes"]}, "off"),
        (".github/copilot/settings.json", HOOK, "problem"),
        (".github/hooks/a.json", HOOK, "problem"),
        (".claude/settings.json", {"hooks": {"PreToolUse": [{"matcher": "*"}]}}, "problem"),
        (".claude/settings.local.json", {"hooks": {"PreToolUse": [{}]}}, "problem"),
        ("~/.copilot/settings.json", {"disabledMcpServers": ["notes"]}, "off"),
    ],
)
@pytest.mark.parametrize("is_repository", [False, True])
def test_settings_of_a_project_restrict(
    home: Home, file: str, content: object, decided: str, is_repository: bool
) -> None:
    home.write(PROJECT, server())
    if is_repository:
        home.write(".git/HEAD", "")
    home.write(file, content)
    assert state(home.read(PROJECT), "notes", "read") == decided


def test_the_administrator_of_macos(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    home.write("/Library/Application Support/GitHubCopilot/managed-settings.json", {"allowedMcpServers": []})
    assert state(home.load(USER, server()), "notes") == "off"


def test_a_project_file_waits_for_the_trust_of_its_folder(home: Home) -> None:
    home.write(PROJECT, server())
    assert home.entries(PROJECT)["notes"].needs_approval
    for key, folder, waits in (
        ("trustedFolders", home.project, False),
        ("trusted_folders", home.project.parent, False),
        ("trustedFolders", home.project / "below", True),
    ):
        home.write("~/.copilot/config.json", {key: [str(folder)]})
        assert home.entries(PROJECT)["notes"].needs_approval is waits
    home.environ["COPILOT_HOME"] = str(home.path / "moved")
    assert home.entries(PROJECT)["notes"].needs_approval
    home.write("~/moved/config.json", {"trustedFolders": [str(home.project)]})
    assert not home.entries(PROJECT)["notes"].needs_approval
    home.write(USER, server())
    assert not home.entries(USER)["notes"].needs_approval


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"enabled": False}, 'its key "enabled" is not known here'),
        ({"type": "memory"}, 'its key "type" is "memory"'),
        ({"type": "http"}, "which needs a url"),
        ({"filterMapping": "hidden_characters"}, "filters what its tools answer"),
        ({"auth": True}, "needs OAuth in a way that is unsupported"),
        ({"oidc": {"redirectPort": 1}}, "needs OAuth in a way that is unsupported"),
        ({"oauthPublicClient": False}, "needs OAuth in a way that is unsupported"),
        ({"oauthGrantType": "client_credentials"}, "needs OAuth in a way that is unsupported"),
        ({"tools": "read"}, 'its key "tools" is not a list of names of tools'),
        ({"args": ["$NOT_SET"]}, "the environment variable NOT_SET is not set"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, keys: dict[str, object], said: str) -> None:
    assert said in home.load(USER, server(**keys)).servers["notes"].problem


def test_the_client_of_a_login(home: Home) -> None:
    entry = {
        "type": "http",
        "url": "https://notes.example/mcp",
        "oauthClientId": "c",
        "oauthScopes": ["a"],
        "oauthPublicClient": True,
        "oauthGrantType": "authorization_code",
    }
    made = home.load(USER, {"mcpServers": {"notes": entry}})
    assert http(made, "notes").oauth == OAuth(Secret("c"), scopes=("a",))


def test_a_file_at_another_place(home: Home) -> None:
    """It has the keys of all hosts there, and is restricted by what restricts Copilot CLI."""
    servers = {"notes": {"type": "local", "command": "x"}, "wiki": {"serverUrl": "https://wiki.example/mcp"}}
    made = home.load("~/elsewhere.json", {"mcpServers": servers})
    assert (made.notices, states(made, "wiki", "read")) == (("read as a mcpServers file",), ["allow"])
    home.write("~/.copilot/settings.json", {"disabledMcpServers": ["wiki"]})
    assert [state(home.read("~/elsewhere.json"), id) for id in ("notes", "wiki")] == ["allow", "off"]
