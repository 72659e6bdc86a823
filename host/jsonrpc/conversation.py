"""Who asked what on one link, and what is still open. Pure state: nothing here can wait, and nothing here knows MCP's
methods but the one that every conversation must understand, `notifications/cancelled`.

`Outgoing` holds our own requests: each ends exactly once, by an answer or by being abandoned. `Incoming` holds the
peer's requests that we are working for: looked up only to find what a cancel names. Ids are compared with their JSON
type: `1`, `"1"` and `true` are three different things (`true` never gets past `messages.read`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from msgspec import Raw

from host.jsonrpc.messages import Failure, Id, Malformed, Notification, Request, Success
from host.jsonrpc.raw import encode, members, value

CANCELLED = "notifications/cancelled"

T = TypeVar("T")


class Outgoing(Generic[T]):
    """Our requests without an answer, each with whoever waits for it. Ids are integers that are never used again."""

    def __init__(self) -> None:
        self._waiting: dict[int, T] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting.values())

    def waiter(self, id: Id) -> T | None:
        """Whoever waits for the answer to this request."""
        return self._waiting.get(id) if type(id) is int else None

    def add(self, method: str, params: Raw | None, waiter: T) -> Request:
        self._last += 1
        self._waiting[self._last] = waiter
        return Request(self._last, method, params)

    def take(self, message: Success | Failure | Malformed) -> T | None:
        """Whoever waits for this answer, who waits no longer; None if nobody does (late, doubled or never asked)."""
        return self._waiting.pop(message.id, None) if type(message.id) is int else None

    def abandon(self, id: Id, reason: str | None) -> Notification | None:
        """Stop waiting. The notice that tells the peer, or None if the answer was here first."""
        if type(id) is not int or self._waiting.pop(id, None) is None:
            return None
        return cancel_notification(id, reason)

    def drain(self) -> Iterator[T]:
        """Everybody who waits; nobody will be answered any more."""
        waiting, self._waiting = self._waiting, {}
        yield from waiting.values()


class Incoming(Generic[T]):
    """The peer's requests in flight, each with the work that a cancel would stop.

    An id that is in flight more than once is served every time and cancelled never: nobody can tell which one is meant.
    """

    def __init__(self) -> None:
        self._work: dict[tuple[type, Id], list[T]] = {}
        self._count = 0

    def __contains__(self, id: Id) -> bool:
        return (type(id), id) in self._work

    def __iter__(self) -> Iterator[T]:
        for work in list(self._work.values()):
            yield from list(work)

    def __len__(self) -> int:
        return self._count

    def begin(self, id: Id, work: T) -> None:
        self._work.setdefault((type(id), id), []).append(work)
        self._count += 1

    def end(self, id: Id, work: T) -> None:
        left = self._work[(type(id), id)]
        left.remove(work)
        self._count -= 1
        if not left:
            del self._work[(type(id), id)]

    def cancelled_by(self, notice: Notification) -> T | None:
        """The work that a `notifications/cancelled` names; None if it names nothing in flight, or more than one."""
        id = cancelled_id(notice)
        if id is None:
            return None
        work = self._work.get((type(id), id), [])
        return work[0] if len(work) == 1 else None


def cancel_notification(id: Id, reason: str | None) -> Notification:
    """The notice that calls a request off (MCP 2025-11-25, "Cancellation")."""
    return Notification(CANCELLED, encode({"requestId": id} if reason is None else {"requestId": id, "reason": reason}))


def cancelled_id(notice: Notification) -> Id | None:
    """The id that a cancel names, or None if the notice is malformed (such a notice is ignored)."""
    id = _member(notice, "requestId")
    return id if type(id) is int or isinstance(id, str) else None


def cancelled_reason(notice: Notification) -> str | None:
    reason = _member(notice, "reason")
    return reason if isinstance(reason, str) else None


def _member(notice: Notification, name: str) -> object:
    try:
        found = members(notice.params or b"{}").get(name)
        return None if found is None else value(found)
    except ValueError:
        return None
