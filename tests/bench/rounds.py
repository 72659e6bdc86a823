"""Runs the lanes: everything is up at once, each round visits each lane for a short time, and every other round goes
backwards, so that what the machine does besides meets all of them alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench.build import BUILD, compiled
from tests.bench.contenders import UPSTREAM, Contender, Target, Upstream
from tests.bench.figures import Sample
from tests.bench.fixed.yardstick import REFERENCE, yardstick
from tests.bench.lanes import Lane, Section
from tests.bench.processes import Load, Program, loading, pause, serving, spent

SETTLE = 0.05
"""Seconds after the last answer, in which the proxy does what is left of its calls."""

Results = dict[Lane, list[Sample]]


class Bench:
    """The running programs, by what they are."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._upstream = compiled(UPSTREAM)
        self._load = compiled("load")
        self._servers: dict[Upstream, Program] = {}
        self._proxies: dict[tuple[Contender, Upstream], Program] = {}
        self._folders = BUILD / "run"
        shutil.rmtree(self._folders, ignore_errors=True)

    def _folder(self) -> Path:
        folder = self._folders / str(len(self._servers) + len(self._proxies))
        folder.mkdir(parents=True)
        return folder

    def proxy(self, contender: Contender, upstream: Upstream) -> Program:
        """The proxy before these servers; it is started if it does not run yet."""
        if (contender, upstream) not in self._proxies:
            target = Target(upstream, self._where(upstream))
            folder = self._folder()
            start = contender.start(target, folder)
            program = self._stack.enter_context(serving(start.command, folder, start.url, **start.environment))
            self._proxies[contender, upstream] = program
        return self._proxies[contender, upstream]

    def _where(self, upstream: Upstream) -> str | list[str]:
        command = upstream.command(self._upstream)
        if upstream.transport == "stdio":
            return command
        if upstream not in self._servers:
            self._servers[upstream] = self._stack.enter_context(serving(command, self._folder()))
        return self._servers[upstream].url

    def load(self, lane: Lane, stack: ExitStack) -> Load:
        url = self.proxy(lane.contender, lane.upstream).url
        arguments = lane.calls.arguments(url, lane.contender, lane.upstream)
        return stack.enter_context(loading([self._load, *arguments]))

    def sample(self, lane: Lane, load: Load) -> Sample:
        """One lane in one round."""
        root = self.proxy(lane.contender, lane.upstream).pid
        measure = yardstick()
        before = spent(root, [self._upstream])
        run = load.run(lane.seconds)
        pause(SETTLE)
        processor = spent(root, [self._upstream]).since(before)
        measure = (measure + yardstick()) / 2
        return Sample(processor, run.calls, run.errors, run.seconds, run.p50, run.p99, REFERENCE / measure)


def run_section(
    bench: Bench, section: Section, told: Callable[[Lane, Sample], None]
) -> Mapping[Lane, Sequence[Sample]]:
    """All rounds of a section."""
    results: Results = {lane: [] for lane in section.lanes}
    with ExitStack() as stack:
        loads = {lane: bench.load(lane, stack) for lane in section.lanes}
        for lane, load in loads.items():
            load.run(lane.seconds / 4)  # the first calls open connections and fill caches
        for number in range(max(lane.rounds for lane in section.lanes)):
            for lane in section.lanes[:: -1 if number % 2 else 1]:
                if number < lane.rounds:
                    sample = bench.sample(lane, loads[lane])
                    results[lane].append(sample)
                    told(lane, sample)
    return results
