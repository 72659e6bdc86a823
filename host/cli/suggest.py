"""The nearest name for one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Collection

from config.problems import nearest_word
from host.sanitize import visible

_OWN_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


def did_you_mean(found: str, names: Collection[str]) -> str:
    """The remedy for a name that is not among these; empty if it is similar to none. The names may be those of clients:
    one that was given without its server is found, too."""
    whole = [name for name in names if name.endswith((f"__{found}", f"+{found}"))]
    meant = whole[0] if len(whole) == 1 else nearest_word(found, names)
    return f"did you mean {visible(meant)}?" if meant else ""


def name_of_words(server: str, entry: str) -> str:
    """The name that clients see, where somebody gave the server and the entry's own name as two words; empty if the
    second one is not like a name."""
    return f"{server}__{entry}" if _OWN_NAME.fullmatch(entry) else ""
