"""What a server says by itself: notices, log messages, and questions for the client it is working for.

A question reaches the one client that it is certainly meant for, on the stream of the request it belongs to, or nobody.
Certain is: the transport says which request it came with; or the connection serves one client alone; or everything that
the server may be working on at that moment is from one client. Anything else would be a guess, and a wrong guess shows
one client's affairs to another.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Hashable
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import trio
from msgspec import Raw

from config.globs import MAX_LENGTH
from host.asking import BrokenAnswer, PeerError
from host.errors import UNCONFIRMED, ColonnadeError, InvalidParams
from host.exchange import Caller, ClientHandle
from host.journal import InternalError, Journal, MessageDropped, ServerRequestRefused, excerpt
from host.jsonrpc.conversation import CANCELLED, cancelled_id
from host.jsonrpc.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ErrorBody,
    Id,
    Notification,
    Request,
)
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, members, pick, string
from host.names import outward_uri
from host.peer import Behind, Peer
from host.policy.gate import Gate
from host.policy.server_requests import NOT_ALLOWED_MESSAGE
from host.protocol.abilities import NO_ABILITIES
from host.protocol.levels import named
from host.protocol.links import rename_in_result
from host.protocol.meta import TOKEN, progress_token
from host.protocol.methods import LISTINGS, LOGGED, PING, PROGRESS, UPDATED, Kind
from host.protocol.questions import (
    COMPLETE_NOTICE,
    ELICIT,
    SAMPLED_LINKS,
    CannotAsk,
    Question,
    completed_id,
    completion,
    elicitation_id,
    fit,
    question_of,
    refuse_unspoken,
    with_elicitation_id,
)
from host.protocol.rounds import RETRIED, elicitation_cancelled
from host.protocol.subscriptions import ACKNOWLEDGED, untagged
from host.protocol.tasks import TASK_STATUS, TASKS_NOTIFIED, related_to
from host.protocol.versions import LATEST_LEGACY, Revision
from host.upstream.origin import Hold, Origin
from host.wire.link import LinkLost
from host.wire.noise import Noise, TooNoisy

ANSWER_PATIENCE = 600.0
"""Seconds that a question waits for its answer."""
RETRY_PATIENCE = ANSWER_PATIENCE - 10
"""The same, of a client that answers by repeating its request. Its call is kept for as long as ANSWER_PATIENCE: the
server shall have time to end it before."""
MAX_QUESTIONS = 8
"""Questions that may be open for one call at once."""
MAX_ELICITATIONS = 1000
"""Visits to pages that one connection remembers; of older ones nobody hears that they are done."""
MAX_UPDATE = 4096
"""Bytes of the params of a notice that a resource changed; of larger ones only the URI is passed on. Such notices wait
for clients that do not listen, and nothing but the URI has a meaning in them."""
LOGS_A_SECOND = 200
LOG_SIZE = 1024
"""Bytes of a log message that is to be cleaned which count as one message more."""
USELESS = frozenset(
    {"invalid message", "notification too large", "request too large", "unknown id", "unexpected notification"}
)
"""The reasons for dropping a message that count against the budget of the connection (`noise`)."""
NO_ROOTS = Raw(b'{"roots":[]}')
SEVERAL = (
    "several requests are in flight, and it is not certain which one is meant (with isolation: per-call it would be)"
)


class Elicitations:
    """The visits to pages that users were asked for, by the server's id: who was asked, and under which id. A server
    to which all clients are one may send several of them to the same page. Clients that are gone are not kept."""

    def __init__(self) -> None:
        self._known: dict[str, WeakKeyDictionary[Caller, str]] = {}

    def mint(self, caller: Caller, id: str) -> str:
        """The id that the client gets instead of the server's: two servers may use the same."""
        known = self._known.get(id)
        if known is None:
            while len(self._known) >= MAX_ELICITATIONS:
                del self._known[next(iter(self._known))]
            known = self._known[id] = WeakKeyDictionary()
        return known.setdefault(caller, secrets.token_urlsafe(12))

    def done(self, id: str) -> list[tuple[Caller, str]]:
        """Whoever was asked under the server's id, and under which; known no more from now on."""
        return list(self._known.pop(id, {}).items())


class Listens(Protocol):
    """The requests of one connection that stand open for what changes; see `listening.py`."""

    def heard(self, notice: Notification, behind: Behind[Origin]) -> bool: ...

    def called_off(self, id: Id, behind: Behind[Origin]) -> None: ...


class Voice:
    """Hears one connection of a server.

    Args:
        title: what people call the server.
        owner: the one client that the connection serves, None as long as it may serve several.
        updated: told of the URI of a resource that changed, with the members of the notice that are passed on.
        listeners: whoever wants log messages that belong to no request.
    """

    def __init__(
        self,
        server: str,
        title: str,
        gate: Gate,
        journal: Journal,
        *,
        owner: Callable[[], Caller | None],
        updated: Callable[[str, dict[str, Raw]], None],
        listeners: Callable[[], Collection[Caller]] = tuple,
    ) -> None:
        self.changed: Callable[[list[Kind]], None] | None = None
        """Told of the kinds whose lists may have changed; None where nobody lists over this connection."""
        self.listening: Listens | None = None
        """What a stateless server tells of changes, once it is listened to."""
        self.spoken: Revision = LATEST_LEGACY
        """The revision settled with the server."""
        self.elicitations = Elicitations()
        self.tasks: dict[str, Origin] = {}
        """What the tasks of the server's belong to, by their ids."""
        self.guests: list[Origin] = []
        """Exchanges that wait for this connection to be ready: it is opened on their behalf."""
        self.lose: Callable[[LinkLost], None] | None = None
        """Ends the connection."""
        self._noise = Noise(trio.current_time())
        self._server = server
        self.title = title
        self._gate = gate
        self._journal = journal
        self._owner = owner
        self._updated = updated
        self._listeners = listeners
        self._logs = (0, 0)

    def owner_of(self, subject: Origin) -> Hashable:
        return None if subject.listens else subject.exchange.caller.key  # nothing is worked on for who only listens

    def on_dropped(self, what: str, detail: str) -> None:
        self._journal.note(MessageDropped(self._server, what, detail))
        if what in USELESS:
            self._count_useless()

    def _count_useless(self) -> None:
        if not self._noise.more(trio.current_time()) and self.lose is not None:
            self.lose(TooNoisy())

    # Notifications

    def on_notification(self, notice: Notification, behind: Behind[Origin]) -> None:
        kinds = [listing.kind for listing in LISTINGS.values() if listing.changed == notice.method]
        listening = self.listening
        says_change = bool(kinds) or notice.method in (UPDATED, ACKNOWLEDGED)
        if self.spoken.stateless and says_change and (listening is None or not listening.heard(notice, behind)):
            return  # without a request that asked for it, a stateless server may say nothing of changes
        if notice.method == CANCELLED:
            id = cancelled_id(notice)
            if listening is not None and id is not None:
                listening.called_off(id, behind)
        elif notice.method in (TASK_STATUS, TASKS_NOTIFIED):
            return  # tasks are asked about
        elif kinds:
            if self.changed is not None:
                self.changed(kinds)
        elif notice.method == UPDATED:
            self._tell_updated(notice)
        elif notice.method == LOGGED:
            self._log(notice, behind)
        elif notice.method == COMPLETE_NOTICE:
            self._complete(notice)
        else:
            self.on_dropped("unexpected notification", excerpt(notice.method))

    def _tell_updated(self, notice: Notification) -> None:
        params = notice.params or b""
        try:
            found = untagged(members(params)) if len(params) <= MAX_UPDATE else pick(params, frozenset(("uri",)))
            uri = string(found["uri"])
        except (ValueError, KeyError):
            self.on_dropped("invalid message", f"{UPDATED} without a uri")
            return
        if len(uri) > MAX_LENGTH:
            self.on_dropped("invalid message", f"{UPDATED} with a uri of more than {MAX_LENGTH} characters")
            return
        self._updated(uri, found)

    def _log(self, notice: Notification, behind: Behind[Origin]) -> None:
        """A log message goes where its request goes; one that belongs to none, to whoever asked for log messages."""
        second, count = self._logs
        now = int(trio.current_time())
        cost = 1
        if notice.params is not None and self._gate.policies.sanitizes(self._server):
            cost += len(notice.params) // LOG_SIZE
        self._logs = now, count + cost if now == second else cost
        if self._logs[1] > LOGS_A_SECOND:
            self.on_dropped("too many log messages", f"more than {LOGS_A_SECOND} in one second")
            return
        found = self._origins(behind, beside_ours=True)
        if len(found) > 1 and found[-1].exchange.caller.abilities.retries:
            return  # each request of such a client has a stream of its own, and nothing says which one is meant
        if found:
            caller = found[-1].exchange.caller
            self._tell_log(self._fit(notice), caller, found[-1].exchange.client)
            return
        owner = self._owner()
        if owner is None and (behind.exact or self.spoken.stateless):
            return  # it belongs to one request, which is over or cannot be told: nobody else's affair
        callers = list(self._listeners()) if owner is None else [owner]
        if callers:
            notice = self._fit(notice)
        for caller in callers:
            self._tell_log(notice, caller, caller.client)

    def _fit(self, notice: Notification) -> Notification:
        if notice.params is None:
            return notice
        return Notification(notice.method, self._gate.policies.sanitize(self._server, notice.params))

    def _tell_log(self, notice: Notification, caller: Caller, outlet: ClientHandle) -> None:
        # At a server's own endpoint nothing is renamed.
        outlet.notify(named(notice, self._server) if caller.endpoint is None else notice)

    def _complete(self, notice: Notification) -> None:
        id = completed_id(notice.params)
        params = self._fit(notice).params
        for caller, minted in self.elicitations.done(id) if id is not None else ():
            caller.client.notify(completion(minted, params))

    # Questions

    def on_request(self, peer: Peer[Origin], request: Request, behind: Behind[Origin]) -> Callable[[], Awaitable[Raw]]:
        if request.method == PING:
            return _pong
        if self.spoken.stateless:
            self._count_useless()
            # Its questions stand in its answers, where it is certain whose they are.
            return partial(_refuse, CannotAsk(METHOD_NOT_FOUND, f"{self.spoken.name} has no requests to clients"))
        try:
            asked = question_of(request.method, request.params)
            if asked is None:
                self._count_useless()
                raise CannotAsk(METHOD_NOT_FOUND, "this client does not offer that method")
            question, params = asked
            refuse_unspoken(question, self.spoken)
            if not self._gate.server_requests.allows(self._server, question):
                code = INVALID_PARAMS if question is Question.URL else METHOD_NOT_FOUND
                raise self._not_asked(question, code, NOT_ALLOWED_MESSAGE)
            return self._whom(peer, request, question, params, behind)
        except CannotAsk as refusal:
            return partial(_refuse, refusal)

    def _whom(
        self,
        peer: Peer[Origin],
        request: Request,
        question: Question,
        params: dict[str, Raw],
        behind: Behind[Origin],
    ) -> Callable[[], Awaitable[Raw]]:
        """Find the client that is meant. From now on the question ends with what it belongs to."""
        task = self.tasks.get(related_to(request.params) or "")
        origins = self._origins(behind) if task is None else [task]
        owner = self._owner()
        if len(origins) > 1 and any(origin.exchange.caller.abilities.retries for origin in origins):
            if question is Question.ROOTS:
                return _no_roots
            # Such a client is asked by the answer to one of its requests: in that of another the question would be put
            # under the wrong name, and hold up a call that it has nothing to do with.
            raise self._not_asked(question, INVALID_PARAMS, SEVERAL)
        if origins:
            caller = origins[-1].exchange.caller
        elif question is Question.ROOTS and owner is not None and owner.abilities is NO_ABILITIES:
            return _no_roots  # there is nobody to be asked outside a request
        elif owner is not None and (question is Question.ROOTS or not (behind.abandoned or behind.is_over)):
            caller = owner  # it may be asked out of the blue, but not for a request that is over or just called off
        elif question is Question.ROOTS:
            return _no_roots  # servers ask as soon as they are greeted, when there is no client yet
        else:
            raise self._not_asked(question, INVALID_PARAMS, self._uncertain(behind))
        asked = {hold for origin in origins for hold in origin.questions}
        if origins and len(asked) >= MAX_QUESTIONS * len(origins):
            raise self._not_asked(question, INVALID_PARAMS, f"more than {MAX_QUESTIONS} questions for one call")
        try:
            fitted = self._fitted(question, params, caller)
            token = progress_token(params)
        except InvalidParams as problem:
            raise CannotAsk(INVALID_PARAMS, problem.message) from None
        except CannotAsk as refusal:
            if origins and caller.abilities.retries:
                origins[-1].lacks = refusal.lacks
            raise
        if question is Question.URL:
            fitted = with_elicitation_id(fitted, self.elicitations.mint(caller, elicitation_id(fitted)))
        retries = bool(origins) and _retried(origins[-1])

        def asking(hold: Hold) -> Callable[[], Awaitable[Raw]]:
            ask = partial(_ask, peer, hold, request.method, fitted, token, behind.about, retries)
            return partial(self._consented, question, fitted, caller, ask)

        hold = Hold(origins, caller.client)
        at_large = None
        if question is Question.ROOTS and origins and owner is not None and task is None and not behind.exact:
            # Servers ask as they start, beside a call that may be over long before the answer comes.
            at_large = None if caller.abilities.retries else asking(Hold([], owner.client))
        return partial(self._held, hold, asking(hold), at_large)

    def fitted(self, asked: tuple[Question, dict[str, Raw]], caller: Caller) -> dict[str, Raw]:
        """The params of a question in an unfinished answer, as the caller may get them.

        Raises:
            CannotAsk: it may not be asked this.
        """
        question, params = asked
        if not self._gate.server_requests.allows(self._server, question):
            raise self._not_asked(question, INVALID_PARAMS, NOT_ALLOWED_MESSAGE)
        fitted = self._fitted(question, params, caller)
        if question is Question.URL and not caller.abilities.retries:  # who repeats requests knows no ids
            fitted = with_elicitation_id(fitted, secrets.token_urlsafe(12))
        return fitted

    async def consent(self, question: Question, params: dict[str, Raw], caller: Caller) -> None:
        """Return once a question in an unfinished answer, fitted for the caller, may be handed to it. What it answers
        does not come by here.

        Raises:
            ColonnadeError: it may not; see `Gate.admit_question`.
        """
        with self._gate.server_requests.dispatch(
            await self._gate.server_requests.admit(self._server, question, params, caller)
        ) as trace:
            trace.outcome = "handed on"

    async def put(self, origin: Origin, question: Question, method: str, params: dict[str, Raw]) -> Raw:
        """Have the origin's client answer a question that was fitted for it: its answer as it came. While it is asked,
        the origin's clock stands still.

        Raises:
            PeerError: it refused, or did not answer.
        """
        hold = Hold([origin], origin.exchange.client)
        ask = partial(_ask, None, hold, method, params, None, None, _retried(origin))
        return await self._held(hold, partial(self._consented, question, params, origin.exchange.caller, ask))

    async def _consented(
        self, question: Question, params: dict[str, Raw], caller: Caller, ask: Callable[[], Awaitable[Raw]]
    ) -> Raw:
        """The client's answer, once the question may be put to it: of its roots, those that the server may know."""
        try:
            with self._gate.server_requests.dispatch(
                await self._gate.server_requests.admit(self._server, question, params, caller)
            ):
                answer = await ask()
            return (
                answer
                if question is not Question.ROOTS
                else await self._gate.server_requests.filter_roots(self._server, answer, caller)
            )
        except ColonnadeError as refusal:
            self._journal.note(
                ServerRequestRefused(self._server, f"{question.value} question", excerpt(refusal.message))
            )
            raise PeerError(ErrorBody(refusal.code, refusal.message, refusal.data)) from None

    def _fitted(self, question: Question, params: dict[str, Raw], caller: Caller) -> dict[str, Raw]:
        cautious = self._gate.server_requests.check(self._server, question, params)
        fitted = fit(question, cautious, caller.abilities, self.title)
        if question is Question.SAMPLING and caller.endpoint is None:
            return _with_outward_links(fitted, self._server)
        return fitted

    def _origins(self, behind: Behind[Origin], *, beside_ours: bool = False) -> list[Origin]:
        """The exchanges in flight that a message may belong to, all of one client; none if that is not certain.
        `beside_ours`: it is, even while something of our own is asked: what belongs to that is nobody's secret."""
        if behind.exact:
            return [origin for origin in behind.open if not origin.is_ours]
        owner = self._owner()
        if owner is not None:
            return [origin for origin in behind.open if origin.exchange.caller.key == owner.key] or self.guests
        origins = [origin for origin in behind.open if not origin.listens and not (beside_ours and origin.is_ours)]
        callers = behind.abandoned.union(origin.exchange.caller.key for origin in origins)
        return origins if len(callers) == 1 and not any(origin.is_ours for origin in origins) else []

    def _uncertain(self, behind: Behind[Origin]) -> str:
        if behind.exact:
            return "the request that it belongs to is over"
        if not behind.open:
            return "no client's request is in flight"
        return "it is not certain which client is meant (with isolation: per-client it would be)"

    def _not_asked(self, question: Question, code: int, why: str) -> CannotAsk:
        self._journal.note(ServerRequestRefused(self._server, f"{question.value} question", why))
        return CannotAsk(code, why)

    async def _held(
        self, hold: Hold, ask: Callable[[], Awaitable[Raw]], at_large: Callable[[], Awaitable[Raw]] | None = None
    ) -> Raw:
        """The answer, as long as somebody is left whom the question may belong to. `at_large` asks outside any request,
        whatever becomes of those; tried first, if there is a way to the client."""
        hold.stop_clocks()
        try:
            if at_large is not None:
                with suppress(LinkLost):
                    return await at_large()
            with hold.asked():
                await trio.lowlevel.checkpoint_if_cancelled()  # what is over already is not even asked
                return await ask()
            raise PeerError(ErrorBody(INTERNAL_ERROR, "the request that this belongs to is over"))
        except PeerError:
            raise
        except (BrokenAnswer, LinkLost) as problem:
            raise PeerError(ErrorBody(INTERNAL_ERROR, f"the client did not answer: {problem}")) from None
        except Exception as problem:  # noqa: BLE001 - one question's trouble must not end the connection
            self._journal.note(InternalError(self._server, problem))
            raise PeerError(ErrorBody(INTERNAL_ERROR, "Internal error in Colonnade")) from None
        finally:
            hold.release()


def _with_outward_links(params: dict[str, Raw], server: str) -> dict[str, Raw]:
    """The params of a sampling question whose tool results name resources as the client can bring them back."""
    renamed = rename_in_result(encode_object(params), SAMPLED_LINKS, lambda uri: outward_uri(server, uri))
    return members(renamed)


def _retried(origin: Origin) -> bool:
    """Whether its client answers questions by repeating the request."""
    return origin.exchange.caller.abilities.retries and origin.exchange.request.method in RETRIED


async def _pong() -> Raw:
    return EMPTY_OBJECT


async def _no_roots() -> Raw:
    return NO_ROOTS


async def _refuse(refusal: CannotAsk) -> Raw:
    raise PeerError(ErrorBody(refusal.code, refusal.why))


async def _ask(
    peer: Peer[Origin] | None,
    hold: Hold,
    method: str,
    params: dict[str, Raw],
    token: Id | None,
    about: Id | None,
    retries: bool,
) -> Raw:
    """The client's answer. `retries`: it answers by repeating its request, or goes away without a word; then a question
    to its user is as good as closed."""
    patience = RETRY_PATIENCE if retries else ANSWER_PATIENCE
    closes = retries and method == ELICIT
    try:
        with trio.move_on_after(patience):
            if token is None or peer is None:
                answer = await hold.outlet.request(method, params, None)
            else:
                answer = await _ask_with_progress(peer, hold.outlet, method, params, token, about)
            if not is_object(answer):
                raise PeerError(ErrorBody(INTERNAL_ERROR, "the client's answer is not an object"))
            return answer
    except LinkLost:
        if not closes:
            raise
    if closes:
        return elicitation_cancelled()
    raise PeerError(ErrorBody(UNCONFIRMED, f"nobody answered within {patience:.0f} s"))


async def _ask_with_progress(
    peer: Peer[Origin], outlet: ClientHandle, method: str, params: dict[str, Raw], token: Id, about: Id | None
) -> Raw:
    """The same, while the client's progress goes to the server under the server's own token. Reports that come faster
    than they can be sent are one: the newest."""
    newest: dict[str, Raw] | None = None
    some = trio.Event()

    def report(found: dict[str, Raw]) -> None:
        nonlocal newest
        newest = found
        some.set()

    async def relay() -> None:
        nonlocal newest, some
        while True:
            await some.wait()
            some = trio.Event()
            found, newest = newest, None
            if found is not None:
                try:
                    await peer.notify(PROGRESS, encode_object({**found, TOKEN: encode(token)}), about)
                except LinkLost:
                    return  # the server is gone, or this one message was lost: it has nothing that anybody waits for

    answer: Raw | PeerError | BrokenAnswer | LinkLost
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay)
        try:
            answer = await outlet.request(method, params, report)
        except (PeerError, BrokenAnswer, LinkLost) as problem:
            answer = problem
        nursery.cancel_scope.cancel()
    if isinstance(answer, Exception):
        raise answer
    return answer
