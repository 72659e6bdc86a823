"""Warnings about a server for the person who runs it, whatever its state."""

from __future__ import annotations

from config import HttpServer, Isolation, StdioServer, Trust


def warnings_of(spec: StdioServer | HttpServer) -> list[str]:
    """Sentences for that person; none for most servers."""
    warnings: list[str] = []
    if spec.trust is Trust.UNTRUSTED and isinstance(spec, StdioServer):
        warnings.append(
            "it is not trusted, yet its program runs as you, unconfined: Colonnade stands between its messages and the "
            "client, not between its process and your files (docs/consent.md)"
        )
    if isinstance(spec, StdioServer) and spec.may_use_both_eras:
        warnings.append(
            "with eras: both its program may run twice at once: both processes use the same files, locks and ports, "
            "and each keeps its own memory"
        )
        if spec.isolation is Isolation.SHARED:
            warnings.append(
                "with eras: both and isolation: shared its requests to clients reach a client only while it works on "
                "one call; with isolation: per-client each client has a process of its own"
            )
    return warnings
