"""The content of a host's file with Colonnade connected, and the content after it is disconnected.

Nothing is read or written here. If a file is as it was left, it is given back byte for byte; otherwise only what was
put in is taken out, and what was moved is put back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.desktop.entry_form import NAME, EntryForm, additions, is_same_launch
from config.edit import BYTE_ORDER_MARK, CannotEdit, ValuePath, cut, get, has, insert, paste, pruned, values
from config.edit.both_changes import both_changes
from config.problems import clip

SPAN_CHANGED = f'its entry "{NAME}" was changed by hand; it is left as it is'


@dataclass(frozen=True)
class Moved:
    """A server that was taken out: its place, its name, and its text."""

    path: ValuePath
    name: str
    piece: str


@dataclass(frozen=True)
class FileChange:
    """A change of a host's file, with all that is needed to undo it.

    Attributes:
        written: Its text, with the maps around it that were missing.
        moved: The servers that were taken out.
        original: The content before; None if there was no file.
        known: Digests of the contents that stand for the original one.
    """

    path: ValuePath
    entry: Mapping[str, object]
    written: str
    moved: tuple[Moved, ...]
    original: bytes | None
    known: tuple[str, ...] = ()


@dataclass
class GivenBack:
    """The content without our change.

    Attributes:
        data: The content; None if no file should be left.
        kept: Sentences on what could not be given back.
        added: What a person added to our entry, which goes with it.
        has_entry: Whether our entry is left, since a person changed or renamed it.
    """

    data: bytes | None
    kept: list[str] = field(default_factory=list)
    added: Mapping[str, object] = field(default_factory=dict)
    has_entry: bool = False


def connected(
    file: Path, data: bytes | None, form: EntryForm, entry: Mapping[str, object], moves: Sequence[ValuePath]
) -> tuple[bytes, FileChange]:
    """The content with our entry and without the servers at some paths.

    Raises:
        CannotEdit: the content cannot be changed without touching the rest.
    """
    mark, text = _decoded(data)
    if not text.strip():
        text += form.new_file
    moved: list[Moved] = []
    for path in sorted(moves, key=lambda path: path[-1] if isinstance(path[-1], int) else -1, reverse=True):
        name = _name(values(file, text), path)
        text, piece = cut(file, text, path)
        moved.append(Moved(path, name, piece))
    path = form.place(values(file, text))
    insertion = insert(file, text, path, entry)
    after = (mark + insertion.text).encode()
    known = (digest(after), *(() if data is None else (digest(data),)))
    return after, FileChange(path, entry, insertion.piece, tuple(moved), data, known)


def given_back(file: Path, data: bytes, change: FileChange, form: EntryForm) -> GivenBack:
    """The content without a change that was made to it.

    Raises:
        CannotEdit: the content cannot be changed without touching the rest.
    """
    mark, text = _decoded(data)
    result = GivenBack(None, added=_added(values(file, text), change))
    if digest(data) in change.known:
        result.data = change.original
        return result
    text = _without_entry(file, text, change, result)
    before = _decoded(change.original)[1]
    steps: list[tuple[Moved, str, str]] = []
    for moved in change.moved:
        after = cut(file, before, moved.path).rest
        steps.append((moved, before, after))
        before = after
    for moved, before, after in reversed(steps):
        text = _with_moved(file, text, moved, before, after, result)
    if change.original is None and not result.kept and _is_new(text, change.path, file, form):
        return result
    result.data = (mark + text).encode()
    return result


def digest(data: bytes) -> str:
    """A fingerprint of a content."""
    return hashlib.sha256(data).hexdigest()


def own_path(root: Any, path: ValuePath) -> ValuePath | None:
    """The place of our entry among these values: where it was put, or elsewhere in the list. None if it is gone."""
    if isinstance(path[-1], str):
        return path if has(root, path) else None
    items = get(root, path[:-1], [])
    found = (n for n, item in enumerate(items) if isinstance(item, dict) and item.get("name") == NAME)
    return next(((*path[:-1], n) for n in found), None)


def renamed_to(root: Any, change: FileChange) -> str | None:
    """The name of another entry that starts or reaches what ours did."""
    above = change.path[:-1]
    found = get(root, above, {})
    keys: Iterable[str | int] = found if isinstance(found, dict) else range(len(found or []))
    places = ((*above, key) for key in keys)
    return next((_name(root, path) for path in places if is_same_launch(change.entry, get(root, path))), None)


def _without_entry(file: Path, text: str, change: FileChange, result: GivenBack) -> str:
    root = values(file, text)
    path = own_path(root, change.path)
    if path is None:
        if name := renamed_to(root, change):
            result.kept.append(f'its entry "{NAME}" was renamed to "{clip(name)}"; it is left as it is')
            result.has_entry = True
        return text
    if not is_same_launch(change.entry, get(root, path)):
        result.kept.append(SPAN_CHANGED)
        result.has_entry = True
        return text
    rest = cut(file, text, path).rest
    if text.count(change.written) == 1:
        # It stands there as it was written: so do the white space around it and the maps that were made for it.
        verbatim = text.replace(change.written, "")
        try:
            has_equal_values = pruned(values(file, verbatim), path[:-1]) == pruned(values(file, rest), path[:-1])
            # A comma that was put in before our entry must not stay at the end, where some hosts refuse it.
            if has_equal_values and _is_standard_json(verbatim) >= _is_standard_json(rest):
                return verbatim
        except CannotEdit:
            pass
    return rest


def _added(root: Any, change: FileChange) -> Mapping[str, object]:
    """The additions of a person to our entry, if that is still ours."""
    path = own_path(root, change.path)
    found: Any = None if path is None else get(root, path)
    return additions(change.entry, found) if is_same_launch(change.entry, found) else {}


def _is_standard_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _with_moved(file: Path, text: str, moved: Moved, before: str, after: str, result: GivenBack) -> str:
    """The text with a server put back: where it stood `before` it was taken out, unless that place is gone."""
    if _place(values(file, text), moved) is not None:
        result.kept.append(f'it has another server "{clip(moved.name)}" by now; the former one is in the backup')
        return text
    restored = both_changes(after, before, text)
    if restored is not None and _adds(file, text, restored, moved, before):
        return restored
    above, last = moved.path[:-1], moved.path[-1]
    return paste(file, text, (*above, 0 if isinstance(last, int) else last), moved.piece).text


def _place(root: Any, moved: Moved) -> ValuePath | None:
    """The place of a server with the name of the moved one."""
    above = moved.path[:-1]
    if isinstance(moved.path[-1], str):
        return moved.path if has(root, moved.path) else None
    places = ((*above, n) for n in range(len(get(root, above) or [])))
    return next((path for path in places if _name(root, path) == moved.name), None)


def _adds(file: Path, text: str, restored: str, moved: Moved, before: str) -> bool:
    """Whether a text has the moved server as it was, and all else as another text has it."""
    try:
        root = values(file, restored)
        path = _place(root, moved)
        if path is None or get(root, path) != get(values(file, before), moved.path):
            return False
        rest, above = values(file, cut(file, restored, path).rest), path[:-1]
        is_alone = pruned(rest, above) == pruned(values(file, text), above)
    except CannotEdit:
        return False
    return is_alone and _is_standard_json(restored) >= _is_standard_json(text)


def _is_new(text: str, path: ValuePath, file: Path, form: EntryForm) -> bool:
    """Whether nothing is left but what a new file begins with, and no comment."""
    if any(sign in text for sign in ("//", "/*", "#")):
        return False
    return bool(pruned(values(file, text), path[:-1]) == values(file, form.new_file))


def _name(root: Any, path: ValuePath) -> str:
    """The name of a server: that of its map, or the one among its keys."""
    if isinstance(path[-1], str):
        return path[-1]
    value = get(root, path)
    return str(value.get("name", "")) if isinstance(value, dict) else ""


def _decoded(data: bytes | None) -> tuple[str, str]:
    """The byte order mark, and the text."""
    try:
        text = "" if data is None else data.decode()
    except UnicodeDecodeError:
        problem = CannotEdit("it is not UTF-8")
    else:
        mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
        return mark, text.removeprefix(BYTE_ORDER_MARK)
    # Not within the handler: the error holds the whole content.
    raise problem
