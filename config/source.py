"""From the bytes of a file to a tree of nodes that know their line and column.

This file knows YAML and JSON and nothing about servers. It builds maps, lists and scalars, and a scalar keeps the
text as it was written: what `no`, `1.10` or `12:30:45` mean is for the reader who knows what he expects. It refuses
everything by which a short file can mean something long or surprising: anchors, aliases, merge keys, tags, second
documents, duplicate keys and deep nesting. The tree is built from the parser's events with a stack of its own, so
neither an alias is ever followed nor does depth become recursion.

A file whose first characters are `{` and then `"` or `}` is read as JSON, where tabs are white space; any other as
YAML.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import yaml

from config.problems import ConfigError, Mark, Problem, clip

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 32

_LOOKS_LIKE_JSON = re.compile(r'\s*\{\s*["}]')
_JSON_WORD = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-])|(?:true|false|null)\b")
_JSON_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True)
class Scalar:
    """One value or key as it was written. `plain` is false for text in quotes or in a block.

    `alias` is the name to show for a key that was renamed after reading.
    """

    text: str = field(repr=False)
    plain: bool
    mark: Mark
    alias: str | None = None

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS

    @property
    def shown(self) -> str:
        return clip(self.text if self.alias is None else self.alias)


@dataclass(frozen=True)
class List:
    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True)
class Map:
    """A map in the order of the file; its keys are unique."""

    entries: dict[str, tuple[Scalar, Node]]
    mark: Mark

    def get(self, key: str) -> Node | None:
        entry = self.entries.get(key)
        return None if entry is None else entry[1]


Node = Scalar | List | Map


def kind_of(node: object) -> str:
    """What a node is, in a person's words; never its value."""
    match node:
        case Map():
            return "a map"
        case List():
            return "a list"
        case Scalar(is_null=True):
            return "nothing"
        case _:
            return "text"


@dataclass(frozen=True)
class Source:
    """A file that was read: its top map, and the problems that do not keep the rest from being looked at."""

    root: Map
    problems: tuple[Problem, ...]


def read(path: Path) -> Source:
    """Read and parse a file of at most 1 MiB. Raises `ConfigError` when there is no map to look at."""
    reader = _Reader(str(path))
    text = reader.decode(_load_bytes(path))
    root = reader.parse_json(text) if _LOOKS_LIKE_JSON.match(text) else reader.parse_yaml(text)
    if root is None or (isinstance(root, Scalar) and root.is_null):
        raise reader.fatal(Mark(1, 1), 'the file is empty; it needs at least the key "servers"')
    if not isinstance(root, Map):
        raise reader.fatal(root.mark, f'expected a map with the key "servers", found {kind_of(root)}')
    return Source(root, tuple(reader.problems))


def _load_bytes(path: Path) -> bytes:
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
    raise ConfigError([Problem(clip_path(path), 1, 1, "", f"the file cannot be read: {reason}")])


def clip_path(path: Path) -> str:
    """The path on one line, whatever characters it holds."""
    return "".join(character if character.isprintable() else "?" for character in str(path))


@dataclass
class _OpenMap:
    mark: Mark
    entries: dict[str, tuple[Scalar, Node]] = field(default_factory=dict)
    key: Scalar | None = None
    skip_value: bool = False


@dataclass
class _OpenList:
    mark: Mark
    items: list[Node] = field(default_factory=list)


class _Reader:
    """Parses one text and gathers what is wrong with it."""

    def __init__(self, file: str) -> None:
        self.file = clip_path(Path(file))
        self.problems: list[Problem] = []
        self._starts = [0]

    def add_problem(self, mark: Mark, text: str, where: str = "") -> None:
        self.problems.append(Problem(self.file, mark.line, mark.column, where, text))

    def fatal(self, mark: Mark, text: str) -> ConfigError:
        self.add_problem(mark, text)
        return ConfigError(self.problems)

    def decode(self, data: bytes) -> str:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            before = data[: error.start].decode("utf-8", "replace")
            raise self.fatal(_mark_at(before, len(before)), "this is not UTF-8; save the file as UTF-8") from None
        return text.removeprefix("\ufeff").replace("\r\n", "\n")

    def check_text(self, text: str, mark: Mark) -> None:
        if _SURROGATE.search(text):
            self.add_problem(mark, "the text holds half a surrogate pair, which is no character")

    # YAML

    def parse_yaml(self, text: str) -> Node | None:
        """The tree of the first document, or None for a text without one."""
        builder = _Builder(self)
        try:
            loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            mark = _mark_at(text, error.position)
            raise self.fatal(mark, f"the character U+{ord(text[error.position]):04X} may not stand here") from None
        try:
            while loader.check_event():
                builder.feed(loader.get_event())  # type: ignore[no-untyped-call]  # the stubs leave it bare
        except yaml.MarkedYAMLError as error:
            mark = _mark(error.problem_mark or error.context_mark)
            raise self.fatal(mark, _explain(error.problem or "", text, mark)) from None
        except (ValueError, OverflowError):
            # The scanner hands the digits of escapes and versions to chr() and int() unchecked.
            raise self.fatal(_mark(loader.get_mark()), "this number names no character") from None
        finally:
            loader.dispose()
        return builder.root

    # JSON

    def mark(self, at: int) -> Mark:
        """The place of a position in a JSON text."""
        line = bisect_right(self._starts, at)
        return Mark(line, at - self._starts[line - 1] + 1)

    def parse_json(self, text: str) -> Node:
        self._starts = _line_starts(text)
        at = self._skip(text, 0)
        node, at = self._json_value(text, at, 1)
        at = self._skip(text, at)
        if at < len(text):
            raise self.fatal(self.mark(at), "the JSON value has ended; nothing may follow it")
        return node

    def _skip(self, text: str, at: int) -> int:
        match = _JSON_SPACE.match(text, at)
        return at if match is None else match.end()

    def _json_value(self, text: str, at: int, depth: int) -> tuple[Node, int]:
        if depth > MAX_DEPTH:
            raise self.fatal(self.mark(at), _TOO_DEEP)
        match text[at : at + 1]:
            case "{":
                return self._json_map(text, at, depth)
            case "[":
                return self._json_list(text, at, depth)
            case '"':
                return self._json_string(text, at)
        word = _JSON_WORD.match(text, at)
        if word is None:
            raise self._json_expected(text, at, "a value")
        return Scalar(word.group(), True, self.mark(at)), word.end()

    def _json_string(self, text: str, at: int) -> tuple[Scalar, int]:
        mark = self.mark(at)
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise self.fatal(self.mark(error.pos), f"this is no JSON text: {error.msg.lower()}") from None
        self.check_text(value, mark)
        return Scalar(value, False, mark), end

    def _json_list(self, text: str, start: int, depth: int) -> tuple[Node, int]:
        items: list[Node] = []
        at = self._skip(text, start + 1)
        if text[at : at + 1] == "]":
            return List((), self.mark(start)), at + 1
        while True:
            item, at = self._json_value(text, at, depth + 1)
            items.append(item)
            at = self._skip(text, at)
            if text[at : at + 1] == "]":
                return List(tuple(items), self.mark(start)), at + 1
            at = self._json_comma(text, at, "]")

    def _json_map(self, text: str, start: int, depth: int) -> tuple[Node, int]:
        opened = _OpenMap(self.mark(start))
        at = self._skip(text, start + 1)
        if text[at : at + 1] == "}":
            return Map({}, opened.mark), at + 1
        while True:
            if text[at : at + 1] != '"':
                raise self._json_expected(text, at, "a key in double quotes")
            key, at = self._json_string(text, at)
            at = self._skip(text, at)
            if text[at : at + 1] != ":":
                raise self._json_expected(text, at, '":"')
            value, at = self._json_value(text, self._skip(text, at + 1), depth + 1)
            self.add_entry(opened, key, value)
            at = self._skip(text, at)
            if text[at : at + 1] == "}":
                return Map(opened.entries, opened.mark), at + 1
            at = self._json_comma(text, at, "}")

    def _json_comma(self, text: str, at: int, closing: str) -> int:
        if text[at : at + 1] != ",":
            raise self._json_expected(text, at, f'"," or "{closing}"')
        after = self._skip(text, at + 1)
        if text[after : after + 1] == closing:
            raise self.fatal(self.mark(at), "JSON has no comma after the last item; take it away")
        return after

    def _json_expected(self, text: str, at: int, what: str) -> ConfigError:
        if at >= len(text):
            return self.fatal(self.mark(at), f"expected {what}, but the file ends here")
        if text[at : at + 1] in "/#":
            return self.fatal(self.mark(at), "JSON has no comments; take it away")
        return self.fatal(self.mark(at), f"expected {what}; this is not JSON")

    # both

    def add_entry(self, opened: _OpenMap, key: Scalar, value: Node) -> None:
        first = opened.entries.get(key.text)
        if first is not None:
            # What is no word may be a value that slipped to the left of its colon: it is not repeated.
            name = f'the key "{key.shown}"' if re.fullmatch(r"\w[\w.-]*", key.text) else "this key"
            self.add_problem(key.mark, f"{name} stands twice, first in line {first[0].mark.line}; keep one")
        elif key.plain and key.text == "<<":
            self.add_problem(key.mark, "merge keys are not accepted; write the keys out")
        else:
            opened.entries[key.text] = (key, value)


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels; no setting needs that"
_NO_ANCHORS = "anchors and aliases are not accepted; write the value out where it is needed"


class _Builder:
    """Puts YAML events together; holds the maps and lists that are still open."""

    def __init__(self, reader: _Reader) -> None:
        self.root: Node | None = None
        self._reader = reader
        self._open: list[_OpenMap | _OpenList] = []

    def feed(self, event: yaml.Event) -> None:
        match event:
            case yaml.DocumentStartEvent() if self.root is not None:
                raise self._reader.fatal(_mark(event.start_mark), "a second document begins here; a file holds one")
            case yaml.AliasEvent():
                self._reader.add_problem(_mark(event.start_mark), _NO_ANCHORS)
                self._place(Scalar("", True, _mark(event.start_mark)))
            case yaml.ScalarEvent():
                self._check_properties(event)
                # A plain scalar says that its text decides; a literal one that it is text whatever it looks like.
                node = Scalar(event.value, event.style is None, _mark(event.start_mark))
                self._reader.check_text(node.text, node.mark)
                self._place(node)
            case yaml.MappingStartEvent():
                self._begin(event, _OpenMap(_mark(event.start_mark)))
            case yaml.SequenceStartEvent():
                self._begin(event, _OpenList(_mark(event.start_mark)))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()
            case _:
                pass  # stream and document borders carry nothing

    def _check_properties(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.anchor is not None:
            self._reader.add_problem(_mark(event.start_mark), _NO_ANCHORS)
        if event.tag is not None:
            self._reader.add_problem(
                _mark(event.start_mark), "tags are not accepted; take it away or put the text in quotes"
            )

    def _begin(self, event: yaml.CollectionStartEvent, opened: _OpenMap | _OpenList) -> None:
        self._check_properties(event)
        self._open.append(opened)
        if len(self._open) > MAX_DEPTH:
            raise self._reader.fatal(opened.mark, _TOO_DEEP)

    def _end(self) -> None:
        match self._open.pop():
            case _OpenMap(mark=mark, entries=entries):
                self._place(Map(entries, mark))
            case _OpenList(mark=mark, items=items):
                self._place(List(tuple(items), mark))

    def _place(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        match self._open[-1]:
            case _OpenList(items=items):
                items.append(node)
            case _OpenMap() as opened:
                self._place_in_map(opened, node)

    def _place_in_map(self, opened: _OpenMap, node: Node) -> None:
        if opened.skip_value:
            opened.skip_value = False
        elif opened.key is not None:
            self._reader.add_entry(opened, opened.key, node)
            opened.key = None
        elif isinstance(node, Scalar):
            opened.key = node
        else:
            self._reader.add_problem(node.mark, f"a key must be one word, found {kind_of(node)}")
            opened.skip_value = True


class _ParserMark(Protocol):
    line: int
    column: int


def _mark(mark: _ParserMark | None) -> Mark:
    """The parser's place, counted from 1; it gives one with everything but some of its errors."""
    return Mark(1, 1) if mark is None else Mark(mark.line + 1, mark.column + 1)


def _mark_at(text: str, at: int) -> Mark:
    return Mark(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _explain(problem: str, text: str, mark: Mark) -> str:
    """The parser's complaint in words that say what to do; it quotes single characters at most."""
    lines = text.split("\n")
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    if line[mark.column - 1 : mark.column] == "\t":
        return "a tab stands here; YAML is indented with spaces"
    if "tag" in problem:
        return "tags are not accepted; take it away or put the text in quotes"
    hint = "; inside {...} or [...] a value with ${...} needs quotes" if "${" in line else ""
    return f"this is not YAML: {problem or 'it cannot be read'}{hint}"
