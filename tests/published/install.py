"""Published servers, each installed once below `build/published`: npm packages in one tree, each PyPI package in an
environment of its own. What they depend on is as it was on one day."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.published.servers import Server
from tests.real.running import BIN, ROOT

HOME = ROOT / "build" / "published"
DAY = "2026-11-20"
_NPM = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--no-package-lock")


class NeedsPython(Exception):
    """A package cannot be installed for the Python that runs this."""


def install(servers: Iterable[Server]) -> None:
    """Install what is not there. Raises subprocess.CalledProcessError, AssertionError."""
    HOME.mkdir(parents=True, exist_ok=True)
    missing = [each for each in servers if not _mark(each.package, each.version).exists()]
    npm = [f"{_name(each.package)}@{each.version}" for each in missing if each.package.startswith("npm:")]
    if npm:
        # An install takes away what it was not told: the others that are there are told again.
        there = [mark.read_text() for mark in HOME.glob("npm--*.installed")]
        words = ["npm", "install", "--prefix", str(HOME / "npm"), "--before", DAY, *_NPM, *npm, *there]
        subprocess.run(words, check=True, stdout=sys.stderr)
    for each in missing:
        if each.package.startswith("pypi:"):
            install_python(each.package, f"{_name(each.package)}=={each.version}")
        _mark(each.package, each.version).write_text(f"{_name(each.package)}@{each.version}")


def install_python(folder: str, *requirements: str) -> Path:
    """An environment with these requirements; the folder of its commands.

    Raises:
        NeedsPython: they need another Python than this one.
    """
    where = HOME / folder.replace(":", "-")
    uv = [str(BIN / "uv"), "--quiet"]
    environment = {**os.environ, "VIRTUAL_ENV": str(where), "UV_CACHE_DIR": str(HOME / "uv")}
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(where)], check=True, env=environment)
    words = [*uv, "pip", "install", "--exclude-newer", DAY, *requirements]
    done = subprocess.run(words, check=False, env=environment, capture_output=True, text=True)
    if "does not satisfy Python" in done.stderr:
        raise NeedsPython(done.stderr)
    assert done.returncode == 0, done.stderr
    return where / "bin"


def command(server: Server) -> list[str]:
    """The words that start it, without its arguments."""
    if server.package.startswith("npm:"):
        return ["node", str(HOME / "npm" / "node_modules" / _name(server.package) / server.program)]
    return [str(HOME / server.package.replace(":", "-") / "bin" / server.program)]


def _name(package: str) -> str:
    return package.partition(":")[2]


def _mark(package: str, version: str) -> Path:
    """A file that is there if the package is."""
    return HOME / f"{package.replace('/', '-').replace(':', '--')}-{version}-{DAY}.installed"
