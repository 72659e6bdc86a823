"""Lists of servers that a host permits or refuses, each by its name, its command or its URL.

Such lists are written by the person or by an administrator. In doubt, a server is refused: a list that refuses is
compared loosely, and one that permits strictly.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from config.hosts.entry import CannotUse, ServerEntry

_KEYS = ("serverName", "serverCommand", "serverUrl")

Fill = Callable[[str], str | None]
"""Fills in the references of a text of the host; None if that is not possible."""


def refuse_listed(entry: ServerEntry, name: str, key: str, value: object, fill: Fill) -> None:
    """Switch the server off if a list names it."""
    for kind, pattern in _items(key, value):
        if kind == "serverName":
            matches = pattern == [name]
        else:
            found, wanted = _found(entry, kind, fill), [fill(word) for word in pattern]
            if found is None:
                continue  # a server of the other kind
            if None in found or None in wanted:
                raise CannotUse(f"it cannot be compared with {key} of its host")
            matches = _url_matches(wanted, found, strict=False) if kind == "serverUrl" else found == wanted
        if matches:
            entry.switch_off()


def permit_listed(entry: ServerEntry, name: str, key: str, value: object, fill: Fill) -> None:
    """Switch the server off unless a list names it. With a command in the list, the name of a server with a command no
    longer counts; so it is with a URL."""
    items = _items(key, value)
    own = "serverUrl" if _found(entry, "serverUrl", fill) is not None else "serverCommand"
    found = _found(entry, own, fill)
    if any(kind == own for kind, _ in items):
        permitted = found is not None and any(
            _url_matches(wanted, found, strict=True) if own == "serverUrl" else None not in found and found == wanted
            for wanted in ([fill(word) for word in pattern] for kind, pattern in items if kind == own)
        )
    else:
        permitted = any(kind == "serverName" and pattern == [name] for kind, pattern in items)
    if not permitted:
        entry.switch_off()


def _items(key: str, value: object) -> list[tuple[str, list[str]]]:
    """The items of a list, each with its key and its pattern as words."""
    items: list[tuple[str, list[str]]] = []
    for item in value if isinstance(value, list) else [None]:
        kind = next(iter(item), "") if isinstance(item, dict) and len(item) == 1 else ""
        pattern = item[kind] if isinstance(item, dict) and kind in _KEYS else None
        words = pattern if kind == "serverCommand" else [pattern]
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise CannotUse(f"{key} of its host has an item that is not one of {', '.join(_KEYS)}")
        items.append((kind, [str(word) for word in words]))
    return items


def _found(entry: ServerEntry, kind: str, fill: Fill) -> list[str | None] | None:
    """The command or the URL of the server with its references filled in, as words; None if it has none."""
    value = entry.values.get("url" if kind == "serverUrl" else "command")
    if not isinstance(value, str):
        return None
    args = entry.values.get("args") if kind == "serverCommand" else None
    return [fill(str(word)) for word in (value, *(args if isinstance(args, list) else ()))]


def _url_matches(wanted: list[str | None], found: list[str | None], *, strict: bool) -> bool:
    (pattern,), (url,) = wanted, found
    if pattern is None or url is None:
        return False
    if not strict:
        return re.fullmatch(_glob(pattern, "."), url, re.IGNORECASE | re.DOTALL) is not None
    # A star in the name of the machine ends where it ends.
    head, path = re.fullmatch(r"((?:[^/]*://)?[^/]*)(.*)", pattern, re.DOTALL).groups()  # type: ignore[union-attr]
    return pattern == "*" or re.fullmatch(f"(?i:{_glob(head, '[^/@?#]')}){_glob(path, '.')}", url) is not None


def _glob(pattern: str, any_character: str) -> str:
    return f"{any_character}*".join(map(re.escape, pattern.split("*")))
