"""The gate gives permits by the consent of each server, and nobody else can make one; what was permitted is looked at
again right before it goes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from msgspec import Raw

from config import (
    Channel,
    Check,
    Condition,
    Consent,
    KindConsent,
    Rule,
    Trust,
    Verdict,
)
from host.errors import (
    AuditUnavailable,
    Forbidden,
    InvalidParams,
    ServerErrorResponse,
    StaleApproval,
    TimedOut,
    Unconfirmed,
    UnknownEntry,
)
from host.exchange import Answered, Exchange, NoClient
from host.journal import Event, Journal, RequestCompleted
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import encode
from host.policy.confirmations import MAX_CONFIRMABLE_BYTES, ConfirmationAnswer
from host.policy.fingerprint import Launch, arguments_digest
from host.policy.gate import AMBIGUOUS_ARGUMENTS, CallPermit
from host.protocol.methods import TARGETED, Kind, Method
from host.slices import run_inline
from host.subject import Item
from tests.kit.bodies import ARGUMENTS
from tests.kit.gates import approve_all, auto_answering, entry, kind, open_gate
from tests.kit.worker import run_workers_inline

from .servers import (
    ACME,
    ASKING,
    DESK,
    EVIL,
    SERVERS,
    STRICT,
    UNFINISHED,
    asked_about,
    call,
    dispatched,
    gate,
    offers,
    passes,
    spec,
    with_server,
)


async def test_a_permit_says_what_may_reach_what() -> None:
    exchange = call()
    with gate() as opened:
        permit = await opened.admit(exchange, entry("strict", Kind.TOOL, "get_issue"))
    assert permit is not None
    assert (permit.exchange, permit.ref) == (exchange, entry("strict", Kind.TOOL, "get_issue"))
    assert (permit.admission.decision.verdict, permit.admission.grant) == (Verdict.ALLOW, None)


@pytest.mark.parametrize("name", ["get_secret", "delete", "", "GET_x", "strict__get_x"])
async def test_what_is_denied_gets_no_permit_and_nobody_is_asked(name: str) -> None:
    with gate() as opened:
        assert await asked_about(opened, "strict", name) == (None, [])
        assert opened.admit_without_confirmation(call(), entry("strict", Kind.TOOL, name)) is None
        assert (
            opened.definitions.is_visible(entry("strict", Kind.TOOL, name)),
            opened.definitions.is_known(entry("strict", Kind.TOOL, name)),
        ) == (
            False,
            False,
        )


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("name", ["get_x", "get_secret", "create_x", "delete", "x://y", "file:///x"])
@pytest.mark.parametrize("server", ["open", "strict", "asking", "trusted", "untrusted"])
async def test_what_is_listed_is_what_may_be_reached_at_least_with_a_persons_consent(
    server: str, kind: Kind, name: str
) -> None:
    with gate() as opened:
        offers(opened, server, name, kind=kind)
        for _ in ("before", "after"):
            with auto_answering(opened):
                reached = await opened.admit(call(), entry(server, kind, name)) is not None
            assert (
                opened.definitions.is_visible(entry(server, kind, name))
                == opened.definitions.is_known(entry(server, kind, name))
                == reached
            )
            approve_all(opened)


async def test_the_consent_of_one_server_is_not_that_of_another() -> None:
    with gate() as opened:
        assert opened.definitions.is_visible(entry("open", Kind.TOOL, "get_secret"))
        assert not opened.definitions.is_visible(entry("strict", Kind.TOOL, "get_secret"))


@pytest.mark.parametrize("kind", list(Kind))
async def test_nothing_of_an_unknown_server_exists(kind: Kind) -> None:
    with gate() as opened, auto_answering(opened) as asked:
        assert await opened.admit(call(), entry("stranger", kind, "x")) is None
        assert opened.admit_without_confirmation(call(), entry("stranger", kind, "x")) is None
        assert not opened.definitions.is_visible(entry("stranger", kind, "x"))
        assert not opened.policies.has_server("stranger")
    assert asked == []


async def test_trust_opens_no_door_that_consent_closes() -> None:
    with gate() as opened:
        assert await asked_about(opened, "trusted", "get_secret") == (None, [])


async def test_arguments_that_a_rule_denies_are_refused_aloud() -> None:
    """The tool itself is no secret: it is listed."""
    consent = Consent(tools=KindConsent(deny=(EVIL,)))
    with gate({"s": spec("s", consent)}) as opened:
        assert opened.definitions.is_visible(entry("s", Kind.TOOL, "create"))
        for arguments in ({"owner": "evil"}, {}, None, {"owner": 5}):
            with pytest.raises(Forbidden, match=r"tool create of s is not allowed with these arguments") as refused:
                await opened.admit(call(arguments), entry("s", Kind.TOOL, "create"))
            assert refused.value.code == 403
        assert await opened.admit(call({"owner": "acme"}), entry("s", Kind.TOOL, "create")) is not None
        broken = Exchange(Request(1, "tools/call"), {"arguments": Raw(b'{"owner":')}, DESK, NoClient())
        with pytest.raises(Forbidden):
            await opened.admit(broken, entry("s", Kind.TOOL, "create"))


async def test_the_arguments_of_a_method_stand_where_its_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that is new in the table is not evaluated by an empty object."""
    row = Method("tools/plan", Kind.TOOL, "name", "input", "tools")
    monkeypatch.setitem(TARGETED, row.name, row)
    consent = Consent(tools=KindConsent(allow=(ACME,)))
    with gate({"s": spec("s", consent)}) as opened:
        asked = Exchange(Request(1, row.name), {"input": encode({"owner": "acme"})}, DESK, NoClient())
        assert await opened.admit(asked, entry("s", Kind.TOOL, "create")) is not None
        asked = Exchange(Request(1, row.name), {"input": encode({"owner": "evil"})}, DESK, NoClient())
        with pytest.raises(Forbidden):
            await opened.admit(asked, entry("s", Kind.TOOL, "create"))


async def test_arguments_that_a_rule_allows_pass_and_others_are_for_a_person() -> None:
    consent = Consent(tools=KindConsent(allow=(ACME,), default=Verdict.ASK))
    with gate({"s": spec("s", consent)}) as opened:
        assert await opened.admit(call({"owner": "acme"}), entry("s", Kind.TOOL, "create")) is not None
        with pytest.raises(Unconfirmed):
            await opened.admit(call({"owner": "evil"}), entry("s", Kind.TOOL, "create"))


async def test_what_was_permitted_goes_as_long_as_nothing_about_it_has_changed() -> None:
    """Whatever else did."""
    with gate() as opened:
        plain = await opened.admit(call(), entry("open", Kind.TOOL, "x"))
        asked, _ = await asked_about(opened, "asking", "create_x")
        opened.replace({**SERVERS, "more": spec("more", STRICT)})
        offers(opened, "strict", "get_x")
        offers(opened, "strict", "get_x", description="Other.")
        for permit in (plain, asked):
            assert permit is not None
            assert permit.admission.epoch != opened.policies.epoch
            with dispatched(permit):
                permit.dispatch()  # once more
                assert opened.decision_log.in_flight[permit.ref.server] == 1
            assert opened.decision_log.in_flight[permit.ref.server] == 0


@pytest.mark.parametrize(
    ("before", "after", "goes"),
    [
        (Consent(), Consent(tools=kind(deny=["create_*"])), False),
        (Consent(), Consent(tools=kind(ask=["create_*"])), False),
        (Consent(), Consent(tools=kind(allow=["create_*"])), True),
        (ASKING, Consent(tools=kind(deny=["create_*"])), False),
        (ASKING, Consent(tools=kind(ask=["create_?"])), False),
        (ASKING, replace(ASKING, prompts=kind(deny=["*"])), True),
        (ASKING, Consent(tools=kind(allow=["create_x"])), True),
    ],
)
async def test_rules_that_came_since_decide(before: Consent, after: Consent, goes: bool) -> None:
    """What a person agreed to under one rule is not agreed to under another."""
    with gate(with_server("asking", consent=before)) as opened:
        permit, _ = await asked_about(opened, "asking", "create_x")
        assert permit is not None
        opened.replace(with_server("asking", consent=after))
        if goes:
            with dispatched(permit):
                return
        with pytest.raises(StaleApproval, match="has changed meanwhile") as refused, dispatched(permit):
            pytest.fail("it went")
        assert refused.value.code == 409


async def test_what_happened_to_its_server_since_decides() -> None:
    gone = {id: each for id, each in SERVERS.items() if id != "asking"}
    for what in ("definition", "grant", "gone", "launch", "approval", "trust"):
        with gate() as opened:
            offers(opened, "asking", "create_x")
            run_inline(opened.definitions.observe_launch("asking", Launch("d", "/bin/one")))
            permit, _ = await asked_about(opened, "asking", "create_x")
            assert permit is not None
            assert permit.admission.grant is not None
            if what == "definition":
                offers(opened, "asking", "create_x", description="Other.")
            elif what == "grant":
                assert run_inline(opened.authorizer.revoke_grant(permit.admission.grant.id, "console"))
            elif what == "gone":
                opened.replace(gone)
            elif what == "launch":
                run_inline(opened.definitions.observe_launch("asking", Launch("edited", "/bin/one")))
            elif what == "approval":
                run_inline(
                    opened.definitions.revoke(
                        Item("asking", "tool", "create_x"),
                        opened.definitions.fingerprint(entry("asking", Kind.TOOL, "create_x")),
                        "c",
                    )
                )
            else:
                opened.replace(with_server("asking", consent=Consent(), trust=Trust.UNTRUSTED))
            with pytest.raises(StaleApproval), dispatched(permit):
                pytest.fail(f"it went in spite of another {what}")


async def test_what_is_dispatched_may_be_sent_once_more_unless_it_is_closed_by_then() -> None:
    with gate() as opened:
        permit = await opened.admit(call(), entry("open", Kind.TOOL, "x"))
        assert permit is not None
        with dispatched(permit):
            permit.dispatch()
            opened.replace(with_server("open", consent=STRICT))
            with pytest.raises(StaleApproval):
                permit.dispatch()


async def test_pages_of_an_untrusted_server_are_left_out_of_its_results() -> None:
    result = Raw(b'{"contents":[{"uri":"ui://a/page","text":"x"}]}')
    for server, is_whole in (("open", True), ("untrusted", False)):
        with gate() as opened:
            offers(opened, server, "file:///x", kind=Kind.RESOURCE)
            approve_all(opened)
            exchange = Exchange(Request(1, "resources/read"), {}, DESK, NoClient())
            with auto_answering(opened):
                permit = await opened.admit(exchange, entry(server, Kind.RESOURCE, "file:///x"))
            assert permit is not None
            permit.dispatch()
            assert (permit.accept(Answered(result)) == result) is is_whole


async def test_a_passage_writes_down_how_its_call_ended() -> None:
    """Once, and as the server ended it, whatever is made of that; of what was not sent there is nothing."""
    events: list[Event] = []
    refusal = ServerErrorResponse("open", -32603, "no", None)
    journal = Journal()
    journal.subscribe(events.append)

    async def ends(end: Callable[[CallPermit], object], *, is_sent: bool = True) -> list[tuple[str, int]]:
        events.clear()
        with suppress(UnknownEntry, TimedOut):
            async with opened.passage(call(), entry("open", Kind.TOOL, "x")) as permit:
                if is_sent:
                    permit.dispatch()
                end(permit)
        assert opened.decision_log.in_flight["open"] == 0
        return [(each.outcome, each.size) for each in events if isinstance(each, RequestCompleted)]

    def refuses(permit: CallPermit) -> None:
        permit.fail(refusal)
        raise UnknownEntry("Unknown tool: x")

    def is_silent(permit: CallPermit) -> None:
        raise TimedOut("open", "open did not answer")

    with open_gate(SERVERS, journal) as opened:
        assert await ends(lambda permit: permit.accept(Answered(Raw(b"{}")))) == [("answered", 2)]
        assert await ends(lambda permit: permit.renew_for_retry(UNFINISHED)) == [("answered", 0)]
        assert await ends(refuses) == [("error -32603", 0)]
        assert await ends(is_silent) == [("error 504", 0)]
        assert await ends(is_silent, is_sent=False) == []
        assert await ends(lambda permit: None, is_sent=False) == []


async def test_what_cannot_be_written_down_does_not_go() -> None:
    """Nor is anything granted; and as soon as it can be, it does."""
    with gate() as opened:
        permit = await opened.admit(call(), entry("open", Kind.TOOL, "x"))
        assert permit is not None
        with dispatched(permit):  # from now on there is a file
            pass
        file = opened.decision_log._audit._file
        assert file is not None
        descriptor = file.descriptor
        kept = os.dup(descriptor)
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            os.dup2(full, descriptor)
            with pytest.raises(AuditUnavailable), dispatched(permit):
                pytest.fail("it went")
            assert opened.decision_log.problem
            with pytest.raises(Unconfirmed):
                await opened.admit(call(), entry("asking", Kind.TOOL, "create_x"))
            (pending,) = opened.authorizer.confirmations.list_all()
            with pytest.raises(AuditUnavailable):
                run_inline(
                    opened.authorizer.confirmations.answer(pending.id, ConfirmationAnswer.ALWAYS, Channel.CONSOLE)
                )
            assert opened.authorizer.grants.all() == []
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
            os.close(full)
        with dispatched(permit):
            assert not opened.decision_log.problem


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("owner", ["acme", "evil"])
async def test_conditions_on_arguments_of_any_size_hold_or_do_not(
    owner: str, arguments: Callable[[], bytes], autojump_clock: object
) -> None:
    """The one that they name is read, and the others are not."""
    run_workers_inline()
    rule = Rule("create_*", when=(Condition("owner", (Check("eq", "acme"),)),))
    servers = {"conditional": spec("conditional", Consent(tools=KindConsent(allow=(rule,))))}
    given = Raw(arguments()[:-1] + b',"owner":"%b"}' % owner.encode())
    with gate(servers) as opened:
        exchange = Exchange(Request(1, "tools/call"), {"arguments": given}, DESK, NoClient())
        readable = rb"\ud800" not in bytes(given)
        if owner == "acme" and readable:
            permit = await opened.admit(exchange, entry("conditional", Kind.TOOL, "create_issue"))
            assert permit is not None
            with dispatched(permit):
                pass
        else:
            with pytest.raises(Forbidden):
                await opened.admit(exchange, entry("conditional", Kind.TOOL, "create_issue"))


CONDITIONED = Rule("save", when=(Condition("/path", (Check("prefix", "/home"),)),))
SCHEMA: dict[str, Any] = {"properties": {"path": {}, "options": {"properties": {"mode": {}}}}}


@pytest.mark.parametrize("size", [0, 20 * 1024, 200 * 1024], ids=["short", "long", "heavy"])
@pytest.mark.parametrize("consent", ["allow", "ask", "deny"])
@pytest.mark.parametrize("twin", ["Path", "path\0", "options"])
async def test_arguments_that_some_readers_take_for_others_are_refused_where_they_are_judged(
    consent: str, size: int, twin: str, autojump_clock: object
) -> None:
    """A condition judges them, or a person has to confirm them. The refusal is recorded, and nobody is asked."""
    run_workers_inline()
    rules: dict[str, Any] = {
        "allow": KindConsent(allow=(CONDITIONED,)),
        "ask": KindConsent(ask=(Rule("save"),)),
        "deny": KindConsent(deny=(replace(CONDITIONED, when=(Condition("/path", (Check("prefix", "/etc"),)),)),)),
    }
    filling = {f"n{at}": "" for at in range(size // 32)}
    other: object = {"Mode": 1} if twin == "options" else "/etc/x"
    with gate({"s": spec("s", Consent(tools=rules[consent]))}) as opened, auto_answering(opened) as asked:
        offers(opened, "s", "save", "other", inputSchema=SCHEMA)
        exchange = call({"path": "/home/x", **filling, twin: other})
        with pytest.raises(InvalidParams, match="some readers take the member"):
            await opened.admit(exchange, entry("s", Kind.TOOL, "save"))
        assert asked == []
        path = opened.decision_log._audit.path
        assert path is not None
        [record] = [each for each in map(json.loads, path.read_text().splitlines()) if each["kind"] == "decision"]
        assert (record["verdict"], record["rule"]) == ("deny", AMBIGUOUS_ARGUMENTS.rule)
        if consent != "allow":
            permit = await opened.admit(exchange, entry("s", Kind.TOOL, "other"))  # whose arguments nothing judges
            assert permit is not None


@pytest.mark.parametrize("size", [0, 20 * 1024], ids=["short", "long"])
async def test_a_text_that_its_server_may_parse_is_not_judged_as_a_text(size: int) -> None:
    """Neither rule may be decided by the text: the tool may get the list that it is the JSON of."""
    path, text = Condition("/path", (Check("prefix", "["),)), '["/etc/x"]'
    denied = Rule("save", when=(replace(path, checks=(Check("prefix", "/etc"),)),))
    rules = {"allow": KindConsent(allow=(Rule("save", when=(path,)),)), "deny": KindConsent(deny=(denied,))}
    for consent in rules.values():
        for taken, passes_it in ({"type": "string"}, True), ({"type": ["string", "array"]}, False), ({}, False):
            with gate({"s": spec("s", Consent(tools=consent))}) as opened:
                offers(opened, "s", "save", inputSchema={"properties": {"path": taken}})
                exchange = call({"path": text, "fill": "x" * size})
                if passes_it:
                    assert await opened.admit(exchange, entry("s", Kind.TOOL, "save")) is not None
                    continue
                with pytest.raises(Forbidden, match="not allowed with these arguments"):
                    await opened.admit(exchange, entry("s", Kind.TOOL, "save"))


async def test_a_rule_that_comes_meanwhile_finds_them_too() -> None:
    with gate({"s": spec("s")}) as opened:
        offers(opened, "s", "save", inputSchema=SCHEMA)
        permit = await opened.admit(call({"path": "/home/x", "Path": "/etc/x"}), entry("s", Kind.TOOL, "save"))
        assert permit is not None
        opened.replace({"s": spec("s", Consent(tools=KindConsent(allow=(CONDITIONED,))))})
        with pytest.raises(StaleApproval):
            permit.dispatch()


def sent(**members: object) -> Exchange:
    """A call with these members beside the same arguments."""
    params = {"name": encode("create_x"), "arguments": encode({"a": 1}), **{k: encode(v) for k, v in members.items()}}
    return Exchange(Request(1, "tools/call"), params, DESK, NoClient())


async def test_an_answer_for_exact_arguments_is_bound_to_all_that_is_sent() -> None:
    with gate() as opened:
        extra: dict[str, object] = {"x": 1, "more": {"a": [2]}}
        _, asked = await asked_about(opened, "asking", "create_x", sent(**extra), ConfirmationAnswer.ALWAYS)
        assert [json.loads(each.context.others) for each in asked] == [extra]
        same: dict[str, object] = {"more": {"a": [2]}, "x": 1}  # in another order
        alike: tuple[dict[str, object], ...] = (
            same,
            {**same, "_meta": {"y": 1}},
            {**same, "task": {"ttl": 5}, "requestState": "s"},
        )
        for members in alike:
            assert await passes(opened, "create_x", sent(**members))
        others: tuple[dict[str, object], ...] = ({}, {"x": 1}, {**same, "x": 2}, {**same, "y": 1})
        for members in others:
            assert not await passes(opened, "create_x", sent(**members))


async def test_an_answer_about_arguments_alone_holds_for_nothing_beside_them() -> None:
    """As an earlier version stored it: the digest of the arguments."""
    with gate() as opened:
        _, asked = await asked_about(opened, "asking", "create_x", sent(), ConfirmationAnswer.ALWAYS)
        assert [each.access.subject.digest for each in asked] == [arguments_digest(b'{"a":1}')]
        assert [each.context.others for each in asked] == [b""]
        assert await passes(opened, "create_x", sent(_meta={"y": 1}))
        assert not await passes(opened, "create_x", sent(x=1))


async def test_what_is_sent_beside_the_arguments_counts_for_their_length() -> None:
    with gate() as opened, auto_answering(opened) as asked:
        with pytest.raises(Forbidden, match="bytes are more than a person can agree to"):
            await opened.admit(sent(x="y" * MAX_CONFIRMABLE_BYTES), entry("asking", Kind.TOOL, "create_x"))
        assert asked == []
