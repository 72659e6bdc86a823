"""The container of a server's program: what the client program has for it, and the command that starts it.

Each start asks the client program first, since clients start a container with less than they were asked for: podman
ignores limits on some systems, and docker makes folders that are not there.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from msgspec import Struct

from config import StdioServer
from config.read import read_text
from host.sanitize import visible, visible_output
from host.storage.directory import ConfigDirectory, replace_file
from host.upstream.containers import removal, run_client
from host.upstream.stderr import find_reason
from host.wire.process import Keeper, NotConfined, SpawnError, child_environment

ANSWER_TIMEOUT = 10.0
"""Seconds in which the client program must say what it has; only a daemon that hangs needs more."""
_REMEDIES = (
    ("hybrid mode", 'write runtime = "runc" below [engine] in containers.conf, and install runc'),
    ("container-init binary", "install catatonit, the init that podman puts into its containers"),
    ("docker-init", "install tini, the init that docker puts into its containers"),
    ("newuidmap", "install uidmap, and give your user a range of numbers in /etc/subuid and /etc/subgid"),
    ("/dev/net/tun", "have an administrator let your user open it, or write network: none"),
    ("network mode", "write network: none, or have its daemon make networks"),
)
"""By words of the client programs about a start that failed: what a person can do."""


class Contained(Struct, frozen=True):
    """A container to be started.

    Attributes:
        argv, env: the command of the client program, and its environment.
        after: the command that removes it.
        means: what holds the program, in words.
        watched: the limits of all processes together, if the client program applies none.
        seen: the members of a plan (host/sandbox/plan.py) about the files that it sees.
    """

    argv: Sequence[str]
    env: dict[str, str]
    name: str
    after: Sequence[str]
    means: str
    watched: Mapping[str, int] | None
    seen: Mapping[str, Any]


async def contain(
    spec: StdioServer, variables: Mapping[str, str], directory: ConfigDirectory, keeper: Keeper
) -> Contained:
    """Prepare the container of a server.

    Args:
        variables: those that say which service the client program talks to.

    Raises:
        NotConfined: the client program, its image, or something that the sandbox asks for is not there.
    """
    from host.sandbox.container import NotToBeHad, container_command, read_facts
    from host.sandbox.paths import in_quotes
    from host.sandbox.plan import SHORT_TEMPORARY, CannotHide, MissingFile, make_mounts, offline_variables

    if sys.platform != "linux":
        raise NotConfined("Linux", os.strerror(errno.ENOSYS))
    sandbox, client, folder = spec.sandbox, child_environment(variables), directory.sandbox_of(spec.id)
    assert sandbox is not None
    try:
        facts = read_facts(json.loads(await _ask(spec, client, keeper, "info", "--format={{json .}}")), sandbox)
        await _ask(spec, client, keeper, "image", "inspect", "--format={{.Id}}", sandbox.image)
        filter_file = _write_filter(facts.filter, folder) if facts.filter else ""
        mounts, empty = make_mounts(sandbox, folder, directory.state)
    except NotToBeHad as problem:
        raise NotConfined(problem.step, problem.why) from problem
    except MissingFile as problem:
        raise NotConfined(f"the path {in_quotes(visible(problem.path))} of its sandbox", "it is not there") from problem
    except CannotHide as problem:
        raise NotConfined("a hidden state directory", "it is in a folder that may be written") from problem
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        raise NotConfined("{runtime} info", "its answer is none that is known here") from problem
    except OSError as problem:
        raise NotConfined("folders of its own", problem.strerror or "") from problem
    name = f"colonnade-{re.sub('[^A-Za-z0-9_.-]', '-', spec.id)}-{secrets.token_hex(8)}"
    command = container_command(
        spec,
        facts,
        name=name,
        user=f"{os.getuid()}:{os.getgid()}",
        mounts=mounts,
        empty=empty,
        usual=child_environment({}),
        values={"HOME": str(folder / "home"), "TMPDIR": SHORT_TEMPORARY, **offline_variables(sandbox)},
        client=client,
        filter_file=filter_file,
    )
    watched = None if facts.memory else {"memory": sandbox.memory, "processes": sandbox.processes + 1}
    own = (str(folder / "home"), SHORT_TEMPORARY, "/tmp")
    seen = {
        "own": own,
        "read": [place for place, (_, writable) in mounts.items() if not writable],
        "write": [place for place, (_, writable) in mounts.items() if writable and place not in own],
        "links": {},
        "hidden": str(directory.state),
        "image": True,
    }
    return Contained(command.argv, command.env, name, removal([spec.runtime], name), facts.describe(), watched, seen)


def _write_filter(path: str, folder: Path) -> str:
    """The path of a filter like this one, but without namespaces; in the folder of the server, and not seen by it."""
    from host.sandbox.container import NotToBeHad, without_namespaces

    try:
        made = without_namespaces(json.loads(read_text(Path(path))), os.uname().machine)
    except (LookupError, OSError, TypeError, ValueError) as problem:
        raise NotToBeHad("a filter of system calls", "its file cannot be read") from problem
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "seccomp.json"
    replace_file(file, json.dumps(made).encode())
    return str(file)


async def _ask(spec: StdioServer, env: Mapping[str, str], keeper: Keeper, *words: str) -> bytes:
    """The output of the client program."""
    try:
        with trio.fail_after(ANSWER_TIMEOUT):
            status, said, errors = await run_client(keeper, [spec.runtime, *words], env=env, cwd=str(spec.cwd))
    except trio.TooSlowError:
        raise NotConfined("its daemon", "it does not answer") from None
    except SpawnError as problem:
        if problem.reason != "not found":
            raise
        raise NotConfined("{runtime}", "not found on PATH") from problem
    if words[0] == "image" and status != 0:
        raise NotConfined("its image", "it is not there")
    if not said.strip():
        lines = [visible_output(line) for line in errors.decode(errors="replace").splitlines()]
        raise NotConfined("{runtime} info", find_reason(lines) or f"it exited with status {status}")
    return said


def remedy_for(reason: str) -> str:
    """The remedy of a person for a container that did not start; empty if none is known."""
    return next((remedy for words, remedy in _REMEDIES if words in reason), "")
