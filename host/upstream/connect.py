"""Opening of the link to a configured server: a child process under the keeper, Streamable HTTP, or HTTP+SSE."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from config import HttpServer, ServerSpec, StdioServer
from host.journal import Journal, MessageDropped, StderrLine, excerpt
from host.memory import Budget, HoldingFactory, Use, server_owner, uncharged
from host.upstream.headers_helper import run_headers_helper
from host.upstream.stderr import find_reason
from host.wire.framing import LineSplitter, LineTooLong
from host.wire.http_client import HttpLink, open_http
from host.wire.link import Link, LinkLost
from host.wire.process import Child, Keeper, SpawnError, child_environment
from host.wire.sse_client import SseLink, open_sse
from host.wire.stdio import CHUNK, StdioLink
from host.wire.turns import Turn, Turns

STDERR_LINE = 64 * 1024
MIN_SECRET_LENGTH = 6
"""Characters of a value that is redacted. Shorter values are words like `UTC` and `true`, which occur in any text."""
LAST_LINES = 50
"""Lines of standard error in which the reason is looked for."""
STDERR_WAIT = 0.5
"""Seconds to wait for the rest of standard error after the end of a child. Its own children may keep it open."""
STOP_GRACE = 2.0
"""Seconds between the steps of stopping a child: its input closed, TERM, KILL."""


class CannotStart(LinkLost):
    """There is no such program, or it may not be executed."""

    lasting = True


def open_link(
    spec: ServerSpec,
    *,
    http_sse: bool,
    keeper: Keeper,
    journal: Journal,
    turns: Turns | None = None,
    memory: Budget | None = None,
) -> AbstractAsyncContextManager[Link]:
    """Open a link to the server. A child process has ended when the block ends.

    Args:
        http_sse: use HTTP+SSE (2024-11-05) for a server at a URL.
        turns: shared by all links of one host.
        memory: charged for messages of the server while they are being read.

    Raises:
        LinkLost: the program could not be started, or the URL or a header is invalid.
    """
    hold = uncharged if memory is None else partial(memory.hold, server_owner(spec.id), Use.MESSAGES, 0)
    if isinstance(spec, HttpServer):
        opener = open_sse_link if http_sse else open_http_link
        if spec.headers_helper is not None:
            return _open_with_helper(spec, keeper, lambda full: opener(full, journal, turns, hold))
        return opener(spec, journal, turns, hold)
    return _open_stdio_link(spec, keeper, journal, turns or Turns(), hold)


@asynccontextmanager
async def open_http_link(
    spec: HttpServer, journal: Journal, turns: Turns | None = None, hold: HoldingFactory = uncharged
) -> AsyncIterator[HttpLink]:
    """Open a Streamable HTTP link to the server; see `open_http`.

    Raises:
        LinkLost: the URL or a header is invalid.
    """
    limit = spec.limits.message
    async with open_http(
        spec.url.reveal(), _headers(spec), _drop_reporter(spec, journal), turns=turns, max_message=limit, hold=hold
    ) as link:
        yield link


@asynccontextmanager
async def open_sse_link(
    spec: HttpServer, journal: Journal, turns: Turns | None = None, hold: HoldingFactory = uncharged
) -> AsyncIterator[SseLink]:
    """Open an HTTP+SSE link (2024-11-05) to the server; see `open_sse`.

    Raises:
        LinkLost: the URL or a header is invalid.
    """
    limit = spec.limits.message
    async with open_sse(
        spec.url.reveal(), _headers(spec), _drop_reporter(spec, journal), turns=turns, max_message=limit, hold=hold
    ) as link:
        yield link


@asynccontextmanager
async def _open_with_helper(
    spec: HttpServer, keeper: Keeper, opener: Callable[[HttpServer], AbstractAsyncContextManager[Link]]
) -> AsyncIterator[Link]:
    """Open a link with the headers that the server's helper prints."""
    printed = await run_headers_helper(spec, keeper)
    spec.helper_secrets[:] = printed.values()
    replaced = {name.lower() for name in printed}
    kept = {name: value for name, value in spec.headers.items() if name.lower() not in replaced}
    async with opener(replace(spec, headers={**kept, **printed})) as link:
        yield link


def _headers(spec: HttpServer) -> dict[str, str]:
    return {name: value.reveal() for name, value in spec.headers.items()}


def _drop_reporter(spec: HttpServer, journal: Journal) -> Callable[[str, str], None]:
    return lambda what, detail: journal.note(MessageDropped(spec.id, what, detail))


@asynccontextmanager
async def _open_stdio_link(
    spec: StdioServer, keeper: Keeper, journal: Journal, turns: Turns, hold: HoldingFactory
) -> AsyncIterator[Link]:
    argv = [word.reveal() for word in spec.command]
    env = child_environment({name: value.reveal() for name, value in spec.env.items()})
    try:
        async with keeper.open_child(argv, env=env, cwd=str(spec.cwd), grace=STOP_GRACE) as child:
            stderr = _Stderr(spec, child, journal, turns.turn())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stderr.read)
                yield StdioLink(
                    child.stdout,
                    child.stdin_fd,
                    partial(_exit_text, child, stderr),
                    turns=turns,
                    max_message=spec.limits.message,
                    hold=hold,
                )
                nursery.cancel_scope.cancel()
    except SpawnError as problem:
        raise CannotStart(f"the program {spec.program} could not be started: {problem}") from problem


def redactor(spec: ServerSpec) -> Callable[[str], str]:
    """A function that replaces the configured secrets of a server (values of `headers` or `env`) in its texts: servers
    repeat them in errors."""
    if isinstance(spec, HttpServer):
        configured = [*spec.headers.values(), *spec.helper_secrets]
    else:
        configured = [*spec.env.values()]
    values = (value.reveal() for value in configured)
    secrets = sorted((value for value in values if len(value) >= MIN_SECRET_LENGTH), key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return redact


async def _exit_text(child: Child, stderr: _Stderr) -> str:
    """How the program ended, and the reason that it gave. What it said before it was killed is not the reason."""
    status = await child.wait()
    if status < 0:
        return f"it was ended by signal {-status}"
    with trio.move_on_after(STDERR_WAIT):
        await stderr.ended.wait()
    reason = find_reason(list(stderr.last_lines), status)
    return f"it exited with status {status}" + ("" if reason is None else f": {reason}")


class _Stderr:
    """The standard error of a child, and the last lines of it."""

    def __init__(self, spec: StdioServer, child: Child, journal: Journal, turn: Turn) -> None:
        self._server = spec.id
        self._child = child
        self._journal = journal
        self._turn = turn
        self._redact = redactor(spec)
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.ended = trio.Event()

    async def read(self) -> None:
        """Read it to its end, and log its lines. Never stops, because a full pipe would block the child."""
        try:
            await self._read()
        finally:
            self.ended.set()

    async def _read(self) -> None:
        lines = LineSplitter(STDERR_LINE)
        try:
            while data := await self._child.stderr.receive_some(CHUNK):
                self._turn.begin()
                try:
                    for line in lines.feed(bytes(data)):
                        text = excerpt(self._redact(line.decode(errors="replace")))
                        self.last_lines.append(text)
                        self._journal.note(StderrLine(self._server, text))
                        await self._turn.yield_if_over()
                except LineTooLong:
                    lines = LineSplitter(STDERR_LINE)
        except trio.BrokenResourceError:
            return
