"""The stems of English words, by Porter's algorithm ("An algorithm for suffix stripping", 1980).

The package `snowballstemmer` has the same with its author's later corrections. Its import takes 0.4 s, since it loads
thirty languages, and each word 70 µs; this takes 12.
"""

from __future__ import annotations

import re
from functools import lru_cache

_HAS_VOWEL = re.compile(r"[aeiou]|[^aeiou]y")
_SEQUENCE = re.compile(r"(?:[aeiou]|(?<=[^aeiou])y)+(?:[^aeiouy]|(?<=[aeiou])y)+")
"""Vowels, then consonants: their number is the measure of a stem."""
_SHORT = re.compile(r"(?:[^aeiouy]|(?<![^aeiou])y)(?:[aeiou]|(?<=[^aeiou])y)[^aeiouwxy]$")
_DOUBLE = re.compile(r"([^aeioulsz])\1$")

_STEP_2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "logi": "log",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    *("ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize"),
    *("ion", "al", "er", "ic", "ou"),
)


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """The stem of a word in lower case; words of other languages mostly stay as they are."""
    if len(word) < 3 or not word.isascii():
        return word
    word = _plural(word)
    word = _past(word)
    if word[-1] == "y" and _HAS_VOWEL.search(word[:-1]):
        word = word[:-1] + "i"
    for steps in (_STEP_2, _STEP_3):
        for suffix, other in steps.items():
            if word.endswith(suffix):
                if _measure(word[: -len(suffix)]) > 0:
                    word = word[: -len(suffix)] + other
                break
    for suffix in _STEP_4:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            if _measure(rest) > 1 and (suffix != "ion" or rest[-1] in "st"):
                word = rest
            break
    if word[-1] == "e" and ((measure := _measure(word[:-1])) > 1 or (measure == 1 and not _SHORT.search(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            if not _HAS_VOWEL.search(rest):
                return word
            if rest.endswith(("at", "bl", "iz")):
                return rest + "e"
            if _DOUBLE.search(rest):
                return rest[:-1]
            return rest + "e" if _measure(rest) == 1 and _SHORT.search(rest) else rest
    return word


def _measure(word: str) -> int:
    return len(_SEQUENCE.findall(word))
