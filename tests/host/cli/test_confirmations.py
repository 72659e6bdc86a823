"""The commands `ask` and `console`, at a running host and without one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, INTERRUPTED, UNREACHED
from tests.host.admin.test_socket import RunningHost, running_host
from tests.real.running import COLONNADE, until

from .conftest import Stopped


def test_without_a_host_nobody_can_be_asked(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("ask") == UNREACHED
    assert stopped.run("ask", "feed", "once") == UNREACHED
    assert stopped.run("console") == UNREACHED
    assert "no host of yours runs" in capsys.readouterr().err


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@contextmanager
def host_at(state: str) -> Iterator[RunningHost]:
    folder = Path(state, "run")
    Path(state).mkdir(0o700)
    folder.mkdir(0o700)
    with running_host(folder) as running:
        yield running


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


def test_what_is_no_answer_is_refused_and_answers_nothing(unanswered: str) -> None:
    for words in (["never"], ["0m"], ["always", "--arguments", "some"], ["once", "--arguments", "[]"]):
        assert run(["ask", "q1", *words, "--state", unanswered]) == FAILED
        assert run(["ask", "q1", "--state", unanswered]) == DONE, words


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
            read_until(ours, "[q1]", "deny, once, session, 15m, always, tool, deny-all (or nothing, to leave it)? ")
            os.write(ours, b"perhaps\n")
            read_until(ours, "an answer is once, tool", "to leave it)? ")
            os.write(ours, b"once\n")
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
