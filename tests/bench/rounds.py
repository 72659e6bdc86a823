"""Runs the lanes: all proxies are up at once, each round visits each lane for a short time, and every other round goes
backwards, so that what the machine does besides meets all of them alike."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.build import HERE, NotInstalled, made, made_forwarded
from tests.bench.contenders import STDIO, Contender, Target, Upstream
from tests.bench.figures import Sample
from tests.bench.fixed.yardstick import REFERENCE, yardstick
from tests.bench.lanes import Lane, Section
from tests.bench.processes import Load, Program, Run, loading, pause, serving, spent

SETTLE = 0.05
"""Seconds after the last answer, in which the proxy does what is left of its calls."""
WARM = 0.3
"""Seconds of calls before the first round, which open connections and fill caches."""
LARGE_ARGUMENT = [sys.executable, str(HERE / "large_argument.py")]
SEARCHING = [sys.executable, str(HERE / "searching.py")]
NOTIFIED = [sys.executable, str(HERE / "notified.py")]
CHANGING = [sys.executable, str(HERE / "changing.py")]


@dataclass
class SectionResults:
    """The samples of each lane, round by round, and why a lane has none."""

    section: Section
    samples: dict[Lane, list[Sample]] = field(default_factory=dict)
    missing: dict[Lane, str] = field(default_factory=dict)


class Bench:
    """The running programs, by what they are. They end with `stack`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._upstream = made("upstream")
        self._load = made("load")
        self._servers: dict[Upstream, Program] = {}
        self._proxies: dict[tuple[Contender, Upstream], Program] = {}
        self._folders = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="colonnade-bench-")))

    def _folder(self) -> Path:
        folder = self._folders / str(len(self._servers) + len(self._proxies))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def proxy(self, contender: Contender, upstream: Upstream) -> Program:
        """The proxy before these servers; it is started if it does not run yet.

        Raises:
            NotInstalled: this machine cannot have it.
            RuntimeError: it does not come up.
        """
        if (contender, upstream) not in self._proxies:
            target = Target(upstream, self._where(upstream))
            folder = self._folder()
            start = contender.start(target, folder)
            program = self._stack.enter_context(serving(start.command, folder, start.url, start.environment))
            self._proxies[contender, upstream] = program
        return self._proxies[contender, upstream]

    def _program(self, upstream: Upstream) -> list[str]:
        return CHANGING if upstream.changing else self._upstream

    def _where(self, upstream: Upstream) -> str | list[str]:
        command = [*self._program(upstream), *upstream.arguments]
        if upstream.transport == STDIO:
            return command
        if upstream not in self._servers:
            self._servers[upstream] = self._stack.enter_context(serving(command, self._folder()))
        return self._servers[upstream].url

    def load(self, lane: Lane, stack: ExitStack) -> Load:
        """The load generator of a lane, connected, until the stack ends."""
        url = self.proxy(lane.contender, lane.upstream).url
        arguments = lane.calls.arguments(url, lane.contender, lane.upstream)
        program = [*LARGE_ARGUMENT, str(lane.calls.argument)] if lane.calls.argument else self._load
        if lane.calls.notified:
            program = NOTIFIED
        if lane.calls.forwarded:
            program = made_forwarded()
        if lane.calls.way:
            program = [*SEARCHING, lane.calls.way]
        return stack.enter_context(loading([*program, *arguments]))

    def sample(self, lane: Lane, load: Load) -> Sample:
        """One lane in one round, with the yardstick before and after it."""
        beside = yardstick()
        processor, run = self.run(lane, load, lane.seconds)
        beside = (beside + yardstick()) / 2
        return Sample(processor, run.calls, run.errors, run.seconds, run.p50, run.p99, REFERENCE / beside)

    def run(self, lane: Lane, load: Load, seconds: float) -> tuple[float, Run]:
        """The calls of a lane for so long, and the seconds of processor time that its proxy spent on them."""
        root = self.proxy(lane.contender, lane.upstream).pid
        upstream = shlex.join(self._program(lane.upstream))
        before = spent(root, upstream)
        run = load.run(seconds)
        pause(SETTLE)
        return spent(root, upstream).since(before), run


def run_section(bench: Bench, section: Section, tell: Callable[[str], None]) -> SectionResults:
    """All rounds of a section. A proxy that is not to be had costs its lanes, not the run."""
    results = SectionResults(section)
    with ExitStack() as stack:
        loads: dict[Lane, Load] = {}
        for lane in section.lanes:
            try:
                loads[lane] = bench.load(lane, stack)
            except (NotInstalled, RuntimeError) as problem:
                results.missing[lane] = str(problem).splitlines()[0]
                tell(f"{lane.name}: left out: {problem}")
        for load in loads.values():
            load.run(WARM)
        for number in range(max(lane.rounds for lane in loads)):
            for lane in backwards_every_other(number, list(loads)):
                if number < lane.rounds:
                    results.samples.setdefault(lane, []).append(bench.sample(lane, loads[lane]))
    return results


def backwards_every_other(number: int, lanes: Sequence[Lane]) -> Sequence[Lane]:
    return lanes[:: -1 if number % 2 else 1]


def start_all(bench: Bench, sections: Sequence[Section]) -> None:
    """Start every proxy, so that all are up before the first round. Those that are not to be had are told later."""
    for section in sections:
        for lane in section.lanes:
            try:
                bench.proxy(lane.contender, lane.upstream)
            except (NotInstalled, RuntimeError):
                continue
