"""Two ends of a link inside one process, for peers that a test scripts."""

from __future__ import annotations

from contextlib import suppress

import trio

from host.jsonrpc.messages import Id, Notification, read, write
from host.wire.link import Arrival, Deliver, LinkLost, Parcel


class MemoryLink:
    """One end; messages travel as bytes, so that what is tested is what would go over a wire."""

    def __init__(self, outgoing: trio.MemorySendChannel[bytes], incoming: trio.MemoryReceiveChannel[bytes]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self.lost_because: str | None = None
        self.protocol_header: str | None = None

    async def run(self, deliver: Deliver) -> None:
        with suppress(trio.ClosedResourceError):
            async for data in self._incoming:
                deliver(Arrival(read(data)))
        raise LinkLost(self.lost_because or "the other end was closed")

    async def send(self, parcel: Parcel) -> None:
        self.put(write(parcel.message))
        await trio.lowlevel.checkpoint()

    def settle(self, protocol_header: str | None) -> None:
        self.protocol_header = protocol_header

    async def call_off(self, id: Id, notice: Notification) -> None:
        self.put(write(notice))

    def put(self, data: bytes) -> None:
        """Send any bytes at all."""
        try:
            self._outgoing.send_nowait(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as problem:
            raise LinkLost("the other end was closed") from problem

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()


def memory_links() -> tuple[MemoryLink, MemoryLink]:
    there, from_here = trio.open_memory_channel[bytes](100_000)
    here, from_there = trio.open_memory_channel[bytes](100_000)
    return MemoryLink(there, from_there), MemoryLink(here, from_here)
