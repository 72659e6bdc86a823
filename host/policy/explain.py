"""Explanation of the verdict on a call: the same evaluation as for the call itself, with every rule it tried. It asks
nobody, sends nothing and writes nothing."""

from __future__ import annotations

import time
from functools import lru_cache
from math import inf

from msgspec import Raw

from config import Verdict
from host.catalog import Catalog
from host.jsonrpc.raw import EMPTY_OBJECT, members, value
from host.policy.fingerprint import Diff, difference, pretty
from host.policy.gate import AMBIGUOUS_ARGUMENTS, Gate
from host.policy.grants import Grant, Scope
from host.policy.pin_rules import PinStatus
from host.policy.pins import HeldItem
from host.policy.rows import Explanation, GrantRow, HeldRow
from host.policy.rules import RuleDecision, conditions_text
from host.protocol.methods import Kind
from host.sanitize import visible
from host.slices import Steps
from host.source import EntryRef

LONGEST_KEPT = 32 * 1024
"""Bytes of a definition whose difference is cached."""

LONGEST_DESCRIPTION = 8 * 1024
"""Characters of a description beside a call; the definition has all of them."""

_STATUS_TEXTS = {
    PinStatus.NEW: "its definition was never approved, so it is not listed and does not exist for any client",
    PinStatus.CHANGED: "its definition is not the one that was approved, so it is held back",
    PinStatus.UNKNOWN: "no list of the server names it",
}


def explain(gate: Gate, ref: EntryRef, raw_arguments: Raw | None) -> Explanation:
    """Explain the expected outcome of a call. `raw_arguments`: arguments of the call, None for a call without
    arguments."""
    server, kind, name = ref.server, ref.kind, ref.name
    rules = gate.policies.rules(server)
    arguments = gate.decode_for_rules(ref, raw_arguments or EMPTY_OBJECT)
    decision = rules.evaluate(kind, name, arguments)
    status = gate.definitions.status(ref)
    if decision.verdict is not Verdict.DENY:
        search = gate.search_for_twins(ref, raw_arguments or EMPTY_OBJECT, decision)
        if search is not None and search() is not None:
            decision = AMBIGUOUS_ARGUMENTS
    grant = gate.grant_for_anonymous(ref, raw_arguments or EMPTY_OBJECT, arguments, decision)
    limits = gate.policies.describe_limits(server)
    return {
        "verdict": decision.verdict.value,
        "rule": visible(decision.rule),
        "tried": [
            {"rule": visible(each.rule), "verdict": each.verdict.value, "matched": each.matched, "why": each.why}
            for each in rules.explain(kind, name, arguments)
        ],
        "standing": status.value,
        "fingerprint": gate.definitions.fingerprint(ref),
        "grant": None if grant is None else grant_as_data(gate, grant),
        "limits": {key: said for key, said in limits.items() if said is not None},
        "shown": gate.definitions.is_visible(ref),
        "sentence": _sentence(gate, ref, decision, status, grant),
    }


def _sentence(gate: Gate, ref: EntryRef, decision: RuleDecision, status: PinStatus, grant: Grant | None) -> str:
    server, kind = ref.server, ref.kind
    what = f"The {kind} {visible(ref.name)[:200]} of {server}"
    if decision.verdict is Verdict.DENY:
        if decision.conditional and gate.definitions.is_visible(ref):
            return f"{what} is listed, but not allowed with these arguments."
        return f"{what} is denied: it does not exist for any client."
    if kind in (Kind.TOOL, Kind.PROMPT, Kind.TEMPLATE) and status is PinStatus.UNKNOWN:
        return f"{what} would be {decision.verdict.value}, but the server lists none of that name."
    if status is not PinStatus.APPROVED and not gate.definitions.is_visible(ref):
        return f"{what} would be {decision.verdict.value}, but {_STATUS_TEXTS[status]}."
    if not gate.definitions.is_known(ref):
        return f"{what} does not exist for any client: pages of apps are not shown for an untrusted server."
    if not gate.definitions.may_launch(server):
        return f"{what} cannot be reached: the command of the server resolves to another program than the approved one."
    if decision.verdict is Verdict.ALLOW:
        return f"{what} is allowed."
    if grant is not None:
        return f"{what} is asked about, and a person has allowed it already."
    return f"{what} is asked about: a person has to allow each call."


def grant_as_data(gate: Gate, grant: Grant) -> GrantRow:
    """A grant as plain data, with whether it can be used now, and why not."""
    why, item = gate.authorizer.why_unusable(grant), grant.subject.item
    return {
        "id": grant.id,
        "caller": visible(grant.subject.caller or "clients without a token"),
        "server": item.server,
        "kind": item.kind,
        "name": visible(item.name),
        "scope": "once, going on" if grant.retry else grant.scope.value,
        "arguments": _arguments(grant),
        "made": grant.made,
        "expires": grant.expires if grant.scope is not Scope.SESSION else None,
        "by": grant.by,
        "live": not why,
        "why": why,
    }


def _difference(before: bytes | None, after: bytes) -> Diff:
    return _cached_difference(before, after) if len(after) <= LONGEST_KEPT else difference(before, after)


# A page of held definitions is rendered again whenever one of them changes.
_cached_difference = lru_cache(maxsize=1000)(difference)
_cached_pretty = lru_cache(maxsize=1000)(pretty)


def _pretty(definition: bytes) -> str:
    return _cached_pretty(definition) if len(definition) <= LONGEST_KEPT else pretty(definition)


def definition_as_text(definition: bytes) -> str:
    """A definition for the person who confirms a call. One that nobody would read to its end is cut."""
    if len(definition) <= LONGEST_KEPT:
        return _cached_pretty(definition)
    start = visible(definition[:LONGEST_KEPT].decode(errors="replace"), lines=True)
    return f"{start}\n⋯ ({len(definition)} bytes in all)"


def description_in(definition: bytes) -> str:
    """The description in a definition, with invisible characters made visible; empty if it has none."""
    try:
        text = value(members(definition)["description"])
    except (KeyError, ValueError):
        return ""
    return visible(text[:LONGEST_DESCRIPTION], lines=True) if isinstance(text, str) else ""


def held_as_data(gate: Gate, held: HeldItem, until: float = inf) -> HeldRow:
    """A held definition as plain data: status, difference from the approved one, and full text. After `until` (by
    `time.monotonic`) without difference and text and with `ready` false: the page asks again."""
    ready = time.monotonic() < until
    return {
        "ready": ready,
        "server": held.item.server,
        "kind": held.item.kind,
        "name": visible(held.item.name),
        "standing": held.status.value,
        "fingerprint": held.fingerprint,
        "since": held.since,
        "rejected": held.rejected,
        "problem": held.problem,
        "trust": gate.policies.trust(held.item.server).value,
        "diff": [{"op": op, "text": text} for op, text in _difference(held.approved, held.offered)] if ready else [],
        "text": _pretty(held.offered) if ready else "",
    }


def _arguments(grant: Grant) -> str:
    if grant.subject.digest is not None:
        return f"exactly {grant.subject.digest[:19]}…"
    return f"when {visible(conditions_text(grant.when))}" if grant.when else "any"


def unmatched_rules(gate: Gate, catalog: Catalog, server: str) -> Steps[list[str]]:
    """The rules of a server that match no listed entry. A rule for resources may match an unlisted one if the server
    has templates that generate such URIs. Empty if a reload changes the server's rules meanwhile."""
    if not gate.policies.has_server(server):
        return []
    rules = gate.policies.rules(server)
    found: list[str] = []
    for kind in (Kind.TOOL, Kind.RESOURCE, Kind.PROMPT):
        names = [entry.ref.name for entry in catalog.entries_of(server, kind)]
        if kind is Kind.RESOURCE and catalog.entries_of(server, Kind.TEMPLATE):
            continue
        found += [visible(rule) for rule in (yield from rules.unmatched(kind, names))]
    return found if gate.policies.has_server(server) and gate.policies.rules(server) is rules else []
