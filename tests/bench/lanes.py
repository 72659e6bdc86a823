"""What is measured, as data: sections of lanes. The lanes of a section are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.contenders import COLONNADES, SKETCH, Contender, Upstream

HANDSHAKE, STATELESS = ERAS = ("handshake", "stateless")


@dataclass(frozen=True)
class Calls:
    """What the load generator does."""

    era: str = HANDSHAKE
    connections: int = 16
    size: int = 0
    listed: int = 0
    idle: int = 0

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
    seconds: float = 1.0
    rounds: int = 3
    what: str = ""

    @property
    def name(self) -> str:
        return f"{self.contender.name}{', ' if self.what else ''}{self.what}"


@dataclass(frozen=True)
class Section:
    """Lanes that are compared with each other, in each round with the first of them."""

    title: str
    lanes: tuple[Lane, ...]


def _clients(upstream: str) -> Section:
    lanes = [Lane(SKETCH, Upstream(upstream))]
    for colonnade in COLONNADES:
        for era in ERAS:
            lanes.append(Lane(colonnade, Upstream(upstream, era), Calls(era), what=f"{era} client and server"))
    return Section(f"One server over {upstream}", tuple(lanes))


SECTIONS = [_clients("http"), _clients("stdio")]
