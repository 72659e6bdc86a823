"""The state directory is its owner's alone, and no process loses or tears what another wrote."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from host import state as module
from host.state import BROKEN, Corrupt, Shared, State, StateError, open_state, state_directory

COUNT = """
import sys
from pathlib import Path
from host.state import open_state
state = open_state(Path(sys.argv[1])).for_config(Path("/config.yaml"))
shared = state.file("numbers.json")
for _ in range(int(sys.argv[3])):
    with shared.updating() as update:
        content = update.read() or {}
        content[sys.argv[2]] = content.get(sys.argv[2], 0) + 1
        content["padding"] = "x" * (content[sys.argv[2]] * 37 % 5000)
        update.write(content)
"""


@pytest.fixture
def state(tmp_path: Path) -> State:
    return open_state(tmp_path / "state")


@pytest.fixture
def shared(state: State) -> Shared:
    return state.for_config(Path("/config.yaml")).file("pins.json")


def write(shared: Shared, content: object) -> None:
    with shared.updating() as update:
        update.write(content)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The directory


def test_the_directory_is_the_one_given_else_what_the_environment_says() -> None:
    environment = {"COLONNADE_STATE": "/named", "XDG_STATE_HOME": "/xdg"}
    assert state_directory(Path("/given"), environment) == Path("/given")
    assert state_directory(None, environment) == Path("/named")
    assert state_directory(None, {"XDG_STATE_HOME": "/xdg"}) == Path("/xdg/colonnade")
    home = Path("~/.local/state/colonnade").expanduser()
    assert state_directory(None, {}) == state_directory(None, {"XDG_STATE_HOME": "relative"}) == home


def test_all_of_it_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        state = open_state(tmp_path / "a" / "b")
        kept = state.for_config(Path("/config.yaml"))
        write(kept.file("pins.json"), {})
    finally:
        os.umask(before)
    for path in (state.path, state.configs, state.audit, state.run, kept.path):
        assert mode(path) == 0o700
    files = list(kept.path.iterdir())
    assert {path.name for path in files} == {"file", "lock", "pins.json", "pins.json.seen"}
    assert {mode(path) for path in files} == {0o600}


@pytest.mark.parametrize("bits", [0o755, 0o710, 0o702, 0o777])
def test_a_directory_that_others_can_enter_is_refused_with_what_to_do(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(bits)
    with pytest.raises(StateError, match=f"chmod 700 {path}"):
        open_state(path)
    path.chmod(0o700)
    open_state(path)


def test_a_part_of_it_that_others_can_enter_is_refused(state: State) -> None:
    state.run.chmod(0o755)
    with pytest.raises(StateError, match=r"run is open to others \(mode 0755\)"):
        open_state(state.path)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StateError, match="cannot be used"):
        open_state(tmp_path / "state")
    with pytest.raises(StateError, match="cannot be used"):
        open_state(tmp_path / "state" / "below")


def test_a_link_of_our_own_leads_there(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    open_state(tmp_path / "link")
    assert (tmp_path / "real" / "configs").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give things to others")
def test_what_belongs_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, -1)
    with pytest.raises(StateError, match=r"another user \(12345\)"):
        open_state(tmp_path / "theirs")
    (tmp_path / "ours").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    for path in (tmp_path / "link", tmp_path / "link" / "state"):
        with pytest.raises(StateError, match="a link of another user"):
            open_state(path)


def test_one_configuration_file_has_one_place_whatever_way_it_is_named(tmp_path: Path, state: State) -> None:
    (tmp_path / "c.yaml").write_text("")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "c.yaml")
    (tmp_path / "other.yaml").write_text("")
    places = {state.for_config(tmp_path / name).path for name in ("c.yaml", "link.yaml", "./x/../c.yaml")}
    assert len(places) == 1
    assert (places.pop() / "file").read_text() == f"{tmp_path / 'c.yaml'}\n"
    assert state.for_config(tmp_path / "other.yaml").path != state.for_config(tmp_path / "c.yaml").path


# A shared file


def test_what_was_written_is_read(shared: Shared) -> None:
    assert shared.read() is None
    contents: list[object] = [{"a": [1, 2.5, None, "é\n"]}, [], "text", {}]
    for content in contents:
        write(shared, content)
        assert shared.read() == content
    assert isinstance(json.loads(shared.path.read_bytes()), dict)


def test_it_is_told_when_another_wrote(state: State, shared: Shared) -> None:
    other = state.for_config(Path("/config.yaml")).file("pins.json")
    assert not shared.changed()
    write(other, {"a": 1})
    assert shared.changed()
    shared.read()
    assert not shared.changed()
    assert not other.changed()
    write(shared, {"a": 2})
    assert not shared.changed()
    assert other.changed()
    with other.updating() as update:
        assert update.moved
        assert update.read() == {"a": 2}
    shared.path.unlink()
    assert shared.changed()


def test_two_versions_are_told_apart_that_look_the_same_from_outside(state: State, shared: Shared) -> None:
    """An inode may be used again, and the clock of the file system may stand still."""
    write(shared, {"a": 1})
    found = shared.path.stat()
    data = shared.path.read_bytes()
    other = state.for_config(Path("/config.yaml")).file("pins.json")
    write(other, {"a": 2})
    written = other.path.read_bytes()
    assert len(written) == len(data)
    shared.path.write_bytes(data)
    os.utime(shared.path, ns=(found.st_atime_ns, found.st_mtime_ns))
    shared.read()
    with open(shared.path, "r+b") as file:
        file.write(written)
    os.utime(shared.path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert shared.changed()


def test_a_file_that_was_cut_at_any_byte_or_edited_is_corrupt(shared: Shared) -> None:
    write(shared, {"grants": ["a", "b"]})
    data = shared.path.read_bytes()
    for at in range(len(data)):
        shared.path.write_bytes(data[:at])
        with pytest.raises(Corrupt, match="was cut or edited"):
            shared.read()
        shared.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(Corrupt):
            shared.read()
    for more in (b" ", b"\n", b"{}"):
        shared.path.write_bytes(data + more)
        with pytest.raises(Corrupt):
            shared.read()
    shared.path.write_bytes(data)
    assert shared.read() == {"grants": ["a", "b"]}


def test_what_is_no_file_is_corrupt(tmp_path: Path, shared: Shared) -> None:
    shared.path.mkdir()
    with pytest.raises(Corrupt, match="cannot be read"):
        shared.read()
    assert not shared.changed()
    shared.path.rmdir()
    (tmp_path / "elsewhere").write_text("{}")
    shared.path.symlink_to(tmp_path / "elsewhere")
    assert shared.changed()
    with pytest.raises(Corrupt, match="cannot be read"):
        shared.read()


def test_what_cannot_be_written_leaves_what_was_there(shared: Shared) -> None:
    write(shared, {"a": 1})
    blocked = shared.path.with_name("pins.json.new")
    blocked.mkdir()
    with pytest.raises(StateError, match="cannot be written"):
        write(shared, {"a": 2})
    assert shared.read() == {"a": 1}
    blocked.rmdir()
    with pytest.raises(StateError, match="cannot be written"):
        write(shared, {"a": "\ud800"})
    assert shared.read() == {"a": 1}
    write(shared, {"a": 3})
    assert shared.read() == {"a": 3}


def test_a_broken_file_is_kept_beside_the_new_one(shared: Shared) -> None:
    shared.path.write_text("broken")
    with shared.updating() as update:
        update.set_aside()
        assert shared.path.read_text() == "broken", "until there is another, it stays"
        update.write({"a": 1})
    assert shared.path.with_name(shared.path.name + BROKEN).read_text() == "broken"
    assert shared.read() == {"a": 1}
    shared.path.write_text("again")
    with shared.updating() as update:
        update.set_aside()
        update.write({})
    assert shared.path.with_name(shared.path.name + BROKEN).read_text() == "again"


def test_a_lock_that_is_never_given_back_does_not_stop_us_for_ever(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_LIMIT", 0.05)
    write(shared, {})
    with open(shared.path.with_name("lock"), "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="another process has held"):
            write(shared, {"a": 1})
    write(shared, {"a": 2})
    assert shared.read() == {"a": 2}


def test_no_process_loses_what_another_wrote_or_reads_half_of_it(state: State) -> None:
    shared = state.for_config(Path("/config.yaml")).file("numbers.json")
    each, names = 40, ("a", "b", "c", "d")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, state.path, name, str(each)]) for name in names]
    over = threading.Event()
    torn: list[Exception] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        while not over.is_set():
            try:
                content = Shared(shared.path, shared.path.with_name("lock")).read()
            except Corrupt as problem:
                torn.append(problem)
                return
            assert content is None or isinstance(content, dict)
            reads += 1

    reader = threading.Thread(target=read)
    reader.start()
    statuses = [process.wait(50) for process in processes]
    over.set()
    reader.join()
    assert statuses == [0] * len(names)
    assert torn == []
    assert reads > each
    content = shared.read()
    assert isinstance(content, dict)
    assert {name: content[name] for name in names} == dict.fromkeys(names, each)
    assert sorted(path.name for path in shared.path.parent.iterdir()) == [
        "file",
        "lock",
        "numbers.json",
        "numbers.json.seen",
    ]


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_file(state: State) -> None:
    """And no lock."""
    shared = state.for_config(Path("/config.yaml")).file("numbers.json")
    write(shared, {})
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", COUNT, state.path, "a", "1000000"])
        while not shared.changed() and process.poll() is None:
            pass
        process.kill()
        process.wait()
        content = shared.read()
        assert isinstance(content, dict)
        write(shared, content)


def test_a_file_that_was_deleted_is_told_from_one_that_never_was(state: State) -> None:
    kept = state.for_config(Path("/config.yaml"))
    assert not kept.file("pins.json").was_there
    write(kept.file("pins.json"), {"a": 1})
    (kept.path / "pins.json").unlink()
    again = kept.file("pins.json")
    assert again.read() is None
    assert again.was_there
    (kept.path / "pins.json.seen").unlink()
    assert not kept.file("pins.json").was_there


def test_a_file_that_was_read_is_known_to_have_been_there(state: State) -> None:
    """Also one of a version that made no mark."""
    kept = state.for_config(Path("/config.yaml"))
    write(kept.file("pins.json"), {"a": 1})
    (kept.path / "pins.json.seen").unlink()
    assert kept.file("pins.json").read() == {"a": 1}
    (kept.path / "pins.json").unlink()
    assert kept.file("pins.json").was_there


def test_a_version_is_exchanged_only_for_the_one_that_was_meant(state: State) -> None:
    file, other = (state.for_config(Path("/config.yaml")).file("pins.json") for _ in range(2))
    first = file.exchange(None, [b'{"a"', b":1}"])
    assert file.load() == (first, {"a": 1})
    assert file.seen is None, "what a worker thread does changes nothing here"
    assert other.exchange(None, [b"{}"]) is None
    second = other.exchange(first, [b'{"a":2}'])
    assert file.exchange(first, [b'{"a":3}']) is None
    assert file.load() == (second, {"a": 2})
