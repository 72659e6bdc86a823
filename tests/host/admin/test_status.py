"""What `/status` says of each server."""

from __future__ import annotations

import json
import mmap
import os
import resource
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Eras, Isolation, ViewSpec
from config.views import ViewServer
from host.admin.status import status, usage
from host.protocol.versions import LATEST
from host.source import SHARED, Endpoint
from host.wire.link import LinkLost
from tests.kit.world import ScriptedServer, open_world


async def test_every_state_is_told_with_what_belongs_to_it(autojump_clock: MockClock) -> None:
    async def slow(params: dict[str, Any]) -> object:
        await trio.sleep(3600)
        return {}

    async def broken(params: dict[str, Any]) -> object:
        return []

    servers = (
        ScriptedServer("good", tools=["x"], prompts=["p", "q"], title="The Good"),
        ScriptedServer("slow", answers={"initialize": slow}),
        ScriptedServer("bad", answers={"initialize": broken}),
        ScriptedServer("off", disabled=True),
    )
    async with open_world(*servers) as world:
        for id in ("good", "bad"):
            await world.upstreams.by_id[id].main.life.settled.wait()
        told = json.loads(status(world.upstreams, world.runtime, SHARED, parked=0, tasks=0, memory=world.memory))
        assert told["colonnade"]
        good, slow_one, bad, off = told["servers"]
        assert (good["id"], good["state"], good["title"]) == ("good", "ready", "The Good")
        assert (good["revision"], good["says"], good["transport"]) == ("2025-11-25", "good 1", "stdio")
        assert good["entries"] == {"tools": 1, "resources": 0, "resourceTemplates": 0, "prompts": 2}
        assert (slow_one["state"], slow_one["attempts"]) == ("starting", 1)
        assert bad["state"] == "failed"
        assert 0 < bad["next_attempt_in"] < 1
        assert "response to the handshake is invalid" in bad["detail"]
        assert off == {
            "id": "off",
            "prefix": "off",
            "title": None,
            "transport": "stdio",
            "state": "disabled",
            "detail": "it is disabled, in the file or by colonnade disable",
            "attempts": 0,
            "entries": {"tools": 0, "resources": 0, "resourceTemplates": 0, "prompts": 0},
            "isolation": "shared",
            "instances": 0,
            "max_instances": 0,
            "dropped": {},
        }


async def test_how_clients_with_a_session_are_served_is_said(autojump_clock: MockClock) -> None:
    async def answer(params: dict[str, Any]) -> object:
        return {"content": []}

    server = ScriptedServer("a", tools=["x"], eras=Eras.BOTH, revision=LATEST.name, session_revision="2025-11-25")
    server.answers["tools/call"] = answer
    plain = ScriptedServer("b", revision=LATEST.name)
    async with open_world(server, plain) as world:
        await world.settled()

        def told() -> list[str | None]:
            told = status(world.upstreams, world.runtime, SHARED, parked=0, tasks=0, memory=world.memory)
            return [row.get("session") for row in json.loads(told)["servers"]]

        assert told() == [None, None]
        client = await world.client()
        await trio.sleep(1)
        await client.call("a__x")
        assert told() == ["handshake clients use a session (2025-11-25)", None]
        assert server.session is not None
        server.session_revision = None
        server.session.close()
        await wait_all_tasks_blocked()
        why = "it accepts no session: it refused the handshake (error -32022)"
        why = f'{why}; the server says: "Unsupported protocol version"'
        assert told() == [f"handshake clients use the stateless connection, because {why}", None]
        world.upstreams["a"].main.ready_client().peer.connection_lost(LinkLost("gone"))
        await wait_all_tasks_blocked()
        assert told() == [None, None]


async def test_dedicated_instances_are_counted(autojump_clock: MockClock) -> None:
    async def answer(params: dict[str, Any]) -> object:
        return {"content": []}

    own = ScriptedServer("own", tools=["x"], answers={"tools/call": answer}, isolation=Isolation.PER_CLIENT)
    async with open_world(own) as world:

        async def told() -> tuple[str, int]:
            told = status(world.upstreams, world.runtime, SHARED, parked=0, tasks=0, memory=world.memory)
            (server,) = json.loads(told)["servers"]
            return server["isolation"], server["instances"]

        clients = [await world.client() for _ in range(3)]
        assert await told() == ("per-client", 0)
        for client in clients[:2]:
            await client.call("own__x")
            await client.call("own__x")
        assert await told() == ("per-client", 2)
        clients[0].session.end()
        await wait_all_tasks_blocked()
        assert await told() == ("per-client", 1)


def test_what_the_process_uses_is_counted() -> None:
    before = usage()
    files = [open(os.devnull) for _ in range(7)]  # noqa: SIM115 - they are counted while they are open
    kept = mmap.mmap(-1, 32 * 1024 * 1024)  # of its own pages: the allocator could give some that are in use already
    kept.write(os.urandom(1024) * 32 * 1024)
    after = usage()
    for file in files:
        file.close()
    assert before["descriptors"] is not None
    assert after["descriptors"] == before["descriptors"] + 7
    assert before["max_descriptors"] == after["max_descriptors"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert before["memory"] is not None
    assert after["memory"] is not None
    assert after["memory_peak"] is not None
    assert after["memory"] >= before["memory"] + 16 * 1024 * 1024
    assert after["memory_peak"] >= after["memory"]
    kept.close()
    left = usage()["memory"]
    assert left is not None
    assert left < after["memory"]


async def test_at_an_endpoint_only_what_its_view_has_is_counted() -> None:
    view = ViewSpec(servers={"a": ViewServer(tools=("x", "y*"))})
    servers = ScriptedServer("a", tools=["x", "y1", "y2", "z"], resources=["m:1"]), ScriptedServer("b", tools=["x"])
    async with open_world(*servers, views={"some": view}) as world:
        await world.settled()

        def counted(endpoint: Endpoint) -> dict[str, tuple[int, int]]:
            told = json.loads(status(world.upstreams, world.runtime, endpoint, parked=0, tasks=0, memory=world.memory))
            return {row["id"]: (row["entries"]["tools"], row["entries"]["resources"]) for row in told["servers"]}

        assert counted(SHARED) == {"a": (4, 1), "b": (1, 0)}
        assert counted(Endpoint(view="some")) == counted(Endpoint("a", "some")) == {"a": (3, 0)}
        assert counted(Endpoint("b", "some")) == counted(Endpoint(view="gone")) == {}
