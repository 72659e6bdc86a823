"""Prints for each escape what held it: `python -m tests.sandbox`. Ends with 1 if a promise is broken,
or if namespaces are refused here."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.host.sandbox.kit import has_namespaces
from tests.sandbox.escapes import ESCAPES, can_be_tried, is_to_be_held
from tests.sandbox.world import MEANS, UNCONFINED, open_world


def main() -> int:
    if not has_namespaces():
        print("This system refuses its users namespaces, so no escape was tried.")
        return 1
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="colonnade-sandbox-") as folder, open_world(Path(folder)) as world:
        print(f"{'escape':<36} {'no sandbox':<10} " + " ".join(f"{each:<24}" for each in MEANS))
        for escape in ESCAPES:
            if not can_be_tried(escape):
                print(f"{escape:<36} not for this user")
                continue
            control, *found = (world.run(escape, means) for means in (UNCONFINED, *MEANS))
            cells = [each.partition(":")[0] for each in found]
            print(f"{escape:<36} {control[:10]:<10} " + " ".join(f"{each:<24}" for each in cells), flush=True)
            broken += [] if control == "out" else [f"{escape}: its control says {control}"]
            for means, cell, said in zip(MEANS, cells, found, strict=True):
                if cell != "held" and is_to_be_held(escape, means):
                    broken.append(f"{escape}: with {means} it says {said}")
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
