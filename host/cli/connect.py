"""The commands `connect` and `disconnect`: put Colonnade into the files of desktop hosts, and take it out again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from host.cli.common import (
    CONFIG_NAME,
    FILE,
    Selection,
    find_config,
    is_confirmed,
    load_config,
    pass_selection,
    state_option,
)
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from config import Config
    from config.document import Document
    from config.edit import CannotEdit, ValuePath
    from config.hosts import DesktopHost
    from config.hosts.started import OurServers
    from host.cli.host_entry import OwnEntry
    from host.storage.connections import Connections, Record
    from host.storage.directory import State
    from host.storage.foreign_file import ForeignFile


_NO_CONFIG = "make one of the servers of the host with colonnade import, name its file with --config FILE"


class HostName(click.ParamType["DesktopHost"]):
    """The name of a desktop host."""

    name = "host"

    def convert(
        self, value: str | DesktopHost, parameter: click.Parameter | None, context: click.Context | None
    ) -> DesktopHost:
        from config.hosts import HOSTS
        from host.cli.suggest import meant_hosts

        if not isinstance(value, str):
            return value
        names = {host.name: host for host in HOSTS}
        if value not in names:
            self.fail(f"{value!r} is no host that is known; {meant_hosts(value, HOSTS)}", parameter, context)
        return names[value]

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from config.hosts import HOSTS

        return [CompletionItem(host.name, help=host.title) for host in HOSTS if host.name.startswith(incomplete)]


@dataclass(frozen=True)
class _PreparedEdit:
    """A change of a host's file that was prepared.

    Attributes:
        after: The new content; None if the file is to be removed.
        notes: Sentences for the person who is asked.
        secret: A text that is not shown.
        is_edited: Whether a person added to our entry, which is written anew or taken out.
        left: The sentences on what cannot be given back.
        has_entry: Whether an entry that starts Colonnade is among that.
    """

    host: DesktopHost
    file: ForeignFile
    after: bytes | None
    record: Record
    notes: list[str] = field(default_factory=list)
    secret: str = ""
    is_edited: bool = False
    left: list[str] = field(default_factory=list)
    has_entry: bool = False

    @property
    def changes_nothing(self) -> bool:
        return self.after == self.file.data

    @property
    def title(self) -> str:
        return f"{self.host.title}: {self.file.path}"


@dataclass(frozen=True)
class _Choices:
    """The options of `connect`."""

    file: Path
    config: Config
    document: Document
    servers: OurServers
    state: State
    by_url: bool
    token: str | None
    write_token: bool
    move: bool


@click.command()
@click.argument("hosts", metavar="[HOST]...", nargs=-1, type=HostName())
@click.option("--config", "config_file", metavar="FILE", type=FILE, help="The configuration to serve.")
@click.option("--url", "by_url", is_flag=True, help="Use the URL of the running host instead of starting another one.")
@click.option("--token", metavar="NAME", help="With --url: the access token that the host uses.")
@click.option("--write-token", is_flag=True, help="With --url: write the token itself into the host's file.")
@click.option("--move", is_flag=True, help="Take the servers that Colonnade serves out of the host's file.")
@click.option("--project", is_flag=True, help="Use the host's file in the current folder, not the user's own.")
@click.option("--file", "path", metavar="FILE", type=FILE, help="Use this file of the host.")
@click.option("--dry-run", is_flag=True, help="Print the difference and write nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before writing.")
@state_option
@pass_selection
def connect(
    selection: Selection,
    hosts: tuple[DesktopHost, ...],
    config_file: str | None,
    by_url: bool,
    token: str | None,
    write_token: bool,
    move: bool,
    project: bool,
    path: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Put Colonnade into the files of desktop hosts.

    Without HOST: list the hosts that are found here. A host starts Colonnade with `serve --stdio`, or uses its URL
    (--url). With --move, the servers that Colonnade serves are taken out of the host's file; without it, the host
    starts them a second time, past all rules. `colonnade disconnect` gives everything back.
    """
    options = (config_file, by_url, token, write_token, move, project, path, dry_run, yes)
    if not hosts and any(options):
        raise click.UsageError(
            "Name a HOST to connect; without options, colonnade connect lists them.", click.get_current_context()
        )
    state = selection.open_state()
    from host.storage.connections import Connections

    connections = Connections(state)
    if not hosts:
        with _failures():
            return _list(connections)
    _check_options(hosts, path, project)
    source = Path(os.path.abspath(config_file or find_config(_NO_CONFIG)))
    config = load_config(str(source))
    from config.hosts import place_of
    from config.load import read_file
    from host.cli.connected_files import our_servers

    document, _ = read_file(place_of(source))
    choices = _Choices(source, config, document, our_servers(source), state, by_url, token, write_token, move)
    with _failures(), connections.lock():

        def prepare(host: DesktopHost) -> list[_PreparedEdit]:
            return [_connected(host, _file_of(host, project, path), project, connections, choices)]

        edits, problems = _prepared(hosts, prepare)
        return _carry_out(edits, problems, connections, _apply_connected, dry_run=dry_run, yes=yes)


@click.command()
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True, type=HostName())
@click.option("--project", is_flag=True, help="Use the host's file in the current folder, not the user's own.")
@click.option("--file", "path", metavar="FILE", type=FILE, help="Use this file of the host.")
@click.option("--dry-run", is_flag=True, help="Print the difference and write nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before writing.")
@state_option
@pass_selection
def disconnect(
    selection: Selection, hosts: tuple[DesktopHost, ...], project: bool, path: str | None, dry_run: bool, yes: bool
) -> int:
    """Take Colonnade out of the files of desktop hosts.

    A file that did not change since is given back byte for byte. Otherwise only Colonnade's own entry is taken out, and
    the servers that `connect --move` took out are put back.
    """
    state = selection.open_state()
    from host.storage.connections import Connections

    connections = Connections(state)
    _check_options(hosts, path, project)
    with _failures(), connections.lock():

        def prepare(host: DesktopHost) -> list[_PreparedEdit]:
            records = _records(host, project, path, connections)
            if not records:
                raise _not_connected(host, project, path)
            return [_given_back(host, record) for record in records]

        edits, problems = _prepared(hosts, prepare)
        return _carry_out(edits, problems, connections, _apply_given_back, dry_run=dry_run, yes=yes)


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what can go wrong with files into CommandFailed."""
    from config.edit import CannotEdit
    from host.storage.foreign_file import CannotReplace
    from host.storage.store import StateError

    try:
        yield
    except StateError as problem:
        raise CommandFailed(str(problem), WRONG) from problem
    except CannotReplace as problem:
        raise CommandFailed(str(problem)) from problem
    except CannotEdit as problem:
        raise CommandFailed(f"the file cannot be changed: {problem}") from None


def _check_options(hosts: tuple[DesktopHost, ...], path: str | None, project: bool) -> None:
    if path is not None and (len(hosts) != 1 or project):
        raise click.UsageError("--file is for one host, and not for --project.", click.get_current_context())


# The files of hosts


def _file_of(host: DesktopHost, project: bool, path: str | None) -> Path:
    """The file to change: a given one, or the first one that exists, or else the usual one."""
    from host.cli.connected_files import known_paths

    if path is not None:
        return Path(os.path.abspath(path))
    paths = known_paths(host, project=project)
    if not paths:
        raise CommandFailed(f"{host.title} has no file for a project", WRONG)
    return next((each for each in paths if os.path.lexists(each)), paths[0])


def _list(connections: Connections) -> int:
    from host.cli.connected_files import file_states
    from host.sanitize import visible

    states = file_states(connections)
    for each in states:
        print(f"{each.host.name:<15} {each.state:<15} {visible(str(each.path))}")
        for note in each.notes:
            print(f"{'':<31} {visible(note)}")
    if not states:
        print("No file of a desktop host is found here. colonnade connect HOST makes one.")
    return DONE


# connect


def _connected(
    host: DesktopHost, path: Path, project: bool, connections: Connections, choices: _Choices
) -> _PreparedEdit:
    """The change that connects a file. What an earlier connection changed is undone first, in the same step."""
    from config.edit import CannotEdit
    from config.hosts.connecting import connected, digest, given_back
    from config.hosts.entry_form import ENTRY_FORMS, is_alike, with_additions
    from host.cli.connected_files import disconnect_command, known_paths, not_served
    from host.storage.connections import Record
    from host.storage.foreign_file import open_foreign

    form = ENTRY_FORMS[host.name]
    file = open_foreign(path)
    if os.path.realpath(choices.file) == str(file.real):
        raise CommandFailed(
            f"{path} is the configuration itself: Colonnade would start itself. Import it first: colonnade import",
            WRONG,
        )
    former = connections.get(file.path)
    base, moved, folders = file.data, frozenset[str](), tuple(map(str, file.folders))
    added: Mapping[str, object] = {}
    if former is not None:
        folders = folders or former.folders
        if file.data is not None:
            try:
                back = given_back(file.path, file.data, former.change, form)
            except CannotEdit as problem:
                raise _cannot_edit(host, file, problem) from None
            if back.kept:
                raise CommandFailed(f"{path}: {'; '.join(back.kept)}. Use colonnade disconnect {host.name} first")
            base, added = back.data, back.added
            moved = frozenset(each.name for each in former.change.moved)
    elif file.data is not None:
        _refuse_unrecorded(host, file, choices.state)
    own = _own_entry(host, choices, added)
    moves, notes = _moves(host, file.path, base, moved, own, choices)
    if former is not None and moved and (lost := not_served(former, choices.servers)):
        notes.append(
            f"moved out of the file and not served by {choices.file.name}: {', '.join(lost)}; "
            f"{disconnect_command(host, former.project)} puts them back"
        )
    entry, stays = own.entry, former is not None and is_alike(former.change.entry, own.entry)
    if added:
        stays_or_not = "stays in it" if stays else "does not go with the new one"
        notes.append(f"what was added to its entry by hand ({_keys(added)}) {stays_or_not}")
        entry = with_additions(entry, added) if stays else entry
    try:
        after, change = connected(file.path, base, form, entry, moves)
    except CannotEdit as problem:
        raise _cannot_edit(host, file, problem) from None
    # The additions are not ours, so they are told apart the next time too.
    change = replace(change, entry=own.entry)
    if file.data is not None:
        change = replace(change, known=(*change.known, digest(file.data)))
    others = [str(each) for each in known_paths(host, project=project) if each != path and os.path.lexists(each)]
    notes = [*own.notes, *notes, *(f"{host.title} may also read {each}, which is left" for each in others)]
    record = Record(host.name, str(file.path), str(choices.file), change, folders, str(Path.cwd()) if project else "")
    return _PreparedEdit(host, file, after, record, notes, own.secret, is_edited=bool(added))


def _refuse_unrecorded(host: DesktopHost, file: ForeignFile, state: State) -> None:
    """Refuse a file with an entry of ours that no connect of this state directory wrote.

    Raises:
        CommandFailed: it has one, or cannot be parsed.
    """
    from config.edit import CannotEdit
    from host.cli.common import show_path
    from host.cli.connected_files import has_own_entry

    try:
        is_there = has_own_entry(host, file.path, file.data or b"")
    except CannotEdit as problem:
        raise _cannot_edit(host, file, problem) from None
    if is_there:
        raise CommandFailed(
            f'{file.path} has "colonnade" already, and {show_path(state.path)} has no record of who wrote it: take the '
            "entry out by hand, then connect again"
        )


def _cannot_edit(host: DesktopHost, file: ForeignFile, problem: CannotEdit) -> CommandFailed:
    """The failure for a file that cannot be edited; if it cannot be parsed, with the line."""
    from config import ConfigError
    from config.hosts.started import started_by

    try:
        started_by(host, file.path, file.data, Path.home(), os.environ)
    except ConfigError as unparsed:
        return CommandFailed(str(unparsed))
    return CommandFailed(f"{file.path} cannot be changed: {problem}")


def _keys(added: Mapping[str, object]) -> str:
    from config.problems import clip

    return ", ".join(map(clip, added))


def _own_entry(host: DesktopHost, choices: _Choices, added: Mapping[str, object]) -> OwnEntry:
    from host.cli.host_entry import by_command, by_url

    if choices.by_url:
        return by_url(
            host, choices.config, choices.document, choices.state, choices.token, write_token=choices.write_token
        )
    return by_command(host, choices.document, choices.file, choices.state, added)


def _moves(
    host: DesktopHost, path: Path, data: bytes | None, moved: frozenset[str], own: OwnEntry, choices: _Choices
) -> tuple[list[ValuePath], list[str]]:
    """The servers to take out of a file, and what to say about those that stay."""
    from config import ConfigError
    from config.hosts.entry_form import is_same_launch
    from config.hosts.started import started_by

    try:
        entries = started_by(host, path, data, Path.home(), os.environ)
    except ConfigError as problem:
        raise CommandFailed(str(problem)) from problem
    moves: list[ValuePath] = []
    config = choices.file.name or CONFIG_NAME
    stay: dict[str, list[str]] = {
        f"past all rules: colonnade connect {host.name} --move": [],
        f"which is Colonnade with {config} under another name: take it out by hand": [],
        "which colonnade import cannot take over": [],
        f"which is disabled in {config}": [],
        f"which {config} does not have": [],
    }
    twice, itself, unusable, disabled, unknown = stay.values()
    for entry in entries:
        is_ours = choices.servers.has(entry, path)
        if entry.name in moved or (is_ours and choices.move):
            moves.append(tuple(part for part in entry.path if part is not None))
        elif is_ours:
            twice.append(entry.name)
        elif is_same_launch(own.entry, entry.values):
            itself.append(entry.name)
        elif entry.problems:
            unusable.append(entry.name)
        elif choices.servers.has_disabled(entry, path):
            disabled.append(entry.name)
        else:
            unknown.append(entry.name)
    notes = [f"{host.title} still starts {', '.join(names)} by itself, {why}" for why, names in stay.items() if names]
    return moves, notes


def _apply_connected(edit: _PreparedEdit, connections: Connections) -> None:
    """The record comes first: whatever happens then, it can be undone."""
    from host.storage.foreign_file import CannotReplace

    assert edit.after is not None
    if edit.changes_nothing:
        return
    copy = _copy(edit, connections)
    former = connections.get(edit.file.path)
    kept = connections.keep(edit.record)
    try:
        edit.file.replace(edit.after)
    except CannotReplace:
        if former is None:
            connections.forget(edit.file.path)
        else:
            connections.keep(former)
        raise
    where = "" if kept is None else f". The content before is in {copy or kept}"
    print(f"{edit.host.title} is connected; start it again{where}")
    print("Calls that need your confirmation wait for you in `colonnade ask`, or on the page of `colonnade console`.")


# disconnect


def _records(host: DesktopHost, project: bool, path: str | None, connections: Connections) -> list[Record]:
    found = [record for record in connections.all() if record.host == host.name]
    if path is not None:
        return [record for record in found if record.file == os.path.abspath(path)]
    here = str(Path.cwd()) if project else ""
    return [record for record in found if record.project == here]


def _not_connected(host: DesktopHost, project: bool, path: str | None) -> CommandFailed:
    """The failure where nothing is known of a connection. There may be an entry of ours all the same."""
    from host.cli.connected_files import known_paths, unrecorded_state

    paths = known_paths(host, project=project) if path is None else [Path(os.path.abspath(path))]
    for each in paths:
        if each.is_file() and (state := unrecorded_state(host, each)).notes:
            return CommandFailed(f"{host.title} is not connected, but in {each}, {state.notes[0]}")
    return CommandFailed(f"{host.title} is not connected")


def _given_back(host: DesktopHost, record: Record) -> _PreparedEdit:
    from config.edit import CannotEdit
    from config.hosts.connecting import given_back
    from config.hosts.entry_form import ENTRY_FORMS
    from host.storage.foreign_file import open_foreign

    path = Path(record.file)
    file = open_foreign(path)
    if file.data is None:
        gone = [f"{path} is gone"] if record.change.moved else []
        return _PreparedEdit(host, file, None, record, gone, left=gone)
    try:
        back = given_back(path, file.data, record.change, ENTRY_FORMS[host.name])
    except CannotEdit as problem:
        raise _cannot_edit(host, file, problem) from None
    notes = list(back.kept)
    if back.added:
        notes.append(f"what was added to its entry by hand ({_keys(back.added)}) goes with it")
    return _PreparedEdit(
        host,
        file,
        back.data,
        record,
        notes,
        is_edited=bool(back.added),
        left=back.kept,
        has_entry=back.has_entry,
    )


def _apply_given_back(edit: _PreparedEdit, connections: Connections) -> None:
    copy = _copy(edit, connections)
    edit.file.clean_up()
    if edit.file.data is None:
        pass  # somebody removed it
    elif edit.after is None:
        edit.file.remove([Path(folder) for folder in edit.record.folders])
    elif not edit.changes_nothing:
        edit.file.replace(edit.after)
    said = f"{edit.host.title} is disconnected; start it again"
    if edit.has_entry:
        said = f"{edit.host.title} may still start Colonnade: {edit.left[0]}. Take it out by hand"
    if edit.left or edit.after != edit.record.change.original:
        said += f". The content before it was connected is in {connections.set_aside(edit.file.path)}"
    else:
        connections.forget(edit.file.path)
    print(said + (f". The content with the edited entry is in {copy}" if copy else ""))


# Both

_Apply = Callable[[_PreparedEdit, "Connections"], None]


def _copy(edit: _PreparedEdit, connections: Connections) -> Path | None:
    """Keep the content with an entry that a person edited."""
    if not edit.is_edited or edit.file.data is None:
        return None
    return connections.keep_edited(edit.file.path, edit.file.data)


def _prepared(
    hosts: Sequence[DesktopHost], prepare: Callable[[DesktopHost], list[_PreparedEdit]]
) -> tuple[list[_PreparedEdit], list[CommandFailed]]:
    """The changes of the hosts, and the problems of those that cannot be changed."""
    edits: list[_PreparedEdit] = []
    problems: list[CommandFailed] = []
    for host in hosts:
        try:
            with _failures():
                edits += prepare(host)
        except CommandFailed as problem:
            problems.append(problem)
    return edits, problems


def _carry_out(
    edits: list[_PreparedEdit],
    problems: list[CommandFailed],
    connections: Connections,
    apply: _Apply,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Show and write the changes, each by itself. The problem of a host does not keep the others from being changed."""
    if problems and not edits:
        raise problems[0]
    asks = not yes and not all(edit.changes_nothing for edit in edits)
    if not dry_run and asks and not sys.stdin.isatty():
        raise CommandFailed("this is no terminal to ask at: say --yes to write, or --dry-run to look", WRONG)
    code = DONE
    for edit in edits:
        _show(edit)
        if dry_run:
            continue
        if not yes and not edit.changes_nothing and not is_confirmed("Write this?"):
            print(f"{edit.file.path} is left as it is")
            code = FAILED
            continue
        try:
            with _failures():
                apply(edit, connections)
        except CommandFailed as problem:
            problems.append(problem)
    for each in problems:
        print(f"colonnade: {each}", file=sys.stderr)
    return max([code, *(each.exit_code for each in problems)])


def _show(edit: _PreparedEdit) -> None:
    from config.edit import values
    from host.cli.file_difference import difference
    from host.sanitize import visible

    print(visible(edit.title))
    before, after = (_text(data) for data in (edit.file.data, edit.after))
    parsed = [values(edit.file.path, text) for text in (before, after)]
    lines = difference(str(edit.file.path), before, after, parsed, edit.secret) or ["(only line ends differ)"]
    for line in ["Nothing is to be done in this file."] if edit.changes_nothing else lines:
        print(line)
    for note in edit.notes:
        print(f"notice: {visible(note)}", file=sys.stderr)


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode("utf-8-sig")
