"""The commands about the servers of a running host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, UNREACHED, WRONG
from tests.host.admin.test_socket import RunningHost, running_host

from .conftest import Stopped


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("controlled") / "state")


@pytest.fixture(scope="module")
def host(state: str) -> Iterator[RunningHost]:
    folder = Path(state, "run")
    Path(state).mkdir(0o700)
    folder.mkdir(0o700)
    with running_host(folder) as running:
        yield running


@pytest.mark.parametrize("words", [["logs", "a"], ["restart", "a"], ["enable", "a"], ["disable", "a"], ["reload"]])
def test_they_need_a_running_host(words: list[str], stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run(*words) == UNREACHED
    assert "no host of yours runs" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["restart", "enable", "disable"])
def test_a_server_is_controlled(action: str, host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([action, "time", "--state", state]) == DONE
    assert capsys.readouterr().out == f"time: {action}\n"
    assert run([action, "tine", "--state", state]) == FAILED
    assert "did you mean time?" in capsys.readouterr().err
    assert run([action, "--state", state]) == WRONG


def test_the_configuration_is_read_again(host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reload", "--state", state]) == DONE
    assert "configuration read again: nothing has changed." in capsys.readouterr().out


def test_the_lines_of_a_server_are_printed_with_their_times(
    host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "time", "--state", state]) == DONE
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(":00 no API key given")
    assert second.endswith(":01 stdout: bye")
