"""A desktop host's file (`mcpServers`) rewritten as ours, then validated like any other.

This file knows the fields that desktop hosts write and which of them mean something here. Unknown fields are reported
and left out, because such files are shared with other programs; known fields must be right. No value is quoted.
"""

from __future__ import annotations

from config.naming import make_id
from config.problems import KeyPath, clip, did_you_mean
from config.yaml import Document, Plain, is_null, kind_of

TOP_KEY = "mcpServers"
OWN_TOP_KEYS = frozenset({"listen", "start_grace", "watch", "ask", "console", "audit", "memory"})
_SERVER_KEYS = frozenset({"command", "args", "env", "cwd", "url", "headers"})
_OWN_SERVER_KEYS = frozenset(
    {
        *("consent", "trust", "limits", "isolation", "max_instances", "idle_timeout"),
        *("start", "idle", "protocol", "start_timeout"),
    }
)
_KIND_KEYS = ("type", "transport")
# Which transport a url speaks is found out by asking it: what the file says of it changes nothing.
_TYPES = ("stdio", "http", "sse", "streamable-http", "streamableHttp", "streamable_http")

Entries = dict[str, object]


class DesktopFile:
    """The values of a document in our form. One that is in our form already stays as it is.

    `notices` tell the person what was renamed and ignored; problems are noted in the document. `written` leads back
    from a place of our form to the place in the file.
    """

    def __init__(self, document: Document) -> None:
        self.is_one = TOP_KEY in document.root
        self.notices: list[str] = []
        self._document = document
        self._names: dict[str, str] = {}
        """The names of the servers by the ids that were made of them."""
        self._switches: dict[str, str] = {}
        """By id of a server that is switched off: the key that says so."""
        self.root = self._rewrite(document.root) if self.is_one else document.root

    def written(self, path: KeyPath) -> KeyPath:
        """The place in the file of a place in our form."""
        if not self.is_one or path[:1] != ("servers",):
            return path
        if len(path) == 1 or path[1] not in self._names:
            return (TOP_KEY, *path[1:])
        id = str(path[1])
        below = path[2:]
        if below[:1] == ("disabled",):
            below = (self._switches[id], *below[1:])
        return (TOP_KEY, self._names[id], *below)

    def _problem(self, path: KeyPath, text: str, *, of_key: bool = False) -> None:
        place = self._document.places[path]
        mark = place.key if of_key and place.key else place.value
        self._document.add(mark, text, ".".join(clip(str(part)) for part in path))

    def _rewrite(self, root: Entries) -> Entries:
        entries: Entries = {}
        for name, value in root.items():
            if name == TOP_KEY:
                entries["servers"] = self._servers(value) if isinstance(value, dict) else value
            elif name == "servers":
                text = "a file can have only one of servers and mcpServers; move all servers into one"
                self._problem((name,), text, of_key=True)
            elif name in OWN_TOP_KEYS:
                entries[name] = value
            else:
                self.notices.append(f"{clip(name)}: not known here, ignored")
        return entries

    def _servers(self, servers: Entries) -> Entries:
        entries: Entries = {}
        for name, value in servers.items():
            path = (TOP_KEY, name)
            id = make_id(name)
            server = self._server(value, name, id) if isinstance(value, dict) else value
            if not id:
                text = "the name holds no letter or digit to make an id of; rename it"
                self._problem(path, text, of_key=True)
            elif id in entries:
                text = f'"{clip(self._names[id])}" and "{clip(name)}" would both be served as {id}; rename one'
                self._problem(path, text, of_key=True)
            else:
                if id != name:
                    self.notices.append(f"{clip(name)} is served as {id}")
                entries[id] = server
                self._names[id] = name
        return entries

    def _server(self, server: Entries, name: str, id: str) -> object:
        """The server in our form."""
        path = (TOP_KEY, name)
        where = f"{TOP_KEY}.{clip(name)}"
        for key in _KIND_KEYS:
            self._check_kind(server, (*path, key))
        entries: Entries = {}
        for key, value in server.items():
            if is_null(value):
                continue  # hosts write null for what is not set
            if key == "trust" and isinstance(value, Plain) and value in ("true", "false"):
                self.notices.append(
                    f"{where}.trust: a switch of other hosts, ignored; here it is trusted, standard or untrusted"
                )
            elif key in _SERVER_KEYS or key in _OWN_SERVER_KEYS:
                entries[key] = value
            elif key == "timeout":
                self.notices.append(f"{where}.timeout: ignored, since hosts count it in different units")
            elif key not in (*_KIND_KEYS, "disabled", "enabled"):
                self.notices.append(f"{where}.{clip(key)}: not known here, ignored")
        if isinstance(entries.get("command"), str):
            # A desktop host's command is the program alone, even if it holds spaces.
            entries.setdefault("args", [])
        off = self._switched_off(server, path)
        if off is None:
            return entries
        self._switches.setdefault(id, off)
        return _escape_references({**entries, "disabled": Plain("true")})

    def _check_kind(self, server: Entries, path: tuple[str, ...]) -> None:
        if path[-1] not in server:
            return
        kind = server[path[-1]]
        what = "stdio, http or sse"
        if not isinstance(kind, str) or is_null(kind):
            self._problem(path, f"expected {what}, found {kind_of(kind)}")
        elif kind not in _TYPES:
            hint = did_you_mean(kind, _TYPES, '"')
            self._problem(path, f'expected {what}, found "{clip(kind)}"{f"; {hint}" if hint else ""}')
        else:
            expected, other = ("command", "url") if kind == "stdio" else ("url", "command")
            if expected not in server and other in server:
                self._problem(path, f"{clip(kind)} needs {expected}, found {other}")

    def _switched_off(self, server: Entries, path: KeyPath) -> str | None:
        """The key that switches the server off: `disabled` or `enabled`, if either says so."""
        off = None
        for key, turned_off_by in (("disabled", "true"), ("enabled", "false")):
            if key not in server:
                continue
            value = server[key]
            if not isinstance(value, Plain) or value not in ("true", "false"):
                found = "something else" if isinstance(value, str) and not is_null(value) else kind_of(value)
                self._problem((*path, key), f"expected true or false, found {found}")
            elif value == turned_off_by:
                off = key
        return off


def _escape_references(value: object) -> object:
    """The same with every `${...}` taken literally: what is switched off may name variables that are long gone."""
    if isinstance(value, dict):
        return {name: _escape_references(below) for name, below in value.items()}
    if isinstance(value, list):
        return [_escape_references(item) for item in value]
    return type(value)(value.replace("${", "$${")) if isinstance(value, str) else value
