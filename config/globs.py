"""The patterns of the file: anchored globs over names and URIs, and what they match.

In names `*` stands for any characters; in URIs it stops at `/`, and `**` does not. `?` is one character (in URIs not
`/`). There is no escape: every other character stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_LENGTH = 8192
"""Longer texts are not held against patterns: that takes time which grows with their length."""

MAX_STEPS = 2_000
"""The largest number of sets of places that `Globs.matches_everything` looks at."""

_TOKEN = re.compile(r"\*+|.", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.*?-]*:")
_HOST_PREFIX = re.compile(r"(?:file|ftp|https?|wss?)://[^/?#]*", re.IGNORECASE)
_HOST_PREFIX_PATTERN = re.compile(
    r"(?:file|ftp|https?|wss?)://[^/]*", re.IGNORECASE
)  # `?` may stand for a letter of it
_OTHER = ""  # stands for any character that no pattern names


class Globs:
    """A list of patterns as one automaton: a bit for every place in every pattern, moved along by every character.

    Its time grows with the text and with nothing in it: no pattern and no text make it try anything twice.
    """

    def __init__(self, patterns: Iterable[str], *, uris: bool) -> None:
        self._start = self._end = 0
        self._ends: dict[int, int] = {}  # the last place of each pattern, with its number
        literals: dict[str, int] = {}  # the places that a character may leave for the next
        any_one = any_run = run_in_segment = 0  # the places of `?`, and of the two kinds of stars
        at = 1
        for number, pattern in enumerate(patterns):
            self._start |= at
            for token in _TOKEN.findall(normalize_case(pattern, _HOST_PREFIX_PATTERN) if uris else pattern):
                if token == "*" and uris:
                    run_in_segment |= at
                elif token[0] == "*":
                    any_run |= at
                else:
                    if token == "?":
                        any_one |= at
                    else:
                        literals[token] = literals.get(token, 0) | at
                    at <<= 1
            self._end |= at
            self._ends[at] = number
            at <<= 1
        self._others = (any_one, any_run | run_in_segment)
        self._moves = {char: (places | any_one, any_run | run_in_segment) for char, places in literals.items()}
        if uris:
            self._moves["/"] = (literals.get("/", 0), any_run)
        self._absorbing = self._end & any_run

    def match(self, text: str) -> bool:
        """Whether one of the patterns names the whole of `text`."""
        return bool(self._final(text))

    def matches(self, text: str) -> list[int]:
        """The numbers of the patterns that name the whole of `text`, from 0, in order."""
        left, found = self._final(text), []
        while left:
            lowest = left & -left
            found.append(self._ends[lowest])
            left ^= lowest
        return found

    def matches_everything(self) -> bool:
        """Whether there is no text that none of the patterns matches. False if `MAX_STEPS` are too few to see that."""
        waiting = [self._start]
        seen = set(waiting)
        for places in waiting:
            if not places & self._end or len(seen) > MAX_STEPS:
                return False
            if places & self._absorbing:
                continue
            for char in (_OTHER, *self._moves):
                after = self._step(places, char)
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
        return True

    def _final(self, text: str) -> int:
        places = self._start
        for char in text:
            leaving, staying = self._moves.get(char, self._others)
            places = (places & leaving) << 1 | places & staying
            if not places:
                return 0
        return places & self._end

    def _step(self, places: int, char: str) -> int:
        leaving, staying = self._moves.get(char, self._others)
        return (places & leaving) << 1 | places & staying


def rests(pattern: str, prefix: str) -> set[str]:
    """The patterns for what may follow a prefix in the names that a pattern matches; empty if none begins so."""
    if "*" not in pattern and "?" not in pattern:  # as most are: files may hold thousands of rules for each server
        return {pattern[len(prefix) :]} if pattern.startswith(prefix) else set()
    places = {0}
    for char in (*prefix, ""):
        for place in sorted(places):
            while pattern[place : place + 1] == "*":
                place += 1
                places.add(place)
        if char:
            places = {
                place + (pattern[place] != "*")
                for place in places
                if place < len(pattern) and pattern[place] in ("*", "?", char)
            }
    # The rests behind a star are within the pattern that begins with it.
    return {pattern[place:] for place in places if not (place - 1 in places and pattern[place - 1] == "*")}


def normalize_case(text: str, host_pattern: re.Pattern[str] = _HOST_PREFIX) -> str:
    """A URI with what is the same in upper and lower case in lower case: the scheme, and the host of those schemes that
    have host names, which `host_pattern` finds."""
    found = host_pattern.match(text) or _SCHEME.match(text)
    return text if found is None else found[0].lower() + text[found.end() :]
