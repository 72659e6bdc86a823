"""Servers of several files made one where they are the same, with ids of their own.

Two servers are the same if they start the same program, or are at the same URL, with the same keys: references are
compared by their values. One that stands in several files gets the stricter consent of all, and is off if it is off in
one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from config.desktop.importing.found import FoundServer, each_text
from config.desktop.importing.inputs import as_configured, input_ids, kept_name, replaced, variable_for
from config.desktop.importing.tool_consent import ToolConsent, stricter
from config.known_servers import as_advised
from config.literal_secrets import Keep, without_secrets
from config.naming import make_id
from config.problems import clip
from config.references import CannotExpandError, Expander

AskInput = Callable[[str], str | None]
"""Asks a person for an input by its id; None if nobody can be asked."""
_FOR_PEOPLE = ("title", "timeout", "timeout_total", "start_timeout")
"""Keys in which two servers may differ and be the same. The first value that there is holds."""


@dataclass
class ImportedServer:
    """A server to write, with the places where it was found, the first one's name leading."""

    id: str
    found: list[FoundServer]
    ours: dict[str, object]
    tools: ToolConsent
    passed: ToolConsent
    is_off: bool
    problems: list[str] = field(default_factory=list)
    reading: frozenset[str] = frozenset()
    """The names of its tools that claim to be read-only."""

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

    def replace_secrets(self, keep: Keep, environ: Mapping[str, str]) -> None:
        """Have its literal secrets kept elsewhere."""
        self.ours = without_secrets(self.ours, self.id, keep, environ)

    def replace_inputs(self, ask: AskInput, keep: Keep) -> None:
        """Have its inputs asked for and kept. Without an answer it cannot be used, and has a variable there."""
        references = {}
        for id in input_ids(self.ours):
            answer = None if self.problems else ask(id)
            if answer is None:
                references[id] = f"${{env:{variable_for(id)}}}"
                self.problems.append(
                    f"its host asks for the input {clip(id)}, for which there is no answer here; set the variable in "
                    "its place, and remove the signs of the comment"
                )
            else:
                references[id] = keep(kept_name(id), answer)
        self.ours = replaced(self.ours, references)


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
                known_server.passed = stricter(known_server.passed, server.passed)
                known_server.is_off = known_server.is_off or server.is_off
                for key in _FOR_PEOPLE:
                    if key in server.ours:
                        known_server.ours.setdefault(key, server.ours[key])
                return
        id = self._free_id(server)
        self._ids.add(id)
        self.servers.append(
            ImportedServer(
                id, [server], dict(server.ours), server.tools, server.passed, server.is_off, list(server.problems)
            )
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
        ignored = () if one.depends_on_folder or other.depends_on_folder else ("cwd",)
        return _are_equal(self._launch(one.ours), self._launch(other.ours), ignored)

    def _is(self, server: FoundServer, taken: Mapping[str, object]) -> bool:
        mine, theirs = as_configured(server.ours, taken), self._launch(taken)
        ignored = {"trust", "consent", "limits"} - mine.keys()  # written at the import, or by the person since
        if not server.depends_on_folder:
            ignored.add("cwd")
        return any(_are_equal(self._launch(each), theirs, ignored) for each in (mine, *as_advised(mine)))

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


def _are_equal(one: Mapping[str, object], other: Mapping[str, object], ignored: Collection[str]) -> bool:
    return all(one.get(key) == other.get(key) for key in {*one, *other}.difference(ignored))
