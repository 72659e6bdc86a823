"""Parts that all transports over HTTP share: a request that passed the checks, how its message is read, and how it is
refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import trio
from msgspec import Raw

from host.downstream.charge import NO_MEMORY_MESSAGE, RequestCharge
from host.downstream.http.security import MAX_BODY, Refusal
from host.downstream.reading import MessageReader
from host.errors import TooManyRequests, Unavailable
from host.jsonrpc.messages import INVALID_REQUEST, PARSE_ERROR, Id, ParsedInput
from host.jsonrpc.messages import receive as receive_at_once
from host.jsonrpc.strict import is_heavy
from host.memory import OverBudget
from host.wire.asgi import (
    BODY_TIMEOUT,
    NO_HEADERS,
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    Headers,
    Receive,
    Send,
    read_body,
    respond,
)

JSON = {"content-type": "application/json"}


class Rejected(Exception):
    """The HTTP answer is a refusal; `id` is echoed where there is one."""

    def __init__(
        self, refusal: Refusal, code: int = INVALID_REQUEST, id: Id | None = None, data: Raw | None = None
    ) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal
        self.code = code
        self.id = id
        self.data = data


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request that has passed the door."""

    method: str
    endpoint: str | None
    """The one server whose own endpoint is asked, or None for the endpoint of all servers."""
    query: str
    headers: Headers
    identity: str | None
    """The name of the token that it came with; None if nobody needs one."""
    cors_headers: Mapping[str, str]
    """Headers for every answer: those that let a page of a listed origin read it."""
    receive: Receive
    send: Send
    charge: RequestCharge

    async def respond(self, status: int, headers: Mapping[str, str] = NO_HEADERS, data: bytes = b"") -> None:
        await respond(self.send, status, {**self.cors_headers, **headers}, data)


async def read_charged_body(receive: Receive, charge: RequestCharge) -> bytes:
    """The whole body, within the limits of size, time and memory. Memory is charged as the bytes come: what a client
    only announces takes none.

    Raises:
        Rejected: it is too long, or too slow, or there is no memory for it.
        ClientGone: it will not come.
    """
    data = b""
    with charge.droppable() as dropping:
        try:
            data = await read_body(receive, MAX_BODY, charge.add_request_bytes)
            charge.begin_processing()
        except OverBudget:
            raise _no_memory() from None
        except BodyTooLarge:
            too_large = Refusal(413, f"a message is at most {MAX_BODY} bytes", {"connection": "close"})
            raise Rejected(too_large) from None
        except BodyTooSlow:
            why = f"the body did not come within {BODY_TIMEOUT:.0f} s"
            raise Rejected(Refusal(408, why, {"connection": "close"}), PARSE_ERROR) from None
    if dropping.cancelled_caught:
        raise _no_memory()
    return data


async def read_message(
    receive: Receive, reader: MessageReader, charge: RequestCharge, identity: str | None = None
) -> ParsedInput:
    """The message, or the batch, that is the body. For `identity` see `MessageReader.read`.

    Raises:
        Rejected: the body is too long or too slow, there is no memory for it, or too many large ones are being read.
        ClientGone: the client has left.
    """
    data = await read_charged_body(receive, charge)
    if not is_heavy(data):
        return receive_at_once(data)
    read: ParsedInput | TooManyRequests | None = None
    disconnected = False

    async def watch_disconnect() -> None:
        nonlocal disconnected
        while (await receive())["type"] != "http.disconnect":
            pass
        disconnected = True
        nursery.cancel_scope.cancel("the client left")

    with charge.droppable() as dropping:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_disconnect)
            try:
                read = await reader.read(data, identity=identity)
            except TooManyRequests as problem:
                read = problem
            nursery.cancel_scope.cancel()
    if dropping.cancelled_caught:
        raise _no_memory()
    if disconnected or read is None:
        raise ClientGone
    if isinstance(read, TooManyRequests):
        raise Rejected(Refusal(503, read.message, {"retry-after": "1"}), read.code)
    return read


def _no_memory() -> Rejected:
    return Rejected(Refusal(503, NO_MEMORY_MESSAGE, {"retry-after": "1", "connection": "close"}), Unavailable.code)
