"""Who has the console open: one-time codes, and the sessions that they open. Pure; the clock is given.

A session is known by two things that belong together: a cookie, which scripts cannot read, and a secret, which the page
keeps for its own origin and sends in a header. The cookie alone says nothing: a browser sends it to every port of the
same host, and counts those as the same site. Here only digests of either are kept.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

CODE_LIFE = 600.0
"""Seconds in which a link must be opened."""
MAX_CODES = 16
"""Links that wait to be opened; beyond that the oldest is void."""
IDLE_LIFE = 12 * 3600.0
"""Seconds for which a session lives without its page."""
MAX_SESSIONS = 16
"""Sessions at a time; another one ends the one that was idle longest."""
MAX_WRONG = 30
"""Wrong codes a minute; beyond that no code is looked at until the minute is over."""
MAX_SEQUENCE = 2**53 - 1

COOKIE = "colonnade_console_"
"""What the names of our cookies begin with. The name of the session follows, so that consoles of several hosts and
several tabs of one browser do not take each other's place: cookies know no ports."""


class TooManyTries(Exception):
    """Too many wrong codes were tried."""


@dataclass(eq=False, slots=True)
class ConsoleSession:
    """One open console. `sequence` is the number of the last request that changed something."""

    name: str
    cookie: bytes
    secret: bytes
    used: float
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """What the browser that opened a session gets, once."""

    session: ConsoleSession
    cookie: str
    secret: str


class Sessions:
    """All codes and console sessions of one host."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codes: dict[bytes, float] = {}
        self._sessions: dict[str, ConsoleSession] = {}
        self._wrong: deque[float] = deque(maxlen=MAX_WRONG)

    def code(self) -> str:
        """A new code: 256 bits, good once, for CODE_LIFE."""
        code = secrets.token_urlsafe(32)
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        self._codes[_digest(code)] = self._clock() + CODE_LIFE
        return code

    def open(self, code: str) -> Opened | None:
        """A new session for a code, which is spent; None if it is not known (any more).

        Raises:
            TooManyTries: it is not known, and too many were not.
        """
        now = self._clock()
        if not self._spend(_digest(code), now):
            # Wrong tries keep nobody out who has a link: a code cannot be guessed, however often it is tried.
            crowded = len(self._wrong) == MAX_WRONG and now - self._wrong[0] < 60
            self._wrong.append(now)
            if crowded:
                raise TooManyTries
            return None
        cookie, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = ConsoleSession(secrets.token_hex(8), _digest(cookie), _digest(secret), now)
        self._sweep(now)
        while len(self._sessions) >= MAX_SESSIONS:
            self.end(min(self._sessions.values(), key=lambda each: each.used))
        self._sessions[session.name] = session
        return Opened(session, cookie, secret)

    def _spend(self, digest: bytes, now: float) -> bool:
        # All are compared, whichever fits: the time it takes says nothing about any code.
        fitting = [known for known in self._codes if compare_digest(known, digest)]
        return bool(fitting) and now < self._codes.pop(fitting[0])

    def find(self, cookies: Mapping[str, str], secret: str) -> ConsoleSession | None:
        """The session that both belong to, which counts as used now."""
        now = self._clock()
        self._sweep(now)
        given = _digest(secret)
        found = None
        for session in self._sessions.values():
            by_cookie = compare_digest(session.cookie, _digest(cookies.get(COOKIE + session.name, "")))
            if compare_digest(session.secret, given) & by_cookie:
                found = session
        if found is not None:
            found.used = now
        return found

    def advance(self, session: ConsoleSession, sequence: int) -> bool:
        """Whether a request with this number is new; if so, none with it or a lower one is any more."""
        if not session.sequence < sequence <= MAX_SEQUENCE:
            return False
        session.sequence = sequence
        return True

    def touch(self, session: ConsoleSession) -> None:
        """Its page is still there."""
        session.used = self._clock()

    def alive(self, session: ConsoleSession) -> bool:
        return session.name in self._sessions

    def end(self, session: ConsoleSession) -> None:
        self._sessions.pop(session.name, None)

    def _sweep(self, now: float) -> None:
        for session in [each for each in self._sessions.values() if now - each.used >= IDLE_LIFE]:
            self.end(session)


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()
