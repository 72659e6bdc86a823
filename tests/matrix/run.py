"""Every revision as a client against every revision as a server, over every transport on both sides, for every feature.

    python -m tests.matrix.run             prints the table and writes it to docs/matrix.md, its sum to
                                           docs/revisions.md
    python -m tests.matrix.run --check     fails if one of them says something else, or if anything else went over the
                                           wire than what transcripts.json says
    python -m tests.matrix.run --keep 5    writes transcripts.json, from so many runs
    python -m tests.matrix.run --direct    clients against servers of their own revision with nothing in between: what
                                           works there and fails otherwise is the fault of what stands in between
    python -m tests.matrix.run --replicas 3
                                           clients over HTTP before so many processes of a fleet, through haproxy in
                                           turns: each cell must be what it is before one

One `colonnade serve` has all servers, and so has one `colonnade serve --stdio` for each revision. They share those that
keep what they know in sessions; of the stateless ones each host has its own. Clients of one host work side by side, but
never with the same server at the same time: over one pipe nothing else would tell whose call a question belongs to.
This file owns the processes and the order of things; what a cell must be stands in `expectations.py`, what is done in
it in `checks.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import trio

from tests.conformance.schemas import Sent, hold, load
from tests.conformance.suite import CannotRun
from tests.kit.postgres import own_server
from tests.kit.replicas import fleet_keys, serving_replicas
from tests.kit.transcripts import Transcript, differences, keep
from tests.matrix.checks import CHECKS, CellFailed, CellRun, shows, tools
from tests.matrix.clients import IO, START, Client, Message, over_http, over_sse, over_stdio
from tests.matrix.expectations import (
    BOTH_ERAS,
    R25C,
    R26,
    REVISIONS,
    Cell,
    Expected,
    Feature,
    Note,
    Verdict,
    cells,
    expected,
    in_era_of,
    is_stateless,
    places,
    transports,
)
from tests.matrix.stateless import over_stateless_http, over_stateless_stdio
from tests.matrix.transcripts import FILE, normalised, transcript
from tests.real.running import BARE_PYTHON, COLONNADE, ROOT, SERVERS, Running, listening, serving, write_config

DOCUMENT = ROOT / "docs" / "matrix.md"
REVISIONS_PAGE = ROOT / "docs" / "revisions.md"
BEGIN, END = "<!-- from make matrix -->", "<!-- until here -->"
"""Lines of docs/revisions.md between which this run writes."""
CELL_PATIENCE = 15.0
LIMIT = 170.0
"""Seconds for all cells, as many times as there are processes: what has not been run by then has failed."""
LOG = 4000
"""Characters of the host's log that are shown when something is wrong."""
SETTLED = 0.05
"""Seconds between two looks at whether all servers are there."""

INTRODUCTION = """\
# Revisions and transports

This page shows whether a client of one revision of the protocol can use a server of another, over each transport on
either side. `make matrix` runs every cell and writes this page. It uses a real host, servers that speak exactly one
revision, and hand-written clients that do the same. Servers are configured with `trust: trusted`. Clients declare
every capability of their revision.

2026-07-28 is stateless and has no HTTP+SSE. The other revisions begin with a handshake. The last column is a server
that speaks 2025-11-25 and 2026-07-28 at one URL: each client is served in its own era.

**W**: works. **T**: works, translated between the revisions. **I**: impossible, because the revisions do not allow
it. The side that does not support the feature then gets a proper error, or nothing is sent to it, and the call ends
as usual. The numbers are explained below. With **W**, they name what is refused within a feature that works.

In all cells, clients see the exposed names of tools and prompts and the exposed URIs of resources. The message of an
elicitation begins with the name of the server that asks. A sampling request includes the context of no server.
"""


@dataclass(frozen=True)
class Side:
    """A revision over a transport: a client, or a server."""

    revision: str
    transport: str

    @property
    def id(self) -> str:
        return f"v{self.revision}-{self.transport}"


def knows_all(server: Side) -> bool:
    """Whether it is the same for all processes that use it, whatever they know of each other."""
    return is_stateless(server.revision) and server.transport != "stdio"


def cell_of(client: Side, server: Side, feature: Feature) -> Cell:
    revision = in_era_of(client.revision) if server == BOTH else server.revision
    return Cell(client.revision, client.transport, revision, server.transport, feature)


BOTH = Side(R26, BOTH_ERAS)
SIDES = [Side(*place) for place in places()]
SERVERS_OF_MATRIX = [*SIDES, BOTH]
NOTHING_SEEN = "it was not run"


@dataclass
class Results:
    """The errors in each cell; nothing if it is as expected. `general` belongs to no cell."""

    seen: dict[Cell, str | None] = field(default_factory=dict)
    general: list[str] = field(default_factory=list)
    log: str = ""
    """The standard error of the shared host."""
    transcripts: dict[str, Transcript] = field(default_factory=dict)
    """Messages to the client in each cell, and to each server in the whole run."""
    sent: list[Sent] = field(default_factory=list)
    """All messages of the hosts."""

    def wrong(self, cell: Cell) -> str | None:
        return self.seen.get(cell, NOTHING_SEEN)


@dataclass
class HostRun:
    """The clients of one host and the servers behind it."""

    clients: list[tuple[Side, Client]]
    servers: Sequence[Side]
    results: Results
    features: Sequence[Feature]
    direct: bool = False
    changers: Sequence[Client] = ()
    """One at each process, if there are several: what a server keeps in sessions is another thing for each."""

    def __post_init__(self) -> None:
        self._turns = {server: trio.Lock() for server in self.servers}

    async def run_cells(self) -> None:
        """Every cell of this host."""
        # Over one pipe, what a client sets, watches or calls off leaves it open for a while whose a question is, or a
        # log message: whoever is asked something is asked before, and called off is last.
        late = ((Feature.LOG,), (Feature.SUBSCRIBE, Feature.CANCEL))
        for features in ([each for each in CHECKS if each not in late[0] + late[1]], *late):
            async with trio.open_nursery() as nursery:
                for start, (side, client) in enumerate(self.clients):
                    nursery.start_soon(
                        self._walk, side, client, start, [each for each in features if each in self.features]
                    )
        if Feature.LIST_CHANGED in self.features:
            for turn, server in enumerate(self.servers):
                await self._change(server, turn)
        for side, client in self.clients:
            self.results.general += [f"{side.id}: {stray}" for stray in strays(client)]

    async def _walk(self, side: Side, client: Client, start: int, features: Sequence[Feature]) -> None:
        """One client's way through all servers; everyone begins at another one."""
        start %= len(self.servers) or 1
        for server in [*self.servers[start:], *self.servers[:start]]:
            async with self._turns[server]:
                for feature in features:
                    at = self._cell_run(side, client, server, feature)
                    if directly_wanted(at.cell) or not self.direct:
                        await self._run_cell(at)

    def _cell_run(self, side: Side, client: Client, server: Side, feature: Feature) -> CellRun:
        return CellRun(client, cell_of(side, server, feature), "" if self.direct else server.id)

    async def _run_cell(self, at: CellRun) -> None:
        """Run a cell and write down what was wrong. What the client complains of meanwhile is wrong, too."""
        before, mark = len(at.client.complaints), len(at.client.received)
        self.results.seen[at.cell] = await _wrong(partial(CHECKS[at.cell.feature], at))
        if complaints := at.client.complaints[before:]:
            self.results.seen[at.cell] = f"{self.results.seen[at.cell] or ''} {complaints}".strip()
        self.results.transcripts[str(at.cell)] = transcript(at.client.received[mark:], at.prefix)

    async def _change(self, server: Side, turn: int) -> None:
        """A tool comes and goes. Every client of this host must notice; nothing else changes meanwhile."""
        meetings = [self._cell_run(side, client, server, Feature.LIST_CHANGED) for side, client in self.clients]
        callers = [meetings[turn % len(meetings)]]
        if self.changers and not knows_all(server):
            callers = [replace(callers[0], client=each) for each in self.changers]
        name = f"grown-{callers[0].client.name}"
        for tool, there in (("grow", True), ("shrink", False)):
            marks = {at.cell: len(at.client.heard) for at in meetings}
            problems = [await _wrong(partial(caller.call, tool, name)) for caller in callers]
            problem = " ".join(filter(None, problems)) or None
            async with trio.open_nursery() as nursery:
                for at in meetings:
                    nursery.start_soon(self._notice, at, problem, name, there, marks[at.cell])

    async def _notice(self, at: CellRun, problem: str | None, tool: str, there: bool, mark: int) -> None:
        wrong = problem or await _wrong(partial(shows, at, tool, there, mark))
        self.results.seen[at.cell] = self.results.seen.get(at.cell) or wrong


async def _wrong(work: Callable[[], Awaitable[object]]) -> str | None:
    """Do it; what was wrong, if anything. An answer of an unforeseen shape is the cell's failure, not the run's."""
    try:
        with trio.fail_after(CELL_PATIENCE):
            await work()
    except CellFailed as problem:
        return str(problem)
    except Exception as problem:  # noqa: BLE001 - see above
        return f"{type(problem).__name__}: {problem}"
    return None


def strays(client: Client) -> list[str]:
    """Messages to this client that were meant for another; there may be none (rule 71)."""
    asked = [str(each.message) for each in client.asked if each.method != "roots/list"]
    updated = [str(each.message) for each in client.heard if each.method == "notifications/resources/updated"]
    return [f"meant for somebody else: {said}" for said in (*asked, *updated) if client.name not in said]


async def listed(client: Client) -> list[Side]:
    """The servers that the client sees: all of them, as soon as it does; else those that it sees in the end."""
    at = CellRun(client, Cell("", "", "", "", Feature.CALL), "-")
    found: list[Side] = []
    with trio.move_on_after(START):
        while True:
            names = {tool["name"] for tool in await tools(at)}
            found = [server for server in SERVERS_OF_MATRIX if f"{server.id}__echo" in names]
            if len(found) == len(SERVERS_OF_MATRIX):
                break
            await trio.sleep(SETTLED)
    return found


Target = str | list[str]
"""A URL, or a command to start."""
Where = Mapping[str, Target]
"""Where clients of each transport go."""


def connect(side: Side, where: Where) -> AbstractAsyncContextManager[Client]:
    target = where[side.transport]
    name = f"client-{side.revision}-{side.transport}"
    if isinstance(target, list):
        return (over_stateless_stdio if is_stateless(side.revision) else over_stdio)(name, side.revision, target)
    if is_stateless(side.revision):
        return over_stateless_http(name, side.revision, target)
    return (over_http if side.transport == "http" else over_sse)(name, side.revision, target)


@asynccontextmanager
async def connected_clients(
    sides: Sequence[Side], where: Where, results: Results
) -> AsyncIterator[list[tuple[Side, Client]]]:
    """Those clients that could connect; why the others could not is noted."""
    async with AsyncExitStack() as stack:
        clients = []
        for side in sides:
            try:
                client = await stack.enter_async_context(connect(side, where))
                clients.append((side, client))
                results.transcripts[f"opening: client {side.id}"] = transcript(client.received)
            except Exception as problem:  # noqa: BLE001 - whatever it is, its cells are not run, and this says why
                results.general.append(f"{side.id} could not connect: {problem!r}")
        yield clients
        results.sent += [each for side, client in clients for each in sent_to_client(side, client)]


@dataclass
class Party:
    """Clients that go to one host. `replicas`: the URL of each of its processes, if there are several."""

    sides: Sequence[Side]
    where: Where
    replicas: Sequence[str] = ()


async def through_host(party: Party, features: Sequence[Feature], results: Results) -> None:
    async with AsyncExitStack() as stack:
        clients = await stack.enter_async_context(connected_clients(party.sides, party.where, results))
        to_each = [over_http(f"changer-{n}", R25C, url) for n, url in enumerate(party.replicas)]
        changers = [await stack.enter_async_context(each) for each in to_each]
        servers = await listed(clients[0][1]) if clients else []
        missing = [server.id for server in SERVERS_OF_MATRIX if server not in servers]
        if missing:
            results.general.append(f"{party.sides[0].id} and its like do not see {', '.join(missing)}")
        await HostRun(clients, servers, results, features, changers=changers).run_cells()


async def directly(side: Side, where: Where, features: Sequence[Feature], results: Results) -> None:
    async with connected_clients([side], where, results) as clients:
        await HostRun(clients, [side], results, features, direct=True).run_cells()


def server_command(side: Side, folder: Path) -> list[str]:
    program = [*BARE_PYTHON, str(SERVERS / "any_revision.py"), "--record", str(folder / f"{side.id}.jsonl")]
    return [*program, "--revision", side.revision, "--transport", side.transport]


@contextmanager
def started_servers(folder: Path, sides: Sequence[Side] = SIDES) -> Iterator[dict[Side, Target]]:
    """The servers by where they are: a URL where they run, a command where their host starts them."""
    with ExitStack() as stack:
        found: dict[Side, Target] = {}
        for side in sides:
            command = server_command(side, folder)
            found[side] = command
            if side.transport != "stdio":
                _, found[side] = stack.enter_context(listening(*command, folder=folder))
        yield found


@contextmanager
def configured(folder: Path) -> Iterator[list[Path]]:
    """A configuration for every host: first for the one over HTTP, then for each revision over stdio."""
    own = [side for side in SERVERS_OF_MATRIX if is_stateless(side.revision)]
    with ExitStack() as stack:
        servers = stack.enter_context(started_servers(folder, [side for side in SIDES if side not in own]))
        files = []
        for name in ("http", *REVISIONS):
            (folder / name).mkdir()
            more = stack.enter_context(started_servers(folder, own))
            files.append(
                write_config(folder / name, {side.id: _entry((servers | more)[side]) for side in SERVERS_OF_MATRIX})
            )
        yield files


@contextmanager
def served(file: Path, replicas: int) -> Iterator[tuple[list[Running], str]]:
    """The process that serves a configuration, or several of a fleet, and the base of the URL that clients use."""
    if replicas == 1:
        with serving(file, stop=False) as host:
            yield [host], host.url.rpartition("/")[0]
        return
    servers, files = json.loads(file.read_text())["servers"], []
    with own_server() as postgres, postgres.database() as database:
        for n, fleet in enumerate(fleet_keys(file.parent, postgres.url(database), replicas)):
            (file.parent / f"r{n}").mkdir()
            files.append(write_config(file.parent / f"r{n}", servers, fleet=fleet))
        with serving_replicas(file.parent, files) as found:
            yield found


def run(features: Sequence[Feature], replicas: int = 1) -> Results:
    """All cells of these features; before several replicas those of clients over HTTP."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="matrix-") as name, configured(Path(name)) as (first, *others):
        with served(first, replicas) as (hosts, base):
            addresses: dict[str, Target] = {"http": f"{base}/mcp", "sse": f"{base}/sse"}
            parties = [Party([side for side in SIDES if side.transport != "stdio"], addresses)]
            if replicas > 1:
                parties[0].replicas = [host.url for host in hosts]
            for revision, file in zip(REVISIONS, others, strict=True) if replicas == 1 else ():
                command = [COLONNADE, "serve", str(file), "--stdio", "--own", "--state", str(file.parent / "state")]
                parties.append(Party([Side(revision, "stdio")], {"stdio": command}))
            trio.run(_all, parties, features, results)
            results.log = "\n".join(host.errors for host in hosts)
            for host in hosts:
                _stop(host, results)
        for side in SERVERS_OF_MATRIX:
            record = [json.loads(line) for line in (Path(name) / f"{side.id}.jsonl").read_text().splitlines()]
            results.transcripts[f"server {side.id}"] = _came(side, record)
            results.sent += [sent_to_server(side, each["message"]) for each in record]
    return results


def sent_to_client(side: Side, client: Client) -> list[Sent]:
    """The messages that this client received."""
    messages = [message for _, message in client.received if message.keys() != {"status"}]
    where = f"client over {side.transport}"
    return [Sent(where, side.revision, "client", each, client.methods.get(each.get("id", 0))) for each in messages]


def sent_to_server(side: Side, message: Message) -> Sent:
    """A message that this server received. Before its revision is known, a request says itself of which one it is; the
    id of what the server asked begins with the method."""
    params = message.get("params", {})
    spoken = R25C if side == BOTH else side.revision
    revision = params.get("_meta", {}).get(f"{IO}protocolVersion", spoken)
    if message.get("method") == "initialize":
        revision = params["protocolVersion"]
    answers = None if "method" in message else str(message["id"]).partition(" ")[0]
    return Sent(f"server over {side.transport}", revision, "server", message, answers)


def _came(side: Side, came: Sequence[Message]) -> list[str]:
    """The messages that a server wrote down, each once. Without those that depend on time: pings, the `initialize` that
    a stateless server gets over HTTP when a client with a session comes, and over stdio if it is slow to answer
    `server/discover`, and the change of roots, of which only servers hear that are ready before the one client of a
    host over stdio is there."""
    left_out = {"ping", "notifications/roots/list_changed"}
    if is_stateless(side.revision) and side != BOTH:
        left_out.add("initialize")
    return sorted({normalised(each, side.id) for each in came if each["message"].get("method") not in left_out})


def _stop(host: Running, results: Results) -> None:
    """The host must end as it should even now."""
    try:
        host.stop()
    except (AssertionError, subprocess.TimeoutExpired) as problem:
        results.general.append(f"the host did not stop in order: {problem}")


def _entry(where: Target) -> dict[str, object]:
    return {"url" if isinstance(where, str) else "command": where, "trust": "trusted"}


async def _all(parties: Sequence[Party], features: Sequence[Feature], results: Results) -> None:
    with trio.move_on_after(LIMIT * max(len(party.replicas) or 1 for party in parties)):
        async with trio.open_nursery() as nursery:
            for party in parties:
                nursery.start_soon(through_host, party, features, results)


def run_directly(features: Sequence[Feature]) -> Results:
    """The cells in which both sides are the same, with nothing in between."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="matrix-") as name, started_servers(Path(name)) as servers:
        trio.run(_all_directly, servers, features, results)
    return results


async def _all_directly(servers: Mapping[Side, Target], features: Sequence[Feature], results: Results) -> None:
    with trio.move_on_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for side, where in servers.items():
                nursery.start_soon(directly, side, {side.transport: where}, features, results)


def document(results: Results) -> str:
    """The page, which is the same for the same verdicts."""
    blocks = "\n\n".join(block(feature, results) for feature in Feature)
    notes = "\n".join(f"{note.number}. {note.value[0].upper()}{note.value[1:]}." for note in Note)
    return f"{INTRODUCTION}\n## Why\n\n{notes}\n\n## Cells\n\nRows are clients, columns servers.\n\n{blocks}\n"


def summary(results: Results) -> str:
    """Every feature between clients and servers with a handshake and without, as a table in Markdown."""
    kinds = list(product((False, True), repeat=2))
    names = {False: "handshake", True: "stateless"}
    lines = [
        "| client, server | " + " | ".join(f"{names[client]}, {names[server]}" for client, server in kinds) + " |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    for feature in Feature:
        found: list[set[str]] = [set() for _ in kinds]
        for cell in cells():
            if cell.feature is feature:
                letter = "X" if results.wrong(cell) else expected(cell).verdict.value
                found[kinds.index((is_stateless(cell.client), is_stateless(cell.server)))].add(letter)
        letters = [" ".join(letter for letter in "WTIX" if letter in each) for each in found]
        lines.append(f"| {feature.value} | {' | '.join(letters)} |")
    return "\n".join(lines)


def with_summary(page: str, results: Results) -> str:
    """The page with what stands between BEGIN and END made new, if it has them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    return f"{head}{begin}\n{summary(results)}\n{end}{tail}" if end else page


def block(feature: Feature, results: Results) -> str:
    """One feature as a table; X is what is not as expected."""
    width = 8
    lines = [
        f"### {feature.value}",
        "",
        "```text",
        " " * 18 + "".join(revision.ljust(width * len(transports(revision))) for revision in REVISIONS) + "both eras",
        " " * 18 + "".join(side.transport.ljust(width) for side in SIDES) + "http",
    ]
    for client in SIDES:
        row = [_letter(cell_of(client, server, feature), results) for server in SERVERS_OF_MATRIX]
        lines.append(f"{client.revision} {client.transport}".ljust(18) + "".join(each.ljust(width) for each in row))
    return "\n".join([*(line.rstrip() for line in lines), "```"])


def _letter(cell: Cell, results: Results) -> str:
    found: Expected | str = "X" if results.wrong(cell) else expected(cell)
    return str(found)


def directly_wanted(cell: Cell) -> bool:
    """Whether the cell can be run with nothing in between: nothing may have to be refused or translated."""
    alike = (cell.client, cell.client_transport) == (cell.server, cell.server_transport)
    return alike and expected(cell).verdict is Verdict.WORKS


def failures(results: Results, wanted: Sequence[Cell]) -> list[str]:
    wrong = [f"{cell}: expected {expected(cell)}; {seen}" for cell in wanted if (seen := results.wrong(cell))]
    return [*results.general, *wrong]


def main() -> int:
    try:
        return run_as_told()
    except CannotRun as obstacle:
        print(obstacle, file=sys.stderr)
        return 2


def run_as_told() -> int:
    parser = argparse.ArgumentParser(description="client revision x transport x server revision x transport x feature")
    parser.add_argument(
        "--check", action="store_true", help="compare with what is in the repository instead of writing"
    )
    parser.add_argument("--direct", action="store_true", help="nothing in between; only sides that are the same")
    parser.add_argument("--keep", type=int, metavar="RUNS", help="write transcripts.json from so many runs")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="processes of a fleet, behind haproxy")
    parser.add_argument("--only", nargs="+", metavar="FEATURE", choices=[each.value for each in Feature])
    chosen = parser.parse_args()
    features = [feature for feature in Feature if not chosen.only or feature.value in chosen.only]
    wanted = [cell for cell in cells() if cell.feature in features]
    if chosen.direct:
        wanted = [cell for cell in wanted if directly_wanted(cell)]
    if chosen.replicas > 1:
        wanted = [cell for cell in wanted if cell.client_transport != "stdio"]
    if chosen.keep:
        keep([run(features).transcripts for _ in range(chosen.keep)], FILE)
        return 0
    schemas = {} if chosen.direct else load()
    results = run_directly(features) if chosen.direct else run(features, chosen.replicas)
    wrong = failures(results, wanted)
    whole = not chosen.direct and not chosen.only and chosen.replicas == 1
    if not chosen.direct:
        print("\n\n".join(block(feature, results) for feature in features), end="\n\n")
    print(*wrong, sep="\n")
    if wrong and results.log:
        print("The host wrote:", results.log[-LOG:], sep="\n")
    print(f"{len(wanted)} cells, {sum(results.wrong(cell) is not None for cell in wanted)} not as expected")
    held = hold(results.sent, schemas)
    if not chosen.direct:
        print(held.report())
        wrong += [] if held.is_sound else ["the messages are not what the schemas have"]
    if wrong or not whole:
        return int(bool(wrong))
    if chosen.check and (others := often_different(results, partial(run, features))):
        print(*others, f"{len(others)} transcripts are not as they were kept", sep="\n\n")
        return 1
    pages = {DOCUMENT: document(results), REVISIONS_PAGE: with_summary(REVISIONS_PAGE.read_text(), results)}
    return max([_keep(file, page, check=chosen.check) for file, page in pages.items()])


def often_different(first: Results, again: Callable[[], Results], kept: Path = FILE) -> list[str]:
    """A paragraph for each transcript that differs from the kept ones in this run and in both of two further ones. A
    difference in some of them can be a matter of timing: which of two messages at once comes first."""
    found = differences(first.transcripts, kept)
    for _ in range(2):
        names = {each.partition("\n")[0] for each in found}
        if names:
            found = differences({name: each for name, each in again().transcripts.items() if name in names}, kept)
    return found


def _keep(file: Path, page: str, *, check: bool) -> int:
    if not check:
        file.write_text(page)
    elif not file.exists() or file.read_text() != page:
        print(f"{file.relative_to(ROOT)} says something else: run `make matrix`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
