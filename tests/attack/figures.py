"""Figures of one attack, the criteria they are held against, and the table. Pure: no clock, no process.

Latencies are in seconds and counted from the moment at which a call was due, not from the moment at which it could be
sent: a host that stands still for two seconds delays every call that was due in them (otherwise a frozen host would
cost a closed loop a single sample).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MIB = 1 << 20
P99_RATIO = 3.0
"""The p99 of the good client beside the attack, as a multiple of that beside the same processes busy elsewhere. A p99
of a few hundred calls scatters: where the client was slower alone, which it cannot be, that is the better figure."""
LONGEST_PASS = 0.1
"""Seconds of processor time that one pass of the host's loop may take."""
MEMORY_BUDGET = 256 * MIB
MEMORY_MARGIN = 1.25
"""At its peak the host may have (idle + budget) times this."""
RETURN_SHARE, RETURN_BYTES = 0.3, 40 * MIB
"""After the attack the host may have this share, or this many bytes, more than before."""
LEAST_SAMPLES = 0.9
"""Share of the calls of a phase that must have been due before its time limit."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that `share` of them do not exceed (nearest rank); nan without values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True)
class Calls:
    """Calls of the good client in one phase.

    Args:
        latencies: one for each call that was due, failed calls and overdue calls included.
        errors: one sentence for each call that failed.
    """

    latencies: Sequence[float]
    errors: Sequence[str] = ()

    @property
    def p50(self) -> float:
        return percentile(self.latencies, 0.50)

    @property
    def p99(self) -> float:
        return percentile(self.latencies, 0.99)


@dataclass(frozen=True)
class Memory:
    """Resident bytes of the host's process."""

    before: int
    peak: int
    after: int

    def failures(self) -> list[str]:
        found = []
        most = (self.before + MEMORY_BUDGET) * MEMORY_MARGIN
        if self.peak > most:
            found.append(f"memory: peak {_mib(self.peak)}, at most {_mib(most)}")
        if not self.has_returned(self.before, self.after):
            found.append(f"memory: {_mib(self.after)} after the attack, {_mib(self.before)} before it")
        return found

    @staticmethod
    def has_returned(before: int, now: int) -> bool:
        return now <= max(before * (1 + RETURN_SHARE), before + RETURN_BYTES)


@dataclass(frozen=True)
class Passes:
    """Passes of the host's loop, in seconds of processor time."""

    longest: float = 0.0
    count: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.count:,} passes of the loop, {_ms(self.seconds / max(1, self.count))} ms on the average"


def read_passes(lines: Sequence[str], since: float, until: float) -> Passes:
    """The part of a report of measured_host.py between two moments."""
    longest, totals = 0.0, []
    for line in lines:
        end, *fields = line.split()
        if fields and since <= float(end) <= until:
            if len(fields) == 1:
                longest = max(longest, float(fields[0]))
            else:
                totals.append((float(fields[0]), int(fields[1])))
    if not totals:
        return Passes(longest)
    (first_seconds, first_count), (last_seconds, last_count) = totals[0], totals[-1]
    return Passes(longest, last_count - first_count, last_seconds - first_seconds)


@dataclass(frozen=True)
class Outcome:
    """Everything that was measured of one attack. A phase that the attack does not have is None.

    Args:
        wanted: how many calls of the good client each phase was to have.
        alone, elsewhere, beside: the good client without hostile processes, beside the same processes attacking
            another host, and beside the attack.
        passes: those of the host's loop during the attack.
        exits: each unexpected end of the host, as a sentence.
        tracebacks: how many the host wrote to its log.
        crossed: each boundary that the attack crossed, as a sentence.
        broken: each limit of the host that the attack exceeded, and each proof that there was no attack at all.
        remarks: what else was counted.
        again: whether this is the second measurement, after one that failed by its timing.
    """

    attack: str
    wanted: int
    alone: Calls | None = None
    elsewhere: Calls | None = None
    beside: Calls | None = None
    passes: Passes = Passes()
    memory: Memory | None = None
    exits: Sequence[str] = ()
    tracebacks: int = 0
    crossed: Sequence[str] = ()
    broken: Sequence[str] = ()
    remarks: Sequence[str] = field(default_factory=list)
    again: bool = False

    @property
    def ratio(self) -> float:
        """p99 beside the attack over p99 beside the same processes busy elsewhere; nan if one was not measured."""
        if self.beside is None or self.elsewhere is None:
            return math.nan
        alone = 0.0 if self.alone is None else self.alone.p99
        return self.beside.p99 / max(self.elsewhere.p99, alone)

    def timing_failures(self) -> list[str]:
        """Criteria that a busy machine alone could fail."""
        found = []
        if self.beside is not None and self.elsewhere is not None and not self.ratio <= P99_RATIO:
            found.append(f"p99 is {self.ratio:.1f} times that beside busy processes, at most {P99_RATIO:g}")
        if self.passes.longest > LONGEST_PASS:
            found.append(f"a pass of the loop took {_ms(self.passes.longest)} ms, at most {_ms(LONGEST_PASS)}")
        return found

    def failures(self) -> list[str]:
        """Every criterion that is not met, as a sentence; none if the attack passes."""
        found = [*self.exits, *self.crossed, *self.broken]
        if self.tracebacks:
            found.append(f"{self.tracebacks} tracebacks in the log")
        for phase, calls in (("alone", self.alone), ("elsewhere", self.elsewhere), ("beside", self.beside)):
            if calls is None:
                continue
            if len(calls.latencies) < LEAST_SAMPLES * self.wanted:
                found.append(f"{phase}: only {len(calls.latencies)} of {self.wanted} calls were due")
            if calls.errors:
                found.append(f"{phase}: {len(calls.errors)} errors of the good client ({calls.errors[0]})")
        found += self.timing_failures()
        if self.memory is not None:
            found += self.memory.failures()
        return found


HEADER = (
    f"{'':20} {'alone':>15} {'busy elsewhere':>15} {'beside the attack':>17}"
    f" {'':>6} {'longest':>7} {'memory MiB':>16}\n"
    f"{'attack':20} {'p50':>7} {'p99':>7} {'p50':>7} {'p99':>7} {'p50':>7} {'p99':>9}"
    f" {'p99/p99':>6} {'pass':>6} {'idle':>5} {'peak':>5} {'after':>5} {'errors':>6} {'host':>6}"
)


def row(outcome: Outcome) -> str:
    """One line of the table; times in milliseconds, errors as alone/elsewhere/beside."""
    phases = (outcome.alone, outcome.elsewhere, outcome.beside)
    times = [f"{_cell(None if calls is None else calls.p50)}" for calls in phases]
    tails = [f"{_cell(None if calls is None else calls.p99)}" for calls in phases]
    memory = ("-", "-", "-")
    if outcome.memory is not None:
        sizes = (outcome.memory.before, outcome.memory.peak, outcome.memory.after)
        before, peak, after = (f"{size / MIB:.0f}" for size in sizes)
        memory = before, peak, after
    errors = "/".join("-" if calls is None else str(len(calls.errors)) for calls in phases)
    ratio = "-" if math.isnan(outcome.ratio) else f"{outcome.ratio:.1f}"
    return (
        f"{outcome.attack:20} {times[0]:>7} {tails[0]:>7} {times[1]:>7} {tails[1]:>7} {times[2]:>7} {tails[2]:>9}"
        f" {ratio:>6} {_ms(outcome.passes.longest):>7} {memory[0]:>5} {memory[1]:>5} {memory[2]:>5} {errors:>6}"
        f" {'ended' if outcome.exits else 'alive':>6}"
    )


def verdict(outcome: Outcome) -> str:
    """The lines below the row: passed or failed, why, and what else was counted."""
    failures = outcome.failures()
    again = " (second measurement; the first one failed by its timing)" if outcome.again else ""
    first = f"  FAILED{again}: {'; '.join(failures)}" if failures else f"  passed{again}"
    return "\n".join([first, *(f"  . {remark}" for remark in outcome.remarks)])


def summary(outcomes: Sequence[Outcome]) -> str:
    """The closing line."""
    failed = sum(1 for outcome in outcomes if outcome.failures())
    return f"{len(outcomes) - failed} passed, {failed} failed"


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None or math.isnan(seconds) else _ms(seconds)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}" if seconds < 1 else f"{seconds * 1000:.0f}"


def _mib(size: float) -> str:
    return f"{size / MIB:.0f} MiB"
