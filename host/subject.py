"""What people see and decide about, as values without the era or the login of a connection.

Item  an entry, the instructions or the launch of a server, or a kind of its requests to clients.
"""

from __future__ import annotations

from msgspec import Struct


class Item(Struct, frozen=True, gc=False):
    """One thing of a server that people decide about, the same for all its sources (`host.source`)."""

    server: str
    kind: str
    """The kind of an entry, `instructions` or `launch`, or the kind of a server request."""
    name: str
    """The server's own name or URI; for a server request the URL, or else the kind again; otherwise empty."""
