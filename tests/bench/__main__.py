"""Measures what a call through Colonnade costs, beside a bare sketch and other proxies.

.venv/bin/python -m tests.bench
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from tests.bench.figures import Sample, ratios, spread
from tests.bench.lanes import SECTIONS, Lane
from tests.bench.rounds import Bench, run_section


def main() -> int:
    def tell(lane: Lane, sample: Sample) -> None:
        print(f"{lane.name:60} {sample.cost:8.1f} µs {sample.calls:7} calls {sample.errors} errors", flush=True)

    with ExitStack() as stack:
        bench = Bench(stack)
        for section in SECTIONS:
            results = run_section(bench, section, tell)
            first = results[section.lanes[0]]
            print(section.title)
            for lane, samples in results.items():
                cost, ratio = spread([sample.cost for sample in samples]), spread(ratios(samples, first))
                print(f"{lane.name:60} {cost.median:8.1f} µs {ratio.median:6.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
