"""What follows the end of a connection, without any connection."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from config import HttpServer, Protocol, Secret, StdioServer
from host.journal import ServerFailed, ServerNeedsLogin, SessionAbsent, SessionFailed
from host.jsonrpc.messages import ErrorBody
from host.peer.outstanding import PeerError
from host.protocol.handshake import UnsupportedRevision
from host.protocol.versions import LEGACY
from host.upstream.backoff import HEALTHY_AFTER, MAX_DELAY, Restarts
from host.upstream.client import Client
from host.upstream.connection import LoginChanged
from host.upstream.credentials import Credential
from host.upstream.negotiate import Dialect, HandshakeOnly, OlderOnly, StatelessOnly
from host.upstream.outcome import (
    LASTING_DELAY,
    MAX_LASTING_DELAY,
    ConnectionEnd,
    Outcome,
    configured_dialect,
    server_outcome,
    session_outcome,
)
from host.upstream.state import Absent, Connecting, Failed, NeedsLogin, Ready, Stopped, describe_state
from host.wire.http_errors import AuthNeeded, HttpRefused, Unreachable
from host.wire.link import LinkLost

PROGRAM = StdioServer(id="a", command=(Secret("/bin/true"),))
AT_A_URL = HttpServer(id="a", url=Secret("http://127.0.0.1:9/mcp"))
NOW = 1000.0
NEVER_READY = Connecting(NOW - 1.0, None)


class Idle:
    """A client that was idle for so long."""

    def __init__(self, seconds: float) -> None:
        self.idle_seconds = seconds


class Login:
    """A login that a person made, or has to make."""

    remedy = "log in"

    def __init__(self, login_id: str, problem: str = "", said: str = "") -> None:
        self.login_id = login_id
        self.problem = problem
        self.said = said


def ready(seconds: float, idle: float = 0.0) -> Ready:
    return Ready(NOW - seconds, cast(Client, Idle(idle)))


def end(problem: BaseException, **known: Any) -> ConnectionEnd:
    fields: dict[str, Any] = {
        "spec": PROGRAM,
        "why": str(problem),
        "now": NOW,
        "jitter": 0.5,
        "state": NEVER_READY,
        "dialect": Dialect(),
        "was_negotiated": False,
        "is_watched": False,
        "credential": None,
        "login_id": "",
    }
    return ConnectionEnd(problem=problem, **{**fields, **known})


def delay_of(outcome: Outcome) -> float:
    assert isinstance(outcome.state, Failed)
    return outcome.state.next_attempt - NOW


class Lost(LinkLost):
    def __init__(self, **attributes: bool) -> None:
        super().__init__("gone")
        for name, value in attributes.items():
            setattr(self, name, value)


def test_failures_in_a_row_are_further_and_further_apart() -> None:
    restarts = Restarts()
    delays = [delay_of(server_outcome(end(Lost()), restarts)) for _ in range(5)]
    assert delays[:4] == [0.25, 1.0, 4.0, 16.0]
    assert delays[4] > MAX_DELAY
    found = server_outcome(end(Lost()), Restarts())
    assert found.event == ServerFailed("a", "gone", 0.25)
    assert not found.is_withdrawn


@pytest.mark.parametrize(
    ("problem", "needed"),
    [
        (HandshakeOnly("ended"), Dialect(may_be_stateless=False)),
        (StatelessOnly("ended"), Dialect(may_be_handshake=False)),
        (
            OlderOnly(PeerError(ErrorBody(-32602, "no")), (LEGACY["2025-03-26"],)),
            Dialect(may_be_stateless=False, offers=(LEGACY["2025-03-26"],)),
        ),
        (Lost(may_be_http_sse=True), Dialect(may_be_stateless=False, http_sse=True)),
    ],
)
def test_a_failure_that_shows_the_dialect_is_followed_by_it_at_once(problem: LinkLost, needed: Dialect) -> None:
    found = server_outcome(end(problem), Restarts())
    refused = problem if needed.http_sse else None
    assert found == Outcome(Connecting(NOW, str(problem), refused=refused), None, needed)
    worn_out = Restarts(failures=5)
    failed = server_outcome(end(problem), worn_out)
    assert isinstance(failed.state, Failed)
    assert failed.dialect == needed
    while_ready = server_outcome(end(problem, state=ready(1.0), was_negotiated=True), Restarts())
    assert isinstance(while_ready.state, Failed)
    assert while_ready.dialect is None


def test_what_was_learned_is_forgotten_with_a_server_that_does_not_answer() -> None:
    """After HTTP+SSE also with one that did."""
    learned, sse = Dialect(may_be_stateless=False), Dialect(may_be_stateless=False, http_sse=True)
    assert server_outcome(end(Lost(), dialect=learned), Restarts()).dialect == Dialect()
    assert server_outcome(end(Lost(), dialect=learned, was_negotiated=True), Restarts()).dialect is None
    assert server_outcome(end(Lost(), dialect=sse, was_negotiated=True), Restarts()).dialect == Dialect()


def test_a_session_that_the_server_ended_is_opened_again_at_once_if_it_lasted() -> None:
    ended = Lost(ended_session=True)
    assert delay_of(server_outcome(end(ended, state=ready(HEALTHY_AFTER)), Restarts())) == 0.0
    assert delay_of(server_outcome(end(ended, state=ready(HEALTHY_AFTER - 1)), Restarts())) == 0.25


def test_what_only_a_person_can_mend_is_tried_again_after_minutes() -> None:
    restarts, lasting = Restarts(), Lost(lasting=True)
    first = server_outcome(end(lasting), restarts)
    assert delay_of(first) == LASTING_DELAY
    assert isinstance(first.state, Failed)
    assert first.state.why == "gone; then colonnade restart a"
    delays = [delay_of(server_outcome(end(lasting), restarts)) for _ in range(4)]
    assert delays[-1] == MAX_LASTING_DELAY
    assert delay_of(server_outcome(end(UnsupportedRevision("1999-01-01")), Restarts())) == LASTING_DELAY
    assert delay_of(server_outcome(end(lasting, state=ready(1.0)), Restarts())) == 0.25


def lacks_login() -> AuthNeeded:
    needed = AuthNeeded(401, "the server wants a login", "colonnade login a", needs_login=True)
    assert needed.ends_connection
    return needed


def test_a_server_that_wants_a_login_waits_for_one() -> None:
    def outcome(login: Login) -> Outcome:
        return server_outcome(end(lacks_login(), credential=cast(Credential, login), login_id="1"), Restarts())

    assert outcome(Login("2")) == Outcome(Connecting(NOW, None))
    found = outcome(Login("1"))
    assert found.state == NeedsLogin(NOW, str(lacks_login()))
    assert found.event == ServerNeedsLogin("a", str(lacks_login()))
    assert outcome(Login("1", "it is over")).state == NeedsLogin(NOW, "it is over: log in")


async def test_what_an_issuer_said_about_the_end_of_a_login_is_for_people_only() -> None:
    login = Login("1", "it is over", 'the issuer says: "call 555"')
    found = server_outcome(end(lacks_login(), credential=cast(Credential, login), login_id="1"), Restarts())
    assert found.state == NeedsLogin(NOW, "it is over: log in", login.said)
    assert "555" not in describe_state(found.state)
    assert found.event == ServerNeedsLogin("a", f"it is over: log in; {login.said}")


def test_another_login_begins_another_connection() -> None:
    """Without a word: nothing has failed."""
    changed = end(LoginChanged("its login has changed"), state=ready(1.0))
    assert server_outcome(changed, Restarts()) == Outcome(Connecting(NOW, None))
    assert session_outcome(changed, Restarts(), is_connected=True) == Outcome(Connecting(NOW, None))


def test_a_session_that_was_ready_is_opened_again_once() -> None:
    """At once if it was used or something is watched over it, otherwise when it is needed."""
    used, unused = ready(20.0, idle=1.0), ready(20.0, idle=20.0)
    for state, is_watched, after in (
        (used, False, Connecting(NOW, "gone")),
        (unused, True, Connecting(NOW, "gone")),
        (unused, False, Stopped(NOW)),
    ):
        restarts = Restarts()
        found = session_outcome(end(Lost(), state=state, is_watched=is_watched), restarts, is_connected=True)
        assert found == Outcome(after, SessionFailed("a", "gone", reopens=True))
    again = session_outcome(end(Lost(), state=ready(1.0)), Restarts(failures=1), is_connected=True)
    assert again == Outcome(
        Absent(NOW, "its session failed: gone", is_reached=True), SessionFailed("a", "gone"), is_withdrawn=True
    )


@pytest.mark.parametrize(
    "refusal", [PeerError(ErrorBody(-32601, "no")), UnsupportedRevision("1999-01-01"), Lost(answered=True)]
)
def test_a_session_that_the_server_refuses_is_absent(refusal: Exception) -> None:
    absent = Absent(NOW, "it accepts no session: no", is_reached=True)
    for state in (NEVER_READY, ready(1.0)):
        found = session_outcome(end(refusal, why="no", state=state), Restarts(), is_connected=True)
        assert found == Outcome(absent, SessionAbsent("a", "no"), is_withdrawn=True)
    absent_before = end(refusal, why="no", state=Absent(NOW - 60, "no", is_reached=True))
    still = session_outcome(absent_before, Restarts(), is_connected=True)
    assert still == Outcome(absent, None, is_withdrawn=True)  # it was said before


def test_whether_the_server_of_an_absent_session_was_reached_is_known() -> None:
    for problem, is_reached in ((Unreachable("gone"), False), (HttpRefused(502, "no"), False), (Lost(), True)):
        absent = session_outcome(end(problem, spec=AT_A_URL), Restarts(), is_connected=True).state
        assert isinstance(absent, Absent)
        assert absent.is_reached is is_reached


def test_a_session_that_lacks_a_login_waits_for_that_of_its_server() -> None:
    waiting = session_outcome(end(lacks_login(), spec=AT_A_URL), Restarts(), is_connected=False)
    assert waiting == Outcome(Stopped(NOW), None, is_withdrawn=True)
    refused = session_outcome(end(lacks_login(), spec=AT_A_URL), Restarts(), is_connected=True)
    assert isinstance(refused.state, Absent)


def test_a_session_that_is_slow_says_what_helps() -> None:
    for spec, why in ((AT_A_URL, "it was not open within 60 s; with eras: one, none is opened"), (PROGRAM, "slow")):
        found = session_outcome(end(trio.TooSlowError(), why="slow", spec=spec), Restarts(), is_connected=True)
        assert found.event == SessionFailed("a", why)


def test_the_configuration_may_permit_one_era_only() -> None:
    for protocol, dialect in (
        (Protocol.AUTO, Dialect()),
        (Protocol.LEGACY, Dialect(may_be_stateless=False)),
        (Protocol.MODERN, Dialect(may_be_handshake=False)),
        (Protocol.V2026_07_28, Dialect(may_be_handshake=False)),
        (Protocol.V2025_06_18, Dialect(may_be_stateless=False, offers=(LEGACY["2025-06-18"],))),
        (Protocol.V2024_11_05, Dialect(may_be_stateless=False, offers=(LEGACY["2024-11-05"],))),
    ):
        assert configured_dialect(StdioServer(id="a", command=(Secret("x"),), protocol=protocol)) == dialect
