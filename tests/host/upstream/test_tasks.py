"""Calls that their servers make tasks of, in both dialects: looked after until they are over, and called off once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config import Consent
from host.exchange import Answered, Caller, Exchange, NoClient
from host.journal import RequestCompleted
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import encode, encode_object, members
from host.protocol.abilities import NO_ABILITIES
from host.protocol.tasks import Task
from host.protocol.versions import LATEST, LATEST_LEGACY
from host.source import SHARED
from host.upstream.tasks import MAX_POLL, MIN_POLL, STATUS_TIMEOUT, TASK_TTL
from tests.kit.gates import kind
from tests.kit.tasks import (
    EXTENSION,
    IO,
    OK,
    RELATED,
    begins,
    completes,
    extension_server,
    extension_status,
    handshake_server,
    says_result,
    says_status,
    status,
    still_working,
)
from tests.kit.world import Later, Refusal, ScriptedClient, ScriptedServer, World, later, open_world

pytestmark = pytest.mark.virtual_time

CAN: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
ELICIT = {"method": "elicitation/create", "params": {"mode": "form", **FORM}}
SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}}
YES = {"action": "accept", "content": {}}


async def simple(world: World) -> ScriptedClient:
    """A client whose revision knows no tasks."""
    return await world.client(revision="2025-06-18", capabilities={"sampling": {}, "elicitation": {}, "roots": {}})


@asynccontextmanager
async def calling(server: ScriptedServer, **capabilities: Any) -> AsyncIterator[tuple[ScriptedClient, Later]]:
    """A call, which is request 7, by a client whose revision knows no tasks unless it has these `capabilities`."""
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await (world.client(**capabilities) if capabilities else simple(world))
        await world.settled()
        yield client, later(nursery, client.request, "tools/call", {"name": "a__x"}, id=7)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def called_as_task(server: ScriptedServer) -> AsyncIterator[tuple[Later, list[Task]]]:
    """A call by a client that takes a task, and each status of the task."""
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        begun: list[Task] = []
        yield later(nursery, taken, world, begun), begun
        nursery.cancel_scope.cancel()


async def failed(call: Later) -> str:
    """Why a call failed that its model is to read."""
    result = await call.comes()
    assert result["isError"] is True
    text: str = result["content"][0]["text"]
    return text


async def taken(world: World, taken: list[Task]) -> Any:
    """A call of a client that takes a task: notes in `taken` each status of it."""
    params = members(encode({"name": "a__x", "arguments": {}}))
    request = Request(1, "tools/call", encode_object(params))
    caller = Caller("test", SHARED, None, NO_ABILITIES)
    exchange = Exchange(request, params, caller, NoClient(), on_task=taken.append)
    answer = await world.router.answer(exchange)
    assert isinstance(answer, Answered)
    return json.loads(bytes(answer.result))


# Handshake servers


async def test_a_tool_that_needs_a_task_is_driven_for_a_client_that_knows_none() -> None:
    """(rule 90) (rule 60)"""
    server = handshake_server()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        (listed,) = (await client.request("tools/list"))["tools"]
        assert "execution" not in listed
        call = later(nursery, client.call, "a__x", {"n": 1})
        asked = await begins(server)
        assert asked["task"] == {"ttl": TASK_TTL}
        assert asked["arguments"] == {"n": 1}
        await says_status(server)
        assert not call.done
        await says_status(server, "completed")
        await says_result(server, {**OK, "_meta": {RELATED: {"taskId": "t1"}, "own": 1}})
        assert await call.comes() == {**OK, "_meta": {"own": 1}}
        server.hears_nothing_more()


@pytest.mark.parametrize("support", ["optional", "forbidden", None])
async def test_a_tool_that_needs_no_task_is_called_as_ever(support: str | None) -> None:
    server = handshake_server(support)
    async with calling(server) as (_, call):
        asked = await server.hears("tools/call")
        assert "task" not in asked
        server.says(asked["id"], OK)
        assert await call.comes() == OK


@pytest.mark.parametrize("code", [-32601, -32600])
async def test_a_server_that_says_that_a_task_is_needed_is_asked_for_one(code: int) -> None:
    """Its list did not say so. The tool and the type of request have a code each (rule 90)"""
    server = handshake_server(None)
    async with calling(server) as (_, call):
        plain = await server.hears("tools/call")
        assert "task" not in plain
        server.refuses(plain["id"], code, "this needs a task")
        assert (await begins(server))["task"] == {"ttl": TASK_TTL}
        await says_status(server, "completed")
        await says_result(server)
        assert await call.comes() == OK


async def test_a_call_that_was_closed_meanwhile_is_not_sent_again_as_a_task() -> None:
    """What sends a second time judges a second time (rule 90)"""
    server = handshake_server(None)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        call = later(nursery, client.call, "a__x")
        plain = await server.hears("tools/call")
        world.gate.replace({"a": replace(server.spec, consent=Consent(tools=kind(deny=["x"])))}, {})
        server.refuses(plain["id"], -32601, "this needs a task")
        assert "has changed meanwhile" in json.dumps(await call.comes())
        server.hears_nothing_more()


async def test_any_other_refusal_is_the_answer_and_so_is_the_second_one() -> None:
    server = handshake_server(None)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        call = later(nursery, client.call, "a__x")
        server.refuses((await server.hears("tools/call"))["id"], -32602, "no")
        with pytest.raises(Refusal, match="-32602 no"):
            await call.comes()
        call = later(nursery, client.call, "a__x")
        server.refuses((await server.hears("tools/call"))["id"], -32601, "no")
        server.refuses((await server.hears("tools/call"))["id"], -32601, "not at all")
        with pytest.raises(Refusal, match="-32601 not at all"):
            await call.comes()
        server.hears_nothing_more()


async def test_a_server_without_tasks_is_never_asked_for_one() -> None:
    server = handshake_server("required", capabilities={"tools": {}})
    async with calling(server) as (_, call):
        asked = await server.hears("tools/call")
        assert "task" not in asked
        server.refuses(asked["id"], -32601, "this needs a task")
        with pytest.raises(Refusal, match="-32601"):
            await call.comes()
        server.hears_nothing_more()


@pytest.mark.few(2)
@pytest.mark.parametrize("revision", ["2025-06-18", LATEST_LEGACY.name, LATEST.name])
@pytest.mark.parametrize("wish", [{"ttl": 5}, "nonsense"])
async def test_what_a_client_says_of_tasks_goes_no_further(revision: str, wish: object) -> None:
    """Its wish is its own affair with Colonnade; of one that knows no tasks it means nothing."""
    server = ScriptedServer("a", tools=["x"], revision=revision)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await simple(world)
        call = later(nursery, client.call, "a__x", task=wish)
        asked = await server.hears("tools/call")
        assert "task" not in asked
        server.says(asked["id"], {"resultType": "complete", **OK} if server.stateless else OK)
        assert await call.comes() == OK


@pytest.mark.parametrize("server", [handshake_server(), extension_server()], ids=["handshake", "extension"])
async def test_a_server_may_answer_at_once(server: ScriptedServer) -> None:
    async with called_as_task(server) as (call, begun):
        asked = await server.hears("tools/call")
        server.says(asked["id"], {"resultType": "complete", **OK} if server.stateless else OK)
        assert await call.comes() == OK
        assert not begun
        server.hears_nothing_more()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("poll", "pause"),
    [(None, 1.0), (0, MIN_POLL), (250, 0.25), (10**9, MAX_POLL), (-5, 1.0), ("soon", 1.0)],
)
@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_task_is_asked_about_as_often_as_its_server_likes(make: Any, poll: object, pause: float) -> None:
    """Within bounds: neither in a tight loop, nor next year."""
    server = make()
    times: list[float] = []
    server.answers["tasks/get"] = still_working(server, poll, times)
    async with calling(server) as (_, call):
        await begins(server, poll=poll)
        await trio.sleep(4.5 * pause)
        assert [after - before for before, after in pairwise(times[:4])] == pytest.approx([pause] * 3, abs=0.01)
        assert not call.done


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_what_a_tool_calls_an_error_is_its_result(make: Any) -> None:
    server, wrong = make(), {**OK, "isError": True}
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        await world.settled()
        call = later(nursery, client.call, "a__x")
        await begins(server)
        if server.stateless:
            await says_status(server, "completed", result=wrong)
        else:
            await says_status(server, "failed")
            await says_result(server, wrong)
        assert await call.comes() == wrong
        server.hears_nothing_more()
        (ended,) = (each for each in world.events if isinstance(each, RequestCompleted))
        assert (ended.outcome, ended.tool_error) == ("answered", True)


@pytest.mark.parametrize(
    ("standing", "more", "error", "data"),
    [
        ("failed", {"error": {"code": 7, "message": "broken", "data": [1]}}, "7 broken", [1]),
        ("cancelled", {"statusMessage": "tired"}, "cancelled its task: tired", None),
    ],
)
async def test_how_a_task_of_the_extension_fails_is_the_error_of_its_call(
    standing: str, more: dict[str, Any], error: str, data: object
) -> None:
    server = extension_server()
    async with calling(server) as (_, call):
        await begins(server)
        await says_status(server, standing, **more)
        with pytest.raises(Refusal, match=error) as refusal:
            await call.comes()
        assert refusal.value.data == data
        server.hears_nothing_more()


@pytest.mark.parametrize("standing", ["failed", "cancelled", "completed"])
async def test_the_error_of_a_task_is_that_of_the_call(standing: str) -> None:
    """And nobody calls off what is over."""
    server = handshake_server()
    async with calling(server) as (_, call):
        await begins(server)
        await says_status(server, standing)
        server.refuses((await server.hears("tasks/result"))["id"], -32050, "broken", {"n": 1})
        with pytest.raises(Refusal, match="-32050 broken") as refusal:
            await call.comes()
        assert refusal.value.data == {"n": 1}
        server.hears_nothing_more()


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_task_that_its_server_has_lost_fails_its_call(make: Any) -> None:
    server = make()
    async with calling(server) as (_, call):
        await begins(server)
        server.refuses((await server.hears("tasks/get"))["id"], -32602, "no such task")
        with pytest.raises(Refusal, match="-32602 no such task"):
            await call.comes()
        server.hears_nothing_more()


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_server_that_dies_meanwhile_fails_its_call(make: Any, asked: bool) -> None:
    server = make()
    async with calling(server) as (_, call):
        await begins(server, poll=1000)
        if asked:
            await server.hears("tasks/get")
        else:
            await wait_all_tasks_blocked()
        server.dies()
        await call.ended.wait()  # at the latest when it would be asked about again
        assert "was lost during the request" in await failed(call)


@pytest.mark.parametrize(
    "said", [{"task": {}}, {"task": {"taskId": 7, "status": "working"}}, {"task": {"taskId": "t", "status": "lost"}}]
)
async def test_a_task_that_cannot_be_read_fails_its_call(said: dict[str, Any]) -> None:
    server = handshake_server()
    async with calling(server) as (_, call):
        server.says((await server.hears("tools/call"))["id"], said)
        assert "sent an invalid message about a task" in await failed(call)
        server.hears_nothing_more()


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_status_that_cannot_be_read_fails_its_call_and_calls_the_task_off(make: Any) -> None:
    server = make()
    async with calling(server) as (_, call):
        await begins(server)
        await says_status(server, "somewhere")
        server.says((await server.hears("tasks/cancel"))["id"], {"resultType": "complete"})
        assert "sent an invalid message about a task" in await failed(call)
        server.hears_nothing_more()


# Calling off


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_call_that_is_called_off_ends_its_task_once(make: Any) -> None:
    """And its request, which was answered long ago, is not called off (rule 46)"""
    server = make()
    async with calling(server) as (client, call):
        await begins(server)
        await says_status(server)
        await trio.sleep(0.1)
        client.notifies("notifications/cancelled", {"requestId": 7})
        asked = await server.hears("tasks/cancel")
        assert asked["taskId"] == "t1"
        server.says(asked["id"], status("cancelled"))
        assert await call.comes() is None
        server.hears_nothing_more()


@pytest.mark.parametrize("standing", ["input_required", "completed"])
async def test_a_result_that_is_waited_for_is_called_off_with_its_task(standing: str) -> None:
    """What is over already is left as it is."""
    server = handshake_server()
    async with calling(server) as (client, call):
        asked = await begins(server, poll=0)
        await says_status(server, standing)
        waiting = await server.hears("tasks/result")
        client.notifies("notifications/cancelled", {"requestId": 7})
        cancelled = await server.hears("notifications/cancelled")
        assert cancelled["requestId"] == waiting["id"] != asked["id"]
        if standing != "completed":
            server.says((await server.hears("tasks/cancel"))["id"], status("cancelled"))
        assert await call.comes() is None
        server.hears_nothing_more()


@pytest.mark.few(2)
@pytest.mark.parametrize("late", ["task", "result", "other", "never"])
@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_before_there_is_a_task_the_request_is_called_off(make: Any, late: str) -> None:
    """And the task, should the server make one all the same (rule 46)."""
    server = make()
    async with calling(server) as (client, call):
        asked = await server.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": 7})
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        assert await call.comes() is None
        if late == "task":
            server.says(asked["id"], extension_status(kind="task") if server.stateless else {"task": status()})
            ended = await server.hears("tasks/cancel")
            assert ended["taskId"] == "t1"
            server.says(ended["id"], {})
        elif late != "never":
            server.says(asked["id"], OK if late == "result" else {"task": 1, "resultType": "task"})
        await wait_all_tasks_blocked()
        server.hears_nothing_more()


@pytest.mark.parametrize("can_end", [False, True])
async def test_a_server_that_does_not_end_a_task_holds_nobody_up(can_end: bool) -> None:
    """One that cannot end tasks is not asked to, and no answer is waited for."""
    ends: dict[str, Any] = {"cancel": {}} if can_end else {}
    server = handshake_server(capabilities={"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}, **ends}})
    async with calling(server) as (client, call):
        await begins(server)
        await says_status(server)
        await trio.sleep(0.1)
        client.notifies("notifications/cancelled", {"requestId": 7})
        if can_end:
            await server.hears("tasks/cancel")
        assert await call.comes() is None
        if not can_end:
            server.hears_nothing_more()


# Timeouts


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_every_word_on_a_task_puts_the_deadline_off(make: Any) -> None:
    server = make(timeout=3.0)
    async with calling(server) as (_, call):
        await begins(server, poll=1000)
        for _ in range(20):
            await says_status(server, poll=1000)
        assert not call.done
        await server.hears("tasks/get")  # which has no answer
        await server.hears("notifications/cancelled")
        server.says((await server.hears("tasks/cancel"))["id"], status("cancelled"))
        assert "did not respond" in await failed(call)


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_server_may_wish_for_longer_pauses_than_its_timeout(make: Any) -> None:
    """While nobody asks it, it is not late."""
    server = make(timeout=3.0)
    times: list[float] = []
    server.answers["tasks/get"] = still_working(server, 20_000, times)
    async with calling(server) as (_, call):
        await begins(server, poll=20_000)
        await trio.sleep(119)
        assert not call.done
        assert len(times) == (5 if not server.stateless else 6)


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_without_a_task_of_its_own_no_client_waits_for_ever(make: Any) -> None:
    server = make(timeout=30.0)

    async def is_cancelled(params: dict[str, Any]) -> object:
        return extension_status("cancelled") if server.stateless else status("cancelled")

    server.answers |= {"tasks/get": still_working(server, 10_000, []), "tasks/cancel": is_cancelled}
    async with calling(server) as (_, call):
        await begins(server)
        began = trio.current_time()
        await call.ended.wait()
        assert trio.current_time() - began == pytest.approx(600)
        assert await failed(call) == "a did not respond within 600 s"
        assert server.asked.count("tasks/cancel") == 1


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_for_a_client_that_takes_a_task_only_the_task_says_when_it_ends(make: Any) -> None:
    server = make(timeout=3.0)
    server.answers["tasks/get"] = still_working(server, 5000, [])
    async with called_as_task(server) as (call, begun):
        await begins(server)
        await trio.sleep(1200)
        assert {task.id for task in begun} == {"t1"}
        assert not call.done


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_task_of_which_its_server_says_nothing_any_more_ends(make: Any) -> None:
    """Its client has taken it, and nobody's patience but ours would run out. It is called off."""
    server = make()
    async with called_as_task(server) as (call, _):
        await begins(server)
        await server.hears("tasks/get")
        await trio.sleep(STATUS_TIMEOUT - 0.1)
        server.hears_nothing_more()
        await trio.sleep(0.2)
        await server.hears("notifications/cancelled")  # the question how it stands
        asked = await server.hears("tasks/cancel")
        server.says(asked["id"], {"resultType": "complete"} if server.stateless else status("cancelled"))
        assert await failed(call) == f"a did not return the status of its task within {STATUS_TIMEOUT:.0f} s"


async def test_an_optional_task_is_asked_for_where_the_client_takes_one() -> None:
    server = handshake_server("optional")
    async with called_as_task(server) as (call, begun):
        assert (await begins(server))["task"] == {"ttl": TASK_TTL}
        await says_status(server, "completed")
        await says_result(server)
        assert await call.comes() == OK
        assert {task.id for task in begun} == {"t1"}


async def test_after_an_answer_the_result_is_waited_for_as_long_as_the_task_is_at_work() -> None:
    """While its result is fetched, the task is still asked about."""
    server = handshake_server(timeout=3.0)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        call = later(nursery, client.call, "a__x")
        await begins(server)
        await says_status(server, "input_required")
        result = await server.hears("tasks/result")
        meta = {"_meta": {RELATED: {"taskId": "t1"}}}
        question = later(nursery, server.asks, "elicitation/create", {**FORM, **meta})
        asked = await client.is_asked("elicitation/create")
        client.replies(asked["id"], YES)
        assert await question.comes() == YES
        for _ in range(20):
            await says_status(server)
        assert not call.done
        server.says(result["id"], OK)
        assert await call.comes() == OK
        server.hears_nothing_more()


# What a task asks


async def test_what_a_task_asks_reaches_the_client_it_belongs_to() -> None:
    """With two clients at work nothing but the task tells whose it is (rule 52)"""
    server = handshake_server()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = [await simple(world), await simple(world)]
        calls = []
        for number, client in enumerate(clients):
            calls.append(later(nursery, client.call, "a__x"))
            await begins(server, id=f"t{number}", poll=30_000)
        await wait_all_tasks_blocked()
        for number in (0, 1):
            meta = {"_meta": {RELATED: {"taskId": f"t{number}"}}}
            question = later(nursery, server.asks, "elicitation/create", {**FORM, **meta})
            asked = await clients[number].is_asked("elicitation/create")
            assert RELATED not in asked.get("_meta", {})
            clients[number].replies(asked["id"], YES)
            assert await question.comes() == YES
        assert [len(client.server_requests) for client in clients] == [1, 1]
        with pytest.raises(Refusal):
            await server.asks("elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "another"}}})
        nursery.cancel_scope.cancel()


async def test_the_clock_stands_still_while_a_task_waits_for_an_answer() -> None:
    server = handshake_server(timeout=3.0)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        call = later(nursery, client.call, "a__x")
        await begins(server)
        await says_status(server, "input_required", poll=4000)
        result = await server.hears("tasks/result")
        question = later(nursery, server.asks, "elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        asked = await client.is_asked("elicitation/create")
        for _ in range(3):
            await says_status(server, "input_required", poll=4000)
        client.replies(asked["id"], YES)
        assert await question.comes() == YES
        server.says(result["id"], OK)
        assert await call.comes() == OK


async def test_progress_is_told_for_as_long_as_the_task_lives() -> None:
    """(rule 43)"""
    server = handshake_server()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        call = later(nursery, client.call, "a__x", _meta={"progressToken": "mine"})
        asked = await begins(server)
        token = asked["_meta"]["progressToken"]
        await says_status(server)
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
        await says_status(server, "completed")
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 2})
        await says_result(server)
        assert await call.comes() == OK
        assert [each["progress"] for each in client.notifications_of("notifications/progress")] == [1, 2]


# Stateless servers


async def test_the_extension_is_declared_for_tools_and_to_servers_that_have_it() -> None:
    """For every caller, since Colonnade drives what its caller does not take (rule 92)"""
    plain = ScriptedServer("b", tools=["x"], revision=LATEST.name)
    server = extension_server()
    async with open_world(server, plain) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        await world.settled()
        for name, hears, declared in (("a__x", server, True), ("b__x", plain, False)):
            call = later(nursery, client.call, name)
            asked = await hears.hears("tools/call")
            extensions = asked["_meta"][f"{IO}clientCapabilities"].get("extensions", {})
            assert (EXTENSION in extensions) is declared
            hears.says(asked["id"], {"resultType": "complete", **OK})
            await call.comes()
        later(nursery, client.request, "prompts/get", {"name": "a__p"})
        asked = await server.hears("prompts/get")
        assert EXTENSION not in asked["_meta"][f"{IO}clientCapabilities"].get("extensions", {})
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["complete", "task"])
async def test_a_task_of_the_extension_is_driven_for_a_client_that_knows_none(kind: str) -> None:
    """Each question about it says everything about itself, and names the task in its headers (rule 35)"""
    server = extension_server()
    async with calling(server) as (_, call):
        await begins(server)
        asked = await server.hears("tasks/get")
        meta = asked["_meta"]
        assert meta[f"{IO}protocolVersion"] == LATEST.name
        assert EXTENSION in meta[f"{IO}clientCapabilities"]["extensions"]
        method, headers = server.sent_headers[-1]
        found = {name.lower(): each for name, each in headers.items()}
        assert (method, found["mcp-method"], found["mcp-name"]) == ("tasks/get", "tasks/get", "t1")
        server.says(asked["id"], extension_status(kind=kind))
        result = {"resultType": "complete", "_meta": {f"{IO}serverInfo": {"name": "a", "version": "1"}}, **OK}
        await says_status(server, "completed", kind=kind, result=result)
        assert await call.comes() == OK
        server.hears_nothing_more()


async def test_what_a_task_of_the_extension_asks_is_put_to_the_client_once() -> None:
    """All of it at the same time; the answers go with their keys. A key that stands there again is no new question."""
    server = extension_server()
    async with calling(server, capabilities=CAN) as (client, call):
        await begins(server)
        await says_status(server, "input_required", inputRequests={"k": ELICIT, "s": SAMPLE})
        sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}}
        await wait_all_tasks_blocked()
        for question in client.server_requests:  # in no order
            client.replies(question.id, YES if question.method == "elicitation/create" else sampled)
        update = await server.hears("tasks/update")
        assert update["taskId"] == "t1"
        assert update["inputResponses"] == {"k": YES, "s": sampled}
        server.says(update["id"], {"resultType": "complete"})
        await says_status(server, "input_required", inputRequests={"k": ELICIT, "l": ELICIT})
        third = await client.is_asked("elicitation/create", 2)
        client.replies(third["id"], {"action": "decline"})
        update = await server.hears("tasks/update")
        assert update["inputResponses"] == {"l": {"action": "decline"}}
        server.says(update["id"], {"resultType": "complete"})
        await says_status(server, "completed", result=OK)
        assert await call.comes() == OK
        assert len(client.server_requests) == 3


async def test_a_task_whose_client_refuses_is_called_off() -> None:
    """There is no way to tell the server that somebody does not want to."""
    server = extension_server()
    async with calling(server, capabilities=CAN) as (client, call):
        await begins(server)
        await says_status(server, "input_required", inputRequests={"s": SAMPLE})
        client.declines((await client.is_asked("sampling/createMessage"))["id"], -1, "no")
        server.says((await server.hears("tasks/cancel"))["id"], {"resultType": "complete"})
        with pytest.raises(Refusal, match="-1 no"):
            await call.comes()
        server.hears_nothing_more()


async def test_a_task_that_asks_what_it_may_not_is_called_off() -> None:
    server = extension_server()
    async with calling(server, capabilities={}) as (client, call):
        await begins(server)
        await says_status(server, "input_required", inputRequests={"s": SAMPLE})
        server.says((await server.hears("tasks/cancel"))["id"], {"resultType": "complete"})
        assert "asks for what it may not" in await failed(call)
        assert not client.server_requests
        server.hears_nothing_more()


@pytest.mark.parametrize("ends", [True, False])
async def test_what_a_task_asks_is_withdrawn_when_it_ends_or_is_called_off(ends: bool) -> None:
    """It is asked about all the while."""
    server = extension_server()
    async with calling(server, capabilities=CAN) as (client, call):
        await begins(server)
        await says_status(server, "input_required", inputRequests={"k": ELICIT})
        question = await client.is_asked("elicitation/create")
        await says_status(server, "input_required", poll=500 if ends else 30_000, inputRequests={"k": ELICIT})
        if ends:
            await says_status(server, "completed", result=OK)
            assert await call.comes() == OK
        else:
            await wait_all_tasks_blocked()
            client.notifies("notifications/cancelled", {"requestId": 7})
            server.says((await server.hears("tasks/cancel"))["id"], {"resultType": "complete"})
            assert await call.comes() is None
        assert [each["requestId"] for each in client.notifications_of("notifications/cancelled")] == [question["id"]]
        assert len(client.server_requests) == 1
        server.hears_nothing_more()


async def test_a_question_that_a_task_needs_no_more_is_withdrawn() -> None:
    """The task goes on, and may ask something else."""
    server = extension_server()
    async with calling(server, capabilities=CAN) as (client, call):
        await begins(server)
        await says_status(server, "input_required", inputRequests={"k": ELICIT})
        question = await client.is_asked("elicitation/create")
        await says_status(server)
        await wait_all_tasks_blocked()
        assert [each["requestId"] for each in client.notifications_of("notifications/cancelled")] == [question["id"]]
        await says_status(server, "input_required", inputRequests={"l": ELICIT})
        client.replies((await client.is_asked("elicitation/create", 1))["id"], YES)
        update = await server.hears("tasks/update")
        assert update["inputResponses"] == {"l": YES}
        server.says(update["id"], {"resultType": "complete"})
        await completes(server)
        assert await call.comes() == OK


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_what_servers_tell_of_tasks_is_not_needed(make: Any) -> None:
    server = make()
    async with calling(server) as (client, call):
        await begins(server)
        notice = "notifications/tasks" if server.stateless else "notifications/tasks/status"
        await server.notifies(notice, status("cancelled"))
        await completes(server)
        assert await call.comes() == OK
        assert not client.notifications


async def test_a_result_of_a_task_is_not_taken_for_one_where_none_can_be() -> None:
    """Of a prompt, or of a server that was told of no tasks."""
    server = extension_server()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await simple(world)
        await world.settled()
        prompt = later(nursery, client.request, "prompts/get", {"name": "a__p"})
        server.says((await server.hears("prompts/get"))["id"], extension_status(kind="task"))
        with pytest.raises(Refusal, match="whose resultType is not valid here"):
            await prompt.comes()
        server.hears_nothing_more()


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_an_id_that_is_a_task_already_is_not_taken_for_another(make: Any) -> None:
    """What that one asks could be either client's."""
    server = make()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = [await simple(world), await simple(world)]
        await world.settled()
        first = later(nursery, clients[0].call, "a__x")
        await begins(server, poll=4000)
        second = later(nursery, clients[1].call, "a__x")
        await begins(server, poll=4000)
        assert "the same id" in await failed(second)
        await completes(server)
        assert await first.comes() == OK
        server.hears_nothing_more()
