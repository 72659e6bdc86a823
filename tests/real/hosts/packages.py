"""The packages of npm, each in a folder of its own below `build/hosts`, where it stays until its version changes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.real.running import ROOT

BUILD = ROOT / "build" / "hosts"
INSTALL_SECONDS = 300
AT_ONCE = 4


def folder_of(package: str) -> Path:
    """Where a package with its version is installed."""
    return BUILD / package.replace("/", "+")


def program_of(package: str, program: str) -> Path:
    return folder_of(package) / "node_modules" / ".bin" / program


def install(packages: Iterable[str]) -> dict[str, str]:
    """Install what is not installed yet, several at once.

    Returns:
        Of each package that could not be installed, the reason.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = pool.map(lambda package: (package, _install(package)), packages)
    return {package: problem for package, problem in problems if problem}


def _install(package: str) -> str:
    """Install one package. The reason if that fails, else nothing."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    folder = folder_of(package)
    done = folder / ".installed"  # written last: an install that was interrupted is begun again
    if done.is_file():
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", package]
    # The install step of opencode makes folders for its settings.
    own = {f"XDG_{kind}_HOME": str(folder / "xdg") for kind in ("CACHE", "CONFIG", "DATA", "STATE")}
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the npm registry did not deliver within {INSTALL_SECONDS} s"
    if ran.returncode != 0:
        return f"npm could not install it: {ran.stderr.strip()[:300]}"
    done.touch()
    return ""
