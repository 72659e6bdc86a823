"""One-time codes and console sessions: what opens one, what belongs to it, and when it is over."""

from __future__ import annotations

import pytest

from host.admin.login import (
    CODE_LIFETIME,
    COOKIE_PREFIX,
    MAX_CODES,
    MAX_FAILED_TRIES,
    MAX_SEQUENCE,
    MAX_SESSIONS,
    SESSION_IDLE_TIMEOUT,
    ConsoleSessions,
    OpenedSession,
    TooManyTries,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def spent(sessions: ConsoleSessions, code: str) -> OpenedSession | None:
    return sessions.open() if sessions.spend(code) else None


def opened(sessions: ConsoleSessions) -> OpenedSession:
    got = spent(sessions, sessions.new_code())
    assert got is not None
    return got


def cookies(*of: OpenedSession) -> dict[str, str]:
    return {COOKIE_PREFIX + each.session.name: each.cookie for each in of}


def test_a_code_opens_one_session_once() -> None:
    sessions = ConsoleSessions(Clock())
    code = sessions.new_code()
    assert len(code) == 43  # 256 bits
    assert spent(sessions, code) is not None
    assert spent(sessions, code) is None


def test_nothing_that_opens_anything_is_kept_as_it_is() -> None:
    sessions = ConsoleSessions(Clock())
    code, one = sessions.new_code(), opened(sessions)
    kept = repr([vars(sessions), one.session])
    assert not [each for each in (code, one.cookie, one.secret) if each in kept]


@pytest.mark.parametrize(
    ("age", "opens"), [(CODE_LIFETIME - 1, True), (CODE_LIFETIME, False), (CODE_LIFETIME + 1e6, False)]
)
def test_a_code_grows_too_old(age: float, opens: bool) -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    code = sessions.new_code()
    clock.now += age
    assert (spent(sessions, code) is not None) is opens


def test_of_too_many_codes_the_oldest_is_void() -> None:
    sessions = ConsoleSessions(Clock())
    codes = [sessions.new_code() for _ in range(MAX_CODES + 1)]
    assert spent(sessions, codes[0]) is None
    assert all(spent(sessions, code) for code in codes[1:])


def test_after_too_many_wrong_codes_the_next_wrong_ones_are_told_so_and_nobody_is_kept_out() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    code = sessions.new_code()
    for _ in range(MAX_FAILED_TRIES):
        assert spent(sessions, "wrong") is None
    with pytest.raises(TooManyTries):
        spent(sessions, "wrong")
    assert spent(sessions, code) is not None
    clock.now += 61
    assert spent(sessions, "wrong") is None


def test_cookie_and_secret_must_belong_together() -> None:
    sessions = ConsoleSessions(Clock())
    one, other = opened(sessions), opened(sessions)
    assert sessions.authenticate(cookies(one), one.secret) is one.session
    assert sessions.authenticate(cookies(one, other), other.secret) is other.session
    assert sessions.authenticate(cookies(one), other.secret) is None
    assert sessions.authenticate(cookies(one), "") is None
    assert sessions.authenticate({}, one.secret) is None
    assert sessions.authenticate({COOKIE_PREFIX + one.session.name: other.cookie}, one.secret) is None
    assert sessions.authenticate({COOKIE_PREFIX + one.session.name: one.cookie + "\udcff"}, one.secret) is None


def test_a_session_ends_by_itself_when_its_page_is_gone() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    one = opened(sessions)
    clock.now += SESSION_IDLE_TIMEOUT - 1
    assert sessions.authenticate(cookies(one), one.secret) is one.session
    clock.now += SESSION_IDLE_TIMEOUT - 1
    sessions.touch(one.session)
    clock.now += SESSION_IDLE_TIMEOUT - 1
    assert sessions.authenticate(cookies(one), one.secret) is one.session
    clock.now += SESSION_IDLE_TIMEOUT
    assert sessions.authenticate(cookies(one), one.secret) is None
    assert not sessions.is_open(one.session)


def test_another_session_takes_the_place_of_the_one_idle_longest() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    all_of_them = []
    for _ in range(MAX_SESSIONS):
        clock.now += 1
        all_of_them.append(opened(sessions))
    clock.now += 1
    sessions.touch(all_of_them[0].session)
    newest = opened(sessions)
    alive = [sessions.is_open(each.session) for each in all_of_them]
    assert alive == [True, False] + [True] * (MAX_SESSIONS - 2)
    assert sessions.is_open(newest.session)


def test_the_sessions_of_a_caller_take_the_place_of_none_but_its_own() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    owner, other = opened(sessions).session, sessions.open(b"other").session
    first, *more = [sessions.open(b"token").session for _ in range(MAX_SESSIONS + 1)]
    assert not sessions.is_open(first)
    assert all(map(sessions.is_open, (owner, other, *more)))


def test_no_number_counts_twice() -> None:
    sessions = ConsoleSessions(Clock())
    session = opened(sessions).session
    assert sessions.accept_sequence(session, 5)
    assert [sessions.accept_sequence(session, number) for number in (5, 4, 0, -1, 6, 6, MAX_SEQUENCE + 1)] == [
        False,
        False,
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_session_that_was_left_is_over() -> None:
    sessions = ConsoleSessions(Clock())
    one = opened(sessions)
    sessions.end(one.session)
    sessions.end(one.session)
    assert sessions.authenticate(cookies(one), one.secret) is None
