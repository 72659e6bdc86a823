"""The bytes of a file as plain values, with the line and column of each.

A scalar keeps the text as it is written: whether `no`, `1.10` or `12:30:45` is text, a number or a mistake depends on
the setting it is for, so `config.types` decides. Everything by which a short file can mean something long or surprising
is refused: anchors, aliases, merge keys, tags, second documents, duplicate keys and deep nesting.

A file whose first characters are `{` and then `"` or `}` is JSON, where tabs are white space; any other is YAML. Both
become the same stream of tokens, and `_Builder` makes the values of either.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import yaml

from config.problems import ConfigError, KeyPath, Mark, Problem, clip

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 32

_LOOKS_LIKE_JSON = re.compile(r'\s*\{\s*["}]')
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s,:"{}\[\]]+')
_SURROGATE = re.compile("[\ud800-\udfff]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, which no setting needs; remove some"
_NO_ANCHORS = "anchors and aliases are not accepted; write the value out where it is needed"
_NO_TAGS = "tags are not accepted; remove it or put the text in quotes"
_ONLY_JSON = "a file that begins with { and a quote is read as JSON, without comments and without a comma at the end"


class Plain(str):
    """A scalar that is written without quotes: it may stand for nothing, a truth or a number."""

    __slots__ = ()


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


def read(path: Path) -> Document:
    """Read and parse a file of at most 1 MiB. Raises `ConfigError` when there is no map to look at."""
    document = Document("".join(character if character.isprintable() else "?" for character in str(path)))
    data = _load_bytes(path, document)
    document.digest = hashlib.sha256(data).hexdigest()
    text = _decode(data, document)
    tokens = _json_tokens(text, document) if _LOOKS_LIKE_JSON.match(text) else _yaml_tokens(text, document)
    root = _Builder(tokens, document).build()
    if is_null(root):
        raise document.fatal(Mark(1, 1), 'the file is empty; it needs at least the key "servers"')
    if not isinstance(root, dict):
        raise document.fatal(document.places[()].value, f'expected a map with the key "servers", found {kind_of(root)}')
    document.root = root
    return document


def _load_bytes(path: Path, document: Document) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except ValueError:
        reason = "the path holds a NUL character"
    else:
        if len(data) <= MAX_FILE_BYTES:
            return data
        reason = "larger than 1 MiB"
    raise document.fatal(Mark(1, 1), f"the file cannot be read: {reason}")


def _decode(data: bytes, document: Document) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
    raise document.fatal(_mark_at(before, len(before)), "this is not UTF-8; save the file as UTF-8")


class _Sign(Enum):
    """The tokens beside scalars."""

    MAP = "{"
    LIST = "["
    END = "}"


_Token = tuple[_Sign | str, Mark]


class _Builder:
    """Makes values of tokens. It stops at a depth of `MAX_DEPTH`, so its recursion is bounded."""

    def __init__(self, tokens: Iterator[_Token], document: Document) -> None:
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

    def _value(self, token: _Sign | str, place: Place, path: KeyPath) -> object:
        self._places[path] = place
        if isinstance(token, str):
            if _SURROGATE.search(token):
                self._document.add(place.value, "the text has half a surrogate pair, which is no character; remove it")
            return token
        if len(path) >= MAX_DEPTH:
            raise self._document.fatal(place.value, _TOO_DEEP)
        return self._map(path) if token is _Sign.MAP else self._list(path)

    def _list(self, path: KeyPath) -> list[object]:
        items: list[object] = []
        for token, mark in self._tokens:
            if token is _Sign.END:
                break
            items.append(self._value(token, Place(mark), (*path, len(items))))
        return items

    def _map(self, path: KeyPath) -> dict[str, object]:
        entries: dict[str, object] = {}
        for token, mark in self._tokens:
            if token is _Sign.END:
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


def _yaml_tokens(text: str, document: Document) -> Iterator[_Token]:
    bad = yaml.SafeLoader.NON_PRINTABLE.search(text)
    if bad is not None:
        mark = _mark_at(text, bad.start())
        raise document.fatal(mark, f"the character U+{ord(bad[0]):04X} is not allowed; remove it")
    loader = yaml.SafeLoader(text)
    failed: ConfigError
    documents = 0
    try:
        while loader.check_event():
            event = loader.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it bare
            mark = _mark(event.start_mark)
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                document.add(mark, _NO_ANCHORS)
            if getattr(event, "tag", None) is not None:
                document.add(mark, _NO_TAGS)
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise document.fatal(mark, "a second document begins here; a file can only have one")
                case yaml.AliasEvent():
                    yield Plain(""), mark
                case yaml.ScalarEvent():
                    yield (Plain(event.value) if event.style is None else event.value), mark
                case yaml.MappingStartEvent():
                    yield _Sign.MAP, mark
                case yaml.SequenceStartEvent():
                    yield _Sign.LIST, mark
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    yield _Sign.END, mark
        return
    except yaml.MarkedYAMLError as error:
        mark = _mark(error.problem_mark or error.context_mark)
        failed = document.fatal(mark, _explain(error.problem or "", text, mark))
    except (ValueError, OverflowError):
        # The scanner hands the digits of escapes and versions to chr() and int() unchecked.
        failed = document.fatal(_mark(loader.get_mark()), "this number is no character; write another escape")
    # Not within the handlers: the errors of the parser hold pieces of the file, which even as the context of ours could
    # get into a log.
    raise failed


def _json_tokens(text: str, document: Document) -> Iterator[_Token]:
    failed: ConfigError | None = None
    try:
        # Only whether it is JSON is asked: numbers stay text, so none is too long or too large.
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
        failed = document.fatal(Mark(error.lineno, error.colno), f"this is not JSON: {what}; {_ONLY_JSON}")
    except RecursionError:
        pass  # its first levels are well-formed, and the builder stops there
    if failed is not None:
        raise failed
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        line = bisect_right(starts, match.start())
        mark = Mark(line, match.start() - starts[line - 1] + 1)
        if token[0] == '"':
            yield json.loads(token), mark
        elif token in ("]", "}"):
            yield _Sign.END, mark
        elif token in ("NaN", "Infinity", "-Infinity"):  # which the parser takes and JSON does not have
            raise document.fatal(mark, f"this is not JSON: {token} is no number; {_ONLY_JSON}")
        else:
            yield (_Sign(token) if token in ("{", "[") else Plain(token)), mark


def _mark(mark: yaml.Mark | None) -> Mark:
    """The parser's place, counted from 1; it gives one with everything but some of its errors."""
    return Mark(1, 1) if mark is None else Mark(mark.line + 1, mark.column + 1)


def _mark_at(text: str, at: int) -> Mark:
    return Mark(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _explain(problem: str, text: str, mark: Mark) -> str:
    """The parser's complaint in words that say what to do; it quotes single characters at most."""
    lines = text.split("\n")
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    if line[mark.column - 1 : mark.column] == "\t":
        return "tabs are not allowed for indentation in YAML; use spaces"
    if "tag" in problem:
        return _NO_TAGS
    hint = "; inside {...} or [...] a value with ${...} needs quotes" if "${" in line else ""
    return f"this is not YAML: {problem or 'it cannot be read'}{hint}"
