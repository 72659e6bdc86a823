"""The command `audit` on what a stopped host left."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from config import Verdict
from host.attempts import Attempt, Reason
from host.cli.admin_client import RunningHost
from host.cli.exit_codes import DONE, FAILED, WRONG
from host.client_process import ClientProcess
from host.policy.decision_log import AuditRecord
from host.policy.gate import Gate
from host.subject import Item, Subject
from host.wire import descent
from tests.real.running import COLONNADE

from .conftest import Stopped


def test_decisions_are_in_the_audit_and_the_audit_is_sound(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    capsys.readouterr()
    assert stopped.audit("--server", "gh", "--kind", "approve") == DONE
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(each["item"], each["by"]) for each in found} == {("create", "terminal"), ("get", "terminal")}
    assert stopped.audit("--since", "15m", "--caller", "nobody") == DONE
    assert capsys.readouterr().out == ""
    assert stopped.audit("--since", "15") == WRONG
    assert stopped.audit("verify") == DONE
    path = next(each for each in stopped.state.audit.glob("*.jsonl") if '"by":"terminal"' in each.read_text())
    path.write_text(path.read_text().replace('"by":"terminal"', '"by":"consoler"', 1))
    assert stopped.audit("verify") == FAILED


def test_refused_attempts_have_a_sentence_and_are_found_by_their_caller(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the audit with them is sound."""

    def attempt(gate: Gate) -> None:
        for _ in range(3):
            gate.decision_log.record_attempt(Attempt(Reason.DENIED, "tool", "gh__\x1bx", "10.0.0.7", "desk", "d", "gh"))
        for n in range(200):
            gate.decision_log.record_attempt(Attempt(Reason.WRONG_TOKEN, "path", f"/{n}", "10.0.0.7"))
        gate.decision_log.flush_attempts()

    stopped.inside(attempt)
    capsys.readouterr()
    assert stopped.audit("--kind", "attempts", "--caller", "desk", "--server", "gh") == DONE
    (record,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (record["why"], record["count"], record["address"]) == ("denied", 3, "10.0.0.7")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert stopped.audit("--kind", "attempts") == DONE
    _, first, second, *_, others = capsys.readouterr().out.splitlines()
    assert first.endswith("denied, 3 times, for desk from 10.0.0.7")
    assert second.endswith("wrong token, 1 time, for a caller that is not known from 10.0.0.7")
    assert others.endswith("others {wrong token: 160}")
    assert stopped.audit("verify") == DONE


def test_a_terminal_gets_a_table(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each record, in which nothing that a server or a client wrote can steer the terminal."""
    subject = Subject(Item("gh", "tool", "create\u202e"), None, None, "", "", "tools.ask: create")
    record = AuditRecord(subject, "tools/call", "desk\x1b[31m", Raw(b"{}"), Verdict.ASK)
    with_program = replace(record, process=ClientProcess("claude\x1b", 7), through="call_tool")

    def decide(gate: Gate) -> None:
        for failed in (False, True):
            seq = gate.decision_log.record_decision(record)
            gate.decision_log.record_outcome(record, seq, "answered", 0.0125, 99, tool_error=failed)
        gate.decision_log.record_denied(with_program)

    stopped.inside(decide)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    capsys.readouterr()
    assert stopped.audit() == DONE
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["TIME", "KIND", "SERVER", "ENTRY", "WHAT"]
    assert "\x1b" not in str(rows)
    told = [row[20:].split(maxsplit=1) for row in rows]
    by_kind = {kind: " ".join(rest.split()) for kind, rest in (each for each in told if len(each) == 2)}
    decision = "gh tool create⟨U+202E⟩ ask (tools.ask: create) for desk⟨U+001B⟩[31m"
    assert [" ".join(row.split()[3:]) for row in rows if " decision " in row] == [
        decision,
        decision,
        f"{decision}, claude⟨U+001B⟩ (7), through call_tool",
    ]
    assert [" ".join(row.split()[3:]) for row in rows if " outcome " in row] == [
        "gh answered, 12.5 ms, 99 bytes",
        "gh answered, tool error, 12.5 ms, 99 bytes",
    ]
    assert by_kind["held"] == "gh tool get standing new"
    assert stopped.audit("--json", "--kind", "outcome") == DONE
    outcomes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["bytes"], each.get("tool_error")) for each in outcomes] == [(99, None), (99, True)]
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert stopped.audit("--table") == DONE
    assert capsys.readouterr().out.splitlines() == [head, *rows]


def test_a_record_that_somebody_has_changed_is_shown_as_it_is(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.inside(lambda gate: None)
    capsys.readouterr()
    forged = [
        {"v": 1, "kind": kind, "seq": 0, "mono": 0, "prev": "", "ts": ts, "hash": f"sha256:{64 * '0'}"}
        for kind, ts in (("start", 5), ("start", "0001-01-01T00:00:00+14:00"), ("decision", "2026-11-21T21:15:16.195Z"))
    ]
    lines = (json.dumps(each, separators=(",", ":")) for each in forged)
    (stopped.state.audit / "forged.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert stopped.audit("--table") == DONE
    rows = capsys.readouterr().out.splitlines()
    assert [row for row in rows if row.startswith("{")] == [json.dumps(each) for each in forged]
    assert len(rows) > 1 + len(forged)


def test_the_audit_is_sealed_once_and_verified_with_its_key(
    stopped: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is printed once and kept nowhere; a wrong one, and what is none, is said."""
    state, file = stopped.state, str(tmp_path / "key")
    capsys.readouterr()
    assert stopped.audit("init") == DONE
    key, told = capsys.readouterr()
    assert "Keep it elsewhere" in told
    assert stopped.audit("init") == FAILED
    assert "sealed already; --again" in capsys.readouterr().err
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    Path(file).write_text(key)
    assert not any(key.strip().encode() in path.read_bytes() for path in state.path.rglob("*") if path.is_file())
    assert stopped.audit("verify", "--key-file", file) == DONE
    assert ", sealed\n" in capsys.readouterr().out
    Path(file).write_text("0" * 64)
    assert stopped.audit("verify", "--key-file", file) == FAILED
    assert "not sealed with this key" in capsys.readouterr().out
    for arguments in (["--key-file", str(tmp_path / "nowhere")], ["--head", "no head"]):
        assert stopped.audit("verify", *arguments) == WRONG
    said = capsys.readouterr().err
    assert "nowhere cannot be read: No such file" in said
    assert "expected a head" in said
    path = next(each for each in state.audit.glob("*.jsonl") if '"by":"terminal"' in each.read_text())
    Path(file).write_text(key)
    assert stopped.audit("init", "--again") == DONE
    assert stopped.audit("verify", "--key-file", file) == DONE, "the former key goes on to verify"
    whole = path.read_text()
    path.write_text(whole.replace('"by":"terminal"', '"by":"consoler"', 1))
    assert stopped.audit("verify", "--key-file", file) == FAILED
    path.write_text(whole)
    capsys.readouterr()
    assert stopped.audit("verify", "--key-file", file) == DONE
    (head,) = [line[6:] for line in capsys.readouterr().out.splitlines() if line.startswith("head: ")]
    (state.audit / head.partition(":")[0]).unlink()
    assert stopped.audit("verify", "--key-file", file, "--head", head) == FAILED


def test_the_key_may_be_in_the_environment(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.audit("init")
    monkeypatch.setenv("COLONNADE_AUDIT_KEY", capsys.readouterr().out)
    assert stopped.audit("verify") == DONE
    assert "without a key" not in capsys.readouterr().out
    monkeypatch.setenv("COLONNADE_AUDIT_KEY", "no key, yet a secret")
    assert stopped.audit("verify") == WRONG
    assert "secret" not in capsys.readouterr().err


def test_no_process_below_a_host_begins_another_chain(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(descent, "refusal_reason", lambda peer, hosts: "processes that a host started may not decide")
    assert stopped.audit("init") == FAILED
    assert "may not decide" in capsys.readouterr().err
    assert not (stopped.state.audit / "seal").exists()


def test_collected_lines_are_verified_from_files_and_standard_input(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of the state directory are such lines too, and a host says where its records are."""
    paths = sorted(stopped.state.audit.glob("*.jsonl"))
    whole = b"".join(path.read_bytes() for path in paths)
    (tmp_path / "collected").write_bytes(whole + b"a line of its log\n")
    capsys.readouterr()
    assert stopped.audit("verify", str(tmp_path / "collected")) == DONE
    said = capsys.readouterr().out
    assert all(f"{path.name}: ok, " in said for path in paths)
    assert "1 other line among them: no records" in said
    assert "without a key: somebody may have rewritten all of them where they were collected" in said
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(whole.replace(b'"v":1', b'"v":2', 1))))
    assert stopped.audit("verify", "-") == FAILED
    assert "record 1 of " in capsys.readouterr().out
    for nothing in (b"", b"a line of its log\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(nothing)))
        assert stopped.audit("verify", "-") == FAILED
        said = capsys.readouterr().out
        assert "no record of an audit is among these lines" in said
        assert "Verified" not in said
    assert stopped.audit("verify", str(tmp_path / "nowhere")) == WRONG
    assert "nowhere cannot be read: No such file" in capsys.readouterr().err
    assert stopped.audit("verify", "-", "--key-file", "-") == WRONG
    elsewhere = RunningHost(Path("a.sock"), 4711, "/home/me/c.yaml", audit="stdout")
    monkeypatch.setattr("host.cli.admin_client.find_hosts", lambda state, timeout: [elsewhere])
    capsys.readouterr()
    for words in ([], ["verify"]):
        assert stopped.audit(*words) == DONE
        assert "/home/me/c.yaml (process 4711) writes its audit to standard output" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_who_has_seen_enough_is_no_error(stopped: Stopped) -> None:
    """`colonnade audit | head -1` ends without a word: it is not the audit that cannot be used."""
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        command = [COLONNADE, "audit", "--follow", "--state", str(stopped.state.path)]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")
