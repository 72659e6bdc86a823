"""One-time codes and console sessions: what opens one, what belongs to it, and when it is over."""

from __future__ import annotations

import pytest

from host.console.sessions import (
    CODE_LIFE,
    COOKIE,
    IDLE_LIFE,
    MAX_CODES,
    MAX_SEQUENCE,
    MAX_SESSIONS,
    MAX_WRONG,
    Opened,
    Sessions,
    TooManyTries,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(sessions: Sessions) -> Opened:
    got = sessions.open(sessions.code())
    assert got is not None
    return got


def cookies(*of: Opened) -> dict[str, str]:
    return {COOKIE + each.session.name: each.cookie for each in of}


def test_a_code_opens_one_session_once() -> None:
    sessions = Sessions(Clock())
    code = sessions.code()
    assert len(code) == 43  # 256 bits
    assert sessions.open(code) is not None
    assert sessions.open(code) is None


def test_nothing_that_opens_anything_is_kept_as_it_is() -> None:
    sessions = Sessions(Clock())
    code, one = sessions.code(), opened(sessions)
    kept = repr([vars(sessions), one.session])
    assert not [each for each in (code, one.cookie, one.secret) if each in kept]


@pytest.mark.parametrize(("age", "opens"), [(CODE_LIFE - 1, True), (CODE_LIFE, False), (CODE_LIFE + 1e6, False)])
def test_a_code_grows_too_old(age: float, opens: bool) -> None:
    clock = Clock()
    sessions = Sessions(clock)
    code = sessions.code()
    clock.now += age
    assert (sessions.open(code) is not None) is opens


def test_of_too_many_codes_the_oldest_is_void() -> None:
    sessions = Sessions(Clock())
    codes = [sessions.code() for _ in range(MAX_CODES + 1)]
    assert sessions.open(codes[0]) is None
    assert all(sessions.open(code) for code in codes[1:])


def test_after_too_many_wrong_codes_the_next_wrong_ones_are_told_so_and_nobody_is_kept_out() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    code = sessions.code()
    for _ in range(MAX_WRONG):
        assert sessions.open("wrong") is None
    with pytest.raises(TooManyTries):
        sessions.open("wrong")
    assert sessions.open(code) is not None
    clock.now += 61
    assert sessions.open("wrong") is None


def test_cookie_and_secret_must_belong_together() -> None:
    sessions = Sessions(Clock())
    one, other = opened(sessions), opened(sessions)
    assert sessions.find(cookies(one), one.secret) is one.session
    assert sessions.find(cookies(one, other), other.secret) is other.session
    assert sessions.find(cookies(one), other.secret) is None
    assert sessions.find(cookies(one), "") is None
    assert sessions.find({}, one.secret) is None
    assert sessions.find({COOKIE + one.session.name: other.cookie}, one.secret) is None
    assert sessions.find({COOKIE + one.session.name: one.cookie + "\udcff"}, one.secret) is None


def test_a_session_ends_by_itself_when_its_page_is_gone() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    one = opened(sessions)
    clock.now += IDLE_LIFE - 1
    assert sessions.find(cookies(one), one.secret) is one.session
    clock.now += IDLE_LIFE - 1
    sessions.touch(one.session)
    clock.now += IDLE_LIFE - 1
    assert sessions.find(cookies(one), one.secret) is one.session
    clock.now += IDLE_LIFE
    assert sessions.find(cookies(one), one.secret) is None
    assert not sessions.alive(one.session)


def test_another_session_takes_the_place_of_the_one_idle_longest() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    all_of_them = []
    for _ in range(MAX_SESSIONS):
        clock.now += 1
        all_of_them.append(opened(sessions))
    clock.now += 1
    sessions.touch(all_of_them[0].session)
    newest = opened(sessions)
    alive = [sessions.alive(each.session) for each in all_of_them]
    assert alive == [True, False] + [True] * (MAX_SESSIONS - 2)
    assert sessions.alive(newest.session)


def test_no_number_counts_twice() -> None:
    sessions = Sessions(Clock())
    session = opened(sessions).session
    assert sessions.advance(session, 5)
    assert [sessions.advance(session, number) for number in (5, 4, 0, -1, 6, 6, MAX_SEQUENCE + 1)] == [
        False,
        False,
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_session_that_was_left_is_over() -> None:
    sessions = Sessions(Clock())
    one = opened(sessions)
    sessions.end(one.session)
    sessions.end(one.session)
    assert sessions.find(cookies(one), one.secret) is None
