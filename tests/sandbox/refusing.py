"""Runs a command on a system that refuses what a sandbox is made of: `python -m tests.sandbox.refusing NAMES COMMAND`.
The names are those of SYSTEMS, with commas between. A filter of system calls refuses, which children inherit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Collection

from host.sandbox import landlock
from host.sandbox.seccomp import _ALLOW, _MASKED_EQUAL, _REFUSE, _Comparison

_NEW_USER = 0x10000000
_NO_NEW_PRIVS = 38
_USERS = _Comparison(0, _MASKED_EQUAL, _NEW_USER, _NEW_USER)
SYSTEMS: dict[str, tuple[tuple[str, int, tuple[_Comparison, ...]], ...]] = {
    "namespaces": (
        ("unshare", errno.EPERM, (_USERS,)),
        ("clone", errno.EPERM, (_USERS,)),
        ("clone3", errno.ENOSYS, ()),
    ),
    "no namespaces left": (("unshare", errno.ENOSPC, (_USERS,)), ("clone", errno.ENOSPC, (_USERS,))),
    "mounts": (("mount", errno.EACCES, ()), ("mount_setattr", errno.EACCES, ())),
    "landlock": (("landlock_create_ruleset", errno.ENOSYS, ()),),
    "keys": (("add_key", errno.EPERM, ()), ("keyctl", errno.EPERM, ())),
    "filters": (("seccomp", errno.ENOSYS, ()), ("prctl", errno.EINVAL, (_Comparison(0, _MASKED_EQUAL, 255, 22),))),
    "ubuntu": (),
}
"""System calls with the error that they end with, and for which first argument. On Ubuntu, a namespace of users can be
made, and then nothing be done with it: /proc/self/uid_map and its kind cannot be written, and nothing be mounted. That
is what a domain of Landlock does, too."""


def refuse(systems: Collection[str]) -> None:
    """Have these system calls refused to this process and what it starts, for ever."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    for system in systems:
        for name, error, comparisons in SYSTEMS[system]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            compared = (_Comparison * len(comparisons))(*comparisons)
            found = library.seccomp_rule_add_array(made, _REFUSE | error, number, len(comparisons), compared)
            assert found == 0, (name, os.strerror(-found))
    assert ctypes.CDLL(None).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert library.seccomp_load(made) == 0
    library.seccomp_release(made)
    if "ubuntu" in systems:
        others = [f"/{name}" for name in os.listdir("/") if name != "proc"]
        landlock.restrict(["/"], others, network=True)


if __name__ == "__main__":
    refuse(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
