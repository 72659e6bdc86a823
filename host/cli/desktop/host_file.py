"""A file of a desktop host: whether it is connected, Colonnade's own entry in it, and the change that puts that in or
takes it out, shown without the secrets of the file.

A server that was moved out of a host's file is started by Colonnade alone. Where Colonnade does not start it any more,
nothing does, and a command has to say so. A token is written into a host's file only if the person says so.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from click.shell_completion import CompletionItem

from config import Config, ConfigError, Search
from config.desktop.connecting import FileChange, connected, digest, given_back, own_path, renamed_to
from config.desktop.desktop_host import DesktopHost
from config.desktop.entry import ServerEntry
from config.desktop.entry_form import (
    ENTRY_FORMS,
    Entry,
    EntryForm,
    is_alike,
    is_same_launch,
    named_variables,
    starts_program,
    with_additions,
)
from config.desktop.hosts import HOSTS, recognize
from config.desktop.started import OurServers, restricts_own_entry, started_by
from config.document import Document
from config.edit import CannotEdit, ValuePath, get, values
from config.edit.both_changes import shared_start
from config.literal_secrets import is_secret_name, secrets_in_argument
from config.load import place_of, read_file
from config.naming import FITTING_NAME
from config.problems import clip, nearest_word
from config.read import read_bytes
from config.references import variables_in, variables_of
from host.addresses import addresses_of, suffix_of
from host.cli.admin_client import find_hosts
from host.cli.common import CONFIG_NAME, counted, is_confirmed, own_endpoint, show_path, typed_path
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed
from host.sanitize import visible
from host.storage.connections import Connections, Record
from host.storage.directory import State, state_directory
from host.storage.foreign_file import CannotReplace, ForeignFile, open_foreign
from host.storage.store import StateError

TOKEN_VARIABLE = "COLONNADE_TOKEN"
"""The variable that a host's file names if the configuration takes the token from somewhere else."""
_CACHES = frozenset({"archive-v0", "environments-v2"})
"""Folders of uv for programs that were not installed."""
_HIDDEN = "***"
_MAPS = frozenset({"env", "envs", "environment", "headers", "http_headers"})
_NAMES = re.compile(r"(?!.*env_var$).*(token|secret|passw|key|credential|auth|pin$)", re.IGNORECASE)
_REFERENCE = re.compile(r"[A-Za-z]* ?(\$\w+|\$\{[^}]*\}|\{(?:env|file):[^}]*\}|\$\{\{[^}]*\}\})")
_HOLDERS = re.compile(r"auth|token|secret|credential", re.IGNORECASE)
_WORD = re.compile(r"[^\s/]+")
_LONG_WORD = re.compile(r"[\w.+~=-]{20,}+")
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[A-Za-z]")
_QUERY = re.compile(r"https?://[^\s/]*@|https?://[^\s?]*\?(.+)")
_LINE_END = re.compile(r"\r\n|\r|\n")
_PIECE = re.compile(r'(?:"(?:[^"\\]|\\.)*+"?|[^",{}\[\]])*+[,{}\[\]]?', re.DOTALL)
_LONG_LINE = 200
_CONTEXT = 3
_MIN_LENGTH = 5
"""A shorter secret is hidden only where it is a whole value; anywhere else it would hide parts of words."""
_ENTRY_STATES = {
    "changed by hand": "its entry starts something else than connect wrote: take it out by hand",
    "renamed": "its entry has another name by now: take it out by hand",
}
HOSTS_BY_NAME = {host.name: host for host in HOSTS}


def hosts_beginning_with(incomplete: str) -> list[CompletionItem]:
    """The completions of the beginning of a host's name."""
    return [CompletionItem(host.name, help=host.title) for host in HOSTS if host.name.startswith(incomplete)]


def meant_hosts(found: str) -> str:
    """The remedy for a word that is the name of no host; all names if it is similar to none."""
    plain = _plain(found)
    names = {host.name: (_plain(host.name), _plain(host.title)) for host in HOSTS}
    meant = [name for name, words in names.items() if plain in words]
    if not meant and len(plain) > 2:
        meant = [name for name, words in names.items() if any(word in plain or plain in word for word in words)]
    if not meant and (nearest := nearest_word(found, names)):
        meant = [nearest]
    if not meant:
        return f"known are {', '.join(names)}"
    quoted = " or ".join(f'"{name}"' for name in meant)
    return f"did you mean {quoted}?"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


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


def file_of(host: DesktopHost, path: str | None, *, project: bool) -> Path:
    """The file to change: a given one, or the first one that exists, or whose folder does, or else the usual one.

    Raises:
        CommandFailed: the host has no file for a project.
    """
    if path is not None:
        return Path(os.path.abspath(path))
    paths = known_paths(host, project=project)
    if not paths:
        raise CommandFailed(f"{host.title} has no file for a project", WRONG)
    there = [each for each in paths if os.path.lexists(each)] or [each for each in paths if each.parent.is_dir()]
    return (there or paths)[0]


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


def cut_names(config: str, names: Sequence[str]) -> list[str]:
    """A sentence for each host that serves this configuration and would cut or drop some of these names of tools."""
    found: list[str] = []
    served = dict.fromkeys(record.host for record in _serving_file(known_records(), config))
    for host in map(HOSTS_BY_NAME.__getitem__, served):
        room = ENTRY_FORMS[host.name].longest_name
        if room is not None and (count := sum(len(name) > room for name in names)):
            limit = f"names: {{limit: {FITTING_NAME}}} in {show_path(Path(os.path.realpath(config)))} makes them fit"
            found.append(f"{host.title} cuts or drops {counted(count, 'name')} of more than {room} characters; {limit}")
    return found


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
        # In the home folder, the file of the project may be that of the user.
        for path in dict.fromkeys((*known_paths(host, project=False), *known_paths(host, project=True))):
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


# The entry of Colonnade


@dataclass(frozen=True)
class Choices:
    """The options of `connect`, and what they name.

    Attributes:
        servers: Those of the configuration `file`.
        served: Those of which no running host waits for a reload.
    """

    file: Path
    config: Config
    document: Document
    servers: OurServers
    served: OurServers
    state: State
    view: str
    by_url: bool
    token: str | None
    write_token: bool
    move: bool


@dataclass
class OwnEntry:
    """The entry, the text in it that nobody may see, and what the person should know."""

    entry: Entry
    secret: str = ""
    notes: list[str] = field(default_factory=list)
    view: str = ""
    """The view that the host gets by it; empty for none."""


def own_entry(host: DesktopHost, choices: Choices, added: Mapping[str, object] = {}) -> OwnEntry:
    """The entry that starts Colonnade, or reaches one that runs by itself. `added` is what a person has added to it.

    Raises:
        CommandFailed: the host takes no URL, or no token without seeing it, or the address is not known, or the token
            does not reach the view.
    """
    form = ENTRY_FORMS[host.name]
    if choices.by_url:
        return _by_url(host, form, choices)
    program, *before = _program()
    view = choices.view
    arguments = [*before, "serve", "--stdio", str(choices.file), *(["--view", view] if view else [])]
    if choices.state.path != state_directory(None, {}):
        arguments += ["--state", str(choices.state.path)]
    made = OwnEntry(form.command(program, arguments), view=own_endpoint(choices.config, view).view)
    names = variables_in(choices.document.root)
    if form.variables is not None:
        made.entry |= form.variables(sorted(names))
    made.notes += _missing(host, with_additions(made.entry, added), names, choices.file)
    if view:
        made.notes.append(
            f"the view {view} is a convenience for {host.title}, which could start Colonnade without it; a boundary is "
            "a view that names the caller of a token, with --url"
        )
    if not _CACHES.isdisjoint(Path(sys.prefix).parts):
        made.notes.append("this Colonnade runs from a cache of uv, which may be emptied; better install it first")
    return made


def notices_after_adding(file: Path, names: AbstractSet[str]) -> list[str]:
    """The notices on connected hosts after a server that needs some variables was added to a configuration."""
    records = known_records()
    if serving := _serving_file(records, file):
        entries = ((HOSTS_BY_NAME[each.host], _written_entry(each)) for each in serving)
        return [note for host, entry in entries for note in _missing(host, entry, names, file)]
    others = {(HOSTS_BY_NAME[each.host].title, show_path(Path(each.config))) for each in records}
    return [f"{title} serves {config}, and not this file; --config names it" for title, config in sorted(others)]


def notices_after_removing(file: Path, name: str, servers: Mapping[str, object]) -> list[str]:
    """The notices on a server that was moved out of files of hosts and is removed from these of the configuration."""
    everything = OurServers(servers, file.parent, os.environ)
    return [
        f"{visible(lost)} was moved out of {show_path(Path(record.file))}, and nothing serves it now: "
        f"{disconnect_command(HOSTS_BY_NAME[record.host], record.project)} puts it back, with all others"
        for record in _serving_file(known_records(), file)
        for lost in not_served(record, everything.without([name]))
        if lost not in not_served(record, everything)
    ]


def _serving_file(records: Iterable[Record], file: Path | str) -> list[Record]:
    """Those of connected hosts that serve a configuration."""
    real = os.path.realpath(file)
    return [record for record in records if os.path.realpath(record.config) == real]


def _missing(host: DesktopHost, entry: Mapping[str, object], names: AbstractSet[str], file: Path) -> list[str]:
    """The notice on variables that a host may not pass on to the program of its entry."""
    form = ENTRY_FORMS[host.name]
    unnamed = names - named_variables(entry)
    missing = ", ".join(sorted(unnamed & form.withheld if form.passes_all_variables else unnamed))
    if not missing or not starts_program(entry):
        return []
    if form.variables is not None and not form.passes_all_variables:
        return [f"{host.title} passes on variables by name, not yet {missing}: colonnade connect {host.name}"]
    does = "does not pass on" if form.passes_all_variables else "passes on few variables, perhaps not"
    return [
        f"{host.title} {does} {missing}: use ${{file:PATH}} or ${{keyring:NAME}} in "
        f"{file.name}, or give them in env of its entry"
    ]


def _written_entry(record: Record) -> Mapping[str, object]:
    """The entry as it is in the file of the host by now, or else as it was written."""
    path = Path(record.file)
    try:
        root = _root(path, read_bytes(path))
    except (OSError, CannotEdit):
        return record.change.entry
    place = own_path(root, record.change.path)
    found = None if place is None else get(root, place)
    return found if isinstance(found, dict) else record.change.entry


def _by_url(host: DesktopHost, form: EntryForm, choices: Choices) -> OwnEntry:
    if form.url is None:
        raise CommandFailed(f"{host.title} takes no URL from a file; connect it without --url", WRONG)
    config, view = choices.config, choices.view
    url, note = _url(config, choices.state)
    name = _token_name(host, config, choices.token) if config.listen.tokens else None
    suffix = suffix_of(view)
    endpoint = addresses_of(config).at(name, suffix)
    if endpoint is None:
        who = "clients without a token do" if name is None else f"the token {name} does"
        raise CommandFailed(f"{who} not reach the view {view} (views, default_view); choose another view", WRONG)
    made = OwnEntry(form.url(f"{url}/{suffix}" if suffix else url), notes=[note] if note else [], view=endpoint.view)
    if name is not None and choices.write_token:
        made.secret = config.listen.tokens[name].reveal()
        made.entry |= form.literal_token(made.secret)
    elif name is not None and not form.reference:
        raise CommandFailed(
            f"{host.title} fills in no references, so its file would hold the token itself: say --write-token to write "
            "it there, or connect without --url",
            WRONG,
        )
    elif name is not None:
        variable = _token_variable(choices.document.root, name)
        made.entry |= form.token(form.reference.replace("NAME", variable))
        where = form.variables_from
        made.notes.append(f"{host.title} needs the variable {variable}, with the token {name}, in {where}")
    return made


def _token_name(host: DesktopHost, config: Config, name: str | None) -> str:
    """The name of the token that a host is to use.

    Raises:
        CommandFailed: it has to be said.
    """
    tokens = config.listen.tokens
    if name is None:
        name = host.name if host.name in tokens else next(iter(tokens)) if len(tokens) == 1 else None
    if name is None or name not in tokens:
        raise CommandFailed(f"say which token {host.title} is to use: --token {' or '.join(tokens)}", WRONG)
    return name


def _token_variable(root: dict[str, Any], name: str) -> str:
    """The variable that holds a token already, or one to set."""
    written = str(root["listen"]["auth"]["tokens"][name])
    found = variables_of(written)
    return found[0] if len(found) == 1 and written == f"${{env:{found[0]}}}" else TOKEN_VARIABLE


def _url(config: Config, state: State) -> tuple[str, str]:
    """The address of the running host of this configuration, or else the configured one, with a note."""
    for host in find_hosts(state.path):
        if host.problem is None and host.config == os.path.realpath(config.source) and host.endpoint:
            return host.endpoint, ""
    address = config.listen.address
    if address.port == 0:
        raise CommandFailed(
            "the port is another one at each start: set listen.address, or start the host before you connect", WRONG
        )
    ip = "127.0.0.1" if ip_address(address.host).is_unspecified else address.host
    shown = f"[{ip}]" if ":" in ip else ip
    return (
        f"{config.listen.scheme}://{shown}:{address.port}{config.listen.path}",
        f"it must run: colonnade serve {config.source}",
    )


def _program() -> list[str]:
    """The command that starts this program, by a path that works in any environment."""
    script = Path(sys.executable).with_name("colonnade")
    found = shutil.which("colonnade")
    if found is not None and os.path.realpath(found) == os.path.realpath(script):
        return [os.path.abspath(found)]
    return [str(script)] if script.exists() else [sys.executable, "-m", "host"]


# The change of a file


@dataclass(frozen=True)
class PreparedEdit:
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


@contextmanager
def failures() -> Iterator[None]:
    """Turn what can go wrong with files into CommandFailed."""
    try:
        yield
    except StateError as problem:
        raise CommandFailed(str(problem), WRONG) from problem
    except (CannotReplace, ConfigError) as problem:
        raise CommandFailed(str(problem)) from problem
    except CannotEdit as problem:
        raise CommandFailed(f"the file cannot be changed: {problem}") from None


@contextmanager
def _editing(host: DesktopHost, file: ForeignFile) -> Iterator[None]:
    """Turn CannotEdit into CommandFailed: for a file that cannot be parsed, with the line."""
    try:
        yield
    except CannotEdit as problem:
        failed = CommandFailed(f"{file.path} cannot be changed: {problem}")
    else:
        return
    started_by(host, file.path, file.data, Path.home(), os.environ)
    raise failed


# Put in


def connected_edit(
    host: DesktopHost, path: Path, project: bool, connections: Connections, choices: Choices
) -> PreparedEdit:
    """The change that connects a file. What an earlier connection changed is undone first, in the same step."""
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
            with _editing(host, file):
                back = given_back(file.path, file.data, former.change, form)
            if back.kept:
                raise CommandFailed(f"{path}: {'; '.join(back.kept)}. Use colonnade disconnect {host.name} first")
            base, added = back.data, back.added
            moved = frozenset(each.name for each in former.change.moved)
    elif file.data is not None:
        with _editing(host, file):
            is_there = has_own_entry(host, file.path, file.data)
        if is_there:
            raise CommandFailed(
                f'{file.path} has "colonnade" already, and {show_path(choices.state.path)} has no record of who wrote '
                "it: take the entry out by hand, then connect again"
            )
    own = own_entry(host, choices, added)
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
    with _editing(host, file):
        after, change = connected(file.path, base, form, entry, moves)
    _refuse_rules(host, file.path, after, own, choices.config)
    # The additions are not ours, so they are told apart the next time too.
    change = replace(change, entry=own.entry)
    if file.data is not None:
        change = replace(change, known=(*change.known, digest(file.data)))
    others = [str(each) for each in known_paths(host, project=project) if each != path and os.path.lexists(each)]
    notes = [*own.notes, *notes, *(f"{host.title} may also read {each}, which is left" for each in others)]
    record = Record(host.name, str(file.path), str(choices.file), change, folders, str(Path.cwd()) if project else "")
    return PreparedEdit(host, file, after, record, notes, own.secret, is_edited=bool(added))


def _refuse_rules(host: DesktopHost, path: Path, data: bytes, own: OwnEntry, config: Config) -> None:
    """Refuse a view with search to a host that has rules for single tools of ours: one call_tool would go around them.

    Raises:
        CommandFailed: it has some.
        ConfigError: its file cannot be parsed.
    """
    spec = config.views.get(own.view)
    if spec is None or spec.search is Search.OFF:
        return
    if restricts_own_entry(host, path, data, Path.home(), os.environ):
        raise CommandFailed(
            f"{host.title} has rules for single tools of colonnade, and the view {own.view} has a search: each tool "
            "can be called through call_tool, past these rules. Write them as consent and take them out of the host's "
            "file, or choose a view without search"
        )


def _keys(added: Mapping[str, object]) -> str:
    return ", ".join(map(clip, added))


def _moves(
    host: DesktopHost, path: Path, data: bytes | None, moved: frozenset[str], own: OwnEntry, choices: Choices
) -> tuple[list[ValuePath], list[str]]:
    """The servers to take out of a file, and what to say about those that stay."""
    moves: list[ValuePath] = []
    config = choices.file.name or CONFIG_NAME
    stay: dict[str, list[str]] = {
        f"past all rules: colonnade connect {host.name} --move": [],
        "which the running Colonnade does not serve yet as the file has it: colonnade reload, then connect again": [],
        f"which is Colonnade with {config} under another name: take it out by hand": [],
        "which colonnade import cannot take over": [],
        f"which is disabled in {config}": [],
        f"which {config} does not have{_import_command(host, path, choices)}": [],
    }
    twice, waiting, itself, unusable, disabled, unknown = stay.values()
    for entry in started_by(host, path, data, Path.home(), os.environ):
        is_ours = choices.servers.has(entry, path)
        if entry.name in moved or (choices.move and choices.served.has(entry, path)):
            moves.append(tuple(part for part in entry.path if part is not None))
        elif is_ours and choices.move:
            waiting.append(entry.name)
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


def _import_command(host: DesktopHost, path: Path, choices: Choices) -> str:
    """The command, after a colon, that takes servers of a host's file over; empty if the configuration is the file of
    another host."""
    if recognize(choices.file, choices.document.root) is not None:
        return ""
    known = [*known_paths(host, project=False), *known_paths(host, project=True)]
    output = "" if choices.file == Path(CONFIG_NAME).absolute() else f" -o {typed_path(choices.file)}"
    return f": colonnade import {host.name if path in known else typed_path(path)}{output}"


def apply_connected(edit: PreparedEdit, connections: Connections) -> None:
    """The record comes first: whatever happens then, it can be undone."""
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


# Taken out


def records_of(host: DesktopHost, project: bool, path: str | None, connections: Connections) -> list[Record]:
    """The records of a host's files, or of its file at a path.

    Raises:
        CommandFailed: there are none. There may be an entry of ours all the same.
    """
    found = [record for record in connections.all() if record.host == host.name]
    here = str(Path.cwd()) if project else ""
    found = [each for each in found if (each.project == here if path is None else each.file == os.path.abspath(path))]
    if found:
        return found
    paths = known_paths(host, project=project) if path is None else [Path(os.path.abspath(path))]
    for each in paths:
        if each.is_file() and (state := unrecorded_state(host, each)).notes:
            raise CommandFailed(f"{host.title} is not connected, but in {each}, {state.notes[0]}")
    raise CommandFailed(f"{host.title} is not connected")


def given_back_edit(host: DesktopHost, record: Record) -> PreparedEdit:
    """The change that takes our entry out of a file again."""
    path = Path(record.file)
    file = open_foreign(path)
    if file.data is None:
        gone = [f"{path} is gone"] if record.change.moved else []
        return PreparedEdit(host, file, None, record, gone, left=gone)
    with _editing(host, file):
        back = given_back(path, file.data, record.change, ENTRY_FORMS[host.name])
    notes = list(back.kept)
    if back.added:
        notes.append(f"what was added to its entry by hand ({_keys(back.added)}) goes with it")
    is_edited = bool(back.added)
    return PreparedEdit(host, file, back.data, record, notes, "", is_edited, back.kept, back.has_entry)


def apply_given_back(edit: PreparedEdit, connections: Connections) -> None:
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


# Shown and carried out


def carry_out(
    hosts: Sequence[DesktopHost],
    prepare: Callable[[DesktopHost], list[PreparedEdit]],
    apply: Callable[[PreparedEdit, Connections], None],
    connections: Connections,
    *,
    dry_run: bool,
    yes: bool,
    last: str = "",
) -> int:
    """Show and write the changes of hosts, each by itself. The problem of a host does not keep the others from being
    changed. `last` is printed behind the changes that were written."""
    edits: list[PreparedEdit] = []
    problems: list[CommandFailed] = []
    for host in hosts:
        try:
            with failures():
                edits += prepare(host)
        except CommandFailed as problem:
            problems.append(problem)
    if problems and not edits:
        raise problems[0]
    asks = not yes and not all(edit.changes_nothing for edit in edits)
    if not dry_run and asks and not sys.stdin.isatty():
        raise CommandFailed("this is no terminal to ask at: say --yes to write, or --dry-run to look", WRONG)
    code, has_written = DONE, False
    for edit in edits:
        _show(edit)
        if dry_run:
            continue
        if not yes and not edit.changes_nothing and not is_confirmed("Write this?"):
            print(f"{edit.file.path} is left as it is")
            code = FAILED
            continue
        try:
            with failures():
                apply(edit, connections)
            has_written = has_written or not edit.changes_nothing
        except CommandFailed as problem:
            problems.append(problem)
    if has_written and last:
        print(last)
    for each in problems:
        print(f"colonnade: {each}", file=sys.stderr)
    return max([code, *(each.exit_code for each in problems)])


def _copy(edit: PreparedEdit, connections: Connections) -> Path | None:
    """Keep the content with an entry that a person edited."""
    if not edit.is_edited or edit.file.data is None:
        return None
    return connections.keep_edited(edit.file.path, edit.file.data)


def _show(edit: PreparedEdit) -> None:
    print(visible(f"{edit.host.title}: {edit.file.path}"))
    before, after = ("" if data is None else data.decode("utf-8-sig") for data in (edit.file.data, edit.after))
    parsed = [values(edit.file.path, text) for text in (before, after)]
    lines = difference(str(edit.file.path), before, after, parsed, edit.secret) or ["(only line ends differ)"]
    for line in ["Nothing is to be done in this file."] if edit.changes_nothing else lines:
        print(line)
    for note in edit.notes:
        print(f"notice: {visible(note)}", file=sys.stderr)


# The difference


class _Secret(NamedTuple):
    """A text to hide. `is_part`: wherever it stands; else only where it is a whole value, or a whole line of one, since
    most values of variables are no secrets."""

    text: str
    is_part: bool = True


def difference(path: str, before: str, after: str, values: list[object], more: str = "") -> list[str]:
    """The lines of a unified difference. `values` are those of both contents, and `more` is another secret.

    Only what changes is looked at, with a few lines around it. Long lines are broken at the signs of JSON, and nothing
    is shown around their changes, which may be anything. What is a secret can only be guessed: values of variables and
    headers, texts under names such as token, arguments that follow such a name, the query of a URL, and long texts of
    letters and digits.
    """
    context = _CONTEXT
    old, new, first = _around_changes(_lines(before), _lines(after), context)
    if any(len(line) > _LONG_LINE for line in (*old, *new)):
        context = 0
        old, new, _ = _around_changes(_broken(old), _broken(new), context)
    lines = list(difflib.unified_diff(old, new, path, path, lineterm="", n=context))
    if not lines:
        return []
    shown = [_moved(line, first) if context else "@@" if line.startswith("@@") else line for line in lines[2:]]
    secrets = [secret for value in values for secret in _secrets(value)]
    text = _masked("\n".join(shown), [*secrets, _Secret(more)])
    cut = (line if len(line) <= _LONG_LINE else f"{line[:_LONG_LINE]}…" for line in (*lines[:2], *text.split("\n")))
    return [visible(line, lines=True) for line in cut]


def _lines(text: str) -> list[str]:
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def _around_changes(old: list[str], new: list[str], context: int) -> tuple[list[str], list[str], int]:
    """The lines from the first change to the last with some around them, and the number left out at the beginning."""
    start = shared_start(old, new)
    end = shared_start(old[start:][::-1], new[start:][::-1])
    first, last = max(start - context, 0), max(end - context, 0)
    return old[first : len(old) - last], new[first : len(new) - last], first


def _broken(lines: list[str]) -> list[str]:
    """The lines, of which long ones are broken behind the signs of JSON."""
    broken: list[str] = []
    for line in lines:
        pieces = (match[0].strip() for match in _PIECE.finditer(line))
        broken += [line] if len(line) <= _LONG_LINE else filter(None, pieces)
    return broken


def _moved(line: str, by: int) -> str:
    """The head of a block with the line numbers of the whole file; any other line as it is."""
    if not line.startswith("@@"):
        return line
    return re.sub(r"(?<=[-+])\d+", lambda match: str(int(match[0]) + by), line)


def _masked(text: str, secrets: Iterable[_Secret]) -> str:
    for secret, is_part in sorted(set(secrets), key=lambda each: len(each.text), reverse=True):
        for written in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]} - {""}:
            if written not in text:
                continue
            if is_part and len(written) >= _MIN_LENGTH:
                text = text.replace(written, _HIDDEN)
            else:
                value = re.escape(written)
                whole = rf"""(?m)(["']){value}\1|(?<=[:=-] ){value}(?=[ \t]*(?:[,}}\]]|$| #))"""
                text = re.sub(whole, lambda match: f"{match[1] or ''}{_HIDDEN}{match[1] or ''}", text)
        # A secret of several lines is one line each in YAML and TOML.
        for line in map(str.strip, secret.splitlines()) if "\n" in secret else ():
            if len(line) >= _MIN_LENGTH:
                whole = rf"""(?m)(^[-+ ]\s*|[:=] *["']{{1,3}})({re.escape(line)})(?=["']{{0,3}},?\s*$)"""
                text = re.sub(whole, lambda match: match[1] + _HIDDEN, text)
    return text


def _secrets(value: object, key: str = "", *, is_secret: bool = False) -> Iterator[_Secret]:
    if isinstance(value, dict):
        is_secret = is_secret or key in _MAPS or _HOLDERS.search(key) is not None
        for name, below in value.items():
            yield from _secrets(below, str(name), is_secret=is_secret)
    elif isinstance(value, list):
        before = ""
        for item in value:
            yield from _secrets(item, before if isinstance(item, str) else key, is_secret=is_secret)
            before = item if isinstance(item, str) and item.startswith("-") and "=" not in item else ""
    elif is_secret or key in _MAPS or _is_secret_name(key):
        text = str(value)
        is_text = isinstance(value, str) or (len(text) >= _MIN_LENGTH - 1 and text.isdecimal())
        if text and is_text and not _REFERENCE.fullmatch(text):
            yield _Secret(text, is_part=_is_secret_name(key))
    elif isinstance(value, str):
        yield from map(_Secret, _parts(value, key))


def _parts(value: str, key: str) -> Iterator[str]:
    """The secrets in a text that is none as a whole."""
    if (query := _QUERY.match(value)) is not None:
        yield query[1] or query[0]
    yield from secrets_in_argument(key, value)
    if not value.startswith(("/", "~", ".")):
        for word in _WORD.findall(value):
            if len(word) >= 20 and _DIGIT.search(word) and _LETTER.search(word):
                yield from _LONG_WORD.findall(word)


def _is_secret_name(name: str) -> bool:
    return _NAMES.search(name) is not None or is_secret_name(name)
