"""Where calls wait for a person: what is one question, who goes when it is answered, and what becomes of the rest."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
from msgspec import Raw
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from config import AskSpec, Channel, Check, Condition, Trust
from host.client_process import ClientProcess
from host.errors import AuditUnavailable, ColonnadeError, Forbidden, StaleApproval, TooManyRequests, Unconfirmed
from host.exchange import ProgressCallback
from host.jsonrpc.messages import ErrorBody, Notification
from host.peer.outstanding import PeerError
from host.policy.confirmations import (
    MAX_FORM_TEXT,
    MAX_OF_CALLER,
    MAX_OF_SERVER,
    MAX_REFUSED,
    ConfirmationAnswer,
    ConfirmationContext,
    ConfirmationQueue,
    PendingConfirmation,
    describe_access,
    entry_answer,
)
from host.policy.grants import AccessRequest, Grant, Grants, Scope
from host.protocol.methods import Kind
from host.subject import Item, Subject
from host.wire.link import LinkLost
from tests.kit.awaited import awaited
from tests.kit.folders import folder
from tests.kit.gates import altered, entry, store_opener

ACCESS = AccessRequest(
    Subject(
        Item("gh", "tool", "create"),
        caller="laptop",
        session="s1",
        fingerprint="sha256:1",
        launch="sha256:2",
        rule="tools.ask: create",
        digest="sha256:3",
    ),
    arguments={"owner": "acme"},
    ref=entry("gh", Kind.TOOL, "create"),
)
ABOUT = ConfirmationContext(Trust.UNTRUSTED, b'{"owner":"acme"}', others=b'{"x":1}')
EVERYBODY = AskSpec((Channel.CONSOLE, Channel.TERMINAL, Channel.CLIENT))


class Client:
    """A client that is asked for consent, and says what the test says."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.called_off = 0

    def notify(self, notice: Notification) -> None:
        raise AssertionError("nothing is told here")

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        assert method == "elicitation/create"
        self.asked.append({name: json.loads(bytes(each)) for name, each in params.items()})
        if not self.answers:
            try:
                await trio.sleep_forever()
            finally:
                self.called_off += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Raw(json.dumps(answer).encode())


def accepts(answer: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"answer": answer}}


class Asked:
    """One call that waits, and what it came to."""

    def __init__(self, access: AccessRequest) -> None:
        self.access = access
        self.scope = trio.CancelScope()
        self.grant: Grant | None = None
        self.refusal: ColonnadeError | None = None
        self.ended_at: float | None = None


class Table:
    """A queue of confirmations, and calls that come to it."""

    def __init__(
        self, queue: ConfirmationQueue, told: list[tuple[str, str, dict[str, object]]], nursery: trio.Nursery
    ) -> None:
        self.queue = queue
        self.told = told
        self._nursery = nursery

    async def asks(
        self, access: AccessRequest = ACCESS, client: Client | None = None, about: ConfirmationContext = ABOUT
    ) -> Asked:
        asked = Asked(access)

        async def ask() -> None:
            try:
                with asked.scope:
                    asked.grant = await self.queue.confirm(access, about, client)
            except ColonnadeError as refusal:
                asked.refusal = refusal
            asked.ended_at = trio.current_time()

        self._nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        return asked

    async def answers(
        self, answer: ConfirmationAnswer, id: str | None = None, **more: Any
    ) -> PendingConfirmation | None:
        found = awaited(self.queue.answer(id or self.queue.list_all()[0].id, answer, Channel.CONSOLE, **more))
        await wait_all_tasks_blocked()
        return found

    def said(self, what: str = "answer") -> list[object]:
        return [said.get("answer") for told, _, said in self.told if told == what]

    def goes(self, asked: Asked, access: AccessRequest | None = None) -> bool:
        """What the gate does at the end, once for each call."""
        assert asked.grant is not None, asked.refusal
        return self.queue.grants.use(asked.grant, access or asked.access)


@contextmanager
def queues(
    spec: AskSpec, tell: Callable[[str, PendingConfirmation, dict[str, object]], None]
) -> Iterator[ConfirmationQueue]:
    with folder() as made, store_opener(made / "state") as opened:
        yield ConfirmationQueue(Grants(opened()), spec, tell)


@asynccontextmanager
async def table(spec: AskSpec = EVERYBODY, *, attended: bool = True) -> AsyncIterator[Table]:
    told: list[tuple[str, str, dict[str, object]]] = []
    with queues(spec, lambda what, pending, said: told.append((what, pending.id, said))) as queue:
        async with trio.open_nursery() as nursery:
            found = Table(queue, told, nursery)
            if attended:
                with queue.attach(Channel.CONSOLE):
                    yield found
            else:
                yield found
            nursery.cancel_scope.cancel()


# One question, and who goes


async def test_equal_calls_are_one_question_and_once_lets_the_first_of_them_go() -> None:
    """Row P6: merged; and of several that wait, the one that waits longest."""
    async with table() as queue:
        first, second, third = [await queue.asks() for _ in range(3)]
        (pending,) = queue.queue.list_all()
        assert (len(pending.waiters), queue.said("ask")) == (3, [None])
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(first)
        assert (second.grant, third.grant) == (None, None)
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(second)
        assert third.grant is None
        assert not queue.queue.grants.use(second.grant, second.access) if second.grant else False


async def test_an_answer_is_as_old_as_the_clock_of_the_store_says() -> None:
    """That of a fleet is another machine's; by the one here the grant would be of the future, or last for longer."""
    async with table() as queue:
        queue.queue.grants._wall = lambda: time.time() - 3600
        asked = await queue.asks()
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(asked)
        asked = await queue.asks()
        await queue.answers(ConfirmationAnswer.TIME, seconds=60)
        assert asked.grant is not None
        assert asked.grant.expires is not None
        assert 0 < asked.grant.expires - queue.queue.grants.now() <= 60
        assert queue.goes(asked)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("caller", "phone"),
        ("caller", None),
        ("session", "s2"),
        ("session", None),
        ("server", "gl"),
        ("kind", "prompt"),
        ("name", "creatf"),
        ("fingerprint", "sha256:9"),
        ("launch", "sha256:9"),
        ("rule", "tools.default"),
        ("digest", "sha256:9"),
        ("retry", True),
    ],
)
async def test_a_call_that_differs_in_anything_is_another_question(field: str, other: Any) -> None:
    async with table() as queue:
        first = await queue.asks()
        second = await queue.asks(altered(ACCESS, **{field: other}))
        assert len(queue.queue.list_all()) == 2
        await queue.answers(ConfirmationAnswer.ONCE)
        assert first.grant is not None
        assert second.grant is None
        if field != "retry":  # what goes on with a call may use what was given for the whole of it
            assert not queue.goes(first, second.access)


@pytest.mark.parametrize("answer", [ConfirmationAnswer.SESSION, ConfirmationAnswer.TIME, ConfirmationAnswer.ALWAYS])
async def test_a_lasting_answer_is_for_all_that_wait_and_for_later_ones(answer: ConfirmationAnswer) -> None:
    async with table() as queue:
        both = [await queue.asks() for _ in range(2)]
        await queue.answers(answer, seconds=60)
        assert all(queue.goes(each) for each in both)
        assert queue.queue.grants.find(ACCESS) is not None
        other_session = queue.queue.grants.find(altered(ACCESS, session="s2"))
        assert (other_session is None) is (answer is ConfirmationAnswer.SESSION)


async def test_no_is_for_all_that_wait_and_for_none_that_comes() -> None:
    async with table() as queue:
        both = [await queue.asks() for _ in range(2)]
        await queue.answers(ConfirmationAnswer.DENY)
        assert [type(each.refusal) for each in both] == [Forbidden, Forbidden]
        assert queue.queue.list_all() == []
        await queue.asks()
        assert len(queue.queue.list_all()) == 1


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("scope", [ConfirmationAnswer.ONCE, ConfirmationAnswer.ALWAYS])
async def test_once_is_for_these_arguments_alone_and_a_lasting_answer_for_what_was_said(
    scope: ConfirmationAnswer, exact: bool
) -> None:
    async with table() as queue:
        asked = await queue.asks()
        when = (Condition("/owner", (Check("in", ("acme", "initech")),)),)
        await queue.answers(scope, exact=exact, when=when)
        assert asked.grant is not None
        assert asked.grant.scope == scope.value
        wide = scope is ConfirmationAnswer.ALWAYS and not exact
        assert (asked.grant.subject.digest is None, asked.grant.when) == (wide, when if wide else ())
        assert queue.goes(asked, altered(ACCESS, digest="sha256:9", arguments={"owner": "initech"})) is wide
        assert not queue.goes(asked, altered(ACCESS, digest="sha256:9", arguments={"owner": "evil"}))


async def test_a_session_can_be_allowed_only_to_who_has_one() -> None:
    async with table() as queue:
        asked = await queue.asks(altered(ACCESS, session=None))
        assert await queue.answers(ConfirmationAnswer.SESSION) is None
        assert (asked.grant, asked.refusal, len(queue.queue.list_all())) == (None, None, 1)


async def test_what_was_answered_cannot_be_answered_again() -> None:
    async with table() as queue:
        await queue.asks()
        id = queue.queue.list_all()[0].id
        assert await queue.answers(ConfirmationAnswer.ONCE, id) is not None
        for answer in ConfirmationAnswer:
            assert await queue.answers(answer, id, seconds=5) is None
        assert await queue.answers(ConfirmationAnswer.ALWAYS, "feedbeef") is None


# Too many


async def test_a_caller_has_five_questions_and_a_server_ten() -> None:
    """Row P6: the next one is refused at once, and told when to try again."""
    async with table() as queue:
        for caller in ("laptop", "phone"):
            mine = [
                await queue.asks(altered(ACCESS, caller=caller, digest=f"sha256:{at}")) for at in range(MAX_OF_CALLER)
            ]
            assert [each.refusal for each in mine] == [None] * MAX_OF_CALLER
        many = await queue.asks(altered(ACCESS, caller="laptop", server="other", digest="sha256:x"))
        busy = await queue.asks(altered(ACCESS, caller="third"))
        for each, limit in ((many, "5 confirmations of this client"), (busy, "10 confirmations about the server gh")):
            assert limit in str(each.refusal)
            assert isinstance(each.refusal, TooManyRequests)
            assert (each.refusal.code, json.loads(bytes(each.refusal.data or b""))) == (429, {"retryAfterMs": 50_000})
        assert len(queue.queue.list_all()) == MAX_OF_SERVER
        equal = await queue.asks(altered(ACCESS, caller="phone", digest="sha256:1"))
        assert equal.refusal is None
        await queue.answers(ConfirmationAnswer.DENY)
        assert (await queue.asks(altered(ACCESS, caller="third"))).refusal is None


async def test_many_sessions_of_one_token_leave_room_for_another_token() -> None:
    """Without tokens, each session is a caller of its own."""
    async with table() as queue:
        flood = [
            await queue.asks(altered(ACCESS, session=f"s{at}", digest=f"sha256:{at}")) for at in range(MAX_OF_SERVER)
        ]
        assert [each.refusal is None for each in flood] == [True] * MAX_OF_CALLER + [False] * MAX_OF_CALLER
        assert (await queue.asks(altered(ACCESS, caller="phone"))).refusal is None
        nameless = [await queue.asks(altered(ACCESS, caller=None, session=at, server="b")) for at in ("s1", "s2")]
        assert [each.refusal for each in nameless] == [None, None]


# Nobody, and too late


async def test_where_nobody_is_there_it_is_refused_at_once_and_says_where_to_answer() -> None:
    """Row P3."""
    async with table(attended=False) as queue:
        asked = await queue.asks()
        assert isinstance(asked.refusal, Unconfirmed)
        assert asked.refusal.code == 408
        assert "colonnade ask" in asked.refusal.message
        assert "colonnade console" in asked.refusal.message
        (pending,) = queue.queue.list_all()
        assert pending.refused == "nobody was there to answer"


async def test_what_is_refused_at_once_is_never_said_to_wait() -> None:
    told: list[tuple[str, str]] = []
    with queues(EVERYBODY, lambda what, pending, said: told.append((what, pending.refused))) as queue:
        with pytest.raises(Unconfirmed):
            await queue.confirm(ACCESS, ABOUT, None)
        assert told[0] == ("ask", "nobody was there to answer")
        with trio.move_on_after(0), queue.attach(Channel.CONSOLE):
            await queue.confirm(ACCESS, ABOUT, None)
    assert told[2] == ("ask", "")


@pytest.mark.parametrize("spec", [AskSpec((Channel.CONSOLE,)), AskSpec((Channel.CLIENT,))])
async def test_whoever_the_configuration_does_not_name_is_nobody(spec: AskSpec) -> None:
    async with table(spec, attended=False) as queue:
        with queue.queue.attach(Channel.TERMINAL):
            assert not queue.queue.can_be_answered()
            assert isinstance((await queue.asks()).refusal, Unconfirmed)


async def test_after_the_time_it_is_refused_and_stays_to_be_granted_for_the_next(autojump_clock: MockClock) -> None:
    async with table() as queue:
        began = trio.current_time()
        asked = await queue.asks()
        await trio.sleep(60)
        assert isinstance(asked.refusal, Unconfirmed)
        assert asked.ended_at == began + 50
        (pending,) = queue.queue.list_all()
        assert "50 s" in pending.refused
        await queue.answers(ConfirmationAnswer.ONCE)
        granted = queue.queue.grants.find(ACCESS)
        assert granted is not None
        assert queue.queue.grants.use(granted, ACCESS)
        assert queue.queue.grants.find(ACCESS) is None


async def test_a_refused_confirmation_and_its_grant_end_after_ten_minutes(autojump_clock: MockClock) -> None:
    async with table() as queue:
        await queue.asks()
        await trio.sleep(60)
        (pending,) = queue.queue.list_all()
        assert 500 < pending.expires_at - time.time() <= 600
        assert not queue.queue.drop_expired()
        await queue.answers(ConfirmationAnswer.ONCE)
        granted = queue.queue.grants.find(ACCESS)
        assert granted is not None
        assert granted.expires == granted.made + 600


@pytest.mark.parametrize("answer", [each for each in ConfirmationAnswer if each is not ConfirmationAnswer.TIME])
async def test_a_refused_confirmation_ends_with_the_answer_to_an_equal_one(answer: ConfirmationAnswer) -> None:
    """Also in another session; a call that differs stays."""
    async with table(attended=False) as queue:
        await queue.asks(altered(ACCESS, session="s0"))
        await queue.asks(altered(ACCESS, digest="sha256:9"))
        with queue.queue.attach(Channel.CONSOLE):
            await queue.asks()
            await queue.answers(answer)
        assert [each.access.subject.digest for each in queue.queue.list_all()] == ["sha256:9"]


async def test_a_refused_confirmation_ends_with_a_wider_grant_that_covers_it() -> None:
    async with table(attended=False) as queue:
        await queue.asks(altered(ACCESS, digest="sha256:9"))
        with queue.queue.attach(Channel.CONSOLE):
            await queue.asks()
            await queue.answers(ConfirmationAnswer.ALWAYS, exact=False)
        assert queue.queue.list_all() == []


async def test_a_refusal_of_an_owners_command_is_for_a_person() -> None:
    about = replace(ABOUT, process=ClientProcess("colonnade call", 4711, is_command=True))
    async with table(attended=False) as queue:
        asked = await queue.asks(about=about)
        [refused] = queue.queue.list_all()
        assert f"`colonnade ask {refused.id} once` gives it; then repeat the command." in str(asked.refusal)
        with queue.queue.attach(Channel.CONSOLE):
            asked = await queue.asks(about=about)
            await queue.answers(ConfirmationAnswer.DENY)
        assert str(asked.refusal).endswith("a person said no.")


async def test_a_refused_confirmation_whose_time_is_over_cannot_be_answered(autojump_clock: MockClock) -> None:
    async with table() as queue:
        await queue.asks()
        await trio.sleep(60)
        (pending,) = queue.queue.list_all()
        pending.expires_at = time.time()
        assert await queue.answers(ConfirmationAnswer.ONCE, pending.id) is None
        assert queue.queue.list_all() == []


async def test_an_entry_allowed_for_a_session_is_this_entry_in_this_session_by_this_rule() -> None:
    """Row P2: the answer for any arguments is wide; this is all that it covers."""
    fields = ("session", "rule", "name", "fingerprint", "launch")
    others_by_field: list[dict[str, Any]] = [{field: "other"} for field in fields]
    async with table() as queue:
        first = await queue.asks()
        more = await queue.asks(altered(ACCESS, digest="sha256:4"))
        assert await queue.answers(ConfirmationAnswer.SESSION, queue.queue.list_all()[0].id, exact=False) is not None
        assert queue.goes(first)
        assert queue.goes(more)  # the same tool with other arguments, in the same session
        assert queue.goes(first, altered(ACCESS, digest="sha256:5"))
        others = [altered(ACCESS, **other) for other in others_by_field]
        assert [queue.queue.grants.find(each) for each in others] == [None] * len(fields)
        queue.queue.end_session("s1")
        assert queue.queue.grants.find(ACCESS) is None


@pytest.mark.parametrize(
    ("access", "conditional", "offered"),
    [
        ({}, False, ConfirmationAnswer.SESSION),
        ({"caller": None}, False, ConfirmationAnswer.SESSION),
        ({"kind": "prompt"}, False, ConfirmationAnswer.SESSION),
        ({"kind": "sampling", "ref": None}, False, None),
        ({"session": None}, False, ConfirmationAnswer.TIME),
        ({"session": None, "caller": None}, False, None),
        ({"session": None, "ref": None}, False, None),
        ({}, True, None),
        ({"session": None}, True, None),
    ],
)
def test_an_entry_is_offered_as_a_whole_where_one_step_cannot_undo_a_rule(
    access: dict[str, Any], conditional: bool, offered: ConfirmationAnswer | None
) -> None:
    about = replace(ABOUT, conditional=conditional)
    pending = PendingConfirmation("q", altered(ACCESS, **access), about, 0.0, 1.0)
    assert entry_answer(pending) is offered


async def test_an_entry_allowed_for_a_time_is_for_one_token_in_any_session() -> None:
    async with table() as queue:
        first = await queue.asks(altered(ACCESS, session=None))
        await queue.answers(ConfirmationAnswer.TIME, seconds=900, exact=False)
        assert queue.goes(first)
        assert queue.goes(first, altered(ACCESS, session=None, digest="sha256:9"))
        others: list[dict[str, Any]] = [{"caller": "phone"}, {"caller": None}, {"name": "other"}]
        assert [queue.queue.grants.find(altered(ACCESS, **{"session": None, **each})) for each in others] == [None] * 3


async def test_what_joined_later_waits_its_own_time(autojump_clock: MockClock) -> None:
    async with table() as queue:
        first = await queue.asks()
        await trio.sleep(30)
        second = await queue.asks()
        await trio.sleep(25)
        assert isinstance(first.refusal, Unconfirmed)
        assert (second.refusal, queue.queue.list_all()[0].refused) == (None, "")
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(second)


async def test_who_waits_is_not_refused_because_somebody_else_came_when_nobody_was_there() -> None:
    async with table(attended=False) as queue:
        with queue.queue.attach(Channel.CONSOLE):
            first = await queue.asks()
        second = await queue.asks()
        assert isinstance(second.refusal, Unconfirmed)
        assert (first.refusal, queue.queue.list_all()[0].refused) == (None, "")
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(first)


async def test_only_so_many_refused_ones_are_kept() -> None:
    async with table(attended=False) as queue:
        for at in range(MAX_REFUSED + 3):
            await queue.asks(altered(ACCESS, digest=f"sha256:{at}"))
        assert [pending.access.subject.digest for pending in queue.queue.list_all()][:2] == ["sha256:3", "sha256:4"]
        assert len(queue.queue.list_all()) == MAX_REFUSED


# Withdrawn and void


async def test_a_call_that_is_called_off_takes_its_question_with_it() -> None:
    """Row P4: a later answer is answered by nothing."""
    async with table() as queue:
        asked = await queue.asks()
        id = queue.queue.list_all()[0].id
        asked.scope.cancel()
        await wait_all_tasks_blocked()
        assert queue.queue.list_all() == []
        assert await queue.answers(ConfirmationAnswer.ALWAYS, id) is None
        assert queue.queue.grants.all() == []
        assert queue.said() == ["withdrawn"]


async def test_an_equal_call_keeps_the_question_when_the_first_is_called_off() -> None:
    async with table() as queue:
        first, second = await queue.asks(), await queue.asks()
        first.scope.cancel()
        await wait_all_tasks_blocked()
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(second)


@pytest.mark.parametrize("called_off_first", [True, False])
async def test_an_answer_that_meets_a_cancel_leaves_nothing_to_use(called_off_first: bool) -> None:
    """Row P4: no grant for one call stays when that very call was called off."""
    async with table() as queue:
        asked = await queue.asks()
        id = queue.queue.list_all()[0].id
        if called_off_first:
            asked.scope.cancel()
        awaited(queue.queue.answer(id, ConfirmationAnswer.ONCE, Channel.CONSOLE))
        asked.scope.cancel()
        await wait_all_tasks_blocked()
        used = asked.grant is not None and queue.goes(asked)
        assert not (called_off_first and used)
        assert queue.queue.grants.find(ACCESS) is None


async def test_what_does_not_hold_any_more_is_void() -> None:
    """Row P5."""
    async with table() as queue:
        asked, other = await queue.asks(), await queue.asks(altered(ACCESS, name="other"))
        queue.queue.void(lambda access: access.subject.item.name == "other")
        await wait_all_tasks_blocked()
        assert isinstance(asked.refusal, StaleApproval)
        assert asked.refusal.code == 409
        assert (other.refusal, len(queue.queue.list_all()), queue.said()) == (None, 1, ["void"])


async def test_with_its_session_ends_what_was_asked_and_allowed_in_it() -> None:
    async with table() as queue:
        asked = await queue.asks()
        await queue.answers(ConfirmationAnswer.SESSION)
        waiting = await queue.asks(altered(ACCESS, name="other"))
        queue.queue.end_session("s1")
        await wait_all_tasks_blocked()
        assert isinstance(waiting.refusal, Unconfirmed)
        assert (queue.queue.list_all(), queue.queue.grants.all()) == ([], [])
        assert not queue.goes(asked)


async def test_a_refused_question_of_an_ended_session_is_for_no_session_any_more() -> None:
    async with table(attended=False) as queue:
        await queue.asks()
        queue.queue.end_session("s1")
        assert await queue.answers(ConfirmationAnswer.SESSION) is None
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.queue.grants.find(altered(ACCESS, session="s2")) is not None


# The client itself


@pytest.mark.parametrize(("choice", "scope"), [("once", Scope.ONCE), ("session", Scope.SESSION)])
async def test_a_clients_user_may_say_yes(choice: str, scope: Scope) -> None:
    async with table(attended=False) as queue:
        client = Client(accepts(choice))
        asked = await queue.asks(client=client)
        assert asked.grant is not None
        assert (asked.grant.scope, asked.grant.by) == (scope, "client")
        (form,) = client.asked
        assert form["message"].startswith("Colonnade asks")
        assert '"owner":"acme"' in form["message"].replace(" ", "")
        assert form["message"].endswith('and beside the arguments:\n{"x":1}')
        assert form["requestedSchema"]["properties"]["answer"]["enum"] == ["deny", "once", "session"]


@pytest.mark.parametrize("answer", [accepts("deny"), {"action": "decline"}])
async def test_a_clients_user_may_say_no(answer: dict[str, Any]) -> None:
    async with table() as queue:
        asked = await queue.asks(client=Client(answer))
        assert isinstance(asked.refusal, Forbidden)
        assert (queue.queue.grants.all(), queue.queue.list_all()) == ([], [])


CLOSED = [
    accepts("always"),
    accepts("time"),
    accepts("nonsense"),
    accepts(""),
    {"action": "accept"},
    {"action": "accept", "content": {}},
    {"action": "accept", "content": {"other": "once"}},
    {"action": "cancel"},
    {"action": "cancel", "content": {"answer": "once"}},
    {"action": "other", "content": {"answer": "once"}},
]


@pytest.mark.parametrize("answer", CLOSED, ids=repr)
async def test_a_form_without_our_choice_is_no_answer_and_leaves_it_to_others(answer: dict[str, Any]) -> None:
    """Nothing that lasts comes of a client, which an agent may steer."""
    async with table() as queue:
        asked = await queue.asks(client=Client(answer))
        assert (asked.grant, asked.refusal, queue.said()) == (None, None, [])
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(asked)


@pytest.mark.parametrize("answer", CLOSED, ids=repr)
async def test_where_nobody_else_is_there_a_closed_form_ends_the_call_and_a_person_can_still_answer(
    answer: dict[str, Any],
) -> None:
    async with table(attended=False) as queue:
        asked = await queue.asks(client=Client(answer))
        assert isinstance(asked.refusal, Unconfirmed)
        assert "closed without an answer" in asked.refusal.message
        assert "`colonnade ask`" in asked.refusal.message
        assert (queue.said(), queue.queue.grants.all()) == (["none"], [])
        await queue.answers(ConfirmationAnswer.ONCE)
        found = queue.queue.grants.find(ACCESS)
        assert found is not None
        assert queue.queue.grants.use(found, ACCESS)


async def test_a_closed_form_ends_one_call_and_not_an_equal_one() -> None:
    async with table(attended=False) as queue:
        first, second = await queue.asks(client=Client()), await queue.asks(client=Client({"action": "cancel"}))
        assert isinstance(second.refusal, Unconfirmed)
        assert (first.refusal, queue.queue.list_all()[0].refused) == (None, "")
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(first)


async def test_a_client_without_a_session_cannot_have_one_allowed() -> None:
    async with table(attended=False) as queue:
        client = Client(accepts("session"))
        asked = await queue.asks(altered(ACCESS, session=None), client)
        assert client.asked[0]["requestedSchema"]["properties"]["answer"]["enum"] == ["deny", "once"]
        assert isinstance(asked.refusal, Unconfirmed)
        assert queue.queue.grants.all() == []


@pytest.mark.parametrize("late", [accepts("once"), accepts("session"), accepts("deny"), {"action": "cancel"}])
async def test_of_two_people_one_answers(late: dict[str, Any]) -> None:
    """The form of the client is answered in the same moment as the card of the console."""
    async with table() as queue:
        pressed = trio.Event()

        class Slow(Client):
            async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
                with trio.CancelScope(shield=True):  # the answer is on its way already
                    await pressed.wait()
                return await super().request(method, params, report)

        asked = await queue.asks(client=Slow(late))
        id = queue.queue.list_all()[0].id
        assert awaited(queue.queue.answer(id, ConfirmationAnswer.ONCE, Channel.CONSOLE)) is not None
        pressed.set()
        await wait_all_tasks_blocked()
        assert queue.said() == ["once"]
        assert queue.goes(asked)
        assert queue.queue.grants.find(ACCESS) is None


async def test_a_form_that_is_answered_after_the_time_decides_nothing(autojump_clock: MockClock) -> None:
    async with table() as queue:

        class Late(Client):
            async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
                with trio.CancelScope(shield=True):
                    await trio.sleep(60)
                return await super().request(method, params, report)

        asked = await queue.asks(client=Late(accepts("session")))
        await trio.sleep(70)
        assert isinstance(asked.refusal, Unconfirmed)
        assert (queue.said(), queue.queue.grants.all()) == (["none"], [])


# The way that is open


@pytest.mark.parametrize(
    ("answers", "attached", "has_console", "said"),
    [
        ("console terminal", "", True, "on the console (`colonnade console` opens it) or with `colonnade ask`"),
        ("console terminal client", "", False, "with `colonnade ask` in a terminal"),
        ("terminal", "console", True, "with `colonnade ask` in a terminal"),
        ("console", "", True, "on the console (`colonnade console` opens it), "),
        ("console terminal", "console", True, "on the page of the console that is open"),
        ("console terminal", "terminal", True, "in the terminal in which `colonnade ask` runs"),
        ("client", "", True, "Only a client that shows forms"),
        ("console", "", False, "Only a client that shows forms"),
    ],
)
async def test_a_refusal_names_the_way_that_is_open_now(
    answers: str, attached: str, has_console: bool, said: str, autojump_clock: MockClock
) -> None:
    spec = AskSpec(tuple(map(Channel, answers.split())))
    async with table(spec, attended=False) as queue:
        queue.queue.has_console = has_console
        if attached:
            with queue.queue.attach(Channel(attached)):
                asked = await queue.asks()
                await trio.sleep(60)
        else:
            asked = await queue.asks()
        assert asked.refusal is not None
        assert said in asked.refusal.message
        for command in ("`colonnade console`", "`colonnade ask`"):
            assert (command in asked.refusal.message) is (command in said)


async def test_the_machine_is_named_to_a_caller_that_may_be_elsewhere() -> None:
    async with table(attended=False) as queue:
        assert "on the machine that runs Colonnade" in str((await queue.asks()).refusal)
        assert "on the machine" not in str((await queue.asks(altered(ACCESS, caller=None))).refusal)


async def test_where_the_client_alone_may_answer_the_refusal_leads_nowhere_else() -> None:
    async with table(AskSpec((Channel.CLIENT,)), attended=False) as queue:
        asked = await queue.asks(client=Client({"action": "cancel"}))
        assert "Only the form that this client shows" in str(asked.refusal)
        assert "colonnade" not in str(asked.refusal)


async def test_what_is_too_long_to_read_is_not_shown_to_a_client() -> None:
    async with table(attended=False) as queue:
        client = Client(accepts("once"))
        long = json.dumps({"owner": "a" * MAX_FORM_TEXT}).encode()
        asked = await queue.asks(client=client, about=replace(ABOUT, raw_arguments=long))
        assert isinstance(asked.refusal, Unconfirmed)
        assert client.asked == []


BROKEN = [LinkLost("gone"), PeerError(ErrorBody(-32601, "no")), 5, {"action": 5}, {"action": "accept", "content": []}]


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
@pytest.mark.parametrize("attended", [True, False])
async def test_a_client_that_cannot_be_asked_leaves_it_to_whoever_else_is_there(broken: object, attended: bool) -> None:
    async with table(attended=attended) as queue:
        asked = await queue.asks(client=Client(broken))
        if attended:
            assert asked.refusal is None
            await queue.answers(ConfirmationAnswer.ONCE)
            assert queue.goes(asked)
        else:
            assert isinstance(asked.refusal, Unconfirmed)


async def test_an_answer_elsewhere_takes_the_form_from_the_client() -> None:
    async with table() as queue:
        client = Client()
        asked = await queue.asks(client=client)
        await queue.answers(ConfirmationAnswer.ONCE)
        assert queue.goes(asked)
        assert client.called_off == 1


async def test_a_clients_once_is_for_its_own_call() -> None:
    async with table() as queue:
        first = await queue.asks()
        second = await queue.asks(client=Client(accepts("once")))
        assert first.grant is None
        assert queue.goes(second)


async def test_what_cannot_be_written_down_is_not_granted() -> None:
    """By nobody: neither the console nor the client."""

    def tell(what: str, pending: PendingConfirmation, said: dict[str, object]) -> None:
        if "grant" in said:
            raise AuditUnavailable("the disk is full")

    with queues(EVERYBODY, tell) as queue:
        async with trio.open_nursery() as nursery:
            with queue.attach(Channel.CONSOLE):
                waiting = await Table(queue, [], nursery).asks()
                with pytest.raises(AuditUnavailable):
                    awaited(queue.answer(queue.list_all()[0].id, ConfirmationAnswer.ONCE, Channel.CONSOLE))
                asked = await Table(queue, [], nursery).asks(client=Client(accepts("once")))
                assert isinstance(asked.refusal, AuditUnavailable)
                assert (waiting.grant, queue.grants.all()) == (None, [])
            nursery.cancel_scope.cancel()


async def test_whoever_watches_hears_of_everything() -> None:
    async with table() as queue:
        heard: list[int] = []
        queue.queue.subscribe(lambda: heard.append(len(queue.queue.list_all())))
        asked = await queue.asks()
        assert heard[-1] == 1
        asked.scope.cancel()
        await wait_all_tasks_blocked()
        assert heard[-1] == 0


@pytest.mark.parametrize("kind", ["tool", "sampling", "form", "url", "roots"])
def test_what_is_asked_is_said_in_our_own_words(kind: str) -> None:
    """And what a server wrote stands where it cannot pass for them."""
    said = describe_access(altered(ACCESS, kind=kind, name="create\u202e\x1b[2J"))
    assert "gh" in said
    assert "\u202e" not in said
    assert "\x1b" not in said
