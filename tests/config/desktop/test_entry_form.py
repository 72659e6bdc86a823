"""Our entry as each host writes it, read back by the reader of the host's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import HttpServer, StdioServer, load
from config.desktop.entry_form import ENTRY_FORMS, NAME, additions, is_alike, is_same_launch, with_additions
from config.desktop.hosts import HOSTS
from config.edit import insert, values

ARGUMENTS = ["serve", "--stdio", "/home/kim/my files/colonnade.yaml"]
URL = "http://127.0.0.1:8808/mcp"

each_host = pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)


def test_every_host_has_a_form() -> None:
    assert {host.name for host in HOSTS} <= ENTRY_FORMS.keys()


@each_host
def test_a_host_starts_what_is_written(host, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The host's own reader finds the command and its arguments in it."""
    form = ENTRY_FORMS[host.name]
    server = _read_back(host, form.command("/opt/colonnade", ARGUMENTS), tmp_path)
    assert isinstance(server, StdioServer)
    assert [word.reveal() for word in server.command] == ["/opt/colonnade", *ARGUMENTS]


@each_host
def test_a_host_reaches_the_url_with_the_token_of_a_variable(host, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    form = ENTRY_FORMS[host.name]
    if form.url is None:
        return
    entry = form.url(URL)
    if form.reference:
        entry |= form.token(form.reference.replace("NAME", "THE_TOKEN"))
    server = _read_back(host, entry, tmp_path)
    assert isinstance(server, HttpServer)
    assert server.url.reveal() == URL
    if form.reference:
        assert server.headers["Authorization"].reveal() == "Bearer s3cret"


@each_host
def test_a_host_reaches_the_url_with_a_token_in_its_file(host, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    form = ENTRY_FORMS[host.name]
    if form.url is not None:
        server = _read_back(host, {**form.url(URL), **form.literal_token("s3cret")}, tmp_path)
        assert server.headers["Authorization"].reveal() == "Bearer s3cret"


def _read_back(host, entry, folder: Path):  # type: ignore[no-untyped-def]
    """The server that the host's reader makes of an entry in a file at the host's place."""
    place = next(file for file in host.files if not file.is_project and "*" not in file.linux)
    file = place.path(folder, folder, {}, "linux")
    file.parent.mkdir(parents=True, exist_ok=True)
    form = ENTRY_FORMS[host.name]
    text = form.new_file
    path = form.place(values(file, text))
    file.write_text(insert(file, text, path, entry).text)
    config = load(file, {"THE_TOKEN": "s3cret", "HOME": str(folder)}, home=folder)
    server = config.servers[NAME]
    assert server.problem == ""
    return server


def test_newer_files_of_opencode_have_another_place() -> None:
    form = ENTRY_FORMS["opencode"]
    assert form.place({"mcp": {"a": {"type": "local"}}}) == ("mcp", NAME)
    assert form.place({"mcp": {"servers": {}}}) == ("mcp", "servers", NAME)
    assert ENTRY_FORMS["continue"].place({}) == ("mcpServers", 0)


def test_variables_are_passed_on_where_hosts_withhold_them() -> None:
    passed = {
        name: form.variables(["A"])
        for name, form in ENTRY_FORMS.items()
        if form.variables is not None and form.variables(["A"])
    }
    assert passed == {
        "windsurf": {"env": {"A": "${env:A}"}},
        "cline": {"env": {"A": "${env:A}"}},
        "roo": {"env": {"A": "${env:A}"}},
        "gemini": {"env": {"A": "${A}"}},
        "codex": {"env_vars": ["A"]},
        "continue": {"env": {"A": "${{ secrets.A }}"}},
    }
    assert all(form.variables is None or form.variables([]) == {} for form in ENTRY_FORMS.values())


def test_hosts_that_would_not_wait_are_told_to() -> None:
    assert ENTRY_FORMS["codex"].command("c", []) == {
        "command": "c", "args": [], "required": True, "startup_timeout_sec": 60
    }  # fmt: skip
    assert ENTRY_FORMS["cline"].command("c", []) == {"command": "c", "args": [], "timeout": 120}


def test_an_entry_that_starts_another_program_is_not_ours() -> None:
    written = {"command": "a", "args": ["b"]}
    assert is_same_launch(written, {"command": "a", "args": ["b"], "timeout": 5})
    assert not is_same_launch(written, {"command": "a", "args": ["c"]})
    assert not is_same_launch(written, {"command": "a", "args": ["b"], "url": "u"})
    assert not is_same_launch(written, None)


WRITTEN = {"command": "c", "args": ["a"], "env": {"A": "1", "B": "2"}, "env_vars": ["X"], "timeout": 300}


@pytest.mark.parametrize(
    ("changed", "added"),
    [
        ({}, {}),
        ({"timeout": 600, "trust": True}, {"timeout": 600, "trust": True}),
        ({"env": {"B": "3", "C": "4"}}, {"env": {"B": "3", "C": "4"}}),
        ({"env_vars": ["Y", "X"]}, {"env_vars": ["Y"]}),
        ({"env": {}, "env_vars": None}, {"env_vars": None}),
        ({"env": "odd"}, {"env": "odd"}),
    ],
)
def test_what_was_added_to_an_entry_goes_to_another_one(changed: dict[str, object], added: dict[str, object]) -> None:
    found = {**WRITTEN, **changed}
    assert additions(WRITTEN, found) == added
    made = with_additions({"command": "c", "env": {"N": "5"}}, added)
    assert additions({"command": "c", "env": {"N": "5"}}, made) == added
    assert made["command"] == "c"


def test_entries_are_alike_if_both_start_or_both_reach() -> None:
    assert is_alike(WRITTEN, {"command": "d", "args": []})
    assert not is_alike(WRITTEN, {"url": "https://h"})
