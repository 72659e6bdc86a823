"""A fleet in one process: members with scripted servers, a directory in memory, and inner listeners over real sockets
and TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio
from msgspec.structs import replace

from host.downstream.drain import Drain, Stage
from host.downstream.http.request import HttpRequest
from host.downstream.sessions import Sessions
from host.downstream.stored_sessions import StoredSessions
from host.fleet.forwarding import Forwarding
from host.fleet.inner import MemberConnection, inner_app
from host.fleet.members import LEASE, NOBODY, DirectoryAway, FleetMember, Membership, open_members
from host.fleet.streams import Streams
from host.fleet.tokens import HomedSeal, Homes
from host.seal import Seal
from host.wire.certificate import Certificate
from host.wire.listener import ClientConnection, serve_http
from host.wire.port import bind
from host.wire.request_head import SharedHeads
from tests.kit.asgi import Connection, open_http_app
from tests.kit.certificates import Authority
from tests.kit.world import ScriptedServer, World

KEY = bytes(range(32))


class MemoryDirectory:
    """Implements `host.fleet.members.Directory` for all processes of a fleet."""

    def __init__(self) -> None:
        self.away = False
        self.beats = 0
        self.delay = 0.0
        """Seconds between a renewal and its answer."""
        self.ahead = 0.0
        """Seconds by which its clock is ahead of what it was."""
        self._rows: dict[str, tuple[FleetMember, float]] = {}
        self.shut_out: set[str] = set()
        """The processes that cannot reach it."""
        self.adopted: dict[str, str] = {}
        """The processes that have adopted sessions, by the keys of their rows."""
        self.ended: set[str] = set()
        """Keys that have no row any more."""

    async def beat(self, own: FleetMember) -> Sequence[FleetMember]:
        await trio.lowlevel.checkpoint()
        if self.away or own.boot in self.shut_out:
            raise DirectoryAway
        self.beats += 1
        now = trio.current_time() + self.ahead
        own_left = self._rows[own.boot][1] - now if own.boot in self._rows else LEASE
        self._rows[own.boot] = own, now + LEASE
        await trio.sleep(self.delay)
        now = trio.current_time() + self.ahead
        return [
            replace(member, left=own_left if boot == own.boot else until - now)
            for boot, (member, until) in self._rows.items()
        ]

    async def leave(self, boot: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise DirectoryAway
        self._rows.pop(boot, None)

    async def claim(self, keys: Sequence[str], home: str, by: str) -> str | None:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise DirectoryAway
        key, now = keys[0], trio.current_time() + self.ahead
        present = {boot for boot, (_, until) in self._rows.items() if until > now and boot != by}
        if self.adopted.get(key, home) not in present:
            self.adopted[key] = by
        return self.adopted.get(key, home)

    async def release(self, keys: Sequence[str], by: str) -> Mapping[str, str]:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise DirectoryAway
        for key in keys:
            if self.adopted.get(key, by) == by:
                self.adopted[key] = NOBODY
        return await self.adopters(keys)

    async def adopters(self, keys: Sequence[str]) -> Mapping[str, str]:
        await trio.lowlevel.checkpoint()
        return {key: self.adopted.get(key, "") for key in keys if key not in self.ended}


class FleetSite(NamedTuple):
    """One member. `client` is a client of it, `unknown` the requests with an unknown outcome, by their homes."""

    boot: str
    world: World
    client: Connection
    members: Membership
    unknown: list[str]
    port: int
    scope: trio.CancelScope
    """Around its inner listener."""
    sessions: Sessions
    stored: StoredSessions
    connections: Mapping[str, Streams]
    """The connections to other members, by their ids."""

    async def wait_stored(self) -> None:
        """Wait until another member could adopt each of its sessions."""
        with trio.fail_after(5):
            while not all(map(self.stored.is_written, self.sessions.ids)):  # noqa: ASYNC110 - by looks
                await trio.sleep(0.01)

    async def wait_gone(self, session: str | None) -> None:
        """Wait until this session is not there any more."""
        with trio.fail_after(5):
            while session in self.sessions.ids:  # noqa: ASYNC110 - by looks
                await trio.sleep(0.01)


class FleetFiles:
    """The certificates of a fleet, in this folder, and its directory."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "fleet")
        self.files = self.authority.sign("member", "acme.internal")
        self.directory = MemoryDirectory()
        self.state = folder / "state"
        """Of all members: their sessions are in one store."""

    @staticmethod
    def homes(boot: str) -> Homes:
        """What a process of the fleet names tokens with."""
        return Homes(Seal(KEY, trio.current_time), boot)

    @staticmethod
    def member(boot: str, port: int) -> FleetMember:
        return FleetMember(boot, f"127.0.0.1:{port}")

    def certificate(self, boot: str) -> Certificate:
        return Certificate(*self.files, self.authority.ca, name=boot)


@asynccontextmanager
async def open_site(
    fleet: FleetFiles,
    boot: str,
    *servers: ScriptedServer,
    kind: type[ClientConnection] = MemberConnection,
    **more: Any,
) -> AsyncIterator[FleetSite]:
    """One member for the block; for `more` see `open_http_app`.

    Args:
        kind: the connections of its inner listener.
    """
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    homes = fleet.homes(boot)
    unknown: list[str] = []

    def on_unknown(http_request: HttpRequest, home: str) -> None:
        unknown.append(home)

    me, certificate = fleet.member(boot, port), fleet.certificate(boot)
    drains: list[Drain] = []

    def own() -> FleetMember:
        is_draining = any(each.begun.is_set() for each in drains)
        return replace(me, status=Stage.DRAINING if is_draining else Stage.SERVING)

    async with open_members(fleet.directory, own, trio.current_time) as members:
        forwarding = Forwarding(homes, members, certificate, "/mcp", on_unknown)
        is_present = lambda boot: any(each.boot == boot for each in members.present)  # noqa: E731
        seal = HomedSeal(Seal(KEY, trio.current_time), homes, is_present)
        async with (
            trio.open_nursery() as around,
            open_http_app(
                *servers, seal=seal, forwarding=forwarding, stores_sessions=True, state=fleet.state, key=KEY, **more
            ) as (
                world,
                client,
            ),
            trio.open_nursery() as nursery,
        ):
            around.start_soon(forwarding.run)
            drains.append(client.drain)
            scope = trio.CancelScope()
            app = inner_app(client.app, boot, ("/mcp", "/message"))

            async def serve_inner() -> None:
                with scope:
                    await serve_http(app, bound, certificate=certificate, heads=SharedHeads(), connection=kind)

            nursery.start_soon(serve_inner)
            adoption = forwarding.adoption
            assert adoption.sessions is not None
            assert adoption.stored is not None
            of_sessions = adoption.sessions, adoption.stored
            yield FleetSite(boot, world, client, members, unknown, port, scope, *of_sessions, forwarding.connections)
            nursery.cancel_scope.cancel()
            around.cancel_scope.cancel()
