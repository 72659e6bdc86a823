"""A desktop host's file rewritten as ours, server by server.

Every server becomes either a server in our form, which is then validated like any other, or a server that cannot be
used, with the reasons. No value is quoted, and nothing of the file is written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from config.document import Document, kind_of
from config.hosts.desktop_host import DesktopHost, FileContext
from config.hosts.entry import CannotUse, ServerEntry
from config.naming import make_id
from config.problems import KeyPath, clip

OWN_TOP_KEYS = frozenset({"listen", "start_grace", "watch", "ask", "console", "audit", "memory"})
"""Keys of ours that may stand beside the servers in a file at a place of no host."""

MAX_SERVERS = 1000
"""More could not be served: a configuration of ours has 1 MiB at most."""

_BEGINS_WITH_VOWEL = re.compile("[AEIOaeio]|LM")


class DesktopFile:
    """The servers of a host's file. `root` is the file in our form, with those servers that can be used so far."""

    def __init__(
        self,
        host: DesktopHost,
        file: Path,
        document: Document,
        home: Path,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.host = host
        project, self._base = host.place_of(file, home, environ)
        context = FileContext(file, document, home, environ, project)
        self.inputs = context.inputs
        self.seen: Mapping[Path, str] = context.seen
        """The other files that were looked at, each with its state before that."""
        self.entries: dict[str, ServerEntry] = {}
        """By id, in the order of the file."""
        self._read_servers(context)
        self._restrict(context)
        for entry in self.entries.values():
            if entry.base != file.parent:
                entry.start_in_base()
            entry.finish()
        self.notices = [
            f"read as {'an' if _BEGINS_WITH_VOWEL.match(host.title) else 'a'} {host.title} file",
            *([] if self.entries or host.servers[0] in document.root else [f"it has no {'.'.join(host.servers)}"]),
            *context.notices,
            *self._unapproved(),
            *self._renamed(),
            *self._notes(),
        ]

    @property
    def root(self) -> dict[str, object]:
        servers = {id: entry.served for id, entry in self.entries.items() if not entry.problems}
        return {**self._own_keys, "servers": servers}

    @property
    def digest(self) -> str:
        """A digest of all that counts here. Hosts write other things into the same files, and often."""
        problems = [(entry.id, entry.problems, entry.is_off) for entry in self.entries.values()]
        return hashlib.sha256(repr((self.root, problems)).encode()).hexdigest()

    def written(self, path: KeyPath) -> KeyPath:
        """The place in the file of a place in our form."""
        if path[:1] != ("servers",) or len(path) == 1:
            return path
        entry = self.entries[str(path[1])]
        if len(path) == 2:
            return entry.path
        return (*entry.written.get(str(path[2]), (*entry.path, path[2])), *path[3:])

    def _read_servers(self, context: FileContext) -> None:
        self._own_keys = {
            name: value for name, value in context.root.items() if self.host.has_own_keys and name in OWN_TOP_KEYS
        }
        for path, name, value in self.host.found_in(context):
            if len(self.entries) == MAX_SERVERS:
                raise context.document.fatal(
                    context.document.places[path].value,
                    f"there are more than {MAX_SERVERS} servers; take out those that nobody uses",
                )
            id, problem = self._id_of(name)
            translate = partial(_translate, self.host, context)
            values = value if isinstance(value, dict) else {}
            entry = ServerEntry(name, id, path, values, translate, self._base, seen=context.seen)
            if problem:
                entry.stop(problem)
            if isinstance(value, dict):
                entry.apply(dict(self.host.rules))
            else:
                entry.stop(f"it is {kind_of(value)}; expected a map")
            self.entries[id] = entry

    def _id_of(self, name: str) -> tuple[str, str]:
        """A free id for the name, and the reason why it is not the usual one."""
        id = make_id(name)
        if id and id not in self.entries:
            return id, ""
        stand_in = make_id(f"{id or 'server'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}")
        if not id:
            return stand_in, "its name holds no letter or digit to make an id of; rename it"
        first = self.entries[id].name
        return stand_in, f'"{clip(first)}" and "{clip(name)}" would both be served as {id}; rename one'

    def _restrict(self, context: FileContext) -> None:
        by_name: Mapping[str, ServerEntry] = {entry.name: entry for entry in self.entries.values()}
        try:
            self.host.restrict(context, by_name)
        except CannotUse as problem:
            # A restriction that is not understood could be about any of them.
            for entry in self.entries.values():
                entry.stop(str(problem))

    def _unapproved(self) -> list[str]:
        found = [clip(entry.name) for entry in self.entries.values() if entry.needs_approval and not entry.is_off]
        if not found:
            return []
        return [
            f"no file says that {self.host.title} may start {', '.join(found)} of this project; a file that is served "
            "itself starts them, and import switches them off"
        ]

    def _notes(self) -> list[str]:
        return [f"{clip(entry.name)}: {note}" for entry in self.entries.values() for note in entry.notes]

    def _renamed(self) -> list[str]:
        return [
            f"{clip(entry.name)} is served as {entry.id}"
            for entry in self.entries.values()
            if entry.id != entry.name and not entry.problems
        ]


def _translate(host: DesktopHost, context: FileContext, text: str) -> str:
    return host.translate(text, context)
