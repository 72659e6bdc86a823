"""Processor times of real processes, which do a known amount of work or none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.processes import Spent, spent
from tests.kit.processes import processor_time

BUSY = "t=time.process_time\nwhile t() < 0.1: pass\n"
WORK = 0.1
"""Seconds that BUSY takes."""


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has run the code, says so, and waits."""
    script = f"import os, subprocess, sys, threading, time\n{code}\nprint('done', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        yield process


def test_a_process_has_the_time_of_its_threads_that_ended() -> None:
    code = "def work():\n    end = time.thread_time() + 0.1\n    while time.thread_time() < end: pass\n"
    with python(f"{code}one = threading.Thread(target=work); one.start(); one.join()") as process:
        assert WORK < processor_time(process.pid) < WORK + 1
        schedstat = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat").read_text()
        own = int(schedstat.split()[0]) / 1e9
        assert processor_time(process.pid) - own >= WORK


def test_the_clock_is_that_of_the_process() -> None:
    with python(BUSY) as process:
        first = processor_time(process.pid)
        assert WORK <= first <= spent(process.pid, "").since_start() <= processor_time(process.pid)


def test_children_count_but_not_the_servers() -> None:
    child = f"[sys.executable, '-I', '-S', '-c', {'import time; ' + BUSY + 'print(0, flush=True); time.sleep(60)'!r}]"
    code = f"one = subprocess.Popen({child}, stdout=subprocess.PIPE)\none.stdout.readline()"
    with python(code) as process:
        assert len(spent(process.pid, "").alive) == 2
        servers = f"{sys.executable} -I -S -c import time; t="
        assert len(spent(process.pid, servers).alive) == 1
        assert spent(process.pid, "").since_start() - spent(process.pid, servers).since_start() >= WORK


def test_a_child_that_ended_counts_with_what_it_did_in_between() -> None:
    """It had spent 1.0 before, and 1.5 of its whole life are found with its parent afterwards."""
    before, after = Spent({1: 2.0, 7: 1.0}, 0.0), Spent({1: 2.25}, 1.5)
    assert after.since(before) == pytest.approx(0.75)


def test_times_of_a_process_that_is_gone_are_an_error() -> None:
    with python("") as process:
        process.kill()
        process.wait()
        with pytest.raises(OSError):
            processor_time(process.pid)
    assert spent(process.pid, "").alive == {}
