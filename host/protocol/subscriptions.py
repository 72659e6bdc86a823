"""`subscriptions/listen`: reading and writing its filter, its acknowledgement, and the subscription id of
notifications.

One request opens a stream of notifications and names the kinds that it wants; the first notification acknowledges those
that are granted. Sources: 2026-07-28, "Subscriptions", and the tasks extension for `taskIds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Raw, Struct

from host.errors import InvalidParams
from host.jsonrpc.messages import Id, Notification
from host.jsonrpc.raw import (
    TRUE,
    encode,
    encode_object,
    items,
    members,
    members_if_object,
    string,
    unless_null,
    value,
)
from host.jsonrpc.twins import KnownNames, refuse_twins
from host.protocol.meta import HOP_PREFIX, META
from host.protocol.methods import PROMPTS_CHANGED, RESOURCES_CHANGED, TOOLS_CHANGED
from host.protocol.stateless import COMPLETE, RESULT_TYPE

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SUBSCRIPTION_ID = f"{HOP_PREFIX}subscriptionId"

MAX_WATCHED = 1000
"""Resources that one request may name, and tasks that it may name."""

_ONLY_ID = b'{"%b":{"%b":%%b}}' % (META.encode(), SUBSCRIPTION_ID.encode())
"""The params of a notification that have nothing but a subscription id."""

_FILTER = "notifications"
_URIS, _TASKS = "resourceSubscriptions", "taskIds"
_LISTS = {
    "toolsListChanged": TOOLS_CHANGED,
    "promptsListChanged": PROMPTS_CHANGED,
    "resourcesListChanged": RESOURCES_CHANGED,
}
_FILTER_NAMES = KnownNames(*_LISTS, _URIS, _TASKS)


class Filter(Struct, frozen=True):
    """Notifications that are requested, or granted."""

    lists: frozenset[str]
    """The notifications of changed lists: TOOLS_CHANGED, RESOURCES_CHANGED, PROMPTS_CHANGED."""
    uris: tuple[str, ...]
    """The watched resources, each once."""
    tasks: tuple[str, ...]
    """The ids of the watched tasks, each once."""


def filter_of(params: Mapping[str, Raw]) -> Filter:
    """The filter of a client's `subscriptions/listen`.

    Raises:
        InvalidParams: `notifications` is missing, has members of the wrong type or some that readers take for one
            another, or names more than MAX_WATCHED resources or tasks.
    """
    try:
        found = members(params[_FILTER])
    except (KeyError, ValueError):
        raise InvalidParams(f"the member {_FILTER!r} is missing or not an object") from None
    refuse_twins(_FILTER_NAMES, found)
    lists = frozenset(method for name, method in _LISTS.items() if _wanted(found, name))
    return Filter(lists, _strings_of(found, _URIS), _strings_of(found, _TASKS))


def listen_params(requested: Filter) -> dict[str, Raw]:
    """The params of a `subscriptions/listen` with this filter."""
    return {_FILTER: _as_json(requested)}


def acknowledgement(id: Id, granted: Filter) -> Notification:
    """The first notification of the subscription that request `id` opened, with the filter that is granted."""
    meta = encode({SUBSCRIPTION_ID: id})
    return Notification(ACKNOWLEDGED, encode_object({META: meta, _FILTER: _as_json(granted)}))


def acknowledged(params: Raw | None) -> Filter:
    """The filter that a server grants, from the params of its acknowledgement. A member of the wrong type counts as not
    granted. Never raises."""
    found = members_if_object(members_if_object(params).get(_FILTER))
    lists = frozenset(method for name, method in _LISTS.items() if found.get(name) == TRUE)
    return Filter(lists, _legible(found.get(_URIS)), _legible(found.get(_TASKS)))


def with_subscription_id(notification: Notification, id: Id) -> Notification:
    """The notification with the subscription id `id`; every other member keeps its bytes. Params that are not an object
    are replaced, because they have no `_meta`."""
    if notification.params is None:  # as a changed list has, which many clients are notified of at once
        return _with_only_id(notification.method, id)
    params = members_if_object(notification.params)
    meta = {**members_if_object(params.get(META)), SUBSCRIPTION_ID: encode(id)}
    return Notification(notification.method, encode_object({**params, META: encode_object(meta)}))


@lru_cache(64)
def _with_only_id(method: str, id: Id) -> Notification:
    return Notification(method, Raw(_ONLY_ID % encode(id)))


def without_subscription_id(params: dict[str, Raw]) -> dict[str, Raw]:
    """The params of a notification without its subscription id."""
    meta = members_if_object(params.get(META))
    if SUBSCRIPTION_ID not in meta:
        return params
    del meta[SUBSCRIPTION_ID]
    if meta:
        return {**params, META: encode_object(meta)}
    return {name: each for name, each in params.items() if name != META}


def subscription_of(notification: Notification) -> Id | None:
    """The subscription id of a notification, which is the id of the request that opened the subscription; None if it is
    missing or not an id."""
    try:
        id = value(members_if_object(members_if_object(notification.params).get(META))[SUBSCRIPTION_ID])
    except (KeyError, ValueError):
        return None
    return id if isinstance(id, str) or type(id) is int else None


def listen_result(id: Id) -> Raw:
    """The result of the `subscriptions/listen` with this id, for a subscription that ends regularly."""
    return encode({RESULT_TYPE: COMPLETE, META: {SUBSCRIPTION_ID: id}})


def _as_json(chosen: Filter) -> Raw:
    made: dict[str, object] = {name: True for name, method in _LISTS.items() if method in chosen.lists}
    if chosen.uris:
        made[_URIS] = chosen.uris
    if chosen.tasks:
        made[_TASKS] = chosen.tasks
    return encode(made)


def _wanted(found: Mapping[str, Raw], name: str) -> bool:
    raw = bytes(found.get(name, b"null")).strip()
    if raw not in (b"true", b"false", b"null"):
        raise InvalidParams(f"the member {name!r} of {_FILTER!r} is neither true nor false")
    return raw == b"true"


def _strings_of(found: Mapping[str, Raw], name: str) -> tuple[str, ...]:
    listed = unless_null(found.get(name))
    if listed is None:
        return ()
    try:
        each = items(listed)
        if len(each) > MAX_WATCHED:
            raise InvalidParams(f"the member {name!r} of {_FILTER!r} names more than {MAX_WATCHED} at once")
        return tuple(dict.fromkeys(map(string, each)))
    except ValueError:
        raise InvalidParams(f"the member {name!r} of {_FILTER!r} is not an array of strings") from None


def _legible(raw: Raw | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_strings(raw)))


def _strings(raw: Raw | None) -> Iterator[str]:
    try:
        found = [] if raw is None else items(raw)
    except ValueError:
        return
    for each in found:
        try:
            yield string(each)
        except ValueError:
            continue
