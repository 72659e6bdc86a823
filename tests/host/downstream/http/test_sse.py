"""The transport of 2024-11-05: one stream for each session, messages beside it, and requests without a session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Auth, Capacity, Listen, Secret
from host.downstream import sessions
from host.downstream.http import sse
from host.downstream.http.replies import MAX_KEPT
from host.downstream.http.sse import PING_INTERVAL
from host.jsonrpc.messages import ErrorBody, Notification
from host.memory import Budget
from host.peer.outstanding import PeerError
from host.wire.asgi import Event
from tests.kit.asgi import Connection, Response, open_http_app
from tests.kit.world import Refusal as Refused
from tests.kit.world import ScriptedServer, later, tool

CALL = {"id": 7, "method": "tools/call", "params": {"name": "a__x"}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
LAPTOP, DESK = "laptop-0123456789abcdef", "desk-0123456789abcdef"
LISTEN = Listen(auth=Auth({"laptop": Secret(LAPTOP), "desk": Secret(DESK)}))


class OldClient:
    """Reads its stream, and posts to where the stream's first event says."""

    def __init__(self, connection: Connection, path: str = "/sse") -> None:
        self.connection = connection
        self.stream: Response = connection.send("GET", path, headers={"accept": "text/event-stream"})
        self.there = ""

    async def arrives(self) -> None:
        with trio.fail_after(5):
            await self.stream.started.wait()
        await wait_all_tasks_blocked()
        first = self.stream.events()[0]
        assert first.event == "endpoint"
        self.there = first.data.decode()

    async def opens(
        self, revision: str = "2024-11-05", capabilities: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        await self.arrives()
        info = {"name": "old", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": info}
        await self.says({"id": 0, "method": "initialize", "params": params})
        (answer,) = await self.stream.wait_messages(1)
        await self.says({"method": "notifications/initialized"})
        return answer

    async def says(self, message: Mapping[str, Any]) -> None:
        assert await self.connection.notify(message, self.there) == 202

    async def hears(self, nth: int) -> dict[str, Any]:
        """The nth message on the stream; that of the handshake is the first."""
        return (await self.stream.wait_messages(nth))[nth - 1]

    async def asks(self, method: str, params: object = None, id: object = 1) -> dict[str, Any]:
        before = len(self.stream.messages())
        await self.says({"id": id, "method": method, "params": params or {}})
        return await self.hears(before + 1)


@asynccontextmanager
async def open_old(*servers: ScriptedServer) -> AsyncIterator[OldClient]:
    """A client that has shaken hands."""
    async with open_http_app(*servers) as (_, connection):
        client = OldClient(connection)
        await client.opens(capabilities={"roots": {}})
        yield client


# The stream


async def test_the_first_event_says_where_to_post_and_all_else_are_messages() -> None:
    """(rule 29)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        client = OldClient(connection)
        assert (await client.opens())["result"]["protocolVersion"] == "2024-11-05"
        assert client.stream.headers["content-type"] == "text/event-stream"
        assert client.there.startswith("/message?session_id=")
        assert len(client.there) > 50
        await client.says({**CALL, "params": {"name": "a__x", "_meta": {"progressToken": "t"}}})
        asked = await server.hears("tools/call")
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        server.says(asked["id"], {"content": []})
        assert (await client.hears(3))["result"] == {"content": []}
        assert client.stream.messages()[1]["params"] == {"progressToken": "t", "progress": 1}
        events = client.stream.events()
        assert [event.event for event in events] == ["endpoint", "message", "message", "message"]
        assert {event.id for event in events} == {""}


@pytest.mark.few(2)
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "1999-01-01"])
async def test_it_carries_every_revision(connection: Connection, revision: str) -> None:
    client = OldClient(connection)
    settled = (await client.opens(revision))["result"]["protocolVersion"]
    assert settled == (revision if revision.startswith("202") else "2025-11-25")
    assert [each["name"] for each in (await client.asks("tools/list"))["result"]["tools"]] == ["a__x"]


async def test_a_server_has_a_stream_of_its_own() -> None:
    a, b = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["y"])
    async with open_http_app(a, b) as (_, connection):
        client = OldClient(connection, "/sse/a")
        await client.opens()
        assert client.there.startswith("/message/a?session_id=")
        assert [each["name"] for each in (await client.asks("tools/list"))["result"]["tools"]] == ["x"]
        elsewhere = client.there.replace("/message/a", "/message")
        assert await connection.notify({"id": 1, "method": "ping"}, elsewhere) == 404
        assert await connection.notify({"id": 1, "method": "ping"}, client.there.replace("/a", "/b")) == 404


async def test_a_sign_of_life_comes_every_half_minute(autojump_clock: MockClock) -> None:
    """(rule 29)"""
    async with open_old() as client:
        await trio.sleep(PING_INTERVAL * 3 + 1)
        assert [(event.event, event.data) for event in client.stream.events()[2:]] == [("ping", b"{}")] * 3


async def test_changes_are_told_when_the_client_is_ready() -> None:
    """(rule 12)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        client = OldClient(connection)
        await client.arrives()
        server.lists["tools"].append(tool("early"))
        await server.notifies("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        assert client.stream.messages() == []
        await client.says({"id": 0, "method": "initialize", "params": {"protocolVersion": "2024-11-05"}})
        await client.hears(1)
        await client.says({"method": "notifications/initialized"})
        server.lists["tools"].append(tool("y"))
        await server.notifies("notifications/tools/list_changed")
        assert (await client.hears(2))["method"] == "notifications/tools/list_changed"


async def test_before_the_handshake_only_a_ping_is_answered_and_afterwards_no_second_one_is(
    connection: Connection,
) -> None:
    """(rules 12, 13 and 16)"""
    client = OldClient(connection)
    await client.arrives()
    assert (await client.asks("ping"))["result"] == {}
    assert (await client.asks("tools/list"))["error"]["code"] == -32600
    hello = {"protocolVersion": "2024-11-05"}
    assert "result" in await client.asks("initialize", hello)
    assert (await client.asks("initialize", hello))["error"]["code"] == -32600
    assert (await client.asks("tools/list"))["result"]["tools"]


async def test_a_log_message_and_an_update_come_on_the_stream() -> None:
    """Each once (rule 22)."""
    server = ScriptedServer("a", resources=["r://1"], capabilities={"resources": {"subscribe": True}, "logging": {}})
    async with open_old(server) as client:
        assert (await client.asks("resources/subscribe", {"uri": "a+r://1"}))["result"] == {}
        assert (await client.asks("logging/setLevel", {"level": "info"}))["result"] == {}
        await server.notifies("notifications/resources/updated", {"uri": "r://1"})
        await server.notifies("notifications/message", {"level": "info", "data": 1})
        await client.hears(5)
        await wait_all_tasks_blocked()
        assert [each["method"] for each in client.stream.messages()[3:]] == [
            "notifications/resources/updated",
            "notifications/message",
        ]


# Its end


async def test_the_end_of_the_stream_is_the_end_of_the_session() -> None:
    """Its calls are called off, its questions end, its watches are given up (rules 29, 45 and 109)."""
    server = ScriptedServer(
        "a", tools=["x"], resources=["r://1"], capabilities={"tools": {}, "resources": {"subscribe": True}}
    )
    async with open_old(server) as client, trio.open_nursery() as nursery:
        await client.asks("resources/subscribe", {"uri": "a+r://1"})
        await client.says(CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        assert (await client.hears(3))["method"] == "roots/list"
        other = client.connection.another()
        client.connection.leaves.set()
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        with pytest.raises(Refused):
            await question.comes()
        await wait_all_tasks_blocked()
        assert server.asked.count("resources/unsubscribe") == 1
        assert await other.notify({"id": 1, "method": "ping"}, client.there) == 404


async def test_streams_end_when_the_host_stops_and_nobody_hangs_on_them() -> None:
    async with open_old() as client:
        client.connection.stop.set()
        await client.stream.complete.wait()
        assert await client.connection.notify({"id": 1, "method": "ping"}, client.there) == 404


async def test_a_message_that_meets_the_end_of_its_stream_is_not_ours_to_stumble_over() -> None:
    """Its session was there when it began to come, and is gone when it has come."""
    async with open_old() as client:
        other = client.connection.another()
        other.writes = trio.Event()
        answer = other.send("POST", client.there, {"jsonrpc": "2.0", **CALL})
        await wait_all_tasks_blocked()
        client.connection.leaves.set()
        await wait_all_tasks_blocked()
        other.writes.set()
        await answer.complete.wait()
        assert answer.status == 404


async def test_a_cancel_is_passed_on_and_answered_with_nothing() -> None:
    """(rule 47)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_old(server) as client:
        await client.says(CALL)
        asked = await server.hears("tools/call")
        await client.says({"method": "notifications/cancelled", "params": {"requestId": "7"}})
        await client.says({"method": "notifications/cancelled", "params": {"requestId": 7, "reason": "tired"}})
        heard = await server.hears("notifications/cancelled")
        assert (heard["requestId"], heard["reason"]) == (asked["id"], "tired")
        assert (await client.asks("ping", id=8))["id"] == 8


# Messages to a session


@pytest.mark.parametrize("query", ["", "?session_id=", "?session_id=x", "?session_id={0}&session_id={0}", "?sid={0}"])
async def test_a_message_names_exactly_one_session(query: str) -> None:
    """What names none is nobody's: it is answered by itself."""
    async with open_old() as client:
        id = client.there.partition("=")[2]
        answer = await client.connection.get(
            "POST", "/message" + query.format(id), {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        )
        assert answer.status == (404 if "session_id" in query else 200)
        assert len(client.stream.messages()) == 1


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', b'{"id":1}'])
async def test_what_is_no_message_is_refused_where_it_was_sent(body: bytes) -> None:
    """Batches too, which this revision does not have (rule 6)."""
    async with open_old() as client:
        answer = await client.connection.get("POST", client.there, body)
        assert (answer.status, answer.messages()[0]["error"]["code"] in (-32700, -32600)) == (400, True)
        assert (await client.asks("ping"))["result"] == {}


async def test_a_batch_is_answered_message_by_message_if_the_revision_has_batches(connection: Connection) -> None:
    """Each answer is an event of its own (rule 6)."""
    client = OldClient(connection)
    await client.opens("2025-03-26")
    ping = {"jsonrpc": "2.0", "method": "ping"}
    mixed = [{**ping, "id": 1}, {**ping, "id": "1"}, {"jsonrpc": "2.0", "method": "x"}, {"id": 4}]
    answer = await connection.get("POST", client.there, mixed)
    assert (answer.status, answer.body) == (202, b"")
    messages = (await client.stream.wait_messages(4))[1:]
    assert [(each["id"], each.get("error", {}).get("code")) for each in messages if each["id"] == 4] == [(4, -32600)]
    assert {repr(each["id"]) for each in messages} == {"1", "'1'", "4"}
    hello = {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {"protocolVersion": "2024-11-05"}}
    await connection.get("POST", client.there, [hello, {**ping, "id": 6}])
    last = {each["id"]: each for each in (await client.stream.wait_messages(6))[4:]}
    assert last[5]["error"]["code"] == -32600
    assert last[6]["result"] == {}
    await connection.get("POST", client.there, b"[]")
    assert (await client.hears(7))["error"]["code"] == -32600


async def test_one_id_twice_at_once_is_refused_the_second_time() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_old(server) as client:
        await client.says(CALL)
        asked = await server.hears("tools/call")
        await client.says(CALL)
        assert (await client.hears(2))["error"]["code"] == -32600
        server.says(asked["id"], {"content": []})
        assert (await client.hears(3))["result"] == {"content": []}


async def test_so_many_calls_are_in_flight_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_IN_FLIGHT", 2)
    server = ScriptedServer("a", tools=["x"])
    async with open_old(server) as client:
        for id in (1, 2):
            await client.says({**CALL, "id": id})
            await server.hears("tools/call")
        refused = await client.asks("ping", id=3)
        assert (refused["id"], refused["error"]["code"]) == (3, 429)


# Questions


async def test_a_question_comes_on_the_stream_and_its_answer_as_a_message() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        client = OldClient(connection)
        await client.opens("2025-11-25", {"elicitation": {}})
        other = OldClient(connection.another())
        await other.opens("2025-11-25", {"elicitation": {}})
        await client.says(CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        put = await client.hears(2)
        assert (put["method"], put["params"]["message"]) == ("elicitation/create", "[a] Who?")
        wrong = {"id": put["id"], "result": {"action": "accept", "content": {"of": "another"}}}
        await other.says(wrong)
        for id in (99, str(put["id"])):
            await client.says({**wrong, "id": id})
        await wait_all_tasks_blocked()
        assert not question.done
        await client.says({"id": put["id"], "result": {"action": "decline"}})
        await client.says(wrong)
        assert await question.comes() == {"action": "decline"}
        server.says(asked["id"], {"content": []})
        assert (await client.hears(3))["id"] == 7
        assert len(other.stream.messages()) == 1


async def test_a_question_that_is_withdrawn_is_withdrawn_on_the_stream() -> None:
    """By the server, and by the end of its call: then before the answer (rule 103)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_old(server) as client, trio.open_nursery() as nursery:
        await client.says(CALL)
        asked = await server.hears("tools/call")
        later(nursery, lambda: server.asks("roots/list", about=asked["id"], id="first"))
        first = await client.hears(2)
        await server.notifies("notifications/cancelled", {"requestId": "first"})
        assert (await client.hears(3))["params"]["requestId"] == first["id"]
        second = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        put = await client.hears(4)
        server.says(asked["id"], {"content": []})
        withdrawn, answer = await client.hears(5), await client.hears(6)
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", put["id"])
        assert answer["id"] == 7
        with pytest.raises(Refused):
            await second.comes()
        nursery.cancel_scope.cancel()


# Messages without a session


async def alone(connection: Connection, message: Mapping[str, Any], path: str = "/message") -> Response:
    return await connection.get("POST", path, {"jsonrpc": "2.0", **message})


async def test_a_request_without_a_session_is_answered_in_place() -> None:
    async def answer(params: dict[str, Any]) -> object:
        return {"content": [params["arguments"]]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": answer})
    async with open_http_app(server) as (_, connection):
        listed = await alone(connection, {"id": "l", "method": "tools/list"})
        assert (listed.status, listed.headers["content-type"]) == (200, "application/json")
        assert [each["name"] for each in listed.messages()[0]["result"]["tools"]] == ["a__x"]
        own = await alone(connection, {"id": "l", "method": "tools/list"}, "/message/a")
        assert [each["name"] for each in own.messages()[0]["result"]["tools"]] == ["x"]
        called = await alone(connection, {**CALL, "params": {"name": "a__x", "arguments": {"n": 1}}})
        assert called.messages() == [{"jsonrpc": "2.0", "id": 7, "result": {"content": [{"n": 1}]}}]
        assert (await alone(connection, {"id": 1, "method": "ping"})).messages()[0]["result"] == {}


async def test_an_error_without_a_session_is_one_of_json_rpc() -> None:
    rows: list[tuple[str, object, int]] = [
        ("no/such", {}, -32601),
        ("tools/call", {"name": "a__none"}, -32602),
        ("resources/read", {"uri": "a+none://"}, -32002),
        ("tools/call", [], -32600),
        ("resources/subscribe", {"uri": "a+r://1"}, -32600),
        ("resources/unsubscribe", {"uri": "a+r://1"}, -32600),
        ("logging/setLevel", {"level": "info"}, -32600),
    ]

    async def missing(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32002, "Resource not found"))

    server = ScriptedServer(
        "a",
        tools=["x"],
        resources=["r://1"],
        answers={"resources/read": missing},
        capabilities={"tools": {}, "resources": {"subscribe": True}},
    )
    async with open_http_app(server) as (_, connection):
        for method, params, code in rows:
            answer = await alone(connection, {"id": 1, "method": method, "params": params})
            assert (answer.status, answer.messages()[0]["error"]["code"]) == (200, code)
            if code == -32600 and params:
                assert (
                    answer.messages()[0]["error"]["message"] == "this method needs a session; open one at /mcp or /sse"
                )
                assert method not in server.asked


@pytest.mark.parametrize(
    "message",
    [
        {"method": "notifications/initialized"},
        {"method": "notifications/cancelled", "params": {"requestId": 1}},
        {"id": 1, "result": {}},
        {"id": 1, "error": "broken"},
    ],
)
async def test_what_is_no_request_is_taken_without_a_session_too(
    connection: Connection, message: dict[str, Any]
) -> None:
    answer = await alone(connection, message)
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', b'{"jsonrpc":"2.0","id":1}']
)
async def test_what_is_no_message_is_refused_without_a_session_too(connection: Connection, body: bytes) -> None:
    assert (await connection.get("POST", "/message", body)).status == 400


async def test_initialize_without_a_session_is_answered_and_opens_none(connection: Connection) -> None:
    params = {"protocolVersion": "2024-11-05", "capabilities": {}}
    answer = await alone(connection, {"id": 0, "method": "initialize", "params": params})
    assert answer.messages()[0]["result"]["protocolVersion"] == "2024-11-05"
    assert "mcp-session-id" not in answer.headers


async def test_without_a_session_nobody_is_asked_or_told_anything() -> None:
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_http_app(server) as (_, connection):
        params = {"name": "a__x", "_meta": {"progressToken": "t"}}
        answer = connection.send("POST", "/message", {"jsonrpc": "2.0", **CALL, "params": params})
        asked = await server.hears("tools/call")
        assert await server.asks("roots/list", about=asked["id"]) == {"roots": []}
        with pytest.raises(Refused):
            await server.asks("elicitation/create", FORM, about=asked["id"])
        progress = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        await server.notifies("notifications/progress", progress)
        server.sends(Notification("notifications/message", Raw(b'{"level":"error","data":1}')), about=asked["id"])
        server.says(asked["id"], {"content": []})
        await answer.complete.wait()
        assert answer.headers["content-type"] == "application/json"
        assert answer.messages() == [{"jsonrpc": "2.0", "id": 7, "result": {"content": []}}]


async def test_a_client_without_a_session_that_leaves_calls_its_request_off() -> None:
    """Its answer could go nowhere else."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        answer = connection.send("POST", "/message", {"jsonrpc": "2.0", **CALL})
        asked = await server.hears("tools/call")
        connection.leaves.set()
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        assert not answer.started.is_set()


# The door


@pytest.mark.parametrize(
    ("path", "method"), [("/sse", "POST"), ("/sse", "DELETE"), ("/message", "GET"), ("/message", "PUT")]
)
async def test_other_methods_are_refused(connection: Connection, path: str, method: str) -> None:
    answer = await connection.get(method, path)
    assert (answer.status, "OPTIONS" in answer.headers["allow"]) == (405, True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.com"}, 403),
        ({"host": "evil.com"}, 421),
        ({"accept": "application/json"}, 406),
    ],
)
async def test_a_stream_is_guarded_like_everything(
    connection: Connection, headers: dict[str, str | None], status: int
) -> None:
    """(rule 18)"""
    assert (await connection.get("GET", "/sse", headers=headers)).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.com"}, 403),
        ({"host": "evil.com"}, 421),
        ({"content-type": "text/plain"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"accept": None}, 202),
    ],
)
async def test_a_message_is_guarded_like_everything(headers: dict[str, str | None], status: int) -> None:
    """(rule 18)"""
    async with open_old() as client:
        message = {"jsonrpc": "2.0", "method": "x"}
        assert (await client.connection.get("POST", client.there, message, headers=headers)).status == status


async def test_a_session_is_unknown_to_whoever_has_another_token() -> None:
    """(rules 19 and 30)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=LISTEN) as (_, connection):
        connection.headers = {"authorization": f"Bearer {LAPTOP}"}
        client = OldClient(connection)
        await client.opens()
        foreign = connection.another()
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}
        unknown = await connection.get("POST", "/message?session_id=never", message)
        foreign.headers = {"authorization": f"Bearer {DESK}"}
        refused = await foreign.get("POST", client.there, message)
        assert (refused.status, refused.body) == (unknown.status, unknown.body) == (404, unknown.body)
        foreign.headers = {"authorization": "Bearer wrong"}
        assert (await foreign.get("POST", client.there, message)).status == 401
        foreign.headers = {}
        assert (await foreign.get("POST", f"{client.there}&access_token={LAPTOP}", message)).status == 401
        server.hears_nothing_more()
        assert len(client.stream.messages()) == 1


async def test_there_are_so_many_streams_and_no_more() -> None:
    async with open_http_app(capacity=Capacity(streams=4)) as (_, connection):
        clients = [OldClient(connection.another()) for _ in range(2)]
        for client in clients:
            await client.opens()
        refused = await connection.get("GET", "/sse")
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        clients[0].connection.leaves.set()
        await wait_all_tasks_blocked()
        await OldClient(connection).opens()


async def test_where_it_is_switched_off_there_is_nothing() -> None:
    async with open_http_app(listen=Listen(sse=False)) as (_, connection):
        for method, path in (("GET", "/sse"), ("POST", "/message"), ("GET", "/sse/a"), ("POST", "/message/a")):
            answer = await connection.get(method, path, {"jsonrpc": "2.0", "id": 1, "method": "ping"})
            assert answer.status == 404


# A slow reader


async def test_a_slow_reader_loses_no_answer_and_holds_a_bounded_part_of_what_is_said(
    autojump_clock: MockClock,
) -> None:
    async def big(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "x" * (MAX_KEPT // 3)}]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": big}, capabilities={"tools": {}, "logging": {}})
    async with open_old(server) as client:
        await client.asks("logging/setLevel", {"level": "debug"})
        posts = client.connection.another()
        client.connection.reads = trio.Event()
        for id in range(10, 22):
            assert await posts.notify({**CALL, "id": id}, client.there) == 202
        await wait_all_tasks_blocked()
        for n in range(150):
            await server.notifies("notifications/message", {"level": "info", "data": [n, "x" * 50_000]})
        await trio.sleep(300)
        assert len(client.stream.messages()) == 2
        client.connection.reads.set()
        await wait_all_tasks_blocked()
        messages = client.stream.messages()[2:]
        answered = [each["id"] for each in messages if "id" in each]
        assert sorted(answered) == list(range(10, 22))
        assert len(messages) - len(answered) < 30
        assert len([event for event in client.stream.events() if event.event == "ping"]) <= 1


@pytest.mark.slow
async def test_while_one_does_not_read_the_others_are_served() -> None:
    async def big(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "x" * MAX_KEPT}]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": big})
    async with open_old(server) as client:
        posts, other = client.connection.another(), OldClient(client.connection.another())
        await other.opens()
        client.connection.reads = trio.Event()
        for id in range(5):
            await posts.notify({**CALL, "id": id}, client.there)
        assert (await other.asks("ping"))["result"] == {}
        await other.says(CALL)
        assert json.dumps(await other.hears(3)).count("x") >= MAX_KEPT
        client.connection.leaves.set()


async def test_what_waits_to_be_read_is_bounded_and_answers_wait_for_room() -> None:
    outgoing = sse._EventQueue(Budget(), None, trio.CancelScope())
    notice = Notification("x", Raw(b'"' + b"x" * (MAX_KEPT // 4) + b'"'))
    assert [outgoing.enqueue(notice) for _ in range(6)] == [True] * 4 + [False] * 2
    taken: list[bytes] = []

    async def take(event: Event) -> None:
        await trio.lowlevel.checkpoint()
        assert outgoing._size <= MAX_KEPT * 5 // 4
        taken.append(event["body"])

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(outgoing.send, notice)
        await wait_all_tasks_blocked()
        assert outgoing._size <= MAX_KEPT * 5 // 4
        nursery.start_soon(outgoing.write_events, take)
        await wait_all_tasks_blocked()
        assert (b"".join(taken).count(b"event: message"), outgoing._size) == (10, 0)
        nursery.cancel_scope.cancel()
