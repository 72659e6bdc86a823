"""The proxies that are compared, as data: how each is started before a kind of servers.

A new listener or client of Colonnade is one more line in `COLONNADES`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.build import FIXED
from tests.real.running import COLONNADE

UPSTREAM = "upstream"


@dataclass(frozen=True)
class Upstream:
    """What stands behind a proxy. `copy` makes two that are otherwise the same different ones."""

    transport: str
    era: str = "handshake"
    servers: int = 1
    tools: int = 1
    copy: int = 0

    def command(self, program: str) -> list[str]:
        """The command of one of its servers."""
        return [program, self.era, self.transport, str(self.tools)]


@dataclass(frozen=True)
class Target:
    """What a proxy is told to stand before: a URL, or a command."""

    upstream: Upstream
    where: str | list[str]


@dataclass(frozen=True)
class Start:
    """How a proxy is started. Without a `url` it prints where it serves."""

    command: list[str]
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A proxy. `tool` is its name of the servers' `echo`; # stands for the number of the server, from 1."""

    name: str
    start: Callable[[Target, Path], Start]
    tool: str = "echo"


def _colonnade(listen: Mapping[str, Any], server: Mapping[str, Any]) -> Callable[[Target, Path], Start]:
    def start(target: Target, folder: Path) -> Start:
        entry = {"command": target.where} if isinstance(target.where, list) else {"url": target.where}
        servers = {f"s{number}": {**entry, **server} for number in range(1, target.upstream.servers + 1)}
        file = folder / "colonnade.yaml"
        file.write_text(json.dumps({"listen": {"address": "127.0.0.1:0", **listen}, "servers": servers}))
        return Start([COLONNADE, "serve", str(file)], environment={"COLONNADE_STATE": str(folder / "state")})

    return start


def _sketch(target: Target, folder: Path) -> Start:
    where = target.where if isinstance(target.where, list) else [target.where]
    kind = "stdio" if isinstance(target.where, list) else "http"
    return Start([sys.executable, str(FIXED / "sketch.py"), kind, *where])


SKETCH = Contender("bare sketch", _sketch)
COLONNADES = [Contender("Colonnade", _colonnade({}, {}), tool="s#__echo")]
