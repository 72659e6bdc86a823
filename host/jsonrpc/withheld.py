"""Texts that are not passed on: they are found in the decoded strings of JSON, member names included, and replaced.

JSON without escapes is only searched for the bytes of each text. A string is decoded if escapes may hide a text in it.
Other encodings, such as base64, are not looked for. These functions also run in other processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in CPython, missing from typeshed

WITHHELD = "[withheld by Colonnade]"
"""Stands in the place of such a text. It needs no escapes, so that one search tells whether there was any."""

_WITHHELD = WITHHELD.encode()
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


class Withheld:
    """Texts to find and to replace. Empty texts are none."""

    __slots__ = ("_any", "_escapes", "_plain", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({each for each in texts if each}, key=lambda each: (-len(each), each)))
        """The longest first, since one may be part of another."""
        plain = [each.encode(errors="surrogatepass") for each in self.texts if _needs_no_escape(each)]
        self._plain = tuple((each, _rare_bytes(each)) for each in plain)
        chars = frozenset("".join(self.texts))
        self._escapes = _escapes_of(chars)
        self._any = re.compile("|".join(map(re.escape, self.texts)) or "(?!)")

    def __reduce__(self) -> tuple[type[Withheld], tuple[tuple[str, ...]]]:
        return Withheld, (self.texts,)

    def may_be_in(self, data: bytes) -> bool:
        """Whether JSON text may hold one of the texts. Most texts are only searched for bytes."""
        for plain, rare in self._plain:
            for byte in rare:
                if data.find(byte) < 0:
                    break
            else:
                if data.find(plain) >= 0:
                    return True
        return data.find(b"\\") >= 0 and self._escapes.search(data) is not None

    def replaced(self, data: bytes) -> bytes:
        """The JSON text with WITHHELD instead of each of the texts; `data` itself if it holds none. All other strings
        keep their bytes."""
        changed = _STRING.sub(self._replaced_in_string, data)
        return data if changed == data else changed

    def _replaced_in_string(self, match: re.Match[bytes]) -> bytes:
        if not self.may_be_in(match[0]):
            return match[0]
        before: str = scanstring(match[0].decode(), 1)[0]
        after = self.replaced_in_text(before)
        return match[0] if after == before else json.dumps(after).encode()

    def replaced_in_text(self, text: str) -> str:
        """`replaced` for text that is no JSON."""
        return self._any.sub(WITHHELD, text)


def is_withheld_in(data: bytes) -> bool:
    """Whether something was replaced in the text."""
    return data.find(_WITHHELD) >= 0


_COMMON = b"etaoinsrhldcumfpgwybv,. kxjqz0123456789-_/:ETAOINSRHLDCUMFPGWYBVKXJQZ+="
"""Bytes of texts, the most frequent ones first."""


def _rare_bytes(plain: bytes) -> tuple[bytes, ...]:
    """A few bytes of the text that others are likely not to have: one byte is found a hundred times faster than a
    text."""
    rare = sorted(set(plain), key=lambda byte: _COMMON.find(byte) % (len(_COMMON) + 1), reverse=True)
    return tuple(bytes((byte,)) for byte in rare[:4])


def _needs_no_escape(text: str) -> bool:
    return not any(char in '"\\' or char < " " for char in text)


def _escapes_of(chars: frozenset[str]) -> re.Pattern[bytes]:
    """A pattern for every escape by which one of these characters can be written in JSON."""
    units = {unit for char in chars for unit in _utf16(char)}
    short = "".join(sorted(re.escape(_SHORT_ESCAPES[char]) for char in chars & _SHORT_ESCAPES.keys()))
    long = "|".join(f"{unit:04x}" for unit in sorted(units))
    alternatives = [*([f"[{short}]"] if short else []), *([f"u(?i:{long})"] if long else [])]
    return re.compile(f"\\\\(?:{'|'.join(alternatives) or '(?!)'})".encode())


def _utf16(char: str) -> list[int]:
    data = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]
