"""Definitions of entries: which ones clients may see and use, by the rules and by approvals.

A definition that differs from the approved one is held until a person approves it. An entry that the rules deny looks
like a missing one. The approvals are in `pins`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import is_
from typing import final

import trio
from msgspec import Raw, Struct

from config import ServerSpec, Trust
from config.globs import MAX_LENGTH
from host.attempts import Reason
from host.errors import StaleApproval
from host.jsonrpc.raw import encode
from host.names import matching_templates
from host.policy.claims import NO_CLAIMS, ToolClaims, claims_in
from host.policy.decision_log import ChangeSummary, DecisionLog, summarize
from host.policy.file_names import loosened_pattern
from host.policy.fingerprint import Launch, not_as_approved
from host.policy.judge import Judge
from host.policy.pin_rules import PinStatus, launch_in
from host.policy.pins import Change, HeldItem, ListedItem, Pins, PreparedPins
from host.policy.policies import Policies
from host.policy.rules import RuleDecision, Rules
from host.policy.server_request_checks import MAX_TEXT
from host.policy.uris import TooManyVariants, is_plain, loosened_forms, uri_variants
from host.policy.word_order import order_remedy
from host.protocol.links import PAGE, without_page
from host.protocol.methods import RESOURCE, Kind
from host.protocol.versions import Era
from host.sanitize import is_light, sanitize_json
from host.slices import in_worker, pause
from host.source import Aspect, AspectRef, EntryRef, Source, launch_ref
from host.storage.store import StateError
from host.subject import Item

MAX_HELD_URIS = 500
"""Held resources of a server with several spellings; if there are more, every unlisted URI counts as held."""
MAX_HELD_MATCHES = 10_000
"""Held templates, times the variants of a URI, that are matched against each other."""
KINDS = {kind.value: kind for kind in Kind}
"""Kinds of entries by their word. Instructions and launches have definitions, too, but are no entries."""


# For speed; see `RESOURCE`.
_APPROVED, _CHANGED, _UNKNOWN = PinStatus.APPROVED, PinStatus.CHANGED, PinStatus.UNKNOWN
_LAUNCHABLE = (PinStatus.APPROVED, PinStatus.UNKNOWN)
_TOOL = Kind.TOOL
_WITH_URIS = (Kind.RESOURCE, Kind.TEMPLATE)
_UNTRUSTED = Trust.UNTRUSTED


@final
class PreparedListing(Struct, frozen=True, eq=False):
    """A list of one source compared with the approvals, and the policy state of the comparison: see
    `Definitions.prepare` and `Definitions.commit`."""

    source: Source
    kind: Kind
    spec: ServerSpec | None
    rules: Rules | None
    launches: bool
    claims: Mapping[str, ToolClaims]
    prepared: PreparedPins
    summary: ChangeSummary | None
    """Summary of the changes, if they are too many for a record each."""


class Definitions:
    """The definitions of all servers of one configuration.

    Attributes:
        taken_over: the revision of the stored definitions up to which nothing former counts here: whoever decides has
            been told of all that changed. Set by whoever looks at what other processes store.
    """

    def __init__(self, policies: Policies, pins: Pins, decision_log: DecisionLog) -> None:
        self.pins = pins
        self.taken_over = pins.revision
        self._readers: list[Callable[[Collection[str]], None]] = []
        self._policies = policies
        self._decision_log = decision_log
        self._templates: dict[Source, tuple[str, ...]] = {}
        self._claims: dict[Source, Mapping[str, ToolClaims]] = {}
        """The claims of each source's tools; without those that claim nothing."""
        self._spellings: dict[Source, tuple[int, _HeldUris]] = {}
        """Spellings of each source's held resources, and the count of changes of the pins then."""
        self._held_templates: dict[Source, tuple[int, list[str]]] = {}
        """Held templates of each source, and the count of changes of the pins then."""
        self._invalidated = trio.lowlevel.ParkingLot()

    # What servers offer

    async def prepare(
        self, source: Source, kind: Kind, offered: Mapping[str, bytes], *, remembered: bool = False
    ) -> PreparedListing:
        """Compare a source's complete list with the approvals. Nothing changes before `commit`. `remembered`: see
        `Pins.prepare`."""
        server = source.server
        spec, rules, launches = self._policies.spec(server), self._policies.rules_of(server), self.may_launch(server)
        claims: dict[str, ToolClaims] = {}
        reading = await self.pins.prepare(source, kind, offered, remembered=remembered)
        if kind is Kind.TOOL:
            # The offers count that a person is shown and approves: remembered ones may be older.
            for name, offer in reading.offers.items():
                await pause()
                if (found := claims_in(offer.raw)) is not NO_CLAIMS:
                    claims[name] = found
        summary = await summarize(reading.changes)
        return PreparedListing(source, kind, spec, rules, launches, claims, reading, summary)

    def would_be_visible(self, prepared: PreparedListing, ref: EntryRef, caller: str) -> bool:
        """Whether the offered entry would be listed for the caller after `commit`."""
        claims = None
        if ref.kind is Kind.TOOL and prepared.prepared.is_vouched(ref.name):
            claims = prepared.claims.get(ref.name, NO_CLAIMS)
        known = prepared.launches and self._may_be_known(ref, claims, caller, listing=True)
        return known and self._is_usable(ref.server, prepared.prepared.status(ref.name))

    def commit(self, prepared: PreparedListing) -> bool:
        """Put a prepared list into effect; the caller must update the catalog without a checkpoint in between. Returns
        False if configuration, launch or a decision changed since `prepare`: the list must be prepared again."""
        source, kind, server = prepared.source, prepared.kind, prepared.source.server
        ground = self._policies.spec(server), self._policies.rules_of(server), self.may_launch(server)
        if not all(map(is_, ground, (prepared.spec, prepared.rules, prepared.launches))):
            return False
        changes = self.pins.commit(prepared.prepared)
        if changes is None:
            return False
        if kind is Kind.TEMPLATE:
            self._templates[source] = tuple(prepared.prepared.offered)
        if kind is Kind.TOOL:
            self._claims[source] = prepared.claims
        if not self._record_changes(changes, prepared.summary) and prepared.prepared.has_additions:
            self._policies.begin_epoch()  # people may have been asked about an entry without a definition
        return True

    async def listed_definition(self, server: str, kind: Kind, definition: bytes) -> bytes:
        """A definition as clients may see it."""
        if kind is Kind.TOOL and not self._policies.shows_apps(server):
            definition = bytes(without_page(Raw(definition)))
        if not self._policies.sanitizes(server):
            return definition
        if is_light(definition):
            return sanitize_json(definition, limit=MAX_TEXT)
        return await in_worker(partial(sanitize_json, limit=MAX_TEXT), definition)

    async def observe_instructions(self, source: Source, text: str | None, *, remembered: bool = False) -> None:
        """Record the source's present instructions. `remembered`: see `Pins.prepare`."""
        offered = {} if text is None else {"": bytes(encode(text))}
        self._record_changes(await self.pins.observe(source, Aspect.INSTRUCTIONS, offered, remembered=remembered))

    async def observe_launch(self, server: str, launch: Launch, *, ran_before: bool = False) -> bool:
        """Record the program or URL that the server would be started from; return whether it may be started.

        `ran_before`: it is an untrusted program that runs unconfined as it did before such ones were confined.
        """
        if not ran_before:
            with suppress(StateError):  # tried again at the next start
                await self.pins.set_unconfined(server, None)
        if self._record_changes(await self.pins.observe_launch(server, launch)):
            self._notify((server,))
        return self.may_launch(server)

    async def choose_sandbox(self, server: str, *, confined: bool, by: str) -> None:
        """Store what a person chose about the sandbox of an untrusted program that was approved before such ones were
        confined. It takes effect with the settings (`host.policy.confinement`).

        Raises:
            AuditUnavailable, StateError: it cannot be recorded, so it does not take effect.
        """
        item, fingerprint = Item(server, Aspect.LAUNCH.value, ""), self.pins.launch(server)
        what = "confine" if confined else "unconfine"
        self._decision_log.record_definition_decision(what, item, fingerprint, by)
        await self.pins.set_unconfined(server, None if confined else True)
        self._decision_log.announce_definition_decision(what, item, by)

    def may_launch(self, server: str) -> bool:
        """Whether the command of the server still resolves to the approved program."""
        return self.pins.status(launch_ref(server)) in _LAUNCHABLE

    def why_held(self, server: str) -> str:
        """Why the server may not be started: the end of a sentence about its command."""
        if self.pins.problem is not None:  # what was approved is not known
            return "cannot be compared with what was approved, while what is stored cannot be read"
        return not_as_approved(self.launch(server))

    def launch(self, server: str) -> Launch:
        """The launch identity of the server as it was observed last; one of no program if it was not observed."""
        offered = self.pins.offered_definition(launch_ref(server))
        return Launch("") if offered is None else launch_in(offered)

    async def wait_until_launchable(self, server: str) -> None:
        """Wait until a person has approved the server's present program."""
        while not self.may_launch(server):
            await self._invalidated.park()

    def _record_changes(self, changes: list[Change], summary: ChangeSummary | None = None) -> bool:
        if changes:
            spec = self._policies.spec(changes[0].item.server)
            remedy = "" if spec is None else order_remedy(spec)
            self._decision_log.record_changes(changes, summary, self._change_outcome, remedy)
            self._policies.begin_epoch()
        return bool(changes)

    def _change_outcome(self, change: Change) -> str:
        """The outcome of a change; see `DefinitionChanged`."""
        if change.status is not PinStatus.APPROVED:
            return "reordered" if change.reordered else "held"
        if change.item.kind == Aspect.LAUNCH and self.launch(change.item.server).installed:
            return "installed"
        if self._policies.trust(change.item.server) is Trust.TRUSTED:
            return "accepted"
        return "edited" if change.item.kind == Aspect.LAUNCH else "returned"

    async def held(self) -> list[HeldItem]:
        """All held definitions of configured servers, without those that the rules deny anyway."""
        found: list[HeldItem] = []
        for each in self.pins.iter_held():
            await pause()
            if each is not None and self._needs_decision(each):
                found.append(each)
        return found

    async def listed(self, server: str) -> list[ListedItem]:
        """All definitions that a server offers, also those that the rules deny."""
        found: list[ListedItem] = []
        for each in self.pins.iter_listed(server):
            await pause()
            if each is not None:
                found.append(each)
        return found

    def _needs_decision(self, held: HeldItem) -> bool:
        server, kind = held.item.server, held.item.kind
        if not self._policies.has_server(server):
            return False
        return kind not in KINDS or self._policies.rules(server).may_be_visible(KINDS[kind], held.item.name)

    async def approve(self, item: Item, fingerprint: str, by: str) -> None:
        """Approve a definition by the fingerprint that was shown. It takes effect when it is stored.

        Raises:
            StaleDecision: the definition is not offered any more, or has another fingerprint.
            AuditUnavailable, StateError: the approval cannot be recorded, so it does not take effect.
        """
        await self.approve_all(item.server, [(item, fingerprint)], by)

    async def approve_all(self, server: str, shown: Sequence[tuple[Item, str]], by: str) -> None:
        """Approve all of these items of a server, each with the fingerprint that was shown, or none; raises as
        `approve` does."""
        for item, fingerprint in shown:
            self._decision_log.record_definition_decision("approve", item, fingerprint, by)
        await self.pins.approve_all(server, shown, by)
        for item, _ in shown:
            self._decision_log.announce_definition_decision("approve", item, by)
        self.invalidate((server,))

    async def reject(self, item: Item, fingerprint: str, by: str) -> None:
        """Reject the definition: it stays held, and counts as looked at. Takes effect at once, even if it cannot be
        stored. Raises as `approve` does."""
        self._decision_log.record_definition_decision("reject", item, fingerprint, by)
        await self.pins.reject(item, fingerprint, partial(self.invalidate, (item.server,)))
        self._decision_log.announce_definition_decision("reject", item, by)
        self.invalidate((item.server,))

    async def revoke(self, item: Item, fingerprint: str, by: str) -> None:
        """Withdraw the approval: the definition is held until it is approved again. Takes effect at once, even if it
        cannot be stored. Raises as `approve` does."""
        self._decision_log.record_definition_decision("unapprove", item, fingerprint, by)
        await self.pins.revoke(item, partial(self.invalidate, (item.server,)))
        self._decision_log.announce_definition_decision("unapprove", item, by)
        self.invalidate((item.server,))

    def invalidate(self, servers: Iterable[str]) -> None:
        """Report that the visible definitions of these servers have changed, by a decision in any process or by other
        rules."""
        self._policies.begin_epoch()
        self._invalidated.unpark_all()
        self._notify(tuple(servers))

    def subscribe(self, reader: Callable[[Collection[str]], None]) -> None:
        """`reader` is called with the servers whose visible entries may have changed, in the step of the change; it
        must not wait and must not raise."""
        self._readers.append(reader)

    def _notify(self, servers: Collection[str]) -> None:
        for reader in self._readers:
            reader(servers)

    def status(self, ref: EntryRef) -> PinStatus:
        """The status of an entry's definition. For a URI that is not listed, the status of the template that matches
        it."""
        return self.pins.status(self._pinned(ref))

    def approver(self, ref: EntryRef) -> str:
        """Who approved an entry's definition as it is offered; empty if nobody did."""
        return self.pins.approver(self._pinned(ref))

    def fingerprint(self, ref: EntryRef) -> str:
        """The fingerprint of an entry's definition; empty if it has none."""
        return self.pins.fingerprint(self._pinned(ref)) or ""

    def offered_definition(self, ref: EntryRef) -> bytes | None:
        """The definition of an entry as the server wrote it; None if it has none."""
        return self.pins.offered_definition(self._pinned(ref))

    def fingerprints(self, item: Item) -> set[str]:
        """The fingerprints of an entry's definitions, from all its sources."""
        return {self.fingerprint(ref) for ref in self._refs(item)} - {""}

    def ref_of(self, item: Item, fingerprint: str = "") -> EntryRef:
        """An entry of the server as it is offered now: with this definition, if some source offers that; without a
        session, if it is offered so."""
        offered = [ref for ref in self._refs(item) if self.fingerprint(ref)]
        offered = [ref for ref in offered if self.fingerprint(ref) == fingerprint] or offered
        return offered[-1] if offered else EntryRef(Source(item.server, Era.SESSION), KINDS[item.kind], item.name)

    def _refs(self, item: Item) -> list[EntryRef]:
        """An entry in the sources that may offer it, that of a session first."""
        kind = KINDS[item.kind]
        kinds = _WITH_URIS if kind is RESOURCE else (kind,)
        return [EntryRef(source, kind, item.name) for source in self.pins.sources(item.server, *kinds)]

    def _pinned(self, ref: EntryRef) -> EntryRef:
        """The entry whose pin counts for this one: its own, or for an unlisted URI that of its template."""
        if ref.kind is not RESOURCE or self.pins.status(ref) is not PinStatus.UNKNOWN:
            return ref
        return self._pinned_unlisted(ref)

    def _pinned_unlisted(self, ref: EntryRef) -> EntryRef:
        """`_pinned` for an unlisted URI."""
        source, uri = ref.source, ref.name
        held_spelling = self._held_spelling(source, uri)
        held_maker = self._held_template(source, uri)
        makers = matching_templates(self._templates.get(source, ()), (uri,)) or ()
        # None: several templates match. A held one among them decides; otherwise the URI counts as matched by none.
        made_by = [EntryRef(source, Kind.TEMPLATE, each) for each in makers]
        approved = [each for each in made_by if self.pins.status(each) is PinStatus.APPROVED]
        if held_spelling is not None:
            return EntryRef(source, RESOURCE, held_spelling)
        if made_by:
            return (approved or made_by)[0]
        return ref if held_maker is None else EntryRef(source, Kind.TEMPLATE, held_maker)

    def _requested_status(self, ref: EntryRef) -> PinStatus:
        """`status` for a requested entry. Looks at templates for listed resources too, so that response times do not
        differ."""
        own = self.pins.status(ref)
        if ref.kind is not RESOURCE:
            return own
        other = self.pins.status(self._pinned_unlisted(ref))
        return other if own is PinStatus.UNKNOWN else own

    def _held_template(self, source: Source, uri: str) -> str | None:
        """A held template that matches some variant of this URI."""
        changes, held = self._held_templates.get(source, (-1, []))
        if changes != self.pins.changes:
            templates = [EntryRef(source, Kind.TEMPLATE, each) for each in self._templates.get(source, ())]
            held = [each.name for each in templates if self.pins.status(each) is not PinStatus.APPROVED]
            self._held_templates[source] = self.pins.changes, held
        if not held:
            return None
        try:
            texts = [each.text for each in uri_variants(uri)] if len(uri) <= MAX_LENGTH else []
        except TooManyVariants:
            texts = []
        if not texts:
            return held[0]  # too many to match: any of them might
        if len(texts) * len(held) > MAX_HELD_MATCHES:
            return held[0]
        found = matching_templates(held, texts)
        if found is None or found:
            return held[0] if found is None else min(found)
        forms = [form for text in texts for form in loosened_forms(text)]
        if not forms:
            return None
        loose = {loosened_pattern(each): each for each in held}
        found = matching_templates(loose, forms)
        return held[0] if found is None else min(map(loose.__getitem__, found), default=None)

    def _held_spelling(self, source: Source, uri: str) -> str | None:
        """A held resource of which this unlisted URI may be another spelling."""
        changes, spellings = self._spellings.get(source, (-1, None))
        if spellings is None or changes != self.pins.changes:
            spellings = _HeldUris(self.pins.held_names(source, RESOURCE), spellings)
            self._spellings[source] = self.pins.changes, spellings
        return spellings.find(uri)

    def _is_usable(self, server: str, status: PinStatus) -> bool:
        """Whether an item of this status may be used. An entry that was never listed has no definition to approve; for
        an untrusted server it counts as missing."""
        open_unknown = self._policies.trust(server) is not _UNTRUSTED
        return status is _APPROVED or (status is _UNKNOWN and open_unknown)

    def is_visible(self, ref: EntryRef, caller: str) -> bool:
        """Whether the entry may be listed for the caller; `caller` as in `Rules.is_visible`."""
        known = self._may_be_known(ref, self.counting_claims(ref), caller)
        is_open = self._is_usable(ref.server, self.status(ref))
        return self.may_launch(ref.server) and known and is_open

    def is_visible_to_any(self, ref: EntryRef) -> bool:
        """Whether the entry may be listed for some caller."""
        return any(self.is_visible(ref, caller) for caller in ("", *self._policies.callers_of(ref.server)))

    def may_show(self, source: Source, kind: Kind, caller: str) -> bool:
        """Whether the caller may know that the source could list an entry of this kind, while its list is not known,
        and perhaps not its era either."""
        server = source.server
        if not self._policies.has_server(server) or not self.may_launch(server):
            return False
        rules = self._policies.rules(server)
        if self._policies.trust(server) is not Trust.UNTRUSTED:
            return rules.of_kind[kind].may_show(caller)
        refs = (EntryRef(source, kind, name) for name in self.pins.approved_names(source, kind))
        return any(rules.is_visible_cached(kind, ref.name, self.counting_claims(ref), caller) for ref in refs)

    def is_visible_cached(self, ref: EntryRef, caller: str) -> bool:
        """`is_visible` for whole lists; see `Rules.is_visible_cached`."""
        server = ref.source.server
        known = self._may_be_known(ref, self.counting_claims(ref), caller, listing=True)
        return known and self.may_launch(server) and self._is_usable(server, self.status(ref))

    def is_known(self, ref: EntryRef, caller: str) -> bool:
        """Whether the caller may know that the entry exists, which includes entries that were approved before and are
        held now."""
        known = self._may_be_known(ref, self.counting_claims(ref), caller)
        status = self._requested_status(ref)
        is_open = self._is_usable(ref.server, status)
        return known and (status is PinStatus.CHANGED or is_open)

    def _may_be_known(self, ref: EntryRef, claims: ToolClaims | None, caller: str, *, listing: bool = False) -> bool:
        server, kind, name = ref.source.server, ref.kind, ref.name
        rules = self._policies.rules_of(server)
        if rules is None:
            return False
        if kind in _WITH_URIS and name[: len(PAGE)].lower() == PAGE and not self._policies.shows_apps(server):
            return False
        if listing:
            return rules.is_visible_cached(kind, name, claims, caller)
        return rules.of_kind[kind].is_visible(name, claims, caller)

    def check_usable(self, ref: EntryRef, caller: str, *, exists: bool) -> bool:
        """Whether the caller may know that the entry exists.

        Raises:
            StaleApproval: it may, but its definition is held.
        """
        server = ref.server
        # All checks run in any case: the response time must not tell a denied entry from a missing one.
        known = self._may_be_known(ref, self.counting_claims(ref), caller)
        status = self._requested_status(ref)
        is_open = self._is_usable(ref.server, status)
        launches = self.may_launch(server)
        if not (known and exists):
            return False
        if status is _CHANGED:
            text = (
                f"the definition of this {ref.kind} of {server} is not the one that was approved, so it is held "
                f"back. A person can look at the change and approve it on the console (`colonnade console`) or with "
                f"`colonnade definitions`."
            )
            raise StaleApproval(server, text)
        if not launches:
            raise StaleApproval(server, launch_held_message(server, self.why_held(server)))
        return is_open

    def why_hidden(self, ref: EntryRef, caller: str, *, exists: bool) -> Reason:
        """The reason why a request of the caller for this entry is refused. All checks run in any case, as in
        `check_usable`."""
        known = self._may_be_known(ref, self.counting_claims(ref), caller)
        status = self._requested_status(ref)
        is_open = self._is_usable(ref.server, status)
        launches = self.may_launch(ref.server)
        if not exists:
            return Reason.MISSING
        if not known:
            return Reason.DENIED
        return Reason.MISSING if launches and (is_open or status is _UNKNOWN) else Reason.HELD

    def instructions(self, source: Source, text: str | None) -> str | None:
        """The source's instructions as a model may read them; None if they are held. A model treats instructions like
        the user's own."""
        if text is None or self.pins.status(AspectRef(source, Aspect.INSTRUCTIONS)) is not PinStatus.APPROVED:
            return None
        return self._policies.sanitize_text(source.server, text)

    def claims(self, ref: EntryRef) -> ToolClaims:
        """The claims of a tool about itself, as it is offered, whether they count or not."""
        return self._claims.get(ref.source, {}).get(ref.name, NO_CLAIMS) if ref.kind is Kind.TOOL else NO_CLAIMS

    def counting_claims(self, ref: EntryRef) -> ToolClaims | None:
        """The claims of a tool that count in rules: those of a definition that a person approved, or of a trusted
        server. None if none count, or no rule wants any."""
        return self.vouched_claims(ref) if ref.source.server in self._policies.wanting_claims else None

    def vouched_claims(self, ref: EntryRef) -> ToolClaims | None:
        """`counting_claims`, whether a rule wants any or not."""
        if ref.kind is not _TOOL or not self.pins.is_vouched(ref):
            return None
        if ref.source in self._claims:
            return self.claims(ref)
        # The server has not listed its tools in this process: what is approved is what it offered last.
        return claims_in(self.pins.approved_definition(ref) or b"")

    def evaluate(self, ref: EntryRef, arguments: object, caller: str, through: str = "") -> RuleDecision:
        """The decision of the rules on a request for the entry; `arguments` and `caller` as in `Rules.evaluate`.
        `through`: see `Exchange.through`."""
        return self.judge(ref, caller, through).decide(arguments)

    def judge(self, ref: EntryRef, caller: str, through: str = "") -> Judge:
        """The judge of calls of the entry; `caller` and `through` as in `evaluate`."""
        rules = self._policies.rules(ref.server)
        plain, paths = rules.of_kind[ref.kind].entry(ref.name, self.counting_claims(ref), caller)
        decide = plain
        if through:
            vouched = self.vouched_claims(ref)

            def decide(arguments: object) -> RuleDecision:
                return rules.narrow(plain(arguments), through, vouched)

        return Judge(decide, paths, self.offered_definition(ref) or b"")


def launch_held_message(server: str, why: str) -> str:
    """The message for a server that is not started. `why`: the end of a sentence about its command."""
    return (
        f"the command of {server} {why}, so it is not started. "
        f"A person can approve it on the console (`colonnade console`) or with `colonnade definitions`."
    )


class _HeldUris:
    """The URIs under which a server may know each of these held resources.

    Results for `former` are reused. If more than MAX_HELD_URIS are not plain, the spellings of the rest stay unknown,
    and every URI counts as one of them.
    """

    def __init__(self, names: Iterable[str], former: _HeldUris | None) -> None:
        known = {} if former is None else former._identities
        self._identities: dict[str, set[str]] = {}
        self._by_text: dict[str, str] = {}
        self._by_form: dict[str, str] = {}
        """The same for files, as a lax file system names them."""
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
            for text in found:
                self._by_form.update(dict.fromkeys(loosened_forms(text), name))

    def find(self, uri: str) -> str | None:
        """A held resource of which the URI may be another spelling."""
        if not self._by_text:
            return None
        try:
            texts = [each.text for each in uri_variants(uri)] if len(uri) <= MAX_LENGTH else []
        except TooManyVariants:
            texts = []
        # No generator here: it would take a further step for each text.
        found = min(filter(None, map(self._by_text.get, texts)), default=None)
        if found is None and self._by_form:
            forms = [form for text in texts for form in loosened_forms(text)]
            found = min(filter(None, map(self._by_form.get, forms)), default=None)
        if found is None and not texts:
            return next(iter(self._by_text.values()), self._unknown)  # any of them may be the one
        return found or self._unknown


def _identities(uri: str) -> set[str]:
    """The forms of a URI by which a server may know a resource. Query and fragment count, except for files."""
    if len(uri) > MAX_LENGTH:
        return {uri}
    try:
        variants = uri_variants(uri)
    except TooManyVariants:
        return {uri}
    return {each.text for each in variants if not each.cut_at or each.text.startswith("file:")}
