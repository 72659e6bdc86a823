"""Sessions over Streamable HTTP that another process has opened: a request that names one has it opened anew, from its
row in the store.

Clients do not send `initialize` again when they get 404, whatever the specification says (2025-11-25, "Session
Management"): a session that ended with its process would be a client that fails until a person starts it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from host.downstream.connected_clients import ConnectedClients
from host.downstream.http.request import HttpRequest, Rejected
from host.downstream.http.security import Refusal
from host.downstream.sessions import Sessions
from host.downstream.stored_sessions import StoredSessions
from host.errors import TOO_MANY_REQUESTS
from host.jsonrpc.messages import Id
from host.protocol.handshake import repeated_initialize
from host.source import Endpoint
from host.storage.store import StateError

FULL = Refusal(503, "too many sessions are open", {"retry-after": "5"})
AWAY = Refusal(503, "the session may be stored, but the store cannot be read now", {"retry-after": "2"})


class _Lookup:
    """One look into the store, for all requests that wait for it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.refusal: Refusal | None = None
        self.is_foreign = False


class Reopening:
    """Opens stored sessions anew.

    Args:
        start_soon: starts a task that outlives the request.
    """

    def __init__(
        self,
        sessions: Sessions,
        stored: StoredSessions,
        clients: ConnectedClients,
        start_soon: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._sessions = sessions
        self._stored = stored
        self._clients = clients
        self._start_soon = start_soon
        self._lookups: dict[tuple[str, Endpoint, str | None], _Lookup] = {}

    async def open(self, http_request: HttpRequest, session_id: str, id: Id | None) -> bool:
        """Open the session with this id, if it is stored, and was opened at the endpoint and with the access token of
        this request. Returns whether it belongs to somebody else.

        Args:
            id: that of the message, for its refusal.

        Raises:
            Rejected: too many sessions are open, or the store cannot be read now.
        """
        # A client that tries an id in vain shares nothing with the one whose it is.
        key = session_id, http_request.endpoint, http_request.identity
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = _Lookup()
            # The others wait for this one, and it takes no longer than the store's own limits and that of `initialize`.
            with trio.CancelScope(shield=True):
                try:
                    await self._open(http_request, session_id, lookup)
                finally:
                    del self._lookups[key]
                    lookup.done.set()
        else:
            await lookup.done.wait()
        if lookup.refusal is not None:
            raise Rejected(lookup.refusal, TOO_MANY_REQUESTS, id)
        return lookup.is_foreign

    async def _open(self, http_request: HttpRequest, session_id: str, lookup: _Lookup) -> None:
        endpoint, identity = http_request.endpoint, http_request.identity
        try:
            opening = await self._stored.find(session_id)
        except StateError:
            lookup.refusal = AWAY
            return
        if opening is None:
            return
        opened = repeated_initialize(opening.revision, opening.client, opening.capabilities)
        lookup.is_foreign = not opening.is_of(endpoint, identity)
        if opened is None or lookup.is_foreign:
            return
        _, session = self._sessions.draft(endpoint, identity, session_id)
        await session.open_anew(opened, opening.level, opening.watched)
        if http_request.charge.revoked:  # meanwhile; other sessions of its owner have ended at that moment
            session.end()
        elif not self._sessions.add(session_id, session):
            session.end()
            lookup.refusal = FULL
        else:
            self._stored.take_over(session_id)
            self._clients.add(session, "http")
            if opening.watched:
                self._start_soon(session.watch_again)
