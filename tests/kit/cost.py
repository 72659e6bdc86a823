"""The cost of work: the processor time of this thread, or the calls of functions.

A virtual machine counts its own pauses as such time, and a busy one takes longer for the same work. So the work is done
several times, and the cheapest time counts: what is slow by itself is slow each time.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ATTEMPTS = 5
CONTROL_COST = 0.015
"""Seconds that the control takes on the machine for which limits are stated."""
_WORD = re.compile(r"[a-z]+")


def cost(work: Callable[[], object]) -> float:
    """Seconds of processor time for this work, done once."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


@contextmanager
def counted_calls() -> Iterator[list[str]]:
    """The names of all functions that are called in the block, in order; those of C included."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)
        elif event == "c_call" and argument is not sys.setprofile:
            called.append(getattr(argument, "__qualname__", ""))

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


def least_cost(work: Callable[[], object], *, attempts: int = ATTEMPTS) -> float:
    """Seconds of processor time for this work: the least of several attempts."""
    return min(cost(work) for _ in range(attempts))


def slowness() -> float:
    """How many times longer the machine takes for the control now than one on which limits are stated: at least 1.

    A machine may be slower by itself, or be so for a while, because its processors are shared.
    """
    return max(1.0, cost(_control) / CONTROL_COST)


def _control() -> None:
    """Work of the kind that the source does: calls, dicts, texts and regular expressions."""
    for at in range(4000):
        members = {f"name{at}": at, "text": "a-" * 20}
        sum(len(found) for found in _WORD.findall(str(members)))


def assert_costs_less(work: Callable[[], object], seconds: float) -> None:
    """Do the work until it once takes less than so many seconds of processor time, on a machine that takes CONTROL_COST
    for the control: a slower one may take longer, by as much as it takes longer for the control beside the work. The
    control takes some hundredths of a second itself, and is done only for work that is not fast enough without it."""
    if cost(work) < seconds:
        return
    costs: list[float] = []
    limits: list[float] = []
    while not costs or costs[-1] >= limits[-1]:
        assert len(costs) < ATTEMPTS, f"each attempt took longer than {limits} s: {costs}"
        before = slowness()
        costs.append(cost(work))
        limits.append(seconds * max(before, slowness()))
