"""The road of a call through names, gate and servers, with scripted servers and clients."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent, Trust
from host import router as router_module
from host.downstream.sessions import Session
from host.errors import (
    Forbidden,
    InvalidParams,
    MissingAbility,
    ProtocolViolation,
    ResourceNotFound,
    Unavailable,
    Unconfirmed,
    UnknownEntry,
    UpstreamError,
)
from host.exchange import Answered, InputRequired, MrtrRound
from host.jsonrpc.messages import ErrorBody, Failure, Notification, Request, Success
from host.jsonrpc.raw import encode
from host.outstanding import PeerError
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.protocol.methods import RESOURCES_CHANGED, Kind
from host.protocol.mrtr import MAX_KEYS
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY
from host.upstream.mrtr import MAX_STATE
from tests.kit.gates import kind
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, later, open_world, tool

REVISION = LATEST_LEGACY.name


async def echo(params: dict[str, Any]) -> object:
    return {
        "content": [{"type": "text", "text": json.dumps(params.get("arguments"))}],
        "_meta": {"saw": params["name"]},
    }


async def test_lists_of_all_servers_are_one_list_in_the_order_of_the_configuration() -> None:
    """(rule 56)"""
    async with open_world(ScriptedServer("b", tools=["x", "y"]), ScriptedServer("a", tools=["x"])) as world:
        client = await world.client()
        assert await client.names() == ["b__x", "b__y", "a__x"]


async def test_a_list_that_is_judged_anew_keeps_nobody_from_others() -> None:
    """Nor a client from beginning: it is told of that list when it is judged. Whoever wants that list waits."""
    hostile = ScriptedServer("hostile", tools=["x"], resources=["x://r"])
    async with open_world(hostile, ScriptedServer("b", tools=["y"], resources=["x://s"])) as world:
        await world.settled()
        world.catalog._due["hostile", Kind.RESOURCE] = object()  # and its judging does not come to an end
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


async def test_a_servers_own_endpoint_has_its_own_names() -> None:
    server = ScriptedServer("a", tools=["x"], resources=["file:///r"], answers={"tools/call": echo})
    async with open_world(server, ScriptedServer("b", tools=["x"])) as world:
        client = await world.client("a")
        assert await client.names() == ["x"]
        assert await client.names("resources/list", "uri") == ["file:///r"]
        assert (await client.call("x"))["_meta"] == {"saw": "x"}


async def test_a_call_reaches_its_server_under_the_servers_own_name() -> None:
    """And nothing is added to what it answers (rules 55, 58, 101)."""
    a = ScriptedServer("a", tools=["x"], answers={"tools/call": echo})
    b = ScriptedServer("b", tools=["x"])
    async with open_world(a, b) as world:
        client = await world.client()
        result = await client.call("a__x", {"n": 1})
        assert result == {"content": [{"type": "text", "text": '{"n": 1}'}], "_meta": {"saw": "x"}}
        b.hears_nothing_more()


async def test_definitions_keep_every_member() -> None:
    """Whatever they are (rules 4, 56)."""
    own = tool("x", title="X", annotations={"readOnlyHint": True}, icons=[{"src": "a"}], _meta={"v/k": 1.50}, more=[1])
    async with open_world(ScriptedServer("a", tools=[own])) as world:
        client = await world.client()
        assert (await client.request("tools/list"))["tools"] == [{**own, "name": "a__x"}]


async def test_uris_in_results_are_ones_the_client_can_bring_back() -> None:
    """In the places where URIs stand and nowhere else; none need be in a list (rules 56, 59, 65, 66, 67)."""

    async def answer(params: dict[str, Any]) -> object:
        return {
            "content": [
                {"type": "resource_link", "uri": "memo:1", "name": "one"},
                {"type": "resource", "resource": {"uri": "memo:2", "text": "memo:3"}},
                {"type": "text", "text": "memo:4", "uri": 5},
            ],
            "structuredContent": {"uri": "memo:5"},
            "_meta": {"ui": {"resourceUri": "ui://page"}},
        }

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}, {"uri": "https://a/b", "text": "t"}]}

    server = ScriptedServer(
        "a", tools=["x"], templates=["memo:{n}"], answers={"tools/call": answer, "resources/read": read}
    )
    async with open_world(server) as world:
        client = await world.client()
        result = await client.call("a__x")
        assert [block.get("uri") for block in result["content"]] == ["a+memo:1", None, 5]
        assert result["content"][1]["resource"] == {"uri": "a+memo:2", "text": "memo:3"}
        assert result["structuredContent"] == {"uri": "memo:5"}
        assert result["_meta"] == {"ui": {"resourceUri": "ui://a+page"}}
        read_back = await client.request("resources/read", {"uri": "a+memo:2"})
        assert [content["uri"] for content in read_back["contents"]] == ["a+memo:2", "https://a/b"]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "a__secret"}, -32602),
        ("prompts/get", {"name": "a__secret"}, -32602),
        ("resources/read", {"uri": "a+secret:x"}, -32002),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__secret"}, "argument": {}}, -32602),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a+secret:x"}, "argument": {}}, -32002),
    ],
)
async def test_what_is_denied_answers_like_what_does_not_exist_and_no_server_is_asked(
    method: str, params: dict[str, Any], code: int
) -> None:
    """(rule 58)"""

    async def not_found(params: dict[str, Any]) -> object:
        raise AssertionError("the server was asked")

    deny = kind(deny=("secret*", "secret:**"))
    server = ScriptedServer(
        "a",
        tools=["secret", "x"],
        prompts=["secret", "x"],
        resources=["secret:x", "memo:x"],
        answers={method: not_found},
        consent=Consent(tools=deny, resources=deny, prompts=deny),
    )
    async with open_world(server) as world:
        client = await world.client()
        with pytest.raises(Refusal) as denied:
            await client.request(method, params)
        assert denied.value.code == code
        absent = json.loads(json.dumps(params).replace("a+secret", "a+absent").replace("a__secret", "a__absent"))
        if method != "resources/read":  # an absent resource may exist unlisted: only its server can tell
            with pytest.raises(Refusal) as missing:
                await client.request(method, absent)
            assert missing.value.code == denied.value.code
            assert missing.value.message.replace("absent", "secret") == denied.value.message
        assert "a__secret" not in await client.names()
        assert "a__secret" not in await client.names("prompts/list")
        assert "a+secret:x" not in await client.names("resources/list", "uri")


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (-32002, "no such thing", None),
        (-32602, "Unknown resource: memo:1", None),
        (-32602, "bad", {"uri": "memo:1"}),
    ],
)
async def test_a_servers_not_found_reads_like_ours(code: int, message: str, data: object) -> None:
    """So that nobody can tell a denied resource from an absent one (rule 68)."""
    server = ScriptedServer(
        "a", resources=["memo:x", "memo:denied"], consent=Consent(resources=kind(deny=("memo:denied",)))
    )
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        with pytest.raises(Refusal) as denied:
            await client.request("resources/read", {"uri": "a+memo:denied"})

        async def refuse() -> None:
            asked = await server.hears("resources/read")
            server.refuses(asked["id"], code, message, data)

        nursery.start_soon(refuse)
        with pytest.raises(Refusal) as absent:
            await client.request("resources/read", {"uri": "a+memo:1"})
        assert (absent.value.code, absent.value.message) == (denied.value.code, denied.value.message)
        assert absent.value.data == {"uri": "a+memo:1"}
        assert denied.value.data == {"uri": "a+memo:denied"}


@pytest.mark.parametrize("listed_before", [True, False])
async def test_while_a_server_is_away_nobody_can_tell_denied_from_absent(
    listed_before: bool, autojump_clock: MockClock
) -> None:
    async def broken(params: dict[str, Any]) -> object:
        return {}

    deny = kind(deny=("denied", "memo:denied"))
    server = ScriptedServer(
        "a",
        tools=["denied", "x"],
        resources=["memo:denied", "memo:x"],
        consent=Consent(tools=deny, resources=deny),
        answers={} if listed_before else {"initialize": broken},
    )
    async with open_world(server) as world:
        client = await world.client()
        server.answers["initialize"] = broken
        if listed_before:
            server.dies()
        await trio.sleep(100)
        for method, key, name in (("tools/call", "name", "a__{}"), ("resources/read", "uri", "a+memo:{}")):
            said = set()
            for which in ("denied", "absent"):
                try:
                    outcome = json.dumps(await client.request(method, {key: name.format(which)}))
                except Refusal as refusal:
                    outcome = f"{refusal.code} {refusal.message} {refusal.data}"
                said.add(re.sub(r"in [0-9.]+ s", "in N s", outcome.replace(which, "which")))
            assert len(said) == 1, said


async def test_a_servers_error_passes_as_it_came() -> None:
    """(rule 4)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def refuse() -> None:
            server.refuses((await server.hears("tools/call"))["id"], -32099, "not today", {"n": [1]})

        nursery.start_soon(refuse)
        with pytest.raises(Refusal) as refused:
            await client.call("a__x")
        assert (refused.value.code, refused.value.message, refused.value.data) == (-32099, "not today", {"n": [1]})


async def test_a_uri_in_an_error_is_one_the_client_can_bring_back() -> None:
    """(rule 65)"""
    server = ScriptedServer("a", tools=["x"], resources=["memo:1"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def refuse(method: str, uri: str) -> None:
            server.refuses((await server.hears(method))["id"], -32000, "busy", {"uri": uri, "n": 1})

        nursery.start_soon(refuse, "tools/call", "memo:2")
        with pytest.raises(Refusal) as refused:
            await client.call("a__x")
        assert refused.value.data == {"uri": "a+memo:2", "n": 1}
        nursery.start_soon(refuse, "resources/read", "memo:1")
        with pytest.raises(Refusal) as refused:
            await client.request("resources/read", {"uri": "memo:1"})
        assert refused.value.data == {"uri": "memo:1", "n": 1}  # as it was asked for


async def test_a_call_to_a_server_that_is_away_fails_at_once_and_says_why(autojump_clock: MockClock) -> None:
    """For a model that can be read as the outcome of its call; the list stays (rules 57, 58)."""
    server = ScriptedServer("a", tools=["x"], prompts=["p"])
    async with open_world(server) as world:
        client = await world.client()
        server.connections = -1
        server.dies()
        await wait_all_tasks_blocked()
        result = await client.call("a__x")
        assert result["isError"] is True
        assert "a is unavailable: the other end was closed; next attempt in 0." in result["content"][0]["text"]
        with pytest.raises(Refusal) as refused:
            await client.request("prompts/get", {"name": "a__p"})
        assert refused.value.code == 503
        assert await client.names() == ["a__x"]  # it keeps its place while it is away
        await trio.sleep(2)
        assert server.connections == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, "a__x")
            server.says((await server.hears("tools/call"))["id"], {"content": []})


async def test_a_call_in_flight_when_its_server_dies_fails_once(autojump_clock: MockClock) -> None:
    """It is not sent again when the server is back, and what answers it then is nobody's (rule 107)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call("a__x"))

        for _ in range(3):
            nursery.start_soon(call)
        for _ in range(3):
            await server.hears("tools/call")
        server.dies()
        await wait_all_tasks_blocked()
        assert len(results) == 3
        assert all(
            "the connection to a was lost during the request" in result["content"][0]["text"] for result in results
        )
        await trio.sleep(100)
        world.upstreams.ready_client("a")
        assert (len(results), server.connections) == (3, 2)
        server.hears_nothing_more()
        for id in range(10):
            server.sends(Success(id, Raw(b'{"content":[]}')))
        await wait_all_tasks_blocked()
        assert len(results) == 3
        nursery.start_soon(call)
        server.says((await server.hears("tools/call"))["id"], {"content": ["new"]})
        await wait_all_tasks_blocked()
        assert results[3:] == [{"content": ["new"]}]


async def test_cancelling_a_call_tells_its_server_alone_in_the_servers_own_id() -> None:
    """(rules 41, 45, 47)"""
    a, b = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["x"])
    async with open_world(a, b) as world, trio.open_nursery() as nursery:
        client = await world.client()
        outcome: list[Any] = []

        async def call(name: str, id: int | str) -> None:
            outcome.append(await client.request("tools/call", {"name": name}, id=id))

        nursery.start_soon(call, "a__x", "seven")
        mine = await a.hears("tools/call")
        nursery.start_soon(call, "b__x", 7)
        other = await b.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": "7"})  # a string is not a number
        client.notifies("notifications/cancelled", {"requestId": "seven", "reason": "changed my mind"})
        assert await a.hears("notifications/cancelled") == {"requestId": mine["id"], "reason": "changed my mind"}
        await wait_all_tasks_blocked()
        assert outcome == [None]
        b.hears_nothing_more()
        b.says(other["id"], {"content": []})
    assert outcome == [None, {"content": []}]


async def test_an_answer_that_comes_after_the_cancel_is_dropped(autojump_clock: MockClock) -> None:
    """It was on its way: it is only the second one that nobody can explain (rules 45, 47)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        outcome: list[Any] = []

        async def call() -> None:
            outcome.append(await client.request("tools/call", {"name": "a__x"}, id=1))

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": 1})
        await server.hears("notifications/cancelled")
        server.sends(Success(asked["id"], Raw(b"{}")))
        await wait_all_tasks_blocked()
        assert (outcome, world.journal.dropped) == ([None], {})
        server.sends(Success(asked["id"], Raw(b"{}")))
        await wait_all_tasks_blocked()
        assert (outcome, world.journal.dropped["a"]) == ([None], {"unknown id": 1})


async def test_an_id_in_flight_twice_is_served_twice_and_cancelled_never() -> None:
    """(rule 47)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        texts: list[Any] = []

        async def call(n: int) -> None:
            result = await client.request("tools/call", {"name": "a__x", "arguments": {"n": n}}, id=1)
            texts.append((n, result["content"]))

        for n in range(2):
            nursery.start_soon(call, n)
        asked = [await server.hears("tools/call") for _ in range(2)]
        client.notifies("notifications/cancelled", {"requestId": 1})
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        for each in asked:
            server.says(each["id"], {"content": [each["arguments"]["n"]]})
    assert sorted(texts) == [(0, [0]), (1, [1])]


@pytest.mark.parametrize("token", [7, "7", "a token"])
async def test_progress_comes_back_under_the_clients_token_and_only_while_it_grows(token: int | str) -> None:
    """(rules 42, 43)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def call() -> None:
            await client.call("a__x", _meta={"progressToken": token, "v/k": 1})

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        ours = asked["_meta"]["progressToken"]
        assert asked["_meta"]["v/k"] == 1
        for progress in (1, 2.5, 2.5, 2, 3):
            await server.notifies(
                "notifications/progress", {"progressToken": ours, "progress": progress, "message": "m"}
            )
        await server.notifies("notifications/progress", {"progressToken": ours + 1, "progress": 9})
        await wait_all_tasks_blocked()
        assert [params["progress"] for _, params in client.notifications] == [1, 2.5, 3]
        assert all(params["progressToken"] == token and params["message"] == "m" for _, params in client.notifications)
        assert all(type(params["progressToken"]) is type(token) for _, params in client.notifications)
        server.says(asked["id"], {"content": []})
    assert world.journal.dropped["a"] == {"unknown progress token": 1}


async def test_a_server_that_does_not_answer_is_called_off_at_the_deadline(autojump_clock: MockClock) -> None:
    """Progress puts the deadline off (rule 48)."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def call() -> None:
            began = trio.current_time()
            result = await client.call("a__x", _meta={"progressToken": 1})
            assert result["isError"] is True
            assert "did not respond within" in result["content"][0]["text"]
            assert trio.current_time() - began == pytest.approx(8, abs=0.1)

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        await trio.sleep(3)  # a report puts the deadline off
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        await trio.sleep(5.1)
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_progress_puts_the_deadline_off_no_further_than_the_ceiling(autojump_clock: MockClock) -> None:
    """(rule 48)"""
    server = ScriptedServer("a", tools=["x"], timeout=60.0)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        ended: list[float] = []

        async def call() -> None:
            await client.call("a__x", _meta={"progressToken": 1})
            ended.append(trio.current_time())

        began = trio.current_time()
        nursery.start_soon(call)
        token = (await server.hears("tools/call"))["_meta"]["progressToken"]
        for n in range(30):
            await trio.sleep(30)
            if not ended:
                await server.notifies("notifications/progress", {"progressToken": token, "progress": n})
        assert ended[0] - began == pytest.approx(600, abs=1)


async def test_a_cursor_goes_on_where_the_page_ended() -> None:
    """(rule 94)"""
    names = [f"t{n}" for n in range(2 * router_module.PAGE_SIZE + 3)]
    async with open_world(ScriptedServer("a", tools=names)) as world:
        client = await world.client()
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


@pytest.mark.parametrize("cursor", ["", "nonsense", "AAAA", 5, None, "é", "x" * 100_000])
async def test_a_bad_cursor_is_refused(cursor: object) -> None:
    """(rule 94)"""
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        client = await world.client()
        with pytest.raises(Refusal) as refused:
            await client.request("tools/list", {"cursor": cursor})
        assert refused.value.code == -32602


async def test_a_cursor_of_one_list_is_none_of_another() -> None:
    """(rule 94)"""
    names = [f"t{n}" for n in range(router_module.PAGE_SIZE + 1)]
    async with open_world(ScriptedServer("a", tools=names, prompts=names)) as world:
        client, alone = await world.client(), await world.client("a")
        cursor = (await client.request("tools/list"))["nextCursor"]
        for other, method in ((client, "prompts/list"), (alone, "tools/list")):
            with pytest.raises(Refusal, match="-32602"):
                await other.request(method, {"cursor": cursor})


async def test_pages_of_two_different_lists_never_make_one(autojump_clock: MockClock) -> None:
    """(rule 105)"""
    names = [f"t{n}" for n in range(router_module.PAGE_SIZE + 1)]
    server = ScriptedServer("a", tools=names)
    async with open_world(server) as world:
        client = await world.client()
        cursor = (await client.request("tools/list"))["nextCursor"]
        for n in range(router_module.MAX_PAST_VIEWS):
            server.lists["tools"].insert(0, tool(f"new{n}"))
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(20)
            last = (
                [entry["name"] for entry in (await client.request("tools/list", {"cursor": cursor}))["tools"]]
                if n + 1 < router_module.MAX_PAST_VIEWS
                else []
            )
            assert last in ([], [f"a__t{router_module.PAGE_SIZE}"])
            await client.request("tools/list")
        with pytest.raises(Refusal, match="-32602"):
            await client.request("tools/list", {"cursor": cursor})


async def test_a_web_uri_goes_to_the_one_server_that_lists_it() -> None:
    """(rule 67)"""

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "from a"}]}

    a = ScriptedServer("a", resources=["https://x/1", "https://x/2"], answers={"resources/read": read})
    b = ScriptedServer("b", resources=["https://x/2"], templates=["https://y/{z}"], answers={"resources/read": read})
    async with open_world(a, b) as world:
        client = await world.client()
        assert (await client.request("resources/read", {"uri": "https://x/1"}))["contents"][0]["text"] == "from a"
        await client.request("resources/read", {"uri": "https://y/anything"})
        assert await client.names("resources/list", "uri") == ["https://x/1"]  # the one that both list is neither's
        for uri in ("https://x/2", "https://z/"):
            with pytest.raises(Refusal, match="-32002"):
                await client.request("resources/read", {"uri": uri})


async def test_a_raw_uri_from_a_text_finds_the_one_server_that_lists_it() -> None:
    """(rule 67)"""

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}]}

    a = ScriptedServer("a", resources=["memo:1"], answers={"resources/read": read})
    async with open_world(a, ScriptedServer("b", resources=["other:1"])) as world:
        client = await world.client()
        assert (await client.request("resources/read", {"uri": "memo:1"}))["contents"][0]["uri"] == "a+memo:1"


async def test_completion_goes_to_the_owner_and_is_empty_where_none_is_offered() -> None:
    """(rule 70)"""

    async def complete(params: dict[str, Any]) -> object:
        assert params["ref"] == {"type": "ref/prompt", "name": "p"}
        assert params["context"] == {"arguments": {"a": "b"}}
        return {"completion": {"values": ["v"], "total": 1, "hasMore": False}}

    a = ScriptedServer("a", prompts=["p"], answers={"completion/complete": complete})
    b = ScriptedServer("b", prompts=["p"], capabilities={"prompts": {}})
    async with open_world(a, b) as world:
        client = await world.client()
        params = {"argument": {"name": "a", "value": ""}, "context": {"arguments": {"a": "b"}}}
        of_a = await client.request("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__p"}, **params})
        of_b = await client.request("completion/complete", {"ref": {"type": "ref/prompt", "name": "b__p"}, **params})
        assert of_a["completion"]["values"] == ["v"]
        assert of_b["completion"] == {"values": [], "total": 0, "hasMore": False}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": 5}),
        ("tools/call", {"name": "a__x", "_meta": 5}),
        ("tools/call", {"name": "a__x", "_meta": {"progressToken": 1.5}}),
        ("resources/read", {"uri": ["x"]}),
        ("completion/complete", {"ref": {"type": "ref/other", "name": "x"}}),
        ("completion/complete", {"ref": 7}),
        ("tools/list", []),
    ],
)
async def test_params_that_do_not_fit_are_refused_and_no_server_is_asked(method: str, params: object) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        client = await world.client()
        with pytest.raises(Refusal, match="-32602"):
            await client.request(method, params)
        server.hears_nothing_more()


@pytest.mark.parametrize("method", ["server/discover", "vendor/thing", "tasks/list", "", "Tools/list"])
async def test_a_method_that_is_not_served_is_refused(method: str) -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        client = await world.client()
        with pytest.raises(Refusal, match="-32601"):
            await client.request(method)


@pytest.mark.parametrize(("delay", "expected"), [(2.0, ["quick__x", "slow__x"]), (20.0, ["quick__x"])])
async def test_first_answers_wait_for_a_slow_server_but_no_longer_than_the_grace(
    delay: float, expected: list[str], autojump_clock: MockClock
) -> None:
    """(rule 57)"""

    async def slow(params: dict[str, Any]) -> object:
        await trio.sleep(delay)
        return {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}

    server = ScriptedServer("slow", tools=["x"], answers={"initialize": slow})
    async with open_world(ScriptedServer("quick", tools=["x"]), server) as world:
        began = trio.current_time()
        client = await world.client()
        assert await client.names() == expected
        assert trio.current_time() - began <= 3.01


async def test_instructions_are_merged_under_the_servers_ids() -> None:
    async with open_world(
        ScriptedServer("a", tools=["x"], instructions="Use x.", title="The A"),
        ScriptedServer("b", instructions="B" * 9000),
    ) as world:
        await world.router.wait_until_settled(None)
        merged = world.router.instructions(None)
        assert "## a (The A)\nUse x." in merged
        assert "## b\nBBB" in merged
        assert len(merged) <= 8192
        assert world.router.instructions("a") == "Use x."


# Every byte that is not ours

ODD = (
    b'{"z":1,"a":1.50,"e":1E400,"n":123456789012345678901234567890,"f":-0.0,"s":"\\ud83d","u":"\\u00e9 \xe2\x80\xa8",'
    b'"$ref":"#/$defs/x","x-mcp-header":"A","uri":"memo:1","name":"a__x","":{"deep":[[[{}]]]},  "spaced" :[ 1 ,2 ]}'
)
READABLE = ODD.replace(b"\\ud83d", b"\\u00e9")
"""The same without half of an emoji, which clients do not get: many could not read the message."""
"""What a library would write differently: order, number text, escapes, spaces."""


@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize(
    ("method", "entry", "members"),
    [
        ("tools/call", b'"name":"%s"', b'"arguments":%s,"vendor":%s'),
        ("prompts/get", b'"name":"%s"', b'"arguments":%s,"_meta":{"v/k":%s}'),
        ("resources/read", b'"uri":"%s"', b'"one":%s,"two":%s'),
        ("completion/complete", b'"ref":{"type":"ref/prompt","name":"%s"}', b'"argument":%s,"context":%s'),
    ],
)
async def test_every_byte_reaches_the_server_that_is_not_a_name(
    endpoint: str | None, method: str, entry: bytes, members: bytes
) -> None:
    """(rules 3, 4, 70)"""
    server = ScriptedServer("a", tools=["x"], prompts=["x"], resources=["x:1"])
    inward = b"x:1" if method == "resources/read" else b"x"
    outward = inward if endpoint else b"a+x:1" if method == "resources/read" else b"a__x"
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client(endpoint)
        sent = Request(1, method, Raw(b"{%s,%s}" % (entry % outward, members % (ODD, ODD))))
        nursery.start_soon(client.answer, sent)
        heard = await server.hears_undecoded(method)
        assert heard.params is not None
        assert bytes(heard.params) == b"{%s,%s}" % (entry % inward, members % (ODD, ODD))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize(
    ("method", "params", "before", "after"),
    [
        (
            "tools/call",
            '{"name":"%s"}',
            b'{"content":[{"type":"text","text":"memo:1","n":%s}],"structuredContent":%s,"_meta":{"v/k":%s},"x":%s}',
            b"",
        ),
        (
            "tools/call",
            '{"name":"%s"}',
            b'{"structuredContent":%s,"content":[{"uri":"memo:1","type":"resource_link","x":%s},{"x":%s}],"more":%s}',
            b'{"structuredContent":%s,"content":[{"uri":"a+memo:1","type":"resource_link","x":%s},{"x":%s}],"more":%s}',
        ),
        (
            "prompts/get",
            '{"name":"%s"}',
            b'{"description":%s,"messages":[{"role":"user","content":{"type":"text","text":%s}}],"a":%s,"b":%s}',
            b"",
        ),
        (
            "resources/read",
            '{"uri":"%s"}',
            b'{"contents":[{"uri":"memo:1","text":%s,"blob":%s,"_meta":{"ui":{"csp":%s}},"x":%s}]}',
            b'{"contents":[{"uri":"a+memo:1","text":%s,"blob":%s,"_meta":{"ui":{"csp":%s}},"x":%s}]}',
        ),
        (
            "completion/complete",
            '{"ref":{"type":"ref/prompt","name":"%s"},"argument":{}}',
            b'{"completion":{"values":[%s,%s],"total":%s},"x":%s}',
            b"",
        ),
    ],
)
async def test_every_byte_comes_back_that_is_not_a_uri(
    endpoint: str | None, method: str, params: str, before: bytes, after: bytes
) -> None:
    """(rules 3, 4, 59, 70)"""
    server = ScriptedServer("a", tools=["x"], prompts=["x"], resources=["x:1"])
    inward = "x:1" if method == "resources/read" else "x"
    outward = inward if endpoint else "a+x:1" if method == "resources/read" else "a__x"
    filled = (READABLE,) * 4
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client(endpoint)

        async def answer() -> None:
            asked = await server.hears(method)
            server.sends(Success(asked["id"], Raw(before % filled)))

        nursery.start_soon(answer)
        answered = await client.answer(Request(1, method, Raw((params % outward).encode())))
        assert isinstance(answered, Success)
        assert bytes(answered.result) == (after if after and not endpoint else before) % filled


async def test_every_byte_of_an_error_comes_back_that_is_not_its_uri() -> None:
    """(rules 4, 65)"""
    odd = READABLE
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def answer() -> None:
            for data in (b'{"x":%s,"uri":"memo:1"}' % odd, b"[%s]" % odd, None):
                asked = await server.hears("tools/call")
                raw = None if data is None else Raw(data)
                server.sends(Failure(ErrorBody(-32000, "it says: memo:1 \u2028", raw), asked["id"]))

        nursery.start_soon(answer)
        for expected in (b'{"x":%s,"uri":"a+memo:1"}' % odd, b"[%s]" % odd, None):
            answered = await client.answer(Request(1, "tools/call", Raw(b'{"name":"a__x"}')))
            assert isinstance(answered, Failure)
            assert (answered.error.code, answered.error.message) == (-32000, "it says: memo:1 \u2028")
            assert (None if answered.error.data is None else bytes(answered.error.data)) == expected


async def test_a_definition_keeps_its_bytes_but_for_its_name_and_its_page() -> None:
    """Schemas are nobody's to tidy (rules 4, 56)."""
    odd = READABLE.replace(b"1E400", b"1E40")  # in a definition, numbers are such as every reader can hold
    schema = b'{"$schema":"x","type":"object","properties":{"b":%s,"a":{"x-mcp-header":"A"}},"$defs":{}}' % odd
    whole = b'{"inputSchema":%s,"name":"%s","outputSchema":%s,"annotations":{"title":"T"},"icons":[],"_meta":{%s}}'
    page = b'"ui":{"resourceUri":"%s","v":1.50},"ui/resourceUri":"%s"'

    async def answer(params: dict[str, Any]) -> object:
        return Raw(b'{"tools":[%s]}' % (whole % (schema, b"x", schema, page % ((b"ui://p",) * 2))))

    async with open_world(ScriptedServer("a", tools=["unused"], answers={"tools/list": answer})) as world:
        client = await world.client()
        answered = await client.answer(Request(1, "tools/list"))
        assert isinstance(answered, Success)
        expected = whole % (schema, b"a__x", schema, page % ((b"ui://a+p",) * 2))
        assert bytes(answered.result) == b'{"tools":[%s]}' % expected


async def test_a_call_that_asks_to_be_a_task_is_a_plain_call() -> None:
    """No task is served, so that a server that has them must not make one of it (rule 60)."""
    server = ScriptedServer("a", tools=["x"], prompts=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(partial(client.call, task={"ttl": 1}, other=1), "a__x", {"task": 2})
        asked = await server.hears("tools/call")
        assert asked == {"id": asked["id"], "name": "x", "arguments": {"task": 2}, "other": 1}
        nursery.start_soon(client.request, "prompts/get", {"name": "a__x", "task": 3})
        assert (await server.hears("prompts/get"))["task"] == 3  # only calls can be tasks: this is something else
        nursery.cancel_scope.cancel()


async def test_a_prompts_arguments_are_untouched_and_its_links_can_be_brought_back() -> None:
    """(rules 65, 69)"""
    arguments = {"uri": "memo:1", "name": "a__p", "n": "1.50"}

    async def get(params: dict[str, Any]) -> object:
        assert params == {"name": "p", "arguments": arguments}
        return {
            "description": "memo:1",
            "messages": [
                {"role": "user", "content": {"type": "resource_link", "uri": "memo:1", "name": "one"}},
                {"role": "user", "content": {"type": "resource", "resource": {"uri": "memo:2", "text": "memo:3"}}},
                {"role": "assistant", "content": {"type": "text", "text": "memo:4"}},
            ],
        }

    async with open_world(ScriptedServer("a", prompts=["p"], answers={"prompts/get": get})) as world:
        client = await world.client()
        result = await client.request("prompts/get", {"name": "a__p", "arguments": arguments})
        contents = [message["content"] for message in result["messages"]]
        assert contents[0] == {"type": "resource_link", "uri": "a+memo:1", "name": "one"}
        assert contents[1]["resource"] == {"uri": "a+memo:2", "text": "memo:3"}
        assert (contents[2]["text"], result["description"]) == ("memo:4", "memo:1")


# Older clients

REVISIONS = list(LEGACY)
OLDER = REVISIONS[:2]


@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tools_promise_only_what_a_client_can_take(revision: str, endpoint: str | None) -> None:
    """No tasks of a server that runs none, and no structure to those who do not know it (rules 60, 61)."""
    own = tool("x", outputSchema={"type": "object"}, execution={"taskSupport": "required"}, title="X")
    async with open_world(ScriptedServer("a", tools=[own, "y"])) as world:
        old, new = await world.client(endpoint, revision), await world.client(endpoint)
        for _ in range(2):  # one client's view is not another's
            first, second = (await old.request("tools/list"))["tools"]
            assert ("outputSchema" in first) is (revision not in OLDER)
            assert "execution" not in first
            assert (first["title"], second) == ("X", tool("y" if endpoint else "a__y"))
            assert "outputSchema" in (await new.request("tools/list"))["tools"][0]


@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_results_are_in_words_that_a_client_has(revision: str, endpoint: str | None) -> None:
    """With the URIs that it can bring back (rules 59, 61)."""
    link = {"type": "resource_link", "uri": "memo:1", "name": "one", "mimeType": "text/plain"}
    sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}

    async def call(params: dict[str, Any]) -> object:
        return {"content": [link, sound], "structuredContent": {"n": 1}}

    async def get(params: dict[str, Any]) -> object:
        return {"messages": [{"role": "user", "content": block} for block in (link, sound)]}

    server = ScriptedServer("a", tools=["x"], prompts=["x"], answers={"tools/call": call, "prompts/get": get})
    name = "x" if endpoint else "a__x"
    uri = "memo:1" if endpoint else "a+memo:1"
    async with open_world(server) as world:
        client = await world.client(endpoint, revision)
        result = await client.call(name)
        messages = (await client.request("prompts/get", {"name": name}))["messages"]
        said = {"type": "text", "text": f"one: {uri} (text/plain)"}
        expected_link = said if revision in OLDER else {**link, "uri": uri}
        assert result["content"][0] == messages[0]["content"] == expected_link
        if revision == REVISIONS[0]:
            made = {"uri": "audio:1", "mimeType": "audio/wav", "blob": "AAAA"}
            assert result["content"][1] == messages[1]["content"] == {"type": "resource", "resource": made}
        else:
            assert result["content"][1] == messages[1]["content"] == sound
        if revision in OLDER:
            assert "structuredContent" not in result
        else:
            assert result["structuredContent"] == {"n": 1}
            assert len(result["content"]) == 2


async def test_a_result_that_is_structure_alone_is_text_for_those_who_do_not_know_it() -> None:
    """(rule 61)"""

    async def call(params: dict[str, Any]) -> object:
        return {"content": [], "structuredContent": {"n": 1}}

    async with open_world(ScriptedServer("a", tools=["x"], answers={"tools/call": call})) as world:
        client = await world.client(revision=OLDER[0])
        result = await client.call("a__x")
        assert [json.loads(block["text"]) for block in result["content"]] == [{"n": 1}]


# Cursors


def many() -> list[str]:
    return [f"t{n}" for n in range(router_module.PAGE_SIZE + 1)]


async def test_a_cursor_is_good_for_whoever_it_was_given_to_and_nobody_else() -> None:
    """A session is not an identity: whoever has the token may go on elsewhere (rule 94)."""
    async with open_world(ScriptedServer("a", tools=many())) as world:
        clients = {name: await world.client(identity=name) for name in ("ann", "bob", None, "")}
        cursors = {name: (await each.request("tools/list"))["nextCursor"] for name, each in clients.items()}
        for owner, cursor in cursors.items():
            for name, client in clients.items():
                if name == owner:
                    last = await client.request("tools/list", {"cursor": cursor})
                    assert [entry["name"] for entry in last["tools"]] == [f"a__t{router_module.PAGE_SIZE}"]
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


async def test_no_letter_of_a_cursor_can_be_changed() -> None:
    """(rule 94)"""
    async with open_world(ScriptedServer("a", tools=many())) as world:
        client = await world.client()
        cursor = (await client.request("tools/list"))["nextCursor"]
        for at, letter in enumerate(cursor.rstrip("=")):
            changed = cursor[:at] + ("B" if letter == "A" else "A") + cursor[at + 1 :]
            with pytest.raises(Refusal, match="-32602"):
                await client.request("tools/list", {"cursor": changed})
        assert await client.request("tools/list", {"cursor": cursor})


# What a server's errors become

PAGES: dict[str, list[dict[str, object]]] = {
    "elicitations": [
        {"mode": "url", "elicitationId": "e1", "url": "https://x/1", "message": "Log in", "more": 1.5},
        {"mode": "url", "elicitationId": "e2", "url": "https://x/2", "message": "Pay"},
    ]
}
REACHING: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "a__x"}),
    ("prompts/get", {"name": "a__x"}),
    ("resources/read", {"uri": "a+x:1"}),
    ("resources/subscribe", {"uri": "a+x:1"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__x"}, "argument": {}}),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a+x:1"}, "argument": {}}),
]
"""Every request that one server answers."""


def refusing(code: int, message: str, data: object = None, **spec: Any) -> ScriptedServer:
    """A server that refuses whatever reaches it."""

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(code, message, None if data is None else Raw(json.dumps(data).encode())))

    return ScriptedServer(
        "a",
        tools=["x"],
        prompts=["x"],
        resources=["x:1"],
        capabilities={"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}},
        answers={method: refuse for method, _ in REACHING},
        **spec,
    )


COMPLETION = "completion/complete"
TARGET_KINDS = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}


async def told(client: ScriptedClient, method: str, params: object) -> str:
    """The error that a request ends with, or the text of a tool's: `code message data`; or the completed values."""
    try:
        result = await client.request(method, params)
    except Refusal as refusal:
        return f"{refusal.code} {refusal.message} {refusal.data}"
    if method == COMPLETION:
        return str(result["completion"]["values"])
    assert result["isError"] is True
    return f"isError {result['content'][0]['text']} None"


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("elicitation", [None, {}, {"url": {}}])
@pytest.mark.parametrize(("method", "params"), REACHING)
async def test_pages_are_shown_to_clients_that_can_if_the_server_may_want_that(
    trust: Trust, elicitation: dict[str, object] | None, method: str, params: object
) -> None:
    """To those who cannot it is said in words, and so it is for a subscription, which may be several clients'. For a
    server that is not trusted a person is asked first, where anybody may be asked; for an untrusted one it is not even
    said (rules 74, 76)."""
    async with open_world(refusing(-32042, "go there", PAGES, trust=trust)) as world:
        client = await world.client(capabilities={} if elicitation is None else {"elicitation": elicitation})
        world.approves()
        alone = "" if trust is Trust.TRUSTED else await told(client, method, params)
        if alone:
            assert "https:" not in alone
            if trust is Trust.UNTRUSTED:
                assert method == COMPLETION or "needs a person's consent" in alone
            elif method in ("resources/subscribe", COMPLETION):
                assert alone.startswith("403 a wants a web page")
            else:
                assert alone.startswith(
                    ("isError a's request to have a page visited", "408 a's request to have a page visit")
                )
        with world.auto_answering() as asked:
            said = await told(client, method, params)
        kinds = [pending.access.kind for pending in asked]
        if trust is Trust.UNTRUSTED:
            assert "https:" not in said
            if method == "resources/subscribe":
                assert "needs a person's consent" in said
            else:
                assert (
                    said == "[]" if method == COMPLETION else said.startswith(("isError a wants a web page", "403 a"))
                )
            assert kinds == [] if method in ("resources/subscribe", COMPLETION) else [TARGET_KINDS[method]]
            return
        if trust is Trust.STANDARD and method in ("resources/subscribe", COMPLETION):
            assert (said, kinds) == (alone, [])
            return
        assert kinds == ([] if trust is Trust.TRUSTED else ["url", "url"])
        if elicitation == {"url": {}} and method != "resources/subscribe":
            with world.auto_answering(), pytest.raises(Refusal) as refused:
                await client.request(method, params)
            assert (refused.value.code, refused.value.message) == (-32042, "go there")
            pages = refused.value.data["elicitations"]
            assert [{**page, "elicitationId": ""} for page in pages] == [
                {**page, "elicitationId": "", "message": f"[a] {page['message']}"} for page in PAGES["elicitations"]
            ]
            assert not {page["elicitationId"] for page in pages} & {"e1", "e2"}
        else:
            assert said.startswith(("isError a wants this to be visited first", "403 a wants this to be visited first"))
            assert all(f"{page['message']} {page['url']}" in said for page in PAGES["elicitations"])


@pytest.mark.parametrize("data", [None, {}, {"elicitations": 5}, {"elicitations": [{"url": "https://x"}]}, "https://x"])
async def test_pages_that_cannot_be_read_are_shown_to_nobody(data: object) -> None:
    """An id that is missing cannot be renamed (rule 76)."""
    async with open_world(refusing(-32042, "go there", data, trust=Trust.TRUSTED)) as world:
        elicitations: list[dict[str, object]] = [{}, {"url": {}}]
        for elicitation in elicitations:
            client = await world.client(capabilities={"elicitation": elicitation})
            said = await told(client, "tools/call", {"name": "a__x"})
            assert "https:" not in said
            assert "go there" in said


@pytest.mark.parametrize("pages", [MAX_KEYS, MAX_KEYS + 1, 1])
async def test_a_client_that_asks_again_is_given_no_more_pages_than_it_can_carry(pages: int) -> None:
    """Neither too many nor too long ones (rule 5)."""
    long = "x" * MAX_STATE if pages == 1 else ""
    wanted = [{**PAGES["elicitations"][0], "url": f"https://x/{at}", "message": f"m{long}"} for at in range(pages)]
    async with open_world(refusing(-32042, "go there", {"elicitations": wanted}, trust=Trust.TRUSTED)) as world:
        came = await world.mrtr_round("tools/call", {"name": "a__x"}, capabilities={"elicitation": {"url": {}}})
        if pages == MAX_KEYS:
            assert isinstance(came, InputRequired)
            assert (came.server, len(came.requests), came.state, came.restarts) == ("a", MAX_KEYS, None, True)
        else:
            assert isinstance(came, Answered)
            assert b"too many pages" in bytes(came.result)


@pytest.mark.parametrize(("method", "params"), REACHING)
@pytest.mark.parametrize("code", [-32029, -32022, -32021, -32020])
async def test_what_a_server_says_of_its_own_hop_is_an_internal_error(
    code: int, method: str, params: dict[str, Any]
) -> None:
    """A client would believe that it is at odds with us."""
    async with open_world(refusing(code, "the header is missing", {"n": 1})) as world:
        client = await world.client()
        assert await told(client, method, params) == "-32603 the header is missing {'n': 1}"


@pytest.mark.parametrize(("method", "params"), REACHING)
@pytest.mark.parametrize(("code", "message"), [(-32099, "not today"), (7, "odd"), (-32700, "x"), (2**53, "huge")])
async def test_any_other_code_is_the_servers_own_and_its_uri_one_to_bring_back(
    code: int, message: str, method: str, params: dict[str, Any]
) -> None:
    """(rules 4, 65)"""
    async with open_world(refusing(code, message, {"uri": "x:1", "n": 1})) as world:
        client = await world.client()
        assert await told(client, method, params) == f"{code} {message} {{'uri': 'a+x:1', 'n': 1}}"


@pytest.mark.parametrize(
    ("code", "message"),
    [(-32002, "no"), (-32602, "x:1 is unknown"), (0, "Unknown resource: x:1"), (-32603, "No such file: x:1")],
)
@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe"])
async def test_however_a_server_says_it_a_missing_resource_is_missing(code: int, message: str, method: str) -> None:
    """With the URI as the client wrote it (rules 65, 68)."""
    async with open_world(refusing(code, message, {"uri": "x:1"})) as world:
        for endpoint, uri in ((None, "a+x:1"), (None, "x:1"), ("a", "x:1")):
            client = await world.client(endpoint)
            assert await told(client, method, {"uri": uri}) == f"-32002 Resource not found {{'uri': '{uri}'}}"


# What is denied, away or not offered


async def test_annotations_decide_nothing() -> None:
    """Whatever a tool says of itself, it is listed, reached and denied like any other (rule 63)."""
    said = [
        {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
        {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
        {"title": "safe"},
        None,
        "trusted",
    ]
    tools = [tool(f"{name}{n}", annotations=each) for name in ("x", "denied") for n, each in enumerate(said)]
    consent = Consent(tools=kind(deny=("denied*",)))
    async with open_world(ScriptedServer("a", tools=tools, answers={"tools/call": echo}, consent=consent)) as world:
        client = await world.client()
        assert await client.names() == [f"a__x{n}" for n in range(len(said))]
        for n in range(len(said)):
            assert (await client.call(f"a__x{n}"))["_meta"] == {"saw": f"x{n}"}
            with pytest.raises(Refusal, match=f"-32602 Unknown tool: a__denied{n}"):
                await client.call(f"a__denied{n}")


WATCHABLE = {"resources": {"subscribe": True}}


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, -32602),
        ({"uri": 5}, -32602),
        ([], -32602),
        ({"uri": ""}, -32002),
        ({"uri": "nobodys:1"}, -32002),
        ({"uri": "b+memo:1"}, -32002),
        ({"uri": "a+secret:1"}, -32002),
    ],
)
async def test_what_cannot_be_watched_is_refused_and_no_server_asked(method: str, params: Any, code: int) -> None:
    server = ScriptedServer(
        "a",
        resources=["memo:1", "secret:1"],
        capabilities=WATCHABLE,
        consent=Consent(resources=kind(deny=("secret:**",))),
    )
    async with open_world(server) as world:
        client = await world.client()
        with pytest.raises(Refusal) as refused:
            await client.request(method, params)
        assert refused.value.code == code
        assert method not in server.asked


async def test_a_server_that_tells_of_no_changes_is_not_asked_to() -> None:
    server = ScriptedServer("a", resources=["memo:1"])
    async with open_world(server) as world:
        client = await world.client()
        with pytest.raises(Refusal, match="-32601 a has no resource subscriptions"):
            await client.request("resources/subscribe", {"uri": "a+memo:1"})
        assert await client.request("resources/unsubscribe", {"uri": "a+memo:1"}) == {}
        assert "resources/subscribe" not in server.asked


async def test_what_a_server_refuses_to_tell_of_is_not_watched() -> None:
    """Whoever asked is told, and the next who asks is tried again (rule 88)."""
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE)

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32000, "not today"))

    server.answers["resources/subscribe"] = refuse
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        for _ in range(2):
            with pytest.raises(Refusal, match="-32000 not today"):
                await client.request("resources/subscribe", {"uri": "a+memo:1"})
        await server.notifies("notifications/resources/updated", {"uri": "memo:1"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == []
        assert server.asked.count("resources/subscribe") == 2
        del server.answers["resources/subscribe"]
        assert await client.request("resources/subscribe", {"uri": "a+memo:1"}) == {}
        await server.notifies("notifications/resources/updated", {"uri": "memo:1", "v/k": 1})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == [{"uri": "a+memo:1", "v/k": 1}]
        nursery.cancel_scope.cancel()


async def test_everybody_who_waits_for_one_subscription_is_refused_in_its_own_names() -> None:
    """(rules 65, 88)"""
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE)
    go_on = trio.Event()

    async def refuse(params: dict[str, Any]) -> object:
        await go_on.wait()
        raise PeerError(ErrorBody(-32000, "not now", encode({"uri": params["uri"]})))

    server.answers["resources/subscribe"] = refuse
    async with open_world(server) as world, trio.open_nursery() as nursery:
        waiting = []
        for endpoint, uri in ((None, "a+memo:1"), ("a", "memo:1")) * 3:
            client = await world.client(endpoint)
            waiting.append((uri, later(nursery, client.request, "resources/subscribe", {"uri": uri})))
        await wait_all_tasks_blocked()
        go_on.set()
        for uri, each in waiting:
            with pytest.raises(Refusal) as refused:
                await each.comes()
            assert (refused.value.code, refused.value.data) == (-32000, {"uri": uri})
        assert server.asked.count("resources/subscribe") == 1


async def test_a_part_of_what_is_watched_is_told_under_its_outward_uri_and_never_what_is_denied() -> None:
    """(rules 65, 66)"""
    deny = Consent(resources=kind(deny=("memo:1/secret",)))
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE, consent=deny)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client, alone = await world.client(), await world.client("a")
        for each, uri in ((client, "memo:1"), (alone, "memo:1")):
            nursery.start_soon(each.listen_changes)
            await each.request("resources/subscribe", {"uri": uri})
        for uri in ("memo:1", "memo:1/part", "memo:1/secret", "https://x"):
            await server.notifies("notifications/resources/updated", {"uri": uri})
        await wait_all_tasks_blocked()
        method = "notifications/resources/updated"
        # A client that wrote the server's own URI is told the one that it wrote.
        assert [params["uri"] for params in client.notifications_of(method)] == ["memo:1", "a+memo:1/part", "https://x"]
        assert [params["uri"] for params in alone.notifications_of(method)] == ["memo:1", "memo:1/part", "https://x"]
        nursery.cancel_scope.cancel()


async def test_a_watch_is_ended_while_its_server_is_away(autojump_clock: MockClock) -> None:
    """(rule 88)"""
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE)
    async with open_world(server) as world:
        client = await world.client()
        await client.request("resources/subscribe", {"uri": "a+memo:1"})
        server.dies()
        await wait_all_tasks_blocked()
        with pytest.raises(Refusal, match="503 a is unavailable"):
            await client.request("resources/subscribe", {"uri": "a+memo:2"})
        assert await client.request("resources/unsubscribe", {"uri": "a+memo:1"}) == {}
        await trio.sleep(100)
        world.upstreams.ready_client("a")
        assert server.asked.count("resources/subscribe") == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/subscribe", {"uri": "a+memo:1"}),
        ("resources/unsubscribe", {"uri": "a+memo:1"}),
        ("logging/setLevel", {"level": "info"}),
    ],
)
async def test_what_only_a_session_can_keep_is_refused_without_one(method: str, params: object) -> None:
    server = ScriptedServer("a", tools=["x"], resources=["memo:1"], capabilities={**WATCHABLE, "tools": {}})
    async with open_world(server) as world:
        session = Session("test", None, world.router, world.journal, memory=world.memory)
        session.skip_handshake()
        client = ScriptedClient(session)
        assert await client.names() == ["a__x"]
        with pytest.raises(Refusal, match="-32600 this belongs to a session"):
            await client.request(method, params)
        assert method not in server.asked


@pytest.mark.parametrize("params", [{}, {"level": "loud"}, {"level": "DEBUG"}, {"level": 3}, {"level": None}, []])
async def test_a_level_that_is_none_is_refused_and_changes_nothing(params: object) -> None:
    """(rule 82)"""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_world(server) as world:
        client = await world.client()
        assert await client.request("logging/setLevel", {"level": "error"}) == {}
        await wait_all_tasks_blocked()
        with pytest.raises(Refusal, match="-32602"):
            await client.request("logging/setLevel", params)
        await wait_all_tasks_blocked()
        assert server.asked.count("logging/setLevel") == 1
        assert client.session.level == "error"


async def test_a_level_is_set_whatever_servers_say_to_it() -> None:
    """Nobody waits for them (rule 82)."""

    async def hang(params: dict[str, Any]) -> object:
        await trio.sleep_forever()

    server = ScriptedServer("a", capabilities={"logging": {}}, answers={"logging/setLevel": hang})
    async with open_world(server, ScriptedServer("b", tools=["x"])) as world:
        client = await world.client()
        assert await client.request("logging/setLevel", {"level": "debug"}) == {}
        await wait_all_tasks_blocked()
        assert server.asked.count("logging/setLevel") == 1
        assert "logging/setLevel" not in world.servers["b"].asked


async def test_no_server_hears_of_another() -> None:
    """Neither names nor errors, instructions, logs or whoever asks (rules 51, 54, 98, 101)."""
    heard: dict[str, list[str]] = {"a": [], "b": []}

    def answering(id: str) -> dict[str, Any]:
        def answer(method: str) -> Any:
            async def note(params: dict[str, Any]) -> object:
                heard[id].append(f"{method} {json.dumps(params)}")
                if params.get("name") == "bad":
                    raise PeerError(ErrorBody(-32000, f"the error of {id}"))
                return {"content": [{"type": "text", "text": f"the words of {id}"}]}

            return note

        methods = ("tools/call", "tools/list", "resources/subscribe", "completion/complete", "logging/setLevel")
        return {method: answer(method) for method in methods if method != "tools/list"}

    servers = [
        ScriptedServer(
            id,
            tools=["x", "bad"],
            resources=[f"memo:{id}"],
            capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}},
            instructions=f"the instructions of {id}",
            title=f"Title {id.upper()}",
            answers=answering(id),
        )
        for id in ("a", "b")
    ]
    async with open_world(*servers) as world:
        client = await world.client(identity="the-token-of-ann", capabilities={"roots": {}})
        await client.request("logging/setLevel", {"level": "debug"})
        for id in ("a", "b"):
            meta = {"io.modelcontextprotocol/clientInfo": {"name": "desk"}, "progressToken": "ours"}
            await client.call(f"{id}__x", _meta=meta)
            with pytest.raises(Refusal):
                await client.call(f"{id}__bad")
            await client.request("resources/subscribe", {"uri": f"{id}+memo:{id}"})
            await servers[0].notifies("notifications/message", {"level": "error", "data": f"the log of {id}"})
        await wait_all_tasks_blocked()
        for server, other in zip(servers, reversed(servers), strict=True):
            everything = "\n".join([*heard[server.id], json.dumps(server.initialize_params)])
            assert len(heard[server.id]) == 4
            for foreign in (f"of {other.id}", f"memo:{other.id}", f"{other.id}__", f"Title {other.id.upper()}"):
                assert foreign not in everything
            for private in ("ann", "desk", "ours", "session", "test", f"{server.id}__", f"{server.id}+"):
                assert private not in everything


# Races


@pytest.mark.parametrize("endpoint", [None, "a"])
async def test_a_name_that_is_gone_is_unknown_and_the_list_is_read_again(
    endpoint: str | None, autojump_clock: MockClock
) -> None:
    """And one that another server has now is that server's (rule 106)."""
    a = ScriptedServer("a", tools=["x", "stays"], answers={"tools/call": echo})
    b = ScriptedServer("b", tools=["y"])
    async with open_world(a, b) as world:
        client = await world.client(endpoint)
        name = (await client.names())[0]
        a.lists["tools"] = [tool("stays"), tool("new")]
        b.lists["tools"].append(tool("x"))
        for server in (a, b):
            await server.notifies("notifications/tools/list_changed")
        await trio.sleep(20)
        a.asked.clear()
        with pytest.raises(Refusal, match=f"-32602 Unknown tool: {name}"):
            await client.call(name)
        b.hears_nothing_more()
        await trio.sleep(20)
        assert a.asked == ["tools/list"]
        assert "tools/call" not in a.asked


async def test_a_name_that_nobody_announced_is_there_after_it_was_asked_for(autojump_clock: MockClock) -> None:
    """(rule 106)"""
    server = ScriptedServer("a", tools=["x"], answers={"tools/call": echo})
    async with open_world(server) as world:
        client = await world.client()
        server.lists["tools"].append(tool("new"))
        with pytest.raises(Refusal, match="-32602"):
            await client.call("a__new")
        await trio.sleep(20)
        assert (await client.call("a__new"))["_meta"] == {"saw": "new"}


async def test_nothing_is_said_for_a_call_after_its_answer(autojump_clock: MockClock) -> None:
    """Neither progress nor log messages that come behind it, in one piece with it or later (rules 43, 104)."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        order: list[object] = []

        def hear(message: Notification | Request) -> bool:
            order.append(message.method)
            return True

        async def call() -> None:
            asked = Request(1, "tools/call", Raw(b'{"name":"a__x","_meta":{"progressToken":1}}'))
            await client.session.answer(asked, client.session.begin(asked), hear)
            order.append("answer")

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        token = asked["_meta"]["progressToken"]

        def say(n: int) -> None:
            progress = encode({"progressToken": token, "progress": n})
            server.sends(Notification("notifications/progress", progress))
            server.sends(Notification("notifications/message", Raw(b'{"level":"error","data":1}')))

        say(1)
        server.sends(Success(asked["id"], Raw(b'{"content":[]}')))
        say(2)
        await wait_all_tasks_blocked()
        assert order[:2] == ["notifications/progress", "notifications/message"]
        assert order.count("notifications/message") == 1
        assert order[-1] == "answer"
        said = len(order)
        say(3)
        await wait_all_tasks_blocked()
        assert len(order) == said


async def test_nothing_is_said_for_a_call_that_was_called_off(autojump_clock: MockClock) -> None:
    """However much the server still says (rule 47)."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(partial(client.request, id=9), "tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
        asked = await server.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": 9})
        params = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        for _ in range(2):
            await server.notifies("notifications/progress", params)
            await server.notifies("notifications/message", {"level": "error", "data": 1})
            with pytest.raises(Refusal, match=r"-3260[12]"):
                await server.asks("elicitation/create", {"message": "m", "requestedSchema": {}})
            await wait_all_tasks_blocked()
        server.says(asked["id"], {"content": []})
        await wait_all_tasks_blocked()
        assert (client.notifications, client.server_requests) == ([], [])


async def test_whoever_is_told_of_a_change_finds_it_made(autojump_clock: MockClock) -> None:
    """The list is read again before anybody hears (rule 97)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        found: list[list[str]] = []

        async def follow() -> None:
            seen = 0
            while True:
                await trio.sleep(0.01)
                if len(client.notifications) > seen:
                    seen = len(client.notifications)
                    found.append(await client.names())

        nursery.start_soon(follow)
        for name in ("y", "z"):
            server.lists["tools"].append(tool(name))
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(20)
        assert found == [["a__x", "a__y"], ["a__x", "a__y", "a__z"]]
        assert [method for method, _ in client.notifications] == ["notifications/tools/list_changed"] * 2
        nursery.cancel_scope.cancel()


FIRST: list[tuple[str, dict[str, Any], str]] = [
    ("tools/call", {"name": "late__x"}, "late"),
    ("prompts/get", {"name": "late__p"}, "late"),
    ("resources/read", {"uri": "late+x:1"}, "late"),
    ("resources/read", {"uri": "x:1"}, "any"),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "late__p"}, "argument": {}}, "late"),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": "late+x:1"}, "argument": {}}, "late"),
]
"""What may be the first that a client without a session asks, and whose it is to answer."""


def starting(seconds: float, id: str = "late") -> ScriptedServer:
    """A server that takes so long to start."""

    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(seconds)
        offers: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
        return {"protocolVersion": REVISION, "capabilities": offers, "serverInfo": {}}

    async def answer(params: dict[str, Any]) -> object:
        return {"content": [], "messages": [], "contents": [], "completion": {"values": []}}

    answers = dict.fromkeys(("tools/call", "prompts/get", "resources/read", "completion/complete"), answer)
    return ScriptedServer(
        id, tools=["x"], prompts=["p"], resources=["x:1"], answers={**answers, "initialize": initialize}
    )


@pytest.mark.parametrize("endpoint", [None, "late"])
@pytest.mark.parametrize(("method", "params", "whose"), FIRST)
async def test_what_is_asked_right_after_the_start_waits_for_its_server(
    method: str, params: dict[str, Any], whose: str, endpoint: str | None, autojump_clock: MockClock
) -> None:
    """And for no other, unless any might have it (rule 111)."""
    if endpoint is not None:
        params = json.loads(json.dumps(params).replace("late__", "").replace("late+", ""))
    async with open_world(starting(2), starting(30, "later")) as world:
        began = trio.current_time()
        assert isinstance(await world.mrtr_round(method, params, endpoint=endpoint), Answered)
        waited = 3 if whose == "any" and endpoint is None else 2
        assert trio.current_time() - began == pytest.approx(waited, abs=0.01)
        before = trio.current_time()
        await world.mrtr_round(method, params, endpoint=endpoint)
        assert trio.current_time() == before


@pytest.mark.parametrize(("method", "params", "whose"), FIRST)
async def test_it_waits_no_longer_than_the_grace(
    method: str, params: dict[str, Any], whose: str, autojump_clock: MockClock
) -> None:
    """Then it hears that the server is still starting, and later ones hear it at once (rule 111)."""
    async with open_world(starting(30)) as world:
        for waited in (3, 0):
            began = trio.current_time()
            try:
                said = bytes((await _answered(world, method, params)).result).decode()
            except (Unavailable, ResourceNotFound) as problem:
                said = problem.message
            assert "it is still starting" in said or (whose == "any" and "not found" in said)
            assert trio.current_time() - began == pytest.approx(waited, abs=0.01)


async def test_what_is_no_servers_waits_for_nobody(autojump_clock: MockClock) -> None:
    async with open_world(starting(30)) as world:
        for name in ("nobody__x", "x", "__"):
            with pytest.raises(UnknownEntry):
                await world.mrtr_round("tools/call", {"name": name})
        assert trio.current_time() == 0


async def _answered(world: World, method: str, params: dict[str, Any]) -> Answered:
    answer = await world.mrtr_round(method, params)
    assert isinstance(answer, Answered)
    return answer


async def test_a_server_that_comes_late_is_announced(autojump_clock: MockClock) -> None:
    """Whoever asked before has been given the list without it (rules 57, 111)."""

    async def late(params: dict[str, Any]) -> object:
        await trio.sleep(10)
        return {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": {}}

    server = ScriptedServer("late", tools=["x"], answers={"initialize": late})
    async with open_world(ScriptedServer("a", tools=["x"]), server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        assert await client.names() == ["a__x"]
        result = await client.call("late__x")
        assert result["isError"] is True
        assert "late is unavailable: it is still starting" in result["content"][0]["text"]
        await trio.sleep(20)
        assert [method for method, _ in client.notifications] == ["notifications/tools/list_changed"]
        assert await client.names() == ["a__x", "late__x"]
        nursery.cancel_scope.cancel()


async def test_pages_of_one_list_are_one_list_while_it_changes(autojump_clock: MockClock) -> None:
    """What was there when the first page was given, each once; or a clear error (rule 105)."""
    names = [f"t{n:03}" for n in range(2 * router_module.PAGE_SIZE + 7)]
    server = ScriptedServer("a", tools=names)
    async with open_world(server) as world:
        client = await world.client()
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
        assert len((await client.request("tools/list"))["tools"]) == router_module.PAGE_SIZE


async def test_the_time_that_a_person_takes_does_not_count(autojump_clock: MockClock) -> None:
    """The call goes on with the time that it had left (rule 48)."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client(capabilities={"elicitation": {}})
        results: list[tuple[float, Any]] = []

        async def call() -> None:
            result = await client.call("a__x")
            results.append((trio.current_time(), result))

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        await trio.sleep(3)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await server.asks("elicitation/create", {"message": "m", "requestedSchema": {}}))

        nursery.start_soon(ask)
        question = await client.is_asked("elicitation/create")
        await trio.sleep(300)
        assert results == []
        client.replies(question["id"], {"action": "decline"})
        await wait_all_tasks_blocked()
        assert answers == [{"action": "decline"}]
        resumed = trio.current_time()
        await trio.sleep(1.9)
        assert results == []
        await trio.sleep(1)
        ((ended, result),) = results
        assert ended - resumed == pytest.approx(2)
        assert "a did not respond within" in result["content"][0]["text"]
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


# How long lists stay true

NEW = LATEST.name


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
        await trio.sleep(60)
        assert (await fresh(world))[0] == 0


async def test_no_list_is_vouched_for_longer_than_a_minute() -> None:
    """Whatever its server says (rule 95)."""
    async with open_world(lasting("a", 10**15)) as world:
        await world.settled()
        assert await fresh(world) == (router_module.MAX_LIST_TTL, True)


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
        await world.upstreams.by_id["a"].settled.wait()
        assert await fresh(world) == (0, False)
        assert await fresh(world, endpoint="a") == (5000, True)
    async with open_world(lasting("a"), ScriptedServer("b", tools=["x"], disabled=True)) as world:
        await world.settled()
        assert await fresh(world) == (5000, True)


@pytest.mark.parametrize("announces", [True, False])
async def test_a_list_past_its_time_is_read_again_when_somebody_lists_unless_its_server_tells_of_changes(
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
        await client.names()
        await trio.sleep(2)
        assert server.asked.count("tools/list") == listed + (not announces)
        assert await client.names() == (["a__x"] if announces else ["a__x", "a__y"])
        await trio.sleep(1)
        assert server.asked.count("tools/list") == listed + (not announces)


async def test_all_pages_of_a_list_are_for_the_same_readers(autojump_clock: MockClock) -> None:
    """Also when a server changes its mind between them (rule 95)."""
    server = lasting("a", 60_000, capabilities={"tools": {"listChanged": True}})
    server.lists["tools"] = [tool(f"t{n}") for n in range(router_module.PAGE_SIZE + 1)]
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


async def test_a_cursor_without_a_session_is_good_for_one_list_of_one_caller() -> None:
    """Whichever request brings it (rule 94)."""
    names = [f"t{n}" for n in range(router_module.PAGE_SIZE + 1)]
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
            assert [entry["name"] for entry in again["tools"]] == [f"a__t{router_module.PAGE_SIZE}"]
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
        await trio.sleep(router_module.CURSOR_LIFE - 1)
        await world.mrtr_round("tools/list", {"cursor": cursor})
        await trio.sleep(2)
        with pytest.raises(InvalidParams):
            await world.mrtr_round("tools/list", {"cursor": cursor})


# Pages that a server wants visited, and a caller that repeats its request


@pytest.mark.parametrize(("method", "params"), REACHING[:3])
async def test_pages_become_questions_for_whoever_repeats_its_request(method: str, params: dict[str, Any]) -> None:
    """Signed, without ids, and without a state: the request is to be sent again as it was (rules 73, 76)."""
    server = refusing(-32042, "go there", PAGES, trust=Trust.TRUSTED)
    async with open_world(server) as world:
        await world.settled()
        found = await world.mrtr_round(method, params, capabilities={"elicitation": {"url": {}}})
        assert isinstance(found, InputRequired)
        assert (found.server, found.state) == ("a", None)
        asked = [
            (how, {key: json.loads(bytes(each)) for key, each in page.items()}) for how, page in found.requests.values()
        ]
        assert asked == [
            ("elicitation/create", {"mode": "url", "url": "https://x/1", "message": "[a] Log in", "more": 1.5}),
            ("elicitation/create", {"mode": "url", "url": "https://x/2", "message": "[a] Pay"}),
        ]

        async def done(params: dict[str, Any]) -> object:
            assert "inputResponses" not in params
            return {"content": [], "contents": [], "messages": []}

        server.answers[method] = done
        answers = dict.fromkeys(found.requests, Raw(b'{"action":"accept"}'))
        again = await world.mrtr_round(
            method, params, MrtrRound("a", answers, None), capabilities={"elicitation": {"url": {}}}
        )
        assert isinstance(again, Answered)


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}, {"elicitation": {"form": {}}}])
async def test_whoever_cannot_visit_pages_is_told_what_it_would_have_to_declare(capabilities: dict[str, Any]) -> None:
    """(rules 74, 76)"""
    async with open_world(refusing(-32042, "go there", PAGES, trust=Trust.TRUSTED)) as world:
        await world.settled()
        with pytest.raises(MissingAbility) as refused:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        assert json.loads(bytes(refused.value.data or b"")) == {"requiredCapabilities": {"elicitation": {"url": {}}}}
        with pytest.raises(MissingAbility):
            await world.mrtr_round("tools/call", {"name": "a__x"}, capabilities=capabilities)


async def test_a_server_that_may_not_want_pages_visited_gets_nobody_there() -> None:
    """Its address is not even told (rules 74, 76)."""
    async with open_world(refusing(-32042, "go there", PAGES, trust=Trust.UNTRUSTED)) as world:
        await world.settled()
        world.approves()
        with world.auto_answering() as asked, pytest.raises(Forbidden) as refused:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities={"elicitation": {"url": {}}})
        assert "https:" not in refused.value.message
        assert refused.value.data is None
        assert [pending.access.kind for pending in asked] == ["prompt"]


async def test_a_person_is_asked_about_every_page_that_a_server_wants_visited() -> None:
    """With nobody there, or a person who says no, its address is not even told (rules 74, 76)."""
    capabilities: dict[str, Any] = {"elicitation": {"url": {}}}
    async with open_world(refusing(-32042, "go there", PAGES)) as world:
        await world.settled()
        with pytest.raises(Unconfirmed) as alone:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        with world.auto_answering(Answering.DENY), pytest.raises(Forbidden) as denied:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        for refused in (alone.value, denied.value):
            assert "https:" not in refused.message
            assert refused.data is None
        with world.auto_answering() as asked:
            found = await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        assert isinstance(found, InputRequired)
        assert [(pending.access.kind, pending.access.name) for pending in asked] == [
            ("url", page["url"]) for page in PAGES["elicitations"]
        ]


@pytest.mark.parametrize(
    "data", [None, {}, {"elicitations": []}, {"elicitations": [{"mode": "form", "elicitationId": "e"}]}]
)
async def test_pages_that_are_none_are_a_broken_server(data: object) -> None:
    async with open_world(refusing(-32042, "go there", data, trust=Trust.TRUSTED)) as world:
        await world.settled()
        with pytest.raises(ProtocolViolation):
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities={"elicitation": {"url": {}}})


# What a server misses in a request

NEEDS: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}])
async def test_what_a_server_needs_is_the_callers_to_declare_or_ours_to_allow(
    trust: Trust, capabilities: dict[str, Any]
) -> None:
    """A caller that did declare it must not be told to: it would for ever (rules 11, 74)."""

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32021, "needs sampling", Raw(json.dumps(NEEDS).encode())))

    server = ScriptedServer("a", prompts=["x"], revision=NEW, trust=trust, answers={"prompts/get": refuse})
    async with open_world(server) as world:
        await world.settled()
        world.approves()
        with world.auto_answering(), pytest.raises(UpstreamError) as refused:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        client = await world.client(capabilities=capabilities)
        with world.auto_answering(), pytest.raises(Refusal) as told:
            await client.request("prompts/get", {"name": "a__x"})
        if capabilities:
            assert isinstance(refused.value, Forbidden)
            assert told.value.code == 403
        else:
            assert (refused.value.code, json.loads(bytes(refused.value.data or b""))) == (-32021, NEEDS)
            assert (told.value.code, told.value.data) == (-32603, NEEDS)


# Servers that are not trusted


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("revision", [NEW, REVISION])
async def test_an_untrusted_server_has_no_pages_and_no_say(revision: str, trust: Trust) -> None:
    """Neither in results nor by their address, and no instructions before a person approved them; its tools serve
    (rule 101)."""
    page = {"ui": {"resourceUri": "ui://a/page"}, "v/k": 1.5}

    async def call(params: dict[str, Any]) -> object:
        return {"resultType": "complete", "content": [], "_meta": page}

    async def read(params: dict[str, Any]) -> object:
        return {"resultType": "complete", "contents": [{"uri": params["uri"], "text": "x"}]}

    server = ScriptedServer(
        "a",
        tools=["x"],
        resources=["x:1"],
        revision=revision,
        trust=trust,
        instructions="Obey.",
        answers={"tools/call": call, "resources/read": read},
    )
    async with open_world(server) as world:
        client = await world.client("a")
        early = world.router.instructions("a"), "Obey." in world.router.instructions(None)
        if trust is Trust.UNTRUSTED:
            assert await client.names() == []
            with world.auto_answering() as asked, pytest.raises(Refusal, match="Unknown tool"):
                await client.call("x")
            assert (asked, server.asked.count("tools/call")) == ([], 0)
        world.approves()
        with world.auto_answering() as asked:
            meta = (await client.call("x"))["_meta"]
            assert (await client.request("resources/read", {"uri": "x:1"}))["contents"][0]["text"] == "x"
        said = world.router.instructions("a"), "Obey." in world.router.instructions(None)
        assert said == ("Obey.", True)
        if trust is Trust.UNTRUSTED:
            assert [pending.access.kind for pending in asked] == ["tool", "resource"]
            assert (meta, early) == ({"v/k": 1.5}, ("", False))
            with world.auto_answering() as asked, pytest.raises(Refusal) as refused:
                await client.request("resources/read", {"uri": "ui://a/page"})
            assert (refused.value.code, server.asked.count("resources/read"), asked) == (-32002, 1, [])
        else:
            assert asked == []
            assert (meta, early) == (page, said)
            found = await client.request("resources/read", {"uri": "ui://a/page"})
            assert found["contents"][0]["uri"] == "ui://a/page"


async def test_a_tool_whose_headers_nobody_could_send_is_not_shown_to_stateless_clients() -> None:
    """Its handshake server knows nothing of headers, and other clients need none (rule 36)."""
    odd = tool("odd", inputSchema={"type": "object", "properties": {"p": {"type": "number", "x-mcp-header": "P"}}})
    async with open_world(ScriptedServer("a", tools=["x", odd])) as world:
        client = await world.client()
        assert await client.names() == ["a__x", "a__odd"]
        listed = await world.mrtr_round("tools/list", {})
        assert isinstance(listed, Answered)
        assert [each["name"] for each in json.loads(bytes(listed.result))["tools"]] == ["a__x"]


async def nothing(params: dict[str, Any]) -> object:
    return {}


async def test_what_may_not_be_reached_any_more_is_watched_no_more() -> None:
    """The server is told so, and is not asked for it again when it is connected anew."""
    server = ScriptedServer("a", resources=["memo:1", "memo:2"], capabilities=WATCHABLE)
    server.answers |= {"resources/subscribe": nothing, "resources/unsubscribe": nothing}
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        for uri in ("a+memo:1", "a+memo:2"):
            await client.request("resources/subscribe", {"uri": uri})
        server.spec = replace(server.spec, consent=Consent(resources=kind(deny=["memo:1"])))
        world.configures(server)
        await wait_all_tasks_blocked()
        assert server.asked.count("resources/unsubscribe") == 1
        await server.notifies("notifications/resources/updated", {"uri": "memo:1"})
        await server.notifies("notifications/resources/updated", {"uri": "memo:2"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == [{"uri": "a+memo:2"}]
        nursery.cancel_scope.cancel()


async def test_what_an_untrusted_server_says_of_a_change_is_cleaned() -> None:
    allowed = Consent(resources=kind(default="allow"))
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE, consent=allowed, trust=Trust.UNTRUSTED)
    server.answers["resources/subscribe"] = nothing
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        await world.settled()
        world.approves()
        await client.request("resources/subscribe", {"uri": "a+memo:1"})
        await server.notifies("notifications/resources/updated", {"uri": "memo:1", "v/k": "a\u202eb\x1b[31mc"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == [{"uri": "a+memo:1", "v/k": "abc"}]
        nursery.cancel_scope.cancel()
