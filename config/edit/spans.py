"""The terms of changes of a text, which all syntaxes share."""

from __future__ import annotations

from typing import NamedTuple

ValuePath = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""


class CannotEdit(Exception):
    """A text cannot be changed; the sentence says why and quotes no value."""


class Insertion(NamedTuple):
    """A text with a piece that was put in at an offset."""

    text: str
    at: int
    piece: str


class Cut(NamedTuple):
    """A text without a value, and the value as it was written."""

    rest: str
    piece: str


def inserted(text: str, at: int, piece: str) -> Insertion:
    """The text with the piece at the offset."""
    return Insertion(text[:at] + piece + text[at:], at, piece)


def line_end(text: str) -> str:
    """The line end that a text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def line_start(text: str, at: int) -> int:
    """The offset at which the line of an offset begins."""
    return text.rfind("\n", 0, at) + 1


def indentation(text: str, at: int) -> str:
    """The white space at the beginning of the line of an offset."""
    start = line_start(text, at)
    end = start
    while end < len(text) and text[end] in " \t":
        end += 1
    return text[start:end]


def without(text: str, spans: list[tuple[int, int]]) -> str:
    """The text without some spans, which may touch and do not overlap."""
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + text[end:]
    return text
