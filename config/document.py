"""Values of a file as plain maps, lists and texts, with the line and column of each.

A scalar keeps the text as it is written: whether `no`, `1.10` or `12:30:45` is text, a number or a mistake depends on
the setting it is for, so `config.types` decides. YAML, JSON and TOML all become the same document.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from config.problems import ConfigError, KeyPath, Mark, Problem, clip

MAX_DEPTH = 32
"""Levels of maps and lists in what means something here."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, which no setting needs; remove some"


class Plain(str):
    """A scalar that is written without quotes: it may stand for nothing, a truth or a number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Plain({super().__repr__()})"


def is_null(value: object) -> bool:
    """Whether a value is one of the ways to write nothing."""
    return isinstance(value, Plain) and value in _NULLS


def kind_of(value: object) -> str:
    """The kind of a value, in a person's words."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    return "nothing" if is_null(value) else "text"


def as_found(value: object) -> str:
    """A value that is not as expected, for a message: a word in quotes, of all else its kind."""
    return f'"{clip(value)}"' if isinstance(value, str) and not is_null(value) else kind_of(value)


class Place(NamedTuple):
    """The marks of a value and of the key before it; the items of a list have no key."""

    value: Mark
    key: Mark | None = None


@dataclass
class Document:
    """A file that was read: its values, where each stands, and the problems that do not hide others."""

    file: str
    digest: str = ""
    """Of the bytes of the file."""
    root: dict[str, object] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, mark: Mark, text: str, where: str = "") -> None:
        self.problems.append(Problem(self.file, mark.line, mark.column, where, text))

    def fatal(self, mark: Mark, text: str) -> ConfigError:
        """The error for a problem after which nothing more can be read."""
        return ConfigError([*self.problems, Problem(self.file, mark.line, mark.column, "", text)])


class Marks:
    """Marks of offsets in a text."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def at(self, offset: int) -> Mark:
        line = bisect_right(self._starts, offset)
        return Mark(line, offset - self._starts[line - 1] + 1)


class Sign(Enum):
    """The tokens beside scalars."""

    MAP = "{"
    LIST = "["
    END = "}"


Token = tuple[Sign | str, Mark]


class Builder:
    """Makes values of tokens. It stops at a depth of `MAX_DEPTH`, so its recursion is bounded."""

    def __init__(self, tokens: Iterator[Token], document: Document) -> None:
        self._tokens = tokens
        self._document = document
        self._places = document.places

    def build(self) -> object:
        """The value of the only document; nothing if the file has none."""
        token, mark = next(self._tokens, (Plain(""), Mark(1, 1)))
        value = self._value(token, Place(mark), ())
        for _ in self._tokens:
            pass  # what follows the first document is an error, which the generator of tokens raises
        return value

    def _value(self, token: Sign | str, place: Place, path: KeyPath) -> object:
        self._places[path] = place
        if isinstance(token, str):
            if _SURROGATE.search(token):
                self._document.add(place.value, "the text has half a surrogate pair, which is no character; remove it")
            return token
        if len(path) >= MAX_DEPTH:
            raise self._document.fatal(place.value, TOO_DEEP)
        return self._map(path) if token is Sign.MAP else self._list(path)

    def _list(self, path: KeyPath) -> list[object]:
        items: list[object] = []
        for token, mark in self._tokens:
            if token is Sign.END:
                break
            items.append(self._value(token, Place(mark), (*path, len(items))))
        return items

    def _map(self, path: KeyPath) -> dict[str, object]:
        entries: dict[str, object] = {}
        for token, mark in self._tokens:
            if token is Sign.END:
                break
            key = self._value(token, Place(mark), (*path, None))
            name = self._accepted(key, mark, path, entries)
            token_below, mark_below = next(self._tokens)
            value = self._value(token_below, Place(mark_below, mark), (*path, name))
            if name is not None:
                entries[name] = value
        return entries

    def _accepted(self, key: object, mark: Mark, path: KeyPath, entries: dict[str, object]) -> str | None:
        """The name of a new entry, or None after noting why there is none."""
        if not isinstance(key, str):
            self._document.add(mark, f"expected a key of one word, found {kind_of(key)}")
        elif key in entries:
            # Text that is no word may be a value that slipped to the left of its colon: it is not repeated.
            name = f' "{clip(key)}"' if re.fullmatch(r"\w[\w.-]*", key) else ""
            first = self._places[(*path, str(key))].key or mark
            self._document.add(mark, f"duplicate key{name} (first at {first.line}:{first.column}); remove one")
        elif isinstance(key, Plain) and key == "<<":
            self._document.add(mark, "merge keys are not accepted; write the keys out")
        else:
            return str(key)
        return None
