"""One downstream request being answered, and who sent it: the one model that everything behind the faces speaks.

Sessions, streams and handshakes stay in the faces. Whoever answers an exchange asks it for abilities, never for a
revision, and there is no ambient request: the exchange is passed as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec import Raw

from host.jsonrpc.messages import Notification, Request


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `name` is for the log; without tokens every caller of this host is as good as any other."""

    name: str
    endpoint: str | None
    """The one server whose own endpoint was asked, or None for the endpoint of all servers."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request being answered.

    `tell` sends a notification that belongs to this request. It never waits: it is called by whoever reads the server's
    messages. After the answer it does nothing.
    """

    request: Request
    params: Mapping[str, Raw]
    """The members of the request's params, each undecoded."""
    caller: Caller
    tell: Callable[[Notification], None]
