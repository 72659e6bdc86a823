"""Regular expressions of JSON Schema that every client compiles.

Clients compile them as JavaScript with the flag `u` (Ajv) or as Python's `re`; each refuses much that the other allows.
The grammar here is a part of both: "Pattern" of ECMA-262 with `u`, without look-behind, named groups, back references
and properties of characters.
"""

from __future__ import annotations

import re

_MAX_LENGTH = 2000
_CODE_POINT = r"x[0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
_ESCAPED = rf"\\(?:[tnvfr^$\\.*+?()\[\]{{}}|/]|{_CODE_POINT})"
_SET = r"\\[dDsSwW]"

_TERM = re.compile(
    rf"""
      (?P<edge>   [\^$] | \\[bB] | \| )
    | (?P<open>   \((?:\?[:=!])? )
    | (?:
        (?P<close> \) )
      | (?P<range> \[ \^?+ (?: [^\\\]] | {_ESCAPED} | {_SET} | \\- )++ \] )
      | [^\\^$.*+?()\[\]{{}}|] | {_ESCAPED} | {_SET} | \.
      )
      (?P<quantifier> (?: [*+?] | \{{ (?P<least>[0-9]{{1,4}}) (?: , (?P<most>[0-9]{{1,4}})? )? \}} ) \?? )?
    """,
    re.VERBOSE,
)
_MEMBER = re.compile(rf"{_ESCAPED}|{_SET}|\\-|[^\\]", re.DOTALL)


def is_portable(pattern: str) -> bool:
    """Whether all clients surely compile the pattern. The time is proportional to its length."""
    if len(pattern) > _MAX_LENGTH:
        return False
    opened: list[str] = []
    at = 0
    while at < len(pattern):
        if (term := _TERM.match(pattern, at)) is None:
            return False
        at = term.end()
        if term["open"]:
            opened.append(term["open"])
        elif term["close"] and (not opened or (opened.pop() in ("(?=", "(?!") and term["quantifier"])):
            return False
        if term["most"] and int(term["least"]) > int(term["most"]):
            return False
        if term["range"] and not _has_ordered_ranges(term["range"]):
            return False
    return not opened


def _has_ordered_ranges(range_: str) -> bool:
    """Whether each range between two characters of a class rises."""
    found = _MEMBER.findall(range_[1:-1].removeprefix("^"))
    at = 0
    while at + 2 < len(found):
        if found[at + 1] != "-":
            at += 1
            continue
        first, last = _code_point(found[at]), _code_point(found[at + 2])
        if first is None or last is None or first > last:
            return False
        at += 3
    return True


def _code_point(member: str) -> int | None:
    """The code point of a member of a class; None for a set."""
    if len(member) == 1:
        return ord(member)
    if member[1] in "xu":
        return int(member[2:], 16)
    if member[1] in "dDsSwW":
        return None
    return ord({"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}.get(member[1], member[1]))
