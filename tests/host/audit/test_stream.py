"""Lines on standard output hold what files do: all of a record or nothing of it, and no wait for a reader."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from host.audit import stream
from host.audit.records import hash_of, line_of, parse
from host.audit.retention import Retention
from host.audit.seal import NoKey, read_key
from host.audit.verify import Integrity, Report, read_head, verify_lines
from host.audit.writer import Audit, keep_audit, open_audit
from host.errors import AuditUnavailable
from tests.host.audit.kit import FIELDS

SMALL_PIPE = 4096


@contextmanager
def audit_to(descriptor: int, folder: Path) -> Iterator[Audit]:
    with stream.unblocked(descriptor) as own, open_audit(folder, stream=own) as audit:
        yield audit


@contextmanager
def small_pipe(folder: Path) -> Iterator[tuple[Audit, int]]:
    """An audit to a pipe that holds a page, and the end to read it at."""
    ours, theirs = os.pipe()
    try:
        with stream.unblocked(theirs) as own:
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, SMALL_PIPE)
            with open_audit(folder, stream=own) as audit:
                yield audit, ours
    finally:
        os.close(ours)
        os.close(theirs)


def emptied(descriptor: int) -> bytes:
    """The content of the pipe."""
    found = b""
    while select.select([descriptor], [], [], 0)[0]:
        found += os.read(descriptor, 1 << 20)
    return found


def collected(folder: Path, count: int = 5) -> list[bytes]:
    """The lines of a process with `count` decisions."""
    path = folder.parent / f"collected-{time.monotonic_ns()}"
    with path.open("wb") as file, audit_to(file.fileno(), folder) as audit:
        for number in range(count):
            audit.write("decision", number=number, **FIELDS)
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def old_file(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "20200101T000000.000000Z-1.jsonl"
    path.touch()
    return path


def is_there(path: Path) -> bool:
    return path.exists()


def states(report: Report) -> list[Integrity]:
    return [each.integrity for each in report.verified]


@pytest.mark.parametrize("kind", ["pipe", "file", "socket", "terminal"])
def test_each_record_is_a_line_before_its_number_is_known(kind: str, folder: Path, tmp_path: Path) -> None:
    ours, theirs = {
        "pipe": os.pipe,
        "file": lambda: (os.open(tmp_path / "out", os.O_CREAT | os.O_RDONLY), os.open(tmp_path / "out", os.O_WRONLY)),
        "socket": lambda: tuple(each.detach() for each in socket.socketpair()),
        "terminal": os.openpty,
    }[kind]()
    os.write(theirs, b"said before\n")
    with audit_to(theirs, folder) as audit:
        for number in range(3):
            assert audit.write("decision", number=number) == number + 2
            assert audit.path is None
        said = os.read(ours, 1 << 16)
    assert os.get_blocking(theirs)
    said += os.read(ours, 1 << 16)
    os.close(ours)
    os.close(theirs)
    assert not folder.exists()
    report, others = verify_lines(said.splitlines(keepends=True))
    assert (states(report), others) == ([Integrity.OK], 1)
    assert report.verified[0].records == 5


def filled(audit: Audit) -> int:
    """The number of the last record for which there was room."""
    done = 1
    with suppress(AuditUnavailable):
        while True:
            done = audit.write("decision", **FIELDS)
    return done


def test_a_pipe_that_nobody_reads_refuses_and_recovers(folder: Path) -> None:
    """The first refused record waits some milliseconds for its reader, and the others none."""
    with small_pipe(folder) as (audit, ours):
        written = filled(audit)
        for _ in range(50):
            with pytest.raises(AuditUnavailable, match="nobody reads standard output as fast as it is written"):
                audit.write("decision", **FIELDS)
        said = emptied(ours)
        assert audit.write("decision", **FIELDS) == written + 1
        assert audit.ok
        said += emptied(ours)
    report, others = verify_lines(said.splitlines(keepends=True))
    assert (states(report), report.verified[0].records, others) == ([Integrity.UNFINISHED], written + 1, 0)


def test_only_the_first_write_waits_for_a_reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real = select.poll

    class Poll:
        def __init__(self) -> None:
            self._poll = real()

        def register(self, descriptor: int, events: int) -> None:
            self._poll.register(descriptor, events)

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            waits.append(milliseconds)
            return self._poll.poll(milliseconds)

    monkeypatch.setattr("select.poll", Poll)
    with small_pipe(folder) as (audit, ours):
        for _ in range(100):
            try:
                audit.write("decision", **FIELDS)
            except AuditUnavailable:
                continue
        assert 1 <= len(waits) <= 3
        assert all(0 < each <= stream.PATIENCE * 1000 for each in waits)
        emptied(ours)


def test_a_reader_that_is_gone_refuses(folder: Path) -> None:
    ours, theirs = os.pipe()
    with audit_to(theirs, folder) as audit:
        os.close(ours)
        for _ in range(2):
            with pytest.raises(AuditUnavailable, match=r"Broken pipe"):
                audit.write("decision", **FIELDS)
    os.close(theirs)


@given(sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=12), reads=st.lists(st.integers(0, 5000), max_size=12))
def test_a_line_that_was_cut_is_no_record(
    sizes: list[int], reads: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Records have all sizes, and the reader leaves room for parts of them: exactly those with a number are there."""
    folder = tmp_path_factory.getbasetemp() / "audit"
    counted, said = 1, b""
    with small_pipe(folder) as (audit, ours):
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_NONBLOCK)
        said += emptied(ours)
        for at, size in enumerate(sizes):
            with suppress(AuditUnavailable):
                counted = audit.write("decision", text="x" * size)
            if at < len(reads) and reads[at]:
                with suppress(BlockingIOError):
                    said += os.read(ours, reads[at])
        said += emptied(ours)
        assert audit.write("decision", last=True) == counted + 1
        said += emptied(ours)
    report, _ = verify_lines(said.splitlines(keepends=True))
    assert (states(report), report.verified[0].records) == ([Integrity.UNFINISHED], counted + 1)


async def test_it_is_kept_without_files(old_file: Path, folder: Path, autojump_clock: MockClock) -> None:
    """Nothing is deleted, and a pipe, which has no disk, is no problem."""
    ours, theirs = os.pipe()
    with audit_to(theirs, folder) as audit:
        problems: list[Exception] = []
        with trio.move_on_after(10):
            await keep_audit(audit, lambda: Retention(0.0, 0), problems.append)
        assert not problems
    assert is_there(old_file)
    os.close(ours)
    os.close(theirs)


# Collected lines


def test_lines_of_many_processes_are_told_apart(folder: Path) -> None:
    """Mixed, in another order, given twice, behind the words of a collector, between others."""
    one, two = collected(folder), collected(folder)
    mixed = [b"2026-11-21T21:15:16Z stdout F " + line for pair in zip(one, reversed(two), strict=True) for line in pair]
    report, others = verify_lines([*mixed, *one, b"a warning\n", b'{"level":"info"}\n', one[2][:50]])
    assert (states(report), others) == ([Integrity.OK, Integrity.OK], 3)
    assert report.is_sound
    assert [each.records for each in report.verified] == [7, 7]


@pytest.mark.parametrize("at", range(7))
def test_each_changed_record_and_each_gap_shows(at: int, folder: Path) -> None:
    lines = collected(folder)
    changed = [*lines[:at], lines[at].replace(b'"v":1', b'"v":2'), *lines[at + 1 :]]
    report, _ = verify_lines(changed)
    assert not report.is_sound
    assert report.problems == [f"record {at + 1} of {json.loads(lines[at])['ts']} was changed"]
    report, _ = verify_lines([*lines[:at], *lines[at + 1 :]])
    assert report.is_sound is (at == 6), "the end may be still to come"
    before = [Integrity.UNFINISHED] if at else []
    after = [Integrity.INCOMPLETE] if at < 6 else []
    assert states(report) == before + after


def test_lines_may_begin_after_the_head_of_those_before(folder: Path) -> None:
    lines = collected(folder)
    former, _ = verify_lines(lines[:4])
    assert former.head is not None
    head = read_head(str(former.head))
    report, _ = verify_lines(lines[4:], head=head)
    assert (report.is_sound, states(report), report.head is not None) == (True, [Integrity.OK], True)
    assert verify_lines(lines, head=head)[0].is_sound
    report, _ = verify_lines(lines[5:], head=head)
    assert states(report) == [Integrity.INCOMPLETE]
    assert report.problems == [f"{head.file} is not there, and no record says that it was deleted"]
    assert report.head is None


def test_a_record_that_others_follow_is_not_put_in_between(folder: Path) -> None:
    lines = collected(folder)
    parsed = parse(lines[3])
    assert parsed is not None
    body = parsed.body.replace(b'"number":2', b'"number":9')
    forged = line_of(body, hash_of(str(parsed.record["prev"]), body), None)
    for given_lines in ([*lines, forged], [forged, *lines], [*lines[3:], forged, *lines[:3]]):
        assert not verify_lines(given_lines)[0].is_sound


def test_sealed_lines_are_verified_with_their_key(folder: Path, key: bytes) -> None:
    lines = [*collected(folder), *collected(folder)]
    assert verify_lines(lines, key)[0].is_sound
    assert all(each.sealed for each in verify_lines(lines, key)[0].verified)
    with pytest.raises(NoKey):
        read_key("")
    report, _ = verify_lines(lines, bytes(32))
    assert [problem.rpartition(" ")[0][-20:] for problem in report.problems] == ["not sealed with this"] * 2
    assert not verify_lines(lines[1:], key)[0].is_sound
