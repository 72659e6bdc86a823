"""A stateless server's questions: put to the client of a session all at once, or handed on to one that repeats
requests; and the rounds until there is an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent, Limits, Trust
from host.errors import ColonnadeError, Forbidden, InvalidParams, ProtocolViolation, Unconfirmed
from host.exchange import Answered, Caller, Exchange, InputRequired, MrtrRound, ProgressCallback
from host.jsonrpc.messages import Notification, Request
from host.jsonrpc.raw import encode, encode_object
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.protocol.abilities import SHARED_ABILITIES
from host.protocol.mrtr import MAX_KEYS
from host.protocol.versions import LATEST
from host.source import SHARED
from host.upstream.mrtr import INITIAL_PAUSE, MAX_PAUSE, MAX_ROUNDS, MAX_STATE
from tests.kit.gates import kind
from tests.kit.world import Later, Refusal, ScriptedClient, ScriptedServer, later, open_client, open_world

CAN: dict[str, Any] = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
SCHEMA = {"type": "object", "properties": {"org": {"type": "string"}}}
FORM: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Which?", "requestedSchema": SCHEMA},
}
PAGE: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Log in", "url": "https://x/1"},
}
PASSWORD = {"type": "object", "properties": {"password": {"type": "string"}}}
SAMPLE: dict[str, Any] = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}}
ROOTS: dict[str, Any] = {"method": "roots/list"}
DONE = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
REMEDY = "(if its question has another text each time, 'protocol: legacy' for this server asks once)"
BARE = {"content": [{"type": "text", "text": "done"}]}
CALL = {"name": "a__x", "arguments": {"n": 1.50}}


def asks(state: object = None, **requests: object) -> dict[str, object]:
    """An unfinished result; `state` None for none."""
    made: dict[str, object] = {"resultType": "input_required"}
    if requests:
        made["inputRequests"] = requests
    return made if state is None else {**made, "requestState": state}


def asking(trust: Trust = Trust.TRUSTED, **more: Any) -> ScriptedServer:
    return ScriptedServer(
        "a", tools=["x"], prompts=["p"], resources=["x:1"], revision=LATEST.name, trust=trust, title="A", **more
    )


def answered(request: dict[str, Any]) -> tuple[object, object]:
    """The answers and the state that a request brings, "none" for each that it does not."""
    return request.get("inputResponses", "none"), request.get("requestState", "none")


async def begin(nursery: trio.Nursery, client: ScriptedClient, server: ScriptedServer) -> tuple[Later, dict[str, Any]]:
    call = later(nursery, client.call, "a__x", {"n": 1.50})
    return call, await server.hears("tools/call")


@asynccontextmanager
async def calling(
    trust: Trust = Trust.TRUSTED, **more: Any
) -> AsyncIterator[tuple[ScriptedServer, ScriptedClient, Later, dict[str, Any]]]:
    """A call by a client that can be asked everything, and its params as the server has heard them."""
    server = asking(trust, **more)
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call, request = await begin(nursery, client, server)
        yield server, client, call, request


# Rounds of a client that is asked


async def test_all_that_is_asked_is_put_at_once_and_comes_back_in_a_new_request_with_the_state() -> None:
    """In whatever order the client answers (rule 79)."""
    async with calling() as (server, client, call, first):
        assert answered(first) == ("none", "none")
        server.says(first["id"], asks("s1", f=FORM, s=SAMPLE, r=ROOTS, u=PAGE))
        await wait_all_tasks_blocked()
        methods = [each.method for each in client.server_requests]
        assert sorted(methods) == [
            "elicitation/create",
            "elicitation/create",
            "roots/list",
            "sampling/createMessage",
        ]
        replies: dict[str, dict[str, Any]] = {}
        for asked in reversed(client.server_requests):
            server.hears_nothing_more()
            said = {"said": asked.method, "n": 1.50, "mode": "url" if b"https" in bytes(asked.params or b"") else ""}
            key = {"roots/list": "r", "sampling/createMessage": "s"}.get(asked.method, "u" if said["mode"] else "f")
            replies[key] = said
            client.replies(asked.id, said)
            await wait_all_tasks_blocked()
        second = await server.hears("tools/call")
        assert second["id"] != first["id"]
        assert answered(second) == (replies, "s1")
        assert (second["name"], second["arguments"]) == ("x", {"n": 1.5})
        assert second["_meta"] == first["_meta"]
        server.says(second["id"], DONE)
        assert await call.comes() == BARE


async def test_a_question_is_signed_and_a_page_gets_an_id() -> None:
    """As for any client of a session (rules 73, 76)."""
    async with calling() as (server, client, call, first):
        server.says(first["id"], asks(u=PAGE))
        asked = await client.is_asked("elicitation/create")
        assert (asked["message"], asked["url"], asked["mode"]) == ("[A] Log in", "https://x/1", "url")
        assert len(asked["elicitationId"]) > 10
        client.replies(asked["id"], {"action": "accept"})
        second = await server.hears("tools/call")
        assert answered(second) == ({"u": {"action": "accept"}}, "none")
        server.says(second["id"], DONE)
        await call.comes()


@pytest.mark.parametrize("state", ["", "cnd1.x/y+z==", '\u00e9\u2028\u0000\\"', "x" * 100_000])
async def test_a_state_comes_back_as_it_was_and_none_where_there_was_none(state: str) -> None:
    """Only that of the last round counts (rule 79)."""
    async with calling() as (server, client, call, request):
        for nth, given in enumerate((state, None, state)):
            server.says(request["id"], asks(given, r=ROOTS))
            asked = await client.is_asked("roots/list", nth)
            client.replies(asked["id"], {"roots": []})
            request = await server.hears("tools/call")
            assert answered(request) == ({"r": {"roots": []}}, "none" if given is None else state)
        server.says(request["id"], DONE)
        await call.comes()


async def test_what_a_client_of_a_session_makes_up_itself_does_not_reach_the_server() -> None:
    """Its requests have no rounds (rule 79)."""
    server = asking()
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, client.call, "a__x", inputResponses={"r": {}}, requestState="mine")
        request = await server.hears("tools/call")
        assert answered(request) == ("none", "none")
        server.says(request["id"], DONE)
        await call.comes()


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(("more", "brought"), [({}, "none"), ({"inputRequests": {}}, {})])
async def test_a_server_that_only_wants_to_be_asked_again_is_after_a_while(
    more: dict[str, object], brought: object, ends: bool, autojump_clock: MockClock
) -> None:
    """Ever later, as often as it may ask questions, and for longer than it may take to answer once (rule 79)."""
    async with calling(timeout=3.0) as (server, client, call, request):
        times = [trio.current_time()]
        for n in range(MAX_ROUNDS):
            server.says(request["id"], {**asks(f"s{n}"), **more})
            request = await _hears(server)
            times.append(trio.current_time())
            assert answered(request) == (brought, f"s{n}")
        server.says(request["id"], DONE if ends else {**asks("once more"), **more})
        result = await call.comes()
        assert result == BARE if ends else result["content"][0]["text"] == "a requests input without end"
        pauses = [after - before for before, after in pairwise(times)]
        assert pauses[0] == pytest.approx(INITIAL_PAUSE, rel=0.25)
        assert pauses[-1] == pytest.approx(MAX_PAUSE, rel=0.25)
        assert client.server_requests == []


async def _hears(server: ScriptedServer) -> dict[str, Any]:
    with trio.fail_after(60):
        while True:
            try:
                return await server.hears("tools/call")
            except trio.TooSlowError:
                continue


async def test_a_server_that_goes_round_in_circles_is_stopped(autojump_clock: MockClock) -> None:
    """The client is asked ten times at the most (rule 79)."""
    server = asking()
    number = 0

    async def call(params: dict[str, Any]) -> object:
        nonlocal number
        number += 1
        return asks(f"s{number}", f={**FORM, "params": {**FORM["params"], "message": f"{number}?"}})

    server.answers["tools/call"] = call
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        outcome = later(nursery, client.call, "a__x")
        for nth in range(MAX_ROUNDS):
            asked = await client.is_asked("elicitation/create", nth)
            client.replies(asked["id"], {"action": "decline"})
        assert (await outcome.comes()) == {
            "content": [{"type": "text", "text": f"a requests input without end {REMEDY}"}],
            "isError": True,
        }
        assert (len(client.server_requests), number) == (MAX_ROUNDS, MAX_ROUNDS + 1)


async def test_a_server_that_wants_to_be_asked_again_for_ever_is_stopped(autojump_clock: MockClock) -> None:
    """(rule 79)"""
    server = asking()

    async def call(params: dict[str, Any]) -> object:
        return asks("s")

    server.answers["tools/call"] = call
    async with open_client(server, capabilities=CAN) as (_, client, _):
        began = trio.current_time()
        result = await client.call("a__x")
        assert result["isError"] is True
        assert trio.current_time() - began <= 601


async def test_a_page_is_shown_once_however_often_the_server_asks_for_it(autojump_clock: MockClock) -> None:
    """It waits for what the user does there; what else it asks meanwhile is asked (rule 76). What it says of a trace is
    another one in each round."""

    def in_trace(n: int) -> dict[str, Any]:
        meta = {"traceparent": f"00-4bf92f3577b34da6a3ce929d0e0e4736-{n + 1:016x}-01"}
        return {**PAGE, "params": {**PAGE["params"], "_meta": meta}}

    async with calling() as (server, client, call, request):
        server.says(request["id"], asks("s", u=PAGE))
        client.replies((await client.is_asked("elicitation/create"))["id"], {"action": "accept"})
        request = await server.hears("tools/call")
        for n in range(20):
            server.says(request["id"], asks(f"s{n}", again=in_trace(n)))
            request = await server.hears("tools/call")
            assert answered(request) == ({"again": {"action": "accept"}}, f"s{n}")
        assert len(client.server_requests) == 1
        server.says(request["id"], asks("t", again=PAGE, r=ROOTS))
        client.replies((await client.is_asked("roots/list", 1))["id"], {"roots": []})
        request = await server.hears("tools/call")
        assert answered(request) == ({"again": {"action": "accept"}, "r": {"roots": []}}, "t")
        other = {**PAGE, "params": {**PAGE["params"], "url": "https://x/2"}}
        server.says(request["id"], asks(u=other))
        assert (await client.is_asked("elicitation/create", 2))["url"] == "https://x/2"
        client.replies(client.server_requests[2].id, {"action": "cancel"})
        request = await server.hears("tools/call")
        assert answered(request) == ({"u": {"action": "cancel"}}, "none")
        server.says(request["id"], DONE)
        assert await call.comes() == BARE


@pytest.mark.parametrize("again", [FORM, {**FORM, "params": {**FORM["params"], "url": "https://x"}}, SAMPLE, ROOTS])
async def test_anything_else_that_is_asked_again_is_asked_again(again: dict[str, Any]) -> None:
    """What the user said may have been wrong."""
    async with calling() as (server, client, call, request):
        for nth in range(3):
            server.says(request["id"], asks("s", k=again))
            asked = await client.is_asked(again["method"], nth)
            client.replies(asked["id"], {"nth": nth})
            request = await server.hears("tools/call")
            assert answered(request) == ({"k": {"nth": nth}}, "s")
        server.says(request["id"], DONE)
        await call.comes()


@pytest.mark.parametrize(
    ("action", "question", "refuses"),
    [("decline", FORM, False), ("cancel", FORM, False), ("cancel", FORM, True), ("cancel", PAGE, True)],
)
async def test_a_user_who_does_not_want_to_has_answered(action: str, question: dict[str, Any], refuses: bool) -> None:
    """Where the client refuses to ask its user, that is a cancel."""
    async with calling() as (server, client, call, request):
        server.says(request["id"], asks(f=question))
        asked = (await client.is_asked("elicitation/create"))["id"]
        if refuses:
            client.declines(asked, -32603, "no screen")
        else:
            client.replies(asked, {"action": action})
        request = await server.hears("tools/call")
        assert answered(request) == ({"f": {"action": action}}, "none")
        server.says(request["id"], DONE)
        assert await call.comes() == BARE


@pytest.mark.parametrize("question", [SAMPLE, ROOTS])
async def test_a_client_that_refuses_anything_else_gets_its_own_error_and_the_server_hears_no_more(
    question: dict[str, Any],
) -> None:
    """What else was asked is withdrawn: all is answered, or nothing (rule 79)."""
    async with calling() as (server, client, call, request):
        server.says(request["id"], asks("s", f=FORM, q=question))
        await wait_all_tasks_blocked()
        form, refused = sorted(client.server_requests, key=lambda each: each.method != "elicitation/create")
        client.declines(refused.id, -1, "User rejected")
        with pytest.raises(Refusal) as refusal:
            await call.comes()
        assert (refusal.value.code, refusal.value.message) == (-1, "User rejected")
        assert [params["requestId"] for params in client.notifications_of("notifications/cancelled")] == [form.id]
        server.hears_nothing_more()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("trust", "capabilities", "question"),
    [
        (Trust.TRUSTED, {"roots": {}}, FORM),
        (Trust.TRUSTED, {"roots": {}, "elicitation": {}}, PAGE),
        (Trust.TRUSTED, {"roots": {}}, SAMPLE),
        (Trust.TRUSTED, {"roots": {}, "sampling": {}}, {**SAMPLE, "params": {**SAMPLE["params"], "tools": [{}]}}),
        (Trust.STANDARD, CAN, {**SAMPLE, "params": {**SAMPLE["params"], "tools": [{}]}}),
        (Trust.STANDARD, CAN, {**FORM, "params": {**FORM["params"], "requestedSchema": PASSWORD}}),
        *((Trust.UNTRUSTED, CAN, question) for question in (FORM, PAGE, SAMPLE, ROOTS)),
    ],
)
async def test_a_server_that_asks_for_what_it_was_not_told_that_it_may_gets_no_answer_at_all(
    trust: Trust, capabilities: dict[str, Any], question: dict[str, Any]
) -> None:
    """Not to what it may ask for either (rule 74)."""
    server = asking(trust)
    async with open_client(server, capabilities=capabilities) as (world, client, nursery):
        world.approves()
        with world.auto_answering() as consents:
            call = later(nursery, client.request, "prompts/get", {"name": "a__p"})
            request = await server.hears("prompts/get")
            server.says(request["id"], asks("s", r=ROOTS, q=question))
            with pytest.raises(Refusal, match="a asks for what it may not") as refusal:
                await call.comes()
            assert refusal.value.code == 403
            assert client.server_requests == []
            server.hears_nothing_more()
            nursery.start_soon(_ask, server, question)
            with pytest.raises(Forbidden):
                await world.mrtr_round("prompts/get", {"name": "a__p"}, capabilities=capabilities)
        assert {matter.access.subject.item.kind for matter in consents} <= {"prompt"}


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        ({"q": {**PAGE, "params": {**PAGE["params"], "URL": "https://evil.example/"}}}, "asks for what it may not"),
        ({"q": {**FORM, "params": {**FORM["params"], "Message": "m"}}}, "asks for what it may not"),
        ({"q": {**ROOTS, "Method": "elicitation/create"}}, "some readers take the member 'Method'"),
        ({"q": ROOTS, "Q": PAGE}, "some readers take the member 'Q'"),
    ],
)
async def test_a_question_with_a_member_that_readers_take_for_another_one_is_not_put(
    requests: dict[str, Any], why: str
) -> None:
    async def ask(params: dict[str, Any]) -> object:
        return asks("s", **requests)

    async with open_client(asking(answers={"prompts/get": ask}), capabilities=CAN) as (world, client, _):
        with pytest.raises(Refusal, match=why):
            await client.request("prompts/get", {"name": "a__p"})
        assert client.server_requests == []
        with pytest.raises(ColonnadeError, match=why):
            await world.mrtr_round("prompts/get", {"name": "a__p"}, capabilities=CAN)


@pytest.mark.parametrize("question", [SAMPLE, PAGE])
async def test_a_person_is_asked_before_a_question_that_costs_something_is_handed_on(question: dict[str, Any]) -> None:
    """To a client that is asked, and to one that repeats its request; with nobody there, neither gets it (rule 74)."""
    params = {"name": "a__p"}
    what = "url" if question is PAGE else "sampling"
    server = asking(Trust.STANDARD)
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        nursery.start_soon(_ask, server, question)
        with pytest.raises(Unconfirmed):
            await world.mrtr_round("prompts/get", params, capabilities=CAN)
        nursery.start_soon(_ask, server, question)
        with world.auto_answering(Answering.DENY), pytest.raises(Forbidden, match="a person said no"):
            await world.mrtr_round("prompts/get", params, capabilities=CAN)
        nursery.start_soon(_ask, server, question)
        with world.auto_answering() as consents:
            found = await world.mrtr_round("prompts/get", params, capabilities=CAN)
        assert isinstance(found, InputRequired)
        assert list(found.requests) == ["q"]
        assert [matter.access.subject.item.kind for matter in consents] == [what]

        call = later(nursery, client.request, "prompts/get", params)
        request = await server.hears("prompts/get")
        server.says(request["id"], asks("s", q=question))
        if question is PAGE:  # a server can be told that nobody went there
            again = await server.hears("prompts/get")
            assert again["inputResponses"] == {"q": {"action": "cancel"}}
            server.says(again["id"], {"resultType": "complete", "messages": []})
            await call.comes()
        else:
            with pytest.raises(Refusal) as refused:
                await call.comes()
            assert refused.value.code == 408
        assert client.server_requests == []
        with world.auto_answering() as consents:
            call = later(nursery, client.request, "prompts/get", params)
            request = await server.hears("prompts/get")
            server.says(request["id"], asks("s", q=question))
            asked = await client.is_asked(question["method"])
            client.replies(asked["id"], {"action": "accept"})
            again = await server.hears("prompts/get")
            assert again["inputResponses"] == {"q": {"action": "accept"}}
            server.says(again["id"], {"resultType": "complete", "messages": []})
            await call.comes()
        assert [matter.access.subject.item.kind for matter in consents] == [what]


async def test_only_roots_that_the_configuration_allows_reach_the_server() -> None:
    """Whether the client was asked for them or repeats its request with them."""
    consent = Consent(roots=kind(allow=["file:///home/me/project"]))
    told = {"roots": [{"uri": "file:///home/me/project", "name": "p"}, {"uri": "file:///etc"}]}
    rest = {"roots": [{"uri": "file:///home/me/project", "name": "p"}]}
    server = asking(Trust.STANDARD, consent=consent)
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        call = later(nursery, client.request, "prompts/get", {"name": "a__p"})
        request = await server.hears("prompts/get")
        server.says(request["id"], asks("s", r=ROOTS))
        asked = await client.is_asked("roots/list")
        client.replies(asked["id"], told)
        again = await server.hears("prompts/get")
        assert again["inputResponses"] == {"r": rest}
        server.says(again["id"], {"resultType": "complete", "messages": []})
        await call.comes()

        nursery.start_soon(_ask, server, ROOTS)
        found = await world.mrtr_round("prompts/get", {"name": "a__p"}, capabilities=CAN)
        assert isinstance(found, InputRequired)
        answers = {"q": encode(told), "f": Raw(b'{"action":"accept","content":{"roots":"all"}}')}
        call = later(
            nursery, world.mrtr_round, "prompts/get", {"name": "a__p"}, MrtrRound("a", answers, "s"), capabilities=CAN
        )
        again = await server.hears("prompts/get")
        assert again["inputResponses"] == {"q": rest, "f": {"action": "accept", "content": {"roots": "all"}}}
        server.says(again["id"], {"resultType": "complete", "messages": []})
        await call.comes()


async def _ask(server: ScriptedServer, question: dict[str, Any]) -> None:
    request = await server.hears("prompts/get")
    server.says(request["id"], asks("s", q=question))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "input_required"},
        asks(5),
        asks("s", q=5),
        asks("s", q={"params": {}}),
        asks("s", q={"method": "tools/call", "params": {}}),
        asks("s", q={"method": "ping"}),
        {**asks("s"), "inputRequests": []},
        {**asks("s"), "inputRequests": None},
        asks("s", **{f"k{n}": ROOTS for n in range(MAX_KEYS + 1)}),
    ],
)
async def test_an_unfinished_answer_that_is_none_is_a_broken_server(result: dict[str, Any]) -> None:
    server = asking()

    async def answer(params: dict[str, Any]) -> object:
        return result

    server.answers["prompts/get"] = answer
    async with open_client(server, capabilities=CAN) as (world, client, _):
        with pytest.raises(Refusal) as refusal:
            await client.request("prompts/get", {"name": "a__p"})
        assert refusal.value.code == 502
        assert client.server_requests == []
        with pytest.raises(ProtocolViolation):
            await world.mrtr_round("prompts/get", {"name": "a__p"}, capabilities=CAN)


@pytest.mark.parametrize("kind", ["input_required", "task", "partial", "", 5])
async def test_a_result_of_a_kind_that_its_method_has_not_is_a_broken_server(kind: object) -> None:
    """Only what clients call, read and get may ask (rule 78)."""

    async def answer(params: dict[str, Any]) -> object:
        return {**asks("s", r=ROOTS), "resultType": kind, "completion": {"values": []}}

    server = asking(answers={"completion/complete": answer})
    async with open_client(server, capabilities=CAN) as (_, client, _):
        params = {"ref": {"type": "ref/prompt", "name": "a__p"}, "argument": {"name": "x", "value": ""}}
        with pytest.raises(Refusal) as refusal:
            await client.request("completion/complete", params)
        assert refusal.value.code == 502
        assert client.server_requests == []


@pytest.mark.parametrize(
    ("method", "params", "result"),
    [("prompts/get", {"name": "a__p"}, {"messages": []}), ("resources/read", {"uri": "a+x:1"}, {"contents": []})],
)
async def test_prompts_and_resources_have_rounds_too(method: str, params: object, result: dict[str, Any]) -> None:
    server = asking()
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, client.request, method, params)
        request = await server.hears(method)
        server.says(request["id"], asks("s", r=ROOTS))
        client.replies((await client.is_asked("roots/list"))["id"], {"roots": []})
        request = await server.hears(method)
        assert answered(request) == ({"r": {"roots": []}}, "s")
        server.says(request["id"], {"resultType": "complete", "ttlMs": 5, "cacheScope": "public", **result})
        assert await call.comes() == result


# Time, and the end of it


async def test_what_a_person_takes_to_answer_is_not_counted(autojump_clock: MockClock) -> None:
    """What the server takes afterwards is (rule 48)."""
    async with calling(timeout=5.0) as (server, client, call, request):
        await trio.sleep(4)
        server.says(request["id"], asks("s", f=FORM))
        asked = await client.is_asked("elicitation/create")
        await trio.sleep(300)
        client.replies(asked["id"], {"action": "accept"})
        request = await server.hears("tools/call")
        began = trio.current_time()
        assert "did not respond within 5 s" not in str(call.result)
        assert (await _comes(call))["isError"] is True
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        assert (await server.hears("notifications/cancelled"))["requestId"] == request["id"]


async def _comes(call: Later) -> Any:
    await call.ended.wait()
    return call.result


async def test_a_call_that_is_cancelled_withdraws_what_it_asks_and_tells_the_server_nothing() -> None:
    """Nothing of it is at the server between two rounds (rule 50)."""
    server = asking()
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, partial(client.request, "tools/call", CALL, id="mine"))
        request = await server.hears("tools/call")
        server.says(request["id"], asks("s", f=FORM, q=SAMPLE))
        await wait_all_tasks_blocked()
        client.notifies("notifications/cancelled", {"requestId": "mine"})
        await call.comes()
        withdrawn = {params["requestId"] for params in client.notifications_of("notifications/cancelled")}
        assert withdrawn == {asked.id for asked in client.server_requests}
        assert len(withdrawn) == 2
        server.hears_nothing_more()


@pytest.mark.parametrize("pausing", [True, False])
async def test_a_call_that_is_cancelled_in_a_later_round_is_called_off_if_the_server_works_on_it(
    pausing: bool, autojump_clock: MockClock
) -> None:
    """In the id of that round (rules 45, 50)."""
    server = asking()
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, partial(client.request, "tools/call", CALL, id="mine"))
        request = await server.hears("tools/call")
        server.says(request["id"], asks("s", r=ROOTS))
        client.replies((await client.is_asked("roots/list"))["id"], {"roots": []})
        request = await server.hears("tools/call")
        if pausing:
            server.says(request["id"], asks("t"))
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        client.notifies("notifications/cancelled", {"requestId": "mine"})
        await call.comes()
        if not pausing:
            assert (await server.hears("notifications/cancelled"))["requestId"] == request["id"]
        await trio.sleep(5)
        server.hears_nothing_more()


async def test_a_server_that_is_lost_while_its_question_is_open_is_told_of_with_the_answer(
    autojump_clock: MockClock,
) -> None:
    """The call fails once (rule 107)."""
    async with calling() as (server, client, call, request):
        server.says(request["id"], asks("s", f=FORM))
        asked = await client.is_asked("elicitation/create")
        server.dies()
        await trio.sleep(1)
        client.replies(asked["id"], {"action": "accept"})
        result = await call.comes()
        assert result["isError"] is True
        assert server.asked.count("tools/call") == 1


async def test_progress_goes_on_under_one_token_over_all_rounds() -> None:
    """And only grows (rules 42, 43)."""
    server = asking()
    async with open_client(server, capabilities=CAN) as (_, client, nursery):
        call = later(nursery, client.call, "a__x", _meta={"progressToken": "mine"})
        request = await server.hears("tools/call")
        token = request["_meta"]["progressToken"]
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
        server.says(request["id"], asks("s", r=ROOTS))
        client.replies((await client.is_asked("roots/list"))["id"], {"roots": []})
        request = await server.hears("tools/call")
        for progress in (1, 2):
            token = request["_meta"]["progressToken"]
            await server.notifies("notifications/progress", {"progressToken": token, "progress": progress})
        server.says(request["id"], DONE)
        await call.comes()
        assert [params["progress"] for params in client.notifications_of("notifications/progress")] == [1, 2]
        assert {params["progressToken"] for params in client.notifications_of("notifications/progress")} == {"mine"}


# A caller that repeats requests


async def test_a_caller_that_repeats_requests_gets_the_questions_and_nothing_is_kept_for_it() -> None:
    """Signed, without ids, with links that it can bring back; under the server's keys (rules 51, 73, 80)."""
    link = {"type": "resource_link", "uri": "memo:1", "name": "one"}
    used = {"role": "user", "content": {"type": "tool_result", "toolUseId": "t", "content": [link]}}
    sample = {**SAMPLE, "params": {"messages": [used], "maxTokens": 5, "vendor": 1.50}}
    results = [asks("theirs", f=FORM, u=PAGE, s=sample, r=ROOTS), DONE]
    asked: list[dict[str, Any]] = []

    async def call(params: dict[str, Any]) -> object:
        asked.append(params)
        return results[len(asked) - 1]

    server = asking(answers={"tools/call": call})
    async with open_world(server) as world:
        await world.settled()
        first = await world.mrtr_round("tools/call", CALL, capabilities=CAN)
        assert isinstance(first, InputRequired)
        assert (first.server, first.state) == ("a", "theirs")
        found = {key: (method, _decoded(params)) for key, (method, params) in first.requests.items()}
        assert found["f"] == (FORM["method"], {**FORM["params"], "message": "[A] Which?"})
        assert found["u"] == (PAGE["method"], {**PAGE["params"], "message": "[A] Log in"})
        assert found["r"] == ("roots/list", {})
        assert found["s"][1]["messages"][0]["content"]["content"] == [{**link, "uri": "a+memo:1"}]
        assert found["s"][1]["vendor"] == 1.5
        assert len(asked) == 1
        answers = {"r": Raw(b'{"roots": [], "n": 1.50}'), "unknown": Raw(b"{}")}
        second = await world.mrtr_round("tools/call", CALL, MrtrRound("a", answers, "theirs"), capabilities=CAN)
        assert isinstance(second, Answered)
        assert json.loads(bytes(second.result)) == BARE
        assert answered(asked[1]) == ({"r": {"roots": [], "n": 1.5}, "unknown": {}}, "theirs")


def _decoded(params: Any) -> dict[str, Any]:
    return {name: json.loads(bytes(each)) for name, each in params.items()}


async def test_at_a_servers_own_endpoint_nothing_in_a_question_is_renamed() -> None:
    link = {"type": "resource_link", "uri": "memo:1", "name": "one"}
    used = {"role": "user", "content": {"type": "tool_result", "toolUseId": "t", "content": [link]}}

    async def call(params: dict[str, Any]) -> object:
        return asks(s={**SAMPLE, "params": {"messages": [used], "maxTokens": 5}})

    async with open_world(asking(answers={"tools/call": call})) as world:
        await world.settled()
        found = await world.mrtr_round("tools/call", {"name": "x"}, capabilities=CAN, endpoint="a")
        assert isinstance(found, InputRequired)
        assert found.state is None
        assert _decoded(found.requests["s"][1])["messages"] == [used]


async def test_a_state_without_questions_is_handed_on_too() -> None:
    async def call(params: dict[str, Any]) -> object:
        return asks("come back")

    async with open_world(asking(answers={"tools/call": call})) as world:
        await world.settled()
        found = await world.mrtr_round("tools/call", CALL)
        assert found == InputRequired("a", {}, "come back")


async def test_what_it_has_beside_its_questions_is_handed_on_within_the_size_of_a_result() -> None:
    beside: dict[str, Any] = {
        "vendor": 1.5,
        "_meta": {"v/k": "x", "io.modelcontextprotocol/logLevel": "debug"},
        "RequestState": "mine",
    }

    async def call(params: dict[str, Any]) -> object:
        return {**asks("come back"), **beside}

    async with open_world(asking(answers={"tools/call": call}, limits=Limits(result=1024))) as world:
        await world.settled()
        found = await world.mrtr_round("tools/call", CALL)
        assert isinstance(found, InputRequired)
        assert _decoded(found.unknown) == {"vendor": 1.5, "_meta": {"v/k": "x"}}
        beside["vendor"] = "x" * 1025
        assert isinstance(await world.mrtr_round("tools/call", CALL), Answered)


@pytest.mark.virtual_time
@pytest.mark.parametrize("letter", ["x", "\u20ac"])
async def test_a_state_that_is_too_long_to_be_carried_is_a_broken_server(letter: str) -> None:
    """A caller would have to bring back all of it (rule 5)."""
    longest = letter * (MAX_STATE // len(letter.encode()))

    async def call(params: dict[str, Any]) -> object:
        return asks(state)

    async with open_world(asking(answers={"tools/call": call})) as world:
        await world.settled()
        state = longest
        assert await world.mrtr_round("tools/call", CALL) == InputRequired("a", {}, longest)
        state = longest + letter
        result = await world.mrtr_round("tools/call", CALL)
        assert isinstance(result, Answered)
        assert f"more than {MAX_STATE} bytes" in json.loads(bytes(result.result))["content"][0]["text"]


async def test_a_retry_for_what_is_another_servers_by_now_is_refused() -> None:
    """It holds the state of the one that asked (rules 101, 106)."""
    server = asking()
    async with open_world(server) as world:
        await world.settled()
        with pytest.raises(InvalidParams, match="requestState"):
            await world.mrtr_round("tools/call", CALL, MrtrRound("b", {}, "theirs"))
        server.hears_nothing_more()
        assert "tools/call" not in server.asked


@pytest.mark.parametrize("at", [None, MrtrRound("a", {}, None), MrtrRound("a", None, "s"), MrtrRound("a", {}, "s")])
async def test_how_fresh_a_result_is_counts_only_if_nothing_was_asked_for_it(at: MrtrRound | None) -> None:
    """(rule 96)"""

    async def read(params: dict[str, Any]) -> object:
        return {"resultType": "complete", "ttlMs": 5000, "cacheScope": "public", "contents": []}

    async with open_world(asking(answers={"resources/read": read})) as world:
        await world.settled()
        found = await world.mrtr_round("resources/read", {"uri": "a+x:1"}, at)
        assert isinstance(found, Answered)
        assert json.loads(bytes(found.result)) == {"contents": []}
        expected = (5000, True) if at is None else (0, False)
        assert (found.freshness.ttl_ms, found.freshness.public) == expected


async def test_what_was_asked_for_on_a_callers_behalf_is_not_fresh_either() -> None:
    """(rule 96)"""
    results = [asks("s", r=ROOTS), {"resultType": "complete", "ttlMs": 5000, "cacheScope": "public", "contents": []}]

    async def read(params: dict[str, Any]) -> object:
        return results.pop(0)

    class Answers:
        def notify(self, notice: Notification) -> None:
            raise AssertionError(notice)

        async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
            await trio.lowlevel.checkpoint()
            return Raw(b'{"roots":[]}')

    async with open_world(asking(answers={"resources/read": read})) as world:
        await world.settled()
        params = {"uri": encode("a+x:1")}
        caller = Caller("test", SHARED, None, SHARED_ABILITIES)
        request = Request(1, "resources/read", encode_object(params))
        found = await world.router.answer(Exchange(request, params, caller, Answers()))
        assert isinstance(found, Answered)
        assert (found.freshness.ttl_ms, found.freshness.public) == (0, False)
