"""Carries out the attacks and judges the host by them.

    .venv/bin/python -m tests.attack [--scale 0.1] [--only NAME …] [--once] [--tell-timing] [--list]

Exits with 1 if an attack failed; with --tell-timing, not if it failed by its timing alone. What each criterion is:
figures.py; how to read the table: docs/contributing.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .attacks import FAMILIES
from .boundaries import BOUNDARIES
from .figures import HEADER, Outcome, row, summary, verdict
from .phases import TROUBLE, Scale, run_family


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the full size; 0.1 takes under three minutes")
    parser.add_argument("--only", metavar="NAME", action="append", help="this attack or family; may be repeated")
    parser.add_argument("--once", action="store_true", help="do not measure again what failed by its timing")
    parser.add_argument(
        "--tell-timing",
        action="store_true",
        help="print what fails by its timing, and do not fail by it: for machines that do something else, too",
    )
    parser.add_argument("--list", action="store_true", help="name the attacks and do nothing")
    arguments = parser.parse_args()
    names = {*BOUNDARIES, *(family.name for family in FAMILIES), *(a.name for f in FAMILIES for a in f.attacks)}
    if arguments.list:
        for name in BOUNDARIES:
            print(f"{name:20} (boundaries)")
        for family in FAMILIES:
            for attack in family.attacks:
                print(f"{attack.name:20} {attack.size} ({family.name})")
        return 0
    named = set(arguments.only or ())
    only = named or names
    if unknown := only - names:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; --list names the attacks")

    began = time.monotonic()
    outcomes: list[Outcome] = []

    def show(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(f"{row(outcome)}\n{verdict(outcome)}", flush=True)

    scale = Scale(arguments.scale, repeats=not arguments.once)
    print(f"scale {scale.factor:g}, {scale.calls} calls of the good client in each phase; times in ms\n{HEADER}")
    with tempfile.TemporaryDirectory(prefix="colonnade-attack-") as folder:
        place = Path(folder)
        place.chmod(0o711)  # a host that runs as another user has its folder in it
        for name, boundary in BOUNDARIES.items():
            if name in only:
                with _carried_out(name, show):
                    show(boundary(scale, place))
        for family in FAMILIES:
            chosen = [
                attack
                for attack in family.attacks
                if attack.name in named or (family.name in only and (scale.is_full or not attack.full_size))
            ]
            if chosen:
                with _carried_out(family.name, show):
                    run_family(family, chosen, scale, place / family.name.replace(" ", "-"), show)
    print(f"{summary(outcomes)} in {time.monotonic() - began:.0f} s")
    pardoned = Outcome.timing_failures if arguments.tell_timing else lambda outcome: []
    return 1 if any(set(outcome.failures()) - set(pardoned(outcome)) for outcome in outcomes) else 0


@contextmanager
def _carried_out(name: str, show: Callable[[Outcome], None]) -> Iterator[None]:
    """A host that does not even come up is a failure, and the other attacks go on."""
    try:
        yield
    except TROUBLE as problem:
        show(Outcome(name, 0, broken=[f"could not be carried out: {type(problem).__name__}: {problem}"]))


if __name__ == "__main__":
    sys.exit(main())
