"""JSON as desktop hosts write it: with comments and a comma before a closing bracket.

`strict` makes standard JSON of it, of the same length, so that offsets stay. Most of a large file is passed over by the
parser of the standard library; only the parts that are asked for become tokens. A map in such a part may hold a key
once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from config.document import Document, Marks, Plain, Sign, Token
from config.problems import ConfigError, KeyPath, Mark

# Each pattern takes time in proportion to the text, also if that is not JSON: nothing is tried in two ways. A string or
# comment without an end is matched up to where it would have to end, so it is not looked through again.
_STRING = r'"(?:[^"\\\n]|\\.)*+"?'
# A line feed ends the comment of a line for every host. Other line ends do so for some of them only (a carriage return
# for VS Code, all of these for JSON5), so behind one nothing else may stand: it would be a key there and none here.
_ODD_LINE_ENDS = r"\r\v\f\x85\u2028\u2029"
_SPACE = rf"(?:\s++|//[^\n{_ODD_LINE_ENDS}]*+|/\*.*?\*/)*+"
_BLANK = re.compile(_SPACE, re.DOTALL)
_LOOKS_LIKE_JSON = re.compile(rf'{_SPACE}\{{{_SPACE}["}}]', re.DOTALL)
COMMENT = re.compile(rf"{_STRING}|//[^\n]*?(?=\r?(?:\n|\Z))|/\*.*?(?:\*/|\Z)", re.DOTALL)
_FINAL_COMMA = re.compile(rf"{_STRING}|(?<![\[{{,:\s])(\s*+),(?=\s*+[}}\]])")
_TOKEN = re.compile(r'\s*(?:[,:]\s*)?("(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s,:"{}\[\]]+)')
_NOT_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})
_ONLY_JSON = "a file that begins with { and a quote is read as JSON"
# Numbers stay text, so none is too long or too large.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)

Wanted = Callable[[KeyPath], bool]
"""Whether the value at a path is to be read; asked for the entries of maps."""


def looks_like_json(text: str) -> bool:
    """Whether a text begins with `{` and then `"` or `}`. YAML flow maps begin with a word."""
    return _LOOKS_LIKE_JSON.match(text) is not None


def is_blank(text: str) -> bool:
    """Whether a text has nothing but white space and comments."""
    return _BLANK.fullmatch(text) is not None


def strict(text: str) -> str:
    """The text with spaces in the place of comments and final commas."""
    if "//" in text or "/*" in text:
        text = COMMENT.sub(lambda match: _blank(match[0]), text)
    return _FINAL_COMMA.sub(lambda match: match[0] if match[1] is None else match[1] + " ", text)


def _blank(piece: str) -> str:
    """A string as it is; a comment as spaces, unless it is not certain where it ends."""
    if piece[0] == '"' or (piece[1] == "*" and (len(piece) < 4 or not piece.endswith("*/"))):
        return piece
    if piece[1] == "/" and re.search(f"[{_ODD_LINE_ENDS}]", piece.rstrip()):
        return piece
    return re.sub(r"[^\n]", " ", piece)


def parse(text: str, document: Document) -> tuple[str, dict[str, Any]]:
    """The text as standard JSON, and its value as `json.loads` reads it, with all numbers as texts.

    Raises:
        ConfigError: the text is not JSON.
    """
    try:
        # Standard JSON, the usual case, is not looked through for comments.
        return text, _DECODER.decode(text)
    except (json.JSONDecodeError, RecursionError):
        text = strict(text)
    failed: ConfigError
    try:
        return text, _DECODER.decode(text)
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
        if text.startswith("//", error.pos):
            what = "programs differ in where this comment ends; end its line with a line feed"
        elif text[error.pos : error.pos + 1] in ("“", "”", "‘", "’"):
            what = 'a typographic quote stands here; write straight ones (")'
        elif what == "invalid \\escape":
            what += "; in a text, a backslash is written twice"
        failed = document.fatal(Mark(error.lineno, error.colno), f"this is not JSON: {what}; {_ONLY_JSON}")
    except RecursionError:
        return text, {}  # its first levels are well-formed, and the builder stops there
    # Not within the handler: the error of the parser holds the whole text, which even as the context of ours could get
    # into a log.
    raise failed


def json_tokens(text: str, document: Document, wanted: Wanted | None = None) -> Iterator[Token]:
    """The tokens of standard JSON, which `parse` has accepted. An entry that is not wanted has the value null."""
    marks = Marks(text)
    path: list[str | None] = []
    is_map: list[bool] = []
    key: str | None = None  # of the entry whose value comes next
    at = 0
    while (match := _TOKEN.match(text, at)) is not None:
        token, start, at = match[1], match.start(1), match.end()
        mark = marks.at(start)
        if token in ("}", "]"):
            is_map.pop()
            path.pop()
            yield Sign.END, mark
        elif is_map and is_map[-1] and key is None:
            key = json.loads(token)
            yield key, mark
            if wanted is not None and not wanted((*path[1:], key)):
                value = _TOKEN.match(text, at)
                assert value is not None
                at = _DECODER.raw_decode(text, value.start(1))[1]
                key = None
                yield Plain(""), marks.at(value.start(1))
            continue
        elif token in ("{", "["):
            path.append(key)
            is_map.append(token == "{")
            yield Sign(token), mark
        elif token[0] == '"':
            yield json.loads(token), mark
        elif token in _NOT_NUMBERS:  # which the parser takes and JSON does not have
            raise document.fatal(mark, f"this is not JSON: {token} is no number; {_ONLY_JSON}")
        else:
            yield Plain(token), mark
        key = None


class Member(NamedTuple):
    """An entry of a map by its offsets: from the quote of its key to the end of its value."""

    key_start: int
    value_start: int
    end: int


def members(text: str, start: int) -> dict[str, Member]:
    """The entries of the map that begins at the offset, in their order. The text is standard JSON.

    Raises:
        ValueError: a key stands twice.
    """
    found: dict[str, Member] = {}
    at = start + 1
    while True:
        match = _TOKEN.match(text, at)
        assert match is not None
        if match[1] == "}":
            return found
        value = _TOKEN.match(text, match.end())
        assert value is not None
        name = json.loads(match[1])
        if name in found:
            raise ValueError(f'duplicate key "{name}"')
        at = _DECODER.raw_decode(text, value.start(1))[1]
        found[name] = Member(match.start(1), value.start(1), at)
