"""Completion in shells: what the script of each offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from host.cli.command_line import colonnade, run
from host.cli.common import COMPLETE_VARIABLE
from host.cli.completion import SHELLS, Bash
from host.cli.exit_codes import DONE, FAILED
from tests.real.running import BIN, ROOT, beside, serving, write_config

WORDS = {
    "colonnade gr": ["grants"],
    "colonnade definitions re": ["reject", "revoke"],
    "colonnade pins ap": ["approve"],
    "colonnade explain --t": ["--tool", "--template"],
    "colonnade serve --log-level wa": ["warning"],
    "colonnade completion f": ["fish"],
    "colonnade connect gem": ["gemini"],
    "colonnade import gem": ["gemini"],
    "colonnade im": ["import"],
    "colonnade disconnect --dry": ["--dry-run"],
}
"""What is typed, and what is offered."""


NAMES = {
    "colonnade connect gem": "gemini",
    "colonnade logs w": "words",
    "colonnade call words__c": "words__count",
    "colonnade explain --server = words --tool co": "count",
    "colonnade read wo": "words+words://alphabet",
    "colonnade read words+words : //a": "//alphabet",
}
"""The same with names of a running host. Bash takes a URI for several words, and replaces the last of them."""

Answer = Callable[..., list[str]]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Answer:
    """What the script of a shell is answered, line by line."""

    def answered(shell: str, words: str, word: str) -> list[str]:
        variables = {"COMP_WORDS": words, "COMP_CWORD": word, "COLONNADE_STATE": str(tmp_path / "state")}
        for name, value in {**variables, COMPLETE_VARIABLE: f"{shell}_complete"}.items():
            monkeypatch.setenv(name, value)
        assert run([]) == DONE
        assert not (tmp_path / "state").exists(), "completion makes no state directory"
        return capsys.readouterr().out.splitlines()

    return answered


@pytest.mark.parametrize(("typed", "offered"), WORDS.items())
def test_bash_offers_commands_options_and_choices(typed: str, offered: list[str], answer: Answer) -> None:
    words = typed.split()
    assert answer("bash", "\n".join(words), str(len(words) - 1)) == [f"plain,{each}" for each in offered]


IN_BASH = """
eval "$(colonnade completion bash)"
complete -p colonnade
compopt() { :; }  # works in a completion only
for typed; do
  COMPREPLY=() COMP_WORDS=($typed) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _colonnade_completion colonnade
  printf '%s\\n' "${COMPREPLY[*]}"
done
"""


@pytest.mark.slow
def test_bash_offers_names_of_the_running_host(tmp_path: Path) -> None:
    words = {"command": [sys.executable, str(ROOT / "examples" / "quickstart" / "words.py")]}
    file = write_config(tmp_path, {"words": words})
    with serving(file, "words"):
        done = subprocess.run(
            ["bash", "--norc", "-c", IN_BASH, "bash", *NAMES],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**beside(file), "PATH": f"{BIN}:{os.environ['PATH']}"},
            cwd=tmp_path,
        )
    assert (done.returncode, done.stderr) == (0, "")
    registered, *offered = done.stdout.splitlines()
    assert "-F _colonnade_completion colonnade" in registered
    assert offered == list(NAMES.values())


@pytest.mark.parametrize(
    ("words", "number", "found"),
    [
        ("colonnade\nread\na+x", 2, (["read"], "a+x")),
        ("colonnade\nread\n", 2, (["read"], "")),
        ("colonnade\nread\na+x\n:\n//h", 4, (["read"], "a+x://h")),
        ("colonnade\nread\na+x\n:", 3, (["read"], "a+x:")),
        ("colonnade\nread\na\n@\nb\n=\n1\n--json", 7, (["read", "a@b=1"], "--json")),
    ],
)
def test_words_that_bash_took_apart_are_joined(
    words: str, number: int, found: tuple[list[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(number))
    assert Bash(colonnade, {}, "colonnade", COMPLETE_VARIABLE).get_completion_args() == found


@pytest.mark.parametrize("name", SHELLS)
def test_the_script_of_every_shell(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It asks by the variable that is answered; the shell itself reads it without an error, where there is one."""
    assert run(["completion", name]) == DONE
    script = capsys.readouterr().out
    assert f"{COMPLETE_VARIABLE}={name}_complete" in script
    assert "colonnade" in script
    if shutil.which(name) is not None:
        file = tmp_path / "script"
        file.write_text(script)
        done = subprocess.run([name, "-n", str(file)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("name", "separator"), [("zsh", "\n"), ("fish", "\t")])
def test_other_shells_are_answered_in_their_way(name: str, separator: str, answer: Answer) -> None:
    """With the summaries of the commands, which these shells show."""
    offered = "\n".join(answer(name, "colonnade co", "co" if name == "fish" else "1"))
    assert f"console{separator}Print a link that opens the web console once." in offered
    assert f"completion{separator}" in offered


def test_files_are_completed_by_the_shell(answer: Answer) -> None:
    assert answer("bash", "colonnade serve ", "2") == ["file,"]


def test_an_unknown_shell_is_no_crash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(COMPLETE_VARIABLE, "tcsh_complete")
    assert run([]) == FAILED
    assert capsys.readouterr() == ("", "")
