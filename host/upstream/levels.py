"""Which log level each caller wants, and what follows for servers: the most verbose one wanted is asked of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress

import trio

from host.asking import BrokenAnswer, PeerError
from host.exchange import Caller
from host.jsonrpc.raw import encode
from host.peer import Peer
from host.protocol.levels import most_verbose
from host.protocol.methods import SET_LEVEL
from host.upstream.origin import Origin, our_own
from host.wire.link import LinkLost

PATIENCE = 30.0
LATELY = 60.0
"""Seconds for which the level of a request counts after it: whoever asks request by request is likely to ask again."""


class Levels:
    """The levels that callers have set, for the whole host."""

    def __init__(self) -> None:
        self._wanted: dict[Caller, str] = {}
        self._lately: dict[tuple[str | None, str], float] = {}
        """Until when levels of requests that are over still count, by their endpoint."""
        self._moved = trio.lowlevel.ParkingLot()

    def callers(self, server: str) -> Collection[Caller]:
        """Whoever has set a level and may hear of this server."""
        return [caller for caller in self._wanted if caller.endpoint in (None, server)]

    def want(self, caller: Caller, level: str) -> None:
        self._wanted[caller] = level
        self._moved.unpark_all()

    def forget(self, caller: Caller) -> None:
        level = self._wanted.pop(caller, None)
        if level is None:
            return
        if caller.abilities.retries:
            self._lately[caller.endpoint, level] = trio.current_time() + LATELY
        self._moved.unpark_all()

    async def tune(self, server: str, peer: Peer[Origin], caller: Caller | None) -> None:
        """Keep a server at what is wanted, by `caller` or (None) by the most demanding of all who hear of it, until
        cancelled. One request at a time, and only when that changes; when nobody wants anything any more, the server
        stays as it is. What the server says to it is its own affair: nobody waits for the answer."""
        asked: str | None = None
        while True:
            callers = self.callers(server) if caller is None else (caller,)
            lately = self._counting(server) if caller is None else {}
            level = most_verbose([*(self._wanted[each] for each in callers if each in self._wanted), *lately])
            if level is None or level == asked:
                with trio.move_on_at(min(lately.values(), default=math.inf)):
                    await self._moved.park()
                continue
            asked = level
            with trio.move_on_after(PATIENCE), suppress(PeerError, BrokenAnswer, LinkLost):
                await peer.request(SET_LEVEL, encode({"level": level}), our_own())

    def _counting(self, server: str) -> dict[str, float]:
        """The levels of requests that are over but still count, and until when."""
        now = trio.current_time()
        found: dict[str, float] = {}
        for (endpoint, level), until in self._lately.items():
            if endpoint in (None, server) and until > now:
                found[level] = max(until, found.get(level, until))
        return found
