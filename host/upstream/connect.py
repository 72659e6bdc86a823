"""Opens the link that a server's configuration asks for: a child process under the keeper, or Streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from config import HttpServer, ServerSpec, StdioServer
from host.journal import Dropped, Journal, Said, sample
from host.wire.framing import LineSplitter, LineTooLong
from host.wire.http_client import open_http
from host.wire.link import Link, LinkLost
from host.wire.process import Child, Keeper, SpawnError, child_environment
from host.wire.stdio import CHUNK, StdioLink

STDERR_LINE = 64 * 1024
SHORTEST_SECRET = 6
"""Characters; shorter values are words like `UTC` and `true`, and would leave little of any text."""
STOP_GRACE = 2.0
"""Seconds between the steps of stopping a child: its input closed, TERM, KILL."""


def open_link(spec: ServerSpec, keeper: Keeper, journal: Journal) -> AbstractAsyncContextManager[Link]:
    """A link to the server for the block; the child process, if there is one, is gone when the block ends.

    Raises:
        LinkLost: the program could not be started.
    """
    return _http(spec, journal) if isinstance(spec, HttpServer) else _stdio(spec, keeper, journal)


@asynccontextmanager
async def _http(spec: HttpServer, journal: Journal) -> AsyncIterator[Link]:
    def dropped(what: str, detail: str) -> None:
        journal.note(Dropped(spec.id, what, detail))

    headers = {name: value.reveal() for name, value in spec.headers.items()}
    async with open_http(spec.url.reveal(), headers, dropped) as link:
        yield link


@asynccontextmanager
async def _stdio(spec: StdioServer, keeper: Keeper, journal: Journal) -> AsyncIterator[Link]:
    argv = [spec.program.reveal(), *(arg.reveal() for arg in spec.args)]
    env = child_environment({name: value.reveal() for name, value in spec.env.items()})
    try:
        async with keeper.open_child(argv, env=env, cwd=str(spec.cwd), grace=STOP_GRACE) as child:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_hear, spec, child, journal)
                yield StdioLink(child.stdout, child.stdin_fd, lambda: _end(child))
                nursery.cancel_scope.cancel()
    except SpawnError as problem:
        raise LinkLost(f"the program {spec.program} could not be started: {problem}") from problem


def redactor(spec: ServerSpec) -> Callable[[str], str]:
    """Takes out of what a server says what the configuration told it in confidence: servers like to repeat it in
    errors."""
    told = spec.headers if isinstance(spec, HttpServer) else spec.env
    values = (value.reveal() for value in told.values())
    secrets = sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    return redact


async def _end(child: Child) -> str:
    status = await child.wait()
    return f"it was ended by signal {-status}" if status < 0 else f"it exited with status {status}"


async def _hear(spec: StdioServer, child: Child, journal: Journal) -> None:
    """Read the child's standard error to the end, whatever it is: a child must never wait for us to read."""
    lines = LineSplitter(STDERR_LINE)
    redact = redactor(spec)
    try:
        while data := await child.stderr.receive_some(CHUNK):
            try:
                for line in lines.feed(bytes(data)):
                    journal.note(Said(spec.id, sample(redact(line.decode(errors="replace")))))
            except LineTooLong:
                lines = LineSplitter(STDERR_LINE)
    except trio.BrokenResourceError:
        return
