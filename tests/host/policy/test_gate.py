"""The gate gives permits by the consent of each server, and nobody else can make one; what was permitted is looked at
again right before it goes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw, structs

from config import (
    AskSpec,
    CallerSpec,
    Channel,
    Check,
    Condition,
    Consent,
    KindConsent,
    Rule,
    ServerSpec,
    ToolClaim,
    Trust,
    Verdict,
)
from host.client_process import ClientProcess
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
from host.exchange import Answered, Caller, Exchange, NoClient
from host.journal import Event, Journal, RequestCompleted
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import encode
from host.policy.confirmations import MAX_CONFIRMABLE_BYTES, ConfirmationAnswer
from host.policy.fingerprint import Launch, arguments_digest
from host.policy.gate import AMBIGUOUS_ARGUMENTS, CallPermit, Gate
from host.policy.rules import NO_TOOL_RULES
from host.protocol.abilities import NO_ABILITIES
from host.protocol.methods import TARGETED, Kind, Method
from host.protocol.search_tools import CALL_TOOL, READ_TOOL
from host.source import SHARED, EntryRef
from host.subject import Item, Subject
from tests.kit.awaited import awaited
from tests.kit.bodies import ARGUMENTS
from tests.kit.gates import approve_all, auto_answering, entry, kind, observe, open_gate
from tests.kit.worker import run_workers_inline

from .servers import (
    ACME,
    ASKING,
    DESK,
    EVIL,
    OTHER_TOKEN,
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
            opened.definitions.is_visible(entry("strict", Kind.TOOL, name), ""),
            opened.definitions.is_known(entry("strict", Kind.TOOL, name), ""),
        ) == (
            False,
            False,
        )


@pytest.mark.parametrize("server", ["open", "strict", "asking", "trusted", "untrusted"])
async def test_what_is_listed_is_what_may_be_reached_at_least_with_a_persons_consent(server: str) -> None:
    names = ["get_x", "get_secret", "create_x", "delete", "x://y", "file:///x"]
    with gate() as opened:
        for kind in Kind:
            offers(opened, server, *names, kind=kind)
        for when in ("before", "after"):
            for ref in (entry(server, kind, name) for kind in Kind for name in names):
                with auto_answering(opened):
                    reached = await opened.admit(call(), ref) is not None
                assert opened.definitions.is_visible(ref, "") == opened.definitions.is_known(ref, "") == reached, (
                    when,
                    ref,
                )
            approve_all(opened)


async def test_the_consent_of_one_server_is_not_that_of_another() -> None:
    with gate() as opened:
        assert opened.definitions.is_visible(entry("open", Kind.TOOL, "get_secret"), "")
        assert not opened.definitions.is_visible(entry("strict", Kind.TOOL, "get_secret"), "")


@pytest.mark.parametrize("kind", list(Kind))
async def test_nothing_of_an_unknown_server_exists(kind: Kind) -> None:
    with gate() as opened, auto_answering(opened) as asked:
        assert await opened.admit(call(), entry("stranger", kind, "x")) is None
        assert opened.admit_without_confirmation(call(), entry("stranger", kind, "x")) is None
        assert not opened.definitions.is_visible(entry("stranger", kind, "x"), "")
        assert not opened.policies.has_server("stranger")
    assert asked == []


async def test_trust_opens_no_door_that_consent_closes() -> None:
    with gate() as opened:
        assert await asked_about(opened, "trusted", "get_secret") == (None, [])


async def test_arguments_that_a_rule_denies_are_refused_aloud() -> None:
    """The tool itself is no secret: it is listed."""
    consent = Consent(tools=KindConsent(deny=(EVIL,)))
    with gate({"s": spec("s", consent)}) as opened:
        assert opened.definitions.is_visible(entry("s", Kind.TOOL, "create"), "")
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
        opened.replace({**SERVERS, "more": spec("more", STRICT)}, {})
        offers(opened, "strict", "get_x")
        offers(opened, "strict", "get_x", description="Other.")
        for permit in (plain, asked):
            assert permit is not None
            assert permit.admission.state != opened.state
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
        opened.replace(with_server("asking", consent=after), {})
        if goes:
            with dispatched(permit):
                return
        with pytest.raises(StaleApproval, match="has changed meanwhile") as refused, dispatched(permit):
            pytest.fail("it went")
        assert refused.value.code == 409


DESK_ONLY = Consent(
    tools=KindConsent(
        allow=(Rule("get", callers=("desk",)), Rule("put")),
        ask=(Rule("put", callers=("desk",)),),
        deny=(Rule("get", callers=("phone",)),),
    )
)


async def test_a_rule_for_some_callers_is_not_there_for_others() -> None:
    """What a list permits one caller only, it denies all others, and a caller without a name is none of them."""
    named = {"desk": CallerSpec("token"), "phone": CallerSpec("other"), "more": CallerSpec("third")}
    nobody, more = (Caller("desk", SHARED, identity) for identity in (None, "third"))
    with gate({"s": spec("s", DESK_ONLY)}, callers=named) as opened:
        get, put = entry("s", Kind.TOOL, "get"), entry("s", Kind.TOOL, "put")
        shown = {name: opened.definitions.is_visible(get, name) for name in ("", "desk", "phone", "more")}
        assert shown == {"": False, "desk": True, "phone": False, "more": False}
        assert await opened.admit(call(), get) is not None
        for caller in (OTHER_TOKEN, nobody, more):
            assert await opened.admit(call(caller=caller), get) is None
            assert await opened.admit(call(caller=caller), put) is not None
        with pytest.raises(Unconfirmed):
            await opened.admit(call(), put)
        with auto_answering(opened):
            assert await opened.admit(call(), put) is not None


@pytest.mark.parametrize(("name", "before", "after"), [("get", "token", "other"), ("put", "other", "token")])
async def test_another_name_of_the_caller_that_came_since_decides(name: str, before: str, after: str) -> None:
    """A call that was let in as one of a caller is sent as what it is then."""
    servers = {"s": spec("s", DESK_ONLY)}
    with gate(servers, callers={"desk": CallerSpec(before)}) as opened:
        permit, again = [await opened.admit(call(), entry("s", Kind.TOOL, name)) for _ in range(2)]
        assert permit is not None
        assert again is not None
        with dispatched(again):
            opened.replace(servers, {"desk": CallerSpec(after)})
            if name == "get":
                with pytest.raises(StaleApproval):
                    again.dispatch()
            with pytest.raises(StaleApproval), dispatched(permit):
                pytest.fail("it went")


async def test_a_question_ends_with_the_name_of_its_caller() -> None:
    servers, answered = {"s": spec("s", DESK_ONLY)}, trio.Event()
    with gate(servers, callers={"desk": CallerSpec("token")}) as opened:
        queue = opened.authorizer.confirmations
        with queue.attach(Channel.CONSOLE):
            async with trio.open_nursery() as nursery:

                async def asks() -> None:
                    with pytest.raises(StaleApproval):
                        await opened.admit(call(), entry("s", Kind.TOOL, "put"))
                    answered.set()

                nursery.start_soon(asks)
                await trio.testing.wait_all_tasks_blocked()
                assert len(queue.list_all()) == 1
                opened.replace(servers, {"desk": CallerSpec("other")})
                await answered.wait()


async def test_what_happened_to_its_server_since_decides() -> None:
    gone = {id: each for id, each in SERVERS.items() if id != "asking"}
    for what in ("definition", "grant", "gone", "launch", "approval", "trust"):
        with gate() as opened:
            offers(opened, "asking", "create_x")
            awaited(opened.definitions.observe_launch("asking", Launch("d", "/bin/one")))
            permit, _ = await asked_about(opened, "asking", "create_x")
            assert permit is not None
            assert permit.admission.grant is not None
            if what == "definition":
                offers(opened, "asking", "create_x", description="Other.")
            elif what == "grant":
                assert awaited(opened.authorizer.revoke_grant(permit.admission.grant.id, "console"))
            elif what == "gone":
                opened.replace(gone, {})
            elif what == "launch":
                awaited(opened.definitions.observe_launch("asking", Launch("edited", "/bin/one")))
            elif what == "approval":
                awaited(
                    opened.definitions.revoke(
                        Item("asking", "tool", "create_x"),
                        opened.definitions.fingerprint(entry("asking", Kind.TOOL, "create_x")),
                        "c",
                    )
                )
            else:
                opened.replace(with_server("asking", consent=Consent(), trust=Trust.UNTRUSTED), {})
            with pytest.raises(StaleApproval), dispatched(permit):
                pytest.fail(f"it went in spite of another {what}")


@pytest.mark.parametrize("was_sent", [False, True])
async def test_what_another_process_decided_counts_once_it_was_read_with_something_else(
    was_sent: bool, tmp_path: Path
) -> None:
    """Not only when this process next looks for such decisions."""
    add = entry("open", Kind.TOOL, "add")
    with gate(state=tmp_path) as opened, gate(state=tmp_path) as other:
        offers(opened, "strict", "get_x")
        for each in (opened, other):
            offers(each, "open", "add")
        permit = await opened.admit(call(), add)
        assert permit is not None
        if was_sent:
            permit.dispatch()
        await other.definitions.revoke(add.item, other.definitions.fingerprint(add), Channel.CONSOLE.value)
        offers(opened, "strict", "get_x")  # the same again: nothing is new
        assert await denied_or_held(opened, add)
        with pytest.raises(StaleApproval):
            permit.dispatch()
        permit.release()


async def denied_or_held(opened: Gate, ref: EntryRef) -> bool:
    """Whether a new call of it gets no permit."""
    try:
        return await opened.admit(call(), ref) is None
    except StaleApproval:
        return True


async def test_what_is_dispatched_may_be_sent_once_more_unless_it_is_closed_by_then() -> None:
    with gate() as opened:
        permit = await opened.admit(call(), entry("open", Kind.TOOL, "x"))
        assert permit is not None
        with dispatched(permit):
            permit.dispatch()
            opened.replace(with_server("open", consent=STRICT), {})
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


async def test_a_permit_writes_down_how_its_call_ended() -> None:
    """Once, and as the server ended it, whatever is made of that; of what was not sent there is nothing."""
    events: list[Event] = []
    refusal = ServerErrorResponse("open", -32603, "no", None)
    journal = Journal()
    journal.subscribe(events.append)

    async def ends(end: Callable[[CallPermit], object], *, is_sent: bool = True) -> list[tuple[str, int, bool]]:
        events.clear()
        with suppress(UnknownEntry, TimedOut):
            admitted = await opened.admit(call(), entry("open", Kind.TOOL, "x"))
            assert admitted is not None
            async with admitted as permit:
                if is_sent:
                    permit.dispatch()
                end(permit)
        assert opened.decision_log.in_flight["open"] == 0
        return [(each.outcome, each.size, each.tool_error) for each in events if isinstance(each, RequestCompleted)]

    def refuses(permit: CallPermit) -> None:
        permit.fail(refusal)
        raise UnknownEntry("Unknown tool: x")

    def is_silent(permit: CallPermit) -> None:
        raise TimedOut("open", "open did not answer")

    with open_gate(SERVERS, journal) as opened:
        assert await ends(lambda permit: permit.accept(Answered(Raw(b"{}")))) == [("answered", 2, False)]
        failed = Answered(Raw(b"{}"), tool_error=True)
        assert await ends(lambda permit: permit.accept(failed)) == [("answered", 2, True)]
        assert await ends(lambda permit: permit.renew_for_retry(UNFINISHED)) == [("answered", 0, False)]
        assert await ends(refuses) == [("error -32603", 0, False)]
        assert await ends(is_silent) == [("error 504", 0, False)]
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
                awaited(opened.authorizer.confirmations.answer(pending.id, ConfirmationAnswer.ALWAYS, Channel.CONSOLE))
            assert opened.authorizer.grants.all() == []
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
            os.close(full)
        with dispatched(permit):
            assert not opened.decision_log.problem


@pytest.mark.few(9)
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


@pytest.mark.few(7)
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
        opened.replace({"s": spec("s", Consent(tools=KindConsent(allow=(CONDITIONED,))))}, {})
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


async def test_no_grant_depends_on_the_program_of_a_client_or_on_its_own_words() -> None:
    """Both are shown and recorded. A grant for the token holds for each client with it, whatever it says it is."""
    claude, codex = ClientProcess("claude", 7, "/work"), ClientProcess("codex", 8, "/other", {"A": "b"})
    one = call({}, Caller("token, session 1 (claude 1.0)", SHARED, "token", session="s1", process=claude))
    other = call({}, Caller("token, session 2 (codex 2.0)", SHARED, "token", session="s2", process=codex))
    stranger = call({}, Caller("token, session 1 (claude 1.0)", SHARED, "other", session="s1", process=claude))
    with gate() as opened:
        _, asked = await asked_about(opened, "asking", "create_x", one, ConfirmationAnswer.ALWAYS)
        assert [each.context.process for each in asked] == [claude]
        assert await passes(opened, "create_x", other)
        assert not await passes(opened, "create_x", stranger)
    assert Subject.__struct_fields__ == ("item", "caller", "session", "fingerprint", "launch", "rule", "digest")


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


# Through a search tool

READING = {"readOnlyHint": True}


def looked_at(opened: Gate, name: str) -> None:
    """A person approves the definition of a tool that was listed when it was first seen."""
    ref = entry("open", Kind.TOOL, name)
    awaited(opened.definitions.approve(ref.item, opened.definitions.fingerprint(ref), "console"))


def through(tool: str) -> Exchange:
    return structs.replace(call({"a": 1}), through=tool)


async def test_without_consent_a_call_through_call_tool_asks_unless_its_tool_claims_to_read() -> None:
    with gate() as opened:
        listed = {"change": {"name": "change"}, "read": {"name": "read", "annotations": READING}}
        observe(opened, "open", Kind.TOOL, {name: json.dumps(each).encode() for name, each in listed.items()})
        assert (await opened.admit(call(), entry("open", Kind.TOOL, "read"))) is not None
        for name in ("change", "read"):  # the claims of "read" do not count yet
            permit, (asked,) = await asked_about(opened, "open", name, through(CALL_TOOL))
            assert permit is not None
            assert asked.context.through == CALL_TOOL
            assert asked.access.subject.rule == NO_TOOL_RULES.rule
        looked_at(opened, "read")
        permit, nothing = await asked_about(opened, "open", "read", through(CALL_TOOL))
        assert (permit is not None, nothing) == (True, [])


async def test_an_answer_for_calls_through_call_tool_lasts_as_others_do() -> None:
    with gate() as opened:
        offers(opened, "open", "change")
        await asked_about(opened, "open", "change", through(CALL_TOOL), ConfirmationAnswer.SESSION)
        opened.replace(SERVERS, {})  # grants of rules that are gone end here
        permit, asked = await asked_about(opened, "open", "change", through(CALL_TOOL))
        assert (permit is not None, asked) == (True, [])
        opened.replace(with_server("open", consent=STRICT), {})
        assert opened.authorizer.grants.all() == []


async def test_a_confirmation_through_call_tool_outlasts_changes_that_do_not_concern_it() -> None:
    with gate() as opened:
        offers(opened, "open", "change")
        with opened.authorizer.confirmations.attach(Channel.CONSOLE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(opened.admit, through(CALL_TOOL), entry("open", Kind.TOOL, "change"))
                await trio.testing.wait_all_tasks_blocked()
                opened.policies.begin_epoch()
                (waiting,) = opened.authorizer.confirmations.list_all()
                assert not waiting.refused
                nursery.cancel_scope.cancel()


async def test_read_tool_refuses_aloud_what_does_not_claim_to_read_and_writes_it_down() -> None:
    with gate() as opened:
        offers(opened, "open", "read", annotations=READING)
        with pytest.raises(Forbidden, match=r"does not claim to only read .*call it through call_tool"):
            await opened.admit(through(READ_TOOL), entry("open", Kind.TOOL, "read"))
        looked_at(opened, "read")
        permit = await opened.admit(through(READ_TOOL), entry("open", Kind.TOOL, "read"))
        assert permit is not None
        assert permit.depends_on_definition
        offers(opened, "open", "read")  # it claims nothing any more, so the call does not go
        with pytest.raises(StaleApproval):
            permit.dispatch()
        with pytest.raises(StaleApproval):  # nor the next one, though one like it was admitted
            await opened.admit(through(READ_TOOL), entry("open", Kind.TOOL, "read"))


@pytest.mark.parametrize("tool", [CALL_TOOL, READ_TOOL])
@pytest.mark.parametrize("exists", [False, True])
async def test_what_is_hidden_is_missing_through_a_search_tool_too(tool: str, exists: bool) -> None:
    with gate() as opened:
        offers(opened, "strict", "delete", annotations=READING)
        assert await opened.admit(through(tool), entry("strict", Kind.TOOL, "delete"), exists=exists) is None
        assert await opened.admit(through(tool), entry("strict", Kind.TOOL, "get_x"), exists=False) is None


async def test_the_records_say_what_a_call_came_through() -> None:
    with gate() as opened:
        offers(opened, "strict", "get_issue")
        permit = await opened.admit(through(CALL_TOOL), entry("strict", Kind.TOOL, "get_issue"))
        assert permit is not None
        assert opened._revalidate(permit).through == CALL_TOOL


def test_a_client_may_have_to_confirm_calls_through_call_tool() -> None:
    able = structs.replace(DESK, abilities=structs.replace(NO_ABILITIES, form=True))
    with gate(ask=AskSpec(answers=(Channel.CLIENT,))) as opened:
        offers(opened, "open", "change")
        assert opened.client_may_confirm(entry("open", Kind.TOOL, "change"), able, CALL_TOOL)
        assert not opened.client_may_confirm(entry("open", Kind.TOOL, "change"), able, "")


async def test_what_is_kept_of_an_entry_with_conditions_ends_with_what_it_was_made_of() -> None:
    """Each change comes between two calls that are alike, and decides about the second."""
    listed, braced = (Rule("add", (Condition("/title", (Check("prefix", each),)),)) for each in "[{")
    claiming = KindConsent((listed,), deny=(Rule("add", claims=(ToolClaim.DESTRUCTIVE,)),))
    texts, lists = ({"properties": {"title": {"type": each}}} for each in ("string", ["string", "array"]))
    reads = {"readOnlyHint": True}
    add = entry("trusted", Kind.TOOL, "add")

    async def allowed(title: str) -> bool:
        permits: list[CallPermit | None] = []
        for _ in range(2):
            with suppress(Forbidden):
                permits.append(await opened.admit(call({"title": title}), add))
        assert len(permits) in (0, 2)
        return permits != [] and None not in permits

    def trusted(tools: KindConsent) -> dict[str, ServerSpec]:
        return with_server("trusted", consent=Consent(tools=tools))

    with gate(trusted(KindConsent((listed,)))) as opened:
        offers(opened, "trusted", "add", inputSchema=texts, annotations=reads)
        assert [await allowed("[1]"), await allowed("1")] == [True, False]
        offers(opened, "trusted", "add", inputSchema=lists, annotations=reads)
        assert [await allowed("[1]"), await allowed("[1")] == [False, True], "only the first is parsed"
        opened.replace(trusted(KindConsent((braced,))), {})
        assert not await allowed("[1")
        opened.replace(trusted(claiming), {})
        assert await allowed("[1")
        offers(opened, "trusted", "add", inputSchema=lists)
        assert not await allowed("[1")
