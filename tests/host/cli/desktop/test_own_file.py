"""Servers are put into a configuration and taken out, and every other byte stays."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import config
from config.document import Plain
from host.cli.desktop.own_file import OwnFile
from host.cli.exit_codes import CommandFailed

RICH = """\
# The servers of this desk.   With   odd spaces.
listen: {address: "127.0.0.1:9000", sse:   false}   # the usual one

servers:   # all of them

  # Times of the world.
  time:
      command: [ uvx , 'mcp-server-time' ]   # odd spaces stay
      env:
        A: 012          # text
        B: "x: y"
  # Between the servers.

  notes:
    command: >-
      uvx
      notes
    consent:
      tools:
        allow:
        - {name: a, when: {x: [1,  2]}}
        # - b
        - 'c'
# Behind the servers.
ask: {timeout: 10s}
"""
VALUE = {"command": ["x", "-y"], "env": {"A": "no"}, "disabled": Plain("true")}


def changed(path: Path, *, put: str = "", remove: str = "") -> str:
    file = OwnFile(path)
    if put:
        file.put(put, VALUE)
    if remove:
        file.remove(remove)
    file.write()
    return path.read_bytes().decode()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_only_the_lines_of_the_server_change(tmp_path: Path, newline: str, mark: str) -> None:
    path = tmp_path / "c.yaml"
    before = mark + RICH.replace("\n", newline)
    path.write_bytes(before.encode())
    added = changed(path, put="new")
    lines = [*before.split(newline)]
    assert [line for line in added.split(newline) if line not in lines] == [
        "  new:",
        "    command: [x, -y]",
        '    env: {A: "no"}',
        "    disabled: true",
    ]
    made = config.load(path, {})
    assert list(made.servers) == ["time", "notes", "new"]
    assert made.servers["new"].disabled
    assert changed(path, remove="new") == before


def test_a_server_with_comments_is_removed_and_its_neighbours_stay(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(RICH)
    after = changed(path, remove="notes")
    start = RICH.index("  notes:")
    end = RICH.index("# Behind")
    assert after == RICH[:start] + RICH[end:]
    assert list(config.load(path, {}).servers) == ["time"]


def test_a_server_that_a_view_names_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "views: {v: {servers: {a: all}, overrides: {a: {t: {title: T}}}}, w: {}}\n"
        "servers: {a: {command: x}, b: {command: y}}\n"
    )
    own = OwnFile(path)
    with pytest.raises(
        CommandFailed, match=r"names a at views\.v\.servers and views\.v\.overrides too; remove it there"
    ):
        own.remove("a")
    own.remove("b")


@pytest.mark.parametrize(
    "text",
    [
        "servers: {a: {command: x}, b: {command: y}}\n",
        "servers: {\n  a: {command: x}, # a\n  b: {command: y}\n}\n",
        '{"servers": {"a": {"command": "x"}, "b": {"command": "y"}}}',
        '{\n\t"servers": {\n\t\t"a": {"command": "x"}, // a\n\t\t"b": {"command": "y"},\n\t}\n}\n',
    ],
)
def test_other_forms_of_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    changed(path, put="new")
    made = config.load(path, {})
    assert (sorted(made.servers), made.servers["new"].disabled) == (["a", "b", "new"], True)
    assert changed(path, remove="new") == text
    changed(path, remove="a")
    assert list(config.load(path, {}).servers) == ["b"]


@pytest.mark.parametrize("text", ["", "\n", "# mine\n", "# mine\nservers:\n"])
def test_a_file_without_servers_takes_the_first(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert changed(path, put="new").startswith(text)
    assert list(config.load(path, {}).servers) == ["new"]


def test_mode_and_link_stay(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text(RICH)
    real.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    changed(link, put="new")
    assert link.is_symlink()
    assert "  new:" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def test_a_file_that_was_changed_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(RICH)
    file = OwnFile(path)
    file.put("new", VALUE)
    path.write_text(RICH + "# more\n")
    with pytest.raises(CommandFailed, match="was changed by another program meanwhile"):
        file.write()
    assert path.read_text() == RICH + "# more\n"


def test_a_new_file_is_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "colonnade" / "c.yaml"
    file = OwnFile(path)
    assert not file.exists
    file.put("new", {"command": ["x"]})
    file.write()
    assert path.read_text() == "names: {limit: 48}\n\nservers:\n  new:\n    command: [x]\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"mcpServers": {}}', "is a mcpServers file, which is left to its host; colonnade import"),
        ("servers: {a: {command: x}, a: {command: y}}\n", "duplicate key"),
        ("servers: [", "this is not YAML"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(CommandFailed, match=said):
        changed(path, put="new")
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"put": "a"}, "has a server a already; remove it first"),
        ({"remove": "a"}, "a is the only server of"),
        ({"remove": "aa"}, "has no server aa; did you mean a"),
        ({"remove": "zzz"}, "has no server zzz; its servers: a"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, change: dict[str, str], said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("servers: {a: {command: x}}\n")
    with pytest.raises(CommandFailed, match=said):
        changed(path, **change)
