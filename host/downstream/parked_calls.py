"""Calls that outlive the request they came with: a server asks in the middle of its work, and the client can only be
asked by ending its request with the questions and waiting for the next one, which brings the answers.

Such a call is a task of the lot from its first step, since a task cannot change its nursery. A request that waits for
it is attached to it: there is one at most, and it ends with the outcome, with the questions that are open, or because
a newer one carries the call on. Between two requests the call waits under a deadline, and whoever comes with its ticket
finds it again. The work is begun once, whatever is repeated.

This file knows calls, rounds and deadlines. It knows no transport, no ids of requests and no servers, and it seals
nothing: whoever hands out a ticket binds it to what it is for. (2026-07-28, "Multi Round-Trip Requests")
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import trio
from msgspec import Raw

from host.downstream.kept import (
    AnswerTooLarge,
    ByOwner,
    KeptResults,
    MethodAndParams,
    OpenServerRequests,
    fit_to_keep,
    size_of,
)
from host.errors import ColonnadeError, InvalidParams, TooManyRequests, copy_of
from host.exchange import ClientHandle, ProgressCallback
from host.jsonrpc.messages import Id, Notification
from host.jsonrpc.raw import encode, encode_object, members, value
from host.memory import Budget, Holding, OverBudget, Use, client_owner
from host.protocol.meta import PROGRESS_TOKEN, without_hop_fields
from host.protocol.methods import PROGRESS
from host.router import EXPIRED_STATE_MESSAGE
from host.wire.link import LinkLost

GATHER_DELAY = 0.02
"""Seconds that a question waits for others to go with it: servers ask several at once."""
PARKED_LIFETIME = 600.0
"""Seconds for which a call waits for its client to come back."""
REPLAY_LIFETIME = 60.0
"""Seconds for which an outcome that was delivered can be had again: its response may have been lost on the way."""
MAX_PARKED = 1000
MAX_PER_OWNER = 200
MAX_REPLAYS = 1000
MAX_REPLAY_BYTES = 16 * 1024 * 1024
"""What delivered outcomes may hold together; beyond that the oldest are forgotten before their time."""


@dataclass(frozen=True, slots=True)
class ParkedCallState:
    """Names one round of one call: whoever comes back with it goes on there."""

    call_id: str
    """128 random bits, base64url."""
    round: int
    """1, 2, ..."""


@dataclass(frozen=True, slots=True)
class RequestsToClient:
    """The call waits for its client."""

    state: ParkedCallState
    requests: Mapping[str, MethodAndParams]
    """By its key, the method and the params of each question; a key is never used twice in one call."""


Outcome: TypeAlias = Raw | RequestsToClient


class UnknownState(InvalidParams):
    """The ticket leads nowhere: to no call, to a stranger's, or to a round that is over or never was."""

    def __init__(self) -> None:
        super().__init__(EXPIRED_STATE_MESSAGE)


class SupersededState(InvalidParams):
    """A newer request with the same ticket carries the call on."""

    def __init__(self) -> None:
        super().__init__("another request with this requestState has taken over")


class ParkedCalls:
    """The calls that may have to wait for their clients.

    Args:
        nursery: where the calls run. Cancelling it ends them all.
        crashed: told of every exception that is not an answer; must not wait.
    """

    def __init__(self, nursery: trio.Nursery, crashed: Callable[[Exception], None], memory: Budget) -> None:
        self._memory = memory
        self._nursery = nursery
        self._crashed = crashed
        self._by_owner: ByOwner[_Call] = ByOwner()
        self._waiting: dict[str, _Call] = {}
        self._replays: KeptResults[_Call] = KeptResults()

    def __len__(self) -> int:
        """The calls under way or waiting, without those whose outcome was delivered."""
        return len(self._by_owner)

    async def begin(
        self,
        owner: Hashable,
        work: Callable[[ClientHandle], Awaitable[Raw]],
        tell: Callable[[Notification], None],
        token: Id | None = None,
        *,
        identity: str | None = None,
        size: int = 0,
    ) -> Outcome:
        """Start a call for `owner`, and wait until it is done or asks something. Cancelling this cancels the call.

        Args:
            work: run once, as a task of the lot. Its outlet speaks to whichever request is attached; between two, what
                it tells is lost. An answer comes as the client sent it, and is a JSON object.
            tell: takes what is told while this request is attached; must not wait.
            token: what this request wants progress under; without one it gets none.
            identity: the access token whose clients are charged with what the call holds while no request waits for it.
            size: bytes of the request, which the work holds until its end.

        Raises:
            TooManyRequests: too many calls are in the lot, or there is no memory for this one.
            UnknownState: the lot was closed meanwhile.
            Exception: whatever the work raised.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._by_owner.has_room(owner, max_total=MAX_PARKED, max_per_owner=MAX_PER_OWNER):
            raise TooManyRequests("too many calls that may ask questions are in progress; finish or cancel some first")
        call = _Call(owner, size)
        call.held = self._memory.hold(client_owner(identity), Use.PARKED, drop=partial(_give_way, call))
        http_request = call.visit = _Visit(0, tell, token)
        self._nursery.start_soon(self._run, call, work)
        self._by_owner.add(call, owner)
        return await self._attend(call, http_request)

    async def resume(
        self,
        owner: Hashable,
        state: ParkedCallState,
        answers: Mapping[str, Raw],
        tell: Callable[[Notification], None],
        token: Id | None = None,
    ) -> Outcome:
        """Go on where the ticket was given out, with the answers by their keys: wait until the call is done or asks
        something more. Where an answer is missing, or no JSON object, its question comes back at once under the same
        key; answers to anything else are ignored. Cancelling this cancels the call, unless a newer request has it.

        The ticket before the newest one gets the newest questions again: the response that had them may be lost.

        Raises:
            UnknownState: the ticket is not (or no longer) good, or the lot was closed meanwhile.
            SupersededState: another request came with the same ticket while this one waited.
            Exception: whatever the work raised.
        """
        await trio.lowlevel.checkpoint()
        call = self._find(owner, state)
        if call.delivered is not None:
            assert call.outcome is not None
            return _delivered(call.outcome)
        if call.outcome is None:
            if state.round == call.round:
                call.take(answers)  # what is still open then was asked long enough ago to go back at once
            elif asked := call.still_asked():
                call.wait_for_client()
                return RequestsToClient(ParkedCallState(state.call_id, call.round), asked)
        return await self._attend(call, call.attach(_Visit(state.round, tell, token)))

    def _find(self, owner: Hashable, ticket: ParkedCallState) -> _Call:
        call = self._waiting.get(ticket.call_id)
        # The deadline counts from its moment on, even where the call's own task has not noticed yet.
        if call is None or call.owner != owner or call.scope.cancel_called or not call.goes_on_at(ticket.round):
            raise UnknownState
        return call

    async def _attend(self, call: _Call, http_request: _Visit) -> Outcome:
        try:
            while call.visit is http_request:
                if call.outcome is not None:
                    return self._deliver(call, http_request, call.outcome)
                if call.is_over:
                    raise UnknownState
                due = call.due()
                if due <= trio.current_time():
                    return self._hand_over(call)
                await http_request.moves(due)
            raise SupersededState
        finally:
            if call.visit is http_request:  # still attached: its client has left, and nobody else knows of it
                call.visit = None
                call.end()
                call.scope.cancel("the client no longer waits")

    def _hand_over(self, call: _Call) -> RequestsToClient:
        """Give everything that is open to the client. From now on the call waits for it, and is charged by itself.

        Raises:
            TooManyRequests: there is no memory for that.
        """
        try:
            call.held.resize(call.size)
        except OverBudget:
            text = "there is no memory for calls that wait for their clients (memory); it was called off"
            raise TooManyRequests(text) from None
        if call.id is None:
            call.id = secrets.token_urlsafe(16)
            self._waiting[call.id] = call
        call.next_round()
        return RequestsToClient(ParkedCallState(call.id, call.round), call.asked)

    def _deliver(self, call: _Call, http_request: _Visit, outcome: Raw | Exception) -> Raw:
        call.visit = None
        if call.id in self._waiting:  # otherwise nobody can come back
            call.delivered = http_request.round
            call.scope.deadline = trio.current_time() + REPLAY_LIFETIME
            self._by_owner.drop(call)
            for old in self._replays.add(call, size_of(outcome), max_bytes=MAX_REPLAY_BYTES, max_count=MAX_REPLAYS):
                old.scope.cancel("the outcomes that were delivered hold too much")
        return _delivered(outcome)

    async def _run(self, call: _Call, work: Callable[[ClientHandle], Awaitable[Raw]]) -> None:
        try:
            with call.scope:
                call.end(self._charged(call, await self._outcome(call, work)))
                del work  # it holds the whole request
                if call.round:  # from here on the deadline says how long the outcome is kept
                    await trio.sleep_forever()
        finally:
            call.end()
            call.held.release()
            self._by_owner.drop(call)
            self._replays.drop(call)
            if call.id is not None:
                del self._waiting[call.id]

    def _charged(self, call: _Call, outcome: Raw | Exception) -> Raw | Exception:
        """The outcome, if it is delivered at once, or there is memory to keep it; else the error that says so."""
        if not call.round:
            return outcome
        try:
            call.held.resize(size_of(outcome))
        except OverBudget:
            return AnswerTooLarge()
        return outcome

    async def _outcome(self, call: _Call, work: Callable[[ClientHandle], Awaitable[Raw]]) -> Raw | Exception:
        try:
            result = await work(call)
        except ColonnadeError as problem:
            return fit_to_keep(problem)
        except Exception as problem:  # noqa: BLE001 - it is raised where somebody waits for it
            self._crashed(problem)
            return fit_to_keep(problem)
        return result.copy() if call.round else result  # what may be kept keeps no buffer of its server alive


class _Visit:
    """A request that is attached to a call. `round` is the round of its ticket, 0 for the call's first request."""

    __slots__ = ("_moved", "round", "tell", "token")

    def __init__(self, of: int, tell: Callable[[Notification], None], token: Id | None) -> None:
        self.round = of
        self.tell = tell
        self.token = token
        self._moved: trio.Event | None = None

    async def moves(self, due: float) -> None:
        """Wait for `stir`, or for the time `due`."""
        self._moved = trio.Event()
        if due == math.inf:
            await self._moved.wait()
        else:
            with trio.move_on_at(due):
                await self._moved.wait()

    def stir(self) -> None:
        """Something became of the call: whoever waits looks again."""
        if self._moved is not None:
            self._moved.set()


class _Call:
    """One call and its rounds; the outlet of its work.

    `outcome` is what came of it, once it is done; `delivered` the round that got it first; `requests` what the newest
    round asked, `round` its number, 0 as long as nothing was asked.
    """

    __slots__ = (
        "_last_progress",
        "_open",
        "asked",
        "delivered",
        "held",
        "id",
        "is_over",
        "outcome",
        "owner",
        "round",
        "scope",
        "size",
        "visit",
    )

    held: Holding
    """What it is charged with while it waits for its client, and for its outcome."""

    def __init__(self, owner: Hashable, size: int) -> None:
        self.owner = owner
        self.size = size
        self.id: str | None = None
        self.round = 0
        self.asked: dict[str, MethodAndParams] = {}
        self.visit: _Visit | None = None
        self.scope = trio.CancelScope()
        self.outcome: Raw | Exception | None = None
        self.delivered: int | None = None
        self.is_over = False
        self._open = OpenServerRequests()
        self._last_progress = -math.inf

    # The outlet of the work

    def notify(self, notice: Notification) -> None:
        http_request = self.visit
        if http_request is None or self.is_over:
            return
        if notice.method != PROGRESS:
            http_request.tell(notice)
        elif http_request.token is not None and (found := self._progress(notice)) is not None:
            http_request.tell(
                Notification(PROGRESS, encode_object({**found, PROGRESS_TOKEN: encode(http_request.token)}))
            )

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        """As of any outlet. A question in a round has no progress: `report` hears nothing.

        Raises:
            InvalidParams: `_meta` is no object.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_over or self.scope.cancel_called:
            raise LinkLost("the call that this belongs to is over")
        question = self._open.add(method, without_hop_fields(params))
        if self.visit is not None:
            self.visit.stir()
        try:
            return await question.answer()
        finally:
            self._open.end(question.key)  # if it still is open, it is withdrawn

    def _progress(self, notice: Notification) -> dict[str, Raw] | None:
        """The members of a report that says more than the last one. The value must increase under one token, and a
        client may use the same one in every round."""
        try:
            found = members(notice.params or b"")
            progress = value(found["progress"])
        except (ValueError, KeyError):
            return None
        if isinstance(progress, bool) or not isinstance(progress, int | float) or progress <= self._last_progress:
            return None
        self._last_progress = progress
        return found

    # Its rounds

    def due(self) -> float:
        """When the open questions go to the client; never, if there is none."""
        for question in self._open:  # the oldest stands first
            return question.since + GATHER_DELAY
        return math.inf

    def next_round(self) -> None:
        self.round += 1
        self.asked = self._open.by_key()
        self.visit = None
        self.wait_for_client()

    def wait_for_client(self) -> None:
        self.scope.deadline = trio.current_time() + PARKED_LIFETIME

    def still_asked(self) -> dict[str, MethodAndParams]:
        """What the newest round asked and is still open."""
        return {key: asked for key, asked in self.asked.items() if key in self._open}

    def goes_on_at(self, number: int) -> bool:
        """Whether a ticket of this round is good: the newest, and the one before it until the newest is used."""
        if self.delivered is not None:
            return self.delivered <= number <= self.round
        newest_is_used = self.visit is not None and self.visit.round == self.round
        return number == self.round or (1 <= number == self.round - 1 and not newest_is_used)

    def take(self, answers: Mapping[str, Raw]) -> None:
        """Give the answers to those who wait for them, out of what the newest round asked."""
        for key in self.still_asked():
            if key in answers:
                self._open.answer(key, answers[key])

    def attach(self, http_request: _Visit) -> _Visit:
        """From now on this request waits for the call, and no other."""
        before, self.visit = self.visit, http_request
        if before is not None:
            before.stir()
        self.scope.deadline = math.inf
        return http_request

    def end(self, outcome: Raw | Exception | None = None) -> None:
        """It is over: nothing more is told or asked. Once is enough; of later outcomes none counts."""
        if self.is_over:
            return
        self.is_over = True
        self.outcome = outcome
        self.asked = {}  # what is kept from here on keeps no question's buffer alive
        self._open.end_all()
        if self.visit is not None:
            self.visit.stir()


def _give_way(call: _Call) -> None:
    call.held.release()
    call.scope.cancel("its memory is needed elsewhere")


def _delivered(outcome: Raw | Exception) -> Raw:
    if isinstance(outcome, Exception):
        raise copy_of(outcome)  # the one that is kept must not hold the stacks of all who got it
    return outcome


@asynccontextmanager
async def open_parked_calls(crashed: Callable[[Exception], None], memory: Budget) -> AsyncIterator[ParkedCalls]:
    """A lot for the block; see `ParkedCalls`. When it ends, its calls are cancelled."""
    async with trio.open_nursery() as nursery:
        yield ParkedCalls(nursery, crashed, memory)
        nursery.cancel_scope.cancel("the host is stopping")
