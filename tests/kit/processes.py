"""Processes as the kernel tells of them in /proc."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class ProcessState(NamedTuple):
    """A process at one moment (proc_pid_stat(5), fields 3, 4 and 22)."""

    state: str
    """A letter: R, S, D, T, Z for a zombie …"""
    parent: int
    started: str
    """The start time, which tells it from a later one with the same number."""


def state_of(pid: int) -> ProcessState:
    """The state of a process. Raises OSError: it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessState(fields[0], int(fields[1]), fields[19])


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    with suppress(OSError):
        return state_of(pid).state != "Z"
    return False


def all_states() -> dict[int, ProcessState]:
    """The states of all processes, by their numbers."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(entry.name)] = state_of(int(entry.name))
    return found


def processor_time(pid: int) -> float:
    """The seconds of processor time of a process, all its threads included, also those that have ended. Raises
    OSError: it is gone.

    This is the sum of /proc/PID/task/*/schedstat, which forgets threads as they end: the clock of another process, as
    `clock_getcpuclockid` would give it, which Python does not offer.
    """
    return time.clock_gettime((~pid << 3) | 2)


def descendants(pid: int, states: Mapping[int, ProcessState]) -> set[int]:
    """The descendants of a process among these."""
    found = {pid}
    while more := {child for child, each in states.items() if each.parent in found} - found:
        found |= more
    return found - {pid}
