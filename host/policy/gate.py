"""The gate: the only place where requests to servers are admitted.

    Gate.admit           before the request is begun: rules, definition, and a person's confirmation if a rule asks.
    CallPermit.dispatch  at the moment of sending: the same checks again, without waiting; writes the decision.
    CallPermit.accept    for the result: size limit; writes the outcome.

The permit is a context manager around the last two. The parts of the gate do not know it: `policies` (the configured
rules and limits), `definitions` (offered and approved), `authorizer` (grants and confirmations), `server_requests`
(requests of servers to clients).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, final

from msgspec import Raw, Struct, structs

from config import CallerSpec, ServerSpec, Trust, Verdict
from host.errors import Forbidden, InvalidParams, ProtocolViolation
from host.exchange import Answered, Caller, Exchange, InputRequired, NoClient
from host.journal import OBSERVED, Answering, excerpt, observed_of, trace_id_of, waiting
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import EMPTY_OBJECT, encode_object
from host.jsonrpc.strict import LIGHT_BYTES, LIGHT_TOKENS, may_have_more_tokens
from host.jsonrpc.twins import describe_twin
from host.policy.authorizer import Authorizer, digest_of
from host.policy.conditions import LONGEST_DECODED
from host.policy.confirmations import ConfirmationContext, ConfirmationQueue, stale_approval
from host.policy.decision_log import AuditRecord, DecisionLog, RequestRecord
from host.policy.definitions import Definitions
from host.policy.grants import AccessRequest, Grant, Scope
from host.policy.judge import Judge
from host.policy.limits import Meter
from host.policy.permits import ISSUER, Permit
from host.policy.pins import Pins
from host.policy.policies import Policies
from host.policy.rules import NOT_READ_ONLY, RuleDecision
from host.policy.server_requests import ServerRequests
from host.protocol.known_params import other_members
from host.protocol.links import without_pages
from host.protocol.methods import RESOURCE, TARGETED, TOOLS_CALL
from host.protocol.search_tools import CALL_TOOL
from host.sanitize import visible
from host.source import SHARED, EntryRef
from host.subject import Item, Subject
from host.worker import run_in_worker

_TRUSTED, _DENY, _ALLOW = Trust.TRUSTED, Verdict.DENY, Verdict.ALLOW  # for speed; see RESOURCE in protocol/methods.py


AMBIGUOUS_ARGUMENTS = RuleDecision(_DENY, "arguments that some readers take for others", True)
"""Decision on arguments that mean another thing to some readers than to the rules and the person."""


class Returning(Protocol):
    """Whether this process, of a fleet, knows what the others have decided."""

    def is_behind(self) -> bool:
        """Whether it did not run for so long that they may have taken it for gone, and has not asked yet what they have
        decided meanwhile. Never waits."""

    async def wait_returned(self) -> None:
        """Wait until it is not behind."""


class ConfirmationRequired(Forbidden):
    """A rule asks for a person's confirmation of a request for which no person is asked, such as a subscription."""


class Admission(Struct, frozen=True):
    """The reason why an entry was found open to an exchange."""

    decision: RuleDecision
    state: tuple[int, int]
    """`Gate.state` before the decision. While it is unchanged, nothing has to be checked again."""
    access: AccessRequest | None = None
    """The access request that a person confirmed, now or with a grant before; None if no confirmation was needed."""
    grant: Grant | None = None


class _EntryPermit(Permit, frozen=True, eq=False):
    _gate: Gate
    exchange: Exchange
    ref: EntryRef
    """The entry, by the source whose definition counts."""
    admission: Admission


@final
class CallPermit(_EntryPermit, frozen=True, eq=False):
    """Proof that this exchange may reach this entry, and the gate's part of the call. As a context manager around the
    call it takes a slot of the server (`Meter.begin_call`), and writes the outcome at the end at the latest."""

    _meter: Meter
    _record: RequestRecord

    async def __aenter__(self) -> CallPermit:
        try:
            if (turn := self._meter.begin_call()) is not None:
                with waiting(observed_of(self.exchange.request), "slot"):
                    await turn
        except BaseException:
            self.release()
            raise
        return self

    async def __aexit__(self, _: object, problem: BaseException | None, __: object) -> None:
        self._meter.end_call()
        try:
            if problem is not None:
                self.fail(problem)
        finally:
            self.release()

    @property
    def depends_on_definition(self) -> bool:
        """Whether the permit holds for one definition of its entry only: the entry is pinned, a rule or a search tool
        wants claims, or a person confirmed the call. It may begin to: a reload may lower the trust in the server before
        the call is sent."""
        if self.admission.access is not None or self._gate.policies.trust(self.ref.server) is not _TRUSTED:
            return True
        if self.exchange.through:
            return True
        rules = self._gate.policies.rules_of(self.ref.server)
        return rules is not None and rules.of_kind[self.ref.kind].reads_claims

    def dispatch(self) -> None:
        """Check again what holds now, spend the grant, and write the decision to the audit. The caller must hand the
        request to the link without a checkpoint in between, and must look up in the same step what it takes from the
        entry's definition.

        A call that is sent once more (for a further round, with other headers, as a task, or over another session) is
        dispatched each time. It is the same call, so no grant is spent and no decision written again.

        Raises:
            StaleApproval: what `Gate.admit` found does not hold any more.
            AuditUnavailable: the decision cannot be written, so the request must not be sent.
        """
        if (absence := self._gate.absence) is not None and absence.is_behind():
            raise stale_approval(self.ref.item)
        if self._record.open is not None:
            self._check_visible()
        else:
            self._record.begin(self._gate._revalidate(self))
            if (on_sent := self.exchange.on_sent) is not None:
                on_sent(self.ref.server)

    def _check_visible(self) -> None:
        policies, definitions = self._gate.policies, self._gate.definitions
        if self.admission.state == self._gate.state:
            return
        caller = self.exchange.caller
        is_visible = definitions.is_visible(self.ref, self._gate.caller_name(caller))
        if not (is_visible and policies.views.offers(caller.endpoint, self.ref)):
            raise stale_approval(self.ref.item)

    def accept(self, answer: Answered) -> Raw:
        """Check the result's size, write the outcome, and return the result without pages that clients may not see.

        Raises:
            TooLarge: the result is longer than the server may send.
            ProtocolViolation: it cannot be read.
        """
        self._record.end(size=len(answer.result), result=answer.result, tool_error=answer.tool_error)
        self._meter.check_result_size(len(answer.result))
        server, row = self.ref.source.server, TARGETED.get(self.exchange.request.method)
        if row is None or self._gate.policies.shows_apps(server):
            return answer.result
        try:
            return without_pages(answer.result, row.links)
        except ValueError:
            raise ProtocolViolation(server, f"{server} sent a result that cannot be read") from None

    def renew_for_retry(self, answer: InputRequired) -> InputRequired:
        """Renew the grant of a call whose server needs input: the caller will repeat the request, and it is the same
        call that a person confirmed. Each such response renews it once, MAX_RENEWALS times in all.

        Raises:
            TooLarge: what it has besides its requests is longer than a result of the server may be.
        """
        self._record.end()
        self._meter.check_result_size(sum(len(each) for each in answer.unknown.values()))
        grant, access = self.admission.grant, self.admission.access
        if grant is not None and access is not None:
            self._gate.authorizer.renew(access, grant, retry=True)
        return answer

    def renew_unexecuted(self) -> None:
        """Renew the grant of a call that was sent, and that its server did not execute, so that it is sent again."""
        grant, access = self.admission.grant, self.admission.access
        if grant is not None and access is not None:
            self._gate.authorizer.renew(access, grant, retry=access.retry)

    def fail(self, problem: BaseException) -> None:
        """Write the outcome of a call that ended with this exception."""
        self._record.fail(problem)

    def release(self) -> None:
        """Release the permit: nothing more is sent with it. The next call can use a once-grant that was not spent."""
        if self._record.open is not None:
            self._record.end()
        if self.admission.grant is not None:
            self._gate.authorizer.grants.release(self.admission.grant)


@final
class WatchPermit(_EntryPermit, frozen=True, eq=False):
    """Proof that the caller of this exchange may be notified when this resource changes. A watch outlives its exchange
    and takes no slot of the server."""

    @contextmanager
    def dispatch(self) -> Iterator[None]:
        """Subscribe at the server within this block; see `CallPermit.dispatch`."""
        with self._gate.decision_log.recording(self._gate._revalidate(self)):
            yield

    def holds(self) -> bool:
        """Whether the caller may be notified now. What does not depend on the caller (`Definitions.is_visible_to_any`)
        is the same for all watchers, and the notifier checks it once."""
        if self.admission.access is None and self.admission.state == self._gate.state:
            return True
        try:
            return self._gate._admit_unasked(self.exchange, self.ref) is not None
        except ConfirmationRequired:
            return False

    @property
    def audience(self) -> tuple[str, str]:
        """The view of the caller, and its name if rules name it: for equal ones, `shows` is equal."""
        return self.exchange.caller.endpoint.view, self._gate.caller_name(self.exchange.caller)

    def shows(self, uri: str) -> bool:
        """Whether the caller may know of this resource, of which the server says that it has changed."""
        view, caller = self.audience
        ref = structs.replace(self.ref, name=uri)
        policies, server = self._gate.policies, ref.server
        if not policies.views.view(view).offers(server, ref.kind, uri):
            return False
        return not policies.callers_of(server) or self._gate.definitions.is_visible(ref, caller)


class Gate:
    """Admits requests by the consent of each server. A denied entry is indistinguishable from a missing one.

    Args:
        servers: by id; see `replace`.
        callers: by name.

    Attributes:
        absence: set once, in a fleet. While the process is behind, nothing is sent.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerSpec],
        callers: Mapping[str, CallerSpec],
        pins: Pins,
        confirmations: ConfirmationQueue,
        decision_log: DecisionLog,
    ) -> None:
        self.absence: Returning | None = None
        self.decision_log = decision_log
        self.policies = Policies(servers, callers)
        self.definitions = Definitions(self.policies, pins, decision_log)
        self.authorizer = Authorizer(self.policies, self.definitions, confirmations, decision_log)
        self.server_requests = ServerRequests(self.policies, self.definitions, self.authorizer, decision_log)
        self._open: dict[tuple[EntryRef, str, str], Admission | Judge] = {}
        """Judges of calls of open entries, by the name of their caller and the search tool that they came through, in
        the state below; where admissions need nothing else, the admission of these calls instead."""
        self._open_in = self.state
        self._offered: dict[EntryRef, tuple[int, Item, str, str]] = {}
        """The count of changes of the pins, and item, fingerprint and launch of open entries then: for records."""

    @property
    def state(self) -> tuple[int, int]:
        """The epoch of the policies and the count of changes of the pins, which change a moment before the epoch, or,
        by a decision in another process, up to a second before. While it is the same, so is each decision."""
        return self.policies.epoch, self.definitions.pins.changes

    def replace(self, servers: Mapping[str, ServerSpec], callers: Mapping[str, CallerSpec]) -> None:
        """Put these configurations into effect, all at once. Confirmations and grants end whose rule is gone or
        different. Calls that were dispatched continue."""
        others = self.policies.replace(servers, callers)
        self.definitions.pins.set_trust_levels({server: spec.trust for server, spec in servers.items()})
        self.authorizer.revoke_unruled()
        # Other causes of a different visibility (pins, launch, templates) report their changes themselves.
        self.definitions.invalidate(others)
        for gone in self.decision_log.denied.keys() - servers.keys():
            del self.decision_log.denied[gone]

    def forget(self, caller: Caller) -> None:
        """Forget a caller that is gone, with the grants and confirmations of its session."""
        if caller.session is not None:
            self.authorizer.end_session(caller.session)

    def caller_name(self, caller: Caller) -> str:
        """The name by which rules know the caller now; empty if none names it. A reload may have changed it since the
        request came."""
        return self.policies.caller_names.get(caller.identity, "")

    async def admit(self, exchange: Exchange, ref: EntryRef, *, exists: bool = True) -> CallPermit | None:
        """The permit to reach the entry; None if the response must be the one for a missing entry. Waits for a person
        if the rules say ask.

        With `exists` False, the entry is missing and the result is always None. The same checks are made as for a
        denied entry, so that both take the same time.

        Raises:
            Forbidden: the rules deny these arguments, or a person denied the call.
            Unconfirmed, TooManyRequests: no answer in time, or too many confirmations are pending.
            StaleApproval: the entry was approved and is held since it changed; or it changed while a person was asked.
            InvalidParams: the arguments are judged, and some readers take one of their members for another one.
        """
        caller = self.policies.caller_names.get(exchange.caller.identity, "")  # as `caller_name`, for speed
        state = self.policies.epoch, self.definitions.pins.changes  # as `state`, for speed
        if state != self._open_in:
            self._open_in = state
            self._open.clear()
            self._offered.clear()
        may_keep = exists and ref.kind is not RESOURCE  # clients make up URIs without end
        key = ref, caller, exchange.through
        judge = self._open.get(key) if may_keep else None
        if isinstance(judge, Admission):
            return self._call_permit(exchange, ref, judge)
        if judge is None:
            if not self.definitions.check_usable(ref, caller, exists=exists):
                return None
            judge = self.definitions.judge(ref, caller, exchange.through)
            if may_keep:
                self._open[key] = judge
        server, raw_arguments = ref.server, _raw_arguments(exchange)
        arguments = judge.decode_judged(raw_arguments)
        decision = judge.decide(arguments)
        if decision.verdict is _DENY:
            if not decision.conditional:
                return None
            self.decision_log.record_denied(self._audit_record(exchange, ref, decision))
            raise _forbidden(ref, decision)
        search, is_heavy = judge.search_for_twins(raw_arguments, decision, arguments), False
        if search is not None:
            is_heavy = len(raw_arguments) > LIGHT_BYTES and may_have_more_tokens(raw_arguments, LIGHT_TOKENS)
            twin = await run_in_worker(search) if is_heavy else search()
            if twin is not None:
                self.decision_log.record_denied(self._audit_record(exchange, ref, AMBIGUOUS_ARGUMENTS))
                raise InvalidParams(describe_twin(twin))
        if decision.verdict is _ALLOW:
            admission = Admission(decision, state)
            if may_keep and judge.paths is None:
                self._open[key] = admission
            return self._call_permit(exchange, ref, admission)
        if judge.paths is None or is_heavy:
            # The definition may have changed, or be gone with its server, since a worker began to search.
            judge = structs.replace(judge, definition=self.definitions.offered_definition(ref) or b"")
            arguments = judge.decode(raw_arguments)
        access = self._access_request(exchange, ref, raw_arguments, arguments, decision)
        observed = observed_of(exchange.request)
        context = ConfirmationContext(
            self.policies.trust(server),
            bytes(raw_arguments),
            self.definitions.claims(ref).lines,
            self.definitions.offered_definition(ref) or b"",
            decision.conditional,
            _others(exchange),
            exchange.caller.process,
            excerpt(exchange.caller.says),
            exchange.through,
            exchange.caller.name,
            trace_id_of(observed),
        )
        client = exchange.client if self.authorizer.client_can_confirm(exchange.caller) else None
        denied = self._audit_record(exchange, ref, decision)
        with waiting(observed, "person"):
            grant = await self.authorizer.authorize(access, context, client, denied)
        return self._call_permit(exchange, ref, Admission(decision, state, access, grant))

    def admit_without_confirmation(
        self, exchange: Exchange, ref: EntryRef, *, exists: bool = True
    ) -> CallPermit | None:
        """Like `admit`, but without asking a person: for requests that follow from an entry's consent, such as
        completion.

        Raises:
            ConfirmationRequired: the rules say ask, and no lasting grant fits.
            StaleApproval: the entry is held.
        """
        if not self.definitions.check_usable(ref, self.caller_name(exchange.caller), exists=exists):
            return None
        admission = self._admit_unasked(exchange, ref)
        return None if admission is None else self._call_permit(exchange, ref, admission)

    def admit_watch(self, exchange: Exchange, ref: EntryRef, *, exists: bool = True) -> WatchPermit | None:
        """The permit to be notified of changes of the resource; no person is asked. Raises as
        `admit_without_confirmation` does."""
        if not self.definitions.check_usable(ref, self.caller_name(exchange.caller), exists=exists):
            return None
        admission = self._admit_unasked(exchange, ref)
        return None if admission is None else WatchPermit(ISSUER, self, exchange, ref, admission)

    def _admit_unasked(self, exchange: Exchange, ref: EntryRef) -> Admission | None:
        """The admission by rules and lasting grants alone; None if the rules deny the request."""
        server = ref.server
        if not (self.policies.has_server(server) and self.policies.views.offers(exchange.caller.endpoint, ref)):
            return None
        state, judge = self.state, self.definitions.judge(ref, self.caller_name(exchange.caller))
        decision = judge.decide(judge.decode_judged(EMPTY_OBJECT))
        if decision.verdict is Verdict.DENY:
            return None
        if decision.verdict is Verdict.ALLOW:
            return Admission(decision, state)
        arguments = judge.decode(EMPTY_OBJECT)
        access = self._access_request(exchange, ref, EMPTY_OBJECT, arguments, decision)
        grant = self.authorizer.grants.find(access)
        # A grant for one call is meant for a call, and is not spent here.
        if grant is None or grant.scope is Scope.ONCE:
            why = f"this {ref.kind} of {server} needs a person's consent, which was not given"
            raise ConfirmationRequired(server, why)
        return Admission(decision, state, access, grant)

    def _call_permit(self, exchange: Exchange, ref: EntryRef, admission: Admission) -> CallPermit:
        server = ref.source.server
        if (meter := self.policies.meter_of(server)) is None:  # a reload may have removed it while a person was asked
            raise stale_approval(ref.item)
        return CallPermit(ISSUER, self, exchange, ref, admission, meter, RequestRecord(self.decision_log))

    def client_may_confirm(self, ref: EntryRef, caller: Caller, through: str) -> bool:
        """Whether the caller itself may have to confirm a request for this entry. `through`: see `Exchange`."""
        rules = self.policies.rules_of(ref.server)
        if rules is None or not self.authorizer.client_can_confirm(caller):
            return False
        if rules.of_kind[ref.kind].reads_arguments:
            return True
        return self.definitions.evaluate(ref, None, self.caller_name(caller), through).verdict is Verdict.ASK

    def expected_grant(
        self, ref: EntryRef, raw_arguments: Raw, arguments: object, decision: RuleDecision, caller: str
    ) -> Grant | None:
        """The grant that a call by the caller of this name in `callers` of the file, empty for one without, would use,
        if the rules ask for confirmation. `arguments`: decoded."""
        if decision.verdict is not Verdict.ASK:
            return None
        params, spec = {"arguments": raw_arguments}, self.policies.callers.get(caller)
        client = Caller("an expected client", SHARED, None if spec is None else spec.token)
        exchange = Exchange(Request(0, TOOLS_CALL.name), params, client, NoClient())
        return self.authorizer.grants.find(self._access_request(exchange, ref, raw_arguments, arguments, decision))

    def _revalidate(self, permit: _EntryPermit) -> AuditRecord:
        """Check the request by what holds now, spend its grant if it needs one, and return its audit record."""
        exchange, ref, admission = permit.exchange, permit.ref, permit.admission
        if admission.state != (self.policies.epoch, self.definitions.pins.changes):  # as `state`, for speed
            spec = self.policies.spec(ref.server)
            known = spec is not None and not spec.disabled
            caller = self.caller_name(exchange.caller)
            known = known and self.policies.views.offers(exchange.caller.endpoint, ref)
            if not (known and self.definitions.is_visible(ref, caller)):
                raise stale_approval(ref.item)
            judge, raw_arguments = self.definitions.judge(ref, caller, exchange.through), _raw_arguments(exchange)
            decision = judge.decide(judge.decode_judged(raw_arguments))
            if decision.verdict is Verdict.DENY:
                raise stale_approval(ref.item)
            search = judge.search_for_twins(raw_arguments, decision)
            if search is not None and search() is not None:  # a new rule judges the arguments
                raise stale_approval(ref.item)
            if decision.verdict is Verdict.ALLOW:
                return self._audit_record(exchange, ref, decision)
            if admission.access is None or decision.rule != admission.decision.rule:
                raise stale_approval(ref.item)
        if admission.access is not None:
            self.authorizer.spend(admission.access, admission.grant)
        return self._audit_record(exchange, ref, admission.decision, admission.grant)

    def _access_request(
        self, exchange: Exchange, ref: EntryRef, raw_arguments: Raw, arguments: object, decision: RuleDecision
    ) -> AccessRequest:
        digest = digest_of(raw_arguments, _others(exchange))
        retry = exchange.round is not None and exchange.round.server == ref.server
        subject = self._subject(exchange, ref, decision, digest)
        return AccessRequest(subject, arguments, retry, ref, exchange.through)

    def _audit_record(
        self, exchange: Exchange, ref: EntryRef, decision: RuleDecision, grant: Grant | None = None
    ) -> AuditRecord:
        subject, method, caller = self._subject(exchange, ref, decision), exchange.request.method, exchange.caller
        arguments, verdict = _raw_arguments(exchange), decision.verdict
        observed: Answering | None = exchange.request.__dict__.get(OBSERVED)  # as `observed_of`, for speed
        return AuditRecord(
            subject,
            method,
            caller.name,
            arguments,
            verdict,
            grant,
            caller.process,
            exchange.through,
            exchange.request.members_of_arguments(arguments) if len(arguments) > LONGEST_DECODED else None,
            caller.endpoint.view,
            caller.says,
            "" if observed is None else observed.trace_id,
        )

    def _subject(self, exchange: Exchange, ref: EntryRef, decision: RuleDecision, digest: str | None = None) -> Subject:
        """The subject of an exchange, by the definition and the launch of now."""
        caller, pins, offered = exchange.caller, self.definitions.pins, self._offered.get(ref)
        if offered is None or offered[0] != pins.changes:
            fingerprint, launch = self.definitions.fingerprint(ref), pins.launch(ref.source.server)
            offered = pins.changes, ref.item, fingerprint, launch
            if ref.kind is not RESOURCE:
                self._offered[ref] = offered
        _, item, fingerprint, launch = offered
        return Subject(item, caller.identity, caller.session, fingerprint, launch, decision.rule, digest)


def _forbidden(ref: EntryRef, decision: RuleDecision) -> Forbidden:
    """The error for a call that is denied, of an entry that the caller may know."""
    what = f"the {ref.kind} {visible(ref.name)[:200]} of {ref.server}"
    if decision is NOT_READ_ONLY:
        claim = f"{what} does not claim to only read in a definition that a person has approved"
        return Forbidden(ref.server, f"{claim}; call it through {CALL_TOOL}")
    return Forbidden(ref.server, f"this call of {what} is not allowed with these arguments")


def _raw_arguments(exchange: Exchange) -> Raw:
    """The arguments of a request as they will be sent; an empty object if it has none."""
    row = TARGETED.get(exchange.request.method)
    raw_arguments = None if row is None or row.arguments is None else exchange.params.get(row.arguments)
    return EMPTY_OBJECT if raw_arguments is None else raw_arguments


def _others(exchange: Exchange) -> bytes:
    """The members of a request that are sent beside the name of its entry and the arguments, as an object; empty if it
    has none."""
    found = other_members(exchange.request.method, exchange.params)
    return bytes(encode_object(found)) if found else b""
