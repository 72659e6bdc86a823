"""The door of the command line: the admin API over a Unix socket.

The kernel tells which process connects. It has to be of the same user, and must not descend from any running host of
this user (wire/descent.py): servers decide nothing about themselves. That is checked for every request, and once more
when the body of a decision has come. A process whose descent cannot be read is refused; so outside Linux every process
is. Refused attempts are recorded, and decisions name the process that sent them. The boundary is around processes that
hosts start: other programs of the user are inside it, also where a server has them work for it.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from config import Channel
from host.admin.api import CALLER, AdminApp, AdminCaller, Refused
from host.admin.paths import SOCKET_SUFFIX
from host.admin.schema import AdminApi
from host.wire.acceptor import ListenerLimits
from host.wire.asgi import NO_CONNECTION_MESSAGE, RETRY_AFTER, Receive, Scope, Send, claim, examine_sender
from host.wire.descent import PeerProcess, refusal_reason
from host.wire.listener import serve_http
from host.wire.port import bind_unix

MAX_TERMINALS = 16
"""Requests that are served at a time; a terminal that waits for confirmations holds one."""
MAX_CONNECTIONS = 64
"""Connections at a time, besides those that the listener takes to read one head each. More than MAX_TERMINALS, so that
those of refused processes keep no terminal out."""
MAX_REFUSALS_RECORDED = 10
"""Refused requests that are recorded one by one in a second; the others are counted."""


@asynccontextmanager
async def open_admin_socket(
    api: AdminApi, folder: Path, hosts: Path, on_crash: Callable[[Exception], None]
) -> AsyncIterator[Path]:
    """Serve at a new socket in the folder, which must be the user's alone, for the block; its path. At the end the
    socket is removed.

    Args:
        hosts: the folder of the host records.
        on_crash: called with what is a mistake of ours.

    Raises:
        OSError: there can be no socket.
    """
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SOCKET_SUFFIX}"
    listening = bind_unix(path)
    try:
        async with trio.open_nursery() as nursery:
            door = SocketDoor(api, hosts, on_crash)
            await nursery.start(partial(serve_http, door.serve, listening, limits=ListenerLimits(MAX_CONNECTIONS)))
            yield path
            nursery.cancel_scope.cancel()
    finally:
        path.unlink(missing_ok=True)


class SocketDoor:
    """The ASGI app of the socket."""

    def __init__(self, api: AdminApi, hosts: Path, on_crash: Callable[[Exception], None]) -> None:
        self._api = api
        self._app = AdminApp(api, on_crash)
        self._hosts = hosts
        self._served = 0
        self._refusals = RefusedPeers(api.record_refused_peer)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            peer = self._examine(scope)
            # Counted from here on: requests that are refused must not keep those of terminals out.
            if self._served >= MAX_TERMINALS:
                raise _busy(f"this host serves {MAX_TERMINALS} requests of terminals at a time, not more")
            if not claim(scope, peer.lineage[0]):
                raise _busy(NO_CONNECTION_MESSAGE)
        except Refused as refused:
            await refused.respond(send)
            return
        caller = AdminCaller(Channel.TERMINAL, partial(self._examine, scope), peer)
        self._served += 1
        try:
            await self._app.serve({**scope, CALLER: caller}, receive, send)
        finally:
            self._served -= 1

    def _examine(self, scope: Scope) -> PeerProcess:
        """The process that sent the request.

        Raises:
            Refused: it may not decide.
        """
        try:
            peer = examine_sender(scope)
        except OSError as problem:
            raise _refused(str(problem)) from problem
        why = refusal_reason(peer, self._hosts)
        if why is not None:
            self._refusals.add(peer, why)
            raise _refused(why)
        return peer


class RefusedPeers:
    """Processes that were refused at a door. `record` takes one of them, the reason, and the number of those before
    it that were not recorded: so many in one second that they would fill the disk."""

    def __init__(self, record: Callable[[PeerProcess, str, int], None]) -> None:
        self._record = record
        self._second = -math.inf
        self._recorded = 0
        self._unrecorded = 0

    def add(self, peer: PeerProcess, why: str) -> None:
        now = trio.current_time()
        if now - self._second >= 1.0:
            self._second, self._recorded = now, 0
        if self._recorded >= MAX_REFUSALS_RECORDED:
            self._unrecorded += 1
            return
        self._recorded += 1
        self._record(peer, why, self._unrecorded)
        self._unrecorded = 0


def _refused(why: str) -> Refused:
    return Refused(403, why, headers={"connection": "close"})


def _busy(why: str) -> Refused:
    return Refused(503, why, headers={"connection": "close", "retry-after": RETRY_AFTER})
