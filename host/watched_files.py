"""Watching files: editors replace them, write them in several steps, or reach them by links.

Changes are noticed at once where the system tells of them, and by looking every few seconds where it does not: on
network file systems, in folders that were made anew, or when the system has no more watches to give.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, closing
from pathlib import Path

import trio
from watchfiles import watch

from config.file_state import MISSING, UNREADABLE, file_state

STEP_MS = 200
"""Milliseconds for which the watching thread collects changes, and after which it looks whether it is to end. With 50,
these looks were half of what an idle host does."""
SETTLED = 0.3
"""Seconds without a further change after which files count as saved."""
MAX_SETTLING = 3.0
"""Seconds after which files that go on changing are taken as they are."""
LOOK_INTERVAL = 5.0
"""Seconds between two looks at the files when nothing was told of them."""
REST = 20
"""Pause after a change, as a multiple of the time that it took to take it over, at most LOOK_INTERVAL. Some hosts write
megabytes every few seconds, and reading those delays everything else."""
_MAX_LINKS = 40
"""As many as the system itself follows."""


async def watch_files(
    source: Path, files: Callable[[], Mapping[Path, str]], on_saved: Callable[[], Awaitable[object]]
) -> None:
    """Call `on_saved` whenever one of the files has changed, until cancelled. While `source` is missing, nothing counts
    as saved.

    Args:
        files: the files to watch at present, also folders and files that are missing, each with its state
            (`config.file_state`) when it was read.
    """
    stop = trio.Event()
    known: dict[Path, str] = {}

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stop.set()  # the thread that waits for changes cannot be cancelled; it looks at this every STEP_MS

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        while True:
            folders = await trio.to_thread.run_sync(_folders, tuple(files()))
            async with aclosing(_changes(folders, stop)) as changes:
                async for _ in changes:
                    known = {path: known.get(path, state) for path, state in files().items()}
                    states = await _settled_states(known)
                    if states != known and states[source] not in (MISSING, UNREADABLE):
                        known = states
                        began = trio.current_time()
                        await on_saved()
                        await trio.sleep(min(REST * (trio.current_time() - began), LOOK_INTERVAL))
                    if await trio.to_thread.run_sync(_folders, tuple(files())) != folders:
                        break


async def _changes(folders: frozenset[Path], stop: trio.Event) -> AsyncGenerator[None, None]:
    """Yields when something may have changed in the folders. The folders are watched, not the file: most editors put
    another file in its place."""
    try:
        # Not `awatch`: for its task groups anyio loads what it has for trio, which holds the loop for 35 ms.
        watching = watch(
            *folders,
            watch_filter=None,
            step=STEP_MS,
            rust_timeout=int(LOOK_INTERVAL * 1000),
            yield_on_timeout=True,
            recursive=False,
            stop_event=stop,
        )
        with closing(watching):
            while await trio.to_thread.run_sync(next, watching, None) is not None:
                yield
    except (OSError, RuntimeError):  # a folder is gone, or the system has no more watches to give
        await trio.sleep(LOOK_INTERVAL)
        yield


async def _settled_states(known: Mapping[Path, str]) -> dict[Path, str]:
    """The states of the files, once they do not change any more."""
    states = await trio.to_thread.run_sync(_states, tuple(known))
    with trio.move_on_after(MAX_SETTLING):
        while states != known:
            await trio.sleep(SETTLED)
            before, states = states, await trio.to_thread.run_sync(_states, tuple(known))
            if states == before:
                break
    return states


def _states(files: Iterable[Path]) -> dict[Path, str]:
    return {path: file_state(path) for path in files}


def _folders(files: Iterable[Path]) -> frozenset[Path]:
    """The folders in which a change of the files shows: their own and those of all files that they link to, and, where
    a folder is missing, the nearest one above."""
    found: set[Path] = set()
    for path in files:
        each = Path(os.path.abspath(path))
        found |= {each, each.parent} if os.path.isdir(each) else {each.parent}
        for _ in range(_MAX_LINKS):
            try:
                each = each.parent / os.readlink(each)
            except (OSError, ValueError):
                break
            found.add(each.parent)
    return frozenset(map(_nearest, {*found, *(Path(os.path.realpath(folder)) for folder in found)}))


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above that can be watched."""
    above = (folder, *folder.parents)
    return next((each for each in above if os.path.isdir(each) and os.access(each, os.R_OK)), folder)
