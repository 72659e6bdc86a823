"""Requests of servers to clients (sampling, elicitation, roots): which may be sent, and with what content.

The rules of the server decide, and a person where a rule says ask. `server_request_checks` refuses or changes some
requests regardless of a person's answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

from msgspec import Raw, structs
from msgspec.structs import replace

from config import Trust, Verdict
from host.errors import ColonnadeError, Forbidden, ProtocolViolation
from host.exchange import Caller
from host.journal import Answering, excerpt, trace_id_of, waiting
from host.jsonrpc.messages import INVALID_PARAMS
from host.jsonrpc.raw import encode, encode_object, items, members, string, value
from host.jsonrpc.twins import KnownNames, fold_name, refuse_twins
from host.policy.authorizer import Authorizer, digest_of
from host.policy.conditions import decode_arguments
from host.policy.confirmations import ConfirmationContext
from host.policy.decision_log import AuditRecord, DecisionLog, RequestRecord
from host.policy.definitions import Definitions
from host.policy.grants import AccessRequest, Grant
from host.policy.permits import ISSUER, Permit
from host.policy.policies import Policies
from host.policy.rules import RuleDecision
from host.policy.server_request_checks import MAX_TEXT, check_server_request
from host.protocol.abilities import Abilities
from host.protocol.meta import META, without_hop_fields
from host.protocol.server_requests import ServerRequest, ServerRequestRejected
from host.protocol.trace_context import without_context
from host.sanitize import is_light, sanitize_json
from host.subject import Item, Subject

MAX_TOKENS = 10**9
"""Tokens that a sampling request may ask for. A request for more, or without a number, counts as one for all of
them."""
MAX_ROOTS = 1_000
"""Roots of a client that are evaluated one by one."""
_ROOTS_RESULT_NAMES = KnownNames(META, "roots")
_ROOT_NAMES = KnownNames(META, "uri", "name")
NOT_ALLOWED_MESSAGE = "the configuration does not let it ask for this"


@final
class ServerRequestPermit(Permit, frozen=True, eq=False):
    """Proof that this request of a server may be sent to this client."""

    server: str
    request: ServerRequest
    raw_arguments: Raw
    caller: Caller
    decision: RuleDecision
    access: AccessRequest | None = None
    grant: Grant | None = None
    observed: Answering | None = None
    """The request as it is observed."""


class ServerRequests:
    """The permissions of all servers of one configuration to send requests to clients."""

    def __init__(
        self, policies: Policies, definitions: Definitions, authorizer: Authorizer, decision_log: DecisionLog
    ) -> None:
        self._policies = policies
        self._definitions = definitions
        self._authorizer = authorizer
        self._decision_log = decision_log

    def allows(self, server: str, request: ServerRequest, caller: Caller | None) -> bool:
        """Whether the server may send requests of this kind to the caller, None: to any caller, at all."""
        rules = self._policies.rules_of(server)
        name = None if caller is None else self._policies.caller_names.get(caller.identity, "")
        return rules is not None and rules.allows_server_request(request, name)

    def usable_abilities(self, server: str, abilities: Abilities, caller: Caller | None) -> Abilities:
        """The client's abilities that the server may use. `caller`: as in `allows`."""
        return structs.replace(
            abilities,
            roots=abilities.roots and self.allows(server, ServerRequest.ROOTS, caller),
            sampling=abilities.sampling and self.allows(server, ServerRequest.SAMPLING, caller),
            sampling_tools=abilities.sampling_tools and self._policies.trust(server) is Trust.TRUSTED,
            form=abilities.form and self.allows(server, ServerRequest.FORM, caller),
            url=abilities.url and self.allows(server, ServerRequest.URL, caller),
            apps=abilities.apps and self._policies.shows_apps(server),
        )

    def check(self, server: str, request: ServerRequest, params: dict[str, Raw]) -> dict[str, Raw]:
        """The params of a server request as they may be forwarded.

        Raises:
            ServerRequestRejected: the request may not be forwarded.
        """
        trust = self._policies.trust(server)
        found = check_server_request(request, params, trust)
        if trust is not Trust.UNTRUSTED:
            return found
        said = bytes(encode_object(found))
        if not is_light(said):
            raise ServerRequestRejected(INVALID_PARAMS, "the request is too long to remove its invisible characters")
        return members(sanitize_json(said, limit=MAX_TEXT))

    def evaluate(self, server: str, request: ServerRequest, uri: str | None, caller: Caller) -> RuleDecision:
        name = self._policies.caller_names.get(caller.identity, "")
        return self._policies.rules(server).evaluate_server_request(request, uri, name)

    async def admit(
        self,
        server: str,
        request: ServerRequest,
        params: Mapping[str, Raw],
        caller: Caller,
        observed: Answering | None = None,
    ) -> ServerRequestPermit:
        """The permit to send a server's request to a client. Waits for a person if the rules say ask. `observed`: the
        request as it is observed.

        Raises:
            Forbidden, Unconfirmed, TooManyRequests, StaleApproval: the request may not be sent.
        """
        uri = string(params["url"]) if request is ServerRequest.URL else None
        if not self._policies.has_server(server):
            raise Forbidden(server, "this server was removed from the configuration")
        if not self.allows(server, request, caller):
            raise Forbidden(server, NOT_ALLOWED_MESSAGE)
        decision = self.evaluate(server, request, uri, caller)
        if request is ServerRequest.ROOTS:  # roots are evaluated one by one when the client has returned them
            decision = replace(decision, verdict=Verdict.ALLOW)
        if decision.verdict is Verdict.DENY:
            raise Forbidden(server, NOT_ALLOWED_MESSAGE)
        # Colonnade gives each page a new id. No grant may depend on it, nor on what a server numbers and traces.
        found = without_context(without_hop_fields(params))
        raw_arguments = encode_object({name: each for name, each in found.items() if name != "elicitationId"})
        if request is ServerRequest.SAMPLING:
            meter, tokens = self._policies.meter(server), _tokens(params)
            await meter.prepare_sampling(tokens)
            meter.charge_sampling(tokens)
        if decision.verdict is Verdict.ALLOW:
            return ServerRequestPermit(ISSUER, server, request, raw_arguments, caller, decision, observed=observed)
        access = self._access_request(server, request, uri or request.value, raw_arguments, caller, decision)
        with waiting(observed, "person"):
            context = self._context(server, raw_arguments, caller, observed)
            grant = await self._authorizer.authorize(access, context, None)
        return ServerRequestPermit(ISSUER, server, request, raw_arguments, caller, decision, access, grant, observed)

    def _access_request(
        self, server: str, request: ServerRequest, name: str, raw_arguments: Raw, caller: Caller, decision: RuleDecision
    ) -> AccessRequest:
        digest = digest_of(raw_arguments)
        subject = self._subject(Item(server, request.value, name), caller, decision, digest)
        return AccessRequest(subject, decode_arguments(raw_arguments))

    def _subject(self, item: Item, caller: Caller, decision: RuleDecision, digest: str | None = None) -> Subject:
        launch = self._definitions.pins.launch(item.server)
        return Subject(item, caller.identity, caller.session, "", launch, decision.rule, digest)

    def _context(
        self, server: str, raw_arguments: Raw, caller: Caller, observed: Answering | None = None
    ) -> ConfirmationContext:
        return ConfirmationContext(
            self._policies.trust(server),
            bytes(raw_arguments),
            process=caller.process,
            says=excerpt(caller.says),
            client=caller.name,
            trace_id=trace_id_of(observed),
        )

    @contextmanager
    def dispatch(self, permit: ServerRequestPermit) -> Iterator[RequestRecord]:
        """Send the permit's request to the client within this block; see `CallPermit.dispatch`."""
        caller, decision = permit.caller, permit.decision
        if permit.access is not None:
            self._authorizer.spend(permit.access, permit.grant)
        word = permit.request.value
        subject = self._subject(Item(permit.server, word, word), caller, decision)
        arguments, verdict = permit.raw_arguments, decision.verdict
        record = AuditRecord(
            subject,
            "",
            caller.name,
            arguments,
            verdict,
            permit.grant,
            caller.process,
            view=caller.endpoint.view,
            says=caller.says,
            trace_id=trace_id_of(permit.observed),
        )
        with self._decision_log.recording(record) as request_record:
            yield request_record

    async def filter_roots(self, server: str, answer: Raw, caller: Caller) -> Raw:
        """The client's roots that the server may learn, from the client's result.

        Raises:
            ProtocolViolation: the result is malformed, or has more than MAX_ROOTS roots.
            InvalidParams: some readers take a member of the result, or of a root, for another one.
        """
        rules = self._policies.rules_of(server)
        alike = rules is not None and not rules.has_root_rules
        if alike and self._root_verdict(server, "", caller) is Verdict.ALLOW:
            return answer
        try:
            found = members(answer)
            refuse_twins(_ROOTS_RESULT_NAMES, found)
            listed = items(found["roots"])
            if len(listed) > MAX_ROOTS:
                raise ProtocolViolation(server, f"the client's answer holds more than {MAX_ROOTS} roots")
            roots = [(_root_uri(each), each) for each in listed]
        except (ValueError, KeyError):
            raise ProtocolViolation(server, "the client's answer holds no roots") from None
        asked = [each for uri, each in roots if self._root_verdict(server, uri, caller) is Verdict.ASK]
        allowed = asked if asked and await self._roots_allowed(server, asked, caller) else []
        # Evaluated again after the wait, by the rules of now.
        verdicts = [(self._root_verdict(server, uri, caller), each) for uri, each in roots]
        told = [
            each
            for verdict, each in verdicts
            if verdict is Verdict.ALLOW or (verdict is Verdict.ASK and each in allowed)
        ]
        return answer if len(told) == len(roots) else encode_object({**found, "roots": encode(told)})

    def _root_verdict(self, server: str, uri: str, caller: Caller) -> Verdict:
        if not self._policies.has_server(server):
            return Verdict.DENY
        return self.evaluate(server, ServerRequest.ROOTS, uri, caller).verdict

    async def _roots_allowed(self, server: str, roots: list[Raw], caller: Caller) -> bool:
        """Whether a person lets the server learn these roots."""
        raw_arguments = encode(roots)
        uris = [string(members(root)["uri"]) for root in roots]
        decisions = [self.evaluate(server, ServerRequest.ROOTS, uri, caller) for uri in uris]
        decision = next(each for each in decisions if each.verdict is Verdict.ASK)
        access = self._access_request(
            server, ServerRequest.ROOTS, ServerRequest.ROOTS.value, raw_arguments, caller, decision
        )
        try:
            grant = await self._authorizer.authorize(access, self._context(server, raw_arguments, caller), None)
            with self.dispatch(
                ServerRequestPermit(ISSUER, server, ServerRequest.ROOTS, raw_arguments, caller, decision, access, grant)
            ) as record:
                record.end("told")
        except ColonnadeError:
            return False
        return True


def holds_roots(answer: Mapping[str, Raw]) -> bool:
    """Whether a server may find roots in a client's response with these members. Only a response to `roots/list` has
    the member `roots`; some readers take others for it."""
    return "roots" in answer or any(fold_name(name) == "roots" for name in answer)


def _root_uri(root: Raw) -> str:
    found = members(root)
    refuse_twins(_ROOT_NAMES, found)
    return string(found["uri"])


def _tokens(params: Mapping[str, Raw]) -> int | None:
    tokens = value(params["maxTokens"])
    plausible = isinstance(tokens, int | float) and 1 <= tokens <= MAX_TOKENS
    return int(tokens) if plausible and isinstance(tokens, int | float) else None
