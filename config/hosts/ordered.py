"""Ordered lists of rules for tools, as several hosts keep them, in our form.

The last rule that matches decides there. Ours have no order: deny wins over ask, and ask over allow. So the list is
written without the rules that a later one replaces completely; where a later rule replaces only a part of a stricter
one, the stricter one stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from config.hosts.entry import CannotUse, ServerEntry
from config.patterns import after_prefix, covers, overlap

MAX_RULES = 1000
"""Longer lists are refused, because each rule is compared with each other one."""
STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True)
class ToolRule:
    """A rule of a host. `verdict` is allow, ask or deny.

    `is_certain` is false if the rule has a condition beside the name. `when` is that condition in our form, and None if
    it has no equivalent; the rule is then taken for every call.
    """

    pattern: str
    verdict: str
    is_certain: bool = True
    when: Mapping[str, object] | None = None


def of_server(rules: Iterable[ToolRule], prefix: str) -> list[ToolRule]:
    """Rules for full names of tools as rules for the tools of the server whose names begin with the prefix."""
    return [
        ToolRule(pattern, rule.verdict, rule.is_certain, rule.when)
        for rule in rules
        for pattern in sorted(after_prefix(rule.pattern, prefix))
    ]


def apply_ordered(
    entry: ServerEntry, rules: Sequence[ToolRule], default: str = "allow", cleaned: re.Pattern[str] | None = None
) -> None:
    """Restrict a server by rules of which the last that matches decides. Tools that no rule matches get the default.

    `cleaned`: the host puts `_` in the place of characters of a tool's name that do not match this, and its rules have
    the names after that. Where the rules cannot be written exactly, they become narrower, and a note says so.

    Raises:
        CannotUse: there are too many rules.
    """
    if len(rules) > MAX_RULES:
        raise CannotUse(f"its host has more than {MAX_RULES} rules for its tools; remove some")
    # A rule that permits only under a condition is left out, so that the condition is taken not to hold.
    weighed = [rule for rule in rules if rule.is_certain or rule.verdict != "allow"]
    kept = _effective([ToolRule("*", default), *weighed])
    base, above = kept[0].verdict, kept[1:]
    named = {
        verdict: {rule.pattern for rule in above if rule.verdict == verdict and rule.when is None}
        for verdict in STRICTNESS
    }
    if base == "deny":
        certain = {rule.pattern for rule in above if rule.is_certain and rule.verdict != "deny"}
        entry.permit(pattern for pattern in certain if not cleaned or cleaned.fullmatch(pattern))
    if base == "ask":
        entry.ask()
        entry.approve(sorted(named["allow"]))
    entry.ask(_unclean(pattern, cleaned) for pattern in named["ask"])
    entry.deny(_unclean(pattern, cleaned) for pattern in named["deny"])
    for rule in above:
        if rule.when is not None:
            entry.deny_when(_unclean(rule.pattern, cleaned), rule.when)
    is_narrower = any(not rule.is_certain and rule.when is None for rule in rules) or any(
        STRICTNESS[earlier.verdict] > STRICTNESS[later.verdict] and overlap(earlier.pattern, later.pattern)
        for n, later in enumerate(above)
        for earlier in above[:n]
    )
    if is_narrower:
        entry.note("rules of its host contradict each other, or depend on more than the tool; they are stricter here")


def _unclean(pattern: str, cleaned: re.Pattern[str] | None) -> str:
    """The pattern for the names before characters were replaced, where `_` can stand for any."""
    return pattern.replace("_", "?") if cleaned else pattern


def _effective(rules: Sequence[ToolRule]) -> list[ToolRule]:
    """The rules that can decide. The first matches every name, since each rule before it could not."""
    kept: list[ToolRule] = []
    for rule in reversed(rules):
        if not any(later.is_certain and covers(later.pattern, rule.pattern) for later in kept):
            kept.append(rule)
    return kept[::-1]
