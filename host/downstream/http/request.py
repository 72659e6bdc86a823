"""Parts common to the HTTP transports: a checked request, reading of its message, and refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Raw, Struct
from msgspec.structs import replace

from host.downstream.charge import NO_MEMORY_MESSAGE, RequestCharge
from host.downstream.http.security import MAX_BODY, CheckedHead, Refusal, refuse_revoked
from host.downstream.reading import MessageReader
from host.errors import TooManyRequests, Unavailable
from host.jsonrpc.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorBody,
    Failure,
    Id,
    ParsedInput,
    receive_at_once,
    write,
)
from host.memory import OverBudget
from host.source import Endpoint
from host.wire.asgi import (
    BODY_TIMEOUT,
    NO_HEADERS,
    BodyTooLarge,
    ClientGone,
    Event,
    Headers,
    Immediate,
    Receive,
    Send,
    read_body_untimed,
    respond,
    wait_disconnected,
)
from host.wire.deadlines import CallScope

JSON = {"content-type": "application/json"}
FORWARDED = "colonnade.forwarded"
"""Extension of the scope of a request that another process of the fleet has forwarded (host/fleet/inner.py)."""


class Rejected(Exception):
    """Refusal of an HTTP request; `id` is echoed if it is known."""

    def __init__(
        self, refusal: Refusal, code: int = INVALID_REQUEST, id: Id | None = None, data: Raw | None = None
    ) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal
        self.code = code
        self.id = id
        self.data = data


async def refuse(send: Send, cors_headers: Mapping[str, str], rejected: Rejected) -> None:
    """Answer a request that is refused."""
    answer = Failure(ErrorBody(rejected.code, rejected.refusal.why, rejected.data), rejected.id)
    headers = {**cors_headers, **JSON, **rejected.refusal.headers}
    await respond(send, rejected.refusal.status, headers, write(answer))


class HttpRequest(Struct, frozen=True):
    """One HTTP request that has passed the checks of the app."""

    method: str
    endpoint: Endpoint
    suffix: str
    """The rest of the path, after that of the transport: nothing, `<server>` or `@<view>`."""
    query: str
    head: CheckedHead
    identity: str | None
    """The name of its access token; None if the endpoint requires none."""
    receive: Receive
    send: Send
    charge: RequestCharge
    at_once: Immediate | None = None
    """The steps that need no waiting; None with a listener that always waits."""
    address: str = ""
    """The client's IP address; empty if the listener does not say it."""
    is_forwarded: bool = False
    """Another process of the fleet has forwarded it; it goes no further."""

    @property
    def headers(self) -> Headers:
        return self.head.headers

    def call_scope(self) -> CallScope:
        """The scope for a call in the task of this request; see `asgi.Immediate.take_scope`."""
        return CallScope() if self.at_once is None else self.at_once.take_scope()

    @property
    def cors_headers(self) -> Mapping[str, str]:
        return self.head.cors_headers

    def begin_response(self, status: int, headers: Mapping[str, str], data: bytes) -> Awaitable[None] | None:
        """Send a whole response; see `asgi.Immediate.begin_response`."""
        if self.head.cors_headers:
            headers = {**self.head.cors_headers, **headers}
        if self.at_once is None:
            return respond(self.send, status, headers, data, self.charge.touch)
        return self.at_once.begin_response(status, tuple(headers.items()), data, self.charge.touch)

    async def go_on(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve a stream after this has returned, or in it; see `asgi.Immediate.go_on`. `serve` may raise no Rejected,
        and holds nothing of this request."""
        if self.at_once is None:
            self.charge.release()  # the request is over here too
            await serve()
        else:
            self.at_once.go_on(serve)

    async def respond(self, status: int, headers: Mapping[str, str] = NO_HEADERS, data: bytes = b"") -> None:
        await respond(self.send, status, {**self.cors_headers, **headers}, data)


def take_body(http_request: HttpRequest) -> bytes | None:
    """The whole body, charged, if it came with the head; otherwise None, and `read_charged_body` reads it.

    Raises:
        Rejected: there is no memory for it.
    """
    data = None if http_request.at_once is None else http_request.at_once.take_body(MAX_BODY)
    if data is not None:
        try:
            http_request.charge.begin_processing(len(data))
        except OverBudget:
            raise not_charged(http_request.charge) from None
    return data


async def read_charged_body(receive: Receive, charge: RequestCharge, scope: CallScope | None = None) -> bytes:
    """Read the whole body, within the limits of size, time and memory. Memory is charged as bytes arrive: an announced
    length alone takes none.

    Args:
        scope: the one that the request has in its task; by default a new one, which costs more.

    Raises:
        Rejected: the body is too long or too slow, or there is no memory for it.
        ClientGone: the client disconnected.
    """
    data: bytes | None = None
    scope = scope or CallScope()
    with scope:
        scope.deadline = trio.current_time() + BODY_TIMEOUT
        charge.cancel_on_drop(scope)
        try:
            data = await read_body_untimed(receive, MAX_BODY, charge.add_request_bytes)
            charge.begin_processing()
        except OverBudget:
            raise not_charged(charge) from None
        except BodyTooLarge:
            too_large = Refusal(413, f"a message is at most {MAX_BODY} bytes", {"connection": "close"})
            raise Rejected(too_large) from None
    if data is not None:
        return data
    if charge.dropped:
        raise not_charged(charge)
    why = f"the body did not arrive within {BODY_TIMEOUT:.0f} s"
    raise Rejected(Refusal(408, why, {"connection": "close"}), PARSE_ERROR)


async def whole_body(http_request: HttpRequest) -> bytes:
    """The whole body, charged. Raises as `read_charged_body` does."""
    body = take_body(http_request)
    return await read_charged_body(http_request.receive, http_request.charge) if body is None else body


def with_body(http_request: HttpRequest, body: bytes) -> HttpRequest:
    """A request whose body was read, to be read once more: then it is charged once."""
    receive, is_given = http_request.receive, False

    async def replay() -> Event:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        await trio.lowlevel.checkpoint()
        http_request.charge.begin_again()
        return {"type": "http.request", "body": body, "more_body": False}

    return replace(http_request, receive=replay, at_once=None)


async def read_message(http_request: HttpRequest, reader: MessageReader) -> ParsedInput:
    """Read and parse the body: a message or a batch.

    Raises:
        Rejected: the body is too long or too slow, there is no memory for it, or too many large ones are being read.
        ClientGone: the client disconnected.
    """
    receive, charge = http_request.receive, http_request.charge
    data = take_body(http_request)
    if data is None:
        data = await read_charged_body(receive, charge, http_request.call_scope())
    if (found := receive_at_once(data)) is not None:
        if reader.on_read is not None:
            reader.on_read(found, http_request.head.headers)
        return found
    read: ParsedInput | TooManyRequests | None = None
    disconnected = False

    async def watch_disconnect() -> None:
        nonlocal disconnected
        await wait_disconnected(receive)
        disconnected = True
        nursery.cancel_scope.cancel("the client left")

    with charge.droppable() as dropping:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_disconnect)
            try:
                read = await reader.read(data, identity=http_request.identity)
            except TooManyRequests as problem:
                read = problem
            nursery.cancel_scope.cancel()
    if dropping.cancelled_caught:
        raise not_charged(charge)
    if disconnected or read is None:
        raise ClientGone
    if isinstance(read, TooManyRequests):
        raise Rejected(Refusal(503, read.message, {"retry-after": "1"}), read.code)
    if reader.on_read is not None:
        reader.on_read(read, http_request.headers)
    return read


def not_charged(charge: RequestCharge) -> Rejected:
    """Refusal of a request whose memory cannot be had, or was taken back before anything was carried out."""
    if charge.revoked:
        return Rejected(refuse_revoked(charge.revoked))
    return Rejected(Refusal(503, NO_MEMORY_MESSAGE, {"retry-after": "1", "connection": "close"}), Unavailable.code)
