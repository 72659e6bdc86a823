"""Log levels: those that callers have set, and the most verbose of them, to which each server is set. A caller with a
session that has set none counts as one that wants DEFAULT_LEVEL, once a level was set at the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import suppress

import trio

from host.exchange import Caller
from host.jsonrpc.raw import encode
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import Peer
from host.protocol.log_levels import DEFAULT_LEVEL, most_verbose
from host.protocol.methods import SET_LEVEL
from host.protocol.versions import STATELESS
from host.source import Endpoint
from host.upstream.call import UpstreamCall, internal_call
from host.wire.link import LinkLost

SET_LEVEL_TIMEOUT = 30.0
CONFIRM_TIMEOUT = 1.0
"""Seconds that a request waits for the response to a level that was set before it. Over HTTP, a request that did not
wait could overtake the level."""
RECENT = 60.0
"""Seconds for which the level of a stateless request still counts after its end: its client is likely to send another
one with this level."""


class LogLevels:
    """The levels that callers have set, for the whole host.

    Args:
        includes: whether a server answers at an endpoint.
    """

    def __init__(self, includes: Callable[[Endpoint, str], bool] = Endpoint.includes) -> None:
        self._includes = includes
        self._wanted: dict[Caller, str] = {}
        self._undecided: set[Caller] = set()
        """Callers with a session that have set no level: they hear DEFAULT_LEVEL."""
        self._recent: dict[tuple[Endpoint, str], float] = {}
        """Times until which the levels of ended requests still count, by endpoint and level."""
        self.version = 0
        """A number that grows with each change of a level."""
        self._waiters = trio.lowlevel.ParkingLot()

    def callers(self, server: str) -> Collection[Caller]:
        """The callers that have set a level and whose endpoint includes this server."""
        return [caller for caller in self._wanted if self._includes(caller.endpoint, server)]

    def set_level(self, caller: Caller, level: str) -> None:
        self._undecided.discard(caller)
        self._wanted[caller] = level
        self._on_changed()

    def set_none(self, caller: Caller) -> None:
        """Note a caller that has set no level yet: what others set must not take its messages from it."""
        self._undecided.add(caller)
        self._on_changed()

    def forget(self, caller: Caller) -> None:
        self._undecided.discard(caller)
        level = self._wanted.pop(caller, None)
        if level is None:
            return
        if caller.era is STATELESS:
            self._recent[caller.endpoint, level] = trio.current_time() + RECENT
        self._on_changed()

    def _on_changed(self) -> None:
        self.version += 1
        self._waiters.unpark_all()

    def wanted_level(self, server: str, caller: Caller | None, *, was_set: bool) -> tuple[str | None, float]:
        """The level that `caller` wants of a server, or (None) the most verbose one that any caller wants; and the time
        at which it ends by itself. None if no caller has set one: the server's own level is good for those without.

        Args:
            was_set: the server has been set to a level, so its own is gone.
        """
        callers = self.callers(server) if caller is None else (caller,)
        recent = self._recent_levels(server) if caller is None else {}
        levels = [*(self._wanted[each] for each in callers if each in self._wanted), *recent]
        undecided = self._undecided if caller is None and (levels or was_set) else ()
        if any(self._includes(each.endpoint, server) for each in undecided):
            levels.append(DEFAULT_LEVEL)
        return most_verbose(levels), min(recent.values(), default=math.inf)

    async def wait_changed(self) -> None:
        """Wait until the level of any server may have changed."""
        await self._waiters.park()

    def _recent_levels(self, server: str) -> dict[str, float]:
        """The levels of ended requests that still count, with the times until which they do."""
        now = trio.current_time()
        levels: dict[str, float] = {}
        for (endpoint, level), until in self._recent.items():
            if self._includes(endpoint, server) and until > now:
                levels[level] = max(until, levels.get(level, until))
        return levels


class LogLevelSync:
    """Keeps one handshake connection at the level that `caller` wants, or (None) at the most verbose level that any
    caller wants. Without any wanted level, the last one stays."""

    def __init__(self, log_levels: LogLevels, server: str, peer: Peer[UpstreamCall], caller: Caller | None) -> None:
        self._log_levels = log_levels
        self._server = server
        self._peer = peer
        self._caller = caller
        self._set_version: int | None = -1
        """Version of the levels to which the server was last set; None if `apply` must not wait."""
        self._waiters = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Send the level whenever it changes, until cancelled. One request at a time; an error is ignored."""
        requested: str | None = None
        try:
            while True:
                self._set_version = self._log_levels.version
                self._waiters.unpark_all()
                level, until = self._log_levels.wanted_level(self._server, self._caller, was_set=requested is not None)
                if level is None or level == requested:
                    with trio.move_on_at(until):
                        await self._log_levels.wait_changed()
                    continue
                requested, self._set_version = level, -1
                with trio.move_on_after(SET_LEVEL_TIMEOUT), suppress(PeerError, BrokenAnswer, LinkLost):
                    await self._peer.request(SET_LEVEL, encode({"level": level}), internal_call())
        finally:
            self._set_version = None
            self._waiters.unpark_all()

    async def apply(self) -> None:
        """Wait until the server is set to the current level, so that it holds for later messages, for CONFIRM_TIMEOUT
        seconds at most."""
        if self._set_version not in (None, self._log_levels.version):
            with trio.move_on_after(CONFIRM_TIMEOUT):
                while self._set_version not in (None, self._log_levels.version):
                    await self._waiters.park()
