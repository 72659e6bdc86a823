"""Reading of clients' messages. Light ones are read at once; heavy ones in a worker thread, a few at a time.

Reading a heavy message takes up to half a second of processor time, which the event loop has not got. A worker thread
shares the interpreter with the loop, so it must give it back often: see `host/jsonrpc/strict.py` for its steps, and
`share_interpreter` for the interval.
"""

from __future__ import annotations

import sys

import trio

from host.errors import Crowded
from host.jsonrpc.messages import Received, receive
from host.jsonrpc.strict import is_heavy

AT_ONCE = 4
"""Heavy messages that are read at once."""
PATIENCE = 10.0
"""Seconds that a heavy message waits for its turn."""
SWITCH_INTERVAL = 0.001
"""Seconds that a worker thread may keep the interpreter. The loop gives it up at every system call and has to get it
back each time, so Python's 5 ms would cost each request tens of milliseconds while four messages are read."""


def share_interpreter() -> None:
    """Have worker threads give the interpreter back to the event loop soon."""
    sys.setswitchinterval(SWITCH_INTERVAL)


class MessageReader:
    """One for the whole host."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(AT_ONCE)

    async def read(self, data: bytes, patience: float = PATIENCE) -> Received:
        """Read what a client sent. A wait for a turn can be cancelled; a reading that has begun cannot.

        Raises:
            Crowded: too many heavy messages were being read for `patience` seconds.
        """
        if not is_heavy(data):
            return receive(data)
        with trio.move_on_after(patience):
            return await trio.to_thread.run_sync(receive, data, limiter=self._limiter)
        raise Crowded("too many large messages are being read; send this one again later")
