"""The formats of the log, its levels by parts, and the file that it may go to."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from host.attempts import Attempt, Reason
from host.cli import log_format
from host.cli.common import EVENT_PARTS, LOGGER_PARTS, LeastLevels, log_level_option
from host.cli.log import LogFile, _handler, _Log, open_log
from host.cli.log_format import JournalHandler, JsonFormatter, is_journal
from host.journal import (
    AttemptRefused,
    ConfigReloaded,
    Event,
    InternalError,
    Journal,
    MessageDropped,
    OutputLine,
    RequestCompleted,
    ServerFailed,
    ServerReady,
)
from tests.real.running import until

CALL = RequestCompleted("gh", "tool", "x", "desk", "allow", "answered", 0.5, 17, 42)


@pytest.fixture
def log(request: pytest.FixtureRequest) -> logging.Logger:
    log = logging.Logger(f"colonnade.{request.node.name}")
    log.propagate = False
    return log


def logged(log: logging.Logger, *events: Event, levels: LeastLevels = LeastLevels("info")) -> list[dict[str, object]]:  # noqa: B008
    """The lines in JSON."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    noting = _Log(log, levels)
    for event in events:
        noting.note(event)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_each_event_is_of_a_part_and_each_part_has_one() -> None:
    assert {event.part for event in Event.__subclasses__()} == set(EVENT_PARTS)


def test_an_event_in_json_has_its_members_without_empty_ones(log: logging.Logger) -> None:
    attempt = Attempt(Reason.DENIED, "tool", "rm\n", "127.0.0.1", client="desk \u202e", server="gh")
    call, refused, failed, reloaded = logged(
        log,
        CALL,
        AttemptRefused("gh", attempt, 3),
        ServerFailed("gh", "it ended", float("inf")),
        ConfigReloaded("nothing has changed", accepted=True),
    )
    time = str(call.pop("time"))
    assert (time[10], time[-1], len(time)) == ("T", "Z", 24)
    assert call == {
        "level": "info",
        "message": str(CALL),
        "part": "calls",
        "event": "request_completed",
        "server": "gh",
        "kind": "tool",
        "name": "x",
        "caller": "desk",
        "verdict": "allow",
        "outcome": "answered",
        "seconds": 0.5,
        "size": 17,
        "audit": 42,
        "sent": 0,
        "tool_error": False,
    }
    assert (refused["caller"], refused["reason"], refused["name"], refused["count"]) == (
        *("desk \u202e", "denied", "rm\n"),
        3,
    )
    assert "principal" not in refused
    assert (failed["event"], failed["retry_in"]) == ("server_failed", None)
    assert reloaded.keys() == {"time", "level", "message", "part", "event", "changes", "accepted", "complete"}


def test_a_line_of_json_cannot_steer_a_terminal() -> None:
    name = "\x1b[2J\x9b2J\u202e\u2028ü"
    record = logging.LogRecord("x", logging.INFO, "", 0, "m", (), None)
    record.event = AttemptRefused("gh", Attempt(Reason.DENIED, "tool", name, "", server="gh"))
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["name"] == name


def test_what_was_raised_and_what_is_no_event_are_in_json_too(log: logging.Logger) -> None:
    try:
        raise ValueError("v")
    except ValueError as problem:
        (fault,) = logged(log, InternalError("here", problem, "desk", "4bf9"))
    assert (fault["level"], fault["where"], fault["caller"], fault["trace_id"]) == ("error", "here", "desk", "4bf9")
    assert str(fault["exception"]).endswith("ValueError: v")
    record = logging.LogRecord("hypercorn", logging.WARNING, "", 0, "%s\nx", ("odd",), None)
    other = json.loads(JsonFormatter().format(record))
    assert (other["logger"], other["message"]) == ("hypercorn", "odd\nx")


def test_bytes_in_names_of_files_that_are_no_text_are_written_as_escapes(log: logging.Logger, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    handler = JournalHandler(path)
    log.addHandler(handler)
    event = ConfigReloaded("c", accepted=True, waiting=("\udcff",))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        (line,) = logged(log, event)
        assert b'COLONNADE_WAITING=["\\udcff"]\n' in journal.recv(65536)
    handler.close()
    assert line["waiting"] == ["\udcff"]


def test_lines_that_are_left_out_are_counted(log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 0.5, 0.6, 2.0))
    monkeypatch.setattr("host.cli.log.time.monotonic", lambda: next(times))
    first, second = logged(log, *[MessageDropped("a", "unknown id", "z")] * 4)
    assert ("held" in first, second["held"]) == (False, 2)


def test_parts_have_levels_of_their_own(log: logging.Logger) -> None:
    levels = LeastLevels("warning", {"calls": "info", "servers": "error"})
    events = (CALL, ServerFailed("a", "it ended", 1.0), ServerReady("a", "", "", 0.1), OutputLine("a", "x"))
    reloaded = ConfigReloaded("a added", accepted=True, waiting=("b added",))
    assert [line["part"] for line in logged(log, *events, reloaded, levels=levels)] == ["calls", "host"]


def test_parts_without_events_have_levels_of_their_own_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.cli.log._handler", lambda *given: logging.NullHandler())
    loggers = [logging.getLogger(name) for name in ("colonnade", *(f"colonnade.{part}" for part in LOGGER_PARTS))]
    former = [each.level for each in loggers]
    try:
        open_log(LeastLevels("error", {"fleet": "info"}))
        assert [logging.getLogger(f"colonnade.{part}").level for part in ("listener", "fleet")] == [
            logging.ERROR,
            logging.INFO,
        ]
    finally:
        for each, level in zip(loggers, former, strict=True):
            each.setLevel(level)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("error", LeastLevels("error")),
        ("error,calls=info, output=debug", LeastLevels("error", {"calls": "info", "output": "debug"})),
        ("calls=info", LeastLevels("warning", {"calls": "info"})),
        ("loud", "'loud' is no level; expected debug, info, warning, error"),
        ("info,error", "a second level for all parts; expected one"),
        ("calls=info,calls=error", "a second level for calls; expected one"),
        ("call=info", "'call' is no part of the log; expected servers, calls, "),
        ("=info", "'' is no part of the log"),
    ],
)
def test_levels_are_read_from_the_command_line(given: str, expected: LeastLevels | str) -> None:
    found: list[LeastLevels] = []

    @click.command()
    @log_level_option("warning")
    def command(log_level: LeastLevels) -> None:
        found.append(log_level)

    if isinstance(expected, LeastLevels):
        command.main(["--log-level", given], standalone_mode=False)
        assert found == [expected]
    else:
        with pytest.raises(click.BadParameter, match=expected.replace(".", r"\.")):
            command.main(["--log-level", given], standalone_mode=False)


def test_a_log_file_is_this_users_and_follows_its_name(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(path)
    file.write("one\n")
    path.rename(tmp_path / "log.1")
    file.write("two\n")
    file.reopen()
    file.write("three\n")
    assert ((tmp_path / "log.1").read_text(), path.read_text()) == ("one\ntwo\n", "three\n")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_opened_again_goes_on_and_says_so_in_its_own_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, registered = tmp_path / "log", list[Callable[[], None]]()
    monkeypatch.setattr("host.cli.log.atexit.register", registered.append)
    journal = Journal()
    handler = _handler(journal, "json", LogFile(path))
    path.rename(tmp_path / "log.1")
    path.mkdir()
    log = logging.getLogger("colonnade")
    log.addHandler(handler)
    try:
        journal.note(ConfigReloaded("nothing has changed", accepted=True))
        until(lambda: (tmp_path / "log.1").read_text(), "it is said")
    finally:
        log.removeHandler(handler)
    (close,) = registered
    close()
    (line,) = map(json.loads, (tmp_path / "log.1").read_text().splitlines())
    assert (line["level"], line["message"]) == (
        "error",
        f"the log {path} cannot be opened again: Is a directory; it goes on here",
    )


@pytest.mark.parametrize(
    ("written", "leads_to_journal", "expected"),
    [
        ("auto", True, None),
        ("auto", False, logging.Formatter),
        ("text", True, logging.Formatter),
        ("json", True, JsonFormatter),
    ],
)
def test_the_journal_has_fields_unless_another_form_is_given(
    written: str, leads_to_journal: bool, expected: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("host.cli.log.atexit.register", registered.append)
    monkeypatch.setattr("host.cli.log.is_journal", lambda descriptor, stream: leads_to_journal)
    handler = _handler(Journal(), written, None)
    assert isinstance(handler, JournalHandler) == (expected is None)
    assert expected is None or type(handler.formatter) is expected
    for close in (handler.close, *registered):
        close()


def test_a_log_file_is_a_file(tmp_path: Path) -> None:
    """A named pipe would have the host wait for its reader."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device or address"):
        LogFile(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no regular file"):
        LogFile(Path("/dev/null"))


def test_the_journal_gets_fields_and_is_not_waited_for(
    log: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its protocol: `NAME=value`, or for values of several lines the name, the length in 64 bits, and the value."""
    path = str(tmp_path / "socket")
    monkeypatch.setattr(log_format, "JOURNAL_SOCKET", path)
    found = os.fstat(2)
    stream = f"{found.st_dev}:{found.st_ino}"
    assert not is_journal(2, stream)
    handler = JournalHandler(path)
    log.addHandler(handler)
    noting = _Log(log, LeastLevels("info"))
    noting.note(CALL)  # nobody is there
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        assert is_journal(2, stream)
        assert not is_journal(2, None)
        noting.note(ServerFailed("gh", "first\nsecond", 1.0))
        entry = journal.recv(65536)
        assert b"PRIORITY=4\n" in entry
        assert b"COLONNADE_EVENT=server_failed\nCOLONNADE_SERVER=gh\n" in entry
        assert b"COLONNADE_WHY\n" + (12).to_bytes(8, "little") + b"first\nsecond\n" in entry
        for _ in range(10_000):
            noting.note(CALL)
    handler.close()
