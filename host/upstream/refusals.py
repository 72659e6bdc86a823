"""The things that a confined program tried and did not get, as lines of its log, each with the line for the file that
would permit it. Nothing is ever permitted by that.

The forwarder of its network knows what it refuses. For files, and without a forwarder, there is only what the program
itself writes: nobody else sees the kernel's refusal (docs/sandbox.md). Such a line says that it may have been refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import trio
from msgspec import Struct, structs

from config.sandbox import Destination, Network, Sandbox, as_yaml
from config.types import MOST_MEMORY, MOST_OPEN_FILES, MOST_PROCESSES
from host.journal import Journal, SandboxRefused
from host.sandbox.paths import is_below_any
from host.sanitize import shortened, visible

MOST_TOLD = 20
"""Refusals of one child that are told."""
MOST_LOOKED_AT = 200
"""Lines of one child that are compared, after which its text is taken for chatter."""
LOOK_LIMIT = 1.0
"""Seconds for a look at whether a file is there, which may be on a network."""
_MOUNTS = "/proc/self/mounts"
MAX_WHAT = 200
"""Characters of what was refused."""
_MOST = {
    "memory": MOST_MEMORY,
    "processes": MOST_PROCESSES,
    "open_files": MOST_OPEN_FILES,
    "temporary": MOST_MEMORY,
}
"""By limit: how far it can be raised."""

_CODES = r"EACCES|EPERM|EROFS|ENOENT|ENETUNREACH|EAI_AGAIN|ENOTFOUND|ENOTCACHED"
_SENTENCES = (
    r"permission denied|operation not permitted|read-only file system|no such file or directory"
    r"|network is unreachable|temporary failure in name resolution|name or service not known|no such host"
    r"|cannot find module|can't cd to"
    r"|only-if-cached|network (?:was|is) disabled|network connectivity is disabled|nodename nor servname"
    r"|cannot connect to the docker daemon|failed to connect to the docker api"
)
_OF_MEMORY = (
    r"\bMemoryError\b|\bENOMEM\b|std::bad_alloc|Array buffer allocation failed|memory allocation of \d+ bytes failed"
    r"|(?i:out of memory|cannot allocate memory)"
)
_OF_PROCESSES = (
    r"can't start new thread|pthread_create failed|\bspawn\b.*\bEAGAIN\b"
    r"|(?i:\b(?:fork|clone)\b.*resource temporarily unavailable)"
)
_OF_OPEN_FILES = r"\bEMFILE\b|(?i:too many open files)(?! in system)"
_OF_TEMPORARY = r"(?:\bENOSPC\b|(?i:no space left on device))(?!.*\bwatch)"
"""Without what the system's limit of watched files is told by."""
_OF_LIMITS = re.compile("|".join(f"({each})" for each in (_OF_MEMORY, _OF_PROCESSES, _OF_OPEN_FILES, _OF_TEMPORARY)))
_WORDS = re.compile(rf"\b(?:{_CODES})\b|(?i:{_SENTENCES})")
_OF_NETWORK = re.compile(
    r"ENETUNREACH|EAI_AGAIN|ENOTFOUND|ENOTCACHED|(?i:network|name resolution|name or service|such host|only-if-cached"
    r"|nodename)"
)
_OF_DOCKER = re.compile(r"(?i:cannot connect to the docker daemon|failed to connect to the docker api)")
_MISSING = re.compile(r"ENOENT|(?i:no such file|cannot find module|can't cd to)")
_WRITES = re.compile(
    r"EROFS|(?i:read-only file)|, (?:mkdir|unlink|rename|rmdir|copyfile|symlink|link|chmod|truncate)\b"
)
_HOST = re.compile(r"(?:EAI_AGAIN|ENOTFOUND|lookup)\s+([\w.-]+)|https?://([\w.-]+(?::\d+)?)|ENETUNREACH\s+([\w.:]+)")
_HOST_AND_PORT = re.compile(r"([a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)(?::([1-9][0-9]{0,4}))?")
_HTTPS = 443
"""The port of a host that a program names without one, most likely."""
_PATH = re.compile(r"""['"‘`](/[^'"’`]{1,1000})['"’`]|(?:^|[\s:(])(/[^\s:,;'")]{1,1000})""")


class Refusals:
    """The refusals of one child. Each is told once, and MOST_TOLD of them."""

    def __init__(self, server: str, journal: Journal) -> None:
        self._server = server
        self._journal = journal
        self._told: set[str] = set()
        self.is_full = False
        """Whether no further ones are told."""
        self.last = ""
        """The one that was told last, as the end of a sentence; empty if there is none."""

    def tell(self, what: str, allow: Sandbox | None = None, *, certain: bool = True) -> None:
        """Tell that something was refused. Never waits.

        Args:
            what: the end of a sentence that begins "was refused"; foreign text in it is cut and made visible.
            allow: the sandbox of the server with that permitted; None if no sandbox permits it.
            certain: False if the program itself says so, and another reason is possible.
        """
        what = shortened(visible(what), MAX_WHAT)
        if what in self._told or self.is_full:
            return
        self._told.add(what)
        self.is_full = len(self._told) > MOST_TOLD
        if self.is_full:
            self._journal.note(SandboxRefused(self._server, "more, which is not told", "", certain=True))
            return
        self.last = what
        self._journal.note(SandboxRefused(self._server, what, "" if allow is None else as_yaml(allow), certain))


class _Refusal(Struct, frozen=True):
    what: str
    allow: Sandbox | None
    path: str = ""
    """A path that counts only if it is there for others."""
    otherwise: _Refusal | None = None
    """The refusal that counts if it is not."""


class SaidRefusals:
    """The refusals that a child tells of itself.

    Args:
        plan: that by which it is confined (host/sandbox/plan.py).
    """

    def __init__(self, refusals: Refusals, sandbox: Sandbox, plan: Mapping[str, Any]) -> None:
        self._refusals = refusals
        self._sandbox = sandbox
        self._plan = plan
        self._looked_at = 0

    @property
    def hint(self) -> str:
        """A half sentence behind the reason why the child ended; empty if it told of no refusal."""
        return f"; its sandbox may have refused it {self._refusals.last}" if self._refusals.last else ""

    def describe_excess(self, of: str) -> str:
        """Tell that the child was ended, since all its processes together had too much; in words for its end, too.

        Args:
            of: `memory` or `processes`.
        """
        if of == "memory":
            limit = f"{self._sandbox.memory // 1024**2} MiB of memory"
        else:
            limit = f"{self._sandbox.processes} processes, with threads"
        self._refusals.tell(f"more than {limit}, for all together", _wider(self._sandbox, [of]))
        return f"it was ended: its sandbox permits {limit}, for all its processes together"

    async def take(self, line: str) -> None:
        """Look at a line of its output."""
        if (
            self._refusals.is_full
            or self._looked_at > MOST_LOOKED_AT
            or not (_WORDS.search(line) or _OF_LIMITS.search(line))
        ):
            return
        self._looked_at += 1
        found = find_refusal(line, self._sandbox, self._plan)
        while found is not None and found.path and not await _is_there(found.path):
            found = found.otherwise
        if found is None:
            return
        self._refusals.tell(found.what, found.allow, certain=False)


async def _is_there(path: str) -> bool:
    with trio.move_on_after(LOOK_LIMIT):
        return await trio.to_thread.run_sync(_exists, path, abandon_on_cancel=True)
    return False


def _exists(path: str) -> bool:
    """Whether a file is there. Below a mount of autofs nothing is looked for: a path such as /net/HOST would have this
    machine connect to a host that a program without a network names."""
    try:
        with open(_MOUNTS, "rb") as file:
            mounts = [line.split() for line in file]
    except OSError:
        mounts = []
    automatic = [os.fsdecode(place).replace("\\040", " ") for _, place, kind, *_ in mounts if kind == b"autofs"]
    return not is_below_any(path, automatic) and os.path.lexists(path)


def find_refusal(line: str, sandbox: Sandbox, plan: Mapping[str, Any]) -> _Refusal | None:
    """The refusal that a line of a confined program tells of; None if its sandbox withholds nothing of that."""
    if _OF_DOCKER.search(line):
        return _Refusal(
            "the daemon of Docker, which starts programs outside; sandbox: off has its client unconfined", None
        )
    if limit := _OF_LIMITS.search(line):
        return _limit_refusal(line, limit, sandbox)
    if not _WORDS.search(line):
        return None
    if _OF_NETWORK.search(line):
        return _network_refusal(line, sandbox)
    given: Sequence[str] = [*plan["read"], *plan["write"], *plan["links"]]
    paths = _paths_in(line)
    path = next((each for each in paths if not is_below_any(each, given)), next(iter(paths), "/"))
    if path == "/" or is_below_any(path, ("/proc", "/sys", "/dev", *plan["own"])):
        return None
    if is_below_any(path, plan["write"]) or (_MISSING.search(line) and is_below_any(path, given)):
        return None  # that is not for its sandbox
    if is_below_any(path, [plan["hidden"]]):
        return _Refusal(f'"{path}", which is of Colonnade itself', None)
    writes = bool(_WRITES.search(line)) or is_below_any(path, given)
    at = path if _MISSING.search(line) or plan.get("image") else ""
    if not writes:
        files = replace(sandbox.files, read=(*sandbox.files.read, path))
        return _Refusal(f'to read "{path}"', replace(sandbox, files=files), at)
    if is_below_any(folder := os.path.dirname(path), sandbox.files.read):
        # A file that is to be new cannot be named in a sandbox.
        return structs.replace(_write_refusal(path, sandbox), path=path, otherwise=_write_refusal(folder, sandbox))
    return structs.replace(_write_refusal(path, sandbox), path=at)


def _write_refusal(path: str, sandbox: Sandbox) -> _Refusal:
    files = sandbox.files
    wider = replace(files, write=(*files.write, path), read=tuple(each for each in files.read if each != path))
    return _Refusal(f'to write "{path}"', replace(sandbox, files=wider))


def _paths_in(line: str) -> list[str]:
    return [os.path.normpath(found[1] or found[2]) for found in _PATH.finditer(line)]


def _limit_refusal(line: str, found: re.Match[str], sandbox: Sandbox) -> _Refusal | None:
    """The limit that a line means. A process that reaches one by itself gets an error, and lives on or ends by it."""
    of_memory, of_processes, of_open_files, _ = found.groups()
    mib = sandbox.memory // 1024**2
    if of_memory:
        what, limits = f"more than {mib} MiB of memory in one process", ["memory"]
    elif of_processes:
        # The stack of each thread is of its memory, as far as it reaches.
        what = f"more processes or threads ({sandbox.processes} and {mib} MiB of memory are permitted)"
        limits = ["processes", "memory"]
    elif of_open_files:
        what, limits = f"more than {sandbox.open_files} open files in one process", ["open_files"]
    else:
        paths = _paths_in(line)
        if paths and not any(is_below_any(each, ("/tmp", "/dev/shm")) for each in paths):
            return None  # the disk of the machine is full
        what = f"more than {sandbox.temporary // 1024**2} MiB of temporary files in /tmp or /dev/shm"
        limits = ["temporary"]
    return _Refusal(what, _wider(sandbox, limits))


def _wider(sandbox: Sandbox, limits: Sequence[str]) -> Sandbox | None:
    """The sandbox with twice as much of each of these limits, as far as there may be; None if none can be raised."""
    raised: dict[str, Any] = {each: min(2 * getattr(sandbox, each), _MOST[each]) for each in limits}
    wider = replace(sandbox, **raised)
    return None if wider == sandbox else wider


def _network_refusal(line: str, sandbox: Sandbox) -> _Refusal | None:
    """Nothing but a line of the program itself says which host it meant, so a hostile one could name any."""
    if sandbox.network in (Network.ALL, Network.LOOPBACK):
        return None
    found = _HOST.search(line)
    wanted = next(filter(None, found.groups()), "").lower() if found else ""
    reason = "network names other hosts" if sandbox.destinations else "network: none"
    what = f"the network{f', for {wanted}' if wanted else ''} ({reason})"
    if not (parts := _HOST_AND_PORT.fullmatch(wanted)):
        return _Refusal(what, replace(sandbox, network=Network.ALL))
    more = Destination(f"{parts[1]}:{parts[2] or _HTTPS}")
    if any(each.host == more.host for each in sandbox.destinations):
        return None  # that is not for its sandbox
    return _Refusal(what, replace(sandbox, network=(*sandbox.destinations, more)))
