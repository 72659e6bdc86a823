"""The changes of a configuration that widen what clients or servers may do.

A person who edits the file means every change. A program that can write the file, such as a tool of a server, must not
raise its own rights by that: changes that widen wait for a person, and everything else takes effect when the file is
saved. In doubt, a change widens.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from config import Auth, Config, HistoryDetail, Isolation, KindConsent, Limits, Rule, ServerSpec, Trust, Verdict
from config.model import ENTRY_RULES, NAME_RULES, BaseServer
from config.patterns import covers
from config.written import shown_change
from host.policy.fingerprint import difference
from host.policy.rows import ChangeRow
from host.policy.rules import COSTLY_DEFAULTS, ENTRY_DEFAULTS, HARMLESS_DEFAULTS, callers_in_rules, default_verdict
from host.policy.view_widening import compare_offers, compare_overrides, offers_of

_STRICTNESS = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}
_VERDICT_WORDS = {Verdict.ALLOW: "allowed", Verdict.ASK: "asked about", Verdict.DENY: "denied"}
_HEIGHT = {Trust.UNTRUSTED: 0, Trust.STANDARD: 1, Trust.TRUSTED: 2}
_ISOLATION = {Isolation.PER_CALL: 0, Isolation.PER_CLIENT: 1, Isolation.SHARED: 2}
_NEUTRAL = frozenset(
    {
        *("title", "timeout", "timeout_total", "start_timeout", "protocol", "max_instances", "idle_timeout"),
        *("start", "idle", "id", "longest_name"),
    }
)
"""Fields of a server whose change widens nothing. Consent, trust, limits, isolation and `disabled` are compared below;
a change of any other field starts another program or reaches another server."""
_DERIVED = ("problem", "waits_for", "variables")
"""Fields that follow from the others and from the environment."""

_KEPT = {None: 0, HistoryDetail.REDACTED: 1, HistoryDetail.FULL: 2}

_ByTrust = Mapping[Trust, Verdict]


def widenings(old: Config, new: Config) -> dict[str, tuple[str, ...]]:
    """The changes that widen, as sentences, by the id of the server; under an empty id, what is not of one server."""
    compared = {id: _compare_servers(old.servers.get(id), spec) for id, spec in new.servers.items()}
    found = {id: sentences for id, (sentences, _) in compared.items()}
    servers = {id: spec for id, (_, spec) in compared.items() if spec is not None}
    found[""] = _compare_hosts(old, new, servers)[0]
    return {id: tuple(dict.fromkeys(sentences)) for id, sentences in found.items() if sentences}


def without_widenings(old: Config, new: Config) -> Config:
    """The new configuration, as far as it widens nothing: what would get wider stays as it is, part by part."""
    compared = {id: _compare_servers(old.servers.get(id), spec) for id, spec in new.servers.items()}
    servers = {id: spec for id, (_, spec) in compared.items() if spec is not None}
    found, host = _compare_hosts(old, new, servers)
    # What is compared next is what a person has accepted as a whole.
    kept = {"": found, **{id: sentences for id, (sentences, _) in compared.items()}}
    written = {
        id: old.written.get(id) if kept.get(id) else text for id, text in new.written.items() if id in servers or not id
    }
    return dataclasses.replace(
        host,
        servers=MappingProxyType(servers),
        written=MappingProxyType({id: text for id, text in written.items() if text is not None}),
    )


def changes_as_data(old: Config, new: Config, id: str) -> list[ChangeRow]:
    """The changes that widen, each with its difference, for the person who decides about them."""
    rows: list[ChangeRow] = []
    for server, sentences in widenings(old, new).items():
        after = new.written.get(server)
        before, now = (None, b"{}") if after is None else shown_change(old.written.get(server), after)
        pieces = [] if before == now else difference(before, now)
        rows.append(
            {
                "id": id,
                "server": server,
                "widens": list(sentences),
                "diff": [{"op": op, "text": text} for op, text in pieces],
            }
        )
    return rows


def _compare_hosts(old: Config, new: Config, servers: Mapping[str, ServerSpec]) -> tuple[list[str], Config]:
    """The changes that widen, and the new configuration without them. `servers` are its servers without theirs."""
    found: list[str] = []
    ask, audit = new.ask, new.audit
    if not set(new.ask.answers) <= set(old.ask.answers):
        found.append("ask.answers: a person may confirm in more places")
        ask = dataclasses.replace(new.ask, answers=old.ask.answers)
    known = [each for each in new.ask.notify if each.is_desktop or each in old.ask.notify]
    if len(known) < len(new.ask.notify):
        found.append("ask.notify: another program or address is told what waits")
        ask = dataclasses.replace(ask, notify=tuple(known))
    if old.audit != new.audit:
        found.append("audit has changed")
        audit = old.audit
    before = None if old.history is None else old.history.arguments
    history = new.history
    if history is not None and _KEPT[history.arguments] > _KEPT[before]:
        found.append("history.arguments: more is kept of arguments and results")
        history = dataclasses.replace(history, arguments=before)
    tokens, auth = _compare_auth(old.listen.auth, new.listen.auth)
    listen = dataclasses.replace(new.listen, auth=auth)
    former, later = (callers_in_rules(spec.consent for spec in each.values()) for each in (old.servers, servers))
    offered, offers = compare_offers(offers_of(old), offers_of(new), listen.tokens, (former, later))
    config = dataclasses.replace(new, ask=ask, audit=audit, history=history, listen=listen, **offers._asdict())
    return [*found, *tokens, *offered], config


def _compare_auth(old: Auth | None, new: Auth | None) -> tuple[list[str], Auth | None]:
    """The changes of access tokens that widen, and the tokens without them: a token is withdrawn at once, and a new one
    waits, since it opens the endpoint, and what people granted to its name."""
    if new is None:
        return ([], None) if old is None else (["listen.auth: no access token is needed any more"], old)
    before = {} if old is None else old.tokens
    found = [
        f"listen.auth: the token {name} {'has another value' if name in before else 'is new'}"
        for name, token in new.tokens.items()
        if before.get(name) != token
    ]
    if not found:
        return [], new
    # Without any token so far, nobody could come in until the first one is confirmed.
    kept = {name: token for name, token in new.tokens.items() if before.get(name) == token}
    return found, None if old is None else Auth(MappingProxyType(kept))


def _compare_servers(old: ServerSpec | None, new: ServerSpec) -> tuple[list[str], ServerSpec | None]:
    """The changes that widen, and the new server without them; None if there is none then."""
    if old is None:
        # Also if it is disabled: `colonnade enable` starts it, and a person should have seen its command.
        return ["it is new"], None
    if new.problem and not new.waits_for:
        return [], new  # it is not started
    if type(old) is not type(new):
        common = {
            field.name: getattr(new, field.name)
            for field in dataclasses.fields(BaseServer)
            if field.name not in _DERIVED
        }
        also, stays = _compare_servers(old, dataclasses.replace(old, **common))
        return ["it is reached in another way", *also], stays
    found, kept = _compare_consents(old, new)
    if old.problem and not new.problem:
        found.append("it can be used again")
    for field in filter(lambda field: field.compare, dataclasses.fields(new)):
        name, before, after = field.name, getattr(old, field.name), getattr(new, field.name)
        if name in _NEUTRAL or name in _DERIVED or name == "consent" or before == after:
            continue
        if name == "trust":
            if _HEIGHT[after] < _HEIGHT[before]:
                continue
            found.append(f"trust rises from {before} to {after}")
        elif name == "isolation":
            if _ISOLATION[after] < _ISOLATION[before]:
                continue
            found.append(f"isolation falls from {before} to {after}")
        elif name == "limits":
            before = _tighter(before, after)
            if before == after:
                continue
            found.append("limits permit more")
        elif name == "disabled":
            if after:
                continue
            found.append("it is enabled")
        elif name == "sandbox" and before is None and after.with_ is None:
            continue  # it is confined now, and the same program: that of a container is in an image
        elif name == "overrides":
            waiting, before = compare_overrides(before, after)
            found += [f"overrides.{each} has changed" for each in waiting]
        else:
            found.append(f"{'command' if name == 'declared' else name} has changed")
        kept[name] = before
    # A default may hide that a variable is named now, whose value a client could hand over.
    if (more := new.variables.keys() - old.variables.keys()) and not found:
        found.append(f"it uses {', '.join(sorted(more))} of the environment")
    if found:
        kept |= {name: getattr(old, name) for name in _DERIVED}
    if "sandbox" in kept:  # and where it comes from
        kept |= {"confined_by_trust": old.confined_by_trust, "unconfined": old.unconfined}
    return found, dataclasses.replace(new, **kept)


def _compare_consents(old: ServerSpec, new: ServerSpec) -> tuple[list[str], dict[str, Any]]:
    """The changes that widen, and the consent without them as a field of the server."""
    # A higher trust is a sentence of its own.
    trust = min(old.trust, new.trust, key=_HEIGHT.__getitem__)
    found: list[str] = []
    kept: dict[str, Any] = {}
    kept_elicitation: dict[str, Any] = {}

    def compare_rules(name: str, before: KindConsent, after: KindConsent, by_trust: _ByTrust) -> KindConsent | None:
        """The later rules without what they permit more; None if that is nothing."""
        uris = name not in NAME_RULES
        if not permits_more((before, old.trust), (after, trust), by_trust, uris=uris):
            return None
        found.append(f"the rules for {name} permit more{say_laxer_default(name, before, after, by_trust)}")
        return _narrowed((before, old.trust), (after, trust), by_trust, uris=uris)

    def say_laxer_default(name: str, before: KindConsent, after: KindConsent, by_trust: _ByTrust) -> str:
        was, _ = default_verdict("", before, old.trust, by_trust)
        now, _ = default_verdict("", after, trust, by_trust)
        if _STRICTNESS[now] >= _STRICTNESS[was]:
            return ""
        what = "pages" if name == "elicitation.url" else name
        return f": {what} that no rule names would be {_VERDICT_WORDS[now]} instead of {_VERDICT_WORDS[was]}"

    def compare_words(name: str, before: Verdict | None, after: Verdict | None, by_trust: _ByTrust) -> bool:
        widens = _STRICTNESS[after or by_trust[trust]] < _STRICTNESS[before or by_trust[old.trust]]
        found.extend([f"{name} permits more"] if widens else [])
        return widens

    before, after = old.consent, new.consent
    for name in (*ENTRY_RULES, "roots"):
        by_trust = HARMLESS_DEFAULTS if name == "roots" else ENTRY_DEFAULTS
        if (rules := compare_rules(name, getattr(before, name), getattr(after, name), by_trust)) is not None:
            kept[name] = rules
    pages = compare_rules("elicitation.url", before.elicitation.url, after.elicitation.url, COSTLY_DEFAULTS)
    if pages is not None:
        kept_elicitation["url"] = pages
    if compare_words("sampling", before.sampling, after.sampling, COSTLY_DEFAULTS):
        kept["sampling"] = before.sampling
    if compare_words("elicitation.form", before.elicitation.form, after.elicitation.form, HARMLESS_DEFAULTS):
        kept_elicitation["form"] = before.elicitation.form
    if kept_elicitation:
        kept["elicitation"] = dataclasses.replace(after.elicitation, **kept_elicitation)
    return found, {"consent": dataclasses.replace(after, **kept)} if kept else {}


def permits_more(
    before: tuple[KindConsent, Trust], after: tuple[KindConsent, Trust], by_trust: _ByTrust, *, uris: bool
) -> bool:
    """Whether the later rules may permit something that the former ones do not, or ask where those did not deny less.

    False only if it is certain: no name and no arguments have a laxer verdict.
    """
    (old, old_trust), (new, new_trust) = before, after
    old_default, _ = default_verdict("", old, old_trust, by_trust)
    new_default, _ = default_verdict("", new, new_trust, by_trust)
    old_allow, new_allow = old.allow or (), new.allow or ()
    return not (
        _STRICTNESS[new_default] >= _STRICTNESS[old_default]
        and not _opened(before, after, by_trust)
        and all(_is_within(rule, new.deny, uris=uris) for rule in old.deny)
        and all(_is_within(rule, (*new.ask, *new.deny), uris=uris) for rule in old.ask)
        and (
            old_default is not Verdict.DENY
            or all(_is_within(rule, (*old.ask, *_sure(old_allow)), uris=uris) for rule in new.ask)
        )
        and (old_default is Verdict.ALLOW or all(_is_within(rule, old_allow, uris=uris) for rule in new_allow))
    )


def _opened(
    before: tuple[KindConsent, Trust], after: tuple[KindConsent, Trust], by_trust: _ByTrust
) -> tuple[Rule, ...]:
    """The former rules that ask about more tools with less trust, since claims that nobody approved are unknown then,
    where the default denies."""
    (old, old_trust), (_, new_trust) = before, after
    if old_trust is not Trust.TRUSTED or new_trust is Trust.TRUSTED:
        return ()
    if default_verdict("", old, old_trust, by_trust)[0] is not Verdict.DENY:
        return ()
    return tuple(rule for rule in old.ask if rule.claims)


def _sure(rules: Iterable[Rule]) -> list[Rule]:
    """The rules without conditions. With one that cannot be decided, a rule that asks holds, and one that allows does
    not: where the default denies, to ask instead permits more."""
    return [rule for rule in rules if not (rule.when or rule.claims)]


def _is_within(rule: Rule, rules: Iterable[Rule], *, uris: bool) -> bool:
    """Whether one of the rules holds wherever the rule does. False for some where that is so."""
    # 1 and true are equal to Python and not to JSON, so rules are compared as they are written.
    return any(
        repr(rule) == repr(each)
        or (_is_wider(each, rule) and not uris and covers(each.pattern, rule.pattern))
        or (_is_for_all(each, rule) and repr(dataclasses.replace(rule, callers=each.callers)) == repr(each))
        for each in rules
    )


def _is_wider(rule: Rule, other: Rule) -> bool:
    """Whether the rule holds wherever the other one does, if its pattern matches there."""
    return not rule.when and set(rule.claims) <= set(other.claims) and _is_for_all(rule, other)


def _is_for_all(rule: Rule, other: Rule) -> bool:
    """Whether the rule is for all callers for which the other one is."""
    return not rule.callers or (bool(other.callers) and set(other.callers) <= set(rule.callers))


def _narrowed(
    before: tuple[KindConsent, Trust], after: tuple[KindConsent, Trust], by_trust: _ByTrust, *, uris: bool
) -> KindConsent:
    """The former rules, with all that the later ones deny or ask more."""
    (old, old_trust), (new, _) = before, after
    denies = default_verdict("", old, old_trust, by_trust)[0] is Verdict.DENY
    known = (*old.ask, *_sure(old.allow or ()))
    # Where the default denies, a rule that asks permits.
    asks = [rule for rule in new.ask if not denies or _is_within(rule, known, uris=uris)]
    denied = (*new.deny, *_opened(before, after, by_trust))
    narrowed = dataclasses.replace(old, ask=_joined(old.ask, asks), deny=_joined(old.deny, denied))
    if old.allow is None or new.allow is None:
        return narrowed
    permitted = (*new.allow, *new.ask)
    return dataclasses.replace(
        narrowed, allow=tuple(rule for rule in old.allow if _is_within(rule, permitted, uris=uris))
    )


def _joined(rules: tuple[Rule, ...], more: Iterable[Rule]) -> tuple[Rule, ...]:
    known = set(map(repr, rules))
    return (*rules, *(each for each in more if repr(each) not in known))


def _tighter(old: Limits, new: Limits) -> Limits:
    """The new limits, without those that are looser."""

    def is_looser(before: object, after: object) -> bool:
        if before is None or before == after:
            return False
        return after is None or any(map(operator.gt, _amounts(after), _amounts(before)))

    names = [each.name for each in dataclasses.fields(new)]
    kept = {name: getattr(old, name) for name in names if is_looser(getattr(old, name), getattr(new, name))}
    return dataclasses.replace(new, **kept)


def _amounts(limit: Any) -> tuple[float, ...]:
    """A limit as numbers, none of which may grow: of a rate, all at once and in a second."""
    return (float(limit),) if isinstance(limit, int | float) else (limit.count, limit.count / limit.seconds)
