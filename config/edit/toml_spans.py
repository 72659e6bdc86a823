"""Spans of TOML.

A value becomes a table at the end of the text, where it is in nobody's way. A table is cut out with the tables below
it, wherever they stand. `tomlkit` would take comments of the next table with it, and can put a new table before keys
that belong to the one above.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from config.edit.spans import CannotEdit, Cut, Insertion, ValuePath, inserted, line_start, without
from config.problems import clip

_STRING = r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})|\'\'\'.*?\'\'\'(?:\'{0,2})|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\''
_KEY = rf"(?:[A-Za-z0-9_-]+|{_STRING})"
_DOTTED = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_NEXT = re.compile(r"(?:\s|#[^\n]*)*")
_HEADER = re.compile(rf"\[\[?[ \t]*({_DOTTED})[ \t]*\]\]?", re.DOTALL)
_PAIR = re.compile(rf"({_DOTTED})[ \t]*=[ \t]*", re.DOTALL)
_PART = re.compile(rf"{_STRING}|#[^\n]*|[\[\]{{}}]|[^\s\[\]{{}}#\"',]+|[\s,]", re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)")
_BLANK_LINES = re.compile(r"(?:[ \t]*\r?\n)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class _Statement(NamedTuple):
    path: tuple[str, ...]
    table: tuple[str, ...]
    """That of the header above, or of itself."""
    start: int
    end: int


def values(text: str) -> Any:
    """The values of the text.

    Raises:
        CannotEdit: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        problem = CannotEdit("it is not TOML")
    raise problem


def insert(text: str, path: ValuePath, value: Mapping[str, object], newline: str) -> Insertion:
    """Put a value in as a table at the end."""
    return paste(text, path, _table(path, value), newline)


def paste(text: str, path: ValuePath, piece: str, newline: str) -> Insertion:
    """Put tables in at the end."""
    piece = piece.replace("\r\n", "\n").replace("\n", newline)
    if text.strip():
        piece = newline + piece
        if not text.endswith("\n"):
            piece = newline + piece.removesuffix(newline)
    return inserted(text, len(text), piece)


def cut(text: str, path: ValuePath) -> Cut:
    """Take the statements below a path out."""
    depth = len(path)
    found = [each for each in _statements(text) if each.path[:depth] == path]
    if not found:
        raise CannotEdit(f'it has no "{clip(str(path[-1]))}" of its own')
    spans: list[tuple[int, int]] = []
    for each in found:
        start = line_start(text, each.start)
        rest = _REST_OF_LINE.match(text, each.end)
        if rest is None:
            raise CannotEdit("two values stand on one line")
        if spans and not _BLANK_LINES.sub("", re.sub(r"[ \t]*#[^\n]*", "", text[spans[-1][1] : start])).strip():
            spans[-1] = (spans[-1][0], rest.end())  # with the comments between them
        else:
            spans.append((start, rest.end()))
    if all(each.table[:depth] == path for each in found):
        piece = "".join(f"{text[start:end].rstrip()}\n\n" for start, end in spans).removesuffix("\n")
    else:
        # Keys in the table above, which need their place there.
        value: Any = values(text)
        for part in path:
            value = value[part]
        piece = _table(path, value)
    return Cut(without(text, [_with_blank_lines(text, start, end) for start, end in spans]), piece)


def _with_blank_lines(text: str, start: int, end: int) -> tuple[int, int]:
    """A span with the blank lines after it, if there are such lines before it too."""
    before = line_start(text, start - 1) if start else 0
    if text[before:start].strip():
        return start, end
    blank = _BLANK_LINES.match(text, end)
    assert blank is not None
    if blank.end() < len(text):
        return start, blank.end()
    return (before, end) if start else (start, end)


def _statements(text: str) -> Iterator[_Statement]:
    """The headers and the pairs of a text that is TOML."""
    table: tuple[str, ...] = ()
    at = 0
    while True:
        blank = _NEXT.match(text, at)
        assert blank is not None
        at = blank.end()
        if at == len(text):
            return
        if header := _HEADER.match(text, at):
            table = _parts(header[1])
            yield _Statement(table, table, at, at := header.end())
        elif pair := _PAIR.match(text, at):
            end = _end_of_value(text, pair.end())
            yield _Statement((*table, *_parts(pair[1])), table, at, end)
            at = end
        else:
            raise CannotEdit("a statement of it is not understood")


def _parts(dotted: str) -> tuple[str, ...]:
    """The parts of a key."""
    return tuple(next(iter(tomllib.loads(f"{part[0]} = 0"))) for part in re.finditer(_KEY, dotted, re.DOTALL))


def _end_of_value(text: str, at: int) -> int:
    depth = 0
    end = at
    while part := _PART.match(text, at):
        token = part[0]
        if depth == 0 and (token[0] in "#,\n\r" or token[0] in "]}"):
            return end
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        at = part.end()
        if not token.isspace():
            end = at
        if depth == 0 and token in ("]", "}"):
            return end
    return end


def _table(path: ValuePath, value: Mapping[str, object]) -> str:
    lines = [f"[{'.'.join(_key(str(part)) for part in path)}]"]
    lines += [f"{_key(key)} = {_value(below)}" for key, below in value.items()]
    return "\n".join(lines) + "\n"


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _value(text)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(below)}' for key, below in value.items())} }}"
    if isinstance(value, str | bool | int | float):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise CannotEdit("a value of it is neither text nor number")
