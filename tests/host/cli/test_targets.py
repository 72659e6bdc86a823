"""Where decisions go: to running hosts, or to what stopped ones stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.cli.admin_client import RunningHost
from host.cli.exit_codes import FAILED, UNREACHED, CommandFailed
from host.cli.explain import entry_named
from host.cli.targets import DecisionScope, StoredTarget, as_command_failures, only
from host.storage.store import StateError
from tests.host.admin.test_socket import running_host

from .conftest import Stopped
from .test_admin_client import answering, http_answer


def test_without_a_running_host_decisions_are_stored(stopped: Stopped) -> None:
    """For the configuration that is selected, or for all that are known."""
    for config in (stopped.file, None):
        [target] = DecisionScope(stopped.state, config).all()
        assert isinstance(target, StoredTarget)
        assert target.config == str(stopped.file)
        assert list(target.servers()) == ["gh"]
    with pytest.raises(CommandFailed, match="no host of yours runs") as caught:
        DecisionScope(stopped.state, None).running()
    assert caught.value.exit_code == UNREACHED


def test_names_that_overrides_give_are_known_without_a_host(stopped: Stopped) -> None:
    file = json.loads(stopped.file.read_text())
    file["servers"]["gh"]["overrides"] = {"create": {"name": "new"}, "get": {"title": "Get"}}
    stopped.file.write_text(json.dumps(file))
    targets = DecisionScope(stopped.state, stopped.file).all()
    assert entry_named(targets, "gh__new") == ("gh", "tool", "create")
    assert entry_named(targets, "gh__get") == ("gh", "tool", "get")


@pytest.mark.slow
def test_of_several_hosts_of_one_configuration_one_is_asked(stopped: Stopped) -> None:
    scope = DecisionScope(stopped.state, None)
    with running_host(stopped.state.run), running_host(stopped.state.run):
        assert len(scope.running()) == 2
        [target] = scope.all()
        assert isinstance(target, RunningHost)
        assert target.config == "/home/me/colonnade.yaml"


def test_a_host_that_refuses_is_named(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(stopped.state.run / "12-0011aabb.sock", http_answer(403, b'{"error": "not you"}')):
        [target] = DecisionScope(stopped.state, stopped.file).all()
    assert isinstance(target, StoredTarget)
    assert capsys.readouterr().err == "colonnade: the host of process 12: not you\n"


def test_a_configuration_that_cannot_be_read_is_named(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing would be shown as held otherwise, without a word."""
    stopped.file.write_text("servers: {gh: {command: x, env: {T: '${env:NOT_SET_HERE}'}}}\n")
    target = StoredTarget(stopped.state, stopped.file)
    target.state()
    assert "NOT_SET_HERE is not set" in capsys.readouterr().err
    target.servers()
    target.state()
    assert capsys.readouterr().err == "", "it is said once"


def test_none_of_several_configurations_is_guessed(stopped: Stopped) -> None:
    targets = [StoredTarget(stopped.state, Path(name)) for name in ("/a.yaml", "/b.yaml")]
    assert only(targets[:1]) is targets[0]
    with pytest.raises(CommandFailed, match=r"--config FILE: /a\.yaml; /b\.yaml"):
        only(targets)
    with pytest.raises(CommandFailed, match="none is known"):
        only([])


def test_the_one_that_has_the_server_is_meant(stopped: Stopped) -> None:
    having = StoredTarget(stopped.state, stopped.file)
    targets = [StoredTarget(stopped.state, Path("/a.yaml")), having]
    assert only(targets, "gh") is having
    with pytest.raises(CommandFailed, match="say which configuration"):
        only(targets, "other")


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [(StateError("the disk is full"), "the disk is full"), (OSError(28, "No space left"), "the audit cannot be used")],
)
def test_failures_are_one_sentence(problem: Exception, sentence: str) -> None:
    with pytest.raises(CommandFailed, match=sentence) as caught, as_command_failures():
        raise problem
    assert caught.value.exit_code == FAILED


def test_a_reader_of_the_output_who_has_left_is_no_failure() -> None:
    with pytest.raises(BrokenPipeError), as_command_failures():
        raise BrokenPipeError
