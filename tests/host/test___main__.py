"""`python -m host` is the command `colonnade`."""

from __future__ import annotations

import subprocess
import sys

from tests.real.running import ROOT


def test_the_package_can_be_run() -> None:
    command = [sys.executable, "-m", "host", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: colonnade ")
