"""Clients with streams that stay open, of which each is notified of a change, in the place of fixed/load.py.

    notified.py URL ERA CONNECTIONS --tool NAME --idle STREAMS [OPTION VALUE]...

A round is one call, which makes the server change its list, and ends when each stream has said so. Its calls are the
notifications that came.
"""

from __future__ import annotations

import argparse
import sys
import time

import trio

from tests.bench.fixed import load

CHANGED = b"notifications/tools/list_changed"


class Listener(load.Client):
    """A client that reads what comes over its stream."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.notified = trio.Event()

    async def listen(self) -> None:
        assert self._stream is not None
        rest = b""
        while data := await self._stream.receive_some(65536):
            rest += data
            if CHANGED in rest:
                rest = rest.rpartition(CHANGED)[2]
                self.notified.set()

    async def wait_notified(self, this: load.Round) -> None:
        with trio.move_on_after(load.PATIENCE) as patience:
            await self.notified.wait()
            this.latencies.append(time.monotonic() - this.began)
        this.errors += patience.cancelled_caught
        self.notified = trio.Event()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("era", choices=["handshake", "stateless"])
    parser.add_argument("connections", type=int)
    parser.add_argument("--tool")
    parser.add_argument("--idle", type=int)
    options, _ = parser.parse_known_args(namespace=argparse.Namespace(servers=1, size=0, list=0))
    caller = load.Client(options)
    await caller.open()
    listeners = [Listener(options) for _ in range(options.idle)]
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            await listener.open_stream()
            nursery.start_soon(listener.listen)
        print("ready", flush=True)
        number = 0
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            number += 1
            this = load.Round(float(line))
            this.errors += not await caller.call(number)
            async with trio.open_nursery() as waiting:
                for listener in listeners:
                    waiting.start_soon(listener.wait_notified, this)
            print(this.line(), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
