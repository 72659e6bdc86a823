"""Containers of servers are removed: by a `docker` whose containers are processes of this test."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from config import Secret, StdioServer
from host.journal import Event, Journal, VariablesHandedOn
from host.upstream import containers
from host.upstream.connect import CannotStart, open_link
from host.upstream.containers import Containers
from host.wire.process import SpawnError, open_keeper
from tests.kit.container_daemon import Daemon
from tests.real.running import serving, until, write_config

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.close()


@asynccontextmanager
async def run(
    folder: Path, words: list[str], env: Mapping[str, str], code: str = STUBBORN
) -> AsyncIterator[tuple[str, ...]]:
    """A server `docker run`, for the block; the files in the directory meanwhile."""
    where = folder / "containers"
    where.mkdir(exist_ok=True)
    argv = ["docker", *words, "image", sys.executable, "-c", code]
    async with (
        open_keeper() as keeper,
        Containers(where, keeper).removing(argv, env, str(folder)) as started,
        keeper.open_child(started, env=env, cwd=str(folder), grace=0.1),
    ):
        yield tuple(sorted(each.name for each in where.iterdir()))


def left(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / "containers").iterdir())


@pytest.mark.parametrize("words", [["run"], ["run", "-i", "--rm"]])
async def test_a_container_ends_with_its_server(tmp_path: Path, daemon: Daemon, words: list[str]) -> None:
    """Also one that ignores the end of its input and its signals, and whose client was killed."""
    async with run(tmp_path, words, daemon.environment):
        await daemon.until_running()
        (process,) = daemon.running.values()
        assert len(left(tmp_path)) == 2
        assert process.poll() is None
    assert not daemon.running
    assert process.returncode == -signal.SIGKILL
    assert left(tmp_path) == []


@pytest.mark.slow
async def test_one_that_has_ended_leaves_nothing(tmp_path: Path, daemon: Daemon) -> None:
    async with run(tmp_path, ["run", "-i"], daemon.environment, "pass"):
        await daemon.until_running()
        daemon.running.clear()  # as --rm does
    assert left(tmp_path) == []


@pytest.mark.slow
async def test_what_a_killed_host_left_is_removed_at_the_next_start(tmp_path: Path, daemon: Daemon) -> None:
    """But no container of a host that lives, and none of another client program."""
    sleep = [sys.executable, "-c", STUBBORN]
    ids = [digit * 64 for digit in "abc"]
    for id in ids:
        threading.Thread(target=daemon.run, args=(id, sleep, [os.dup(0), os.dup(1)]), daemon=True).start()
    await daemon.until_running(3)
    async with run(tmp_path, ["run", "-i"], daemon.environment) as files:
        key = files[0].partition("-")[0]
    notes = [tmp_path / "containers" / f"{each}-{'0' * 15}{at}" for at, each in enumerate([key, key, "9" * 16])]
    for id, note in zip(ids, notes, strict=True):
        note.with_name(f"{note.name}.cid").write_text(id)
        note.write_text(f"{note}.cid")
    with notes[1].open() as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        async with run(tmp_path, ["run", "-i"], daemon.environment):
            await daemon.until_running(3)
            assert ids[0] not in daemon.running
    assert sorted(daemon.running) == ids[1:]
    assert left(tmp_path) == sorted(name for note in notes[1:] for name in (note.name, f"{note.name}.cid"))


@pytest.mark.slow
async def test_their_own_file_is_read(tmp_path: Path, daemon: Daemon) -> None:
    async with run(tmp_path, ["run", "--cidfile", "theirs"], daemon.environment):
        await daemon.until_running()
        assert (tmp_path / "theirs").exists()
    assert not daemon.running
    assert not (tmp_path / "theirs").exists(), "the next start would be refused"


@pytest.mark.slow
async def test_a_file_that_was_there_names_a_container_of_others(tmp_path: Path, daemon: Daemon) -> None:
    async with run(tmp_path, ["run"], daemon.environment):
        await daemon.until_running()
        (id,) = daemon.running
        (tmp_path / "theirs").write_text(id)
        async with run(tmp_path, ["run", "--cidfile", "theirs"], daemon.environment):
            pass
        assert list(daemon.running) == [id]
        assert (tmp_path / "theirs").read_text() == id


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "place", ["fifo", "link", "folder", "--help", "a" * 65, "A" * 64, "a" * 64 + "\n-f", "", "ü" * 20, b"\xff" * 20]
)
async def test_what_is_no_file_with_an_id_removes_nothing(tmp_path: Path, daemon: Daemon, place: str | bytes) -> None:
    """A container that may write where their file is puts something else there. Nothing waits for a pipe."""
    async with run(tmp_path, ["run"], daemon.environment):
        await daemon.until_running()
        (id,) = daemon.running
        async with run(tmp_path, ["run", "--cidfile", "theirs"], daemon.environment):
            await daemon.until_running(2)
            file = tmp_path / "theirs"
            file.unlink()
            (tmp_path / "other").write_text(id)
            if place == "fifo":
                os.mkfifo(file)
            elif place == "link":
                file.symlink_to("other")
            elif place == "folder":
                file.mkdir()
            else:
                file.write_bytes(place if isinstance(place, bytes) else place.encode())
        assert len(daemon.running) == 2, "what it put there names nothing"
        assert (tmp_path / "other").read_text() == id


@pytest.mark.slow
async def test_a_note_that_another_start_removed_names_nothing(
    tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file may have the id of a container that runs, once the note that named it is gone."""
    async with run(tmp_path, ["run", "--cidfile", "theirs"], daemon.environment) as files:
        await daemon.until_running()
        (id,) = daemon.running
        (note,) = [tmp_path / "containers" / name for name in files]
        late = note.with_name(f"{note.name[:-1]}{'1' if note.name[-1] == '0' else '0'}")
        late.write_text(str(tmp_path / "theirs"))
        open_file = os.open

        def open_late(path: str | Path, flags: int, mode: int = 0o777) -> int:
            opened = open_file(path, flags, mode)
            if path == late:
                late.unlink()
            return opened

        monkeypatch.setattr(os, "open", open_late)
        async with run(tmp_path, ["run"], daemon.environment):
            await daemon.until_running(2)
        assert list(daemon.running) == [id]


@pytest.mark.slow
async def test_what_cannot_be_removed_is_kept_for_the_next_start(tmp_path: Path, daemon: Daemon) -> None:
    async with run(tmp_path, ["run"], daemon.environment):
        await daemon.until_running()
        (id,) = daemon.running
        os.rename(tmp_path / "d.sock", tmp_path / "away.sock")
    assert len(left(tmp_path)) == 2
    assert list(daemon.running) == [id]
    os.rename(tmp_path / "away.sock", tmp_path / "d.sock")
    async with run(tmp_path, ["run"], daemon.environment):
        await daemon.until_running()
        assert id not in daemon.running
    assert left(tmp_path) == []


@pytest.fixture
def snap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only docker on PATH is a snap."""
    monkeypatch.setattr(containers, "_SNAP", os.path.realpath("/bin/sh"))
    (tmp_path / "docker").symlink_to("/bin/sh")


@pytest.mark.usefixtures("snap")
async def test_other_commands_are_left_as_they_are(tmp_path: Path) -> None:
    async with open_keeper() as keeper:
        made = Containers(tmp_path, keeper)
        for argv in (["python3", "x"], ["docker", "run", "x"]):
            async with made.removing(argv, {"PATH": str(tmp_path)}, "/") as words:
                assert words == argv
        with pytest.raises(SpawnError, match="detached"):
            async with made.removing(["docker", "run", "-d", "x"], {}, "/"):
                pass
        with pytest.raises(SpawnError, match="the id of its container cannot be kept"):
            async with Containers(tmp_path / "none", keeper).removing(["docker", "run", "x"], {}, "/"):
                pass


async def test_a_note_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk each try to start the server would leave a file and a descriptor."""
    write = os.write

    def opened() -> list[str]:
        links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return [place for place in map(os.readlink, links) if place.startswith(str(tmp_path))]

    def fail_for_notes(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    (tmp_path / "containers").mkdir()
    async with open_keeper() as keeper:
        monkeypatch.setattr(os, "write", fail_for_notes)
        with pytest.raises(SpawnError, match=r"the id of its container cannot be kept \(No space left on device\)"):
            async with Containers(tmp_path / "containers", keeper).removing(["docker", "run", "x"], {}, "/"):
                pass
        monkeypatch.undo()
    assert opened() == left(tmp_path) == []


async def test_what_people_are_told(tmp_path: Path) -> None:
    """Which variables the client program got, and why a command that detaches is not started."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    words = ("docker", "run", "-d", "x")
    variables = {"DOCKER_HOST": Secret("tcp://a"), "DOCKER_CONTEXT": None}
    spec = StdioServer(id="a", command=tuple(map(Secret, words)), cwd=tmp_path, variables=variables)
    async with open_keeper() as keeper:
        made = Containers(tmp_path, keeper)
        with pytest.raises(CannotStart, match=r"detaches from its container.*remove -d") as caught:
            async with open_link(spec, http_sse=False, keeper=keeper, journal=journal, containers=made):
                pass
    assert caught.value.lasting
    assert events == [VariablesHandedOn("a", ("DOCKER_HOST",))]
    assert str(events[0]) == "a: its program gets DOCKER_HOST, by which it finds its service"


@pytest.mark.slow
def test_a_host_that_was_killed_leaves_no_container_to_the_next(
    tmp_path: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole host is killed, started again, and ended."""
    for name, value in daemon.environment.items():
        monkeypatch.setenv(name, value)
    server = "import sys, time\nfor line in sys.stdin: pass\nwhile True: time.sleep(1)"
    file = write_config(tmp_path, {"a": {"command": ["docker", "run", "-i", "image", sys.executable, "-c", server]}})
    with serving(file, stop=False) as host:
        until(lambda: daemon.running, "a container runs")
        os.kill(host.process.pid, signal.SIGKILL)
        host.process.wait()
    (id,) = daemon.running
    with serving(file):
        until(lambda: daemon.running and id not in daemon.running, "another container runs alone")
    assert not daemon.running
    assert list((tmp_path / "state" / "containers").iterdir()) == []
