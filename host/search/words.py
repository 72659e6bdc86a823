"""The words of a text, as a search compares them: split at separators and in camel case, in lower case, reduced to
their stems."""

from __future__ import annotations

import re
from collections.abc import Iterator

from host.search.stems import stem

MAX_LENGTH = 40
"""Characters of a word that count."""

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of languages that write without spaces, or nearly: their words are taken to be pairs of letters."""

_STOP_WORDS = (
    "a about again also am an and another any are as at be been being but by can could d did do does doing don done "
    "each for from had has have having he her here his i if in into is it its just let m may me might mine more "
    "must my need no nor not now of on one only or other our over please re really s same shall she should so some "
    "such sure t take takes than that the their them then there these they this those to too us ve very want was we "
    "were will with would you your "
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that say nothing about a tool."""


def words(text: str) -> Iterator[str]:
    """The stems of the words of a text, in order, without numbers and without those that say nothing."""
    for found in _WORD.finditer(_HUMP.sub(" ", text)):
        word = found[0].lower()
        if word in STOP_WORDS or word.isdigit():
            continue
        if not word.isascii() and _UNSPACED.match(word):
            yield from (word[at : at + 2] for at in range(max(len(word) - 1, 1)))
        else:
            yield stem(word[:MAX_LENGTH])
