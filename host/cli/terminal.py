"""Text for a terminal: colours, differences, and text of servers that cannot steer it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import ClassVar, TextIO

from host.non_blocking import NonBlockingStream


class Terminal:
    """Text with colours if the stream is a terminal and NO_COLOR is not set."""

    _STATES: ClassVar = {
        "ready": "32",
        "starting": "33",
        "failed": "31",
        "stopped": "2",
        "disabled": "2",
        "held": "33",
        "asks": "33",
    }

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
    """Text of a server for a terminal: nothing in it can move the cursor or change a colour."""
    return "".join(char if char.isprintable() or (lines and char in "\n\t") else ascii(char)[1:-1] for char in text)
