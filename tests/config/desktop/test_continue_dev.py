"""Files of Continue."""

from __future__ import annotations

import json

import pytest

from config.desktop.continue_dev import CONTINUE
from tests.config.desktop.kit import Home, places, state
from tests.config.kit import http, stdio

USER = "~/.continue/config.yaml"
PERMISSIONS = "~/.continue/permissions.yaml"
SETTINGS = """
    name: Local
    version: 1.0.0
    schema: v1
    models:
      - name: Local Coder
        provider: ollama
        model: qwen2.5-coder:7b
    mcpServers:
      - name: Issue Tracker   # remote
        type: streamable-http
        url: https://issues.example.com/mcp
        apiKey: ${{ secrets.ISSUES_KEY }}
        requestOptions:
          headers:
            X-Team: blue
            authorization: none
          verifySsl: true
        connectionTimeout: 15000
        serverName: tracker
        faviconUrl: https://issues.example.com/favicon.ico
        sourceFile: file:///x
        sourceSlug: x/y
      - name: sqlite
        command: uvx
        args: ["mcp-server-sqlite", "--db-path", "${DB} $HOME"]
        env:
          LOG_LEVEL: debug
          PATH: /tmp/evil
          KEY: "${DB_KEY}"
      - uses: acme/search-mcp
        with:
          TOKEN: ${{ secrets.SEARCH }}
    """


def one(keys: str = "") -> str:
    return f"name: x\nmcpServers:\n  - {{name: My Notes, command: notes-mcp, {keys}}}\n"


@pytest.mark.parametrize("where", [USER, "~/copies/continue.yaml"])
def test_a_usual_file(home: Home, where: str) -> None:
    home.write(where, SETTINGS)
    made = home.read(where, {"ISSUES_KEY": "i", "DB_KEY": "d"})
    tracker, sqlite = http(made, "issue-tracker"), stdio(made, "sqlite")
    assert {name: value.reveal() for name, value in tracker.headers.items()} == {
        "X-Team": "blue",
        "Authorization": "Bearer i",
    }
    assert tracker.start_timeout == 15.0
    assert [word.reveal() for word in sqlite.command[1:]] == ["mcp-server-sqlite", "--db-path", "${DB} $HOME"]
    assert {name: value.reveal() for name, value in sqlite.env.items()} == {"LOG_LEVEL": "debug", "KEY": "d"}
    assert "names a block of Continue's hub" in made.servers["acme-search-mcp"].problem
    assert "sqlite: its host does not set PATH from the file, so it is left out" in made.notices


def test_secrets_of_files_come_before_the_environment(home: Home) -> None:
    home.write(USER, SETTINGS)
    assert "the environment variable ISSUES_KEY is not set" in home.read(USER).servers["issue-tracker"].problem
    home.write("~/.continue/.env", "ISSUES_KEY='f ${X}'\n")
    tracker = http(home.read(USER, {"ISSUES_KEY": "i"}), "issue-tracker")
    assert tracker.headers["Authorization"].reveal() == "Bearer f ${X}"


@pytest.mark.parametrize("file", [".env", ".continue/.env", "~/.continue/.env"])
def test_a_project_has_further_files_of_secrets(home: Home, file: str) -> None:
    where = ".continue/mcpServers/a.yaml"
    home.write(where, "mcpServers: [{name: a, command: ./run, cwd: data, env: {A: '${{secrets.A}}'}}]")
    home.write(file, "A=b\n")
    made = home.read(where)
    assert (stdio(made, "a").env["A"].reveal(), stdio(made, "a").cwd) == ("b", home.project / "data")
    assert stdio(made, "a").program.reveal() == str(home.project / "run")


def test_a_secret_in_a_url_stays_a_reference(home: Home) -> None:
    home.write("~/.continue/.env", "KEY=s3cr3t\n")
    home.write(USER, "mcpServers: [{name: a, url: 'https://h/${{ secrets.KEY }}/mcp'}]")
    assert home.entries(USER)["a"].ours["url"] == "https://h/${env:KEY}/mcp"


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ({"mcpServers": {"Notes": {"command": "x", "env": {"KEY": "${KEY}"}, "envFile": ".env.notes"}}}, ["notes"]),
        ({"projects": {"/a": {"mcpServers": {"n": {"command": "x"}}}, "/b": {}}}, ["n"]),
        ({"type": "http", "url": "http://h/mcp", "headers": {"A": "${B}"}}, ["tool"]),
        ({"command": "x", "args": ["y"]}, ["tool"]),
    ],
)
@pytest.mark.parametrize("folder", ["~/.continue/mcpServers", ".continue/mcpServers"])
def test_files_in_json(home: Home, content: dict[str, object], ids: list[str], folder: str) -> None:
    home.write(f"{folder}/tool.json", f"// from elsewhere\n{json.dumps(content)}")
    made = home.read(f"{folder}/tool.json", {"KEY": "k"})
    assert list(made.servers) == ids
    assert not made.servers[ids[0]].problem
    assert made.notices[0] == "read as a Continue file"
    if "url" in content:
        assert http(made, "tool").headers["A"].reveal() == "${B}"


@pytest.mark.parametrize(
    ("config", "permissions"),
    [
        (one(), "exclude: [read]"),
        (one(), "exclude: [my_notes_read]"),
        (one(), "exclude: ['my_*']"),
        (one(), "exclude: ['*_read']"),
        (one(), "exclude: ['read(secret*)']"),
        (one(), "{allow: [read], exclude: [read], other: [x]}"),
        (one("disabled: true"), "{}"),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, config: str, permissions: str) -> None:
    home.write(USER, config)
    home.write(PERMISSIONS, permissions)
    made = home.read(USER)
    assert not made.servers["my-notes"].problem
    assert state(made, "my-notes", "read") in ("deny", "off")


def test_permissions_name_a_server_without_its_other_characters(home: Home) -> None:
    home.write(USER, "mcpServers:\n  - {name: ' Notes -- (work)', command: x}\n")
    home.write(PERMISSIONS, "exclude: [notes_work_add]\nask: ['notes_work_w*']\n")
    made = home.read(USER)
    assert [state(made, "notes-work", tool) for tool in ("add", "write", "read")] == ["deny", "ask", "allow"]


def test_permissions(home: Home) -> None:
    home.write(USER, one())
    home.write(PERMISSIONS, "allow: [search, 'x(y)']\nask: ['*_write', my_notes_put]\nexclude: [delete]\n")
    made = home.read(USER)
    tools = ("search", "all_write", "write", "put", "delete", "other")
    assert [state(made, "my-notes", tool) for tool in tools] == ["allow", "ask", "ask", "ask", "deny", "allow"]
    assert home.entries(USER)["my-notes"].approved == ["search"]


def test_permissions_that_are_not_understood_stop_all_servers(home: Home) -> None:
    home.write(USER, one())
    home.write(PERMISSIONS, "exclude: x\n")
    assert "is not a list of names of tools" in home.read(USER).servers["my-notes"].problem


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("disabledTools: [read]", 'its key "disabledTools" is not known here'),
        ("type: websocket", 'its key "type" is "websocket"'),
        ("requestOptions: {verifySsl: false}", "switches the check of certificates off"),
        ("requestOptions: {proxy: 'http://p/'}", "holds a key that is not supported"),
        ("cwd: data", "starts from a workspace, which is not known here"),
        ("env: {A: '${{ inputs.A }}'}", "an input of a block"),
        ("env: {A: '${{ secrets.a/b }}'}", "whose name no variable can have"),
        ("env: {A: '$${{ secrets.A }}'}", "a $ stands right before a reference"),
        ("override: {}", "names a block of Continue's hub"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, keys: str, said: str) -> None:
    home.write(USER, one(keys))
    assert said in home.read(USER).servers["my-notes"].problem


def test_items_without_a_name(home: Home) -> None:
    home.write(USER, "mcpServers:\n  - command: x\n  - text\n")
    made = home.read(USER)
    assert list(made.servers) == ["server-1", "server-2"]
    assert made.servers["server-2"].problem == "it is text; expected a map"


@pytest.mark.parametrize(("cwd", "folder"), [("/srv/data", "/srv/data"), ("file:///srv/my%20data", "/srv/my data")])
def test_folders(home: Home, cwd: str, folder: str) -> None:
    home.write(USER, one(f"cwd: '{cwd}'"))
    assert str(stdio(home.read(USER), "my-notes").cwd) == folder


def test_the_folder_of_the_user_may_be_elsewhere(home: Home) -> None:
    home.environ["CONTINUE_GLOBAL_DIR"] = str(home.path / "moved")
    home.write("~/moved/permissions.yaml", "exclude: [read]")
    home.write("~/moved/.env", "KEY=k")
    for place in ("~/moved/config.yaml", "~/moved/mcpServers/a.yaml"):
        home.write(place, one("env: {A: '${{ secrets.KEY }}'}"))
        made = home.read(place)
        assert (state(made, "my-notes", "read"), stdio(made, "my-notes").env["A"].reveal()) == ("deny", "k")
    moved = str(home.path / "moved")
    assert f"{moved}/mcpServers/*.yaml" in places(CONTINUE, "linux", home.environ)


def test_anchors_elsewhere_do_not_matter_and_a_merge_stops_its_server_alone(home: Home) -> None:
    """Continue takes `<<` for a key like any other, and ours does not guess."""
    text = """\
models: [&m {name: a, apiKey: x}, {<<: *m, name: b}]
env: &env {A: "1"}
mcpServers:
  - {name: a, command: x, env: *env}
  - &off {name: b, command: y, disabled: true}
  - {<<: *off, name: c}
  - {name: d, command: z, env: {<<: *env}}
"""
    made = home.load(USER, text)
    assert [state(made, id) for id in "abcd"] == ["allow", "off", "problem", "problem"]
    assert stdio(made, "a").env["A"].reveal() == "1"
    assert '"<<" is not known here' in str(made.servers["c"].problem)
