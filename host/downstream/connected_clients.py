"""The clients that are connected now, for people to see. Nothing is decided by it."""

from __future__ import annotations

import time
from weakref import WeakKeyDictionary

from host.client_process import ClientRow, ClientTransport
from host.downstream.sessions import Session
from host.sanitize import visible


class ConnectedClients:
    """The open sessions. Clients of 2026-07-28 over HTTP have no connection, and are not among them."""

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[Session, tuple[ClientTransport, float]] = WeakKeyDictionary()

    def add(self, session: Session, transport: ClientTransport) -> None:
        """Show the client of this session until the session ends."""
        self._sessions[session] = transport, time.time()

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
        era, revision, says = "handshake", opening.revision.name, opening.client
    elif stated is not None:
        era, revision, says = "stateless", stated.version, stated.client
    else:
        era = revision = says = ""
    return {
        "says": visible(says),
        "process": process.as_row() if process is not None and process.pid else None,
        "transport": transport,
        "token": visible(session.identity or ""),
        "endpoint": session.endpoint.server or "",
        "view": session.endpoint.view,
        "era": era,
        "revision": visible(revision),
        "since": since,
    }
