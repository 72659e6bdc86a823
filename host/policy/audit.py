"""What was decided and what came of it, one JSON line each, in files that show whether somebody changed them.

A record is `{"v":1,"seq":n,"ts":"2026-11-21T03:40:12.481Z","mono":<microseconds>,"kind":...,<fields>,"prev":...,
"hash":...}`. `hash` is `sha256:` and the digest of `prev` and of the record without `hash`, as canonical JSON (RFC
8785); `prev` is the former record's `hash`. Each process has a file of its own, `<UTC time>-<pid>.jsonl`, and beside it
`<file>.head` with `seq` and `hash` of a late record. A full file is followed by another one, whose `start` names it. No
file is changed when it is done with, and none is deleted here.

What that is worth: a line that was edited, taken out, put in or moved is found, and so is a file that was cut, or put
in the place of another. Whoever can write to the folder can also write all of it anew: nothing here is keyed. A record
is with the operating system when `write` returns, so it outlives the process, but perhaps not a power cut.

Text in records may come from anybody. It is made visible, so a log can be looked at, and what is in it cannot begin a
line. Arguments are a digest and a shape, unless the configuration wants all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import heapq
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import NamedTuple, Self, TypeVar

import msgspec
from msgspec import Raw

from host.errors import AuditUnavailable
from host.jsonrpc.raw import is_object, members, pick
from host.jsonrpc.raw import value as json_value
from host.jsonrpc.strict import count_tokens
from host.sanitize import visible

VERSION = 1
ROTATE_AT = 64 * 1024 * 1024
"""Bytes; a file that would become larger is followed by another one."""
HEAD_RECORDS = 1000
HEAD_SECONDS = 60.0
"""The head is written anew with the first record after so many, or after so long."""
FOLLOW_INTERVAL = 0.2
"""Seconds between two looks at files that are followed."""
NO_FORMER_HASH = "sha256:" + 64 * "0"
"""`prev` of a record that follows none."""

_OWN = frozenset(("v", "seq", "ts", "mono", "kind", "prev", "hash"))
_OWN_KINDS = frozenset(("start", "checkpoint", "stop"))
_MEMBERS = 32
_NAME = 64
_MARKS = 5_000
_LOOKED_INTO = 1024 * 1024
"""Structural characters and bytes up to which the members of long arguments are looked at: 1 MiB takes some 10 ms."""
_DECODED = 64 * 1024
"""Bytes of one of them up to which it is decoded."""
_TAIL = re.compile(rb',"hash":"(sha256:[0-9a-f]{64})"}')
_TAIL_BYTES = len(',"hash":""}') + len(NO_FORMER_HASH)

_encode = msgspec.json.Encoder(order="sorted").encode


T = TypeVar("T")


class _Head(NamedTuple):
    seq: int
    hash: str


def shape_of(arguments: object) -> object:
    """What arguments look like, without saying what they are: `{"title": "str[42]", "labels": "arr[2]", "n": "num"}`.

    Of an object's members, the first 32, their names escaped and cut; anything else is one word.
    """
    return _shape(arguments, _word) if isinstance(arguments, Mapping) else _word(arguments)


def shape_of_long(arguments: bytes) -> object:
    """The same of arguments that are too long to be decoded: of large members it says the bytes."""
    if len(arguments) > _LOOKED_INTO or count_tokens(arguments) > _MARKS or not is_object(arguments):
        return _long_word(arguments)
    if len(arguments) > _DECODED and (rb"\ud" in arguments or rb"\uD" in arguments):
        try:
            pick(arguments, frozenset())
        except ValueError:  # a lone surrogate, for which it would take long to open them
            return _long_word(arguments)
    return _shape(members(arguments), _long_word)


def _shape(found: Mapping[str, T], word: Callable[[T], str]) -> dict[str, str]:
    shown = {
        ascii(name)[1:-1][:_NAME]: word(value)
        for name, value in (pair for pair, _ in zip(found.items(), range(_MEMBERS), strict=False))
    }
    return shown if len(found) <= _MEMBERS else {**shown, "...": f"obj[{len(found)}]"}


def _long_word(raw: bytes | Raw) -> str:
    if len(raw) > _DECODED:
        kind = {b"{": "obj", b"[": "arr", b'"': "str"}.get(bytes(memoryview(raw)[:1]), "num")
        return f"{kind}[{len(raw)} bytes]"
    try:
        return _word(json_value(raw))
    except ValueError:
        return "unreadable"


def _word(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "num"
        case str():
            return f"str[{len(value)}]"
        case Mapping():
            return f"obj[{len(value)}]"
        case Sequence():
            return f"arr[{len(value)}]"
        case _:
            return "unreadable"


class Audit:
    """The audit of this process. It blocks for as long as the system takes to copy a line.

    Args:
        folder: where the files are; it is made if it is not there.
        full: whether records may hold arguments themselves.
    """

    def __init__(self, folder: Path, *, full: bool = False) -> None:
        self.full_arguments = full
        self.ok = True
        """Whether the last record could be written."""
        self._folder = folder
        self._file: _File | None = None
        self._seq = 0
        self._last = NO_FORMER_HASH
        self._closed = False
        self._second = 0
        self._second_text = ""

    @property
    def path(self) -> Path | None:
        """The file that is written to now."""
        return self._file.path if self._file else None

    def write(self, kind: str, **fields: object) -> int:
        """Writes one record, and gives its number. There may be no floats in it, and no integers beyond 2**53.

        Raises:
            AuditUnavailable: it could not be written. The file then ends with the last whole record, and the next one
                is tried as if nothing had been.
            ValueError: the kind is `start`, `checkpoint` or `stop`, or a field has a name that every record has.
        """
        if kind in _OWN_KINDS or not _OWN.isdisjoint(fields):
            raise ValueError(f"not for others to write: a record of kind {kind} with {', '.join(fields)}")
        if self._closed:
            raise AuditUnavailable("the audit is closed, so nothing is done any more")
        try:
            file = self._writable_file()
            seq = self._append(file, kind, fields)
        except OSError as problem:
            self.ok = False
            raise _unavailable(problem) from problem
        self.ok = True
        return seq

    def close(self) -> None:
        """The last record and the head, both on the disk. Never raises; what could not be written is found later."""
        if self._closed:
            return
        self._closed = True
        if self._file is not None:
            with suppress(OSError):
                self._append(self._file, "stop", {})
                self._file.write_head(_Head(self._seq, self._last))
                os.fsync(self._file.descriptor)
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writable_file(self) -> _File:
        """The file to write to, which has its `start`, is not full, and was there a minute ago."""
        file = self._file
        if file is None:
            file = self._file = _File(self._folder)
        elif os.fstat(file.descriptor).st_nlink == 0:  # somebody has deleted it: what follows is to be found again
            file = self._rotate(file)
        elif self._seq - file.head.seq >= HEAD_RECORDS or time.monotonic() - file.head_at >= HEAD_SECONDS:
            if file.is_there():
                self._checkpoint(file)
            else:
                file = self._rotate(file)
        if file.size >= ROTATE_AT:
            file = self._rotate(file)
        if not file.size:
            former = {"former": file.former} if file.former else {}
            self._append(file, "start", {"file": file.path.name, "pid": os.getpid(), **former})
            file.write_head(_Head(self._seq, self._last))
        return file

    def _rotate(self, former: _File) -> _File:
        fresh = _File(self._folder, former.path.name)
        try:
            self._append(former, "stop", {"next": fresh.path.name})
        except OSError:
            fresh.discard()
            raise
        with suppress(OSError):
            former.write_head(_Head(self._seq, self._last))
        former.close()
        self._file = fresh
        return fresh

    def _checkpoint(self, file: _File) -> None:
        """What fails here is tried again with the next record; whether that one can be written is another matter."""
        with suppress(OSError):
            self._append(file, "checkpoint", {})
            file.write_head(_Head(self._seq, self._last))

    def _append(self, file: _File, kind: str, fields: dict[str, object]) -> int:
        now = time.time()
        if int(now) != self._second:
            self._second = int(now)
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self._second))
        seq = self._seq + 1
        own = {
            "v": VERSION,
            "seq": seq,
            "ts": f"{self._second_text}.{int(now * 1000) % 1000:03d}Z",
            "mono": time.monotonic_ns() // 1000,
            "kind": kind,
            "prev": self._last,
        }
        body = _body({**fields, **own})
        digest = _hash(self._last, body)
        file.append(b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode()))
        self._seq, self._last = seq, digest
        return seq


def open_audit(folder: Path, *, full: bool) -> Audit:
    """An audit that has its first record. For the arguments see `Audit`.

    Raises:
        AuditUnavailable: that could not be written.
    """
    audit = Audit(folder, full=full)
    try:
        audit._writable_file()
    except OSError as problem:
        raise _unavailable(problem) from problem
    return audit


def _unavailable(problem: OSError) -> AuditUnavailable:
    why = problem.strerror or "no reason was given"
    return AuditUnavailable(f"the audit cannot be written ({why}), so nothing is done until it can")


def _hash(prev: str, body: bytes) -> str:
    return "sha256:" + hashlib.sha256(prev.encode() + body).hexdigest()


def _body(record: dict[str, object]) -> bytes:
    """A record as canonical JSON: without floats, and with names in ASCII, that is what a sorting encoder makes."""
    try:
        body = _encode(record)
    except UnicodeEncodeError:  # a lone surrogate
        body = b"\x7f"
    # Escapes are no danger to whoever looks at the file; what is beyond ASCII may be.
    return body if body.isascii() and b"\x7f" not in body else _encode(_presentable(record))


def _presentable(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {ascii(str(name))[1:-1]: _presentable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_presentable(item) for item in value]
    return value


class _File:
    """A file that is appended to, locked for as long as its process has it open.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, former: str | None = None) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            self.path = folder / f"{stamp}-{os.getpid()}.jsonl"
            try:
                self.descriptor = os.open(self.path, flags, 0o600)
            except FileExistsError:
                continue
            break
        self.former = former
        self.size = 0
        self.head = _Head(0, NO_FORMER_HASH)
        self.head_at = time.monotonic()
        self._torn = False
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.discard()
            raise

    def append(self, line: bytes) -> None:
        """All of the line, or nothing of it.

        Raises:
            OSError: nothing of it.
        """
        if self._torn:
            self._truncate_torn()
        try:
            written = os.write(self.descriptor, line)
            if written != len(line):  # the disk was full in the middle: the next attempt says so
                written += os.write(self.descriptor, line[written:])
            if written != len(line):
                raise OSError(None, "only a part of it could be written")
        except OSError:
            self._torn = True
            with suppress(OSError):
                self._truncate_torn()
            raise
        self.size += len(line)

    def _truncate_torn(self) -> None:
        os.ftruncate(self.descriptor, self.size)
        self._torn = False

    def write_head(self, head: _Head) -> None:
        path = _head_of(self.path)
        fresh = path.with_name(path.name + ".new")
        try:
            fresh.write_bytes(_encode(head._asdict()))
            fresh.chmod(0o600)
            os.replace(fresh, path)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise
        finally:
            self.head_at = time.monotonic()
        self.head = head

    def is_there(self) -> bool:
        """Whether the path still leads to it."""
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)

    def discard(self) -> None:
        """Takes back a file that has nothing in it."""
        self.close()
        with suppress(OSError):
            self.path.unlink()


def _head_of(path: Path) -> Path:
    return path.with_name(path.name + ".head")


class Integrity(StrEnum):
    """What can be said of a file of the audit."""

    OK = "ok"
    BROKEN = "broken"
    INCOMPLETE = "incomplete"
    OPEN = "open"
    """Its process goes on writing it; so far, all is well."""


@dataclass(frozen=True, slots=True)
class Verification:
    """`seq` is the last record that is as it was written; if the file is broken, the first one that is not."""

    path: Path
    soundness: Integrity
    records: int
    seq: int
    why: str

    def __str__(self) -> str:
        count = f"{self.records} record{'' if self.records == 1 else 's'}"
        return f"{self.path.name}: {self.soundness}, {count}{f': {self.why}' if self.why else ''}"


def verify(path: Path) -> Verification:
    """Whether a file is as it was written, and whether all of it is there.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        is_open = _is_locked(file.fileno())
        head = _head_at(path)  # before the records: the head of a file that is written to moves on
        chain = _Chain(path, head)
        for line in file:
            if why := chain.add(line):
                return Verification(path, Integrity.BROKEN, chain.records, chain.seq + 1, why)
            if chain.partial:  # the end, even if more is written behind it by now
                break
    if why := chain.wrong_beginning():
        return Verification(path, Integrity.BROKEN, chain.records, chain.first, why)
    why = chain.missing(is_open)
    if why:
        return Verification(path, Integrity.INCOMPLETE, chain.records, chain.seq, why)
    return Verification(path, Integrity.OPEN if is_open else Integrity.OK, chain.records, chain.seq, "")


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _head_at(path: Path) -> _Head | None:
    try:
        return _Head(**msgspec.json.decode(_head_of(path).read_bytes(), type=dict))
    except (OSError, msgspec.DecodeError, TypeError):
        return None


class _Chain:
    """Goes through the records of one file. The methods give a sentence for what is wrong, or an empty one."""

    def __init__(self, path: Path, head: _Head | None) -> None:
        self.records = 0
        self.first = 1
        self.seq = 0
        self._path = path
        self._head = head
        self._last = ""
        self._start: dict[str, object] = {}
        self._ended = False
        self.partial = False

    def add(self, line: bytes) -> str:
        if not line.endswith(b"\n"):
            self.partial = True
            return ""
        record = _read(line)
        if record is None:
            return "a line is no record"
        if self._ended:
            return "there is more after the last record"
        seq, prev = record["seq"], record["prev"]
        if not self.records:
            if record["kind"] != "start" or not isinstance(seq, int):
                return "it does not begin with a start"
            if "former" not in record and (seq, prev) != (1, NO_FORMER_HASH):
                return "it does not say what it follows"
            self._start = record
            self.first, self.seq, self._last = seq, seq - 1, str(prev)
        if seq != self.seq + 1:
            return f"record {seq} follows record {self.seq}"
        if prev != self._last:
            return f"record {seq} does not follow the one before it"
        cut = -_TAIL_BYTES - 1
        if _hash(self._last, line[:cut] + b"}") != record["hash"]:
            return f"record {seq} was changed"
        if self._head is not None and seq == self._head.seq and record["hash"] != self._head.hash:
            return f"record {seq} is another than the head says"
        self._last = str(record["hash"])
        self.seq += 1
        self.records += 1
        self._ended = record["kind"] == "stop"
        return ""

    def wrong_beginning(self) -> str:
        """Whether it is another file, or follows another than it says."""
        if not self.records:
            return ""
        if self._start.get("file") != self._path.name:
            return f"it was written as {visible(str(self._start.get('file')))}"
        if "former" not in self._start:
            return ""
        former = self._former()
        if former.is_file() and (last := _last_of(former)) != (self.first - 1, self._start["prev"]):
            return f"it follows record {self.first - 1} of {visible(former.name)}, which ends with {last[0]}"
        return ""

    def missing(self, is_open: bool) -> str:
        if self.records and "former" in self._start and not self._former().is_file():
            return f"{visible(self._former().name)}, which it follows, is not there"
        if self._head is None and (self.records or not is_open):
            return "its head is not there"
        if self._head is not None and self.seq < self._head.seq:
            return f"its head says that there was a record {self._head.seq}"
        if is_open or self._ended:
            return "" if is_open or not self.partial else "it has a part of a line after its end"
        if self.partial:
            return f"the line after record {self.seq} is cut, and its process is gone"
        return "it has no stop, and its process is gone"

    def _former(self) -> Path:
        return self._path.with_name(Path(str(self._start["former"])).name)


def _read(line: bytes) -> dict[str, object] | None:
    """A record, if the line is one; not whether it is a true one."""
    if _TAIL.fullmatch(line[-_TAIL_BYTES - 1 : -1]) is None:
        return None
    try:
        record = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.keys() >= _OWN else None


def _last_of(path: Path) -> tuple[int, str]:
    """Number and hash of the last record of a file; (0, "") if it has none."""
    last = b""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                last = line
    record = _read(last)
    return (record["seq"], record["hash"]) if record else (0, "")  # type: ignore[return-value]


def files(folder: Path) -> list[Path]:
    """The files of an audit, oldest first."""
    return sorted(folder.glob("*.jsonl"))


def records(
    where: Path | Iterable[Path],
    *,
    server: str | None = None,
    kind: str | None = None,
    since: float | None = None,
    caller: str | None = None,
    follow: bool = False,
) -> Iterator[dict[str, object]]:
    """The records in a folder, or in some files, in the order of their time; not whether they are true.

    Args:
        since: unix seconds.
        caller: the name of the caller, or of the client that it says it is.
        follow: go on with what comes, for ever, new files of the folder included; blocks meanwhile.
    """
    wanted = {"server": server, "kind": kind}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    after = "" if since is None else datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]

    def fits(record: dict[str, object]) -> bool:
        return (
            str(record["ts"]) >= after
            and all(record.get(name) == value for name, value in wanted.items())
            and (caller is None or caller in (record.get("principal"), record.get("client")))
        )

    tails: dict[Path, _Tail] = {}
    pause = Event()
    while True:
        for path in files(where) if isinstance(where, Path) else list(where):
            if path not in tails:
                tails[path] = _Tail(path)
        yield from filter(fits, heapq.merge(*(tail.read() for tail in tails.values()), key=itemgetter("ts")))
        if not follow:
            return
        pause.wait(FOLLOW_INTERVAL)


class _Tail:
    """Reads on in a file from where it stopped, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> Iterator[dict[str, object]]:
        try:
            file = self._path.open("rb")
        except OSError:
            return
        with file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                if (record := _read(line)) is not None:
                    yield record
