"""Colonnade's own entry for a desktop host: the command, or the URL with a reference to a token.

A token is written into a host's file only if the person says so.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from config import Config
from config.document import Document
from config.edit import CannotEdit, get, values
from config.hosts import HOSTS, DesktopHost
from config.hosts.connecting import own_path
from config.hosts.entry_form import (
    ENTRY_FORMS,
    Entry,
    EntryForm,
    named_variables,
    starts_program,
    with_additions,
)
from config.read import read_bytes
from config.references import variables_in, variables_of
from host.cli.admin_client import find_hosts
from host.cli.common import show_path
from host.cli.exit_codes import WRONG, CommandFailed
from host.storage.connections import Record
from host.storage.directory import State, state_directory

TOKEN_VARIABLE = "COLONNADE_TOKEN"
"""The variable that a host's file names if the configuration takes the token from somewhere else."""
_CACHES = frozenset({"archive-v0", "environments-v2"})
"""Folders of uv for programs that were not installed."""


@dataclass
class OwnEntry:
    """The entry, the text in it that nobody may see, and what the person should know."""

    entry: Entry
    secret: str = ""
    notes: list[str] = field(default_factory=list)


def by_command(
    host: DesktopHost, document: Document, file: Path, state: State, added: Mapping[str, object] = {}
) -> OwnEntry:
    """The entry that starts Colonnade with a configuration file. `added` is what a person has added to it."""
    program, *before = _program()
    arguments = [*before, "serve", "--stdio", str(file)]
    if state.path != state_directory(None, {}):
        arguments += ["--state", str(state.path)]
    form = ENTRY_FORMS[host.name]
    made = OwnEntry(form.command(program, arguments))
    names = variables_in(document.root)
    if form.variables is not None:
        made.entry |= form.variables(sorted(names))
    made.notes += _missing(host, with_additions(made.entry, added), names, file)
    if not _CACHES.isdisjoint(Path(sys.prefix).parts):
        made.notes.append("this Colonnade runs from a cache of uv, which may be emptied; better install it first")
    return made


def notices_after_adding(records: Sequence[Record], file: Path, names: AbstractSet[str]) -> list[str]:
    """The notices on connected hosts after a server that needs some variables was added to a configuration."""
    hosts = {host.name: host for host in HOSTS}
    serving = [record for record in records if os.path.realpath(record.config) == os.path.realpath(file)]
    notices = [note for each in serving for note in _missing(hosts[each.host], _written_entry(each), names, file)]
    if not serving:
        others = {(hosts[each.host].title, show_path(Path(each.config))) for each in records}
        notices += [
            f"{title} serves {config}, and not this file; --config names it" for title, config in sorted(others)
        ]
    return notices


def _missing(host: DesktopHost, entry: Mapping[str, object], names: AbstractSet[str], file: Path) -> list[str]:
    """The notice on variables that a host may not pass on to the program of its entry."""
    form = ENTRY_FORMS[host.name]
    missing = ", ".join(sorted(names - named_variables(entry)))
    if not missing or form.passes_all_variables or not starts_program(entry):
        return []
    if form.variables is not None:
        return [f"{host.title} passes on variables by name, not yet {missing}: colonnade connect {host.name}"]
    return [
        f"{host.title} passes on few variables, perhaps not {missing}: use ${{file:PATH}} or ${{keyring:NAME}} in "
        f"{file.name}, or give them in env of its entry"
    ]


def _written_entry(record: Record) -> Mapping[str, object]:
    """The entry as it is in the file of the host by now, or else as it was written."""
    path = Path(record.file)
    try:
        root = values(path, read_bytes(path).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, CannotEdit):
        return record.change.entry
    place = own_path(root, record.change.path)
    found = None if place is None else get(root, place)
    return found if isinstance(found, dict) else record.change.entry


def by_url(
    host: DesktopHost, config: Config, document: Document, state: State, token: str | None, *, write_token: bool
) -> OwnEntry:
    """The entry that reaches a Colonnade that runs by itself.

    Raises:
        CommandFailed: the host takes no URL, or no token without seeing it, or the address is not known.
    """
    form = ENTRY_FORMS[host.name]
    if form.url is None:
        raise CommandFailed(f"{host.title} takes no URL from a file; connect it without --url", WRONG)
    url, note = _url(config, state)
    made = OwnEntry(form.url(url), notes=[note] if note else [])
    if config.listen.tokens:
        _add_token(made, host, form, config, document, token, write_token=write_token)
    return made


def _add_token(
    made: OwnEntry,
    host: DesktopHost,
    form: EntryForm,
    config: Config,
    document: Document,
    name: str | None,
    *,
    write_token: bool,
) -> None:
    tokens = config.listen.tokens
    if name is None:
        name = host.name if host.name in tokens else next(iter(tokens)) if len(tokens) == 1 else None
    if name is None or name not in tokens:
        raise CommandFailed(f"say which token {host.title} is to use: --token {' or '.join(tokens)}", WRONG)
    if write_token:
        made.secret = tokens[name].reveal()
        made.entry |= form.literal_token(made.secret)
        return
    if not form.reference:
        raise CommandFailed(
            f"{host.title} fills in no references, so its file would hold the token itself: say --write-token to write "
            "it there, or connect without --url",
            WRONG,
        )
    variable = _token_variable(document.root, name)
    made.entry |= form.token(form.reference.replace("NAME", variable))
    where = form.variables_from
    made.notes.append(f"{host.title} needs the variable {variable}, with the token {name}, in {where}")


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
