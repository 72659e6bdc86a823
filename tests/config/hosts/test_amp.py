"""Files of Amp."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.globs import Globs
from config.hosts.amp import AMP
from tests.config.hosts.kit import Home, places, state
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
        "other": { "command": "npx", "args": ["other"] },
      },
      "amp.mcpPermissions": [
        { "matches": { "command": "npx", "args": "* @example/browser-mcp@*" }, "action": "allow" },
        { "matches": { "command": "npx" }, "action": "reject" },
        { "matches": { "url": "*.example.com/*" }, "action": "allow" },
        { "matches": { "url": "*" }, "action": "reject" },
      ],
      "amp.tools.disable": ["mcp__browser__eval*", "builtin:web_search"],
      "amp.permissions": [
        { "tool": "mcp__tickets__close_*", "action": "reject", "message": "close tickets by hand" },
        { "tool": "mcp__tickets__*", "action": "ask" },
        { "tool": "Bash", "matches": { "cmd": "git push*" }, "action": "ask" },
      ],
    }
    """


def one(entry: dict[str, object] | None = None, **settings: object) -> str:
    more = {"amp." + key.replace("__", "."): value for key, value in settings.items()}
    return json.dumps({"amp.mcpServers": {"notes": entry or {"command": "notes-mcp", "args": ["-x"]}}, **more})


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_places(system: str) -> None:
    assert places(AMP, system) == {
        "/u/.config/amp/settings.json",
        "/u/.config/amp/settings.jsonc",
        "/p/.amp/settings.json",
        "/p/.amp/settings.jsonc",
    }


@pytest.mark.parametrize("where", [USER, "~/.config/amp/settings.jsonc", "~/copies/amp.json"])
def test_a_usual_file(home: Home, where: str) -> None:
    home.write(where, SETTINGS)
    made = home.read(where, {"TICKETS_TOKEN": "t", "HOME": "/home/kim"})
    assert [spec.problem for spec in made.servers.values()] == ["", "", "", ""]
    assert [id for id, spec in made.servers.items() if spec.disabled] == ["other"]
    assert http(made, "tickets").headers["Authorization"].reveal() == "Bearer t"
    browser = stdio(made, "browser")
    assert {name: value.reveal() for name, value in browser.env.items()} == {
        "A": "/home/kim/.cache",
        "B": "$HOME ${env:X}",
    }
    assert [state(made, "tickets", tool) for tool in ("close_it", "close.it", "read")] == ["deny", "deny", "ask"]
    assert [state(made, "browser", tool) for tool in ("eval_js", "open")] == ["deny", "allow"]
    assert [state(made, "notes", tool) for tool in ("search_x", "read_note", "x")] == ["allow", "allow", "deny"]


REJECT_COMMAND = {"matches": {"command": "notes-*"}, "action": "reject"}


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
        one(mcpPermissions=[REJECT_COMMAND]),
        one(experimental__mcpPermissions=[REJECT_COMMAND]),
        one(mcpPermissions=[{"matches": {"command": "/note.*/"}, "action": "reject"}]),
        one(mcpPermissions=[{"matches": {"command": "notes-mcp -x"}, "action": "reject"}]),
        one(mcpPermissions=[{"matches": {"command": "notes-mcp", "args": "-x"}, "action": "reject"}]),
        one(mcpPermissions=[{"matches": {"command": "*", "shell": "x"}, "action": "reject"}]),
        one(mcpPermissions=[{"action": "reject"}]),
        one(mcpPermissions=[{"matches": {"command": "/x/"}, "action": "allow"}, REJECT_COMMAND]),
        one({"command": "${TOOL}"}, mcpPermissions=[REJECT_COMMAND]),
        one({"url": "http://h/x"}, mcpPermissions=[{"matches": {"url": "*"}, "action": "reject"}]),
        one(permissions=[{"tool": "mcp__notes__read", "action": "reject"}]),
        one(permissions=[{"tool": "*", "action": "reject"}]),
        one(permissions=[{"tool": "mcp__notes__*", "action": "delegate", "to": "judge"}]),
        one(permissions=[{"tool": "mcp__notes__*", "action": "reject", "context": "thread"}]),
        one(permissions=[{"tool": "mcp__notes__*", "action": "reject", "matches": {"a": "/x/"}}]),
        one(
            permissions=[
                {"tool": "mcp__notes__*", "action": "allow", "matches": {"a": "x"}},
                {"tool": "*", "action": "reject"},
            ]
        ),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, text: str) -> None:
    home.write(USER, text)
    made = home.read(USER, {"TOOL": "notes-mcp"})
    assert not made.servers["notes"].problem
    assert state(made, "notes", "read") in ("deny", "off")


def test_rejected_arguments(home: Home) -> None:
    permissions = [
        {"tool": "mcp__notes__*", "matches": {"path": ["/etc/*", "/root/*"]}, "action": "reject"},
        {"tool": "mcp__notes__write", "matches": {"path": "/srv/*"}, "action": "ask"},
    ]
    home.write(USER, one(permissions=permissions))
    made = home.read(USER)
    for path, decided in (("/etc/x", "deny"), ("/root/x", "deny"), ("/srv/x", "allow")):
        assert state(made, "notes", "read", {"path": path}) == decided
    assert state(made, "notes", "write", {"path": "/home/x"}) == "ask"


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        (one(), "allow"),
        (one(mcpPermissions=[{"matches": {"command": "*-mcp"}, "action": "allow"}, REJECT_COMMAND]), "allow"),
        (one(mcpPermissions=[{"matches": {"url": "*"}, "action": "reject"}]), "allow"),
        (one(mcpPermissions=[{"matches": {"command": "other"}, "action": "reject"}]), "allow"),
        (one(tools__disable=["read", "builtin:read", "mcp__other__read"]), "allow"),
        (one(tools__enable=["mcp__notes__r*"]), "allow"),
        (one(permissions=[{"tool": "mcp__*", "action": "ask"}]), "ask"),
        (one(permissions=[{"tool": "mcp__*", "action": "ask", "context": "subagent"}]), "ask"),
        (one(permissions=[{"tool": "Bash", "action": "reject"}]), "allow"),
        (
            one(permissions=[{"tool": "mcp__notes__read", "action": "allow"}, {"tool": "*", "action": "reject"}]),
            "allow",
        ),
    ],
)
def test_permissions(home: Home, text: str, decided: str) -> None:
    home.write(USER, text)
    assert state(home.read(USER), "notes", "read") == decided


ACTIONS = st.sampled_from(["allow", "ask", "reject", "delegate"])
TOOL_PATTERNS = st.builds(
    "mcp__{}__{}".format, st.sampled_from(["notes", "*", "other"]), st.text("ab*", min_size=1, max_size=3)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.tuples(TOOL_PATTERNS | st.just("*"), ACTIONS), max_size=5), st.text("ab", min_size=1, max_size=3))
def test_never_wider_than_the_first_rule_that_matches(home: Home, rules: list[tuple[str, str]], tool: str) -> None:
    home.write(USER, one(permissions=[{"tool": pattern, "action": action} for pattern, action in rules]))
    matching = (action for pattern, action in rules if Globs([pattern], uris=False).match(f"mcp__notes__{tool}"))
    action = next(matching, "allow")
    decided = state(home.read(USER), "notes", tool)
    assert decided in {"allow": ("allow", "ask", "deny"), "ask": ("ask", "deny")}.get(action, ("deny",))


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
        (one(tools__disable=["mcp__notes__[ab]*"]), "restricts tools by a pattern that is more than a name with *"),
        (one(tools__disable="x"), "is not a list of names of tools"),
        (one(permissions=[{"tool": "/mcp.*/", "action": "reject"}]), "more than a name with *"),
        (one(permissions=[{"tool": "x", "action": "maybe"}]), "is not understood and could restrict it"),
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
