"""Limits of streams that stay open without a call, shared fairly among identities.

Such a stream holds a connection for as long as its client likes. Their number is limited, for each kind and for
all of them, so that connections are left for messages. At the limit, the identity with the most streams loses its
oldest one to a new stream of an identity with fewer; without such an identity the new stream is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

import trio
from msgspec import Struct

from host.downstream.http.request import Rejected
from host.downstream.http.security import Refusal
from host.errors import TOO_MANY_REQUESTS
from host.jsonrpc.messages import Id
from host.source import Endpoint


class StreamKind(Enum):
    """Kinds of streams, as metrics name them."""

    STREAMABLE = "standing"
    """Standing streams of Streamable HTTP sessions."""
    SSE = "sse"
    """HTTP+SSE streams, each of which is a session."""
    LISTEN = "listen"
    """`subscriptions/listen`."""


class OpenStream(Struct, eq=False):
    """The place of one stream, which is free after its block."""

    _streams: OpenStreams
    kind: StreamKind
    endpoint: Endpoint
    identity: str | None
    end: Callable[[], object]
    in_use: Callable[[], bool]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._streams.remove(self)


class OpenStreams:
    """The open streams, oldest first: at most `limit`, and half as many of one kind."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # For each kind, and for all together (None), those of each identity: no look at all of them for each newcomer.
        self._held: dict[StreamKind | None, dict[str | None, OrderedDict[OpenStream, None]]] = {
            kind: {} for kind in (*StreamKind, None)
        }
        self._is_stopping = False

    def __len__(self) -> int:
        return sum(map(len, self._held[None].values()))

    def count(self) -> dict[str, int]:
        """The number of streams of each kind."""
        return {kind.value: sum(map(len, self._held[kind].values())) for kind in StreamKind}

    def slot(
        self,
        kind: StreamKind,
        endpoint: Endpoint,
        identity: str | None,
        end: Callable[[], object],
        *,
        in_use: Callable[[], bool] = lambda: False,
        id: Id | None = None,
    ) -> OpenStream:
        """A place for one stream, to be left as a context manager.

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
        stream = OpenStream(self, kind, endpoint, identity, end, in_use)
        for kind_or_all in (kind, None):
            self._held[kind_or_all].setdefault(identity, OrderedDict())[stream] = None
        if self._is_stopping:
            end()
        return stream

    async def end_at(self, stop: trio.Event) -> None:
        """End all streams once `stop` is set, and later ones as soon as they are open."""
        await stop.wait()
        self._is_stopping = True
        self.end_where(lambda endpoint, identity: True)

    def end_where(self, ends: Callable[[Endpoint, str | None], bool]) -> None:
        """End each stream for whose endpoint and identity `ends` is true, in order."""
        opened = [stream for held in self._held[None].values() for stream in held]
        for stream in opened:
            if ends(stream.endpoint, stream.identity):
                self.remove(stream)
                stream.end()

    def remove(self, stream: OpenStream) -> None:
        """Free the place of a stream, if it is not free yet."""
        for kind in (stream.kind, None):
            held = self._held[kind].get(stream.identity)
            if held is not None:
                held.pop(stream, None)
                if not held:
                    del self._held[kind][stream.identity]

    def _has_room(self, identity: str | None, kind: StreamKind | None) -> bool:
        """Whether one more stream may open, of one kind or of all (None); ends another identity's stream if
        necessary."""
        held = self._held[kind]
        if sum(map(len, held.values())) < (self._limit if kind is None else self._limit // 2):
            return True
        theirs = max(held.values(), key=lambda streams: len(streams))
        if len(theirs) <= len(held.get(identity, ())) + 1:  # it would have the most, and lose it to the next one
            return False
        victim = next((stream for stream in theirs if not stream.in_use()), next(iter(theirs)))
        self.remove(victim)
        victim.end()
        return True
