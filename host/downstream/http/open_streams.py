"""Limits of streams that stay open without a call, shared fairly among identities on all transports.

Such a stream holds a connection for as long as its client likes. Their number is limited, for each transport and for
all of them, so that connections are left for messages. At the limit, the identity with the most streams loses its
oldest one to a new stream of an identity with fewer; without such an identity the new stream is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from host.downstream.http.request import Rejected
from host.downstream.http.security import Refusal
from host.errors import TOO_MANY_REQUESTS
from host.jsonrpc.messages import Id

MAX_STREAMS = 400
"""Streams of one transport."""
MAX_TOTAL = 800
"""Streams of all transports. A listener has 1,000 connections, and messages need some."""


class Transport(Enum):
    STREAMABLE = auto()
    """Standing streams of Streamable HTTP sessions."""
    SSE = auto()
    """HTTP+SSE streams, each of which is a session."""
    LISTEN = auto()
    """`subscriptions/listen`."""


class _Stream:
    def __init__(
        self, transport: Transport, identity: str | None, end: Callable[[], object], in_use: Callable[[], bool]
    ) -> None:
        self.transport = transport
        self.identity = identity
        self.end = end
        self.in_use = in_use


class OpenStreams:
    """The open streams, oldest first."""

    def __init__(self) -> None:
        self._open: dict[_Stream, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def slot(
        self,
        transport: Transport,
        identity: str | None,
        end: Callable[[], object],
        *,
        in_use: Callable[[], bool] = lambda: False,
        id: Id | None = None,
    ) -> Iterator[None]:
        """Context manager that reserves a place for one stream.

        Args:
            end: ends the stream in order, because another identity gets its place; the place is free from then on.
            in_use: whether more than the stream would end with it; such a stream is the last of its identity to be
                ended.
            id: request id for a refusal.

        Raises:
            Rejected: there is no place, and no other identity has more streams than this one.
        """
        if not (self._has_room(identity, transport) and self._has_room(identity, None)):
            why = "all event streams of this server are in use; close one, or try again later"
            raise Rejected(Refusal(503, why, {"retry-after": "5"}), TOO_MANY_REQUESTS, id)
        stream = _Stream(transport, identity, end, in_use)
        self._open[stream] = None
        try:
            yield
        finally:
            self._open.pop(stream, None)

    def end_of(self, identity: str | None) -> None:
        """End all streams of this identity, in order."""
        for stream in [stream for stream in self._open if stream.identity == identity]:
            del self._open[stream]
            stream.end()

    def _has_room(self, identity: str | None, transport: Transport | None) -> bool:
        """Whether one more stream may open, of one transport or of all (None); ends another identity's stream if
        necessary."""
        counted = [stream for stream in self._open if transport is None or stream.transport is transport]
        if len(counted) < (MAX_TOTAL if transport is None else MAX_STREAMS):
            return True
        held = Counter(stream.identity for stream in counted)
        greediest, most = held.most_common(1)[0]
        if most <= held[identity] + 1:  # with the place it would have the most, and lose it to the next one
            return False
        theirs = [stream for stream in counted if stream.identity == greediest]
        victim = next((stream for stream in theirs if not stream.in_use()), theirs[0])
        del self._open[victim]
        victim.end()
        return True
