"""Names of the members that the params of each request of clients may have, in any revision.

Rules read some members of the params by name, and all others are passed on byte for byte. A member that some readers
take for one of these names is refused, in every era: a server may read the members of other revisions too. Source: the
schemas of 2024-11-05 to 2026-07-28, and the tasks extension beside 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from host.jsonrpc.raw import NULL
from host.jsonrpc.twins import KnownNames
from host.protocol.meta import META
from host.protocol.methods import (
    COMPLETION_COMPLETE,
    LIST_METHOD_BY_NAME,
    PROMPTS_GET,
    RESOURCES_READ,
    SET_LEVEL,
    SUBSCRIBE,
    TARGETED,
    TOOLS_CALL,
    UNSUBSCRIBE,
)
from host.protocol.mrtr import RESPONSES, STATE
from host.protocol.subscriptions import LISTEN
from host.protocol.tasks import TASKS_CANCEL, TASKS_GET, TASKS_LIST, TASKS_RESULT, TASKS_UPDATE

_ID: Final = KnownNames(META, "taskId")
_CURSOR: Final = KnownNames(META, "cursor")
_URI: Final = KnownNames(META, "uri")

KNOWN_PARAMS: Final[Mapping[str, KnownNames]] = {
    TOOLS_CALL.name: KnownNames(META, "name", "arguments", "task", RESPONSES, STATE),
    PROMPTS_GET.name: KnownNames(META, "name", "arguments", RESPONSES, STATE),
    RESOURCES_READ.name: KnownNames(META, "uri", RESPONSES, STATE),
    COMPLETION_COMPLETE: KnownNames(META, "ref", "argument", "context"),
    SUBSCRIBE: _URI,
    UNSUBSCRIBE: _URI,
    LISTEN: KnownNames(META, "notifications"),
    SET_LEVEL: KnownNames(META, "level"),
    **dict.fromkeys(LIST_METHOD_BY_NAME, _CURSOR),
    TASKS_LIST: _CURSOR,
    TASKS_GET: _ID,
    TASKS_RESULT: _ID,
    TASKS_CANCEL: _ID,
    TASKS_UPDATE: KnownNames(META, "taskId", RESPONSES),
}
"""By method. Requests of other methods are answered without their params reaching a rule or a server."""

_ROUND: Final = {RESPONSES: (NULL,), STATE: (NULL,)}
_PAGE: Final = {"cursor": (NULL, Raw(b'""'))}
UNSET: Final[Mapping[str, Mapping[str, tuple[Raw, ...]]]] = {
    TOOLS_CALL.name: {"task": (NULL,), **_ROUND},
    PROMPTS_GET.name: _ROUND,
    RESOURCES_READ.name: _ROUND,
    **dict.fromkeys(LIST_METHOD_BY_NAME, _PAGE),
    TASKS_LIST: _PAGE,
}
"""Values that count as a missing member, by method and member, since the Python SDK's server (2.3.0) takes them for
one. No client gets an empty cursor from Colonnade."""

_NOT_SENT: Final = frozenset((META, RESPONSES, STATE))
"""Members that belong to a connection or to one round of a call."""


def other_members(method: str, params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The members of the params that are sent to a server beside the name of the entry, its arguments and `_meta`. None
    for a method whose params are not sent on."""
    if method == COMPLETION_COMPLETE:
        known = frozenset(("ref",))
    elif method in TARGETED:
        row = TARGETED[method]
        known = frozenset((row.target, row.arguments or "", "task" if method == TOOLS_CALL.name else ""))
    else:
        return {}
    return {name: each for name, each in params.items() if name not in known and name not in _NOT_SENT}
