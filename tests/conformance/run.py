"""Hold Colonnade against the official MCP conformance suite, with the reference server behind it.

    python tests/conformance/run.py [--only SCENARIO] [--direct-only] [--spec-version 2025-11-25]

Each scenario runs twice: against `examples/servers/everything.py` itself, and against the same server through
`colonnade serve`, at the mount that keeps its names (`/mcp/everything`). What passes directly has to pass there too.

It knows how the suite is installed, run and read, and which scenarios come later (`later.txt`). It refuses to know
what a scenario asks: the verdicts are the suite's, made stricter in one point (see `judge`). It owns
`build/conformance`: the suite and a Node 22 for it, both from the npm registry, and under `results/` every check as
the suite wrote it and what the servers printed.

The last line reads `N passed, M failed`, counted in the second column over the scenarios that pass directly. The exit
status is 0 when M is 0 and every scenario passes directly, 1 when not, and 2 when there was nothing to judge.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "conformance"
RESULTS = BUILD / "results"
LATER = Path(__file__).with_name("later.txt")
EVERYTHING = ROOT / "examples" / "servers" / "everything.py"
COLONNADE = Path(sys.executable).with_name("colonnade")

SUITE_PACKAGE, SUITE_VERSION = "@modelcontextprotocol/conformance", "0.2.0-alpha.12"
NODE_VERSION = "22.23.3"  # the suite needs 22; machines often have an older one

JOBS = 2  # scenarios at a time: each is a Node process, and the servers need a core as well
SCENARIO_SECONDS = 15  # the slowest takes two; one that hangs should not hold up the others for long
START_SECONDS = 30  # Python's imports on a busy machine
STOP_SECONDS = 5

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/mcp")


class CannotRun(Exception):
    """There is nothing to judge; the text says what is missing and what to do."""


# ---------------------------------------------------------------------------------------------------------------------
# The suite
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suite:
    """The installed suite, as a command."""

    node: Path
    script: Path

    def command(self, *arguments: str) -> list[str]:
        """The command line for the suite with `arguments`."""
        return [str(self.node), str(self.script), *arguments]

    def scenarios(self) -> dict[str, list[str]]:
        """Every server scenario the suite has, with the revisions it applies to, in the suite's order."""
        listing = subprocess.run(self.command("list", "--server"), capture_output=True, text=True, check=True).stdout
        rows = re.findall(r"^\s+- (\S+) \[(.*)\]$", listing, re.MULTILINE)
        if not rows:
            raise CannotRun(f"The suite lists no scenarios; it said:\n{listing}")
        return {name: versions.split(",") for name, versions in rows}


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
    pins = {SUITE_PACKAGE: SUITE_VERSION, node_package(): NODE_VERSION}
    if any(installed_version(package) != version for package, version in pins.items()):
        npm = shutil.which("npm")
        if npm is None:
            raise CannotRun("npm is not installed; it is needed to fetch the conformance suite.")
        BUILD.mkdir(parents=True, exist_ok=True)
        wanted = [f"{package}@{version}" for package, version in pins.items()]
        print(f"Installing {' and '.join(wanted)} ...", flush=True)
        # Warnings are held back: this npm's own Node is too old for the suite, which is why another comes with it.
        options = ["--prefix", str(BUILD), "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run([npm, "install", *options, "--loglevel=error", *wanted], cwd=BUILD, check=False)
        if done.returncode != 0:
            raise CannotRun(f"npm could not install the conformance suite (exit status {done.returncode}).")
    modules = BUILD / "node_modules"
    return Suite(modules / node_package() / "bin" / "node", modules / SUITE_PACKAGE / "dist" / "index.js")


def read_later(known: dict[str, list[str]]) -> frozenset[str]:
    """The scenarios that are not counted yet."""
    lines = (line.partition("#")[0].strip() for line in LATER.read_text(encoding="utf-8").splitlines())
    names = frozenset(line for line in lines if line)
    if unknown := sorted(names - known.keys()):
        raise CannotRun(f"{LATER.relative_to(ROOT)} names scenarios that the suite does not have: {', '.join(unknown)}")
    return names


# ---------------------------------------------------------------------------------------------------------------------
# One scenario and its outcome
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What the suite found in one scenario against one address."""

    failures: list[str] = field(default_factory=list)  # each check that failed: its id and the suite's message
    warnings: list[str] = field(default_factory=list)  # the same for what a server should do and need not
    passed: frozenset[str] = frozenset()  # ids of checks

    @property
    def verdict(self) -> str:
        """For a cell of the table."""
        if self.failures:
            return f"FAILED {len(self.failures)} {'check' if len(self.failures) == 1 else 'checks'}"
        return "passed" if self.passed else "not applicable"


# The suite adds this check to every scenario; on its own it does not show that the scenario's own subject was tested.
WIRE_CHECK = "wire-schema-valid"


def judge(checks: list[dict[str, Any]]) -> Outcome:
    """The outcome of a scenario from the checks it wrote.

    The suite lets warnings pass. Here a scenario that ends in nothing but warnings has failed: the server itself shows
    what the scenario looks for, and through Colonnade none of it is left.
    """

    def messages(status: str) -> list[str]:
        return [
            f"{check['id']}: {check.get('errorMessage') or check['description']}"
            for check in checks
            if check["status"] == status
        ]

    succeeded = {check["id"] for check in checks if check["status"] == "SUCCESS"}
    failures, warnings = messages("FAILURE"), messages("WARNING")
    if not failures and warnings and not succeeded - {WIRE_CHECK}:
        failures, warnings = warnings, []
    return Outcome(failures, warnings, frozenset(succeeded) if succeeded - {WIRE_CHECK} else frozenset())


def read_outcome(folder: Path) -> Outcome:
    """The outcome from the files that a scenario left."""
    found = sorted(folder.glob("*/checks.json"))
    if not found:
        return Outcome([f"the suite came to no result; see {folder.relative_to(ROOT) / 'output.txt'}"])
    return judge(json.loads(found[-1].read_text(encoding="utf-8")))


async def run_scenario(suite: Suite, name: str, version: str, url: str, folder: Path) -> Outcome:
    """Run one scenario against `url`; its files go to `folder`."""
    await trio.Path(folder).mkdir(parents=True)
    command = suite.command(
        *("server", "--url", url, "--scenario", name, "--spec-version", version),
        *("--output-dir", str(folder), "--timeout", str(SCENARIO_SECONDS * 1000)),
    )
    with (folder / "output.txt").open("wb") as output:
        # The suite ends a scenario by itself; this limit is for the case that it cannot.
        with trio.move_on_after(SCENARIO_SECONDS + STOP_SECONDS):
            await trio.run_process(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    return read_outcome(folder)


async def run_column(suite: Suite, names: list[str], version: str, url: str, folder: Path) -> dict[str, Outcome]:
    """Run all scenarios against `url`, a few at a time."""
    outcomes: dict[str, Outcome] = {}
    places = trio.CapacityLimiter(JOBS)

    async def run_one(name: str) -> None:
        async with places:
            outcomes[name] = await run_scenario(suite, name, version, url, folder / name)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(run_one, name)
    return outcomes


# ---------------------------------------------------------------------------------------------------------------------
# The two servers
# ---------------------------------------------------------------------------------------------------------------------


async def stop(process: trio.Process) -> None:
    """End the process, kindly first."""
    process.terminate()
    with trio.move_on_after(STOP_SECONDS, shield=True) as patience:
        await process.wait()
    if patience.cancelled_caught:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@contextlib.asynccontextmanager
async def open_server(name: str, command: list[str], is_ready: re.Pattern[str]) -> AsyncIterator[str]:
    """Run a server for the time of the block; yields the address it printed, once it also printed `is_ready`.

    Raises `CannotRun` with the end of what it printed when it ends or is not ready in time.
    """
    # Files, not pipes: nobody has to keep reading, and they stay for the reader of a failed run. The address counts
    # on stdout alone, as a log may name other addresses.
    out, log = RESULTS / f"{name}.out", RESULTS / f"{name}.log"
    with out.open("wb") as stdout, log.open("wb") as stderr:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = await trio.lowlevel.open_process(command, stdout=stdout, stderr=stderr, cwd=ROOT, env=environment)
    try:
        deadline = trio.current_time() + START_SECONDS
        while True:
            printed = out.read_text(encoding="utf-8", errors="replace")
            address = ADDRESS.search(printed)
            if address and is_ready.search(printed):
                break
            if process.poll() is not None or trio.current_time() > deadline:
                state = "is not ready" if process.returncode is None else f"ended with status {process.returncode}"
                logged = log.read_text(encoding="utf-8", errors="replace")
                raise CannotRun(
                    f"{name} {state}; it printed ({out.relative_to(ROOT)}, .log):\n{(printed + logged)[-2000:]}"
                )
            await trio.sleep(0.05)  # a real sleep: a file cannot be waited for
        yield address.group()
    finally:
        await stop(process)


def open_everything() -> contextlib.AbstractAsyncContextManager[str]:
    """The reference server, on a free port."""
    return open_server("everything", [sys.executable, str(EVERYTHING), "--http", "127.0.0.1:0"], ADDRESS)


def open_colonnade(upstream: str) -> contextlib.AbstractAsyncContextManager[str]:
    """Colonnade on a free port in front of the server at `upstream`."""
    if not COLONNADE.is_file():
        raise CannotRun(f"There is no {COLONNADE}: install the project into this environment first.")
    path = RESULTS / "colonnade.yaml"
    lines = ('listen: {address: "127.0.0.1:0"}', "servers:", f'  everything: {{url: "{upstream}"}}')
    path.write_text("\n".join((*lines, "")), encoding="utf-8")
    ready = re.compile(r"^.*\beverything\b.*\bready\b", re.MULTILINE)
    return open_server("colonnade", [str(COLONNADE), "serve", str(path)], ready)


# ---------------------------------------------------------------------------------------------------------------------
# The report
# ---------------------------------------------------------------------------------------------------------------------


def print_table(
    names: list[str], later: frozenset[str], direct: dict[str, Outcome], through: dict[str, Outcome] | None
) -> None:
    """One line per scenario, both columns."""
    width = max(len(name) for name in ("scenario", *names)) + 2
    print(f"\n{'scenario':{width}}{'directly':18}{'' if through is None else 'through Colonnade'}".rstrip())
    for name in names:
        second = ""
        if through is not None:
            second = f"later ({through[name].verdict})" if name in later else through[name].verdict
        print(f"{name:{width}}{direct[name].verdict:18}{second}".rstrip())


def print_messages(title: str, messages: dict[str, list[str]]) -> None:
    """A list of scenarios with what the suite said about each; nothing when there are none."""
    if not messages:
        return
    print(f"\n{title}")
    for name, lines in messages.items():
        print(f"  {name}")
        for line in lines:
            print(f"    {line}")


def report(
    names: list[str], later: frozenset[str], direct: dict[str, Outcome], through: dict[str, Outcome] | None
) -> int:
    """Print everything; the exit status."""
    print_table(names, later, direct, through)
    broken = {name: direct[name].failures for name in names if direct[name].failures}
    print_messages("The reference server itself fails, so these say nothing about Colonnade:", broken)
    if through is None:
        passed = sum(direct[name].verdict == "passed" for name in names)
        print(f"\n{passed} passed, {len(broken)} failed")
        return 1 if broken else 0
    counted = [name for name in names if direct[name].verdict == "passed" and name not in later]
    lost = {name: through[name].failures for name in counted if through[name].failures}
    print_messages("Lost on the way through Colonnade:", lost)
    weaker = {
        name: [*through[name].warnings, *(f"{check}: not shown" for check in sorted(unseen))]
        for name in counted
        if name not in lost and (unseen := direct[name].passed - through[name].passed)
    }
    print_messages("Allowed, but less than the server does by itself (not counted as failed):", weaker)
    passed = sum(through[name].verdict == "passed" for name in counted)
    print(f"\n{passed} passed, {len(lost)} failed")
    return 1 if lost or broken else 0


async def compare(suite: Suite, names: list[str], later: frozenset[str], version: str, direct_only: bool) -> int:
    """Run both columns and report them; the exit status."""
    async with open_everything() as upstream:
        direct = await run_column(suite, names, version, upstream, RESULTS / "direct")
        if direct_only:
            return report(names, later, direct, None)
        try:
            async with open_colonnade(upstream) as endpoint:
                through = await run_column(suite, names, version, f"{endpoint}/everything", RESULTS / "colonnade")
        except CannotRun as obstacle:
            print(f"\n{obstacle}")
            through = {name: Outcome(["not run: Colonnade did not start"]) for name in names}
    return report(names, later, direct, through)


def main(arguments: list[str]) -> int:
    """Read the command line and run; the exit status."""
    parser = argparse.ArgumentParser(description="Hold Colonnade against the official MCP conformance suite.")
    parser.add_argument("--only", metavar="SCENARIO", action="append", help="run this scenario (may be repeated)")
    parser.add_argument("--direct-only", action="store_true", help="run against the reference server alone")
    parser.add_argument("--spec-version", default="2025-11-25", help="the revision to run (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        suite = install_suite()
        known = suite.scenarios()
        later = read_later(known)
        names = [name for name, versions in known.items() if options.spec_version in versions]
        if options.only:
            if unknown := sorted(set(options.only) - set(names)):
                raise CannotRun(f"Not among the scenarios for {options.spec_version}: {', '.join(unknown)}")
            names = [name for name in names if name in options.only]
        if not names:
            raise CannotRun(f"The suite has no scenarios for {options.spec_version}.")
        shutil.rmtree(RESULTS, ignore_errors=True)
        RESULTS.mkdir(parents=True)
        return trio.run(compare, suite, names, later, options.spec_version, options.direct_only)
    except CannotRun as obstacle:
        print(obstacle, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
