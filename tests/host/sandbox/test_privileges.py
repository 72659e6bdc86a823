"""Privileges and limits, each in a child."""

from __future__ import annotations

import resource
from pathlib import Path

from host.sandbox.privileges import drop_all, limit, set_readable
from tests.host.sandbox.forked import in_a_child


def test_no_capability_is_left_and_none_comes_back() -> None:
    def work() -> list[str]:
        drop_all()
        status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
        return [status[name] for name in ("CapEff", "CapPrm", "CapAmb", "NoNewPrivs")]

    assert in_a_child(work) == str(["0" * 16, "0" * 16, "0" * 16, "1"])


def test_limits() -> None:
    """A limit that is lower already stays."""

    def work() -> list[int]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
        limit(512 * 1024**2, 9, 256)
        kinds = (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
        return [resource.getrlimit(kind)[1] for kind in kinds]

    assert in_a_child(work) == str([512 * 1024**2, 9, 50, 0])


def test_the_processes_of_others_are_not_counted() -> None:
    def work() -> bool:
        before = resource.getrlimit(resource.RLIMIT_NPROC)
        limit(512 * 1024**2, None, 256)
        return resource.getrlimit(resource.RLIMIT_NPROC) == before

    assert in_a_child(work) == "True"


def test_whether_its_memory_can_be_read() -> None:
    def work() -> list[int]:
        owners = []
        for readable in (False, True):
            set_readable(readable=readable)
            owners.append(Path("/proc/self/environ").stat().st_mode & 0o777)
        return owners

    assert in_a_child(work) == str([0o400, 0o400])
