"""The control socket: what the command line of the same user asks of a running host. The server's side.

Line by line, JSON: a request `{"verb": "answer", "id": …}`, an answer `{"ok": {…}}` or `{"error": "a sentence"}`.

    hello       who this is: {"colonnade", "config", "pid", "stdio", "endpoint"}
    state       everything there is to see
    follow      no answer but lines of state: all of it, then the sections that change; while the connection stands,
                somebody is at a terminal to answer
    link        {"link"}: opens the web console, once
    answer  decide  decide_all  revoke  explain     see requests.py

The kernel tells who connects, which must be a process of the same user that descends from no running host of this
user (wire/descent.py). A process whose descent cannot be read is refused; so outside Linux every process is. Refused
attempts are recorded, and decisions name the process that sent them. The boundary is around processes that hosts
start: other programs of the user are inside of it, also where a server makes them work for it.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio
from msgspec import Raw

from config import Channel
from host.console.api import (
    MAX_REQUEST,
    REQUESTS,
    AdminApi,
    AdminError,
    MalformedRequest,
    StateFeed,
    carry_out,
    encode,
)
from host.errors import INTERNAL_ERROR_MESSAGE
from host.jsonrpc.raw import members, string
from host.wire.descent import PeerProcess, examine_peer, refusal_reason

MAX_CONNECTIONS = 16
MAX_LINGERING = 16
"""Refused connections that are kept open until the other side has read why; with more, each is closed at once."""
REQUEST_TIMEOUT = 10.0
"""Seconds in which the next request must be there."""
WRITE_TIMEOUT = 10.0
"""Seconds in which the other side must take what it is sent."""
MAX_REFUSALS_RECORDED = 10
"""Refused connections that are recorded one by one in a second; the others are counted."""
SOCKET_SUFFIX = ".sock"

_MAX_NAME = 100  # bytes of an address; Linux takes 107, others less
_ACCEPT_PAUSE = 0.1
_LINGER = 1.0
_CHUNK = 16 * 1024


@asynccontextmanager
async def open_control_socket(
    api: AdminApi, folder: Path, hosts: Path, on_crash: Callable[[Exception], None]
) -> AsyncIterator[Path]:
    """Serve at a new socket in the folder, which must be the user's alone, for the block; its path.
    At the end the socket is removed.

    Args:
        hosts: the folder of the host records.
        crashed: is told of what is our own fault.

    Raises:
        OSError: there can be no socket.
    """
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SOCKET_SUFFIX}"
    listening = _listen(path)
    try:
        with listening:
            async with trio.open_nursery() as nursery:
                server = _Server(api, hosts, on_crash)
                nursery.start_soon(server.accept, trio.SocketListener(trio.socket.from_stdlib_socket(listening)))
                yield path
                nursery.cancel_scope.cancel()
    finally:
        path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """A socket that appears under its name once it can be connected to: one that cannot is taken for a dead host's."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    coming = path.with_suffix(".new")
    try:
        with socket_address(coming) as address:
            listening.bind(address)
        coming.chmod(0o600)
        listening.listen(MAX_CONNECTIONS)
        coming.rename(path)
    except BaseException:
        listening.close()
        coming.unlink(missing_ok=True)
        raise
    return listening


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """How a socket's path is written for bind and connect, which take short ones only."""
    if len(os.fsencode(path)) <= _MAX_NAME or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class _Server:
    """What all connections share."""

    def __init__(self, api: AdminApi, hosts: Path, on_crash: Callable[[Exception], None]) -> None:
        self._api = api
        self._hosts = hosts
        self._crashed = on_crash
        self._open = 0
        self._lingering = 0
        self._second = -math.inf
        self._recorded = 0
        self._unrecorded = 0

    async def accept(self, listener: trio.SocketListener) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except OSError:  # EMFILE and its kin
                    await trio.sleep(_ACCEPT_PAUSE)
                    continue
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                with suppress(trio.BrokenResourceError, trio.TooSlowError):
                    await self._greet(stream)
            except Exception as problem:  # noqa: BLE001 - one connection's trouble is not another's
                self._crashed(problem)

    async def _greet(self, stream: trio.SocketStream) -> None:
        try:
            peer = examine_peer(stream.socket)
        except OSError as problem:
            await self._turn_away(stream, str(problem))
            return
        why = refusal_reason(peer, self._hosts)
        if why is not None:
            self._record_refusal(peer, why)
            await self._turn_away(stream, why)
            return
        # Counted from here on: connections that are refused must not keep those of terminals out.
        if self._open >= MAX_CONNECTIONS:
            await self._turn_away(stream, f"this host speaks to {MAX_CONNECTIONS} terminals at once, not to more")
            return
        self._open += 1
        try:
            lines = _Lines(stream)
            while (line := await lines.next()) is not None:
                if not await self._answer(line, lines, stream, peer):
                    return
        finally:
            self._open -= 1

    async def _turn_away(self, stream: trio.SocketStream, why: str) -> None:
        if self._lingering >= MAX_LINGERING:
            await _send(stream, {"error": why})
            return
        self._lingering += 1
        try:
            await _dismiss(stream, why)
        finally:
            self._lingering -= 1

    def _record_refusal(self, peer: PeerProcess, why: str) -> None:
        """Record it, unless so many were in this second that they would fill the disk; the next record counts those."""
        now = trio.current_time()
        if now - self._second >= 1.0:
            self._second, self._recorded = now, 0
        if self._recorded >= MAX_REFUSALS_RECORDED:
            self._unrecorded += 1
            return
        self._recorded += 1
        self._api.record_refused_peer(peer, why, self._unrecorded)
        self._unrecorded = 0

    async def _answer(self, line: bytes, lines: _Lines, stream: trio.SocketStream, peer: PeerProcess) -> bool:
        """Answer one request; whether there may be another."""
        if len(line) > MAX_REQUEST:
            await _dismiss(stream, f"a request has at most {MAX_REQUEST} bytes")
            return False
        try:
            given = members(line)
            verb = string(given.pop("verb", Raw(b"")))
        except ValueError:
            await _send(stream, {"error": "expected a JSON object with a verb"})
            return True
        if verb == "follow":
            await self._follow(lines, stream)
            return False
        try:
            said: dict[str, object] = {"ok": await self._carry_out(verb, encode(given), peer)}
        except (MalformedRequest, AdminError) as problem:
            said = {"error": str(problem)}
        except Exception as problem:  # noqa: BLE001 - our own fault is an answer as well
            self._crashed(problem)
            said = {"error": INTERNAL_ERROR_MESSAGE}
        await _send(stream, said)
        return True

    async def _carry_out(self, verb: str, data: bytes, peer: PeerProcess) -> object:
        if verb == "hello":
            return self._api.hello()
        if verb == "state":
            return await self._api.state()
        if verb == "link":
            return {"link": self._api.console_url()}
        if verb in REQUESTS:
            steps = carry_out(self._api, verb, data, Channel.TERMINAL)
            return await self._api.run_steps(self._api.attributed_to(peer, steps))
        raise MalformedRequest("there is no such verb")

    async def _follow(self, lines: _Lines, stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lines.end, nursery.cancel_scope)
            feed = StateFeed(self._api)
            with suppress(trio.BrokenResourceError, trio.TooSlowError), self._api.attach(Channel.TERMINAL):
                while True:
                    await _send(stream, await feed.next())
            nursery.cancel_scope.cancel()


class _Lines:
    """The lines that come over a connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = bytearray()

    async def next(self) -> bytes | None:
        """The next line; more than MAX_REQUEST bytes if it is too long; None if there is none, or not in time."""
        with trio.move_on_after(REQUEST_TIMEOUT):
            while b"\n" not in self._data and len(self._data) <= MAX_REQUEST:
                data = await self._stream.receive_some(_CHUNK)
                if not data:
                    return None
                self._data += data
            line, _, rest = bytes(self._data).partition(b"\n")
            self._data = bytearray(rest)
            return line
        return None

    async def end(self, scope: trio.CancelScope) -> None:
        """Cancel the scope once nobody is at the other end. What still comes is not read as anything."""
        with suppress(trio.BrokenResourceError):
            while await self._stream.receive_some(_CHUNK):
                pass
        scope.cancel("the other end was closed")


async def _dismiss(stream: trio.SocketStream, why: str) -> None:
    """Say why nothing more is heard. What the other side is still sending is taken from it, or it would not come to
    read."""
    await _send(stream, {"error": why})
    with trio.move_on_after(_LINGER):
        await stream.send_eof()
        while await stream.receive_some(_CHUNK):
            pass


async def _send(stream: trio.SocketStream, value: object) -> None:
    with trio.fail_after(WRITE_TIMEOUT):
        await stream.send_all(encode(value) + b"\n")
