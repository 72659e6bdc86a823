"""Hold Colonnade against the official MCP conformance suite, as a server and as a client.

    python tests/conformance/run.py [--only SCENARIO] [--direct-only] [--spec-version 2025-11-25]

As a server: each scenario runs twice, against `examples/servers/everything.py` itself, and against the same server
through `colonnade serve`, at the mount that keeps its names (`/mcp/everything`). What passes directly has to pass there
too. As a client: the suite is the server, and `client.py` puts Colonnade before it. What is not run stands in
`NOT_RUN`, with the reason.

It knows how the suite is installed, run and read. It refuses to know what a scenario asks: the verdicts are the
suite's, made stricter in one point (see `judge`). It owns `build/conformance`: the suite and a Node 22 for it, both
from the npm registry, and under `results/` every check as the suite wrote it and what the servers printed.

The last line reads `N passed, M failed`: the scenarios that pass directly, counted as they end through Colonnade, and
those for clients. The exit status is 0 when M is 0 and every scenario passes directly, 1 when not, and 2 when there was
nothing to judge.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "conformance"
RESULTS = BUILD / "results"
EVERYTHING = ROOT / "examples" / "servers" / "everything.py"
COLONNADE = Path(sys.executable).with_name("colonnade")

SUITE_PACKAGE, SUITE_VERSION = "@modelcontextprotocol/conformance", "0.2.0-alpha.12"
NODE_VERSION = "22.23.3"  # the suite needs 22; machines often have an older one

JOBS = 2  # scenarios at a time: each is a Node process, and the servers need a core as well
SCENARIO_SECONDS = 15  # the slowest takes two; one that hangs should not hold up the others for long
CLIENT_SECONDS = 60  # more than `client.py` allows itself, so that it always ends what it started
START_SECONDS = 30  # Python's imports on a busy machine
STOP_SECONDS = 5

NOT_RUN = {
    "auth/": "they are about OAuth: Colonnade sends what `headers` says, and signs in nowhere by itself",
}
"""Scenarios for clients that Colonnade is not held against, by how their names begin, and why not."""

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


async def run_suite(command: list[str], folder: Path, seconds: float) -> int | None:
    """Run the suite's command; what it prints goes to `folder`. Its exit status, `None` when it had to be ended."""
    await trio.Path(folder).mkdir(parents=True)
    with (folder / "output.txt").open("wb") as output:
        # The suite ends a scenario by itself; this limit is for the case that it cannot.
        with trio.move_on_after(seconds + STOP_SECONDS):
            done = await trio.run_process(command, stdout=output, stderr=subprocess.STDOUT, check=False, cwd=ROOT)
            return done.returncode
    return None


async def run_scenario(suite: Suite, name: str, version: str, url: str, folder: Path) -> Outcome:
    """Run one scenario for servers against `url`; its files go to `folder`."""
    command = suite.command(
        *("server", "--url", url, "--scenario", name, "--spec-version", version),
        *("--output-dir", str(folder), "--timeout", str(SCENARIO_SECONDS * 1000)),
    )
    await run_suite(command, folder, SCENARIO_SECONDS)
    return read_outcome(folder)


async def run_client_scenario(suite: Suite, name: str, version: str, folder: Path) -> Outcome:
    """Run one scenario for clients against Colonnade; its files go to `folder`."""
    client = shlex.join([sys.executable, "-m", "tests.conformance.client", str(folder)])
    command = suite.command(
        *("client", "--command", client, "--scenario", name, "--spec-version", version),
        *("--output-dir", str(folder), "--timeout", str(CLIENT_SECONDS * 1000)),
    )
    status = await run_suite(command, folder, CLIENT_SECONDS)
    outcome = read_outcome(folder)
    if outcome.failures or (status == 0 and outcome.passed):
        return outcome
    # The suite says with its status what no check says: that the client ended badly. And it lets no client off with a
    # warning, so neither does this.
    return Outcome(outcome.warnings or ["what Colonnade was to be made to do could not be done"])


Runner = Callable[[str], Awaitable[Outcome]]


async def run_all(names: list[str], run: Runner) -> dict[str, Outcome]:
    """Run the scenarios, a few at a time."""
    outcomes: dict[str, Outcome] = {}
    places = trio.CapacityLimiter(JOBS)

    async def run_one(name: str) -> None:
        async with places:
            outcomes[name] = await run(name)

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
    # Trusted, as scenarios for sampling are among those that have to pass.
    server = f'  everything: {{url: "{upstream}", trust: trusted}}'
    lines = ('listen: {address: "127.0.0.1:0"}', "servers:", server)
    path.write_text("\n".join((*lines, "")), encoding="utf-8")
    ready = re.compile(r"^.*\beverything\b.*\bready\b", re.MULTILINE)
    return open_server("colonnade", [str(COLONNADE), "serve", str(path)], ready)


# ---------------------------------------------------------------------------------------------------------------------
# The report
# ---------------------------------------------------------------------------------------------------------------------


def print_table(title: str, names: list[str], columns: dict[str, dict[str, Outcome]]) -> None:
    """One line per scenario, with its verdict in each column."""
    width = max(len(name) for name in (title, *names)) + 2
    print(f"\n{title:{width}}{''.join(f'{column:18}' for column in columns)}".rstrip())
    for name in names:
        print(f"{name:{width}}{''.join(f'{outcomes[name].verdict:18}' for outcomes in columns.values())}".rstrip())


def print_messages(title: str, messages: dict[str, list[str]]) -> None:
    """A list of scenarios with what the suite said about each; nothing when there are none."""
    if not messages:
        return
    print(f"\n{title}")
    for name, lines in messages.items():
        print(f"  {name}")
        for line in lines:
            print(f"    {line}")


@dataclass(frozen=True)
class Count:
    """How many scenarios ended which way; `broken` are those that already fail without Colonnade."""

    passed: int = 0
    failed: int = 0
    broken: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.broken + other.broken)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed"


def count(outcomes: Iterable[Outcome], broken: int = 0) -> Count:
    """The verdicts, counted."""
    every = list(outcomes)
    failed = sum(bool(outcome.failures) for outcome in every)
    return Count(sum(outcome.verdict == "passed" for outcome in every), failed, broken)


def report_server(names: list[str], direct: dict[str, Outcome], through: dict[str, Outcome] | None) -> Count:
    """Print both columns, and what was lost between them."""
    columns = {"directly": direct} if through is None else {"directly": direct, "through Colonnade": through}
    print_table("scenario", names, columns)
    broken = {name: direct[name].failures for name in names if direct[name].failures}
    print_messages("The reference server itself fails, so these say nothing about Colonnade:", broken)
    if through is None:
        return count(direct.values())
    counted = {name: through[name] for name in names if direct[name].verdict == "passed"}
    lost = {name: outcome.failures for name, outcome in counted.items() if outcome.failures}
    print_messages("Lost on the way through Colonnade:", lost)
    weaker = {
        name: [*outcome.warnings, *(f"{check}: not shown" for check in sorted(unseen))]
        for name, outcome in counted.items()
        if name not in lost and (unseen := direct[name].passed - outcome.passed)
    }
    print_messages("Allowed, but less than the server does by itself (not counted as failed):", weaker)
    return count(counted.values(), len(broken))


def report_client(names: list[str], outcomes: dict[str, Outcome], left_out: list[str]) -> Count:
    """Print the verdicts on Colonnade as a client, and what was left out."""
    print_table("scenario for clients", names, {"Colonnade": outcomes})
    failures = {name: outcomes[name].failures for name in names if outcomes[name].failures}
    print_messages("Not kept by Colonnade as a client:", failures)
    if failures:
        print(f"What happened in each: {(RESULTS / 'client').relative_to(ROOT)}/SCENARIO/, output.txt and *.stderr")
    for beginning, reason in NOT_RUN.items():
        if number := sum(name.startswith(beginning) for name in left_out):
            print(f"\nNot run: the {number} that begin with {beginning}, since {reason}.")
    return count(outcomes.values())


# ---------------------------------------------------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    version: str
    server: list[str]
    client: list[str]
    left_out: list[str]
    direct_only: bool


async def run_server_side(suite: Suite, plan: Plan) -> Count:
    """Run both columns and report them."""

    async def run_column(url: str, folder: str) -> dict[str, Outcome]:
        return await run_all(
            plan.server, lambda name: run_scenario(suite, name, plan.version, url, RESULTS / folder / name)
        )

    async with open_everything() as upstream:
        direct = await run_column(upstream, "direct")
        if plan.direct_only:
            return report_server(plan.server, direct, None)
        try:
            async with open_colonnade(upstream) as endpoint:
                through = await run_column(f"{endpoint}/everything", "colonnade")
        except CannotRun as obstacle:
            print(f"\n{obstacle}")
            through = {name: Outcome(["not run: Colonnade did not start"]) for name in plan.server}
    return report_server(plan.server, direct, through)


async def run_client_side(suite: Suite, plan: Plan) -> Count:
    """Run the scenarios for clients and report them."""
    outcomes = await run_all(
        plan.client, lambda name: run_client_scenario(suite, name, plan.version, RESULTS / "client" / name)
    )
    return report_client(plan.client, outcomes, plan.left_out)


async def run_plan(suite: Suite, plan: Plan) -> int:
    """Run and report everything; the exit status."""
    server = await run_server_side(suite, plan) if plan.server else Count()
    client = await run_client_side(suite, plan) if plan.client else Count()
    print()
    if plan.server and plan.client:
        print(f"as a server: {server}")
        print(f"as a client: {client}")
    total = server + client
    print(total)
    return 1 if total.failed or total.broken else 0


def make_plan(suite: Suite, version: str, only: list[str] | None, direct_only: bool) -> Plan:
    """What the command line asks for.

    Raises:
        CannotRun: there is no such scenario, or none at all.
    """
    server = suite.scenarios("server", version)
    listed = [] if direct_only else suite.scenarios("client", version)
    left_out = [name for name in listed if name.startswith(tuple(NOT_RUN))]
    client = [name for name in listed if name not in left_out]
    if only:
        if unknown := sorted(set(only) - {*server, *client}):
            raise CannotRun(f"Not among the scenarios that are run for {version}: {', '.join(unknown)}")
        server = [name for name in server if name in only]
        client, left_out = [name for name in client if name in only], []
    if not server and not client:
        raise CannotRun(f"The suite has no scenarios for {version}.")
    return Plan(version, server, client, left_out, direct_only)


def main(arguments: list[str]) -> int:
    """Read the command line and run; the exit status."""
    parser = argparse.ArgumentParser(description="Hold Colonnade against the official MCP conformance suite.")
    parser.add_argument("--only", metavar="SCENARIO", action="append", help="run this scenario (may be repeated)")
    parser.add_argument("--direct-only", action="store_true", help="run against the reference server alone")
    parser.add_argument("--spec-version", default="2025-11-25", help="the revision to run (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        suite = install_suite()
        plan = make_plan(suite, options.spec_version, options.only, options.direct_only)
        shutil.rmtree(RESULTS, ignore_errors=True)
        RESULTS.mkdir(parents=True)
        return trio.run(run_plan, suite, plan)
    except CannotRun as obstacle:
        print(obstacle, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
