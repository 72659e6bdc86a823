"""The sum over all processes of a confined program: its memory, and how many there are. The kernel limits each process
alone, if there is no control group (control_group.py).
"""

from __future__ import annotations

from collections.abc import Iterable

OUR_PROCESSES = 2
"""Processes of ours below a subreaper, which confine the program (confine.py)."""
CALM, ALERT = 1.0, 0.1
"""Seconds between two looks, and those from the half of a limit on."""
_OF_A_PROCESS = (b"RssAnon", b"RssShmem", b"VmSwap")
_SHARED_OUT = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


class Watch:
    """The limits of a program's tree.

    Args:
        memory: bytes.
        processes: with threads.
    """

    def __init__(self, memory: int, processes: int) -> None:
        self._memory = memory
        self._processes = processes
        self.pause = CALM
        """Seconds until the next look."""

    def find_excess(self, pids: Iterable[int]) -> str:
        """The limit that these processes exceed: `memory`, `processes`, or none, which is empty."""
        statuses = {pid: _fields(f"/proc/{pid}/status") for pid in pids}
        processes = sum(each.get(b"Threads", 0) for each in statuses.values())
        memory = {pid: 1024 * sum(each.get(name, 0) for name in _OF_A_PROCESS) for pid, each in statuses.items()}
        total = sum(memory.values())
        if total > self._memory:  # some of it is the same memory, which the kernel takes longer to tell
            total = sum(_own_share(pid, most) for pid, most in memory.items())
        self.pause = ALERT if 2 * total > self._memory or 2 * processes > self._processes else CALM
        return "memory" if total > self._memory else "processes" if processes > self._processes else ""


def _own_share(pid: int, most: int) -> int:
    """The bytes of a process, those that it shares with others in parts."""
    found = _fields(f"/proc/{pid}/smaps_rollup")
    return 1024 * sum(found.get(name, 0) for name in _SHARED_OUT) if found else most


def _fields(path: str) -> dict[bytes, int]:
    """The lines of a file of /proc that begin with a number; none if the process is gone."""
    found: dict[bytes, int] = {}
    try:
        with open(path, "rb") as file:
            for line in file.read().splitlines():
                name, _, value = line.partition(b":")
                words = value.split()
                if words and words[0].isdigit():
                    found[name] = int(words[0])
    except OSError:
        return {}
    return found
