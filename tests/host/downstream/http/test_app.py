"""The HTTP door: who may come in, which path leads where, and what needs no token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Auth, CallerSpec, Listen, Secret, ViewSpec
from config.views import ALL
from host.addresses import Addresses
from host.attempts import Reason
from host.downstream.http.security import MAX_BODY
from host.journal import AttemptRefused
from host.source import SHARED, Endpoint
from host.upstream.supervised import UpstreamConnection
from host.upstream.supervisor import UpstreamServer
from host.wire.asgi import CLAIM, FINDINGS, Receive, Scope, Send, respond
from tests.kit.asgi import Connection, Response, open_http_app, open_session
from tests.kit.world import Refusal, ScriptedServer, World, later

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def test_the_edge() -> None:
    """Refused before anything is parsed, and without a word to any server."""
    rows: list[tuple[dict[str, str | None], int]] = [
        ({"host": None}, 400),
        ({"host": "evil.com"}, 421),
        ({"host": "127.0.0.1.evil.com"}, 421),
        ({"host": "localhost."}, 421),
        ({"host": "a/?x="}, 400),
        ({"host": "user@localhost"}, 400),
        ({"host": "[::1]garbage"}, 400),
        ({"host": "LOCALHOST:8808"}, 200),
        ({"host": "[::1]:8808"}, 200),
        ({"origin": "http://evil.com"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://localhost/path"}, 403),
        ({"origin": "ftp://localhost"}, 403),
        ({"origin": "http://[::1].evil"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"content-type": None}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/jsonp"}, 415),
        ({"content-type": "application/json;charset=utf-16"}, 415),
        ({"content-type": "Application/JSON ; charset=UTF-8"}, 200),
        ({"content-encoding": "gzip"}, 415),
        ({"accept": "application/json"}, 406),
        ({"accept": "text/event-stream"}, 406),
        ({"accept": "application/json, text/event-stream;q=0"}, 406),
        ({"accept": "*/*"}, 200),
        ({"accept": None}, 200),
        ({"content-length": str(MAX_BODY + 1)}, 413),
    ]
    async with open_session() as (_, connection):
        for headers, status in rows:
            answer = await connection.get("POST", body=PING, headers=headers)
            assert answer.status == status
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert (await connection.get("POST", body=PING)).status == 200


async def test_other_spellings_of_the_path_are_nothing(connection: Connection) -> None:
    rows: list[str] = [
        "/mcp//",
        "//mcp",
        "//mcp/",
        "/MCP",
        "/%6dcp",
        "/mcp%2f",
        "/mcp%00",
        "/x/../mcp",
        "/mcp/none",
        "/mcp/a//",
        "/",
        "//",
    ]
    for path in rows:
        assert (await connection.get("POST", path, PING)).status == 404


async def test_a_slash_at_the_end_of_an_endpoint_is_left_out() -> None:
    async with open_http_app(ScriptedServer("a")) as (_, connection):
        for path in ("/mcp/", "/mcp/a/"):
            connection.session = None
            await connection.open(path)
            assert (await connection.get("POST", path, PING)).status == 200
        assert (await connection.get("POST", "/message/", PING)).status == 200
        stream = connection.send("GET", "/sse/")
        await stream.started.wait()
        assert stream.status == 200


async def test_no_guard_is_passed_with_a_slash_at_the_end() -> None:
    rows: list[str] = ["/mcp/", "/mcp/a/", "/sse/", "/message/"]
    listen = Listen(auth=Auth({"desk": Secret("t" * 20)}))
    async with open_http_app(ScriptedServer("a"), listen=listen) as (_, connection):
        for path in rows:
            without, with_slash = [
                [
                    (await connection.get(method, each, PING if method == "POST" else None, headers=headers)).status
                    for method in ("POST", "GET", "DELETE", "PUT")
                    for headers in (
                        {},
                        {"host": "evil.com"},
                        {"origin": "http://evil.com"},
                        {"authorization": f"Bearer {'u' * 20}"},
                    )
                ]
                for each in (path.removesuffix("/"), path)
            ]
            assert with_slash == without
            assert 200 not in with_slash


async def test_a_listed_origin_gets_cross_origin_answers() -> None:
    listen = Listen(origins=("https://app.example",))
    async with open_http_app(listen=listen) as (_, connection):
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        preflight = await connection.get("OPTIONS", headers=asked)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert "mcp-session-id" in preflight.headers["access-control-allow-headers"]
        await connection.open()
        answer = await connection.get("POST", body=PING, headers={"origin": "https://app.example"})
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
        foreign = await connection.get("OPTIONS", headers={**asked, "origin": "https://evil.example"})
        assert foreign.status == 403
        assert "access-control-allow-origin" not in foreign.headers


async def test_a_listed_host_is_ours() -> None:
    async with open_http_app(listen=Listen(hosts=("mcp.internal", "other:9000"))) as (_, connection):
        for host, status in (("mcp.internal:1", 400), ("other:9000", 400), ("other:9001", 421)):
            assert (await connection.get("POST", body=PING, headers={"host": host})).status == status


async def test_health_and_status_answer_under_the_same_guards(connection: Connection) -> None:
    assert (await connection.get("GET", "/healthz")).body == b"ok\n"
    assert json.loads((await connection.get("GET", "/status")).body) == {}
    assert (await connection.get("GET", "/status", headers={"origin": "http://evil.com"})).status == 403


async def test_our_own_mistake_is_one_requests_trouble() -> None:
    async with open_session() as (world, connection):

        def broken(*_: object) -> object:
            raise ZeroDivisionError("/secret/path")

        world.router.lists.shown = broken  # type: ignore[method-assign, assignment]
        message = await connection.request("tools/list")
        assert message["error"]["code"] == -32603
        assert "secret" not in json.dumps(message)
        assert any("ZeroDivisionError" in str(event) for event in world.events)
        assert (await connection.request("ping"))["result"] == {}


# Tokens

LAPTOP, DESK = "laptop-0123456789abcdef", "desk-0123456789abcdef"
GUARDED = Listen(auth=Auth({"laptop": Secret(LAPTOP), "desk": Secret(DESK)}), origins=("https://app.example",))
EVERYWHERE = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("PUT", "/mcp"),
    ("HEAD", "/mcp"),
    ("POST", "/mcp/a"),
    ("POST", "/mcp/none"),
    ("GET", "/sse"),
    ("GET", "/sse/a"),
    ("POST", "/message"),
    ("POST", "/message?session_id=x"),
    ("POST", "/message/a"),
    ("GET", "/status"),
    ("HEAD", "/status"),
    ("POST", "/healthz"),
    ("GET", "/"),
    ("GET", "/no/such"),
    ("POST", "/%6dcp"),
]


def bearing(token: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


async def test_every_request_of_every_kind_needs_a_token() -> None:
    """Before it is looked up whether there is anything; the challenge is our own (rules 30, 99)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=GUARDED) as (_, connection):
        for method, path in EVERYWHERE:
            joint = "&" if "?" in path else "?"
            for headers, url, error in (
                ({}, path, ""),
                (bearing("wrong-0123456789abcdef"), path, ', error="invalid_token"'),
                (bearing(LAPTOP[:-1]), path, ', error="invalid_token"'),
                ({"authorization": f"Basic {LAPTOP}"}, path, ""),
                ({"authorization": LAPTOP}, path, ""),
                ({}, f"{path}{joint}access_token={LAPTOP}", ""),
            ):
                answer = await connection.get(method, url, PING, headers=headers)
                assert (answer.status, answer.headers["www-authenticate"]) == (401, f'Bearer realm="colonnade"{error}')
                assert LAPTOP.encode() not in answer.body
                assert b"wrong-" not in answer.body
            assert server.asked.count("tools/call") == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"origin": "http://evil.com"}, 403), ({"host": "evil.com"}, 421), ({"host": None}, 400)],
)
async def test_a_token_opens_no_door_to_other_pages_and_names(headers: dict[str, str | None], status: int) -> None:
    """(rule 18)"""
    async with open_http_app(listen=GUARDED) as (_, connection):
        for path in ("/mcp", "/sse", "/message", "/status", "/healthz"):
            answer = await connection.get("GET", path, headers=headers | bearing(LAPTOP))
            assert (answer.status, "www-authenticate" in answer.headers) == (status, False)


async def test_health_and_preflights_need_no_token() -> None:
    async with open_http_app(listen=GUARDED) as (_, connection):
        assert (await connection.get("GET", "/healthz")).status == 200
        assert (await connection.get("HEAD", "/healthz")).status == 200
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        for path in ("/mcp", "/mcp/a", "/sse", "/message"):
            preflight = await connection.get("OPTIONS", path, headers=asked)
            assert (preflight.status, "authorization" in preflight.headers["access-control-allow-headers"]) == (
                204,
                True,
            )
            foreign = await connection.get("OPTIONS", path, headers={"origin": "http://localhost:3000"})
            assert foreign.status == 403
        # Which servers there are is not told to whoever only asks whether it may ask.
        assert (await connection.get("OPTIONS", "/mcp/none", headers=asked)).status == 204
        assert (await connection.get("OPTIONS", "/mcp/none")).status == 403


async def test_a_page_of_a_listed_origin_can_read_that_it_needs_a_token() -> None:
    async with open_http_app(listen=GUARDED) as (_, connection):
        answer = await connection.get("POST", body=PING, headers={"origin": "https://app.example"})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (401, "https://app.example")
        assert "www-authenticate" in answer.headers["access-control-expose-headers"]


async def test_with_a_token_everything_is_as_ever() -> None:
    async with open_http_app(listen=GUARDED, status=lambda endpoint: b'{"colonnade": "x"}') as (_, connection):
        connection.headers = bearing(LAPTOP)
        await connection.open()
        assert (await connection.request("tools/list"))["result"]["tools"]
        assert (await connection.get("GET", "/status")).messages() == [{"colonnade": "x"}]
        assert (await connection.get("GET", "/no/such")).status == 404
        assert (await connection.get("DELETE")).status == 204


async def test_a_session_is_unknown_to_whoever_has_another_token() -> None:
    """To POST, GET, resuming and DELETE alike, and in the same words as one that never was; its owner notices nothing
    (rules 19 and 30)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=GUARDED) as (_, connection):
        connection.headers = bearing(LAPTOP)
        await connection.open()
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}
        under_way = connection.send("POST", body=call)
        asked = await server.hears("tools/call")
        foreign, stranger = connection.another(connection.session), connection.another("never-was")
        foreign.headers = stranger.headers = bearing(DESK)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        answer = {"jsonrpc": "2.0", "id": 1, "result": {}}
        for method, body, headers in (
            ("POST", PING, {}),
            ("POST", call, {}),
            ("POST", cancel, {}),
            ("POST", answer, {}),
            ("GET", b"", {}),
            ("GET", b"", {"last-event-id": "1-0"}),
            ("DELETE", b"", {}),
        ):
            theirs = await foreign.get(method, body=body, headers=headers)
            never = await stranger.get(method, body=body, headers=headers)
            assert (theirs.status, theirs.body, theirs.headers) == (404, never.body, never.headers)
        server.hears_nothing_more()
        server.says(asked["id"], {"content": []})
        await under_way.complete.wait()
        assert under_way.messages()[0]["result"] == {"content": []}
        for token in ("", LAPTOP + "x"):
            foreign.headers = bearing(token)
            assert (await foreign.get("POST", body=PING)).status == 401


async def test_refused_requests_are_recorded_with_their_reason_and_address() -> None:
    """A request that is merely not usable, such as one without a type, is not recorded."""
    async with open_http_app(listen=GUARDED) as (world, connection):
        connection.headers = bearing(LAPTOP)
        await connection.open()
        foreign = connection.another(connection.session)
        foreign.headers = bearing(DESK)
        for headers in ({}, {"content-type": None}):
            await connection.get("POST", body=PING, headers=headers)
        assert (await connection.another("never-was").get("POST", body=PING, headers=bearing(DESK))).status == 404
        assert (await foreign.get("POST", body=PING)).status == 404
        for changed in (
            {"authorization": None},
            bearing("x" * 20),
            {"host": "evil.com"},
            {"origin": "http://evil.com"},
        ):
            await connection.get("POST", body=PING, headers=changed)
        await connection.get("OPTIONS", headers={"origin": "http://evil.com", "access-control-request-method": "POST"})
        assert (await connection.request("tools/call", {"name": "a__none"}))["error"]["code"] == -32602
        world.events.clear()
        world.gate.decision_log.flush_attempts()
        found = [event.attempt for event in world.events if isinstance(event, AttemptRefused) and event.count == 1]
        assert [(each.reason, each.name, each.principal) for each in found] == [
            (Reason.SESSION, "/mcp", "desk"),
            (Reason.NO_TOKEN, "/mcp", ""),
            (Reason.WRONG_TOKEN, "/mcp", ""),
            (Reason.HOST, "/mcp", "laptop"),
            (Reason.ORIGIN, "/mcp", "laptop"),
            (Reason.MISSING, "a__none", "laptop"),
        ]
        assert {each.address for each in found} == {"127.0.0.1"}


async def test_each_way_in_says_where_an_attempt_came_from() -> None:
    """A session, a batch, a stateless request, a subscription, and HTTP+SSE with a session and without."""
    server = ScriptedServer("a", tools=["x"], resources=["x:1"], capabilities={"resources": {"subscribe": True}})

    def call(name: str, id: int = 1) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}}

    async with open_http_app(server) as (world, connection):
        client = connection.another()
        await client.open()
        await client.get("POST", body=call("a__session"))
        batching = connection.another()
        await batching.open(revision="2025-03-26")
        await batching.get("POST", body=[call("a__batch"), call("a__batch", 2)])
        alone = connection.another()
        alone.start("tools/call", {"name": "a__stateless"})
        alone.start("tools/call", {"name": "a__x", "Name": "a__twin"})
        alone.start("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["b+nothing:1"]}})
        await alone.get("POST", "/message", call("a__alone"))
        old = alone.send("GET", "/sse")
        await wait_all_tasks_blocked()
        there = old.events()[0].data.decode()
        info = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING}
        for message in (info, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call("a__sse")):
            assert (await alone.get("POST", there, message)).status == 202
        await wait_all_tasks_blocked()
        world.events.clear()
        world.gate.decision_log.flush_attempts()
        found = [event.attempt for event in world.events if isinstance(event, AttemptRefused) and event.count == 1]
        names = ["a__session", "a__batch", "a__stateless", "a__x", "b+nothing:1", "a__alone", "a__sse"]
        assert {each.name: each.reason for each in found} == {
            name: Reason.AMBIGUOUS if name == "a__x" else Reason.MISSING for name in names
        }
        assert {each.address for each in found} == {"127.0.0.1"}


NEW = "another-0123456789abcdef"
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}


def guarded(**tokens: str) -> Listen:
    return Listen(auth=Auth({name: Secret(token) for name, token in tokens.items()}))


def bearer(connection: Connection, token: str) -> Connection:
    client = connection.another()
    client.headers = bearing(token)
    return client


@pytest.mark.parametrize("tokens", [guarded(desk=DESK), guarded(laptop=NEW, desk=DESK), guarded()])
async def test_what_was_opened_with_a_withdrawn_token_ends_and_nothing_else(tokens: Listen) -> None:
    """Sessions of both transports with their streams and calls, stateless calls, and subscriptions. If all tokens are
    withdrawn, nobody comes in."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=GUARDED) as (_, connection):
        clients: list[Connection] = []
        opened: list[list[Response]] = []
        calls: list[int | str] = []
        for token in (LAPTOP, DESK):
            client = bearer(connection, token)
            await client.open()
            responses = [client.send("GET"), client.send("POST", body=CALL)]
            calls.append((await server.hears("tools/call"))["id"])
            alone = bearer(connection, token)
            responses += [alone.send("GET", "/sse"), alone.start("tools/call", {"name": "a__x"})]
            calls.append((await server.hears("tools/call"))["id"])
            responses.append(alone.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
            await wait_all_tasks_blocked()
            clients.append(client)
            opened.append(responses)
        assert not any(each.complete.is_set() for each in opened[0] + opened[1])
        assert tokens.auth is not None
        desk_stays = "desk" in tokens.auth.tokens
        connection.change_access(tokens, Addresses())
        await wait_all_tasks_blocked()
        assert all(each.complete.is_set() for each in opened[0])
        assert any(each.complete.is_set() for each in opened[1]) is not desk_stays
        gone = calls[:2] if desk_stays else calls
        cancelled = [(await server.hears("notifications/cancelled"))["requestId"] for _ in gone]
        assert sorted(map(str, cancelled)) == sorted(map(str, gone))
        assert (await clients[0].get("POST", body=PING)).status == 401
        assert (await clients[1].get("POST", body=PING)).status == (200 if desk_stays else 401)
        assert (await clients[0].get("POST", body=PING, headers=bearing(NEW))).status in (401, 404)
        if desk_stays:
            for id in calls[2:]:
                server.says(id, {"content": []})
            await wait_all_tasks_blocked()
            assert opened[1][1].messages()[-1]["result"] == {"content": []}
            assert opened[1][3].messages()[-1]["result"]["content"] == []


async def test_a_token_may_be_added_and_changed_and_a_kept_head_does_not_keep_the_former_one() -> None:
    async with open_http_app(listen=guarded(laptop=LAPTOP)) as (_, connection):
        connection.extensions[FINDINGS] = {}  # as for one head that a connection repeats
        client = bearer(connection, LAPTOP)
        assert (await client.get("GET", "/status")).status == 200
        connection.change_access(guarded(laptop=NEW, desk=DESK), Addresses())
        assert (await client.get("GET", "/status")).status == 401
        connection.change_access(guarded(laptop=LAPTOP, desk=DESK), Addresses())
        assert (await client.get("GET", "/status")).status == 200
        connection.extensions.clear()
        assert (await bearer(connection, DESK).get("GET", "/status")).status == 200


async def test_the_first_token_ends_what_callers_without_one_have_open() -> None:
    async with open_session() as (_, connection):
        stream = connection.send("GET")
        await wait_all_tasks_blocked()
        connection.change_access(guarded(laptop=LAPTOP), Addresses())
        await wait_all_tasks_blocked()
        assert stream.complete.is_set()
        assert (await connection.get("POST", body=PING)).status == 401
        assert (await connection.get("POST", body=PING, headers=bearing(LAPTOP))).status == 404
        connection.change_access(Listen(), Addresses())
        connection.session = None
        await connection.open()
        assert (await connection.get("POST", body=PING)).status == 200


async def test_a_call_that_waits_for_its_client_ends_with_its_token() -> None:
    """Nobody goes on with it, not even the next holder of the name."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=guarded(laptop=LAPTOP)) as (_, connection), trio.open_nursery() as nursery:
        client = bearer(connection, LAPTOP)
        answer = client.start("tools/call", {"name": "a__x"}, capabilities={"elicitation": {}})
        call = await server.hears("tools/call")
        later(nursery, server.asks, "elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
        with trio.fail_after(5):
            await answer.complete.wait()
        asked = answer.messages()[-1]["result"]
        connection.change_access(guarded(laptop=NEW), Addresses())
        assert (await server.hears("notifications/cancelled"))["requestId"] == call["id"]
        retry = {"name": "a__x", "requestState": asked["requestState"], "inputResponses": {}}
        with pytest.raises(Refusal, match="requestState"):
            await bearer(connection, NEW).result("tools/call", retry, capabilities={"elicitation": {}})
        nursery.cancel_scope.cancel()


async def test_a_request_whose_body_comes_after_its_token_was_withdrawn_is_refused() -> None:
    async with open_http_app(listen=guarded(laptop=LAPTOP)) as (_, connection):
        client = bearer(connection, LAPTOP)
        await client.open()
        client.writes = trio.Event()
        client.at_once = False
        late = client.send("POST", body=PING), client.send("POST", "/message", PING)
        await wait_all_tasks_blocked()
        connection.change_access(guarded(laptop=NEW), Addresses())
        client.writes.set()
        for answer in late:
            with trio.fail_after(5):
                await answer.complete.wait()
            assert (answer.status, "www-authenticate" in answer.headers) == (401, True)


OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


async def never(server: UpstreamServer, connection: UpstreamConnection) -> None:
    await trio.sleep_forever()


async def test_a_session_whose_token_is_withdrawn_while_it_opens_does_not_open(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UpstreamServer, "recall", never)  # the store that it waits for is locked
    async with open_http_app(listen=guarded(laptop=LAPTOP), settled=False) as (world, connection):
        levels = world.router.log_levels
        before = levels.wanted_level("a", None, was_set=True)
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING}
        answer = bearer(connection, LAPTOP).send("POST", "/mcp", opening)
        await wait_all_tasks_blocked()
        assert not answer.complete.is_set()
        connection.change_access(guarded(laptop=NEW), Addresses())
        with trio.fail_after(10):
            await answer.complete.wait()
        assert (answer.status, "mcp-session-id" in answer.headers) == (401, False)
        assert levels.wanted_level("a", None, was_set=True) == before  # nothing is kept for it


async def test_tokens_stand_in_no_text() -> None:
    """Neither in answers nor in the journal, nor in the names that the log shows."""
    async with open_http_app(listen=GUARDED) as (world, connection):
        connection.headers = bearing(LAPTOP)
        await connection.open()

        def broken(*_: object) -> object:
            raise ZeroDivisionError

        world.router.lists.shown = broken  # type: ignore[method-assign, assignment]
        answers = [
            await connection.get("POST", body={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
            await connection.get("POST", "/message", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
            await connection.get("GET", "/status"),
        ]
        said = [str(event) for event in world.events]
        assert sum("laptop" in each for each in said) == 2
        for text in (*said, *(str((answer.headers, answer.body)) for answer in answers)):
            assert LAPTOP not in text


# Routes


async def test_what_is_not_http_is_not_served(connection: Connection) -> None:
    with pytest.raises(RuntimeError, match="no websocket here"):
        await connection.app({"type": "websocket"}, None, None)  # type: ignore[arg-type]


async def test_other_spellings_of_other_paths_are_nothing(connection: Connection) -> None:
    rows: list[str] = ["/sse//", "/sse/none", "/message/none", "/message/a//", "/SSE", "/status/", "/healthz/x"]
    for path in rows:
        for method in ("GET", "POST"):
            assert (await connection.get(method, path, PING)).status == 404


async def test_the_main_path_is_where_the_configuration_says() -> None:
    async with open_http_app(listen=Listen(path="/tools")) as (_, connection):
        await connection.open("/tools")
        assert (await connection.request("ping", path="/tools"))["result"] == {}
        assert (await connection.get("POST", "/mcp", PING)).status == 404


class FullListener:
    """A listener without a free connection: it serves nobody, or those with a name, and notes what it was told."""

    def __init__(self, *, named: bool = False) -> None:
        self.told: list[tuple[Hashable, bool]] = []
        self._named = named

    def __call__(self, owner: Hashable, *, reserved: bool) -> bool:
        self.told.append((owner, reserved))
        return self._named and owner is not None


async def test_a_full_server_refuses_who_has_no_token_and_serves_who_has() -> None:
    """With one and the same answer for a missing and for a wrong token; nothing of the body is read."""
    listen = Listen(auth=Auth({"laptop": Secret("a" * 32)}))
    async with open_http_app(listen=listen) as (_, connection):
        listener = connection.extensions[CLAIM] = FullListener(named=True)
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = await connection.get("POST", body=PING, headers=headers)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "www-authenticate" not in answer.headers
        connection.headers["authorization"] = f"Bearer {'a' * 32}"
        await connection.open()
        assert (await connection.get("POST", body=PING)).status == 200
        assert listener.told == [(None, False)] * 2 + [("laptop", False)] * 3


async def test_a_full_server_without_tokens_refuses_everybody_before_the_body(connection: Connection) -> None:
    connection.extensions[CLAIM] = FullListener()
    connection.writes = trio.Event()
    for method, path in (
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("GET", "/sse"),
        ("POST", "/message"),
        ("GET", "/status"),
    ):
        assert (await connection.get(method, path, PING)).status == 503


async def test_a_full_server_is_alive(connection: Connection) -> None:
    """Otherwise whoever watches it would restart it."""
    connection.extensions[CLAIM] = FullListener()
    assert (await connection.get("GET", "/healthz")).status == 200


# Views

TOKENS = guarded(laptop=LAPTOP, desk=DESK)
CALLERS = {"laptop": CallerSpec("laptop")}
CODING = ViewSpec(callers=("laptop",), servers={"a": ALL})
VIEWS = {"coding": CODING, "rest": ViewSpec()}


@dataclass(frozen=True)
class InEffect:
    """What the file says of views, at a reload."""

    views: Mapping[str, ViewSpec] = field(default_factory=lambda: VIEWS)
    callers: Mapping[str, CallerSpec] = field(default_factory=lambda: CALLERS)
    default_view: str | None = None
    ruled: tuple[str, ...] = ()

    def take(self, world: World, connection: Connection) -> None:
        connection.change_access(TOKENS, Addresses(self.views, self.callers, self.default_view, self.ruled))
        world.configures(*world.servers.values(), views=self.views, callers=self.callers)


@pytest.mark.parametrize("door", ["/mcp", "/sse", "/message", "/status"])
async def test_a_view_that_a_caller_does_not_reach_is_a_path_that_does_not_exist(door: str) -> None:
    """At all doors, with the same words, whether there is a view or server of the name or not."""
    servers = ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["x"])
    async with open_http_app(*servers, listen=TOKENS, views=VIEWS, callers=CALLERS, default_view="rest") as (
        _,
        connection,
    ):
        laptop, desk = bearer(connection, LAPTOP), bearer(connection, DESK)
        for client, closed in ((laptop, ["@rest", "b", "b/"]), (desk, ["@coding", "@coding/"])):
            for method in ("GET", "POST", "DELETE", "HEAD", "PUT"):
                missing = await client.get(method, f"{door}/@none", PING)
                assert (missing.status, b"there is no such endpoint" in missing.body) == (404, True)
                for path in closed:
                    answer = await client.get(method, f"{door}/{path}", PING)
                    assert (answer.status, answer.headers, answer.body) == (404, missing.headers, missing.body)
        for path in ("@", "@coding/a", "@@coding", "%40coding", "@CODING", "@coding//", "a/@coding"):
            assert (await laptop.get("GET", f"{door}/{path}")).status == 404, path
        assert (await connection.get("GET", f"{door}/@none")).status == 401
        assert (await connection.get("GET", f"{door}/@rest")).status == 401


async def test_what_is_behind_the_console_tells_nothing_of_views_either() -> None:
    """Where the endpoint lies above the console's paths."""
    listen = Listen(path="/api", auth=TOKENS.auth)
    async with open_http_app(listen=listen, views=VIEWS, callers=CALLERS, console=of_console) as (_, connection):
        laptop = bearer(connection, LAPTOP)
        answers = [await laptop.get("GET", f"/api/{path}") for path in ("@rest", "@none", "none")]
        assert len({(each.status, each.body) for each in answers}) == 1


async def test_each_address_is_another_endpoint() -> None:
    """A session, a stream, a message, a task, a state, a cursor of one is unknown at all others."""
    async with open_http_app(listen=TOKENS, views=VIEWS, callers=CALLERS) as (_, connection):
        laptop, desk = bearer(connection, LAPTOP), bearer(connection, DESK)
        await laptop.open("/mcp/@coding")
        assert (await laptop.get("POST", "/mcp/@coding", PING)).status == 200
        assert (await laptop.get("POST", "/mcp", PING)).status == 200, "it is the same endpoint"
        assert (await laptop.get("POST", "/mcp/a", PING)).status == 404
        await desk.open("/mcp/@coding")
        for path in ("/mcp", "/mcp/a", "/mcp/@rest"):
            for method in ("POST", "GET", "DELETE"):
                assert (await desk.get(method, path, PING)).status == 404
        theirs = laptop.another(desk.session)
        assert (await theirs.get("POST", "/mcp/@coding", PING)).status == 404, "it is of another token"


async def test_the_stream_of_a_view_names_the_address_for_its_messages() -> None:
    async with open_http_app(listen=TOKENS, views=VIEWS, callers=CALLERS) as (_, connection):
        desk = bearer(connection, DESK)
        stream = desk.send("GET", "/sse/@rest")
        await wait_all_tasks_blocked()
        place = stream.events()[0].data.decode()
        assert place.startswith("/message/@rest?session_id=")
        assert (await desk.get("POST", place, PING)).status == 202
        query = place.partition("?")[2]
        for other in ("/message", "/message/@coding", "/message/a"):
            assert (await desk.get("POST", f"{other}?{query}", PING)).status == 404


async def test_the_status_is_that_of_the_view() -> None:
    seen: list[Endpoint] = []

    def status(endpoint: Endpoint) -> bytes:
        seen.append(endpoint)
        return b"{}"

    async with open_http_app(listen=TOKENS, views=VIEWS, callers=CALLERS, status=status) as (_, connection):
        laptop, desk = bearer(connection, LAPTOP), bearer(connection, DESK)
        for client, path in ((laptop, ""), (desk, ""), (desk, "/@coding"), (desk, "/a")):
            assert (await client.get("GET", f"/status{path}")).status == 200
        assert seen == [Endpoint(view="coding"), SHARED, Endpoint(view="coding"), Endpoint("a")]
        assert (await laptop.get("POST", "/status", PING)).status == 404


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("after", "ended"),
    [
        (InEffect(), {}),
        (InEffect({**VIEWS, "more": ViewSpec()}), {}),
        (InEffect({**VIEWS, "coding": ViewSpec(callers=("laptop",))}), {}),
        (InEffect({"other": ViewSpec(callers=("laptop",)), **VIEWS}), {"laptop": {"/mcp"}}),
        (InEffect(callers={}), {"laptop": {"/mcp"}}),
        (InEffect(default_view="rest"), {"desk": {"/mcp", "/mcp/@coding"}}),
        (InEffect(ruled=("laptop",)), {"laptop": {"/mcp"}}),
        (InEffect({"rest": ViewSpec()}, {}), {"laptop": {"/mcp"}, "desk": {"/mcp/@coding"}}),
    ],
)
async def test_what_was_opened_at_an_address_that_leads_elsewhere_ends_and_nothing_else(
    after: InEffect, ended: dict[str, set[str]]
) -> None:
    """Sessions of both transports with their streams and calls, stateless calls, and subscriptions."""
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=TOKENS, views=VIEWS, callers=CALLERS) as (world, connection):
        opened: dict[tuple[str, str], list[Response]] = {}
        clients: dict[tuple[str, str], Connection] = {}
        for name, token, path in (
            ("laptop", LAPTOP, "/mcp"),
            ("desk", DESK, "/mcp"),
            ("desk", DESK, "/mcp/@coding"),
            ("desk", DESK, "/mcp/@rest"),
        ):
            client = clients[name, path] = bearer(connection, token)
            await client.open(path)
            alone = bearer(connection, token)
            opened[name, path] = [
                client.send("GET", path),
                client.send("POST", path, CALL),
                alone.send("GET", path.replace("/mcp", "/sse")),
                alone.start("tools/call", {"name": "a__x"}, path=path),
                alone.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, path=path),
            ]
        await wait_all_tasks_blocked()
        assert not any(each.complete.is_set() for each in itertools.chain(*opened.values()))
        after.take(world, connection)
        await wait_all_tasks_blocked()
        for (name, path), responses in opened.items():
            ends = path in ended.get(name, ())
            assert [each.complete.is_set() for each in responses] == [ends] * 5, (name, path)
            assert (await clients[name, path].get("POST", path, PING)).status == (404 if ends else 200)
            if ends:
                assert "has another view now" in responses[3].messages()[-1]["error"]["message"]


async def test_a_call_that_waits_for_its_client_ends_with_its_address() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with (
        open_http_app(server, listen=TOKENS, views=VIEWS, callers=CALLERS) as (world, connection),
        trio.open_nursery() as nursery,
    ):
        desk = bearer(connection, DESK)
        answer = desk.start("tools/call", {"name": "a__x"}, capabilities={"elicitation": {}})
        call = await server.hears("tools/call")
        later(nursery, server.asks, "elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
        with trio.fail_after(5):
            await answer.complete.wait()
        retry = {
            "name": "a__x",
            "requestState": answer.messages()[-1]["result"]["requestState"],
            "inputResponses": {},
        }
        for path in ("/mcp/@rest", "/mcp/@coding"):
            with pytest.raises(Refusal, match="requestState"):
                await desk.result("tools/call", retry, capabilities={"elicitation": {}}, path=path)
        InEffect(default_view="rest").take(world, connection)
        assert (await server.hears("notifications/cancelled"))["requestId"] == call["id"]
        with pytest.raises(Refusal, match="requestState"):
            await desk.result("tools/call", retry, capabilities={"elicitation": {}})
        nursery.cancel_scope.cancel()


async def test_a_request_whose_body_comes_after_its_address_has_changed_is_refused() -> None:
    async with open_http_app(listen=TOKENS, views=VIEWS, callers=CALLERS) as (world, connection):
        client = bearer(connection, LAPTOP)
        await client.open()
        client.writes = trio.Event()
        client.at_once = False
        late = client.send("POST", body=PING)
        await wait_all_tasks_blocked()
        InEffect(callers={}).take(world, connection)
        client.writes.set()
        with trio.fail_after(5):
            await late.complete.wait()
        assert (late.status, b"views" in late.body) == (404, True)


async def test_a_session_whose_address_changes_while_it_opens_does_not_open(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UpstreamServer, "recall", never)
    async with open_http_app(listen=TOKENS, views=VIEWS, callers=CALLERS, settled=False) as (world, connection):
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING}
        answers = [bearer(connection, token).send("POST", "/mcp", opening) for token in (LAPTOP, DESK)]
        await wait_all_tasks_blocked()
        InEffect(callers={}).take(world, connection)
        with trio.fail_after(10):
            for answer in answers:
                await answer.complete.wait()
        found = [(answer.status, "mcp-session-id" in answer.headers) for answer in answers]
        assert found == [(404, False), (200, True)]


async def test_a_call_that_waits_for_its_server_is_not_sent_from_an_address_that_leads_elsewhere(
    autojump_clock: MockClock,
) -> None:
    """Of a session and without one."""

    async def slowly(params: dict[str, Any]) -> object:
        await trio.sleep(1)
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "a", "version": "1"},
        }

    server = ScriptedServer("a", tools=["x"], answers={"initialize": slowly})
    async with open_http_app(server, listen=TOKENS, views=VIEWS, callers=CALLERS, settled=False, start_grace=0.0) as (
        world,
        connection,
    ):
        client = bearer(connection, LAPTOP)
        await client.open()
        answers = [client.send("POST", body=CALL), bearer(connection, LAPTOP).start("tools/call", {"name": "a__x"})]
        await wait_all_tasks_blocked()
        assert not any(each.complete.is_set() for each in answers)
        InEffect(callers={}).take(world, connection)
        await wait_all_tasks_blocked()
        assert [each.messages()[-1]["error"]["code"] for each in answers] == [503, 503]
        await trio.sleep(10)
        server.hears_nothing_more()


HTML: dict[str, str | None] = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_a_browser_at_the_address_alone_is_told_what_this_is() -> None:
    async with open_http_app(listen=GUARDED) as (_, connection):
        answer = await connection.get("GET", "/", headers=HTML)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"gateway for MCP" in answer.body
        assert LAPTOP.encode() not in answer.body
        for other in ({"host": "evil.com"}, {"origin": "http://evil.com"}):
            assert (await connection.get("GET", "/", headers=HTML | other)).status in (403, 421)
        assert (await connection.get("POST", "/", PING, headers=HTML)).status == 401
        assert (await connection.get("GET", "/", headers={"accept": "*/*"})).status == 401
        assert (await connection.get("GET", "/status", headers=HTML)).status == 401
    async with open_http_app() as (_, connection):
        assert (await connection.get("GET", "/", headers={"accept": "*/*"})).status == 404


async def test_the_page_leads_to_the_console_and_never_into_it() -> None:
    async with open_http_app(console=of_console) as (_, connection):
        page = (await connection.get("GET", "/", headers=HTML)).body
        assert b'href="/console"' in page
        assert b"/console#" not in page
    async with open_http_app() as (_, connection):
        assert b"colonnade console" not in (await connection.get("GET", "/", headers=HTML)).body


async def of_console(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, {}, b"the console")


@pytest.mark.parametrize(
    ("endpoint", "paths", "not_of_it"),
    [
        (
            "/mcp",
            ["/console", "/console/x", "/api", "/api/v1/state"],
            ["/consoles", "/apis", "/mcp/console", "/mcp/api"],
        ),
        ("/api", ["/console", "/api/v1/state", "/api/v1"], ["/api", "/api/a"]),
        ("/api/v1", ["/api", "/api/v1/state"], ["/api/v1", "/api/v1/a"]),
    ],
)
async def test_the_console_has_its_paths_and_no_endpoint_loses_one(
    endpoint: str, paths: list[str], not_of_it: list[str]
) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server, listen=Listen(path=endpoint), console=of_console) as (_, connection):
        for path in paths:
            assert (await connection.get("GET", path)).body == b"the console", path
        for path in not_of_it:
            assert b"the console" not in (await connection.get("GET", path)).body, path
        await connection.open(endpoint)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_listener_may_do_things_at_once_or_never(connection: Connection, at_once: bool) -> None:
    connection.at_once = at_once
    await connection.open()
    assert (await connection.request("tools/list"))["result"]["tools"]
    assert (await connection.get("POST", body=b"{")).status == 400
    another = connection.another()
    assert (await another.result("tools/list"))["tools"]
    assert (await another.get("POST", body=b" " * (MAX_BODY + 1))).status == 413
