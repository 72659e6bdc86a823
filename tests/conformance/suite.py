"""The official conformance suite, as it is installed and called.

It owns `build/conformance`: the suite and a Node that is new enough for it, both from the npm registry.
"""

from __future__ import annotations

import fcntl
import json
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "conformance"

SUITE_PACKAGE, SUITE_VERSION = "@modelcontextprotocol/conformance", "0.2.0-alpha.12"
NODE_VERSION = "22.23.3"  # the suite needs 22; machines often have an older one


class CannotRun(Exception):
    """There is nothing to judge; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Suite:
    """The installed suite, as a command."""

    node: Path
    script: Path

    def command(self, *arguments: str) -> list[str]:
        """The command line for the suite with `arguments`."""
        return [str(self.node), str(self.script), *arguments]

    def scenarios(self, role: str, version: str) -> list[str]:
        """The scenarios for this revision that test a `server` or a `client`, in the suite's order."""
        listing = subprocess.run(self.command("list", f"--{role}"), capture_output=True, text=True, check=True).stdout
        rows = re.findall(r"^\s+- (\S+) \[(.*)\]$", listing, re.MULTILINE)
        if not rows:
            raise CannotRun(f"The suite lists no scenarios for a {role}; it said:\n{listing}")
        return [name for name, versions in rows if version in versions.split(",")]


def node_package() -> str:
    """The npm package that holds a Node binary for this machine.

    The package `node` is only an install script, which fetches this one; without it no package needs to run a script.
    """
    system = platform.system().lower()
    architecture = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    prefix = "node-bin" if (system, architecture) == ("darwin", "arm64") else "node"
    return f"{prefix}-{system}-{architecture}"


def installed_version(package: str) -> str | None:
    """The version of an npm package in the build folder, `None` when it is not there."""
    manifest = BUILD / "node_modules" / package / "package.json"
    if not manifest.is_file():
        return None
    return str(json.loads(manifest.read_text(encoding="utf-8"))["version"])


def install_suite() -> Suite:
    """The suite, installed from the npm registry if it is not there in the right version. The only use of a network."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the conformance run and the matrix may begin at the same time
        _install_missing()
    modules = BUILD / "node_modules"
    return Suite(modules / node_package() / "bin" / "node", modules / SUITE_PACKAGE / "dist" / "index.js")


def _install_missing() -> None:
    pins = {SUITE_PACKAGE: SUITE_VERSION, node_package(): NODE_VERSION}
    if all(installed_version(package) == version for package, version in pins.items()):
        return
    npm = shutil.which("npm")
    if npm is None:
        raise CannotRun("npm is not installed; it is needed to fetch the conformance suite.")
    wanted = [f"{package}@{version}" for package, version in pins.items()]
    print(f"Installing {' and '.join(wanted)} ...", flush=True)
    # Warnings are held back: this npm's own Node is too old for the suite, which is why another comes with it.
    options = ["--prefix", str(BUILD), "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run([npm, "install", *options, "--loglevel=error", *wanted], cwd=BUILD, check=False)
    if done.returncode != 0:
        raise CannotRun(f"npm could not install the conformance suite (exit status {done.returncode}).")
