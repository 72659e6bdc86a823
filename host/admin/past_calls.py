"""The calls of the past as the admin API gives them: all of them to the owner of the host, and to a caller that signs
in at the console with its access token what the configuration lets it see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from config import Config, HistoryAccess
from host.admin.schema import NO_HOST, AdminError, HistoryList, HistoryReader, HistoryRecords
from host.history.entrance import HostHistory
from host.policy.decision_log import shorten
from host.sanitize import visible
from host.storage.store import StateError

_TOLD = (
    *("id", "place", "time", "what", "caller", "client", "agent", "server", "kind", "item", "method", "verdict"),
    *("outcome", "tool_error", "seconds", "received", "count", "pending"),
)
"""The members of its own calls that a caller sees: what it has sent and was told. The rule, say, is none of these, and
neither is the size of the arguments, which are those that the server got."""
_TOLD_RECORD = (
    *("kind", "ts", "server", "prim", "item", "method", "principal", "client", "agent", "verdict", "answer"),
    *("outcome", "tool_error", "micros", "bytes", "result"),
)
"""Likewise of a record. Its arguments may have what is hidden from the caller. With its hash and that of the record
before, guesses at all of that could be tried out."""
_INCOMPLETE = "some calls may be missing here: the owner of the host sees why"
_UNAVAILABLE = "the calls cannot be shown now: search in a shorter time, or ask the owner of the host"


class PastCalls:
    """Implements `host.admin.schema.HistoryApi`.

    Args:
        history: gives the history of the running host; None where none runs.
        config: gives the configuration in effect.
        only: the name of the access token whose calls alone are shown, as far as its caller is told of them; None for
            all.
    """

    def __init__(
        self, history: Callable[[], HostHistory | None], config: Callable[[], Config], only: str | None = None
    ) -> None:
        self._history = history
        self._config = config
        self._only = only

    async def past_calls(self, since: float | None, wanted: Mapping[str, Any]) -> HistoryList:
        with self._searched() as history:
            calls, missing = await history.calls(self._name(), since, {**wanted, "only": self._only})
        if self._only is not None:
            return {"calls": [_told(call) for call in calls], "missing": [_INCOMPLETE] if missing else []}
        return {"calls": calls, "missing": [visible(each) for each in missing]}

    async def past_call(self, id: str, place: int | None) -> HistoryRecords:
        with self._searched() as history:
            call, records = await history.call(self._name(), id, place, self._only)
        if self._only is not None:
            kept = [{name: each[name] for name in _TOLD_RECORD if name in each} for each in records]
            return {"call": _told(call), "records": kept}
        return {"call": call, "records": records}

    @contextmanager
    def _searched(self) -> Iterator[HostHistory]:
        """The history, for the block, in which the reason why it cannot be searched is an AdminError."""
        history = self._history()
        if history is None:
            raise AdminError(NO_HOST)
        try:
            yield history
        except StateError as problem:
            raise AdminError(str(problem) if self._only is None else _UNAVAILABLE) from None

    def _name(self) -> str:
        """The name that the audit has for the configuration."""
        return visible(shorten(str(self._config().source)))


def reader_of(
    token: bytes, history: Callable[[], HostHistory | None], config: Callable[[], Config]
) -> HistoryReader | None:
    """See `host.admin.schema.AdminApi.history_reader`."""
    present = config()
    # All are compared, so that the duration reveals nothing about any of them.
    digests = {name: sha256(each.reveal().encode("latin-1")).digest() for name, each in present.listen.tokens.items()}
    names = {name for name, digest in digests.items() if compare_digest(digest, token)}
    for caller, spec in present.callers.items():
        if spec.token in names and spec.history is not None:
            only = None if spec.history is HistoryAccess.ALL else spec.token
            return HistoryReader(caller, PastCalls(history, config, only), sees_all=only is None)
    return None


def _told(call: Mapping[str, Any]) -> Any:
    """A call with the members that its caller is told; the others are empty."""
    empty = {"file": "", "seq": 0, "config": "", "program": "", "view": "", "rule": "", "approver": "", "sent": None}
    return {**{name: call[name] for name in _TOLD}, **empty}
