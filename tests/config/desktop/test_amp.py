"""Files of Amp."""

from __future__ import annotations

import json

import pytest

from tests.config.desktop.kit import Home, detected, state
from tests.config.kit import http, stdio

USER = "~/.config/amp/settings.json"
PROJECT = ".amp/settings.json"
SETTINGS = """
    {
      "$schema": "https://ampcode.com/cli-settings.schema.json",
      "amp.notifications.enabled": false,
      // servers
      "amp.mcpServers": {
        "tickets": {
          "url": "https://tickets.example.com/mcp",
          "headers": { "Authorization": "Bearer ${TICKETS_TOKEN}" }
        },
        "browser": {
          "command": "npx", "args": ["-y", "@example/browser-mcp@1.4.0", "--headless"],
          "env": { "A": "${HOME}/.cache", "B": "$HOME ${env:X}" }
        },
        "notes": { "command": "/opt/notes/bin/notes-mcp", "includeTools": ["search_*", "read_note"] },
      },
      "amp.mcpPermissions": [
        { "matches": { "command": "npx", "args": "* @example/browser-mcp@*" }, "action": "allow" },
      ],
      "amp.tools.disable": ["mcp__browser__eval*", "mcp__tickets__close_*", "builtin:web_search"],
      "amp.permissions": [
        { "tool": "mcp__tickets__close_*", "action": "allow", "message": "close tickets" },
        { "tool": "Bash", "matches": { "cmd": "git push*" }, "action": "reject" },
      ],
    }
    """


def one(entry: dict[str, object] | None = None, **settings: object) -> str:
    more = {"amp." + key.replace("__", "."): value for key, value in settings.items()}
    return json.dumps({"amp.mcpServers": {"notes": entry or {"command": "notes-mcp", "args": ["-x"]}}, **more})


@pytest.mark.parametrize("where", [USER, "~/.config/amp/settings.jsonc", "~/copies/amp.json"])
def test_a_usual_file(home: Home, where: str) -> None:
    home.write(where, SETTINGS)
    made = home.read(where, {"TICKETS_TOKEN": "t", "HOME": "/home/kim"})
    assert [spec.problem for spec in made.servers.values()] == ["", "", ""]
    assert http(made, "tickets").headers["Authorization"].reveal() == "Bearer t"
    browser = stdio(made, "browser")
    assert {name: value.reveal() for name, value in browser.env.items()} == {
        "A": "/home/kim/.cache",
        "B": "$HOME ${env:X}",
    }
    assert [state(made, "tickets", tool) for tool in ("close_it", "close.it", "read")] == ["deny", "deny", "allow"]
    assert [state(made, "browser", tool) for tool in ("eval_js", "open")] == ["deny", "allow"]
    assert [state(made, "notes", tool) for tool in ("search_x", "read_note", "x")] == ["allow", "allow", "deny"]


@pytest.mark.parametrize(
    "text",
    [
        one({"command": "x", "disabled": True}),
        one({"command": "x", "includeTools": []}),
        one({"command": "x", "includeTools": ["write*"]}),
        one(tools__disable=["mcp__notes__read"]),
        one(tools__disable=["mcp__*__re*"]),
        one(tools__disable=["*"]),
        one(tools__enable=["Bash", "mcp__notes__write"]),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, text: str) -> None:
    home.write(USER, text)
    made = home.read(USER)
    assert not made.servers["notes"].problem
    assert state(made, "notes", "read") in ("deny", "off")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (one(), ""),
        (one(tools__disable=["read", "builtin:read", "builtin:/x/", "mcp__other__read"]), ""),
        (one(tools__disable=["mcp__notes__[ab]*"]), "off"),
        (one(tools__enable=["mcp__notes__r*"]), ""),
        (one(mcpPermissions=[{"matches": {"command": "*-mcp"}, "action": "allow"}]), ""),
        (one(mcpPermissions=[{"matches": {"command": "notes-*"}, "action": "reject"}]), "off"),
        (one(experimental__mcpPermissions=[{"action": "reject"}]), "off"),
        (one(permissions=[{"tool": "mcp__*", "action": "ask"}]), "ask"),
        (one(permissions=[{"tool": "mcp__*", "action": "ask", "context": "subagent"}]), "ask"),
        (one(permissions=[{"tool": "Bash", "action": "reject"}, {"tool": "mcp__notes__*", "action": "allow"}]), ""),
        (one(permissions=[{"tool": "mcp__notes__read", "action": "reject", "matches": {"a": "x"}}]), "off"),
        (one(permissions=[{"tool": "mcp__notes__*", "action": "delegate", "to": "judge"}]), "off"),
        (one(permissions=[{"tool": "/mcp.*/", "action": "reject"}]), "off"),
    ],
)
def test_settings_that_are_detected(home: Home, text: str, found: str) -> None:
    home.write(USER, text)
    assert detected(home, USER, "notes") == found


@pytest.mark.parametrize(
    "elsewhere",
    [USER, "~/.config/amp/settings.jsonc", ".amp/settings.jsonc", "/etc/ampcode/managed-settings.json"],
)
def test_settings_elsewhere_restrict_a_projects_file(home: Home, elsewhere: str) -> None:
    home.write(PROJECT, one())
    assert home.entries(PROJECT)["notes"].needs_approval
    home.write(elsewhere, '{"amp.tools.disable": ["mcp__notes__read"]}')
    assert state(home.read(PROJECT), "notes", "read") == "deny"
    home.write(USER, one())
    assert not home.entries(USER)["notes"].needs_approval


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (one({"command": "x", "type": "stdio"}), 'its key "type" is not known here'),
        (one({"command": "x", "includeTools": ["a[bc]"]}), "holds a pattern that could match more here"),
        (one({"url": "https://h/", "headers": {"A": "${amp:id-token}"}}), "a token of Amp"),
        (one({"command": "${NOT_SET}"}), "the environment variable NOT_SET is not set"),
        (one(tools__disable="x"), "is not a list of names of tools"),
        (one(permissions=[{"tool": "x", "action": "maybe"}]), "is not understood and could restrict it"),
        (one(permissions=[{"tool": "x", "action": {}}]), "is not understood and could restrict it"),
        (one(permissions=[{"tool": None, "action": "ask"}]), "is not understood and could restrict it"),
        (one(permissions={"tool": "x"}), "is not a list and could restrict it"),
        (one(mcpPermissions="reject"), "is not a list and could restrict it"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, text: str, said: str) -> None:
    home.write(USER, text)
    assert said in home.read(USER).servers["notes"].problem


def test_approvals_are_noted(home: Home) -> None:
    home.write(USER, one({"command": "x", "alwaysAllow": ["read"], "_target": "y"}, dangerouslyAllowAll=True))
    entry = home.entries(USER)["notes"]
    assert (entry.approved, entry.approves_all, entry.problems) == (["read"], True, [])


def test_the_settings_of_the_user_may_be_elsewhere(home: Home) -> None:
    home.environ["AMP_SETTINGS_FILE"] = str(home.write("~/mine", '{"amp.tools.disable": ["mcp__notes__read"]}'))
    home.write(PROJECT, one())
    assert state(home.read(PROJECT), "notes", "read") == "deny"
