"""The lines that a server's program writes beside its messages, and how it ended; of a confined one also what the
results of failed calls say about refusals.

These are standard error, and the lines on standard output that are no messages. They are made fit for people, without
the secrets of the configuration, and kept in the journal. The last ones explain the end of the program: those that were
written shortly before it, and not those before a kill, which came from outside.
"""

from __future__ import annotations

import signal
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import trio
from msgspec import Raw

from config import ServerSpec, StdioServer
from config.container_run import container_run
from host.journal import MAX_OUTPUT_LINES, Journal, OutputLine, OutputRecord
from host.sanitize import shortened, visible_output
from host.upstream.contained import remedy_for
from host.upstream.results import text_in
from host.upstream.server_secrets import ServerSecrets
from host.upstream.stderr import find_reason
from host.wire.framing import LineSplitter, LineTooLong
from host.wire.process import Child
from host.wire.stdio import CHUNK
from host.wire.turns import Turn

if TYPE_CHECKING:
    from host.upstream.refusals import SaidRefusals

MAX_LINE = 64 * 1024
LONGEST_FAILURE = 64 * 1024
"""Bytes of a result that is looked at for refusals."""
FAILURE_LENGTH = 8 * 1024
"""Characters of its text that are looked at."""
MOST_FAILURES = 16
"""Results of one child that wait to be looked at; more are not."""
LINE_LENGTH = 1_000
"""Characters of a line that are kept."""
STDERR_WAIT = 0.5
"""Seconds to wait for the rest of standard error after the end of a child. Its own children may keep it open."""
REASON_WINDOW = 10.0
"""Seconds before the end of a program in which it gives its reason; earlier errors were about something else."""

_OWN_FAULTS = frozenset(
    (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP)
)
"""Signals that end a program because of its own fault. Their reason may stand in its output."""
_OF_SHELLS = 128
"""A shell, or docker, exits with this and the signal that ended the program it had started."""


class ProgramOutput:
    """The lines of one child, of which the last are kept with their times."""

    def __init__(self, spec: ServerSpec, journal: Journal, turn: Turn, said: SaidRefusals | None = None) -> None:
        self._spec = spec
        self._said = said
        self._journal = journal
        self._turn = turn
        self._redact = ServerSecrets(spec).redact
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=MAX_OUTPUT_LINES)
        self._stderr_ended = trio.Event()
        self._failed, self._failures = trio.open_memory_channel[str](MOST_FAILURES)

    @property
    def lines(self) -> list[str]:
        """The last lines."""
        return [text for _, _, text in self._lines]

    async def read_stderr(self, stderr: trio.abc.ReceiveStream) -> None:
        """Read standard error to its end. Never stops, because a full pipe would block the child."""
        lines = LineSplitter(MAX_LINE)
        try:
            while data := await stderr.receive_some(CHUNK):
                self._turn.begin()
                try:
                    for line in lines.feed(bytes(data)):
                        await self._look_at(self._take(line, "stderr"))
                        await self._turn.yield_if_over()
                except LineTooLong:
                    lines = LineSplitter(MAX_LINE)
            if last := lines.rest():
                await self._look_at(self._take(last, "stderr"))
        except trio.BrokenResourceError:
            pass
        finally:
            self._stderr_ended.set()

    def take_stdout(self, line: bytes) -> None:
        """Take a line of standard output that is no message."""
        self._take(line, "stdout")

    def take_tool_error(self, result: Raw) -> None:
        """Take the result of a tool that says that the call failed: `look_at_failures` looks at its text."""
        if len(result) <= LONGEST_FAILURE:
            with suppress(trio.WouldBlock):
                self._failed.send_nowait(self._redact(text_in(result))[:FAILURE_LENGTH])

    async def look_at_failures(self) -> None:
        """Look for refusals in the results that were taken, until cancelled. The calls do not wait for that."""
        async for text in self._failures:
            for line in text.splitlines():
                await self._look_at(shortened(self._redact(visible_output(line)), LINE_LENGTH))

    async def _look_at(self, text: str) -> None:
        if self._said is not None:
            await self._said.take(text)

    def _take(self, line: bytes, stream: Literal["stderr", "stdout"]) -> str:
        text = self._redact(visible_output(line[:MAX_LINE].decode(errors="replace")))
        if text.strip():
            text = shortened(text, LINE_LENGTH)
            self._lines.append((trio.current_time(), stream, text))
            self._journal.note(OutputLine(self._spec.id, text, stream))
        return text

    async def describe_end(self, child: Child) -> str:
        """Wait for the end of the child; how it ended, and the reason that it gave."""
        status = await child.wait()
        with trio.move_on_after(STDERR_WAIT):
            await self._stderr_ended.wait()
        if child.over and self._said is not None:
            return self._said.describe_excess(child.over)
        if (number := _killed_by(status)) is not None and number not in _OWN_FAULTS:
            return _describe_kill(status, number)
        reason = self._find_reason(0 if status < 0 else status)
        said = f"it crashed with {_describe_signal(-status)}" if status < 0 else f"it exited with status {status}"
        if reason is not None:
            return f"{said}: {reason}" + self._remedy_for(reason)
        if status == 0 and _lacks_input(self._spec):
            return f"{said}: its container gets no input: add -i behind run in its command"
        if status == 0:
            return f"{said}, as if it had finished: over stdio a server runs until its standard input is closed"
        return f"{said} and gave no reason" + (f" (colonnade logs {self._spec.id})" if self._lines else "")

    def _remedy_for(self, reason: str) -> str:
        """The remedy for a container that its client program could not start, or for its sandbox."""
        in_container = isinstance(self._spec, StdioServer) and self._spec.runtime
        if in_container and (remedy := remedy_for(reason)):
            return f"; {remedy}"
        return self._said.hint if self._said else ""

    def _find_reason(self, status: int) -> str | None:
        since = trio.current_time() - REASON_WINDOW
        recent = {
            wanted: [text for at, stream, text in self._lines if stream == wanted and at >= since]
            for wanted in ("stderr", "stdout")
        }
        return find_reason(recent["stderr"], status) or (find_reason(recent["stdout"], status) if status else None)


class DroppedAnswers:
    """The answers of a server on one connection that were dropped because they answer no request.

    Attributes:
        why: the reason for the last one, in words of ours.
        said: the last one, for people.
    """

    def __init__(self) -> None:
        self.count = 0
        self.why = self.said = ""

    def add(self, why: str, said: str) -> None:
        self.count += 1
        self.why, self.said = why, said


def describe_silence(output: list[OutputRecord], dropped: DroppedAnswers | None = None) -> str:
    """The output of a program that did not respond, and the remedy. Answers of it that were dropped come first: a
    program that answers is no slow one."""
    if dropped is not None and dropped.count:
        times = "once" if dropped.count == 1 else f"{dropped.count} times"
        return f"it answered {times} with what is no answer to a request: {dropped.why}"
    stderr = find_reason([each.line for each in output if each.stream == "stderr"])
    said = f'; its standard error ends with "{stderr}"' if stderr is not None else ""
    text = next((each.line for each in output if each.stream == "stdout"), None)
    if text is None:
        return f"if it needs longer, raise start_timeout{said}"
    return f'its standard output is no JSON-RPC but begins "{text[:100]}"; it may need an option for stdio{said}'


def _lacks_input(spec: ServerSpec) -> bool:
    """Whether the program runs a container that does not get its input."""
    run = container_run([word.reveal() for word in spec.command]) if isinstance(spec, StdioServer) else None
    return run is not None and not run.interactive


def _killed_by(status: int) -> int | None:
    """The signal that ended the program, or the one that it had started; None if it ended by itself."""
    if status < 0:
        return -status
    killing = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
    return status - _OF_SHELLS if status - _OF_SHELLS in killing else None


def _describe_kill(status: int, number: int) -> str:
    said = f"it exited with status {status}, as after " if status > 0 else "it was ended by "
    cause = " (by a person, or by the system because memory ran out)" if number == signal.SIGKILL else ""
    return f"{said}{_describe_signal(number)}{cause}"


def _describe_signal(number: int) -> str:
    known = number in {each.value for each in signal.Signals}
    return f"signal {number}" + (f", {signal.Signals(number).name}" if known else "")
