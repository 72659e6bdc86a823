"""Measures what a call through Colonnade costs, beside a bare sketch and other proxies.

    .venv/bin/python -m tests.bench           everything, in 25 minutes at most; writes docs/performance.md
    .venv/bin/python -m tests.bench --quick   what the limits need, in five minutes; writes nothing
    ... --write     writes also after a quick run
    ... --check     fails if a limit does not hold in the better quartile of the rounds either
    ... --against COMMIT  the lanes of this checkout beside those of another, in turns; fails if one became dearer
    ... --only WORD only sections with this word in their title; writes nothing

All samples are in build/bench/results.json. How it is measured: docs/performance.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import signal
import sys
import time
from contextlib import ExitStack

from tests.bench.against import compare
from tests.bench.build import BUILD, fixed_hash
from tests.bench.cold_start import cold_starts
from tests.bench.confined_starts import confined_starts
from tests.bench.idle_memory import idle_memory
from tests.bench.lanes import DECIDING, QUICK, SECTIONS
from tests.bench.looks import looks
from tests.bench.memory_in_flight import memory_in_flight
from tests.bench.relay_starts import relay_starts
from tests.bench.report import Report, figures_table, table
from tests.bench.rounds import Bench, SectionResults, run_section, start_all

FIGURES = {
    "Starts": cold_starts,
    "Starts before known servers": relay_starts,
    "Starts in a sandbox": confined_starts,
    "Memory of idle streams": idle_memory,
    "Memory of calls in flight": memory_in_flight,
    "Looks at the store": looks,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--quick", action="store_true", help="only what the limits need, in fewer rounds")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md also after a quick run")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit fails")
    parser.add_argument("--against", metavar="COMMIT", help="compare this checkout with another commit")
    parser.add_argument("--only", metavar="WORD", help="only sections with this word in their title")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no program is left behind
    began = time.monotonic()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for 900 connections on both sides

    sections = [section for section in SECTIONS if not arguments.only or arguments.only in section.title]
    if arguments.against:
        return compare(arguments.against, sections, arguments.quick, tell)
    if arguments.quick:
        sections = [quick for section in sections if (quick := section.quick()) is not None]
    found: list[SectionResults] = []
    with ExitStack() as stack:
        bench = Bench(stack)
        start_all(bench, sections)
        for section in sections:
            found.append(run_section(bench, section, tell))
            tell(table(found[-1]))
    rounds = QUICK if arguments.quick else DECIDING
    chosen = [measure for title, measure in FIGURES.items() if not arguments.only or arguments.only in title]
    figures = [figure for measure in chosen for figure in measure(rounds)]
    report = Report(found, figures, fixed_hash(), (time.monotonic() - began) / 60)
    keep(found)
    if figures:
        tell(figures_table(figures))
    checks = report.checks()
    tell("\n".join(check.line for check in checks))
    tell(f"{sum(check.holds for check in checks)} of {len(checks)} hold, after {report.minutes:.1f} minutes")
    if not arguments.only and (arguments.write or not arguments.quick):
        report.write()
    in_ci = "CI" in os.environ
    return int(arguments.check and any(check.fails for check in checks if not (in_ci and check.is_of_time)))


def tell(text: str) -> None:
    print(text, flush=True)


def keep(found: list[SectionResults]) -> None:
    """All samples, for whoever wants to look at them again."""
    samples = {
        results.section.title: {
            lane.name: [dataclasses.asdict(each) for each in taken] for lane, taken in results.samples.items()
        }
        for results in found
    }
    (BUILD / "results.json").write_text(json.dumps(samples, indent=1))


if __name__ == "__main__":
    sys.exit(main())
