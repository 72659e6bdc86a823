"""Decisions of a person about definitions and grants, passed to the gate: that of a running host, or one of the stored
state where none runs. Each gives one sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from config import Channel, ServerSpec, StdioServer, Trust, Unconfined
from config.problems import did_you_mean
from host.addresses import suffix_of
from host.admin.schema import AdminError, DefinitionList, Done
from host.errors import ColonnadeError
from host.jsonrpc.raw import encode
from host.policy.explain import LONGEST_KEPT, definition_as_data, explain, rules_as_data, starts_as_data
from host.policy.gate import Gate
from host.policy.pins import HeldItem, ListedItem, StaleDecision
from host.policy.rows import DefinitionRow, Explanation
from host.protocol.methods import Kind
from host.sanitize import visible
from host.slices import pause
from host.source import Endpoint
from host.storage.store import StateError
from host.subject import Item
from host.wire.descent import PeerProcess

_OUTCOMES = {
    "approve": "approved",
    "reject": "rejected, it stays out",
    "revoke": "held back until it is approved again",
}


MAX_LIST_TEXT = 4 * 1024 * 1024
"""Bytes of the definitions of one server that are shown at once."""
_ALIKE = "several names look like this one: rename them, or deny them by a rule"


_Spread = Callable[[], Awaitable[str]]
"""Waits until the other processes of a fleet have taken over what was taken away, and says where that holds."""


class PolicyAdmin:
    """The part of the admin API that needs no running host. All methods raise AdminError if it cannot be done."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.spread_grants: _Spread | None = None
        self.spread_definitions: _Spread | None = None

    def attributing(self, peer: PeerProcess) -> AbstractContextManager[None]:
        """For the block, which must not wait, the audit records this process with each decision."""
        return self._gate.decision_log.attributing(peer.audit_fields())

    def record_refused_peer(self, peer: PeerProcess, why: str, unrecorded: int = 0) -> None:
        """Record that a process that may not decide tried to."""
        self._gate.decision_log.record_refused_peer(peer.audit_fields(), why, unrecorded)

    def mark_changed(self, *sections: str) -> None:
        """These sections of the state have changed."""

    async def decide(self, item: Item, fingerprint: str, decision: str, channel: Channel) -> Done:
        """Approve, reject or revoke a definition, which must be the one that was shown. `item`: as people see it, with
        its name made visible."""
        await self._decide(item, fingerprint, decision, channel)
        where = await self._spread(decision)
        done = f"The {item.kind} {item.name} of {item.server}: {_OUTCOMES[decision]}.{where}"
        return {"done": done.replace("  ", " ")}

    async def _spread(self, decision: str) -> str:
        if decision == "approve" or self.spread_definitions is None:
            return ""
        return f" This holds{await self.spread_definitions()}."

    async def _decide(self, item: Item, fingerprint: str, decision: str, channel: Channel) -> None:
        decide = {
            "approve": self._gate.definitions.approve,
            "reject": self._gate.definitions.reject,
            "revoke": self._gate.definitions.revoke,
        }[decision]
        if decision != "approve" and self._gate.policies.trust(item.server) is Trust.TRUSTED:
            raise AdminError(
                f"{visible(item.server)} is trusted: nothing of it is held back; deny it in its rules instead"
            )
        pins = self._gate.definitions.pins
        known = [*(each.item for each in pins.held()), *(each.item for each in pins.pinned())]
        matches = {each for each in known if msgspec.structs.replace(each, name=visible(each.name)) == item}
        if len(matches) > 1:
            raise AdminError(_ALIKE)
        with as_admin_errors():
            await decide(next(iter(matches), item), fingerprint, channel.value)
        self.mark_changed("held", "catalog", "servers")

    async def definitions(self, server: str, caller: str = "") -> DefinitionList:
        """All definitions that the server offers, and its rules; the texts until MAX_LIST_TEXT is reached."""
        self._check_caller(caller)
        rows: list[DefinitionRow] = []
        left = MAX_LIST_TEXT
        listed = await self._gate.definitions.listed(server)
        for each in listed:
            await pause()
            self._check_server(server)  # a reload may have removed it in a pause
            left -= min(len(each.offered), LONGEST_KEPT)
            rows.append(definition_as_data(self._gate, each, caller, whole=left >= 0))
        self._check_server(server)
        spec = self._gate.policies.spec(server)
        sandbox = "" if spec is None else spec.describe_sandbox(self._means(server))
        starts = [] if spec is None else starts_as_data(self._gate, spec)
        return {"definitions": rows, "rules": rules_as_data(self._gate, server), "sandbox": sandbox, "starts": starts}

    def _means(self, server: str) -> str:
        """The means that confine its program; empty if none is known to run."""
        return ""

    def _check_server(self, server: str) -> None:
        """Raises AdminError if the configuration does not have the server."""
        if not self._gate.policies.has_server(server):
            remedy = did_you_mean(server, self._gate.policies.servers()) or "colonnade check shows its servers"
            raise AdminError(f"there is no server {visible(server)!r} in the configuration; {remedy}")

    def _check_caller(self, caller: str) -> None:
        """Raises AdminError if the configuration does not have the caller; without a name, it is none of them."""
        if caller and caller not in (callers := self._gate.policies.callers):
            known = f"it has {', '.join(callers) or 'none'}"
            remedy = did_you_mean(caller, callers) or known
            raise AdminError(f"there is no caller {visible(caller)!r} under callers in the configuration; {remedy}")

    async def decide_all(self, server: str, fingerprints: list[str], decision: str, channel: Channel) -> Done:
        """Decide about all definitions of one server that were shown; see `decide`. Those that were approved without a
        person can be approved too, so that their claims count."""
        self._check_server(server)
        wanted = set(fingerprints)
        offered: Sequence[HeldItem | ListedItem]
        if decision == "approve":
            listed = await self._gate.definitions.listed(server)
            offered = [each for each in listed if not each.is_vouched]
        else:
            offered = await self._gate.definitions.held()
        chosen = [each for each in offered if each.item.server == server and each.fingerprint in wanted]
        if not chosen:
            raise AdminError("none of these is offered any more as it was shown: look again")
        problems = [held for held in chosen if held.problem] if decision == "approve" else []
        if problems:
            first = problems[0]
            raise AdminError(f"none was approved: {first.item.kind} {visible(first.item.name)}: {first.problem}")
        if decision == "approve":
            items = [(held.item, held.fingerprint) for held in chosen]
            with as_admin_errors():
                await self._gate.definitions.approve_all(server, items, channel.value)
        else:
            for held in chosen:
                shown = msgspec.structs.replace(held.item, name=visible(held.item.name))
                await self._decide(shown, held.fingerprint, decision, channel)
        self.mark_changed("held", "catalog", "servers")
        count, where = len(chosen), await self._spread(decision)
        return {"done": f"{count} definition{'' if count == 1 else 's'} of {server}: {_OUTCOMES[decision]}.{where}"}

    async def choose_sandbox(self, server: str, sandbox: str, channel: Channel) -> Done:
        """Choose whether an untrusted program is confined that was approved before such programs were."""
        self._check_server(server)
        spec = self._gate.policies.spec(server)
        if spec is None or spec.unconfined is not Unconfined.OPEN:
            raise AdminError(f"about {server} there is nothing to choose: {_why_settled(spec)}")
        with as_admin_errors():
            await self._gate.definitions.choose_sandbox(server, confined=sandbox == "strict", by=channel.value)
        self.mark_changed("servers", "held", "grants")
        outcome = "it is confined" if sandbox == "strict" else "it runs unconfined, until its command is another one"
        return {"done": f"{server}: {outcome}."}

    async def revoke(self, grant: str, channel: Channel) -> Done:
        """Revoke a grant."""
        with as_admin_errors():
            revoked = await self._gate.authorizer.revoke_grant(grant, channel.value)
        if not revoked:
            raise AdminError("there is no such grant (any more)")
        self.mark_changed("grants")
        where = "" if self.spread_grants is None else await self.spread_grants()
        return {"done": f"The grant is revoked{where}."}

    async def explain(
        self, item: Item, arguments: dict[str, Any] | None, caller: str | None = None, view: str = ""
    ) -> Explanation:
        """See `host.policy.explain`. `item`: as people see it, with its name made visible."""
        server, kind = item.server, item.kind
        self._check_server(server)
        endpoint = self.endpoint_of(caller, view)
        if kind not in {each.value for each in Kind}:
            raise AdminError(f"there is no kind {visible(kind)!r}: known are tool, prompt, resource and template")
        ref = self._gate.definitions.ref_of(self._offered(item))
        raw_arguments = None if arguments is None else encode(arguments)
        return explain(self._gate, ref, raw_arguments, caller or "", endpoint.view)

    def endpoint_of(self, caller: str | None, view: str) -> Endpoint:
        """Where a caller comes in; see `ExplainRequest`.

        Raises:
            AdminError: there is no such caller, or view, or the caller does not reach it.
        """
        self._check_caller(caller or "")
        addresses, policies = self._gate.policies.views.addresses, self._gate.policies
        if caller is None:
            endpoint = addresses.own(view)
        else:
            token = policies.callers[caller].token if caller else None
            endpoint = addresses.at(token, suffix_of(view))
        if endpoint is None:
            names = [each.name for each in policies.views if each.name]
            if view in names:
                reached = [each for each in addresses.reached(caller or "") if each]
                whom = f"the caller {caller}" if caller else "a caller without a name"
                raise AdminError(f"{whom} does not reach the view {view}; it reaches {', '.join(reached) or 'none'}")
            remedy = did_you_mean(view, names) or f"it has {', '.join(names) or 'none'}"
            raise AdminError(f"there is no view {visible(view)!r} under views in the configuration; {remedy}")
        return endpoint

    def _offered(self, item: Item) -> Item:
        """The entry with its own name. The page knows names made visible only.

        A resource need not be listed where templates are: they name more resources than the list.

        Raises:
            AdminError: the lists of the server are known and name no such entry, or several that look like it.
        """
        pins, kind, name = self._gate.definitions.pins, Kind(item.kind), item.name
        names = {each: pins.names(item.server, each) for each in Kind}
        alike = [each for each in names[kind] if each == name or visible(each) == name]
        if len(alike) > 1:
            raise AdminError(_ALIKE)
        if alike:
            return msgspec.structs.replace(item, name=alike[0])
        if not any(names.values()) or (kind is Kind.RESOURCE and names[Kind.TEMPLATE]):
            return item
        remedy = did_you_mean(name, names[kind]) or "colonnade list shows its entries"
        raise AdminError(f"{item.server} has no {kind.value} {visible(name)[:200]!r}; {visible(remedy)}")


def _why_settled(spec: ServerSpec | None) -> str:
    if not isinstance(spec, StdioServer):
        return "it is no program"
    if spec.unconfined is Unconfined.CHOSEN:
        return "a person chose that it stays unconfined; write sandbox: strict to have it confined"
    if spec.confined_by_trust:
        return "it is confined, since it is not trusted; write sandbox: off to have it started without"
    return "the file says it (sandbox), or its trust"


@contextmanager
def as_admin_errors() -> Iterator[None]:
    """For the block, what the policy refuses is an AdminError."""
    try:
        yield
    except StaleDecision as problem:
        raise AdminError(str(problem)) from None
    except StateError as problem:
        raise AdminError(f"it cannot be written down: {problem}") from None
    except ColonnadeError as problem:
        raise AdminError(problem.message) from None
