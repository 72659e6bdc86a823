"""Lists of a server, read into the catalog: pages, limits, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Channel, Consent, Trust
from host.asking import PeerError
from host.journal import LeftOut
from host.jsonrpc.messages import ErrorBody, Notification
from host.memory import Use, client
from host.policy.desk import Answer
from host.protocol.methods import Kind
from host.protocol.versions import LATEST, LATEST_LEGACY
from host.upstream import listing
from tests.kit.gates import kind
from tests.kit.world import ScriptedServer, World, later, open_world, tool


def names(world: World, kind: Kind = Kind.TOOL) -> list[str]:
    return [entry.inward for entry in world.catalog.shelf(kind).entries]


def complaints(world: World) -> list[str]:
    return [event.what for event in world.events if isinstance(event, LeftOut)]


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


async def test_an_endless_list_is_cut_and_said_to_be() -> None:
    """(rules 5, 94)"""

    async def answer(params: dict[str, Any]) -> object:
        page = int(params.get("cursor", "0"))
        return {"tools": [tool(f"t{page}_{n}") for n in range(150)], "nextCursor": str(page + 1)}

    async with open_world(ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert len(names(world)) == listing.MAX_ENTRIES
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
    monkeypatch.setattr(listing, "MAX_BYTES", 3500)
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
        world.catalog.rearrange([])
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
        held = world.memory.hold(client(None), Use.REQUESTS, 69_000, lambda: None)
        await trio.sleep(1)
        assert "needs more memory" in complaints(world)[0]
        held.release()
        world.memory.total = 40_000_000
        more.set()
        await trio.sleep(120)
        assert names(world) == ["n0", "n1", "n2"]


async def test_entries_that_cannot_be_exported_are_left_out_and_the_others_stay() -> None:
    huge = tool("huge", description="x" * listing.MAX_DEFINITION)
    odd: list[Any] = [tool("a"), {}, 5, None, {"name": 7}, tool(""), huge, tool("twice"), tool("b"), tool("twice")]

    async def answer(params: dict[str, Any]) -> object:
        return {"tools": odd}

    async with open_world(ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert names(world) == ["a", "b"]
        assert len(complaints(world)) == 7


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
        world.roster.ready("a")


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


async def test_a_server_that_never_stops_announcing_is_read_ever_more_slowly(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        server.asked.clear()
        for _ in range(600):
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(0.1)
        assert len(server.asked) < 20


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
        assert "gave no list" in complaints(world)[0]


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


async def test_an_empty_cursor_of_a_stateless_server_is_a_cursor() -> None:
    """(rule 94)"""
    server = paged({None: {"tools": [tool("a")], "nextCursor": ""}, "": {"tools": [tool("b")]}})
    server.revision, server.stateless = NEW, True
    async with open_world(server) as world:
        await world.settled()
        assert (names(world), complaints(world)) == (["a", "b"], [])


async def test_an_empty_cursor_that_comes_twice_is_a_circle() -> None:
    """(rule 94)"""
    server = paged({None: {"tools": [tool("a")], "nextCursor": ""}, "": {"tools": [tool("b")], "nextCursor": ""}})
    server.revision, server.stateless = NEW, True
    async with open_world(server) as world:
        await world.settled()
        assert names(world) == ["a", "b"]
        assert complaints(world) == ["tools/list gave the same cursor twice; reading stopped there"]


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
        fresh = world.catalog.hint("a", Kind.TOOL)
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
        hint = world.catalog.hint("a", Kind.TOOL)
        assert hint is not None
        assert hint.freshness.ttl_ms == 0


async def test_a_handshake_server_says_nothing_of_how_fresh_its_lists_are() -> None:
    """Whatever stands there (rule 95)."""
    server = paged({None: {"tools": [tool("a")], "ttlMs": 5000, "cacheScope": "public"}})
    async with open_world(server) as world:
        await world.settled()
        hint = world.catalog.hint("a", Kind.TOOL)
        assert hint is not None
        assert (hint.freshness.ttl_ms, hint.freshness.public) == (0, False)
        assert world.catalog.hint("a", Kind.PROMPT) is None


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
            assert why.startswith("the tool 'bad' is left out: x-mcp-header of 'p' is on something else than a string")
        else:
            assert complaints(world) == []


PAGE = {"ui": {"resourceUri": "ui://a/page", "visibility": ["model"]}, "ui/resourceUri": "ui://a/page", "v/k": 1.5}


@pytest.mark.parametrize("revision", [NEW, LATEST_LEGACY.name])
@pytest.mark.parametrize("trust", list(Trust))
async def test_the_pages_of_an_untrusted_servers_tools_are_not_listed(trust: Trust, revision: str) -> None:
    """The tools are, once a person approved of them (rule 101)."""
    server = ScriptedServer(
        "a", tools=[tool("x", _meta=PAGE)], resources=["ui://a/page", "x:1"], revision=revision, trust=trust
    )
    async with open_world(server) as world:
        client = await world.client("a")
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

CHANGED = "notifications/tools/list_changed"


async def slowly(params: dict[str, Any]) -> object:
    await trio.sleep(0.5)
    return {"tools": [tool("x", description="another")]}


async def test_calls_that_follow_a_change_are_judged_by_the_new_definition(autojump_clock: MockClock) -> None:
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


async def test_a_call_that_began_before_the_change_and_was_not_sent_is_judged_anew(autojump_clock: MockClock) -> None:
    """It waited for a person, who agreed to the former definition while the new one was on its way."""
    server = ScriptedServer("a", tools=["x"], consent=Consent(tools=kind(ask=("x",))), answers={"tools/list": slowly})
    server.answers.clear()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        with world.gate.desk.attach(Channel.CONSOLE):
            call = later(nursery, client.call, "a__x")
            await wait_all_tasks_blocked()
            server.answers["tools/list"] = slowly
            server.sends(Notification(CHANGED))
            await wait_all_tasks_blocked()
            (matter,) = world.gate.desk.matters()
            world.gate.desk.answer(matter.id, Answer.ONCE, Channel.CONSOLE)
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
        assert "did not list anew" in result["content"][0]["text"]
        assert trio.current_time() - before == pytest.approx(20.0, abs=1.0)
        server.hears_nothing_more()


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
