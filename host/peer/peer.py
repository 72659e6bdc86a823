"""Peer: a JSON-RPC connection over a link, with `request`, `notify`, and a handler for the other side's messages.

Its reader never waits for other tasks: it hands each message to the pure state, and wakes a waiter, starts a task or
calls the handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import trio
from msgspec import Raw

from host.errors import TOO_LARGE, TOO_MANY_REQUESTS
from host.jsonrpc.conversation import CANCELLED, Incoming, Params, cancelled_reason
from host.jsonrpc.glance import LongMessage
from host.jsonrpc.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    ErrorBody,
    Failure,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    Success,
)
from host.jsonrpc.strict import count_tokens, has_more_tokens
from host.peer.outstanding import (
    BrokenAnswer,
    KeepOutline,
    LateResultCallback,
    OutstandingRequests,
    PeerError,
    RequestWatch,
)
from host.protocol.methods import PROGRESS
from host.wire.link import Link, LinkLost, Parcel, ReceivedMessage

MAX_NOTIFICATION = 128 * 1024
"""Bytes of the params of a notification."""
MAX_NOTIFICATION_TOKENS = 2_000
"""Structural characters outside strings in such params, all of which may have to be sanitized in the event loop."""
MAX_TOKENS = 10_000
"""Structural characters in the params of a request and in the data of an error, which are decoded in the event loop, a
microsecond for each."""
ENVELOPE_TOKENS = 16
"""Structural characters around the params, at most."""
TOO_MANY_TOKENS = ErrorBody(INVALID_PARAMS, f"params hold more than {MAX_TOKENS} structural characters")
MAX_SCANNED = 2 * 1024 * 1024
"""Bytes of a request's params up to which structural characters in strings are not counted. Longer params are not
scanned for strings; they are mostly images, which contain none."""
MAX_ERROR_DATA = 512 * 1024
"""Bytes of the data of an error."""
MAX_ERROR_MESSAGE = 16 * 1024
"""Characters of the message of an error; longer ones are cut."""
MAX_INCOMING = 64
"""Requests of the other side that are served at once. More are refused."""
MAX_ANSWERS = 1000
"""Immediate answers that wait to be sent; beyond them requests are dropped. A server may ask something for each of its
calls in one breath, and waits for every answer."""
MAX_SENDERS = 8
"""Immediate answers that are being sent: over HTTP each takes as long as its POST."""
REPLY_TIMEOUT = 10.0
"""Seconds in which the other side must take an immediate answer."""

T = TypeVar("T")
SendRequest = Callable[..., Awaitable[Raw]]
"""Sends a request and returns its result: `Peer.request`."""
Observe = Callable[["Peer[Any]", SendRequest], SendRequest]

Work = Callable[[], Awaitable[Raw]]
"""Computes the result of a request of the other side."""


class InFlight(Generic[T]):
    """The requests of ours to which a message of the other side may belong. Must be read at once: it is out of date a
    moment later.

    `exact`: the transport tells which request it belongs to. Then `subjects` has that one's subject, or none if the
    request is over. Otherwise `subjects` has the subjects of all requests in flight, oldest first, and
    `abandoned_owners` has the owners of recently cancelled requests, whose cancellation the other side may not know
    yet.
    """

    __slots__ = ("_outstanding", "about")

    def __init__(self, outstanding: OutstandingRequests[T], about: Id | None) -> None:
        self._outstanding = outstanding
        self.about = about

    @property
    def exact(self) -> bool:
        return self.about is not None

    @property
    def subjects(self) -> list[T]:
        if self.about is None:
            return self._outstanding.subjects()
        subject = self.subject_of(self.about)
        return [] if subject is None else [subject]

    def subject_of(self, id: Id) -> T | None:
        """The subject of the request in flight with this id, for messages that name the request they belong to."""
        return self._outstanding.subject_of(id)

    @property
    def is_over(self) -> bool:
        """Whether the transport tells which request it belongs to, and that request is over."""
        return self.exact and not self.subjects

    @property
    def abandoned_owners(self) -> set[Hashable]:
        return set() if self.exact else self._outstanding.abandoned_owners()


class Handler(Protocol[T]):
    def owner_of(self, subject: T) -> Hashable:
        """The owner of a request's subject: the part that is still known after its cancellation."""

    def on_request(self, peer: Peer[T], request: Request, in_flight: InFlight[T]) -> Work | Raw | ErrorBody:
        """Take a request of the other side, and return its result or error, or the function that computes the result;
        it raises PeerError to refuse. Present state must be read here: further messages may have arrived when the
        function runs. A few tasks send all immediate answers."""

    def refuses(self, method: str) -> ErrorBody | None:
        """The error for requests of this method if they are refused whatever their params are; long ones are then not
        read."""

    def on_notification(self, notice: Notification, in_flight: InFlight[T]) -> None:
        """Take a notification, other than progress and cancellations of served requests. Must not wait."""

    def on_dropped(
        self, what: str, detail: str, size: int = 0, *, awaited: bool = False, answers: str = "", text: bytes = b""
    ) -> None:
        """Record a message that was malformed, too large, or expected by no request. Must not wait.

        Args:
            size: its bytes, as far as they are known.
            awaited: it is the response to a request of ours.
            answers: if it is JSON and may be meant as a response, why it is none, in words of ours.
            text: the beginning of it, if it is no message.
        """


class Censor(Protocol):
    """Replaces texts in the messages of the other side. `where` says in words which message it is."""

    @property
    def knows_any(self) -> bool:
        """Whether there are such texts."""

    def clean_text(self, text: str, where: str) -> str: ...

    def clean(self, raw: Raw, where: str) -> Raw:
        """JSON with the texts replaced. Raises ValueError if it is too long to do so at once."""

    async def clean_result(self, raw: Raw, where: str) -> Raw:
        """Like `clean`, of any length."""


class Peer(Generic[T]):
    """See `open_peer`. `ended` is set when the link is gone; `lost` is then the reason."""

    def __init__(self, link: Link, handler: Handler[T], nursery: trio.Nursery, censor: Censor | None = None) -> None:
        self._censor = censor
        self._link = link
        self._handler = handler
        self._nursery = nursery
        self._outstanding: OutstandingRequests[T] = OutstandingRequests(handler.owner_of)
        self.progress_token = self._outstanding.progress_token
        self.watch_progress = self._outstanding.watch_progress
        self.unwatch_progress = self._outstanding.unwatch_progress
        self._incoming: Incoming[trio.CancelScope] = Incoming()
        self._answers: deque[tuple[Success | Failure, Id | None]] = deque()
        """Immediate answers to requests of the other side that are not being sent yet."""
        self._senders = 0
        self._begin_sending = trio.Lock()
        self.ended = trio.Event()
        self.lost = LinkLost("the connection was closed")
        self.received_count = 0
        """Number of all messages of the other side."""
        self.unasked_count = 0
        """Number of its requests and notifications, and of what it sent that is no message."""
        self.revision = ""
        """The name of the revision that was negotiated; empty before. For those who watch requests."""

    @property
    def hears_unasked(self) -> bool:
        """Whether messages of the other side that belong to no request can arrive."""
        return self._link.hears_unasked

    @property
    def next_id(self) -> int:
        """The id of the request that is sent next."""
        return self._outstanding.next_id

    def watch(self, watch: RequestWatch) -> None:
        """Have the requests from now on watched."""
        self._outstanding.watch = watch

    @property
    def outstanding_count(self) -> int:
        """Number of our requests without a response."""
        return len(self._outstanding)

    def request(
        self,
        method: str,
        params: Params = None,
        subject: T | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        on_late_result: LateResultCallback | None = None,
        keep_outline: KeepOutline | None = None,
    ) -> Awaitable[Raw]:
        """Send a request and wait for its result. Cancelling this cancels the request at the other side. `subject` is
        its purpose, which the handler gets with messages that belong to it. `headers` repeat parts of the request; see
        `Parcel`. A result after a cancellation goes to `on_late_result`. For `keep_outline` see KeepOutline; what the
        censor changes is another result.

        Raises:
            PeerError, BrokenAnswer, LinkLost: see `OutstandingRequests.request`.
        """
        link = self._link
        waiting = self._outstanding.request(
            method, params, link.send, link.send_cancel, subject, on_late_result, keep_outline, headers
        )
        censor = self._censor
        return waiting if censor is None or not censor.knows_any else _cleaned_result(waiting, censor, method)

    async def notify(self, method: str, params: Raw | None = None, about: Id | None = None) -> None:
        """Send a notification.

        Raises:
            LinkLost: it could not be sent.
        """
        await self._link.send(Parcel(Notification(method, params), about))

    async def run(self) -> None:
        """Read the other side's messages until the link ends."""
        try:
            await self._link.run(self._on_message)
        except LinkLost as lost:
            self.connection_lost(lost)
        finally:
            self.connection_lost(self.lost)  # also if the owner of this peer closes it

    def connection_lost(self, lost: LinkLost) -> None:
        """End all requests, because the connection is gone or unusable."""
        if not self.ended.is_set():
            self.lost = lost
            self.ended.set()
            self._outstanding.fail_all(lost)

    def _on_message(self, received: ReceivedMessage) -> None:
        self.received_count += 1
        self.unasked_count += 1
        message = received.message
        if isinstance(message, LongMessage):
            read = self._read_long(message)
            if read is None:
                return
            message = read
        if self._censor is not None and self._censor.knows_any:
            message = _cleaned(message, self._censor)
        # A response counts when the connection is over, too: over HTTP its exchange may still have been in progress.
        if isinstance(message, Success):
            self._on_response(message)
        elif isinstance(message, Failure):
            self._on_response(_bounded(message))
        elif self.ended.is_set():
            return
        elif isinstance(message, Notification):
            self._on_notification(message, received.about)
        elif isinstance(message, Request):
            self._on_request(message, received.about)
        else:
            self._on_malformed(message, received.size, received.text)

    def _read_long(self, long: LongMessage) -> Message | Malformed | None:
        """Read a long message; None if nobody waits for it, and it was dropped unread."""
        envelope = long.envelope
        if envelope.is_answer and not self._outstanding.awaits(envelope.id):
            self._on_unknown_id(envelope.id, len(long.text))
            return None
        if not envelope.is_answer and envelope.id is None:
            self._handler.on_dropped("notification too large", f"{envelope.method:.80}", len(long.text))
            return None
        if not envelope.is_answer and envelope.id is not None:
            refusal = self._handler.refuses(envelope.method)
            if refusal is None and _has_too_many_tokens(long.text, MAX_TOKENS + ENVELOPE_TOKENS):
                refusal = TOO_MANY_TOKENS
            if refusal is not None:
                self._handler.on_dropped("request too large", f"{envelope.method:.80}", len(long.text))
                if envelope.id not in self._incoming:
                    self._answer_soon(Failure(refusal, envelope.id))
                return None
        return long.read()

    def _on_response(self, message: Success | Failure) -> None:
        self.unasked_count -= 1
        if not self._outstanding.on_response(message):
            size = len(message.result) if isinstance(message, Success) else len(message.error.data or b"")
            self._on_unknown_id(message.id, size)

    def _on_unknown_id(self, id: Id | None, size: int) -> None:
        self._handler.on_dropped("unknown id", _unexpected(id), size, answers="an id that no request has")

    def _on_malformed(self, message: Malformed, size: int, text: bytes) -> None:
        too_long = message.code == TOO_LARGE
        what = "message too long" if too_long else "invalid message"
        awaited = message.answers and self._outstanding.awaits(message.id)
        answers = message.why if message.answers or message.code == INVALID_REQUEST else ""
        self._handler.on_dropped(what, message.why, size, awaited=awaited, answers=answers, text=text)
        if message.answers:
            self._outstanding.on_response(message)
        elif too_long and message.id is not None:
            self._answer_soon(Failure(ErrorBody(TOO_LARGE, message.why), message.id))

    def _on_notification(self, notice: Notification, about: Id | None) -> None:
        if notice.params is not None and _is_large(notice.params, MAX_NOTIFICATION, MAX_NOTIFICATION_TOKENS):
            self._handler.on_dropped("notification too large", f"{notice.method:.80}", len(notice.params))
        elif notice.method == PROGRESS:
            self._on_progress(notice)
        elif notice.method == CANCELLED:
            scope = self._incoming.cancelled_by(notice)
            if scope is not None:
                scope.cancel(cancelled_reason(notice))
            else:
                self._handler.on_notification(notice, InFlight(self._outstanding, about))
        else:
            self._handler.on_notification(notice, InFlight(self._outstanding, about))

    def _on_progress(self, notice: Notification) -> None:
        try:
            unknown = self._outstanding.on_progress(notice)
        except ValueError as problem:
            self._handler.on_dropped("invalid message", str(problem))
        else:
            if unknown is not None:
                self._handler.on_dropped("unknown progress token", unknown)

    def _on_request(self, request: Request, about: Id | None) -> None:
        params = request.params
        if len(self._answers) >= MAX_ANSWERS:
            self._handler.on_dropped("too many requests", f"{request.method:.80}", len(params or b""))
        elif request.id in self._incoming:
            # An error with this id would end the request that is being served, of which this may be a repetition.
            self._handler.on_dropped("request repeated", f"{request.method:.80}", len(params or b""))
        elif self._incoming.count >= MAX_INCOMING:
            self._handler.on_dropped("too many requests", f"{request.method:.80}", len(params or b""))
            error = ErrorBody(TOO_MANY_REQUESTS, f"more than {MAX_INCOMING} requests at once")
            self._answer_soon(Failure(error, request.id), about)
        elif params is not None and _has_too_many_tokens(bytes(params)):
            self._handler.on_dropped("request too large", f"{request.method:.80}", len(params))
            self._answer_soon(Failure(TOO_MANY_TOKENS, request.id), about)
        else:
            answer = self._handler.on_request(self, request, InFlight(self._outstanding, about))
            if isinstance(answer, Raw):
                self._answer_soon(Success(request.id, answer), about)
            elif isinstance(answer, ErrorBody):
                self._answer_soon(Failure(answer, request.id), about)
            else:
                scope = trio.CancelScope()  # known before the task runs: its cancellation may be in the same read
                self._incoming.begin(request.id, scope)
                self._nursery.start_soon(self._serve, request.id, answer, about, scope)

    async def _serve(self, id: Id, work: Work, about: Id | None, scope: trio.CancelScope) -> None:
        try:
            with scope:
                try:
                    answer: Success | Failure = Success(id, await work())
                except PeerError as refusal:
                    answer = Failure(refusal.error, id)
                await self._reply(answer, about)
        finally:
            self._incoming.end(id, scope)

    def _answer_soon(self, answer: Success | Failure, about: Id | None = None) -> None:
        if len(self._answers) < MAX_ANSWERS:
            self._answers.append((answer, about))
            if self._senders < MAX_SENDERS:
                self._senders += 1
                self._nursery.start_soon(self._send_answers)

    async def _send_answers(self) -> None:
        """Send immediate answers. All senders together begin one in each pass of the event loop: answering a flood
        takes no more of a pass than reading it does (`turns`)."""
        while True:
            async with self._begin_sending:  # takes a pass
                if not self._answers:
                    break
                answer, about = self._answers.popleft()
            with trio.move_on_after(REPLY_TIMEOUT):
                await self._reply(answer, about)
        self._senders -= 1

    async def _reply(self, answer: Success | Failure, about: Id | None) -> None:
        try:
            await self._link.send(Parcel(answer, about))
        except LinkLost:
            return  # the link itself reports its end


def _unexpected(id: Id | None) -> str:
    return f"an answer to {id!r:.80}, which nobody waits for"


def _is_large(raw: Raw, max_bytes: int, max_tokens: int) -> bool:
    return len(raw) > max_bytes or has_more_tokens(bytes(raw), max_tokens)


def _has_too_many_tokens(text: bytes, most: int = MAX_TOKENS) -> bool:
    if len(text) > MAX_SCANNED:
        return count_tokens(text) > most
    return has_more_tokens(text, most)


def _bounded(failure: Failure) -> Failure:
    """The error, without data that are too large and with a bounded message."""
    error = failure.error
    is_large = error.data is not None and _is_large(error.data, MAX_ERROR_DATA, MAX_TOKENS)
    if not is_large and len(error.message) <= MAX_ERROR_MESSAGE:
        return failure
    return Failure(
        ErrorBody(error.code, error.message[:MAX_ERROR_MESSAGE], None if is_large else error.data), failure.id
    )


def _cleaned(message: Message | Malformed, censor: Censor) -> Message | Malformed:
    """The message as the censor leaves it; results are cleaned by whoever waits for them. Parts that are too long for
    it are refused or left out."""
    if isinstance(message, Failure):
        error = message.error
        data, where = error.data, "an error"
        try:
            data = None if data is None else censor.clean(data, where)
        except ValueError:
            data = None
        return Failure(ErrorBody(error.code, censor.clean_text(error.message, where), data), message.id)
    if not isinstance(message, Request | Notification):
        return message
    method = censor.clean_text(message.method, "the name of a method")
    try:
        params = None if message.params is None else censor.clean(message.params, method)
    except ValueError as problem:
        id = message.id if isinstance(message, Request) else None
        return Malformed(INVALID_PARAMS if id is None else TOO_LARGE, f"the params of {method:.80} are {problem}", id)
    return Notification(method, params) if isinstance(message, Notification) else Request(message.id, method, params)


async def _cleaned_result(waiting: Awaitable[Raw], censor: Censor, method: str) -> Raw:
    result = await waiting
    try:
        return await censor.clean_result(result, f"the result of {method}")
    except ValueError as problem:
        raise BrokenAnswer(str(problem)) from None


@asynccontextmanager
async def open_peer(
    link: Link, handler: Handler[T], censor: Censor | None = None, observe: Observe | None = None
) -> AsyncIterator[Peer[T]]:
    """A peer for the block. The link's reader and the tasks that serve the other side's requests live until the end of
    the block's own clean-up, so that this can still send messages. All that the other side sends passes the censor.
    `observe`: takes the peer and its `request`, and returns what stands in its place, which watches the requests."""
    async with trio.open_nursery() as nursery:
        peer = Peer(link, handler, nursery, censor)
        if observe is not None:
            peer.request = observe(peer, peer.request)  # type: ignore[method-assign]  # unwatched requests take no step more
        nursery.start_soon(peer.run)
        try:
            yield peer
        finally:
            nursery.cancel_scope.cancel()
