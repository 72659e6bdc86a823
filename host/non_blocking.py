"""A text stream whose writer never waits: a thread writes to the real stream.

The reader of our log or start-up lines may stop reading; the host must not stop. Text that does not fit is dropped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class WrittenStream(Protocol):
    """The output of the thread."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


MAX_QUEUED = 10_000
"""Pieces of text that wait for a slow reader; further ones are dropped."""
CLOSE_TIMEOUT = 1.0
"""Seconds for which `close` still writes queued text."""


class NonBlockingStream:
    """Writes text to `stream` in the background. Errors of the stream are ignored: nobody reads it any more."""

    def __init__(self, stream: WrittenStream) -> None:
        self._stream = stream
        self._queue: queue.Queue[str | Callable[[], None] | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="colonnade-output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        with suppress(queue.Full):
            self._queue.put_nowait(text)

    def call(self, function: Callable[[], None]) -> None:
        """Call the function in the thread that writes, behind the text that waits. It must not raise."""
        with suppress(queue.Full):
            self._queue.put_nowait(function)

    def flush(self) -> None:
        """No effect: every piece is flushed when it is written."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def close(self) -> None:
        """Write the queued text, for at most CLOSE_TIMEOUT seconds. Later text is lost with the process."""
        try:
            self._queue.put(None, timeout=CLOSE_TIMEOUT)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (text := self._queue.get()) is not None:
            if not isinstance(text, str):
                text()
                continue
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                continue
