"""Definitions: which of what servers offer may be seen and used, by the rules and by what people approved.

A definition that is not as it was approved is held until a person approves it; what the rules deny does not exist for
whoever asks. What was approved is in `pins`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import final

import trio
from msgspec import Raw

from config import ServerSpec, Trust
from config.globs import MAX_LENGTH
from host.errors import StaleApproval
from host.jsonrpc.raw import encode, members
from host.names import matching_templates
from host.policy.decision_log import ChangeSummary, DecisionLog, summarize
from host.policy.fingerprint import Launch
from host.policy.pins import INSTRUCTIONS, LAUNCH, Change, Held, Pins, PinStatus, PreparedPins
from host.policy.policies import Policies
from host.policy.rules import Rules
from host.policy.server_request_checks import MAX_TEXT
from host.policy.uris import TooManyVariants, is_plain, uri_variants
from host.protocol.links import PAGE, without_page
from host.protocol.methods import Kind
from host.sanitize import is_light, sanitize_json
from host.slices import Steps, in_worker, run_inline

MAX_HELD_URIS = 500
"""Resources of a server that are held back, and are no plain URIs, of which all spellings are known."""
MAX_HELD_MATCHES = 10_000
"""Templates held back, times the readings of a URI, that are tried on one another."""
KINDS = {kind.value: kind for kind in Kind}
"""The kinds of entries by their word; instructions and launches are definitions, too, and no entries."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PreparedListing:
    """A list of one server, held against what was approved, and the policy under which that was done: see
    `Definitions.prepare` and `Definitions.commit`."""

    server: str
    kind: Kind
    spec: ServerSpec | None
    rules: Rules | None
    launches: bool
    claims: Mapping[str, tuple[str, ...]]
    prepared: PreparedPins
    summary: ChangeSummary | None
    """The summary of changes that are too many for a record each."""


class Definitions:
    """Those of all servers of one configuration.

    Attributes:
        on_visibility_changed: called with the servers whose entries may be seen otherwise than before.
    """

    def __init__(self, policies: Policies, pins: Pins, decision_log: DecisionLog) -> None:
        self.pins = pins
        self.on_visibility_changed: Callable[[Iterable[str]], None] = lambda servers: None
        self._policies = policies
        self._decision_log = decision_log
        self._templates: dict[str, tuple[str, ...]] = {}
        self._claims: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._spellings: dict[str, tuple[int, _HeldUris]] = {}
        """Spellings of the resources of each server that are held back: as of an epoch."""
        self._held_templates: dict[str, tuple[int, list[str]]] = {}
        """The templates of each server that are held back: as of an epoch."""
        self._invalidated = trio.lowlevel.ParkingLot()

    # What servers offer

    def prepare(self, server: str, kind: Kind, offered: Mapping[str, bytes]) -> Steps[PreparedListing]:
        """Hold all that the server lists now against what was approved. Nothing changes before `commit`."""
        spec, rules, launches = self._policies.spec(server), self._policies.rules_of(server), self.may_launch(server)
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
        """Make a prepared list effective; the catalog must be told without a checkpoint between. False if it was
        prepared under another configuration, launch or decision than holds now: then it must be prepared again."""
        server, kind = prepared.server, prepared.kind
        ground = self._policies.spec(server), self._policies.rules_of(server), self.may_launch(server)
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
        if kind is Kind.TOOL and not self._policies.shows_apps(server):
            definition = bytes(without_page(Raw(definition)))
        if not self._policies.sanitizes(server):
            return definition
        if is_light(definition):
            return sanitize_json(definition, limit=MAX_TEXT)
        cleaned: bytes = yield from in_worker(partial(sanitize_json, limit=MAX_TEXT), definition)
        return cleaned

    def observe_instructions(self, server: str, text: str | None) -> Steps[None]:
        """This is what the server says of itself now."""
        offered = {} if text is None else {"": bytes(encode(text))}
        self._record_changes((yield from self.pins.observe(server, INSTRUCTIONS, offered)))

    def observe_launch(self, server: str, launch: Launch) -> Steps[bool]:
        """This is what is to be started or reached now; whether it may be."""
        if self._record_changes((yield from self.pins.observe_launch(server, launch))):
            self.on_visibility_changed((server,))
        return self.may_launch(server)

    def may_launch(self, server: str) -> bool:
        """Whether the program that the server's command stands for is the one that it stood for."""
        return self.pins.status(server, LAUNCH, "") in (PinStatus.APPROVED, PinStatus.UNKNOWN)

    async def wait_until_launchable(self, server: str) -> None:
        """Wait for a person to approve of what the server's command stands for now."""
        while not self.may_launch(server):
            await self._invalidated.park()

    def _record_changes(self, changes: list[Change], summary: ChangeSummary | None = None) -> bool:
        if summary is not None:
            self._decision_log.record_change_summary(summary, self._change_outcome(summary.first_change))
        else:
            for change in changes:
                self._decision_log.record_change(change, self._change_outcome(change))
        if changes:
            self._policies.begin_epoch()
        return bool(changes)

    def _change_outcome(self, change: Change) -> str:
        """The outcome of a change; see `DefinitionChanged`."""
        if change.status is not PinStatus.APPROVED:
            return "held"
        if self._policies.trust(change.server) is Trust.TRUSTED:
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
        if not self._policies.has_server(held.server):
            return False
        return held.kind not in KINDS or self._policies.rules(held.server).is_visible(KINDS[held.kind], held.name)

    def approve(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> Steps[None]:
        """Approve what a server offers, which must be what was shown. It may be used once that is stored.

        Raises:
            StaleDecision: it is not.
            AuditUnavailable, StateError: it cannot be written down, so it is not approved.
        """
        yield from self.approve_all(server, [(kind, name, fingerprint)], by)

    def approve_all(self, server: str, items: Sequence[tuple[str, str, str]], by: str) -> Steps[None]:
        """All of these (kind, name, fingerprint), or none; raises as `approve` does."""
        for kind, name, fingerprint in items:
            self._decision_log.record_definition_decision("approve", server, kind, name, fingerprint, by)
        yield from self.pins.approve_all(server, items, by)
        for kind, name, _ in items:
            self._decision_log.announce_definition_decision("approve", server, kind, name, by)
        self.invalidate((server,))

    def reject(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> Steps[None]:
        """Reject the definition: it stays held, and counts as looked at. That holds at once, whether it can be stored
        or not. Raises as `approve` does."""
        self._decision_log.record_definition_decision("reject", server, kind, name, fingerprint, by)
        storing = self.pins.reject(server, kind, name, fingerprint)
        self.invalidate((server,))
        yield from storing
        self._decision_log.announce_definition_decision("reject", server, kind, name, by)
        self.invalidate((server,))

    def revoke(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> Steps[None]:
        """Withdraw the approval: the definition is held until it is approved anew. That holds at once, whether it can
        be stored or not. Raises as `approve` does."""
        self._decision_log.record_definition_decision("unapprove", server, kind, name, fingerprint, by)
        storing = self.pins.revoke(server, kind, name)
        self.invalidate((server,))
        yield from storing
        self._decision_log.announce_definition_decision("unapprove", server, kind, name, by)
        self.invalidate((server,))

    def invalidate(self, servers: Iterable[str]) -> None:
        """Tell that the visible definitions of these servers have changed: by a decision, here or in another process,
        or by other rules."""
        self._policies.begin_epoch()
        self._invalidated.unpark_all()
        self.on_visibility_changed(servers)

    def pin_status(self, server: str, kind: Kind, name: str) -> PinStatus:
        """How the definition stands that an entry has; for a URI that no list names, that of a template which makes
        it."""
        return self.pins.status(server, *self._pinned_item(server, kind, name))

    def fingerprint(self, server: str, kind: Kind, name: str) -> str:
        """The fingerprint of the definition of an entry; empty if the entry has none."""
        return self.pins.fingerprint(server, *self._pinned_item(server, kind, name)) or ""

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
        if epoch != self._policies.epoch:
            templates = self._templates.get(server, ())
            held = [each for each in templates if self.pins.status(server, "template", each) is not PinStatus.APPROVED]
            self._held_templates[server] = self._policies.epoch, held
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
        if spellings is None or epoch != self._policies.epoch:
            spellings = _HeldUris(self.pins.held_names(server, Kind.RESOURCE.value), spellings)
            self._spellings[server] = self._policies.epoch, spellings
        return spellings.find(uri)

    def _is_usable(self, server: str, status: PinStatus) -> bool:
        """Whether what stands so may be reached. What no list ever named has no definition that could be approved: of
        an untrusted server it does not exist."""
        open_unknown = self._policies.trust(server) is not Trust.UNTRUSTED
        return status is PinStatus.APPROVED or (status is PinStatus.UNKNOWN and open_unknown)

    def is_visible(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed."""
        known = self._may_be_known(server, kind, name)
        is_open = self._is_usable(server, self.pin_status(server, kind, name))
        return self.may_launch(server) and known and is_open

    def is_visible_cached(self, server: str, kind: Kind, name: str) -> bool:
        """The same for whoever makes whole lists; see `Rules.is_visible_cached`."""
        known = self._may_be_known(server, kind, name, listing=True)
        return known and self.may_launch(server) and self._is_usable(server, self.pin_status(server, kind, name))

    def is_known(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be known to exist: also one that was approved and is held back now."""
        known = self._may_be_known(server, kind, name)
        status = self._requested_status(server, kind, name)
        is_open = self._is_usable(server, status)
        return known and (status is PinStatus.CHANGED or is_open)

    def _may_be_known(self, server: str, kind: Kind, name: str, *, listing: bool = False) -> bool:
        if not self._policies.has_server(server):
            return False
        if (
            kind in (Kind.RESOURCE, Kind.TEMPLATE)
            and name[: len(PAGE)].lower() == PAGE
            and not self._policies.shows_apps(server)
        ):
            return False
        rules = self._policies.rules(server)
        return rules.is_visible_cached(kind, name) if listing else rules.is_visible(kind, name)

    def check_usable(self, server: str, kind: Kind, name: str, exists: bool) -> bool:
        """Whether the entry may be known to exist.

        Raises:
            StaleApproval: it may, but is held back.
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
                f"`colonnade definitions`."
            )
            raise StaleApproval(server, text)
        if not launches:
            raise StaleApproval(server, launch_held_message(server))
        return is_open

    def instructions(self, server: str, text: str | None) -> str | None:
        """The server's instructions as a model may read them, which takes them for those of its user; None if it may
        not."""
        if text is None or self.pins.status(server, INSTRUCTIONS, "") is not PinStatus.APPROVED:
            return None
        return self._policies.sanitize_text(server, text)

    def claims(self, server: str, kind: Kind, name: str) -> tuple[str, ...]:
        return self._claims.get(server, {}).get(name, ()) if kind is Kind.TOOL else ()


def launch_held_message(server: str) -> str:
    """Why a server whose program is another one is not started."""
    return (
        f"the command of {server} stands for another program than the one that was approved, so it is not started. "
        f"A person can approve it on the console (`colonnade console`) or with `colonnade definitions`."
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
    """The forms of a URI by which a server may know a resource. Query and fragment belong to them, except for files."""
    if len(uri) > MAX_LENGTH:
        return {uri}
    try:
        variants = uri_variants(uri)
    except TooManyVariants:
        return {uri}
    return {each.text for each in variants if not each.cut_at or each.text.startswith("file:")}


def _claims(definition: bytes) -> tuple[str, ...]:
    """The claims of a tool about itself under `annotations`, one line each."""
    try:
        found = members(members(definition)["annotations"])
    except (KeyError, ValueError):
        return ()
    return tuple(f"{name}: {bytes(each).decode()}"[:200] for name, each in found.items())
