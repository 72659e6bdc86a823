"""Streamable HTTP: the two forms of an answer, sessions, batches, questions, and what is said unasked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Auth, Capacity, Isolation, Listen, Secret
from host.downstream import sessions as sessions_module
from host.downstream.http.replies import KEEP_FINISHED, MAX_KEPT, STREAM_DELAY
from host.downstream.stored_sessions import IDLE_TIMEOUT
from host.journal import InternalError
from host.jsonrpc.messages import Notification
from host.jsonrpc.raw import encode
from host.wire.asgi import HEARTBEAT_INTERVAL
from tests.kit.asgi import Connection, Response, open_http_app, open_session
from tests.kit.world import Later, ScriptedServer, later, tool
from tests.kit.world import Refusal as Refused

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}
PROGRESS_CALL = {**CALL, "params": {"name": "a__x", "_meta": {"progressToken": "t"}}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
LAPTOP, DESK = "laptop-0123456789abcdef", "desk-0123456789abcdef"


@asynccontextmanager
async def calling(
    body: object = CALL, *, revision: str = "2025-11-25", capabilities: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[ScriptedServer, Connection, Response, dict[str, Any]]]:
    """A call in a session, and its params as the server has heard them."""
    server = ScriptedServer("a", tools=["x"], **more)
    async with open_session(server, revision=revision, capabilities=capabilities) as (_, connection):
        call = connection.send("POST", body=body)
        yield server, connection, call, await server.hears("tools/call")


async def test_an_answer_alone_is_json(connection: Connection) -> None:
    opened = await connection.open()
    assert opened.status == 200
    assert opened.headers["content-type"] == "application/json"
    result = opened.messages()[0]["result"]
    assert result["protocolVersion"] == "2025-11-25"
    assert result["serverInfo"]["name"] == "colonnade"
    answer = await connection.get("POST", body=PING)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.messages() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_each_handshake_revision_is_served_as_asked_for(connection: Connection, revision: str) -> None:
    result = (await connection.open(revision=revision)).messages()[0]["result"]
    assert result["protocolVersion"] == revision
    assert ("completions" in result["capabilities"]) == (revision != "2024-11-05")
    assert [tool["name"] for tool in (await connection.request("tools/list"))["result"]["tools"]] == ["a__x"]


@pytest.mark.parametrize("revision", ["2023-01-01", "2026-07-28", "", "x" * 1000])
async def test_another_revision_is_answered_with_our_latest(connection: Connection, revision: str) -> None:
    result = (await connection.open(revision=revision)).messages()[0]["result"]
    assert result["protocolVersion"] == "2025-11-25"


async def test_progress_opens_a_stream_and_comes_before_the_answer() -> None:
    async with calling(PROGRESS_CALL) as (server, _, call, asked):
        await wait_all_tasks_blocked()
        assert not call.started.is_set()
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        await call.wait_messages(1)
        assert call.streams
        assert not call.complete.is_set()
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        progress, answer = call.messages()
        assert progress["params"] == {"progressToken": "t", "progress": 1}
        assert answer == {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}


async def test_a_call_that_takes_long_becomes_a_stream_with_signs_of_life(autojump_clock: MockClock) -> None:
    async with calling() as (server, _, call, asked):
        await trio.sleep(STREAM_DELAY / 2)
        assert not call.started.is_set()
        await trio.sleep(2 * HEARTBEAT_INTERVAL + STREAM_DELAY)
        assert call.streams
        assert call.body == b"id: 1.Nw-0\nretry: 1000\ndata:\n\n" + b": working\n\n" * 2
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        assert call.messages() == [{"jsonrpc": "2.0", "id": 7, "result": {"content": []}}]


@pytest.mark.parametrize(
    ("revision", "begins"),
    [
        ("2024-11-05", b"data: "),
        ("2025-03-26", b"id: 1.Nw-0\ndata: "),
        ("2025-06-18", b"id: 1.Nw-0\ndata: "),
        ("2025-11-25", b"id: 1.Nw-0\nretry: 1000\ndata:\n\nid: 1.Nw-1\ndata: "),
    ],
)
async def test_streams_begin_as_the_revision_has_them(revision: str, begins: bytes, autojump_clock: MockClock) -> None:
    """Clients before 2025-11-25 fail on an event without data."""
    async with calling(revision=revision) as (server, _, call, asked):
        await trio.sleep(1)
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        assert call.body.startswith(begins)


async def test_a_broken_stream_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    async with calling(PROGRESS_CALL) as (server, connection, call, asked):
        token = asked["_meta"]["progressToken"]
        for progress in (1, 2):
            await server.notifies("notifications/progress", {"progressToken": token, "progress": progress})
        await call.wait_messages(2)
        connection.leaves.set()
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 3})
        again = connection.another()
        again.session = connection.session
        rest = again.send("GET", headers={"last-event-id": "1.Nw-1"})
        assert [message["params"]["progress"] for message in await rest.wait_messages(2)] == [2, 3]
        server.says(asked["id"], {"content": []})
        await rest.complete.wait()
        assert rest.messages()[-1]["result"] == {"content": []}
        late = await again.get("GET", headers={"last-event-id": "1.Nw-3"})
        assert late.messages() == [rest.messages()[-1]]


@pytest.mark.few(2)
@pytest.mark.parametrize("last", ["", "1", "1-", "1-9", "1--1", "2-0", "x-0", "1-99999999999999999999", "1-\u00b2"])
async def test_an_event_id_that_is_not_ours_begins_the_standing_stream_anew(
    last: str, autojump_clock: MockClock
) -> None:
    """It resumes nothing: what the stream of the call has is not repeated."""
    async with calling() as (server, connection, _, asked):
        await trio.sleep(1)
        begun = connection.another(connection.session).send("GET", headers={"last-event-id": last})
        await trio.sleep(1)
        server.says(asked["id"], {"content": []})
        server.lists["tools"].append(tool("new"))
        await server.notifies("notifications/tools/list_changed")
        assert [each["method"] for each in await begun.wait_messages(1)] == ["notifications/tools/list_changed"]
        second = await connection.another(connection.session).get("GET", headers={"last-event-id": "nope"})
        assert second.status == 409


async def test_a_stream_of_another_session_resumes_nothing(autojump_clock: MockClock) -> None:
    async with calling() as (_, connection, _, _):
        await trio.sleep(1)
        other = connection.another()
        await other.open()
        begun = other.send("GET", headers={"last-event-id": "1-0"})
        await trio.sleep(1)
        assert (begun.status, begun.messages()) == (200, [])


async def test_a_finished_stream_is_kept_for_a_while_and_no_longer(autojump_clock: MockClock) -> None:
    async with calling() as (server, connection, call, asked):
        await trio.sleep(1)
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        await trio.sleep(KEEP_FINISHED - 10)
        assert len((await connection.get("GET", headers={"last-event-id": "1.Nw-0"})).messages()) == 1
        await trio.sleep(80)
        late = await connection.another(connection.session).get("GET", headers={"last-event-id": "1.Nw-0"})
        assert_lost(late, 7)


def assert_lost(rest: Response, id: int | str) -> None:
    """The one answer is that the answer to this request is lost, with which its client waits no longer."""
    (answer,) = rest.messages()
    assert (rest.status, answer["id"], answer["error"]["code"]) == (200, id, 503)
    assert "may have been carried out" in answer["error"]["message"]


@pytest.mark.parametrize("id", [7, -(2**63), "", "a-b.c", "\U0001f600" * 60])
async def test_a_call_whose_stream_is_lost_is_answered_with_that(id: int | str, autojump_clock: MockClock) -> None:
    """Also in another process of the session, which knows nothing of the call."""
    async with calling({**CALL, "id": id}) as (_, connection, call, _):
        await trio.sleep(1)
        last = call.body.split(b"\n")[0].removeprefix(b"id: ").decode()
        other = connection.another()
        await other.open()
        assert_lost(await other.get("GET", headers={"last-event-id": last}), id)
        begun = other.send("GET")
        await trio.sleep(1)
        assert (begun.status, begun.messages()) == (200, []), "the standing stream is still to be had"


async def test_a_cancelled_call_gets_nothing_more() -> None:
    async with calling() as (server, connection, call, asked):
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert (await connection.get("POST", body=notice)).status == 202
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        await call.complete.wait()
        assert (call.status, call.messages()) == (200, [])


async def test_a_client_that_leaves_does_not_cancel_its_call() -> None:
    async with calling() as (server, connection, _, asked):
        connection.leaves.set()
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        server.says(asked["id"], {"content": []})
        await wait_all_tasks_blocked()


async def test_many_calls_with_one_id_are_answered_each_at_its_own_caller() -> None:
    async def answer(params: dict[str, Any]) -> object:
        await trio.lowlevel.checkpoint()
        return {"content": [params["arguments"]["n"]]}

    servers = [ScriptedServer(id, tools=["x"], answers={"tools/call": answer}) for id in ("a", "b")]
    async with open_session(*servers) as (_, connection):
        calls = []
        for n in range(200):
            params = {"name": f"{'ab'[n % 2]}__x", "arguments": {"n": n}, "_meta": {"progressToken": 1}}
            calls.append(
                connection.send("POST", body={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            )
        for n, call in enumerate(calls):
            await call.complete.wait()
            assert call.messages() == [{"jsonrpc": "2.0", "id": 1, "result": {"content": [n]}}]


@pytest.mark.slow
async def test_the_standing_stream_tells_what_changed_in_this_clients_view() -> None:
    a, b = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["x"])
    async with open_session(a, b) as (_, connection):
        stream = connection.send("GET", headers={"accept": "text/event-stream"})
        alone = connection.another()
        await alone.open("/mcp/a")
        other = alone.send("GET", "/mcp/a", headers={"accept": "text/event-stream"})
        await wait_all_tasks_blocked()
        assert (stream.status, other.status) == (200, 200)
        b.lists["tools"].append(tool("new"))
        await b.notifies("notifications/tools/list_changed")
        assert await stream.wait_messages(1) == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]
        assert other.messages() == []
        a.lists["tools"][0]["description"] = "changed"
        await a.notifies("notifications/tools/list_changed")
        await other.wait_messages(1)
        await stream.wait_messages(2)


async def test_a_list_changed_that_changes_nothing_is_not_passed_on(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server) as (_, connection):
        stream = connection.send("GET")
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(5)
        assert stream.messages() == []


async def test_a_change_while_no_stream_was_open_is_told_when_one_opens(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server) as (_, connection):
        server.lists["tools"].append(tool("new"))
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(1)
        stream = connection.send("GET")
        await stream.wait_messages(1)


async def test_a_client_that_comes_back_at_once_is_not_taken_for_a_second_one(autojump_clock: MockClock) -> None:
    async with open_session() as (_, connection):
        first = connection.send("GET")
        await first.started.wait()
        again = connection.another()
        again.session = connection.session
        second = again.send("GET")
        await trio.sleep(0.1)
        connection.leaves.set()
        await second.started.wait()
        assert second.status == 200


async def test_a_notice_that_perhaps_was_not_heard_is_repeated_on_the_next_stream(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server) as (_, connection):
        first = connection.send("GET")
        server.lists["tools"].append(tool("y"))
        await server.notifies("notifications/tools/list_changed")
        await first.wait_messages(1)
        connection.leaves.set()
        again = connection.another()
        again.session = connection.session
        second = again.send("GET")
        assert await second.wait_messages(1) == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]
        await again.request("tools/list")
        again.leaves.set()
        last = connection.another()
        last.session = connection.session
        third = last.send("GET")
        await trio.sleep(5)
        assert third.messages() == []


async def test_a_second_stream_is_refused_and_the_first_goes_on(autojump_clock: MockClock) -> None:
    async with open_session() as (_, connection):
        first = connection.send("GET")
        await first.started.wait()
        assert (await connection.get("GET")).status == 409
        assert not first.complete.is_set()


async def test_a_standing_stream_whose_session_ends_before_its_turn_ends_at_once() -> None:
    """It waits for the former one, which the end of the session ends."""
    async with open_session() as (world, connection):
        former = connection.another(connection.session).send("GET")
        await former.started.wait()
        later = connection.another(connection.session).send("GET")
        await wait_all_tasks_blocked()
        assert (await connection.get("DELETE")).status == 204
        for stream in (former, later):
            with trio.fail_after(5):
                await stream.complete.wait()
        assert (later.status, later.messages()) == (200, [])
        assert [event for event in world.events if isinstance(event, InternalError)] == []


async def test_the_standing_stream_ends_when_the_host_stops() -> None:
    async with open_session() as (_, connection):
        stream = connection.send("GET")
        await stream.started.wait()
        connection.stop.set()
        await stream.complete.wait()


async def test_a_deleted_session_is_gone_and_its_calls_are_called_off() -> None:
    async with calling() as (server, connection, _, asked):
        assert (await connection.get("DELETE")).status == 204
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        for method in ("POST", "GET", "DELETE"):
            assert (await connection.get(method, body=PING if method == "POST" else b"")).status == 404


async def test_a_deleted_sessions_stream_ends_with_it() -> None:
    async with open_session() as (_, connection):
        stream = connection.send("GET")
        await stream.started.wait()
        await connection.get("DELETE")
        await stream.complete.wait()


async def test_a_session_is_known_only_at_its_own_endpoint(connection: Connection) -> None:
    await connection.open("/mcp/a")
    assert (await connection.get("POST", "/mcp/a", PING)).status == 200
    for method in ("POST", "GET", "DELETE"):
        assert (await connection.get(method, "/mcp", PING if method == "POST" else b"")).status == 404


async def test_unknown_dead_and_foreign_sessions_are_answered_alike(connection: Connection) -> None:
    await connection.open("/mcp/a")
    foreign = await connection.get("POST", "/mcp", PING)
    connection.session = "never-was"
    unknown = await connection.get("POST", "/mcp", PING)
    assert (unknown.status, unknown.body) == (foreign.status, foreign.body)
    assert unknown.messages()[0]["id"] == 1


async def test_what_cannot_be_a_session_id_is_refused(connection: Connection) -> None:
    rows: list[str] = ["", "a b", "é", "x" * 129, "../../etc/passwd\x7f"]
    for id in rows:
        assert (await connection.get("POST", body=PING, headers={"mcp-session-id": id})).status in (400, 404)


async def test_a_second_initialize_in_a_session_is_refused() -> None:
    async with open_session() as (_, connection):
        message = await connection.request("initialize", {"protocolVersion": "2024-11-05"})
        assert message["error"]["code"] == -32600


async def test_a_request_without_a_session_is_refused(connection: Connection) -> None:
    answer = await connection.get("POST", body=PING)
    assert (answer.status, answer.messages()[0]["error"]["code"], answer.messages()[0]["id"]) == (400, -32600, 1)


async def test_the_version_header_names_the_sessions_own_revision() -> None:
    rows: list[tuple[str | None, int]] = [
        (None, 200),
        ("2025-11-25", 200),
        ("2024-11-05", 400),
        ("2026-07-28", 400),
        ("", 400),
        ("nonsense", 400),
    ]
    async with open_session() as (_, connection):
        for header, status in rows:
            assert (await connection.get("POST", body=PING, headers={"mcp-protocol-version": header})).status == status


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "TRACE"])
async def test_other_methods_are_refused(connection: Connection, method: str) -> None:
    answer = await connection.get(method)
    assert (answer.status, "POST" in answer.headers["allow"]) == (405, True)


async def test_a_body_that_is_no_message_is_refused() -> None:
    rows: list[tuple[bytes, int]] = [
        (b"", -32700),
        (b"{", -32700),
        (b"{} {}", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":2}}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1e400}}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xff"}}', -32700),
        (b"[" * 100_000, -32700),
        (b"[" + b"{}," * 200_000 + b"{}]", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.0,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"Method":"ping"}', -32600),
    ]
    async with open_session() as (_, connection):
        for body, code in rows:
            answer = await connection.get("POST", body=body)
            assert (answer.status, answer.messages()[0]["error"]["code"]) == (400, code)
            assert (await connection.get("POST", body=PING)).status == 200


async def test_an_answer_to_nobodys_question_is_taken_and_dropped() -> None:
    async with open_session() as (_, connection):
        for body in (
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}},
        ):
            assert (await connection.get("POST", body=body)).status == 202


async def test_the_oldest_idle_session_makes_room() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, capacity=Capacity(sessions=20)) as (_, connection):
        await connection.open()
        busy = connection.session
        connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        connection.session = None
        await connection.open()
        oldest = connection.session
        for _ in range(19):
            connection.session = None
            await connection.open()
        connection.session = oldest
        assert (await connection.get("POST", body=PING)).status == 404
        connection.session = busy
        assert (await connection.get("POST", body=PING)).status == 200
        server.says(asked["id"], {"content": []})


async def test_sessions_that_nobody_uses_are_forgotten(autojump_clock: MockClock) -> None:
    async with open_session() as (_, connection):
        await trio.sleep(IDLE_TIMEOUT + 120)
        assert (await connection.get("POST", body=PING)).status == 404


# Batches


def batch(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"jsonrpc": "2.0", **message} for message in messages]


async def test_a_batch_is_answered_message_by_message_each_as_its_own_event() -> None:
    """What is a request is answered, what is broken is refused, and what is a notice is taken (rule 6)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, revision="2025-03-26") as (_, connection):
        mixed = [
            *batch(
                {"id": 1, "method": "ping"},
                {"id": "1", "method": "tools/list"},
                {"method": "notifications/unheard"},
                {"id": 9, "result": {}},
                {"id": 2, "method": "tools/call", "params": {"name": "a__x"}},
                {"id": 3, "method": "no/such"},
            ),
            {"id": 4, "method": "ping"},
            1,
        ]
        answer = connection.send("POST", body=mixed)
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        await answer.complete.wait()
        assert answer.streams
        assert len(answer.events()) == 6
        answers = {repr(each.get("id")): each.get("error", {}).get("code") for each in answer.messages()}
        assert answers == {"1": None, "'1'": None, "2": None, "3": -32601, "4": -32600, "None": -32600}


class Passes(trio.abc.Instrument):
    """How many requests of a batch take their first step in one pass of the event loop, at most."""

    def __init__(self) -> None:
        self.seen: set[trio.lowlevel.Task] = set()
        self.before = self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith("._answer_one"):
            self.seen.add(task)

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, len(self.seen) - self.before)
        self.before = len(self.seen)


async def test_others_take_their_turns_between_the_requests_of_a_batch() -> None:
    passes = Passes()
    async with open_session(ScriptedServer("a", tools=["x"]), revision="2025-03-26") as (_, connection):
        trio.lowlevel.add_instrument(passes)
        answer = connection.send("POST", body=batch(*({"id": each, "method": "ping"} for each in range(50))))
        await answer.complete.wait()
        trio.lowlevel.remove_instrument(passes)
        assert len(answer.events()) == len(passes.seen) == 50
        assert passes.most == 1


async def test_an_answer_in_a_batch_does_not_wait_for_the_others() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, revision="2025-03-26") as (_, connection):
        answer = connection.send("POST", body=[CALL, PING])
        asked = await server.hears("tools/call")
        assert [each["id"] for each in await answer.wait_messages(1)] == [1]
        assert not answer.complete.is_set()
        server.says(asked["id"], {"content": []})
        await answer.complete.wait()
        assert [each["id"] for each in answer.messages()] == [1, 7]


async def test_of_a_batch_one_call_can_be_called_off() -> None:
    """It is answered with nothing, the rest as ever (rule 47)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, revision="2025-03-26") as (_, connection):
        answer = connection.send("POST", body=[CALL, {**CALL, "id": 8}])
        heard = [await server.hears("tools/call") for _ in range(2)]
        assert await connection.notify({"method": "notifications/cancelled", "params": {"requestId": 7}}) == 202
        gone = (await server.hears("notifications/cancelled"))["requestId"]
        for each in heard:
            if each["id"] != gone:
                server.says(each["id"], {"content": []})
        await answer.complete.wait()
        assert [each["id"] for each in answer.messages()] == [8]


async def test_a_call_can_be_called_off_in_its_own_batch() -> None:
    """(rule 47) It is answered with nothing, whether the server heard of it or not."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, revision="2025-03-26") as (_, connection):
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 7}}
        answer = connection.send("POST", body=batch({**CALL}, {**CALL, "id": 8}, cancel))
        asked = await server.hears("tools/call")
        server.says(asked["id"], {"content": []})
        with trio.fail_after(5):
            await answer.complete.wait()
        assert [each["id"] for each in answer.messages()] == [8]
        server.hears_nothing_more()


@pytest.mark.parametrize(
    "messages",
    [
        [{"method": "notifications/initialized"}],
        [{"method": "x"}, {"id": 1, "result": {}}, {"id": None, "error": {"code": 1, "message": ""}}, {"result": {}}],
    ],
)
async def test_a_batch_that_asks_nothing_is_taken(messages: list[dict[str, Any]]) -> None:
    """(rule 6)"""
    async with open_session(revision="2025-03-26") as (_, connection):
        answer = await connection.get("POST", body=batch(*messages))
        assert (answer.status, answer.body) == (202, b"")


async def test_a_batch_that_is_empty_too_large_or_broken_is_one_error() -> None:
    """(rule 6)"""
    rows: list[tuple[bytes, int]] = [
        (b"[]", -32600),
        (json.dumps([PING] * 101).encode(), -32600),
        (b"[" + b"1," * 300_000 + b"1]", -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping","method":"x"}]', -32700),
        (b"[1]", -32600),
        (b"[[]]", -32600),
        (b"[", -32700),
    ]
    async with open_session(revision="2025-03-26") as (_, connection):
        for body, code in rows:
            answer = await connection.get("POST", body=body)
            assert (answer.status, [each["error"]["code"] for each in answer.messages()]) == (400, [code])
            assert "id" not in answer.messages()[0]


async def test_initialize_does_not_stand_in_a_batch(connection: Connection) -> None:
    """Neither within a session nor to open one; what stands beside it is served (rules 6 and 13)."""
    hello = {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {"protocolVersion": "2025-03-26"}}
    alone = await connection.get("POST", body=[hello])
    assert (alone.status, "mcp-session-id" in alone.headers) == (400, False)
    await connection.open(revision="2025-03-26")
    answer = await connection.get("POST", body=[hello, PING])
    assert sorted((each["id"], each.get("error", {}).get("code")) for each in answer.messages()) == [
        (1, None),
        (5, -32600),
    ]


async def test_one_id_twice_in_a_batch_is_two_requests() -> None:
    async def answer(params: dict[str, Any]) -> object:
        return {"content": [params["arguments"]["n"]]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": answer})
    async with open_session(server, revision="2025-03-26") as (_, connection):
        calls = [{**CALL, "params": {"name": "a__x", "arguments": {"n": n}}} for n in range(3)]
        got = await connection.get("POST", body=calls)
        assert sorted(each["result"]["content"][0] for each in got.messages()) == [0, 1, 2]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_clients_of_other_revisions_send_no_batches(revision: str) -> None:
    """(rule 6)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, revision=revision) as (_, connection):
        answer = await connection.get("POST", body=[CALL])
        assert (answer.status, answer.messages()[0]["error"]["code"]) == (400, -32600)
        server.hears_nothing_more()


async def test_a_batch_needs_a_session_as_everything_does(connection: Connection) -> None:
    assert (await connection.get("POST", body=[PING])).status == 400
    connection.session = "never-was"
    assert (await connection.get("POST", body=[PING])).status == 404


@pytest.mark.slow
async def test_no_answer_of_a_batch_is_lost_however_large_all_of_them_are() -> None:
    """They are more than one stream keeps, and the client reads late."""

    async def big(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "x" * (MAX_KEPT // 3)}]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": big})
    async with open_session(server, revision="2025-03-26") as (_, connection):
        connection.reads = trio.Event()
        answer = connection.send("POST", body=[{**CALL, "id": n} for n in range(8)])
        await wait_all_tasks_blocked()
        assert not answer.started.is_set()
        connection.reads.set()
        await answer.complete.wait()
        assert sorted(each["id"] for each in answer.messages()) == list(range(8))


async def test_a_batch_whose_client_left_ends_all_the_same(autojump_clock: MockClock) -> None:
    async def big(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "x" * MAX_KEPT}]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": big})
    async with open_session(server, revision="2025-03-26") as (_, connection):
        connection.send("POST", body=[{**CALL, "id": n} for n in range(4)])
        await wait_all_tasks_blocked()
        connection.leaves.set()
        await trio.sleep(1)
        again = connection.another(connection.session)
        rest = await again.get("GET", headers={"last-event-id": "1-2"})
        assert len(rest.messages()) == 1


# Messages one by one


async def test_an_id_comes_back_as_it_was_sent() -> None:
    """(rule 7)"""
    rows: list[int | str] = [0, -1, 2**63 - 1, "", "1", "é" * 128, "\u0000"]
    async with open_session() as (_, connection):
        for id in rows:
            answer = await connection.request("ping", id=id)
            assert (answer["id"], type(answer["id"])) == (id, type(id))


async def test_an_id_that_is_none_is_refused() -> None:
    """(rule 7)"""
    rows: list[object] = [None, True, 1.5, 1.0, {}, [], "x" * 257, 2**63, -(2**63) - 1]
    async with open_session() as (_, connection):
        for id in rows:
            answer = await connection.get("POST", body={"jsonrpc": "2.0", "id": id, "method": "ping"})
            assert (answer.status, answer.messages()[0]["error"]["code"]) == (400, -32600)
            assert "id" not in answer.messages()[0]


async def test_an_answer_that_fits_no_question_is_taken_and_means_nothing() -> None:
    """(rule 7)"""
    rows: list[dict[str, Any]] = [
        {"id": None, "error": {"code": -32700, "message": "?"}},
        {"error": {"code": -32700, "message": "?"}},
        {"id": 1, "error": "broken"},
        {"id": 1, "result": {}, "error": {"code": 1, "message": ""}},
        {"id": 99, "result": {}},
        {"id": "1", "result": {}},
    ]
    async with open_session() as (_, connection):
        for message in rows:
            assert await connection.notify(message) == 202


async def test_initialize_is_answered_here_and_waits_for_nobody() -> None:
    """Not even for a server that never comes up (rule 8)."""
    world_without = ScriptedServer("gone", tools=["x"])
    async with open_http_app(world_without) as (_, connection):
        world_without.dies()
        opened = await connection.open(revision="2025-06-18")
        assert opened.messages()[0]["result"]["protocolVersion"] == "2025-06-18"
        assert world_without.asked.count("initialize") == 1


async def test_before_it_says_that_it_is_ready_a_client_is_told_nothing_and_served_all_the_same(
    autojump_clock: MockClock,
) -> None:
    """(rule 12)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}}
        opened = await connection.get(
            "POST", body={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        )
        connection.session = opened.headers["mcp-session-id"]
        stream = connection.send("GET")
        await stream.started.wait()
        server.lists["tools"].append(tool("y"))
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(5)
        assert stream.messages() == []
        assert (await connection.request("ping"))["result"] == {}
        assert await connection.notify({"method": "notifications/initialized"}) == 202
        assert [each["method"] for each in await stream.wait_messages(1)] == ["notifications/tools/list_changed"]


async def test_a_ping_is_answered_at_once_and_never_passed_on() -> None:
    """Also while a call runs, and however many come (rule 16)."""
    async with calling() as (server, connection, _, _):
        before = list(server.asked)
        for _ in range(3):
            assert (await connection.request("ping"))["result"] == {}
        assert server.asked == before


async def test_a_second_initialize_changes_nothing() -> None:
    """(rule 13)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        again = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "b", "version": "2"}}
        assert (await connection.request("initialize", again))["error"]["code"] == -32600
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        assert (await call.wait_messages(1))[0]["method"] == "elicitation/create"
        nursery.cancel_scope.cancel()


async def test_initialize_without_a_session_opens_another_one() -> None:
    """(rule 13)"""
    async with open_session() as (_, connection):
        first, connection.session = connection.session, None
        await connection.open()
        assert connection.session != first
        assert (await connection.another(first).request("ping"))["result"] == {}


async def test_a_handshake_that_is_refused_opens_no_session(connection: Connection) -> None:
    answer = await connection.get("POST", body={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
    assert (answer.status, answer.messages()[0]["error"]["code"]) == (200, -32602)
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize(
    ("header", "status"), [("2025-11-25", 200), ("2024-11-05", 200), ("2026-07-28", 200), ("nonsense", 400)]
)
async def test_a_version_named_beside_initialize_must_be_one_that_is_served(
    connection: Connection, header: str, status: int
) -> None:
    """(rule 21)"""
    hello = {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    answer = await connection.get("POST", body=hello, headers={"mcp-protocol-version": header})
    assert (answer.status, answer.messages()[0]["id"]) == (status, 5)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_the_version_header_is_looked_at_whatever_the_method(method: str) -> None:
    """(rule 21)"""
    async with open_session() as (_, connection):
        assert (await connection.get(method, headers={"mcp-protocol-version": "2024-11-05"})).status == 400
        assert (await connection.request("ping"))["result"] == {}


async def test_errors_of_json_rpc_are_no_errors_of_http() -> None:
    """404 is said of a session alone: clients begin anew on it (rule 20)."""
    async with open_session() as (_, connection):
        for method, params in (
            ("no/such", {}),
            ("tools/call", {"name": "a__none"}),
            ("resources/read", {"uri": "none://x"}),
            ("tools/call", {"name": 1}),
            ("tools/list", {"cursor": "x"}),
            ("prompts/get", []),
        ):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = await connection.get("POST", body=body)
            assert (answer.status, "error" in answer.messages()[0]) == (200, True)


async def test_a_session_id_is_visible_ascii_and_hard_to_guess() -> None:
    """(rule 19)"""
    async with open_session() as (_, connection):
        assert connection.session is not None
        assert connection.session.isascii()
        assert connection.session.isprintable()
        assert " " not in connection.session
        assert len(connection.session) >= 32


async def test_two_session_headers_are_none() -> None:
    async with open_session() as (_, connection):
        session = connection.session
        answer = await connection.get("POST", body=PING, headers={"Mcp-Session-Id": session})
        assert answer.status == 400


async def test_a_cancel_names_one_request_of_its_own_session_or_nothing() -> None:
    """Unknown, finished, of another type, doubled, of another session, or no id at all (rule 47)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server) as (_, connection):
        other = connection.another()
        await other.open()
        calls = [connection.send("POST", body={**CALL, "id": id}) for id in (7, 8, 8)]
        asked = [await server.hears("tools/call") for _ in calls]
        for id in ("7", 8, 99, None, 7.0, [7]):
            notice = {"method": "notifications/cancelled", "params": {"requestId": id}}
            assert await connection.notify(notice) == 202
        assert await connection.notify({"method": "notifications/cancelled"}) == 202
        assert await other.notify({"method": "notifications/cancelled", "params": {"requestId": 7}}) == 202
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        for each in asked:
            server.says(each["id"], {"content": []})
        for call in calls:
            await call.complete.wait()
            assert call.messages()[0]["result"] == {"content": []}


async def test_after_a_cancel_nothing_more_is_said_of_the_call() -> None:
    """Neither its progress nor its log, nor the answer that was under way (rule 47)."""
    async with calling(PROGRESS_CALL, capabilities={"tools": {}, "logging": {}}) as (server, connection, call, asked):
        await connection.notify({"method": "notifications/cancelled", "params": {"requestId": 7}})
        progress = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        server.sends(Notification("notifications/progress", Raw(json.dumps(progress).encode())))
        server.sends(Notification("notifications/message", Raw(b'{"level":"info","data":1}')), about=asked["id"])
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        assert call.messages() == []


async def test_so_many_calls_are_in_flight_for_one_session_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose clients left are in flight too."""
    monkeypatch.setattr(sessions_module, "MAX_IN_FLIGHT", 3)
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, revision="2025-03-26") as (_, connection):
        leaving = connection.another(connection.session)
        for _ in range(3):
            leaving.send("POST", body=CALL)
        asked = [await server.hears("tools/call") for _ in range(3)]
        leaving.leaves.set()
        await wait_all_tasks_blocked()
        answer = await connection.get("POST", body=PING)
        assert (answer.status, answer.messages()[0]["error"]["code"], answer.messages()[0]["id"]) == (200, 429, 1)
        (refused,) = (await connection.get("POST", body=[PING])).messages()
        assert refused["error"]["code"] == 429
        server.says(asked[0]["id"], {"content": []})
        await wait_all_tasks_blocked()
        assert (await connection.request("ping"))["result"] == {}


# Streams


async def test_what_a_client_missed_comes_in_order_and_once(autojump_clock: MockClock) -> None:
    """Its answer waits for it, and no other stream shows it (rules 22, 24 and 25)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server) as (_, connection):
        standing = connection.another(connection.session)
        stream = standing.send("GET")
        call = connection.send("POST", body=PROGRESS_CALL)
        asked = await server.hears("tools/call")
        token = asked["_meta"]["progressToken"]
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
        await call.wait_messages(1)
        seen = call.events()[-1].id
        connection.leaves.set()
        await wait_all_tasks_blocked()
        for n in (2, 3):
            await server.notifies("notifications/progress", {"progressToken": token, "progress": n})
        server.says(asked["id"], {"content": []})
        await trio.sleep(60)
        server.hears_nothing_more()
        again = connection.another(connection.session)
        rest = await again.get("GET", headers={"last-event-id": seen})
        told = [each["params"]["progress"] if "params" in each else each["id"] for each in rest.messages()]
        assert told == [2, 3, 7]
        last = rest.events()[-1].id
        assert (await again.get("GET", headers={"last-event-id": last})).messages() == []
        assert stream.messages() == []


async def test_a_call_outlives_its_client_and_its_answer_waits(autojump_clock: MockClock) -> None:
    """The stream is resumed before the answer is there (rule 24)."""
    async with calling() as (server, connection, _, asked):
        await trio.sleep(1)
        connection.leaves.set()
        rest = connection.another(connection.session).send("GET", headers={"last-event-id": "1.Nw-0"})
        await trio.sleep(30)
        server.says(asked["id"], {"content": []})
        await rest.complete.wait()
        assert [each["id"] for each in rest.messages()] == [7]


@pytest.mark.parametrize(
    ("revision", "ids", "primed"),
    [
        ("2024-11-05", False, False),
        ("2025-03-26", True, False),
        ("2025-06-18", True, False),
        ("2025-11-25", True, True),
    ],
)
async def test_event_ids_are_of_one_session_and_one_stream(
    revision: str, ids: bool, primed: bool, autojump_clock: MockClock
) -> None:
    """On all of its streams no two events have the same; clients before 2025-11-25 get no event without data
    (rule 25)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, revision=revision) as (_, connection):
        standing = connection.send("GET")
        calls = [connection.send("POST", body={**CALL, "id": n}) for n in range(3)]
        asked = [await server.hears("tools/call") for _ in calls]
        await trio.sleep(1)
        server.lists["tools"].append(tool("y"))
        await server.notifies("notifications/tools/list_changed")
        await standing.wait_messages(1)
        for each in asked:
            server.says(each["id"], {"content": []})
        for call in calls:
            await call.complete.wait()
        answers = [standing, *calls]
        given = [event.id for answer in answers for event in answer.events()]
        assert len(given) == 4
        assert len(set(given)) == (4 if ids else 1)
        assert [b"\ndata:\n\n" in answer.body for answer in answers] == [primed] * 4
        assert all((b"retry:" in answer.body) == primed for answer in answers)


async def test_one_message_goes_out_on_one_stream(autojump_clock: MockClock) -> None:
    """What belongs to a call on that call's own; the rest on the standing one (rule 22)."""
    server = ScriptedServer(
        "a",
        tools=["x"],
        resources=["r://1"],
        capabilities={"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}},
    )
    async with open_session(server) as (_, connection):
        await connection.request("resources/subscribe", {"uri": "a+r://1"})
        await connection.request("logging/setLevel", {"level": "debug"})
        standing = connection.another(connection.session).send("GET")
        calls = [connection.send("POST", body={**PROGRESS_CALL, "id": n}) for n in range(2)]
        asked = [await server.hears("tools/call") for _ in calls]
        for each in asked:
            server.sends(
                Notification("notifications/message", Raw(json.dumps({"level": "info", "data": each["id"]}).encode())),
                about=each["id"],
            )
        await server.notifies("notifications/resources/updated", {"uri": "r://1"})
        server.lists["tools"].append(tool("y"))
        await server.notifies("notifications/tools/list_changed")
        await standing.wait_messages(2)
        for each in asked:
            server.says(each["id"], {"content": [each["id"]]})
        for call in calls:
            await call.complete.wait()
            log, answer = call.messages()
            assert log["params"]["data"] == answer["result"]["content"][0]
        assert sorted(each["method"] for each in standing.messages()) == [
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        ]


async def test_nothing_is_held_for_a_client_without_a_stream_but_notices(autojump_clock: MockClock) -> None:
    """The newest of each once; no log message, and no question (rule 22)."""
    server = ScriptedServer(
        "a",
        tools=["x"],
        resources=["r://1", "r://2"],
        capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}},
        isolation=Isolation.PER_CLIENT,
    )
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        for n in (1, 2):
            await connection.request("resources/subscribe", {"uri": f"a+r://{n}"})
        await connection.request("logging/setLevel", {"level": "debug"})
        for uri in ("r://1", "r://2", "r://1", "r://1"):
            await server.notifies("notifications/resources/updated", {"uri": uri})
        await server.notifies("notifications/message", {"level": "error", "data": 1})
        question = later(nursery, lambda: server.asks("elicitation/create", FORM))
        with pytest.raises(Refused, match="does not listen"):
            await question.comes()
        stream = connection.send("GET")
        await stream.wait_messages(2)
        await trio.sleep(1)
        assert [each["params"]["uri"] for each in stream.messages()] == ["a+r://2", "a+r://1"]


async def test_a_question_that_belongs_to_no_call_goes_to_the_standing_stream(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CLIENT)
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        call = connection.send("POST", body=CALL)
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        await call.complete.wait()
        stream = connection.send("GET")
        await stream.started.wait()
        question = later(nursery, lambda: server.asks("elicitation/create", FORM))
        (asked,) = await stream.wait_messages(1)
        assert await connection.notify({"id": asked["id"], "result": {"action": "decline"}}) == 202
        assert await question.comes() == {"action": "decline"}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_stream_needs_a_session(connection: Connection, method: str) -> None:
    """405 says that there is no such method, as in 2026-07-28. A client of a handshake revision has one, and lacks the
    session."""
    for header in (None, "2026-07-28"):
        answer = await connection.get(method, headers={"mcp-protocol-version": header})
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
    answer = await connection.get(method, headers={"mcp-protocol-version": "2025-06-18"})
    assert answer.status == 400
    connection.session = "never-was"
    answer = await connection.get(method)
    assert answer.status == 404
    assert answer.messages()[0]["error"]["message"].startswith("Session not found")


async def test_the_standing_stream_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    """What was said while nobody read, too, and nothing twice."""
    server = ScriptedServer("a", resources=["r://1", "r://2"], capabilities={"resources": {"subscribe": True}})
    async with open_session(server) as (_, connection):
        for n in (1, 2):
            await connection.request("resources/subscribe", {"uri": f"a+r://{n}"})
        first = connection.another(connection.session)
        stream = first.send("GET")
        await stream.started.wait()
        await server.notifies("notifications/resources/updated", {"uri": "r://1"})
        await stream.wait_messages(1)
        seen = stream.events()[-1].id
        first.leaves.set()
        await wait_all_tasks_blocked()
        await server.notifies("notifications/resources/updated", {"uri": "r://2"})
        await trio.sleep(60)
        rest = connection.another(connection.session).send("GET", headers={"last-event-id": seen})
        assert [each["params"]["uri"] for each in await rest.wait_messages(1)] == ["a+r://2"]
        await server.notifies("notifications/resources/updated", {"uri": "r://1"})
        assert [each["params"]["uri"] for each in await rest.wait_messages(2)] == ["a+r://2", "a+r://1"]
        await trio.sleep(60)
        assert len(rest.messages()) == 2
        assert len({event.id for event in (*stream.events(), *rest.events())}) == 3


@pytest.mark.parametrize("stuck", [False, True])
async def test_whoever_resumes_the_standing_stream_takes_it_over(stuck: bool, autojump_clock: MockClock) -> None:
    """Its former reader is gone, and nobody knows yet; it may even be stuck in what it was sent last."""
    server = ScriptedServer("a", resources=["r://1"], capabilities={"resources": {"subscribe": True}})
    async with open_session(server) as (_, connection):
        await connection.request("resources/subscribe", {"uri": "a+r://1"})
        dead = connection.another(connection.session)
        stream = dead.send("GET")
        await stream.started.wait()
        await wait_all_tasks_blocked()
        if stuck:
            dead.reads = trio.Event()
            await server.notifies("notifications/resources/updated", {"uri": "r://1"})
            await wait_all_tasks_blocked()
        rest = connection.another(connection.session).send("GET", headers={"last-event-id": "1-0"})
        await rest.started.wait()
        assert rest.status == 200
        if not stuck:
            assert stream.complete.is_set()
            await server.notifies("notifications/resources/updated", {"uri": "r://1"})
        await rest.wait_messages(1)
        await trio.sleep(10)
        assert len(rest.messages()) == 1
        assert stream.messages() == []
        assert (await connection.get("GET")).status == 409


async def test_a_standing_stream_does_not_go_deaf_however_much_it_has_told(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_session(server) as (_, connection):
        await connection.request("logging/setLevel", {"level": "debug"})
        stream = connection.send("GET")
        await wait_all_tasks_blocked()
        for n in range(30):
            await server.notifies("notifications/message", {"level": "info", "data": [n, "x" * (MAX_KEPT // 10)]})
            await wait_all_tasks_blocked()
        assert [each["params"]["data"][0] for each in stream.messages()] == list(range(30))


async def test_a_standing_stream_that_nobody_reads_is_bounded_and_notices_outlast_it(autojump_clock: MockClock) -> None:
    server = ScriptedServer(
        "a",
        tools=["x"],
        resources=["r://1"],
        capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}},
    )
    async with open_session(server) as (_, connection):
        await connection.request("resources/subscribe", {"uri": "a+r://1"})
        await connection.request("logging/setLevel", {"level": "debug"})
        reader = connection.another(connection.session)
        stream = reader.send("GET")
        await stream.started.wait()
        await wait_all_tasks_blocked()
        reader.reads = trio.Event()
        for n in range(100):
            await server.notifies("notifications/message", {"level": "info", "data": [n, "x" * (MAX_KEPT // 10)]})
        for _ in range(100):
            await server.notifies("notifications/resources/updated", {"uri": "r://1"})
        await wait_all_tasks_blocked()
        reader.reads.set()
        await wait_all_tasks_blocked()
        logged = [each for each in stream.messages() if each["method"] == "notifications/message"]
        assert 5 <= len(logged) < 12
        await server.notifies("notifications/resources/updated", {"uri": "r://1"})
        await wait_all_tasks_blocked()
        assert [each["method"] for each in stream.messages()[len(logged) :]] == ["notifications/resources/updated"]


async def test_a_deleted_session_lets_go_of_everything(autojump_clock: MockClock) -> None:
    """Its question ends with an error, its watch is given up, its stream ends (rule 109)."""
    server = ScriptedServer(
        "a", tools=["x"], resources=["r://1"], capabilities={"tools": {}, "resources": {"subscribe": True}}
    )
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        await connection.request("resources/subscribe", {"uri": "a+r://1"})
        stream = connection.send("GET")
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        await call.wait_messages(1)
        assert (await connection.get("DELETE")).status == 204
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        with pytest.raises(Refused):
            await question.comes()
        await stream.complete.wait()
        await call.complete.wait()
        await wait_all_tasks_blocked()
        assert server.asked.count("resources/unsubscribe") == 1
        assert (await connection.get("DELETE")).status == 404


async def test_a_client_that_left_while_it_was_asked_can_still_answer(autojump_clock: MockClock) -> None:
    """A disconnect is no cancel: the question waits, and so does the server (rules 24 and 109)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        await trio.sleep(1)
        connection.leaves.set()
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        await trio.sleep(30)
        again = connection.another(connection.session)
        rest = again.send("GET", headers={"last-event-id": "1.Nw-0"})
        (put,) = await rest.wait_messages(1)
        assert await again.notify({"id": put["id"], "result": {"action": "cancel"}}) == 202
        assert await question.comes() == {"action": "cancel"}
        server.says(asked["id"], {"content": []})
        await rest.complete.wait()
        assert rest.messages()[-1]["id"] == 7


# Questions


async def test_a_question_goes_out_with_its_own_call_and_its_answer_comes_as_a_post() -> None:
    """It opens that stream, whatever other streams there are (rules 22 and 23)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        standing = connection.another(connection.session).send("GET")
        calls = {
            of: connection.send("POST", body={**CALL, "params": {"name": "a__x", "arguments": {"of": of}}})
            for of in ("p", "q")
        }
        asked = [await server.hears("tools/call") for _ in calls]
        waiting: dict[str, Later] = {}
        for each in asked:
            of = each["arguments"]["of"]
            params = {**FORM, "message": f"{of}?"}
            waiting[of] = later(nursery, partial(server.asks, "elicitation/create", params, about=each["id"]))
        questions = {of: (await call.wait_messages(1))[0] for of, call in calls.items()}
        for of, question in questions.items():
            assert (calls[of].streams, calls[of].complete.is_set()) == (True, False)
            assert (question["method"], question["params"]["message"]) == ("elicitation/create", f"[a] {of}?")
        assert len({question["id"] for question in questions.values()}) == 2
        for of, question in reversed(questions.items()):
            result = {"action": "accept", "content": {"by": of}}
            assert await connection.notify({"id": question["id"], "result": result}) == 202
        for of, begun in waiting.items():
            assert await begun.comes() == {"action": "accept", "content": {"by": of}}
        for each in asked:
            server.says(each["id"], {"content": []})
        for call in calls.values():
            await call.complete.wait()
            assert "result" in call.messages()[-1]
        assert standing.messages() == []
        nursery.cancel_scope.cancel()


async def test_an_error_is_an_answer_too() -> None:
    async with calling(capabilities={"roots": {}}) as (server, connection, call, asked), trio.open_nursery() as nursery:
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        (put,) = await call.wait_messages(1)
        assert await connection.notify({"id": put["id"], "error": {"code": -1, "message": "User rejected"}}) == 202
        with pytest.raises(Refused, match="-1 User rejected"):
            await question.comes()


async def test_only_the_one_who_was_asked_can_answer_and_only_once() -> None:
    """Answers of another session, of another identity, under another id or another type of it, and second ones are
    taken and dropped."""
    listen = Listen(auth=Auth({"laptop": Secret(LAPTOP), "desk": Secret(DESK)}))
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=listen) as (_, connection), trio.open_nursery() as nursery:
        connection.headers = {"authorization": f"Bearer {LAPTOP}"}
        await connection.open(capabilities={"elicitation": {}})
        other = connection.another()
        await other.open(capabilities={"elicitation": {}})
        foreign = connection.another()
        foreign.headers = {"authorization": f"Bearer {DESK}"}
        await foreign.open(capabilities={"elicitation": {}})
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        (put,) = await call.wait_messages(1)
        wrong = {"id": put["id"], "result": {"action": "accept", "content": {"of": "another"}}}
        assert await other.notify(wrong) == 202
        assert await foreign.notify(wrong) == 202
        foreign.session = connection.session
        assert await foreign.notify(wrong) == 404
        for id in (put["id"] + 1, str(put["id"]), float(put["id"]), None):
            await connection.notify({**wrong, "id": id})
        await wait_all_tasks_blocked()
        assert not question.done
        assert await connection.notify({"id": put["id"], "result": {"action": "decline"}}) == 202
        assert await connection.notify(wrong) == 202
        assert await question.comes() == {"action": "decline"}
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        assert await connection.notify(wrong) == 202


@pytest.mark.parametrize("result", [[], "yes", None, 1])
async def test_an_answer_that_is_no_object_is_an_error_for_the_server(result: object) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        (put,) = await call.wait_messages(1)
        assert await connection.notify({"id": put["id"], "result": result}) == 202
        with pytest.raises(Refused):
            await question.comes()


async def test_a_question_that_the_server_withdraws_is_withdrawn_on_its_stream() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        standing = connection.another(connection.session).send("GET")
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"], id="mine"))
        (put,) = await call.wait_messages(1)
        await server.notifies("notifications/cancelled", {"requestId": "mine", "reason": "never mind"})
        _, withdrawn = await call.wait_messages(2)
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"] == {"requestId": put["id"], "reason": "never mind"}
        assert standing.messages() == []
        nursery.cancel_scope.cancel()


async def test_a_question_still_open_when_its_call_is_answered_is_withdrawn_before_the_answer() -> None:
    """(rules 50 and 103)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        standing = connection.another(connection.session).send("GET")
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        (put,) = await call.wait_messages(1)
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        _, withdrawn, answer = call.messages()
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"]["requestId"] == put["id"]
        assert answer["id"] == 7
        assert standing.messages() == []
        with pytest.raises(Refused):
            await question.comes()


async def test_a_question_of_a_call_that_is_called_off_is_withdrawn_on_its_stream() -> None:
    """(rules 47 and 50)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        (put,) = await call.wait_messages(1)
        await connection.notify({"method": "notifications/cancelled", "params": {"requestId": 7}})
        await call.complete.wait()
        _, withdrawn = call.messages()
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", put["id"])
        with pytest.raises(Refused):
            await question.comes()


async def test_a_question_of_one_call_in_a_batch_goes_out_on_the_batches_stream() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(revision="2025-03-26", capabilities={"roots": {}})
        answer = connection.send("POST", body=[CALL, PING])
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        put = (await answer.wait_messages(2))[1]
        assert put["method"] == "roots/list"
        taken = await connection.get("POST", body=batch({"id": put["id"], "result": {"roots": []}}))
        assert taken.status == 202
        assert await question.comes() == {"roots": []}
        server.says(asked["id"], {"content": []})
        await answer.complete.wait()


async def test_progress_of_the_client_about_a_question_reaches_the_server() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        params = {**FORM, "_meta": {"progressToken": "server's"}}
        later(nursery, lambda: server.asks("elicitation/create", params, about=asked["id"]))
        (put,) = await call.wait_messages(1)
        token = put["params"]["_meta"]["progressToken"]
        assert token != "server's"
        for each in (token, "server's", None):
            await connection.notify(
                {"method": "notifications/progress", "params": {"progressToken": each, "progress": 1}}
            )
        assert await server.hears("notifications/progress") == {"progressToken": "server's", "progress": 1}
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        nursery.cancel_scope.cancel()


async def test_a_question_that_outlives_its_stream_is_withdrawn_on_the_standing_one() -> None:
    """It may belong to either of two calls; the one whose stream it went out on is answered first."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, capabilities={"roots": {}}) as (_, connection), trio.open_nursery() as nursery:
        standing = connection.another(connection.session).send("GET")
        calls = []
        for id in (7, 8):
            calls.append((connection.send("POST", body={**CALL, "id": id}), await server.hears("tools/call")))
        question = later(nursery, lambda: server.asks("roots/list", id="mine"))
        call, asked = calls[1]
        (put,) = await call.wait_messages(1)
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        assert not question.done
        await server.notifies("notifications/cancelled", {"requestId": "mine"})
        (withdrawn,) = await standing.wait_messages(1)
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", put["id"])
        assert len(call.messages()) == 2
        nursery.cancel_scope.cancel()


async def test_a_question_that_outlives_its_stream_is_withdrawn_wherever_its_client_listens() -> None:
    """Where nobody listens to what is said unasked, on the stream of another call (rule 50)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, capabilities={"roots": {}}) as (_, connection), trio.open_nursery() as nursery:
        calls = []
        for id in (7, 8):
            calls.append((connection.send("POST", body={**CALL, "id": id}), await server.hears("tools/call")))
        question = later(nursery, lambda: server.asks("roots/list", id="mine"))
        call, asked = calls[1]
        (put,) = await call.wait_messages(1)
        server.says(asked["id"], {"content": []})
        with trio.fail_after(5):
            await call.complete.wait()
        assert [each.get("method") for each in call.messages()] == ["roots/list", None]
        assert not question.done
        await server.notifies("notifications/cancelled", {"requestId": "mine"})
        (withdrawn,) = await calls[0][0].wait_messages(1)
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", put["id"])
        nursery.cancel_scope.cancel()


async def test_a_flood_of_logs_does_not_push_a_question_out_of_a_stream_that_nobody_reads() -> None:
    """(rule 71)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, capabilities={"roots": {}}) as (_, connection), trio.open_nursery() as nursery:
        slow = connection.another(connection.session)
        slow.reads = trio.Event()
        call = slow.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        await wait_all_tasks_blocked()
        flood = Notification("notifications/message", encode({"level": "error", "data": "x" * (MAX_KEPT // 50)}))
        for _ in range(150):
            server.sends(flood, about=asked["id"])
        await wait_all_tasks_blocked()
        slow.reads.set()
        await wait_all_tasks_blocked()
        put, *logs = call.messages()
        assert put["method"] == "roots/list"
        assert {each["method"] for each in logs} == {"notifications/message"}
        assert 20 < len(logs) < 26
        await connection.notify({"id": put["id"], "result": {"roots": []}})
        assert await question.comes() == {"roots": []}
        server.says(asked["id"], {"content": []})
        with trio.fail_after(5):
            await call.complete.wait()
        assert call.messages()[-1]["id"] == 7


async def test_only_so_many_standing_streams_are_open_at_once() -> None:
    """(rule 5) Calls are served all the same, and whoever leaves makes room."""
    async with open_http_app(capacity=Capacity(streams=4)) as (_, connection):
        clients = [connection.another() for _ in range(3)]
        for client in clients:
            await client.open()
        for client in clients[:2]:
            await client.send("GET").started.wait()
        refused = await clients[2].get("GET")
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert (await clients[2].get("POST", body=PING)).status == 200
        clients[0].leaves.set()
        await wait_all_tasks_blocked()
        standing = clients[2].send("GET")
        with trio.fail_after(5):
            await standing.started.wait()
        assert standing.status == 200
