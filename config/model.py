"""What a configuration file comes to: one frozen object that the host reads and nobody changes.

The classes here know nothing about YAML, lines or environments. Durations are seconds, paths are absolute, and
everything that may be secret is a `Secret`; the `repr` of a server or of the whole is safe to log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


def _no_secrets() -> Mapping[str, Secret]:
    return MappingProxyType({})


def is_protocol_header(name: str) -> bool:
    """Whether a header of requests to a server is set by the protocol, and so is nobody else's to set."""
    return name.lower() in _PROTOCOL_HEADERS or name.lower().startswith("mcp-")


@dataclass(frozen=True)
class Listen:
    """Where the endpoint is. `host` has no brackets; `origins` and `hosts` are lower-case, beside the loopback ones."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    path: str = DEFAULT_PATH
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


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


@dataclass(frozen=True, repr=False)
class StdioServer:
    """A server that is a child process.

    `program` is an absolute path or a bare word for PATH; `env` is what the file adds to the child's environment.
    """

    id: str
    program: Secret
    args: tuple[Secret, ...]
    cwd: Path
    env: Mapping[str, Secret] = field(default_factory=_no_secrets, hash=False)
    title: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    start_timeout: float = DEFAULT_START_TIMEOUT
    consent: Consent = field(default_factory=Consent)
    disabled: bool = False

    def describe(self) -> str:
        """One line that is safe to show: the program's base name and the number of its arguments."""
        count = len(self.args)
        return f"{self.program} ({count} argument{'' if count == 1 else 's'})"

    def __repr__(self) -> str:
        return f"<StdioServer {self.id}: {self.describe()}>"


@dataclass(frozen=True, repr=False)
class HttpServer:
    """A server at a URL. `str(url)` is its safe form: no query, `***` for what came from outside the file."""

    id: str
    url: Secret
    headers: Mapping[str, Secret] = field(default_factory=_no_secrets, hash=False)
    title: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    start_timeout: float = DEFAULT_START_TIMEOUT
    consent: Consent = field(default_factory=Consent)
    disabled: bool = False

    def describe(self) -> str:
        """One line that is safe to show: the URL without query."""
        return str(self.url)

    def __repr__(self) -> str:
        return f"<HttpServer {self.id}: {self.describe()}>"


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
