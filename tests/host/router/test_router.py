"""The road of a call through names, gate and servers, with scripted servers and clients."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import (
    CallerSpec,
    Channel,
    Check,
    Condition,
    Consent,
    Eras,
    Isolation,
    KindConsent,
    Limits,
    Rate,
    Rule,
    Trust,
)
from config.views import ALL, NameStyle, ViewNames, ViewServer, ViewSpec
from host.attempts import Reason
from host.downstream.sessions import Session
from host.errors import (
    Forbidden,
    ResourceNotFound,
    UnknownEntry,
    UpstreamError,
)
from host.exchange import Answered, Caller, Exchange, NoClient
from host.journal import AttemptRefused, EntryOmitted, RequestCompleted, SessionOpened
from host.jsonrpc.messages import ErrorBody, Failure, Notification, Request, Success
from host.jsonrpc.raw import encode, encode_object, value
from host.peer.outstanding import PeerError
from host.policy.confirmations import ConfirmationAnswer
from host.protocol.versions import LATEST, LATEST_LEGACY, Era
from host.source import SHARED, Endpoint, EntryRef
from host.upstream.catalog_sync import INITIAL_RETRY_DELAY
from host.upstream.lifecycle import ABSENT_FOR
from host.upstream.upstreams import REREAD_WAIT
from host.wire.http_client import SessionEnded
from host.wire.link import Deliver, Link, LinkLost, Parcel
from tests.host.router.shared import (
    NEW,
    ODD,
    OLDER,
    REACHING,
    READABLE,
    REVISION,
    REVISIONS,
    echo,
    refusing,
    told,
)
from tests.kit.awaited import awaited
from tests.kit.gates import kind
from tests.kit.memory import MemoryLink
from tests.kit.world import (
    Refusal,
    ScriptedClient,
    ScriptedServer,
    World,
    later,
    open_client,
    open_world,
    says_revision,
    tool,
)


async def test_a_call_reaches_its_server_under_the_servers_own_name() -> None:
    """And nothing is added to what it answers (rules 55, 58, 101)."""
    a = ScriptedServer("a", tools=["x"], answers={"tools/call": echo})
    b = ScriptedServer("b", tools=["x"])
    async with open_client(a, b) as (_, client, _):
        result = await client.call("a__x", {"n": 1})
        assert result == {"content": [{"type": "text", "text": '{"n": 1}'}], "_meta": {"saw": "x"}}
        b.hears_nothing_more()


async def test_uris_in_results_are_ones_the_client_can_bring_back() -> None:
    """In the places where URIs stand and nowhere else; none need be in a list (rules 56, 59, 65, 66, 67)."""

    async def answer(params: dict[str, Any]) -> object:
        return {
            "content": [
                {"type": "resource_link", "uri": "memo:1", "name": "one"},
                {"type": "resource", "resource": {"uri": "memo:2", "text": "memo:3"}},
                {"type": "text", "text": "memo:4", "uri": 5},
            ],
            "structuredContent": {"uri": "memo:5"},
            "_meta": {"ui": {"resourceUri": "ui://page"}},
        }

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}, {"uri": "https://a/b", "text": "t"}]}

    server = ScriptedServer(
        "a", tools=["x"], templates=["memo:{n}"], answers={"tools/call": answer, "resources/read": read}
    )
    async with open_client(server) as (_, client, _):
        result = await client.call("a__x")
        assert [block.get("uri") for block in result["content"]] == ["a+memo:1", None, 5]
        assert result["content"][1]["resource"] == {"uri": "a+memo:2", "text": "memo:3"}
        assert result["structuredContent"] == {"uri": "memo:5"}
        assert result["_meta"] == {"ui": {"resourceUri": "ui://a+page"}}
        read_back = await client.request("resources/read", {"uri": "a+memo:2"})
        assert [content["uri"] for content in read_back["contents"]] == ["a+memo:2", "https://a/b"]


@pytest.mark.parametrize("era", list(Era))
async def test_the_prefix_of_the_file_stands_before_names_and_uris(era: Era) -> None:
    """In lists, requests and results, and the id does not; at the server's own endpoint neither does."""

    async def answer(params: dict[str, Any]) -> object:
        return {"content": [{"type": "resource_link", "uri": "memo:1", "name": params["name"]}]}

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}]}

    offered: dict[str, Any] = {"tools": ["x", "y z"], "prompts": ["x"], "resources": ["memo:1"]}
    answers = {"tools/call": answer, "resources/read": read}
    server = ScriptedServer("a", **offered, templates=["memo:{n}"], answers=answers)
    server.spec = replace(server.spec, prefix="p")
    async with open_world(server) as world:

        async def ask(method: str, endpoint: str | None = None, **params: object) -> Any:
            caller, raw = (
                Caller("c", Endpoint(endpoint), era=era),
                {name: encode(each) for name, each in params.items()},
            )
            exchange = Exchange(Request(1, method, encode_object(raw)), raw, caller, NoClient())
            answered = await world.router.answer(exchange)
            assert isinstance(answered, Answered)
            return json.loads(bytes(answered.result))

        plain, cleaned = (each["name"] for each in (await ask("tools/list"))["tools"])
        assert (plain, cleaned[:7], len(cleaned)) == ("p__x", "p__y_z_", 15)
        assert [each["name"] for each in (await ask("prompts/list"))["prompts"]] == ["p__x"]
        assert [each["uri"] for each in (await ask("resources/list"))["resources"]] == ["p+memo:1"]
        [template] = (await ask("resources/templates/list"))["resourceTemplates"]
        assert template["uriTemplate"] == "p+memo:{n}"
        for name, own in ((plain, "x"), (cleaned, "y z")):
            result = await ask("tools/call", name=name, arguments={})
            assert result["content"] == [{"type": "resource_link", "uri": "p+memo:1", "name": own}]
        assert (await ask("resources/read", uri="p+memo:2"))["contents"][0]["uri"] == "p+memo:2"
        with pytest.raises(UnknownEntry, match="Unknown tool: a__x"):
            await ask("tools/call", name="a__x", arguments={})
        with pytest.raises(ResourceNotFound):
            await ask("resources/read", uri="a+memo:2")
        alone = await ask("tools/call", "a", name="x", arguments={})
        assert alone["content"][0]["uri"] == "memo:1"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "a__secret"}, -32602),
        ("prompts/get", {"name": "a__secret"}, -32602),
        ("resources/read", {"uri": "a+secret:x"}, -32002),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__secret"}, "argument": {}}, -32602),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a+secret:x"}, "argument": {}}, -32602),
    ],
)
async def test_what_is_denied_answers_like_what_does_not_exist_and_no_server_is_asked(
    method: str, params: dict[str, Any], code: int
) -> None:
    """(rule 58)"""

    async def not_found(params: dict[str, Any]) -> object:
        raise AssertionError("the server was asked")

    deny = kind(deny=("secret*", "secret:**"))
    server = ScriptedServer(
        "a",
        tools=["secret", "x"],
        prompts=["secret", "x"],
        resources=["secret:x", "memo:x"],
        answers={method: not_found},
        consent=Consent(tools=deny, resources=deny, prompts=deny),
    )
    async with open_client(server) as (_, client, _):
        with pytest.raises(Refusal) as denied:
            await client.request(method, params)
        assert denied.value.code == code
        absent = json.loads(json.dumps(params).replace("a+secret", "a+absent").replace("a__secret", "a__absent"))
        if method != "resources/read":  # an absent resource may exist unlisted: only its server can tell
            with pytest.raises(Refusal) as missing:
                await client.request(method, absent)
            assert missing.value.code == denied.value.code
            assert missing.value.message.replace("absent", "secret") == denied.value.message
        assert "a__secret" not in await client.names()
        assert "a__secret" not in await client.names("prompts/list")
        assert "a+secret:x" not in await client.names("resources/list", "uri")


def refused(world: World) -> list[tuple[Reason, str, str, str]]:
    """The attempts that were recorded: reason, kind, name as asked, and server."""
    world.events.clear()
    world.gate.decision_log.flush_attempts()
    found = [event.attempt for event in world.events if isinstance(event, AttemptRefused) and event.count == 1]
    return [(each.reason, each.kind, each.name, each.server) for each in found]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "a__secret"}),
        ("prompts/get", {"name": "a__secret"}),
        ("resources/read", {"uri": "a+secret:x"}),
        ("resources/subscribe", {"uri": "a+secret:x"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__secret"}, "argument": {}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a+secret:x"}, "argument": {}}),
    ],
)
async def test_an_attempt_on_something_denied_is_recorded_and_one_on_nothing_with_that_reason(
    method: str, params: dict[str, Any]
) -> None:
    async def read(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32002, "not there"))

    deny = kind(deny=("secret*", "secret:**"))
    server = ScriptedServer(
        "a",
        tools=["secret", "x"],
        prompts=["secret", "x"],
        resources=["secret:x", "memo:x"],
        answers={"resources/read": read},
        consent=Consent(tools=deny, resources=deny, prompts=deny),
        capabilities={"tools": {}, "prompts": {}, "completions": {}, "resources": {"subscribe": True}},
    )
    async with open_client(server, identity="laptop") as (world, client, _):
        what = "resource" if "secret:x" in str(params) else "prompt" if "prompt" in f"{method}{params}" else "tool"
        name = "a+secret:x" if what == "resource" else "a__secret"
        with pytest.raises(Refusal):
            await client.request(method, params)
        assert refused(world) == [(Reason.DENIED, what, name, "a")]
        if method != "resources/subscribe":
            absent = json.loads(json.dumps(params).replace("secret", "absent"))
            with pytest.raises(Refusal):
                await client.request(method, absent)
            assert refused(world) == [(Reason.MISSING, what, name.replace("secret", "absent"), "a")]
        with pytest.raises(Refusal):
            await client.call("b__x")
        assert refused(world) == [(Reason.MISSING, "tool", "b__x", "")]


async def test_a_permitted_request_that_cannot_be_sent_is_recorded(autojump_clock: MockClock) -> None:
    """One that was sent has a decision and an outcome instead."""

    async def empty(params: dict[str, Any]) -> object:
        return {"content": []}

    async def answer(params: dict[str, Any]) -> object:
        server.dies()
        await trio.sleep_forever()

    server = ScriptedServer("a", tools=["x"], prompts=["p"], answers={"tools/call": answer})
    limited = ScriptedServer("b", tools=["x"], limits=Limits(calls=Rate(1, 60)), answers={"tools/call": empty})
    async with open_client(server, limited) as (world, client, _):
        assert not (await client.call("b__x")).get("isError")
        with pytest.raises(Refusal, match="429"):
            await client.call("b__x")
        assert refused(world) == [(Reason.LIMITED, "tool", "b__x", "b")]
        server.connections = -100
        assert (await client.call("a__x"))["isError"]
        assert refused(world) == []
        await wait_all_tasks_blocked()
        assert (await client.call("a__x"))["isError"]
        with pytest.raises(Refusal, match="503"):
            await client.request("prompts/get", {"name": "a__p"})
        assert refused(world) == [
            (Reason.UNAVAILABLE, "tool", "a__x", "a"),
            (Reason.UNAVAILABLE, "prompt", "a__p", "a"),
        ]


async def test_an_attempt_on_something_held_is_recorded() -> None:
    """Whether its caller may know of it, as of a definition that was approved before, or not."""
    new = ScriptedServer("a", tools=["x"], trust=Trust.UNTRUSTED)
    changed = ScriptedServer("b", tools=["x"])
    async with open_client(new, changed) as (world, client, _):
        await client.request("tools/list")
        changed.lists["tools"] = [tool("x", description="another")]
        await changed.notifies("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        with pytest.raises(Refusal):
            await client.call("a__x")
        assert (await client.call("b__x"))["isError"]
        assert refused(world) == [(Reason.HELD, "tool", "a__x", "a"), (Reason.HELD, "tool", "b__x", "b")]


async def test_a_call_whose_rules_change_while_a_person_is_asked_is_no_attempt_on_nothing() -> None:
    """The person's question is recorded as void. An attempt is what is denied or held by now."""
    asking = ScriptedServer("a", tools=["x"], consent=Consent(tools=kind(ask=["*"])))
    async with open_client(asking) as (world, client, nursery):
        with world.gate.authorizer.confirmations.attach(Channel.CONSOLE):
            call = later(nursery, client.call, "a__x")
            await wait_all_tasks_blocked()
            world.gate.replace({"a": replace(asking.spec, consent=Consent(tools=kind(ask=["x"])))}, {})
            await call.ended.wait()
        assert "has changed meanwhile" in call.result["content"][0]["text"]
        assert refused(world) == []


async def test_an_attempt_on_a_denied_uri_without_a_servers_name_is_recorded_as_such() -> None:
    """Not only under the name of its server."""
    a = ScriptedServer("a", resources=["memo:1"])
    b = ScriptedServer("b", resources=["web:1"], consent=Consent(resources=kind(deny=["web:*"])))
    async with open_client(a, b) as (world, client, _):
        for uri in ("web:1", "web:2", "c+web:1"):
            with pytest.raises(Refusal):
                await client.request("resources/read", {"uri": uri})
        assert refused(world) == [
            (Reason.DENIED, "resource", "web:1", "b"),
            (Reason.MISSING, "resource", "web:2", ""),
            (Reason.MISSING, "resource", "c+web:1", ""),
        ]


async def test_a_request_that_readers_take_for_different_ones_is_recorded() -> None:
    rows: list[tuple[str, dict[str, Any], tuple[str, str, str]]] = [
        ("tools/call", {"name": "a__x", "Name": "a__y"}, ("tool", "a__x", "a")),
        ("prompts/get", {"Name": "a__y"}, ("request", "prompts/get", "")),
        ("resources/subscribe", {"uri": "a+x:1", "URI": "a+x:2"}, ("request", "resources/subscribe", "")),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "a__x", "NAME": "a__y"}, "argument": {}},
            ("request", "completion/complete", ""),
        ),
    ]
    async with open_client(ScriptedServer("a", tools=["x"], prompts=["x"], resources=["x:1"])) as (world, client, _):
        for method, params, attempt in rows:
            with pytest.raises(Refusal):
                await client.request(method, params)
            assert refused(world) == [(Reason.AMBIGUOUS, *attempt)]


async def test_a_call_that_its_arguments_deny_has_one_record() -> None:
    rule = Rule("x", when=(Condition("n", (Check("eq", 1),)),))
    server = ScriptedServer("a", tools=["x"], consent=Consent(tools=KindConsent(deny=(rule,))))
    async with open_client(server) as (world, client, _):
        assert (await client.call("a__x", {"n": 1}))["isError"]
        assert refused(world) == []


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (-32002, "no such thing", None),
        (-32602, "Unknown resource: memo:1", None),
        (-32602, "bad", {"uri": "memo:1"}),
    ],
)
async def test_a_servers_not_found_reads_like_ours(code: int, message: str, data: object) -> None:
    """So that nobody can tell a denied resource from an absent one (rule 68)."""
    server = ScriptedServer(
        "a", resources=["memo:x", "memo:denied"], consent=Consent(resources=kind(deny=("memo:denied",)))
    )
    async with open_client(server) as (_, client, nursery):
        with pytest.raises(Refusal) as denied:
            await client.request("resources/read", {"uri": "a+memo:denied"})

        async def refuse() -> None:
            asked = await server.hears("resources/read")
            server.refuses(asked["id"], code, message, data)

        nursery.start_soon(refuse)
        with pytest.raises(Refusal) as absent:
            await client.request("resources/read", {"uri": "a+memo:1"})
        assert (absent.value.code, absent.value.message) == (denied.value.code, denied.value.message)
        assert absent.value.data == {"uri": "a+memo:1"}
        assert denied.value.data == {"uri": "a+memo:denied"}


@pytest.mark.parametrize("listed_before", [True, False])
async def test_while_a_server_is_away_nobody_can_tell_denied_from_absent(
    listed_before: bool, autojump_clock: MockClock
) -> None:
    async def broken(params: dict[str, Any]) -> object:
        return {}

    deny = kind(deny=("denied", "memo:denied"))
    server = ScriptedServer(
        "a",
        tools=["denied", "x"],
        resources=["memo:denied", "memo:x"],
        consent=Consent(tools=deny, resources=deny),
        answers={} if listed_before else {"initialize": broken},
    )
    async with open_client(server) as (_, client, _):
        server.answers["initialize"] = broken
        if listed_before:
            server.dies()
        await trio.sleep(100)
        for method, key, name in (("tools/call", "name", "a__{}"), ("resources/read", "uri", "a+memo:{}")):
            said = set()
            for which in ("denied", "absent"):
                try:
                    outcome = json.dumps(await client.request(method, {key: name.format(which)}))
                except Refusal as refusal:
                    outcome = f"{refusal.code} {refusal.message} {refusal.data}"
                said.add(re.sub(r"in [0-9.]+ s", "in N s", outcome.replace(which, "which")))
            assert len(said) == 1, said


async def test_a_servers_error_passes_as_it_came() -> None:
    """(rule 4)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):

        async def refuse() -> None:
            server.refuses((await server.hears("tools/call"))["id"], -32099, "not today", {"n": [1]})

        nursery.start_soon(refuse)
        with pytest.raises(Refusal) as refused:
            await client.call("a__x")
        assert (refused.value.code, refused.value.message, refused.value.data) == (-32099, "not today", {"n": [1]})


async def test_a_uri_in_an_error_is_one_the_client_can_bring_back() -> None:
    """(rule 65)"""
    server = ScriptedServer("a", tools=["x"], resources=["memo:1"])
    async with open_client(server) as (_, client, nursery):

        async def refuse(method: str, uri: str) -> None:
            server.refuses((await server.hears(method))["id"], -32000, "busy", {"uri": uri, "n": 1})

        nursery.start_soon(refuse, "tools/call", "memo:2")
        with pytest.raises(Refusal) as refused:
            await client.call("a__x")
        assert refused.value.data == {"uri": "a+memo:2", "n": 1}
        nursery.start_soon(refuse, "resources/read", "memo:1")
        with pytest.raises(Refusal) as refused:
            await client.request("resources/read", {"uri": "memo:1"})
        assert refused.value.data == {"uri": "memo:1", "n": 1}  # as it was asked for


async def test_a_call_to_a_server_that_is_away_fails_at_once_and_says_why(autojump_clock: MockClock) -> None:
    """For a model that can be read as the outcome of its call; the list stays (rules 57, 58)."""
    server = ScriptedServer("a", tools=["x"], prompts=["p"])
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        server.connections = -1
        server.dies()
        await wait_all_tasks_blocked()
        result = await client.call("a__x")
        assert result["isError"] is True
        assert "a is unavailable: the other end was closed; next attempt in 0." in result["content"][0]["text"]
        with pytest.raises(Refusal) as refused:
            await client.request("prompts/get", {"name": "a__p"})
        assert refused.value.code == 503
        assert await client.names() == ["a__x"]  # it keeps its place while it is away
        await trio.sleep(2)
        assert server.connections == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, "a__x")
            server.says((await server.hears("tools/call"))["id"], {"content": []})


async def test_a_call_in_flight_when_its_server_dies_fails_once(autojump_clock: MockClock) -> None:
    """It is not sent again when the server is back, and what answers it then is nobody's (rule 107)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, nursery):
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call("a__x"))

        for _ in range(3):
            nursery.start_soon(call)
        for _ in range(3):
            await server.hears("tools/call")
        server.dies()
        await wait_all_tasks_blocked()
        assert len(results) == 3
        assert all(
            "the connection to a was lost during the request" in result["content"][0]["text"] for result in results
        )
        await trio.sleep(100)
        world.upstreams["a"].main.ready_client()
        assert (len(results), server.connections) == (3, 2)
        server.hears_nothing_more()
        for id in range(10):
            server.sends(Success(id, Raw(b'{"content":[]}')))
        await wait_all_tasks_blocked()
        assert len(results) == 3
        nursery.start_soon(call)
        server.says((await server.hears("tools/call"))["id"], {"content": ["new"]})
        await wait_all_tasks_blocked()
        assert results[3:] == [{"content": ["new"]}]


async def test_cancelling_a_call_tells_its_server_alone_in_the_servers_own_id() -> None:
    """(rules 41, 45, 47)"""
    a, b = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["x"])
    async with open_client(a, b) as (_, client, nursery):
        outcome: list[Any] = []

        async def call(name: str, id: int | str) -> None:
            outcome.append(await client.request("tools/call", {"name": name}, id=id))

        nursery.start_soon(call, "a__x", "seven")
        mine = await a.hears("tools/call")
        nursery.start_soon(call, "b__x", 7)
        other = await b.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": "7"})  # a string is not a number
        client.notifies("notifications/cancelled", {"requestId": "seven", "reason": "changed my mind"})
        assert await a.hears("notifications/cancelled") == {"requestId": mine["id"], "reason": "changed my mind"}
        await wait_all_tasks_blocked()
        assert outcome == [None]
        b.hears_nothing_more()
        b.says(other["id"], {"content": []})
    assert outcome == [None, {"content": []}]


async def test_an_answer_that_comes_after_the_cancel_is_dropped(autojump_clock: MockClock) -> None:
    """It was on its way: it is only the second one that nobody can explain (rules 45, 47)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, nursery):
        outcome: list[Any] = []

        async def call() -> None:
            outcome.append(await client.request("tools/call", {"name": "a__x"}, id=1))

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": 1})
        await server.hears("notifications/cancelled")
        server.sends(Success(asked["id"], Raw(b"{}")))
        await wait_all_tasks_blocked()
        assert (outcome, world.journal.dropped) == ([None], {})
        server.sends(Success(asked["id"], Raw(b"{}")))
        await wait_all_tasks_blocked()
        assert (outcome, world.journal.dropped["a"]) == ([None], {"unknown id": 1})


async def test_an_id_in_flight_twice_is_served_twice_and_cancelled_never() -> None:
    """(rule 47)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):
        texts: list[Any] = []

        async def call(n: int) -> None:
            result = await client.request("tools/call", {"name": "a__x", "arguments": {"n": n}}, id=1)
            texts.append((n, result["content"]))

        for n in range(2):
            nursery.start_soon(call, n)
        asked = [await server.hears("tools/call") for _ in range(2)]
        client.notifies("notifications/cancelled", {"requestId": 1})
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        for each in asked:
            server.says(each["id"], {"content": [each["arguments"]["n"]]})
    assert sorted(texts) == [(0, [0]), (1, [1])]


@pytest.mark.parametrize("token", [7, "7", "a token"])
async def test_progress_comes_back_under_the_clients_token_and_only_while_it_grows(token: int | str) -> None:
    """(rules 42, 43)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, nursery):

        async def call() -> None:
            await client.call("a__x", _meta={"progressToken": token, "v/k": 1})

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        ours = asked["_meta"]["progressToken"]
        assert asked["_meta"]["v/k"] == 1
        for progress in (1, 2.5, 2.5, 2, 3):
            await server.notifies(
                "notifications/progress", {"progressToken": ours, "progress": progress, "message": "m"}
            )
        await server.notifies("notifications/progress", {"progressToken": ours + 1, "progress": 9})
        await wait_all_tasks_blocked()
        assert [params["progress"] for _, params in client.notifications] == [1, 2.5, 3]
        assert all(params["progressToken"] == token and params["message"] == "m" for _, params in client.notifications)
        assert all(type(params["progressToken"]) is type(token) for _, params in client.notifications)
        server.says(asked["id"], {"content": []})
    assert world.journal.dropped["a"] == {"unknown progress token": 1}


async def test_a_server_that_does_not_answer_is_called_off_at_the_deadline(autojump_clock: MockClock) -> None:
    """Progress puts the deadline off (rule 48)."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_client(server) as (_, client, nursery):

        async def call() -> None:
            began = trio.current_time()
            result = await client.call("a__x", _meta={"progressToken": 1})
            assert result["isError"] is True
            assert "did not respond within" in result["content"][0]["text"]
            assert trio.current_time() - began == pytest.approx(8, abs=0.1)

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        await trio.sleep(3)  # a report puts the deadline off
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        await trio.sleep(5.1)
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_a_server_that_reports_progress_after_a_cancellation_is_not_complained_about() -> None:
    """(rule 42)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.call, "a__x", _meta={"progressToken": 1}))
            token = (await server.hears("tools/call"))["_meta"]["progressToken"]
            nursery.cancel_scope.cancel()
        for progress in (1, 2, 3):
            await server.notifies("notifications/progress", {"progressToken": token, "progress": progress})
        await server.notifies("notifications/progress", {"progressToken": token + 1, "progress": 1})
        await wait_all_tasks_blocked()
        assert client.notifications == []
    assert world.journal.dropped["a"] == {"unknown progress token": 1}


async def test_progress_puts_the_deadline_off_no_further_than_the_ceiling(autojump_clock: MockClock) -> None:
    """(rule 48)"""
    server = ScriptedServer("a", tools=["x"], timeout=60.0)
    async with open_client(server) as (_, client, nursery):
        ended: list[float] = []

        async def call() -> None:
            await client.call("a__x", _meta={"progressToken": 1})
            ended.append(trio.current_time())

        began = trio.current_time()
        nursery.start_soon(call)
        token = (await server.hears("tools/call"))["_meta"]["progressToken"]
        for n in range(30):
            await trio.sleep(30)
            if not ended:
                await server.notifies("notifications/progress", {"progressToken": token, "progress": n})
        assert ended[0] - began == pytest.approx(600, abs=1)


async def test_completion_goes_to_the_owner_and_is_empty_where_none_is_offered() -> None:
    """(rule 70)"""

    async def complete(params: dict[str, Any]) -> object:
        assert params["ref"] == {"type": "ref/prompt", "name": "p"}
        assert params["context"] == {"arguments": {"a": "b"}}
        return {"completion": {"values": ["v"], "total": 1, "hasMore": False}}

    a = ScriptedServer("a", prompts=["p"], answers={"completion/complete": complete})
    b = ScriptedServer("b", prompts=["p"], capabilities={"prompts": {}})
    async with open_client(a, b) as (_, client, _):
        params = {"argument": {"name": "a", "value": ""}, "context": {"arguments": {"a": "b"}}}
        of_a = await client.request("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__p"}, **params})
        of_b = await client.request("completion/complete", {"ref": {"type": "ref/prompt", "name": "b__p"}, **params})
        assert of_a["completion"]["values"] == ["v"]
        assert of_b["completion"] == {"values": [], "total": 0, "hasMore": False}


async def test_params_that_do_not_fit_are_refused_and_no_server_is_asked() -> None:
    rows: list[tuple[str, object]] = [
        ("tools/call", {}),
        ("tools/call", {"name": 5}),
        ("tools/call", {"name": "a__x", "_meta": 5}),
        ("tools/call", {"name": "a__x", "_meta": {"progressToken": 1.5}}),
        ("resources/read", {"uri": ["x"]}),
        ("completion/complete", {"ref": {"type": "ref/other", "name": "x"}}),
        ("completion/complete", {"ref": 7}),
    ]
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, _):
        for method, params in rows:
            with pytest.raises(Refusal, match="-32602"):
                await client.request(method, params)
            server.hears_nothing_more()


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "resources/subscribe", "logging/setLevel"])
async def test_params_that_are_no_object_make_no_request(method: str) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, _):
        with pytest.raises(Refusal, match="-32600 params is not an object"):
            await client.request(method, [])
        server.hears_nothing_more()


async def test_a_method_that_is_not_served_is_refused() -> None:
    rows: list[str] = ["server/discover", "vendor/thing", "tasks/list", "", "Tools/list"]
    async with open_client(ScriptedServer("a", tools=["x"])) as (_, client, _):
        for method in rows:
            with pytest.raises(Refusal, match="-32601"):
                await client.request(method)


@pytest.mark.few(2)
@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize(
    ("method", "entry", "members"),
    [
        ("tools/call", b'"name":"%s"', b'"arguments":%s,"vendor":%s'),
        ("prompts/get", b'"name":"%s"', b'"arguments":%s,"_meta":{"v/k":%s}'),
        ("resources/read", b'"uri":"%s"', b'"one":%s,"two":%s'),
        ("completion/complete", b'"ref":{"type":"ref/prompt","name":"%s"}', b'"argument":%s,"context":%s'),
    ],
)
async def test_every_byte_reaches_the_server_that_is_not_a_name(
    endpoint: str | None, method: str, entry: bytes, members: bytes
) -> None:
    """But for the token under which the server reports progress to us (rules 3, 4, 70)."""
    own = b',"_meta":{"progressToken":"c1"}' if method == "tools/call" else b""
    server = ScriptedServer("a", tools=["x"], prompts=["x"], resources=["x:1"])
    inward = b"x:1" if method == "resources/read" else b"x"
    outward = inward if endpoint else b"a+x:1" if method == "resources/read" else b"a__x"
    async with open_client(server, endpoint=endpoint) as (_, client, nursery):
        sent = Request(1, method, Raw(b"{%s,%s}" % (entry % outward, members % (ODD, ODD))))
        nursery.start_soon(client.answer, sent)
        heard = await server.hears_undecoded(method)
        assert heard.params is not None
        assert bytes(heard.params) == b"{%s,%s%s}" % (entry % inward, members % (ODD, ODD), own)
        nursery.cancel_scope.cancel()


@pytest.mark.few(2)
@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize(
    ("method", "params", "before", "after"),
    [
        (
            "tools/call",
            '{"name":"%s"}',
            b'{"content":[{"type":"text","text":"memo:1","n":%s}],"structuredContent":%s,"_meta":{"v/k":%s},"x":%s}',
            b"",
        ),
        (
            "tools/call",
            '{"name":"%s"}',
            b'{"structuredContent":%s,"content":[{"uri":"memo:1","type":"resource_link","x":%s},{"x":%s}],"more":%s}',
            b'{"structuredContent":%s,"content":[{"uri":"a+memo:1","type":"resource_link","x":%s},{"x":%s}],"more":%s}',
        ),
        (
            "prompts/get",
            '{"name":"%s"}',
            b'{"description":%s,"messages":[{"role":"user","content":{"type":"text","text":%s}}],"a":%s,"b":%s}',
            b"",
        ),
        (
            "resources/read",
            '{"uri":"%s"}',
            b'{"contents":[{"uri":"memo:1","text":%s,"blob":%s,"_meta":{"ui":{"csp":%s}},"x":%s}]}',
            b'{"contents":[{"uri":"a+memo:1","text":%s,"blob":%s,"_meta":{"ui":{"csp":%s}},"x":%s}]}',
        ),
        (
            "completion/complete",
            '{"ref":{"type":"ref/prompt","name":"%s"},"argument":{}}',
            b'{"completion":{"values":[%s,%s],"total":%s},"x":%s}',
            b"",
        ),
    ],
)
async def test_every_byte_comes_back_that_is_not_a_uri(
    endpoint: str | None, method: str, params: str, before: bytes, after: bytes
) -> None:
    """(rules 3, 4, 59, 70)"""
    server = ScriptedServer("a", tools=["x"], prompts=["x"], resources=["x:1"])
    inward = "x:1" if method == "resources/read" else "x"
    outward = inward if endpoint else "a+x:1" if method == "resources/read" else "a__x"
    filled = (READABLE,) * 4
    async with open_client(server, endpoint=endpoint) as (_, client, nursery):

        async def answer() -> None:
            asked = await server.hears(method)
            server.sends(Success(asked["id"], Raw(before % filled)))

        nursery.start_soon(answer)
        answered = await client.answer(Request(1, method, Raw((params % outward).encode())))
        assert isinstance(answered, Success)
        assert bytes(answered.result) == (after if after and not endpoint else before) % filled


async def test_every_byte_of_an_error_comes_back_that_is_not_its_uri() -> None:
    """(rules 4, 65)"""
    odd = READABLE
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):

        async def answer() -> None:
            for data in (b'{"x":%s,"uri":"memo:1"}' % odd, b"[%s]" % odd, None):
                asked = await server.hears("tools/call")
                raw = None if data is None else Raw(data)
                server.sends(Failure(ErrorBody(-32000, "it says: memo:1 \u2028", raw), asked["id"]))

        nursery.start_soon(answer)
        for expected in (b'{"x":%s,"uri":"a+memo:1"}' % odd, b"[%s]" % odd, None):
            answered = await client.answer(Request(1, "tools/call", Raw(b'{"name":"a__x"}')))
            assert isinstance(answered, Failure)
            assert (answered.error.code, answered.error.message) == (-32000, "it says: memo:1 \u2028")
            assert (None if answered.error.data is None else bytes(answered.error.data)) == expected


async def test_a_call_that_asks_to_be_a_task_is_a_plain_call() -> None:
    """No task is served, so that a server that has them must not make one of it (rule 60)."""
    server = ScriptedServer("a", tools=["x"], prompts=["x"])
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(partial(client.call, task={"ttl": 1}, other=1), "a__x", {"task": 2})
        asked = await server.hears("tools/call")
        del asked["_meta"]["progressToken"]
        assert asked == {"id": asked["id"], "name": "x", "arguments": {"task": 2}, "other": 1, "_meta": {}}
        nursery.start_soon(client.request, "prompts/get", {"name": "a__x", "task": 3})
        assert (await server.hears("prompts/get"))["task"] == 3  # only calls can be tasks: this is something else
        nursery.cancel_scope.cancel()


async def test_a_prompts_arguments_are_untouched_and_its_links_can_be_brought_back() -> None:
    """(rules 65, 69)"""
    arguments = {"uri": "memo:1", "name": "a__p", "n": "1.50"}

    async def get(params: dict[str, Any]) -> object:
        assert params == {"name": "p", "arguments": arguments}
        return {
            "description": "memo:1",
            "messages": [
                {"role": "user", "content": {"type": "resource_link", "uri": "memo:1", "name": "one"}},
                {"role": "user", "content": {"type": "resource", "resource": {"uri": "memo:2", "text": "memo:3"}}},
                {"role": "assistant", "content": {"type": "text", "text": "memo:4"}},
            ],
        }

    async with open_client(ScriptedServer("a", prompts=["p"], answers={"prompts/get": get})) as (_, client, _):
        result = await client.request("prompts/get", {"name": "a__p", "arguments": arguments})
        contents = [message["content"] for message in result["messages"]]
        assert contents[0] == {"type": "resource_link", "uri": "a+memo:1", "name": "one"}
        assert contents[1]["resource"] == {"uri": "a+memo:2", "text": "memo:3"}
        assert (contents[2]["text"], result["description"]) == ("memo:4", "memo:1")


@pytest.mark.parametrize("endpoint", [None, "a"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_results_are_in_words_that_a_client_has(revision: str, endpoint: str | None) -> None:
    """With the URIs that it can bring back (rules 59, 61)."""
    link = {"type": "resource_link", "uri": "memo:1", "name": "one", "mimeType": "text/plain"}
    sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}

    async def call(params: dict[str, Any]) -> object:
        return {"content": [link, sound], "structuredContent": {"n": 1}}

    async def get(params: dict[str, Any]) -> object:
        return {"messages": [{"role": "user", "content": block} for block in (link, sound)]}

    server = ScriptedServer("a", tools=["x"], prompts=["x"], answers={"tools/call": call, "prompts/get": get})
    name = "x" if endpoint else "a__x"
    uri = "memo:1" if endpoint else "a+memo:1"
    async with open_world(server) as world:
        client = await world.client(endpoint, revision)
        result = await client.call(name)
        messages = (await client.request("prompts/get", {"name": name}))["messages"]
        said = {"type": "text", "text": f"one: {uri} (text/plain)"}
        expected_link = said if revision in OLDER else {**link, "uri": uri}
        assert result["content"][0] == messages[0]["content"] == expected_link
        if revision == REVISIONS[0]:
            made = {"uri": "audio:1", "mimeType": "audio/wav", "blob": "AAAA"}
            assert result["content"][1] == messages[1]["content"] == {"type": "resource", "resource": made}
        else:
            assert result["content"][1] == messages[1]["content"] == sound
        if revision in OLDER:
            assert "structuredContent" not in result
        else:
            assert result["structuredContent"] == {"n": 1}
            assert len(result["content"]) == 2


async def test_a_result_that_is_structure_alone_is_text_for_those_who_do_not_know_it() -> None:
    """(rule 61)"""

    async def call(params: dict[str, Any]) -> object:
        return {"content": [], "structuredContent": {"n": 1}}

    async with open_world(ScriptedServer("a", tools=["x"], answers={"tools/call": call})) as world:
        client = await world.client(revision=OLDER[0])
        result = await client.call("a__x")
        assert [json.loads(block["text"]) for block in result["content"]] == [{"n": 1}]


@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
async def test_structure_without_content_is_also_text_and_as_clean_as_the_structure(trust: Trust) -> None:
    """(rule 61)"""

    async def call(params: dict[str, Any]) -> object:
        return {"structuredContent": {"n": "a\u202eb"}}

    consent = Consent(tools=kind(allow=["x"]))
    server = ScriptedServer("a", tools=["x"], answers={"tools/call": call}, trust=trust, consent=consent)
    async with open_world(server) as world:
        await world.settled()
        world.approves()
        result = await (await world.client()).call("a__x")
        structure = {"n": "ab" if trust is Trust.UNTRUSTED else "a\u202eb"}
        assert result["structuredContent"] == structure
        assert [json.loads(block["text"]) for block in result["content"]] == [structure]


@pytest.mark.few(6)
@pytest.mark.parametrize(("method", "params"), REACHING)
@pytest.mark.parametrize("code", [-32029, -32022, -32021, -32020])
async def test_what_a_server_says_of_its_own_hop_is_an_internal_error(
    code: int, method: str, params: dict[str, Any]
) -> None:
    """A client would believe that it is at odds with us."""
    async with open_client(refusing(code, "the header is missing", {"n": 1})) as (_, client, _):
        assert await told(client, method, params) == "-32603 the header is missing {'n': 1}"


@pytest.mark.few(6)
@pytest.mark.parametrize(("method", "params"), REACHING)
@pytest.mark.parametrize(("code", "message"), [(-32099, "not today"), (7, "odd"), (-32700, "x"), (2**53, "huge")])
async def test_any_other_code_is_the_servers_own_and_its_uri_one_to_bring_back(
    code: int, message: str, method: str, params: dict[str, Any]
) -> None:
    """(rules 4, 65)"""
    async with open_client(refusing(code, message, {"uri": "x:1", "n": 1})) as (_, client, _):
        assert await told(client, method, params) == f"{code} {message} {{'uri': 'a+x:1', 'n': 1}}"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("code", "message"),
    [(-32002, "no"), (-32602, "x:1 is unknown"), (0, "Unknown resource: x:1"), (-32603, "No such file: x:1")],
)
@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe"])
async def test_however_a_server_says_it_a_missing_resource_is_missing(code: int, message: str, method: str) -> None:
    """With the URI as the client wrote it (rules 65, 68)."""
    async with open_world(refusing(code, message, {"uri": "x:1"})) as world:
        for endpoint, uri in ((None, "a+x:1"), (None, "x:1"), ("a", "x:1")):
            client = await world.client(endpoint)
            assert await told(client, method, {"uri": uri}) == f"-32002 Resource not found {{'uri': '{uri}'}}"


# What is denied, away or not offered


async def test_annotations_decide_nothing() -> None:
    """Whatever a tool says of itself, it is listed, reached and denied like any other (rule 63)."""
    said = [
        {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
        {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
        {"title": "safe"},
        None,
        "trusted",
    ]
    tools = [tool(f"{name}{n}", annotations=each) for name in ("x", "denied") for n, each in enumerate(said)]
    consent = Consent(tools=kind(deny=("denied*",)))
    async with open_world(ScriptedServer("a", tools=tools, answers={"tools/call": echo}, consent=consent)) as world:
        client = await world.client()
        assert await client.names() == [f"a__x{n}" for n in range(len(said))]
        for n in range(len(said)):
            assert (await client.call(f"a__x{n}"))["_meta"] == {"saw": f"x{n}"}
            with pytest.raises(Refusal, match=f"-32602 Unknown tool: a__denied{n}"):
                await client.call(f"a__denied{n}")


WATCHABLE = {"resources": {"subscribe": True}}


async def test_what_cannot_be_watched_is_refused_and_no_server_asked() -> None:
    all_method: list[str] = ["resources/subscribe", "resources/unsubscribe"]
    all_params: list[tuple[Any, int]] = [
        ({}, -32602),
        ({"uri": 5}, -32602),
        ({"uri": ""}, -32002),
        ({"uri": "nobodys:1"}, -32002),
        ({"uri": "b+memo:1"}, -32002),
        ({"uri": "a+secret:1"}, -32002),
    ]
    server = ScriptedServer(
        "a",
        resources=["memo:1", "secret:1"],
        capabilities=WATCHABLE,
        consent=Consent(resources=kind(deny=("secret:**",))),
    )
    async with open_client(server) as (_, client, _):
        for params, code in all_params:
            for method in all_method:
                with pytest.raises(Refusal) as refused:
                    await client.request(method, params)
                assert refused.value.code == code
                assert method not in server.asked


async def test_a_server_that_tells_of_no_changes_is_not_asked_to() -> None:
    server = ScriptedServer("a", resources=["memo:1"])
    async with open_client(server) as (_, client, _):
        with pytest.raises(Refusal, match="-32601 a has no resource subscriptions"):
            await client.request("resources/subscribe", {"uri": "a+memo:1"})
        assert await client.request("resources/unsubscribe", {"uri": "a+memo:1"}) == {}
        assert "resources/subscribe" not in server.asked


async def test_what_a_server_refuses_to_tell_of_is_not_watched() -> None:
    """Whoever asked is told, and the next who asks is tried again (rule 88)."""
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE)

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32000, "not today"))

    server.answers["resources/subscribe"] = refuse
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.listen_changes)
        for _ in range(2):
            with pytest.raises(Refusal, match="-32000 not today"):
                await client.request("resources/subscribe", {"uri": "a+memo:1"})
        await server.notifies("notifications/resources/updated", {"uri": "memo:1"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == []
        assert server.asked.count("resources/subscribe") == 2
        del server.answers["resources/subscribe"]
        assert await client.request("resources/subscribe", {"uri": "a+memo:1"}) == {}
        await server.notifies("notifications/resources/updated", {"uri": "memo:1", "v/k": 1})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == [{"uri": "a+memo:1", "v/k": 1}]
        nursery.cancel_scope.cancel()


async def test_everybody_who_waits_for_one_subscription_is_refused_in_its_own_names() -> None:
    """(rules 65, 88)"""
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE)
    go_on = trio.Event()

    async def refuse(params: dict[str, Any]) -> object:
        await go_on.wait()
        raise PeerError(ErrorBody(-32000, "not now", encode({"uri": params["uri"]})))

    server.answers["resources/subscribe"] = refuse
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()  # else some wait for the server, and ask when the first are refused already
        waiting = []
        for endpoint, uri in ((None, "a+memo:1"), ("a", "memo:1")) * 3:
            client = await world.client(endpoint)
            waiting.append((uri, later(nursery, client.request, "resources/subscribe", {"uri": uri})))
            await wait_all_tasks_blocked()  # the request is under way before the next of them joins
        go_on.set()
        for uri, each in waiting:
            with pytest.raises(Refusal) as refused:
                await each.comes()
            assert (refused.value.code, refused.value.data) == (-32000, {"uri": uri})
        assert server.asked.count("resources/subscribe") == 1


async def test_a_part_of_what_is_watched_is_told_under_its_outward_uri_and_never_what_is_denied() -> None:
    """(rules 65, 66)"""
    deny = Consent(resources=kind(deny=("memo:1/secret",)))
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE, consent=deny)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client, alone = await world.client(), await world.client("a")
        for each, uri in ((client, "memo:1"), (alone, "memo:1")):
            nursery.start_soon(each.listen_changes)
            await each.request("resources/subscribe", {"uri": uri})
        for uri in ("memo:1", "memo:1/part", "memo:1/secret", "https://x"):
            await server.notifies("notifications/resources/updated", {"uri": uri})
        await wait_all_tasks_blocked()
        method = "notifications/resources/updated"
        # A client that wrote the server's own URI is told the one that it wrote.
        assert [params["uri"] for params in client.notifications_of(method)] == ["memo:1", "a+memo:1/part", "https://x"]
        assert [params["uri"] for params in alone.notifications_of(method)] == ["memo:1", "memo:1/part", "https://x"]
        nursery.cancel_scope.cancel()


async def test_a_watch_is_ended_while_its_server_is_away(autojump_clock: MockClock) -> None:
    """(rule 88)"""
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE)
    async with open_client(server) as (world, client, _):
        await client.request("resources/subscribe", {"uri": "a+memo:1"})
        server.dies()
        await wait_all_tasks_blocked()
        with pytest.raises(Refusal, match="503 a is unavailable"):
            await client.request("resources/subscribe", {"uri": "a+memo:2"})
        assert await client.request("resources/unsubscribe", {"uri": "a+memo:1"}) == {}
        await trio.sleep(100)
        world.upstreams["a"].main.ready_client()
        assert server.asked.count("resources/subscribe") == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/subscribe", {"uri": "a+memo:1"}),
        ("resources/unsubscribe", {"uri": "a+memo:1"}),
        ("logging/setLevel", {"level": "info"}),
    ],
)
async def test_what_only_a_session_can_keep_is_refused_without_one(method: str, params: object) -> None:
    server = ScriptedServer("a", tools=["x"], resources=["memo:1"], capabilities={**WATCHABLE, "tools": {}})
    async with open_world(server) as world:
        session = Session("test", SHARED, world.router, world.journal, memory=world.memory)
        session.skip_handshake()
        client = ScriptedClient(session)
        assert await client.names() == ["a__x"]
        with pytest.raises(Refusal, match="-32600 this method needs a session"):
            await client.request(method, params)
        assert method not in server.asked


async def test_a_level_that_is_none_is_refused_and_changes_nothing() -> None:
    """(rule 82)"""
    rows: list[object] = [{}, {"level": "loud"}, {"level": "DEBUG"}, {"level": 3}, {"level": None}]
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_client(server) as (_, client, _):
        for params in rows:
            assert await client.request("logging/setLevel", {"level": "error"}) == {}
            await wait_all_tasks_blocked()
            with pytest.raises(Refusal, match="-32602"):
                await client.request("logging/setLevel", params)
            await wait_all_tasks_blocked()
            assert server.asked.count("logging/setLevel") == 1
            assert client.session.level == "error"


async def test_a_level_is_set_whatever_servers_say_to_it() -> None:
    """Nobody waits for them (rule 82)."""

    async def hang(params: dict[str, Any]) -> object:
        await trio.sleep_forever()

    server = ScriptedServer("a", capabilities={"logging": {}}, answers={"logging/setLevel": hang})
    async with open_client(server, ScriptedServer("b", tools=["x"])) as (world, client, _):
        assert await client.request("logging/setLevel", {"level": "debug"}) == {}
        await wait_all_tasks_blocked()
        assert server.asked.count("logging/setLevel") == 1
        assert "logging/setLevel" not in world.servers["b"].asked


async def test_no_server_hears_of_another() -> None:
    """Neither names nor errors, instructions, logs or whoever asks (rules 51, 54, 98, 101)."""
    heard: dict[str, list[str]] = {"a": [], "b": []}

    def answering(id: str) -> dict[str, Any]:
        def answer(method: str) -> Any:
            async def note(params: dict[str, Any]) -> object:
                heard[id].append(f"{method} {json.dumps(params)}")
                if params.get("name") == "bad":
                    raise PeerError(ErrorBody(-32000, f"the error of {id}"))
                return {"content": [{"type": "text", "text": f"the words of {id}"}]}

            return note

        methods = ("tools/call", "tools/list", "resources/subscribe", "completion/complete", "logging/setLevel")
        return {method: answer(method) for method in methods if method != "tools/list"}

    servers = [
        ScriptedServer(
            id,
            tools=["x", "bad"],
            resources=[f"memo:{id}"],
            capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}},
            instructions=f"the instructions of {id}",
            title=f"Title {id.upper()}",
            answers=answering(id),
        )
        for id in ("a", "b")
    ]
    async with open_client(*servers, identity="the-token-of-ann", capabilities={"roots": {}}) as (_, client, _):
        await client.request("logging/setLevel", {"level": "debug"})
        for id in ("a", "b"):
            meta = {"io.modelcontextprotocol/clientInfo": {"name": "desk"}, "progressToken": "ours"}
            await client.call(f"{id}__x", _meta=meta)
            with pytest.raises(Refusal):
                await client.call(f"{id}__bad")
            await client.request("resources/subscribe", {"uri": f"{id}+memo:{id}"})
            await servers[0].notifies("notifications/message", {"level": "error", "data": f"the log of {id}"})
        await wait_all_tasks_blocked()
        for server, other in zip(servers, reversed(servers), strict=True):
            everything = "\n".join([*heard[server.id], json.dumps(server.initialize_params)])
            assert len(heard[server.id]) == 4
            for foreign in (f"of {other.id}", f"memo:{other.id}", f"{other.id}__", f"Title {other.id.upper()}"):
                assert foreign not in everything
            for private in ("ann", "desk", "ours", "session", "test", f"{server.id}__", f"{server.id}+"):
                assert private not in everything


# Races


@pytest.mark.parametrize("endpoint", [None, "a"])
async def test_a_name_that_is_gone_is_unknown_once_the_list_was_read_again(
    endpoint: str | None, autojump_clock: MockClock
) -> None:
    """And one that another server has now is that server's (rule 106)."""
    a = ScriptedServer("a", tools=["x", "stays"], answers={"tools/call": echo})
    b = ScriptedServer("b", tools=["y"])
    async with open_client(a, b, endpoint=endpoint) as (_, client, _):
        name = (await client.names())[0]
        a.lists["tools"] = [tool("stays"), tool("new")]
        b.lists["tools"].append(tool("x"))
        for server in (a, b):
            await server.notifies("notifications/tools/list_changed")
        await trio.sleep(20)
        a.asked.clear()
        with pytest.raises(Refusal, match=f"-32602 Unknown tool: {name}"):
            await client.call(name)
        assert a.asked == ["tools/list"]
        b.hears_nothing_more()
        await trio.sleep(20)
        assert a.asked == ["tools/list"]


async def test_nothing_is_said_for_a_call_after_its_answer(autojump_clock: MockClock) -> None:
    """Neither progress nor log messages that come behind it, in one piece with it or later (rules 43, 104)."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_client(server) as (_, client, nursery):
        order: list[object] = []

        def hear(message: Notification | Request) -> bool:
            order.append(message.method)
            return True

        async def call() -> None:
            asked = Request(1, "tools/call", Raw(b'{"name":"a__x","_meta":{"progressToken":1}}'))
            await client.session.answer(asked, client.session.begin(asked), hear)
            order.append("answer")

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        token = asked["_meta"]["progressToken"]

        def say(n: int) -> None:
            progress = encode({"progressToken": token, "progress": n})
            server.sends(Notification("notifications/progress", progress))
            server.sends(Notification("notifications/message", Raw(b'{"level":"error","data":1}')))

        say(1)
        server.sends(Success(asked["id"], Raw(b'{"content":[]}')))
        say(2)
        await wait_all_tasks_blocked()
        assert order[:2] == ["notifications/progress", "notifications/message"]
        assert order.count("notifications/message") == 1
        assert order[-1] == "answer"
        said = len(order)
        say(3)
        await wait_all_tasks_blocked()
        assert len(order) == said


async def test_nothing_is_said_for_a_call_that_was_called_off(autojump_clock: MockClock) -> None:
    """However much the server still says (rule 47)."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(partial(client.request, id=9), "tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
        asked = await server.hears("tools/call")
        client.notifies("notifications/cancelled", {"requestId": 9})
        params = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        for _ in range(2):
            await server.notifies("notifications/progress", params)
            await server.notifies("notifications/message", {"level": "error", "data": 1})
            with pytest.raises(Refusal, match=r"-3260[12]"):
                await server.asks("elicitation/create", {"message": "m", "requestedSchema": {}})
            await wait_all_tasks_blocked()
        server.says(asked["id"], {"content": []})
        await wait_all_tasks_blocked()
        assert (client.notifications, client.server_requests) == ([], [])


async def test_whoever_is_told_of_a_change_finds_it_made(autojump_clock: MockClock) -> None:
    """The list is read again before anybody hears (rule 97)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        found: list[list[str]] = []

        async def follow() -> None:
            seen = 0
            while True:
                await trio.sleep(0.01)
                if len(client.notifications) > seen:
                    seen = len(client.notifications)
                    found.append(await client.names())

        nursery.start_soon(follow)
        for name in ("y", "z"):
            server.lists["tools"].append(tool(name))
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(20)
        assert found == [["a__x", "a__y"], ["a__x", "a__y", "a__z"]]
        assert [method for method, _ in client.notifications] == ["notifications/tools/list_changed"] * 2
        nursery.cancel_scope.cancel()


async def test_the_time_that_a_person_takes_does_not_count(autojump_clock: MockClock) -> None:
    """The call goes on with the time that it had left (rule 48)."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_client(server, capabilities={"elicitation": {}}) as (_, client, nursery):
        results: list[tuple[float, Any]] = []

        async def call() -> None:
            result = await client.call("a__x")
            results.append((trio.current_time(), result))

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        await trio.sleep(3)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await server.asks("elicitation/create", {"message": "m", "requestedSchema": {}}))

        nursery.start_soon(ask)
        question = await client.is_asked("elicitation/create")
        await trio.sleep(300)
        assert results == []
        client.replies(question["id"], {"action": "decline"})
        await wait_all_tasks_blocked()
        assert answers == [{"action": "decline"}]
        resumed = trio.current_time()
        await trio.sleep(1.9)
        assert results == []
        await trio.sleep(1)
        ((ended, result),) = results
        assert ended - resumed == pytest.approx(2)
        assert "a did not respond within" in result["content"][0]["text"]
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


# What a server misses in a request

NEEDS: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}


@pytest.mark.few(2)
@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}])
async def test_what_a_server_needs_is_the_callers_to_declare_or_ours_to_allow(
    trust: Trust, capabilities: dict[str, Any]
) -> None:
    """A caller that did declare it must not be told to: it would for ever (rules 11, 74)."""

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32021, "needs sampling", Raw(json.dumps(NEEDS).encode())))

    server = ScriptedServer("a", prompts=["x"], revision=NEW, trust=trust, answers={"prompts/get": refuse})
    async with open_world(server) as world:
        await world.settled()
        world.approves()
        with world.auto_answering(), pytest.raises(UpstreamError) as refused:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        client = await world.client(capabilities=capabilities)
        with world.auto_answering(), pytest.raises(Refusal) as told:
            await client.request("prompts/get", {"name": "a__x"})
        if capabilities:
            assert isinstance(refused.value, Forbidden)
            assert told.value.code == 403
        else:
            assert (refused.value.code, json.loads(bytes(refused.value.data or b""))) == (-32021, NEEDS)
            assert (told.value.code, told.value.data) == (-32603, NEEDS)


EXTENSION, PAGES, TASKS = "com.example/ledger", "io.modelcontextprotocol/ui", "io.modelcontextprotocol/tasks"


@pytest.mark.few(8)
@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
@pytest.mark.parametrize("needs", [{"extensions": {name: {}}} for name in (EXTENSION, PAGES, TASKS)])
@pytest.mark.parametrize(
    "declared",
    [{}, {"extensions": {}}, {"extensions": {"com.example/other": {}}}, {"extensions": {EXTENSION: 1}}, {"roots": {}}],
)
async def test_an_extension_that_the_client_lacks_is_its_own_to_declare(
    trust: Trust, needs: dict[str, Any], declared: dict[str, Any]
) -> None:
    told, refused = await refused_for(needs, declared, trust)
    assert (refused.code, json.loads(bytes(refused.data or b""))) == (-32021, {"requiredCapabilities": needs})
    assert (told.code, told.data) == (-32603, {"requiredCapabilities": needs})


@pytest.mark.parametrize(
    ("needs", "declared"),
    [
        ({"extensions": {EXTENSION: {}}}, {"extensions": {EXTENSION: {"v": 1}}}),
        ({"experimental": {"ledger": {}}}, {"experimental": {"ledger": {}}, "roots": {}}),
        ({"sampling": {"context": {}}}, {"sampling": {"context": {}}}),
        ({"extensions": {TASKS: {}}}, {"extensions": {TASKS: {}}}),
        (
            {"roots": {}, "extensions": {EXTENSION: {}, PAGES: {}}},
            {"roots": {}, "extensions": {EXTENSION: {}, PAGES: {}}},
        ),
    ],
)
async def test_what_the_client_declares_and_nobody_passes_on_is_said_to_be_so(
    needs: dict[str, Any], declared: dict[str, Any]
) -> None:
    """Told to declare it, the client would repeat its request for ever."""
    for each in await refused_for(needs, declared, Trust.STANDARD):
        assert each.code == -32603
        assert "a client capability that Colonnade does not pass on: needs it" in str(each)


@pytest.mark.parametrize("needs", [{}, {"elicitation": 1}])
async def test_a_server_that_names_no_capability_is_not_said_to_lack_a_permission(needs: dict[str, Any]) -> None:
    told, refused = await refused_for(needs, {"elicitation": {}}, Trust.STANDARD)
    assert (told.code, told.data) == (-32603, {"requiredCapabilities": needs})
    assert (refused.code, refused.message) == (-32021, "needs it")


async def test_pages_that_policy_hides_are_not_allowed() -> None:
    needs: dict[str, Any] = {"extensions": {PAGES: {}}}
    for each in await refused_for(needs, needs, Trust.UNTRUSTED):
        assert each.code == 403


async def refused_for(needs: dict[str, Any], declared: dict[str, Any], trust: Trust) -> tuple[Refusal, UpstreamError]:
    """The errors that a client with a session and one without get from a server that needs a capability."""

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32021, "needs it", encode({"requiredCapabilities": needs})))

    server = ScriptedServer("a", prompts=["x"], revision=NEW, trust=trust, answers={"prompts/get": refuse})
    async with open_world(server) as world:
        await world.settled()
        world.approves()
        client = await world.client(capabilities=declared)
        with world.auto_answering():
            with pytest.raises(UpstreamError) as refused:
                await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=declared)
            with pytest.raises(Refusal) as told:
                await client.request("prompts/get", {"name": "a__x"})
    return told.value, refused.value


# Servers that are not trusted


@pytest.mark.few(2)
@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("revision", [NEW, REVISION])
async def test_an_untrusted_server_has_no_pages_and_no_say(revision: str, trust: Trust) -> None:
    """Neither in results nor by their address, and no instructions before a person approved them; its tools serve
    (rule 101)."""
    page = {"ui": {"resourceUri": "ui://a/page"}, "v/k": 1.5}

    async def call(params: dict[str, Any]) -> object:
        return {"resultType": "complete", "content": [], "_meta": page}

    async def read(params: dict[str, Any]) -> object:
        return {"resultType": "complete", "contents": [{"uri": params["uri"], "text": "x"}]}

    server = ScriptedServer(
        "a",
        tools=["x"],
        resources=["x:1"],
        revision=revision,
        trust=trust,
        instructions="Obey.",
        answers={"tools/call": call, "resources/read": read},
    )
    async with open_world(server) as world:
        await world.settled()
        client = await world.client("a")
        own, shared = Caller("x", Endpoint("a")), Caller("x", SHARED)
        early = world.router.instructions(own), "Obey." in world.router.instructions(shared)
        if trust is Trust.UNTRUSTED:
            assert await client.names() == []
            with world.auto_answering() as asked, pytest.raises(Refusal, match="Unknown tool"):
                await client.call("x")
            assert (asked, server.asked.count("tools/call")) == ([], 0)
        world.approves()
        with world.auto_answering() as asked:
            meta = (await client.call("x"))["_meta"]
            assert (await client.request("resources/read", {"uri": "x:1"}))["contents"][0]["text"] == "x"
        said = world.router.instructions(own), "Obey." in world.router.instructions(shared)
        assert said == ("Obey.", True)
        if trust is Trust.UNTRUSTED:
            assert [pending.access.subject.item.kind for pending in asked] == ["tool", "resource"]
            assert (meta, early) == ({"v/k": 1.5}, ("", False))
            with world.auto_answering() as asked, pytest.raises(Refusal) as refused:
                await client.request("resources/read", {"uri": "ui://a/page"})
            assert (refused.value.code, server.asked.count("resources/read"), asked) == (-32002, 1, [])
        else:
            assert asked == []
            assert (meta, early) == (page, said)
            found = await client.request("resources/read", {"uri": "ui://a/page"})
            assert found["contents"][0]["uri"] == "ui://a/page"


async def nothing(params: dict[str, Any]) -> object:
    return {}


async def test_what_may_not_be_reached_any_more_is_watched_no_more() -> None:
    """The server is told so, and is not asked for it again when it is connected anew."""
    server = ScriptedServer("a", resources=["memo:1", "memo:2"], capabilities=WATCHABLE)
    server.answers |= {"resources/subscribe": nothing, "resources/unsubscribe": nothing}
    async with open_client(server) as (world, client, nursery):
        nursery.start_soon(client.listen_changes)
        for uri in ("a+memo:1", "a+memo:2"):
            await client.request("resources/subscribe", {"uri": uri})
        server.spec = replace(server.spec, consent=Consent(resources=kind(deny=["memo:1"])))
        world.configures(server)
        await wait_all_tasks_blocked()
        assert server.asked.count("resources/unsubscribe") == 1
        await server.notifies("notifications/resources/updated", {"uri": "memo:1"})
        await server.notifies("notifications/resources/updated", {"uri": "memo:2"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == [{"uri": "a+memo:2"}]
        nursery.cancel_scope.cancel()


async def test_what_an_untrusted_server_says_of_a_change_is_cleaned() -> None:
    allowed = Consent(resources=kind(default="allow"))
    server = ScriptedServer("a", resources=["memo:1"], capabilities=WATCHABLE, consent=allowed, trust=Trust.UNTRUSTED)
    server.answers["resources/subscribe"] = nothing
    async with open_client(server) as (world, client, nursery):
        nursery.start_soon(client.listen_changes)
        await world.settled()
        world.approves()
        await client.request("resources/subscribe", {"uri": "a+memo:1"})
        await server.notifies("notifications/resources/updated", {"uri": "memo:1", "v/k": "a\u202eb\x1b[31mc"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated") == [{"uri": "a+memo:1", "v/k": "abc"}]
        nursery.cancel_scope.cancel()


# Sessions that a server has forgotten


class ForgettingLink(MemoryLink):
    """The host's end of a session over HTTP: once the server has forgotten it, the next of `methods` gets a 404."""

    def __init__(self, server: Forgetful, link: MemoryLink) -> None:
        super().__init__(link._outgoing, link._incoming)
        self._server = server
        self._is_over = False

    async def run(self, deliver: Deliver) -> None:
        try:
            await super().run(deliver)
        except LinkLost:
            raise (SessionEnded() if self._is_over else LinkLost("gone")) from None

    async def send(self, parcel: Parcel) -> None:
        message = parcel.message
        if isinstance(message, Request) and message.method in self._server.methods and self._server.forgets:
            self._server.forgets -= 1
            self._server.refused.append(message.method)
            await self._server.before_refusal(message)
            self._is_over = True
            self.close()
            if self._server.ends_first:
                await trio.lowlevel.checkpoint()
            raise SessionEnded(nothing_begun=True)
        await super().send(parcel)


class Forgetful(ScriptedServer):
    """`forgets` so many sessions, each at the next of `methods`; `refused` has those requests."""

    def __init__(self, **more: Any) -> None:
        super().__init__("a", **{"tools": ["x"], "answers": {"tools/call": echo}, **more})
        self.methods: tuple[str, ...] = ("tools/call",)
        self.forgets = 0
        self.ends_first = True
        """The end of the link is noticed before the end of the request."""
        self.refused: list[str] = []

    async def before_refusal(self, request: Request) -> None:
        return

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        async with super().open_link() as link:
            assert isinstance(link, MemoryLink)
            yield ForgettingLink(self, link)


def outcomes(world: World) -> list[str]:
    return [str(event).partition(": ")[2] for event in world.events if isinstance(event, RequestCompleted)]


@pytest.mark.few(2)
@pytest.mark.parametrize("isolation", [Isolation.SHARED, Isolation.PER_CLIENT])
@pytest.mark.parametrize("age", [0.0, 1.0, 100.0])
async def test_a_call_of_a_forgotten_session_is_sent_once_more(
    isolation: Isolation, age: float, autojump_clock: MockClock
) -> None:
    """The server did not process it: another session is opened for it (rule 32)."""
    server = Forgetful(isolation=isolation)
    async with open_client(server) as (_, client, _):
        assert "isError" not in await client.call("a__x")
        await trio.sleep(age)
        server.forgets, server.asked = 1, []
        assert "isError" not in await client.call("a__x", {"n": 1})
        assert (server.refused, server.asked.count("tools/call")) == (["tools/call"], 1)
        assert server.asked.count("initialize") == 1


async def test_all_calls_that_a_server_refused_with_the_session_are_sent_once_more(autojump_clock: MockClock) -> None:
    """Those that were in flight at the same time, too."""

    class Slow(Forgetful):
        async def before_refusal(self, request: Request) -> None:
            await trio.sleep(0.2 * len(self.refused))

    server = Slow()
    async with open_client(server) as (_, client, nursery):
        await trio.sleep(20)
        server.forgets, server.asked = 3, []
        calls = [later(nursery, client.call, "a__x") for _ in range(3)]
        for call in calls:
            assert "isError" not in await call.comes()
        assert (len(server.refused), server.asked.count("tools/call"), server.asked.count("initialize")) == (3, 3, 1)


async def test_a_call_is_sent_once_more_only_once(autojump_clock: MockClock) -> None:
    server = Forgetful()
    async with open_client(server) as (_, client, _):
        await trio.sleep(20)
        server.forgets = 10
        result = await client.call("a__x")
        assert result["isError"]
        assert result["content"][0]["text"] == (
            "a did not process the request: the server has ended the session (HTTP 404)"
        )
        assert (server.refused, server.asked.count("tools/call")) == (["tools/call"] * 2, 0)


async def test_a_call_is_sent_once_more_although_others_were_answered_meanwhile(autojump_clock: MockClock) -> None:
    """A response to another request is not about this one."""

    class Busy(Forgetful):
        async def before_refusal(self, request: Request) -> None:
            self.says((await self.hears("tools/call"))["id"], {"content": []})
            await wait_all_tasks_blocked()

    server = Busy(answers={})
    async with open_client(server) as (_, client, nursery):
        await trio.sleep(20)
        first = later(nursery, client.call, "a__x")
        await wait_all_tasks_blocked()
        server.forgets = 1
        second = later(nursery, client.call, "a__x", {"n": 2})
        assert await first.comes() == {"content": []}
        again = await server.hears("tools/call")
        assert again["arguments"] == {"n": 2}
        server.says(again["id"], {"content": []})
        assert await second.comes() == {"content": []}
        server.hears_nothing_more()


async def test_a_call_is_not_sent_again_if_anything_was_heard_meanwhile(autojump_clock: MockClock) -> None:
    """It may be about the call, which then may have run (rule 38)."""

    class Progressing(Forgetful):
        async def before_refusal(self, request: Request) -> None:
            await self.notifies("notifications/message", {"level": "info", "data": "at work"})
            await wait_all_tasks_blocked()

    server = Progressing()
    async with open_client(server) as (_, client, _):
        await trio.sleep(20)
        server.forgets = 1
        result = await client.call("a__x")
        assert result["content"][0]["text"].endswith("(HTTP 404); the tool may have run")
        await trio.sleep(100)
        assert (server.refused, server.asked.count("tools/call")) == (["tools/call"], 0)


async def test_other_calls_of_the_forgotten_session_are_not_sent_again(autojump_clock: MockClock) -> None:
    """It is not known whether the server processed them (rule 38)."""
    server = Forgetful(answers={})
    async with open_client(server) as (_, client, nursery):
        await trio.sleep(20)
        running = later(nursery, client.call, "a__x")
        await server.hears("tools/call")
        server.forgets = 1
        other = later(nursery, client.call, "a__x")
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        assert await other.comes() == {"content": []}
        assert (await running.comes())["content"][0]["text"].endswith("the tool may have run")
        server.hears_nothing_more()


async def test_polls_of_a_task_do_not_send_its_call_again(autojump_clock: MockClock) -> None:
    """The call was processed; its task is unknown in another session."""
    tasks: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    server = Forgetful(
        tools=[tool("x", execution={"taskSupport": "required"})], capabilities={"tools": {}, "tasks": tasks}, answers={}
    )
    server.methods = ("tasks/get", "tasks/result")

    async def begin(params: dict[str, Any]) -> object:
        task = {
            "taskId": "1",
            "status": "working",
            "ttl": 60000,
            "pollInterval": 10,
            "createdAt": "2026-01-01T00:00:00Z",
        }
        return {"task": {**task, "lastUpdatedAt": "2026-01-01T00:00:00Z"}}

    server.answers["tools/call"] = begin
    async with open_client(server) as (_, client, _):
        await trio.sleep(20)
        server.forgets = 1
        result = await client.call("a__x")
        assert result["isError"]
        assert (len(server.refused), server.asked.count("tools/call")) == (1, 1)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "a__p"}),
        ("resources/read", {"uri": "a+memo:1"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "a__p"}, "argument": {"name": "n", "value": "v"}},
        ),
    ],
)
async def test_other_requests_of_a_forgotten_session_are_sent_once_more(
    method: str, params: dict[str, Any], autojump_clock: MockClock
) -> None:
    answers = {
        "prompts/get": {"messages": []},
        "resources/read": {"contents": []},
        "completion/complete": {"completion": {"values": ["v1"]}},
    }

    async def answer(params: dict[str, Any]) -> object:
        return answers[method]

    capabilities: dict[str, Any] = {"prompts": {}, "resources": {}, "completions": {}}
    server = Forgetful(prompts=["p"], resources=["memo:1"], answers={method: answer}, capabilities=capabilities)
    server.methods = (method,)
    async with open_client(server) as (_, client, _):
        await trio.sleep(20)
        server.forgets = 1
        assert await client.request(method, params) == answers[method]
        assert (server.refused, server.asked.count(method)) == ([method], 1)


async def test_a_call_that_is_sent_once_more_is_one_call(autojump_clock: MockClock) -> None:
    """A person confirms it once, and it is recorded once."""
    server = Forgetful(consent=Consent(tools=kind(ask=["*"])))
    async with open_client(server) as (world, client, _):
        await trio.sleep(20)
        server.forgets = 1
        with world.auto_answering() as asked:
            assert "isError" not in await client.call("a__x")
        assert len(asked) == 1
        assert len(outcomes(world)) == 1


async def test_what_another_session_defines_otherwise_is_not_sent_again(autojump_clock: MockClock) -> None:
    server = Forgetful()
    async with open_client(server) as (_, client, _):
        await trio.sleep(20)
        server.forgets = 1
        server.lists["tools"] = [tool("x", description="Something else.")]
        assert (await client.call("a__x"))["isError"]
        assert (server.refused, server.asked.count("tools/call")) == (["tools/call"], 0)


async def test_a_call_whose_session_is_not_to_be_had_any_more_is_sent_statelessly(autojump_clock: MockClock) -> None:
    server = Forgetful(eras=Eras.BOTH, revision=LATEST.name, session_revision=LATEST_LEGACY.name)

    async def answer(params: dict[str, Any]) -> object:
        return {"content": [], **({"resultType": "complete"} if says_revision(params) else {})}

    server.answers["tools/call"] = answer
    async with open_client(server) as (_, client, _):
        assert "isError" not in await client.call("a__x")
        server.session_revision = None
        server.forgets = 1
        assert await client.call("a__x") == {"content": []}
        assert [era for era, method in server.asked_in if method == "tools/call"] == ["handshake", "stateless"]
        assert server.refused == ["tools/call"]


async def test_a_completion_that_waited_while_a_session_opened_is_sent_over_that(autojump_clock: MockClock) -> None:
    """No definition says how to complete, so it need not be the one of the era."""
    freed = trio.Event()

    async def complete(params: dict[str, Any]) -> object:
        await freed.wait()
        return {"completion": {"values": ["v"]}, **({"resultType": "complete"} if says_revision(params) else {})}

    server = ScriptedServer(
        "a",
        prompts=["p"],
        eras=Eras.BOTH,
        revision=LATEST.name,
        session_revision=None,
        capabilities={"prompts": {}, "completions": {}},
        answers={"completion/complete": complete},
        limits=Limits(concurrent=1),
    )
    completed: list[Any] = []
    async with open_client(server) as (world, client, nursery):
        params = {"ref": {"type": "ref/prompt", "name": "a__p"}, "argument": {"name": "q", "value": "v"}}

        async def completes() -> None:
            completed.append((await client.request("completion/complete", params))["completion"]["values"])

        assert (await client.request("prompts/list"))["prompts"] != []
        await trio.sleep(ABSENT_FOR - 1)
        nursery.start_soon(completes)
        await trio.sleep(2)
        server.session_revision = LATEST_LEGACY.name
        nursery.start_soon(completes)
        await client.request("prompts/list")
        await trio.sleep(1)
        assert [era for era, method in server.asked_in if method == "completion/complete"] == ["stateless"]
        assert world.upstreams["a"].for_sessions is world.upstreams["a"].session
        freed.set()
        await trio.sleep(1)
        assert completed == [["v"], ["v"]]
        assert [era for era, method in server.asked_in if method == "completion/complete"] == ["stateless", "handshake"]


@pytest.mark.parametrize("fails", ["handshake", "stateless"])
async def test_no_list_takes_the_place_of_one_that_could_not_be_read(fails: str, autojump_clock: MockClock) -> None:
    """Its entries would be shown, and could not be called over the connection that serves these clients."""
    is_broken = True

    async def list_tools(params: dict[str, Any]) -> object:
        is_stateless = says_revision(params)
        if is_broken and is_stateless == (fails == "stateless"):
            raise PeerError(ErrorBody(-32603, "broken"))
        return {"tools": [tool("x")], **({"resultType": "complete"} if is_stateless else {})}

    async def call(params: dict[str, Any]) -> object:
        return {"content": [], **({"resultType": "complete"} if says_revision(params) else {})}

    both: dict[str, Any] = {"eras": Eras.BOTH, "revision": LATEST.name, "session_revision": LATEST_LEGACY.name}
    server = ScriptedServer("a", prompts=["p"], capabilities={"tools": {}, "prompts": {}}, **both)
    server.answers |= {"tools/list": list_tools, "tools/call": call}
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()

        async def listed(method: str) -> Any:
            if fails == "handshake":
                return await client.request(method)
            answer = await world.mrtr_round(method, {})
            assert isinstance(answer, Answered)
            return value(answer.result)

        async def calls() -> object:
            if fails == "handshake":
                return await client.call("a__x")
            answer = await world.mrtr_round("tools/call", {"name": "a__x", "arguments": {}})
            assert isinstance(answer, Answered)
            return value(answer.result)

        assert await client.names() == ([] if fails == "handshake" else ["a__x"])
        found = await listed("tools/list")
        assert (found["tools"], found["_meta"]) == ([], {"colonnade/missingServers": ["a"]})
        assert [each["name"] for each in (await listed("prompts/list"))["prompts"]] == ["a__p"]
        with pytest.raises((Refusal, UnknownEntry), match="Unknown tool: a__x"):
            await calls()
        is_broken = False
        await trio.sleep(2 * INITIAL_RETRY_DELAY)
        assert [each["name"] for each in (await listed("tools/list"))["tools"]] == ["a__x"]
        assert await calls() == {"content": []}
        assert [era for era, method in server.asked_in if method == "tools/call"] == [fails]


@pytest.mark.parametrize("changes", [LATEST.name, LATEST_LEGACY.name])
async def test_a_server_of_another_era_shows_no_list_that_it_had_in_the_former_one(
    changes: str, autojump_clock: MockClock
) -> None:
    """If it could not be read in the new one; before, it is shown as that of any server that is away."""
    is_broken = False

    async def list_tools(params: dict[str, Any]) -> object:
        if is_broken:
            raise PeerError(ErrorBody(-32603, "broken"))
        return {"tools": [tool("x")], **({"resultType": "complete"} if says_revision(params) else {})}

    began_as = LATEST_LEGACY.name if changes == LATEST.name else LATEST.name
    server = ScriptedServer("a", prompts=["p"], capabilities={"tools": {}, "prompts": {}}, revision=began_as)
    server.answers["tools/list"] = list_tools
    async with open_client(server) as (_, client, _):
        assert await client.names() == ["a__x"]
        is_broken, server.revision, server.stateless = True, changes, changes == LATEST.name
        assert server.link is not None
        server.link.close()
        assert await client.names() == ["a__x"]
        await trio.sleep(10)
        assert await client.names() == []
        with pytest.raises(Refusal, match="Unknown tool: a__x"):
            await client.call("a__x")
        is_broken = False
        await trio.sleep(60)
        assert await client.names() == ["a__x"]


async def test_the_time_in_which_a_person_was_asked_is_not_waited_for_a_start(autojump_clock: MockClock) -> None:
    """Another wait for a start begins anew, also if the request had waited for the lists before."""
    start, listing = 5.0, 0.0

    class Slow(ScriptedServer):
        async def _answer(self, request: Request) -> Raw:
            if request.method in ("initialize", "server/discover"):
                await trio.sleep(start)
            elif request.method == "tools/list":
                await trio.sleep(listing)
            return await super()._answer(request)

    async def call(params: dict[str, Any]) -> object:
        return {"content": [], **({"resultType": "complete"} if says_revision(params) else {})}

    consent = Consent(tools=kind(ask=["*"]))
    server = Slow("a", tools=["x"], revision=LATEST.name, answers={"tools/call": call}, consent=consent)
    results: list[object] = []
    async with open_world(server, start_grace=20.0) as world, trio.open_nursery() as nursery:
        client, confirmations = await world.client(), world.gate.authorizer.confirmations

        async def calls() -> None:
            results.append(await client.call("a__x"))

        def answer() -> None:
            (pending,) = confirmations.list_all()
            awaited(confirmations.answer(pending.id, ConfirmationAnswer.ONCE, Channel.CONSOLE, exact=False))

        with confirmations.attach(Channel.CONSOLE):
            nursery.start_soon(calls)
            await trio.sleep(10)
            assert confirmations.list_all()
            server.revision, server.stateless, former = LATEST_LEGACY.name, False, server.link
            assert former is not None
            former.close()
            await trio.sleep(server.spec.timeout - 18)
            listing = 1000.0
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(1)
            answer()
            await trio.sleep(1)
            listing, start = 0.0, 10.0
            world.upstreams.apply({"a": server.spec}, ["a"])
            await trio.sleep(20)
        assert (results, confirmations.list_all()) == ([{"content": []}], [])


async def test_a_completion_waits_for_old_lists_once_since_no_person_is_asked(autojump_clock: MockClock) -> None:
    pace = 0.0

    class Slow(ScriptedServer):
        async def _answer(self, request: Request) -> Raw:
            if request.method.endswith("/list"):
                await trio.sleep(pace)
            return await super()._answer(request)

    async def complete(params: dict[str, Any]) -> object:
        return {"completion": {"values": ["v"]}}

    capabilities: dict[str, Any] = {"prompts": {}, "completions": {}}
    server = Slow("a", prompts=["p"], capabilities=capabilities, consent=Consent(prompts=kind(ask=["*"])))
    server.answers["completion/complete"] = complete
    async with open_client(server) as (world, client, nursery):
        confirmations = world.gate.authorizer.confirmations
        with confirmations.attach(Channel.CONSOLE):
            nursery.start_soon(client.request, "prompts/get", {"name": "a__p"})
            await wait_all_tasks_blocked()
            (pending,) = confirmations.list_all()
            awaited(confirmations.answer(pending.id, ConfirmationAnswer.ALWAYS, Channel.CONSOLE, exact=False))
        await trio.sleep(30)
        pace, began = 20.0, trio.current_time()
        params = {"ref": {"type": "ref/prompt", "name": "a__p"}, "argument": {"name": "q", "value": "v"}}
        assert (await client.request("completion/complete", params))["completion"]["values"] == ["v"]
        assert trio.current_time() - began == REREAD_WAIT
        nursery.cancel_scope.cancel()


async def test_a_session_whose_only_list_is_refused_serves_nobody(autojump_clock: MockClock) -> None:
    """Not for a moment, and no list of it counts as one that could not be read."""
    versions = {"revision": LATEST.name, "session_revision": LATEST_LEGACY.name}
    server = Forgetful(eras=Eras.BOTH, capabilities={"tools": {}}, **versions)
    server.methods = ("tools/list",)
    async with open_world(server) as world:
        await world.settled()
        server.forgets, server.ends_first = 100, False
        client = await world.client()
        assert await client.names() == ["a__x"]
        assert not [event for event in world.events if isinstance(event, SessionOpened | EntryOmitted)]
        assert server.asked.count("initialize") == 1


# Views: what a caller is offered is all there is for it


def in_view(name: str = "v", server: str | None = None, caller: str = "") -> Endpoint:
    return Endpoint(server, name, caller)


A_PART = ViewSpec(
    servers={"a": ViewServer(tools=("x", "secret"), resources=("memo:**", "secret:**"), prompts=("x", "secret"))}
)


def of_a(**spec: Any) -> ScriptedServer:
    """A server of which A_PART has one entry of each kind, and another one that is denied."""

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}]}

    async def complete(params: dict[str, Any]) -> object:
        return {"completion": {"values": ["done"]}}

    async def get(params: dict[str, Any]) -> object:
        return {"messages": []}

    deny = kind(deny=("secret*", "secret:**"))
    return ScriptedServer(
        "a",
        tools=["x", "y", "secret"],
        prompts=["x", "y", "secret"],
        resources=["memo:1", "other:1", "secret:1"],
        answers={"tools/call": echo, "prompts/get": get, "resources/read": read, "completion/complete": complete},
        consent=Consent(tools=deny, resources=deny, prompts=deny),
        capabilities={"tools": {}, "prompts": {}, "completions": {}, "resources": {"subscribe": True}, "logging": {}},
        **spec,
    )


@pytest.mark.few(3)
@pytest.mark.parametrize("at", [None, "a"])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "NAME"}),
        ("prompts/get", {"name": "NAME"}),
        ("resources/read", {"uri": "URI"}),
        ("resources/subscribe", {"uri": "URI"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "NAME"}, "argument": {}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "URI"}, "argument": {}}),
    ],
)
async def test_what_a_view_does_not_have_is_answered_as_what_does_not_exist(
    method: str, params: dict[str, Any], at: str | None
) -> None:
    """At the address of all servers and at that of one. No server hears of it."""
    server = of_a()
    async with open_world(server, ScriptedServer("b", tools=["x"]), views={"v": A_PART}) as world:
        client = await world.client(in_view(server=at))

        async def answer(name: str, uri: str) -> str:
            outward = (name, uri) if at else (f"a__{name}", f"a+{uri}")
            asked = json.dumps(params).replace("NAME", outward[0]).replace("URI", outward[1])
            server.asked.clear()
            try:
                await client.request(method, json.loads(asked))
            except Refusal as refusal:
                assert method not in server.asked
                said = f"{refusal.code} {refusal.message} {refusal.data}"
                return said.replace(outward[1], "URI").replace(outward[0], "NAME")
            return "answered"

        assert await answer("x", "memo:1") == "answered"
        denied = await answer("secret", "secret:1")
        assert await answer("y", "other:1") == denied
        assert await answer("absent", "absent:1") == denied
        assert await answer("y", "memo:../other:1/../../other:1") in (denied, "answered")


async def test_a_server_that_a_view_does_not_have_is_as_one_that_is_not_configured() -> None:
    b = ScriptedServer("b", tools=["x"], resources=["memo:1", "https://h/b"])
    async with open_world(of_a(), b, views={"v": A_PART}) as world:
        client = await world.client(in_view())
        answers = [
            [await told(client, "tools/call", {"name": f"{id}__x"}), await told(client, "resources/read", {"uri": uri})]
            for id, uri in (("b", "b+memo:1"), ("c", "c+memo:1"))
        ]
        assert answers[0] == [each.replace("c__", "b__").replace("c+", "b+") for each in answers[1]]
        with pytest.raises(Refusal, match="-32002"):
            await client.request("resources/read", {"uri": "https://h/b"})
        assert b.asked.count("resources/read") == 0
        assert [each[3] for each in refused(world)] == [""] * 5


@pytest.mark.parametrize("uri", ["memo:1", "a+memo:1"])
async def test_an_attempt_on_what_is_outside_a_view_is_recorded_as_one_on_nothing(uri: str) -> None:
    async with open_world(of_a(), views={"v": ViewSpec(servers={"a": ViewServer(tools=("x",))})}) as world:
        client = await world.client(in_view())
        for method, params in (("tools/call", {"name": "a__y"}), ("resources/read", {"uri": uri})):
            with pytest.raises(Refusal):
                await client.request(method, params)
        assert [each[0] for each in refused(world)] == [Reason.MISSING] * 2


async def test_a_view_with_plain_names_calls_by_them() -> None:
    plain = ViewSpec(names=ViewNames(NameStyle.PLAIN), servers={"a": ALL, "b": ViewServer(tools=("*",))})
    b = ScriptedServer("b", tools=["z", "x", "odd name"], answers={"tools/call": echo})
    async with open_world(of_a(), b, views={"v": plain}) as world:
        client = await world.client(in_view())
        tools = await client.names()
        assert tools[:2] == ["y", "z"], "both have x"
        assert (await client.call("y"))["_meta"] == {"saw": "y"}
        assert (await client.call(tools[2]))["_meta"] == {"saw": "odd name"}
        for name in ("x", "a__y", "b__z"):
            with pytest.raises(Refusal, match=f"-32602 Unknown tool: {name}"):
                await client.call(name)
        assert await client.names("resources/list", "uri") == ["a+memo:1", "a+other:1"]
        assert await client.names("prompts/list") == ["x", "y"]


async def test_plain_names_that_are_denied_and_missing_take_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of each server of the view are asked, the lists of each are read again, and the answer is the same."""
    servers = (of_a(), ScriptedServer("b", tools=["z"]), ScriptedServer("c", tools=["x"]))
    plain = ViewSpec(names=ViewNames(NameStyle.PLAIN), servers={"a": ALL, "b": ALL})
    async with open_world(*servers, views={"v": plain}) as world:
        client = await world.client(in_view())
        asked: list[str] = []
        is_known = world.gate.definitions.is_known

        def asking(ref: EntryRef, caller: str) -> bool:
            asked.append(ref.server)
            return is_known(ref, caller)

        monkeypatch.setattr(world.gate.definitions, "is_known", asking)
        found = []
        for name in ("secret", "absent"):
            asked.clear()
            with pytest.raises(Refusal, match=f"-32602 Unknown tool: {name}"):
                await client.call(name)
            found.append(tuple(asked))
        assert found[0] == found[1]
        assert set(found[0]) == {"a", "b"}
        assert refused(world) == [(Reason.DENIED, "tool", "secret", "a"), (Reason.MISSING, "tool", "absent", "")]


async def test_a_plain_name_waits_for_each_server_of_the_view(autojump_clock: MockClock) -> None:
    """A client without a session may ask while the server starts that has it. Others are not waited for."""

    async def slowly(params: dict[str, Any]) -> object:
        await trio.sleep(3)
        return {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": {}}

    late = ScriptedServer("late", tools=["z"], answers={"initialize": slowly, "tools/call": echo})
    never = ScriptedServer("never", answers={"initialize": _never})
    plain = ViewSpec(names=ViewNames(NameStyle.PLAIN), servers={"a": ALL, "late": ALL})
    async with open_world(of_a(), late, never, views={"v": plain}) as world:
        answer = await world.mrtr_round("tools/call", {"name": "z", "arguments": {}}, endpoint=in_view())
        assert isinstance(answer, Answered)
        assert trio.current_time() < 5


async def test_a_plain_name_is_no_servers_until_it_is_known_that_no_other_has_it(autojump_clock: MockClock) -> None:
    async def slowly(params: dict[str, Any]) -> object:
        await trio.sleep(3)
        return {"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": {}}

    late = ScriptedServer("late", tools=["y"], answers={"initialize": slowly})
    plain = ViewSpec(names=ViewNames(NameStyle.PLAIN))
    a = ScriptedServer("a", tools=["y", "z"], answers={"tools/call": echo})
    async with open_world(a, late, views={"v": plain}) as world:
        await trio.sleep(1)
        with pytest.raises(UnknownEntry):
            await world.mrtr_round("tools/call", {"name": "y", "arguments": {}}, endpoint=in_view())
        answer = await world.mrtr_round("tools/call", {"name": "z", "arguments": {}}, endpoint=in_view())
        assert isinstance(answer, Answered)


async def _never(params: dict[str, Any]) -> object:
    await trio.sleep_forever()


async def test_what_a_view_loses_is_heard_of_no_more() -> None:
    """A watch ends, and a call that a person is asked about is not sent."""
    server, updated = of_a(), "notifications/resources/updated"
    server.spec = replace(server.spec, consent=Consent(tools=kind(ask=("x",))))
    async with open_world(server, views={"v": A_PART}) as world, trio.open_nursery() as nursery:
        client, confirmations = await world.client(in_view()), world.gate.authorizer.confirmations
        nursery.start_soon(client.listen_changes)
        await client.request("resources/subscribe", {"uri": "a+memo:1"})
        for uri in ("memo:1", "memo:1/part", "other:1"):
            await server.notifies(updated, {"uri": uri})
        await wait_all_tasks_blocked()
        assert client.notifications_of(updated) == [{"uri": "a+memo:1"}, {"uri": "a+memo:1/part"}]
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await client.call("a__x"))

        with confirmations.attach(Channel.CONSOLE):
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            world.configures(server, views={"v": ViewSpec(servers={"a": ViewServer(prompts=("*",))})})
            (pending,) = confirmations.list_all()
            awaited(confirmations.answer(pending.id, ConfirmationAnswer.ONCE, Channel.CONSOLE, exact=False))
            await wait_all_tasks_blocked()
        assert answers[0]["isError"]
        assert "tools/call" not in server.asked
        await server.notifies(updated, {"uri": "memo:1"})
        await wait_all_tasks_blocked()
        assert len(client.notifications_of(updated)) == 2
        assert "resources/unsubscribe" in server.asked
        nursery.cancel_scope.cancel()


async def test_a_client_is_told_what_its_view_has(autojump_clock: MockClock) -> None:
    """Of a server that is not known yet it may have everything."""
    only_tools = ViewSpec(servers={"a": ViewServer(tools=("*",))})
    views = {"v": only_tools, "b": ViewSpec(servers={"b": ALL}), "both": ViewSpec(servers={"a": ALL, "b": ALL})}
    views["late"] = ViewSpec(servers={"late": ALL})
    b = ScriptedServer("b", tools=["x"])
    late = ScriptedServer("late", answers={"initialize": _never})
    async with open_world(of_a(), b, late, views=views) as world:
        await world.upstreams.by_id["b"].main.life.settled.wait()
        declared: dict[str, Any] = {}
        for view in ("v", "b", "both", "late", ""):
            client = await world.client(in_view(view))
            declared[view] = client.opened["capabilities"]  # type: ignore[attr-defined]
        assert declared["v"] == {"tools": {"listChanged": True}, "logging": {}}
        assert declared["b"] == {"tools": {"listChanged": True}}
        assert declared["both"] == declared["late"] == declared[""]
        own = await world.client(in_view("v", server="a"))
        assert sorted(own.opened["capabilities"]) == ["logging", "tools"]  # type: ignore[attr-defined]
        client = await world.client(in_view("v"))
        assert await client.names("prompts/list") == []


async def test_results_are_private_where_callers_are_offered_different_things() -> None:
    server = of_a(revision=LATEST.name)

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [], "ttlMs": 60_000, "cacheScope": "public", "resultType": "complete"}

    server.answers["resources/read"] = read
    server.ttl_ms, server.scope = 60_000, "public"
    for views, public in (({"v": A_PART}, True), ({"v": replace(A_PART, callers=("ann",))}, False)):
        async with open_world(server, views=views, callers={"ann": CallerSpec("t")}) as world:
            await world.settled()
            for endpoint in (SHARED, in_view()):
                for method, params in (("tools/list", {}), ("resources/read", {"uri": "a+memo:1"})):
                    answer = await world.mrtr_round(method, params, endpoint=endpoint)
                    assert isinstance(answer, Answered)
                    assert answer.freshness.ttl_ms > 0
                    assert answer.freshness.public is public
