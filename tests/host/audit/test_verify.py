"""Every line is as it was written, or `verify` tells which is not; with the key, nobody rewrites what is older than a
break-in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785

from host.audit.read import records
from host.audit.records import NO_FORMER_HASH, files, hash_of, line_of
from host.audit.retention import DELETED
from host.audit.seal import FileSeal, begin_chain, chain_of, new_key, read_state, write_state
from host.audit.verify import Integrity, read_head, verify_all
from host.audit.writer import open_audit
from tests.host.audit.kit import decoded, is_broken, is_incomplete, is_unfinished, lines_of, verify, written


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
            assert found.integrity is not Integrity.OK
        else:
            assert (found.integrity, found.seq + 1) == (Integrity.BROKEN, seq_at[place]), place
    path.write_bytes(whole)
    assert verify(path).integrity is Integrity.OK


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


def test_files_in_each_others_places(folder: Path) -> None:
    one, other = written(folder, 3), written(folder, 4)
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    is_broken(one, 7, f"written as {other.name}")
    is_broken(other, 6, f"written as {one.name}")


@pytest.mark.usefixtures("small")
def test_a_file_in_the_middle_that_is_gone_or_cut(folder: Path) -> None:
    written(folder, 30)
    first, second, third, *_ = files(folder)
    whole = second.read_bytes()
    second.unlink()
    is_incomplete(third, f"{second.name}, which it follows, is not there")
    second.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    assert verify(third).integrity is Integrity.BROKEN
    assert "it follows record" in verify(third).why
    assert verify(first).integrity is Integrity.OK


# Without an end


@pytest.mark.parametrize("left", range(1, 7))
def test_a_file_without_its_end_is_unfinished(folder: Path, left: int) -> None:
    path = written(folder)
    path.write_bytes(b"".join(lines_of(path)[:left]))
    is_unfinished(path, left, "its process ended without a last record")


def test_a_line_that_was_cut_is_the_end(folder: Path) -> None:
    path = written(folder)
    path.write_bytes(path.read_bytes()[:-5])
    is_unfinished(path, 6, "its process ended while it wrote record 7")


def test_a_head_that_was_noted_elsewhere_shows_that_the_newest_records_are_missing(folder: Path) -> None:
    path = written(folder)
    noted = verify_all(folder).head
    assert noted is not None
    assert read_head(str(noted)) == noted
    assert verify_all(folder, head=noted).is_sound
    whole = lines_of(path)
    path.write_bytes(b"".join(whole[:-1]))
    assert verify_all(folder).is_sound
    assert verify_all(folder, head=noted).problems == [f"record 7 of {path.name} is not there, or another than it was"]
    path.unlink()
    (folder / DELETED).write_text(json.dumps({"file": path.name, "last": 7, "last_hash": noted.hash}) + "\n")
    assert verify_all(folder, head=noted).problems == [
        f"{path.name} is not there, and no record says that it was deleted"
    ]


@pytest.mark.parametrize("text", ["", "a:b:c", "a:1:md5:0"])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a head"):
        read_head(text)


def test_files_of_the_version_before_are_read_and_verified(tmp_path: Path) -> None:
    """They were written by it, with heads beside them and checkpoints in between."""
    folder = tmp_path / "audit"
    shutil.copytree(Path(__file__).with_name("former"), folder)
    report = verify_all(folder)
    assert [each.integrity for each in report.verified] == [Integrity.OK] * 3
    assert report.is_sound
    assert [record["number"] for record in records(folder, kind="decision")] == list(range(12))
    changed = files(folder)[1]
    changed.write_bytes(changed.read_bytes().replace(b"github", b"gitlab", 1))
    assert verify_all(folder).verified[1].integrity is Integrity.BROKEN


# With the key


def rehashed(path: Path, change: Callable[[dict[str, object]], object], macs: Callable[[str], str | None]) -> None:
    """Rewrite a file as somebody would who knows the format: every hash is computed anew. `macs` makes the seals."""
    prev, made = NO_FORMER_HASH, []
    for line in lines_of(path):
        record = json.loads(line)
        del record["hash"]
        record.pop("mac", None)
        change(record)
        record["prev"] = prev
        body = rfc8785.dumps(record)
        prev = hash_of(prev, body)
        made.append(line_of(body, prev, macs(prev)))
    path.write_bytes(b"".join(made))


def allow(record: dict[str, object]) -> None:
    if record["kind"] == "decision":
        record["verdict"] = "allow"


def test_what_is_whole_is_sealed(folder: Path, key: bytes) -> None:
    written(folder)
    with open_audit(folder) as audit:
        audit.write("decision", number=1)
        audit.rotate()
        audit.write("decision", number=2)
        report = verify_all(folder, key)
        assert [str(each).partition(": ")[2] for each in report.verified] == [
            "ok, 7 records, sealed",
            "ok, 3 records, sealed",
            "open, 2 records, sealed",
        ]
        assert (report.problems, report.is_sound) == ([], True)


def test_a_file_that_was_made_anew_without_a_key_is_found_with_the_key_alone(folder: Path, key: bytes) -> None:
    path = written(folder)
    rehashed(path, allow, lambda digest: "0" * 64)
    assert verify(path).integrity is Integrity.OK
    report = verify_all(folder, key)
    assert report.verified[0].integrity is Integrity.BROKEN
    assert "record 1 is not sealed with its key" in report.verified[0].why
    rehashed(path, allow, lambda digest: None)
    assert not verify_all(folder, key).is_sound


def test_an_intruder_with_the_state_cannot_rewrite_what_is_older(folder: Path, key: bytes) -> None:
    """He has all that is on the disk: the key of the next file, and so of each one after it."""
    paths = [written(folder) for _ in range(3)]
    state = read_state(folder)
    assert state is not None
    stolen = bytes.fromhex(state.key)
    for path in paths:
        whole = path.read_bytes()
        seal = FileSeal(state.chain, int(str(decoded(path)[0]["index"])), stolen)

        def resealed(digest: str, seal: FileSeal = seal) -> str:
            mac = seal.mac(digest)
            seal.advance()
            return mac

        rehashed(path, allow, resealed)
        assert verify(path).integrity is Integrity.OK
        assert verify_all(folder, key).verified[paths.index(path)].integrity is Integrity.BROKEN
        path.write_bytes(whole)
    assert verify_all(folder, key).is_sound


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(("sealed", "began"), [(True, None), (False, None), (False, "2000"), (False, "9999")])
def test_an_intruder_cannot_put_another_file_in_the_place_of_one(
    place: int, sealed: bool, began: str | None, folder: Path, key: bytes
) -> None:
    """Neither one without a seal, whenever it says that it began, nor one with a key of those that he has; also if all
    that is older is gone, and if the chain was begun again."""
    paths = [written(folder) for _ in range(4)]
    if began == "9999":
        with open_audit(folder) as audit:
            audit.write("chain", next=chain_of(new_key()))
    state = read_state(folder)
    assert state is not None
    seal = FileSeal(state.chain, state.index, bytes.fromhex(state.key))

    def change(record: dict[str, object]) -> None:
        allow(record)
        if record["kind"] == "start":
            record.pop("chain")
            record |= {"chain": state.chain, "index": state.index} if sealed else {}
        if began is not None:
            record["ts"] = began + str(record["ts"])[4:]

    def mac(digest: str) -> str | None:
        made = seal.mac(digest)
        seal.advance()
        return made if sealed else None

    rehashed(paths[place], change, mac)
    for older in (None, *paths[:place]):
        if older is not None:
            older.unlink()
        report = verify_all(folder, key)
        assert {each.integrity for each in report.verified} == {Integrity.OK}
        why = f"begins before {paths[3].name}, though" if sealed else "is not sealed with this key, and neither began"
        assert [problem.startswith(f"{paths[place].name} {why} ") for problem in report.problems] == [True]


def test_the_newest_file_is_replaced_or_removed_unseen_without_its_head(folder: Path, key: bytes) -> None:
    paths = [written(folder) for _ in range(3)]
    head, state = verify_all(folder, key).head, read_state(folder)
    assert state is not None
    assert head is not None
    paths[2].unlink()
    assert verify_all(folder, key).is_sound
    assert verify_all(folder, key, head).problems == [
        f"{paths[2].name} is not there, and no record says that it was deleted"
    ]


def test_an_intruder_cannot_write_all_files_anew(folder: Path, key: bytes) -> None:
    for path in [written(folder) for _ in range(3)]:
        rehashed(path, lambda record: record.pop("chain", None), lambda digest: None)
    assert verify_all(folder, key).problems == [
        "no file is sealed with this key, though files took their keys from its chain"
    ]
    state = read_state(folder)
    assert state is not None
    write_state(folder, msgspec.structs.replace(state, index=0))  # he turns it back, but has no key of before
    assert not verify_all(folder, key).is_sound
    write_state(folder, state)
    written(folder)
    assert len(verify_all(folder, key).problems) == 3


@pytest.mark.parametrize("content", [None, "{}"])
def test_without_a_sealed_file_and_a_state_no_key_fits(content: str | None, folder: Path, key: bytes) -> None:
    assert verify_all(folder, key).is_sound, "no file was begun yet"
    (folder / "seal").unlink()
    if content is not None:
        (folder / "seal").write_text(content)
    (problem,) = verify_all(folder, key).problems
    assert problem == "the audit is not sealed with this key" if content is None else "is damaged" in problem


def test_a_file_that_is_not_sealed_is_told_of_if_the_chain_began_before_it(folder: Path) -> None:
    before = written(folder)
    key = new_key()
    begin_chain(folder, key, again=False)
    written(folder)
    assert verify_all(folder, key).is_sound, f"{before.name} is older than the chain"
    state = (folder / "seal").read_bytes()
    (folder / "seal").unlink()
    forged = written(folder)
    (folder / "seal").write_bytes(state)
    (problem,) = verify_all(folder, key).problems
    assert problem.startswith(f"{forged.name} is not sealed with this key")


def test_a_process_that_was_killed_while_it_took_its_key_is_no_finding(folder: Path, key: bytes) -> None:
    """Its file has the `start` alone, and the next one takes the same key."""
    state = read_state(folder)
    assert state is not None
    cut = written(folder)
    cut.write_bytes(lines_of(cut)[0])
    write_state(folder, state)
    written(folder)
    report = verify_all(folder, key)
    assert [each.integrity for each in report.verified] == [Integrity.UNFINISHED, Integrity.OK]
    assert report.problems == []


def test_another_key_verifies_nothing(folder: Path, key: bytes) -> None:
    written(folder)
    report = verify_all(folder, new_key())
    assert not report.is_sound
    assert report.problems == ["the audit is not sealed with this key"]


def test_a_chain_that_was_begun_again_says_so_in_the_former_one(folder: Path, key: bytes) -> None:
    written(folder)
    other = new_key()
    with open_audit(folder) as audit:
        audit.write("chain", next=chain_of(other))
    begin_chain(folder, other, again=True)
    written(folder)
    assert verify_all(folder, key).is_sound
    assert verify_all(folder, other).is_sound


@pytest.mark.slow
def test_no_single_changed_byte_of_a_sealed_file_goes_unseen(folder: Path, key: bytes) -> None:
    path = written(folder, 1)
    whole = path.read_bytes()
    for place in range(len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert not verify_all(folder, key).is_sound or changed[place] == ord("\n"), place


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "deleted", "file": 7, "last": "x", "last_hash": None},
        {"kind": "chain", "next": [1]},
        {"kind": "deleted"},
    ],
)
def test_odd_records_do_no_harm(record: dict[str, Any], folder: Path, key: bytes) -> None:
    """Somebody may have written them who wants `verify` to fail."""
    with open_audit(folder) as audit:
        audit.write(record["kind"], **{name: value for name, value in record.items() if name != "kind"})
    assert verify_all(folder, key).is_sound
    assert verify_all(folder).is_sound


@pytest.mark.parametrize("index", [None, "1", -1, 2**52, True])
def test_a_start_with_an_impossible_place_is_broken(index: object, folder: Path, key: bytes) -> None:
    path = written(folder)

    def change(record: dict[str, object]) -> None:
        if record["kind"] == "start":
            record["index"] = index

    rehashed(path, change, lambda digest: "0" * 64)
    (found,) = verify_all(folder, key).verified
    assert (found.integrity, found.why) == (Integrity.BROKEN, "it has an impossible place in its chain")
