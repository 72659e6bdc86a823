"""Spans of JSON, with comments and final commas.

A member goes to the front of its map: one span with the comma after it, whatever stands behind. If the map begins a new
line after its brace, the member gets a line of its own there; else it stands beside the first one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from config.edit.spans import CannotEdit, Cut, Insertion, ValuePath, indentation, inserted, line_start, without
from config.json_text import COMMENT, Member, is_blank, members, strict
from config.problems import clip

_MARK = "\0"
"""Stands for each character of a comment, line ends included."""
_BLANK = " \t"
_LONGEST_INTEGER = 4000
"""Python reads no integer of more than 4300 digits; such a one stays text here."""


def values(text: str) -> Any:
    """The values of the text.

    Raises:
        CannotEdit: it is not JSON.
    """
    if is_blank(text):
        return {}
    for form in (str, strict):  # most files are standard JSON, which need not be looked through for comments
        with suppress(ValueError, RecursionError):
            return json.loads(form(text), parse_int=_integer)
    # Not within a handler: the error of the parser holds the whole text.
    raise CannotEdit("it is not JSON")


def _integer(digits: str) -> int | str:
    return digits if len(digits) > _LONGEST_INTEGER else int(digits)


def insert(text: str, path: ValuePath, value: Mapping[str, object], newline: str) -> Insertion:
    """Put a value in as the first member of the map above it."""
    return _Text(text, newline).insert(path, value)


def append(text: str, path: ValuePath, value: Mapping[str, object], newline: str) -> Insertion:
    """Put a value in as the last member of the map above it."""
    return _Text(text, newline).append(path, value)


def cut(text: str, path: ValuePath) -> Cut:
    """Take a member out, and the comma that it leaves; comments beside it stay."""
    return _Text(text, "\n").cut(path)


def paste(text: str, path: ValuePath, piece: str, newline: str) -> Insertion:
    """Put the text of a value in as the first member of the map above it."""
    return _Text(text, newline).paste(path, piece)


class _Text:
    def __init__(self, text: str, newline: str) -> None:
        self.text = text
        self.newline = newline
        self.strict = strict(text)
        self.marked = COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else _MARK * len(match[0]), text)
        self.is_blank = is_blank(text)
        self.root = self._skip(0)
        self.unit = self._unit()

    def insert(self, path: ValuePath, value: Mapping[str, object]) -> Insertion:
        if self.is_blank:
            return self._new(path, self._nested(path, value, ""))
        start, rest = self._deepest(path)
        if self.marked[start] != "{":
            return self._with_map(start).insert(path, value)
        return self._put(start, rest[0], lambda indent: self._nested(rest, value, indent))

    def append(self, path: ValuePath, value: Mapping[str, object]) -> Insertion:
        if self.is_blank:
            return self.insert(path, value)
        start, rest = self._deepest(path)
        found = self._members(start) if self.marked[start] == "{" else {}
        if len(rest) != 1 or not found:
            return self.insert(path, value)
        last = list(found.values())[-1]
        comma = self._skip(last.end)
        has_comma = self.marked[comma] == ","
        end = comma + 1 if has_comma else last.end
        key = json.dumps(rest[0], ensure_ascii=False) + ": "
        line = line_start(self.marked, last.key_start)
        stop = self._line_break(end, self._skip(end))
        if stop is None or self.marked[line : last.key_start].strip(_BLANK):
            piece = f"{'' if has_comma else ','} {key}{self._nested(rest, value, None)}{',' if has_comma else ''}"
            return inserted(self.text, end, piece)
        # The comma goes to the member above, before a comment that stands beside it.
        indent = indentation(self.text, last.key_start)
        beside = self.text[end:stop]
        member = f"{self.newline}{indent}{key}{self._nested(rest, value, indent)}{',' if has_comma else ''}"
        text = f"{self.text[:end]}{'' if has_comma else ','}{beside}{member}{self.text[stop:]}"
        return Insertion(text, end, text[end : len(text) - len(self.text) + stop])

    def paste(self, path: ValuePath, piece: str) -> Insertion:
        if self.is_blank:
            return self._new(path, self._nested(path, None, ""), piece)
        start, rest = self._deepest(path)
        if self.marked[start] != "{":
            return self._with_map(start).paste(path, piece)
        return self._put(start, rest[0], lambda indent: self._around(rest, piece))

    def cut(self, path: ValuePath) -> Cut:
        start, rest = self._deepest(path)
        found = self._members(start) if self.marked[start] == "{" else {}
        if len(rest) != 1 or rest[0] not in found:
            raise CannotEdit(f'it has no "{clip(str(path[-1]))}" where it was')
        member = found[str(rest[0])]
        return Cut(without(self.text, self._spans(member)), self.text[member.value_start : member.end])

    def _with_map(self, at: int) -> _Text:
        """The text with an empty map in the place of a null."""
        return _Text(f"{self.text[:at]}{{}}{self.text[at:].removeprefix('null')}", self.newline)

    def _spans(self, member: Member) -> list[tuple[int, int]]:
        """The spans of a member: itself, one comma, and the white space that would be left over."""
        marked = self.marked
        after, before = self._skip(member.end), self._skip_back(member.key_start)
        has_comma = marked[after] == ","
        end = after + 1 if has_comma else member.end
        spans = [(member.key_start, member.end)]
        if has_comma:
            spans.append((after, after + 1))
        elif marked[before] == ",":
            spans.append((before, before + 1))
        line = line_start(marked, member.key_start)
        stop = self._blank_end(end)
        starts_line = line > before and not marked[line : member.key_start].strip(_BLANK)
        is_one_line = "\n" not in self.text[member.end : end]  # no comment within ends on another line
        if starts_line and is_one_line and marked[stop : stop + 1] in ("\r", "\n"):
            # The whole line, with the line end before it. The one after it ends a comment that stands before.
            first = line - 2 if marked[line - 2 : line] == "\r\n" else line - 1
            spans += [(first, member.key_start), (end, stop)]
        elif has_comma:
            spans.append((end, stop))
        else:
            first = member.key_start
            while first > before + 1 and marked[first - 1] in _BLANK:
                first -= 1
            spans.append((first, member.key_start))
        return spans

    def _put(self, start: int, name: str | int, value: Any) -> Insertion:
        """Put a member into the map that begins at an offset."""
        self._members(start)  # refuses duplicates
        first = self._skip(start + 1)
        is_empty = self.marked[first] == "}"
        key = json.dumps(name, ensure_ascii=False) + ": "
        comma = "" if is_empty else ","
        break_at = self._line_break(start + 1, first)
        outer = indentation(self.text, start)
        if break_at is not None:
            starts_line = not is_empty and not self.marked[line_start(self.marked, first) : first].strip(_BLANK)
            indent = indentation(self.text, first) if starts_line else outer + self.unit
            return inserted(self.text, break_at, f"{self.newline}{indent}{key}{value(indent)}{comma}")
        if is_empty and "\n" in self.text and first == start + 1:
            indent = outer + self.unit
            piece = f"{self.newline}{indent}{key}{value(indent)}{self.newline}{outer}"
            return inserted(self.text, first, piece)
        return inserted(self.text, first, f"{key}{value(None)}{comma}{'' if is_empty else ' '}")

    def _new(self, path: ValuePath, value: str, last: str = "null") -> Insertion:
        """A text with a value at the first part of a path. `last` stands for the null at the end of it, and has the
        indentation of its place already."""
        inner = self.newline + self.unit
        piece = f"{{{inner}{json.dumps(path[0])}: {value.replace(self.newline, inner)}{self.newline}}}{self.newline}"
        piece = last.join(piece.rsplit("null", 1))
        before = self.newline if self.text.strip() and not self.text.endswith("\n") else ""
        return inserted(self.text, len(self.text) if self.text.strip() else 0, before + piece)

    def _nested(self, path: ValuePath, value: object, indent: str | None) -> str:
        """A value below the first part of a path. Without an indentation, on one line."""
        for key in reversed(path[1:]):
            value = {key: value}
        if indent is None:
            return json.dumps(value, ensure_ascii=False)
        text = json.dumps(value, ensure_ascii=False, indent=self.unit)
        return text.replace("\n", self.newline + indent)

    def _around(self, path: ValuePath, piece: str) -> str:
        for key in reversed(path[1:]):
            piece = f"{{{json.dumps(key, ensure_ascii=False)}: {piece}}}"
        return piece

    def _deepest(self, path: ValuePath) -> tuple[int, ValuePath]:
        """The innermost map, or null, on the way to a path, and the part of the path that is not in it."""
        start = self.root
        for n, key in enumerate(path[:-1]):
            found = self._members(start)
            if key not in found:
                return start, path[n:]
            start = found[str(key)].value_start
            if self.marked.startswith("null", start):
                return start, path[n + 1 :]
            if self.marked[start] != "{":
                raise CannotEdit(f'its "{clip(str(key))}" is no map')
        return start, path[-1:]

    def _members(self, start: int) -> dict[str, Member]:
        try:
            return members(self.strict, start)
        except ValueError as error:
            problem = CannotEdit(f"it has a {error}")
        raise problem

    def _unit(self) -> str:
        """The indentation of one level: that of the outermost members."""
        first = self._skip(self.root + 1)
        indent = indentation(self.text, first) if self._line_break(self.root + 1, first) is not None else ""
        return indent.removeprefix(indentation(self.text, self.root)) or "  "

    def _line_break(self, start: int, end: int) -> int | None:
        """The offset of the first line end in a span that is not within a comment."""
        at = self.marked.find("\n", start, end)
        if at < 0:
            return None
        return at - 1 if at > start and self.marked[at - 1] == "\r" else at

    def _skip(self, at: int) -> int:
        """The next offset that is neither white space nor a comment."""
        while at < len(self.marked) and (self.marked[at].isspace() or self.marked[at] == _MARK):
            at += 1
        return at

    def _skip_back(self, at: int) -> int:
        at -= 1
        while self.marked[at].isspace() or self.marked[at] == _MARK:
            at -= 1
        return at

    def _blank_end(self, at: int) -> int:
        while at < len(self.marked) and self.marked[at] in _BLANK:
            at += 1
        return at
