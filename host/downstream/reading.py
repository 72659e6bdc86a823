"""Parsing of clients' messages. Light ones are parsed at once; heavy ones are checked in a worker process, a few at a
time.

Checking a heavy message takes up to half a second of processor time. The event loop and the interpreter cannot be
blocked for so long: see `host/worker.py`. The rest after the check is short, and runs in a worker thread.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from host.errors import TooManyRequests
from host.jsonrpc.messages import ParsedInput, find_malformed, receive_at_once, receive_checked
from host.wire.asgi import Headers
from host.worker import run_in_worker

LARGE_BYTES = 512 * 1024
"""Heavy messages of at least this size are large. Smaller heavy ones have slots of their own, and never wait for large
ones."""
MAX_LARGE = 3
"""Large messages that are parsed at once: with MAX_SMALL, as many as there are worker processes (MAX_WORKERS)."""
MAX_LARGE_PER_CLIENT = 2
"""Large messages of one identity that are parsed at once."""
MAX_SMALL = 1
"""Heavy messages below LARGE_BYTES that are parsed at once."""
QUEUE_TIMEOUT = 10.0
"""Seconds that a heavy message waits for a slot."""
SWITCH_INTERVAL = 0.001
"""Seconds that a worker thread may hold the interpreter. The loop releases it at every system call and must get it back
each time; with Python's 5 ms each request would wait tens of milliseconds while a large result is checked."""


def share_interpreter() -> None:
    """Make worker threads return the interpreter to the event loop soon."""
    sys.setswitchinterval(SWITCH_INTERVAL)


class _ParseSlots:
    """Slots that identities take in turns."""

    def __init__(self, at_once: int, of_one: int) -> None:
        self._free = at_once
        self._of_one = of_one
        self._taken: Counter[str | None] = Counter()
        self._waiting: dict[str | None, deque[trio.Event]] = {}
        """Waiting calls by identity. The first identity is next, and moves to the end after its turn."""

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
    """One for the whole host. `on_read`: takes each message, and the headers of the request that it came by."""

    def __init__(self, on_read: Callable[[ParsedInput, Headers], None] | None = None) -> None:
        self.on_read = on_read
        self._large = _ParseSlots(MAX_LARGE, MAX_LARGE_PER_CLIENT)
        self._small = _ParseSlots(MAX_SMALL, MAX_SMALL)

    async def read(self, data: bytes, patience: float = QUEUE_TIMEOUT, identity: str | None = None) -> ParsedInput:
        """Parse a client's message. Waiting for a slot can be cancelled; a check that has begun may first run to its
        end, see `run_in_worker`.

        Args:
            identity: name of the client's token; all clients without one share None.

        Raises:
            TooManyRequests: no slot was free for `patience` seconds.
        """
        if (found := receive_at_once(data)) is not None:
            return found
        turns = self._large if len(data) >= LARGE_BYTES else self._small
        async with turns.slot(identity, patience):
            refused = await run_in_worker(find_malformed, data)
            return await trio.to_thread.run_sync(receive_checked, data, refused)
