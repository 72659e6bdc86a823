"""The gate on the way of every call: it alone admits requests to servers.

    Gate.admit           before anything is begun: may this exchange reach this entry? Waits for a person if need be.
    CallPermit.dispatch  at the moment of sending: does all of that still hold? The decision is written down.
    CallPermit.accept    the answer: is it within the limits? The outcome is written down.

`Gate.passage` is the three of them around one call. `policies` has what is configured, `definitions` what is offered
and approved, `authorizer` the grants and the people who give them, `server_requests` the way back. They know nothing of
the gate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import final

from msgspec import Raw

from config import ServerSpec, Trust, Verdict
from host.errors import Forbidden
from host.exchange import Answered, Caller, Exchange, InputRequired, NoClient
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import EMPTY_OBJECT
from host.policy.authorizer import Authorizer, digest_of
from host.policy.conditions import decode_arguments
from host.policy.confirmations import ConfirmationContext, ConfirmationQueue, stale_approval
from host.policy.decision_log import AuditRecord, DecisionLog, RequestRecord
from host.policy.definitions import Definitions
from host.policy.grants import AccessRequest, Grant, Scope
from host.policy.limits import Meter
from host.policy.permits import ISSUER, Permit
from host.policy.pins import Pins
from host.policy.policies import Policies
from host.policy.rules import RuleDecision
from host.policy.server_requests import ServerRequests
from host.protocol.methods import TARGETED, TOOLS_CALL, Kind
from host.sanitize import visible


class NotVisible(Exception):
    """The caller may not know of this entry, or there is none: the answer is the same."""


class ConfirmationRequired(Forbidden):
    """A person would have to be asked, about something that nobody is asked about."""


@dataclass(frozen=True, slots=True)
class Admission:
    """By what an entry was found open to an exchange."""

    decision: RuleDecision
    epoch: int
    """The state of the policy at the time; nothing has to be looked at again while it is the same."""
    access: AccessRequest | None = None
    """The access request that a person confirmed; None if no person had to."""
    grant: Grant | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _EntryPermit(Permit):
    _gate: Gate
    exchange: Exchange
    server: str
    kind: Kind
    target: str
    """The entry's own name or URI at the server."""
    admission: Admission


@final
@dataclass(frozen=True, slots=True, eq=False)
class CallPermit(_EntryPermit):
    """Proof that this exchange may reach this entry of this server, with all that the gate does for the call."""

    _meter: Meter
    _record: RequestRecord

    @property
    def depends_on_definition(self) -> bool:
        """Whether the permit is good for one definition of its entry only: where it is pinned, or a person agreed."""
        return self.admission.access is not None or self._gate.policies.trust(self.server) is not Trust.TRUSTED

    def dispatch(self) -> None:
        """Judge what holds now, spend the grant, and write the decision down. The request must be handed to the link
        without a checkpoint after this, and what it takes from its definition must be looked up in the same step.

        Raises:
            StaleApproval: what was found at `Gate.admit` does not hold any more.
            AuditUnavailable: the decision cannot be written down, so the request must not be sent.
        """
        self._record.begin(self._gate._revalidate(self))

    def redispatch(self) -> None:
        """Judge what holds now, before what was dispatched is sent once more: for a further round, with other headers,
        or as a task. Nothing is spent or written down: it is the same call.

        Raises:
            StaleApproval: the entry may not be reached any more.
        """
        policies, definitions = self._gate.policies, self._gate.definitions
        if self.admission.epoch != policies.epoch and not definitions.is_visible(self.server, self.kind, self.target):
            raise stale_approval(self.server, self.kind.value, self.target)

    def accept(self, answer: Answered) -> Raw:
        """The result of the call, whose outcome is written down.

        Raises:
            TooLarge: it is longer than the server may send.
        """
        self._record.end(size=len(answer.result))
        self._meter.check_result_size(len(answer.result))
        return answer.result

    def renew_for_retry(self, answer: InputRequired) -> InputRequired:
        """The server asked back instead of finishing: the caller will send the same request again, and it is the same
        call that a person has agreed to. Once for each such answer, and MAX_RENEWALS times in all."""
        self._record.end()
        grant, access = self.admission.grant, self.admission.access
        if grant is not None and access is not None:
            self._gate.authorizer.renew_for_retry(access, grant)
        return answer

    def fail(self, problem: BaseException) -> None:
        """The call ended with this; its outcome is written down."""
        self._record.fail(problem)

    def release(self) -> None:
        """Nothing more is sent with this permit. A grant for one call that was not spent can be used by the next."""
        self._record.end()
        if self.admission.grant is not None:
            self._gate.authorizer.grants.release(self.admission.grant)

    def slot(self) -> AbstractAsyncContextManager[None]:
        """One of the calls that the server may run at once, for a block; see `Meter.slot`."""
        return self._meter.slot()


@final
@dataclass(frozen=True, slots=True, eq=False)
class WatchPermit(_EntryPermit):
    """Proof that the caller of this exchange may be told when this resource changes. It outlives the exchange, and
    takes none of the slots of its server."""

    @contextmanager
    def dispatch(self) -> Iterator[None]:
        """The server is asked within the block; see `CallPermit.dispatch`."""
        with self._gate.decision_log.recording(self._gate._revalidate(self)):
            yield

    def holds(self) -> bool:
        """Whether the caller may be told now, if the resource may still be known: that is looked at once for all who
        watch it (`Definitions.is_visible`)."""
        if self.admission.access is None and self.admission.epoch == self._gate.policies.epoch:
            return True
        try:
            return self._gate._admit_unasked(self.exchange, self.server, self.kind, self.target) is not None
        except ConfirmationRequired:
            return False


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
        """The permit to reach the entry, for the block, which is one of the calls that the server may run at once; how
        the call ended is written down with the block at the latest. With `confirm` False, no person is asked.

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
            async with permit.slot():
                yield permit
        except BaseException as problem:
            permit.fail(problem)
            raise
        finally:
            permit.release()

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
            if not decision.conditional:
                return None
            self.decision_log.record_denied(self._audit_record(exchange, server, kind, name, decision))
            what = f"this call of the {kind.value} {visible(name)[:200]} of {server}"
            raise Forbidden(server, f"{what} is not allowed with these arguments")
        if decision.verdict is Verdict.ALLOW:
            return self._call_permit(exchange, server, kind, name, Admission(decision, epoch))
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
        return self._call_permit(exchange, server, kind, name, Admission(decision, epoch, access, grant))

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
        admission = self._admit_unasked(exchange, server, kind, name)
        return None if admission is None else self._call_permit(exchange, server, kind, name, admission)

    def admit_watch(self, exchange: Exchange, server: str, uri: str) -> WatchPermit | None:
        """The permit to be told when the resource changes; nobody is asked about that either. Raises as
        `admit_without_confirmation` does."""
        if not self.definitions.check_usable(server, Kind.RESOURCE, uri, exists=True):
            return None
        admission = self._admit_unasked(exchange, server, Kind.RESOURCE, uri)
        return None if admission is None else WatchPermit(ISSUER, self, exchange, server, Kind.RESOURCE, uri, admission)

    def _admit_unasked(self, exchange: Exchange, server: str, kind: Kind, name: str) -> Admission | None:
        """By what the rules and lasting grants admit it; None if they deny it."""
        if not self.policies.has_server(server):
            return None
        epoch, decision = self.policies.epoch, self._evaluate(server, kind, name, EMPTY_OBJECT)
        if decision.verdict is Verdict.DENY:
            return None
        if decision.verdict is Verdict.ALLOW:
            return Admission(decision, epoch)
        access = self._access_request(exchange, server, kind, name, EMPTY_OBJECT, decision)
        grant = self.authorizer.grants.find(access)
        if grant is None or grant.scope is Scope.ONCE:  # what was given for one call is not spent on this
            why = f"this {kind.value} of {server} needs a person's consent, which was not given"
            raise ConfirmationRequired(server, why)
        return Admission(decision, epoch, access, grant)

    def _call_permit(self, exchange: Exchange, server: str, kind: Kind, name: str, admission: Admission) -> CallPermit:
        if not self.policies.has_server(server):  # the configuration lost it while a person was asked
            raise stale_approval(server, kind.value, name)
        meter, record = self.policies.meter(server), RequestRecord(self.decision_log)
        return CallPermit(ISSUER, self, exchange, server, kind, name, admission, meter, record)

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

    def _revalidate(self, permit: _EntryPermit) -> AuditRecord:
        """Judge by what the request may go now, and spend its grant if it takes one: the record of that."""
        exchange, server, kind, name = permit.exchange, permit.server, permit.kind, permit.target
        admission = permit.admission
        if admission.epoch != self.policies.epoch:
            known = self.policies.has_server(server)
            decision = self._evaluate(server, kind, name, _raw_arguments(exchange)) if known else None
            if (
                decision is None
                or decision.verdict is Verdict.DENY
                or not self.definitions.is_visible(server, kind, name)
            ):
                raise stale_approval(server, kind.value, name)
            if decision.verdict is Verdict.ALLOW:
                return self._audit_record(exchange, server, kind, name, decision)
            if admission.access is None or decision.rule != admission.decision.rule:
                raise stale_approval(server, kind.value, name)
        if admission.access is not None:
            self.authorizer.spend(admission.access, admission.grant)
        return self._audit_record(exchange, server, kind, name, admission.decision, admission.grant)

    def _evaluate(self, server: str, kind: Kind, name: str, raw_arguments: Raw) -> RuleDecision:
        rules = self.policies.rules(server)
        if not rules.reads_arguments(kind):
            return rules.evaluate(kind, name)
        return rules.evaluate(kind, name, decode_arguments(raw_arguments))

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
