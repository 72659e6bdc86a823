"""The containers of servers: each is removed when its server ends. A server has one if its command is `docker run` or
`podman run`, or if its sandbox is a container.

Ending the client program ends its container only if that reads its input or handles the signal; what another process
runs (a daemon, conmon) is no descendant of the host, so the keeper cannot end it. The client therefore writes the id of
the container into a file (`--cidfile`), and the host removes that container. That of a sandbox has a name of ours.

    containers/<16 hex digits>-<random>       locked while its host lives; the path of the file with the id, or the name
    containers/<16 hex digits>-<random>.cid   the id, if the configuration names no file of its own

The digits stand for the client program with its options and variables. After a host was killed, the next start of a
server with the same ones removes what it left.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from config.container_run import ContainerRun, client_program, container_run
from config.environment import program_variables
from host.wire.process import Keeper, SpawnError

REMOVAL_TIMEOUT = 3.0
"""Seconds in which the client must remove a container when its server ends. Later, the next start does."""
DETACHED = "detached"
"""The reason of the `SpawnError` for a command whose client leaves its container to itself."""
_SNAP = "/usr/bin/snap"
_LONGEST_ID = 64
_ID = re.compile(rf"[0-9a-f]{{12,{_LONGEST_ID}}}")
_MAX_OUTPUT = 1024 * 1024
_GONE = (b"no such container", b"no container with", b"already in progress")
"""Words of the clients about a container that is already removed, or being removed."""


class Containers:
    """Removes containers with the client programs that started them.

    Args:
        folder: the directory of this host and others for what they started.
    """

    def __init__(self, folder: Path, keeper: Keeper) -> None:
        self._folder = folder
        self._keeper = keeper

    @asynccontextmanager
    async def removing(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, name: str = ""
    ) -> AsyncIterator[Sequence[str]]:
        """The command to start for a server; the container that it started is removed at the end of the block. Other
        commands are left as they are.

        Args:
            name: the name that the command gives to the container, if no other one ever has it.

        Raises:
            SpawnError: the command detaches, or the id of its container cannot be kept.
        """
        run = container_run(argv)
        if run is None:
            yield argv
        elif run.detach:
            raise SpawnError(DETACHED)
        elif not name and _is_confined(run, env):
            yield argv
        else:
            key = _key_of(run, env)
            await self._remove_left(key, run, env, cwd)
            path = os.path.abspath(os.path.join(cwd, run.cidfile)) if run.cidfile else ""  # noqa: ASYNC240 - no I/O
            lock, note, known = self._claim(key, name or path)
            # A file of theirs that is there already keeps the client from starting, and names a container of others.
            is_old = not name and os.path.lexists(known)  # noqa: ASYNC240 - as quick as the note above
            try:
                yield argv if name or run.cidfile else run.with_cidfile(known)
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(REMOVAL_TIMEOUT):
                    if is_old or await self._remove(known, run, env, cwd):
                        _unlink(note)
                os.close(lock)

    def _claim(self, key: str, known: str) -> tuple[int, str, str]:
        """Note that a container is about to be started, by its name or by the path of the file with its id, if it has
        one: a descriptor with the lock of the note, the path of the note, and what stands in it."""
        note = str(self._folder / f"{key}-{secrets.token_hex(8)}")
        known = known or f"{note}.cid"
        try:
            lock = os.open(note, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.write(lock, os.fsencode(known))
            except OSError:
                _unlink(note)
                os.close(lock)
                raise
        except OSError as problem:
            raise SpawnError(f"the id of its container cannot be kept ({problem.strerror})") from problem
        return lock, note, known

    async def _remove_left(self, key: str, run: ContainerRun, env: Mapping[str, str], cwd: str) -> None:
        """Remove the containers that killed hosts left."""
        for note in self._folder.glob(f"{key}-{'[0-9a-f]' * 16}"):
            with suppress(OSError):
                lock = os.open(note, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(lock).st_nlink == 0:
                        continue  # another start removed it, and its file may be that of a container since
                    known = os.fsdecode(os.read(lock, 4096))
                    with trio.move_on_after(REMOVAL_TIMEOUT):
                        # An empty note is one that another host is just making.
                        if known and await self._remove(known, run, env, cwd):
                            _unlink(str(note))
                finally:
                    os.close(lock)

    async def _remove(self, known: str, run: ContainerRun, env: Mapping[str, str], cwd: str) -> bool:
        """Remove the container that has a name, or whose id is in a file, and the file; whether none is left."""
        is_file = os.path.isabs(known)
        if id := _id_in(known) if is_file else known:
            try:
                argv = removal(run.client, id)
                status, *said = await run_client(self._keeper, argv, env=env, cwd=cwd, after=argv)
            except SpawnError:
                return False
            if status != 0 and not any(words in each.lower() for words in _GONE for each in said):
                return False
        if is_file:
            _unlink(known)
        return True


def removal(client: Sequence[str], id: str) -> list[str]:
    """The command that removes a container, also one that runs, by its id or name."""
    return [*client, "rm", "--force", "--volumes", id]


async def run_client(
    keeper: Keeper, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, after: Sequence[str] = ()
) -> tuple[int, bytes, bytes]:
    """Run a client program to its end: its status, and the beginning of its output and of its standard error.
    `after`: what the keeper runs if the host ends meanwhile.

    Raises:
        SpawnError: it could not be started.
    """
    output, errors = bytearray(), bytearray()
    async with keeper.open_child(argv, env=env, cwd=cwd, grace=0.0, after=after) as child:
        child.close_stdin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read, child.stdout, output)
            nursery.start_soon(_read, child.stderr, errors)
        return await child.wait(), bytes(output), bytes(errors)


def _id_in(path: str) -> str:
    """The id in a file; "" for anything else. A container that can write where a file of the person is may have put a
    link there, or a pipe that nobody writes to."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            id = os.read(file, _LONGEST_ID + 2).decode().strip() if stat.S_ISREG(os.fstat(file).st_mode) else ""
        finally:
            os.close(file)
    except (OSError, ValueError):
        return ""
    return id if _ID.fullmatch(id) else ""


async def _read(stream: trio.abc.ReceiveStream, said: bytearray) -> None:
    while data := await stream.receive_some():
        said += data[: _MAX_OUTPUT - len(said)]


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _key_of(run: ContainerRun, env: Mapping[str, str]) -> str:
    """The same for every command whose client reaches the same containers in the same way."""
    variables = [f"{name}={env[name]}" for name in ("HOME", *sorted(program_variables(run.client))) if name in env]
    words = b"\0\0".join(os.fsencode("\0".join(each)) for each in (run.client, variables))
    return hashlib.sha256(words).hexdigest()[:16]


def _is_confined(run: ContainerRun, env: Mapping[str, str]) -> bool:
    """Whether the client is a snap: those cannot write to the state directory, so `--cidfile` would stop the server."""
    found = shutil.which(run.client[client_program(run.client)], path=env.get("PATH")) or ""
    return os.path.realpath(found) == _SNAP
