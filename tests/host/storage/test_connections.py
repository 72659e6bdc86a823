"""The records of connected files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from config.desktop.connecting import FileChange, Moved
from host.storage.connections import Connections, Record
from host.storage.directory import open_state
from host.storage.store import StateError

FILE = Path("/home/kim/.cursor/mcp.json")
CHANGE = FileChange(
    ("mcpServers", "colonnade"),
    {"command": "/c", "args": ["serve"]},
    '"colonnade": {}',
    (Moved(("mcpServers", 0), "a", '{"x": "s3cret"}'),),
    b"\xff\x00 any bytes",
    ("0a",),
)
RECORD = Record("cursor", str(FILE), "/c.yaml", CHANGE, ("/home/kim/.cursor",), "/home/kim")


@pytest.fixture
def connections(tmp_path: Path) -> Connections:
    made = Connections(open_state(tmp_path / "state"))
    with made.lock():
        return made


def test_a_record_is_read_as_it_was_kept(connections: Connections) -> None:
    assert (connections.get(FILE), connections.all()) == (None, [])
    backup = connections.keep(RECORD)
    assert (connections.get(FILE), connections.all()) == (RECORD, [RECORD])
    assert backup is not None
    assert backup.read_bytes() == CHANGE.original
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in backup.parent.iterdir())
    assert stat.S_IMODE(backup.parent.stat().st_mode) == 0o700
    connections.forget(FILE)
    assert (connections.get(FILE), connections.all(), backup.exists()) == (None, [], False)


def test_the_content_stays_for_people_where_a_part_was_not_given_back(connections: Connections) -> None:
    connections.keep(RECORD)
    assert connections.set_aside(FILE).read_bytes() == CHANGE.original
    assert connections.all() == []


def test_the_content_with_an_edited_entry_outlives_the_record(connections: Connections) -> None:
    connections.keep(RECORD)
    edited = connections.keep_edited(FILE, b"edited")
    connections.forget(FILE)
    assert connections.all() == []
    assert (edited.read_bytes(), edited.stat().st_mode & 0o077) == (b"edited", 0)


def test_a_damaged_record_is_named_without_its_content(connections: Connections) -> None:
    backup = connections.keep(RECORD)
    assert backup is not None
    record = next(backup.parent.glob("*[0-9a-f].json"))
    record.write_bytes(record.read_bytes()[:-40])
    with pytest.raises(StateError, match="former content") as problem:
        connections.get(FILE)
    assert problem.value.__context__ is None


def test_one_command_at_a_time(connections: Connections, tmp_path: Path) -> None:
    other = Connections(open_state(tmp_path / "state"))
    with connections.lock():
        with pytest.raises(StateError, match="another colonnade connect"):
            with other.lock():
                pass
    with other.lock():
        pass
