"""The processes at the other end of a TCP connection of this machine, and whether they may decide.

TCP has no peer credentials. The kernel's table of sockets says to which user the other socket belongs and which inode
it has, and the descriptors in /proc say which processes hold it. Some processes hide theirs: sshd does, which forwards
a port for a browser elsewhere. A socket whose holder cannot be found is therefore let in if a process outside hides its
descriptors, and none below a host hides any, or keeps one where /proc does not show it: in a message that was not
received yet, or in a ring (io_uring). Otherwise it counts as a server's. What is not noticed is a process outside that
passes on what a server sends.

Only on Linux, and only for sockets of this network namespace; nothing is known of others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from msgspec import Struct

from host.wire.descent import PeerProcess, examine_process, refusal_reason

Address = tuple[str, int]
"""IP address and port."""

MAX_ROWS = 1_000_000
"""Rows of the tables that are read."""
MAX_DESCRIPTORS = 500_000
"""Descriptors that are looked at, some 2 us each."""
_PROC = Path("/proc")
_RING = "anon_inode:[io_uring]"
_PENDING = re.compile(rb"^scm_fds:[ \t]*[1-9]", re.MULTILINE)
"""The line of the kernel (5.6) about a Unix socket for which descriptors wait in a message."""
_ROOT = 0
_UNKNOWN = (
    "it cannot be determined which process opens the console, so it may be one that a Colonnade host started; decide "
    "in a terminal (`colonnade ask`), or open the console in a browser whose descriptors can be read"
)


class SearchTooLong(Exception):
    """There are more sockets or descriptors than are looked at."""


class Holders(Struct, frozen=True):
    """Who has a socket: the user it belongs to, and the processes with a descriptor of it, as far as they can be
    read. `name`: how /proc names it; empty if no process has it any more."""

    uid: int
    pids: Sequence[int]
    name: str = ""


def find_holders(client: Address, server: Address, proc: Path = _PROC) -> Holders | None:
    """Who holds the socket at `client` that is connected to `server`; None if it is no socket of this machine, or the
    system does not tell.

    Raises:
        SearchTooLong: the search was given up.
    """
    row = next(_rows(client, server, proc), None)
    if row is None:
        return None
    uid, inode = row
    if not inode:  # its processes have closed it, or it is a part of another one; the kernel then names no user
        return Holders(os.geteuid(), ())
    name = f"socket:[{inode}]"
    return Holders(uid, sorted(_holding(name, proc)), name)


def refuse_sender(
    client: Address | None, server: Address | None, hosts: Path, proc: Path = _PROC
) -> tuple[PeerProcess, str] | None:
    """The process that may not decide, and the reason as a sentence; None if none is found. Reads much of /proc: some
    20 ms, in a thread.

    A socket of root's is let in: root needs no console, and proxies and forwarders run as root.

    Args:
        client: the address of the other end of a connection.
        server: its address at this end.
        hosts: the folder of the host records.
    """
    if sys.platform != "linux" or client is None or server is None:
        return None
    own = os.geteuid()
    try:
        holders = find_holders(client, server, proc)
    except SearchTooLong:
        return PeerProcess(0, own), _UNKNOWN
    if holders is None:
        return None
    if holders.uid not in (own, _ROOT):
        return PeerProcess(0, holders.uid), "only the user who runs this host may open its console"
    for pid in holders.pids:
        peer = examine_process(pid)
        why = refusal_reason(peer, hosts)
        if why is not None:
            return peer, why
    if not holders.pids and holders.uid == own and not (holders.name and _is_held_outside(holders.name, hosts, proc)):
        return PeerProcess(0, own), _UNKNOWN
    return None


def _is_held_outside(name: str, hosts: Path, proc: Path) -> bool:
    """Whether a socket of this user whose holder cannot be read must be that of a process which no host started."""
    hides_outside = False
    for pid in filter(str.isdigit, os.listdir(proc)):
        if not _is_own(pid, proc):
            continue
        is_below = refusal_reason(examine_process(int(pid)), hosts) is not None
        if is_below and _may_keep(name, pid, proc):
            return False
        if not is_below:
            hides_outside = hides_outside or not os.access(proc / pid / "fd", os.R_OK | os.X_OK)
    return hides_outside


def _is_own(pid: str, proc: Path) -> bool:
    """Whether the process is of this user. The folder of one that hides its descriptors belongs to root."""
    try:
        status = (proc / pid / "status").read_bytes()
    except OSError:  # it has ended
        return False
    return f"Uid:\t{os.geteuid()}\t".encode() in status


def _may_keep(name: str, pid: str, proc: Path) -> bool:
    """Whether a process may have a socket with one of its descriptors, each thread's included, or behind one."""
    try:
        for thread in os.listdir(proc / pid / "task"):
            folder = proc / pid / "task" / thread
            for descriptor in os.listdir(folder / "fd"):
                target = os.readlink(folder / "fd" / descriptor)
                if target in (name, _RING):
                    return True
                if target.startswith("socket:") and _PENDING.search((folder / "fdinfo" / descriptor).read_bytes()):
                    return True
    except FileNotFoundError:  # it, its thread or a descriptor has ended meanwhile
        return (proc / pid).exists()
    except OSError:  # it hides them
        return True
    return False


def _rows(client: Address, server: Address, proc: Path) -> Iterator[tuple[int, int]]:
    """User and inode of each socket with these two addresses. A socket for IPv6 can be connected over IPv4, so that its
    two ends stand in different tables."""
    here, there = _spellings(client), _spellings(server)
    left = MAX_ROWS
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(proc / "net" / table, "rb") as file:
            for row in file:
                left -= 1
                if left < 0:
                    raise SearchTooLong
                fields = row.split()
                if len(fields) > 9 and fields[1] in here and fields[2] in there:
                    yield int(fields[7]), int(fields[9])


def _spellings(address: Address) -> frozenset[bytes]:
    """An address as the tables have it, for both kinds of sockets."""
    ip, port = ip_address(address[0].partition("%")[0]), address[1]
    mapped = IPv6Address(f"::ffff:{ip}") if isinstance(ip, IPv4Address) else ip
    plain = mapped.ipv4_mapped
    return frozenset(f"{_hex(each.packed)}:{port:04X}".encode() for each in (plain, mapped) if each is not None)


def _hex(packed: bytes) -> str:
    """Words of 32 bits, each a number in the order of this machine."""
    return "".join(f"{int.from_bytes(packed[at : at + 4], sys.byteorder):08X}" for at in range(0, len(packed), 4))


def _holding(name: str, proc: Path) -> Iterator[int]:
    """The processes with a descriptor of this name."""
    left = MAX_DESCRIPTORS
    for pid in os.listdir(proc):
        if not pid.isdigit():
            continue
        folder = f"{proc}/{pid}/fd"
        with suppress(OSError):  # it has ended, or is another user's, or hides them
            for descriptor in os.listdir(folder):
                left -= 1
                if left < 0:
                    raise SearchTooLong
                with suppress(OSError):  # it was closed
                    if os.readlink(f"{folder}/{descriptor}") == name:
                        yield int(pid)
                        break
