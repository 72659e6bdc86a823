"""Requests to one other side, each with exactly one end, whatever the other side says and however often."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from host.jsonrpc.messages import INVALID_REQUEST, ErrorBody, Failure, Id, Malformed, Notification, Request, Success
from host.peer.outstanding import (
    ABANDONED_SECONDS,
    CANCEL_SEND_GRACE,
    MAX_ABANDONED,
    MAX_CANCELLED_TOKENS,
    BrokenAnswer,
    OutstandingRequests,
    PeerError,
)
from host.wire.link import LinkLost, Parcel
from tests.kit.examples import examples


class Wire:
    """What was sent, and what was called off."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.called_off: list[dict[str, object]] = []

    async def send(self, parcel: Parcel) -> None:
        assert isinstance(parcel.message, Request)
        self.sent.append(parcel.message)
        await trio.lowlevel.checkpoint()

    async def call_off(self, id: Id, notice: Notification) -> None:
        told = json.loads(bytes(notice.params or b""))
        assert (notice.method, told["requestId"]) == ("notifications/cancelled", id)
        self.called_off.append(told)
        await trio.lowlevel.checkpoint()


class Broken(Wire):
    """Breaks while it sends, after `meanwhile`."""

    def __init__(self, meanwhile: Callable[[Request], object] = lambda request: None) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    async def send(self, parcel: Parcel) -> None:
        await super().send(parcel)
        self._meanwhile(self.sent[-1])
        raise LinkLost("the exchange broke")


async def ask(asking: OutstandingRequests[str], wire: Wire, method: str = "m", subject: str | None = None) -> Raw:
    return await asking.request(method, None, wire.send, wire.call_off, subject)


async def called_off(asking: OutstandingRequests[str], wire: Wire, subject: str | None = None) -> Id:
    """The id of a request for whose answer nobody waits any more. For a clock that jumps."""
    with trio.move_on_after(1):
        await ask(asking, wire, subject=subject)
    return wire.sent[-1].id


def result(id: Id) -> Success:
    return Success(id, Raw(b'{"n":1.50}'))


async def test_an_answer_is_given_as_it_came_and_only_once() -> None:
    asking, wire, got = OutstandingRequests[str](str), Wire(), list[bytes]()

    async def wait() -> None:
        got.append(bytes(await ask(asking, wire)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert (len(asking), asking.on_response(result(1)), len(asking)) == (1, True, 0)
    assert got == [b'{"n":1.50}']
    assert not asking.on_response(result(1))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Failure(ErrorBody(5, "no"), 1), PeerError),
        (Malformed(INVALID_REQUEST, "both a result and an error", 1, True), BrokenAnswer),
    ],
)
async def test_a_refusal_and_a_broken_answer_are_ends_too(answer: Failure | Malformed, error: type[Exception]) -> None:
    asking, wire = OutstandingRequests[str](str), Wire()

    async def wait() -> None:
        with pytest.raises(error, match=r"^(no|both .*)$"):
            await ask(asking, wire)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert asking.on_response(answer)
    assert wire.called_off == []


@pytest.mark.parametrize("id", ["01", "1.0", "", "2", 2, 0, -1])
async def test_an_answer_to_what_was_never_asked_is_nobodys(id: Id) -> None:
    """The text of a number is that number, in one spelling only (rule 7)."""
    asking, wire = OutstandingRequests[str](str), Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, asking, wire)
        await wait_all_tasks_blocked()
        assert not asking.on_response(result(id))
        assert not asking.on_response(Failure(ErrorBody(5, "no"), None))
        assert not asking.on_response(Malformed(INVALID_REQUEST, "no id", None, True))
        assert len(asking) == 1
        assert asking.on_response(result(1))


async def test_ids_are_counted_up_and_never_used_again(autojump_clock: MockClock) -> None:
    """Whatever became of the requests before (rule 41)."""
    asking, wire, broken = OutstandingRequests[str](str), Wire(), Broken()
    await called_off(asking, wire)
    with pytest.raises(LinkLost):
        await ask(asking, broken)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, asking, wire)
        await wait_all_tasks_blocked()
        asking.on_response(result(3))
    await called_off(asking, wire)
    assert [request.id for request in wire.sent] == [1, 3, 4]
    assert broken.sent[0].id == 2
    assert len(asking) == 0


# Giving up


async def test_giving_up_calls_the_request_off_with_the_reason() -> None:
    """The id is that of this hop (rule 45)."""
    asking, wire, scope = OutstandingRequests[str](str), Wire(), trio.CancelScope()

    async def wait() -> None:
        with scope:
            await ask(asking, wire)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        scope.cancel("the user went home")
    assert wire.called_off == [{"requestId": 1, "reason": "the user went home"}]
    assert scope.cancelled_caught


async def test_initialize_is_never_called_off(autojump_clock: MockClock) -> None:
    """(rule 46)"""
    asking, wire = OutstandingRequests[str](str), Wire()
    with trio.move_on_after(1):
        await ask(asking, wire, "initialize")
    assert (len(wire.sent), wire.called_off, len(asking)) == (1, [], 0)


async def test_whichever_comes_first_answer_or_cancel_is_what_happened() -> None:
    """A request that is answered is not called off, even if nobody has seen the answer yet (rule 47)."""
    asking, wire, scope = OutstandingRequests[str](str), Wire(), trio.CancelScope()

    async def wait() -> None:
        with scope:
            await ask(asking, wire)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert asking.on_response(result(1))
        scope.cancel()
    assert wire.called_off == []


async def test_a_late_answer_is_lawful_once_and_ends_nobody_elses_request(autojump_clock: MockClock) -> None:
    """The id of what was called off stays taken until then (rule 45)."""
    asking, wire = OutstandingRequests[str](str), Wire()
    late = await called_off(asking, wire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, asking, wire)
        await wait_all_tasks_blocked()
        assert [asking.on_response(result(late)) for _ in range(2)] == [True, False]
        assert len(asking) == 1
        asking.on_response(result(2))


async def test_a_calling_off_that_does_not_end_is_given_up(autojump_clock: MockClock) -> None:
    class Stuck(Wire):
        async def call_off(self, id: Id, notice: Notification) -> None:
            await trio.sleep_forever()

    began = trio.current_time()
    await called_off(OutstandingRequests[str](str), Stuck())
    assert trio.current_time() - began == pytest.approx(1 + CANCEL_SEND_GRACE)


async def test_a_request_that_cannot_be_sent_is_not_called_off_and_its_answer_no_surprise() -> None:
    """It may have arrived all the same."""
    asking, wire = OutstandingRequests[str](str), Broken()
    with pytest.raises(LinkLost, match="the exchange broke"):
        await ask(asking, wire)
    assert (wire.called_off, len(asking)) == ([], 0)
    assert [asking.on_response(result(1)) for _ in range(2)] == [True, False]


async def test_an_answer_that_came_before_its_exchange_broke_counts() -> None:
    asking = OutstandingRequests[str](str)
    wire = Broken(lambda request: asking.on_response(result(request.id)))
    assert bytes(await ask(asking, wire)) == b'{"n":1.50}'


# The end


async def test_at_the_end_everybody_is_told_and_nothing_is_sent_any_more(autojump_clock: MockClock) -> None:
    asking, wire, errors = OutstandingRequests[str](str), Wire(), list[LinkLost]()

    async def wait() -> None:
        try:
            await ask(asking, wire)
        except LinkLost as lost:
            errors.append(lost)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        asking.fail_all(LinkLost("it exited"))
        asking.fail_all(LinkLost("and again"))
    await wait()
    assert [str(error) for error in errors] == ["it exited"] * 4
    assert len({id(error) for error in errors}) == 4  # each collects the stack that it is raised in
    assert (len(wire.sent), wire.called_off, len(asking)) == (3, [], 0)


# What a request is for


async def test_the_other_side_may_work_for_what_is_in_flight_and_for_what_was_just_called_off(
    autojump_clock: MockClock,
) -> None:
    asking, wire = OutstandingRequests[str](str), Wire()
    gone = await called_off(asking, wire, "gone")
    async with trio.open_nursery() as nursery:
        for subject in ("first", None, "second"):
            nursery.start_soon(ask, asking, wire, "m", subject)
            await wait_all_tasks_blocked()
        assert (asking.subjects(), asking.abandoned_owners()) == (["first", "second"], {"gone"})
        assert [asking.subject_of(id) for id in (gone, 2, 3, 4, 5, "2")] == [None, "first", None, "second", None, None]
        asking.on_response(result(2))
        assert (asking.subjects(), asking.abandoned_owners()) == (
            ["second"],
            {"gone"},
        )  # at once
        asking.on_response(result(gone))
        assert (asking.subjects(), asking.abandoned_owners()) == (
            ["second"],
            set(),
        )  # it has answered
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("nothing_begun", [True, False])
async def test_what_certainly_did_not_begin_is_not_remembered(nothing_begun: bool) -> None:
    """Where it is not certain, the other side may still work for it (rule 71)."""

    def breaks(request: Request) -> None:
        lost = LinkLost("refused")
        lost.nothing_begun = nothing_begun
        raise lost

    asking = OutstandingRequests[str](str)
    with pytest.raises(LinkLost, match="refused") as lost:
        await ask(asking, Broken(breaks), subject="mine")
    assert lost.value.nothing_begun is nothing_begun
    assert (asking.subjects(), asking.abandoned_owners()) == ([], set() if nothing_begun else {"mine"})


@pytest.mark.parametrize("answered", [False, True])
async def test_the_error_of_a_request_says_more_than_that_of_its_connection(answered: bool) -> None:
    """But an answer that came before counts."""
    asking = OutstandingRequests[str](str)

    def breaks(request: Request) -> None:
        if answered:
            asking.on_response(result(request.id))
        asking.fail_all(LinkLost("the connection is gone"))
        lost = LinkLost("refused")
        lost.nothing_begun = True
        raise lost

    if answered:
        await ask(asking, Broken(breaks))
    else:
        with pytest.raises(LinkLost, match="refused"):
            await ask(asking, Broken(breaks))
    with pytest.raises(LinkLost, match="gone") as unsent:
        await ask(asking, Wire())
    assert unsent.value.nothing_begun


async def test_an_answer_counts_that_comes_after_the_end_of_the_connection_but_before_that_of_its_exchange() -> None:
    """Over HTTP, exchanges go on for a moment when another one has shown that the session is over."""
    asking = OutstandingRequests[str](str)

    def goes_on(request: Request) -> None:
        asking.fail_all(LinkLost("the session is over"))
        assert asking.on_response(result(request.id))
        raise LinkLost("the session is over")

    assert bytes(await ask(asking, Broken(goes_on))) == b'{"n":1.50}'
    assert (len(asking), asking.subjects()) == (0, [])


class Subject:
    pass


async def test_of_what_was_called_off_no_more_is_kept_than_whose_it_was(autojump_clock: MockClock) -> None:
    """(rule 29)"""
    asking, wire = OutstandingRequests[Subject](lambda subject: "whose"), Wire()

    async def give_up() -> weakref.ref[Subject]:
        subject = Subject()
        with trio.move_on_after(1):
            await asking.request("m", None, wire.send, wire.call_off, subject)
        return weakref.ref(subject)

    gone = await give_up()
    gc.collect()
    assert (gone(), asking.abandoned_owners()) == (None, {"whose"})


async def test_what_was_called_off_long_ago_is_forgotten(autojump_clock: MockClock) -> None:
    asking, wire = OutstandingRequests[str](str), Wire()
    early = await called_off(asking, wire, "early")
    await trio.sleep(ABANDONED_SECONDS / 2)
    await called_off(asking, wire, "late")
    await trio.sleep(ABANDONED_SECONDS / 2 - 1.5)
    assert (asking.subjects(), asking.abandoned_owners()) == ([], {"early", "late"})
    await trio.sleep(1)
    assert (asking.subjects(), asking.abandoned_owners()) == ([], {"late"})
    assert not asking.on_response(result(early))


async def test_no_more_than_so_much_is_remembered() -> None:
    """(rule 5)"""
    asking, wire = OutstandingRequests[str](str), Broken()
    for n in range(MAX_ABANDONED + 5):
        with pytest.raises(LinkLost):
            await ask(asking, wire, subject=str(n))
    abandoned = asking.abandoned_owners()
    assert len(abandoned) <= MAX_ABANDONED
    assert str(MAX_ABANDONED + 4) in abandoned
    assert "0" not in abandoned


# Progress


def report(token: object, **more: object) -> Notification:
    return Notification("notifications/progress", Raw(json.dumps({"progressToken": token, **more}).encode()))


async def test_progress_goes_to_whoever_has_its_token_and_only_as_long() -> None:
    """Tokens are counted up and never used again; a late one is nobody's (rule 42)."""
    asking, one, other = OutstandingRequests[str](str), list[bytes](), list[bytes]()
    with asking.progress_token(lambda found: one.append(bytes(found["progress"]))) as first:
        with asking.progress_token(lambda found: other.append(bytes(found["progress"]))) as second:
            assert asking.on_progress(report(first, progress=1)) is None
            assert asking.on_progress(report(second, progress=2)) is None
        assert asking.on_progress(report(second, progress=3)) == str(second)
    with asking.progress_token(lambda found: None) as third:
        assert len({first, second, third}) == 3
        assert asking.on_progress(report(first, progress=4)) == str(first)
    assert (one, other) == ([b"1"], [b"2"])


async def cancelled_token(asking: OutstandingRequests[str]) -> int:
    """The progress token of a request that was cancelled."""
    with trio.CancelScope() as scope, asking.progress_token(lambda found: pytest.fail("cancelled")) as token:
        scope.cancel()
        await trio.lowlevel.checkpoint()
    return token


async def test_progress_for_a_cancelled_request_is_known_and_ignored() -> None:
    """(rule 42)"""
    asking = OutstandingRequests[str](str)
    first = await cancelled_token(asking)
    for _ in range(3):
        assert asking.on_progress(report(first, progress=1)) is None
    later = [await cancelled_token(asking) for _ in range(MAX_CANCELLED_TOKENS)]
    assert asking.on_progress(report(first, progress=2)) == str(first)  # only so many are remembered
    assert [asking.on_progress(report(each, progress=3)) for each in (later[0], later[-1])] == [None, None]


@pytest.mark.parametrize("token", ["1", True, 1.0, None, [1], {}, 10**30, "x" * 100_000])
async def test_a_token_that_was_not_given_is_nobodys(token: object) -> None:
    asking, heard = OutstandingRequests[str](str), list[object]()
    await cancelled_token(asking)
    with asking.progress_token(heard.append):
        unknown = asking.on_progress(report(token, progress=1))
    assert heard == []
    assert unknown is not None
    assert len(unknown) <= 80


@pytest.mark.parametrize("params", [None, b"[]", b"{}", b"5", b'{"progress":1}', b"", b'{"progressToken":}'])
def test_progress_without_a_token_is_none(params: bytes | None) -> None:
    with pytest.raises(ValueError, match="without a token"):
        OutstandingRequests[str](str).on_progress(
            Notification("notifications/progress", None if params is None else Raw(params))
        )


# All of it at once


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.sampled_from(["ask", "answer", "answer again", "refuse", "break", "cancel", "stranger", "end"]),
        max_size=25,
    ),
    st.randoms(use_true_random=False),
)
def test_every_request_ends_exactly_once(steps: list[str], random: Random) -> None:
    """Whatever happens in whatever order (rule 47)."""
    ends: dict[int, list[str]] = {}

    async def main() -> None:
        asking, wire = OutstandingRequests[str](str), Wire()
        scopes: dict[int, trio.CancelScope] = {}

        async def wait(n: int) -> None:
            with scopes[n]:
                try:
                    await ask(asking, wire, subject=str(n))
                    ends[n].append("result")
                except (PeerError, BrokenAnswer, LinkLost) as problem:
                    ends[n].append(type(problem).__name__)
                return
            ends[n].append("cancelled")

        async with trio.open_nursery() as nursery:
            for step in steps:
                id = random.randint(1, max(len(scopes), 1))
                if step == "ask":
                    n = len(scopes) + 1
                    scopes[n], ends[n] = trio.CancelScope(), []
                    nursery.start_soon(wait, n)
                elif step == "refuse":
                    asking.on_response(Failure(ErrorBody(1, "no"), id))
                elif step == "break":
                    asking.on_response(Malformed(INVALID_REQUEST, "no", id, True))
                elif step == "cancel" and id in scopes:
                    scopes[id].cancel()
                elif step == "stranger":
                    assert not asking.on_response(result(10**6))
                elif step == "end":
                    asking.fail_all(LinkLost("gone"))
                else:
                    asking.on_response(result(id))
                if random.random() < 0.5:
                    await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()
            asking.fail_all(LinkLost("gone"))
        assert len(asking) == 0
        assert asking.subjects() == []

    trio.run(main)
    assert [len(each) for each in ends.values()] == [1] * len(ends)
