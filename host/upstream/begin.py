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
from host.outstanding import BrokenAnswer, PeerError
from host.peer import MAX_TOKENS, Peer
from host.protocol.handshake import WrongRevision, greeting, offer
from host.protocol.methods import DISCOVER, INITIALIZE, INITIALIZED, PING
from host.protocol.mirror import Mirror, headers_for
from host.protocol.offer import ServerOffer
from host.protocol.probe import Again, Handshake, Incompatible, Stateless, Verdict, judge_answer, judge_error
from host.protocol.stateless import discover_params, enveloped
from host.protocol.versions import LATEST, Revision
from host.version import VERSION
from host.wire.link import Link, LinkLost

T = TypeVar("T")

SILENCE = 2.0
"""Seconds after which a program that has said nothing is greeted, whatever it may answer later."""
LATE = 5.0
"""Seconds that a program which refuses the handshake may still take to answer what it was asked before."""
MAX_ANSWER = 1024 * 1024
"""Bytes of the answer to a greeting, or to `server/discover`: instructions, and perhaps icons."""
LATE_GREETING = 1.0
"""Seconds that a program which was greeted, and then turned out to be stateless, still has to take the greeting."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a server wants to be spoken to, as far as that is known; kept from one connection to the next.

    `may_be_stateless` and `may_shake_hands` are what is still possible; of a server that may do both it is found out.
    """

    may_be_stateless: bool = True
    may_shake_hands: bool = True
    greets_silence: bool = True
    """Whether a program that may do both, and says nothing, is greeted: it may not know the question, or be slow."""
    older: bool = False
    """Whether it turned out to speak the transport of old (HTTP+SSE)."""


class ShakesHandsOnly(LinkLost):
    """The server ended when it was asked before the handshake; another one that is not asked may serve."""


class StatelessOnly(LinkLost):
    """The server said that it is stateless, but ended because it was greeted; another one that is not may serve."""


async def begin(link: Link, peer: Peer[T], asks: Mapping[str, object], manner: Manner, *, exits: bool) -> ServerOffer:
    """Open the conversation with a server, which may ask for `asks`, and settle the link on its revision.

    Args:
        exits: it is a program: it may exit or say nothing when it is asked too early. What is at a URL always answers,
            or is out of order.

    Raises:
        ShakesHandsOnly, StatelessOnly: it must be started again, for a `manner` that says so.
        PeerError, BrokenAnswer, LinkLost: the server refused, answered with something else, or is gone.
        WrongRevision: it speaks only revisions that we do not speak.
    """
    if not manner.may_be_stateless:
        return await shake_hands(link, peer, asks)
    probe = _Probe(peer, asks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        impatient = exits and manner.may_shake_hands and manner.greets_silence
        with trio.move_on_after(SILENCE if impatient else float("inf")):
            await probe.ended.wait()
        try:
            offered = await _decide(link, peer, asks, manner, probe, exits)
        finally:
            nursery.cancel_scope.cancel("the server has been found out")
    return offered


async def _decide(
    link: Link, peer: Peer[T], asks: Mapping[str, object], manner: Manner, probe: _Probe, exits: bool
) -> ServerOffer:
    if probe.lost is not None:
        if exits and manner.may_shake_hands:
            raise ShakesHandsOnly(str(probe.lost)) from probe.lost
        raise probe.lost
    verdict = probe.verdict
    if verdict is None:
        return await _greet_meanwhile(link, peer, asks, probe)
    if isinstance(verdict, Stateless):
        return _met(link, verdict)
    if isinstance(verdict, Incompatible) or not manner.may_shake_hands:
        raise WrongRevision(verdict.why if isinstance(verdict, Incompatible) else "it speaks none that is stateless")
    return await shake_hands(link, peer, asks)


async def _greet_meanwhile(link: Link, peer: Peer[T], asks: Mapping[str, object], probe: _Probe) -> ServerOffer:
    """Greet a program that has said nothing yet. It shakes hands if it takes the greeting, in time if it is stateless;
    otherwise its answer to the first question counts."""
    answer: Raw | None = None
    problem: PeerError | BrokenAnswer | LinkLost | None = None
    try:
        with probe.patience:
            answer = await peer.request(INITIALIZE, greeting(VERSION, asks))
    except (PeerError, BrokenAnswer, LinkLost) as found:
        problem = found
    if answer is not None:
        # Outside the scope of that patience: a handshake that was half made must not end as something else.
        return await _shaken(link, peer, answer)
    with trio.move_on_after(LATE):
        await probe.ended.wait()
    verdict = probe.verdict
    if isinstance(verdict, Stateless):
        if problem is not None and peer.ended.is_set():
            raise StatelessOnly(str(peer.lost)) from problem
        return _met(link, verdict)
    if isinstance(verdict, Incompatible):
        raise WrongRevision(verdict.why) from problem
    if isinstance(problem, LinkLost):
        # It was slow to hear the first question, and then exited at it.
        raise ShakesHandsOnly(str(problem)) from problem
    assert problem is not None  # patience ends only with a server that is stateless
    raise probe.lost or problem


def _met(link: Link, verdict: Stateless) -> ServerOffer:
    link.settle(verdict.offer.revision)
    return verdict.offer


class _Probe:
    """The question and what came of it: `verdict`, or `lost`, once `ended` is set.

    `patience` is for whoever greets the server meanwhile: it ends some time after the server says that it is stateless.
    """

    def __init__(self, peer: Peer[T], asks: Mapping[str, object]) -> None:
        self._peer = peer
        self._asks = asks
        self.verdict: Verdict | None = None
        self.lost: LinkLost | None = None
        self.ended = trio.Event()
        self.patience = trio.CancelScope()

    async def run(self) -> None:
        try:
            verdict = await self._ask(LATEST, again=True)
            if isinstance(verdict, Again):
                verdict = await self._ask(verdict.revision, again=False)
            self.verdict = verdict
            if isinstance(verdict, Stateless):
                self.patience.deadline = trio.current_time() + LATE_GREETING
        except LinkLost as lost:
            self.lost = lost
        self.ended.set()

    async def _ask(self, revision: Revision, *, again: bool) -> Verdict:
        params = discover_params(revision, self._asks, VERSION)
        headers = tuple(headers_for(DISCOVER, params, revision))
        try:
            return judge_answer(_small(await self._peer.request(DISCOVER, encode_object(params), headers=headers)))
        except PeerError as refusal:
            return judge_error(refusal.error.code, refusal.error.data, asked=revision.name, again=again)
        except BrokenAnswer:
            return Handshake()
        except LinkLost as lost:
            if lost.answered:
                return Handshake()
            raise


class OtherNow(LinkLost):
    """The server does not speak any more what it was met in."""

    answered = True


def other_now(refusal: PeerError) -> OtherNow | None:
    """Why a handshake server is lost that refuses a ping as only stateless ones do; None for any other refusal. In
    answer to a call such a refusal is only a reason to ping it: the code may be the tool's own."""
    if refusal.error.code not in (UnsupportedVersion.code, HeaderMismatch.code):
        return None
    return OtherNow("it shakes hands no more: it is another server by now")


async def still_stateless(peer: Peer[T], asks: Mapping[str, object]) -> LinkLost | None:
    """Ask a server that was met as stateless who it is: None if it still is; else why it is lost, OtherNow if it is
    there and is another."""
    probe = _Probe(peer, asks)
    await probe.run()
    if probe.lost is None and not isinstance(probe.verdict, Stateless):
        return OtherNow("it does not speak the revision any more that it did")
    return probe.lost


async def still_shakes_hands(peer: Peer[T]) -> OtherNow | None:
    """Ping a handshake server that seems to be another one: None if it still answers as one."""
    try:
        await peer.request(PING)
    except PeerError as refusal:
        return other_now(refusal)
    except (BrokenAnswer, LinkLost):
        pass  # the end of the connection is found out elsewhere
    return None


async def shake_hands(link: Link, peer: Peer[T], asks: Mapping[str, object]) -> ServerOffer:
    """Open the conversation as its client, which may be asked for `asks` (2025-11-25, "Lifecycle / Initialization").

    Raises:
        PeerError, BrokenAnswer, LinkLost: the server refused, answered with something else, or is gone.
        WrongRevision: it answered with a revision that we do not speak.
    """
    return await _shaken(link, peer, await peer.request(INITIALIZE, greeting(VERSION, asks)))


async def _shaken(link: Link, peer: Peer[T], answer: Raw) -> ServerOffer:
    """Conclude the handshake with a server that has answered the greeting; raises as `shake_hands` does."""
    try:
        offered = offer(_small(answer))
    except WrongRevision as problem:
        raise WrongRevision(f"it speaks {problem}") from None
    except ValueError as problem:
        raise BrokenAnswer(str(problem)) from None
    link.settle(offered.revision)
    await peer.notify(INITIALIZED)
    return offered


def _small(answer: Raw) -> Raw:
    """The same answer.

    Raises:
        BrokenAnswer: it holds too much to be opened in the event loop.
    """
    if len(answer) > MAX_ANSWER:
        raise BrokenAnswer(f"it holds more than {MAX_ANSWER} bytes")
    if has_more_tokens(bytes(answer), MAX_TOKENS):
        raise BrokenAnswer(f"it holds more than {MAX_TOKENS} structural characters")
    return answer


async def ask(
    peer: Peer[T],
    revision: Revision,
    asks: Mapping[str, object],
    method: str,
    params: Raw | None,
    *,
    subject: T | None = None,
    mirrors: Iterable[Mirror] = (),
) -> Raw:
    """Ask a server for something of its own, on no client's behalf: the result as it came. `asks` is what it may ask
    for meanwhile, `mirrors` what headers repeat of the arguments.

    Raises:
        PeerError, BrokenAnswer, LinkLost: see `Peer.request`.
    """
    if not revision.stateless:
        return await peer.request(method, params, subject)
    found = {} if params is None else members(params)
    stated = enveloped(found, revision, asks, level=None, client_version=VERSION, token=None)
    headers = tuple(headers_for(method, stated, revision, mirrors))
    return await peer.request(method, encode_object(stated), subject, headers)
