"""Files that are too old or too many are deleted, none that is in use, and verification still closes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from host.audit.read import records
from host.audit.records import files
from host.audit.retention import Retention, find_expired, remove
from host.audit.seal import begin_chain, new_key
from host.audit.verify import Integrity, verify_all
from host.audit.writer import Audit, keep_audit, open_audit, sync
from tests.host.audit.kit import written

DAY = 24 * 3600.0
NOW = time.time()
ALL = Retention(20_000 * DAY, 2**40)


def aged(path: Path, days: float) -> Path:
    os.utime(path, (NOW - days * DAY, NOW - days * DAY))
    return path


def expired(folder: Path, retention: Retention) -> list[tuple[str, str]]:
    return [(each.path.name, each.why) for each in find_expired(folder, retention, NOW)]


def test_what_is_older_is_found_oldest_first(folder: Path) -> None:
    paths = [aged(written(folder), days) for days in (100, 91, 89, 1)]
    assert expired(folder, Retention(90 * DAY, 2**40)) == [(paths[0].name, "age"), (paths[1].name, "age")]


def test_the_oldest_go_until_the_others_fit(folder: Path) -> None:
    paths = [aged(written(folder, 10), days) for days in (3, 2, 1)]
    size = sum(path.stat().st_size for path in paths)
    assert expired(folder, Retention(90 * DAY, size)) == []
    assert expired(folder, Retention(90 * DAY, size - 1)) == [(paths[0].name, "size")]
    assert expired(folder, Retention(90 * DAY, 10)) == [(path.name, "size") for path in paths]


def test_a_file_that_is_written_is_not_deleted(folder: Path) -> None:
    with open_audit(folder) as audit:
        assert audit.path is not None
        aged(audit.path, 1000)
        assert expired(folder, Retention(DAY, 1)) == []


@pytest.mark.parametrize("sealed", [False, True])
def test_verification_closes_over_what_was_deleted(sealed: bool, folder: Path) -> None:
    """Also over the files that named it, and over the record of a deletion that was deleted since."""
    folder.mkdir()
    key = new_key()
    if sealed:
        begin_chain(folder, key, again=False)
    with open_audit(folder) as audit:
        for number in range(4):
            audit.write("decision", number=number)
            audit.rotate()
        audit.write("decision", number=4)
        for _ in range(7):  # so many that the first records of deletions are deleted too
            sync(audit.take_unsynced())
            oldest = files(folder)[0]
            aged(oldest, 100)
            (each,) = find_expired(folder, Retention(90 * DAY, 2**40), NOW)
            audit.write("deleted", **each.fields())
            remove(folder, each)
            assert not oldest.exists()
            audit.rotate()
    report = verify_all(folder, key if sealed else None)
    assert report.problems == []
    assert {each.integrity for each in report.verified} == {Integrity.OK}
    assert len(report.deleted) == 4
    assert "deleted at" in report.deleted[0]
    assert "(age)" in report.deleted[0]
    head = report.head
    assert head is not None
    written(folder)
    for path in files(folder)[:-1]:
        aged(path, 100)
    with open_audit(folder) as audit:
        for each in find_expired(folder, Retention(90 * DAY, 2**40), NOW):
            audit.write("deleted", **each.fields())
            remove(folder, each)
    assert verify_all(folder, key if sealed else None, head).is_sound, "a record says that its file was deleted"


async def here(work: Callable[..., object], *arguments: object) -> object:
    await trio.lowlevel.checkpoint()
    return work(*arguments)


async def test_a_host_keeps_its_audit(folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows a full file by another one, syncs what was written, and applies a retention that changes."""
    old = aged(written(folder), 10_000)
    monkeypatch.setattr("host.audit.writer.ROTATE_AT", 3000)
    retention = [ALL]
    synced: list[int] = []
    monkeypatch.setattr("host.audit.writer.os.fsync", synced.append)
    monkeypatch.setattr("host.audit.writer.trio.to_thread.run_sync", here)  # a clock that jumps waits for no thread
    problems: list[Exception] = []
    with Audit(folder) as audit:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_audit, audit, lambda: retention[0], problems.append)
            for number in range(30):
                audit.write("decision", number=number, text="x" * 200)
                await trio.sleep(1.1)
            assert len(files(folder)) > 3
            assert len(synced) >= 30
            assert old.exists()
            retention[0] = Retention(90 * DAY, 2**40)
            await trio.sleep(3700)
            assert not old.exists()
            await trio.sleep(2)
            assert audit.take_unsynced() == []
            nursery.cancel_scope.cancel()
    assert problems == []
    assert [record["number"] for record in records(folder, kind="decision")] == list(range(30))
    assert [record["file"] for record in records(folder, kind="deleted")] == [old.name]
    assert verify_all(folder).is_sound


async def test_what_cannot_be_kept_now_is_tried_again(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.audit.writer.ROTATE_AT", 1)
    problems: list[Exception] = []
    failing = [True]
    rotate = Audit.rotate

    def fails(audit: Audit) -> None:
        if failing[0]:
            raise OSError(28, "No space left on device")
        rotate(audit)

    monkeypatch.setattr(Audit, "rotate", fails)
    with Audit(folder) as audit:
        audit.write("decision")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_audit, audit, lambda: ALL, problems.append)
            await trio.sleep(3.5)
            assert len(problems) > 1
            audit.write("decision")
            failing[0] = False
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert len(files(folder)) > 1
