"""Opening of the link to a configured server: a child process under the keeper, Streamable HTTP, or HTTP+SSE."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter

import trio

from config import HttpServer, OAuthGrant, ServerSpec, StdioServer, Unconfined
from config.desktop.commands import belongs_to_windows
from config.environment import handed_on
from host.journal import (
    Journal,
    MessageDropped,
    SecretWithheld,
    ServerConfined,
    ServerUnconfined,
    VariablesHandedOn,
    excerpt,
)
from host.memory import Budget, HoldingFactory, Use, server_owner, uncharged
from host.relay import TRAIL_VARIABLE
from host.sanitize import visible
from host.storage.directory import ConfigDirectory
from host.upstream.confinement import CannotConfine, confine, watch
from host.upstream.contained import Contained, contain
from host.upstream.containers import DETACHED, Containers
from host.upstream.credentials import Credential, Credentials
from host.upstream.headers_helper import run_headers_helper
from host.upstream.output import ProgramOutput
from host.upstream.own_command import starts_colonnade
from host.upstream.server_secrets import ServerSecrets, learn_headers
from host.wire.http_client import HttpLink, open_http
from host.wire.http_transport import Authorization, open_origin
from host.wire.link import Link, LinkLost
from host.wire.process import Keeper, NotConfined, SpawnError, child_environment
from host.wire.sse_client import SseLink
from host.wire.stdio import StdioLink
from host.wire.turns import Turns

MAX_TOLD = 20
"""Places of one connection in which a repeated secret is told."""
STOP_GRACE = 2.0
"""Seconds between the steps of stopping a child: its input closed, TERM, KILL."""


_START_FAILURES = {
    "no interpreter": "names an interpreter in its first line (#!) that is not there: install it, or correct the line",
    "not executable": "is not executable: make it so (chmod +x), or put its interpreter before it in the command",
    "bad cwd": "cannot be started in {folder}: make that folder, or name another one",
    DETACHED: "detaches from its container, so nothing reads its answers: remove -d (--detach) from its arguments",
}
"""Failures that only a person can mend, by the reason of the `SpawnError`."""


_QUOTES = re.compile("['\"`]")
_LEARNED = attrgetter("spec.learned_secrets")  # of a credential; no lambda: each message asks


class CannotStart(LinkLost):
    """The program could not be started. `lasting`: there is no such program, or it cannot be executed.

    The text names the path of a program or folder that was not found, in quotes, so that `without_directories` shortens
    it.
    """

    def __init__(self, spec: StdioServer, reason: str) -> None:
        program = f'the program "{spec.runtime or spec.program}"'
        path = visible(spec.started_words[0])
        correct = "correct the command" + (", or put its arguments under args" if " " in path else "")
        if reason == "not found" and belongs_to_windows(path):
            super().__init__(f"{program} was not found: it is one of Windows; write the program of this machine")
        elif reason == "not found" and "/" in path:
            # A path with quotes would not be shortened as a whole.
            where = "this path" if _QUOTES.search(path) else f'"{path}"'
            super().__init__(f"{program} was not found at {where}: install it, or {correct}")
        elif reason == "not found":
            super().__init__(f"{program} was not found on PATH: install it, or {correct}, or write its path")
        elif reason in _START_FAILURES:
            cwd = visible(str(spec.cwd))
            folder = "its folder" if _QUOTES.search(cwd) else f'the folder "{cwd}"'
            super().__init__(f"{program} {_START_FAILURES[reason].format(folder=folder)}")
        else:
            super().__init__(f"{program} could not be started: {reason}")
        self.lasting = reason == "not found" or reason in _START_FAILURES


def open_link(
    spec: ServerSpec,
    *,
    http_sse: bool,
    keeper: Keeper,
    journal: Journal,
    turns: Turns | None = None,
    memory: Budget | None = None,
    credentials: Credentials | None = None,
    trail: Callable[[], Sequence[str]] = tuple,
    containers: Containers | None = None,
    directory: ConfigDirectory | None = None,
) -> AbstractAsyncContextManager[Link]:
    """Open a link to the server. A child process has ended when the block ends.

    Args:
        http_sse: use HTTP+SSE (2024-11-05) for a server at a URL.
        turns: shared by all links of one host.
        memory: charged for messages of the server while they are being read.
        credentials: the logins of servers at a URL.
        trail: the configurations that lead to this host, its own included, as paths. A server that is Colonnade itself
            is told them, so that the host behind it refuses to lead back here.
        containers: removes the container of a server when the link is closed; None: it is left to its client program.
        directory: that of the configuration, with the folders of confined programs.

    Raises:
        LinkLost: the program could not be started, or the URL or a header is invalid.
    """
    hold = uncharged if memory is None else partial(memory.hold, server_owner(spec.id), Use.MESSAGES, 0)
    if isinstance(spec, HttpServer):
        opener = partial(open_url_link, journal=journal, http_sse=http_sse, turns=turns, hold=hold)
        if spec.headers_helper is not None:
            return _open_with_helper(spec, keeper, opener)
        return opener(spec, authorization=login_of(spec, credentials))
    return _open_stdio_link(spec, keeper, journal, turns or Turns(), hold, trail, containers, directory)


@asynccontextmanager
async def open_url_link(
    spec: HttpServer,
    journal: Journal,
    *,
    http_sse: bool,
    turns: Turns | None = None,
    hold: HoldingFactory = uncharged,
    authorization: Authorization | None = None,
) -> AsyncIterator[HttpLink | SseLink]:
    """Open a link to the server at a URL; see `open_link`.

    Raises:
        LinkLost: the URL or a header is invalid.
    """
    redact = ServerSecrets(spec).redact
    headers = {name: value.reveal() for name, value in spec.headers.items()}

    def on_dropped(what: str, detail: str) -> None:
        journal.note(MessageDropped(spec.id, what, redact(detail)))

    async with open_origin(
        spec.url.reveal(),
        headers,
        turns=turns,
        max_message=spec.limits.message,
        hold=hold,
        authorization=authorization,
    ) as origin:
        if http_sse:
            yield SseLink(origin, on_dropped)
            return
        async with open_http(origin, on_dropped) as link:
            yield link


def login_of(spec: ServerSpec, credentials: Credentials | None) -> Credential | None:
    """The login for a server; None for a program, and for a server with credentials in the configuration."""
    if credentials is None or not isinstance(spec, HttpServer) or has_own_authorization(spec):
        return None
    return credentials.of(spec)


def secrets_of(spec: ServerSpec, credentials: Credentials | None, journal: Journal) -> ServerSecrets:
    """The secrets of a server, for one connection of it. A secret that it repeats is told once for each place."""
    credential, told = login_of(spec, credentials), set[str]()

    def tell(where: str) -> None:
        if where not in told and len(told) < MAX_TOLD:
            told.add(where)
            journal.note(SecretWithheld(spec.id, excerpt(where)))

    # The configuration may be read again while the connection lasts: its login follows that, `spec` does not.
    return ServerSecrets(spec, None if credential is None else partial(_LEARNED, credential), tell)


def has_own_authorization(spec: HttpServer) -> bool:
    """Whether the configuration has the server's credentials, so that there is no login."""
    return spec.headers_helper is not None or any(name.lower() == "authorization" for name in spec.headers)


def why_no_login(spec: ServerSpec) -> str:
    """Why nobody can log in at a server; empty if a person can."""
    if not isinstance(spec, HttpServer):
        return f"{spec.id} is a program: there are logins for servers with a url only"
    if has_own_authorization(spec):
        return f"{spec.id} has its credentials in the configuration (headers or headers_helper); remove them to log in"
    if spec.oauth is not None and spec.oauth.grant is OAuthGrant.CLIENT_CREDENTIALS:
        return f"{spec.id} gets its token by itself (oauth.grant): nobody logs in"
    return ""


@asynccontextmanager
async def _open_with_helper(
    spec: HttpServer, keeper: Keeper, opener: Callable[[HttpServer], AbstractAsyncContextManager[Link]]
) -> AsyncIterator[Link]:
    """Open a link with the headers that the server's helper prints."""
    printed = await run_headers_helper(spec, keeper)
    learn_headers(spec, printed)
    replaced = {name.lower() for name in printed}
    kept = {name: value for name, value in spec.headers.items() if name.lower() not in replaced}
    async with opener(replace(spec, headers={**kept, **printed})) as link:
        yield link


@asynccontextmanager
async def _open_stdio_link(
    spec: StdioServer,
    keeper: Keeper,
    journal: Journal,
    turns: Turns,
    hold: HoldingFactory,
    trail: Callable[[], Sequence[str]],
    containers: Containers | None,
    directory: ConfigDirectory | None,
) -> AsyncIterator[Link]:
    argv: Sequence[str] = [word.reveal() for word in spec.command]
    if spec.unconfined is Unconfined.OPEN:
        journal.note(ServerUnconfined(spec.id))
    # They lead to what a confined program does not reach; the client program of its container needs them.
    more = handed_on(spec) if spec.sandbox is None or spec.runtime else {}
    if more:
        journal.note(VariablesHandedOn(spec.id, tuple(more)))
    own = {**more, **{name: value.reveal() for name, value in spec.env.items()}}
    is_link = not spec.runtime and starts_colonnade(argv)
    if is_link:
        own[TRAIL_VARIABLE] = json.dumps(list(trail()))
    env, plan, cwd = child_environment(own), None, str(spec.cwd)
    made: Contained | None = None
    name = ""
    try:
        if spec.runtime:
            assert directory is not None
            made = await contain(spec, more, directory, keeper)
            argv, env, name = made.argv, made.env, made.name
        elif spec.sandbox is not None:
            assert directory is not None
            confined = await confine(spec, own, directory)
            argv, env, plan = list(confined.argv), confined.env, confined.plan
        async with (
            nullcontext(argv) if containers is None else containers.removing(argv, env, cwd, name) as started,
            keeper.open_child(
                started,
                env=env,
                cwd=cwd,
                grace=STOP_GRACE,
                is_link=is_link,
                sandbox=plan,
                container=made.watched if made else None,
                after=made.after if made else (),
            ) as child,
        ):
            said = forwarder = None
            seen = made.seen if made else plan
            if seen is not None and spec.sandbox is not None:
                journal.note(ServerConfined(spec.id, made.means if made else child.means))
                said, forwarder = watch(spec, seen, child.listeners, journal, turns)
            output = ProgramOutput(spec, journal, turns.turn(), said)
            async with trio.open_nursery() as nursery:
                if forwarder is not None:
                    nursery.start_soon(forwarder.run)
                nursery.start_soon(output.read_stderr, child.stderr)
                if said is not None:
                    nursery.start_soon(output.look_at_failures)
                yield StdioLink(
                    child.stdout,
                    child.stdin_fd,
                    partial(output.describe_end, child),
                    on_text=output.take_stdout,
                    on_tool_error=None if said is None else output.take_tool_error,
                    turns=turns,
                    max_message=spec.limits.message,
                    hold=hold,
                )
                nursery.cancel_scope.cancel()
    except NotConfined as problem:
        raise CannotConfine(spec, problem) from problem
    except SpawnError as problem:
        raise CannotStart(spec, problem.reason) from problem
