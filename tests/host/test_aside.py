"""Functions that run in other processes: what comes of them, and of the processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import trio

from host.aside import AT_ONCE, NICENESS, run_aside
from host.jsonrpc.messages import Received, Refusals, receive, receive_judged, refusals

LARGE = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"text":"%b"}}}' % (b"x" * 4_000_000)


def children() -> set[int]:
    """The processes that this one has started and that run."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


async def test_the_result_comes_back_from_another_process() -> None:
    assert await run_aside(os.getpid) not in (os.getpid(), 0)
    refused = await run_aside(refusals, LARGE)
    assert refused == Refusals(None, None)
    assert receive_judged(LARGE, refused) == receive(LARGE)


async def test_what_the_function_raises_is_raised_here_and_the_process_goes_on() -> None:
    first = await run_aside(os.getpid)
    with pytest.raises(ZeroDivisionError):
        await run_aside(divmod, 1, 0)
    assert await run_aside(os.getpid) == first


async def test_a_process_that_was_killed_is_replaced_and_its_work_is_done_here() -> None:
    first = await run_aside(os.getpid)

    async def kill() -> None:
        await trio.sleep(0.05)
        os.kill(first, signal.SIGKILL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        assert await run_aside(_pid_after, 0.3) == os.getpid()
    second = await run_aside(os.getpid)
    assert second not in (first, os.getpid())


async def test_a_few_run_at_once_and_the_others_wait() -> None:
    found: list[int] = []

    async def work() -> None:
        found.append(await run_aside(_pid_after, 0.2))

    async with trio.open_nursery() as nursery:
        for _ in range(3 * AT_ONCE):
            nursery.start_soon(work)
    assert len(found) == 3 * AT_ONCE
    assert len(set(found)) == AT_ONCE


def _pid_after(seconds: float) -> int:
    time.sleep(seconds)  # noqa: TID251 - in another process
    return os.getpid()


async def test_what_has_begun_is_not_cancelled() -> None:
    with trio.move_on_after(0.05) as scope:
        await run_aside(_pid_after, 0.2)
    assert not scope.cancelled_caught


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of processes")
def test_the_processes_have_no_environment_and_end_with_the_loop() -> None:
    before = children()
    seen: list[set[int]] = []

    async def main() -> None:
        os.environ["SECRET_OF_THE_HOST"] = "x"
        pid = await run_aside(os.getpid)
        seen.append(children() - before)
        assert seen == [{pid}]
        assert _environment_of(pid) == b""
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
        assert await run_aside(_variables) == {}
        assert await run_aside(_can_be_read) == 0

    try:
        trio.run(main)
    finally:
        del os.environ["SECRET_OF_THE_HOST"]
    assert children() == before


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}  # which Python sets itself


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1,"a":2}}',
        b'{"jsonrpc":"2.0","id":1}',
        b"[]",
        b"[1]",
        b'[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":[]}},{}]',
        b"[" + b",".join([b'{"jsonrpc":"2.0","method":"a"}'] * 101) + b"]",
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":[' + b"1," * 11_000 + b"1]}}",
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":[' + b"1," * 11_000 + b"1]}}",
        b"\xff",
        b"",
    ],
)
def test_a_message_that_was_judged_elsewhere_is_read_as_one_that_was_not(data: bytes) -> None:
    found: Received = receive_judged(data, refusals(data))
    assert found == receive(data)


def _can_be_read() -> int:
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # type: ignore[no-any-return]  # PR_GET_DUMPABLE


def _environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
