"""The measurements, as data: sections of lanes that are compared with each other, and the limits that must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tests.bench.contenders import (
    COLONNADES,
    CONDITIONED,
    FASTMCP_DEFAULT,
    FASTMCP_TUNED,
    HANDSHAKE,
    HTTP,
    MCP_PROXY_DEFAULT,
    SKETCH,
    STATELESS,
    STDIO,
    SUPERGATEWAY_STATEFUL,
    TWO_SECRETS,
    Contender,
    Upstream,
    colonnades,
)

ERAS = (HANDSHAKE, STATELESS)
NAMES = {HTTP: "HTTP", STDIO: "stdio"}
DECIDING, OTHERS, FEW = 15, 5, 3
"""Rounds of the lanes that limits hold for, of the others, and of what is slow."""
QUICK = 8
"""Rounds of a quick run."""
COLONNADE = COLONNADES[0]
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
    """A promise: a call of `lane` costs at most `most` times one of `base`."""

    lane: Lane
    base: Lane
    most: float

    @property
    def sentence(self) -> str:
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

    def quick(self) -> Section | None:
        """The part of it that its limits need, in fewer rounds; None without limits."""
        deciding = {lane for limit in self.limits for lane in (limit.lane, limit.base)}
        lanes = tuple(lane for lane in self.lanes if lane in deciding)
        shorter = {lane: replace(lane, rounds=QUICK) for lane in lanes}
        limits = [Limit(shorter[limit.lane], shorter[limit.base], limit.most) for limit in self.limits]
        return Section(self.title, tuple(shorter.values()), tuple(limits)) if lanes else None


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
        for contender, client, server in product(colonnades(transport), ERAS, ERAS)
    }
    limits = [Limit(ours[COLONNADE, era, era], floor, sketch) for era in ERAS]
    for client, server in (ERAS, ERAS[::-1]):
        limits.append(Limit(ours[COLONNADE, client, server], ours[COLONNADE, client, client], 1.1))
    lanes = [floor, *ours.values()]
    for peer, factor in ({FASTMCP_TUNED: tuned} | peers).items():
        lane = Lane(peer, Upstream(transport), rounds=DECIDING)
        lanes.append(lane)
        limits.append(Limit(ours[COLONNADE, HANDSHAKE, HANDSHAKE], lane, 1 / factor))
    lanes.append(Lane(FASTMCP_DEFAULT, Upstream(transport), rounds=FEW, seconds=2.0))
    if transport == STDIO:
        lanes.append(Lane(SUPERGATEWAY_STATEFUL, Upstream(transport)))
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


def _beside_sketch(title: str, transport: str, calls: Calls, tools: int = 1) -> Section:
    lanes = [Lane(contender, Upstream(transport, tools=tools), calls) for contender in (SKETCH, *colonnades(transport))]
    return Section(f"{title}, {NAMES[transport]}", tuple(lanes))


def _idle() -> Section:
    lanes = [Lane(COLONNADE, Upstream(HTTP, copy=2), note="nothing besides")]
    for copy, era in enumerate(ERAS, 3):
        note = f"{IDLE} {'sessions and their' if era == HANDSHAKE else 'stateless'} streams that are idle"
        lanes.append(Lane(COLONNADE, Upstream(HTTP, copy=copy), Calls(era, idle=IDLE), note))
    return Section("Idle clients, 16 connections that call, HTTP", tuple(lanes))


def _examined() -> Section:
    """What is looked at more closely than a plain call."""
    large, results = Calls(argument=100 * 1024), Calls(size=100 * 1024)
    plain = Lane(COLONNADE, Upstream(HTTP), large, "an argument of 100 KiB")
    lanes = [plain, replace(plain, contender=CONDITIONED, against=1.05)]
    for transport in NAMES:
        secrets = Lane(TWO_SECRETS, Upstream(transport), note=f"{NAMES[transport]} server", against=1.05)
        lanes += [secrets, replace(secrets, calls=results, note=f"results of 100 KiB, {secrets.note}")]
    return Section(EXAMINED, tuple(lanes))


EXAMINED = "Conditions and secrets, 16 connections"
SECTIONS = [
    _one_server(HTTP, sketch=7, tuned=10, peers={}),
    _one_server(STDIO, sketch=4.2, tuned=7, peers={MCP_PROXY_DEFAULT: 2.8}),
    _several_servers(HTTP, {10: 1.1, 50: 1.2}),
    _in_flight(),
    _several_servers(STDIO, {}),
    *(
        _beside_sketch(f"{count} connection{'s' if count > 1 else ''}", transport, Calls(connections=count))
        for count, transport in product((1, 64), NAMES)
    ),
    *(_beside_sketch("Results of 100 KiB", transport, Calls(size=100 * 1024)) for transport in NAMES),
    # A message over stdio may have 8 MiB.
    _beside_sketch("Results of 10 MiB", HTTP, Calls(connections=4, size=10 * 1024 * 1024)),
    *(_beside_sketch("tools/list of 500 tools", transport, Calls(listed=500), tools=500) for transport in NAMES),
    _idle(),
    _examined(),
]
