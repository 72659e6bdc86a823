"""The commands `ask` and `console`, at a running host and without one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest

from host.cli.admin_client import RunningHost as FoundHost
from host.cli.command_line import run
from host.cli.confirmations import _answer, _PendingFeed, _prompt, _show
from host.cli.exit_codes import DONE, FAILED, INTERRUPTED, UNREACHED, CommandFailed
from tests.host.admin.test_socket import RunningHost, running_host
from tests.kit.admin import NOW, arguments, confirmation
from tests.real.running import COLONNADE, until

from .conftest import Stopped, Terminal, host_at


def test_without_a_host_nobody_can_be_asked(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("ask") == UNREACHED
    assert stopped.run("ask", "feed", "once") == UNREACHED
    assert stopped.run("console") == UNREACHED
    assert "no host of yours runs" in capsys.readouterr().err


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def host(state: str) -> Iterator[RunningHost]:
    with host_at(state) as running:
        yield running


@pytest.fixture(scope="module")
def unanswered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The state directory of a host that all tests share that answer nothing."""
    state = str(tmp_path_factory.mktemp("unanswered") / "state")
    with host_at(state):
        yield state


@pytest.mark.slow
def test_confirmations_are_listed_shown_and_answered(
    host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ask", "--state", state]) == DONE
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()[:2]] == ["q1", "q2"]
    assert "colonnade ask ID" in listed
    assert run(["ask", "q1", "--state", state]) == DONE
    shown = capsys.readouterr().out
    assert "[q1]" in shown
    assert "create_issue" in shown
    assert run(["ask", "q1", "15m", "--state", state]) == DONE
    assert capsys.readouterr().out == "time: create_issue\n"
    assert run(["ask", "q1", "once", "--state", state]) == FAILED
    assert "no confirmation q1" in capsys.readouterr().err
    conditions = json.dumps({"owner": {"in": ["acme"]}})
    assert run(["ask", "q2", "always", "--arguments", conditions, "--state", state]) == DONE
    capsys.readouterr()
    assert run(["ask", "--state", state]) == DONE
    assert capsys.readouterr().out == "Nothing waits.\n"


@pytest.mark.slow
def test_a_tool_is_allowed_for_the_session_and_all_of_a_server_is_denied(
    host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ask", "q1", "--state", state]) == DONE
    shown = capsys.readouterr().out
    assert "its description, in the server's words:\n    Opens a new issue." in shown
    assert "its definition, in the server's words:\n    {" in shown
    assert run(["ask", "q1", "tool", "--state", state]) == DONE
    assert capsys.readouterr().out == "session: create_issue\n"
    assert run(["ask", "q2", "deny-all", "--state", state]) == DONE
    assert capsys.readouterr().out == "1 denied\n"


def test_a_tool_is_allowed_for_a_time_where_there_is_a_token_and_no_session() -> None:
    posted: list[dict[str, Any]] = []

    class Target:
        def post(self, path: str, **body: Any) -> dict[str, str]:
            posted.append(body)
            return {"done": path}

    target = cast(FoundHost, Target())
    without: dict[str, Any] = {
        "session": False,
        "whole_session": False,
        "answers": ["deny", "once", "time", "always"],
    }
    assert _answer(target, confirmation(whole_time=True, **without), "tool", "exact") == "confirmations/answer"
    assert posted == [{"id": "q1", "answer": "time", "seconds": 900, "arguments": "any"}]
    with pytest.raises(CommandFailed, match="tool is no answer to this: deny, once, 15m, always, deny-all are"):
        _answer(target, confirmation(**without), "tool", "exact")


@pytest.mark.slow
def test_long_texts_are_shown_as_text_and_edits_as_differences(
    unanswered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ask", "q2", "--state", unanswered]) == DONE
    shown = capsys.readouterr().out
    expected = """\
  arguments:
    {
      "new_string": ⟨edit 1: added⟩,
      "note": ⟨text 2⟩,
      "old_string": ⟨edit 1: removed⟩,
      "path": "a.py"
    }
  edit 1 (old_string, new_string), 1 removed (-), 1 added (+):
    | - x = 1
    | + x = 2
    |   y
  text 2 (note), 2 lines:
    | two
    | | lines
  the same arguments, as JSON:
    {
      "new_string": "x = 2\\ny",
"""
    assert expected in shown


def test_it_is_said_who_asks_by_which_rule_and_how_long_it_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client calls itself is marked as its own words."""
    monkeypatch.setattr("time.time", lambda: NOW + 8)
    about: dict[str, Any] = {
        "caller": "a client without a token",
        "says": "claude-code 2.1.197",
        "process": {"program": "claude", "pid": 4711, "folder": ""},
        "rule": "tools.default",
        "origin": "defaults.consent",
        "through": "call_tool",
    }
    _show(confirmation(**about, **arguments(content="one\ntwo\n")), "")
    said = capsys.readouterr().out
    assert "  for:               a client without a token, which calls itself 'claude-code 2.1.197'\n" in said
    assert "  program:           claude (process 4711)\n" in said
    assert "  through:           call_tool, the search tool of a view\n" in said
    assert "  because of:        tools.default (from defaults.consent)\n" in said
    assert "  time left:         42 s\n" in said
    assert "text 1 (content), 2 lines:" in said


@pytest.mark.parametrize(("word", "answer"), [("yes", "once"), ("no", "deny"), ("y", "once"), ("n", "deny")])
def test_a_word_of_every_day_is_an_answer(word: str, answer: str) -> None:
    posted: list[str] = []

    class Target:
        def post(self, path: str, **body: Any) -> dict[str, str]:
            posted.append(body["answer"])
            return {"done": path}

    _answer(cast(FoundHost, Target()), confirmation(), word, "exact")
    assert posted == [answer]


@pytest.mark.slow
def test_what_is_no_answer_is_refused_and_answers_nothing(unanswered: str) -> None:
    for words in (["never"], ["0m"], ["always", "--arguments", "some"], ["once", "--arguments", "[]"]):
        assert run(["ask", "q1", *words, "--state", unanswered]) == FAILED
        assert run(["ask", "q1", "--state", unanswered]) == DONE, words


@pytest.mark.slow
def test_a_host_of_another_configuration_is_not_meant(unanswered: str) -> None:
    assert run(["ask", "--state", unanswered, "--config", "/home/me/other.yaml"]) == UNREACHED
    assert run(["ask", "--state", unanswered, "--config", "/home/me/colonnade.yaml"]) == DONE


@pytest.mark.slow
def test_of_several_hosts_each_is_named(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(state, "run")
    folder.mkdir(0o700, parents=True)
    Path(state).chmod(0o700)
    with running_host(folder), running_host(folder):  # both say that they are process 4711
        assert run(["ask", "--state", state]) == DONE
        assert capsys.readouterr().out.count("(laptop of process 4711") == 4
        assert run(["console", "--state", state]) == DONE
        assert capsys.readouterr().out.count("  /home/me/colonnade.yaml (process 4711") == 2
        assert run(["ask", "q1", "--state", state]) == DONE
        assert "  host:              process 4711" in capsys.readouterr().out


@pytest.mark.slow
def test_a_link_to_the_console_is_printed(unanswered: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "--state", unanswered]) == DONE
    assert capsys.readouterr().out.startswith("http://127.0.0.1:1/console#")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["the host ends", "an interrupt"])
def test_new_confirmations_are_shown_until_the_end(state: str, end: str) -> None:
    folder = Path(state, "run")
    folder.mkdir(0o700, parents=True)
    Path(state).chmod(0o700)
    with running_host(folder) as host:
        command = [COLONNADE, "ask", "--follow", "--state", state]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
            try:
                assert asking.stdout is not None
                assert asking.stderr is not None
                assert asking.stdout.readline().startswith("Waiting for confirmations of /home/me/colonnade.yaml")
                assert [shown(asking.stdout), shown(asking.stdout)] == ["q1", "q2"]
                host.hear("q9")
                assert shown(asking.stdout) == "q9"
                if end == "an interrupt":
                    asking.send_signal(signal.SIGINT)
                    assert (asking.wait(30), asking.stderr.read()) == (INTERRUPTED, "")
                else:
                    assert host.process.stdin is not None
                    host.process.stdin.close()
                    assert (asking.wait(30), asking.stderr.read()) == (DONE, "")
                    assert asking.stdout.read().endswith("The host has ended.\n")
            finally:
                asking.kill()


@pytest.mark.slow
def test_on_a_terminal_each_confirmation_is_answered_where_it_is_shown(host: RunningHost, state: str) -> None:
    """Calls that were refused are listed first. What is no answer is asked for again, an empty line leaves the
    confirmation to others."""
    host.hear("q3 refused")
    until(lambda: run(["ask", "q3", "--state", state]) == DONE, "q3 is there")
    ours, theirs = os.openpty()
    with subprocess.Popen([COLONNADE, "ask", "--state", state], stdin=theirs, stdout=theirs, stderr=theirs) as asking:
        try:
            os.close(theirs)
            read_until(ours, "q3  The tool create_issue of github  (laptop; refused: nobody was there to answer)")
            read_until(
                ours,
                "[q1]",
                "  y  once      this call alone",
                "     15m       calls with exactly these arguments for 15 minutes; or another time, such as 1h, 7d",
                "  t  tool      calls with any arguments in this session",
                "  D  deny-all  not this call, nor the others of github that wait",
                "deny, once, session, 15m, always, tool, deny-all (or nothing, to leave it)? ",
            )
            os.write(ours, b"perhaps\n")
            read_until(ours, "an answer is once, tool", "to leave it)? ")
            os.write(ours, b"y\n")
            read_until(ours, "once: create_issue", "[q2]", "to leave it)? ")
            os.write(ours, b"\n")
            read_until(ours, "colonnade ask q2 once|tool")
            host.hear("q9")
            read_until(ours, "[q9]", "to leave it)? ")
            assert host.says() == "present terminal"
            asking.send_signal(signal.SIGINT)
            assert asking.wait(30) == INTERRUPTED
        finally:
            asking.kill()
            os.close(ours)
    assert run(["ask", "q2", "--state", state]) == DONE


@pytest.mark.slow
def test_on_a_terminal_a_host_that_starts_while_another_runs_is_followed_too(host: RunningHost, state: str) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen([COLONNADE, "ask", "--state", state], stdin=theirs, stdout=theirs, stderr=theirs) as asking:
        try:
            os.close(theirs)
            read_until(ours, "[q1]", "to leave it)? ")
            with running_host(Path(state, "run")) as later:
                assert later.says() == "present terminal"
                later.hear("q9")
                os.write(ours, b"\n")
                read_until(ours, "[q2]", "to leave it)? ")
                os.write(ours, b"\n")
                read_until(ours, "[q9]", "to leave it)? ")
                os.write(ours, b"y\n")
                read_until(ours, "once: create_issue")
            host.hear("q8")  # the end of the later one ends nothing
            read_until(ours, "[q8]", "to leave it)? ")
        finally:
            asking.kill()
            os.close(ours)


@pytest.mark.slow
def test_a_line_that_was_begun_for_another_confirmation_is_thrown_away(host: RunningHost, state: str) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen([COLONNADE, "ask", "--state", state], stdin=theirs, stdout=theirs, stderr=theirs) as asking:
        try:
            os.close(theirs)
            read_until(ours, "[q1]", "to leave it)? ")
            os.write(ours, b"y")
            read_until(ours, "y")
            assert run(["ask", "q1", "deny", "--state", state]) == DONE
            read_until(ours, "It was answered elsewhere", "[q2]", "to leave it)? ")
            os.write(ours, b"\n")
            read_until(ours, "It is left.")
        finally:
            asking.kill()
            os.close(ours)
    assert run(["ask", "q2", "--state", state]) == DONE


class Feed:
    """One confirmation, which waits all the time."""

    def __init__(self) -> None:
        self.wake, self._waker = os.pipe()

    def is_waiting(self, id: str) -> bool:
        return True


@pytest.mark.parametrize("reflex", ["y\n", "15m\ny", "y"])
def test_what_is_typed_before_anybody_can_have_read_a_confirmation_answers_nothing(
    reflex: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[Any] = []

    class Target:
        def post(self, path: str, **body: Any) -> dict[str, str]:
            posted.append(body["answer"])
            return {"done": path}

    def press() -> None:
        terminal.type(reflex)
        terminal.seat({r"to leave it\)\? ": "n"})

    monkeypatch.setattr("host.cli.confirmations._let_reflexes_pass", press)
    _prompt(cast(_PendingFeed, Feed()), cast(FoundHost, Target()), confirmation())
    assert posted == ["deny"]


@pytest.mark.slow
def test_a_pipe_answers_nothing(host: RunningHost, state: str) -> None:
    """It cannot know for which confirmation its answer is."""
    done = subprocess.run([COLONNADE, "ask", "--state", state], input="y\n", capture_output=True, text=True, check=True)
    assert "colonnade ask ID once" in done.stdout
    assert [run(["ask", id, "--state", state]) for id in ("q1", "q2")] == [DONE, DONE]


def read_until(terminal: int, *texts: str) -> None:
    """Read what is shown until it has these texts, one after the other."""
    said = ""
    for text in texts:
        while text not in said:
            assert select.select([terminal], [], [], 30)[0], f"{text!r} does not come after {said!r}"
            said += os.read(terminal, 65536).decode()
        said = said.partition(text)[2]


def shown(out: IO[str]) -> str:
    """The id of the next confirmation."""
    return next(line.partition("[")[2].rstrip("]\n") for line in out if line.startswith("Colonnade asks"))
