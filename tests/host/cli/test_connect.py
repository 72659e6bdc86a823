"""The commands `connect` and `disconnect`, in one process, on the files of a home of their own."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from config.edit import insert, values
from config.hosts import HOSTS, DesktopHost
from config.hosts.entry_form import ENTRY_FORMS
from config.hosts.started import started_by
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, WRONG

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


Answer = Callable[[str], None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Sit at a terminal and type."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    return lambda text: monkeypatch.setattr(sys, "stdin", Terminal(text))


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


def test_an_entry_that_was_renamed_is_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--yes"])
    gemini(home).write_text(renamed := gemini(home).read_text().replace('"colonnade":', '"gateway":'))
    assert run(["disconnect", "gemini"]) == DONE, "nothing is written, so nobody is asked"
    said = 'Gemini CLI may still start Colonnade: its entry "colonnade" was renamed to "gateway"'
    assert said in capsys.readouterr().out
    assert gemini(home).read_text() == renamed


def test_a_file_that_would_not_change_is_not_asked_about(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run(["connect", "gemini", "--yes"])
    capsys.readouterr()
    assert run(["connect", "gemini"]) == DONE
    assert "Nothing is to be done in this file." in capsys.readouterr().out


def test_a_person_is_asked(home: Home, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    answer("n\n")
    assert run(["connect", "gemini"]) == FAILED
    assert gemini(home).read_text() == FILE
    answer("y\n")
    assert run(["connect", "gemini"]) == DONE
    assert names(home)[0] == "colonnade"
    assert capsys.readouterr().out.count("Write this? [y/N]") == 2


def test_without_a_terminal_nothing_is_written_unasked(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "gemini"]) == WRONG
    assert "say --yes" in capsys.readouterr().err
    assert gemini(home).read_text() == FILE


def test_a_file_that_changed_before_the_answer_is_left(
    home: Home, answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_program(question: str) -> str:
        gemini(home).write_text('{"theirs": 1}')
        return "y"

    answer("")
    monkeypatch.setattr("builtins.input", other_program)
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
    assert "still starts words, clock by itself, which mcp.json does not have" in capsys.readouterr().err


def test_a_read_only_file_is_an_error_with_a_sentence(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    gemini(home).chmod(0o444)
    assert run(["connect", "gemini", "--yes"]) == FAILED
    assert "is read-only; make it writable" in capsys.readouterr().err


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
