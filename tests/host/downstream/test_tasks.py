"""The tasks of clients, in both dialects, whatever their servers have: who gets one, what can be asked about it and by
whom, what it asks in turn, and how it ends."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from mcp_types import CreateTaskResult, GetTaskResult
from trio.testing import wait_all_tasks_blocked

from config import Auth, Listen, Secret
from host.downstream.detached import DEFAULT_TTL_MS, MAX_TTL_MS, MIN_TTL_MS, PARKED_LIFETIME, REPLAY_LIFETIME
from host.downstream.tasks import CREATION_TIMEOUT, LOST
from host.seal import KEY_BYTES, Seal
from tests.kit.asgi import Connection, Response, open_http_app, open_session
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
from tests.kit.world import Later, Refusal, ScriptedServer, later

pytestmark = pytest.mark.virtual_time

CAN: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
TAKES: dict[str, Any] = {"extensions": {EXTENSION: {}}}
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
ELICIT = {"method": "elicitation/create", "params": {"mode": "form", **FORM}}
SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}}
YES = {"action": "accept", "content": {}}
DESK = {"authorization": "Bearer desk-0123456789abcdef"}
LAPTOP = {"authorization": "Bearer laptop-0123456789abcdef"}
TOKENS = Listen(auth=Auth({name: Secret(f"{name}-0123456789abcdef") for name in ("desk", "laptop")}))
NO_SUCH = "unknown task id; the task may have expired"
TOLD = "notifications/tasks/status"
NOTIFIED = "notifications/tasks"


def call(connection: Connection, id: object = 1, path: str = "/mcp", name: str = "a__x", **more: Any) -> Response:
    """Begin a call in the connection's session."""
    body = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, **more}}
    return connection.send("POST", path, body)


def ask(connection: Connection, method: str, id: object, task: str) -> Response:
    return connection.send("POST", body={"jsonrpc": "2.0", "id": id, "method": method, "params": {"taskId": task}})


def listens(connection: Connection) -> Response:
    """What the session is told outside of any request."""
    return connection.send("GET", headers={"accept": "text/event-stream"})


async def last(answer: Response) -> dict[str, Any]:
    """The response, once it is there."""
    with trio.fail_after(30):
        await answer.complete.wait()
    found: dict[str, Any] = answer.messages()[-1]
    return found


async def result(answer: Response) -> dict[str, Any]:
    found = await last(answer)
    assert "error" not in found, found["error"]
    got: dict[str, Any] = found["result"]
    return got


async def refusal(answer: Response) -> tuple[int, str]:
    found = await last(answer)
    return found["error"]["code"], found["error"]["message"]


async def takes(connection: Connection, server: ScriptedServer, id: object = 1, **more: Any) -> str:
    """A call in the session that becomes a task: its id. The server has begun its own."""
    made = await result(call(connection, id, task=more.pop("task", {}), **more))
    await begins(server)
    name: str = made["task"]["taskId"]
    return name


def about(
    connection: Connection, method: str, task: str, *, id: object = 9, path: str = "/mcp", **more: Any
) -> Response:
    """Ask about a task in the extension."""
    given = {"capabilities": TAKES, "headers": {"mcp-name": task}, **more}
    params = {"taskId": task, **given.pop("params", {})}
    return connection.start(method, params, id=id, path=path, **given)


async def takes_flat(connection: Connection, server: ScriptedServer, **more: Any) -> str:
    """The same without a session."""
    given = {"capabilities": TAKES, **more}
    answer = connection.start("tools/call", {"name": "a__x"}, **given)
    await begins(server)
    made = await result(answer)
    assert made["resultType"] == "task"
    name: str = made["taskId"]
    return name


@asynccontextmanager
async def taking(server: ScriptedServer, **more: Any) -> AsyncIterator[tuple[ScriptedServer, Connection, str]]:
    """A session with a task: its id."""
    async with open_session(server, **more) as (_, connection):
        yield server, connection, await takes(connection, server)


# Who gets one

SERVERS: dict[str, Any] = {
    "required": lambda: handshake_server("required"),
    "optional": lambda: handshake_server("optional"),
    "forbidden": lambda: handshake_server("forbidden"),
    "silent": lambda: handshake_server(None),
    "extended": extension_server,
    "without": lambda: handshake_server("required", capabilities={"tools": {}}),
    "stateless": lambda: extension_server(capabilities={"tools": {}}),
    "older": lambda: handshake_server("required", revision="2025-06-18"),
}
RUN = {"required", "optional", "extended"}
"""Those whose tool can be a task."""
CLIENTS = ("2025-06-18", "2025-11-25", "2025-11-25 with a task", "stateless", "stateless with the extension")


def alone(server: ScriptedServer) -> None:
    """Have it go by itself: what can be a task there becomes one, and is done at once."""

    async def called(params: dict[str, Any]) -> object:
        if server.stateless:
            declared = params["_meta"][f"{IO}clientCapabilities"].get("extensions", {})
            runs = EXTENSION in (server.capabilities or {}).get("extensions", {})
            assert (EXTENSION in declared) is runs
            return extension_status(kind="task") if runs else {"resultType": "complete", **OK}
        return {"task": status()} if "task" in params else OK

    async def stands(params: dict[str, Any]) -> object:
        return extension_status("completed", result=OK) if server.stateless else status("completed")

    async def gave(params: dict[str, Any]) -> object:
        return {**OK, "_meta": {RELATED: {"taskId": "t1"}}}

    server.answers |= {"tools/call": called, "tasks/get": stands, "tasks/result": gave}


@pytest.mark.few(10)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", SERVERS)
async def test_a_task_or_the_result_for_every_client_of_every_server(kind: str, client: str) -> None:
    """The one for those who take one, where the server makes one; and what the definitions say of it (rule 60)
    (rule 90) (rule 92)"""
    server = SERVERS[kind]()
    alone(server)
    async with open_http_app(server) as (_, connection):
        expected = kind in RUN and "with" in client
        if client.startswith("stateless"):
            can = TAKES if "extension" in client else {}
            (listed,) = (await connection.result("tools/list", capabilities=can))["tools"]
            got = await result(connection.start("tools/call", {"name": "a__x"}, capabilities=can))
            assert (got["resultType"] == "task") is expected
            if expected:
                await trio.sleep(1)
                got = (await result(about(connection, "tasks/get", got["taskId"])))["result"]
            assert got["content"] == OK["content"]
            assert "_meta" not in got or RELATED not in got["_meta"]
        else:
            await connection.open(revision=client[:10])
            (listed,) = (await connection.request("tools/list"))["result"]["tools"]
            wish: dict[str, Any] = {"task": {"ttl": 60_000}} if "task" in client else {}
            got = await result(call(connection, **wish))
            assert ("task" in got) is expected
            if expected:
                id = got["task"]["taskId"]
                got = await result(ask(connection, "tasks/result", 2, id))
                assert got.pop("_meta") == {RELATED: {"taskId": id}}
            assert not got.pop("_meta", {})  # where its server named its own task, nothing is left
            assert got == OK
        shown = kind in RUN and client.startswith("2025-11-25")
        assert listed.get("execution") == ({"taskSupport": "optional"} if shown else None)


@pytest.mark.parametrize("tokens", [False, True])
async def test_what_is_declared_depends_on_the_revision_and_on_tokens(tokens: bool) -> None:
    """Whose the tasks are is known by the token alone (rule 93) (rule 92)"""
    async with open_http_app(handshake_server(), listen=TOKENS if tokens else None) as (_, connection):
        connection.headers |= DESK if tokens else {}
        (opened,) = (await connection.open()).messages()
        listing: dict[str, Any] = {"list": {}} if tokens else {}
        declared = {**listing, "cancel": {}, "requests": {"tools": {"call": {}}}}
        assert opened["result"]["capabilities"]["tasks"] == declared
        (older,) = (await connection.another().open(revision="2025-06-18")).messages()
        assert "tasks" not in older["result"]["capabilities"]
        found = (await connection.another().result("server/discover"))["capabilities"]
        assert found["extensions"][EXTENSION] == {}
        assert "tasks" not in found


async def test_a_client_that_knows_no_tasks_can_ask_nothing_about_them() -> None:
    async with open_session(handshake_server(), revision="2025-06-18") as (_, connection):
        for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list"):
            assert (await refusal(ask(connection, method, 1, "a.x")))[0] == -32601


async def test_a_wish_that_cannot_be_read_is_refused() -> None:
    rows: list[object] = [7, "soon", [], {"ttl": "long"}, {"ttl": -1}, {"ttl": 1.5}]
    server = handshake_server()
    async with open_session(server) as (_, connection):
        for wish in rows:
            assert (await refusal(call(connection, task=wish)))[0] == -32602
            server.hears_nothing_more()


async def test_a_wish_for_what_there_is_not_is_refused_as_any_call() -> None:
    async with open_session(handshake_server()) as (_, connection):
        assert await refusal(call(connection, name="a__y", task={})) == (-32602, "Unknown tool: a__y")


# What a task looks like


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, DEFAULT_TTL_MS),
        ({"ttl": None}, DEFAULT_TTL_MS),
        ({"ttl": 60_000}, 60_000),
        ({"ttl": 1e4}, 10_000),
        ({"ttl": 0}, MIN_TTL_MS),
        ({"ttl": 10**12}, MAX_TTL_MS),
    ],
)
async def test_a_task_of_a_session(asked: dict[str, Any], given: int) -> None:
    """Its id is fit for a header, and says nothing of the server's own (rule 91)"""
    server = handshake_server()
    async with open_session(server) as (_, connection):
        got = (await result(call(connection, task=asked)))["task"]
        assert re.fullmatch(r"c1\.[A-Za-z0-9_-]+", got["taskId"])
        assert got["status"] == "working"
        assert got["ttl"] == given
        assert got["pollInterval"] > 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", got["createdAt"])
        assert got["lastUpdatedAt"] >= got["createdAt"]
        assert await result(ask(connection, "tasks/get", 2, got["taskId"])) == got


async def test_a_task_without_a_session() -> None:
    """Flat, and with the host's name on it (rule 91)"""
    server = extension_server()
    async with open_http_app(server) as (_, connection):
        answer = connection.start("tools/call", {"name": "a__x"}, capabilities=TAKES)
        await begins(server)
        got = await result(answer)
        assert got["resultType"] == "task"
        assert re.fullmatch(r"c1\.[A-Za-z0-9_-]+", got["taskId"])
        assert got["ttlMs"] == DEFAULT_TTL_MS
        assert got["_meta"][f"{IO}serverInfo"]["name"] == "colonnade"
        found = await result(about(connection, "tasks/get", got["taskId"]))
        assert found == {**got, "resultType": "complete"}


IMMEDIATE = f"{IO}model-immediate-response"


@pytest.mark.parametrize("make", [lambda: handshake_server("optional"), handshake_server, extension_server])
async def test_a_task_is_told_as_its_server_made_it(make: Any) -> None:
    """To a client with a session, and to one without: message, poll interval, lifetime, and a text for the model."""
    server = make()
    meta = {IMMEDIATE: "It has begun.", "v/k": [1], RELATED: {"taskId": "t1"}, f"{IO}serverInfo": {"name": "theirs"}}
    more: dict[str, Any] = {"statusMessage": "queued", "ttlMs" if server.stateless else "ttl": 90_000}
    polls = "pollIntervalMs" if server.stateless else "pollInterval"

    async def makes(call: Response) -> dict[str, Any]:
        asked = await server.hears("tools/call")
        if server.stateless:
            server.says(asked["id"], {**extension_status(kind="task", poll=700, **more), "_meta": meta})
        else:
            server.says(asked["id"], {"task": status(poll=700, **more), "_meta": meta})
        return await result(call)

    async with open_session(server) as (_, connection):
        got = await makes(call(connection, task={"ttl": 60_000}))
        assert got["_meta"] == {IMMEDIATE: "It has begun.", "v/k": [1]}
        CreateTaskResult.model_validate(got)
        task = got["task"]
        assert [task[name] for name in ("status", "statusMessage", "pollInterval", "ttl")] == [
            "working",
            "queued",
            700,
            60_000 if server.stateless else 90_000,  # the extension has no request for a lifetime
        ]
        await says_status(server, poll=900, statusMessage="half")
        await wait_all_tasks_blocked()
        found = await result(ask(connection, "tasks/get", 2, task["taskId"]))
        assert (found["statusMessage"], found["pollInterval"], found["ttl"]) == ("half", 900, task["ttl"])
        assert "_meta" not in found
        await result(ask(connection, "tasks/cancel", 3, task["taskId"]))
        server.says((await server.hears("tasks/cancel"))["id"], {**more, polls: 1})

        flat = await makes(connection.another().start("tools/call", {"name": "a__x"}, capabilities=TAKES))
        assert {name: flat["_meta"][name] for name in flat["_meta"] if name != f"{IO}serverInfo"} == {
            IMMEDIATE: "It has begun.",
            "v/k": [1],
        }
        assert flat["_meta"][f"{IO}serverInfo"]["name"] == "colonnade"
        assert (flat["statusMessage"], flat["pollIntervalMs"], flat["ttlMs"]) == ("queued", 700, 90_000)


@pytest.mark.parametrize("asks", [False, True])
async def test_what_was_said_of_a_task_at_work_is_not_said_of_one_that_is_over(asks: bool) -> None:
    """Its last message is known unless its server has asked the client, and so was asked for the result before."""
    async with taking(handshake_server()) as (server, connection, id):
        await says_status(server, "input_required" if asks else "working", statusMessage="half")
        await wait_all_tasks_blocked()
        assert (await result(ask(connection, "tasks/get", 2, id)))["statusMessage"] == "half"
        if not asks:
            await says_status(server, "completed", statusMessage="all of it")
        await says_result(server)
        await wait_all_tasks_blocked()
        found = await result(ask(connection, "tasks/get", 3, id))
        assert (found["status"], found.get("statusMessage")) == ("completed", None if asks else "all of it")


async def test_the_message_of_a_failed_task_is_its_servers_or_its_error() -> None:
    for number, said in enumerate(({"statusMessage": "no disk"}, {})):
        server = handshake_server()
        async with open_session(server) as (_, connection):
            id = await takes(connection, server)
            await says_status(server, "failed", **said)
            server.refuses((await server.hears("tasks/result"))["id"], -32603, "boom")
            await wait_all_tasks_blocked()
            found = await result(ask(connection, "tasks/get", 2, id))
            assert (found["status"], found["statusMessage"]) == ("failed", ["no disk", "boom"][number])


@pytest.mark.parametrize("asked", [{}, {"ttl": None}, {"ttl": 60_000}, {"ttl": 0}, {"ttl": 10**12, "own": 1}])
async def test_the_server_is_asked_for_the_lifetime_that_the_client_asks_for(asked: dict[str, Any]) -> None:
    server = handshake_server()
    async with open_session(server) as (_, connection):
        call(connection, task=asked)
        ttl = asked.get("ttl")
        assert (await server.hears("tools/call"))["task"] == ({} if ttl is None else {"ttl": ttl})


async def test_a_call_that_fails_before_it_is_a_task_is_an_error() -> None:
    """As at the server. There is no task then."""
    server = handshake_server()
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers.update(DESK)
        await connection.open()
        told = listens(connection)
        failing = call(connection, task={})
        server.refuses((await server.hears("tools/call"))["id"], -32602, "no such city")
        assert await refusal(failing) == (-32602, "no such city")
        assert (await connection.request("tasks/list"))["result"] == {"tasks": []}
        assert told.messages() == []


async def test_a_call_that_takes_long_to_become_a_task_is_one_at_once() -> None:
    """It waits for a person, or for a server that starts; from then on its client is told how it stands."""
    server = handshake_server()
    async with open_session(server) as (_, connection):
        told = listens(connection)
        began = trio.current_time()
        made = await result(call(connection, task={}))
        assert trio.current_time() - began == pytest.approx(CREATION_TIMEOUT)
        asked = await server.hears("tools/call")
        server.says(asked["id"], {"task": status(statusMessage="queued")})
        (notice,) = await told.wait_messages(1)
        assert notice["params"] == {**notice["params"], "taskId": made["task"]["taskId"], "statusMessage": "queued"}


async def test_a_client_that_leaves_while_its_task_is_made_calls_it_off() -> None:
    server = handshake_server()
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers.update(DESK)
        await connection.open()
        call(connection, id="gone", task={})
        asked = await server.hears("tools/call")
        connection.send(
            "POST", body={"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}}
        )
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        assert (await connection.request("tasks/list"))["result"] == {"tasks": []}


# How a task goes


async def test_a_task_of_a_session_from_its_beginning_to_its_end() -> None:
    """The result names the client's own task, and can be had as often as it is wanted (rule 52)"""
    async with taking(handshake_server()) as (server, connection, id):
        waiting = ask(connection, "tasks/result", 2, id)
        assert (await result(ask(connection, "tasks/get", 3, id)))["status"] == "working"
        await says_status(server)
        assert not waiting.complete.is_set()
        await says_status(server, "completed")
        await says_result(server, {**OK, "_meta": {RELATED: {"taskId": "t1"}, "own": 1}})
        expected = {**OK, "_meta": {"own": 1, RELATED: {"taskId": id}}}
        assert await result(waiting) == expected
        assert (await result(ask(connection, "tasks/get", 4, id)))["status"] == "completed"
        assert await result(ask(connection, "tasks/result", 5, id)) == expected
        server.hears_nothing_more()


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_what_a_tool_calls_an_error_is_a_failure_to_sessions_alone(make: Any) -> None:
    server = make()
    wrong = {**OK, "isError": True}
    async with open_session(server) as (_, connection):
        ids = [await takes(connection, server), ""]
        for at in (0, 1):
            if at:
                ids[1] = await takes_flat(connection.another(), server)
            await says_status(server, "completed" if server.stateless else "failed", result=wrong)
            if not server.stateless:
                await says_result(server, wrong)
        await wait_all_tasks_blocked()
        assert (await result(ask(connection, "tasks/get", 2, ids[0])))["status"] == "failed"
        assert (await result(ask(connection, "tasks/result", 3, ids[0])))["isError"] is True
        found = await result(about(connection.another(), "tasks/get", ids[1]))
        assert found["status"] == "completed"
        assert found["result"]["isError"] is True


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_the_error_of_a_call_is_that_of_its_task(make: Any) -> None:
    server = make()

    async def fails() -> None:
        if server.stateless:
            await says_status(server, "failed", error={"code": 7, "message": "broken", "data": [1]})
        else:
            await says_status(server, "failed")
            server.refuses((await server.hears("tasks/result"))["id"], 7, "broken", [1])
        await wait_all_tasks_blocked()

    async with open_session(server) as (_, connection):
        id = await takes(connection, server)
        await fails()
        found = await result(ask(connection, "tasks/get", 2, id))
        assert (found["status"], found["statusMessage"]) == ("failed", "broken")
        for number in (3, 4):
            error = (await last(ask(connection, "tasks/result", number, id)))["error"]
            assert error == {"code": 7, "message": "broken", "data": [1]}
        stateless = connection.another()
        id = await takes_flat(stateless, server)
        await fails()
        found = await result(about(stateless, "tasks/get", id))
        assert (found["status"], found["error"]) == ("failed", {"code": 7, "message": "broken", "data": [1]})


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_task_whose_server_dies_fails(make: Any) -> None:
    async with taking(make()) as (server, connection, id):
        server.dies()
        found = await result(ask(connection, "tasks/result", 2, id))
        assert found["isError"] is True
        assert (await result(ask(connection, "tasks/get", 3, id)))["status"] == "failed"


async def test_changes_are_told_to_the_session_that_began_it() -> None:
    server = handshake_server()
    async with open_session(server) as (_, connection):
        other = connection.another()
        await other.open()
        told, nothing = listens(connection), listens(other)
        id = await takes(connection, server)
        await says_status(server, "input_required")
        question = server.asks("elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        with pytest.raises(Refusal):
            await question  # the client declares nothing
        await says_result(server)
        notices = await told.wait_messages(1)
        assert [(each["method"], each["params"]["status"]) for each in notices] == [(TOLD, "completed")]
        assert notices[0]["params"] == await result(ask(connection, "tasks/get", 2, id))
        assert nothing.messages() == []


async def test_progress_is_told_for_the_life_of_a_task() -> None:
    """Under the token of the call (rule 43)"""
    server = handshake_server()
    async with open_session(server) as (_, connection):
        told = listens(connection)
        made = await result(call(connection, task={}, _meta={"progressToken": "mine"}))
        asked = await begins(server)
        token = asked["_meta"]["progressToken"]
        for progress in (1, 2):
            await says_status(server)
            await server.notifies("notifications/progress", {"progressToken": token, "progress": progress})
        await completes(server)
        messages = await told.wait_messages(3)
        assert [each["params"].get("progress", each["params"].get("status")) for each in messages] == [
            1,
            2,
            "completed",
        ]
        assert messages[0]["params"]["progressToken"] == "mine"
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 3})
        await result(ask(connection, "tasks/get", 2, made["task"]["taskId"]))
        assert len(told.messages()) == 3


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_task_of_the_extension_has_no_progress(make: Any) -> None:
    """Only what comes before it is a task is told on the request's own stream."""
    server = make()
    async with open_http_app(server) as (_, connection):
        answer = connection.start(
            "tools/call", {"name": "a__x"}, capabilities=TAKES, meta={"progressToken": 5, f"{IO}logLevel": "debug"}
        )
        asked = await server.hears("tools/call")
        token = asked["_meta"]["progressToken"]
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
        server.says(asked["id"], extension_status(kind="task") if server.stateless else {"task": status()})
        made = await result(answer)
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 2})
        await completes(server)
        assert [each["params"]["progress"] for each in answer.messages()[:-1]] == [1]
        assert made["resultType"] == "task"


async def test_a_task_outlives_its_session_and_its_connection() -> None:
    """It is its token's."""
    server = handshake_server()
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers |= DESK
        await connection.open()
        id = await takes(connection, server)
        assert (await connection.get("DELETE")).status in (200, 204)
        other = connection.another()
        await other.open()
        await completes(server)
        assert (await result(ask(other, "tasks/result", 2, id)))["content"] == OK["content"]
        assert (await result(about(other.another(), "tasks/get", id)))["status"] == "completed"


# Whose a task is


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_of_anothers_task_a_session_hears_what_it_hears_of_none(method: str) -> None:
    """By token and by endpoint; nothing happens to the task (rule 91)"""
    server = handshake_server()
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers |= DESK
        await connection.open()
        id = await takes(connection, server)
        laptop, elsewhere = connection.another(), connection.another()
        laptop.headers |= LAPTOP
        await laptop.open()
        await elsewhere.open("/mcp/a")
        body = {"jsonrpc": "2.0", "id": 2, "method": method, "params": {"taskId": id}}
        found = [
            await refusal(ask(laptop, method, 2, id)),
            await refusal(ask(laptop, method, 2, "a.unknown")),
            await refusal(elsewhere.send("POST", "/mcp/a", body)),
        ]
        assert found == [(-32602, NO_SUCH)] * 3
        assert (await result(ask(connection, "tasks/get", 3, id)))["status"] == "working"


@pytest.mark.parametrize("other", [None, "token", "endpoint", "key", "time", "lives"])
async def test_a_task_that_ended_with_the_host_is_over_for_its_owner(
    monkeypatch: pytest.MonkeyPatch, other: str | None
) -> None:
    """It has failed, with what is known, so that its client stops polling. For anybody else there never was one, and
    nobody says so of the task of a process that lives (rule 91)."""
    server, key = handshake_server("optional"), bytes(KEY_BYTES)
    async with open_http_app(server, listen=TOKENS, key=key) as (_, connection):
        connection.headers |= DESK
        await connection.open()
        made = (await result(call(connection, task={})))["task"]
        await begins(server)
    if other == "time":
        await trio.sleep(MAX_TTL_MS / 1000)
    elif other == "lives":
        monkeypatch.setattr(Seal, "has_ended", lambda seal, boot: False)
    key = bytes(range(KEY_BYTES)) if other == "key" else key
    server, id, path = handshake_server("optional"), made["taskId"], "/mcp/a" if other == "endpoint" else "/mcp"
    async with open_http_app(server, listen=TOKENS, key=key) as (_, connection):
        connection.headers |= LAPTOP if other == "token" else DESK
        stateless = connection.another()
        await connection.open(path)

        async def asked(number: int, method: str) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"taskId": id}}
            return await last(connection.send("POST", path, body))

        if other is not None:
            for number, method in enumerate(("tasks/get", "tasks/result", "tasks/cancel")):
                assert (await asked(number, method))["error"]["message"] == NO_SUCH
            assert await refusal(about(stateless, "tasks/get", id, path=path)) == (-32602, NO_SUCH)
            return
        found = (await asked(1, "tasks/get"))["result"]
        assert (found["status"], found["statusMessage"]) == ("failed", LOST)
        assert found["createdAt"] == made["createdAt"]
        GetTaskResult.model_validate(found)
        told = (await asked(2, "tasks/result"))["result"]
        assert (told["isError"], told["content"][0]["text"]) == (True, LOST)
        assert told["_meta"][RELATED] == {"taskId": id}
        assert (await asked(3, "tasks/cancel"))["error"]["message"] == "the task is already over"
        assert (await connection.request("tasks/list", id=4))["result"] == {"tasks": []}
        flat = await result(about(stateless, "tasks/get", id))
        assert (flat["status"], flat["result"]["isError"]) == ("completed", True)
        assert flat["result"]["content"][0]["text"] == LOST
        listening = stateless.another().start(
            "subscriptions/listen", {"notifications": {"taskIds": [id]}}, capabilities=TAKES
        )
        (granted,) = await listening.wait_messages(1)
        assert granted["params"]["notifications"] == {"taskIds": [id]}
        for method in ("tasks/update", "tasks/cancel"):
            more: dict[str, Any] = {"params": {"inputResponses": {}}} if method == "tasks/update" else {}
            assert (await result(about(stateless, method, id, **more)))["resultType"] == "complete"
        assert "tools/call" not in server.asked


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_of_anothers_task_a_stateless_client_hears_what_it_hears_of_none(method: str) -> None:
    """(rule 91)"""
    server = extension_server()
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers |= DESK
        id = await takes_flat(connection, server)
        laptop = connection.another()
        laptop.headers |= LAPTOP
        more: dict[str, Any] = {"params": {"inputResponses": {}}} if method == "tasks/update" else {}
        found = [
            await refusal(about(laptop, method, id, **more)),
            await refusal(about(laptop, method, "a.unknown", **more)),
            await refusal(about(connection, method, id, path="/mcp/a", **more)),
        ]
        assert found == [(-32602, NO_SUCH)] * 3
        assert (await result(about(connection, "tasks/get", id)))["status"] == "working"


async def test_tasks_are_listed_for_their_owner_alone() -> None:
    """(rule 93)"""
    server = handshake_server()
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers |= DESK
        await connection.open()
        first = await takes(connection, server)
        second = (await result(call(connection, 2, task={})))["task"]["taskId"]
        await begins(server, id="t2")
        laptop = connection.another()
        laptop.headers |= LAPTOP
        await laptop.open()
        listed = (await connection.request("tasks/list"))["result"]["tasks"]
        assert [each["taskId"] for each in listed] == [first, second]
        assert (await laptop.request("tasks/list"))["result"] == {"tasks": []}


async def test_without_tokens_nobody_can_be_shown_their_own_tasks() -> None:
    """(rule 93)"""
    server = handshake_server()
    async with open_session(server) as (_, connection):
        await takes(connection, server)
        assert (await connection.request("tasks/list"))["error"]["code"] == -32601


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_who_declares_no_tasks_can_ask_nothing_about_them(method: str) -> None:
    """Whether there are any or not."""
    async with open_http_app(extension_server()) as (_, connection):
        answer = about(connection, method, "a.x", capabilities={}, params={"inputResponses": {}})
        error = (await last(answer))["error"]
        assert (answer.status, error["code"]) == (400, -32021)
        assert error["data"] == {"requiredCapabilities": TAKES}


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_what_only_sessions_know_of_tasks_is_no_stateless_method(method: str) -> None:
    async with open_http_app(extension_server()) as (_, connection):
        answer = about(connection, method, "a.x")
        assert (await refusal(answer))[0] == -32601
        assert answer.status == 404


async def test_the_headers_name_the_task() -> None:
    server = extension_server()
    async with open_http_app(server) as (_, connection):
        id = await takes_flat(connection, server)
        for headers in ({}, {"mcp-name": "another"}):
            answer = about(connection, "tasks/get", id, headers=headers)
            assert (await refusal(answer))[0] == -32020
            assert answer.status == 400


# What a task asks


async def test_a_handshake_server_asks_a_session_while_that_waits_for_the_result() -> None:
    """On the stream of that request, naming the client's own task (rule 52)"""
    async with taking(handshake_server(), capabilities=CAN) as (server, connection, id), trio.open_nursery() as nursery:
        await says_status(server, "input_required", poll=30_000)
        asked = later(nursery, server.asks, "elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        fetched = await server.hears("tasks/result")
        await wait_all_tasks_blocked()
        assert (await result(ask(connection, "tasks/get", 2, id)))["status"] == "input_required"
        waiting = ask(connection, "tasks/result", 3, id)
        (question,) = await waiting.wait_messages(1)
        assert question["params"]["_meta"] == {RELATED: {"taskId": id}}
        assert question["params"]["message"].endswith("Which?")
        assert await connection.notify({"id": question["id"], "result": YES}) == 202
        assert await asked.comes() == YES
        assert (await result(ask(connection, "tasks/get", 4, id)))["status"] == "working"
        server.says(fetched["id"], OK)
        assert (await result(waiting))["content"] == OK["content"]


async def test_a_stateless_server_asks_a_session_by_requests() -> None:
    server = extension_server()
    async with open_session(server, capabilities=CAN) as (_, connection):
        id = await takes(connection, server)
        waiting = ask(connection, "tasks/result", 3, id)
        await says_status(server, "input_required", inputRequests={"k": ELICIT, "s": SAMPLE})
        questions = await waiting.wait_messages(2)
        sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}}
        for question in questions:
            assert question["params"]["_meta"] == {RELATED: {"taskId": id}}
            answer = sampled if question["method"] == SAMPLE["method"] else {"action": "decline"}
            await connection.notify({"id": question["id"], "result": answer})
        update = await server.hears("tasks/update")
        assert update["inputResponses"] == {"k": {"action": "decline"}, "s": sampled}
        server.says(update["id"], {"resultType": "complete"})
        await completes(server)
        assert (await result(waiting))["content"] == OK["content"]


async def test_a_question_waits_for_whoever_waits_for_the_result() -> None:
    """A client that stops waiting is asked again when it waits again, and leaves the task as it is."""
    async with taking(handshake_server(), capabilities=CAN) as (server, connection, id), trio.open_nursery() as nursery:
        await says_status(server, "input_required", poll=30_000)
        asked = later(nursery, server.asks, "elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        fetched = await server.hears("tasks/result")
        waiting = ask(connection, "tasks/result", 3, id)
        (first,) = await waiting.wait_messages(1)
        await connection.notify({"method": "notifications/cancelled", "params": {"requestId": 3}})
        again = ask(connection, "tasks/result", 4, id)
        (second,) = await again.wait_messages(1)
        assert first["id"] != second["id"]
        await connection.notify({"id": second["id"], "result": YES})
        assert await asked.comes() == YES
        server.says(fetched["id"], OK)
        assert (await result(again))["content"] == OK["content"]
        server.hears_nothing_more()


async def test_a_refusal_of_a_client_reaches_the_server() -> None:
    async with taking(handshake_server(), capabilities=CAN) as (server, connection, id), trio.open_nursery() as nursery:
        await says_status(server, "input_required", poll=30_000)
        params = {**SAMPLE["params"], "_meta": {RELATED: {"taskId": "t1"}}}  # type: ignore[dict-item]
        asked = later(nursery, server.asks, "sampling/createMessage", params)
        waiting = ask(connection, "tasks/result", 3, id)
        (question,) = await waiting.wait_messages(1)
        await connection.notify({"id": question["id"], "error": {"code": -1, "message": "no"}})
        with pytest.raises(Refusal, match="-1 no"):
            await asked.comes()
        nursery.cancel_scope.cancel()


async def test_a_handshake_server_asks_a_stateless_client_in_the_status() -> None:
    """Under keys of its own; what nobody asked for is ignored, and each is answered once."""
    server = handshake_server()
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        can = {**CAN, **TAKES}
        id = await takes_flat(connection, server, capabilities=can)
        await says_status(server, "input_required", poll=30_000)
        fetched = await server.hears("tasks/result")
        related = {"_meta": {RELATED: {"taskId": "t1"}}}
        page = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "theirs"}
        keys: set[str] = set()
        for params in ({**FORM, **related}, {**page, **related}):
            asked = later(nursery, server.asks, "elicitation/create", params)
            await wait_all_tasks_blocked()
            found = await result(about(connection, "tasks/get", id, capabilities=can))
            assert found["status"] == "input_required"
            ((key, question),) = found["inputRequests"].items()
            assert key not in keys
            keys.add(key)
            assert question["method"] == "elicitation/create"
            assert "_meta" not in question["params"]
            assert "elicitationId" not in question["params"]
            responses = {key: YES, "unknown": YES, **{old: {"action": "cancel"} for old in keys - {key}}}
            update = about(connection, "tasks/update", id, params={"inputResponses": responses})
            got = await result(update)
            assert {name: each for name, each in got.items() if name != "_meta"} == {"resultType": "complete"}
            assert await asked.comes() == YES
        assert (await result(about(connection, "tasks/get", id)))["status"] == "working"
        server.says(fetched["id"], OK)
        await wait_all_tasks_blocked()
        assert (await result(about(connection, "tasks/get", id)))["result"]["content"] == OK["content"]


async def test_a_stateless_server_asks_a_stateless_client_in_the_status() -> None:
    server = extension_server()
    async with open_http_app(server) as (_, connection):
        can = {**CAN, **TAKES}
        id = await takes_flat(connection, server, capabilities=can)
        await says_status(server, "input_required", inputRequests={"k": ELICIT, "s": {"method": "roots/list"}})
        await wait_all_tasks_blocked()
        asked = (await result(about(connection, "tasks/get", id)))["inputRequests"]
        roots = {"roots": [{"uri": "file:///x"}]}
        for key, question in asked.items():
            answer = roots if question["method"] == "roots/list" else YES
            await result(about(connection, "tasks/update", id, params={"inputResponses": {key: answer}}))
        update = await server.hears("tasks/update")
        assert update["inputResponses"] == {"k": YES, "s": roots}
        server.says(update["id"], {"resultType": "complete"})
        await completes(server)
        await wait_all_tasks_blocked()
        found = await result(about(connection, "tasks/get", id))
        assert found["status"] == "completed"
        assert "inputRequests" not in found


async def test_answers_that_are_none_are_refused() -> None:
    server = extension_server()
    async with open_http_app(server) as (_, connection):
        id = await takes_flat(connection, server)
        for responses in ({}, {"inputResponses": None}, {"inputResponses": 7}, {"inputResponses": {"k": 7}}):
            assert (await refusal(about(connection, "tasks/update", id, params=responses)))[0] == -32602


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_what_is_asked_before_it_is_a_task_ends_the_request(make: Any) -> None:
    """And the next one, with the answer, gets the task."""
    server = make()
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        can = {**CAN, **TAKES}
        answer = connection.start("tools/call", {"name": "a__x"}, capabilities=can)
        asked = await server.hears("tools/call")
        question = Later()
        if server.stateless:
            server.says(asked["id"], {"resultType": "input_required", "inputRequests": {"k": ELICIT}})
        else:
            question = later(nursery, server.asks, "elicitation/create", FORM, about=asked["id"])
        parked = await result(answer)
        assert parked["resultType"] == "input_required"
        responses = dict.fromkeys(parked["inputRequests"], YES)
        state = {"requestState": parked["requestState"]}
        retried = {"name": "a__x", "inputResponses": responses, **state}
        answer = connection.start("tools/call", retried, id=2, capabilities=can)
        if server.stateless:
            again = await begins(server)
            assert again["inputResponses"] == {"k": YES}
        else:
            assert await question.comes() == YES
            server.says(asked["id"], {"task": status()})
        made = await result(answer)
        assert made["resultType"] == "task"
        await completes(server)
        await wait_all_tasks_blocked()
        found = await result(about(connection, "tasks/get", made["taskId"]))
        assert found["result"]["content"] == OK["content"]


async def test_a_call_becomes_a_task_while_its_client_is_asked() -> None:
    """The question ends without an answer. Whatever comes with the state gets the task, the same every time, as long
    as an outcome can be had again; the task itself is there for its own lifetime."""
    server = handshake_server()
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        can = {**CAN, **TAKES}
        answer = connection.start("tools/call", {"name": "a__x"}, capabilities=can)
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", FORM, about=asked["id"])
        parked = await result(answer)
        server.answers["tasks/get"] = still_working(server, 1000, [])
        server.says(asked["id"], {"task": status()})
        assert await question.comes() == {"action": "cancel"}
        retried = {"name": "a__x", "requestState": parked["requestState"]}
        await trio.sleep(PARKED_LIFETIME / 2)
        made = await result(connection.start("tools/call", retried, id=2, capabilities=can))
        assert (made["resultType"], made["status"]) == ("task", "working")
        await trio.sleep(REPLAY_LIFETIME - 1)
        assert await result(connection.start("tools/call", retried, id=3, capabilities=can)) == made
        await trio.sleep(2)
        assert (await refusal(connection.start("tools/call", retried, id=4, capabilities=can)))[0] == -32602
        assert (await result(about(connection, "tasks/get", made["taskId"])))["status"] == "working"
        nursery.cancel_scope.cancel()


async def test_a_task_whose_client_never_came_for_it_goes_on() -> None:
    """Until its lifetime is up, though its state is good for nothing any more."""
    server = handshake_server()
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        can = {**CAN, **TAKES}
        answer = connection.start("tools/call", {"name": "a__x"}, capabilities=can)
        asked = await server.hears("tools/call")
        later(nursery, server.asks, "elicitation/create", FORM, about=asked["id"])
        parked = await result(answer)
        server.answers["tasks/get"] = still_working(server, 10_000, [])
        server.says(asked["id"], {"task": status()})
        await trio.sleep(PARKED_LIFETIME + 1)
        retried = {"name": "a__x", "requestState": parked["requestState"]}
        assert (await refusal(connection.start("tools/call", retried, id=2, capabilities=can)))[0] == -32602
        server.hears_nothing_more()
        await trio.sleep(DEFAULT_TTL_MS / 1000 - PARKED_LIFETIME)
        await server.hears("tasks/cancel")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_client_without_tasks_is_asked_by_its_own_request(make: Any) -> None:
    """While the task is driven for it."""
    server = make()
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        answer = connection.start("tools/call", {"name": "a__x"}, capabilities=CAN)
        await begins(server)
        question, fetched = Later(), {}
        if server.stateless:
            await says_status(server, "input_required", poll=30_000, inputRequests={"k": ELICIT})
        else:
            await says_status(server, "input_required", poll=30_000)
            params = {**FORM, "_meta": {RELATED: {"taskId": "t1"}}}
            question = later(nursery, server.asks, "elicitation/create", params)
            fetched = await server.hears("tasks/result")
        parked = await result(answer)
        assert parked["resultType"] == "input_required"
        retried = {
            "name": "a__x",
            "inputResponses": dict.fromkeys(parked["inputRequests"], YES),
            "requestState": parked["requestState"],
        }
        answer = connection.start("tools/call", retried, id=2, capabilities=CAN)
        if server.stateless:
            update = await server.hears("tasks/update")
            assert update["inputResponses"] == {"k": YES}
            server.says(update["id"], {"resultType": "complete"})
            await completes(server)
        else:
            assert await question.comes() == YES
            server.says(fetched["id"], OK)
        assert (await result(answer))["content"] == OK["content"]


async def test_a_task_that_cannot_be_asked_here_is_not() -> None:
    """What the request that began it did not declare is no more asked of its task."""
    server = handshake_server()
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        id = await takes_flat(connection, server)
        await says_status(server, "input_required", poll=30_000)
        params = {**FORM, "_meta": {RELATED: {"taskId": "t1"}}}
        with pytest.raises(Refusal):
            await server.asks("elicitation/create", params)
        assert (await result(about(connection, "tasks/get", id)))["status"] == "working"
        nursery.cancel_scope.cancel()


# How a task ends before its time


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_session_calls_its_task_off(make: Any) -> None:
    """Once, and at its server as well (rule 46)"""
    async with taking(make()) as (server, connection, id):
        await says_status(server)
        await trio.sleep(0.1)
        waiting = ask(connection, "tasks/result", 2, id)
        await wait_all_tasks_blocked()
        assert (await result(ask(connection, "tasks/cancel", 3, id)))["status"] == "cancelled"
        asked = await server.hears("tasks/cancel")
        assert asked["taskId"] == "t1"
        server.says(asked["id"], extension_status("cancelled"))
        assert (await last(waiting))["error"]["message"] == "the task was cancelled"
        assert (await result(ask(connection, "tasks/get", 4, id)))["status"] == "cancelled"
        assert (await refusal(ask(connection, "tasks/cancel", 5, id)))[0] == -32602
        server.hears_nothing_more()


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_stateless_client_calls_its_task_off(make: Any) -> None:
    """As often as it likes: that is only heard (rule 46)"""
    server = make()
    async with open_http_app(server) as (_, connection):
        id = await takes_flat(connection, server)
        await says_status(server)
        await trio.sleep(0.1)
        for _ in range(2):
            got = await result(about(connection, "tasks/cancel", id))
            assert {name: each for name, each in got.items() if name != "_meta"} == {"resultType": "complete"}
        server.says((await server.hears("tasks/cancel"))["id"], extension_status("cancelled"))
        assert (await result(about(connection, "tasks/get", id)))["status"] == "cancelled"
        server.hears_nothing_more()


async def test_what_a_task_asked_is_withdrawn_when_it_is_called_off() -> None:
    async with taking(handshake_server(), capabilities=CAN) as (server, connection, id), trio.open_nursery() as nursery:
        await says_status(server, "input_required", poll=30_000)
        fetched = await server.hears("tasks/result")
        asked = later(nursery, server.asks, "elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        waiting = ask(connection, "tasks/result", 2, id)
        (question,) = await waiting.wait_messages(1)
        await result(ask(connection, "tasks/cancel", 3, id))
        with pytest.raises(Refusal):
            await asked.comes()
        withdrawn = (await waiting.wait_messages(2))[1]
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", question["id"])
        assert (await server.hears("notifications/cancelled"))["requestId"] == fetched["id"]
        await server.hears("tasks/cancel")


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_client_without_tasks_that_leaves_ends_the_task_of_its_server(make: Any) -> None:
    """(rule 46)"""
    server = make()
    async with open_http_app(server) as (_, connection):
        connection.start("tools/call", {"name": "a__x"})
        await begins(server)
        await says_status(server)
        await trio.sleep(0.1)
        connection.leaves.set()
        server.says((await server.hears("tasks/cancel"))["id"], extension_status("cancelled"))
        await wait_all_tasks_blocked()
        server.hears_nothing_more()


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_client_that_has_its_task_may_leave(make: Any) -> None:
    server = make()
    async with open_http_app(server) as (_, connection):
        leaving = connection.another()
        id = await takes_flat(leaving, server)
        leaving.leaves.set()
        await completes(server)
        await wait_all_tasks_blocked()
        assert (await result(about(connection, "tasks/get", id)))["status"] == "completed"


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_client_that_leaves_before_it_has_its_task_calls_it_off(make: Any) -> None:
    server = make()
    async with open_http_app(server) as (_, connection):
        connection.start("tools/call", {"name": "a__x"}, capabilities=TAKES)
        asked = await server.hears("tools/call")
        connection.leaves.set()
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_task_whose_time_is_up_is_called_off_and_gone(make: Any) -> None:
    server = make()
    times: list[float] = []
    server.answers["tasks/get"] = still_working(server, 1000, times)
    async with open_session(server) as (_, connection):
        id = await takes(connection, server, task={"ttl": 60_000})
        await trio.sleep(58)  # its creation took a second
        assert (await result(ask(connection, "tasks/get", 2, id)))["status"] == "working"
        await trio.sleep(1.1)
        server.says((await server.hears("tasks/cancel"))["id"], extension_status("cancelled"))
        assert await refusal(ask(connection, "tasks/get", 3, id)) == (-32602, NO_SUCH)
        assert len(times) >= 58
        server.hears_nothing_more()


# Being told


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_whoever_listens_hears_how_its_tasks_stand(make: Any) -> None:
    """Its own, and those that it named; all that `tasks/get` would say, marked as the subscription's (rule 91)"""
    server = make()
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers |= DESK
        id = await takes_flat(connection, server, capabilities={**CAN, **TAKES})
        wanted = {"notifications": {"taskIds": [id, "a.unknown"]}}
        mine = connection.start("subscriptions/listen", wanted, id="l", capabilities=TAKES)
        laptop = connection.another()
        laptop.headers |= LAPTOP
        other = laptop.start("subscriptions/listen", wanted, id="l", capabilities=TAKES)
        meta = {f"{IO}subscriptionId": "l"}
        (granted,) = await mine.wait_messages(1)
        assert granted["params"] == {"_meta": meta, "notifications": {"taskIds": [id]}}
        assert (await other.wait_messages(1))[0]["params"]["notifications"] == {}
        if server.stateless:
            await says_status(server, "input_required", inputRequests={"k": ELICIT})
        else:
            await says_status(server, "failed")
            server.refuses((await server.hears("tasks/result"))["id"], 7, "broken")
        notice = (await mine.wait_messages(2))[1]
        found = await result(about(connection, "tasks/get", id))
        assert notice["method"] == NOTIFIED
        said = {name: each for name, each in found.items() if name not in ("resultType", "_meta")}
        assert notice["params"] == {**said, "_meta": meta}
        assert len(other.messages()) == 1


async def test_who_declares_no_tasks_cannot_listen_for_them() -> None:
    async with open_http_app(extension_server()) as (_, connection):
        answer = connection.start("subscriptions/listen", {"notifications": {"taskIds": ["a.x"]}})
        error = (await last(answer))["error"]
        assert (answer.status, error["code"]) == (400, -32021)
        assert error["data"] == {"requiredCapabilities": TAKES}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_a_server_without_tasks_has_no_methods_for_them(method: str) -> None:
    """At its own endpoint, as at the server itself. At that of all servers a task is unknown."""
    async with open_http_app(ScriptedServer("a", tools=["x"])) as (world, connection):
        await world.settled()
        for path, refused in (("/mcp/a", (-32601, "Method not found")), ("/mcp", (-32602, NO_SUCH))):
            client = connection.another()
            await client.open(path)
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"taskId": "a.1"}}
            assert await refusal(client.send("POST", path, body)) == refused
            assert await refusal(about(client, method, "a.1", path=path)) == refused
