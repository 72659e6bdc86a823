"""Limits of streams that stay open without a call, shared fairly among identities.

Such a stream holds a connection for as long as its client likes. Their number is limited, for each kind and for
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
"""Streams of one kind."""
MAX_TOTAL = 800
"""Streams of all kinds. A listener has 1,000 connections, and messages need some."""


class StreamKind(Enum):
    STREAMABLE = auto()
    """Standing streams of Streamable HTTP sessions."""
    SSE = auto()
    """HTTP+SSE streams, each of which is a session."""
    LISTEN = auto()
    """`subscriptions/listen`."""


class _OpenStream:
    def __init__(
        self, kind: StreamKind, identity: str | None, end: Callable[[], object], in_use: Callable[[], bool]
    ) -> None:
        self.kind = kind
        self.identity = identity
        self.end = end
        self.in_use = in_use


class OpenStreams:
    """The open streams, oldest first."""

    def __init__(self) -> None:
        self._open: dict[_OpenStream, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def slot(
        self,
        kind: StreamKind,
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
        if not (self._has_room(identity, kind) and self._has_room(identity, None)):
            why = "all event streams of this server are in use; close one, or try again later"
            raise Rejected(Refusal(503, why, {"retry-after": "5"}), TOO_MANY_REQUESTS, id)
        stream = _OpenStream(kind, identity, end, in_use)
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

    def _has_room(self, identity: str | None, kind: StreamKind | None) -> bool:
        """Whether one more stream may open, of one kind or of all (None); ends another identity's stream if
        necessary."""
        counted = [stream for stream in self._open if kind is None or stream.kind is kind]
        if len(counted) < (MAX_TOTAL if kind is None else MAX_STREAMS):
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
