"""Files of Goose."""

from __future__ import annotations

import pytest

from tests.config.desktop.kit import Home, state
from tests.config.kit import http, stdio

USER = "~/.config/goose/config.yaml"
PERMISSIONS = "~/.config/goose/permission.yaml"
SETTINGS = """
    GOOSE_PROVIDER: anthropic
    extensions:
      developer: {bundled: true, display_name: Developer, enabled: true, name: developer, timeout: 300, type: builtin}
      notes:
        enabled: true
        type: stdio
        name: Notes
        description: Search in notes
        cmd: uvx
        cwd: /srv/notes
        args: [notes-mcp, --root, $HOME]
        envs: {NOTES_LANG: en, PATH: /tmp/evil, ld_preload: x.so, LITERAL: "${NOTES_LANG}"}   # PATH is ignored
        env_keys: [NOTES_TOKEN]
        timeout: 60
        available_tools: [search_notes, read_note]
      tickets:
        enabled: true
        type: streamable_http
        name: tickets
        description: null
        uri: https://tickets.example.com/$TENANT/mcp
        headers: {Authorization: "Bearer ${ TICKETS_TOKEN }", X-Other: $OTHER}
        envs: {TENANT: blue}
        env_keys: [TICKETS_TOKEN]
        timeout: 120
        available_tools: []      # = all
      old:
        enabled: false
        type: sse
        name: old
        description: ""
        uri: http://127.0.0.1:9000/sse
    """


def one(keys: str = "", mode: str = "auto") -> str:
    return f"GOOSE_MODE: {mode}\nextensions:\n  My Notes: {{enabled: true, type: stdio, cmd: x, args: [], {keys}}}\n"


@pytest.mark.parametrize("where", [USER, "~/copies/goose.yaml"])
def test_a_usual_file(home: Home, where: str) -> None:
    home.write(where, SETTINGS)
    made = home.read(where, {"NOTES_TOKEN": "n", "TICKETS_TOKEN": "t"})
    assert list(made.servers) == ["notes", "tickets", "old"]
    notes, tickets = stdio(made, "notes"), http(made, "tickets")
    assert [word.reveal() for word in notes.command] == ["uvx", "notes-mcp", "--root", "$HOME"]
    assert {name: value.reveal() for name, value in notes.env.items()} == {
        "NOTES_LANG": "en",
        "LITERAL": "${NOTES_LANG}",
        "NOTES_TOKEN": "n",
    }
    assert (notes.timeout, tickets.timeout) == (60.0, 120.0)
    assert tickets.url.reveal() == "https://tickets.example.com/blue/mcp"
    assert {name: value.reveal() for name, value in tickets.headers.items()} == {
        "Authorization": "Bearer t",
        "X-Other": "$OTHER",
    }
    assert [state(made, "notes", tool) for tool in ("search_notes", "other")] == ["allow", "deny"]
    assert state(made, "tickets", "any") == "allow"
    assert state(made, "old", "any") == "off"
    assert made.notices == (
        "read as a Goose file",
        "these extensions are parts of Goose and stay there: developer",
        "notes: its host does not set PATH from the file, so it is left out",
        "notes: its host does not set ld_preload from the file, so it is left out",
    )


def test_secrets_that_are_in_a_file(home: Home) -> None:
    home.write(USER, SETTINGS)
    assert "NOTES_TOKEN is not set" in home.read(USER).servers["notes"].problem
    home.write("~/.config/goose/secrets.yaml", "NOTES_TOKEN: n${x}\nTICKETS_TOKEN: t\n")
    made = home.read(USER)
    assert stdio(made, "notes").env["NOTES_TOKEN"].reveal() == "n${x}"
    assert http(made, "tickets").headers["Authorization"].reveal() == "Bearer t"
    home.write("~/.config/goose/secrets.yaml", "[")
    assert "secrets.yaml of its host" in home.read(USER).servers["notes"].problem


def test_a_secret_in_a_url_stays_a_reference(home: Home) -> None:
    home.write("~/.config/goose/secrets.yaml", "KEY: s3cr3t\n")
    entry = "{enabled: true, type: streamable_http, uri: 'https://h/$KEY/mcp', env_keys: [KEY]}"
    home.write(USER, f"extensions:\n  a: {entry}\n")
    assert home.entries(USER)["a"].ours["url"] == "https://h/${env:KEY}/mcp"


@pytest.mark.parametrize(
    ("config", "permissions"),
    [
        ("extensions: {my-notes: {enabled: false, type: stdio, cmd: x, args: []}}", ""),
        (one("available_tools: [write]"), ""),
        (one(mode="chat"), ""),
        (one(), "user: {always_allow: [], ask_before: [], never_allow: [mynotes__read]}"),
        (one(), "user: {always_allow: [mynotes__read], ask_before: [], never_allow: [mynotes__read]}"),
        (one(), "smart_approve: {always_allow: [], ask_before: [], never_allow: [mynotes__read]}"),
        (one("name: Other N"), "user: {always_allow: [], ask_before: [], never_allow: [othern__read]}"),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, config: str, permissions: str) -> None:
    home.write(USER, config)
    if permissions:
        home.write(PERMISSIONS, permissions)
    made = home.read(USER)
    assert not made.servers["my-notes"].problem
    assert state(made, "my-notes", "read") in ("deny", "off")


@pytest.mark.parametrize(
    ("mode", "permissions", "decided"),
    [
        ("auto", "{}", "allow"),
        ("approve", "{}", "ask"),
        ("smart_approve", "{}", "ask"),
        ("auto", "user: {always_allow: [], ask_before: [mynotes__read], never_allow: []}", "ask"),
        ("auto", "user: {always_allow: [], ask_before: [], never_allow: [other__read]}", "allow"),
        ("approve", "user: {always_allow: [mynotes__read], ask_before: [], never_allow: []}", "ask"),
    ],
)
def test_modes_and_permissions(home: Home, mode: str, permissions: str, decided: str) -> None:
    home.write(USER, one(mode=mode))
    home.write(PERMISSIONS, permissions)
    assert state(home.read(USER), "my-notes", "read") == decided


def test_approvals_are_noted(home: Home) -> None:
    home.write(USER, one())
    home.write(PERMISSIONS, "user: {always_allow: [mynotes__read]}\nsmart_approve: {always_allow: [mynotes__x]}\n")
    assert home.entries(USER)["my-notes"].approved == ["read"]
    home.write(PERMISSIONS, "user: {always_allow: [mynotes__read, mynotes__re*d], never_allow: [mynotes__]}\n")
    assert home.entries(USER)["my-notes"].consent_for_tools() is None
    assert home.entries(USER)["my-notes"].approved == ["read"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{type: stdio, cmd: x, args: []}", 'the key "enabled" is missing, so its host does not start it'),
        ("{enabled: true, type: stdio, cmd: x}", 'the key "args" is missing'),
        ("{enabled: , type: stdio, cmd: x, args: []}", 'the key "enabled" is missing'),
        ("{enabled: ~, type: stdio, cmd: x, args: []}", 'the key "enabled" is missing'),
        ("{enabled: true, type: stdio, cmd: x, args: }", 'the key "args" is missing'),
        ("{enabled: true, cmd: x, args: []}", 'the key "type" is missing'),
        ("{enabled: true, type: streamable_http}", 'the key "uri" is missing'),
        ("{enabled: true, type: sse, uri: 'http://h/'}", "which its host does not start any more"),
        ("{enabled: true, type: []}", 'its key "type" is not known here'),
        ("{enabled: true, type: other}", 'its key "type" is not known here'),
        ("{enabled: true, type: streamable_http, uri: 'http://h/', socket: '@x'}", "names a socket"),
        ("{enabled: true, type: stdio, cmd: x, args: [], env_keys: {A: B, C-D: x}}", "is not a list of names of var"),
        ("{enabled: true, type: stdio, cmd: x, args: [], env_keys: [[x]]}", "is not a list of names of variables"),
        ("{enabled: true, type: stdio, cmd: x, args: [], disabled_tools: [x]}", 'its key "disabled_tools" is not'),
        ("{enabled: true, type: stdio, cmd: x, args: [], available_tools: [x*]}", "would match more here"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, entry: str, said: str) -> None:
    home.write(USER, f"extensions:\n  a: {entry}\n  b: {{enabled: true, type: stdio, cmd: x, args: []}}\n")
    made = home.read(USER)
    assert said in made.servers["a"].problem
    assert not made.servers["b"].problem


@pytest.mark.parametrize(
    ("mode", "permissions", "said"),
    [
        ("maybe", "{}", "GOOSE_MODE is not known here"),
        ("auto", "[", "permission.yaml of its host"),
        ("auto", "user: {deny: [x]}", "permission.yaml holds a key that is not known here"),
        ("auto", "user: {never_allow: x}", "is not a list of names of tools"),
    ],
)
def test_restrictions_that_are_not_understood_stop_the_server(
    home: Home, mode: str, permissions: str, said: str
) -> None:
    home.write(USER, one(mode=mode))
    home.write(PERMISSIONS, permissions)
    assert said in home.read(USER).servers["my-notes"].problem


def test_a_list_of_permitted_commands_stops_all(home: Home) -> None:
    home.write(USER, one())
    assert state(home.read(USER, {"GOOSE_ALLOWLIST": "https://h/list"}), "my-notes") == "problem"
    bypassed = {"GOOSE_ALLOWLIST": "https://h/list", "GOOSE_ALLOWLIST_BYPASS": "true"}
    assert state(home.read(USER, bypassed), "my-notes") != "problem"


@pytest.mark.parametrize(
    ("mode", "verdict"), [("approve", "ask"), ("chat", "deny"), ("other", "problem"), ("", "allow")]
)
def test_the_mode_of_the_environment_restricts_too(home: Home, mode: str, verdict: str) -> None:
    home.write(USER, "GOOSE_MODE: auto\nextensions:\n  a: {enabled: true, type: stdio, cmd: x, args: []}\n")
    assert state(home.read(USER, {"GOOSE_MODE": mode}), "a") == verdict
