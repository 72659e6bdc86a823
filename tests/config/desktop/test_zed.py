"""Files of Zed."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config.desktop.kit import OFF, Home, detected, state
from tests.config.kit import http, stdio
from tests.kit.examples import examples

USER = "~/.config/zed/settings.json"
PROJECT = ".zed/settings.json"
SETTINGS = """
    // Zed settings
    {
      "theme": "One Dark",
      "context_server_timeout": 90,
      "context_servers": {
        "wiki": {
          "command": "npx", "args": ["-y", "wiki-mcp", "$HOME/${X}"],
          "env": { "WIKI_TOKEN": "tok_123" }, "timeout": 120,
        },
        "deploys": {
          "enabled": true, "url": "https://deploys.example.com/mcp",
          "headers": { "Authorization": "Bearer abc" }
        },
        "old-style": {
          "source": "custom",
          "command": { "path": "/opt/old/bin/mcp", "args": ["-v"], "env": { "A": "b" } }
        },
        "postgres-context-server": { "enabled": true, "settings": { "database_url": "postgres://localhost/app" } }
      },
      "agent": {
        "default_profile": "careful",
        "profiles": {
          "careful": {
            "name": "Careful",
            "tools": { "read_file": true },
            "enable_all_context_servers": false,
            "context_servers": {
              "wiki": { "tools": { "search": true, "delete_page": false } },
              "deploys": { "tools": { "status": true, "rollback": true } },
            }
          }
        },
        "tool_permissions": {
          "default": "confirm",
          "tools": { "mcp:deploys:rollback": { "default": "deny" }, "mcp:wiki:search": { "default": "allow" } }
        }
      },
    }
    """


def one(agent: object = None, **more: object) -> str:
    made = {"context_servers": {"wiki": {"command": "wiki-mcp"}}, **more}
    return json.dumps(made if agent is None else {**made, "agent": agent})


@pytest.mark.parametrize("where", [USER, "~/copies/zed.json"])
def test_a_usual_file(home: Home, where: str) -> None:
    home.write(where, SETTINGS)
    made = home.read(where)
    wiki, old = stdio(made, "wiki"), stdio(made, "old-style")
    assert [word.reveal() for word in wiki.command] == ["npx", "-y", "wiki-mcp", "$HOME/${X}"]
    assert (wiki.env["WIKI_TOKEN"].reveal(), wiki.timeout) == ("tok_123", 120.0)
    assert http(made, "deploys").headers["Authorization"].reveal() == "Bearer abc"
    assert [word.reveal() for word in old.command] == ["/opt/old/bin/mcp", "-v"]
    assert old.env["A"].reveal() == "b"
    extension = next(spec for id, spec in made.servers.items() if id.startswith("postgres"))
    assert "belongs to an extension of Zed" in extension.problem
    assert [state(made, "wiki", tool) for tool in ("search", "delete_page", "x")] == ["ask", "deny", "deny"]
    assert [state(made, "deploys", tool) for tool in ("status", "rollback", "x")] == ["ask", "deny", "deny"]
    assert home.entries(where)["wiki"].approved == ["search"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"context_servers": {"wiki": {"command": "x", "enabled": False}}}),
        one(disable_ai=True),
        one({"default_profile": "ask"}),
        one({"default_profile": "minimal"}),
        one({"default_profile": "unknown"}),
        one({"profiles": {"write": {"enable_all_context_servers": False}}}),
        one({"profiles": {"write": {"context_servers": {"wiki": {"tools": {"read": False}}}}}}),
        one({"profiles": {"write": {"context_servers": {"wiki": {"enabled": False}}}}}),
        one({"default_profile": "p", "profiles": {"p": {"context_servers": {"wiki": {"tools": {"write": True}}}}}}),
        one({"tool_permissions": {"tools": {"mcp:wiki:read": {"default": "deny"}}}}),
        one(
            {"tool_permissions": {"tools": {"mcp:wiki:read": {"default": "allow", "always_deny": [{"pattern": "x"}]}}}}
        ),
        one(linux={"disable_ai": True}),
        one(preview={"agent": {"tool_permissions": {"tools": {"mcp:wiki:read": {"default": "deny"}}}}}),
        one(nightly={"context_servers": {"wiki": {"enabled": False}}}),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, text: str) -> None:
    home.write(USER, text)
    made = home.read(USER)
    assert not made.servers["wiki"].problem
    assert state(made, "wiki", "read") in ("deny", "off")
    home.write(PROJECT, one())
    assert state(home.read(PROJECT), "wiki", "read") in ("deny", "off") or "enabled" in text


@pytest.mark.parametrize(
    ("agent", "decided"),
    [
        ({}, "allow"),
        ({"profiles": {"write": {"context_servers": {"wiki": {"tools": {"write": False}}}}}}, "allow"),
        ({"profiles": {"other": {"enable_all_context_servers": False}}}, "allow"),
        ({"tool_permissions": {"default": "confirm"}}, "ask"),
        ({"tool_permissions": {"default": "allow", "tools": {"mcp:wiki:read": {"default": "confirm"}}}}, "ask"),
        ({"tool_permissions": {"tools": {"mcp:wiki:read": {"always_confirm": [{"pattern": "x"}]}}}}, "ask"),
        ({"tool_permissions": {"tools": {"mcp:other:read": {"default": "deny"}}}}, "allow"),
        ({"tool_permissions": {"default": "deny", "tools": {"mcp:wiki:read": {"default": "allow"}}}}, "problem"),
        ({"tool_permissions": {"default_mode": "deny"}}, "problem"),
    ],
)
def test_permissions(home: Home, agent: object, decided: str) -> None:
    home.write(USER, one(agent))
    assert state(home.read(USER), "wiki", "read") == decided
    assert detected(home, USER, "wiki") == ("off" if decided == "problem" else "")


TOOLS = st.sampled_from(["a", "b", "c"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(60))
@given(
    everything=st.none() | st.booleans(),
    switches=st.dictionaries(TOOLS, st.booleans()),
    default=st.none() | st.sampled_from(["allow", "confirm"]),
    permissions=st.dictionaries(TOOLS, st.sampled_from(["allow", "confirm", "deny"])),
    tool=TOOLS,
)
def test_profiles_and_permissions_as_zed_reads_them(
    home: Home,
    everything: bool | None,
    switches: dict[str, bool],
    default: str | None,
    permissions: dict[str, str],
    tool: str,
) -> None:
    profile = {"context_servers": {"wiki": {"tools": switches}}, "enable_all_context_servers": everything}
    agent = {
        "default_profile": "mine",
        "profiles": {"mine": profile},
        "tool_permissions": {
            "default": default,
            "tools": {f"mcp:wiki:{name}": {"default": word} for name, word in permissions.items()},
        },
    }
    home.write(USER, one(agent))
    decided = state(home.read(USER), "wiki", tool)
    permission = permissions.get(tool, default or "allow")
    if not switches.get(tool, everything or False) or permission == "deny":
        assert decided == "deny"
    elif permission == "confirm":
        assert decided == "ask"
    else:
        assert decided == ("ask" if default == "confirm" else "allow")  # an approval is noted only


def test_a_project_file_waits_for_approval(home: Home) -> None:
    home.write(PROJECT, '{"context_servers": {"a": {"command": "./run"}}, "tab_size": 2}')
    home.write(USER, one())
    assert home.entries(PROJECT)["a"].needs_approval
    assert not home.entries(USER)["wiki"].needs_approval
    assert stdio(home.read(PROJECT), "a").program.reveal() == str(home.project / "run")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"remote": True, "command": "x"}, "starts it on another machine"),
        ({"url": "http://h/", "oauth": {"client_id": "x"}}, "needs OAuth"),
        ({"command": {"path": "x", "shell": "y"}}, "holds a key that is not known here"),
        ({"command": "x", "disabledTools": ["a"]}, 'its key "disabledTools" is not known here'),
        ({"enabled": True}, "found neither"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, keys: dict[str, object], said: str) -> None:
    home.write(USER, json.dumps({"context_servers": {"a": keys}}))
    assert said in home.read(USER).servers["a"].problem


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"tool_permissions": {"default": "maybe"}}, "holds a default that is not known here"),
        ({"profiles": {"write": {"context_servers": {"wiki": {"tools": {"a": "no"}}}}}}, "expected true or false"),
    ],
)
def test_restrictions_that_are_not_understood_stop_the_server(home: Home, agent: object, said: str) -> None:
    home.write(USER, one(agent))
    assert said in home.read(USER).servers["wiki"].problem


def test_approvals_are_noted(home: Home) -> None:
    home.write(USER, one({"always_allow_tool_actions": True}))
    assert home.entries(USER)["wiki"].approves_all


def test_settings_of_the_administrator(home: Home) -> None:
    home.write("~/.config/zed/global_settings.json", {"disable_ai": True})
    made = home.load("~/.config/zed/settings.json", {"context_servers": {"files": {"command": "x", "args": []}}})
    assert state(made, "files") == OFF


def test_empty_settings_of_a_server_with_a_command(home: Home) -> None:
    """Zed wrote both once."""
    for found, is_problem in (({}, False), ({"a": "b"}, True)):
        entry = {"command": {"path": "x", "args": ["y"], "env": None}, "settings": found}
        made = home.load("~/.config/zed/settings.json", {"context_servers": {"files": entry}})
        assert bool(made.servers["files"].problem) is is_problem
