"""A server that sends many useless messages: its limit, its end, and that others are not delayed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Isolation, Secret, StdioServer
from host.journal import Journal, MessageDropped, ServerFailed
from host.jsonrpc.messages import ErrorBody, Failure, Notification, Request, Success, write
from host.jsonrpc.raw import EMPTY_OBJECT, encode
from host.peer.peer import MAX_TOKENS
from host.upstream import server_requests
from host.upstream.connect import open_link
from host.upstream.server_requests import MAX_LOGS_PER_SECOND, NEEDLESS_LIMIT, NOISE_SIZE, READ_WEIGHT
from host.upstream.state import Failed, Ready
from host.wire.link import Link
from host.wire.noise import MAX_USELESS_PER_SECOND, NEEDLESS_SECONDS, UselessMessages
from host.wire.process import Keeper, open_keeper
from host.wire.turns import Turns
from tests.kit.world import Refusal, ScriptedServer, World, later, open_world

WHY = f"it sent more than {MAX_USELESS_PER_SECOND} useless messages in one second"


def failures(world: World) -> list[str]:
    return [event.why for event in world.events if isinstance(event, ServerFailed)]


def test_the_budget_is_for_one_second_and_comes_back() -> None:
    noise = UselessMessages(100.0)
    assert all(noise.add(100.0) for _ in range(MAX_USELESS_PER_SECOND))
    assert not noise.add(100.0)
    noise = UselessMessages(100.0)
    for second in range(100, 110):
        assert all(noise.add(float(second)) for _ in range(MAX_USELESS_PER_SECOND))
    assert not noise.add(109.0)
    needless = UselessMessages(100.0, 10, 5)
    assert all(needless.add(100.0) for _ in range(50))
    assert not needless.add(100.0)
    assert needless.add(100.5, 3)


Send = Callable[[ScriptedServer], None]
TOO_LARGE = write(Request(1, "sampling/createMessage", Raw(b'{"x":[' + b"1," * MAX_TOKENS + b"1]}")))


def malformed(server: ScriptedServer) -> None:
    assert server.link is not None
    server.link.write_bytes(b"a banner")


def unknown_method(server: ScriptedServer) -> None:
    server.sends(Notification("notifications/nonsense"))


def never_asked(server: ScriptedServer) -> None:
    server.sends(Success(1_000_000, EMPTY_OBJECT))


def answers_to_nothing(server: ScriptedServer) -> None:
    server.sends(Failure(ErrorBody(1, "x"), None))


def too_large(server: ScriptedServer) -> None:
    assert server.link is not None
    server.link.write_bytes(TOO_LARGE)


def request(method: str, params: Raw | None = None) -> Send:
    """A request that is answered without a client."""
    ids = count(1)
    return lambda server: server.sends(Request(next(ids), method, params))


def repeated(server: ScriptedServer) -> None:
    server.sends(Request(1, "ping"))


FORM = Raw(b'{"message":"?","requestedSchema":{}}')
REQUESTS = {
    "ping": request("ping"),
    "roots": request("roots/list"),
    "unknown": request("vendor/nonsense"),
    "not allowed": request("sampling/createMessage", Raw(b'{"messages":[],"maxTokens":1}')),
    "of no call": request("elicitation/create", FORM),
    "invalid": request("elicitation/create", EMPTY_OBJECT),
}
USELESS = pytest.mark.parametrize(
    "send",
    [
        *(malformed, unknown_method, never_asked, answers_to_nothing, too_large, repeated),
        *(pytest.param(send, id=kind) for kind, send in REQUESTS.items()),
    ],
)


@pytest.mark.few(3)
@USELESS
async def test_beyond_the_budget_the_connection_ends_and_backs_off(
    send: Send, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The budget is lower here, so that the test is fast."""
    few = 100
    monkeypatch.setattr(
        server_requests, "UselessMessages", lambda now, *budget: UselessMessages(now, *(budget or (few,)))
    )
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        for _ in range(2):
            for _ in range(few):
                send(server)
            await wait_all_tasks_blocked(0.01)
            assert isinstance(world.upstreams.by_id["a"].main.state, Ready)
            await trio.sleep(1)
            assert failures(world) == []
        for _ in range(few + 1):
            send(server)
        await wait_all_tasks_blocked(0.01)
        state = world.upstreams.by_id["a"].main.state
        assert isinstance(state, Failed)
        assert (state.why, failures(world)) == (WHY, [WHY])
        await trio.sleep(1)
        assert isinstance(world.upstreams.by_id["a"].main.state, Ready)


LOG = Notification("notifications/message", Raw(b'{"level":"error","data":1}'))
NEEDLESS = {
    "log": LOG,
    "late progress": Notification("notifications/progress", Raw(b'{"progressToken":77,"progress":1}')),
    "list changed": Notification("notifications/tools/list_changed"),
    "updated": Notification("notifications/resources/updated", Raw(b'{"uri":"file:///never/watched"}')),
    "cancelled": Notification("notifications/cancelled", Raw(b'{"requestId":77}')),
    "task status": Notification("notifications/tasks/status", Raw(b'{"taskId":"x","status":"working"}')),
    "completed": Notification("notifications/elicitation/complete", Raw(b'{"elicitationId":"x"}')),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", NEEDLESS)
async def test_legal_messages_that_nobody_needs_have_a_limit_too(
    kind: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Ten times that of useless ones. Here it is lower, so that the test is fast."""
    monkeypatch.setattr(server_requests, "MAX_NEEDLESS_PER_SECOND", 100)
    server = ScriptedServer("a", tools=["x"])
    free = MAX_LOGS_PER_SECOND if kind == "log" else 0
    async with open_world(server) as world:
        await world.settled()
        for _ in range(100 * NEEDLESS_SECONDS + free):
            server.sends(NEEDLESS[kind])
        await wait_all_tasks_blocked(0.01)
        assert failures(world) == []
        server.sends(NEEDLESS[kind])
        await wait_all_tasks_blocked(0.01)
        assert failures(world) == [f"it sent more than {NEEDLESS_LIMIT}"]


PADDING = b"x" * (4 * 1024 * 1024)
LARGE = {
    "notification": b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"%b"}}',
    "progress": b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"data":"%b"}}',
    "stray answer": b'{"jsonrpc":"2.0","result":{"x":"%b"},"id":1000000}',
    "stray error": b'{"jsonrpc":"2.0","id":1000000,"error":{"code":1,"message":"","data":"%b"}}',
    "request": b'{"jsonrpc":"2.0","id":1,"method":"vendor/nonsense","params":{"x":"%b"}}',
    "malformed": b'{"jsonrpc":"2.0","method":"notifications/message","x":"%b"',
    "text": b"%b",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", LARGE)
async def test_a_large_message_that_nobody_waits_for_counts_by_its_size(kind: str, autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    text = LARGE[kind] % PADDING
    size = len(PADDING) * (READ_WEIGHT if kind in ("malformed", "text") else 1)
    fit = MAX_USELESS_PER_SECOND // (1 + size // NOISE_SIZE)
    async with open_world(server) as world:
        await world.settled()
        assert server.link is not None
        for _ in range(fit):
            server.link.write_bytes(text)
            await wait_all_tasks_blocked()
        assert failures(world) == []
        server.link.write_bytes(text)
        await wait_all_tasks_blocked(0.01)
        assert failures(world) == [WHY]


async def test_a_large_answer_that_is_awaited_is_no_noise(autojump_clock: MockClock) -> None:
    """Nor is one that cannot be read."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        for number in range(MAX_USELESS_PER_SECOND // (len(PADDING) // NOISE_SIZE) + 1):
            call = later(nursery, client.call, "a__x")
            id = (await server.hears("tools/call"))["id"]
            assert server.link is not None
            end = b'","content":[]}' if number % 2 else b""
            server.link.write_bytes(b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' % id + PADDING + end + b"}")
            result = await call.comes()
            assert result.get("isError", False) == (not number % 2)
        assert failures(world) == []


@pytest.mark.slow
async def test_one_that_does_it_again_and_again_is_tried_ever_later(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        delays = []
        for _ in range(6):
            for _ in range(MAX_USELESS_PER_SECOND + 1):
                malformed(server)
            await wait_all_tasks_blocked(0.01)
            state = world.upstreams.by_id["a"].main.state
            assert isinstance(state, Failed)
            delays.append(state.next_attempt - state.since)
            await trio.sleep_until(state.next_attempt)
            await wait_all_tasks_blocked(0.01)
        assert delays[5] > 10 * delays[0]


async def test_what_is_late_or_repeated_is_not_counted(autojump_clock: MockClock) -> None:
    """Progress for what is over, log messages, changes: lawful, and merged or dropped."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {"listChanged": True}, "logging": {}})
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        call = later(nursery, client.call, "a__x", _meta={"progressToken": 1})
        asked = await server.hears("tools/call")
        server.says(asked["id"], {"content": []})
        await call.comes()
        listed = server.asked.count("tools/list")
        token = asked["_meta"]["progressToken"]
        for _ in range(3 * MAX_USELESS_PER_SECOND):
            server.sends(Notification("notifications/progress", encode({"progressToken": token, "progress": 1})))
            server.sends(Notification("notifications/message", encode({"level": "info", "data": 1})))
            server.sends(Notification("notifications/tools/list_changed"))
        await trio.sleep(5)
        assert failures(world) == []
        assert server.connections == 1
        assert server.asked.count("tools/list") - listed <= 2


async def test_requests_of_unknown_methods_count(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        for _ in range(MAX_USELESS_PER_SECOND // 20 + 1):
            for _ in range(20):
                nursery.start_soon(_asks_in_vain, server)
            await wait_all_tasks_blocked(0.0)
        assert failures(world) == [WHY]
        nursery.cancel_scope.cancel()


async def _asks_in_vain(server: ScriptedServer) -> None:
    with pytest.raises(Refusal, match="-32601"):
        await server.asks("tools/nonsense")


async def test_a_dedicated_instance_that_is_noisy_is_not_started_again_at_once(autojump_clock: MockClock) -> None:
    async def noisy(params: dict[str, Any]) -> object:
        for _ in range(MAX_USELESS_PER_SECOND + 1):
            malformed(server)
        return {"content": []}

    server = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CLIENT, answers={"tools/call": noisy})
    async with open_world(server) as world:
        client = await world.client()
        started = server.connections
        for _ in range(5):
            await client.call("a__x")
        assert server.connections == started + 1
        await trio.sleep(0.05)  # the former one has ended
        assert "the next start is in" in json.dumps(await client.call("a__x"))


# --- a real child ---------------------------------------------------------------------------------------------------

GOOD = """
import json, sys
noise = sys.argv[1].encode() + b"\\n"
for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" not in message: continue
    method, result = message["method"], None
    if method == "initialize":
        info = {"name": "a", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        size = message["params"]["arguments"].get("size", 0)
        result = {"content": [{"type": "text", "text": "x" * size}]}
        if message["params"]["arguments"].get("noise"):
            sys.stdout.buffer.write(noise * message["params"]["arguments"]["noise"])
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    answer.update({"result": result} if result is not None else {"error": {"code": -32601, "message": "no"}})
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""


class RealServer(ScriptedServer):
    """A program instead of a script."""

    def __init__(self, id: str, keeper: Keeper, turns: Turns, noise: str = "", **more: Any) -> None:
        super().__init__(id)
        program = [sys.executable, "-I", "-S", "-c", GOOD, noise]
        self.spec = StdioServer(id=id, command=tuple(map(Secret, program)), cwd=Path("/"), **more)
        self._keeper = keeper
        self._turns = turns

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        self.connections += 1
        opening = open_link(self.spec, http_sse=False, keeper=self._keeper, journal=Journal(), turns=self._turns)
        async with opening as link:
            yield link


@pytest.mark.slow
async def test_one_clients_long_answers_fail_alone_at_a_shared_server() -> None:
    """Six answers of 9 MB beside six hundred small calls of another client."""
    async with open_keeper() as keeper:
        server = RealServer("a", keeper, Turns())
        async with open_world(server, start_grace=30) as world, trio.open_nursery() as nursery:
            first, second = await world.client(), await world.client()
            await world.settled()
            long = [later(nursery, first.call, "a__x", {"size": 9_000_000}) for _ in range(6)]
            small = [later(nursery, second.call, "a__x", {"size": each}) for each in range(600)]
            with trio.fail_after(50):
                for each in [*long, *small]:
                    await each.ended.wait()
            for size, each in enumerate(small):
                assert each.result == {"content": [{"type": "text", "text": "x" * size}]}
            for each in long:
                assert each.result["isError"]
                assert "more than 8388608 bytes (limits.message)" in each.result["content"][0]["text"]
            assert server.connections == 1


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "noise",
    ['{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}', "", '{"jsonrpc":"2.0"}'],
)
async def test_a_noisy_child_takes_a_small_part_of_each_pass(noise: str) -> None:
    """Measured by the processor time between two turns of another task; a few may be long by what else the machine
    does, which a virtual machine counts as ours."""
    turns: list[float] = []

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await trio.lowlevel.checkpoint()
            turns.append(time.thread_time() - began)

    async with open_keeper() as keeper:
        server = RealServer("a", keeper, Turns(), noise)
        async with open_world(server, start_grace=30) as world, trio.open_nursery() as nursery:
            client = await world.client()
            await world.settled()
            nursery.start_soon(watch)
            with trio.fail_after(40):
                await client.call("a__x", {"noise": 900})
                await client.call("a__x", {"noise": 900 if noise else 300_000})
            assert sorted(turns)[-4] < 0.05, len(turns)
            dropped = sum(isinstance(event, MessageDropped) for event in world.events)
            assert dropped == 0 or noise
            nursery.cancel_scope.cancel()
