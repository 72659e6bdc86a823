"""What goes to a server with a call and comes back with it: tokens, deadlines, and what becomes of errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent, Trust
from host.errors import Interrupted, TooLarge, Unavailable
from host.exchange import Answered
from host.journal import RequestCompleted
from host.jsonrpc.messages import ErrorBody, Notification, Request, Success
from host.jsonrpc.raw import encode
from host.jsonrpc.strict import LIGHT_BYTES
from host.peer.outstanding import AnswerTooLong, PeerError
from host.protocol.versions import LATEST
from host.telemetry.counts import HostCounts
from host.upstream import client as module
from host.upstream.client import REPORT_BURST, REPORTS_PER_SECOND, as_upstream_error
from host.wire.http_errors import HttpRefused, OverLimit
from host.wire.link import LinkLost, NoMemory
from host.worker import WorkerTimeout
from tests.kit.gates import kind
from tests.kit.passes import assert_loop_responsive
from tests.kit.world import Refusal, ScriptedServer, later, open_client, open_world


async def test_nothing_of_the_clients_hop_reaches_the_server() -> None:
    """Trace context and vendor keys do (rules 42, 51, 53, 54)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):
        meta = {"progressToken": "t", "io.modelcontextprotocol/clientInfo": {}, "traceparent": "00-1", "v/k": [1]}
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": meta, "vendor": 1.50})
        asked = await server.hears("tools/call")
        assert asked["_meta"] == {"progressToken": asked["_meta"]["progressToken"], "traceparent": "00-1", "v/k": [1]}
        assert asked["_meta"]["progressToken"] != "t"
        assert asked["vendor"] == 1.5
        server.says(asked["id"], {"content": []})


def stateless(**more: Any) -> ScriptedServer:
    return ScriptedServer("a", tools=["x"], prompts=["p"], resources=["x:1"], revision=NEW, **more)


async def test_a_member_whose_name_is_half_a_character_reaches_the_server() -> None:
    """Only an escape spells it, so it is text before the request is written."""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):
        params = Raw(rb'{"name":"a__x","\ud800":1,"\u00e9":2}')
        nursery.start_soon(client.answer, Request(1, "tools/call", params))
        heard = await server.hears("tools/call")
        assert (heard["\ud800"], heard["\u00e9"]) == (1, 2)
        nursery.cancel_scope.cancel()


async def test_a_server_is_asked_for_progress_only_if_it_is_of_use() -> None:
    """Not if the client wants none, and it would not put the deadline off (rule 42)."""
    server = ScriptedServer("a", tools=["x"], prompts=["p"], timeout=5.0, timeout_total=5.0)
    async with open_client(server, other := ScriptedServer("b", prompts=["p"])) as (_, client, nursery):
        nursery.start_soon(client.call, "a__x")
        asked = await server.hears("tools/call")
        assert "_meta" not in asked
        server.says(asked["id"], {"content": []})
        nursery.start_soon(client.request, "prompts/get", {"name": "b__p"})
        assert "_meta" not in await other.hears("prompts/get")
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("make", [lambda **more: ScriptedServer("a", tools=["x"], **more), stateless])
@pytest.mark.parametrize("total", [None, 45.0, 1200.0])
async def test_a_server_that_reports_progress_if_asked_has_until_the_total(
    make: Callable[..., ScriptedServer], total: float | None, autojump_clock: MockClock
) -> None:
    """Also if the client wants no progress: it gets none (rules 42, 48)."""
    server = make(timeout=30.0, timeout_total=total)
    async with open_client(server) as (world, client, nursery):
        began = trio.current_time()
        call = later(nursery, client.call, "a__x")
        token = (await server.hears("tools/call"))["_meta"]["progressToken"]
        number = 0
        while not call.ended.is_set():
            number += 1
            await server.notifies("notifications/progress", {"progressToken": token, "progress": number})
            await trio.sleep(10)
        assert trio.current_time() - began == pytest.approx(total or 600, abs=11)
        assert "did not respond within" in json.dumps(await call.comes())
        assert client.notifications == []
        # A late report is no message that nobody asked for.
        await server.notifies("notifications/progress", {"progressToken": token, "progress": number + 1})
        await wait_all_tasks_blocked()
        assert world.journal.dropped == {}


@pytest.mark.parametrize("make", [lambda **more: ScriptedServer("a", tools=["x"], **more), stateless])
async def test_progress_puts_off_no_other_call_and_only_while_it_increases(
    make: Callable[..., ScriptedServer], autojump_clock: MockClock
) -> None:
    server = make(timeout=30.0)
    async with open_client(server) as (_, client, nursery):
        began = trio.current_time()
        first = later(nursery, client.call, "a__x")
        token = (await server.hears("tools/call"))["_meta"]["progressToken"]
        second = later(nursery, client.call, "a__x")
        other = (await server.hears("tools/call"))["_meta"]["progressToken"]
        assert token != other
        for number in range(1, 7):
            await trio.sleep(10)
            report = {"progressToken": token, "progress": number}
            await server.notifies("notifications/progress", report)
            await server.notifies("notifications/progress", {"progressToken": other, "progress": 0})
            await server.notifies("notifications/progress", {"progressToken": other, "progress": True})
            if second.ended.is_set():
                assert trio.current_time() - began == pytest.approx(40, abs=1)
                break
        assert second.ended.is_set()
        assert not first.done
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("token", ["c9", "c0", "c", "C1", "c01", "c1 ", "d1"])
async def test_a_token_that_was_never_given_is_unknown(token: str) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, nursery):
        nursery.start_soon(client.call, "a__x")
        await server.hears("tools/call")
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
        await wait_all_tasks_blocked()
        assert world.journal.dropped == {"a": {"unknown progress token": 1}}
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("progress", [True, "1", None, [], {}, "missing"])
async def test_progress_that_is_no_number_is_dropped(progress: object) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
        asked = await server.hears("tools/call")
        report = {"progressToken": asked["_meta"]["progressToken"], "progress": progress}
        if progress == "missing":
            del report["progress"]
        await server.notifies("notifications/progress", report)
        await wait_all_tasks_blocked()
        assert client.notifications == []
        server.says(asked["id"], {"content": []})


@pytest.mark.parametrize("result", [None, 5, "text", [], True])
async def test_a_result_that_is_no_object_is_a_broken_server(result: object) -> None:
    async def answer(params: dict[str, Any]) -> object:
        return result

    server = ScriptedServer("a", tools=["x"], prompts=["p"], answers={"tools/call": answer, "prompts/get": answer})
    async with open_client(server) as (_, client, _):
        assert "a sent a result that is not an object" in json.dumps(await client.call("a__x"))
        with pytest.raises(Refusal) as refused:
            await client.request("prompts/get", {"name": "a__p"})
        assert refused.value.code == 502


@pytest.mark.parametrize("make", [lambda **more: ScriptedServer("a", tools=["x"], **more), stateless])
@pytest.mark.parametrize("length", [1, 300_000])
@pytest.mark.parametrize("is_counted", [False, True])
async def test_a_call_ends_with_an_error_of_the_tool_only_if_its_result_says_so(
    make: Callable[..., ScriptedServer], length: int, is_counted: bool
) -> None:
    """However long it is. A failure that Colonnade itself tells as such a result has an outcome of its own."""
    content = [{"type": "text", "text": "x" * length}]
    results: Iterator[object] = iter(
        ({"content": content, "isError": True}, {"content": content, "isError": False}, {"isError": 1}, [])
    )

    async def answer(params: dict[str, Any]) -> object:
        return next(results)

    server = make(answers={"tools/call": answer})
    async with open_client(server) as (world, client, _):
        if is_counted:
            world.journal.observer = HostCounts(world.journal)
            world.configures(server, restart=["a"])
            await world.settled()
        told = [(await client.call("a__x")).get("isError") for _ in range(4)]
        ended = [(each.outcome, each.tool_error) for each in world.events if isinstance(each, RequestCompleted)]
    assert told == [True, False, 1, True]
    assert ended == [("answered", True), ("answered", False), ("answered", False), ("error 502", False)]


async def test_whether_a_tool_failed_is_said_by_the_result_that_its_client_gets() -> None:
    """Names of members of an untrusted server's results lose what nobody sees."""

    async def answer(params: dict[str, Any]) -> object:
        return {"content": [], "isErr\u200bor": True}

    server = ScriptedServer("a", tools=["x"], trust=Trust.UNTRUSTED, answers={"tools/call": answer})
    async with open_client(server) as (world, client, _):
        world.journal.observer = HostCounts(world.journal)
        world.configures(server, restart=["a"])
        await world.settled()
        world.approves()
        with world.auto_answering():
            assert (await client.call("a__x"))["isError"]
        assert [each.tool_error for each in world.events if isinstance(each, RequestCompleted)] == [True]


async def test_a_result_that_takes_too_long_to_look_through_is_a_broken_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_long(*_: object, fall_back_to_thread: bool) -> object:
        assert not fall_back_to_thread
        raise WorkerTimeout

    async def answer(params: dict[str, Any]) -> object:
        return {"content": [], "structuredContent": {"x": "x" * 2 * LIGHT_BYTES}}

    monkeypatch.setattr(module, "run_in_worker", too_long)
    server = ScriptedServer("a", tools=["x"], answers={"tools/call": answer})
    async with open_client(server) as (_, client, _):
        assert "that clients could not read: checking it took too long" in json.dumps(await client.call("a__x"))


async def test_a_prompt_that_does_not_come_is_an_error_and_called_off(autojump_clock: MockClock) -> None:
    """(rules 45, 48)"""
    server = ScriptedServer("a", prompts=["p"], timeout=2.0)
    async with open_client(server) as (_, client, _):
        with pytest.raises(Refusal) as refused:
            await client.request("prompts/get", {"name": "a__p"})
        assert (refused.value.code, refused.value.message) == (504, "a did not respond within 2 s")
        asked = await server.hears("prompts/get")
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_reports_that_come_too_fast_are_heard_less_and_still_put_the_deadline_off(
    autojump_clock: MockClock,
) -> None:
    """What is passed on only grows (rules 43, 48)."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
        token = (await server.hears("tools/call"))["_meta"]["progressToken"]
        for n in range(1000):
            await server.notifies("notifications/progress", {"progressToken": token, "progress": n})
        await wait_all_tasks_blocked()
        assert [params["progress"] for _, params in client.notifications] == list(range(int(REPORT_BURST)))
        for n in range(1000, 1400):
            await trio.sleep(0.01)
            await server.notifies("notifications/progress", {"progressToken": token, "progress": n})
        told = [params["progress"] for _, params in client.notifications]
        assert len(told) == pytest.approx(REPORT_BURST + 4 * REPORTS_PER_SECOND, abs=2)
        assert told == sorted(set(told))
        await trio.sleep(4)
        server.hears_nothing_more()
        await trio.sleep(1.1)
        await server.hears("notifications/cancelled")


async def test_of_reports_that_come_all_at_once_the_newest_is_heard_before_the_answer(
    autojump_clock: MockClock,
) -> None:
    """(rule 43)"""
    server = ScriptedServer("a", tools=["x"])
    heard_by_then: list[list[object]] = []
    async with open_client(server) as (_, client, nursery):

        async def call() -> None:
            await client.request("tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
            heard_by_then.append([params["progress"] for _, params in client.notifications])

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        for n in range(300):
            server.sends(
                Notification(
                    "notifications/progress", encode({"progressToken": asked["_meta"]["progressToken"], "progress": n})
                )
            )
        server.says(asked["id"], {"content": []})
    (heard,) = heard_by_then
    assert heard == [*range(int(REPORT_BURST)), 299]
    assert len(client.notifications) == len(heard)


# A stateless server


META = "io.modelcontextprotocol/"
NEW = LATEST.name
COMPLETE = {"resultType": "complete"}
TEXT = [{"type": "text", "text": "t"}]
CAN = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
PAGES = {"extensions": {f"{META}ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}


async def test_each_request_says_for_itself_what_it_is_and_nothing_of_the_clients_hop() -> None:
    """(rules 11, 42, 51, 53)"""
    server = stateless(trust=Trust.TRUSTED)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client(capabilities={"roots": {}, "tasks": {}, "experimental": {"x": {}}})
        theirs = {f"{META}protocolVersion": "1", f"{META}clientCapabilities": {"sampling": {}}, f"{META}serverInfo": {}}
        meta = {**theirs, f"{META}logLevel": "debug", "progressToken": "t", "traceparent": "00-1", "v/k": [1.50]}
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": meta, "vendor": 1.50})
        asked = await server.hears("tools/call")
        info = asked["_meta"].pop(f"{META}clientInfo")
        token = asked["_meta"].pop("progressToken")
        assert asked["_meta"] == {
            f"{META}protocolVersion": NEW,
            f"{META}clientCapabilities": {"roots": {}},
            "traceparent": "00-1",
            "v/k": [1.5],
        }
        assert (info["name"], type(token), asked["vendor"]) == ("colonnade", int, 1.5)
        server.says(asked["id"], COMPLETE)


async def test_a_request_that_says_nothing_gets_an_envelope_too() -> None:
    """(rule 11)"""
    server = stateless()
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.call, "a__x")
        asked = await server.hears("tools/call")
        assert set(asked["_meta"]) == {
            "progressToken",
            *(f"{META}{each}" for each in ("protocolVersion", "clientCapabilities", "clientInfo")),
        }
        assert asked["_meta"][f"{META}clientCapabilities"] == {}
        server.says(asked["id"], COMPLETE)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("trust", "capabilities", "declared"),
    [
        (Trust.TRUSTED, {}, {}),
        (Trust.TRUSTED, CAN, {**CAN, "roots": {}}),
        (Trust.TRUSTED, {"elicitation": {}}, {"elicitation": {"form": {}}}),
        (Trust.TRUSTED, {"sampling": {}}, {"sampling": {}}),
        (Trust.STANDARD, CAN, {**CAN, "roots": {}, "sampling": {}}),
        (Trust.STANDARD, {"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}),
        (Trust.UNTRUSTED, CAN, {}),
        (Trust.STANDARD, PAGES, PAGES),
        (Trust.UNTRUSTED, {**CAN, **PAGES}, {}),
    ],
)
async def test_a_server_is_told_of_what_this_one_caller_can_and_it_may_use(
    trust: Trust, capabilities: dict[str, Any], declared: dict[str, Any]
) -> None:
    """Whether the caller has a session or repeats requests (rules 10, 11)."""
    heard: list[dict[str, Any]] = []

    async def get(params: dict[str, Any]) -> object:
        heard.append(params["_meta"][f"{META}clientCapabilities"])
        return {**COMPLETE, "messages": []}

    async with open_world(stateless(trust=trust, answers={"prompts/get": get})) as world:
        client = await world.client(capabilities=capabilities)
        world.approves()
        with world.auto_answering():
            await client.request("prompts/get", {"name": "a__p"})
            await world.mrtr_round("prompts/get", {"name": "a__p"}, capabilities=capabilities)
            await (await world.client()).request("prompts/get", {"name": "a__p"})
        assert heard == [declared, declared, {}]


async def test_the_log_level_of_a_session_goes_with_each_of_its_requests_and_with_nobody_elses() -> None:
    """And that of a single request with it; the server is never told once for all (rules 82, 83)."""
    heard: list[object] = []

    async def call(params: dict[str, Any]) -> object:
        heard.append(params["_meta"].get(f"{META}logLevel"))
        return {**COMPLETE, "content": []}

    server = stateless(answers={"tools/call": call})
    async with open_world(server) as world:
        client, other = await world.client(), await world.client()
        await client.call("a__x")
        assert await client.request("logging/setLevel", {"level": "warning"}) == {}
        await client.call("a__x")
        await client.request("logging/setLevel", {"level": "debug"})
        await client.call("a__x")
        await other.call("a__x")
        await world.mrtr_round("tools/call", {"name": "a__x"}, level="error")
        assert heard == [None, "warning", "debug", None, "error"]
        assert "logging/setLevel" not in server.asked


async def test_a_session_that_has_set_no_level_hears_info_of_a_server_with_log_messages() -> None:
    """A stateless request that asks for none gets none (rules 82, 83)."""
    server = stateless(capabilities={"tools": {}, "logging": {}})
    async with open_client(server) as (world, client, nursery):
        call = later(nursery, client.call, "a__x")
        asked = await server.hears("tools/call")
        assert asked["_meta"][f"{META}logLevel"] == "info"
        for level in ("debug", "info", "error"):
            await server.notifies("notifications/message", {"level": level, "data": level})
        server.says(asked["id"], {**COMPLETE, "content": []})
        await call.comes()
        assert [each["data"] for each in client.notifications_of("notifications/message")] == ["info", "error"]
        nursery.start_soon(world.mrtr_round, "tools/call", {"name": "a__x"})
        asked = await server.hears("tools/call")
        assert f"{META}logLevel" not in asked["_meta"]
        server.says(asked["id"], {**COMPLETE, "content": []})


async def test_a_log_message_of_a_stateless_server_goes_to_the_one_caller_in_flight_or_to_nobody() -> None:
    """Each belongs to one request (rule 83)."""
    server = stateless()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client, other = await world.client(), await world.client()
        for each in (client, other):
            nursery.start_soon(each.listen_changes)
            await each.request("logging/setLevel", {"level": "debug"})
        await server.notifies("notifications/message", {"level": "error", "data": 0})
        nursery.start_soon(client.call, "a__x")
        first = await server.hears("tools/call")
        await server.notifies("notifications/message", {"level": "error", "data": 1})
        await wait_all_tasks_blocked()
        nursery.start_soon(other.call, "a__x")
        second = await server.hears("tools/call")
        await server.notifies("notifications/message", {"level": "error", "data": 2})
        await wait_all_tasks_blocked()
        for asked in (first, second):
            server.says(asked["id"], {**COMPLETE, "content": []})
        await wait_all_tasks_blocked()
        assert [params["data"] for params in client.notifications_of("notifications/message")] == [1]
        assert other.notifications_of("notifications/message") == []
        nursery.cancel_scope.cancel()


async def test_headers_repeat_what_the_body_says_in_the_servers_own_names() -> None:
    """Also those that its tools ask for (rule 35)."""
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        },
    }
    server = stateless()
    server.lists["tools"].append({"name": "w\u00e9ather", "inputSchema": schema})

    async def answer(params: dict[str, Any]) -> object:
        return {**COMPLETE, "content": [], "contents": [], "messages": []}

    server.answers = dict.fromkeys(("tools/call", "prompts/get", "resources/read"), answer)
    async with open_client(server, endpoint="a") as (_, client, _):
        arguments = {"region": " eu", "deep": {"n": 7}, "dry": None, "other": "no"}
        await client.request("tools/call", {"name": "w\u00e9ather", "arguments": arguments})
        await client.request("prompts/get", {"name": "p"})
        await client.request("resources/read", {"uri": "x:1"})
        by_method = dict(server.sent_headers)
        common = {"MCP-Protocol-Version": NEW}
        assert by_method["tools/call"] == {
            **common,
            "Mcp-Method": "tools/call",
            "Mcp-Name": "=?base64?d8OpYXRoZXI=?=",
            "Mcp-Param-Region": "=?base64?IGV1?=",
            "Mcp-Param-N": "7",
        }
        assert by_method["prompts/get"] == {**common, "Mcp-Method": "prompts/get", "Mcp-Name": "p"}
        assert by_method["resources/read"] == {**common, "Mcp-Method": "resources/read", "Mcp-Name": "x:1"}
        assert by_method["tools/list"] == {**common, "Mcp-Method": "tools/list"}


async def test_a_handshake_server_gets_neither_envelope_nor_headers() -> None:
    """(rule 54)"""

    async def answer(params: dict[str, Any]) -> object:
        assert set(params["_meta"]) == {"progressToken"}
        return {"content": []}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": answer})
    async with open_world(server) as world:
        await (await world.client(capabilities=CAN)).call("a__x")
        await world.mrtr_round("tools/call", {"name": "a__x", "_meta": {f"{META}logLevel": "debug"}}, level="debug")
        assert server.asked.count("tools/call") == 2
        assert [method for method, _ in server.sent_headers] == ["server/discover"]


def annotated(header: str) -> dict[str, Any]:
    return {
        "name": "y",
        "inputSchema": {"type": "object", "properties": {"p": {"type": "string", "x-mcp-header": header}}},
    }


@pytest.mark.parametrize(("trust", "better"), [(Trust.TRUSTED, True), (Trust.TRUSTED, False), (Trust.STANDARD, True)])
async def test_a_server_that_finds_the_headers_wrong_is_asked_once_more_with_what_its_list_says_now(
    trust: Trust, better: bool
) -> None:
    """Where that is another definition, which a person would have to approve, it is not (rule 35)."""
    server = stateless(trust=trust)
    server.lists["tools"].append(annotated("Old"))
    calls: list[object] = []

    async def call(params: dict[str, Any]) -> object:
        headers = server.sent_headers[-1][1]
        calls.append(headers)
        if not better or "Mcp-Param-New" not in headers:
            server.lists["tools"][1] = annotated("New")
            raise PeerError(ErrorBody(-32020, "header mismatch"))
        return {**COMPLETE, "content": []}

    server.answers["tools/call"] = call
    async with open_client(server) as (world, client, _):
        with trio.fail_after(5):
            # Once more, since changes are heard of from then on; nothing says when that is done.
            while server.asked.count("tools/list") < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
        if trust is Trust.STANDARD:
            for why in ("has changed meanwhile", "is not the one that was approved"):
                result = await client.call("a__y", {"p": "v"})
                assert result["isError"]
                assert why in result["content"][0]["text"]
            assert len(calls) == 1
            world.approves()
        if better:
            assert await client.call("a__y", {"p": "v"}) == {"content": []}
        else:
            with pytest.raises(Refusal, match="-32603"):
                await client.call("a__y", {"p": "v"})
        assert len(calls) == 2
        assert server.asked.count("tools/list") == 3 + (trust is Trust.STANDARD)  # a held tool is looked for again


async def test_headers_that_a_prompt_is_refused_for_are_not_tried_again() -> None:
    """Only those of tools come from a list that may be old."""
    asked = 0

    async def get(params: dict[str, Any]) -> object:
        nonlocal asked
        asked += 1
        raise PeerError(ErrorBody(-32020, "header mismatch"))

    async with open_client(stateless(answers={"prompts/get": get})) as (_, client, _):
        with pytest.raises(Refusal) as refused:
            await client.request("prompts/get", {"name": "a__p"})
        assert (refused.value.code, asked) == (-32603, 1)


async def test_a_result_loses_what_only_a_stateless_hop_has() -> None:
    """Not the members of others that are called the same (rules 4, 51)."""
    inner = {"resultType": "x", "ttlMs": 1, "cacheScope": "y", "_meta": {f"{META}serverInfo": {}}}
    meta = {f"{META}serverInfo": {"name": "a", "version": "1"}, "v/k": 1.50}

    async def call(params: dict[str, Any]) -> object:
        return {**COMPLETE, "_meta": meta, "content": TEXT, "structuredContent": inner, "ttlMs": 5, "vendor": inner}

    async with open_client(stateless(answers={"tools/call": call})) as (_, client, _):
        expected = {"_meta": {"v/k": 1.5}, "content": TEXT, "structuredContent": inner, "vendor": inner}
        assert await client.call("a__x") == expected


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "hints", "fresh"),
    [
        (stateless, {"ttlMs": 5000, "cacheScope": "public"}, (5000, True)),
        (stateless, {"ttlMs": 5000, "cacheScope": "private"}, (5000, False)),
        (stateless, {"ttlMs": -1, "cacheScope": "public"}, (0, True)),
        (stateless, {"ttlMs": "5", "cacheScope": "PUBLIC"}, (0, False)),
        (stateless, {}, (0, False)),
        (partial(ScriptedServer, "a", resources=["x:1"]), {"ttlMs": 5000, "cacheScope": "public"}, (0, False)),
    ],
)
async def test_how_fresh_what_was_read_is_comes_from_its_server(
    make: Callable[..., ScriptedServer], hints: dict[str, Any], fresh: tuple[int, bool]
) -> None:
    """At a handshake server it never is, whatever it says (rules 95, 96)."""

    async def read(params: dict[str, Any]) -> object:
        return {**COMPLETE, "contents": [], **hints}

    async with open_world(make(answers={"resources/read": read})) as world:
        await world.settled()
        found = await world.mrtr_round("resources/read", {"uri": "a+x:1"})
        assert isinstance(found, Answered)
        assert (found.freshness.ttl_ms, found.freshness.public) == fresh


async def test_a_call_to_a_stateless_program_is_called_off_in_words() -> None:
    """(rule 45)"""
    server = stateless()
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(partial(client.request, "tools/call", {"name": "a__x"}, id="mine"))
        asked = await server.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": "mine"})
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_a_stateless_server_is_never_pinged_nor_told_of_a_level_nor_asked_to_subscribe(
    autojump_clock: MockClock,
) -> None:
    """(rules 16, 82, 87)"""
    server = stateless(capabilities={"tools": {}, "logging": {}, "resources": {"subscribe": True}})
    async with open_client(server) as (_, client, _):
        await client.request("logging/setLevel", {"level": "debug"})
        assert await client.request("resources/subscribe", {"uri": "a+x:1"}) == {}
        await trio.sleep(300)
        assert not {"ping", "logging/setLevel", "resources/subscribe", "initialize"} & set(server.asked)
        server.hears_nothing_more()


async def test_a_client_is_idle_once_it_works_on_no_request() -> None:
    """However that ends."""
    server = stateless()
    async with open_client(server) as (world, client, nursery):
        connected = world.upstreams["a"].main.ready_client()
        await connected.wait_idle()
        first, second = (later(nursery, client.call, "a__x") for _ in range(2))
        heard = [await server.hears("tools/call") for _ in range(2)]
        idle = later(nursery, connected.wait_idle)
        server.says(heard[0]["id"], COMPLETE)
        await trio.testing.wait_all_tasks_blocked()
        assert not idle.done
        server.refuses(heard[1]["id"], -32603, "no")
        await idle.comes()
        for call in (first, second):
            await call.ended.wait()


@pytest.mark.parametrize("problem", [AnswerTooLong("it is too long"), OverLimit("it is too long")])
def test_an_answer_over_the_limit_says_that_the_call_was_carried_out(problem: AnswerTooLong | OverLimit) -> None:
    found = as_upstream_error("a", problem)
    assert isinstance(found, TooLarge)
    assert found.message == "a executed the request, but its response cannot be passed on: it is too long"
    assert found.code == 413


def test_a_tool_whose_connection_broke_may_have_run_and_its_caller_is_told() -> None:
    """Other requests that were lost can be repeated by the caller without a thought."""
    error = as_upstream_error("a", LinkLost("it closed the connection"), "tools/call")
    assert (type(error), error.code) == (Interrupted, 502)
    assert error.message == (
        "the connection to a was lost during the request: it closed the connection; the tool may have run"
    )
    other = as_upstream_error("a", LinkLost("it closed the connection"), "resources/read")
    assert (type(other), other.code) == (Unavailable, 503)
    assert other.message == "the connection to a was lost during the request: it closed the connection"
    refused = as_upstream_error("a", HttpRefused(503, "the server failed"), "tools/call")
    assert (type(refused), refused.code) == (Unavailable, 503)
    assert "may have run" not in refused.message


@pytest.mark.parametrize(
    ("status", "may_have_run"),
    [(400, False), (404, False), (429, False), (500, True), (501, False), (502, True), (503, False), (504, True)],
)
def test_a_status_of_a_failure_in_the_middle_says_that_the_tool_may_have_run(status: int, may_have_run: bool) -> None:
    problem = HttpRefused(status, "the server failed")
    error = as_upstream_error("a", problem, "tools/call")
    assert ("may have run" in error.message) is may_have_run
    assert type(error) is (Interrupted if may_have_run else Unavailable)
    assert type(as_upstream_error("a", problem, "resources/read")) is Unavailable


def test_an_answer_without_memory_fails_its_call_and_says_that_it_was_carried_out() -> None:
    error = as_upstream_error("a", NoMemory())
    assert (type(error), error.code) == (TooLarge, 413)
    assert error.message.startswith("a executed the request")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(
            lambda: b"{%b}" % b",".join(b'"%d":1' % at for at in range(600_000)), "more than 10000", id="members"
        ),
        pytest.param(lambda: b'{"content":[%b]}' % b",".join([b"{}"] * 600_000), "more than 10000", id="items"),
        pytest.param(
            lambda: b'{"content":["%b"]}' % (rb"\ud800" * 600_000), "half a surrogate pair", id="half characters"
        ),
        pytest.param(
            lambda: b'{"content":[],"structuredContent":{"x":[%b]}}' % b",".join([rb'"\u200b"'] * 300_000),
            "",
            id="invisible",
        ),
    ],
)
async def test_no_hostile_result_holds_anybody_up(make: Callable[[], bytes], said: str) -> None:
    result = Raw(make())

    async def answer(params: dict[str, Any]) -> Raw:
        return result

    allowed = Consent(tools=kind(allow=["x"]))
    answers = {"tools/call": answer}
    server = ScriptedServer("a", tools=["x"], trust=Trust.UNTRUSTED, consent=allowed, answers=answers)
    async with open_world(server) as world:
        await world.settled()
        world.approves()
        client = await world.client()

        async def ask() -> None:
            answer = await client.answer(Request(1, "tools/call", Raw(b'{"name":"a__x"}')))
            assert isinstance(answer, Success)
            text = bytes(answer.result).decode()
            assert said in text, text[:300]
            assert len(text) < 2_000_000

        await assert_loop_responsive(ask, 0.1)


async def test_of_a_long_report_the_numbers_are_passed_on() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
        asked = await server.hears("tools/call")
        report = {"progressToken": asked["_meta"]["progressToken"], "progress": 1, "total": 2, "message": "m" * 9000}
        await server.notifies("notifications/progress", report)
        await wait_all_tasks_blocked()
        assert client.notifications == [("notifications/progress", {"progressToken": 1, "progress": 1, "total": 2})]
        server.says(asked["id"], {"content": []})
