"""A confined program from its start to its end: real processes, real clock. What it cannot do is in tests/sandbox."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio

from config.sandbox import Means, Network, Sandbox, SandboxFiles
from host.sandbox import landlock
from host.wire.keeper import children_of
from host.wire.process import NotConfined, SpawnError
from tests.host.sandbox.kit import INTERFACES, PYTHON, confined, outcome_of, said_by
from tests.host.wire.processes import carrying, new_token, until
from tests.kit.kernel import needs_bubblewrap, needs_landlock_alone, needs_namespaces
from tests.kit.processes import is_running
from tests.sandbox.means import BUBBLEWRAP, EACH, NAMESPACES, source_with

pytestmark = pytest.mark.disk

OURS = pytest.param(NAMESPACES, marks=needs_namespaces)
OF_BUBBLEWRAP = pytest.param(BUBBLEWRAP, marks=[needs_bubblewrap, pytest.mark.slow])
either_makes_them = pytest.mark.parametrize("maker", [OURS, OF_BUBBLEWRAP], indirect=True)
ROOT = Path(__file__).parents[3]
INSIDE = """
import sys, trio
from pathlib import Path
from config.sandbox import Means, Network, Sandbox
from tests.host.sandbox.kit import outcome_of

async def main():
    less = Sandbox(accept=Means.LANDLOCK)
    for sandbox in (Sandbox(), less, Sandbox(accept=Means.LANDLOCK, network=Network.LOOPBACK)):
        outcome = await outcome_of(Path(sys.argv[1]), "sleep", "9", sandbox=sandbox)
        print(getattr(outcome, "step", outcome))

trio.run(main)
"""


@pytest.fixture(autouse=True, params=[OURS])
def maker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The one that makes the namespaces. Bubblewrap does where ours are refused."""
    refusing = source_with(frozenset(EACH) - {NAMESPACES}, tmp_path_factory.mktemp("refusing"))
    with refusing if request.param == BUBBLEWRAP else nullcontext():
        yield request.param


async def test_it_ends_as_its_program_ends(tmp_path: Path) -> None:
    assert await said_by(tmp_path, *PYTHON, "print('hello'); raise SystemExit(7)") == (7, "hello")
    assert await said_by(tmp_path, *PYTHON, "import os; os.kill(os.getpid(), 9)") == (-signal.SIGKILL, "")
    assert await said_by(tmp_path, *PYTHON, "import os; os.kill(os.getpid(), 15)") == (-signal.SIGTERM, "")
    assert (await said_by(tmp_path, *PYTHON, "import os; os.abort()"))[0] == -signal.SIGABRT


async def test_its_means_are_told(tmp_path: Path) -> None:
    async with confined(tmp_path, "sleep", "9") as child:
        held, _, lacking = child.means.partition("; not by ")
        assert held.split(", ")[0] == "namespaces"
        known = landlock.version()
        all_means = {"namespaces", f"Landlock {known}" if known else "Landlock", "seccomp", "a control group"}
        assert {*held.split(", "), *filter(None, lacking.split(", "))} == all_means


async def test_a_program_that_is_not_there_is_no_matter_of_the_sandbox(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, "/nowhere/x")
    assert (type(outcome), str(outcome)) == (SpawnError, "not found")


@either_makes_them
async def test_a_relative_path_beside_its_folder_works(tmp_path: Path) -> None:
    """It sees nothing of the folder that the path begins in."""
    for name in ("state", "work", "served"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "secret").touch()
    (tmp_path / "served" / "serve.py").write_text("import os; print(os.getcwd(), os.listdir())")
    said = await said_by(tmp_path / "state", *PYTHON[:3], "../served/serve.py", cwd=tmp_path / "work")
    assert said == (0, f"{tmp_path}/work []")


@either_makes_them
async def test_it_is_terminated_and_then_killed(tmp_path: Path) -> None:
    """A signal to bubblewrap itself would kill the program at once."""
    handles = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); time.sleep(60)"
    )
    async with confined(tmp_path, *PYTHON, handles, grace=1) as child:
        await child.stdout.receive_some()
    assert child.returncode == 5
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    async with confined(tmp_path, *PYTHON, ignores) as child:
        await child.stdout.receive_some()
    assert child.returncode == -signal.SIGKILL


FORKS = "import os, sys, time\nif os.fork() == 0:\n os.setsid()\n os.fork()\nprint('up', flush=True)\ntime.sleep(60)"


@either_makes_them
@pytest.mark.parametrize("victim", ["outer", "init"])
async def test_nothing_is_left_when_a_process_around_it_is_killed(tmp_path: Path, maker: str, victim: str) -> None:
    """Of its init, bubblewrap says that as a shell does."""
    status = 128 + signal.SIGKILL if (maker, victim) == (BUBBLEWRAP, "init") else -signal.SIGKILL
    token = new_token()
    async with confined(tmp_path, *PYTHON, FORKS, token) as child:
        await child.stdout.receive_some()
        os.kill(child.pid if victim == "outer" else children_of(child.pid)[0], signal.SIGKILL)
        assert await child.wait() == status
        await until(lambda: not carrying(token), 3)
    assert not is_running(child.pid)


@either_makes_them
async def test_the_state_stays_hidden_and_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "w" / "above"
    folder.mkdir(parents=True)
    sandbox = Sandbox(SandboxFiles(write=(str(folder.parent),)))
    code = f"ls {folder}/state; ls {folder}/state/configs/*/; touch {folder}/state/x; mv {folder} {folder}2"
    status, said = await said_by(folder, "sh", "-c", code, sandbox=sandbox)
    assert (status, said.split()) == (1, ["configs", "sandbox"])
    assert (folder / "state" / "run").is_dir()
    assert not (folder / "state" / "x").exists()


async def test_nothing_is_left_when_its_program_ends(tmp_path: Path) -> None:
    token = new_token()
    code = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(60)\n os._exit(0)\nos.wait()"
    )
    status, _ = await said_by(tmp_path, *PYTHON, code, token)
    assert status == 0
    assert not carrying(token)


async def test_what_it_writes_at_home_is_there_the_next_time(tmp_path: Path) -> None:
    await said_by(tmp_path, "sh", "-c", "echo kept > ~/file; echo kept > $TMPDIR/file; echo lost > /tmp/file")
    assert await said_by(tmp_path, "sh", "-c", "cat ~/file $TMPDIR/file; ls /tmp/file || exit 3") == (3, "kept\nkept")


async def test_sockets_in_its_temporary_folder(tmp_path: Path) -> None:
    """Their paths have 107 characters at most, and that of the state directory alone may have as many."""
    (state := tmp_path / ("long" * 20)).mkdir()
    code = "import os, socket; socket.socket(socket.AF_UNIX).bind(os.environ['TMPDIR'] + '/' + 'x' * 80)"
    assert await said_by(state, *PYTHON, code) == (0, "")


async def test_what_it_may_read_and_write(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "w").mkdir()
    (tmp_path / "r" / "in").write_text("text")
    sandbox = Sandbox(SandboxFiles((str(tmp_path / "r"),), (str(tmp_path / "w"),)))
    code = f"cat {tmp_path}/r/in > {tmp_path}/w/out; echo x > {tmp_path}/r/new || exit 4"
    assert await said_by(tmp_path, "sh", "-c", code, sandbox=sandbox) == (4, "")
    assert (tmp_path / "w" / "out").read_text() == "text"


async def test_the_state_stays_hidden_in_what_it_may_read(tmp_path: Path) -> None:
    """Its own folders in there are still its own."""
    sandbox = Sandbox(SandboxFiles(read=(str(tmp_path),)))
    code = f"ls {tmp_path}/state; ls {tmp_path}/state/configs/*/; touch ~/x && echo home"
    status, said = await said_by(tmp_path, "sh", "-c", code, sandbox=sandbox)
    assert (status, said.split()) == (0, ["configs", "sandbox", "home"])
    assert (tmp_path / "state" / "run").is_dir()


@either_makes_them
async def test_a_loopback_of_its_own(tmp_path: Path) -> None:
    sandbox = Sandbox(network=Network.LOOPBACK)
    assert await said_by(tmp_path, *PYTHON, INTERFACES, sandbox=sandbox) == (0, "1")


async def test_the_network_of_the_machine_if_it_says_so(tmp_path: Path) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(b"there")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        port = listener.socket.getsockname()[1]
        code = f"import socket; print(socket.create_connection(('127.0.0.1', {port}), 3).recv(9).decode())"
        assert await said_by(tmp_path, *PYTHON, code, sandbox=Sandbox(network=Network.ALL)) == (0, "there")
        nursery.cancel_scope.cancel()


async def test_nothing_is_started_if_a_step_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "started"
    outcome = await outcome_of(tmp_path, "touch", str(out), own=[str(tmp_path / "nowhere")])
    assert isinstance(outcome, NotConfined)
    assert outcome.step == f'mounts of "{tmp_path}/nowhere"'
    assert not out.exists()


async def test_a_share_of_the_processors_is_had_or_is_why_it_does_not_start(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, "true", sandbox=Sandbox(cpu=1.5))
    if isinstance(outcome, NotConfined):
        assert outcome.step == "a share of the processors"
    else:
        assert "a control group" in str(outcome).partition(";")[0]


async def test_the_size_of_temporary_files(tmp_path: Path) -> None:
    code = "for each in /tmp /dev/shm; do head -c 3000000 /dev/zero > $each/x; stat -c %s $each/x; done 2>/dev/null"
    _, said = await said_by(tmp_path, "sh", "-c", code, sandbox=Sandbox(temporary=2 * 1024**2))
    assert said.split() == [str(2 * 1024**2)] * 2


@needs_landlock_alone
async def test_where_the_kernel_refuses_namespaces(tmp_path: Path) -> None:
    """A confined program gets none, so this is what a host meets there. With `accept` it takes Landlock alone, which
    has no network of its own."""
    known = landlock.version()
    sandbox = Sandbox(SandboxFiles(read=(str(ROOT),), write=(str(tmp_path),)), processes=200)
    (tmp_path / "inner").mkdir()
    words = (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{INSIDE}", str(tmp_path / "inner"))
    _, said = await said_by(tmp_path, *words, sandbox=sandbox)
    first, second, third = said.splitlines()
    assert (first, third) == ("user namespaces", "a network of its own")
    assert second.startswith(f"Landlock {known}")
    assert "; not by namespaces" in second


@needs_landlock_alone
@pytest.mark.parametrize("named", ["", "state", "state/run"])
async def test_files_around_the_state_are_not_for_landlock_alone(tmp_path: Path, named: str) -> None:
    (tmp_path / "state" / "run").mkdir(parents=True, mode=0o700)
    (tmp_path / "state").chmod(0o700)
    sandbox = Sandbox(SandboxFiles(read=(str(tmp_path / named),)), accept=Means.LANDLOCK)
    outcome = await outcome_of(tmp_path, "true", sandbox=sandbox, own=[str(tmp_path / "nowhere")])  # no namespaces then
    assert isinstance(outcome, NotConfined)
    assert outcome.step == "a hidden state directory"
