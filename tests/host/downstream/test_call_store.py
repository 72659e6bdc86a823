"""Calls that outlive their requests: each is begun once and ends once, whatever is repeated, lost, late or foreign."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from typing import TypeAlias, TypeVar

import pytest
import trio
from hypothesis import given, settings
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from host.downstream import call_store
from host.downstream.call_store import (
    ByOwner,
    CallStore,
    InternalFailure,
    KeptResults,
    MemoryNeeded,
    SupersededState,
    fit_to_keep,
    size_of,
)
from host.downstream.detached import (
    DEFAULT_TTL_MS,
    GATHER_DELAY,
    PARKED_LIFETIME,
    REPLAY_LIFETIME,
    DetachedCall,
    Outcome,
    ParkedCallState,
    RequestsToClient,
    TaskOptions,
)
from host.errors import (
    ColonnadeError,
    ServerErrorResponse,
    TimedOut,
    TooManyRequests,
    UnknownEntry,
    UnknownState,
    copy_of,
)
from host.exchange import ClientHandle
from host.jsonrpc.messages import Id, Notification
from host.jsonrpc.raw import encode, encode_object, items
from host.memory import Budget, Use, client_owner
from host.protocol.methods import PROGRESS
from host.protocol.tasks import Status
from host.wire.link import LinkLost
from tests.kit.examples import examples
from tests.kit.scripts import Step, scripts

ids = itertools.count()
pytestmark = pytest.mark.virtual_time

DONE = Raw(b'{"content":[]}')
YES = Raw(b'{"action":"accept"}')
ELICIT = "elicitation/create"
ME, STRANGER = "me", "stranger"

T = TypeVar("T")
Work: TypeAlias = Callable[[ClientHandle], Awaitable[Raw]]


def quiet(notice: Notification) -> None:
    """Hears what is told, and keeps nothing."""


async def begin(
    store: CallStore, owner: Hashable, work: Work, tell: Callable[[Notification], None] = quiet, token: Id | None = None
) -> Outcome:
    """Start a call that can be parked, and wait for the answer to its first request."""
    return await store.begin(owner, work, tell, token, may_park=True)


@pytest.fixture
def crashes() -> list[Exception]:
    return []


@pytest.fixture
def store(nursery: trio.Nursery, crashes: list[Exception]) -> CallStore:
    return CallStore(nursery, crashes.append, Budget(now=trio.current_time))


class Request:
    """One request in the background, whose end the test looks at. Cancelling `scope` is the client's leaving."""

    def __init__(self, nursery: trio.Nursery, send: Callable[[Request], Awaitable[Outcome]]) -> None:
        self.scope = trio.CancelScope()
        self.told: list[Notification] = []
        self.ends: list[Outcome | BaseException] = []
        self._ended = trio.Event()
        nursery.start_soon(self._run, send)

    async def _run(self, send: Callable[[Request], Awaitable[Outcome]]) -> None:
        with self.scope:
            try:
                self.ends.append(await send(self))
            except trio.Cancelled as left:
                self.ends.append(left)
                raise
            except Exception as problem:  # noqa: BLE001 - the test looks at it
                self.ends.append(problem)
            finally:
                self._ended.set()

    async def end(self) -> Outcome | BaseException:
        await self._ended.wait()
        (end,) = self.ends
        return end

    async def questions(self) -> RequestsToClient:
        end = await self.end()
        assert isinstance(end, RequestsToClient)
        return end


class Client:
    """Begins and resumes calls in the background."""

    def __init__(self, store: CallStore, nursery: trio.Nursery) -> None:
        self._store = store
        self._nursery = nursery

    def begin(self, work: Work, token: Id | None = None) -> Request:
        return Request(self._nursery, lambda request: begin(self._store, ME, work, request.told.append, token))

    def resume(
        self,
        state: ParkedCallState,
        answers: Mapping[str, Raw] | None = None,
        token: Id | None = None,
        owner: str = ME,
    ) -> Request:
        return Request(
            self._nursery,
            lambda request: self._store.resume(owner, state, answers or {}, request.told.append, token),
        )


@pytest.fixture
def client(store: CallStore, nursery: trio.Nursery) -> Client:
    return Client(store, nursery)


class Asks:
    """A work that asks questions one after the other, and is done when they are answered."""

    def __init__(self, *questions: str) -> None:
        self._questions = questions
        self.runs = 0
        self.answers: list[Raw] = []
        self.was_cancelled = False

    async def __call__(self, handle: ClientHandle) -> Raw:
        self.runs += 1
        try:
            for question in self._questions:
                self.answers.append(await handle.request(question, {}, None))
        except trio.Cancelled:
            self.was_cancelled = True
            raise
        return DONE


class Chatter:
    """A server's connection: it asks and tells on behalf of a call, at the test's command, in tasks of its own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._finish = trio.Event()
        self._outcome: Raw | Exception = DONE
        self._handle: list[ClientHandle] = []
        self.unwinding = 0.0
        """Seconds that it takes to end when it is cancelled; then it has a result after all."""
        self.asked: dict[str, list[Raw | BaseException]] = {}
        self.runs = 0
        self.ended = False

    @property
    def handle(self) -> ClientHandle:
        return self._handle[-1]

    async def __call__(self, handle: ClientHandle) -> Raw:
        self.runs += 1
        self._handle.append(handle)
        try:
            await self._finish.wait()
        except trio.Cancelled:
            if not self.unwinding:
                raise
            with trio.CancelScope(shield=True):
                await trio.sleep(self.unwinding)
        finally:
            self.ended = True
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def finish(self, outcome: Raw | Exception = DONE) -> None:
        self._outcome = outcome
        self._finish.set()

    def ask(self, name: str, method: str = ELICIT, params: dict[str, Raw] | None = None) -> trio.CancelScope:
        """Ask in a task of its own. Cancelling what it gives back withdraws the question."""
        scope = trio.CancelScope()
        ends = self.asked[name] = []

        async def ask() -> None:
            with scope:
                try:
                    ends.append(await self.handle.request(method, params or {}, None))
                except trio.Cancelled as withdrawn:
                    ends.append(withdrawn)
                    raise
                except LinkLost as lost:
                    ends.append(lost)

        self._nursery.start_soon(ask)
        return scope


@pytest.fixture
def chatter(nursery: trio.Nursery) -> Chatter:
    return Chatter(nursery)


async def begun(client: Client, work: Work, token: Id | None = None) -> Request:
    request = client.begin(work, token)
    await wait_all_tasks_blocked()
    return request


async def resumed(
    client: Client, state: ParkedCallState, answers: Mapping[str, Raw] | None = None, token: Id | None = None
) -> Request:
    request = client.resume(state, answers, token)
    await wait_all_tasks_blocked()
    return request


async def asked_by(client: Client, chatter: Chatter) -> RequestsToClient:
    """The first round of a call that asks one question."""
    request = await begun(client, chatter)
    chatter.ask("one")
    return await request.questions()


def told(progress: str, token: str = '"theirs"') -> Notification:
    return Notification(PROGRESS, Raw(f'{{"progress":{progress},"progressToken":{token}}}'.encode()))


def only_key(questions: RequestsToClient) -> str:
    (key,) = questions.requests
    return key


# Without questions


async def test_a_call_that_asks_nothing_gives_its_result(store: CallStore, client: Client) -> None:
    work = Asks()
    assert await begin(store, ME, work) is DONE
    assert (work.runs, store.parked) == (1, 0)


async def test_what_is_told_goes_to_the_request_that_is_attached(client: Client, chatter: Chatter) -> None:
    """Between two requests, and after the end, it is lost."""
    first = await begun(client, chatter)
    chatter.handle.notify(Notification("one"))
    chatter.ask("q")
    asked = await first.questions()
    chatter.handle.notify(Notification("two"))
    second = await resumed(client, asked.state, {only_key(asked): YES})
    chatter.handle.notify(Notification("three"))
    chatter.finish()
    assert await second.end() == DONE
    chatter.handle.notify(Notification("four"))
    assert (first.told, second.told) == ([Notification("one")], [Notification("three")])


async def test_progress_goes_under_the_token_of_the_request_that_is_attached(client: Client, chatter: Chatter) -> None:
    """Whatever token the server's notice has; a request without a token gets none."""
    first = await begun(client, chatter, token="mine")
    chatter.handle.notify(told("1"))
    chatter.ask("q")
    asked = await first.questions()
    second = await resumed(client, asked.state, {only_key(asked): YES})
    chatter.handle.notify(told("2"))
    third = await resumed(client, asked.state, token=7)
    chatter.handle.notify(told("3"))
    assert first.told == [told("1", '"mine"')]
    assert second.told == []
    assert third.told == [told("3", "7")]


async def test_progress_increases_under_one_token(client: Client, chatter: Chatter) -> None:
    """Also where the client uses one token for every round."""
    first = await begun(client, chatter, token="mine")
    for value in ("1", "1", "0.5", "2.5"):
        chatter.handle.notify(told(value))
    chatter.ask("q")
    asked = await first.questions()
    second = await resumed(client, asked.state, {only_key(asked): YES}, token="mine")
    for value in ("2", "2.5", "3"):
        chatter.handle.notify(told(value))
    assert first.told == [told("1", '"mine"'), told("2.5", '"mine"')]
    assert second.told == [told("3", '"mine"')]


@pytest.mark.parametrize("params", [None, b"[]", b"{}", b'{"progress":"1"}', b'{"progress":true}', b'{"progress":}'])
async def test_progress_that_is_none_is_dropped(params: bytes | None, client: Client, chatter: Chatter) -> None:
    request = await begun(client, chatter, token="mine")
    chatter.handle.notify(Notification(PROGRESS, None if params is None else Raw(params)))
    assert request.told == []


@pytest.mark.parametrize("fault", [TimedOut("gh", "gh did not respond within 60 s"), ZeroDivisionError("ours")])
async def test_an_error_is_raised_where_the_call_was_begun(
    fault: Exception, store: CallStore, client: Client, chatter: Chatter, crashes: list[Exception]
) -> None:
    """One that is not Colonnade's is reported."""
    request = client.begin(chatter)
    chatter.finish(fault)
    end = await request.end()
    if isinstance(fault, TimedOut):
        assert isinstance(end, TimedOut)
        assert (end.message, end.server, crashes) == (fault.message, "gh", [])
    else:
        assert isinstance(end, InternalFailure)
        assert crashes == [fault]
    assert store.parked == 0


async def test_what_is_cancelled_before_it_begins_is_not_begun(store: CallStore) -> None:
    work = Asks()
    with trio.CancelScope() as scope:
        scope.cancel()
        await begin(store, ME, work)
    await wait_all_tasks_blocked()
    assert (work.runs, store.parked) == (0, 0)


async def test_a_client_that_leaves_cancels_its_call(store: CallStore, client: Client, chatter: Chatter) -> None:
    """Its questions end too, and no state leads to it (rule 45, rule 50)."""
    first = await begun(client, chatter)
    chatter.ask("q")
    asked = await first.questions()
    second = await resumed(client, asked.state, {only_key(asked): YES})
    chatter.ask("open")
    await wait_all_tasks_blocked()
    second.scope.cancel()
    assert isinstance(await second.end(), trio.Cancelled)
    await wait_all_tasks_blocked()
    assert chatter.ended
    assert isinstance(chatter.asked["open"][0], LinkLost)
    assert store.parked == 0
    with pytest.raises(UnknownState):
        await store.resume(ME, asked.state, {}, quiet)


async def test_a_call_that_takes_its_time_to_end_counts_until_it_has(
    store: CallStore, client: Client, chatter: Chatter
) -> None:
    """But its questions end at once."""
    chatter.unwinding = 1
    request = await begun(client, chatter)
    chatter.ask("open")
    await wait_all_tasks_blocked()
    request.scope.cancel()
    await wait_all_tasks_blocked()
    assert isinstance(request.ends[0], trio.Cancelled)
    assert isinstance(chatter.asked["open"][0], LinkLost)
    assert store.parked == 1
    await trio.sleep(2)
    assert store.parked == 0


async def test_a_request_that_is_cancelled_before_it_is_looked_at_changes_nothing(
    store: CallStore, client: Client
) -> None:
    work = Asks(ELICIT)
    asked = await client.begin(work).questions()
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.resume(ME, asked.state, {only_key(asked): YES}, quiet)
    await wait_all_tasks_blocked()
    assert (work.answers, store.parked) == ([], 1)
    assert await client.resume(asked.state, {only_key(asked): YES}).end() == DONE


async def test_nothing_is_told_once_the_outcome_is_there(
    client: Client, chatter: Chatter, nursery: trio.Nursery
) -> None:
    """Not even before the request has it. The order of tasks is random: hence several times (rule 104)."""
    for _ in range(20):
        each = Chatter(nursery)
        request = client.begin(each)
        await wait_all_tasks_blocked()
        each.finish()
        while not each.ended:
            await trio.lowlevel.checkpoint()
        each.handle.notify(Notification("late"))
        assert await request.end() == DONE
        assert request.told == []


# Questions


async def test_questions_that_come_together_go_together(client: Client, chatter: Chatter) -> None:
    """The request ends with all of them, GATHER after the first."""
    request = await begun(client, chatter)
    start = trio.current_time()
    chatter.ask("one", ELICIT, {"message": Raw(b'"a"')})
    await trio.sleep(GATHER_DELAY / 2)
    chatter.ask("two", "roots/list")
    asked = await request.questions()
    assert trio.current_time() - start == pytest.approx(GATHER_DELAY)
    assert list(asked.requests.values()) == [(ELICIT, {"message": Raw(b'"a"')}), ("roots/list", {})]
    assert asked.state.round == 1


async def test_a_ticket_holds_128_random_bits(client: Client) -> None:
    states = {(await client.begin(Asks(ELICIT)).questions()).state.call_id for _ in range(3)}
    assert len(states) == 3
    assert {len(call) for call in states} == {22}


async def test_the_answer_comes_as_the_client_sent_it(client: Client) -> None:
    work = Asks(ELICIT)
    asked = await client.begin(work).questions()
    answer = Raw(b'{"action" : "accept","content":{"n":1e0}}')
    assert await client.resume(asked.state, {only_key(asked): answer}).end() == DONE
    assert (work.answers, work.runs) == ([answer], 1)


async def test_what_belongs_to_the_servers_own_request_stays_out_of_a_round(client: Client, chatter: Chatter) -> None:
    """No progress token and no member of one hop; a `_meta` that is then empty is left out (rule 44, rule 54)."""
    request = await begun(client, chatter)
    params = {"message": Raw(b'"a"'), "_meta": Raw(b'{"progressToken":1}')}
    chatter.ask("token", params=params)
    chatter.ask("hop", params={"_meta": Raw(b'{"io.modelcontextprotocol/logLevel":"info","acme/trace":"x"}')})
    chatter.ask("empty", params={"_meta": Raw(b"{ }")})
    asked = await request.questions()
    found = sorted(bytes(encode_object(params)) for _, params in asked.requests.values())
    assert found == [b'{"_meta":{"acme/trace":"x"}}', b'{"message":"a"}', b"{}"]
    assert "_meta" in params, "what the server sent is not changed"


async def test_a_question_that_is_withdrawn_in_time_ends_no_request(client: Client, chatter: Chatter) -> None:
    """The request stays attached, and what is asked later is gathered anew (rule 49)."""
    request = await begun(client, chatter)
    withdrawn = chatter.ask("one")
    await wait_all_tasks_blocked()
    withdrawn.cancel()
    await trio.sleep(GATHER_DELAY * 2)
    assert request.ends == []
    start = trio.current_time()
    chatter.ask("two")
    asked = await request.questions()
    assert trio.current_time() - start == pytest.approx(GATHER_DELAY)
    assert len(asked.requests) == 1


async def test_a_question_that_outlives_its_sibling_goes_alone(client: Client, chatter: Chatter) -> None:
    request = await begun(client, chatter)
    withdrawn = chatter.ask("one", "roots/list")
    chatter.ask("two")
    await wait_all_tasks_blocked()
    withdrawn.cancel()
    asked = await request.questions()
    assert [method for method, _ in asked.requests.values()] == [ELICIT]


async def test_an_answer_to_a_question_that_was_withdrawn_means_nothing(client: Client, chatter: Chatter) -> None:
    """(rule 49, rule 108)"""
    request = await begun(client, chatter)
    withdrawn = chatter.ask("one")
    asked = await request.questions()
    withdrawn.cancel()
    await wait_all_tasks_blocked()
    retry = await resumed(client, asked.state, {only_key(asked): YES})
    assert retry.ends == []
    chatter.finish()
    assert await retry.end() == DONE
    assert [type(end) for end in chatter.asked["one"]] == [trio.Cancelled]


# Rounds


async def test_each_round_asks_what_is_new(store: CallStore, client: Client) -> None:
    work = Asks(ELICIT, "roots/list")
    first = await client.begin(work).questions()
    second = await client.resume(first.state, {only_key(first): YES}).questions()
    assert second.state == ParkedCallState(first.state.call_id, 2)
    assert [method for method, _ in second.requests.values()] == ["roots/list"]
    assert only_key(first) != only_key(second)
    assert store.parked == 1
    assert await client.resume(second.state, {only_key(second): YES}).end() == DONE
    assert (work.runs, store.parked) == (1, 0)


async def test_unknown_keys_are_ignored(client: Client) -> None:
    """Also the key of a question that the client was not shown yet."""
    work = Asks(ELICIT, ELICIT)
    first = await client.begin(work).questions()
    answers = {only_key(first): YES, "q2": YES, "q3": YES, "": Raw(b"null")}
    second = await client.resume(first.state, answers).questions()
    assert work.answers == [YES]
    assert only_key(second) not in first.requests


async def test_a_key_that_was_not_shown_yet_is_an_unknown_one(client: Client, chatter: Chatter) -> None:
    """The question stands open already when the answer to it comes, but it was in no round."""
    first = await asked_by(client, chatter)
    chatter.ask("two")
    await wait_all_tasks_blocked()
    second = await client.resume(first.state, dict.fromkeys(("q1", "q2", "q3"), YES)).questions()
    assert chatter.asked == {"one": [YES], "two": []}
    assert only_key(second) == "q2"


@pytest.mark.parametrize("answer", [b"null", b"1", b'"yes"', b"[]", b"[{}]"])
async def test_an_answer_that_is_no_object_is_missing(answer: bytes, client: Client) -> None:
    work = Asks(ELICIT)
    first = await client.begin(work).questions()
    second = await client.resume(first.state, {only_key(first): Raw(answer)}).questions()
    assert second.requests == first.requests
    assert work.answers == []


async def test_missing_answers_are_asked_for_again_at_once(client: Client, chatter: Chatter) -> None:
    """Under the same keys, in a new round; what was answered is not asked again."""
    request = await begun(client, chatter)
    chatter.ask("one")
    await wait_all_tasks_blocked()
    chatter.ask("two")
    first = await request.questions()
    one, two = first.requests
    start = trio.current_time()
    second = await client.resume(first.state, {one: YES}).questions()
    assert trio.current_time() == start
    await wait_all_tasks_blocked()
    assert (second.state.round, list(second.requests)) == (2, [two])
    assert chatter.asked == {"one": [YES], "two": []}
    again = await client.resume(first.state, {one: YES}).questions()
    assert again == second
    third = await resumed(client, second.state, {two: YES})
    assert chatter.asked == {"one": [YES], "two": [YES]}
    chatter.finish()
    assert await third.end() == DONE


async def test_what_was_asked_meanwhile_comes_with_what_is_missing(client: Client, chatter: Chatter) -> None:
    first = await asked_by(client, chatter)
    chatter.ask("two")
    await wait_all_tasks_blocked()
    second = await client.resume(first.state).questions()
    assert len(second.requests) == 2
    assert only_key(first) in second.requests


async def test_what_was_asked_meanwhile_waits_for_no_more_siblings(client: Client, chatter: Chatter) -> None:
    first = await asked_by(client, chatter)
    chatter.ask("two")
    await trio.sleep(1)
    start = trio.current_time()
    second = await client.resume(first.state, {only_key(first): YES}).questions()
    assert trio.current_time() - start < GATHER_DELAY
    assert len(second.requests) == 1


@pytest.mark.parametrize("answers", [False, True])
async def test_a_call_that_finished_alone_keeps_its_outcome(
    answers: bool, store: CallStore, client: Client, chatter: Chatter
) -> None:
    """The next request gets it, though nobody needs its answers any more (rule 103)."""
    asked = await asked_by(client, chatter)
    chatter.finish()
    await trio.sleep(PARKED_LIFETIME - 1)
    assert isinstance(chatter.asked["one"][0], LinkLost)
    assert store.parked == 1
    assert await client.resume(asked.state, {only_key(asked): YES} if answers else {}).end() == DONE
    assert store.parked == 0


async def test_a_call_that_failed_alone_keeps_its_error(client: Client, chatter: Chatter) -> None:
    asked = await asked_by(client, chatter)
    refusal = UnknownEntry("no such tool")
    chatter.finish(refusal)
    await wait_all_tasks_blocked()
    first, second = [await client.resume(asked.state).end() for _ in range(2)]
    for end in (first, second):
        assert isinstance(end, UnknownEntry)
        assert end.message == refusal.message
    assert first is not second, "each has the stack of one request alone"


async def test_what_is_kept_holds_no_buffer_of_its_server(client: Client, chatter: Chatter) -> None:
    buffer = bytearray(b'[{"kept":1},' + b" " * 1000 + b"0]")
    asked = await asked_by(client, chatter)
    chatter.finish(Raw(memoryview(buffer)[1:11]))
    await wait_all_tasks_blocked()
    chatter.finish(DONE)
    buffer.clear()  # an error as long as anybody looks into it
    found = await client.resume(asked.state).end()
    assert isinstance(found, Raw)
    assert bytes(found) == b'{"kept":1}'


async def test_an_error_that_is_kept_holds_no_buffer_of_its_server(client: Client, chatter: Chatter) -> None:
    buffer = bytearray(b'[{"kept":1},0]')
    asked = await asked_by(client, chatter)
    chatter.finish(ServerErrorResponse("gh", 1, "no", Raw(memoryview(buffer)[1:11])))
    await wait_all_tasks_blocked()
    chatter.finish(DONE)
    buffer.clear()  # an error as long as anybody looks into it
    for _ in range(2):
        found = await client.resume(asked.state).end()
        assert isinstance(found, ServerErrorResponse)
        assert found.data == Raw(b'{"kept":1}')


async def test_a_question_that_is_over_holds_no_buffer_of_its_server(client: Client, chatter: Chatter) -> None:
    buffer = bytearray(b'["what?"]')
    request = await begun(client, chatter)
    chatter.ask("one", params={"message": Raw(memoryview(buffer)[1:8])})
    state = (await request.questions()).state
    request.ends.clear()
    chatter.finish()
    assert await client.resume(state).end() == DONE
    chatter.asked["one"].clear()  # how it ended there holds the stack that it was asked in
    buffer.clear()
    assert await client.resume(state).end() == DONE


class Carried:
    """What a work holds."""


@pytest.mark.parametrize("outcome", [DONE, UnknownEntry("no such tool"), ZeroDivisionError("ours")])
async def test_what_is_kept_holds_nothing_of_the_request_that_began_it(
    outcome: Raw | Exception, store: CallStore, crashes: list[Exception]
) -> None:
    """While it can be had again; and all that is freed without a search for cycles."""

    def work_with(carried: Carried) -> Work:
        async def work(handle: ClientHandle) -> Raw:
            assert carried is not None
            await handle.request(ELICIT, {}, None)
            if isinstance(outcome, Exception):
                raise copy_of(outcome)
            return outcome

        return work

    carried = Carried()
    held = weakref.ref(carried)
    gc.collect()
    gc.disable()
    try:
        asked = await begin(store, ME, work_with(carried))
        del carried
        assert isinstance(asked, RequestsToClient)
        assert held() is not None
        for _ in range(2):
            with suppress(UnknownEntry, InternalFailure):
                assert await store.resume(ME, asked.state, {"q1": YES}, quiet) == outcome
            crashes.clear()  # what is reported holds the stack of the work
            assert held() is None
    finally:
        gc.enable()


# Repeated and foreign requests


async def test_a_lost_round_comes_again(client: Client) -> None:
    """Whoever comes with the state before the newest gets the newest questions (rule 108)."""
    work = Asks(ELICIT, "roots/list")
    first = await client.begin(work).questions()
    answers = {only_key(first): YES}
    second = await client.resume(first.state, answers).questions()
    assert await client.resume(first.state, answers).questions() == second
    assert await client.resume(first.state, answers).questions() == second
    assert await client.resume(second.state, {only_key(second): YES}).end() == DONE
    assert (work.runs, work.answers) == (1, [YES, YES])


async def test_a_lost_round_without_what_was_withdrawn(client: Client, chatter: Chatter) -> None:
    """Nobody is asked in vain; if nothing is left, the request waits for the call."""
    first = await asked_by(client, chatter)
    retry = await resumed(client, first.state, {only_key(first): YES})
    two, three = chatter.ask("two"), chatter.ask("three")
    assert len((await retry.questions()).requests) == 2
    two.cancel()
    await wait_all_tasks_blocked()
    assert len((await client.resume(first.state).questions()).requests) == 1
    three.cancel()
    await wait_all_tasks_blocked()
    waits = await resumed(client, first.state)
    assert waits.ends == []
    newest = client.resume(ParkedCallState(first.state.call_id, 2))
    assert isinstance(await waits.end(), SupersededState)
    chatter.finish()
    assert await newest.end() == DONE


async def test_a_round_that_is_too_old_is_gone(store: CallStore, client: Client) -> None:
    first = await client.begin(Asks(ELICIT, ELICIT, ELICIT)).questions()
    second = await client.resume(first.state, {only_key(first): YES}).questions()
    await client.resume(second.state, {only_key(second): YES}).questions()
    with pytest.raises(UnknownState):
        await store.resume(ME, first.state, {only_key(first): YES}, quiet)
    assert store.parked == 1


async def test_a_late_repetition_takes_nothing_from_the_round_in_progress(client: Client, chatter: Chatter) -> None:
    """The client has come with the newest state: whatever carries the one before it was sent earlier (rule 108)."""
    first = await asked_by(client, chatter)
    retry = await resumed(client, first.state, {only_key(first): YES})
    chatter.ask("two")
    second = await retry.questions()
    newest = await resumed(client, second.state, {only_key(second): YES})
    late = client.resume(first.state, {only_key(first): YES})
    assert isinstance(await late.end(), UnknownState)
    chatter.finish()
    assert await newest.end() == DONE


@pytest.mark.parametrize("number", [-1, 0, 2, 3])
async def test_an_unknown_call_and_a_round_that_never_was_are_gone(
    number: int, store: CallStore, client: Client
) -> None:
    asked = await client.begin(Asks(ELICIT)).questions()
    for state in (ParkedCallState(asked.state.call_id, number), ParkedCallState("", 1)):
        with pytest.raises(UnknownState, match="Invalid or expired requestState"):
            await store.resume(ME, state, {}, quiet)
    assert store.parked == 1


async def test_a_strangers_call_is_gone_and_goes_on(store: CallStore, client: Client) -> None:
    """A stranger hears the same as of an unknown call, and changes nothing."""
    work = Asks(ELICIT)
    asked = await client.begin(work).questions()
    with pytest.raises(UnknownState, match="Invalid or expired requestState"):
        await store.resume("stranger", asked.state, {only_key(asked): YES}, quiet)
    assert work.answers == []
    assert await client.resume(asked.state, {only_key(asked): YES}).end() == DONE
    with pytest.raises(UnknownState):
        await store.resume("stranger", asked.state, {}, quiet)


async def test_the_newest_request_of_a_round_takes_the_call_over(
    store: CallStore, client: Client, chatter: Chatter
) -> None:
    """The older one ends with an error, and its leaving cancels nothing (rule 108)."""
    asked = await asked_by(client, chatter)
    older = await resumed(client, asked.state, {only_key(asked): YES})
    newer = client.resume(asked.state, {only_key(asked): Raw(b'{"action":"decline"}')})
    assert isinstance(await older.end(), SupersededState)
    chatter.finish()
    assert await newer.end() == DONE
    assert chatter.asked["one"] == [YES]
    assert (chatter.runs, store.parked) == (1, 0)


async def test_the_client_of_a_newer_request_that_leaves_cancels_the_call(client: Client, chatter: Chatter) -> None:
    asked = await asked_by(client, chatter)
    older = await resumed(client, asked.state, {only_key(asked): YES})
    newer = client.resume(asked.state)
    assert isinstance(await older.end(), SupersededState)
    newer.scope.cancel()
    await wait_all_tasks_blocked()
    assert chatter.ended


async def test_what_was_delivered_can_be_had_again_for_a_while(store: CallStore, client: Client) -> None:
    """By the same round only, and never by running the work again (rule 108)."""
    work = Asks(ELICIT, ELICIT)
    first = await client.begin(work).questions()
    second = await client.resume(first.state, {only_key(first): YES}).questions()
    last = {only_key(second): YES}
    assert await client.resume(second.state, last).end() == DONE
    assert store.parked == 0
    for _ in range(2):
        await trio.sleep(REPLAY_LIFETIME / 2 - 1)
        assert await client.resume(second.state, last).end() == DONE
        with pytest.raises(UnknownState):
            await store.resume(ME, first.state, {}, quiet)
    await trio.sleep(3)
    with pytest.raises(UnknownState):
        await store.resume(ME, second.state, last, quiet)
    assert work.runs == 1


async def test_an_outcome_that_came_for_the_round_before_is_good_for_both(client: Client, chatter: Chatter) -> None:
    """The client may have the newest questions or not."""
    first = await asked_by(client, chatter)
    second = await client.resume(first.state).questions()
    chatter.finish()
    await wait_all_tasks_blocked()
    for state in (first.state, second.state, first.state):
        assert await client.resume(state).end() == DONE


async def test_an_error_can_be_had_again_too(client: Client, chatter: Chatter, crashes: list[Exception]) -> None:
    asked = await asked_by(client, chatter)
    retry = await resumed(client, asked.state, {only_key(asked): YES})
    fault = KeyError("ours")
    chatter.finish(fault)
    assert isinstance(await retry.end(), InternalFailure)
    assert isinstance(await client.resume(asked.state).end(), InternalFailure)
    assert crashes == [fault], "it happened once"


@pytest.mark.parametrize(("limit", "most"), [("MAX_REPLAYS", 2), ("MAX_REPLAY_BYTES", len(bytes(DONE)) * 2)])
async def test_of_what_was_delivered_only_so_much_is_kept(
    limit: str, most: int, store: CallStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are forgotten before their time."""
    monkeypatch.setattr(call_store, limit, most)
    states: list[ParkedCallState] = []
    for _ in range(6):
        asked = await client.begin(Asks(ELICIT)).questions()
        await client.resume(asked.state, {only_key(asked): YES}).end()
        states.append(asked.state)
    await wait_all_tasks_blocked()
    with pytest.raises(UnknownState):
        await store.resume(ME, states[3], {}, quiet)
    assert [await client.resume(state).end() for state in states[4:]] == [DONE, DONE]


async def test_errors_count_among_what_was_delivered(
    store: CallStore, client: Client, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_store, "MAX_REPLAY_BYTES", 1000)
    states: list[ParkedCallState] = []
    for _ in range(3):
        asked = await asked_by(client, chatter := Chatter(nursery))
        chatter.finish(ServerErrorResponse("gh", 1, "no", Raw(b'"' + b"x" * 498 + b'"')))
        assert isinstance(await client.resume(asked.state).end(), ServerErrorResponse)
        states.append(asked.state)
    with pytest.raises(UnknownState):
        await store.resume(ME, states[0], {}, quiet)
    for state in states[1:]:
        assert isinstance(await client.resume(state).end(), ServerErrorResponse)


# Calls that may become tasks, too


def may_be_both(store: CallStore, work: Work, size: int = 0) -> Callable[[Request], Awaitable[Outcome]]:
    """Begins a call that can be parked and can become a task."""
    task = TaskOptions(f"gh.{next(ids)}", lambda call: None)
    return lambda request: store.begin(ME, work, request.told.append, may_park=True, task=task, size=size)


async def parked_by(store: CallStore, chatter: Chatter, nursery: trio.Nursery, size: int = 0) -> RequestsToClient:
    """The first round of such a call, which asks one question."""
    request = Request(nursery, may_be_both(store, chatter, size))
    await wait_all_tasks_blocked()
    chatter.ask("one")
    return await request.questions()


async def test_a_call_that_becomes_a_task_while_it_is_parked(
    store: CallStore, client: Client, chatter: Chatter, nursery: trio.Nursery
) -> None:
    """Its client gets the task as it was then, as often as it comes in time. The task goes on for its own time, and
    waits for nobody."""
    asked = await parked_by(store, chatter, nursery)
    assert (store.parked, store.tasks) == (1, 1)
    assert isinstance(chatter.handle, DetachedCall)
    chatter.handle.become_task()
    await wait_all_tasks_blocked()
    assert isinstance(chatter.asked["one"][0], LinkLost)
    assert (store.parked, store.tasks) == (0, 1)
    created = chatter.handle.task
    chatter.ask("of the task")
    await wait_all_tasks_blocked()
    assert [await client.resume(asked.state).end() for _ in range(2)] == [created, created]
    await trio.sleep(REPLAY_LIFETIME - 1)
    assert await client.resume(asked.state).end() == created
    await trio.sleep(2)
    assert isinstance(await client.resume(asked.state).end(), UnknownState)
    assert store.find_task(ME, created.id).task.status is Status.INPUT_REQUIRED
    await trio.sleep(DEFAULT_TTL_MS / 1000)
    assert (chatter.ended, store.tasks, store.tasks_of(ME)) == (True, 0, [])


async def test_a_task_that_nobody_came_for_goes_on(
    store: CallStore, client: Client, chatter: Chatter, nursery: trio.Nursery
) -> None:
    asked = await parked_by(store, chatter, nursery)
    assert isinstance(chatter.handle, DetachedCall)
    chatter.handle.become_task()
    await trio.sleep(PARKED_LIFETIME + 1)
    assert isinstance(await client.resume(asked.state).end(), UnknownState)
    assert store.find_task(ME, chatter.handle.id).task.status is Status.WORKING


async def test_the_client_that_leaves_as_its_call_becomes_a_task_ends_nothing(
    store: CallStore, client: Client, chatter: Chatter, nursery: trio.Nursery
) -> None:
    asked = await parked_by(store, chatter, nursery)
    retry = await resumed(client, asked.state)
    assert isinstance(chatter.handle, DetachedCall)
    chatter.handle.become_task()
    retry.scope.cancel()
    await wait_all_tasks_blocked()
    assert not chatter.ended
    assert store.find_task(ME, chatter.handle.id).task.status is Status.WORKING


async def test_a_call_that_may_be_both_is_charged_once(
    nursery: trio.Nursery, crashes: list[Exception], chatter: Chatter
) -> None:
    """With its request until it is over, and with its result as long as that is kept."""
    memory = Budget(now=trio.current_time)
    store = CallStore(nursery, crashes.append, memory)
    asked = await parked_by(store, chatter, nursery, size=1000)
    assert memory.by_use()[Use.TASKS] == memory.used == 1000
    chatter.finish()
    await wait_all_tasks_blocked()
    assert memory.used == len(bytes(DONE))
    assert await Client(store, nursery).resume(asked.state).end() == DONE
    await trio.sleep(REPLAY_LIFETIME + 1)
    assert memory.used == 0


async def test_a_call_is_charged_with_its_request_while_it_is_parked(
    nursery: trio.Nursery, crashes: list[Exception], chatter: Chatter
) -> None:
    """Before that, its request is charged with it."""
    memory = Budget(now=trio.current_time)
    store = CallStore(nursery, crashes.append, memory)
    request = Request(nursery, lambda request: store.begin(ME, chatter, quiet, may_park=True, size=1000))
    await wait_all_tasks_blocked()
    assert memory.used == 0
    chatter.ask("one")
    await request.questions()
    assert memory.by_use()[Use.PARKED] == memory.used == 1000
    await trio.sleep(PARKED_LIFETIME + 1)
    assert memory.used == 0


@pytest.mark.parametrize("may_be_task", [False, True])
async def test_a_parked_call_gives_way(
    may_be_task: bool, nursery: trio.Nursery, crashes: list[Exception], chatter: Chatter
) -> None:
    """One that may become a task fails, and its client hears why; any other is forgotten."""
    memory = Budget(1000, trio.current_time)
    store = CallStore(nursery, crashes.append, memory)
    task = TaskOptions(f"gh.{next(ids)}", lambda call: None) if may_be_task else None
    request = Request(nursery, lambda request: store.begin(ME, chatter, quiet, may_park=True, task=task, size=800))
    await wait_all_tasks_blocked()
    chatter.ask("one")
    asked = await request.questions()
    with memory.hold(client_owner("another"), Use.REQUESTS, 400, drop=lambda: None):
        await wait_all_tasks_blocked()
        assert chatter.ended
        end = await Client(store, nursery).resume(asked.state).end()
        assert isinstance(end, MemoryNeeded if may_be_task else UnknownState)


# Deadlines and bounds


async def test_a_call_that_nobody_carries_on_is_cancelled(store: CallStore, client: Client, chatter: Chatter) -> None:
    """And its question with it, also where another task than the work asks it (rule 108)."""
    work = Asks(ELICIT)
    asked = await client.begin(work).questions()
    await asked_by(client, chatter)
    await trio.sleep(PARKED_LIFETIME - 1)
    assert (work.was_cancelled, store.parked) == (False, 2)
    await trio.sleep(2)
    assert (work.was_cancelled, store.parked) == (True, 0)
    assert isinstance(chatter.asked["one"][0], LinkLost)
    with pytest.raises(UnknownState):
        await store.resume(ME, asked.state, {only_key(asked): YES}, quiet)


async def test_an_outcome_that_nobody_fetches_is_forgotten(store: CallStore, client: Client, chatter: Chatter) -> None:
    asked = await asked_by(client, chatter)
    await trio.sleep(PARKED_LIFETIME / 2)
    chatter.finish()
    await trio.sleep(PARKED_LIFETIME / 2 + 1)
    assert store.parked == 0
    with pytest.raises(UnknownState):
        await store.resume(ME, asked.state, {}, quiet)


async def test_whoever_comes_after_the_deadline_is_late(store: CallStore, client: Client, chatter: Chatter) -> None:
    """Though the call has not ended yet, and has a result in the end; nothing more is asked (rule 108)."""
    chatter.unwinding = 1
    asked = await asked_by(client, chatter)
    await trio.sleep(PARKED_LIFETIME + 0.5)
    assert not chatter.ended
    with pytest.raises(UnknownState):
        await store.resume(ME, asked.state, {only_key(asked): YES}, quiet)
    with pytest.raises(LinkLost):
        await chatter.handle.request(ELICIT, {}, None)
    assert not chatter.ended, "the refusal waits for nothing"
    await trio.sleep(1)
    assert (chatter.ended, store.parked) == (True, 0)
    assert isinstance(chatter.asked["one"][0], LinkLost)
    with pytest.raises(UnknownState):
        await store.resume(ME, asked.state, {only_key(asked): YES}, quiet)


async def test_nothing_of_an_owner_is_kept_in_the_end(store: CallStore) -> None:
    class Owner:
        """Stands for a client."""

    owner = Owner()
    gone = weakref.ref(owner)
    asked = await begin(store, owner, Asks(ELICIT))
    assert isinstance(asked, RequestsToClient)
    assert await store.resume(owner, asked.state, {only_key(asked): YES}, quiet) == DONE
    await trio.sleep(REPLAY_LIFETIME + 1)
    del owner
    gc.collect()
    assert gone() is None


async def test_coming_back_puts_the_deadline_off(client: Client) -> None:
    """By a new round, and by the repetition of the last one."""
    first = await client.begin(Asks(ELICIT, ELICIT)).questions()
    await trio.sleep(PARKED_LIFETIME - 1)
    second = await client.resume(first.state, {only_key(first): YES}).questions()
    await trio.sleep(PARKED_LIFETIME - 1)
    assert await client.resume(first.state).questions() == second
    await trio.sleep(PARKED_LIFETIME - 1)
    assert await client.resume(second.state, {only_key(second): YES}).end() == DONE


async def test_a_call_with_a_request_attached_has_no_deadline(client: Client, chatter: Chatter) -> None:
    request = await begun(client, chatter)
    await trio.sleep(PARKED_LIFETIME * 2)
    chatter.ask("one")
    asked = await request.questions()
    retry = client.resume(asked.state, {only_key(asked): YES})
    await trio.sleep(PARKED_LIFETIME * 2)
    chatter.finish()
    assert await retry.end() == DONE


async def test_one_owner_has_so_many_calls(store: CallStore, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was delivered makes room for others."""
    monkeypatch.setattr(call_store, "MAX_PARKED_PER_OWNER", 2)
    asked = [await client.begin(Asks(ELICIT)).questions() for _ in range(2)]
    with pytest.raises(TooManyRequests) as refusal:
        await begin(store, ME, Asks())
    assert refusal.value.code == 429
    assert await begin(store, "another", Asks()) == DONE
    await client.resume(asked[0].state, {only_key(asked[0]): YES}).end()
    assert await begin(store, ME, Asks()) == DONE


async def test_the_lot_has_so_many_calls(store: CallStore, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_store, "MAX_PARKED", 2)
    for _ in range(2):
        await client.begin(Asks(ELICIT)).questions()
    work = Asks()
    with pytest.raises(TooManyRequests):
        await begin(store, "another", work)
    assert (work.runs, store.parked) == (0, 2)
    await trio.sleep(PARKED_LIFETIME + 1)
    assert await begin(store, "another", work) == DONE


async def test_closing_the_lot_ends_everything(nursery: trio.Nursery, chatter: Chatter) -> None:
    """Whoever waits outside of it does not wait for ever."""
    async with trio.open_nursery() as inner:
        store = CallStore(inner, lambda problem: None, Budget())
        client = Client(store, nursery)
        waiting = client.begin(chatter)
        work, idle = Asks(ELICIT), Asks()
        asked = await client.begin(work).questions()
        await wait_all_tasks_blocked()
        inner.cancel_scope.cancel()
    assert isinstance(await waiting.end(), UnknownState)
    assert (chatter.ended, work.was_cancelled, store.parked) == (True, True, 0)
    with pytest.raises(UnknownState):
        await store.resume(ME, asked.state, {}, quiet)
    assert idle.runs == 0


# Owners


def test_there_is_room_for_each_owner_and_for_all() -> None:
    things: ByOwner[int] = ByOwner()
    for thing, owner in enumerate((ME, ME, STRANGER)):
        assert things.has_room(owner, max_total=3, max_per_owner=2)
        things.add(thing, owner)
    assert not things.has_room(STRANGER, max_total=3, max_per_owner=2)
    assert not things.has_room(ME, max_total=4, max_per_owner=2)
    assert things.has_room(STRANGER, max_total=4, max_per_owner=2)
    for _ in range(2):  # twice makes room once
        things.drop(0)
    assert things.has_room(ME, max_total=3, max_per_owner=2)
    assert not things.has_room(ME, max_total=9, max_per_owner=1)
    assert len(things) == 2


class Owner:
    """One that can be watched."""


def test_an_owner_without_things_is_not_kept() -> None:
    things: ByOwner[int] = ByOwner()
    owner = Owner()
    freed = weakref.ref(owner)
    things.add(1, owner)
    del owner
    things.drop(1)
    gc.collect()
    assert freed() is None


# What is kept


def test_the_oldest_goes_first_when_there_is_too_much() -> None:
    """The newest is kept whatever its size."""
    kept: KeptResults[str] = KeptResults()
    assert [kept.add(thing, 4, max_bytes=8) for thing in "abc"] == [[], [], ["a"]]
    assert kept.add("d", 9, max_bytes=8) == ["b", "c"]
    assert kept.add("e", 9, max_bytes=8) == ["d"]
    assert len(kept) == 1
    kept = KeptResults()
    assert [kept.add(thing, 0, max_bytes=8, max_count=2) for thing in "abcd"] == [[], [], ["a"], ["b"]]


def test_what_is_dropped_makes_room_once() -> None:
    kept: KeptResults[str] = KeptResults()
    kept.add("a", 4, max_bytes=8)
    kept.add("b", 4, max_bytes=8)
    kept.drop("a")
    kept.drop("a")
    kept.drop("never")
    assert kept.add("c", 4, max_bytes=8) == []
    assert kept.add("d", 1, max_bytes=8) == ["b"]


# Outcomes


def test_an_error_is_kept_without_its_stack_and_its_buffer() -> None:
    (view,) = items(b'[{"why":"not"}]')
    with pytest.raises(ServerErrorResponse) as raised:
        raise ServerErrorResponse("gh", 7, "no", view)
    fit = fit_to_keep(raised.value)
    assert isinstance(fit, ServerErrorResponse)
    assert (fit.server, fit.code, fit.message, fit.data) == ("gh", 7, "no", view)
    assert fit.data is not view
    assert (fit.__traceback__, raised.value.data) == (None, view)


def test_an_error_without_data_can_be_kept() -> None:
    assert fit_to_keep(TimedOut("gh", "late")).data is None


@pytest.mark.parametrize(
    ("outcome", "size"),
    [
        (Raw(b'{"n":1}'), 7),
        (ServerErrorResponse("gh", 1, "no", Raw(b"[1]")), 3),
        (ServerErrorResponse("gh", 1, "no", None), 0),
        (None, 0),
    ],
)
def test_an_outcome_has_the_size_of_what_came_from_the_server(outcome: Raw | ColonnadeError | None, size: int) -> None:
    assert size_of(outcome) == size


# Any order of events


class Asked:
    """One question of the machine's: its number, and every way in which it ended."""

    def __init__(self, call: Played, number: int) -> None:
        self.call = call
        self.number = number
        self.scope = trio.CancelScope()
        self.ends: list[Raw | BaseException] = []

    @property
    def params(self) -> dict[str, Raw]:
        return {"number": encode(self.number)}


class Played:
    """One call of the machine's, and what its client has seen of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.runs = 0
        self.handle: ClientHandle | None = None
        self.finish = trio.Event()
        self.outcome: Raw | Exception = Raw(b"[%d]" % number)
        self.seen: list[RequestsToClient] = []
        self.may_be_gone = False

    async def __call__(self, handle: ClientHandle) -> Raw:
        self.runs += 1
        self.handle = handle
        await self.finish.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    @property
    def newest(self) -> RequestsToClient:
        return max(self.seen, key=lambda questions: questions.state.round)


class Sent:
    """One request of the machine's, and every way in which it ended."""

    def __init__(self, call: Played, *, foreign: bool = False, hopeful: bool = False) -> None:
        self.call = call
        self.foreign = foreign
        self.hopeful = hopeful
        self.scope = trio.CancelScope()
        self.ends: list[Outcome | BaseException] = []


class Machine:
    """Plays a script against one store, and knows what may come of it."""

    def __init__(self, nursery: trio.Nursery, store: CallStore) -> None:
        self._nursery = nursery
        self._store = store
        self.calls: list[Played] = []
        self.asks: list[Asked] = []
        self.requests: list[Sent] = []

    async def play(self, script: list[Step]) -> None:
        for name, one, two in script:
            getattr(self, name)(one, two)
            if name in ("wait", "expire"):
                await trio.sleep(PARKED_LIFETIME / 2 + 1 if name == "wait" else PARKED_LIFETIME + REPLAY_LIFETIME)
            elif name == "tick":
                await trio.sleep(GATHER_DELAY * one / 4)
            elif two % 2:  # otherwise the next step comes before anybody has moved
                await wait_all_tasks_blocked()
        await trio.sleep(2 * (PARKED_LIFETIME + REPLAY_LIFETIME))
        for request in self.requests:  # those that are attached have no deadline
            request.scope.cancel()
        await trio.sleep(2 * (PARKED_LIFETIME + REPLAY_LIFETIME))

    # Steps

    def begin(self, one: int, two: int) -> None:
        call = Played(len(self.calls))
        self.calls.append(call)
        self._send(Sent(call), lambda: begin(self._store, ME, call))

    def ask(self, one: int, two: int) -> None:
        for _ in range(two % 3 + 1):
            for call in self._some(self.calls, one):
                if call.handle is not None:
                    self.asks.append(asked := Asked(call, len(self.asks)))
                    self._nursery.start_soon(self._ask, asked, call.handle)

    def withdraw(self, one: int, two: int) -> None:
        for asked in self._some([asked for asked in self.asks if not asked.ends], one):
            asked.scope.cancel()

    def answer(self, one: int, two: int) -> None:
        """With the newest questions of a call, all of them or some."""
        for call in self._some([call for call in self.calls if call.seen], one):
            self._resume(call, call.newest, 7 if two > 3 else two)

    def retry(self, one: int, two: int) -> None:
        """With any questions that were ever seen."""
        for call in self._some([call for call in self.calls if call.seen], one):
            self._resume(call, call.seen[two % len(call.seen)], 7)

    def foreign(self, one: int, two: int) -> None:
        for call in self._some([call for call in self.calls if call.seen], one):
            self._resume(call, call.newest, 7, foreign=True)

    def leave(self, one: int, two: int) -> None:
        for request in self._some([request for request in self.requests if not request.ends], one):
            request.call.may_be_gone = True
            request.scope.cancel()

    def finish(self, one: int, two: int) -> None:
        for call in self._some(self.calls, one):
            call.finish.set()

    def fail(self, one: int, two: int) -> None:
        for call in self._some([call for call in self.calls if not call.finish.is_set()], one):
            call.outcome = TimedOut("s", str(call.number)) if two % 2 else ZeroDivisionError(str(call.number))
            call.finish.set()

    def tick(self, one: int, two: int) -> None:
        """Time passes; the clock is `play`'s."""

    def wait(self, one: int, two: int) -> None:
        for call in self.calls:
            call.may_be_gone = True

    expire = wait

    # What they do

    @staticmethod
    def _some(things: list[T], index: int) -> list[T]:
        """One of them, if there is any."""
        return [things[index % len(things)]] if things else []

    def _resume(self, call: Played, questions: RequestsToClient, which: int, *, foreign: bool = False) -> None:
        answers = {
            key: encode_object(params)
            for index, (key, (_, params)) in enumerate(questions.requests.items())
            if which >> index % 3 & 1
        }
        hopeful = not foreign and not call.may_be_gone and questions is call.newest
        owner = "stranger" if foreign else ME
        self._send(
            Sent(call, foreign=foreign, hopeful=hopeful),
            lambda: self._store.resume(owner, questions.state, answers, quiet),
        )

    def _send(self, request: Sent, send: Callable[[], Awaitable[Outcome]]) -> None:
        self.requests.append(request)
        self._nursery.start_soon(self._carry, request, send)

    async def _carry(self, request: Sent, send: Callable[[], Awaitable[Outcome]]) -> None:
        with request.scope:
            try:
                end = await send()
            except trio.Cancelled as left:
                request.ends.append(left)
                raise
            except Exception as problem:  # noqa: BLE001 - evaluated at the end
                request.ends.append(problem)
            else:
                request.ends.append(end)
                if isinstance(end, RequestsToClient):
                    request.call.seen.append(end)

    async def _ask(self, asked: Asked, handle: ClientHandle) -> None:
        with asked.scope:
            try:
                asked.ends.append(await handle.request(ELICIT, asked.params, None))
            except trio.Cancelled as withdrawn:
                asked.ends.append(withdrawn)
                raise
            except LinkLost as lost:
                asked.ends.append(lost)

    # What must be true of any script

    def judge(self, crashes: list[Exception]) -> None:
        assert self._store.parked == 0
        assert [call.runs for call in self.calls if call.runs != 1 and not call.may_be_gone] == []
        assert max((call.runs for call in self.calls), default=0) <= 1
        faults = [call.outcome for call in self.calls if isinstance(call.outcome, ZeroDivisionError)]
        assert len(crashes) == len(set(crashes))
        assert set(crashes) <= set(faults), "a call that was cancelled first has no outcome"
        for asked in self.asks:
            (answered,) = asked.ends
            if isinstance(answered, Raw):
                assert bytes(answered) == bytes(encode_object(asked.params))
            else:
                assert isinstance(answered, LinkLost) or asked.scope.cancel_called
        for request in self.requests:
            (end,) = request.ends
            self._judge(request, end)

    def _judge(self, request: Sent, end: Outcome | BaseException) -> None:
        call = request.call
        if request.foreign:
            assert isinstance(end, UnknownState | trio.Cancelled)
        elif isinstance(end, RequestsToClient):
            assert end.requests
            for _, params in end.requests.values():
                assert self.asks[int(bytes(params["number"]))].call is call
        elif isinstance(end, Raw):
            assert isinstance(call.outcome, Raw)
            assert bytes(end) == bytes(call.outcome)
        elif isinstance(end, UnknownState):
            assert call.may_be_gone or not request.hopeful
        elif isinstance(end, InternalFailure):
            assert isinstance(call.outcome, ZeroDivisionError)
        elif not isinstance(end, trio.Cancelled | SupersededState):
            assert repr(end) == repr(call.outcome)


STEPS = {
    "begin": 3,
    "ask": 10,
    "withdraw": 2,
    "answer": 12,
    "retry": 4,
    "foreign": 1,
    "leave": 1,
    "finish": 1,
    "fail": 1,
    "tick": 12,
    "wait": 1,
    "expire": 1,
}


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(scripts(STEPS, max_size=80))
def test_whatever_happens_each_request_call_and_question_ends_once(script: list[Step]) -> None:
    """No call is left, none is begun twice, and no answer reaches another question than its own (rule 108)."""

    async def play() -> None:
        crashes: list[Exception] = []
        async with trio.open_nursery() as nursery, trio.open_nursery() as calls:
            machine = Machine(nursery, CallStore(calls, crashes.append, Budget(now=trio.current_time)))
            await machine.play([("begin", 0, 1), *script])
            assert not calls.child_tasks
            machine.judge(crashes)

    trio.run(play, clock=MockClock(autojump_threshold=0))
