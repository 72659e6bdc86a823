"""The proxies that are compared, as data: how each is started before servers of a kind.

A new listener of Colonnade is one more line in `COLONNADES`.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.bench.build import FIXED, HERE, ROOT, NotInstalled, from_npm, from_pypi
from tests.kit.certificates import write_certificate
from tests.kit.kernel import has_namespaces
from tests.kit.ports import free_port
from tests.kit.postgres import programs
from tests.real.running import COLONNADE

FASTMCP = "fastmcp==4.2.3"
MCP_PROXY = "mcp-proxy==0.13.0"
SUPERGATEWAY = "supergateway@4.0.0"
HTTP, STDIO = "http", "stdio"
HANDSHAKE, STATELESS = "handshake", "stateless"


@dataclass(frozen=True)
class Upstream:
    """The servers behind a proxy. `copy` makes two that are otherwise the same different ones."""

    transport: str
    era: str = HANDSHAKE
    servers: int = 1
    tools: int = 1
    copy: int = 0
    changing: bool = False
    """Whether it is the server of `changing.py`."""

    @property
    def arguments(self) -> list[str]:
        """Those of the program of one server."""
        return [self.era, self.transport, str(self.tools)]


@dataclass(frozen=True)
class Target:
    """The place of the servers: the URL or the command of each."""

    upstream: Upstream
    where: str | list[str]

    @property
    def words(self) -> list[str]:
        return self.where if isinstance(self.where, list) else [self.where]


@dataclass(frozen=True)
class Start:
    """The start of a proxy. Without a `url`, it prints where it serves."""

    command: list[str]
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A proxy. `tool` is its name for the servers' `echo`, in which # is the number of the server, from 1.

    `start` raises NotInstalled if this machine cannot have it.
    """

    name: str
    start: Callable[[Target, Path], Start]
    tool: str = "echo"


def _colonnade(
    listen: Mapping[str, Any], server: Mapping[str, Any], view: Mapping[str, Any] | None = None
) -> Callable[[Target, Path], Start]:
    """`view`: the view that all clients get; None for none."""

    def start(target: Target, folder: Path) -> Start:
        entry = {"command": target.where} if isinstance(target.where, list) else {"url": target.where}
        servers = {f"s{number}": {**entry, **server} for number in range(1, target.upstream.servers + 1)}
        file = folder / "colonnade.yaml"
        views = {} if view is None else {"views": {"only": view}, "default_view": "only"}
        file.write_text(json.dumps({"listen": {"address": "127.0.0.1:0", **listen}, "servers": servers, **views}))
        return Start([COLONNADE, "serve", str(file)], environment={"COLONNADE_STATE": str(folder / "state")})

    return start


def _sketch(target: Target, folder: Path) -> Start:
    return Start([sys.executable, str(FIXED / "sketch.py"), target.upstream.transport, *target.words])


def _audited_sketch(target: Target, folder: Path) -> Start:
    return Start([sys.executable, str(HERE / "peers" / "audited_sketch.py"), str(folder / "audit"), *target.words])


def _fastmcp(kind: str) -> Callable[[Target, Path], Start]:
    def start(target: Target, folder: Path) -> Start:
        port = free_port()
        program = [str(from_pypi(FASTMCP) / "python"), str(HERE / "peers" / "fastmcp_proxy.py")]
        return Start([*program, kind, str(port), *target.words], _url(port))

    return start


def _mcp_proxy(target: Target, folder: Path) -> Start:
    port = free_port()
    program = [str(from_pypi(MCP_PROXY) / "mcp-proxy"), "--host", "127.0.0.1", "--port", str(port)]
    return Start([*program, "--", *target.words], _url(port))


def _supergateway(target: Target, folder: Path) -> Start:
    port = free_port()
    modules, loopback = from_npm(SUPERGATEWAY), HERE / "peers" / "loopback.cjs"
    program = ["node", "--require", str(loopback), str(modules / "supergateway" / "dist" / "index.js")]
    options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none", "--port", str(port)]
    return Start([*program, "--stdio", shlex.join(target.words), *options], _url(port))


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


def of_checkout(contender: Contender, program: Sequence[str], seed: int) -> Contender:
    """This Colonnade as another checkout has it, started by `program`. Hosts of one seed hash alike."""

    def start(target: Target, folder: Path) -> Start:
        start = contender.start(target, folder)
        environment = {**start.environment, "PYTHONHASHSEED": str(seed)}
        return replace(start, command=[*program, *start.command[1:]], environment=environment)

    return replace(contender, start=start)


def _two_secrets(target: Target, folder: Path) -> Start:
    """A server that is given two secrets, as headers or in its environment."""
    names = {"API_KEY": "one", "API_TOKEN": "two"}
    for name, file in names.items():
        (folder / file).write_text(f"{name.lower()}-0123456789abcdef0123456789abcdef")
    given = {name: f"${{file:{file}}}" for name, file in names.items()}
    if isinstance(target.where, list):
        return _colonnade({}, {"env": given})(target, folder)
    return _colonnade({}, {"headers": {name.replace("_", "-"): value for name, value in given.items()}})(target, folder)


def _over_tls(target: Target, folder: Path) -> Start:
    cert, key = write_certificate(folder)
    return _colonnade({"tls": {"cert": str(cert), "key": str(key)}}, {})(target, folder)


def _fleet(target: Target, folder: Path) -> Start:
    if programs() is None:
        raise NotInstalled("PostgreSQL is not installed (PG_BIN)")
    *_, file = _colonnade({}, {})(target, folder).command
    return Start([sys.executable, "-m", "tests.bench.fleet", file], environment={"PYTHONPATH": str(ROOT)})


def _confined(target: Target, folder: Path) -> Start:
    if not has_namespaces():
        raise NotInstalled("this system refuses namespaces")
    return _colonnade({}, {"sandbox": "strict"})(target, folder)


SKETCH = Contender("bare sketch", _sketch)
AUDITED_SKETCH = Contender("bare sketch with two records of the audit", _audited_sketch)
COLONNADES = [
    Contender("Colonnade", _colonnade(listen={}, server={}), tool="s#__echo"),
]
"""The first is the one that the limits hold for; all are measured."""
_CHECKED = {"more": {"type": "string", "prefix": "y", "max_len": 1024 * 1024}, "size": {"range": [0, 1024]}}
CONDITIONED = Contender(
    "Colonnade with a condition",
    _colonnade({}, {"consent": {"tools": {"allow": [{"name": "echo", "when": _CHECKED}], "default": "deny"}}}),
    tool="s#__echo",
)
"""Its rule looks at the argument `more` (`Calls.argument`) and at a number."""
_UNLIKE: Sequence[Callable[[int], Mapping[str, Any]]] = (
    lambda number: {"text": f"name {number}"},
    lambda number: {"text": {"prefix": f"call of {number}: "}},
    lambda number: {"text": {"suffix": f" of {number}"}},
    lambda number: {"text": {"glob": f"*secret-{number}/*"}},
    lambda number: {"size": {"range": [1024 * number + 1024, 1024 * number + 2047]}},
)
RULED = Contender(
    "Colonnade with 200 conditions",
    _colonnade(
        {},
        {
            "consent": {
                "tools": {"deny": [{"name": "echo", "when": unlike(n)} for unlike in _UNLIKE for n in range(40)]}
            }
        },
    ),
    tool="s#__echo",
)
"""None of its rules holds for a call."""
TWO_SECRETS = Contender("Colonnade with two secrets", _two_secrets, tool="s#__echo")
_RULED = {"consent": {"tools": {"default": "allow"}}}
OVER_TLS = Contender("Colonnade with TLS", _over_tls, tool="s#__echo")
VIEWED = Contender("Colonnade with a view", _colonnade({}, {}, {"instructions": "All."}), tool="s#__echo")
SEARCHED = Contender("Colonnade with a search", _colonnade({}, _RULED, {"search": "on"}), tool="s#__echo")
"""Its rule lets calls through call_tool pass."""
FLEET = Contender("Colonnade in a fleet of two", _fleet, tool="s#__echo")
"""It prints the URL of one; see `fleet.py`."""
CONFINED = Contender("Colonnade with a sandbox", _confined, tool="s#__echo")
COMPARED = (*COLONNADES, CONDITIONED, RULED, TWO_SECRETS, OVER_TLS, VIEWED, SEARCHED, CONFINED)
"""Contenders that another commit may have, too."""
FASTMCP_DEFAULT = Contender(f"{FASTMCP.replace('==', ' ')}, default", _fastmcp("default"))
FASTMCP_TUNED = Contender(f"{FASTMCP.replace('==', ' ')}, tuned", _fastmcp("tuned"))
MCP_PROXY_DEFAULT = Contender(MCP_PROXY.replace("==", " "), _mcp_proxy)
SUPERGATEWAY_STATEFUL = Contender(SUPERGATEWAY.replace("@", " "), _supergateway)
