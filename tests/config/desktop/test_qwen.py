"""Files of Qwen Code."""

from __future__ import annotations

import pytest

from config import OAuth, Secret
from tests.config.desktop.kit import Home, detected, state, states
from tests.config.kit import http, stdio

USER = "~/.qwen/settings.json"
PROJECT = ".qwen/settings.json"


def server(**keys: object) -> dict[str, object]:
    return {"mcpServers": {"notes": {"command": "notes-mcp", **keys}}}


def test_a_usual_file(home: Home) -> None:
    home.environ = {"HOME": "/home/kim", "TOKEN": "t"}
    made = home.load(
        USER,
        {
            "$version": 4,
            "mcp": {"allowed": ["tick*", "notes"], "excluded": ["tickets-?"]},
            "permissions": {"deny": ["mcp__notes__purge"], "allow": ["mcp__notes__list"]},
            "mcpServers": {
                "tickets": {
                    "httpUrl": "https://tickets.example.com/mcp",
                    "headers": {"Authorization": "Bearer ${TOKEN}"},
                    "timeout": 20000,
                    "discoveryTimeoutMs": 9000,
                    "includeTools": ["search", "get", "close(...)"],
                    "excludeTools": ["get"],
                    "alwaysLoadTools": True,
                    "description": "Tickets",
                },
                "notes": {
                    "command": "uvx",
                    "args": ["notes-mcp", "$HOME/notes", "${NO:-d}", "%HOME%"],
                    "env": {"KEY": "$TOKEN"},
                    "cwd": "/srv/notes",
                    "versionNegotiation": "auto",
                    "scope": "user",
                    "trust": False,
                },
                "tickets-2": {"url": "http://h/sse", "type": "sse"},
                "other": {"command": "x", "extension": {}, "extensionName": "x"},
            },
        },
    )
    assert made.notices == ("read as a Qwen Code file",)
    assert {id: spec.problem for id, spec in made.servers.items()} == dict.fromkeys(made.servers, "")
    assert [id for id, spec in made.servers.items() if spec.disabled] == ["tickets-2", "other"]
    tickets, notes = http(made, "tickets"), stdio(made, "notes")
    assert (tickets.timeout, tickets.start_timeout) == (20.0, 9.0)
    assert tickets.headers["Authorization"].reveal() == "Bearer t"
    assert [word.reveal() for word in notes.command] == ["uvx", "notes-mcp", "/home/kim/notes", "${NO:-d}", "%HOME%"]
    assert notes.env["KEY"].reveal() == "t"
    assert states(made, "tickets", "search", "get", "close", "other") == ["allow", "deny", "allow", "deny"]
    assert states(made, "notes", "read", "purge") == ["allow", "deny"]


@pytest.mark.parametrize(
    ("settings", "decided"),
    [
        ({"mcp": {"allowed": []}}, ["off", "off"]),
        ({"mcp": {"allowed": ["Notes"]}}, ["off", "off"]),
        ({"mcp": {"allowed": ["n*"], "excluded": ["not??"]}}, ["off", "off"]),
        ({"mcp": {"excluded": "notes"}}, ["problem", "problem"]),
        ({"excludeMCPServers": ["notes"]}, ["off", "off"]),
        ({"permissions": {"deny": ["mcp__notes"]}}, ["deny", "deny"]),
        ({"permissions": {"deny": ["mcp__notes__rea*"]}}, ["deny", "allow"]),
        ({"permissions": {"deny": ["mcp__notes__re_ad_1ufqebx"]}}, ["allow", "deny"]),
        ({"permissions": {"deny": ["mcp__notes__read", "Bash(rm)"]}}, ["deny", "allow"]),
        ({"permissions": {"ask": ["mcp__notes__read"]}}, ["ask", "allow"]),
        ({"permissions": {"deny": "mcp__notes__read"}}, ["problem", "problem"]),
        ({"tools": {"exclude": ["mcp__notes__read"]}}, ["deny", "allow"]),
        ({"tools": {"disabled": ["mcp__notes__re.ad"]}}, ["allow", "deny"]),
        ({"tools": {"disabled": ["read"]}}, ["allow", "allow"]),
        ({"tools": {"core": ["read_file"]}}, ["allow", "allow"]),
        ({"excludeTools": ["mcp__notes__read"]}, ["deny", "allow"]),
        ({"tools": {"approvalMode": "plan"}}, ["problem", "problem"]),
        ({"approvalMode": "plan"}, ["problem", "problem"]),
        ({"tools": {"executionSandbox": {"filesystem": "read-only"}}}, ["off", "off"]),
        ({"hooks": {"PreToolUse": [{"matcher": "write_file", "hooks": []}]}}, ["problem", "problem"]),
        ({"hooks": {"PermissionRequest": [{"matcher": "x"}]}}, ["problem", "problem"]),
        ({"hooks": {"PostToolUse": [{"matcher": "x"}]}}, ["allow", "allow"]),
    ],
)
def test_settings_restrict(home: Home, settings: dict[str, object], decided: list[str]) -> None:
    home.write(USER, {**server(), **settings})
    assert states(home.read(USER), "notes", "read", "re.ad") == decided
    if "hooks" in settings or "plan" in str(settings):
        assert detected(home, USER, "notes") == ("" if decided[0] == "allow" else "off")


@pytest.mark.parametrize("mode", ["default", "auto", "auto-edit"])
def test_other_modes_of_approval_restrict_nothing(home: Home, mode: str) -> None:
    home.write(USER, {**server(), "tools": {"approvalMode": mode}})
    assert state(home.read(USER), "notes") == "allow"
    assert not home.entries(USER)["notes"].approves_all


def test_approvals_are_noted(home: Home) -> None:
    home.write(USER, {**server(), "permissions": {"allow": ["mcp__notes__read", "mcp__*", "mcp__notes__x(a)"]}})
    assert home.entries(USER)["notes"].approved == ["read"]
    for settings in ({"tools": {"approvalMode": "yolo"}}, {"tools": {"allowed": ["mcp__notes"]}}):
        home.write(USER, {**server(), **settings})
        assert home.entries(USER)["notes"].approves_all
    home.write(USER, server(trust=True, authProviderType="dynamic_discovery"))
    assert home.entries(USER)["notes"].approves_all


@pytest.mark.parametrize(
    ("file", "content", "variable", "decided"),
    [
        ("/etc/qwen-code/settings.json", {"mcp": {"excluded": ["notes"]}}, "", "off"),
        ("/etc/qwen-code/system-defaults.json", {"permissions": {"deny": ["mcp__notes"]}}, "", "deny"),
        ("~/x/system.json", {"tools": {"exclude": ["mcp__notes__read"]}}, "QWEN_CODE_SYSTEM_SETTINGS_PATH", "deny"),
        ("~/x/defaults", {"tools": {"exclude": ["mcp__notes__read"]}}, "QWEN_CODE_SYSTEM_DEFAULTS_PATH", "deny"),
        ("/etc/qwen-code/settings.json", server(excludeTools=["read"]), "", "problem"),
        ("~/.qwen/extensions/a/qwen-extension.json", {"hooks": {"PreToolUse": [{}]}}, "", "problem"),
        ("~/.qwen/extensions/a/qwen-extension.json", {"hooks": "./more.json"}, "", "problem"),
        ("~/.qwen/extensions/a/hooks/hooks.json", {"PreToolUse": [{}]}, "", "problem"),
        ("~/.qwen/extensions/a/hooks/hooks.json", {"hooks": {"Stop": [{}]}}, "", "allow"),
    ],
)
def test_settings_at_other_places_restrict(home: Home, file: str, content: object, variable: str, decided: str) -> None:
    home.write(USER, server())
    home.environ[variable] = str(home.write(file, content))
    assert state(home.read(USER), "notes", "read") == decided


def test_the_administrator_of_macos(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    home.write("/Library/Application Support/QwenCode/settings.json", {"mcp": {"excluded": ["notes"]}})
    assert state(home.load(USER, server()), "notes") == "off"


def test_servers_of_a_project_wait_for_approval(home: Home) -> None:
    """An approval is bound to a digest of the entry, which is not compared; a rejection always counts."""
    home.write(PROJECT, server())
    approvals = "~/.qwen/mcpApprovals.json"
    for status, is_off in (("approved", False), ("rejected", True)):
        home.write(approvals, {str(home.project): {"notes": {"hash": "0", "status": status}}})
        assert home.entries(PROJECT)["notes"].needs_approval
        assert home.read(PROJECT).servers["notes"].disabled is is_off
    home.environ["QWEN_CODE_MCP_APPROVALS_PATH"] = str(home.file("~/none"))
    assert not home.read(PROJECT).servers["notes"].disabled
    home.write(USER, server())
    assert not home.entries(USER)["notes"].needs_approval


def test_rules_may_have_the_name_of_a_server_as_it_is_written(home: Home) -> None:
    servers = {"my notes.1": {"command": "x"}}
    for rule in ("mcp__my notes.1", "mcp__my_notes_1__read", " mcp__my notes.1__re*(a)"):
        made = home.load(USER, {"mcpServers": servers, "permissions": {"deny": [rule]}})
        assert state(made, "my-notes-1", "read") == "deny"


def test_a_server_whose_name_is_cut_in_rules(home: Home) -> None:
    name = "n" * 49
    found = home.load(USER, {"mcpServers": {name: {"command": "x"}}, "permissions": {"deny": ["mcp__other__x"]}})
    assert "its name is cut in the rules of its host" in next(iter(found.servers.values())).problem


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"disabled": True}, 'its key "disabled" is not known here'),
        ({"authProviderType": "google_credentials"}, "needs credentials that only its host can obtain"),
        ({"targetAudience": "x"}, "needs credentials that only its host can obtain"),
        ({"targetServiceAccount": "x"}, "needs credentials that only its host can obtain"),
        ({"tcp": "ws://h"}, "names a transport that is not supported"),
        ({"type": "sdk"}, 'its key "type" is "sdk"'),
        ({"args": ["$NOT_SET"]}, "the environment variable NOT_SET is not set"),
        ({"env": {"A": "$NOT_SET"}}, "the environment variable NOT_SET is not set"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, keys: dict[str, object], said: str) -> None:
    assert said in home.load(USER, server(**keys)).servers["notes"].problem


@pytest.mark.parametrize("mark", [{"$version": 5}, {"$version": 5, "permissions": {"deny": ["mcp__notes__read"]}}])
def test_a_file_at_another_place(home: Home, mark: dict[str, object]) -> None:
    assert home.load("~/elsewhere.json", {**server(), **mark}).notices[0] == "read as a Qwen Code file"


def test_the_client_of_a_login(home: Home) -> None:
    oauth = {"enabled": True, "clientId": "c", "clientSecret": "s", "scopes": ["a"], "redirectUri": "https://x"}
    made = home.load(USER, {"mcpServers": {"notes": {"httpUrl": "https://notes.example/mcp", "oauth": oauth}}})
    assert http(made, "notes").oauth == OAuth(Secret("c"), Secret("s"), scopes=("a",))
