"""What is said of a call that nobody made: the verdict that it would get, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from config import Check, Condition, Consent, HttpServer, KindConsent, Rate, Rule, Trust
from config.model import Limits
from config.references import Secret
from host.jsonrpc.raw import encode
from host.policy.explain import explain, grant_as_data, held_as_data
from host.policy.fingerprint import arguments_digest
from host.policy.gate import Gate
from host.policy.grants import Grant, Scope, new_id
from host.policy.rows import Explanation
from host.protocol.methods import Kind
from host.slices import run_inline
from host.subject import Item, Subject
from tests.kit.gates import approve_all, entry, observe, open_gate

WHEN = (Condition("/owner", (Check("in", ("acme",)),)),)
CONSENT = Consent(
    tools=KindConsent(
        allow=(Rule("get"),),
        ask=(Rule("create"),),
        deny=(Rule("wipe"), Rule("get", (Condition("/n", (Check("eq", 7),)),))),
    )
)
OFFERED = {name: json.dumps({"name": name}).encode() for name in ("get", "create", "wipe")}


@contextmanager
def explained(trust: Trust = Trust.STANDARD) -> Iterator[Gate]:
    limits = Limits(calls=Rate(60, 60.0), concurrent=8)
    spec = HttpServer(id="gh", url=Secret("https://x/mcp"), consent=CONSENT, trust=trust, limits=limits)
    with open_gate({"gh": spec}) as gate:
        observe(gate, "gh", Kind.TOOL, OFFERED)
        yield gate


def told(gate: Gate, name: str, arguments: object = None) -> Explanation:
    return explain(
        gate, gate.definitions.ref_of(Item("gh", "tool", name)), None if arguments is None else encode(arguments)
    )


@pytest.mark.parametrize(
    ("name", "arguments", "verdict", "rule", "shown", "says"),
    [
        ("get", {"n": 1}, "allow", "tools.allow: get", True, "is allowed"),
        ("get", {"n": 7}, "deny", 'tools.deny: get when {"n": {"eq": 7}}', True, "not allowed with these arguments"),
        ("create", None, "ask", "tools.ask: create", True, "a person has to allow"),
        ("wipe", None, "deny", "tools.deny: wipe", False, "does not exist for any client"),
        ("nothing", None, "deny", "tools.allow", False, "does not exist for any client"),
    ],
)
def test_the_verdict_and_why(name: str, arguments: object, verdict: str, rule: str, shown: bool, says: str) -> None:
    with explained() as gate:
        found = told(gate, name, arguments)
        assert (found["verdict"], found["shown"]) == (verdict, shown)
        assert found["rule"].startswith(rule)
        assert says in found["sentence"]
        assert {each["rule"] for each in found["tried"]} >= {"tools.deny: wipe", "tools.ask: create"}
        assert found["limits"] == {"calls": "60 in 60 s", "concurrent": "8"}
        assert json.loads(json.dumps(found)) == found


def test_a_definition_that_is_held_back_is_said_to_be() -> None:
    with explained(Trust.UNTRUSTED) as gate:
        assert "never approved" in told(gate, "create")["sentence"]
        approve_all(gate)
        assert "never approved" not in told(gate, "create")["sentence"]
        observe(gate, "gh", Kind.TOOL, {**OFFERED, "create": b'{"name":"create","title":"!"}'})
        found = told(gate, "create")
        assert (found["standing"], found["shown"]) == ("changed", False)
        assert "not the one that was approved" in found["sentence"]


def test_the_grant_that_would_be_used_is_named_and_not_used() -> None:
    with explained() as gate:
        given = b'{"owner":"acme"}'
        ref = entry("gh", Kind.TOOL, "create")
        subject = Subject(
            ref.item,
            caller=None,
            session=None,
            fingerprint=gate.definitions.fingerprint(ref),
            launch=gate.definitions.pins.launch("gh"),
            rule="tools.ask: create",
            digest=arguments_digest(given),
        )
        grant = Grant(new_id(), subject, (), Scope.ONCE, 0.0, None, "console")
        run_inline(gate.authorizer.grants.add(grant))
        for _ in range(2):
            found = told(gate, "create", {"owner": "acme"})
            assert found["grant"] is not None
            assert found["grant"]["id"] == grant.id
            assert "has allowed it already" in found["sentence"]
        assert told(gate, "create", {"owner": "acmf"})["grant"] is None
        assert grant_as_data(gate, grant)["arguments"].startswith("exactly sha256:")
        observe(gate, "gh", Kind.TOOL, {**OFFERED, "create": b'{"name":"create","title":"!"}'})
        shown = grant_as_data(gate, grant)
        assert (shown["live"], shown["why"]) == (False, "the definition is not the one that it was given for")


def test_what_is_held_back_is_told_with_its_difference() -> None:
    with explained(Trust.UNTRUSTED) as gate:
        approve_all(gate)
        observe(gate, "gh", Kind.TOOL, {**OFFERED, "create": b'{"name":"create","title":"send\\u200bit"}'})
        (held,) = gate.definitions.pins.held()
        shown = held_as_data(gate, held)
        assert (shown["name"], shown["standing"], shown["trust"]) == ("create", "changed", "untrusted")
        added = "".join(each["text"] for each in shown["diff"] if each["op"] == "added")
        assert "title" in added
        assert "⟨U+200B⟩" in shown["text"]
