"""Prints for each escape which means hold it: `python -m tests.sandbox`, as an ordinary user, whoever starts it. Ends
with 1 if a promise is broken. For means that are not to be had here, it prints the words of a server that needs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from config.sandbox import Means
from host.sandbox.kernel import call
from host.sandbox.paths import is_below_any
from host.wire.process import Keeper, open_keeper
from tests.sandbox.escapes import ESCAPES, MAY_BE_REFUSED, can_be_tried
from tests.sandbox.means import BY_THE_KEEPER, EACH, PRIVILEGES, SETS, Set, is_to_be_had, source_with
from tests.sandbox.stated import state_with
from tests.sandbox.world import NOT_STARTED, World, open_world

_AT_ONCE = 4
"""Hostile children at once: most of their time, they wait."""
ORDINARY = 64_321
"""A user whom no machine knows."""
_SHORT = {each.label: f"{at}" for at, each in enumerate(SETS, 1)}


def main() -> int:
    if os.geteuid() == 0 and (code := _run_as_ordinary_user()) is not None:
        return code
    with tempfile.TemporaryDirectory(prefix="colonnade-sandbox-") as folder:
        broken = trio.run(_try_all, Path(folder))
    print(*(broken or ["Every promise was kept."]), sep="\n")
    return 1 if broken else 0


def _run_as_ordinary_user() -> int | None:
    """The exit code of this program as another user; None if that one may not read it."""
    try:
        _let_others_in()
        if _run("-c", "import tests.sandbox.world") == 0:
            return _run("-m", "tests.sandbox")
    except OSError as problem:
        print(f"This cannot run as another user: {problem}")
    print("So it runs as user 0.")
    return None


def _run(*words: str) -> int:
    env = {"HOME": "/nowhere", "PATH": os.defpath}
    command = [sys.executable, *words]
    return subprocess.run(
        command, env=env, user=ORDINARY, group=ORDINARY, extra_groups=[], umask=0o077, check=False
    ).returncode


def _let_others_in() -> None:
    """Where this program or its interpreter is in a folder of user 0 alone, have a view of the file system, of this
    process and what it starts, in which others may enter that folder and find nothing else there."""
    needed = sorted({os.path.realpath(each) for each in (sys.base_prefix, sys.prefix, os.getcwd())})
    steps = (str(each) for path in needed for each in reversed(Path(path).parents))
    closed = next((each for each in steps if not os.stat(each).st_mode & 0o001), None)
    if closed is None:
        return
    call("a view of its own", "unshare", 0x00020000)
    call("a view of its own", "mount", b"none", b"/", None, 0x44000, None)
    below = [each for each in needed if is_below_any(each, [closed])]
    with tempfile.TemporaryDirectory() as kept:
        for at, path in enumerate(below):
            os.mkdir(f"{kept}/{at}")
            call("a view of its own", "mount", path.encode(), f"{kept}/{at}".encode(), None, 0x5000, None)
        call("a view of its own", "mount", b"tmpfs", closed.encode(), b"tmpfs", 0, b"mode=755")
        for at, path in enumerate(below):
            os.makedirs(path, exist_ok=True)
            call("a view of its own", "mount", f"{kept}/{at}".encode(), path.encode(), None, 0x5000, None)
            call("a view of its own", "umount2", f"{kept}/{at}".encode(), 2)
    os.chdir(os.getcwd())


async def _try_all(folder: Path) -> list[str]:
    broken = []
    for accept in Means:
        said, is_as_stated = await state_with(folder, accept)
        print(f"accept: {accept.value}: {said}")
        broken += [] if is_as_stated else [f"with accept: {accept.value} it says {said}"]
    print("".join(f"not to be had here: {each}\n" for each in EACH if not is_to_be_had(each)))
    sets = [each for each in SETS if not each.lacks() and (os.geteuid() or PRIVILEGES in each.means)]
    print(*(f"{_SHORT[each.label]:>2}  {each.label}" for each in sets), sep="\n")
    print("held: it did not get out; out: it did; -: nothing is started by these means with such a network")
    print(f"\n{'escape':<36} without  " + " ".join(f"{_SHORT[each.label]:<4}" for each in sets) + " held by")
    async with AsyncExitStack() as stack:
        places = {}
        for each in sets:
            place = folder / _SHORT[each.label]
            place.mkdir()
            world = stack.enter_context(open_world(place))
            with source_with(each.means, place / "source"):
                places[each] = world, await stack.enter_async_context(open_keeper())
        for escape in ESCAPES:
            if can_be_tried(escape):
                broken += await _try(escape, places)
            else:
                print(f"{escape:<36} not for this user")
    return broken


async def _try(escape: str, places: dict[Set, tuple[World, Keeper]]) -> list[str]:
    control = next(world for world, _ in places.values()).run_unconfined(escape)
    if control != "out" and escape in MAY_BE_REFUSED:
        print(f"{escape:<36} not on this machine: {MAY_BE_REFUSED[escape]} ({control})")
        return []
    broken = [] if control == "out" else [f"{escape}: its control says {control}"]
    found: dict[Set, str] = {}
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def run(each: Set) -> None:
        world, keeper = places[each]
        async with limit:
            found[each] = await world.run(keeper, escape, each.accept)

    async with trio.open_nursery() as nursery:
        for each in places:
            nursery.start_soon(run, each)
    cells, alone = [], []
    for each in places:
        said = found[each]
        is_held = said.startswith("held")
        is_started = not said.startswith(NOT_STARTED)
        cells.append("held" if is_held and is_started else "out " if is_started else "-   ")
        alone += [each.label] if is_held and is_started and len(each.means) == 1 else []
        if not is_held and (escape in each.promises() or escape in BY_THE_KEEPER):
            broken.append(f"{escape}: with {each.label} it says {said}")
    by = "the keeper" if escape in BY_THE_KEEPER else ", ".join(alone)
    print(f"{escape:<36} {control[:8]:<8} {' '.join(cells)} {by}", flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(main())
