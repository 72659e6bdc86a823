"""Consent scripts with one event at a time: what leaves, what is answered and what the audit says after each step.

    python -m tests.orders.recorded             holds it against transcripts.json
    python -m tests.orders.recorded --keep      writes that file

The scripts are like those of `test_consent.py`, made from fixed seeds. They settle after each step, so that an outcome
does not depend on the order in which tasks happen to run; to be kept, each is played in several such orders.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from host.errors import ColonnadeError
from host.exchange import InputRequired
from host.jsonrpc.messages import Request
from tests.kit.awaited import awaited
from tests.kit.scripts import Step
from tests.kit.transcripts import Transcript, Transcripts, differences, keep, names
from tests.kit.world import Refusal
from tests.orders.test_consent import KINDS, NAMES, STEPS, Call, Listener, Machine, clock_of

FILE = Path(__file__).with_name("transcripts.json")
SCRIPTS = 300
ORDERS = 8
VARYING = frozenset(
    ("v", "seq", "ts", "mono", "prev", "hash", "file", "former", "pid", "of", "micros", "question", "grant", "expires")
)
"""Members of an audit record that are others in each run."""

VIEWS = {"confirmations": "questions", "held": "held", "grants": "grants"}
"""Sections of the state, and how the transcripts name them: within a step their lines are in alphabetical order."""
ROW = ("server", "kind", "name", "state", "scope")


class Recorded(Machine):
    """`lines` are what happened, step by step; within a step, in alphabetical order."""

    def __init__(self, folder: Path, clock: MockClock, client_answers: bool) -> None:
        super().__init__(folder, clock, client_answers)
        self.lines: list[str] = []
        self._happened: list[str] = []
        self._open: list[Call] = []
        self._views: dict[str, list[str]] = {}

    def settles(self, one: int, two: int) -> bool:
        return True

    async def _steps(self, steps: Iterator[Step]) -> bool:
        crashed = await super()._steps(self._noted(steps))
        self._note()
        return crashed

    def _noted(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            self._note()
            self.lines.append(f"step {step[0]}")
            yield step

    def _note(self) -> None:
        over = [call for call in self.calls if call.done and call not in self._open]
        self._open += over
        self._happened += [f"{call.caller} {call.key} {call.n} ends: {outcome(call.answer)}" for call in over]
        seen = awaited(self.admin.reader.sections(VIEWS))
        rows: dict[str, Any] = {**seen}
        for section, name in VIEWS.items():
            view = sorted("/".join(str(row[each]) for each in ROW if each in row) for row in rows[section])
            if self._views.get(name) != view:
                self._views[name] = view
                self._happened.append(f"{name}: {', '.join(view)}")
        self.lines += sorted(self._happened)
        self._happened.clear()

    def leaves(self, server: str, request: Request, era: str) -> None:
        super().leaves(server, request, era)
        params = json.loads(bytes(request.params or b"{}"))
        self._happened.append(f"to {server}: {params[NAMES[KINDS[request.method]]]} {params.get('arguments')}")

    def client_is_asked(self, client: Listener, request: Request) -> None:
        super().client_is_asked(client, request)
        self._happened.append(f"to client {self.clients.index(client)}: {request.method}")

    def written(self, record: dict[str, Any]) -> None:
        super().written(record)
        left = {name: value for name, value in record.items() if name not in VARYING}
        self._happened.append(f"audit: {json.dumps(left, sort_keys=True)}")


def outcome(answer: object) -> str:
    """The outcome of a call, without message texts."""
    if isinstance(answer, InputRequired):
        return f"input required: {sorted(answer.requests)}"
    if isinstance(answer, Refusal | ColonnadeError):
        return f"error {answer.code} {getattr(answer, 'data', None)}"
    return "cancelled" if answer is None else "a result"


def script(seed: int) -> list[Step]:
    chance = random.Random(seed)
    names = [name for name, weight in STEPS.items() for _ in range(weight)]
    return [(chance.choice(names), chance.randrange(32), chance.randrange(16)) for _ in range(chance.randint(15, 60))]


def played(seed: int, order: int) -> Transcript:
    clock = MockClock()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, clock_of(clock):
        machine = Recorded(Path(folder) / "state", clock, client_answers=seed % 2 == 1)
        trio._core._run._r.seed(order)
        trio.run(machine.play, script(seed), clock=clock)
    assert machine.problems == [], machine.problems
    return machine.lines


def kept() -> list[Transcripts]:
    """Of several orders, without the scripts whose outcome depends on the order after all: where a jump of the clock
    ends two things at once."""
    runs = [{name(seed): played(seed, order) for seed in range(SCRIPTS)} for order in range(ORDERS)]
    stable = [each for each in runs[0] if all(run[each] == runs[0][each] for run in runs)]
    return [{each: run[each] for each in stable} for run in runs]


def name(seed: int) -> str:
    return f"script {seed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write the file anew")
    if parser.parse_args().keep:
        keep(kept(), FILE)
        return 0
    seeds = [seed for seed in range(SCRIPTS) if name(seed) in names(FILE)]
    found = differences({name(seed): played(seed, 0) for seed in seeds}, FILE)
    print(*found, f"{len(seeds)} scripts, {len(found)} not as they were kept", sep="\n\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
