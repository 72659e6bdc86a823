"""The clients that are connected now, for people to see. Nothing is decided by it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakKeyDictionary

import trio

from host.client_process import ClientRow, ClientTransport
from host.downstream.sessions import Session
from host.sanitize import visible


class ConnectedClients:
    """The open sessions. Clients of 2026-07-28 over HTTP have no connection, and are not among them."""

    def __init__(self) -> None:
        self.on_end: Callable[[ClientTransport, str, float], None] | None = None
        """Called with the transport and the revision of a session that ends, and its seconds since `add`."""
        self.streams: Callable[[], Mapping[str, int]] = dict
        """Returns the number of their open streams over HTTP, by kind."""
        self._sessions: WeakKeyDictionary[Session, tuple[ClientTransport, float]] = WeakKeyDictionary()

    def add(self, session: Session, transport: ClientTransport) -> None:
        """Show the client of this session until the session ends."""
        self._sessions[session] = transport, time.time()
        if self.on_end is not None:
            session.on_end = partial(self._end, transport, trio.current_time())

    def _end(self, transport: ClientTransport, since: float, session: Session) -> None:
        if self.on_end is not None:
            self.on_end(transport, session.revision, trio.current_time() - since)

    def count(self) -> Counter[str]:
        """Number of the sessions by their transport."""
        return Counter(transport for session, (transport, _) in self._sessions.items() if not session.ended.is_set())

    def rows(self) -> list[ClientRow]:
        """The clients, in the order in which they came."""
        return [
            _row(session, transport, since)
            for session, (transport, since) in list(self._sessions.items())
            if not session.ended.is_set()
        ]


def _row(session: Session, transport: ClientTransport, since: float) -> ClientRow:
    opening, stated, process = session.opening, session.stated, session.process
    if opening is not None:
        era, says = "handshake", opening.client
    elif stated is not None:
        era, says = "stateless", stated.client
    else:
        era = says = ""
    return {
        "says": visible(says),
        "process": process.as_row() if process is not None and process.pid else None,
        "transport": transport,
        "token": visible(session.identity or ""),
        "endpoint": session.endpoint.server or "",
        "view": session.endpoint.view,
        "era": era,
        "revision": visible(session.revision),
        "since": since,
    }
