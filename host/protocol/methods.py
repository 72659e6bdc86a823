"""Tables of methods: one row per kind of entry and one per method, so that all methods take the same path.

A row says which member names the target, the kind of the target, and where the result has URIs. Source: the "Method"
definitions of the schemas of 2024-11-05 to 2026-07-28, which agree on all of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Raw, Struct

from host.errors import InvalidParams
from host.jsonrpc.raw import encode, encode_object, is_object, members, string
from host.jsonrpc.twins import KnownNames, refuse_twins


class Kind(StrEnum):
    """Kinds of entries that servers offer."""

    TOOL = "tool"
    RESOURCE = "resource"
    TEMPLATE = "template"
    PROMPT = "prompt"


RESOURCE = Kind.RESOURCE
"""The same as a variable. Python 3.11 finds a member of an Enum by a slow path, which takes as long as a call, and each
request asked for forty; so what every request compares has a variable."""


def describe_counts(counts: Iterable[tuple[Kind, int]]) -> str:
    """The numbers of entries of each kind, in words."""
    words = (f"{count} {kind.value}" + ("" if count == 1 else "s") for kind, count in counts if count)
    return ", ".join(words) or "no entries"


class ListMethod(Struct, frozen=True):
    """The method that lists the entries of one kind, and the shape of its result."""

    kind: Kind
    method: str
    member: str
    """The member of the result that holds the definitions."""
    key: str
    """The member of a definition that names the entry."""
    capability: str
    """The server capability that offers this kind."""
    list_changed: str
    """The notification that the list has changed."""


TOOLS_CHANGED = "notifications/tools/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"

LIST_MEMBERS = ("nextCursor", "resultType", "ttlMs", "cacheScope")
"""The other members of a list's result that the protocol defines."""
LIST_METHODS: dict[Kind, ListMethod] = {
    each.kind: each
    for each in (
        ListMethod(Kind.TOOL, "tools/list", "tools", "name", "tools", TOOLS_CHANGED),
        ListMethod(Kind.RESOURCE, "resources/list", "resources", "uri", "resources", RESOURCES_CHANGED),
        ListMethod(
            kind=Kind.TEMPLATE,
            method="resources/templates/list",
            member="resourceTemplates",
            key="uriTemplate",
            capability="resources",
            list_changed=RESOURCES_CHANGED,
        ),
        ListMethod(Kind.PROMPT, "prompts/list", "prompts", "name", "prompts", PROMPTS_CHANGED),
    )
}
LIST_METHOD_BY_NAME: dict[str, ListMethod] = {each.method: each for each in LIST_METHODS.values()}


class Method(Struct, frozen=True):
    """A request that reaches one entry of one server."""

    name: str
    kind: Kind
    target: str
    """The member of `params` that names the entry."""
    arguments: str | None
    """The member of `params` whose content rules evaluate; None if the request has no such member."""
    capability: str
    """The server capability without which it must not be sent."""
    links: tuple[tuple[str, ...], ...] = ()
    """Places of content with resource URIs in the result: `*` stands for every item of an array."""


# 2025-11-25: "CallToolResult", "ReadResourceResult", "GetPromptResult".
TOOLS_CALL = Method("tools/call", Kind.TOOL, "name", "arguments", "tools", (("content", "*"),))
RESOURCES_READ = Method("resources/read", Kind.RESOURCE, "uri", None, "resources", (("contents", "*"),))
PROMPTS_GET = Method("prompts/get", Kind.PROMPT, "name", "arguments", "prompts", (("messages", "*", "content"),))
TARGETED: dict[str, Method] = {each.name: each for each in (TOOLS_CALL, RESOURCES_READ, PROMPTS_GET)}

# Completion names its entry one level deeper, in `ref`, whose `type` is the kind of the entry
# (2025-11-25, "Completion / Reference Types").
COMPLETION_COMPLETE = "completion/complete"
COMPLETION_CAPABILITY = "completions"
LOGGING_CAPABILITY = "logging"
_REFERENCES: dict[str, tuple[Kind, str]] = {"ref/prompt": (Kind.PROMPT, "name"), "ref/resource": (Kind.RESOURCE, "uri")}
_REFERENCE_NAMES = KnownNames("type", "name", "title", "uri")
_ARGUMENT_NAMES = KnownNames("name", "value")

# Subscriptions name their resource as `resources/read` does (2025-11-25, "Resources / Subscriptions").
SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"
_ROWS = {**TARGETED, SUBSCRIBE: RESOURCES_READ, UNSUBSCRIBE: RESOURCES_READ}

DISCOVER = "server/discover"
REPEATABLE_METHODS = frozenset({DISCOVER, RESOURCES_READ.name, PROMPTS_GET.name, *LIST_METHOD_BY_NAME})
"""Requests that only read: one that was lost may be sent once more, although the server may have executed it."""

INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"
PING = "ping"
PROGRESS = "notifications/progress"
RESOURCE_UPDATED = "notifications/resources/updated"
ELICITATION_COMPLETE = "notifications/elicitation/complete"
ROOTS_CHANGED = "notifications/roots/list_changed"
SET_LEVEL = "logging/setLevel"
LOG_MESSAGE = "notifications/message"


def target_of(method: str, params: Mapping[str, Raw]) -> tuple[Kind, str]:
    """The kind and name of the entry that a request names. `method` is in TARGETED, or one of COMPLETION_COMPLETE,
    SUBSCRIBE and UNSUBSCRIBE.

    Raises:
        InvalidParams: the members that name the entry are missing, not strings, or not the only ones that some readers
            take for them.
    """
    if method == COMPLETION_COMPLETE:
        return _completion_target(params)
    row = _ROWS[method]
    return row.kind, required_text(params, row.target)


def with_target(method: str, params: Mapping[str, Raw], name: str) -> dict[str, Raw]:
    """The params with `name` as the name of the entry; every other member keeps its bytes. A request for a task becomes
    a plain call, as at a server that declares no tasks (2025-11-25, "Tasks / Task Support and Handling")."""
    changed = dict(params)
    if method == TOOLS_CALL.name:
        changed.pop("task", None)
    if method == COMPLETION_COMPLETE:
        reference = members(params["ref"])
        reference[_REFERENCES[string(reference["type"])][1]] = encode(name)
        changed["ref"] = encode_object(reference)
    else:
        changed[TARGETED[method].target] = encode(name)
    return changed


def _completion_target(params: Mapping[str, Raw]) -> tuple[Kind, str]:
    try:
        reference = members(params["ref"])
        kind, member = _REFERENCES[string(reference["type"])]
    except (ValueError, KeyError):
        raise InvalidParams("the member 'ref' is neither a ref/prompt nor a ref/resource") from None
    refuse_twins(_REFERENCE_NAMES, reference)
    argument = params.get("argument")
    if argument is not None and is_object(argument):
        refuse_twins(_ARGUMENT_NAMES, members(argument))
    return kind, required_text(reference, member)


def required_text(params: Mapping[str, Raw], member: str) -> str:
    """The text of a member.

    Raises:
        InvalidParams: it is missing or not a string.
    """
    try:
        return string(params[member])
    except KeyError:
        raise InvalidParams(f"the member {member!r} is missing") from None
    except ValueError:
        raise InvalidParams(f"the member {member!r} is not a string") from None
