"""The patterns of the file: anchored globs over names and URIs, what they match, and whether some make one needless.

In names `*` stands for any characters; in URIs it stops at `/`, and `**` does not. `?` is one character (in URIs not
`/`). There is no escape: every other character stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_LENGTH = 8192
"""Longer texts are not held against patterns: that takes time which grows with their length."""

MAX_STEPS = 20_000
"""How long `covers` looks for an answer; as many steps take some 20 ms."""

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


def covers(stronger: Iterable[str], weaker: str, *, uris: bool) -> bool:
    """Whether every text that `weaker` matches is matched by one of `stronger`.

    Both automata are walked side by side, `stronger` as the set of places it can be in. There can be very many such
    sets: what is not settled after MAX_STEPS is False.
    """
    one, many = Globs((weaker,), uris=uris), Globs(stronger, uris=uris)
    alphabet = [_OTHER, *{*one._moves, *many._moves}]
    waiting = [(one._start, many._start)]
    seen = set(waiting)
    steps = 0
    while waiting:
        place, places = waiting.pop()
        if not places or (place & one._end and not places & many._end):
            return False  # from every place `weaker` can come to its end, with nothing left of `stronger`
        if places & many._absorbing:
            continue
        for char in alphabet:
            steps += 1
            if steps > MAX_STEPS:
                return False
            after = many._step(places, char)
            for next_place in _bits(one._step(place, char)):
                pair = (next_place, after)
                if pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)
    return True


def normalize_case(text: str, host_pattern: re.Pattern[str] = _HOST_PREFIX) -> str:
    """A URI with what is the same in upper and lower case in lower case: the scheme, and the host of those schemes that
    have host names, which `host_pattern` finds."""
    found = host_pattern.match(text) or _SCHEME.match(text)
    return text if found is None else found[0].lower() + text[found.end() :]


def _bits(places: int) -> Iterator[int]:
    while places:
        lowest = places & -places
        yield lowest
        places ^= lowest
