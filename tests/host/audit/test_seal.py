"""Keys follow from each other in one direction only, and each file has one that no other file has."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from host.audit.records import files
from host.audit.seal import (
    ChainKeys,
    NoKey,
    SealExists,
    begin_chain,
    chain_of,
    first_state,
    locked,
    new_key,
    next_key,
    read_key,
    read_state,
)
from host.audit.writer import open_audit
from host.errors import AuditUnavailable
from tests.host.audit.kit import decoded, written


def test_each_file_takes_the_next_key_and_leaves_none_behind(folder: Path, key: bytes) -> None:
    used = [next_key(key)]
    for index in range(3):
        state = read_state(folder)
        assert state is not None
        assert (state.chain, state.index, bytes.fromhex(state.key)) == (chain_of(key), index, used[-1])
        path = written(folder, 2)
        start = decoded(path)[0]
        assert (start["chain"], start["index"]) == (chain_of(key), index)
        assert all("mac" in record for record in decoded(path))
        used.append(next_key(used[-1]))
        everything = b"".join(each.read_bytes() for each in folder.iterdir())
        assert not any(former.hex().encode() in everything or former in everything for former in [key, *used[:-1]])
    assert ChainKeys(key).file_key(3) == used[3]


def test_only_the_owner_can_read_the_state(folder: Path, key: bytes) -> None:
    assert (folder / "seal").stat().st_mode & 0o777 == 0o600
    assert (folder / "seal.lock").stat().st_mode & 0o777 == 0o600


def test_a_second_chain_is_begun_only_when_that_is_said(folder: Path, key: bytes) -> None:
    other = new_key()
    with pytest.raises(SealExists):
        begin_chain(folder, other, again=False)
    assert read_state(folder).chain == chain_of(key)  # type: ignore[union-attr]
    begin_chain(folder, other, again=True)
    assert read_state(folder).chain == chain_of(other)  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"chain":"a","index":-1,"key":"00"}'])
def test_with_a_damaged_state_no_file_is_begun(content: bytes, folder: Path, key: bytes) -> None:
    """Else somebody could have the audit go on unsealed."""
    (folder / "seal").write_bytes(content)
    with pytest.raises(AuditUnavailable, match="is damaged"):
        open_audit(folder)
    assert all(not path.stat().st_size for path in files(folder))


def test_a_link_is_not_followed(folder: Path, key: bytes, tmp_path: Path) -> None:
    (folder / "seal").rename(tmp_path / "elsewhere")
    (folder / "seal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditUnavailable):
        open_audit(folder)


def test_a_process_that_takes_a_key_is_waited_for_at_a_start_and_not_later(
    folder: Path, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.audit.seal.LOCK_LIMIT", 0.05)
    with open_audit(folder) as audit:
        with open(folder / "seal.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(AuditUnavailable, match=r"another process holds seal\.lock"):
                open_audit(folder)
            with pytest.raises(OSError, match="another process") as caught, locked(folder, wait=False):
                pass
            assert caught.value.errno is None
            audit.write("decision", number=1)
        audit.rotate()
        audit.write("decision", number=2)
    assert [decoded(path)[0]["index"] for path in files(folder) if path.stat().st_size] == [0, 1]


BESIDE = """
import sys
from pathlib import Path
from host.audit.writer import open_audit
for _ in range(20):
    with open_audit(Path(sys.argv[1])) as audit:
        audit.write("decision", number=1)
"""


@pytest.mark.slow
def test_processes_beside_each_other_take_different_keys(folder: Path, key: bytes) -> None:
    running = [subprocess.Popen([sys.executable, "-c", BESIDE, folder]) for _ in range(3)]
    assert [process.wait(50) for process in running] == [0, 0, 0]
    assert sorted(int(str(decoded(path)[0]["index"])) for path in files(folder)) == list(range(60))


def test_what_the_next_key_cannot_be_written_for_is_not_begun(
    folder: Path, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of it, and the index is free for the next file."""

    def fail(folder: Path, state: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("host.audit.writer.write_state", fail)
        with pytest.raises(AuditUnavailable, match="No space left"):
            open_audit(folder)
    assert decoded(written(folder, 1))[0]["index"] == 0


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33])
def test_what_is_no_key_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(NoKey, match="64 hexadecimal digits"):
        read_key(text)


def test_a_key_is_read_as_it_was_printed() -> None:
    key = new_key()
    assert read_key(f"  {key.hex()}\n") == key


def test_a_state_of_a_former_version_is_read(folder: Path, key: bytes) -> None:
    """It has members that nothing needs any more."""
    state = json.loads((folder / "seal").read_bytes())
    (folder / "seal").write_text(json.dumps({**state, "deleted": [[0, 2]], "newest": "a.jsonl", "open": ["a.jsonl"]}))
    assert read_state(folder) == first_state(key)
    assert decoded(written(folder))[0]["index"] == 0
