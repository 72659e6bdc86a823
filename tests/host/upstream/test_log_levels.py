"""Levels of log messages: what each caller wants, and what follows for the servers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Isolation
from config.views import ALL, ViewSpec
from host.exchange import Caller
from host.jsonrpc.messages import ErrorBody
from host.peer.outstanding import PeerError
from host.source import SHARED, Endpoint
from host.upstream.log_levels import CONFIRM_TIMEOUT, SET_LEVEL_TIMEOUT, LogLevels
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, later, open_client, open_world

LOGS: dict[str, Any] = {"tools": {}, "logging": {}}


class Logger(ScriptedServer):
    """A server with log messages, which notes the levels that it is asked for. `delay`: seconds it takes for that."""

    def __init__(self, id: str, *, delay: float = 0.0, refuses: bool = False, **more: Any) -> None:
        super().__init__(id, tools=["x"], capabilities=LOGS, answers={"logging/setLevel": self._set}, **more)
        self.levels: list[str] = []
        self.at_once = self.most_at_once = 0
        self._delay = delay
        self._refuses = refuses

    async def _set(self, params: dict[str, Any]) -> object:
        self.levels.append(params["level"])
        if self._refuses:
            raise PeerError(ErrorBody(-32000, "no"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await trio.sleep(self._delay)
        self.at_once -= 1
        return {}

    async def logs(self, *levels: str) -> None:
        for level in levels:
            await self.notifies("notifications/message", {"level": level, "data": level})
        await wait_all_tasks_blocked()


async def wants(client: ScriptedClient, level: str) -> None:
    assert await client.request("logging/setLevel", {"level": level}) == {}
    await wait_all_tasks_blocked()


def heard(client: ScriptedClient) -> list[object]:
    return [params["data"] for params in client.notifications_of("notifications/message")]


async def test_a_server_is_asked_for_the_most_verbose_level_and_only_when_that_changes() -> None:
    """(rule 82)"""
    server, quiet = Logger("a"), ScriptedServer("b", tools=["x"], capabilities={"tools": {}})
    async with open_world(server, quiet) as world:
        first, second = [await world.client() for _ in range(2)]
        assert server.levels == []
        await wants(first, "warning")
        assert server.levels == ["info"]  # as long as the second has set none
        await wants(second, "error")
        await wants(first, "warning")
        assert server.levels == ["info", "warning"]
        await wants(second, "debug")
        await wants(first, "info")
        assert server.levels == ["info", "warning", "debug"]
        second.session.end()
        await wait_all_tasks_blocked()
        assert server.levels == ["info", "warning", "debug", "info"]
        first.session.end()
        await wait_all_tasks_blocked()
        assert server.levels == ["info", "warning", "debug", "info"]
        assert "logging/setLevel" not in quiet.asked


async def test_each_client_gets_what_it_asked_for() -> None:
    """(rule 82)"""
    server = Logger("a")
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = {level: await world.client() for level in ("debug", "error", "unset")}
        for level, client in clients.items():
            nursery.start_soon(client.listen_changes)
            if level != "unset":
                await wants(client, level)
        await wait_all_tasks_blocked()
        await server.logs("debug", "warning", "error", "emergency")
        assert {level: heard(client) for level, client in clients.items()} == {
            "debug": ["debug", "warning", "error", "emergency"],
            "error": ["error", "emergency"],
            "unset": [],
        }
        nursery.cancel_scope.cancel()


async def test_a_clients_own_level_holds_for_its_own_calls_too() -> None:
    """(rule 82)"""
    server = Logger("a")
    async with open_client(server) as (_, client, nursery):
        await wants(client, "error")
        later(nursery, client.call, "a__x")
        id = (await server.hears("tools/call"))["id"]
        await server.logs("info", "error")
        assert heard(client) == ["error"]
        await wants(client, "debug")
        await server.logs("debug")
        assert heard(client) == ["error", "debug"]
        server.says(id, {"content": []})


async def test_a_level_that_is_none_changes_nothing() -> None:
    """(rule 82)"""
    rows: list[object] = ["loud", "DEBUG", "", 5, None, ["debug"]]
    server = Logger("a")
    async with open_client(server) as (_, client, _):
        for level in rows:
            await wants(client, "error")
            with pytest.raises(Refusal) as refused:
                await client.request("logging/setLevel", {"level": level})
            assert refused.value.code == -32602
            await wait_all_tasks_blocked()
            assert server.levels == ["error"]
            assert client.session.level == "error"


async def test_a_server_that_comes_back_is_asked_again(autojump_clock: MockClock) -> None:
    """(rule 82, rule 32)"""
    server = Logger("a")
    async with open_client(server) as (_, client, _):
        await wants(client, "notice")
        server.dies()
        await trio.sleep(2)
        assert server.connections == 2
        assert server.levels == ["notice", "notice"]


async def test_a_level_that_changes_while_the_server_is_asked_is_asked_next(autojump_clock: MockClock) -> None:
    """(rule 82, rule 110) In one request at a time, and only the last of several."""
    server = Logger("a", delay=5.0)
    async with open_client(server) as (_, client, _):
        for level in ("error", "warning", "debug", "info"):
            await wants(client, level)
        await trio.sleep(20)
        assert server.levels == ["error", "info"]
        assert server.most_at_once == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("order", list(itertools.permutations(["debug", "error", "gone"])))
async def test_two_clients_at_once_leave_the_server_at_the_most_verbose_level(order: Sequence[str]) -> None:
    """(rule 110)"""
    server = Logger("a")
    async with open_world(server) as world:
        clients = {level: await world.client() for level in ("debug", "error", "gone")}
        async with trio.open_nursery() as nursery:
            for level in order:
                wanted = "debug" if level == "gone" else level
                nursery.start_soon(clients[level].request, "logging/setLevel", {"level": wanted})
        clients["gone"].session.end()
        await wait_all_tasks_blocked()
        assert server.levels[-1] == "debug"
        clients["debug"].session.end()
        await wait_all_tasks_blocked()
        assert server.levels[-1] == "error"


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
async def test_a_server_that_does_not_agree_is_left_alone_and_nobody_waits(
    trouble: str, autojump_clock: MockClock
) -> None:
    server = Logger("a", delay=2 * SET_LEVEL_TIMEOUT, refuses=trouble == "refuses")
    async with open_client(server) as (_, client, _):
        await wants(client, "error")
        await trio.sleep(SET_LEVEL_TIMEOUT + 1)
        await wants(client, "debug")
        await trio.sleep(1)
        assert server.levels == ["error", "debug"]
        assert server.connections == 1


async def test_a_servers_own_endpoint_is_about_that_server_alone() -> None:
    """(rule 101)"""
    mine, other = Logger("a"), Logger("b")
    async with open_world(mine, other) as world:
        await wants(await world.client("a"), "debug")
        assert (mine.levels, other.levels) == (["debug"], [])
        await wants(await world.client(), "error")
        assert (mine.levels, other.levels) == (["debug"], ["error"])


async def test_a_dedicated_instance_follows_its_own_client() -> None:
    """(rule 82)"""
    server = Logger("a", isolation=Isolation.PER_CLIENT)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        loud, quiet = [await world.client() for _ in range(2)]
        nursery.start_soon(loud.listen_changes)
        nursery.start_soon(quiet.listen_changes)
        await wants(loud, "debug")
        server.levels.clear()  # what the instance that lists was asked for
        later(nursery, quiet.call, "a__x")
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        await wait_all_tasks_blocked()
        assert server.levels == []
        await wants(quiet, "error")
        assert server.levels == ["error"]
        await server.logs("warning", "alert")
        assert heard(quiet) == ["alert"]
        assert heard(loud) == []
        nursery.cancel_scope.cancel()


def test_levels_of_those_who_are_gone_are_forgotten() -> None:
    levels = LogLevels()
    callers = [Caller("x", SHARED), Caller("x", Endpoint("a")), Caller("x", Endpoint("b"))]
    for caller in callers:
        levels.set_level(caller, "info")
    assert list(levels.callers("a")) == callers[:2]
    for caller in [*callers, Caller("x", SHARED)]:
        levels.forget(caller)
    assert list(levels.callers("a")) == []


async def test_a_level_is_none_of_a_server_outside_the_view_and_its_messages_go_elsewhere() -> None:
    a, b = Logger("a"), Logger("b")
    async with open_world(a, b, views={"v": ViewSpec(servers={"a": ALL})}) as world, trio.open_nursery() as nursery:
        client, other = await world.client(Endpoint(view="v")), await world.client()
        for each in (client, other):
            nursery.start_soon(each.listen_changes)
        await wants(client, "debug")
        assert (a.levels, b.levels) == (["debug"], [])
        await wants(other, "error")
        assert (a.levels, b.levels) == (["debug"], ["error"])
        await a.logs("debug")
        await b.logs("alert")
        assert (heard(client), heard(other)) == (["debug"], ["alert"])
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("turn", range(8))  # which task comes first is left to chance
async def test_an_instance_is_told_the_level_before_its_first_call(turn: int) -> None:
    """(rule 82)"""
    server = Logger("a", isolation=Isolation.PER_CALL)
    async with open_client(server) as (_, client, nursery):
        await wants(client, "debug")
        call = later(nursery, client.call, "a__x")
        request = await server.hears("tools/call")
        assert server.levels[-1] == "debug"
        asked = [method for method in server.asked if method in ("logging/setLevel", "tools/call")]
        assert asked[-2:] == ["logging/setLevel", "tools/call"]
        server.says(request["id"], {"content": []})
        await call.comes()


async def done(params: dict[str, Any]) -> object:
    return {"content": []}


async def test_a_call_comes_behind_the_level_that_was_wanted_before_it() -> None:
    """In whatever order tasks run."""
    server, caller = Logger("a"), Caller("other", SHARED)
    server.answers["tools/call"] = done
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        for level in ("error", "debug") * 10:
            await wait_all_tasks_blocked()  # the server has agreed to the level before
            server.asked.clear()
            world.router.log_levels.set_level(caller, level)
            await client.call("a__x")
            assert server.asked == ["logging/setLevel", "tools/call"]


async def test_a_call_does_not_overtake_the_level_that_was_wanted_before_it(autojump_clock: MockClock) -> None:
    """As it could over HTTP, where each has a connection of its own."""
    server, caller = Logger("a", delay=CONFIRM_TIMEOUT / 2), Caller("other", SHARED)
    server.answers["tools/call"] = done
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        world.router.log_levels.set_level(caller, "debug")
        began = trio.current_time()
        await client.call("a__x")
        assert server.asked[-2:] == ["logging/setLevel", "tools/call"]
        assert trio.current_time() == began + CONFIRM_TIMEOUT / 2


async def test_no_call_waits_long_for_a_server_to_agree_to_a_level(autojump_clock: MockClock) -> None:
    server, caller = Logger("a", delay=SET_LEVEL_TIMEOUT / 2), Caller("other", SHARED)
    server.answers["tools/call"] = done
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        for level in ("info", "debug"):
            world.router.log_levels.set_level(caller, level)
            await client.call("a__x")
        assert server.asked[-3:] == ["logging/setLevel", "tools/call", "tools/call"]
        assert trio.current_time() < SET_LEVEL_TIMEOUT / 4
        await trio.sleep(SET_LEVEL_TIMEOUT)
        assert server.levels == ["info", "debug"]


async def test_who_has_set_no_level_hears_info_whatever_others_set_and_whenever_they_leave() -> None:
    """And the server is left at its own level while nobody has set one (rule 82)."""
    server = Logger("a")
    server.answers["tools/call"] = done
    async with open_world(server) as world, trio.open_nursery() as nursery:
        undecided, quiet = [await world.client() for _ in range(2)]
        await undecided.call("a__x")
        assert server.levels == []
        await wants(quiet, "error")
        assert server.levels == ["info"]
        quiet.session.end()
        await wait_all_tasks_blocked()
        assert server.levels == ["info"]
        del server.answers["tools/call"]
        call = later(nursery, undecided.call, "a__x")
        request = await server.hears("tools/call")
        await server.logs("debug", "info", "error")
        server.says(request["id"], {"content": []})
        await call.comes()
        assert heard(undecided) == ["info", "error"]


async def test_a_level_does_not_outlast_its_client_for_one_that_comes_later() -> None:
    server = Logger("a")
    async with open_world(server) as world:
        quiet = await world.client()
        await wants(quiet, "error")
        quiet.session.end()
        await world.client()
        await wait_all_tasks_blocked()
        assert server.levels == ["error", "info"]
