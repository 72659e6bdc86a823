"""Files of desktop hosts: `connect` and `disconnect` in one process, on the files of a home of their own, the states of
files, the entry of Colonnade for each host, and the difference that is shown."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from config import load
from config.desktop.desktop_host import DesktopHost
from config.desktop.entry_form import ENTRY_FORMS, EntryForm
from config.desktop.gemini import GEMINI
from config.desktop.hosts import HOSTS
from config.desktop.started import OurServers, started_by
from config.edit import insert, values
from config.load import read_file
from host.cli.command_line import run
from host.cli.desktop.host_file import (
    TOKEN_VARIABLE,
    Choices,
    OwnEntry,
    cut_names,
    difference,
    file_states,
    meant_hosts,
    own_entry,
)
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed
from host.cli.servers import Served
from host.storage.connections import Connections
from host.storage.directory import State, open_state, state_directory
from tests.host.cli.conftest import Types
from tests.kit.cost import assert_costs_less

SERVERS = """servers:
  words: {command: [uvx, words], env: {WORDS_TOKEN: "${env:WORDS_TOKEN}"}}
"""
FILE = """{
  // mine
  "mcpServers": {
    "words": {"command": "uvx", "args": ["words"], "env": {"WORDS_TOKEN": "hunter2-hunter2"}}, // w
    "clock": {"command": "uvx", "args": ["clock", "--key", "k3y"]}
  },
  "ui": {"theme": "x"} /* end */
}"""
Home = Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The user's folder, with a configuration in the current folder and a file of Gemini CLI."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WORDS_TOKEN", "t")
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "COLONNADE_STATE"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "project"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "colonnade.yaml").write_text(SERVERS)
    gemini(tmp_path).parent.mkdir()
    gemini(tmp_path).write_text(FILE)
    return tmp_path


def gemini(home: Home) -> Path:
    return home / ".gemini" / "settings.json"


def names(home: Home) -> list[str]:
    return list(values(gemini(home), gemini(home).read_text())["mcpServers"])


def test_a_dry_run_shows_the_difference_without_secrets(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "gemini", "--move", "--dry-run"]) == DONE
    out, err = capsys.readouterr()
    assert gemini(home).read_text() == FILE
    assert f"+++ {gemini(home)}" in out
    assert '+    "colonnade": {' in out
    assert '-    "words": {"command": "uvx", "args": ["words"], "env": {"WORDS_TOKEN": "***"}}, // w' in out
    assert "hunter2" not in out
    assert "k3y" not in out
    assert "still starts clock by itself" in err
    assert not list((home / ".local/state/colonnade/connections").glob("*.json"))


def test_without_move_the_servers_that_start_twice_are_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "gemini", "--yes"]) == DONE
    assert names(home) == ["colonnade", "words", "clock"]
    assert (
        "Gemini CLI still starts words by itself, past all rules: colonnade connect gemini --move"
        in capsys.readouterr().err
    )
    assert run(["connect", "gemini", "--move", "--yes"]) == DONE
    assert names(home) == ["colonnade", "clock"]
    assert run(["connect", "gemini", "--url", "--yes"]) == DONE
    assert names(home) == ["colonnade", "clock"], "what was moved stays out"
    assert run(["disconnect", "gemini", "--yes"]) == DONE
    assert gemini(home).read_text() == FILE
    assert [each.name for each in (home / ".local/state/colonnade/connections").iterdir()] == ["lock"]


def test_the_former_content_is_kept_for_the_owner_alone(home: Home) -> None:
    run(["connect", "gemini", "--yes"])
    kept = [each for each in (home / ".local/state/colonnade/connections").iterdir() if each.name != "lock"]
    assert sorted(each.suffix for each in kept) == [".json", ".json"]
    assert any(each.read_text() == FILE for each in kept)
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}


def test_a_changed_file_keeps_its_changes(home: Home) -> None:
    run(["connect", "gemini", "--move", "--yes"])
    gemini(home).write_text(gemini(home).read_text().replace('"x"', '"y"'))
    assert run(["disconnect", "gemini", "--yes"]) == DONE
    assert names(home) == ["words", "clock"]
    assert '"ui": {"theme": "y"} /* end */' in gemini(home).read_text()


def test_what_cannot_be_given_back_is_in_the_backup(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--move", "--yes"])
    root = json.loads(gemini(home).read_text().replace("// mine", "").replace("// w", "").replace("/* end */", ""))
    root["mcpServers"]["words"] = {"command": "another"}
    gemini(home).write_text(json.dumps(root))
    capsys.readouterr()
    assert run(["disconnect", "gemini", "--yes"]) == DONE
    out, err = capsys.readouterr()
    assert 'it has another server "words" by now' in err
    backup = out.splitlines()[-1].rpartition(" ")[2]
    assert Path(backup).read_text() == FILE
    assert json.loads(gemini(home).read_text())["mcpServers"]["words"] == {"command": "another"}


def test_what_a_person_added_to_the_entry_stays_until_it_is_taken_out(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connections(sign: str) -> list[str]:
        return [each.read_text() for each in (home / ".local/state/colonnade/connections").glob(f"*{sign}*")]

    run(["connect", "gemini", "--yes"])
    edited = gemini(home).read_text().replace('"WORDS_TOKEN": "${WORDS_TOKEN}"', '"MINE": "m", "WORDS_TOKEN": "mine"')
    edited = edited.replace('"colonnade": {', '"colonnade": {"trust": true,')
    gemini(home).write_text(edited)
    capsys.readouterr()
    Path("colonnade.yaml").write_text(SERVERS.replace("words:", "words: {command: x, env: {A: '${env:A}'}}\n  others:"))
    monkeypatch.setenv("A", "a")
    assert run(["connect", "gemini", "--yes"]) == DONE
    out, err = capsys.readouterr()
    own = values(gemini(home), gemini(home).read_text())["mcpServers"]["colonnade"]
    assert own["env"] == {"A": "${A}", "WORDS_TOKEN": "mine", "MINE": "m"}
    assert own["trust"] is True
    assert "added to its entry by hand (trust, env) stays in it" in err
    assert connections("-edited-") == [edited]
    assert str(next((home / ".local/state/colonnade/connections").glob("*-edited-*"))) in out
    connected = gemini(home).read_text()
    assert run(["disconnect", "gemini", "--yes"]) == DONE
    out, err = capsys.readouterr()
    assert "added to its entry by hand (env, trust) goes with it" in err
    assert "The content with the edited entry is in" in out
    assert connections("-edited-") == [connected]
    assert gemini(home).read_text() == FILE


FORMER = ("codex", "cline")
"""Hosts into whose entries an earlier version wrote no times."""


@pytest.mark.parametrize("name", FORMER)
def test_an_entry_of_an_earlier_version_is_renewed(
    name: str, home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (host,) = [host for host in HOSTS if host.name == name]
    file = host.files[-1 if name == "cline" else 0].path(home, home, {}, "linux")
    file.parent.mkdir(parents=True)
    before = "# mine\nmodel = 'm'\n" if file.suffix == ".toml" else '{"mcpServers": {}, "mine": 1}'
    file.write_text(before)
    with monkeypatch.context() as earlier:
        form = replace(ENTRY_FORMS[name], command=ENTRY_FORMS["cursor"].command)
        earlier.setitem(cast(dict[str, EntryForm], ENTRY_FORMS), name, form)
        assert run(["connect", name, "--yes"]) == DONE
    former = _own_entry(host, file)
    assert "timeout" not in str(former)
    capsys.readouterr()
    assert run(["connect"]) == DONE
    assert re.search(rf"{name} +connected ", capsys.readouterr().out)
    assert run(["connect", name, "--yes"]) == DONE
    renewed = _own_entry(host, file)
    assert former.items() <= renewed.items()
    assert "timeout" in str(renewed)
    assert run(["disconnect", name, "--yes"]) == DONE
    assert file.read_text() == before


def _own_entry(host: DesktopHost, file: Path) -> dict[str, object]:
    found: dict[str, object] = values(file, file.read_text())[host.servers[0]]["colonnade"]
    return found


def test_a_new_file_is_made_where_the_host_has_a_folder(home: Home) -> None:
    """Cline is an extension of an editor, or a command-line program."""
    (home / ".cline/data/settings").mkdir(parents=True)
    assert run(["connect", "cline", "--yes"]) == DONE
    assert (home / ".cline/data/settings/cline_mcp_settings.json").is_file()


def test_a_time_that_a_person_has_set_stays(home: Home) -> None:
    run(["connect", "codex", "--yes"])
    file = home / ".codex/config.toml"
    file.write_text(file.read_text().replace("startup_timeout_sec = 60", "startup_timeout_sec = 90"))
    assert run(["connect", "codex", "--yes"]) == DONE
    assert "startup_timeout_sec = 90" in file.read_text()
    assert "required = true" in file.read_text()


def test_a_view_is_written_and_left_out_again(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "project" / "colonnade.yaml").write_text(f"{SERVERS}views: {{coding: {{}}}}\n")
    for options, words in ((["--view", "coding"], ["--view", "coding"]), ([], [])):
        assert run(["connect", "gemini", "--yes", "--no-try", *options]) == DONE
        assert ("convenience" in capsys.readouterr().err) is bool(words)
        arguments = values(gemini(home), gemini(home).read_text())["mcpServers"]["colonnade"]["args"]
        assert [str(each) for each in arguments][3:] == words
    assert run(["connect", "gemini", "--yes", "--view", "codin"]) == WRONG
    assert "did you mean coding?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("search", "permissions", "code"),
    [
        ("on", {"deny": ["mcp__colonnade__git__push"]}, FAILED),
        ("auto", {"ask": ["mcp__colonnade__git__push"]}, FAILED),
        ("off", {"deny": ["mcp__colonnade__git__push"]}, DONE),
        ("on", {"deny": ["mcp__other__push"]}, DONE),
        ("on", {"allow": ["mcp__colonnade__call_tool"]}, DONE),
    ],
)
def test_a_search_is_refused_where_the_host_has_rules_for_our_tools(
    home: Home, search: str, permissions: object, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "project" / "colonnade.yaml").write_text(f"{SERVERS}views: {{found: {{search: {search}}}}}\n")
    (home / ".claude").mkdir(exist_ok=True)
    (home / ".claude" / "settings.json").write_text(json.dumps({"permissions": permissions}))
    (home / ".claude.json").write_text("{}")
    assert run(["connect", "claude-code", "--yes", "--no-try", "--view", "found"]) == code
    assert ("past these rules" in capsys.readouterr().err) is (code == FAILED)
    assert ("colonnade" in (home / ".claude.json").read_text()) is (code == DONE)


def test_an_entry_that_was_renamed_is_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--yes"])
    gemini(home).write_text(renamed := gemini(home).read_text().replace('"colonnade":', '"gateway":'))
    assert run(["disconnect", "gemini"]) == DONE, "nothing is written, so nobody is asked"
    said = 'Gemini CLI may still start Colonnade: its entry "colonnade" was renamed to "gateway"'
    assert said in capsys.readouterr().out
    assert gemini(home).read_text() == renamed


def test_a_server_stays_in_the_file_until_the_running_host_serves_it(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served(True, frozenset({"words"}))
    monkeypatch.setattr("host.cli.desktop.edit.offer_reload", lambda state, file, asks: served)
    starts = (
        "Gemini CLI still starts words by itself, which the running Colonnade does not serve yet as the file has it"
    )
    assert run(["connect", "gemini", "--move", "--yes"]) == DONE
    assert f"{starts}: colonnade reload, then connect again\n" in capsys.readouterr().err
    assert names(home) == ["colonnade", "words", "clock"]
    served = Served(True)
    assert run(["connect", "gemini", "--move", "--yes"]) == DONE
    assert names(home) == ["colonnade", "clock"]
    served = Served(True, problem="it refused")
    assert run(["connect", "gemini", "--move", "--yes"]) == FAILED
    assert "the running Colonnade does not say which servers it serves: it refused" in capsys.readouterr().err


def test_what_becomes_of_calls_is_said_once_for_all_hosts(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "gemini", "cursor", "--yes"]) == DONE
    said = capsys.readouterr().out
    assert said.count("is connected; start it again") == 2
    assert said.count("Calls that need your confirmation wait") == 1
    assert run(["connect", "gemini", "cursor", "--yes"]) == DONE
    assert "Calls that" not in capsys.readouterr().out


def test_the_command_that_takes_over_what_the_configuration_lacks_is_named(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = "Gemini CLI still starts clock by itself, which colonnade.yaml does not have: colonnade import"
    assert run(["connect", "gemini", "--move", "--dry-run"]) == DONE
    assert f"{starts} gemini\n" in capsys.readouterr().err
    own = home / ".config" / "colonnade" / "colonnade.yaml"
    own.parent.mkdir(parents=True)
    Path("colonnade.yaml").rename(own)
    assert run(["connect", "gemini", "--move", "--dry-run"]) == DONE
    assert f"{starts} gemini -o ~/.config/colonnade/colonnade.yaml\n" in capsys.readouterr().err
    (odd := home / "my file.json").write_bytes(gemini(home).read_bytes())
    assert run(["connect", "gemini", "--file", str(odd), "--move", "--dry-run"]) == DONE
    assert f"{starts} '{odd}' -o ~/.config/colonnade/colonnade.yaml\n" in capsys.readouterr().err


def test_a_file_that_would_not_change_is_not_asked_about(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--yes"])
    capsys.readouterr()
    assert run(["connect", "gemini"]) == DONE
    assert "Nothing is to be done in this file." in capsys.readouterr().out


def test_a_person_is_asked(home: Home, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    types("n\n")
    assert run(["connect", "gemini"]) == FAILED
    assert gemini(home).read_text() == FILE
    types("y\n")
    assert run(["connect", "gemini"]) == DONE
    assert names(home)[0] == "colonnade"
    assert capsys.readouterr().out.count("Write this? [y/N]") == 2


def test_without_a_terminal_nothing_is_written_unasked(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "gemini"]) == WRONG
    assert "say --yes" in capsys.readouterr().err
    assert gemini(home).read_text() == FILE


def test_a_file_that_changed_before_the_answer_is_left(
    home: Home, types: Types, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_program(question: str) -> bool:
        gemini(home).write_text('{"theirs": 1}')
        return True

    types("")
    monkeypatch.setattr("host.cli.desktop.host_file.is_confirmed", other_program)
    assert run(["connect", "gemini"]) == FAILED
    assert "was changed by another program meanwhile" in capsys.readouterr().err
    assert gemini(home).read_text() == '{"theirs": 1}'
    assert run(["disconnect", "gemini"]) == FAILED
    assert "Gemini CLI is not connected" in capsys.readouterr().err


def test_an_entry_that_somebody_wrote_by_hand_is_not_replaced(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    gemini(home).write_text('{"mcpServers": {"colonnade": {"command": "c"}}}')
    assert run(["connect", "gemini", "--yes"]) == FAILED
    assert 'has "colonnade" already' in capsys.readouterr().err
    assert run(["disconnect", "gemini", "--yes"]) == FAILED
    assert 'no record says who wrote its entry "colonnade": take it out by hand' in capsys.readouterr().err


def test_the_list_says_which_configuration_each_host_serves(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--yes"])
    capsys.readouterr()
    assert run(["connect"]) == DONE
    state, serves = capsys.readouterr().out.splitlines()
    assert state.split() == ["gemini", "connected", str(gemini(home))]
    assert serves.strip() == "serves ~/project/colonnade.yaml"
    run(["disconnect", "gemini", "--yes"])
    gemini(home).unlink()
    assert run(["connect"]) == DONE
    assert "No file of a desktop host is found here" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--move", "--yes", "--dry-run", "--url", "--project"])
def test_an_option_without_a_host_is_an_error(option: str, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", option]) == WRONG
    assert "Name a HOST" in capsys.readouterr().err


def test_moved_servers_that_nothing_serves_are_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--move", "--yes"])
    other = home / "other.yaml"
    other.write_text("servers:\n  clock: {command: [uvx, clock, --key, k3y]}\n")
    for _ in range(2):
        assert run(["connect", "gemini", "--move", "--config", str(other), "--yes"]) == DONE
        said = "moved out of the file and not served by other.yaml: words; colonnade disconnect gemini puts them back"
        assert said in capsys.readouterr().err
    other.write_text(f"{other.read_text()}  words: {{command: [uvx, words], disabled: true}}\n")
    assert run(["connect", "gemini", "--config", str(other), "--yes"]) == DONE
    assert "not served" not in capsys.readouterr().err, "a person has switched it off there"


def test_servers_that_stay_are_named_with_the_reason(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--yes"])
    servers = json.loads(gemini(home).read_text().replace("// mine", "").replace("// w", "").replace("/* end */", ""))
    own = servers["mcpServers"]["colonnade"]
    odd = {"command": "off", "allowOnly": ["x"]}
    gemini(home).write_text(json.dumps({"mcpServers": {"col": own, "odd": odd, "off": {"command": "off"}}}))
    run(["disconnect", "gemini", "--yes"])
    Path("colonnade.yaml").write_text(f"{SERVERS}  off: {{command: 'off', disabled: true}}\n")
    capsys.readouterr()
    assert run(["connect", "gemini", "--move", "--yes"]) == DONE
    err = capsys.readouterr().err
    assert "starts col by itself, which is Colonnade with colonnade.yaml under another name" in err
    assert "starts odd by itself, which colonnade import cannot take over" in err
    assert "starts off by itself, which is disabled in colonnade.yaml" in err


@pytest.mark.parametrize("command", ["connect", "disconnect"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{\n  "mcpServers": {,\n', ":2:18: this is not JSON"),
        ("[]", ':1:1: expected a map with the key "mcpServers", found a list'),
    ],
)
def test_a_file_that_cannot_be_parsed_is_named_with_the_line(
    command: str, content: str, said: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["connect", "gemini", "--yes"])
    gemini(home).write_text(content)
    capsys.readouterr()
    assert run([command, "gemini", "--yes"]) == FAILED
    assert f"{gemini(home)}{said}" in capsys.readouterr().err


def test_a_projects_file_is_apart_from_the_users(home: Home) -> None:
    assert run(["connect", "gemini", "--project", "--yes"]) == DONE
    project = home / "project" / ".gemini" / "settings.json"
    assert "colonnade" in project.read_text()
    assert gemini(home).read_text() == FILE
    assert run(["disconnect", "gemini", "--yes"]) == FAILED
    assert run(["disconnect", "gemini", "--project", "--yes"]) == DONE
    assert not project.parent.exists()


def test_what_was_imported_from_a_project_is_found_again(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    project = home / "project" / ".gemini" / "settings.json"
    project.parent.mkdir()
    project.write_text('{"mcpServers": {"s": {"command": "./s.py", "args": ["."]}}}')
    Path("colonnade.yaml").unlink()
    assert run(["import", "gemini", "--yes"]) == DONE
    assert run(["connect", "gemini", "--project", "--move", "--yes"]) == DONE
    assert "still starts s by itself, which is disabled in colonnade.yaml" in capsys.readouterr().err
    Path("colonnade.yaml").write_text(Path("colonnade.yaml").read_text().replace("disabled: true", "disabled: false"))
    assert run(["connect", "gemini", "--project", "--move", "--yes"]) == DONE
    assert list(json.loads(project.read_text())["mcpServers"]) == ["colonnade"]


def test_another_file_of_the_host(home: Home) -> None:
    path = home / "elsewhere.json"
    assert run(["connect", "gemini", "--file", str(path), "--yes"]) == DONE
    assert json.loads(path.read_text())["mcpServers"].keys() == {"colonnade"}
    assert run(["disconnect", "gemini", "--file", str(path), "--yes"]) == DONE
    assert not path.exists()
    assert run(["connect", "gemini", "--file", str(path), "--project"]) == WRONG


def test_a_link_stays_a_link_and_its_name_says_what_the_file_is(home: Home) -> None:
    real = home / "dotfiles" / "settings"
    real.parent.mkdir()
    gemini(home).rename(real)
    gemini(home).symlink_to(real)
    assert run(["connect", "gemini", "--move", "--yes"]) == DONE
    assert names(home) == ["colonnade", "clock"]
    assert run(["disconnect", "gemini", "--yes"]) == DONE
    assert gemini(home).is_symlink()
    assert real.read_text() == FILE


def test_an_unknown_host_and_a_missing_configuration(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "gemin", "--yes"]) == WRONG
    assert 'did you mean "gemini"' in capsys.readouterr().err
    (home / "project" / "colonnade.yaml").unlink()
    assert run(["connect", "gemini", "--yes"]) == WRONG
    assert "no configuration: make one of the servers of the host with colonnade import" in capsys.readouterr().err


def test_another_hosts_file_as_the_configuration(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "cursor", "--config", str(gemini(home)), "--yes"]) == DONE
    assert run(["connect", "gemini", "--config", str(gemini(home)), "--yes"]) == WRONG
    assert "Colonnade would start itself" in capsys.readouterr().err
    assert run(["connect", "gemini", "--config", str(home / ".cursor" / "mcp.json"), "--yes"]) == DONE
    assert "still starts words, clock by itself, which mcp.json does not have\n" in capsys.readouterr().err


def test_a_read_only_file_is_an_error_with_a_sentence(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    gemini(home).chmod(0o444)
    assert run(["connect", "gemini", "--yes"]) == FAILED
    assert "is read-only; make it writable" in capsys.readouterr().err


@pytest.mark.few(8)
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
@pytest.mark.parametrize("project", [False, True])
def test_every_host_is_connected_and_leaves_no_trace(host: DesktopHost, project: bool, home: Home) -> None:
    gemini(home).unlink()
    gemini(home).parent.rmdir()
    more = ["--project"] if project else []
    run(["connect"])  # makes the state directory
    before = {path for path in home.rglob("*") if "connections" not in path.parts}
    code = run(["connect", host.name, "--yes", *more])
    if project and not any(file.is_project for file in host.files):
        assert code == WRONG
        return
    assert code == DONE
    made = [path for path in home.rglob("*") if path not in before and path.is_file() and "state" not in path.parts]
    assert len(made) == 1
    assert ENTRY_FORMS[host.name].path[0] in made[0].read_text()
    assert run(["disconnect", host.name, "--yes", *more]) == DONE
    assert {path for path in home.rglob("*") if "connections" not in path.parts} == before
    assert os.getcwd() == str(home / "project")


def test_the_file_that_is_made_is_the_usual_one(home: Home) -> None:
    assert run(["connect", "opencode", "--yes"]) == DONE
    assert [each.name for each in (home / ".config" / "opencode").iterdir()] == ["opencode.json"]


def _file_with_words(host: DesktopHost, path: Path) -> bytes:
    """A file of a host, with comments where the syntax has them, in which `words` and `clock` are servers."""
    form = ENTRY_FORMS[host.name]
    texts = {".toml": '# mine\nmodel = "x"\n', ".yaml": f"# mine\n{form.new_file}"}
    text = texts.get(path.suffix, '{\n\t"x": [1]\n}')
    for name in ("clock", "words"):
        place = (*form.path, 0 if form.is_list else name)
        entry = form.command("uvx", [name])
        text = insert(path, text, place, {**entry, "name": name} if "name" in entry else entry).text
    return text.replace("\n", "\r\n").encode()


@pytest.mark.few(8)
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
@pytest.mark.parametrize("move", [False, True])
def test_every_hosts_file_is_given_back_byte_for_byte(
    host: DesktopHost, move: bool, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--move`, the host's reader then finds no server but Colonnade and the one that it does not have."""
    Path("colonnade.yaml").write_text("servers:\n  words: {command: [uvx, words]}\n")
    first = next(file for file in host.files if not file.is_project)  # old names are found too
    path = first.path(home, home, os.environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = _file_with_words(host, path)
    path.write_bytes(data)
    assert run(["connect", host.name, "--yes", *(["--move"] if move else [])]) == DONE
    found = {entry.name for entry in started_by(host, path, path.read_bytes(), home, os.environ)}
    assert found == {"colonnade", "clock"} | (set() if move else {"words"})
    err = capsys.readouterr().err
    assert (f"still starts words by itself, past all rules: colonnade connect {host.name} --move" in err) is not move
    assert f"{host.title} still starts clock by itself, which colonnade.yaml does not have" in err
    assert run(["disconnect", host.name, "--yes"]) == DONE
    assert path.read_bytes() == data


def test_the_problem_of_one_host_does_not_keep_the_others(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "gemini", "--yes"]) == DONE
    assert run(["disconnect", "cursor", "gemini", "--yes"]) == FAILED
    assert gemini(home).read_text() == FILE
    said = capsys.readouterr()
    assert "Gemini CLI is disconnected" in said.out
    assert "colonnade: Cursor is not connected" in said.err


@pytest.mark.parametrize("content", ["// mine\n", "\n", '{"mcpServers": null}\n', "/* a */ {} // b"])
def test_a_file_without_servers_is_connected_and_given_back(home: Home, content: str) -> None:
    gemini(home).write_text(content)
    assert run(["connect", "gemini", "--yes"]) == DONE
    assert names(home) == ["colonnade"]
    assert run(["disconnect", "gemini", "--yes"]) == DONE
    assert gemini(home).read_text() == content


def test_what_a_killed_process_left_is_removed(home: Home) -> None:
    """It died between the new file and the old one's replacement, so the old one is still there."""
    run(["connect", "gemini", "--yes"])
    gemini(home).write_text(FILE)
    left = gemini(home).with_name(".settings.json.colonnade")
    left.write_text("half")
    assert run(["disconnect", "gemini", "--yes"]) == DONE
    assert gemini(home).read_text() == FILE
    assert not left.exists()


@pytest.mark.parametrize("exists", [False, True], ids=["to nothing", "to the user's own file"])
@pytest.mark.parametrize("name", [".gemini", ".gemini/settings.json"])
def test_a_projects_link_is_not_written_through(
    exists: bool, name: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    others, link = home / "others", home / "project" / name
    target = others / Path(name).name
    if exists:
        others.mkdir()
        if name.endswith(".json"):
            target.write_text("{}")
        else:
            target.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    before = sorted(others.rglob("*"))
    assert run(["connect", "gemini", "--project", "--yes"]) != DONE
    assert "is a link out of the project" in capsys.readouterr().err
    assert sorted(others.rglob("*")) == before
    if exists and target.is_file():
        assert target.read_text() == "{}"


# The states of files that were changed since

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


@pytest.mark.few(2)
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


def test_names_that_a_connected_host_cuts_are_said(home: Home) -> None:
    names = ["gh__one", "gh__" + "x" * 45, "gh__" + "x" * 46]
    assert cut_names("colonnade.yaml", names) == []
    assert run(["connect", "gemini", "--yes"]) == DONE
    assert cut_names("colonnade.yaml", names) == [
        "Gemini CLI cuts or drops 1 name of more than 49 characters; names: {limit: 48} in ~/project/colonnade.yaml "
        "makes them fit"
    ]
    assert cut_names("another.yaml", names) == []
    assert cut_names("colonnade.yaml", names[:2]) == []


def test_a_projects_file_is_given_back_in_its_folder(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "project" / ".gemini").mkdir()
    gemini(home).rename(home / "project" / ".gemini" / "settings.json")
    assert run(["connect", "gemini", "--project", "--move", "--yes"]) == DONE
    Path("colonnade.yaml").unlink()
    for folder, where in ((home / "project", ""), (home, " in ~/project")):
        monkeypatch.chdir(folder)
        [found] = file_states(Connections(State(state_directory(None))))
        assert found.notes[1].endswith(f"colonnade disconnect gemini --project{where} puts them back")


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ("claude", "claude-desktop or claude-code"),
        ("claude_desktop", "claude-desktop"),
        ("Claude Code", "claude-code"),
        ("code", "claude-code or vscode or roo or qwen or codex or opencode"),
        ("vs-code", "vscode"),
        ("gemini-cli", "gemini"),
        ("lmstudio", "lm-studio"),
        ("curser", "cursor"),
    ],
)
def test_the_hosts_that_a_word_may_mean(found: str, meant: str) -> None:
    assert meant_hosts(found).replace('"', "") == f"did you mean {meant}?"


def test_all_hosts_are_named_if_none_is_similar() -> None:
    assert meant_hosts("zzz").startswith("known are claude-desktop, claude-code, ")
    assert meant_hosts("a").startswith("known are ")


# The entry of Colonnade


def host(name: str) -> DesktopHost:
    """A host by its name alone; the entry depends on nothing else."""
    return DesktopHost(name, name.title(), GEMINI.files, ENTRY_FORMS[name].path, {})


def command(name: str, text: str, folder: Path, added: Mapping[str, object] = {}, view: str = "") -> OwnEntry:
    return own_entry(host(name), choices(folder, text, view=view), added)


def url(
    name: str,
    listen: str,
    folder: Path,
    token: str | None = None,
    view: str = "",
    more: str = "",
    *,
    write_token: bool = False,
) -> OwnEntry:
    text = f"servers: {{a: {{command: x}}}}\nlisten: {listen}\n{more}"
    return own_entry(host(name), choices(folder, text, view=view, by_url=True, token=token, write_token=write_token))


def choices(
    folder: Path, text: str, *, view: str, by_url: bool = False, token: str | None = None, write_token: bool = False
) -> Choices:
    file = folder / "colonnade.yaml"
    file.write_text(text)
    environ = {"LAPTOP": "laptop-token-123456", "OTHER": "other-token-1234567", "A": "", "B": "", "GITHUB_TOKEN": ""}
    config, document, none = load(file, environ), read_file(file)[0], OurServers({}, folder, {})
    state = open_state(folder / "state")
    return Choices(file, config, document, none, none, state, view, by_url, token, write_token, move=False)


TOKEN = "{auth: {tokens: {laptop: '${env:LAPTOP}'}}}"
TWO = "{auth: {tokens: {cursor: '${env:LAPTOP}', other: '<${env:OTHER}>'}}}"


def test_the_command_works_from_any_folder_and_path(tmp_path: Path) -> None:
    made = command("cursor", "servers: {a: {command: x}}\n", tmp_path)
    assert made.entry["args"] == [
        "serve",
        "--stdio",
        str(tmp_path / "colonnade.yaml"),
        "--state",
        str(tmp_path / "state"),
    ]
    program = str(made.entry["command"])
    assert os.path.isabs(program)
    assert os.path.realpath(program) == os.path.realpath(Path(sys.executable).with_name("colonnade"))
    assert made.notes == []


def test_the_usual_state_directory_is_not_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("COLONNADE_STATE", raising=False)
    usual = replace(choices(tmp_path, "servers: {a: {command: x}}\n", view=""), state=open_state())
    assert own_entry(host("cursor"), usual).entry["args"] == ["serve", "--stdio", str(usual.file)]


def test_variables_that_a_host_withholds(tmp_path: Path) -> None:
    text = "servers: {a: {command: [x, '${env:B}'], env: {K: '${env:A}', D: '${env:D:-}'}}}\n"
    assert "env" not in command("cursor", text, tmp_path).entry
    assert command("codex", text, tmp_path).entry["env_vars"] == ["A", "B"]
    assert command("roo", text, tmp_path).entry["env"] == {"A": "${env:A}", "B": "${env:B}"}
    assert command("cursor", text, tmp_path).notes == []
    for name in ("claude-desktop", "lm-studio", "zed"):
        (note,) = command(name, text, tmp_path).notes
        assert "passes on few variables, perhaps not A, B: use ${file:PATH} or ${keyring:NAME}" in note
    (note,) = command("zed", text, tmp_path, added={"env": {"A": "a"}}).notes
    assert "perhaps not B:" in note
    assert command("zed", text, tmp_path, added={"env": {"A": "a", "B": "b"}}).notes == []


def test_variables_that_a_host_keeps_for_itself(tmp_path: Path) -> None:
    text = "servers: {a: {command: [x, '${env:GITHUB_TOKEN}', '${env:B}']}}\n"
    (note,) = command("copilot", text, tmp_path).notes
    assert "does not pass on GITHUB_TOKEN: use ${file:PATH}" in note
    assert command("copilot", text, tmp_path, added={"env": {"GITHUB_TOKEN": "x"}}).notes == []


def test_the_address_of_the_configuration(tmp_path: Path) -> None:
    made = url("cursor", "{address: '0.0.0.0:9000', path: /x, auth: {tokens: {laptop: '${env:LAPTOP}'}}}", tmp_path)
    assert made.entry["url"] == "http://127.0.0.1:9000/x"
    assert made.notes[0].startswith("it must run: colonnade serve ")
    assert url("cursor", "{address: '[::1]:9000'}", tmp_path).entry == {"url": "http://[::1]:9000/mcp"}
    with pytest.raises(CommandFailed, match="the port is another one at each start"):
        url("cursor", "{address: '127.0.0.1:0'}", tmp_path)
    with pytest.raises(CommandFailed, match="takes no URL"):
        url("claude-desktop", "{}", tmp_path)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", sorted(name for name, each in ENTRY_FORMS.items() if each.url is not None))
def test_no_token_is_written_unless_it_is_said(name: str, tmp_path: Path) -> None:
    """Hosts that fill in a variable get the one of the configuration; the others refuse."""
    if ENTRY_FORMS[name].reference:
        made = url(name, TOKEN, tmp_path)
        assert "LAPTOP" in str(made.entry)
        assert "laptop-token" not in str(made.entry)
        assert "needs the variable LAPTOP, with the token laptop" in made.notes[-1]
        assert made.secret == ""
    else:
        with pytest.raises(CommandFailed, match="--write-token"):
            url(name, TOKEN, tmp_path)
        made = url(name, TOKEN, tmp_path, write_token=True)
        assert made.entry["headers"] == {"Authorization": "Bearer laptop-token-123456"}
        assert made.secret == "laptop-token-123456"


def test_one_of_several_tokens(tmp_path: Path) -> None:
    assert "LAPTOP" in str(url("cursor", TWO, tmp_path).entry), "the token with the name of the host"
    with pytest.raises(CommandFailed, match="--token cursor or other"):
        url("roo", TWO, tmp_path)
    with pytest.raises(CommandFailed, match="--token cursor or other"):
        url("roo", TWO, tmp_path, "nobody")
    made = url("roo", TWO, tmp_path, "other")
    assert f"${{env:{TOKEN_VARIABLE}}}" in str(made.entry), "the variable holds only a part of the token"


def test_the_token_where_a_host_wants_the_variable_itself(tmp_path: Path) -> None:
    assert url("codex", TOKEN, tmp_path).entry["bearer_token_env_var"] == "LAPTOP"
    made = url("codex", TOKEN, tmp_path, write_token=True)
    assert made.entry["http_headers"] == {"Authorization": "Bearer laptop-token-123456"}
    assert "bearer_token_env_var" not in made.entry
    assert url("continue", TOKEN, tmp_path, write_token=True).entry["apiKey"] == "laptop-token-123456"


VIEWS = "callers: {laptop: {token: laptop}}\nviews: {mine: {callers: [laptop]}, all: {}}\n"


def test_a_view_stands_in_the_command_and_is_said_to_be_no_boundary(tmp_path: Path) -> None:
    made = command("cursor", f"servers: {{a: {{command: x}}}}\nlisten: {TOKEN}\n{VIEWS}", tmp_path, view="mine")
    arguments = made.entry["args"]
    assert isinstance(arguments, list)
    assert arguments[3:5] == ["--view", "mine"]
    assert any("convenience" in each for each in made.notes)


def test_a_view_stands_in_the_url_if_the_token_reaches_it(tmp_path: Path) -> None:
    made = url("cursor", TOKEN, tmp_path, view="mine", more=VIEWS)
    assert made.entry["url"] == "http://127.0.0.1:8808/mcp/@mine"
    with pytest.raises(CommandFailed, match="the token laptop does not reach the view all"):
        url("cursor", TOKEN, tmp_path, view="all", more=VIEWS)
    with pytest.raises(CommandFailed, match="clients without a token do not reach the view none"):
        url("cursor", "{}", tmp_path, view="none")
    made = url("cursor", "{}", tmp_path, view="all", more="views: {all: {}}\n")
    assert made.entry["url"] == "http://127.0.0.1:8808/mcp/@all"


# The difference


def shown(root: dict[str, object], more: str = "") -> str:
    text = json.dumps(root, indent=1)
    return "\n".join(difference("f.json", "", text, [root], more))


SECRETS: list[dict[str, object]] = [
    {"env": {"A": "S3CRET"}},
    {"env": {"DEEP": {"x": ["S3CRET"]}}},
    {"requestOptions": {"headers": {"X": "S3CRET"}}},
    {"http_headers": {"X": "S3CRET é"}},
    {"apiKey": "S3CRET"},
    {"oauth": {"client_secret": "S3CRET"}},
    {"args": ["x", "--token", "S3CRET"]},
    {"args": ["--api-key=S3CRET"]},
    {"args": ["-e", "GH_TOKEN=S3CRET"]},
    {"url": "https://x.example/mcp?k=S3CRET"},
    {"url": "https://me:S3CRET@x.example/mcp"},
    {"args": ["sk-S3CRET4b5c6d7e8f9g0h1i2j"]},
    {"env": {"A": "S3C"}},
    {"args": ["postgresql://bob:S3CRET@localhost/db"]},
    {"args": ["--header", "Authorization: Bearer S3CRET"]},
    {"args": ["-H", "X-Api-Key: S3CRET"]},
    {"env": {"HEADERS": '{"Authorization": "Bearer S3CRET"}'}},
]


@pytest.mark.parametrize("root", SECRETS, ids=json.dumps)
def test_secrets_are_hidden(root: dict[str, object]) -> None:
    text = shown({"mcpServers": {"a": root}})
    assert "***" in text
    assert "S3C" not in text


def test_what_is_no_secret_stays() -> None:
    root: dict[str, object] = {
        "command": "/opt/a-long-folder-0123456789/colonnade",
        "args": ["serve", "--stdio", "/home/kim/0123456789abcdef0123/c.yaml"],
        "url": "https://x.example/mcp",
        "bearer_token_env_var": "TOKEN",
        "headers": {"Authorization": "Bearer ${env:TOKEN}", "X": "{env:TOKEN}", "Y": "$TOKEN"},
    }
    assert "***" not in shown(root)


def test_a_short_value_hides_no_parts_of_words() -> None:
    text = shown({"env": {"DEBUG": "1", "ON": "so"}, "also": ["1st", "1", "also"]})
    assert '"also"' in text
    assert '"1st"' in text
    assert '"DEBUG": "***"' in text


def test_only_secrets_are_hidden_beside_values_that_may_be_some() -> None:
    """The value of a variable is hidden where it stands, and in no word or path that happens to hold it."""
    env = {
        "NODE_ENV": "production",
        "HOME_DIR": "/home/kim",
        "API": "https://api.example.com",
        "PIN": 1234,
        "OFF": True,
    }
    text = shown(
        {
            "env": env,
            "args": ["--mode=production", "/home/kim/notes", "production-1", "1234"],
            "url": "https://api.example.com/mcp",
        }
    )
    assert text.count("***") == 5  # the four values that are texts or numbers, and the argument that equals one
    for kept in ("--mode=production", "/home/kim/notes", "production-1", "https://api.example.com/mcp", "true"):
        assert kept in text


def test_a_secret_of_several_lines_hides_no_other_line() -> None:
    key = '{\n  "type": "service_account",\n  "private_key": "S3CRET-key-1"\n}'
    block = "".join(f"    {line}\n" for line in key.splitlines())
    after = f"servers:\n  a:\n   env:\n    KEY: |\n{block}other: {{\n}}\nlist: [\n]\ntype: service_account\n"
    text = "\n".join(difference("f.yaml", "", after, [{"env": {"KEY": key + "\n"}}]))
    assert "S3CRET" not in text
    assert '"private_key"' not in text
    assert [line for line in text.splitlines() if line.startswith("+") and "***" not in line] == [
        *("+++ f.yaml", "+servers:", "+  a:", "+   env:", "+    KEY: |", "+    {", "+    }"),
        *("+other: {", "+}", "+list: [", "+]", "+type: service_account"),
    ]


@pytest.mark.parametrize(
    "line", ["PIN: 123", "  - 123", "{PIN: 123, b: c}", "{b: [x, 123]}", "PIN = 123", "PIN: 123 # mine", "PIN: '123'"]
)
def test_a_short_value_is_hidden_as_a_whole(line: str) -> None:
    text = difference("f", "", f"{line}\n", [{"env": {"PIN": "123"}}])[-1]
    assert text.count("***") == 1 or line.startswith("{b")
    assert "123" not in text or line.startswith("{b")


def test_the_token_that_is_written_is_hidden_and_nothing_moves_the_cursor() -> None:
    assert "abc" not in shown({"x": "Bearer abcdefgh"}, "abcdefgh")
    assert difference("f", "", "\x1b[2Ja\u202e\n", [])[-1] == "+⟨U+001B⟩[2Ja⟨U+202E⟩"


def test_values_of_yaml_without_quotes() -> None:
    lines = difference("f", "", "env:\n  PIN: 123\n  port: 1234\n", [{"env": {"PIN": "123"}, "port": 1234}])
    assert lines[-2:] == ["+  PIN: ***", "+  port: 1234"]


def test_a_line_that_holds_everything_shows_its_changes_alone() -> None:
    root = {
        "history": ["buy a present", "--pw=bare"] * 50,
        "mcpServers": {"a": {"command": "x", "args": ["--pw=hunter2", "y"]}, "b": {"command": "z"}},
        "oauthAccount": {"refresh": "hunter2-refresh"},
    }
    after = {**root, "mcpServers": {"b": {"command": "z"}, "colonnade": {"command": "/c"}}}
    lines = difference("f.json", json.dumps(root), json.dumps(after), [root, after])
    text = "\n".join(lines)
    assert '+"command": "/c"}' in text
    assert '"--pw=***"' in text
    assert "present" not in text
    assert "hunter2" not in text
    assert len(lines) < 20


def test_secrets_under_an_account_are_hidden_beside_a_change() -> None:
    text = "\n".join(
        difference(
            "f", '{\n"oauthAccount": {"refresh": "abcdefg"}\n}', "{\n}", [{"oauthAccount": {"refresh": "abcdefg"}}]
        )
    )
    assert "refresh" in text
    assert "abcdefg" not in text


def test_lines_have_their_numbers_in_the_file() -> None:
    before = "".join(f"line {n}\n" for n in range(1, 101))
    lines = difference("f", before, before.replace("line 50\n", "another\n"), [])
    assert lines[2] == "@@ -47,7 +47,7 @@"
    assert len(lines) == 11


@pytest.mark.slow
@pytest.mark.parametrize("indent", [None, 1])
def test_a_large_file_costs_little(indent: int | None) -> None:
    """A host keeps its history in the same file."""
    root = {
        "history": [{"text": "x" * 5000, "id": f"id{n:020}", "odd": "a-" * 50} for n in range(1000)],
        "s": {"a": "1"},
    }
    before, after = (json.dumps({**root, "s": {key: "1"}}, indent=indent) for key in ("a", "b"))
    assert_costs_less(lambda: difference("f", before, after, [root, root]), 3)
    letters = "a" * 1_000_000
    assert_costs_less(lambda: difference("f", "", "x", [{"x": [letters, "-" * 1_000_000]}]), 1)
