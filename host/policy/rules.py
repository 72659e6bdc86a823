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

A rule may want claims of a tool (`claims.py`). An allow rule applies only if they surely hold, an ask or deny rule
unless they surely do not. They are the same for all calls of a tool, so they decide about its visibility too.

A rule may be for some callers only, by their names in `callers` of the file. Whether a caller is one of them is always
known, so for all others the rule is not there; but an allow list that has only such rules still denies the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from config import Condition, Consent, KindConsent, Rule, ToolClaim, Trust, Verdict
from config.globs import MAX_LENGTH, Globs
from host.policy.claims import POSSIBLE_CLAIMS, ToolClaims, claims_hold, explain_claims
from host.policy.condition_index import ConditionIndex, Indexed
from host.policy.conditions import UNREADABLE as UNREADABLE
from host.policy.conditions import conditions_hold, display_path, explain_conditions, parse_address
from host.policy.file_names import loosened_pattern
from host.policy.uris import TooManyVariants, UriVariant, restricting_variants, uri_variants
from host.protocol.methods import Kind
from host.protocol.search_tools import CALL_TOOL, READ_TOOL
from host.protocol.server_requests import ServerRequest

MAX_CACHED_NAMES = 40_000
"""Names whose visibility is cached: of four full lists of a server."""
HTTPS_PAGES_ONLY = "only https pages"
"""Name of the rule that denies servers below `trusted` to send a user to a page that is neither https nor on this
machine."""

_TOO_LONG = f"longer than {MAX_LENGTH} characters"
_TOO_MANY_VARIANTS = "readable in too many ways"
_ANYTHING = Rule("**")
_WILD = frozenset("*?")
_DENY = Verdict.DENY  # for speed; see RESOURCE in protocol/methods.py
_ORDER = attrgetter("order")
_STRICTEST_FIRST = (Verdict.DENY, Verdict.ASK, Verdict.ALLOW)

ENTRY_DEFAULTS = {Trust.TRUSTED: Verdict.ALLOW, Trust.STANDARD: Verdict.ALLOW, Trust.UNTRUSTED: Verdict.ASK}
HARMLESS_DEFAULTS = {Trust.TRUSTED: Verdict.ALLOW, Trust.STANDARD: Verdict.ALLOW, Trust.UNTRUSTED: Verdict.DENY}
COSTLY_DEFAULTS = {Trust.TRUSTED: Verdict.ALLOW, Trust.STANDARD: Verdict.ASK, Trust.UNTRUSTED: Verdict.DENY}
"""A form shows the user what it requests, and roots are names of folders. Sampling costs the user's model, and a page
can do anything, so these two are denied to untrusted servers."""


class RuleDecision(Struct, frozen=True):
    """Verdict on a request, and its reason.

    `rule` is the text of the rule that decided: 'tools.ask: create_*', 'tools.default', 'trust: untrusted'. The text is
    stable, unique, and contains the whole rule; grants refer to a rule by it. `conditional`: the arguments decided.
    Only such a denial may look different from a missing entry.
    """

    verdict: Verdict
    rule: str
    conditional: bool


NOT_READ_ONLY = RuleDecision(Verdict.DENY, f"{READ_TOOL}: only tools that claim to only read", True)
NO_TOOL_RULES = RuleDecision(Verdict.ASK, f"{CALL_TOOL}: no consent for tools", False)
"""Decisions on calls that came through these tools (`Rules.narrow`)."""


class EntryRules(NamedTuple):
    """The rules for calls of one entry by one caller."""

    decide: Callable[[object], RuleDecision]
    """The decision on a call with these arguments; see `Rules.evaluate`."""
    paths: frozenset[str] | None
    """The arguments that conditions name, as JSON pointers; None if no rule judges the arguments of this caller."""


class RuleTrial(Struct, frozen=True):
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
        self.of_kind: dict[Kind, KindRules] = {
            Kind.TOOL: KindRules("tools", consent.tools, trust, ENTRY_DEFAULTS, uris=False),
            Kind.PROMPT: KindRules("prompts", consent.prompts, trust, ENTRY_DEFAULTS, uris=False),
            Kind.RESOURCE: KindRules("resources", consent.resources, trust, ENTRY_DEFAULTS, uris=True),
        }
        # A template has the rules of the resources it generates.
        self.of_kind[Kind.TEMPLATE] = self.of_kind[Kind.RESOURCE]
        # A browser visits a page by its exact URL, and a server receives the root as written; slashes matter for both.
        self._pages = KindRules(
            "elicitation.url", consent.elicitation.url, trust, COSTLY_DEFAULTS, uris=True, slashes_count=True
        )
        self._roots = KindRules("roots", consent.roots, trust, HARMLESS_DEFAULTS, uris=True, slashes_count=True)
        self._sampling = _word_decision("sampling", consent.sampling, trust, COSTLY_DEFAULTS)
        self._form = _word_decision("elicitation.form", consent.elicitation.form, trust, HARMLESS_DEFAULTS)
        self._https_pages_only = trust is not Trust.TRUSTED
        self._names_no_tool = consent.tools == KindConsent()
        self.callers = callers_in_rules((consent,))
        """The callers that some rule names. All others are the same to these rules as a caller without a name, \"\"."""
        self._visibility_cache: dict[tuple[Kind, str, ToolClaims | None, str], bool] = {}
        self._most_permissive = {
            (request, caller): rules.most_permissive(caller)
            for request, rules in ((ServerRequest.URL, self._pages), (ServerRequest.ROOTS, self._roots))
            for caller in ("", *self.callers)
        }

    def compiled_from(self, consent: Consent, trust: Trust) -> bool:
        """Whether these are the same rules, down to their texts. Every verdict follows from these two values."""
        # Python takes 1 and true for equal; in conditions they differ, and so do their representations.
        return repr((consent, trust)) == repr(self._source)

    def is_visible(self, kind: Kind, name: str, claims: ToolClaims | None = None, caller: str = "") -> bool:
        """Whether the entry may be listed for the caller: whether some call of it would not be denied. `name` is the
        server's own name, URI or URI template; `claims` are those that count, None if none do; `caller` is its name in
        `callers` of the file, empty for one without."""
        return self.of_kind[kind].is_visible(name, claims, caller)

    def may_be_visible(self, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed for some caller, whatever it claims."""
        all_claims = POSSIBLE_CLAIMS if self.of_kind[kind].reads_claims else (None,)
        callers = ("", *self.callers)
        return any(self.is_visible(kind, name, claims, caller) for claims in all_claims for caller in callers)

    def is_visible_cached(self, kind: Kind, name: str, claims: ToolClaims | None = None, caller: str = "") -> bool:
        """The cached result of `is_visible`, for whole lists, which are made anew whenever an entry changes. Requests
        must not use it: their response time would reveal which names were evaluated before."""
        if caller and caller not in self.callers:
            caller = ""
        key = kind, name, claims, caller
        verdict = self._visibility_cache.get(key)
        if verdict is None:
            if len(self._visibility_cache) >= MAX_CACHED_NAMES * (1 + len(self.callers)):
                self._visibility_cache.clear()
            verdict = self._visibility_cache[key] = self.is_visible(kind, name, claims, caller)
        return verdict

    def evaluate(
        self, kind: Kind, name: str, arguments: object = None, claims: ToolClaims | None = None, caller: str = ""
    ) -> RuleDecision:
        """The decision on a request for the entry. `arguments` is the decoded object, None if the request has none, and
        UNREADABLE if they could not be decoded. `claims` are those that count, None if none do; `caller` as in
        `is_visible`."""
        return self.of_kind[kind].entry(name, claims, caller).decide(arguments)

    def narrow(self, decision: RuleDecision, through: str, claims: ToolClaims | None) -> RuleDecision:
        """The decision on a call of a tool that came through a search tool. What a client's user allows of read_tool or
        call_tool holds for every tool behind it, so the one reaches only tools that claim to only read, and the other
        asks about all others where nobody wrote a rule.

        Args:
            decision: that on a call by the tool's own name.
            through: the search tool.
            claims: those that count; see `ToolClaims`.
        """
        if decision.verdict is _DENY or claims_hold((ToolClaim.READ_ONLY,), claims):
            return decision
        if through == READ_TOOL:
            return NOT_READ_ONLY
        return NO_TOOL_RULES if self._names_no_tool and decision.verdict is Verdict.ALLOW else decision

    def evaluate_server_request(self, request: ServerRequest, uri: str | None = None, caller: str = "") -> RuleDecision:
        """The decision on a server request to this caller. `uri` is the page to visit, or the root to reveal; without
        it, the decision for the URI that the rules permit most."""
        if request is ServerRequest.SAMPLING:
            return self._sampling
        if request is ServerRequest.FORM:
            return self._form
        if uri is None:
            return self._most_permissive[request, caller if caller in self.callers else ""]
        if request is ServerRequest.URL and self._https_pages_only and not _is_safe_page(uri):
            return RuleDecision(Verdict.DENY, HTTPS_PAGES_ONLY, False)
        rules = self._pages if request is ServerRequest.URL else self._roots
        return rules.entry(uri, None, caller).decide(None)

    def allows_server_request(self, request: ServerRequest, caller: str | None = "") -> bool:
        """Whether some request of this kind to this caller, None: to any caller, would not be denied."""
        if caller is None:
            return any(self.allows_server_request(request, each) for each in ("", *self.callers))
        return self.evaluate_server_request(request, None, caller).verdict is not Verdict.DENY

    @property
    def has_root_rules(self) -> bool:
        """Whether there are rules for roots, so that roots can differ in their verdicts."""
        return self._roots.has_rules

    def has_rule(self, rule: str, kind: str | None = None) -> bool:
        """Whether a rule with this text still asks for confirmation. `kind` is the kind of an entry or of a server
        request, since rules of several kinds can have the same text; None means any kind."""
        lists = {each.value: some for each, some in self.of_kind.items()}
        lists |= {ServerRequest.URL.value: self._pages, ServerRequest.ROOTS.value: self._roots}
        words = {ServerRequest.SAMPLING.value: self._sampling, ServerRequest.FORM.value: self._form}
        found = [each for of, some in lists.items() if kind in (None, of) for each in some.decisions()]
        found += [each for of, each in words.items() if kind in (None, of)]
        if self._names_no_tool and kind in (None, Kind.TOOL.value):
            found.append(NO_TOOL_RULES)
        return any(each.rule == rule and each.verdict is Verdict.ASK for each in found)

    def written_out(self) -> list[tuple[str, RuleDecision]]:
        """Every rule, and what decides where none applies, each with the key of `consent` that it is about: by key, in
        the order in which they decide."""
        listed = {
            "tools": self.of_kind[Kind.TOOL],
            "resources": self.of_kind[Kind.RESOURCE],
            "prompts": self.of_kind[Kind.PROMPT],
            "elicitation.url": self._pages,
            "roots": self._roots,
        }
        found = [(key, decision) for key, some in listed.items() for decision in some.decisions()]
        return [*found, ("elicitation.form", self._form), ("sampling", self._sampling)]


_NAME = UriVariant("")
"""Stands for a name that is no URI, which is read in one way."""


class _CompiledRule:
    """A rule, or the default. If several match, the one with the lowest `order` decides."""

    def __init__(self, place: int, verdict: Verdict, text: str, rule: Rule = _ANYTHING) -> None:
        self.order = (_STRICTEST_FIRST.index(verdict), place)
        self.conditional = _is_conditional(rule)
        self.is_plain = not (self.conditional or rule.claims)
        self.callers = rule.callers
        self.decision = RuleDecision(verdict, text, self.conditional)
        self.verdict = verdict
        self.text = text
        self.rule = rule

    def applies(self, arguments: object, claims: ToolClaims | None) -> bool:
        """Whether a rule for the caller whose pattern matches applies with these arguments and claims. An allow rule
        applies only if its conditions surely hold."""
        if not self.fits_claims(claims):
            return False
        if not self.conditional:
            return True
        return self._counts(conditions_hold(self.rule.when, arguments, closed=self.rule.closed))

    def fits_claims(self, claims: ToolClaims | None) -> bool:
        """Whether a rule whose pattern matches may apply to a tool with these claims."""
        return not self.rule.claims or self._counts(claims_hold(self.rule.claims, claims))

    def is_for(self, caller: str) -> bool:
        """Whether the rule is one for this caller."""
        return not self.callers or caller in self.callers

    def _counts(self, answer: bool | None) -> bool:
        return answer is True if self.verdict is Verdict.ALLOW else answer is not False


class KindRules:
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
        self._names = None if uris else self._automaton("whole")
        self._restricts_uris = uris and any(line.verdict is not Verdict.ALLOW for line in self._rules)
        self.shows_all = not self._rules and self._default.verdict is not _DENY
        """Whether each entry may be listed, since no rule names any and the default is not to deny."""
        self.has_rules = bool(self._rules)
        self.reads_arguments = any(line.conditional for line in self._rules)
        """Whether a rule has a condition. Otherwise `EntryRules.decide` needs no arguments."""
        self.reads_claims = any(line.rule.claims for line in self._rules)
        """Whether a rule wants claims. Otherwise no verdict depends on them."""

    def _compiled(self, title: str, verdict: Verdict, rules: Iterable[Rule]) -> list[_CompiledRule]:
        """The rules of one list, ordered by text and not as in the file; rules without conditions come first."""
        by_text = {f"{title}: {rule_text(rule)}": rule for rule in rules}

        def order(text: str) -> tuple[bool, bool, bool, str]:
            rule = by_text[text]
            return _is_conditional(rule), bool(rule.claims), bool(rule.callers), text

        ordered = sorted(by_text, key=order)
        first = len(self._rules)
        return [_CompiledRule(first + at, verdict, text, by_text[text]) for at, text in enumerate(ordered)]

    def is_visible(self, name: str, claims: ToolClaims | None, caller: str) -> bool:
        if self._constant_decision is not None:
            return self._constant_decision.verdict is not _DENY
        readings = self._readings(name)
        return not isinstance(readings, str) and self._are_visible(readings, claims, caller)

    def _are_visible(self, readings: list[_Reading], claims: ToolClaims | None, caller: str) -> bool:
        # Every reading is evaluated, also after a denied one: response times must not differ.
        shown = [self._is_reading_visible(*each, claims, caller) for each in readings]
        return False not in shown

    def entry(self, name: str, claims: ToolClaims | None, caller: str) -> EntryRules:
        """The rules for calls of one entry by one caller; `claims` and `caller` as in `Rules.evaluate`."""
        if (constant := self._constant_decision) is not None:
            return EntryRules(lambda _: constant, None)
        readings = self._readings(name)
        if isinstance(readings, str):
            denied = RuleDecision(Verdict.DENY, readings, False)
            return EntryRules(lambda _: denied, None)
        named = [shared.paths for _, matching in readings for shared in matching]
        found = [paths[each] for paths in named for each in paths if not each or caller in each]
        paths = frozenset[str]().union(*found) if found else None
        return EntryRules(partial(self._decide, readings, claims, caller), paths)

    def _decide(
        self, readings: list[_Reading], claims: ToolClaims | None, caller: str, arguments: object
    ) -> RuleDecision:
        lines = [line for each in readings if (line := self._deciding_rule(*each, arguments, claims, caller))]
        deciding = lines[0] if len(lines) == 1 else min(lines, key=_ORDER)
        if deciding.verdict is Verdict.DENY and self.reads_arguments:
            # A hidden entry gets no conditional denial, which would reveal that its arguments were evaluated.
            return RuleDecision(Verdict.DENY, deciding.text, self._are_visible(readings, claims, caller))
        return deciding.decision

    def explain(
        self, name: str, arguments: object = None, claims: ToolClaims | None = None, caller: str = ""
    ) -> list[RuleTrial]:
        """Try every rule on a request, in the order deny, ask, allow, default."""
        readings = self._readings(name) if self._rules else [(_NAME, [])]
        if isinstance(readings, str):
            return [RuleTrial(readings, Verdict.DENY, True, "such names are not held against patterns")]
        found = [self._explain_rule(line, readings, arguments, claims, caller) for line in self._rules]
        lines = [line for each in readings if (line := self._deciding_rule(*each, arguments, claims, caller))]
        left = sum(line is self._default for line in lines)
        why = "another rule matches"
        if left:
            why = "no other rule matches" if left == len(lines) else "no other rule matches every reading of the URI"
        return [*found, RuleTrial(self._default.text, self._default.verdict, left > 0, why)]

    def may_show(self, caller: str = "") -> bool:
        """Whether some entry may be listed for the caller, whatever its name."""
        return self.most_permissive(caller).verdict is not Verdict.DENY

    def most_permissive(self, caller: str) -> RuleDecision:
        """The most permissive verdict that any name can get for the caller. `**` in a deny list denies every name."""
        rules = [line for line in self._rules if line.is_for(caller)]
        sure = [line for line in rules if line.verdict is Verdict.DENY and line.is_plain]
        if Globs([line.rule.pattern for line in sure], uris=self._uris).matches_everything():
            return sure[0].decision
        return max((*rules, self._default), key=lambda line: (line.order[0], -line.order[1])).decision

    def decisions(self) -> list[RuleDecision]:
        """All possible decisions, except those on URIs that are too long and on pages that are not safe."""
        return [line.decision for line in (*self._rules, self._default)]

    def texts(self) -> list[str]:
        """The rules, as in `RuleDecision.rule`."""
        return [line.text for line in self._rules]

    def matching(self, name: str) -> set[str]:
        """The rules, as in `RuleDecision.rule`, whose patterns match this name or URI."""
        if isinstance(readings := self._readings(name), str):
            return set()
        return {
            line.text
            for variant, matching in readings
            for shared in matching
            for line in shared.lines
            if line.verdict is not Verdict.ALLOW or variant.is_whole
        }

    def _readings(self, name: str) -> list[_Reading] | str:
        """The variants of the name, each with the rules that match, or the reason why the name is denied without
        matching."""
        if len(name) > MAX_LENGTH:
            return _TOO_LONG
        if self._names is not None:
            return [(_NAME, self._names.matching(name))]
        try:
            variants = restricting_variants(name) if self._restricts_uris else uri_variants(name)
        except TooManyVariants:
            return _TOO_MANY_VARIANTS
        return [(each, self._matching(each)) for each in variants]

    def _needs_allowing(self, variant: UriVariant) -> bool:
        """Whether an allow rule for the URI holds only if it also allows this variant."""
        return not (variant.restrict_only or (variant.trimmed and self._slashes_count))

    def _matching(self, variant: UriVariant) -> list[_SamePattern]:
        """The matching rules. An allow rule for a part that the variant lacks (`x://list?*`) matches the variant."""
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

    def _deciding_rule(
        self,
        variant: UriVariant,
        matching: list[_SamePattern],
        arguments: object,
        claims: ToolClaims | None,
        caller: str,
    ) -> _CompiledRule | None:
        """The rule that decides about a variant; None if the variant cannot restrict and no rule matches."""
        rest = self._default if self._needs_allowing(variant) else None
        lines = [line for shared in matching for line in shared.candidates(arguments)]
        for line in sorted(lines, key=_ORDER) if len(matching) > 1 else lines:
            if line.callers and caller not in line.callers:  # as `is_for`: a denied entry takes no further function
                continue
            if line.is_plain or line.applies(arguments, claims):
                return line
        return rest

    def _is_reading_visible(
        self, variant: UriVariant, matching: list[_SamePattern], claims: ToolClaims | None, caller: str
    ) -> bool:
        is_shown = not self._needs_allowing(variant) or self._default.verdict is not _DENY
        for line in [line for shared in matching for line in shared.showing]:
            if (line.callers and caller not in line.callers) or not (line.is_plain or line.fits_claims(claims)):
                continue
            if line.verdict is _DENY:
                return False
            is_shown = True
        return is_shown

    def _explain_rule(
        self,
        line: _CompiledRule,
        readings: list[_Reading],
        arguments: object,
        claims: ToolClaims | None,
        caller: str,
    ) -> RuleTrial:
        fits_in = {variant: any(line in each.lines for each in matching) for variant, matching in readings}
        exact = [each for each in fits_in if not each.loosened]
        if line.verdict is Verdict.ALLOW:
            exact = [each for each in exact if self._needs_allowing(each)]
        fitting = sum(fits_in[variant] for variant in exact)
        name = "URI" if self._uris else "name"
        fits = f"the {name} fits"
        if not fitting and any(fits_in[each] for each in fits_in if each.loosened):
            fits = "the URI fits where a file system ignores case or forms of letters"
        elif not fitting:
            return RuleTrial(line.text, line.verdict, False, f"the {name} does not fit")
        elif fitting < len(exact):
            fits = f"the URI fits in {fitting} of the {len(exact)} ways it may be read"
        if line.callers:
            is_other = "is" if line.is_for(caller) else "is not"
            fits += f", and {f'the caller {caller}' if caller else 'a caller without a name'} {is_other} one of them"
        if line.rule.claims:
            fits += f", and {explain_claims(line.rule.claims, claims)}"
        if line.conditional:
            fits += f", and {explain_conditions(line.rule.when, arguments, closed=line.rule.closed)}"
        return RuleTrial(line.text, line.verdict, line.is_for(caller) and line.applies(arguments, claims), fits)


_Reading = tuple[UriVariant, "list[_SamePattern]"]


class _SamePattern:
    """The rules that share a pattern."""

    __slots__ = ("_index", "lines", "paths", "showing")

    def __init__(self, lines: list[_CompiledRule]) -> None:
        self.lines = lines
        effects = {
            (line.verdict, line.callers, line.rule.claims): line
            for line in lines
            if not (line.conditional and line.verdict is _DENY)
        }
        self.showing = list(effects.values())
        """The rules that decide whether a name is visible, one of those that decide alike."""
        self.paths: dict[tuple[str, ...], frozenset[str]] = {}
        """The arguments that conditions name, by the callers of their rules."""
        conditional = [line for line in lines if line.conditional]
        for line in conditional:
            named = {each.path for each in line.rule.when}
            self.paths[line.callers] = self.paths.get(line.callers, frozenset()) | named
        rules = [Indexed(line.rule.when, line.rule.closed, line.verdict is Verdict.ALLOW) for line in lines]
        self._index = ConditionIndex(rules) if conditional else None

    def candidates(self, arguments: object) -> list[_CompiledRule]:
        """The rules that may apply with these arguments."""
        if self._index is None:
            return self.lines
        return [self.lines[at] for at in sorted(self._index.candidates(arguments))]


class _Automaton:
    """Patterns in one automaton, each with its rules."""

    def __init__(self, patterns: list[tuple[str, _CompiledRule]], *, uris: bool) -> None:
        lines: dict[str, list[_CompiledRule]] = {}
        for pattern, line in patterns:
            lines.setdefault(pattern, []).append(line)
        shared = {pattern: _SamePattern(each) for pattern, each in lines.items()}
        globs = [pattern for pattern in shared if uris or not _WILD.isdisjoint(pattern)]
        self._globs = Globs(globs, uris=uris) if globs else None
        self._by_glob = [shared.pop(pattern) for pattern in globs]
        self._by_name = shared

    def matching(self, text: str) -> list[_SamePattern]:
        found = [] if self._globs is None else [self._by_glob[at] for at in self._globs.matches(text)]
        if text in self._by_name:
            found.append(self._by_name[text])
        return found


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


def callers_in_rules(consents: Iterable[Consent]) -> frozenset[str]:
    """The callers that some rule names. To the rules, all others are the same."""
    kinds = [
        kind
        for consent in consents
        for kind in (consent.tools, consent.resources, consent.prompts, consent.roots, consent.elicitation.url)
    ]
    rules = [rule for kind in kinds for rule in (*kind.deny, *kind.ask, *(kind.allow or ()))]
    return frozenset(caller for rule in rules for caller in rule.callers)


# Texts of rules


def _is_conditional(rule: Rule) -> bool:
    return bool(rule.when) or rule.closed


def rule_text(rule: Rule) -> str:
    """The text of a rule, complete, so that different rules have different texts."""
    plain = rule.pattern.isprintable() and " " not in rule.pattern and rule.pattern[:1] not in ("", '"')
    text = rule.pattern if plain else _json(rule.pattern)
    if rule.callers:
        text += f" callers {' or '.join(rule.callers)}"
    if rule.claims:
        text += f" claims {' and '.join(rule.claims)}"
    if _is_conditional(rule):
        text += f" when {conditions_text(rule.when)}"
    return f"{text} and nothing else" if rule.closed else text


def conditions_text(when: Iterable[Condition]) -> str:
    """Conditions as JSON, with the keys of the configuration file."""
    return _object(
        (display_path(each.path), _object((check.op, _json(check.value)) for check in each.checks)) for each in when
    )


def _object(members: Iterable[tuple[str, str]]) -> str:
    return f"{{{', '.join(sorted(f'{_json(name)}: {value}' for name, value in members))}}}"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
