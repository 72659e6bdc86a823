"""The history of a running host: kept while its configuration says so. Its modules are imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from config import AuditPlace, Config
from host.audit.records import HistoryCall
from host.journal import Journal
from host.storage.directory import State
from host.storage.store import StateError

if TYPE_CHECKING:
    from host.history.keeper import HistoryKeeper

OFF = "this host keeps no history: write history: {} in its file, or search with colonnade history"
STREAMED = "there is no history: the audit goes to standard output (audit.to: stdout), where it is collected"


class HostHistory:
    """Begins and ends the keeping of the history as the configuration says, in this nursery.

    Args:
        has_files: the audit is in files.
    """

    def __init__(self, state: State, journal: Journal, nursery: trio.Nursery, *, has_files: bool) -> None:
        self.keeper: HistoryKeeper | None = None
        """None while no history is kept."""
        self._state = state
        self._journal = journal
        self._nursery = nursery
        self._has_files = has_files

    @property
    def problem(self) -> str:
        """The reason why the history is not complete; empty if none is known."""
        return "" if self.keeper is None else self.keeper.problem

    async def calls(
        self, config: str, since: float | None, wanted: Mapping[str, Any]
    ) -> tuple[list[HistoryCall], list[str]]:
        """The calls of hosts of a configuration, as the audit names it; see `HistoryKeeper.calls`.

        Args:
            since: Unix seconds.
            wanted: attributes of `CallFilter`.

        Raises:
            StateError: no history is kept, or it cannot be searched.
        """
        keeper = self._kept()
        from host.history.index import as_time
        from host.history.search import CallFilter

        begin = None if since is None else as_time(since)
        return await keeper.calls(CallFilter(**wanted, configs=[config], since=begin))

    async def call(
        self, config: str, id: str, place: int | None = None, only: str | None = None
    ) -> tuple[HistoryCall, list[dict[str, Any]]]:
        """A call of hosts of a configuration, and its records; see `HistoryKeeper.call`.

        Raises:
            StateError: no history is kept, there is no such call, or it cannot be read.
        """
        try:
            found = await self._kept().call(id, place, [config], only)
        except OSError as problem:
            raise StateError(f"the audit cannot be read: {problem.strerror}") from problem
        if found is None:
            raise StateError(f"the history has no call {id} (any more)")
        return found

    def _kept(self) -> HistoryKeeper:
        if self.keeper is None:
            raise StateError(OFF if self._has_files else STREAMED)
        return self.keeper

    def follow(self, config: Config) -> None:
        """Do as this configuration says."""
        spec = config.history if config.audit.to is AuditPlace.FILES and self._has_files else None
        if spec is None:
            if self.keeper is not None:
                self.keeper.stop()
            self.keeper = None
            return
        from host.history.keeper import HistoryKeeper

        if self.keeper is None:
            self.keeper = HistoryKeeper(self._state, spec, self._journal.note)
            self._nursery.start_soon(self.keeper.run)
        else:
            self.keeper.follow(spec)
