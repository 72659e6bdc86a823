"""Two changes of one text made together, as when a change is undone in a text that somebody else changed since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_MOST_LINES = 5000
"""Longer pieces that differ are not compared line by line: that takes time in proportion to the square."""


class _Edit(NamedTuple):
    """A span of a text, and the text that takes its place."""

    start: int
    end: int
    is_second: bool
    new: str


def both_changes(text: str, first: str, second: str) -> str | None:
    """The text with what changed to `first` and what changed to `second`. None if they change the same place.

    Where both put something in, that of `first` comes before.
    """
    made, at = "", 0
    for edit in sorted((*_edits(text, first, False), *_edits(text, second, True)), key=lambda edit: edit[:3]):
        if edit.start < at:
            return None
        made += text[at : edit.start] + edit.new
        at = edit.end
    return made + text[at:]


def _edits(text: str, changed: str, is_second: bool) -> Iterator[_Edit]:
    old, new = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    start = shared_start(old, new)
    end = shared_start(old[start:][::-1], new[start:][::-1])
    middle, other = old[start : len(old) - end], new[start : len(new) - end]
    blocks = [(0, len(middle), 0, len(other))]
    if max(len(middle), len(other)) <= _MOST_LINES:
        codes = SequenceMatcher(None, middle, other).get_opcodes()
        blocks = [code[1:] for code in codes if code[0] != "equal"]
    offset = sum(map(len, old[:start]))
    for first, last, other_first, other_last in blocks:
        before, after = "".join(middle[first:last]), "".join(other[other_first:other_last])
        same = shared_start(before, after)
        before, after = before[same:], after[same:]
        tail = shared_start(before[::-1], after[::-1])
        at = offset + sum(map(len, middle[:first])) + same
        yield _Edit(at, at + len(before) - tail, is_second, after[: len(after) - tail])


def shared_start(old: Sequence[str], new: Sequence[str]) -> int:
    """The number of lines, or characters, at the beginning that are the same."""
    same, end = 0, min(len(old), len(new))
    while same < end:
        middle = (same + end + 1) // 2
        if old[same:middle] == new[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same
