"""The phases of an attack: the good client alone, beside the hostile processes while they attack another host, and
beside the attack.

The yardstick is the second phase. In it the same hostile servers and clients do the same to a second host on the same
machine, so the processors are as busy as in the third, and what differs is the work inside of the host under test.
Whatever the good client has to bear more in the third phase, the host lets the attack do to it.

A measurement that fails by nothing but its timing is repeated once, since other programs of the machine can do that
much; the criteria stay the same, and the second measurement is said to be one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .attacks import Attack, Counted, Family, program
from .figures import Calls, Outcome
from .processes import GoodClient, Host, MemoryWatch, time_passes, web_server

RATE = 125.0
"""Calls of the good client a second."""
MOST_CALLS, LEAST_CALLS = 1000, 100
MOST_TIMEOUT, LEAST_TIMEOUT = 60.0, 10.0
"""Seconds that the good client waits for an answer, at scale 1 and at the smallest."""
AFTERWARDS = 40.0
"""Seconds that memory has to come back after an attack; they end once it has. A list that took long to read is read
again, and so replaced, only when its budget permits it (`ReadingBudget`), which may be half a minute later."""
UNDER_WAY = 0.2
"""Seconds of an attack before the SIGTERM."""
CALM = 20.0
"""Seconds after an attack in which its host must be at rest again; one that is not is replaced before the next."""

TROUBLE = (AssertionError, OSError, ValueError)
"""Errors that keep an attack from being carried out, a wait in vain included."""


@dataclass(frozen=True)
class Scale:
    """How large everything is: 1 is the full size."""

    factor: float
    repeats: bool = True
    least_calls: int = LEAST_CALLS

    @property
    def is_full(self) -> bool:
        return self.factor >= 1

    @property
    def calls(self) -> int:
        return max(self.least_calls, round(MOST_CALLS * self.factor))

    @property
    def timeout(self) -> float:
        return max(LEAST_TIMEOUT, MOST_TIMEOUT * self.factor)

    def phase(self, client: GoodClient) -> Calls:
        return client.phase(self.calls, RATE, self.calls / RATE * 1.5 + 2, self.timeout)


class Stage:
    """The host under test, another one for the second phase, and the good client. Hosts that end are started again."""

    def __init__(self, family: Family, folder: Path, stack: ExitStack) -> None:
        self._family, self._folder, self._stack = family, folder, stack
        self._number = 0
        self.host = self._start("host")
        self.other = self._start("other")
        self.host.wait_ready()
        self.client = self._client()
        self.other.wait_ready()
        self.idle = 0
        self.yardsticks: dict[str, Calls] = {}
        """Second phases that later attacks of the family may share."""

    def _start(self, name: str) -> Host:
        self._number += 1
        folder = self._folder / f"{name}{self._number}"
        servers = {"good": program("good", "good"), **self._family.servers(folder / "control")}
        if self._family.web:
            servers["web"] = {"url": self._stack.enter_context(web_server(folder))}
        host = Host(folder, servers, **(self._family.more or {}))
        host.start()
        self._stack.callback(host.kill)
        return host

    def _client(self) -> GoodClient:
        client = GoodClient(self.host.url, self._family.tool, *self._family.client)
        self._stack.callback(client.close)
        return client

    def replace_client(self) -> None:
        """End a good client that did not come back from a phase, and take another."""
        self.client.close()
        self.client = self._client()

    def measure_alone(self, scale: Scale) -> Calls:
        """The first phase. Memory is held against what the host has after it."""
        calls = scale.phase(self.client)
        self.idle, _ = self.host.resident()
        return calls

    def renew(self, scale: Scale, *, both: bool = False) -> None:
        """Put another host in the place of one that has ended, or that does not come to rest; or of `both`."""
        if both or not (self.host.is_alive and self.host.wait_calm(CALM)):
            self.host.kill()
            self.host = self._start("host")
            self.host.wait_ready()
            self.replace_client()
            self.measure_alone(scale)
        if both or not (self.other.is_alive and self.other.wait_calm(CALM)):
            self.other.kill()
            self.other = self._start("other")
            self.other.wait_ready()


def run_family(
    family: Family, attacks: Sequence[Attack], scale: Scale, folder: Path, show: Callable[[Outcome], None]
) -> None:
    """Measure these attacks of a family, one after the other; `show` gets each outcome when it is there."""
    scale = replace(scale, least_calls=max(scale.least_calls, family.calls))
    with ExitStack() as stack:
        stage = Stage(family, folder, stack)
        alone = stage.measure_alone(scale)
        for attack in attacks:
            outcome = _measured(attack, stage, scale, alone)
            show(outcome)
            if outcome.memory is not None and outcome.memory.failures():
                stage.host.kill()  # what it keeps is not to be held against the next attack
            stage.renew(scale)
        show(_stopped(family, attacks[-1], stage, scale))


def _measured(attack: Attack, stage: Stage, scale: Scale, alone: Calls) -> Outcome:
    outcome = _measured_once(attack, stage, scale, alone)
    if scale.repeats and outcome.timing_failures() == outcome.failures() != []:
        stage.renew(scale, both=True)  # hosts that have had enough of the hostile servers would not start them
        stage.yardsticks.pop(attack.yardstick, None)
        return replace(_measured_once(attack, stage, scale, alone), again=True)
    return outcome


def _measured_once(attack: Attack, stage: Stage, scale: Scale, alone: Calls) -> Outcome:
    """The second and the third phase."""
    outcome = Outcome(attack.name, scale.calls, alone)
    shared = None if scale.is_full else stage.yardsticks.get(attack.yardstick)
    if shared is not None:
        outcome = replace(outcome, elsewhere=shared)
    else:
        start, host = (attack.start, stage.other) if attack.own_work is None else (attack.own_work, stage.host)
        with _carried_out() as trouble, start(host, scale.factor, {}):
            outcome = replace(outcome, elsewhere=scale.phase(stage.client))
        if trouble or outcome.elsewhere is None:
            stage.replace_client()
            return replace(outcome, broken=[f"elsewhere: {each}" for each in trouble])
        if attack.yardstick:
            stage.yardsticks[attack.yardstick] = outcome.elsewhere
        stage.other.wait_calm(CALM)
    counted: Counted = {}
    broken: list[str] = []
    watch = MemoryWatch(stage.host, stage.idle)
    since = time.monotonic()
    tracebacks = stage.host.tracebacks()
    with _carried_out() as trouble, attack.start(stage.host, scale.factor, counted):
        outcome = replace(outcome, beside=scale.phase(stage.client))
        time_passes(max(0.0, since + attack.seconds * scale.factor - time.monotonic()))
        broken += attack.check(stage.host, since, counted)
    if outcome.beside is None:
        stage.replace_client()
    until = time.monotonic()
    memory = watch.finish(AFTERWARDS)
    passes = stage.host.passes(since, until)
    status = stage.host.running.process.poll()
    return replace(
        outcome,
        passes=passes,
        memory=memory if status is None else None,
        exits=[] if status is None else [f"the host has ended with status {status}"],
        tracebacks=stage.host.tracebacks() - tracebacks,
        broken=[*broken, *trouble],
        remarks=[attack.size, str(passes), *_told(counted)],
    )


def _told(counted: Counted) -> list[str]:
    return [", ".join(f"{name}: {count:,}" for name, count in sorted(counted.items()))] if counted else []


@contextmanager
def _carried_out() -> Iterator[list[str]]:
    """For the block, what keeps the attack from being carried out or checked becomes a sentence in the list."""
    trouble: list[str] = []
    try:
        yield trouble
    except TROUBLE as problem:
        trouble.append(f"the attack could not be carried out: {type(problem).__name__}: {problem}")


def _stopped(family: Family, attack: Attack, stage: Stage, scale: Scale) -> Outcome:
    """SIGTERM in the middle of an attack must end the host with status 0."""
    host = stage.host
    tracebacks = host.tracebacks()
    ended: list[int | None] = []
    with _carried_out() as trouble, attack.start(host, scale.factor, {}):
        time_passes(UNDER_WAY)
        ended.append(host.stop())
    outcome = Outcome(f"stop ({family.name})", 0, remarks=[f"SIGTERM during {attack.name}"])
    if not ended:
        return replace(outcome, broken=trouble)
    tracebacks = host.tracebacks() - tracebacks
    if ended[0] is None:
        return replace(outcome, exits=["SIGTERM did not end the host, which was killed"], tracebacks=tracebacks)
    if ended[0]:
        return replace(outcome, exits=[f"SIGTERM ended the host with status {ended[0]}"], tracebacks=tracebacks)
    return replace(outcome, tracebacks=tracebacks)
