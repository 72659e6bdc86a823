"""Paths as texts, for the host and for what runs in a subreaper."""

from __future__ import annotations

from collections.abc import Iterable


def is_below_any(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these, or below one."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)


def in_quotes(path: str) -> str:
    """A path for people in quotes, as a whole, so that it can be shortened for clients."""
    return '"' + path.translate(dict.fromkeys(map(ord, "'\"`\n"), "?")) + '"'
