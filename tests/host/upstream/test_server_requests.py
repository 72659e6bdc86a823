"""What a server says by itself reaches the one client that is meant, or nobody; scripted servers and clients."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Channel, Isolation, Trust
from host.downstream.detached import PARKED_LIFETIME
from host.errors import UNCONFIRMED
from host.exchange import Caller, Exchange, MrtrRound, ProgressCallback
from host.journal import InternalError, MessageDropped, ServerRequestRefused
from host.jsonrpc.messages import Failure, Notification, Request, Success, write
from host.jsonrpc.raw import encode, encode_object, members
from host.peer.outstanding import ABANDONED_SECONDS
from host.peer.peer import MAX_INCOMING
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.protocol.abilities import NO_ABILITIES, abilities_of
from host.protocol.versions import LATEST, Era
from host.source import SHARED, Endpoint
from host.upstream.server_requests import (
    AMBIGUOUS_CALL,
    ANSWER_TIMEOUT,
    LOG_SIZE,
    MAX_ELICITATIONS,
    MAX_LOGS_PER_SECOND,
    MAX_SERVER_REQUESTS,
    MAX_UPDATE,
    RETRY_ANSWER_TIMEOUT,
)
from host.wire.link import LinkLost, ReceivedMessage
from tests.kit.examples import examples
from tests.kit.tasks import RELATED, begins, handshake_server
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, later, open_client, open_world

CAN = {"roots": {"listChanged": True}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
FORM = {"message": "Which org?", "requestedSchema": {"type": "object", "properties": {"org": {"type": "string"}}}}
PAGE = {"mode": "url", "message": "Sign in", "url": "https://a.example/in", "elicitationId": "e1"}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}
ACCEPTED = {"action": "accept", "content": {"org": "acme"}}
QUESTIONS = {
    "form": ("elicitation/create", FORM),
    "url": ("elicitation/create", PAGE),
    "sampling": ("sampling/createMessage", SAMPLE),
    "roots": ("roots/list", None),
}
NOT_CERTAIN = "it is not certain which client is meant (with isolation: per-client it would be)"
GIVEN_UP = (
    "a call was given up less than 10 minutes ago, and the server may still mean that one "
    "(with isolation: per-client it would be certain)"
)


def refusals(world: World) -> list[str]:
    return [event.why for event in world.events if isinstance(event, ServerRequestRefused)]


def withdrawn(client: ScriptedClient) -> list[object]:
    """The ids of the questions that the client was told to forget."""
    return [params["requestId"] for params in client.notifications_of("notifications/cancelled")]


async def listen(nursery: trio.Nursery, *clients: ScriptedClient) -> None:
    """Have the clients hear what is said to them outside any request."""
    for client in clients:
        nursery.start_soon(client.listen_changes)
    await wait_all_tasks_blocked()


@asynccontextmanager
async def two_clients(server: ScriptedServer) -> AsyncIterator[tuple[World, trio.Nursery, list[ScriptedClient]]]:
    async with open_world(server) as world, trio.open_nursery() as nursery:
        yield world, nursery, [await world.client(capabilities=CAN) for _ in range(2)]


async def begin(nursery: trio.Nursery, client: ScriptedClient, server: ScriptedServer, id: str = "c") -> Any:
    """Have the client call the server's tool; the id of the request at the server, which waits for its answer."""
    params = {"name": f"{server.id}__x", "arguments": {}}
    later(nursery, client.request, "tools/call", params, id)
    return (await server.hears("tools/call"))["id"]


@asynccontextmanager
async def calling(
    capabilities: dict[str, Any] | None = None, revision: str = "2025-11-25", **more: Any
) -> AsyncIterator[tuple[ScriptedServer, ScriptedClient, trio.Nursery, Any]]:
    """A server, its client, and the id of the request that the server works on for it until the end of the block."""
    server = ScriptedServer("a", tools=["x"], **more)
    can = CAN if capabilities is None else capabilities
    async with open_client(server, capabilities=can, revision=revision) as (_, client, nursery):
        id = await begin(nursery, client, server)
        yield server, client, nursery, id
        server.says(id, {"content": []})


# Whom a question is for


@pytest.mark.parametrize("mine", [0, 1])
async def test_a_question_goes_to_the_client_whose_request_it_came_with(mine: int) -> None:
    """(rule 71)"""
    server = ScriptedServer("a", tools=["x"])
    async with two_clients(server) as (_, nursery, clients):
        ids = [await begin(nursery, client, server) for client in clients]
        question = later(nursery, server.asks, "elicitation/create", FORM, about=ids[mine])
        asked = await clients[mine].is_asked("elicitation/create")
        clients[mine].replies(asked["id"], ACCEPTED)
        assert await question.comes() == ACCEPTED
        assert clients[1 - mine].server_requests == []
        for id in ids:
            server.says(id, {"content": []})


async def test_a_question_that_came_with_nothing_goes_to_the_only_client_in_flight() -> None:
    """(rule 71)"""
    server = ScriptedServer("a", tools=["x"])
    async with two_clients(server) as (_, nursery, [idle, busy]):
        ids = [await begin(nursery, busy, server, id) for id in "cd"]
        question = later(nursery, server.asks, "elicitation/create", FORM)
        asked = await busy.is_asked("elicitation/create")
        busy.replies(asked["id"], ACCEPTED)
        assert await question.comes() == ACCEPTED
        assert idle.server_requests == []
        for id in ids:
            server.says(id, {"content": []})


@pytest.mark.parametrize("kind", sorted(QUESTIONS.keys() - {"roots"}))
async def test_a_question_is_refused_while_it_may_be_for_two_clients(kind: str) -> None:
    """(rule 71)"""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with two_clients(server) as (world, nursery, clients):
        ids = [await begin(nursery, client, server) for client in clients]
        with pytest.raises(Refusal) as refused:
            await server.asks(*QUESTIONS[kind])
        assert (refused.value.code, refused.value.message) == (-32602, NOT_CERTAIN)
        assert refusals(world) == [NOT_CERTAIN]
        assert [client.server_requests for client in clients] == [[], []]
        for id in ids:
            server.says(id, {"content": []})


@pytest.mark.virtual_time
@pytest.mark.parametrize("ours", ["resources/unsubscribe", "logging/setLevel"])
async def test_what_we_ask_of_a_server_for_nobody_in_particular_may_be_meant_too(ours: str) -> None:
    """(rule 71) While it is in flight beside one client's call, that client is not asked."""
    done = trio.Event()

    async def slow(params: dict[str, Any]) -> object:
        await done.wait()
        return {}

    server = ScriptedServer(
        "a",
        tools=["x"],
        resources=["a://b"],
        capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}},
        answers={ours: slow},
    )
    async with two_clients(server) as (_, nursery, [other, caller]):
        await other.request("resources/subscribe", {"uri": "a+a://b"})
        if ours == "resources/unsubscribe":
            await other.request(ours, {"uri": "a+a://b"})
        else:
            await other.request(ours, {"level": "debug"})
        await wait_all_tasks_blocked()
        assert ours in server.asked
        id = await begin(nursery, caller, server)
        with pytest.raises(Refusal) as refused:
            await server.asks("elicitation/create", FORM)
        assert (refused.value.code, refused.value.message) == (-32602, NOT_CERTAIN)
        assert [other.server_requests, caller.server_requests] == [[], []]
        done.set()
        await wait_all_tasks_blocked()
        later(nursery, server.asks, "elicitation/create", FORM)
        await caller.is_asked("elicitation/create")
        server.says(id, {"content": []})


async def test_roots_that_may_be_for_two_clients_are_none() -> None:
    """(rule 72) Neither is asked, and it is no error."""
    server = ScriptedServer("a", tools=["x"])
    async with two_clients(server) as (_, nursery, clients):
        ids = [await begin(nursery, client, server) for client in clients]
        with trio.fail_after(5):
            assert await server.asks("roots/list") == {"roots": []}
        assert [client.server_requests for client in clients] == [[], []]
        for id in ids:
            server.says(id, {"content": []})


@pytest.mark.parametrize("how", ["cancel", "timeout", "end"])
async def test_a_client_whose_call_was_given_up_a_moment_ago_may_still_be_meant(
    how: str, autojump_clock: MockClock
) -> None:
    """(rule 71) The server may not have heard yet that nobody waits."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with two_clients(server) as (_, nursery, [gone, here]):
        given_up = await begin(nursery, gone, server)
        if how == "cancel":
            gone.notifies("notifications/cancelled", {"requestId": "c"})
        elif how == "end":
            gone.session.end()
        else:
            await trio.sleep(6)
        assert (await server.hears("notifications/cancelled"))["requestId"] == given_up
        id = await begin(nursery, here, server)
        with pytest.raises(Refusal) as refused:
            await server.asks("elicitation/create", FORM)
        assert (refused.value.code, refused.value.message) == (-32602, GIVEN_UP)
        # Its late answer says that the server does not work for it any more.
        server.says(given_up, {"content": []})
        await wait_all_tasks_blocked()
        later(nursery, server.asks, "elicitation/create", FORM)
        await here.is_asked("elicitation/create")
        assert gone.server_requests == []
        server.says(id, {"content": []})


async def test_what_was_given_up_long_ago_counts_no_more(autojump_clock: MockClock) -> None:
    """(rule 71) Servers that heed a cancel never answer."""
    server = ScriptedServer("a", tools=["x"], timeout=500.0)
    async with two_clients(server) as (_, nursery, [gone, here]):
        await begin(nursery, gone, server)
        gone.notifies("notifications/cancelled", {"requestId": "c"})
        await server.hears("notifications/cancelled")
        await trio.sleep(ABANDONED_SECONDS - 1)
        id = await begin(nursery, here, server)
        with pytest.raises(Refusal):
            await server.asks("elicitation/create", FORM)
        await trio.sleep(2)
        later(nursery, server.asks, "elicitation/create", FORM)
        await here.is_asked("elicitation/create")
        server.says(id, {"content": []})


@pytest.mark.parametrize("kind", ["form", "url", "sampling"])
async def test_a_question_is_refused_while_nobody_is_served(kind: str) -> None:
    """(rule 71, rule 72)"""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        await listen(nursery, client)
        with pytest.raises(Refusal) as refused:
            await server.asks(*QUESTIONS[kind])
        assert (refused.value.code, refused.value.message) == (-32602, "no client's request is in flight")
        assert client.server_requests == []
        assert refusals(world) == ["no client's request is in flight"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("isolation", [Isolation.SHARED, Isolation.PER_CLIENT])
@pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}])
async def test_roots_of_a_client_without_any_are_none_if_they_were_declared(
    isolation: Isolation, capabilities: dict[str, Any]
) -> None:
    """A connection that several clients share declares roots for those that have some (rules 10, 72, 74)."""
    async with calling(capabilities=capabilities, isolation=isolation) as (server, client, _, _):
        if isolation is Isolation.SHARED:
            assert await server.asks("roots/list") == {"roots": []}
        else:
            with pytest.raises(Refusal) as refused:
                await server.asks("roots/list")
            assert (refused.value.code, refused.value.message) == (-32601, "the client does not support roots")
        assert client.server_requests == []


async def test_roots_that_belong_to_nobody_are_none() -> None:
    """(rule 72)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=CAN) as (_, client, _):
        assert await server.asks("roots/list") == {"roots": []}
        assert client.server_requests == []


async def test_a_question_about_a_request_that_is_over_is_for_nobody() -> None:
    """(rule 71) Not even if somebody else's is in flight."""
    server = ScriptedServer("a", tools=["x"])
    async with two_clients(server) as (_, nursery, [gone, here]):
        over = await begin(nursery, gone, server)
        server.says(over, {"content": []})
        id = await begin(nursery, here, server)
        with pytest.raises(Refusal, match="-32602 the request that it belongs to has ended"):
            await server.asks("elicitation/create", FORM, about=over)
        assert [gone.server_requests, here.server_requests] == [[], []]
        server.says(id, {"content": []})


async def test_whom_a_question_is_for_is_decided_when_it_arrives() -> None:
    """(rule 71) By the time that it could be passed on, another client's request is the only one in flight."""
    server = ScriptedServer("a", tools=["x"])
    async with two_clients(server) as (world, nursery, [first, second]):
        id = await begin(nursery, first, server)
        peer = world.upstreams["a"].main.ready_client().peer
        # Both arrive in one go: no task runs in between, and the question's own only when all this has happened.
        peer._on_message(ReceivedMessage(Request("q", "elicitation/create", Raw(json.dumps(FORM).encode()))))
        peer._on_message(ReceivedMessage(Success(id, Raw(b'{"content":[]}'))))
        another = await begin(nursery, second, server)
        await wait_all_tasks_blocked()
        assert second.server_requests == []
        (answer,) = server.answered
        assert isinstance(answer, Failure)
        assert answer.error.message == "the request that this belongs to has ended"
        server.says(another, {"content": []})


@pytest.mark.parametrize("listens", [True, False])
async def test_a_connection_of_one_client_asks_it_outside_any_request(listens: bool) -> None:
    """(rule 71) On what it listens to; if it does not, the server is told."""
    server = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CLIENT)
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        other = await world.client(capabilities=CAN)
        if listens:
            await listen(nursery, client)
        server.says(await begin(nursery, client, server), {"content": []})
        await wait_all_tasks_blocked()
        question = later(nursery, server.asks, "elicitation/create", FORM)
        if listens:
            client.replies((await client.is_asked("elicitation/create"))["id"], ACCEPTED)
            assert await question.comes() == ACCEPTED
        else:
            with pytest.raises(Refusal, match="-32603 the client did not respond: it does not listen"):
                await question.comes()
        assert other.server_requests == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("isolation", [Isolation.PER_CLIENT, None])
async def test_roots_are_asked_for_outside_any_request_where_the_client_listens(isolation: Isolation | None) -> None:
    """(rule 71) What is asked beside a call that is soon over would end with it. `None`: it is the only client."""
    server = ScriptedServer("a", tools=["x"], isolation=isolation or Isolation.SHARED)
    async with open_client(server, single_client=isolation is None, capabilities=CAN) as (_, client, nursery):
        if isolation is None:
            await client.session.serve_single_client()
            await server.hears("notifications/roots/list_changed")
        await listen(nursery, client)
        id = await begin(nursery, client, server)
        question = later(nursery, server.asks, "roots/list")
        asked = await client.is_asked("roots/list")
        server.says(id, {"content": []})
        await wait_all_tasks_blocked()
        assert withdrawn(client) == []
        client.replies(asked["id"], {"roots": [{"uri": "file:///home"}]})
        assert await question.comes() == {"roots": [{"uri": "file:///home"}]}
        assert len(client.server_requests) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("exact", [True, False])
async def test_roots_are_asked_for_beside_a_request_if_it_is_named_or_the_client_does_not_listen(exact: bool) -> None:
    """(rule 71)"""
    server = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CLIENT)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        if exact:
            await listen(nursery, client)
        id = await begin(nursery, client, server)
        question = later(nursery, server.asks, "roots/list", about=id if exact else None)
        asked = await client.is_asked("roots/list")
        server.says(id, {"content": []})
        with pytest.raises(Refusal, match="the request that this belongs to has ended"):
            await question.comes()
        assert withdrawn(client) == [asked["id"]]
        nursery.cancel_scope.cancel()


class Worker(ScriptedServer):
    """Works for every call until the test lets it answer; `working` are the calls it has not answered, by number."""

    def __init__(self, id: str) -> None:
        super().__init__(id, tools=["x"], timeout=10_000.0)
        self.ids: dict[int, Any] = {}
        self.working: dict[int, trio.Event] = {}

    async def _answer(self, request: Request) -> Raw:
        if request.method != "tools/call":
            return await super()._answer(request)
        number = json.loads(bytes(request.params or b""))["arguments"]["n"]
        self.ids[number] = request.id
        self.working[number] = trio.Event()
        await self.working[number].wait()
        return Raw(b'{"content":[]}')


Step = tuple[str, int, int, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "cancel", "answer", "ask", "ask", "ask about", "reply", "leave"]),
        st.integers(0, 2),
        st.integers(0, 7),
        st.booleans(),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(STEPS)
def test_no_order_of_events_brings_a_question_to_a_client_that_is_not_meant(steps: list[Step]) -> None:
    """(rule 71) And every question is answered in the end."""
    trio.run(play, steps)


async def play(steps: Sequence[Step]) -> None:
    server = Worker("a")
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = [await world.client(capabilities=CAN) for _ in range(3)]
        of_call: list[int] = []
        questions: list[str] = []
        cancelled: set[int] = set()
        settled = True
        for what, client, pick, rest in steps:
            alive = not clients[client].session.ended.is_set()
            working = [n for n, answer in server.working.items() if not answer.is_set()]
            mine = [n for n, whose in enumerate(of_call) if whose == client]
            sure = False
            if what == "call" and alive:
                number = len(of_call)
                of_call.append(client)
                params = {"name": "a__x", "arguments": {"n": number}}
                later(nursery, clients[client].request, "tools/call", params, number)
            elif what == "cancel" and mine:
                cancelled.add(mine[pick % len(mine)])
                clients[client].notifies("notifications/cancelled", {"requestId": mine[pick % len(mine)]})
            elif what == "leave" and alive and pick == 0:
                clients[client].session.end()
                cancelled.update(mine)
            elif what == "answer" and working:
                server.working[working[pick % len(working)]].set()
            elif what == "reply" and clients[client].server_requests:
                clients[client].replies(
                    clients[client].server_requests[pick % len(clients[client].server_requests)].id, ACCEPTED
                )
            elif what == "ask" and working:
                number = working[pick % len(working)]
                # The host can be sure if the server works for one client only, and has not been told to stop.
                unanswered = len(questions) - len(server.answered)
                one = len({of_call[n] for n in working}) == 1 and not cancelled.issuperset(working)
                sure = settled and one and unanswered < MAX_SERVER_REQUESTS
                questions.append(f"{len(questions)}")
                server.sends(question_for(questions[-1], of_call[number]))
            elif what == "ask about" and server.ids:
                number = list(server.ids)[pick % len(server.ids)]
                questions.append(f"{len(questions)}")
                server.sends(question_for(questions[-1], of_call[number]), about=server.ids[number])
            before = sum(len(each.server_requests) for each in clients)
            settled = rest
            if rest or sure:
                await wait_all_tasks_blocked()
            if sure:
                assert sum(len(each.server_requests) for each in clients) == before + 1
            assert_own_questions(clients)
        await wait_all_tasks_blocked()
        for each in clients:
            each.session.end()
        await wait_all_tasks_blocked()
        assert_own_questions(clients)
        assert sorted(str(answer.id) for answer in server.answered) == sorted(questions)
        assert not any(isinstance(event, InternalError) for event in world.events)
        for answer in server.working.values():
            answer.set()


def question_for(id: str, client: int) -> Request:
    return Request(id, "elicitation/create", Raw(json.dumps({**FORM, "message": f"for {client}"}).encode()))


def assert_own_questions(clients: Sequence[ScriptedClient]) -> None:
    for number, client in enumerate(clients):
        messages = {json.loads(bytes(each.params or b""))["message"] for each in client.server_requests}
        assert messages <= {f"[a] for {number}"}


# What may be asked, and in which form


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("trust", "kind", "code"),
    [
        (Trust.STANDARD, "form", None),
        (Trust.STANDARD, "roots", None),
        *((Trust.TRUSTED, kind, None) for kind in QUESTIONS),
        *((Trust.UNTRUSTED, kind, -32602 if kind == "url" else -32601) for kind in QUESTIONS),
    ],
)
async def test_trust_says_what_a_server_may_ask_for(trust: Trust, kind: str, code: int | None) -> None:
    """Of an untrusted server not even a person who is there is asked about it (rule 10, rule 74)."""
    server = ScriptedServer("a", tools=["x"], trust=trust)
    method, params = QUESTIONS[kind]
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        world.approves()
        with world.auto_answering() as consents:
            id = await begin(nursery, client, server)
            question = later(nursery, server.asks, method, params)
            if code is None:
                asked = await client.is_asked(method)
                client.replies(asked["id"], {"answer": 1.50})
                assert await question.comes() == {"answer": 1.5}
                assert refusals(world) == []
            else:
                with pytest.raises(Refusal) as refused:
                    await question.comes()
                assert refused.value.code == code
                assert refusals(world) == ["the configuration does not let it ask for this"]
                assert client.server_requests == []
        assert [matter.access.subject.item.kind for matter in consents] == (
            ["tool"] if trust is Trust.UNTRUSTED else []
        )
        server.says(id, {"content": []})


@pytest.mark.parametrize("kind", ["form", "url", "sampling"])
async def test_a_question_with_a_member_that_readers_take_for_another_one_reaches_nobody(kind: str) -> None:
    """The client might show another page or form than the one that was judged."""
    method = QUESTIONS[kind][0]
    params: dict[str, Any] = {**FORM} if kind == "form" else {**PAGE} if kind == "url" else {**SAMPLE}
    twin = {"form": "RequestedSchema", "url": "Url", "sampling": "MESSAGES"}[kind]
    async with calling(trust=Trust.TRUSTED) as (server, client, nursery, _):
        with pytest.raises(Refusal, match=f"the member '{twin}'") as refused:
            await later(nursery, server.asks, method, {**params, twin: "https://evil.example/"}).comes()
        assert refused.value.code == -32602
        assert client.server_requests == []
        question = later(nursery, server.asks, method, {**params, "other": 1})
        client.replies((await client.is_asked(method))["id"], {})
        await question.comes()


async def test_a_notification_with_a_twin_is_passed_to_nobody() -> None:
    """The client might take it for one of another server, or of another call."""
    server = ScriptedServer("a", tools=["x"], capabilities={"logging": {}, "tools": {}}, trust=Trust.TRUSTED)
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        call = {"name": "a__x", "arguments": {}, "_meta": {"progressToken": 5}}
        later(nursery, client.request, "tools/call", call, "c")
        asked = await server.hears("tools/call")
        progress = {"progressToken": asked["_meta"]["progressToken"]}
        said = {"level": "error", "logger": "l", "data": 1}
        await server.notifies("notifications/message", {**said, "Logger": "b"})
        await server.notifies("notifications/message", {**said, "other": "b"})
        await server.notifies("notifications/progress", {**progress, "progress": 1, "ProgressToken": 6})
        await server.notifies("notifications/progress", {**progress, "progress": 2, "other": 6})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/message") == [{**said, "logger": "a/l", "other": "b"}]
        (reported,) = client.notifications_of("notifications/progress")
        assert reported == {"progressToken": 5, "progress": 2, "other": 6}
        assert world.journal.dropped["a"] == {"invalid message": 1}
        server.says(asked["id"], {"content": []})


@pytest.mark.parametrize("kind", ["sampling", "url"])
async def test_what_costs_something_is_put_to_the_client_of_a_standard_server_once_a_person_has_agreed(
    kind: str,
) -> None:
    """Not with nobody there, nor after a no; and each time anew (rule 10, rule 74)."""
    server = ScriptedServer("a", tools=["x"])
    method, params = QUESTIONS[kind]
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        id = await begin(nursery, client, server)
        with pytest.raises(Refusal, match="nobody is there who could answer") as alone:
            await server.asks(method, params)
        assert alone.value.code == 408
        with world.auto_answering(Answering.DENY), pytest.raises(Refusal, match="a person said no") as denied:
            await server.asks(method, params)
        assert denied.value.code == 403
        assert client.server_requests == []
        assert len(refusals(world)) == 2
        with world.auto_answering() as consents:
            question = later(nursery, server.asks, method, params)
            asked = await client.is_asked(method)
            client.replies(asked["id"], {"answer": 1.50})
            assert await question.comes() == {"answer": 1.5}
        (consent,) = consents
        assert (
            consent.access.subject.item.kind,
            consent.access.subject.item.server,
            consent.access.subject.session,
        ) == (
            kind,
            "a",
            client.session.mark,
        )
        with pytest.raises(Refusal) as again:
            await server.asks(method, params)
        assert again.value.code == 408
        assert len(client.server_requests) == 1
        server.says(id, {"content": []})


async def test_a_call_that_is_called_off_withdraws_the_question_whether_its_server_may_ask(
    autojump_clock: MockClock,
) -> None:
    """Nobody is left who could agree to it, and no clock of the call runs while a person thinks."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        with world.gate.authorizer.confirmations.attach(Channel.CONSOLE):
            await begin(nursery, client, server)
            question = later(nursery, server.asks, "sampling/createMessage", SAMPLE)
            await trio.sleep(20)
            (matter,) = world.gate.authorizer.confirmations.list_all()
            assert matter.waiters
            client.notifies("notifications/cancelled", {"requestId": "c"})
            with pytest.raises(Refusal):
                await question.comes()
            assert world.gate.authorizer.confirmations.list_all() == []
            assert client.server_requests == []


TOOLS = {**SAMPLE, "tools": [{"name": "t", "inputSchema": {"type": "object"}}]}


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("capabilities", "revision", "method", "params", "code"),
    [
        ({}, "2025-11-25", "elicitation/create", FORM, -32601),
        ({}, "2025-11-25", "elicitation/create", PAGE, -32601),
        ({}, "2025-11-25", "sampling/createMessage", SAMPLE, -32601),
        ({"elicitation": {}}, "2025-11-25", "elicitation/create", PAGE, -32602),
        ({"elicitation": {"url": {}}}, "2025-11-25", "elicitation/create", FORM, -32602),
        ({"elicitation": {}}, "2025-03-26", "elicitation/create", FORM, -32601),
        ({"elicitation": {"url": {}}}, "2025-06-18", "elicitation/create", PAGE, -32602),
        ({"sampling": {}}, "2025-11-25", "sampling/createMessage", TOOLS, -32602),
        ({"sampling": {"tools": {}}}, "2025-06-18", "sampling/createMessage", TOOLS, -32602),
        (CAN, "2025-11-25", "elicitation/create", {"message": 5}, -32602),
        (CAN, "2025-11-25", "elicitation/create", None, -32602),
        (CAN, "2025-11-25", "elicitation/create", {**FORM, "mode": "hologram"}, -32602),
        (CAN, "2025-11-25", "elicitation/create", {**FORM, "_meta": {"progressToken": []}}, -32602),
        (CAN, "2025-11-25", "sampling/createMessage", {}, -32602),
        (CAN, "2025-11-25", "tasks/list", {}, -32601),
        (CAN, "2025-11-25", "tools/call", {"name": "a__x"}, -32601),
        (CAN, "2025-11-25", "", {}, -32601),
    ],
)
async def test_a_client_is_asked_only_what_it_can_answer(
    capabilities: dict[str, Any], revision: str, method: str, params: object, code: int
) -> None:
    """(rule 74)"""
    async with calling(capabilities=capabilities, revision=revision, trust=Trust.TRUSTED) as (server, client, _, _):
        with pytest.raises(Refusal) as refused:
            await server.asks(method, params)
        assert refused.value.code == code
        assert client.server_requests == []


@pytest.mark.parametrize(("title", "prefix"), [(None, "[a] "), ('Git "Hub"', '[Git "Hub"] ')])
@pytest.mark.parametrize("params", [FORM, PAGE])
async def test_a_message_to_the_user_says_who_asks(title: str | None, prefix: str, params: dict[str, Any]) -> None:
    """(rule 73)"""
    async with calling(title=title, trust=Trust.TRUSTED) as (server, client, nursery, _):
        later(nursery, server.asks, "elicitation/create", params)
        asked = await client.is_asked("elicitation/create")
        assert asked["message"] == prefix + params["message"]


async def test_a_form_is_put_in_the_words_of_an_older_client() -> None:
    """(rule 75)"""
    choices = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}], "default": "r"}
    params = {**FORM, "mode": "form", "requestedSchema": {"type": "object", "properties": {"c": choices}}}
    async with calling(capabilities={"elicitation": {}}, revision="2025-06-18") as (server, client, nursery, _):
        later(nursery, server.asks, "elicitation/create", params)
        asked = await client.is_asked("elicitation/create")
        assert "mode" not in asked
        assert asked["requestedSchema"]["properties"] == {"c": {"type": "string", "enum": ["r"], "enumNames": ["Red"]}}


async def test_what_is_sampled_keeps_its_names_and_ids() -> None:
    """(rule 77) Only the context, which would be everybody's, is taken out; nor does a foreign token pass (rule 44)."""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    use = {"type": "tool_use", "id": "u1", "name": "other__x", "input": {"uri": "a+file:///x"}}
    params = {
        "messages": [{"role": "assistant", "content": [use]}],
        "maxTokens": 5,
        "tools": [{"name": "a__x", "inputSchema": {"type": "object"}}],
        "toolChoice": {"mode": "required"},
        "metadata": {"k": 1.50},
    }
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        id = await begin(nursery, client, server)
        more = {"includeContext": "allServers", "_meta": {"progressToken": "t", "v/k": 1}}
        question = later(nursery, server.asks, "sampling/createMessage", {**params, **more})
        asked = await client.is_asked("sampling/createMessage")
        ours = asked["_meta"].pop("progressToken")
        assert ours != "t"
        assert asked == {**params, "includeContext": "none", "_meta": {"v/k": 1}, "id": asked["id"]}
        answer = {"role": "assistant", "content": [use], "model": "m", "stopReason": "toolUse", "vendor": None}
        client.replies(asked["id"], answer)
        assert await question.comes() == answer
        server.says(id, {"content": []})


async def test_a_clients_refusal_is_the_servers_answer() -> None:
    async with calling() as (server, client, nursery, _):
        question = later(nursery, server.asks, "elicitation/create", FORM)
        client.declines((await client.is_asked("elicitation/create"))["id"], -1, "User rejected it")
        with pytest.raises(Refusal, match="-1 User rejected it"):
            await question.comes()


@pytest.mark.parametrize("result", [None, [], "text", 5])
async def test_an_answer_that_is_no_object_is_none(result: object) -> None:
    async with calling() as (server, client, nursery, _):
        question = later(nursery, server.asks, "elicitation/create", FORM)
        client.replies((await client.is_asked("elicitation/create"))["id"], result)
        with pytest.raises(Refusal, match="-32603 the client's answer is not an object"):
            await question.comes()


async def test_a_ping_is_answered_in_any_phase_and_passed_to_nobody() -> None:
    """(rule 16)"""
    greeted = trio.Event()

    async def initialize(params: dict[str, Any]) -> object:
        assert await server.asks("ping") == {}
        greeted.set()
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {}}

    server = ScriptedServer("a", tools=["x"], answers={"initialize": initialize})
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        assert greeted.is_set()
        client = await world.client(capabilities=CAN)
        assert await server.asks("ping") == {}
        id = await begin(nursery, client, server)
        assert await server.asks("ping", {"_meta": {"progressToken": 1}}, about=id) == {}
        assert client.server_requests == []
        server.says(id, {"content": []})


# Progress, and the end of a question


async def test_what_a_client_reports_about_a_question_reaches_the_server_under_its_own_token() -> None:
    """(rule 44)"""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with two_clients(server) as (_, nursery, [client, other]):
        id = await begin(nursery, client, server)
        params = {**SAMPLE, "_meta": {"progressToken": "7"}}
        question = later(nursery, server.asks, "sampling/createMessage", params)
        asked = await client.is_asked("sampling/createMessage")
        ours = asked["_meta"]["progressToken"]
        other.notifies("notifications/progress", {"progressToken": ours, "progress": 9})
        client.notifies("notifications/progress", {"progressToken": str(ours), "progress": 9})
        client.notifies("notifications/progress", {"progressToken": ours, "progress": 9, "ProgressToken": 1})
        client.notifies("notifications/progress", {"progressToken": ours, "progress": 1.50, "message": "half"})
        report = {"progressToken": "7", "progress": 1.5, "message": "half"}
        assert await server.hears("notifications/progress") == report
        client.notifies("notifications/progress", {"progressToken": ours, "progress": 2})
        client.notifies("notifications/progress", {"progressToken": ours, "progress": 3})
        # Reports that come faster than they can be sent are one.
        assert await server.hears("notifications/progress") == {"progressToken": "7", "progress": 3}
        client.replies(asked["id"], {"role": "assistant"})
        await question.comes()
        client.notifies("notifications/progress", {"progressToken": ours, "progress": 4})
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        server.says(id, {"content": []})


async def test_a_question_without_a_token_asks_the_client_for_no_progress() -> None:
    """(rule 44)"""
    async with calling() as (server, client, nursery, _):
        later(nursery, server.asks, "elicitation/create", FORM)
        assert "_meta" not in await client.is_asked("elicitation/create")


@pytest.mark.parametrize("token", [None, 1])
async def test_a_server_takes_its_question_back(token: int | None) -> None:
    """(rule 49) The client is told with its own id and the reason; the server hears nothing more of it."""
    params = FORM if token is None else {**FORM, "_meta": {"progressToken": token}}
    async with calling() as (server, client, _, _):
        server.sends(Request("mine", "elicitation/create", Raw(json.dumps(params).encode())))
        asked = await client.is_asked("elicitation/create")
        await server.notifies("notifications/cancelled", {"requestId": "mine", "reason": "found it"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/cancelled") == [{"requestId": asked["id"], "reason": "found it"}]
        client.replies(asked["id"], ACCEPTED)
        await wait_all_tasks_blocked()
        assert server.answered == []


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["cancel", "answer", "refuse"])
@pytest.mark.parametrize("token", [None, 1])
async def test_a_question_ends_with_the_request_it_belongs_to(how: str, token: int | None) -> None:
    """(rule 50, rule 103) It is withdrawn at the client, and the server gets an error."""
    server = ScriptedServer("a", tools=["x"])
    params = FORM if token is None else {**FORM, "_meta": {"progressToken": token}}
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        id = await begin(nursery, client, server)
        question = later(nursery, server.asks, "elicitation/create", params)
        asked = await client.is_asked("elicitation/create")
        if how == "cancel":
            client.notifies("notifications/cancelled", {"requestId": "c"})
            await server.hears("notifications/cancelled")
        elif how == "answer":
            server.says(id, {"content": []})
        else:
            server.refuses(id, -32000, "no")
        with pytest.raises(Refusal, match="-32603 the request that this belongs to has ended"):
            await question.comes()
        assert withdrawn(client) == [asked["id"]]
        client.replies(asked["id"], ACCEPTED)
        await wait_all_tasks_blocked()
        assert len(server.answered) == 1
        if how == "cancel":
            server.says(id, {"content": []})


async def test_a_question_that_may_belong_to_two_calls_lasts_until_both_are_over() -> None:
    """(rule 50)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        ids = [await begin(nursery, client, server, id) for id in "cd"]
        question = later(nursery, server.asks, "elicitation/create", FORM)
        asked = await client.is_asked("elicitation/create")
        server.says(ids[1], {"content": []})
        await wait_all_tasks_blocked()
        assert withdrawn(client) == []
        server.says(ids[0], {"content": []})
        with pytest.raises(Refusal, match="has ended"):
            await question.comes()
        assert withdrawn(client) == [asked["id"]]


@pytest.mark.parametrize("isolation", [Isolation.SHARED, Isolation.PER_CLIENT, Isolation.PER_CALL])
async def test_a_question_ends_with_its_clients_session(isolation: Isolation) -> None:
    """(rule 109) The server is told, unless it is stopped with the session."""
    server = ScriptedServer("a", tools=["x"], isolation=isolation)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        await begin(nursery, client, server)
        question = later(nursery, server.asks, "elicitation/create", FORM)
        await client.is_asked("elicitation/create")
        client.session.end()
        if isolation is Isolation.SHARED:
            with pytest.raises(Refusal) as refused:
                await question.comes()
            assert refused.value.code == -32603
        else:
            await wait_all_tasks_blocked()
            assert not question.ended.is_set() or question.refusal is not None
        nursery.cancel_scope.cancel()


async def test_a_lost_server_takes_its_questions_with_it(autojump_clock: MockClock) -> None:
    """(rule 103)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        await begin(nursery, client, server)
        later(nursery, server.asks, "elicitation/create", FORM)
        asked = await client.is_asked("elicitation/create")
        server.dies()
        await wait_all_tasks_blocked()
        assert withdrawn(client) == [asked["id"]]
        nursery.cancel_scope.cancel()


# Limits


@pytest.mark.parametrize(("more", "in_time"), [(1.5, True), (2.5, False)])
async def test_while_a_person_is_asked_the_clock_of_the_call_stands_still(
    more: float, in_time: bool, autojump_clock: MockClock
) -> None:
    """(rule 48)"""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, client.call, "a__x")
        id = (await server.hears("tools/call"))["id"]
        await trio.sleep(3)
        question = later(nursery, server.asks, "elicitation/create", FORM)
        asked = await client.is_asked("elicitation/create")
        await trio.sleep(500)
        client.replies(asked["id"], ACCEPTED)
        await question.comes()
        await trio.sleep(more)
        server.says(id, {"content": []})
        result = await call.comes()
        assert result == {"content": []} if in_time else "did not respond within" in json.dumps(result)


async def test_two_questions_at_once_stop_the_clock_until_both_are_answered(autojump_clock: MockClock) -> None:
    """(rule 48) Progress in between does not start it."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, client.call, "a__x", _meta={"progressToken": "t"})
        heard = await server.hears("tools/call")
        questions = [later(nursery, server.asks, "elicitation/create", FORM) for _ in range(2)]
        for nth in range(2):
            asked = await client.is_asked("elicitation/create", nth)
            await trio.sleep(100)
            report = {"progressToken": heard["_meta"]["progressToken"], "progress": nth}
            await server.notifies("notifications/progress", report)
            client.replies(asked["id"], ACCEPTED)
            await wait_all_tasks_blocked()
            assert [question.ended.is_set() for question in questions].count(True) == nth + 1
        await trio.sleep(4)
        server.says(heard["id"], {"content": []})
        assert await call.comes() == {"content": []}


async def test_a_call_that_reports_progress_for_ever_ends_at_the_ceiling(autojump_clock: MockClock) -> None:
    """(rule 48) What it waited for a person is not counted."""
    server = ScriptedServer("a", tools=["x"], timeout=50.0)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        began = trio.current_time()
        call = later(nursery, client.call, "a__x", _meta={"progressToken": "t"})
        heard = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", FORM)
        await trio.sleep(300)
        client.replies((await client.is_asked("elicitation/create"))["id"], ACCEPTED)
        await question.comes()
        progress = 0
        while not call.ended.is_set():
            await trio.sleep(10)
            progress += 1
            report = {"progressToken": heard["_meta"]["progressToken"], "progress": progress}
            await server.notifies("notifications/progress", report)
        assert trio.current_time() - began == pytest.approx(300 + 600, abs=11)
        assert "did not respond within" in json.dumps(await call.comes())
        nursery.cancel_scope.cancel()


async def test_a_question_that_nobody_answers_ends(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, client.call, "a__x")
        id = (await server.hears("tools/call"))["id"]
        began = trio.current_time()
        question = later(nursery, server.asks, "elicitation/create", FORM)
        asked = await client.is_asked("elicitation/create")
        await question.ended.wait()
        assert trio.current_time() - began == pytest.approx(ANSWER_TIMEOUT)
        assert question.refusal is not None
        assert question.refusal.code == UNCONFIRMED
        assert withdrawn(client) == [asked["id"]]
        server.says(id, {"content": []})
        assert await call.comes() == {"content": []}


async def test_one_call_has_only_so_many_questions_open() -> None:
    """Those that are answered make room."""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        id = await begin(nursery, client, server)
        questions = [later(nursery, server.asks, "elicitation/create", FORM) for _ in range(MAX_SERVER_REQUESTS)]
        await client.is_asked("elicitation/create", MAX_SERVER_REQUESTS - 1)
        with pytest.raises(Refusal) as refused:
            await server.asks("elicitation/create", FORM)
        assert (refused.value.code, refused.value.message) == (-32602, "more than 8 open server requests for one call")
        assert refusals(world) == ["more than 8 open server requests for one call"]
        client.replies(client.server_requests[3].id, ACCEPTED)
        await wait_all_tasks_blocked()
        assert [question.ended.is_set() for question in questions].count(True) == 1
        later(nursery, server.asks, "elicitation/create", FORM)
        await client.is_asked("elicitation/create", MAX_SERVER_REQUESTS)
        server.says(id, {"content": []})


async def test_a_server_has_only_so_many_questions_open() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        calls = [await begin(nursery, client, server, f"c{n}") for n in range(MAX_INCOMING // MAX_SERVER_REQUESTS + 1)]
        questions = [
            later(nursery, server.asks, "elicitation/create", FORM, about=id)
            for id in calls[:-1]
            for _ in range(MAX_SERVER_REQUESTS)
        ]
        await client.is_asked("elicitation/create", MAX_INCOMING - 1)
        with pytest.raises(Refusal, match="429 more than 64 requests at once"):
            await server.asks("elicitation/create", FORM, about=calls[-1])
        assert len(client.server_requests) == MAX_INCOMING == len(questions)
        for id in calls:
            server.says(id, {"content": []})


# Pages to visit


async def test_an_elicitation_has_an_id_of_its_own_and_its_end_is_told_to_its_client_alone() -> None:
    """(rule 76) Two servers use the same id; an unknown one, and one that is done, mean nothing."""
    servers = [ScriptedServer(id, tools=["x"], trust=Trust.TRUSTED) for id in "ab"]
    async with open_world(*servers) as world, trio.open_nursery() as nursery:
        client, other = [await world.client(capabilities=CAN) for _ in range(2)]
        await listen(nursery, client, other)
        ids = []
        for nth, server in enumerate(servers):
            server_id = await begin(nursery, client, server, server.id)
            question = later(nursery, server.asks, "elicitation/create", PAGE)
            asked = await client.is_asked("elicitation/create", nth)
            assert asked["url"] == PAGE["url"]
            ids.append(asked["elicitationId"])
            client.replies(asked["id"], {"action": "accept"})
            await question.comes()
            server.says(server_id, {"content": []})
        assert len({*ids, PAGE["elicitationId"]}) == 3
        for id in ("unknown", ids[0], 5, "e1", "e1"):
            await servers[0].notifies("notifications/elicitation/complete", {"elicitationId": id, "vendor": 1.50})
        await servers[0].notifies("notifications/elicitation/complete")
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/elicitation/complete") == [
            {"elicitationId": ids[0], "vendor": 1.5}
        ]
        assert other.notifications_of("notifications/elicitation/complete") == []
        nursery.cancel_scope.cancel()


def pages(*ids: str) -> dict[str, Any]:
    return {"elicitations": [{**PAGE, "elicitationId": id} for id in ids]}


async def test_pages_that_an_error_names_have_ids_of_their_own_too() -> None:
    """(rule 76)"""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        await listen(nursery, client)
        call = later(nursery, client.call, "a__x")
        server.refuses((await server.hears("tools/call"))["id"], -32042, "first", pages("e1", "e2", "e1"))
        with pytest.raises(Refusal) as refused:
            await call.comes()
        first, second, again = [page["elicitationId"] for page in refused.value.data["elicitations"]]
        assert first == again
        assert len({first, second, "e1", "e2"}) == 4
        await server.notifies("notifications/elicitation/complete", {"elicitationId": "e2"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/elicitation/complete") == [{"elicitationId": second}]
        nursery.cancel_scope.cancel()


async def test_a_page_that_two_clients_were_sent_to_is_done_for_both() -> None:
    """(rule 76) A server that sees one client may give the same id as long as the page was not visited."""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with two_clients(server) as (_, nursery, clients):
        ids = []
        for client in clients:
            await listen(nursery, client)
            call = later(nursery, client.call, "a__x")
            server.refuses((await server.hears("tools/call"))["id"], -32042, "first", pages("e1"))
            with pytest.raises(Refusal) as refused:
                await call.comes()
            ids.append(refused.value.data["elicitations"][0]["elicitationId"])
        assert len(set(ids)) == 2
        await server.notifies("notifications/elicitation/complete", {"elicitationId": "e1"})
        await wait_all_tasks_blocked()
        for client, id in zip(clients, ids, strict=True):
            assert client.notifications_of("notifications/elicitation/complete") == [{"elicitationId": id}]
        nursery.cancel_scope.cancel()


async def test_a_page_that_was_not_visited_keeps_nothing_of_a_client_that_is_gone() -> None:
    """(rule 29)"""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)

    async def come_and_go(world: World) -> weakref.ref[Caller]:
        client = await world.client(capabilities=CAN)
        async with trio.open_nursery() as nursery:
            id = await begin(nursery, client, server)
            question = later(nursery, server.asks, "elicitation/create", PAGE)
            client.replies((await client.is_asked("elicitation/create"))["id"], {"action": "accept"})
            assert await question.comes() == {"action": "accept"}
            server.says(id, {"content": []})
        client.session.end()
        return weakref.ref(client.session._caller)

    async with open_world(server) as world:
        gone = await come_and_go(world)
        await wait_all_tasks_blocked()
        gc.collect()
        assert gone() is None
        await server.notifies("notifications/elicitation/complete", {"elicitationId": PAGE["elicitationId"]})
        await wait_all_tasks_blocked()
        assert [event for event in world.events if isinstance(event, InternalError)] == []


async def test_only_so_many_pages_are_remembered() -> None:
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        await listen(nursery, client)
        call = later(nursery, client.call, "a__x")
        ids = [f"e{n}" for n in range(MAX_ELICITATIONS + 1)]
        server.refuses((await server.hears("tools/call"))["id"], -32042, "first", pages(*ids))
        with pytest.raises(Refusal) as refused:
            await call.comes()
        minted = [page["elicitationId"] for page in refused.value.data["elicitations"]]
        for id in ("e0", "e1"):
            await server.notifies("notifications/elicitation/complete", {"elicitationId": id})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/elicitation/complete") == [{"elicitationId": minted[1]}]
        nursery.cancel_scope.cancel()


# Log messages


def log(level: object, data: object = "it happened", **more: object) -> dict[str, object]:
    return {"level": level, "data": data, **more}


async def test_a_client_that_set_no_level_hears_of_its_own_calls_from_info_on() -> None:
    """(rule 82, rule 84)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client, other = [await world.client() for _ in range(2)]
        await listen(nursery, client, other)
        await server.notifies("notifications/message", log("error", "outside any call"))
        id = await begin(nursery, client, server)
        await server.notifies("notifications/message", log("debug"))
        await server.notifies("notifications/message", log("info", {"n": 1.50}, logger="db", vendor=1))
        await wait_all_tasks_blocked()
        heard = [{"level": "info", "data": {"n": 1.5}, "logger": "a/db", "vendor": 1}]
        assert client.notifications_of("notifications/message") == heard
        assert other.notifications_of("notifications/message") == []
        server.says(id, {"content": []})
        await wait_all_tasks_blocked()
        await server.notifies("notifications/message", log("error", "after the answer"))
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/message") == heard
        nursery.cancel_scope.cancel()


async def test_a_log_message_goes_with_the_request_that_it_came_with() -> None:
    """(rule 83) Also where others want log messages, and not at all once that request is over."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = [await world.client() for _ in range(3)]
        for client in clients:
            await listen(nursery, client)
            await client.request("logging/setLevel", {"level": "debug"})
        ids = [await begin(nursery, client, server) for client in clients[:2]]
        for nth, id in enumerate(ids):
            server.sends(Notification("notifications/message", Raw(json.dumps(log("debug", nth)).encode())), about=id)
        await wait_all_tasks_blocked()
        heard = [[each["data"] for each in client.notifications_of("notifications/message")] for client in clients]
        assert heard == [[0], [1], []]
        for id in ids:
            server.says(id, {"content": []})
        await wait_all_tasks_blocked()
        server.sends(Notification("notifications/message", Raw(json.dumps(log("error", 2)).encode())), about=ids[0])
        await wait_all_tasks_blocked()
        assert [len(client.notifications_of("notifications/message")) for client in clients] == [1, 1, 0]
        nursery.cancel_scope.cancel()


LOGGING: dict[str, Any] = {"tools": {}, "logging": {}}


@pytest.mark.parametrize(
    ("endpoint", "logger", "named"), [(None, "db", "a/db"), (None, None, "a"), ("a", "db", "db"), ("a", None, None)]
)
async def test_the_shared_endpoint_says_whose_log_message_it_is(
    endpoint: str | None, logger: str | None, named: str | None
) -> None:
    """(rule 84)"""
    server = ScriptedServer("a", tools=["x"], capabilities=LOGGING)
    async with open_client(server, endpoint=endpoint) as (_, client, nursery):
        await listen(nursery, client)
        await client.request("logging/setLevel", {"level": "debug"})
        await server.notifies("notifications/message", log("debug", **({"logger": logger} if logger else {})))
        await wait_all_tasks_blocked()
        (heard,) = client.notifications_of("notifications/message")
        assert heard.get("logger") == named
        nursery.cancel_scope.cancel()


async def test_log_messages_of_another_server_do_not_reach_a_servers_own_endpoint() -> None:
    """(rule 101)"""
    servers = [ScriptedServer(id, tools=["x"], capabilities=LOGGING) for id in "ab"]
    async with open_client(*servers, endpoint="a") as (_, client, nursery):
        await listen(nursery, client)
        await client.request("logging/setLevel", {"level": "debug"})
        await servers[1].notifies("notifications/message", log("emergency"))
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/message") == []
        nursery.cancel_scope.cancel()


async def test_a_flood_of_log_messages_is_cut_and_counted(autojump_clock: MockClock) -> None:
    """(rule 84)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, nursery):
        await listen(nursery, client)
        await client.request("logging/setLevel", {"level": "debug"})
        for _ in range(MAX_LOGS_PER_SECOND + 50):
            await server.notifies("notifications/message", log("debug"))
        await wait_all_tasks_blocked()
        assert len(client.notifications_of("notifications/message")) == MAX_LOGS_PER_SECOND
        assert world.journal.dropped["a"]["too many log messages"] == 50
        await trio.sleep(1)
        await server.notifies("notifications/message", log("debug"))
        await wait_all_tasks_blocked()
        assert len(client.notifications_of("notifications/message")) == MAX_LOGS_PER_SECOND + 1
        nursery.cancel_scope.cancel()


async def test_long_log_messages_of_an_untrusted_server_count_for_more(autojump_clock: MockClock) -> None:
    """Each of them has to be cleaned."""
    server = ScriptedServer("a", tools=["x"], trust=Trust.UNTRUSTED)
    async with open_client(server) as (_, client, nursery):
        await listen(nursery, client)
        await client.request("logging/setLevel", {"level": "debug"})
        for _ in range(10):
            await server.notifies("notifications/message", log("debug", "x" * 60 * LOG_SIZE))
        await wait_all_tasks_blocked()
        assert len(client.notifications_of("notifications/message")) == MAX_LOGS_PER_SECOND // 61
        nursery.cancel_scope.cancel()


async def test_odd_log_messages_harm_nobody() -> None:
    rows: list[object] = [None, [], "text", {"level": 5}, {"level": "odd"}, {"data": {"a": [1]}}]
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, nursery):
        for params in rows:
            id = await begin(nursery, client, server)
            await server.notifies("notifications/message", params)
            await wait_all_tasks_blocked()
            server.says(id, {"content": []})
            assert not any(isinstance(event, InternalError) for event in world.events)
            assert server.connections == 1


# Other notices


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {"uri": 5},
        {"vendor": "x" * MAX_UPDATE},
        {"uri": 5, "vendor": "x" * MAX_UPDATE},
        {"uri": "x://y", "vendor": "\ud800" * MAX_UPDATE},
    ],
)
async def test_an_update_of_nothing_is_dropped(params: object) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        await server.notifies("notifications/resources/updated", params)
        await wait_all_tasks_blocked()
        dropped = [event for event in world.events if isinstance(event, MessageDropped)]
        assert [event.what for event in dropped] == ["invalid message"]


async def test_a_notice_that_means_nothing_to_a_client_is_dropped() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, _):
        for method in ("notifications/initialized", "notifications/roots/list_changed", "notifications/vendor/thing"):
            await server.notifies(method, {"taskId": "t"})
        await wait_all_tasks_blocked()
        assert world.journal.dropped["a"] == {"unexpected notification": 3}
        assert client.notifications == []


@pytest.mark.parametrize("capabilities", [CAN, {}])
@pytest.mark.parametrize("only", [True, False])
async def test_a_shared_server_hears_of_roots_only_if_there_is_one_client(
    only: bool, capabilities: dict[str, Any]
) -> None:
    """(rule 81)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=capabilities) as (_, client, nursery):
        if only:
            await client.session.serve_single_client()
            if capabilities:  # those that asked before it was there ask again
                await server.hears("notifications/roots/list_changed")
        server.hears_nothing_more()
        client.notifies("notifications/roots/list_changed")
        if only:
            await server.hears("notifications/roots/list_changed")
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("busy", [True, False])
async def test_the_only_client_there_can_be_is_always_meant(busy: bool) -> None:
    """(rule 71) It is asked on the stream of its request, or on what it listens to."""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        await client.session.serve_single_client()
        await server.hears("notifications/roots/list_changed")
        if busy:
            await begin(nursery, client, server)
        else:
            await listen(nursery, client)
        question = later(nursery, server.asks, "roots/list")
        client.replies((await client.is_asked("roots/list"))["id"], {"roots": []})
        assert await question.comes() == {"roots": []}
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("turn", range(10))  # which of the two tasks comes first is left to chance
async def test_a_question_is_not_lost_when_another_call_is_answered_in_the_same_breath(
    autojump_clock: MockClock, turn: int
) -> None:
    """On a connection of one client it goes to the stream of a call that is still open when it is put (rule 71)."""
    server = ScriptedServer(
        "s", tools=["t"], isolation=Isolation.PER_CLIENT, revision="2025-03-26", trust=Trust.TRUSTED
    )
    async with open_client(server, capabilities={"sampling": {}}) as (_, client, nursery):
        over: set[int] = set()

        async def call(id: int) -> None:
            request = Request(id, "tools/call", Raw(b'{"name":"s__t","arguments":{}}'))

            def say(message: Notification | Request) -> bool:  # a stream ends with its answer
                return id not in over and client._hear(message)

            await client.session.answer(request, client.session.begin(request), say)
            over.add(id)

        nursery.start_soon(call, 1)
        await server.hears("tools/call")
        nursery.start_soon(call, 2)
        newest = await server.hears("tools/call")
        question = Request("q", "sampling/createMessage", Raw(json.dumps(SAMPLE).encode()))
        answer = Success(newest["id"], Raw(b'{"content":[]}'))
        assert server.link is not None
        server.link.write_bytes(b"[%b,%b]" % (write(question), write(answer)))
        await client.is_asked("sampling/createMessage")
        await wait_all_tasks_blocked()
        assert over == {2}
        assert server.answered == []
        nursery.cancel_scope.cancel()


async def test_many_calls_of_one_client_may_have_many_questions(autojump_clock: MockClock) -> None:
    """The bound is for each call; where nobody can tell whose a question is, it is for all of them together."""
    server = ScriptedServer("s", tools=["t"], isolation=Isolation.PER_CLIENT)
    async with open_client(server, capabilities={"roots": {}}) as (_, client, nursery):
        for _ in range(2):
            nursery.start_soon(client.call, "s__t")
            await server.hears("tools/call")
        for _ in range(2 * MAX_SERVER_REQUESTS):
            nursery.start_soon(server.asks, "roots/list")
        await client.is_asked("roots/list", 2 * MAX_SERVER_REQUESTS - 1)
        with pytest.raises(Refusal, match="open server requests for one call"):
            await server.asks("roots/list")
        nursery.cancel_scope.cancel()


async def test_what_a_server_asks_while_it_is_told_to_watch_belongs_to_whoever_watches(
    autojump_clock: MockClock,
) -> None:
    """It is one client's request as any other: while another has a call in flight too, nobody is asked (rule 71)."""
    server = ScriptedServer("s", tools=["t"], resources=["a://b"], answers={"resources/subscribe": _never})
    server.capabilities = {"tools": {}, "resources": {"subscribe": True}}
    async with open_world(server) as world, trio.open_nursery() as nursery:
        caller, watcher = await world.client(capabilities={"elicitation": {}}), await world.client()
        nursery.start_soon(watcher.request, "resources/subscribe", {"uri": "s+a://b"})
        nursery.start_soon(caller.call, "s__t")
        await server.hears("tools/call")
        await wait_all_tasks_blocked()
        with pytest.raises(Refusal, match="not certain"):
            await server.asks("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
        assert caller.server_requests == []
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_still_being_listed_asks_for_nothing_that_its_revision_does_not_have(
    autojump_clock: MockClock,
) -> None:
    """(rule 73) Whoever is behind it would be known, and can be asked by others."""
    server = ScriptedServer("a", tools=["x"], revision="2025-03-26", answers={"tools/list": _never})
    async with open_client(server, single_client=True, capabilities=CAN) as (_, client, nursery):
        await client.session.serve_single_client()
        await listen(nursery, client)
        with pytest.raises(Refusal) as refused:
            await server.asks("elicitation/create", FORM)
        assert (refused.value.code, refused.value.message) == (-32601, "2025-03-26 has no elicitation")
        assert client.server_requests == []
        later(nursery, server.asks, "roots/list")
        await client.is_asked("roots/list")
        nursery.cancel_scope.cancel()


async def test_the_only_client_is_none_to_a_server_that_it_does_not_reach() -> None:
    """Outside of any call, no request of it and no notification leads there or back."""
    reached, other = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["x"])
    async with open_world(reached, other, single_client=True) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client(Endpoint("a"), capabilities=CAN)
        await client.session.serve_single_client()
        await listen(nursery, client)
        await reached.hears("notifications/roots/list_changed")
        with pytest.raises(Refusal, match="no client's request is in flight"):
            await other.asks("elicitation/create", FORM)
        assert client.server_requests == []
        client.notifies("notifications/roots/list_changed")
        await reached.hears("notifications/roots/list_changed")
        later(nursery, reached.asks, "elicitation/create", FORM)
        await client.is_asked("elicitation/create")
        other.hears_nothing_more()
        nursery.cancel_scope.cancel()


async def _never(params: dict[str, Any]) -> object:
    return await trio.sleep_forever()


# Clients that answer by repeating their request


class Line:
    """The way to such a client for one request. Nobody answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[str] = []
        self.cut = trio.Event()
        """Set once there is no way any more."""

    def notify(self, notice: Notification) -> None:
        self.told.append(notice.method)

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        self.asked.append(method)
        await self.cut.wait()
        raise LinkLost("the call that this belongs to is over")


async def repeats(world: World, line: Line, *, task: bool = False) -> Any:
    """A request of the client with the one token."""
    params = members(encode({"name": "a__x"}))
    caller = Caller("test", SHARED, "token", abilities_of(LATEST, encode(CAN)), "token", key="token", era=Era.STATELESS)
    tasked = (lambda task: None) if task else None
    request = Request(1, "tools/call", encode_object(params))
    return await world.router.answer(Exchange(request, params, caller, line, "debug", MrtrRound(), tasked))


def token_server(how: str) -> ScriptedServer:
    isolation = Isolation.PER_CLIENT if how == "dedicated" else Isolation.SHARED
    return ScriptedServer("a", tools=["x"], isolation=isolation, trust=Trust.TRUSTED, timeout=10_000.0)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", sorted(QUESTIONS))
@pytest.mark.parametrize("how", ["shared", "dedicated", "alone"])
async def test_such_a_client_is_asked_nothing_while_any_of_its_requests_may_be_meant(how: str, kind: str) -> None:
    """(rule 71) In the answer to the wrong one a question would stand under its name. So it is with log messages. What
    names its request is certain, and so is what comes while there is no other."""
    server = token_server(how)
    async with open_world(server, single_client=how == "alone") as world, trio.open_nursery() as nursery:
        if how == "alone":
            world.router.upstreams.serve_only(Caller("test", SHARED, "token", NO_ABILITIES, "token", key="token"))
        await world.settled()
        lines, ids = [Line(), Line()], []
        for line in lines:
            later(nursery, repeats, world, line)
            ids.append((await server.hears("tools/call"))["id"])
        if kind == "roots":  # of which there are none, as long as nobody is certainly meant (rule 72)
            assert await server.asks(*QUESTIONS[kind]) == {"roots": []}
        else:
            with pytest.raises(Refusal) as refused:
                await server.asks(*QUESTIONS[kind])
            assert (refused.value.code, refused.value.message) == (-32602, AMBIGUOUS_CALL)
            assert refusals(world) == [AMBIGUOUS_CALL]
        await server.notifies("notifications/message", log("error"))
        await wait_all_tasks_blocked()
        assert [(line.asked, line.told) for line in lines] == [([], [])] * 2

        method, params = QUESTIONS[kind]
        later(nursery, server.asks, method, params, about=ids[0])
        server.sends(Notification("notifications/message", Raw(json.dumps(log("error")).encode())), about=ids[0])
        await wait_all_tasks_blocked()
        expected = [method], ["notifications/message"]
        assert [(line.asked, line.told) for line in lines] == [expected, ([], [])]

        server.says(ids[0], {"content": []})
        await wait_all_tasks_blocked()
        later(nursery, server.asks, method, params)
        await server.notifies("notifications/message", log("error"))
        await wait_all_tasks_blocked()
        assert [(line.asked, line.told) for line in lines] == [expected] * 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_what_names_a_task_of_such_a_client_is_certain() -> None:
    """(rule 71) The task is one of several that the server runs for it."""
    server = handshake_server()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        lines = [Line(), Line()]
        for id, line in zip(("t1", "t2"), lines, strict=True):
            later(nursery, repeats, world, line, task=True)
            await begins(server, id, poll=30_000)
        await wait_all_tasks_blocked()
        later(nursery, repeats, world, Line(), task=True)  # and a call in flight
        await server.hears("tools/call")
        later(nursery, server.asks, "elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        await wait_all_tasks_blocked()
        assert [line.asked for line in lines] == [["elicitation/create"], []]
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("kind", sorted(QUESTIONS))
async def test_what_such_a_client_does_not_come_back_with_is_cancelled_if_that_can_be_said(
    kind: str, gone: bool, autojump_clock: MockClock
) -> None:
    """(rule 108) In time: its call is kept only for so long, and would be called off before its server could end it."""
    server = token_server("shared")
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        line = Line()
        later(nursery, repeats, world, line)
        await server.hears("tools/call")
        began = trio.current_time()
        question = later(nursery, server.asks, *QUESTIONS[kind])
        await wait_all_tasks_blocked()
        if gone:
            line.cut.set()
        await question.ended.wait()
        assert trio.current_time() - began == pytest.approx(0 if gone else RETRY_ANSWER_TIMEOUT)
        if kind in ("form", "url"):
            assert await question.comes() == {"action": "cancel"}
        else:
            assert question.refusal is not None
            assert question.refusal.code == (-32603 if gone else UNCONFIRMED)
        assert RETRY_ANSWER_TIMEOUT + 10 <= PARKED_LIFETIME
        nursery.cancel_scope.cancel()


async def test_while_such_a_client_waits_for_what_it_does_not_repeat_it_cannot_be_asked() -> None:
    """That is no answer of its user, and its server is told so."""
    server = ScriptedServer(
        "a", resources=["a://b"], capabilities={"resources": {}, "completions": {}}, trust=Trust.TRUSTED
    )
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        line = Line()
        line.cut.set()
        params = members(encode({"ref": {"type": "ref/resource", "uri": "a+a://b"}, "argument": {}}))
        caller = Caller(
            "test", SHARED, "token", abilities_of(LATEST, encode(CAN)), "token", key="token", era=Era.STATELESS
        )
        request = Request(1, "completion/complete", encode_object(params))
        later(nursery, world.router.answer, Exchange(request, params, caller, line))
        await server.hears("completion/complete")
        with pytest.raises(Refusal, match="-32603 the client did not respond"):
            await server.asks("elicitation/create", FORM)
        nursery.cancel_scope.cancel()
