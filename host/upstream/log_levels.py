"""Which log level each caller wants, and what follows for servers: the most verbose one wanted is asked of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress

import trio

from host.exchange import Caller
from host.jsonrpc.raw import encode
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import Peer
from host.protocol.log_levels import most_verbose
from host.protocol.methods import SET_LEVEL
from host.upstream.call import UpstreamCall, internal_call
from host.wire.link import LinkLost

SET_LEVEL_TIMEOUT = 30.0
RECENT = 60.0
"""Seconds for which the level of a request counts after it: whoever asks request by request is likely to ask again."""


class LogLevels:
    """The levels that callers have set, for the whole host."""

    def __init__(self) -> None:
        self._wanted: dict[Caller, str] = {}
        self._recent: dict[tuple[str | None, str], float] = {}
        """Until when levels of requests that are over still count, by their endpoint."""
        self.version = 0
        """Another one whenever a level may be another."""
        self._waiters = trio.lowlevel.ParkingLot()

    def callers(self, server: str) -> Collection[Caller]:
        """Whoever has set a level and may hear of this server."""
        return [caller for caller in self._wanted if caller.endpoint in (None, server)]

    def set_level(self, caller: Caller, level: str) -> None:
        self._wanted[caller] = level
        self._on_changed()

    def forget(self, caller: Caller) -> None:
        level = self._wanted.pop(caller, None)
        if level is None:
            return
        if caller.abilities.retries:
            self._recent[caller.endpoint, level] = trio.current_time() + RECENT
        self._on_changed()

    def _on_changed(self) -> None:
        self.version += 1
        self._waiters.unpark_all()

    def wanted_level(self, server: str, caller: Caller | None) -> tuple[str | None, float]:
        """What is wanted of a server by `caller`, or (None) by the most demanding of all who hear of it; and when that
        ends by itself."""
        callers = self.callers(server) if caller is None else (caller,)
        recent = self._recent_levels(server) if caller is None else {}
        level = most_verbose([*(self._wanted[each] for each in callers if each in self._wanted), *recent])
        return level, min(recent.values(), default=math.inf)

    async def wait_changed(self) -> None:
        """Until another level may be wanted of some server."""
        await self._waiters.park()

    def _recent_levels(self, server: str) -> dict[str, float]:
        """The levels of requests that are over but still count, and until when."""
        now = trio.current_time()
        levels: dict[str, float] = {}
        for (endpoint, level), until in self._recent.items():
            if endpoint in (None, server) and until > now:
                levels[level] = max(until, levels.get(level, until))
        return levels


class LogLevelSync:
    """Keeps a server at the level that `caller`, or (None) the most demanding of all who hear of it, wants. When nobody
    wants anything any more, it stays as it is."""

    def __init__(self, log_levels: LogLevels, server: str, peer: Peer[UpstreamCall], caller: Caller | None) -> None:
        self._log_levels = log_levels
        self._server = server
        self._peer = peer
        self._caller = caller
        self._sent_version: int | None = -1
        """The version of the levels that the server was told of last; None while nobody is to wait for another."""
        self._waiters = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Until cancelled. One request at a time, and only when the level changes; the server may say to it what it
        likes."""
        requested: str | None = None
        try:
            while True:
                self._sent_version = self._log_levels.version
                self._waiters.unpark_all()
                level, until = self._log_levels.wanted_level(self._server, self._caller)
                if level is None or level == requested:
                    with trio.move_on_at(until):
                        await self._log_levels.wait_changed()
                    continue
                requested, self._sent_version = level, None
                with trio.move_on_after(SET_LEVEL_TIMEOUT), suppress(PeerError, BrokenAnswer, LinkLost):
                    await self._peer.request(SET_LEVEL, encode({"level": level}), internal_call())
        finally:
            self._sent_version = None
            self._waiters.unpark_all()

    async def apply(self) -> None:
        """Until the level that is wanted now is on its way: what is sent after that comes after it, where the transport
        has an order. Nobody waits for the server to agree, nor to a level before."""
        while self._sent_version not in (None, self._log_levels.version):
            await self._waiters.park()
