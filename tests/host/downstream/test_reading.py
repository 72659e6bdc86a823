"""Heavy messages are read beside the event loop: a few at once, for a bounded wait, and in their order over stdio."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from host.downstream import reading
from host.downstream.reading import AT_ONCE, PATIENCE, MessageReader
from host.errors import Crowded
from host.jsonrpc.messages import Received, Request, receive
from host.jsonrpc.strict import LIGHT_TOKENS
from tests.kit.bodies import call

HEAVY = call(b"[" + b"1," * LIGHT_TOKENS + b"1]")


class Slow:
    """A way to read that takes until `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.threads: list[threading.Thread] = []
        self.at_once = 0
        self.full = threading.Event()
        self._now = 0

    def __call__(self, data: bytes) -> Received:
        self.threads.append(threading.current_thread())
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        if self._now == AT_ONCE:
            self.full.set()
        self.goes_on.wait(20)
        self._now -= 1
        return receive(data)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    found = Slow()
    monkeypatch.setattr(reading, "receive", found)
    return found


async def test_a_light_message_is_read_in_the_loop_and_a_heavy_one_is_not(slow: Slow) -> None:
    slow.goes_on.set()
    reader = MessageReader()
    for data in (call(b"{}"), HEAVY):
        assert isinstance((await reader.read(data)).message, Request)
    light, heavy = slow.threads
    assert light is threading.current_thread()
    assert heavy is not threading.current_thread()


async def test_four_heavy_messages_are_read_at_once_and_the_others_wait(slow: Slow) -> None:
    reader = MessageReader()
    async with trio.open_nursery() as nursery:
        for _ in range(3 * AT_ONCE):
            nursery.start_soon(reader.read, HEAVY)
        await trio.to_thread.run_sync(slow.full.wait, 20)
        await wait_all_tasks_blocked()
        slow.goes_on.set()
    assert slow.at_once == AT_ONCE == 4
    assert len(slow.threads) == 3 * AT_ONCE


async def test_the_wait_for_a_turn_has_an_end(slow: Slow, autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = 0.1  # threads are no tasks: the clock must not jump before they begin
    reader = MessageReader()
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(reader.read, HEAVY)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        with pytest.raises(Crowded):
            await reader.read(HEAVY)
        assert trio.current_time() - began == pytest.approx(PATIENCE)
        slow.goes_on.set()


async def test_whoever_leaves_waits_no_longer(slow: Slow) -> None:
    reader = MessageReader()
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(reader.read, HEAVY)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0) as scope:
            await reader.read(HEAVY)
        assert scope.cancelled_caught
        slow.goes_on.set()
    assert len(slow.threads) == AT_ONCE
