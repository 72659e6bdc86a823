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
DEFAULT_ASK_TIMEOUT = 50.0
DEFAULT_MEMORY = 256 * 1024 * 1024
DEFAULT_AUDIT_KEEP = 90 * 24 * 3600.0
DEFAULT_AUDIT_MAX = 1024 * 1024 * 1024


def _no_secrets() -> Mapping[str, Secret]:
    return MappingProxyType({})


def is_protocol_header(name: str) -> bool:
    """Whether a header of requests to a server is set by the protocol, and so is nobody else's to set."""
    return name.lower() in _PROTOCOL_HEADERS or name.lower().startswith("mcp-")


def is_loopback(host: str) -> bool:
    """Whether an IP address, without brackets, is one that no other machine reaches."""
    return ip_address(host).is_loopback


class Trust(StrEnum):
    """What goes without saying for a server, where `consent` says nothing, and what becomes of its definitions.

    A trusted one may do everything, and its changes are only noted. Of a standard one, what it offers at first sight is
    pinned and a change is held back until a person approves it. Of an untrusted one nothing is listed before that,
    every call asks, and its texts are cleaned.
    """

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

    `host` is an IP address without brackets; `origins` and `hosts` are lower-case, beside the loopback ones.
    `count_tokens` are by the names of those who have them; if there are none, nobody is asked. `sse` is whether the
    older HTTP+SSE transport is served too."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    path: str = DEFAULT_PATH
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tokens: Mapping[str, Secret] = field(default_factory=_no_secrets, hash=False)
    sse: bool = True


class Verdict(StrEnum):
    """What becomes of a request: it passes, a person is asked, or it is as if there were nothing."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


CheckValue = str | int | float | bool | tuple[str | int | float | bool | None, ...] | None


@dataclass(frozen=True)
class Check:
    """One check of one argument.

    `op` and the type of `value`: `eq` scalar; `in` tuple of scalars; `prefix`, `suffix`, `glob` text; `range` a pair of
    numbers, None where it is open; `max_len` characters of text or items of an array; `type` a word of JSON Schema;
    `absent` True; `path_under` absolute paths; `host_in` host names.
    """

    op: str
    value: CheckValue


@dataclass(frozen=True)
class Condition:
    """What is said of one argument. `path` is a JSON pointer (RFC 6901) into the arguments; all checks must hold."""

    path: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Rule:
    """One entry of a list: a pattern, and perhaps conditions on the arguments. `closed`: no argument beside those that
    the conditions name is within the rule."""

    pattern: str
    when: tuple[Condition, ...] = ()
    closed: bool = False


@dataclass(frozen=True)
class KindConsent:
    """The rules for one kind. `deny` wins over `ask`, `ask` over `allow`; order means nothing.

    What no list names is for `default`; if that is None, it is denied where an allow list stands, even an empty one,
    and else for the trust level to say.
    """

    allow: tuple[Rule, ...] | None = None
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    default: Verdict | None = None


UNSPECIFIED = KindConsent()


@dataclass(frozen=True)
class Consent:
    """What of a server may be reached and what it may ask for, kind by kind, in the server's own names. None, and
    UNSAID: as the trust level has it. The patterns of `url` are for the pages it may want visited, those of `roots` for
    the roots that it may be told."""

    tools: KindConsent = UNSPECIFIED
    resources: KindConsent = UNSPECIFIED
    prompts: KindConsent = UNSPECIFIED
    sampling: Verdict | None = None
    form: Verdict | None = None
    url: KindConsent = UNSPECIFIED
    roots: KindConsent = UNSPECIFIED


@dataclass(frozen=True)
class Rate:
    """So many in so many seconds."""

    count: int
    seconds: float


@dataclass(frozen=True)
class Limits:
    """What a server may be used for at the most; None: no limit. `concurrent` calls run at once, up to QUEUE more wait;
    `result` is in bytes, and so is `message`, one message as the server sends it; `sampling` counts questions,
    `sampling_tokens` the tokens that they ask for."""

    calls: Rate | None = None
    concurrent: int | None = None
    result: int | None = None
    sampling: Rate | None = None
    sampling_tokens: Rate | None = None
    message: int | None = None


class Channel(StrEnum):
    """Where a person may answer."""

    CONSOLE = "console"
    TERMINAL = "terminal"
    CLIENT = "client"


@dataclass(frozen=True)
class AskSpec:
    """Who answers questions of consent, and within how many seconds."""

    answers: tuple[Channel, ...] = (Channel.CONSOLE, Channel.TERMINAL)
    timeout: float = DEFAULT_ASK_TIMEOUT


@dataclass(frozen=True)
class ConsoleSpec:
    """Where the web console is: at the endpoint's own address if that is a loopback one (`address` None), else, and
    with `--stdio`, at a loopback address of its own: (host, port), port 0 for a free one."""

    address: tuple[str, int] | None = None


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
    limits: Limits = field(default_factory=Limits)
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
    declared: str = ""
    """A digest of the command as it is written in the file, whatever its references give."""
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
    """A whole file. `servers` is in the order of the file; `notices` are sentences for whoever starts the host.
    `console` is None if there shall be none. `audit_arguments`: the audit holds what calls were given, not only its
    digest."""

    source: Path
    listen: Listen
    start_grace: float
    servers: Mapping[str, ServerSpec] = field(hash=False)
    notices: tuple[str, ...] = ()
    ask: AskSpec = field(default_factory=AskSpec)
    console: ConsoleSpec | None = field(default_factory=ConsoleSpec)
    audit_arguments: bool = False
    audit_keep: float = DEFAULT_AUDIT_KEEP
    """Seconds after its last record for which a file of the audit is kept."""
    audit_max: int = DEFAULT_AUDIT_MAX
    """Bytes of all files of the audit together."""
    memory: int = DEFAULT_MEMORY
    """Bytes that the messages of clients and servers may take together."""

    def __repr__(self) -> str:
        return f"<Config {self.source}: {', '.join(self.servers)}>"
