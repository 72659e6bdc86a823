"""Outstanding JSON-RPC requests on one link, in both directions. Pure state without I/O. The only MCP method known here
is `notifications/cancelled`.

`Outgoing` holds our own requests: each ends exactly once, with a response or by being abandoned. `Incoming` holds the
peer's requests that are being answered, so that a cancellation finds its request. Ids of the peer are compared with
their JSON type: `1` and `"1"` are different ids (`true` is refused by `messages.read`). Ours are integers only, so a
response with the id `"1"` can only mean `1`, as of servers that keep ids as text (`own_id`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar

from msgspec import Raw

from host.jsonrpc.messages import Failure, Id, Malformed, Notification, Request, Success
from host.jsonrpc.raw import encode, members, value

CANCELLED = "notifications/cancelled"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
"""The one text of each number: of other spellings, two could mean the same request."""

T = TypeVar("T")
Params: TypeAlias = Raw | Mapping[str, Raw] | None
"""The params of a request that is about to be sent: text, or members, which become text together with the request, so
that long ones are copied once. Their names can be written as UTF-8."""


class Outgoing(Generic[T]):
    """Our requests that have no response yet, each with its waiter. Ids are integers that are never used again.

    Args:
        last: an id below the first one.
    """

    def __init__(self, last: int = 0) -> None:
        self._waiting: dict[int, T] = {}
        self._last = last

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting.values())

    @property
    def next_id(self) -> int:
        """The id of the next request."""
        return self._last + 1

    def waiter(self, id: Id) -> T | None:
        """The waiter of this request, or None if the request is not outstanding."""
        return self._waiting.get(id) if type(id) is int else None  # the exact type, because `True == 1`

    def add(self, method: str, params: Params, waiter: T) -> Request:
        self._last += 1
        self._waiting[self._last] = waiter
        return Request(self._last, method, params)  # type: ignore[arg-type]  # it is written, and read by nobody

    def take(self, message: Success | Failure | Malformed) -> T | None:
        """Remove and return the waiter of this response; None if no request is outstanding under its id (the response
        is late, a duplicate, or its id was never used)."""
        id = message.id if type(message.id) is int else own_id(message.id)
        return None if id is None else self._waiting.pop(id, None)

    def abandon(self, id: Id, reason: str | None) -> Notification | None:
        """Stop waiting for a response. Returns the cancellation to send to the peer, or None if the response came
        first."""
        if type(id) is not int or self._waiting.pop(id, None) is None:
            return None
        return cancel_notification(id, reason)

    def drain(self, may_end: Callable[[T], bool] = lambda waiter: True) -> Iterator[T]:
        """Remove and return all waiters for which no further response can come."""
        # Emptied first: a waiter may send its next request while the others are being woken.
        waiting = self._waiting
        self._waiting = {id: waiter for id, waiter in waiting.items() if not may_end(waiter)}
        yield from (waiter for id, waiter in waiting.items() if id not in self._waiting)


class Incoming(Generic[T]):
    """The peer's requests in flight, each with the work that a cancellation would stop.

    If a peer uses an id for several requests at once, each of them is answered and none can be cancelled, because the
    cancellation does not tell them apart.
    """

    def __init__(self) -> None:
        self._work: dict[tuple[type, Id], list[T]] = {}
        self.count = 0
        """The number of requests."""

    def __contains__(self, id: Id) -> bool:
        return (type(id), id) in self._work

    def __iter__(self) -> Iterator[T]:
        for work in list(self._work.values()):  # copies: work may end while the caller iterates
            yield from list(work)

    def begin(self, id: Id, work: T) -> None:
        self._work.setdefault((type(id), id), []).append(work)
        self.count += 1

    def end(self, id: Id, work: T) -> None:
        left = self._work[(type(id), id)]
        left.remove(work)
        self.count -= 1
        if not left:
            del self._work[(type(id), id)]

    def cancelled_by(self, cancellation: Notification) -> T | None:
        """The work that a `notifications/cancelled` names; None if its id is not in flight, or more than once."""
        id = cancelled_id(cancellation)
        if id is None:
            return None
        work = self._work.get((type(id), id), [])
        return work[0] if len(work) == 1 else None


def own_id(id: Id | None) -> int | None:
    """The id of ours that a response with this id can mean: a number, also as text."""
    if type(id) is int:
        return id
    return int(id) if isinstance(id, str) and _NUMBER.fullmatch(id) else None


def cancel_notification(id: Id, reason: str | None) -> Notification:
    """The notification that cancels a request (MCP 2025-11-25, "Cancellation")."""
    return Notification(CANCELLED, encode({"requestId": id} if reason is None else {"requestId": id, "reason": reason}))


def cancelled_id(cancellation: Notification) -> Id | None:
    """The id of the request that is cancelled, or None if the notification is malformed and therefore ignored."""
    id = _member(cancellation, "requestId")
    return id if type(id) is int or isinstance(id, str) else None


def cancelled_reason(cancellation: Notification) -> str | None:
    reason = _member(cancellation, "reason")
    return reason if isinstance(reason, str) else None


def _member(notification: Notification, name: str) -> object:
    try:
        member = members(notification.params or b"{}").get(name)
        return None if member is None else value(member)
    except ValueError:
        return None
