"""Questions end once under keys of their own, owners have what they have, and what is kept stays within its bounds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import trio
from msgspec import Raw
from trio.testing import wait_all_tasks_blocked

from host.downstream.kept import ByOwner, KeptResults, OpenServerRequest, OpenServerRequests, fit_to_keep, size_of
from host.errors import ServerErrorResponse, TimedOut
from host.jsonrpc.messages import ErrorBody
from host.jsonrpc.raw import items
from host.outstanding import PeerError
from host.wire.link import LinkLost

YES = Raw(b'{"action":"accept"}')
ELICIT = "elicitation/create"
ME, STRANGER = "me", "stranger"


@pytest.fixture
def questions() -> OpenServerRequests:
    return OpenServerRequests()


# Questions


async def test_whoever_asked_gets_the_answer_whenever_it_looks(
    questions: OpenServerRequests, nursery: trio.Nursery
) -> None:
    early, late = (questions.add(ELICIT, {}) for _ in range(2))
    got: list[Raw] = []

    async def wait(question: OpenServerRequest) -> None:
        got.append(await question.answer())

    nursery.start_soon(wait, early)
    await wait_all_tasks_blocked()
    assert got == []
    assert [questions.answer(question.key, YES) for question in (early, late)] == [True, True]
    await wait_all_tasks_blocked()
    assert [*got, await late.answer()] == [YES, YES]


async def test_a_key_is_never_used_twice(questions: OpenServerRequests) -> None:
    """Also when no question is open any more."""
    keys = []
    for _ in range(2):
        keys += [questions.add(ELICIT, {}).key for _ in range(2)]
        questions.end_all()
    assert keys == ["q1", "q2", "q3", "q4"]


async def test_what_is_open_can_be_looked_at(questions: OpenServerRequests) -> None:
    """Oldest first; what was taken before stays as it was."""
    one = questions.add(ELICIT, {"message": Raw(b'"?"')})
    two = questions.add("roots/list", {})
    before = questions.by_key()
    assert list(before.items()) == [("q1", (ELICIT, {"message": Raw(b'"?"')})), ("q2", ("roots/list", {}))]
    assert (list(questions), questions.get("q2")) == ([one, two], two)
    questions.end("q1")
    assert ("q1" in questions, "q2" in questions, len(questions)) == (False, True, 1)
    assert (questions.get("q1"), list(questions.by_key()), len(before)) == (None, ["q2"], 2)


@pytest.mark.parametrize("wrong", [b"[]", b"1", b"null"])
async def test_an_answer_that_is_no_object_leaves_the_question_open(
    wrong: bytes, questions: OpenServerRequests
) -> None:
    assert not questions.answer(questions.add(ELICIT, {}).key, Raw(wrong))
    assert "q1" in questions


async def test_only_the_first_end_counts(questions: OpenServerRequests) -> None:
    question = questions.add(ELICIT, {})
    assert questions.answer("q1", YES)
    assert not questions.answer("q1", Raw(b"{}"))
    assert not questions.end("q1")
    questions.end_all()
    assert await question.answer() == YES


async def test_an_unknown_key_ends_nothing(questions: OpenServerRequests) -> None:
    questions.add(ELICIT, {})
    assert (questions.answer("q2", YES), questions.end(""), len(questions)) == (False, False, 1)


@pytest.mark.parametrize(
    "end", [lambda questions: questions.end("q1"), lambda questions: questions.end_all()], ids=["one", "all"]
)
async def test_a_question_that_ends_without_an_answer_is_lost(
    end: Callable[[OpenServerRequests], object], questions: OpenServerRequests
) -> None:
    question = questions.add(ELICIT, {})
    end(questions)
    assert len(questions) == 0
    with pytest.raises(LinkLost):
        await question.answer()


async def test_a_refusal_is_raised_and_holds_no_stack_of_whoever_asked(questions: OpenServerRequests) -> None:
    question = questions.add(ELICIT, {})
    refusal = PeerError(ErrorBody(-1, "no"))
    questions.end("q1", refusal)
    with pytest.raises(PeerError) as raised:
        await question.answer()
    assert raised.value.error is refusal.error
    assert refusal.__traceback__ is None


# Owners


def test_there_is_room_for_each_owner_and_for_all() -> None:
    things: ByOwner[int] = ByOwner()
    for thing, owner in enumerate((ME, ME, STRANGER)):
        assert things.has_room(owner, max_total=3, max_per_owner=2)
        things.add(thing, owner)
    assert not things.has_room(STRANGER, max_total=3, max_per_owner=2)
    assert not things.has_room(ME, max_total=4, max_per_owner=2)
    assert things.has_room(STRANGER, max_total=4, max_per_owner=2)
    things.drop(0)
    assert things.has_room(ME, max_total=3, max_per_owner=2)
    assert len(things) == 2


def test_what_is_dropped_twice_makes_room_once() -> None:
    things: ByOwner[int] = ByOwner()
    things.add(1, ME)
    things.add(2, ME)
    things.drop(1)
    things.drop(1)
    assert not things.has_room(ME, max_total=9, max_per_owner=1)
    assert len(things) == 1


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
    kept: KeptResults[str] = KeptResults()
    assert [kept.add(thing, 4, max_bytes=8) for thing in "abc"] == [[], [], ["a"]]
    assert kept.add("d", 8, max_bytes=8) == ["b", "c"]
    assert len(kept) == 1


def test_the_oldest_goes_first_when_there_are_too_many() -> None:
    kept: KeptResults[str] = KeptResults()
    assert [kept.add(thing, 0, max_bytes=8, max_count=2) for thing in "abcd"] == [[], [], ["a"], ["b"]]


def test_the_newest_is_kept_whatever_its_size() -> None:
    kept: KeptResults[str] = KeptResults()
    assert kept.add("a", 9, max_bytes=8) == []
    assert kept.add("b", 9, max_bytes=8) == ["a"]


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
    assert (fit.server, fit.code, fit.message, fit.data) == ("gh", 7, "no", view)
    assert fit.data is not view
    assert (fit.__traceback__, raised.value.data) == (None, view)


def test_any_error_can_be_kept() -> None:
    assert repr(fit_to_keep(ZeroDivisionError("ours"))) == "ZeroDivisionError('ours')"
    assert fit_to_keep(TimedOut("gh", "late")).data is None


@pytest.mark.parametrize(
    ("outcome", "size"),
    [
        (Raw(b'{"n":1}'), 7),
        (ServerErrorResponse("gh", 1, "no", Raw(b"[1]")), 3),
        (ServerErrorResponse("gh", 1, "no", None), 0),
        (ZeroDivisionError("ours"), 0),
        (None, 0),
    ],
)
def test_an_outcome_has_the_size_of_what_came_from_the_server(outcome: Raw | Exception | None, size: int) -> None:
    assert size_of(outcome) == size
