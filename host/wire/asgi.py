"""The seam to HTTP: the types of ASGI 3.0 that Colonnade's apps and listeners agree on, and one extension of it.

The extension tells a listener whose request it handed over, which only the app can know. A listener without it serves
everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol, TypeAlias

# ASGI messages are open dictionaries by specification; this is the one place that says so.
Scope: TypeAlias = dict[str, Any]
Event: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CLAIM = "colonnade.claim"


class Claim(Protocol):
    """Takes the owner of a request; see `claim`."""

    def __call__(self, owner: Hashable, *, reserved: bool) -> bool: ...


def claim(scope: Scope, owner: Hashable, *, reserved: bool = False) -> bool:
    """Tell the listener whose request this is, before the body is read.

    A request that is answered without a claim takes nothing away from others: its connection stays in the slot that it
    has, or ends with the answer.

    Args:
        owner: None for a client that is not known by name.
        reserved: the request may be served in a slot that is kept for such requests.

    Returns:
        False if all connections are in use, and there is no slot for this owner: answer 503.
    """
    ask: Claim | None = scope.get("extensions", {}).get(CLAIM)
    return ask is None or ask(owner, reserved=reserved)
