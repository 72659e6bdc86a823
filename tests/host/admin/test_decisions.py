"""What a person decides of definitions and grants where no question can wait: on the files that a host left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config import Channel, Consent, HttpServer, Trust
from config.references import Secret
from host.admin.decisions import PolicyAdmin
from host.admin.schema import AdminError
from host.jsonrpc.withheld import WITHHELD
from host.policy.gate import Gate
from host.policy.pin_rules import PinStatus
from host.protocol.methods import Kind
from host.slices import run_inline
from host.subject import Item
from tests.kit.gates import entry, kind, observe, open_gate

SERVERS = {
    "gh": HttpServer(
        id="gh", url=Secret("https://x/mcp"), trust=Trust.UNTRUSTED, consent=Consent(tools=kind(allow=["*"]))
    )
}


@contextmanager
def left(state: Path, **offered: bytes) -> Iterator[tuple[Gate, PolicyAdmin]]:
    with open_gate(SERVERS, state=state) as gate:
        if offered:
            observe(gate, "gh", Kind.TOOL, offered)
        yield gate, PolicyAdmin(gate)


def test_a_decision_holds_for_the_next_host(tmp_path: Path) -> None:
    with left(tmp_path / "state", a=b'{"name":"a"}', b=b'{"name":"b"}'):
        pass
    with left(tmp_path / "state") as (gate, decisions):
        a, b = sorted(gate.definitions.pins.held(), key=lambda each: each.item.name)
        said = run_inline(decisions.decide(Item("gh", "tool", "a"), a.fingerprint, "approve", Channel.TERMINAL))
        assert said["done"].startswith("The tool a of gh")
        run_inline(decisions.decide(Item("gh", "tool", "b"), b.fingerprint, "reject", Channel.TERMINAL))
    with left(tmp_path / "state", a=b'{"name":"a"}', b=b'{"name":"b"}') as (gate, _):
        assert gate.definitions.pins.status(entry("gh", Kind.TOOL, "a")) is PinStatus.APPROVED
        assert gate.definitions.pins.status(entry("gh", Kind.TOOL, "b")) is PinStatus.NEW


def test_what_is_not_there_as_it_was_shown_is_not_decided(tmp_path: Path) -> None:
    with left(tmp_path / "state", a=b'{"name":"a"}') as (gate, decisions):
        for name, fingerprint in (("a", "sha256:another"), ("b", "sha256:another"), ("b", "")):
            with pytest.raises(AdminError):
                run_inline(decisions.decide(Item("gh", "tool", name), fingerprint, "approve", Channel.TERMINAL))
        assert gate.definitions.pins.status(entry("gh", Kind.TOOL, "a")) is PinStatus.NEW


def test_all_that_was_shown_of_a_server_is_approved_and_nothing_else(tmp_path: Path) -> None:
    with left(tmp_path / "state", a=b'{"name":"a"}', b=b'{"name":"b"}', c=b'{"name":"c"}') as (gate, decisions):
        shown = [each.fingerprint for each in gate.definitions.pins.held() if each.item.name != "c"]
        run_inline(decisions.decide_all("gh", shown, "approve", Channel.CONSOLE))
        assert [each.item.name for each in gate.definitions.pins.held()] == ["c"]
        with pytest.raises(AdminError):
            run_inline(decisions.decide_all("gh", shown, "approve", Channel.CONSOLE))


def test_a_definition_that_repeats_a_secret_is_approved_in_no_way(tmp_path: Path) -> None:
    repeating = b'{"name":"b","description":"%b"}' % WITHHELD.encode()
    with left(tmp_path / "state", a=b'{"name":"a"}', b=repeating) as (gate, decisions):
        held = {each.item.name: each for each in gate.definitions.pins.held()}
        assert [held[name].problem != "" for name in ("a", "b")] == [False, True]
        shown = [each.fingerprint for each in held.values()]
        with pytest.raises(AdminError, match="none was approved: tool b: it repeats a secret"):
            run_inline(decisions.decide_all("gh", shown, "approve", Channel.CONSOLE))
        with pytest.raises(AdminError, match="gh: tool 'b' repeats a secret"):
            run_inline(decisions.decide(Item("gh", "tool", "b"), held["b"].fingerprint, "approve", Channel.CONSOLE))
        assert {each.item.name for each in gate.definitions.pins.held()} == {"a", "b"}


def test_a_name_is_decided_about_as_it_was_shown(tmp_path: Path) -> None:
    with left(tmp_path / "state", **{"a\u202e": b'{"name":"a\\u202e"}'}) as (gate, decisions):
        (held,) = gate.definitions.pins.held()
        run_inline(decisions.decide(Item("gh", "tool", "a⟨U+202E⟩"), held.fingerprint, "approve", Channel.CONSOLE))
        assert gate.definitions.pins.held() == []
        run_inline(decisions.decide(Item("gh", "tool", "a⟨U+202E⟩"), "", "revoke", Channel.CONSOLE))
        assert [each.item.name for each in gate.definitions.pins.held()] == ["a\u202e"]


def test_where_no_host_runs_nothing_is_answered_and_no_grant_is_taken_back_that_is_none(tmp_path: Path) -> None:
    with left(tmp_path / "state") as (_, decisions):
        with pytest.raises(AdminError, match="no confirmation is pending"):
            run_inline(decisions.answer("x", "once", None, "exact", Channel.TERMINAL))
        with pytest.raises(AdminError):
            run_inline(decisions.revoke("feed", Channel.TERMINAL))


@pytest.mark.parametrize(("server", "of"), [("nowhere\x1b", "tool"), ("gh", "nonsense\x1b")])
def test_what_nobody_knows_is_not_explained(server: str, of: str, tmp_path: Path) -> None:
    with left(tmp_path / "state") as (_, decisions), pytest.raises(AdminError) as refused:
        run_inline(decisions.explain(Item(server, of, "x"), None))
    assert "\x1b" not in str(refused.value)
