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


def ratios(samples: Sequence[Sample], others: Sequence[Sample], beyond: Sequence[Sample] = ()) -> list[float]:
    """The cost divided by that of the other lane in the same round, for each round that both have. The yardstick plays
    no part: both ran within seconds of each other.

    Args:
        beyond: a lane whose cost is subtracted first.
    """

    def unscaled(samples: Sequence[Sample]) -> list[float]:
        return [each.processor / each.calls for each in samples]

    less = unscaled(beyond) if beyond else [0.0] * len(samples)
    return [(one - known) / other for one, known, other in zip(unscaled(samples), less, unscaled(others), strict=False)]


@dataclass(frozen=True)
class Figure:
    """A value that is measured several times and is no ratio of lanes. `most`: its limit; None if there is none."""

    name: str
    unit: str
    most: float | None
    values: Sequence[float]


@dataclass(frozen=True)
class Check:
    """A promise and what was measured of it; None if it could not be. `is_of_time`: it is no ratio, so it holds for the
    machines that it was stated for; in CI, whose machine is any, it is told and decides nothing."""

    sentence: str
    most: float
    measured: Spread | None
    is_of_time: bool = False

    @property
    def holds(self) -> bool:
        return self.measured is not None and self.measured.median <= self.most

    @property
    def fails(self) -> bool:
        """Whether even the better quartile is over the limit. A median alone may be: in a short run, or with a busy
        neighbour."""
        return self.measured is None or self.measured.low > self.most

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "FAILS" if self.fails else "close"

    @property
    def line(self) -> str:
        measured = "not measured"
        if self.measured is not None:
            median = self.measured.median
            measured = f"{median:.3g}" if self.most == 0 or self.most >= 1 else f"1/{1 / median:.3g}"
        return f"{self.verdict}  {measured:>12}  {self.sentence}"
