"""The output of `list`: servers with what they offer, show, deny and hold, and the entries that clients see."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from msgspec import Raw

from host.cli.common import counted
from host.cli.exit_codes import CommandFailed
from host.cli.status import describe_connection
from host.cli.suggest import did_you_mean
from host.cli.terminal import Terminal, printable
from host.jsonrpc.raw import members, value
from host.names import inward_uri, split_name
from host.protocol.methods import LIST_METHODS, Kind
from host.sanitize import visible
from host.upstream.supervisor import describe_counts

BYTES_PER_TOKEN = 4
"""A rule of thumb for JSON with English words."""
MAX_LOG_LINES = 20
"""Lines of standard error that are shown of a server that is not connected."""
_NAME_COLUMN = 54
_EXPRESSION = re.compile(r"\{[+#./;?&]?([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class OwnersView:
    """A host as only its owner sees it: rows of the admin API, and the last lines that servers which failed or are
    starting wrote to their standard error."""

    servers: Sequence[Mapping[str, Any]] = ()
    catalog: Sequence[Mapping[str, Any]] = ()
    logs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def hidden(self) -> list[Mapping[str, Any]]:
        """The rows of the catalog that clients do not see."""
        return [row for row in self.catalog if not row["shown"]]


@dataclass(frozen=True, slots=True)
class Listing:
    """The contents of a list.

    Args:
        entries: the definitions that the endpoint shows, as it sends them.
        servers: rows of `/status`; None if the endpoint is no Colonnade.
        owner: None if the host is not one of this user's.
    """

    entries: Mapping[Kind, Sequence[Raw]]
    servers: Sequence[Mapping[str, Any]] | None
    owner: OwnersView | None

    def of_server(self, id: str) -> Listing:
        """The part of one server.

        Raises:
            CommandFailed: there is no such server.
        """
        if self.servers is None:
            raise CommandFailed("this endpoint is no Colonnade, so it has no servers to choose from")
        ids = [str(row["id"]) for row in self.servers]
        if id not in ids:
            remedy = did_you_mean(id, ids) or f"its servers are {', '.join(ids)}"
            raise CommandFailed(f"there is no server {visible(id)!r}; {remedy}")
        owners = _Owners(self)
        entries = {kind: [raw for raw in raws if owners.of(kind, raw) == id] for kind, raws in self.entries.items()}
        owner = self.owner and OwnersView(
            [row for row in self.owner.servers if row["id"] == id],
            [row for row in self.owner.catalog if row["server"] == id],
            self.owner.logs,
        )
        return Listing(entries, [row for row in self.servers if row["id"] == id], owner)


class _Owners:
    """The servers that entries belong to."""

    def __init__(self, listing: Listing) -> None:
        self._ids = [str(row["id"]) for row in listing.servers or ()]
        rows = listing.owner.catalog if listing.owner is not None else ()
        self._by_outward = {(row["kind"], row["outward"]): str(row["server"]) for row in rows if row["shown"]}

    def of(self, kind: Kind, raw: Raw) -> str | None:
        """The server of an entry; None if its name does not tell."""
        if len(self._ids) == 1:
            return self._ids[0]
        name = name_of(kind, raw)
        if (kind.value, visible(name)) in self._by_outward:
            return self._by_outward[kind.value, visible(name)]
        if kind in (Kind.TOOL, Kind.PROMPT):
            return split_name(name)[0]
        found = inward_uri(name, self._ids)
        return None if found is None else found[0]


@dataclass(slots=True)
class Counts:
    """How many entries of a server are shown, denied by rules, and held; the bytes of the definitions that are shown.
    `denied` and `held` are None if only the owner of the host could know them."""

    shown: int = 0
    size: int = 0
    denied: int | None = None
    held: int | None = None

    @property
    def tokens(self) -> int:
        return tokens_of(self.size)


def tokens_of(size: int) -> int:
    """Estimate the tokens of so many bytes."""
    return -(-size // BYTES_PER_TOKEN)


def count_entries(listing: Listing) -> dict[str, Counts]:
    """The counts of each server."""
    owners = _Owners(listing)
    counts = {str(row["id"]): Counts() for row in listing.servers or ()}
    for kind, raws in listing.entries.items():
        for raw in raws:
            of_server = counts.get(owners.of(kind, raw) or "")
            if of_server is not None:
                of_server.shown += 1
                of_server.size += len(raw)
    if listing.owner is not None:
        hidden = Counter((str(row["server"]), row["verdict"] == "deny") for row in listing.owner.hidden())
        for id, of_server in counts.items():
            of_server.denied, of_server.held = hidden[id, True], hidden[id, False]
    return counts


def why_hidden(row: Mapping[str, Any]) -> str:
    """Why clients do not see an entry, from its row of the catalog."""
    if row["verdict"] == "deny":
        return f"denied by {row['rule']}"
    standings = {"new": "held: never approved", "changed": "held: changed since it was approved"}
    return standings.get(row["standing"], f"held: {row['standing']}")


def notes(servers: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Sentences for the owner, each with the id of a server, that rows of servers of the admin API give reason for."""
    found: list[tuple[str, str]] = []
    for server in servers:
        id = str(server["id"])
        if held := server["held"]:
            wait = "definition waits" if held == 1 else "definitions wait"
            found.append((id, f"{held} {wait} for approval (colonnade definitions)"))
        found += [(id, f"the rule {rule} matches nothing that it offers") for rule in server["unmatched"]]
        found += [(id, f"{each} is left out: clients could not read it") for each in server.get("left_out", ())]
        found += [(id, text) for text in (*server.get("list_problems", ()), *server["warnings"])]
    return found


# As JSON


def as_json(listing: Listing) -> dict[str, Any]:
    """The listing as one object: `servers`, the definitions of each kind, and `hidden` entries with the reason."""
    told: dict[str, Any] = {"servers": None}
    if listing.servers is not None:
        counts = count_entries(listing)
        told["servers"] = [_server_as_json(row, counts[str(row["id"])], listing.owner) for row in listing.servers]
    for kind, raws in listing.entries.items():
        told[LIST_METHODS[kind].member] = [json.loads(bytes(raw)) for raw in raws]
    if listing.owner is not None:
        told["hidden"] = [
            {"server": row["server"], "kind": row["kind"], "name": row["name"], "why": why_hidden(row)}
            for row in listing.owner.hidden()
        ]
    return told


def _server_as_json(row: Mapping[str, Any], counts: Counts, owner: OwnersView | None) -> dict[str, Any]:
    numbers = {"shown": counts.shown, "denied": counts.denied, "held": counts.held, "tokens": counts.tokens}
    told = {**row, **numbers}
    if owner is not None:
        told["notes"] = [text for id, text in notes(owner.servers) if id == row["id"]]
        told["log"] = list(owner.logs.get(str(row["id"]), ()))
    return told


# As text


def show(terminal: Terminal, listing: Listing, *, in_full: bool) -> None:
    """Print the listing. `in_full`: with whole descriptions, arguments, and the entries that clients do not see."""
    if listing.servers is not None:
        counts = count_entries(listing)
        for row in listing.servers:
            _show_server(terminal, row, counts[str(row["id"])])
            if in_full and listing.owner is not None:
                _show_log(terminal, listing.owner.logs.get(str(row["id"]), ()))
        for id, text in notes(listing.owner.servers) if listing.owner is not None else ():
            print(terminal.paragraph(f"{id:<20} {terminal.faint('note:')} ", printable(text), indent=21))
    print(terminal.paragraph("", _total(listing), indent=0, faint=True))
    if any(listing.entries.values()):
        print()
    for kind, raws in listing.entries.items():
        for raw in raws:
            _show_in_full(terminal, kind, raw) if in_full else _show_entry(terminal, kind, raw)
    if in_full and listing.owner is not None:
        _show_hidden(terminal, listing.owner.hidden())


def _show_server(terminal: Terminal, row: Mapping[str, Any], counts: Counts) -> None:
    offered = row["entries"]
    total = sum(offered.values())
    details = describe_connection(row)
    if row["state"] == "ready" or total:
        details.append(describe_counts((kind, offered.get(each.member, 0)) for kind, each in LIST_METHODS.items()))
    if total:
        parts = {"shown": counts.shown, "denied": counts.denied or 0, "held": counts.held or 0}
        parts["left out"] = total - sum(parts.values()) if counts.denied is not None else 0
        said = ", ".join(f"{count} {what}" for what, count in parts.items() if count > 0 or what == "shown")
        details += ["all shown" if counts.shown == total else said, f"~{counts.tokens:,} tokens"]
    before = f"{row['id']!s:<20} {terminal.state(row['state'])} {row['transport']!s:<6} "
    print(terminal.paragraph(before, "; ".join(details), indent=21))


def _show_log(terminal: Terminal, lines: Sequence[Mapping[str, Any]]) -> None:
    for line, equal in groupby(str(each["line"]) for each in lines):
        times = sum(1 for _ in equal)
        text = printable(line) + (f" ({times} times)" if times > 1 else "")
        print(terminal.paragraph("  | ", text, indent=4, faint=True))


def _total(listing: Listing) -> str:
    count = sum(map(len, listing.entries.values()))
    size = sum(len(raw) for raws in listing.entries.values() for raw in raws)
    shown = "1 entry is" if count == 1 else f"{count:,} entries are"
    if not count:
        return "No entries are shown."
    costs = "its definition costs" if count == 1 else "their definitions cost"
    return f"{shown} shown; {costs} some {counted(tokens_of(size), 'token')} (bytes / {BYTES_PER_TOKEN})."


def _show_entry(terminal: Terminal, kind: Kind, raw: Raw) -> None:
    first, *more = _description(members(raw)).strip().splitlines() or [""]
    text = printable(first.strip()) + (" …" if any(line.strip() for line in more) else "")
    before = f"{kind.value:<9} {printable(name_of(kind, raw)):<{_NAME_COLUMN - 11}} "
    print(terminal.paragraph(before, text, indent=_NAME_COLUMN, faint=True))


def _show_in_full(terminal: Terminal, kind: Kind, raw: Raw) -> None:
    definition = members(raw)
    print(f"{kind.value} {printable(name_of(kind, raw))}")
    for line in _description(definition).strip().splitlines():
        print(terminal.paragraph("  ", printable(line.strip()), indent=2))
    arguments = list(arguments_of(kind, json.loads(bytes(raw))))
    longest = max((len(each.name) for each in arguments), default=0)
    for each in arguments:
        name, shape = printable(each.name), printable(f"{each.type}{', required' if each.required else ''}")
        print(terminal.paragraph(f"    {name:<{min(longest, 24)}}  {shape}", "", indent=0))
        for line in each.description.strip().splitlines():
            print(terminal.paragraph("        ", printable(line.strip()), indent=8, faint=True))
    print()


def _show_hidden(terminal: Terminal, rows: Collection[Mapping[str, Any]]) -> None:
    if rows:
        print("Clients do not see:")
    for row in rows:
        print(terminal.paragraph(f"  {row['kind']:<9} {row['name']}  ", why_hidden(row), indent=12, faint=True))


# Definitions


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a tool or prompt, or a variable of a template."""

    name: str
    type: str
    required: bool
    description: str


def name_of(kind: Kind, raw: Raw) -> str:
    """The name or URI by which an entry is used."""
    return str(value(members(raw)[LIST_METHODS[kind].key]))


def arguments_of(kind: Kind, definition: Mapping[str, Any]) -> Iterator[Argument]:
    """The arguments of a request for the entry. Parts of a schema that cannot be read are left out."""
    if kind is Kind.TOOL:
        yield from _properties(definition.get("inputSchema"))
    elif kind is Kind.PROMPT:
        given = definition.get("arguments")
        for each in given if isinstance(given, list) else ():
            if isinstance(each, dict):
                description = str(each.get("description") or "")
                yield Argument(str(each.get("name", "")), "string", each.get("required") is True, description)
    elif kind is Kind.TEMPLATE:
        for expression in _EXPRESSION.findall(str(definition.get("uriTemplate", ""))):
            for name in expression.split(","):
                yield Argument(re.sub(r"(\*|:\d+)$", "", name), "string", False, "")


def _properties(schema: object) -> Iterator[Argument]:
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return
    required = schema.get("required")
    for name, each in schema["properties"].items():
        described = each if isinstance(each, dict) else {}
        description = str(described.get("description") or "")
        if "default" in described:
            description = f"{description} (default: {json.dumps(described['default'], ensure_ascii=False)})".strip()
        yield Argument(name, type_of(each), isinstance(required, list) and name in required, description)


def type_of(schema: object) -> str:
    """The type of a value in words, as far as its JSON Schema says it directly."""
    match schema:
        case {"const": value}:
            return json.dumps(value, ensure_ascii=False)
        case {"enum": list(values)}:
            return " or ".join(json.dumps(each, ensure_ascii=False) for each in values)
        case {"type": "array", "items": dict(items)}:
            return f"array of {type_of(items)}"
        case {"type": str(name)}:
            return name
        case {"type": list(names)}:
            return " or ".join(map(str, names))
        case {"anyOf": list(schemas)} | {"oneOf": list(schemas)}:
            return " or ".join(dict.fromkeys(map(type_of, schemas)))
        case {"$ref": str(reference)}:
            return reference.rpartition("/")[2]
        case _:
            return "any"


def _description(definition: Mapping[str, Raw]) -> str:
    for member in ("description", "title", "name"):
        if member in definition and isinstance(said := value(definition[member]), str) and said.strip():
            return said
    return ""
