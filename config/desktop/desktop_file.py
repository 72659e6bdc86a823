"""A desktop host's file rewritten as ours, server by server.

Every server becomes either a server in our form, which is then validated like any other, or a server that cannot be
used, with the reasons. No value is quoted, and nothing of the file is written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from config.defaults import has_defaults
from config.desktop.commands import problem_of_command, program_exists, windows_paths
from config.desktop.desktop_host import DesktopHost, FileContext
from config.desktop.entry import REMOTE_TYPES, CannotUse, Rule, ServerEntry, harmless, kind, listed_tools
from config.document import Document, is_null, kind_of
from config.naming import make_id
from config.own_form import URL_KEYS
from config.problems import KeyPath, Mark, clip
from config.references import CannotExpandError, Expander

OWN_TOP_KEYS = frozenset(
    {
        *("listen", "start_grace", "watch", "daemon", "drain", "ask", "console", "audit", "memory", "capacity"),
        *("history", "fleet", "metrics", "traces"),
        *("callers", "views", "default_view"),
    }
)
"""Keys of ours that may stand beside the servers in a file at a place of no host."""

MAX_SERVERS = 1000
"""More could not be served: a configuration of ours has 1 MiB at most."""

_OTHER_KEYS = ("mcpServers", "servers", "mcp", "mcp_servers", "context_servers")
_kind = kind(local=("stdio", "local"), remote=(*REMOTE_TYPES, "remote"))
_SHARED: dict[str, Rule] = {"tools": listed_tools, "transportType": _kind, "description": harmless}
"""Keys that other hosts have, and that people copy from one file to the next: each restricts, or says nothing."""
IMPORT = "do not serve this file itself, but import it (colonnade import FILE)"
"""The end of the problem of a server with a setting that is not carried out here."""
_BEGINS_WITH_VOWEL = re.compile("[AEIOaeio]|LM")


class DesktopFile:
    """The servers of a host's file. `root` is the file in our form, with those servers that can be used so far.

    A server is stopped by a setting of its host that is not carried out here, unless it is imported."""

    def __init__(
        self,
        host: DesktopHost,
        file: Path,
        document: Document,
        home: Path,
        environ: Mapping[str, str] = MappingProxyType({}),
        *,
        imports: bool = False,
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
            self._weigh_detected(entry, imports=imports)
            self._check_command(entry, environ)
            if entry.base != file.parent:
                entry.start_in_base()
            entry.finish()
        self.notices = [
            f"read as {'an' if _BEGINS_WITH_VOWEL.match(host.title) else 'a'} {host.title} file",
            *([] if self.entries or host.servers[0] in document.root else [self._nothing(document)]),
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
    def unapproved(self) -> frozenset[str]:
        """The ids of servers of a project that no file says that the host may start."""
        return frozenset(id for id, entry in self.entries.items() if entry.needs_approval)

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
        if self.host.has_own_keys and has_defaults(context.root):
            raise context.document.fatal(
                context.document.places["defaults",].key or Mark(1, 1),
                "defaults are for servers under the key servers, where no other key makes rules; write consent, trust, "
                "limits and start for each server",
            )

        def translate(text: str) -> str:
            return self.host.translate(text, context)

        for path, name, value in self.host.found_in(context):
            if len(self.entries) == MAX_SERVERS:
                raise context.document.fatal(
                    context.document.places[path].value,
                    f"there are more than {MAX_SERVERS} servers; take out those that nobody uses",
                )
            id, problem = self._id_of(name)
            values = _without_empty(value) if isinstance(value, dict) else {}
            entry = ServerEntry(name, id, path, values, translate, self._base, seen=context.seen)
            if problem:
                entry.stop(problem)
            if isinstance(value, dict):
                entry.apply({**_SHARED, **self.host.rules})
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
        by_name: dict[str, ServerEntry] = {}
        for entry in self.entries.values():
            by_name.setdefault(entry.name, entry)  # of two in a list, the first one is served, and the other is stopped
        try:
            self.host.restrict(context, by_name)
        except CannotUse as problem:
            # A restriction that is not understood could be about any of them.
            for stopped in self.entries.values():
                stopped.stop(str(problem))

    def _weigh_detected(self, entry: ServerEntry, *, imports: bool) -> None:
        """Stop a server whose host has settings that are not carried out here. An import asks about all of its calls,
        or has it disabled (`FoundServer.is_off`)."""
        for setting, may_forbid in entry.detected.items():
            if not imports:
                entry.stop(f"{setting} could restrict its calls, and has no effect here; {IMPORT}")
            elif may_forbid:
                entry.note(f"it is disabled, since {setting} could forbid its calls; remove that line if it does not")
            else:
                entry.note(f"all its calls are confirmed, since {setting} asks about some")
        if imports and entry.detected:
            entry.ask()
            entry.approved, entry.approves_all = [], False

    def _check_command(self, entry: ServerEntry, environ: Mapping[str, str]) -> None:
        """Stop a server whose command cannot be started here, and note what a program would not find."""
        if entry.is_off or not (words := entry.words):
            return
        expander = Expander(environ, entry.base)

        def exists(program: str) -> bool:
            try:
                return program_exists(expander.expand(program).text, entry.base, environ.get("PATH"))
            except CannotExpandError:
                return True  # it is an error of the server

        if problem := problem_of_command(words[0], words[1:], exists):
            entry.stop(problem)
        if windows_paths(words[1:]):
            entry.note("an argument of it is a path of Windows, which this machine does not have")

    def _nothing(self, document: Document) -> str:
        """That there are no servers, and the key under which they stand for others."""
        other = next((key for key in _OTHER_KEYS if key in document.root), "")
        instead = f"; {self.host.title} reads none under {other}" if other else ""
        return f"it has no {'.'.join(self.host.servers)}{instead}"

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


def _without_empty(server: dict[str, object]) -> dict[str, object]:
    """The keys of a server without empty ones that belong to a server of the other kind. Forms of hosts write all."""
    filled = {key for key, value in server.items() if value and not is_null(value)}
    kinds = ((("command", "cmd"), ("args", "env")), (URL_KEYS, ("headers",)))
    others = [(*keys, *more) for keys, more in kinds if filled.isdisjoint(keys)]
    if len(others) != 1:
        return server
    return {key: value for key, value in server.items() if key in filled or key not in others[0]}
