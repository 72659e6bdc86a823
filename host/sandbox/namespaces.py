"""Namespaces of a program's own: users, processes, mounts, IPC, host name, control groups and network.

A new root is put together of what the program may see: each path stands where it stands outside.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Any

from host.sandbox.kernel import KernelRefused, call
from host.sandbox.paths import folders_to_hold, in_quotes

_MOUNTS, _CGROUP, _UTS, _IPC, _USER, _PROCESSES, _NETWORK = (
    *(0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000),
)
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_DETACH = 2
_SET_ATTRIBUTES = 442  # the same on all architectures
_ATTRIBUTE_READ_ONLY, _ATTRIBUTES = 1, 2 | 4
_AT_RECURSIVE = 0x8000
DEVICES = ("null", "zero", "full", "random", "urandom")
ENTRIES_OF_ALL = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "scsi",
    "acpi",
    "driver",
    "dynamic_debug",
    "mtrr",
    "pressure",
)
"""Entries of /proc for the whole machine: user 0 might write to it without any capability."""


def separate(*, network: bool) -> None:
    """Put this process into namespaces of its own, and its children into one of processes. `network`: it keeps that of
    the host.

    Raises:
        KernelRefused: the kernel, or a profile of this system, refuses.
    """
    user, group = os.getuid(), os.getgid()
    kinds = _USER | _MOUNTS | _PROCESSES | _IPC | _UTS | _CGROUP | (0 if network else _NETWORK)
    call("user namespaces", "unshare", kinds)
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError as error:
        raise KernelRefused("user namespaces", error.errno or 0) from error


def build_root(plan: dict[str, Any]) -> None:
    """Make a root of the paths of a plan (host/sandbox/plan.py) alone the root of this process, which must be the first
    one of its namespace of processes.

    Raises:
        OSError: the kernel refuses, or a path is not there any more.
    """
    base, hidden = plan["base"], plan["hidden"]
    temporary = f"mode=1777,size={plan['temporary']}"
    call("mounts", "mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    _mount_memory(base, "mode=755,size=1m")
    _make(base + "/tmp", folder=True)  # before what may stand below it
    _mount_memory(base + "/tmp", temporary)
    modes = dict.fromkeys(plan["read"], True) | dict.fromkeys(plan["write"], False)
    # Parents first: a path below another one stands there already.
    for path in sorted(modes):
        _bind(path, base + path, read_only=modes[path])
    if os.path.isdir(base + hidden):
        for path in folders_to_hold(hidden, plan["write"]):
            place = os.fsencode(base + path)
            call("mounts", "mount", place, place, None, _BIND | _RECURSIVE, None)
        _mount_memory(base + hidden, "mode=755,size=1m")
    for path in plan["own"]:
        _bind(path, base + path, read_only=False)
    for path in plan["packages"]:
        _bind(path, base + path, read_only=True)
    if os.path.ismount(base + hidden):
        _set_attributes(base + hidden, _ATTRIBUTE_READ_ONLY)
    for link, target in plan["links"].items():
        if not os.path.lexists(base + link):
            os.makedirs(os.path.dirname(base + link), exist_ok=True)
            os.symlink(target, base + link)
    for path, text in plan["files"].items():
        if not os.path.lexists(base + path):
            os.makedirs(os.path.dirname(base + path), exist_ok=True)
            _write(base + path, text)
    _make(base + plan["cwd"], folder=True)
    _add_devices(base, temporary)
    _add_proc(base)
    os.chdir(base)
    call("mounts", "pivot_root", b".", b".")
    call("mounts", "umount2", b".", _DETACH)
    os.chdir("/")
    _set_attributes("/", _ATTRIBUTE_READ_ONLY)
    call("host name", "sethostname", b"sandbox", 7)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # pathlib would double what is imported at each start
        file.write(text)


def _bind(source: str, target: str, *, read_only: bool) -> None:
    _make(target, folder=os.path.isdir(source))
    step = f"mounts of {in_quotes(source)}"
    call(step, "mount", os.fsencode(source), os.fsencode(target), None, _BIND | _RECURSIVE, None)
    _set_attributes(target, _ATTRIBUTES | (_ATTRIBUTE_READ_ONLY if read_only else 0), _AT_RECURSIVE)


def _make(target: str, *, folder: bool) -> None:
    """Make a place for a mount, unless it is there."""
    if os.path.lexists(target):
        return
    os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
    if not folder:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444))


def _mount_memory(target: str, options: str) -> None:
    call("mounts", "mount", b"tmpfs", os.fsencode(target), b"tmpfs", _NOSUID | _NODEV, options.encode())


def _set_attributes(target: str, attributes: int, flags: int = 0) -> None:
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    call("mount_setattr", "syscall", _SET_ATTRIBUTES, -100, os.fsencode(target), flags, wanted, len(wanted))


def _add_devices(base: str, temporary: str) -> None:
    for name in DEVICES:
        if stat.S_ISCHR(os.stat(f"/dev/{name}").st_mode):
            _make(f"{base}/dev/{name}", folder=False)
            place = os.fsencode(f"{base}/dev/{name}")
            call("mounts", "mount", f"/dev/{name}".encode(), place, None, _BIND, None)
    _make(f"{base}/dev/shm", folder=True)
    _mount_memory(f"{base}/dev/shm", temporary)
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(f"/proc/self/{target}", f"{base}/dev/{name}")


def _add_proc(base: str) -> None:
    proc = f"{base}/proc"
    _make(proc, folder=True)
    call("a /proc of its own", "mount", b"proc", os.fsencode(proc), b"proc", _NOSUID | _NODEV | _NOEXEC, None)
    _write(f"{proc}/sys/user/max_user_namespaces", "0")
    for name in ENTRIES_OF_ALL:
        if os.path.lexists(place := f"{proc}/{name}"):
            call("mounts", "mount", os.fsencode(place), os.fsencode(place), None, _BIND | _RECURSIVE, None)
            _set_attributes(place, _ATTRIBUTES | _ATTRIBUTE_READ_ONLY, _AT_RECURSIVE)
