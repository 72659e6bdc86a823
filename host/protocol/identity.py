"""`clientInfo` and `serverInfo`: the names and versions that peers give themselves. For logs and people only, never a
reason to trust a peer.

Source: "Implementation" of the schemas.
"""

from __future__ import annotations

from msgspec import Raw

from host.jsonrpc.raw import members, value
from host.protocol.meta import OWN_PREFIX
from host.sanitize import sanitize

MAX_PART = 80
"""Characters of a name or a version that are shown; the rest is cut off."""
MAX_INFO = 500
"""Characters of one member of a server's `serverInfo` that clients get."""
SERVER_INFO = f"{OWN_PREFIX}serverInfo"
"""Key in the `_meta` of the first result that a client gets: the `serverInfo` of the only server of its endpoint."""
_INFO = ("name", "title", "version", "description", "websiteUrl")


def implementation_info(version: str) -> dict[str, str]:
    """Colonnade's own `serverInfo` and `clientInfo`."""
    return {"name": "colonnade", "title": "Colonnade", "version": version}


def display_name(info: Raw | None) -> str:
    """Name and version of a peer, separated by a space; empty if it gives none as strings. Never raises."""
    try:
        found = members(info or b"")
        parts = [value(found[name]) for name in ("name", "version") if name in found]
    except ValueError:
        return ""
    return " ".join(part[:MAX_PART] for part in parts if isinstance(part, str))


def server_info(info: Raw | None) -> tuple[tuple[str, str], ...]:
    """The members of a server's `serverInfo` that are texts, as clients may get them: without invisible characters, and
    cut. Its icons are left out, and a page that is not on the web. Never raises."""
    try:
        found = members(info or b"")
        texts = {name: value(found[name]) for name in _INFO if name in found}
    except ValueError:
        return ()
    if not str(texts.get("websiteUrl", "")).startswith(("https://", "http://")):
        texts.pop("websiteUrl", None)
    return tuple((name, sanitize(text, limit=MAX_INFO)) for name, text in texts.items() if isinstance(text, str))
