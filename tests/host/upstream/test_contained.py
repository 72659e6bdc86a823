"""Servers in containers: what the client program is asked and started with, and the state of a server if it has no
container for it. The clients are those of `tests/kit/container_daemon.py`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trio

from config import Secret, StdioServer
from config.sandbox import ContainerClient, Sandbox, SandboxFiles
from host.journal import Event, Journal, ServerConfined
from host.storage.directory import ConfigDirectory, State, open_state
from host.upstream import contained
from host.upstream.confinement import CannotConfine
from host.upstream.connect import CannotStart, open_link
from host.upstream.contained import remedy_for
from host.upstream.containers import Containers
from host.wire.link import Link
from host.wire.process import Keeper, open_keeper
from tests.kit.container_daemon import INFO, Daemon
from tests.real.running import serving, until, write_config

ECHO = "import os, sys\nprint(os.environ['TOKEN'], file=sys.stderr, flush=True)\nfor line in sys.stdin: print(line)"
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)"


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


@pytest.fixture
def state(tmp_path: Path) -> State:
    return open_state(tmp_path / "state")


def server(daemon: Daemon | None, code: str = "pass", **keys: Any) -> StdioServer:
    given = {"with_": ContainerClient.DOCKER, "image": "image", **keys}
    return StdioServer(
        id="a server",
        command=tuple(map(Secret, (sys.executable, "-c", code))),
        cwd=Path("/"),
        env=MappingProxyType({"TOKEN": Secret("sesame")}),
        variables={"DOCKER_HOST": Secret(daemon.environment["DOCKER_HOST"])} if daemon else {},
        sandbox=Sandbox(**given),
    )


def opening(
    spec: StdioServer, keeper: Keeper, directory: ConfigDirectory, journal: Journal | None = None
) -> AbstractAsyncContextManager[Link]:
    made = Containers(directory.state / "containers", keeper)
    return open_link(
        spec, http_sse=False, keeper=keeper, journal=journal or Journal(), containers=made, directory=directory
    )


@pytest.mark.disk
async def test_it_is_started_and_removed(tmp_path: Path, daemon: Daemon, state: State) -> None:
    """It ignores the end of its input, and a daemon sends it no signal."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    directory = state.for_config(tmp_path / "c.yaml")
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    files = SandboxFiles(read=(str(tmp_path / "link"),))
    async with open_keeper() as keeper, opening(server(daemon, STUBBORN, files=files), keeper, directory, journal):
        await daemon.until_running()
        (name,) = daemon.running
        (note,) = state.containers.iterdir()
        assert note.read_text() == name
    asked, seen, run, removed = daemon.orders
    assert (asked[0], seen[:2], removed) == ("info", ["image", "inspect"], ["rm", "--force", "--volumes", name])
    assert name.startswith("colonnade-a-server-")
    assert f"--mount=type=bind,source={tmp_path}/data,target={tmp_path}/link,readonly,bind-nonrecursive" in run
    home = directory.sandbox_of("a server") / "home"
    assert f"--mount=type=bind,source={home},target={home}" in run
    assert f"--env=HOME={home}" in run
    assert "--env=TMPDIR=/own-tmp" in run
    assert run[-4:] == [f"--entrypoint={sys.executable}", "image", "-c", STUBBORN]
    assert not daemon.running
    assert list(state.containers.iterdir()) == []
    (told,) = (each for each in events if isinstance(each, ServerConfined))
    assert told.means == "a container of docker 0 (stand-in), limits by control groups"


@pytest.mark.slow
async def test_its_secrets_reach_it_and_stand_in_no_command(tmp_path: Path, daemon: Daemon, state: State) -> None:
    code = "import os, time\nopen(os.environ['HOME'] + '/told', 'w').write(os.environ['TOKEN'])\ntime.sleep(99)"
    directory = state.for_config(tmp_path / "c.yaml")
    async with open_keeper() as keeper, opening(server(daemon, code), keeper, directory):
        told = directory.sandbox_of("a server") / "home" / "told"
        with trio.fail_after(10):
            while not told.exists() or not told.read_text():  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.01)
        assert told.read_text() == "sesame"
    assert not any("sesame" in word for order in daemon.orders for word in order)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("info", "keys", "said"),
    [
        (INFO, {"image": "other"}, "(its image: it is not there): docker pull other, or build it"),
        (
            INFO,
            {"with_": ContainerClient.PODMAN, "image": "other"},
            "podman pull other, or build it; Colonnade downloads none",
        ),
        ({"ServerErrors": ["no daemon"]}, {}, "(its daemon: no daemon): start it, or have an administrator"),
        ({}, {}, "(its daemon: it cannot be reached): start it"),
        ({**INFO, "OSType": "windows"}, {}, "(Linux: its containers are of another system)"),
        ([], {}, "(docker info: its answer is none that is known here): make it work for your user in a terminal"),
        ({**INFO, "PidsLimit": False}, {}, "(a limit of processes: docker has no control group for it): boot with"),
        (INFO, {"files": SandboxFiles(read=("/nowhere/x",))}, 'the path "/nowhere/x" of its sandbox: it is not there'),
    ],
)
async def test_what_cannot_be_had_is_why_it_does_not_start(
    tmp_path: Path, daemon: Daemon, state: State, info: Any, keys: dict[str, Any], said: str
) -> None:
    daemon.info = info
    spec = server(daemon, **keys)
    async with open_keeper() as keeper:
        with pytest.raises(CannotConfine) as caught:
            async with opening(spec, keeper, state.for_config(tmp_path / "c.yaml")):
                raise AssertionError
    assert said in str(caught.value)
    assert caught.value.lasting == ("its daemon" not in said), "a daemon may come by itself"
    assert all(order[0] != "run" for order in daemon.orders)


@pytest.mark.disk
async def test_the_state_of_the_host_is_hidden(tmp_path: Path, daemon: Daemon, state: State) -> None:
    """In what may be read. What is above it may not be renamed, or the next start would not hide it."""
    directory = state.for_config(tmp_path / "c.yaml")
    above = SandboxFiles(read=(str(tmp_path),))
    async with open_keeper() as keeper:
        async with opening(server(daemon, files=above), keeper, directory):
            await daemon.until_running()
        with pytest.raises(CannotConfine, match="a hidden state directory: it is in a folder that may be written"):
            async with opening(server(daemon, files=SandboxFiles(write=above.read)), keeper, directory):
                raise AssertionError
    assert f"--mount=type=tmpfs,target={state.path},tmpfs-size=65536" in next(
        each for each in daemon.orders if each[0] == "run"
    )


async def test_a_client_program_that_is_not_there(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with open_keeper() as keeper:
        with pytest.raises(CannotConfine, match=r"\(docker: not found on PATH\): install it, or") as caught:
            async with opening(server(None), keeper, state.for_config(tmp_path / "c.yaml")):
                raise AssertionError
    assert caught.value.lasting


async def test_a_folder_that_is_not_there(tmp_path: Path, daemon: Daemon, state: State) -> None:
    spec = replace(server(daemon), cwd=tmp_path / "gone")
    async with open_keeper() as keeper:
        with pytest.raises(CannotStart, match=r'"docker" cannot be started in the folder ".*gone": make'):
            async with opening(spec, keeper, state.for_config(tmp_path / "c.yaml")):
                raise AssertionError


async def test_another_system(tmp_path: Path, daemon: Daemon, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_keeper() as keeper:
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(CannotConfine, match=r"\(Linux: .*\): a sandbox is for Linux alone: write sandbox: off"):
            async with opening(server(daemon), keeper, state.for_config(tmp_path / "c.yaml")):
                raise AssertionError
    assert daemon.orders == []


@pytest.mark.slow
async def test_a_daemon_that_hangs(
    tmp_path: Path, daemon: Daemon, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contained, "ANSWER_TIMEOUT", 0.3)
    (daemon.bin / "docker").write_text("#!/bin/sh\nsleep 99\n")
    async with open_keeper() as keeper:
        with pytest.raises(CannotConfine, match=r"\(its daemon: it does not answer\)"):
            async with opening(server(daemon), keeper, state.for_config(tmp_path / "c.yaml")):
                raise AssertionError


@pytest.mark.slow
async def test_a_client_program_that_fails(tmp_path: Path, daemon: Daemon, state: State) -> None:
    (daemon.bin / "docker").write_text("#!/bin/sh\necho 'Error: cannot set up namespace' >&2; exit 125\n")
    async with open_keeper() as keeper:
        with pytest.raises(CannotConfine, match=r"\(docker info: Error: cannot set up namespace\): make it work"):
            async with opening(server(daemon), keeper, state.for_config(tmp_path / "c.yaml")):
                raise AssertionError


async def test_a_container_of_podman_makes_no_namespaces(tmp_path: Path, daemon: Daemon, state: State) -> None:
    """Its own filter lets containers make namespaces of users."""
    own = tmp_path / "seccomp.json"
    security = {"rootless": True, "seccompEnabled": True, "seccompProfilePath": str(own)}
    daemon.info = {"host": {"cgroupVersion": "v1", "security": security}, "version": {"Version": "4.3.1"}}
    spec = server(daemon, with_=ContainerClient.PODMAN)
    directory = state.for_config(tmp_path / "c.yaml")
    async with open_keeper() as keeper:
        with pytest.raises(CannotConfine, match=r"\(a filter of system calls: its file cannot be read\)"):
            async with opening(spec, keeper, directory):
                raise AssertionError
        own.write_text('{"syscalls": [{"names": ["unshare"], "action": "SCMP_ACT_ALLOW"}]}')
        async with opening(spec, keeper, directory):
            await daemon.until_running()
    made = directory.sandbox_of("a server") / "seccomp.json"
    assert "unshare" not in made.read_text()
    (run,) = (each for each in daemon.orders if each[0] == "run")
    assert f"--security-opt=seccomp={made}" in run


def test_refusals_whose_remedy_is_known() -> None:
    assert "runc" in remedy_for("Error: OCI runtime error: crun: cgroups in hybrid mode not supported")
    assert remedy_for("Error: no such file") == ""


@pytest.mark.slow
def test_the_keeper_removes_what_a_killed_host_left(tmp_path: Path, daemon: Daemon) -> None:
    """The host is not started again for that."""
    code = "import sys, time\nfor line in sys.stdin: pass\nwhile True: time.sleep(1)"
    sandbox = {"with": "docker", "image": "image"}
    file = write_config(tmp_path, {"a": {"command": [sys.executable, "-c", code], "sandbox": sandbox}})
    with serving(file, stop=False) as host:
        until(lambda: daemon.running, "a container runs")
        os.kill(host.process.pid, signal.SIGKILL)
        host.process.wait()
        until(lambda: not daemon.running, "it is removed")
    assert daemon.orders[-1][0] == "rm"
    with serving(file):
        until(lambda: daemon.running, "another container runs")
    assert not daemon.running
    assert list((tmp_path / "state" / "containers").iterdir()) == []
