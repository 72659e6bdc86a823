"""Privileges and limits of a process, which neither it nor a descendant gets back."""

from __future__ import annotations

import errno
import os
import resource
import struct
from contextlib import suppress

from host.sandbox.kernel import KernelRefused, call

_DROP_BOUND, _SET_SECUREBITS, _AMBIENT, _NO_NEW_PRIVS, _DUMPABLE = 24, 28, 47, 38, 4
_CLEAR_ALL = 4
_KEYCTL, _ID_OF, _JOIN_SESSION = 250 if os.uname().machine == "x86_64" else 219, 0, 1
_OWN_SESSION = -3
_SCORE = "500"
"""As much as half of the memory of this machine counts."""
_NO_ROOT = 0xEF
"""Securebits: user 0 gets no capabilities, and none of it can be undone."""
_CAPABILITIES_3 = 0x20080522


def leave_keys() -> None:
    """Take another session keyring: the keys in the former one could be read, in whatever namespace.

    Raises:
        KernelRefused: the kernel refuses that alone. Some containers refuse each use of keys.
    """
    try:
        call("a keyring of its own", "syscall", _KEYCTL, _JOIN_SESSION, None)
    except KernelRefused as problem:
        if problem.errno not in (errno.ENOSYS, errno.EPERM) or _knows_keys():
            raise


def _knows_keys() -> bool:
    try:
        return call("keys", "syscall", _KEYCTL, _ID_OF, _OWN_SESSION, 0) > 0
    except KernelRefused as problem:
        return problem.errno not in (errno.ENOSYS, errno.EPERM)


def drop_all() -> None:
    """Give up every capability, and set no_new_privs: no set-user-id program gives anything.

    Raises:
        KernelRefused: the kernel refuses.
    """
    with suppress(KernelRefused):  # a process without capabilities may not, and has none to lose
        call("securebits", "prctl", _SET_SECUREBITS, _NO_ROOT, 0, 0, 0)
    with suppress(KernelRefused):  # the same, and the kernel knows no more of them
        for number in range(64):
            call("capabilities", "prctl", _DROP_BOUND, number, 0, 0, 0)
    call("capabilities", "prctl", _AMBIENT, _CLEAR_ALL, 0, 0, 0)
    call("capabilities", "capset", struct.pack("=Ii", _CAPABILITIES_3, 0), bytes(24))
    call("no_new_privs", "prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)


def set_readable(*, readable: bool) -> None:
    """Whether other processes of the user may read this one's memory; while they may not, /proc has nothing of it that
    the process itself could write."""
    call("memory", "prctl", _DUMPABLE, int(readable), 0, 0, 0)


def be_ended_first() -> None:
    """Have the kernel end this process and its descendants before others, if this machine runs out of memory."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # where that is not for this process to say
        file.write(_SCORE)


def limit(memory: int, processes: int | None, files: int) -> None:
    """Limit this process and each descendant.

    Args:
        memory: bytes of private memory that each process may write to. Not of addresses, of which Node takes 10 GiB.
        processes: of the user of this user namespace, with threads; None where it would count those of others.
        files: descriptors of each process.
    """
    limits = {resource.RLIMIT_DATA: memory, resource.RLIMIT_NOFILE: files, resource.RLIMIT_CORE: 0}
    if processes is not None:
        limits[resource.RLIMIT_NPROC] = processes
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
