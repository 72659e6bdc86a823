"""The attacks on fairness, memory and disk. Attacks of one family share their hosts, servers and good client.

Each is a context manager that is entered with a host and left when the attack is over; the sizes are those at scale 1
or do not depend on the scale where only the full size is an attack at all.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.running import BARE_PYTHON, until

from .processes import SERVER, Host, hostile_client, time_passes

MOST_ENTRIES = 10_000
"""Entries of one server that may be listed."""
MOST_AUDIT = 64 * 1024
"""Bytes of audit that one reading of a list may cost: 20 records of changes, one summary, and their frames."""
MOST_STARTS = 5
"""Starts of a server that fails, in any MINUTE."""
MINUTE = 60.0

GOOD, GREEDY = "good-" + "0" * 16, "greedy-" + "0" * 16
"""Access tokens. Both ends are here, on loopback."""

Counted = dict[str, int]
Start = Callable[[Host, float, Counted], AbstractContextManager[None]]
"""An attack on a host at a scale; what it did is counted."""
Check = Callable[[Host, float, Counted], list[str]]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        check: what is wrong with the host while the attack is in force, since that moment; what it found is counted.
        seconds: how long the attack lasts at least, at scale 1.
        own_work: for the second phase, what gives the servers of the host under test the same work without the attack;
            None where the attack on another host does.
        yardstick: attacks of a family with the same one keep the same processes busy in the same way. Below scale 1
            their second phase is measured once.
        full_size: it is left out below scale 1, since another attack takes the same way through the host.
    """

    name: str
    size: str
    start: Start
    check: Check = lambda host, since, counted: []
    seconds: float = 0.0
    own_work: Start | None = None
    yardstick: str = ""
    full_size: bool = False


@dataclass(frozen=True)
class Family:
    """Attacks that need the same servers.

    Args:
        servers: the configuration of the servers beside `good`; the argument is the control file.
        tool: the tool that the good client calls.
        client: options of the good client.
        more: the rest of the configuration.
        web: whether there is a server over HTTP, `web`.
        calls: calls of the good client in each phase at the least; for attacks of the same size at every scale, whose
            bursts must not be a larger share of a shorter phase.
    """

    name: str
    attacks: tuple[Attack, ...]
    servers: Callable[[Path], Mapping[str, Any]]
    tool: str = "good__echo"
    client: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = None
    web: bool = False
    calls: int = 0


def program(behaviour: str, name: str, control: Path | None = None, **more: object) -> dict[str, object]:
    """The configuration of a server of server.py."""
    command = [*BARE_PYTHON, SERVER, behaviour, "--name", name]
    if control is not None:
        command += ["--control", str(control)]
    return {"command": command, "protocol": "legacy", **more}


def at(scale: float, full: int, least: int = 1) -> int:
    return max(least, round(full * scale))


# Servers

ENDED = "useless messages in one second"
"""In the state of a server whose connection was ended for its noise."""
AGAIN = 90.0
"""Seconds in which a server makes noise again that the attack before has cost its connection: tried once a minute."""


def noise(kind: str, servers: int = 1, at: str = "noise") -> Start:
    @contextmanager
    def start(host: Host, scale: float, counted: Counted) -> Iterator[None]:
        began = time.monotonic()
        names = [f"{at}{number}" for number in range(servers)]
        with host.ordered({"kind": kind, "servers": names}):
            until(lambda: host.noted("in force", began) >= servers, f"{servers} servers make noise", AGAIN)
            yield
        time_passes(0.1)
        for _, _, text in host.notes(began):
            if text.startswith("messages "):
                counted["messages"] = counted.get("messages", 0) + int(text.split()[1])

    return start


def ended(name: str) -> Check:
    """A flood does not go on for ever: its connection ends, and the state of the server says why."""

    def check(host: Host, since: float, counted: Counted) -> list[str]:
        until(lambda: ENDED in str(host.status()[name]), f"the connection of {name} ends", AGAIN)
        return []

    return check


@contextmanager
def progress(host: Host, scale: float, counted: Counted) -> Iterator[None]:
    """A flood of progress of a call that is under way."""
    began = time.monotonic()
    with host.ordered({"kind": "progress", "servers": ["noise0"]}):
        with hostile_client("call", host.url, counted, tool="noise0__echo", arguments={}, connections=1, token=True):
            until(lambda: host.noted("in force", began), "a server reports progress", AGAIN)
            yield


def flood(kind: str) -> Start:
    """A flood in the answers to four calls, over HTTP."""

    @contextmanager
    def start(host: Host, scale: float, counted: Counted) -> Iterator[None]:
        began = time.monotonic()
        with host.ordered({}):
            options = {"tool": "web__echo", "arguments": {"flood": kind}, "connections": 4, "pause": 0.2}
            with hostile_client("call", host.url, counted, **options):
                until(lambda: host.noted("in force", began), "a server floods its answer")
                yield

    return start


NEXT_READING = 3 * MINUTE
"""Seconds in which lists that flap are read again: one that is long and all new waits for more than a minute, as its
budget says."""


def listed(host: Host, scale: float, counted: Counted) -> AbstractContextManager[None]:
    return host.ordered({"entries": at(scale, MOST_ENTRIES - 1)})


def readings(host: Host, since: float, counted: Counted) -> list[str]:
    """There must have been readings, and no more than MOST_ENTRIES entries of one server are listed."""
    until(lambda: host.noted("reading", since), "the list is read", NEXT_READING)
    counted["readings"] = host.noted("reading", since)
    tools = {name: (server.get("entries") or {}).get("tools", 0) for name, server in host.status().items()}
    counted["most tools of a server"] = max(tools.values())
    return [
        f"{count} tools of {name} are listed, at most {MOST_ENTRIES}"
        for name, count in tools.items()
        if count > MOST_ENTRIES
    ]


def audited(host: Host, since: float, counted: Counted) -> list[str]:
    """Bytes of audit about the server whose list changes, over its readings."""
    until(lambda: host.noted("reading", since) > 1, "the list is read twice", NEXT_READING)
    count = counted["readings"] = host.noted("reading", since)
    size = 0
    for file in (host.state / "audit").glob("*.jsonl"):
        with file.open("rb") as lines:
            size += sum(len(line) for line in lines if b'"churn"' in line)
    counted["bytes of audit a reading"] = size // count
    if size > MOST_AUDIT * count:
        return [f"a reading costs {size // count} bytes of audit, at most {MOST_AUDIT}"]
    return []


def restarts(host: Host, since: float, counted: Counted) -> list[str]:
    """Starts of the server that crashes, in the worst minute."""
    starts = [when for name, when, text in host.notes(since) if text == "started"]
    worst = max((sum(1 for when in starts if first <= when < first + MINUTE) for first in starts), default=0)
    counted["starts in the worst minute"] = worst
    if not starts:
        return ["the server that crashes was never started again"]
    return [f"{worst} starts in a minute, at most {MOST_STARTS}"] if worst > MOST_STARTS else []


@contextmanager
def fifty(host: Host, scale: float, counted: Counted) -> Iterator[None]:
    """Fifty more servers by one change of the configuration."""
    before = host.file.read_text()
    config = json.loads(before)
    config["servers"] |= {f"more{number}": program("good", f"more{number}") for number in range(50)}
    _reload(host, json.dumps(config))
    yield
    until(lambda: len([s for s in host.status().values() if s["state"] == "ready"]) > 50, "fifty more are ready")
    counted["servers"] = 50
    _reload(host, before)
    until(lambda: len(host.status()) < 50, "fifty servers are gone")


def _reload(host: Host, text: str) -> None:
    new = host.file.with_suffix(".new")
    new.write_text(text)
    new.rename(host.file)
    os.kill(host.pid, signal.SIGHUP)


# Clients


def client(attack: str, *, full: int = 0, scaled: bool = False, **options: Any) -> Start:
    """An attack of hostile_client.py. `full`: its `count` at scale 1, or at any scale if it is not `scaled`."""

    def start(host: Host, scale: float, counted: Counted) -> AbstractContextManager[None]:
        count = {"count": at(scale, full) if scaled else full} if full else {}
        return hostile_client(attack, host.url, counted, **options, **count)

    return start


def body(which: str, tool: str = "other__echo") -> Start:
    return client("bodies", which=which, tool=tool, connections=4)


def with_bulk(control: Path) -> dict[str, Any]:
    return {"bulk": program("bulk", "bulk", control)}


LARGE = {"tool": "bulk__echo", "size": 7_000_000}
TOKENS = {"listen": {"address": "127.0.0.1:0", "auth": {"tokens": {"good": GOOD, "greedy": GREEDY}}}}

REQUEST_FLOODS = {
    "unknown requests": "requests of a method that no client has",
    "denied requests": "requests that the configuration does not allow",
    "requests of no call": "requests that belong to no call",
    "invalid requests": "requests with params that are invalid",
    "roots": "requests for roots that nobody has",
    "pings": "pings",
}
LARGE_MESSAGES = {
    "large logs": "log messages with a text of 7.5 MB",
    "large lists": "log messages with 3.7 million numbers",
    "large unknown": "unknown notifications of 7.5 MB",
    "large progress": "progress of no call, 7.5 MB each",
    "large answers": "results of 7.5 MB with an id never sent",
    "large errors": "errors of 7.5 MB with an id never sent",
    "large requests": "requests of an unknown method, 7.5 MB each",
    "large malformed": "7.5 MB that are no JSON",
}


def floods(name: str, kinds: Mapping[str, str], full: Collection[str]) -> Family:
    """Floods of one server each, whose connection must end. `full`: those that are measured at each scale."""
    servers = {kind: kind.replace(" ", "-") for kind in kinds}
    attacks = [
        Attack(
            kind, size, noise(kind, at=servers[kind]), ended(f"{servers[kind]}0"), yardstick=name,
            full_size=kind not in full,
        )
        for kind, size in kinds.items()
    ]  # fmt: skip
    consent = {"consent": {"sampling": "deny"}}
    return Family(
        name,
        tuple(attacks),
        lambda control: {f"{each}0": program("noise", f"{each}0", control, **consent) for each in servers.values()},
    )


FAMILIES = (
    floods("request floods", REQUEST_FLOODS, ("denied requests", "pings")),
    floods("large messages", LARGE_MESSAGES, ("large lists", "large requests")),
    Family(
        "noise over stdio",
        (
            Attack(
                "unknown", "unknown notifications of one server", noise("unknown"), yardstick="noise", full_size=True
            ),
            Attack("unknown x4", "unknown notifications of four servers", noise("unknown", 4)),
            Attack(
                "malformed",
                "lines that are no JSON, of one server",
                noise("malformed"),
                yardstick="noise",
                full_size=True,
            ),
            Attack(
                "stray answers",
                "answers with an id never sent, of one server",
                noise("stray answers"),
                yardstick="noise",
                full_size=True,
            ),
            Attack("logs", "log messages of one server", noise("logs"), yardstick="noise"),
            Attack(
                "late progress",
                "progress of no call, of one server",
                noise("late progress"),
                yardstick="noise",
                full_size=True,
            ),
            Attack("progress", "progress of a call under way", progress),
            Attack("list changed", "list_changed of one server", noise("list changed"), yardstick="noise"),
        ),
        lambda control: {f"noise{number}": program("noise", f"noise{number}", control) for number in range(4)},
    ),
    Family(
        "noise over HTTP",
        (
            Attack("100 continue", "endless 100 Continue in four answers", flood("continue"), yardstick="flood"),
            Attack("empty events", "endless empty events in four answers", flood("empty events"), yardstick="flood"),
            Attack(
                "comments", "endless comments in four answers", flood("comments"), yardstick="flood", full_size=True
            ),
        ),
        lambda control: {},
        web=True,
    ),
    # A family each: the definitions that are kept of one would hold back those of the other.
    Family(
        "renamed",
        (Attack("renamed", "9,999 tools, all renamed in each reading", listed, readings),),
        lambda control: {"renamed": program("renamed", "renamed", control)},
    ),
    Family(
        "paged",
        (Attack("paged", "22,000 tools in 100 pages, all renamed in each reading", listed, readings, full_size=True),),
        lambda control: {"paged": program("paged", "paged", control)},
    ),
    Family(
        "churn",
        (Attack("churn", "9,999 definitions changed at each reading, of a server nobody approved", listed, audited),),
        lambda control: {"churn": program("churn", "churn", control, trust="untrusted", sandbox="off")},
    ),
    Family(
        "shared server",
        (
            Attack(
                "9 MB answers",
                "two calls at a time with answers of 9 MB, of the server that the good client uses",
                client("call", tool="bulk__echo", arguments={"bytes": 9_000_000}, connections=2, pause=0.5),
                own_work=client(
                    "call", tool="bulk__echo", arguments={"bytes": 9_000_000, "sink": True}, connections=2, pause=0.5
                ),
            ),
        ),
        with_bulk,
        tool="bulk__echo",
    ),
    Family(
        "bodies",
        (
            Attack("members", "190,000 members in an object, 4 connections", body("members"), yardstick="bodies"),
            Attack(
                "objects", "66,000 small objects, 4 connections", body("objects"), yardstick="bodies", full_size=True
            ),
            Attack(
                "integers",
                "900 integers of 4,200 digits, 4 connections",
                body("integers"),
                yardstick="bodies",
                full_size=True,
            ),
            Attack("escapes", "4 MiB of escapes to an `ask` tool, 4 connections", body("escapes", "asked__echo")),
            Attack("mutated", "mutated requests on 4 connections", client("mutated", connections=4, seed=1)),
        ),
        lambda control: {
            "other": program("good", "other"),
            "asked": program("good", "asked", consent={"tools": "ask"}),
        },
        more={"ask": {"timeout": "1s"}},
    ),
    Family(
        "connections",
        (
            Attack("idle 1000", "1,000 idle connections without a token", client("idle", full=1000), full_size=True),
            Attack("idle 1100", "1,100 idle connections without a token", client("idle", full=1100)),
            Attack("slow heads", "1,100 unfinished heads without a token", client("slow heads", full=1100)),
            Attack("streams", "450 standing streams of one token", client("streams", full=450, auth=GREEDY)),
        ),
        lambda control: {},
        client=("--token", GOOD, "--fresh", "--listen"),
        more=TOKENS,
        calls=250,
    ),
    Family(
        "memory",
        (
            Attack(
                "stalled readers", "60 answers of 7 MB never read", client("stalled", full=60, scaled=True, **LARGE)
            ),
            Attack("withheld", "200 bodies of 4 MiB without the last byte", client("withheld", full=200, scaled=True)),
            Attack(
                "kept answers",
                "300 sessions with an answer of 1 MB to be fetched again",
                client("kept", full=300, scaled=True, tool="bulk__echo", size=1_000_000),
                seconds=20,
            ),
        ),
        with_bulk,
    ),
    Family(
        "bulk list",
        (Attack("bulk list", "lists of 100 pages of 7 MB", listed, seconds=30),),
        with_bulk,
    ),
    Family(
        "starts",
        (
            Attack("crash loop", "a server that ends at once", listed, restarts, seconds=65),
            Attack("fifty servers", "50 servers started by one reload", fifty),
        ),
        lambda control: {"crash": program("crash", "crash", control)},
    ),
)
