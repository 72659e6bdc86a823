"""The command `history` on what a stopped host left."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from config import Trust, Verdict
from host.attempts import Attempt, Reason
from host.audit.contents import Contents
from host.audit.writer import open_audit
from host.cli.admin_client import RunningHost
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, WRONG
from host.cli.history import _follow, _local, _open_index
from host.client_process import ClientProcess
from host.history.forgotten import forget
from host.history.search import CallFilter, NewestCall
from host.policy.confirmations import ConfirmationContext, PendingConfirmation
from host.policy.decision_log import AuditRecord
from host.policy.gate import Gate
from host.policy.grants import AccessRequest
from host.subject import Item, Subject
from tests.host.history.kit import Recorded, call
from tests.real.running import COLONNADE

from .conftest import Stopped

RECORD = AuditRecord(
    Subject(Item("gh", "tool", "create\u202e"), None, None, "", "", "tools.allow: create"),
    *("tools/call", "desk\x1b[31m", Raw(b'{"a": 1}'), Verdict.ALLOW),
    process=ClientProcess("claude", 7),
    view="work",
    says="claude-code 2.1",
)


def decide(gate: Gate) -> None:
    """What hosts of the configuration did: a call that was answered, one that failed, a denied one, an attempt."""
    log = gate.decision_log
    log.record_outcome(RECORD, log.record_decision(RECORD), "answered", 0.0125, 1099)
    get = replace(RECORD, subject=Subject(Item("gh", "tool", "get"), "ci", None, "", "", "tools.allow: get"))
    log.record_outcome(get, log.record_decision(get), "error 504", 30.0, 0)
    log.record_denied(replace(get, verdict=Verdict.DENY))
    for _ in range(3):
        log.record_attempt(Attempt(Reason.DENIED, "tool", "gh__wipe", "10.0.0.7", "desk", "d", "gh"))
    log.flush_attempts()


@pytest.fixture
def past(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> Stopped:
    def begin(gate: Gate) -> None:
        gate.decision_log.record_configuration("config", stopped.file)
        decide(gate)

    stopped.inside(begin)
    capsys.readouterr()
    return stopped


def history(past: Stopped, *arguments: str) -> int:
    return run(["history", *arguments, "--state", str(past.state.path)])


def test_calls_are_a_table_in_which_nothing_steers_the_terminal(
    past: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(past) == DONE
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    title, answered, failed, denied, attempt = (re.split(r"  +", line) for line in out.splitlines())
    assert title[:4] == ["TIME", "CALLER", "CLIENT", "SERVER"]
    assert title[4:] == ["ENTRY", "VERDICT", "OUTCOME", "DURATION", "BYTES", "ID", "RULE"]
    assert answered[1:4] == ["desk⟨U+001B⟩[31m", "claude-code 2.1", "gh"]
    assert answered[4:9] == ["tool create⟨U+202E⟩", "allow", "answered", "12.5 ms", "1,099"]
    assert answered[10] == "tools.allow: create"
    assert failed[1:9] == ["ci", "claude-code 2.1", "gh", "tool get", "allow", "error 504", "30.0 s", "0"]
    assert denied[1:6] == ["ci", "claude-code 2.1", "gh", "tool get", "deny"]
    assert attempt[1:6] == ["desk", "gh", "tool gh__wipe", "deny", "denied x3"]


def test_a_time_that_is_none_is_shown_as_it_is() -> None:
    for time in ("yesterday", "0001-01-01T00:00:00+14:00"):
        assert _local(time) == time


def test_filters_and_json(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    for options, found in (
        (("--caller", "ci", "--verdict", "allow"), ["get"]),
        (("--client", "claude-code", "--outcome", "answered"), ["create⟨U+202E⟩"]),
        (("--client", "claude", "--tool", "get", "--since", "15m", "--until", "0s"), ["get", "get"]),
        (("--until", "1h"), []),
        (("--limit", "1"), ["gh__wipe"]),
        (("--config", str(past.file), "--outcome", "error"), ["get"]),
        (("--config", "/dev/null"), []),
        (("--verdict", "deny"), ["get", "gh__wipe"]),
        (("--outcome", "denied"), ["get", "gh__wipe"]),
        (("--tool", "wipe"), ["gh__wipe"]),
    ):
        assert history(past, "--json", *options) == DONE
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["item"] for row in rows] == found, options
    assert history(past, "--since", "15") == WRONG
    assert history(past, "--follow", "--until", "1h") == WRONG


def test_a_call_whose_tool_says_that_it_failed_is_found(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """It was answered all the same."""

    def fail(gate: Gate) -> None:
        log, subject = gate.decision_log, Subject(Item("gh", "tool", "fail"), None, None, "", "", "")
        seq = log.record_decision(replace(RECORD, subject=subject))
        log.record_outcome(RECORD, seq, "answered", 0.1, 9, tool_error=True)

    assert history(past, "--outcome", "tool error") == DONE
    assert len(capsys.readouterr().out.splitlines()) == 1
    past.inside(fail)
    assert history(past, "--outcome", "tool error") == DONE
    _, row = (re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
    assert row[4:9] == ["tool fail", "allow", "tool error", "100.0 ms", "9"]
    assert history(past, "--outcome", "answered", "--json") == DONE
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["outcome"], each["tool_error"]) for each in rows] == [("answered", False), ("answered", True)]


def test_a_file_that_is_not_there_is_refused_unless_it_has_calls(
    past: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    past.file.unlink()
    assert history(past, "--json", "--config", str(past.file)) == DONE
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert history(past, "--config", "/nowhere") == FAILED
    assert "there is no file /nowhere, and the history has no call of its hosts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "mistyped", "remedy"),
    [
        ("server", "ghh", "did you mean gh?"),
        ("tool", "gett", "did you mean get?"),
        ("caller", "cii", "did you mean ci?"),
        ("outcome", "anwsered", "did you mean answered?"),
        ("outcome", "zzz", "known are answered; called; denied; "),
        ("tool", "zzz", "it has calls of create⟨U+202E⟩; get; gh__wipe"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    past: Stopped, capsys: pytest.CaptureFixture[str], option: str, mistyped: str, remedy: str
) -> None:
    assert history(past, f"--{option}", mistyped) == FAILED
    assert f"the history has no call of the {option} '{mistyped}'; {remedy}" in capsys.readouterr().err


def test_a_known_name_without_calls_is_no_mistake(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    servers = json.loads(past.file.read_text())["servers"]
    past.file.write_text(json.dumps({"servers": {**servers, "configured": servers["gh"]}}))
    for options in (("--server", "gh", "--until", "1h"), ("--outcome", "pending"), ("--server", "configured")):
        assert history(past, "--json", *options) == DONE, options
        assert capsys.readouterr() == ("", "")
    assert history(past, "--verdict", "alow") == WRONG
    assert "'alow' is not one of 'allow', 'ask', 'deny'" in capsys.readouterr().err


def test_a_call_leads_to_its_records(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    history(past, "--json", "--outcome", "answered")
    row = json.loads(capsys.readouterr().out)
    assert (row["view"], row["agent"], row["program"], row["sent"]) == ("work", "claude-code 2.1", "claude (7)", 8)
    assert history(past, "show", row["id"][:8], "--json") == DONE
    shown = json.loads(capsys.readouterr().out)
    assert [record["kind"] for record in shown.pop("records")] == ["decision", "outcome"]
    assert shown == row
    assert history(past, "show", row["id"]) == DONE
    said = capsys.readouterr().out
    assert "view:      work\n" in said
    assert '"kind": "decision"' in said
    assert "\u202e" not in said
    assert history(past, "show", "0" * 16) == FAILED
    assert "has no call 0000000000000000" in capsys.readouterr().err
    assert history(past, "show", "zz") == WRONG
    (past.state.audit / row["file"]).unlink()
    assert history(past, "show", row["id"]) == DONE
    assert f"is not in the audit any more ({row['file']})" in capsys.readouterr().err


def test_arguments_and_result_are_shown_as_they_were_kept(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    def again(gate: Gate) -> None:
        log = gate.decision_log
        log.contents = Contents(lambda: ["roof"])
        result = Raw(b'{"text":"a roof\\u202e"}')
        log.record_outcome(RECORD, log.record_decision(RECORD), "answered", 0.1, len(result), result)

    past.inside(again)
    assert history(past, "--limit", "1", "--json") == DONE
    id = json.loads(capsys.readouterr().out)["id"]
    assert history(past, "show", id) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert 'arguments: {"a":1}' in lines
    assert 'result (redacted): {"text":"a ***\\u202e"}' in lines


@pytest.mark.parametrize("given", [("--tool", "gh__get"), ("--tool", "wipe"), ("--outcome", "error 504")])
def test_a_name_in_another_spelling_is_known(
    past: Stopped, capsys: pytest.CaptureFixture[str], given: tuple[str, str]
) -> None:
    """Also where none of its calls is among those that are wanted."""
    assert history(past, *given, "--until", "1h", "--json") == DONE
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")


def test_a_caller_is_forgotten(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """Under another name than its calls have, that is said."""
    assert history(past, "forget", "cii", "--yes") == DONE
    assert "has no call of the caller 'cii'; did you mean ci?" in capsys.readouterr().err
    assert history(past, "forget", "ci", "--yes") == DONE
    out, err = capsys.readouterr()
    assert ("has no calls of ci before this moment" in out, err) == (True, "")
    (past.state.path / "history.db").unlink()
    assert history(past, "--json", "--caller", "ci") == FAILED
    out, err = capsys.readouterr()
    assert (out, "has no call of the caller 'ci'; it has calls of " in err) == ("", True)


def test_a_confirmation_that_did_not_allow_its_call_has_its_client_and_is_forgotten_with_it(
    past: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(gate: Gate) -> None:
        access = AccessRequest(replace(RECORD.subject, rule="tools.ask: create"), {})
        context = ConfirmationContext(Trust.STANDARD, b"{}", says="tower 2", client="a stateless client")
        confirmation = PendingConfirmation("q", access, context, 0.0, 1.0)
        gate.decision_log.record_confirmation("ask", confirmation, {})
        gate.decision_log.record_confirmation("answer", confirmation, {"answer": "none"})

    past.inside(ask)
    assert history(past, "--client", "tower", "--json") == DONE
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["what"], row["client"], row["outcome"]) == ("question", "a stateless client", "unanswered")
    assert history(past, "forget", "a stateless client", "--yes") == DONE
    assert capsys.readouterr().err == ""
    assert history(past, "--client", "tower", "--json") == DONE
    assert capsys.readouterr().out == ""


def test_a_caller_is_named_by_its_token(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """Also for who would have its calls forgotten."""
    config = json.loads(past.file.read_text())
    config |= {"listen": {"auth": {"tokens": {"ci": "x" * 40}}}, "callers": {"builder": {"token": "ci"}}}
    past.file.write_text(json.dumps(config))
    for words in (["--caller", "builder"], ["forget", "builder", "--yes"]):
        history(past, *words)
        said = "has no call of the caller 'builder'; calls have the name of the caller's token: ci"
        assert said in capsys.readouterr().err


def test_a_command_deletes_nothing_that_a_host_keeps(past: Stopped) -> None:
    config, index = json.loads(past.file.read_text()), past.state.path / "history.db"

    def most(history: dict[str, object]) -> int:
        past.file.write_text(json.dumps(config | {"history": history}))
        return _open_index(past.state).bounds.max

    assert most({"max": "2GiB"}) == 1024**3
    index.touch()
    os.truncate(index, 1024**3 + 1)
    assert [most({"max": "16MiB"}), most({"max": "2GiB"})] == [1024**3, 2 * 1024**3]
    assert most({"max": 7}) == sys.maxsize


def test_options_of_a_search_do_not_go_with_a_command(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """They would be ignored, and more be forgotten than was said."""
    assert history(past, "--server", "gh", "--json", "forget", "ci", "--yes") == WRONG
    assert "--server, --json: this is for a search; put options of forget behind it." in capsys.readouterr().err
    assert run(["history", "--state", str(past.state.path), "forget", "ci", "--yes"]) == DONE


def test_calls_with_a_token_are_forgotten_by_its_name_alone(past: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """Another client of the same name may have none, and several tokens may be one client's."""

    def call(gate: Gate) -> None:
        for token in (None, "night"):
            subject = Subject(Item("gh", "tool", "get"), token, None, "", "", "tools.allow: get")
            gate.decision_log.record_decision(replace(RECORD, client="tower", subject=subject))

    past.inside(call)
    assert history(past, "forget", "tower", "--yes") == DONE
    assert capsys.readouterr().out.splitlines() == [
        "The history has no calls of tower without an access token before this moment. The audit has their records "
        "until its retention deletes them.",
        "Its calls with the access token night stay; colonnade history forget night forgets those.",
    ]
    assert history(past, "--caller", "tower", "--json") == DONE
    assert [json.loads(each)["caller"] for each in capsys.readouterr().out.splitlines()] == ["night"]


def test_what_is_missing_is_said(
    past: Stopped, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streaming = RunningHost(past.state.path, 7, config="/x/y.yaml", audit="stdout")
    monkeypatch.setattr("host.cli.admin_client.find_hosts", lambda *_, **__: [streaming])
    assert history(past) == DONE
    assert "(audit.to: stdout), so there is no history of its calls" in capsys.readouterr().err
    (past.state.path / "history.db").unlink()
    (past.state.path / "history.db").mkdir()
    assert history(past) == FAILED
    assert "the newest calls are missing: the history cannot be kept (" in capsys.readouterr().err


def test_a_call_is_followed_once_where_others_were_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another process are added after it, though they are older."""
    monkeypatch.setattr("host.cli.history.FOLLOW_INTERVAL", 0)
    recorded = Recorded(tmp_path)
    recorded.read()
    following = _follow(recorded.index, CallFilter(), NewestCall(), [])
    with closing(recorded.index), open_audit(recorded.audit) as first, open_audit(recorded.audit) as second:
        call(second, "older", principal="bob")
        threading.Event().wait(0.001)  # the times of records are in milliseconds
        call(first, "newer")
        assert [next(following)["item"] for _ in range(2)] == ["newer", "older"]
        forget(recorded.state, "bob", "9999")
        recorded.index.trim()
        call(first, "last")
        assert next(following)["item"] == "last"


@pytest.mark.slow
def test_calls_are_followed(past: Stopped) -> None:
    """Also while another process holds the index, when it is damaged, and when all others were deleted."""
    command = [COLONNADE, "history", "--follow", "--json", "--caller", "ci", "--state", str(past.state.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        stdout, stderr = process.stdout, process.stderr
        assert stdout is not None
        assert stderr is not None

        def printed(member: str) -> list[str]:
            return [json.loads(stdout.readline())[member] for _ in range(2)]

        try:
            assert printed("item") == ["get", "get"]
            past.inside(decide)
            assert printed("verdict") == ["allow", "deny"]
            with closing(sqlite3.connect(past.state.path / "history.db", isolation_level=None)) as holder:
                holder.execute("BEGIN EXCLUSIVE")
                past.inside(decide)
                assert "the newest calls are missing: another process has held" in stderr.readline()
            assert printed("verdict") == ["allow", "deny"]
            (past.state.path / "history.db").write_bytes(b"damaged")
            assert any("the index was built again" in line for line in stderr)
            past.inside(decide)
            assert printed("verdict") == ["allow", "deny"]
            for caller in ("ci", "desk", "desk⟨U+001B⟩[31m"):
                history(past, "forget", caller, "--yes")
            past.inside(decide)
            assert printed("verdict") == ["allow", "deny"]
        finally:
            process.kill()
