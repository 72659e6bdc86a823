"""Functions that run in other processes: what comes of them, and of the processes."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trio

from host import worker
from host.jsonrpc.messages import MalformedMessages, ParsedInput, find_malformed, receive, receive_checked
from host.worker import MAX_WORKERS, NICENESS, WorkerTimeout, _out_of_band, _pack, run_in_worker
from tests.kit.processes import is_running

from .wire.processes import ROOT, until

LARGE = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"text":"%b"}}}' % (b"x" * 4_000_000)

LIMIT = 30.0
"""Seconds for what other processes do, on a busy machine."""

HOST = """
import os, time, trio
from host.worker import run_in_worker

async def main():
    pids = set()
    async def work():
        pids.add(await run_in_worker(os.getpid))
    while len(pids) < 3:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in_worker, time.sleep, 600)
        await trio.sleep(0.1)
        print(*pids, flush=True)

trio.run(main)
"""
"""A host as small as can be, with three processes, one of them at work."""


def children(thread: int | None = None) -> set[int]:
    """The processes that this one has started and that run; or those that one of its threads has."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        if thread in (None, int(task.name)):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


async def test_the_result_comes_back_from_another_process() -> None:
    assert await run_in_worker(os.getpid) not in (os.getpid(), 0)
    refused = await run_in_worker(find_malformed, LARGE)
    assert refused == MalformedMessages(None, None)
    assert receive_checked(LARGE, refused) == receive(LARGE)


def test_of_long_texts_in_a_result_the_pickle_holds_none() -> None:
    """Of a page of 7 MB, all of it in one pickle, taking it in held the loop 20 ms."""
    result = ([LARGE, b"short", LARGE], b"beside")
    _, _, head, *texts = _pack(_out_of_band(result))
    assert [bytes(text) for text in texts] == [LARGE, LARGE]
    assert len(head) < 200
    assert pickle.loads(head, buffers=texts) == result


async def test_what_the_function_raises_is_raised_here_and_the_process_goes_on() -> None:
    first = await run_in_worker(os.getpid)
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(divmod, 1, 0)
    assert await run_in_worker(os.getpid) == first


@pytest.mark.slow
async def test_a_process_that_was_killed_is_replaced_and_its_work_is_done_here() -> None:
    first = await run_in_worker(os.getpid)

    async def kill() -> None:
        await trio.sleep(0.05)
        os.kill(first, signal.SIGKILL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        assert await run_in_worker(_pid_after, 0.3) == os.getpid()
    second = await run_in_worker(os.getpid)
    assert second not in (first, os.getpid())


@pytest.mark.slow
async def test_a_few_run_at_once_and_the_others_wait() -> None:
    found: list[int] = []

    async def work() -> None:
        found.append(await run_in_worker(_pid_after, 0.2))

    async with trio.open_nursery() as nursery:
        for _ in range(3 * MAX_WORKERS):
            nursery.start_soon(work)
    assert len(found) == 3 * MAX_WORKERS
    assert len(set(found)) == MAX_WORKERS


def _pid_after(seconds: float) -> int:
    time.sleep(seconds)  # noqa: TID251 - in another process
    return os.getpid()


@pytest.mark.slow
async def test_a_process_whose_work_is_cancelled_is_spared_if_it_ends_soon() -> None:
    first = await run_in_worker(os.getpid)
    with trio.move_on_after(0.05) as scope:
        await run_in_worker(_pid_after, 0.2)
    assert scope.cancelled_caught
    assert await run_in_worker(os.getpid) == first


@pytest.mark.slow
async def test_a_process_that_is_stopped_is_killed_soon_after_its_work_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "CANCEL_GRACE", 0.1)
    first = await stopped()
    with trio.fail_after(LIMIT), trio.move_on_after(0.05) as scope:
        await run_in_worker(os.getpid)
    assert scope.cancelled_caught
    assert not is_running(first)
    assert await run_in_worker(os.getpid) not in (first, os.getpid())


@pytest.mark.slow
async def test_a_process_that_does_not_answer_is_killed_and_its_work_is_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await stopped()
    with trio.fail_after(LIMIT), monkeypatch.context() as short:
        short.setattr(worker, "WORK_TIMEOUT", 0.1)
        assert await run_in_worker(os.getpid) == os.getpid()
    assert not is_running(first)
    assert await run_in_worker(os.getpid) not in (first, os.getpid())


@pytest.mark.slow
async def test_work_that_a_process_had_no_time_for_is_not_repeated_where_it_would_hold_the_loop_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await stopped()
    with trio.fail_after(LIMIT), monkeypatch.context() as short:
        short.setattr(worker, "WORK_TIMEOUT", 0.1)
        with pytest.raises(WorkerTimeout):
            await run_in_worker(os.getpid, fall_back_to_thread=False)
    assert not is_running(first)
    assert await run_in_worker(os.getpid, fall_back_to_thread=False) not in (first, os.getpid())


async def stopped() -> int:
    """An idle process that does not run on."""
    pid = await run_in_worker(os.getpid)
    os.kill(pid, signal.SIGSTOP)
    return pid


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only its kernel kills them")
async def test_a_host_that_is_killed_leaves_no_process_though_it_be_stopped() -> None:
    host = await trio.lowlevel.open_process(
        [sys.executable, "-c", HOST], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert host.stdout is not None
    assert host.stderr is not None
    said, pids = b"", list[int]()
    try:
        with trio.fail_after(LIMIT):
            while not said.endswith(b"\n"):
                said += await host.stdout.receive_some()
            pids = [int(word) for word in said.split()]
            assert len(pids) == 3
            os.kill(pids[0], signal.SIGSTOP)
            host.kill()
            await host.wait()
            await until(lambda: not any(map(is_running, pids)), LIMIT)
            assert [each async for each in host.stderr] == []
    finally:
        host.kill()
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of processes")
async def test_the_thread_of_the_loop_starts_the_processes() -> None:
    """They die with the thread that started them, and a worker thread of trio ends after some idle seconds."""
    pid = await run_in_worker(os.getpid)
    assert pid in children(threading.get_native_id())


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 10, 30, None])
def test_a_process_says_nothing_when_the_host_is_gone(size: int | None) -> None:
    """In the middle of an order, or before it has answered."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", "from host.worker import serve; serve()"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            env={},
            cwd=ROOT,
        )
    with ours:
        ours.sendall(b"".join(_pack((_pid_after, (0.2,))))[:size])
    with process:
        _, said = process.communicate(timeout=LIMIT)
    assert (said, process.returncode) == (b"", 0)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of processes")
def test_the_processes_have_no_environment_and_end_with_the_loop() -> None:
    before = children()
    seen: list[set[int]] = []

    async def main() -> None:
        os.environ["SECRET_OF_THE_HOST"] = "x"
        pid = await run_in_worker(os.getpid)
        seen.append(children() - before)
        assert seen == [{pid}]
        assert _environment_of(pid) == b""
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
        assert await run_in_worker(_variables) == {}
        assert await run_in_worker(_can_be_read) == 0

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
def test_a_message_that_was_evaluated_elsewhere_is_read_as_one_that_was_not(data: bytes) -> None:
    found: ParsedInput = receive_checked(data, find_malformed(data))
    assert found == receive(data)


def _can_be_read() -> int:
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # type: ignore[no-any-return]  # PR_GET_DUMPABLE


def _environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
