"""The log of a host, and its status lines for the person who started it."""

from __future__ import annotations

import atexit
import logging
import os
import stat
import sys
import time
from errno import EINVAL
from pathlib import Path
from typing import ClassVar

from host.cli.common import EVENT_PARTS, LOGGER_PARTS, LeastLevels
from host.cli.log_format import TEXT, JournalHandler, JsonFormatter, is_journal
from host.cli.terminal import Terminal
from host.journal import (
    AttemptRefused,
    ConfigReloaded,
    ConfirmationRequested,
    DefinitionChanged,
    EntryOmitted,
    Event,
    InternalError,
    Journal,
    ListsSlowed,
    MessageDropped,
    OutputLine,
    RuleUnused,
    SecretWithheld,
    ServerFailed,
    ServerHeld,
    ServerNeedsLogin,
    ServerReady,
    ServerRequestRefused,
    Severity,
)
from host.non_blocking import NonBlockingStream

MAX_CAUSES = 1000
"""Causes of warnings that are kept: a server may write part of one."""
MAX_LOG = 1024 * 1024
"""Bytes of the log of hosts in the background; the newer half of a longer one is kept."""


class StatusLines:
    """A line when a server becomes ready, when it fails for a new reason, when a person is needed, and after a reload.
    Only the events of SHOWN_EVENTS have one.

    Args:
        waits: no line is shown before those of `begin`.
    """

    SHOWN_EVENTS: ClassVar = (
        ServerReady,
        ServerFailed,
        ServerHeld,
        ServerNeedsLogin,
        ConfirmationRequested,
        ConfigReloaded,
    )

    def __init__(self, terminal: Terminal, *, waits: bool = False) -> None:
        self._terminal = terminal
        self._waiting: list[str] | None = [] if waits else None
        self._last_failure: dict[str, str] = {}
        self._has_said: set[str] = set()
        """Servers that wrote to their standard error since that was last pointed out."""

    def begin(self, *first: str) -> None:
        """Show these lines, and then those that waited."""
        waiting, self._waiting = self._waiting or (), None
        for line in (*first, *waiting):
            self._write(line)

    def note(self, event: Event) -> None:
        if isinstance(event, OutputLine):
            self._has_said.add(event.server)
        elif isinstance(event, ServerReady):
            self._last_failure.pop(event.server, None)
            counts = f"({event.counts}, {event.seconds:.1f} s)"
            self._write(f"  {event.server:<20} {self._terminal.state('ready')} {self._terminal.faint(counts)}")
        elif isinstance(event, ServerFailed) and self._last_failure.get(event.server) != event.why:
            self._last_failure[event.server] = event.why
            self._write(f"  {event.server:<20} {self._terminal.state('failed')} {event.outlook}")
            if event.server in self._has_said:
                self._has_said.remove(event.server)
                self._write(f"  {'':<20} {self._terminal.faint(f'more: colonnade logs {event.server}')}")
        elif isinstance(event, ServerHeld):
            self._write(f"  {event.server:<20} {self._terminal.state('held')} {event.why}")
        elif isinstance(event, ServerNeedsLogin):
            self._write(f"  {event.server:<20} {self._terminal.state('needs login')} {event.why}")
        elif isinstance(event, ConfirmationRequested):
            refused = f"refused, because {event.refused}; to allow the next equal call: " if event.refused else ""
            said = f"{event.what}: {refused}colonnade ask {event.id}"
            self._write(f"  {event.server:<20} {self._terminal.state('asks')} {said}")
        elif isinstance(event, ConfigReloaded):
            self._write(f"  {event}")

    def _write(self, line: str) -> None:
        if self._waiting is not None:
            self._waiting.append(line)
            return
        self._terminal.out.write(line + "\n")


def open_to_append(path: Path | str, flags: int) -> int:
    """A descriptor of a file for a log, which is made for this user alone. `flags`: how it is opened besides.

    Raises OSError if it cannot be opened, or is no regular file.
    """
    # Without O_NONBLOCK, a named pipe would have the host wait for its reader.
    descriptor = os.open(path, flags | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(EINVAL, "it is no regular file")
    return descriptor


class LogFile:
    """A log in a file, which is made for this user alone. `reopen` follows a program that has renamed it.

    Raises OSError if the file cannot be opened, or is no regular one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_to_append(path, os.O_WRONLY)

    def reopen(self) -> None:
        """Go on in a new file of this name. Where that cannot be opened, the former one is kept, and the log says so in
        its own form."""
        former = self._descriptor
        try:
            self._descriptor = open_to_append(self._path, os.O_WRONLY)
        except OSError as problem:
            text = "the log %s cannot be opened again: %s; it goes on here"
            logging.getLogger("colonnade").error(text, self._path, problem.strerror)
        else:
            os.close(former)

    def write(self, text: str) -> None:
        os.write(self._descriptor, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """No effect: nothing is kept back."""

    def isatty(self) -> bool:
        return False


def open_log(
    levels: LeastLevels, *, without: tuple[type, ...] = (), written: str = "auto", file: LogFile | None = None
) -> Journal:
    """A journal whose events are logged, without the types that are shown there already.

    Args:
        written: `text`, `json`, or `auto`: fields for the journal of systemd where standard error leads there, else
            text.
        file: where the log goes instead of standard error; opened again at each reload.
    """
    journal = Journal()
    logging.basicConfig(handlers=[_handler(journal, written, file)], level=logging.ERROR)
    log = logging.getLogger("colonnade")
    for part in LOGGER_PARTS:
        log.getChild(part).setLevel(levels.of(part).upper())
    journal.subscribe(_Log(log, levels, without).note)
    return journal


def has_fields(written: str, file: object) -> bool:
    """Whether such a log is for programs: lines of JSON, or fields for the journal of systemd. Arguments as those of
    `open_log`; of the file it matters whether there is one."""
    return written == "json" or _is_for_journal(written, file)


def _is_for_journal(written: str, file: object) -> bool:
    return written == "auto" and file is None and is_journal(2, os.environ.get("JOURNAL_STREAM"))


def log_lines(*lines: str) -> None:
    """Log what is shown to people elsewhere, as of no importance."""
    for line in lines:
        logging.getLogger("colonnade").info("%s", line)


def _handler(journal: Journal, written: str, file: LogFile | None) -> logging.Handler:
    """See `open_log`."""
    if _is_for_journal(written, file):
        return JournalHandler()
    stream = NonBlockingStream(sys.stderr if file is None else file)
    atexit.register(stream.close)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if written == "json" else logging.Formatter(TEXT))
    if file is not None:
        # In the thread that writes, behind what was said before.
        journal.subscribe(lambda event: stream.call(file.reopen), ConfigReloaded)
    return handler


def keep_log_short(first: str) -> None:
    """Begin with a line in the file that standard error is, behind what former hosts wrote, and drop the oldest part of
    it whenever it is longer than MAX_LOG. Raises OSError."""
    os.write(2, f"{first}\n".encode(errors="backslashreplace"))
    shortening = _Shortening()
    shortening.emit(None)
    logging.getLogger().addHandler(shortening)


class _Shortening(logging.Handler):
    def emit(self, record: logging.LogRecord | None) -> None:
        if (size := os.fstat(2).st_size) > MAX_LOG:
            _, _, kept = os.pread(2, MAX_LOG // 2, size - MAX_LOG // 2).partition(b"\n")
            os.ftruncate(2, 0)
            os.write(2, kept)


class _Log:
    """Writes events as log lines. A server can cause warnings at will: of those about the same cause, one line a second
    is written, with a count of the rest."""

    def __init__(self, log: logging.Logger, levels: LeastLevels, without: tuple[type, ...] = ()) -> None:
        self._log = log
        self._without = without
        numbers = logging.getLevelNamesMapping()
        self._least = {part: numbers[levels.of(part).upper()] for part in EVENT_PARTS}
        log.setLevel(min(numbers[levels.level.upper()], *self._least.values()))
        self._last: dict[tuple[str, ...], float] = {}
        self._held: dict[tuple[str, ...], int] = {}

    def note(self, event: Event) -> None:
        severity = event.severity
        if severity < self._least[event.part] or isinstance(event, self._without):
            return
        if severity is Severity.WARNING and not isinstance(event, ConfirmationRequested):
            self._limited((type(event).__name__, *_cause(event)), event)
        else:
            problem = event.problem if isinstance(event, InternalError) else None
            self._log.log(severity, "%s", event, exc_info=problem, extra={"event": event})

    def _limited(self, cause: tuple[str, ...], event: Event) -> None:
        now = time.monotonic()
        if now - self._last.get(cause, -10.0) < 1.0:
            self._held[cause] = self._held.get(cause, 0) + 1
            return
        if len(self._last) >= MAX_CAUSES:
            self._last = {each: last for each, last in self._last.items() if now - last < 1.0}
            self._held = {each: count for each, count in self._held.items() if each in self._last}
        self._last[cause] = now
        held = self._held.pop(cause, 0)
        more = f" (and {held} more like it)" if held else ""
        self._log.warning("%s%s", event, more, extra={"event": event, "held": held})


def _cause(event: Event) -> tuple[str, ...]:
    """The cause of a warning, by which the rate of its lines is limited."""
    match event:
        case MessageDropped(server, what) | DefinitionChanged(server, what=what):
            return server, what
        case EntryOmitted(server, cause=cause):
            return server, cause
        case AttemptRefused(server, attempt):
            return server, attempt.reason
        case ListsSlowed(server):
            return server, "slow"
        case SecretWithheld(server, where):
            return server, where
        case RuleUnused(server, rule):
            return server, rule
        case ServerRequestRefused(server, request, why):
            return server, request, why
    # Also of a sandbox: a hostile program is refused as much as it likes, and the server's own log has more of it.
    return (event.server,) if hasattr(event, "server") else ()
