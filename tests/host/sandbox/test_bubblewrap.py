"""Bubblewrap, where a system refuses our own namespaces and permits them to it: a keeper whose source lacks ours stands
in for such a system. What holds with ours too is in test_confine.py, and what a program cannot do in tests/sandbox.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from config.sandbox import Means, Network, Sandbox, SandboxFiles
from host.sandbox import bubblewrap
from host.sandbox.bubblewrap import has_bubblewrap
from host.wire.process import NotConfined, open_keeper
from tests.host.sandbox.kit import INTERFACES, PYTHON, confined, outcome_of, planned, said_by
from tests.kit.kernel import needs_bubblewrap
from tests.sandbox.means import EACH, NAMESPACES, source_with

pytestmark = [needs_bubblewrap, pytest.mark.slow]


@pytest.fixture(autouse=True)
def own_namespaces_are_refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with source_with(frozenset(EACH) - {NAMESPACES}, tmp_path_factory.mktemp("refusing")):
        yield


async def test_it_holds_a_program_then(tmp_path: Path) -> None:
    async with confined(tmp_path, "sleep", "9") as child:
        assert child.means.startswith("bubblewrap, ")
        assert "Landlock" in child.means.partition("; not by ")[2]


async def test_it_is_tried_before_landlock_alone(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, "sleep", "9", sandbox=Sandbox(accept=Means.LANDLOCK))
    assert str(outcome).startswith("bubblewrap, ")


async def test_where_it_is_refused_too_the_first_reason_is_told(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, "touch", str(tmp_path / "x"), own=["/nowhere"])
    assert isinstance(outcome, NotConfined)
    assert outcome.step == "user namespaces"
    assert not (tmp_path / "x").exists()


async def test_it_ends_as_its_program_ends(tmp_path: Path) -> None:
    """By a signal, it says so as a shell does."""
    assert await said_by(tmp_path, *PYTHON, "print('hello'); raise SystemExit(7)") == (7, "hello")
    assert await said_by(tmp_path, *PYTHON, "import os; os.kill(os.getpid(), 9)") == (128 + signal.SIGKILL, "")


async def test_its_files_and_descriptors(tmp_path: Path) -> None:
    for name in ("r", "w"):
        (tmp_path / name).mkdir()
    (tmp_path / "r" / "in").write_text("text")
    sandbox = Sandbox(SandboxFiles((str(tmp_path / "r"),), (str(tmp_path / "w"),)), temporary=2 * 1024**2)
    code = (
        f"cat {tmp_path}/r/in > {tmp_path}/w/out; echo x > {tmp_path}/r/new && echo written; echo kept > ~/file;"
        "stat -f -c %b /tmp /dev/shm; readlink -f $TMPDIR; hostname; wc -l < /etc/passwd; echo /proc/self/fd/*; ls /"
    )
    status, said = await said_by(tmp_path, "sh", "-c", code, sandbox=sandbox)
    lines = said.splitlines()
    assert status == 0
    assert (tmp_path / "w" / "out").read_text() == "text"
    assert lines[0] == lines[1] == str(2 * 1024**2 // 4096)
    assert lines[2].startswith(f"{tmp_path}/state/")
    assert lines[3:5] == ["sandbox", "1"]
    assert lines[5] == " ".join(f"/proc/self/fd/{number}" for number in range(4))  # 3 is the folder that is listed
    assert {"home", "root", "var", "run", "sys"}.isdisjoint(lines[6:])
    assert await said_by(tmp_path, "sh", "-c", "cat ~/file") == (0, "kept")


@pytest.mark.parametrize(("network", "interfaces"), [(Network.NONE, "1"), (Network.ALL, "")])
async def test_its_network(tmp_path: Path, network: Network, interfaces: str) -> None:
    expected = interfaces or str(len(os.listdir("/sys/class/net")))
    assert await said_by(tmp_path, *PYTHON, INTERFACES, sandbox=Sandbox(network=network)) == (0, expected)


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_it_has_no_variable_of_its_program_which_has_them_all(tmp_path: Path) -> None:
    """Bubblewrap itself is unconfined, and LD_LIBRARY_PATH might name a folder that its program may write."""
    words = (*PYTHON, "import os, sys; print(ascii(os.environb), flush=True); sys.stdin.read()")
    env, plan = await planned(tmp_path, words, None)
    env |= {"LD_LIBRARY_PATH": str(tmp_path), "EMPTY": "", "OTHER": "\N{LATIN SMALL LETTER E WITH ACUTE}\udcff"}
    async with open_keeper() as keeper, keeper.open_child(words, env=env, cwd="/", sandbox=plan) as child:
        text = (await anext(aiter(child.stdout))).decode()
        assert all(f"{os.fsencode(name)!r}: {os.fsencode(value)!r}" in text for name, value in env.items()), text
        assert environment_of(child.pid) == b"PATH=%b\0" % os.fsencode(os.defpath)


async def test_paths_of_any_characters(tmp_path: Path) -> None:
    (folder := tmp_path / "\N{LATIN SMALL LETTER E WITH ACUTE} \N{CJK UNIFIED IDEOGRAPH-65E5}\udcff").mkdir()
    (folder / "x").write_text("there")
    sandbox = Sandbox(SandboxFiles(read=(str(folder),)))
    code = f"print(open({str(folder / 'x')!r}).read())"
    assert await said_by(tmp_path, *PYTHON, code, sandbox=sandbox) == (0, "there")


def test_a_system_that_lacks_it_or_permits_it_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = trio.run(planned, tmp_path, ("sh",), None)
    assert has_bubblewrap(plan)
    assert not has_bubblewrap({**plan, "own": ["/nowhere"]})
    assert not has_bubblewrap({**plan, "network": "named"})
    with monkeypatch.context() as changed:
        changed.setattr(bubblewrap, "_FOLDERS", "/nowhere")
        assert not has_bubblewrap(plan)
    code = f"from host.sandbox.bubblewrap import has_bubblewrap; print(has_bubblewrap({plan!r}))"
    words = [sys.executable, "-m", "tests.sandbox.refusing", "namespaces", sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "False"
