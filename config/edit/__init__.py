"""Changes of a text in JSON, TOML or YAML that keep every other byte: a value is put in, taken out, or put back.

A file of another program, or one with the comments of a person, is not parsed and written again: the place of a value
is found, and only that span of the text changes. After each change the text is parsed, and its values must be those of
before with the one difference; else the change is refused. Maps and lists may be written in any way; where a span
cannot be cut out, such as a server in a map that is a value itself in TOML, the change is refused too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from config.edit import json_spans, toml_spans, yaml_spans
from config.edit.spans import CannotEdit, Cut, Insertion, ValuePath, line_end
from config.json_text import looks_like_json
from config.problems import clip

BYTE_ORDER_MARK = "\ufeff"


class _Syntax(Protocol):
    def values(self, text: str) -> Any:
        """The values of a text, by any parser that reads it whole."""

    def insert(self, text: str, path: ValuePath, value: Mapping[str, object], newline: str) -> Insertion:
        """Where to put a value, and the text of it; maps on the way that are missing are a part of it. An item of a
        list goes to its front."""

    def cut(self, text: str, path: ValuePath) -> Cut:
        """The text without the value at a path, and that value as it is written."""

    def paste(self, text: str, path: ValuePath, piece: str, newline: str) -> Insertion:
        """Where to put a piece that was cut."""


def insert(file: Path, text: str, path: ValuePath, value: Mapping[str, object]) -> Insertion:
    """The text with a value at a path, where there is none. The last part of the path is a name, or 0 for a list.

    Raises:
        CannotEdit: the text cannot be parsed, or leaves no place for the value.
    """
    syntax = _syntax(file, text)
    before = _values(syntax, text)
    _refuse_present(before, path)
    insertion = syntax.insert(text, path, value, line_end(text))
    _check(syntax, insertion.text, _with(before, path, dict(value)))
    return insertion


def append(file: Path, text: str, path: ValuePath, value: Mapping[str, object], lines: str) -> str:
    """The text with a value as the last one of the map above it, so that the others keep their order. `lines` are the
    value with its key as YAML has it, perhaps with comments.

    Raises:
        CannotEdit: the text cannot be parsed, or leaves no place for the value.
    """
    syntax = _syntax(file, text)
    before = _values(syntax, text)
    _refuse_present(before, path)
    if syntax is yaml_spans:
        made = yaml_spans.append(text, path, lines, line_end(text)).text
        value = get(_values(syntax, made), path)
    elif syntax is json_spans:
        made = json_spans.append(text, path, value, line_end(text)).text
    else:
        made = syntax.insert(text, path, value, line_end(text)).text  # a table of TOML goes to the end
    _check(syntax, made, _with(before, path, value))
    return made


def cut(file: Path, text: str, path: ValuePath) -> Cut:
    """Take the value at a path out.

    Raises:
        CannotEdit: the text cannot be parsed, or the value is written in a way that cannot be cut out.
    """
    syntax = _syntax(file, text)
    before = _values(syntax, text)
    result = syntax.cut(text, path)
    rest = _without(before, path)
    _check(syntax, result.rest, rest, pruned(rest, path[:-1]))  # a table of TOML goes with the last one in it
    return result


def paste(file: Path, text: str, path: ValuePath, piece: str) -> Insertion:
    """Put a piece back that was cut from a path. It goes to the front of its map or list.

    Raises:
        CannotEdit: the text cannot be parsed, or leaves no place for the piece.
    """
    syntax = _syntax(file, text)
    before = _values(syntax, text)
    _refuse_present(before, path)
    insertion = syntax.paste(text, path, piece, line_end(text))
    value = get(_values(syntax, insertion.text), path)
    _check(syntax, insertion.text, _with(before, path, value))
    return insertion


def values(file: Path, text: str) -> Any:
    """The values of a text; an empty map if it is blank.

    Raises:
        CannotEdit: it cannot be parsed.
    """
    return _values(_syntax(file, text), text)


def has(root: Any, path: ValuePath) -> bool:
    """Whether there is a value at a path, be it null."""
    return get(root, path, _NOTHING) is not _NOTHING


def get(root: Any, path: ValuePath, default: object = None) -> Any:
    """The value at a path."""
    for part in path:
        found = isinstance(part, int) and isinstance(root, list) and part < len(root)
        if not found and not (isinstance(root, dict) and part in root):
            return default
        root = root[part]
    return root


def pruned(root: Any, path: ValuePath) -> Any:
    """The values without the maps and lists along a path that are empty."""
    if not path or not isinstance(root, dict) or path[0] not in root:
        return root
    below = pruned(root[path[0]], path[1:])
    rest = {key: value for key, value in root.items() if key != path[0]}
    return rest if below in ({}, []) else {**rest, path[0]: below}


_NOTHING = object()
_ODD = "it is written in a way that cannot be changed without touching the rest; change it by hand"


def _syntax(file: Path, text: str) -> _Syntax:
    if file.suffix == ".toml":
        return toml_spans
    if file.suffix in (".yaml", ".yml") and not looks_like_json(text):
        return yaml_spans
    return json_spans


def _values(syntax: _Syntax, text: str) -> Any:
    found = syntax.values(text)
    if not isinstance(found, dict):
        raise CannotEdit("its outermost value is no map")
    return found


def _refuse_present(root: Any, path: ValuePath) -> None:
    if isinstance(path[-1], str) and has(root, path):
        raise CannotEdit(f'it has "{clip(path[-1])}" already')


def _check(syntax: _Syntax, text: str, *expected: Any) -> None:
    try:
        is_expected = _values(syntax, text) in expected
    except CannotEdit:
        is_expected = False
    if not is_expected:
        raise CannotEdit(_ODD)


def _with(root: Any, path: ValuePath, value: object) -> Any:
    """The values with one at a path. Collections on the way that are missing are made."""
    key, *rest = path
    if isinstance(key, int) and isinstance(root, list | None):
        return [value, *(root or [])]
    root = {} if root is None else root
    if not isinstance(root, dict):
        raise CannotEdit(_ODD)
    return {**root, key: _with(root.get(key), tuple(rest), value) if rest else value}


def _without(root: Any, path: ValuePath) -> Any:
    key, *rest = path
    if isinstance(root, list):
        at = int(key)
        return [*root[:at], *([_without(root[at], tuple(rest))] if rest else []), *root[at + 1 :]]
    if not rest:
        return {name: value for name, value in root.items() if name != key}
    return {name: _without(value, tuple(rest)) if name == key else value for name, value in root.items()}


__all__ = [
    "BYTE_ORDER_MARK",
    "CannotEdit",
    "Cut",
    "Insertion",
    "ValuePath",
    "append",
    "cut",
    "get",
    "has",
    "insert",
    "paste",
    "pruned",
    "values",
]
