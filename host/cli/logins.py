"""Logins from the terminal: the person opens a link, and the answer comes back by the browser or is pasted."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypedDict, TypeVar

import trio

from config import Channel, Config, HttpServer, OAuthGrant
from host.audit.writer import Audit
from host.cli.common import is_confirmed
from host.cli.exit_codes import WRONG, CommandFailed
from host.cli.suggest import did_you_mean
from host.cli.targets import as_command_failures
from host.errors import AuditUnavailable, first_exception
from host.journal import Journal
from host.oauth.authorization import ForeignAnswer
from host.oauth.problem import OAuthProblem, told
from host.policy.decision_log import DecisionLog
from host.sanitize import visible, with_said
from host.storage.choice import open_chosen_store
from host.storage.directory import State
from host.storage.sql import Store
from host.storage.store import CredentialKey, StateError, StoredCredential
from host.upstream.connect import why_no_login
from host.upstream.login import ProposedLogin, bind_callback, read_login, revoke
from host.upstream.open_logins import OpenLogin
from host.upstream.vault import Login, Vault, open_vault
from host.url import Url
from host.wire.descent import this_process

_BY = Channel.TERMINAL.value
_MAX_PASTE = 16 * 1024
_PASTE = "paste here the address at which the browser ended:"

T = TypeVar("T")


class LoginRow(TypedDict):
    """A login as people see it. `login` and `expires` are times in UTC; None where they are not known."""

    server: str
    state: str
    issuer: str
    resource: str
    scopes: list[str]
    expires: str | None
    login: str | None


class Logins:
    """The logins of one configuration. Made by `open`."""

    def __init__(self, config: Config, state: State, store: Store, vault: Vault) -> None:
        self._config = config
        self._state = state
        self._store = store
        self._vault = vault

    @classmethod
    @contextmanager
    def open(cls, state: State, config: Config) -> Iterator[Logins]:
        """The logins, for the block.

        Raises:
            CommandFailed: the store or its key cannot be used.
        """
        try:
            with open_chosen_store(config.fleet, state, config.source) as store:
                yield cls(config, state, store, open_vault(state, os.environ, config.fleet))
        except StateError as problem:
            raise CommandFailed(str(problem), WRONG) from problem

    def log_in(self, server: str, *, accept_other_issuer: bool) -> None:
        """Have a person log in; raises CommandFailed if that fails."""
        spec = self._server(server)
        with self._decision_log() as decision_log:
            record = partial(decision_log.record_login, server=server, by=_BY, peer=this_process().audit_fields())
            login = _run(partial(self._log_in, spec, record, accept_other_issuer=accept_other_issuer))
        scopes = f" with the scopes {' '.join(login.scopes)}" if login.scopes else ""
        print(f"Logged in at {login.issuer}{scopes}. Running hosts use it within a second.")

    @contextmanager
    def _decision_log(self) -> Iterator[DecisionLog]:
        """The audit, for the block. What could not be recorded is said at its end."""
        with as_command_failures(), Audit(self._state.audit) as audit:
            decision_log = DecisionLog(audit, Journal())
            yield decision_log
            if decision_log.problem:
                print(f"colonnade: {decision_log.problem}", file=sys.stderr)

    async def _log_in(self, spec: HttpServer, record: Callable[[Login], object], *, accept_other_issuer: bool) -> Login:
        former = await read_login(self._store, self._vault, CredentialKey(spec.id))
        with bind_callback(spec.oauth, former) as bound:
            login = OpenLogin(spec, _BY, bound, self._store, self._vault)
            proposed = await login.propose()
            _show(proposed)
            if proposed.is_other_issuer and not accept_other_issuer and not _accepts_issuer():
                raise OAuthProblem("nothing was changed; --yes accepts the new issuer")
            url = await login.begin()
            print(f"\nOpen this in a browser on this machine:\n\n  {login.callback.start_url}\n")
            print(f"Or open this in any browser:\n\n  {url}\n")
            if sys.stdin is not None:
                print(f"Then {_PASTE}\n")
            sys.stdout.flush()
            with login.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_read_pasted, login)
                    await login.run(record)
                    nursery.cancel_scope.cancel()
        if login.made is None:
            raise OAuthProblem(login.why)
        return login.made

    def log_out(self, server: str) -> None:
        """Forget a login, and have it revoked; raises CommandFailed if there is none."""
        with self._decision_log() as decision_log:
            print(_run(partial(self._log_out, server, decision_log)))

    async def _log_out(self, server: str, decision_log: DecisionLog) -> str:
        key = CredentialKey(server)
        if (await self._store.read_credentials()).get(key) is None:
            raise OAuthProblem(f"there is no login for {server}")
        login = await read_login(self._store, self._vault, key)
        await self._store.write(lambda transaction: transaction.remove_credential(key))
        said, revoked = await self._revoke(login, server)
        decision_log.record_logout(login, server, revoked=revoked, by=_BY, peer=this_process().audit_fields())
        return said

    async def _revoke(self, login: Login | None, server: str) -> tuple[str, bool]:
        """Have the issuer revoke a login that is forgotten here. A sentence, and whether that was done."""
        if login is None:
            return "Logged out here. The stored login could not be read, so the issuer was not told.", False
        spec = self._config.servers.get(server)
        home = Url.parse(spec.url.reveal() if isinstance(spec, HttpServer) else login.resource)
        try:
            if await revoke(login, home):
                return f"Logged out; {login.issuer} has revoked the login.", True
        except OAuthProblem as problem:
            return f"Logged out here. The login may still be valid at {login.issuer}: {problem.told}.", False
        return f"Logged out here. {login.issuer} has no way to revoke a login, which ends when it expires.", False

    def rows(self) -> list[LoginRow]:
        """All logins, in the order of their servers."""
        return [self._row(key, stored) for key, stored in trio.run(self._store.read_credentials).items()]

    def _row(self, key: CredentialKey, stored: StoredCredential) -> LoginRow:
        row: LoginRow = {
            "server": key.server,
            "state": "",
            "issuer": stored.issuer,
            "resource": stored.resource,
            "scopes": [],
            "expires": None,
            "login": None,
        }
        try:
            login = self._vault.open(key, stored)
        except OAuthProblem as problem:
            return {**row, "state": str(problem)}
        row["scopes"], row["login"] = list(login.scopes), _iso(login.began)
        row["expires"] = None if login.expires is None else _iso(login.expires)
        spec = self._config.servers.get(key.server)
        oauth = spec.oauth if isinstance(spec, HttpServer) else None
        if oauth is not None and oauth.grant is OAuthGrant.CLIENT_CREDENTIALS:
            row["state"] = "gets its token by itself"
        elif login.is_over:
            because = f", because {login.ended}" if login.ended else ""
            row["state"] = with_said(f"needs login{because}: colonnade login {key.server}", login.said)
        elif login.refresh_token is not None:
            row["state"] = "logged in, refreshed by itself"
        else:
            row["state"] = "logged in, until it expires" if login.expires is not None else "logged in"
        return row

    def _server(self, server: str) -> HttpServer:
        spec = self._config.servers.get(server)
        if spec is None:
            remedy = did_you_mean(server, self._config.servers) or f"its servers are {', '.join(self._config.servers)}"
            where = visible(str(self._config.source))
            raise CommandFailed(f"there is no server {visible(server)!r} in {where}; {remedy}", WRONG)
        if why := why_no_login(spec):
            raise CommandFailed(why, WRONG)
        assert isinstance(spec, HttpServer)
        return spec


def _show(proposed: ProposedLogin) -> None:
    """Show what the person is about to permit, before anything leaves for the issuer."""
    print(f"Login for {proposed.key.server}")
    for name, text in proposed.purpose.items():
        print(f"  {name + ':':<10} {text}")
    for notice in proposed.notices:
        print(f"\n{notice}")
    if proposed.is_other_issuer:
        print(f"\nThe last login was at another issuer: {proposed.former_issuer}")


def _accepts_issuer() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and is_confirmed("Log in at the new one?")


async def _read_pasted(login: OpenLogin) -> None:
    """Take the lines that a person pastes, until one is the answer. The end of the input ends nothing."""
    if sys.stdin is None:  # closed by whoever started the command
        return
    # Not in a thread: one that still reads when the program ends would crash it.
    pasted = b""
    while len(pasted) < _MAX_PASTE:
        try:
            await trio.lowlevel.wait_readable(sys.stdin)
        except OSError:  # a file, which is always readable
            await trio.lowlevel.checkpoint()
        data = os.read(sys.stdin.fileno(), _MAX_PASTE)
        *lines, pasted = (pasted + data).split(b"\n") if data else (pasted, b"")
        for line in filter(None, map(bytes.strip, lines)):
            try:
                login.take_address(line.decode("utf-8", "replace"))
            except ForeignAnswer:
                print(f"colonnade: this is not the address of this login; {_PASTE}", file=sys.stderr)
            except OAuthProblem:  # the login ends with it, and with its sentence
                return
        if not data:
            return


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _run(work: Callable[[], Awaitable[T]]) -> T:
    """Run the work; what a person can do something about becomes CommandFailed."""
    try:
        return trio.run(work)
    except BaseException as raised:
        problem = first_exception(raised)
        if not isinstance(problem, OAuthProblem | StateError | AuditUnavailable | OSError):
            raise
    # With the name of a file, the text alone would not say what failed.
    why = problem.strerror if isinstance(problem, OSError) and problem.filename is None else None
    raise CommandFailed(why or told(problem))
