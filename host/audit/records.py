"""The records of the audit as lines of JSON.

A record is `{"v":1,"seq":n,"ts":"2026-11-21T03:40:12.481Z","mono":<microseconds>,"kind":...,<fields>,"prev":...,
"hash":...}`. `hash` is `sha256:` and the digest of `prev` and of the record without `hash`, as canonical JSON (RFC
8785); `prev` is the former record's `hash`. A sealed record has one more member, `mac`: the HMAC-SHA-256 of `hash`
under a key that is used for this record alone (seal.py).

Text in records may come from anybody. It is made visible, so that a person can look at a file, and no text can begin a
line.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

import msgspec

from host.sanitize import visible

VERSION = 1
NO_FORMER_HASH = "sha256:" + 64 * "0"
"""`prev` of a record that follows none."""
OWN_MEMBERS = frozenset(("v", "seq", "ts", "mono", "kind", "prev", "hash"))
"""Members that every record has."""
CONTENT_MEMBERS = ("json", "redacted", "left_out")
"""The members of `args` and of `result`, of which a record has at most one; see `host.audit.contents.Contents.of`."""

_TAIL = re.compile(rb',"hash":"(sha256:[0-9a-f]{64})"(?:,"mac":"([0-9a-f]{64})")?}\n?\Z')
_TAIL_BYTES = 200
"""More than the tail of any line has."""
_BLOCK = 64 * 1024
_DELETE = 0x7F

_encode = msgspec.json.Encoder(order="sorted").encode
_sha256 = hashlib.sha256


class Line(NamedTuple):
    """A line that has the form of a record; not whether it is a true one."""

    record: dict[str, object]
    body: bytes
    """The record without `hash` and `mac`, as canonical JSON."""
    hash: str
    mac: str | None


class HistoryCall(TypedDict):
    """A call of the past as its records say, or a request that was refused.

    Attributes:
        id: The name of the call: the first 16 digits of the hash of its record.
        place: Its place in the index, after which a search may begin (`beyond`). Another index has others.
        file, seq: The file of the audit, and the number of the record there.
        config: The configuration of the host.
        time: The time of its record; of an attempt, that of the first one, to the second.
        what: `call`, `attempt` (refused, `count` times) or `question` (a person was asked, and did not allow it).
        agent: What the client calls itself, unchecked.
        program: The program that a client over stdio is, with its process.
        item: The own name of the tool, or the URI; of an attempt, as the caller wrote it.
        outcome: None while there is none; `unknown` if the host ended without writing one.
        tool_error: Whether the call was answered with the result of a tool that says that it failed.
        seconds: The duration.
        sent, received: Bytes of the arguments, and of the result.
        pending: Whether the call was sent and goes on, as far as is known.
    """

    id: str
    place: int
    file: str
    seq: int
    config: str
    time: str
    what: Literal["call", "attempt", "question"]
    caller: str
    client: str
    agent: str
    program: str
    view: str
    server: str
    kind: str
    item: str
    method: str
    verdict: str
    rule: str
    approver: str
    outcome: str | None
    tool_error: bool
    seconds: float | None
    sent: int | None
    received: int | None
    count: int
    pending: bool


class RecordForm:
    """Records of one kind that have members in common, whose text is made once.

    Args:
        fields: the members in common.
        slots, numbers: the names of the others, and of those that are integers.

    Raises:
        ValueError: a member has a name that every record has.
    """

    __slots__ = ("_fields", "_is_shown", "_names", "_order", "_slots", "_template")

    def __init__(
        self, kind: str, fields: Mapping[str, object], slots: tuple[str, ...] = (), numbers: tuple[str, ...] = ()
    ) -> None:
        self._names, self._slots = slots + numbers, len(slots)
        if not OWN_MEMBERS.isdisjoint((*fields, *self._names)):
            raise ValueError(f"not for others: a record of kind {kind} with {', '.join((*fields, *self._names))}")
        self._fields = {**fields, "kind": kind, "v": VERSION}
        texts = {"mono": b"%d", "prev": b'"%b"', "seq": b"%d", "ts": b'"%b"'}
        texts |= dict.fromkeys(slots, b"%b") | dict.fromkeys(numbers, b"%d")
        self._order: Callable[[tuple[object, ...]], tuple[object, ...]]
        self._order = itemgetter(*map(list(texts).index, sorted(texts)))
        try:
            texts |= {name: _encode(value).replace(b"%", b"%%") for name, value in self._fields.items()}
        except UnicodeEncodeError:  # a lone surrogate
            texts["v"] = b"\x7f"
        self._template = b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), texts[name]) for name in sorted(texts))
        self._is_shown = not slots and _is_shown(self._template)
        """Whether each record can be shown to a person as it is: only numbers are filled in."""

    def body(self, mono: int, prev: bytes, seq: int, ts: bytes, values: tuple[object, ...]) -> bytes:
        """A record without `hash` and `mac`, as canonical JSON: without floats, and with names in ASCII, that is what a
        sorting encoder makes. `values`: of the slots and the numbers; there may be no floats in them, and no integers
        beyond 2**53."""
        slots = self._slots
        try:
            if slots:
                values_given = (*map(_encode, values[:slots]), *values[slots:])
                body = self._template % self._order((mono, prev, seq, ts, *values_given))
            else:
                body = self._template % self._order((mono, prev, seq, ts, *values))
        except UnicodeEncodeError:
            body = b"\x7f"
        if self._is_shown or _is_shown(body):
            return body
        own = {"mono": mono, "prev": prev.decode(), "seq": seq, "ts": ts.decode()}
        return _encode(_presentable({**self._fields, **own, **dict(zip(self._names, values, strict=True))}))


def _is_shown(text: bytes) -> bool:
    """Whether text can be shown to a person as it is. Escapes are no danger then; characters beyond ASCII may be."""
    return text.isascii() and _DELETE not in text


def _presentable(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {ascii(str(name))[1:-1]: _presentable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_presentable(item) for item in value]
    return value


def hash_of(prev: str, body: bytes) -> str:
    """The `hash` of a record with this `prev`."""
    return "sha256:" + _sha256(prev.encode() + body).hexdigest()


def line_of(body: bytes, digest: str, mac: str | None) -> bytes:
    """The line of a record."""
    if mac is None:
        return b"".join((body[:-1], b',"hash":"', digest.encode(), b'"}\n'))
    return b'%b,"hash":"%b","mac":"%b"}\n' % (body[:-1], digest.encode(), mac.encode())


def parse(line: bytes) -> Line | None:
    """The record of a line; None if the line has another form."""
    tail = _TAIL.search(line, max(0, len(line) - _TAIL_BYTES))
    if tail is None:
        return None
    try:
        record = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not (record.keys() >= OWN_MEMBERS and isinstance(record["seq"], int)):
        return None
    mac = tail[2]
    return Line(record, line[: tail.start()] + b"}", tail[1].decode(), None if mac is None else mac.decode())


def hash_before(text: bytes) -> str | None:
    """The hash of the record whose line, with its line end, ends this text; None if none does. Of a long text only the
    end is looked at."""
    tail = _TAIL.search(text, max(0, len(text) - _TAIL_BYTES)) if text.endswith(b"\n") else None
    return None if tail is None else tail[1].decode()


def files(folder: Path) -> list[Path]:
    """The files of an audit, oldest first."""
    return sorted(folder.glob("*.jsonl"))


def last_of(path: Path) -> tuple[int, str]:
    """Number and hash of the last whole record of a file; (0, "") if it has none. Reads the end of the file only.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        size = _BLOCK
        while True:
            start = max(0, end - size)
            file.seek(start)
            lines = file.read(end - start).split(b"\n")[:-1]  # what follows the last line end is a part of a line
            if start == 0 or len(lines) > 1:
                last = parse(lines[-1]) if lines else None
                return (0, "") if last is None else (int(str(last.record["seq"])), last.hash)
            size *= 8


def is_open(path: Path) -> bool:
    """Whether the process that made the file still has it open; also if that cannot be found out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
