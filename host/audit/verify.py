"""Verification of the audit: whether each file is as it was written, and whether all files are there.

Without the verification key, the chain of hashes shows a line that was edited, put in, taken out or moved by somebody
who did not compute all hashes anew. With it, no record that was written before a break-in can be changed, and no file
removed, without being found (seal.py). That the newest records of a file are missing shows only where its head was
noted elsewhere: `Report.head` is to be kept for that, and compared by `verify_all` later.
"""

from __future__ import annotations

import hmac
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from host.audit.records import (
    MAX_INDEX,
    NO_FORMER_HASH,
    Line,
    files,
    first_of,
    hash_of,
    index_in,
    is_open,
    last_of,
    parse,
)
from host.audit.retention import DELETED
from host.audit.seal import ChainKeys, FileSeal, read_state
from host.sanitize import visible


class Integrity(StrEnum):
    """The state of a file of the audit."""

    OK = "ok"
    BROKEN = "broken"
    INCOMPLETE = "incomplete"
    """A file that it follows is missing."""
    UNFINISHED = "unfinished"
    """Its process ended without a last record; all lines are as they were written."""
    OPEN = "open"
    """Its process goes on writing it; so far, all is well."""

    @property
    def is_sound(self) -> bool:
        return self not in (Integrity.BROKEN, Integrity.INCOMPLETE)


class Head(NamedTuple):
    """A record to be found again: its file, number and hash."""

    file: str
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.file}:{self.seq}:{self.hash}"


def read_head(text: str) -> Head:
    """The head that `colonnade audit verify` printed.

    Raises:
        ValueError: the text is not a head. The exception's text is a sentence.
    """
    file, _, rest = text.strip().partition(":")
    seq, _, digest = rest.partition(":")
    if not (seq.isdecimal() and digest.startswith("sha256:")):
        raise ValueError("expected a head as `colonnade audit verify` prints it: FILE:NUMBER:sha256:...")
    return Head(file, int(seq), digest)


@dataclass(frozen=True, slots=True)
class Verification:
    """`seq` is the last record that is as it was written; if the file is broken, the first one that is not. `sealed`:
    every record is sealed with the key that was given."""

    path: Path
    integrity: Integrity
    records: int
    seq: int
    why: str
    sealed: bool = False

    def __str__(self) -> str:
        count = f"{self.records} record{'' if self.records == 1 else 's'}{', sealed' if self.sealed else ''}"
        return f"{self.path.name}: {self.integrity}, {count}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class Report:
    """`deleted`: a line for each file that a record says retention deleted. `problems`: sentences about files that are
    missing, or that the key does not fit. `head`: the newest record, None if there is none."""

    verified: list[Verification]
    deleted: list[str]
    problems: list[str]
    head: Head | None

    @property
    def is_sound(self) -> bool:
        return not self.problems and all(each.integrity.is_sound for each in self.verified)


def verify_all(folder: Path, key: bytes | None = None, head: Head | None = None) -> Report:
    """Whether all files of an audit are as they were written.

    Args:
        key: the verification key, if the audit is sealed.
        head: a record that must be there, as of a former report.

    Raises:
        OSError: they cannot be read.
    """
    keys = None if key is None else ChainKeys(key)
    wanted = _ends_said(folder)
    if head is not None:
        wanted.setdefault(head.file, set()).add(head.seq)
    chains = [_read(path, keys, wanted.get(path.name, set())) for path in files(folder)]
    removed = _noted(folder) | {name: last for chain in chains for name, last in chain.removed.items()}
    problems = _missing_of_chain(folder, keys, chains) + _cut_off(keys, chains)
    if head is not None:
        problems += _missing_head(head, chains, removed)
    newest = max((chain for chain in chains if chain.records), key=lambda chain: chain.last_ts, default=None)
    return Report(
        [_finished(chain, removed) for chain in chains],
        [line for chain in chains for line in chain.deletions],
        problems,
        None if newest is None else Head(newest.path.name, newest.seq, newest.last),
    )


def _ends_said(folder: Path) -> dict[str, set[int]]:
    """The numbers of the last records of files, by file, as the first records of other files state them."""
    wanted: dict[str, set[int]] = {}
    for path in files(folder):
        first = first_of(path)
        for name, seq, _ in [] if first is None else _ends_in(first.record):
            wanted.setdefault(name, set()).add(seq)
    return wanted


def _ends_in(record: dict[str, object]) -> list[tuple[str, int, str]]:
    ends = record.get("ends")
    if not isinstance(ends, list):
        return []
    return [
        (each[0], each[1], each[2])
        for each in ends
        if isinstance(each, list) and len(each) == 3 and isinstance(each[0], str) and type(each[1]) is int
    ]


def _noted(folder: Path) -> dict[str, tuple[int, str]]:
    """The last record of each file that retention deleted, as it is noted beside the files."""
    found: dict[str, tuple[int, str]] = {}
    try:
        lines = (folder / DELETED).read_bytes().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        with suppress(msgspec.DecodeError, KeyError, TypeError, ValueError):  # a damaged note explains no missing file
            record = msgspec.json.decode(line, type=dict[str, object])
            found[str(record["file"])] = int(str(record["last"])), str(record["last_hash"])
    return found


def _trusted(keys: ChainKeys | None, chains: list[_Chain]) -> list[_Chain]:
    """The files whose records can be believed: with a key, those that are sealed with it."""
    return [chain for chain in chains if not chain.broken and (keys is None or chain.seal is not None)]


def _cut_off(keys: ChainKeys | None, chains: list[_Chain]) -> list[str]:
    """Sentences about files that have not all the records that they had when another file began."""
    by_name = {chain.path.name: chain for chain in chains}
    problems: list[str] = []
    for later in _trusted(keys, chains):
        for name, seq, digest in _ends_in(later.start):
            chain = by_name.get(name)
            if chain is not None and not chain.broken and chain.hashes.get(seq) != digest:
                problems.append(
                    f"record {seq} of {visible(name)}, its last one when {later.path.name} began, is not there"
                )
    return problems


def _missing_of_chain(folder: Path, keys: ChainKeys | None, chains: list[_Chain]) -> list[str]:
    """Sentences about what the chain shows to be missing or forged."""
    problems: list[str] = []
    try:
        state = read_state(folder)
    except OSError as problem:
        state = None
        problems.append(str(problem.strerror))
    trusted = _trusted(keys, chains)
    name = keys.chain if keys is not None else None if state is None else state.chain
    sealed = [chain for chain in trusted if chain.index is not None and chain.start.get("chain") == name]
    present = {chain.index for chain in sealed if chain.index is not None}
    deleted = [each for chain in trusted for each in chain.ranges]
    count = max(present, default=-1) + 1
    if state is not None and state.chain == name:
        count = min(state.index, MAX_INDEX)
        if keys is not None and keys.file_key(count).hex() != state.key:
            problems.append(f"the key of the next file ({count}) in the file `seal` is not the one of the chain")
    elif keys is not None and not any(state is not None and state.chain in chain.next_chains for chain in sealed):
        problems.append("the present chain has another key, and no record of this key's chain announces it")
    for first, last in _gaps(count, [*deleted, *((index, index) for index in present)]):
        which = f"file {first} of the chain is" if first == last else f"files {first} to {last} of the chain are"
        problems.append(f"{which} missing, and no record says that retention deleted them")
    for index in sorted(present):
        several = [chain for chain in sealed if chain.index == index and chain.records > 1]
        if len(several) > 1:  # a process that was killed while it took its key leaves one with its `start` alone
            names = ", ".join(chain.path.name for chain in several)
            problems.append(f"file {index} of the chain is there twice: {names}")
    begun = min((chain.first_ts for chain in sealed), default=None)
    for chain in chains if keys is not None else ():
        if begun is not None and chain.records and not chain.is_sealed and chain.first_ts > begun:
            problems.append(f"{chain.path.name} is not sealed, though the chain began before it")
    return problems


def _gaps(count: int, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of 0 to `count` - 1 that are in none of the ranges."""
    gaps: list[tuple[int, int]] = []
    expected = 0
    for first, last in [*sorted(ranges), (count, count)]:
        if first > expected and expected < count:
            gaps.append((expected, min(first, count) - 1))
        expected = max(expected, last + 1)
    return gaps


def _missing_head(head: Head, chains: list[_Chain], removed: dict[str, tuple[int, str]]) -> list[str]:
    if head.file in removed:
        return []
    for chain in chains:
        if chain.path.name == head.file:
            if chain.hashes.get(head.seq) == head.hash:
                return []
            return [f"record {head.seq} of {head.file} is not there, or another than it was"]
    return [f"{visible(head.file)} is not there, and no record says that it was deleted"]


def _read(path: Path, keys: ChainKeys | None, wanted: set[int]) -> _Chain:
    chain = _Chain(path, is_open(path), keys, wanted)
    with path.open("rb") as file:
        for line in file:
            if why := chain.add(line):
                chain.broken = why
                break
            if chain.partial:  # the end, even if more is written behind it by now
                break
    return chain


def _finished(chain: _Chain, removed: dict[str, tuple[int, str]]) -> Verification:
    def outcome(integrity: Integrity, why: str = "", seq: int | None = None) -> Verification:
        at = chain.seq if seq is None else seq
        return Verification(chain.path, integrity, chain.records, at, why, chain.seal is not None)

    if chain.broken:
        return outcome(Integrity.BROKEN, chain.broken, chain.seq + 1)
    if chain.records and chain.start.get("file") != chain.path.name:
        return outcome(Integrity.BROKEN, f"it was written as {visible(str(chain.start.get('file')))}", chain.first)
    if "former" in chain.start:
        former = chain.path.with_name(Path(str(chain.start["former"])).name)
        last = _last_of(former) if former.is_file() else removed.get(former.name)
        if last is None:
            return outcome(Integrity.INCOMPLETE, f"{visible(former.name)}, which it follows, is not there")
        if last != (chain.first - 1, chain.start["prev"]):
            why = f"it follows record {chain.first - 1} of {visible(former.name)}, which ends with {last[0]}"
            return outcome(Integrity.BROKEN, why, chain.first)
    if chain.ended:
        if chain.partial:
            return outcome(Integrity.BROKEN, "it has a part of a line after its end")
        return outcome(Integrity.OK)
    if chain.is_open:
        return outcome(Integrity.OPEN)
    if chain.partial:
        return outcome(Integrity.UNFINISHED, f"its process ended while it wrote record {chain.seq + 1}")
    return outcome(Integrity.UNFINISHED, "its process ended without a last record")


def _last_of(path: Path) -> tuple[int, str]:
    """Number and hash of the last record of a file; (0, "") if it has none."""
    last = last_of(path)
    return (0, "") if last is None else (int(str(last.record["seq"])), last.hash)


@dataclass(eq=False)
class _Chain:
    """The records of one file, one after the other."""

    path: Path
    is_open: bool
    keys: ChainKeys | None
    wanted: set[int]
    """Numbers of the records whose hashes are to be kept."""
    records: int = 0
    first: int = 1
    seq: int = 0
    last: str = ""
    start: dict[str, object] = field(default_factory=dict)
    ended: bool = False
    partial: bool = False
    broken: str = ""
    seal: FileSeal | None = None
    index: int | None = None
    is_sealed: bool = False
    """Whether the file says that it is, with whatever key."""
    first_ts: str = ""
    last_ts: str = ""
    hashes: dict[int, str] = field(default_factory=dict)
    removed: dict[str, tuple[int, str]] = field(default_factory=dict)
    deletions: list[str] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    next_chains: set[str] = field(default_factory=set)

    def add(self, line: bytes) -> str:
        """Take the next line; a sentence for what is wrong with it, or an empty one."""
        if not line.endswith(b"\n"):
            self.partial = True
            return ""
        parsed = parse(line)
        if parsed is None:
            return "a line is no record"
        if self.ended:
            return "there is more after the last record"
        record, seq, prev = parsed.record, int(str(parsed.record["seq"])), str(parsed.record["prev"])
        if not self.records:
            if record["kind"] != "start":
                return "it does not begin with a start"
            if "former" not in record and (seq, prev) != (1, NO_FORMER_HASH):
                return "it does not say what it follows"
            self._begin(record, seq, prev)
        if seq != self.seq + 1:
            return f"record {seq} follows record {self.seq}"
        if prev != self.last:
            return f"record {seq} does not follow the one before it"
        if hash_of(prev, parsed.body) != parsed.hash:
            return f"record {seq} was changed"
        if self.seal is not None:
            if parsed.mac is None or not hmac.compare_digest(parsed.mac, self.seal.mac(parsed.hash)):
                return f"record {seq} is not sealed with its key"
            self.seal.advance()
        self._take(parsed, seq)
        return ""

    def _begin(self, record: dict[str, object], seq: int, prev: str) -> None:
        self.start, self.first, self.seq, self.last = record, seq, seq - 1, prev
        self.first_ts = str(record["ts"])
        self.is_sealed, self.index = "chain" in record, index_in(record)
        if self.keys is not None and self.index is not None and record.get("chain") == self.keys.chain:
            self.seal = self.keys.seal(self.index)

    def _take(self, parsed: Line, seq: int) -> None:
        record = parsed.record
        self.last, self.seq, self.last_ts = parsed.hash, seq, str(record["ts"])
        self.records += 1
        self.ended = record["kind"] == "stop"
        if seq in self.wanted:
            self.hashes[seq] = parsed.hash
        if record["kind"] == "deleted":
            name = visible(str(record.get("file")))
            self.deletions.append(f"{name}: deleted at {record['ts']} ({visible(str(record.get('why')))})")
            last, digest = record.get("last"), record.get("last_hash")
            if type(last) is int and isinstance(digest, str):
                self.removed[str(record.get("file"))] = last, digest
            self.ranges += _ranges_in(record)
        elif record["kind"] == "chain":
            self.next_chains.add(str(record.get("next")))


def _ranges_in(record: dict[str, object]) -> list[tuple[int, int]]:
    ranges = record.get("deleted")
    if not isinstance(ranges, list):
        return []
    pairs = [each for each in ranges if isinstance(each, list) and [type(end) for end in each] == [int, int]]
    return [(first, last) for first, last in pairs if 0 <= first <= last]
