"""The figures of a run and their statistics. Nothing here measures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of several values, and their quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


@dataclass(frozen=True)
class Sample:
    """One lane in one round: seconds of processor time of the proxy, and the calls that it was for."""

    processor: float
    calls: int
    errors: int
    seconds: float
    p50: float
    p99: float
    scale: float
    """The factor that the yardstick beside it gives for this moment's processor."""

    @property
    def cost(self) -> float:
        """Scaled microseconds of processor time for a call."""
        return self.processor / self.calls * 1e6 * self.scale


def ratios(samples: Sequence[Sample], others: Sequence[Sample]) -> list[float]:
    """The cost divided by that of the other lane in the same round, for each round that both have. The yardstick plays
    no part: both ran within seconds of each other."""
    pairs = zip(samples, others, strict=False)
    return [(one.processor / one.calls) / (other.processor / other.calls) for one, other in pairs]
