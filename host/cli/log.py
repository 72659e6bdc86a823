"""The log of a host, and its status lines for the person who started it."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from typing import ClassVar

from host.cli.terminal import Terminal
from host.journal import (
    AttemptRefused,
    ConfigReloaded,
    ConfirmationRequested,
    DefinitionChanged,
    EntryOmitted,
    Event,
    InstanceFailed,
    InternalError,
    Journal,
    ListsSlowed,
    LoginFailed,
    MessageDropped,
    OutputLine,
    RequestCompleted,
    RequestFailed,
    RuleUnused,
    SandboxRefused,
    SecretWithheld,
    ServerFailed,
    ServerHeld,
    ServerNeedsLogin,
    ServerReady,
    ServerRequestRefused,
    ServerUnconfined,
    Severity,
    TokenNotRefreshed,
)
from host.non_blocking import NonBlockingStream

MAX_LOG = 1024 * 1024
"""Bytes of the log of hosts in the background; the newer half of a longer one is kept."""


class StatusLines:
    """A line when a server becomes ready, when it fails for a new reason, when a person is needed, and after a reload.
    Only the events of SHOWN_EVENTS have one."""

    SHOWN_EVENTS: ClassVar = (
        ServerReady,
        ServerFailed,
        ServerHeld,
        ServerNeedsLogin,
        ConfirmationRequested,
        ConfigReloaded,
    )

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._last_failure: dict[str, str] = {}
        self._has_said: set[str] = set()
        """Servers that wrote to their standard error since that was last pointed out."""

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
        self._terminal.out.write(line + "\n")


def open_log(level: str, *, without: tuple[type, ...] = ()) -> Journal:
    """A journal whose events are logged to standard error, without the types that are shown there already."""
    errors = NonBlockingStream(sys.stderr)
    atexit.register(errors.close)
    logging.basicConfig(stream=errors, level=logging.ERROR, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("colonnade")
    log.setLevel(level.upper())
    journal = Journal()
    journal.subscribe(_Log(log, without).note)
    return journal


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

    def __init__(self, log: logging.Logger, without: tuple[type, ...] = ()) -> None:
        self._log = log
        self._without = without
        self._last: dict[tuple[str, ...], float] = {}
        self._held: dict[tuple[str, ...], int] = {}

    def note(self, event: Event) -> None:
        severity = event.severity
        if severity < self._log.level or isinstance(event, self._without):
            return
        if severity is Severity.WARNING and not isinstance(event, ConfirmationRequested):
            self._limited((type(event).__name__, *_cause(event)), event)
        else:
            problem = event.problem if isinstance(event, InternalError) else None
            self._log.log(severity, "%s", event, exc_info=problem)

    def _limited(self, cause: tuple[str, ...], event: Event) -> None:
        now = time.monotonic()
        if now - self._last.get(cause, -10.0) < 1.0:
            self._held[cause] = self._held.get(cause, 0) + 1
            return
        self._last[cause] = now
        held = self._held.pop(cause, 0)
        self._log.warning("%s%s", event, f" (and {held} more like it)" if held else "")


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
        case SandboxRefused(server):  # a hostile program has as many as it likes; the server's own log has more of them
            return (server,)
        case ServerRequestRefused(server, request, why):
            return server, request, why
        case ServerUnconfined(server):
            return (server,)
        case ServerFailed(server) | ServerHeld(server) | ServerNeedsLogin(server):
            return (server,)
        case InstanceFailed(server) | RequestCompleted(server) | RequestFailed(server):
            return (server,)
        case TokenNotRefreshed(server) | LoginFailed(server):
            return (server,)
    return ()
