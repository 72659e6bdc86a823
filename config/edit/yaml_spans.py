"""Spans of YAML, by the marks of its parser.

A value goes to the front of its map or list, below the line of the key above, so a comment above the next entry stays
with that entry. A piece that was cut is the entry with its key or its dash, without the indentation of its first line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from config.edit.spans import CannotEdit, Cut, Insertion, ValuePath, indentation, inserted, line_start, without
from config.problems import clip

_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)")
_COMMENT_LINE = re.compile(r"([ \t]*)(#[^\n]*)?(?:\r?\n|\Z)")
_BLANK_ABOVE = re.compile(r"\n[ \t]*\r?\n(?:[ \t]*#.*\n)*\Z")
_ALIAS = re.compile(r"\s*:\s*\*[^\s,\]}]+")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class _Entry(NamedTuple):
    """A key with its value, or an item of a list, in the collection around it."""

    parent: yaml.MappingNode | yaml.SequenceNode
    key: yaml.Node | None
    value: yaml.Node


class _Loader(yaml.SafeLoader):
    """The usual loader, for which all keys are texts: `off` is a name."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                key.tag = self.DEFAULT_SCALAR_TAG
        return super().construct_mapping(node, deep)


def values(text: str) -> Any:
    """The values of the text.

    Raises:
        CannotEdit: it is not YAML, or has tags.
    """
    try:
        found = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        problem = CannotEdit("it is not YAML")
    else:
        return {} if found is None else found
    # Not within the handler: the error of the parser holds pieces of the text.
    raise problem


def insert(text: str, path: ValuePath, value: Mapping[str, object], newline: str) -> Insertion:
    """Put a value in as the first entry of the map or list above it."""
    lines = [f"{_key(key)}: {json.dumps(below, ensure_ascii=False)}" for key, below in value.items()]
    if isinstance(path[-1], int):
        lines = ["- " + lines[0], *(f"  {line}" for line in lines[1:])]
    else:
        lines = [f"{_key(path[-1])}:", *(f"  {line}" for line in lines)]
    return paste(text, path, "\n".join(lines) + "\n", newline)


def paste(text: str, path: ValuePath, piece: str, newline: str) -> Insertion:
    """Put an entry in as the first one of the map or list above it."""
    if len(path) != 2:
        raise CannotEdit("its values stand too deep")
    above = str(path[0])
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    entry = _find(root, (above,)) if root is not None else None
    if entry is None:
        block = f"{above}:\n{_indented(piece, '  ')}".replace("\n", newline)
        if text and not text.endswith("\n"):
            return inserted(text, len(text), newline + block.removesuffix(newline))
        return inserted(text, len(text), block)
    assert entry.key is not None
    found = entry.value
    if isinstance(found, yaml.CollectionNode) and found.flow_style:
        loaded = yaml.load(piece, _Loader)
        flow = json.dumps(loaded, ensure_ascii=False)[1:-1]
        return inserted(text, found.start_mark.index + 1, f"{flow}, " if found.value else flow)
    if isinstance(found, yaml.ScalarNode) and text[found.start_mark.index : found.end_mark.index].strip():
        raise CannotEdit(f'its "{clip(above)}" is no map')
    indent = indentation(text, entry.key.start_mark.index) + "  "
    if isinstance(found, yaml.CollectionNode):
        indent = " " * found.start_mark.column
    line = _REST_OF_LINE.match(text, text.index(":", entry.key.end_mark.index) + 1)
    if line is None:
        raise CannotEdit(f'its "{clip(above)}" has something beside it')
    block = _indented(piece, indent).replace("\n", newline)
    if line[0].endswith("\n"):
        return inserted(text, line.end(), block)
    return inserted(text, line.end(), newline + block.removesuffix(newline))


def append(text: str, path: ValuePath, piece: str, newline: str) -> Insertion:
    """Put an entry in as the last one of the map above it, below the comments that end that map. Between blank lines it
    gets one of its own."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    found = _find(root, path[:1])
    if found is None or not isinstance(found.value, yaml.MappingNode) or not found.value.value:
        return paste(text, path, piece, newline)
    last = _Entry(found.value, *found.value.value[-1])
    end = _end(text, last)
    if found.value.flow_style:
        return inserted(text, end, ", " + json.dumps(yaml.load(piece, _Loader), ensure_ascii=False)[1:-1])
    column = found.value.start_mark.column
    rest = _REST_OF_LINE.match(text, end) if text[end - 1] != "\n" else None
    at = end if rest is None else rest.end()
    if rest is None and text[end - 1] != "\n":
        raise CannotEdit("its last entry has something beside it")
    below = at
    while (line := _COMMENT_LINE.match(text, below)) is not None and line.end() > below:
        below = line.end()
        if line[2] and len(line[1]) >= column:
            at = below
    assert last.key is not None
    above = text[: line_start(text, last.key.start_mark.index)]
    if _BLANK_ABOVE.search(above) and (at == len(text) or text[at] in "\r\n") and piece[0] != "\n":
        piece = "\n" + piece
    block = _indented(piece, " " * column).replace("\n", newline)
    return inserted(text, at, block if text[at - 1] == "\n" else newline + block.removesuffix(newline))


def cut(text: str, path: ValuePath) -> Cut:
    """Take an entry out."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    entry, above = _find(root, path), _find(root, path[:-1])
    if entry is None or above is None or above.key is None:
        raise CannotEdit(f'it has no "{clip(str(path[-1]))}" where it was')
    start = (entry.value if entry.key is None else entry.key).start_mark.index
    end = _end(text, entry)
    if entry.parent.flow_style:
        flow = text[start:end]
        return Cut(without(text, [_flow_span(text, start, end)]), f"{'- ' if entry.key is None else ''}{flow}\n")
    first = line_start(text, start)
    before = text[first:start]
    line = _REST_OF_LINE.match(text, end) if text[end - 1] != "\n" else None
    last = end if line is None else line.end()
    if before.strip() not in ("", "-") or (line is None and text[end - 1] != "\n"):
        raise CannotEdit("it shares its line with another value")
    indent = indentation(text, start)
    lines = text[first:last].replace("\r\n", "\n").rstrip("\n").split("\n")
    piece = "".join(f"{_dedented(line, indent)}\n" for line in lines)
    if text[:first].endswith(("\n\n", "\n\r\n")) and (last == len(text) or text[last] in "\r\n"):
        first = line_start(text, first - 1)  # of two blank lines, one is left
    rest = text[:first] + text[last:]
    if len(entry.parent.value) == 1:
        # A key without a value would be null.
        colon = text.index(":", above.key.end_mark.index) + 1
        empty = " []" if entry.key is None else " {}"
        rest = rest[:colon] + empty + rest[colon:]
    return Cut(rest, piece)


def _find(root: yaml.Node | None, path: ValuePath) -> _Entry | None:
    entry: _Entry | None = None
    node = root
    for part in path:
        if isinstance(node, yaml.MappingNode):
            entry = next((_Entry(node, key, value) for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            entry = _Entry(node, None, node.value[part])
        else:
            return None
        if entry is None:
            return None
        node = entry.value
    return entry


def _end(text: str, entry: _Entry) -> int:
    """The offset after the last character of an entry."""
    start = 0 if entry.key is None else entry.key.end_mark.index
    node = entry.value
    if node.start_mark.index < start:
        alias = _ALIAS.match(text, start)
        return start if alias is None else alias.end()
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _end(text, _Entry(node, *node.value[-1]))
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _end(text, _Entry(node, None, node.value[-1]))
    return int(node.end_mark.index)


def _flow_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The span of an entry between commas, with one of them."""
    after = end
    while text[after].isspace():
        after += 1
    if text[after] == ",":
        after += 1
        while text[after] in " \t":
            after += 1
        return start, after
    before = start
    while text[before - 1].isspace():
        before -= 1
    return (before - 1 if text[before - 1] == "," else start), end


def _indented(piece: str, indent: str) -> str:
    return "".join(f"{indent}{line}\n" if line else "\n" for line in piece.removesuffix("\n").split("\n"))


def _dedented(line: str, indent: str) -> str:
    return line.removeprefix(indent) if line.startswith(indent) else line.lstrip(" ")


def _key(text: str) -> str:
    is_plain = _BARE.fullmatch(text) and text.lower() not in _NOT_TEXT
    return text if is_plain else json.dumps(text, ensure_ascii=False)
