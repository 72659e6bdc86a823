"""Known members of the objects of servers that policy judges or a person is shown: definitions and requests to clients,
and of notifications that are passed on.

Such an object is refused if a reader may take one of its members for another one (`host.jsonrpc.twins`); two equal
members are such, too. Known are the members that the object has in any revision's schema, and those of JSON Schema and
MCP Apps that are read here. All other members are passed on unchanged. Arguments, results and other data have no shape,
and are not looked at.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from host.jsonrpc.messages import Notification
from host.jsonrpc.raw import is_object, members
from host.jsonrpc.twins import NO_NAMES, KnownNames, describe_twin
from host.protocol.json_schema import SUBSCHEMA, SUBSCHEMA_LISTS, SUBSCHEMA_MAPS
from host.protocol.methods import ELICITATION_COMPLETE, LOG_MESSAGE, RESOURCE_UPDATED, Kind


class Shape:
    """The members of an object, and the shapes of their values. An array stands for its items.

    Args:
        names: known members whose values have no shape, separated by spaces.
        inner: known members with the shapes of their values.
        others: shape of the values of all other members.
    """

    __slots__ = ("inner", "known", "others")

    def __init__(
        self, names: str = "", inner: Mapping[str, Shape] | None = None, *, others: Shape | None = None
    ) -> None:
        self.inner = dict(inner or {})
        self.known = KnownNames(*names.split(), *self.inner) if names or inner else NO_NAMES
        self.others = others


def _schema(names: str) -> Shape:
    """A JSON schema with these keywords and those of subschemas, which have the same shape."""
    schema = Shape(" ".join((names, *SUBSCHEMA_MAPS, *SUBSCHEMA_LISTS, *SUBSCHEMA)))
    schema.inner = dict.fromkeys(SUBSCHEMA_MAPS, Shape(others=schema))
    schema.inner |= dict.fromkeys((*SUBSCHEMA_LISTS, *SUBSCHEMA), schema)
    return schema


# Keywords that say which argument is meant, and those whose text people read. Limits are not among them: `minlength` is
# a common mistake, means nothing to any reader, and would cost the entry.
_KEYWORDS = "$schema $ref type required enum enumNames const title description default x-mcp-header"
_ARGUMENTS: Final = _schema(_KEYWORDS)
_FORM: Final = _schema(f"{_KEYWORDS} format minLength maxLength minimum maximum minItems maxItems")

_META: Final = Shape(
    "progressToken ui/resourceUri openai/outputTemplate",
    {"ui": Shape("resourceUri"), "io.modelcontextprotocol/related-task": Shape("taskId")},
)
_SHOWN: Final = {
    "annotations": Shape("audience priority lastModified"),
    "icons": Shape("src mimeType sizes theme"),
    "_meta": _META,
}
_TOOL: Final = Shape(
    "name title description",
    {
        **_SHOWN,
        "annotations": Shape("title readOnlyHint destructiveHint idempotentHint openWorldHint"),
        "inputSchema": _ARGUMENTS,
        "outputSchema": _ARGUMENTS,
        "execution": Shape("taskSupport"),
    },
)
_PROMPT_ARGUMENT: Final = Shape("name title description required")

_DEFINITIONS: Final = {
    Kind.TOOL: _TOOL,
    Kind.RESOURCE: Shape("uri name title description mimeType size", _SHOWN),
    Kind.TEMPLATE: Shape("uriTemplate name title description mimeType", _SHOWN),
    Kind.PROMPT: Shape("name title description", {**_SHOWN, "arguments": _PROMPT_ARGUMENT}),
}

_CONTENT: Final = Shape(
    "type text data mimeType id name input toolUseId content structuredContent isError uri title description size",
    {**_SHOWN, "resource": Shape("uri mimeType text blob", {"_meta": _META})},
)
_CONTENT.inner["content"] = _CONTENT
SAMPLING: Final = Shape(
    "includeContext maxTokens metadata stopSequences systemPrompt temperature",
    {
        "messages": Shape("role", {"content": _CONTENT, "_meta": _META}),
        "modelPreferences": Shape("costPriority intelligencePriority speedPriority", {"hints": Shape("name")}),
        "toolChoice": Shape("mode"),
        "tools": _TOOL,
        "task": Shape("ttl"),
        "_meta": _META,
    },
)
ELICITATION: Final = Shape(
    "mode message url elicitationId", {"requestedSchema": _FORM, "task": Shape("ttl"), "_meta": _META}
)
ROOTS: Final = Shape("", {"_meta": _META})
"""The params of requests to clients."""
INPUT_REQUESTS: Final = Shape(others=Shape("method params"))
"""The requests of an `input_required` result, whose params are looked at by their method."""
URLS: Final = Shape("", {"elicitations": ELICITATION})
"""The data of an error that requires visits of pages."""
PROGRESS_MEMBERS: Final = KnownNames("progressToken", "progress", "total", "message", "_meta")
_NOTIFICATIONS: Final = {
    LOG_MESSAGE: KnownNames("level", "logger", "data", "_meta"),
    RESOURCE_UPDATED: KnownNames("uri", "title", "_meta"),
    ELICITATION_COMPLETE: KnownNames("elicitationId", "_meta"),
}
"""The params of notifications that are passed on. Those of progress reach the call that they are about."""


class _Members(list[tuple[str, object]]):
    """An object with all its members, including duplicates."""


_decoder = json.JSONDecoder(object_pairs_hook=_Members, parse_int=str, parse_float=str, parse_constant=str)


def twin_in(raw: Raw, shape: Shape) -> str | None:
    """A member that a reader may take for another one, in a JSON value of this shape; None if there is none.

    Raises:
        ValueError: the value is nested too deep to tell.
    """
    try:
        return _find_twin(_decoder.decode(bytes(raw).decode()), shape)
    except RecursionError:
        raise ValueError("nested too deep") from None


def why_ambiguous(definition: bytes, kind: Kind) -> str | None:
    """The reason why readers could differ about a definition without duplicate members and lone surrogates, or None."""
    twin = _find_twin(msgspec.json.decode(definition), _DEFINITIONS[kind])
    return None if twin is None else describe_twin(twin)


def twin_in_notification(notice: Notification) -> str | None:
    """A member of the params that a reader may take for another one; None if there is none."""
    known = _NOTIFICATIONS.get(notice.method)
    if known is None or notice.params is None or not is_object(notice.params):
        return None
    return known.twin_in(members(notice.params))


def _find_twin(value: object, shape: Shape) -> str | None:
    pending = [(value, shape)]
    while pending:
        each, at = pending.pop()
        if isinstance(each, _Members):
            found = dict(each)
            if len(found) != len(each):
                names = Counter(name for name, _ in each)
                return next(name for name in names if names[name] > 1)
        elif isinstance(each, dict):
            found = each
        elif isinstance(each, list):
            pending.extend((item, at) for item in each)
            continue
        else:
            continue
        twin = at.known.twin_in(found)
        if twin is not None:
            return twin
        for name, inner in found.items():
            shape_of_it = at.inner.get(name, at.others)
            if shape_of_it is not None:
                pending.append((inner, shape_of_it))
    return None
