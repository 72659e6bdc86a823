"""Verification of the audit: whether each file is as it was written.

Without the verification key, the chain of hashes shows a line that was edited, put in, taken out or moved by somebody
who did not compute all hashes anew. With it, no record of a file that was written before a break-in can be changed, and
no other file stand in its place while a later one is there, without being found (seal.py). That files are missing, or
the end of one, shows only where a file of the same process follows, or where the head was noted elsewhere:
`Report.head` is to be kept for that, and compared by `verify_all` later.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from host.audit.records import NO_FORMER_HASH, Line, files, hash_of, is_open, last_of, parse
from host.audit.retention import DELETED
from host.audit.seal import MAX_INDEX, ChainKeys, FileSeal, read_state
from host.sanitize import visible


class Integrity(StrEnum):
    """The state of a file of the audit."""

    OK = "ok"
    BROKEN = "broken"
    INCOMPLETE = "incomplete"
    """The file that it follows is missing."""
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


class Verification(Struct, frozen=True):
    """`records` are as they were written, up to the number `seq`. `sealed`: each is sealed with the key that was
    given."""

    path: Path
    integrity: Integrity
    why: str
    records: int
    seq: int
    sealed: bool

    def __str__(self) -> str:
        count = f"{self.records} record{'' if self.records == 1 else 's'}{', sealed' if self.sealed else ''}"
        return f"{self.path.name}: {self.integrity}, {count}{f': {self.why}' if self.why else ''}"


class Report(Struct, frozen=True):
    """`deleted`: a line for each file that a record says retention deleted. `problems`: sentences about the key, the
    head and the order of the files. `head`: the newest record, None if there is none."""

    verified: list[Verification]
    deleted: list[str]
    problems: list[str]
    head: Head | None

    @property
    def is_sound(self) -> bool:
        return not self.problems and all(each.integrity.is_sound for each in self.verified)


def verify_all(folder: Path, key: bytes | None = None, head: Head | None = None) -> Report:
    """Whether each file of an audit is as it was written.

    Args:
        key: the verification key, if the audit is sealed.
        head: a record that must be there, as of a former report.

    Raises:
        OSError: they cannot be read.
    """
    keys = None if key is None else ChainKeys(key)
    chains = [_read(path, keys, head) for path in files(folder)]
    problems = [] if keys is None else _problems_of_key(folder, keys, chains)
    if head is not None:
        problems += _missing_head(head, chains)
    removed = _noted(folder)

    def end_of(name: str) -> tuple[int, str] | None:
        former = folder / Path(name).name
        return last_of(former) if former.is_file() else removed.get(former.name)

    return _report(chains, problems, end_of)


def verify_lines(lines: Iterable[bytes], key: bytes | None = None, head: Head | None = None) -> tuple[Report, int]:
    """Whether the records among these lines, which were collected from standard output, are as they were written, and
    the number of the other lines.

    Records of many processes may be mixed, in another order, given twice, and behind words of the collector. The
    records that follow one that is not there are held in memory.

    Args:
        key, head: as `verify_all` has them. With a head, the records that follow it may be without those before.
    """
    keys = None if key is None else ChainKeys(key)
    collected = _Collected(keys, head)
    for line in lines:
        collected.add(line)
    collected.begin_without_start()
    chains = collected.chains
    problems = list(collected.changed)
    if not chains and not problems:  # of another program, or of nothing: whoever verifies would take silence for sound
        problems.append("no record of an audit is among these lines")
    if keys is not None:
        problems += [
            f"{each.path.name} {'is not sealed with this key' if each.start else 'has no start that names its key'}"
            for each in chains
            if each.seal is None
        ]
    if head is not None:
        problems += _missing_head(head, chains)
    ends = {each.path.name: (each.seq, each.last) for each in chains}
    return _report(chains, problems, ends.get), collected.others


class _Collected:
    """Records in the order in which a collector gives them. `changed`: sentences about those that were changed or put
    in; `others`: the number of lines that are no records."""

    def __init__(self, keys: ChainKeys | None, head: Head | None) -> None:
        self.chains: list[_Chain] = []
        self.changed: list[str] = []
        self.others = 0
        self._keys = keys
        self._head = head
        self._seen: set[str] = set()
        self._ends: dict[str, _Chain] = {}
        """The chains by their last hash."""
        self._waiting: dict[str, Line] = {}
        """Records whose former one has not come yet, by its hash."""

    def add(self, line: bytes) -> None:
        # Before a record are a time, the name of a stream or of a process; behind it what a terminal makes of its end.
        parsed = parse(line[max(0, line.find(b"{")) :].rstrip())
        if parsed is None:
            self.others += 1
            return
        prev = str(parsed.record["prev"])
        if hash_of(prev, parsed.body) != parsed.hash:
            self.changed.append(f"record {parsed.record['seq']} of {visible(str(parsed.record['ts']))} was changed")
        elif parsed.hash not in self._seen:  # many collectors give a line twice when they begin again
            self._seen.add(parsed.hash)
            if prev == NO_FORMER_HASH or prev in self._ends:
                self._follow(parsed)
            elif self._waiting.setdefault(prev, parsed) is not parsed:
                self.changed.append(f"two records follow one: numbers {parsed.record['seq']}")

    def begin_without_start(self) -> None:
        """Begin with the records that follow none of the others, once all have come."""
        hashes = {line.hash for line in self._waiting.values()}
        for prev in [prev for prev in self._waiting if prev not in hashes]:
            self._follow(self._waiting.pop(prev))

    def _follow(self, line: Line | None) -> None:
        """Add a record, and those that waited for it."""
        while line is not None:
            chain = self._ends.pop(str(line.record["prev"]), None)
            if chain is None or line.record["kind"] == "start":
                chain = self._begin(line)
            chain.broken = chain.broken or chain.add(line, self._keys)
            self._ends[line.hash] = chain
            line = self._waiting.pop(line.hash, None)

    def _begin(self, line: Line) -> _Chain:
        head = self._head
        follows_head = head is not None and line.record["prev"] == head.hash
        name = f"records from {line.record['seq']} of {line.record['ts']} on"
        if line.record["kind"] == "start":
            name = str(line.record.get("file"))
        elif head is not None and follows_head:
            name = head.file
        at = head.seq if head is not None and head.file == name else 0
        chain = _Chain(Path(visible(name)), None, at, begins="head" if follows_head else "anywhere")
        if head is not None and follows_head:
            chain.hash_of_head = head.hash
        self.chains.append(chain)
        return chain


def _report(chains: list[_Chain], problems: list[str], end_of: Callable[[str], tuple[int, str] | None]) -> Report:
    known = (chain for chain in chains if chain.records and (chain.start or chain.begins != "anywhere"))
    newest = max(known, key=lambda chain: chain.last_ts, default=None)
    return Report(
        [
            Verification(each.path, *_outcome(each, end_of), each.records, each.seq, each.seal is not None)
            for each in chains
        ],
        [line for chain in chains for line in chain.deletions.values()],
        problems,
        None if newest is None else Head(newest.path.name, newest.seq, newest.last),
    )


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


def _problems_of_key(folder: Path, keys: ChainKeys, chains: list[_Chain]) -> list[str]:
    """Sentences about files that cannot have been written when they say that they were.

    An intruder can write without a seal, and with the keys from the next file on. What he puts in the place of an older
    file therefore begins where all files are sealed, or before one with a former key.
    """
    sealed = sorted((each.seal.index, each.first_ts, each.path.name) for each in chains if each.seal is not None)
    if not sealed:
        return _problems_without_files(folder, keys)
    problems = [
        f"{name} begins before {former}, though it has a later key"
        for (_, before, former), (_, begin, name) in pairwise(sealed)
        if begin < before
    ]
    begun = "" if sealed[0][0] else sealed[0][1]
    ended = min((each.first_ts for each in chains if each.seal and each.ends_chain and not each.broken), default="~")
    in_place = _in_place_of_sealed(chains)
    return problems + [
        f"{each.path.name} is not sealed with this key, and neither began before the chain nor after its end"
        for each in chains
        if each.seal is None and (begun < each.first_ts < ended or each.path.name in in_place)
    ]


def _in_place_of_sealed(chains: list[_Chain]) -> set[str]:
    """The names of files without a seal that stand where a sealed one is missing, whenever they say that they began."""
    found: set[str] = set()
    between: list[str] = []
    last = -1
    for chain in chains:
        if chain.seal is None:
            between.append(chain.path.name)
            continue
        if chain.seal.index > last + 1:
            found.update(between)
        between, last = [], max(last, chain.seal.index)
    return found


def _problems_without_files(folder: Path, keys: ChainKeys) -> list[str]:
    try:
        state = read_state(folder)
    except OSError as problem:
        return [str(problem.strerror)]
    if state is None or state.chain != keys.chain:
        return ["the audit is not sealed with this key"]
    if state != keys.first_state:
        return ["no file is sealed with this key, though files took their keys from its chain"]
    return []


def _missing_head(head: Head, chains: list[_Chain]) -> list[str]:
    for chain in chains:
        if chain.path.name == head.file:
            if chain.hash_of_head == head.hash:
                return []
            return [f"record {head.seq} of {head.file} is not there, or another than it was"]
    if any(head.file in chain.deletions for chain in chains):
        return []
    return [f"{visible(head.file)} is not there, and no record says that it was deleted"]


def _read(path: Path, keys: ChainKeys | None, head: Head | None) -> _Chain:
    chain = _Chain(path, is_open(path), head.seq if head is not None and head.file == path.name else 0)
    with path.open("rb") as file:
        for line in file:
            chain.partial = not line.endswith(b"\n")
            if chain.partial:  # the end, even if more is written behind it by now
                break
            parsed = parse(line)
            if why := "a line is no record" if parsed is None else chain.add(parsed, keys):
                chain.broken = why
                break
    return chain


def _outcome(chain: _Chain, end_of: Callable[[str], tuple[int, str] | None]) -> tuple[Integrity, str]:
    """The state of the file, and why it is that."""
    if chain.broken:
        return Integrity.BROKEN, chain.broken
    if chain.begins == "start" and chain.records and chain.start.get("file") != chain.path.name:
        return Integrity.BROKEN, f"it was written as {visible(str(chain.start.get('file')))}"
    if chain.begins == "anywhere" and not chain.start:
        return Integrity.INCOMPLETE, "those before are not there; --head names a record that others may follow"
    if "former" in chain.start:
        former, before = visible(str(chain.start["former"])), int(str(chain.start["seq"])) - 1
        last = end_of(str(chain.start["former"]))
        if last is None:
            return Integrity.INCOMPLETE, f"{former}, which it follows, is not there"
        if last != (before, chain.start["prev"]):
            return Integrity.BROKEN, f"it follows record {before} of {former}, which ends with {last[0]}"
    if chain.ended:
        return (Integrity.BROKEN, "it has a part of a line after its end") if chain.partial else (Integrity.OK, "")
    if chain.is_open is None:
        return Integrity.UNFINISHED, "its process goes on, or ended without a last record"
    if chain.is_open:
        return Integrity.OPEN, ""
    during = f"while it wrote record {chain.seq + 1}" if chain.partial else "without a last record"
    return Integrity.UNFINISHED, f"its process ended {during}"


class _Chain(Struct, eq=False):
    """The records of one file, one after the other."""

    path: Path
    is_open: bool | None
    """None if that cannot be known."""
    head: int
    """The number of the record whose hash is to be kept; 0 for none."""
    begins: Literal["start", "head", "anywhere"] = "start"
    """The first record: a `start`; among collected lines also the one after the head, or any."""
    records: int = 0
    seq: int = 0
    last: str = ""
    start: dict[str, object] = field(default_factory=dict)
    ended: bool = False
    partial: bool = False
    broken: str = ""
    seal: FileSeal | None = None
    """Its seal with the key that was given; None if it has none."""
    first_ts: str = ""
    last_ts: str = ""
    hash_of_head: str = ""
    ends_chain: bool = False
    """Whether a record says that another chain begins."""
    deletions: dict[str, str] = field(default_factory=dict)
    """A line for each file that a record says retention deleted, by the name of that file."""

    def add(self, parsed: Line, keys: ChainKeys | None) -> str:
        """Take the next record; a sentence for what is wrong with it, or an empty one."""
        if self.ended:
            return "there is more after the last record"
        record, seq, prev = parsed.record, int(str(parsed.record["seq"])), str(parsed.record["prev"])
        if not self.records:
            if record["kind"] == "start":
                if "former" not in record and (seq, prev) != (1, NO_FORMER_HASH):
                    return "it does not say what it follows"
                self.start = record
            elif self.begins == "start":
                return "it does not begin with a start"
            self.seq, self.last, self.first_ts = seq - 1, prev, str(record["ts"])
            if keys is not None and record.get("chain") == keys.chain:
                index = record.get("index")
                if type(index) is not int or not 0 <= index < MAX_INDEX:
                    return "it has an impossible place in its chain"
                self.seal = keys.seal(index)
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
        self.last, self.seq, self.last_ts = parsed.hash, seq, str(record["ts"])
        self.records += 1
        self.ended = record["kind"] == "stop"
        if seq == self.head:
            self.hash_of_head = parsed.hash
        if record["kind"] == "deleted":
            name, why = str(record.get("file")), visible(str(record.get("why")))
            self.deletions[name] = f"{visible(name)}: deleted at {record['ts']} ({why})"
        self.ends_chain = self.ends_chain or record["kind"] == "chain"
        return ""
