"""The cost of work: the processor time of this thread.

A virtual machine counts its own pauses as such time, and a busy one takes longer for the same work. So the work is done
several times, and the cheapest time counts: what is slow by itself is slow each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

ATTEMPTS = 5


def cost(work: Callable[[], object]) -> float:
    """Seconds of processor time for this work, done once."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def least_cost(work: Callable[[], object], *, attempts: int = ATTEMPTS) -> float:
    """Seconds of processor time for this work: the least of several attempts."""
    return min(cost(work) for _ in range(attempts))


def assert_costs_less(work: Callable[[], object], seconds: float) -> None:
    """Do the work until it once takes less than so many seconds of processor time."""
    costs: list[float] = []
    while not costs or costs[-1] >= seconds:
        assert len(costs) < ATTEMPTS, f"each attempt took longer than {seconds} s: {costs}"
        costs.append(cost(work))
