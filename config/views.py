"""Views: what of the servers each caller is offered, and under which names, texts and arguments."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from config.document import as_found
from config.keys import STRICT, Internal, Strict, desc
from config.problems import clip, did_you_mean
from config.types import (
    LONGEST_LIMIT,
    SHORTEST_LIMIT,
    TOKEN_NAME,
    CallerName,
    EntryName,
    FrozenMap,
    InvalidKey,
    InvalidValue,
    Json,
    JsonText,
    NameLength,
    NewName,
    Paragraphs,
    Pattern,
    ServerId,
    Title,
    TokenCount,
    TokenRef,
    empty_map,
    errors_below,
    expected,
)

USUAL_SEARCH_ABOVE = 10_000

Problems = Iterator[tuple[tuple[str | int, ...], PydanticCustomError]]
"""Errors at places below the one that is looked at."""


def unknown_name(what: str, found: str, known: Iterable[str]) -> InvalidValue:
    """The error for a name that stands for nothing in this file. `what` it should be, for instance "a view"."""
    names = list(known)
    remedy = did_you_mean(found, names) or (f"there are {', '.join(map(clip, names))}" if names else "there is none")
    return expected(f"the name of {what}", f'"{clip(found)}"', remedy)


# Callers.


class HistoryAccess(StrEnum):
    """The calls of the past that a caller sees on the console, in rising order."""

    OWN = "own"
    ALL = "all"


@dataclass(frozen=True)
class CallerSpec(Strict):
    """A caller with an access token. `token` is the name of the token under `listen.auth.tokens`. `history` are the
    calls of the past that it sees on the console; None for none."""

    token: Annotated[TokenRef, desc("The name of the caller's token under listen.auth.tokens.")]
    history: Annotated[
        HistoryAccess | None,
        desc("The calls of the past that the caller sees on the console: own or all. Default: none."),
    ] = None


def token_problems(callers: Mapping[str, CallerSpec], tokens: Container[str]) -> Problems:
    """The callers whose token does not exist, or is that of another one."""
    owners: dict[str, str] = {}
    for name, caller in callers.items():
        if caller.token not in tokens:
            # A token may stand there in the place of its name, so the text is not repeated.
            what = "the name of a token under listen.auth.tokens"
            yield (name, "token"), expected(what, "something else", "name the token, and write it there")
        elif (other := owners.setdefault(caller.token, name)) != name:
            yield (name, "token"), InvalidValue(f"this is the token of {other} too; give each caller its own")


def listed(value: object) -> object:
    """A word by itself is a list of one."""
    return [value] if isinstance(value, str) else value


def _caller_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise expected("at least one caller", "an empty list", "name one of callers, or remove the key")
    if len(set(names)) < len(names):
        raise InvalidValue("a caller is in the list twice; remove one")
    return tuple(sorted(names))


_CALLER: Json = {"type": "string", "pattern": f"^{TOKEN_NAME}$"}
CallerNames = Annotated[
    tuple[CallerName, ...],
    BeforeValidator(listed),
    AfterValidator(_caller_names),
    WithJsonSchema({"anyOf": [_CALLER, {"type": "array", "items": _CALLER, "minItems": 1, "uniqueItems": True}]}),
]
"""Names of `callers`. Their order in the file means nothing, so here it is always the same."""


def caller_problems(names: Iterable[str], callers: Iterable[str]) -> Problems:
    """The names under a key `callers` that the file does not have."""
    known = list(callers)
    yield from (
        (("callers",), unknown_name("a caller under callers", name, known)) for name in names if name not in known
    )


# Overrides.


class OverrideKind(StrEnum):
    """The kinds of entries that overrides change."""

    TOOL = "tool"
    PROMPT = "prompt"


@dataclass(frozen=True)
class ArgumentOverride(Strict):
    """The change of one argument. `value` and `default` are JSON (UTF-8), None if the file has none.

    With a `value`, or `hidden`, clients do not see the argument and may not send it."""

    __pydantic_config__ = ConfigDict(
        **STRICT,
        json_schema_extra={"minProperties": 1, "dependentSchemas": {"value": {"maxProperties": 1}}},
    )

    value: Annotated[JsonText | None, desc("The server always gets this; clients do not see the argument.")] = None
    default: Annotated[JsonText | None, desc("The server gets this where a client leaves the argument out.")] = None
    description: Annotated[Paragraphs | None, desc("The text that describes the argument.")] = None
    hidden: Internal[bool] = False
    """Clients do not see the argument, and the server does not get it."""

    @property
    def is_taken_out(self) -> bool:
        """Whether the argument is none for clients."""
        return self.hidden or self.value is not None

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        if self == ArgumentOverride():
            raise expected("value, default, description or the word hidden", "an empty map")
        if self.value is not None and (self.default is not None or self.description is not None):
            raise InvalidValue("with a value, clients do not see the argument; remove default and description")
        return self


def _read_argument_override(value: object) -> object:
    if value == "hidden":
        return ArgumentOverride(hidden=True)
    if isinstance(value, dict):
        return value
    raise expected(
        "hidden, or a map of value, default or description", as_found(value), "a value is written {value: ...}"
    )


_ArgumentOverride = Annotated[
    ArgumentOverride,
    BeforeValidator(_read_argument_override, json_schema_input_type=Literal["hidden"] | ArgumentOverride),
]


@dataclass(frozen=True)
class Override(Strict):
    """The change of a tool or prompt, as clients see it. None: as the server has it.

    `name` takes the place of its own name. `arguments` are those at the top of its schema, by name."""

    __pydantic_config__ = ConfigDict(
        **STRICT,
        json_schema_extra={
            "anyOf": [{"required": [key]} for key in ("name", "title", "description", "arguments")],
        },
    )

    kind: Annotated[OverrideKind, desc("Whether it is a tool or a prompt.", "tool")] = OverrideKind.TOOL
    name: Annotated[NewName | None, desc("The name that takes the place of its own; the prefix stays.")] = None
    title: Annotated[Title | None, desc("The name for people.")] = None
    description: Annotated[Paragraphs | None, desc("The text that describes it.")] = None
    arguments: Annotated[
        FrozenMap[EntryName, _ArgumentOverride],
        desc(
            "Changes of arguments, by name: {value: ...} sends this always, {default: ...} if the client sends none, "
            "{description: ...} is another text, and hidden takes an optional argument away.",
            minProperties=1,
        ),
    ] = field(default_factory=empty_map, hash=False)

    def on(self, below: Override | None) -> Override:
        """This override, and what the one below it changes besides. An argument has the change of one of them."""
        if below is None:
            return self
        return Override(
            self.kind,
            below.name if self.name is None else self.name,
            below.title if self.title is None else self.title,
            below.description if self.description is None else self.description,
            MappingProxyType({**below.arguments, **self.arguments}),
        )

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if (self.name, self.title, self.description) == (None, None, None) and not self.arguments:
            raise expected("at least one of name, title, description and arguments", "none of them")
        if self.kind is OverrideKind.PROMPT:
            errors_below(self._no_texts())
        return self

    def _no_texts(self) -> Problems:
        """Values for arguments of a prompt, which are texts (2024-11-05, Prompts), that are none."""
        for name, argument in self.arguments.items():
            for key in ("value", "default"):
                given = getattr(argument, key)
                if given is not None and not isinstance(json.loads(given), str):
                    text = "the arguments of prompts are texts; put it in quotes"
                    yield ("arguments", name, key), InvalidValue(text)


Overrides = Annotated[
    FrozenMap[EntryName, Override], desc("Changes of tools and prompts as clients see them, by their own name.")
]


def _is_taken_out(override: Override, argument: str) -> bool:
    return argument in override.arguments and override.arguments[argument].is_taken_out


def equal_names(overrides: Mapping[str, Override]) -> Iterator[tuple[str, str, str]]:
    """Those overrides of one server that give a name which another override has: its key, that of the other
    one, and the name."""
    owners: dict[tuple[OverrideKind, str], str] = {}
    for own, override in overrides.items():
        name = own if override.name is None else override.name
        other = owners.setdefault((override.kind, name), own)
        if other != own:
            yield own, other, name


def override_problems(
    overrides: Mapping[str, Override], below: Mapping[str, Override] = MappingProxyType({})
) -> Problems:
    """Errors in the overrides of one server, on top of those `below` them."""
    for own, override in overrides.items():
        if own in below and below[own].kind is not override.kind:
            text = f"the override of the server is for a {below[own].kind}; write the same kind here"
            yield (own,), InvalidValue(text)
        for name, argument in override.arguments.items():
            if own in below and _is_taken_out(below[own], name) and not argument.is_taken_out:
                text = "the override of the server takes this argument out; write a value or hidden here, or remove it"
                yield (own, "arguments", name), InvalidValue(text)
    together = {**below, **{own: override.on(below.get(own)) for own, override in overrides.items()}}
    for own, other, name in equal_names(together):
        # The later one may stand below: it is reported where one of the two is.
        key = own if own in overrides else other
        if key in overrides:
            others = other if key == own else own
            yield (key,), InvalidValue(f'it would be named "{clip(name)}", like {clip(others)}; give each its own name')


# Views.


def _read_all(everything: object) -> Any:
    """A validator that takes the word `all`, for `everything`, or a map."""

    def read(value: object) -> object:
        if value == "all":
            return everything
        if isinstance(value, dict):
            return value
        raise expected("all, or a map", as_found(value), "a list of tools is written {tools: [...]}")

    return read


def _patterns(everything: str) -> Any:
    def read(value: object) -> object:
        return [everything] if value == "all" else listed(value)

    return BeforeValidator(read, json_schema_input_type=Pattern | tuple[Pattern, ...])


_NamePatterns = Annotated[tuple[Pattern, ...], _patterns("*")]
_UriPatterns = Annotated[tuple[Pattern, ...], _patterns("**")]


@dataclass(frozen=True)
class ViewServer(Strict):
    """The part of a view for one server: patterns by kind, in its own names and URIs, as those of rules. A kind without
    patterns is not offered."""

    __pydantic_config__ = ConfigDict(**STRICT, json_schema_extra={"minProperties": 1})

    tools: Annotated[_NamePatterns, desc("Patterns for tools, or all.")] = ()
    resources: Annotated[_UriPatterns, desc("Patterns for the URIs of resources and templates, or all.")] = ()
    prompts: Annotated[_NamePatterns, desc("Patterns for prompts, or all.")] = ()

    @model_validator(mode="before")
    @classmethod
    def _some_kind(cls, value: Any) -> Any:
        if value == {}:
            raise expected("all, or a map of tools, resources and prompts", "an empty map", "or remove the server")
        return value


ALL = ViewServer(("*",), ("**",), ("*",))
"""Everything of a server."""
_ViewServer = Annotated[ViewServer, BeforeValidator(_read_all(ALL), json_schema_input_type=Literal["all"] | ViewServer)]


class NameStyle(StrEnum):
    """Whether the names of tools and prompts begin with the prefix of the server."""

    PREFIXED = "prefixed"
    PLAIN = "plain"


@dataclass(frozen=True)
class ViewNames(Strict):
    """The names of tools and prompts in a view. `limit` is in characters; None: that of the file."""

    style: Annotated[
        NameStyle,
        desc(
            "prefixed: <server>__<name>. plain: the name alone; where two entries have one name, both are left out.",
            "prefixed",
        ),
    ] = NameStyle.PREFIXED
    limit: Annotated[
        NameLength | None,
        desc(f"Characters of a name, from {SHORTEST_LIMIT} to {LONGEST_LIMIT}. Default: names.limit of the file."),
    ] = None


class Search(StrEnum):
    """Whether clients get tools to find tools with, instead of a list of them."""

    OFF = "off"
    ON = "on"
    AUTO = "auto"
    """Above a size of the list, and where the client does not defer tools itself."""


_SEARCH_WORDS = {"false": Search.OFF, "true": Search.ON}
# Some editors read off as a truth, others as the word.
_Search = Annotated[
    Search,
    BeforeValidator(lambda value: _SEARCH_WORDS.get(value, value) if isinstance(value, str) else value),
    WithJsonSchema({"enum": [*Search, True, False]}),
]


_AUTO: Json = {"required": ["search"], "properties": {"search": {"const": "auto"}}}
_SEARCHES: Json = {"required": ["search"], "properties": {"search": {"enum": ["auto", "on", True]}}}


@dataclass(frozen=True, kw_only=True)
class ViewSpec(Strict):
    """A choice of entries that some callers, or all, are offered.

    `servers` is by id; None: everything of all servers. It may name servers that are not there: one that waits for a
    person, or a person removed. So may `callers` and `overrides`. `overrides` are on top of those of the servers.
    `search_above` is in tokens of a list; `pinned` are patterns for names as clients of the view see them.
    """

    __pydantic_config__ = ConfigDict(
        **STRICT, json_schema_extra={"dependentSchemas": {"search_above": _AUTO, "pinned": _SEARCHES}}
    )

    callers: Annotated[
        CallerNames,
        desc(
            "The callers for which the view is a boundary: they reach only views that name them. Default: it is an "
            "offer to all callers that no view names."
        ),
    ] = ()
    servers: Annotated[
        FrozenMap[ServerId, _ViewServer] | None,
        BeforeValidator(_read_all(None), json_schema_input_type=Literal["all"] | dict[ServerId, _ViewServer]),
        desc("What it has of which servers: all, or patterns for tools, resources and prompts.", "all"),
    ] = field(default=None, hash=False)
    names: Annotated[ViewNames, desc("The names of tools and prompts.")] = ViewNames()
    instructions: Annotated[
        Paragraphs | None,
        desc("What clients are told about it as a whole, instead of what is made of the servers' instructions."),
    ] = None
    overrides: Annotated[
        FrozenMap[ServerId, FrozenMap[EntryName, Override]],
        desc("Changes of tools and prompts by server and own name, on top of those of the server."),
    ] = field(default_factory=empty_map, hash=False)
    search: Annotated[
        _Search,
        desc(
            "on: clients get tools with which they find, describe and call the tools. auto: if the list is long, and "
            "the client does not defer tools itself. off: clients get the list.",
            "off",
        ),
    ] = Search.OFF
    search_above: Annotated[
        TokenCount,
        desc("With search: auto, the tokens of a list above which there is a search.", USUAL_SEARCH_ABOVE),
    ] = USUAL_SEARCH_ABOVE
    pinned: Annotated[
        tuple[Pattern, ...],
        BeforeValidator(listed, json_schema_input_type=Pattern | tuple[Pattern, ...]),
        desc("With a search, patterns for the names of tools that stay listed, as clients of the view see them."),
    ] = ()

    def part(self, server: str) -> ViewServer | None:
        """The part for a server; None for nothing."""
        return ALL if self.servers is None else self.servers.get(server)

    @model_validator(mode="wrap")
    @classmethod
    def _search_keys(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        view = handler(value)
        errors_below(view._meaningless(value))
        return view

    def _meaningless(self, written: Container[str]) -> Problems:
        """The keys of the file that others of it give no meaning."""
        if "search_above" in written and self.search is not Search.AUTO:
            yield ("search_above",), InvalidKey("search_above is for search: auto; write that, or remove it")
        if "pinned" in written and self.search is Search.OFF:
            yield (
                ("pinned",),
                InvalidKey("without a search all tools are listed; write search: on or auto, or remove it"),
            )


def view_problems(
    views: Mapping[str, ViewSpec],
    servers: Mapping[str, Mapping[str, Override]],
    stopped: Container[str],
    callers: Iterable[str] | None,
) -> Problems:
    """The names in views that the file does not have, and overrides that do not fit those of the servers.

    Args:
        servers: their overrides, by id.
        stopped: further servers of the file, of which nothing is known.
        callers: the callers of the file; None if they are wrong themselves.
    """
    for name, view in views.items():
        if callers is not None:
            yield from (((name, *path), error) for path, error in caller_problems(view.callers, callers))
        for id in view.servers or ():
            if id not in servers and id not in stopped:
                yield (name, "servers", id), _unknown_key(id, servers)
        for id, overrides in view.overrides.items():
            place = (name, "overrides", id)
            if id in servers:
                found = override_problems(overrides, servers[id])
                yield from (((*place, *path), error) for path, error in found)
            elif id not in stopped:
                yield place, _unknown_key(id, servers)
            if view.part(id) is None and (id in servers or id in stopped):
                yield place, InvalidKey("the view does not have this server; add it to servers, or remove this")


def _unknown_key(id: str, servers: Iterable[str]) -> InvalidKey:
    return InvalidKey(str(unknown_name("a server", id, servers)))
