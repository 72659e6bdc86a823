"""Explanation of the verdict on a call: the same evaluation as for the call itself, with every rule it tried. It asks
nobody, sends nothing and writes nothing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from functools import lru_cache
from math import inf

from msgspec import Raw

from config import Consent, ServerSpec, StdioServer, Verdict
from host.catalog import Catalog
from host.jsonrpc.raw import EMPTY_OBJECT, members, value
from host.policy.claims import claims_in
from host.policy.definitions import KINDS
from host.policy.fingerprint import Diff, difference, launch_for_people, pretty
from host.policy.gate import AMBIGUOUS_ARGUMENTS, Gate
from host.policy.grants import Grant, Scope
from host.policy.pin_rules import PinStatus, definitions_in
from host.policy.pins import HeldItem, ListedItem
from host.policy.rows import DefinitionRow, Explanation, GrantRow, HeldRow, RuleRow
from host.policy.rules import RuleDecision, conditions_text
from host.policy.word_order import ORDER_DIFFERS, is_reordered, order_remedy
from host.protocol.methods import Kind
from host.protocol.search_tools import CALL_TOOL
from host.sandbox.presets import preset_of
from host.sanitize import visible
from host.slices import pause
from host.source import Aspect, EntryRef
from host.views import EVERYTHING

LONGEST_KEPT = 32 * 1024
"""Bytes of a definition whose difference is cached."""

LONGEST_DESCRIPTION = 8 * 1024
"""Characters of a description beside a call; the definition has all of them."""

_CONSENT_KEYS = tuple(key.name for key in dataclasses.fields(Consent))
_STATUS_TEXTS = {
    PinStatus.NEW: "its definition was never approved, so it is not listed and does not exist for any client",
    PinStatus.CHANGED: "its definition is not the one that was approved, so it is held back",
    PinStatus.UNKNOWN: "no list of the server names it",
}


def explain(
    gate: Gate, ref: EntryRef, raw_arguments: Raw | None, caller: str = "", view: str = EVERYTHING
) -> Explanation:
    """Explain the expected outcome of a call. `raw_arguments`: arguments of the call as the server gets them, None for
    a call without arguments. `caller`: its name in `callers` of the file, empty for one without; `view`: the one that
    it is in."""
    server, kind, name = ref.server, ref.kind, ref.name
    rules = gate.policies.rules(server)
    judge = gate.definitions.judge(ref, caller)
    arguments = judge.decode(raw_arguments or EMPTY_OBJECT)
    decision = judge.decide(arguments)
    status = gate.definitions.status(ref)
    if decision.verdict is not Verdict.DENY:
        search = judge.search_for_twins(raw_arguments or EMPTY_OBJECT, decision)
        if search is not None and search() is not None:
            decision = AMBIGUOUS_ARGUMENTS
    grant = gate.expected_grant(ref, raw_arguments or EMPTY_OBJECT, arguments, decision, caller)
    limits = gate.policies.describe_limits(server)
    return {
        "verdict": decision.verdict.value,
        "rule": visible(decision.rule),
        "origin": rule_origin(gate, server, decision.rule),
        "tried": [
            {"rule": visible(each.rule), "verdict": each.verdict.value, "matched": each.matched, "why": each.why}
            for each in rules.of_kind[kind].explain(name, arguments, gate.definitions.counting_claims(ref), caller)
        ],
        "standing": status.value,
        "by": gate.definitions.approver(ref),
        "fingerprint": gate.definitions.fingerprint(ref),
        "grant": None if grant is None else grant_as_data(gate, grant),
        "limits": {key: said for key, said in limits.items() if said is not None},
        "shown": gate.definitions.is_visible(ref, caller) and _is_in_view(gate, ref, view),
        "view": visible(view),
        "sentence": _sentence(gate, ref, decision, status, grant, caller, view)
        + _through_call_tool(gate, ref, arguments, decision, caller, view),
        "callers": list(gate.policies.callers),
    }


def rule_origin(gate: Gate, server: str, rule: str) -> str:
    """The key of `defaults` that a rule is from; empty if it is not from there."""
    spec = gate.policies.spec(server)
    defaulted = frozenset[str]() if spec is None else spec.defaulted
    key = "trust" if rule.startswith("trust: ") else "consent" if rule.startswith(_CONSENT_KEYS) else ""
    return f"defaults.{key}" if key in defaulted else ""


def _is_in_view(gate: Gate, ref: EntryRef, view: str) -> bool:
    return gate.policies.views.view(view).offers(ref.server, ref.kind, ref.name)


def _through_call_tool(
    gate: Gate, ref: EntryRef, arguments: object, decision: RuleDecision, caller: str, view: str
) -> str:
    """What else holds of a call through call_tool in a view with search, as one more sentence; empty if nothing."""
    if ref.kind is not Kind.TOOL or CALL_TOOL not in gate.policies.views.view(view).reserved:
        return ""
    if gate.definitions.evaluate(ref, arguments, caller, CALL_TOOL) == decision:
        return ""
    return f" Through {CALL_TOOL}, a person has to allow each call, because the server has no rule for tools."


def _sentence(
    gate: Gate, ref: EntryRef, decision: RuleDecision, status: PinStatus, grant: Grant | None, caller: str, view: str
) -> str:
    server, kind = ref.server, ref.kind
    what, whom = f"The {kind} {visible(ref.name)[:200]} of {server}", "any client"
    if gate.policies.callers_of(server):
        whom = f"the caller {caller}" if caller else "a caller without a name in callers"
    if decision.verdict is Verdict.DENY:
        if decision.conditional and gate.definitions.is_visible(ref, caller):
            return f"{what} is listed, but not allowed with these arguments."
        return f"{what} is denied: it does not exist for {whom}."
    if not _is_in_view(gate, ref, view):
        return f"{what} is not in the view {visible(view)}, so it does not exist there."
    verdict = "allowed" if decision.verdict is Verdict.ALLOW else "asked about"
    spec = gate.policies.spec(server)
    if spec is not None and spec.problem:
        return f"{what} would be {verdict}, but the server is not started: {visible(spec.problem)}."
    if kind in (Kind.TOOL, Kind.PROMPT, Kind.TEMPLATE) and status is PinStatus.UNKNOWN:
        return f"{what} would be {verdict}, but the server has listed none of that name so far."
    if status is not PinStatus.APPROVED and not gate.definitions.is_visible(ref, caller):
        return f"{what} would be {verdict}, but {_STATUS_TEXTS[status]}."
    if not gate.definitions.is_known(ref, caller):
        return f"{what} does not exist for any client: pages of apps are not shown for an untrusted server."
    if not gate.definitions.may_launch(server):
        return f"{what} cannot be reached: the command of the server {gate.definitions.why_held(server)}."
    if gate.policies.takes_client_folder(server):
        what = f"For clients with a folder (colonnade serve --stdio), t{what[1:]}"
    if decision.verdict is Verdict.ALLOW:
        return f"{what} is allowed."
    if grant is not None:
        return f"{what} is asked about, and a person has allowed it already."
    return f"{what} is asked about: a person has to allow each call."


def starts_as_data(gate: Gate, spec: ServerSpec) -> list[str]:
    """The needs of a confined program at its start: by the kind of its command, then as they were found the last time
    that it was looked up; a sentence each. Empty for others."""
    if not isinstance(spec, StdioServer) or spec.sandbox is None or spec.runtime:
        return []
    launch = gate.definitions.launch(spec.id)
    found = [f"installs {launch.installs}"] if launch.installs else []
    found += [f"installed: {launch.installed}"] if launch.installed else []
    preset = preset_of([word.reveal() for word in spec.command])
    return [visible(each) for each in (preset, *found, *launch.files)]


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
_cached_order = lru_cache(maxsize=500)(is_reordered)


def order_remark(gate: Gate, held: HeldItem) -> str:
    """A sentence on a held definition of which only the order differs from the approved one, with the remedy; empty for
    any other."""
    spec = gate.policies.spec(held.item.server)
    if spec is None or held.item.kind == Aspect.LAUNCH or not _cached_order(held.approved, held.offered):
        return ""
    return f"{ORDER_DIFFERS}; {order_remedy(spec)}"


def _pretty(definition: bytes) -> str:
    return _cached_pretty(definition) if len(definition) <= LONGEST_KEPT else pretty(definition)


def definition_as_text(definition: bytes) -> str:
    """A definition for the person who confirms a call. One that nobody would read to its end is cut."""
    if len(definition) <= LONGEST_KEPT:
        return _cached_pretty(definition)
    start = visible(definition[:LONGEST_KEPT].decode(errors="replace"), lines=True)
    return f"{start}\n⋯ ({len(definition)} bytes in all)"


def description_in(definition: bytes) -> str:
    """The description in a definition, with invisible characters made visible; empty if it has none. Of instructions,
    which are a text, the text."""
    try:
        text = value(definition if definition[:1] == b'"' else members(definition)["description"])
    except (KeyError, ValueError):
        return ""
    return visible(text[:LONGEST_DESCRIPTION], lines=True) if isinstance(text, str) else ""


def held_as_data(gate: Gate, held: HeldItem, until: float = inf) -> HeldRow:
    """A held definition as plain data: status, difference from the approved one, and full text. After `until` (by
    `time.monotonic`) without difference and text and with `ready` false: the page asks again."""
    ready, approved, offered = time.monotonic() < until, held.approved, held.offered
    if held.item.kind == Aspect.LAUNCH:
        spec = gate.policies.spec(held.item.server)
        approved = None if approved is None else launch_for_people(approved, spec)
        offered = launch_for_people(offered, spec)
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
        "order": order_remark(gate, held) if ready else "",
        "trust": gate.policies.trust(held.item.server).value,
        "diff": [{"op": op, "text": text} for op, text in _difference(approved, offered)] if ready else [],
        "text": _pretty(offered) if ready else "",
    }


def definition_as_data(gate: Gate, listed: ListedItem, caller: str, *, whole: bool) -> DefinitionRow:
    """A definition of a server's list as plain data; with its text if `whole`. `caller`: whose call is judged."""
    item, decision, denied = listed.item, None, False
    shown = listed.offered
    if item.kind == Aspect.LAUNCH:
        shown = launch_for_people(shown, gate.policies.spec(item.server))
    claims = set().union(*(claims_in(each).held for each in definitions_in(listed.offered)))
    if item.kind in KINDS:
        decision = gate.definitions.evaluate(gate.definitions.ref_of(item, listed.fingerprint), None, caller)
        denied = not gate.policies.rules(item.server).may_be_visible(KINDS[item.kind], item.name)
    return {
        "server": item.server,
        "kind": item.kind,
        "name": visible(item.name),
        "standing": listed.status.value,
        "fingerprint": listed.fingerprint,
        "by": listed.by,
        "counts": listed.is_vouched,
        "claims": sorted(claims) if item.kind == Kind.TOOL else [],
        "verdict": "" if decision is None else decision.verdict.value,
        "rule": "" if decision is None else visible(decision.rule),
        "denied": denied,
        "description": description_in(listed.offered),
        "text": definition_as_text(shown) if whole else "",
        "problem": listed.problem,
    }


def rules_as_data(gate: Gate, server: str) -> list[RuleRow]:
    """The rules of a server as plain data."""
    return [
        {
            "about": about,
            "verdict": each.verdict.value,
            "rule": visible(each.rule),
            "origin": rule_origin(gate, server, each.rule),
        }
        for about, each in gate.policies.rules(server).written_out()
    ]


def _arguments(grant: Grant) -> str:
    if grant.subject.digest is not None:
        return f"exactly {grant.subject.digest[:19]}…"
    return f"when {visible(conditions_text(grant.when))}" if grant.when else "any"


async def count_uncounted(gate: Gate, server: str, tools: Iterable[EntryRef]) -> int:
    """The number of these tools of a server whose claims do not count, though a rule wants some: no person has approved
    them. A tool that is denied whatever it claims needs no approval."""
    count = 0
    for ref in tools:
        await pause()
        rules = gate.policies.rules_of(server)
        if rules is None or not rules.of_kind[Kind.TOOL].reads_claims:
            return 0
        if gate.definitions.counting_claims(ref) is None:
            count += rules.may_be_visible(Kind.TOOL, ref.name)
    return count


async def unmatched_rules(gate: Gate, catalog: Catalog, server: str) -> list[str]:
    """The rules of a server that match no listed entry, and overrides for what it does not list. A rule for resources
    may match an unlisted one if the server has templates that generate such URIs. Empty if a reload changes the
    server's rules meanwhile."""
    if not gate.policies.has_server(server):
        return []
    rules = gate.policies.rules(server)
    found: list[str] = []
    for kind in (Kind.TOOL, Kind.RESOURCE, Kind.PROMPT):
        names = [entry.ref.name for entry in catalog.entries_of(server, kind)]
        if kind is Kind.RESOURCE and catalog.entries_of(server, Kind.TEMPLATE):
            continue
        own_rules = rules.of_kind[kind]
        left = set(own_rules.texts())
        for name in names if left else ():
            await pause()
            left -= own_rules.matching(name)
        found += [visible(rule) for rule in own_rules.texts() if rule in left]
        for view in gate.policies.views:
            await pause()
            where = f"views.{view.name}.overrides" if view.name else "overrides"
            own = view.own_overrides(server, kind)
            found += [visible(f"{where}: {name}") for name in sorted(own.keys() - set(names) if own else ())]
    return found if gate.policies.has_server(server) and gate.policies.rules(server) is rules else []
