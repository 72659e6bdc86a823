"""The arguments of a call for the person who confirms it: JSON laid out, with marks in the place of texts of several
lines, and beside it these texts with their line breaks, and edits as differences.

Nothing is left out: with the texts in the place of their marks, the layout is that of `fingerprint.pretty`. A mark
stands without quotes, where no text of a client can stand.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby

from host.policy.fingerprint import (
    Members,
    Pieces,
    Verbatim,
    find_stretches,
    lay_out,
    parse_for_layout,
    pieces_of,
    visible_lines,
)
from host.policy.rows import ArgumentText, DiffPiece, OutlinePiece

_OLD = re.compile(r"old_?(?:text|string|str|code|content)", re.IGNORECASE)
"""Names of the former text of an edit; that of the new text has `new` in the place of `old`."""
_PATCH = re.compile(r"^(?:@@ |@@$|\*\*\* Begin Patch$)", re.MULTILINE)
_PATCH_HEADS = ("+++ ", "--- ")
_MARK = re.compile("\0([^\0]*)\0")
"""A mark in a layout, which escapes NUL everywhere else."""
_MOST_TEXTS = 200
"""Further texts stay in the layout."""
_EFFORT = 60_000
"""Steps of all comparisons, some 10 ms; an edit that needs more than its part is shown as removed and added."""


@lru_cache(maxsize=100)  # all confirmations are shown again whenever one changes; their arguments are short
def outlined(raw: bytes) -> tuple[list[OutlinePiece], list[ArgumentText]]:
    """The layout with its marks, and the texts in the order of their marks; both are empty if there is no such text, or
    the arguments cannot be laid out. Invisible characters are made visible; line feed and tab stay in the texts."""
    try:
        value = parse_for_layout(raw)
        found = _Texts()
        layout = lay_out(found.replaced("", value))
    except (ValueError, RecursionError):
        return [], []
    if not found.texts:
        return [], []
    pieces = _MARK.split(visible_lines(layout, "\n\0"))
    outline = [OutlinePiece(text=piece, mark=at % 2 == 1) for at, piece in enumerate(pieces)]
    return outline, found.rows()


class _Texts:
    """The texts that were taken out of a value."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, str, str]] = []
        """For each its kind, its name, the former text of an edit, and the text."""

    def rows(self) -> list[ArgumentText]:
        effort = _EFFORT // max(1, sum(kind == "edit" for kind, *_ in self.texts))
        return [
            {"kind": kind, "name": visible_lines(name, ""), "pieces": _pieces(kind, old, text, effort)}
            for kind, name, old, text in self.texts
        ]

    def replaced(self, name: str, value: object) -> object:
        """The value with marks in the place of its texts; `name`: that of the member that it is."""
        if isinstance(value, Members):
            value = self._without_edits(value)
            return Members([(name, self.replaced(name, each)) for name, each in value.in_order()])
        if isinstance(value, list):
            return [self.replaced("", each) for each in value]
        if isinstance(value, str) and "\n" in value.strip("\n") and len(self.texts) < _MOST_TEXTS:
            kind = "patch" if _PATCH.search(value) else "text"
            return self._mark(kind, name, "", value)
        return value

    def _without_edits(self, members: Members) -> Members:
        pairs = members.in_order()
        by_name = dict(pairs)
        if len(by_name) < len(pairs):  # which of two equal names counts, nobody knows
            return members
        for old_name, old in pairs:
            new_name = f"new{old_name[3:]}"
            new = by_name.get(new_name)
            is_edit = _OLD.fullmatch(old_name) and old_name != new_name
            if is_edit and isinstance(old, str) and isinstance(new, str) and len(self.texts) < _MOST_TEXTS:
                mark = self._mark("edit", f"{old_name}, {new_name}", old, new).text.strip("\0")
                by_name |= {old_name: Verbatim(f"\0{mark}: removed\0"), new_name: Verbatim(f"\0{mark}: added\0")}
        return Members(list(by_name.items()))

    def _mark(self, kind: str, name: str, old: str, text: str) -> Verbatim:
        self.texts.append((kind, name, old, text))
        return Verbatim(f"\0{kind} {len(self.texts)}\0")


def _pieces(kind: str, old: str, text: str, effort: int) -> list[DiffPiece]:
    lines: Pieces
    if kind == "edit":
        lines = pieces_of(find_stretches(_split(old), _split(text), effort))
    elif kind == "patch":
        lines = [(op, list(each)) for op, each in groupby(_split(text), _op_of)]
    else:
        lines = [("same", _split(text))]
    return [{"op": op, "text": visible_lines("\n".join(each), "\n\t")} for op, each in lines]


def _split(text: str) -> list[str]:
    """The lines, of which the last one has no line feed: it is empty if the text ends with one."""
    return text.split("\n") if text else []


def _op_of(line: str) -> str:
    """The kind of a line of a patch, by its first characters."""
    if line.startswith(_PATCH_HEADS):
        return "same"
    return {"+": "added", "-": "removed"}.get(line[:1], "same")
