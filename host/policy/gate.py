"""The gate on the way of every call: it alone admits requests to servers.

    admit     before anything is begun: may this exchange reach this entry? Waits for a person if need be.
    dispatch  at the moment it is sent: does all of that still hold? Then it is written down, and goes.

`policies` has what is configured, `definitions` what is offered and approved, `authorizer` the grants and the people
who give them, `server_requests` the way back. They know nothing of the gate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from msgspec import Raw

from config import ServerSpec, Trust, Verdict
from host.errors import Forbidden
from host.exchange import Caller, Exchange, NoClient
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import EMPTY_OBJECT
from host.policy.authorizer import Authorizer, digest_of
from host.policy.conditions import decode_arguments
from host.policy.confirmations import ConfirmationContext, ConfirmationQueue, stale_approval
from host.policy.decision_log import AuditRecord, DecisionLog, Trace
from host.policy.definitions import Definitions
from host.policy.grants import AccessRequest, Grant, Scope
from host.policy.permits import ISSUER, CallPermit
from host.policy.pins import Pins
from host.policy.policies import Policies
from host.policy.rules import RuleDecision
from host.policy.server_requests import ServerRequests
from host.protocol.methods import TARGETED, TOOLS_CALL, Kind
from host.sanitize import visible


class NotVisible(Exception):
    """What a request is for may not be known to its caller, or is not there: the answer is the same."""


class ConfirmationRequired(Forbidden):
    """A person would have to be asked, about something that nobody is asked about."""


class Gate:
    """Judges by the consent of each server. What it denies does not exist for whoever asks.

    Args:
        servers: by id; see `replace`.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerSpec],
        pins: Pins,
        confirmations: ConfirmationQueue,
        decision_log: DecisionLog,
    ) -> None:
        self.decision_log = decision_log
        self.policies = Policies(servers)
        self.definitions = Definitions(self.policies, pins, decision_log)
        self.authorizer = Authorizer(self.policies, self.definitions, confirmations, decision_log)
        self.server_requests = ServerRequests(self.policies, self.definitions, self.authorizer, decision_log)

    def replace(self, servers: Mapping[str, ServerSpec]) -> None:
        """Judge by these from now on, all at once. Questions and grants whose rule is not the same are void; what was
        dispatched keeps its verdict."""
        others = self.policies.replace(servers)
        self.definitions.pins.set_trust_levels({server: spec.trust for server, spec in servers.items()})
        self.authorizer.revoke_unruled()
        # All else that lists are judged by (pins, launch, templates) comes from elsewhere, and is told when it changes.
        self.definitions.invalidate(others)

    def forget(self, caller: Caller) -> None:
        """The caller is gone, and what was allowed for its session with it."""
        if caller.session is not None:
            self.authorizer.end_session(caller.session)

    @asynccontextmanager
    async def passage(
        self, exchange: Exchange, server: str, kind: Kind, name: str, *, exists: bool = True, confirm: bool = True
    ) -> AsyncIterator[CallPermit]:
        """The permit to reach the entry, for the block, which is one of the calls that the server may run at once. With
        `confirm` False, no person is asked.

        Raises:
            NotVisible: there is no such entry for this caller.
            TooManyRequests: see `Meter.slot`.
            ColonnadeError: as `admit` and `admit_without_confirmation` say.
        """
        if confirm:
            permit = await self.admit(exchange, server, kind, name, exists=exists)
        else:
            permit = self.admit_without_confirmation(exchange, server, kind, name, exists=exists)
        if permit is None:
            raise NotVisible
        try:
            async with self.policies.meter(server).slot():
                yield permit
        finally:
            self.release(permit)

    async def admit(
        self, exchange: Exchange, server: str, kind: Kind, name: str, *, exists: bool = True
    ) -> CallPermit | None:
        """The permit to reach the entry, or None: then the answer must be the one for what does not exist. Where the
        rules say ask, a person is waited for.

        With `exists` False there is no such entry, and never a permit: the same checks are made as for one that is
        denied, so that it takes as long.

        Raises:
            Forbidden: the rules deny these arguments, or a person did.
            Unconfirmed, TooManyRequests: nobody answered, or too much is to be answered.
            StaleApproval: the entry was approved and is held back, since it changed; or it changed while a person was
            asked.
        """
        if not self.definitions.check_usable(server, kind, name, exists):
            return None
        raw_arguments = _raw_arguments(exchange)
        epoch, decision = self.policies.epoch, self._evaluate(server, kind, name, raw_arguments)
        if decision.verdict is Verdict.DENY:
            self._deny_arguments(exchange, server, kind, name, decision)
            return None
        if decision.verdict is Verdict.ALLOW:
            return CallPermit(ISSUER, exchange, server, kind, name, decision, epoch)
        access = self._access_request(exchange, server, kind, name, raw_arguments, decision)
        context = ConfirmationContext(
            self.policies.title(server),
            self.policies.trust(server),
            bytes(raw_arguments),
            self.definitions.claims(server, kind, name),
        )
        client = exchange.client if self.authorizer.client_can_confirm(exchange.caller) else None
        denied = self._audit_record(exchange, server, kind, name, decision)
        grant = await self.authorizer.authorize(access, context, client, denied)
        return CallPermit(ISSUER, exchange, server, kind, name, decision, epoch, access, grant)

    def admit_without_confirmation(
        self, exchange: Exchange, server: str, kind: Kind, name: str, *, exists: bool = True
    ) -> CallPermit | None:
        """The same for what follows the verdict of an entry and is nothing to ask a person about.

        Raises:
            ConfirmationRequired: it would have to be asked about, and no grant for it is there.
            StaleApproval: the entry is held back.
        """
        if not self.definitions.check_usable(server, kind, name, exists):
            return None
        epoch, decision = self.policies.epoch, self._evaluate(server, kind, name, EMPTY_OBJECT)
        if decision.verdict is Verdict.DENY:
            return None
        access = grant = None
        if decision.verdict is Verdict.ASK:
            access = self._access_request(exchange, server, kind, name, EMPTY_OBJECT, decision)
            grant = self.authorizer.grants.find(access)
            if grant is None or grant.scope is Scope.ONCE:  # what was given for one call is not spent on this
                why = f"this {kind.value} of {server} needs a person's consent, which was not given"
                raise ConfirmationRequired(server, why)
        return CallPermit(ISSUER, exchange, server, kind, name, decision, epoch, access, grant)

    def release(self, permit: CallPermit) -> None:
        """Nothing more is sent with this permit. A grant for one call that was not spent can be used by the next."""
        if permit.grant is not None:
            self.authorizer.grants.release(permit.grant)

    def renew_for_retry(self, permit: CallPermit) -> None:
        """The server asked back instead of finishing: the caller will send the same request again, and it is the same
        call that a person has agreed to. Once for each such answer, and MAX_RENEWALS times in all."""
        if permit.grant is not None and permit.access is not None:
            self.authorizer.renew_for_retry(permit.access, permit.grant)

    @contextmanager
    def dispatch(self, permit: CallPermit) -> Iterator[Trace]:
        """The request of the permit is sent within the block. What was found at `admit` must still hold; it is written
        down before, and what became of it after.

        Raises:
            StaleApproval: it does not.
            AuditUnavailable: it cannot be written down, so it does not go.
        """
        decision, grant = self._revalidate(permit)
        record = self._audit_record(permit.exchange, permit.server, permit.kind, permit.target, decision, grant)
        with self.decision_log.recording(record) as trace:
            yield trace

    def recheck(self, permit: CallPermit) -> None:
        """Before what was dispatched is sent once more: what it is for must still be open.

        Raises:
            StaleApproval: it is not.
        """
        server, kind, name = permit.server, permit.kind, permit.target
        if permit.epoch != self.policies.epoch and not self.definitions.is_visible(server, kind, name):
            raise stale_approval(server, kind.value, name)

    def depends_on_definition(self, permit: CallPermit) -> bool:
        """Whether the permit is good for one definition of its entry only: where it is pinned, or a person agreed."""
        return permit.access is not None or self.policies.trust(permit.server) is not Trust.TRUSTED

    def client_may_confirm(self, server: str, kind: Kind, name: str, caller: Caller) -> bool:
        """Whether the caller itself may be asked for consent before this is carried out."""
        if not self.policies.has_server(server) or not self.authorizer.client_can_confirm(caller):
            return False
        rules = self.policies.rules(server)
        return rules.reads_arguments(kind) or rules.evaluate(kind, name).verdict is Verdict.ASK

    def grant_for_anonymous(
        self, server: str, kind: Kind, name: str, raw_arguments: Raw, decision: RuleDecision
    ) -> Grant | None:
        """The grant that a call of a client without a name would use, if it had to be asked about."""
        if decision.verdict is not Verdict.ASK:
            return None
        params = {"arguments": raw_arguments}
        exchange = Exchange(Request(0, TOOLS_CALL.name), params, Caller("a client without a name", None), NoClient())
        return self.authorizer.grants.find(self._access_request(exchange, server, kind, name, raw_arguments, decision))

    def _revalidate(self, permit: CallPermit) -> tuple[RuleDecision, Grant | None]:
        """By what the request may go now; a grant is spent with this."""
        server, kind, name = permit.server, permit.kind, permit.target
        if permit.epoch != self.policies.epoch:
            known = self.policies.has_server(server)
            decision = self._evaluate(server, kind, name, _raw_arguments(permit.exchange)) if known else None
            if (
                decision is None
                or decision.verdict is Verdict.DENY
                or not self.definitions.is_visible(server, kind, name)
            ):
                raise stale_approval(server, kind.value, name)
            if decision.verdict is Verdict.ALLOW:
                return decision, None
            if permit.access is None or decision.rule != permit.decision.rule:
                raise stale_approval(server, kind.value, name)
        if permit.access is not None:
            self.authorizer.spend(permit.access, permit.grant)
        return permit.decision, permit.grant

    def _evaluate(self, server: str, kind: Kind, name: str, raw_arguments: Raw) -> RuleDecision:
        rules = self.policies.rules(server)
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
            fingerprint=self.definitions.fingerprint(server, kind, name),
            launch=self.definitions.pins.launch(server),
            rule=decision.rule,
            digest=digest_of(raw_arguments),
            arguments=decode_arguments(raw_arguments),
            retry=exchange.round is not None and exchange.round.server == server,
        )

    def _audit_record(
        self, exchange: Exchange, server: str, kind: Kind, name: str, decision: RuleDecision, grant: Grant | None = None
    ) -> AuditRecord:
        fingerprint, launch = self.definitions.fingerprint(server, kind, name), self.definitions.pins.launch(server)
        method, raw_arguments = exchange.request.method, _raw_arguments(exchange)
        return AuditRecord(
            server, kind.value, name, method, exchange.caller, raw_arguments, decision, fingerprint, launch, grant
        )


def _raw_arguments(exchange: Exchange) -> Raw:
    """The arguments of a request, as they will be sent; an empty object where it has none."""
    row = TARGETED.get(exchange.request.method)
    raw_arguments = None if row is None or row.arguments is None else exchange.params.get(row.arguments)
    return EMPTY_OBJECT if raw_arguments is None else raw_arguments
