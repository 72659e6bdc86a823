"""The nearest name for one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from config.problems import nearest_word
from host.sanitize import visible

if TYPE_CHECKING:
    from config.hosts import DesktopHost


def did_you_mean(found: str, names: Collection[str]) -> str:
    """The remedy for a name that is not among these; empty if it is similar to none. The names may be those of clients:
    one that was given without its server is found, too."""
    whole = [name for name in names if name.endswith((f"__{found}", f"+{found}"))]
    meant = whole[0] if len(whole) == 1 else nearest_word(found, names)
    return f"did you mean {visible(meant)}?" if meant else ""


def meant_hosts(found: str, hosts: Iterable[DesktopHost]) -> str:
    """The remedy for a word that is the name of none of these hosts; all names if it is similar to none."""
    plain = _plain(found)
    names = {host.name: (_plain(host.name), _plain(host.title)) for host in hosts}
    meant = [name for name, words in names.items() if plain in words]
    if not meant and len(plain) > 2:
        meant = [name for name, words in names.items() if any(word in plain or plain in word for word in words)]
    if not meant and (nearest := nearest_word(found, names)):
        meant = [nearest]
    if not meant:
        return f"known are {', '.join(names)}"
    quoted = " or ".join(f'"{name}"' for name in meant)
    return f"did you mean {quoted}?"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
