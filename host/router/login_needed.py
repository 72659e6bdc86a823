"""The login that a call needs, offered to the person at the client by an elicitation in mode url (2025-11-25, "URL Mode
Elicitation Requests"; 2026-07-28, "Elicitation"), while the call waits.

The page is Colonnade's own, on loopback. It is offered only if the client can show it and the server may send people to
pages without a confirmation. Nothing begins before the person opens the page.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

import trio

from config import Channel, HttpServer, Verdict
from host.errors import LoginLost, LoginNeeded, Unavailable
from host.exchange import Caller, Exchange
from host.jsonrpc.raw import encode, members, string
from host.oauth.problem import OAuthProblem
from host.peer.outstanding import BrokenAnswer, PeerError
from host.protocol.server_requests import ELICIT, ServerRequest, elicitation_complete, with_elicitation_id
from host.protocol.versions import SESSION
from host.storage.store import StateError
from host.upstream.connect import why_no_login
from host.upstream.open_logins import OpenLogin
from host.upstream.runtime import Runtime
from host.upstream.supervised import UpstreamConnection
from host.upstream.upstreams import Upstreams
from host.wire.link import LinkLost

LOGIN_PAGE = "http://127.0.0.1/oauth/login"
"""The page of all logins as the rules of a server know it: its port and its path are different each time."""
ACCEPTED = "accept"


class LoginOffers:
    """Offers logins to the clients of calls."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams) -> None:
        self._logins = runtime.logins
        self._gate = runtime.gate
        self._upstreams = upstreams

    async def wait(self, exchange: Exchange, needed: LoginNeeded) -> None:
        """Offer the login that a call needs, and wait for it. If the call found its login to be over, the server is
        connected first: there may be another login by now.

        Raises:
            LoginNeeded: it cannot be offered, or nobody logged in within the time of the call.
            Unavailable: the person declined it, or the server failed meanwhile.
            TimedOut: the server could not be connected within the time of the call.
            TooManyRequests: too many requests of this owner wait.
            AuditUnavailable: the offer cannot be recorded.
        """
        server, caller = needed.server, exchange.caller
        if isinstance(needed, LoginLost):
            await self._upstreams.wait_started(server, caller)
            try:
                self._upstreams[server].serving(caller).ready_client()
            except LoginNeeded as present:
                needed = present
            else:
                return
        upstream = self._upstreams.find(server, caller)
        spec = None if upstream is None else upstream.spec
        if upstream is None or not isinstance(spec, HttpServer) or self._logins is None:
            raise needed
        if not self._may_offer(spec, caller) or not self._logins.is_offered(server):
            raise needed
        try:
            login = await self._logins.offer(spec, Channel.CLIENT.value)
        except (OAuthProblem, StateError):
            raise needed from None
        with self._upstreams.waiting_request(caller):
            await _Offer(login, upstream, exchange, self._gate.decision_log.record_login_offer).wait(needed)

    def may_come(self, upstream: UpstreamConnection, caller: Caller) -> bool:
        """Whether a call may find the login of a server to be over, and may then be offered another one."""
        return (
            bool(upstream.login_id)
            and self._logins is not None
            and self._logins.may_offer
            and isinstance(upstream.spec, HttpServer)
            and self._may_offer(upstream.spec, caller)
        )

    def _may_offer(self, spec: HttpServer, caller: Caller) -> bool:
        requests = self._gate.server_requests
        return (
            caller.abilities.url
            and not why_no_login(spec)
            and requests.allows(spec.id, ServerRequest.URL, caller)
            and requests.evaluate(spec.id, ServerRequest.URL, LOGIN_PAGE, caller).verdict is Verdict.ALLOW
        )


class _Offer:
    """A call that waits for a login. Of the calls of one session, one shows the link."""

    def __init__(
        self, login: OpenLogin, upstream: UpstreamConnection, exchange: Exchange, record: Callable[[str, Caller], None]
    ) -> None:
        self._login = login
        self._upstream = upstream
        self._exchange = exchange
        self._record = record
        self._id = secrets.token_urlsafe(12)
        self._waiting = trio.CancelScope()

    async def wait(self, needed: LoginNeeded) -> None:
        """See `LoginOffers.wait`."""
        server, caller, login = needed.server, self._exchange.caller, self._login
        asked = caller.owner if caller.session is None else caller.session
        if asked in login.declined_by:
            raise needed
        session = object() if caller.session is None else caller.session
        declined, shows_link = login.offered_to.get(session), False
        if declined is None:
            self._record(server, caller)
            declined, shows_link = trio.Event(), True
            login.offered_to[session] = declined
        try:
            with self._waiting:
                async with trio.open_nursery() as nursery:
                    for ends in (self._upstream.life.wait_logged_in, self._wait_failed, declined.wait):
                        nursery.start_soon(self._end_after, ends)
                    action = await self._show_link() if shows_link else ACCEPTED
                    if action == ACCEPTED:
                        self._begin_timeout()
                    elif action is None:
                        self._waiting.cancel("the client cannot show the link")
                    else:
                        declined.set()
        finally:
            if shows_link:
                del login.offered_to[session]
        if not self._upstream.life.needs_login:
            if shows_link and caller.era is SESSION:
                self._exchange.client.notify(elicitation_complete(self._id))
            return
        if not declined.is_set():
            raise needed
        login.declined_by.add(asked)
        if not login.offered_to and not login.callback.begun:
            login.end("the person at the client declined it")
        later = f"it can be done later: colonnade login {server}"
        raise Unavailable(server, f"{server} needs a login, which was declined; {later}")

    async def _show_link(self) -> str | None:
        """The action of the person at the client; None if the client cannot show the link."""
        name = self._upstream.spec.title or self._upstream.spec.id
        params = {
            "mode": encode("url"),
            "message": encode(f"{name} needs a login. This page shows at which issuer, and leads there."),
            "url": encode(self._login.callback.login_url),
        }
        try:
            answer = await self._exchange.client.request(ELICIT, with_elicitation_id(params, self._id), None)
            return string(members(answer)["action"])
        except (PeerError, BrokenAnswer, LinkLost, ValueError, KeyError):
            return None

    async def _end_after(self, ends: Callable[[], Awaitable[object]]) -> None:
        await ends()
        self._waiting.cancel("the wait is over")

    async def _wait_failed(self) -> None:
        """Wait until the login has come to nothing. One that was made leads to a connection soon."""
        await self._login.ended.wait()
        if self._login.made is not None:
            self._begin_timeout()
            await trio.sleep_forever()

    def _begin_timeout(self) -> None:
        self._waiting.deadline = trio.current_time() + self._upstream.spec.longest_wait
