"""Checks on JSON text from clients: it is bounded, and no two parsers can read it differently.

Short text is decoded with hooks. Long text is scanned: no values are built, and the work is divided into steps of a few
milliseconds, because a worker thread that stays in one call into C stops every other thread. Both give the same
verdict.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in CPython, missing from typeshed

import msgspec
from msgspec import Raw

from host.jsonrpc.raw import DECODE_ERRORS, is_json

MAX_DEPTH = 64
MAX_TOKENS = 200_000
"""Structural characters, which are counted before anything is parsed: a value may take two bytes."""
MAX_DIGITS = 4300
"""Digits of an integer: Python refuses to convert longer ones by default."""
LIGHT_TOKENS = 5_000
LIGHT_BYTES = 128 * 1024
"""Text with more tokens or bytes is heavy: checking it takes too long for the event loop."""

_TOKENS = (b"{", b"[", b",")
_NOT_TOKENS = bytes(byte for byte in range(256) if byte not in b"{[,")
_FEW = 250
_SHORT = 1024
"""Text of at most this many bytes is decoded instead of scanned."""
_STEP = 64 * 1024
"""Bytes that are scanned in one step; more only if one string or one number is longer."""


class _Flaw(ValueError):
    """A reason to refuse the text, worded for the peer."""


def is_heavy(data: bytes | Raw) -> bool:
    """Whether checking the text (`flaw`) or decoding it may take more than a few milliseconds."""
    return len(data) > LIGHT_BYTES or may_have_more_tokens(data, LIGHT_TOKENS)


def count_tokens(data: bytes) -> int:
    """The number of structural characters: `{`, `[` and `,`, including those inside strings."""
    return len(data.translate(None, _NOT_TOKENS))


def may_have_more_tokens(data: bytes | Raw, most: int) -> bool:
    """Whether the text has more than `most` structural characters, those inside strings included. Text that has fewer
    bytes is not looked at."""
    return len(data) > most and count_rare(bytes(data), _TOKENS, _NOT_TOKENS) > most


def count_rare(text: bytes, chars: Sequence[bytes], others: bytes) -> int:
    """The number of these characters in a long text that has few of them, as most have. `others`: all other bytes."""
    rest = text
    for char in chars:  # of a rare one, `replace` finds all in a tenth of the time in which others look at each byte
        rest = rest.replace(char, b"", _FEW)
    found = len(text) - len(rest)
    return found if found < _FEW else len(text.translate(None, others))


def count_tokens_outside_strings(data: bytes) -> int:
    """The number of structural characters of valid JSON, without those inside strings."""
    return sum(count_tokens(b"".join(outside)) for outside, _ in pieces(data))


def has_more_tokens(data: bytes, most: int) -> bool:
    """Whether valid JSON has more than `most` structural characters outside strings. Stops scanning once it is
    known."""
    if not may_have_more_tokens(data, most):
        return False
    found = 0
    for outside, _ in pieces(data):
        found += count_tokens(b"".join(outside))
        if found > most:
            return True
    return False


def flaw(data: bytes) -> str | None:
    """The reason to refuse the text, or None. The cheap check comes first: a bomb must be refused without parsing."""
    try:
        if len(data) <= _SHORT:
            _decode(data)
        elif may_have_more_tokens(data, MAX_TOKENS):
            return f"too many values: more than {MAX_TOKENS} structural characters"
        else:
            _scan(data)
    except UnicodeDecodeError:
        return "not UTF-8"
    except _Flaw as problem:
        return str(problem)
    except json.JSONDecodeError as problem:
        return f"not JSON: {problem.msg} at character {problem.pos}"
    except RecursionError:
        return _TOO_DEEP
    return None


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_TOO_LARGE = "a number is too large for a 64-bit float"
_TOO_LONG = f"a number has more than {MAX_DIGITS} digits"


def _duplicate_member(name: str) -> _Flaw:
    return _Flaw(f"duplicate member {name[:80]!a} in one object")


# Short text


def _decode(data: bytes) -> None:
    if not _is_written_plainly(data):
        _strict_decoder.decode(data.decode())
    if _may_be_deep(data):
        _check_depth(b"".join(text for outside, _ in pieces(data) for text in outside).translate(_ALIKE, _NOT_BRACKETS))


def _is_written_plainly(data: bytes) -> bool:
    """Whether the text is what an encoder writes for the value that it decodes to, as most clients' text is. Then no
    member is missing from the value, and no number is too large: nothing is to be refused but depth."""
    try:
        return _plain_encoder.encode(_plain_decoder.decode(data)) == data
    except DECODE_ERRORS:
        return False


_plain_decoder = msgspec.json.Decoder()
_plain_encoder = msgspec.json.Encoder()


def _no_duplicates(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    found: set[str] = set()
    for name, _ in pairs:
        if name in found:
            raise _duplicate_member(name)
        found.add(name)


def _check_integer(text: str) -> None:
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise _Flaw(_TOO_LONG)


def _check_float(text: str) -> None:
    if not math.isfinite(float(text)):
        raise _Flaw(_TOO_LARGE)


def _no_constant(text: str) -> None:
    raise _Flaw(f"{text} is not a JSON number")


_strict_decoder = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_int=_check_integer, parse_float=_check_float, parse_constant=_no_constant
)


# Long text

_BACKSLASHES, _QUOTE = b"\xff\xff", b"\xfe\xfe"
"""Replace an escaped backslash and an escaped quote while text is scanned: these bytes do not occur in UTF-8."""
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'{}:"')
_COLON, _OPEN = b":{"
_ALIKE = bytes.maketrans(b"{}", b"[]")
# With all digits written as 0, every number that is too long or too large contains one of these.
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_SUSPECT = (b"0" * 100, b"e000", b"e+000", b"E000", b"E+000")
_NUMBER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]++(\.[0-9]++)?+([eE][+-]?[0-9]++)?")


def _scan(data: bytes) -> None:
    data.decode()
    if not is_json(data):
        raise _Flaw("not JSON")
    deep = _may_be_deep(data)
    brackets: list[bytes] = []
    names = _Names()
    for outside, strings in pieces(data):
        text = b'"'.join(outside)
        if deep:
            brackets.append(text.translate(_ALIKE, _NOT_BRACKETS))
        _check_numbers(text)
        names.check(text, strings)
    _check_depth(b"".join(brackets))


def _may_be_deep(data: bytes) -> bool:
    return data.count(b"{") + data.count(b"[") > MAX_DEPTH


def pieces(data: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Split JSON text in steps: for each step the texts outside strings, and the strings that follow each of them. The
    last string of all may be missing."""
    if b"\\" in data:
        data = data.replace(b"\\\\", _BACKSLASHES).replace(b'\\"', _QUOTE)
    start = 0
    while start < len(data):
        end = data.find(b'"', start + _STEP) + 1 or len(data)
        if data.count(b'"', start, end) % 2:
            end = data.index(b'"', end) + 1
        pieces = data[start:end].split(b'"')
        if len(pieces) % 2 and not pieces[-1] and end < len(data):
            del pieces[-1]
        yield pieces[::2], pieces[1::2]
        start = end


def _check_depth(brackets: bytes) -> None:
    """Remove the innermost pairs, level by level. `brackets`: those of valid JSON, all written as `[` and `]`."""
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise _Flaw(_TOO_DEEP)


def _check_numbers(text: bytes) -> None:
    start = 0
    while start < len(text):
        end = text.find(b",", start + _STEP) + 1 or len(text)
        zeros = text[start:end].translate(_ZEROS)
        if any(each in zeros for each in _SUSPECT):
            for number in _NUMBER.finditer(text, start, end):
                if any(number.groups()):
                    _check_float(number[0].decode())
                else:
                    _check_integer(number[0].decode())
        start = end


class _Names:
    """Names of the members of every object that is open at the current place of the text."""

    def __init__(self) -> None:
        self._outer: list[set[bytes]] = []
        self._here: set[bytes] = set()
        self._last = b""
        """The string before the next text: a name if a colon follows."""

    def check(self, text: bytes, strings: list[bytes]) -> None:
        """Check the next texts outside strings, with quotes between them, and the strings that follow each."""
        here = self._here
        for string, marks in zip(
            chain((self._last,), strings), text.translate(None, _NOT_MARKS).split(b'"'), strict=False
        ):
            if not marks:
                continue
            if marks[0] == _COLON:
                name = string if string.isalnum() else _decoded(string)
                if name in here:
                    raise _duplicate_member(name.decode(errors="surrogatepass"))
                here.add(name)
                if len(marks) == 1:
                    continue
            for mark in marks:
                if mark == _OPEN:
                    self._outer.append(here)
                    here = set()
                elif mark != _COLON:
                    here = self._outer.pop()
        self._here = here
        if strings:
            self._last = strings[-1]


def _decoded(name: bytes) -> bytes:
    """The name without escapes, so that all its spellings compare equal."""
    if b"\\" not in name and b"\xff" not in name and b"\xfe" not in name:
        return name
    text = name.replace(_BACKSLASHES, rb"\\").replace(_QUOTE, rb"\"")
    decoded: str = scanstring((text + b'"').decode(), 0)[0]
    return decoded.encode(errors="surrogatepass")
