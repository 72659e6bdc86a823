"""Landlock: which files a process and its descendants may open, TCP, and signals and abstract sockets outside."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

from host.sandbox.kernel import KernelRefused, call

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Numbers of the system calls, which are the same on all architectures."""
_EXECUTE, _WRITE, _READ, _READ_FOLDER, _TRUNCATE, _IOCTL = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_READING = _EXECUTE | _READ | _READ_FOLDER
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights to files, by the version of the interface; later ones have none more."""
_TCP = 3
_SCOPES = 3
OUTSIDE = 6
"""The version from which signals and abstract sockets outside are refused."""


def version() -> int:
    """The version of the interface; 0 if there is none."""
    try:
        return call("Landlock", "syscall", _CREATE, None, 0, 1)
    except KernelRefused:
        return 0


def restrict(read: Iterable[str], write: Iterable[str], *, network: bool) -> None:
    """Refuse this process and its descendants all files but these for ever, and TCP unless `network`. They must have
    no_new_privs.

    Args:
        read, write: files, and folders with everything below them. Those that are not there are left out.

    Raises:
        KernelRefused: the kernel has no Landlock, or refuses.
    """
    known = version()
    if not known:
        raise KernelRefused("Landlock", errno.ENOSYS)
    rights = _RIGHTS[min(known, 5)]
    attributes = struct.pack("=QQQ", rights, 0 if network or known < 4 else _TCP, _SCOPES if known >= OUTSIDE else 0)
    size = 24 if known >= OUTSIDE else 16 if known >= 4 else 8
    ruleset = call("Landlock", "syscall", _CREATE, attributes, size, 0)
    try:
        for paths, allowed in ((read, _READING), (write, rights & ~_MAKE_DEVICES)):
            for path in paths:
                _allow(ruleset, path, allowed & rights)
        call("Landlock", "syscall", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, opened), 12)
        call("Landlock", "syscall", _ADD, ruleset, 1, rule, 0)
    finally:
        os.close(opened)
