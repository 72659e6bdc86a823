"""Logins that a person begins at a running host: on the web console, or with a link that a client shows.

A server has one open login at most, however many ask for it. Each has a listener of its own (`callback`) and ends by
itself after TIME_LIMIT. Nothing is sent to an issuer before a person has pressed or opened something: a link that is
only shown begins nothing.
"""

from __future__ import annotations

import math
import socket
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import final

import trio

from config import HttpServer, ServerSpec
from host.errors import ColonnadeError, first_exception
from host.journal import Event, InternalError, LoggedIn, LoginFailed
from host.oauth.problem import OAuthProblem, told
from host.sanitize import visible
from host.storage.sql import Store
from host.storage.store import CredentialKey, StateError
from host.upstream.callback import Callback
from host.upstream.credentials import Credentials
from host.upstream.login import (
    TIME_LIMIT,
    AnswerBox,
    PendingLogin,
    ProposedLogin,
    begin,
    bind_callback,
    finish,
    propose,
    read_login,
    serve_callback,
)
from host.upstream.vault import Login, Vault

MAX_BEGUN = 10
BEGUN_WINDOW = 600.0
"""Logins of one server that persons may begin in so many seconds: each asks the server, and an issuer that it names."""
OFFER_PAUSE = 60.0
"""Seconds after a login that came to nothing in which no client is offered another one."""
PAGE_TIMEOUT = 1.0
"""Seconds in which a browser must take the page about the end of its login."""

_EXPECTED = (OAuthProblem, StateError, ColonnadeError, OSError)
"""Failures of a login without a mistake of ours."""


RecordLogin = Callable[[Login, str, str], object]
"""Writes down that somebody has logged in at a server, and where the login was begun; raises AuditUnavailable if that
cannot be written."""


@final
class OpenLogin:
    """A login that a person may finish. Made by `OpenLogins`. Implements `host.upstream.callback.LinkedLogin`.

    `until`: Unix time at which it ends by itself. `by`: where it was begun. `offered_to`: the sessions of clients that
    show its link now, each with the event of its refusal. `declined_by`: sessions of clients, and owners of clients
    without one, whose person has declined it.
    """

    def __init__(self, spec: HttpServer, by: str, bound: socket.socket, store: Store, vault: Vault) -> None:
        self.spec = spec
        self.by = by
        self.until = time.time() + TIME_LIMIT
        self.callback = Callback(bound, self)
        self.scope = trio.CancelScope(deadline=trio.current_time() + TIME_LIMIT)
        self.why = f"nobody logged in within {TIME_LIMIT / 60:.0f} min"
        """Why it came to nothing, once it has ended; before that, why it would if nothing more happened."""
        self.made: Login | None = None
        """The login, once it is stored."""
        self.ended = trio.Event()
        self.offered_to: dict[Hashable, trio.Event] = {}
        self.declined_by: set[Hashable] = set()
        self._bound = bound
        self._store = store
        self._vault = vault
        self._steps = trio.Lock()
        """Held by the task that prepares it: a step that fails, fails for all."""
        self._proposed: ProposedLogin | None = None
        self._pending: PendingLogin | None = None
        self._box: AnswerBox | None = None
        self._problem: Exception | None = None
        self._begun = trio.Event()
        """Set when there is an address of the issuer's page, or cannot be one."""
        self._settled = trio.Event()

    def serves(self, spec: HttpServer) -> bool:
        """Whether it can still become a login for this server."""
        is_alive = self._problem is None and not self.scope.cancel_called
        return is_alive and self.spec.url == spec.url and self.spec.oauth == spec.oauth

    def end(self, why: str) -> None:
        """End it without a login."""
        self.why = why
        self.scope.cancel(why)

    async def propose(self) -> ProposedLogin:
        """Find out what it will be for. Nothing is sent to the issuer but requests for its metadata.

        Raises:
            OAuthProblem: there can be no login.
        """
        async with self._step():
            if self._proposed is None:
                self._proposed = await propose(self.spec, self._store, self._vault, self._bound)
            return self._proposed

    @asynccontextmanager
    async def _step(self) -> AsyncIterator[None]:
        async with self._steps:
            if self._problem is not None:
                raise OAuthProblem("this login has failed already; begin another one")
            try:
                yield
            except _EXPECTED as problem:
                self._problem = problem
                self._begun.set()
                raise OAuthProblem(str(problem), _said(problem)) from None

    async def show(self) -> dict[str, str]:
        proposed = await self.propose()
        former = {"former issuer": visible(proposed.former_issuer)} if proposed.is_other_issuer else {}
        return {"server": self.spec.id, **proposed.purpose, **former}

    async def begin(self) -> str:
        if self._proposed is None:
            raise OAuthProblem("the person was not shown what it is for")
        async with self._step():
            if self._pending is None:
                self._pending = await begin(self._proposed)
                self._box = AnswerBox(self._pending.request)
                self._begun.set()
            return self._pending.request.url

    async def wait_outcome(self) -> str:
        await self._settled.wait()
        if self.made is not None:
            return "You are logged in."
        return "The login failed." if self._problem is None else f"The login failed: {told(self._problem)}."

    def take(self, query: str) -> None:
        assert self._box is not None  # only a browser that was sent to the issuer brings an answer
        self._box.take(query)

    def take_address(self, address: str) -> None:
        """Take the address at which a browser ended, as a person pastes it; see `AnswerBox`."""
        assert self._box is not None
        self._box.take_address(address)

    async def run(self, record: Callable[[Login], object]) -> None:
        """Wait for the person and finish the login; raises what `finish` raises. Listens meanwhile."""
        async with serve_callback(self.callback, self._bound):
            try:
                self.made = await self._finish(record)
            except _EXPECTED as problem:
                self._problem = problem
                raise
            finally:
                self._settled.set()
                if self.callback.is_read:
                    with trio.move_on_after(PAGE_TIMEOUT):
                        await self.callback.finished.wait()

    async def _finish(self, record: Callable[[Login], object]) -> Login:
        await self._begun.wait()
        if self._problem is not None:
            raise self._problem
        assert self._box is not None
        assert self._pending is not None
        code = await self._box.code()
        return await finish(self._pending, code, self._store, self._vault, record)


def _said(problem: BaseException) -> str:
    return problem.said if isinstance(problem, OAuthProblem) else ""


@dataclass(eq=False)
class OpenLogins:
    """The open logins of all servers. Made by `open_logins`.

    Args:
        may_offer: whether the browsers of clients are on this machine, where the links lead to.
        note: takes events; must not wait.
    """

    _store: Store
    _vault: Vault
    _credentials: Credentials
    _nursery: trio.Nursery
    _record: RecordLogin
    _note: Callable[[Event], None]
    may_offer: bool

    def __post_init__(self) -> None:
        self._open: dict[str, OpenLogin] = {}
        self._opening = trio.Lock()
        self._begun: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_BEGUN))
        """When persons began the last logins of a server."""
        self._failures: dict[str, tuple[float, str]] = {}
        """When the last login of a server came to nothing, and why."""

    def why_failed(self, server: str) -> str:
        """Why the last login of a server came to nothing; empty if it did not, or another one is open."""
        return "" if server in self._open else self._failures.get(server, (0.0, ""))[1]

    async def connect(self, spec: HttpServer, by: str) -> tuple[OpenLogin, ProposedLogin]:
        """The login of a server for a person who has asked for it, and what it is for. An open one is used, unless a
        browser has begun it already.

        Raises:
            OAuthProblem, StateError: there can be no login, or too many were begun.
        """
        login = await self._opened(spec, by, by_person=True)
        return login, await login.propose()

    async def offer(self, spec: HttpServer, by: str) -> OpenLogin:
        """The login of a server, to be offered to the person at a client: the open one, or another one. Nothing leaves
        before its link is opened; see `is_offered`.

        Raises:
            OAuthProblem, StateError: it cannot be opened.
        """
        return await self._opened(spec, by, by_person=False)

    def is_offered(self, server: str) -> bool:
        """Whether clients may be offered a login of this server now."""
        if not self.may_offer:
            return False
        if (present := self._open.get(server)) is not None:
            return not present.scope.cancel_called
        failed_at, _ = self._failures.get(server, (-math.inf, ""))
        return trio.current_time() >= failed_at + OFFER_PAUSE

    def keep_only(self, servers: Mapping[str, ServerSpec]) -> None:
        """End the logins of servers that are not as they were in the configuration, or are disabled."""
        for server, login in self._open.items():
            spec = servers.get(server)
            if not isinstance(spec, HttpServer) or spec.disabled or not login.serves(spec):
                login.end("the server was changed in the configuration")

    async def _opened(self, spec: HttpServer, by: str, *, by_person: bool) -> OpenLogin:
        async with self._opening:
            present = self._open.get(spec.id)
            if present is not None and present.serves(spec) and not (by_person and present.callback.begun):
                present.by = by if by_person else present.by
                return present
            if by_person:
                self._count(spec.id)
            if present is not None:
                present.end("another login was begun")
                await present.ended.wait()  # its port is free then
            former = await read_login(self._store, self._vault, CredentialKey(spec.id))
            try:
                bound = bind_callback(spec.oauth, former)
            except OSError as problem:
                why = f"the browser could not come back: {problem.strerror}; perhaps colonnade login is open there"
                raise OAuthProblem(why) from None
            login = self._open[spec.id] = OpenLogin(spec, by, bound, self._store, self._vault)
            self._nursery.start_soon(self._run, login, bound)
            return login

    def _count(self, server: str) -> None:
        """Count a login that a person begins; raises OAuthProblem if there were too many."""
        begun, now = self._begun[server], trio.current_time()
        if len(begun) == MAX_BEGUN and now - begun[0] < BEGUN_WINDOW:
            left = BEGUN_WINDOW - (now - begun[0])
            raise OAuthProblem(f"{MAX_BEGUN} logins were begun in a short time; the next one may be in {left:.0f} s")
        begun.append(now)

    async def _run(self, login: OpenLogin, bound: socket.socket) -> None:
        """Keep a login open until its end. Never raises: it must not end the host."""
        server = login.spec.id
        try:
            try:
                with bound, login.scope:
                    await login.run(lambda made: self._record(made, server, login.by))
            except Exception as raised:  # noqa: BLE001 - a mistake of ours in a login must not end the host
                problem = first_exception(raised)
                login.why = told(problem) if isinstance(problem, _EXPECTED) else "an internal error"
                if not isinstance(problem, _EXPECTED):
                    self._note(InternalError(f"the login at {server}", problem))
            if login.made is None:
                self._failures[server] = trio.current_time(), login.why
                self._note(LoginFailed(server, login.why))
                return
            self._failures.pop(server, None)
            self._note(LoggedIn(server, login.made.issuer, login.by))
            with suppress(StateError):  # the next look at the store finds the login
                await self._credentials.reload()
        finally:
            del self._open[server]
            login.ended.set()


@asynccontextmanager
async def open_logins(
    store: Store,
    vault: Vault,
    credentials: Credentials,
    record: RecordLogin,
    note: Callable[[Event], None],
    *,
    may_offer: bool,
) -> AsyncIterator[OpenLogins]:
    """The open logins, for the block. At its end they end without a login."""
    async with trio.open_nursery() as nursery:
        yield OpenLogins(store, vault, credentials, nursery, record, note, may_offer)
        nursery.cancel_scope.cancel("the host stops")
