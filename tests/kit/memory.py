"""Two ends of a link inside one process, for peers that a test scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
from msgspec import Raw

from host.jsonrpc.messages import ErrorBody, Id, Notification, Request, write
from host.peer.peer import InFlight, Peer
from host.protocol.versions import Revision
from host.wire.link import Deliver, LinkLost, Parcel, received_in

Piece = tuple[bytes, Id | None]


class MemoryLink:
    """One end; messages travel as bytes, so that what is tested is what would go over a wire."""

    hears_unasked = True

    def __init__(self, outgoing: trio.MemorySendChannel[Piece], incoming: trio.MemoryReceiveChannel[Piece]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self.loss_reason: str | None = None
        self.sent_headers: list[tuple[str, dict[str, str]]] = []
        """Method and headers of every request that was sent with such."""
        self.revision: Revision | None = None

    async def run(self, deliver: Deliver) -> None:
        with suppress(trio.ClosedResourceError):
            async for data, about in self._incoming:
                for received in received_in(data, self.revision is not None and self.revision.has_batches, about):
                    deliver(received)
        raise LinkLost(self.loss_reason or "the other end was closed")

    async def send(self, parcel: Parcel) -> None:
        if parcel.headers and isinstance(parcel.message, Request):
            self.sent_headers.append((parcel.message.method, dict(parcel.headers)))
        self.write_bytes(write(parcel.message))
        await trio.lowlevel.checkpoint()

    @property
    def protocol_header(self) -> str | None:
        """How the revision would be named over HTTP."""
        return self.revision.name if self.revision is not None and self.revision.names_itself_in_http else None

    def settle(self, revision: Revision) -> None:
        self.revision = revision

    async def send_cancel(self, id: Id, notice: Notification) -> None:
        self.write_bytes(write(notice))

    def write_bytes(self, data: bytes, about: Id | None = None) -> None:
        """Send any bytes at all; `about` as a transport does that knows which request they belong to."""
        try:
            self._outgoing.send_nowait((data, about))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as problem:
            raise LinkLost("the other end was closed") from problem

    async def read_bytes(self) -> bytes:
        """The next message from the other end, as bytes; raises trio.EndOfChannel at the end."""
        data, _ = await self._incoming.receive()
        return data

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()


class NullHandler:
    """A peer's handler that hears nothing."""

    def owner_of(self, subject: object) -> None:
        return None

    def on_request(self, peer: Peer[Any], request: Request, in_flight: InFlight[Any]) -> Callable[[], Awaitable[Raw]]:
        raise NotImplementedError

    def refuses(self, method: str) -> ErrorBody | None:
        return None

    def on_notification(self, notice: Notification, in_flight: InFlight[Any]) -> None:
        return

    def on_dropped(
        self, what: str, detail: str, size: int = 0, *, awaited: bool = False, answers: str = "", text: bytes = b""
    ) -> None:
        return


def memory_links() -> tuple[MemoryLink, MemoryLink]:
    there, from_here = trio.open_memory_channel[Piece](100_000)
    here, from_there = trio.open_memory_channel[Piece](100_000)
    return MemoryLink(there, from_there), MemoryLink(here, from_here)
