"""The offers of a file with views to each caller: a second judge, written from the description of views alone, sharing
no code with the host, as plainly as can be and with no thought of speed. Beside it, random files and random edits of
them.

A file is the mapping that stands in it. Names of servers, tools and prompts are short and plain, so nothing is cut.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

KINDS = ("tools", "resources", "resourceTemplates", "prompts")
KEYS = {"tools": "name", "resources": "uri", "resourceTemplates": "uriTemplate", "prompts": "name"}
NAMED = ("tools", "prompts")

File = dict[str, Any]
Lists = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""By server and kind: what the server lists at one moment."""


@dataclass(frozen=True)
class Place:
    """Where a request goes: the endpoint of all servers, of a view or of a server."""

    server: str = ""
    view: str = ""

    @property
    def path(self) -> str:
        return f"/{self.server}" if self.server else f"/@{self.view}" if self.view else ""


@dataclass(frozen=True)
class Thing:
    """An entry as a caller sees it."""

    server: str
    kind: str
    own: str
    title: str | None
    description: str | None
    arguments: frozenset[str]


@dataclass(frozen=True)
class Judge:
    file: Mapping[str, Any]

    # The view of each caller

    def caller(self, token: str) -> str:
        """The name of the caller with this token; empty if the file has none."""
        for name, spec in self.file.get("callers", {}).items():
            if spec["token"] == token:
                return str(name)
        return ""

    def views_naming(self, token: str) -> list[str]:
        """The views that name the caller, in the order of the file."""
        name = self.caller(token)
        return [view for view, spec in self._views.items() if name and name in spec.get("callers", ())]

    @property
    def _views(self) -> Mapping[str, Any]:
        views: Mapping[str, Any] = self.file.get("views", {})
        return views

    def address(self, token: str, place: Place) -> Place | None:
        """The place with the view in effect there; None if there is none for this caller."""
        naming, default = self.views_naming(token), self.file.get("default_view", "")
        if place.view and place.view not in self._views:
            return None
        if naming:
            if place.view and place.view not in naming:
                return None
            view = place.view or naming[0]
        elif default:
            if place.view not in ("", default) and self._views[place.view].get("callers"):
                return None
            view = place.view or default
        else:
            view = place.view
        if place.server and (place.server not in self.file["servers"] or not self.has_server(view, place.server)):
            return None
        return Place(place.server, view)

    def over_stdio(self, view: str) -> Place | None:
        """The place of a client over stdio, which has no token, and says itself which view it wants."""
        view = view or self.file.get("default_view", "")
        return Place("", view) if not view or view in self._views else None

    # The entries of a view

    def has_server(self, view: str, server: str) -> bool:
        if view and view not in self._views:
            return False
        servers = self._views[view].get("servers") if view else None
        return servers is None or server in servers

    def offers(self, view: str, server: str, kind: str, own: str) -> bool:
        """Whether the view has the entry, whether or not the server lists it."""
        if not self.has_server(view, server):
            return False
        servers = self._views[view].get("servers") if view else None
        if servers is None or servers[server] == "all":
            return True
        word = "resources" if kind == "resourceTemplates" else kind
        return any(fits(pattern, own) for pattern in servers[server].get(word, ()))

    def permits(self, token: str, server: str, kind: str, own: str) -> bool:
        """Whether consent shows the entry to the caller. `deny` and `allow` lists only."""
        word = "resources" if kind == "resourceTemplates" else kind
        rules = self.file["servers"][server].get("consent", {}).get(word, {})
        if any(self._holds(rule, token, own) for rule in rules.get("deny", ())):
            return False
        return "allow" not in rules or any(self._holds(rule, token, own) for rule in rules["allow"])

    def _holds(self, rule: str | Mapping[str, Any], token: str, own: str) -> bool:
        if isinstance(rule, str):
            return fits(rule, own)
        (pattern,) = (rule[key] for key in ("name", "uri") if key in rule)
        return fits(pattern, own) and ("callers" not in rule or self.caller(token) in rule["callers"])

    def override(self, view: str, server: str, kind: str, own: str) -> Mapping[str, Any]:
        """The override of the server, with that of the view on top."""
        found: dict[str, Any] = {}
        of_view = self._views[view].get("overrides", {}) if view else {}
        for of in (self.file["servers"][server].get("overrides", {}), of_view.get(server, {})):
            each = of.get(own, {})
            if each and each.get("kind", "tool") + "s" == kind:
                arguments = {**found.get("arguments", {}), **each.get("arguments", {})}
                found = {**found, **each, "arguments": arguments}
        return found

    def outward(self, address: Place, server: str, kind: str, own: str) -> str:
        """The name or URI of an entry at an address."""
        prefix = self.file["servers"][server].get("prefix", server)
        if kind not in NAMED:
            return own if address.server or re.match("https?://", own) else f"{prefix}+{own}"
        local = str(self.override(address.view, server, kind, own).get("name", own))
        names = self._views.get(address.view, {}).get("names", {})
        return local if address.server or names.get("style") == "plain" else f"{prefix}__{local}"

    def seen(self, token: str, address: Place, lists: Lists) -> dict[str, dict[str, Thing]]:
        """By kind and outward name: what the caller sees at the address."""
        found: dict[str, dict[str, Thing]] = {}
        for kind in KINDS:
            offered = [
                (self.outward(address, server, kind, each[KEYS[kind]]), server, each)
                for server in self.file["servers"]
                if address.server in ("", server)
                for each in lists[server][kind]
                if self.offers(address.view, server, kind, each[KEYS[kind]])
                and self.permits(token, server, kind, each[KEYS[kind]])
            ]
            count = Counter(name for name, _, _ in offered)
            found[kind] = {
                name: self._thing(address.view, server, kind, each)
                for name, server, each in offered
                if count[name] == 1
            }
        return found

    def _thing(self, view: str, server: str, kind: str, listed: Mapping[str, Any]) -> Thing:
        own = listed[KEYS[kind]]
        changed = self.override(view, server, kind, own)
        if kind == "tools":
            arguments = set(listed["inputSchema"].get("properties", {}))
        else:
            arguments = {each["name"] for each in listed.get("arguments", ())}
        arguments -= {name for name, each in changed.get("arguments", {}).items() if _is_taken_out(each)}
        title, description = (changed.get(key, listed.get(key)) for key in ("title", "description"))
        return Thing(server, kind, own, title, description, frozenset(arguments))

    # The outcome of a call

    def arguments(self, address: Place, thing: Thing, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The arguments that the server gets; None if the call has one that was taken out."""
        changes = self.override(address.view, thing.server, thing.kind, thing.own).get("arguments", {})
        if any(name in given and _is_taken_out(each) for name, each in changes.items()):
            return None
        made = dict(given)
        for name, each in changes.items():
            if isinstance(each, Mapping) and "value" in each:
                made[name] = each["value"]
            elif isinstance(each, Mapping) and "default" in each:
                made.setdefault(name, each["default"])
        return made

    def uri(self, token: str, address: Place, asked: str) -> tuple[str, str] | None:
        """The server and its own URI for a resource at an address; None if the caller has none of it."""
        if address.server:
            server, own = address.server, asked
        else:
            prefix, plus, own = asked.partition("+")
            by_prefix = {spec.get("prefix", id): id for id, spec in self.file["servers"].items()}
            if not plus or prefix not in by_prefix:
                return None
            server = by_prefix[prefix]
        if self.offers(address.view, server, "resources", own) and self.permits(token, server, "resources", own):
            return server, own
        return None


def fits(pattern: str, text: str) -> bool:
    """Whether a pattern matches the whole text: `*` is any characters (in a URI, without `/`, which `**` is for), `?`
    is one."""
    within = "[^/]" if "://" in text else "."
    parts = {"**": ".*", "*": f"{within}*", "?": within}
    words = re.split(r"(\*\*|[*?])", pattern)
    return re.fullmatch("".join(parts.get(each) or re.escape(each) for each in words), text) is not None


def _is_taken_out(change: object) -> bool:
    return change == "hidden" or (isinstance(change, Mapping) and "value" in change)


# Random servers and files

SERVERS = ("one", "two")
TOKENS = ("laptop", "ci", "guest")
VIEWS = ("coding", "review", "all")
TOOLS = ("get_a", "get_b", "put", "drop", "find")
PROMPTS = ("plan", "sum")
URIS = ("note:///a", "note:///b", "mem:///a")
TEMPLATES = ("note:///of/{id}", "mem:///of/{id}")
EXPANDED = ("note:///of/1", "mem:///of/1")
"""URIs that no list has, of the templates."""
PATTERNS = {
    "tools": ("*", "get_*", "put", "?ind", "drop"),
    "prompts": ("*", "plan", "s*"),
    "resources": ("**", "note:///*", "mem:///a", "note:///of/*", "note:///b", "mem:///**"),
}
NEW_NAMES = {"tools": ("get_a", "new_put", "find"), "prompts": ("plan", "outline")}
"""Names that overrides give: some are those of other entries."""


def tool(name: str, version: int = 0) -> dict[str, Any]:
    properties = {"tag": {"type": "string"}, "owner": {"type": "string"}, "limit": {"type": "integer"}, "labels": {}}
    schema = {"type": "object", "properties": properties, "required": ["tag", "owner"]}
    return {"name": name, "description": f"{name}, version {version}", "inputSchema": schema}


def random_lists(random: Random) -> dict[str, list[dict[str, Any]]]:
    """The lists of a server."""

    def some(names: Sequence[str]) -> list[str]:
        return [name for name in names if random.random() < 0.7]

    return {
        "tools": [tool(name, random.randrange(2)) for name in some(TOOLS)] or [tool("get_a")],
        "resources": [{"uri": uri, "name": uri} for uri in some(URIS)],
        "resourceTemplates": [{"uriTemplate": each, "name": each} for each in some(TEMPLATES)],
        "prompts": [{"name": name, "arguments": [{"name": "tag"}, {"name": "mood"}]} for name in some(PROMPTS)],
    }


def random_file(random: Random, servers: Mapping[str, Mapping[str, Any]], tokens: Mapping[str, str]) -> File:
    """A file after twelve changes. It may have two overrides that give one name.

    Args:
        servers: by id, how each is reached.
        tokens: the access tokens by name.
    """
    file: File = {
        "listen": {"address": "127.0.0.1:0", "auth": {"tokens": dict(tokens)}},
        "callers": {"portable": {"token": "laptop"}, "robot": {"token": "ci"}},
        "servers": {id: dict(spec) for id, spec in servers.items()},
    }
    for _ in range(12):
        file = edited(file, random)
    return file


def edited(file: File, random: Random) -> File:
    """The file with one change that a person might make."""
    while True:
        after = copy.deepcopy(file)
        random.choice(EDITS)(after, random)
        _tidy(after)
        if after != file or list(after.get("views", {})) != list(file.get("views", {})):
            return after


def _tidy(file: File) -> None:
    """Leave out what names something that is not there (any more)."""
    views = file.get("views", {})
    for spec in views.values():
        spec["callers"] = [name for name in spec.get("callers", ()) if name in file["callers"]]
        if not spec["callers"]:
            del spec["callers"]
        for server in [each for each in spec.get("overrides", {}) if each not in spec.get("servers", SERVERS)]:
            del spec["overrides"][server]
        for server, overrides in spec.get("overrides", {}).items():
            beneath = file["servers"][server].get("overrides", {})
            for name, override in list(overrides.items()):
                for argument in beneath.get(name, {}).get("arguments", ()):
                    override.get("arguments", {}).pop(argument, None)
                if not override.get("arguments", True):
                    del override["arguments"]
                if set(override) <= {"kind"}:
                    del overrides[name]
    if file.get("default_view") not in views:
        file.pop("default_view", None)
    if not views:
        file.pop("views", None)


def _edit_callers(file: File, random: Random) -> None:
    name, token = random.choice((("portable", "laptop"), ("robot", "ci")))
    if name in file["callers"]:
        used = any("callers" in str(spec) and name in str(spec.get("consent")) for spec in file["servers"].values())
        if not used:
            del file["callers"][name]
    else:
        file["callers"][name] = {"token": token}


def _edit_view(file: File, random: Random) -> None:
    views, name = file.setdefault("views", {}), random.choice(VIEWS)
    if name in views and random.random() < 0.15:
        del views[name]
        return
    spec = views.setdefault(name, {})
    match random.randrange(6):
        case 0 | 1:
            spec["callers"] = random.sample(list(file["callers"]), random.randint(0, len(file["callers"])))
            if not spec["callers"]:
                del spec["callers"]
        case 2 | 3:
            spec["servers"] = {
                server: "all" if random.random() < 0.3 else _patterns(random)
                for server in SERVERS
                if random.random() < 0.75
            } or {"one": "all"}
            if random.random() < 0.15:
                del spec["servers"]
        case 4:
            spec["names"] = {"style": random.choice(("plain", "prefixed"))}
        case 5:
            spec["instructions"] = f"How to work in {name}: {random.randrange(3)}"


def _patterns(random: Random) -> dict[str, list[str]]:
    kinds = random.sample(list(PATTERNS), random.randint(1, 3))
    return {kind: random.sample(PATTERNS[kind], random.randint(1, 2)) for kind in kinds}


def _edit_order(file: File, random: Random) -> None:
    views = list(file.get("views", {}).items())
    random.shuffle(views)
    file["views"] = dict(views)


def _edit_default(file: File, random: Random) -> None:
    if file.pop("default_view", None) is None:
        file["default_view"] = random.choice(VIEWS)


def _edit_rules(file: File, random: Random) -> None:
    consent = file["servers"][random.choice(SERVERS)].setdefault("consent", {})
    kind = random.choice(list(PATTERNS))
    if kind in consent and random.random() < 0.4:
        del consent[kind]
        return
    key = "uri" if kind == "resources" else "name"
    rules: dict[str, Any] = {}
    callers, patterns = list(file["callers"]), random.sample(PATTERNS[kind], 2)
    verdicts = random.sample(("allow", "deny"), random.randint(1, 2))
    for verdict, named in zip(
        verdicts, ([each] for each in patterns) if len(verdicts) == 2 else [patterns], strict=True
    ):
        rules[verdict] = [
            {key: pattern, "callers": random.sample(callers, random.randint(1, len(callers)))}
            if callers and random.random() < 0.7
            else pattern
            for pattern in named
        ]
    consent[kind] = rules


def _edit_overrides(file: File, random: Random) -> None:
    server, kind = random.choice(SERVERS), random.choice(NAMED)
    name = random.choice(TOOLS if kind == "tools" else PROMPTS)
    views = file.get("views", {})
    if views and random.random() < 0.4:
        overrides = views[random.choice(list(views))].setdefault("overrides", {}).setdefault(server, {})
    else:
        overrides = file["servers"][server].setdefault("overrides", {})
    if overrides.pop(name, None) is None:
        overrides[name] = _override(kind, random)


def _override(kind: str, random: Random) -> dict[str, Any]:
    made: dict[str, Any] = {} if kind == "tools" else {"kind": "prompt"}
    if random.random() < 0.5:
        made["name"] = random.choice(NEW_NAMES[kind])
    if random.random() < 0.5:
        made["description"] = f"For us: {random.randrange(3)}"
    if random.random() < 0.3:
        made["title"] = f"Title {random.randrange(3)}"
    choices: dict[str, Iterable[object]] = {
        "owner": ({"value": "acme"}, {"default": "us"}),
        "limit": ({"value": 5}, {"default": 20}, "hidden"),
        "labels": ("hidden", {"value": ["x"]}, {"description": "Ours."}),
    }
    if kind == "prompts":
        choices = {"mood": ({"value": "calm"}, {"default": "glad"}, "hidden")}
    made["arguments"] = {name: random.choice(tuple(each)) for name, each in choices.items() if random.random() < 0.4}
    if not made["arguments"]:
        del made["arguments"]
    if set(made) <= {"kind"}:
        made["description"] = "For us."
    return made


EDITS = (
    _edit_callers,
    _edit_view,
    _edit_view,
    _edit_view,
    _edit_view,
    _edit_order,
    _edit_default,
    _edit_rules,
    _edit_rules,
    _edit_overrides,
    _edit_overrides,
)
