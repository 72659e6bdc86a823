"""Lists of a server, read into the catalog: pages, limits, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Channel, Consent, Eras, Isolation, KindConsent, Rule, Secret, Trust
from config.views import NameStyle, ViewNames, ViewServer, ViewSpec
from host.admin.host_admin import HostAdmin
from host.audit.read import records
from host.audit.records import files
from host.catalog import MAX_INLINE_ENTRIES, Entry, FreshnessHint
from host.exchange import Answered, Caller
from host.journal import EntryOmitted, ListsSlowed
from host.jsonrpc.messages import ErrorBody, Notification
from host.memory import Use, client_owner
from host.peer.outstanding import PeerError
from host.policy.confirmations import ConfirmationAnswer
from host.policy.pin_rules import PinStatus
from host.protocol.methods import Kind
from host.protocol.versions import LATEST, LATEST_LEGACY, Era
from host.router import lists
from host.slices import charged
from host.source import SHARED, Endpoint, viewer_of
from host.subject import Item
from host.upstream import catalog_sync
from host.upstream.backoff import MIN_SPACING
from host.upstream.pages import MAX_ENTRIES
from host.upstream.state import Failed, describe_state
from host.upstream.upstreams import REREAD_WAIT
from tests.host.audit.kit import verify
from tests.kit.awaited import awaited
from tests.kit.control import control_of
from tests.kit.gates import entry, kind
from tests.kit.passes import ATTEMPTS, assert_loop_responsive, measure_passes
from tests.kit.world import Refusal, ScriptedServer, World, later, open_client, open_world, tool

CHANGED = "notifications/tools/list_changed"


def names(world: World, kind: Kind = Kind.TOOL) -> list[str]:
    return [entry.ref.name for entry in world.catalog.snapshot(kind, viewer_of(Era.SESSION)).entries]


def hint_of(world: World, kind: Kind = Kind.TOOL) -> FreshnessHint | None:
    return world.catalog.hint(world.catalog.snapshot(kind, viewer_of(Era.SESSION)).parts["a"].source, kind)


def complaints(world: World) -> list[str]:
    return [event.what for event in world.events if isinstance(event, EntryOmitted)]


def paged(pages: dict[str | None, dict[str, Any]]) -> ScriptedServer:
    async def answer(params: dict[str, Any]) -> object:
        return pages[params.get("cursor")]

    return ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})


async def test_every_page_is_walked_and_the_order_kept() -> None:
    """(rules 56, 94)"""
    server = paged(
        {
            None: {"tools": [tool("c"), tool("a")], "nextCursor": "p2"},
            "p2": {"tools": [], "nextCursor": "p 3"},
            "p 3": {"tools": [tool("b")], "nextCursor": None},
        }
    )
    async with open_world(server) as world:
        await world.settled()
        assert names(world) == ["c", "a", "b"]
        assert complaints(world) == []


@pytest.mark.parametrize("cursor", ["", None])
async def test_an_empty_cursor_ends_the_list_like_a_missing_one(cursor: str | None) -> None:
    """(rule 94)"""
    server = paged({None: {"tools": [tool("a")], "nextCursor": cursor}})
    async with open_world(server) as world:
        await world.settled()
        assert (names(world), complaints(world)) == (["a"], [])
        assert server.asked.count("tools/list") == 1


async def test_a_cursor_goes_back_as_it_came() -> None:
    """Whatever it looks like, it is the server's own (rule 94)."""
    cursor = b'"\\u0041\\ud83d \\/ \xe2\x80\xa8"'
    server = ScriptedServer("a", tools=["unused"], answers={})
    asked: list[dict[str, Any]] = []

    async def answer(params: dict[str, Any]) -> object:
        asked.append(params)
        if "cursor" in params:
            return {"tools": [tool("b")]}
        return Raw(b'{"tools":[{"name":"a"}],"nextCursor":%s}' % cursor)

    server.answers["tools/list"] = answer
    async with open_world(server) as world:
        await world.settled()
        assert names(world) == ["a", "b"]
        assert asked == [{}, {"cursor": json.loads(cursor)}]


@pytest.mark.parametrize("cursor", ["p2", "p3"])
async def test_cursors_that_go_round_end_the_walk(cursor: str) -> None:
    """(rule 94)"""
    server = paged(
        {
            None: {"tools": [tool("a")], "nextCursor": "p2"},
            "p2": {"tools": [tool("b")], "nextCursor": "p3"},
            "p3": {"tools": [tool("c")], "nextCursor": cursor},
        }
    )
    async with open_world(server) as world:
        await world.settled()
        assert names(world) == ["a", "b", "c"]
        assert "the same cursor twice" in complaints(world)[0]


async def test_an_endless_list_is_cut_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """(rules 5, 94)"""
    monkeypatch.setattr("host.upstream.pages.MAX_ENTRIES", 400)

    async def answer(params: dict[str, Any]) -> object:
        page = int(params.get("cursor", "0"))
        return {"tools": [tool(f"t{page}_{n}") for n in range(150)], "nextCursor": str(page + 1)}

    async with open_world(ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert len(names(world)) == 400
        assert "the rest is left out" in complaints(world)[0]


def large(size: int, pages: int, name: str = "t") -> ScriptedServer:
    """A server with so many pages of one tool of that size each."""

    async def answer(params: dict[str, Any]) -> object:
        page = int(params.get("cursor", "0"))
        more = {"nextCursor": str(page + 1)} if page + 1 < pages else {}
        return {"tools": [tool(f"{name}{page}", description="d" * size)], **more}

    return ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})


@pytest.mark.parametrize(("pages", "kept"), [(3, 3), (4, 3), (50, 3)])
async def test_a_list_has_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch, pages: int, kept: int) -> None:
    monkeypatch.setattr("host.upstream.pages.MAX_BYTES", 3500)
    server = large(1000, pages)
    async with open_world(server) as world:
        await world.settled()
        assert names(world) == [f"t{page}" for page in range(kept)]
        assert ["the rest is left out" in complaint for complaint in complaints(world)] == [True] * (pages > kept)
        assert server.asked.count("tools/list") == min(pages, kept + 1)


async def test_a_list_without_memory_is_not_read_and_tried_again(autojump_clock: MockClock) -> None:
    """What was listed stays; once there is memory, the list is read."""
    server = large(1000, 1)
    async with open_world(server) as world:
        await world.settled()
        kept = world.memory.by_use()["lists"]
        assert kept > 1000
        server.answers["tools/list"] = large(80_000, 3, "n").answers["tools/list"]
        world.memory.total = 160_000
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(10)
        assert names(world) == ["t0"]
        assert "needs more memory than there is (memory)" in complaints(world)[0]
        assert world.memory.by_use()["lists"] == kept
        world.memory.total = 10_000_000
        await trio.sleep(120)
        assert names(world) == ["n0", "n1", "n2"]
        assert world.memory.by_use()["lists"] > 960_000
        world.catalog.set_servers([])
        assert world.memory.by_use()["lists"] == 0


async def test_a_list_gives_way_while_it_is_read(autojump_clock: MockClock) -> None:
    server = large(1000, 1)
    more = trio.Event()
    read = large(80_000, 3, "n").answers["tools/list"]

    async def answer(params: dict[str, Any]) -> object:
        if "cursor" in params:
            await more.wait()
        return await read(params)

    async with open_world(server) as world:
        await world.settled()
        world.memory.total = 140_000
        server.answers["tools/list"] = answer
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(5)
        held = world.memory.hold(client_owner(None), Use.REQUESTS, 69_000, lambda: None)
        await trio.sleep(1)
        assert "needs more memory" in complaints(world)[0]
        held.release()
        world.memory.total = 40_000_000
        more.set()
        await trio.sleep(120)
        assert names(world) == ["n0", "n1", "n2"]


async def test_large_lists_leave_room_for_a_server_that_comes_later(autojump_clock: MockClock) -> None:
    """The largest list is taken back: clients are told, its tools are unknown, the log says so. It stays out while
    there is no room, and comes back by itself."""

    def of(id: str, size: int) -> ScriptedServer:
        server = ScriptedServer(id, tools=["unused"])

        async def answer(params: dict[str, Any]) -> object:
            page = int(params.get("cursor", "0"))
            more = {"nextCursor": str(page + 1)} if page + 1 < 4 else {}
            return {"tools": [tool(f"t{page}", description="d" * size)], **more}

        server.answers["tools/list"] = answer
        return server

    large, larger = of("large", 15_000), of("larger", 15_001)
    late = ScriptedServer("late", tools=["x"])
    async with open_world(large, larger) as world, trio.open_nursery() as nursery:
        await world.settled()
        caller = await world.client()
        nursery.start_soon(caller.listen_changes)
        world.memory.total = 4 * max(world.memory.by_owner().values())
        assert len(await caller.names()) == 8
        world.configures(large, larger, late)
        await trio.sleep(1)
        assert await caller.names() == [*(f"large__t{page}" for page in range(4)), "late__x"]
        assert caller.notifications_of(CHANGED)
        with pytest.raises(Refusal, match="Unknown tool"):
            await caller.call("larger__t0")
        lists = world.memory.by_use()["lists"]
        caller.notifications.clear()
        larger.asked.clear()
        await trio.sleep(1000)
        assert world.memory.by_use()["lists"] == lists <= world.memory.total // 2
        assert len(larger.asked) < 4 * 30, "it is tried again about once a minute"
        assert not caller.notifications_of(CHANGED)
        assert names(world) == ["t0", "t1", "t2", "t3", "x"]
        told = [event.what for event in world.events if isinstance(event, EntryOmitted) and event.server == "larger"]
        assert "need more memory than other servers leave (memory)" in told[0]
        assert set(told[1:]) == {"tools/list needs more memory than there is (memory); none of its entries is listed"}
        world.configures(larger, late)
        await trio.sleep(100)
        assert len(await caller.names()) == 5
        nursery.cancel_scope.cancel()


async def test_a_list_that_gives_way_while_it_is_made_is_not_published(autojump_clock: MockClock) -> None:
    """Or it would be kept without a charge."""
    server = large(1000, 1)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        read = large(60_000, 2, "n").answers["tools/list"]
        server.answers["tools/list"] = read
        lister = world.upstreams.by_id["a"].main.lists.sync
        assert lister is not None
        nursery.start_soon(lister.read, Kind.TOOL)
        while world.memory.by_use()["lists"] < 480_000:
            await trio.lowlevel.checkpoint()
        assert names(world) == ["t0"]
        world.memory.total = 200_000
        with world.memory.hold(client_owner(None), Use.REQUESTS, 1, lambda: None):
            pass
        assert names(world) == []
        await trio.sleep(1)
        assert names(world) == []
        assert world.memory.by_use()["lists"] == 0
        world.memory.total = 10_000_000
        await trio.sleep(100)
        assert names(world) == ["n0", "n1"]


@pytest.mark.virtual_time
async def test_entries_that_cannot_be_exported_are_left_out_and_the_others_stay() -> None:
    huge = tool("huge", description="x" * catalog_sync.MAX_DEFINITION)
    twice = [tool("twice"), tool("b"), tool("twice", description="Another one")]
    odd: list[Any] = [tool("a"), {}, 5, None, {"name": 7}, tool(""), huge, *twice]

    async def answer(params: dict[str, Any]) -> object:
        return {"tools": odd}

    async with open_world(ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert names(world) == ["a", "b"]
        assert len(complaints(world)) == 7


@pytest.mark.virtual_time
@pytest.mark.parametrize("revision", ["2025-11-25", LATEST.name])
async def test_a_definition_with_members_that_readers_take_for_one_another_is_left_out_and_named(revision: str) -> None:
    long = tool("long", Name="a", description="x" * 200_000)
    odd = [tool("a"), tool("b", Name="a"), tool("c", inputSchema={"type": "object", "properties": {"p": {}, "P": {}}})]
    async with open_world(ScriptedServer("s", tools=[*odd, long, tool("d", other=1)], revision=revision)) as world:
        await world.settled()
        assert names(world) == ["a", "d"]
        (said,) = complaints(world)
        assert "the tool 'b' (some readers take the member 'Name' for another one)" in said
        assert "the tool 'c' (some readers take the member 'P' for another one)" in said
        assert "the tool 'long' (some readers" in said


async def test_a_definition_that_is_left_out_is_named_once_and_shown_as_long_as_it_stays() -> None:
    server = ScriptedServer("s", tools=["a", {"description": "x"}, tool("b", title=1), tool("b", title=2)])
    async with open_world(server) as world:
        await world.settled()
        named = [
            'a tool without a name is left out: {"description": "x"}',
            "2 entries are called 'b'; all of them are left out",
        ]
        lister = world.upstreams.by_id["s"].main.lists.sync
        assert lister is not None
        world.gate.policies.begin_epoch()  # so that the same list is published again
        await lister.read(Kind.TOOL)
        assert complaints(world) == world.upstreams.by_id["s"].list_problems == named
        server.lists["tools"] = [tool("a")]
        await lister.read(Kind.TOOL)
        assert world.upstreams.by_id["s"].list_problems == []


@pytest.mark.parametrize("revision", ["2025-11-25", LATEST.name])
async def test_a_definition_that_clients_of_an_era_refuse_is_named_and_pinned_as_it_is(revision: str) -> None:
    odd = [
        tool("text", inputSchema={"type": "string"}),
        tool("five", inputSchema={"type": "object", "properties": {"a": 5}}),
        {"name": "missing"},
    ]
    server = ScriptedServer("s", tools=["a", *odd], revision=revision)
    async with open_world(server) as world:
        await world.settled()
        assert complaints(world) == [
            "left out because clients would refuse the whole list: the tool 'text' (its inputSchema: it accepts no "
            "object; a call by its name reaches it), the tool 'five', for handshake clients (its inputSchema: the "
            "property 'a' has no schema; a call by its name reaches it)"
        ]
        text, five = world.upstreams.by_id["s"].main.left_out
        assert text.startswith("the tool 'text' (its inputSchema: it accepts no object; ")
        assert five.startswith("the tool 'five', for handshake clients (")
        era = Era.STATELESS if revision == LATEST.name else Era.SESSION
        offered = world.gate.definitions.offered_definition(entry("s", Kind.TOOL, "missing", era))
        assert offered == b'{"name": "missing"}'
        world.gate.policies.begin_epoch()
        lister = world.upstreams.by_id["s"].main.lists.sync
        assert lister is not None
        await lister.read(Kind.TOOL)
        assert len(complaints(world)) == 1, "the list is published again, and says nothing new"


@pytest.mark.parametrize("answer", [{"tools": 5}, {"tools": {}}, [], {"tools": [], "nextCursor": 5}, {}])
async def test_a_list_that_is_none_does_not_keep_the_server_away(answer: object) -> None:
    """(rule 57)"""

    async def give(params: dict[str, Any]) -> object:
        return answer

    server = ScriptedServer("a", tools=["x"], prompts=["p"], answers={"tools/list": give})
    async with open_world(server) as world:
        await world.settled()
        assert names(world, Kind.PROMPT) == ["p"]
        assert names(world) == []
        world.upstreams["a"].main.ready_client()


async def test_a_method_that_is_missing_although_declared_is_an_empty_list() -> None:
    """Many servers declare resources and have no templates method."""

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32601, "Method not found"))

    server = ScriptedServer("a", resources=["memo:1"], answers={"resources/templates/list": refuse})
    async with open_world(server) as world:
        await world.settled()
        assert names(world, Kind.RESOURCE) == ["memo:1"]
        assert complaints(world) == []


async def test_kinds_that_are_not_declared_are_not_asked_for() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        assert sorted(server.asked) == ["initialize", "tools/list"]


async def test_ten_notices_are_one_reading(autojump_clock: MockClock) -> None:
    """(rule 85)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        await trio.sleep(20)
        server.asked.clear()
        server.lists["tools"].append(tool("y"))
        for _ in range(10):
            await server.notifies("notifications/tools/list_changed")
        await trio.sleep(0.5)
        assert server.asked == ["tools/list"]
        assert names(world) == ["x", "y"]


async def test_a_server_that_never_stops_announcing_is_read_four_times_a_second(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        server.asked.clear()
        for _ in range(600):
            await server.notifies(CHANGED)
            await trio.sleep(0.1)
        assert 60 <= len(server.asked) <= 60 / MIN_SPACING + 1


async def test_a_list_that_cannot_be_read_again_stays_as_it_was(autojump_clock: MockClock) -> None:
    """(rule 57)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()

        async def broken(params: dict[str, Any]) -> object:
            return {"tools": "none"}

        server.answers["tools/list"] = broken
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(1)
        assert names(world) == ["x"]
        assert "returned no valid list" in complaints(world)[0]


@pytest.mark.parametrize("at_first", [True, False])
async def test_a_list_that_could_not_be_read_is_tried_again_until_it_can(
    at_first: bool, autojump_clock: MockClock
) -> None:
    failures = 3

    async def fail_at_first(params: dict[str, Any]) -> object:
        nonlocal failures
        if failures:
            failures -= 1
            raise PeerError(ErrorBody(-32603, "not now"))
        return {"tools": [tool("x"), tool("new")]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/list": fail_at_first} if at_first else {})
    async with open_world(server) as world:
        await world.settled()
        if not at_first:
            server.answers["tools/list"] = fail_at_first
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(1)
        assert names(world) == ([] if at_first else ["x"])
        await trio.sleep(20)
        assert names(world) == ["x", "new"]
        assert len(complaints(world)) == 3
        server.asked.clear()
        await trio.sleep(1000)
        assert "tools/list" not in server.asked


def refusing(revision: str = LATEST_LEGACY.name, **lists: Any) -> ScriptedServer:
    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32603, "no database"))

    return ScriptedServer("a", answers={"tools/list": refuse}, revision=revision, tools=["x"], **lists)


@pytest.mark.parametrize("revision", [LATEST_LEGACY.name, LATEST.name])
async def test_a_server_whose_only_list_fails_has_failed_and_says_so(revision: str, autojump_clock: MockClock) -> None:
    """It is connected again like any server that failed."""
    server = refusing(revision, eras=Eras.ONE)
    async with open_world(server) as world:
        await world.settled()
        upstream = world.upstreams.by_id["a"]
        assert "its lists cannot be read: tools/list failed: no database" in describe_state(upstream.main.state)
        assert "its own log says more" in describe_state(upstream.main.state)
        await trio.sleep(3)
        assert server.connections > 1
        del server.answers["tools/list"]
        await trio.sleep(60)
        assert names(world) == ["x"]
        assert upstream.list_problems == []


async def test_where_one_of_several_lists_fails_the_others_are_shown_and_it_is_named(
    autojump_clock: MockClock,
) -> None:
    server = refusing(prompts=["p"])
    async with open_world(server) as world:
        await world.settled()
        upstream = world.upstreams.by_id["a"]
        assert (names(world), names(world, Kind.PROMPT)) == ([], ["p"])
        assert upstream.list_problems == ["tools/list failed: no database"]
        del server.answers["tools/list"]
        await trio.sleep(60)
        assert (names(world), upstream.list_problems) == (["x"], [])
        assert server.connections == 1


async def test_what_is_said_of_lists_repeats_no_value_that_the_server_was_given(autojump_clock: MockClock) -> None:
    """Values of the environment pass in messages, and in no line for people."""

    async def list_prompts(params: dict[str, Any]) -> object:
        unfit = {"name": "no database 2", "arguments": 5}
        return {"prompts": [{"name": "p"}, {"name": "no database", "Name": "x"}, unfit]}

    server = refusing(prompts=["p"])
    server.answers["prompts/list"] = list_prompts
    server.spec = replace(server.spec, env={"DATABASE": Secret("no database")})
    async with open_world(server) as world:
        await world.settled()
        assert world.upstreams.by_id["a"].list_problems == ["tools/list failed: ***"]
        told = complaints(world)
        assert "tools/list failed: ***" in told
        left_out = world.upstreams.by_id["a"].main.left_out
        assert len(left_out) == 2
        assert all("'***" in line for line in left_out)
        assert sum("left out" in line and "***" in line for line in told) == 2
        assert not any("no database" in line for line in told)


async def test_a_missing_list_beside_one_that_fails_is_not_taken_for_an_answer(autojump_clock: MockClock) -> None:
    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32601, "Method not found"))

    async def fail(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32603, "no database"))

    answers = {"resources/templates/list": refuse, "resources/list": fail}
    async with open_world(ScriptedServer("a", resources=["memo:1"], answers=answers)) as world:
        await world.settled()
        assert isinstance(world.upstreams.by_id["a"].main.state, Failed)


async def test_a_server_that_has_no_method_for_any_list_that_it_declares_has_failed() -> None:
    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32601, "Method not found"))

    async with open_world(ScriptedServer("a", tools=["x"], answers={"tools/list": refuse})) as world:
        await world.settled()
        state = describe_state(world.upstreams.by_id["a"].main.state)
        assert "its lists cannot be read: it has no method for any of them" in state


@pytest.mark.parametrize("at_first", [True, False])
async def test_a_page_that_fails_takes_none_away_that_was_read_or_listed_before(
    at_first: bool, autojump_clock: MockClock
) -> None:
    """Before there is a list, a part is shown; afterwards, the former one stays."""

    async def fail_on_second(params: dict[str, Any]) -> object:
        if "cursor" in params:
            raise PeerError(ErrorBody(-32602, "unknown cursor"))
        return {"tools": [tool("x")], "nextCursor": 8}

    server = ScriptedServer("a", tools=["x", "y"], answers={"tools/list": fail_on_second} if at_first else {})
    async with open_world(server) as world:
        await world.settled()
        server.answers["tools/list"] = fail_on_second
        await server.notifies(CHANGED)
        await trio.sleep(1)
        assert names(world) == (["x"] if at_first else ["x", "y"])
        assert "unknown cursor" in world.upstreams.by_id["a"].list_problems[0]


async def test_pages_that_repeat_are_told_once_and_shown_while_they_do(autojump_clock: MockClock) -> None:
    async def again(params: dict[str, Any]) -> object:
        return {"tools": [tool("x")], "nextCursor": "8"}

    server = ScriptedServer("a", tools=["x"], answers={"tools/list": again})
    async with open_world(server) as world:
        await world.settled()
        for _ in range(3):
            await server.notifies(CHANGED)
            await trio.sleep(1)
        assert names(world) == ["x"]
        assert world.upstreams.by_id["a"].list_problems == complaints(world)
        assert len(complaints(world)) == 1


async def test_a_list_that_takes_too_long_is_given_up(autojump_clock: MockClock) -> None:
    """(rules 5, 57)"""

    async def slow(params: dict[str, Any]) -> object:
        if "cursor" in params:
            await trio.sleep(1000)
        return {"tools": [tool("first")], "nextCursor": "more"}

    async with open_world(ScriptedServer("a", tools=["x"], answers={"tools/list": slow})) as world:
        await world.settled()
        assert names(world) == ["first"]
        assert "took longer" in complaints(world)[0]


# A stateless server's lists

NEW = LATEST.name


CIRCLE = "tools/list returned the same cursor twice, and nothing new; reading stopped there"


@pytest.mark.parametrize(("more", "said"), [({}, []), ({"nextCursor": ""}, [CIRCLE])])
async def test_an_empty_cursor_of_a_stateless_server_is_a_cursor(more: dict[str, str], said: list[str]) -> None:
    """One that comes twice is a circle (rule 94)."""
    server = paged({None: {"tools": [tool("a")], "nextCursor": ""}, "": {"tools": [tool("b")], **more}})
    server.revision, server.stateless = NEW, True
    async with open_world(server) as world:
        await world.settled()
        assert (names(world), complaints(world)) == (["a", "b"], said)


@pytest.mark.parametrize(
    ("pages", "hint"),
    [
        ([(5000, "public")], (5000, True)),
        ([(5000, "public"), (3000, "public")], (3000, True)),
        ([(5000, "public"), (9000, "private")], (5000, False)),
        ([(5000, "public"), (None, "public")], (0, True)),
        ([(5000, "public"), (-5, None)], (0, False)),
    ],
)
async def test_a_list_is_as_fresh_as_the_oldest_of_its_pages_and_for_whom_all_of_them_are(
    pages: list[tuple[int | None, str | None]], hint: tuple[int, bool]
) -> None:
    """(rule 95)"""
    found: dict[str | None, dict[str, Any]] = {}
    for n, (ttl, scope) in enumerate(pages):
        page = {"tools": [tool(f"t{n}")], "ttlMs": ttl, "cacheScope": scope, "nextCursor": str(n + 1)}
        found[str(n) if n else None] = {name: each for name, each in page.items() if each is not None}
    del found[str(len(pages) - 1) if len(pages) > 1 else None]["nextCursor"]
    server = paged(found)
    server.revision, server.stateless = NEW, True
    async with open_world(server) as world:
        await world.settled()
        fresh = hint_of(world)
        assert fresh is not None
        assert (fresh.freshness.ttl_ms, fresh.freshness.public) == hint


async def test_a_list_that_was_read_in_part_is_not_fresh(autojump_clock: MockClock) -> None:
    async def answer(params: dict[str, Any]) -> object:
        if "cursor" in params:
            await trio.sleep_forever()
        return {"tools": [tool("a")], "nextCursor": "2", "ttlMs": 600_000, "cacheScope": "public"}

    server = ScriptedServer("a", tools=["x"], answers={"tools/list": answer}, revision=NEW, start_timeout=100.0)
    async with open_world(server) as world:
        await world.settled()
        assert names(world) == ["a"]
        hint = hint_of(world)
        assert hint is not None
        assert hint.freshness.ttl_ms == 0


async def test_a_handshake_server_says_nothing_of_how_fresh_its_lists_are() -> None:
    """Whatever stands there (rule 95)."""
    server = paged({None: {"tools": [tool("a")], "ttlMs": 5000, "cacheScope": "public"}})
    async with open_world(server) as world:
        await world.settled()
        hint = hint_of(world)
        assert hint is not None
        assert (hint.freshness.ttl_ms, hint.freshness.public) == (0, False)
        assert hint_of(world, Kind.PROMPT) is None


def annotated(name: str, annotation: object, kind: str = "string") -> dict[str, Any]:
    return tool(name) | {
        "inputSchema": {"type": "object", "properties": {"p": {"type": kind, "x-mcp-header": annotation}}}
    }


@pytest.mark.parametrize(
    ("revision", "left"), [(NEW, ["good", "plain"]), (LATEST_LEGACY.name, ["good", "bad", "plain"])]
)
async def test_a_tool_whose_headers_cannot_be_made_is_left_out_and_named(revision: str, left: list[str]) -> None:
    """Of a handshake server it is as good as any other (rule 36)."""
    server = ScriptedServer(
        "a", tools=[annotated("good", "P"), annotated("bad", "P", "number"), "plain"], revision=revision
    )
    async with open_world(server) as world:
        await world.settled()
        assert names(world) == left
        if revision == NEW:
            (why,) = complaints(world)
            assert why.startswith("the tool 'bad' is left out: x-mcp-header of 'p' is not on a string")
        else:
            assert complaints(world) == []


PAGE = {"ui": {"resourceUri": "ui://a/page", "visibility": ["model"]}, "ui/resourceUri": "ui://a/page", "v/k": 1.5}


@pytest.mark.few(2)
@pytest.mark.parametrize("revision", [NEW, LATEST_LEGACY.name])
@pytest.mark.parametrize("trust", list(Trust))
async def test_the_pages_of_an_untrusted_servers_tools_are_not_listed(trust: Trust, revision: str) -> None:
    """The tools are, once a person approved of them (rule 101)."""
    server = ScriptedServer(
        "a", tools=[tool("x", _meta=PAGE)], resources=["ui://a/page", "x:1"], revision=revision, trust=trust
    )
    async with open_client(server, endpoint="a") as (world, client, _):
        if trust is Trust.UNTRUSTED:
            assert await client.names() == await client.names("resources/list", "uri") == []
        world.approves()
        (listed,) = (await client.request("tools/list"))["tools"]
        uris = await client.names("resources/list", "uri")
        if trust is Trust.UNTRUSTED:
            assert (listed["_meta"], uris) == ({"v/k": 1.5}, ["x:1"])
        else:
            assert (listed["_meta"], uris) == (PAGE, ["ui://a/page", "x:1"])


# Calls while a list is read anew


async def slowly(params: dict[str, Any]) -> object:
    await trio.sleep(0.5)
    return {"tools": [tool("x", description="another")]}


async def test_calls_that_follow_a_change_are_evaluated_by_the_new_definition(autojump_clock: MockClock) -> None:
    """However quickly they follow; of what was approved before, none reaches the server."""
    called: list[object] = []

    async def call(params: dict[str, Any]) -> object:
        called.append(params)
        return {"content": []}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": call})
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        assert await client.call("a__x") == {"content": []}
        server.answers["tools/list"] = slowly
        server.sends(Notification(CHANGED))
        await wait_all_tasks_blocked()
        calls = [later(nursery, client.call, "a__x") for _ in range(600)]
        for each in calls:
            assert "changed" in (await each.comes())["content"][0]["text"]
        assert len(called) == 1
        world.approves()
        assert await client.call("a__x") == {"content": []}


async def test_a_call_that_began_before_the_change_and_was_not_sent_is_evaluated_again(
    autojump_clock: MockClock,
) -> None:
    """It waited for a person, who agreed to the former definition while the new one was on its way."""
    server = ScriptedServer("a", tools=["x"], consent=Consent(tools=kind(ask=("x",))), answers={"tools/list": slowly})
    server.answers.clear()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        with world.gate.authorizer.confirmations.attach(Channel.CONSOLE):
            call = later(nursery, client.call, "a__x")
            await wait_all_tasks_blocked()
            server.answers["tools/list"] = slowly
            server.sends(Notification(CHANGED))
            await wait_all_tasks_blocked()
            (matter,) = world.gate.authorizer.confirmations.list_all()
            awaited(world.gate.authorizer.confirmations.answer(matter.id, ConfirmationAnswer.ONCE, Channel.CONSOLE))
            assert (await call.comes())["isError"]
        server.hears_nothing_more()


async def test_where_nothing_depends_on_the_definition_a_call_goes_at_once(autojump_clock: MockClock) -> None:
    async def call(params: dict[str, Any]) -> object:
        return {"content": []}

    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED, answers={"tools/call": call})
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        server.answers["tools/list"] = slowly
        server.sends(Notification(CHANGED))
        await wait_all_tasks_blocked()
        before = trio.current_time()
        assert await client.call("a__x") == {"content": []}
        assert trio.current_time() == before


async def test_a_call_depends_on_the_definition_by_the_trust_of_when_it_is_sent(autojump_clock: MockClock) -> None:
    """A reload lowered it while an instance started for the call."""
    called: list[object] = []

    async def call(params: dict[str, Any]) -> object:
        called.append(params)
        return {"content": []}

    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(2)
        return server._builtin("initialize", params)

    server = ScriptedServer(
        "a", tools=["x"], trust=Trust.TRUSTED, isolation=Isolation.PER_CALL, answers={"tools/call": call}
    )
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client, listing = await world.client(), server.link
        server.answers["initialize"] = initialize
        waiting = later(nursery, client.call, "a__x")
        await trio.sleep(1.9)
        server.spec = replace(server.spec, trust=Trust.STANDARD)
        world.configures(server)
        server.answers["tools/list"] = slowly
        server.sends(Notification(CHANGED), link=listing)
        assert "changed" in (await waiting.comes())["content"][0]["text"]
    assert called == []


async def test_a_call_waits_for_a_list_no_longer_than_for_its_answer(autojump_clock: MockClock) -> None:
    async def never(params: dict[str, Any]) -> object:
        return await trio.sleep_forever()

    server = ScriptedServer("a", tools=["x"], timeout=20.0)
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        server.answers["tools/list"] = never
        server.sends(Notification(CHANGED))
        await wait_all_tasks_blocked()
        before = trio.current_time()
        result = await client.call("a__x")
        assert "did not return its changed list in time" in result["content"][0]["text"]
        assert trio.current_time() - before == pytest.approx(20.0, abs=1.0)
        server.hears_nothing_more()


@pytest.mark.slow
async def test_a_call_waits_for_a_list_that_flaps_no_longer_than_it_takes_to_read(autojump_clock: MockClock) -> None:
    """Where somebody waits for it, it is read at once, however slow its pace."""

    async def call(params: dict[str, Any]) -> object:
        return {"content": []}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": call})
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        for turn in range(100):
            server.lists["tools"] = [tool("x"), tool(f"y{turn}")]
            server.sends(Notification(CHANGED))
            await trio.sleep(5)
        server.sends(Notification(CHANGED))
        await wait_all_tasks_blocked()
        before = trio.current_time()
        assert await client.call("a__x") == {"content": []}
        assert trio.current_time() - before < 1


async def test_a_call_that_waits_for_a_list_hears_that_its_server_is_gone(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        server.answers["tools/list"] = slowly
        server.sends(Notification(CHANGED))
        await wait_all_tasks_blocked()
        call = later(nursery, client.call, "a__x")
        await wait_all_tasks_blocked()
        server.dies()
        assert (await call.comes())["isError"]


# Lists as long as they may be, all of which changes: nobody waits for it, and nobody sees half

PER_PAGE = 100
RULES = 1000
LONGEST = 0.1
"""Seconds of processor time that a pass may take here. Before, it was 2 s for new tools and 54 s for renamed ones."""


class Renaming:
    """The list of a server that renames all of its tools at each `turn`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.turn = 0
        self._pages: dict[int, list[bytes]] = {}

    def make(self, turn: int) -> None:
        """Write the pages of a turn before anybody asks for them: what the test takes for that is not measured."""
        definitions = [
            json.dumps(tool(f"t{turn}_{number}", description=f"Does {number} things")).encode()
            for number in range(self.count)
        ]
        starts = range(0, self.count, PER_PAGE)
        self._pages[turn] = [
            b'{"tools":[%b]%b}'
            % (
                b",".join(definitions[at : at + PER_PAGE]),
                b',"nextCursor":"%d"' % (at // PER_PAGE + 1) if at + PER_PAGE < self.count else b"",
            )
            for at in starts
        ]

    async def answer(self, params: dict[str, Any]) -> Raw:
        return Raw(self._pages[self.turn][int(params.get("cursor", "0"))])

    def server(self, **more: Any) -> ScriptedServer:
        self.make(0)
        return ScriptedServer("big", tools=["x"], answers={"tools/list": self.answer}, **more)


def entries_of(world: World, server: str) -> Sequence[Entry]:
    part = world.catalog.snapshot(Kind.TOOL, viewer_of(Era.SESSION)).parts.get(server)
    return () if part is None else tuple(part.by_name.values())


def listed(world: World, server: str = "big") -> list[str]:
    return [entry.ref.name for entry in entries_of(world, server)]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await trio.sleep(0.01)


async def changed(world: World, big: Renaming, turn: int) -> None:
    """The server says that its list has changed, and Colonnade has read it."""
    big.turn = turn
    await world.servers["big"].notifies("notifications/tools/list_changed")
    await until(lambda: listed(world)[:1] == [f"t{turn}_0"])


@pytest.mark.slow
async def test_a_server_that_renames_all_its_tools_holds_nobody_up(tmp_path: Path) -> None:
    """From the second turn on more is offered than is kept of a server: each new name was once held against all. A turn
    is one record in the audit, with the count, the first names and a digest; it was 4 MB."""
    big = Renaming(MAX_ENTRIES)
    for turn in range(1, 2 * ATTEMPTS + 1):
        big.make(turn)
    good, state = ScriptedServer("good", tools=["x"]), tmp_path / "state"
    async with open_world(big.server(start_timeout=600.0), good, state=state) as world:
        world.work.step = 0.0  # otherwise a reading waits for the budget of the one before
        await world.settled()
        client = await world.client()
        before = sum(path.stat().st_size for path in files(state / "audit"))

        async def renames() -> None:
            await changed(world, big, big.turn + 1)
            await client.names()

        await assert_loop_responsive(renames, LONGEST)
        await assert_loop_responsive(renames, LONGEST)
        turns = big.turn
        assert await client.names() == ["good__x"], "the others are held back: no more is kept"
        grown = sum(path.stat().st_size for path in files(state / "audit")) - before
        assert 0 < grown < turns * 20_000
        *_, last = records(state / "audit", kind="definitions")
        assert (last["server"], last["prim"], last["counts"]) == ("big", "tool", {"new": MAX_ENTRIES})
        assert last["items"] == [f"t{turns}_{number}" for number in range(20)]
    assert [verify(path).integrity for path in files(state / "audit")] == ["ok"]


@pytest.mark.slow
async def test_what_a_list_takes_grows_with_its_length_and_no_faster() -> None:
    async def reading(count: int) -> float:
        big = Renaming(count)
        big.make(1)
        async with open_world(big.server(trust=Trust.UNTRUSTED)) as world:
            await world.settled()
            with measure_passes() as found:
                await changed(world, big, 1)
            return found.total

    shorter, longer = list[float](), list[float]()
    while not longer or min(longer) >= 3 * min(shorter):
        assert len(longer) < ATTEMPTS, (shorter, longer)
        shorter.append(await reading(2000))
        longer.append(await reading(4000))


@pytest.mark.slow
async def test_a_long_list_of_definitions_that_clients_refuse_is_named_in_steps_that_are_charged() -> None:
    odd = [tool(f"t{each}", inputSchema={"type": "string", "title": "x" * 300}) for each in range(MAX_ENTRIES)]
    server = ScriptedServer("big", tools=odd, start_timeout=600.0)
    async with open_world(server) as world:
        await world.settled()
        lister = world.upstreams.by_id["big"].main.lists.sync
        assert lister is not None
        assert len(lister.left_out) == MAX_ENTRIES
        before = lister._budget.cost
        with measure_passes() as found:
            await charged(lister._charge, lister._name_unfit(Kind.TOOL))
        assert found.count > 5
        assert lister._budget.cost > before


INVISIBLE = b'{"name":"t%d","inputSchema":{"type":"object","enum":[%b]}}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entries", "names", "complaint"),
    [
        pytest.param(b"1," * 1_500_000 + b"1", [], "more than 1000000 structural characters", id="numbers"),
        pytest.param(
            b",".join(INVISIBLE % (at, b",".join([rb'"\u200b"'] * 40_000)) for at in range(3)),
            ["t0", "t1", "t2"],
            None,
            id="invisible texts",
        ),
        pytest.param(
            b'{"name":"t0",%b}' % b",".join(b'"%d":1' % at for at in range(90_000)),
            [],
            "the tool 't0' (it has more than 50000 structural characters)",
            id="members",
        ),
        pytest.param(b'{"name":"%b"}' % (b"x" * 2_000_000), [], "a tool of 2000011 bytes is left out", id="one name"),
    ],
)
async def test_no_hostile_page_holds_anybody_up(entries: bytes, names: list[str], complaint: str | None) -> None:
    server = ScriptedServer("big", tools=["x"], trust=Trust.UNTRUSTED, start_timeout=600.0)
    async with open_world(server) as world:
        await world.settled()

        async def reads() -> None:
            world.events.clear()
            server.answers["tools/list"] = page
            await server.notifies("notifications/tools/list_changed")
            if complaint is None:
                await until(lambda: {held.item.name for held in world.gate.definitions.pins.held()} >= set(names))
            else:
                await until(lambda: any(complaint in str(event) for event in world.events))

        async def page(params: dict[str, Any]) -> Raw:
            return Raw(b'{"tools":[%b]}' % entries)

        await assert_loop_responsive(reads, LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize("pages", [1, 3])
async def test_no_page_takes_a_list_beyond_its_limit(pages: int) -> None:
    """Not even the last one."""
    each = 22_000 // pages

    async def answer(params: dict[str, Any]) -> Raw:
        page = int(params.get("cursor", "0"))
        entries = ",".join(f'{{"name":"t{page}_{number}"}}' for number in range(each))
        more = f',"nextCursor":"{page + 1}"' if page + 1 < pages else ""
        return Raw(f'{{"tools":[{entries}]{more}}}'.encode())

    async with open_world(ScriptedServer("big", tools=["x"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert len(listed(world)) == MAX_ENTRIES


@pytest.mark.slow
@pytest.mark.parametrize("count", [MAX_ENTRIES - 1, MAX_ENTRIES, MAX_ENTRIES + 1])
async def test_a_list_is_cut_at_its_limit_and_not_before(count: int) -> None:
    async def answer(params: dict[str, Any]) -> Raw:
        return Raw(f'{{"tools":[{",".join(f"""{{"name":"t{number}"}}""" for number in range(count))}]}}'.encode())

    async with open_world(ScriptedServer("big", tools=["x"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert len(listed(world)) == min(count, MAX_ENTRIES)
        assert any("the rest is left out" in str(event) for event in world.events) == (count > MAX_ENTRIES)


def denying(world: World, pattern: str) -> None:
    """The configuration is read again: its rules deny these tools of all servers, and have not denied them before."""
    for server in world.servers.values():
        server.spec = replace(server.spec, consent=Consent(tools=kind(deny=(pattern,))))
    world.configures(*world.servers.values())


@pytest.mark.slow
async def test_other_rules_for_long_lists_hold_nobody_up() -> None:
    """Each list took 0.2 s. Who asks for a list meanwhile waits, and is shown what the new rules leave of it."""
    big, other = Renaming(MAX_ENTRIES - 1), Renaming(MAX_ENTRIES - 1)
    other.make(0)
    second = ScriptedServer("other", tools=["x"], answers={"tools/list": other.answer}, start_timeout=600.0)
    async with open_world(big.server(start_timeout=600.0), second) as world:
        await world.settled()
        caller = Caller("t", SHARED)
        denied = iter(range(100))

        async def rules_change() -> None:
            number = next(denied)
            denying(world, f"t0_{number}")
            view = await world.router.lists.shown(caller, Kind.TOOL)
            assert len(view.definitions) == 2 * (MAX_ENTRIES - 2)
            assert not any(b'__t0_%d"' % number in each for each in view.definitions)

        await world.router.lists.shown(caller, Kind.TOOL)
        await assert_loop_responsive(rules_change, LONGEST)


@pytest.mark.slow
async def test_long_lists_in_many_views_hold_nobody_up() -> None:
    """While the file changes two views, and while the server renames all its tools."""
    big = Renaming(MAX_ENTRIES)
    for turn in range(1, ATTEMPTS + 2):
        big.make(turn)
    plain, few = ViewNames(NameStyle.PLAIN), ViewServer(tools=("*7*",))
    views = {f"few{number}": ViewSpec(servers={"big": few}) for number in range(5)}
    views |= {f"plain{number}": ViewSpec(names=plain) for number in range(5)}
    async with open_world(big.server(start_timeout=600.0), views=views) as world:
        world.work.step = 0.0
        await world.settled()
        callers = [Caller("t", Endpoint(view=view)) for view in ("", *views)]
        patterns = iter("8945602")

        async def show() -> list[int]:
            return [len((await world.router.lists.shown(caller, Kind.TOOL)).definitions) for caller in callers]

        async def renames() -> None:
            await changed(world, big, big.turn + 1)
            await show()

        async def views_change() -> None:
            part = ViewSpec(servers={"big": ViewServer(tools=(f"*{next(patterns)}*",))})
            world.configures(world.servers["big"], views={**views, "few0": part, "plain0": replace(part, names=plain)})
            assert 0 < (await show())[1] < MAX_ENTRIES

        await show()
        await assert_loop_responsive(views_change, LONGEST)
        await assert_loop_responsive(renames, LONGEST)  # last: from a second attempt on, new names are held


async def test_no_list_shows_what_other_rules_deny_by_now_and_no_call_of_it_goes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the moment of the reload on: not a list that is asked for then, nor one that is being made, nor a page of
    one that was shown before. Clients are told."""
    count = 3 * MAX_INLINE_ENTRIES
    monkeypatch.setattr(lists, "PAGE_SIZE", count - 1)

    async def call(params: dict[str, Any]) -> object:
        return {"content": []}

    big = Renaming(count)
    big.make(0)
    server = ScriptedServer("big", tools=["x"], answers={"tools/list": big.answer, "tools/call": call})
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client, listener = await world.client(), await world.client()
        nursery.start_soon(listener.listen_changes)
        first = await client.request("tools/list")
        assert "nextCursor" in first
        await wait_all_tasks_blocked()
        denying(world, "t0_1*")
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("big__t0_1")
        with pytest.raises(Refusal, match="the list has changed"):
            await client.request("tools/list", {"cursor": first["nextCursor"]})
        left = [f"big__t0_{number}" for number in range(count) if not str(number).startswith("1")]
        assert await client.names() == left
        assert await client.call("big__t0_2") == {"content": []}
        await trio.sleep(1)
        assert listener.notifications_of(CHANGED) == [{}]
        nursery.cancel_scope.cancel()


# Half of a list


@pytest.mark.slow
async def test_a_list_is_swapped_in_one_step() -> None:
    """Whoever looks at any moment sees the former list or the new one, whole, and what the gate says fits it."""
    big = Renaming(3000)
    big.make(1)
    seen: set[tuple[str, int, bool]] = set()
    async with open_world(big.server()) as world:
        await world.settled()
        definitions = world.gate.definitions

        async def look() -> None:
            while True:
                names = listed(world)
                # That it is approved may be stored earlier, as it is when another host has seen it first.
                offered = definitions.pins.fingerprint(entry("big", Kind.TOOL, "t1_2999")) is not None
                known = offered and definitions.status(entry("big", Kind.TOOL, "t1_2999")) is PinStatus.APPROVED
                seen.add((names[0].split("_")[0], len(names), known))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await changed(world, big, 1)
            for _ in range(2):  # after one, the other task may be cancelled before it has its turn
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert seen == {("t0", 3000, False), ("t1", 3000, True)}


Meanwhile = Callable[[World], None]


def revokes(world: World) -> None:
    awaited(world.gate.definitions.revoke(Item("big", "tool", "t0_7"), "", "console"))


def denies(world: World) -> None:
    denying(world, "t0_7")


def trusts_less(world: World) -> None:
    server = world.servers["big"]
    server.spec = type(server.spec)(**{**_fields(server.spec), "trust": Trust.UNTRUSTED})
    world.configures(server)


def _fields(spec: object) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}  # type: ignore[attr-defined]


@pytest.mark.few(2)
@pytest.mark.parametrize(("meanwhile", "hidden"), [(revokes, {"t0_7"}), (denies, {"t0_7"}), (trusts_less, None)])
@pytest.mark.parametrize("after", [1, 20, 60])
async def test_what_is_decided_while_a_list_is_made_holds_for_it(
    meanwhile: Meanwhile, hidden: set[str] | None, after: int
) -> None:
    """An approval taken back, other rules, less trust: at no moment is anything listed that may not be seen by then."""
    big = Renaming(1500)
    async with open_world(big.server()) as world:
        await world.settled()
        # The same names, and one description that is another, so that something is to be made.
        big.make(1)
        big._pages[1] = [page.replace(b"t1_", b"t0_").replace(b"Does 9 ", b"Does nine ") for page in big._pages[1]]
        big.turn = 1
        wrong: list[str] = []
        decided = False

        async def look() -> None:
            last = None
            while True:
                view = await world.router.lists.shown(Caller("t", SHARED), Kind.TOOL)
                if decided and view is not last:
                    names = {json.loads(each)["name"].removeprefix("big__") for each in view.definitions}
                    wrong.extend(names if hidden is None else names & hidden)
                last = view
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            lister = world.upstreams.by_id["big"].main.lists.sync
            assert lister is not None
            nursery.start_soon(lister.read, Kind.TOOL)
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            meanwhile(world)
            decided = True
            nursery.start_soon(look)
            await until(
                lambda: world.gate.definitions.status(entry("big", Kind.TOOL, "t0_9")) is not PinStatus.APPROVED
            )
            await world.catalog.wait_until_evaluated(Kind.TOOL)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert wrong == []
        shown = world.catalog.snapshot(Kind.TOOL, viewer_of(Era.SESSION)).entries
        assert {entry.ref.name for entry in shown} == (
            set() if hidden is None else {f"t0_{number}" for number in range(1500)} - {"t0_9"} - hidden
        )


# How often it is read


async def change(server: ScriptedServer, turn: int, count: int = 100) -> str:
    """Replace one of that many tools and announce it. Returns the outward name of the new one."""
    server.lists["tools"] = [*(tool(f"t{number}") for number in range(count - 1)), tool(f"n{turn}")]
    await (server.tells(CHANGED) if server.stateless else server.notifies(CHANGED))
    return f"a__n{turn}"


async def listed_statelessly(world: World) -> list[str]:
    answer = await world.mrtr_round("tools/list", {})
    assert isinstance(answer, Answered)
    return [each["name"] for each in json.loads(bytes(answer.result))["tools"]]


async def called(params: dict[str, Any]) -> object:
    return {"content": []}


@pytest.mark.few(1)
@pytest.mark.parametrize("revision", [LATEST_LEGACY.name, LATEST.name])
@pytest.mark.parametrize(("changes", "apart"), [(12, 4.0), (60, 1.0)])
async def test_each_change_reaches_each_client_within_a_second(
    changes: int, apart: float, revision: str, autojump_clock: MockClock
) -> None:
    """The notification, and the list that is asked for at any moment."""
    server = ScriptedServer("a", tools=["x"], revision=revision, eras=Eras.ONE)
    async with open_world(server) as world:
        await world.settled()
        clients = [await world.client() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.listen_changes)
            await trio.sleep(1)
            for turn in range(changes):
                began = trio.current_time()
                new = await change(server, turn)
                for asked_after in (0.0, 0.06, 0.3):
                    await trio.sleep_until(began + asked_after)
                    assert new in await clients[0].names()
                    assert new in await listed_statelessly(world)
                    assert trio.current_time() - began < asked_after + 0.1
                await trio.sleep_until(began + 0.8)
                for client in clients[1:]:
                    assert len(client.notifications_of(CHANGED)) == turn + 1
                await trio.sleep_until(began + apart)
            nursery.cancel_scope.cancel()
        assert not [event for event in world.events if isinstance(event, ListsSlowed)]


async def test_one_reading_answers_all_clients_that_ask_for_a_changed_list(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        clients = [await world.client() for _ in range(20)]
        server.asked.clear()
        server.lists["tools"] = [tool("new")]
        await server.notifies(CHANGED)
        lists = [later(nursery, client.names) for client in clients]
        assert [await each.comes() for each in lists] == [["a__new"]] * 20
        assert server.asked == ["tools/list"]


async def test_who_asks_for_a_changed_list_of_a_server_that_hangs_gets_the_former_one(
    autojump_clock: MockClock,
) -> None:
    """After a second, and at once when that goes on; the lists of other servers are new."""

    async def hang(params: dict[str, Any]) -> object:
        await trio.sleep_forever()

    stuck, good = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["y"])
    async with open_world(stuck, good) as world:
        await world.settled()
        client = await world.client()
        stuck.answers["tools/list"] = hang
        good.lists["tools"] = [tool("z")]
        await stuck.notifies(CHANGED)
        await good.notifies(CHANGED)
        began = trio.current_time()
        assert await client.names() == ["a__x", "b__z"]
        assert trio.current_time() - began == REREAD_WAIT
        await trio.sleep(catalog_sync.SLOW_READING)
        await stuck.notifies(CHANGED)
        began = trio.current_time()
        assert await client.names() == ["a__x", "b__z"]
        assert trio.current_time() == began


async def test_a_call_of_a_tool_that_was_just_announced_waits_for_its_list(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"], answers={"tools/call": called})
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        for turn in range(10):
            server.lists["tools"] = [tool(f"y{turn}")]
            await server.notifies(CHANGED)
            await wait_all_tasks_blocked()
            assert await client.call(f"a__y{turn}") == {"content": []}
            await trio.sleep(1)


@pytest.mark.slow
async def test_a_list_that_flaps_is_as_fresh_as_its_budget_allows_and_that_is_told(autojump_clock: MockClock) -> None:
    """A hundred tools are said to cost as much here as 9,999. Clients that ask for them hardly wait."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        server.asked.clear()
        world.work.step, world.work.charged, turn = 100 * world.work.step, 0.0, 0
        began = trio.current_time()
        while trio.current_time() - began < 3600:
            turn += 1
            await change(server, turn)
            before = trio.current_time()
            await client.names()
            assert trio.current_time() - before <= REREAD_WAIT
            await trio.sleep(2)
        share = world.work.charged / (trio.current_time() - began)
        assert 0.015 < share <= 0.05
        (told,) = [event for event in world.events if isinstance(event, ListsSlowed)]
        assert told.interval == pytest.approx(3600 / len(server.asked), rel=0.1)
        assert f"read every {told.interval:.0f} s only, because" in str(told)
        assert "only, because they change often" in world.upstreams.by_id["a"].list_problems[0]


async def test_once_a_list_is_calm_it_is_read_at_once_again(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        world.work.step = 0.1
        for turn in range(600):
            server.lists["tools"] = [tool(f"x{turn}")]
            await server.notifies(CHANGED)
            await trio.sleep(1)
        await trio.sleep(600)
        assert world.upstreams.by_id["a"].list_problems == []
        server.asked.clear()
        await server.notifies(CHANGED)
        await trio.sleep(0.2)
        assert server.asked.count("tools/list") == 1


# Who looks while it is long


@pytest.mark.slow
async def test_the_console_and_a_judge_hold_nobody_up_either() -> None:
    """Ten thousand held definitions, shown, explained and compared with a thousand rules that match none of them."""
    big = Renaming(MAX_ENTRIES - 1)
    rules = Consent(tools=KindConsent(deny=tuple(Rule(f"t*x{number}*y") for number in range(RULES))))
    async with open_world(big.server(trust=Trust.UNTRUSTED, start_timeout=600.0, consent=rules)) as world:
        await world.settled()
        admin = HostAdmin(control_of(world), world.runtime, world.upstreams, world.router, stdio=False)

        async def look() -> None:
            state = await admin.reader.sections(["servers", "catalog", "held"])
            assert (state["servers"][0]["held"], len(state["catalog"]), len(state["held"])) == (9999, 9999, 500)
            assert set(state["servers"][0]["unmatched"]) == {f"tools.deny: t*x{number}*y" for number in range(RULES)}
            assert awaited(admin.explain(Item("big", "tool", "t0_5"), None))["standing"] == "new"

        await assert_loop_responsive(look, LONGEST)
