"""Servers of several files made one where they are the same, with ids of their own.

Two servers are the same if they start the same program, or are at the same URL, with the same keys: references are
compared by their values. One that stands in several files gets the stricter consent of all, and is off if it is off in
one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from config.importing.found import FoundServer, each_text
from config.importing.inputs import as_configured
from config.importing.tool_consent import ToolConsent, stricter
from config.naming import make_id
from config.references import CannotExpandError, Expander

_FOR_PEOPLE = ("title", "timeout", "start_timeout")
"""Keys in which two servers may differ and be the same. The first value that there is holds."""


@dataclass
class ImportedServer:
    """A server to write, with the places where it was found, the first one's name leading."""

    id: str
    found: list[FoundServer]
    ours: dict[str, object]
    tools: ToolConsent
    is_off: bool
    problems: list[str] = field(default_factory=list)

    @property
    def host_remarks(self) -> list[str]:
        """The remarks that hold for other servers of its hosts too."""
        return list(dict.fromkeys(remark for each in self.found for remark in each.host_remarks))

    @property
    def remarks(self) -> list[str]:
        """The remarks for the person, each sentence once."""
        sentences = [remark for each in self.found for remark in each.remarks]
        if len(self.found) > 1 and len({each.is_off for each in self.found}) > 1:
            sentences.append("It is off here, since it is off in one of them.")
        if any(each.tools != self.tools for each in self.found):
            sentences.append("The restrictions of all of them hold.")
        return list(dict.fromkeys(sentences))


class Merge:
    """Collects servers, and gives each its id. `taken` are the servers of a configuration that is there already, by id
    and as its file has them."""

    def __init__(self, expander: Expander, taken: Mapping[str, object] = {}) -> None:
        self.servers: list[ImportedServer] = []
        self.present: list[tuple[FoundServer, str]] = []
        """Servers that are in the configuration already, with their ids there."""
        self._expander = expander
        self._ids = set(taken)
        self._taken = {id: value for id, value in taken.items() if isinstance(value, dict)}

    def add(self, servers: Iterable[FoundServer]) -> None:
        for server in servers:
            self._add(server)

    def _add(self, server: FoundServer) -> None:
        if not server.problems:
            if known := next((id for id, taken in self._taken.items() if self._is(server, taken)), ""):
                self.present.append((server, known))
                return
            same = (each for each in self.servers if not each.problems and self._is_same(each.found[0], server))
            if (known_server := next(same, None)) is not None:
                known_server.found.append(server)
                known_server.tools = stricter(known_server.tools, server.tools)
                known_server.is_off = known_server.is_off or server.is_off
                for key in _FOR_PEOPLE:
                    if key in server.ours:
                        known_server.ours.setdefault(key, server.ours[key])
                return
        id = self._free_id(server)
        self._ids.add(id)
        self.servers.append(
            ImportedServer(id, [server], dict(server.ours), server.tools, server.is_off, list(server.problems))
        )

    def _free_id(self, server: FoundServer) -> str:
        """The id of a server, or one with the name of its host, or with a number."""
        candidates = [server.id, make_id(f"{server.id}-{server.host.name}")]
        number = 2
        while (id := candidates.pop(0)) in self._ids:
            candidates.append(make_id(f"{server.id}-{number}"))
            number += 1
        return id

    def _is_same(self, one: FoundServer, other: FoundServer) -> bool:
        launches = self._launch(one.ours), self._launch(other.ours)
        return _are_equal(*launches, with_folder=one.depends_on_folder or other.depends_on_folder)

    def _is(self, server: FoundServer, taken: Mapping[str, object]) -> bool:
        launches = self._launch(as_configured(server.ours, taken)), self._launch(taken)
        return _are_equal(*launches, with_folder=server.depends_on_folder)

    def _launch(self, ours: Mapping[str, object]) -> dict[str, object]:
        """The keys of a server with its references filled in, without those for people and the consent for tools."""
        keys = {key: each_text(value, self._filled) for key, value in ours.items() if key not in _FOR_PEOPLE}
        keys.pop("disabled", None)
        consent = keys.pop("consent", None)
        if isinstance(consent, dict):
            keys["consent"] = {kind: rules for kind, rules in consent.items() if kind != "tools"}
        command, args = keys.pop("command", None), keys.pop("args", [])
        if command is not None and isinstance(args, list):
            keys["command"] = [*(command if isinstance(command, list) else [command]), *args]
            keys["cwd"] = str(self._expander.folder / str(keys.get("cwd", "")))
        return {key: value for key, value in keys.items() if value != {}}

    def _filled(self, text: str) -> str:
        try:
            return self._expander.expand(text).text
        except CannotExpandError:
            return text


def _are_equal(one: Mapping[str, object], other: Mapping[str, object], *, with_folder: bool) -> bool:
    return all(one.get(key) == other.get(key) for key in {*one, *other} if with_folder or key != "cwd")
