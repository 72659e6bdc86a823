"""The memory of a host for one call with a long result or argument, in multiples of its length."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.bench.contenders import HTTP, STDIO, Upstream
from tests.bench.figures import Figure
from tests.bench.lanes import COLONNADE, KIB, NAMES, Calls, Lane
from tests.bench.processes import Load, pause
from tests.bench.rounds import WARM, Bench
from tests.real.running import memory_of, pids_below

LENGTH = 3584 * KIB
"""Bytes of a message that a client may send."""
MOST = {("result", HTTP): 3.0, ("result", STDIO): 3.0, ("argument", HTTP): 4.2, ("argument", STDIO): 4.2}
_GIVEN_BACK = 1.5
"""Seconds in which a host gives back what it does not use any more."""


def memory_in_flight(count: int) -> list[Figure]:
    """One call at a time, through one connection."""
    found: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        bench = Bench(stack)
        for what, transport in MOST:
            calls = Calls(connections=1, size=LENGTH) if what == "result" else Calls(connections=1, argument=LENGTH)
            lane = Lane(COLONNADE, Upstream(transport), calls)
            load, host = bench.load(lane, stack), bench.proxy(lane.contender, lane.upstream).pid
            load.run(WARM)
            found[what, transport] = [_peak(host, load) / LENGTH for _ in range(max(2, count // 4))]
    return [
        Figure(f"{what} of 3.5 MiB, {NAMES[transport]} server", "times its length", most, found[what, transport])
        for (what, transport), most in MOST.items()
    ]


def _peak(host: int, load: Load) -> float:
    """The most bytes that each process of a host takes for some calls, together."""
    pause(_GIVEN_BACK)
    workers = [pid for pid, command in pids_below(host).items() if "host.worker" in command]
    for pid in (host, *workers):
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is that from now on
    before = {pid: memory_of(pid, "VmHWM") for pid in (host, *workers)}
    load.run(WARM)
    return sum(memory_of(pid, "VmHWM") - size for pid, size in before.items())
