"""The consent for the tools of an imported server: the stricter of what its host has and of what a person answered.

What its host denies stays denied, and what a file of its host has confirmed stays confirmed, whatever the answer is:
before which calls a person is asked here as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

from config.document import Plain
from config.globs import Globs
from config.model import CONSENT_WORDS, ENTRY_RULES, ConsentWord, ToolClaim

RECOMMENDED = ConsentWord.READ_ONLY
"""Ask before the calls of all tools but those that only read, by their approved claims."""
_STRICTEST_FIRST = ("deny", "ask", "allow")
_BY_TRUST = {"untrusted": "ask"}


@dataclass(frozen=True)
class ToolConsent:
    """The rules for tools in our form: patterns, or maps with conditions. `default` is for tools that no rule names."""

    default: str = "allow"
    allow: tuple[object, ...] = ()
    ask: tuple[object, ...] = ()
    deny: tuple[object, ...] = ()

    @classmethod
    def read(cls, value: object, trust: object = None) -> ToolConsent:
        """The consent of the key `tools` as it is written; `trust` decides about what it does not name."""
        by_trust = _BY_TRUST.get(str(trust), "allow")
        if isinstance(value, str):
            return cls(str(value))
        if not isinstance(value, dict):
            return cls(by_trust)
        default = value.get("default") or ("deny" if isinstance(value.get("allow"), list) else by_trust)
        lists = {name: tuple(rules) for name in _STRICTEST_FIRST if isinstance(rules := value.get(name), list)}
        return cls(str(default), **lists)

    def written(self) -> object:
        """The value for the key `tools`; None if the default of a standard server says the same."""
        rules = {name: list(found) for name in reversed(_STRICTEST_FIRST) if (found := getattr(self, name))}
        if self.default == ("deny" if self.allow else "allow"):
            return rules or None  # a list of permitted tools denies the others by itself
        return {"default": Plain(self.default), **rules} if rules else Plain(self.default)

    def verdict(self, tool: str) -> str:
        """The strictest verdict that a tool can get by its literal name, whatever the arguments. Conditional rules that
        deny are left out."""
        found = next((verdict for verdict, globs in self._globs if globs.match(tool)), self.default)
        return _stricter(found, "ask") if self._asked_at_times.match(tool) else found

    @cached_property
    def _globs(self) -> list[tuple[str, Globs]]:
        """The rules without conditions."""
        lists = ("deny", self.deny), ("ask", self.ask), ("allow", self.allow)
        return [
            (verdict, Globs([rule for rule in rules if isinstance(rule, str)], uris=False)) for verdict, rules in lists
        ]

    @cached_property
    def _asked_at_times(self) -> Globs:
        return Globs([str(rule.get("name")) for rule in self.ask if isinstance(rule, dict)], uris=False)


NOTHING_PASSED = ToolConsent("ask")
"""The calls that are not asked about in any case, if there are none."""


def stricter(one: ToolConsent, other: ToolConsent) -> ToolConsent:
    """A consent by which no call has a laxer verdict than by either of two. A rule with `*`, `?` or conditions is kept
    where that is certainly not laxer than both; else it becomes stricter."""
    if one == other:
        return one
    default = _stricter(one.default, other.default)
    lists: dict[str, list[object]] = {"deny": [*one.deny, *other.deny], "ask": [], "allow": []}
    pairs = ((one, other), (other, one))
    left_out = False
    for mine, their in pairs:
        for rule in mine.ask:
            place = _stricter("ask", their.verdict(rule)) if _is_name(rule) else _place_of_asked(rule, their)
            left_out = left_out or not place
            lists[place or "deny"] += [rule] if place else []
    for mine, their in pairs:
        for rule in mine.allow:
            if _is_name(rule):
                lists[_stricter(mine.verdict(rule), their.verdict(rule))].append(rule)
            elif place := _place_of_allowed(rule, their, left_out):
                lists[place].append(rule)
    kept: dict[str, tuple[object, ...]] = {}
    seen: set[str] = set()
    for verdict in _STRICTEST_FIRST:
        fresh = {repr(rule): rule for rule in lists[verdict] if repr(rule) not in seen}
        seen |= fresh.keys()
        kept[verdict] = tuple(fresh.values())
    if default == "allow":
        kept["allow"] = ()  # as all the others
    return ToolConsent(default, **kept)


def _place_of_asked(rule: object, their: ToolConsent) -> str:
    """The list for a rule that asks; empty if the other consent may deny what it names."""
    if their.default == "deny" and not _has(their.ask, rule):
        is_permitted = isinstance(rule, str) and _has(their.allow, rule)
        return "ask" if is_permitted else ""
    return "ask"


def _place_of_allowed(rule: object, their: ToolConsent, left_out: bool) -> str:
    """The list for a rule that allows; empty if it is left to the default.

    `left_out`: a rule that asks is missing, so what this one names may have to be asked."""
    if their.default != "allow" and not _has(their.allow, rule):
        # A conditional rule that asks would hold in doubt, where one that allows does not.
        return "ask" if their.default == "ask" and isinstance(rule, str) else ""
    if left_out:
        return "ask" if isinstance(rule, str) else ""
    return "allow"


def _stricter(one: str, other: str) -> str:
    return min(one, other, key=_STRICTEST_FIRST.index)


def _is_name(rule: object) -> TypeGuard[str]:
    """Whether a rule is for one tool, in any case."""
    return isinstance(rule, str) and "*" not in rule and "?" not in rule


def _has(rules: Iterable[object], rule: object) -> bool:
    return any(repr(each) == repr(rule) for each in rules)


def asked_tools(
    word: ConsentWord | None, tools: ToolConsent, passed: ToolConsent, reading: Collection[str] = ()
) -> ToolConsent:
    """The consent for the tools of a server.

    Args:
        word: the answer: `read-only`, `careful`, or None for no questions but those of the host's files.
        tools: what the host's files deny and confirm.
        passed: what is not asked about in any case, as a consent that asks about the rest.
        reading: the names of tools that claim to be read-only. They matter where the host permits only some tools: a
            rule with claims for a tool that claims something else would deny it.
    """
    if word is None or passed.default == "allow":
        return tools
    strict = stricter(tools, passed)
    if word is not ConsentWord.READ_ONLY or tools.default == "ask":
        return strict
    if tools.default == "allow":
        return replace(strict, allow=(_claiming("*", ToolClaim.READ_ONLY), *strict.allow))
    own = [name for name in strict.ask if isinstance(name, str) and name in reading and name in tools.allow]
    return replace(
        strict,
        allow=(*(_claiming(name, ToolClaim.READ_ONLY) for name in own), *strict.allow),
        ask=(
            *(_claiming(name, ToolClaim.DESTRUCTIVE) for name in own),
            *(rule for rule in strict.ask if rule not in own),
        ),
    )


def with_consent(
    ours: Mapping[str, object], tools: ToolConsent, word: ConsentWord | None, default: object
) -> dict[str, object]:
    """The keys of a server with its consent, which is left out if the file's own default says the same. `default` is
    the `consent` that stands under `defaults` there; None if there is none. As a consent replaces it as a whole, what
    it denies and asks about by name, or of other kinds, is written too."""
    own, by_default = ours.get("consent"), _kinds_of(default)
    named = ToolConsent.read(by_default.pop("tools", None))
    if named.ask or named.deny:
        tools = stricter(tools, ToolConsent(ask=named.ask, deny=named.deny))
    kinds = {kind: Plain(rules) if isinstance(rules, str) else rules for kind, rules in by_default.items()}
    kinds = {kind: rules for kind, rules in kinds.items() if rules != "allow"}
    kinds |= dict(own) if isinstance(own, dict) else {}
    if word is not None and not kinds and tools == _OF_WORDS[word]:
        return dict(ours) if default == word else {**ours, "consent": Plain(word)}
    rules = tools.written()
    if rules is None and default is not None:
        rules = Plain(tools.default)
    if rules is not None:
        kinds = {"tools": rules, **kinds}
    return {**ours, "consent": kinds} if kinds else dict(ours)


def _kinds_of(consent: object) -> dict[str, object]:
    """A consent as it is written, by kind."""
    if isinstance(consent, dict):
        return dict(consent)
    if not isinstance(consent, str):
        return {}
    return dict(CONSENT_WORDS.get(consent) or dict.fromkeys(ENTRY_RULES, consent))


def _claiming(name: str, claim: ToolClaim) -> dict[str, object]:
    return {"name": name, "claims": Plain(claim)}


_OF_WORDS = {
    ConsentWord.READ_ONLY: ToolConsent("ask", allow=(_claiming("*", ToolClaim.READ_ONLY),)),
    ConsentWord.CAREFUL: ToolConsent("ask"),
}
