"""The claims of tools: how they are read, when they count, and what then becomes of the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw, structs
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Check, Condition, Consent, KindConsent, Rule, ToolClaim, Trust, Verdict
from host.jsonrpc.raw import encode
from host.policy.claims import NO_CLAIMS, POSSIBLE_CLAIMS, claims_hold, claims_in, describe_claims
from host.policy.definitions import Definitions
from host.policy.rules import Rules
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import EntryRef, Source
from tests.kit.awaited import awaited
from tests.kit.gates import observe, open_gate
from tests.kit.world import Refusal, ScriptedServer, World, later, open_world, tool

from .servers import spec

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY
READ_ONLY, DESTRUCTIVE = ToolClaim.READ_ONLY, ToolClaim.DESTRUCTIVE
CLOSED, OPEN = ToolClaim.CLOSED_WORLD, ToolClaim.OPEN_WORLD
READER = {"readOnlyHint": True}
READERS = KindConsent((Rule("*", claims=(READ_ONLY,)),), default=ASK)


@pytest.mark.parametrize(
    ("annotations", "held"),
    [
        (None, {DESTRUCTIVE, OPEN}),
        ({}, {DESTRUCTIVE, OPEN}),
        ("trusted", {DESTRUCTIVE, OPEN}),
        ({"readOnlyHint": True}, {READ_ONLY, OPEN}),
        ({"readOnlyHint": True, "destructiveHint": True}, {READ_ONLY, OPEN}),
        ({"readOnlyHint": "true"}, {DESTRUCTIVE, OPEN}),
        ({"readOnlyHint": 1}, {DESTRUCTIVE, OPEN}),
        ({"readOnlyHint": [True]}, {DESTRUCTIVE, OPEN}),
        ({"ReadOnlyHint": True}, {DESTRUCTIVE, OPEN}),
        ({"destructiveHint": False}, {OPEN}),
        ({"destructiveHint": None}, {DESTRUCTIVE, OPEN}),
        ({"destructiveHint": 0}, {DESTRUCTIVE, OPEN}),
        ({"destructiveHint": "false"}, {DESTRUCTIVE, OPEN}),
        ({"openWorldHint": False}, {DESTRUCTIVE, CLOSED}),
        ({"openWorldHint": ""}, {DESTRUCTIVE, OPEN}),
        ({"readOnlyHint": True, "openWorldHint": False}, {READ_ONLY, CLOSED}),
    ],
)
def test_only_true_and_false_claim_anything(annotations: object, held: set[ToolClaim]) -> None:
    definition = {"name": "t"} if annotations is None else {"name": "t", "annotations": annotations}
    assert claims_in(json.dumps(definition).encode()).held == held


def test_a_key_with_escapes_is_read() -> None:
    assert claims_in(rb'{"name":"t","\u0061nnotations":{"readOnly\u0048int":true}}').held == {READ_ONLY, OPEN}
    assert claims_in(b'{"annotations": {"readOnlyHint" : true , "title":"x"}}').lines == (
        "readOnlyHint: true",
        'title: "x"',
    )


@pytest.mark.parametrize("definition", [b"", b"annotations", b'{"annotations":{"readOnlyHint":true', b"[1]"])
def test_a_definition_that_cannot_be_read_claims_nothing(definition: bytes) -> None:
    assert claims_in(definition) is NO_CLAIMS


def test_claims_that_do_not_count_are_unknown() -> None:
    assert claims_hold((READ_ONLY,), None) is None
    assert claims_hold((), None) is True
    assert claims_hold((READ_ONLY, CLOSED), claims_in(b'{"annotations":{"readOnlyHint":true}}')) is False


# Rules


def judge(allow: tuple[Rule, ...] | None = None, ask: tuple[Rule, ...] = (), deny: tuple[Rule, ...] = ()) -> Rules:
    return Rules(Consent(tools=KindConsent(allow, ask, deny)))


@pytest.mark.parametrize("claims", [(READ_ONLY,), (DESTRUCTIVE,), (CLOSED,), (OPEN,), (READ_ONLY, CLOSED)])
def test_unknown_claims_never_help_a_tool(claims: tuple[ToolClaim, ...]) -> None:
    """Whatever a rule wants: it does not allow, and it asks and denies; a denied tool is not listed."""
    rule = (Rule("*", claims=claims),)
    allowing, asking, denying = judge(rule), judge(ask=rule), judge(deny=rule)
    assert [each.evaluate(Kind.TOOL, "t").verdict for each in (allowing, asking, denying)] == [DENY, ASK, DENY]
    assert [each.is_visible(Kind.TOOL, "t") for each in (allowing, asking, denying)] == [False, True, False]
    assert all(
        each.may_be_visible(Kind.TOOL, "t") and each.of_kind[Kind.TOOL].may_show() for each in (allowing, denying)
    )
    for known in POSSIBLE_CLAIMS:
        fits = known.held.issuperset(claims)
        decided = [each.evaluate(Kind.TOOL, "t", None, known).verdict for each in (allowing, asking, denying)]
        assert decided == ([ALLOW, ASK, DENY] if fits else [DENY, ALLOW, ALLOW])
        shown = [each.is_visible(Kind.TOOL, "t", known) for each in (allowing, asking, denying)]
        assert shown == ([True, True, False] if fits else [False, True, True])


def test_all_conditions_of_a_rule_must_hold() -> None:
    small = (Condition("/n", (Check("range", (0, 9)),)),)
    rules = Rules(Consent(tools=KindConsent((Rule("get*", small, claims=(READ_ONLY,)),), default=ASK)))
    reader, writer = POSSIBLE_CLAIMS[0], POSSIBLE_CLAIMS[1]
    for name, n, claims, verdict in (
        ("get", 1, reader, ALLOW),
        ("get", 10, reader, ASK),
        ("get", 1, writer, ASK),
        ("get", 1, None, ASK),
        ("put", 1, reader, ASK),
    ):
        assert rules.evaluate(Kind.TOOL, name, {"n": n}, claims).verdict is verdict
    trial, _ = rules.of_kind[Kind.TOOL].explain("get", {"n": 1}, None)
    assert trial.rule == 'tools.allow: get* claims read-only when {"n": {"range": [0, 9]}}'
    assert trial.why == (
        "the name fits, and no person has approved its definition, so its claims do not count, and all conditions hold"
    )
    trial, _ = rules.of_kind[Kind.TOOL].explain("get", {"n": 1}, writer)
    assert trial.why == "the name fits, and it is not read-only by its claims, and all conditions hold"


# Which claims count


REF = EntryRef(Source("a", Era.SESSION), Kind.TOOL, "t")


def approve(definitions: Definitions) -> None:
    """A person approves the tool as it is offered."""
    awaited(definitions.approve(REF.item, definitions.fingerprint(REF), "console"))


def verdict(world: World) -> Verdict:
    return world.gate.definitions.evaluate(REF, None, "").verdict


async def offers(world: World, server: ScriptedServer, *tools: dict[str, Any]) -> None:
    server.lists["tools"] = list(tools)
    await server.notifies("notifications/tools/list_changed")
    await trio.sleep(1)


@pytest.mark.parametrize("trust", list(Trust))
async def test_claims_count_once_a_person_approved_them(trust: Trust, autojump_clock: MockClock) -> None:
    """A first sight is no person's approval; a claim that changes, and a tool that comes later, are asked about (rule
    63)."""
    reader = tool("t", annotations=READER)
    server = ScriptedServer("a", tools=[reader], consent=Consent(tools=READERS), trust=trust)
    trusts = trust is Trust.TRUSTED
    async with open_world(server) as world:
        await world.settled()
        definitions = world.gate.definitions
        assert verdict(world) is (ALLOW if trusts else ASK)
        epoch = world.gate.policies.epoch
        approve(definitions)
        assert verdict(world) is ALLOW
        assert world.gate.policies.epoch > epoch  # calls that were admitted before are looked at again
        await offers(world, server, tool("t", annotations={**READER, "openWorldHint": False}))
        assert verdict(world) is (ALLOW if trusts else ASK)
        await offers(world, server, reader, tool("later", annotations=READER))
        assert verdict(world) is ALLOW
        assert definitions.evaluate(structs.replace(REF, name="later"), None, "").verdict is (ALLOW if trusts else ASK)


async def test_an_approved_reader_is_listed_where_others_are_denied(autojump_clock: MockClock) -> None:
    """Clients are told when the approval of a person shows a tool, and another one is as if it were not there."""
    deny = Consent(tools=KindConsent(deny=(Rule("*", claims=(DESTRUCTIVE,)),)))
    server = ScriptedServer("a", tools=[tool("t", annotations=READER), "u"], consent=deny)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        assert await client.names() == []
        approve(world.gate.definitions)
        await trio.sleep(1)
        assert client.notifications_of("notifications/tools/list_changed")
        assert await client.names() == ["a__t"]
        for name in ("a__u", "a__nothing"):
            with pytest.raises(Refusal, match=f"-32602 Unknown tool: {name}"):
                await client.call(name)
        nursery.cancel_scope.cancel()


async def test_a_held_reader_is_shown_to_the_person_who_decides(autojump_clock: MockClock) -> None:
    """A rule that denies what is destructive hides no definition from the person: once approved, it may read only."""
    deny = Consent(tools=KindConsent(deny=(Rule("*", claims=(DESTRUCTIVE,)), Rule("never"))))
    tools = [tool("t", annotations=READER), tool("never")]
    server = ScriptedServer("a", tools=tools, consent=deny, trust=Trust.UNTRUSTED)
    async with open_world(server) as world:
        await world.settled()
        assert [held.item.name for held in awaited(world.gate.definitions.held())] == ["t"]


def test_a_person_approves_the_claims_that_were_shown_while_only_an_older_list_is_remembered(tmp_path: Path) -> None:
    """What is held is known at once after a restart, and the list of the server only as it was before."""
    server = spec("a", Consent(tools=READERS))
    former, present = ({"t": bytes(encode(tool("t", annotations=each)))} for each in (READER, {}))
    with open_gate({"a": server}, state=tmp_path / "state") as gate:
        observe(gate, "a", Kind.TOOL, former)
        approve(gate.definitions)
        observe(gate, "a", Kind.TOOL, present)
    with open_gate({"a": server}, state=tmp_path / "state") as gate:
        definitions = gate.definitions
        assert definitions.commit(awaited(definitions.prepare(REF.source, Kind.TOOL, former, remembered=True)))
        assert definitions.offered_definition(REF) == present["t"]
        approve(definitions)
        assert definitions.evaluate(REF, None, "").verdict is ASK


@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.TRUSTED])
async def test_while_a_list_is_read_again_no_call_goes_by_the_former_claims(
    trust: Trust, autojump_clock: MockClock
) -> None:
    listing, served = trio.Event(), 0
    server = ScriptedServer("a", tools=[tool("t", annotations=READER)], consent=Consent(tools=READERS), trust=trust)

    async def slowly(_: dict[str, Any]) -> object:
        await listing.wait()
        return {"tools": server.lists["tools"]}

    async def call(_: dict[str, Any]) -> object:
        nonlocal served
        served += 1
        return {"content": []}

    server.answers["tools/call"] = call
    async with open_world(server) as world:
        client = await world.client()
        await world.settled()
        approve(world.gate.definitions)
        await client.call("a__t")
        server.answers["tools/list"] = slowly
        server.lists["tools"] = [tool("t", annotations={"destructiveHint": True})]
        await server.notifies("notifications/tools/list_changed")
        async with trio.open_nursery() as nursery:
            answer = later(nursery, client.call, "a__t")
            await wait_all_tasks_blocked()
            assert (served, answer.done) == (1, False)
            listing.set()
            assert (await answer.comes())["isError"]
        assert served == 1


TWINS = (
    '"annotations":{"readOnlyHint":false},"annotations":{"readOnlyHint":true}',
    '"annotations":{"readOnlyHint":false},"\\u0061nnotations":{"readOnlyHint":true}',
    '"annotations":{"readOnlyHint":false},"Annotations":{"readOnlyHint":true}',
    '"annotations":{"readOnlyHint":false},"annotations\\u0000":{"readOnlyHint":true}',
    '"annotations":{"readOnlyHint":false,"readOnlyHint":true}',
    '"annotations":{"readOnlyHint":false,"readonlyHint":true}',
    '"annotations":{"readOnlyHint":false,"readOnly\\u0048int":true}',
)


@pytest.mark.few(4)
@pytest.mark.parametrize("twins", TWINS)
@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.TRUSTED])
async def test_a_tool_with_two_claims_for_different_readers_is_not_there(
    twins: str, trust: Trust, autojump_clock: MockClock
) -> None:
    """As it is the reader who decides which of them is meant (rule 63)."""
    server = ScriptedServer("a", consent=Consent(tools=READERS), trust=trust, capabilities={"tools": {}})

    async def lists(_: dict[str, Any]) -> object:
        return Raw(b'{"tools":[{"name":"t","inputSchema":{"type":"object"},%b}]}' % twins.encode())

    server.answers["tools/list"] = lists
    async with open_world(server) as world:
        client = await world.client()
        assert await client.names() == []
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("a__t")


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (b'{"readOnlyHint":true,"openWorldHint":false}', "only reads"),
        (b'{"readOnlyHint":true}', "only reads, open world"),
        (b'{"destructiveHint":false,"openWorldHint":false}', "may change something"),
        (b'{"openWorldHint":false}', "may destroy"),
        (b"{}", "may destroy, open world"),
    ],
)
def test_people_read_claims_in_their_own_words(annotations: bytes, said: str) -> None:
    assert describe_claims(claims_in(b'{"annotations":%b}' % annotations).held) == said
