"""The changes of a configuration that widen what clients or servers may do.

A person who edits the file means every change. A program that can write the file, such as a tool of a server, must not
raise its own rights by that: changes that widen wait for a person, and everything else takes effect when the file is
saved. In doubt, a change widens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from config import Config, KindConsent, Limits, ServerSpec, Trust, Verdict
from config.written import shown_change
from host.policy.fingerprint import difference
from host.policy.rows import ChangeRow
from host.policy.rules import COSTLY_DEFAULTS, ENTRY_DEFAULTS, HARMLESS_DEFAULTS, default_verdict

_STRICTNESS = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}
_HEIGHT = {Trust.UNTRUSTED: 0, Trust.STANDARD: 1, Trust.TRUSTED: 2}
_NEUTRAL = frozenset(
    {
        *("title", "timeout", "start_timeout", "protocol", "isolation", "max_instances", "idle_timeout", "start"),
        *("idle", "id"),
    }
)
"""Fields of a server whose change widens nothing. Consent, trust, limits and `disabled` are compared below; a change of
any other field starts another program or reaches another server."""

_ByTrust = Mapping[Trust, Verdict]


def widenings(old: Config, new: Config) -> dict[str, tuple[str, ...]]:
    """What widens, as sentences, by the id of the server; under an empty id, what is not of one server."""
    found = {id: _of_server(old.servers.get(id), spec) for id, spec in new.servers.items()}
    found[""] = _of_host(old, new)
    return {id: sentences for id, sentences in found.items() if sentences}


def without_widenings(old: Config, new: Config) -> Config:
    """The new configuration, as far as it widens nothing: servers that would get wider stay as they are."""
    wider = widenings(old, new)
    servers = {
        id: old.servers[id] if id in wider else spec
        for id, spec in new.servers.items()
        if id in old.servers or id not in wider
    }
    if "" in wider:
        new = dataclasses.replace(new, ask=old.ask, audit=old.audit)
    written = {id: old.written[id] if id in wider else text for id, text in new.written.items() if id in old.written}
    return dataclasses.replace(
        new, servers=MappingProxyType(servers), written=MappingProxyType({**new.written, **written})
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


def _of_host(old: Config, new: Config) -> tuple[str, ...]:
    found = []
    if not set(new.ask.answers) <= set(old.ask.answers):
        found.append("ask.answers: a person may confirm in more places")
    if old.audit != new.audit:
        found.append("audit has changed")
    return tuple(found)


def _of_server(old: ServerSpec | None, new: ServerSpec) -> tuple[str, ...]:
    if old is None:
        return () if new.disabled else ("it is new",)
    if type(old) is not type(new):
        return ("it is reached in another way",)
    found: list[str] = []
    for field in dataclasses.fields(new):
        name, before, after = field.name, getattr(old, field.name), getattr(new, field.name)
        if name == "consent":
            found += _of_consent(old, new)
        elif name == "trust" and _HEIGHT[after] > _HEIGHT[before]:
            found.append(f"trust rises from {before} to {after}")
        elif name == "limits" and _is_looser(before, after):
            found.append("limits permit more")
        elif name == "disabled" and before and not after:
            found.append("it is enabled")
        elif name not in _NEUTRAL | {"consent", "trust", "limits", "disabled"} and before != after:
            found.append(f"{'command' if name == 'declared' else name} has changed")
    return tuple(dict.fromkeys(found))


def _of_consent(old: ServerSpec, new: ServerSpec) -> list[str]:
    # A higher trust is a sentence of its own.
    trust = min(old.trust, new.trust, key=_HEIGHT.__getitem__)
    kinds: list[tuple[str, KindConsent, KindConsent, _ByTrust]] = [
        ("tools", old.consent.tools, new.consent.tools, ENTRY_DEFAULTS),
        ("resources", old.consent.resources, new.consent.resources, ENTRY_DEFAULTS),
        ("prompts", old.consent.prompts, new.consent.prompts, ENTRY_DEFAULTS),
        ("roots", old.consent.roots, new.consent.roots, HARMLESS_DEFAULTS),
        ("elicitation.url", old.consent.elicitation.url, new.consent.elicitation.url, COSTLY_DEFAULTS),
    ]
    found = [
        f"the rules for {name} permit more"
        for name, before, after, by_trust in kinds
        if permits_more((before, old.trust), (after, trust), by_trust)
    ]
    words = [
        ("sampling", old.consent.sampling, new.consent.sampling, COSTLY_DEFAULTS),
        ("elicitation.form", old.consent.elicitation.form, new.consent.elicitation.form, HARMLESS_DEFAULTS),
    ]
    return found + [
        f"{name} permits more"
        for name, before, after, by_trust in words
        if _STRICTNESS[after or by_trust[trust]] < _STRICTNESS[before or by_trust[old.trust]]
    ]


def permits_more(before: tuple[KindConsent, Trust], after: tuple[KindConsent, Trust], by_trust: _ByTrust) -> bool:
    """Whether the later rules may permit something that the former ones do not, or ask where those did not deny less.

    False only if it is certain: no name and no arguments have a laxer verdict.
    """
    (old, old_trust), (new, new_trust) = before, after
    old_default, _ = default_verdict("", old, old_trust, by_trust)
    new_default, _ = default_verdict("", new, new_trust, by_trust)
    old_allow, new_allow = set(map(repr, old.allow or ())), set(map(repr, new.allow or ()))
    old_ask, new_ask = set(map(repr, old.ask)), set(map(repr, new.ask))
    old_deny, new_deny = set(map(repr, old.deny)), set(map(repr, new.deny))
    return not (
        _STRICTNESS[new_default] >= _STRICTNESS[old_default]
        and old_deny <= new_deny
        and old_ask <= new_ask | new_deny
        and (new_ask <= old_ask or old_default is not Verdict.DENY)
        and (new_allow <= old_allow or old_default is Verdict.ALLOW)
    )


def _is_looser(old: Limits, new: Limits) -> bool:
    def is_looser(before: object, after: object) -> bool:
        if before is None or before == after:
            return False
        return after is None or _amount(after) > _amount(before)

    return any(is_looser(getattr(old, each.name), getattr(new, each.name)) for each in dataclasses.fields(new))


def _amount(limit: object) -> float:
    """A limit as a number: of a rate, the count in a second."""
    return float(limit) if isinstance(limit, int | float) else limit.count / limit.seconds  # type: ignore[attr-defined]
