"""The stdio face over two pipes, with scripted servers behind it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from host.client_process import ClientProcess
from host.downstream.connected_clients import ConnectedClients
from host.downstream.sessions import Session
from host.downstream.stateless_stdio import StatelessStdio
from host.downstream.stdio import own_stdout, serve_stdio
from host.journal import AttemptRefused
from host.jsonrpc.messages import Notification
from host.protocol.versions import LATEST, LATEST_LEGACY
from host.source import SHARED
from host.wire.framing import MAX_LINE, LineSplitter
from host.wire.pipe import MAX_BACKLOG
from tests.kit import bodies
from tests.kit.asgi import open_stateless
from tests.kit.world import Refusal as Refused
from tests.kit.world import ScriptedServer, World, later, open_world, tool

REVISION = LATEST_LEGACY.name
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}


class Client:
    """Writes lines and reads lines. `stop` is what the host would set when it stops, `over` is set at the end."""

    def __init__(self, to_host: int, from_host: int) -> None:
        self.to_host = trio.lowlevel.FdStream(to_host)
        self.from_host = trio.lowlevel.FdStream(from_host)
        self.stop = trio.Event()
        self.over = trio.Event()
        self.clients = ConnectedClients()
        self._lines: list[bytes] = []
        self._splitter = LineSplitter()

    async def says(self, *messages: Any) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
            await self.to_host.send_all(data + b"\n")

    async def hears(self) -> Any:
        with trio.fail_after(5):
            while not self._lines:
                self._lines.extend(self._splitter.feed(bytes(await self.from_host.receive_some(65536))))
        return json.loads(self._lines.pop(0))

    async def shakes_hands(self, revision: str = REVISION, capabilities: dict[str, Any] | None = None) -> Any:
        info = {"name": "t", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": info}
        await self.says({"id": 0, "method": "initialize", "params": params}, {"method": "notifications/initialized"})
        return await self.hears()


async def test_an_attempt_over_stdio_has_no_address_but_says_so_in_both_eras() -> None:
    async with open_stdio() as (world, client):
        await client.shakes_hands()
        meta = {
            "io.modelcontextprotocol/protocolVersion": LATEST.name,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        for id, params in enumerate(({"name": "a__y"}, {"name": "a__z", "_meta": meta}), 1):
            await client.says({"id": id, "method": "tools/call", "params": params})
            assert (await client.hears())["error"]["code"] == -32602
        world.events.clear()
        world.gate.decision_log.flush_attempts()
        found = [event.attempt for event in world.events if isinstance(event, AttemptRefused)]
        assert [(each.name, each.address) for each in found] == [("a__y", "stdio"), ("a__z", "stdio")]


@asynccontextmanager
async def open_stdio(
    *servers: ScriptedServer, process: ClientProcess | None = None
) -> AsyncIterator[tuple[World, Client]]:
    host_in, to_host = os.pipe()
    from_host, host_out = os.pipe()
    client = Client(to_host, from_host)

    async def serve() -> None:
        async with open_stateless(world) as stateless:
            session = Session(
                "stdio",
                SHARED,
                world.router,
                world.journal,
                tasks=stateless.tasks,
                memory=world.memory,
                process=process,
                is_sole=True,
            )
            client.clients.add(session, "stdio")
            either = StatelessStdio(stateless, session, client.stop)
            await serve_stdio(session, either, host_in, host_out)
        client.over.set()

    async with (
        open_world(*(servers or (ScriptedServer("a", tools=["x"]),)), single_client=True) as world,
        trio.open_nursery() as nursery,
    ):
        await world.settled()
        nursery.start_soon(serve)
        try:
            yield world, client
        finally:
            await client.to_host.aclose()
            with trio.fail_after(5):
                await client.over.wait()
            await client.from_host.aclose()
    os.close(host_in)
    os.close(host_out)


async def test_a_client_lists_calls_and_hears_progress() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        assert (await client.shakes_hands())["result"]["protocolVersion"] == REVISION
        await client.says({"id": "l", "method": "tools/list"})
        assert [each["name"] for each in (await client.hears())["result"]["tools"]] == ["a__x"]
        params = {"name": "a__x", "_meta": {"progressToken": "t"}}
        await client.says({"id": 1, "method": "tools/call", "params": params})
        asked = await server.hears("tools/call")
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        server.says(asked["id"], {"content": []})
        assert (await client.hears())["params"] == {"progressToken": "t", "progress": 1}
        assert await client.hears() == {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}


async def test_a_client_that_leaves_calls_everything_off() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        await client.says(*({"id": n, "method": "tools/call", "params": {"name": "a__x"}} for n in range(1, 4)))
        asked = {(await server.hears("tools/call"))["id"] for _ in range(3)}
        await client.to_host.aclose()
        assert {(await server.hears("notifications/cancelled"))["requestId"] for _ in range(3)} == asked


async def test_a_cancel_is_passed_on_and_answered_with_nothing() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        await client.says({"id": 5, "method": "tools/call", "params": {"name": "a__x"}})
        asked = await server.hears("tools/call")
        await client.says(
            {"method": "notifications/cancelled", "params": {"requestId": 5}}, {"id": 6, "method": "ping"}
        )
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        assert await client.hears() == {"jsonrpc": "2.0", "id": 6, "result": {}}


@pytest.mark.slow
async def test_a_cancel_does_not_overtake_a_large_request() -> None:
    """The request is read beside the loop, and nothing behind it is taken meanwhile."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        large = bodies.call(bodies.ARGUMENTS["66,000 small objects"](), id=5)
        await client.says(
            large, {"method": "notifications/cancelled", "params": {"requestId": 5}}, {"id": 6, "method": "ping"}
        )
        assert await client.hears() == {"jsonrpc": "2.0", "id": 6, "result": {}}


async def test_a_cancel_right_behind_its_request_is_not_lost() -> None:
    """Both in one write: the server hears of neither, or of both."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "a__x"}}
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
        await client.says(f"{json.dumps(call)}\n{json.dumps(cancel)}".encode(), {"id": 6, "method": "ping"})
        assert await client.hears() == {"jsonrpc": "2.0", "id": 6, "result": {}}
        await wait_all_tasks_blocked()
        server.hears_nothing_more()


async def test_an_id_in_flight_is_refused_the_second_time_and_served_the_first() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        await client.says(*({"id": 1, "method": "tools/call", "params": {"name": "a__x"}} for _ in range(2)))
        assert (await client.hears())["error"]["code"] == -32600
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        assert (await client.hears())["result"] == {"content": []}


async def test_requests_sent_before_the_handshake_is_answered_are_served_after_it() -> None:
    async with open_stdio() as (_, client):
        params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await client.says(
            {"id": 0, "method": "initialize", "params": params},
            {"method": "notifications/initialized"},
            {"id": 1, "method": "tools/list"},
        )
        assert [(await client.hears())["id"] for _ in range(2)] == [0, 1]


async def test_before_any_handshake_only_a_ping_is_answered() -> None:
    async with open_stdio() as (_, client):
        await client.says({"id": 1, "method": "ping"}, {"id": 2, "method": "tools/list"})
        answers = {answer["id"]: answer for answer in [await client.hears() for _ in range(2)]}
        assert answers[1]["result"] == {}
        assert answers[2]["error"]["code"] == -32602


async def test_a_second_handshake_is_refused() -> None:
    async with open_stdio() as (_, client):
        await client.shakes_hands()
        await client.says({"id": 1, "method": "initialize", "params": {"protocolVersion": REVISION}})
        assert (await client.hears())["error"]["code"] == -32600


@pytest.mark.parametrize("junk", [b"hello", b"[]", b'{"jsonrpc":"2.0","id":null,"method":"ping"}', b"\xff"])
async def test_a_line_that_is_no_message_is_answered_and_the_next_one_served(junk: bytes) -> None:
    async with open_stdio() as (_, client):
        await client.shakes_hands()
        await client.says(junk, {"id": 1, "method": "ping"})
        answers = [await client.hears(), await client.hears()]
        assert {answer.get("id") for answer in answers} == {None, 1}
        assert any("error" in answer for answer in answers)


async def test_lines_are_split_at_line_feeds_only_and_each_answer_is_one_line() -> None:
    async def pretty(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "a\u2028b\u0085c"}]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": pretty})
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        body = (
            '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__x","arguments":{"t":"\u2028\u0085"}}}'
        )
        await client.says(body.encode() + b"\r")
        assert (await client.hears())["result"]["content"][0]["text"] == "a\u2028b\u0085c"


async def test_a_line_without_an_end_is_given_up_at_the_limit() -> None:
    async with open_stdio() as (_, client), trio.open_nursery() as nursery:

        async def flood() -> None:
            for _ in range(MAX_LINE // 65536 + 1):
                await client.to_host.send_all(b"x" * 65536)

        nursery.start_soon(flood)
        assert (await client.hears())["error"]["code"] == -32700
        await client.over.wait()
        nursery.cancel_scope.cancel()


async def test_changes_are_told_after_the_handshake() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        server.lists["tools"].append(tool("y"))
        await server.notifies("notifications/tools/list_changed")
        assert (await client.hears())["method"] == "notifications/tools/list_changed"


@pytest.mark.slow
async def test_answers_to_a_client_that_does_not_read_wait_without_holding_up_anything() -> None:
    async def big(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "x" * 300_000}]}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": big})
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        await client.says(*({"id": n, "method": "tools/call", "params": {"name": "a__x"}} for n in range(1, 6)))
        await wait_all_tasks_blocked()
        assert sorted([(await client.hears())["id"] for _ in range(5)]) == [1, 2, 3, 4, 5]


@pytest.mark.slow
async def test_answers_larger_than_all_that_may_wait_are_lost_by_nobody() -> None:
    """Not even one that is larger by itself."""

    async def big(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "x" * params["arguments"]["size"]}]}

    sizes = [MAX_BACKLOG + 1, MAX_BACKLOG // 2, MAX_BACKLOG // 2, MAX_BACKLOG // 2]
    server = ScriptedServer("a", tools=["x"], answers={"tools/call": big})
    async with open_stdio(server) as (_, client):
        client._splitter = LineSplitter(4 * MAX_BACKLOG)
        await client.shakes_hands()
        calls = [
            {"id": n, "method": "tools/call", "params": {"name": "a__x", "arguments": {"size": size}}}
            for n, size in enumerate(sizes)
        ]
        await client.says(*calls)
        await wait_all_tasks_blocked()
        answers = [await client.hears() for _ in sizes]
        assert sorted((each["id"], len(each["result"]["content"][0]["text"])) for each in answers) == list(
            enumerate(sizes)
        )


def test_what_others_print_does_not_get_between_the_messages(capfd: pytest.CaptureFixture[str]) -> None:
    with own_stdout() as protocol:
        os.write(1, b"stray\n")
        os.write(protocol, b"message\n")
    os.write(1, b"after\n")
    out, err = capfd.readouterr()
    assert (out, err) == ("message\nafter\n", "stray\n")


# Batches


async def test_a_batch_is_answered_line_by_line() -> None:
    """(rule 6)"""
    async with open_stdio() as (_, client):
        await client.shakes_hands("2025-03-26")
        ping = {"jsonrpc": "2.0", "method": "ping"}
        mixed = [{**ping, "id": 1}, {**ping, "id": "1"}, {"jsonrpc": "2.0", "method": "x"}, {**ping, "id": None}]
        await client.says(json.dumps(mixed).encode())
        answers = [await client.hears() for _ in range(3)]
        assert {repr(each.get("id")): "error" in each for each in answers} == {"1": False, "'1'": False, "None": True}
        await client.says(b'[{"jsonrpc":"2.0","method":"x"}]', b"[]", {"id": 2, "method": "ping"})
        assert (await client.hears())["error"]["code"] == -32600
        assert await client.hears() == {"jsonrpc": "2.0", "id": 2, "result": {}}


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_clients_of_other_revisions_send_no_batches(revision: str) -> None:
    """(rule 6)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands(revision)
        await client.says(b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__x"}}]')
        assert (await client.hears())["error"]["code"] == -32600
        await wait_all_tasks_blocked()
        server.hears_nothing_more()


# Questions


async def test_a_question_is_a_line_and_so_is_its_answer() -> None:
    """Answers that fit no question mean nothing, and get no answer themselves (rule 7)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client), trio.open_nursery() as nursery:
        await client.shakes_hands(capabilities={"elicitation": {}})
        await client.says({"id": 1, "method": "tools/call", "params": {"name": "a__x"}})
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("elicitation/create", FORM, about=asked["id"]))
        put = await client.hears()
        assert (put["method"], put["params"]["message"]) == ("elicitation/create", "[a] Who?")
        accept = {"result": {"action": "accept", "content": {}}}
        await client.says({"id": 99, **accept}, {"id": str(put["id"]), **accept}, {"id": None, "error": {}})
        await client.says({"id": 2, "method": "ping"})
        assert await client.hears() == {"jsonrpc": "2.0", "id": 2, "result": {}}
        assert not question.done
        await client.says({"id": put["id"], "result": {"action": "decline"}}, {"id": put["id"], **accept})
        assert await question.comes() == {"action": "decline"}
        server.says(asked["id"], {"content": []})
        assert (await client.hears())["id"] == 1


async def test_a_question_still_open_when_its_call_is_answered_is_withdrawn() -> None:
    """(rule 103)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client), trio.open_nursery() as nursery:
        await client.shakes_hands(capabilities={"roots": {}})
        await server.hears("notifications/roots/list_changed")
        await client.says({"id": 1, "method": "tools/call", "params": {"name": "a__x"}})
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        put = await client.hears()
        server.says(asked["id"], {"content": []})
        withdrawn, answer = await client.hears(), await client.hears()
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", put["id"])
        assert answer["id"] == 1
        with pytest.raises(Refused):
            await question.comes()


async def test_a_question_that_belongs_to_no_call_is_asked_of_the_one_client_there_is() -> None:
    async with open_stdio(server := ScriptedServer("a", tools=["x"])) as (_, client), trio.open_nursery() as nursery:
        await client.shakes_hands(capabilities={"roots": {}})
        await wait_all_tasks_blocked()
        question = later(nursery, lambda: server.asks("roots/list"))
        heard = await client.hears()
        assert heard["method"] == "roots/list"
        await client.says({"id": heard["id"], "result": {"roots": [{"uri": "file:///x"}]}})
        assert await question.comes() == {"roots": [{"uri": "file:///x"}]}


# Its end


async def test_at_the_end_of_input_everything_ends_at_once(autojump_clock: MockClock) -> None:
    """Calls are called off, questions of any kind get an error, watches are given up (rules 17, 45 and 109)."""
    server = ScriptedServer(
        "a", tools=["x"], resources=["r://1"], capabilities={"tools": {}, "resources": {"subscribe": True}}
    )
    async with open_stdio(server) as (_, client), trio.open_nursery() as nursery:
        await client.shakes_hands(capabilities={"roots": {}})
        await client.says({"id": 1, "method": "resources/subscribe", "params": {"uri": "a+r://1"}})
        assert (await client.hears())["result"] == {}
        await server.hears("notifications/roots/list_changed")
        unrelated = later(nursery, lambda: server.asks("roots/list"))
        assert (await client.hears())["method"] == "roots/list"
        await client.says({"id": 2, "method": "tools/call", "params": {"name": "a__x"}})
        asked = await server.hears("tools/call")
        related = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        assert (await client.hears())["method"] == "roots/list"
        began = trio.current_time()
        await client.to_host.aclose()
        await client.over.wait()
        assert trio.current_time() - began < 1
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        for question in (unrelated, related):
            with pytest.raises(Refused):
                await question.comes()
        await wait_all_tasks_blocked()
        assert server.asked.count("resources/unsubscribe") == 1


async def test_a_last_line_without_an_end_is_heard_before_the_end() -> None:
    """(rule 17)"""
    async with open_stdio() as (_, client):
        await client.shakes_hands()
        await client.to_host.send_all(b'{"jsonrpc":"2.0","id":')
        await client.to_host.send_all(b'null,"method":"ping"}')
        await client.to_host.aclose()
        assert (await client.hears())["error"]["code"] == -32600


async def test_after_a_cancel_nothing_more_is_said_of_the_call() -> None:
    """(rule 47)"""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        params = {"name": "a__x", "_meta": {"progressToken": "t"}}
        await client.says({"id": 5, "method": "tools/call", "params": params})
        asked = await server.hears("tools/call")
        await client.says({"method": "notifications/cancelled", "params": {"requestId": 5}})
        await server.hears("notifications/cancelled")
        progress = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        await server.notifies("notifications/progress", progress)
        server.sends(Notification("notifications/message", Raw(b'{"level":"error","data":1}')), about=asked["id"])
        server.says(asked["id"], {"content": []})
        await wait_all_tasks_blocked()
        await client.says({"id": 6, "method": "ping"})
        assert await client.hears() == {"jsonrpc": "2.0", "id": 6, "result": {}}


async def test_a_ping_is_answered_in_any_phase_and_never_passed_on() -> None:
    """(rule 16)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.says({"id": 1, "method": "ping"})
        assert (await client.hears())["result"] == {}
        await client.shakes_hands()
        await client.says({"id": 2, "method": "tools/call", "params": {"name": "a__x"}}, {"id": 3, "method": "ping"})
        assert (await client.hears())["id"] == 3
        assert "ping" not in server.asked
