"""Systems that lack what a sandbox is made of: the state of a server there, its remedy, and whether it was started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.sandbox import Means
from tests.kit.kernel import needs_landlock_alone, needs_namespaces
from tests.sandbox.refusing import SYSTEMS

pytestmark = [needs_namespaces, needs_landlock_alone, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
STARTED = "started"
TELL = """
import json, sys, trio
from pathlib import Path
from config.sandbox import Means
from tests.sandbox.stated import told_with

print(json.dumps({each.value: trio.run(told_with, Path(sys.argv[1]), each) for each in Means}))
"""


@dataclass(frozen=True)
class System:
    """A system with this `refused` (SYSTEMS in refusing.py), and parts of the state there of a server that accepts
    namespaces alone, and of one that accepts Landlock."""

    refused: tuple[str, ...]
    namespaces: tuple[str, ...]
    landlock: tuple[str, ...]


WITHOUT_NAMESPACES = ("(user namespaces: ", "bwrap-userns-restrict", "accept: landlock")
ALONE = (STARTED, "Landlock ", "not by namespaces")
KINDS = {
    "a system with everything": System((), (STARTED, "namespaces, Landlock "), (STARTED, "namespaces, Landlock ")),
    "no Landlock": System(("landlock",), (STARTED, "not by Landlock"), (STARTED, "not by Landlock")),
    "no user namespaces": System(("namespaces",), WITHOUT_NAMESPACES, ALONE),
    "no user namespaces left": System(("no namespaces left",), WITHOUT_NAMESPACES, ALONE),
    "Ubuntu: namespaces without rights": System(("ubuntu",), WITHOUT_NAMESPACES, ALONE),
    "mounts are refused": System(("mounts",), ("(mounts", "bwrap-userns-restrict"), ALONE),
    "neither": System(
        ("namespaces", "landlock"), WITHOUT_NAMESPACES, ("(Landlock 6: ", "that needs Linux 6.12, with Landlock")
    ),
    "no use of keys": System(("keys",), (STARTED, "namespaces, "), (STARTED, "namespaces, ")),
    "no filters of system calls": System(("filters",), (STARTED, "not by seccomp"), (STARTED, "not by seccomp")),
}


def told_on(system: tuple[str, ...], folder: Path) -> dict[str, list[object]]:
    """The words of a host on such a system with each value of `accept`, and whether a program was started."""
    words = [sys.executable, "-c", TELL, str(folder)]
    if system:
        words = [sys.executable, "-m", "tests.sandbox.refusing", ",".join(system), *words]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[object]] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", KINDS)
def test_the_state_of_a_server_and_its_remedy(name: str, tmp_path: Path) -> None:
    system = KINDS[name]
    told = told_on(system.refused, tmp_path)
    for accept, parts in ((Means.NAMESPACES, system.namespaces), (Means.LANDLOCK, system.landlock)):
        said, was_started = told[accept.value]
        assert [part for part in parts if part not in str(said)] == [], said
        assert was_started is (STARTED in parts), said


def test_every_way_to_refuse_is_tried() -> None:
    assert {each for kind in KINDS.values() for each in kind.refused} == set(SYSTEMS)
