"""Severities of log messages, in order (2024-11-05 to 2025-11-25, "Logging / Log Levels"; the order is RFC 5424's)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Notification
from host.jsonrpc.raw import encode, encode_object, members, text_at, text_below

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_RANKS = {level: rank for rank, level in enumerate(LEVELS)}

DEFAULT_LEVEL = "info"
"""The level of a client that has set none: the server may choose it (2025-11-25, "Setting Log Level")."""


def level_of(params: Mapping[str, Raw]) -> str:
    """The level that a `logging/setLevel` sets.

    Raises:
        InvalidParams: `level` is missing or not one of LEVELS.
    """
    level = text_at(params, "level")
    if level is None or level not in _RANKS:
        raise InvalidParams(f"the member 'level' is not one of {', '.join(LEVELS)}")
    return level


def most_verbose(levels: Iterable[str]) -> str | None:
    """The level that includes the messages of all these levels; None if there are no levels."""
    return min(levels, key=_RANKS.__getitem__, default=None)


def is_at_least(notification: Notification, level: str) -> bool:
    """Whether a log message has at least the severity `level`. A message of unknown severity counts as severe, so that
    it is not lost."""
    severity = text_below(notification.params, "level") or ""
    return _RANKS.get(severity, len(LEVELS)) >= _RANKS[level]


def with_server_name(notification: Notification, server: str) -> Notification:
    """A log message whose `logger` begins with the server's id; unchanged if its params are not an object."""
    try:
        found = members(notification.params or b"")
    except ValueError:
        return notification
    own = text_at(found, "logger")
    logger = server if own is None else f"{server}/{own}"
    return Notification(notification.method, encode_object({**found, "logger": encode(logger)}))
