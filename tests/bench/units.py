"""Measures what one more session, stream, connection, server and start cost a host, for tests/bench/scale.py.

    .venv/bin/python -m tests.bench.units         measures, in three minutes; writes tests/bench/units.json

A cost is that of many more, divided by their number: of a host of its own each time, because freed memory is used
again. Without PostgreSQL, its costs stay as they are in the file.
Processor time is scaled by the yardstick, as that of `make bench`.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from host.cli.admin_client import find_hosts
from host.storage.sql import Transaction
from host.storage.store import ApprovedDefinition, StoredItem, StoredSession
from tests.bench.contenders import FLEET, HTTP, Upstream
from tests.bench.fixed.yardstick import REFERENCE, yardstick
from tests.bench.lanes import Calls, Lane
from tests.bench.processes import pause
from tests.bench.rounds import WARM, Bench, backwards_every_other
from tests.kit.awaited import awaited
from tests.kit.postgres import own_server, programs
from tests.kit.processes import processor_time
from tests.kit.servers.counting import Counting, counting
from tests.kit.stores import FleetStores
from tests.real.clients import initialize
from tests.real.running import Running, memory_of, pids_below, recorder, serving, until, write_config

FILE = Path(__file__).with_name("units.json")
REVISION = "2025-11-25"
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
FEW, MANY = 50, 400
"""Those that are there before, so that everything is made that is there once, and those that are measured."""
FEW_SERVERS, MANY_SERVERS = 20, 220
DESCRIBED = 1024
"""Bytes of the description of each of a server's ten tools."""
ROUNDS = 3
FORWARDED_ROUNDS = 6
ENGINE_CHANGES = 200
ENGINE_REST = 5.0
"""Seconds for which two processes are watched that do nothing."""
SETTLE = 1.0
"""Seconds after which a host has given back what it used once."""
_OWN = "RssAnon"


Change = Callable[[Transaction], None]


class Cost(NamedTuple):
    """The memory in bytes and the processor time in seconds that something took."""

    memory: float
    processor: float


@contextmanager
def host(folder: Path, servers: dict[str, object], **more: object) -> Iterator[Running]:
    file = write_config(
        folder,
        servers,
        memory="4096MiB",
        capacity={"sessions": 5000, "connections": 5000},
        console="off",
        drain="1s",
        **more,
    )
    with serving(file) as running:
        yield running


def cost_of(running: Running, do: Callable[[int], None], few: int = FEW, many: int = MANY) -> Cost:
    """What each of `many` takes after `few`."""
    pid = running.process.pid
    do(few)
    pause(SETTLE)
    memory, processor = memory_of(pid, _OWN), processor_time(pid)
    do(many)
    took = processor_time(pid) - processor
    pause(SETTLE)
    return Cost((memory_of(pid, _OWN) - memory) / many, took / many)


def sessions(folder: Path, *, streams: bool) -> Cost:
    """Of a session, with its standing stream and the connection of that if wanted."""
    with ExitStack() as stack, host(folder, {"a": recorder(folder / "log")}) as running:
        running.wait_ready("a")
        address = running.url.split("/")[2]
        opener = http.client.HTTPConnection(address)
        stack.callback(opener.close)

        def request(body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
            opener.request("POST", "/mcp", body, HEADERS | headers)
            answer = opener.getresponse()
            answer.read()
            assert answer.status in (200, 202), answer.status
            return answer

        def begin(count: int) -> None:
            for _ in range(count):
                id = request(initialize(REVISION), {}).headers["mcp-session-id"]
                own = {"mcp-session-id": id, "mcp-protocol-version": REVISION}
                request(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', own)
                if streams:
                    stream = http.client.HTTPConnection(address)
                    stack.callback(stream.close)
                    stream.request("GET", "/mcp", headers=own | {"accept": "text/event-stream"})
                    assert stream.getresponse().status == 200

        return cost_of(running, begin)


def connections(folder: Path) -> Cost:
    """Of a connection that is kept open, and idle."""
    with ExitStack() as stack, host(folder, {"a": recorder(folder / "log")}) as running:
        address = running.url.split("/")[2]

        def connect(count: int) -> None:
            for _ in range(count):
                connection = http.client.HTTPConnection(address)
                stack.callback(connection.close)
                connection.request("GET", "/healthz")
                connection.getresponse().read()

        return cost_of(running, connect)


def servers(folder: Path, server: Counting, count: int, state: str) -> Cost:
    """Of a host with so many servers at URLs until all are in this state."""
    specs: dict[str, object] = {f"s{n}": {"url": f"{server.url}/{n}"} for n in range(count)}
    with host(folder, specs, defaults={"start": "lazy"}) as running:
        (api,) = until(lambda: find_hosts(folder / "state"), "a host")
        until(lambda: all(each["state"] == state for each in api.get("status")["servers"]), f"all are {state}", 120)
        pause(SETTLE)
        return Cost(memory_of(running.process.pid, _OWN), processor_time(running.process.pid))


def measured() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="colonnade-units-") as name:
        folder = partial(_made, Path(name))
        before = yardstick()
        alone, streaming, connection = (
            sessions(folder("sessions"), streams=False),
            sessions(folder("streams"), streams=True),
            connections(folder("connections")),
        )
        with counting(folder("upstream") / "log", DESCRIBED) as server:
            at = {FEW_SERVERS: folder("few"), MANY_SERVERS: folder("many")}
            first, later = (
                [servers(each, server, count, state) for count, each in at.items()] for state in ("ready", "stopped")
            )
        scale = REFERENCE * 2 / (before + yardstick())
    more = MANY_SERVERS - FEW_SERVERS
    connected, remembered = (
        Cost((many.memory - few.memory) / more, (many.processor - few.processor) / more) for few, many in (first, later)
    )
    return {
        "host_memory": later[0].memory - FEW_SERVERS * remembered.memory,
        "session_memory": alone.memory,
        "session_processor": alone.processor * scale,
        "stream_memory": streaming.memory - alone.memory,
        "connection_memory": connection.memory,
        "connected_server_memory": connected.memory,
        "connected_server_processor": connected.processor * scale,
        "remembered_server_memory": remembered.memory,
        "remembered_server_processor": remembered.processor * scale,
    }


def engine() -> dict[str, float]:
    """Of PostgreSQL: a process at rest, a stored session and a decision of which one other process is told."""
    with own_server() as server, server.database() as database:
        stores = FleetStores(server, database)
        with stores.opened() as one, stores.opened() as other:
            root = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])

            def session(number: int) -> Change:
                return lambda transaction: transaction.put_sessions([StoredSession(f"s{number}", "x" * 400, number)])

            def decision(number: int) -> Change:
                item = StoredItem(ApprovedDefinition(f"sha256:{number}", b"{}", 1.5, "console"))
                return lambda transaction: transaction.put_items("a", "tool", {"x": item})

            def cost(kind: Callable[[int], Change]) -> float:
                before = _processor_below(root)
                for number in range(ENGINE_CHANGES):
                    awaited(one.write(kind(number)))
                stores.settle(one, other)
                return (_processor_below(root) - before) / ENGINE_CHANGES

            cost(session)
            before = _processor_below(root)
            pause(ENGINE_REST)
            at_rest = (_processor_below(root) - before) / ENGINE_REST / 2
            return {"engine_process": at_rest, "engine_session": cost(session), "engine_decision": cost(decision)}


def forwarded() -> dict[str, float]:
    """Of two processes of a fleet: a call that one forwards to the other, without the call itself."""
    with ExitStack() as stack:
        bench = Bench(stack)
        own, other = (Lane(FLEET, Upstream(HTTP), Calls(forwarded=is_forwarded)) for is_forwarded in (False, True))
        loads = {lane: bench.load(lane, stack) for lane in (own, other)}
        for load in loads.values():
            load.run(WARM)
        more: list[float] = []
        for number in range(FORWARDED_ROUNDS):
            costs = {lane: bench.sample(lane, loads[lane]).cost for lane in backwards_every_other(number, [own, other])}
            more.append(costs[other] - costs[own])
        return {"forwarded_processor": statistics.median(more) / 1e6}


def _processor_below(root: int) -> float:
    found = 0.0
    for pid in (root, *pids_below(root)):
        with suppress(OSError):
            found += processor_time(pid)
    return found


def _made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


WORDS = {
    "engine_process": ("seconds", "PostgreSQL: a second of a process at rest"),
    "engine_session": ("seconds", "PostgreSQL: a session that begins, in a transaction of its own"),
    "engine_decision": ("seconds", "PostgreSQL: a decision, of which one other process is told"),
    "host_memory": ("bytes", "a host without clients and servers"),
    "forwarded_processor": ("seconds", "a call that one process forwards to another, at both, beyond the call itself"),
    "session_memory": ("bytes", "an idle session"),
    "session_processor": ("seconds", "initialize and its notification"),
    "stream_memory": ("bytes", "its standing stream, with the connection"),
    "connection_memory": ("bytes", "an idle connection"),
    "connected_server_memory": ("bytes", "a connected server at a URL with ten tools of 1 KiB"),
    "connected_server_processor": ("seconds", "the first start of it: handshake, lists, what is remembered"),
    "remembered_server_memory": ("bytes", "the same, remembered and not connected (start: lazy)"),
    "remembered_server_processor": ("seconds", "a start with it"),
}


def main() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        rounds.append(measured() | (engine() | forwarded() if programs() else {}))
        print(json.dumps(rounds[-1]), flush=True)
    former = json.loads(FILE.read_text())["units"] if FILE.exists() else {}
    units = {
        name: {"value": statistics.median(each[name] for each in rounds), "unit": unit, "what": what}
        if name in rounds[0]
        else former[name]
        for name, (unit, what) in WORDS.items()
    }
    machine = f"{os.cpu_count()} processors, Python {sys.version.split()[0]}"
    FILE.write_text(json.dumps({"machine": machine, "units": units}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
