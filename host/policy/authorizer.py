"""Authorizes what the rules leave to a person: by a grant that is there already, or by asking.

A grant holds for an access request as it was confirmed: the same definition, the same program, the same rule. It is
looked at again when it is used, right before anything is sent.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import replace

from msgspec import Raw

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
from host.slices import Steps, run_inline

MAX_RENEWALS = 10
"""Times that a server may have a call sent again that a person has agreed to once."""
RENEWED_GRANT_LIFE = 3600.0
"""Seconds for which a request that its server did not finish may be sent again without another confirmation: as long as
the state that the client must bring back."""


class Authorizer:
    """For one configuration. When an epoch begins, it voids confirmations that are not what was asked any more."""

    def __init__(
        self, policies: Policies, definitions: Definitions, confirmations: ConfirmationQueue, decision_log: DecisionLog
    ) -> None:
        self.confirmations = confirmations
        self._policies = policies
        self._definitions = definitions
        self._decision_log = decision_log
        self._renewals: dict[str, int] = {}
        """How often the call of a grant has gone on already."""
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
        """A grant for this, reserved for it. If there is none, people are asked, and the client if there is one.
        `denied` is written down if it is too long for anybody to agree to.

        Raises:
            Forbidden: a person said no, or it is too long.
            Unconfirmed, TooManyRequests: nobody answered, or too much is to be answered.
            StaleApproval: it changed while a person was asked.
        """
        grant = self.grants.find(access)
        if grant is not None:
            self.grants.reserve(grant)
            return grant
        if not _is_confirmable(context.raw_arguments):
            if denied is not None:
                self._decision_log.record_denied(denied)
            raise _too_long_to_confirm(access, context.raw_arguments)
        return await self.confirmations.confirm(access, context, client)

    def spend(self, access: AccessRequest, grant: Grant | None) -> None:
        """Use the grant for this, right before it is sent.

        Raises:
            StaleApproval: it does not hold any more, or for another definition, program or rule.
        """
        present = self._current(access)
        if grant is None or present is None or not self.grants.use(grant, present):
            if grant is not None:
                self.grants.release(grant)
            raise stale_approval(access.server, access.kind, access.name)

    def renew_for_retry(self, access: AccessRequest, grant: Grant) -> None:
        """The server asked back instead of finishing: the caller will send the same request again, and it is the same
        call that a person has agreed to. Once for each such answer, and MAX_RENEWALS times in all."""
        if grant.scope is not Scope.ONCE:
            return
        renewals = self._renewals.pop(grant.id, 0) + 1
        if renewals > MAX_RENEWALS:
            return
        again = replace(grant, id=new_id(), expires=time.time() + RENEWED_GRANT_LIFE, retry=True)
        self._renewals[again.id] = renewals
        run_inline(self.grants.add(again))  # for one call: nothing is stored

    def client_can_confirm(self, caller: Caller) -> bool:
        """Whether the caller itself may be asked."""
        return Channel.CLIENT in self.confirmations.spec.answers and caller.abilities.form

    def why_unusable(self, grant: Grant) -> str:
        """Why a grant cannot be used now; empty if it can."""
        rules = self._policies.rules_of(grant.server)
        if rules is None:
            return "its server is not in the configuration any more"
        if not rules.has_rule(grant.rule, grant.kind):
            return "its rule is not in the configuration any more"
        launch = self._definitions.pins.launch(grant.server)
        if launch and grant.launch != launch:
            return "its server is not started as it was then"
        if grant.kind in KINDS:
            present = self._definitions.fingerprint(grant.server, KINDS[grant.kind], grant.name)
            if present and present != grant.fingerprint:
                return "the definition is not the one that it was given for"
        return self.grants.why_unusable(grant) or ""

    def revoke_grant(self, id: str, by: str) -> Steps[bool]:
        """Whether there was such a grant; there is none any more. Raises as `Grants.revoke` does."""
        if all(grant.id != id for grant in self.grants.all()):
            return False
        self._decision_log.record("revoke", grant=id, by=by)
        return (yield from self.grants.revoke(id))

    def revoke_unruled(self) -> None:
        """Take back every grant whose rule the configuration does not have (any more)."""
        for grant in self.grants.revoke_unless(self._is_ruled):
            self._decision_log.record("revoke", grant=grant.id, by="configuration", server=grant.server)

    def end_session(self, session: Hashable) -> None:
        """Take back what was allowed for this session only."""
        self.confirmations.end_session(session)

    def _is_ruled(self, grant: Grant) -> bool:
        rules = self._policies.rules_of(grant.server)
        return rules is not None and rules.has_rule(grant.rule, grant.kind)

    def _current(self, access: AccessRequest) -> AccessRequest | None:
        """The request as it would be now; None if there is nothing to be had any more."""
        if not self._policies.has_server(access.server):
            return None
        fingerprint = access.fingerprint
        if access.kind in KINDS:
            fingerprint = self._definitions.fingerprint(access.server, KINDS[access.kind], access.name)
        return replace(access, fingerprint=fingerprint, launch=self._definitions.pins.launch(access.server))

    def _still_applies(self, access: AccessRequest) -> bool:
        """Whether what was asked is still what it was, under the same rule."""
        if self._current(access) != access:
            return False
        rules = self._policies.rules(access.server)
        if access.kind in KINDS:
            kind = KINDS[access.kind]
            if not self._definitions.is_visible(access.server, kind, access.name):
                return False
            decision = rules.evaluate(kind, access.name, access.arguments)
        elif access.kind == ServerRequest.ROOTS.value:
            return rules.has_rule(access.rule, access.kind)
        else:
            request = ServerRequest(access.kind)
            decision = rules.evaluate_server_request(request, access.name if request is ServerRequest.URL else None)
        return decision.verdict is Verdict.ASK and decision.rule == access.rule


def digest_of(raw_arguments: Raw) -> str:
    """Digest of arguments, for grants that are bound to them. Empty for arguments too long to be confirmed: no grant is
    bound to those."""
    return arguments_digest(bytes(raw_arguments)) if _is_confirmable(raw_arguments) else ""


def _is_confirmable(raw_arguments: bytes | Raw) -> bool:
    """Whether a person can read what would be sent, and so agree to it."""
    return len(raw_arguments) <= MAX_CONFIRMABLE_BYTES


def _too_long_to_confirm(access: AccessRequest, raw_arguments: bytes) -> Forbidden:
    text = (
        f"{describe_access(access)} needs a person's consent, and its {len(raw_arguments)} bytes are more than "
        f"a person can agree to ({MAX_CONFIRMABLE_BYTES}). Send less, or have the rule changed."
    )
    return Forbidden(access.server, text)
