"""The measurements, as data: sections of lanes that are compared with each other, and the limits that must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tests.bench.contenders import (
    AUDITED_SKETCH,
    COLONNADES,
    CONDITIONED,
    CONFINED,
    FASTMCP_DEFAULT,
    FASTMCP_TUNED,
    FLEET,
    HANDSHAKE,
    HTTP,
    MCP_PROXY_DEFAULT,
    OVER_TLS,
    RULED,
    SEARCHED,
    SKETCH,
    STATELESS,
    STDIO,
    SUPERGATEWAY_STATEFUL,
    TWO_SECRETS,
    VIEWED,
    Contender,
    Upstream,
)

ERAS = (HANDSHAKE, STATELESS)
NAMES = {HTTP: "HTTP", STDIO: "stdio"}
DECIDING, OTHERS, FEW = 15, 5, 3
"""Rounds of the lanes that limits hold for, of the others, and of what is slow."""
QUICK = 6
"""Rounds of a quick run."""
COLONNADE = COLONNADES[0]
WITHOUT_SESSION = 1.24
"""The most that a call of a stateless client may cost, in calls of one with a handshake."""
NOTIFIED = 0.5
"""The most that a notification on one of many streams may cost, in calls of the bare sketch."""
FORWARDED = 1.5
"""The most that a call may cost more if it is forwarded, in calls of the bare sketch."""
RECORDED = 2.5
"""The most that a call of the bare sketch may cost with two records of the audit, in its calls without. The quieter the
machine, the cheaper is the kernel's part of the sketch, and the records, which are mostly Python, stay what they are:
1.7 where a call of the sketch takes 60 µs, 2.3 where it takes 35."""
KIB = 1024
IDLE = 400
"""Streams of one kind that a host keeps open."""


@dataclass(frozen=True)
class Calls:
    """The work of the load generator."""

    era: str = HANDSHAKE
    connections: int = 16
    size: int = 0
    listed: int = 0
    idle: int = 0
    argument: int = 0
    """Bytes of one more argument."""
    notified: bool = False
    """Whether the calls are notifications of `notified.py`."""
    forwarded: bool = False
    """Whether the sessions are those of the other process of a fleet."""
    way: str = ""
    """How `searching.py` calls; empty for another load generator."""

    def arguments(self, url: str, contender: Contender, upstream: Upstream) -> list[str]:
        return [
            *(url, self.era, str(self.connections), "--tool", contender.tool, "--servers", str(upstream.servers)),
            *("--size", str(self.size), "--list", str(self.listed), "--idle", str(self.idle)),
        ]


@dataclass(frozen=True)
class Lane:
    """A proxy before servers, and the calls that are made through it: one line of the table."""

    contender: Contender
    upstream: Upstream
    calls: Calls = Calls()
    note: str = ""
    rounds: int = OTHERS
    seconds: float = 1.0
    against: float = 1.03
    """How many times the processor time of another checkout's call one of this may take."""

    @property
    def name(self) -> str:
        return f"{self.contender.name}, {self.note}" if self.note else self.contender.name


@dataclass(frozen=True)
class Limit:
    """A promise: a call of `lane` costs at most `most` times one of `base`. With `beyond`, that is what it costs more
    than a call of that lane."""

    lane: Lane
    base: Lane
    most: float
    beyond: Lane | None = None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return (self.lane, self.base) if self.beyond is None else (self.lane, self.base, self.beyond)

    @property
    def sentence(self) -> str:
        if self.beyond is not None:
            return f"{self.lane.name}: at most {times(self.most)} {self.base.name} more than {self.beyond.note}"
        base = self.base.name if self.base.contender != self.lane.contender else self.base.note
        return f"{self.lane.name}: at most {times(self.most)} {base}"


def times(ratio: float) -> str:
    """A ratio in words: 1.1 times, 1/10 of."""
    return f"{ratio:.3g} times" if ratio >= 1 else f"1/{1 / ratio:.3g} of"


@dataclass(frozen=True)
class Section:
    """Lanes that are compared, in each round, with the first of them."""

    title: str
    lanes: tuple[Lane, ...]
    limits: tuple[Limit, ...] = ()

    @property
    def deciding(self) -> tuple[Lane, ...]:
        """The lanes that the limits need."""
        needed = {lane for limit in self.limits for lane in limit.lanes}
        return tuple(lane for lane in self.lanes if lane in needed)

    def quick(self) -> Section | None:
        """The deciding lanes in fewer and shorter rounds; None without limits."""
        shorter = {lane: replace(lane, rounds=QUICK, seconds=lane.seconds / 2) for lane in self.deciding}
        limits = [
            Limit(shorter[each.lane], shorter[each.base], each.most, each.beyond and shorter[each.beyond])
            for each in self.limits
        ]
        return Section(self.title, tuple(shorter.values()), tuple(limits)) if limits else None


def _one_server(transport: str, sketch: float, tuned: float, peers: dict[Contender, float]) -> Section:
    """Each era against each. `sketch`: the limit against the bare sketch; `tuned` and `peers`: how many times less a
    call must cost than with FastMCP and others."""
    floor = Lane(SKETCH, Upstream(transport), rounds=DECIDING)
    ours = {
        (contender, client, server): Lane(
            contender,
            Upstream(transport, server),
            Calls(client),
            f"{client} client and server" if client == server else f"{client} client, {server} server",
            DECIDING if contender == COLONNADE else OTHERS,
        )
        for contender, client, server in product(COLONNADES, ERAS, ERAS)
    }
    limits = [Limit(ours[COLONNADE, era, era], floor, sketch) for era in ERAS]
    for client, server in (ERAS, ERAS[::-1]):
        limits.append(Limit(ours[COLONNADE, client, server], ours[COLONNADE, client, client], 1.1))
    for server in ERAS:
        limits.append(Limit(ours[COLONNADE, STATELESS, server], ours[COLONNADE, HANDSHAKE, HANDSHAKE], WITHOUT_SESSION))
    lanes = [floor, *ours.values()]
    for peer, factor in ({FASTMCP_TUNED: tuned} | peers).items():
        lane = Lane(peer, Upstream(transport), rounds=DECIDING)
        lanes.append(lane)
        limits.append(Limit(ours[COLONNADE, HANDSHAKE, HANDSHAKE], lane, 1 / factor))
    lanes.append(Lane(FASTMCP_DEFAULT, Upstream(transport), rounds=FEW, seconds=2.0))
    if transport == STDIO:
        lanes.append(Lane(SUPERGATEWAY_STATEFUL, Upstream(transport)))
    else:
        recorded = Lane(AUDITED_SKETCH, Upstream(transport), rounds=DECIDING)
        lanes.append(recorded)
        limits.append(Limit(recorded, floor, RECORDED))
    return Section(f"One server over {NAMES[transport]}, 16 connections", tuple(lanes), tuple(limits))


def _several_servers(transport: str, limits: dict[int, float]) -> Section:
    rounds = DECIDING if limits else OTHERS
    one, *more = (
        Lane(
            COLONNADE,
            Upstream(transport, servers=count),
            note=f"{count} server{'s' if count > 1 else ''}",
            rounds=rounds,
        )
        for count in (1, 10, *([50] if transport == HTTP else []))
    )
    held = [Limit(lane, one, limits[lane.upstream.servers]) for lane in more if limits]
    return Section(f"Several servers over {NAMES[transport]}, 16 connections", (one, *more), tuple(held))


def _in_flight() -> Section:
    one = Lane(COLONNADE, Upstream(HTTP), Calls(connections=1), "1 call in flight", DECIDING)
    # Its own host: connections that were kept for other lanes would count against the limit of 1,000.
    many = Lane(COLONNADE, Upstream(HTTP, copy=1), Calls(connections=900), "900 calls in flight", DECIDING, 2.0)
    return Section("Calls in flight, HTTP", (one, many), (Limit(many, one, 1.2),))


def _beside_sketch(
    title: str, transport: str, calls: Calls, tools: int = 1, most: float | None = None, seconds: float = 1.0
) -> Section:
    """`most`: the limit of a call through the first Colonnade; None if there is none."""
    rounds = DECIDING if most else OTHERS
    lanes = [
        Lane(contender, Upstream(transport, tools=tools), calls, rounds=rounds, seconds=seconds)
        for contender in (SKETCH, *COLONNADES)
    ]
    limits = (Limit(lanes[1], lanes[0], most),) if most else ()
    return Section(f"{title}, {NAMES[transport]}", tuple(lanes), limits)


def _idle() -> Section:
    lanes = [Lane(COLONNADE, Upstream(HTTP, copy=2), note="nothing besides")]
    for copy, era in enumerate(ERAS, 3):
        note = f"{IDLE} {'sessions and their' if era == HANDSHAKE else 'stateless'} streams that are idle"
        lanes.append(Lane(COLONNADE, Upstream(HTTP, copy=copy), Calls(era, idle=IDLE), note))
    return Section("Idle clients, 16 connections that call, HTTP", tuple(lanes))


def _notified() -> Section:
    """A change of a list, of which each of many streams is notified."""
    call = Lane(SKETCH, Upstream(HTTP), rounds=DECIDING)
    lanes = [
        Lane(
            COLONNADE,
            Upstream(STDIO, changing=True, copy=copy),
            Calls(era, idle=IDLE, notified=True),
            f"one of {IDLE} {era} streams",
            DECIDING,
        )
        for copy, era in enumerate(ERAS)
    ]
    limits = tuple(Limit(lane, call, NOTIFIED) for lane in lanes)
    return Section("Notifications to idle streams, HTTP", (call, *lanes), limits)


def _arguments() -> Section:
    """A long argument, which a condition looks at or none does."""
    floor = Lane(SKETCH, Upstream(HTTP), Calls(argument=100 * KIB), rounds=DECIDING, seconds=0.7)
    plain = replace(floor, contender=COLONNADE)
    judged = replace(floor, contender=CONDITIONED, against=1.05)
    limits = (Limit(plain, floor, 3.6), Limit(judged, plain, 1.5))
    return Section("Arguments of 100 KiB, HTTP", (floor, plain, judged), limits)


def _examined() -> Section:
    """Servers of which the host looks for secrets in all that they say."""
    lanes: list[Lane] = []
    for transport in NAMES:
        secrets = Lane(TWO_SECRETS, Upstream(transport), note=f"{NAMES[transport]} server", against=1.05)
        lanes += [secrets, replace(secrets, calls=Calls(size=100 * KIB), note=f"results of 100 KiB, {secrets.note}")]
    return Section(EXAMINED, tuple(lanes))


def _confined() -> Section:
    """A server in a sandbox is called as one without."""
    plain = Lane(COLONNADE, Upstream(STDIO), rounds=DECIDING)
    confined = replace(plain, contender=CONFINED)
    return Section("A sandbox, 16 connections, stdio", (plain, confined), (Limit(confined, plain, 1.05),))


def _searched() -> Section:
    """A view, TLS, 200 conditions, calls through call_tool, and searches among 1,000 tools."""
    direct = Lane(COLONNADE, Upstream(HTTP), Calls(way="direct"), "no view", DECIDING)
    viewed = replace(direct, contender=VIEWED, note="a call")
    tls = replace(direct, contender=OVER_TLS, note="")
    ruled = replace(direct, contender=RULED, note="")
    own = Lane(SEARCHED, Upstream(HTTP), Calls(STATELESS, way="direct"), "stateless, the tool's own name", DECIDING)
    through = replace(own, calls=Calls(STATELESS, way="call_tool"), note="stateless, call_tool")
    many = Lane(SEARCHED, Upstream(HTTP, tools=1000), Calls(way="direct"), "1,000 tools, a call", DECIDING, 0.5)
    search = replace(many, calls=Calls(way="search_tools"), note="1,000 tools, a search")
    limits = (
        *(Limit(viewed, direct, 1.03), Limit(tls, direct, 1.5), Limit(ruled, direct, 1.3)),
        *(Limit(through, own, 1.15), Limit(search, many, 10.0)),
    )
    lanes = (direct, viewed, tls, ruled, own, through, many, search)
    return Section("Views, TLS, rules and search, 16 connections, HTTP", lanes, limits)


def _fleet() -> Section:
    """Sessions of the process itself, and calls that it forwards to the other one."""
    floor = Lane(SKETCH, Upstream(HTTP), rounds=DECIDING)
    alone = replace(floor, contender=COLONNADE, note="no fleet")
    own = replace(floor, contender=FLEET, note="a session of its own")
    forwarded = replace(own, calls=Calls(forwarded=True), note="a session of the other one")
    limits = (Limit(own, alone, 1.05), Limit(forwarded, floor, FORWARDED, beyond=own))
    return Section("A fleet, 16 connections, HTTP", (floor, alone, own, forwarded), limits)


EXAMINED = "Secrets, 16 connections"
SECTIONS = [
    _one_server(HTTP, sketch=5.8, tuned=10, peers={}),
    _one_server(STDIO, sketch=3.2, tuned=7, peers={MCP_PROXY_DEFAULT: 2.8}),
    _several_servers(HTTP, {10: 1.1, 50: 1.2}),
    _in_flight(),
    _several_servers(STDIO, {}),
    _beside_sketch("1 connection", HTTP, Calls(connections=1), most=3.8),
    _beside_sketch("1 connection", STDIO, Calls(connections=1), most=3.0),
    *(_beside_sketch("64 connections", transport, Calls(connections=64)) for transport in NAMES),
    _beside_sketch("Results of 100 KiB", HTTP, Calls(size=100 * KIB), most=3.7, seconds=0.7),
    _beside_sketch("Results of 100 KiB", STDIO, Calls(size=100 * KIB), most=2.7, seconds=0.7),
    _arguments(),
    _beside_sketch("Results of 1 MiB", HTTP, Calls(connections=4, size=1024 * KIB), most=4.15),
    # A message over stdio may have 8 MiB.
    _beside_sketch("Results of 10 MiB", HTTP, Calls(connections=4, size=10 * 1024 * KIB)),
    *(_beside_sketch("tools/list of 500 tools", transport, Calls(listed=500), tools=500) for transport in NAMES),
    _idle(),
    _notified(),
    _examined(),
    _searched(),
    _confined(),
    _fleet(),
]
