"""Names that a shell can complete: which are offered, and that nothing else is said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from host.cli.command_line import colonnade
from host.cli.names import MAX_HELP, RunningName
from tests.host.admin.test_socket import RunningHost, running_host
from tests.kit.admin import caller_view, entry, server, view

SECTIONS = {
    "servers": [server("github"), server("time", state="failed")],
    "catalog": [
        entry("get_issue", title="Get an issue"),
        entry("wipe", verdict="deny", shown=False),
        entry("now", server="time", outward="time__now", description="What time it is⟨U+000A⟩Now"),
        entry("x://$(touch pwned)", kind="resource", outward="github+x://$(touch pwned)"),
        entry("x://a", kind="resource", outward="github+x://a", description="x" * 100),
        entry("-rf", kind="resource", outward="-rf"),
        entry("plan", kind="prompt", outward="github__plan"),
    ],
    "confirmations": [{"id": "c1", "summary": "The tool x"}],
    "grants": [{"id": "g1", "server": "github", "name": "x"}],
    "views": [view("", callers=[]), view("coding"), view("$(x)")],
}


class FakeHost:
    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem
        self.config = os.path.realpath("/home/me/colonnade.yaml")
        self.endpoint = "http://127.0.0.1:8808/mcp"

    def get(self, path: str) -> object:
        name = path.removeprefix("state/")
        return {name: SECTIONS[name]}

    def post(self, path: str, **body: object) -> object:
        assert path == "callers/view"
        return caller_view()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.cli.admin_client.find_hosts", lambda state, timeout: [FakeHost("no"), FakeHost()])


def offered(*words: str) -> dict[str, str | None]:
    """What is offered for the last word, with the text beside it."""
    completer = ShellComplete(colonnade, {}, "colonnade", "_X")
    return {item.value: item.help for item in completer.get_completions(list(words[:-1]), words[-1])}


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        *((command, ["github", "time"]) for command in (["logs"], ["restart"], ["enable"], ["disable"], ["list"])),
        *((command, ["github", "time"]) for command in (["audit", "--server"], ["definitions", "revoke"])),
        (["explain", "--server"], ["github", "time"]),
        (["call"], ["github__get_issue", "time__now"]),
        (["read"], ["github+x://a"]),
        (["prompt"], ["github__plan"]),
        (["explain", "--server", "github", "--tool"], ["get_issue", "wipe"]),
        (["explain", "--server", "time", "--tool"], ["now"]),
        (["explain", "--server", "github", "--prompt"], ["plan"]),
        (["ask"], ["c1"]),
        (["grants", "revoke"], ["g1"]),
        (["call", "--config", "/home/me/colonnade.yaml"], ["github__get_issue", "time__now"]),
        (["call", "--config", "/other.yaml"], []),
        (["logs", "--config", "/other.yaml"], []),
        (["call", "--url", "http://127.0.0.1:8808/mcp"], ["github__get_issue", "time__now"]),
        (["call", "--url", "http://127.0.0.1:9/mcp"], []),
        *((command, ["coding"]) for command in (["list", "--view"], ["explain", "--view"], ["connect", "--view"])),
        (["serve", "--stdio", "--view"], ["coding"]),
        (["connect", "--config", "/home/me/colonnade.yaml", "--view"], ["coding"]),
        (["connect", "--config", "/other.yaml", "--view"], []),
        (["explain", "--caller"], ["ci", "laptop"]),
        (["call", "--view", "coding"], ["github__create_issue", "github__list_issues"]),
    ],
)
def test_names_of_the_running_host(words: list[str], names: list[str]) -> None:
    """Only those that a shell takes as they are: a server chooses its URIs."""
    assert sorted(offered(*words, "")) == names


@pytest.mark.usefixtures("hosts")
def test_names_begin_as_typed_and_have_a_few_words_beside_them() -> None:
    assert offered("call", "t") == {"time__now": "What time it is"}
    assert offered("logs", "t") == {"time": "failed"}
    assert offered("call", "--view", "c") == {"coding": "for laptop"}
    (about,) = offered("read", "github").values()
    assert about is not None
    assert (len(about), about[-1]) == (MAX_HELP, "…")


def test_without_a_host_nothing_is_offered_or_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    assert offered("logs", "--state", str(state), "") == {}
    assert not state.exists()
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningHost]:
    (tmp_path / "run").mkdir(0o700)
    with running_host(tmp_path / "run") as host:
        yield host


@pytest.mark.slow
def test_a_host_is_asked_at_its_socket(running: RunningHost, tmp_path: Path) -> None:
    assert sorted(offered("ask", "--state", str(tmp_path), "")) == ["q1", "q2"]
    running.hear("break")
    assert offered("call", "--state", str(tmp_path), "") == {}


def test_any_text_is_taken() -> None:
    """What is wrong with it is for the host to say."""

    @click.command()
    @click.argument("name", type=RunningName(lambda host, context: []))
    def command(name: str) -> None:
        assert name == "$(x)"

    command.main(["$(x)"], standalone_mode=False)
