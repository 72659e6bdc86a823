"""The seam to HTTP: the types of ASGI 3.0 that Colonnade's apps and listeners agree on, four extensions of it, and
what every app does with them: read headers and a body, answer, and notice that the client has left.

By one extension an app tells the listener whose request it handed over, which only the app can know; a listener without
it serves everything. By another, the listener of a Unix socket tells the app which process sent the request. By the
third, an app does at once what needs no waiting: nearly always a short body has come with its head, and a short answer
or event fits into the socket, so none needs a deadline or a scope to be cancelled by. A stream that waits for events
has no task but that of its connection, and a request that another process answers may be answered by another task. By
the fourth, an app reads once what the head of a request says: most clients repeat theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import trio

from .deadlines import CallScope
from .descent import PeerProcess

# ASGI messages are open dictionaries by specification; this is the one place that says so.
Scope: TypeAlias = dict[str, Any]
Event: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")

CLAIM = "colonnade.claim"
PEER = "colonnade.peer"
IMMEDIATE = "colonnade.immediate"
FINDINGS = "colonnade.findings"
REPEAT = "colonnade.repeat"
"""The finding about a head that begins the next request with it; see `Immediate.repeat`."""

BODY_TIMEOUT = 10.0
"""Seconds in which the body of a request must have come."""
HEARTBEAT_INTERVAL = 14.0
"""Seconds of silence after which a stream gives a sign of life. Two of them are never 15 s apart, though the listener
may be late by the time between two looks (client_socket.py): some proxies end a stream that is silent for half a
minute."""
CHUNK = 64 * 1024
"""Bytes of an answer that are handed to the listener at once."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
NO_CONNECTION_MESSAGE = "all connections of this server are in use; try again in a moment"
MAX_FINDINGS = 8
"""Findings about one head: those of a configuration before count no longer, and a head is repeated for days."""
RETRY_AFTER = "1"
"""Seconds after which a client that found no free connection may try again."""


# Extensions


class Claim(Protocol):
    """Takes the owner of a request; see `claim`."""

    def __call__(self, owner: Hashable, *, reserved: bool) -> bool: ...


def claim(scope: Scope, owner: Hashable, *, reserved: bool = False) -> bool:
    """Tell the listener whose request this is, before the body is read.

    A request that is answered without a claim takes nothing away from others: its connection stays in the slot that it
    has, or ends with the answer.

    Args:
        owner: None for a client that is not known by name.
        reserved: the request may be served in a slot that is kept for such requests.

    Returns:
        False if all connections are in use, and there is no slot for this owner: answer 503.
    """
    ask: Claim | None = scope.get("extensions", {}).get(CLAIM)
    return ask is None or ask(owner, reserved=reserved)


def client_address(scope: Scope) -> str:
    """The IP address of the client; empty if the listener does not say it."""
    client = scope.get("client")
    return "" if client is None else str(client[0])


def examine_sender(scope: Scope) -> PeerProcess:
    """The process that opened the connection of this request, as it is now; see `descent.examine_peer`.

    Raises:
        OSError: the system does not tell.
        LookupError: the request came over another kind of socket.
    """
    examine: Callable[[], PeerProcess] = scope["extensions"][PEER]
    return examine()


class Immediate(Protocol):
    """The steps of a request that need no waiting. `receive` and `send` remain for everything else."""

    async def receive(self) -> Event:
        """ASGI's `receive`."""

    async def send(self, event: Event) -> None:
        """ASGI's `send`."""

    def take_scope(self) -> CallScope:
        """The scope for a call in the task of the request, at most one at a time. Its block must be the next thing that
        the task does, and end before the request does."""

    def take_body(self, limit: int) -> bytes | None:
        """The whole body, once, instead of `receive`; None if not all of it has come, or if it is longer."""

    def begin_response(
        self, status: int, headers: tuple[tuple[str, str], ...], body: bytes, moves: Callable[[], object]
    ) -> Awaitable[None] | None:
        """Send a whole response. Its length is added to the headers. None if the client has taken it, or is gone;
        otherwise await what is returned, to send the rest, or the connection breaks. `moves` is called whenever a part
        of a long one was taken."""

    def pass_on(self, response: bytes, size: int) -> Awaitable[None] | None:
        """Send a whole response as another listener of this program wrote it, with a head of `size` bytes that says
        nothing of its connection. Returns what `begin_response` does."""

    def repeat(self, begin: Begin) -> bool:
        """Have `begin` begin this request, and each that repeats its head on this connection and is as whole. True if
        it has begun this one: the app returns without a checkpoint, and is not called for it again."""

    def end_begun(self, *, in_task: bool = False) -> None:
        """End a request that was begun, and whose answer was passed on; or have `Begun.go_on` called: from then on its
        task alone may answer it."""

    def go_on(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Have `serve` go on with the response in the same task, once the app has returned: a stream that may be idle
        for hours then holds nothing that the app has of its request."""

    def send_part(self, body: bytes) -> bool:
        """Send a part of the body of a response that has begun and has not ended. False if the client has not taken all
        of it: `wait_client` sends the rest."""

    async def wait_client(self, seconds: float, sign: bytes) -> bool:
        """Send the rest of a part, or wait until the client leaves or `wake` is called. Meanwhile `sign` is sent as a
        part whenever nothing was for so many seconds. It takes the place of `receive`; what still comes of a body is
        dropped. False if the client has left."""

    def wake(self) -> None:
        """End the present or next `wait_client`."""


class Begun(Protocol):
    """A request that was begun without the app, and that somebody else than the task of its connection may answer, by
    `Immediate.pass_on` and `end_begun`. Meanwhile that task waits for its client."""

    async def go_on(self) -> None:
        """Answer it in the task of its connection: its client has sent something or left, or it is too much."""

    def give_up(self) -> None:
        """Its connection has ended."""


Begin: TypeAlias = "Callable[[Immediate, bytes], Begun | None]"
"""Begins a request with this body; None if the app is to serve it."""


def immediate(scope: Scope) -> Immediate | None:
    """None with a listener that always waits."""
    found: Immediate | None = scope.get("extensions", {}).get(IMMEDIATE)
    return found


def of_head(scope: Scope, find: Callable[[Scope], T]) -> T:
    """`find(scope)`, or what that returned for an equal head on the same connection. It may look at nothing else, and
    must say the same for every Content-Length below a million."""
    findings: dict[object, T] | None = scope.get("extensions", {}).get(FINDINGS)
    if findings is None:
        return find(scope)
    try:
        return findings[find]
    except KeyError:
        found = find(scope)
        if len(findings) >= MAX_FINDINGS:
            findings.clear()
        findings[find] = found
        return found


# Requests


class Headers:
    """The headers of a request, by lower-case name."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in raw:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip(" \t"))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Each header with each of its values."""
        return ((name, value) for name, values in self._values.items() for value in values)

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def one(self, name: str) -> str | None:
        """The value, or None if the header is missing or stands there more than once."""
        values = self._values.get(name)
        return values[0] if values is not None and len(values) == 1 else None


class ClientGone(Exception):
    """The client left while it was sending its request."""


class BodyTooLarge(Exception):
    """The body of a request has more bytes than it may have."""


class BodyTooSlow(Exception):
    """The body of a request did not come within BODY_TIMEOUT."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body; raises as `read_body_untimed` does, or BodyTooSlow."""
    with trio.move_on_after(BODY_TIMEOUT):
        return await read_body_untimed(receive, limit)
    raise BodyTooSlow


async def read_body_untimed(
    receive: Receive, limit: int, on_part: Callable[[int], object] = lambda size: None
) -> bytes:
    """The whole body, for a caller with a deadline of its own. `on_part` is called with the size of each part as it
    comes, and may raise to end this.

    Raises:
        BodyTooLarge: it is not read any further.
        ClientGone: it will not come.
    """
    body = BytesIO()  # as in `HttpResponse.body`
    last = b""  # a part that waits for the next one, since two are joined with less copying
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = event.get("body", b"")
        if body.tell() + len(last) + len(part) > limit:
            raise BodyTooLarge
        on_part(len(part))
        if event.get("more_body", False):
            body.write(last)
            last = part
        elif body.tell() == 0:
            return last + part
        else:
            body.write(last)
            body.write(part)
            return body.getvalue()


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncIterator[trio.Nursery]:
    """The block ends when the client leaves, at the latest."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_disconnect, receive, nursery.cancel_scope)
        yield nursery
        nursery.cancel_scope.cancel()


async def wait_disconnected(receive: Receive) -> None:
    """Wait until the client leaves, or its request is over."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    await wait_disconnected(receive)
    scope.cancel("the client left")


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


# Answers


async def start_response(send: Send, status: int, headers: Mapping[str, str]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": encode_headers(headers)})


def encode_headers(headers: Mapping[str, str]) -> RawHeaders:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def send_body(send: Send, data: bytes, *, more: bool, moves: Callable[[], None] | None = None) -> None:
    """A part of the body, in pieces: a listener holds a second copy of what it is given until the client takes it.
    `moves` is called whenever a piece was taken."""
    for start_at in range(0, len(data) - CHUNK, CHUNK):
        piece = data[start_at : start_at + CHUNK]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        if moves is not None:
            moves()
    rest = data[(len(data) - 1) // CHUNK * CHUNK :] if len(data) > CHUNK else data
    await send({"type": "http.response.body", "body": rest, "more_body": more})


async def respond(
    send: Send,
    status: int,
    headers: Mapping[str, str],
    data: bytes = b"",
    moves: Callable[[], None] | None = None,
) -> None:
    """One whole HTTP answer."""
    length = {} if status == 204 else {"content-length": str(len(data))}  # RFC 9110, 8.6 forbids it with 204
    await start_response(send, status, {**headers, **length})
    await send_body(send, data, more=False, moves=moves)
