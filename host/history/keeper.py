"""The task of a host that keeps the index up to date, in a worker thread, a batch at a time.

Nothing of a call goes through here: what is read are the files of the audit. A batch takes some tens of milliseconds,
most of them outside the interpreter, and the task pauses for longer than it worked, so that a long audit which is read
for the first time leaves room for calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from config import HistorySpec
from host.audit.records import HistoryCall
from host.history.index import Bounds, HistoryIndex, HistoryUnavailable
from host.history.search import CallFilter, call_named, records_of, search
from host.journal import Event, HistoryFailed, InternalError
from host.storage.directory import State

READ_INTERVAL = 2.0
"""Seconds between two looks at the audit, where nothing is left to be read."""
MOST_OF_TIME = 0.25
"""Share of the time in which a batch is worked on, while some are left."""
TRIM_INTERVAL = 60.0
"""Seconds between two looks whether something is too old, or too much."""
MAX_PAUSE = 600.0
"""Seconds to the next look after mistakes of Colonnade, of which each doubles the pause up to this."""
MISTAKE = "the history is not kept, by a mistake of Colonnade (see its log); calls go on, and it is tried again later"


class HistoryKeeper:
    """Reads on in the audit until it is stopped. Searches wait for a batch at most.

    Args:
        note: takes the event that the index cannot be kept, once until it can again; or was damaged.
    """

    def __init__(self, state: State, spec: HistorySpec, note: Callable[[Event], object]) -> None:
        self.problem = ""
        """The reason why the newest calls are missing; empty while they are not."""
        self.behind = 0
        """Bytes of the audit that are still to be read."""
        self._audit = state.audit
        self._index = HistoryIndex(state.path, state.audit, Bounds(spec.keep, spec.max))
        self._note = note
        self._scope = trio.CancelScope()
        self._next_trim = 0.0
        self._rebuilds = 0
        """The number of rebuilds of the index that was told."""
        self._mistakes = 0
        """The number of mistakes since nothing was left to be read."""
        self._is_doubtful = False
        """Whether the index is to be built again."""

    def follow(self, spec: HistorySpec) -> None:
        """Keep as much as this says, from the next look on."""
        self._index.bounds = Bounds(spec.keep, spec.max)

    def stop(self) -> None:
        """End the task. The index stays."""
        self._scope.cancel()

    async def calls(self, wanted: CallFilter) -> tuple[list[HistoryCall], list[str]]:
        """The calls that are wanted, the newest first; and sentences on what is missing. The audit is read on
        before, so nothing is missing in silence: neither the newest calls, nor those of a damaged index.

        Raises:
            HistoryUnavailable: see `HistoryIndex.select`.
        """
        return await trio.to_thread.run_sync(self._calls, wanted)

    def _calls(self, wanted: CallFilter) -> tuple[list[HistoryCall], list[str]]:
        missing = []
        try:
            self.behind = self._index.read_on()
            if self.behind:
                missing.append(f"{self.behind / 1024**2:.1f} MiB of the audit are still to be read")
        except HistoryUnavailable as problem:
            missing.append(str(problem))
        rows = search(self._index, wanted)
        return rows, [*missing, *self._index.remarks()]

    async def call(
        self, id: str, place: int | None, configs: Collection[str], only: str | None = None
    ) -> tuple[HistoryCall, list[dict[str, object]]] | None:
        """The call of this name, of a host of these configurations, and its records of the audit: none if they are not
        there any more. `only`: see `CallFilter`.

        Raises:
            HistoryUnavailable: see `HistoryIndex.select`.
            OSError: the file cannot be read.
        """
        row = await trio.to_thread.run_sync(call_named, self._index, id, place, configs, only)
        if row is None:
            return None
        return row, await trio.to_thread.run_sync(records_of, self._audit, row)

    async def run(self) -> None:
        """Keep the index until `stop`. No mistake of Colonnade ends this, since calls do not need it."""
        with self._scope:
            try:
                while True:
                    pause = await self.look()
                    await trio.sleep(pause)
            finally:
                with trio.CancelScope(shield=True):  # a batch has ended: threads are waited for
                    await trio.to_thread.run_sync(self._index.close)

    async def look(self) -> float:
        """Read a batch; the seconds to the next look."""
        began = trio.current_time()
        try:
            if self._is_doubtful:
                await trio.to_thread.run_sync(self._index.rebuild)
                self._is_doubtful = False
            self.behind = await trio.to_thread.run_sync(self._index.read_on)
            if began >= self._next_trim:
                await trio.to_thread.run_sync(self._index.trim)
                self._next_trim = began + TRIM_INTERVAL
        except HistoryUnavailable as problem:
            self._tell(str(problem))
            return READ_INTERVAL
        except Exception as problem:  # noqa: BLE001 - it must not end the host
            if not self._mistakes:  # what the index holds may be the cause; if it is the audit, that does not help
                self._note(InternalError("the history", problem))
                self._is_doubtful = True
            self._mistakes += 1
            self.problem = MISTAKE
            return min(READ_INTERVAL * 2.0 ** min(self._mistakes, 10), MAX_PAUSE)
        if not self.behind:
            self._mistakes = 0
        if not self._mistakes:
            self._tell("")
        if self._index.rebuilds > self._rebuilds:
            self._rebuilds = self._index.rebuilds
            self._note(HistoryFailed("its index was damaged, and is built again from the audit"))
        return (trio.current_time() - began) * (1 / MOST_OF_TIME - 1) if self.behind else READ_INTERVAL

    def _tell(self, problem: str) -> None:
        if problem and not self.problem:
            self._note(HistoryFailed(problem))
        self.problem = problem
