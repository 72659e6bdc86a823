"""The HTTP app at `listen.metrics`: `GET /metrics` for Prometheus, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from config import Auth, Listen, MetricsSpec
from host.attempts import Attempt
from host.downstream.http.security import Refusal, RequestGuard
from host.wire.asgi import (
    NO_CONNECTION_MESSAGE,
    RETRY_AFTER,
    ASGIApp,
    Headers,
    Receive,
    Scope,
    Send,
    claim,
    client_address,
    respond,
)

PATH = "/metrics"
_TOKEN = "metrics"
"""The name of the token in records of refused attempts; it opens nothing else."""


def app_of(
    listen: Listen,
    spec: MetricsSpec,
    text: Callable[[str], Awaitable[tuple[bytes, str]]],
    record_attempt: Callable[[Attempt], None],
) -> ASGIApp:
    """The app. Its checks are those of the endpoint (`host.downstream.http.security`), with a token of its own.

    Args:
        text: takes an `Accept` header, and returns the metrics and their media type.
    """
    assert listen.metrics is not None
    auth = None if spec.token is None else Auth(MappingProxyType({_TOKEN: spec.token}))
    guard = RequestGuard(replace(listen, address=listen.metrics, http2=None, auth=auth, origins=()))

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("latin-1")
        head = guard.examine(Headers(scope["headers"]))
        refusal = head.refusal
        if not claim(scope, None if isinstance(head.refusal or head.identity, Refusal) else _TOKEN):
            refusal = Refusal(503, NO_CONNECTION_MESSAGE, {"retry-after": RETRY_AFTER})
        elif head.refusal is None and isinstance(head.identity, Refusal):
            refusal = structs.replace(
                head.identity, why="expected Authorization: Bearer and the token of metrics.token"
            )
        elif refusal is None and (path != PATH or scope["method"] not in ("GET", "HEAD")):
            refusal = Refusal(404, f"only GET {PATH} is served here")
        if refusal is not None:
            if refusal.attempt is not None:
                record_attempt(Attempt(refusal.attempt, "path", path, client_address(scope)))
            await _respond(send, refusal.status, f"{refusal.why}\n".encode(), "text/plain", refusal.headers)
            return
        body, media_type = await text(", ".join(head.headers.all("accept")))
        await _respond(send, 200, body, media_type)

    return serve


async def _respond(
    send: Send, status: int, body: bytes, media_type: str, more: Mapping[str, str] = MappingProxyType({})
) -> None:
    headers = {"content-type": media_type, "cache-control": "no-store", "x-content-type-options": "nosniff", **more}
    await respond(send, status, headers, body)
