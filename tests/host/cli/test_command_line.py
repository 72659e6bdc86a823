"""The commands together: help, aliases, usage errors, and what is not imported for them."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from host.cli.command_line import ALIASES, colonnade, run
from host.cli.exit_codes import DONE, UNREACHED, WRONG
from host.version import VERSION
from tests.real.running import ROOT

COMMANDS = [
    "serve",
    "check",
    "schema",
    "init",
    "add",
    "remove",
    "import",
    "connect",
    "disconnect",
    "list",
    "call",
    "read",
    "prompt",
    "status",
    "stop",
    "logs",
    "restart",
    "enable",
    "disable",
    "install",
    "reload",
    "login",
    "logout",
    "credentials",
    "ask",
    "console",
    "definitions",
    "grants",
    "sandbox",
    "explain",
    "audit",
    "history",
    "migrate",
]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # whatever the terminal of the tests has
    for words in (["--help"], ["-h"], [], ["help"]):
        assert run(words) == DONE
        printed = capsys.readouterr().out
        listed = printed.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == [*COMMANDS, "completion", "help"]
        assert "Examples:" in printed
        assert not [line for line in listed if line.endswith("...")], "a summary that is cut off says too little"


@pytest.mark.parametrize("command", [*COMMANDS, *ALIASES, "completion"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", command]) == DONE
    by_word = capsys.readouterr().out
    assert run([command, "--help"]) == DONE
    out, err = capsys.readouterr()
    assert out == by_word
    assert out.startswith(f"Usage: colonnade {command} ")
    assert err == ""


def everything(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    inner = [command.get_command(context, name) for name in command.list_commands(context)]
    return [command, *(each for group in inner if group is not None for each in everything(group))]


def test_every_command_and_option_is_described() -> None:
    for command in everything(colonnade):
        assert command.help, command.name
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), parameter.name


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == DONE
    assert capsys.readouterr().out == f"colonnade {VERSION}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["serve", "--stdio", "--port", "1", "a.yaml"],
        ["serve", "a.yaml", "b.yaml"],
        ["check", "--nothing", "a.yaml"],
        ["serve", "a.yaml", "--log-level", "loud"],
        ["serve", "a.yaml", "--stdio", "--log-format", "json"],
        ["serve", "a.yaml", "--stdio", "--log-file", "log"],
        ["definitions", "nothing"],
        ["completion", "powershell"],
    ],
)
def test_usage_errors_are_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == WRONG
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0].split()[0]) == ("", "Usage:")


@pytest.mark.parametrize(("typed", "meant"), [("lits", "list"), ("definition", "definitions"), ("stats", "status")])
def test_an_unknown_command_names_the_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([typed]) == WRONG
    err = capsys.readouterr().err
    assert "Did you mean" in err
    assert f"'{meant}'" in err


LOADED = """
import json, sys
from host.cli.command_line import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted({name for name in sys.modules})]), file=sys.stderr)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["ask", "--help"], ["completion", "zsh"]])
def test_help_loads_nothing_but_the_commands(arguments: list[str]) -> None:
    """It would take five times as long."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    code, loaded = json.loads(done.stderr)
    assert code == DONE
    ours = {name for name in loaded if name.split(".")[0] in ("host", "config")}
    assert {name for name in ours if not name.startswith("host.cli")} <= {"host", "host.non_blocking"}
    assert {"trio", "pydantic", "msgspec", "yaml", "httpx", "importlib.metadata", "argparse"}.isdisjoint(loaded)


@pytest.mark.slow
def test_a_command_at_a_url_loads_no_host() -> None:
    """With what hosts consist of, it would take a quarter longer."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "list", "--url", "http://127.0.0.1:1/mcp"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    assert code == UNREACHED
    assert "host.mcp_client" in loaded
    assert {"host.app", "host.upstream.supervisor", "host.downstream.sessions"}.isdisjoint(loaded)
