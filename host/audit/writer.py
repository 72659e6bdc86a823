"""Writing the audit: every decision before it takes effect, and its outcome, one JSON line each (records.py).

Each process has a file of its own, `<UTC time>-<pid>.jsonl`, locked as long as the process has it open. A file that
reaches ROTATE_AT is followed by another one, whose `start` names it. Where `colonnade audit init` was run, each file
takes a key from the chain, and its records are sealed with it (seal.py).

`Audit.write` hands a line to the operating system and does not wait for the disk: a record outlives the process, and
`keep_audit` has a worker thread put it on the disk within a second, so that a power cut takes about the last second.
With `audit: {to: stdout}` the lines of a host go to its standard output instead (stream.py).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import EINVAL
from pathlib import Path
from typing import Self

import trio

from host.audit.records import NO_FORMER_HASH, RecordForm, hash_of, line_of
from host.audit.retention import RETENTION_INTERVAL, Retention, find_expired, remove
from host.audit.seal import FileSeal, SealState, locked, read_state, write_state
from host.audit.stream import Stream
from host.errors import AuditUnavailable

ROTATE_AT = 64 * 1024 * 1024
"""Bytes; a file that has become larger is followed by another one."""
PRESENCE_INTERVAL = 0.01
"""Seconds between two looks whether the file is where it was made. What is written meanwhile is lost with it."""
SYNC_INTERVAL = 1.0
"""Seconds after which what was written is put on the disk."""

_time_ns, _monotonic_ns, _monotonic = time.time_ns, time.monotonic_ns, time.monotonic
_OWN_KINDS = frozenset(("start", "stop"))


class Audit:
    """The audit of this process. `write` takes as long as the system needs to copy a line.

    Args:
        folder: where the files are; it is made if it is not there.
        stream: the descriptor that lines are written to in place of files, at which writing does not wait.
    """

    def __init__(self, folder: Path, *, stream: int | None = None) -> None:
        self.ok = True
        """Whether the last record could be written."""
        self.folder = folder
        self.has_files = stream is None
        self._stream = stream
        self._file: _File | Stream | None = None
        self._seq = 0
        self._last = NO_FORMER_HASH
        self._closed = False
        self._second = 0
        self._date = b""
        """The text of `_second`."""
        self._unsynced: list[int] = []
        """Descriptors of files that are done with, and of which something is not on the disk."""
        self._written = False
        """Whether anything was written since the last `take_unsynced`."""
        self.synced_at = _monotonic()
        """The time, by the monotonic clock, at which all that had been written was last put on the disk."""

    @property
    def path(self) -> Path | None:
        """The file that is written to now; None also if that is none."""
        return self._file.path if isinstance(self._file, _File) else None

    @property
    def is_full(self) -> bool:
        """Whether the present file should be followed by another one."""
        return self._file is not None and self._file.is_full

    def write(self, kind: str, **fields: object) -> int:
        """Write one record; see `write_form`. Raises ValueError if the kind is `start` or `stop`."""
        if kind in _OWN_KINDS:
            raise ValueError(f"not for others to write: a record of kind {kind}")
        return self.write_form(RecordForm(kind, {}, tuple(fields)), *fields.values())

    def write_form(self, form: RecordForm, *values: object) -> int:
        """Write one record of this form, with the values of its slots, and return its number.

        Raises:
            AuditUnavailable: it could not be written. The file then ends with the last whole record, and the next one
                is tried as if nothing had been.
        """
        if self._closed:
            raise AuditUnavailable("the audit is closed, so nothing is done any more")
        file = self._file
        try:
            if file is None or _monotonic() >= file.look_at:
                file = self._writable_file()
            seq = self._append(file, form, values)
        except OSError as problem:
            self.ok = False
            raise _unavailable(problem) from problem
        self.ok = True
        return seq

    def rotate(self) -> None:
        """Follow the present file by another one. What fails here can be tried again; the present file goes on.

        Raises:
            BlockingIOError: another process takes a key at this moment.
            OSError: there can be no other file now.
        """
        if isinstance(self._file, _File) and not self._closed:
            self._follow(self._file)

    @property
    def lag(self) -> float:
        """Seconds for which something that was written may not be on the disk; 0 if all of it is."""
        return _monotonic() - self.synced_at if self._written or self._unsynced else 0.0

    def take_unsynced(self) -> list[int]:
        """Descriptors of all that was written since this was last called; whoever calls syncs and closes them."""
        found, self._unsynced = self._unsynced, []
        if self._written and self._file is not None:
            with suppress(OSError):  # no descriptor is free: the next call finds one
                found.append(os.dup(self._file.descriptor))
                self._written = False
        return found

    def close(self) -> None:
        """Write the last record, and put all of it on the disk. Never raises: what is missing is found by `verify`."""
        if self._closed:
            return
        self._closed = True
        if self._file is not None and not self._file.size:
            self._file.discard()
        elif self._file is not None:
            with suppress(OSError):  # `verify` then reports a file without its end
                self._append(self._file, RecordForm("stop", {}))
            self._unsynced.append(self._file.descriptor)
        with suppress(OSError):
            sync(self._unsynced)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writable_file(self) -> _File | Stream:
        """The file to write to, which has its `start` and is where it was made."""
        file = self._file
        if file is None:
            file = self._file = _File(self.folder) if self._stream is None else Stream(self._stream)
        elif isinstance(file, _File) and file.size and file.was_removed():  # what follows must be found again
            file = self._follow(file)
        if not file.size:
            with self._sealing(wait=True) as state:
                self._start(file, state)
        file.look_at = time.monotonic() + PRESENCE_INTERVAL
        return file

    def _follow(self, former: _File) -> _File:
        # In the event loop nobody waits for another process: that asks before anything is changed.
        with self._sealing(wait=False) as state:
            fresh = _File(self.folder, former.path.name)
            try:
                self._append(former, RecordForm("stop", {"next": fresh.path.name}))
            except OSError:
                fresh.discard()
                raise
            self._file = fresh
            self._unsynced.append(former.descriptor)
            self._start(fresh, state)
            return fresh

    @contextmanager
    def _sealing(self, *, wait: bool) -> Iterator[SealState | None]:
        """For the block, the state of the chain, which no other process changes; None if the audit is not sealed."""
        if read_state(self.folder) is None:
            yield None
            return
        with locked(self.folder, wait=wait):
            yield read_state(self.folder)

    def _start(self, file: _File | Stream, state: SealState | None) -> None:
        """Write the first record of a file. Where there is a chain, the file takes its next key: first the record is
        on the disk and then the key is gone, so that each index has a file, whatever crashes."""
        fields: dict[str, object] = {"file": file.name, "pid": os.getpid()}
        if file.former is not None:
            fields["former"] = file.former
        if state is None:
            self._append(file, RecordForm("start", fields))
            return
        before = self._seq, self._last
        file.seal = FileSeal(state.chain, state.index, bytes.fromhex(state.key))
        try:
            self._append(file, RecordForm("start", {**fields, "chain": state.chain, "index": state.index}))
            _put_on_disk(file.descriptor)
            write_state(self.folder, state.advanced())
        except OSError:
            self._seq, self._last = before
            file.empty()
            raise

    def _append(self, file: _File | Stream, form: RecordForm, values: tuple[object, ...] = ()) -> int:
        now = _time_ns()
        second = now // 1_000_000_000
        if second != self._second:
            self._second = second
            self._date = datetime.fromtimestamp(second, UTC).isoformat().encode()[:19]
        seq, last, seal = self._seq + 1, self._last, file.seal
        ts = b"%b.%03dZ" % (self._date, now // 1_000_000 % 1000)
        body = form.body(_monotonic_ns() // 1000, last.encode(), seq, ts, values)
        digest = hash_of(last, body)
        file.append(line_of(body, digest, None if seal is None else seal.mac(digest)))
        if seal is not None:
            seal.advance()
        self._seq, self._last, self._written = seq, digest, True
        return seq


def open_audit(folder: Path, *, stream: int | None = None) -> Audit:
    """An audit that has its first record. For the arguments see `Audit`.

    Raises:
        AuditUnavailable: that could not be written.
    """
    audit = Audit(folder, stream=stream)
    try:
        audit._writable_file()
    except OSError as problem:
        raise _unavailable(problem) from problem
    return audit


async def keep_audit(audit: Audit, retention: Callable[[], Retention], on_problem: Callable[[Exception], None]) -> None:
    """Until cancelled, put on the disk what was written, follow full files by others, and delete those that are older
    or larger than may be kept: at once, with each new file, and every RETENTION_INTERVAL. What is no file is only put
    on the disk, if there is one."""
    next_look, folder = 0.0, audit.folder
    while True:
        try:
            if audit.is_full:
                audit.rotate()
                next_look = 0.0
            if audit.has_files and trio.current_time() >= next_look:
                next_look = trio.current_time() + RETENTION_INTERVAL
                for each in await trio.to_thread.run_sync(find_expired, folder, retention(), time.time()):
                    audit.write("deleted", **each.fields())
                    await _sync(audit)  # the record must outlive what it is about
                    await trio.to_thread.run_sync(remove, folder, each)
            await _sync(audit)
        except BlockingIOError:
            pass  # another host takes a key or deletes files: the next second is soon enough
        except (OSError, AuditUnavailable) as problem:
            on_problem(problem)
        await trio.sleep(SYNC_INTERVAL)


async def _sync(audit: Audit) -> None:
    unsynced = audit.take_unsynced()
    if unsynced:
        with trio.CancelScope(shield=True):  # the descriptors are ours now
            began = _monotonic()
            await trio.to_thread.run_sync(sync, unsynced)
            audit.synced_at = began


def sync(descriptors: list[int]) -> None:
    """Put on the disk what was written to these, and close them.

    Raises:
        OSError: something of it could not be put there. All are closed.
    """
    problem: OSError | None = None
    for descriptor in descriptors:
        try:
            _put_on_disk(descriptor)
        except OSError as error:
            problem = error
        with suppress(OSError):
            os.close(descriptor)
    if problem is not None:
        raise problem


def _put_on_disk(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno != EINVAL:  # of a pipe, which has no disk (fsync(2))
            raise


def _unavailable(problem: OSError) -> AuditUnavailable:
    why = problem.strerror or "no reason was given"
    return AuditUnavailable(f"the audit cannot be written ({why}), so nothing is done until it can")


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
        self.name = self.path.name
        self.former = former
        self.seal: FileSeal | None = None
        self.size = 0
        self._torn = False
        self.look_at = 0.0
        """When it is to be looked for again, by `time.monotonic`; 0 until it has been written to."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.discard()
            raise

    @property
    def is_full(self) -> bool:
        return self.size >= ROTATE_AT

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
            with suppress(OSError):  # the next record tries again
                self._truncate_torn()
            raise
        self.size += written

    def empty(self) -> None:
        """Take back all that is in it."""
        self.size, self.seal, self._torn = 0, None, True
        with suppress(OSError):  # the next record tries again
            self._truncate_torn()

    def _truncate_torn(self) -> None:
        os.ftruncate(self.descriptor, self.size)
        self._torn = False

    def was_removed(self) -> bool:
        """Whether the file is not where it was made."""
        try:
            return not os.path.samestat(self.path.lstat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return True

    def discard(self) -> None:
        """Take back a file that has nothing in it."""
        with suppress(OSError):
            os.close(self.descriptor)
        with suppress(OSError):
            self.path.unlink()
