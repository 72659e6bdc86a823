"""Prints for each escape what held it: `python -m tests.sandbox`. Ends with 1 if a promise is broken. Of means that are
not to be had here, it prints that a program is not started without them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import trio

from tests.sandbox.escapes import ESCAPES, MAY_BE_REFUSED, can_be_tried, is_to_be_held
from tests.sandbox.stated import state_with
from tests.sandbox.world import MEANS, UNCONFINED, open_world, to_be_had


def main() -> int:
    broken: list[str] = []
    had = to_be_had()
    with tempfile.TemporaryDirectory(prefix="colonnade-sandbox-") as folder, open_world(Path(folder)) as world:
        for means in MEANS:
            if means not in had:
                said, is_as_stated = trio.run(state_with, Path(folder), means)
                print(f"{means}: not to be had here. {said}")
                broken += [] if is_as_stated else [f"without {means}: {said}"]
        print(f"{'escape':<36} {'no sandbox':<10} " + " ".join(f"{each:<24}" for each in had))
        for escape in ESCAPES:
            if not can_be_tried(escape):
                print(f"{escape:<36} not for this user")
                continue
            control, *found = (world.run(escape, means) for means in (UNCONFINED, *had))
            cells = [each.partition(":")[0] for each in found]
            print(f"{escape:<36} {control[:10]:<10} " + " ".join(f"{each:<24}" for each in cells), flush=True)
            if control != "out" and escape in MAY_BE_REFUSED:
                print(f"{escape:<36} not on this machine: {MAY_BE_REFUSED[escape]} ({control})")
                continue
            broken += [] if control == "out" else [f"{escape}: its control says {control}"]
            for means, cell, said in zip(had, cells, found, strict=True):
                if cell != "held" and is_to_be_held(escape, means):
                    broken.append(f"{escape}: with {means} it says {said}")
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
