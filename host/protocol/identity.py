"""`clientInfo` and `serverInfo`: the names and versions that peers give themselves. For logs and people only, never a
reason to trust a peer.

Source: "Implementation" of the schemas.
"""

from __future__ import annotations

from msgspec import Raw

from host.jsonrpc.raw import members, value

MAX_PART = 80
"""Characters of a name or a version that are shown; the rest is cut off."""


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
