"""The HTTP face: what is refused before anything is read, sessions, and the two forms of an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Listen
from host.downstream import sessions as sessions_module
from host.downstream.http import BODY_PATIENCE, open_http_face
from host.downstream.security import MAX_BODY
from host.downstream.streams import HEARTBEAT, KEPT, OPEN_AFTER
from tests.kit.asgi import Connection
from tests.kit.world import ScriptedServer, World, open_world, tool

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}
PROGRESS_CALL = {**CALL, "params": {"name": "a__x", "_meta": {"progressToken": "t"}}}


@asynccontextmanager
async def open_face(*servers: ScriptedServer, listen: Listen | None = None) -> AsyncIterator[tuple[World, Connection]]:
    async with trio.open_nursery() as nursery:
        async with open_world(*(servers or (ScriptedServer("a", tools=["x"]),))) as world:
            await world.settled()
            stop = trio.Event()
            async with open_http_face(listen or Listen(), world.router, world.journal, lambda: b"{}", stop) as app:
                connection = Connection(app, nursery)
                connection.stop = stop
                yield world, connection
        nursery.cancel_scope.cancel()


async def test_an_answer_alone_is_json() -> None:
    async with open_face() as (_, connection):
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
async def test_each_handshake_revision_is_served_as_asked_for(revision: str) -> None:
    async with open_face() as (_, connection):
        result = (await connection.open(revision=revision)).messages()[0]["result"]
        assert result["protocolVersion"] == revision
        assert ("completions" in result["capabilities"]) == (revision != "2024-11-05")
        assert [tool["name"] for tool in (await connection.ask("tools/list"))["result"]["tools"]] == ["a__x"]


@pytest.mark.parametrize("revision", ["2023-01-01", "2026-07-28", "", "x" * 1000])
async def test_another_revision_is_answered_with_our_latest(revision: str) -> None:
    async with open_face() as (_, connection):
        result = (await connection.open(revision=revision)).messages()[0]["result"]
        assert result["protocolVersion"] == "2025-11-25"


async def test_progress_opens_a_stream_and_comes_before_the_answer() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        params = {"name": "a__x", "_meta": {"progressToken": "t"}}
        call = connection.send("POST", body={"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
        asked = await server.hears("tools/call")
        await wait_all_tasks_blocked()
        assert not call.begun.is_set()
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        await call.grows_to(1)
        assert call.streams
        assert not call.whole.is_set()
        server.says(asked["id"], {"content": []})
        await call.whole.wait()
        progress, answer = call.messages()
        assert progress["params"] == {"progressToken": "t", "progress": 1}
        assert answer == {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}


async def test_a_call_that_takes_long_becomes_a_stream_with_signs_of_life(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        await trio.sleep(OPEN_AFTER / 2)
        assert not call.begun.is_set()
        await trio.sleep(2 * HEARTBEAT + OPEN_AFTER)
        assert call.streams
        assert call.body == b"id: 1-0\nretry: 1000\ndata:\n\n" + b": working\n\n" * 2
        server.says(asked["id"], {"content": []})
        await call.whole.wait()
        assert call.messages() == [{"jsonrpc": "2.0", "id": 7, "result": {"content": []}}]


@pytest.mark.parametrize(
    ("revision", "begins"),
    [
        ("2024-11-05", b"data: "),
        ("2025-03-26", b"id: 1-0\ndata: "),
        ("2025-06-18", b"id: 1-0\ndata: "),
        ("2025-11-25", b"id: 1-0\nretry: 1000\ndata:\n\nid: 1-1\ndata: "),
    ],
)
async def test_streams_begin_as_the_revision_has_them(revision: str, begins: bytes, autojump_clock: MockClock) -> None:
    """Clients before 2025-11-25 fail on an event without data."""
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open(revision=revision)
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        await trio.sleep(1)
        server.says(asked["id"], {"content": []})
        await call.whole.wait()
        assert call.body.startswith(begins)


async def test_a_broken_stream_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        call = connection.send("POST", body=PROGRESS_CALL)
        asked = await server.hears("tools/call")
        token = asked["_meta"]["progressToken"]
        for progress in (1, 2):
            await server.notifies("notifications/progress", {"progressToken": token, "progress": progress})
        await call.grows_to(2)
        connection.leaves.set()
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 3})
        again = Connection(connection._app, connection._nursery)
        again.session = connection.session
        rest = again.send("GET", headers={"last-event-id": "1-1"})
        assert [message["params"]["progress"] for message in await rest.grows_to(2)] == [2, 3]
        server.says(asked["id"], {"content": []})
        await rest.whole.wait()
        assert rest.messages()[-1]["result"] == {"content": []}
        late = await again.get("GET", headers={"last-event-id": "1-3"})
        assert late.messages() == [rest.messages()[-1]]


@pytest.mark.parametrize("last", ["", "1", "1-", "1-9", "1--1", "2-0", "x-0", "1-99999999999999999999", "1-\u00b2"])
async def test_an_event_id_that_is_not_ours_resumes_nothing(last: str, autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        connection.send("POST", body=CALL)
        await server.hears("tools/call")
        await trio.sleep(1)
        assert (await connection.get("GET", headers={"last-event-id": last})).status == 400


async def test_a_stream_of_another_session_resumes_nothing(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        connection.send("POST", body=CALL)
        await server.hears("tools/call")
        await trio.sleep(1)
        other = Connection(connection._app, connection._nursery)
        await other.open()
        assert (await other.get("GET", headers={"last-event-id": "1-0"})).status == 400


async def test_a_finished_stream_is_kept_for_a_while_and_no_longer(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        await trio.sleep(1)
        server.says(asked["id"], {"content": []})
        await call.whole.wait()
        await trio.sleep(KEPT - 10)
        assert len((await connection.get("GET", headers={"last-event-id": "1-0"})).messages()) == 1
        await trio.sleep(80)
        assert (await connection.get("GET", headers={"last-event-id": "1-0"})).status == 400


async def test_a_cancelled_call_gets_nothing_more() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}
        call = connection.send("POST", body=body)
        asked = await server.hears("tools/call")
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert (await connection.get("POST", body=notice)).status == 202
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        await call.whole.wait()
        assert (call.status, call.messages()) == (200, [])


async def test_a_client_that_leaves_does_not_cancel_its_call() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}
        connection.send("POST", body=body)
        asked = await server.hears("tools/call")
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
    async with open_face(*servers) as (_, connection):
        await connection.open()
        calls = []
        for n in range(200):
            params = {"name": f"{'ab'[n % 2]}__x", "arguments": {"n": n}, "_meta": {"progressToken": 1}}
            calls.append(
                connection.send("POST", body={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            )
        for n, call in enumerate(calls):
            await call.whole.wait()
            assert call.messages() == [{"jsonrpc": "2.0", "id": 1, "result": {"content": [n]}}]


async def test_the_standing_stream_tells_what_changed_in_this_clients_view() -> None:
    a, b = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["x"])
    async with open_face(a, b) as (_, connection):
        await connection.open()
        stream = connection.send("GET", headers={"accept": "text/event-stream"})
        alone = Connection(connection._app, connection._nursery)
        await alone.open("/mcp/a")
        other = alone.send("GET", "/mcp/a", headers={"accept": "text/event-stream"})
        await wait_all_tasks_blocked()
        assert (stream.status, other.status) == (200, 200)
        b.lists["tools"].append(tool("new"))
        await b.notifies("notifications/tools/list_changed")
        assert await stream.grows_to(1) == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]
        assert other.messages() == []
        a.lists["tools"][0]["description"] = "changed"
        await a.notifies("notifications/tools/list_changed")
        await other.grows_to(1)
        await stream.grows_to(2)


async def test_a_list_changed_that_changes_nothing_is_not_passed_on(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        stream = connection.send("GET")
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(5)
        assert stream.messages() == []


async def test_a_change_while_no_stream_was_open_is_told_when_one_opens(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        server.lists["tools"].append(tool("new"))
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(1)
        stream = connection.send("GET")
        await stream.grows_to(1)


async def test_a_client_that_comes_back_at_once_is_not_taken_for_a_second_one(autojump_clock: MockClock) -> None:
    async with open_face() as (_, connection):
        await connection.open()
        first = connection.send("GET")
        await first.begun.wait()
        again = Connection(connection._app, connection._nursery)
        again.session = connection.session
        second = again.send("GET")
        await trio.sleep(0.1)
        connection.leaves.set()
        await second.begun.wait()
        assert second.status == 200


async def test_a_notice_that_perhaps_was_not_heard_is_repeated_on_the_next_stream(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        first = connection.send("GET")
        server.lists["tools"].append(tool("y"))
        await server.notifies("notifications/tools/list_changed")
        await first.grows_to(1)
        connection.leaves.set()
        again = Connection(connection._app, connection._nursery)
        again.session = connection.session
        second = again.send("GET")
        assert await second.grows_to(1) == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]
        await again.ask("tools/list")
        again.leaves.set()
        last = Connection(connection._app, connection._nursery)
        last.session = connection.session
        third = last.send("GET")
        await trio.sleep(5)
        assert third.messages() == []


async def test_a_second_stream_is_refused_and_the_first_goes_on(autojump_clock: MockClock) -> None:
    async with open_face() as (_, connection):
        await connection.open()
        first = connection.send("GET")
        await first.begun.wait()
        assert (await connection.get("GET")).status == 409
        assert not first.whole.is_set()


async def test_the_standing_stream_ends_when_the_host_stops() -> None:
    async with open_face() as (_, connection):
        await connection.open()
        stream = connection.send("GET")
        await stream.begun.wait()
        connection.stop.set()
        await stream.whole.wait()


async def test_a_deleted_session_is_gone_and_its_calls_are_called_off() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        await connection.open()
        connection.send("POST", body={"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}})
        asked = await server.hears("tools/call")
        assert (await connection.get("DELETE")).status == 204
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        for method in ("POST", "GET", "DELETE"):
            assert (await connection.get(method, body=PING if method == "POST" else b"")).status == 404


async def test_a_deleted_sessions_stream_ends_with_it() -> None:
    async with open_face() as (_, connection):
        await connection.open()
        stream = connection.send("GET")
        await stream.begun.wait()
        await connection.get("DELETE")
        await stream.whole.wait()


async def test_a_session_is_known_only_at_its_own_endpoint() -> None:
    async with open_face() as (_, connection):
        await connection.open("/mcp/a")
        assert (await connection.get("POST", "/mcp/a", PING)).status == 200
        for method in ("POST", "GET", "DELETE"):
            assert (await connection.get(method, "/mcp", PING if method == "POST" else b"")).status == 404


async def test_unknown_dead_and_foreign_sessions_are_answered_alike() -> None:
    async with open_face() as (_, connection):
        await connection.open("/mcp/a")
        foreign = await connection.get("POST", "/mcp", PING)
        connection.session = "never-was"
        unknown = await connection.get("POST", "/mcp", PING)
        assert (unknown.status, unknown.body) == (foreign.status, foreign.body)
        assert unknown.messages()[0]["id"] == 1


@pytest.mark.parametrize("id", ["", "a b", "é", "x" * 129, "../../etc/passwd\x7f"])
async def test_what_cannot_be_a_session_id_is_refused(id: str) -> None:
    async with open_face() as (_, connection):
        assert (await connection.get("POST", body=PING, headers={"mcp-session-id": id})).status in (400, 404)


async def test_a_second_initialize_in_a_session_is_refused() -> None:
    async with open_face() as (_, connection):
        await connection.open()
        message = await connection.ask("initialize", {"protocolVersion": "2024-11-05"})
        assert message["error"]["code"] == -32600


async def test_a_request_without_a_session_is_refused() -> None:
    async with open_face() as (_, connection):
        answer = await connection.get("POST", body=PING)
        assert (answer.status, answer.messages()[0]["error"]["code"], answer.messages()[0]["id"]) == (400, -32600, 1)


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 200), ("2025-11-25", 200), ("2024-11-05", 400), ("2026-07-28", 400), ("", 400), ("nonsense", 400)],
)
async def test_the_version_header_names_the_sessions_own_revision(header: str | None, status: int) -> None:
    async with open_face() as (_, connection):
        await connection.open()
        assert (await connection.get("POST", body=PING, headers={"mcp-protocol-version": header})).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": None}, 400),
        ({"host": "evil.com"}, 421),
        ({"host": "127.0.0.1.evil.com"}, 421),
        ({"host": "localhost."}, 421),
        ({"host": "a/?x="}, 400),
        ({"host": "user@localhost"}, 400),
        ({"host": "[::1]garbage"}, 400),
        ({"host": "LOCALHOST:8808"}, 200),
        ({"host": "[::1]:8808"}, 200),
        ({"origin": "http://evil.com"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://localhost/path"}, 403),
        ({"origin": "ftp://localhost"}, 403),
        ({"origin": "http://[::1].evil"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"content-type": None}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/jsonp"}, 415),
        ({"content-type": "application/json;charset=utf-16"}, 415),
        ({"content-type": "Application/JSON ; charset=UTF-8"}, 200),
        ({"content-encoding": "gzip"}, 415),
        ({"accept": "application/json"}, 406),
        ({"accept": "text/event-stream"}, 406),
        ({"accept": "application/json, text/event-stream;q=0"}, 406),
        ({"accept": "*/*"}, 200),
        ({"accept": None}, 200),
        ({"content-length": str(MAX_BODY + 1)}, 413),
    ],
)
async def test_the_edge(headers: dict[str, str | None], status: int) -> None:
    """Refused before anything is parsed, and without a word to any server."""
    async with open_face() as (_, connection):
        await connection.open()
        answer = await connection.get("POST", body=PING, headers=headers)
        assert answer.status == status
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert (await connection.get("POST", body=PING)).status == 200


@pytest.mark.parametrize(
    "path", ["/mcp/", "//mcp", "/MCP", "/%6dcp", "/mcp%00", "/x/../mcp", "/mcp/none", "/mcp/a/", "/"]
)
async def test_other_spellings_of_the_path_are_nothing(path: str) -> None:
    async with open_face() as (_, connection):
        assert (await connection.get("POST", path, PING)).status == 404


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "TRACE"])
async def test_other_methods_are_refused(method: str) -> None:
    async with open_face() as (_, connection):
        answer = await connection.get(method)
        assert (answer.status, "POST" in answer.headers["allow"]) == (405, True)


async def test_a_listed_origin_gets_cross_origin_answers() -> None:
    listen = Listen(origins=("https://app.example",))
    async with open_face(listen=listen) as (_, connection):
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        preflight = await connection.get("OPTIONS", headers=asked)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert "mcp-session-id" in preflight.headers["access-control-allow-headers"]
        await connection.open()
        answer = await connection.get("POST", body=PING, headers={"origin": "https://app.example"})
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
        foreign = await connection.get("OPTIONS", headers={**asked, "origin": "https://evil.example"})
        assert foreign.status == 403
        assert "access-control-allow-origin" not in foreign.headers


async def test_a_listed_host_is_ours() -> None:
    async with open_face(listen=Listen(hosts=("mcp.internal", "other:9000"))) as (_, connection):
        for host, status in (("mcp.internal:1", 400), ("other:9000", 400), ("other:9001", 421)):
            assert (await connection.get("POST", body=PING, headers={"host": host})).status == status


@pytest.mark.parametrize(
    ("body", "code"),
    [
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
    ],
)
async def test_a_body_that_is_no_message_is_refused(body: bytes, code: int) -> None:
    async with open_face() as (_, connection):
        await connection.open()
        answer = await connection.get("POST", body=body)
        assert (answer.status, answer.messages()[0]["error"]["code"]) == (400, code)
        assert (await connection.get("POST", body=PING)).status == 200


async def test_a_body_over_the_limit_is_refused_while_it_comes() -> None:
    async with open_face() as (_, connection):
        answer = await connection.get("POST", pieces=[b" " * MAX_BODY, b" "])
        assert answer.status == 413


async def test_a_body_that_does_not_come_is_given_up(autojump_clock: MockClock) -> None:
    async with open_face() as (_, connection):
        began = trio.current_time()
        answer = await connection.get("POST", pieces=[b'{"jsonrpc"'])
        assert answer.status == 408
        assert trio.current_time() - began == pytest.approx(BODY_PATIENCE, abs=0.1)


async def test_an_answer_to_nobodys_question_is_taken_and_dropped() -> None:
    async with open_face() as (_, connection):
        await connection.open()
        for body in (
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}},
        ):
            assert (await connection.get("POST", body=body)).status == 202


async def test_the_oldest_idle_session_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_face(server) as (_, connection):
        most = sessions_module.MAX_SESSIONS
        await connection.open()
        busy = connection.session
        connection.send("POST", body={"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}})
        asked = await server.hears("tools/call")
        connection.session = None
        await connection.open()
        oldest = connection.session
        for _ in range(most - 1):
            connection.session = None
            await connection.open()
        connection.session = oldest
        assert (await connection.get("POST", body=PING)).status == 404
        connection.session = busy
        assert (await connection.get("POST", body=PING)).status == 200
        server.says(asked["id"], {"content": []})


async def test_sessions_that_nobody_uses_are_forgotten(autojump_clock: MockClock) -> None:
    async with open_face() as (_, connection):
        await connection.open()
        await trio.sleep(sessions_module.IDLE + 120)
        assert (await connection.get("POST", body=PING)).status == 404


async def test_health_and_status_answer_under_the_same_guards() -> None:
    async with open_face() as (_, connection):
        assert (await connection.get("GET", "/healthz")).body == b"ok\n"
        assert json.loads((await connection.get("GET", "/status")).body) == {}
        assert (await connection.get("GET", "/status", headers={"origin": "http://evil.com"})).status == 403


async def test_our_own_mistake_is_one_requests_trouble() -> None:
    async with open_face() as (world, connection):
        await connection.open()

        def broken(*_: object) -> object:
            raise ZeroDivisionError("/secret/path")

        world.router.view = broken  # type: ignore[method-assign, assignment]
        message = await connection.ask("tools/list")
        assert message["error"]["code"] == -32603
        assert "secret" not in json.dumps(message)
        assert any("ZeroDivisionError" in str(event) for event in world.events)
        assert (await connection.ask("ping"))["result"] == {}
