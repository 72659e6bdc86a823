"""Whom the commands ask before servers are tried, and what becomes of those that fail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from config import Channel, Consent, KindConsent, Notice, PromptConsent, Rule, ToolClaim, UriConsent, Verdict, load
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED
from host.policy.rows import DefinitionRow
from host.trial import Trial
from tests.host.cli.conftest import Terminal, Trials, Types
from tests.kit.keyring import MemoryKeyring, memory

__all__ = ["memory"]

READY = Trial("clock", offers="2 tools")
FAILS = Trial("lost", problem='the program "uvxx" was not found on PATH: install it', has_failed=True)
ASKS_FOR_LOGIN = Trial("web", problem="log in: colonnade login web")
CURSOR = {
    "mcpServers": {
        "clock": {"command": "clock", "args": ["--zone", "UTC"]},
        "lost": {"command": "uvxx"},
        "off": {"command": "off", "disabled": True},
    }
}
CONSENTS = {
    "read-only": Consent(
        tools=KindConsent(allow=(Rule("*", claims=(ToolClaim.READ_ONLY,)),), default=Verdict.ASK),
        resources=UriConsent(default=Verdict.ALLOW),
        prompts=PromptConsent(default=Verdict.ALLOW),
    ),
    "careful": Consent(
        tools=KindConsent(default=Verdict.ASK),
        resources=UriConsent(default=Verdict.ALLOW),
        prompts=PromptConsent(default=Verdict.ALLOW),
    ),
}
PROJECT = {"mcpServers": {"theirs": {"command": "theirs"}}}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: MemoryKeyring) -> Path:
    """A project with a server that no host was allowed to start, in the home of a person who uses Cursor."""
    memory.is_locked = True
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "COLONNADE_STATE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "project"
    for file, servers in ((tmp_path, CURSOR), (folder, PROJECT)):
        (file / ".cursor").mkdir(parents=True)
        (file / ".cursor" / "mcp.json").write_text(json.dumps(servers))
    monkeypatch.chdir(folder)
    return folder


def written() -> list[str]:
    file = Path("colonnade.yaml")
    return list(load(file, {}, in_background=True).servers) if file.exists() else []


ADD = ["add", "clock", "--", "clock", "--key", "k3y"]


def test_a_server_is_started_only_after_a_yes_that_names_its_program(
    trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(READY)
    types("n\n")
    assert run(ADD) == DONE
    said = capsys.readouterr().out
    assert "  clock                starts clock --key" in said
    assert "k3y" not in said
    assert (trials.tried, written()) == ([], ["clock"])
    assert run(["add", "lost", "uvxx"]) == DONE, "the end of the input is no"


def test_what_is_ready_is_said_and_written(trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    trials.expect(READY)
    types("y\n")
    assert run(ADD) == DONE
    assert "  clock                2 tools\n" in capsys.readouterr().out
    assert (trials.tried, written()) == (["clock"], ["clock"])


@pytest.mark.parametrize(("answer", "code", "expected"), [("y", DONE, ["lost"]), ("n", FAILED, [])])
def test_what_fails_is_added_only_if_the_person_wants_it(
    answer: str, code: int, expected: list[str], trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(FAILS)
    types(f"y\n{answer}\n")
    assert run(["add", "lost", "--", "uvxx"]) == code
    assert '"uvxx" was not found on PATH: install it' in capsys.readouterr().out
    assert written() == expected


def test_with_yes_nobody_is_asked_and_what_fails_is_added_and_named(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(FAILS)
    assert run(["add", "lost", "--yes", "--", "uvxx"]) == DONE
    assert "Added all the same: lost." in capsys.readouterr().out
    assert (trials.tried, written()) == (["lost"], ["lost"])


def test_a_login_that_is_needed_is_no_failure(trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    trials.expect(ASKS_FOR_LOGIN)
    types("y\n")
    assert run(["add", "web", "https://example.com/mcp?key=k3y"]) == DONE
    said = capsys.readouterr().out
    assert "  web                  connects to https://example.com/mcp?key=" in said
    assert "k3y" not in said
    assert "colonnade login web" in said
    assert written() == ["web"]


def test_where_nobody_can_be_asked_nothing_is_started(trials: Trials, capsys: pytest.CaptureFixture[str]) -> None:
    trials.expect(READY)
    assert run(ADD) == DONE
    assert "Not tried, since nobody can be asked here: --yes" in capsys.readouterr().out
    assert run(["add", "time", "--yes", "--no-try", "--", "time"]) == DONE
    assert (trials.tried, written()) == ([], ["clock", "time"])


def test_a_server_of_folders_is_tried_in_this_one(
    work: Path, trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(READY)
    types("y\n")
    assert run(["add", "clock", "--cwd", "${client:folder}", "--", "clock"]) == DONE
    assert f"  clock                starts clock in {work}\n" in capsys.readouterr().out


def test_a_file_with_a_mistake_is_not_tried(
    work: Path, trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(READY)
    (work / "colonnade.yaml").write_text("servers:\n  a: {command: a, trust: much}\n")
    types("y\n")
    assert run(ADD) == DONE
    assert "Not tried, since the file has a mistake: " in capsys.readouterr().out
    assert trials.tried == []


def test_a_missing_variable_stops_its_server_alone(trials: Trials) -> None:
    trials.expect(READY, Trial("keyed", problem="the environment variable KEY is not set", has_failed=True))
    assert run(["add", "keyed", "--yes", "--env", "KEY", "--", "keyed"]) == DONE
    assert run([*ADD[:2], "--yes", *ADD[2:]]) == DONE
    assert trials.tried == ["keyed", "clock"]


def test_an_import_tries_what_may_start_and_leaves_out_what_fails_unless_it_is_wanted(
    trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(READY, FAILS, *(Trial(id, offers="no entries") for id in ("off", "theirs")))
    types("y\ny\nn\n")
    assert run(["import"]) == DONE
    said = capsys.readouterr().out
    assert "  clock                starts clock --zone UTC\n" in said
    assert "colonnade.yaml: 3 servers" in said
    assert trials.tried == ["clock", "lost"]
    assert set(written()) == {"clock", "off", "theirs"}


def test_an_import_with_yes_writes_all(trials: Trials, capsys: pytest.CaptureFixture[str]) -> None:
    trials.expect(READY, FAILS)
    assert run(["import", "--yes"]) == DONE
    assert "Added all the same: lost." in capsys.readouterr().out
    assert set(written()) == {"clock", "lost", "off", "theirs"}


def test_an_import_of_which_nothing_is_wanted_writes_nothing(trials: Trials, types: Types, work: Path) -> None:
    (work / "mcp.json").write_text(json.dumps({"mcpServers": {"lost": {"command": "uvxx"}}}))
    trials.expect(FAILS)
    types("y\ny\nn\n")
    assert run(["import", "mcp.json"]) == FAILED
    assert written() == []


def offers(id: str) -> Trial:
    row: DefinitionRow = {
        "server": id, "kind": "tool", "name": "get", "standing": "approved", "fingerprint": "sha256:0",
        "by": "first sight", "counts": False, "claims": ["read-only"], "verdict": "ask", "rule": "", "denied": False,
        "description": "Get it", "text": "{WHOLE}", "problem": "",
    }  # fmt: skip
    return Trial(id, offers="1 tool", definitions=(row,))


@pytest.fixture
def approved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers whose definitions were approved."""
    found: list[str] = []
    monkeypatch.setattr("host.cli.approving.approve_offers", lambda file, offers, state: found.extend(offers))
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("typed", "consent", "is_approved"),
    [
        ("1\nn\n", "read-only", True),
        ("\nn\n", "read-only", True),
        ("s\nwhat\n2\nn\n", "careful", True),
        ("3\nn\n", None, True),
        ("", "read-only", False),
    ],
)
def test_the_answer_to_what_is_asked_about_approves_what_was_shown(
    typed: str,
    consent: str | None,
    is_approved: bool,
    work: Path,
    trials: Trials,
    types: Types,
    approved: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    windsurf = work.parent / ".codeium" / "windsurf" / "mcp_config.json"
    windsurf.parent.mkdir(parents=True)
    windsurf.write_text(json.dumps({"mcpServers": {"clock": {"command": "clock", "disabledTools": ["wipe"]}}}))
    trials.expect(offers("clock"))
    types(f"y\ny\n{typed}")
    assert run(["import", "windsurf"]) == DONE
    said = capsys.readouterr().out
    assert "    get  (only reads)\n        Get it\n" in said
    assert ("{WHOLE}" in said) is typed.startswith("s")
    assert said.count("  2  all\n") == 1 + typed.startswith("s"), "what the answers mean is said again"
    assert approved == (["clock"] if is_approved else [])
    assert ("colonnade definitions approve clock" in said) is not is_approved
    made = load("colonnade.yaml", {})
    default = made.defaults.consent
    assert default == (Consent() if consent is None else CONSENTS[consent])
    tools = made.servers["clock"].consent.tools
    assert [rule.pattern for rule in tools.deny] == ["wipe"]
    assert (tools.default, tools.allow) == (default.tools.default, default.tools.allow)


def test_what_is_typed_during_the_trial_answers_no_later_question(
    work: Path, trials: Trials, terminal: Terminal, approved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enter would be the recommended answer, and approve what nobody has seen."""
    (work / "mcp.json").write_text(json.dumps({"mcpServers": {"clock": {"command": "clock"}}}))
    trials.expect(offers("clock"))
    try_servers = trials.try_servers

    async def try_and_type(*given: Any) -> None:
        await try_servers(*given)
        os.write(terminal.ours, b"\n\ny\ny\n")

    monkeypatch.setattr("host.trial.try_servers", try_and_type)
    answers = {r"(?:Try it now|yaml)\? \[y/N\] ": "y", r" \[1\]: ": "2", r"(?:confirmations|is open)\? \[y/N\] ": "n"}
    terminal.seat(answers)
    assert run(["import", "mcp.json"]) == DONE
    made = load("colonnade.yaml", {}, in_background=True)
    assert made.defaults.consent == CONSENTS["careful"]
    assert (made.ask.answers, approved) == ((Channel.CONSOLE, Channel.TERMINAL), ["clock"])


def test_no_question_at_all_is_offered_only_where_files_show_what_is_off(
    trials: Trials, types: Types, approved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(offers("clock"))
    types("y\ny\n3\n2\nn\n")
    assert run(["import"]) == DONE
    said = capsys.readouterr().out
    assert "No file shows which tools are switched off in Cursor, so one of these is needed." in said
    assert "Answer 1, 2 or s" in said
    assert load("colonnade.yaml", {}, in_background=True).defaults.consent == CONSENTS["careful"]
    assert approved == ["clock"]


@pytest.mark.parametrize("keeps", [False, True])
def test_what_no_answer_changes_is_said(
    keeps: bool, work: Path, trials: Trials, types: Types, approved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "mcp.json").write_text(json.dumps({"mcpServers": {"clock": {"command": "clock", "autoApprove": ["get"]}}}))
    trials.expect(offers("clock"))
    types("y\ny\n2\nn\n")
    assert run(["import", "mcp.json", *(["--keep-approvals"] if keeps else [])]) == DONE
    assert ("Whatever you answer, not asked about is what --keep-approvals" in capsys.readouterr().out) is keeps


@pytest.mark.parametrize("approves", [False, True])
def test_without_a_person_the_recommended_rule_is_taken_and_nothing_approved_unless_asked_for(
    approves: bool, trials: Trials, approved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(offers("clock"))
    assert run(["import", "--yes", *(["--approve"] if approves else [])]) == DONE
    said = capsys.readouterr().out
    assert "Asked about here: all calls but those of tools that only read" in said
    assert load("colonnade.yaml", {}, in_background=True).defaults.consent == CONSENTS["read-only"]
    assert approved == (["clock"] if approves else [])


@pytest.mark.parametrize(
    ("options", "outcomes", "said"),
    [
        (["--no-try"], [], "Nothing is approved; with --no-try, no server was tried. Once they run: colonnade"),
        (
            [],
            [FAILS, replace(FAILS, server="clock")],
            "Nothing is approved; no trial showed what they offer. Once they",
        ),
        ([], [FAILS], "Not approved: lost; no trial showed what they offer. Once they run: colonnade definitions"),
    ],
)
def test_what_is_not_approved_though_it_was_asked_for_is_said_with_the_reason(
    options: list[str],
    outcomes: list[Trial],
    said: str,
    trials: Trials,
    approved: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    trials.expect(offers("clock"), *outcomes)
    assert run(["import", "--yes", "--approve", *options]) == DONE
    assert said in capsys.readouterr().out
    assert approved == (["clock"] if said.startswith("Not approved") else [])


@pytest.mark.parametrize(("typed", "expected"), [("y\ny\n", ["clock"]), ("y\nn\n", [])])
def test_what_an_added_server_offers_is_shown_and_approved(
    typed: str,
    expected: list[str],
    trials: Trials,
    types: Types,
    approved: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    trials.expect(offers("clock"))
    types(typed)
    assert run(ADD) == DONE
    assert "    get  (only reads)\n" in capsys.readouterr().out
    assert approved == expected


def test_an_added_server_is_approved_without_a_person_only_on_demand(
    trials: Trials, approved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(offers("clock"))
    assert run(["add", "clock", "--yes", "--", "clock"]) == DONE
    assert approved == []
    assert run(["remove", "clock"]) == FAILED  # it is the only one
    assert run(["add", "other", "--yes", "--no-try", "--", "other"]) == DONE
    assert run(["remove", "clock"]) == DONE
    capsys.readouterr()
    assert run(["add", "clock", "--yes", "--approve", "--", "clock"]) == DONE
    assert approved == ["clock"]
    assert "    get  (only reads)\n        Get it\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["import", "init"])
def test_forms_of_hosts_answer_and_a_browser_opens_only_if_the_person_wants_it(
    command: str, trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    before = "y\n1\n" if command == "import" else ""  # nothing is tried: their lists are known
    for forms, browser in (("y", "y"), ("y", "n"), ("n", "y"), ("n", "n")):
        types(f"{before}{forms}\n{browser}\n")
        assert run([command]) == DONE
        assert "Their hooks, and modes that approve by\nthemselves, answer such forms" in capsys.readouterr().out
        ask = load("colonnade.yaml", {}, in_background=True).ask
        assert (Channel.CLIENT in ask.answers) is (forms == "y")
        assert ask.notify == (Notice(opens_page=browser == "y"),)
        Path("colonnade.yaml").unlink()


def test_a_dry_run_starts_nothing(trials: Trials) -> None:
    trials.expect(READY, FAILS)
    assert run(["import", "--dry-run", "--yes"]) == DONE
    assert trials.tried == []


@pytest.mark.parametrize(("answer", "code", "expected"), [("y", DONE, ["time"]), ("n", FAILED, [])])
def test_the_server_of_the_first_file_is_tried(
    answer: str, code: int, expected: list[str], trials: Trials, types: Types
) -> None:
    trials.expect(Trial("time", problem="uvx was not found", has_failed=True))
    types(f"y\n{answer}\n")
    assert run(["init"]) == code
    assert (trials.tried, written()) == (["time"], expected)


def test_connect_tries_what_never_ran(trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "--yes", "--no-try"]) == DONE
    trials.expect(READY, FAILS)
    assert run(["connect", "cursor", "--dry-run"]) == DONE
    assert run(["connect", "cursor", "--yes", "--no-try"]) == DONE
    assert trials.tried == []
    types("y\ny\n")
    assert run(["connect", "cursor", "--move"]) == DONE
    assert trials.tried == ["clock", "lost"]
    said = capsys.readouterr().out
    assert "A host goes on trying to start lost." in said
    assert said.index("2 tools") < said.rindex("Cursor is connected")


def test_all_that_starts_is_shown(work: Path, trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "colonnade.yaml").write_text(
        """servers:
  apart: {command: node, args: [a b.js, --token, k3y]}
  text: {command: node b.js}
  web: {url: "https://example.com/mcp", headers_helper: [sh, -c, date, --token, k3y]}
"""
    )
    trials.expect(*(Trial(id, offers="1 tool") for id in ("apart", "text", "web")))
    types("n\n")
    run(["connect", "cursor"])
    said = capsys.readouterr().out
    assert "  apart                starts node 'a b.js' --token '***'\n" in said
    assert "  text                 starts node b.js\n" in said
    assert "  web                  connects to https://example.com/mcp, with headers from sh -c date" in said
    assert "k3y" not in said
    assert trials.tried == []


def test_servers_of_a_project_that_no_host_may_start_are_not_tried(work: Path, trials: Trials) -> None:
    (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"new": {"command": "new"}}}))
    trials.expect(Trial("new", offers="1 tool"))
    assert run(["connect", "cursor", "--config", ".mcp.json", "--yes"]) == DONE
    assert trials.tried == []


# What is known of published servers

MEMORY = "@modelcontextprotocol/server-memory"
ADD_MEMORY = ["add", "notes", "--", "npx", "-y", MEMORY]
DIES = Trial("db", problem="it exited: 'Server' object has no attribute 'list_tools'", has_failed=True)


def limit_of(id: str) -> int | None:
    return load("colonnade.yaml", {}, in_background=True).servers[id].limits.concurrent


@pytest.mark.parametrize(("answers", "limit"), [("y\nn\n", 1), ("n\nn\n", None), ("", None)])
def test_a_known_line_is_shown_and_written_if_the_person_wants_it(
    answers: str, limit: int | None, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    types(answers)
    assert run(ADD_MEMORY) == DONE
    said = capsys.readouterr().out
    assert "write limits: {concurrent: 1} (https://github.com/" in said
    assert ("Written for notes: limits: {concurrent: 1}" in said) == (limit == 1)
    assert limit_of("notes") == limit


def test_a_known_line_is_written_with_yes_and_without_a_person_only_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ADD_MEMORY[:2], "--yes", "--no-try", *ADD_MEMORY[2:]]) == DONE
    assert limit_of("notes") == 1
    assert run(["add", "more", "--", "npx", MEMORY]) == DONE
    assert "write limits: {concurrent: 1}" in capsys.readouterr().out
    assert limit_of("more") is None


def test_a_known_line_leaves_what_the_person_wrote(work: Path) -> None:
    (work / "colonnade.yaml").write_text("defaults: {limits: {concurrent: 4}}\nservers: {a: {command: a}}\n")
    assert run([*ADD_MEMORY[:2], "--yes", "--no-try", *ADD_MEMORY[2:]]) == DONE
    assert limit_of("notes") == 4


def test_a_server_is_known_by_its_own_name_once_it_was_tried(trials: Trials, types: Types) -> None:
    trials.expect(Trial("notes", offers="9 tools", info=(("name", "memory-server"), ("version", "0.6.3"))))
    types("y\ny\n")
    assert run(["add", "notes", "--", "node", "memory.js"]) == DONE
    assert (trials.tried, limit_of("notes")) == (["notes"], 1)


def test_a_line_that_was_refused_is_shown_again_only_with_a_failure_that_it_mends(
    trials: Trials, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.expect(Trial("notes", offers="9 tools", info=(("name", "memory-server"),)))
    types("n\ny\n")
    assert run(ADD_MEMORY) == DONE
    assert capsys.readouterr().out.count("Write this line") == 1
    assert (trials.tried, limit_of("notes")) == (["notes"], None)
    trials.expect(DIES)
    types("n\ny\nn\ny\n")
    assert run(["add", "db", "--", "uvx", "mcp-server-sqlite"]) == DONE
    assert capsys.readouterr().out.count("Write this line") == 2


def test_what_failed_is_tried_again_with_the_line_that_is_known(
    monkeypatch: pytest.MonkeyPatch, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[str] = []

    class Second(Trials):
        async def try_servers(self, config: Any, *more: Any) -> None:
            commands.append(" ".join(word.reveal() for word in config.servers["db"].command))
            self.outcomes = {"db": DIES if len(commands) == 1 else Trial("db", offers="6 tools")}
            await super().try_servers(config, *more)

    monkeypatch.setattr("host.trial.try_servers", Second().try_servers)
    types("y\ny\n")
    assert run(["add", "db", "--", "uvx", "own-server"]) == DONE
    said = capsys.readouterr().out
    assert commands == ["uvx own-server", "uvx --with mcp<2 own-server"]
    assert "Written for db: command: [uvx, --with, " in said
    assert "all the same?" not in said
    assert [word.reveal() for word in load("colonnade.yaml", {}).servers["db"].command] == commands[1].split()  # type: ignore[union-attr]


def test_an_import_knows_its_servers_again_after_a_line_was_written(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So does `connect`: `config.desktop.started`."""
    servers = {"notes": {"command": "npx", "args": [MEMORY]}, "db": {"command": "uvx", "args": ["mcp-server-sqlite"]}}
    (work / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    assert run(["import", "mcp.json", "--dry-run"]) == DONE
    assert "write limits: {concurrent: 1} (" in capsys.readouterr().out
    assert run(["import", "mcp.json", "--yes", "--no-try"]) == DONE
    assert limit_of("notes") == 1
    assert "mcp<2" in (work / "colonnade.yaml").read_text()
    assert run(["import", "mcp.json", "--yes", "--no-try", "--merge"]) == FAILED
    assert capsys.readouterr().out.count("is left as it is") == 2
    assert written() == ["notes", "db"]
