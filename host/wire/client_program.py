"""The program behind a relay: the nearest process above it that does more than start others.

Read in /proc; on macOS by darwin.py.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from host.client_process import OWN_NAME, ClientProcess, is_launcher, program_name
from host.wire import darwin
from host.wire.descent import DescentUnknown, PeerProcess, is_helper, look_up

_COMMAND_BYTES = 64 * 1024
"""Bytes of a command line that are read; a script stands at its beginning."""
_SERVICE_MANAGERS = frozenset(("systemd", "init", "launchd", "tini", "dumb-init", "docker-init", "catatonit"))
"""Parents of a process whose own parent has ended."""


def find_client(peer: PeerProcess) -> ClientProcess:
    """The program that a relay works for. Unknown if that program has ended, if only service managers are above the
    relay, or if the relay has no lineage.

    After a process was read, its start time is compared with that in the lineage: a pid that was used again is not
    taken.
    """
    is_own = True  # so far, only Colonnade and launchers of it
    for process in peer.lineage:
        if process.name in _SERVICE_MANAGERS:
            return ClientProcess()
        if is_helper(process):  # a host is above it, which is the client
            is_own = False
            continue
        command, executable, folder = _facts(process.pid)
        try:
            now = look_up(process.pid)
        except DescentUnknown:
            return ClientProcess()
        if now.started != process.started:
            return ClientProcess()
        program = program_name(now.name, command, executable)
        if not (is_launcher(program, command) or (is_own and program == OWN_NAME)):
            return ClientProcess(program, process.pid, folder)
    return ClientProcess()


def _facts(pid: int) -> tuple[list[str], str, str]:
    """The command line, executable and working folder of a process; empty where one cannot be read."""
    if sys.platform == "darwin":
        return darwin.facts(pid)
    command: list[str] = []
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = os.fsdecode(file.read(_COMMAND_BYTES)).rstrip("\0").split("\0")
    return command, _target(pid, "exe"), _target(pid, "cwd")


def _target(pid: int, name: str) -> str:
    with suppress(OSError):
        path = os.readlink(f"/proc/{pid}/{name}")
        if not path.endswith(" (deleted)") or Path(path).exists():
            return path
        return "" if name == "cwd" else path
    return ""
