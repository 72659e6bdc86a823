"""A control group (version 2) of a confined program's own, where this user may make one: as a rule below the group of a
systemd user session. It limits memory, processes and processor time of all its processes together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from host.sandbox.watch import OUR_PROCESSES

_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_PREFIX = "colonnade-"
_PERIOD = 100_000
"""Microseconds in which a group gets its share of the processors; the kernel's own default."""


class ControlGroup:
    """A group that was made."""

    def __init__(self, path: str) -> None:
        self.path = path

    def limit(self, memory: int, processes: int, cpu: float | None) -> None:
        """Limit it: bytes of memory, with what is in files in memory; processes with threads; processors."""
        self._write("memory.max", str(memory))
        self._write("pids.max", str(processes))
        if cpu is not None:
            self._write("cpu.max", f"{int(cpu * _PERIOD)} {_PERIOD}")
        for name, text in {"memory.swap.max": "0", "memory.oom.group": "1"}.items():
            with contextlib.suppress(OSError):  # without swap, or before Linux 4.19
                self._write(name, text)

    def enter(self) -> None:
        """Put this process into it, and so what it starts."""
        self._write("cgroup.procs", "0")

    def has_run_out_of_memory(self) -> bool:
        """Whether the kernel ended something in it for its memory."""
        lines = _read(f"{self.path}/memory.events").splitlines()
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)

    def remove(self) -> None:
        """Remove it, which must be empty."""
        with contextlib.suppress(OSError):  # the next one that is made beside it removes it
            os.rmdir(self.path)

    def _write(self, name: str, text: str) -> None:
        with open(f"{self.path}/{name}", "w") as file:
            file.write(text)


def make_group(plan: Mapping[str, Any], roots: tuple[str, ...] = _ROOTS) -> ControlGroup | None:
    """Make a group with the limits of a plan below the nearest one above this process in which this user may, and whose
    groups have the controllers for all these limits; None if there is none."""
    needed = {"memory", "pids"} if plan["cpu"] is None else {"memory", "pids", "cpu"}
    for root in roots:
        for place in _above(root):
            controllers = _read(f"{place}/cgroup.subtree_control").split()
            if needed <= set(controllers) and os.access(f"{place}/cgroup.procs", os.W_OK):
                _remove_empty(place)
                made = ControlGroup(f"{place}/{_PREFIX}{os.getpid()}")
                try:
                    os.mkdir(made.path)
                    made.limit(plan["memory"], plan["processes"] + OUR_PROCESSES, plan["cpu"])
                except OSError:
                    made.remove()
                else:
                    return made
    return None


def _above(root: str) -> list[str]:
    """The groups above this process, the nearest first, with its own."""
    line = next((each for each in _read("/proc/self/cgroup").splitlines() if each.startswith("0::/")), "")
    parts = line.removeprefix("0::").strip("/").split("/")
    return ["/".join([root, *parts[:count]]) for count in range(len(parts), -1, -1)] if line else []


def _remove_empty(place: str) -> None:
    """Remove the groups of subreapers that were killed, also of one that had the number of this process. Those that are
    in use cannot be removed."""
    for name in os.listdir(place):
        pid = name.removeprefix(_PREFIX)
        if name != pid and (pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}")):
            with contextlib.suppress(OSError):
                os.rmdir(f"{place}/{name}")


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
