"""Confined programs of the tests, under a real keeper."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from config import StdioServer
from config.references import Secret
from config.sandbox import Sandbox
from host.journal import Journal
from host.storage.directory import open_state
from host.upstream.confinement import confine
from host.upstream.forwarder import Forwarder
from host.upstream.refusals import Refusals
from host.wire.process import Child, SpawnError, open_keeper
from host.wire.turns import Turns

PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-c")
INTERFACES = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname(), 3)
print(len(socket.if_nameindex()))
"""
"""A program that connects to itself over loopback, and says how many interfaces there are."""


def program(path: Path, text: str = "\x7fELF") -> Path:
    """A file that can be started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


async def planned(
    folder: Path, words: tuple[str, ...], sandbox: Sandbox | None, cwd: Path | None = None
) -> tuple[dict[str, str], dict[str, Any]]:
    """The environment and the plan of a program, with a state directory in this folder; by default, it is strict."""
    spec = StdioServer(id="a", command=tuple(map(Secret, words)), cwd=cwd or folder, sandbox=sandbox or Sandbox())
    made = await confine(spec, {}, open_state(folder / "state").for_config(folder / "c.yaml"))
    return made.env, made.plan


@asynccontextmanager
async def confined(
    folder: Path,
    *words: str,
    sandbox: Sandbox | None = None,
    cwd: Path | None = None,
    grace: float = 0.2,
    **more: Any,
) -> AsyncIterator[Child]:
    """A program in a sandbox, for the block, with the forwarder of its network, if it has one. `more`: arguments for
    that. `cwd`: by default the folder."""
    sandbox = sandbox or Sandbox()
    env, plan = await planned(folder, words, sandbox, cwd)
    async with (
        open_keeper() as keeper,
        keeper.open_child(words, env=env, cwd="/", grace=grace, sandbox=plan) as child,
        trio.open_nursery() as nursery,
    ):
        if child.listeners:
            arguments = {"refusals": Refusals("a", Journal()), "turns": Turns(), **more}
            nursery.start_soon(Forwarder(child.listeners, sandbox, **arguments).run)
        yield child
        nursery.cancel_scope.cancel()


async def outcome_of(folder: Path, *words: str, sandbox: Sandbox | None = None, **changed: Any) -> str | SpawnError:
    """The means by which a program is confined, or why it was not started. `changed`: parts of the plan."""
    env, plan = await planned(folder, words, sandbox)
    async with open_keeper() as keeper:
        try:
            async with keeper.open_child(words, env=env, cwd="/", grace=0.2, sandbox={**plan, **changed}) as child:
                return child.means
        except SpawnError as problem:
            return problem


async def said_by(folder: Path, *words: str, sandbox: Sandbox | None = None, **more: Any) -> tuple[int, str]:
    """The exit status of a program, and its output."""
    async with confined(folder, *words, sandbox=sandbox, **more) as child:
        child.close_stdin()
        text = b"".join([piece async for piece in child.stdout])
        return await child.wait(), text.decode().strip()
