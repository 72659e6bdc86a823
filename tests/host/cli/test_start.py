"""The console script before and after there is a host: signals that come while the program is being loaded, and while
Python takes itself down."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.real.running import COLONNADE, ROOT, beside, until, write_config

STARTS = int(os.environ.get("COLONNADE_STARTS", "6"))
"""Starts of each kind; all kinds run at the same time."""
OFF = {"off": {"command": "nothing", "disabled": True}}
LIMIT = 60.0
"""Seconds for the end of a process on a busy machine."""


def is_loading(pid: int) -> bool:
    """Whether the process is past Python's own start and loads what Colonnade needs."""
    return "pydantic_core" in Path(f"/proc/{pid}/maps").read_text()


def interrupted_start(folder: Path, number: signal.Signals, delay: float, *more: str) -> tuple[int, str]:
    """A host that gets a signal so many seconds after its loading has begun: its exit code and its standard error."""
    folder.mkdir()
    file = write_config(folder, OFF)
    process = subprocess.Popen(
        [COLONNADE, "serve", str(file), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**beside(file), "COLONNADE_DEBUGGABLE": "1"},  # so that its map can be read by whoever runs the tests
    )
    assert process.stdin is not None
    assert process.stderr is not None
    with process:
        try:
            until(lambda: is_loading(process.pid), "it loads", LIMIT)
            threading.Event().wait(delay)
            process.send_signal(number)
            return process.wait(LIMIT), process.stderr.read()
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_a_signal_at_any_time_of_the_start_ends_it_with_status_0_and_without_a_word(tmp_path: Path) -> None:
    """A signal before Python has got as far as the first line of ours is not ours: that is what is waited for."""
    cases = [
        (number, random.uniform(0.0, 1.0), *more)
        for number in (signal.SIGTERM, signal.SIGINT)
        for more in (
            (),
            (
                "--stdio",
                "--own",
            ),
        )
        for _ in range(STARTS)
    ]
    with ThreadPoolExecutor(6) as threads:
        ends = [
            threads.submit(interrupted_start, tmp_path / str(at), number, delay, *more)
            for at, (number, delay, *more) in enumerate(cases)
        ]
    assert [(case, found) for case, end in zip(cases, ends, strict=True) if (found := end.result()) != (0, "")] == []


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


LATE = """
import os, signal
from host.__main__ import main
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.{name}):
        kill(pid, number)
late = Late()  # lives until Python clears its modules, when no handler runs any more
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_while_python_takes_itself_down_changes_nothing(name: str) -> None:
    done = run(LATE.format(name=name), "serve", "--help")
    assert (done.returncode, done.stderr) == (0, "")


SWALLOWING = """
import os, signal, sys
from host.__main__ import main
class Swallowing:
    def find_spec(self, name, path=None, target=None):
        if name == "config.load":
            try:
                os.kill(os.getpid(), signal.{name})
                for _ in range(1000): pass  # handlers run between two instructions
            except BaseException:
                pass
sys.meta_path.insert(0, Swallowing())
main()
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "command", "status"),
    [("SIGTERM", "serve", 0), ("SIGINT", "serve", 0), ("SIGINT", "check", 130), ("SIGINT", "ask", 130)],
)
def test_no_import_swallows_a_signal(name: str, command: str, status: int) -> None:
    """As extension modules do with exceptions that come up in their callbacks."""
    done = run(SWALLOWING.format(name=name), command, "/nowhere/colonnade.yaml")
    assert (done.returncode, done.stderr) == (status, "")


FIRST_IMPORT = """
import os, re, signal, sys  # re: the console script imports it first
class Killing:
    def find_spec(self, name, path=None, target=None):
        ours = {{"host", "host.__main__", "host.cli", "host.cli.start", "host.cli.signals", "host.cli.exit_codes"}}
        if name not in ours and name not in {{"__future__", "atexit"}}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{name})
sys.meta_path.insert(0, Killing())
from host.__main__ import main
main()
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "command", "status"), [("SIGTERM", "serve", 0), ("SIGINT", "serve", 0), ("SIGINT", "check", 130)]
)
def test_the_signal_handlers_are_set_before_anything_else_is_imported(name: str, command: str, status: int) -> None:
    done = run(FIRST_IMPORT.format(name=name), command, "/nowhere/colonnade.yaml")
    assert (done.returncode, done.stderr) == (status, "")


ENDING = """
import atexit, gc
from host.__main__ import main
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # runs after those that are registered later
main()
"""


@pytest.mark.slow
def test_the_garbage_collector_does_not_look_at_what_was_loaded_when_the_process_ends() -> None:
    assert run(ENDING, "--version").stdout.splitlines()[1:] == ["True"]


IN_TRIO = """
import os, signal, trio
from host import __main__, app
async def serve(*_):
    trio.lowlevel.current_trio_token().run_sync_soon(os.kill, os.getpid(), signal.{name})
    await trio.sleep_forever()
app.serve = serve
__main__.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_while_trio_itself_runs_and_no_host_listens_is_no_internal_error(tmp_path: Path, name: str) -> None:
    """Before the host listens for signals and after it has stopped. There an exception of a handler becomes a
    TrioInternalError: status 1 and a traceback."""
    state = str(tmp_path / "state")
    done = run(IN_TRIO.format(name=name), "serve", str(write_config(tmp_path, OFF)), "--state", state)
    assert (done.returncode, done.stderr) == (0, "")
