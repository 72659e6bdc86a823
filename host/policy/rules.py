"""Evaluation of consent rules: pure functions for requests to a server's entries and for the server's requests to
clients.

Deny wins over ask, and ask over allow; the order of rules in the file does not matter. An entry that no rule names gets
the default of the file. Without a default it is denied if there is an allow list, and otherwise gets the default of the
trust level.

A URI is matched as written and in every variant that a server may read it as (`uris.py`). One variant is enough to deny
or ask; a variant of `file:` also if only a lax file system takes it for the same file (`file_names.py`). An allow rule
must match every variant, and also the URI without query, fragment and trailing slash, unless the pattern itself
continues with a query or fragment there (`x://list?*`). For `file:`, where these name nothing, the URI without them
must always match.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from config import Check, Condition, Consent, KindConsent, Rule, Trust, Verdict
from config.globs import MAX_LENGTH, Globs
from host.policy.conditions import UNREADABLE as UNREADABLE
from host.policy.conditions import conditions_hold, display_path, explain_conditions, parse_address
from host.policy.file_names import loosened_pattern
from host.policy.uris import TooManyVariants, UriVariant, restricting_variants, uri_variants
from host.protocol.methods import Kind
from host.protocol.server_requests import ServerRequest
from host.slices import Steps

MAX_CACHED_NAMES = 40_000
"""Names whose visibility is cached: of four full lists of a server."""
HTTPS_PAGES_ONLY = "only https pages"
"""Name of the rule that denies servers below `trusted` to send a user to a page that is neither https nor on this
machine."""

_TOO_LONG = f"longer than {MAX_LENGTH} characters"
_TOO_MANY_VARIANTS = "readable in too many ways"
_ANYTHING = Rule("**")
_DENY = Verdict.DENY  # for speed; see RESOURCE in protocol/methods.py
_STRICTEST_FIRST = (Verdict.DENY, Verdict.ASK, Verdict.ALLOW)

ENTRY_DEFAULTS = {Trust.TRUSTED: Verdict.ALLOW, Trust.STANDARD: Verdict.ALLOW, Trust.UNTRUSTED: Verdict.ASK}
HARMLESS_DEFAULTS = {Trust.TRUSTED: Verdict.ALLOW, Trust.STANDARD: Verdict.ALLOW, Trust.UNTRUSTED: Verdict.DENY}
COSTLY_DEFAULTS = {Trust.TRUSTED: Verdict.ALLOW, Trust.STANDARD: Verdict.ASK, Trust.UNTRUSTED: Verdict.DENY}
"""A form shows the user what it requests, and roots are names of folders. Sampling costs the user's model, and a page
can do anything, so these two are denied to untrusted servers."""


@dataclass(frozen=True, slots=True)
class RuleDecision:
    """Verdict on a request, and its reason.

    `rule` is the text of the rule that decided: 'tools.ask: create_*', 'tools.default', 'trust: untrusted'. The text is
    stable, unique, and contains the whole rule; grants refer to a rule by it. `conditional`: the arguments decided.
    Only such a denial may look different from a missing entry.
    """

    verdict: Verdict
    rule: str
    conditional: bool


@dataclass(frozen=True, slots=True)
class RuleTrial:
    """Result of trying one rule on a request: whether it matched, and a clause that says why. The clause contains
    nothing of the request."""

    rule: str
    verdict: Verdict
    matched: bool
    why: str


class Rules:
    """The compiled consent of one server."""

    def __init__(self, consent: Consent, trust: Trust = Trust.STANDARD) -> None:
        self._source = consent, trust
        self._by_kind = {
            Kind.TOOL: _KindRules("tools", consent.tools, trust, ENTRY_DEFAULTS, uris=False),
            Kind.PROMPT: _KindRules("prompts", consent.prompts, trust, ENTRY_DEFAULTS, uris=False),
            Kind.RESOURCE: _KindRules("resources", consent.resources, trust, ENTRY_DEFAULTS, uris=True),
        }
        # A template has the rules of the resources it generates.
        self._by_kind[Kind.TEMPLATE] = self._by_kind[Kind.RESOURCE]
        # A browser visits a page by its exact URL, and a server receives the root as written; slashes matter for both.
        self._pages = _KindRules(
            "elicitation.url", consent.elicitation.url, trust, COSTLY_DEFAULTS, uris=True, slashes_count=True
        )
        self._roots = _KindRules("roots", consent.roots, trust, HARMLESS_DEFAULTS, uris=True, slashes_count=True)
        self._sampling = _word_decision("sampling", consent.sampling, trust, COSTLY_DEFAULTS)
        self._form = _word_decision("elicitation.form", consent.elicitation.form, trust, HARMLESS_DEFAULTS)
        self._https_pages_only = trust is not Trust.TRUSTED
        self._visibility_cache: dict[tuple[Kind, str], bool] = {}
        self._most_permissive = {
            ServerRequest.URL: self._pages.most_permissive(),
            ServerRequest.ROOTS: self._roots.most_permissive(),
        }

    def compiled_from(self, consent: Consent, trust: Trust) -> bool:
        """Whether these are the same rules, down to their texts. Every verdict follows from these two values."""
        # Python takes 1 and true for equal; in conditions they differ, and so do their representations.
        return repr((consent, trust)) == repr(self._source)

    def is_visible(self, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed: whether some call of it would not be denied. `name` is the server's own
        name, URI or URI template."""
        return self._by_kind[kind].is_visible(name)

    def may_show(self, kind: Kind) -> bool:
        """Whether some entry of the kind may be listed, whatever its name."""
        return self._by_kind[kind].most_permissive().verdict is not Verdict.DENY

    def is_visible_cached(self, kind: Kind, name: str) -> bool:
        """The cached result of `is_visible`, for whole lists, which are made anew whenever an entry changes. Requests
        must not use it: their response time would reveal which names were evaluated before."""
        verdict = self._visibility_cache.get((kind, name))
        if verdict is None:
            if len(self._visibility_cache) >= MAX_CACHED_NAMES:
                self._visibility_cache.clear()
            verdict = self._visibility_cache[kind, name] = self.is_visible(kind, name)
        return verdict

    def evaluate(self, kind: Kind, name: str, arguments: object = None) -> RuleDecision:
        """The decision on a request for the entry. `arguments` is the decoded object, None if the request has none, and
        UNREADABLE if they could not be decoded."""
        return self._by_kind[kind].evaluate(name, arguments)

    def reads_arguments(self, kind: Kind) -> bool:
        """Whether a rule of the kind has a condition. Otherwise `evaluate` needs no arguments."""
        return self._by_kind[kind].reads_arguments

    def condition_paths(self, kind: Kind, name: str) -> frozenset[str] | None:
        """The arguments of the entry that conditions name, as JSON pointers; None if no rule judges its arguments."""
        return self._by_kind[kind].condition_paths(name)

    def explain(self, kind: Kind, name: str, arguments: object = None) -> list[RuleTrial]:
        """Try every rule of the kind on a request, in the order deny, ask, allow, default."""
        return self._by_kind[kind].explain(name, arguments)

    def evaluate_server_request(self, request: ServerRequest, uri: str | None = None) -> RuleDecision:
        """The decision on a server request. `uri` is the page to visit, or the root to reveal; without it, the decision
        for the URI that the rules permit most."""
        if request is ServerRequest.SAMPLING:
            return self._sampling
        if request is ServerRequest.FORM:
            return self._form
        if uri is None:
            return self._most_permissive[request]
        if request is ServerRequest.URL and self._https_pages_only and not _is_safe_page(uri):
            return RuleDecision(Verdict.DENY, HTTPS_PAGES_ONLY, False)
        return (self._pages if request is ServerRequest.URL else self._roots).evaluate(uri, None)

    def allows_server_request(self, request: ServerRequest) -> bool:
        """Whether some request of this kind would not be denied."""
        return self.evaluate_server_request(request).verdict is not Verdict.DENY

    @property
    def has_root_rules(self) -> bool:
        """Whether there are rules for roots, so that roots can differ in their verdicts."""
        return self._roots.has_rules

    def has_rule(self, rule: str, kind: str | None = None) -> bool:
        """Whether a rule with this text still asks for confirmation. `kind` is the kind of an entry or of a server
        request, since rules of several kinds can have the same text; None means any kind."""
        lists = {each.value: some for each, some in self._by_kind.items()}
        lists |= {ServerRequest.URL.value: self._pages, ServerRequest.ROOTS.value: self._roots}
        words = {ServerRequest.SAMPLING.value: self._sampling, ServerRequest.FORM.value: self._form}
        found = [each for of, some in lists.items() if kind in (None, of) for each in some.decisions()]
        found += [each for of, each in words.items() if kind in (None, of)]
        return any(each.rule == rule and each.verdict is Verdict.ASK for each in found)

    def unmatched(self, kind: Kind, names: Iterable[str]) -> Steps[list[str]]:
        """The rules of the kind, as in `RuleDecision.rule`, whose patterns match none of these names or URIs."""
        return self._by_kind[kind].unmatched(names)


class _CompiledRule:
    """A rule, or the default. If several match, the one with the lowest `order` decides."""

    def __init__(self, place: int, verdict: Verdict, text: str, rule: Rule = _ANYTHING) -> None:
        self.order = (_STRICTEST_FIRST.index(verdict), place)
        self.conditional = _is_conditional(rule)
        self.decision = RuleDecision(verdict, text, self.conditional)
        self.verdict = verdict
        self.text = text
        self.rule = rule

    def applies(self, arguments: object) -> bool:
        """Whether a rule whose pattern matches applies with these arguments. An allow rule applies only if its
        conditions surely hold."""
        if not self.conditional:
            return True
        answer = conditions_hold(self.rule.when, arguments, closed=self.rule.closed)
        return answer is True if self.verdict is Verdict.ALLOW else answer is not False


class _KindRules:
    """The rules for one kind. `title` is the key in the configuration. Denied names pass through the same functions as
    names that no rule matches, so that response times do not differ.

    `slashes_count`: a trailing slash makes a different URI, which an allow rule may tell apart.
    """

    def __init__(
        self,
        title: str,
        consent: KindConsent,
        trust: Trust,
        by_trust: dict[Trust, Verdict],
        *,
        uris: bool,
        slashes_count: bool = False,
    ) -> None:
        self._uris = uris
        self._slashes_count = slashes_count
        self._rules: list[_CompiledRule] = []
        for verdict, rules in zip(_STRICTEST_FIRST, (consent.deny, consent.ask, consent.allow or ()), strict=True):
            self._rules += self._compiled(f"{title}.{verdict}", verdict, rules)
        self._default = _CompiledRule(len(self._rules), *default_verdict(title, consent, trust, by_trust))
        self._constant_decision = None if self._rules else self._default.decision
        self._automata: dict[str, _Automaton] = {}
        self._restricts_uris = uris and any(line.verdict is not Verdict.ALLOW for line in self._rules)
        self.has_rules = bool(self._rules)
        self.reads_arguments = any(line.conditional for line in self._rules)

    def _compiled(self, title: str, verdict: Verdict, rules: Iterable[Rule]) -> list[_CompiledRule]:
        """The rules of one list, ordered by text and not as in the file; rules without conditions come first."""
        by_text = {f"{title}: {_rule_text(rule)}": rule for rule in rules}
        ordered = sorted(by_text, key=lambda text: (_is_conditional(by_text[text]), text))
        first = len(self._rules)
        return [_CompiledRule(first + at, verdict, text, by_text[text]) for at, text in enumerate(ordered)]

    def is_visible(self, name: str) -> bool:
        if self._constant_decision is not None:
            return self._constant_decision.verdict is not _DENY
        variants = self._variants(name)
        if isinstance(variants, str):
            return False
        # Every variant is evaluated, also after a denied one: response times must not differ.
        shown = [self._is_variant_visible(variant) for variant in variants]
        return all(shown)

    def evaluate(self, name: str, arguments: object) -> RuleDecision:
        if self._constant_decision is not None:
            return self._constant_decision
        variants = self._variants(name)
        if isinstance(variants, str):
            return RuleDecision(Verdict.DENY, variants, False)
        lines = [line for each in variants if (line := self._deciding_rule(each, arguments)) is not None]
        deciding = min(lines, key=lambda line: line.order)
        if deciding.verdict is Verdict.DENY and self.reads_arguments:
            # A hidden entry gets no conditional denial, which would reveal that its arguments were evaluated.
            return RuleDecision(Verdict.DENY, deciding.text, self.is_visible(name))
        return deciding.decision

    def condition_paths(self, name: str) -> frozenset[str] | None:
        variants = self._variants(name) if self.reads_arguments else ()
        if isinstance(variants, str):
            return None
        rules = [line.rule for each in variants for line in self._matching(each) if line.conditional]
        return frozenset(condition.path for rule in rules for condition in rule.when) if rules else None

    def explain(self, name: str, arguments: object) -> list[RuleTrial]:
        variants = self._variants(name) if self._rules else [UriVariant(name)]
        if isinstance(variants, str):
            return [RuleTrial(variants, Verdict.DENY, True, "such names are not held against patterns")]
        found = [self._explain_rule(line, variants, arguments) for line in self._rules]
        lines = [line for each in variants if (line := self._deciding_rule(each, arguments)) is not None]
        left = sum(line is self._default for line in lines)
        why = "another rule matches"
        if left:
            why = "no other rule matches" if left == len(lines) else "no other rule matches every reading of the URI"
        return [*found, RuleTrial(self._default.text, self._default.verdict, left > 0, why)]

    def most_permissive(self) -> RuleDecision:
        """The most permissive verdict that any name can get. `**` in a deny list denies every name."""
        denied = [line.rule.pattern for line in self._rules if line.verdict is Verdict.DENY]
        if Globs(denied, uris=self._uris).matches_everything():
            return self._rules[0].decision
        return max((*self._rules, self._default), key=lambda line: (line.order[0], -line.order[1])).decision

    def decisions(self) -> list[RuleDecision]:
        """All possible decisions, except those on URIs that are too long and on pages that are not safe."""
        return [line.decision for line in (*self._rules, self._default)]

    def unmatched(self, names: Iterable[str]) -> Steps[list[str]]:
        left = {line.text for line in self._rules}
        for name in names:
            if not left:
                break
            yield None
            if not isinstance(variants := self._variants(name), str):
                left -= {
                    line.text
                    for variant in variants
                    for line in self._matching(variant)
                    if line.verdict is not Verdict.ALLOW or variant.is_whole
                }
        return [line.text for line in self._rules if line.text in left]

    def _variants(self, name: str) -> Collection[UriVariant] | str:
        """The variants of the name that are matched, or the reason why the name is denied without matching."""
        if len(name) > MAX_LENGTH:
            return _TOO_LONG
        if not self._uris:
            return (UriVariant(name),)
        try:
            return restricting_variants(name) if self._restricts_uris else uri_variants(name)
        except TooManyVariants:
            return _TOO_MANY_VARIANTS

    def _needs_allowing(self, variant: UriVariant) -> bool:
        """Whether an allow rule for the URI holds only if it also allows this variant."""
        return not (variant.restrict_only or (variant.trimmed and self._slashes_count))

    def _matching(self, variant: UriVariant) -> list[_CompiledRule]:
        """The matching rules, in the order in which they decide. An allow rule for a part that the variant lacks
        (`x://list?*`) matches the variant."""
        if variant.is_whole:
            key = "whole"
        elif variant.loosened:
            key = "loosened"
        elif not self._needs_allowing(variant):
            key = "never allowed"
        else:
            key = "" if variant.text.startswith("file:") else variant.cut_at
            key += "/" if variant.trimmed else ""
        automaton = self._automata.get(key)
        if automaton is None:
            automaton = self._automata[key] = self._automaton(key)
        return automaton.matching(variant.text)

    def _automaton(self, key: str) -> _Automaton:
        patterns: list[tuple[str, _CompiledRule]] = []
        for line in self._rules:
            pattern = line.rule.pattern
            if line.verdict is not Verdict.ALLOW or key == "whole":
                patterns.append((loosened_pattern(pattern) if key == "loosened" else pattern, line))
            elif key not in ("never allowed", "loosened"):
                # An allow rule for `x://a/` is meant for `x://a` too.
                beginnings = [pattern, *(pattern[:at] for at, char in enumerate(pattern) if char == key[:1] != "/")]
                # An allow rule for `x://h/a/**` is meant for the folder itself too, if it is written with a slash.
                ends = ("", "/", "/**") if key.endswith("/") else ("", "/")
                found = dict.fromkeys(begin.removesuffix(end) for begin in beginnings for end in ends)
                patterns += [(each, line) for each in found]
        return _Automaton(patterns, uris=self._uris)

    def _deciding_rule(self, variant: UriVariant, arguments: object) -> _CompiledRule | None:
        """The rule that decides about a variant; None if the variant cannot restrict and no rule matches."""
        rest = self._default if self._needs_allowing(variant) else None
        for line in self._matching(variant):
            if not line.conditional or line.applies(arguments):
                return line
        return rest

    def _is_variant_visible(self, variant: UriVariant) -> bool:
        is_shown = not self._needs_allowing(variant) or self._default.verdict is not Verdict.DENY
        for line in self._matching(variant):
            if line.verdict is not Verdict.DENY:
                is_shown = True
            elif not line.conditional:
                return False
        return is_shown

    def _explain_rule(self, line: _CompiledRule, variants: Collection[UriVariant], arguments: object) -> RuleTrial:
        exact = [each for each in variants if not each.loosened]
        if line.verdict is Verdict.ALLOW:
            exact = [each for each in exact if self._needs_allowing(each)]
        fitting = sum(line in self._matching(variant) for variant in exact)
        name = "URI" if self._uris else "name"
        fits = f"the {name} fits"
        if not fitting and any(line in self._matching(each) for each in variants if each.loosened):
            fits = "the URI fits where a file system ignores case or forms of letters"
        elif not fitting:
            return RuleTrial(line.text, line.verdict, False, f"the {name} does not fit")
        elif fitting < len(exact):
            fits = f"the URI fits in {fitting} of the {len(exact)} ways it may be read"
        if line.conditional:
            fits += f", and {explain_conditions(line.rule.when, arguments, closed=line.rule.closed)}"
        return RuleTrial(line.text, line.verdict, line.applies(arguments), fits)


class _Automaton:
    """Patterns in one automaton, each with its rule. Rules may share a pattern."""

    def __init__(self, patterns: list[tuple[str, _CompiledRule]], *, uris: bool) -> None:
        self._globs = Globs([pattern for pattern, _ in patterns], uris=uris)
        self._rules = [line for _, line in patterns]

    def matching(self, text: str) -> list[_CompiledRule]:
        return [self._rules[at] for at in self._globs.matches(text)]


def default_verdict(
    title: str, consent: KindConsent, trust: Trust, by_trust: Mapping[Trust, Verdict]
) -> tuple[Verdict, str]:
    """The verdict on entries that no rule names, and the name of that default."""
    if consent.default is not None:
        return consent.default, f"{title}.default"
    if consent.allow is not None:
        return Verdict.DENY, f"{title}.allow: nothing else"
    return by_trust[trust], f"trust: {trust}"


def _word_decision(title: str, word: Verdict | None, trust: Trust, by_trust: dict[Trust, Verdict]) -> RuleDecision:
    verdict, rule = (by_trust[trust], f"trust: {trust}") if word is None else (word, f"{title}: {word}")
    return RuleDecision(verdict, rule, False)


def _is_safe_page(uri: str) -> bool:
    """Whether a browser would show a page at this URI that no one on the network path can change."""
    address = parse_address(uri)
    return address is not None and (address.scheme == "https" or (address.scheme == "http" and address.is_loopback()))


# Texts of rules


def _is_conditional(rule: Rule) -> bool:
    return bool(rule.when) or rule.closed


def _rule_text(rule: Rule) -> str:
    """The text of a rule, complete, so that different rules have different texts."""
    plain = rule.pattern.isprintable() and " " not in rule.pattern and rule.pattern[:1] not in ("", '"')
    text = rule.pattern if plain else _json(rule.pattern)
    if _is_conditional(rule):
        text += f" when {conditions_text(rule.when)}"
    return f"{text} and nothing else" if rule.closed else text


def conditions_text(when: Iterable[Condition]) -> str:
    """Conditions as JSON, with the keys of the configuration file."""
    return _object((display_path(each.path), _checks(each.checks)) for each in when)


def _checks(checks: Iterable[Check]) -> str:
    return _object((check.op, _json(check.value)) for check in checks)


def _object(members: Iterable[tuple[str, str]]) -> str:
    return f"{{{', '.join(sorted(f'{_json(name)}: {value}' for name, value in members))}}}"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
