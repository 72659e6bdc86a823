"""Hold Colonnade against the official MCP conformance suite, as a server and as a client, in three revisions.

    python -m tests.conformance.run [--only SCENARIO] [--direct-only] [--spec-version 2026-07-28] [--replicas 3]

As a server: each scenario runs against `examples/servers/everything.py` itself, against the same server through
`colonnade serve`, at the mount that keeps its names (`/mcp/everything`), and once more through Colonnade before a
server that speaks the handshake revisions only (`everything.py --handshake-only`). Then the same with a server of both
eras whose tools push (`everything.py --push`): itself, at its mount, and at the address of all servers, with the others
beside it, where `shim.py` undoes the prefixes. Either server is also run in a view with search, where `shim.py` calls
its tools through call_tool. What passes directly has to pass through Colonnade too, but for the few
that cannot (`CANNOT`, with the reasons). As a client: the suite is the server, and `client.py` puts Colonnade before
it, and a client of either era before that. What is not run stands in `NOT_RUN`, what is wrong in the suite itself in
`KNOWN_FAULTS`, each with the reason. With `--replicas`, Colonnade as a server is so many processes of a fleet behind
haproxy, in turns; the client's side is left out, as nothing of it differs. Taps on both sides of Colonnade write down
every message that it sends, and each is held against the schema of its revision (`schemas.py`).

It knows how the suite is run and read. It refuses to know what a scenario asks: the verdicts are the suite's, made
stricter in one point (see `judge`). It owns `build/conformance/results`: every check as the suite wrote it and what the
servers printed.

The last lines sum up each revision, and the very last reads `N passed, M failed`: the scenarios that pass directly,
counted as they end through Colonnade, once for each place, and those for clients, once for either client. The exit
status is 0 when M is 0, every scenario passes directly and every message is what its schema has, 1 when not, and 2 when
there was nothing to judge.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.conformance.logins import LOGINS
from tests.conformance.schemas import Receiver, hold, load
from tests.conformance.shim import open_shim
from tests.conformance.suite import BUILD, ROOT, CannotRun, Suite, install_suite
from tests.conformance.tap import Conversations, kept_below, open_tap
from tests.kit.balancer import balancing
from tests.kit.postgres import own_server
from tests.kit.replicas import fleet_keys

RESULTS = BUILD / "results"
EVERYTHING = ROOT / "examples" / "servers" / "everything.py"
COLONNADE = Path(sys.executable).with_name("colonnade")

JOBS = 2  # scenarios at a time: each is a Node process, and the servers need a core as well
SCENARIO_SECONDS = 15  # the slowest takes two; one that hangs should not hold up the others for long
CLIENT_SECONDS = 60  # more than `client.py` allows itself, so that it always ends what it started
START_SECONDS = 30  # Python's imports on a busy machine
STOP_SECONDS = 5

VERSIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
LOGINS_SINCE = "2025-03-26"
"""The first revision with logins: the suite has scenarios about these alone, for clients."""
STATELESS_SINCE = "2026-07-28"
"""From this revision on there is no handshake."""

NOT_RUN: dict[str, str] = {}
"""Scenarios for clients that Colonnade is not held against, by how their names begin, and why not. There are none."""

KNOWN_FAULTS: dict[str, str] = {}
"""Scenarios that judge wrongly, and what the suite does wrong in them: they are not run. None is known."""


@dataclass(frozen=True)
class Cannot:
    """Why a scenario cannot pass somewhere, and the words in which it then fails."""

    reason: str
    says: str


NOTHING_SHOWN = "nothing of what the scenario looks for was to be seen"

_UNNAMED = {
    "http-header-validation": Cannot(
        "it sends a wrong `Mcp-Name`, in whose place `shim.py` puts that of call_tool",
        "sep-2243-server-reject-invalid-headers: Expected HTTP 400, got 200",
    ),
    "http-custom-header-server-validation": Cannot(
        "headers repeat arguments by the schema of the tool that the request names, which is call_tool",
        "sep-2243-server-",
    ),
}
"""Those about names and headers, through call_tool."""
CANNOT = {
    ("2026-07-28", "older"): {
        "input-required-result-basic-elicitation": Cannot(
            "it looks for the question under the key `user_name`, which the server chooses; a question that is a "
            "request of its own has no key, so that the gateway has to choose one",
            'inputRequests missing expected key "user_name"',
        ),
        "input-required-result-ignore-extra-params": Cannot(
            "its first call brings the answer along, under the key `user_name`; a server with a handshake asks in the "
            "course of the call whatever came with it, and nothing ties that answer to its question",
            "Server did not return complete result when valid inputResponses were provided alongside extra keys",
        ),
    },
    ("2026-07-28", "found"): _UNNAMED,
    ("2026-07-28", "found-pushing"): _UNNAMED,
}
"""Scenarios that cannot pass though it passes directly, by the revision of the client and the folder of the `Place`.

These are run all the same, and have to fail in just the way that is written here.
"""

LESS = {
    "server-sse-disconnect-resume": "the server ends the stream of its call, to be asked again. Colonnade asks again, "
    "and its client has the whole answer on the first stream",
    "server-sse-streams-functional": "Colonnade answers in JSON what is answered at once, so there is no stream",
}
"""Checks that do not show through Colonnade, in scenarios that pass, and why not."""
LESS_OF_A_FLEET = {
    f"sep-2575-server-sends-{kind}-list-changed-on-subscription": "the server tells the session in which its list was "
    "changed, and no other; each process of a fleet has a session of its own"
    for kind in ("tools", "prompts")
}
"""The same through a fleet, before a server that has sessions."""

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/mcp")


# ---------------------------------------------------------------------------------------------------------------------
# One scenario and its outcome
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The findings of the suite in one scenario against one address."""

    failures: list[str] = field(default_factory=list)  # each check that failed: its id and the suite's message
    warnings: list[str] = field(default_factory=list)  # the same for what a server should do and need not
    passed: frozenset[str] = frozenset()  # ids of checks
    expected: bool = False  # whether this is the failure that `CANNOT` names

    @property
    def verdict(self) -> str:
        """For a cell of the table."""
        if self.expected:
            return "cannot"
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


def read_outcome(folder: Path, pattern: str = "**") -> Outcome:
    """The outcome from the files that a scenario left, below folders with such a name."""
    found = sorted(folder.glob(f"{pattern}/checks.json"))
    if not found:
        return Outcome([f"the suite came to no result; see {folder.relative_to(ROOT) / 'output.txt'}"])
    return judge(json.loads(found[-1].read_text(encoding="utf-8")))


async def run_suite(command: list[str], folder: Path, seconds: float) -> int | None:
    """Run the suite's command; what it prints goes to `folder`. Its exit status, `None` when it had to be ended."""
    await trio.Path(folder).mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("ab") as output:
        # The suite ends a scenario by itself; this limit is for the case that it cannot.
        with trio.move_on_after(seconds + STOP_SECONDS):
            done = await trio.run_process(command, stdout=output, stderr=subprocess.STDOUT, check=False, cwd=ROOT)
            return done.returncode
    return None


async def run_scenarios(suite: Suite, plan: Plan, url: str, folder: Path) -> dict[str, Outcome]:
    """Run the scenarios for servers against `url`, by their names; their files go to `folder`. All of a revision run in
    one process of the suite, whose start takes longer than most of them."""
    for chosen in [("--scenario", name) for name in plan.server] if plan.is_part else [("--suite", "all")]:
        command = suite.command(
            *("server", "--url", url, *chosen, "--spec-version", plan.version),
            *("--output-dir", str(folder), "--timeout", str(SCENARIO_SECONDS * 1000)),
        )
        await run_suite(command, folder, SCENARIO_SECONDS * len(plan.server))
    # Behind the name is the time, with its year.
    return {name: read_outcome(folder, f"server-{name}-2[0-9][0-9][0-9]-*T*") for name in plan.server}


async def run_client_scenario(suite: Suite, name: str, version: str, way: str, folder: Path) -> Outcome:
    """Run one scenario for clients the `way` that `client.py` is told; its files go to `folder`."""
    client = shlex.join([sys.executable, "-m", "tests.conformance.client", way, str(folder)])
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
    return Outcome(outcome.warnings or ["what the client was to do could not be done"])


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
# The servers
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


@dataclass(frozen=True)
class Place:
    """Where scenarios for servers are run: a column of the table."""

    title: str
    folder: str
    url: str
    less: Mapping[str, str] = field(default_factory=lambda: LESS)


@dataclass
class Group:
    """A reference server: where it is itself, then where it is behind Colonnade. Scenarios of these revisions."""

    versions: tuple[str, ...]
    places: list[Place]


def open_everything(name: str, *options: str) -> contextlib.AbstractAsyncContextManager[str]:
    """The reference server, on a free port."""
    return open_server(name, [sys.executable, str(EVERYTHING), "--http", "127.0.0.1:0", *options], ADDRESS)


@contextlib.asynccontextmanager
async def open_colonnade(upstreams: Mapping[str, str], replicas: int) -> AsyncIterator[str]:
    """Colonnade in front of these servers, by their ids: one process, or several of a fleet behind haproxy; yields the
    address."""
    if not COLONNADE.is_file():
        raise CannotRun(f"There is no {COLONNADE}: install the project into this environment first.")
    # Trusted, as scenarios for sampling are among those that have to pass.
    # One of the servers of both eras is reached in one only, so that what is translated between them is seen too.
    more = {"everything": ", eras: one"}
    # With a rule for tools, nobody is asked about calls through call_tool.
    more |= {id: ", consent: {tools: allow}" for id in upstreams if id.startswith("found")}
    servers = [f'  {id}: {{url: "{url}", trust: trusted{more.get(id, "")}}}' for id, url in upstreams.items()]
    # Everything stays listed: the scenarios name the tools that they call.
    views = [
        f'  {id}: {{servers: {{{id}: all}}, search: on, pinned: "*"}}' for id in upstreams if id.startswith("found")
    ]
    lines = ['listen: {address: "127.0.0.1:0"}', "servers:", *servers, "views:", *views]
    is_ready = re.compile("".join(rf"(?=[\s\S]*^\s*{re.escape(id)}\s+ready\b)" for id in upstreams), re.MULTILINE)

    def open_process(name: str, lines: list[str]) -> contextlib.AbstractAsyncContextManager[str]:
        path = RESULTS / f"{name}.yaml"
        path.write_text("\n".join((*lines, "")), encoding="utf-8")
        return open_server(
            name, [str(COLONNADE), "serve", str(path), "--state", str(RESULTS / f"{name}-state")], is_ready
        )

    async with contextlib.AsyncExitStack() as stack:
        if replicas == 1:
            yield await stack.enter_async_context(open_process("colonnade", lines))
            return
        postgres = stack.enter_context(own_server())
        store = postgres.url(stack.enter_context(postgres.database()))
        ports = []
        for n, fleet in enumerate(fleet_keys(RESULTS, store, replicas)):
            member = [*lines, f"fleet: {json.dumps(fleet)}"]
            url = await stack.enter_async_context(open_process(f"colonnade-{n}", member))
            ports.append(httpx.URL(url).port or 0)
        yield f"{stack.enter_context(balancing(RESULTS, ports))}/mcp"


@contextlib.asynccontextmanager
async def open_groups(direct_only: bool, replicas: int) -> AsyncIterator[tuple[list[Group], list[Conversations]]]:
    """Every server there is to test, and what the taps around Colonnade write down."""
    taps: list[Conversations] = []
    async with contextlib.AsyncExitStack() as stack:
        everything = await stack.enter_async_context(open_everything("everything-direct"))
        pushing = await stack.enter_async_context(open_everything("pushing-direct", "--push"))
        groups = [
            Group(VERSIONS[1:], [Place("directly", "direct", everything)]),
            Group(VERSIONS, [Place("pushing, directly", "pushing-direct", pushing)]),
        ]
        if direct_only:
            yield groups, taps
            return

        async def tapped(url: str, receiver: Receiver, where: str) -> str:
            url, conversations = await stack.enter_async_context(open_tap(url, receiver, where))
            taps.append(conversations)
            return url

        # Each column has a server of its own: lists that change in all of them would be read ever more slowly.
        options = {
            "everything": [],
            "older": ["--handshake-only"],
            "found": [],
            "pushing": ["--push"],
            "among": ["--push"],
            "found-pushing": ["--push"],
        }
        servers = {
            id: await tapped(await stack.enter_async_context(open_everything(id, *more)), "server", id)
            for id, more in options.items()
        }
        colonnade = await stack.enter_async_context(open_colonnade(servers, replicas))
        less = LESS | (LESS_OF_A_FLEET if replicas > 1 else {})
        everywhere = await stack.enter_async_context(
            open_shim(await tapped(colonnade, "client", "at the address of all servers"), "among")
        )

        async def searched(id: str) -> str:
            url = await tapped(f"{colonnade}/@{id}", "client", f"{id}, through call_tool")
            return await stack.enter_async_context(open_shim(url, id, searching=True))

        groups[0].places += [
            Place("through Colonnade", "through", await tapped(f"{colonnade}/everything", "client", "everything")),
            Place("before an older server", "older", await tapped(f"{colonnade}/older", "client", "older"), less),
            Place("through call_tool", "found", await searched("found")),
        ]
        groups[1].places += [
            Place("at its mount", "pushing", await tapped(f"{colonnade}/pushing", "client", "pushing")),
            Place("among others", "among", everywhere),
            Place("through call_tool", "found-pushing", await searched("found-pushing")),
        ]
        yield groups, taps


# ---------------------------------------------------------------------------------------------------------------------
# The report
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The scenarios to run for one revision."""

    version: str
    server: list[str]
    client: list[str]
    left_out: list[str]
    is_part: bool
    """Whether the command line has chosen them."""


def print_table(title: str, names: list[str], columns: dict[str, dict[str, Outcome]]) -> None:
    """One line per scenario, with its verdict in each column."""
    width = max(len(name) for name in (title, *names)) + 2
    wide = max(len(column) for column in columns) + 2
    print(f"\n{title:{width}}{''.join(f'{column:{wide}}' for column in columns)}".rstrip())
    for name in names:
        print(f"{name:{width}}{''.join(f'{outcomes[name].verdict:{wide}}' for outcomes in columns.values())}".rstrip())


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
    failed = sum(bool(outcome.failures) and not outcome.expected for outcome in every)
    return Count(sum(outcome.verdict == "passed" for outcome in every), failed, broken)


def report_server(plan: Plan, places: list[Place], columns: list[dict[str, Outcome]]) -> list[Count]:
    """Print all columns and what was lost between the first and the others; how the scenarios ended in each.

    Through Colonnade only what passes directly counts.
    """
    direct = columns[0]
    print_table("scenario", plan.server, {place.title: column for place, column in zip(places, columns, strict=True)})
    broken = {name: direct[name].failures for name in plan.server if direct[name].failures}
    print_messages("The reference server itself fails, so these say nothing about Colonnade:", broken)
    counts = [count(direct.values(), len(broken))]
    for place, column in zip(places[1:], columns[1:], strict=True):
        counted = {name: column[name] for name in plan.server if direct[name].verdict == "passed"}
        report_through(plan.version, place, counted, direct)
        counts.append(count(counted.values()))
    return counts


def report_through(version: str, place: Place, column: dict[str, Outcome], direct: dict[str, Outcome]) -> None:
    """Print in which scenarios this column has less than the direct one, and why."""
    lost = {name: outcome.failures for name, outcome in column.items() if outcome.failures and not outcome.expected}
    print_messages(f"Lost {place.title}:", lost)
    cannot = CANNOT.get((version, place.folder), {})
    reasons = {name: [cannot[name].reason] for name, outcome in column.items() if outcome.expected}
    print_messages(f"Cannot pass {place.title} (not counted):", reasons)
    weaker = {
        name: [f"{check}: {place.less[check]}" for check in sorted(unseen)]
        for name, outcome in column.items()
        if not outcome.failures and (unseen := direct[name].passed - outcome.passed)
    }
    print_messages(f"Less than the server does by itself, as it has to be (not counted), {place.title}:", weaker)


def report_client(names: list[str], columns: dict[str, dict[str, Outcome]], folder: Path) -> Count:
    """Print the verdicts on clients."""
    print_table("scenario for clients", names, columns)
    for title, outcomes in columns.items():
        failures = {name: outcomes[name].failures for name in names if outcomes[name].failures}
        print_messages(f"Not kept, {title}:", failures)
    total = sum((count(outcomes.values()) for outcomes in columns.values()), Count())
    if total.failed:
        print(f"What happened in each: {folder.relative_to(ROOT)}/*/SCENARIO/, output.txt and *.stderr")
    return total


def report_left_out(left_out: list[str]) -> None:
    """Print what is not run, and why."""
    for beginning, reason in NOT_RUN.items():
        if number := sum(name.startswith(beginning) for name in left_out):
            print(f"\nNot run: the {number} that begin with {beginning}, since {reason}.")
    for name, reason in KNOWN_FAULTS.items():
        if name in left_out:
            print(f"\nNot run: {name}, since the suite is wrong in it: {reason}.")


# ---------------------------------------------------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------------------------------------------------


def foreseen(outcome: Outcome, direct: Outcome, cannot: Cannot | None, less: Mapping[str, str]) -> Outcome:
    """The outcome, through Colonnade, of a scenario that passes directly.

    Here nothing may get lost in silence, not even by answering in a way that the suite lets off, nor a single check
    that is not in `less`. Where it `cannot` pass, passing is a failure of the table.
    """
    if outcome.verdict == "not applicable":
        outcome = replace(outcome, failures=[NOTHING_SHOWN])
    elif not outcome.failures:
        unseen = sorted(direct.passed - outcome.passed - less.keys())
        outcome = replace(outcome, failures=[f"{check}: not shown, as it is directly" for check in unseen])
    if cannot is None:
        return outcome
    if not outcome.failures:
        return replace(outcome, failures=["it passes, and stands in CANNOT: take it out"])
    return replace(outcome, expected=all(cannot.says in failure for failure in outcome.failures))


async def run_server_side(suite: Suite, plan: Plan, places: list[Place]) -> list[Count]:
    """Run and report the columns of one revision."""
    direct, *others = [
        await run_scenarios(suite, plan, place.url, RESULTS / plan.version / place.folder) for place in places
    ]
    for place, column in zip(places[1:], others, strict=True):
        cannot = CANNOT.get((plan.version, place.folder), {})
        for name in [name for name in column if direct[name].verdict == "passed"]:
            column[name] = foreseen(column[name], direct[name], cannot.get(name), place.less)
    return report_server(plan, places, [direct, *others])


def client_ways(version: str, direct_only: bool) -> dict[str, str]:
    """The ways in which scenarios for clients are run, as `client.py` calls them, by the titles of their columns.

    Directly they only show what the steps are worth, and nothing counts: the SDK itself fails
    `sep-2322-client-request-state`, as it takes no result without a `resultType`.
    """
    if direct_only:
        return {"the SDK alone": "direct-stateless" if version >= STATELESS_SINCE else "direct-handshake"}
    return {"for a handshake client": "handshake", "for a stateless client": "stateless"}


async def run_client_side(suite: Suite, plan: Plan, direct_only: bool) -> Count:
    """Run and report the scenarios for clients of one revision. Without Colonnade nobody logs in."""
    folder = RESULTS / plan.version / "client"
    names = [name for name in plan.client if not (direct_only and name.startswith(LOGINS))]

    async def run_column(way: str) -> dict[str, Outcome]:
        return await run_all(
            names, lambda name: run_client_scenario(suite, name, plan.version, way, folder / way / name)
        )

    columns = {title: await run_column(way) for title, way in client_ways(plan.version, direct_only).items()}
    return report_client(names, columns, folder)


async def run_plan(suite: Suite, plan: Plan, groups: list[Group], direct_only: bool) -> dict[str, Count]:
    """Run and report everything of one revision; how it ended, by what it was."""
    print(f"\n{plan.version}\n{'=' * len(plan.version)}", flush=True)
    ends: dict[str, Count] = {}
    for group in groups if plan.server else []:
        if plan.version in group.versions:
            counts = await run_server_side(suite, plan, group.places)
            ends |= {f"as a server, {place.title}": found for place, found in zip(group.places, counts, strict=True)}
    if plan.client:
        ends["as a client"] = await run_client_side(suite, plan, direct_only)
    report_left_out(plan.left_out)
    return ends


async def run_plans(suite: Suite, plans: list[Plan], direct_only: bool, replicas: int) -> int:
    """Run and report everything; the exit status."""
    schemas = {} if direct_only else load()
    async with open_groups(direct_only, replicas) as (groups, taps):
        found = {plan.version: await run_plan(suite, plan, groups, direct_only) for plan in plans}
    print()
    directly = {f"as a server, {group.places[0].title}" for group in groups}
    total = Count()
    for version, ends in found.items():
        for what, ended in ends.items():
            print(f"{version} {what}: {ended}")
            # What passes directly only shows what is to be held against Colonnade, unless that is all that was run.
            evaluated = (what in directly) == direct_only
            total += ended if evaluated else Count(broken=ended.broken)
    held = hold([*(each for tap in taps for each in tap.sent), *kept_below(RESULTS)], schemas)
    if not direct_only:
        print(held.report())
    print(total)
    return 1 if total.failed or total.broken or not (held.is_sound or direct_only) else 0


def make_plan(suite: Suite, version: str, only: list[str] | None) -> Plan:
    """The scenarios to run for a revision. Raises `CannotRun` when the suite has nothing for it."""
    server, client = suite.scenarios("server", version), suite.scenarios("client", version)
    if not server and not client:
        raise CannotRun(f"The suite has no scenarios for {version}.")
    left_out = [name for name in (*server, *client) if name.startswith(tuple(NOT_RUN)) or name in KNOWN_FAULTS]

    def wanted(names: list[str]) -> list[str]:
        return [name for name in names if name not in left_out and (not only or name in only)]

    return Plan(version, wanted(server), wanted(client), [] if only else left_out, bool(only))


def make_plans(suite: Suite, versions: list[str], only: list[str] | None) -> list[Plan]:
    """The scenarios that the command line selects. Raises `CannotRun` when there is no such scenario, or none at
    all."""
    plans = [make_plan(suite, version, only) for version in versions]
    run = {name for plan in plans for name in (*plan.server, *plan.client)}
    if unknown := sorted(set(only or ()) - run):
        raise CannotRun(f"Not among the scenarios that are run for {', '.join(versions)}: {', '.join(unknown)}")
    return [plan for plan in plans if plan.server or plan.client]


def main(arguments: list[str]) -> int:
    """Read the command line and run; the exit status."""
    parser = argparse.ArgumentParser(description="Hold Colonnade against the official MCP conformance suite.")
    parser.add_argument("--only", metavar="SCENARIO", action="append", help="run this scenario (may be repeated)")
    parser.add_argument("--direct-only", action="store_true", help="run without Colonnade: what does the oracle say?")
    parser.add_argument("--spec-version", action="append", help="run this revision (may be repeated; all by default)")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="processes of a fleet, behind haproxy")
    options = parser.parse_args(arguments)
    try:
        suite = install_suite()
        plans = make_plans(suite, options.spec_version or [LOGINS_SINCE, *VERSIONS], options.only)
        if options.replicas > 1:
            plans = [replace(plan, client=[]) for plan in plans if plan.server]
        shutil.rmtree(RESULTS, ignore_errors=True)
        RESULTS.mkdir(parents=True)
        return trio.run(run_plans, suite, plans, options.direct_only, options.replicas)
    except CannotRun as obstacle:
        print(obstacle, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
