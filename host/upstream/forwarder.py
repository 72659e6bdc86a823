"""The forwarder of a confined program: connects what comes in at the sockets in its network with where they lead to.

The sockets listen in the program's network namespace, and were handed out of it (host/sandbox/confine.py), so nothing
of this runs inside. The one of the proxy is told by each client where to; each other one stands for one destination
(host/sandbox/destinations.py). A name is looked up here, each of its addresses is checked, and the connection is made
to a checked one. Bytes are passed on unread, so what a client of TLS says to whom is not checked.

A connection that was taken from a full program, or that fails, ends alone. All of them end with the block of the child.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

import trio
from msgspec import Struct

from config.address_zones import Zone
from config.sandbox import LOCALHOST, Destination, Sandbox
from host.sandbox.destinations import find, place, refused_zone
from host.upstream.refusals import Refusals
from host.wire.head import MAX_HEAD, head_end
from host.wire.proxy_head import InvalidProxyHead, read_proxy_head
from host.wire.tunnel import connect, join, receive, reset, send_whole
from host.wire.turns import Turns

MAX_CONNECTIONS = 64
"""Connections of one program at once; further ones wait in the kernel. Each takes two descriptors."""
KEPT_DESCRIPTORS = 128
"""Open files that are left for the rest of the host."""
MAX_LOOKUPS = 4
"""Names that are looked up at once for one program, each in a thread."""
CONNECT_TIMEOUT = 10.0
"""Seconds for looking up a name, and for connecting to one of its addresses."""
HEAD_TIMEOUT = 10.0
"""Seconds in which a client must say to the proxy where to."""
LINGER = 1.0
"""Seconds to read from a client that is refused while it sends: closing with unread bytes would reset away the answer.
"""
_PAUSE = 0.1
"""Seconds until the next connection is taken when there are no descriptors."""
_ZONES = {Zone.PRIVATE: "a private address", Zone.LOOPBACK: "an address of this machine"}
_SPECIAL = "a link-local, reserved or cloud metadata address"
FAILED = "which is permitted and failed"
_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class _NotConnected(Exception):
    """Nothing is connected. `status`: that of the proxy's answer; `why`: a sentence for the program."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def addresses_of(host: str) -> list[str]:
    """The IP addresses of a name, in the order in which they are to be tried. Raises OSError and UnicodeError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Forwarder(Struct, frozen=True):
    """The forwarder of one child.

    Attributes:
        listeners: sockets in the order of the plan; they are the caller's to close, after `run` has ended.
        look_up: the IP addresses of a name. It may block, and raise OSError and UnicodeError.
    """

    listeners: Sequence[socket.socket]
    sandbox: Sandbox
    refusals: Refusals
    turns: Turns
    look_up: Callable[[str], list[str]] = addresses_of

    async def run(self) -> None:
        """Serve until cancelled."""
        destinations = place(self.sandbox.destinations).listeners.values()
        room = trio.Semaphore(MAX_CONNECTIONS)
        lookups = trio.CapacityLimiter(MAX_LOOKUPS)
        async with trio.open_nursery() as nursery:
            for listener, destination in zip(self.listeners, destinations, strict=True):
                listener.setblocking(False)
                nursery.start_soon(_Entrance(self, listener, destination, room, lookups).accept, nursery)


class _Entrance(Struct, frozen=True):
    """One of the listening sockets. `destination`: None for the proxy."""

    forwarder: Forwarder
    listener: socket.socket
    destination: Destination | None
    room: trio.Semaphore
    lookups: trio.CapacityLimiter

    async def accept(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.listener)
            if not self.room.value:
                self.forwarder.refusals.tell(f"more than {MAX_CONNECTIONS} connections at once: further ones wait")
            await self.room.acquire()
            try:
                accepted, _ = self.listener.accept()
            except OSError as problem:  # it has gone already, or this process may open no more files
                self.room.release()
                await trio.sleep(0 if isinstance(problem, BlockingIOError | ConnectionError) else _PAUSE)
                continue
            accepted.setblocking(False)
            if accepted.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - KEPT_DESCRIPTORS:
                reset(accepted)
                self.room.release()
                self.forwarder.refusals.tell("a connection, since the host has too many files open")
                await trio.sleep(_PAUSE)
                continue
            nursery.start_soon(self._serve, accepted)

    async def _serve(self, inside: socket.socket) -> None:
        try:
            with inside:
                if self.destination is None:
                    await self._serve_proxy(inside)
                else:
                    await self._serve_destination(inside, self.destination)
        except OSError:
            pass  # the client has gone
        finally:
            self.room.release()

    async def _serve_destination(self, inside: socket.socket, destination: Destination) -> None:
        try:
            outside = await self._connect(destination, destination.host)
        except _NotConnected:
            reset(inside)
            return
        with outside:
            await join(inside, outside, self.forwarder.turns)

    # The proxy

    async def _serve_proxy(self, inside: socket.socket) -> None:
        try:
            head, rest = await _read_head(inside)
            wanted = read_proxy_head(head)
            outside = await self._connect_to(wanted.host, wanted.port)
        except InvalidProxyHead:
            await _refuse(inside, "400 Bad Request", "This is a proxy. It takes CONNECT, and requests for http URLs.")
        except _NotConnected as refusal:
            await _refuse(inside, refusal.status, refusal.why)
        else:
            with outside:
                if wanted.passed_on is None:
                    await send_whole(inside, _CONNECTED)
                await send_whole(outside, (wanted.passed_on or b"") + rest)
                await join(inside, outside, self.forwarder.turns)

    async def _connect_to(self, host: str, port: int) -> socket.socket:
        sandbox = self.forwarder.sandbox
        destination = find(sandbox.destinations, host, port)
        if destination is not None:
            return await self._connect(destination, host)
        wanted = Destination.at(host, port)
        self.forwarder.refusals.tell(f"a connection to {wanted.to}", _permitting(sandbox, wanted))
        raise _NotConnected("403 Forbidden", f"{wanted.to} is not among the hosts that its sandbox permits.")

    # Connecting

    async def _connect(self, destination: Destination, host: str) -> socket.socket:
        """Connect to one of the permitted addresses of a host, which the destination permits."""
        name = f"{host}:{destination.port}" if destination.is_wildcard else destination.to
        end = trio.current_time() + CONNECT_TIMEOUT
        with trio.move_on_at(end):
            addresses = await self._look_up(destination, host, name)
            permitted = self._permitted(destination, name, addresses)
            reason = "it does not answer"
            for left in range(len(permitted), 0, -1):
                try:
                    with trio.move_on_after(max(0.0, end - trio.current_time()) / left):
                        return await connect(permitted[-left], destination.port)
                except OSError as problem:
                    reason = problem.strerror or "it cannot be reached"
            raise self._failed("502 Bad Gateway", name, reason)
        raise self._failed("504 Gateway Timeout", name, f"no connection within {CONNECT_TIMEOUT:.0f} s")

    async def _look_up(self, destination: Destination, host: str, name: str) -> list[str]:
        if destination.is_address:
            return [host]
        if host == LOCALHOST:
            return ["127.0.0.1", "::1"]
        try:
            work = self.forwarder.look_up
            return await trio.to_thread.run_sync(work, host, limiter=self.lookups, abandon_on_cancel=True)
        except (OSError, UnicodeError):
            raise self._failed("502 Bad Gateway", name, "its name cannot be looked up") from None

    def _permitted(self, destination: Destination, name: str, addresses: list[str]) -> list[str]:
        sandbox = self.forwarder.sandbox
        zones = {each: refused_zone(destination, each, sandbox.destinations) for each in addresses}
        if permitted := [each for each, zone in zones.items() if zone is None]:
            return permitted
        address, zone = next(iter(zones.items()))
        wider, remark = None, ""
        if zone is Zone.PRIVATE:
            others = tuple(each for each in sandbox.destinations if each.to != name)
            wider = replace(sandbox, network=(*others, Destination(name, private=True)))
        elif zone is Zone.LOOPBACK:
            wider = _permitting(sandbox, Destination.at(address, destination.port))
        else:  # hardly anybody means that, so no line is there to be copied
            remark = "; only the address itself in network permits that"
        kind = _SPECIAL if zone is None else _ZONES.get(zone, _SPECIAL)
        self.forwarder.refusals.tell(f"a connection to {name}, which is at {kind} ({address}){remark}", wider)
        raise _NotConnected(
            "403 Forbidden", f"{name} is at {kind}, which sandbox: network of this server does not name."
        )

    def _failed(self, status: str, name: str, why: str) -> _NotConnected:
        self.forwarder.refusals.tell(f"a connection to {name}, {FAILED}: {why}")
        return _NotConnected(status, f"{name}: {why}.")


def _permitting(sandbox: Sandbox, more: Destination) -> Sandbox:
    return replace(sandbox, network=(*sandbox.destinations, more))


async def _read_head(inside: socket.socket) -> tuple[bytes, bytes]:
    """The head of a request to the proxy, and what follows it."""
    data = b""
    with trio.move_on_after(HEAD_TIMEOUT):
        while len(data) <= MAX_HEAD:
            piece = await receive(inside)
            if not piece:
                raise ConnectionError
            data += piece
            if (end := head_end(data)) is not None and end <= MAX_HEAD:
                return data[:end], data[end:]
    raise InvalidProxyHead


async def _refuse(inside: socket.socket, status: str, why: str) -> None:
    body = f"{why}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with trio.move_on_after(LINGER):
        await send_whole(inside, head.encode() + body)
        inside.shutdown(socket.SHUT_WR)
        while await receive(inside):
            pass
