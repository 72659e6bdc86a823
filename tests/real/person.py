"""A person at a terminal, who answers the questions of a command."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


class Person:
    """Reads what a command prints, and types the answer whose pattern what was printed last ends with.

    Attributes:
        said: all that was printed.
        typed: the answers so far.
    """

    def __init__(self, terminal: int, answers: Mapping[str, str]) -> None:
        self.said = ""
        self.typed: list[str] = []
        self._terminal = terminal
        self._answers = {re.compile(f"(?:{pattern})$"): answer for pattern, answer in answers.items()}
        self._answered = 0
        """The characters up to the last question that was answered."""

    def sit(self) -> None:
        """Read and answer until the command ends."""
        with suppress(OSError):  # the terminal is closed
            while data := os.read(self._terminal, 4096):
                self.said += data.decode(errors="replace")
                self._answer()

    def _answer(self) -> None:
        found = next((answer for pattern, answer in self._answers.items() if pattern.search(self._fresh)), None)
        if found is not None:
            self._answered = len(self.said)
            self.typed.append(found)
            os.write(self._terminal, f"{found}\n".encode())

    @property
    def _fresh(self) -> str:
        return self.said[self._answered :]


@contextmanager
def at_terminal(
    command: Sequence[str], answers: Mapping[str, str], cwd: Path, env: Mapping[str, str]
) -> Iterator[tuple[Person, subprocess.Popen[bytes]]]:
    """The command at a terminal, with a person; it is ended with the block."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=dict(env), start_new_session=True
    )
    os.close(theirs)
    person = Person(ours, answers)
    reader = threading.Thread(target=person.sit, daemon=True)
    reader.start()
    try:
        yield person, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        reader.join(5)
        os.close(ours)


def answered(
    command: Sequence[str], answers: Mapping[str, str], cwd: Path, env: Mapping[str, str], seconds: float
) -> tuple[int, Person]:
    """Run the command to its end. Its exit code, and the person.

    Raises:
        subprocess.TimeoutExpired: it did not end.
    """
    with at_terminal(command, answers, cwd, env) as (person, process):
        code = process.wait(seconds)
    return code, person
