"""Watching one file: editors replace it, write it in several steps, or reach it by links.

Changes are noticed at once where the system tells of them, and by looking every few seconds where it does not: on
network file systems, in folders that were made anew, or when the system has no more watches to give.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path

import trio
from watchfiles import awatch

STEP_MS = 50
SETTLED = 0.3
"""Seconds without a further change after which a file counts as saved."""
MAX_SETTLING = 3.0
"""Seconds after which a file that goes on changing is taken as it is."""
LOOK_INTERVAL = 5.0
"""Seconds between two looks at the file when nothing was told of it."""
MAX_BYTES = 16 * 1024 * 1024
"""Bytes by which two contents are told apart."""
_MAX_LINKS = 40


async def watch_file(path: Path, known: str, on_saved: Callable[[], Awaitable[object]]) -> None:
    """Call `on_saved` whenever the content of the file has changed, until cancelled. A file that is missing is not
    saved.

    Args:
        known: digest (SHA-256, in hexadecimal) of the content that was read last.
    """
    stop = trio.Event()

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stop.set()  # the thread that waits for changes cannot be cancelled; it looks at this every STEP_MS

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        while True:
            folders = await trio.to_thread.run_sync(_folders, path)
            async with aclosing(_changes(folders, stop)) as changes:
                async for _ in changes:
                    digest = await _settled_digest(path, known)
                    if digest not in (None, known):
                        known = digest
                        await on_saved()
                    if await trio.to_thread.run_sync(_folders, path) != folders:
                        break


async def _changes(folders: frozenset[Path], stop: trio.Event) -> AsyncGenerator[None, None]:
    """Yields when something may have changed in the folders. The folders are watched, not the file: most editors put
    another file in its place."""
    try:
        watching = awatch(
            *folders,
            watch_filter=None,
            step=STEP_MS,
            rust_timeout=int(LOOK_INTERVAL * 1000),
            yield_on_timeout=True,
            recursive=False,
            stop_event=stop,
        )
        async with aclosing(watching):
            async for _ in watching:
                yield
    except (OSError, RuntimeError):  # a folder is gone, or the system has no more watches to give
        await trio.sleep(LOOK_INTERVAL)
        yield


async def _settled_digest(path: Path, known: str) -> str | None:
    """The digest of the content, once it does not change any more; None while there is no file."""
    digest = await trio.to_thread.run_sync(_digest, path)
    with trio.move_on_after(MAX_SETTLING):
        while digest != known:
            await trio.sleep(SETTLED)
            before, digest = digest, await trio.to_thread.run_sync(_digest, path)
            if digest == before:
                break
    return digest


def _folders(path: Path) -> frozenset[Path]:
    """The folder of the file, and those of all files that it links to."""
    each = Path(os.path.abspath(path))
    found = {each.parent}
    for _ in range(_MAX_LINKS):
        try:
            each = each.parent / os.readlink(each)
        except OSError:
            break
        found.add(each.parent)
    return frozenset({*found, *(Path(os.path.realpath(folder)) for folder in found)})


def _digest(path: Path) -> str | None:
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return None
        with path.open("rb") as file:
            return sha256(file.read(MAX_BYTES)).hexdigest()
    except OSError:
        return None
