"""The sandbox of a server's program: what of the machine it is given."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationInfo

from config.document import as_found
from config.keys import Strict, desc
from config.problems import clip, did_you_mean, nearest_word
from config.types import (
    ConfinedDescriptors,
    ConfinedMemory,
    ConfinedPath,
    ConfinedProcesses,
    ConfinedProcessors,
    ConfinedTemporary,
    DestinationText,
    EachOnce,
    Flag,
    ImageName,
    InvalidKey,
    InvalidValue,
    VariableName,
    errors_below,
    expected,
)

STRICT_WORD, OFF_WORD = "strict", "off"
WITHHELD = (
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
    *("NODE_EXTRA_CA_CERTS", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
)
"""Variables of the host that servers get and confined ones do not, unless `environment` names them."""
LEAST_MEMORY = 128 * 1024**2
"""Bytes of memory that a container has at least: runc 1.1 does not start with a limit of 64 MiB."""
GIVEN = ("HOME", "LANG", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that each confined program has, beside LC_*; HOME and TMPDIR are folders of its own."""


class Network(StrEnum):
    """The reach of a confined program: nothing, itself over a loopback of its own, or all that the host reaches."""

    NONE = "none"
    LOOPBACK = "loopback"
    ALL = "all"


MAX_DESTINATIONS = 64
"""Each takes a descriptor of the host while the program runs."""
LOCALHOST = "localhost"


@dataclass(frozen=True)
class Destination(Strict):
    """A host and port that a confined program may connect to. `to`: host:port; the host is a name, *.name for all names
    below one, or an IP address, in brackets if it is one of IPv6."""

    to: Annotated[DestinationText, desc('host:port, such as "api.example.com:443" or "*.example.com:443".')]
    private: Annotated[Flag, desc("Whether the name may lead to private addresses too.", default=False)] = False

    @classmethod
    def at(cls, host: str, port: int) -> Destination:
        """The one of a name, or of an IP address without brackets, and a port."""
        return cls(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def host(self) -> str:
        """The name in lower case, or the IP address without brackets."""
        return self.to.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.to.rpartition(":")[2])

    @property
    def is_address(self) -> bool:
        return ":" in self.host or self.host.rpartition(".")[2].isdecimal()

    @property
    def is_wildcard(self) -> bool:
        return self.host.startswith("*.")

    def __str__(self) -> str:
        return f"{self.to} (private addresses too)" if self.private else self.to


def _read_destination(value: object) -> object:
    return {"to": value} if isinstance(value, str) else value


_Destination = Annotated[
    Destination, BeforeValidator(_read_destination, json_schema_input_type=DestinationText | Destination)
]


@cache
def _destinations() -> TypeAdapter[tuple[Destination, ...]]:
    return TypeAdapter(EachOnce[_Destination])  # 20 ms, which a start without such a list need not take


def _read_network(value: object, info: ValidationInfo) -> Network | tuple[Destination, ...]:
    """A word, or a list of destinations. A union would have pydantic say what is wrong with a list for either."""
    if not isinstance(value, list):
        words = [each.value for each in Network]
        if value in words:
            return Network(value)
        remedy = did_you_mean(value, words) if isinstance(value, str) else ""
        what = 'none, loopback, all, or a list such as ["api.example.com:443"]'
        raise expected(what, as_found(value), remedy)
    if not 0 < len(value) <= MAX_DESTINATIONS:
        raise expected(f"1 to {MAX_DESTINATIONS} hosts with ports", str(len(value)), "" if value else "or write none")
    found = _destinations().validate_python(value, context=info.context)
    errors_below(
        ((at, "private"), InvalidValue("an address is permitted as it is written; remove private"))
        for at, each in enumerate(found)
        if each.private and (each.is_address or each.host == LOCALHOST)
    )
    return found


_DIGEST = re.compile(r"(?:^|@)sha256:[0-9a-f]{64}$")


class ContainerClient(StrEnum):
    """A client program that runs containers."""

    PODMAN = "podman"
    DOCKER = "docker"


class Means(StrEnum):
    """The least that must hold a program: namespaces, or Landlock alone, which holds less."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"


def _only_withheld(name: str) -> str:
    """Refuse a name that would have no effect: only what other servers get can be given here."""
    if name in GIVEN or name.startswith("LC_"):
        raise InvalidValue(f"a confined program has {name} anyway; remove it")
    if name not in WITHHELD:
        shown = clip(name)
        known = {each.lower(): each for each in reversed(WITHHELD)}
        meant = nearest_word(name, known)
        remedy = (
            f"did you mean {known[meant]}?"
            if meant
            else f'to give it another one, write env: {{{shown}: "${{env:{shown}}}"}}'
        )
        raise expected(f"one of {', '.join(WITHHELD)}", f'"{shown}"', remedy)
    return name


@dataclass(frozen=True)
class SandboxFiles(Strict):
    """Files and folders, with everything below them. What may be written may be read too."""

    read: Annotated[EachOnce[ConfinedPath], desc("Paths that the program may read.")] = ()
    write: Annotated[EachOnce[ConfinedPath], desc("Paths that the program may read and write.")] = ()


@dataclass(frozen=True)
class Install(Strict):
    """The way in which the packages are installed that a command of npx or uvx names."""

    scripts: Annotated[
        Flag,
        desc("Packages may run programs while they are installed: scripts of npm, builds of Python.", default=False),
    ] = False


@dataclass(frozen=True)
class Sandbox(Strict):
    """The share of the machine that a confined program gets; the defaults are `strict`. `memory`
    and `temporary` are in bytes."""

    files: Annotated[SandboxFiles, desc("Files beside those that it needs to start, and its own folders.")] = (
        SandboxFiles()
    )
    network: Annotated[
        Network | tuple[Destination, ...],
        PlainValidator(_read_network, json_schema_input_type=Network | tuple[_Destination, ...]),
        desc(
            "none, loopback: an own one that leads nowhere else, all: the network of this machine, or a list of hosts "
            "with ports.",
            "none",
        ),
    ] = Network.NONE
    environment: Annotated[
        EachOnce[Annotated[VariableName, AfterValidator(_only_withheld)]],
        desc("Variables of the usual ones that it gets beside LANG, LC_*, LOGNAME, PATH, TERM, TZ and USER."),
    ] = ()
    memory: Annotated[ConfinedMemory, desc("Memory of all its processes together, from 64MiB to 64GiB.", "1GiB")] = (
        1024**3
    )
    temporary: Annotated[
        ConfinedTemporary, desc("Size of /tmp, and of /dev/shm, which are in memory, from 1MiB to 64GiB.", "64MiB")
    ] = 64 * 1024**2
    cpu: Annotated[
        ConfinedProcessors | None,
        desc("Processors that all its processes get together, such as 1.5. It needs a control group.", "all"),
    ] = None
    processes: Annotated[ConfinedProcesses, desc("Processes and threads at once.", 64)] = 64
    open_files: Annotated[ConfinedDescriptors, desc("Open files of each process, from 16 to 65536.", 256)] = 256
    install: Annotated[Install, desc("How the packages are installed that npx or uvx runs.")] = Install()
    accept: Annotated[
        Means,
        desc(
            "What must hold the program at least. namespaces, or landlock: Landlock alone where the system refuses "
            "namespaces, which leaves sockets, UDP and the view of other processes open.",
            "namespaces",
        ),
    ] = Means.NAMESPACES

    with_: Annotated[
        ContainerClient | None,
        Field(
            validation_alias="with",
            description="podman or docker: the program runs in a container of image, made by this client program.",
        ),
    ] = None
    image: Annotated[
        ImageName,
        desc("The image of the container, which must be there: best by its digest, ghcr.io/acme/server@sha256:…"),
    ] = ""

    @property
    def names_one_image(self) -> bool:
        """Whether the image is named by what it is, and not by a tag that may be given to another one."""
        return _DIGEST.search(self.image) is not None

    def beside_strict(self) -> dict[str, object]:
        """The members that are not those of `strict`, as plain values. A launch is known by them, so a new key with its
        default changes none; and no default may ever be widened."""
        return _differing(self, type(self)())

    @property
    def destinations(self) -> tuple[Destination, ...]:
        """The hosts and ports that it may connect to; none if `network` is a word."""
        return () if isinstance(self.network, Network) else self.network

    def describe(self) -> str:
        """One line for people: what the program is given. It is part of the launch that they approve, so a key that
        comes later says nothing while it has its default."""
        lists = {"writes": self.files.write, "reads": self.files.read}
        parts = [f"{does} {', '.join(paths)}" for does, paths in lists.items() if paths] or ["its own files"]
        parts.append(self._describe_network())
        if self.environment:
            parts.append(f"the variables {', '.join(self.environment)}")
        parts.append(f"{self.memory // 1024**2} MiB of memory")
        parts.append(f"{self.processes} processes")
        parts.append(f"{self.open_files} open files")
        if self.temporary != Sandbox.temporary:
            parts.append(f"{self.temporary // 1024**2} MiB for temporary files")
        if self.cpu is not None:
            parts.append(f"{self.cpu:g} processors")
        if self.install.scripts:
            parts.append("programs of its packages run when they are installed")
        if self.accept is Means.LANDLOCK:
            parts.append("Landlock alone is accepted")
        if self.with_ is not None:
            parts.append(f"in a container of {self.with_.value} from {self.image}")
        return "; ".join(parts)

    def _describe_network(self) -> str:
        if isinstance(self.network, Network):
            return "the whole network" if self.network is Network.ALL else f"network {self.network.value}"
        return f"network to {', '.join(map(str, self.network))}"


_PLAIN = re.compile(r"[A-Za-z0-9_./~+-]+")
"""Words that YAML takes for text without quotes, also in a list."""


def as_yaml(sandbox: Sandbox) -> str:
    """The line for the file that means this sandbox, with the keys that differ from `strict` alone."""
    found = sandbox.beside_strict()
    return f"sandbox: {_flow(found) if found else STRICT_WORD}"


def _differing(value: Any, default: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for key in dataclasses.fields(value):
        now, before = getattr(value, key.name), getattr(default, key.name)
        if now != before:
            found[key.name.rstrip("_")] = _differing(now, before) if dataclasses.is_dataclass(now) else _as_written(now)
    return found


def _as_written(value: Any) -> object:
    if isinstance(value, tuple):
        return tuple(map(_as_written, value))
    if isinstance(value, Destination):
        return {"to": value.to, "private": True} if value.private else value.to
    return value


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(_in_units(key, each))}" for key, each in value.items()) + "}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    text = "true" if value is True else str(value).replace("${", "$${")
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _in_units(key: str, value: object) -> object:
    if isinstance(value, int) and key in ("memory", "temporary"):
        return f"{value // 1024**2}MiB"
    return f"{value:g}" if isinstance(value, float) else value


def what_is_open(means: str) -> str:
    """The end of a line for people, about all that the means which a started program reports leave open; empty if they
    include namespaces."""
    lacking = means.partition("; not by ")[2].split(", ")
    if "namespaces" not in lacking:
        return ""
    sockets = ", sockets of your user, UDP" if "seccomp" in lacking else ""
    return f", so these stay open: names of files, the view of other processes{sockets} (docs/sandbox.md)"


def _consistent(sandbox: Sandbox | None) -> Sandbox | None:
    """Refuse keys that mean nothing beside others, or that a container cannot have."""
    if sandbox is not None:
        errors_below(_contradictions(sandbox))
    return sandbox


def _contradictions(sandbox: Sandbox) -> Iterator[tuple[tuple[str], InvalidKey]]:
    if sandbox.with_ is None:
        if sandbox.image:
            yield ("image",), InvalidKey("it is for a container; write with: podman or with: docker, or remove it")
        return
    if not sandbox.image:
        yield ("with",), InvalidKey("a container is made of an image; write image: and its name beside it")
    if sandbox.destinations:
        yield ("network",), InvalidKey("a container has no network to hosts by name; write none or all")
    if sandbox.install != Install():
        yield ("install",), InvalidKey("nothing is installed for a container; put it into the image, or remove this")
    if sandbox.accept is not Means.NAMESPACES:
        yield ("accept",), InvalidKey("a container is never replaced by Landlock; remove it")
    if sandbox.memory < LEAST_MEMORY:
        yield ("memory",), InvalidKey("a container does not start with less than 128MiB; write more")


def _read_sandbox(value: object) -> object:
    """`off` is none, `strict` one without exceptions."""
    if isinstance(value, dict):
        return value
    if value is False or value in (OFF_WORD, "false"):
        return None
    if value == STRICT_WORD:
        return {}
    remedy = did_you_mean(value, (OFF_WORD, STRICT_WORD)) if isinstance(value, str) else ""
    raise expected("off, strict, or a map of what the program may use", as_found(value), remedy)


SandboxKey = Annotated[
    Sandbox | None,
    AfterValidator(_consistent),
    BeforeValidator(_read_sandbox, json_schema_input_type=Literal["off", "strict", False] | Sandbox),
    desc(
        "What of this machine the program is given. strict: a home of its own, the system's libraries and what its "
        "command names, and no network. off: everything that the user has.",
        "off, but for trust: untrusted, where it is strict",
    ),
]
