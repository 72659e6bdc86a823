"""Severities of log messages, in order (2024-11-05 to 2025-11-25, "Logging / Log Levels"; the order is RFC 5424's)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Notification
from host.jsonrpc.raw import encode, encode_object, members, string

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_RANKS = {level: rank for rank, level in enumerate(LEVELS)}

DEFAULT_LEVEL = "info"
"""The level of a client that has set none: the server may then choose (2025-11-25, "Setting Log Level")."""


def level_of(params: Mapping[str, Raw]) -> str:
    """The level that a `logging/setLevel` asks for.

    Raises:
        InvalidParams: it is none.
    """
    try:
        level = string(params["level"])
    except (KeyError, ValueError):
        level = ""
    if level not in _RANKS:
        raise InvalidParams(f"expected a level, one of {', '.join(LEVELS)}")
    return level


def most_verbose(levels: Iterable[str]) -> str | None:
    """The lowest of these levels, which lets everything pass that any of them does; None for none."""
    return min(levels, key=_RANKS.__getitem__, default=None)


def is_at_least(notice: Notification, level: str) -> bool:
    """Whether a log message is as severe as `level`, or more. One without a known severity passes: nobody can tell."""
    try:
        severity = string(members(notice.params or b"")["level"])
    except (KeyError, ValueError):
        return True
    return _RANKS.get(severity, len(LEVELS)) >= _RANKS[level]


def with_server_name(notice: Notification, server: str) -> Notification:
    """The same message with the server's id before the name of its logger. What is no object stays as it is."""
    try:
        found = members(notice.params or b"")
    except ValueError:
        return notice
    try:
        logger = f"{server}/{string(found['logger'])}"
    except (KeyError, ValueError):
        logger = server
    return Notification(notice.method, encode_object({**found, "logger": encode(logger)}))
