"""Lists, their pages and cursors, and how long they are fresh, at scripted servers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent, Trust
from config.views import ALL, NameStyle, ViewNames, ViewServer, ViewSpec
from host.errors import (
    InvalidParams,
)
from host.exchange import Answer, Answered, Caller
from host.jsonrpc.messages import Request, Success
from host.protocol.methods import RESOURCES_CHANGED, Kind
from host.protocol.versions import LATEST, Era
from host.router import lists
from host.seal import KEY_BYTES
from host.source import Endpoint, Source
from host.upstream import catalog_sync
from tests.host.router.shared import NEW, OLDER, READABLE, REVISION, REVISIONS, echo
from tests.kit.gates import kind
from tests.kit.world import Refusal, ScriptedServer, World, later, open_client, open_world, tool


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PAGE_SIZE", 40)


async def test_lists_of_all_servers_are_one_list_in_the_order_of_the_configuration() -> None:
    """(rule 56)"""
    async with open_client(ScriptedServer("b", tools=["x", "y"]), ScriptedServer("a", tools=["x"])) as (_, client, _):
        assert await client.names() == ["b__x", "b__y", "a__x"]


async def test_a_list_that_is_evaluated_again_keeps_nobody_from_others() -> None:
    """Nor a client from beginning: it is told of that list when it is evaluated. Whoever wants that list waits."""
    hostile = ScriptedServer("hostile", tools=["x"], resources=["x://r"])
    async with open_world(hostile, ScriptedServer("b", tools=["y"], resources=["x://s"])) as world:
        await world.settled()
        world.catalog._due[Kind.RESOURCE][Source("hostile", Era.SESSION)] = (
            object()
        )  # and its judging does not come to an end
        async with trio.open_nursery() as nursery:
            with trio.fail_after(5):
                client, other = await world.client(), await world.client("b")
                assert await client.names() == ["hostile__x", "b__y"]
                assert (await other.request("resources/list"))["resources"][0]["uri"] == "x://s"
            nursery.start_soon(client.listen_changes)
            waiting = later(nursery, client.request, "resources/list")
            await wait_all_tasks_blocked()
            assert (waiting.done, client.notifications_of(RESOURCES_CHANGED)) == (False, [])
            world.catalog.reevaluate(["hostile"])
            assert len((await waiting.comes())["resources"]) == 2
            nursery.cancel_scope.cancel()


async def test_definitions_keep_every_member() -> None:
    """Whatever they are (rules 4, 56)."""
    own = tool("x", title="X", annotations={"readOnlyHint": True}, icons=[{"src": "a"}], _meta={"v/k": 1.50}, more=[1])
    async with open_client(ScriptedServer("a", tools=[own])) as (_, client, _):
        assert (await client.request("tools/list"))["tools"] == [{**own, "name": "a__x"}]


async def test_a_cursor_goes_on_where_the_page_ended() -> None:
    """(rule 94)"""
    names = [f"t{n}" for n in range(2 * lists.PAGE_SIZE + 3)]
    async with open_client(ScriptedServer("a", tools=names)) as (_, client, _):
        found: list[str] = []
        params: dict[str, Any] = {}
        pages = 0
        while True:
            page = await client.request("tools/list", params)
            found += [entry["name"] for entry in page["tools"]]
            pages += 1
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert found == [f"a__{name}" for name in names]
        assert pages == 3


@pytest.mark.parametrize("cursor", ["", None])
async def test_no_cursor_is_the_first_page(cursor: object) -> None:
    """As for the servers of the SDKs."""
    names = [f"t{n}" for n in range(lists.PAGE_SIZE + 1)]
    async with open_client(ScriptedServer("a", tools=names)) as (_, client, _):
        pages = [await client.request("tools/list", params) for params in ({"cursor": cursor}, {})]
        assert pages[0]["tools"] == pages[1]["tools"]


async def test_a_bad_cursor_is_refused() -> None:
    """(rule 94)"""
    rows: list[object] = ["nonsense", "AAAA", 5, "é", "x" * 100_000]
    async with open_client(ScriptedServer("a", tools=["x"])) as (_, client, _):
        for cursor in rows:
            with pytest.raises(Refusal) as refused:
                await client.request("tools/list", {"cursor": cursor})
            assert refused.value.code == -32602


async def test_a_cursor_of_one_list_is_none_of_another() -> None:
    """(rule 94)"""
    names = [f"t{n}" for n in range(lists.PAGE_SIZE + 1)]
    async with open_world(ScriptedServer("a", tools=names, prompts=names)) as world:
        client, alone = await world.client(), await world.client("a")
        cursor = (await client.request("tools/list"))["nextCursor"]
        for other, method in ((client, "prompts/list"), (alone, "tools/list")):
            with pytest.raises(Refusal, match="-32602"):
                await other.request(method, {"cursor": cursor})


@pytest.mark.slow
async def test_pages_of_two_different_lists_never_make_one(autojump_clock: MockClock) -> None:
    """(rule 105)"""
    names = [f"t{n}" for n in range(lists.PAGE_SIZE + 1)]
    server = ScriptedServer("a", tools=names)
    async with open_client(server) as (_, client, _):
        cursor = (await client.request("tools/list"))["nextCursor"]
        for n in range(lists.MAX_PAST_LISTS):
            server.lists["tools"].insert(0, tool(f"new{n}"))
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(20)
            last = (
                [entry["name"] for entry in (await client.request("tools/list", {"cursor": cursor}))["tools"]]
                if n + 1 < lists.MAX_PAST_LISTS
                else []
            )
            assert last in ([], [f"a__t{lists.PAGE_SIZE}"])
            await client.request("tools/list")
        with pytest.raises(Refusal, match="-32602"):
            await client.request("tools/list", {"cursor": cursor})


@pytest.mark.parametrize(("delay", "expected"), [(2.0, ["quick__x", "slow__x"]), (20.0, ["quick__x"])])
async def test_first_answers_wait_for_a_slow_server_but_no_longer_than_the_grace(
    delay: float, expected: list[str], autojump_clock: MockClock
) -> None:
    """(rule 57)"""

    async def slow(params: dict[str, Any]) -> object:
        await trio.sleep(delay)
        return {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}

    server = ScriptedServer("slow", tools=["x"], answers={"initialize": slow})
    async with open_world(ScriptedServer("quick", tools=["x"]), server, start_grace=3.0) as world:
        began = trio.current_time()
        client = await world.client()
        assert await client.names() == expected
        assert trio.current_time() - began <= 3.01


def never_ready(id: str, **spec: Any) -> ScriptedServer:
    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(50)
        return {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": {}}

    return ScriptedServer(id, tools=["x"], answers={"initialize": initialize}, **spec)


async def test_an_incomplete_list_says_so_and_names_whom_the_caller_may_know(autojump_clock: MockClock) -> None:
    """Not a server that shows nobody anything yet (rules 57, 111)."""
    servers = (
        ScriptedServer("quick", tools=["x"]),
        never_ready("late"),
        never_ready("untrusted", trust=Trust.UNTRUSTED),
        never_ready("denied", consent=Consent(tools=kind(default="deny"))),
        ScriptedServer("off", disabled=True),
    )
    async with open_client(*servers) as (world, client, _):
        listed = await client.request("tools/list")
        assert [each["name"] for each in listed["tools"]] == ["quick__x"]
        assert listed["_meta"] == {lists.MISSING_SERVERS: ["late"]}
        assert (await client.request("prompts/list"))["_meta"] == {lists.MISSING_SERVERS: ["late", "denied"]}
        at_own = await world.client("quick")
        assert "_meta" not in await at_own.request("tools/list")
        stateless = await world.mrtr_round("tools/list", {})
        assert isinstance(stateless, Answered)
        assert stateless.freshness.ttl_ms == 0
        await trio.sleep(60)
        whole = await client.request("tools/list")
        assert [each["name"] for each in whole["tools"]] == ["quick__x", "late__x"]
        assert "_meta" not in whole


async def test_a_page_ends_where_it_is_large_enough() -> None:
    """By entries or by bytes; an entry that is larger than a page has one of its own."""
    texts = [b"x" * size for size in (lists.MAX_PAGE_BYTES + 1, 1, lists.MAX_PAGE_BYTES - 1, 1)]
    pages, start = list[int](), 0
    while start < len(texts):
        pages.append(len(lists._page(texts, start)))
        start += pages[-1]
    assert pages == [1, 2, 1]
    assert len(lists._page([b""] * (lists.PAGE_SIZE + 1), 0)) == lists.PAGE_SIZE


async def test_a_definition_keeps_its_bytes_but_for_its_name_and_its_page() -> None:
    """Schemas are nobody's to tidy (rules 4, 56)."""
    odd = READABLE.replace(b"1E400", b"1E40")  # in a definition, numbers are such as every reader can hold
    schema = b'{"$schema":"x","type":"object","properties":{"b":%s,"a":{"x-mcp-header":"A"}},"$defs":{}}' % odd
    promise = b'{"type":"object","$schema":"https://json-schema.org/draft/2020-12/schema","default":%s}' % odd
    whole = b'{"inputSchema":%s,"name":"%s","outputSchema":%s,"annotations":{"title":"T"},"icons":[],"_meta":{%s}}'
    page = b'"ui":{"resourceUri":"%s","v":1.50},"ui/resourceUri":"%s"'

    async def answer(params: dict[str, Any]) -> object:
        return Raw(b'{"tools":[%s]}' % (whole % (schema, b"x", promise, page % ((b"ui://p",) * 2))))

    async with open_client(ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})) as (_, client, _):
        answered = await client.answer(Request(1, "tools/list"))
        assert isinstance(answered, Success)
        expected = whole % (schema, b"a__x", promise, page % ((b"ui://a+p",) * 2))
        assert bytes(answered.result) == b'{"tools":[%s]}' % expected


async def test_tools_promise_only_what_a_client_can_take() -> None:
    """No tasks of a server that runs none, and no structure to those who do not know it (rules 60, 61)."""
    all_endpoint: list[str | None] = [None, "a"]
    own = tool("x", outputSchema={"type": "object"}, execution={"taskSupport": "required"}, title="X")
    async with open_world(ScriptedServer("a", tools=[own, "y"])) as world:
        for revision in REVISIONS:
            for endpoint in all_endpoint:
                old, new = await world.client(endpoint, revision), await world.client(endpoint)
                for _ in range(2):  # one client's view is not another's
                    first, second = (await old.request("tools/list"))["tools"]
                    assert ("outputSchema" in first) is (revision not in OLDER)
                    assert "execution" not in first
                    assert (first["title"], second) == ("X", tool("y" if endpoint else "a__y"))
                    assert "outputSchema" in (await new.request("tools/list"))["tools"][0]


@pytest.mark.few(2)
@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize("revision", [*REVISIONS, LATEST.name])
async def test_a_definition_that_clients_refuse_takes_no_other_away(revision: str, endpoint: str | None) -> None:
    """Each client is shown what it accepts, in a form that it accepts; a call reaches the others all the same."""
    own = {"type": "object", "properties": {"p": True}}
    unfit = [tool("text", inputSchema={"type": "string"}), tool("five", inputSchema={**own, "properties": {"p": 5}})]
    bad = ScriptedServer(
        "a",
        tools=["x", *unfit, {"name": "none", "title": None}, tool("b", inputSchema=own)],
        resources=[{"uri": "memo:1", "name": "1", "size": "5"}, {"uri": "memo:2"}, {"uri": "no uri", "name": "3"}],
        answers={"tools/call": echo},
    )
    bad.lists["prompts"] = [{"name": "p", "arguments": None}, {"name": "q", "arguments": [{}]}]
    async with open_world(bad, ScriptedServer("good", tools=["y"])) as world:
        if revision == LATEST.name:

            async def listed(method: str) -> Any:
                found = await world.mrtr_round(method, {}, endpoint=endpoint)
                assert isinstance(found, Answered)
                return json.loads(bytes(found.result))

        else:
            client = await world.client(endpoint, revision)
            listed = client.request
        tools = {each["name"].removeprefix("a__"): each for each in (await listed("tools/list"))["tools"]}
        stateless = revision == LATEST.name
        others = [] if endpoint else ["good__y"]
        assert list(tools) == ["x", *(["five"] if stateless else []), "none", "b", *others]
        assert tools["none"]["inputSchema"] == {"type": "object"}
        assert "title" not in tools["none"]
        assert tools["b"]["inputSchema"] == (own if stateless else {**own, "properties": {"p": {}}})
        (resource,) = (await listed("resources/list"))["resources"]
        assert (resource["name"], "size" in resource) == ("1", False)
        (prompt,) = (await listed("prompts/list"))["prompts"]
        assert "arguments" not in prompt
        other = await world.client()
        assert (await other.call("a__text", {"n": 1}))["_meta"] == {"saw": "text"}


# Cursors


def many() -> list[str]:
    return [f"t{n}" for n in range(lists.PAGE_SIZE + 1)]


async def test_a_cursor_is_good_for_whoever_it_was_given_to_and_nobody_else() -> None:
    """A session is not an identity: whoever has the token may go on elsewhere (rule 94)."""
    async with open_world(ScriptedServer("a", tools=many())) as world:
        clients = {name: await world.client(identity=name) for name in ("ann", "bob", None, "")}
        cursors = {name: (await each.request("tools/list"))["nextCursor"] for name, each in clients.items()}
        for owner, cursor in cursors.items():
            for name, client in clients.items():
                if name == owner:
                    last = await client.request("tools/list", {"cursor": cursor})
                    assert [entry["name"] for entry in last["tools"]] == [f"a__t{lists.PAGE_SIZE}"]
                else:
                    with pytest.raises(Refusal, match="-32602"):
                        await client.request("tools/list", {"cursor": cursor})
        again = await world.client(identity="ann")
        assert len((await again.request("tools/list", {"cursor": cursors["ann"]}))["tools"]) == 1


async def test_a_cursor_of_one_view_is_none_of_another() -> None:
    """Pages with and without structure make no list together (rules 61, 94)."""
    async with open_world(ScriptedServer("a", tools=many())) as world:
        old, new = await world.client(revision=OLDER[0]), await world.client()
        for one, other in ((old, new), (new, old)):
            cursor = (await one.request("tools/list"))["nextCursor"]
            with pytest.raises(Refusal, match="-32602"):
                await other.request("tools/list", {"cursor": cursor})


@pytest.mark.parametrize("after", ["the same", "changed", "hidden", "of others", "another key"])
async def test_a_cursor_outlives_the_host_if_its_list_is_the_same(monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """For clients of both eras; any other list is to be listed from its start (rules 94, 105)."""
    monkeypatch.setattr(lists, "PAGE_SIZE", 2)
    key, names = bytes(KEY_BYTES), ["x", "y", "z"]
    async with open_client(ScriptedServer("a", tools=names), identity="ann", key=key) as (world, client, _):
        pages = [_decoded(await world.mrtr_round("tools/list", {}, identity="ann")), await client.request("tools/list")]
        params = [{"cursor": page["nextCursor"]} for page in pages]
    tools: list[str | dict[str, Any]] = [*names]
    if after == "changed":  # on the page that the client has already
        tools[0] = tool("x", description="other")
    elif after == "hidden":
        tools.pop(0)
    elif after == "another key":
        key = bytes(range(KEY_BYTES))
    server, identity = ScriptedServer("a", tools=tools), "bob" if after == "of others" else "ann"
    async with open_client(server, identity=identity, key=key) as (world, client, _):
        if after == "the same":
            for page in (
                _decoded(await world.mrtr_round("tools/list", params[0], identity=identity)),
                await client.request("tools/list", params[1]),
            ):
                assert [entry["name"] for entry in page["tools"]] == ["a__z"]
                assert "nextCursor" not in page
            return
        with pytest.raises(InvalidParams, match="list again from the start"):
            await world.mrtr_round("tools/list", params[0], identity=identity)
        with pytest.raises(Refusal, match="list again from the start"):
            await client.request("tools/list", params[1])


def _decoded(answer: Answer) -> Any:
    assert isinstance(answer, Answered)
    return json.loads(bytes(answer.result))


async def test_no_letter_of_a_cursor_can_be_changed() -> None:
    """(rule 94)"""
    async with open_client(ScriptedServer("a", tools=many())) as (_, client, _):
        cursor = (await client.request("tools/list"))["nextCursor"]
        for at, letter in enumerate(cursor.rstrip("=")):
            changed = cursor[:at] + ("B" if letter == "A" else "A") + cursor[at + 1 :]
            with pytest.raises(Refusal, match="-32602"):
                await client.request("tools/list", {"cursor": changed})
        assert await client.request("tools/list", {"cursor": cursor})


async def test_a_server_that_comes_late_is_announced(autojump_clock: MockClock) -> None:
    """Whoever asked before has been given the list without it (rules 57, 111)."""

    async def late(params: dict[str, Any]) -> object:
        await trio.sleep(10)
        return {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": {}}

    server = ScriptedServer("late", tools=["x"], answers={"initialize": late})
    async with (
        open_world(ScriptedServer("a", tools=["x"]), server, start_grace=3.0) as world,
        trio.open_nursery() as nursery,
    ):
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        assert await client.names() == ["a__x"]
        await trio.sleep(20)
        assert [method for method, _ in client.notifications] == ["notifications/tools/list_changed"]
        assert await client.names() == ["a__x", "late__x"]
        nursery.cancel_scope.cancel()


async def test_pages_of_one_list_are_one_list_while_it_changes(autojump_clock: MockClock) -> None:
    """What was there when the first page was given, each once; or a clear error (rule 105)."""
    names = [f"t{n:03}" for n in range(2 * lists.PAGE_SIZE + 7)]
    server = ScriptedServer("a", tools=names)
    async with open_client(server) as (_, client, _):
        page = await client.request("tools/list")
        found = [entry["name"] for entry in page["tools"]]
        for removed in ("t000", "t300"):
            server.lists["tools"] = [each for each in server.lists["tools"] if each["name"] != removed]
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(20)
            page = await client.request("tools/list", {"cursor": page["nextCursor"]})
            found += [entry["name"] for entry in page["tools"]]
        assert found == [f"a__{name}" for name in names]
        assert "nextCursor" not in page
        assert len((await client.request("tools/list"))["tools"]) == lists.PAGE_SIZE


def lasting(id: str, ttl_ms: int = 5000, scope: str = "public", **more: Any) -> ScriptedServer:
    """A stateless server whose lists stay true for a while."""
    more.setdefault("capabilities", {"tools": {}})
    server = ScriptedServer(id, tools=["x"], revision=NEW, **more)
    server.ttl_ms, server.scope = ttl_ms, scope
    return server


async def fresh(world: World, method: str = "tools/list", endpoint: str | None = None) -> tuple[int, bool]:
    found = await world.mrtr_round(method, {}, endpoint=endpoint)
    assert isinstance(found, Answered)
    return found.freshness.ttl_ms, found.freshness.public


async def test_a_list_of_all_servers_is_as_fresh_as_the_oldest_of_theirs(autojump_clock: MockClock) -> None:
    """And for everybody only if each of them is (rule 95)."""
    servers = lasting("a", 9000), lasting("b", 5000), lasting("c", 7000, "private")
    async with open_world(*servers) as world:
        await world.settled()
        assert await fresh(world) == (5000, False)
        await trio.sleep(2)
        assert await fresh(world) == (3000, False)
        assert await fresh(world, endpoint="a") == (7000, True)
        assert await fresh(world, endpoint="c") == (5000, False)
        await trio.sleep(60)  # they are old, and read again
        assert await fresh(world) == (5000, False)


async def test_no_list_is_vouched_for_longer_than_a_minute() -> None:
    """Whatever its server says (rule 95)."""
    async with open_world(lasting("a", 10**15)) as world:
        await world.settled()
        assert await fresh(world) == (lists.MAX_LIST_TTL, True)


async def test_with_a_server_that_says_nothing_no_list_is_fresh(autojump_clock: MockClock) -> None:
    """Nor with one that was never there; one that has nothing of the kind does not count (rule 95)."""
    legacy = ScriptedServer("b", prompts=["p"])
    async with open_world(lasting("a"), legacy) as world:
        await world.settled()
        assert await fresh(world) == (5000, True)
        assert await fresh(world, "prompts/list") == (0, False)
        assert await fresh(world, "prompts/list", "b") == (0, False)

    async def hang(params: dict[str, Any]) -> object:
        await trio.sleep_forever()

    away = ScriptedServer("b", answers={"server/discover": hang, "initialize": hang})
    async with open_world(lasting("a"), away, start_grace=0.0) as world:
        await world.upstreams.by_id["a"].main.life.settled.wait()
        assert await fresh(world) == (0, False)
        assert await fresh(world, endpoint="a") == (5000, True)
    async with open_world(lasting("a"), ScriptedServer("b", tools=["x"], disabled=True)) as world:
        await world.settled()
        assert await fresh(world) == (5000, True)


@pytest.mark.parametrize("announces", [True, False])
async def test_a_list_past_its_time_is_read_again_before_somebody_gets_it_unless_its_server_tells_of_changes(
    announces: bool, autojump_clock: MockClock
) -> None:
    """The time that it stays true is no interval to ask at (rules 95, 97)."""
    server = lasting("a", capabilities={"tools": {"listChanged": announces}})
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        await trio.sleep(100)
        listed = server.asked.count("tools/list")
        server.lists["tools"].append(tool("y"))
        assert await client.names() == (["a__x"] if announces else ["a__x", "a__y"])
        await trio.sleep(2)
        assert server.asked.count("tools/list") == listed + (not announces)
        assert await client.names() == (["a__x"] if announces else ["a__x", "a__y"])
        await trio.sleep(1)
        assert server.asked.count("tools/list") == listed + (not announces)


async def test_all_pages_of_a_list_are_for_the_same_readers(autojump_clock: MockClock) -> None:
    """Also when a server changes its mind between them (rule 95)."""
    server = lasting("a", 60_000, capabilities={"tools": {"listChanged": True}})
    server.lists["tools"] = [tool(f"t{n}") for n in range(lists.PAGE_SIZE + 1)]
    async with open_world(server) as world:
        await world.settled()
        await trio.sleep(5)  # what was read before its notices are listened to is read again
        first = await world.mrtr_round("tools/list", {})
        assert isinstance(first, Answered)
        assert first.freshness.public
        cursor = json.loads(bytes(first.result))["nextCursor"]
        server.scope = "private"
        await wait_all_tasks_blocked()
        await server.tells("notifications/tools/list_changed")
        await trio.sleep(5)
        assert not (await fresh(world))[1]
        second = await world.mrtr_round("tools/list", {"cursor": cursor})
        assert isinstance(second, Answered)
        assert second.freshness.public


# Cursors of callers without a session


@pytest.mark.slow
async def test_a_cursor_without_a_session_is_good_for_one_list_of_one_caller() -> None:
    """Whichever request brings it (rule 94)."""
    names = [f"t{n}" for n in range(lists.PAGE_SIZE + 1)]
    async with open_world(ScriptedServer("a", tools=names, prompts=names)) as world:
        await world.settled()

        async def page(method: str = "tools/list", cursor: str | None = None, **caller: Any) -> dict[str, Any]:
            found = await world.mrtr_round(method, {} if cursor is None else {"cursor": cursor}, **caller)
            assert isinstance(found, Answered)
            result: dict[str, Any] = json.loads(bytes(found.result))
            return result

        cursor = (await page(identity="ann"))["nextCursor"]
        for _ in range(2):
            again = await page(cursor=cursor, identity="ann")
            assert [entry["name"] for entry in again["tools"]] == [f"a__t{lists.PAGE_SIZE}"]
        for wrong in (
            {"identity": "bob"},
            {"identity": None},
            {"identity": "ann", "endpoint": "a"},
            {"identity": "ann", "method": "prompts/list"},
        ):
            with pytest.raises(InvalidParams):
                await page(cursor=cursor, **wrong)
        for at in range(0, len(cursor), 7):
            flipped = cursor[:at] + chr(ord(cursor[at]) ^ 1) + cursor[at + 1 :]
            with pytest.raises(InvalidParams):
                await page(cursor=flipped, identity="ann")


async def test_a_cursor_does_not_last_for_ever(autojump_clock: MockClock) -> None:
    """(rule 94)"""
    async with open_world(ScriptedServer("a", tools=many())) as world:
        await world.settled()
        first = await world.mrtr_round("tools/list", {})
        assert isinstance(first, Answered)
        cursor = json.loads(bytes(first.result))["nextCursor"]
        await trio.sleep(lists.CURSOR_LIFE - 1)
        await world.mrtr_round("tools/list", {"cursor": cursor})
        await trio.sleep(2)
        with pytest.raises(InvalidParams):
            await world.mrtr_round("tools/list", {"cursor": cursor})


async def test_a_tool_whose_headers_nobody_could_send_is_not_shown_to_stateless_clients() -> None:
    """Its handshake server knows nothing of headers, and other clients need none (rule 36)."""
    odd = tool("odd", inputSchema={"type": "object", "properties": {"p": {"type": "number", "x-mcp-header": "P"}}})
    async with open_client(ScriptedServer("a", tools=["x", odd])) as (world, client, _):
        assert await client.names() == ["a__x", "a__odd"]
        listed = await world.mrtr_round("tools/list", {})
        assert isinstance(listed, Answered)
        assert [each["name"] for each in json.loads(bytes(listed.result))["tools"]] == ["a__x"]


@pytest.mark.parametrize(
    ("more", "passes"),
    [
        ({}, True),
        ({"consent": Consent(tools=kind(deny=["y"]))}, False),
        ({"trust": Trust.UNTRUSTED}, False),
    ],
)
async def test_what_a_list_has_beside_is_passed_on_if_all_of_it_is_shown(more: dict[str, Any], passes: bool) -> None:
    """It may name what is denied or held."""

    async def list_tools(params: dict[str, Any]) -> object:
        return {"tools": [tool("x"), tool("y")], "_meta": {"vendor/all": ["x", "y"]}, "total": 2}

    server = ScriptedServer("a", tools=["x"], answers={"tools/list": list_tools}, **more)
    async with open_client(server, endpoint="a") as (world, client, _):
        world.approves()
        listed = await client.request("tools/list")
        beside = ({"vendor/all": ["x", "y"]}, 2) if passes else (None, None)
        assert (listed.get("_meta"), listed.get("total")) == beside


@pytest.mark.parametrize("case", ["pages", "long", "deep"])
async def test_what_a_list_has_beside_is_not_passed_on_where_it_would_not_fit(case: str) -> None:
    async def list_tools(params: dict[str, Any]) -> object:
        if case == "pages":
            rest = {"tools": [tool("y")]} if "cursor" in params else {"tools": [tool("x")], "nextCursor": "1"}
            return {**rest, "total": 2}
        return {"tools": [tool("x")], "total": "x" * 20_000 if case == "long" else json.loads("[" * 150 + "]" * 150)}

    async with open_world(ScriptedServer("a", tools=["x"], answers={"tools/list": list_tools})) as world:
        listed = await (await world.client("a")).request("tools/list")
        assert (len(listed["tools"]), listed.keys()) == (2 if case == "pages" else 1, {"tools"})


async def test_what_a_list_has_beside_may_not_name_what_is_left_out() -> None:
    """A definition that no client gets may be of a tool that is denied. Read again, the list is the same."""

    async def list_tools(params: dict[str, Any]) -> object:
        twice = [tool("y"), tool("y", title="Y")]
        return {"tools": [tool("x"), *twice[: 2 * len(said)]], "_meta": {"vendor/all": ["x", "y"]}, "total": said}

    said: list[int] = []
    consent = Consent(tools=kind(deny=["y"]))
    server = ScriptedServer("a", tools=["x"], answers={"tools/list": list_tools}, consent=consent)
    async with open_client(server, endpoint="a") as (world, client, _):
        assert (await client.request("tools/list"))["total"] == []
        for number in (1, 2):
            said.append(number)
            await server.notifies("notifications/tools/list_changed")
            await world.settled()
            assert (await client.request("tools/list")).keys() == {"tools"}


async def test_a_list_that_could_not_be_published_does_not_say_whether_the_former_one_was_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read again, the former one is the same, and what it has beside may still name what is left out of it."""
    listed: list[Any] = [tool("x"), tool("y"), tool("y", title="Y")]

    async def list_tools(params: dict[str, Any]) -> object:
        return {"tools": listed, "total": len(listed)}

    async def no_room(*arguments: object) -> bool:
        return False

    server = ScriptedServer("a", tools=["x"], answers={"tools/list": list_tools})
    async with open_client(server, endpoint="a") as (world, client, _):
        assert (await client.request("tools/list")).keys() == {"tools"}
        sync = world.upstreams.by_id["a"].main.lists.sync
        assert sync is not None
        former, listed = listed, [tool("x"), tool("z")]
        with monkeypatch.context() as patched:
            patched.setattr(catalog_sync, "publish_list", no_room)
            await sync.read(Kind.TOOL)
        listed = former
        await sync.read(Kind.TOOL)
        found = await client.request("tools/list")
        assert (found.keys(), [each["name"] for each in found["tools"]]) == ({"tools"}, ["x"])


async def test_what_a_list_has_beside_is_not_passed_on_once_its_server_is_untrusted() -> None:
    async def list_tools(params: dict[str, Any]) -> object:
        return {"tools": [tool("x")], "total": "a\u200bb"}

    server = ScriptedServer("a", tools=["x"], answers={"tools/list": list_tools})
    async with open_client(server, endpoint="a") as (world, client, _):
        assert (await client.request("tools/list"))["total"] == "a\u200bb"
        server.spec = replace(server.spec, trust=Trust.UNTRUSTED)
        world.gate.replace({"a": server.spec}, {})
        world.approves()
        assert "total" not in await client.request("tools/list")


# Views


PART = ViewSpec(servers={"a": ViewServer(tools=("x*",))})


def listed_in(view: str = "v", **more: Any) -> Caller:
    return Caller("t", Endpoint(view=view), **more)


async def test_a_list_of_a_view_changes_only_with_what_the_view_has(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x1", "y"])
    async with open_world(server, ScriptedServer("b", tools=["z"]), views={"v": PART}) as world:
        await world.settled()
        rendered = await world.router.lists.shown(listed_in(), Kind.TOOL)
        assert [json.loads(each)["name"] for each in rendered.definitions] == ["a__x1"]
        for tools in (["x1", "y2"], ["z", "x1"]):
            server.lists["tools"] = [tool(name) for name in tools]
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(5)
            assert await world.router.lists.shown(listed_in(), Kind.TOOL) is rendered
        server.lists["tools"] = [tool("x2")]
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(5)
        assert (await world.router.lists.shown(listed_in(), Kind.TOOL)).digest != rendered.digest


async def test_equal_lists_are_of_one_digest_whichever_servers_they_are_of(autojump_clock: MockClock) -> None:
    """A server without entries of the kind, and names that were left out on both sides, change no list."""
    one, two = ScriptedServer("a", tools=["x", "y"]), ScriptedServer("b", tools=["y"], prompts=["p"])
    views = {"v": ViewSpec(names=ViewNames(NameStyle.PLAIN))}
    async with open_world(one, two, views=views) as world:
        await world.settled()
        shown = [await world.router.lists.shown(listed_in(), Kind.TOOL)]
        for tools, others in ((["x"], []), ([], ["x"])):
            one.lists["tools"], two.lists["tools"] = [tool(name) for name in tools], [tool(name) for name in others]
            for server in (one, two):
                await server.notifies("notifications/tools/list_changed")
            await trio.sleep(5)
            shown.append(await world.router.lists.shown(listed_in(), Kind.TOOL))
        assert {(each.definitions, each.digest) for each in shown} == {(shown[0].definitions, shown[0].digest)}
        assert len({each.version for each in shown}) == 3


async def test_views_share_what_is_rendered_of_a_definition() -> None:
    plain = ViewSpec(names=ViewNames(NameStyle.PLAIN))
    async with open_world(ScriptedServer("a", tools=["x1", "y"]), views={"v": PART, "plain": plain}) as world:
        await world.settled()
        everything, part, plainly = [
            (await world.router.lists.shown(listed_in(view), Kind.TOOL)).definitions for view in ("", "v", "plain")
        ]
        assert part[0] is everything[0]
        assert [json.loads(each)["name"] for each in plainly] == ["x1", "y"]


async def test_a_cursor_of_one_view_is_good_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PAGE_SIZE", 1)
    server = ScriptedServer("a", tools=["x1", "x2", "x3"])
    async with open_world(server, views={"v": PART, "w": PART}) as world:
        await world.settled()

        async def page(view: str, cursor: str | None) -> Any:
            params = {} if cursor is None else {"cursor": cursor}
            answer = await world.mrtr_round("tools/list", params, endpoint=Endpoint(view=view))
            assert isinstance(answer, Answered)
            return json.loads(bytes(answer.result))

        cursor = (await page("v", None))["nextCursor"]
        assert [each["name"] for each in (await page("v", cursor))["tools"]] == ["a__x2"]
        for view in ("w", ""):
            with pytest.raises(InvalidParams):
                await page(view, cursor)
        world.configures(server, views={"v": ViewSpec(servers={"a": ViewServer(tools=("x1", "x2"))})})
        with pytest.raises(InvalidParams, match="has changed"):
            await page("v", cursor)
        assert await page("w", None) == {"tools": []}


async def test_a_list_of_a_view_misses_the_servers_of_the_view_alone(autojump_clock: MockClock) -> None:
    views = {
        "v": ViewSpec(servers={"quick": ALL, "late": ViewServer(tools=("x",))}),
        "w": ViewSpec(servers={"quick": ALL}),
    }
    async with open_world(ScriptedServer("quick", tools=["x"]), never_ready("late"), views=views) as world:
        with_late, without = [await world.client(Endpoint(view=view)) for view in ("v", "w")]
        began = trio.current_time()
        assert "_meta" not in await without.request("tools/list")
        assert trio.current_time() == began
        assert (await with_late.request("tools/list"))["_meta"] == {lists.MISSING_SERVERS: ["late"]}
        assert "_meta" not in await with_late.request("prompts/list")


async def test_what_a_list_has_beside_is_not_passed_on_where_a_view_has_a_part_of_it() -> None:
    async def listing(params: dict[str, Any]) -> object:
        return {"tools": [tool("x1"), tool("y")], "hint": "y is better"}

    server = ScriptedServer("a", answers={"tools/list": listing}, capabilities={"tools": {}})
    async with open_world(server, views={"v": PART, "whole": ViewSpec(servers={"a": ALL})}) as world:
        found = [await world.client(Endpoint("a", view)) for view in ("", "v", "whole")]
        assert ["hint" in await client.request("tools/list") for client in found] == [True, False, True]


async def test_the_lists_of_a_view_that_is_gone_are_forgotten() -> None:
    a = ScriptedServer("a", tools=["x1", "y"])
    async with open_world(a, views={"v": PART}) as world:
        await world.settled()
        shown = await world.router.lists.shown(listed_in("v"), Kind.TOOL)
        assert world.router.lists.last_shown(listed_in("v"), Kind.TOOL) is shown
        world.configures(a, views={"w": PART})
        assert (await world.router.lists.shown(listed_in("w"), Kind.TOOL)).definitions == shown.definitions
        assert world.router.lists.last_shown(listed_in("v"), Kind.TOOL) is None
