"""Our requests to one other side, from the moment they are sent to their one end: an answer, an error, or giving up.

Both directions use this: a peer asks its server, a session asks its client. Here is the one place that catches
`trio.Cancelled`: whoever stops waiting for an answer, for whatever reason, thereby calls the request off at the other
side, in the other side's id. How a message travels is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio
from msgspec import Raw

from host.errors import TOO_LARGE, copy_of
from host.jsonrpc.conversation import Outgoing
from host.jsonrpc.messages import ErrorBody, Failure, Id, Malformed, Notification, Request, Success
from host.jsonrpc.raw import members, value
from host.protocol.meta import PROGRESS_TOKEN
from host.protocol.methods import INITIALIZE
from host.wire.link import LinkLost

CANCEL_SEND_GRACE = 2.0
ABANDONED_SECONDS = 600.0
"""Seconds for which an abandoned request still counts as one that the other side may be working for."""
MAX_ABANDONED = 10_000

T = TypeVar("T")

LateResultCallback = Callable[[Raw], None]
"""Takes the result of a request that was called off and carried out all the same; must not wait."""


class PeerError(Exception):
    """The other side answered a request with a JSON-RPC error."""

    def __init__(self, error: ErrorBody) -> None:
        super().__init__(error.message)
        self.error = error


class BrokenAnswer(Exception):
    """The other side answered a request with something that is no answer."""


class AnswerTooLong(BrokenAnswer):
    """The answer was discarded because of its length."""


class _Waiter(Generic[T]):
    __slots__ = ("done", "outcome", "subject")

    def __init__(self, subject: T | None) -> None:
        self.done = trio.Event()
        self.outcome: Raw | Exception | None = None
        self.subject = subject

    def set_outcome(self, outcome: Raw | Exception) -> None:
        self.outcome = outcome
        self.done.set()


class OutstandingRequests(Generic[T]):
    """The requests in flight. Each may have a subject: what it is sent for, which the other side's own messages are
    held against (`subject_of`, `subjects`). Of one that was abandoned no more is kept than `owner_of` says of it, and
    who takes a result that comes late."""

    def __init__(self, owner_of: Callable[[T], Hashable] = id) -> None:
        self._owner_of = owner_of
        self._requests: Outgoing[_Waiter[T]] = Outgoing()
        self._abandoned: dict[int, tuple[Hashable | None, float, LateResultCallback | None]] = {}
        self._progress: dict[int, Callable[[dict[str, Raw]], None]] = {}
        self._last_token = 0
        self._lost: LinkLost | None = None

    def __len__(self) -> int:
        return len(self._requests)

    async def request(
        self,
        method: str,
        params: Raw | None,
        send: Callable[[Request], Awaitable[None]],
        send_cancel: Callable[[Id, Notification], Awaitable[None]],
        subject: T | None = None,
        on_late_result: LateResultCallback | None = None,
    ) -> Raw:
        """Ask, and wait for the result. Cancelling this calls the request off at the other side. A result that comes
        all the same goes to `on_late_result`.

        Raises:
            PeerError: the other side refused.
            BrokenAnswer: it answered with something that is no answer.
            LinkLost: the way to it was, or is now, gone. Whether the request was carried out is then unknown.
        """
        if self._lost is not None:
            raise copy_of(self._lost)
        waiter = _Waiter(subject)
        request = self._requests.add(method, params, waiter)
        assert isinstance(request.id, int)
        try:
            await send(request)
            await waiter.done.wait()
        except trio.Cancelled as cancelled:
            notice = self._abandon(
                request.id, subject, cancelled.reason or "the caller no longer waits", on_late_result
            )
            # initialize must not be called off (2025-11-25, "Cancellation"): whoever gives up on it leaves altogether.
            if notice is not None and method != INITIALIZE and self._lost is None:
                with trio.move_on_after(CANCEL_SEND_GRACE, shield=True):
                    await send_cancel(request.id, notice)
            raise
        except LinkLost as lost:
            # The answer may have come before the exchange broke: then it counts.
            if waiter.outcome is None:
                if lost.nothing_begun:
                    self._requests.abandon(request.id, None)
                else:
                    self._abandon(request.id, subject, None)
                raise
        outcome = waiter.outcome
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    def on_response(self, message: Success | Failure | Malformed) -> bool:
        """Take an answer, or what should have been one. False if nobody waits for it, nor ever did: an answer to a
        request that was called off meanwhile is lawful, and means nothing."""
        waiter = self._requests.take(message)
        if waiter is None:
            return type(message.id) is int and self._on_late_response(message.id, message)
        if isinstance(message, Success):
            waiter.set_outcome(message.result)
        elif isinstance(message, Failure):
            waiter.set_outcome(PeerError(message.error))
        else:
            waiter.set_outcome((AnswerTooLong if message.code == TOO_LARGE else BrokenAnswer)(message.why))
        return True

    def _on_late_response(self, id: int, message: Success | Failure | Malformed) -> bool:
        if id not in self._abandoned:
            return False
        _, _, on_late_result = self._abandoned.pop(id)
        if on_late_result is not None and isinstance(message, Success):
            on_late_result(message.result)
        return True

    def subject_of(self, id: Id) -> T | None:
        """What the request in flight with this id is for."""
        waiter = self._requests.waiter(id)
        return None if waiter is None else waiter.subject

    def subjects(self) -> list[T]:
        """The subjects of the requests in flight, oldest first."""
        return [waiter.subject for waiter in self._requests if waiter.subject is not None]

    def abandoned_owners(self) -> set[Hashable]:
        """Whose requests were abandoned not long ago: the other side may not know yet, and still work for them."""
        self._prune_abandoned()
        return {owner for owner, _, _ in self._abandoned.values() if owner is not None}

    @contextmanager
    def progress_token(self, report: Callable[[dict[str, Raw]], None]) -> Iterator[int]:
        """A token under which the other side may report progress while the block runs; `report` gets the members of
        each report and must not wait."""
        self._last_token += 1
        token = self._last_token
        self._progress[token] = report
        try:
            yield token
        finally:
            del self._progress[token]

    def on_progress(self, notice: Notification) -> str | None:
        """Take a progress notification. The token if nobody wants progress under it (any more).

        Raises:
            ValueError: it has no token.
        """
        try:
            params = members(notice.params or b"")
            token = value(params[PROGRESS_TOKEN])
        except (ValueError, KeyError):
            raise ValueError("a progress notification without a token") from None
        report = self._progress.get(token) if type(token) is int else None
        if report is None:
            return f"{token!r:.80}"
        report(params)
        return None

    def fail_all(self, lost: LinkLost) -> None:
        """The other side is gone: nobody waits for it any more."""
        if self._lost is None:
            self._lost = lost
            for waiter in self._requests.drain():
                waiter.set_outcome(copy_of(lost))

    def _abandon(
        self, id: int, subject: T | None, reason: str | None, on_late_result: LateResultCallback | None = None
    ) -> Notification | None:
        notice = self._requests.abandon(id, reason)
        if notice is not None:
            self._prune_abandoned()
            owner = None if subject is None else self._owner_of(subject)
            self._abandoned[id] = owner, trio.current_time() + ABANDONED_SECONDS, on_late_result
        return notice

    def _prune_abandoned(self) -> None:
        """Let go of what was abandoned long ago; the oldest stand first."""
        now = trio.current_time()
        while self._abandoned:
            id, (_, expires_at, _) = next(iter(self._abandoned.items()))
            if expires_at > now and len(self._abandoned) < MAX_ABANDONED:
                return
            del self._abandoned[id]
