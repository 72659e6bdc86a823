"""The means that the kernel lets the users of this machine have. Tests that need more are skipped, also in CI."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest

from host.sandbox import landlock

NOT_HERE = "not to be had here: "
"""With it begins the reason of a test that is skipped for that."""


@cache
def has_namespaces() -> bool:
    """Whether users may have namespaces, with mounts and a /proc of their own."""
    words = ["unshare", "-Urnmp", "--fork", "--mount-proc", "true"]
    return (
        shutil.which("unshare") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


@cache
def has_bubblewrap() -> bool:
    """Whether bubblewrap is installed, in a version that forbids namespaces inside, and may have namespaces."""
    words = ["bwrap", "--unshare-user", "--disable-userns", "--unshare-pid", "--ro-bind", "/", "/", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason=f"{NOT_HERE}user namespaces")
needs_bubblewrap = pytest.mark.skipif(not has_bubblewrap(), reason=f"{NOT_HERE}namespaces for bubblewrap")
needs_landlock = pytest.mark.skipif(not landlock.version(), reason=f"{NOT_HERE}Landlock")
needs_landlock_alone = pytest.mark.skipif(
    landlock.version() < landlock.OUTSIDE, reason=f"{NOT_HERE}Landlock {landlock.OUTSIDE}"
)
