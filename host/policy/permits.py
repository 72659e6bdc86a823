"""Permits: proof that what is to be sent was admitted. Without one, no request reaches a server or a client.

Only `gate` and `server_requests` issue them; a test holds that nothing else imports `ISSUER`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from msgspec import Raw

from host.exchange import Caller, Exchange
from host.policy.grants import AccessRequest, Grant
from host.policy.rules import RuleDecision
from host.protocol.methods import Kind
from host.protocol.server_requests import ServerRequest

ISSUER = object()


@dataclass(frozen=True, slots=True, eq=False)
class _Permit:
    issuer: object

    def __post_init__(self) -> None:
        if self.issuer is not ISSUER:
            raise TypeError("only the policy makes permits")


@final
@dataclass(frozen=True, slots=True, eq=False)
class CallPermit(_Permit):
    """Proof that this exchange may reach this entry of this server."""

    exchange: Exchange
    server: str
    kind: Kind
    target: str
    """The entry's own name or URI at the server."""
    decision: RuleDecision
    epoch: int
    """The state of the policy at the time; nothing has to be looked at again while it is the same."""
    access: AccessRequest | None = None
    """What a person was asked; None if nobody had to be."""
    grant: Grant | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class ServerRequestPermit(_Permit):
    """Proof that this request of a server may be put to this client."""

    server: str
    request: ServerRequest
    raw_arguments: Raw
    caller: Caller
    decision: RuleDecision
    access: AccessRequest | None = None
    grant: Grant | None = None
