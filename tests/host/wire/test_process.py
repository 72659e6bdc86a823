"""Starting, watching and ending real programs through the keeper. Real clock: the kernel does not know another one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from host.wire.process import MAX_CONCURRENT_STARTS, Child, Keeper, SpawnError, child_environment, open_keeper
from tests.kit.processes import is_running

from .processes import FAMILY, FAMILY_SIZE, PYTHON, carrying, new_token, running_host, states_below, until

GRACE = 0.2


@pytest.fixture
async def keeper() -> AsyncIterator[Keeper]:
    async with open_keeper() as opened:
        yield opened


def start(keeper: Keeper, *argv: str, cwd: str = "/", grace: float = GRACE) -> AbstractAsyncContextManager[Child]:
    return keeper.open_child(argv, env=child_environment({}), cwd=cwd, grace=grace)


@asynccontextmanager
async def family(keeper: Keeper, *words: str) -> AsyncIterator[tuple[Child, str]]:
    """A program with four descendants, all of them up, and their token."""
    token = new_token()
    async with start(keeper, *PYTHON, FAMILY, token, *words) as child:
        assert await child.stdout.receive_some() == b"up\n"
        yield child, token


async def everything(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


# Running


async def test_what_is_written_comes_back_and_the_end_of_input_ends_it(keeper: Keeper) -> None:
    async with start(keeper, "cat") as child:
        os.write(child.stdin_fd, b"hello")
        assert await child.stdout.receive_some() == b"hello"
        assert child.returncode is None
        child.close_stdin()
        assert await child.wait() == 0
        assert await everything(child.stdout) == b""


async def test_standard_error_is_its_own_stream(keeper: Keeper) -> None:
    async with start(keeper, "sh", "-c", "echo out; echo err >&2") as child:
        assert (await everything(child.stdout), await everything(child.stderr)) == (b"out\n", b"err\n")


async def test_many_tasks_learn_the_exit_status(keeper: Keeper) -> None:
    seen: list[int] = []

    async def look(child: Child) -> None:
        seen.append(await child.wait())

    async with start(keeper, "sh", "-c", "exit 7") as child, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(look, child)
    assert seen == [7, 7, 7]
    assert child.returncode == 7


async def test_the_end_by_a_signal_is_a_negative_status(keeper: Keeper) -> None:
    async with start(keeper, "sh", "-c", "kill -USR1 $$") as child:
        assert await child.wait() == -signal.SIGUSR1


async def test_closing_its_input_wakes_who_waits_to_write(keeper: Keeper) -> None:
    async with start(keeper, "sleep", "600") as child:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(child.stdin_fd, bytes(65536))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_closed, child)
            await trio.testing.wait_all_tasks_blocked()
            child.close_stdin()
        with pytest.raises(trio.ClosedResourceError):
            _ = child.stdin_fd


async def expect_closed(child: Child) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await trio.lowlevel.wait_writable(child.stdin_fd)


async def test_a_program_has_three_descriptors_its_own_session_and_default_signals(keeper: Keeper) -> None:
    code = """
import os, signal
fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]  # the last one is for the listing itself
caught = [n for n in signal.valid_signals() if signal.getsignal(n) != signal.SIG_DFL and n not in (2, 13, 25)]
print(fds, os.getsid(0) == os.getpid(), caught, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    async with start(keeper, *PYTHON, code) as child:
        assert await everything(child.stdout) == b"[0, 1, 2] True [] set()\n"


async def test_the_parent_of_a_program_shows_it_nothing_of_the_hosts_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLONNADE_TEST_SECRET", "s3cret")
    async with open_keeper() as keeper, start(keeper, "sh", "-c", "cat /proc/$PPID/environ; env") as child:
        assert b"s3cret" not in await everything(child.stdout)


async def test_text_of_any_bytes_reaches_the_program_as_it_is(keeper: Keeper) -> None:
    odd = os.fsdecode(b"caf\xc3\xa9 \xff \xe2\x80\xa8")
    async with keeper.open_child(
        ["sh", "-c", 'printf "%s|%s" "$1" "$ODD"', "sh", odd], env={**child_environment({}), "ODD": odd}, cwd="/"
    ) as child:
        assert await everything(child.stdout) == os.fsencode(f"{odd}|{odd}")


async def test_it_runs_in_its_directory_and_a_relative_program_is_found_there(keeper: Keeper, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "here").chmod(0o755)
    async with start(keeper, "./here", cwd=str(tmp_path)) as child:
        assert await everything(child.stdout) == f"{tmp_path}\n".encode()


@pytest.mark.slow
async def test_twenty_at_once(keeper: Keeper) -> None:
    async def one(number: int) -> None:
        async with start(keeper, "sh", "-c", f"read line; exit {number}") as child:
            os.write(child.stdin_fd, b"go\n")
            assert await child.wait() == number

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(one, number)


# What cannot be started


@pytest.mark.slow
async def test_fifty_at_once_start_eight_at_a_time(keeper: Keeper) -> None:
    """A slot is held until the program runs, and not while it is used."""
    starting = most = 0
    begin, order = keeper._begin, Child._send_order

    async def began(sort: bytes) -> Child:
        nonlocal starting, most
        starting += 1
        most = max(most, starting)
        return await begin(sort)

    async def ordered(child: Child, text: bytes) -> None:
        nonlocal starting
        await order(child, text)
        starting -= 1

    keeper._begin = began  # type: ignore[method-assign]
    Child._send_order = ordered  # type: ignore[method-assign, assignment]
    up = 0
    all_up = trio.Event()

    async def one() -> None:
        nonlocal up
        async with start(keeper, "cat"):  # it says nothing: whoever wanted its handshake would wait for ever
            up += 1
            if up == 50:
                all_up.set()
            await all_up.wait()

    try:
        with trio.fail_after(50):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(one)
    finally:
        Child._send_order = order  # type: ignore[method-assign]
    assert most == MAX_CONCURRENT_STARTS == 8


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("argv", "cwd", "reason"),
    [
        (["no-such-program"], "/", "not found"),
        (["/no/such/program"], "/", "not found"),
        (["/etc/passwd"], "/", "not executable"),
        (["true"], "/no/such/directory", "bad cwd"),
        (["true"], "/etc/passwd", "bad cwd"),
        (["true", "x" * 200_000], "/", "Argument list too long"),
        (["true", "a\0b"], "/", "embedded null byte"),
        ([], "/", "the command is empty"),
    ],
)
async def test_a_start_that_fails_says_why(keeper: Keeper, argv: list[str], cwd: str, reason: str) -> None:
    with pytest.raises(SpawnError) as caught:
        async with start(keeper, *argv, cwd=cwd):
            pass
    assert caught.value.reason == reason
    await until(lambda: not states_below(keeper.pid), 1)


@pytest.mark.parametrize("by_path", [True, False])
async def test_a_script_whose_interpreter_is_missing_is_told_from_a_missing_one(
    keeper: Keeper, tmp_path: Path, by_path: bool
) -> None:
    file = tmp_path / "a-server"
    file.write_text("#!/no/such/interpreter\n")
    file.chmod(0o755)
    with pytest.raises(SpawnError, match="no interpreter"):
        async with keeper.open_child(
            [str(file) if by_path else "a-server"], env={"PATH": f"/usr/bin:{tmp_path}"}, cwd="/", grace=0.1
        ):
            pass


async def test_a_file_that_is_no_program_is_not_executable(keeper: Keeper, tmp_path: Path) -> None:
    file = tmp_path / "noise"
    file.write_bytes(b"\x00\x01\x02")
    file.chmod(0o755)
    with pytest.raises(SpawnError, match="not executable"):
        async with start(keeper, str(file)):
            pass


async def test_a_cancelled_start_leaves_nothing(keeper: Keeper) -> None:
    """Cancelled after each of the steps that a start has, and before the first."""
    token = new_token()
    for steps in range(8):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_after, steps, scope)
                async with start(keeper, *PYTHON, "import time; time.sleep(600)", token):
                    await trio.sleep_forever()
    with trio.move_on_after(0):
        async with start(keeper, *PYTHON, "import time; time.sleep(600)", token):
            pass
    assert carrying(token) == []
    await until(lambda: not states_below(keeper.pid), 1)


async def cancel_after(steps: int, scope: trio.CancelScope) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_nothing_starts_while_the_keeper_is_closing() -> None:
    async with open_keeper() as keeper:
        pass
    with pytest.raises(SpawnError, match="stopping"):
        async with start(keeper, "true"):
            pass


# Stopping


async def test_one_that_heeds_the_end_of_its_input_is_not_signalled(keeper: Keeper) -> None:
    async with family(keeper) as (child, token):
        assert len(carrying(token)) == FAMILY_SIZE
    assert child.returncode == 0
    assert carrying(token) == []


async def test_one_that_ignores_the_end_of_its_input_gets_term(keeper: Keeper) -> None:
    begun = trio.current_time()
    async with start(keeper, "sleep", "600") as child:
        pass
    assert child.returncode == -signal.SIGTERM
    assert GRACE <= trio.current_time() - begun < GRACE + 1


@pytest.mark.slow
async def test_one_that_ignores_term_as_well_is_killed_with_all_it_started(keeper: Keeper) -> None:
    async with family(keeper, "stubborn") as (child, token):
        begun = trio.current_time()
    assert child.returncode == -signal.SIGKILL
    assert carrying(token) == []
    assert 2 * GRACE <= trio.current_time() - begun < 2 * GRACE + 1


async def test_one_that_was_stopped_by_a_signal_is_ended_all_the_same(keeper: Keeper) -> None:
    async with start(keeper, "sleep", "600") as child:
        os.kill(child.pid, signal.SIGSTOP)
    assert child.returncode == -signal.SIGTERM


@pytest.mark.slow
async def test_term_reaches_the_whole_tree(keeper: Keeper, tmp_path: Path) -> None:
    """The real server below a launcher gets its chance to tidy up, also from a session of its own."""
    script = (
        f"setsid sh -c 'trap \"echo tidy > {tmp_path}/note; exit\" TERM; echo up; while :; do sleep 0.01; done' & wait"
    )
    async with start(keeper, "sh", "-c", f"trap 'sleep 0.1; exit' TERM; {script}; sleep 1", grace=0.4) as child:
        assert await child.stdout.receive_some() == b"up\n"
    assert (tmp_path / "note").read_text() == "tidy\n"


@pytest.mark.slow
async def test_stopping_is_not_cut_short_by_a_cancellation(keeper: Keeper) -> None:
    with trio.move_on_after(0.5):
        async with family(keeper, "stubborn") as (_, token):
            await trio.sleep_forever()
    assert carrying(token) == []


async def test_a_launcher_that_leaves_is_an_exit_and_what_it_left_is_swept(keeper: Keeper) -> None:
    async with family(keeper, "leaves") as (child, token):
        assert await child.wait() == 3
        await until(lambda: not carrying(token), 1)


@pytest.mark.slow
async def test_a_fork_bomb_is_ended(keeper: Keeper) -> None:
    """Each process forks on and dies, so that no list of them is right for longer than a moment."""
    code = (
        "import os, time\nprint('up', flush=True)\nwhile True:\n    if os.fork(): os._exit(0)\n    time.sleep(0.0002)"
    )
    token = new_token()
    async with start(
        keeper, *PYTHON, f"import os\nif os.fork():\n  os.read(0, 1)\n  os._exit(0)\n{code}", token
    ) as child:
        assert await child.stdout.receive_some() == b"up\n"
    assert carrying(token) == []


async def test_an_error_of_the_body_comes_out_as_it_is(keeper: Keeper) -> None:
    with pytest.raises(LookupError):
        async with start(keeper, "cat"):
            raise LookupError


@pytest.mark.slow
async def test_no_zombie_is_seen_while_a_program_runs(keeper: Keeper) -> None:
    """Orphans that end are reaped at once: a zombie may be met, but not the same one twice, 50 ms apart."""
    code = """
import os, time
for _ in range(200):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.002)
        os._exit(0)
    os.wait()
    time.sleep(0.002)
"""
    met: set[int] = set()
    async with start(keeper, *PYTHON, code, grace=5) as child:
        while child.returncode is None:
            zombies = {pid for pid, state in states_below(keeper.pid).items() if state == "Z"}
            assert not met & zombies
            met = zombies
            await trio.sleep(0.05)
    assert child.returncode == 0


async def test_closing_the_keeper_kills_what_is_still_open() -> None:
    token = new_token()

    async def hold(keeper: Keeper, task_status: trio.TaskStatus[None]) -> None:
        async with start(keeper, *PYTHON, FAMILY, token, "stubborn", grace=30) as child:
            assert await child.stdout.receive_some() == b"up\n"
            task_status.started()
            assert await child.wait() == -signal.SIGKILL

    async with trio.open_nursery() as outer:
        async with open_keeper() as keeper:
            await outer.start(hold, keeper)
            begun = trio.current_time()
        assert trio.current_time() - begun < 1
        assert carrying(token) == []


# When something is killed


@pytest.mark.slow
async def test_a_killed_subreaper_is_an_exit_and_takes_its_tree_along(keeper: Keeper) -> None:
    async with family(keeper, "stubborn") as (child, token), start(keeper, "cat") as sibling:
        os.kill(child._subreaper, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        assert await until(lambda: not carrying(token), 1) < 1
        os.write(sibling.stdin_fd, b"still here")
        assert await sibling.stdout.receive_some() == b"still here"


@pytest.mark.slow
async def test_a_subreaper_that_was_stopped_cannot_keep_its_tree(keeper: Keeper) -> None:
    async with family(keeper, "stubborn") as (child, token):
        os.kill(child._subreaper, signal.SIGSTOP)
    await until(lambda: not carrying(token), 1)


@pytest.mark.slow
async def test_a_killed_keeper_is_replaced_and_its_programs_go_on(keeper: Keeper) -> None:
    async with family(keeper) as (child, token):
        first = keeper.pid
        os.kill(first, signal.SIGKILL)
        async with start(keeper, "sh", "-c", "exit 5") as another:
            assert await another.wait() == 5
        assert keeper.pid != first
        assert len(carrying(token)) == FAMILY_SIZE
        child.close_stdin()
        assert await child.wait() == 0
    assert carrying(token) == []


@pytest.mark.slow
async def test_a_host_that_adopts_sees_to_what_a_killed_keeper_and_subreaper_leave() -> None:
    with running_host("subreaper", "stubborn", "respawn") as (host, token, (keeper, subreaper, _)):
        os.kill(keeper, signal.SIGKILL)
        os.kill(subreaper, signal.SIGKILL)
        await until(lambda: not carrying_below(host, token), 1)
        assert host.stdout is not None
        assert await trio.to_thread.run_sync(host.stdout.readline) == b"another 0\n"
        await until(lambda: "Z" not in states_below(host.pid).values(), 1)
        assert host.poll() is None


def carrying_below(host: subprocess.Popen[bytes], token: str) -> list[int]:
    return [pid for pid in carrying(token) if pid != host.pid]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("stubborn",)], ids=["plain", "stubborn"])
async def test_nothing_outlives_a_killed_host(words: tuple[str, ...]) -> None:
    with running_host(*words) as (host, token, numbers):
        assert len(carrying_below(host, token)) == FAMILY_SIZE
        host.kill()
        host.wait()
        assert await until(lambda: not carrying(token) and not any(map(is_running, numbers)), 2) < 2


@pytest.mark.slow
async def test_nothing_outlives_a_host_killed_with_its_whole_group() -> None:
    with running_host("stubborn") as (host, token, numbers):
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        assert await until(lambda: not carrying(token) and not any(map(is_running, numbers)), 2) < 2


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("stubborn",)], ids=["plain", "stubborn"])
@pytest.mark.parametrize("stopped", [("keeper",), ("subreaper",), ("keeper", "subreaper")], ids=" and ".join)
async def test_nothing_outlives_a_killed_host_whose_helpers_were_stopped(
    stopped: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with running_host(*words) as (host, token, numbers):
        keeper, subreaper, _ = numbers
        for pid in (number for name, number in (("keeper", keeper), ("subreaper", subreaper)) if name in stopped):
            os.kill(pid, signal.SIGSTOP)
        host.kill()
        host.wait()
        await until(lambda: not carrying(token) and not any(map(is_running, numbers)), 2.5)


@pytest.mark.slow
async def test_nothing_outlives_a_killed_host_whose_keeper_is_stopped_after_its_end() -> None:
    with running_host("stubborn") as (host, token, numbers):
        host.kill()
        host.wait()
        os.kill(numbers[0], signal.SIGSTOP)  # its subreaper waits for KILL_GRACE, and ends after that
        await until(lambda: not carrying(token) and not any(map(is_running, numbers)), 2.5)


@pytest.mark.slow
async def test_a_keeper_that_was_stopped_starts_the_next_program(keeper: Keeper) -> None:
    os.kill(keeper.pid, signal.SIGSTOP)
    async with start(keeper, "sh", "-c", "exit 5") as child:
        assert await child.wait() == 5


@pytest.mark.slow
async def test_closing_a_keeper_that_was_stopped_takes_no_longer() -> None:
    async with open_keeper() as keeper:
        os.kill(keeper.pid, signal.SIGSTOP)
        process = keeper._helper.process
    assert process.returncode == 0  # it ended by itself, not by SIGKILL


@pytest.mark.slow
async def test_keeper_and_subreapers_sleep_through_the_signals_of_a_terminal() -> None:
    with running_host() as (host, token, (keeper, subreaper, _)):
        for pid in (keeper, subreaper):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(pid, number)
        await trio.sleep(0.1)  # the time a signal would need to end them
        assert is_running(keeper)
        assert is_running(subreaper)
        assert len(carrying_below(host, token)) == FAMILY_SIZE


# The environment


def test_only_what_a_server_needs_is_passed_on() -> None:
    base = {
        "HOME": "/home/me",
        "PATH": "/bin",
        "LC_TIME": "C",
        "https_proxy": "http://proxy:3128",
        "COLONNADE_STATE": "/state",
        "GITHUB_TOKEN": "secret",
        "LD_PRELOAD": "evil.so",
        "PYTHONPATH": "/ours",
    }
    assert child_environment({}, base) == {
        "HOME": "/home/me",
        "PATH": "/bin",
        "LC_TIME": "C",
        "https_proxy": "http://proxy:3128",
    }


def test_what_is_configured_wins_whatever_its_name() -> None:
    own = {"PATH": "/opt/bin", "GITHUB_TOKEN": "mine"}
    assert child_environment(own, {"PATH": "/bin", "GITHUB_TOKEN": "ours", "TERM": "xterm"}) == {**own, "TERM": "xterm"}


def test_shell_functions_are_never_passed_on() -> None:
    assert child_environment({}, {"TERM": "() { :; }; echo gotcha", "LANG": "C"}) == {"LANG": "C"}


def test_nothing_of_this_module_needs_linux_to_be_imported() -> None:
    """Without prctl the keeper falls back on process groups; importing it must not fail there."""
    code = "import sys; sys.platform = 'darwin'; import host.wire.keeper as k; assert not k.become_subreaper()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
