"""How a server is spoken to, from the first words on: which kind of revision it speaks, and the handshake if it speaks
one that has a handshake.

A server is asked with `server/discover`, which only stateless revisions know, and then greeted if it does not know that
(2026-07-28, "Versioning and Negotiation / Backward Compatibility"). Three kinds of servers make this a race: some exit
when they are asked anything before the handshake, some say nothing at all, and some are only slow to start. So a silent
one is greeted while the question stands, and what it answers decides; a connection is never of both kinds. One that
then answers the question and does not take the greeting was only slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import trio
from msgspec import Raw

from host.errors import HeaderMismatch, UnsupportedVersion
from host.jsonrpc.raw import encode_object, members
from host.jsonrpc.strict import has_more_tokens
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import MAX_TOKENS, Peer
from host.protocol.handshake import UnsupportedRevision, initialize_params, read_initialize_result
from host.protocol.methods import DISCOVER, INITIALIZE, INITIALIZED, PING
from host.protocol.negotiated import NegotiatedServer
from host.protocol.param_headers import ParamHeader, headers_for
from host.protocol.probe import (
    Handshake,
    Incompatible,
    RetryWith,
    Stateless,
    Verdict,
    verdict_of_error,
    verdict_of_result,
)
from host.protocol.stateless import discover_params, with_envelope
from host.protocol.versions import LATEST, Revision
from host.version import VERSION
from host.wire.link import Link, LinkLost

T = TypeVar("T")

PROBE_TIMEOUT = 2.0
"""Seconds after which a program that has said nothing is greeted, whatever it may answer later."""
LATE_PROBE_TIMEOUT = 5.0
"""Seconds that a program which refuses the handshake may still take to answer what it was asked before."""
MAX_ANSWER = 1024 * 1024
"""Bytes of the answer to a greeting, or to `server/discover`: instructions, and perhaps icons."""
LATE_INITIALIZE_WAIT = 1.0
"""Seconds that a program which was greeted, and then turned out to be stateless, still has to take the greeting."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server wants to be spoken to, as far as that is known; kept from one connection to the next.

    `may_be_stateless` and `may_be_handshake` are what is still possible; of a server that may do both it is found out.
    """

    may_be_stateless: bool = True
    may_be_handshake: bool = True
    initialize_on_silence: bool = True
    """Whether a program that may do both, and says nothing, is greeted: it may not know the question, or be slow."""
    http_sse: bool = False
    """Whether it turned out to speak the transport of old (HTTP+SSE)."""


class HandshakeOnly(LinkLost):
    """The server ended when it was asked before the handshake; another one that is not asked may serve."""


class StatelessOnly(LinkLost):
    """The server said that it is stateless, but ended because it was greeted; another one that is not may serve."""


async def negotiate(
    link: Link, peer: Peer[T], capabilities: Mapping[str, object], dialect: Dialect, *, is_process: bool
) -> NegotiatedServer:
    """Open the conversation with a server, which may ask for `capabilities`, and settle the link on its revision.

    Args:
        is_process: it is a program, which may exit or stay silent when it is asked too early. What is at a URL always
            answers, or is out of order.

    Raises:
        HandshakeOnly, StatelessOnly: it must be started again, for a `dialect` that says so.
        PeerError, BrokenAnswer, LinkLost: the server refused, answered with something else, or is gone.
        UnsupportedRevision: it speaks only revisions that we do not speak.
    """
    if not dialect.may_be_stateless:
        return await initialize(link, peer, capabilities)
    probe = _Probe(peer, capabilities)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        impatient = is_process and dialect.may_be_handshake and dialect.initialize_on_silence
        with trio.move_on_after(PROBE_TIMEOUT if impatient else float("inf")):
            await probe.ended.wait()
        try:
            negotiated = await _probe_and_decide(link, peer, capabilities, dialect, probe, is_process)
        finally:
            nursery.cancel_scope.cancel("the server has been found out")
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
        return await initialize_while_probing(link, peer, capabilities, probe)
    if isinstance(verdict, Stateless):
        return _settle_stateless(link, verdict)
    if isinstance(verdict, Incompatible) or not dialect.may_be_handshake:
        raise UnsupportedRevision(
            verdict.why if isinstance(verdict, Incompatible) else "it speaks none that is stateless"
        )
    return await initialize(link, peer, capabilities)


async def initialize_while_probing(
    link: Link, peer: Peer[T], capabilities: Mapping[str, object], probe: _Probe
) -> NegotiatedServer:
    """Greet a program that has said nothing yet. It shakes hands if it takes the greeting, in time if it is stateless;
    otherwise its answer to the first question counts."""
    answer: Raw | None = None
    problem: PeerError | BrokenAnswer | LinkLost | None = None
    try:
        with probe.initialize_scope:
            answer = await peer.request(INITIALIZE, initialize_params(VERSION, capabilities))
    except (PeerError, BrokenAnswer, LinkLost) as error:
        problem = error
    if answer is not None:
        # Outside the scope of that patience: a handshake that was half made must not end as something else.
        return await _read_initialize_result(link, peer, answer)
    with trio.move_on_after(LATE_PROBE_TIMEOUT):
        await probe.ended.wait()
    verdict = probe.verdict
    if isinstance(verdict, Stateless):
        if problem is not None and peer.ended.is_set():
            raise StatelessOnly(str(peer.lost)) from problem
        return _settle_stateless(link, verdict)
    if isinstance(verdict, Incompatible):
        raise UnsupportedRevision(verdict.why) from problem
    if isinstance(problem, LinkLost):
        # It was slow to hear the first question, and then exited at it.
        raise HandshakeOnly(str(problem)) from problem
    assert problem is not None  # patience ends only with a server that is stateless
    raise probe.lost or problem


def _settle_stateless(link: Link, verdict: Stateless) -> NegotiatedServer:
    link.settle(verdict.negotiated.revision)
    return verdict.negotiated


class _Probe:
    """The question and what came of it: `verdict`, or `lost`, once `ended` is set.

    `initialize_scope` is for whoever greets the server meanwhile: it ends some time after the server says that it is
    stateless."""

    def __init__(self, peer: Peer[T], capabilities: Mapping[str, object]) -> None:
        self._peer = peer
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
            if isinstance(verdict, Stateless):
                self.initialize_scope.deadline = trio.current_time() + LATE_INITIALIZE_WAIT
        except LinkLost as lost:
            self.lost = lost
        self.ended.set()

    async def _discover(self, revision: Revision, *, may_retry: bool) -> Verdict:
        params = discover_params(revision, self._capabilities, VERSION)
        headers = tuple(headers_for(DISCOVER, params, revision))
        try:
            return verdict_of_result(
                _bounded_result(await self._peer.request(DISCOVER, encode_object(params), headers=headers))
            )
        except PeerError as refusal:
            return verdict_of_error(refusal.error.code, refusal.error.data, asked=revision.name, may_retry=may_retry)
        except BrokenAnswer:
            return Handshake()
        except LinkLost as lost:
            if lost.answered:
                return Handshake()
            raise


class EraChanged(LinkLost):
    """The server does not speak any more what it was met in."""

    answered = True


def era_change_in(refusal: PeerError) -> EraChanged | None:
    """Why a handshake server is lost that refuses a ping as only stateless ones do; None for any other refusal. In
    answer to a call such a refusal is only a reason to ping it: the code may be the tool's own."""
    if refusal.error.code not in (UnsupportedVersion.code, HeaderMismatch.code):
        return None
    return EraChanged("it shakes hands no more: it is another server by now")


async def check_still_stateless(peer: Peer[T], capabilities: Mapping[str, object]) -> LinkLost | None:
    """Ask a server that was met as stateless who it is: None if it still is; else why it is lost, EraChanged if it is
    there and is another."""
    probe = _Probe(peer, capabilities)
    await probe.run()
    if probe.lost is None and not isinstance(probe.verdict, Stateless):
        return EraChanged("it does not speak the revision any more that it did")
    return probe.lost


async def check_still_handshake(peer: Peer[T]) -> EraChanged | None:
    """Ping a handshake server that seems to be another one: None if it still answers as one."""
    try:
        await peer.request(PING)
    except PeerError as refusal:
        return era_change_in(refusal)
    except (BrokenAnswer, LinkLost):
        pass  # the end of the connection is found out elsewhere
    return None


async def initialize(link: Link, peer: Peer[T], capabilities: Mapping[str, object]) -> NegotiatedServer:
    """Open the conversation as its client, which may be asked for `capabilities` (2025-11-25, "Lifecycle /
    Initialization").

    Raises:
        PeerError, BrokenAnswer, LinkLost: the server refused, answered with something else, or is gone.
        UnsupportedRevision: it answered with a revision that we do not speak.
    """
    return await _read_initialize_result(
        link, peer, await peer.request(INITIALIZE, initialize_params(VERSION, capabilities))
    )


async def _read_initialize_result(link: Link, peer: Peer[T], answer: Raw) -> NegotiatedServer:
    """Conclude the handshake with a server that has answered the greeting; raises as `initialize` does."""
    try:
        negotiated = read_initialize_result(_bounded_result(answer))
    except UnsupportedRevision as problem:
        raise UnsupportedRevision(f"it speaks {problem}") from None
    except ValueError as problem:
        raise BrokenAnswer(str(problem)) from None
    link.settle(negotiated.revision)
    await peer.notify(INITIALIZED)
    return negotiated


def _bounded_result(answer: Raw) -> Raw:
    """The same answer.

    Raises:
        BrokenAnswer: it holds too much to be opened in the event loop.
    """
    if len(answer) > MAX_ANSWER:
        raise BrokenAnswer(f"it holds more than {MAX_ANSWER} bytes")
    if has_more_tokens(bytes(answer), MAX_TOKENS):
        raise BrokenAnswer(f"it holds more than {MAX_TOKENS} structural characters")
    return answer


async def internal_request(
    peer: Peer[T],
    revision: Revision,
    capabilities: Mapping[str, object],
    method: str,
    params: Raw | None,
    *,
    subject: T | None = None,
    param_headers: Iterable[ParamHeader] = (),
) -> Raw:
    """Ask a server for something of its own, on no client's behalf: the result as it came. `capabilities` is what it
    may ask for meanwhile, `param_headers` what headers repeat of the arguments.

    Raises:
        PeerError, BrokenAnswer, LinkLost: see `Peer.request`.
    """
    if not revision.stateless:
        return await peer.request(method, params, subject)
    request_params = {} if params is None else members(params)
    stateless_params = with_envelope(
        request_params, revision, capabilities, level=None, client_version=VERSION, token=None
    )
    headers = tuple(headers_for(method, stateless_params, revision, param_headers))
    return await peer.request(method, encode_object(stateless_params), subject, headers)
