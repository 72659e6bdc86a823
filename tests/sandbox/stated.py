"""Systems that lack means: the state of a server there."""

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
from tests.sandbox.world import LANDLOCK_ALONE, NAMESPACES_ALONE, to_be_had


async def state_with(folder: Path, means: str) -> tuple[str, bool]:
    """What is said of a server whose program needs these means, and whether that is as it must be: if this machine has
    them, the program runs, and else it does not, and there is a remedy.

    Namespaces alone confine a program where there is no Landlock, and in the place of Landlock alone.
    """
    had = to_be_had()
    accept = Means.LANDLOCK if means == LANDLOCK_ALONE else Means.NAMESPACES
    mark = folder / "out" / "started"
    mark.parent.mkdir(exist_ok=True)
    mark.unlink(missing_ok=True)
    spec = StdioServer(
        id="a",
        command=tuple(map(Secret, ("/bin/sh", "-c", f"echo > {mark}; cat"))),
        cwd=Path("/"),
        sandbox=Sandbox(SandboxFiles(write=(str(mark.parent),)), accept=accept),
    )
    directory = open_state(folder / "of-another").for_config(folder / "c.yaml")
    said = "started"
    async with open_keeper() as keeper:
        try:
            async with open_link(spec, http_sse=False, keeper=keeper, journal=Journal(), directory=directory):
                await until(mark.exists, 10)
        except CannotConfine as problem:
            said = str(problem)
    if means in had or NAMESPACES_ALONE in had:
        return said, said == "started"
    return said, any(remedy in said for remedy in _REMEDIES.values()) and not mark.exists()
