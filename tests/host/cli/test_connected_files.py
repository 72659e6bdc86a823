"""The states of hosts' files that were connected, and changed since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.connected_files import file_states
from host.cli.exit_codes import DONE
from host.storage.connections import Connections
from host.storage.directory import State, state_directory
from tests.host.cli.test_connect import Home, gemini, home

__all__ = ["home"]

BACK = "1 server is moved out: colonnade disconnect gemini puts them back"


def replaced(before: str, after: str) -> Callable[[Home], None]:
    return lambda home: _replace(gemini(home), before, after)


def _replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def _lose_records(home: Home) -> None:
    for path in (home / ".local/state/colonnade/connections").glob("*.json"):
        path.unlink()


@pytest.mark.parametrize(
    ("change", "state", "notes"),
    [
        (lambda home: None, "connected", ["serves ~/project/colonnade.yaml"]),
        (
            lambda home: gemini(home).write_text("{}"),
            "not connected",
            [BACK],
        ),
        (
            replaced('"serve"', '"--version", "serve"'),
            "changed by hand",
            ["its entry starts something else than connect wrote: take it out by hand", BACK],
        ),
        (
            replaced('"colonnade": {', '"col": {'),
            "renamed",
            ["its entry has another name by now: take it out by hand", BACK],
        ),
        (
            lambda home: gemini(home).write_text("{"),
            "unreadable",
            [BACK.replace(": ", ": repair the file, then ")],
        ),
        (
            lambda home: gemini(home).unlink(),
            "gone",
            [BACK.replace("puts them back", "says where they are kept")],
        ),
        (_lose_records, "by hand", ['no record says who wrote its entry "colonnade": take it out by hand']),
        (
            lambda home: Path("colonnade.yaml").unlink(),
            "connected",
            [
                "serves ~/project/colonnade.yaml, which is gone",
                "moved out and not served by it: words; colonnade disconnect gemini puts them back",
            ],
        ),
        (
            lambda home: _replace(Path("colonnade.yaml"), "words: {command: [uvx, words]", "new: {command: [new]"),
            "connected",
            [
                "serves ~/project/colonnade.yaml",
                "moved out and not served by it: words; colonnade disconnect gemini puts them back",
            ],
        ),
        (
            lambda home: _replace(Path("colonnade.yaml"), "[uvx, words]", "[uvx, words@2]"),
            "connected",
            ["serves ~/project/colonnade.yaml"],
        ),
    ],
)
def test_the_state_of_a_file_and_what_became_of_its_servers(
    change: Callable[[Home], None], state: str, notes: list[str], home: Home
) -> None:
    assert run(["connect", "gemini", "--move", "--yes"]) == DONE
    change(home)
    [found] = file_states(Connections(State(state_directory(None))))
    assert (found.state, found.notes) == (state, notes)


def test_a_projects_file_is_given_back_in_its_folder(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "project" / ".gemini").mkdir()
    gemini(home).rename(home / "project" / ".gemini" / "settings.json")
    assert run(["connect", "gemini", "--project", "--move", "--yes"]) == DONE
    Path("colonnade.yaml").unlink()
    for folder, where in ((home / "project", ""), (home, " in ~/project")):
        monkeypatch.chdir(folder)
        [found] = file_states(Connections(State(state_directory(None))))
        assert found.notes[1].endswith(f"colonnade disconnect gemini --project{where} puts them back")
