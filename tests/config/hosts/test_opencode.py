"""Files of opencode, versions 1 and 2."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import Protocol
from config.globs import Globs
from config.hosts.opencode import OPENCODE
from tests.config.hosts.kit import Home, places, state
from tests.config.kit import http, stdio

USER = "~/.config/opencode/opencode.jsonc"
PROJECT = "opencode.json"
V1 = """
    {
      "$schema": "https://opencode.ai/config.json",
      "model": "anthropic/claude-sonnet-4-5",
      "mcp": {
        "tickets": {
          "type": "remote", "url": "https://tickets.example.com/mcp", "oauth": false,
          "headers": { "Authorization": "Bearer {env:TICKETS_TOKEN}" }, "timeout": 15000
        },
        "notes": {
          "type": "local", "command": ["uvx", "notes-mcp", "--root", "/srv/${X}"],
          "environment": { "NOTES_KEY": "{file:~/.secrets/notes}", "NONE": "{env:NONE}", "REL": "{file:./rel}" },
          "enabled": true
        },
        "legacy": { "type": "local", "command": ["legacy-mcp"], "enabled": false },
        "jira": { "enabled": true }, // switches on a default of the organisation
      },
      "tools": { "notes_delete*": false },
      "permission": { "*": "allow", "tickets_*": "ask", "tickets_close": "deny" },
      "agent": { "review": { "tools": { "notes_*": false } } },
    }
    """
V2 = """
    {
      "mcp": {
        "timeout": { "startup": 60000 },
        "servers": {
          "docs": { "type": "local", "command": ["npx", "-y", "docs-mcp"], "cwd": ".", "disabled": true },
          "search": {
            "type": "remote", "url": "https://search.example.com/mcp", "codemode": false, "protocol": "auto",
            "timeout": { "execution": 500000, "startup": 10000, "catalog": 1 }
          }
        },
        "first": { "type": "local", "command": ["./run"], "cwd": "data", "protocol": "legacy" }
      },
      "permissions": [
        { "action": "search_*", "resource": "*", "effect": "ask" },
        { "action": "search_index", "resource": "*", "effect": "deny" }
      ]
    }
    """


def one(**more: object) -> str:
    server = {"type": "local", "command": ["notes-mcp"]}
    return json.dumps({"mcp": {"notes": server}, **more})


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_places(system: str) -> None:
    assert places(OPENCODE, system) == {
        "/u/.config/opencode/config.json",
        "/u/.config/opencode/opencode.json",
        "/u/.config/opencode/opencode.jsonc",
        "/p/opencode.json",
        "/p/opencode.jsonc",
        "/p/.opencode/opencode.json",
        "/p/.opencode/opencode.jsonc",
    }


@pytest.mark.parametrize("where", [USER, "~/.config/opencode/opencode.json", "~/copies/oc.json"])
def test_a_file_of_version_1(home: Home, where: str) -> None:
    home.write("~/.secrets/notes", "n")
    home.file(where).parent.mkdir(parents=True, exist_ok=True)
    (home.file(where).parent / "rel").write_text("r\n")
    home.write(where, V1)
    made = home.read(where, {"TICKETS_TOKEN": "t"})
    assert {id: spec.problem for id, spec in made.servers.items()} == {"tickets": "", "notes": "", "legacy": ""}
    tickets, notes = http(made, "tickets"), stdio(made, "notes")
    assert (tickets.headers["Authorization"].reveal(), tickets.start_timeout) == ("Bearer t", 15.0)
    assert [word.reveal() for word in notes.command] == ["uvx", "notes-mcp", "--root", "/srv/${X}"]
    assert {name: value.reveal() for name, value in notes.env.items()} == {"NOTES_KEY": "n", "NONE": "", "REL": "r"}
    assert state(made, "legacy", "x") == "off"
    assert [state(made, "tickets", tool) for tool in ("close", "read")] == ["deny", "ask"]
    # The permission for all tools comes after the switch, so it wins.
    assert state(made, "notes", "delete_all") == "allow"
    assert "notes: rules for tools of the agent review hold at opencode only" in made.notices
    assert "jira is only switched on or off here; it is defined elsewhere" in made.notices


@pytest.mark.parametrize("where", [PROJECT, ".opencode/opencode.json"])
def test_a_file_of_version_2(home: Home, where: str) -> None:
    home.write(where, V2)
    made = home.read(where)
    assert [spec.problem for spec in made.servers.values()] == ["", "", ""]
    assert state(made, "docs", "x") == "off"
    search, first = http(made, "search"), stdio(made, "first")
    assert (search.timeout, search.start_timeout, search.protocol) == (500.0, 10.0, Protocol.AUTO)
    assert [state(made, "search", tool) for tool in ("find", "index")] == ["ask", "deny"]
    assert (first.program.reveal(), first.cwd) == (str(home.project / "run"), home.project / "data")
    assert first.protocol is Protocol.LEGACY


def test_a_revision_means_no_handshake(home: Home) -> None:
    text = '{"mcp": {"servers": {"a": {"type": "remote", "url": "http://h/", "protocol": "2099-01-01"}}}}'
    home.write(USER, text)
    assert home.read(USER).servers["a"].protocol is Protocol.MODERN


def v2(**keys: object) -> str:
    return json.dumps({"mcp": {"servers": {"notes": {"type": "local", "command": ["notes-mcp"], **keys}}}})


def v1(**keys: object) -> str:
    return json.dumps({"mcp": {"notes": {"type": "local", "command": ["notes-mcp"], **keys}}})


@pytest.mark.parametrize(
    "text",
    [
        v1(enabled=False),
        v2(disabled=True),
        v2(enabled=False),
        one(tools={"notes_read": False}),
        one(tools={"notes_*": False}),
        one(tools={"*": False}),
        one(tools={"notes_r?ad": False}),
        one(permission="deny"),
        one(permission={"notes_*": "deny"}),
        one(permission={"*": "allow", "*_read": "deny"}),
        one(permission={"notes_read": "deny", "notes_write": "allow"}),
        one(permission={"notes_read": {"*": "allow", "secret/*": "deny"}}),
        one(tools={"notes_*": True}, permission={"notes_*": "deny"}),
        one(permissions=[{"action": "notes_*", "resource": "*", "effect": "deny"}]),
        one(permissions=[{"action": "notes_*", "resource": "x", "effect": "deny"}]),
        one(agent={"build": {"permission": {"notes_*": "deny"}}}),
        one(mode={"build": {"tools": {"notes_*": False}}}),
        one(default_agent="mine", agents={"mine": {"permissions": [{"action": "*", "effect": "deny"}]}}),
        one(permission={"notes_*": "deny"}, agent={"build": {"permission": {"notes_*": "allow"}}}),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, text: str) -> None:
    home.write(USER, text)
    made = home.read(USER)
    assert not made.servers["notes"].problem
    assert state(made, "notes", "read") in ("deny", "off")


@pytest.mark.parametrize(
    ("more", "tool", "decided"),
    [
        ({}, "read", "allow"),
        ({"tools": {"notes": False}}, "read", "allow"),
        ({"permission": "ask"}, "read", "ask"),
        ({"permission": {"*": "deny", "notes_read": "allow"}}, "read", "allow"),
        ({"permission": {"*": "deny", "notes_read": "allow"}}, "write", "deny"),
        ({"permission": {"notes_read": "allow", "*": "deny"}}, "read", "deny"),
        ({"permission": {"notes_read_it": "deny"}}, "read.it", "deny"),
        ({"permission": {"bash": "deny", "edit": "ask"}}, "read", "allow"),
        ({"tools": {"notes_read": False}, "permission": {"notes_*": "ask"}}, "read", "ask"),
        ({"policies": [{"action": "provider.use", "resource": "x", "effect": "deny"}]}, "read", "allow"),
    ],
)
def test_permissions(home: Home, more: dict[str, object], tool: str, decided: str) -> None:
    home.write(USER, one(**more))
    assert state(home.read(USER), "notes", tool) == decided


EFFECTS = st.sampled_from(["allow", "ask", "deny"])
PATTERNS = st.builds("{}{}".format, st.sampled_from(["notes_", "*", "not", "other_"]), st.text("ab*?", max_size=3))
STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    tools=st.dictionaries(PATTERNS, st.booleans(), max_size=3),
    permission=st.dictionaries(PATTERNS, EFFECTS, max_size=4),
    tool=st.text("ab", min_size=1, max_size=3),
)
def test_never_wider_than_the_last_rule_that_matches(
    home: Home, tools: dict[str, bool], permission: dict[str, str], tool: str
) -> None:
    home.write(USER, one(tools=tools, permission=permission))
    rules = [(pattern, "allow" if on else "deny") for pattern, on in tools.items()] + list(permission.items())
    expected = "allow"
    for pattern, effect in rules:
        if Globs([pattern], uris=False).match(f"notes_{tool}"):
            expected = effect
    assert STRICTNESS[state(home.read(USER), "notes", tool)] >= STRICTNESS[expected]


def test_files_of_user_project_and_machine_are_one(home: Home) -> None:
    home.write("~/.config/opencode/opencode.json", one(permission={"notes_*": "deny"}))
    home.write(USER, '{"permission": {"notes_read": "allow"}}')
    assert state(home.read("~/.config/opencode/opencode.json"), "notes", "read") == "allow"
    home.write(PROJECT, '{"mcp": {"notes": {"environment": {"A": "b"}}}, "permission": {"notes_read": "ask"}}')
    made = home.read(PROJECT)
    assert (stdio(made, "notes").program.reveal(), stdio(made, "notes").env["A"].reveal()) == ("notes-mcp", "b")
    assert [state(made, "notes", tool) for tool in ("read", "write")] == ["ask", "deny"]
    home.write(".opencode/opencode.jsonc", '{"mcp": {"notes": {"enabled": false}}}')
    assert home.read(PROJECT).servers["notes"].disabled


@pytest.mark.parametrize("where", ["opencode.json", ".opencode/opencode.jsonc"])
def test_folders_above_restrict_up_to_that_of_the_repository(home: Home, where: str) -> None:
    home.write(where, {"mcp": {"notes": {"enabled": False}}, "permission": {"files_read": "deny"}})
    file = "packages/sub/opencode.json"
    files = {"type": "local", "command": ["files-mcp"]}
    home.write(file, {"mcp": {"notes": {"type": "local", "command": ["notes-mcp"]}, "files": files}})
    assert state(home.read(file), "files", "read") == "deny"  # outside of a repository, any folder above counts
    (home.project / ".git").mkdir()
    made = home.read(file)
    assert made.servers["notes"].disabled
    assert [state(made, "files", tool) for tool in ("read", "write")] == ["deny", "allow"]
    home.file("packages/.git").mkdir()
    assert state(home.read(file), "files", "read") == "allow"


def test_a_merged_rule_keeps_its_place(home: Home) -> None:
    home.write("~/.config/opencode/opencode.json", one(permission={"notes_*": "allow", "notes_read": "allow"}))
    home.write(PROJECT, one(permission={"notes_read": "deny", "notes_*": "allow"}))
    assert state(home.read(PROJECT), "notes", "read") == "deny"


def test_settings_of_the_machine_come_last(home: Home) -> None:
    home.write(USER, one(permission="allow"))
    home.write("/etc/opencode/opencode.json", '{"permission": "deny"}')
    assert state(home.read(USER), "notes", "read") == "deny"
    home.write("/etc/opencode/opencode.json", "{")
    assert "opencode.json of its host" in home.read(USER).servers["notes"].problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (v1(disabledTools=["a"]), 'its key "disabledTools" is not known here'),
        (v1(command="notes-mcp"), "is not a list of a program and its arguments"),
        (v1(type="stdio"), 'its key "type" is "stdio"; expected one of local, remote'),
        (v1(oauth={"clientId": "x"}), "needs OAuth"),
        (v1(protocol="new"), "expected legacy, auto or a revision"),
        (v1(timeout={"other": 1}), "holds a key that is not known here"),
        (v1(command=["x", "${env:A}"]), "a $ stands right before a reference"),
        (v1(command=["x", "{file:/none}"]), "cannot be read"),
        (v1(command=["x", "{env:A-B}"]), "correct its name"),
        (one(permission={"notes_*": "maybe"}), "is not understood and could restrict it"),
        (one(permissions=[{"action": "notes_*", "effect": "deny", "when": "x"}]), "is not understood and could"),
        (one(permissions={}), "is not a list and could restrict it"),
        (one(tools={"notes_*": "no"}), "expected true or false"),
        (one(policies=[{"action": "permission", "resource": "x", "effect": "deny"}]), 'the setting "policies"'),
    ],
)
def test_servers_that_cannot_be_used(home: Home, text: str, said: str) -> None:
    home.write(USER, text)
    assert said in home.read(USER).servers["notes"].problem


DENY = {"permission": {"notes_read": "deny"}}
AGENT = """---
description: Writes: code
permission:
  notes_*: allow
  notes_read: deny
model: x
---
Write code.
"""


@pytest.mark.parametrize(
    ("file", "variable", "content"),
    [
        ("~/other/mine.json", "OPENCODE_CONFIG", DENY),
        ("~/other/opencode.jsonc", "OPENCODE_CONFIG_DIR", DENY),
        ("~/other/agents/build.md", "OPENCODE_CONFIG_DIR", AGENT),
        ("", "OPENCODE_CONFIG_CONTENT", DENY),
        ("", "OPENCODE_PERMISSION", DENY["permission"]),
        ("~/.opencode/opencode.json", "", DENY),
        ("~/.opencode/agent/build.md", "", AGENT),
        ("~/.config/opencode/agents/build.md", "", AGENT),
        ("~/.config/opencode/agents/other.md", "", AGENT.replace("model: x", "name: build")),
        ("~/.config/opencode/modes/build.md", "", AGENT.replace("\n", "\r\n")),
        ("~/.config/opencode/agents/build.md", "", "---\ntools: {notes_read: false}\n---\n"),
        ("~/.config/opencode/agents/build.md", "", "---\n{tools: {notes_read: false}}\n---\n"),
        ("~/.config/opencode/agents/build.md", "", '---\n"permissions":\n- {action: "*", effect: deny}\n---\n'),
        ("~/.config/opencode/opencode.json", "", {"experimental": {"policies": [{"action": "permission"}]}}),
        ("~/.config/opencode/config.json", "", {"policies": [{"action": "permission"}]}),
        ("~/.config/opencode/agents/build.md", "", "---\npermission: [\n---\n"),
    ],
)
def test_rules_elsewhere_restrict(home: Home, file: str, variable: str, content: object) -> None:
    if file:
        home.write(file, content)
    if variable:
        home.environ[variable] = (
            str(home.file("~/other" if "DIR" in variable else file)) if file else json.dumps(content)
        )
    home.write(USER, one(policies=[{"action": "provider.use", "resource": "x", "effect": "deny"}]))
    assert state(home.read(USER), "notes", "read") in ("deny", "problem")


def test_an_agent_of_the_project_and_one_that_is_not_usual(home: Home) -> None:
    home.write(PROJECT, one())
    home.write(".opencode/agents/sub/review.md", AGENT)
    home.write(".opencode/agents/build.md", AGENT)
    home.write(".opencode/agents/notes.md", "No front matter.")
    made = home.read(PROJECT)
    assert [state(made, "notes", tool) for tool in ("read", "write")] == ["deny", "allow"]
    assert "notes: rules for tools of the agent sub/review hold at opencode only" in made.notices


def test_a_permission_for_all_tools_stays_beside_one_for_some(home: Home) -> None:
    home.write("~/.config/opencode/opencode.json", {"permission": "deny"})
    home.write(USER, one(permission={"notes_read": "allow"}))
    made = home.read(USER)
    assert [state(made, "notes", tool) for tool in ("read", "write")] == ["allow", "deny"]


def test_lists_of_rules_of_several_files_hold_together(home: Home) -> None:
    def rules(tool: str) -> dict[str, object]:
        return {"permissions": [{"action": f"notes_{tool}", "resource": "*", "effect": "deny"}]}

    home.write(".opencode/opencode.json", {**rules("read"), "agents": {"build": rules("write")}})
    home.write(".opencode/opencode.jsonc", {**rules("list"), "agents": {"build": rules("find")}})
    home.write(PROJECT, one())
    made = home.read(PROJECT)
    assert {state(made, "notes", tool) for tool in ("read", "write", "list", "find")} == {"deny"}
    assert state(made, "notes", "other") == "allow"


@pytest.mark.parametrize(
    "text",
    [
        "---\npermission:\n  'notes_*': deny\n",
        "---yaml\npermission:\n  'notes_*': deny\n---\nBuild.\n",
        "---\npermission:\n  'notes_*': deny\n---- Build.\n",
        "---\n  permission:\n    'notes_*': deny\n---\n",
        "---\n? permission\n: {'notes_*': deny}\n---\n",
        "---\nhidden: &all {'notes_*': deny}\npermission: *all\n---\n",
        "---\npermission:\n  <<: {'notes_*': deny}\n---\n",
        "---\ndescription: a: b\npermission:\n  'notes_*': deny\n---",
    ],
)
def test_rules_of_an_agent_in_unusual_markdown(home: Home, text: str) -> None:
    home.write("~/.config/opencode/agent/build.md", text)
    made = home.load(PROJECT, {"mcp": {"notes": {"type": "local", "command": ["x"]}}})
    assert state(made, "notes") in ("deny", "problem")


def test_agents_behind_links(home: Home) -> None:
    home.write("~/shared/build.md", "---\nname: build\npermission:\n  'notes_*': deny\n---\n")
    folder = home.file("~/.config/opencode/agent")
    folder.mkdir(parents=True)
    (folder / "shared").symlink_to(home.file("~/shared"))
    (folder / "round").symlink_to(folder)
    assert state(home.load(PROJECT, {"mcp": {"notes": {"type": "local", "command": ["x"]}}}), "notes") == "deny"


def test_an_agent_in_a_device_stops_all_servers(home: Home) -> None:
    folder = home.file("~/.config/opencode/agent")
    folder.mkdir(parents=True)
    (folder / "build.md").symlink_to("/dev/null")
    assert state(home.load(PROJECT, {"mcp": {"notes": {"type": "local", "command": ["x"]}}}), "notes") == "problem"
