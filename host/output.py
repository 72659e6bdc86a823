"""What people see on a terminal and in the log. Text of servers is escaped, colours are only for terminals, and whoever
does not read holds nobody up."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import ClassVar, TextIO

from host.journal import (
    ConfigReloaded,
    ConfirmationRequested,
    DefinitionChanged,
    EntryOmitted,
    Event,
    InstanceFailed,
    InternalError,
    Journal,
    MessageDropped,
    RequestCompleted,
    RuleUnused,
    ServerFailed,
    ServerReady,
    ServerRequestRefused,
    Severity,
    StderrLine,
)
from host.non_blocking import NonBlockingStream


class Terminal:
    """Colours where a person looks, none where a program reads."""

    _STATES: ClassVar = {"ready": "32", "starting": "33", "failed": "31", "disabled": "2", "held": "33", "asks": "33"}

    def __init__(self, out: TextIO | NonBlockingStream) -> None:
        self.out = out
        self._colours = out.isatty() and "NO_COLOR" not in os.environ

    def state(self, state: str) -> str:
        return self._paint(f"{state:<8}", self._STATES.get(state, "0"))

    def faint(self, text: str) -> str:
        return self._paint(text, "2") if text else ""

    def difference(self, pieces: Iterable[Mapping[str, str]]) -> list[str]:
        """A difference of two texts, line by line: removed words in [-…-], added ones in {+…+}."""
        signs = {"added": ("{+", "+}", "32"), "removed": ("[-", "-]", "31")}
        lines = [""]
        for piece in pieces:
            before, after, code = signs.get(piece["op"], ("", "", ""))
            for at, part in enumerate(piece["text"].split("\n")):
                if at:
                    lines.append("")
                lines[-1] += self._paint(f"{before}{part}{after}", code) if code and part.strip() else part
        return lines

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text


def printable(text: str, *, lines: bool = False) -> str:
    """Text of a server, fit for a terminal: nothing in it can move the cursor or change a colour."""
    return "".join(char if char.isprintable() or (lines and char in "\n\t") else ascii(char)[1:-1] for char in text)


class StatusLines:
    """A line for whoever watches, whenever a server becomes ready, or fails in a way that was not told yet; whenever a
    person is asked, and after a reload. There is a line for nothing but what `SHOWN_EVENTS` has."""

    SHOWN_EVENTS: ClassVar = (ServerReady, ServerFailed, ConfirmationRequested, ConfigReloaded)

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._last_stderr: dict[str, str] = {}
        self._last_failure: dict[str, str] = {}

    def note(self, event: Event) -> None:
        if isinstance(event, StderrLine):
            self._last_stderr[event.server] = event.line
        elif isinstance(event, ServerReady):
            self._last_failure.pop(event.server, None)
            counts = f"({event.counts}, {event.seconds:.1f} s)"
            self._write(f"  {event.server:<20} {self._terminal.state('ready')} {self._terminal.faint(counts)}")
        elif isinstance(event, ServerFailed) and self._last_failure.get(event.server) != event.why:
            self._last_failure[event.server] = event.why
            self._write(f"  {event.server:<20} {self._terminal.state('failed')} {event.outlook}")
            if event.server in self._last_stderr:
                self._write(
                    f"  {'':<20} {self._terminal.faint('it said last: ' + self._last_stderr.pop(event.server))}"
                )

        elif isinstance(event, ConfirmationRequested):
            said = f"{event.what}: colonnade ask {event.id}"
            self._write(f"  {event.server:<20} {self._terminal.state('asks')} {said}")
        elif isinstance(event, ConfigReloaded):
            self._write(f"  {event}")

    def _write(self, line: str) -> None:
        self._terminal.out.write(line + "\n")


def open_log(level: str, *, without: tuple[type, ...] = ()) -> Journal:
    """A journal whose events go to standard error, without those kinds that are shown there already."""
    errors = NonBlockingStream(sys.stderr)
    atexit.register(errors.close)
    logging.basicConfig(stream=errors, level=logging.ERROR, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("colonnade")
    log.setLevel(level.upper())
    journal = Journal()
    journal.subscribe(_Log(log, without).note)
    return journal


class _Log:
    """Writes events as log lines; of warnings about the same, which a server may cause at will, one line a second and a
    count of the rest."""

    def __init__(self, log: logging.Logger, without: tuple[type, ...] = ()) -> None:
        self._log = log
        self._without = without
        self._last: dict[tuple[str, ...], float] = {}
        self._held: dict[tuple[str, ...], int] = {}

    def note(self, event: Event) -> None:
        if isinstance(event, self._without):
            return
        if event.severity is Severity.WARNING and not isinstance(event, ConfirmationRequested):
            self._limited((type(event).__name__, *_cause(event)), event)
        else:
            problem = event.problem if isinstance(event, InternalError) else None
            self._log.log(event.severity, "%s", event, exc_info=problem)

    def _limited(self, cause: tuple[str, ...], event: Event) -> None:
        now = time.monotonic()
        if now - self._last.get(cause, -10.0) < 1.0:
            self._held[cause] = self._held.get(cause, 0) + 1
            return
        self._last[cause] = now
        held = self._held.pop(cause, 0)
        self._log.warning("%s%s", event, f" (and {held} more like it)" if held else "")


def _cause(event: Event) -> tuple[str, ...]:
    """What a warning is about: of those that are about the same, one line a second is written."""
    match event:
        case MessageDropped(server, what) | DefinitionChanged(server, what=what):
            return server, what
        case EntryOmitted(server, cause=cause):
            return server, cause
        case RuleUnused(server, rule):
            return server, rule
        case ServerRequestRefused(server, question, why):
            return server, question, why
        case ServerFailed(server) | InstanceFailed(server) | RequestCompleted(server):
            return (server,)
    return ()
