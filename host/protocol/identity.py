"""Who is at the two ends of a hop, as they say themselves: for logs and people only, never a ground for trust.

Source: "Implementation" of the schemas.
"""

from __future__ import annotations

from msgspec import Raw

from host.jsonrpc.raw import members, value

MAX_PART = 80
"""Characters of a name or a version that are shown."""


def implementation_info(version: str) -> dict[str, str]:
    """What Colonnade calls itself to clients and servers."""
    return {"name": "colonnade", "title": "Colonnade", "version": version}


def display_name(info: Raw | None) -> str:
    """Name and version as the other side gives them; empty if it gives none that can be shown. Never raises."""
    try:
        said = members(info or b"")
        parts = [value(said[name]) for name in ("name", "version") if name in said]
    except ValueError:
        return ""
    return " ".join(part[:MAX_PART] for part in parts if isinstance(part, str))
