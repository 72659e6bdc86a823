"""Places for streams that stand open outside any call, shared among identities on all transports.

Such a stream holds a connection for as long as its client likes. Their number is therefore bounded, for each transport
and for all of them, so that connections are left for messages. When it is reached, the identity with the most streams
loses its oldest one to a newcomer of an identity with fewer; without such an identity the newcomer is refused.
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
"""Streams of all transports; a listener has 1,000 connections, and messages need some."""


class Transport(Enum):
    STREAMABLE = auto()
    """Standing streams of sessions over Streamable HTTP."""
    SSE = auto()
    """Streams over HTTP+SSE, each of which is a session."""
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
    """The streams that are open now, oldest first."""

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
        """A place for one stream, for the block.

        Args:
            end: ends the stream in order, because another identity gets its place. The place is free from then on.
            in_use: whether more than the stream would end with it; such a stream is the last of its identity to go.
            id: of the request that a refusal answers.

        Raises:
            Rejected: there is no place, and no other identity has more than this one.
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

    def _has_room(self, identity: str | None, transport: Transport | None) -> bool:
        """Whether one more may open, of one transport or of all (None); ends another identity's stream if need be."""
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
