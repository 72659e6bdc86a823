"""Who waits for what: whatever the order of events, every request of ours ends exactly once, and a cancel finds the one
piece of work it names or none."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from msgspec import Raw

from host.jsonrpc.conversation import CANCELLED, Asked, Serving, cancelled, cancelled_id, cancelled_reason
from host.jsonrpc.messages import INVALID_REQUEST, ErrorBody, Failure, Id, Malformed, Notification, Success

NULL = Raw(b"null")


def answers_to(id: Id) -> list[Success | Failure | Malformed]:
    return [
        Success(id, NULL),
        Failure(ErrorBody(-1, "no"), id),
        Malformed(INVALID_REQUEST, "broken", id, True),
    ]


class AskedMachine(RuleBasedStateMachine):
    """A model beside the real thing: which waiter is open under which id, and how often each was ended."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.asked: Asked[int] = Asked()
        self.open: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    @rule(target=ids)
    def ask(self) -> Id:
        waiter = len(self.ended)
        request = self.asked.ask("m", None, waiter)
        assert type(request.id) is int
        assert request.id not in self.open
        self.open[request.id] = waiter
        self.ended[waiter] = 0
        return request.id

    @rule(id=ids, which=st.integers(0, 2))
    def answer(self, id: int, which: int) -> None:
        waiter = self.asked.answer(answers_to(id)[which])
        assert waiter == self.open.pop(id, None)
        self._end(waiter)

    @rule(id=ids, which=st.integers(0, 2), shape=st.sampled_from([str, float, lambda id: id + 10_000]))
    def answer_what_was_never_asked(self, id: int, which: int, shape: type) -> None:
        assert self.asked.answer(answers_to(shape(id))[which]) is None

    @rule()
    def answer_nobody(self) -> None:
        assert self.asked.answer(Failure(ErrorBody(-1, "no"), None)) is None
        assert self.asked.answer(Malformed(INVALID_REQUEST, "broken", True, True)) is None

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
    """Ids of the peer's choice, the same ones again and again, in two types."""

    work = Bundle("work")
    ids = st.sampled_from([0, 1, 2, "0", "1", ""])

    def __init__(self) -> None:
        super().__init__()
        self.serving: Serving[int] = Serving()
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
        found = self.serving.named_by(cancelled(id, "because"))
        assert found == (meant[0] if len(meant) == 1 else None)
        assert (id in self.serving) == bool(meant)

    @rule(text=st.sampled_from([b"null", b"{}", b"[]", b"1", b'{"requestId":1.0}', b'{"requestId":true}', b"{"]))
    def cancel_nothing(self, text: bytes) -> None:
        assert self.serving.named_by(Notification(CANCELLED, Raw(text))) is None

    @invariant()
    def all_that_is_open_is_known(self) -> None:
        assert sorted(self.serving) == sorted(work for _, work in self.open)
        assert len(self.serving) == len(self.open)


TestAsked = AskedMachine.TestCase
TestServing = ServingMachine.TestCase
TestAsked.settings = TestServing.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)


def test_ids_are_never_used_again() -> None:
    asked: Asked[str] = Asked()
    first = asked.ask("m", None, "a")
    asked.abandon(first.id, None)
    assert asked.ask("m", None, "b").id != first.id
    assert asked.answer(Success(first.id, NULL)) is None


def test_a_request_says_what_is_asked() -> None:
    request = Asked[str]().ask("tools/call", Raw(b'{"a":1.0}'), "w")
    assert request.method == "tools/call"
    assert request.params is not None
    assert bytes(request.params) == b'{"a":1.0}'


def test_whoever_is_drained_may_ask_again() -> None:
    asked: Asked[str] = Asked()
    asked.ask("m", None, "a")
    for waiter in asked.drain():
        asked.ask("m", None, waiter + "again")
    assert list(asked.drain()) == ["aagain"]


def test_work_may_end_while_all_of_it_is_walked() -> None:
    serving: Serving[str] = Serving()
    serving.begin(1, "a")
    serving.begin(1, "b")
    serving.begin("1", "c")
    for work in serving:
        serving.end("1" if work == "c" else 1, work)
    assert len(serving) == 0


def test_the_notice_names_the_request_and_perhaps_the_reason() -> None:
    assert json.loads(bytes(cancelled("1", None).params or b"")) == {"requestId": "1"}
    assert json.loads(bytes(cancelled(1, "gone").params or b"")) == {"requestId": 1, "reason": "gone"}
    assert cancelled(1, None).method == "notifications/cancelled"


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
