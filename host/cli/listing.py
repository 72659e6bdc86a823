"""The output of `list`: servers with what they offer, show, deny and hold, and the entries that clients see."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from msgspec import Raw

from host.cli.common import counted
from host.cli.exit_codes import CommandFailed
from host.cli.status import describe_connection
from host.cli.suggest import did_you_mean
from host.cli.terminal import Terminal, cut, printable
from host.jsonrpc.raw import members, value
from host.names import split_name, split_uri
from host.protocol.definitions import BYTES_PER_TOKEN, model_tokens
from host.protocol.methods import LIST_METHODS, Kind, describe_counts
from host.sanitize import visible

MAX_LOG_LINES = 20
"""Lines of standard error that are shown of a server that is not connected."""
_NAME_COLUMN = 54
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^a-z])")
_EXPRESSION = re.compile(r"\{[+#./;?&]?([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class OwnersView:
    """A host as only its owner sees it: rows of the admin API, and the last lines that servers which failed or are
    starting wrote to their standard error. `seen` is what the admin API says of the view that is listed."""

    servers: Sequence[Mapping[str, Any]] = ()
    catalog: Sequence[Mapping[str, Any]] = ()
    logs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    views: Sequence[Mapping[str, Any]] = ()
    seen: Mapping[str, Any] | None = None

    @property
    def view(self) -> str:
        """The view that is listed; empty for that of everything."""
        return "" if self.seen is None else str(self.seen["view"])

    def offered(self) -> Sequence[Mapping[str, Any]]:
        """The rows of what clients see, in the view that is listed."""
        if self.seen is not None:
            return list(self.seen["entries"])
        return [row for row in self.catalog if row["shown"]]

    def left_out(self) -> list[Mapping[str, Any]]:
        """The rows of entries that the view has and clients do not get."""
        return [] if self.seen is None else list(self.seen["left_out"])

    def unlisted(self, server: str, shown: int) -> dict[str, int]:
        """How many entries of a server the view has, beside those that its lists show."""
        seen = self.seen or {"search": "off", "entries": ()}
        offered = sum(row["server"] == server for row in seen["entries"])
        found = 0 if seen["search"] == "off" else max(0, offered - shown)
        left_out = sum(row["server"] == server for row in self.left_out())
        return {"found by a search": found, "left out": left_out}

    def of_servers(self, ids: Container[object]) -> OwnersView:
        """The part of these servers."""
        seen = self.seen and {
            **self.seen,
            **{key: [row for row in self.seen[key] if row["server"] in ids] for key in ("entries", "left_out")},
        }
        servers = [row for row in self.servers if row["id"] in ids]
        return replace(self, servers=servers, catalog=[row for row in self.catalog if row["server"] in ids], seen=seen)

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

    @property
    def tool_names(self) -> list[str]:
        """The names of tools as clients see them."""
        return [name_of(Kind.TOOL, raw) for raw in self.entries.get(Kind.TOOL, ())]

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
        owner = self.owner and self.owner.of_servers({id})
        return Listing(entries, [row for row in self.servers if row["id"] == id], owner)


class _Owners:
    """The servers that entries belong to."""

    def __init__(self, listing: Listing) -> None:
        # Another version of Colonnade may not say the prefix.
        self._by_prefix = {str(row.get("prefix", row["id"])): str(row["id"]) for row in listing.servers or ()}
        rows = () if listing.owner is None else listing.owner.offered()
        self._by_outward = {(row["kind"], row["outward"]): str(row["server"]) for row in rows}

    def of(self, kind: Kind, raw: Raw) -> str | None:
        """The server of an entry; None if its name does not tell."""
        if len(self._by_prefix) == 1:
            return next(iter(self._by_prefix.values()))
        name = name_of(kind, raw)
        if (kind.value, visible(name)) in self._by_outward:
            return self._by_outward[kind.value, visible(name)]
        prefix, _ = split_name(name) if kind in (Kind.TOOL, Kind.PROMPT) else split_uri(name)
        return self._by_prefix.get(prefix or "")


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
        return model_tokens(self.size)


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
        if server.get("uncounted"):
            text = f"a rule wants claims, which do not count before you approve its tools: {server['uncounted']}"
            found.append((id, f"{text} (colonnade definitions approve {id})"))
        sandbox, is_open = server.get("sandbox", ""), server.get("sandbox_open")  # older hosts lack the latter
        if sandbox and not is_open and (server["trust"] == "untrusted" or not sandbox.startswith("off")):
            found.append((id, f"sandbox: {sandbox}"))
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
        told |= {"views": list(listing.owner.views), "left_out": listing.owner.left_out()}
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
            _show_server(terminal, row, counts[str(row["id"])], listing.owner)
            if in_full and listing.owner is not None:
                _show_log(terminal, listing.owner.logs.get(str(row["id"]), ()))
        owner = listing.owner or OwnersView()
        for row in owner.views if len(owner.views) > 1 else ():
            name = f"@{row['name']}" if row["name"] else "(no view)"
            print(terminal.paragraph(f"{printable(name):<20} {'view':<8} ", _describe_view(row), indent=21))
        of_view = [
            (row["server"], f"the {row['kind']} {row['name']} is left out: {row['why']}") for row in owner.left_out()
        ]
        for id, text in [*notes(owner.servers), *of_view]:
            print(terminal.paragraph(f"{id:<20} {terminal.faint('note:')} ", printable(text), indent=21))
    print(terminal.paragraph("", _total(listing), indent=0, faint=True))
    if any(listing.entries.values()):
        print()
    for kind, raws in listing.entries.items():
        for raw in raws:
            _show_in_full(terminal, kind, raw) if in_full else _show_entry(terminal, kind, raw)
    if in_full and listing.owner is not None:
        _show_hidden(terminal, listing.owner.hidden())


def _show_server(terminal: Terminal, row: Mapping[str, Any], counts: Counts, owner: OwnersView | None) -> None:
    offered = row["entries"]
    total = sum(offered.values())
    details = describe_connection(row)
    if row["state"] == "ready" or total:
        tools, others = offered.get("tools", 0), []
        if tools and owner is not None and (verdicts := _describe_verdicts(owner.offered(), str(row["id"]))):
            details.append(f"{describe_counts([(Kind.TOOL, tools)])}: {verdicts}")
            others = [Kind.TOOL]
        kinds = [(kind, offered.get(each.member, 0)) for kind, each in LIST_METHODS.items() if kind not in others]
        if not others or any(count for _, count in kinds):
            details.append(describe_counts(kinds))
    if total:
        parts = {"shown": counts.shown, "denied": counts.denied or 0, "held": counts.held or 0}
        rest = total - sum(parts.values()) if counts.denied is not None else 0
        if owner is not None and owner.view:
            for what, count in owner.unlisted(str(row["id"]), counts.shown).items():
                parts[what] = min(count, rest)
                rest -= parts[what]
        parts["left out" if owner is None or not owner.view else "not in the view"] = rest
        said = ", ".join(f"{count} {what}" for what, count in parts.items() if count > 0 or what == "shown")
        details += ["all shown" if counts.shown == total else said, f"~{counts.tokens:,} tokens"]
    before = f"{row['id']!s:<20} {terminal.state(row['state'])} {row['transport']!s:<6} "
    print(terminal.paragraph(before, "; ".join(details), indent=21))


def _describe_view(view: Mapping[str, Any]) -> str:
    """A view in words: its callers, entries, cost and search."""
    whom = ", ".join(view["callers"])
    details = [f"for {whom}" if whom else "for all others" if view["is_default"] else ""]
    shown = sum(view["entries"].values())
    details.append(f"{shown:,} {'entry' if shown == 1 else 'entries'}")
    details.append(f"{len(view['left_out'])} left out" if view["left_out"] else "")
    details += [f"~{view['tokens']:,} tokens", "" if view["search"] == "off" else f"search {view['search']}"]
    return printable("; ".join(filter(None, details)))


def _describe_verdicts(offered: Iterable[Mapping[str, Any]], server: str) -> str:
    """The verdicts on calls of the tools of a server that clients see, in words; empty if they see none."""
    verdicts = {
        row["outward"]: row["verdict"] for row in offered if row["server"] == server and row["kind"] == Kind.TOOL.value
    }
    found = Counter(verdicts.values())
    words = {"allow": ("runs", "run"), "ask": ("is asked about", "are asked about")}
    words["deny"] = ("depends on its arguments", "depend on their arguments")
    return ", ".join(f"{found[each]} {words[each][found[each] > 1]}" for each in words if found[each])


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
    return f"{shown} shown; {costs} some {counted(model_tokens(size), 'token')} (bytes / {BYTES_PER_TOKEN})."


def _show_entry(terminal: Terminal, kind: Kind, raw: Raw) -> None:
    first, *more = _description(members(raw)).strip().splitlines() or [""]
    before = f"{kind.value:<9} {printable(name_of(kind, raw)):<{_NAME_COLUMN - 11}} "
    more = [line for line in more if line.strip()]
    if terminal.width is not None:
        first, *others = _SENTENCE_END.split(first.strip(), maxsplit=1)
        more += others
    text = printable(first.strip()) + (" …" if more else "")
    if terminal.width is not None:
        text = cut(text, terminal.room(before, _NAME_COLUMN))
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


def show_clients(terminal: Terminal, hosts: Sequence[Mapping[str, Any]]) -> None:
    """Print the clients of running hosts, each a line: what the kernel knows of it first, its own words last."""
    for host in hosts:
        clients = host["clients"]
        about = f"{counted(len(clients), 'client')} of process {host['pid']}, which serves {printable(host['config'])}"
        print(terminal.paragraph("", about, indent=0, faint=True))
        for each in clients:
            print(terminal.paragraph(*_describe_client(each), indent=21))


def _describe_client(client: Mapping[str, Any]) -> tuple[str, str]:
    process = client["process"]
    words = {"token": "token", "endpoint": "endpoint of", "view": "view"}
    told = [f"{word} {client[key]}" for key, word in words.items() if client[key]]
    if process is not None:
        told += [f"process {process['pid']}", process["folder"] and f"in {process['folder']}"]
    told.append(f"{client['revision']} ({client['era']})" if client["revision"] else "has not said anything yet")
    told.append(f"since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(client['since']))}")
    told.append(client["says"] and f"says it is {client['says']}")
    name = process["program"] if process is not None else "-"
    return f"{printable(name):<20} {client['transport']:<6} ", printable("; ".join(each for each in told if each))


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
