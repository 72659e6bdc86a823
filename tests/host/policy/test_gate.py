"""The gate gives permits by the consent of each server, and nobody else can make one; what was permitted is looked at
again right before it goes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import (
    AskSpec,
    Channel,
    Check,
    Condition,
    Consent,
    HttpServer,
    KindConsent,
    Rule,
    ServerSpec,
    Trust,
    Verdict,
)
from config.interpolate import Secret
from host.errors import AuditUnavailable, Forbidden, ProtocolViolation, StaleApproval, Unconfirmed
from host.exchange import Caller, Exchange, MrtrRound, NoClient
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import EMPTY_OBJECT, encode
from host.names import MAX_MATCHED_LENGTH
from host.policy import uris
from host.policy.confirmations import MAX_CONFIRMABLE_BYTES, ConfirmationAnswer, PendingConfirmation
from host.policy.fingerprint import Launch
from host.policy.gate import MAX_HELD_MATCHES, MAX_HELD_URIS, MAX_RENEWALS, MAX_ROOTS, Gate, Permit, ServerRequestPermit
from host.policy.grants import Scope
from host.policy.pins import PinStatus
from host.protocol.abilities import ALL_ABILITIES, NO_ABILITIES
from host.protocol.methods import TARGETED, Kind, Method
from host.protocol.questions import CannotAsk, Question
from host.slices import run_inline
from tests.kit.bodies import ARGUMENTS
from tests.kit.gates import approve_all, auto_answering, kind, observe, open_gate

STRICT = Consent(tools=kind(allow=["get_*"], deny=["get_secret"]))
ASKING = Consent(tools=kind(ask=["create_*"]), resources=kind(ask=["file:///**"]), prompts=kind(ask=["p*"]))
DESK = Caller("desk", None, "token", session="s1")


def spec(id: str, consent: Consent | None = None, trust: Trust = Trust.STANDARD) -> ServerSpec:
    return HttpServer(id=id, url=Secret("https://x/mcp"), consent=consent or Consent(), trust=trust)


SERVERS = {
    each.id: each
    for each in (
        spec("open"),
        spec("strict", STRICT),
        spec("asking", ASKING),
        spec("trusted", STRICT, Trust.TRUSTED),
        spec("untrusted", trust=Trust.UNTRUSTED),
    )
}


@contextmanager
def gate(
    servers: Mapping[str, ServerSpec] = SERVERS, ask: AskSpec | None = None, state: Path | None = None
) -> Iterator[Gate]:
    with open_gate(servers, ask=ask, state=state) as opened:
        yield opened


def call(arguments: object = None, caller: Caller = DESK, at: MrtrRound | None = None) -> Exchange:
    params = {} if arguments is None else {"arguments": encode(arguments)}
    return Exchange(Request(1, "tools/call"), params, caller, NoClient(), round=at)


def offers(opened: Gate, server: str, *names: str, kind: Kind = Kind.TOOL, **more: object) -> None:
    """The server lists these, each with `more` in its definition."""
    observe(opened, server, kind, {name: json.dumps({"name": name, **more}).encode() for name in names})


def with_server(id: str, **more: Any) -> dict[str, ServerSpec]:
    return {**SERVERS, id: replace(SERVERS[id], **more)}


async def asked_about(
    opened: Gate,
    server: str,
    name: str,
    exchange: Exchange | None = None,
    answer: ConfirmationAnswer = ConfirmationAnswer.ONCE,
) -> tuple[Permit | None, list[PendingConfirmation]]:
    """What comes of it with somebody there, and what they were asked."""
    with auto_answering(opened, answer) as asked:
        return await opened.admit(exchange or call(), server, Kind.TOOL, name), asked


# Who gets a permit


async def test_a_permit_says_what_may_reach_what() -> None:
    exchange = call()
    with gate() as opened:
        permit = await opened.admit(exchange, "strict", Kind.TOOL, "get_issue")
    assert permit is not None
    assert (permit.exchange, permit.server, permit.kind, permit.target) == (exchange, "strict", Kind.TOOL, "get_issue")
    assert (permit.decision.verdict, permit.grant) == (Verdict.ALLOW, None)


@pytest.mark.parametrize("name", ["get_secret", "delete", "", "GET_x", "strict__get_x"])
async def test_what_is_denied_gets_no_permit_and_nobody_is_asked(name: str) -> None:
    with gate() as opened:
        assert await asked_about(opened, "strict", name) == (None, [])
        assert opened.admit_without_confirmation(call(), "strict", Kind.TOOL, name) is None
        assert (opened.is_visible("strict", Kind.TOOL, name), opened.is_known("strict", Kind.TOOL, name)) == (
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
                reached = await opened.admit(call(), server, kind, name) is not None
            assert opened.is_visible(server, kind, name) == opened.is_known(server, kind, name) == reached
            approve_all(opened)


async def test_the_consent_of_one_server_is_not_that_of_another() -> None:
    with gate() as opened:
        assert opened.is_visible("open", Kind.TOOL, "get_secret")
        assert not opened.is_visible("strict", Kind.TOOL, "get_secret")


@pytest.mark.parametrize("kind", list(Kind))
async def test_nothing_of_an_unknown_server_exists(kind: Kind) -> None:
    with gate() as opened, auto_answering(opened) as asked:
        assert await opened.admit(call(), "stranger", kind, "x") is None
        assert opened.admit_without_confirmation(call(), "stranger", kind, "x") is None
        assert not opened.is_visible("stranger", kind, "x")
        assert not opened.has_server("stranger")
    assert asked == []


@pytest.mark.parametrize("forged", [None, object(), "gate", True])
async def test_nobody_else_makes_a_permit(forged: object) -> None:
    with gate() as opened:
        judgement = opened.rules("strict").evaluate(Kind.TOOL, "get_x")
    with pytest.raises(TypeError, match="only the gate"):
        Permit(forged, call(), "strict", Kind.TOOL, "delete", judgement, 0)
    with pytest.raises(TypeError, match="only the gate"):
        ServerRequestPermit(forged, "strict", Question.URL, EMPTY_OBJECT, DESK, judgement)


async def test_trust_opens_no_door_that_consent_closes() -> None:
    with gate() as opened:
        assert await asked_about(opened, "trusted", "get_secret") == (None, [])


# Arguments

ACME = Rule("create", (Condition("/owner", (Check("in", ("acme",)),)),))
EVIL = Rule("create", (Condition("/owner", (Check("eq", "evil"),)),))


async def test_arguments_that_a_rule_denies_are_refused_aloud() -> None:
    """The tool itself is no secret: it is listed."""
    consent = Consent(tools=KindConsent(deny=(EVIL,)))
    with gate({"s": spec("s", consent)}) as opened:
        assert opened.is_visible("s", Kind.TOOL, "create")
        for arguments in ({"owner": "evil"}, {}, None, {"owner": 5}):
            with pytest.raises(Forbidden, match=r"tool create of s is not allowed with these arguments") as refused:
                await opened.admit(call(arguments), "s", Kind.TOOL, "create")
            assert refused.value.code == 403
        assert await opened.admit(call({"owner": "acme"}), "s", Kind.TOOL, "create") is not None
        broken = Exchange(Request(1, "tools/call"), {"arguments": Raw(b'{"owner":')}, DESK, NoClient())
        with pytest.raises(Forbidden):
            await opened.admit(broken, "s", Kind.TOOL, "create")


async def test_the_arguments_of_a_method_stand_where_its_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that is new in the table is not judged by an empty object."""
    row = Method("tools/plan", Kind.TOOL, "name", "input", "tools")
    monkeypatch.setitem(TARGETED, row.name, row)
    consent = Consent(tools=KindConsent(allow=(ACME,)))
    with gate({"s": spec("s", consent)}) as opened:
        asked = Exchange(Request(1, row.name), {"input": encode({"owner": "acme"})}, DESK, NoClient())
        assert await opened.admit(asked, "s", Kind.TOOL, "create") is not None
        asked = Exchange(Request(1, row.name), {"input": encode({"owner": "evil"})}, DESK, NoClient())
        with pytest.raises(Forbidden):
            await opened.admit(asked, "s", Kind.TOOL, "create")


async def test_arguments_that_a_rule_allows_pass_and_others_are_for_a_person() -> None:
    consent = Consent(tools=KindConsent(allow=(ACME,), default=Verdict.ASK))
    with gate({"s": spec("s", consent)}) as opened:
        assert await opened.admit(call({"owner": "acme"}), "s", Kind.TOOL, "create") is not None
        with pytest.raises(Unconfirmed):
            await opened.admit(call({"owner": "evil"}), "s", Kind.TOOL, "create")


# Definitions


async def test_nothing_of_an_untrusted_server_exists_before_a_person_approved_it_and_then_every_call_asks() -> None:
    with gate() as opened:
        offers(opened, "untrusted", "x", "y")
        assert await asked_about(opened, "untrusted", "x") == (None, [])
        assert not opened.is_known("untrusted", Kind.TOOL, "x")
        (held, _) = opened.pins.held()
        opened.approve("untrusted", held.kind, held.name, held.fingerprint, "console")
        assert opened.is_visible("untrusted", Kind.TOOL, "x")
        assert not opened.is_visible("untrusted", Kind.TOOL, "y")
        with pytest.raises(Unconfirmed, match="needs a person's consent, and nobody is there"):
            await opened.admit(call(), "untrusted", Kind.TOOL, "x")
        for _ in range(2):
            permit, asked = await asked_about(opened, "untrusted", "x")
            assert permit is not None
            with opened.dispatch(permit):
                assert [(matter.access.name, matter.access.rule) for matter in asked] == [("x", "trust: untrusted")]


@pytest.mark.parametrize("trust", list(Trust))
async def test_what_is_not_the_definition_that_was_approved_is_held_back_unless_its_server_is_trusted(
    trust: Trust,
) -> None:
    """Whoever calls it is told where to approve it; that it was there is no secret."""
    with gate({"s": spec("s", trust=trust)}) as opened:
        offers(opened, "s", "x", "y")
        approve_all(opened)
        former = opened.fingerprint("s", Kind.TOOL, "x")
        offers(opened, "s", "x", "y", description="Obey.")
        assert opened.is_visible("s", Kind.TOOL, "x") == (trust is Trust.TRUSTED)
        assert opened.is_known("s", Kind.TOOL, "x")
        if trust is Trust.TRUSTED:
            return
        with auto_answering(opened) as asked:
            with pytest.raises(StaleApproval, match="colonnade pins") as refused:
                await opened.admit(call(), "s", Kind.TOOL, "x")
            with pytest.raises(StaleApproval, match="colonnade pins"):
                opened.admit_without_confirmation(call(), "s", Kind.TOOL, "x")
        assert (refused.value.code, asked) == (409, [])
        opened.reject("s", "tool", "x", opened.fingerprint("s", Kind.TOOL, "x"), "console")
        assert not opened.is_visible("s", Kind.TOOL, "x")
        offers(opened, "s", "x")
        assert opened.fingerprint("s", Kind.TOOL, "x") == former
        assert opened.is_visible("s", Kind.TOOL, "x")
        opened.revoke("s", "tool", "x", former, "console")
        assert not opened.is_visible("s", Kind.TOOL, "x")


async def test_what_is_denied_and_held_back_does_not_exist() -> None:
    with gate() as opened:
        offers(opened, "strict", "delete")
        offers(opened, "strict", "delete", description="Other.")
        assert not opened.is_known("strict", Kind.TOOL, "delete")
        assert await opened.admit(call(), "strict", Kind.TOOL, "delete") is None


async def test_a_server_whose_program_is_another_can_be_asked_nothing() -> None:
    with gate() as opened:
        offers(opened, "open", "x")
        assert opened.observe_launch("open", Launch("d", "/bin/one"))
        epoch = opened.epoch
        assert not opened.observe_launch("open", Launch("d", "/bin/two"))
        assert opened.epoch > epoch
        assert not opened.is_visible("open", Kind.TOOL, "x")
        with pytest.raises(StaleApproval, match="stands for another program"):
            await opened.admit(call(), "open", Kind.TOOL, "x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.wait_until_launchable, "open")
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            approve_all(opened)
        assert await opened.admit(call(), "open", Kind.TOOL, "x") is not None


URI = "file:///home/me/x"


@pytest.mark.parametrize(("trust", "exists"), [(Trust.TRUSTED, True), (Trust.STANDARD, True), (Trust.UNTRUSTED, False)])
async def test_a_uri_that_no_list_names_is_nothing_of_an_untrusted_server(trust: Trust, exists: bool) -> None:
    with gate({"s": spec("s", trust=trust)}) as opened, auto_answering(opened) as asked:
        offers(opened, "s", "file:///other", kind=Kind.RESOURCE)
        approve_all(opened)
        assert (await opened.admit(call(), "s", Kind.RESOURCE, URI) is not None) is exists
        assert opened.is_visible("s", Kind.RESOURCE, URI) is exists
    assert asked == []


async def test_a_uri_stands_as_the_template_that_makes_it() -> None:
    """Or as its own entry, if it has one."""
    template = "file:///home/me/{name}"
    with gate() as opened:
        offers(opened, "untrusted", template, kind=Kind.TEMPLATE)
        assert opened.pin_status("untrusted", Kind.RESOURCE, URI) is PinStatus.NEW
        assert not opened.is_known("untrusted", Kind.RESOURCE, URI)
        approve_all(opened)
        assert opened.fingerprint("untrusted", Kind.RESOURCE, URI) == opened.fingerprint(
            "untrusted", Kind.TEMPLATE, template
        )
        with auto_answering(opened) as asked:
            assert await opened.admit(call(), "untrusted", Kind.RESOURCE, URI) is not None
        assert [matter.access.name for matter in asked] == [URI]
        offers(opened, "untrusted", URI, kind=Kind.RESOURCE)
        assert opened.pin_status("untrusted", Kind.RESOURCE, URI) is PinStatus.NEW
        offers(opened, "untrusted", template, kind=Kind.TEMPLATE, description="Other.")
        with pytest.raises(StaleApproval):
            await opened.admit(call(), "untrusted", Kind.RESOURCE, "file:///home/me/y")


@pytest.mark.parametrize("kind", [Kind.RESOURCE, Kind.TEMPLATE])
@pytest.mark.parametrize("uri", ["ui://a/page", "UI://a/page"])
async def test_the_pages_of_an_untrusted_server_do_not_exist(kind: Kind, uri: str) -> None:
    with gate() as opened:
        for server in ("open", "untrusted"):
            offers(opened, server, uri, kind=kind)
        approve_all(opened)
        assert opened.is_known("open", kind, uri)
        assert not opened.is_known("untrusted", kind, uri)
        with auto_answering(opened):
            assert await opened.admit(call(), "untrusted", kind, uri) is None


@pytest.mark.parametrize("trust", list(Trust))
async def test_instructions_reach_a_model_once_they_are_approved(trust: Trust) -> None:
    """Those of an untrusted server without what nobody sees."""
    with gate({"s": spec("s", trust=trust)}) as opened:
        said = "Ob\u200bey.\u202e"
        assert opened.instructions("s", None) is None
        run_inline(opened.observe_instructions("s", said))
        assert opened.instructions("s", said) == (None if trust is Trust.UNTRUSTED else said)
        approve_all(opened)
        assert opened.instructions("s", said) == ("Obey." if trust is Trust.UNTRUSTED else said)
        run_inline(opened.observe_instructions("s", "Obey more."))
        assert opened.instructions("s", "Obey more.") == ("Obey more." if trust is Trust.TRUSTED else None)


# A person's answers


async def test_with_nobody_there_it_is_refused_and_stays_to_be_answered_for_the_next_call() -> None:
    with gate() as opened:
        with pytest.raises(Unconfirmed) as refused:
            await opened.admit(call({"n": 1}), "asking", Kind.TOOL, "create_x")
        assert refused.value.code == 408
        assert "colonnade ask" in refused.value.message
        (matter,) = opened.confirmations.list_all()
        assert matter.refused
        assert opened.confirmations.answer(matter.id, ConfirmationAnswer.ONCE, Channel.TERMINAL) is matter
        for other in (call({"n": 2}), call({"n": 1}, Caller("x", None, "else"))):
            with pytest.raises(Unconfirmed):
                await opened.admit(other, "asking", Kind.TOOL, "create_x")
        permit = await opened.admit(call({"n": 1}), "asking", Kind.TOOL, "create_x")
        assert permit is not None
        with opened.dispatch(permit):
            pass
        with pytest.raises(Unconfirmed):
            await opened.admit(call({"n": 1}), "asking", Kind.TOOL, "create_x")


async def test_a_person_who_says_no_is_told_to_whoever_called() -> None:
    with gate() as opened:
        with pytest.raises(Forbidden, match="a person said no"):
            await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.DENY)
        assert opened.grants.all() == []


OTHER_SESSION = Caller("desk", None, "token", session="s2")
OTHER_TOKEN = Caller("desk", None, "other", session="s1")


@pytest.mark.parametrize(
    ("answer", "same", "session", "token"),
    [
        (ConfirmationAnswer.ONCE, False, False, False),
        (ConfirmationAnswer.SESSION, True, False, False),
        (ConfirmationAnswer.TIME, True, True, False),
        (ConfirmationAnswer.ALWAYS, True, True, False),
    ],
)
async def test_an_answer_holds_for_whom_it_was_given_and_no_further(
    answer: ConfirmationAnswer, same: bool, session: bool, token: bool
) -> None:
    """And for these arguments, this tool of this server, alone."""
    with gate() as opened:
        offers(opened, "asking", "create_x", "create_y")
        permit, _ = await asked_about(opened, "asking", "create_x", call({"n": 1}), answer)
        assert permit is not None
        with opened.dispatch(permit):
            pass
        for caller, expected in ((DESK, same), (OTHER_SESSION, session), (OTHER_TOKEN, token)):
            assert await passes(opened, "create_x", call({"n": 1}, caller)) is expected
            assert not await passes(opened, "create_x", call({"n": 2}, caller))
            assert not await passes(opened, "create_x", call(None, caller))
            assert not await passes(opened, "create_y", call({"n": 1}, caller))


async def passes(opened: Gate, name: str, exchange: Exchange) -> bool:
    """Whether it goes to its server with nobody there."""
    try:
        permit = await opened.admit(exchange, "asking", Kind.TOOL, name)
        assert permit is not None
        with opened.dispatch(permit):
            return True
    except (Unconfirmed, StaleApproval):
        return False


async def test_what_is_allowed_for_a_session_ends_with_it() -> None:
    with gate() as opened:
        permit, _ = await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.SESSION)
        assert permit is not None
        opened.forget(OTHER_SESSION)
        assert await passes(opened, "create_x", call())
        opened.forget(DESK)
        assert not await passes(opened, "create_x", call())
        with pytest.raises(StaleApproval), opened.dispatch(permit):
            pass


@pytest.mark.parametrize("session", [None, "s1"])
async def test_only_callers_that_have_a_session_are_allowed_something_for_it(session: Hashable) -> None:
    caller = Caller("desk", None, "token", session=session)
    with gate() as opened, pytest.raises(Unconfirmed):
        await opened.admit(call(None, caller), "asking", Kind.TOOL, "create_x")
    with gate() as opened:
        with pytest.raises(Unconfirmed):
            await opened.admit(call(None, caller), "asking", Kind.TOOL, "create_x")
        (matter,) = opened.confirmations.list_all()
        answered = opened.confirmations.answer(matter.id, ConfirmationAnswer.SESSION, Channel.CONSOLE)
        assert (answered is None, await passes(opened, "create_x", call(None, caller))) == (
            session is None,
            session is not None,
        )


async def test_two_calls_never_have_the_same_consent_for_one() -> None:
    """One that is on its way to its call is nobody else's; if that call is not sent, the next one has it."""
    with gate() as opened:
        first, _ = await asked_about(opened, "asking", "create_x")
        assert first is not None
        with pytest.raises(Unconfirmed):
            await opened.admit(call(), "asking", Kind.TOOL, "create_x")
        opened.release(first)
        second = await opened.admit(call(), "asking", Kind.TOOL, "create_x")
        assert second is not None
        with opened.dispatch(second):
            pass
        for spent in (first, second):
            with pytest.raises(StaleApproval), opened.dispatch(spent):
                pass


async def test_a_call_that_goes_on_is_not_asked_about_again() -> None:
    """Once, for the same call and the same server; a call that begins anew is another."""
    at = MrtrRound("asking", {}, "state")
    with gate() as opened:
        permit, _ = await asked_about(opened, "asking", "create_x", call({"n": 1}, at=MrtrRound()))
        assert permit is not None
        with opened.dispatch(permit):
            opened.renew_for_retry(permit)
        opened.release(permit)
        assert not await passes(opened, "create_x", call({"n": 1}))
        assert not await passes(opened, "create_x", call({"n": 2}, at=at))
        assert not await passes(opened, "create_x", call({"n": 1}, at=MrtrRound("open", {}, "state")))
        assert await passes(opened, "create_x", call({"n": 1}, at=at))
        assert not await passes(opened, "create_x", call({"n": 1}, at=at))


async def test_what_was_allowed_for_longer_needs_nothing_to_go_on() -> None:
    with gate() as opened:
        permit, _ = await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.ALWAYS)
        assert permit is not None
        opened.renew_for_retry(permit)
        assert [grant.scope for grant in opened.grants.all()] == [Scope.ALWAYS]
        plain = await opened.admit(call(), "open", Kind.TOOL, "x")
        assert plain is not None
        opened.renew_for_retry(plain)
        opened.release(plain)
        assert len(opened.grants.all()) == 1


async def test_what_follows_its_entry_is_not_asked_about() -> None:
    """And does not use up what was allowed once."""
    with gate() as opened:
        assert opened.admit_without_confirmation(call(), "open", Kind.RESOURCE, URI) is not None
        with (
            auto_answering(opened) as asked,
            pytest.raises(Forbidden, match="needs a person's consent, which was not given"),
        ):
            opened.admit_without_confirmation(call(), "asking", Kind.RESOURCE, URI)
        assert asked == []
        with auto_answering(opened, ConfirmationAnswer.ONCE):
            once = await opened.admit(call(), "asking", Kind.RESOURCE, URI)
        assert once is not None
        opened.release(once)
        with pytest.raises(Forbidden):
            opened.admit_without_confirmation(call(), "asking", Kind.RESOURCE, URI)
        opened.grants.revoke(opened.grants.all()[0].id)
        with auto_answering(opened, ConfirmationAnswer.SESSION):
            await opened.admit(call(), "asking", Kind.RESOURCE, URI)
        permit = opened.admit_without_confirmation(call(), "asking", Kind.RESOURCE, URI)
        assert permit is not None
        with opened.dispatch(permit):
            pass


async def test_a_question_is_answered_within_its_time_or_refused(autojump_clock: MockClock) -> None:
    with gate(ask=AskSpec(timeout=7.0)) as opened, opened.confirmations.attach(Channel.CONSOLE):
        began = trio.current_time()
        with pytest.raises(Unconfirmed, match="nobody answered within 7 s"):
            await opened.admit(call(), "asking", Kind.TOOL, "create_x")
        assert trio.current_time() - began == pytest.approx(7)


# Right before it goes


async def test_what_was_permitted_goes_as_long_as_nothing_about_it_has_changed() -> None:
    """Whatever else did."""
    with gate() as opened:
        plain = await opened.admit(call(), "open", Kind.TOOL, "x")
        asked, _ = await asked_about(opened, "asking", "create_x")
        opened.replace({**SERVERS, "more": spec("more", STRICT)})
        offers(opened, "strict", "get_x")
        offers(opened, "strict", "get_x", description="Other.")
        for permit in (plain, asked):
            assert permit is not None
            assert permit.epoch != opened.epoch
            opened.recheck(permit)
            with opened.dispatch(permit):
                assert opened.decision_log.in_flight[permit.server] == 1
            assert opened.decision_log.in_flight[permit.server] == 0


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
            with opened.dispatch(permit):
                return
        with pytest.raises(StaleApproval, match="has changed meanwhile") as refused, opened.dispatch(permit):
            pytest.fail("it went")
        assert refused.value.code == 409


async def test_what_happened_to_its_server_since_decides() -> None:
    gone = {id: each for id, each in SERVERS.items() if id != "asking"}
    for what in ("definition", "grant", "gone", "launch", "approval", "trust"):
        with gate() as opened:
            offers(opened, "asking", "create_x")
            opened.observe_launch("asking", Launch("d", "/bin/one"))
            permit, _ = await asked_about(opened, "asking", "create_x")
            assert permit is not None
            assert permit.grant is not None
            if what == "definition":
                offers(opened, "asking", "create_x", description="Other.")
            elif what == "grant":
                assert opened.revoke_grant(permit.grant.id, "console")
            elif what == "gone":
                opened.replace(gone)
            elif what == "launch":
                opened.observe_launch("asking", Launch("edited", "/bin/one"))
            elif what == "approval":
                opened.revoke("asking", "tool", "create_x", opened.fingerprint("asking", Kind.TOOL, "create_x"), "c")
            else:
                opened.replace(with_server("asking", consent=Consent(), trust=Trust.UNTRUSTED))
            with pytest.raises(StaleApproval), opened.dispatch(permit):
                pytest.fail(f"it went in spite of another {what}")


async def test_what_is_dispatched_may_be_sent_once_more_unless_it_is_closed_by_then() -> None:
    with gate() as opened:
        permit = await opened.admit(call(), "open", Kind.TOOL, "x")
        assert permit is not None
        with opened.dispatch(permit):
            opened.recheck(permit)
            opened.replace(with_server("open", consent=STRICT))
            with pytest.raises(StaleApproval):
                opened.recheck(permit)


async def test_new_rules_void_the_questions_and_grants_of_those_that_are_gone() -> None:
    """Whoever waits hears so at once; what is under a rule that stays, stays."""
    other = Consent(tools=kind(ask=["create_*", "delete_*"]))
    after = Consent(tools=kind(ask=["create_?", "delete_*"]))
    refused: list[Exception] = []

    async def wait(opened: Gate, name: str) -> None:
        try:
            await opened.admit(call(), "asking", Kind.TOOL, name)
        except StaleApproval as problem:
            refused.append(problem)

    with gate(with_server("asking", consent=other)) as opened:
        for name in ("create_a", "delete_a"):
            await asked_about(opened, "asking", name, answer=ConfirmationAnswer.ALWAYS)
        with opened.confirmations.attach(Channel.CONSOLE):
            async with trio.open_nursery() as nursery:
                for name in ("create_x", "delete_x"):
                    nursery.start_soon(wait, opened, name)
                await wait_all_tasks_blocked()
                opened.replace(with_server("asking", consent=after))
                await wait_all_tasks_blocked()
                assert [matter.access.name for matter in opened.confirmations.list_all()] == ["delete_x"]
                assert len(refused) == 1
                nursery.cancel_scope.cancel()
        assert [grant.name for grant in opened.grants.all()] == ["delete_a"]


async def test_new_definitions_void_the_questions_about_former_ones() -> None:
    with gate() as opened, opened.confirmations.attach(Channel.CONSOLE):
        offers(opened, "asking", "create_x", "create_y")
        async with trio.open_nursery() as nursery:
            for name in ("create_x", "create_y"):
                nursery.start_soon(asked_quietly, opened, name)
            await wait_all_tasks_blocked()
            observe(
                opened,
                "asking",
                Kind.TOOL,
                {"create_x": b'{"name":"create_x","title":"X"}', "create_y": b'{"name":"create_y"}'},
            )
            await wait_all_tasks_blocked()
            assert [matter.access.name for matter in opened.confirmations.list_all()] == ["create_y"]
            nursery.cancel_scope.cancel()


async def asked_quietly(opened: Gate, name: str) -> None:
    with pytest.raises(StaleApproval):
        await opened.admit(call(), "asking", Kind.TOOL, name)


async def test_whoever_lists_hears_of_every_decision() -> None:
    moved: list[str] = []
    with gate() as opened:
        offers(opened, "untrusted", "x")
        opened.on_visibility_changed = moved.extend
        approve_all(opened)
        assert moved == ["untrusted"]
        opened.on_decided(["strict", "open"])
        assert moved == ["untrusted", "strict", "open"]
        opened.replace(with_server("open", consent=STRICT))
        assert moved[3:] == ["open"]
        opened.replace(with_server("open", trust=Trust.UNTRUSTED))
        assert moved[4:] == ["open"]


async def test_whoever_lists_hears_nothing_of_a_server_whose_rules_a_reload_leaves() -> None:
    """Its verdicts are remembered, whatever else of it is configured otherwise, until it is removed."""
    moved: list[str] = []
    denied = [Rule("x", (Condition("/n", (Check("eq", value),)),)) for value in (1, True)]  # equal ones, for Python
    first, second = (spec("a", Consent(tools=KindConsent(deny=(rule,)))) for rule in denied)
    with gate({"a": first, "open": SERVERS["open"]}) as opened:
        opened.on_visibility_changed = moved.extend
        rules = {server: opened.rules(server) for server in ("a", "open")}
        epoch = opened.epoch
        opened.replace({"open": spec("open"), "a": replace(first, title="A")})
        assert {server: opened.rules(server) for server in rules} == rules
        assert (moved, opened.epoch) == ([], epoch + 1)
        opened.replace({"open": spec("open"), "a": second})
        assert (moved, opened.rules("open")) == (["a"], rules["open"])
        assert opened.rules("a").evaluate(Kind.TOOL, "x", {"n": True}).verdict is Verdict.DENY
        opened.replace({"a": second})
        opened.replace({"open": spec("open"), "a": second})
        assert moved == ["a", "open"]
        assert opened.rules("open") is not rules["open"]


async def test_what_cannot_be_written_down_does_not_go() -> None:
    """Nor is anything granted; and as soon as it can be, it does."""
    with gate() as opened:
        permit = await opened.admit(call(), "open", Kind.TOOL, "x")
        assert permit is not None
        with opened.dispatch(permit):  # from now on there is a file
            pass
        file = opened.decision_log._audit._file
        assert file is not None
        descriptor = file.descriptor
        kept = os.dup(descriptor)
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            os.dup2(full, descriptor)
            with pytest.raises(AuditUnavailable), opened.dispatch(permit):
                pytest.fail("it went")
            assert opened.decision_log.problem
            with pytest.raises(Unconfirmed):
                await opened.admit(call(), "asking", Kind.TOOL, "create_x")
            (matter,) = opened.confirmations.list_all()
            with pytest.raises(AuditUnavailable):
                opened.confirmations.answer(matter.id, ConfirmationAnswer.ALWAYS, Channel.CONSOLE)
            assert opened.grants.all() == []
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
            os.close(full)
        with opened.dispatch(permit):
            assert not opened.decision_log.problem


# What servers ask


@pytest.mark.parametrize("question", list(Question))
async def test_an_untrusted_server_may_ask_nothing_and_any_other_perhaps(question: Question) -> None:
    with gate() as opened:
        for server in ("open", "strict", "trusted"):
            assert opened.allows_server_request(server, question)
        for server in ("untrusted", "stranger"):  # nor may one that nobody configured
            assert not opened.allows_server_request(server, question)
            params = {"url": Raw(b'"https://x/1"')}
            with auto_answering(opened) as asked, pytest.raises(Forbidden):
                await opened.admit_server_request(server, question, params, DESK)
            assert asked == []


@pytest.mark.parametrize("question", list(Question))
async def test_consent_says_what_a_server_may_ask_whatever_its_trust(question: Question) -> None:
    closed = Consent(sampling=Verdict.DENY, form=Verdict.DENY, url=kind(default="deny"), roots=kind(default="deny"))
    opening = Consent(sampling=Verdict.ASK, form=Verdict.ASK, url=kind(ask=["**"]), roots=kind(allow=["file:///x"]))
    servers = {"a": spec("a", closed, Trust.TRUSTED), "b": spec("b", opening, Trust.UNTRUSTED)}
    with gate(servers) as opened:
        assert (opened.allows_server_request("a", question), opened.allows_server_request("b", question)) == (
            False,
            True,
        )


SAMPLE = {"messages": Raw(b"[]"), "maxTokens": Raw(b"5")}
PAGE = {"message": Raw(b'"m"'), "url": Raw(b'"https://x/1"')}


@pytest.mark.parametrize(
    ("question", "params", "free"),
    [(Question.SAMPLING, SAMPLE, False), (Question.URL, PAGE, False), (Question.FORM, {}, True)],
)
async def test_what_costs_something_a_person_must_have_agreed_to_before_it_is_put(
    question: Question, params: dict[str, Raw], free: bool
) -> None:
    with gate() as opened:
        for server in ("open", "trusted"):
            with (
                auto_answering(opened) as asked,
                opened.dispatch_server_request(await opened.admit_server_request(server, question, params, DESK)),
            ):
                pass
            assert [matter.access.kind for matter in asked] == (
                [question.value] if server == "open" and not free else []
            )
        if not free:
            with pytest.raises(Unconfirmed):
                await opened.admit_server_request("open", question, params, DESK)
            with auto_answering(opened):
                permit = await opened.admit_server_request("open", question, params, DESK)
            opened.replace(with_server("open", consent=Consent(sampling=Verdict.DENY, url=kind(default="deny"))))
            with pytest.raises(StaleApproval), opened.dispatch_server_request(permit):
                pytest.fail("it was put")


async def test_pages_are_judged_by_their_address() -> None:
    consent = Consent(url=kind(allow=["https://good/**"], default="deny"))
    with gate({"s": spec("s", consent)}) as opened:
        assert opened.allows_server_request("s", Question.URL)
        good = {**PAGE, "url": Raw(b'"https://good/in"')}
        with opened.dispatch_server_request(await opened.admit_server_request("s", Question.URL, good, DESK)):
            pass
        for url in (b'"https://evil/in"', b'"https://good/../evil"', b'"https://good.evil/in"'):
            with pytest.raises(Forbidden):
                await opened.admit_server_request("s", Question.URL, {**PAGE, "url": Raw(url)}, DESK)


async def test_of_a_clients_roots_a_server_is_told_those_that_it_may_know() -> None:
    consent = Consent(roots=kind(allow=["file:///home/me/project"], ask=["file:///home/me/more"]))
    roots = [{"uri": f"file:///home/me/{each}", "name": each} for each in ("project", "more", "other")]
    answer = encode({"roots": roots, "_meta": {"x": 1}})
    with gate({**SERVERS, "s": spec("s", consent)}) as opened:
        assert await opened.filter_roots("open", answer, DESK) is answer
        alone = json.loads(bytes(await opened.filter_roots("s", answer, DESK)))
        assert alone == {"roots": roots[:1], "_meta": {"x": 1}}
        with auto_answering(opened) as asked:
            both = json.loads(bytes(await opened.filter_roots("s", answer, DESK)))
        assert both["roots"] == roots[:2]
        assert [json.loads(matter.context.raw_arguments) for matter in asked] == [roots[1:2]]
        with auto_answering(opened, ConfirmationAnswer.DENY):
            denied = json.loads(bytes(await opened.filter_roots("s", answer, DESK)))
        assert denied["roots"] == roots[:1]
        most = encode({"roots": roots[:1] * MAX_ROOTS})
        assert await opened.filter_roots("s", most, DESK) is most
        with pytest.raises(ProtocolViolation, match="more than 1000 roots"):
            await opened.filter_roots("s", encode({"roots": roots[:1] * (MAX_ROOTS + 1)}), DESK)
        for broken in (b"{}", b'{"roots":5}', b'{"roots":[{}]}', b'{"roots":[{"uri":5}]}'):
            with pytest.raises(ProtocolViolation):
                await opened.filter_roots("s", Raw(broken), DESK)


async def test_of_a_clients_abilities_a_server_may_use_what_it_may_perhaps_ask_for() -> None:
    """Nothing is added to what the client can, and what belongs to no question stays as it is. A model with tools is
    for trusted servers."""
    with gate() as opened:
        assert opened.usable_abilities("trusted", ALL_ABILITIES) == ALL_ABILITIES
        assert opened.usable_abilities("open", ALL_ABILITIES) == replace(ALL_ABILITIES, sampling_tools=False)
        nothing = replace(
            ALL_ABILITIES, roots=False, sampling=False, sampling_tools=False, form=False, url=False, apps=False
        )
        assert opened.usable_abilities("untrusted", ALL_ABILITIES) == nothing
        for server in ("open", "trusted", "untrusted"):
            assert opened.usable_abilities(server, NO_ABILITIES) == NO_ABILITIES


async def test_an_untrusted_servers_question_is_passed_on_without_what_nobody_sees() -> None:
    params = {"message": Raw(b'"a\\u202eb"'), "requestedSchema": Raw(b"{}")}
    with gate() as opened:
        assert opened.check_server_request("open", Question.FORM, params) == params
        assert json.loads(bytes(opened.check_server_request("untrusted", Question.FORM, params)["message"])) == "ab"
        with pytest.raises(CannotAsk):
            opened.check_server_request("open", Question.SAMPLING, {**SAMPLE, "tools": Raw(b"[]")})


# Who may be asked by way of the client


@pytest.mark.parametrize("named", [True, False])
async def test_a_client_answers_only_where_the_configuration_says_so(named: bool) -> None:
    answers = (Channel.CONSOLE, Channel.CLIENT) if named else (Channel.CONSOLE,)
    able = replace(DESK, abilities=ALL_ABILITIES)
    with gate(ask=AskSpec(answers=answers)) as opened:
        assert opened.client_may_confirm("asking", Kind.TOOL, "create_x", able) is named
        for server, name, caller in (("asking", "create_x", DESK), ("asking", "x", able), ("stranger", "x", able)):
            assert not opened.client_may_confirm(server, Kind.TOOL, name, caller)


# Looking in


async def test_why_a_grant_is_dead_is_said_in_words() -> None:
    with gate() as opened:
        offers(opened, "asking", "create_x")
        await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.ALWAYS)
        (grant,) = opened.grants.all()
        assert opened.why_unusable(grant) == ""
        offers(opened, "asking", "create_x", description="Other.")
        assert "definition" in opened.why_unusable(grant)
        offers(opened, "asking", "create_x")
        assert opened.why_unusable(grant) == ""
        assert "rule" in opened.why_unusable(replace(grant, rule="tools.ask: other"))
        assert "server" in opened.why_unusable(replace(grant, server="stranger"))
        assert opened.why_unusable(replace(grant, expires=1.0))
        opened.observe_launch("asking", Launch("d", "/bin/x"))
        assert "started" in opened.why_unusable(grant)


async def test_what_people_decided_holds_for_the_next_host(tmp_path: Path) -> None:
    """What was for a session does not."""
    state = tmp_path / "state"
    with gate(state=state) as opened:
        offers(opened, "untrusted", "x")
        approve_all(opened)
        offers(opened, "asking", "create_x", "create_y")
        await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.ALWAYS)
        await asked_about(opened, "asking", "create_y", answer=ConfirmationAnswer.SESSION)
    with gate(state=state) as opened:
        offers(opened, "untrusted", "x")
        assert opened.is_visible("untrusted", Kind.TOOL, "x")
        offers(opened, "asking", "create_x", "create_y")
        assert await passes(opened, "create_x", call())
        assert not await passes(opened, "create_y", call())


@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
@pytest.mark.parametrize(
    "spelling",
    [
        *(
            "file:///a/./x.md",
            "file:///a/%78.md",
            "file:///a//x.md",
            "file:///a/x.md?",
            "file:///a/x.md#",
            "FILE:///a/x.md",
        ),
        *("file:///a/x.md?x=1", "file:///a/x.md#frag", "file:///a/x.md/", "file:///a/x.md/.", "file:///a/x.md%3Fx"),
        *(
            "file:///a/x.md/./?a#b",
            "file:///a/x.md?" + "x" * 9000,
            "file:///a/x.md?%5c..%2f/../;#" + "%255c%23;/?" * 40,
        ),
    ],
)
async def test_what_is_held_back_is_held_back_in_every_spelling(spelling: str, trust: Trust) -> None:
    """Also where a template that is approved would make the URI."""
    servers = {"a": spec("a", Consent(resources=kind(default="allow")), trust)}
    with gate(servers) as opened:
        offers(opened, "a", "file:///{path}", kind=Kind.TEMPLATE)
        offers(opened, "a", "file:///a/x.md", "file:///a/y.md", kind=Kind.RESOURCE)
        approve_all(opened)
        offers(opened, "a", "file:///a/x.md", "file:///a/y.md", kind=Kind.RESOURCE, size=2)
        with pytest.raises(StaleApproval):
            await opened.admit(call(), "a", Kind.RESOURCE, spelling)
        assert not opened.is_visible("a", Kind.RESOURCE, spelling)
        assert await opened.admit(call(), "a", Kind.RESOURCE, "file:///a/z.md") is not None
        approve_all(opened)
        made = (
            spelling.startswith("file:///") or trust is Trust.STANDARD
        )  # of an untrusted one only what a template makes
        assert (await opened.admit(call(), "a", Kind.RESOURCE, spelling) is not None) is made


@pytest.mark.parametrize(
    "spelling", ["FILE:///a/x", "file:/a/x", "file:///a/%78?y", " file:///a/x", "file:/a/" + "x" * 9000]
)
async def test_what_a_template_makes_that_is_held_back_is_held_back_in_every_spelling(spelling: str) -> None:
    servers = {"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}
    with gate(servers) as opened:
        offers(opened, "a", "file:///a/{name}", "x://{name}", kind=Kind.TEMPLATE)
        offers(opened, "a", "file:///a/{name}", "x://{name}", kind=Kind.TEMPLATE, title="Other.")
        for uri in (spelling, "file:///a/x"):
            with pytest.raises(StaleApproval):
                await opened.admit(call(), "a", Kind.RESOURCE, uri)
        approve_all(opened)
        assert await opened.admit(call(), "a", Kind.RESOURCE, spelling) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("more", "open_else"), [(-1, True), (0, True), (1, False)])
async def test_beside_very_many_held_spellings_no_unlisted_uri_is_open(more: int, open_else: bool) -> None:
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}) as opened:
        held = [f"file:///a/{each}%20.md?x" for each in range(MAX_HELD_URIS + more)]
        plain = [f"file:///b/{each}" for each in range(1_000)]
        for size in (1, 2):
            offers(opened, "a", *held, *plain, kind=Kind.RESOURCE, size=size)
        assert opened.is_visible("a", Kind.RESOURCE, "file:///c") is open_else
        for uri in ("file:///a/7 .md", "file:///b/./7", "file:///b/999?", f"file:///a/{len(held) - 1} .md"):
            assert not opened.is_visible("a", Kind.RESOURCE, uri)
        approve_all(opened)
        assert opened.is_visible("a", Kind.RESOURCE, "file:///c")


async def test_spellings_of_what_is_held_back_are_worked_out_once() -> None:
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}) as opened:
        names = [f"file:///a/{each}%20.md" for each in range(200)]
        for size in (1, 2):
            offers(opened, "a", *names, kind=Kind.RESOURCE, size=size)
        assert opened.is_visible("a", Kind.RESOURCE, "file:///c")
        worked_out = uris._variants.cache_info().misses
        for count in range(1, 4):
            epoch = opened.epoch
            offers(opened, "a", *(f"file:///b/{each}" for each in range(count)), kind=Kind.PROMPT)
            assert opened.epoch > epoch
            assert not opened.is_visible("a", Kind.RESOURCE, f"file:///a/{count} .md")
        assert uris._variants.cache_info().misses <= worked_out + 6


@pytest.mark.parametrize(("more", "is_open"), [(0, True), (1, False)])
async def test_beside_very_many_held_templates_no_unlisted_uri_is_open(more: int, is_open: bool) -> None:
    uri = "http://u@h:80/a;b/..;/c%5cd/?q=1"
    count = MAX_HELD_MATCHES // len(uris.uri_variants(uri)) + more
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}) as opened:
        for title in ("One.", "Other."):
            offers(opened, "a", *(f"x://{each}/{{id}}" for each in range(count)), kind=Kind.TEMPLATE, title=title)
        assert opened.is_visible("a", Kind.RESOURCE, uri) is is_open
        assert opened.is_visible("a", Kind.RESOURCE, "file:///c")
        assert not opened.is_visible("a", Kind.RESOURCE, "x://7/./a")


@pytest.mark.slow
@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
async def test_beside_very_many_templates_that_begin_alike_no_uri_is_made_by_one(trust: Trust) -> None:
    """And what is held back stays so."""
    templates = [f"x://{{a}}/{number}" + "/{b}" * 20 for number in range(MAX_MATCHED_LENGTH // 60)]
    uri, other = "x://q/7" + "/" * 20, "y://q/7"
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), trust)}) as opened:
        offers(opened, "a", *templates, "y://{c}/7", kind=Kind.TEMPLATE)
        approve_all(opened)
        assert opened.is_visible("a", Kind.RESOURCE, uri) is (trust is Trust.STANDARD)
        assert opened.is_visible("a", Kind.RESOURCE, other)
        offers(opened, "a", *templates, "y://{c}/7", kind=Kind.TEMPLATE, title="Other.")
        assert not opened.is_visible("a", Kind.RESOURCE, uri)
        assert not opened.is_visible("a", Kind.RESOURCE, other)


async def test_a_call_that_was_agreed_to_once_goes_on_so_often_and_then_it_is_asked_about_anew() -> None:
    with gate() as opened:
        offers(opened, "asking", "create_x")
        permit, asked = await asked_about(opened, "asking", "create_x")
        assert permit is not None
        for _ in range(MAX_RENEWALS):
            with opened.dispatch(permit):
                pass
            opened.renew_for_retry(permit)
            permit = await opened.admit(call(at=MrtrRound("asking")), "asking", Kind.TOOL, "create_x")
            assert permit is not None
        with opened.dispatch(permit):
            pass
        opened.renew_for_retry(permit)
        assert len(asked) == 1
        with pytest.raises(Unconfirmed):
            await opened.admit(call(at=MrtrRound("asking")), "asking", Kind.TOOL, "create_x")


async def test_an_answer_for_more_than_one_call_lets_go_of_all_that_wait_and_that_it_is_for(
    nursery: trio.Nursery,
) -> None:
    permits: list[Permit | None] = []

    async def wait(number: int, name: str) -> None:
        permits.append(await opened.admit(call({"n": number}), "asking", Kind.TOOL, name))

    with gate() as opened, opened.confirmations.attach(Channel.CONSOLE):
        offers(opened, "asking", "create_x", "create_y")
        for number, name in ((1, "create_x"), (2, "create_x"), (3, "create_y")):
            nursery.start_soon(wait, number, name)
        await wait_all_tasks_blocked()
        first = next(matter for matter in opened.confirmations.list_all() if matter.access.name == "create_x")
        opened.confirmations.answer(first.id, ConfirmationAnswer.ALWAYS, Channel.CONSOLE, exact=False)
        await wait_all_tasks_blocked()
        assert len(permits) == 2
        (left,) = opened.confirmations.list_all()
        assert left.access.name == "create_y"
        nursery.cancel_scope.cancel()


async def test_the_id_that_we_give_a_page_is_not_part_of_what_is_agreed_to() -> None:
    """It is another one each time."""
    servers = {"a": spec("a", Consent(url=kind(ask=["https://ok.test/**"])))}
    with gate(servers) as opened:
        ids: list[str] = []
        pages = [
            {"url": encode("https://ok.test/pay"), "message": encode("pay"), "elicitationId": encode(id)}
            for id in ("one", "two", "three")
        ]
        for page in pages[:2]:
            with pytest.raises(Unconfirmed):
                await opened.admit_server_request("a", Question.URL, page, DESK)
            (matter,) = opened.confirmations.list_all()
            ids.append(matter.id)
        assert ids[0] == ids[1]
        opened.confirmations.answer(ids[0], ConfirmationAnswer.ONCE, Channel.CONSOLE)
        with opened.dispatch_server_request(await opened.admit_server_request("a", Question.URL, pages[2], DESK)):
            pass


# Long arguments


def padded(size: int) -> dict[str, str]:
    """Arguments of so many bytes."""
    return {"owner": "a" * (size - len(json.dumps({"owner": ""}, separators=(",", ":"))))}


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_what_a_person_cannot_read_is_refused_and_nobody_is_asked(more: int) -> None:
    with gate() as opened, auto_answering(opened) as matters:
        exchange = call(padded(MAX_CONFIRMABLE_BYTES + more))
        if more > 0:
            with pytest.raises(
                Forbidden, match=rf"its {MAX_CONFIRMABLE_BYTES + 1} bytes are more than a person can agree to"
            ):
                await opened.admit(exchange, "asking", Kind.TOOL, "create_issue")
        else:
            assert await opened.admit(exchange, "asking", Kind.TOOL, "create_issue") is not None
        assert len(matters) == (0 if more > 0 else 1)


async def test_long_arguments_need_a_grant_that_is_not_for_exact_ones() -> None:
    with gate() as opened:
        with auto_answering(opened, ConfirmationAnswer.SESSION) as matters:
            await opened.admit(call({"owner": "acme"}), "asking", Kind.TOOL, "create_issue")
        (wish,) = (matter.access for matter in matters)
        long = call(padded(MAX_CONFIRMABLE_BYTES + 1))
        with pytest.raises(Forbidden):
            await opened.admit(long, "asking", Kind.TOOL, "create_issue")
        grant = opened.grants.all()[0]
        assert grant.digest == wish.digest
        opened.grants.add(replace(grant, id="wide", digest=None))
        permit = await opened.admit(long, "asking", Kind.TOOL, "create_issue")
        assert permit is not None
        with opened.dispatch(permit):
            pass


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("owner", ["acme", "evil"])
async def test_conditions_on_arguments_of_any_size_hold_or_do_not(owner: str, arguments: Callable[[], bytes]) -> None:
    """The one that they name is read, and the others are not."""
    rule = Rule("create_*", when=(Condition("owner", (Check("eq", "acme"),)),))
    servers = {"conditional": spec("conditional", Consent(tools=KindConsent(allow=(rule,))))}
    given = Raw(arguments()[:-1] + b',"owner":"%b"}' % owner.encode())
    with gate(servers) as opened:
        exchange = Exchange(Request(1, "tools/call"), {"arguments": given}, DESK, NoClient())
        readable = rb"\ud800" not in bytes(given)
        if owner == "acme" and readable:
            permit = await opened.admit(exchange, "conditional", Kind.TOOL, "create_issue")
            assert permit is not None
            with opened.dispatch(permit):
                pass
        else:
            with pytest.raises(Forbidden):
                await opened.admit(exchange, "conditional", Kind.TOOL, "create_issue")
