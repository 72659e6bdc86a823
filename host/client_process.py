"""The program behind a client of a Unix socket or of standard input: which process of this machine it is.

The client's own words (`clientInfo`, what a relay says of itself) are displayed as such. These facts are the kernel's;
a program chooses its own name and command line, so they tell people which program it is, and are no key of anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, TypedDict

from host.sanitize import visible

OWN_NAME = "colonnade"
MAX_NAME = 64
"""Characters of the name of a program."""

_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*|node|nodejs|bun|deno|ruby|perl|php")
_VALUED = frozenset(
    ("-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions", "-X", "-W")
)
"""Options of interpreters whose value is the next word."""
_INLINE = frozenset(("-c", "-e", "-p", "-pe", "--eval", "--print"))
"""Options of interpreters whose program is the next word."""
_ENDING = re.compile(r"\.(?:[cm]?js|[cm]?ts|py|pyw|rb|pl|php|exe|cmd)$")
_ENTRY_NAMES = frozenset(
    [
        *("__main__", "main", "index", "cli", "cli-entry", "entry", "start", "run", "server", "npm-loader", "loader"),
        *("bin", "dist", "build", "bundle", "src", "lib", "out"),
    ]
)
"""Names of files and folders that name no program: the folder above them does."""
_THREAD_NAMES = frozenset(("", "MainThread", "node-MainThread"))
"""Process names that runtimes give to their main thread."""
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "nu", "pwsh", "busybox"))
_LAUNCHERS = frozenset(
    [
        *("npx", "npx-cli", "npm", "npm-cli", "pnpm", "pnpx", "yarn", "yarnpkg", "bunx", "corepack"),
        *("uv", "uvx", "pipx", "poetry", "hatch", "pdm", "mise", "asdf", "volta", "direnv"),
        *("env", "timeout", "nohup", "setsid", "nice", "ionice", "stdbuf", "time", "exec", "script", "unbuffer"),
        *("systemd-run", "systemd-inhibit", "dbus-run-session", "bwrap", "firejail", "flatpak-spawn"),
    ]
)


@dataclass(slots=True)
class ClientProcess:
    """The program that a person works with: the one that started the relay.

    Args:
        program: its name, such as `claude`, for people; empty if it cannot be determined.
        pid: its process id; 0 if it cannot be determined.
        folder: its working folder, an absolute path; empty if it cannot be determined.
        environment: the variables that the relay handed over: those that the configuration names, and those that known
            programs need.
        is_command: whether it is a command of the host's owner (`colonnade call`), which uses servers whatever values
            of variables they run with.

    Attributes:
        refused: servers that run with another value of one of these variables, each with the name of the variable; they
            answer no request of this client. `LiveConfig` keeps it.
    """

    program: str = ""
    pid: int = 0
    folder: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_command: bool = False
    refused: Mapping[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def as_row(self) -> ProgramRow:
        """The program in plain data, for people."""
        return {"program": self.program, "pid": self.pid, "folder": visible(self.folder)}


class ProgramRow(TypedDict):
    """The program of this machine that a client is, as the kernel knows it: its name, process id and working folder;
    empty, and 0, where that is not known."""

    program: str
    pid: int
    folder: str


ClientTransport = Literal["stdio", "relay", "http", "sse"]


class ClientRow(TypedDict):
    """A connected client. `says` is the name and version that it gives itself, which nothing checks; `process` is the
    program that it is, as the kernel knows it, null if that is not known. `token` is the name of its access token,
    `endpoint` the server whose own endpoint it uses, and `view` the name of its view; each is empty if it has none.
    `era` is `handshake` or `stateless`, and empty, as `revision` is, before its first message. `since` is Unix
    time."""

    says: str
    process: ProgramRow | None
    transport: ClientTransport
    token: str
    endpoint: str
    view: str
    era: str
    revision: str
    since: float


def program_name(name: str, command: Sequence[str], executable: str) -> str:
    """The name by which people know a program.

    Args:
        name: its process name, at most 15 bytes. A program can set it as its title.
        command: its command line, of which it can make a title too.
        executable: the path of its executable; empty if it cannot be read.
    """
    first = command[0] if command else ""
    file = _base(executable or first)
    if _INTERPRETER.fullmatch(file):
        title = _base(first.split(" ", 1)[0])
        found = title if title and not _INTERPRETER.fullmatch(title) else _script(command[1:]) or file
    else:
        whole = next((each for each in (_base(first), file) if each and each.encode()[:15] == name.encode()[:15]), "")
        found = whole or (file if name in _THREAD_NAMES else name)
    return visible(_ENDING.sub("", found))[:MAX_NAME]


def _script(arguments: Sequence[str]) -> str:
    """The name of the script or module that an interpreter runs; empty if it runs none."""
    words = iter(arguments)
    for word in words:
        if word in _INLINE:
            return ""
        if word == "-m":
            module = next(words, "")
            return OWN_NAME if module == "host" else module.removesuffix(".__main__")
        if word in _VALUED:
            next(words, "")
        elif not word.startswith("-") and word not in ("run", "x"):  # commands of bun and deno
            path = PurePath(word)
            named = (part for part in (path.name, *(above.name for above in path.parents)) if part)
            return next((part for part in named if _ENDING.sub("", part) not in _ENTRY_NAMES), path.name)
    return ""


def is_launcher(program: str, command: Sequence[str]) -> bool:
    """Whether a program only starts others: a runner of packages, a wrapper, or a shell with a command or a script. A
    shell without one is what a person types into."""
    if program in _SHELLS:
        return any(not word.startswith("-") or "c" in word[1:].partition("-")[0] for word in command[1:])
    return program in _LAUNCHERS


def _base(path: str) -> str:
    return PurePath(path.removesuffix(" (deleted)")).name
