"""Outstanding JSON-RPC requests on one connection. Each ends exactly once: with a result, an error, or cancellation.

Both directions use this: a peer sends requests to its server, a session to its client. This is the only place that
catches `trio.Cancelled`: a caller that stops waiting, for whatever reason, thereby cancels the request at the other
side, under the other side's id. The owner of this object sends the messages.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import trio
from msgspec import Raw, Struct

from host.errors import TOO_LARGE, copy_of
from host.jsonrpc.conversation import Outgoing, Params, own_id
from host.jsonrpc.messages import ErrorBody, Failure, Id, Malformed, Notification, Success
from host.jsonrpc.raw import members, value
from host.protocol.meta import PROGRESS_TOKEN
from host.protocol.methods import INITIALIZE
from host.wire.link import LinkLost, Parcel, unsent

CANCEL_SEND_GRACE = 2.0
"""Seconds for which the notice of a cancellation may delay the end of its caller."""
ABANDONED_SECONDS = 600.0
"""Seconds for which an abandoned request still counts as one that the other side may be working on."""
MAX_ABANDONED = 10_000
"""Abandoned requests that are remembered; beyond, the oldest are forgotten, and a response to them counts as useless.
"""
MAX_CANCELLED_TOKENS = 1_000
"""Progress tokens of cancelled requests that are remembered; beyond, the oldest are forgotten."""

_WATCHED = re.compile(r"c[1-9][0-9]{0,18}")
"""Tokens of `watch_progress`; those of `progress_token` are numbers."""

T = TypeVar("T")

LateResultCallback = Callable[[Raw], None]
"""Takes the result of a request that was cancelled and completed all the same; must not wait."""
KeepOutline = Callable[[Raw, Raw], None]
"""Takes a result that is about to be returned, and its outline, which was made when it was read."""


class PeerError(Exception):
    """The other side responded to a request with a JSON-RPC error."""

    def __init__(self, error: ErrorBody) -> None:
        super().__init__(error.message)
        self.error = error


class BrokenAnswer(Exception):
    """The other side's response to a request is malformed."""


class AnswerTooLong(BrokenAnswer):
    """The response was discarded because of its length."""


class RequestWatch(Protocol):
    """Watches the requests of a connection."""

    now: Callable[[], float]
    """A clock, in seconds."""

    def on_ended(
        self, method: str, params: Params, subject: Any, seconds: float, result: Raw | None, why: Exception | None
    ) -> object:
        """A request has ended, so many seconds after it began: with this result, or without one because of `why`, or
        because it was called off. Must not wait, and must not raise."""


class _Waiter(Struct, Generic[T], eq=False):
    subject: T | None
    outcome: Success | Exception | None = None
    _task: trio.lowlevel.Task | None = None
    """The task that waits. An event would take three times the steps."""

    def set_outcome(self, outcome: Success | Exception) -> None:
        self.outcome = outcome
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def is_waiting(self) -> bool:
        return self._task is not None

    async def wait(self) -> None:
        """Wait until the outcome is set. No checkpoint comes first, so one that is set from now on is not missed."""
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class OutstandingRequests(Generic[T]):
    """The requests in flight. Each may have a subject: the purpose of the request, with which messages of the other
    side are compared (`subject_of`, `subjects`). Of an abandoned request only the result of `owner_of` and the callback
    for a late result are kept. `last_id`: an id below the first one."""

    def __init__(self, owner_of: Callable[[T], Hashable] = id, *, last_id: int = 0) -> None:
        self._owner_of = owner_of
        self._requests: Outgoing[_Waiter[T]] = Outgoing(last_id)
        self._abandoned: dict[int, tuple[Hashable | None, float, LateResultCallback | None]] = {}
        self._progress: dict[int, Callable[[dict[str, Raw]], None]] = {}
        self._cancelled_tokens: dict[int, None] = {}
        """Progress tokens of cancelled requests, oldest first. The other side may not know of the cancellation yet, or
        ignore it, and go on reporting progress (2025-11-25, "Cancellation")."""
        self._last_token = 0
        self._watched: dict[str, Callable[[dict[str, Raw]], object]] = {}
        self._last_watched = 0
        self._lost: LinkLost | None = None
        self.watch: RequestWatch | None = None

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def next_id(self) -> int:
        """The id of the request that is sent next."""
        return self._requests.next_id

    async def request(
        self,
        method: str,
        params: Params,
        send: Callable[[Parcel], Awaitable[None]],
        send_cancel: Callable[[Id, Notification], Awaitable[None]],
        subject: T | None = None,
        on_late_result: LateResultCallback | None = None,
        keep_outline: KeepOutline | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Raw:
        """Send a request and wait for its result. Cancelling this cancels the request at the other side; a result that
        comes all the same goes to `on_late_result`. For `keep_outline` see KeepOutline, for `headers` Parcel.

        Raises:
            PeerError: the other side returned an error.
            BrokenAnswer: the response is malformed.
            LinkLost: the connection is gone. It is unknown whether the request was carried out.
        """
        if self._lost is not None:
            raise unsent(self._lost)
        watch = self.watch
        began = 0.0 if watch is None else watch.now()
        waiter = _Waiter(subject)
        request = self._requests.add(method, params, waiter)
        assert isinstance(request.id, int)
        try:
            await send(Parcel(request, None, headers))
            if waiter.outcome is None and self._lost is None:  # over HTTP it comes before the exchange ends
                await waiter.wait()
        except trio.Cancelled as cancelled:
            notice = self._abandon(
                request.id, subject, cancelled.reason or "the caller no longer waits", on_late_result
            )
            # initialize must not be cancelled (2025-11-25, "Cancellation"): a client that gives up on it must
            # disconnect.
            if notice is not None and method != INITIALIZE and self._lost is None:
                # Shielded: this task is cancelled, and would be again at the first wait.
                with trio.move_on_after(CANCEL_SEND_GRACE, shield=True):
                    await send_cancel(request.id, notice)
            if watch is not None:
                watch.on_ended(method, params, subject, watch.now() - began, None, None)
            raise
        except LinkLost as lost:
            # The response may have come before the connection broke; then it counts. An error that says that nothing
            # has begun says more than that of the connection.
            if waiter.outcome is None:
                if lost.nothing_begun:
                    self._requests.abandon(request.id, None)
                    waiter.outcome = lost
                elif self._lost is None:
                    self._abandon(request.id, subject, None)
                    waiter.outcome = lost
        outcome = self._end_sent(request.id) if waiter.outcome is None else waiter.outcome
        if isinstance(outcome, Exception):
            if watch is not None:
                watch.on_ended(method, params, subject, watch.now() - began, None, outcome)
            raise outcome
        if keep_outline is not None and outcome.outline is not None:
            keep_outline(outcome.result, outcome.outline)
        if watch is not None:
            watch.on_ended(method, params, subject, watch.now() - began, outcome.result, None)
        return outcome.result

    def on_response(self, message: Success | Failure | Malformed) -> bool:
        """Take a response, or a malformed one. Returns False if its id was never used: a response to a cancelled
        request is legal, and ignored."""
        waiter = self._requests.take(message)
        if waiter is None:
            id = own_id(message.id)
            return id is not None and self._on_late_response(id, message)
        if isinstance(message, Success):
            waiter.set_outcome(message)
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

    def awaits(self, id: Id | None) -> bool:
        """Whether a response with this id is waited for, or was until recently."""
        own = own_id(id)
        return own is not None and (self._requests.waiter(own) is not None or own in self._abandoned)

    def subject_of(self, id: Id) -> T | None:
        """The subject of the request in flight with this id."""
        waiter = self._requests.waiter(id)
        return None if waiter is None else waiter.subject

    def subjects(self) -> list[T]:
        """The subjects of the requests in flight, oldest first."""
        return [waiter.subject for waiter in self._requests if waiter.subject is not None]

    def abandoned_owners(self) -> set[Hashable]:
        """Owners of recently abandoned requests: the other side may not know yet, and still work for them."""
        self._prune_abandoned()
        return {owner for owner, _, _ in self._abandoned.values() if owner is not None}

    @contextmanager
    def progress_token(self, report: Callable[[dict[str, Raw]], None]) -> Iterator[int]:
        """A token for the block under which the other side may report progress. `report` gets the members of each
        notification and must not wait."""
        self._last_token += 1
        token = self._last_token
        self._progress[token] = report
        try:
            yield token
        finally:
            del self._progress[token]
            if trio.current_effective_deadline() == -inf:  # the block was cancelled
                self._cancelled_tokens[token] = None
                if len(self._cancelled_tokens) > MAX_CANCELLED_TOKENS:
                    del self._cancelled_tokens[next(iter(self._cancelled_tokens))]

    def watch_progress(self, report: Callable[[dict[str, Raw]], object]) -> str:
        """A progress token for a request whose reports no client gets. It is good until `unwatch_progress`; later
        reports are ignored. Not a context manager as `progress_token` is, because nearly every call has one."""
        self._last_watched += 1
        token = f"c{self._last_watched}"
        self._watched[token] = report
        return token

    def unwatch_progress(self, token: str) -> None:
        del self._watched[token]

    def on_progress(self, notice: Notification) -> str | None:
        """Take a progress notification. Returns its token if no request has used it, or if the request has completed:
        progress for a cancelled request is legal, and ignored.

        Raises:
            ValueError: it has no token.
        """
        try:
            params = members(notice.params or b"")
            token = value(params[PROGRESS_TOKEN])
        except (ValueError, KeyError):
            raise ValueError("a progress notification without a token") from None
        if type(token) is int:  # `True == 1`
            report = self._progress.get(token)
            if report is not None:
                report(params)
                return None
            if token in self._cancelled_tokens:
                return None
        elif isinstance(token, str):
            watching = self._watched.get(token)
            if watching is not None:
                watching(params)
                return None
            if _WATCHED.fullmatch(token) and int(token[1:]) <= self._last_watched:
                return None
        return f"{token!r:.80}"

    def fail_all(self, lost: LinkLost) -> None:
        """End all requests, because the connection is gone; those whose sending is in progress only when that ends,
        because over HTTP it may still bring their response."""
        if self._lost is None:
            self._lost = lost
            for waiter in self._requests.drain(_Waiter.is_waiting):
                waiter.set_outcome(copy_of(lost))

    def _end_sent(self, id: Id) -> LinkLost:
        """End a request whose sending went on after the connection was lost, and brought no response."""
        assert self._lost is not None
        self._requests.abandon(id, None)
        return copy_of(self._lost)

    def _abandon(
        self, id: int, subject: T | None, reason: str | None, on_late_result: LateResultCallback | None = None
    ) -> Notification | None:
        notice = self._requests.abandon(id, reason)
        if notice is not None and self._lost is None:
            self._prune_abandoned()
            owner = None if subject is None else self._owner_of(subject)
            self._abandoned[id] = owner, trio.current_time() + ABANDONED_SECONDS, on_late_result
        return notice

    def _prune_abandoned(self) -> None:
        """Drop requests that were abandoned long ago; the oldest come first."""
        now = trio.current_time()
        while self._abandoned:
            id, (_, expires_at, _) = next(iter(self._abandoned.items()))
            if expires_at > now and len(self._abandoned) < MAX_ABANDONED:
                return
            del self._abandoned[id]
