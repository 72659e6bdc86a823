"""Stateless requests over HTTP: what status every fault has and which is found first, both eras at one address, headers
that mirror the body, streams, and clients that leave."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Auth, Capacity, Consent, Listen, Secret
from host.downstream.http.replies import MAX_KEPT, STREAM_DEADLINE
from host.jsonrpc.messages import ErrorBody
from host.jsonrpc.raw import encode
from host.peer.outstanding import PeerError
from host.wire.asgi import HEARTBEAT_INTERVAL
from host.wire.client_socket import ALARMS_A_SECOND
from tests.kit.asgi import IO, LATEST, Connection, HeaderValue, open_http_app, open_session
from tests.kit.gates import kind
from tests.kit.world import Refusal, ScriptedServer, tool

LISTEN = "subscriptions/listen"
META = {f"{IO}protocolVersion": LATEST, f"{IO}clientCapabilities": {}}
SERVED = [LATEST, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
OK = {"content": [{"type": "text", "text": "ok"}]}


def body(method: str = "tools/list", *, id: object = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": META, **params}}


def headers(method: str = "tools/list", **more: HeaderValue) -> dict[str, HeaderValue]:
    return {
        "mcp-protocol-version": LATEST,
        "mcp-method": method,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


# The status of everything


async def test_there_is_nothing_to_get_or_to_delete(connection: Connection) -> None:
    all_method: list[str] = ["GET", "DELETE"]
    all_version: list[str | None] = [None, LATEST]
    for version in all_version:
        for method in all_method:
            answer = await connection.get(method, headers={"mcp-protocol-version": version})
            assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("sent", [{"mcp-session-id": "never-was"}, {"last-event-id": "1-0"}])
async def test_what_belongs_to_sessions_is_ignored(connection: Connection, sent: dict[str, str]) -> None:
    """And no session is made (rule 26)."""
    answer = await connection.get("POST", body=body(), headers={**headers(), **sent})
    assert answer.status == 200
    assert "mcp-session-id" not in answer.headers
    assert answer.outcome("tools/list")["tools"][0]["name"] == "a__x"


async def test_the_door_is_the_same_for_all(connection: Connection) -> None:
    """(rule 18)"""
    rows: list[tuple[dict[str, str], int]] = [
        ({"origin": "http://evil.com"}, 403),
        ({"host": "evil.com"}, 421),
        ({"accept": "application/json"}, 406),
        ({"accept": "text/event-stream"}, 406),
        ({"content-type": "text/plain"}, 415),
    ]
    for sent, status in rows:
        assert (await connection.get("POST", body=body(), headers={**headers(), **sent})).status == status


async def test_what_is_no_request_is_refused(connection: Connection) -> None:
    """An id that is not known is left out (rules 6, 7)."""
    all_data: list[tuple[bytes, int]] = [
        (b"{", -32700),
        (b"\xff", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}', -32700),
        (b"[]", -32600),
        (json.dumps([body()]).encode(), -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":1}', -32600),
        (b"3", -32600),
    ]
    all_session: list[str | None] = [None, "never-was"]
    for session in all_session:
        for data, code in all_data:
            answer = await connection.get("POST", body=data, headers=headers(mcp_session_id=session))
            (message,) = answer.messages()
            assert (answer.status, message["error"]["code"]) == (400, code)
            assert message.get("id", 1) == 1


async def test_headers_must_say_what_the_body_says(connection: Connection) -> None:
    """(rule 27)"""
    rows: list[dict[str, HeaderValue]] = [
        {"mcp-method": None},
        {"mcp-method": "tools/call"},
        {"mcp-method": "Tools/List"},
        {"mcp-method": ["tools/list", "tools/list"]},
        {"mcp-method": ""},
        {"mcp-method": "=?base64?dG9vbHMvbGlzdA==?="},
        {"mcp-protocol-version": None},
        {"mcp-protocol-version": [LATEST, LATEST]},
        {"mcp-protocol-version": [LATEST, "2025-11-25"]},
        {"mcp-protocol-version": "2025-11-25"},
    ]
    for sent in rows:
        answer = await connection.get("POST", body=body(id="i"), headers={**headers(), **sent})
        (message,) = answer.messages()
        assert (answer.status, message["id"], message["error"]["code"]) == (400, "i", -32020)


async def test_the_name_in_the_header_is_that_of_the_body() -> None:
    """(rule 27)"""
    rows: list[HeaderValue] = [
        None,
        "a__y",
        "A__X",
        "",
        ["a__x", "a__x"],
        "=?base64?YV9feA?=",  # no padding
        "=?base64?YV9feB==?=",  # bits behind the end
        "=?base64?YV9fe*==?=",
        "=?BASE64?YV9feA==?=",
        "a__x\u00e9",
    ]
    async with open_http_app() as (world, connection):
        for name in rows:
            answer = connection.start("tools/call", {"name": "a__x"}, headers={"mcp-name": name})
            await answer.complete.wait()
            assert (answer.status, answer.messages()[0]["error"]["code"]) == (400, -32020)
            world.servers["a"].hears_nothing_more()


@pytest.mark.parametrize("name", ["a__x", " a__x\t", "=?base64?YV9feA==?="])
async def test_a_name_may_be_spelled_in_base64(name: str) -> None:
    async def answered(_: dict[str, Any]) -> object:
        return OK

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": answered})
    async with open_http_app(server) as (_, connection):
        result = await connection.result("tools/call", {"name": "a__x"}, headers={"mcp-name": name})
        assert result["content"] == OK["content"]


async def test_the_header_of_a_resource_holds_its_outward_uri() -> None:
    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}]}

    server = ScriptedServer("a", resources=["x://\u00e9"], answers={"resources/read": read})
    async with open_http_app(server) as (_, connection):
        spelled = "=?base64?YSt4Oi8vw6k=?="
        result = await connection.result("resources/read", {"uri": "a+x://\u00e9"}, headers={"mcp-name": spelled})
        assert [each["uri"] for each in result["contents"]] == ["a+x://\u00e9"]
        wrong = connection.start("resources/read", {"uri": "a+x://\u00e9"}, headers={"mcp-name": "x://%C3%A9"})
        await wrong.complete.wait()
        assert wrong.status == 400


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {f"{IO}clientCapabilities": {}},
        {f"{IO}protocolVersion": LATEST},
        {f"{IO}protocolVersion": LATEST, f"{IO}clientCapabilities": []},
        {f"{IO}protocolVersion": 1, f"{IO}clientCapabilities": {}},
        {**META, f"{IO}logLevel": "loud"},
        [],
    ],
)
async def test_a_request_that_says_too_little_of_itself_is_refused(connection: Connection, meta: object) -> None:
    params = {} if meta is None else {"_meta": meta}
    asked = {"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": params}
    answer = await connection.get("POST", body=asked, headers=headers())
    (message,) = answer.messages()
    assert (answer.status, message["id"], message["error"]["code"]) == (400, 3, -32602)


@pytest.mark.parametrize("params", [None, [], "x"])
async def test_a_request_without_params_is_refused(connection: Connection, params: object) -> None:
    asked = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"} | ({} if params is None else {"params": params})
    answer = await connection.get("POST", body=asked, headers=headers())
    assert (answer.status, answer.messages()[0]["error"]["code"]) in ((400, -32602), (400, -32600))


async def test_nobody_has_to_say_who_they_are(connection: Connection) -> None:
    """(rule 11)"""
    for info in ({}, {"name": 1}, "desk", None):
        meta = {f"{IO}clientInfo": info}
        assert await connection.result("tools/list", meta=meta)


async def test_a_version_that_is_not_served_is_refused_with_those_that_are(connection: Connection) -> None:
    rows: list[str] = ["2027-01-01", "1999-01-01", "nonsense", "x" * 300]
    for version in rows:
        sent = {**body(), "params": {"_meta": {**META, f"{IO}protocolVersion": version}}}
        answer = await connection.get("POST", body=sent, headers={**headers(), "mcp-protocol-version": version})
        (message,) = answer.messages()
        assert (answer.status, message["id"], message["error"]["code"]) == (400, 1, -32022)
        assert message["error"]["data"]["supported"] == SERVED
        assert version.startswith(message["error"]["data"]["requested"])
        discovered = await connection.result("server/discover")
        assert discovered["supportedVersions"] == SERVED


async def test_a_method_that_there_is_not_is_404() -> None:
    """No server hears of it."""
    rows: list[str] = [
        *("initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"),
        *("tasks/list", "tasks/result", "sampling/createMessage", "roots/list", "vendor/thing", "", "x" * 500),
    ]
    async with open_http_app() as (world, connection):
        for method in rows:
            answer = connection.start(method, {"level": "info", "uri": "a+x://y", "taskId": "t"}, id=4)
            await answer.complete.wait()
            (message,) = answer.messages()
            assert (answer.status, message["id"], message["error"]["code"]) == (404, 4, -32601)
            world.servers["a"].hears_nothing_more()


async def test_a_method_is_searched_for_only_if_its_headers_are_right(connection: Connection) -> None:
    answer = await connection.start("vendor/thing", headers={"mcp-method": "other/thing"}).ended()
    assert answer.status == 400


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "a__none"}, -32602),
        ("tools/call", {"name": "none__x"}, -32602),
        ("prompts/get", {"name": "a__none"}, -32602),
        ("resources/read", {"uri": "a+none://x"}, -32602),
        ("tools/list", {"cursor": "x"}, -32602),
        ("completion/complete", {"ref": {"type": "x"}, "argument": {"name": "a", "value": ""}}, -32602),
    ],
)
async def test_every_other_error_is_an_answer_like_any(method: str, params: dict[str, Any], code: int) -> None:
    async def none(params: dict[str, Any]) -> object:
        raise refusal(-32002, "Resource not found", {"uri": params["uri"]})

    server = ScriptedServer("a", tools=["x"], prompts=["p"], resources=["x://y"], answers={"resources/read": none})
    async with open_http_app(server) as (_, connection):
        answer = await connection.start(method, params).ended()
        assert (answer.status, answer.messages()[0]["error"]["code"]) == (200, code)


def refusal(code: int, message: str, data: object = None) -> PeerError:
    return PeerError(ErrorBody(code, message, None if data is None else encode(data)))


async def test_a_resource_that_there_is_not_is_named_as_it_was_asked_for() -> None:
    """(rule 68)"""

    async def none(params: dict[str, Any]) -> object:
        raise refusal(-32002, "Resource not found", {"uri": params["uri"]})

    server = ScriptedServer("a", resources=["x://y"], answers={"resources/read": none})
    async with open_http_app(server) as (_, connection):
        with pytest.raises(Refusal) as refused:
            await connection.result("resources/read", {"uri": "a+x://y"})
        assert (refused.value.code, refused.value.data) == (-32602, {"uri": "a+x://y"})


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (-32601, -32603),
        (-32002, -32603),
        (-32020, -32603),
        (-32022, -32603),
        (-32602, -32602),
        (7, 7),
    ],
)
async def test_a_servers_error_has_no_status(code: int, becomes: int) -> None:
    """Whatever a server says, a client must not take it for what we say of the request itself."""

    async def refused(_: dict[str, Any]) -> object:
        raise refusal(code, "no", {"a": 1})

    server = ScriptedServer("a", prompts=["p"], answers={"prompts/get": refused})
    async with open_http_app(server) as (_, connection):
        answer = await connection.start("prompts/get", {"name": "a__p"}).ended()
        assert (answer.status, answer.messages()[0]["error"]["code"]) == (200, becomes)


@pytest.mark.parametrize("token", [None, "Bearer wrong-0123456789abcdef"])
async def test_a_token_is_asked_for_with_every_request(token: str | None) -> None:
    """(rule 30)"""
    async with open_http_app(listen=Listen(auth=Auth({"desk": Secret("desk-0123456789abcdef")}))) as (_, connection):
        good = {"authorization": "Bearer desk-0123456789abcdef"}
        assert await connection.result("tools/list", headers=good)
        answer = await connection.start("tools/list", headers={"authorization": token}).ended()
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer ")


async def test_a_notification_is_accepted_and_means_nothing() -> None:
    rows: list[dict[str, Any]] = [
        {"method": "notifications/cancelled", "params": {"requestId": 1}},
        {"method": "notifications/initialized"},
        {"method": "notifications/roots/list_changed"},
        {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
        {"method": "vendor/notice", "params": {"_meta": {}}},
    ]
    async with open_http_app() as (world, connection):
        for notice in rows:
            answer = await connection.get(
                "POST", body={"jsonrpc": "2.0", **notice}, headers={"mcp-protocol-version": LATEST}
            )
            assert (answer.status, answer.body) == (202, b"")
            world.servers["a"].hears_nothing_more()


async def test_faults_are_found_in_one_order() -> None:
    """Each fault hides those that come after it."""
    annotated = tool("x", inputSchema={"type": "object", "properties": {"k": {"type": "string", "x-mcp-header": "K"}}})
    wrong: dict[str, HeaderValue] = {
        "origin": "http://evil.com",
        "accept": "application/json",
        "mcp-protocol-version": LATEST,
        "mcp-method": "tools/list",
        "mcp-name": "a__y",
        "mcp-param-k": "other",
    }
    params: dict[str, Any] = {"name": "a__x", "arguments": {"k": "v"}}
    async with open_http_app(ScriptedServer("a", tools=[annotated])) as (_, connection):

        async def outcome(method: str = "tools/call") -> tuple[int, int]:
            asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = await connection.get("POST", body=asked, headers=wrong)
            return answer.status, answer.messages()[0]["error"]["code"]

        assert (await outcome())[0] == 403
        del wrong["origin"]
        assert (await outcome())[0] == 406
        del wrong["accept"]
        assert await outcome() == (400, -32602)
        params["_meta"] = {**META, f"{IO}protocolVersion": "2027-01-01"}
        assert await outcome() == (400, -32020)
        wrong["mcp-protocol-version"] = "2027-01-01"
        assert await outcome() == (400, -32022)
        wrong["mcp-protocol-version"], params["_meta"] = LATEST, META
        assert await outcome() == (400, -32020)
        wrong["mcp-method"] = "tools/recall"
        assert await outcome("tools/recall") == (404, -32601)
        wrong["mcp-method"] = "tools/call"
        assert await outcome() == (400, -32020)
        wrong["mcp-name"] = "a__x"
        assert await outcome() == (400, -32020)
        wrong["mcp-param-k"] = "v"
        params["name"] = wrong["mcp-name"] = "a__none"
        assert await outcome() == (200, -32602)


# Which era a request is of


async def test_both_eras_are_served_at_one_address_with_the_same_ids() -> None:
    """At the same time, and nobody gets another's answer (rule 26)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        session = connection.another()
        await session.open()
        calls = [
            session.send("POST", body={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a__x"}})
        ]
        calls += [connection.another().start("tools/call", {"name": "a__x"}, id=1) for _ in range(3)]
        asked = [await server.hears("tools/call") for _ in calls]
        assert len({each["id"] for each in asked}) == len(calls)
        assert all(IO not in json.dumps(each) for each in asked)
        for number, each in reversed(list(enumerate(asked))):
            server.says(each["id"], {"content": [], "structuredContent": {"number": number}})
        for call in calls:
            await call.complete.wait()
        (first, *others) = [call.messages()[0] for call in calls]
        assert first["id"] == 1
        assert "resultType" not in first["result"]
        assert [each["result"]["resultType"] for each in others] == ["complete"] * 3
        assert sorted(call.messages()[0]["result"]["structuredContent"]["number"] for call in calls) == [0, 1, 2, 3]
        assert calls[0].headers["mcp-session-id"] == session.session
        assert not any("mcp-session-id" in call.headers for call in calls[1:])


async def test_each_request_gets_its_own_id_back(connection: Connection) -> None:
    """With its type (rule 7)."""
    for id in (0, -1, 2**53, "1", "", "\u00e9 \U0001f600"):
        answer = connection.start("tools/list", id=id)
        await answer.complete.wait()
        found = answer.messages()[0]["id"]
        assert (found, type(found)) == (id, type(id))


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@pytest.mark.parametrize("version", [None, "2025-11-25", "2024-11-05", LATEST])
async def test_initialize_without_an_envelope_opens_a_session(connection: Connection, version: str | None) -> None:
    """Whatever served version stands beside it (rule 21)."""
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
    answer = await connection.get("POST", body=hello, headers={"mcp-protocol-version": version})
    assert answer.status == 200
    assert "mcp-session-id" in answer.headers
    assert answer.messages()[0]["result"]["protocolVersion"] == "2025-11-25"


async def test_initialize_beside_several_versions_is_refused(connection: Connection) -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
    versions = ["2025-11-25", "2025-06-18"]
    answer = await connection.get("POST", body=hello, headers={"mcp-protocol-version": versions})
    assert (answer.status, answer.messages()[0]["id"]) == (400, 0)


async def test_initialize_with_an_envelope_is_a_request_like_any(connection: Connection) -> None:
    rows: list[tuple[str | None, str, str | None, int, int]] = [
        (LATEST, LATEST, "initialize", 404, -32601),
        (None, LATEST, "initialize", 400, -32020),
        (LATEST, LATEST, None, 400, -32020),
        (LATEST, "2025-11-25", "initialize", 400, -32020),
        ("2025-11-25", LATEST, "initialize", 400, -32020),
        ("2027-01-01", "2027-01-01", "initialize", 400, -32022),
    ]
    for version, envelope, named, status, code in rows:
        meta = {f"{IO}protocolVersion": envelope, f"{IO}clientCapabilities": {}}
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {**HELLO, "_meta": meta}}
        answer = await connection.get(
            "POST", body=hello, headers={"mcp-protocol-version": version, "mcp-method": named}
        )
        (message,) = answer.messages()
        assert (answer.status, message["error"]["code"], message["id"]) == (status, code, 0)
        assert "mcp-session-id" not in answer.headers


async def test_the_version_header_says_which_way_a_request_goes(connection: Connection) -> None:
    rows: list[tuple[str | None, str | None, str | None, int]] = [
        ("2025-11-25", LATEST, None, -32020),
        ("2025-11-25", "2025-06-18", None, -32020),
        (None, LATEST, "tools/list", -32020),
        (None, LATEST, None, -32020),
        (None, None, "tools/list", -32020),
        (None, None, None, -32600),  # a session is missing
        ("2025-11-25", "2025-11-25", None, -32600),
        ("2025-11-25", None, "tools/list", -32600),
        ("nonsense", None, None, -32022),
        ("nonsense", LATEST, None, -32020),
    ]
    for version, envelope, named, code in rows:
        meta = {} if envelope is None else {f"{IO}protocolVersion": envelope, f"{IO}clientCapabilities": {}}
        asked = {"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"_meta": meta}}
        answer = await connection.get(
            "POST", body=asked, headers={"mcp-protocol-version": version, "mcp-method": named}
        )
        (message,) = answer.messages()
        assert (answer.status, message["error"]["code"], message["id"]) == (400, code, 5)


async def test_an_envelope_of_its_own_version_means_nothing_in_a_session() -> None:
    """There it says nothing that the session does not."""
    async with open_session() as (_, connection):
        meta = {f"{IO}protocolVersion": "2025-11-25", f"{IO}clientCapabilities": {"roots": {}}}
        for version in ("2025-11-25", None):
            answer = await connection.get(
                "POST",
                body={"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"_meta": meta}},
                headers={"mcp-protocol-version": version},
            )
            assert answer.status == 200


# Headers of a tool's own


SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
    },
}


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("arguments", "sent", "good"),
    [
        ({"region": "eu"}, {"mcp-param-region": "eu"}, True),
        ({"region": "\u00e9"}, {"mcp-param-region": "=?base64?w6k=?="}, True),
        ({"count": 42}, {"mcp-param-count": "42.0"}, True),
        ({"deep": {"flag": True}}, {"mcp-param-flag": "true"}, True),
        ({}, {}, True),
        ({"region": None}, {}, True),
        ({}, {"mcp-param-unknown": "x"}, True),
        ({"region": "eu"}, {}, False),
        ({"region": "eu"}, {"mcp-param-region": "EU"}, False),
        ({"region": "eu"}, {"mcp-param-region": ["eu", "eu"]}, False),
        ({"region": "eu"}, {"mcp-param-region": "=?base64?ZXU?="}, False),
        ({}, {"mcp-param-region": "eu"}, False),
        ({"region": None}, {"mcp-param-region": "eu"}, False),
        ({"count": 42}, {"mcp-param-count": "43"}, False),
        ({"deep": {"flag": True}}, {"mcp-param-flag": "false"}, False),
    ],
)
@pytest.mark.parametrize(("path", "name"), [("/mcp", "a__x"), ("/mcp/a", "x")])
async def test_arguments_are_repeated_as_the_tool_wants_it(
    arguments: dict[str, Any], sent: dict[str, HeaderValue], good: bool, path: str, name: str
) -> None:
    """By the tool as it is shown to this caller (rule 27)."""

    async def answered(_: dict[str, Any]) -> object:
        return OK

    server = ScriptedServer("a", tools=[tool("x", inputSchema=SCHEMA)], answers={"tools/call": answered})
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", {"name": name, "arguments": arguments}, path=path, headers=sent)
        await call.complete.wait()
        if good:
            assert call.outcome("tools/call")["content"] == OK["content"]
        else:
            assert (call.status, call.messages()[0]["error"]["code"]) == (400, -32020)
            assert "tools/call" not in server.asked


async def test_the_annotation_is_shown_as_it_is() -> None:
    async with open_http_app(ScriptedServer("a", tools=[tool("x", inputSchema=SCHEMA)])) as (_, connection):
        (shown,) = (await connection.result("tools/list"))["tools"]
        assert shown["inputSchema"] == SCHEMA


async def test_a_client_of_a_session_repeats_nothing() -> None:
    """(rule 35)"""

    async def answered(_: dict[str, Any]) -> object:
        return OK

    server = ScriptedServer("a", tools=[tool("x", inputSchema=SCHEMA)], answers={"tools/call": answered})
    async with open_session(server) as (_, connection):
        assert (await connection.request("tools/call", {"name": "a__x", "arguments": {"region": "eu"}}))["result"] == OK


@pytest.mark.parametrize("hidden", ["a__hidden", "a__none"])
async def test_policy_judges_the_body_and_what_it_hides_is_not_there(hidden: str) -> None:
    """No header opens what the body may not have, and nothing tells what is hidden from what is not there."""
    consent = Consent(tools=kind(deny=("hidden",)))
    annotated = tool("hidden", inputSchema=SCHEMA)
    async with open_http_app(ScriptedServer("a", tools=["x", annotated], consent=consent)) as (world, connection):
        for headers in ({"mcp-name": "a__x"}, {}, {"mcp-param-region": "eu"}):
            call = connection.start("tools/call", {"name": hidden, "arguments": {"region": "eu"}}, headers=headers)
            await call.complete.wait()
            error = call.messages()[0]["error"]
            if headers.get("mcp-name"):
                assert (call.status, error["code"]) == (400, -32020)
            else:
                assert (call.status, error) == (200, {"code": -32602, "message": f"Unknown tool: {hidden}"})
        assert "tools/call" not in world.servers["a"].asked
        world.servers["a"].hears_nothing_more()


# How an answer comes


async def test_an_answer_alone_is_json(connection: Connection) -> None:
    answer = await connection.start("tools/list").ended()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))


async def test_what_comes_before_an_answer_makes_it_a_stream() -> None:
    """Without ids, since nothing is ever resumed; and the answer is the last of it (rules 28, 42, 43)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", {"name": "a__x"}, id=7, meta={"progressToken": 0})
        asked = await server.hears("tools/call")
        token = asked["_meta"]["progressToken"]
        assert token != 0
        for progress in (1, 2, 2, 1.5, 3):
            await server.notifies("notifications/progress", {"progressToken": token, "progress": progress, "total": 3})
        await call.wait_messages(3)
        assert (call.status, not call.complete.is_set()) == (200, True)
        server.says(asked["id"], OK)
        await call.complete.wait()
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 4})
        await wait_all_tasks_blocked()
        assert {name: call.headers[name] for name in STREAM_HEADERS} == STREAM_HEADERS
        assert b"\nid:" not in b"\n" + call.body
        assert b"retry:" not in call.body
        result = call.outcome("tools/call")
        assert result["resultType"] == "complete"
        told = [each["params"] for each in call.messages()[:-1]]
        assert [(each["progressToken"], each["progress"]) for each in told] == [(0, 1), (0, 2), (0, 3)]
        assert call.messages()[-1]["id"] == 7


@pytest.mark.parametrize("token", ["t", 0, 7, "7", ""])
async def test_progress_goes_under_the_callers_own_token(token: object) -> None:
    """With its type; to one without a token goes none (rule 42)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        silent = connection.another().start("tools/call", {"name": "a__x"})
        own = (await server.hears("tools/call"))["_meta"]["progressToken"]
        await server.notifies("notifications/progress", {"progressToken": own, "progress": 1})
        call = connection.start("tools/call", {"name": "a__x"}, meta={"progressToken": token})
        asked = await server.hears("tools/call")
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        (told,) = await call.wait_messages(1)
        assert told["params"]["progressToken"] == token
        assert type(told["params"]["progressToken"]) is type(token)
        assert not silent.started.is_set()


async def test_a_long_call_gives_signs_of_life(autojump_clock: MockClock) -> None:
    """Never further apart than fifteen seconds (rule 28)."""
    assert max(STREAM_DEADLINE, HEARTBEAT_INTERVAL + 1 / ALARMS_A_SECOND) < 15
    server = ScriptedServer("a", tools=["x"], timeout=600)
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", {"name": "a__x"})
        asked = await server.hears("tools/call")
        await trio.sleep(STREAM_DEADLINE / 2)
        assert not call.started.is_set()
        await trio.sleep(STREAM_DEADLINE / 2 + 1)
        assert call.streams
        await trio.sleep(2 * HEARTBEAT_INTERVAL)
        assert call.body == b": working\n\n" * 2
        server.says(asked["id"], OK)
        await call.complete.wait()
        assert call.outcome("tools/call")["content"] == OK["content"]


async def test_an_error_after_the_stream_has_begun_is_its_last_message(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", prompts=["p"], timeout=600)
    async with open_http_app(server) as (_, connection):
        call = connection.start("prompts/get", {"name": "a__p"}, meta={"progressToken": 1})
        asked = await server.hears("prompts/get")
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        await call.wait_messages(1)
        server.refuses(asked["id"], -32602, "no")
        await call.complete.wait()
        assert call.status == 200
        with pytest.raises(Refusal, match="no"):
            call.outcome("prompts/get")
        assert [set(each) for each in call.messages()][-1] == {"jsonrpc", "id", "error"}


async def test_an_error_of_its_own_status_has_it_even_after_a_while(autojump_clock: MockClock) -> None:
    """As long as nothing else was said, the answer is not begun."""
    server = ScriptedServer("a", tools=["x"], revision=LATEST, timeout=600)
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", {"name": "a__x"})
        asked = await server.hears("tools/call")
        await trio.sleep(STREAM_DEADLINE - 1)
        lacks: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        server.refuses(asked["id"], -32021, "cannot ask", lacks)
        await call.complete.wait()
        assert (call.status, call.messages()[0]["error"]["data"]) == (400, lacks)


async def test_listed_origins_can_read_a_stream_too() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=Listen(origins=("https://app.example",))) as (_, connection):
        origin = {"origin": "https://app.example"}
        call = connection.start("tools/call", {"name": "a__x"}, meta={"progressToken": 1}, headers=origin)
        asked = await server.hears("tools/call")
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        await call.started.wait()
        assert call.headers["access-control-allow-origin"] == "https://app.example"


# Clients that leave


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}])
@pytest.mark.parametrize("streaming", [False, True])
async def test_to_leave_is_to_cancel(streaming: bool, capabilities: dict[str, Any]) -> None:
    """At once; the server is told, and nothing more is written (rules 24, 45, 47)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        other = connection.another()
        other_call = other.start("tools/call", {"name": "a__x"}, id=1)
        kept = await server.hears("tools/call")
        call = connection.start("tools/call", {"name": "a__x"}, meta={"progressToken": 1}, capabilities=capabilities)
        asked = await server.hears("tools/call")
        report = {"progressToken": asked["_meta"]["progressToken"]}
        if streaming:
            await server.notifies("notifications/progress", {**report, "progress": 1})
            await call.wait_messages(1)
        connection.leaves.set()
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]
        await server.notifies("notifications/progress", {**report, "progress": 2})
        server.says(asked["id"], OK)
        await wait_all_tasks_blocked()
        assert call.after_disconnect == b""
        server.says(kept["id"], OK)
        await other_call.complete.wait()
        assert other_call.outcome("tools/call")["content"] == OK["content"]


async def test_what_a_client_had_not_read_when_it_left_is_not_written(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", {"name": "a__x"}, meta={"progressToken": 1})
        asked = await server.hears("tools/call")
        connection.reads = trio.Event()
        for progress in range(5):
            report = {"progressToken": asked["_meta"]["progressToken"], "progress": progress}
            await server.notifies("notifications/progress", report)
        await trio.sleep(1)
        connection.leaves.set()
        await trio.sleep(1)
        connection.reads.set()
        await trio.sleep(1)
        assert (call.body, call.after_disconnect) == (b"", b"")
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_a_server_of_this_revision_is_left_too() -> None:
    """(rule 45)"""
    server = ScriptedServer("a", tools=["x"], revision=LATEST)
    async with open_http_app(server) as (_, connection):
        connection.start("tools/call", {"name": "a__x"})
        asked = await server.hears("tools/call")
        connection.leaves.set()
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_a_cancel_that_is_posted_cancels_nothing() -> None:
    """It would name an id, and ids are everybody's."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", {"name": "a__x"}, id=1)
        asked = await server.hears("tools/call")
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        sent = await connection.another().get("POST", body=notice, headers={"mcp-protocol-version": LATEST})
        assert sent.status == 202
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        server.says(asked["id"], OK)
        await call.complete.wait()
        assert call.outcome("tools/call")["content"] == OK["content"]


async def test_a_client_that_does_not_read_costs_little(autojump_clock: MockClock) -> None:
    """Progress that it has no room for is not said, and the answer is (rule 5)."""
    server = ScriptedServer("a", tools=["x"], timeout=600)
    async with open_http_app(server) as (_, connection):
        call = connection.start("tools/call", {"name": "a__x"}, meta={"progressToken": 1})
        asked = await server.hears("tools/call")
        connection.reads = trio.Event()
        for progress in range(40):
            report = {"progressToken": asked["_meta"]["progressToken"], "progress": progress, "message": "x" * 100_000}
            await server.notifies("notifications/progress", report)
        server.says(asked["id"], OK)
        await trio.sleep(1)
        connection.reads.set()
        await call.complete.wait()
        assert len(call.body) <= MAX_KEPT
        assert call.outcome("tools/call")["content"] == OK["content"]


async def test_only_so_many_listen_at_once() -> None:
    """A request that would be one too many is refused, until another one leaves (rule 5)."""
    async with open_http_app(capacity=Capacity(streams=4)) as (_, connection):
        listening = [connection.another() for _ in range(2)]
        for each in listening:
            await each.start(LISTEN, {"notifications": {}}).started.wait()
        refused = connection.start(LISTEN, {"notifications": {}}, id=3)
        await refused.complete.wait()
        assert (refused.status, refused.headers["retry-after"], refused.messages()[0]["id"]) == (503, "5", 3)
        listening[0].leaves.set()
        await wait_all_tasks_blocked()
        granted = connection.start(LISTEN, {"notifications": {}})
        await granted.wait_messages(1)
        assert granted.streams
