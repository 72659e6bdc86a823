"""Every record is there, in order; what cannot be written is not taken for written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from host.audit.read import records
from host.audit.records import files
from host.audit.verify import Integrity
from host.audit.writer import Audit, open_audit
from host.errors import AuditUnavailable
from tests.host.audit.kit import FIELDS, decoded, is_incomplete, lines_of, verify, written


def test_fields_of_ours_are_for_nobody_else(folder: Path) -> None:
    with open_audit(folder) as audit:
        for name in ("seq", "hash", "prev", "ts", "v", "mono"):
            with pytest.raises(ValueError, match=name):
                audit.write("decision", **{name: 1})
        for kind in ("start", "stop"):
            with pytest.raises(ValueError, match=kind):
                audit.write(kind)
        assert audit.write("decision") == 2


@pytest.mark.usefixtures("small")
def test_a_full_file_is_followed_by_another(folder: Path) -> None:
    written(folder, 30)
    found = files(folder)
    assert len(found) > 3
    assert all(path.stat().st_size < 5000 for path in found)
    assert [verify(path).integrity for path in found] == [Integrity.OK] * len(found)
    chain = [record for path in found for record in decoded(path)]
    assert [record["seq"] for record in chain] == list(range(1, len(chain) + 1))
    for former, later in pairwise(found):
        assert decoded(former)[-1]["next"] == later.name
        assert decoded(later)[0]["former"] == former.name
        assert decoded(later)[0]["prev"] == decoded(former)[-1]["hash"]
    assert [record["number"] for record in records(folder, kind="decision")] == list(range(30))


@pytest.mark.parametrize("goes_to", [None, "elsewhere.jsonl"])
def test_a_file_that_is_taken_away_meanwhile_is_missed(goes_to: str | None, folder: Path) -> None:
    with open_audit(folder) as audit:
        former = audit.path
        assert former is not None
        if goes_to is None:
            former.unlink()
        else:
            former.rename(folder.parent / goes_to)
        end = time.monotonic() + 10
        while audit.path == former and time.monotonic() < end:  # it looks every PRESENCE_INTERVAL
            audit.write("decision", number=0)
        assert audit.path not in (None, former)
    assert audit.path is not None
    is_incomplete(audit.path, f"{former.name}, which it follows, is not there")


def test_two_audits_of_one_process_have_two_files(folder: Path) -> None:
    with open_audit(folder) as one, open_audit(folder) as other:
        assert one.path != other.path


def test_only_the_owner_can_read_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        path = written(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    assert {each.name for each in folder.iterdir()} == {path.name}


# What cannot be written


def run(code: str, folder: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=50, check=check
    )


FULL_DISK = """
import resource, sys
from pathlib import Path
from host.errors import AuditUnavailable
from host.audit.writer import open_audit
audit = open_audit(Path(sys.argv[1]))
audit.write("decision", number=0)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
whole = audit.path.stat().st_size
for room in (0, 1, 100, 250):
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + room, hard))
    for _ in range(2):
        try:
            audit.write("decision", text="x" * 200)
        except AuditUnavailable as problem:
            assert problem.code == 503
            print(problem.message)
        else:
            raise SystemExit("written")
        assert not audit.ok
        assert audit.path.stat().st_size == whole
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert audit.write("decision", number=1) == 3
assert audit.ok
audit.close()
"""


@pytest.mark.slow
def test_a_full_disk_stops_it_and_it_recovers_by_itself(folder: Path) -> None:
    """With a limit on the size of files, which writes a part of a line first, as a full disk does."""
    said = run(FULL_DISK, folder).stdout.splitlines()
    assert said == ["the audit cannot be written (File too large), so nothing is done until it can"] * 8
    (path,) = files(folder)
    assert verify(path).integrity is Integrity.OK
    assert [record["number"] for record in records(folder, kind="decision")] == [0, 1]


def works(audit: Audit, ok: bool) -> None:
    assert audit.ok is ok


def attempted(audit: Audit) -> int | None:
    try:
        return audit.write("decision", **FIELDS)
    except AuditUnavailable:
        return None


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    with open_audit(tiny_disk / "audit") as audit:
        done = 1
        while (seq := attempted(audit)) is not None:
            done = seq
        with pytest.raises(AuditUnavailable, match="No space left on device"):
            audit.write("decision", **FIELDS)
        for _ in range(3):
            with pytest.raises(AuditUnavailable):
                audit.write("decision", text="x" * 5000)
        works(audit, False)
        assert audit.path is not None
        assert verify(audit.path).integrity is Integrity.OPEN
        assert verify(audit.path).seq == done
        subprocess.run(["mount", "-o", "remount,size=128k", tiny_disk], check=True)
        assert audit.write("decision", **FIELDS) == done + 1
        works(audit, True)
    assert verify(audit.path).integrity is Integrity.OK
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    with pytest.raises(AuditUnavailable, match="Read-only file system"):
        open_audit(tiny_disk / "audit")


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditUnavailable) as caught:
        open_audit(tmp_path / "file" / "audit")
    assert caught.value.code == 503
    assert str(tmp_path) not in caught.value.message
    audit = Audit(tmp_path / "file" / "audit")
    with pytest.raises(AuditUnavailable):
        audit.write("decision")
    works(audit, False)
    (tmp_path / "file").unlink()
    with pytest.raises(AuditUnavailable):  # whose folder it was to be in is not for us to guess
        audit.write("decision")
    (tmp_path / "file").mkdir()
    assert audit.write("decision") == 2
    works(audit, True)
    audit.close()


def test_after_the_end_nothing_is_written(folder: Path) -> None:
    audit = open_audit(folder)
    audit.close()
    audit.close()
    with pytest.raises(AuditUnavailable, match="closed"):
        audit.write("decision")
    assert audit.path is not None
    assert verify(audit.path).integrity is Integrity.OK


# Processes that die


BURST = """
import sys
from pathlib import Path
from host.audit.writer import open_audit
audit = open_audit(Path(sys.argv[1]))
while True:
    print(audit.write("decision", text="x" * 300), flush=True)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_writing(folder: Path) -> None:
    """Of every record whose number was given out, there is the record."""
    folder.mkdir(exist_ok=True)
    for turn in range(8):
        place = folder / str(turn)
        with subprocess.Popen([sys.executable, "-c", BURST, place], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(1 + turn * 300):
                process.stdout.readline()
            (path,) = files(place)
            assert verify(path).integrity is Integrity.OPEN
            process.send_signal(signal.SIGKILL)
            said = [int(line) for line in process.stdout.read().splitlines() if line]
        found = verify(path)
        assert found.integrity is Integrity.UNFINISHED
        assert found.why.startswith("its process ended ")
        assert found.seq >= max(said, default=0)
        # What a write that was cut in the middle leaves behind is noted, and harms nothing before it.
        whole = path.read_bytes()
        path.write_bytes(whole + lines_of(path)[-1][:50])
        torn = verify(path)
        assert (torn.integrity, torn.seq) == (Integrity.UNFINISHED, found.seq)
        assert torn.why == f"its process ended while it wrote record {found.seq + 1}"
        assert len(list(records(place))) == found.records


def test_a_write_is_quick(folder: Path) -> None:
    with open_audit(folder) as audit:
        taken = []
        for _ in range(3000):
            began = time.thread_time()
            audit.write("decision", **FIELDS)
            taken.append(time.thread_time() - began)
    assert sorted(taken)[len(taken) // 10] < 100e-6  # some 20 where nothing else runs
