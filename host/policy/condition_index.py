"""Rules by their conditions, so that a call costs what the few rules cost that may apply to it, and not what all do.

One check of each rule stands in a dictionary with those of the other rules on the same argument. A rule is left out
only if that check alone says that it cannot apply. `conditions_hold` decides about the others: no check has a second
meaning here. Nothing is kept of a call, and no pattern is tried at more than one place of a text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, cast

from config import Check, Condition
from config.globs import MAX_LENGTH
from host.jsonrpc.numbers import is_comparable, is_exact
from host.policy.conditions import (
    argument_at,
    is_here,
    may_be_the_same,
    parse_address,
    path_readings,
    read_hosts,
    read_roots,
)

_OPS = ("eq", "range", "prefix", "suffix", "glob", "host_in", "path_under")
_WILD = re.compile(r"[*?]+")
_NUMBER: Final = "number"
_TEXT: Final = "text"
_READ: Final = "text that may be read in several ways"

_Keys = tuple[str, Collection[Any]]


class Indexed(NamedTuple):
    """The conditions of a rule."""

    when: tuple[Condition, ...]
    closed: bool
    surely: bool
    """Whether the rule applies only if its conditions surely hold, and not also if they are unknown."""


class ConditionIndex:
    """Rules, known by their places in the sequence."""

    def __init__(self, rules: Sequence[Indexed]) -> None:
        self._others: list[int] = []
        self._arguments: dict[str, _ArgumentIndex] = {}
        checks = [_indexable(rule) for rule in rules]
        common = Counter(each for some in checks for each in some)
        for place, (rule, some) in enumerate(zip(rules, checks, strict=True)):
            if some:
                path, check = min(some, key=common.__getitem__)  # the one that tells the rule from most others
                argument = self._arguments.setdefault(path, _ArgumentIndex())
                argument.add(place, check.op, *some[path, check], rule.surely)
            else:
                self._others.append(place)

    def candidates(self, arguments: object) -> set[int]:
        """The places of the rules that may apply to these arguments, as in `conditions_hold`."""
        found = set(self._others)
        for path, argument in self._arguments.items():
            argument.find(argument_at(path, arguments), found)
        return found


def _indexable(rule: Indexed) -> dict[tuple[str, Check], _Keys]:
    """The checks of a rule by which it may be found, and their keys. Arguments that a closed rule does not name make it
    unknown, whatever its checks say."""
    if rule.closed and not rule.surely:
        return {}
    checks = [(each.path, check) for each in rule.when for check in each.checks]
    return {each: keys for each in checks if (keys := _keys(each[1])) is not None}


def _keys(check: Check) -> _Keys | None:
    """The type of values that a check is about, and the keys by which it is found; None if it is about several types,
    or unknown where others of its kind are sure."""
    op, wanted = check.op, cast(Any, check.value)
    if op in ("eq", "in"):
        values = (wanted,) if op == "eq" else wanted
        if all(isinstance(each, str) for each in values):
            return _TEXT, values
        return (_NUMBER, values) if all(map(_is_number, values)) else None
    if op == "range":
        low, high = wanted
        bounds = -math.inf if low is None else low, math.inf if high is None else high
        return (_NUMBER, (bounds,)) if all(map(_is_number, bounds)) else None
    if op in ("prefix", "suffix"):
        return _TEXT, (wanted,)
    if op == "glob":
        return _READ, (max(_WILD.split(wanted), key=len),)  # a part of each match
    if op == "host_in":
        found: Collection[Any] = read_hosts(wanted)
    elif op == "path_under":
        roots = read_roots(wanted)
        found = roots.exact | roots.folded
    else:
        return None
    return (_READ, found) if found and None not in found else None


def _is_number(value: object) -> bool:
    """Whether the value is a number with which every other one compares as less, equal or greater."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_exact(value)


class _ArgumentIndex:
    """One check of each of several rules, all on the same argument."""

    def __init__(self) -> None:
        self._places: dict[str, dict[Any, list[int]]] = {op: {} for op in _OPS}
        self._sizes: dict[str, set[int]] = {op: set() for op in _OPS}
        """The lengths of the keys that are texts or names along a path."""
        self._unsure: dict[str, set[int]] = {_NUMBER: set(), _TEXT: set(), _READ: set()}
        """The rules that apply if their check is unknown, by what it is about."""

    def add(self, place: int, op: str, about: str, keys: Collection[Any], surely: bool) -> None:
        """Add a rule by one of its checks."""
        op = "eq" if op == "in" else op
        for key in keys:
            self._places[op].setdefault(key, []).append(place)
            if isinstance(key, str | tuple):
                self._sizes[op].add(len(key))
        if not surely:
            self._unsure[about].add(place)

    def find(self, value: object, found: set[int]) -> None:
        """Add the rules whose check may let them apply."""
        if isinstance(value, str):
            found |= self._unsure[_NUMBER]
            self._find_text(value, found)
        elif isinstance(value, int | float) and not isinstance(value, bool) and is_comparable(value):
            found |= self._unsure[_TEXT] | self._unsure[_READ]
            places = self._places
            if value in places["eq"]:
                found.update(places["eq"][value])
            found.update(*[places["range"][each] for each in places["range"] if each[0] <= value <= each[1]])
        else:
            found.update(*self._unsure.values())

    def _find_text(self, text: str, found: set[int]) -> None:
        places, sizes = self._places, self._sizes
        length = len(text)
        if length in sizes["eq"] and text in places["eq"]:  # others are not hashed
            found.update(places["eq"][text])
        for size in sizes["prefix"]:
            if (part := text[:size]) in places["prefix"]:
                found.update(places["prefix"][part])
        for size in sizes["suffix"]:
            if (part := text[length - size :]) in places["suffix"]:
                found.update(places["suffix"][part])
        if length > MAX_LENGTH:
            found |= self._unsure[_READ]
            return
        found.update(*[places["glob"][part] for part in places["glob"] if part in text])
        for names in chain(*path_readings(text)) if places["path_under"] else ():
            if names is None:
                found |= self._unsure[_READ]
                continue
            for size in sizes["path_under"]:
                found.update(places["path_under"].get(names[:size], ()))
        if places["host_in"]:
            address = parse_address(text)
            if address is None:
                found |= self._unsure[_READ]
                return
            host, hosts, here = address.host, places["host_in"], is_here(address.host)
            found.update(hosts.get(host, ()))
            if here or not isinstance(host, str):
                found.update(*[hosts[each] for each in hosts if may_be_the_same(each, host, here)])
