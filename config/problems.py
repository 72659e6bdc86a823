"""Problems of a configuration file, and the one exception that lists them.

A problem has a place in the file and a sentence for the person who mends it. It never holds the text of a value that
may be secret: the code that makes a problem decides what may be shown, and `clip` keeps a shown word short and on one
line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

LONGEST_QUOTE = 40
"""Characters of a text from a file that an error repeats."""

KeyPath = tuple[str | int | None, ...]
"""The way from the top of a file to a value: keys of maps and indexes of lists. None stands for a key that was
refused."""


class Mark(NamedTuple):
    """A place in a file. Both counts begin at 1; a column counts characters, not bytes."""

    line: int
    column: int


@dataclass(frozen=True)
class Problem:
    """One thing to mend: `file:line:column: where: text`; `where` is empty when the whole file is meant."""

    file: str
    line: int
    column: int
    where: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}"
        return f"{place}: {self.where}: {self.text}" if self.where else f"{place}: {self.text}"


class ConfigError(Exception):
    """The file cannot be used. `problems` holds all that was found, in the order of the file; never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        super().__init__("\n".join(map(str, self.problems)))


def printable(text: str) -> str:
    """A text for one line: each character that is not printable becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in text)


def clip(word: str) -> str:
    """A word from the file, fit for one line of a message: printable and at most forty characters."""
    line = printable(word)
    return line if len(line) <= LONGEST_QUOTE else line[: LONGEST_QUOTE - 1] + "…"


def nearest_word(found: str, words: Iterable[str]) -> str | None:
    """The permitted word that is most similar to this one; None if none is similar."""
    return next(iter(difflib.get_close_matches(found.lower(), tuple(words), 1)), None)


def did_you_mean(found: str, words: Iterable[str], quote: str = "") -> str:
    """The remedy for a word that is similar to a permitted one; empty if it is similar to none."""
    meant = nearest_word(found, words)
    return f"did you mean {quote}{meant}{quote}?" if meant else ""
