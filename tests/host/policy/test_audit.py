"""Every record is there, in order and as it was written, or `verify` says where not; and what cannot be written is not
taken for written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from host.errors import AuditUnavailable
from host.policy.audit import (
    HEAD_RECORDS,
    NO_FORMER_HASH,
    Audit,
    Integrity,
    files,
    open_audit,
    records,
    shape_of,
    shape_of_long,
    verify,
)

FIELDS: dict[str, object] = {
    "server": "github",
    "prim": "tool",
    "item": "create_issue",
    "item_fp": "sha256:" + 64 * "a",
    "principal": "alice",
    "client": "a client",
    "args": {"digest": "sha256:" + 64 * "b", "shape": {"title": "str[42]", "labels": "arr[2]"}},
    "verdict": "ask",
    "rule": "tools.ask: create_*",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def written(folder: Path, count: int = 5) -> Path:
    """A file with `count` decisions in it, and its start and stop."""
    with open_audit(folder, full=False) as audit:
        for number in range(count):
            audit.write("decision", number=number, **FIELDS)
        path = audit.path
    assert path is not None
    return path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def decoded(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines_of(path)]


def is_broken(path: Path, seq: int, why: str) -> None:
    found = verify(path)
    assert (found.soundness, found.seq) == (Integrity.BROKEN, seq)
    assert why in found.why


def is_incomplete(path: Path, seq: int, why: str) -> None:
    found = verify(path)
    assert (found.soundness, found.seq) == (Integrity.INCOMPLETE, seq)
    assert why in found.why


def head_of(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def test_a_record_is_what_the_page_says(folder: Path) -> None:
    before = time.time()
    path = written(folder)
    found = decoded(path)
    assert [record["kind"] for record in found] == ["start", *["decision"] * 5, "stop"]
    assert [record["seq"] for record in found] == list(range(1, 8))
    assert found[0]["file"] == path.name
    assert found[0]["pid"] == os.getpid()
    assert found[0]["prev"] == NO_FORMER_HASH
    assert found[1].items() >= FIELDS.items()
    for earlier, later in pairwise(found):
        assert later["prev"] == earlier["hash"]
        assert str(later["ts"]) >= str(earlier["ts"])
        assert isinstance(later["mono"], int)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found[0]["ts"]))
    assert str(found[0]["ts"])[:16] in {
        time.strftime("%Y-%m-%dT%H:%M", time.gmtime(at)) for at in (before, time.time())
    }
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}\.\d{{6}}Z-{os.getpid()}\.jsonl", path.name)


def test_the_hash_is_over_canonical_json(folder: Path) -> None:
    """As another program would compute it, from the page alone."""
    with open_audit(folder, full=False) as audit:
        audit.write(
            "decision",
            **FIELDS,
            odd="\u202e\x7f\n\t\x1b é “日本” \U0001f600 \ud800",
            nested={"é": [{"z": 1, "a": None}]},
        )
        assert audit.path is not None
    for record in decoded(audit.path):
        claimed = record.pop("hash")
        digest = hashlib.sha256(str(record["prev"]).encode() + rfc8785.dumps(record))  # type: ignore[arg-type]
        assert claimed == f"sha256:{digest.hexdigest()}"
    assert verify(audit.path).soundness is Integrity.OK


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.text("abcxyz_", min_size=5, max_size=9), values, max_size=4), max_size=8))
def test_records_in_general(tmp_path_factory: pytest.TempPathFactory, many: list[dict[str, object]]) -> None:
    folder = tmp_path_factory.mktemp("audit")
    with open_audit(folder, full=False) as audit:
        for number, fields in enumerate(many):
            assert audit.write("outcome", **fields) == number + 2
    assert audit.path is not None
    found = verify(audit.path)
    assert (found.soundness, found.records) == (Integrity.OK, len(many) + 2)
    text = audit.path.read_text("utf-8")
    assert all(char.isprintable() or char == "\n" for char in text)
    for record in decoded(audit.path):
        claimed = record.pop("hash")
        body = str(record["prev"]).encode() + rfc8785.dumps(record)  # type: ignore[arg-type]
        assert claimed == f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.mark.parametrize(
    "name",
    [
        'x"}\n{"v":1,"seq":3,"kind":"grant"}',
        "x\r\nfake",
        "x\u2028fake\u2029\x85",
        "\x1b[2J\x1b]0;title\x07\x9b1m\x7f",
        "\u202egnp.exe\u200b",
        "half \ud800 and \udfff",
        "\\",
        "\x00",
    ],
)
def test_a_name_begins_no_line_and_moves_no_cursor(folder: Path, name: str) -> None:
    with open_audit(folder, full=False) as audit:
        audit.write("decision", item=name, args={"shape": {name: "str[1]"}}, list=[name])
        assert audit.path is not None
    raw = audit.path.read_bytes()
    text = raw.decode()
    assert raw.count(b"\n") == 3
    assert text.count('"kind":"grant"') == 0
    assert all(char.isprintable() or char == "\n" for char in text)
    assert len(text.splitlines()) == 3
    found = verify(audit.path)
    assert (found.soundness, found.records) == (Integrity.OK, 3)


def test_fields_of_ours_are_for_nobody_else(folder: Path) -> None:
    with open_audit(folder, full=False) as audit:
        for name in ("seq", "hash", "prev", "ts", "v", "mono"):
            with pytest.raises(ValueError, match=name):
                audit.write("decision", **{name: 1})
        for kind in ("start", "stop", "checkpoint"):
            with pytest.raises(ValueError, match=kind):
                audit.write(kind)
        assert audit.write("decision") == 2


# Files that somebody changed


@pytest.mark.slow
def test_every_byte_counts(folder: Path) -> None:
    path = written(folder, 2)
    whole = path.read_bytes()
    lines = lines_of(path)
    seq_at = [number for number, line in enumerate(lines, 1) for _ in line]
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        found = verify(path)
        if whole[place] == ord("\n"):
            assert found.soundness is not Integrity.OK
        else:
            assert (found.soundness, found.seq) == (Integrity.BROKEN, seq_at[place]), place
    path.write_bytes(whole)
    assert verify(path).soundness is Integrity.OK


Change = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("change", "seq", "why"),
    [
        (lambda all_: [*all_[:2], *all_[3:]], 3, "record 4 follows record 2"),
        (lambda all_: all_[1:], 1, "does not begin with a start"),
        (lambda all_: [*all_[:2], all_[3], all_[2], *all_[4:]], 3, "record 4 follows record 2"),
        (lambda all_: [*all_[:3], all_[2], *all_[3:]], 4, "record 3 follows record 3"),
        (lambda all_: [*all_[:3], b"\n", *all_[3:]], 4, "no record"),
        (lambda all_: [*all_[:3], b"[" * 100_000 + b"\n", *all_[3:]], 4, "no record"),
        (lambda all_: [*all_[:3], all_[3].replace(b'"seq":4', b'"seq": 4'), *all_[4:]], 4, "was changed"),
        (lambda all_: [*all_[:3], all_[3].replace(b'"ask"', b'"allow"'), *all_[4:]], 4, "was changed"),
        (lambda all_: [*all_, all_[-1]], 8, "more after the last"),
    ],
)
def test_lines_that_were_edited_taken_out_put_in_or_moved(folder: Path, change: Change, seq: int, why: str) -> None:
    path = written(folder)
    path.write_bytes(b"".join(change(lines_of(path))))
    is_broken(path, seq, why)


def forged(line: bytes, prev: str, seq: int) -> tuple[bytes, str]:
    """The record made anew to follow another."""
    record = json.loads(line)
    del record["hash"]
    record |= {"prev": prev, "seq": seq}
    digest = "sha256:" + hashlib.sha256(prev.encode() + rfc8785.dumps(record)).hexdigest()
    return rfc8785.dumps(record)[:-1] + f',"hash":"{digest}"}}\n'.encode(), digest


def test_a_chain_that_was_made_anew_is_another_than_its_head_says(folder: Path) -> None:
    path = written(folder)
    made, prev = [], NO_FORMER_HASH
    for seq, line in enumerate(lines_of(path), 1):
        fresh, prev = forged(line.replace(b'"ask"', b'"allow"'), prev, seq)
        made.append(fresh)
    path.write_bytes(b"".join(made))
    is_broken(path, 7, "another than the head says")
    head_of(path).write_text(json.dumps({"seq": 7, "hash": prev}))
    assert verify(path).soundness is Integrity.OK  # which is why the page says what it is worth


@pytest.mark.parametrize("left", range(7))
def test_a_tail_that_was_cut(folder: Path, left: int) -> None:
    path = written(folder)
    path.write_bytes(b"".join(lines_of(path)[:left]))
    is_incomplete(path, left, "its head says that there was a record 7")
    head_of(path).write_text('{"seq":1,"hash":"' + str(json.loads(lines_of(path)[0])["hash"]) + '"}' if left else "{}")
    is_incomplete(path, left, "no stop" if left else "head")


def test_a_line_that_was_cut(folder: Path) -> None:
    path = written(folder)
    path.write_bytes(path.read_bytes()[:-5])
    is_incomplete(path, 6, "its head says that there was a record 7")


def test_a_head_that_is_gone_or_no_head(folder: Path) -> None:
    path = written(folder)
    for content in (b"{}", b"[]", b"", b'{"seq":1}', b"\xff"):
        head_of(path).write_bytes(content)
        is_incomplete(path, 7, "head is not there")
    head_of(path).unlink()
    is_incomplete(path, 7, "head is not there")


def test_files_in_each_others_places(folder: Path) -> None:
    one, other = written(folder, 3), written(folder, 4)
    for first, second in ((one, other), (head_of(one), head_of(other))):
        kept = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(kept)
    is_broken(one, 1, f"written as {other.name}")
    is_broken(other, 1, f"written as {one.name}")


# Files that follow each other


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.policy.audit.ROTATE_AT", 4000)


@pytest.mark.usefixtures("small")
def test_a_full_file_is_followed_by_another(folder: Path) -> None:
    written(folder, 30)
    found = files(folder)
    assert len(found) > 3
    assert all(path.stat().st_size < 5000 for path in found)
    assert [verify(path).soundness for path in found] == [Integrity.OK] * len(found)
    chain = [record for path in found for record in decoded(path)]
    assert [record["seq"] for record in chain] == list(range(1, len(chain) + 1))
    for former, later in pairwise(found):
        assert decoded(former)[-1]["next"] == later.name
        assert decoded(later)[0]["former"] == former.name
        assert decoded(later)[0]["prev"] == decoded(former)[-1]["hash"]
    assert [record["number"] for record in records(folder, kind="decision")] == list(range(30))


@pytest.mark.usefixtures("small")
def test_a_file_in_the_middle_that_is_gone_or_cut(folder: Path) -> None:
    written(folder, 30)
    first, second, third, *_ = files(folder)
    whole = second.read_bytes()
    second.unlink()
    is_incomplete(third, verify(third).seq, f"{second.name}, which it follows, is not there")
    second.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    assert verify(third).soundness is Integrity.BROKEN
    assert "it follows record" in verify(third).why
    assert verify(first).soundness is Integrity.OK


def test_a_file_that_is_taken_away_meanwhile_is_missed(folder: Path) -> None:
    with open_audit(folder, full=False) as audit:
        former = audit.path
        assert former is not None
        former.unlink()
        for number in range(HEAD_RECORDS + 5):
            audit.write("decision", number=number)
        assert audit.path not in (None, former)
    assert audit.path is not None
    is_incomplete(audit.path, verify(audit.path).seq, f"{former.name}, which it follows, is not there")


def test_two_audits_of_one_process_have_two_files(folder: Path) -> None:
    with open_audit(folder, full=False) as one, open_audit(folder, full=True) as other:
        assert one.path != other.path
        assert (one.full_arguments, other.full_arguments) == (False, True)


def test_only_the_owner_can_read_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        path = written(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    assert {each.name for each in folder.iterdir()} == {path.name, head_of(path).name}


# What cannot be written


def run(code: str, folder: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=50, check=check
    )


FULL_DISK = """
import resource, sys
from pathlib import Path
from host.errors import AuditUnavailable
from host.policy.audit import open_audit
audit = open_audit(Path(sys.argv[1]), full=False)
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


def test_a_full_disk_stops_it_and_it_recovers_by_itself(folder: Path) -> None:
    """With a limit on the size of files, which writes a part of a line first, as a full disk does."""
    said = run(FULL_DISK, folder).stdout.splitlines()
    assert said == ["the audit cannot be written (File too large), so nothing is done until it can"] * 8
    (path,) = files(folder)
    assert verify(path).soundness is Integrity.OK
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
    with open_audit(tiny_disk / "audit", full=False) as audit:
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
        assert verify(audit.path).soundness is Integrity.OPEN
        assert verify(audit.path).seq == done
        subprocess.run(["mount", "-o", "remount,size=128k", tiny_disk], check=True)
        assert audit.write("decision", **FIELDS) == done + 1
        works(audit, True)
    assert verify(audit.path).soundness is Integrity.OK
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    with pytest.raises(AuditUnavailable, match="Read-only file system"):
        open_audit(tiny_disk / "audit", full=False)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditUnavailable) as caught:
        open_audit(tmp_path / "file" / "audit", full=False)
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
    audit = open_audit(folder, full=False)
    audit.close()
    audit.close()
    with pytest.raises(AuditUnavailable, match="closed"):
        audit.write("decision")
    assert audit.path is not None
    assert verify(audit.path).soundness is Integrity.OK


# Processes that die


BURST = """
import sys
from pathlib import Path
from host.policy.audit import open_audit
audit = open_audit(Path(sys.argv[1]), full=False)
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
            assert verify(path).soundness is Integrity.OPEN
            process.send_signal(signal.SIGKILL)
            said = [int(line) for line in process.stdout.read().splitlines() if line]
        found = verify(path)
        assert found.soundness is Integrity.INCOMPLETE
        assert "its process is gone" in found.why
        assert found.seq >= max(said, default=0)
        # What a write that was cut in the middle leaves behind is noted, and harms nothing before it.
        whole = path.read_bytes()
        path.write_bytes(whole + lines_of(path)[-1][:50])
        torn = verify(path)
        assert (torn.soundness, torn.seq) == (Integrity.INCOMPLETE, found.seq)
        assert torn.why == f"the line after record {found.seq} is cut, and its process is gone"
        assert len(list(records(place))) == found.records


def test_the_head_keeps_up(folder: Path) -> None:
    with open_audit(folder, full=False) as audit:
        assert audit.path is not None
        head = head_of(audit.path)
        assert json.loads(head.read_bytes())["seq"] == 1
        for _ in range(HEAD_RECORDS):
            audit.write("decision")
        assert json.loads(head.read_bytes())["seq"] == 1
        audit.write("decision")
        checkpoint = decoded(audit.path)[-2]
        assert checkpoint["kind"] == "checkpoint"
        assert json.loads(head.read_bytes()) == {"seq": HEAD_RECORDS + 2, "hash": checkpoint["hash"]}
        assert verify(audit.path).soundness is Integrity.OPEN
    assert json.loads(head.read_bytes())["seq"] == HEAD_RECORDS + 4


def test_the_head_is_never_long_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.policy.audit.HEAD_SECONDS", 0.05)
    with open_audit(folder, full=False) as audit:
        assert audit.path is not None
        audit.write("decision")
        time.sleep(0.06)  # noqa: TID251 - no loop is held up
        audit.write("decision")
        assert [record["kind"] for record in decoded(audit.path)] == ["start", "decision", "checkpoint", "decision"]
        assert json.loads(head_of(audit.path).read_bytes())["seq"] == 3


def test_one_that_is_written_to_is_open_and_not_behind_its_head(folder: Path) -> None:
    with open_audit(folder, full=False) as audit:
        for _ in range(HEAD_RECORDS + 1):
            audit.write("decision")
        assert audit.path is not None
        assert str(verify(audit.path)) == f"{audit.path.name}: open, {HEAD_RECORDS + 3} records"
        os.truncate(audit.path, sum(map(len, lines_of(audit.path)[:10])))
        is_incomplete(audit.path, 10, f"its head says that there was a record {HEAD_RECORDS + 2}")


# Reading


def test_records_by_what_one_looks_for(folder: Path) -> None:
    with open_audit(folder, full=False) as one, open_audit(folder, full=False) as other:
        one.write("decision", server="a", principal="alice", client="x")
        other.write("decision", server="b", principal="bob", client="x")
        one.write("outcome", server="a", of=2)
        middle = time.time() + 0.002
        time.sleep(0.005)  # noqa: TID251 - no loop is held up
        other.write("outcome", server="b", of=2)
    everything = list(records(folder))
    assert len(everything) == 8
    assert [record["ts"] for record in everything] == sorted(str(record["ts"]) for record in everything)

    def found(**filters: str) -> list[tuple[object, object]]:
        return [(record.get("server"), record["kind"]) for record in records(folder, **filters)]  # type: ignore[arg-type]

    assert found(server="a") == [("a", "decision"), ("a", "outcome")]
    assert found(kind="outcome") == [("a", "outcome"), ("b", "outcome")]
    assert found(caller="bob") == [("b", "decision")]
    assert len(found(caller="x")) == 2
    assert found(caller="x", server="a", kind="decision") == [("a", "decision")]
    since = sorted(str(record["kind"]) for record in records(folder, since=middle))  # of one millisecond in any order
    assert since == ["outcome", "stop", "stop"]
    assert one.path is not None
    assert {record["server"] for record in records([one.path], kind="decision")} == {"a"}
    assert list(records(folder / "nowhere")) == []


@pytest.mark.slow
def test_following_sees_what_comes(folder: Path) -> None:
    with open_audit(folder, full=False) as audit:
        audit.write("decision", number=1)
        following = records(folder, kind="decision", follow=True)
        assert next(following)["number"] == 1
        later = threading.Timer(0.3, lambda: written(folder, 1))
        later.start()
        assert next(following)["number"] == 0  # of another file
        later.join()
        audit.write("decision", number=2)
        assert next(following)["number"] == 2


# Shapes, and what must not be in there


def test_shapes_say_what_it_looks_like() -> None:
    arguments = {
        "title": "x" * 42,
        "labels": ["a", "b"],
        "n": 1,
        "f": 1.5,
        "b": True,
        "none": None,
        "deep": {"a": {"b": "c"}},
    }
    assert shape_of(arguments) == {
        "title": "str[42]",
        "labels": "arr[2]",
        "n": "num",
        "f": "num",
        "b": "bool",
        "none": "null",
        "deep": "obj[1]",
    }
    assert [shape_of(each) for each in (None, "text", [1], 1, False, object())] == [
        "null",
        "str[4]",
        "arr[1]",
        "num",
        "bool",
        "unreadable",
    ]


def test_long_arguments_have_a_shape_that_costs_little() -> None:
    small = b'{"title":"abc","labels":[1,2],"fill":"%b"}' % (b"x" * 100_000)
    assert shape_of_long(small) == {"title": "str[3]", "labels": "arr[2]", "fill": "str[100002 bytes]"}
    many = b"{" + b",".join(b'"%d":1' % n for n in range(190_000)) + b"}"
    assert shape_of_long(many) == f"obj[{len(many)} bytes]"
    assert shape_of_long(rb'{"a":"\ud800"}') == {"a": "unreadable"}
    lone = rb'{"a":"\ud800%b"}' % (b"x" * 100_000)
    assert shape_of_long(lone) == f"obj[{len(lone)} bytes]"


def test_shapes_are_small_and_in_ascii() -> None:
    shape = shape_of({f"{number}\n\u202e{'x' * 500}": number for number in range(100)})
    assert isinstance(shape, dict)
    assert len(shape) == 33
    assert shape["..."] == "obj[100]"
    assert all(len(name) <= 64 and name.isprintable() and name.isascii() for name in shape)


@given(values)
def test_no_value_is_in_a_shape(value: object) -> None:
    secret = "hunter2-0451"
    for holder in (secret, [secret], {"password": secret, "other": value}, {"deep": {"in": [secret]}}):
        assert secret not in json.dumps(shape_of(holder))


def test_a_write_is_quick(folder: Path) -> None:
    with open_audit(folder, full=False) as audit:
        taken = []
        for _ in range(3000):
            began = time.thread_time()
            audit.write("decision", **FIELDS)
            taken.append(time.thread_time() - began)
    assert sorted(taken)[len(taken) // 10] < 100e-6  # some 20 where nothing else runs
