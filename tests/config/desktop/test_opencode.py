"""Files of opencode, versions 1 and 2."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import Protocol
from config.globs import Globs
from tests.config.desktop.kit import Home, detected, state
from tests.config.kit import http, stdio
from tests.kit.examples import examples

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
      "tools": { "notes_delete*": false, "tickets_*": false, "tickets_read": true, "tickets_write": false },
      "permission": { "*": "allow", "bash": "ask" },
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
        { "action": "search_*", "resource": "*", "effect": "allow" },
        { "action": "bash", "resource": "*", "effect": "deny" }
      ]
    }
    """


def one(**more: object) -> str:
    server = {"type": "local", "command": ["notes-mcp"]}
    return json.dumps({"mcp": {"notes": server}, **more})


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
    assert [state(made, "tickets", tool) for tool in ("close", "read", "write")] == ["deny", "allow", "deny"]
    assert [state(made, "notes", tool) for tool in ("delete_all", "delete.all", "read")] == ["deny", "deny", "allow"]
    assert "jira is only switched on or off here; it is defined elsewhere" in made.notices


@pytest.mark.parametrize("where", [PROJECT, ".opencode/opencode.json"])
def test_a_file_of_version_2(home: Home, where: str) -> None:
    home.write(where, V2)
    made = home.read(where)
    assert [spec.problem for spec in made.servers.values()] == ["", "", ""]
    assert state(made, "docs", "x") == "off"
    search, first = http(made, "search"), stdio(made, "first")
    assert (search.timeout, search.start_timeout, search.protocol) == (500.0, 10.0, Protocol.AUTO)
    assert state(made, "search", "find") == "allow"
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
        one(mode={"build": {"tools": {"notes_*": False}}}),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, text: str) -> None:
    home.write(USER, text)
    made = home.read(USER)
    assert not made.servers["notes"].problem
    assert state(made, "notes", "read") in ("deny", "off")


TOOL_NAMES = st.builds("{}{}".format, st.sampled_from(["notes_", "*", "not", "other_"]), st.text("ab*?", max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(60))
@given(tools=st.dictionaries(TOOL_NAMES, st.booleans(), max_size=4), tool=st.text("ab", min_size=1, max_size=3))
def test_a_tool_that_the_last_switch_has_off_is_never_permitted(home: Home, tools: dict[str, bool], tool: str) -> None:
    home.write(USER, one(tools=tools))
    matching = [is_on for name, is_on in tools.items() if Globs([name], uris=False).match(f"notes_{tool}")]
    assert state(home.read(USER), "notes", tool) == "deny" or all(matching[-1:])


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"tools": {"notes": False}}, ""),
        ({"permission": "allow"}, ""),
        ({"permission": {"bash": "deny", "edit": "ask", "notes_*": "allow", "x*": {}}}, ""),
        ({"permission": "deny"}, "off"),
        ({"permission": "ask"}, "ask"),
        ({"permission": {"*": "ask", "notes_read": "allow"}}, "ask"),
        ({"permission": {"notes_read": "deny"}}, "off"),
        ({"permission": {"*_read": {"*": "allow", "secret/*": "deny"}}}, "off"),
        ({"permissions": [{"action": "notes_*", "resource": "x", "effect": "deny"}]}, "off"),
        ({"permissions": [{"action": "notes_*", "effect": "ask"}, {"action": "bash", "effect": "deny"}]}, "ask"),
        ({"permissions": None, "permission": None, "tools": None}, ""),
        ({"agent": {"build": {"permission": {"notes_*": "deny"}}}}, "off"),
        ({"agent": {"review": {"permission": {"notes_*": "deny"}}}}, ""),
        ({"default_agent": "mine", "agents": {"mine": {"permissions": [{"action": "*", "effect": "deny"}]}}}, "off"),
        ({"permission": {"notes_*": "deny"}, "agent": {"build": {"permission": {"notes_*": "allow"}}}}, "off"),
        ({"policies": [{"action": "provider.use", "resource": "x", "effect": "deny"}]}, ""),
        ({"policies": [{"action": "permission", "resource": "x", "effect": "deny"}]}, "off"),
        ({"experimental": {"policies": [{"action": "permission"}]}}, "off"),
    ],
)
def test_permissions_are_detected(home: Home, more: dict[str, object], found: str) -> None:
    home.write(USER, one(**more))
    assert detected(home, USER, "notes") == found


def test_files_of_user_project_and_machine_are_one(home: Home) -> None:
    home.write("~/.config/opencode/opencode.json", one(tools={"notes_*": False}))
    home.write(PROJECT, '{"mcp": {"notes": {"environment": {"A": "b"}}}, "tools": {"notes_read": true}}')
    made = home.read(PROJECT)
    assert (stdio(made, "notes").program.reveal(), stdio(made, "notes").env["A"].reveal()) == ("notes-mcp", "b")
    assert [state(made, "notes", tool) for tool in ("read", "write")] == ["allow", "deny"]
    home.write(".opencode/opencode.jsonc", '{"mcp": {"notes": {"enabled": false}}}')
    assert home.read(PROJECT).servers["notes"].disabled


@pytest.mark.parametrize("where", ["opencode.json", ".opencode/opencode.jsonc"])
def test_folders_above_restrict_up_to_that_of_the_repository(home: Home, where: str) -> None:
    home.write(where, {"mcp": {"notes": {"enabled": False}}, "tools": {"files_read": False}})
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


def test_settings_of_the_machine(home: Home) -> None:
    home.write(USER, one(permission="allow"))
    home.write("/etc/opencode/opencode.json", '{"permission": "deny"}')
    assert detected(home, USER, "notes") == "off"
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
        (one(permission={"bash": "maybe"}), "is not understood and could restrict it"),
        (one(permissions=[{"action": "bash", "effect": {}}]), "is not understood and could restrict it"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, text: str, said: str) -> None:
    home.write(USER, text)
    assert said in home.read(USER).servers["notes"].problem


DENY = {"permission": {"notes_read": "deny"}}
AGENT = "---\npermission:\n  notes_read: deny\n---\nWrite code.\n"


@pytest.mark.few(4)
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
        ("~/.config/opencode/agents/sub/other.md", "", AGENT.replace("---\nW", "name: build\n---\nW")),
        ("~/.config/opencode/modes/build.md", "", AGENT.replace("\n", "\r\n")),
        ("~/.config/opencode/agents/build.md", "", "---yaml\n{tools: {notes_read: false}}\n"),
        ("~/.config/opencode/agents/build.md", "", "---\n? permissions\n: [\n---- Build.\n"),
        ("~/.config/opencode/agents/build.md", "", "---\n<<: {}\n---\n"),
        ("~/.config/opencode/agents/build.md", "", '---\n"too\\x6cs": {}\n---\n'),
        ("~/.config/opencode/config.json", "", {"policies": [{"action": "permission"}]}),
    ],
)
def test_rules_elsewhere_are_detected(home: Home, file: str, variable: str, content: object) -> None:
    if file:
        home.write(file, content)
    if variable:
        home.environ[variable] = (
            str(home.file("~/other" if "DIR" in variable else file)) if file else json.dumps(content)
        )
    home.write(USER, one())
    assert detected(home, USER, "notes") == "off"


def test_agents_that_do_not_matter(home: Home) -> None:
    home.write(PROJECT, one())
    home.write(".opencode/agents/review.md", AGENT)
    home.write(".opencode/agents/sub/build.md", "---\nmodel: x\n---\nUse your tools.\n")
    home.write(".opencode/agents/notes.md", "No front matter with a name and tools.")
    assert detected(home, PROJECT, "notes") == ""


def test_agents_behind_links(home: Home) -> None:
    home.write("~/shared/build.md", AGENT)
    folder = home.file("~/.config/opencode/agent")
    folder.mkdir(parents=True)
    (folder / "shared").symlink_to(home.file("~/shared"))
    (folder / "round").symlink_to(folder)
    home.write(USER, one())
    assert detected(home, USER, "notes") == "off"


def test_an_agent_in_a_device_stops_all_servers(home: Home) -> None:
    folder = home.file("~/.config/opencode/agent")
    folder.mkdir(parents=True)
    (folder / "build.md").symlink_to("/dev/null")
    assert state(home.load(PROJECT, {"mcp": {"notes": {"type": "local", "command": ["x"]}}}), "notes") == "problem"


def test_an_empty_client_of_a_login_is_none(home: Home) -> None:
    home.write(USER, '{"mcp": {"notes": {"type": "remote", "url": "https://h/", "oauth": {}}}}')
    assert home.read(USER).servers["notes"].problem == ""
