"""The memory of a host for each stream that is open and idle."""

from __future__ import annotations

from contextlib import ExitStack

from tests.bench.contenders import HANDSHAKE, HTTP, STATELESS, Upstream
from tests.bench.figures import Figure
from tests.bench.lanes import COLONNADE, KIB, Calls, Lane
from tests.bench.processes import pause
from tests.bench.rounds import SETTLE, Bench
from tests.real.running import memory_of

MOST = {STATELESS: 15.0, HANDSHAKE: 20.0}
"""KiB that a stream may take; with a handshake, also its session."""
_OWN = "RssAnon"
"""The memory of a process that is neither shared nor of files."""
_FEW, _MANY = 20, 200
"""Streams of each kind: those that are open before, so that everything is made that is there once, and the others."""


def idle_memory(count: int) -> list[Figure]:
    """Each sample is of a host of its own: freed memory would be used again."""
    found: dict[str, list[float]] = {era: [] for era in MOST}
    for _ in range(max(2, count // 4)):
        with ExitStack() as stack:
            bench = Bench(stack)
            for streams in (_FEW, _MANY):
                for era, samples in found.items():
                    lane = Lane(COLONNADE, Upstream(HTTP), Calls(era, connections=1, idle=streams))
                    host = bench.proxy(lane.contender, lane.upstream).pid
                    before = memory_of(host, _OWN)
                    bench.load(lane, stack)
                    pause(SETTLE)
                    if streams == _MANY:
                        samples.append((memory_of(host, _OWN) - before) / KIB / _MANY)
    names = {STATELESS: "stateless stream", HANDSHAKE: "session with its stream"}
    return [Figure(f"an idle {names[era]}", "KiB of memory", most, found[era]) for era, most in MOST.items()]
