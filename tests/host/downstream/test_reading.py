"""Heavy messages are read beside the event loop: a few at once, for a bounded wait, and in their order over stdio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Check, Condition, Consent, KindConsent, Rule
from host.downstream import reading
from host.downstream.reading import LARGE_BYTES, MAX_LARGE, MAX_LARGE_PER_CLIENT, QUEUE_TIMEOUT, MessageReader
from host.errors import TooManyRequests
from host.jsonrpc.messages import MalformedMessages, Request
from host.jsonrpc.strict import LIGHT_TOKENS
from host.wire.link import received_in
from tests.kit import memory
from tests.kit.asgi import IO, LATEST, open_http_app, open_session
from tests.kit.bodies import ARGUMENTS, LONGEST, call
from tests.kit.passes import assert_loop_responsive
from tests.kit.world import ScriptedServer, tool

HEAVY = call(b"[" + b"1," * LIGHT_TOKENS + b"1]")
LARGE = call(b"[%b1]" % (b" " * LARGE_BYTES))


class Slow:
    """A check in another process, for which a thread stands here, that takes until `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.order: list[str] = []
        """The names of the tasks that had something checked. How the threads end is up to the machine."""
        self.threads: list[threading.Thread] = []
        self.at_once = 0
        self.full = threading.Event()
        self.four = threading.Event()
        self._now = 0

    async def run(self, function: Callable[[bytes], MalformedMessages], data: bytes) -> MalformedMessages:
        self.order.append(trio.lowlevel.current_task().name)
        return await trio.to_thread.run_sync(self._check, function, data)

    def _check(self, function: Callable[[bytes], MalformedMessages], data: bytes) -> MalformedMessages:
        self.threads.append(threading.current_thread())
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        if self._now == MAX_LARGE_PER_CLIENT:
            self.full.set()
        if self._now == 4:
            self.four.set()
        self.goes_on.wait(20)
        self._now -= 1
        return function(data)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    found = Slow()
    monkeypatch.setattr(reading, "run_in_worker", found.run)
    return found


async def test_a_light_message_is_read_in_the_loop_and_a_heavy_one_is_checked_elsewhere(slow: Slow) -> None:
    slow.goes_on.set()
    reader = MessageReader()
    for data, checked in ((call(b"{}"), 0), (HEAVY, 1), (LARGE, 2)):
        assert isinstance((await reader.read(data)).message, Request)
        assert len(slow.threads) == checked


async def test_one_identity_has_two_large_messages_read_at_once_and_the_others_wait(slow: Slow) -> None:
    reader = MessageReader()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(reader.read, LARGE)
        await trio.to_thread.run_sync(slow.full.wait, 20)
        await wait_all_tasks_blocked()
        slow.goes_on.set()
    assert slow.at_once == MAX_LARGE_PER_CLIENT == 2
    assert len(slow.threads) == 10


@pytest.mark.slow
async def test_no_identity_waits_for_all_that_another_has_sent(slow: Slow) -> None:
    reader = MessageReader()
    async with trio.open_nursery() as nursery:

        def send(identity: str, data: bytes = LARGE) -> None:
            nursery.start_soon(partial(reader.read, data, identity=identity), name=identity)

        for identity in ("alice", "bob"):
            for _ in range(20):
                send(identity)
            await wait_all_tasks_blocked()
        send("carol")
        await wait_all_tasks_blocked()
        send("dave", HEAVY)
        await trio.to_thread.run_sync(slow.four.wait, 20)  # the small one is read beside the large
        assert slow.order == ["alice", "alice", "bob", "dave"]
        slow.goes_on.set()
    assert slow.at_once == MAX_LARGE + 1 == 4
    assert slow.order.index("carol") < 10
    assert 3 <= slow.order[:15].count("bob") <= 12


async def test_the_wait_for_a_turn_has_an_end(slow: Slow, autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = 0.1  # threads are no tasks: the clock must not jump before they begin
    reader = MessageReader()
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_LARGE_PER_CLIENT):
            nursery.start_soon(reader.read, LARGE)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        with pytest.raises(TooManyRequests):
            await reader.read(LARGE)
        assert trio.current_time() - began == pytest.approx(QUEUE_TIMEOUT)
        slow.goes_on.set()


async def test_whoever_leaves_waits_no_longer(slow: Slow) -> None:
    reader = MessageReader()
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_LARGE_PER_CLIENT):
            nursery.start_soon(reader.read, LARGE)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0) as scope:
            await reader.read(LARGE)
        assert scope.cancelled_caught
        slow.goes_on.set()
    assert len(slow.threads) == MAX_LARGE_PER_CLIENT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "tool"),
    [
        ("190,000 members", b"a__conditional"),
        ("66,000 small objects", b"a__asked"),
        ("900 integers of 4,200 digits", b"a__conditional"),
        ("4 MiB of short escapes", b"a__asked"),
        ("3,200 objects of 60 levels", b"a__unknown"),
        ("names with escapes", b"a__conditional"),
    ],
)
async def test_no_body_holds_the_loop(body: str, tool: bytes) -> None:
    """Where it took 0.3 to 1.3 s at once."""
    conditional = Rule("conditional", when=(Condition("owner", (Check("eq", "acme"),)),))
    consent = Consent(tools=KindConsent(allow=(conditional,), ask=(Rule("asked"),)))
    async with open_session(ScriptedServer("a", tools=["conditional", "asked"], consent=consent)) as (_, connection):
        data = call(ARGUMENTS[body](), tool)

        async def ask() -> None:
            (message,) = (await connection.get("POST", body=data)).messages()
            assert message.get("error", {}).get("code") == (-32602 if tool == b"a__unknown" else None)

        await assert_loop_responsive(ask, 0.15)


LONE: dict[str, bytes] = {
    "names": b"{%b}" % b",".join(rb'"\ud8%02x%d":1' % (n % 256, n) for n in range(180_000)),
    "one text": rb'{"a":"%b"}' % (rb"\ud800" * ((LONGEST - 1024) // 6)),
    "backslashes": rb'{"a":"\ud800%b"}' % (rb"\\" * ((LONGEST - 1024) // 2)),
}
"""Arguments with lone surrogates, which msgspec refuses."""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", LONE)
@pytest.mark.parametrize("way", ["session", "stateless", "stateless with headers"])
async def test_no_lone_surrogate_holds_the_loop(arguments: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they took 0.2 to 2.3 s at once, since the params were opened in several places."""
    # The scripted server reads in the same loop, which is not to be measured.
    monkeypatch.setattr(
        memory,
        "received_in",
        lambda data, *more: received_in(data.replace(LONE[arguments], b"{}"), *more),
    )
    annotated = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    schema = annotated if way == "stateless with headers" else {"type": "object"}

    async def answered(_: dict[str, object]) -> object:
        return {"content": []}

    server = ScriptedServer("a", tools=[tool("x", inputSchema=schema)], answers={"tools/call": answered})
    async with open_http_app(server) as (_, connection):
        headers = None
        data = call(LONE[arguments])
        if way == "session":
            await connection.open()
        else:
            headers = {"mcp-protocol-version": LATEST, "mcp-method": "tools/call", "mcp-name": "a__x"}
            meta = b'"_meta":{"%bprotocolVersion":"%b","%bclientCapabilities":{}},"name"'
            data = data.replace(b'"name"', meta % (IO.encode(), LATEST.encode(), IO.encode()), 1)

        async def ask() -> None:
            (message,) = (await connection.get("POST", body=data, headers=headers)).messages()
            assert message.get("error", {}).get("code") == (-32602 if way == "stateless with headers" else None)

        await assert_loop_responsive(ask, 0.1)
