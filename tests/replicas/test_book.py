"""The judge of what clients called while hosts ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from host.fleet.members import LEASE

from .book import Attempt, Book, End, Ending, Outage
from .control import STARVED, TICK, Wait, Waits, controlled
from .process import START, until

KILL, TERM = Outage(Ending.KILLED, 10, 12), Outage(Ending.TOLD, 20, 22)


@pytest.mark.parametrize(
    ("end", "begun", "times", "problem"),
    [
        (End.DONE, 1, 1, ""),
        (End.DONE, 1, 0, "which was not carried out"),
        (End.DONE, 1, 2, "was carried out 2 times"),
        *((end, 9.5, times, "") for end in (End.BROKEN, End.TOLD) for times in (0, 1)),
        (End.BROKEN, 5, 1, "was broken while the host served"),
        (End.TOLD, 5, 1, "was told as lost while the host served"),
        (End.REFUSED, 11, 0, ""),
        (End.REFUSED, 11, 1, "was told that it was not"),
        (End.REFUSED, 21, 0, ""),
        (End.REFUSED, 5, 0, "was refused while the host served"),
        (End.BROKEN, 20.5, 1, "although the host had time for it"),
        (End.UNSENT, 20.5, 0, ""),
        (End.UNSENT, 20.5, 1, "was told that it was not"),
    ],
)
def test_an_attempt_is_held_against_the_ledger_and_the_outages(
    end: End, begun: float, times: int, problem: str
) -> None:
    book = Book([Attempt("x", "c", begun, begun + 1, end)], [KILL, TERM])
    book.judge(["x"] * times)
    book.settle(lambda begun, ended: 0.0, 1.0)
    assert [problem in each for each in book.problems] == ([True] if problem else [])


def test_a_call_may_be_tried_again_only_if_it_was_not_sent() -> None:
    for first, problems in ((End.REFUSED, 0), (End.BROKEN, 1)):
        book = Book([Attempt("x", "c", 11, 11.5, first), Attempt("x", "c", 12.5, 13, End.DONE)], [KILL])
        book.judge(["x"])
        assert len(book.problems) == problems


def test_what_nobody_allowed_or_called_is_told() -> None:
    book = Book([Attempt("x", "c", 1, 2, End.DONE)], asked={"x"})
    book.judge(["x", "y"])
    assert book.count["without consent"] == 1
    assert len(book.problems) == 2
    book = Book([Attempt("x", "c", 1, 2, End.DONE)], asked={"x"}, answered={"x"})
    book.judge(["x"])
    assert book.problems == []


def test_calls_that_no_person_could_allow_are_told() -> None:
    ids = [f"x{n}" for n in range(10)]
    book = Book([Attempt(id, "c", 1, 6, End.UNSENT) for id in ids], asked=set(ids))
    book.judge([])
    assert book.problems == ["of 10 calls that a person was asked for, none was carried out"]


def test_the_time_until_each_client_has_an_answer_again() -> None:
    attempts = [
        Attempt("x", "a", 9.5, 10.5, End.BROKEN),
        Attempt("y", "a", 10.6, 13.6, End.DONE, worked=1),
        Attempt("z", "a", 14, 15, End.DONE),
        Attempt("u", "b", 9.9, 10.1, End.DONE),
        Attempt("v", "b", 10.5, 10.6, End.REFUSED),
        Attempt("v", "b", 10.7, 11, End.DONE),
        Attempt("w", "c", 10.1, 10.2, End.DONE),
    ]
    again = Book(attempts, asked={"w"}).answers_again(KILL)
    assert again == {"a": pytest.approx((0.6, 2.6)), "b": pytest.approx((0.5, 1))}


def test_an_answer_to_a_call_that_was_begun_before_a_kill_is_no_sign_of_a_client_that_goes_on() -> None:
    """Its call was at another process."""
    book = Book([Attempt("x", "a", 9.9, 10.5, End.DONE), Attempt("y", "b", 10.1, 10.5, End.DONE)], [KILL])
    assert book.deaf_after(KILL, {"a", "b", "c"}) == {"a", "c"}


@pytest.mark.parametrize(
    ("end", "times", "excused"),
    [(End.TOLD, 1, True), (End.BROKEN, 0, True), (End.DONE, 2, False), (End.DONE, 0, False)],
)
def test_a_machine_without_a_processor_explains_lost_answers_and_nothing_else(
    end: End, times: int, excused: bool
) -> None:
    waits = Waits([Wait(3.0, 0.1), Wait(5.3, STARVED / 2), Wait(5.9, STARVED / 2), Wait(40.0, 9.0)])
    for begun, is_starved in ((6, True), (20, False)):
        book = Book([Attempt("x", "c", begun, begun + 1, end)], [])
        book.judge(["x"] * times)
        doubts = book.settle(waits.longest, STARVED)
        assert (len(doubts), len(book.problems)) == ((1, 0) if excused and is_starved else (0, 1))


def test_what_a_process_waits_is_counted_over_a_lease_at_most() -> None:
    waits = Waits(Wait(second, 0.25) for second in range(100))
    assert waits.longest(10, 90) == pytest.approx(0.25 * (int(LEASE) + 1))
    assert waits.longest(200, 210) == 0


async def test_the_control_process_notes_what_it_waits(tmp_path: Path) -> None:
    """As it does while it is stopped."""
    with controlled(tmp_path) as control:
        await until(lambda: len(control.waits()) > 0, "it runs", START)
        control.process.send_signal(signal.SIGSTOP)
        stopped = trio.current_time()
        await trio.sleep(10 * TICK)
        lasted = trio.current_time() - stopped
        control.process.send_signal(signal.SIGCONT)
        await until(lambda: Waits(control.waits()).longest(stopped, stopped) >= lasted - TICK, "it was late", START)
