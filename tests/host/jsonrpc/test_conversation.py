"""Outstanding requests: in every order of events, each request of ours ends exactly once, and a cancellation finds the
one piece of work it names or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from host.jsonrpc.conversation import CANCELLED, Incoming, Outgoing, cancel_notification, cancelled_id, cancelled_reason
from host.jsonrpc.messages import INVALID_REQUEST, ErrorBody, Failure, Id, Malformed, Notification, Request, Success
from host.peer.outstanding import ABANDONED_SECONDS, BrokenAnswer, OutstandingRequests, PeerError
from host.wire.link import LinkLost, Parcel
from tests.kit.examples import examples
from tests.kit.scripts import Step, scripts

NULL = Raw(b"null")


def answers_to(id: Id) -> list[Success | Failure | Malformed]:
    return [
        Success(id, NULL),
        Failure(ErrorBody(-1, "no"), id),
        Malformed(INVALID_REQUEST, "broken", id, True),
    ]


OTHER_IDS: list[Callable[[int], object]] = [
    float,
    lambda id: id + 10_000,
    *(form.format for form in ("0{}", "-{}", "+{}", " {}", "{}\n", "{}.0", "{}e0", "{:b}2", "'{}'")),
    lambda id: "".join(chr(0x660 + int(digit)) for digit in str(id)),
]


class AskedMachine(RuleBasedStateMachine):
    """A model beside `Outgoing`: the open waiter of each id, and how often each waiter was ended."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.asked: Outgoing[int] = Outgoing()
        self.open: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    @rule(target=ids)
    def ask(self) -> Id:
        waiter = len(self.ended)
        request = self.asked.add("m", None, waiter)
        assert type(request.id) is int
        assert request.id not in self.open
        self.open[request.id] = waiter
        self.ended[waiter] = 0
        return request.id

    @rule(id=ids, which=st.integers(0, 2), shape=st.sampled_from([int, str]))
    def answer(self, id: int, which: int, shape: type) -> None:
        """With a number, or its text: no other request can be meant."""
        waiter = self.asked.take(answers_to(shape(id))[which])
        assert waiter == self.open.pop(id, None)
        self._end(waiter)

    @rule(id=ids, which=st.integers(0, 2), shape=st.sampled_from(OTHER_IDS))
    def answer_what_was_never_asked(self, id: int, which: int, shape: Callable[[int], Any]) -> None:
        assert self.asked.take(answers_to(shape(id))[which]) is None

    @rule()
    def answer_nobody(self) -> None:
        assert self.asked.take(Failure(ErrorBody(-1, "no"), None)) is None
        assert self.asked.take(Malformed(INVALID_REQUEST, "broken", True, True)) is None

    @rule(id=ids, reason=st.none() | st.text())
    def abandon(self, id: int, reason: str | None) -> None:
        notice = self.asked.abandon(id, reason)
        waiter = self.open.pop(id, None)
        assert (notice is None) == (waiter is None)
        self._end(waiter)
        if notice is not None:
            assert (cancelled_id(notice), cancelled_reason(notice)) == (id, reason)

    @rule(id=ids)
    def abandon_with_another_type(self, id: int) -> None:
        assert self.asked.abandon(str(id), None) is None
        assert self.asked.abandon(True, None) is None

    @rule()
    def drain(self) -> None:
        for waiter in self.asked.drain():
            self._end(waiter)
        self.open.clear()

    @invariant()
    def as_many_wait_as_are_open(self) -> None:
        assert len(self.asked) == len(self.open)

    def _end(self, waiter: int | None) -> None:
        if waiter is not None:
            self.ended[waiter] += 1

    def teardown(self) -> None:
        for waiter in self.asked.drain():
            self._end(waiter)
        assert set(self.ended.values()) <= {1}


class ServingMachine(RuleBasedStateMachine):
    """A model of `Incoming`, whose ids are few, used again, and of two types."""

    work = Bundle("work")
    ids = st.sampled_from([0, 1, 2, "0", "1", ""])

    def __init__(self) -> None:
        super().__init__()
        self.serving: Incoming[int] = Incoming()
        self.open: list[tuple[Id, int]] = []
        self.count = 0

    @rule(target=work, id=ids)
    def begin(self, id: Id) -> tuple[Id, int]:
        self.count += 1
        self.serving.begin(id, self.count)
        self.open.append((id, self.count))
        return id, self.count

    @rule(work=consumes(work))
    def end(self, work: tuple[Id, int]) -> None:
        self.serving.end(*work)
        self.open.remove(work)

    @rule(id=ids)
    def cancel(self, id: Id) -> None:
        meant = [work for at, work in self.open if (type(at), at) == (type(id), id)]
        found = self.serving.cancelled_by(cancel_notification(id, "because"))
        assert found == (meant[0] if len(meant) == 1 else None)
        assert (id in self.serving) == bool(meant)

    @rule(text=st.sampled_from([b"null", b"{}", b"[]", b"1", b'{"requestId":1.0}', b'{"requestId":true}', b"{"]))
    def cancel_nothing(self, text: bytes) -> None:
        assert self.serving.cancelled_by(Notification(CANCELLED, Raw(text))) is None

    @invariant()
    def all_that_is_open_is_known(self) -> None:
        assert sorted(self.serving) == sorted(work for _, work in self.open)
        assert self.serving.count == len(self.open)


TestAsked = AskedMachine.TestCase
TestServing = ServingMachine.TestCase
TestAsked.settings = TestServing.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_ids_are_never_used_again() -> None:
    asked: Outgoing[str] = Outgoing()
    first = asked.add("m", None, "a")
    asked.abandon(first.id, None)
    assert asked.add("m", None, "b").id != first.id
    assert asked.take(Success(first.id, NULL)) is None


def test_a_request_says_what_is_asked() -> None:
    request = Outgoing[str]().add("tools/call", Raw(b'{"a":1.0}'), "w")
    assert request.method == "tools/call"
    assert request.params is not None
    assert bytes(request.params) == b'{"a":1.0}'


def test_whoever_is_drained_may_ask_again() -> None:
    asked: Outgoing[str] = Outgoing()
    asked.add("m", None, "a")
    for waiter in asked.drain():
        asked.add("m", None, waiter + "again")
    assert list(asked.drain()) == ["aagain"]


def test_work_may_end_while_all_of_it_is_walked() -> None:
    serving: Incoming[str] = Incoming()
    serving.begin(1, "a")
    serving.begin(1, "b")
    serving.begin("1", "c")
    for work in serving:
        serving.end("1" if work == "c" else 1, work)
    assert serving.count == 0


def test_the_notice_names_the_request_and_perhaps_the_reason() -> None:
    assert json.loads(bytes(cancel_notification("1", None).params or b"")) == {"requestId": "1"}
    assert json.loads(bytes(cancel_notification(1, "gone").params or b"")) == {"requestId": 1, "reason": "gone"}
    assert cancel_notification(1, None).method == "notifications/cancelled"


@pytest.mark.parametrize(
    ("params", "id"),
    [
        (b'{"requestId":1}', 1),
        (b'{"requestId":"1"}', "1"),
        (b'{"requestId":""}', ""),
        (b'{"requestId":1.0}', None),
        (b'{"requestId":true}', None),
        (b'{"requestId":null}', None),
        (b'{"requestId":[1]}', None),
        (b'{"requestId":"\\ud800"}', None),
        (b'{"requestid":1}', None),
        (b"{}", None),
        (b"[]", None),
        (b"null", None),
    ],
)
def test_a_cancel_names_an_id_or_is_malformed(params: bytes, id: Id | None) -> None:
    found = cancelled_id(Notification(CANCELLED, Raw(params)))
    assert (type(found), found) == (type(id), id)


def test_a_cancel_without_params_names_nothing() -> None:
    assert cancelled_id(Notification(CANCELLED)) is None
    assert cancelled_reason(Notification(CANCELLED)) is None


@pytest.mark.parametrize("reason", [b"1", b"null", b"{}", b'"\\ud800"'])
def test_a_reason_that_is_no_text_is_none(reason: bytes) -> None:
    assert cancelled_reason(Notification(CANCELLED, Raw(b'{"requestId":1,"reason":' + reason + b"}"))) is None


# The whole of it: requests that are really waited for


class Waiting:
    """One request as the model knows it."""

    def __init__(self, number: int, method: str, fails: str | None) -> None:
        self.number = number
        self.method = method
        self.fails = fails
        self.scope = trio.CancelScope()
        self.id: int | None = None
        self.token = 0
        self.reports: list[int] = []
        self.notices: list[str | None] = []
        self.ends: list[str] = []
        self.answered = self.lost = False
        self.was_cancelled = False
        """It was cancelled before it ended."""
        self.is_ending = False
        """It was cancelled a moment before the link was lost: until it has ended, a response is known."""
        self.abandoned_at: float | None = None
        """Time since which the other side may work for it in vain; None if it does not."""

    @property
    def is_open(self) -> bool:
        """Whether a response would be the first outcome of the request."""
        return not (self.answered or self.ends or (self.lost and not self.is_ending))


class Conversation:
    """Plays a script to `OutstandingRequests` and compares each effect with the expected one."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.asking: OutstandingRequests[int] = OutstandingRequests(lambda subject: subject)
        self.requests: list[Waiting] = []
        self.reported = 0
        self.lost = False
        self._nursery = nursery

    async def play(self, script: list[Step]) -> None:
        for name, one, two in script:
            getattr(self, name)(one, two)
            if name in ("ask", "pass_time") or two % 2:  # an answer and a cancel may come at once
                await wait_all_tasks_blocked()
                self.check()
            if name == "pass_time":
                await trio.sleep(ABANDONED_SECONDS * one / 4)
        self.lose(0, 0)
        await wait_all_tasks_blocked()
        self.check()

    # Steps

    def ask(self, one: int, two: int) -> None:
        fails = {0: "nothing begun", 1: "uncertain"}.get(one) if two == 0 else None
        waiting = Waiting(len(self.requests), "initialize" if two == 1 else "tools/call", fails)
        waiting.lost = self.lost
        self.requests.append(waiting)
        self._nursery.start_soon(self._wait, waiting)

    def answer(self, one: int, two: int) -> None:
        for waiting in self._some(one):
            assert waiting.id is not None
            late = waiting.abandoned_at is not None
            id = str(waiting.id) if two % 4 > 1 else waiting.id
            assert self.asking.awaits(id) == (waiting.is_open or late)
            assert self.asking.on_response(answers_to(id)[two % 3]) == (waiting.is_open or late)
            waiting.answered = waiting.answered or waiting.is_open
            waiting.abandoned_at = None

    def answer_what_was_never_asked(self, one: int, two: int) -> None:
        for id in (f"0{one}", f"{one}.0", f"+{one}", 10_000 + one, str(10_000 + one), ""):
            assert not self.asking.on_response(answers_to(id)[two % 3])
        assert not self.asking.on_response(Failure(ErrorBody(-1, "no"), None))

    def cancel(self, one: int, two: int) -> None:
        for waiting in self._some(one):
            waiting.scope.cancel(f"because of {waiting.number}")

    def report(self, one: int, two: int) -> None:
        for waiting in self._some(one):
            self.reported += 1
            params = json.dumps({"progressToken": waiting.token, "progress": self.reported}).encode()
            unknown = self.asking.on_progress(Notification("notifications/progress", Raw(params)))
            assert (unknown is None) == (not waiting.ends or waiting.was_cancelled)
            assert (waiting.reports[-1:] == [self.reported]) == (not waiting.ends)

    def lose(self, one: int, two: int) -> None:
        self.lost = True
        for waiting in self.requests:
            if waiting.is_open and not waiting.lost:
                waiting.lost, waiting.is_ending = True, waiting.scope.cancel_called
        self.asking.fail_all(LinkLost("gone"))

    def pass_time(self, one: int, two: int) -> None:
        """The clock is `play`'s."""

    # What they do

    def _some(self, index: int) -> list[Waiting]:
        sent = [waiting for waiting in self.requests if waiting.id is not None]
        return [sent[-1 - index % len(sent)]] if sent else []

    async def _wait(self, waiting: Waiting) -> None:
        async def send(parcel: Parcel) -> None:
            assert isinstance(parcel.message, Request)
            assert isinstance(parcel.message.id, int)
            waiting.id = parcel.message.id
            await trio.lowlevel.checkpoint()
            if waiting.fails:
                lost = LinkLost("the exchange broke")
                lost.nothing_begun = waiting.fails == "nothing begun"
                if not lost.nothing_begun:
                    waiting.abandoned_at = trio.current_time()
                raise lost

        async def call_off(id: Id, notice: Notification) -> None:
            assert (id, cancelled_id(notice)) == (waiting.id, waiting.id)
            waiting.notices.append(cancelled_reason(notice))
            await trio.lowlevel.checkpoint()

        with (
            waiting.scope,
            self.asking.progress_token(lambda found: waiting.reports.append(_number(found))) as waiting.token,
        ):
            try:
                await self.asking.request(waiting.method, None, send, call_off, waiting.number)
                waiting.ends.append("result")
            except (PeerError, BrokenAnswer, LinkLost) as problem:
                waiting.ends.append(type(problem).__name__)
        waiting.was_cancelled = waiting.scope.cancel_called
        if not waiting.ends:
            waiting.ends.append("cancelled")
            if not waiting.answered and not waiting.lost:
                waiting.abandoned_at = trio.current_time()

    # What must be true whenever nobody moves

    def check(self) -> None:
        now = trio.current_time()
        for waiting in self.requests:
            if waiting.abandoned_at is not None and waiting.abandoned_at + ABANDONED_SECONDS <= now:
                self.asking.abandoned_owners()  # looks at the clock
                waiting.abandoned_at = None
        open_ones = [waiting for waiting in self.requests if not waiting.ends]
        assert all(waiting.is_open for waiting in open_ones)
        assert len(self.asking) == len(open_ones)
        assert self.asking.subjects() == [waiting.number for waiting in open_ones]
        assert self.asking.abandoned_owners() == {
            each.number for each in self.requests if each.abandoned_at is not None
        }
        ids = [waiting.id for waiting in self.requests if waiting.id is not None]
        assert len(ids) == len(set(ids))
        for waiting in self.requests:
            self._check_end(waiting)

    def _check_end(self, waiting: Waiting) -> None:
        called_off = waiting.ends == ["cancelled"] and not waiting.answered and not waiting.lost
        tells = called_off and waiting.method != "initialize"
        assert waiting.notices == ([f"because of {waiting.number}"] if tells else [])
        if waiting.ends:
            (end,) = waiting.ends
            if end in ("result", "PeerError", "BrokenAnswer"):
                assert waiting.answered
            elif end == "LinkLost":
                assert waiting.lost or waiting.fails
            else:
                assert waiting.scope.cancel_called


def _number(found: dict[str, Raw]) -> int:
    return int(bytes(found["progress"]))


ASKING_STEPS = {
    "ask": 10,
    "answer": 10,
    "answer_what_was_never_asked": 1,
    "cancel": 6,
    "report": 4,
    "lose": 1,
    "pass_time": 3,
}


@settings(max_examples=examples(150))
@given(scripts(ASKING_STEPS, min_size=0, max_size=40))
def test_whatever_happens_a_request_that_is_waited_for_ends_once(script: list[Step]) -> None:
    """A cancellation is sent exactly if the other side still works for the request (rules 41, 45, 46, 47)."""

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            await Conversation(nursery).play(script)

    trio.run(play, clock=MockClock(autojump_threshold=0))
