"""What happened reaches whoever subscribed, drops are counted, and foreign text is harmless."""

from __future__ import annotations

import logging
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.attempts import Attempt, Reason
from host.cli.common import LeastLevels
from host.cli.log import _Log
from host.journal import (
    EXCERPT_LENGTH,
    AttemptRefused,
    AttemptsUnnamed,
    AuditFailed,
    CallDenied,
    ConfigReloaded,
    ConfirmationRequested,
    ConsoleFailed,
    DecisionMade,
    DefinitionChanged,
    DefinitionsLost,
    EntryOmitted,
    Event,
    InstanceFailed,
    InternalError,
    Journal,
    LoggedIn,
    LoginFailed,
    MessageDropped,
    MetricsFailed,
    NoticeFailed,
    OutputLine,
    RequestCompleted,
    RequestFailed,
    ServerFailed,
    ServerNeedsLogin,
    ServerReady,
    ServerRequestRefused,
    Severity,
    TokenNotRefreshed,
    excerpt,
)
from tests.kit.examples import examples


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ServerReady("gh", "GitHub 1", "3 tools", 0.42), "gh: ready in 0.4 s (3 tools)"),
        (ServerFailed("gh", "it ended", 2.0), "gh: failed: it ended; next attempt in 2.0 s"),
        (ServerFailed("gh", "its key is unknown", math.inf), "gh: failed: its key is unknown"),
        (RequestFailed("gh", "no (HTTP 403)", 'it says: "x"'), 'gh: a request failed: no (HTTP 403); it says: "x"'),
        (InstanceFailed("gh", "it ended"), "gh: a dedicated instance failed: it ended"),
        (ServerNeedsLogin("gh", "it wants one"), "gh: needs login: it wants one"),
        (LoggedIn("gh", "https://i.example", "console"), "gh: logged in at https://i.example (console)"),
        (LoginFailed("gh", "the login was denied"), "gh: nobody is logged in: the login was denied"),
        (TokenNotRefreshed("gh", "no answer"), "gh: its token could not be refreshed: no answer"),
        (RequestFailed("gh", "no", "it says", "desk"), "gh: a request for desk failed: no; it says"),
        (ServerRequestRefused("gh", "url request", "not trusted"), "gh: url request refused: not trusted"),
        (MessageDropped("gh", "unknown id", "7"), "gh: unknown id dropped: 7"),
        (EntryOmitted("gh", "a tool without a name"), "gh: a tool without a name"),
        (OutputLine("gh", "hello"), "gh: stderr: hello"),
        (InternalError("gh", ValueError("no")), "gh: internal error: ValueError('no')"),
        (
            RequestCompleted("gh", "tool", "x\n", "desk", "ask", "answered", 0.0421),
            "gh: tool x\\n for desk: answered in 0.042 s (ask)",
        ),
        (
            ConfirmationRequested("gh", "1a2b", "The tool x of gh"),
            "gh: The tool x of gh waits for a person's answer (colonnade ask 1a2b)",
        ),
        (
            ConfirmationRequested("gh", "1a2b", "The tool x of gh", "nobody was there to answer"),
            "gh: The tool x of gh was refused, because nobody was there to answer; a person can allow the next equal "
            "call (colonnade ask 1a2b)",
        ),
        (DecisionMade("gh", "The tool x of gh", "once", "console"), "gh: The tool x of gh: allowed once (console)"),
        (DecisionMade("gh", "The tool x of gh", "none", ""), "gh: The tool x of gh: nobody answered"),
        (
            DefinitionChanged("gh", "tool", "x\x1b", "held"),
            "gh: tool x\\x1b: not as it was approved; held until a person approves it (colonnade definitions)",
        ),
        (
            DefinitionChanged("gh", "tool", "x", "reordered", 3, "do this"),
            "gh: tool x and 2 more: not as it was approved, though only the order of its words differs; held until a "
            "person approves it (colonnade definitions); do this",
        ),
        (
            DefinitionChanged("gh", "instructions", "", "accepted"),
            "gh: instructions: changed, and accepted, since the server is trusted",
        ),
        (DefinitionChanged("gh", "tool", "x", "returned"), "gh: tool x: again as it was approved"),
        (DefinitionsLost("it is gone; nothing is approved"), "state: it is gone; nothing is approved"),
        (AuditFailed("the disk is full"), "audit: the disk is full; no request is sent while this lasts"),
        (ConfigReloaded("gh added", accepted=True), "configuration read again: gh added"),
        (ConfigReloaded("line 1: no", accepted=False), "configuration kept: line 1: no"),
        (
            AttemptRefused("", Attempt(Reason.WRONG_TOKEN, "path", "/mcp", "10.0.0.7"), 3),
            "path /mcp refused from 10.0.0.7: an unknown token, 3 times within a minute",
        ),
        (
            AttemptRefused("gh", Attempt(Reason.DENIED, "tool", "gh__x", "stdio", "", "stdio (Ada)", "gh")),
            "gh: tool gh__x refused to stdio (Ada) from stdio: the rules deny it",
        ),
        (AttemptsUnnamed(7), "7 more refused attempts within a minute, whose names are not kept"),
        (CallDenied("gh", "tool", "x\n", "desk", "tools.deny: x"), "gh: tool x\\n for desk: denied (tools.deny: x)"),
    ],
)
def test_an_event_reads_as_one_sentence(event: Event, text: str) -> None:
    assert str(event) == text


def test_every_reader_hears_every_event_from_its_subscription_on() -> None:
    journal = Journal()
    first: list[Event] = []
    second: list[Event] = []
    journal.subscribe(first.append)
    journal.note(EntryOmitted("gh", "1"))
    journal.subscribe(second.append)
    journal.note(EntryOmitted("gh", "2"))
    assert first == [EntryOmitted("gh", "1"), EntryOmitted("gh", "2")]
    assert second == [EntryOmitted("gh", "2")]


def test_drops_are_counted_by_server_and_kind() -> None:
    journal = Journal()
    for server, what in [("gh", "unknown id"), ("gh", "unknown id"), ("gh", "invalid message"), ("fs", "unknown id")]:
        journal.note(MessageDropped(server, what, "..."))
    journal.note(EntryOmitted("gh", "not a drop"))
    assert journal.dropped == {"gh": {"unknown id": 2, "invalid message": 1}, "fs": {"unknown id": 1}}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        (b"plain", "plain"),
        ("", ""),
        ("a\nb\r\x1b[31m\0", r"a\nb\r\x1b[31m\x00"),
        ("\u202eevil\u2028", r"\u202eevil\u2028"),
        ("\ud800", r"\ud800"),
        (b"\xff", r"\ufffd"),
        ("it's", "it's"),
        ("x" * EXCERPT_LENGTH, "x" * EXCERPT_LENGTH),
        ("x" * (EXCERPT_LENGTH + 1), "x" * EXCERPT_LENGTH + "..."),
        (b"x" * 10_000_000, "x" * EXCERPT_LENGTH + "..."),
    ],
)
def test_a_sample_is_short_and_escaped(text: str | bytes, shown: str) -> None:
    assert excerpt(text) == shown


@settings(max_examples=examples(80))
@given(st.text(st.characters(exclude_categories=())) | st.binary())
def test_no_sample_can_move_a_terminal(text: str | bytes) -> None:
    shown = excerpt(text)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 10 * EXCERPT_LENGTH + 3


@pytest.mark.parametrize(
    ("event", "severity"),
    [
        (ServerReady("gh", "", "", 0.1), Severity.INFO),
        (ServerFailed("gh", "it ended", 2.0), Severity.WARNING),
        (ConfirmationRequested("gh", "1a2b", "The tool x"), Severity.WARNING),
        (ConsoleFailed("the port is taken"), Severity.ERROR),
        (MetricsFailed("the port is taken"), Severity.ERROR),
        (NoticeFailed("ask.notify[0]", "the webhook gave no answer"), Severity.WARNING),
        (AuditFailed("full"), Severity.ERROR),
        (DefinitionsLost("gone"), Severity.ERROR),
        (ConfigReloaded("a added", accepted=True), Severity.INFO),
        (ConfigReloaded("line 1: no", accepted=False), Severity.ERROR),
        (ConfigReloaded("a added", accepted=True, waiting=("b added",)), Severity.WARNING),
        (ConfigReloaded("a added", accepted=True, waiting=("b added",), complete=False), Severity.ERROR),
        (RequestCompleted("gh", "tool", "x", "desk", "ask", "answered", 0.1), Severity.INFO),
        (RequestCompleted("gh", "tool", "x", "desk", "ask", "error -32602", 0.1), Severity.INFO),
        (RequestCompleted("gh", "tool", "x", "desk", "ask", "failed", 0.1), Severity.WARNING),
        (CallDenied("gh", "tool", "x", "desk", "tools.deny: x"), Severity.WARNING),
        (DefinitionChanged("gh", "tool", "x", "held"), Severity.WARNING),
        (DefinitionChanged("gh", "tool", "x", "reordered"), Severity.WARNING),
        (DefinitionChanged("gh", "tool", "x", "accepted"), Severity.WARNING),
        (DefinitionChanged("gh", "tool", "x", "edited"), Severity.INFO),
        (DefinitionChanged("gh", "launch", "", "installed"), Severity.INFO),
        (DefinitionChanged("gh", "tool", "x", "returned"), Severity.INFO),
    ],
)
def test_an_event_says_how_much_it_matters(event: Event, severity: Severity, caplog: pytest.LogCaptureFixture) -> None:
    """And the log says the same; for the console see its own tests."""
    assert event.severity is severity
    with caplog.at_level(logging.INFO, "colonnade.test"):
        _Log(logging.getLogger("colonnade.test"), LeastLevels("info")).note(event)
    assert [record.levelno for record in caplog.records] == [severity]
