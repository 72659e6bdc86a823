"""The things that people see and decide about, as values without the era or the login of a connection.

    Item     an entry, the instructions or the launch of a server, or a kind of its requests to clients.
    Subject  the use of an item by a caller, with all that a permission for it is bound to.

Neither knows MCP, so the store can keep them.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct
from msgspec.structs import replace


class Item(Struct, frozen=True, gc=False):
    """One thing of a server that people decide about, the same for all its sources (`host.source`)."""

    server: str
    kind: str
    """The kind of an entry, `instructions` or `launch`, or the kind of a server request."""
    name: str
    """The server's own name or URI; for a server request the URL, or else the kind again; otherwise empty."""


class Subject(Struct, frozen=True):
    """The use of an item by a caller, which access requests, grants and decisions are about."""

    item: Item
    caller: str | None
    """The name of the caller's access token. Callers without a token are not told apart."""
    session: Hashable | None
    """The session of the caller; None in a grant for all its sessions, and for a caller without one."""
    fingerprint: str
    """The fingerprint of its definition; empty if it has none."""
    launch: str
    """Digest of the server's launch identity; empty if it is not known."""
    rule: str
    """The text of the rule that decided."""
    digest: str | None = None
    """The digest of the arguments and of what is sent beside them; None in a grant that is not bound to them."""

    def covers(self, other: Subject) -> bool:
        """Whether a permission for this subject holds for another one."""
        return (
            self.item == other.item
            and self.session in (None, other.session)
            and self.digest in (None, other.digest)
            and self == replace(other, session=self.session, digest=self.digest)  # in all fields that are added, too
        )
