"""Text for a terminal: colours, its width, differences, text of servers that cannot steer it, and what a command says
while it waits."""

from __future__ import annotations

import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, TextIO

from host.non_blocking import NonBlockingStream

DEFAULT_WIDTH = 80
"""Columns of a terminal that does not tell them."""
MOMENT = 3.0
"""Seconds for which a command waits without a word."""
CLEAR_LINE = "\r\x1b[K"
_COLOUR = re.compile("\x1b\\[[0-9]*m")
_NARROWEST = 30
"""Columns in which text is wrapped beside other text; where there are fewer, it begins on the next line."""


class Terminal:
    """Text with colours if the stream is a terminal and NO_COLOR is not set.

    Attributes:
        width: the columns of the terminal; None if the stream is none, and nothing is wrapped or cut.
    """

    _STATES: ClassVar = {
        "ready": "32",
        "starting": "33",
        "failed": "31",
        "stopped": "2",
        "disabled": "2",
        "held": "33",
        "installing": "33",
        "needs login": "33",
        "needs folder": "2",
        "asks": "33",
    }

    def __init__(self, out: TextIO | NonBlockingStream) -> None:
        self.out = out
        self._colours = out.isatty() and "NO_COLOR" not in os.environ
        self.width = _columns(out) if out.isatty() else None

    def state(self, state: str) -> str:
        return self._paint(f"{state:<8}", self._STATES.get(state, "0"))

    def faint(self, text: str) -> str:
        return self._paint(text, "2") if text else ""

    def paragraph(self, before: str, text: str, *, indent: int, faint: bool = False) -> str:
        """The beginning of a line, and the text after it. On a terminal the text is wrapped, and its further lines are
        indented; otherwise all of it stays on one line."""
        paint = self.faint if faint else str
        if not text or self.width is None:
            return f"{before}{paint(text)}".rstrip()
        if self.width - indent < _NARROWEST:
            indent = min(indent, 4)
            return "\n".join([before.rstrip(), *self._indented(text, indent, 0, paint)])
        used = columns(_COLOUR.sub("", before))
        return before + "\n".join(self._indented(text, indent, used, paint)).lstrip(" ")

    def room(self, before: str, indent: int) -> int:
        """The columns that a text has in `paragraph` if it is to take one line."""
        width = self.width or DEFAULT_WIDTH
        if width - indent < _NARROWEST:
            return width - min(indent, 4)
        return width - min(max(indent, columns(before)), width - _NARROWEST)

    def _indented(self, text: str, indent: int, used: int, paint: Callable[[str], str]) -> list[str]:
        width = max((self.width or DEFAULT_WIDTH) - indent, 16)
        return [" " * indent + paint(line) for line in wrap(text, width, taken=max(used - indent, 0))]

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
    """Text of a server for a terminal: nothing in it can move the cursor or change a colour."""
    return "".join(char if char.isprintable() or (lines and char in "\n\t") else ascii(char)[1:-1] for char in text)


def columns(text: str) -> int:
    """Columns that printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(char) for char in text)


def cut(text: str, width: int) -> str:
    """The beginning of the text that fits into so many columns, with an ellipsis if that is not all of it."""
    return text if columns(text) <= width else _beginning(text, width - 1) + "…"


def wrap(text: str, width: int, taken: int = 0) -> list[str]:
    """Text in lines of at most so many columns; of the first one, `taken` are in use. A longer word is broken."""
    lines = [""]
    room = width - taken
    for word in text.split():
        if lines[-1] and columns(lines[-1]) + 1 + columns(word) <= room:
            lines[-1] += f" {word}"
            continue
        if lines[-1] or columns(word) > room < width:
            lines.append("")
            room = width
        while columns(word) > width:
            part = _beginning(word, width)
            lines[-1] = part
            lines.append("")
            word = word[len(part) :]
        lines[-1] = word
    return lines


def _beginning(text: str, width: int) -> str:
    taken = 0
    for at, char in enumerate(text):
        taken += _columns_of(char)
        if taken > width and at:
            return text[:at]
    return text


def _columns_of(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _columns(out: TextIO | NonBlockingStream) -> int:
    """The width of a terminal, at least 20 columns."""
    try:
        found = os.get_terminal_size(out.fileno()).columns if not isinstance(out, NonBlockingStream) else 0
    except (OSError, ValueError):  # a terminal in name only
        found = 0
    return max(found or DEFAULT_WIDTH, 20)


# What is waited for


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say on standard error that the command waits `what` (`for …`), if the block takes longer than a moment."""
    timer = threading.Timer(MOMENT, say_waiting, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say_waiting(what: str) -> None:
    """Say it, in the place of a bar that was drawn there."""
    clear = CLEAR_LINE if sys.stderr.isatty() else ""
    print(f"{clear}colonnade: waiting {what}", file=sys.stderr, flush=True)
