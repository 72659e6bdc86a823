"""Files of Gemini CLI."""

from __future__ import annotations

import json

import pytest

from config import OAuth, Secret
from tests.config.desktop.kit import Home, detected, state
from tests.config.kit import http, stdio

USER = "~/.gemini/settings.json"
PROJECT = ".gemini/settings.json"
SETTINGS = """
    // Written by hand.
    {
      "security": { "auth": { "selectedType": "oauth-personal" }, "folderTrust": { "enabled": true } },
      "ui": { "theme": "GitHub" },
      "mcp": { "allowed": ["tickets", " Notes ", "metrics"], "excluded": ["metrics"] },
      "tools": { "exclude": ["mcp_notes_purge"], "allowed": ["run_shell_command(git status)"] },
      "mcpServers": {
        "tickets": {
          "httpUrl": "https://tickets.example.com/mcp",
          "headers": { "Authorization": "Bearer ${TICKETS_TOKEN}" },
          "timeout": 20000,
          "includeTools": ["search_tickets", "get_ticket", "close(...)"],
          "excludeTools": ["get_ticket"]
        },
        "notes": {
          "command": "uvx", "args": ["notes-mcp", "--vault", "$HOME/notes"],
          "env": { "NOTES_KEY": "$NOTES_KEY", "LEVEL": "%LEVEL%", "MODE": "${MODE:-fast}" }, "cwd": "/srv/notes",
          "description": "Team notes",
          "extension": {}, "extensionName": "x", "trust": true, "excludeTools": ["delete_note"]
        },
        "metrics": { "url": "http://10.0.0.5:9000/sse", "type": "sse" },
        "extra": { "command": "extra-mcp" }
      }
    }
    """


def server(**keys: object) -> dict[str, object]:
    return {"mcpServers": {"notes": {"command": "notes-mcp", **keys}}}


def test_a_usual_file(home: Home) -> None:
    home.write(USER, SETTINGS)
    made = home.read(USER, {"TICKETS_TOKEN": "t", "HOME": "/home/kim"})
    assert {id: spec.problem for id, spec in made.servers.items()} == dict.fromkeys(made.servers, "")
    assert [id for id, spec in made.servers.items() if spec.disabled] == ["metrics", "extra"]
    tickets, notes = http(made, "tickets"), stdio(made, "notes")
    assert (tickets.url.reveal(), tickets.timeout) == ("https://tickets.example.com/mcp", 20.0)
    assert tickets.headers["Authorization"].reveal() == "Bearer t"
    assert [word.reveal() for word in notes.command] == ["uvx", "notes-mcp", "--vault", "/home/kim/notes"]
    assert {name: value.reveal() for name, value in notes.env.items()} == {"NOTES_KEY": "", "LEVEL": "", "MODE": "fast"}
    assert str(notes.cwd) == "/srv/notes"
    assert made.notices == ("read as a Gemini CLI file",)
    tools = ("search_tickets", "get_ticket", "close", "other")
    assert [state(made, "tickets", tool) for tool in tools] == ["allow", "deny", "allow", "deny"]
    assert [state(made, "notes", tool) for tool in ("read", "delete_note", "purge")] == ["allow", "deny", "deny"]


def test_a_project_file_waits_for_the_trust_of_its_folder(home: Home) -> None:
    home.write(PROJECT, json.dumps({"mcpServers": {"a": {"command": "./run"}}}))
    assert home.entries(PROJECT)["a"].needs_approval
    assert stdio(home.read(PROJECT), "a").program.reveal() == str(home.project / "run")
    trusted = home.file("~/.gemini/trustedFolders.json")
    for folders, waits in (
        ({str(home.project.parent): "TRUST_FOLDER"}, False),
        ({str(home.project / "x"): "TRUST_PARENT"}, False),
        ({str(home.project.parent): "TRUST_FOLDER", str(home.project): "DO_NOT_TRUST"}, True),
        ({str(home.path / "other"): "TRUST_FOLDER"}, True),
    ):
        home.write("~/.gemini/trustedFolders.json", json.dumps(folders))
        assert home.entries(PROJECT)["a"].needs_approval is waits
    trusted.unlink()
    home.write(USER, '{"security": {"folderTrust": {"enabled": false}}}')
    assert not home.entries(PROJECT)["a"].needs_approval
    home.write(USER, json.dumps(server()))
    assert not home.entries(USER)["notes"].needs_approval


@pytest.mark.parametrize(
    ("settings", "tool"),
    [
        (server(includeTools=[]), "read"),
        (server(includeTools=["write"]), "read"),
        (server(excludeTools=["read"]), "read"),
        (server(includeTools=["read"], excludeTools=["read"]), "read"),
        ({**server(), "mcp": {"allowed": ["other"]}}, "read"),
        ({**server(), "mcp": {"allowed": []}}, "read"),
        ({**server(), "mcp": {"allowed": ["*"]}}, "read"),
        ({**server(), "mcp": {"excluded": ["Notes"]}}, "read"),
        ({**server(), "mcp": {"excluded": ["*"]}}, "read"),
        ({**server(), "mcp": {"excluded": "notes"}}, "read"),
        ({**server(), "admin": {"mcp": {"enabled": False}}}, "read"),
        ({**server(), "tools": {"exclude": ["mcp_notes_read"]}}, "read"),
        ({**server(), "tools": {"exclude": ["mcp_notes_read_it"]}}, "read.it"),
        ({**server(), "tools": {"exclude": ["notes__read"]}}, "read"),
        ({**server(), "tools": {"exclude": ["read"]}}, "read"),
        ({**server(), "tools": {"exclude": ["mcp_*"]}}, "read"),
        ({**server(), "tools": {"exclude": ["mcp_notes_*"]}}, "read"),
        ({**server(), "tools": {"exclude": ["mcp_*_read"]}}, "read"),
        ({**server(), "tools": {"exclude": ["mcp_notes_re...ad"]}}, "re_long_ad"),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, settings: dict[str, object], tool: str) -> None:
    home.write(USER, json.dumps(settings))
    assert state(home.read(USER), "notes", tool) in ("deny", "off", "problem")


@pytest.mark.parametrize(
    "elsewhere",
    [
        USER,
        "/etc/gemini-cli/settings.json",
        "/etc/gemini-cli/system-defaults.json",
        "/Library/Application Support/GeminiCli/settings.json",
    ],
)
def test_settings_elsewhere_restrict_a_projects_file(
    home: Home, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "Library" in elsewhere:
        monkeypatch.setattr("sys.platform", "darwin")
    home.write(PROJECT, json.dumps(server()))
    home.write(elsewhere, '{"mcp": {"excluded": ["notes"]}}')
    assert home.read(PROJECT).servers["notes"].disabled
    home.write(elsewhere, '{"mcp": {"excluded": [')
    assert "which may restrict it, cannot be read" in home.read(PROJECT).servers["notes"].problem


@pytest.mark.parametrize(
    ("settings", "states"),
    [
        ({"excludeMCPServers": ["notes"]}, ["off", "off"]),
        ({"allowMCPServers": ["other"]}, ["off", "off"]),
        ({"allowMCPServers": ["notes"]}, ["allow", "allow"]),
        ({"excludeTools": ["mcp_notes_read"]}, ["deny", "allow"]),
        ({"coreTools": ["mcp_notes_read"]}, ["problem", "problem"]),
        ({"excludeTools": "read"}, ["problem", "problem"]),
    ],
)
def test_keys_of_older_files_restrict(home: Home, settings: dict[str, object], states: list[str]) -> None:
    home.write(USER, json.dumps({**server(), **settings}))
    made = home.read(USER)
    assert [state(made, "notes", tool) for tool in ("read", "write")] == states


@pytest.mark.parametrize("where", [USER, "/etc/gemini-cli/settings.json"])
@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"hooks": {"BeforeTool": [{"matcher": "x", "hooks": []}]}}, "off"),
        ({"hooks": {"BeforeToolSelection": [{"hooks": []}]}}, "off"),
        ({"hooks": {"BeforeTool": [], "AfterTool": [{}]}}, ""),
        ({"tools": {"core": ["ls", "mcp_notes_read"]}}, "off"),
        ({"general": {"defaultApprovalMode": "plan"}}, "off"),
        ({"admin": {"mcp": {"config": {"notes": {}}}}}, "off"),
        ({"policyPaths": ["~/policies"]}, "off"),
        ({"adminPolicyPaths": ["/rules.toml"], "policyPaths": []}, "off"),
    ],
)
def test_settings_that_are_detected(home: Home, where: str, settings: object, found: str) -> None:
    home.write(PROJECT, server())
    home.write("~/.gemini/trustedFolders.json", {str(home.project): "TRUST_FOLDER"})
    home.write(where, settings)
    assert detected(home, PROJECT, "notes") == found


def test_a_server_switched_off_by_a_command(home: Home) -> None:
    home.write(USER, json.dumps(server()))
    home.write("~/.gemini/mcp-server-enablement.json", '{"notes": {"enabled": false}}')
    assert home.read(USER).servers["notes"].disabled


def test_tools_to_confirm(home: Home) -> None:
    home.write(USER, json.dumps({**server(), "tools": {"confirmationRequired": ["mcp_notes_write"]}}))
    made = home.read(USER)
    assert [state(made, "notes", tool) for tool in ("read", "write")] == ["allow", "ask"]


@pytest.mark.parametrize(
    ("rule", "found", "decided"),
    [
        ('mcpName = "notes"\ntoolName = "read"\ndecision = "deny"', "off", "problem"),
        ('mcpName = "notes"\ntoolName = ["x", "read"]\ndecision = "ask_user"', "ask", "problem"),
        ('mcpName = "*"\ndecision = "deny"', "off", "problem"),
        ('toolName = "mcp_notes_*"\ndecision = "deny"', "off", "problem"),
        ('decision = "ask_user"', "ask", "problem"),
        ('mcpName = "other"\ndecision = "deny"', "", "allow"),
        ('mcpName = "notes"\ndecision = "allow"', "", "allow"),
        ('toolName = "run_shell_command"\ncommandPrefix = "rm"\ndecision = "deny"', "", "allow"),
        ('toolName = "read"\ndecision = "deny"', "", "deny"),
        ('toolName = ["read"]\ndecision = "ask_user"', "", "ask"),
        ('toolName = "rea_"\ndecision = "deny"', "", "deny"),  # `_` stands for other characters too
        ('toolName = "rea_"\ndecision = "ask_user"', "", "ask"),
    ],
)
def test_policies_are_detected(home: Home, rule: str, found: str, decided: str) -> None:
    home.write(USER, json.dumps(server()))
    home.write("~/.gemini/policies/mine.toml", f"[[rule]]\n{rule}\n")
    assert (detected(home, USER, "notes"), state(home.read(USER), "notes")) == (found, decided)


def test_a_policy_that_is_not_understood_stops_all_servers(home: Home) -> None:
    home.write(USER, json.dumps(server()))
    home.write("~/.gemini/policies/mine.toml", '[[rule]]\ndecision = "perhaps"\n')
    assert "a rule in the file mine.toml" in home.read(USER).servers["notes"].problem


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"disabled": True}, 'its key "disabled" is not known here'),
        ({"oauth": {"enabled": False, "denyTools": ["x"]}}, 'its key "oauth.denyTools" is not known here'),
        ({"oauth": {"audiences": ["x"]}}, 'its key "oauth.audiences" is not known here'),
        ({"authProviderType": "google_credentials"}, "needs credentials that only its host can obtain"),
        ({"targetAudience": "x"}, "needs credentials that only its host can obtain"),
        ({"targetServiceAccount": "x"}, "needs credentials that only its host can obtain"),
        ({"tcp": "ws://h"}, "names a transport that is not supported"),
        ({"includeTools": "read"}, 'its key "includeTools" is not a list of names of tools'),
        ({"args": ["$$NAME"]}, "a $ stands right before a reference"),
        ({"args": ["$NOT_SET"]}, "the environment variable NOT_SET is not set"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, keys: dict[str, object], said: str) -> None:
    home.write(USER, json.dumps(server(**keys)))
    assert said in home.read(USER).servers["notes"].problem


def test_approvals_are_noted(home: Home) -> None:
    home.write(USER, json.dumps(server(trust=True, authProviderType="dynamic_discovery", oauth={"enabled": False})))
    entry = home.entries(USER)["notes"]
    assert entry.approves_all
    assert not entry.problems


DENY = '[[rule]]\nmcpName = "notes"\ndecision = "deny"\n'
EXCLUDED = {"tools": {"exclude": ["mcp_notes_read"]}}
HOOK = {"hooks": {"BeforeTool": [{"matcher": ".*"}]}}


@pytest.mark.parametrize(
    ("file", "content", "variable", "decided"),
    [
        ("~/x/system.json", EXCLUDED, "GEMINI_CLI_SYSTEM_SETTINGS_PATH", "deny"),
        ("~/x/defaults", EXCLUDED, "GEMINI_CLI_SYSTEM_DEFAULTS_PATH", "deny"),
        ("/etc/gemini-cli/settings.json", server(excludeTools=["read"]), "", "problem"),
        ("/etc/gemini-cli/settings.json", {"admin": {"mcp": {"config": {"notes": {}}}}}, "", "problem"),
        ("/etc/gemini-cli/settings.json", {"admin": {"mcp": {"config": {"other": {}}}}}, "", "off"),
        ("~/.gemini/extensions/a/gemini-extension.json", {"excludeTools": ["mcp_notes_read"]}, "", "deny"),
        ("~/.gemini/extensions/a/policies/b.toml", DENY, "", "problem"),
        ("~/.gemini/extensions/a/hooks/hooks.json", HOOK, "", "problem"),
    ],
)
def test_settings_at_other_places_restrict(home: Home, file: str, content: object, variable: str, decided: str) -> None:
    home.write(USER, server())
    home.environ[variable] = str(home.write(file, content))
    assert state(home.read(USER), "notes", "read") == decided


def test_the_folder_of_the_user_may_be_elsewhere(home: Home) -> None:
    home.environ["GEMINI_CLI_HOME"] = str(home.path / "moved")
    home.write("~/moved/.gemini/settings.json", {**server(), **EXCLUDED})
    assert not home.entries("~/moved/.gemini/settings.json")["notes"].needs_approval
    home.write(PROJECT, server())
    assert state(home.read(PROJECT), "notes", "read") == "deny"
    home.environ["GEMINI_CLI_TRUSTED_FOLDERS_PATH"] = str(home.write("~/t", {str(home.project): "TRUST_FOLDER"}))
    assert not home.entries(PROJECT)["notes"].needs_approval


@pytest.mark.parametrize(("managed", "needed"), [({}, False), ({"enabled": True}, True), ({"enabled": False}, False)])
def test_the_administrator_decides_whether_projects_need_trust(home: Home, managed: object, needed: bool) -> None:
    home.write("~/.gemini/settings.json", {"security": {"folderTrust": {"enabled": False}}})
    home.write("/etc/gemini-cli/settings.json", {"security": {"folderTrust": managed}})
    home.write(".gemini/settings.json", {"mcpServers": {"files": {"command": "x"}}})
    assert home.entries(".gemini/settings.json")["files"].needs_approval is needed


def test_the_client_of_a_login(home: Home) -> None:
    """The issuer is found without the host's keys for it."""
    oauth = {"enabled": True, "clientId": "c", "clientSecret": "s", "scopes": ["a"], "tokenUrl": "https://x"}
    home.write(USER, json.dumps({"mcpServers": {"notes": {"httpUrl": "https://notes.example/mcp", "oauth": oauth}}}))
    assert http(home.read(USER), "notes").oauth == OAuth(Secret("c"), Secret("s"), scopes=("a",))
