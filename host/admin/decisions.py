"""Decisions of a person about definitions and grants, passed to the gate: that of a running host, or one of the stored
state where none runs. Each gives one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from config import Channel, Trust
from config.problems import did_you_mean
from host.admin.schema import AdminError, Done, LoginProposal, ServerLog
from host.errors import ColonnadeError
from host.jsonrpc.raw import encode
from host.policy.explain import explain
from host.policy.gate import Gate
from host.policy.pins import StaleDecision
from host.policy.rows import Explanation
from host.protocol.methods import Kind
from host.sanitize import visible
from host.slices import Steps
from host.storage.store import StateError
from host.subject import Item
from host.wire.descent import PeerProcess

T = TypeVar("T")

_OUTCOMES = {
    "approve": "approved",
    "reject": "rejected, it stays out",
    "revoke": "held back until it is approved again",
}


_ALIKE = "several names look like this one: rename them, or deny them by a rule"
NO_HOST = "no host of this configuration runs (colonnade serve)"


class PolicyAdmin:
    """The part of the admin API that needs no running host. All methods raise AdminError if it cannot be done."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def attributed_to(self, peer: PeerProcess, steps: Steps[T]) -> Steps[T]:
        """These steps, which carry out a request of this process. The audit records the process with each decision."""
        return self._gate.decision_log.attributed_to(peer.audit_fields(), steps)

    def record_refused_peer(self, peer: PeerProcess, why: str, unrecorded: int = 0) -> None:
        """Record that a process that may not decide tried to."""
        self._gate.decision_log.record_refused_peer(peer.audit_fields(), why, unrecorded)

    def mark_changed(self, *sections: str) -> None:
        """These sections of the state have changed."""

    def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> Steps[Done]:
        """Always raises: where no host runs, no confirmation waits."""
        yield None
        raise AdminError("no host of this configuration runs, so no confirmation is pending")

    def deny_all(self, server: str, ids: list[str], channel: Channel) -> Steps[Done]:
        """Always raises: no host runs."""
        yield None
        raise AdminError(NO_HOST)

    def decide(self, item: Item, fingerprint: str, decision: str, channel: Channel) -> Steps[Done]:
        """Approve, reject or revoke a definition, which must be the one that was shown. `item`: as people see it, with
        its name made visible."""
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
        with _as_admin_errors():
            yield from decide(next(iter(matches), item), fingerprint, channel.value)
        self.mark_changed("held", "catalog", "servers")
        return {"done": f"The {item.kind} {item.name} of {item.server}: {_OUTCOMES[decision]}.".replace("  ", " ")}

    def decide_all(self, server: str, fingerprints: list[str], decision: str, channel: Channel) -> Steps[Done]:
        """Decide about all definitions of one server that were shown; see `decide`."""
        wanted = set(fingerprints)
        chosen = [
            held for held in self._gate.definitions.held() if held.item.server == server and held.fingerprint in wanted
        ]
        if not chosen:
            raise AdminError("none of these is held back any more: look again")
        problems = [held for held in chosen if held.problem] if decision == "approve" else []
        if problems:
            first = problems[0]
            raise AdminError(f"none was approved: {first.item.kind} {visible(first.item.name)}: {first.problem}")
        if decision == "approve":
            items = [(held.item, held.fingerprint) for held in chosen]
            with _as_admin_errors():
                yield from self._gate.definitions.approve_all(server, items, channel.value)
        else:
            for held in chosen:
                shown = msgspec.structs.replace(held.item, name=visible(held.item.name))
                yield from self.decide(shown, held.fingerprint, decision, channel)
        self.mark_changed("held", "catalog", "servers")
        count = len(chosen)
        return {"done": f"{count} definition{'' if count == 1 else 's'} of {server}: {_OUTCOMES[decision]}."}

    def revoke(self, grant: str, channel: Channel) -> Steps[Done]:
        """Revoke a grant."""
        with _as_admin_errors():
            revoked = yield from self._gate.authorizer.revoke_grant(grant, channel.value)
        if not revoked:
            raise AdminError("there is no such grant (any more)")
        self.mark_changed("grants")
        return {"done": "The grant is revoked."}

    def explain(self, item: Item, arguments: dict[str, Any] | None) -> Steps[Explanation]:
        """See `host.policy.explain`. `item`: as people see it, with its name made visible."""
        yield None
        server, kind = item.server, item.kind
        if not self._gate.policies.has_server(server):
            remedy = did_you_mean(server, self._gate.policies.servers()) or "colonnade check shows its servers"
            raise AdminError(f"there is no server {visible(server)!r} in the configuration; {remedy}")
        if kind not in {each.value for each in Kind}:
            raise AdminError(f"there is no kind {visible(kind)!r}: known are tool, prompt, resource and template")
        ref = self._gate.definitions.ref_of(self._offered(item))
        return explain(self._gate, ref, None if arguments is None else encode(arguments))

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

    def control(self, server: str, action: str) -> Steps[Done]:
        """Always raises: no host runs."""
        yield None
        raise AdminError(NO_HOST)

    def reload(self, *, apply: bool, shown: str | None) -> Steps[Done]:
        """Always raises: no host runs."""
        yield None
        raise AdminError(NO_HOST)

    def login(self, server: str, channel: Channel) -> Steps[LoginProposal]:
        """Always raises: no host runs."""
        yield None
        raise AdminError(NO_HOST)

    def server_log(self, server: str, after: int) -> Steps[ServerLog]:
        """Always raises: no host runs."""
        yield None
        raise AdminError(NO_HOST)


@contextmanager
def _as_admin_errors() -> Iterator[None]:
    try:
        yield
    except StaleDecision as problem:
        raise AdminError(str(problem)) from None
    except StateError as problem:
        raise AdminError(f"it cannot be written down: {problem}") from None
    except ColonnadeError as problem:
        raise AdminError(problem.message) from None
