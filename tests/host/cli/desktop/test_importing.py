"""The command `import`, in one process, on the files of a home of their own."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

import config
from config import Rule, StdioServer, ToolClaim
from config.desktop.desktop_file import MAX_SERVERS
from config.read import MAX_JSON_BYTES
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, WRONG
from tests.host.cli.conftest import TypedText
from tests.kit.keyring import MemoryKeyring, memory

__all__ = ["memory"]

GITHUB = "ghp_" + "a1B2" * 9
CURSOR = {
    "mcpServers": {
        "GitHub": {"command": "npx", "args": ["-y", "gh"], "env": {"TOKEN": GITHUB}},
        "odd": {"command": "x", "allowOnly": ["a"], "env": {"PASSWORD": "hunter2"}},
    }
}
CLINE = {
    "mcpServers": {
        "gh": {
            "command": "npx",
            "args": ["-y", "gh"],
            "env": {"TOKEN": GITHUB},
            "disabledTools": ["delete"],
            "autoApprove": ["get"],
        },
        "off": {"command": "off", "disabled": True},
    }
}
VSCODE = {
    "servers": {"web": {"type": "http", "url": "https://h/mcp", "headers": {"X-Key": "${input:my-key}"}}},
    "inputs": [{"id": "my-key", "type": "promptString", "description": "The key of the web", "password": True}],
}
Home = Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: MemoryKeyring) -> Home:
    """The user's folder with files of three hosts, an empty current folder, and a machine without a keyring."""
    memory.is_locked = True
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CLINE_MCP_SETTINGS_PATH"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path / ".cursor" / "mcp.json", CURSOR)
    write(tmp_path / ".cline" / "data" / "settings" / "cline_mcp_settings.json", CLINE)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, text: str, answer: str | None = None) -> None:
    """Sit at a terminal and type; `answer` is what is typed where nothing is shown."""
    monkeypatch.setattr(sys, "stdin", TypedText(text))
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: answer)


def loaded(name: str = "colonnade.yaml") -> config.Config:
    return config.load(name, {})


def test_files_are_shown_and_one_configuration_is_written(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "--yes"]) == DONE
    out, _ = capsys.readouterr()
    assert "Cursor: ~/.cursor/mcp.json" in out
    assert 'Cannot be used: its key "allowOnly" is not known here' in out
    assert "Tools: delete denied." in out
    assert "Asked about here: all calls but those of tools that only read, by approved definitions." in out
    made = loaded()
    assert list(made.servers) == ["github", "off"]
    github, off = made.servers["github"], made.servers["off"]
    assert isinstance(github, StdioServer)
    assert github.env["TOKEN"].reveal() == GITHUB
    assert (github.consent.tools.default, [rule.pattern for rule in github.consent.tools.deny]) == ("ask", ["delete"])
    assert github.consent.tools.allow == (Rule("*", claims=(ToolClaim.READ_ONLY,)),)
    assert off.disabled
    file = home / "project" / "colonnade.yaml"
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert '# From Cursor, ~/.cursor/mcp.json ("GitHub"); Cline,' in " ".join(text.split())
    assert "# odd:" in text
    for secret in (GITHUB, "hunter2"):
        assert secret not in text + out


def test_approvals_are_taken_over_only_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "cline", "--yes"]) == DONE
    out = capsys.readouterr().out
    assert "Calls of 1 tool are not asked about in Cline." in out
    remark = "--keep-approvals takes over"
    assert out.count(remark) == " ".join(Path("colonnade.yaml").read_text().split()).count(remark) == 1
    only_reading = Rule("*", claims=(ToolClaim.READ_ONLY,))
    assert loaded().servers["gh"].consent.tools.allow == (only_reading,)
    assert run(["import", "cline", "--yes", "--keep-approvals", "-o", "kept.yaml"]) == DONE
    consent = loaded("kept.yaml").servers["gh"].consent.tools
    assert (consent.default, consent.allow) == ("ask", (only_reading, Rule("get")))


def test_a_dry_run_writes_nothing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "--dry-run"]) == DONE
    out = capsys.readouterr().out
    assert '    env: {TOKEN: "${file:colonnade.secrets/github.TOKEN}"}' in out
    assert not list((home / "project").iterdir())


@pytest.mark.parametrize("options", [[], ["--yes"]])
def test_a_dry_run_refuses_what_would_be_refused(
    home: Home, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    file = home / "project" / "colonnade.yaml"
    file.write_text("servers: {}\n")
    for dry in (["--dry-run"], []):
        assert run(["import", *options, *dry]) == WRONG
        assert "colonnade.yaml is there already; --merge adds to it" in capsys.readouterr().err
    assert run(["import", "--merge", "--dry-run", *options]) == DONE
    assert "colonnade.yaml would be:" in capsys.readouterr().out
    assert file.read_text() == "servers: {}\n"


def test_nobody_is_asked_without_a_terminal(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import"]) == WRONG
    assert "confirm with --yes" in capsys.readouterr().err
    assert not list((home / "project").iterdir())


@pytest.mark.parametrize(("typed", "code"), [("y\n", DONE), ("\n", FAILED), ("", FAILED)])
def test_a_person_is_asked(home: Home, monkeypatch: pytest.MonkeyPatch, typed: str, code: int) -> None:
    at_a_terminal(monkeypatch, typed)
    assert run(["import"]) == code
    assert (home / "project" / "colonnade.yaml").exists() is (code == DONE)


def test_a_configuration_that_is_there_is_added_to_only_on_demand(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "project" / "colonnade.yaml"
    mine = "# mine\nservers:\n  # first\n  off: {command: mine}   # kept\n"
    file.write_text(mine)
    assert run(["import", "--yes"]) == WRONG
    assert "colonnade.yaml is there already; --merge adds to it" in capsys.readouterr().err
    assert file.read_text() == mine
    assert run(["import", "--yes", "--merge"]) == DONE
    text = file.read_text()
    assert [line for line in mine.splitlines() if line not in text.splitlines()] == []
    assert list(loaded().servers) == ["off", "github", "off-cline"]
    assert "  # odd:" in text
    capsys.readouterr()
    assert run(["import", "--yes", "--merge"]) == FAILED
    out, err = capsys.readouterr()
    assert "github is in colonnade.yaml already, as github; it is left as it is." in out
    assert "there is no server to import that is not there yet" in err
    assert file.read_text() == text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_comment_of_an_earlier_import_is_not_written_twice_and_gives_way_to_its_server(
    newline: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "project" / "colonnade.yaml"
    write(home / "project" / "mcp.json", VSCODE)
    assert run(["import", "mcp.json", "cline", "--yes"]) == DONE
    write(home / ".cursor" / "mcp.json", {"mcpServers": {"new": {"command": "new"}}})
    mine = "  # web:\n  #   # From me, with ~/project/mcp.json\n\n"
    text = file.read_text().replace("  gh:", f"{mine}  gh:").replace("\n", newline)
    file.write_text(text, newline="")
    assert run(["import", "mcp.json", "cursor", "--merge", "--yes"]) == DONE
    again = file.read_bytes().decode()
    assert again.count("# web:") == 2
    at_a_terminal(monkeypatch, "y\n", "hunter4")
    assert run(["import", "mcp.json", "--merge"]) == DONE
    assert list(loaded().servers)[-1] == "web"
    assert file.read_bytes().decode().count("# web:") == 1
    assert mine.replace("\n", newline) in file.read_bytes().decode()


def test_a_server_that_is_added_has_a_blank_line_before_it(home: Home) -> None:
    (home / "project" / "colonnade.yaml").write_text("servers:\n  mine: {command: mine}\n")
    assert run(["import", "cline", "--merge", "--yes"]) == DONE
    assert "\n  mine: {command: mine}\n\n  gh:\n" in (home / "project" / "colonnade.yaml").read_text()


def test_the_servers_of_a_connected_host_are_said_to_be_moved(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COLONNADE_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    write(home / ".cursor" / "mcp.json", {"mcpServers": {"p": {"command": "p"}}})
    assert run(["import", "cursor", "--yes"]) == DONE
    assert run(["connect", "cursor", "--move", "--yes"]) == DONE
    capsys.readouterr()
    assert run(["import", "cursor", "--yes", "--output", "other.yaml"]) == FAILED
    out, err = capsys.readouterr()
    assert "connected: it serves ~/project/colonnade.yaml; moved out of this file: 1 server" in out
    assert "there is no server to import that is not there yet" in err


def test_the_commands_that_connect_name_the_hosts(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    write(home / "project" / ".vscode" / "mcp.json", {"servers": {"v": {"command": "v"}}})
    write(home / "project" / "my file.json", {"servers": {"w": {"command": "w"}}, "inputs": []})
    assert run(["import", "cursor", "cline", "vscode", "my file.json", "--yes", "-o", "c.yaml"]) == DONE
    file = f"{home}/project/my file.json"
    assert capsys.readouterr().out.partition(" Next:\n")[2].splitlines() == [
        "  colonnade connect cursor cline --move --config c.yaml  # puts Colonnade in their place",
        "  colonnade connect vscode --move --project --config c.yaml  # puts Colonnade in their place",
        f"  colonnade connect vscode --move --file '{file}' --config c.yaml  # puts Colonnade in their place",
        f"  {'colonnade ask':<48}  # leave it open: you confirm here each call that is asked about",
    ]
    own = "~/.config/colonnade/colonnade.yaml"
    assert run(["import", "cursor", "--yes", "-o", str(Path(own).expanduser())]) == DONE
    assert "  colonnade connect cursor --move  # puts Colonnade in" in capsys.readouterr().out, (
        "commands find this file"
    )
    Path("colonnade.yaml").write_text("servers: {a: {command: a}}")
    assert run(["import", "cline", "--merge", "--yes", "-o", str(Path(own).expanduser())]) == DONE
    assert f"  colonnade connect cline --move --config {own}  # puts Col" in capsys.readouterr().out
    write(home / "project" / "plain.json", {"mcpServers": {"w": {"command": "w"}}})
    assert run(["import", "plain.json", "--yes", "-o", "d.yaml"]) == DONE
    assert "  colonnade serve d.yaml  # serves them\n" in capsys.readouterr().out


def test_an_input_is_asked_for_and_kept(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / "project" / "mcp.json", VSCODE)
    at_a_terminal(monkeypatch, "y\n", "hunter4")
    assert run(["import", "mcp.json"]) == DONE
    assert "hunter4" not in (home / "project" / "colonnade.yaml").read_text() + capsys.readouterr().out
    server: Any = loaded().servers["web"]
    assert server.headers["X-Key"].reveal() == "hunter4"
    assert server.consent.tools.default == "ask"  # the switches of VS Code stand in no file
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(["import", "mcp.json", "cline", "--merge", "--yes"]) == DONE
    assert "web is in colonnade.yaml already, as web" in capsys.readouterr().out
    assert list(loaded().servers) == ["web", "gh", "off"]


def test_a_dry_run_says_what_is_asked_for(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / "project" / "mcp.json", VSCODE)
    at_a_terminal(monkeypatch, "")
    assert run(["import", "mcp.json", "--dry-run"]) == DONE
    out = capsys.readouterr().out
    assert "Without --dry-run, the input my-key is asked for: The key of the web" in out
    assert 'headers: {X-Key: "${file:colonnade.secrets/input.my-key}"}' in out


def test_without_an_answer_the_server_is_a_comment(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / "project" / "mcp.json", VSCODE)
    with monkeypatch.context() as patch:
        at_a_terminal(patch, "y\n", "")
        assert run(["import", "mcp.json"]) == FAILED
        assert "no server can be used without its input, for which there was no answer" in capsys.readouterr().err
    assert run(["import", "mcp.json", "--yes"]) == FAILED
    assert "no server can be used without its input, which is asked for on a terminal" in capsys.readouterr().err
    assert run(["import", "mcp.json", "cline", "--yes"]) == DONE
    assert '  #   headers: {X-Key: "${env:MY_KEY}"}' in (home / "project" / "colonnade.yaml").read_text()
    assert list(loaded().servers) == ["gh", "off"]


def test_a_projects_file_that_its_host_has_not_approved_is_disabled(home: Home) -> None:
    write(home / "project" / ".cursor" / "mcp.json", {"mcpServers": {"p": {"command": "./p"}}})
    assert run(["import", "cursor", "--yes"]) == DONE
    server = loaded().servers["p"]
    assert isinstance(server, StdioServer)
    assert server.disabled
    assert (server.program.reveal(), server.cwd) == (str(home / "project" / "p"), home / "project")


def test_a_file_with_mistakes_does_not_keep_the_others(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".cursor" / "mcp.json").write_text("{")
    assert run(["import", "--yes"]) == DONE
    assert "cannot be read: this is not" in capsys.readouterr().out
    assert list(loaded().servers) == ["gh", "off"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["curser"], "'curser' is neither a file nor a host that is known; did you mean \"cursor\"?"),
        (["zed"], "no file of Zed is found here; name a FILE"),
    ],
)
def test_what_is_not_there_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", *arguments, "--yes"]) in (WRONG, FAILED)
    assert said in capsys.readouterr().err


def test_without_any_file_nothing_is_written(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".cursor" / "mcp.json").unlink()
    (home / ".cline" / "data" / "settings" / "cline_mcp_settings.json").unlink()
    assert run(["import", "--yes"]) == FAILED
    assert "no file of a desktop host is found here" in capsys.readouterr().err


def test_the_files_of_hosts_are_only_read(home: Home) -> None:
    before = (home / ".cursor" / "mcp.json").read_bytes()
    assert run(["import", "--yes"]) == DONE
    assert (home / ".cursor" / "mcp.json").read_bytes() == before


@pytest.mark.parametrize("exists", [False, True], ids=["to nothing", "to the user's own configuration"])
@pytest.mark.parametrize("options", [[], ["--merge"]], ids=["new", "merged"])
def test_a_projects_link_is_not_written_through(
    exists: bool, options: list[str], home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / "project" / ".mcp.json", {"mcpServers": {"theirs": {"command": "x"}}})
    own = home / ".config" / "colonnade" / "colonnade.yaml"
    if exists:
        own.parent.mkdir(parents=True)
        own.write_text("servers: {a: {command: x}}\n")
    (home / "project" / "colonnade.yaml").symlink_to(own)
    assert run(["import", "--yes", *options]) in (FAILED, WRONG)
    assert capsys.readouterr().err != ""
    assert own.read_text() == "servers: {a: {command: x}}\n" if exists else not own.parent.exists()
    assert not (home / "project" / "colonnade.secrets").exists()


def test_a_pipe_in_the_place_of_a_hosts_file_is_not_waited_for(home: Home) -> None:
    os.mkfifo(home / "project" / ".mcp.json")
    assert run(["import", "--dry-run"]) == DONE
    assert run(["import", "--dry-run", ".mcp.json"]) == WRONG


@pytest.mark.slow
def test_a_large_file_is_refused_with_its_limit(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "project" / "mcp.json"
    file.write_text('{"mcpServers": {}, "rest": "' + "x" * MAX_JSON_BYTES + '"}')
    assert run(["import", "--dry-run", "mcp.json"]) == FAILED
    assert "the file cannot be read: larger than 32 MiB" in "".join(capsys.readouterr())
    write(file, {"mcpServers": {f"s{number}": {"command": "x"} for number in range(MAX_SERVERS + 1)}})
    assert run(["import", "--dry-run", "mcp.json"]) == FAILED
    assert "there are more than 1000 servers" in "".join(capsys.readouterr())


def test_variables_that_stay_references_are_named(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The home of the user is one that every server has."""
    monkeypatch.setenv("IMPORTED_KEY", "k")
    env = {"KEY": "${IMPORTED_KEY}", "LEVEL": "${IMPORTED_LEVEL:-info}", "AT": "${HOME}/x"}
    write(home / "project" / ".mcp.json", {"mcpServers": {"p": {"command": "p", "env": env}, "q": {"command": "q"}}})
    assert run(["import", ".mcp.json", "--dry-run"]) == DONE
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if "from the client" in line]
    assert said == [
        "It gets IMPORTED_KEY, IMPORTED_LEVEL from the client that starts Colonnade. Write ${keyring:NAME} or "
        "${file:PATH} instead where a client may lack it."
    ]


def test_inputs_are_asked_for_before_the_question_whether_to_write(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "mcp.json", VSCODE)
    asked: list[str] = []
    at_a_terminal(monkeypatch, "")

    def getpass(prompt: str, stream: object) -> str:
        asked.append(prompt)
        return "k3y"

    monkeypatch.setattr("getpass.getpass", getpass)

    def is_confirmed(question: str) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("host.cli.desktop.importing.is_confirmed", is_confirmed)
    assert run(["import", str(home / "mcp.json")]) == FAILED
    assert asked == ["The key of the web: ", "Write 1 server to colonnade.yaml?"]
    assert not list((home / "project").iterdir()), "a no keeps no secret either"


def test_a_server_that_is_added_to_a_file_has_the_answer_where_the_files_default_says_something_else(
    home: Home,
) -> None:
    for default, written in (("careful", "    consent: read-only\n"), ("read-only", "")):
        file = home / "project" / "colonnade.yaml"
        file.write_text(f"defaults: {{consent: {default}}}\nservers:\n  old: {{command: old}}\n")
        assert run(["import", "cursor", "--merge", "--yes"]) == DONE
        assert ("consent: read-only" in file.read_text().partition("servers:")[2]) is bool(written)
        consent = loaded().servers["github"].consent.tools
        assert consent.allow == (Rule("*", claims=(ToolClaim.READ_ONLY,)),)


def test_defaults_of_the_file_make_no_server_wider_than_its_host(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("colonnade.yaml")
    path.write_text(
        "defaults: {trust: trusted, consent: {tools: {deny: [wipe]}, resources: deny}}\nservers:\n  a: {command: a}\n"
    )
    assert run(["import", "cline", "--merge", "--yes", "--no-try"]) == DONE
    gh = config.load(path, {}, in_background=True).servers["gh"]
    assert gh.trust == "standard"
    assert {rule.pattern for rule in gh.consent.tools.deny} == {"delete", "wipe"}
    assert gh.consent.resources.default == "deny"
    before = path.read_bytes()
    assert run(["import", "cline", "--merge", "--yes", "--no-try"]) == FAILED  # they are there
    assert path.read_bytes() == before
    assert run(["add", "b", "--ask", "--no-try", "--", "b"]) == DONE
    asked = config.load(path, {}, in_background=True).servers["b"].consent
    assert (asked.tools.default, asked.resources.default) == ("ask", "deny")
    assert [rule.pattern for rule in asked.tools.deny] == ["wipe"]
