"""Paths as texts, for the host and for what runs in a subreaper."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence


def is_below_any(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these, or below one."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)


def steps(path: str) -> Iterator[str]:
    """The path of each folder on the way from the root to a path, and the path itself."""
    at = path.find("/", 1)
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)
    yield path


def folders_to_hold(hidden: str, write: Sequence[str]) -> list[str]:
    """The folders on the way to a hidden one that could be renamed, since they are below one that may be written. A
    mount on each keeps them, or the next start would not hide what was moved away."""
    return [each for each in steps(os.path.dirname(hidden)) if is_below_any(os.path.dirname(each), write)]


def in_quotes(path: str) -> str:
    """A path for people in quotes, as a whole, so that it can be shortened for clients."""
    return '"' + path.translate(dict.fromkeys(map(ord, "'\"`\n"), "?")) + '"'
