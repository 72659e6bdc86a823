"""The commands `init`, `add` and `remove`, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

import config
from config import HttpServer, StdioServer, Trust, Verdict
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, WRONG
from host.cli.servers import Served
from tests.kit.keyring import MemoryKeyring, memory

__all__ = ["memory"]

GITHUB = "ghp_" + "a1B2" * 9


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: MemoryKeyring) -> Path:
    """A current folder without a configuration, and a machine without a keyring."""
    memory.is_locked = True
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def loaded(**environ: str) -> config.Config:
    return config.load("colonnade.yaml", environ)


def test_the_first_file_is_right_and_so_are_its_examples(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == DONE
    assert "colonnade add NAME" in capsys.readouterr().out
    assert run(["check"]) == DONE
    file = work / "colonnade.yaml"
    signs = ("  # git:", "  #   ", "  # tracker:", "# listen:", "#   address", "# defaults:", "#   consent")
    lines = file.read_text().split("\n")
    file.write_text("\n".join(line.replace("# ", "", 1) if line.startswith(signs) else line for line in lines))
    made = loaded(TRACKER_TOKEN="t")
    assert list(made.servers) == ["time", "git", "tracker"]
    assert made.servers["tracker"].trust is Trust.UNTRUSTED
    assert made.servers["time"].consent.tools.default is Verdict.ASK
    assert {each.longest_name for each in made.servers.values()} == {48}


def test_init_leaves_a_file_alone_and_names_the_hosts_that_are_found(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "home" / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text("{}")
    assert run(["init", "mine.yaml"]) == DONE
    assert "adds those of Gemini CLI" in capsys.readouterr().out
    before = (work / "mine.yaml").read_bytes()
    assert run(["init", "mine.yaml"]) == WRONG
    assert "mine.yaml is there already" in capsys.readouterr().err
    assert (work / "mine.yaml").read_bytes() == before


def test_add_makes_a_file_and_adds_to_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["add", "time", "--", "uvx", "mcp-server-time", "--local-timezone=UTC"]) == DONE
    assert run(["add", "fs", "--cwd", "data", "--trust", "untrusted", "--ask", "--", "npx", "-y", "./x"]) == DONE
    assert run(["add", "here", "--cwd", "${client:folder}", "--", "npx", "-y", "./x"]) == DONE
    assert run(["add", "docs", "https://example.com/mcp", "--header", "X-Team: ${env:TEAM:-a}"]) == DONE
    made = loaded()
    assert list(made.servers) == ["time", "fs", "here", "docs"]
    assert made.servers["here"].takes_client_folder
    time, fs, docs = (made.servers[id] for id in ("time", "fs", "docs"))
    assert isinstance(time, StdioServer)
    assert [word.reveal() for word in time.command] == ["uvx", "mcp-server-time", "--local-timezone=UTC"]
    assert isinstance(fs, StdioServer)
    assert (fs.cwd, fs.trust, fs.consent.tools.default) == (work / "data", "untrusted", "ask")
    assert isinstance(docs, HttpServer)
    assert docs.headers["X-Team"].reveal() == "a"
    assert "Secrets" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "command", "ours"),
    [
        (["time", "npx", "-y", "pkg"], ["npx", "-y", "pkg"], "-y goes to npx"),
        (["-y", "time", "npx", "pkg", "--yes"], ["npx", "pkg", "--yes"], "--yes goes to npx"),
        (["time", "--cwd", "data", "npx", "-e", "A=b", "--cwd=x"], ["npx", "-e", "A=b", "--cwd=x"], "-e --cwd=x go to"),
        (["time", "-eA=b", "--trust=trusted", "npx", "-v", "pkg"], ["npx", "-v", "pkg"], ""),
        (["time", "--yes", "--", "npx", "-y", "--", "--yes"], ["npx", "-y", "--", "--yes"], ""),
    ],
)
def test_all_that_stands_after_the_program_is_its_own(
    arguments: list[str], command: list[str], ours: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["add", "--no-try", *arguments]) == DONE
    said = capsys.readouterr().err
    assert f"notice: {ours}" in said if ours else "notice" not in said
    server = loaded(A="b").servers["time"]
    assert isinstance(server, StdioServer)
    assert [word.reveal() for word in server.command] == command


def test_secrets_of_the_command_line_are_kept_elsewhere(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["add", "gh", "--env", f"TOKEN={GITHUB}", "-e", "HERE", "--", "npx", "--api-key", "abc"]) == DONE
    header = "Authorization: Bearer hunter2-hunter2"
    assert run(["add", "web", "https://example.com/mcp?key=hunter3", "-H", header]) == DONE
    text = (work / "colonnade.yaml").read_text()
    out = capsys.readouterr().out
    for secret in (GITHUB, "abc", "hunter2", "hunter3"):
        assert secret not in text + out
    assert "Secrets are kept in colonnade.secrets/: gh.api-key, gh.TOKEN." in out
    assert "The variable HERE is not set here" in out
    made = loaded(HERE="here")
    gh, web = made.servers["gh"], made.servers["web"]
    assert isinstance(gh, StdioServer)
    assert {name: value.reveal() for name, value in gh.env.items()} == {"TOKEN": GITHUB, "HERE": "here"}
    assert gh.command[-1].reveal() == "abc"
    assert isinstance(web, HttpServer)
    assert (web.url.reveal(), web.headers["Authorization"].reveal()) == (
        "https://example.com/mcp?key=hunter3",
        "Bearer hunter2-hunter2",
    )


def test_secrets_go_to_the_keyring_if_there_is_one(work: Path, memory: MemoryKeyring) -> None:
    memory.is_locked = False
    assert run(["add", "gh", "--env", "TOKEN=abc", "--", "npx"]) == DONE
    assert memory.kept == {("colonnade", "gh.TOKEN"): "abc"}
    assert sorted(each.name for each in work.iterdir()) == ["colonnade.yaml"]


def test_remove_leaves_the_rest_and_names_the_secrets(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["add", "time", "--", "uvx", "t"]) == DONE
    before = (work / "colonnade.yaml").read_bytes()
    assert run(["add", "gh", "--env", "TOKEN=abc", "--", "npx"]) == DONE
    capsys.readouterr()
    assert run(["remove", "gh"]) == DONE
    assert (work / "colonnade.yaml").read_bytes() == before
    out = capsys.readouterr().out
    assert "Its secrets are still there: ${file:colonnade.secrets/gh.TOKEN}." in out
    assert run(["remove", "time"]) == FAILED
    assert (work / "colonnade.yaml").read_bytes() == before


def test_add_names_the_connected_hosts_that_do_not_pass_a_variable_on(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COLONNADE_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert run(["add", "time", "--", "uvx", "t"]) == DONE
    assert "time is added, in a new file" in capsys.readouterr().out
    assert run(["connect", "zed", "cline", "cursor", "codex", "--yes"]) == DONE
    zed = next((tmp_path / "home").rglob("zed/settings.json"))
    zed.write_text(zed.read_text().replace('"args"', '"env": {"THERE": "t"}, "args"'))
    capsys.readouterr()
    assert run(["add", "gh", "-e", "THERE", "-e", "TOKEN", "--", "npx"]) == DONE
    said = capsys.readouterr().err
    assert said.count("notice:") == 3
    assert "Zed passes on few variables, perhaps not TOKEN: use ${file:PATH}" in said
    assert "Cline passes on variables by name, not yet THERE, TOKEN: colonnade connect cline" in said
    assert "Codex passes on variables by name" in said
    for name in ("THERE", "TOKEN"):
        monkeypatch.setenv(name, "t")
    assert run(["connect", "cline", "--yes"]) == DONE
    capsys.readouterr()
    assert run(["add", "other", "-e", "TOKEN", "--", "x"]) == DONE
    assert "Cline" not in capsys.readouterr().err
    assert run(["add", "a", "--config", "other.yaml", "--", "x"]) == DONE
    assert "Cursor serves ~/../project/colonnade.yaml, and not this file" in capsys.readouterr().err.replace(
        str(work), "~/../project"
    )


def test_add_says_by_what_the_server_is_served(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for served, said in (
        (Served(), "It is served by colonnade serve, or as soon as a desktop host starts that is connected\n"),
        (Served(True, frozenset({"time"})), "It is served after: colonnade reload\n"),
        (Served(True, problem="it refused"), "It is served after: colonnade reload\n"),
        (Served(True), "time is added, in a new file\n"),
    ):
        monkeypatch.setattr("host.cli.desktop.edit.offer_reload", lambda state, file, new, asks, served=served: served)
        assert run(["add", "time", "--", "uvx", "t"]) == DONE
        assert capsys.readouterr().out.endswith(said)
        (work / "colonnade.yaml").unlink()


def test_remove_names_the_host_out_of_whose_file_the_server_was_moved(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COLONNADE_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    cursor = tmp_path / "home" / ".cursor" / "mcp.json"
    cursor.parent.mkdir(parents=True)
    cursor.write_text('{"mcpServers": {"clock": {"command": "uvx", "args": ["t"]}}}')
    for name in ("time", "gh"):
        assert run(["add", name, "--", "uvx", name[0]]) == DONE
    assert run(["connect", "cursor", "--move", "--yes"]) == DONE
    assert run(["add", "third", "--", "x"]) == DONE
    assert run(["remove", "gh"]) == DONE
    assert "moved out" not in capsys.readouterr().err
    assert run(["remove", "time"]) == DONE
    said = "clock was moved out of ~/.cursor/mcp.json, and nothing serves it now: colonnade disconnect cursor puts it"
    assert said in capsys.readouterr().err


def test_the_users_file_is_changed_where_there_is_no_other(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "home" / ".config" / "colonnade" / "colonnade.yaml"
    users.parent.mkdir(parents=True)
    users.write_text("servers:\n  a: {command: x}\n")
    assert run(["add", "b", "--", "y"]) == DONE
    assert "~/.config/colonnade/colonnade.yaml: b is added\n" in capsys.readouterr().out
    assert not list(work.iterdir())
    assert run(["init"]) == DONE
    assert "In this folder it is used instead of ~/.config/colonnade/colonnade.yaml." in capsys.readouterr().out


def test_the_file_of_an_option_is_changed(work: Path) -> None:
    assert run(["add", "a", "--config", "other.yaml", "--", "x"]) == DONE
    assert run(["add", "b", "--config", "other.yaml", "--", "y"]) == DONE
    assert run(["remove", "a", "--config", "other.yaml"]) == DONE
    assert list(config.load("other.yaml", {}).servers) == ["b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["My Server", "--", "x"],
            "a server id is at most 20 lower-case letters and digits, with single dashes between",
        ),
        (["a", "https://h/mcp", "--env", "A=b"], "--env and --cwd are for a program; a URL takes --header."),
        (["a", "--header", "A: b", "--", "x"], "--header is for a URL; a program takes --env."),
        (["a", "--env", "A B=c", "--", "x"], "env"),
        (["a", "--", "~/x"], "a ~ is not expanded"),
        (["a", "--", "x", "${V}"], "${V} is not a known form; write ${env:V}"),
        (["a", "https://"], "expected a URL"),
        (["a", "ftp://h/mcp"], "begins with ftp://: expected http:// or https://, or a command after --"),
        (["a", "--", "HTTPS://h/mcp", "x"], "a URL stands alone"),
        (["a"], "Missing argument"),
        (["a", "npx", "-y", "--", "x"], "Write -- before the command, as in: colonnade add NAME -- npx -y x"),
    ],
)
def test_a_wrong_server_is_refused_and_nothing_written(
    work: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["add", *arguments]) == WRONG
    assert said in capsys.readouterr().err
    assert not list(work.iterdir())


def test_no_command_makes_a_file_through_a_link_to_nothing(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a repository may have it that was cloned."""
    profile = work.parent / "home" / ".profile"
    profile.parent.mkdir()
    (work / "colonnade.yaml").symlink_to(profile)
    for command in (["add", "time", "--", "uvx", "mcp-server-time"], ["remove", "time"], ["init"]):
        assert run(command) == WRONG
        assert "is a link out of the project" in (said := capsys.readouterr().err) or "is there already" in said
    (work / "colonnade.yaml").unlink()
    (work / "colonnade.yaml").symlink_to("missing.yaml")
    assert run(["add", "time", "--", "uvx", "mcp-server-time"]) == WRONG
    assert "is a link to missing.yaml, which is not there; make that yourself" in capsys.readouterr().err
    (work / "folder").symlink_to(profile.parent / "made")
    assert run(["init", "folder/colonnade.yaml"]) == WRONG
    assert list(profile.parent.iterdir()) == []


def test_a_projects_link_to_the_users_own_configuration_is_not_written_through(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = work.parent / "home" / ".config" / "colonnade" / "colonnade.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("servers: {a: {command: x}, b: {command: y}}\n")
    (work / "colonnade.yaml").symlink_to(own)
    before = own.read_bytes()
    for command in (["add", "time", "--", "uvx", "mcp-server-time"], ["remove", "a"]):
        assert run(command) == WRONG
        assert f"is a link out of the project {work}, to {own}" in capsys.readouterr().err
    assert own.read_bytes() == before
    assert run(["add", "time", "--config", str(own), "--", "uvx", "mcp-server-time"]) == DONE
