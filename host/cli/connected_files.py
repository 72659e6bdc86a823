"""The files of desktop hosts: where they lie, which of them are connected, and which servers were moved out of them.

A server that was moved out of a host's file is started by Colonnade alone. Where Colonnade does not start it any more,
nothing does, and a command has to say so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from config import ConfigError
from config.edit import CannotEdit, get, values
from config.hosts import HOSTS, DesktopHost, place_of
from config.hosts.connecting import FileChange, own_path, renamed_to
from config.hosts.entry import ServerEntry
from config.hosts.entry_form import ENTRY_FORMS, is_same_launch
from config.hosts.started import OurServers, started_by
from config.load import read_file
from config.problems import clip
from config.read import read_bytes
from host.cli.common import counted, show_path
from host.storage.connections import Connections, Record
from host.storage.directory import State, state_directory
from host.storage.store import StateError

_ENTRY_STATES = {
    "changed by hand": "its entry starts something else than connect wrote: take it out by hand",
    "renamed": "its entry has another name by now: take it out by hand",
}
HOSTS_BY_NAME = {host.name: host for host in HOSTS}


@dataclass
class FileState:
    """A file of a host, whether it is connected, and sentences on that."""

    host: DesktopHost
    path: Path
    state: str
    notes: list[str] = field(default_factory=list)


def known_records() -> list[Record]:
    """The records of the usual state directory; none if they cannot be read, which `connect` says."""
    try:
        return Connections(State(state_directory(None))).all()
    except StateError:
        return []


def known_paths(host: DesktopHost, *, project: bool) -> list[Path]:
    """The files of a host whose names are known, first the one that is made if there is none."""
    found: list[Path] = []
    for file in host.files:
        path = file.path(Path.cwd(), Path.home(), os.environ)
        is_known = "*" not in str(path.parent if file.is_all_servers else path)
        if file.is_project == project and is_known:
            found.append(path.with_name(path.name.replace("*", "colonnade")))
    return sorted(found, key=lambda path: path.name != ENTRY_FORMS[host.name].file_name)


def our_servers(file: Path) -> OurServers:
    """The servers of a configuration in our form, which may be the file of another host.

    Raises:
        ConfigError: it cannot be read.
    """
    document, host = read_file(place_of(file))
    if host is not None:
        entries = started_by(host, file, read_bytes(file), Path.home(), os.environ)
        return OurServers({each.id: each.ours for each in entries}, file.parent, os.environ)
    servers = document.root.get("servers")
    return OurServers(servers if isinstance(servers, dict) else {}, file.parent, os.environ)


def moved_out(record: Record) -> list[ServerEntry]:
    """The servers that were moved out of a file."""
    host, names = HOSTS_BY_NAME[record.host], {moved.name for moved in record.change.moved}
    entries = started_by(host, Path(record.file), record.change.original, Path.home(), os.environ)
    return [entry for entry in entries if entry.name in names]


def not_served(record: Record, servers: OurServers) -> list[str]:
    """The names of the servers that were moved out of a file and for which our configuration has none."""
    file = Path(record.file)
    return [clip(entry.name) for entry in moved_out(record) if not servers.stands_in_for(entry, file)]


def disconnect_command(host: DesktopHost, project: str) -> str:
    """The command that gives a file of a host back, which may belong to a project in another folder."""
    where = "" if project in ("", str(Path.cwd())) else f" in {show_path(Path(project))}"
    return f"colonnade disconnect {host.name}{' --project' if project else ''}{where}"


def has_own_entry(host: DesktopHost, path: Path, data: bytes) -> bool:
    """Whether a file with this content has an entry with the name of ours.

    Raises:
        CannotEdit: it cannot be parsed.
    """
    root = _root(path, data)
    return own_path(root, ENTRY_FORMS[host.name].place(root)) is not None


def file_states(connections: Connections) -> list[FileState]:
    """The files of hosts that are there, and those that were connected."""
    known = {record.file: record for record in connections.all()}
    found: list[FileState] = []
    for host in HOSTS:
        for path in (*known_paths(host, project=False), *known_paths(host, project=True)):
            record = known.pop(str(path), None)
            if record is not None:
                found.append(_recorded(record))
            elif path.is_file():
                found.append(unrecorded_state(host, path))
    return found + [_recorded(record) for record in known.values()]


def unrecorded_state(host: DesktopHost, path: Path) -> FileState:
    """The state of a file of which there is no record."""
    try:
        if not has_own_entry(host, path, read_bytes(path)):
            return FileState(host, path, "not connected")
    except (OSError, CannotEdit):
        return FileState(host, path, "unreadable")
    return FileState(host, path, "by hand", ['no record says who wrote its entry "colonnade": take it out by hand'])


def _recorded(record: Record) -> FileState:
    made = FileState(HOSTS_BY_NAME[record.host], Path(record.file), "gone")
    if made.path.is_file():
        try:
            made.state = _state(_root(made.path, read_bytes(made.path)), record.change)
        except (OSError, CannotEdit):
            made.state = "unreadable"
    if made.state == "connected":
        made.notes = _serving(record)
        return made
    if made.state in _ENTRY_STATES:
        made.notes.append(_ENTRY_STATES[made.state])
    if count := len(record.change.moved):
        are = f"{counted(count, 'server')} {'is' if count == 1 else 'are'} moved out"
        repair = "repair the file, then " if made.state == "unreadable" else ""
        does = "says where they are kept" if made.state == "gone" else "puts them back"
        made.notes.append(f"{are}: {repair}{disconnect_command(made.host, record.project)} {does}")
    return made


def _root(path: Path, data: bytes) -> object:
    try:
        return values(path, data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        problem = CannotEdit("it is not UTF-8")
    # Not within the handler: the error holds the whole content.
    raise problem


def _state(root: object, change: FileChange) -> str:
    path = own_path(root, change.path)
    if path is None:
        return "not connected" if renamed_to(root, change) is None else "renamed"
    return "connected" if is_same_launch(change.entry, get(root, path)) else "changed by hand"


def _serving(record: Record) -> list[str]:
    """The configuration that a host serves, and the servers that were moved and are not in it."""
    file = Path(record.config)
    servers, problem = OurServers({}, file.parent, os.environ), ""
    try:
        servers = our_servers(file)
    except ConfigError:
        problem = ", which cannot be read" if file.is_file() else ", which is gone"
    notes = [f"serves {show_path(file)}{problem}"]
    if names := not_served(record, servers):
        back = disconnect_command(HOSTS_BY_NAME[record.host], record.project)
        notes.append(f"moved out and not served by it: {', '.join(names)}; {back} puts them back")
    return notes
