"""Colonnade's four own tools, which a view with search lists in place of its tools: definitions, arguments and results.

    search_tools     finds tools by words
    describe_tools   gives their definitions
    read_tool        calls a tool that claims to only read
    call_tool        calls any tool

Source: 2025-11-25, "Tools": "Tool Annotations", "Structured Content", "Error Handling".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from msgspec import Raw, Struct

from host.jsonrpc.raw import (
    EMPTY_OBJECT,
    NULL,
    encode,
    encode_object,
    is_object,
    items,
    members,
    string,
    text_at,
    value,
)
from host.jsonrpc.twins import KnownNames, refuse_twins
from host.protocol.tasks import Support

SEARCH_TOOLS: Final = "search_tools"
DESCRIBE_TOOLS: Final = "describe_tools"
READ_TOOL: Final = "read_tool"
CALL_TOOL: Final = "call_tool"
SEARCH_TOOL_NAMES: Final = frozenset((SEARCH_TOOLS, DESCRIBE_TOOLS, READ_TOOL, CALL_TOOL))

DEFAULT_LIMIT = 10
MAX_LIMIT = 50
"""Tools in one result of search_tools."""
MAX_DESCRIBED = 20
"""Tools in one request of describe_tools."""
MAX_QUERY = 1000
"""Characters of a query."""
MAX_SERVERS = 100
"""Servers that the definition of search_tools names."""
MAX_SUMMARY = 300
"""Characters of a description in a result of search_tools."""
MAX_ARGUMENTS = 50
"""Arguments of a tool that a result of search_tools names."""
MAX_ARGUMENT_NAME = 100
"""Characters of such a name; a longer one is left out."""

_CALL_MEMBERS: Final = KnownNames("name", "arguments")
_SEARCH_MEMBERS: Final = KnownNames("query", "server", "limit")
_DESCRIBE_MEMBERS: Final = KnownNames("names")


class InvalidArguments(Exception):
    """The arguments of one of these tools do not fit its schema; the message is for the model."""


class Query(Struct, frozen=True):
    """The arguments of search_tools."""

    query: str
    server: str | None = None
    limit: int = DEFAULT_LIMIT


class FoundTool(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One tool in a result of search_tools, whose members have these names in camel case."""

    name: str
    server: str
    description: str
    arguments: tuple[str, ...]
    """The names of its arguments, those that may be left out with a question mark; "..." for those beyond
    MAX_ARGUMENTS."""
    read_only: bool = False
    """Whether read_tool calls it."""


# Definitions


def _object(properties: Mapping[str, object], *required: str) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_NAME: Final = {"type": "string", "description": "Name of the tool, as in the result of search_tools"}
_CALL_SCHEMA: Final = _object(
    {
        "name": _NAME,
        "arguments": {
            "type": "object",
            "description": "Arguments of that tool, by its inputSchema",
            "additionalProperties": True,
        },
    },
    "name",
)
_EXECUTION: Final = {"taskSupport": Support.OPTIONAL}
_STRINGS: Final = {"type": "array", "items": {"type": "string"}}
_FOUND_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "server": {"type": "string"},
                    "description": {"type": "string"},
                    "arguments": _STRINGS,
                    "readOnly": {"type": "boolean"},
                },
                "required": ["name", "server", "description", "arguments"],
            },
        },
    },
    "required": ["tools"],
}
_DESCRIBED_SCHEMA: Final = {
    "type": "object",
    "properties": {"tools": {"type": "array", "items": {"type": "object"}}, "unknown": _STRINGS},
    "required": ["tools", "unknown"],
}


@lru_cache(maxsize=64)
def search_definitions(servers: tuple[str, ...]) -> tuple[bytes, ...]:
    """The definitions of the four tools, in the form of the newest revision (`downgrade_definition`).

    Args:
        servers: the ids of the servers whose tools can be found.
    """
    known = ", ".join(servers[:MAX_SERVERS]) + (", ..." if len(servers) > MAX_SERVERS else "")
    tools: tuple[dict[str, object], ...] = (
        {
            "name": SEARCH_TOOLS,
            "title": "Search tools",
            "description": "Find the tools for a task. Most tools are not listed: search for them here, with some words"
            f" that say what is to be done. Servers: {known or 'none at present'}.",
            "inputSchema": _object(
                {
                    "query": {"type": "string", "description": "The task in some words, e.g. create a pull request"},
                    "server": {"type": "string", "description": "Only tools of this server"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
                },
                "query",
            ),
            "outputSchema": _FOUND_SCHEMA,
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        },
        {
            "name": DESCRIBE_TOOLS,
            "title": "Describe tools",
            "description": "Full descriptions of tools and the schemas of their arguments. Use it before the first call"
            " of a tool.",
            "inputSchema": _object(
                {"names": {**_STRINGS, "minItems": 1, "maxItems": MAX_DESCRIBED, "description": "Names of the tools"}},
                "names",
            ),
            "outputSchema": _DESCRIBED_SCHEMA,
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        },
        {
            "name": READ_TOOL,
            "title": "Call a read-only tool",
            "description": "Call a tool that search_tools shows as readOnly. The result is that of the tool.",
            "inputSchema": _CALL_SCHEMA,
            "annotations": {"readOnlyHint": True, "openWorldHint": True},
            "execution": _EXECUTION,
        },
        {
            "name": CALL_TOOL,
            "title": "Call a tool",
            "description": "Call any tool, also one that changes something. The result is that of the tool.",
            "inputSchema": _CALL_SCHEMA,
            "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
            "execution": _EXECUTION,
        },
    )
    return tuple(bytes(encode(each)) for each in tools)


# Arguments


def called_through(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The params of the `tools/call` that a request of call_tool or read_tool stands for. Members beside the name and
    the arguments, such as `_meta` and `task`, stay.

    Raises:
        InvalidArguments: the arguments do not fit the schema.
        AmbiguousMembers: some readers take one of them for another one.
    """
    found = _arguments(params, _CALL_MEMBERS, frozenset(("name", "arguments")))
    if "name" not in found:
        raise InvalidArguments("the argument 'name' is missing: expected the name of a tool")
    name, arguments = found["name"], found.get("arguments", NULL)
    _text("name", name)
    called = {**params, "name": name}
    if arguments == NULL:
        called.pop("arguments", None)
    elif is_object(arguments):
        called["arguments"] = arguments
    else:
        raise InvalidArguments("the argument 'arguments' must be an object: the arguments of the tool, by name")
    return called


def query_of(params: Mapping[str, Raw]) -> Query:
    """The arguments of a request of search_tools; raises as `called_through` does."""
    found = _arguments(params, _SEARCH_MEMBERS, frozenset(("query", "server", "limit")))
    if "query" not in found:
        raise InvalidArguments("the argument 'query' is missing: expected some words that say what is to be done")
    text = _text("query", found["query"])
    if len(text) > MAX_QUERY:
        raise InvalidArguments(f"the argument 'query' is longer than {MAX_QUERY} characters")
    server = None if found.get("server", NULL) == NULL else _text("server", found["server"])
    limit = DEFAULT_LIMIT if found.get("limit", NULL) == NULL else value(found["limit"])
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise InvalidArguments(f"the argument 'limit' must be an integer from 1 to {MAX_LIMIT}")
    return Query(text, server, limit)


def names_of(params: Mapping[str, Raw]) -> list[str]:
    """The names in a request of describe_tools, each once; raises as `called_through` does."""
    found = _arguments(params, _DESCRIBE_MEMBERS, frozenset(("names",)))
    try:
        names = [string(each) for each in items(found["names"])]
    except (KeyError, ValueError):
        raise InvalidArguments("the argument 'names' must be an array of names of tools") from None
    if not 1 <= len(names) <= MAX_DESCRIBED:
        raise InvalidArguments(f"the argument 'names' must have 1 to {MAX_DESCRIBED} names")
    return list(dict.fromkeys(names))


def _arguments(params: Mapping[str, Raw], known: KnownNames, names: frozenset[str]) -> dict[str, Raw]:
    try:
        found = members(params.get("arguments", EMPTY_OBJECT))
    except ValueError:
        raise InvalidArguments("the arguments must be an object") from None
    refuse_twins(known, found)
    for name in found:
        if name not in names:
            wanted = ", ".join(sorted(names))
            raise InvalidArguments(f"unknown argument {name[:80]!a}; expected {wanted}")
    return found


def _text(name: str, raw: Raw) -> str:
    try:
        return string(raw)
    except ValueError:
        raise InvalidArguments(f"the argument {name!r} must be a string") from None


# Results


def found_tool(name: str, server: str, definition: bytes, *, read_only: bool) -> FoundTool:
    """A tool as search_tools shows it. `definition`: as its caller gets it."""
    found = members(definition)
    description = text_at(found, "description") or ""  # none also if it cannot be written as UTF-8
    return FoundTool(name, server, _summary(description), _argument_names(found.get("inputSchema")), read_only)


def found_result(tools: Iterable[FoundTool]) -> Raw:
    """The result of search_tools."""
    return _result(encode({"tools": list(tools)}))


def described_result(definitions: Sequence[bytes], unknown: Sequence[str]) -> Raw:
    """The result of describe_tools: definitions as a list has them, and the names that no tool has."""
    return _result(encode({"tools": [Raw(each) for each in definitions], "unknown": unknown}))


def error_result(message: str) -> Raw:
    """The result of a call that failed, for the model to read."""
    return encode({"content": [{"type": "text", "text": message}], "isError": True})


def _result(structured: Raw) -> Raw:
    # The same JSON as text, for clients that show the model content alone (2025-11-25, "Structured Content").
    text = {"type": "text", "text": bytes(structured).decode()}
    return encode_object({"content": encode([text]), "structuredContent": structured})


def _summary(description: str) -> str:
    """The first paragraph of a description, or as much of it as fits."""
    first = " ".join(description.strip().split("\n\n")[0].split())
    return first if len(first) <= MAX_SUMMARY else first[: MAX_SUMMARY - 3] + "..."


def _argument_names(schema: Raw | None) -> tuple[str, ...]:
    try:
        found = members(schema or EMPTY_OBJECT)
        names = members(found.get("properties", EMPTY_OBJECT))
        required = {string(each) for each in items(found.get("required", Raw(b"[]")))}
    except ValueError:
        return ()
    # A name that cannot be shown may not even be writable: a lone surrogate is not.
    shown = (name for name in names if len(name) <= MAX_ARGUMENT_NAME and name.isprintable())
    first = tuple(name if name in required else f"{name}?" for name in islice(shown, MAX_ARGUMENTS))
    return first if next(shown, None) is None else (*first, "...")
