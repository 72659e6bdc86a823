"""Colonnade whose metrics are switched off by one signal and on again by another, so that one process is measured with
and without them: two processes of one tree differ by more than what metrics cost.

    python -P tests/bench/switched.py serve FILE ...     as `colonnade`; they are on at first
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from host.journal import Journal
from host.peer.peer import Peer, SendRequest
from host.telemetry import counts

ON, OFF = signal.SIGUSR2, signal.SIGUSR1
_places: list[Callable[[bool], None]] = []
"""Each sets or unsets what counts at one place."""


class SwitchedCounts(counts.HostCounts):
    def __init__(self, journal: Journal, **options: Any) -> None:
        before = len(journal._readers)
        super().__init__(journal, **options)
        own = journal._readers[before:]

        def set_journal(is_on: bool) -> None:
            journal.observer = self if is_on else None
            others = [each for each in journal._readers if each not in own]
            journal._readers[:] = [*others, *own] if is_on else others
            journal._readers_of.clear()

        _places.append(set_journal)

    def sending(self, spec: Any, peer: Peer[Any], send: SendRequest) -> SendRequest:
        found = super().sending(spec, peer, send)
        watch = peer._outstanding.watch

        def set_watch(is_on: bool) -> None:
            peer._outstanding.watch = watch if is_on else None

        _places.append(set_watch)
        return found


def switch(signum: int, _: object) -> None:
    for each in _places:
        each(signum == ON)


if __name__ == "__main__":
    counts.HostCounts = SwitchedCounts  # type: ignore[misc]
    for each in (ON, OFF):
        signal.signal(each, switch)
    from host.__main__ import main

    main()
