"""The gate on the road of every call: it alone makes permits, and without one no request reaches a server.

It joins what is kept apart: the judge (`rules`), the pins of definitions, the desk where a person is asked, the grants
that come of it, the limits and the audit. Every question about consent, from a listing to a server's wish for the
client's model, is answered here, by the same judge.

    admit     before anything is begun: may this exchange reach this entry? Waits for a person if need be.
    dispatch  at the moment it is sent: does all of that still hold? Then it is written down, and goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import final

import trio
from msgspec import Raw

from config import Channel, ServerSpec, Trust, Verdict
from config.globs import MAX_LENGTH
from host.errors import ColonnadeError, Forbidden, ProtocolViolation, StaleApproval
from host.exchange import Caller, Exchange, NoClient
from host.hygiene import clean, clean_json, is_light, visible
from host.jsonrpc.messages import INVALID_PARAMS, Request
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, items, members, string, value
from host.names import matching_templates
from host.policy.conditions import decode_arguments
from host.policy.confirmations import (
    MAX_CONFIRMABLE_BYTES,
    ConfirmationContext,
    ConfirmationQueue,
    describe_access,
    stale_approval,
)
from host.policy.decision_log import AuditRecord, ChangeSummary, DecisionLog, Trace, summarize
from host.policy.fingerprint import Launch, arguments_digest
from host.policy.grants import AccessRequest, Grant, Grants, Scope, new_id
from host.policy.limits import Meter
from host.policy.pins import INSTRUCTIONS, LAUNCH, Change, Held, Pins, PinStatus, PreparedPins
from host.policy.rules import RuleDecision, Rules
from host.policy.server_request_checks import MAX_TEXT, check_server_request
from host.policy.uris import TooManyVariants, is_plain, uri_variants
from host.protocol.abilities import Abilities
from host.protocol.links import PAGE, without_page
from host.protocol.methods import CALL, TARGETED, Kind
from host.protocol.questions import CannotAsk, Question
from host.slices import Steps, in_worker, run_inline

_GATE = object()
MAX_TOKENS = 10**9
"""Tokens that a question to a model may ask for; what asks for more, or for none, counts as asking for all of them."""
MAX_ROOTS = 1_000
"""Roots of a client that are judged one by one."""
MAX_HELD_URIS = 500
"""Resources of a server that are held back, and are no plain URIs, of which all spellings are known."""
MAX_HELD_MATCHES = 10_000
"""Templates held back, times the readings of a URI, that are tried on one another."""
MAX_RENEWALS = 10
"""Times that a server may have a call sent again that a person has agreed to once."""
RENEWED_GRANT_LIFE = 3600.0
"""Seconds for which a request that its server did not finish may be sent again without another question: as long as the
state that the client must bring back."""


@dataclass(frozen=True, slots=True, eq=False)
class _MadeByGate:
    """A permit proves something only because nobody but the gate can make one."""

    made_by: object

    def __post_init__(self) -> None:
        if self.made_by is not _GATE:
            raise TypeError("only the gate makes permits")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Permit(_MadeByGate):
    """Proof that this exchange may reach this entry of this server."""

    exchange: Exchange
    server: str
    kind: Kind
    target: str
    """The entry's own name or URI at the server."""
    decision: RuleDecision
    epoch: int
    """The state of the policy at the time; nothing has to be looked at again while it is the same."""
    access: AccessRequest | None = None
    """What a person was asked; None if nobody had to be."""
    grant: Grant | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class PreparedListing:
    """What comes of a list of a server, and what that was found out under: see `Gate.prepare` and `Gate.take`."""

    server: str
    kind: Kind
    spec: ServerSpec | None
    rules: Rules | None
    launches: bool
    claims: Mapping[str, tuple[str, ...]]
    prepared: PreparedPins
    summary: ChangeSummary | None
    """Of its changes, if they are too many to be written down one by one."""


class Gate:
    """Judges by the consent of each server. What it denies does not exist for whoever asks.

    Args:
        servers: by id; see `replace`.
        moved: called with the servers whose entries may be seen otherwise than before.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerSpec],
        pins: Pins,
        confirmations: ConfirmationQueue,
        decision_log: DecisionLog,
    ) -> None:
        self.pins = pins
        self.confirmations = confirmations
        self.on_visibility_changed: Callable[[Iterable[str]], None] = lambda servers: None
        self.epoch = 0
        self.decision_log = decision_log
        self._specs: dict[str, ServerSpec] = {}
        self._rules: dict[str, Rules] = {}
        self._meters: dict[str, Meter] = {}
        self._templates: dict[str, tuple[str, ...]] = {}
        self._claims: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._spellings: dict[str, tuple[int, _HeldUris]] = {}
        """Spellings of the resources of each server that are held back: as of an epoch."""
        self._held_templates: dict[str, tuple[int, list[str]]] = {}
        """The templates of each server that are held back: as of an epoch."""
        self._renewals: dict[str, int] = {}
        """How often the call of a grant has gone on already."""
        self._epoch_changed = trio.lowlevel.ParkingLot()
        self._set_servers(servers)

    @property
    def grants(self) -> Grants:
        return self.confirmations.grants

    # The configuration

    def replace(self, servers: Mapping[str, ServerSpec]) -> None:
        """Judge by these from now on, all at once. Questions and grants whose rule is not the same are void; what was
        dispatched keeps its verdict."""
        former = self._rules
        self._set_servers(servers)
        self.pins.set_trust_levels({server: spec.trust for server, spec in servers.items()})
        self.void_unruled()
        # All else that lists are judged by (pins, launch, templates) comes from elsewhere, and is told when it changes.
        self._bump_epoch([server for server, rules in self._rules.items() if rules is not former.get(server)])

    def void_unruled(self) -> None:
        """Take back every grant whose rule the configuration does not have (any more)."""
        for grant in self.grants.revoke_unless(self._still_ruled):
            self.decision_log.record("revoke", grant=grant.id, by="configuration", server=grant.server)

    def _set_servers(self, servers: Mapping[str, ServerSpec]) -> None:
        self._specs = dict(servers)
        self._rules = {server: _rules(spec, self._rules.get(server)) for server, spec in servers.items()}
        former, self._meters = self._meters, {}
        for server, meter in former.items():
            if server in servers:
                self.meter(server).take_over(meter)

    def _still_ruled(self, grant: Grant) -> bool:
        rules = self._rules.get(grant.server)
        return rules is not None and rules.has_rule(grant.rule, grant.kind)

    def _bump_epoch(self, servers: Iterable[str]) -> None:
        """What holds for these servers has changed."""
        self.epoch += 1
        self.confirmations.void(self._still_applies)
        self._epoch_changed.unpark_all()
        self.on_visibility_changed(servers)

    def rules(self, server: str) -> Rules:
        return self._rules[server]

    def meter(self, server: str) -> Meter:
        """What is used of the limits of a server, from the first use on."""
        if server not in self._meters:
            spec = self._specs[server]
            self._meters[server] = Meter(server, spec.limits, spec.trust)
        return self._meters[server]

    def trust(self, server: str) -> Trust:
        """How far a server is trusted; one that nobody configured, not at all."""
        spec = self._specs.get(server)
        return Trust.UNTRUSTED if spec is None else spec.trust

    # Looking in

    def has_server(self, server: str) -> bool:
        """Whether the configuration has this server."""
        return server in self._rules

    def describe_limits(self, server: str) -> dict[str, str | None]:
        """The limits of a server, in words; None where there is none."""
        found = self._specs[server].limits
        rates = {"calls": found.calls, "sampling": found.sampling, "sampling_tokens": found.sampling_tokens}
        told = {key: None if rate is None else f"{rate.count} in {rate.seconds:g} s" for key, rate in rates.items()}
        counts = {"concurrent": found.concurrent, "result": found.result}
        return told | {key: None if count is None else str(count) for key, count in counts.items()}

    def fingerprint(self, server: str, kind: Kind, name: str) -> str:
        """Of the definition that an entry has; empty if it has none."""
        return self.pins.fingerprint(server, *self._pinned_item(server, kind, name)) or ""

    def grant_for_anonymous(
        self, server: str, kind: Kind, name: str, raw_arguments: Raw, decision: RuleDecision
    ) -> Grant | None:
        """The grant that a call of a client without a name would use, if it had to be asked about."""
        if decision.verdict is not Verdict.ASK:
            return None
        params = {"arguments": raw_arguments}
        exchange = Exchange(Request(0, CALL.name), params, Caller("a client without a name", None), NoClient())
        return self.grants.find(self._access_request(exchange, server, kind, name, raw_arguments, decision))

    def why_unusable(self, grant: Grant) -> str:
        """Why a grant cannot be used now; empty if it can."""
        rules = self._rules.get(grant.server)
        if rules is None:
            return "its server is not in the configuration any more"
        if not rules.has_rule(grant.rule, grant.kind):
            return "its rule is not in the configuration any more"
        launch = self.pins.launch(grant.server)
        if launch and grant.launch != launch:
            return "its server is not started as it was then"
        if grant.kind in _KINDS:
            present = self.fingerprint(grant.server, _KINDS[grant.kind], grant.name)
            if present and present != grant.fingerprint:
                return "the definition is not the one that it was given for"
        return self.grants.why_unusable(grant) or ""

    # Definitions

    def prepare(self, server: str, kind: Kind, offered: Mapping[str, bytes]) -> Steps[PreparedListing]:
        """Find out what comes of all that the server lists now, as it wrote it. Nothing is otherwise before `take`."""
        spec, rules, launches = self._specs.get(server), self._rules.get(server), self.may_launch(server)
        claims: dict[str, tuple[str, ...]] = {}
        if kind is Kind.TOOL:
            for name, raw in offered.items():
                yield None
                if (b"nnotations" in raw or b"\\u" in raw) and (said := _claims(raw)):
                    claims[name] = said
        reading = yield from self.pins.prepare(server, kind.value, offered)
        summary = yield from summarize(reading.changes)
        return PreparedListing(server, kind, spec, rules, launches, claims, reading, summary)

    def would_be_visible(self, prepared: PreparedListing, name: str) -> bool:
        """Whether the entry, which is offered, may be listed once that is taken note of."""
        server, kind = prepared.server, prepared.kind
        known = prepared.launches and self._may_be_known(server, kind, name, listing=True)
        return known and self._is_usable(server, prepared.prepared.status(name))

    def commit(self, prepared: PreparedListing) -> bool:
        """What was prepared holds from now on; the catalog must be told without a pause. False if it was prepared under
        another configuration, launch or decision than holds now: then it must be prepared again."""
        server, kind = prepared.server, prepared.kind
        ground = self._specs.get(server), self._rules.get(server), self.may_launch(server)
        if not all(map(is_, ground, (prepared.spec, prepared.rules, prepared.launches))):
            return False
        changes = self.pins.commit(prepared.prepared)
        if changes is None:
            return False
        if kind is Kind.TEMPLATE:
            self._templates[server] = tuple(prepared.prepared.offered)
            self._held_templates.pop(server, None)
        if kind is Kind.TOOL:
            self._claims[server] = prepared.claims
        self._record_changes(changes, prepared.summary)
        return True

    def listed_definition(self, server: str, kind: Kind, definition: bytes) -> Steps[bytes]:
        """A definition as it may be listed."""
        if kind is Kind.TOOL and not self.shows_apps(server):
            definition = bytes(without_page(Raw(definition)))
        if not self.sanitizes(server):
            return definition
        if is_light(definition):
            return clean_json(definition, limit=MAX_TEXT)
        cleaned: bytes = yield from in_worker(partial(clean_json, limit=MAX_TEXT), definition)
        return cleaned

    def observe_instructions(self, server: str, text: str | None) -> Steps[None]:
        """This is what the server says of itself now."""
        offered = {} if text is None else {"": bytes(encode(text))}
        while True:
            changes = self.pins.commit((yield from self.pins.prepare(server, INSTRUCTIONS, offered)))
            if changes is not None:
                self._record_changes(changes)
                return

    def observe_launch(self, server: str, launch: Launch) -> bool:
        """This is what is to be started or reached now; whether it may be."""
        if self._record_changes(self.pins.observe_launch(server, launch)):
            self.on_visibility_changed((server,))
        return self.may_launch(server)

    def may_launch(self, server: str) -> bool:
        """Whether the program that the server's command stands for is the one that it stood for."""
        return self.pins.status(server, LAUNCH, "") in (PinStatus.APPROVED, PinStatus.UNKNOWN)

    async def wait_until_launchable(self, server: str) -> None:
        """Wait for a person to approve of what the server's command stands for now."""
        while not self.may_launch(server):
            await self._epoch_changed.park()

    def _record_changes(self, changes: list[Change], summary: ChangeSummary | None = None) -> bool:
        if summary is not None:
            self.decision_log.record_change_summary(summary, self._change_outcome(summary.first_change))
        else:
            for change in changes:
                self.decision_log.record_change(change, self._change_outcome(change))
        if changes:
            self.epoch += 1
            self.confirmations.void(self._still_applies)
        return bool(changes)

    def _change_outcome(self, change: Change) -> str:
        """What came of a change; see `DefinitionChanged`."""
        if change.status is not PinStatus.APPROVED:
            return "held"
        if self.trust(change.server) is Trust.TRUSTED:
            return "accepted"
        return "edited" if change.kind == LAUNCH else "returned"

    def held(self) -> list[Held]:
        """All that waits for a person: of servers that are configured, and not what their rules deny anyhow."""
        return run_inline(self.held_in_steps())

    def held_in_steps(self) -> Steps[list[Held]]:
        """The same in steps."""
        found: list[Held] = []
        for each in self.pins.iter_held():
            yield None
            if each is not None and self._needs_decision(each):
                found.append(each)
        return found

    def _needs_decision(self, held: Held) -> bool:
        if held.server not in self._rules:
            return False
        return held.kind not in _KINDS or self._rules[held.server].is_visible(_KINDS[held.kind], held.name)

    # What people decide

    def approve(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """What a server offers may be used from now on; it must be what was shown.

        Raises:
            Moved: it is not.
            AuditUnavailable, StateError: it cannot be written down, so it is not approved.
        """
        self.decision_log.record_definition_decision("approve", server, kind, name, fingerprint, by)
        self.pins.approve(server, kind, name, fingerprint, by)
        self.decision_log.announce_definition_decision("approve", server, kind, name, by)
        self._bump_epoch((server,))

    def approve_all(self, server: str, items: Sequence[tuple[str, str, str]], by: str) -> None:
        """All of these (kind, name, fingerprint), or none; raises as `approve` does."""
        for kind, name, fingerprint in items:
            self.decision_log.record_definition_decision("approve", server, kind, name, fingerprint, by)
        self.pins.approve_all(server, items, by)
        for kind, name, _ in items:
            self.decision_log.announce_definition_decision("approve", server, kind, name, by)
        self._bump_epoch((server,))

    def reject(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """It stays held back, and counts as looked at. Raises as `approve` does."""
        self.decision_log.record_definition_decision("reject", server, kind, name, fingerprint, by)
        self.pins.reject(server, kind, name, fingerprint, by)
        self.decision_log.announce_definition_decision("reject", server, kind, name, by)
        self._bump_epoch((server,))

    def revoke(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """What was approved is held back until it is approved anew. Raises as `approve` does."""
        self.decision_log.record_definition_decision("unapprove", server, kind, name, fingerprint, by)
        self.pins.revoke(server, kind, name)
        self.decision_log.announce_definition_decision("unapprove", server, kind, name, by)
        self._bump_epoch((server,))

    def revoke_grant(self, id: str, by: str) -> bool:
        """Whether there was such a grant; there is none any more."""
        if all(grant.id != id for grant in self.grants.all()):
            return False
        self.decision_log.record("revoke", grant=id, by=by)
        return self.grants.revoke(id)

    def on_decided(self, servers: Iterable[str]) -> None:
        """A person has approved or rejected something of these servers, here or in another process."""
        self._bump_epoch(servers)

    def pin_status(self, server: str, kind: Kind, name: str) -> PinStatus:
        """How the definition stands that an entry has; for a URI that no list names, that of a template which makes
        it."""
        return self.pins.status(server, *self._pinned_item(server, kind, name))

    def _pinned_item(self, server: str, kind: Kind, name: str) -> tuple[str, str]:
        """The pinned item that an entry is of."""
        if kind is not Kind.RESOURCE or self.pins.status(server, kind.value, name) is not PinStatus.UNKNOWN:
            return kind.value, name
        return self._unlisted_pinned_item(server, name)

    def _unlisted_pinned_item(self, server: str, uri: str) -> tuple[str, str]:
        """The pinned item that a URI is of which no list names."""
        held_spelling = self._held_spelling(server, uri)
        held_maker = self._held_template(server, uri)
        # None: any of them may make it. Then one that is held back decides, and else it is a URI that nothing makes.
        made_by = matching_templates(self._templates.get(server, ()), (uri,)) or []
        approved = [each for each in made_by if self.pins.status(server, "template", each) is PinStatus.APPROVED]
        if held_spelling is not None:
            return Kind.RESOURCE.value, held_spelling
        if made_by:
            return Kind.TEMPLATE.value, (approved or made_by)[0]
        return (Kind.RESOURCE.value, uri) if held_maker is None else (Kind.TEMPLATE.value, held_maker)

    def _requested_status(self, server: str, kind: Kind, name: str) -> PinStatus:
        """`standing` of an entry that a client asks for: a listed resource takes as long as another."""
        own = self.pins.status(server, kind.value, name)
        if kind is not Kind.RESOURCE:
            return own
        other = self.pins.status(server, *self._unlisted_pinned_item(server, name))
        return other if own is PinStatus.UNKNOWN else own

    def _held_template(self, server: str, uri: str) -> str | None:
        """The template that is held back and that makes what this URI may be another spelling of."""
        epoch, held = self._held_templates.get(server, (-1, []))
        if epoch != self.epoch:
            templates = self._templates.get(server, ())
            held = [each for each in templates if self.pins.status(server, "template", each) is not PinStatus.APPROVED]
            self._held_templates[server] = self.epoch, held
        if not held:
            return None
        try:
            texts = [each.text for each in uri_variants(uri)] if len(uri) <= MAX_LENGTH else []
        except TooManyVariants:
            texts = []
        if not texts:
            return held[0]  # it may be made by any of them
        if len(texts) * len(held) > MAX_HELD_MATCHES:
            return held[0]
        found = matching_templates(held, texts)
        return held[0] if found is None else min(found, default=None)

    def _held_spelling(self, server: str, uri: str) -> str | None:
        """The resource that is held back and that this URI, which no list names, may be another spelling of."""
        epoch, spellings = self._spellings.get(server, (-1, None))
        if spellings is None or epoch != self.epoch:
            spellings = _HeldUris(self.pins.held_names(server, Kind.RESOURCE.value), spellings)
            self._spellings[server] = self.epoch, spellings
        return spellings.find(uri)

    def _is_usable(self, server: str, status: PinStatus) -> bool:
        """Whether what stands so may be reached. What no list ever named has no definition that could be approved: of
        an untrusted server it does not exist."""
        open_unknown = self.trust(server) is not Trust.UNTRUSTED
        return status is PinStatus.APPROVED or (status is PinStatus.UNKNOWN and open_unknown)

    # Listing

    def is_visible(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed."""
        known = self._may_be_known(server, kind, name)
        is_open = self._is_usable(server, self.pin_status(server, kind, name))
        return self.may_launch(server) and known and is_open

    def is_visible_cached(self, server: str, kind: Kind, name: str) -> bool:
        """The same for whoever makes whole lists; see `Rules.lists`."""
        known = self._may_be_known(server, kind, name, listing=True)
        return known and self.may_launch(server) and self._is_usable(server, self.pin_status(server, kind, name))

    def is_known(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be known to exist: also one that was approved and is held back now."""
        known = self._may_be_known(server, kind, name)
        status = self._requested_status(server, kind, name)
        is_open = self._is_usable(server, status)
        return known and (status is PinStatus.CHANGED or is_open)

    def _may_be_known(self, server: str, kind: Kind, name: str, *, listing: bool = False) -> bool:
        if server not in self._rules:
            return False
        if kind in (Kind.RESOURCE, Kind.TEMPLATE) and name[: len(PAGE)].lower() == PAGE and not self.shows_apps(server):
            return False
        rules = self._rules[server]
        return rules.is_visible_cached(kind, name) if listing else rules.is_visible(kind, name)

    # Requests

    async def admit(
        self, exchange: Exchange, server: str, kind: Kind, name: str, *, exists: bool = True
    ) -> Permit | None:
        """The permit to reach the entry, or None: then the answer must be the one for what does not exist. Where the
        rules say ask, a person is waited for.

        With `exists` False there is no such entry, and never a permit: the same checks are made as for one that is
        denied, so that it takes as long.

        Raises:
            Forbidden: the rules deny these arguments, or a person did.
            Unanswered, Crowded: nobody answered, or too much is to be answered.
            Changed: the entry was approved and is held back, since it changed; or it changed while a person was asked.
        """
        if not self._known_or_held(server, kind, name, exists):
            return None
        raw_arguments = _raw_arguments(exchange)
        epoch, decision = self.epoch, self._evaluate(server, kind, name, raw_arguments)
        if decision.verdict is Verdict.DENY:
            self._deny_arguments(exchange, server, kind, name, decision)
            return None
        if decision.verdict is Verdict.ALLOW:
            return Permit(_GATE, exchange, server, kind, name, decision, epoch)
        access = self._access_request(exchange, server, kind, name, raw_arguments, decision)
        grant = self.grants.find(access)
        if grant is None and not _is_confirmable(raw_arguments):
            self.decision_log.record_denied(self._audit_record(exchange, server, kind, name, decision))
            raise _too_long_to_confirm(access, raw_arguments)
        if grant is None:
            about = ConfirmationContext(
                self._title(server), self.trust(server), bytes(raw_arguments), self._claimed(server, kind, name)
            )
            client = exchange.client if self._client_can_confirm(exchange.caller) else None
            grant = await self.confirmations.confirm(access, about, client)
        else:
            self.grants.reserve(grant)
        return Permit(_GATE, exchange, server, kind, name, decision, epoch, access, grant)

    def admit_without_confirmation(
        self, exchange: Exchange, server: str, kind: Kind, name: str, *, exists: bool = True
    ) -> Permit | None:
        """The same for what follows the verdict of an entry and is nothing to ask a person about.

        Raises:
            Forbidden: it would have to be asked about, and no grant for it is there.
            Changed: the entry is held back.
        """
        if not self._known_or_held(server, kind, name, exists):
            return None
        epoch, decision = self.epoch, self._evaluate(server, kind, name, EMPTY_OBJECT)
        if decision.verdict is Verdict.DENY:
            return None
        access = grant = None
        if decision.verdict is Verdict.ASK:
            access = self._access_request(exchange, server, kind, name, EMPTY_OBJECT, decision)
            grant = self.grants.find(access)
            if grant is None or grant.scope is Scope.ONCE:  # what was given for one call is not spent on this
                raise Forbidden(server, f"this {kind.value} of {server} needs a person's consent, which was not given")
        return Permit(_GATE, exchange, server, kind, name, decision, epoch, access, grant)

    def release(self, permit: Permit) -> None:
        """Nothing more is sent with this permit. A grant for one call that was not spent can be used by the next."""
        if permit.grant is not None:
            self.grants.release(permit.grant)

    def renew_for_retry(self, permit: Permit) -> None:
        """The server asked back instead of finishing: the caller will send the same request again, and it is the same
        call that a person has agreed to. Once for each such answer, and MOST_ROUNDS times in all."""
        if permit.grant is None or permit.access is None or permit.grant.scope is not Scope.ONCE:
            return
        rounds = self._renewals.pop(permit.grant.id, 0) + 1
        if rounds > MAX_RENEWALS:
            return
        again = replace(
            permit.grant,
            id=new_id(),
            expires=time.time() + RENEWED_GRANT_LIFE,
            retry=True,
        )
        self._renewals[again.id] = rounds
        self.grants.add(again)

    @contextmanager
    def dispatch(self, permit: Permit) -> Iterator[Trace]:
        """The request of the permit is sent within the block. What was found at `admit` must still hold; it is written
        down before, and what became of it after.

        Raises:
            Changed: it does not.
            AuditUnavailable: it cannot be written down, so it does not go.
        """
        decision, grant = self._revalidate(permit)
        record = self._audit_record(permit.exchange, permit.server, permit.kind, permit.target, decision, grant)
        with self.decision_log.recording(record) as trace:
            yield trace

    def _audit_record(
        self, exchange: Exchange, server: str, kind: Kind, name: str, decision: RuleDecision, grant: Grant | None = None
    ) -> AuditRecord:
        fingerprint, launch = self.fingerprint(server, kind, name), self.pins.launch(server)
        method, raw_arguments = exchange.request.method, _raw_arguments(exchange)
        return AuditRecord(
            server, kind.value, name, method, exchange.caller, raw_arguments, decision, fingerprint, launch, grant
        )

    def _revalidate(self, permit: Permit) -> tuple[RuleDecision, Grant | None]:
        """By what the request may go now; a grant is spent with this."""
        server, kind, name = permit.server, permit.kind, permit.target
        if permit.epoch != self.epoch:
            decision = (
                self._evaluate(server, kind, name, _raw_arguments(permit.exchange)) if server in self._rules else None
            )
            if decision is None or decision.verdict is Verdict.DENY or not self.is_visible(server, kind, name):
                raise stale_approval(server, kind.value, name)
            if decision.verdict is Verdict.ALLOW:
                return decision, None
            if permit.access is None or decision.rule != permit.decision.rule:
                raise stale_approval(server, kind.value, name)
        if permit.access is not None:
            access = self._current(permit.access)
            if permit.grant is None or access is None or not self.grants.use(permit.grant, access):
                raise stale_approval(server, kind.value, name)
        return permit.decision, permit.grant

    def depends_on_definition(self, permit: Permit) -> bool:
        """Whether the permit is good for one definition of its entry only: where it is pinned, or a person agreed."""
        return permit.access is not None or self.trust(permit.server) is not Trust.TRUSTED

    def recheck(self, permit: Permit) -> None:
        """Before what was dispatched is sent once more: what it is for must still be open.

        Raises:
            Changed: it is not.
        """
        server, kind, name = permit.server, permit.kind, permit.target
        if permit.epoch != self.epoch and not self.is_visible(server, kind, name):
            raise stale_approval(server, kind.value, name)

    def _known_or_held(self, server: str, kind: Kind, name: str, exists: bool) -> bool:
        """Whether the entry may be known to exist.

        Raises:
            Changed: it may, but is held back.
        """
        # All of these are looked at in any case: how long it takes must not tell what is denied from what is missing.
        known = self._may_be_known(server, kind, name)
        status = self._requested_status(server, kind, name)
        is_open = self._is_usable(server, status)
        launches = self.may_launch(server)
        if not (known and exists):
            return False
        if status is PinStatus.CHANGED:
            text = (
                f"the definition of this {kind.value} of {server} is not the one that was approved, so it is held "
                f"back. A person can look at the change and approve it on the console (`colonnade console`) or with "
                f"`colonnade pins`."
            )
            raise StaleApproval(server, text)
        if not launches:
            raise StaleApproval(server, launch_held_message(server))
        return is_open

    def _evaluate(self, server: str, kind: Kind, name: str, raw_arguments: Raw) -> RuleDecision:
        rules = self._rules[server]
        if not rules.reads_arguments(kind):
            return rules.evaluate(kind, name)
        return rules.evaluate(kind, name, decode_arguments(raw_arguments))

    def _deny_arguments(self, exchange: Exchange, server: str, kind: Kind, name: str, decision: RuleDecision) -> None:
        if decision.conditional:
            self.decision_log.record_denied(self._audit_record(exchange, server, kind, name, decision))
            text = (
                f"this call of the {kind.value} {visible(name)[:200]} of {server} is not allowed with these arguments"
            )
            raise Forbidden(server, text)

    def _access_request(
        self, exchange: Exchange, server: str, kind: Kind, name: str, raw_arguments: Raw, decision: RuleDecision
    ) -> AccessRequest:
        caller = exchange.caller
        return AccessRequest(
            caller=caller.identity,
            session=caller.session,
            server=server,
            kind=kind.value,
            name=name,
            fingerprint=self.fingerprint(server, kind, name),
            launch=self.pins.launch(server),
            rule=decision.rule,
            digest=_digest(raw_arguments),
            arguments=decode_arguments(raw_arguments),
            retry=exchange.round is not None and exchange.round.server == server,
        )

    def _current(self, access: AccessRequest) -> AccessRequest | None:
        """The wish as it would be now; None if there is nothing to wish for any more."""
        if access.server not in self._rules:
            return None
        fingerprint = access.fingerprint
        if access.kind in _KINDS:
            kind = _KINDS[access.kind]
            fingerprint = self.fingerprint(access.server, kind, access.name)
        return replace(access, fingerprint=fingerprint, launch=self.pins.launch(access.server))

    def _still_applies(self, access: AccessRequest) -> bool:
        """Whether what was asked is still what it was, under the same rule."""
        if self._current(access) != access:
            return False
        rules = self._rules[access.server]
        if access.kind in _KINDS:
            kind = _KINDS[access.kind]
            if not self.is_visible(access.server, kind, access.name):
                return False
            decision = rules.evaluate(kind, access.name, access.arguments)
        elif access.kind == Question.ROOTS.value:
            return rules.has_rule(access.rule, access.kind)
        else:
            request = Question(access.kind)
            decision = rules.evaluate_server_request(request, access.name if request is Question.URL else None)
        return decision.verdict is Verdict.ASK and decision.rule == access.rule

    def _client_can_confirm(self, caller: Caller) -> bool:
        return Channel.CLIENT in self.confirmations.spec.answers and caller.abilities.form

    def client_may_confirm(self, server: str, kind: Kind, name: str, caller: Caller) -> bool:
        """Whether the caller itself may be asked for consent before this is carried out."""
        if server not in self._rules or not self._client_can_confirm(caller):
            return False
        rules = self._rules[server]
        return rules.reads_arguments(kind) or rules.evaluate(kind, name).verdict is Verdict.ASK

    def forget(self, caller: Caller) -> None:
        """The caller is gone, and what was allowed for its session with it."""
        if caller.session is not None:
            self.confirmations.end_session(caller.session)

    # What servers ask

    def allows_server_request(self, server: str, request: Question) -> bool:
        """Whether the server may ask clients for anything of the kind at all."""
        rules = self._rules.get(server)
        return rules is not None and rules.allows_server_request(request)

    def usable_abilities(self, server: str, abilities: Abilities) -> Abilities:
        """What of a client's abilities the server may use."""
        return replace(
            abilities,
            roots=abilities.roots and self.allows_server_request(server, Question.ROOTS),
            sampling=abilities.sampling and self.allows_server_request(server, Question.SAMPLING),
            sampling_tools=abilities.sampling_tools and self.trust(server) is Trust.TRUSTED,
            form=abilities.form and self.allows_server_request(server, Question.FORM),
            url=abilities.url and self.allows_server_request(server, Question.URL),
            apps=abilities.apps and self.shows_apps(server),
        )

    def check_server_request(self, server: str, request: Question, params: dict[str, Raw]) -> dict[str, Raw]:
        """The params of a server's question as they may be passed on.

        Raises:
            CannotAsk: not at all.
        """
        trust = self.trust(server)
        found = check_server_request(request, params, trust)
        if trust is not Trust.UNTRUSTED:
            return found
        said = bytes(encode_object(found))
        if not is_light(said):
            raise CannotAsk(INVALID_PARAMS, "it is long and holds characters that nobody would see")
        return members(clean_json(said, limit=MAX_TEXT))

    def evaluate_server_request(self, server: str, request: Question, uri: str | None = None) -> RuleDecision:
        return self._rules[server].evaluate_server_request(request, uri)

    async def admit_server_request(
        self, server: str, request: Question, params: Mapping[str, Raw], caller: Caller
    ) -> ServerRequestPermit:
        """The permit to put a server's question to a client; a person is asked if the rules say so.

        Raises:
            Forbidden, Unanswered, Crowded, Changed: it may not be put.
        """
        uri = string(params["url"]) if request is Question.URL else None
        if server not in self._rules:
            raise Forbidden(server, "this server is not served any more")
        if not self.allows_server_request(server, request):
            raise Forbidden(server, NOT_ALLOWED_MESSAGE)
        decision = self.evaluate_server_request(server, request, uri)
        if request is Question.ROOTS:  # each of them is judged when they are known
            decision = replace(decision, verdict=Verdict.ALLOW)
        if decision.verdict is Verdict.DENY:
            raise Forbidden(server, NOT_ALLOWED_MESSAGE)
        # The id of a page is ours, and another one each time.
        raw_arguments = encode_object({name: each for name, each in params.items() if name != "elicitationId"})
        if request is Question.SAMPLING:
            self.meter(server).charge_sampling(_tokens(params))
        if decision.verdict is Verdict.ALLOW:
            return ServerRequestPermit(_GATE, server, request, raw_arguments, caller, decision)
        access = self._server_access_request(server, request, uri or request.value, raw_arguments, caller, decision)
        grant = self.grants.find(access)
        if grant is None and not _is_confirmable(raw_arguments):
            raise _too_long_to_confirm(access, raw_arguments)
        if grant is None:
            grant = await self.confirmations.confirm(
                access, ConfirmationContext(self._title(server), self.trust(server), bytes(raw_arguments)), None
            )
        else:
            self.grants.reserve(grant)
        return ServerRequestPermit(_GATE, server, request, raw_arguments, caller, decision, access, grant)

    def _server_access_request(
        self, server: str, request: Question, name: str, raw_arguments: Raw, caller: Caller, decision: RuleDecision
    ) -> AccessRequest:
        return AccessRequest(
            caller=caller.identity,
            session=caller.session,
            server=server,
            kind=request.value,
            name=name,
            fingerprint="",
            launch=self.pins.launch(server),
            rule=decision.rule,
            digest=_digest(raw_arguments),
            arguments=decode_arguments(raw_arguments),
        )

    @contextmanager
    def dispatch_server_request(self, permit: ServerRequestPermit) -> Iterator[Trace]:
        """The question of the permit goes to the client within the block; see `dispatch`."""
        server, request = permit.server, permit.request
        if permit.access is not None:
            access = self._current(permit.access)
            if permit.grant is None or access is None or not self.grants.use(permit.grant, access):
                raise stale_approval(server, request.value, request.value)
        word, launch = request.value, self.pins.launch(server)
        record = AuditRecord(
            server, word, word, "", permit.caller, permit.raw_arguments, permit.decision, "", launch, permit.grant
        )
        with self.decision_log.recording(record) as trace:
            yield trace

    async def filter_roots(self, server: str, answer: Raw, caller: Caller) -> Raw:
        """A client's answer to a question for its roots, with those that the server may be told.

        Raises:
            BrokeProtocol: it is no such answer, or holds more than MAX_ROOTS.
        """
        rules = self._rules.get(server)
        alike = rules is not None and not rules.has_root_rules
        if alike and self._root_verdict(server, "") is Verdict.ALLOW:
            return answer
        try:
            found = members(answer)
            listed = items(found["roots"])
            if len(listed) > MAX_ROOTS:
                raise ProtocolViolation(server, f"the client's answer holds more than {MAX_ROOTS} roots")
            roots = [(string(members(each)["uri"]), each) for each in listed]
        except (ValueError, KeyError):
            raise ProtocolViolation(server, "the client's answer holds no roots") from None
        asked = [each for uri, each in roots if self._root_verdict(server, uri) is Verdict.ASK]
        allowed = asked if asked and await self._roots_allowed(server, asked, caller) else []
        # Judged after the wait: nothing passes that is denied by now.
        verdicts = [(self._root_verdict(server, uri), each) for uri, each in roots]
        told = [
            each
            for verdict, each in verdicts
            if verdict is Verdict.ALLOW or (verdict is Verdict.ASK and each in allowed)
        ]
        return answer if len(told) == len(roots) else encode_object({**found, "roots": encode(told)})

    def _root_verdict(self, server: str, uri: str) -> Verdict:
        rules = self._rules.get(server)
        return Verdict.DENY if rules is None else rules.evaluate_server_request(Question.ROOTS, uri).verdict

    async def _roots_allowed(self, server: str, roots: list[Raw], caller: Caller) -> bool:
        """Whether a person lets the server know these."""
        raw_arguments = encode(roots)
        decision = next(
            decision
            for root in roots
            if (decision := self.evaluate_server_request(server, Question.ROOTS, string(members(root)["uri"]))).verdict
            is Verdict.ASK
        )
        access = self._server_access_request(
            server, Question.ROOTS, Question.ROOTS.value, raw_arguments, caller, decision
        )
        grant = self.grants.find(access)
        try:
            if grant is None and not _is_confirmable(raw_arguments):
                raise _too_long_to_confirm(access, raw_arguments)
            if grant is None:
                about = ConfirmationContext(self._title(server), self.trust(server), bytes(raw_arguments))
                grant = await self.confirmations.confirm(access, about, None)
            with self.dispatch_server_request(
                ServerRequestPermit(_GATE, server, Question.ROOTS, raw_arguments, caller, decision, access, grant)
            ) as trace:
                trace.outcome = "told"
        except ColonnadeError:
            return False
        return True

    # What servers say

    def shows_apps(self, server: str) -> bool:
        """Whether pages of the server's (MCP Apps) may be shown to whoever uses it: they run in the client."""
        return self.trust(server) is not Trust.UNTRUSTED

    def instructions(self, server: str, text: str | None) -> str | None:
        """The server's instructions as a model may read them, which takes them for those of its user; None if it may
        not."""
        if text is None or self.pins.status(server, INSTRUCTIONS, "") is not PinStatus.APPROVED:
            return None
        return self.sanitize_text(server, text)

    def sanitizes(self, server: str) -> bool:
        """Whether what the server says reaches models and terminals without what cannot be seen."""
        return self.trust(server) is Trust.UNTRUSTED

    def sanitize(self, server: str, raw: Raw) -> Raw:
        """A short text of a server as it may reach a model or a terminal."""
        return Raw(clean_json(bytes(raw))) if self.sanitizes(server) else raw

    def sanitize_text(self, server: str, text: str) -> str:
        """The same for a text that is not JSON."""
        return clean(text, limit=MAX_TEXT) if self.sanitizes(server) else text

    # Within

    def _title(self, server: str) -> str:
        spec = self._specs.get(server)
        return server if spec is None or spec.title is None else spec.title

    def _claimed(self, server: str, kind: Kind, name: str) -> tuple[str, ...]:
        return self._claims.get(server, {}).get(name, ()) if kind is Kind.TOOL else ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class ServerRequestPermit(_MadeByGate):
    """Proof that this question of a server may be put to this client."""

    server: str
    request: Question
    raw_arguments: Raw
    caller: Caller
    decision: RuleDecision
    access: AccessRequest | None = None
    grant: Grant | None = None


def _rules(spec: ServerSpec, former: Rules | None) -> Rules:
    """The rules of a server: the former ones, with the verdicts that they remember, if they are the same."""
    if former is not None and former.compiled_from(spec.consent, spec.trust):
        return former
    return Rules(spec.consent, spec.trust)


_KINDS = {kind.value: kind for kind in Kind}
NOT_ALLOWED_MESSAGE = "the configuration does not let it ask for this"


def launch_held_message(server: str) -> str:
    """Why a server whose program is another one is not started."""
    return (
        f"the command of {server} stands for another program than the one that was approved, so it is not started. "
        f"A person can approve it on the console (`colonnade console`) or with `colonnade pins`."
    )


class _HeldUris:
    """The URIs that each of these resources of one server may be known by.

    The results for `former` are taken over. Of more than MAX_HELD_SPELLINGS that are not plain, the spellings of
    the rest stay unknown, and so every URI may be one of them.
    """

    def __init__(self, names: Iterable[str], former: _HeldUris | None) -> None:
        known = {} if former is None else former._identities
        self._identities: dict[str, set[str]] = {}
        self._by_text: dict[str, str] = {}
        self._unknown: str | None = None
        several = 0
        for name in names:
            plain = is_plain(name)
            several += not plain
            if several > MAX_HELD_URIS and not plain:
                self._unknown = self._unknown or name
                continue
            found = known.get(name)
            self._identities[name] = found = _identities(name) if found is None else found
            self._by_text.update(dict.fromkeys(found, name))

    def find(self, uri: str) -> str | None:
        """The resource that the URI may be another spelling of."""
        if not self._by_text:
            return None
        try:
            texts = [each.text for each in uri_variants(uri)] if len(uri) <= MAX_LENGTH else []
        except TooManyVariants:
            texts = []
        # Without a generator, which would take another step for each text that is found.
        found = min(filter(None, map(self._by_text.get, texts)), default=None)
        if found is None and not texts:
            return next(iter(self._by_text.values()), self._unknown)  # it may be any of them
        return found or self._unknown


def _identities(uri: str) -> set[str]:
    """What a server may know one of its resources by. Only for a file are query and fragment no part of that."""
    if len(uri) > MAX_LENGTH:
        return {uri}
    try:
        variants = uri_variants(uri)
    except TooManyVariants:
        return {uri}
    return {each.text for each in variants if not each.cut_at or each.text.startswith("file:")}


def _raw_arguments(exchange: Exchange) -> Raw:
    """The arguments of a request, as they will be sent; an empty object where it has none."""
    row = TARGETED.get(exchange.request.method)
    raw_arguments = None if row is None or row.arguments is None else exchange.params.get(row.arguments)
    return EMPTY_OBJECT if raw_arguments is None else raw_arguments


def _is_confirmable(raw_arguments: Raw) -> bool:
    """Whether a person can read what would be sent, and so agree to it."""
    return len(raw_arguments) <= MAX_CONFIRMABLE_BYTES


def _digest(raw_arguments: Raw) -> str:
    """Of the arguments that a grant may be bound to. None is bound to longer ones, so theirs is that of no grant."""
    return arguments_digest(bytes(raw_arguments)) if _is_confirmable(raw_arguments) else ""


def _too_long_to_confirm(access: AccessRequest, raw_arguments: Raw) -> Forbidden:
    text = (
        f"{describe_access(access)} needs a person's consent, and its {len(raw_arguments)} bytes are more than "
        f"a person can agree to ({MAX_CONFIRMABLE_BYTES}). Send less, or have the rule changed."
    )
    return Forbidden(access.server, text)


def _tokens(params: Mapping[str, Raw]) -> int | None:
    tokens = value(params["maxTokens"])
    plausible = isinstance(tokens, int | float) and 1 <= tokens <= MAX_TOKENS
    return int(tokens) if plausible and isinstance(tokens, int | float) else None


def _claims(definition: bytes) -> tuple[str, ...]:
    """What a tool says of itself under `annotations`, one line each."""
    try:
        found = members(members(definition)["annotations"])
    except (KeyError, ValueError):
        return ()
    return tuple(f"{name}: {bytes(each).decode()}"[:200] for name, each in found.items())
