"""The road of a call through names, gate and servers, with scripted servers and clients."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent, KindConsent
from host import router as router_module
from host.protocol.versions import LATEST_LEGACY
from tests.kit.world import Refusal, ScriptedServer, open_world, tool

REVISION = LATEST_LEGACY.name


async def echo(params: dict[str, Any]) -> object:
    return {
        "content": [{"type": "text", "text": json.dumps(params.get("arguments"))}],
        "_meta": {"saw": params["name"]},
    }


async def test_lists_of_all_servers_are_one_list_in_the_order_of_the_configuration() -> None:
    async with open_world(ScriptedServer("b", tools=["x", "y"]), ScriptedServer("a", tools=["x"])) as world:
        client = await world.client()
        assert await client.names() == ["b__x", "b__y", "a__x"]


async def test_a_servers_own_endpoint_has_its_own_names() -> None:
    server = ScriptedServer("a", tools=["x"], resources=["file:///r"], answers={"tools/call": echo})
    async with open_world(server, ScriptedServer("b", tools=["x"])) as world:
        client = await world.client("a")
        assert await client.names() == ["x"]
        assert await client.names("resources/list", "uri") == ["file:///r"]
        assert (await client.call("x"))["_meta"] == {"saw": "x"}


async def test_a_call_reaches_its_server_under_the_servers_own_name() -> None:
    a = ScriptedServer("a", tools=["x"], answers={"tools/call": echo})
    b = ScriptedServer("b", tools=["x"])
    async with open_world(a, b) as world:
        client = await world.client()
        result = await client.call("a__x", {"n": 1})
        assert result == {"content": [{"type": "text", "text": '{"n": 1}'}], "_meta": {"saw": "x"}}
        b.hears_nothing_more()


async def test_definitions_keep_every_member() -> None:
    own = tool("x", title="X", annotations={"readOnlyHint": True}, icons=[{"src": "a"}], _meta={"v/k": 1.50}, more=[1])
    async with open_world(ScriptedServer("a", tools=[own])) as world:
        client = await world.client()
        assert (await client.request("tools/list"))["tools"] == [{**own, "name": "a__x"}]


async def test_uris_in_results_are_ones_the_client_can_bring_back() -> None:
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
    async def not_found(params: dict[str, Any]) -> object:
        raise AssertionError("the server was asked")

    deny = KindConsent(deny=("secret*", "secret:**"))
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
    """So that nobody can tell a denied resource from an absent one."""
    server = ScriptedServer(
        "a", resources=["memo:x", "memo:denied"], consent=Consent(resources=KindConsent(deny=("memo:denied",)))
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

    deny = KindConsent(deny=("denied", "memo:denied"))
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
        assert all("a was lost while it worked on this" in result["content"][0]["text"] for result in results)


async def test_cancelling_a_call_tells_its_server_alone_in_the_servers_own_id() -> None:
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


async def test_an_answer_that_comes_after_the_cancel_is_dropped_and_counted() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def call() -> None:
            await client.request("tools/call", {"name": "a__x"}, id=1)

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": 1})
        await server.hears("notifications/cancelled")
        assert server.link is not None
        server.link.put(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % asked["id"])
        await wait_all_tasks_blocked()
        assert world.journal.dropped["a"] == {"unknown id": 1}


async def test_an_id_in_flight_twice_is_served_twice_and_cancelled_never() -> None:
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
        assert [params["progress"] for _, params in client.told] == [1, 2.5, 3]
        assert all(params["progressToken"] == token and params["message"] == "m" for _, params in client.told)
        assert all(type(params["progressToken"]) is type(token) for _, params in client.told)
        server.says(asked["id"], {"content": []})
    assert world.journal.dropped["a"] == {"unknown progress token": 1}


async def test_a_server_that_does_not_answer_is_called_off_at_the_deadline(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def call() -> None:
            began = trio.current_time()
            result = await client.call("a__x", _meta={"progressToken": 1})
            assert result["isError"] is True
            assert "did not answer within" in result["content"][0]["text"]
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
    names = [f"t{n}" for n in range(2 * router_module.PAGE + 3)]
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
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        client = await world.client()
        with pytest.raises(Refusal) as refused:
            await client.request("tools/list", {"cursor": cursor})
        assert refused.value.code == -32602


async def test_a_cursor_of_one_list_is_none_of_another() -> None:
    names = [f"t{n}" for n in range(router_module.PAGE + 1)]
    async with open_world(ScriptedServer("a", tools=names, prompts=names)) as world:
        client, alone = await world.client(), await world.client("a")
        cursor = (await client.request("tools/list"))["nextCursor"]
        for other, method in ((client, "prompts/list"), (alone, "tools/list")):
            with pytest.raises(Refusal, match="-32602"):
                await other.request(method, {"cursor": cursor})


async def test_pages_of_two_different_lists_never_make_one(autojump_clock: MockClock) -> None:
    names = [f"t{n}" for n in range(router_module.PAGE + 1)]
    server = ScriptedServer("a", tools=names)
    async with open_world(server) as world:
        client = await world.client()
        cursor = (await client.request("tools/list"))["nextCursor"]
        for n in range(router_module.PAST_VIEWS):
            server.lists["tools"].insert(0, tool(f"new{n}"))
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(20)
            last = (
                [entry["name"] for entry in (await client.request("tools/list", {"cursor": cursor}))["tools"]]
                if n + 1 < router_module.PAST_VIEWS
                else []
            )
            assert last in ([], [f"a__t{router_module.PAGE}"])
            await client.request("tools/list")
        with pytest.raises(Refusal, match="-32602"):
            await client.request("tools/list", {"cursor": cursor})


async def test_a_web_uri_goes_to_the_one_server_that_lists_it() -> None:
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
    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}]}

    a = ScriptedServer("a", resources=["memo:1"], answers={"resources/read": read})
    async with open_world(a, ScriptedServer("b", resources=["other:1"])) as world:
        client = await world.client()
        assert (await client.request("resources/read", {"uri": "memo:1"}))["contents"][0]["uri"] == "a+memo:1"


async def test_completion_goes_to_the_owner_and_is_empty_where_none_is_offered() -> None:
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
        merged = await world.router.instructions(None)
        assert "## a (The A)\nUse x." in merged
        assert "## b\nBBB" in merged
        assert len(merged) <= 8192
        assert await world.router.instructions("a") == "Use x."
