"""Warnings about a server for the person who runs it, whatever its state."""

from __future__ import annotations

from config import HttpServer, StdioServer, Trust


def warnings_of(spec: StdioServer | HttpServer) -> list[str]:
    """Sentences for that person; none for most servers."""
    if spec.trust is Trust.UNTRUSTED and isinstance(spec, StdioServer):
        return [
            "it is not trusted, yet its program runs as you, unconfined: Colonnade stands between its messages and the "
            "client, not between its process and your files (docs/consent.md)"
        ]
    return []
