"""The state that follows the end of a connection. Pure but for the counters of restarts that it is given: the caller
passes the time and the random number, and puts the outcome into effect.

    a server     switches its dialect, if the failure shows which one it needs; waits for a login; otherwise has failed
                 until the next attempt
    a session    beside a stateless connection is opened again once, if it was ready; otherwise it is absent

The outcome for a dedicated instance is decided by `host/upstream/instances.py`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import trio
from msgspec import Struct
from msgspec.structs import replace

from config import HttpServer, Protocol, ServerSpec
from host.journal import Event, ServerFailed, ServerNeedsLogin, SessionAbsent, SessionFailed
from host.peer.outstanding import BrokenAnswer, PeerError
from host.protocol.handshake import UnsupportedRevision
from host.protocol.versions import LEGACY, MODERN
from host.sanitize import with_said
from host.upstream.backoff import HEALTHY_AFTER, RESTART_FACTOR, Restarts
from host.upstream.connection import LoginChanged
from host.upstream.credentials import Credential
from host.upstream.negotiate import Dialect, HandshakeOnly, OlderOnly, StatelessOnly
from host.upstream.state import Absent, Connecting, Failed, NeedsLogin, Ready, State, Stopped
from host.wire.http_errors import AuthNeeded, HttpRefused, Unreachable
from host.wire.link import LinkLost

LASTING_DELAY = 15.0
MAX_LASTING_DELAY = 300.0
"""Seconds to the next attempt after the first failure that only a person can mend, and after many in a row."""


class ConnectionEnd(Struct, frozen=True):
    """The end of a connection, or of an attempt to make one.

    Attributes:
        why: the problem in words, without secrets.
        said: what the server says about it, quoted for people; empty if it says nothing.
        jitter: random number from 0 to 1.
        state: the state until then.
        dialect: the one in which it was to be made, and `was_negotiated` whether it was.
        is_watched: whether resources are watched over it.
        credential: the login of the server now, and `login_id` the one with which the connection began.
    """

    spec: ServerSpec
    problem: BaseException
    why: str
    now: float
    jitter: float
    state: State
    dialect: Dialect
    was_negotiated: bool
    is_watched: bool
    credential: Credential | None
    login_id: str
    said: str = ""

    @property
    def ready_for(self) -> float:
        """Seconds that the connection was ready."""
        return self.now - self.state.since if isinstance(self.state, Ready) else 0.0


class Outcome(NamedTuple):
    """The state that follows the end of a connection, and what else the end changes."""

    state: State
    event: Event | None = None
    """Told in the journal before."""
    dialect: Dialect | None = None
    """The dialect for the next connection; None: as before."""
    is_withdrawn: bool = False
    """Its lists are withdrawn: the clients of a session are served by the stateless connection."""


def server_outcome(end: ConnectionEnd, restarts: Restarts) -> Outcome:
    """The outcome for the connection that a server has always."""
    end = _furthest(end)
    problem, why, now = end.problem, end.why, end.now
    if _lacks_login(problem):
        return _outcome_without_login(end, problem)
    if isinstance(problem, LoginChanged):
        return Outcome(Connecting(now, None))
    is_ready = isinstance(end.state, Ready)
    dialect = _switched(end.dialect, problem) if isinstance(end.state, Connecting) else None
    if dialect is not None and restarts.may_start(now):
        refused = problem if dialect.http_sse and isinstance(problem, LinkLost) else None
        return Outcome(Connecting(now, why, end.said, refused), dialect=dialect)
    delay = restarts.on_failure(end.ready_for, end.jitter, now)
    # After HTTP+SSE, Streamable HTTP is tried again: the server may support it by now.
    if dialect is None and (not end.was_negotiated or end.dialect.http_sse):
        dialect = configured_dialect(end.spec)
    if isinstance(problem, LinkLost) and problem.ended_session and end.ready_for >= HEALTHY_AFTER:
        delay = 0.0  # a new one is opened at once, unless this happens often
    if _is_lasting(problem) and not is_ready:
        delay = max(delay, min(LASTING_DELAY * RESTART_FACTOR ** (restarts.failures - 1), MAX_LASTING_DELAY))
        if not (isinstance(problem, AuthNeeded) and problem.needs_login):  # a login is noticed by itself
            why = f"{why}; then colonnade restart {end.spec.id}"
    event = ServerFailed(end.spec.id, with_said(why, end.said), delay)
    return Outcome(Failed(now, why, now + delay, end.said), event, dialect)


def _furthest(end: ConnectionEnd) -> ConnectionEnd:
    """The end of an attempt over another transport, or that of the one before, if it came as far."""
    state, problem = end.state, end.problem
    if not isinstance(state, Connecting) or state.refused is None or state.last_failure is None:
        return end
    if not isinstance(problem, LinkLost) or problem.reached > state.refused.reached:
        return end
    return replace(end, problem=state.refused, why=state.last_failure, said=state.said)


def _outcome_without_login(end: ConnectionEnd, needed: AuthNeeded) -> Outcome:
    credential = end.credential
    assert credential is not None  # otherwise its connection would not say that it needs one
    if credential.login_id != end.login_id:
        return Outcome(Connecting(end.now, None))  # a person has logged in meanwhile
    why = f"{credential.problem}: {credential.remedy}" if credential.problem else str(needed)
    said = credential.said or end.said
    return Outcome(NeedsLogin(end.now, why, said), ServerNeedsLogin(end.spec.id, with_said(why, said)))


def session_outcome(end: ConnectionEnd, restarts: Restarts, *, is_connected: bool) -> Outcome:
    """The outcome for a session beside a stateless connection. One that was used is opened again at once, unless the
    one before failed early, too. One that lacks a login is opened when it is needed after the login, for which the
    stateless connection waits.

    Args:
        is_connected: whether the stateless connection is ready.
    """
    problem, why, now, state, server = end.problem, end.why, end.now, end.state, end.spec.id
    if isinstance(problem, LoginChanged):
        return Outcome(Connecting(now, None))
    is_refused = _is_refusal(problem)
    if isinstance(problem, trio.TooSlowError) and isinstance(end.spec, HttpServer):
        # A longer start_timeout would not help, because that of sessions is limited.
        why = f"it was not open within {end.spec.start_timeout:g} s; with eras: one, none is opened"
    if isinstance(state, Ready) and not is_refused:
        restarts.on_failure(end.ready_for, end.jitter, now)
        if restarts.failures == 1 and restarts.within_intensity(now):
            was_used = state.client.idle_seconds < end.ready_for or end.is_watched
            after = Connecting(now, why, end.said) if was_used else Stopped(now)
            return Outcome(after, SessionFailed(server, with_said(why, end.said), reopens=True))
    if _lacks_login(problem) and not is_connected:
        return Outcome(Stopped(now), is_withdrawn=True)
    event: Event | None = None
    if not isinstance(state, Absent):
        told = with_said(why, end.said)
        event = SessionAbsent(server, told) if is_refused else SessionFailed(server, told)
    is_reached = not (isinstance(problem, Unreachable) or (isinstance(problem, HttpRefused) and problem.status >= 500))
    why = f"it accepts no session: {why}" if is_refused else f"its session failed: {why}"
    return Outcome(Absent(now, why, is_reached, end.said), event, is_withdrawn=True)


def configured_dialect(spec: ServerSpec) -> Dialect:
    """The dialect that the configuration permits."""
    if spec.protocol in MODERN:
        return Dialect(may_be_handshake=False)
    if (pinned := LEGACY.get(spec.protocol)) is not None:
        return Dialect(may_be_stateless=False, offers=(pinned,))
    return Dialect(
        may_be_stateless=spec.protocol is not Protocol.LEGACY, may_be_handshake=spec.protocol is not Protocol.MODERN
    )


def _switched(dialect: Dialect, problem: BaseException) -> Dialect | None:
    """Another dialect, if the failure shows which one the server needs."""
    if isinstance(problem, HandshakeOnly):
        return replace(dialect, may_be_stateless=False)
    if isinstance(problem, StatelessOnly):
        return replace(dialect, may_be_handshake=False)
    if isinstance(problem, OlderOnly):
        return replace(dialect, may_be_stateless=False, offers=problem.offers)
    # HTTP+SSE (2025-11-25, "Transports / Backwards Compatibility").
    if dialect.http_sse or not (isinstance(problem, LinkLost) and problem.may_be_http_sse):
        return None
    return replace(dialect, may_be_stateless=False, http_sse=True)


def _is_refusal(problem: BaseException) -> bool:
    """Whether the server said by this that it accepts no session."""
    if isinstance(problem, LinkLost):
        return problem.answered
    return isinstance(problem, PeerError | BrokenAnswer | UnsupportedRevision)


def _lacks_login(problem: BaseException) -> TypeGuard[AuthNeeded]:
    return isinstance(problem, AuthNeeded) and problem.ends_connection


def _is_lasting(problem: BaseException) -> bool:
    return isinstance(problem, UnsupportedRevision) or (isinstance(problem, LinkLost) and problem.lasting)
