"""A text stream that never makes its writer wait: a thread of its own writes to the real one.

Whoever reads our log or our start-up lines may stop reading; the host must not. What does not fit is dropped.
"""

from __future__ import annotations

import queue
import threading
from typing import TextIO

MAX_QUEUED = 10_000
"""Pieces of text that wait for a slow reader; beyond that new ones are dropped."""
CLOSE_TIMEOUT = 1.0
"""Seconds in which `close` lets what waits still go out."""


class NonBlockingStream:
    """Writes text to `stream` in the background. Errors of the stream are nobody's trouble: then nobody reads it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="colonnade-output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            return

    def flush(self) -> None:
        """Every piece is flushed by itself; this is here for those who expect a stream."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def close(self) -> None:
        """Let what waits go out, within LAST_LINES seconds. What is written later is dropped with the process."""
        try:
            self._queue.put(None, timeout=CLOSE_TIMEOUT)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (text := self._queue.get()) is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                continue
