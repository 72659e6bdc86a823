"""What is said of a call that nobody made: the verdict that it would get, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config import (
    CallerSpec,
    Check,
    Condition,
    Config,
    Consent,
    HttpServer,
    KindConsent,
    Rate,
    Rule,
    Search,
    StdioServer,
    ToolClaim,
    Trust,
    Verdict,
)
from config.model import Limits
from config.references import Secret
from config.views import ViewSpec
from host.jsonrpc.raw import encode
from host.policy.explain import definition_as_data, explain, grant_as_data, held_as_data, rules_as_data
from host.policy.fingerprint import arguments_digest
from host.policy.gate import Gate
from host.policy.grants import Grant, Scope, new_id
from host.policy.rows import Explanation
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.subject import Item, Subject
from tests.kit.awaited import awaited
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


def test_a_rule_for_some_callers_is_told_with_why_it_fits() -> None:
    consent = Consent(tools=KindConsent(ask=(Rule("get", callers=("ci", "laptop")),), deny=(Rule("create"),), allow=()))
    spec = HttpServer(id="gh", url=Secret("https://x/mcp"), consent=consent)
    callers = {"ci": CallerSpec("ci-token"), "web": CallerSpec("web-token")}
    with open_gate({"gh": spec}, callers=callers) as gate:
        observe(gate, "gh", Kind.TOOL, OFFERED)
        ref = entry("gh", Kind.TOOL, "get")
        found = {caller: explain(gate, ref, None, caller) for caller in ("ci", "web", "")}
        assert {caller: (each["verdict"], each["shown"]) for caller, each in found.items()} == {
            "ci": ("ask", True),
            "web": ("deny", False),
            "": ("deny", False),
        }
        whys = {caller: {rule["rule"]: rule["why"] for rule in each["tried"]} for caller, each in found.items()}
        assert {caller: each["tools.ask: get callers ci or laptop"] for caller, each in whys.items()} == {
            "ci": "the name fits, and the caller ci is one of them",
            "web": "the name fits, and the caller web is not one of them",
            "": "the name fits, and a caller without a name is not one of them",
        }
        assert "does not exist for the caller web" in found["web"]["sentence"]
        assert "does not exist for a caller without a name in callers" in found[""]["sentence"]
        assert "tools.ask: get callers ci or laptop" in {row["rule"] for row in rules_as_data(gate, "gh")}
        subject = Subject(
            ref.item,
            "ci-token",
            None,
            gate.definitions.fingerprint(ref),
            "",
            found["ci"]["rule"],
            arguments_digest(b"{}"),
        )
        awaited(gate.authorizer.grants.add(Grant(new_id(), subject, (), Scope.ONCE, 0.0, None, "console")))
        assert "has allowed it already" in explain(gate, ref, None, "ci")["sentence"]


@pytest.mark.parametrize(
    ("defaulted", "tools", "prompts"),
    [
        ({"consent", "limits"}, "defaults.consent", ""),
        ({"trust"}, "", "defaults.trust"),
        ({"consent", "trust"}, "defaults.consent", "defaults.trust"),
        ((), "", ""),
    ],
)
def test_a_rule_of_the_defaults_is_said_to_be_one(defaulted: Iterable[str], tools: str, prompts: str) -> None:
    spec = HttpServer(id="gh", url=Secret("https://x/mcp"), consent=CONSENT, defaulted=frozenset(defaulted))
    with open_gate({"gh": spec}) as gate:
        kinds = (gate.definitions.ref_of(Item("gh", kind, "get")) for kind in ("tool", "prompt"))
        assert [explain(gate, ref, None)["origin"] for ref in kinds] == [tools, prompts]
        assert {row["origin"] for row in rules_as_data(gate, "gh") if row["about"] == "tools"} == {tools}
        assert {row["origin"] for row in rules_as_data(gate, "gh") if row["about"] == "sampling"} == {prompts}


def test_a_server_in_folders_of_clients_is_said_to_be_one() -> None:
    spec = StdioServer(id="gh", command=(Secret("x"),), cwd=Path("${client:folder}"), consent=CONSENT)
    with open_gate({"gh": spec}) as gate:
        observe(gate, "gh", Kind.TOOL, OFFERED)
        text = "For clients with a folder (colonnade serve --stdio), the tool get of gh is allowed."
        assert told(gate, "get", {"n": 1})["sentence"] == text


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
        awaited(gate.authorizer.grants.add(grant))
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


@pytest.mark.parametrize(
    ("title", "is_said"),
    [("then read it, Delete", True), ("Delete it, then read!", False), ("Read it, then del", False)],
)
def test_another_order_is_held_and_said_with_its_remedy(title: str, is_said: bool) -> None:
    with explained(Trust.STANDARD) as gate:
        for text in ("Delete it, then read", title):
            approve_all(gate)
            create = json.dumps({"name": "create", "title": text}).encode()
            observe(gate, "gh", Kind.TOOL, {**OFFERED, "create": create})
        (held,) = gate.definitions.pins.held()
        shown = held_as_data(gate, held)
        assert shown["order"].startswith("only the order of words or of listed texts differs") == is_said
        assert ("its operator can set PYTHONHASHSEED=0" in shown["order"]) == is_said
        assert held_as_data(gate, held, 0.0)["order"] == "", "it is compared when it is ready"


def test_a_server_that_is_not_started_is_explained_with_what_it_waits_for() -> None:
    problem = "the environment variable TOKEN is not set"
    spec = HttpServer(id="gh", url=Secret("https://x/mcp"), consent=CONSENT, problem=problem, waits_for=("TOKEN",))
    with open_gate({"gh": spec}) as gate:
        assert told(gate, "create")["sentence"] == (
            f"The tool create of gh would be asked about, but the server is not started: {problem}."
        )
        assert "is denied" in told(gate, "wipe")["sentence"]


def test_each_of_two_definitions_of_one_tool_has_its_own_verdict() -> None:
    """With a session and without, a server may offer different definitions, and a person approve one of them."""
    reader = b'{"name": "get", "annotations": {"readOnlyHint": true}}'
    readers = KindConsent((Rule("*", claims=(ToolClaim.READ_ONLY,)),), default=Verdict.ASK)
    spec = HttpServer(id="gh", url=Secret("https://x/mcp"), consent=Consent(tools=readers))
    with open_gate({"gh": spec}) as gate:
        observe(gate, "gh", Kind.TOOL, {"get": reader})
        observe(gate, "gh", Kind.TOOL, {"get": OFFERED["get"]}, Era.STATELESS)
        own = entry("gh", Kind.TOOL, "get")
        awaited(gate.definitions.approve(own.item, gate.definitions.fingerprint(own), "console"))
        rows = [definition_as_data(gate, each, "", whole=False) for each in awaited(gate.definitions.listed("gh"))]
        assert [("read-only" in row["claims"], row["verdict"]) for row in rows] == [(True, "allow"), (False, "ask")]


def test_what_either_of_two_definitions_claims_is_told_where_they_wait_together() -> None:
    """Who approves them lets the reader run, whatever the other one is."""
    spec = HttpServer(id="gh", url=Secret("https://x/mcp"), trust=Trust.UNTRUSTED)
    with open_gate({"gh": spec}) as gate:
        observe(gate, "gh", Kind.TOOL, {"get": b'{"name": "get", "annotations": {"readOnlyHint": true}}'})
        observe(gate, "gh", Kind.TOOL, {"get": b'{"name": "get"}'}, Era.STATELESS)
        (row,) = (definition_as_data(gate, each, "", whole=True) for each in awaited(gate.definitions.listed("gh")))
        assert row["claims"] == ["destructive", "open-world", "read-only"]


def test_what_call_tool_asks_about_is_said_for_a_view_with_search() -> None:
    spec = HttpServer(id="gh", url=Secret("https://x/mcp"))
    with open_gate({"gh": spec}) as gate:
        observe(gate, "gh", Kind.TOOL, OFFERED)
        views = {"found": ViewSpec(search=Search.ON), "plain": ViewSpec()}
        gate.policies.views.replace(Config(servers={"gh": spec}, views=views))
        ref = gate.definitions.ref_of(Item("gh", "tool", "get"))
        said = {view: explain(gate, ref, None, view=view)["sentence"] for view in ("", "plain", "found")}
        more = " Through call_tool, a person has to allow each call, because the server has no rule for tools."
        assert said == {"": said[""], "plain": said[""], "found": said[""] + more}
        assert said[""] == "The tool get of gh is allowed."
