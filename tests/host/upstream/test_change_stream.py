"""What a stateless server tells of changes: over one request at a time, none missed and none heard twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Isolation
from host.jsonrpc.messages import ErrorBody
from host.peer.outstanding import PeerError
from host.protocol.versions import LATEST
from host.upstream.catalog_sync import MAX_AGE
from host.upstream.change_stream import ACKNOWLEDGE_TIMEOUT, FORMER_GRACE
from host.wire.link import LinkLost
from tests.kit.examples import examples
from tests.kit.world import Later, Refusal, ScriptedClient, ScriptedServer, World, later, open_client, open_world, tool

D, E = "file:///d", "file:///e"
META = "io.modelcontextprotocol/"
UPDATED = "notifications/resources/updated"
TOOLS_CHANGED = "notifications/tools/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
EVERYTHING = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True, "listChanged": True}}
LISTS = {"toolsListChanged": True, "resourcesListChanged": True}


class Telling(ScriptedServer):
    """A stateless server that tells of everything but its prompts."""

    def __init__(self, id: str = "a", **more: Any) -> None:
        more.setdefault("capabilities", EVERYTHING)
        super().__init__(id, tools=["x"], resources=[D, E], revision=LATEST.name, **more)

    @property
    def open(self) -> list[dict[str, Any]]:
        """What each request that listens wants, of those that stand."""
        return [each["notifications"] for each in self.listens if not each["ended"]]

    def ids(self) -> list[Any]:
        return [each["id"] for each in self.listens]

    async def says(self, id: Any, method: str, params: object = None) -> None:  # type: ignore[override]
        """A notice by one request that listens."""
        meta = {f"{META}subscriptionId": id} if id is not None else {}
        await self.notifies(method, {**(params if isinstance(params, dict) else {}), "_meta": meta})
        await wait_all_tasks_blocked()

    def acknowledges_nothing(self) -> None:
        self.acknowledgement_for = lambda wanted: None

    def acknowledges(self) -> None:
        self.acknowledgement_for = lambda wanted: wanted


async def listener(world: World, nursery: trio.Nursery) -> ScriptedClient:
    client = await world.client()
    nursery.start_soon(client.listen_changes)
    await world.settled()
    await wait_all_tasks_blocked()
    return client


@asynccontextmanager
async def listening(server: Telling, watched: str | None = None) -> AsyncIterator[tuple[ScriptedClient, trio.Nursery]]:
    """A client that listens, and watches this resource if one is given."""
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await listener(world, nursery)
        if watched is not None:
            assert await watch(nursery, client, watched).comes() == {}
        yield client, nursery
        nursery.cancel_scope.cancel()


def watch(nursery: trio.Nursery, client: ScriptedClient, uri: str = D) -> Later:
    return later(nursery, client.request, "resources/subscribe", {"uri": f"a+{uri}"})


async def unwatch(client: ScriptedClient, uri: str = D) -> None:
    assert await client.request("resources/unsubscribe", {"uri": f"a+{uri}"}) == {}
    await wait_all_tasks_blocked()


def updates(client: ScriptedClient) -> list[str]:
    return [params["uri"] for params in client.notifications_of(UPDATED)]


# What is listened for


async def test_from_the_start_it_listens_for_the_lists_that_the_server_announces() -> None:
    """In one request, which says what each request says (rules 11, 87)."""
    server = Telling()
    async with open_world(server) as world:
        await world.settled()
        await wait_all_tasks_blocked()
        (listens,) = server.listens
        assert listens["notifications"] == LISTS
        assert listens["_meta"][f"{META}protocolVersion"] == LATEST.name
        assert f"{META}clientCapabilities" in listens["_meta"]
        assert ("subscriptions/listen", "subscriptions/listen") in [
            (method, headers["Mcp-Method"]) for method, headers in server.sent_headers
        ]


@pytest.mark.parametrize("capabilities", [{"tools": {}}, {}, {"tools": {"listChanged": False}}])
async def test_a_server_that_announces_nothing_is_not_listened_to(capabilities: dict[str, Any]) -> None:
    server = Telling(capabilities=capabilities)
    async with open_world(server) as world:
        await world.settled()
        await wait_all_tasks_blocked()
        assert "subscriptions/listen" not in server.asked


async def test_a_changed_list_is_read_again(autojump_clock: MockClock) -> None:
    """(rules 85, 97)"""
    server = Telling()
    async with listening(server) as (client, _):
        server.lists["tools"].append(tool("y"))
        await server.tells(TOOLS_CHANGED)
        await trio.sleep(1)
        assert len(client.notifications_of(TOOLS_CHANGED)) == 1
        assert await client.names() == ["a__x", "a__y"]


async def test_watches_of_all_clients_are_one_request_with_all_that_is_wanted() -> None:
    """And nothing of the subscription at the server reaches a client (rules 51, 87)."""
    server = Telling()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        first, second = await listener(world, nursery), await listener(world, nursery)
        assert await watch(nursery, first).comes() == {}
        assert await watch(nursery, second).comes() == {}
        assert await watch(nursery, second, E).comes() == {}
        await wait_all_tasks_blocked()
        assert server.open == [{**LISTS, "resourceSubscriptions": [D, E]}]
        await server.tells(UPDATED, {"uri": D, "vendor": 1.5})
        await server.tells(UPDATED, {"uri": f"{E}#part"})
        await wait_all_tasks_blocked()
        assert first.notifications_of(UPDATED) == [{"uri": f"a+{D}", "vendor": 1.5}]
        assert updates(second) == [f"a+{D}", f"a+{E}#part"]
        nursery.cancel_scope.cancel()


async def test_what_nobody_watches_any_more_is_not_listened_for() -> None:
    """(rule 87)"""
    server = Telling()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        first, second = await listener(world, nursery), await listener(world, nursery)
        for client in (first, second):
            assert await watch(nursery, client).comes() == {}
        await unwatch(first)
        assert server.open == [{**LISTS, "resourceSubscriptions": [D]}]
        await unwatch(second)
        assert server.open == [LISTS]
        nursery.cancel_scope.cancel()


async def test_an_instance_is_listened_to_for_what_its_client_watches_and_for_no_lists() -> None:
    server = Telling(isolation=Isolation.PER_CLIENT)
    async with listening(server) as (client, nursery):
        before = len(server.listens)
        assert await watch(nursery, client).comes() == {}
        await wait_all_tasks_blocked()
        assert [each["notifications"] for each in server.listens[before:]] == [{"resourceSubscriptions": [D]}]
        await server.says(server.ids()[-1], UPDATED, {"uri": D})
        assert updates(client) == [f"a+{D}"]


async def test_what_changes_before_it_is_listened_for_the_first_time_is_not_missed(autojump_clock: MockClock) -> None:
    """Lists are read before that, and those that are listened for once more after it (rule 85)."""
    server = Telling()

    async def changes(params: dict[str, Any]) -> object:
        now = list(server.lists["tools"])
        if len(now) == 1:
            server.lists["tools"].append(tool("y"))
            await server.tells(TOOLS_CHANGED)
        return {"resultType": "complete", "tools": now}

    server.answers["tools/list"] = changes
    async with open_client(server) as (_, client, _):
        assert await client.names() == ["a__x"]
        await trio.sleep(1)
        assert await client.names() == ["a__x", "a__y"]
        assert [server.asked.count(f"{kind}/list") for kind in ("tools", "resources", "prompts")] == [2, 2, 1]


# Who is told yes


async def test_a_subscription_is_answered_once_the_server_has_acknowledged_it() -> None:
    """(rule 89)"""
    server = Telling()
    async with listening(server) as (client, nursery):
        server.acknowledges_nothing()
        asked = watch(nursery, client)
        await wait_all_tasks_blocked()
        assert len(server.open) == 2
        assert not asked.done
        await server.says(server.ids()[-1], ACKNOWLEDGED, {"notifications": {"resourceSubscriptions": [D]}})
        assert await asked.comes() == {}


@pytest.mark.parametrize(
    "granted", [{}, LISTS, {"resourceSubscriptions": []}, {"resourceSubscriptions": [E]}, {"resourceSubscriptions": 5}]
)
async def test_what_the_server_does_not_grant_is_refused(granted: dict[str, Any]) -> None:
    """And only that (rules 87, 89)."""
    server = Telling()
    async with listening(server) as (client, nursery):
        server.acknowledgement_for = lambda wanted: granted if D in wanted.get("resourceSubscriptions", ()) else wanted
        with pytest.raises(Refusal) as refused:
            await client.request("resources/subscribe", {"uri": f"a+{D}"})
        assert refused.value.code == -32601
        await wait_all_tasks_blocked()
        assert await watch(nursery, client, E).comes() == {}
        await wait_all_tasks_blocked()
        await server.tells(UPDATED, {"uri": E})
        await wait_all_tasks_blocked()
        assert updates(client) == [f"a+{E}"]
        assert len(server.open) == 1


async def test_of_two_that_are_wanted_at_once_one_may_be_granted(autojump_clock: MockClock) -> None:
    """(rule 89)"""
    server = Telling()
    async with listening(server) as (client, nursery):
        server.acknowledgement_for = lambda wanted: {**wanted, "resourceSubscriptions": [E]}
        first, second = watch(nursery, client), watch(nursery, client, E)
        with pytest.raises(Refusal):
            await first.comes()
        assert await second.comes() == {}


async def test_without_an_acknowledgement_a_subscription_fails_in_time_and_what_stood_still_counts(
    autojump_clock: MockClock,
) -> None:
    """(rules 87, 89)"""
    server = Telling()
    async with listening(server, D) as (client, _):
        server.acknowledges_nothing()
        began = trio.current_time()
        with pytest.raises(Refusal) as refused:
            await client.request("resources/subscribe", {"uri": f"a+{E}"})
        assert refused.value.code == 504
        assert trio.current_time() - began == pytest.approx(ACKNOWLEDGE_TIMEOUT, abs=0.1)
        await server.tells(UPDATED, {"uri": D})
        await wait_all_tasks_blocked()
        assert updates(client) == [f"a+{D}"]
        server.acknowledges()
        await trio.sleep(60)
        assert server.open == [{**LISTS, "resourceSubscriptions": [D]}]
        await server.tells(UPDATED, {"uri": D})
        await wait_all_tasks_blocked()
        assert updates(client) == [f"a+{D}"] * 2


async def test_a_server_that_refuses_to_be_listened_to_is_used_all_the_same(autojump_clock: MockClock) -> None:
    """It is asked again, ever more rarely."""
    server = Telling()
    asked_at: list[float] = []

    async def refuse(params: dict[str, Any]) -> object:
        asked_at.append(trio.current_time())
        raise PeerError(ErrorBody(-32601, "no such method"))

    server.answers["subscriptions/listen"] = refuse
    async with listening(server) as (client, _):
        assert await client.names() == ["a__x"]
        with pytest.raises(Refusal) as refused:
            await client.request("resources/subscribe", {"uri": f"a+{D}"})
        assert refused.value.code == -32601
        await trio.sleep(10_000)
        assert 10 < len(asked_at) < 40
        assert asked_at[-1] - asked_at[-2] >= 300


@pytest.mark.parametrize("works", [True, False])
async def test_a_watch_that_is_taken_back_at_once_is_answered_and_so_is_the_next(
    works: bool, autojump_clock: MockClock
) -> None:
    """Nobody waits for an agreement that nobody asks the server for any more (rule 110)."""
    server = Telling()
    async with listening(server) as (client, nursery):
        if not works:
            server.acknowledges_nothing()
        for _ in range(3):
            asked = watch(nursery, client)
            for _ in range(2):  # the first is taken, and not yet looked at
                await trio.lowlevel.checkpoint()
            assert await client.request("resources/unsubscribe", {"uri": f"a+{D}"}) == {}
            await trio.sleep(3 * ACKNOWLEDGE_TIMEOUT)
            assert asked.done
        server.acknowledges()
        await trio.sleep(100)
        assert await watch(nursery, client).comes() == {}


async def test_a_watch_that_is_taken_back_before_it_was_asked_for_leaves_no_trace() -> None:
    """(rule 110)"""
    server = Telling()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await listener(world, nursery)
        upstream = world.upstreams.by_id["a"].main.watches
        asked = watch(nursery, client)
        while not len(upstream):
            await trio.lowlevel.checkpoint()
        upstream.forget(client.session._caller)
        await wait_all_tasks_blocked()
        assert asked.done
        assert await watch(nursery, client).comes() == {}
        nursery.cancel_scope.cancel()


# One takes the place of another


async def test_the_former_request_stands_until_the_next_is_acknowledged() -> None:
    """What comes meanwhile is heard by the former, and by the next from then on (rules 87, 112)."""
    server = Telling()
    async with listening(server, D) as (client, nursery):
        await wait_all_tasks_blocked()
        server.acknowledges_nothing()
        asked = watch(nursery, client, E)
        await wait_all_tasks_blocked()
        former, coming = server.ids()[-2:]
        assert len(server.open) == 2
        await server.says(coming, UPDATED, {"uri": D})  # before it acknowledges: that is none
        assert updates(client) == []
        await server.says(former, UPDATED, {"uri": D})
        assert updates(client) == [f"a+{D}"]
        both = {"notifications": {"resourceSubscriptions": [D, E]}}
        await server.says(coming, ACKNOWLEDGED, both)
        assert await asked.comes() == {}
        assert [each["ended"] for each in server.listens[-2:]] == [True, False]
        await server.says(coming, UPDATED, {"uri": D})
        await server.says(former, UPDATED, {"uri": D})  # the same once more
        assert updates(client) == [f"a+{D}"] * 2


async def test_in_an_overlap_no_change_is_heard_twice_and_none_is_missed() -> None:
    """The server tells each change by every request that stands (rule 112)."""
    server = Telling()
    async with listening(server, D) as (client, nursery):
        server.acknowledges_nothing()
        asked = watch(nursery, client, E)
        await wait_all_tasks_blocked()
        former, coming = server.ids()[-2:]

        def tell(id: Any, n: int) -> None:
            meta = {f"{META}subscriptionId": id}
            nursery.start_soon(server.notifies, UPDATED, {"uri": D, "n": n, "_meta": meta})

        # All of it lies in the pipe before any of it is read.
        assert server.link is not None
        for n in range(6):
            if n == 3:
                granted = {"_meta": {f"{META}subscriptionId": coming}, "notifications": {"resourceSubscriptions": [D]}}
                server.link.write_bytes(_notice(ACKNOWLEDGED, granted))
            for id in (former, coming) if n >= 3 else (former,):
                server.link.write_bytes(_notice(UPDATED, {"uri": D, "n": n, "_meta": {f"{META}subscriptionId": id}}))
        await wait_all_tasks_blocked()
        assert [params["n"] for params in client.notifications_of(UPDATED)] == list(range(6))
        assert asked.done


async def test_streams_of_their_own_may_be_read_in_any_order(autojump_clock: MockClock) -> None:
    """Over HTTP a change that the server told by the former request may be read after the acknowledgement of the new
    one: it counts for `FORMER_GRACE`, then the former request ends (rule 112)."""
    server = Telling()
    async with listening(server, D) as (client, nursery):
        server.acknowledges_nothing()
        asked = watch(nursery, client, E)
        await wait_all_tasks_blocked()
        former, coming = server.ids()[-2:]
        granted = {"_meta": {f"{META}subscriptionId": coming}, "notifications": {"resourceSubscriptions": [D, E]}}
        told = {"_meta": {f"{META}subscriptionId": former}, "uri": D}
        assert server.link is not None
        server.link.write_bytes(_notice(ACKNOWLEDGED, granted), coming)
        server.link.write_bytes(_notice(UPDATED, told), former)
        assert await asked.comes() == {}
        await wait_all_tasks_blocked()
        assert updates(client) == [f"a+{D}"]
        assert [each["ended"] for each in server.listens[-2:]] == [False, False]
        await trio.sleep(2 * FORMER_GRACE)
        assert [each["ended"] for each in server.listens[-2:]] == [True, False]
        server.link.write_bytes(_notice(UPDATED, told), former)
        await wait_all_tasks_blocked()
        assert updates(client) == [f"a+{D}"]


def _notice(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


@pytest.mark.few(2)
@pytest.mark.parametrize("id", [None, 999, "1", "x", -1])
async def test_what_belongs_to_no_request_that_listens_is_not_heard(id: object, autojump_clock: MockClock) -> None:
    """A stateless server may say nothing unasked (rule 87)."""
    server = Telling()
    async with listening(server, D) as (client, _):
        await trio.sleep(1)
        listed = server.asked.count("tools/list")
        await server.says(id, UPDATED, {"uri": D})
        await server.says(id, TOOLS_CHANGED)
        await server.says(id, ACKNOWLEDGED, {"notifications": {"resourceSubscriptions": [E]}})
        await trio.sleep(5)
        assert updates(client) == []
        assert server.asked.count("tools/list") == listed


async def test_a_notice_by_a_call_is_none_that_was_listened_for(autojump_clock: MockClock) -> None:
    """It names a request in flight that does not listen (rule 87)."""
    server = Telling()
    async with listening(server, D) as (client, nursery):
        call = later(nursery, client.call, "a__x")
        id = (await server.hears("tools/call"))["id"]
        await server.says(id, UPDATED, {"uri": D})
        assert updates(client) == []
        ScriptedServer.says(server, id, {"resultType": "complete", "content": []})
        await call.comes()


# When it ends


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["result", "cancelled", "result, cancelled", "cancelled, result", "error"])
async def test_a_request_that_the_server_ends_is_sent_again_and_what_it_missed_is_made_good(
    how: str, autojump_clock: MockClock
) -> None:
    """Once, in whatever order it says so (rules 85, 87)."""
    server = Telling()
    async with listening(server, D) as (client, _):
        await trio.sleep(1)
        count, listed = len(server.listens), server.asked.count("tools/list")
        server.lists["tools"].append(tool("y"))
        id = server.ids()[-1]
        for each in how.split(", "):
            if each == "result":
                server.ends_listen(id)
            elif each == "cancelled":
                await server.notifies("notifications/cancelled", {"requestId": id})
            else:
                assert server.link is not None
                server.link.write_bytes(
                    json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": ""}}).encode()
                )
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        server.listens[-1]["ended"] = True
        await trio.sleep(3)
        assert len(server.listens) == count + 1
        assert server.open == [{**LISTS, "resourceSubscriptions": [D]}]
        assert updates(client) == [f"a+{D}"]
        assert server.asked.count("tools/list") == listed + 1
        assert await client.names() == ["a__x", "a__y"]


async def test_lists_are_read_again_only_once_they_are_listened_for_again(autojump_clock: MockClock) -> None:
    """What changes before the server acknowledges would be missed otherwise (rules 85, 87)."""
    server = Telling()
    async with listening(server) as (client, _):
        server.acknowledges_nothing()
        server.ends_listen(server.ids()[-1])
        await trio.sleep(5)
        server.lists["tools"].append(tool("y"))
        server.acknowledges()
        await trio.sleep(60)
        assert len(server.open) == 1
        assert await client.names() == ["a__x", "a__y"]


@pytest.mark.parametrize("ends", [True, False])
async def test_while_it_listens_for_nothing_its_lists_get_old(ends: bool, autojump_clock: MockClock) -> None:
    """A server that ends the request, or that grants none of the lists, announces nothing: clients that ask for a list
    are answered as with a server that never announces."""
    server = Telling()
    if not ends:
        server.acknowledgement_for = lambda wanted: {}
    async with listening(server) as (client, _):
        if ends:
            server.acknowledges_nothing()
            server.ends_listen(server.ids()[-1])
        server.lists["tools"].append(tool("y"))
        await trio.sleep(MAX_AGE + 1)
        assert await client.names() == ["a__x", "a__y"]


async def test_while_it_listens_its_lists_do_not_get_old(autojump_clock: MockClock) -> None:
    server = Telling()
    async with listening(server) as (client, _):
        await trio.sleep(1)
        server.asked.clear()
        await trio.sleep(10 * MAX_AGE)
        await client.names()
        assert "tools/list" not in server.asked


@pytest.mark.slow
async def test_a_server_that_ends_each_request_at_once_is_asked_ever_more_rarely(autojump_clock: MockClock) -> None:
    """(rule 87)"""
    server = Telling()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await listener(world, nursery)
        began = trio.current_time()

        async def ends() -> None:
            while True:
                for each in server.listens:
                    if not each["ended"]:
                        server.ends_listen(each["id"])
                await trio.sleep(0.1)

        nursery.start_soon(ends)
        await trio.sleep(600)
        assert 8 < len(server.listens) < 30
        assert trio.current_time() - began >= 600
        nursery.cancel_scope.cancel()


async def test_after_a_reconnect_it_listens_for_all_of_it_again_and_tells_that_it_may_have_changed(
    autojump_clock: MockClock,
) -> None:
    """(rules 85, 87)"""
    server = Telling()
    async with listening(server, D) as (client, _):
        server.lists["tools"].append(tool("y"))
        server.dies()
        await trio.sleep(10)
        assert server.connections == 2
        assert server.open == [{**LISTS, "resourceSubscriptions": [D]}]
        assert updates(client) == [f"a+{D}"]
        assert await client.names() == ["a__x", "a__y"]


async def test_a_watch_while_it_waits_to_listen_again_is_agreed_to_at_once(autojump_clock: MockClock) -> None:
    """And what was watched before is made good too (rule 87)."""
    server = Telling()
    async with listening(server, D) as (client, nursery):
        await wait_all_tasks_blocked()
        for _ in range(5):  # so that the next pause is a long one
            server.ends_listen(server.ids()[-1])
            await trio.sleep(6)
        heard = len(updates(client))
        server.ends_listen(server.ids()[-1])
        await wait_all_tasks_blocked()
        began = trio.current_time()
        assert await watch(nursery, client, E).comes() == {}
        assert trio.current_time() - began < 1
        await trio.sleep(60)
        assert f"a+{D}" in updates(client)[heard:]
        assert server.open == [{**LISTS, "resourceSubscriptions": [D, E]}]


async def test_a_call_in_flight_is_the_only_one_however_long_it_listens() -> None:
    """What stands open for changes is nothing that the server works on: a log message is certainly the call's
    (rules 71, 83)."""
    server = Telling()
    async with open_client(server) as (world, client, nursery):
        await world.settled()
        await wait_all_tasks_blocked()
        assert len(server.open) == 1
        await client.request("logging/setLevel", {"level": "debug"})
        call = later(nursery, client.call, "a__x")
        id = (await server.hears("tools/call"))["id"]
        await server.notifies("notifications/message", {"level": "info", "data": "ok"})
        await wait_all_tasks_blocked()
        assert [params["data"] for params in client.notifications_of("notifications/message")] == ["ok"]
        ScriptedServer.says(server, id, {"resultType": "complete", "content": []})
        await call.comes()


# Whatever the order

Step = tuple[str, str, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["watch", "watch", "unwatch", "end", "cancel", "die", "mute", "refuse", "allow"]),
        st.sampled_from([D, E]),
        st.sampled_from([0.0, 0.0, 0.01, 0.3, 3.0, 12.0]),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(STEPS)
def test_whatever_the_order_in_the_end_one_request_listens_for_what_is_wanted(steps: list[Step]) -> None:
    """Everybody is answered, and whoever was told yes hears of the next change once (rules 87, 89, 110)."""
    trio.run(play, steps, clock=MockClock(autojump_threshold=0))


async def play(steps: Sequence[Step]) -> None:
    server = Telling()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await listener(world, nursery)
        asked: list[Later] = []
        for what, uri, pause in steps:
            if what == "watch":
                asked.append(watch(nursery, client, uri))
            elif what == "unwatch":
                with suppress(Refusal):
                    await client.request("resources/unsubscribe", {"uri": f"a+{uri}"})
            elif what == "end":
                for each in server.listens:
                    if not each["ended"]:
                        server.ends_listen(each["id"])
            elif what == "cancel" and server.listens:
                with suppress(LinkLost):
                    await server.notifies("notifications/cancelled", {"requestId": server.ids()[-1]})
            elif what == "die":
                server.dies()
            elif what == "mute":
                server.acknowledges_nothing()
            elif what == "refuse":
                server.acknowledgement_for = lambda wanted, uri=uri: {  # type: ignore[misc]
                    **wanted,
                    "resourceSubscriptions": [each for each in wanted.get("resourceSubscriptions", ()) if each != uri],
                }
            elif what == "allow":
                server.acknowledges()
            await trio.sleep(pause)
        server.acknowledges()
        await trio.sleep(2000)
        assert all(each.done for each in asked)
        watched = sorted(world.upstreams.by_id["a"].main.watches._watchers)
        # One that went on with what it was not acknowledged for is gone, and what it is told of now counts.
        assert server.open == [{**LISTS, **({"resourceSubscriptions": watched} if watched else {})}]
        before = len(updates(client))
        await server.tells(UPDATED, {"uri": D})
        await wait_all_tasks_blocked()
        expected = [f"a+{D}"] if watched else []
        assert updates(client)[before:] == expected
        nursery.cancel_scope.cancel()
