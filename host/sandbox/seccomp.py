"""System calls that a confined program has no use for, refused by a filter that libseccomp makes where it is installed,
as it is on most systems with systemd or apt.

With Landlock alone, the filter also holds what namespaces would: sockets and shared memory of others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import suppress

from host.sandbox.kernel import KernelRefused, call

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NOT_EQUAL, _EQUAL, _GREATER, _MASKED_EQUAL = 1, 4, 6, 7
_OTHER_ARCHITECTURE = 2
"""The attribute of a filter that says what programs for another architecture meet."""
_SET_SECCOMP, _FILTER = 22, 2
_INSTRUCTION = 8
"""Bytes of one instruction."""
_KILL = 0x80000000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080)
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX type into a terminal."""
_LOW = 0xFFFFFFFF
"""The kernel ignores the upper half of an argument of 32 bits, which the filter sees."""
_NEVER = (
    *("add_key", "keyctl", "request_key"),
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "mount_setattr", "fsopen", "fsconfig", "fsmount"),
    *("fspick", "setns", "chroot", "swapon", "swapoff", "quotactl", "acct", "reboot", "syslog", "vhangup"),
    *("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "kcmp", "lookup_dcookie", "open_by_handle_at"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "iopl", "ioperm"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname"),
)
_NOT_THERE = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")
"""Said to be no part of this kernel, so that programs do without them: their arguments are no filter's to see."""
_OF_OTHERS = ("shmget", "semget", "msgget", "mq_open")
_ON_OTHERS = (
    *(("setpriority", 1), ("ioprio_set", 1), ("prlimit64", 0), ("sched_setaffinity", 0)),
    *(("sched_setscheduler", 0), ("sched_setparam", 0), ("sched_setattr", 0), ("process_madvise", 0)),
)
"""Calls on a process, with the argument that names it; 0 is the one that calls."""


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


_Rule = tuple[str, int, tuple[int, int, int, int] | None]
"""A call, the error that it ends with, and for which argument: its number, a comparison, and its operands."""


_compiled: dict[tuple[bool, bool], bytes] = {}


def filter_calls(*, alone: bool, network: bool) -> bool:
    """Refuse those calls to this process and its descendants for ever. They must have no_new_privs. Programs for
    another architecture than the machine's own, such as those of 32 bits, are killed.

    Args:
        alone: no namespaces hold the process.
        network: it may have sockets of the internet, if they do not.

    Returns:
        Whether libseccomp is installed and the kernel takes the filter; otherwise nothing is refused.
    """
    program = compile_filter(alone=alone, network=network)
    instructions = ctypes.create_string_buffer(program, len(program))
    whole = struct.pack("HP", len(program) // _INSTRUCTION, ctypes.addressof(instructions))
    with suppress(KernelRefused):
        return bool(program) and call("seccomp", "prctl", _SET_SECCOMP, _FILTER, whole, 0, 0) == 0
    return False


def compile_filter(*, alone: bool, network: bool) -> bytes:
    """The filter as the kernel takes it; empty if libseccomp is not installed, or finds no filters in the kernel. It is
    compiled once for this process and those that it forks then, as that takes longer than any other step of a
    confinement."""
    if not _compiled.get((alone, network)):
        _compiled[alone, network] = b""
        with suppress(OSError):
            _compiled[alone, network] = _compile(alone=alone, network=network)
    return _compiled[alone, network]


def has_filters() -> bool:
    """Whether a filter can be made here."""
    return bool(compile_filter(alone=False, network=True))


def _compile(*, alone: bool, network: bool) -> bytes:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    try:
        _check(library.seccomp_attr_set(made, _OTHER_ARCHITECTURE, _KILL))
        for name, error, argument in _rules(alone=alone, network=network):
            number = library.seccomp_syscall_resolve_name(name.encode())
            compared = () if argument is None else (_Comparison(*argument),)
            if number >= 0:  # an older library does not know it, or this machine has no such call
                array = (_Comparison * len(compared))(*compared)
                _check(library.seccomp_rule_add_array(made, _REFUSE | error, number, len(compared), array))
        with open(os.memfd_create("filter"), "r+b") as file:
            _check(library.seccomp_export_bpf(made, file.fileno()))
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(made)


def _check(result: int) -> None:
    if result < 0:
        raise KernelRefused("seccomp", -result)


def _rules(*, alone: bool, network: bool) -> Iterator[_Rule]:
    yield from ((name, errno.EPERM, None) for name in _NEVER)
    yield from ((name, errno.ENOSYS, None) for name in _NOT_THERE)
    for kind in _NAMESPACES:
        yield "unshare", errno.EPERM, (0, _MASKED_EQUAL, kind, kind)
        if kind != 0x80:  # there it is a part of the signal that a child ends with
            yield "clone", errno.EPERM, (0, _MASKED_EQUAL, kind, kind)
    yield from (("ioctl", errno.EPERM, (1, _MASKED_EQUAL, _LOW, each)) for each in _TERMINAL_INPUT)
    allowed = {_UNIX, _INET, _INET6, _NETLINK}
    if alone:
        allowed = {_NETLINK, *((_INET, _INET6) if network else ())}
        yield from ((name, errno.EPERM, None) for name in _OF_OTHERS)
        yield from ((name, errno.EPERM, (at, _NOT_EQUAL, 0, 0)) for name, at in _ON_OTHERS)
    for family in range(_NETLINK + 1):
        if family not in allowed:
            yield "socket", errno.EACCES, (0, _MASKED_EQUAL, _LOW, family)
    yield "socket", errno.EACCES, (0, _GREATER, _NETLINK, 0)
