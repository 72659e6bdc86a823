"""The log and the status lines of a host: nobody can flood them."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from host.cli.common import LeastLevels
from host.cli.log import MAX_LOG, StatusLines, _Log
from host.cli.terminal import Terminal
from host.journal import (
    AuditFailed,
    ConfigReloaded,
    ConfirmationRequested,
    DecisionMade,
    DefinitionChanged,
    EntryOmitted,
    Event,
    InstanceFailed,
    InternalError,
    LoginFailed,
    MessageDropped,
    OutputLine,
    RequestCompleted,
    ServerFailed,
    ServerNeedsLogin,
    ServerReady,
    ServerRequestRefused,
    SessionFailed,
)
from tests.real.running import ROOT


def shown(*events: Event) -> list[str]:
    out = io.StringIO()
    states = StatusLines(Terminal(out))
    for event in events:
        states.note(event)
    return out.getvalue().splitlines()


def test_a_failure_is_told_once_until_it_is_another_or_the_server_was_ready() -> None:
    failed, ready = ServerFailed("a", "it broke", 1.0), ServerReady("a", "a 1", "2 tools", 0.5)
    lines = shown(failed, failed, ServerFailed("a", "otherwise", 2.0), failed, ready, failed)
    assert [line.split()[1] for line in lines] == ["failed", "failed", "failed", "ready", "failed"]
    assert lines[0].endswith("it broke; next attempt in 1.0 s")
    assert lines[3].endswith("(2 tools, 0.5 s)")


def test_a_failing_server_that_wrote_something_has_a_pointer_to_it() -> None:
    """Once for what it wrote."""
    lines = shown(
        OutputLine("a", "first"),
        OutputLine("a", "ImportError: x"),
        OutputLine("b", "other"),
        ServerFailed("a", "it ended", 1.0),
        ServerFailed("a", "it ended otherwise", 1.0),
    )
    assert [line.strip() for line in lines][1] == "more: colonnade logs a"
    assert len(lines) == 3


def test_no_state_comes_before_the_first_lines() -> None:
    out = io.StringIO()
    states = StatusLines(Terminal(out), waits=True)
    states.note(ServerFailed("a", "it broke", 1.0))
    assert out.getvalue() == ""
    states.begin("here")
    states.note(ServerReady("b", "b 1", "2 tools", 0.5))
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["here", "a", "b"]


def test_a_server_that_needs_a_login_is_told_with_the_command() -> None:
    (line,) = shown(ServerNeedsLogin("a", "the server wants a login (HTTP 401): colonnade login a"))
    assert line.split(maxsplit=3) == ["a", "needs", "login", "the server wants a login (HTTP 401): colonnade login a"]


def test_what_a_person_is_wanted_for_is_told() -> None:
    """With the command that helps; what nobody has to do anything about is not."""
    lines = shown(
        ConfirmationRequested("a", "1a2b", "The tool x of a"),
        ConfirmationRequested("a", "1a2b", "The tool x of a", "nobody was there to answer"),
        DefinitionChanged("a", "tool", "x", "held"),  # the log has it, with the others that a server may cause
        ConfigReloaded("a added", accepted=True),
        ConfigReloaded("line 1: no", accepted=False),
        DecisionMade("a", "The tool x of a", "once", "console"),
        RequestCompleted("a", "tool", "x", "desk", "ask", "answered", 0.1),
    )
    assert len(lines) == 4
    assert [line.split()[:2] for line in lines[:2]] == [["a", "asks"]] * 2
    assert lines[0].endswith("The tool x of a: colonnade ask 1a2b")
    assert lines[1].endswith(
        "The tool x of a: refused, because nobody was there to answer; to allow the next equal call: colonnade ask 1a2b"
    )
    assert lines[2:] == [
        "  configuration read again: a added",
        "  configuration kept: line 1: no",
    ]


def test_what_is_shown_beside_the_log_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log(logging.getLogger("colonnade.test"), LeastLevels("info"), StatusLines.SHOWN_EVENTS)
    with caplog.at_level(logging.INFO, "colonnade.test"):
        log.note(ServerFailed("a", "it ended", 1.0))
        log.note(ConfirmationRequested("a", "1", "w"))
        log.note(DecisionMade("a", "w", "once", "console"))
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_what_a_server_can_cause_at_will_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log(logging.getLogger("colonnade.test"), LeastLevels("info"))
    with caplog.at_level(logging.INFO, "colonnade.test"):
        for _ in range(1000):
            log.note(MessageDropped("a", "invalid message", "x"))
            log.note(EntryOmitted("a", "y"))
            for server in ("a", "b"):
                log.note(SessionFailed(server, "w"))
            log.note(InstanceFailed("a", "w"))
            log.note(LoginFailed("a", "the login was denied"))
            log.note(ServerRequestRefused("a", "form question", "v"))
            log.note(DefinitionChanged("a", "tool", "x", "held"))
        log.note(ServerRequestRefused("a", "url question", "v"))
        log.note(MessageDropped("a", "unknown id", "z"))
        log.note(MessageDropped("b", "invalid message", "x"))
        log.note(ServerReady("a", "", "", 1.0))
        log.note(ConfigReloaded("nothing", accepted=True))
        for _ in range(2):
            log.note(ConfirmationRequested("a", "1", "w"))
        log.note(ConfigReloaded("line 1: no", accepted=False))
        log.note(AuditFailed("full"))
        log.note(InternalError("here", ValueError("v")))
    assert [record.levelname for record in caplog.records] == [
        *(["WARNING"] * 11 + ["INFO"] * 2 + ["WARNING"] * 2),
        *(["ERROR"] * 3),
    ]
    assert caplog.records[-1].exc_info is not None


def test_causes_that_a_server_makes_up_are_not_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("host.cli.log.time.monotonic", lambda: now[0])
    monkeypatch.setattr("host.cli.log.MAX_CAUSES", 10)
    log = _Log(logging.getLogger("colonnade.test"), LeastLevels("info"))
    with caplog.at_level(logging.INFO, "colonnade.test"):
        for at in range(1000):
            now[0] += 0.5
            for _ in range(2):
                log.note(ServerRequestRefused("a", "form question", f"v{at}"))
    assert len(caplog.records) == 1000
    assert len(log._last) <= 10
    assert len(log._held) <= 10


@pytest.mark.slow
def test_the_log_of_hosts_in_the_background_goes_on_and_stays_short(tmp_path: Path) -> None:
    """What a former host wrote stays, until there is too much: then the newer half does, in whole lines."""
    program = """
import logging, sys
from host.cli.log import keep_log_short
logging.basicConfig(stream=sys.stderr, format="%(message)s")
keep_log_short("process 2 serves c.yaml")
for number in range(int(sys.argv[1])):
    logging.error("%01000d", number)
"""
    log = tmp_path / "log"
    log.write_text("the last words of process 1\n")
    for lines in (0, 3000):
        with log.open("a+b") as stderr:
            subprocess.run([sys.executable, "-c", program, str(lines)], stderr=stderr, check=True, cwd=ROOT)
        if not lines:
            assert log.read_text() == "the last words of process 1\nprocess 2 serves c.yaml\n"
    kept = log.read_text().splitlines()
    assert MAX_LOG / 3 < log.stat().st_size <= MAX_LOG
    assert [int(line) for line in kept] == list(range(3000 - len(kept), 3000))
