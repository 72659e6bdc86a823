"""The state directory is its owner's alone."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

import pytest

from host.storage.directory import State, open_state, replace_file, state_directory, write_new
from host.storage.store import StateError


@pytest.fixture
def state(tmp_path: Path) -> State:
    return open_state(tmp_path / "state")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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
        kept.set_stored()
    finally:
        os.umask(before)
    for path in (state.path, state.configs, state.audit, state.run, kept.path):
        assert mode(path) == 0o700
    files = list(kept.path.iterdir())
    assert {path.name for path in files} == {"file", "seen"}
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


def test_the_id_of_a_configuration_file_stays_the_same_since_the_database_has_it(state: State) -> None:
    path = "/nowhere/colonnade.yaml"
    assert state.for_config(Path(path)).id == hashlib.sha256(path.encode()).hexdigest()[:16] == "a32a3014c4a38f68"


def test_the_key_is_one_for_good_whoever_makes_it(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another process makes one at the same moment, and whole: nobody sees half of it."""
    other = b"o" * 32
    tokens = secrets.token_bytes

    def meanwhile(size: int) -> bytes:
        (state.path / "key").write_bytes(other)
        return tokens(size)

    with monkeypatch.context() as patch:
        patch.setattr("host.storage.directory.secrets.token_bytes", meanwhile)
        assert state.key() == other
    assert state.key() == other
    (state.path / "key").unlink()
    key = state.key()
    assert (len(key), state.key()) == (32, key)
    assert sorted(each.name for each in state.path.iterdir()) == [
        "audit",
        "configs",
        "containers",
        "hosts",
        "key",
        "run",
    ]


def test_a_new_file_is_its_owners_alone_and_takes_no_place(tmp_path: Path) -> None:
    path = tmp_path / "new"
    write_new(path, b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in (path, tmp_path / "link"):
        with pytest.raises(FileExistsError):
            write_new(taken, b"two")
    assert path.read_bytes() == b"one"
    assert not (tmp_path / "nowhere").exists()


def test_a_file_is_replaced_whole_and_is_its_owners_alone(tmp_path: Path) -> None:
    """Also after a process that was killed while it wrote the next content."""
    path = tmp_path / "file"
    (tmp_path / "file.new").write_text("left by a process that was killed")
    for content in (b"first", b"second"):
        replace_file(path, content)
        assert (path.read_bytes(), mode(path)) == (content, 0o600)
    assert os.listdir(tmp_path) == ["file"]
