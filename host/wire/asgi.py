"""The seam to HTTP: the types of ASGI 3.0 that Colonnade's apps and listeners agree on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

# ASGI messages are open dictionaries by specification; this is the one place that says so.
Scope: TypeAlias = dict[str, Any]
Event: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
