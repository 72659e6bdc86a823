"""Authorization of access requests for which a rule asks for a person's confirmation: by a stored grant, or by a new
confirmation.

A grant holds for the access request that was confirmed: the same definition, program and rule. It is checked again when
it is used, immediately before the request is sent.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Raw, structs
from msgspec.structs import replace

from config import Channel, Verdict
from host.errors import Forbidden
from host.exchange import Caller, ClientHandle
from host.policy.confirmations import (
    MAX_CONFIRMABLE_BYTES,
    ConfirmationContext,
    ConfirmationQueue,
    describe_access,
    stale_approval,
)
from host.policy.decision_log import AuditRecord, DecisionLog
from host.policy.definitions import KINDS, Definitions
from host.policy.fingerprint import arguments_digest
from host.policy.grants import AccessRequest, Grant, Grants, Scope, new_id
from host.policy.policies import Policies
from host.protocol.server_requests import ServerRequest

MAX_RENEWALS = 10
"""Times that a call which a person confirmed once may be sent again because its server needs input."""
RENEWED_GRANT_LIFE = 3600.0
"""Seconds for which a call whose server needs input may be repeated without another confirmation: as long as the
request state that the client must return."""


class Authorizer:
    """Authorizes the access requests of one configuration. At the start of an epoch it voids the confirmations that no
    longer apply."""

    def __init__(
        self, policies: Policies, definitions: Definitions, confirmations: ConfirmationQueue, decision_log: DecisionLog
    ) -> None:
        self.confirmations = confirmations
        self._policies = policies
        self._definitions = definitions
        self._decision_log = decision_log
        self._renewals: dict[str, int] = {}
        """By grant id, how often its call was renewed."""
        policies.on_epoch.append(lambda: confirmations.void(self._still_applies))

    @property
    def grants(self) -> Grants:
        return self.confirmations.grants

    async def authorize(
        self,
        access: AccessRequest,
        context: ConfirmationContext,
        client: ClientHandle | None,
        denied: AuditRecord | None = None,
    ) -> Grant:
        """A grant for this access request, reserved for it. If there is none, asks people and, if `client` is given,
        the client. `denied` is written to the audit if the request is too long to be confirmed.

        Raises:
            Forbidden: a person denied the request, or it is too long.
            Unconfirmed, TooManyRequests: no answer in time, or too many confirmations are pending.
            StaleApproval: the entry changed while a person was asked.
        """
        grant = self.grants.find(access)
        if grant is not None:
            self.grants.reserve(grant)
            return grant
        if not _is_confirmable(context.raw_arguments, context.others):
            if denied is not None:
                self._decision_log.record_denied(denied)
            raise _too_long_to_confirm(access, len(context.raw_arguments) + len(context.others))
        fleet = self.confirmations.fleet
        if fleet is not None and await fleet.claim(access) and (grant := self.grants.find(access)) is not None:
            self.grants.reserve(grant)
            return grant
        return await self.confirmations.confirm(access, context, client)

    def spend(self, access: AccessRequest, grant: Grant | None) -> None:
        """Spend the grant on this access request, immediately before it is sent.

        Raises:
            StaleApproval: the grant is gone, or was given for another definition, program or rule.
        """
        present = self._current(access)
        if grant is None or present is None or not self.grants.use(grant, present):
            if grant is not None:
                self.grants.release(grant)
            raise stale_approval(access.subject.item)

    def renew(self, access: AccessRequest, grant: Grant, *, retry: bool) -> None:
        """Renew the grant of a call that is sent again, and is the same call that a person confirmed: once each time,
        MAX_RENEWALS times in all. `retry`: the caller repeats the request, with the input that its server needs."""
        if grant.scope is not Scope.ONCE:
            return
        renewals = self._renewals.pop(grant.id, 0) + 1
        if renewals > MAX_RENEWALS:
            return
        again = replace(grant, id=new_id(), expires=self.grants.now() + RENEWED_GRANT_LIFE, retry=retry)
        self._renewals[again.id] = renewals
        self.grants.keep(again)

    def client_can_confirm(self, caller: Caller) -> bool:
        """Whether the caller itself may be asked for confirmation."""
        return Channel.CLIENT in self.confirmations.spec.answers and caller.abilities.form

    def why_unusable(self, grant: Grant) -> str:
        """The reason why a grant cannot be used now; empty if it can."""
        subject, item = grant.subject, grant.subject.item
        rules = self._policies.rules_of(item.server)
        if rules is None:
            return "its server is not in the configuration any more"
        if not rules.has_rule(subject.rule, item.kind):
            return "its rule is not in the configuration any more"
        launch = self._definitions.pins.launch(item.server)
        if launch and subject.launch != launch:
            return "its server is not started as it was then"
        if item.kind in KINDS:
            present = self._definitions.fingerprints(item)
            if present and subject.fingerprint not in present:
                return "the definition is not the one that it was given for"
        if any(each.id == grant.id for each in self.confirmations.unclaimed()):
            return ""
        return self.grants.why_unusable(grant) or ""

    def all_grants(self) -> list[Grant]:
        """All grants, with the answers of a fleet that wait for the next call."""
        return [*self.grants.all(), *self.confirmations.unclaimed()]

    async def revoke_grant(self, id: str, by: str) -> bool:
        """Revoke a grant; return whether it existed. Raises as `Grants.revoke` does."""
        fleet = self.confirmations.fleet
        if fleet is not None and any(grant.id == id for grant in self.confirmations.unclaimed()):
            self._decision_log.record("revoke", grant=id, by=by)
            return await fleet.withdraw(id)
        if all(grant.id != id for grant in self.grants.all()):
            return False
        self._decision_log.record("revoke", grant=id, by=by)
        return await self.grants.revoke(id)

    def revoke_unruled(self) -> None:
        """Revoke every grant whose rule the configuration no longer has."""
        for grant in self.grants.revoke_unless(self._is_ruled):
            self._decision_log.record("revoke", grant=grant.id, by="configuration", server=grant.subject.item.server)

    def end_session(self, session: Hashable) -> None:
        """Revoke the grants and confirmations of this session."""
        self.confirmations.end_session(session)

    def _is_ruled(self, grant: Grant) -> bool:
        item = grant.subject.item
        rules = self._policies.rules_of(item.server)
        return rules is not None and rules.has_rule(grant.subject.rule, item.kind)

    def _current(self, access: AccessRequest) -> AccessRequest | None:
        """The access request with today's definition, launch and rule; None if the entry cannot be used any more."""
        subject = access.subject
        server, fingerprint = subject.item.server, subject.fingerprint
        if not self._policies.has_server(server):
            return None
        if access.ref is not None:
            fingerprint = self._definitions.fingerprint(access.ref)
        launch = self._definitions.pins.launch(server)
        return replace(access, subject=structs.replace(subject, fingerprint=fingerprint, launch=launch))

    def _still_applies(self, access: AccessRequest) -> bool:
        """Whether the access request is unchanged, and still asked for by the same rule."""
        if self._current(access) != access:
            return False
        item, rule = access.subject.item, access.subject.rule
        rules = self._policies.rules(item.server)
        caller = self._policies.caller_names.get(access.subject.caller, "")
        if access.ref is not None:
            if not self._definitions.is_visible(access.ref, caller):
                return False
            decision = self._definitions.evaluate(access.ref, access.arguments, caller, access.through)
        elif item.kind == ServerRequest.ROOTS.value:
            return rules.has_rule(rule, item.kind)
        else:
            request = ServerRequest(item.kind)
            uri = item.name if request is ServerRequest.URL else None
            decision = rules.evaluate_server_request(request, uri, caller)
        return decision.verdict is Verdict.ASK and decision.rule == rule


def digest_of(raw_arguments: Raw, others: bytes = b"") -> str:
    """Digest of arguments and of the members that are sent beside them, to which grants are bound. Empty for those that
    are too long to be confirmed: no grant is bound to them."""
    return arguments_digest(bytes(raw_arguments), others) if _is_confirmable(raw_arguments, others) else ""


def _is_confirmable(raw_arguments: bytes | Raw, others: bytes) -> bool:
    """Whether all that is sent is short enough for a person to read before confirming it."""
    return len(raw_arguments) + len(others) <= MAX_CONFIRMABLE_BYTES


def _too_long_to_confirm(access: AccessRequest, size: int) -> Forbidden:
    text = (
        f"{describe_access(access)} needs a person's consent, and its {size} bytes are more than "
        f"a person can agree to ({MAX_CONFIRMABLE_BYTES}). Send less, or have the rule changed."
    )
    return Forbidden(access.subject.item.server, text)
