"""Logins at the web console: one-time codes and access tokens of callers, and the sessions that they open. Pure; the
clock is given.

A session has two credentials: a cookie, which scripts cannot read, and a secret, which the page keeps for its own
origin and sends in a header. The cookie alone proves nothing: a browser sends it to every port of the same host, and
treats these as one site. Only digests of both are kept here.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest

from msgspec import Struct

CODE_LIFETIME = 600.0
"""Seconds in which a link must be opened."""
MAX_CODES = 16
"""Links that wait to be opened; beyond that the oldest is void."""
SESSION_IDLE_TIMEOUT = 12 * 3600.0
"""Seconds for which a session lives without its page."""
MAX_SESSIONS = 16
"""Sessions at a time of the owner, and of each access token; another one ends that of them which was idle longest."""
MAX_FAILED_TRIES = 30
"""Wrong codes and tokens a minute; beyond that, wrong ones are told so until the minute is over."""
MAX_SEQUENCE = 2**53 - 1
"""The largest integer that the JavaScript of the page counts exactly."""

COOKIE_PREFIX = "colonnade_console_"
"""The prefix of cookie names. The name of the session follows, so that consoles of several hosts and
several tabs of one browser do not take each other's place: cookies know no ports."""


class TooManyTries(Exception):
    """Too many wrong codes were tried."""


class ConsoleSession(Struct, eq=False):
    """One open console. `sequence` is the number of the last request that changed something. `token` is the digest of
    the access token with which a caller has opened it; empty if a link has."""

    name: str
    cookie: bytes
    secret: bytes
    last_used: float
    token: bytes = b""
    sequence: int = 0


class OpenedSession(Struct, frozen=True):
    """The credentials for the browser that opened a session. They are given out once."""

    session: ConsoleSession
    cookie: str
    secret: str


class ConsoleSessions:
    """All codes and console sessions of one host."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codes: dict[bytes, float] = {}
        self._sessions: dict[str, ConsoleSession] = {}
        self._failed_tries: deque[float] = deque(maxlen=MAX_FAILED_TRIES)

    def new_code(self, life: float = CODE_LIFETIME) -> str:
        """A new code: 256 bits, good once, for `life` seconds."""
        code = secrets.token_urlsafe(32)
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        self._codes[_digest(code)] = self._clock() + life
        return code

    def spend(self, code: str) -> bool:
        """Use up a code; False if it is not known (any more).

        Raises:
            TooManyTries: it is not known, and too many were not.
        """
        if self._spend_code(_digest(code), self._clock()):
            return True
        self.count_failed_try()
        return False

    def count_failed_try(self) -> None:
        """Count a wrong code or token.

        Raises:
            TooManyTries: too many were wrong.
        """
        # They do not lock out the holder of a right one: neither can be guessed, however many are tried.
        now = self._clock()
        rate_limited = len(self._failed_tries) == MAX_FAILED_TRIES and now - self._failed_tries[0] < 60
        self._failed_tries.append(now)
        if rate_limited:
            raise TooManyTries

    def open(self, token: bytes = b"") -> OpenedSession:
        """A new session, for a code that was spent, or the access token of this digest."""
        now = self._clock()
        cookie, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = ConsoleSession(secrets.token_hex(8), _digest(cookie), _digest(secret), now, token)
        self._sweep(now)
        peers = [each for each in self._sessions.values() if each.token == token]
        if len(peers) >= MAX_SESSIONS:  # no caller ends a session of another one, or of the owner
            self.end(min(peers, key=lambda each: each.last_used))
        self._sessions[session.name] = session
        return OpenedSession(session, cookie, secret)

    def _spend_code(self, digest: bytes, now: float) -> bool:
        # All codes are compared, so that the duration reveals nothing about any of them.
        fitting = [known for known in self._codes if compare_digest(known, digest)]
        return bool(fitting) and now < self._codes.pop(fitting[0])

    def authenticate(self, cookies: Mapping[str, str], secret: str) -> ConsoleSession | None:
        """The session that both belong to, which counts as used now."""
        now = self._clock()
        self._sweep(now)
        secret_digest = _digest(secret)
        match = None
        for session in self._sessions.values():
            by_cookie = compare_digest(session.cookie, _digest(cookies.get(COOKIE_PREFIX + session.name, "")))
            if compare_digest(session.secret, secret_digest) & by_cookie:
                match = session
        if match is not None:
            match.last_used = now
        return match

    def accept_sequence(self, session: ConsoleSession, sequence: int) -> bool:
        """Whether a request with this number is new; if so, none with it or a lower one is any more."""
        if not session.sequence < sequence <= MAX_SEQUENCE:
            return False
        session.sequence = sequence
        return True

    def touch(self, session: ConsoleSession) -> None:
        """Its page is still there."""
        session.last_used = self._clock()

    def is_open(self, session: ConsoleSession) -> bool:
        return session.name in self._sessions

    def end(self, session: ConsoleSession) -> None:
        self._sessions.pop(session.name, None)

    def _sweep(self, now: float) -> None:
        for session in [each for each in self._sessions.values() if now - each.last_used >= SESSION_IDLE_TIMEOUT]:
            self.end(session)


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()
