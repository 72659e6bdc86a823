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
from host.errors import BrokeProtocol, Changed, ColonnadeError, Forbidden
from host.exchange import Caller, Exchange, Nobody
from host.hygiene import clean, clean_json, is_light, visible
from host.jsonrpc.messages import INVALID_PARAMS, Request
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, items, members, string, value
from host.names import makers
from host.policy.caution import MAX_TEXT, cautious
from host.policy.desk import LONGEST_AGREED, About, Desk, changed, described
from host.policy.fingerprint import Launch, arguments_digest
from host.policy.grants import Grant, Grants, Scope, Wish, new_id
from host.policy.ledger import Deed, Ledger, Summary, Trace, summed
from host.policy.limits import Meter
from host.policy.pins import INSTRUCTIONS, LAUNCH, Change, Held, Pins, Reading, Standing
from host.policy.predicates import decoded
from host.policy.rules import Judgement, Rules
from host.policy.uris import TooManyVariants, is_plain, uri_variants
from host.protocol.abilities import Abilities
from host.protocol.links import PAGE, without_page
from host.protocol.methods import CALL, TARGETED, Kind
from host.protocol.questions import CannotAsk, Question
from host.slices import Steps, at_once, in_process

_GATE = object()
MAX_TOKENS = 10**9
"""Tokens that a question to a model may ask for; what asks for more, or for none, counts as asking for all of them."""
MAX_ROOTS = 1_000
"""Roots of a client that are judged one by one."""
MAX_HELD_SPELLINGS = 500
"""Resources of a server that are held back, and are no plain URIs, of which all spellings are known."""
MAX_HELD_MATCHES = 10_000
"""Templates held back, times the readings of a URI, that are tried on one another."""
MOST_ROUNDS = 10
"""Times that a server may have a call sent again that a person has agreed to once."""
RETRY_LIFE = 3600.0
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
    judgement: Judgement
    epoch: int
    """The state of the policy at the time; nothing has to be looked at again while it is the same."""
    wish: Wish | None = None
    """What a person was asked; None if nobody had to be."""
    grant: Grant | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What comes of a list of a server, and what that was found out under: see `Gate.prepare` and `Gate.take`."""

    server: str
    kind: Kind
    spec: ServerSpec | None
    rules: Rules | None
    launches: bool
    claims: Mapping[str, tuple[str, ...]]
    reading: Reading
    summary: Summary | None
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
        desk: Desk,
        ledger: Ledger,
    ) -> None:
        self.pins = pins
        self.desk = desk
        self.moved: Callable[[Iterable[str]], None] = lambda servers: None
        self.epoch = 0
        self.ledger = ledger
        self._specs: dict[str, ServerSpec] = {}
        self._rules: dict[str, Rules] = {}
        self._meters: dict[str, Meter] = {}
        self._templates: dict[str, tuple[str, ...]] = {}
        self._claims: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._spellings: dict[str, tuple[int, _Spellings]] = {}
        """Spellings of the resources of each server that are held back: as of an epoch."""
        self._held_templates: dict[str, tuple[int, list[str]]] = {}
        """The templates of each server that are held back: as of an epoch."""
        self._rounds: dict[str, int] = {}
        """How often the call of a grant has gone on already."""
        self._decided = trio.lowlevel.ParkingLot()
        self._take(servers)

    @property
    def grants(self) -> Grants:
        return self.desk.grants

    # The configuration

    def replace(self, servers: Mapping[str, ServerSpec]) -> None:
        """Judge by these from now on, all at once. Questions and grants whose rule is not the same are void; what was
        dispatched keeps its verdict."""
        former = self._rules
        self._take(servers)
        self.pins.set_trusts({server: spec.trust for server, spec in servers.items()})
        self.void_unruled()
        # All else that lists are judged by (pins, launch, templates) comes from elsewhere, and is told when it changes.
        self._shift([server for server, rules in self._rules.items() if rules is not former.get(server)])

    def void_unruled(self) -> None:
        """Take back every grant whose rule the configuration does not have (any more)."""
        for grant in self.grants.void(self._still_ruled):
            self.ledger.note("revoke", grant=grant.id, by="configuration", server=grant.server)

    def _take(self, servers: Mapping[str, ServerSpec]) -> None:
        self._specs = dict(servers)
        self._rules = {server: _rules(spec, self._rules.get(server)) for server, spec in servers.items()}
        former, self._meters = self._meters, {}
        for server, meter in former.items():
            if server in servers:
                self.meter(server).take_over(meter)

    def _still_ruled(self, grant: Grant) -> bool:
        rules = self._rules.get(grant.server)
        return rules is not None and rules.has(grant.rule, grant.kind)

    def _shift(self, servers: Iterable[str]) -> None:
        """What holds for these servers has changed."""
        self.epoch += 1
        self.desk.void(self._holds)
        self._decided.unpark_all()
        self.moved(servers)

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

    def knows(self, server: str) -> bool:
        """Whether the configuration has this server."""
        return server in self._rules

    def limits(self, server: str) -> dict[str, str | None]:
        """The limits of a server, in words; None where there is none."""
        found = self._specs[server].limits
        rates = {"calls": found.calls, "sampling": found.sampling, "sampling_tokens": found.sampling_tokens}
        told = {key: None if rate is None else f"{rate.count} in {rate.seconds:g} s" for key, rate in rates.items()}
        counts = {"concurrent": found.concurrent, "result": found.result}
        return told | {key: None if count is None else str(count) for key, count in counts.items()}

    def fingerprint(self, server: str, kind: Kind, name: str) -> str:
        """Of the definition that an entry has; empty if it has none."""
        return self.pins.fingerprint(server, *self._item(server, kind, name)) or ""

    def grant_for_anybody(self, server: str, kind: Kind, name: str, given: Raw, judgement: Judgement) -> Grant | None:
        """The grant that a call of a client without a name would use, if it had to be asked about."""
        if judgement.verdict is not Verdict.ASK:
            return None
        params = {"arguments": given}
        exchange = Exchange(Request(0, CALL.name), params, Caller("a client without a name", None), Nobody())
        return self.grants.find(self._wish(exchange, server, kind, name, given, judgement))

    def why_dead(self, grant: Grant) -> str:
        """Why a grant cannot be used now; empty if it can."""
        rules = self._rules.get(grant.server)
        if rules is None:
            return "its server is not in the configuration any more"
        if not rules.has(grant.rule, grant.kind):
            return "its rule is not in the configuration any more"
        launch = self.pins.launch(grant.server)
        if launch and grant.launch != launch:
            return "its server is not started as it was then"
        if grant.kind in _KINDS:
            present = self.fingerprint(grant.server, _KINDS[grant.kind], grant.name)
            if present and present != grant.fingerprint:
                return "the definition is not the one that it was given for"
        return self.grants.why_dead(grant) or ""

    # Definitions

    def prepare(self, server: str, kind: Kind, offered: Mapping[str, bytes]) -> Steps[Observation]:
        """Find out what comes of all that the server lists now, as it wrote it. Nothing is otherwise before `take`."""
        spec, rules, launches = self._specs.get(server), self._rules.get(server), self.launches(server)
        claims: dict[str, tuple[str, ...]] = {}
        if kind is Kind.TOOL:
            for name, raw in offered.items():
                yield None
                if (b"nnotations" in raw or b"\\u" in raw) and (said := _claims(raw)):
                    claims[name] = said
        reading = yield from self.pins.prepare(server, kind.value, offered)
        summary = yield from summed(reading.changes)
        return Observation(server, kind, spec, rules, launches, claims, reading, summary)

    def would_show(self, observation: Observation, name: str) -> bool:
        """Whether the entry, which is offered, may be listed once that is taken note of."""
        server, kind = observation.server, observation.kind
        known = observation.launches and self._may_be_known(server, kind, name, listing=True)
        return known and self._is_open(server, observation.reading.standing(name))

    def take(self, observation: Observation) -> bool:
        """What was prepared holds from now on; the catalog must be told without a pause. False if it was prepared under
        another configuration, launch or decision than holds now: then it must be prepared again."""
        server, kind = observation.server, observation.kind
        ground = self._specs.get(server), self._rules.get(server), self.launches(server)
        if not all(map(is_, ground, (observation.spec, observation.rules, observation.launches))):
            return False
        changes = self.pins.take(observation.reading)
        if changes is None:
            return False
        if kind is Kind.TEMPLATE:
            self._templates[server] = tuple(observation.reading.offered)
            self._held_templates.pop(server, None)
        if kind is Kind.TOOL:
            self._claims[server] = observation.claims
        self._tell_changes(changes, observation.summary)
        return True

    def shown(self, server: str, kind: Kind, definition: bytes) -> Steps[bytes]:
        """A definition as it may be listed."""
        if kind is Kind.TOOL and not self.shows_apps(server):
            definition = bytes(without_page(Raw(definition)))
        if not self.cleans(server):
            return definition
        if is_light(definition):
            return clean_json(definition, limit=MAX_TEXT)
        cleaned: bytes = yield from in_process(partial(clean_json, limit=MAX_TEXT), definition)
        return cleaned

    def observe_instructions(self, server: str, text: str | None) -> Steps[None]:
        """This is what the server says of itself now."""
        offered = {} if text is None else {"": bytes(encode(text))}
        while True:
            changes = self.pins.take((yield from self.pins.prepare(server, INSTRUCTIONS, offered)))
            if changes is not None:
                self._tell_changes(changes)
                return

    def observe_launch(self, server: str, launch: Launch) -> bool:
        """This is what is to be started or reached now; whether it may be."""
        if self._tell_changes(self.pins.observe_launch(server, launch)):
            self.moved((server,))
        return self.launches(server)

    def launches(self, server: str) -> bool:
        """Whether the program that the server's command stands for is the one that it stood for."""
        return self.pins.standing(server, LAUNCH, "") in (Standing.APPROVED, Standing.UNKNOWN)

    async def until_launches(self, server: str) -> None:
        """Wait for a person to approve of what the server's command stands for now."""
        while not self.launches(server):
            await self._decided.park()

    def _tell_changes(self, changes: list[Change], summary: Summary | None = None) -> bool:
        if summary is not None:
            self.ledger.many_changed(summary, self._what(summary.first))
        else:
            for change in changes:
                self.ledger.changed(change, self._what(change))
        if changes:
            self.epoch += 1
            self.desk.void(self._holds)
        return bool(changes)

    def _what(self, change: Change) -> str:
        """What came of a change; see `DefinitionChanged`."""
        if change.standing is not Standing.APPROVED:
            return "held"
        if self.trust(change.server) is Trust.TRUSTED:
            return "accepted"
        return "edited" if change.kind == LAUNCH else "returned"

    def held(self) -> list[Held]:
        """All that waits for a person: of servers that are configured, and not what their rules deny anyhow."""
        return at_once(self.holding())

    def holding(self) -> Steps[list[Held]]:
        """The same in steps."""
        found: list[Held] = []
        for each in self.pins.holding():
            yield None
            if each is not None and self._matters(each):
                found.append(each)
        return found

    def _matters(self, held: Held) -> bool:
        if held.server not in self._rules:
            return False
        return held.kind not in _KINDS or self._rules[held.server].shows(_KINDS[held.kind], held.name)

    # What people decide

    def approve(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """What a server offers may be used from now on; it must be what was shown.

        Raises:
            Moved: it is not.
            AuditUnavailable, StateError: it cannot be written down, so it is not approved.
        """
        self.ledger.deciding("approve", server, kind, name, fingerprint, by)
        self.pins.approve(server, kind, name, fingerprint, by)
        self.ledger.decided("approve", server, kind, name, by)
        self._shift((server,))

    def approve_all(self, server: str, items: Sequence[tuple[str, str, str]], by: str) -> None:
        """All of these (kind, name, fingerprint), or none; raises as `approve` does."""
        for kind, name, fingerprint in items:
            self.ledger.deciding("approve", server, kind, name, fingerprint, by)
        self.pins.approve_all(server, items, by)
        for kind, name, _ in items:
            self.ledger.decided("approve", server, kind, name, by)
        self._shift((server,))

    def reject(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """It stays held back, and counts as looked at. Raises as `approve` does."""
        self.ledger.deciding("reject", server, kind, name, fingerprint, by)
        self.pins.reject(server, kind, name, fingerprint, by)
        self.ledger.decided("reject", server, kind, name, by)
        self._shift((server,))

    def revoke(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """What was approved is held back until it is approved anew. Raises as `approve` does."""
        self.ledger.deciding("unapprove", server, kind, name, fingerprint, by)
        self.pins.revoke(server, kind, name)
        self.ledger.decided("unapprove", server, kind, name, by)
        self._shift((server,))

    def revoke_grant(self, id: str, by: str) -> bool:
        """Whether there was such a grant; there is none any more."""
        if all(grant.id != id for grant in self.grants.all()):
            return False
        self.ledger.note("revoke", grant=id, by=by)
        return self.grants.revoke(id)

    def decided(self, servers: Iterable[str]) -> None:
        """A person has approved or rejected something of these servers, here or in another process."""
        self._shift(servers)

    def standing(self, server: str, kind: Kind, name: str) -> Standing:
        """How the definition stands that an entry has; for a URI that no list names, that of a template which makes
        it."""
        return self.pins.standing(server, *self._item(server, kind, name))

    def _item(self, server: str, kind: Kind, name: str) -> tuple[str, str]:
        """The pinned item that an entry is of."""
        if kind is not Kind.RESOURCE or self.pins.standing(server, kind.value, name) is not Standing.UNKNOWN:
            return kind.value, name
        return self._unlisted_item(server, name)

    def _unlisted_item(self, server: str, uri: str) -> tuple[str, str]:
        """The pinned item that a URI is of which no list names."""
        held_spelling = self._held_spelling(server, uri)
        held_maker = self._held_maker(server, uri)
        # None: any of them may make it. Then one that is held back decides, and else it is a URI that nothing makes.
        made_by = makers(self._templates.get(server, ()), (uri,)) or []
        approved = [each for each in made_by if self.pins.standing(server, "template", each) is Standing.APPROVED]
        if held_spelling is not None:
            return Kind.RESOURCE.value, held_spelling
        if made_by:
            return Kind.TEMPLATE.value, (approved or made_by)[0]
        return (Kind.RESOURCE.value, uri) if held_maker is None else (Kind.TEMPLATE.value, held_maker)

    def _asked_standing(self, server: str, kind: Kind, name: str) -> Standing:
        """`standing` of an entry that a client asks for: a listed resource takes as long as another."""
        own = self.pins.standing(server, kind.value, name)
        if kind is not Kind.RESOURCE:
            return own
        other = self.pins.standing(server, *self._unlisted_item(server, name))
        return other if own is Standing.UNKNOWN else own

    def _held_maker(self, server: str, uri: str) -> str | None:
        """The template that is held back and that makes what this URI may be another spelling of."""
        epoch, held = self._held_templates.get(server, (-1, []))
        if epoch != self.epoch:
            templates = self._templates.get(server, ())
            held = [each for each in templates if self.pins.standing(server, "template", each) is not Standing.APPROVED]
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
        found = makers(held, texts)
        return held[0] if found is None else min(found, default=None)

    def _held_spelling(self, server: str, uri: str) -> str | None:
        """The resource that is held back and that this URI, which no list names, may be another spelling of."""
        epoch, spellings = self._spellings.get(server, (-1, None))
        if spellings is None or epoch != self.epoch:
            spellings = _Spellings(self.pins.held_names(server, Kind.RESOURCE.value), spellings)
            self._spellings[server] = self.epoch, spellings
        return spellings.find(uri)

    def _is_open(self, server: str, standing: Standing) -> bool:
        """Whether what stands so may be reached. What no list ever named has no definition that could be approved: of
        an untrusted server it does not exist."""
        open_unknown = self.trust(server) is not Trust.UNTRUSTED
        return standing is Standing.APPROVED or (standing is Standing.UNKNOWN and open_unknown)

    # Listing

    def shows(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed."""
        known = self._may_be_known(server, kind, name)
        is_open = self._is_open(server, self.standing(server, kind, name))
        return self.launches(server) and known and is_open

    def lists(self, server: str, kind: Kind, name: str) -> bool:
        """The same for whoever makes whole lists; see `Rules.lists`."""
        known = self._may_be_known(server, kind, name, listing=True)
        return known and self.launches(server) and self._is_open(server, self.standing(server, kind, name))

    def has(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be known to exist: also one that was approved and is held back now."""
        known = self._may_be_known(server, kind, name)
        standing = self._asked_standing(server, kind, name)
        is_open = self._is_open(server, standing)
        return known and (standing is Standing.CHANGED or is_open)

    def _may_be_known(self, server: str, kind: Kind, name: str, *, listing: bool = False) -> bool:
        if server not in self._rules:
            return False
        if kind in (Kind.RESOURCE, Kind.TEMPLATE) and name[: len(PAGE)].lower() == PAGE and not self.shows_apps(server):
            return False
        rules = self._rules[server]
        return rules.lists(kind, name) if listing else rules.shows(kind, name)

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
        given = _given(exchange)
        epoch, judgement = self.epoch, self._judge(server, kind, name, given)
        if judgement.verdict is Verdict.DENY:
            self._refuse_arguments(exchange, server, kind, name, judgement)
            return None
        if judgement.verdict is Verdict.ALLOW:
            return Permit(_GATE, exchange, server, kind, name, judgement, epoch)
        wish = self._wish(exchange, server, kind, name, given, judgement)
        grant = self.grants.find(wish)
        if grant is None and not _may_be_agreed(given):
            self.ledger.refused(self._deed(exchange, server, kind, name, judgement))
            raise _too_long(wish, given)
        if grant is None:
            about = About(self._title(server), self.trust(server), bytes(given), self._claimed(server, kind, name))
            client = exchange.outlet if self._client_answers(exchange.caller) else None
            grant = await self.desk.ask(wish, about, client)
        else:
            self.grants.reserve(grant)
        return Permit(_GATE, exchange, server, kind, name, judgement, epoch, wish, grant)

    def admit_unasked(
        self, exchange: Exchange, server: str, kind: Kind, name: str, *, exists: bool = True
    ) -> Permit | None:
        """The same for what follows the verdict of an entry and is nothing to ask a person about.

        Raises:
            Forbidden: it would have to be asked about, and no grant for it is there.
            Changed: the entry is held back.
        """
        if not self._known_or_held(server, kind, name, exists):
            return None
        epoch, judgement = self.epoch, self._judge(server, kind, name, EMPTY_OBJECT)
        if judgement.verdict is Verdict.DENY:
            return None
        wish = grant = None
        if judgement.verdict is Verdict.ASK:
            wish = self._wish(exchange, server, kind, name, EMPTY_OBJECT, judgement)
            grant = self.grants.find(wish)
            if grant is None or grant.scope is Scope.ONCE:  # what was given for one call is not spent on this
                raise Forbidden(server, f"this {kind.value} of {server} needs a person's consent, which was not given")
        return Permit(_GATE, exchange, server, kind, name, judgement, epoch, wish, grant)

    def over(self, permit: Permit) -> None:
        """Nothing more is sent with this permit. A grant for one call that was not spent can be used by the next."""
        if permit.grant is not None:
            self.grants.release(permit.grant)

    def goes_on(self, permit: Permit) -> None:
        """The server asked back instead of finishing: the caller will send the same request again, and it is the same
        call that a person has agreed to. Once for each such answer, and MOST_ROUNDS times in all."""
        if permit.grant is None or permit.wish is None or permit.grant.scope is not Scope.ONCE:
            return
        rounds = self._rounds.pop(permit.grant.id, 0) + 1
        if rounds > MOST_ROUNDS:
            return
        again = replace(
            permit.grant,
            id=new_id(),
            expires=time.time() + RETRY_LIFE,
            retry=True,
        )
        self._rounds[again.id] = rounds
        self.grants.add(again)

    @contextmanager
    def dispatch(self, permit: Permit) -> Iterator[Trace]:
        """The request of the permit is sent within the block. What was found at `admit` must still hold; it is written
        down before, and what became of it after.

        Raises:
            Changed: it does not.
            AuditUnavailable: it cannot be written down, so it does not go.
        """
        judgement, grant = self._confirm(permit)
        deed = self._deed(permit.exchange, permit.server, permit.kind, permit.target, judgement, grant)
        with self.ledger.sent(deed) as trace:
            yield trace

    def _deed(
        self, exchange: Exchange, server: str, kind: Kind, name: str, judgement: Judgement, grant: Grant | None = None
    ) -> Deed:
        fingerprint, launch = self.fingerprint(server, kind, name), self.pins.launch(server)
        method, given = exchange.request.method, _given(exchange)
        return Deed(server, kind.value, name, method, exchange.caller, given, judgement, fingerprint, launch, grant)

    def _confirm(self, permit: Permit) -> tuple[Judgement, Grant | None]:
        """By what the request may go now; a grant is spent with this."""
        server, kind, name = permit.server, permit.kind, permit.target
        if permit.epoch != self.epoch:
            judgement = self._judge(server, kind, name, _given(permit.exchange)) if server in self._rules else None
            if judgement is None or judgement.verdict is Verdict.DENY or not self.shows(server, kind, name):
                raise changed(server, kind.value, name)
            if judgement.verdict is Verdict.ALLOW:
                return judgement, None
            if permit.wish is None or judgement.rule != permit.judgement.rule:
                raise changed(server, kind.value, name)
        if permit.wish is not None:
            wish = self._present(permit.wish)
            if permit.grant is None or wish is None or not self.grants.use(permit.grant, wish):
                raise changed(server, kind.value, name)
        return permit.judgement, permit.grant

    def depends_on_definition(self, permit: Permit) -> bool:
        """Whether the permit is good for one definition of its entry only: where it is pinned, or a person agreed."""
        return permit.wish is not None or self.trust(permit.server) is not Trust.TRUSTED

    def recheck(self, permit: Permit) -> None:
        """Before what was dispatched is sent once more: what it is for must still be open.

        Raises:
            Changed: it is not.
        """
        server, kind, name = permit.server, permit.kind, permit.target
        if permit.epoch != self.epoch and not self.shows(server, kind, name):
            raise changed(server, kind.value, name)

    def _known_or_held(self, server: str, kind: Kind, name: str, exists: bool) -> bool:
        """Whether the entry may be known to exist.

        Raises:
            Changed: it may, but is held back.
        """
        # All of these are looked at in any case: how long it takes must not tell what is denied from what is missing.
        known = self._may_be_known(server, kind, name)
        standing = self._asked_standing(server, kind, name)
        is_open = self._is_open(server, standing)
        launches = self.launches(server)
        if not (known and exists):
            return False
        if standing is Standing.CHANGED:
            text = (
                f"the definition of this {kind.value} of {server} is not the one that was approved, so it is held "
                f"back. A person can look at the change and approve it on the console (`colonnade console`) or with "
                f"`colonnade pins`."
            )
            raise Changed(server, text)
        if not launches:
            raise Changed(server, launch_text(server))
        return is_open

    def _judge(self, server: str, kind: Kind, name: str, given: Raw) -> Judgement:
        rules = self._rules[server]
        if not rules.reads_arguments(kind):
            return rules.judge(kind, name)
        return rules.judge(kind, name, decoded(given))

    def _refuse_arguments(self, exchange: Exchange, server: str, kind: Kind, name: str, judgement: Judgement) -> None:
        if judgement.conditional:
            self.ledger.refused(self._deed(exchange, server, kind, name, judgement))
            text = (
                f"this call of the {kind.value} {visible(name)[:200]} of {server} is not allowed with these arguments"
            )
            raise Forbidden(server, text)

    def _wish(self, exchange: Exchange, server: str, kind: Kind, name: str, given: Raw, judgement: Judgement) -> Wish:
        caller = exchange.caller
        return Wish(
            caller=caller.identity,
            session=caller.session,
            server=server,
            kind=kind.value,
            name=name,
            fingerprint=self.fingerprint(server, kind, name),
            launch=self.pins.launch(server),
            rule=judgement.rule,
            digest=_digest(given),
            arguments=decoded(given),
            retry=exchange.round is not None and exchange.round.server == server,
        )

    def _present(self, wish: Wish) -> Wish | None:
        """The wish as it would be now; None if there is nothing to wish for any more."""
        if wish.server not in self._rules:
            return None
        fingerprint = wish.fingerprint
        if wish.kind in _KINDS:
            kind = _KINDS[wish.kind]
            fingerprint = self.fingerprint(wish.server, kind, wish.name)
        return replace(wish, fingerprint=fingerprint, launch=self.pins.launch(wish.server))

    def _holds(self, wish: Wish) -> bool:
        """Whether what was asked is still what it was, under the same rule."""
        if self._present(wish) != wish:
            return False
        rules = self._rules[wish.server]
        if wish.kind in _KINDS:
            kind = _KINDS[wish.kind]
            if not self.shows(wish.server, kind, wish.name):
                return False
            judgement = rules.judge(kind, wish.name, wish.arguments)
        elif wish.kind == Question.ROOTS.value:
            return rules.has(wish.rule, wish.kind)
        else:
            question = Question(wish.kind)
            judgement = rules.question(question, wish.name if question is Question.URL else None)
        return judgement.verdict is Verdict.ASK and judgement.rule == wish.rule

    def _client_answers(self, caller: Caller) -> bool:
        return Channel.CLIENT in self.desk.spec.answers and caller.abilities.form

    def may_ask_client(self, server: str, kind: Kind, name: str, caller: Caller) -> bool:
        """Whether the caller itself may be asked for consent before this is carried out."""
        if server not in self._rules or not self._client_answers(caller):
            return False
        rules = self._rules[server]
        return rules.reads_arguments(kind) or rules.judge(kind, name).verdict is Verdict.ASK

    def forget(self, caller: Caller) -> None:
        """The caller is gone, and what was allowed for its session with it."""
        if caller.session is not None:
            self.desk.end_session(caller.session)

    # What servers ask

    def could_ask(self, server: str, question: Question) -> bool:
        """Whether the server may ask clients for anything of the kind at all."""
        rules = self._rules.get(server)
        return rules is not None and rules.could_ask(question)

    def askable(self, server: str, abilities: Abilities) -> Abilities:
        """What of a client's abilities the server may use."""
        return replace(
            abilities,
            roots=abilities.roots and self.could_ask(server, Question.ROOTS),
            sampling=abilities.sampling and self.could_ask(server, Question.SAMPLING),
            sampling_tools=abilities.sampling_tools and self.trust(server) is Trust.TRUSTED,
            form=abilities.form and self.could_ask(server, Question.FORM),
            url=abilities.url and self.could_ask(server, Question.URL),
            apps=abilities.apps and self.shows_apps(server),
        )

    def cautious(self, server: str, question: Question, params: dict[str, Raw]) -> dict[str, Raw]:
        """The params of a server's question as they may be passed on.

        Raises:
            CannotAsk: not at all.
        """
        trust = self.trust(server)
        found = cautious(question, params, trust)
        if trust is not Trust.UNTRUSTED:
            return found
        said = bytes(encode_object(found))
        if not is_light(said):
            raise CannotAsk(INVALID_PARAMS, "it is long and holds characters that nobody would see")
        return members(clean_json(said, limit=MAX_TEXT))

    def judge_question(self, server: str, question: Question, uri: str | None = None) -> Judgement:
        return self._rules[server].question(question, uri)

    async def admit_question(
        self, server: str, question: Question, params: Mapping[str, Raw], caller: Caller
    ) -> QuestionPermit:
        """The permit to put a server's question to a client; a person is asked if the rules say so.

        Raises:
            Forbidden, Unanswered, Crowded, Changed: it may not be put.
        """
        uri = string(params["url"]) if question is Question.URL else None
        if server not in self._rules:
            raise Forbidden(server, "this server is not served any more")
        if not self.could_ask(server, question):
            raise Forbidden(server, NOT_ALLOWED)
        judgement = self.judge_question(server, question, uri)
        if question is Question.ROOTS:  # each of them is judged when they are known
            judgement = replace(judgement, verdict=Verdict.ALLOW)
        if judgement.verdict is Verdict.DENY:
            raise Forbidden(server, NOT_ALLOWED)
        # The id of a page is ours, and another one each time.
        given = encode_object({name: each for name, each in params.items() if name != "elicitationId"})
        if question is Question.SAMPLING:
            self.meter(server).sampled(_tokens(params))
        if judgement.verdict is Verdict.ALLOW:
            return QuestionPermit(_GATE, server, question, given, caller, judgement)
        wish = self._question_wish(server, question, uri or question.value, given, caller, judgement)
        grant = self.grants.find(wish)
        if grant is None and not _may_be_agreed(given):
            raise _too_long(wish, given)
        if grant is None:
            grant = await self.desk.ask(wish, About(self._title(server), self.trust(server), bytes(given)), None)
        else:
            self.grants.reserve(grant)
        return QuestionPermit(_GATE, server, question, given, caller, judgement, wish, grant)

    def _question_wish(
        self, server: str, question: Question, name: str, given: Raw, caller: Caller, judgement: Judgement
    ) -> Wish:
        return Wish(
            caller=caller.identity,
            session=caller.session,
            server=server,
            kind=question.value,
            name=name,
            fingerprint="",
            launch=self.pins.launch(server),
            rule=judgement.rule,
            digest=_digest(given),
            arguments=decoded(given),
        )

    @contextmanager
    def put(self, permit: QuestionPermit) -> Iterator[Trace]:
        """The question of the permit goes to the client within the block; see `dispatch`."""
        server, question = permit.server, permit.question
        if permit.wish is not None:
            wish = self._present(permit.wish)
            if permit.grant is None or wish is None or not self.grants.use(permit.grant, wish):
                raise changed(server, question.value, question.value)
        word, launch = question.value, self.pins.launch(server)
        deed = Deed(server, word, word, "", permit.caller, permit.given, permit.judgement, "", launch, permit.grant)
        with self.ledger.sent(deed) as trace:
            yield trace

    async def roots(self, server: str, answer: Raw, caller: Caller) -> Raw:
        """A client's answer to a question for its roots, with those that the server may be told.

        Raises:
            BrokeProtocol: it is no such answer, or holds more than MAX_ROOTS.
        """
        rules = self._rules.get(server)
        alike = rules is not None and not rules.tells_roots_apart
        if alike and self._root_verdict(server, "") is Verdict.ALLOW:
            return answer
        try:
            found = members(answer)
            listed = items(found["roots"])
            if len(listed) > MAX_ROOTS:
                raise BrokeProtocol(server, f"the client's answer holds more than {MAX_ROOTS} roots")
            roots = [(string(members(each)["uri"]), each) for each in listed]
        except (ValueError, KeyError):
            raise BrokeProtocol(server, "the client's answer holds no roots") from None
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
        return Verdict.DENY if rules is None else rules.question(Question.ROOTS, uri).verdict

    async def _roots_allowed(self, server: str, roots: list[Raw], caller: Caller) -> bool:
        """Whether a person lets the server know these."""
        given = encode(roots)
        judgement = next(
            judgement
            for root in roots
            if (judgement := self.judge_question(server, Question.ROOTS, string(members(root)["uri"]))).verdict
            is Verdict.ASK
        )
        wish = self._question_wish(server, Question.ROOTS, Question.ROOTS.value, given, caller, judgement)
        grant = self.grants.find(wish)
        try:
            if grant is None and not _may_be_agreed(given):
                raise _too_long(wish, given)
            if grant is None:
                about = About(self._title(server), self.trust(server), bytes(given))
                grant = await self.desk.ask(wish, about, None)
            with self.put(
                QuestionPermit(_GATE, server, Question.ROOTS, given, caller, judgement, wish, grant)
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
        if text is None or self.pins.standing(server, INSTRUCTIONS, "") is not Standing.APPROVED:
            return None
        return self.tidy_text(server, text)

    def cleans(self, server: str) -> bool:
        """Whether what the server says reaches models and terminals without what cannot be seen."""
        return self.trust(server) is Trust.UNTRUSTED

    def tidy(self, server: str, raw: Raw) -> Raw:
        """A short text of a server as it may reach a model or a terminal."""
        return Raw(clean_json(bytes(raw))) if self.cleans(server) else raw

    def tidy_text(self, server: str, text: str) -> str:
        """The same for a text that is not JSON."""
        return clean(text, limit=MAX_TEXT) if self.cleans(server) else text

    # Within

    def _title(self, server: str) -> str:
        spec = self._specs.get(server)
        return server if spec is None or spec.title is None else spec.title

    def _claimed(self, server: str, kind: Kind, name: str) -> tuple[str, ...]:
        return self._claims.get(server, {}).get(name, ()) if kind is Kind.TOOL else ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class QuestionPermit(_MadeByGate):
    """Proof that this question of a server may be put to this client."""

    server: str
    question: Question
    given: Raw
    caller: Caller
    judgement: Judgement
    wish: Wish | None = None
    grant: Grant | None = None


def _rules(spec: ServerSpec, former: Rules | None) -> Rules:
    """The rules of a server: the former ones, with the verdicts that they remember, if they are the same."""
    if former is not None and former.are_of(spec.consent, spec.trust):
        return former
    return Rules(spec.consent, spec.trust)


_KINDS = {kind.value: kind for kind in Kind}
NOT_ALLOWED = "the configuration does not let it ask for this"


def launch_text(server: str) -> str:
    """Why a server whose program is another one is not started."""
    return (
        f"the command of {server} stands for another program than the one that was approved, so it is not started. "
        f"A person can approve it on the console (`colonnade console`) or with `colonnade pins`."
    )


class _Spellings:
    """The URIs that each of these resources of one server may be known by.

    The results for `former` are taken over. Of more than MAX_HELD_SPELLINGS that are not plain, the spellings of
    the rest stay unknown, and so every URI may be one of them.
    """

    def __init__(self, names: Iterable[str], former: _Spellings | None) -> None:
        known = {} if former is None else former._identities
        self._identities: dict[str, set[str]] = {}
        self._by_text: dict[str, str] = {}
        self._any: str | None = None
        several = 0
        for name in names:
            plain = is_plain(name)
            several += not plain
            if several > MAX_HELD_SPELLINGS and not plain:
                self._any = self._any or name
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
            return next(iter(self._by_text.values()), self._any)  # it may be any of them
        return found or self._any


def _identities(uri: str) -> set[str]:
    """What a server may know one of its resources by. Only for a file are query and fragment no part of that."""
    if len(uri) > MAX_LENGTH:
        return {uri}
    try:
        variants = uri_variants(uri)
    except TooManyVariants:
        return {uri}
    return {each.text for each in variants if not each.cut_at or each.text.startswith("file:")}


def _given(exchange: Exchange) -> Raw:
    """The arguments of a request, as they will be sent; an empty object where it has none."""
    row = TARGETED.get(exchange.request.method)
    given = None if row is None or row.arguments is None else exchange.params.get(row.arguments)
    return EMPTY_OBJECT if given is None else given


def _may_be_agreed(given: Raw) -> bool:
    """Whether a person can read what would be sent, and so agree to it."""
    return len(given) <= LONGEST_AGREED


def _digest(given: Raw) -> str:
    """Of the arguments that a grant may be bound to. None is bound to longer ones, so theirs is that of no grant."""
    return arguments_digest(bytes(given)) if _may_be_agreed(given) else ""


def _too_long(wish: Wish, given: Raw) -> Forbidden:
    text = (
        f"{described(wish)} needs a person's consent, and its {len(given)} bytes are more than a person can "
        f"agree to ({LONGEST_AGREED}). Send less, or have the rule changed."
    )
    return Forbidden(wish.server, text)


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
