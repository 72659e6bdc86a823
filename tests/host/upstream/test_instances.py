"""Dedicated instances: what one client does in its own is nobody else's, and their number and life are bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Isolation, Secret, Trust
from host.downstream.sessions import Session
from host.errors import Unavailable
from host.journal import InstanceFailed, InternalError
from host.jsonrpc.messages import Id, Notification, Request, Success, write
from host.source import SHARED
from host.upstream.backoff import MAX_STARTS
from host.wire.link import Link, LinkLost
from tests.host.upstream.test_supervised import AT, Protected
from tests.kit.logins import login, processes, put
from tests.kit.memory import MemoryLink
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, later, open_client, open_world

CAN = {"roots": {"listChanged": True}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
BOTH = [Isolation.PER_CLIENT, Isolation.PER_CALL]


class Stateful(ScriptedServer):
    """Every connection is an instance with a memory: `x` adds `say` to it and gives it back, with the number of the
    instance; with `wait` it does so when `gate` is set. Number 0 is the one that lists."""

    def __init__(self, isolation: Isolation = Isolation.PER_CLIENT, **more: Any) -> None:
        super().__init__("a", tools=["x"], prompts=["p"], isolation=isolation, **more)
        self.links: list[MemoryLink] = []
        self.alive: set[int] = set()
        self.calls: list[int] = []
        self.gate = trio.Event()
        self.roots_told: list[int] = []
        """The instances that were told that roots changed."""
        self.crashes = False
        """Every call ends the instance."""
        self.ending = 0.0
        """Seconds that an instance takes to end."""
        self._memory: dict[int, list[str]] = {}

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        async with super().open_link() as host_end:
            assert self.link is not None
            number = len(self.links)
            self.links.append(self.link)
            self.alive.add(number)
            assert isinstance(host_end, MemoryLink)
            put = host_end.write_bytes

            def noting(data: bytes, about: Id | None = None) -> None:
                if b"notifications/roots/list_changed" in data:
                    self.roots_told.append(number)
                put(data, about)

            host_end.write_bytes = noting  # type: ignore[method-assign]
            try:
                yield host_end
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.ending)
                self.alive.discard(number)

    async def _reply(self, link: MemoryLink, request: Request) -> None:
        if request.method != "tools/call":
            return await super()._reply(link, request)
        number = self.links.index(link)
        arguments = json.loads(bytes(request.params or b""))["arguments"]
        self.calls.append(number)
        if self.crashes:
            link.close()
            return
        if arguments.get("wait"):
            await self.gate.wait()
        memory = self._memory.setdefault(number, [])
        memory.append(arguments.get("say", ""))
        said = json.dumps({"instance": number, "said": memory})
        with suppress(LinkLost):
            link.write_bytes(
                write(Success(request.id, Raw(json.dumps({"content": [{"type": "text", "text": said}]}).encode())))
            )


async def says(client: ScriptedClient, word: str = "", **more: Any) -> tuple[int, list[str]]:
    """The instance that heard it, and all that it has heard."""
    result = await client.call("a__x", {"say": word, **more})
    assert "isError" not in result, result
    heard = json.loads(result["content"][0]["text"])
    return heard["instance"], heard["said"]


async def fails(client: ScriptedClient, **more: Any) -> str:
    result = await client.call("a__x", more)
    assert result["isError"] is True
    return str(result["content"][0]["text"])


def without_handshake(world: World, identity: str | None) -> ScriptedClient:
    session = Session("one request", SHARED, world.router, world.journal, identity, memory=world.memory)
    session.skip_handshake()
    return ScriptedClient(session)


def failed(world: World) -> list[str]:
    return [event.why for event in world.events if isinstance(event, InstanceFailed)]


# Who has which


async def test_what_one_client_does_is_invisible_to_another() -> None:
    server = Stateful()
    async with open_world(server) as world:
        first, second = [await world.client() for _ in range(2)]
        assert await says(first, "a") == (1, ["a"])
        assert await says(second, "b") == (2, ["b"])
        assert await says(first, "c") == (1, ["a", "c"])
        assert await says(second, "d") == (2, ["b", "d"])
        assert (len(world.instances("a")), server.alive) == (2, {0, 1, 2})


async def test_where_every_call_has_its_own_instance_nothing_is_left_of_it() -> None:
    server = Stateful(Isolation.PER_CALL)
    async with open_client(server) as (world, client, _):
        assert await says(client, "a") == (1, ["a"])
        assert await says(client, "b") == (2, ["b"])
        await wait_all_tasks_blocked()
        assert (len(world.instances("a")), server.alive) == (0, {0})


async def test_clients_of_one_token_are_two_clients_and_requests_without_a_session_are_one() -> None:
    server = Stateful()
    async with open_world(server) as world:
        assert await says(await world.client(identity="alice"), "a") == (1, ["a"])
        assert await says(await world.client(identity="alice"), "b") == (2, ["b"])
        assert await says(without_handshake(world, "alice"), "c") == (3, ["c"])
        assert await says(without_handshake(world, "alice"), "d") == (3, ["c", "d"])
        assert await says(without_handshake(world, "bob"), "e") == (4, ["e"])
        assert await says(without_handshake(world, None), "f") == (5, ["f"])
        assert await says(without_handshake(world, None), "g") == (6, ["g"])


@pytest.mark.parametrize(("isolation", "started"), [(Isolation.PER_CLIENT, 1), (Isolation.PER_CALL, 5)])
async def test_calls_at_once_start_as_many_instances_as_are_needed(
    isolation: Isolation, started: int, autojump_clock: MockClock
) -> None:
    server = Stateful(isolation)
    async with open_client(server) as (world, client, nursery):
        await world.settled()
        slow_start(server)
        calls = [later(nursery, says, client) for _ in range(5)]
        for call in calls:
            await call.comes()
        assert len(server.links) == 1 + started


def slow_start(server: ScriptedServer, seconds: float = 2.0) -> None:
    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(seconds)
        return server._builtin("initialize", params)

    server.answers["initialize"] = initialize


@pytest.mark.parametrize("isolation", BOTH)
async def test_the_catalog_is_no_business_of_dedicated_instances(isolation: Isolation) -> None:
    server = Stateful(isolation)
    async with open_client(server) as (_, client, nursery):
        call = later(nursery, says, client, wait=True)
        await wait_all_tasks_blocked()
        server.lists["tools"] = []
        listed = server.asked.count("tools/list")
        server.sends(Notification("notifications/tools/list_changed"), link=server.links[1])
        await wait_all_tasks_blocked()
        server.gate.set()
        await call.comes()
        server.links[1].close()
        await wait_all_tasks_blocked()
        assert server.asked.count("tools/list") == listed == 1
        assert await client.names() == ["a__x"]


# What an instance may ask


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("isolation", "trust", "capabilities", "declared"),
    [
        (Isolation.SHARED, Trust.STANDARD, {}, {"roots": {}, "elicitation": {"form": {}, "url": {}}, "sampling": {}}),
        (Isolation.SHARED, Trust.TRUSTED, CAN, {"roots": {}, "elicitation": {"form": {}, "url": {}}, "sampling": {}}),
        (Isolation.PER_CLIENT, Trust.TRUSTED, {"sampling": {"tools": {}}}, {"sampling": {"tools": {}}}),
        (Isolation.PER_CLIENT, Trust.TRUSTED, {}, {}),
        (Isolation.PER_CLIENT, Trust.TRUSTED, {"tasks": {}, "experimental": {"x": {}}}, {}),
        (Isolation.PER_CLIENT, Trust.TRUSTED, {"sampling": {}}, {"sampling": {}}),
        (Isolation.PER_CLIENT, Trust.TRUSTED, {"elicitation": {}}, {"elicitation": {"form": {}}}),
        (Isolation.PER_CALL, Trust.TRUSTED, {"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}),
        (Isolation.PER_CALL, Trust.STANDARD, {"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}),
        (Isolation.PER_CLIENT, Trust.STANDARD, CAN, {**CAN, "roots": {"listChanged": True}, "sampling": {}}),
        (Isolation.PER_CALL, Trust.STANDARD, CAN, {**CAN, "roots": {}, "sampling": {}}),
    ],
)
async def test_a_server_is_told_what_whoever_is_behind_its_connection_may_be_asked(
    isolation: Isolation, trust: Trust, capabilities: dict[str, Any], declared: dict[str, Any]
) -> None:
    """(rule 9, rule 10)"""
    server = Stateful(isolation, trust=trust)
    async with open_world(server) as world:
        await says(await world.client(capabilities=capabilities))
        pages = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
        assert server.initialize_params[-1]["capabilities"] == {**declared, "extensions": pages}
        assert server.initialize_params[-1]["protocolVersion"] == "2025-11-25"
        assert server.initialize_params[-1]["clientInfo"]["name"] == "colonnade"
        assert len(server.initialize_params) == server.connections == (1 if isolation is Isolation.SHARED else 2)


async def test_a_server_that_has_one_client_only_will_hear_when_its_roots_change() -> None:
    """(rule 10, rule 81)"""
    server = Stateful(Isolation.SHARED)
    async with open_world(server, single_client=True) as world:
        await world.settled()
        assert server.initialize_params[-1]["capabilities"]["roots"] == {"listChanged": True}


async def test_a_call_waits_for_an_instance_that_is_ending_where_there_may_be_no_more() -> None:
    """One call after the other is never too many."""
    server = Stateful(Isolation.PER_CALL, max_instances=1)
    async with open_client(server) as (_, client, _):
        for n in range(1, 5):
            assert await says(client) == (n, [""])


async def test_sequential_calls_are_never_too_many_however_long_an_instance_takes_to_end(
    autojump_clock: MockClock,
) -> None:
    server = Stateful(Isolation.PER_CALL, max_instances=1)
    server.ending = 2.0
    async with open_client(server) as (world, client, _):
        began = trio.current_time()
        for n in range(1, 5):
            assert await says(client) == (n, [""])
        assert trio.current_time() - began == pytest.approx(3 * server.ending, abs=0.5)
        assert failed(world) == []


async def test_a_client_gets_the_place_of_an_instance_that_is_ending(autojump_clock: MockClock) -> None:
    """One that is not ending keeps its place."""
    server = Stateful(max_instances=1)
    server.ending = 2.0
    async with open_world(server) as world:
        first, second, third = [await world.client() for _ in range(3)]
        assert await says(first) == (1, [""])
        assert "max_instances: 1" in await fails(second)
        first.session.end()
        began = trio.current_time()
        assert await says(second) == (2, [""])
        assert trio.current_time() - began == pytest.approx(server.ending, abs=0.5)
        assert "max_instances: 1" in await fails(third)
        assert await says(second, "still") == (2, ["", "still"])


@pytest.mark.parametrize("isolation", BOTH)
async def test_what_an_instance_asks_as_it_starts_reaches_the_client_on_the_stream_of_the_call(
    isolation: Isolation,
) -> None:
    """(rule 71) The client listens to nothing else, and another client's call starts another instance meanwhile."""
    server = Stateful(isolation)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = [await world.client(capabilities=CAN) for _ in range(2)]
        await world.settled()

        async def initialize(params: dict[str, Any]) -> object:
            link = server.link
            later(nursery, server.asks, "roots/list", link=link)
            return server._builtin("initialize", params)

        server.answers["initialize"] = initialize
        calls = []
        for client in clients:
            calls.append(later(nursery, says, client))
            asked = await client.is_asked("roots/list")
            client.replies(asked["id"], {"roots": [{"uri": "file:///home"}]})
        for call in calls:
            await call.comes()
        await wait_all_tasks_blocked()
        assert [len(client.server_requests) for client in clients] == [1, 1]
        answers = [json.loads(bytes(each.result)) for each in server.answered if isinstance(each, Success)]
        assert answers == [{"roots": [{"uri": "file:///home"}]}] * 2


async def test_a_question_of_an_instance_that_starts_ends_with_the_call_that_it_was_started_for() -> None:
    """(rule 50)"""
    server = Stateful()
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        await world.settled()

        async def initialize(params: dict[str, Any]) -> object:
            return await server.asks("roots/list")

        server.answers["initialize"] = initialize
        later(nursery, client.request, "tools/call", {"name": "a__x", "arguments": {}}, "c")
        asked = await client.is_asked("roots/list")
        client.notifies("notifications/cancelled", {"requestId": "c"})
        await wait_all_tasks_blocked()
        assert [told["requestId"] for told in client.notifications_of("notifications/cancelled")] == [asked["id"]]
        nursery.cancel_scope.cancel()


async def test_roots_that_change_are_told_to_the_clients_own_instance_alone() -> None:
    """(rule 81)"""
    server = Stateful()
    async with open_world(server) as world:
        first, second, third = [await world.client(capabilities=CAN) for _ in range(3)]
        for client in (first, second):
            await says(client)
        second.notifies("notifications/roots/list_changed")
        third.notifies("notifications/roots/list_changed")
        await wait_all_tasks_blocked()
        assert server.roots_told == [2]


# How many, and how long


async def test_there_are_only_so_many_instances() -> None:
    server = Stateful(max_instances=2)
    async with open_world(server) as world:
        clients = [await world.client() for _ in range(3)]
        for client in clients[:2]:
            await says(client)
        text = "a has no free instance (max_instances: 2); try again later"
        assert await fails(clients[2]) == text
        with pytest.raises(Refusal) as refused:
            await clients[2].request("prompts/get", {"name": "a__p"})
        assert (refused.value.code, refused.value.message) == (429, text)
        assert await says(clients[0], "still") == (1, ["", "still"])
        clients[0].session.end()
        await wait_all_tasks_blocked()
        assert await says(clients[2]) == (3, [""])


async def test_calls_with_their_own_instances_are_bounded_too() -> None:
    server = Stateful(Isolation.PER_CALL, max_instances=2)
    async with open_client(server) as (_, client, nursery):
        calls = [later(nursery, says, client, wait=True) for _ in range(2)]
        await wait_all_tasks_blocked()
        assert "max_instances" in await fails(client)
        server.gate.set()
        for call in calls:
            await call.comes()
        await wait_all_tasks_blocked()
        await says(client)


async def test_an_instance_that_nobody_uses_is_stopped(autojump_clock: MockClock) -> None:
    server = Stateful(idle_timeout=30.0)
    async with open_client(server) as (world, client, _):
        for _ in range(3):
            assert (await says(client))[0] == 1
            await trio.sleep(29)
        await trio.sleep(2)
        assert (len(world.instances("a")), server.alive) == (0, {0})
        assert await says(client, "again") == (2, ["again"])
        assert failed(world) == []


async def test_an_instance_that_works_is_in_use(autojump_clock: MockClock) -> None:
    server = Stateful(idle_timeout=30.0, timeout=500.0)
    async with open_client(server) as (_, client, nursery):
        call = later(nursery, says, client, wait=True)
        await trio.sleep(200)
        assert server.alive == {0, 1}
        server.gate.set()
        assert (await call.comes())[0] == 1
        await trio.sleep(29)
        assert server.alive == {0, 1}
        await trio.sleep(2)
        assert server.alive == {0}


@pytest.mark.parametrize("at", ["idle", "working", "starting"])
async def test_an_instance_ends_with_its_client(at: str, autojump_clock: MockClock) -> None:
    """(rule 29)"""
    server = Stateful()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client, other = [await world.client() for _ in range(2)]
        await says(other)
        if at == "starting":
            slow_start(server)
            later(nursery, client.call, "a__x")
        elif at == "working":
            later(nursery, client.call, "a__x", {"wait": True})
        else:
            await says(client)
        await wait_all_tasks_blocked()
        assert server.alive == {0, 1, 2}
        client.session.end()
        await wait_all_tasks_blocked()
        assert (len(world.instances("a")), server.alive) == (1, {0, 1})
        assert await says(other, "still") == (1, ["", "still"])
        nursery.cancel_scope.cancel()


async def test_a_call_that_is_called_off_takes_its_own_instance_with_it() -> None:
    """(rule 45)"""
    server = Stateful(Isolation.PER_CALL)
    async with open_client(server) as (_, client, nursery):
        params = {"name": "a__x", "arguments": {"wait": True}}
        call = later(nursery, client.request, "tools/call", params, "c")
        await wait_all_tasks_blocked()
        assert server.alive == {0, 1}
        client.notifies("notifications/cancelled", {"requestId": "c"})
        assert await call.comes() is None
        await wait_all_tasks_blocked()
        assert server.alive == {0}


async def test_nothing_is_left_when_the_host_stops() -> None:
    server = Stateful()
    async with open_world(server) as world:
        for _ in range(3):
            await says(await world.client())
        assert len(server.alive) == 4
    assert server.alive == set()


# Trouble


async def test_calls_of_a_lost_instance_fail_once_and_the_next_one_starts_another() -> None:
    """(rule 107)"""
    server = Stateful()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client, other = [await world.client() for _ in range(2)]
        await says(other)
        calls = [later(nursery, fails, client, wait=True) for _ in range(2)]
        await wait_all_tasks_blocked()
        assert server.calls == [1, 2, 2]
        server.links[2].close()
        for call in calls:
            assert (await call.comes()).startswith("the connection to a was lost during the request")
        assert await says(client, "again") == (3, ["again"])
        assert await says(other, "still") == (1, ["", "still"])
        assert server.calls == [1, 2, 2, 3, 1]
        assert failed(world) == ["the other end was closed"]


async def test_the_loss_of_an_instance_of_one_call_is_told_to_its_caller_alone(autojump_clock: MockClock) -> None:
    server = Stateful(Isolation.PER_CALL)
    async with open_client(server) as (world, client, nursery):
        call = later(nursery, fails, client, wait=True)
        await wait_all_tasks_blocked()
        server.links[1].close()
        assert (await call.comes()).startswith("the connection to a was lost during the request")
        await trio.sleep(10)
        assert (server.alive, failed(world)) == ({0}, [])


async def test_the_loss_of_a_clients_instance_is_told_when_it_has_ended(autojump_clock: MockClock) -> None:
    server = Stateful(Isolation.PER_CLIENT)
    async with open_client(server) as (world, client, _):
        server.ending = 5.0
        await says(client)
        server.links[1].close()
        await trio.sleep(3)
        assert (server.alive, failed(world)) == ({0, 1}, [])
        await trio.sleep(3)
        assert (server.alive, failed(world)) == ({0}, ["the other end was closed"])


async def test_an_instance_lives_while_the_one_that_lists_is_away(autojump_clock: MockClock) -> None:
    server = Stateful()
    async with open_world(server) as world:
        client, other = [await world.client() for _ in range(2)]
        await says(client, "a")
        server.links[0].close()
        await wait_all_tasks_blocked()
        with pytest.raises(Unavailable):
            world.upstreams["a"].main.ready_client()
        assert await says(client, "b") == (1, ["a", "b"])
        assert await says(other) == (2, [""])
        await trio.sleep(2)
        assert server.alive == {1, 2, 3}


@pytest.mark.parametrize("isolation", BOTH)
async def test_an_instance_that_does_not_start_is_not_tried_too_often(
    isolation: Isolation, autojump_clock: MockClock
) -> None:
    server = Stateful(isolation)
    async with open_client(server) as (world, client, nursery):
        await world.settled()

        async def broken(params: dict[str, Any]) -> object:
            return {}

        server.answers["initialize"] = broken
        calls = [later(nursery, fails, client) for _ in range(2)]
        for call in calls:
            assert "a is unavailable: its response to the handshake is invalid" in await call.comes()
        tried = server.connections
        for _ in range(10):
            assert "its last instance failed; the next start is in" in await fails(client)
        assert server.connections == tried
        for _ in range(600):
            await fails(client)
            await trio.sleep(0.1)
        assert server.connections < tried + 10
        del server.answers["initialize"]
        await trio.sleep(70)
        await says(client)
        assert await client.names() == ["a__x"]
        assert not any(isinstance(event, InternalError) for event in world.events)


@pytest.mark.few(2)
@pytest.mark.parametrize("isolation", BOTH)
@pytest.mark.parametrize("crash", ["initialize", "tools/call"])
async def test_instances_that_crash_are_not_started_without_bound(
    isolation: Isolation, crash: str, autojump_clock: MockClock
) -> None:
    """Neither in the handshake nor in a call, however many calls come."""
    server = Stateful(isolation)
    async with open_client(server) as (world, client, _):
        await world.settled()

        async def ends(params: dict[str, Any]) -> object:
            server.links[-1].close()
            return {}

        if crash == "initialize":
            server.answers[crash] = ends
        server.crashes = True
        before = server.connections
        for _ in range(150):
            await fails(client)
            await trio.sleep(4)
        assert 5 <= server.connections - before <= 5 + 600 / 60
        server.answers.pop(crash, None)
        server.crashes = False
        await trio.sleep(80)
        await says(client)


async def test_instances_that_crash_for_many_clients_are_bounded_together(autojump_clock: MockClock) -> None:
    server = Stateful(max_instances=4)
    async with open_world(server) as world:
        await world.settled()

        async def broken(params: dict[str, Any]) -> object:
            return {}

        clients = [await world.client() for _ in range(60)]
        server.answers["initialize"] = broken
        before = server.connections
        for client in clients:
            await fails(client)
        assert server.connections - before <= MAX_STARTS * 4


@pytest.mark.few(1)
@pytest.mark.parametrize("identity", ["alice", None])
@pytest.mark.parametrize("isolation", BOTH)
async def test_a_caller_whose_calls_end_instances_is_held_back_and_no_other(
    isolation: Isolation, identity: str | None, autojump_clock: MockClock
) -> None:
    """However many sessions a token has, and though other calls of the caller succeed in between."""
    server = Stateful(isolation, max_instances=3)
    async with open_world(server) as world:
        other = await world.client(identity=None if identity is None else "bob")
        caller = await world.client(identity=identity)
        await world.settled()
        crashed = 0
        for _ in range(60):
            if identity is not None:
                caller.session.end()
                caller = await world.client(identity=identity)
            await caller.call("a__x", {"say": ""})
            server.crashes = True
            crashed -= len(server.calls)
            await fails(caller)
            crashed += len(server.calls)
            server.crashes = False
            await says(other)
            newcomer = await world.client(identity="carol")
            await says(newcomer)
            newcomer.session.end()
            await trio.sleep(0.5)
        assert crashed == MAX_STARTS
        await trio.sleep(80)
        await says(caller)


async def test_an_instance_that_comes_up_makes_up_for_those_that_did_not(autojump_clock: MockClock) -> None:
    server = Stateful(max_instances=4)
    async with open_world(server) as world:
        await world.settled()

        async def broken(params: dict[str, Any]) -> object:
            return {}

        for working in (False, True, False):
            clients = [await world.client() for _ in range(MAX_STARTS * 4 - 1)]
            if working:
                del server.answers["initialize"]
                await says(clients[0])
                clients[0].session.end()
            else:
                server.answers["initialize"] = broken
                for client in clients:
                    assert "its response to the handshake is invalid" in await fails(client)


async def test_one_clients_instance_that_does_not_start_bars_nobody_elses() -> None:
    """What fails for one, by what it can or where it is, may work for another."""
    server = Stateful()

    async def picky(params: dict[str, Any]) -> object:
        return {} if "roots" in params["capabilities"] else server._builtin("initialize", params)

    async with open_world(server) as world:
        await world.settled()
        server.answers["initialize"] = picky
        first, second = await world.client(capabilities=CAN), await world.client()
        assert "its response to the handshake is invalid" in await fails(first)
        assert "its last instance failed" in await fails(first)
        heard, _ = await says(second)
        assert server.alive == {0, heard}
        assert "its last instance failed" in await fails(first)


async def test_an_instance_that_hangs_in_the_handshake_fails_in_time(autojump_clock: MockClock) -> None:
    server = Stateful(start_timeout=7.0)
    async with open_client(server) as (world, client, _):
        await world.settled()
        slow_start(server, 1000.0)
        began = trio.current_time()
        assert "did not finish its start within " in await fails(client)
        assert trio.current_time() - began == pytest.approx(7, abs=0.1)
        assert len(world.instances("a")) == 0


async def test_our_own_mistake_about_one_instance_stays_with_it() -> None:
    server = Stateful()
    async with open_client(server) as (world, client, _):
        await world.settled()
        server.open_link = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        assert "of an internal error" in await fails(client)
        assert any(isinstance(event, InternalError) for event in world.events)
        assert await client.names() == ["a__x"]
        assert world.upstreams["a"].main.ready_client() is not None


async def test_a_silent_instance_is_asked_for_a_sign_of_life(autojump_clock: MockClock) -> None:
    """(rule 16)"""
    server = Stateful(idle_timeout=10_000.0)
    async with open_client(server) as (world, client, _):
        await says(client)

        async def hang(params: dict[str, Any]) -> object:
            await trio.sleep_forever()

        server.answers["ping"] = hang
        await trio.sleep(100)
        assert failed(world) == ["it did not respond to a ping within 10 s"]
        del server.answers["ping"]
        await trio.sleep(100)
        await says(client)


@pytest.mark.parametrize("isolation", BOTH)
async def test_no_instance_is_started_of_a_program_that_nobody_approved(
    isolation: Isolation, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever wants one is told why; once a person approved, the next call has one."""
    command = tmp_path / "command"
    for name in ("one", "two"):
        (tmp_path / name).touch(0o755)
    command.symlink_to("one")
    server = Stateful(isolation)
    server.spec = replace(server.spec, command=(Secret(str(command)),))
    async with open_world(server) as world:
        client, other = await world.client(), await world.client()
        await says(client)
        connections = server.connections
        command.unlink()
        command.symlink_to("two")
        for _ in range(2):
            result = await other.call("a__x", {"say": ""})
            assert result["isError"]
            assert "resolves to another program" in result["content"][0]["text"]
        assert server.connections == connections
        world.approves()
        await trio.sleep(60)  # it failed, and may not be started again at once
        assert "isError" not in await other.call("a__x", {"say": ""})
        assert server.connections == connections + 1


@pytest.mark.parametrize("changed", [{"id": "login-2"}, {"access_token": "refreshed"}])
async def test_an_instance_ends_with_its_login(changed: dict[str, str], autojump_clock: MockClock) -> None:
    """Its session may be that of another account. A refreshed token is no other login."""
    async with processes(stored=login(AT)) as (process,):
        server = Protected(process.of(AT))
        server.spec = replace(server.spec, isolation=Isolation.PER_CLIENT, trust=Trust.TRUSTED)
        server.answers["tools/call"] = _done
        async with open_world(server, credentials=process.credentials) as world:
            await world.settled()
            client = await world.client()
            await client.call("notes__x")
            before = server.connections
            put(process.store, login(AT, **changed))
            await process.credentials.reload()
            await trio.sleep(1)
            await client.call("notes__x")
            new = server.connections - before  # the shared connection, and the instance
            assert new == (2 if "id" in changed else 0)


async def _done(params: dict[str, Any]) -> object:
    return {"content": []}
