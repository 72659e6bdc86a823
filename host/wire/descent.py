"""Descent of processes: the process at the other end of a Unix socket, its ancestors, and the running hosts among them.

All facts come from the kernel: peer credentials, /proc/PID/stat, and locks that end with their process. On macOS
(darwin.py, never tested there) an orphan's descent is not known, and processes have no name that only they can set: a
server that means to can be a client there, and nobody may decide. On other systems every caller refuses.

A process descends from a host if one of its ancestors bears either of two marks:

- a *host record*: each running host of the user holds a lock on a file in the state directory, which names its
  configuration, its process id and its start time (`announce_host`);
- a process name of keepers and subreapers (`KEEPER_NAME` and the others), below which every server runs. No other
  process can change such a name. It covers the servers of a host that was killed just now, of a host with another state
  directory, and of a host whose record was deleted.

A process whose ancestors have all ended is a child of init or of the user's service manager. What a server started also
has a lower limit of its own (`PeerProcess.is_marked`), which stays when the processes above are killed.

A server whose command is Colonnade itself (a *link*) may be a client of another host: `relay_refusal`. Its subreaper
has another process name and sets no limit, at the order of the host that read the command.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import select
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from host.relay import TRAIL_VARIABLE, read_trail
from host.wire import darwin

if TYPE_CHECKING:  # the command line knows sockets without an event loop
    import trio

KEEPER_NAME, SUBREAPER_NAME, LINK_NAME = "colonnade-keep", "colonnade-reap", "colonnade-link"
"""Process names of keepers, of their subreapers, and of those for links; the kernel keeps 15 bytes. Three names, since
the subreapers of a killed keeper are children of the host, where the name of a keeper could stand."""
RECORD_SUFFIX = ".json"

_NAMES = frozenset((KEEPER_NAME, SUBREAPER_NAME, LINK_NAME))
_MAX_LOOKS = 5
"""Readings of /proc, after the first one, of which one must be equal to the one before."""
_RECORD_BYTES = 64 * 1024
"""Bytes of a record that are read; a path has 4,096 at most."""
_SO_PEERPIDFD = 77  # since Linux 6.5; not in Python's socket module


class DescentUnknown(Exception):
    """The ancestors of a process, or the running hosts, cannot be determined."""


class Process(Struct, frozen=True):
    """One process. `started`: its start time in the kernel's ticks, which a later process with the same `pid` does not
    share."""

    pid: int
    started: int
    name: str


class PeerProcess(Struct, frozen=True):
    """The process at the other end of a Unix socket.

    Args:
        lineage: the process itself, then its ancestors from parent to init; empty if they cannot be determined.
        exe: path of the executable; empty if it cannot be read.
        is_marked: whether it has a lower limit of file locks than this process, which the subreaper of an ordinary
            server sets (keeper.py): it descends from a server, whatever its lineage is.
    """

    pid: int
    uid: int
    lineage: Sequence[Process] = ()
    exe: str = ""
    is_marked: bool = False

    def audit_fields(self) -> dict[str, object]:
        """The peer as the audit records it."""
        found: dict[str, object] = {"pid": self.pid, "uid": self.uid}
        if self.lineage:
            found["name"] = self.lineage[0].name
        if self.exe:
            found["exe"] = self.exe
        return found


class HostRecord(Struct, frozen=True):
    """A running host of this user."""

    config: str
    pid: int
    started: int


# Processes


def ancestry(pid: int) -> list[Process]:
    """A process, followed by its ancestors.

    Processes may end, and their ids may be reused, while /proc is read. It is therefore read until two readings agree:
    when a parent ends, its child gets another one.

    Raises:
        DescentUnknown: /proc cannot be read, or keeps changing.
    """
    lineage = _read_lineage(pid)
    for _ in range(_MAX_LOOKS):
        again = _read_lineage(pid)
        if lineage == again:
            return lineage
        lineage = again
    raise DescentUnknown


def _read_lineage(pid: int) -> list[Process]:
    lineage: list[Process] = []
    while pid:
        process, pid = _process(pid)
        lineage.append(process)
    return lineage


def _process(pid: int) -> tuple[Process, int]:
    """A process and the id of its parent."""
    if sys.platform == "darwin":
        try:
            name, started, parent = darwin.process(pid)
        except OSError as problem:
            raise DescentUnknown from problem
        return Process(pid, started, name), parent
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
        end = line.rindex(b")")  # the name may contain any byte, also parentheses and spaces
        name = line[line.index(b"(") + 1 : end].decode(errors="replace")
        fields = line[end + 1 :].split()
        return Process(pid, int(fields[19]), name), int(fields[1])
    except (OSError, ValueError, IndexError) as problem:
        raise DescentUnknown from problem


def look_up(pid: int) -> Process:
    """A process as it is now.

    Raises:
        DescentUnknown: there is none, or /proc cannot be read.
    """
    return _process(pid)[0]


def is_helper(process: Process) -> bool:
    """Whether a process has the name of a keeper or a subreaper."""
    return process.name in _NAMES


def this_process() -> PeerProcess:
    """The calling process in the form of a peer."""
    return examine_process(os.getpid())


def examine_process(pid: int) -> PeerProcess:
    """A process of this user in the form of a peer."""
    return _examine(pid, os.geteuid())


def credentials(connection: socket.socket | trio.socket.SocketType) -> tuple[int, int]:
    """Process id and user id at the other end of a Unix socket, at the moment when it connected.

    Raises:
        OSError: the system does not provide them.
    """
    if sys.platform == "darwin":
        return darwin.credentials(connection)
    if sys.platform != "linux":
        raise OSError("this system does not report the process at the other end of a socket")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def examine_peer(connection: socket.socket | trio.socket.SocketType) -> PeerProcess:
    """The process at the other end of a Unix socket, with its ancestors.

    A process that has ended since it connected gets no ancestors: another process may have its id by now. Otherwise a
    descendant of a host could connect, end, and be taken for the next process with this id. Before Linux 6.5 this is
    only noticed as long as the id is not in use again.

    Raises:
        OSError: the system does not report the process.
    """
    pid, uid = credentials(connection)
    handle = _peer_handle(connection)
    if handle is None:
        return _examine(pid, uid)
    try:
        peer = _examine(pid, uid)
        return PeerProcess(pid, uid) if _has_ended(handle) else peer
    finally:
        os.close(handle)


def _peer_handle(connection: socket.socket | trio.socket.SocketType) -> int | None:
    """A pidfd of the process that connected; None if the kernel has none."""
    try:
        handle: int = struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
    except OSError:
        return None
    return handle


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _examine(pid: int, uid: int) -> PeerProcess:
    try:
        lineage = ancestry(pid) if pid > 0 else []
    except DescentUnknown:
        lineage = []
    exe = ""
    with suppress(OSError):  # a process of another user, or one that hides its memory
        exe = os.readlink(f"/proc/{pid}/exe")
    return PeerProcess(pid, uid, tuple(lineage), exe, _lock_limit(pid) < _OWN_LOCK_LIMIT)


def _lock_limit(pid: int) -> float:
    """The hard limit of file locks of a process. Any process may read it; infinite if none is set or known."""
    with suppress(OSError, ValueError, IndexError):
        limits = Path(f"/proc/{pid}/limits").read_bytes().partition(b"Max file locks")[2]
        return float(limits.split()[1].replace(b"unlimited", b"inf"))
    return float("inf")


_OWN_LOCK_LIMIT = _lock_limit(os.getpid())
"""Read before a server runs: a server may lower the limit of its host to its own (prlimit)."""


# Running hosts


@contextmanager
def announce_host(folder: Path, config: Path) -> Iterator[None]:
    """Hold the host record of this process for the block.

    Raises:
        OSError: the record cannot be written.
    """
    pid = os.getpid()
    path = folder / f"{pid}-{secrets.token_hex(4)}{RECORD_SUFFIX}"
    temporary = path.with_suffix(".new")  # renamed when it is locked: one without a lock is taken for a dead host's
    started = look_up(pid).started if sys.platform == "linux" else 0
    if sys.platform == "darwin":
        with suppress(DescentUnknown):
            started = look_up(pid).started
    record = json.dumps({"config": os.path.realpath(config), "pid": pid, "started": started})
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, record.encode())
        temporary.rename(path)
        yield
    finally:
        path.unlink(missing_ok=True)
        temporary.unlink(missing_ok=True)
        os.close(descriptor)


def running_hosts(folder: Path) -> list[HostRecord]:
    """The hosts that hold a record in this folder. Records whose host has ended are removed. Entries that are not
    regular files of this user are ignored, because no host creates them.

    Raises:
        DescentUnknown: a record is held and cannot be read; the text names it and says what to do.
    """
    found: list[HostRecord] = []
    for path in sorted(folder.glob(f"*{RECORD_SUFFIX}")):
        try:
            record = _record(path)
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "not a host record"
            raise DescentUnknown(
                f"the host record {path.name!r} in the folder hosts of the state directory cannot be read ({why}), so "
                "it cannot be determined whether the caller descends from a host; stop the process that holds this "
                "file (fuser shows it), or remove the file if no host holds it"
            ) from problem
        if record is not None:
            found.append(record)
    return found


def _record(path: Path) -> HostRecord | None:
    """The content of a record; None if no host holds it, or it is not a regular file of this user."""
    try:
        # Without O_NONBLOCK, a named pipe in the folder would block the caller for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:  # the host has just ended
        return None
    except OSError:
        with suppress(FileNotFoundError):
            if _may_be_record(path.lstat()):
                raise
        return None
    try:
        if not _may_be_record(os.fstat(descriptor)):
            return None
        if _is_free(descriptor):
            with suppress(OSError):  # a record that cannot be removed is not a running host's either
                path.unlink()
            return None
        record = json.loads(os.read(descriptor, _RECORD_BYTES))
        return HostRecord(str(record["config"]), int(record["pid"]), int(record["started"]))
    finally:
        os.close(descriptor)


def _may_be_record(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def refusal_reason(peer: PeerProcess, hosts: Path) -> str | None:
    """The reason why a process may not decide anything, as a sentence; None if it may.

    Args:
        hosts: the folder of the host records.
    """
    try:
        running = _hosts_for(peer, hosts)
    except DescentUnknown as problem:
        return str(problem)
    if sys.platform != "linux":
        return "on this system a server can hide that it is one, so no process may decide; decide on the console"
    if peer.is_marked or descends_from_host(peer.lineage, running):
        return (
            "processes that a Colonnade host started, such as its servers, may not decide; "
            "decide in a terminal or on a console that none of them started"
        )
    return None


def relay_refusal(peer: PeerProcess, hosts: Path) -> str | None:
    """The reason why a process may not be a client at the socket for relays, as a sentence; None if it may, as far as
    its trail permits (`trail_refusal`).

    Args:
        hosts: the folder of the host records.
    """
    try:
        running = _hosts_for(peer, hosts)
    except DescentUnknown as problem:
        return str(problem)
    if peer.is_marked or not _is_below_links(peer.lineage, running):
        return (
            "processes that a Colonnade host started, such as its servers, may not be its clients or those of another "
            "host; only a server whose command is colonnade itself may"
        )
    return None


def trail_refusal(peer: PeerProcess, source: str, trail: Sequence[str] | None) -> str | None:
    """The reason why a process that `relay_refusal` permits may not be a client of this configuration, as a sentence;
    None if it may.

    Args:
        source: the real path of the configuration that this host serves.
        trail: the configurations from which the process says that it descends (`Trail`); None if it says nothing.
    """
    # A permitted process below a host is below the subreaper of a link.
    if not trail and any(each.name == LINK_NAME for each in peer.lineage):
        return (
            f"a server whose command is colonnade needs the variable {TRAIL_VARIABLE} that its host sets; whatever "
            "starts colonnade there must pass it on"
        )
    if source in (trail or ()):
        return (
            f"{source} would be served to itself: it is among the configurations that lead here, and this would go on "
            "without end; remove one of the servers between them"
        )
    return None


def _hosts_for(peer: PeerProcess, folder: Path) -> list[HostRecord]:
    """The running hosts, for a peer of this user whose descent is known.

    Raises:
        DescentUnknown: it is another user's or its descent is not known, as `running_hosts` does; the text says so.
    """
    if peer.uid != os.geteuid():
        raise DescentUnknown("only the user who runs this host may use its sockets")
    running = running_hosts(folder)
    if not peer.lineage:
        raise DescentUnknown("the caller is refused, because it cannot be determined which processes it descends from")
    return running


def _is_below_links(lineage: Sequence[Process], hosts: Sequence[HostRecord]) -> bool:
    """Whether every host and every keeper among the ancestors, from the top, is followed by the subreaper of a link: a
    keeper by its child, a host by its keeper's, or by its own if the keeper was killed; also if there is none. Then a
    program below an ordinary subreaper gains nothing by these names."""
    records = {(host.pid, host.started) for host in hosts}
    awaited = ""  # what the last process was, if the subreaper of a link must follow
    for each in reversed(lineage):
        if each.name == LINK_NAME and awaited:
            awaited = ""
        elif each.name == KEEPER_NAME and awaited != KEEPER_NAME:
            awaited = KEEPER_NAME
        elif (each.pid, each.started) in records and not awaited:
            awaited = "host"
        elif awaited or each.name in _NAMES:
            return False
    return not awaited


class Trail:
    """The configurations from which the links of this process descend: those above it, those above its present relays,
    and its own.

    Args:
        source: the configuration that this process serves.
        environ: the environment, where a host above says what it descends from.
    """

    def __init__(self, source: Path, environ: Mapping[str, str]) -> None:
        self._above = read_trail(environ) or []
        self._source = os.path.realpath(source)
        self._of_relays: list[Sequence[str]] = []
        self._told: frozenset[str] | None = None

    @contextmanager
    def joined(self, trail: Sequence[str]) -> Iterator[None]:
        """Descend from these configurations too, for the block."""
        self._of_relays.append(trail)
        try:
            yield
        finally:
            self._of_relays.remove(trail)

    def paths(self) -> list[str]:
        """The real paths, each once, that of this process last."""
        above = dict.fromkeys([*self._above, *(each for trail in self._of_relays for each in trail)])
        return [*above, self._source]

    def tell(self) -> list[str]:
        """The paths, for a link that starts."""
        paths = self.paths()
        self._told = frozenset(paths)
        return paths

    def has_grown(self) -> bool:
        """Whether there are other paths than the links were told: one of them could lead back without knowing it. Said
        once: the links must be started again."""
        grown = self._told is not None and not self._told.issuperset(self.paths())
        if grown:
            self._told = frozenset(self.paths())
        return grown


def is_served_above(config: Path, folder: Path) -> bool:
    """Whether a host that serves this file has started this process, directly or through others. A host has a record in
    this folder, the folder of the host records. False if descent cannot be determined."""
    above = {(each.pid, each.started) for each in this_process().lineage[1:]}
    source = os.path.realpath(config)
    try:
        return any((host.pid, host.started) in above and host.config == source for host in running_hosts(folder))
    except DescentUnknown:
        return False


def descends_from_host(lineage: Sequence[Process], hosts: Sequence[HostRecord]) -> bool:
    """Whether a process or one of its ancestors (`lineage`, see `ancestry`) is a host, a keeper or a subreaper."""
    records = {(host.pid, host.started) for host in hosts}
    return any(each.name in _NAMES or (each.pid, each.started) in records for each in lineage)
