"""Descent of processes: the process at the other end of a Unix socket, its ancestors, and the running hosts among them.

All facts come from the kernel: peer credentials, /proc/PID/stat, and locks that end with their process. Outside Linux
no descent is known, and every caller refuses.

A process descends from a host if one of its ancestors bears either of two marks:

- a *host record*: each running host of the user holds a lock on a file in the state directory, which names its
  configuration, its process id and its start time (`announce_host`);
- the process name of keepers and subreapers (`KEEPER_NAME`), below which every server runs. No other process can change
  this name. It covers the servers of a host that was killed just now, of a host with another state directory, and of a
  host whose record was deleted.

A process whose ancestors have all ended is a child of init or of the user's service manager and bears no mark.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line knows sockets without an event loop
    import trio

KEEPER_NAME = "colonnade-keep"
"""Process name of keepers and subreapers; the kernel keeps 15 bytes."""
RECORD_SUFFIX = ".json"

_MAX_LOOKS = 5
"""Readings of /proc, after the first one, of which one must be equal to the one before."""
_RECORD_BYTES = 64 * 1024
"""Bytes of a record that are read; a path has 4,096 at most."""
_SO_PEERPIDFD = 77  # since Linux 6.5; not in Python's socket module


class DescentUnknown(Exception):
    """The ancestors of a process, or the running hosts, cannot be determined."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `started`: its start time in the kernel's ticks, which a later process with the same `pid` does not
    share."""

    pid: int
    started: int
    name: str


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """The process at the other end of a Unix socket.

    Args:
        lineage: the process itself, then its ancestors from parent to init; empty if they cannot be determined.
        exe: path of the executable; empty if it cannot be read.
    """

    pid: int
    uid: int
    lineage: Sequence[Process] = ()
    exe: str = ""

    def audit_fields(self) -> dict[str, object]:
        """The peer as the audit records it."""
        found: dict[str, object] = {"pid": self.pid, "uid": self.uid}
        if self.lineage:
            found["name"] = self.lineage[0].name
        if self.exe:
            found["exe"] = self.exe
        return found


@dataclass(frozen=True, slots=True)
class HostRecord:
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
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
        end = line.rindex(b")")  # the name may contain any byte, also parentheses and spaces
        name = line[line.index(b"(") + 1 : end].decode(errors="replace")
        fields = line[end + 1 :].split()
        return Process(pid, int(fields[19]), name), int(fields[1])
    except (OSError, ValueError, IndexError) as problem:
        raise DescentUnknown from problem


def this_process() -> PeerProcess:
    """The calling process in the form of a peer."""
    return _examine(os.getpid(), os.geteuid())


def credentials(connection: socket.socket | trio.socket.SocketType) -> tuple[int, int]:
    """Process id and user id at the other end of a Unix socket, at the moment when it connected.

    Raises:
        OSError: the system does not provide them.
    """
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
    return PeerProcess(pid, uid, tuple(lineage), exe)


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
    started = _process(pid)[0].started if sys.platform == "linux" else 0
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
    if peer.uid != os.geteuid():
        return "only the user who runs this host may use its control socket"
    try:
        running = running_hosts(hosts)
    except DescentUnknown as problem:
        return str(problem)
    if not peer.lineage:
        return "the caller is refused, because it cannot be determined which processes it descends from"
    if descends_from_host(peer.lineage, running):
        return (
            "processes that a Colonnade host started, such as its servers, may not decide; "
            "decide in a terminal or on a console that none of them started"
        )
    return None


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
    return any(each.name == KEEPER_NAME or (each.pid, each.started) in records for each in lineage)
