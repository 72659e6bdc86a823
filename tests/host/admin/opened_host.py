"""A host whose admin API is asked by tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from config import AskSpec, Channel, Consent
from host.admin.host_admin import HostAdmin
from host.admin.schema import ConfirmationRow, HostControl
from tests.kit.control import FakeControl, control_of
from tests.kit.gates import kind
from tests.kit.world import Later, ScriptedServer, World, later, open_world


async def done(params: dict[str, Any]) -> object:
    return {"content": [{"type": "text", "text": "done"}]}


def server(**more: Any) -> ScriptedServer:
    consent = more.pop("consent", Consent(tools=kind(allow=["get_*"], ask=["create"], deny=["wipe"])))
    listed = more.pop("tools", ["get_x", "create", "wipe"])
    return ScriptedServer("gh", tools=listed, consent=consent, answers={"tools/call": done}, **more)


def admin_of(world: World, control: HostControl | None = None) -> HostAdmin:
    return HostAdmin(control or control_of(world), world.runtime, world.upstreams, world.router, stdio=False)


class Opened:
    def __init__(self, world: World, admin: HostAdmin, control: FakeControl, nursery: trio.Nursery) -> None:
        self.world = world
        self.control = control
        self.admin = admin
        self._nursery = nursery

    async def asked(self, arguments: object = None, **client: Any) -> tuple[Later, ConfirmationRow]:
        """A call of gh__create that waits, and its question as it is shown."""
        caller = await self.world.client(**client)
        call = later(self._nursery, caller.call, "gh__create", arguments or {"owner": "acme"})
        await wait_all_tasks_blocked()
        question = (await self.admin.reader.state())["confirmations"][-1]
        return call, question


@asynccontextmanager
async def opened(*servers: ScriptedServer, ask: AskSpec | None = None, **more: Any) -> AsyncIterator[Opened]:
    async with trio.open_nursery() as nursery, open_world(*(servers or (server(),)), ask=ask, **more) as world:
        await world.settled()
        admin = admin_of(world, control := control_of(world))
        with admin.attach(Channel.CONSOLE):
            yield Opened(world, admin, control, nursery)
        nursery.cancel_scope.cancel()
