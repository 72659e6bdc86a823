"""What a configuration file comes to: one frozen object that the host reads and nobody changes.

The classes here know nothing about YAML, lines or environments. Durations are seconds, paths are absolute, and
everything that may be secret is a `Secret`; the `repr` of a server or of the whole is safe to log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType

from config.interpolate import Secret

_PROTOCOL_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "transfer-encoding",
    }
)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8808
DEFAULT_PATH = "/mcp"
DEFAULT_START_GRACE = 3.0
DEFAULT_TIMEOUT = 60.0
DEFAULT_START_TIMEOUT = 60.0
DEFAULT_MAX_INSTANCES = 16
DEFAULT_IDLE_TIMEOUT = 300.0


def _no_secrets() -> Mapping[str, Secret]:
    return MappingProxyType({})


def is_protocol_header(name: str) -> bool:
    """Whether a header of requests to a server is set by the protocol, and so is nobody else's to set."""
    return name.lower() in _PROTOCOL_HEADERS or name.lower().startswith("mcp-")


def is_loopback(host: str) -> bool:
    """Whether an IP address, without brackets, is one that no other machine reaches."""
    return ip_address(host).is_loopback


class Trust(StrEnum):
    """What a server may ask of clients. A trusted one: everything. A standard one: to fill in a form, and for the
    roots; sampling and opening a URL are refused. An untrusted one: nothing; and neither its instructions nor the pages
    of its MCP Apps are passed on."""

    TRUSTED = "trusted"
    STANDARD = "standard"
    UNTRUSTED = "untrusted"


class Isolation(StrEnum):
    """Who shares an instance of a server (a process or a session): all clients, the requests of one, or nobody."""

    SHARED = "shared"
    PER_CLIENT = "per-client"
    PER_CALL = "per-call"


class Protocol(StrEnum):
    """How to begin with a server: the revisions with a handshake and the stateless ones begin differently.

    Auto asks which it speaks, and shakes hands if it does not know the question. Legacy shakes hands without asking,
    for servers that exit or fall silent when asked. Modern never shakes hands.
    """

    AUTO = "auto"
    LEGACY = "legacy"
    MODERN = "modern"


@dataclass(frozen=True)
class Listen:
    """Where the endpoint is, and who may come in.

    `host` is an IP address without brackets; `origins` and `hosts` are lower-case, beside the loopback ones. `tokens`
    are by the names of those who have them; if there are none, nobody is asked. `sse` is whether the older HTTP+SSE
    transport is served too.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    path: str = DEFAULT_PATH
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tokens: Mapping[str, Secret] = field(default_factory=_no_secrets, hash=False)
    sse: bool = True


@dataclass(frozen=True)
class KindConsent:
    """Patterns for one kind. `allow=None` means all that `deny` does not name; `allow=()` means nothing."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


ALLOW_ALL = KindConsent()


@dataclass(frozen=True)
class Consent:
    """What of a server may be reached, kind by kind, in the server's own names."""

    tools: KindConsent = ALLOW_ALL
    resources: KindConsent = ALLOW_ALL
    prompts: KindConsent = ALLOW_ALL


@dataclass(frozen=True, repr=False, kw_only=True)
class Server(ABC):
    """What every server has, however it is reached.

    `max_instances` and `idle_timeout` are about the dedicated instances of a server that is not shared: how many may
    live at once, and after how many seconds without use one is stopped.
    """

    id: str
    title: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    start_timeout: float = DEFAULT_START_TIMEOUT
    consent: Consent = field(default_factory=Consent)
    trust: Trust = Trust.STANDARD
    protocol: Protocol = Protocol.AUTO
    isolation: Isolation = Isolation.SHARED
    max_instances: int = DEFAULT_MAX_INSTANCES
    idle_timeout: float = DEFAULT_IDLE_TIMEOUT
    disabled: bool = False

    @abstractmethod
    def describe(self) -> str:
        """One line that is safe to show."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.describe()}>"


@dataclass(frozen=True, repr=False, kw_only=True)
class StdioServer(Server):
    """A server that is a child process.

    `program` is an absolute path or a bare word for PATH; `env` is what the file adds to the child's environment.
    """

    program: Secret
    args: tuple[Secret, ...]
    cwd: Path
    env: Mapping[str, Secret] = field(default_factory=_no_secrets, hash=False)

    def describe(self) -> str:
        """One line that is safe to show: the program's base name and the number of its arguments."""
        count = len(self.args)
        return f"{self.program} ({count} argument{'' if count == 1 else 's'})"


@dataclass(frozen=True, repr=False, kw_only=True)
class HttpServer(Server):
    """A server at a URL. `str(url)` is its safe form: no query, `***` for what came from outside the file."""

    url: Secret
    headers: Mapping[str, Secret] = field(default_factory=_no_secrets, hash=False)

    def describe(self) -> str:
        """One line that is safe to show: the URL without query."""
        return str(self.url)


ServerSpec = StdioServer | HttpServer


@dataclass(frozen=True, repr=False)
class Config:
    """A whole file. `servers` is in the order of the file; `notices` are sentences for whoever starts the host."""

    source: Path
    listen: Listen
    start_grace: float
    servers: Mapping[str, ServerSpec] = field(hash=False)
    notices: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Config {self.source}: {', '.join(self.servers)}>"
