"""Two observers of the same requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Raw

from config import ServerSpec
from host.journal import UNKNOWN_HOP, Answering, Asking, Hop, Observer
from host.jsonrpc.messages import Failure, Id, ParsedInput, Request, Success
from host.peer.peer import Peer, SendRequest
from host.wire.asgi import Headers

A = TypeVar("A", bound=Answering)


class _BothAnswering(Generic[A]):
    __slots__ = ("_first", "_second")

    def __init__(self, first: A, second: A) -> None:
        self._first, self._second = first, second

    @property
    def trace_id(self) -> str:
        return self._second.trace_id

    def on_wait(self, what: str, seconds: float) -> None:
        self._first.on_wait(what, seconds)
        self._second.on_wait(what, seconds)

    def end(self, answer: Success | Failure | None) -> None:
        self._first.end(answer)
        self._second.end(answer)


class _BothAsking(_BothAnswering[Asking]):
    __slots__ = ()

    def sent(self, params: dict[str, Raw]) -> dict[str, Raw]:
        return self._second.sent(self._first.sent(params))


class Both:
    """Implements `host.journal.Observer`. Only `second` takes what was received."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._first, self._second = first, second
        self.received: Callable[[ParsedInput, Headers], None] | None = second.received

    def answering(self, request: Request, hop: Hop = UNKNOWN_HOP) -> Answering:
        return _BothAnswering(self._first.answering(request, hop), self._second.answering(request, hop))

    def sending(self, spec: ServerSpec, peer: Peer[Any], send: SendRequest) -> SendRequest:
        return self._first.sending(spec, peer, self._second.sending(spec, peer, send))

    def asking(
        self, server: str, revision: str, method: str, params: Mapping[str, Raw], id: Id | None, during: Request | None
    ) -> Asking:
        first, second = (
            each.asking(server, revision, method, params, id, during) for each in (self._first, self._second)
        )
        return _BothAsking(first, second)
