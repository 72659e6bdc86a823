"""The commands by which a person decides, on what hosts left behind: what they print, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from config import Channel, load
from host import deciding
from host.audit.writer import open_audit
from host.deciding import DONE, EXIT_CODES, FAILED, UNREACHED, WRONG, DecisionScope, short_fingerprint
from host.journal import Journal
from host.policy.confirmations import ConfirmationQueue, PendingConfirmation
from host.policy.decision_log import DecisionLog
from host.policy.gate import Gate
from host.policy.grants import Grant, Grants, Scope, new_id
from host.policy.pins import Pins, PinStatus
from host.protocol.methods import Kind
from host.slices import run_inline
from host.storage.directory import State, open_state
from host.storage.sqlite import open_store
from tests.kit.gates import observe

TOOLS = {name: json.dumps({"name": name, "description": f"{name}\u202e"}).encode() for name in ("create", "get")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "colonnade.yaml"
    servers = {
        "gh": {
            "url": "http://127.0.0.1:9/mcp",
            "trust": "untrusted",
            "consent": {"tools": {"allow": ["get"], "ask": ["create"], "deny": ["wipe"]}},
        }
    }
    path.write_text(json.dumps({"servers": servers}))
    return path


@pytest.fixture
def state(tmp_path: Path) -> State:
    return open_state(tmp_path / "state")


@pytest.fixture
def where(file: Path, state: State) -> DecisionScope:
    """What a host of this file left: two definitions that wait for a person, and a grant."""
    inside(file, state, lambda gate: observe(gate, "gh", Kind.TOOL, TOOLS))
    return DecisionScope(state, file)


def inside(file: Path, state: State, work: Callable[[Gate], object]) -> object:
    """Do it as a host of this file would, which then ends."""
    config = load(file)
    with open_audit(state.audit, full=False) as audit, open_store(state, file) as store:

        def tell(what: str, pending: PendingConfirmation, said: dict[str, object]) -> None:
            return

        pins = Pins(store, {id: spec.trust for id, spec in config.servers.items()})
        queue = ConfirmationQueue(Grants(store), config.ask, tell)
        return work(Gate(config.servers, pins, queue, DecisionLog(audit, Journal())))


def granted(gate: Gate) -> str:
    grant = Grant(
        id=new_id(),
        caller=None,
        session=None,
        server="gh",
        kind="tool",
        name="create",
        fingerprint="sha256:1",
        launch="",
        rule="tools.ask: create",
        digest=None,
        when=(),
        scope=Scope.ALWAYS,
        made=0.0,
        expires=None,
        by=Channel.CONSOLE.value,
    )
    run_inline(gate.authorizer.grants.add(grant))
    return grant.id


def test_what_is_held_back_is_listed_and_shown_and_nothing_in_it_hides(
    where: DecisionScope, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deciding.definitions(where, everything=False) == DONE
    listed = capsys.readouterr().out
    assert "gh: tool create  (new)" in listed
    assert deciding.definitions(where, everything=True) == DONE
    shown = capsys.readouterr().out
    assert "⟨U+202E⟩" in shown
    assert "\u202e" not in listed + shown


def test_what_is_shown_is_approved_by_its_id_and_the_next_host_knows(
    where: DecisionScope, file: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    deciding.definitions(where, everything=False)
    id = next(line.split()[0] for line in capsys.readouterr().out.splitlines() if "tool create" in line)
    assert deciding.decide(where, "approve", [id], None, sure=True) == DONE
    assert "create" in capsys.readouterr().out
    assert deciding.decide(where, "approve", [id], None, sure=True) == FAILED
    assert id in capsys.readouterr().err
    assert inside(file, state, lambda gate: gate.definitions.pins.status("gh", "tool", "create")) is PinStatus.APPROVED
    assert inside(file, state, lambda gate: gate.definitions.pins.status("gh", "tool", "get")) is PinStatus.NEW
    assert deciding.revoke_pin(where, "gh", "tool", "create") == DONE
    assert inside(file, state, lambda gate: gate.definitions.pins.status("gh", "tool", "create")) is PinStatus.NEW


def test_all_of_a_server_are_decided_at_once_and_shown_meanwhile(
    where: DecisionScope, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deciding.decide(where, "approve", [], "gh", sure=False) == FAILED  # nobody is there to say that they are
    assert "Nothing was done." in capsys.readouterr().out
    assert deciding.decide(where, "approve", [], "nowhere", sure=True) == FAILED
    assert deciding.decide(where, "approve", [], "gh", sure=True) == DONE
    said = capsys.readouterr().out
    assert "create" in said
    assert "get" in said
    assert deciding.definitions(where, everything=False) == DONE
    assert capsys.readouterr().out == "Nothing is held back.\n"


def test_grants_are_listed_and_taken_back(
    where: DecisionScope, file: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deciding.grants(where) == DONE
    assert capsys.readouterr().out == "There are no grants.\n"
    id = str(inside(file, state, granted))
    assert deciding.grants(where) == DONE
    assert id in capsys.readouterr().out
    assert deciding.revoke_grants(where, [id]) == DONE
    assert deciding.revoke_grants(where, [id, "feed\x1b"]) == FAILED
    assert "\x1b" not in capsys.readouterr().err
    assert inside(file, state, lambda gate: gate.authorizer.grants.all()) == []


@pytest.mark.parametrize(("tool", "verdict"), [("get", "deny"), ("create", "deny"), ("wipe", "deny")])
def test_what_is_never_seen_is_denied_whatever_its_rule(
    where: DecisionScope, tool: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an untrusted server, before a person approved it."""
    assert deciding.explain(where, "gh", "tool", tool, None, as_json=False) == EXIT_CODES[verdict]
    assert "tried:" in capsys.readouterr().out


def test_a_call_is_explained(where: DecisionScope, capsys: pytest.CaptureFixture[str]) -> None:
    deciding.decide(where, "approve", [], "gh", sure=True)
    capsys.readouterr()
    assert deciding.explain(where, "gh", "tool", "create", {"a": 1}, as_json=True) == EXIT_CODES["ask"]
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["rule"], told["standing"]) == ("ask", "tools.ask: create", "approved")
    assert deciding.explain(where, "gh", "tool", "wipe", None, as_json=False) == EXIT_CODES["deny"]
    assert "does not exist for any client" in capsys.readouterr().out
    assert deciding.explain(where, "nowhere", "tool", "x", None, as_json=False) == FAILED


def test_without_a_host_nobody_can_be_asked(where: DecisionScope, capsys: pytest.CaptureFixture[str]) -> None:
    assert deciding.ask(where, None, None, "exact", follow=False) == UNREACHED
    assert deciding.ask(where, "feed", "once", "exact", follow=False) == UNREACHED
    assert deciding.console(where) == UNREACHED
    assert "no host of yours runs" in capsys.readouterr().err


def test_decisions_are_in_the_audit_and_the_audit_is_sound(
    where: DecisionScope, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    deciding.decide(where, "approve", [], "gh", sure=True)
    capsys.readouterr()
    assert deciding.audit(state, server="gh", kind="approve", caller=None, since=None, follow=False) == DONE
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(each["item"], each["by"]) for each in found} == {("create", "terminal"), ("get", "terminal")}
    assert deciding.verify_audit(state, None, None) == DONE
    path = next(each for each in state.audit.glob("*.jsonl") if '"by":"terminal"' in each.read_text())
    path.write_text(path.read_text().replace('"by":"terminal"', '"by":"consoler"', 1))
    assert deciding.verify_audit(state, None, None) == FAILED


def test_a_fingerprint_is_named_by_its_beginning() -> None:
    assert short_fingerprint("sha256:0123456789abcdef") == "01234567"


def test_equal_definitions_of_two_servers_have_two_ids_that_nobody_else_could_tell(
    where: DecisionScope, tmp_path: Path
) -> None:
    """A server that copies another's definition is approved by nothing that is said of the other."""
    held: dict[str, object] = {"server": "gh", "kind": "tool", "name": "create", "fingerprint": "sha256:1"}
    ids = {deciding.short_id(where, {**held, "server": server}) for server in ("gh", "evil")}
    elsewhere = DecisionScope(open_state(tmp_path / "elsewhere"), where.config)
    assert len(ids | {deciding.short_id(elsewhere, held)}) == 3


def test_looking_takes_nothing_back_though_the_configuration_cannot_be_read(
    where: DecisionScope, file: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    id = str(inside(file, state, granted))
    kept = file.read_text()
    file.write_text("servers: [")
    assert deciding.grants(where) == DONE
    assert deciding.definitions(where, everything=False) == DONE
    file.write_text(kept)
    assert deciding.grants(where) == DONE
    assert id in capsys.readouterr().out.splitlines()[-1]


def test_the_audit_is_sealed_once_and_verified_with_its_key(
    where: DecisionScope, state: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is printed once and kept nowhere; a wrong one, and what is none, is said."""
    assert deciding.init_audit(state, again=False) == DONE
    key, told = capsys.readouterr()
    assert "Keep it elsewhere" in told
    assert deciding.init_audit(state, again=False) == FAILED
    assert "sealed already; --again" in capsys.readouterr().err
    deciding.decide(where, "approve", [], "gh", sure=True)
    (tmp_path / "key").write_text(key)
    assert not any(key.strip().encode() in path.read_bytes() for path in state.path.rglob("*") if path.is_file())
    assert deciding.verify_audit(state, str(tmp_path / "key"), None) == DONE
    assert ", sealed\n" in capsys.readouterr().out
    (tmp_path / "key").write_text("0" * 64)
    assert deciding.verify_audit(state, str(tmp_path / "key"), None) == FAILED
    assert "has another key" in capsys.readouterr().out
    for given, head in ((str(tmp_path / "nowhere"), None), (None, "no head")):
        assert deciding.verify_audit(state, given, head) == WRONG
    said = capsys.readouterr().err
    assert "nowhere cannot be read: No such file" in said
    assert "expected a head" in said
    path = next(each for each in state.audit.glob("*.jsonl") if '"by":"terminal"' in each.read_text())
    (tmp_path / "key").write_text(key)
    assert deciding.init_audit(state, again=True) == DONE
    assert deciding.verify_audit(state, str(tmp_path / "key"), None) == DONE, "the former key goes on to verify"
    path.unlink()
    assert deciding.verify_audit(state, str(tmp_path / "key"), None) == FAILED


def test_no_process_below_a_host_begins_another_chain(
    state: State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deciding, "refusal_reason", lambda peer, hosts: "processes that a host started may not decide")
    assert deciding.init_audit(state, again=False) == FAILED
    assert "may not decide" in capsys.readouterr().err
    assert not (state.audit / "seal").exists()
