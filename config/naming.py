"""The one rule by which a desktop host's name for a server becomes a server id.

1. Lower-case the name; each run of characters other than a-z and 0-9 becomes one dash; dashes at both ends go.
2. A name that begins with a digit gets an `s` in front.
3. A result longer than 20 characters becomes its first 13, without dashes at their end, a dash, and the first 6
   hexadecimal digits of the SHA-256 of the name as written (UTF-8).

The result depends on the name alone, so an id stays the same whatever else the file holds.
"""

from __future__ import annotations

import hashlib
import re

ID_PATTERN = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
LONGEST_ID = 20
"""Characters of a server id. Each name of a tool begins with it, and clients take names of 64 characters."""
FITTING_NAME = 48
"""Characters of a name of a tool that the hosts leave as it is which were measured (docs/desktop-hosts.md)."""
_KEPT = 13
_DIGITS = 6


def make_id(name: str) -> str:
    """The server id for a name; empty if the name holds no letter or digit of ASCII."""
    made = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if made[:1].isdigit():
        made = f"s{made}"
    if len(made) <= LONGEST_ID:
        return made
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{made[:_KEPT].rstrip('-')}-{digest[:_DIGITS]}"
