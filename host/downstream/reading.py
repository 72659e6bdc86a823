"""Reading of clients' messages. Light ones are read at once; heavy ones are checked in another process, some at a time.

Checking a heavy message takes up to half a second of processor time, which the event loop has not got, nor the
interpreter for so long: see `host/worker.py`. What the check leaves to be done is short, and a worker thread does it.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from host.errors import TooManyRequests
from host.jsonrpc.messages import ParsedInput, find_malformed, receive, receive_checked
from host.jsonrpc.strict import is_heavy
from host.worker import run_in_worker

LARGE_BYTES = 512 * 1024
"""Heavy messages of this size or more are large; the others are read beside them, and never wait for them."""
MAX_LARGE = 3
MAX_LARGE_PER_CLIENT = 2
"""Large messages that are read at once; of one identity."""
MAX_SMALL = 1
"""Heavy messages below LARGE_BYTES that are read at once."""
QUEUE_TIMEOUT = 10.0
"""Seconds that a heavy message waits for its turn."""
SWITCH_INTERVAL = 0.001
"""Seconds that a worker thread may keep the interpreter. The loop gives it up at every system call and has to get it
back each time, so Python's 5 ms would cost each request tens of milliseconds while a large result is looked through."""


def share_interpreter() -> None:
    """Have worker threads give the interpreter back to the event loop soon."""
    sys.setswitchinterval(SWITCH_INTERVAL)


class _ParseSlots:
    """Slots that identities take in turns."""

    def __init__(self, at_once: int, of_one: int) -> None:
        self._free = at_once
        self._of_one = of_one
        self._taken: Counter[str | None] = Counter()
        self._waiting: dict[str | None, deque[trio.Event]] = {}
        """By identity; the first has the next turn, and goes to the end when it has had it."""

    @asynccontextmanager
    async def slot(self, identity: str | None, patience: float) -> AsyncIterator[None]:
        """Hold a slot inside the block.

        Raises:
            TooManyRequests: none was free for `patience` seconds.
        """
        turn = trio.Event()
        self._waiting.setdefault(identity, deque()).append(turn)
        self._admit()
        try:
            with trio.move_on_after(patience):
                await turn.wait()
            if not turn.is_set():
                raise TooManyRequests("too many large messages are being read; send this one again later")
            yield
        finally:
            if turn.is_set():
                self._free += 1
                self._taken -= Counter((identity,))
            else:
                self._waiting[identity].remove(turn)
                if not self._waiting[identity]:
                    del self._waiting[identity]
            self._admit()

    def _admit(self) -> None:
        while admissible := [each for each in self._waiting if self._free and self._taken[each] < self._of_one]:
            identity = admissible[0]
            turns = self._waiting.pop(identity)
            turns.popleft().set()
            if turns:
                self._waiting[identity] = turns
            self._free -= 1
            self._taken[identity] += 1


class MessageReader:
    """One for the whole host."""

    def __init__(self) -> None:
        self._large = _ParseSlots(MAX_LARGE, MAX_LARGE_PER_CLIENT)
        self._small = _ParseSlots(MAX_SMALL, MAX_SMALL)

    async def read(self, data: bytes, patience: float = QUEUE_TIMEOUT, identity: str | None = None) -> ParsedInput:
        """Read what a client sent. A wait for a turn can be cancelled; a reading that has begun may end
        first, see `run_in_worker`.

        Args:
            identity: the name of the client's token; all clients without one share None.

        Raises:
            TooManyRequests: too many heavy messages were being read for `patience` seconds.
        """
        if not is_heavy(data):
            return receive(data)
        turns = self._large if len(data) >= LARGE_BYTES else self._small
        async with turns.slot(identity, patience):
            refused = await run_in_worker(find_malformed, data)
            return await trio.to_thread.run_sync(receive_checked, data, refused)
