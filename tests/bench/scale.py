"""Follows measured costs to a number of sessions and servers, and prints what saturates first.

    .venv/bin/python -m tests.bench.scale     a million sessions, 10,000 servers; see docs/scale.md
    ... --sessions N --servers N --calls N    another load; calls are a second in all
    ... --streams SHARE                       the part of the sessions that have a stream
    ... --per-process N --memory MIB          another size of a process
    ... --write                               writes what is printed into docs/scale.md

The costs are those of tests/bench/units.json (`make scale` measures them) and, of a call, of docs/performance.md
(`make bench`). Nothing here is measured at that size.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from config import DEFAULT_CAPACITY, Capacity
from tests.bench.units import FILE

DOCS = Path(__file__).parents[2] / "docs"
PERFORMANCE, PAGE = DOCS / "performance.md", DOCS / "scale.md"
BUSY = 0.6
"""The part of a processor that a process may use: above it, the time that calls wait for each other grows fast."""
SESSION_LIFE = 8 * 3600
"""Seconds after which a session is followed by another one."""
AUDIT_BYTES = 2 * 450
"""Of the two records of a call."""


class Load(NamedTuple):
    """What all processes have to carry together. `calls` are a second; `streams` is the share of sessions with one."""

    sessions: int
    servers: int
    calls: float
    streams: float


class Size(NamedTuple):
    """What one process may have. `memory` is in bytes."""

    capacity: Capacity
    memory: float


class Bound(NamedTuple):
    """The sessions that one process can hold because of one resource. Infinite if the resource does not limit them."""

    resource: str
    sessions: float
    why: str


def bounds(load: Load, size: Size, units: Mapping[str, float], *, lazy: bool = True) -> list[Bound]:
    """What limits the sessions of one process, the lowest first."""
    kind = "remembered" if lazy else "connected"
    fixed = units["host_memory"] + load.servers * units[f"{kind}_server_memory"]
    each = units["session_memory"] + load.streams * units["stream_memory"]
    calls = load.calls / load.sessions
    # Without affinity, nearly every call comes in at another process than its session's.
    busy = calls * (units["call_processor"] + units["forwarded_processor"]) + units["session_processor"] / SESSION_LIFE
    capacity = size.capacity
    found = [
        Bound("capacity.sessions", capacity.sessions, f"{capacity.sessions:,} sessions"),
        # Half of the streams may be of one kind (host/downstream/http/open_streams.py).
        Bound(
            "capacity.streams",
            _per(capacity.most_streams / 2, load.streams),
            f"{capacity.most_streams:,} streams, half of them of one kind",
        ),
        Bound(
            "memory",
            max(0.0, size.memory - fixed) / each,
            f"{_size(size.memory)}, of which {_size(fixed)} for the host and {load.servers:,} servers; "
            f"{_size(each)} a session",
        ),
        Bound(
            "processor",
            BUSY / busy,
            f"{BUSY:.0%} of one processor; {calls:g} calls a second and session, each forwarded",
        ),
    ]
    return sorted(found, key=lambda bound: bound.sessions)


def shared(load: Load, processes: int, units: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """What all processes together need of something, in words."""
    own, passing = (load.calls * units[f"{what}_processor"] for what in ("call", "forwarded"))
    share = (processes - 1) / processes
    yield "calls", f"{load.calls:,.0f} a second, {own:.1f} processors; {own + passing * share:.1f} without affinity"
    yield "new sessions", f"{load.sessions / SESSION_LIFE:,.0f} a second"
    yield "connections at each server", f"{processes:,} if each process uses it; {processes * load.servers:,} in all"
    eager, lazy = (units[f"{kind}_server_processor"] * load.servers for kind in ("connected", "remembered"))
    yield "a start of one process", f"{eager:,.0f} s of its processor if it connects; {lazy:,.0f} s with start: lazy"
    definitions = units["remembered_server_memory"] * load.servers
    yield "definitions in memory", f"{_size(definitions)} in each process, {_size(definitions * processes)} in all"
    engine = {
        "processes": processes * units["engine_process"],
        "sessions": load.sessions / SESSION_LIFE * units["engine_session"],
    }
    told = ", ".join(f"{what} {share:.1%}" for what, share in engine.items())
    yield "PostgreSQL", f"{sum(engine.values()):.1%} of one processor ({told}), and no part of a call"
    yield "audit", f"{_size(load.calls * AUDIT_BYTES)} a second, {_size(load.calls * AUDIT_BYTES * 86400)} a day"


def read_units() -> dict[str, float]:
    """The measured costs: bytes, and seconds of processor time."""
    units = {name: float(unit["value"]) for name, unit in json.loads(FILE.read_text())["units"].items()}
    row = re.search(r"\| Colonnade, handshake client and server \| ([\d,.]+) ", PERFORMANCE.read_text())
    assert row is not None, "docs/performance.md has no figure of a call"
    return units | {"call_processor": float(row[1].replace(",", "")) / 1e6}


def _per(count: float, share: float) -> float:
    return count / share if share else math.inf


def _size(count: float) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    at = min(len(units) - 1, max(0, int(math.log(max(count, 1), 1024))))
    return f"{count / 1024**at:,.1f} {units[at]}"


def report(load: Load, per_process: int, memory: float, units: Mapping[str, float]) -> Iterator[str]:
    """The lines that are printed."""
    sizes = {
        "the defaults": Size(DEFAULT_CAPACITY, memory),
        f"{per_process:,} sessions a process": Size(
            Capacity(sessions=per_process, connections=min(100_000, math.ceil(per_process * 2.5))), memory
        ),
    }
    yield f"{load.sessions:,} sessions, {load.servers:,} servers, {load.calls:,.0f} calls a second, " + (
        f"{load.streams:.0%} of the sessions with a stream; {_size(memory)} of memory a process"
    )
    found: list[Bound] = []
    for name, size in sizes.items():
        yield f"\nWith {name} and start: lazy: sessions of a process, processes, and why"
        found = bounds(load, size, units)
        for bound in found:
            yield f"  {bound.resource:<18} {_count(bound.sessions):>9}  {_processes(load, bound):>12}  {bound.why}"
        yield f"  saturates first: {found[0].resource}"
    needed = _processes(load, found[0])
    eager = bounds(load, size, units, lazy=False)
    yield f"  and if each process connects to each server: {eager[0].resource}, {_processes(load, eager[0])} processes"
    if needed != "no number of":
        yield f"\n{needed} such processes need together:"
        for what, need in shared(load, int(needed.replace(",", "")), units):
            yield f"  {what:<28} {need}"


def with_report(page: str, lines: Iterable[str]) -> str:
    """The page with these lines, and the measured costs as a table, in their places."""
    units = json.loads(FILE.read_text())
    rows = [f"| {unit['what']} | {_shown(unit)} |" for unit in units["units"].values()]
    table = [f"Measured with {units['machine']}.", "", "| | costs |", "|---|---:|", *rows]
    texts = {"make scale": ["", *table, ""], "tests.bench.scale": ["", "```text", *lines, "```", ""]}
    for mark, text in texts.items():
        begin, end = f"<!-- from {mark} -->\n", f"<!-- end of {mark} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + "\n".join(text) + "\n" + end + rest.partition(end)[2]
    return page


def _shown(unit: Mapping[str, Any]) -> str:
    value = float(unit["value"])
    return _size(value) if unit["unit"] == "bytes" else f"{value * 1e6:,.0f} µs of processor time"


def _count(sessions: float) -> str:
    return "any" if math.isinf(sessions) else f"{sessions:,.0f}"


def _processes(load: Load, bound: Bound) -> str:
    return f"{math.ceil(load.sessions / bound.sessions):,}" if bound.sessions >= 1 else "no number of"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale")
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--servers", type=int, default=10_000)
    parser.add_argument("--calls", type=float, default=10_000.0, help="a second, in all")
    parser.add_argument("--streams", type=float, default=1.0, help="the share of sessions with a standing stream")
    parser.add_argument("--per-process", type=int, default=20_000, help="sessions that a process shall hold")
    parser.add_argument("--memory", type=float, default=4096.0, help="MiB that a process may have")
    parser.add_argument("--write", action="store_true", help="write it into docs/scale.md")
    given = parser.parse_args()
    load = Load(given.sessions, given.servers, given.calls, given.streams)
    lines = list(report(load, given.per_process, given.memory * 1024**2, read_units()))
    print("\n".join(lines))
    if given.write:
        PAGE.write_text(with_report(PAGE.read_text(), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
