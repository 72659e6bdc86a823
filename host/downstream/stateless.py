"""Stateless requests (2026-07-28): their responses, over HTTP and stdio alike.

There is no session: client, capabilities and log level are in each request. A server request is returned to the client,
which answers it with its next request. The state in that request identifies the call: a parked one, one that its server
continues itself, or one that is sent again after the user has visited pages. Each state is sealed, and valid only for
the same request of the same client; a state that makes Colonnade send a call again is valid once. A parked call ends
with its process, and so does the knowledge which states were used; states of these two kinds name their process.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import cached_property, partial
from typing import TypeAlias

import msgspec
import trio
from msgspec import Raw, Struct

from host.client_process import ClientProcess
from host.downstream.call_store import ByOwner, CallStore
from host.downstream.charge import COPIES
from host.downstream.detached import (
    PARKED_LIFETIME,
    DetachedCall,
    Outcome,
    ParkedCallState,
    RequestsToClient,
    TaskOptions,
)
from host.downstream.error_answers import HOPS, errors_as_answers
from host.downstream.list_changes import Announcements
from host.downstream.tasks import IN_EXTENSION, Tasks
from host.errors import (
    AmbiguousMembers,
    Forbidden,
    Interrupted,
    MethodNotFound,
    MissingAbility,
    TooManyRequests,
    UnknownState,
)
from host.exchange import (
    Answer,
    Answered,
    Caller,
    ClientHandle,
    Exchange,
    InputRequired,
    MrtrRound,
    NoClient,
    ProgressCallback,
    ResolvedName,
)
from host.journal import InternalError, Journal
from host.jsonrpc.messages import Failure, Notification, Request, Success
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, members, string, value
from host.protocol.abilities import Abilities
from host.protocol.codes import as_stateless_error
from host.protocol.log_levels import is_at_least
from host.protocol.meta import progress_token
from host.protocol.methods import (
    COMPLETION_COMPLETE,
    DISCOVER,
    LIST_METHOD_BY_NAME,
    LOG_MESSAGE,
    TARGETED,
    TOOLS_CALL,
)
from host.protocol.mrtr import FIRST_REQUEST, RETRIABLE_METHODS, Retry, input_required, retry_of, with_retry
from host.protocol.server_requests import ELICIT, ServerRequestRejected, adapt, server_request_of, stateless_form
from host.protocol.stateless import CheckedEnvelope, complete_result, discover_result, with_server_info
from host.protocol.tasks import Task, created_in_extension
from host.protocol.versions import STATELESS
from host.router.router import Router, failed_call
from host.seal import InvalidSeal, Seal
from host.source import Endpoint
from host.version import VERSION
from host.wire.deadlines import CallScope
from host.wire.link import LinkLost

SUPPORTED_METHODS = frozenset({DISCOVER, COMPLETION_COMPLETE, *RETRIABLE_METHODS, *LIST_METHOD_BY_NAME, *IN_EXTENSION})
"""Methods that are answered here; besides these only `subscriptions/listen` is served."""
MAX_CANONICAL = 16 * 1024
"""Bytes of a member up to which other spellings of it count as equal when a request is repeated."""
STATE_LIFETIME = 3600.0
"""Seconds for which a server's own state can be returned."""
MAX_SPENT = 10_000
MAX_SPENT_PER_OWNER = 1000
"""Spent states that are not expired. Beyond that, no state that is valid once is accepted."""

_NO_CLIENT = NoClient()

_FIRST_ROUND = MrtrRound()

Tell = Callable[[Notification], object]
"""Puts a notification on the stream of a request, without waiting."""


class StatelessClient(Struct, frozen=True):
    """The sender of a request, as the transport knows it; see `Caller`."""

    name: str
    endpoint: Endpoint
    identity: str | None
    instance: Hashable | None
    mark: Hashable
    session: Hashable | None = None
    process: ClientProcess | None = None

    def caller(self, abilities: Abilities, handle: ClientHandle | None = None, says: str = "") -> Caller:
        """The caller of one request. `handle` is for notifications outside the response; None for none. `says`: see
        `Caller`."""
        handle = _NO_CLIENT if handle is None else handle
        return Caller(
            self.name,
            self.endpoint,
            self.identity,
            abilities,
            self.instance,
            handle,
            self.mark,
            self.session,
            STATELESS,
            self.process,
            says,
        )


class _StatelessHandle(Struct, eq=False):
    """The client handle of one request, which takes no server requests. Implements `host.exchange.ClientHandle`."""

    _tell: Tell
    _level: str | None
    address: str
    through: str
    scope: CallScope | None

    def notify(self, notice: Notification) -> None:
        # Log messages are sent for requests that ask for them (2026-07-28, "Logging").
        if notice.method != LOG_MESSAGE or (self._level is not None and is_at_least(notice, self._level)):
            self._tell(notice)

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        raise LinkLost("the client can be asked nothing while it waits for this")


class _MrtrRequest(Struct, frozen=True, dict=True):
    """One request of a call that may take several. States are bound to it: valid for an equal request of this client,
    at this endpoint."""

    caller: Caller
    method: str
    asked: Mapping[str, Raw]
    """Its params, without what it returns of the previous round; those of the call that it stands for."""
    retry: Retry
    through: str
    """See `Exchange.through`."""

    @cached_property
    def digest(self) -> bytes:
        """Digest that is equal for requests of the same entry with equal arguments, whatever their encoding and their
        other members: none of those says what is called. Those of a retry are judged by the rules like those of any
        request; a parked call goes on with its own."""
        row = TARGETED[self.method]
        target, arguments = self.asked.get(row.target, EMPTY_OBJECT), self.asked.get(row.arguments or "", EMPTY_OBJECT)
        endpoint, identity = msgspec.structs.astuple(self.caller.endpoint), self.caller.identity
        stated = [endpoint, identity, self.method, self.through, _canonical(target), _canonical(arguments)]
        return hashlib.sha256(json.dumps(stated).encode()).digest()


_Place: TypeAlias = ParkedCallState | MrtrRound | Answer
"""Where a call continues with a request; an answer if it cannot."""


class _SpentStates:
    """States that are valid once. A spent one is remembered until its lifetime is over. States of a former process
    count as spent, because their use is unknown.

    Args:
        boot: see `Seal.boot`.
    """

    def __init__(self, boot: str) -> None:
        self._mark = boot + "."
        """Prefix of all ids of this process."""
        self._until: dict[str, float] = {}  # in the order of the times, since all have the same life
        self._by_owner: ByOwner[str] = ByOwner()

    def new_id(self) -> str:
        return self._mark + secrets.token_urlsafe(16)

    def spend(self, id: str, owner: Hashable) -> None:
        """Spend the state of this id.

        Raises:
            InvalidParams: it was spent before, or may have been.
            TooManyRequests: there are too many spent ones to remember this one.
        """
        now = trio.current_time()
        while self._until and self._until[oldest := next(iter(self._until))] <= now:
            del self._until[oldest]
            self._by_owner.drop(oldest)
        if not id.startswith(self._mark):
            raise UnknownState("Colonnade was restarted since it gave out this requestState, which may have been used")
        if id in self._until:
            raise UnknownState
        if not self._by_owner.has_room(owner, max_total=MAX_SPENT, max_per_owner=MAX_SPENT_PER_OWNER):
            raise TooManyRequests("too many requests are repeated after visits to pages; wait some minutes")
        self._until[id] = now + PARKED_LIFETIME
        self._by_owner.add(id, owner)


class Stateless:
    """Answers stateless requests. Calls that may outlive their requests are started in `calls`; `tasks` answers
    requests about tasks. `announcements` are those of clients of both eras; their `run` must run beside it."""

    def __init__(self, router: Router, journal: Journal, calls: CallStore, tasks: Tasks, seal: Seal) -> None:
        self.router = router
        self.journal = journal
        self._calls = calls
        self.tasks = tasks
        self.announcements = Announcements(
            router, lambda problem: journal.note(InternalError("notifying a client of changed lists", problem))
        )
        self._seal = seal
        self._spent = _SpentStates(seal.boot)

    def answer(
        self,
        request: Request,
        params: Mapping[str, Raw],
        stated: CheckedEnvelope,
        caller: Caller,
        tell: Tell,
        target: ResolvedName | None = None,
        address: str = "",
        through: str = "",
        scope: CallScope | None = None,
    ) -> Awaitable[Success | Failure]:
        """The response to one request. Cancelling this cancels the request.

        Args:
            params: the members of the request's params (`error_answers.params_of`).
            stated: their envelope.
            caller: with the abilities of the envelope.
            tell: takes the notifications before the response; later ones are dropped.
            target: the entry that the request names, if the transport had to resolve it.
            address: see `Exchange.address`.
            through: see `Exchange.through`; if not empty, `params` are those of the call that came through it.
            scope: see `Exchange.scope`.
        """
        handle = _StatelessHandle(tell, stated.level, address, through, scope)
        work = partial(self._result, params, stated, caller, handle, target)
        hop = HOPS[stated.revision, caller.process is not None]
        return errors_as_answers(request, work, self.journal, caller.name, as_stateless_error, hop)

    def _result(
        self,
        params: Mapping[str, Raw],
        stated: CheckedEnvelope,
        caller: Caller,
        handle: _StatelessHandle,
        target: ResolvedName | None,
        request: Request,
    ) -> Awaitable[Raw]:
        method = request.method
        if method == DISCOVER:
            return self._discover(caller)
        if method not in SUPPORTED_METHODS:
            raise MethodNotFound.of_method(method)
        if method not in TARGETED and self.router.is_undeclared(caller, method):
            raise MethodNotFound.of_method(method)
        if method in IN_EXTENSION:
            return self._answer_in_extension(request, params, caller)
        turn, at = None, None
        if method in RETRIABLE_METHODS:
            turn = self._turn(request, params, caller, handle)
            at = _FIRST_ROUND if turn.retry is FIRST_REQUEST else self._at(turn)
        work = self._carry_out(request, params, stated, caller, handle, turn, at, target)
        return work if stated.level is None or isinstance(at, Answer) else self._with_level(caller, stated.level, work)

    async def _discover(self, caller: Caller) -> Raw:
        await self.router.upstreams.wait_recalled(caller)
        server = self.router.server_for(caller)
        found = discover_result(
            VERSION,
            self.router.instructions(caller),
            server=server,
            tasks=server is None or server.runs_tasks,
            apps=self.router.shows_apps(caller.endpoint),
            lacking=self.router.lacking(caller),
        )
        return complete_result(DISCOVER, found, VERSION)

    async def _answer_in_extension(self, request: Request, params: Mapping[str, Raw], caller: Caller) -> Raw:
        return with_server_info(self.tasks.answer_in_extension(request, params, caller), VERSION)

    async def _with_level(self, caller: Caller, level: str, work: Awaitable[Raw]) -> Raw:
        self.router.log_levels.set_level(caller, level)
        try:
            return await work
        finally:
            self.router.log_levels.forget(caller)

    async def _carry_out(
        self,
        request: Request,
        params: Mapping[str, Raw],
        stated: CheckedEnvelope,
        caller: Caller,
        handle: _StatelessHandle,
        turn: _MrtrRequest | None,
        at: _Place | None,
        resolved: ResolvedName | None,
    ) -> Raw:
        if turn is None or at is None:
            exchange = Exchange(
                request, params, caller, handle, stated.level, address=handle.address, scope=handle.scope
            )
            answer = await self.router.answer(exchange)
            assert isinstance(answer, Answered)
            return complete_result(request.method, answer.result, VERSION, answer.freshness)
        if isinstance(at, Answer):
            return self._written(turn, at)
        asked = turn.asked
        token = progress_token(asked)
        if isinstance(at, ParkedCallState):
            outcome = await self._calls.resume(caller.owner, at, turn.retry.answers or {}, handle.notify, token)
            if isinstance(outcome, RequestsToClient):
                _check_can_answer(outcome.requests, stated.abilities)
            return self._outcome(turn, outcome)
        target = resolved or await self.router.resolver.resolve(caller, request.method, asked)
        may_park = stated.answers_requests and self.router.may_park(caller, target, turn.through)
        task = self.tasks.options(caller, request.method, target)
        if task is None and not may_park:
            exchange = Exchange(
                request,
                asked,
                caller,
                handle,
                stated.level,
                at,
                target=target,
                address=handle.address,
                through=turn.through,
                scope=handle.scope,
            )
            return self._written(turn, await self.router.answer(exchange))
        work = self._detached_work(request, turn, stated.level, at, task, target, handle.address)
        size = COPIES * len(request.params or b"")
        begun = self._calls.begin(
            caller.owner,
            work,
            handle.notify,
            token,
            may_park=may_park,
            task=task,
            identity=caller.identity,
            over_stdio=caller.process is not None,
            size=size,
        )
        return self._outcome(turn, await begun)

    def _detached_work(
        self,
        request: Request,
        turn: _MrtrRequest,
        level: str | None,
        at: MrtrRound,
        task: TaskOptions | None,
        target: ResolvedName,
        address: str,
    ) -> Callable[[DetachedCall], Awaitable[Raw]]:
        """The work of a call that may outlive its request: it holds no handle of the request. A function of its own,
        because variables that an inner function uses cost every call that has none."""

        async def work(call: DetachedCall) -> Raw:
            on_task = None if task is None else call.follow
            exchange = Exchange(
                request,
                turn.asked,
                turn.caller,
                call,
                level,
                at,
                on_task,
                target,
                address,
                turn.through,
                on_sent=call.note_sent,
            )
            return self._written(turn, await self.router.answer(exchange))

        return work

    # The state that a client returns

    def _turn(
        self, request: Request, params: Mapping[str, Raw], caller: Caller, handle: _StatelessHandle
    ) -> _MrtrRequest:
        """Decode the request.

        Raises:
            InvalidParams: the state or the answers are malformed.
            AmbiguousMembers: see `ToolSearch.unwrap`.
        """
        through = handle.through
        if not through and request.method == TOOLS_CALL.name:
            try:
                params, through = self.router.tool_search.unwrap(caller, params)
            except AmbiguousMembers:
                self.router.record_ambiguous(request, caller, handle.address)
                raise
        retry = retry_of(params)
        asked = params if retry is FIRST_REQUEST else with_retry(params, None, None)
        return _MrtrRequest(caller, request.method, asked, retry, through)

    def _at(self, turn: _MrtrRequest) -> _Place:
        """Find the place where the request continues. Nothing is sent to a server before.

        Raises:
            InvalidParams: the state is malformed, belongs to another request or client, is expired, or was spent; or
                its call ended with another process.
            TooManyRequests: see `_SpentStates`.
            Forbidden, MissingAbility: see `_url_answers`.
        """
        retry, caller = turn.retry, turn.caller
        if retry.state is None:
            return MrtrRound(None, retry.answers, None)
        try:
            content = self._seal.unseal("state", turn.digest, retry.state)
        except InvalidSeal:
            raise UnknownState from None
        kind, *rest = msgspec.json.decode(content)
        if kind == "parked":
            if len(rest) != 4:  # of a version that did not name the process
                raise UnknownState
            id, number, boot, sent_to = rest
            return _lost_call(turn.method, sent_to) if self._seal.has_ended(boot) else ParkedCallState(id, number)
        if kind == "pages":
            _, id, server, pages = msgspec.json.decode(content, type=_Pages)
            self._spent.spend(id, caller.owner)
            return _url_answers(server, pages, retry.answers or {}, turn.method, caller.abilities)
        server, state = rest
        return MrtrRound(server, retry.answers, state)

    def _outcome(self, turn: _MrtrRequest, outcome: Outcome) -> Raw:
        if isinstance(outcome, Task):
            return with_server_info(created_in_extension(outcome), VERSION)
        if isinstance(outcome, RequestsToClient):
            state = outcome.state
            content = ["parked", state.call_id, state.round, self._seal.boot, outcome.sent_to]
            sealed = self._sealed(turn, content, PARKED_LIFETIME)
            requests = {key: stateless_form(*each) for key, each in outcome.requests.items()}
            return with_server_info(input_required(requests, sealed), VERSION)
        return outcome

    def _written(self, turn: _MrtrRequest, answer: Answer) -> Raw:
        if isinstance(answer, InputRequired):
            requests = {key: stateless_form(*each) for key, each in answer.requests.items()}
            if answer.restarts:
                pages = encode_object({key: encode_object(params) for key, (_, params) in requests.items()})
                state = self._sealed(turn, ["pages", self._spent.new_id(), answer.server, pages], PARKED_LIFETIME)
            else:
                state = self._sealed(turn, ["asked", answer.server, answer.state], STATE_LIFETIME)
            return with_server_info(input_required(requests, state, answer.unknown), VERSION)
        return complete_result(turn.method, answer.result, VERSION, answer.freshness)

    def _sealed(self, turn: _MrtrRequest, content: list[object], life: float) -> str:
        return self._seal.seal("state", turn.digest, bytes(encode(content)), life)


_Pages: TypeAlias = tuple[str, str, str, dict[str, dict[str, Raw]]]
"""Content of a state with which a call is sent again: "pages", its id, the server, and the pages by the keys of their
answers."""


def _url_answers(
    server: str,
    pages: Mapping[str, dict[str, Raw]],
    answers: Mapping[str, Raw],
    method: str,
    abilities: Abilities,
) -> MrtrRound | Answer:
    """The outcome of a call whose user must visit these pages first: the call is sent again once all were visited.

    Raises:
        Forbidden: the user declined to visit one.
        MissingAbility: a page is left, and the request no longer declares that its client shows pages.
    """
    if any(key in answers and not _is_accepted(answers[key]) for key in pages):
        refusal = Forbidden(server, f"{server} wants a web page to be visited first, and it was not visited")
        if method == TOOLS_CALL.name:
            return failed_call(refusal)
        raise refusal
    if all(key in answers for key in pages):
        return MrtrRound(server)
    asked = {key: (ELICIT, page) for key, page in pages.items()}
    _check_can_answer(asked, abilities)
    return InputRequired(server, asked, None, restarts=True)


def _lost_call(method: str, sent_to: str) -> Answer:
    """The outcome of a call that was parked in a process that has ended.

    Args:
        sent_to: the server that may have executed it; empty if it had not been sent when it was parked.

    Raises:
        UnknownState: it can be sent again. A tool that may have run is a failed call instead, since a client that
            begins again after this error would run it twice.
    """
    if sent_to and method == TOOLS_CALL.name:
        text = (
            f"Colonnade was restarted while {sent_to} worked on the call; its outcome is unknown, the tool may have run"
        )
        return failed_call(Interrupted(sent_to, text))
    when = "" if sent_to else ", before it was sent to a server"
    raise UnknownState(f"Colonnade was restarted while the call waited for its client{when}")


def _is_accepted(answer: Raw) -> bool:
    try:
        return string(members(answer)["action"]) == "accept"
    except (KeyError, ValueError):
        return False


def _canonical(raw: Raw) -> str:
    if len(raw) > MAX_CANONICAL:  # the client must repeat it literally
        return hashlib.sha256(bytes(raw)).hexdigest()
    try:
        return msgspec.json.encode(value(raw), order="sorted").decode()
    except (ValueError, UnicodeError, RecursionError):  # text that cannot be decoded must be repeated literally
        return bytes(raw).decode()


def _check_can_answer(asked: Mapping[str, tuple[str, Mapping[str, Raw]]], abilities: Abilities) -> None:
    """Check that the client can answer these server requests; each request of a call declares its own capabilities.

    Raises:
        MissingAbility: this request declares too little, though the one that began the call may have declared more.
    """
    for method, params in asked.values():
        try:
            server_request = server_request_of(method, encode_object(params), identified=False)
            if server_request is not None:
                adapt(*server_request, abilities, "")
        except ServerRequestRejected as refusal:
            data = encode({"requiredCapabilities": refusal.missing_capability or {}})
            text = "what is asked now needs a capability that the request does not declare"
            raise MissingAbility(text, data=data) from None
