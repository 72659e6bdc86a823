"""An audit and its history for the tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host.audit.records import HistoryCall
from host.audit.writer import Audit
from host.history.index import Bounds, HistoryIndex
from host.history.search import CallFilter, search
from tests.host.audit.kit import FIELDS


@dataclass
class Recorded:
    """A state directory with an audit, and the index of it."""

    state: Path
    bounds: Bounds = field(default_factory=Bounds)
    now: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.audit = self.state / "audit"
        self.index = self.open()

    def open(self) -> HistoryIndex:
        return HistoryIndex(self.state, self.audit, self.bounds, wall=lambda: self.now)

    def read(self) -> None:
        while self.index.read_on():
            pass

    def rows(self, **wanted: Any) -> list[HistoryCall]:
        self.read()
        return search(self.index, CallFilter(**wanted))


def call(
    audit: Audit, item: str = "create_issue", *, outcome: str = "answered", tool_error: bool = False, **fields: Any
) -> int:
    """Write a decision and, unless it is empty, its outcome; the number of the decision."""
    seq = audit.write("decision", **{**FIELDS, "verdict": "allow", "item": item, **fields})
    if outcome:
        end(audit, seq, outcome, tool_error=tool_error)
    return seq


def end(audit: Audit, seq: int, outcome: str = "answered", *, tool_error: bool = False) -> None:
    """Write the outcome of the decision with this number."""
    told = {"tool_error": True} if tool_error else {}
    audit.write("outcome", server="github", outcome=outcome, of=seq, micros=12_500, bytes=99, **told)
