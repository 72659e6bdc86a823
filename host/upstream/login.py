"""A login at the authorization server of a configured server, by a person with a browser.

    propose  discovery: what the login would be for
    begin    registration, and the link for the person; nothing is stored
    finish   the answer of the issuer, exchanged for tokens; the login is stored

The caller shows what is proposed, and has a person accept an issuer that is another one than before: nothing but
requests for metadata has been sent to it until then. The caller shows the link as well, and passes the answer on: from
the listener of the login (`callback`), or pasted by the person. One `PendingLogin` takes one answer.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import msgspec
import trio
from msgspec import Struct

from config import HttpServer, OAuth
from host.jsonrpc.messages import Request, write
from host.oauth.authorization import (
    CALLBACK_PATH,
    OFFLINE_ACCESS,
    AuthorizationRequest,
    ForeignAnswer,
    choose_scopes,
)
from host.oauth.challenge import Challenge, bearer_challenge
from host.oauth.documents import (
    CLIENT_GONE,
    ClientRegistration,
    Issuer,
    TokenRefused,
    Tokens,
    choose_auth_method,
    error_code,
    read_registration,
    read_tokens,
    registration_request,
    said_in,
    same_issuer,
)
from host.oauth.problem import OAuthProblem
from host.oauth.token_forms import Form, TokenClient, client_credentials_form, code_form, revocation_form
from host.protocol.methods import PING
from host.sanitize import visible
from host.storage.sql import Store
from host.storage.store import CredentialKey, StoredCredential
from host.upstream.callback import Callback
from host.upstream.discovery import Discovered, discover
from host.upstream.vault import Login, Vault
from host.url import Url
from host.wire.acceptor import ListenerLimits
from host.wire.http_transport import EVENT_STREAM, JSON, open_origin
from host.wire.issuer_http import IssuerHttp, IssuerUnreachable
from host.wire.link import LinkLost
from host.wire.listener import serve_http
from host.wire.port import bind

TIME_LIMIT = 900.0
"""Seconds that a person has for a login."""
PROBE_TIMEOUT = 15.0
REVOKE_TIMEOUT = 5.0
"""Seconds for the revocation of a login that another one replaced."""
LISTEN_ADDRESS = "127.0.0.1"
"""Where browsers come back to. Not `localhost`, which another program may have at ::1 (RFC 8252, 8.3)."""
MAX_STEP_UPS = 2
"""Logins in a row for scopes that the server found missing."""
_CONNECTIONS = 8


class TooManyStepUps(OAuthProblem):
    """The server keeps asking for more scopes."""


class ProposedLogin(Struct, frozen=True):
    """The purpose of a login. `former`: the login that it takes the place of; `former_issuer`: the issuer of that
    one, also if the rest of it cannot be read any more; empty without one."""

    key: CredentialKey
    http: IssuerHttp
    oauth: OAuth
    issuer: Issuer
    resource: str
    scopes: tuple[str, ...]
    redirect_uri: str
    former: Login | None
    former_issuer: str

    @property
    def is_other_issuer(self) -> bool:
        """Whether the server names another issuer than at its last login. A person has to accept it."""
        former, names = self.former_issuer, self.oauth.issuers
        return former != "" and not same_issuer(former, self.issuer.id, names)

    @property
    def purpose(self) -> dict[str, str]:
        """The things that a person permits by it, in words: shown before anything leaves for the issuer."""
        return {
            "issuer": visible(self.issuer.id),
            **({"page": page} if (page := self.page_elsewhere) else {}),
            "resource": visible(self.resource),
            "scopes": visible(" ".join(self.scopes)) or "those that the issuer gives by itself",
            "redirect": self.redirect_uri,
        }

    @property
    def notices(self) -> Iterator[str]:
        """Possible problems of this configuration and of this issuer, in sentences."""
        if self.issuer.is_default:
            yield (
                "The server has no metadata about a login. The usual paths are tried: /authorize, /token and "
                "/register, at which PKCE is a must."
            )
        yield from (f"Note that {warning}." for warning in self.oauth.warnings)
        if self.oauth.client_id is not None:
            yield f"The client of the configuration must permit the redirect {self.redirect_uri} at the issuer."
        if OFFLINE_ACCESS in self.issuer.scopes and OFFLINE_ACCESS not in self.scopes:
            yield f"oauth.scopes has no {OFFLINE_ACCESS}: the login may end with its first token, without a refresh."

    @property
    def page_elsewhere(self) -> str:
        """The origin of the login page, if it is not that of the issuer; otherwise empty. A hostile issuer could lead
        to the page of another one, to get that one's code (RFC 9700, 4.4)."""
        page = Url.parse(self.issuer.authorization_endpoint)
        return "" if page.origin == Url.parse(self.issuer.id).origin else f"{page.scheme}://{page.authority}"


class PendingLogin(Struct, frozen=True):
    """A login that has begun."""

    proposed: ProposedLogin
    client: ClientRegistration
    request: AuthorizationRequest


async def probe(spec: HttpServer) -> Challenge | None:
    """The challenge that the server sends to a request without a token; None if it sends none. The request does
    nothing: a server that answers it needs no login for it.

    Raises:
        IssuerUnreachable: the server cannot be reached.
    """
    body = write(Request("login", PING))
    posts = [("Accept", f"{JSON}, {EVENT_STREAM}"), ("Content-Type", JSON)]
    headers = {name: value.reveal() for name, value in spec.headers.items()}
    try:
        with trio.fail_after(PROBE_TIMEOUT):
            async with open_origin(spec.url.reveal(), headers) as origin:
                # A server of HTTP+SSE has a stream at its address, and takes no POST there.
                for method, ours, sent in (("POST", posts, body), ("GET", [("Accept", EVENT_STREAM)], None)):
                    answer = await origin.request(method, origin.headers(ours), sent)
                    answer.close()
                    if answer.status == 401:
                        return bearer_challenge(answer.header("www-authenticate") or "")
    except LinkLost as problem:
        raise IssuerUnreachable(f"the server gave no answer: {problem}") from None
    except trio.TooSlowError:
        raise IssuerUnreachable(f"the server did not answer within {PROBE_TIMEOUT:.0f} s") from None
    return None


async def propose(
    spec: HttpServer, store: Store, vault: Vault, bound: socket.socket, challenge: Challenge | None = None
) -> ProposedLogin:
    """Find the issuer of a server, and what to ask it for.

    Args:
        bound: the socket at which the browser comes back.
        challenge: that of the server's 401; None to ask the server.

    Raises:
        OAuthProblem: there can be no login.
        StateError: the store cannot be read.
    """
    server, key = Url.parse(spec.url.reveal()), CredentialKey(spec.id)
    stored = (await store.read_credentials()).get(key)
    former, former_issuer = _opened(vault, key, stored), "" if stored is None else stored.issuer
    http = await IssuerHttp.of(server)
    challenge = challenge or await probe(spec)
    oauth = spec.oauth or OAuth()
    found = await discover(server, challenge, http, former_issuer, oauth)
    known = _known_scopes(former, found, oauth.issuers)
    challenged = () if challenge is None else challenge.scopes
    scopes = choose_scopes(oauth.scopes, challenged, found.scopes, found.issuer.scopes, known)
    redirect = f"http://{LISTEN_ADDRESS}:{bound.getsockname()[1]}{CALLBACK_PATH}"
    return ProposedLogin(key, http, oauth, found.issuer, found.resource, scopes, redirect, former, former_issuer)


async def begin(proposed: ProposedLogin) -> PendingLogin:
    """Register with the issuer if that is necessary, and make the link for the person.

    Raises:
        OAuthProblem: there can be no login.
    """
    with _quoting():
        client = _configured_client(proposed.oauth, proposed.issuer, proposed.redirect_uri) or await _registered(
            proposed
        )
    request = AuthorizationRequest(
        issuer=proposed.issuer,
        client_id=client.client_id,
        redirect_uri=proposed.redirect_uri,
        resource=proposed.oauth.indicator(proposed.resource),
        scopes=proposed.scopes,
        extra=proposed.oauth.parameters,
    )
    return PendingLogin(proposed, client, request)


def _known_scopes(former: Login | None, found: Discovered, names: Sequence[str]) -> tuple[str, ...]:
    """The scopes of the former login and those that the server found missing in it: it would lose the former ones
    otherwise (2026-07-28, "Step-Up Authorization Flow")."""
    if former is None or former.resource != found.resource:
        return ()
    if not same_issuer(former.issuer, found.issuer.id, names):
        return ()
    if former.missing and former.step_ups >= MAX_STEP_UPS:
        raise TooManyStepUps(
            f"the server wants more scopes after each of {MAX_STEP_UPS} logins; it may never be content. Log out, and "
            "then in again, to begin anew"
        )
    return (*former.scopes, *former.missing)


def _configured_client(configured: OAuth, issuer: Issuer, redirect: str) -> ClientRegistration | None:
    """The client that the configuration names, or the one that the issuer finds at the URL that it names; None if it
    has to be registered."""
    if configured.client_id is not None and issuer.is_elsewhere:
        raise OAuthProblem(
            f"the server names the issuer {issuer.id} in its own metadata only, which proves little: the client of "
            "oauth.client_id is not used there. Remove it, and Colonnade registers one"
        )
    if configured.client_id is not None and configured.private_key is not None:
        if "private_key_jwt" not in issuer.token_auth_methods:
            raise OAuthProblem(f"the issuer {issuer.id} does not take a private_key as authentication")
        key = configured.private_key.reveal()
        return ClientRegistration(configured.client_id.reveal(), key, "private_key_jwt", redirect)
    if configured.client_id is not None:
        secret = None if configured.client_secret is None else configured.client_secret.reveal()
        method = "none" if secret is None else choose_auth_method(issuer.token_auth_methods, has_secret=True)
        if method is None:
            raise OAuthProblem(f"the issuer {issuer.id} does not take a client_secret as authentication")
        return ClientRegistration(configured.client_id.reveal(), secret, method, redirect)
    if configured.client_metadata_url is not None and issuer.takes_client_urls:
        return ClientRegistration(configured.client_metadata_url, redirect_uri=redirect)
    return None


@contextmanager
def _quoting(*secrets: str | None) -> Iterator[None]:
    """Have what an issuer says in an error quoted for people, without these secrets, which it was sent."""
    try:
        yield
    except OAuthProblem as problem:
        problem.quote(secrets)
        raise


async def _registered(proposed: ProposedLogin) -> ClientRegistration:
    """The client that Colonnade is at this issuer: the one that was registered with this redirect and these scopes
    before, or a new one."""
    issuer, redirect, former = proposed.issuer, proposed.redirect_uri, proposed.former
    if former is not None and same_issuer(former.issuer, issuer.id, proposed.oauth.issuers):
        client = former.client
        is_valid = not client.secret_expires or client.secret_expires > time.time()
        known = former.scopes if client.scopes is None else client.scopes
        may_have_scopes = set(proposed.scopes).issubset(known)
        if client.is_dynamic and is_valid and client.redirect_uri == redirect and may_have_scopes:
            return client
    if issuer.registration_endpoint is None:
        also = " or, since it takes one, oauth.client_metadata_url" if issuer.takes_client_urls else ""
        raise OAuthProblem(
            f"the issuer {issuer.id} registers no clients by itself: register one there, with the redirect "
            f"http://{LISTEN_ADDRESS}:PORT{CALLBACK_PATH}, and set oauth.client_id and oauth.redirect_port{also}"
        )
    request = registration_request(redirect, proposed.scopes, issuer.token_auth_methods)
    headers = [(b"Content-Type", b"application/json"), (b"Accept", b"application/json")]
    answer = await proposed.http.post(issuer.registration_endpoint, Form(headers, msgspec.json.encode(request)))
    if answer.status not in (200, 201):
        why, said = error_code(answer.body) or f"HTTP {answer.status}", said_in(answer.body)
        if issuer.is_default:
            raise OAuthProblem(
                "the server has no metadata about a login, and registers no clients at the usual path "
                f"(/register: {why}). It may want an API key: see its documentation, and write it under headers",
                said,
            )
        raise OAuthProblem(f"the issuer {issuer.id} refused to register Colonnade ({why})", said)
    return read_registration(answer.body, redirect, str(request["token_endpoint_auth_method"]), proposed.scopes)


async def finish(
    pending: PendingLogin, code: str, store: Store, vault: Vault, record: Callable[[Login], object] | None = None
) -> Login:
    """Exchange the authorization code, and store the login. The one that it replaces is revoked, if it was another
    client's or at another issuer. Otherwise it ends by itself: both may be one grant of the person, and an issuer may
    take back the whole grant with one token of it (RFC 7009, 2.1).

    Args:
        record: called with the login before it is stored; raises if it must not be.

    Raises:
        OAuthProblem: the issuer refused the code, or gave no answer.
        StateError: the login cannot be stored.
    """
    proposed, request, issuer = pending.proposed, pending.request, pending.request.issuer
    now = time.time()  # the lifetime of the token begins before its answer has come
    with _quoting(code, request.verifier, request.state, pending.client.client_secret):
        client, tokens = await _exchanged(pending, code, now)
    former = None if proposed.is_other_issuer else proposed.former
    step_ups = former.step_ups + 1 if former is not None and former.missing else 0
    begun = _begun(issuer, proposed.resource, request.resource, client, request.scopes, now)
    login = msgspec.structs.replace(begun, step_ups=step_ups).renewed(tokens, now)
    if record is not None:
        record(login)
    replaced = await read_login(store, vault, proposed.key)  # hosts may have refreshed it meanwhile
    await store_login(store, vault, proposed.key, login)
    if replaced is not None and replaced.has_other_client(login, proposed.oauth.issuers):
        with trio.move_on_after(REVOKE_TIMEOUT), suppress(OAuthProblem):
            await revoke(replaced, Url.parse(replaced.resource))
    return login


async def _exchanged(pending: PendingLogin, code: str, now: float) -> tuple[ClientRegistration, Tokens]:
    """The tokens for a code, and the client as the issuer took it."""
    issuer, http, client = pending.request.issuer, pending.proposed.http, pending.client

    async def exchange(client: ClientRegistration) -> tuple[ClientRegistration, Tokens]:
        form = code_form(pending.request, code, TokenClient(client, issuer.id, now))
        return client, read_tokens(*await http.post(issuer.token_endpoint, form))

    try:
        return await exchange(client)
    except TokenRefused as problem:
        if problem.is_about_client and (other := client.with_secret_in_form()) is not None:
            with suppress(TokenRefused):  # the first one is about the client; the code may be used up now
                return await exchange(other)
        if problem.error not in CLIENT_GONE or not client.is_dynamic:
            raise
        server = pending.proposed.key.server
        raise OAuthProblem(
            f"the issuer refused the client that Colonnade registered there ({problem.error}); it may not know it any "
            f"more: colonnade logout {server} forgets it, and colonnade login {server} registers another one",
            problem.said,
        ) from None


def _begun(
    issuer: Issuer, resource: str, indicator: str, client: ClientRegistration, scopes: tuple[str, ...], now: float
) -> Login:
    """A login that has no tokens yet, under a name of its own."""
    return Login(
        id=secrets.token_hex(8),
        resource=resource,
        indicator=indicator,
        issuer=issuer.id,
        client=client,
        token_endpoint=issuer.token_endpoint,
        revocation_endpoint=issuer.revocation_endpoint,
        scopes=scopes,
        requested=scopes,
        began=now,
    )


async def obtain_own(spec: HttpServer, former: Login | None, former_issuer: str, now: float) -> Login:
    """A login of Colonnade itself, with the client of the configuration (RFC 6749, 4.4). No person sees the issuer, so
    it must be the one of the first time: the client's secret is sent to it.

    Args:
        former: the present login, if it can be read.
        former_issuer: its issuer, in any case; empty without one.

    Raises:
        OAuthProblem: the issuer refuses, or is another one.
    """
    assert spec.oauth is not None
    server = Url.parse(spec.url.reveal())
    http, challenge = await IssuerHttp.of(server), await probe(spec)
    found = await discover(server, challenge, http, former_issuer, spec.oauth)
    if former_issuer and not same_issuer(former_issuer, found.issuer.id, spec.oauth.issuers):
        raise OAuthProblem(
            f"the server names the issuer {found.issuer.id} now, and not {former_issuer} any more: colonnade logout "
            f"{spec.id} accepts it"
        )
    if found.issuer.is_default:  # it may be that they are missing for a moment, and nobody is asked
        raise OAuthProblem("the server has no metadata about a login, and the client's secret is not sent to a guess")
    client = _configured_client(spec.oauth, found.issuer, "")
    assert client is not None  # this grant has none without a client_id
    challenged = () if challenge is None else challenge.scopes
    scopes = choose_scopes(spec.oauth.scopes, challenged, found.scopes, ())
    indicator = spec.oauth.indicator(found.resource)
    form = client_credentials_form(indicator, scopes, TokenClient(client, found.issuer.id, now))
    tokens = read_tokens(*await http.post(found.issuer.token_endpoint, form))
    begun = _begun(found.issuer, found.resource, indicator, client, scopes, now)
    return msgspec.structs.replace(begun, id=begun.id if former is None else former.id).renewed(tokens, now)


async def read_login(store: Store, vault: Vault, key: CredentialKey) -> Login | None:
    """The stored login of a server; None if there is none, or if it cannot be read with the present key.

    Raises:
        StateError: the store cannot be read.
    """
    return _opened(vault, key, (await store.read_credentials()).get(key))


def _opened(vault: Vault, key: CredentialKey, stored: StoredCredential | None) -> Login | None:
    try:
        return None if stored is None else vault.open(key, stored)
    except OAuthProblem:
        return None


async def store_login(store: Store, vault: Vault, key: CredentialKey, login: Login) -> StoredCredential:
    """Store the login of a server in the place of another one, whatever is stored.

    Raises:
        StateError: it cannot be stored.
    """
    sealed = vault.close(key, login)
    return await store.write(lambda transaction: transaction.put_credential(key, sealed))


async def revoke(login: Login, server: Url) -> bool:
    """Have the issuer revoke the tokens of a login (RFC 7009). False if it has no way to do that.

    Raises:
        OAuthProblem: it did not do it.
    """
    if login.revocation_endpoint is None:
        return False
    http = await IssuerHttp.of(server)
    caller = TokenClient(login.client, login.issuer, time.time())
    for token, hint in ((login.refresh_token, "refresh_token"), (login.access_token, "access_token")):
        if token is not None:
            answer = await http.post(login.revocation_endpoint, revocation_form(token, hint, caller))
            if answer.status != 200:
                problem = OAuthProblem(
                    f"the issuer did not revoke the token (HTTP {answer.status})", said_in(answer.body)
                )
                problem.quote(login.secrets())
                raise problem
    return True


# The answer


class AnswerBox:
    """Takes the one answer to a login, from the browser or from a person who pastes it."""

    def __init__(self, request: AuthorizationRequest) -> None:
        self._request = request
        self._code: str | None = None
        self._problem: OAuthProblem | None = None
        self._taken = trio.Event()

    def take(self, query: str) -> None:
        """Take the query of an answer. An answer to another login changes nothing.

        Raises:
            OAuthProblem: it is no good answer.
        """
        if self._taken.is_set():
            raise OAuthProblem("this login has had its answer already")
        try:
            self._code = self._request.read_answer(query)
        except OAuthProblem as problem:
            if not isinstance(problem, ForeignAnswer):
                problem.quote([self._request.state, self._request.verifier])
                self._problem = problem
                self._taken.set()
            raise
        self._taken.set()

    def take_address(self, address: str) -> None:
        """Take the address at which a browser ended, as a person pastes it; raises as `take` does."""
        before, question, query = address.strip().partition("?")
        self.take((query if question else before).partition("#")[0])

    async def code(self) -> str:
        """Wait for the answer.

        Raises:
            OAuthProblem: it says that there is no code, or is not a good one.
        """
        await self._taken.wait()
        if self._problem is not None:
            raise self._problem
        assert self._code is not None
        return self._code


@asynccontextmanager
async def serve_callback(callback: Callback, bound: socket.socket) -> AsyncIterator[None]:
    """Listen for the browser's return, for the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, callback.serve, bound, limits=ListenerLimits(_CONNECTIONS)))
        yield
        nursery.cancel_scope.cancel()


def bind_callback(configured: OAuth | None = None, former: Login | None = None) -> socket.socket:
    """The socket at which browsers come back: at the port of the configuration; else at the one that is registered, if
    it is free; else at any.

    Raises:
        OSError: it cannot be had; the text says why.
    """
    if configured is not None and configured.redirect_port is not None:
        try:
            return bind(LISTEN_ADDRESS, configured.redirect_port)
        except OSError as problem:
            raise OSError(problem.errno, f"{problem.strerror}; it is oauth.redirect_port of the server") from problem
    if former is not None and former.client.redirect_uri:
        with suppress(OSError):
            return bind(LISTEN_ADDRESS, Url.parse(former.client.redirect_uri).connect_port)
    return bind(LISTEN_ADDRESS, 0)
