"""Stateless requests: what each result carries, logs, and questions that are asked by ending the request: of servers of
both kinds, to the right client alone, and never by running a call twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types.methods import CACHEABLE_METHODS
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import AskSpec, Auth, Channel, Consent, Isolation, Listen, Secret, Trust
from host.downstream import call_store, stateless
from host.downstream.detached import PARKED_LIFETIME, REPLAY_LIFETIME
from host.downstream.stateless import STATE_LIFETIME, SUPPORTED_METHODS
from host.jsonrpc.messages import ErrorBody, Notification
from host.peer.outstanding import PeerError
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.seal import KEY_BYTES
from host.version import VERSION
from tests.kit.asgi import IO, LATEST, Connection, Response, open_http_app
from tests.kit.examples import examples
from tests.kit.gates import kind
from tests.kit.world import Later, Refusal, ScriptedServer, World, later

pytestmark = pytest.mark.virtual_time

OK: dict[str, Any] = {"content": [{"type": "text", "text": "ok"}]}
SCHEMA = {"type": "object", "properties": {"org": {"type": "string"}}}
FORM = {"mode": "form", "message": "Which?", "requestedSchema": SCHEMA}
PAGE = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "theirs"}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}
YES = {"action": "accept", "content": {"org": "acme"}}
NO = {"action": "decline"}
FORMS: dict[str, Any] = {"elicitation": {}}
ALL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
CALL: dict[str, Any] = {"name": "a__x", "arguments": {"k": 1, "deep": {"b": [1, 2], "a": "\u00e9"}}}
DESK = {"authorization": "Bearer desk-0123456789abcdef"}
LAPTOP = {"authorization": "Bearer laptop-0123456789abcdef"}
TOKENS = Listen(auth=Auth({name: Secret(f"{name}-0123456789abcdef") for name in ("desk", "laptop")}))
INVALID = -32602
KEY = bytes(range(KEY_BYTES))


def retry(params: Mapping[str, Any], result: Mapping[str, Any], answer: object = YES, **more: Any) -> dict[str, Any]:
    """The same request once more, with one answer to all that was asked."""
    answers = dict.fromkeys(result.get("inputRequests", {}), answer)
    return {**params, "inputResponses": {**answers, **more}, "requestState": result["requestState"]}


def inputs(state: str | None = "theirs", **asked: tuple[str, object]) -> dict[str, Any]:
    """What a stateless server answers when it wants to know something."""
    requests = {key: {"method": method, "params": params} for key, (method, params) in asked.items()}
    result: dict[str, Any] = {"resultType": "input_required", "inputRequests": requests}
    return result if state is None else {**result, "requestState": state}


def asked_of(result: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(each["method"], each.get("params", {})) for each in result["inputRequests"].values()]


async def ends(call: Response, method: str = "tools/call") -> dict[str, Any]:
    with trio.fail_after(30):
        await call.complete.wait()
    return call.outcome(method)


class Parked:
    """A call that a server with a handshake works on, and in whose middle it has asked for a form."""

    def __init__(
        self,
        world: World,
        server: ScriptedServer,
        connection: Connection,
        nursery: trio.Nursery,
        asked: dict[str, Any],
        question: Later,
        result: dict[str, Any],
    ) -> None:
        self.world = world
        self.server = server
        self.connection = connection
        self.nursery = nursery
        self.asked = asked
        self.question = question
        self.result = result

    @property
    def state(self) -> str:
        return str(self.result["requestState"])

    async def refused(self, params: Mapping[str, Any], code: int = INVALID, **more: Any) -> None:
        """This request is refused, and no server hears of it."""
        more = {"capabilities": FORMS, **more}
        method = more.pop("method", "tools/call")
        with pytest.raises(Refusal) as refusal:
            await self.connection.another().result(method, params, **more)
        assert refusal.value.code == code
        await wait_all_tasks_blocked()
        self.server.hears_nothing_more()
        assert not self.question.done


@asynccontextmanager
async def parked(
    *others: ScriptedServer, listen: Listen | None = None, headers: Mapping[str, str] | None = None, **spec: Any
) -> AsyncIterator[Parked]:
    server = ScriptedServer("a", tools=["x", "y"], prompts=["p"], resources=["x://y"], **spec)
    async with trio.open_nursery() as nursery, open_http_app(server, *others, listen=listen) as (world, connection):
        connection.headers.update(headers or {})
        call = connection.start("tools/call", CALL, id="first", capabilities=FORMS)
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", FORM)
        result = await ends(call)
        yield Parked(world, server, connection, nursery, asked, question, result)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def call() -> AsyncIterator[Parked]:
    async with parked() as opened:
        yield opened


# What a result carries


REQUESTS: dict[str, dict[str, Any]] = {
    "server/discover": {},
    "tools/list": {},
    "resources/list": {},
    "resources/templates/list": {},
    "prompts/list": {},
    "tools/call": {"name": "a__x"},
    "prompts/get": {"name": "a__p"},
    "resources/read": {"uri": "a+x://y"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "a__p"}, "argument": {"name": "n", "value": ""}},
}


def everything(revision: str = "2025-11-25") -> ScriptedServer:
    """A server that answers all of them."""
    complete: dict[str, Any] = {"resultType": "complete"} if revision == LATEST else {}
    hints: dict[str, Any] = {"ttlMs": 5000, "cacheScope": "public"} if revision == LATEST else {}

    async def called(_: dict[str, Any]) -> object:
        return {**OK, **complete, "_meta": {"vendor/key": 1, f"{IO}serverInfo": {"name": "a", "version": "9"}}}

    async def got(_: dict[str, Any]) -> object:
        return {"messages": [], **complete}

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}], **complete, **hints}

    async def completed(_: dict[str, Any]) -> object:
        return {"completion": {"values": ["v"]}, **complete}

    return ScriptedServer(
        "a",
        tools=["x"],
        prompts=["p"],
        resources=["x://y"],
        templates=["x://{z}"],
        revision=revision,
        answers={
            "tools/call": called,
            "prompts/get": got,
            "resources/read": read,
            "completion/complete": completed,
        },
    )


@pytest.mark.few(7)
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", LATEST])
@pytest.mark.parametrize("method", REQUESTS)
async def test_every_result_says_what_it_is_and_who_gives_it(method: str, revision: str) -> None:
    """The cacheable ones, and no others, say for how long and for whom (rules 51, 95)."""
    async with open_http_app(everything(revision)) as (_, connection):
        result = await connection.result(method, REQUESTS[method])
        assert result["resultType"] == "complete"
        server = result["_meta"][f"{IO}serverInfo"]
        assert (server["name"], server["version"]) == ("colonnade", VERSION)
        assert {"ttlMs", "cacheScope"} & set(result) == (
            {"ttlMs", "cacheScope"} if method in CACHEABLE_METHODS else set()
        )
        if method == "tools/call":
            assert result["_meta"]["vendor/key"] == 1
        if revision != LATEST and method in CACHEABLE_METHODS:
            assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
        if revision == LATEST and method == "resources/read":
            assert (result["ttlMs"], result["cacheScope"]) == (5000, "public")


def test_six_methods_are_cacheable() -> None:
    assert len(CACHEABLE_METHODS) == 6
    assert set(REQUESTS) <= SUPPORTED_METHODS


async def test_discovery_waits_for_nobody() -> None:
    """As little as it may, while a list waits for servers that have only begun (rule 14)."""
    async with open_http_app() as (world, connection):
        world.upstreams.by_id["a"].main.life.listed = trio.Event()
        listing = connection.another().start("tools/list")
        await wait_all_tasks_blocked()
        assert (await connection.result("server/discover"))["supportedVersions"][0] == LATEST
        assert not listing.started.is_set()


async def test_what_is_discovered_is_served() -> None:
    """And what is not served is not discovered (rule 14)."""
    async with open_http_app(everything()) as (_, connection):
        found = await connection.result("server/discover")
        capabilities = found["capabilities"]
        assert capabilities["tools"] == capabilities["prompts"] == {"listChanged": True}
        assert capabilities["resources"] == {"listChanged": True, "subscribe": True}
        assert {"logging", "completions"} < set(capabilities)
        assert "tasks" not in capabilities
        for method in ("tools/list", "prompts/list", "resources/list", "completion/complete"):
            assert await connection.result(method, REQUESTS[method])


async def test_lists_are_the_same_every_time_and_for_everybody() -> None:
    """(rules 56, 64)"""
    servers = [ScriptedServer(id, tools=["z", "a", "m"]) for id in ("second", "first")]
    async with open_http_app(*servers) as (_, connection):
        lists = [await each.result("tools/list") for each in (connection, connection.another(), connection)]
        assert lists[0] == lists[1] == lists[2]
        names = [f"{id}__{name}" for id in ("second", "first") for name in ("z", "a", "m")]
        assert [each["name"] for each in lists[0]["tools"]] == names
        own = await connection.result("tools/list", path="/mcp/first")
        assert [each["name"] for each in own["tools"]] == ["z", "a", "m"]


# Logs and progress


async def logs(server: ScriptedServer, *levels: str) -> None:
    for level in levels:
        await server.notifies("notifications/message", {"level": level, "logger": "l", "data": "d"})


async def test_logs_come_to_whoever_asks_for_them_and_from_that_level_on() -> None:
    """(rules 83, 84)"""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, meta={f"{IO}logLevel": "warning"})
        asked = await server.hears("tools/call")
        assert "logging/setLevel" in server.asked
        await logs(server, "info", "warning", "error")
        assert [each["params"]["level"] for each in await call.wait_messages(2)] == ["warning", "error"]
        assert call.messages()[0]["params"]["logger"] == "a/l"
        server.says(asked["id"], OK)
        await ends(call)
        assert len(call.messages()) == 3


async def test_a_person_is_told_what_the_client_calls_itself() -> None:
    server = ScriptedServer("a", tools=["x"], trust=Trust.UNTRUSTED)
    meta = {f"{IO}clientInfo": {"name": "other", "version": "2"}}
    async with open_http_app(server) as (world, connection):
        await world.settled()
        world.approves()
        with world.auto_answering() as asked:
            call = connection.start("tools/call", CALL, meta=meta)
            server.says((await server.hears("tools/call"))["id"], OK)
            await ends(call)
    assert [each.context.says for each in asked] == ["other 2"]


async def test_without_asking_there_are_no_logs() -> None:
    """Not even when another request asked, or did before (rule 83)."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_http_app(server) as (_, connection):
        loud = connection.another().start("tools/call", CALL, meta={f"{IO}logLevel": "debug"})
        first = await server.hears("tools/call")
        await logs(server, "error")
        await loud.wait_messages(1)
        server.says(first["id"], OK)
        await ends(loud)
        call = connection.start("tools/call", CALL)
        asked = await server.hears("tools/call")
        await logs(server, "emergency")
        server.says(asked["id"], OK)
        await ends(call)
        assert not call.streams


async def test_logs_that_may_belong_to_either_of_two_requests_go_to_neither() -> None:
    """Only on its own request's stream may a log message come (rule 83)."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_http_app(server) as (_, connection):
        calls = []
        for _ in range(2):
            calls.append(connection.another().start("tools/call", CALL, meta={f"{IO}logLevel": "debug"}))
            await server.hears("tools/call")
        await logs(server, "error")
        await wait_all_tasks_blocked()
        assert [call.started.is_set() for call in calls] == [False, False]


async def test_logs_go_to_the_request_that_they_came_with() -> None:
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_http_app(server) as (_, connection):
        calls, asked = [], []
        for _ in range(2):
            calls.append(connection.another().start("tools/call", CALL, meta={f"{IO}logLevel": "debug"}))
            asked.append(await server.hears("tools/call"))
        notice = {"level": "error", "data": "d"}
        server.sends(Notification("notifications/message", Raw(json.dumps(notice).encode())), about=asked[0]["id"])
        await calls[0].wait_messages(1)
        assert not calls[1].started.is_set()


async def test_a_stateless_server_is_told_of_the_level_with_the_request() -> None:
    """(rule 82)"""
    server = ScriptedServer("a", tools=["x"], revision=LATEST)
    async with open_http_app(server) as (_, connection):
        for level in ("debug", None):
            connection.another().start("tools/call", CALL, meta={f"{IO}logLevel": level})
            asked = await server.hears("tools/call")
            assert asked["_meta"].get(f"{IO}logLevel") == level


# Questions of servers that have a handshake


async def test_a_question_ends_the_request_and_the_next_one_brings_the_answer(call: Parked) -> None:
    """The server works on one call all the while (rules 73, 108)."""
    result = call.result
    assert result["resultType"] == "input_required"
    assert result["_meta"][f"{IO}serverInfo"]["name"] == "colonnade"
    assert {"ttlMs", "cacheScope"}.isdisjoint(result)
    ((method, params),) = asked_of(result)
    assert method == "elicitation/create"
    assert params == {**FORM, "message": "[a] Which?"}
    again = call.connection.start("tools/call", retry(CALL, result), id="second", capabilities=FORMS)
    assert await call.question.comes() == YES
    call.server.says(call.asked["id"], OK)
    assert (await ends(again))["content"] == OK["content"]
    assert again.messages()[-1]["id"] == "second"
    call.server.hears_nothing_more()


async def test_a_server_may_ask_several_things_and_then_more() -> None:
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        first = connection.start("tools/call", CALL, capabilities=ALL)
        asked = await server.hears("tools/call")
        questions = [
            later(nursery, server.asks, "elicitation/create", FORM),
            later(nursery, server.asks, "sampling/createMessage", SAMPLE),
            later(nursery, server.asks, "roots/list"),
        ]
        result = await ends(first)
        keys = {each["method"]: key for key, each in result["inputRequests"].items()}
        assert set(keys) == {"elicitation/create", "sampling/createMessage", "roots/list"}
        assert "params" not in result["inputRequests"][keys["roots/list"]]
        text = {"type": "text", "text": "hello"}
        sampled = {"role": "assistant", "content": text, "model": "m"}
        roots = {"roots": [{"uri": "file:///x"}]}
        answers = {
            keys["elicitation/create"]: NO,
            keys["sampling/createMessage"]: sampled,
            keys["roots/list"]: roots,
            "unknown": {"action": "accept"},
        }
        params = {**CALL, "inputResponses": answers, "requestState": result["requestState"]}
        second = connection.start("tools/call", params, capabilities=ALL)
        assert [await each.comes() for each in questions] == [NO, sampled, roots]
        more = later(nursery, server.asks, "elicitation/create", {**FORM, "message": "And?"})
        next_result = await ends(second)
        assert set(next_result["inputRequests"]).isdisjoint(result["inputRequests"])
        assert next_result["requestState"] != result["requestState"]
        third = connection.start("tools/call", retry(CALL, next_result, NO), capabilities=ALL)
        assert await more.comes() == NO
        server.says(asked["id"], OK)
        assert (await ends(third))["content"] == OK["content"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("method", "params"), [("prompts/get", {"name": "a__p"}), ("resources/read", {"uri": "a+x://y"})]
)
async def test_prompts_and_resources_may_ask_too(method: str, params: dict[str, Any]) -> None:
    """A result that a question came before is nobody else's, and stale (rule 96)."""
    server = ScriptedServer("a", prompts=["p"], resources=["x://y"])
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        first = connection.start(method, params, capabilities=FORMS)
        asked = await server.hears(method)
        question = later(nursery, server.asks, "elicitation/create", FORM)
        result = await ends(first, method)
        second = connection.start(method, retry(params, result), capabilities=FORMS)
        assert await question.comes() == YES
        content = {"messages": []} if method == "prompts/get" else {"contents": [{"uri": "x://y", "text": "t"}]}
        server.says(asked["id"], content)
        final = await ends(second, method)
        if method == "resources/read":
            assert final["contents"][0]["uri"] == "a+x://y"
            assert (final["ttlMs"], final["cacheScope"]) == (0, "private")
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "changed",
    [
        {"name": "a__y"},
        {"name": "b__x"},
        {"arguments": {"k": 2, "deep": {"b": [1, 2], "a": "\u00e9"}}},
        {"arguments": {"k": 1, "deep": {"b": [2, 1], "a": "\u00e9"}}},
        {"arguments": {"k": 1, "deep": {"b": [1, 2], "a": "e"}}},
        {"arguments": {"k": "1", "deep": {"b": [1, 2], "a": "\u00e9"}}},
        {"arguments": {"k": True, "deep": {"b": [1, 2], "a": "\u00e9"}}},
        {"arguments": {"k": 1, "deep": {"b": [1, 2], "a": "\u00e9"}, "more": None}},
        {"arguments": {}},
    ],
)
async def test_a_state_is_good_for_the_same_request_alone(changed: dict[str, Any]) -> None:
    """(rules 80, 108)"""
    async with parked(ScriptedServer("b", tools=["x"])) as call:
        await call.refused({**retry(CALL, call.result), **changed})


async def test_how_the_same_request_is_written_does_not_matter(call: Parked) -> None:
    arguments = {"deep": {"a": "\u00e9", "b": [1, 2]}, "k": 1}
    params = {**retry(CALL, call.result, unknown={"a": 1}), "more": 1, "task": None}
    turned = {name: params[name] for name in reversed(params)} | {"arguments": arguments}
    meta = {"progressToken": 7, "vendor/key": {"a": 1}, f"{IO}clientInfo": {"name": "other", "version": "2"}}
    again = call.connection.start("tools/call", turned, capabilities=FORMS, meta=meta)
    assert await call.question.comes() == YES
    call.server.says(call.asked["id"], OK)
    assert (await ends(again))["content"] == OK["content"]


async def test_a_state_is_good_for_one_method_alone() -> None:
    server = ScriptedServer("a", tools=["x"], prompts=["x"])
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        params = {"name": "a__x"}
        first = connection.start("prompts/get", params, capabilities=FORMS)
        await server.hears("prompts/get")
        later(nursery, server.asks, "elicitation/create", FORM)
        result = await ends(first, "prompts/get")
        with pytest.raises(Refusal) as refusal:
            await connection.result("tools/call", retry(params, result), capabilities=FORMS)
        assert refusal.value.code == INVALID
        server.hears_nothing_more()
        nursery.cancel_scope.cancel()


async def test_a_state_is_good_for_whoever_got_it() -> None:
    """(rules 30, 80)"""
    async with parked(listen=TOKENS, headers=DESK) as call:
        await call.refused(retry(CALL, call.result), headers=LAPTOP)
        again = call.connection.start("tools/call", retry(CALL, call.result), capabilities=FORMS)
        assert await call.question.comes() == YES
        call.server.says(call.asked["id"], OK)
        await ends(again)


async def test_a_state_is_good_at_its_endpoint_alone() -> None:
    server = ScriptedServer("a", tools=["a__x"])  # called the same at both, almost
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        first = connection.start("tools/call", {"name": "a__x"}, path="/mcp/a", capabilities=FORMS)
        await server.hears("tools/call")
        later(nursery, server.asks, "elicitation/create", FORM)
        result = await ends(first)
        for path in ("/mcp",):
            with pytest.raises(Refusal) as refusal:
                await connection.result("tools/call", retry({"name": "a__x"}, result), path=path, capabilities=FORMS)
            assert refusal.value.code == INVALID
        server.hears_nothing_more()
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("state", ["", "x", "c1.", "c1.AAAA", "c1." + "A" * 100, "\u00e9", "x" * 100_000])
async def test_a_state_that_is_none_of_ours_opens_nothing(call: Parked, state: str) -> None:
    await call.refused({**retry(CALL, call.result), "requestState": state})


@pytest.mark.parametrize("wrong", [1, {}, []])
async def test_a_state_is_text(call: Parked, wrong: object) -> None:
    await call.refused({**retry(CALL, call.result), "requestState": wrong})


@pytest.mark.few(2)
@pytest.mark.parametrize("wrong", [1, "x", [], {"q": 1}, {"q": None}])
async def test_answers_are_objects(call: Parked, wrong: object) -> None:
    await call.refused({**retry(CALL, call.result), "inputResponses": wrong})


async def test_a_member_of_a_round_that_is_null_is_missing() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        params = {**CALL, "inputResponses": None, "requestState": None}
        call = connection.start("tools/call", params, meta={f"{IO}logLevel": None})
        asked = await server.hears("tools/call")
        assert asked.keys() == {"name", "arguments", "_meta", "id"}
        server.says(asked["id"], OK)
        assert (await ends(call))["content"] == OK["content"]


async def test_without_arguments_and_with_none_the_request_is_the_same() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        first = connection.start("tools/call", {"name": "a__x"}, capabilities=FORMS)
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", FORM)
        params = {**retry({"name": "a__x"}, await ends(first)), "arguments": {}}
        again = connection.start("tools/call", params, capabilities=FORMS)
        assert await question.comes() == YES
        server.says(asked["id"], OK)
        assert (await ends(again))["content"] == OK["content"]


@given(at=st.integers(0, 2**16), bit=st.integers(0, 7))
@settings(max_examples=examples(30))
def test_a_flipped_bit_of_a_state_opens_nothing(at: int, bit: int) -> None:
    """(rule 80)"""

    async def try_it() -> None:
        async with parked() as call:
            state = bytearray(call.state.encode())
            state[at % len(state)] ^= 1 << bit
            await call.refused({**retry(CALL, call.result), "requestState": state.decode("latin-1")})

    trio.run(try_it, clock=MockClock(autojump_threshold=0))


async def test_a_cursor_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.router.lists.PAGE_SIZE", 2)
    many = ScriptedServer("b", tools=["x", "y", "z"])
    async with parked(many) as call:
        cursor = (await call.connection.result("tools/list"))["nextCursor"]
        await call.refused({**retry(CALL, call.result), "requestState": cursor})
        with pytest.raises(Refusal):
            await call.connection.result("tools/list", {"cursor": call.state})


async def test_a_state_that_is_too_old_opens_nothing() -> None:
    """By then the server has been told that the form was closed, and that its call is off (rules 108, 109)."""
    async with parked(timeout=7200) as call:
        await trio.sleep(PARKED_LIFETIME - 9)
        assert await call.question.comes() == {"action": "cancel"}
        call.server.hears_nothing_more()
        await trio.sleep(10)
        assert (await call.server.hears("notifications/cancelled"))["requestId"] == call.asked["id"]
        with pytest.raises(Refusal) as refusal:
            await call.connection.result("tools/call", retry(CALL, call.result), capabilities=FORMS)
        assert (refusal.value.code, "expired" in refusal.value.message) == (INVALID, True)
        call.server.hears_nothing_more()


async def test_a_missing_answer_is_asked_for_again(call: Parked) -> None:
    """Under the same key."""
    result = call.result
    for answers in ({}, {"unknown": YES}):
        params = {**CALL, "inputResponses": answers, "requestState": result["requestState"]}
        result = await call.connection.result("tools/call", params, capabilities=FORMS)
        assert result["inputRequests"] == call.result["inputRequests"]
        assert not call.question.done
    again = call.connection.start("tools/call", retry(CALL, result), capabilities=FORMS)
    assert await call.question.comes() == YES
    call.server.says(call.asked["id"], OK)
    await ends(again)


async def test_a_request_that_is_repeated_runs_nothing_again() -> None:
    """Its outcome is had again for a while, and then it is over (rules 38, 108)."""
    async with parked(timeout=600) as call:
        params = retry(CALL, call.result)
        older = call.connection.another().start("tools/call", params, capabilities=FORMS)
        assert await call.question.comes() == YES
        newer = call.connection.another().start("tools/call", params, capabilities=FORMS)
        with pytest.raises(Refusal) as refusal:
            await ends(older)
        assert refusal.value.code == INVALID
        call.server.says(call.asked["id"], OK)
        result = await ends(newer)
        for _ in range(2):
            await trio.sleep(REPLAY_LIFETIME / 3)
            assert await call.connection.result("tools/call", params, capabilities=FORMS) == result
        await trio.sleep(REPLAY_LIFETIME)
        with pytest.raises(Refusal) as late:
            await call.connection.result("tools/call", params, capabilities=FORMS)
        assert late.value.code == INVALID
        call.server.hears_nothing_more()


async def test_the_client_of_a_retry_that_leaves_cancels_the_call(call: Parked) -> None:
    """(rules 24, 50)"""
    leaving = call.connection.another()
    again = leaving.start("tools/call", retry(CALL, call.result), capabilities=FORMS)
    assert await call.question.comes() == YES
    leaving.leaves.set()
    assert (await call.server.hears("notifications/cancelled"))["requestId"] == call.asked["id"]
    await wait_all_tasks_blocked()
    assert again.after_disconnect == b""
    with pytest.raises(Refusal):
        await call.connection.result("tools/call", retry(CALL, call.result), capabilities=FORMS)


async def test_the_client_of_a_finished_round_that_leaves_cancels_nothing(call: Parked) -> None:
    """Between two requests there is nobody who could leave."""
    call.connection.leaves.set()
    other = call.connection.another()
    again = other.start("tools/call", retry(CALL, call.result), capabilities=FORMS)
    assert await call.question.comes() == YES
    call.server.says(call.asked["id"], OK)
    await ends(again)


async def test_a_server_that_dies_meanwhile_fails_the_call(call: Parked) -> None:
    """Once, and for the retry (rule 107)."""
    call.server.dies()
    await trio.sleep(1)
    result = await call.connection.result("tools/call", retry(CALL, call.result), capabilities=FORMS)
    assert result["isError"]
    assert call.server.asked.count("tools/call") == 1


async def test_progress_between_two_requests_is_lost_and_then_goes_under_the_new_token() -> None:
    """(rule 43)"""
    server = ScriptedServer("a", tools=["x"])
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        first = connection.start("tools/call", CALL, capabilities=FORMS, meta={"progressToken": "one"})
        asked = await server.hears("tools/call")
        report = partial(server.notifies, "notifications/progress")
        token = {"progressToken": asked["_meta"]["progressToken"]}
        await report({**token, "progress": 1})
        question = later(nursery, server.asks, "elicitation/create", FORM)
        result = await ends(first)
        assert [each["params"]["progressToken"] for each in first.messages()[:-1]] == ["one"]
        await report({**token, "progress": 2})
        second = connection.start("tools/call", retry(CALL, result), capabilities=FORMS, meta={"progressToken": "two"})
        assert await question.comes() == YES
        await report({**token, "progress": 3})
        server.says(asked["id"], OK)
        await ends(second)
        told = [each["params"] for each in second.messages()[:-1]]
        assert [(each["progressToken"], each["progress"]) for each in told] == [("two", 3)]
        nursery.cancel_scope.cancel()


async def test_a_question_may_come_after_progress() -> None:
    """Then the questions are the last message of a stream."""
    server = ScriptedServer("a", tools=["x"])
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=FORMS, meta={"progressToken": 1})
        asked = await server.hears("tools/call")
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        await call.wait_messages(1)
        later(nursery, server.asks, "elicitation/create", FORM)
        result = await ends(call)
        assert (result["resultType"], len(call.messages())) == ("input_required", 2)
        nursery.cancel_scope.cancel()


# What may be asked


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("method", "params", "declared", "lacks"),
    [
        ("elicitation/create", FORM, {}, "elicitation.form"),
        ("elicitation/create", FORM, {"sampling": {}, "roots": {}}, "elicitation.form"),
        ("elicitation/create", FORM, {"elicitation": {"url": {}}}, "elicitation.form"),
        ("elicitation/create", PAGE, {"elicitation": {}}, "elicitation.url"),
        ("sampling/createMessage", SAMPLE, {"elicitation": {}}, "sampling"),
        ("sampling/createMessage", {**SAMPLE, "tools": []}, {"sampling": {}}, "sampling.tools"),
    ],
)
@pytest.mark.parametrize("outcome", ["error", "isError", "result"])
async def test_nothing_is_asked_that_the_request_does_not_declare(
    method: str, params: Any, declared: dict[str, Any], lacks: str, outcome: str
) -> None:
    """The server's own result or failure stays; a failure also says what the request did not declare (rule 74)."""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=declared)
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, method, params)
        with pytest.raises(Refusal) as refused:
            await question.comes()
        assert refused.value.code in (-32601, -32602)
        if outcome == "error":
            server.refuses(asked["id"], -32603, "could not ask")
        else:
            server.says(asked["id"], {**OK, "isError": outcome == "isError"})
        said = f"a asked for what this request does not declare: {lacks}"
        if outcome == "error":
            with pytest.raises(Refusal) as refusal:
                await ends(call)
            assert (call.status, refusal.value.code) == (200, -32603)
            assert refusal.value.message == f"could not ask ({said})"
        else:
            more = [{"type": "text", "text": said}] if outcome == "isError" else []
            assert (await ends(call))["content"] == [*OK["content"], *more]
        nursery.cancel_scope.cancel()


async def test_a_server_that_passes_the_refusal_on_fails_for_want_of_a_capability() -> None:
    """Nothing of the server's own is replaced: the error is the one that it got (rule 74)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities={})
        asked = await server.hears("tools/call")
        with pytest.raises(Refusal) as refused:
            await server.asks("sampling/createMessage", SAMPLE)
        server.refuses(asked["id"], refused.value.code, f"it failed: {refused.value.message}")
        with pytest.raises(Refusal) as failed:
            await ends(call)
        assert (call.status, failed.value.code) == (400, -32021)
        assert failed.value.data == {"requiredCapabilities": {"sampling": {}}}


@pytest.mark.parametrize("failed", [False, True])
async def test_roots_that_the_request_does_not_declare_are_none_and_its_failure_is_its_own(failed: bool) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities={})
        asked = await server.hears("tools/call")
        assert await server.asks("roots/list") == {"roots": []}
        if failed:
            server.refuses(asked["id"], -32000, "no browser")
            with pytest.raises(Refusal) as refusal:
                await ends(call)
            assert (call.status, refusal.value.code, refusal.value.message) == (200, -32000, "no browser")
        else:
            server.says(asked["id"], {**OK, "isError": True})
            assert (await ends(call))["content"] == OK["content"]


async def test_a_retry_is_asked_nothing_that_it_does_not_declare(call: Parked) -> None:
    """Each request speaks for itself (rules 26, 74)."""
    lesser = call.connection.start("tools/call", retry(CALL, call.result), capabilities={"roots": {}})
    assert await call.question.comes() == YES
    more = later(call.nursery, call.server.asks, "elicitation/create", FORM)
    with pytest.raises(Refusal) as refusal:
        await ends(lesser)
    assert (lesser.status, refusal.value.code) == (400, -32021)
    assert refusal.value.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert not more.done
    result = await call.connection.result("tools/call", retry(CALL, call.result), capabilities=FORMS)
    again = call.connection.start("tools/call", retry(CALL, result, NO), capabilities=FORMS)
    assert await more.comes() == NO
    call.server.says(call.asked["id"], OK)
    await ends(again)


async def test_a_page_is_asked_for_without_an_id() -> None:
    """And nobody hears that it is done (rule 76)."""
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=ALL)
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", PAGE)
        result = await ends(call)
        ((_, params),) = asked_of(result)
        assert params == {"mode": "url", "message": "[a] Sign in", "url": PAGE["url"]}
        again = connection.start("tools/call", retry(CALL, result, {"action": "accept"}), capabilities=ALL)
        assert await question.comes() == {"action": "accept"}
        await server.notifies("notifications/elicitation/complete", {"elicitationId": "theirs"})
        server.says(asked["id"], OK)
        await ends(again)
        assert not again.streams
        nursery.cancel_scope.cancel()


PAGES = {"elicitations": [PAGE, {**PAGE, "elicitationId": "2", "url": "https://example.com/2"}]}


async def test_pages_that_a_server_wants_visited_first_are_questions() -> None:
    """And the server is asked again once the client comes back."""

    async def visit_first(_: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32042, "visit", Raw(json.dumps(PAGES).encode())))

    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED, answers={"tools/call": visit_first})
    async with open_http_app(server) as (_, connection):
        result = await connection.result("tools/call", CALL, capabilities=ALL)
        assert [params["url"] for _, params in asked_of(result)] == [PAGE["url"], "https://example.com/2"]
        assert not any("elicitationId" in params for _, params in asked_of(result))
        again = await connection.result("tools/call", retry(CALL, result, {"action": "accept"}), capabilities=ALL)
        assert again["resultType"] == "input_required"

        async def visited(params: dict[str, Any]) -> object:
            assert {"requestState", "inputResponses"}.isdisjoint(params)
            return OK

        server.answers["tools/call"] = visited
        final = await connection.result("tools/call", retry(CALL, again, {"action": "accept"}), capabilities=ALL)
        assert final["content"] == OK["content"]
        assert server.asked.count("tools/call") == 3


class Visiting:
    """A server all of whose answers are at first that pages must be visited, and a client of it that was told so."""

    def __init__(self, connection: Connection, server: ScriptedServer, method: str, params: dict[str, Any]) -> None:
        self.connection = connection
        self.server = server
        self.method = method
        self.params = params
        self.result: dict[str, Any] = {}
        self.open = True
        """Whether pages are wanted still."""

    @property
    def calls(self) -> int:
        return self.server.asked.count(self.method)

    @property
    def heard(self) -> list[str]:
        """The requests to the server, but for whether it is still there, and for lists that lack a name."""
        return [method for method in self.server.asked if method != "ping" and not method.endswith("/list")]

    async def ask(self, params: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        more = {"capabilities": ALL, **more}
        return await self.connection.another().result(self.method, params, **more)

    async def refused(self, params: Mapping[str, Any], code: int = INVALID, **more: Any) -> None:
        """This is refused, and the server hears nothing of it."""
        before = self.heard
        with pytest.raises(Refusal) as refusal:
            await self.ask(params, **more)
        assert refusal.value.code == code
        assert self.heard == before

    def retry(self, *actions: str | None) -> dict[str, Any]:
        """The request once more, with these answers to the pages in turn; None leaves one out."""
        keys = self.result["inputRequests"]
        answers = {key: {"action": action} for key, action in zip(keys, actions, strict=True) if action is not None}
        return {**self.params, "inputResponses": answers, "requestState": self.result["requestState"]}


GET: tuple[str, dict[str, Any]] = ("prompts/get", {"name": "a__p"})


@asynccontextmanager
async def visiting(
    method: str = "tools/call", params: dict[str, Any] = CALL, listen: Listen | None = None, **spec: Any
) -> AsyncIterator[Visiting]:
    async def answer(_: dict[str, Any]) -> object:
        if at.open:
            raise PeerError(ErrorBody(-32042, "visit", Raw(json.dumps(PAGES).encode())))
        return OK if method == "tools/call" else {"messages": []}

    answers = {"tools/call": answer, "prompts/get": answer}
    server = ScriptedServer("a", tools=["x", "y"], prompts=["p"], trust=Trust.TRUSTED, answers=answers, **spec)
    async with open_http_app(server, listen=listen) as (_, connection):
        connection.headers.update(DESK if listen is not None else {})
        at = Visiting(connection, server, method, params)
        at.result = await at.ask(params)
        yield at


@pytest.mark.parametrize(("method", "params"), [("tools/call", CALL), GET])
async def test_a_state_sends_a_call_once_more_and_never_again(method: str, params: dict[str, Any]) -> None:
    """Whatever comes with it (rules 80, 108)."""
    async with visiting(method, params) as at:
        at.open = False
        assert (await at.ask(at.retry("accept", "accept")))["resultType"] == "complete"
        assert at.calls == 2
        for answers in (("accept", "accept"), ("decline", "accept"), (None, None)):
            await at.refused(at.retry(*answers))
        await trio.sleep(PARKED_LIFETIME + 1)
        await at.refused(at.retry("accept", "accept"))


async def test_of_two_at_once_one_is_sent() -> None:
    async with visiting() as at:
        at.open = False
        calls = [at.connection.another().start("tools/call", at.retry("accept", "accept"), capabilities=ALL)]
        calls.append(at.connection.another().start("tools/call", at.retry("accept", "accept"), capabilities=ALL))
        for call in calls:
            await call.complete.wait()
        assert sorted("error" in call.messages()[-1] for call in calls) == [False, True]
        assert at.calls == 2


@pytest.mark.parametrize("actions", [("decline", "accept"), ("accept", "cancel"), (None, "decline"), ("x", "accept")])
async def test_pages_that_were_not_visited_are_the_end_of_the_call(actions: tuple[str | None, ...]) -> None:
    """Its server hears nothing of it, also not later."""
    async with visiting(capabilities={"tools": {}, "prompts": {}, "logging": {}}) as at:
        before = at.heard
        result = await at.ask(at.retry(*actions), meta={f"{IO}logLevel": "debug"})
        assert result["isError"] is True
        assert "not visited" in result["content"][0]["text"]
        assert at.heard == before
        await at.refused(at.retry("accept", "accept"))


async def test_of_anything_but_a_tool_that_is_an_error() -> None:
    async with visiting(*GET) as at:
        await at.refused(at.retry("accept", "decline"), 403)


@pytest.mark.parametrize("left", ["one", "all", "member"])
async def test_pages_that_nothing_is_said_of_are_asked_for_again(left: str) -> None:
    """The same ones, and the state that came first is good for nothing more (rule 108)."""
    async with visiting() as at:
        at.open = False
        first = at.result
        params = at.retry("accept" if left == "one" else None, None)
        if left == "member":
            del params["inputResponses"]
        again = await at.ask(params)
        assert again["resultType"] == "input_required"
        assert again["inputRequests"] == first["inputRequests"]
        assert again["requestState"] != first["requestState"]
        await at.refused(at.retry("accept", "accept"))
        assert at.calls == 1
        at.result = again
        assert (await at.ask(at.retry("accept", "accept")))["content"] == OK["content"]
        assert at.calls == 2


async def test_pages_are_not_asked_for_again_of_a_client_that_shows_none() -> None:
    """(rule 74)"""
    async with visiting() as at:
        await at.refused(at.retry("accept", None), -32021, capabilities=FORMS)


@pytest.mark.parametrize("wrong", ["token", "endpoint", "name", "state", "expired"])
async def test_what_sends_a_call_once_more_is_as_well_kept(wrong: str) -> None:
    """And no longer than a call waits (rule 80)."""
    async with visiting(listen=TOKENS) as at:
        params = at.retry("accept", "accept")
        more: dict[str, Any] = {}
        if wrong == "token":
            more["headers"] = LAPTOP
        elif wrong == "endpoint":
            more["path"] = "/mcp/a"
        elif wrong == "name":
            params["name"] = "a__y"
        elif wrong == "state":
            params["requestState"] += "A"
        else:
            await trio.sleep(PARKED_LIFETIME)
        await at.refused(params, **more)


async def test_only_so_many_used_states_are_remembered_and_none_is_forgotten_before_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(rule 5)"""
    monkeypatch.setattr(stateless, "MAX_SPENT_PER_OWNER", 1)
    async with visiting() as at:
        first = at.retry("accept", "accept")
        at.result = await at.ask(first)
        assert at.result["resultType"] == "input_required"
        await at.refused(at.retry("accept", "accept"), 429)
        await at.refused(first)
        await trio.sleep(PARKED_LIFETIME - 1)
        at.result = await at.ask(CALL)
        at.open = False
        await trio.sleep(1)
        assert (await at.ask(at.retry("accept", "accept")))["content"] == OK["content"]


async def test_the_state_of_a_stateless_server_can_be_brought_back_as_often_as_it_likes() -> None:
    """What it means is its own affair (rule 79)."""
    results = [inputs(k=("elicitation/create", FORM)), *[{"resultType": "complete", **OK}] * 2]

    async def answer(_: dict[str, Any]) -> object:
        return results.pop(0)

    server = ScriptedServer("a", tools=["x"], revision=LATEST, answers={"tools/call": answer})
    async with open_http_app(server) as (_, connection):
        result = await connection.result("tools/call", CALL, capabilities=FORMS)
        for _ in range(2):
            again = await connection.result("tools/call", retry(CALL, result, NO), capabilities=FORMS)
            assert again["content"] == OK["content"]


@pytest.mark.parametrize("declared", [{}, {"elicitation": {}}])
async def test_pages_for_a_client_that_shows_none_are_a_missing_capability(declared: dict[str, Any]) -> None:
    async def visit_first(_: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32042, "visit", Raw(json.dumps(PAGES).encode())))

    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED, answers={"tools/call": visit_first})
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=declared)
        with pytest.raises(Refusal) as refusal:
            await ends(call)
        assert (call.status, refusal.value.code) == (400, -32021)
        assert refusal.value.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
async def test_what_policy_forbids_is_no_missing_capability(trust: Trust) -> None:
    """Nor is what a person would have to allow. The client would declare it for ever, and in vain."""
    server = ScriptedServer("a", tools=["x"], trust=trust)
    async with trio.open_nursery() as nursery, open_http_app(server) as (world, connection):
        await world.settled()
        world.approves()
        with world.auto_answering():
            call = connection.start("tools/call", CALL, capabilities=ALL)
            asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "sampling/createMessage", SAMPLE)
        with pytest.raises(Refusal) as refused:
            await question.comes()
        assert refused.value.code == (408 if trust is Trust.STANDARD else -32601)
        server.refuses(asked["id"], -32603, "could not ask")
        with pytest.raises(Refusal) as refusal:
            await ends(call)
        assert refusal.value.code == -32603
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("method", ["completion/complete"])
async def test_while_anything_else_is_answered_nobody_is_asked(method: str) -> None:
    """(rule 78)"""
    server = ScriptedServer("a", prompts=["p"], trust=Trust.TRUSTED)
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        call = connection.start(method, REQUESTS[method], capabilities=ALL)
        asked = await server.hears(method)
        for question, params in (
            ("elicitation/create", FORM),
            ("sampling/createMessage", SAMPLE),
            ("roots/list", None),
        ):
            with pytest.raises(Refusal):
                await later(nursery, server.asks, question, params).comes()
        server.says(asked["id"], {"completion": {"values": []}})
        assert (await ends(call, method))["resultType"] == "complete"
        nursery.cancel_scope.cancel()


async def test_a_question_that_may_be_either_of_two_callers_reaches_nobody() -> None:
    """(rule 71)"""
    server = ScriptedServer("a", tools=["x"])
    async with trio.open_nursery() as nursery, open_http_app(server, listen=TOKENS) as (_, connection):
        for headers in (DESK, LAPTOP):
            connection.another().start("tools/call", CALL, capabilities=FORMS, headers=headers)
            await server.hears("tools/call")
        with pytest.raises(Refusal):
            await later(nursery, server.asks, "elicitation/create", FORM).comes()
        nursery.cancel_scope.cancel()


async def test_a_question_belongs_to_the_request_that_it_came_with() -> None:
    """And asks nobody else (rule 71)."""
    server = ScriptedServer("a", tools=["x"])
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        calls = [connection.another().start("tools/call", CALL, capabilities=FORMS) for _ in range(2)]
        asked = [await server.hears("tools/call") for _ in calls]
        later(nursery, server.asks, "elicitation/create", FORM, about=asked[0]["id"])
        await trio.sleep(1)
        assert sum(call.complete.is_set() for call in calls) == 1
        server.says(asked[1]["id"], OK)
        await trio.sleep(1)
        kinds = sorted([(await ends(call))["resultType"] for call in calls])
        assert kinds == ["complete", "input_required"]
        nursery.cancel_scope.cancel()


async def test_a_dedicated_server_of_one_client_asks_that_client() -> None:
    server = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CLIENT)
    async with trio.open_nursery() as nursery, open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers.update(DESK)
        call = connection.start("tools/call", CALL, capabilities=FORMS)
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", FORM)
        result = await ends(call)
        again = connection.start("tools/call", retry(CALL, result), capabilities=FORMS)
        assert await question.comes() == YES
        server.says(asked["id"], OK)
        assert (await ends(again))["content"] == OK["content"]
        nursery.cancel_scope.cancel()


# Questions of servers that are stateless themselves


async def test_what_a_stateless_server_asks_is_handed_on_with_its_state_wrapped() -> None:
    """Its keys stay; its state goes back byte for byte, and under a new id (rules 79, 80)."""
    server = ScriptedServer("a", tools=["x"], revision=LATEST, trust=Trust.TRUSTED)
    theirs = 'any {"thing"} \u00e9\n'
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=ALL)
        first = await server.hears("tools/call")
        assert first["_meta"][f"{IO}clientCapabilities"].keys() >= {"elicitation", "sampling", "roots"}
        page = {name: each for name, each in PAGE.items() if name != "elicitationId"}
        asks = inputs(theirs, ask=("elicitation/create", FORM), go=("elicitation/create", page))
        server.says(first["id"], asks)
        result = await ends(call)
        assert list(result["inputRequests"]) == ["ask", "go"]
        assert result["inputRequests"]["ask"]["params"] == {**FORM, "message": "[a] Which?"}
        assert result["inputRequests"]["go"]["params"] == {**page, "message": "[a] Sign in"}
        assert theirs not in json.dumps(result)
        again = connection.start("tools/call", retry(CALL, result), id=2, capabilities=ALL)
        second = await server.hears("tools/call")
        assert second["id"] != first["id"]
        assert second["requestState"] == theirs
        assert second["inputResponses"] == {"ask": YES, "go": YES}
        assert second["arguments"] == CALL["arguments"]
        server.says(second["id"], {"resultType": "complete", **OK})
        assert (await ends(again))["content"] == OK["content"]


async def test_a_stateless_servers_state_outlives_the_host() -> None:
    """The server keeps nothing for it either, so its call goes on; with another key it does not (rule 80)."""
    params: dict[str, Any] = {}
    for at, key in enumerate((KEY, KEY, None)):
        server = ScriptedServer("a", tools=["x"], revision=LATEST, trust=Trust.TRUSTED)
        async with open_http_app(server, key=key) as (_, connection):
            call = connection.start("tools/call", params or CALL, capabilities=FORMS)
            if at == 2:
                with pytest.raises(Refusal, match="send the request again from the beginning"):
                    await ends(call)
                continue
            asked = await server.hears("tools/call")
            if at == 1:
                assert (asked["requestState"], asked["inputResponses"]) == ("theirs", {"ask": YES})
            server.says(asked["id"], inputs(ask=("elicitation/create", FORM)))
            params = retry(CALL, await ends(call))


BEGIN_AGAIN = "send the request again from the beginning"
RESTARTED = "Colonnade was restarted while the call waited for its client"


@pytest.mark.parametrize(
    ("method", "params", "asks", "said"),
    [
        ("tools/call", CALL, False, "Colonnade was restarted while a worked on the call; its outcome is unknown"),
        ("tools/call", CALL, True, f"{RESTARTED}, before it was sent to a server; {BEGIN_AGAIN}"),
        ("prompts/get", {"name": "a__p"}, False, f"{RESTARTED}; {BEGIN_AGAIN}"),
    ],
)
async def test_a_call_that_was_parked_when_the_host_ended_is_told_as_lost(
    method: str, params: dict[str, Any], asks: bool, said: str
) -> None:
    """And as begun, if it may have been: a client that begins again would have a tool run twice (rules 80, 108)."""

    def server() -> ScriptedServer:
        consent = Consent(tools=kind(ask=["x"] if asks else []))
        return ScriptedServer("a", tools=["x"], prompts=["p"], consent=consent)

    more: dict[str, Any] = {"key": KEY, "ask": AskSpec((Channel.CLIENT,))}
    async with trio.open_nursery() as nursery:
        async with open_http_app(asking := server(), **more) as (_, connection):
            call = connection.start(method, params, capabilities=FORMS)
            if not asks:
                await asking.hears(method)
                later(nursery, asking.asks, "elicitation/create", FORM)
            parked = retry(params, await ends(call, method))
            assert asking.asked.count(method) == (not asks)
            nursery.cancel_scope.cancel()
    async with open_http_app(asking := server(), **more) as (_, connection):
        for _ in range(2):
            if method == "tools/call" and not asks:
                result = await connection.result(method, parked, capabilities=FORMS)
                assert result["isError"]
                assert result["content"][0]["text"].startswith(said)
            else:
                with pytest.raises(Refusal) as refused:
                    await connection.result(method, parked, capabilities=FORMS)
                assert (refused.value.code, refused.value.message) == (INVALID, said)
                assert refused.value.data == {"reason": "invalid_request_state"}
        assert method not in asking.asked


async def test_what_may_be_used_once_counts_as_used_when_the_host_has_ended() -> None:
    """(rule 80)"""

    async def visit(_: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32042, "visit", Raw(json.dumps(PAGES).encode())))

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": visit}, trust=Trust.TRUSTED)
    async with open_http_app(server, key=KEY) as (_, connection):
        wanted = await connection.result("tools/call", CALL, capabilities=ALL)
        visited = retry(CALL, wanted, {"action": "accept"})
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, key=KEY) as (_, connection):
        with pytest.raises(Refusal, match=f"restarted .* may have been used; {BEGIN_AGAIN}"):
            await connection.result("tools/call", visited, capabilities=ALL)
        assert "tools/call" not in server.asked


async def test_a_server_without_a_state_gets_none_back() -> None:
    """(rule 79)"""
    server = ScriptedServer("a", tools=["x"], revision=LATEST)
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=FORMS)
        first = await server.hears("tools/call")
        server.says(first["id"], inputs(None, k=("elicitation/create", FORM)))
        result = await ends(call)
        again = connection.start("tools/call", retry(CALL, result), capabilities=FORMS)
        second = await server.hears("tools/call")
        assert "requestState" not in second
        assert second["inputResponses"] == {"k": YES}
        server.says(second["id"], {"resultType": "complete", **OK})
        await ends(again)


async def test_a_server_that_only_wants_to_be_asked_again_is() -> None:
    server = ScriptedServer("a", tools=["x"], revision=LATEST)
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL)
        first = await server.hears("tools/call")
        server.says(first["id"], {"resultType": "input_required", "requestState": "later"})
        result = await ends(call)
        assert "inputRequests" not in result
        params = {**CALL, "requestState": result["requestState"]}
        again = connection.start("tools/call", params)
        second = await server.hears("tools/call")
        assert second["requestState"] == "later"
        assert "inputResponses" not in second
        server.says(second["id"], {"resultType": "complete", **OK})
        await ends(again)


@pytest.mark.parametrize("wrong", ["token", "endpoint", "name", "arguments", "state", "expired"])
async def test_a_stateless_servers_state_is_as_well_kept(wrong: str) -> None:
    """(rule 80)"""
    server = ScriptedServer("a", tools=["x", "y", "a__x"], revision=LATEST)
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers.update(DESK)
        call = connection.start("tools/call", CALL, capabilities=FORMS)
        first = await server.hears("tools/call")
        server.says(first["id"], inputs(k=("elicitation/create", FORM)))
        params = retry(CALL, await ends(call))
        headers, path = DESK, "/mcp"
        if wrong == "token":
            headers = LAPTOP
        elif wrong == "endpoint":
            path = "/mcp/a"
        elif wrong == "name":
            params["name"] = "a__y"
        elif wrong == "arguments":
            params["arguments"] = {}
        elif wrong == "state":
            params["requestState"] += "A"
        else:
            await trio.sleep(STATE_LIFETIME)
        with pytest.raises(Refusal) as refusal:
            await connection.result("tools/call", params, path=path, headers=headers, capabilities=FORMS)
        assert refusal.value.code == INVALID
        server.hears_nothing_more()


async def test_a_stateless_server_that_asks_what_it_may_not_fails_its_call() -> None:
    """What it asks reaches nobody (rule 74)."""
    server = ScriptedServer("a", tools=["x"], revision=LATEST, trust=Trust.TRUSTED)
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=FORMS)
        first = await server.hears("tools/call")
        server.says(first["id"], inputs(k=("sampling/createMessage", SAMPLE)))
        result = await ends(call)
        assert (result["resultType"], result["isError"]) == ("complete", True)


async def test_a_stateless_server_says_itself_what_the_client_lacks() -> None:
    server = ScriptedServer("a", tools=["x"], revision=LATEST)
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL)
        first = await server.hears("tools/call")
        assert first["_meta"][f"{IO}clientCapabilities"] == {}
        lacks: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"form": {}}}}
        server.refuses(first["id"], -32021, "cannot ask", lacks)
        with pytest.raises(Refusal) as refusal:
            await ends(call)
        assert (call.status, refusal.value.code, refusal.value.data) == (400, -32021, lacks)


async def test_an_answer_after_a_round_is_never_fresh() -> None:
    """(rule 96)"""
    server = ScriptedServer("a", resources=["x://y"], revision=LATEST)
    async with open_http_app(server) as (_, connection):
        params = {"uri": "a+x://y"}
        call = connection.start("resources/read", params, capabilities=FORMS)
        first = await server.hears("resources/read")
        server.says(first["id"], inputs(k=("elicitation/create", FORM)))
        result = await ends(call, "resources/read")
        assert {"ttlMs", "cacheScope"}.isdisjoint(result)
        again = connection.start("resources/read", retry(params, result), capabilities=FORMS)
        second = await server.hears("resources/read")
        fresh = {"resultType": "complete", "ttlMs": 9000, "cacheScope": "public"}
        server.says(second["id"], {**fresh, "contents": [{"uri": "x://y", "text": "t"}]})
        final = await ends(again, "resources/read")
        assert (final["ttlMs"], final["cacheScope"]) == (0, "private")


async def test_what_goes_wrong_inside_is_an_internal_error() -> None:
    async with open_http_app(ScriptedServer("a", tools=["x"])) as (world, connection):

        async def crash(exchange: object) -> object:
            raise RuntimeError("secret")

        world.router.answer = crash  # type: ignore[method-assign,assignment]
        for capabilities in ({}, FORMS):
            with pytest.raises(Refusal) as refusal:
                await connection.result("tools/call", CALL, capabilities=capabilities)
            assert refusal.value.code == -32603
            assert "secret" not in refusal.value.message


# Races


async def test_an_outcome_that_came_first_is_what_the_retry_gets(call: Parked) -> None:
    """Though its answers are moot; the question has ended with its call (rules 103, 109)."""
    call.server.says(call.asked["id"], OK)
    with pytest.raises(Refusal):
        await call.question.comes()
    result = await call.connection.result("tools/call", retry(CALL, call.result), capabilities=FORMS)
    assert result["content"] == OK["content"]
    assert await call.connection.result("tools/call", retry(CALL, call.result), capabilities=FORMS) == result
    call.server.hears_nothing_more()


async def test_a_question_of_a_client_that_is_just_leaving_is_answered() -> None:
    """Its form is closed: the server must not wait (rules 50, 109)."""
    server = ScriptedServer("a", tools=["x"])
    async with trio.open_nursery() as nursery, open_http_app(server) as (_, connection):
        call = connection.start("tools/call", CALL, capabilities=FORMS)
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", FORM)
        await wait_all_tasks_blocked()
        connection.leaves.set()
        assert await question.comes() == {"action": "cancel"}
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        assert call.after_disconnect == b""
        nursery.cancel_scope.cancel()


async def test_a_question_that_is_withdrawn_is_asked_no_more(call: Parked) -> None:
    """What answers it means nothing (rules 49, 108)."""
    await call.server.notifies("notifications/cancelled", {"requestId": "q1"})
    await wait_all_tasks_blocked()
    again = call.connection.start("tools/call", retry(CALL, call.result), capabilities=FORMS)
    await trio.sleep(1)
    assert not again.complete.is_set()
    call.server.says(call.asked["id"], OK)
    assert (await ends(again))["content"] == OK["content"]


async def test_only_so_many_calls_wait_for_one_client(call: Parked, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused, and reaches no server (rule 5)."""
    monkeypatch.setattr(call_store, "MAX_PARKED_PER_OWNER", 1)
    await call.refused(CALL, 429)
    assert (await call.connection.result("tools/list"))["resultType"] == "complete"
    again = call.connection.start("tools/call", retry(CALL, call.result), capabilities=FORMS)
    assert await call.question.comes() == YES
    call.server.says(call.asked["id"], OK)
    await ends(again)


async def test_requests_without_a_session_are_each_asked_about() -> None:
    """There is nothing that could be allowed for one, and what is allowed for a session is not for them."""

    async def ok(params: dict[str, Any]) -> object:
        return OK

    server = ScriptedServer("a", tools=["x"], consent=Consent(tools=kind(ask=["x"])), answers={"tools/call": ok})
    async with open_http_app(server) as (world, connection):
        with world.auto_answering(Answering.SESSION) as asked:
            first, second = await world.client(), await world.client()
            for client, questions in ((first, 1), (first, 1), (second, 2)):
                await client.call("a__x", CALL["arguments"])
                assert len(asked) == questions
        sessions = [matter.access.subject.session for matter in asked]
        assert sessions == [first.session.mark, second.session.mark]
        with world.auto_answering() as asked:
            for _ in range(2):
                assert (await connection.result("tools/call", CALL))["content"] == OK["content"]
        assert [matter.access.subject.session for matter in asked] == [None, None]


async def test_a_member_that_a_retry_adds_is_another_call_to_a_person() -> None:
    """The state does not say what a retry sends: a person who must allow it is asked anew, but not for an equal one."""
    server = ScriptedServer("a", tools=["x"], revision=LATEST, consent=Consent(tools=kind(ask=["x"])))
    async with open_http_app(server) as (world, connection):
        with world.auto_answering(Answering.ONCE) as asked:
            first = connection.start("tools/call", CALL, capabilities=FORMS)
            server.says((await server.hears("tools/call"))["id"], inputs(k=("elicitation/create", FORM)))
            params = retry(CALL, await ends(first))
            for sent, confirmed in ((params, 1), ({**params, "more": 1}, 2)):
                again = connection.another().start("tools/call", sent, capabilities=FORMS)
                heard = await server.hears("tools/call")
                assert (heard["requestState"], heard.get("more")) == ("theirs", sent.get("more"))
                server.says(heard["id"], OK)
                await ends(again)
                assert len(asked) == confirmed
