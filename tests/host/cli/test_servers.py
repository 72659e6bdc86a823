"""The commands about the servers of a running host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, UNREACHED, WRONG, CommandFailed
from host.cli.servers import Served, offer_reload
from host.cli.targets import DecisionScope
from tests.host.admin.test_socket import RunningHost
from tests.kit.admin import server

from .conftest import Stopped, host_at


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("controlled") / "state")


@pytest.fixture(scope="module")
def host(state: str) -> Iterator[RunningHost]:
    with host_at(state) as running:
        yield running


@pytest.mark.parametrize(
    "words", [["logs", "a"], ["restart", "a"], ["enable", "a"], ["disable", "a"], ["install", "a"], ["reload"]]
)
def test_they_need_a_running_host(words: list[str], stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run(*words) == UNREACHED
    assert "no host of yours runs" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("action", ["restart", "enable", "disable", "install"])
def test_a_server_is_controlled(action: str, host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([action, "time", "--state", state]) == DONE
    assert capsys.readouterr().out == f"time: {action}\n"
    assert run([action, "tine", "--state", state]) == FAILED
    assert "did you mean time?" in capsys.readouterr().err
    assert run([action, "--state", state]) == WRONG


@pytest.mark.slow
def test_the_configuration_is_read_again(host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reload", "--state", state]) == DONE
    assert "configuration read again: nothing has changed." in capsys.readouterr().out


@pytest.mark.slow
def test_the_lines_of_a_server_are_printed_with_their_times(
    host: RunningHost, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "time", "--state", state]) == DONE
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(":00 stderr: no API key given")
    assert second.endswith(":01 stdout: bye")


def test_what_a_program_wrote_is_told_from_what_its_sandbox_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = "its sandbox: its program was refused a connection to a.test:443"
    lines = [
        {"n": n, "t": float(n), "line": refusal, "stream": stream}
        for n, stream in enumerate(("sandbox", "stderr", "stdout"))
    ]
    host = FakeTarget({"servers/log": lambda server, **_: {"lines": lines}}, {"a": []})
    monkeypatch.setattr(DecisionScope, "running", lambda self: [host])
    assert run(["logs", "--state", str(tmp_path / "state")]) == DONE
    assert [line[20:] for line in capsys.readouterr().out.splitlines()] == [
        f"a: {mark}{refusal}" for mark in ("", "stderr: ", "stdout: ")
    ]


def test_without_a_server_the_lines_of_all_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of their times."""
    said = {"a": [(1.0, "third"), (0.0, "first")], "b": [(0.5, "second")]}
    host = FakeTarget({"servers/log": lambda server, **_: {"lines": _lines(said[server])}}, said)
    monkeypatch.setattr(DecisionScope, "running", lambda self: [host])
    assert run(["logs", "--state", str(tmp_path / "state")]) == DONE
    assert [line[20:] for line in capsys.readouterr().out.splitlines()] == [
        "a: stderr: first",
        "b: stderr: second",
        "a: stderr: third",
    ]
    said.clear()
    assert run(["logs", "--state", str(tmp_path / "state")]) == DONE
    assert capsys.readouterr() == ("", "No server wrote anything to its standard error.\n")


def _lines(said: list[tuple[float, str]]) -> list[dict[str, object]]:
    return [{"n": n, "t": t, "line": line, "stream": "stderr"} for n, (t, line) in enumerate(said, 1)]


def test_a_reload_names_the_rules_that_match_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = FakeTarget({"configuration/reload": lambda **_: {"done": "gh has new rules or limits."}}, ["gh"])
    monkeypatch.setattr(DecisionScope, "running", lambda self: [host])
    assert run(["reload", "--yes", "--state", str(tmp_path / "state")]) == DONE
    assert "  gh: the rule tools.ask: creat_ matches nothing that it offers\n" in capsys.readouterr().out


@dataclass
class FakeTarget:
    """A running host that answers as these functions do, by path. Each server has an unmatched rule."""

    answers: Mapping[str, Callable[..., object]]
    ids: Collection[str]
    config = "/home/me/colonnade.yaml"
    pid = 4711

    def servers(self) -> Collection[str]:
        return self.ids

    def state(self) -> Mapping[str, object]:
        return {"servers": [server(id, unmatched=["tools.ask: creat_"]) for id in self.ids]}

    def post(self, path: str, **body: object) -> object:
        return self.answers[path](**body)


@dataclass
class WaitingTarget(FakeTarget):
    """A running host with changes of its file that wait for these servers, until they are applied."""

    waiting: list[str] = field(default_factory=list)

    def state(self) -> Mapping[str, object]:
        changes = [{"id": "c1", "server": id, "widens": ["it is new"], "diff": []} for id in self.waiting]
        return {**super().state(), "configuration": changes}

    def post(self, path: str, **body: object) -> object:
        if body.get("apply", True):
            assert body == {"shown": "c1"}
            self.waiting.clear()
        return {"done": "done"}


@pytest.mark.parametrize(
    ("new", "typed", "expected"),
    [
        (["time", "git"], ["Have it serve git, time now?"], Served(runs=True)),
        (["time"], ["Apply them?"], Served(runs=True)),
        (["time"], [], Served(True, frozenset({"time", "git"}))),
    ],
)
def test_a_reload_is_offered_for_what_waits(
    new: list[str],
    typed: list[str],
    expected: Served,
    stopped: Stopped,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    def is_confirmed(question: str) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr("host.cli.servers.is_confirmed", is_confirmed)
    assert offer_reload(stopped.state, stopped.file, new, asks=True) == Served()
    monkeypatch.setattr(DecisionScope, "find", lambda self: [WaitingTarget({}, [], waiting=["time", "git"])])
    assert offer_reload(stopped.state, stopped.file, new, asks=bool(typed)) == expected
    assert [question.removeprefix("A Colonnade runs with this file. ") for question in asked] == typed
    said = capsys.readouterr().out
    assert ("time: it is new" in said) is (typed == ["Apply them?"])
    assert ("these changes permit more, or change what is started, given to a program or reached:" in said) is (
        typed == ["Apply them?"]
    )


def test_why_a_host_cannot_be_asked_is_said(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> object:
        raise CommandFailed("it refused")

    monkeypatch.setattr(DecisionScope, "find", lambda self: [FakeTarget({"configuration/reload": refuse}, [])])
    assert offer_reload(stopped.state, stopped.file, asks=True) == Served(runs=True, problem="it refused")
