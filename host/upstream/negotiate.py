"""Negotiation with a server: detection of its era, and the handshake if it has one.

A server first gets `server/discover`, which only stateless revisions have, and `initialize` if it does not know that
(2026-07-28, "Versioning and Negotiation / Backward Compatibility"). Three kinds of servers make this a race: some exit
when they get any request before the handshake, some do not respond at all, and some are only slow to start. A silent
program therefore gets `initialize` while the probe is still open, and the first response decides. A connection is never
of both eras. A server that then answers the probe and refuses `initialize` was only slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import trio
from msgspec import Raw, Struct
from msgspec.structs import replace

from host.errors import HeaderMismatch, UnsupportedVersion
from host.jsonrpc.raw import encode_object, members
from host.jsonrpc.strict import has_more_tokens
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import MAX_TOKENS, Peer
from host.protocol.handshake import (
    UnsupportedRevision,
    initialize_params,
    names_version,
    offers_after,
    read_initialize_result,
)
from host.protocol.meta import with_progress_token
from host.protocol.methods import DISCOVER, INITIALIZE, INITIALIZED, PING
from host.protocol.negotiated import NegotiatedServer
from host.protocol.param_headers import ParamHeader, headers_for
from host.protocol.probe import (
    Handshake,
    Incompatible,
    RetryWith,
    StatelessServer,
    Verdict,
    verdict_of_error,
    verdict_of_result,
)
from host.protocol.stateless import discover_params, with_envelope
from host.protocol.versions import HANDSHAKES, LATEST, SERVED, SESSION, Revision
from host.version import VERSION
from host.wire.http_errors import OLDER_REMEDY, AuthNeeded, HttpRefused
from host.wire.link import Link, LinkLost
from host.wire.refusal_text import said_of

T = TypeVar("T")

PROBE_TIMEOUT = 2.0
"""Seconds after which a silent program gets `initialize`."""
LATE_PROBE_TIMEOUT = 5.0
"""Seconds in which a program that refused `initialize` may still respond to the probe."""
MAX_ANSWER = 1024 * 1024
"""Bytes of the result of `initialize` or `server/discover`: instructions, and perhaps icons."""
LATE_INITIALIZE_WAIT = 1.0
"""Seconds in which a program that answered the probe as a stateless server may still respond to `initialize`."""


class Dialect(Struct, frozen=True):
    """Facts about the era and the transport of a server, kept from one connection to the next.

    `may_be_stateless` and `may_be_handshake`: the eras that are possible; if both are, the server is probed.
    """

    may_be_stateless: bool = True
    may_be_handshake: bool = True
    initialize_on_silence: bool = True
    """A silent program of unknown era gets `initialize`: it may not respond to unknown requests, or be slow."""
    http_sse: bool = False
    """The server supports only HTTP+SSE (2024-11-05)."""
    offers: tuple[Revision, ...] = HANDSHAKES
    """The handshake revisions that may be used, in the order in which they are offered: the next one if the server
    refuses one."""

    def after(self, negotiated: NegotiatedServer) -> Dialect:
        """The dialect for the next connection to a server: what it accepted after it had refused newer revisions is
        offered first."""
        if not negotiated.refused_newer or negotiated.revision not in self.offers:
            return self
        others = (each for each in HANDSHAKES if each in self.offers and each is not negotiated.revision)
        return replace(self, offers=(negotiated.revision, *others))


class HandshakeOnly(LinkLost):
    """The server ended because it got a request before the handshake. A new one must not be probed."""


class StatelessOnly(LinkLost):
    """The server is stateless, but ended because it got `initialize`. A new one must not get it."""


class OlderOnly(LinkLost):
    """The server refused the revision of `initialize`, and ended. A new one is offered the `offers`."""

    def __init__(self, refused: PeerError | HttpRefused, offers: tuple[Revision, ...]) -> None:
        super().__init__(str(refused) if isinstance(refused, HttpRefused) else handshake_refusal(refused))
        self.said = refused.said if isinstance(refused, HttpRefused) else said_of(refused.error)
        self.offers = offers


def handshake_refusal(refused: PeerError) -> str:
    """The reason why a server cannot be used that answers `initialize` with an error. The server's own words are not in
    it, because clients are told the reason."""
    return f"it refused the handshake (error {refused.error.code})"


async def negotiate(
    link: Link, peer: Peer[T], capabilities: Mapping[str, object], dialect: Dialect, *, is_process: bool
) -> NegotiatedServer:
    """Detect the era of a server, do the handshake if it has one, and set the link's revision.

    Args:
        capabilities: the client capabilities to declare.
        is_process: the server is a program, which may exit or stay silent at an early request. A server at a URL always
            responds, or is out of order.

    Raises:
        HandshakeOnly, StatelessOnly, OlderOnly: the server must be started again, with a `dialect` of that era, or of
            those revisions, only.
        PeerError, BrokenAnswer, LinkLost: the server refused, sent an invalid response, or is gone.
        UnsupportedRevision: the server shares no revision with Colonnade.
    """
    if not dialect.may_be_stateless:
        return await initialize(link, peer, capabilities, dialect.offers)
    probe = _Probe(peer, capabilities)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        has_timeout = is_process and dialect.may_be_handshake and dialect.initialize_on_silence
        with trio.move_on_after(PROBE_TIMEOUT if has_timeout else float("inf")):
            await probe.ended.wait()
        try:
            negotiated = await _probe_and_decide(link, peer, capabilities, dialect, probe, is_process)
        finally:
            nursery.cancel_scope.cancel("the era is known")
    return negotiated


async def _probe_and_decide(
    link: Link, peer: Peer[T], capabilities: Mapping[str, object], dialect: Dialect, probe: _Probe, is_process: bool
) -> NegotiatedServer:
    if probe.lost is not None:
        if is_process and dialect.may_be_handshake:
            raise HandshakeOnly(str(probe.lost)) from probe.lost
        raise probe.lost
    verdict = probe.verdict
    if verdict is None:
        return await initialize_while_probing(link, peer, capabilities, dialect.offers, probe)
    if isinstance(verdict, StatelessServer):
        return _settle_stateless(link, verdict)
    if isinstance(verdict, Incompatible) or not dialect.may_be_handshake:
        raise UnsupportedRevision(
            verdict.why if isinstance(verdict, Incompatible) else "it supports no stateless revision"
        )
    return await initialize(link, peer, capabilities, dialect.offers)


async def initialize_while_probing(
    link: Link, peer: Peer[T], capabilities: Mapping[str, object], offers: tuple[Revision, ...], probe: _Probe
) -> NegotiatedServer:
    """Send `initialize` to a program that has not responded to the probe. If it accepts `initialize` (in time, if it
    then answers the probe as a stateless server), it is a handshake server; otherwise its response to the probe
    counts."""
    answer: Raw | None = None
    problem: PeerError | BrokenAnswer | LinkLost | None = None
    try:
        with probe.initialize_scope:
            answer = await peer.request(INITIALIZE, initialize_params(VERSION, capabilities, offers[0]))
    except (PeerError, BrokenAnswer, LinkLost) as error:
        problem = error
    if answer is not None:
        # Outside `initialize_scope`: a handshake that has begun must be completed.
        return await _read_initialize_result(link, peer, answer, offers[0], offers)
    with trio.move_on_after(LATE_PROBE_TIMEOUT):
        await probe.ended.wait()
    verdict = probe.verdict
    if isinstance(verdict, StatelessServer):
        if problem is not None and peer.ended.is_set():
            raise StatelessOnly(str(peer.lost)) from problem
        return _settle_stateless(link, verdict)
    if isinstance(verdict, Incompatible):
        raise UnsupportedRevision(verdict.why) from problem
    if isinstance(problem, LinkLost):
        # It was slow to read the probe, and then exited because of it.
        raise HandshakeOnly(str(problem)) from problem
    assert problem is not None  # the scope times out only for a stateless server
    if probe.lost is None and isinstance(problem, PeerError) and (left := offers_after(problem.error, offers[1:])):
        return await _offer(link, peer, capabilities, left, offers, problem)
    raise probe.lost or problem


def _settle_stateless(link: Link, verdict: StatelessServer) -> NegotiatedServer:
    link.settle(verdict.negotiated.revision)
    return verdict.negotiated


class _Probe:
    """A `server/discover` and its outcome: `verdict`, or `lost`, once `ended` is set.

    `initialize_scope`: for an `initialize` that is sent meanwhile; it ends LATE_INITIALIZE_WAIT seconds after the
    server has answered as a stateless one."""

    def __init__(self, peer: Peer[T], capabilities: Mapping[str, object], *, is_known: bool = False) -> None:
        self._peer = peer
        self._is_known = is_known
        """The server is known as a stateless one: a failure of it is no answer, also if it says so in JSON-RPC."""
        self._capabilities = capabilities
        self.verdict: Verdict | None = None
        self.lost: LinkLost | None = None
        self.ended = trio.Event()
        self.initialize_scope = trio.CancelScope()

    async def run(self) -> None:
        try:
            verdict = await self._discover(LATEST, may_retry=True)
            if isinstance(verdict, RetryWith):
                verdict = await self._discover(verdict.revision, may_retry=False)
            self.verdict = verdict
            if isinstance(verdict, StatelessServer):
                self.initialize_scope.deadline = trio.current_time() + LATE_INITIALIZE_WAIT
        except LinkLost as lost:
            self.lost = lost
        self.ended.set()

    async def _discover(self, revision: Revision, *, may_retry: bool) -> Verdict:
        params = discover_params(revision, self._capabilities, VERSION)
        headers = headers_for(DISCOVER, params, revision)
        try:
            return verdict_of_result(
                _bounded_result(await self._peer.request(DISCOVER, encode_object(params), headers=headers))
            )
        except PeerError as refusal:
            return verdict_of_error(refusal.error.code, refusal.error.data, asked=revision.name, may_retry=may_retry)
        except BrokenAnswer:
            return Handshake()
        except LinkLost as lost:
            if self._is_known and isinstance(lost, HttpRefused) and lost.status >= 500:
                lost.answered = False
            if lost.answered:
                return Handshake()
            if isinstance(lost, HttpRefused) and lost.status == 500:
                lost.remedy = f"its own log says more; if it fails at {DISCOVER} alone, write protocol: legacy"
            raise


class EraChanged(LinkLost):
    """The server does not support the negotiated revision any more."""

    answered = True


def era_change_in(refusal: PeerError) -> EraChanged | None:
    """The error for a handshake server that refused a ping as only stateless servers do; None for any other refusal. If
    a call is refused like this, the server is pinged first, because the code may be the tool's own."""
    if refusal.error.code not in (UnsupportedVersion.code, HeaderMismatch.code):
        return None
    return EraChanged("it is stateless now: another server has taken its place")


async def check_still_stateless(peer: Peer[T], capabilities: Mapping[str, object]) -> LinkLost | None:
    """Probe a stateless server again. None if it is still stateless; otherwise the reason to end the connection:
    EraChanged if it responds in another way."""
    probe = _Probe(peer, capabilities, is_known=True)
    await probe.run()
    if probe.lost is None and not isinstance(probe.verdict, StatelessServer):
        return EraChanged("it does not support its former revision any more")
    return probe.lost


async def check_still_handshake(peer: Peer[T]) -> EraChanged | None:
    """Ping a handshake server whose era may have changed. None if it still responds as a handshake server."""
    try:
        await peer.request(PING)
    except PeerError as refusal:
        return era_change_in(refusal)
    except (BrokenAnswer, LinkLost):
        pass  # the end of the connection is noticed elsewhere
    return None


async def initialize(
    link: Link, peer: Peer[T], capabilities: Mapping[str, object], offers: tuple[Revision, ...] = HANDSHAKES
) -> NegotiatedServer:
    """Do the handshake, and declare `capabilities` (2025-11-25, "Lifecycle / Initialization"). A server that refuses
    the revision instead of selecting another one is offered the next one.

    Args:
        offers: see `Dialect`.

    Raises:
        PeerError, BrokenAnswer, LinkLost: the server refused, sent an invalid response, or is gone.
        OlderOnly: it refused a revision, and ended.
        UnsupportedRevision: the server selected a revision that may not be used.
    """
    return await _offer(link, peer, capabilities, offers, offers)


async def _offer(
    link: Link,
    peer: Peer[T],
    capabilities: Mapping[str, object],
    left: Sequence[Revision],
    offers: tuple[Revision, ...],
    first: PeerError | HttpRefused | None = None,
) -> NegotiatedServer:
    """Offer the revisions that are `left`, one after another, as far as the refusals permit. If the server accepts
    none, the first refusal is raised."""
    while True:
        try:
            answer = await peer.request(INITIALIZE, initialize_params(VERSION, capabilities, left[0]))
        except (PeerError, LinkLost) as problem:
            if isinstance(problem, PeerError):
                left = offers_after(problem.error, left[1:])
            elif isinstance(problem, HttpRefused) and problem.status == 400:
                left = left[1:]
            elif first is not None and peer.ended.is_set():
                raise OlderOnly(first, (*left, *(each for each in offers if each not in left))) from problem
            else:
                raise
            first = first or problem
            if not left:
                raise first from None
        else:
            return await _read_initialize_result(link, peer, answer, left[0], offers)


async def _read_initialize_result(
    link: Link, peer: Peer[T], answer: Raw, offered: Revision, offers: tuple[Revision, ...]
) -> NegotiatedServer:
    """Complete the handshake with the result of `initialize`; raises as `initialize` does."""
    try:
        negotiated = read_initialize_result(_bounded_result(answer))
    except UnsupportedRevision as problem:
        raise UnsupportedRevision(f"it selected {problem}, Colonnade supports only {', '.join(SERVED)}") from None
    except ValueError as problem:
        raise BrokenAnswer(str(problem)) from None
    if negotiated.revision not in offers:
        raise UnsupportedRevision(f"it selected {negotiated.revision.name}, but its protocol key says {offered.name}")
    if offered is not next(each for each in HANDSHAKES if each in offers):
        negotiated = replace(negotiated, refused_newer=True)
    link.settle(negotiated.revision)
    try:
        await peer.notify(INITIALIZED)
    except AuthNeeded:
        raise
    except LinkLost as lost:
        raise _refused_initialized(lost) from lost
    return negotiated


def _refused_initialized(lost: LinkLost) -> LinkLost:
    """The error for a server that accepted `initialize`, and so speaks this transport, but not what follows it."""
    if not isinstance(lost, HttpRefused) and not lost.ended_session:
        return lost
    status = lost.status if isinstance(lost, HttpRefused) else 404
    refused = HttpRefused(status, f"it accepted {INITIALIZE} and refused {INITIALIZED}")
    refused.may_be_http_sse = refused.lasting = False
    refused.said = lost.said
    if names_version(lost.said):
        refused.remedy = OLDER_REMEDY
    return refused


def _bounded_result(answer: Raw) -> Raw:
    """The result unchanged.

    Raises:
        BrokenAnswer: the result is too large to be decoded in the event loop.
    """
    if len(answer) > MAX_ANSWER:
        raise BrokenAnswer(f"the result has more than {MAX_ANSWER} bytes")
    if has_more_tokens(bytes(answer), MAX_TOKENS):
        raise BrokenAnswer(f"the result has more than {MAX_TOKENS} structural characters")
    return answer


async def internal_request(
    peer: Peer[T],
    revision: Revision,
    capabilities: Mapping[str, object],
    method: str,
    params: Raw | None,
    *,
    subject: T | None = None,
    param_headers: Sequence[ParamHeader] = (),
    token: int | None = None,
) -> Raw:
    """Send a request of Colonnade's own in the form of the revision, and return the result unchanged.

    Args:
        capabilities: the client capabilities that a stateless request declares.
        param_headers: the annotated parameters of the tool that is called.
        token: the progress token, if progress is wanted.

    Raises:
        PeerError, BrokenAnswer, LinkLost: see `Peer.request`.
    """
    if revision.era is SESSION:
        return await peer.request(method, with_progress_token(params, token), subject)
    request_params = {} if params is None else members(params)
    stateless_params = with_envelope(
        request_params, revision, capabilities, level=None, client_version=VERSION, token=token
    )
    headers = headers_for(method, stateless_params, revision, param_headers)
    return await peer.request(method, encode_object(stateless_params), subject, headers)
