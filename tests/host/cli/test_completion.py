"""Completion in shells: what the script of each offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.cli.command_line import colonnade
from host.cli.common import COMPLETE_VARIABLE
from host.cli.completion import SHELLS, Bash
from tests.real.running import BIN, COLONNADE, ROOT, beside, serving, write_config

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


def environment(folder: Path) -> dict[str, str]:
    return {**beside(folder / "x"), "PATH": f"{BIN}:{os.environ['PATH']}"}


def shell(folder: Path, *command: str, **more: str) -> str:
    env = {**environment(folder), **more}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


IN_BASH = """
eval "$(colonnade completion bash)"
COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }  # works in a completion only
_colonnade_completion colonnade
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "offered"), WORDS.items())
def test_bash_offers_commands_options_and_choices(typed: str, offered: list[str], tmp_path: Path) -> None:
    assert shell(tmp_path, "bash", "--norc", "-c", IN_BASH, "bash", typed).split() == offered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("colonnade logs w", ["words"]),
        ("colonnade call words__c", ["words__count"]),
        ("colonnade explain --server = words --tool co", ["count"]),
        ("colonnade read wo", ["words+words://alphabet"]),
        ("colonnade read words+words : //a", ["//alphabet"]),
    ],
)
def test_bash_offers_names_of_the_running_host(typed: str, offered: list[str], served: Path) -> None:
    """It takes a URI for several words, and replaces the last of them."""
    assert shell(served, "bash", "--norc", "-c", IN_BASH, "bash", typed).split() == offered


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("served")
    words = {"command": [sys.executable, str(ROOT / "examples" / "quickstart" / "words.py")]}
    with serving(write_config(folder, {"words": words}), "words"):
        yield folder


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


@pytest.mark.slow
def test_bash_has_the_completion_for_the_command(tmp_path: Path) -> None:
    script = 'eval "$(colonnade completion bash)"; complete -p colonnade'
    assert "-F _colonnade_completion colonnade" in shell(tmp_path, "bash", "--norc", "-c", script)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELLS)
def test_the_script_of_every_shell(name: str, tmp_path: Path) -> None:
    """It asks by the variable that is answered; the shell itself reads it without an error, where there is one."""
    script = shell(tmp_path, COLONNADE, "completion", name)
    assert f"{COMPLETE_VARIABLE}={name}_complete" in script
    assert "colonnade" in script
    if shutil.which(name) is not None:
        file = tmp_path / "script"
        file.write_text(script)
        assert shell(tmp_path, name, "-n", str(file)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "separator"), [("zsh", "\n"), ("fish", "\t")])
def test_other_shells_are_answered_in_their_way(name: str, separator: str, tmp_path: Path) -> None:
    """With the summaries of the commands, which these shells show."""
    words = {"COMP_WORDS": "colonnade co", "COMP_CWORD": "co" if name == "fish" else "1"}
    offered = shell(tmp_path, COLONNADE, **words, **{COMPLETE_VARIABLE: f"{name}_complete"})
    assert f"console{separator}Print a link that opens the web console once." in offered
    assert f"completion{separator}" in offered


@pytest.mark.slow
def test_files_are_completed_by_the_shell(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "colonnade serve ", "COMP_CWORD": "2", COMPLETE_VARIABLE: "bash_complete"}
    assert shell(tmp_path, COLONNADE, **words) == "file,\n"
    assert not (tmp_path / "state").exists(), "completion makes no state directory"


@pytest.mark.slow
def test_an_unknown_shell_is_no_crash(tmp_path: Path) -> None:
    env = {**environment(tmp_path), COMPLETE_VARIABLE: "tcsh_complete"}
    done = subprocess.run([COLONNADE], capture_output=True, text=True, timeout=60, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
