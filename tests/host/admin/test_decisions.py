"""What a person decides of definitions and grants where no question can wait: on the files that a host left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from config import Channel, Consent, HttpServer, Trust, load
from config.references import Secret
from host.admin.decisions import PolicyAdmin
from host.admin.schema import AdminError
from host.jsonrpc.withheld import WITHHELD
from host.policy.gate import Gate
from host.policy.pin_rules import PinStatus
from host.protocol.methods import Kind
from host.subject import Item
from tests.kit.awaited import awaited
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
        said = awaited(decisions.decide(Item("gh", "tool", "a"), a.fingerprint, "approve", Channel.TERMINAL))
        assert said["done"].startswith("The tool a of gh")
        awaited(decisions.decide(Item("gh", "tool", "b"), b.fingerprint, "reject", Channel.TERMINAL))
    with left(tmp_path / "state", a=b'{"name":"a"}', b=b'{"name":"b"}') as (gate, _):
        assert gate.definitions.pins.status(entry("gh", Kind.TOOL, "a")) is PinStatus.APPROVED
        assert gate.definitions.pins.status(entry("gh", Kind.TOOL, "b")) is PinStatus.NEW


def test_what_is_not_there_as_it_was_shown_is_not_decided(tmp_path: Path) -> None:
    with left(tmp_path / "state", a=b'{"name":"a"}') as (gate, decisions):
        for name, fingerprint in (("a", "sha256:another"), ("b", "sha256:another"), ("b", "")):
            with pytest.raises(AdminError):
                awaited(decisions.decide(Item("gh", "tool", name), fingerprint, "approve", Channel.TERMINAL))
        assert gate.definitions.pins.status(entry("gh", Kind.TOOL, "a")) is PinStatus.NEW


def test_all_that_was_shown_of_a_server_is_approved_and_nothing_else(tmp_path: Path) -> None:
    with left(tmp_path / "state", a=b'{"name":"a"}', b=b'{"name":"b"}', c=b'{"name":"c"}') as (gate, decisions):
        shown = [each.fingerprint for each in gate.definitions.pins.held() if each.item.name != "c"]
        awaited(decisions.decide_all("gh", shown, "approve", Channel.CONSOLE))
        assert [each.item.name for each in gate.definitions.pins.held()] == ["c"]
        with pytest.raises(AdminError):
            awaited(decisions.decide_all("gh", shown, "approve", Channel.CONSOLE))


def test_a_whole_list_is_approved_where_nothing_is_held(tmp_path: Path) -> None:
    """What a standard server offers first is approved by nobody, and its claims count once a person approved it, in
    this host and the next. What was not shown, or is not offered as it was shown, is not approved with it."""
    reader = b'{"name":"a","description":"Reads\\u202e.","annotations":{"readOnlyHint":true,"openWorldHint":false}}'
    servers = {"gh": replace(SERVERS["gh"], trust=Trust.STANDARD)}
    with open_gate(servers, state=tmp_path / "state") as gate:
        observe(gate, "gh", Kind.TOOL, {"a": reader, "b": b'{"name":"b"}'})
        assert awaited(gate.definitions.held()) == []
    with open_gate(servers, state=tmp_path / "state") as gate:  # before the server is started
        decisions = PolicyAdmin(gate)
        a, b = awaited(decisions.definitions("gh"))["definitions"]
        assert (a["name"], a["standing"], a["by"], a["counts"]) == ("a", "approved", "first sight", False)
        assert (a["claims"], b["claims"]) == (["closed-world", "read-only"], ["destructive", "open-world"])
        assert (a["verdict"], a["rule"], a["denied"]) == ("allow", "tools.allow: *", False)
        assert (a["description"], b["text"].split()) == ("Reads⟨U+202E⟩.", ["{", '"name":', '"b"', "}"])
        with pytest.raises(AdminError, match="none of these is offered any more as it was shown"):
            awaited(decisions.decide_all("gh", ["sha256:other"], "approve", Channel.TERMINAL))
        said = awaited(decisions.decide_all("gh", [a["fingerprint"]], "approve", Channel.TERMINAL))
        assert said == {"done": "1 definition of gh: approved."}
        with pytest.raises(AdminError, match="none of these is offered any more as it was shown"):
            awaited(decisions.decide_all("gh", [a["fingerprint"]], "approve", Channel.TERMINAL))
        with pytest.raises(AdminError, match="none of these is offered any more"):  # nothing of it is held
            awaited(decisions.decide_all("gh", [b["fingerprint"]], "reject", Channel.TERMINAL))
    with open_gate(servers, state=tmp_path / "state") as gate:
        decisions = PolicyAdmin(gate)
        observe(gate, "gh", Kind.TOOL, {"a": reader, "b": b'{"name":"b","title":"B"}'})
        counting = {each["name"]: each["counts"] for each in awaited(decisions.definitions("gh"))["definitions"]}
        assert counting == {"a": True, "b": False}
        with pytest.raises(AdminError, match="there is no server 'gg' in the configuration"):
            awaited(decisions.definitions("gg"))


def test_a_definition_that_repeats_a_secret_is_approved_in_no_way(tmp_path: Path) -> None:
    repeating = b'{"name":"b","description":"%b"}' % WITHHELD.encode()
    with left(tmp_path / "state", a=b'{"name":"a"}', b=repeating) as (gate, decisions):
        held = {each.item.name: each for each in gate.definitions.pins.held()}
        assert [held[name].problem != "" for name in ("a", "b")] == [False, True]
        shown = [each.fingerprint for each in held.values()]
        with pytest.raises(AdminError, match="none was approved: tool b: it repeats a secret"):
            awaited(decisions.decide_all("gh", shown, "approve", Channel.CONSOLE))
        with pytest.raises(AdminError, match="gh: tool 'b' repeats a secret"):
            awaited(decisions.decide(Item("gh", "tool", "b"), held["b"].fingerprint, "approve", Channel.CONSOLE))
        assert {each.item.name for each in gate.definitions.pins.held()} == {"a", "b"}


def test_a_name_is_decided_about_as_it_was_shown(tmp_path: Path) -> None:
    with left(tmp_path / "state", **{"a\u202e": b'{"name":"a\\u202e"}'}) as (gate, decisions):
        (held,) = gate.definitions.pins.held()
        awaited(decisions.decide(Item("gh", "tool", "a⟨U+202E⟩"), held.fingerprint, "approve", Channel.CONSOLE))
        assert gate.definitions.pins.held() == []
        awaited(decisions.decide(Item("gh", "tool", "a⟨U+202E⟩"), "", "revoke", Channel.CONSOLE))
        assert [each.item.name for each in gate.definitions.pins.held()] == ["a\u202e"]


def test_no_grant_is_taken_back_that_is_none(tmp_path: Path) -> None:
    with left(tmp_path / "state") as (_, decisions), pytest.raises(AdminError, match="no such grant"):
        awaited(decisions.revoke("feed", Channel.TERMINAL))


FILE = """
listen: {auth: {tokens: {one: "01234567890123456789012345678901", two: "98765432109876543210987654321098"}}}
callers: {ci: {token: one}, web: {token: two}}
views:
  reading: {callers: ci, servers: {gh: {tools: ["a*"]}}}
  more: {servers: {gh: all}}
servers:
  gh: {url: "http://h/mcp", consent: {tools: {deny: [{name: ab, callers: ci}]}}}
"""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("tool", "caller", "view", "found"),
    [
        ("aa", None, "", ("allow", True, "")),
        ("b", None, "reading", ("allow", False, "reading")),
        ("aa", "ci", "", ("allow", True, "reading")),
        ("ab", "ci", "reading", ("deny", False, "reading")),
        ("ab", "web", "", ("allow", True, "")),
        ("b", "ci", "", ("allow", False, "reading")),
        ("b", "", "more", ("allow", True, "more")),
    ],
)
def test_a_call_is_explained_where_its_caller_comes_in(
    tool: str, caller: str | None, view: str, found: tuple[str, bool, str], tmp_path: Path
) -> None:
    config = load(tmp_path / "colonnade.yaml", {}, data=FILE.encode())
    with open_gate(config.servers, callers=config.callers) as gate:
        gate.policies.views.replace(config)
        observe(gate, "gh", Kind.TOOL, {name: json.dumps({"name": name}).encode() for name in ("aa", "ab", "b")})
        decisions = PolicyAdmin(gate)
        explained = awaited(decisions.explain(Item("gh", "tool", tool), None, caller, view))
        assert (explained["verdict"], explained["shown"], explained["view"]) == found
        if (found[0], found[1]) == ("allow", False):
            assert "is not in the view reading" in explained["sentence"]
        for who, where, said in (
            ("ce", "", "there is no caller 'ce'.*; it has ci, web"),
            ("ci", "more", "the caller ci does not reach the view more; it reaches reading"),
            (None, "readin", "there is no view 'readin' under views in the configuration; did you mean reading?"),
        ):
            with pytest.raises(AdminError, match=said):
                awaited(decisions.explain(Item("gh", "tool", tool), None, who, where))


@pytest.mark.parametrize(("server", "of"), [("nowhere\x1b", "tool"), ("gh", "nonsense\x1b")])
def test_what_nobody_knows_is_not_explained(server: str, of: str, tmp_path: Path) -> None:
    with left(tmp_path / "state") as (_, decisions), pytest.raises(AdminError) as refused:
        awaited(decisions.explain(Item(server, of, "x"), None))
    assert "\x1b" not in str(refused.value)
