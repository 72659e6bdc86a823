"""The logins of servers in use: tokens are refreshed ahead of their expiry, and after the server refused one.

A refresh token may be good for one use only, and a second use may end the login (OAuth 2.1, 4.3.1). So there is one
refresh at a time for a login: in this process one task does it, and whoever needs the token waits for that task; among
processes, a lease in the store. Before a refresh the stored login is read again, since another process may have
refreshed it. The new tokens are on disk before they are used.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import final

import msgspec
import trio

from config import HttpServer, OAuthGrant, ServerSpec
from host.errors import copy_of
from host.journal import Event, InternalError, TokenNotRefreshed
from host.oauth.challenge import MAX_SCOPES
from host.oauth.documents import CLIENT_GONE, ClientRegistration, TokenRefused, UnusableTokens, covers, read_tokens
from host.oauth.problem import OAuthProblem, without
from host.oauth.token_forms import RefreshForm, TokenClient, refresh_form
from host.sanitize import quoted, with_said
from host.storage.sql import Store, Transaction
from host.storage.store import CredentialKey, StateError, StoredCredential
from host.upstream.login import obtain_own, store_login
from host.upstream.server_secrets import kept_secret, learn
from host.upstream.vault import Login, Vault
from host.url import Url
from host.wire.http_transport import Authorization, Header
from host.wire.issuer_http import IssuerHttp
from host.wire.link import LinkLost

REFRESH_AHEAD = 60.0
"""Seconds before the expiry at which a token is refreshed; a fifth of its lifetime if that is shorter."""
REFRESH_TIMEOUT = 10.0
"""Seconds that a refresh may take, once its lease was had. It is not cancelled meanwhile: its answer may be the only
token there is."""
LEASE = 20.0
"""Seconds for which a process has the right to refresh a login. Longer than the refresh, so that no two overlap."""
LEASE_CHECK = 0.1
"""Seconds between two looks at a login that another process refreshes."""
RETRY_PAUSE = 5.0
"""Seconds after a failed refresh until the next one, while the present token is valid."""
FAILURE_PAUSE = 1.0
"""Seconds after a failed refresh until the next one, if there is no valid token: requests fail as that one did."""
REFUSAL_WINDOW = 60.0
"""If the server refuses a token, and within so many seconds the one that took its place, the login is over. Half of the
lifetime of a token, if that is shorter, since it may end a moment early."""
POLL_INTERVAL = 1.0
"""Seconds between two looks at what other processes have stored."""

_FINAL = (
    *CLIENT_GONE,
    *("invalid_grant", "unauthorized_client", "invalid_request"),
    *("bad_refresh_token", "invalid_refresh_token", "refresh_token_expired", "token_expired", "token_revoked"),
)
"""Errors of a token endpoint after which the same request will not succeed any more (RFC 6749, 5.2; GitHub; Slack)."""

_PASSING = ("temporarily_unavailable", "server_error")
"""Errors of an issuer that cannot tell now. They end no login, also in answer to a second form."""


STORE_AWAY = "what Colonnade knows of the login cannot be read or stored at the moment"
"""For clients, in the place of what names a file, or the address of a database."""


class LoginUnavailable(LinkLost):
    """The token cannot be had now; a later attempt may succeed. `lasting`: the issuer refused the request."""

    nothing_begun = True
    speaker = "the issuer"

    def __init__(self, why: str, *, lasting: bool, said: str = "") -> None:
        super().__init__(why)
        self.lasting = lasting
        self.said = said


class _Attempt:
    """A refresh that others wait for."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.problem: LoginUnavailable | None = None
        self.ended = -math.inf
        """Unix time of its failure."""


@final
class Credential(Authorization):
    """The login for one server. Made by `Credentials`."""

    def __init__(
        self,
        key: CredentialKey,
        spec: HttpServer,
        store: Store,
        vault: Vault,
        nursery: trio.Nursery,
        now: Callable[[], float],
        note: Callable[[Event], None],
    ) -> None:
        self._note = note
        self.server = Url.parse(spec.url.reveal())
        self.spec = spec
        self.login: Login | None = None
        self.problem = ""
        """Why the stored login cannot be used."""
        self.said = ""
        """The issuer's words about that, quoted for people."""
        self._key = key
        self._store = store
        self._vault = vault
        self._nursery = nursery
        self._now = now
        self._revision = -1
        self._issuer = ""
        """That of the stored login, also if the rest of it cannot be read; empty without one for this server."""
        self._header: Header | None = None
        self._refresh_at = -math.inf
        """Unix time at which the present token is refreshed; in the past if there is none."""
        self._expires = -math.inf
        self._attempt: _Attempt | None = None
        self._failed: _Attempt | None = None
        """The last attempt that failed, for the present login."""
        self._unsaved: Login | None = None
        """A refreshed login that could not be stored yet, and so is not used."""
        self._suspect_until = -math.inf
        """Unix time until which the token must not be refused: it took the place of one that the server had refused.
        """
        self._writing = trio.Lock()
        """Held by the task that changes the stored login."""
        self._holder = secrets.token_hex(16)
        self._changed = trio.lowlevel.ParkingLot()

    def take(self, spec: HttpServer) -> None:
        """Use this configuration of the server, which has the same URL."""
        self.spec, self._failed = spec, None

    @property
    def login_id(self) -> str:
        """The name of the login; empty if there is none, or if it is over."""
        return "" if self.login is None or self.login.is_over else self.login.id

    async def wait_changed(self, login_id: str) -> None:
        """Wait until the login is another one than this, or there is none (any more)."""
        while self.login_id == login_id:
            await self._changed.park()

    # Authorization

    @property
    def remedy(self) -> str:
        if self._needs_nobody:
            return "correct oauth of the server in the configuration"
        return f"colonnade login {self._key.server}"

    @property
    def _needs_nobody(self) -> bool:
        """Whether the token is for Colonnade itself, with the secret of its client."""
        return self.spec.oauth is not None and self.spec.oauth.grant is OAuthGrant.CLIENT_CREDENTIALS

    def note_missing(self, scopes: Sequence[str]) -> None:
        if self._with_missing(scopes) is not None:
            self._nursery.start_soon(self._store_missing, scopes)

    async def _store_missing(self, scopes: Sequence[str]) -> None:
        async with self._writing:
            if (login := self._with_missing(scopes)) is not None:
                with suppress(StateError):  # the next request that needs the scope says so again
                    await self._put(login)

    def _with_missing(self, scopes: Sequence[str]) -> Login | None:
        """The login with these scopes as missing ones too; None if they change nothing."""
        if self.login is None:
            return None
        missing = tuple(dict.fromkeys((*self.login.missing, *scopes)))[:MAX_SCOPES]
        return None if missing == self.login.missing else msgspec.structs.replace(self.login, missing=missing)

    @property
    def is_absent(self) -> bool:
        if self._header is not None or not (self.login is None or self.login.is_over):
            return False
        return self.spec.oauth is None or not self._needs_nobody

    @property
    def _can_have_token(self) -> bool:
        return self._needs_nobody or (self.login is not None and not self.login.is_over)

    def current(self) -> Header | None:
        if self._now() < self._refresh_at:
            return self._header
        return self._current_or_refresh()

    def _current_or_refresh(self) -> Header | None:
        """The header if it is still valid; a refresh is begun then."""
        header = self._usable(None)
        if header is not None and self._attempt is None:
            self._begin_refresh(None)
        return header

    async def renew(self, refused: Header | None) -> Header | None:
        if (header := self._usable(refused)) is not None:
            return header
        if not self._can_have_token:
            return None
        attempt = self._attempt or self._recent_failure() or self._begin_refresh(refused)
        await attempt.done.wait()
        if attempt.problem is not None:
            raise copy_of(attempt.problem)
        header = self._usable(refused)
        if header is None and self._can_have_token:  # without one the server would say that nobody is logged in
            raise LoginUnavailable(
                "its token could not be obtained: the one that came is not valid any more", lasting=False
            )
        return header

    def _usable(self, refused: Header | None) -> Header | None:
        return self._header if self._header is not refused and self._now() < self._expires else None

    # The refresh

    def _recent_failure(self) -> _Attempt | None:
        """The last attempt, if it failed a moment ago: calls in a loop must not ask the issuer as often."""
        failed = self._failed
        return failed if failed is not None and 0 <= self._now() - failed.ended < FAILURE_PAUSE else None

    def _begin_refresh(self, refused: Header | None) -> _Attempt:
        attempt = self._attempt = _Attempt()
        self._nursery.start_soon(self._refresh, attempt, refused)
        return attempt

    async def _refresh(self, attempt: _Attempt, refused: Header | None) -> None:
        try:
            async with self._writing:
                await self._replace_token(refused)
        except Exception as problem:  # noqa: BLE001 - a mistake of ours with one login must not end the host
            self._refresh_at = min(self._now() + RETRY_PAUSE, self._expires)
            attempt.ended, self._failed = self._now(), attempt
            is_expected = isinstance(problem, OAuthProblem | StateError)
            why, server = str(problem) if is_expected else "an internal error", self._key.server
            is_final = isinstance(problem, TokenRefused) and problem.error in _FINAL
            if isinstance(problem, TokenRefused | UnusableTokens) and not is_final:  # so some say that it is over
                why += f"; if that goes on, {self.remedy}"
            said = without(problem.said, self._secrets()) if isinstance(problem, OAuthProblem) else ""
            shown = STORE_AWAY if isinstance(problem, StateError) else why
            attempt.problem = LoginUnavailable(f"its token could not be obtained: {shown}", lasting=is_final, said=said)
            told = with_said(why, quoted(said, str, LoginUnavailable.speaker))
            self._note(
                TokenNotRefreshed(server, told) if is_expected else InternalError(f"the token for {server}", problem)
            )
        finally:
            self._attempt = None
            attempt.done.set()

    async def _replace_token(self, refused: Header | None) -> None:
        """Get another token, or find out that the login is over.

        Raises:
            OAuthProblem, StateError: neither can be had now.
        """
        if self._needs_nobody:
            await self._replace_own_token(refused)
            return
        if not await self._lease(refused):
            return
        try:
            # Not cancelled from here on: the issuer may have taken back the former token when it answers.
            with trio.fail_after(REFRESH_TIMEOUT, shield=True):
                if self._unsaved is None:
                    revision, renewed = self._revision, await self._refreshed(refused)
                    if self._revision != revision:
                        return  # a person has logged in or out meanwhile
                    self._unsaved = renewed
                await self._put(self._unsaved)
        except trio.TooSlowError:
            raise OAuthProblem(f"the issuer did not answer within {REFRESH_TIMEOUT:.0f} s") from None
        finally:
            with trio.CancelScope(shield=True), suppress(StateError):
                await self._store.write(lambda transaction: transaction.end_lease(self._key, self._holder))

    async def _replace_own_token(self, refused: Header | None) -> None:
        """Get a token for Colonnade itself. Several processes may have one each, since nothing is rotated."""
        now = self._now()
        if refused is not None and now < self._suspect_until:
            raise OAuthProblem("the server refuses the tokens that its issuer gives")
        login = await obtain_own(self.spec, self.login, self._issuer, now)
        self.adopt(await store_login(self._store, self._vault, self._key, login))
        if refused is not None:
            self._suspect(login, now)

    def _suspect(self, login: Login, now: float) -> None:
        lifetime = math.inf if login.expires is None else login.expires - now
        self._suspect_until = now + min(REFUSAL_WINDOW, lifetime / 2)

    async def _lease(self, refused: Header | None) -> bool:
        """Get the right to refresh. False if there is another login or token by now, which is then the present one."""
        while self.login is not None and not self.login.is_over:
            revision, begun = self._revision, self._now()
            stored, is_leased = await self._store.write(partial(self._take_lease, revision=revision))
            if stored is None or stored.revision != revision:
                self.adopt(stored)
            elif not is_leased:
                await trio.sleep(LEASE_CHECK)
            elif self._revision == revision and self._now() - begun < LEASE - REFRESH_TIMEOUT:
                return True  # else this process was stopped meanwhile, and another one may have the lease by now
            # `reload` may have seen another one while this task waited.
            if self._revision != revision and self._usable(refused) is not None:
                return False
        return False

    def _take_lease(self, transaction: Transaction, *, revision: int) -> tuple[StoredCredential | None, bool]:
        """The stored login, and whether it is of this revision and may be changed now."""
        stored = transaction.credential(self._key)
        if stored is None or stored.revision != revision:
            return stored, False
        return stored, transaction.lease_credential(self._key, self._holder, LEASE)

    async def _refreshed(self, refused: Header | None) -> Login:
        """The login with other tokens, or without any if it is over."""
        login = self.login
        assert login is not None
        now = self._now()
        if login.refresh_token is None:
            how = "its token has expired" if refused is None else "the server refused its token"
            return login.over(f"{how}, and the issuer gave none to refresh it")
        if refused is not None and now < self._suspect_until:
            return login.over("the server refuses the tokens that its issuer gives")
        try:
            renewed = await self._exchanged(login, login.refresh_token, now)
        except TokenRefused as problem:
            if problem.error not in _FINAL:
                raise
            problem.quote(self._secrets())
            over = login.over(f"the issuer gave no other token ({problem.error})", problem.said)
            if problem.error in CLIENT_GONE:  # the next login registers another one
                return msgspec.structs.replace(over, client=msgspec.structs.replace(login.client, redirect_uri=""))
            return over
        if refused is not None:
            self._suspect(renewed, now)
        return renewed

    async def _exchanged(self, login: Login, refresh_token: str, now: float) -> Login:
        """The login with the tokens for its refresh token. A request that the issuer calls invalid is tried once more,
        in the other form, and one whose client it does not take with the client's secret in the form.

        Raises:
            TokenRefused: the first refusal, if both were refused; the second one if it passes.
        """
        http = await IssuerHttp.of(self.server)
        client = self._present_client(login.client)
        scopes = login.scopes if login.requested is None else login.requested

        async def ask(form: RefreshForm, client: ClientRegistration) -> Login:
            caller = TokenClient(client, login.issuer, now)
            posted = refresh_form(refresh_token, login.named_resource, scopes, form, caller)
            tokens = read_tokens(*await http.post(login.token_endpoint, posted))
            return msgspec.structs.replace(login, refresh_form=form, client=client).renewed(tokens, now)

        try:
            return await ask(login.refresh_form, client)
        except TokenRefused as problem:
            if problem.error == "invalid_request":
                other = login.refresh_form.other(problem.said, knows_scopes=bool(scopes)), client
            elif problem.is_about_client and (with_secret := client.with_secret_in_form()) is not None:
                other = login.refresh_form, with_secret
            else:
                raise
            try:
                return await ask(*other)
            except TokenRefused as second:
                if second.error in _PASSING:  # it says nothing about this form
                    raise
            raise

    def _secrets(self) -> list[str | None]:
        """Those that its issuer was sent."""
        oauth = self.spec.oauth
        configured = () if oauth is None else (oauth.client_secret, oauth.private_key)
        known = [] if self.login is None else self.login.secrets()
        return [*known, *(each.reveal() for each in configured if each is not None)]

    def _present_client(self, client: ClientRegistration) -> ClientRegistration:
        """The client with the secret or the private key that the configuration has now."""
        oauth = self.spec.oauth
        if oauth is None or oauth.client_id is None or oauth.client_id.reveal() != client.client_id:
            return client
        if oauth.private_key is not None:  # the issuer sees what it signs, never the key, whatever the login had
            key = oauth.private_key.reveal()
            return msgspec.structs.replace(client, client_secret=key, auth_method="private_key_jwt")
        if oauth.client_secret is None:
            return client
        method = "client_secret_basic" if client.auth_method == "private_key_jwt" else client.auth_method
        return msgspec.structs.replace(client, client_secret=oauth.client_secret.reveal(), auth_method=method)

    async def _put(self, login: Login) -> None:
        """Store the present login as changed. Adopts what is stored afterwards."""
        sealed, revision = self._vault.close(self._key, login), self._revision

        def change(transaction: Transaction) -> StoredCredential | None:
            stored, is_leased = self._take_lease(transaction, revision=revision)
            # Otherwise a person has logged in or out meanwhile.
            return transaction.put_credential(self._key, sealed) if is_leased else stored

        self.adopt(await self._store.write(change))

    # The store

    def adopt(self, stored: StoredCredential | None) -> None:
        """Use what is stored."""
        revision = -1 if stored is None else stored.revision
        if revision == self._revision or 0 <= revision < self._revision:  # a reading from before the last change
            return
        self._revision, self.login, self._unsaved, self._failed = revision, None, None, None
        self.problem = self.said = ""
        if stored is not None and not covers(self.server, stored.resource):
            stored = None  # the configuration has another url by now, and the token must not go there
        self._issuer = "" if stored is None else stored.issuer
        if stored is not None:
            try:
                self.login = self._vault.open(self._key, stored)
                if self.login.ended:
                    self.problem = f"the login is over, because {self.login.ended}"
                    self.said = self.login.said
            except OAuthProblem as problem:
                self.problem = str(problem)
        self._set_header()
        self._learn_secrets()
        self._changed.unpark_all()

    def _learn_secrets(self) -> None:
        """Have texts of the server redacted that repeat a token, the former ones included."""
        if self.login is not None:
            learn(self.spec, map(kept_secret, self.login.secrets()))

    def _set_header(self) -> None:
        login = self.login
        if login is None or login.access_token is None:
            self._header, self._expires, self._refresh_at = None, -math.inf, -math.inf
            return
        self._header = (b"Authorization", f"Bearer {login.access_token}".encode("ascii"))
        self._expires = math.inf if login.expires is None else login.expires
        is_renewable = login.refresh_token is not None or self._needs_nobody
        ahead = min(REFRESH_AHEAD, (self._expires - self._now()) / 5) if is_renewable else 0.0
        self._refresh_at = self._expires - ahead if login.expires is not None else math.inf


class Credentials:
    """The logins of all servers of one configuration. Made by `open_credentials`."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        nursery: trio.Nursery,
        now: Callable[[], float],
        note: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._make = partial(Credential, store=store, vault=vault, nursery=nursery, now=now, note=note)
        self._revision = -1
        self._stored: dict[CredentialKey, StoredCredential] = {}
        self._used: dict[CredentialKey, Credential] = {}

    def of(self, spec: HttpServer) -> Credential:
        """The login for this server: the same object as long as its URL is the same, also with another client."""
        key = CredentialKey(spec.id)
        credential = self._used.get(key)
        if credential is None or credential.spec.url != spec.url:
            credential = self._make(key, spec)
            credential.adopt(self._stored.get(key))
            self._used[key] = credential
        if credential.spec is not spec:
            spec.learned_secrets[:] = credential.spec.learned_secrets
            credential.take(spec)
        return credential

    def name_of(self, spec: ServerSpec) -> str:
        """The name of the login for this server, also if it is over; empty without one."""
        if not isinstance(spec, HttpServer) or spec.headers_helper is not None:
            return ""
        login = self.of(spec).login
        return "" if login is None else login.id

    async def reload(self) -> None:
        """Take over what other processes have stored.

        Raises:
            StateError: it cannot be read.
        """
        revision = self._store.poll().credentials
        if revision == self._revision:
            return
        self._stored = await self._store.read_credentials()
        self._revision = revision
        for key, credential in self._used.items():
            credential.adopt(self._stored.get(key))

    async def run(self) -> None:
        """Follow what other processes store, until cancelled."""
        while True:
            await trio.sleep(POLL_INTERVAL)
            with suppress(StateError):  # a problem of the store, which the status shows
                await self.reload()


@asynccontextmanager
async def open_credentials(store: Store, vault: Vault, note: Callable[[Event], None]) -> AsyncIterator[Credentials]:
    """The logins, for the block. A refresh that has begun is finished at its end.

    Args:
        note: takes events; must not wait.

    Raises:
        StateError: they cannot be read.
    """
    async with trio.open_nursery() as nursery:
        credentials = Credentials(store, vault, nursery, time.time, note)
        await credentials.reload()
        nursery.start_soon(credentials.run)
        yield credentials
        nursery.cancel_scope.cancel("the host stops")
