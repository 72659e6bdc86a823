"""Compares this checkout with another commit: hosts of both before the same servers, called in turns within one run.

Two processes of one tree differ by some hundredths, so each pair of hosts is started several times, in both orders.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TypeVar

from tests.bench.build import BUILD, ROOT, NotInstalled, run
from tests.bench.contenders import COMPARED, of_checkout
from tests.bench.figures import Check, spread
from tests.bench.lanes import EXAMINED, Lane, Section
from tests.bench.processes import Run
from tests.bench.rounds import WARM, Bench, backwards_every_other
from tests.real.running import COLONNADE

T = TypeVar("T")

OURS = [COLONNADE]
STARTS, ROUNDS = 5, 4
"""Starts of each pair of hosts, and the rounds of each start."""
QUICK_STARTS, QUICK_ROUNDS, QUICK_SECONDS = 4, 3, 0.5
"""Those of a quick run, and the part of a lane's seconds for which each side is called in a round."""
_SCRIPT = "import sys; from host.__main__ import main; sys.exit(main())\n"


@dataclass
class Taken:
    """What a side of a round took."""

    processor: float = 0.0
    calls: int = 0
    errors: int = 0

    def add(self, processor: float, run: Run) -> None:
        self.processor += processor
        self.calls += run.calls
        self.errors += run.errors

    @property
    def cost(self) -> float:
        """Seconds of processor time for a call."""
        return self.processor / self.calls


@dataclass(frozen=True)
class Pair:
    """A lane of both checkouts: the ratio of ours to theirs in each round, or why there is none."""

    name: str
    most: float
    ratios: Sequence[float] = ()
    errors: int = 0
    missing: str = ""
    control: Sequence[float] = ()
    """The ratio of two hosts that are the same, in each round, if there were two."""

    @property
    def fails(self) -> bool:
        return self.errors > 0 or (not self.missing and self._check.fails)

    @property
    def _check(self) -> Check:
        return Check(self.name, self.most, spread(self.ratios) if self.ratios else None)

    @property
    def line(self) -> str:
        """Better quartile, median and worse quartile of the ratio, and the limit of the first."""
        if self.missing:
            return f"left out  {self.name}: {self.missing}"
        found = spread(self.ratios)
        verdict = f"{self.errors} wrong answers" if self.errors else self._check.verdict
        control = ""
        if self.control:
            same = spread(self.control)
            control = f"; two that are the same {same.low:.3f}  {same.median:.3f}  {same.high:.3f}"
        return f"{verdict}  {found.low:.3f}  {found.median:.3f}  {found.high:.3f}  <= {self.most}  {self.name}{control}"


def compare(commit: str, sections: Sequence[Section], quick: bool, tell: Callable[[str], None]) -> int:
    """Measure every lane of Colonnade in these sections, and tell its ratio. Returns the exit code: 1 if one became
    dearer than its limit, or answered wrongly."""
    try:
        theirs = checkout(commit)
    except NotInstalled as problem:
        tell(f"{commit} cannot be had: {problem}. Expected a commit of this repository.")
        return 2
    lanes = lanes_of(sections, quick)
    tell("       better  median  worse quartile of this checkout's cost, divided by that of the other")
    pairs = []
    for name, lane in lanes.items():
        pairs.append(measure(name, lane, theirs, quick))
        tell(pairs[-1].line)
    measured = [pair for pair in pairs if not pair.missing]
    failed = sum(pair.fails for pair in pairs)
    tell(f"{len(measured)} lanes against {commit}, {failed} failed, {len(pairs) - len(measured)} left out")
    return int(failed > 0 or not measured)


def lanes_of(sections: Sequence[Section], quick: bool) -> dict[str, Lane]:
    """The lanes of Colonnade by their names, each once. A quick run has those that limits hold for, and those that are
    examined closely."""
    found: dict[str, Lane] = {}
    seen = set()
    for section in sections:
        for lane in section.deciding if quick and section.title != EXAMINED else section.lanes:
            cell = (lane.contender, replace(lane.upstream, copy=0), lane.calls)
            if lane.contender in COMPARED and cell not in seen:
                seen.add(cell)
                found[f"{lane.name} ({section.title})"] = lane
    return found


def measure(name: str, lane: Lane, theirs: Sequence[str], quick: bool) -> Pair:
    """All starts and rounds of a lane of both checkouts; raises as `measure_pair` does."""

    def sides(number: int) -> tuple[Lane, Lane]:
        ours, other = (
            replace(lane, contender=of_checkout(lane.contender, program, number)) for program in (OURS, theirs)
        )
        return ours, other

    starts, rounds = (QUICK_STARTS, QUICK_ROUNDS) if quick else (STARTS, ROUNDS)
    return measure_sides(name, lane, sides, starts, rounds, lane.seconds * (QUICK_SECONDS if quick else 1) / 2)


def measure_sides(
    name: str, lane: Lane, sides: Callable[[int], Sequence[Lane]], starts: int, rounds: int, seconds: float
) -> Pair:
    """All starts and rounds of a lane of several sides, each called twice in a round for so many seconds. `sides`:
    returns them for the start of a number: ours, the other, and the other once more if there is to be a control.

    Raises:
        RuntimeError: the first side does not serve.
    """
    found: list[float] = []
    control: list[float] = []
    for number in range(starts):
        ours, *others = of_start = sides(number)
        with ExitStack() as stack:
            bench = Bench(stack)
            loads = {}
            for each in backwards_every_other(number, of_start):
                try:
                    loads[each] = bench.load(each, stack)
                except RuntimeError as problem:
                    if each == ours:
                        raise
                    return Pair(name, lane.against, missing=f"the other commit: {str(problem).splitlines()[0]}")
            for load in loads.values():
                load.run(WARM)
            for turn in range(rounds):
                taken = {each: Taken() for each in of_start}
                for each in in_turns(number + turn, of_start):
                    taken[each].add(*bench.run(each, loads[each], seconds))
                if any(taken[other].errors for other in others):
                    return Pair(name, lane.against, missing="the other commit answers wrongly")
                if taken[ours].errors:
                    return Pair(name, lane.against, errors=taken[ours].errors)
                first, *more = (taken[other].cost for other in others)
                found.append(taken[ours].cost / mean([first, *more]))
                control.extend(each / first for each in more)
    return Pair(name, lane.against, found, control=control)


def in_turns(number: int, sides: Sequence[T]) -> Sequence[T]:
    """Each side twice in a round, so that a machine that becomes slower or faster in it does so for all; the next round
    begins with the next side."""
    at = number % len(sides)
    order = [*sides[at:], *sides[:at]]
    return [*order, *reversed(order)]


def checkout(commit: str) -> list[str]:
    """The command of Colonnade as it was at a commit, in a folder and an environment of its own.

    The packages are those of this checkout, or, where that commit had other dependencies, installed for it.

    Raises:
        NotInstalled: there is no such commit, or its dependencies cannot be installed.
    """
    named = git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    folder = BUILD / "against" / named
    python, script = folder / "venv" / "bin" / "python", folder / "colonnade.py"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = git("archive", named)
        tree = folder / "tree"
        tree.mkdir(exist_ok=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        same = dependencies(tree) == dependencies(ROOT)
        run(sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if same else []), python.parents[1])
        if not same:
            run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *dependencies(tree))
        paths = [str(tree), *([sysconfig.get_path("purelib")] if same else [])]
        library = Path(sysconfig.get_path("purelib", vars={"base": str(python.parents[1])}))
        (library / "colonnade.pth").write_text("\n".join(paths) + "\n")
        script.write_text(_SCRIPT)
    return [str(python), str(script)]


def dependencies(tree: Path) -> list[str]:
    found: list[str] = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["dependencies"]
    return found


def git(*arguments: str) -> bytes:
    """The output of git in this checkout.

    Raises:
        NotInstalled: it fails.
    """
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)
    if done.returncode:
        raise NotInstalled(done.stderr.decode(errors="replace").strip() or "git does not know it")
    return done.stdout
