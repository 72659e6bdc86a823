"""A desktop host's file (`mcpServers`) read as ours: the tree is rewritten, then judged like any other.

This file knows the fields desktop hosts write and which of them mean something here. What it does not know it
reports and leaves out, because such files are shared with other programs; what it knows must be right. It never
looks into values.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace

from config.naming import make_id
from config.problems import Mark, clip
from config.source import List, Map, Node, Scalar, kind_of

TOP_KEY = "mcpServers"
OWN_TOP_KEYS = frozenset({"listen", "start_grace", "ask", "console", "audit", "memory"})
_SERVER_KEYS = frozenset({"command", "args", "env", "cwd", "url", "headers"})
_OWN_SERVER_KEYS = frozenset(
    {"consent", "trust", "limits", "isolation", "max_instances", "idle_timeout", "protocol", "start_timeout"}
)
_KIND_KEYS = ("type", "transport")
# Which transport a url speaks is found out by asking it: what the file says of it changes nothing.
_TYPES = ("stdio", "http", "sse", "streamable-http", "streamableHttp", "streamable_http")

Entries = dict[str, tuple[Scalar, Node]]


@dataclass
class DesktopFile:
    """A rewritten tree, what to tell the person, and what is wrong as (mark, where, text)."""

    root: Map
    notices: list[str] = field(default_factory=list)
    problems: list[tuple[Mark, str, str]] = field(default_factory=list)


def is_desktop(root: Map) -> bool:
    """Whether the file has the form of a desktop host."""
    return TOP_KEY in root.entries


def rewrite(root: Map) -> DesktopFile:
    """The tree of a file with `mcpServers` as the tree of one with `servers`. Raises nothing, quotes no value."""
    result = DesktopFile(root)
    entries: Entries = {}
    for name, (key, value) in root.entries.items():
        if name == TOP_KEY:
            servers = _servers(value, result) if isinstance(value, Map) else value
            entries["servers"] = (replace(key, text="servers", alias=TOP_KEY), servers)
        elif name == "servers":
            result.problems.append(
                (key.mark, "servers", "a file holds either servers or mcpServers; move them into one")
            )
        elif name in OWN_TOP_KEYS:
            entries[name] = (key, value)
        else:
            result.notices.append(f"{key.shown}: not known here, ignored")
    result.root = Map(entries, root.mark)
    return result


def _servers(servers: Map, result: DesktopFile) -> Map:
    entries: Entries = {}
    for name, (key, value) in servers.entries.items():
        where = f"{TOP_KEY}.{key.shown}"
        server = _server(value, where, result) if isinstance(value, Map) else value
        made_id = make_id(name)
        if not made_id:
            result.problems.append((key.mark, where, "the name holds no letter or digit to make an id of; rename it"))
        elif made_id in entries:
            first = entries[made_id][0].shown
            result.problems.append(
                (key.mark, where, f'"{first}" and "{key.shown}" would both be served as {made_id}; rename one')
            )
        else:
            if made_id != name:
                result.notices.append(f"{key.shown} is served as {made_id}")
            entries[made_id] = (replace(key, text=made_id, alias=name), server)
    return Map(entries, servers.mark)


def _server(server: Map, where: str, result: DesktopFile) -> Node:
    """The server in our form."""
    for name in _KIND_KEYS:
        _check_kind(server, name, where, result)
    entries: Entries = {}
    for name, (key, value) in server.entries.items():
        if isinstance(value, Scalar) and value.is_null:
            continue  # hosts write null for what is not set
        if name == "trust" and _bool_text(value) is not None:
            result.notices.append(
                f"{where}.trust: a switch of other hosts, ignored; here it is trusted, standard or untrusted"
            )
        elif name in _SERVER_KEYS or name in _OWN_SERVER_KEYS:
            entries[name] = (key, value)
        elif name == "timeout":
            result.notices.append(f"{where}.timeout: ignored, since hosts count it in different units")
        elif name not in (*_KIND_KEYS, "disabled", "enabled"):
            result.notices.append(f"{where}.{key.shown}: not known here, ignored")
    _merge_disabled(server, entries, where, result)
    command = entries.get("command")
    if command is not None and isinstance(command[1], Scalar) and "args" not in entries:
        # A desktop host's command is the program alone, even if it holds spaces.
        entries["args"] = (Scalar("args", True, command[0].mark), List((), command[0].mark))
    made_server = Map(entries, server.mark)
    return _escape_references(made_server) if "disabled" in entries else made_server


def _escape_references(node: Node) -> Node:
    """The same with every `${...}` taken literally: what is switched off may name variables that are long gone."""
    if isinstance(node, Map):
        return Map({name: (key, _escape_references(value)) for name, (key, value) in node.entries.items()}, node.mark)
    if isinstance(node, List):
        return List(tuple(_escape_references(item) for item in node.items), node.mark)
    return replace(node, text=node.text.replace("${", "$${"))


def _bool_text(value: Node) -> str | None:
    """`true` or `false` as it was written; None for anything else."""
    return value.text if isinstance(value, Scalar) and value.plain and value.text in ("true", "false") else None


def _check_kind(server: Map, name: str, where: str, result: DesktopFile) -> None:
    kind = server.get(name)
    if kind is None:
        return
    place = f"{where}.{name}"
    if not isinstance(kind, Scalar) or kind.is_null:
        result.problems.append((kind.mark, place, f"expected stdio, http or sse, found {kind_of(kind)}"))
    elif kind.text not in _TYPES:
        meant = difflib.get_close_matches(kind.text.lower(), _TYPES, 1)
        hint = f'; did you mean "{meant[0]}"?' if meant else ""
        result.problems.append((kind.mark, place, f'expected stdio, http or sse, found "{kind.shown}"{hint}'))
    else:
        expected, other = ("command", "url") if kind.text == "stdio" else ("url", "command")
        if expected not in server.entries and other in server.entries:
            result.problems.append((kind.mark, place, f"{clip(kind.text)} needs {expected}, found {other}"))


def _merge_disabled(server: Map, entries: Entries, where: str, result: DesktopFile) -> None:
    """Join `disabled` and `enabled` into our `disabled`: off if either says so."""
    off = None
    for name, turned_off_by in (("disabled", "true"), ("enabled", "false")):
        entry = server.entries.get(name)
        if entry is None:
            continue
        value = entry[1]
        switch = _bool_text(value)
        if switch is None:
            found = "something else" if isinstance(value, Scalar) else kind_of(value)
            result.problems.append((value.mark, f"{where}.{name}", f"expected true or false, found {found}"))
        elif switch == turned_off_by:
            off = entry
    if off is not None:
        entries["disabled"] = (replace(off[0], text="disabled", alias=off[0].text), Scalar("true", True, off[1].mark))
