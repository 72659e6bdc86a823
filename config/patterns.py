"""Patterns for names of tools: `*` stands for any characters and `?` for one, as in our own rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from config.globs import rests


def covers(wide: str, narrow: str) -> bool:
    """Whether all texts that one pattern matches are matched by another. False for some pairs where that is so."""
    at = place = star = 0
    taken = -1  # by the last star of `wide`, up to here; -1 before the first
    while place < len(narrow):
        if wide[at : at + 1] == "*":
            star, taken = at, place
            at += 1
        elif at < len(wide) and narrow[place] != "*" and wide[at] in ("?", narrow[place]):
            at += 1
            place += 1
        elif taken >= 0:
            taken += 1
            at, place = star + 1, taken
        else:
            return False
    return not wide[at:].strip("*")


def overlap(one: str, other: str) -> bool:
    """Whether a text matches both patterns."""
    waiting = [(0, 0)]
    seen = set(waiting)
    for left, right in waiting:
        if left == len(one) and right == len(other):
            return True
        a, b = one[left : left + 1], other[right : right + 1]
        following = []
        if a == "*":
            following += [(left + 1, right), (left, right + 1)] if b else [(left + 1, right)]
        if b == "*":
            following += [(left, right + 1), (left + 1, right)] if a else [(left, right + 1)]
        if a and b and "*" not in (a, b) and (a == b or "?" in (a, b)):
            following.append((left + 1, right + 1))
        waiting += [place for place in following if place not in seen]
        seen.update(following)
    return False


def covered(pattern: str, others: Collection[str]) -> bool:
    """Whether one of the others matches all texts that the pattern matches."""
    return pattern in others or any(covers(other, pattern) for other in others if "*" in other or "?" in other)


def common(some: Iterable[str], others: Iterable[str]) -> set[str]:
    """Patterns for texts that match one of some and one of others. Pairs that overlap only in part are left out."""
    some, others = set(some), set(others)
    return {one for one in some if covered(one, others)} | {one for one in others if covered(one, some)}


def widest(patterns: Iterable[str]) -> set[str]:
    """The patterns without those that another one covers."""
    found: set[str] = set()
    for pattern in sorted(set(patterns)):
        if not covered(pattern, found):
            found = {each for each in found if not covers(pattern, each)} | {pattern}
    return found


def after_prefix(pattern: str, prefix: str) -> set[str]:
    """Patterns for the names that follow the prefix in texts that match the pattern."""
    return rests(pattern, prefix) - {""}
