"""What a person's answer is good for: for whom, for how long, and for which definition, program and rule."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import trio
from msgspec import structs
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from config import (
    AskSpec,
    Channel,
    Consent,
)
from host.errors import Forbidden, StaleApproval, Unconfirmed
from host.exchange import Caller, MrtrRound
from host.policy.authorizer import MAX_RENEWALS
from host.policy.confirmations import MAX_CONFIRMABLE_BYTES, ConfirmationAnswer
from host.policy.fingerprint import Launch
from host.policy.gate import CallPermit, Gate
from host.policy.grants import Scope
from host.protocol.abilities import SHARED_ABILITIES
from host.protocol.methods import Kind
from host.source import SHARED
from tests.kit.awaited import awaited
from tests.kit.gates import altered, auto_answering, entry, kind, observe

from .servers import (
    DESK,
    OTHER_SESSION,
    OTHER_TOKEN,
    UNFINISHED,
    URI,
    asked_about,
    asked_quietly,
    call,
    dispatched,
    gate,
    offers,
    padded,
    passes,
    with_server,
)


def asked_names(opened: Gate) -> list[str]:
    """The entries that people are asked about."""
    return [pending.access.subject.item.name for pending in opened.authorizer.confirmations.list_all()]


async def test_with_nobody_there_it_is_refused_and_stays_to_be_answered_for_the_next_call() -> None:
    with gate() as opened:
        with pytest.raises(Unconfirmed) as refused:
            await opened.admit(call({"n": 1}), entry("asking", Kind.TOOL, "create_x"))
        assert refused.value.code == 408
        assert "colonnade ask" in refused.value.message
        (pending,) = opened.authorizer.confirmations.list_all()
        assert pending.refused
        assert (
            awaited(opened.authorizer.confirmations.answer(pending.id, ConfirmationAnswer.ONCE, Channel.TERMINAL))
            is pending
        )
        for other in (call({"n": 2}), call({"n": 1}, Caller("x", SHARED, "else"))):
            with pytest.raises(Unconfirmed):
                await opened.admit(other, entry("asking", Kind.TOOL, "create_x"))
        permit = await opened.admit(call({"n": 1}), entry("asking", Kind.TOOL, "create_x"))
        assert permit is not None
        with dispatched(permit):
            pass
        with pytest.raises(Unconfirmed):
            await opened.admit(call({"n": 1}), entry("asking", Kind.TOOL, "create_x"))


async def test_a_person_who_says_no_is_told_to_whoever_called() -> None:
    with gate() as opened:
        with pytest.raises(Forbidden, match="a person said no"):
            await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.DENY)
        assert opened.authorizer.grants.all() == []


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
        with dispatched(permit):
            pass
        for caller, expected in ((DESK, same), (OTHER_SESSION, session), (OTHER_TOKEN, token)):
            assert await passes(opened, "create_x", call({"n": 1}, caller)) is expected
            assert not await passes(opened, "create_x", call({"n": 2}, caller))
            assert not await passes(opened, "create_x", call(None, caller))
            assert not await passes(opened, "create_y", call({"n": 1}, caller))


async def test_what_is_allowed_for_a_session_ends_with_it() -> None:
    with gate() as opened:
        permit, _ = await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.SESSION)
        assert permit is not None
        opened.forget(OTHER_SESSION)
        assert await passes(opened, "create_x", call())
        opened.forget(DESK)
        assert not await passes(opened, "create_x", call())
        with pytest.raises(StaleApproval), dispatched(permit):
            pass


@pytest.mark.parametrize("session", [None, "s1"])
async def test_only_callers_that_have_a_session_are_allowed_something_for_it(session: Hashable) -> None:
    caller = Caller("desk", SHARED, "token", session=session)
    with gate() as opened, pytest.raises(Unconfirmed):
        await opened.admit(call(None, caller), entry("asking", Kind.TOOL, "create_x"))
    with gate() as opened:
        with pytest.raises(Unconfirmed):
            await opened.admit(call(None, caller), entry("asking", Kind.TOOL, "create_x"))
        (pending,) = opened.authorizer.confirmations.list_all()
        answered = awaited(
            opened.authorizer.confirmations.answer(pending.id, ConfirmationAnswer.SESSION, Channel.CONSOLE)
        )
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
            await opened.admit(call(), entry("asking", Kind.TOOL, "create_x"))
        first.release()
        second = await opened.admit(call(), entry("asking", Kind.TOOL, "create_x"))
        assert second is not None
        with dispatched(second):
            pass
        for spent in (first, second):
            with pytest.raises(StaleApproval), dispatched(spent):
                pass


async def test_a_call_that_goes_on_is_not_asked_about_again() -> None:
    """Once, for the same call and the same server; a call that begins anew is another."""
    at = MrtrRound("asking", {}, "state")
    with gate() as opened:
        permit, _ = await asked_about(opened, "asking", "create_x", call({"n": 1}, at=MrtrRound()))
        assert permit is not None
        with dispatched(permit):
            permit.renew_for_retry(UNFINISHED)
        permit.release()
        assert not await passes(opened, "create_x", call({"n": 1}))
        assert not await passes(opened, "create_x", call({"n": 2}, at=at))
        assert not await passes(opened, "create_x", call({"n": 1}, at=MrtrRound("open", {}, "state")))
        assert await passes(opened, "create_x", call({"n": 1}, at=at))
        assert not await passes(opened, "create_x", call({"n": 1}, at=at))


async def test_what_was_allowed_for_longer_needs_nothing_to_go_on() -> None:
    with gate() as opened:
        permit, _ = await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.ALWAYS)
        assert permit is not None
        permit.renew_for_retry(UNFINISHED)
        assert [grant.scope for grant in opened.authorizer.grants.all()] == [Scope.ALWAYS]
        plain = await opened.admit(call(), entry("open", Kind.TOOL, "x"))
        assert plain is not None
        plain.renew_for_retry(UNFINISHED)
        plain.release()
        assert len(opened.authorizer.grants.all()) == 1


async def test_what_follows_its_entry_is_not_asked_about() -> None:
    """And does not use up what was allowed once."""
    with gate() as opened:
        assert opened.admit_without_confirmation(call(), entry("open", Kind.RESOURCE, URI)) is not None
        with (
            auto_answering(opened) as asked,
            pytest.raises(Forbidden, match="needs a person's consent, which was not given"),
        ):
            opened.admit_without_confirmation(call(), entry("asking", Kind.RESOURCE, URI))
        assert asked == []
        with auto_answering(opened, ConfirmationAnswer.ONCE):
            once = await opened.admit(call(), entry("asking", Kind.RESOURCE, URI))
        assert once is not None
        once.release()
        with pytest.raises(Forbidden):
            opened.admit_without_confirmation(call(), entry("asking", Kind.RESOURCE, URI))
        awaited(opened.authorizer.grants.revoke(opened.authorizer.grants.all()[0].id))
        with auto_answering(opened, ConfirmationAnswer.SESSION):
            await opened.admit(call(), entry("asking", Kind.RESOURCE, URI))
        permit = opened.admit_without_confirmation(call(), entry("asking", Kind.RESOURCE, URI))
        assert permit is not None
        with dispatched(permit):
            pass


async def test_a_question_is_answered_within_its_time_or_refused(autojump_clock: MockClock) -> None:
    with gate(ask=AskSpec(timeout=7.0)) as opened, opened.authorizer.confirmations.attach(Channel.CONSOLE):
        began = trio.current_time()
        with pytest.raises(Unconfirmed, match="nobody answered within 7 s"):
            await opened.admit(call(), entry("asking", Kind.TOOL, "create_x"))
        assert trio.current_time() - began == pytest.approx(7)


async def test_new_rules_void_the_questions_and_grants_of_those_that_are_gone() -> None:
    """Whoever waits hears so at once; what is under a rule that stays, stays."""
    other = Consent(tools=kind(ask=["create_*", "delete_*"]))
    after = Consent(tools=kind(ask=["create_?", "delete_*"]))
    refused: list[Exception] = []

    async def wait(opened: Gate, name: str) -> None:
        try:
            await opened.admit(call(), entry("asking", Kind.TOOL, name))
        except StaleApproval as problem:
            refused.append(problem)

    with gate(with_server("asking", consent=other)) as opened:
        for name in ("create_a", "delete_a"):
            await asked_about(opened, "asking", name, answer=ConfirmationAnswer.ALWAYS)
        with opened.authorizer.confirmations.attach(Channel.CONSOLE):
            async with trio.open_nursery() as nursery:
                for name in ("create_x", "delete_x"):
                    nursery.start_soon(wait, opened, name)
                await wait_all_tasks_blocked()
                opened.replace(with_server("asking", consent=after), {})
                await wait_all_tasks_blocked()
                assert asked_names(opened) == ["delete_x"]
                assert len(refused) == 1
                nursery.cancel_scope.cancel()
        assert [grant.subject.item.name for grant in opened.authorizer.grants.all()] == ["delete_a"]


async def test_new_definitions_void_the_questions_about_former_ones() -> None:
    with gate() as opened, opened.authorizer.confirmations.attach(Channel.CONSOLE):
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
            assert asked_names(opened) == ["create_y"]
            nursery.cancel_scope.cancel()


async def test_a_definition_that_is_offered_again_voids_the_questions_asked_without_it() -> None:
    """It is approved as it was, so nothing about it is new; but an answer would not be for it."""
    refused: list[Exception] = []

    async def wait(opened: Gate) -> None:
        try:
            await opened.admit(call(), entry("asking", Kind.TOOL, "create_x"))
        except StaleApproval as problem:
            refused.append(problem)

    with gate() as opened, opened.authorizer.confirmations.attach(Channel.CONSOLE):
        offers(opened, "asking", "create_x", "create_y")
        offers(opened, "asking", "create_y")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, opened)
            nursery.start_soon(asked_quietly, opened, "create_y")
            await wait_all_tasks_blocked()
            offers(opened, "asking", "create_x", "create_y")
            await wait_all_tasks_blocked()
            assert asked_names(opened) == ["create_y"]
            assert len(refused) == 1
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("named", [True, False])
async def test_a_client_answers_only_where_the_configuration_says_so(named: bool) -> None:
    answers = (Channel.CONSOLE, Channel.CLIENT) if named else (Channel.CONSOLE,)
    able = structs.replace(DESK, abilities=SHARED_ABILITIES)
    with gate(ask=AskSpec(answers=answers)) as opened:
        assert opened.client_may_confirm(entry("asking", Kind.TOOL, "create_x"), able, "") is named
        for server, name, caller in (("asking", "create_x", DESK), ("asking", "x", able), ("stranger", "x", able)):
            assert not opened.client_may_confirm(entry(server, Kind.TOOL, name), caller, "")


async def test_why_a_grant_is_dead_is_said_in_words() -> None:
    with gate() as opened:
        offers(opened, "asking", "create_x")
        await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.ALWAYS)
        (grant,) = opened.authorizer.grants.all()
        assert opened.authorizer.why_unusable(grant) == ""
        offers(opened, "asking", "create_x", description="Other.")
        assert "definition" in opened.authorizer.why_unusable(grant)
        offers(opened, "asking", "create_x")
        assert opened.authorizer.why_unusable(grant) == ""
        assert "rule" in opened.authorizer.why_unusable(altered(grant, rule="tools.ask: other"))
        assert "server" in opened.authorizer.why_unusable(altered(grant, server="stranger"))
        assert opened.authorizer.why_unusable(replace(grant, expires=1.0))
        awaited(opened.definitions.observe_launch("asking", Launch("d", "/bin/x")))
        assert "started" in opened.authorizer.why_unusable(grant)


async def test_a_call_that_was_agreed_to_once_goes_on_so_often_and_then_it_is_asked_about_anew() -> None:
    with gate() as opened:
        offers(opened, "asking", "create_x")
        permit, asked = await asked_about(opened, "asking", "create_x")
        assert permit is not None
        for _ in range(MAX_RENEWALS):
            with dispatched(permit):
                pass
            permit.renew_for_retry(UNFINISHED)
            permit = await opened.admit(call(at=MrtrRound("asking")), entry("asking", Kind.TOOL, "create_x"))
            assert permit is not None
        with dispatched(permit):
            pass
        permit.renew_for_retry(UNFINISHED)
        assert len(asked) == 1
        with pytest.raises(Unconfirmed):
            await opened.admit(call(at=MrtrRound("asking")), entry("asking", Kind.TOOL, "create_x"))


async def test_an_answer_for_more_than_one_call_lets_go_of_all_that_wait_and_that_it_is_for(
    nursery: trio.Nursery,
) -> None:
    permits: list[CallPermit | None] = []

    async def wait(number: int, name: str) -> None:
        permits.append(await opened.admit(call({"n": number}), entry("asking", Kind.TOOL, name)))

    with gate() as opened, opened.authorizer.confirmations.attach(Channel.CONSOLE):
        offers(opened, "asking", "create_x", "create_y")
        for number, name in ((1, "create_x"), (2, "create_x"), (3, "create_y")):
            nursery.start_soon(wait, number, name)
        await wait_all_tasks_blocked()
        first = next(
            pending
            for pending in opened.authorizer.confirmations.list_all()
            if pending.access.subject.item.name == "create_x"
        )
        awaited(
            opened.authorizer.confirmations.answer(first.id, ConfirmationAnswer.ALWAYS, Channel.CONSOLE, exact=False)
        )
        await wait_all_tasks_blocked()
        assert len(permits) == 2
        (left,) = opened.authorizer.confirmations.list_all()
        assert left.access.subject.item.name == "create_y"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_what_a_person_cannot_read_is_refused_and_nobody_is_asked(more: int) -> None:
    with gate() as opened, auto_answering(opened) as confirmations:
        exchange = call(padded(MAX_CONFIRMABLE_BYTES + more))
        if more > 0:
            with pytest.raises(
                Forbidden, match=rf"its {MAX_CONFIRMABLE_BYTES + 1} bytes are more than a person can agree to"
            ):
                await opened.admit(exchange, entry("asking", Kind.TOOL, "create_issue"))
        else:
            assert await opened.admit(exchange, entry("asking", Kind.TOOL, "create_issue")) is not None
        assert len(confirmations) == (0 if more > 0 else 1)


async def test_long_arguments_need_a_grant_that_is_not_for_exact_ones() -> None:
    with gate() as opened:
        with auto_answering(opened, ConfirmationAnswer.SESSION) as confirmations:
            await opened.admit(call({"owner": "acme"}), entry("asking", Kind.TOOL, "create_issue"))
        (access,) = (pending.access for pending in confirmations)
        long = call(padded(MAX_CONFIRMABLE_BYTES + 1))
        with pytest.raises(Forbidden):
            await opened.admit(long, entry("asking", Kind.TOOL, "create_issue"))
        grant = opened.authorizer.grants.all()[0]
        assert grant.subject.digest == access.subject.digest
        awaited(opened.authorizer.grants.add(altered(grant, id="wide", digest=None)))
        permit = await opened.admit(long, entry("asking", Kind.TOOL, "create_issue"))
        assert permit is not None
        with dispatched(permit):
            pass
