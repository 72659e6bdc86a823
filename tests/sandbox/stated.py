"""The state of a server on this machine, whatever means that has."""

from __future__ import annotations

from pathlib import Path

from config import StdioServer
from config.references import Secret
from config.sandbox import Means, Sandbox, SandboxFiles
from host.journal import Journal
from host.storage.directory import open_state
from host.upstream.confinement import _REMEDIES, CannotConfine
from host.upstream.connect import open_link
from host.wire.process import open_keeper
from tests.host.wire.processes import until
from tests.sandbox.means import BUBBLEWRAP, LANDLOCK, NAMESPACES, is_to_be_had


async def told_with(folder: Path, accept: Means) -> tuple[str, bool]:
    """The words about a server whose program needs at least these means, and whether its program was started."""
    mark = folder / "out" / "started"
    mark.parent.mkdir(exist_ok=True)
    mark.unlink(missing_ok=True)
    spec = StdioServer(
        id="a",
        command=tuple(map(Secret, ("/bin/sh", "-c", f"echo > {mark}; cat"))),
        cwd=Path("/"),
        sandbox=Sandbox(SandboxFiles(write=(str(mark.parent),)), accept=accept),
    )
    directory, journal = open_state(folder / "of-another").for_config(folder / "c.yaml"), Journal()
    async with open_keeper() as keeper:
        try:
            async with open_link(spec, http_sse=False, keeper=keeper, journal=journal, directory=directory):
                await until(mark.exists, 10)
                said = f"started, confined by {journal.means['a']}"
        except CannotConfine as problem:
            said = str(problem)
    return said, mark.exists()


async def state_with(folder: Path, accept: Means) -> tuple[str, bool]:
    """The words about such a server, and whether that is as it must be: if this machine has these means or more, its
    program runs, and else it does not, and there is a remedy."""
    said, was_started = await told_with(folder, accept)
    enough = (NAMESPACES, BUBBLEWRAP, *((LANDLOCK,) if accept is Means.LANDLOCK else ()))
    if any(map(is_to_be_had, enough)):
        return said, was_started
    return said, any(remedy in said for remedy in _REMEDIES.values()) and not was_started
