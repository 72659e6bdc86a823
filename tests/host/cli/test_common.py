"""What commands share: the types of values, and what `--config` and `--state` select."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from host.cli.command_line import run
from host.cli.common import (
    Selection,
    config_option,
    find_config,
    is_confirmed,
    json_object,
    load_config,
    open_state,
    pass_selection,
    read_age,
    read_header,
    read_id,
    read_url,
    state_option,
    typed_path,
)
from host.cli.exit_codes import WRONG, CommandFailed

from .conftest import Terminal


@pytest.mark.parametrize(
    "url", ["", "localhost:8808", "127.0.0.1:8808/mcp", "ftp://127.0.0.1/", "http://", "http://[::1", "http://a:0/"]
)
def test_a_url_that_is_none(url: str) -> None:
    """The error says how a URL looks."""
    with pytest.raises(click.BadParameter, match=r"expected a URL such as http://127\.0\.0\.1:8808/mcp"):
        read_url(url)
    assert read_url("https://[::1]/mcp") == "https://[::1]/mcp"


def test_a_header_that_is_none_is_not_repeated() -> None:
    """It may be a secret whose name was left out."""
    assert read_header("X-A:  b: c ") == ("X-A", "b: c")
    for text in ("Bearer sesame", ": sesame", "sesame:"):
        with pytest.raises(click.BadParameter, match="expected NAME: VALUE") as caught:
            read_header(text)
        assert "sesame" not in caught.value.format_message()


def test_ages() -> None:
    assert [read_age(text) for text in ("30s", "15m", "2h", "7d")] == [30, 900, 7200, 604800]
    for text in ("", "15", "m", "-1m", "1w", "1.5h"):
        with pytest.raises(click.BadParameter, match="expected a time such as 15m"):
            read_age(text)


def test_ids_of_calls() -> None:
    assert read_id("00c0ffee") == "00c0ffee"
    for text in ("", "c0ffe", "C0FFEE", "c0ffee" * 3):
        with pytest.raises(click.BadParameter, match="expected 6 to 16 digits"):
            read_id(text)


@pytest.mark.parametrize("text", ['{"a":', "[]", "x", '{"a": 1', "[" * 100_000])
def test_arguments_that_are_no_object(text: str) -> None:
    with pytest.raises(CommandFailed, match=r"^the arguments ") as caught:
        json_object(text)
    assert caught.value.exit_code == WRONG


def test_what_words_should_be_as_one_object_is_said() -> None:
    """As a shell takes it."""
    for words, meant in (
        (["timezone=Europe/Vienna"], """'{"timezone": "Europe/Vienna"}'"""),
        (["n=3", "deep=true", "note=it's = 1"], """'{"n": 3, "deep": true, "note": "it'"'"'s = 1"}'"""),
        (["{}", "{}"], """such as '{"text": "hi"}'"""),
        (["{a: 1}"], """such as '{"text": "hi"}'"""),
    ):
        with pytest.raises(CommandFailed) as caught:
            json_object(*words)
        assert meant in str(caught.value)
    assert json_object() == {}


def test_a_state_directory_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(CommandFailed, match="open to others") as caught:
        open_state(tmp_path)
    assert caught.value.exit_code == WRONG
    assert run(["grants", "--state", str(tmp_path)]) == WRONG
    assert capsys.readouterr().err.startswith(f"colonnade: {tmp_path} is open to others")


@pytest.mark.parametrize(
    ("arguments", "config", "state"),
    [
        ([], None, None),
        (["--config", "a", "--state", "s"], "a", "s"),
        (["inner", "--config", "b"], "b", None),
        (["--config", "a", "--state", "s", "inner", "--config", "b"], "b", "s"),
    ],
)
def test_the_options_of_an_inner_command_win(arguments: list[str], config: str | None, state: str | None) -> None:
    selections: list[Selection] = []

    @click.group(invoke_without_command=True)
    @config_option
    @state_option
    @pass_selection
    def outer(selection: Selection) -> None:
        selections.append(selection)

    @outer.command()
    @config_option
    @state_option
    @pass_selection
    def inner(selection: Selection) -> None:
        selections.append(selection)

    outer.main(arguments, standalone_mode=False)
    assert selections[-1] == Selection(config and Path(config), state and Path(state))  # type: ignore[arg-type]


def test_the_configuration_of_here_or_else_the_users_own_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    (home / "colonnade").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    with pytest.raises(CommandFailed, match="there is no configuration"):
        find_config()
    own = home / "colonnade" / "colonnade.yaml"
    own.touch()
    assert find_config() == str(own)
    (here / "colonnade.yaml").symlink_to("missing")
    assert find_config() == "colonnade.yaml"  # and not the user's own, in which nobody meant to change anything
    (here / "colonnade.yaml").unlink()
    (here / "colonnade.yaml").touch()
    assert find_config() == "colonnade.yaml"


@pytest.mark.parametrize(("text", "names"), [("[x, '${env:NOT_A}', '${env:NOT_B}']", "NOT_A, NOT_B"), ("[]", "")])
def test_a_host_that_passes_few_variables_is_thought_of(
    text: str, names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only where nobody sits at a terminal, and not if the program is started without a client."""
    file = tmp_path / "colonnade.yaml"
    file.write_text(f"servers: {{a: {{command: {text}}}}}\n")
    for may_ask in (False, True):
        with pytest.raises(click.exceptions.Exit):
            load_config(str(file), may_ask=may_ask)
        said = f"passes on few variables, perhaps not {names}: use ${{file:PATH}} or ${{keyring:NAME}}"
        assert (said in capsys.readouterr().err) is (bool(names) and not may_ask)


def test_a_path_can_be_typed_as_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert typed_path(tmp_path / ".config" / "c.yaml") == "~/.config/c.yaml"
    assert typed_path(tmp_path / "my c.yaml") == f"'{tmp_path}/my c.yaml'"
    assert typed_path(Path("/srv/c.yaml")) == "/srv/c.yaml"


@pytest.mark.parametrize(("before", "after", "expected"), [("y\ny", "n", False), ("y", "", False), ("n\nn", "y", True)])
def test_an_answer_is_what_is_typed_after_the_question(
    before: str, after: str, expected: bool, terminal: Terminal
) -> None:
    """Neither whole lines nor a begun one that were typed before answer it."""
    terminal.type(before)
    person = terminal.seat({r"Write this\? \[y/N\] ": after})
    assert is_confirmed("Write this?") is expected
    assert person.typed == [after]


def test_a_pipe_may_hold_the_answer_already(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"y\n")
    os.close(theirs)
    with open(ours) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert is_confirmed("Write this?")
        assert not is_confirmed("Write this?"), "the end of the input is no"
