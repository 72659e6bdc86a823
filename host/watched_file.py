"""Watching one file: editors replace it, write it in several steps, or reach it by a link."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

import trio
from watchfiles import awatch

DEBOUNCE_MS = 300
"""Milliseconds without a further change after which a file counts as saved."""
STEP_MS = 50


async def watch_file(path: Path, on_saved: Callable[[], Awaitable[None]]) -> None:
    """Call `on_saved` whenever the content of the file has changed, until cancelled.

    The folders of the file are watched, not the file itself: most editors put another file in its place. A file that is
    missing is not saved.
    """
    known, stop = _digest(path), trio.Event()

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            stop.set()  # the thread that waits for changes cannot be cancelled; it looks at this every STEP_MS

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        watching = awatch(
            *_folders(path), watch_filter=None, debounce=DEBOUNCE_MS, step=STEP_MS, recursive=False, stop_event=stop
        )
        async for _ in watching:
            digest = _digest(path)
            if digest is not None and digest != known:
                known = digest
                await on_saved()


def _folders(path: Path) -> set[Path]:
    """The folder of the file, and that of the file that it links to."""
    return {path.absolute().parent, Path(os.path.realpath(path)).parent}


def _digest(path: Path) -> bytes | None:
    try:
        return sha256(path.read_bytes()).digest()
    except OSError:
        return None
