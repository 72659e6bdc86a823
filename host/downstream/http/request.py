"""What every way in over HTTP shares: how a body is read, how a request is turned away, and how a client's leaving is
noticed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

import trio
from msgspec import Raw

from host.downstream.charge import NO_MEMORY_MESSAGE, RequestCharge
from host.downstream.http.replies import respond
from host.downstream.http.security import MAX_BODY, Headers, Refusal
from host.downstream.reading import MessageReader
from host.errors import TooManyRequests, Unavailable
from host.jsonrpc.messages import INVALID_REQUEST, PARSE_ERROR, Id, ParsedInput
from host.jsonrpc.messages import receive as receive_at_once
from host.jsonrpc.strict import is_heavy
from host.memory import OverBudget
from host.wire.asgi import Receive, Send

BODY_TIMEOUT = 10.0
JSON = {"content-type": "application/json"}
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


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


class ClientGone(Exception):
    """The client left while it was sending its request."""


async def read_body(receive: Receive, charge: RequestCharge) -> bytes:
    """The whole body, within the limits of size, time and memory. Memory is charged as the bytes come: what a client
    only announces takes none.

    Raises:
        Rejected: it is too long, or too slow, or there is no memory for it.
        ClientGone: it will not come.
    """
    parts: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_TIMEOUT), charge.droppable():
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise ClientGone
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY:
                raise Rejected(Refusal(413, f"a message is at most {MAX_BODY} bytes", {"connection": "close"}))
            more = event.get("more_body", False)
            try:
                charge.add_request_bytes(len(parts[-1]))
                if not more:
                    charge.begin_processing()
            except OverBudget:
                raise _no_memory() from None
            if not more:
                return b"".join(parts)
    if charge.dropped:
        raise _no_memory()
    why = f"the body did not come within {BODY_TIMEOUT:.0f} s"
    raise Rejected(Refusal(408, why, {"connection": "close"}), PARSE_ERROR)


async def read_message(
    receive: Receive, reader: MessageReader, charge: RequestCharge, identity: str | None = None
) -> ParsedInput:
    """The message, or the batch, that is the body. For `identity` see `MessageReader.read`.

    Raises:
        Rejected: the body is too long or too slow, there is no memory for it, or too many large ones are being read.
        ClientGone: the client has left.
    """
    data = await read_body(receive, charge)
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


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncIterator[trio.Nursery]:
    """The block ends when the client leaves, at the latest."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
        yield nursery
        nursery.cancel_scope.cancel()


async def cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel the scope when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel("the client left")


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
