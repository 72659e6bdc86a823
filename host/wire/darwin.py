"""Processes of macOS, where there is no /proc: the other end of a Unix socket, parents, names, folders, command lines.

Written from Apple's headers (sys/un.h, sys/ucred.h, sys/proc_info.h, libproc.h, sys/sysctl.h) and checked with fakes
alone. It has never run on macOS.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    import trio

_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2
_XUCRED = struct.Struct("=IIhxx16I")  # cr_version, cr_uid, cr_ngroups, cr_groups
_PIDTBSDINFO, _PIDVNODEPATHINFO, _PIDT_SHORTBSDINFO = 3, 9, 13
_BSDINFO = struct.Struct("=12I16s32s5IiQQ")
_SHORTBSDINFO = struct.Struct("=4I16s8I")
_VNODE_INFO, _VNODE_PATHS, _MAXPATHLEN = 152, 2352, 1024
_CTL_KERN, _KERN_PROCARGS2 = 1, 49
_PATH_BYTES = 4096
_COMMAND_BYTES = 64 * 1024


@cache
def _system() -> Any:
    return ctypes.CDLL("/usr/lib/libSystem.B.dylib", use_errno=True)


def credentials(connection: socket.socket | trio.socket.SocketType) -> tuple[int, int]:
    """Process id and user id at the other end of a Unix socket, at the moment when it connected. Raises OSError."""
    pid = int.from_bytes(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4), sys.byteorder)
    version, uid, *_ = _XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))
    if version != 0:
        raise OSError("this system reports the user at the other end of a socket in an unknown form")
    return pid, uid


def process(pid: int) -> tuple[str, int, int]:
    """The name of a process, its start in microseconds (0 for a process of another user, of which the kernel does not
    tell it), and the id of its parent.

    Raises:
        OSError: there is no such process.
    """
    with suppress(OSError):
        found = _BSDINFO.unpack(_information(pid, _PIDTBSDINFO, _BSDINFO.size))
        return _text(found[13]) or _text(found[12]), found[-2] * 1_000_000 + found[-1], found[4]
    short = _SHORTBSDINFO.unpack(_information(pid, _PIDT_SHORTBSDINFO, _SHORTBSDINFO.size))
    return _text(short[4]), 0, short[1]


def facts(pid: int) -> tuple[list[str], str, str]:
    """The command line, executable and working folder of a process; empty where one cannot be read."""
    command, executable, folder = list[str](), "", ""
    with suppress(OSError):
        command = _arguments(_command_line(pid))
    path = ctypes.create_string_buffer(_PATH_BYTES)
    if _system().proc_pidpath(pid, path, _PATH_BYTES) > 0:
        executable = os.fsdecode(path.value)
    with suppress(OSError):
        folder = _text(_information(pid, _PIDVNODEPATHINFO, _VNODE_PATHS)[_VNODE_INFO:][:_MAXPATHLEN])
    return command, executable, folder


def _information(pid: int, sort: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    if _system().proc_pidinfo(pid, sort, ctypes.c_uint64(0), buffer, size) != size:
        raise OSError("the system does not tell this of the process")
    return buffer.raw


def _command_line(pid: int) -> bytes:
    names = (ctypes.c_int * 3)(_CTL_KERN, _KERN_PROCARGS2, pid)
    buffer, size = ctypes.create_string_buffer(_COMMAND_BYTES), ctypes.c_size_t(_COMMAND_BYTES)
    if _system().sysctl(names, 3, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        raise OSError("the system does not tell the command line of the process")
    return buffer.raw[: size.value]


def _arguments(data: bytes) -> list[str]:
    """The arguments in the form of KERN_PROCARGS2: their number, the path of the program, zero bytes, the arguments."""
    count = int.from_bytes(data[:4], sys.byteorder)
    rest = data[4:].partition(b"\0")[2].lstrip(b"\0")
    return [os.fsdecode(each) for each in rest.split(b"\0")[:count]]


def _text(data: bytes) -> str:
    return os.fsdecode(data.partition(b"\0")[0])
