"""A request reaches the process that its token names, over real sockets and TLS, and no other."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config import Auth, Consent, Listen, Secret, Verdict
from host.addresses import Addresses
from host.downstream.charge import REVOKED_MESSAGE, TOKEN_WITHDRAWN
from host.fleet.adoption import AWAY
from host.fleet.forwarding import OUTCOME_UNKNOWN, RETRY_INTERVAL, UNREACHED
from host.fleet.inner import MemberConnection
from host.fleet.members import LEASE
from host.wire.asgi import Receive, Scope, Send
from host.wire.head import MAX_FIELDS, MAX_HEAD
from host.wire.http_connection import PlainChannel
from host.wire.listener import ClientConnection, serve_http
from host.wire.port import bind
from tests.kit.asgi import MCP_HEADERS, Response
from tests.kit.fleet import FleetFiles, FleetSite, open_site
from tests.kit.ports import free_port
from tests.kit.tasks import EXTENSION, begins, extension_server, handshake_server
from tests.kit.world import ScriptedServer, later

A, B = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"


class Pair(NamedTuple):
    """Two members. Each has a server of the same name; `x` says which of the two it is, `waits` waits for the test."""

    a: FleetSite
    b: FleetSite
    at_a: ScriptedServer
    at_b: ScriptedServer
    files: FleetFiles


def saying(which: str) -> Callable[[dict[str, Any]], Awaitable[object]]:
    async def answer(params: dict[str, Any]) -> object:
        await trio.lowlevel.checkpoint()
        return {"content": [{"type": "text", "text": which}]}

    return answer


@asynccontextmanager
async def open_pair(
    folder: Path, *, waits: bool = False, kind_of_a: type[ClientConnection] = MemberConnection, **more: Any
) -> AsyncIterator[Pair]:
    files = FleetFiles(folder)
    a, b = (
        ScriptedServer(
            "s",
            tools=["x"],
            answers={} if waits else {"tools/call": saying(which)},
            consent=Consent(sampling=Verdict.ALLOW),
        )
        for which in ("a", "b")
    )
    async with open_site(files, A, a, kind=kind_of_a, **more) as at_a, open_site(files, B, b, **more) as at_b:
        await at_a.members.wait_list()
        yield Pair(at_a, at_b, a, b, files)


CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "s__x", "arguments": {}}}


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def begin(site: FleetSite, session: str | None) -> Response:
    """A call of a session at this member, as far as it has come."""
    return site.client.another(session).send("POST", body=CALL)


async def call(site: FleetSite, session: str | None) -> str:
    """Who answers a call of a session at this member: "a", "b", or the status of a refusal."""
    answer = await site.client.another(session).get("POST", body=CALL)
    if answer.status != 200:
        return str(answer.status)
    (message,) = answer.messages()
    return str(message["result"]["content"][0]["text"] if "result" in message else message["error"]["message"])


@pytest.mark.parametrize("kind", [MemberConnection, ClientConnection], ids=["this version", "an earlier version"])
async def test_a_session_is_served_by_its_home_wherever_its_requests_come_in(
    tmp_path: Path, kind: type[ClientConnection]
) -> None:
    """Also while the fleet is upgraded: an earlier version knows connections of HTTP/1.1 alone."""
    async with open_pair(tmp_path, kind_of_a=kind) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        assert [await call(site, session) for site in (pair.a, pair.b, pair.b)] == ["a", "a", "a"]
        directly = await pair.a.client.get("POST", body=CALL)
        forwarded = await pair.b.client.another(session).get("POST", body=CALL)
        assert (forwarded.status, forwarded.body) == (directly.status, directly.body)
        assert {**forwarded.headers, "date": ""} == {**directly.headers, "date": ""}
        ended = await pair.b.client.another(session).get("DELETE")
        assert ended.status == 204
        assert [await call(site, session) for site in (pair.a, pair.b)] == ["404", "404"]


async def test_a_head_that_a_client_may_send_is_served_wherever_it_comes_in(tmp_path: Path) -> None:
    """The longest one, and the one with most fields; each way has fields of its own beside those."""
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        client = pair.b.client.another(pair.a.client.session)
        own = {**MCP_HEADERS, "mcp-session-id": str(client.session), "transfer-encoding": "chunked"}
        more = {f"x-{number}": "" for number in range(MAX_FIELDS - len(own) - 1)}
        fields = "".join(f"{name}:{value}\r\n" for name, value in {**own, **more, "x": ""}.items())
        fill = "a" * (MAX_HEAD - len(f"POST /mcp HTTP/1.1\r\n{fields}\r\n"))
        for method, body in ("POST", CALL), ("DELETE", b""):
            answer = await client.get(method, body=body, headers={**more, "transfer-encoding": "chunked", "x": fill})
            assert answer.status == (200 if body else 204)


@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [False, True], ids=["new", "kept"])
async def test_a_call_that_is_called_off_at_the_entrance_is_told_why(tmp_path: Path, is_kept: bool) -> None:
    """The process that serves it has not ended. Over a new stream, and over one that is there."""
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open()
        if is_kept:
            assert (await pair.b.client.another(pair.a.client.session).get("POST", body=PING)).status == 200
        calling = begin(pair.b, pair.a.client.session)
        await pair.at_a.hears("tools/call")
        pair.b.world.memory.revoke(lambda of: TOKEN_WITHDRAWN)
        with trio.fail_after(5):
            await calling.ended()
        (answer,) = calling.messages()
        assert answer["error"]["message"] == REVOKED_MESSAGE.format(why=TOKEN_WITHDRAWN)
        assert pair.b.unknown == [A]


@pytest.mark.slow
async def test_messages_from_the_server_and_answers_to_it_go_through_any_member(tmp_path: Path) -> None:
    """A server request in the middle of a call, answered at the other member; progress; and the standing stream."""
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open(capabilities={"sampling": {}})
        session = pair.a.client.session
        standing = pair.b.client.another(session).send("GET", headers={"accept": "text/event-stream"})
        calling = begin(pair.b, session)
        asked = await pair.at_a.hears("tools/call")
        params = {"messages": [], "maxTokens": 1}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.at_a.asks, "sampling/createMessage", params)
            (question,) = await calling.wait_messages(1)
            assert calling.streams
            assert question["method"] == "sampling/createMessage"
            result = {"role": "assistant", "content": {"type": "text", "text": "!"}, "model": "m"}
            at_b = pair.b.client.another(session)
            assert await at_b.notify({"id": question["id"], "result": result}) == 202
        pair.at_a.says(asked["id"], {"content": []})
        with trio.fail_after(5):
            await calling.ended()
        assert calling.messages()[-1]["result"] == {"content": []}
        await standing.started.wait()
        pair.at_a.lists["tools"].append({"name": "y", "inputSchema": {"type": "object"}})
        await pair.at_a.notifies("notifications/tools/list_changed")
        (notice,) = await standing.wait_messages(1)
        assert notice["method"] == "notifications/tools/list_changed"


@pytest.mark.slow
async def test_a_client_that_leaves_leaves_the_home_too(tmp_path: Path) -> None:
    """So the home knows that its standing stream is free, and that a stateless call is to be cancelled."""
    listen = {"accept": "text/event-stream"}
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open()
        leaver, other = (pair.b.client.another(pair.a.client.session) for _ in range(2))
        await leaver.send("GET", headers=listen).started.wait()
        assert (await other.get("GET", headers=listen)).status == 409
        leaver.leaves.set()
        taken = other.send("GET", headers=listen)
        await taken.started.wait()
        assert taken.status == 200

        able: dict[str, Any] = {"capabilities": {"elicitation": {}}}
        first = pair.a.client.start("tools/call", {"name": "s__x", "arguments": {}}, **able)
        asked = await pair.at_a.hears("tools/call")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.at_a.asks, "elicitation/create", FORM)
            parked = (await first.ended()).outcome("tools/call")
            gone = pair.b.client.another()
            gone.start("tools/call", answering(parked, "accept"), **able)
            await trio.sleep(0.2)  # until it is under way there
            gone.leaves.set()
        assert (await pair.at_a.hears("notifications/cancelled"))["requestId"] == asked["id"]


FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}


def answering(parked: dict[str, Any], action: str) -> dict[str, Any]:
    """The params with which a parked call is repeated."""
    (key,) = parked["inputRequests"]
    answers = {key: {"action": action, **({"content": {}} if action == "accept" else {})}}
    return {"name": "s__x", "arguments": {}, "requestState": parked["requestState"], "inputResponses": answers}


@pytest.mark.slow
async def test_a_parked_call_goes_on_at_its_home(tmp_path: Path) -> None:
    """A stateless client repeats its request at the other member, with the requestState that it got at the first."""
    async with open_pair(tmp_path, waits=True) as pair:
        able: dict[str, Any] = {"capabilities": {"elicitation": {}}}
        first = pair.a.client.start("tools/call", {"name": "s__x", "arguments": {}}, **able)
        asked = await pair.at_a.hears("tools/call")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.at_a.asks, "elicitation/create", FORM)
            parked = (await first.ended()).outcome("tools/call")
            second = pair.b.client.start("tools/call", answering(parked, "decline"), **able)
        pair.at_a.says(asked["id"], {"content": []})
        with trio.fail_after(5):
            assert (await second.ended()).outcome("tools/call")["content"] == []
        pair.at_b.hears_nothing_more()


@pytest.mark.slow
async def test_who_listens_hears_of_tasks_wherever_they_are(tmp_path: Path) -> None:
    """It hears of those of one process, if they are at several."""
    files = FleetFiles(tmp_path)
    takes: dict[str, Any] = {"capabilities": {"extensions": {EXTENSION: {}}}}
    listen = Listen(auth=Auth({"desk": Secret("desk-0123456789abcdef")}))
    at_a, at_b = extension_server(), extension_server()
    async with open_site(files, A, at_a, listen=listen) as a, open_site(files, B, at_b, listen=listen) as b:
        await a.members.wait_list()
        tasks = []
        for site, server in ((a, at_a), (b, at_b)):
            site.client.headers["authorization"] = "Bearer desk-0123456789abcdef"
            made = site.client.another().start("tools/call", {"name": "a__x", "arguments": {}}, **takes)
            await begins(server)
            tasks.append((await made.ended()).outcome("tools/call")["taskId"])

        async def granted(*ids: str) -> object:
            wanted = {"notifications": {"toolsListChanged": True, "taskIds": ids}}
            stream = b.client.another().start("subscriptions/listen", wanted, id="l", **takes)
            with trio.fail_after(5):
                (acknowledged,) = await stream.wait_messages(1)
            return acknowledged["params"]["notifications"]

        of_a, of_b = tasks
        assert await granted(of_a) == {"toolsListChanged": True, "taskIds": [of_a]}
        assert await granted(of_b, of_a) == {"toolsListChanged": True, "taskIds": [of_b]}
        assert await granted(of_a, of_b, f"{of_a}x") == {"toolsListChanged": True, "taskIds": [of_a]}


@pytest.mark.slow
async def test_a_task_is_known_to_all_sessions_of_its_owner_wherever_they_are(tmp_path: Path) -> None:
    """And to nobody else, wherever a request comes in."""
    files = FleetFiles(tmp_path)
    at_a, at_b = handshake_server("optional"), handshake_server("optional")
    tokens = {"desk": Secret("desk-0123456789abcdef"), "laptop": Secret("laptop-0123456789abcdef")}
    listen = Listen(auth=Auth(tokens))
    async with open_site(files, A, at_a, listen=listen) as a, open_site(files, B, at_b, listen=listen) as b:
        await a.members.wait_list()
        stranger = b.client.another()
        stranger.headers["authorization"] = "Bearer laptop-0123456789abcdef"
        await stranger.open()
        for site in (a, b):
            site.client.headers["authorization"] = "Bearer desk-0123456789abcdef"
            await site.client.open()
        # What comes in where the task is goes to the home of its session, and back.
        again = a.client.another(b.client.session)
        tasks = []
        for _ in range(2):
            made = await a.client.request("tools/call", {"name": "a__x", "task": {}})
            tasks.append({"taskId": made["result"]["task"]["taskId"]})
        first, second = tasks
        known = await a.client.request("tasks/get", first)
        assert known["result"]["status"] == "working"
        for elsewhere in (b.client, again):
            assert await elsewhere.request("tasks/get", first) == known
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await stranger.request(method, first))["error"]["code"] == -32602
        waiting = b.client.send("POST", body={"jsonrpc": "2.0", "id": 5, "method": "tasks/result", "params": first})
        await wait_all_tasks_blocked()
        assert [each.serving.count for each in b.sessions] == [0, 1], "it counts as a request of its session"
        at_a.says((await at_a.hears("tools/call"))["id"], {"content": [{"type": "text", "text": "a"}]})
        with trio.fail_after(5):
            (result,) = (await waiting.ended()).messages()
        assert result == {**await a.client.request("tasks/result", first), "id": 5}
        assert waiting.headers["mcp-session-id"] == b.client.session
        assert (await again.request("tasks/cancel", second))["result"]["status"] == "cancelled"
        assert (await a.client.request("tasks/get", second))["result"]["status"] == "cancelled"
        assert "error" in await b.client.request("tasks/cancel", second)
        at_b.hears_nothing_more()


@pytest.mark.slow
async def test_what_waited_at_a_member_that_is_gone_is_told_as_lost_by_another_one(tmp_path: Path) -> None:
    """A call may have run, and a task is over."""
    files = FleetFiles(tmp_path)
    able: dict[str, Any] = {"elicitation": {}}
    gone, other = handshake_server("optional"), handshake_server("optional")
    listen = Listen(auth=Auth({"desk": Secret("desk-0123456789abcdef")}))
    async with open_site(files, B, other, listen=listen) as b, trio.open_nursery() as nursery:
        async with open_site(files, A, gone, listen=listen) as a:
            for site in (a, b):
                site.client.headers["authorization"] = "Bearer desk-0123456789abcdef"
                await site.client.open()
            made = await a.client.request("tools/call", {"name": "a__x", "task": {}})
            task = {"taskId": made["result"]["task"]["taskId"]}
            first = a.client.another().start("tools/call", {"name": "a__x", "arguments": {}}, capabilities=able)
            gone.says((await gone.hears("tools/call"))["id"], {"content": []})
            await gone.hears("tools/call")
            later(nursery, gone.asks, "elicitation/create", FORM)
            with trio.fail_after(5):
                parked = (await first.ended()).outcome("tools/call")
            await b.members.wait_list()
            assert (await b.client.request("tasks/get", task))["result"]["status"] == "completed"
        params = {**answering(parked, "accept"), "name": "a__x"}
        result = await b.client.another().result("tools/call", params, capabilities=able)
        assert result["isError"]
        assert result["content"][0]["text"].startswith("Colonnade was restarted while a worked on the call")
        assert (await b.client.request("tasks/get", task))["result"]["status"] == "failed"
        other.hears_nothing_more()
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_session_of_http_sse_takes_its_messages_from_any_member(tmp_path: Path) -> None:
    async with open_pair(tmp_path, listen=Listen(sse=True)) as pair:
        stream = pair.a.client.send("GET", "/sse", headers={"accept": "text/event-stream"})
        there = (await stream.wait_events(1))[0].data.decode()
        info = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        for message in (
            {"id": 0, "method": "initialize", "params": info},
            {"method": "notifications/initialized"},
            {**CALL, "id": 1},
        ):
            answer = await pair.b.client.get("POST", there, {"jsonrpc": "2.0", **message})
            assert answer.status == 202
        messages = await stream.wait_messages(2)
        assert messages[-1]["result"]["content"][0]["text"] == "a"


@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [False, True], ids=["new", "kept"])
async def test_a_home_that_ends_in_the_middle_is_told_and_the_request_is_never_sent_again(
    tmp_path: Path, is_kept: bool
) -> None:
    """Over a new connection, and over one that is there."""
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open()
        if is_kept:
            assert (await pair.b.client.another(pair.a.client.session).get("POST", body=PING)).status == 200
        calling = begin(pair.b, pair.a.client.session)
        await pair.at_a.hears("tools/call")
        pair.a.scope.cancel()
        with trio.fail_after(5):
            await calling.ended()
        (message,) = calling.messages()
        assert message["error"] == {"code": 502, "message": OUTCOME_UNKNOWN}
        assert message["id"] == 7
        assert pair.b.unknown == [A]
        await pair.at_a.hears("notifications/cancelled")
        for server in (pair.at_a, pair.at_b):
            server.hears_nothing_more()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [100, 200_000], ids=["short", "long"])
@pytest.mark.parametrize("answered", [100, 20_000, 300_000])
async def test_long_and_short_messages_pass_over_one_connection(tmp_path: Path, sent: int, answered: int) -> None:
    async def answer(params: dict[str, Any]) -> object:
        await trio.lowlevel.checkpoint()
        return {"content": [{"type": "text", "text": params["arguments"]["a"][:1] * answered}]}

    async with open_pair(tmp_path) as pair:
        pair.at_a.answers["tools/call"] = answer
        await pair.a.client.open()
        at_b = pair.b.client.another(pair.a.client.session)
        for text in "xyz":
            params = {"name": "s__x", "arguments": {"a": text * sent}}
            assert (await at_b.result("tools/call", params))["content"][0]["text"] == text * answered


@pytest.mark.slow
async def test_a_stream_that_breaks_ends_with_the_same_sentence(tmp_path: Path) -> None:
    """One that had begun, because the call took long."""
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open()
        calling = begin(pair.b, pair.a.client.session)
        await pair.at_a.hears("tools/call")
        await calling.started.wait()
        pair.a.scope.cancel()
        with trio.fail_after(5):
            await calling.ended()
        assert calling.messages()[-1]["error"]["message"] == OUTCOME_UNKNOWN
        assert pair.b.unknown == [A]


@pytest.mark.slow
async def test_a_request_waits_for_a_home_that_cannot_be_reached_and_is_served_here_once_it_is_gone(
    tmp_path: Path,
) -> None:
    """Nothing was sent, so it may be; its session is adopted."""
    files = FleetFiles(tmp_path)
    server = ScriptedServer("s", tools=["x"], answers={"tools/call": saying("b")})
    async with open_site(files, B, server) as b:
        async with open_site(files, A) as a:
            await a.client.open()
            session = a.client.session
            a.scope.cancel()
            await b.members.wait_list()
            waiting = begin(b, session)
            await trio.sleep(0.5)
            assert not waiting.started.is_set()
        with trio.fail_after(LEASE + 5):
            await waiting.ended()
        assert waiting.messages()[0]["result"]["content"][0]["text"] == "b"
        assert b.unknown == []


@pytest.mark.slow
async def test_while_members_cannot_be_found_the_client_is_asked_to_try_again(tmp_path: Path) -> None:
    """Neither 404, after which it would give its session up, nor an answer of another process."""
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        pair.files.directory.away = True
        assert await call(pair.b, pair.a.client.session) == "a", "the last list counts"
        from_elsewhere = pair.files.homes("cccccccccccccccc").name("session")
        answer = await pair.b.client.another(from_elsewhere).get("POST", body=CALL)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.messages()[0]["error"]["message"] == AWAY


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MemberConnection, ClientConnection], ids=["this version", "an earlier version"])
async def test_an_address_that_another_process_has_by_now_gets_nothing(
    tmp_path: Path, kind: type[ClientConnection]
) -> None:
    """It refuses the handshake, in an earlier version the request with 421, and the request is tried again until the
    lease of its home is over."""
    files = FleetFiles(tmp_path)
    async with open_site(files, B, kind=kind) as b:
        await files.directory.beat(files.member(A, b.port))
        await b.members.wait_list()
        session = files.homes(A).name("session")
        with trio.fail_after(LEASE + 5):
            assert await call(b, session) == "404"


@asynccontextmanager
async def open_silent(
    files: FleetFiles, boot: str, port: int = 0
) -> AsyncIterator[tuple[int, list[str], trio.CancelScope]]:
    """A member that answers nothing, for the block: its port, the methods of the requests that it has, and the scope of
    its listener."""
    bound, asked = bind("127.0.0.1", port), list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["method"])
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        serve = partial(serve_http, app, bound, certificate=files.certificate(boot), connection=MemberConnection)
        nursery.start_soon(serve)
        yield bound.getsockname()[1], asked, nursery.cancel_scope
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_the_next_process_at_an_address_gets_nothing_while_it_begins(tmp_path: Path) -> None:
    """What it would not have answered at the end of the lease would count as lost."""
    files = FleetFiles(tmp_path)
    async with open_silent(files, "cccccccccccccccc") as (port, asked, _), open_site(files, B) as b:
        await files.directory.beat(files.member(A, port))
        await b.members.wait_list()
        with trio.fail_after(LEASE + 5):
            assert await call(b, files.homes(A).name("session")) == "404"
        assert asked == []


@pytest.mark.slow
async def test_a_stream_whose_home_ends_before_it_begins_is_opened_elsewhere(tmp_path: Path) -> None:
    """To open it again carries out nothing."""
    files = FleetFiles(tmp_path)
    async with open_silent(files, A) as (port, asked, scope), open_site(files, B) as b:
        await files.directory.beat(files.member(A, port))
        await b.members.wait_list()
        session = files.homes(A).name("session")
        opening, calling = b.client.another(session).send("GET"), begin(b, session)
        with trio.fail_after(LEASE + 5):
            while sorted(asked) != ["GET", "POST"]:  # noqa: ASYNC110 - by looks
                await trio.sleep(0.01)
            scope.cancel()
            await calling.ended()
            await opening.ended()
        assert opening.status == 404
        assert calling.messages()[0]["error"]["message"] == OUTCOME_UNKNOWN


@pytest.mark.slow
async def test_of_those_that_wait_for_a_home_one_tries_to_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, tried, connect = FleetFiles(tmp_path), list[float](), trio.open_tcp_stream

    async def count(host: str, port: int) -> trio.SocketStream:
        tried.append(trio.current_time())
        return await connect(host, port)

    port = free_port()
    async with open_site(files, B) as b:
        await files.directory.beat(files.member(A, port))
        await b.members.wait_list()
        monkeypatch.setattr(trio, "open_tcp_stream", count)
        waiting = [begin(b, files.homes(A).name(f"session {number}")) for number in range(20)]
        with trio.fail_after(LEASE + 5):
            for each in waiting:
                await each.ended()
        assert {each.status for each in waiting} == {404}
        later = [each for each in tried if each > tried[0] + RETRY_INTERVAL]
        assert len(later) * RETRY_INTERVAL <= LEASE + RETRY_INTERVAL


@pytest.mark.slow
async def test_a_call_that_waits_for_its_home_can_be_called_off(tmp_path: Path) -> None:
    """Each of them at once, whoever tries to reach the home."""
    files = FleetFiles(tmp_path)
    port = free_port()
    async with open_site(files, B) as b:
        await files.directory.beat(files.member(A, port))
        await b.members.wait_list()
        waiting = [begin(b, files.homes(A).name(f"session {number}")) for number in range(40)]
        await trio.sleep(2 * RETRY_INTERVAL)
        b.world.memory.revoke(lambda of: TOKEN_WITHDRAWN)
        with trio.fail_after(5):
            for each in waiting:
                await each.ended()
        assert b.members.has(A)
        said = {each.messages()[0]["error"]["message"] for each in waiting}
        assert said == {REVOKED_MESSAGE.format(why=TOKEN_WITHDRAWN)}


@pytest.mark.slow
async def test_all_that_waited_for_a_home_go_there_once_it_is_reached_though_it_has_answered_nothing(
    tmp_path: Path,
) -> None:
    """A call may take longer than others wait."""
    files, count = FleetFiles(tmp_path), 20
    port = free_port()
    async with open_site(files, B) as b:
        await files.directory.beat(files.member(A, port))
        await b.members.wait_list()
        waiting = [begin(b, files.homes(A).name(f"session {number}")) for number in range(count)]
        await trio.sleep(2 * RETRY_INTERVAL)
        async with open_silent(files, A, port) as (_, asked, scope):
            with trio.fail_after(count * RETRY_INTERVAL / 2):
                while len(asked) < count:  # noqa: ASYNC110 - by looks
                    await trio.sleep(0.01)
            scope.cancel()
            for each in waiting:
                await each.ended()


@pytest.mark.slow
async def test_a_home_that_is_alive_and_cannot_be_reached_is_not_waited_for_without_end(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        pair.a.scope.cancel()
        answer = await pair.b.client.another(pair.a.client.session).get("POST", body=CALL)
        assert answer.status == 503
        assert answer.messages()[0]["error"]["message"] == UNREACHED


@pytest.mark.slow
async def test_the_connection_to_a_member_ends_with_its_lease_and_what_waits_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that vanished closes nothing, and another process may have its address next."""
    async with open_pair(tmp_path) as pair, trio.open_nursery() as nursery:
        await pair.a.client.open()
        bound = bind("127.0.0.1", 0)
        nursery.start_soon(serve_http, pair.b.client.app, bound)
        session = pair.a.client.session or ""
        async with await trio.open_tcp_stream("127.0.0.1", bound.getsockname()[1]) as client:
            with trio.fail_after(2 * LEASE + 5):
                for number in range(2):
                    await client.send_all(request(session, number, "x"))
                    assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
                monkeypatch.setattr(PlainChannel, "send", lambda *_: None)
                await client.send_all(request(session, 2, "x"))
                (connection,) = pair.b.connections.values()
                pair.files.directory.shut_out.add(A)
                assert OUTCOME_UNKNOWN.encode() in await client.receive_some()
                while not connection.is_over:  # noqa: ASYNC110 - by looks
                    await trio.sleep(0.01)
        assert not pair.b.connections
        assert pair.b.unknown == [A]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_body_that_is_too_long_is_refused_at_the_edge(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        at_b = pair.b.client.another(pair.a.client.session)
        answer = await at_b.get("POST", body=b"", pieces=[b"x" * 1024 * 1024] * 5)
        assert answer.status == 413
        assert json.loads(answer.body)["error"]["message"].startswith("a message is at most")


@pytest.mark.slow
async def test_clients_that_repeat_their_heads_share_one_connection_to_the_home(tmp_path: Path) -> None:
    """Over real sockets at the entrance too: many at once, answered in any order, and one that leaves."""
    calls = 40

    async def answer(params: dict[str, Any]) -> object:
        await trio.sleep(random.random() * 0.01)
        return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}

    async with open_pair(tmp_path) as pair, trio.open_nursery() as nursery:
        pair.at_a.answers["tools/call"] = answer
        await pair.a.client.open()
        bound = bind("127.0.0.1", 0)
        port = bound.getsockname()[1]
        nursery.start_soon(serve_http, pair.b.client.app, bound)
        session = pair.a.client.session or ""

        async def one(name: str, count: int) -> None:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                for number in range(count):
                    text = f"{name}-{number}" * (1 + number % 3 * 4000)
                    await stream.send_all(request(session, number, text))
                    received = b""
                    while text.encode() not in received or not received.startswith(b"HTTP/1.1 200"):
                        received += await stream.receive_some()
                await stream.send_all(request(session, count, "nobody reads this"))

        with trio.fail_after(30):
            async with trio.open_nursery() as clients:
                for name in "abcdefgh":
                    clients.start_soon(one, name, calls)
        assert len(pair.b.connections) == 1
        assert pair.b.unknown == []
        nursery.cancel_scope.cancel()


def request(session: str, id: int, text: str) -> bytes:
    params = {"name": "s__x", "arguments": {"text": text}}
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()
    headers = {**MCP_HEADERS, "mcp-session-id": session, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body


@pytest.mark.slow
async def test_an_answer_that_comes_as_its_call_is_called_off_at_the_entrance_is_not_passed_on(tmp_path: Path) -> None:
    """The task of the connection tells the client, once, and the connection goes on."""
    async with open_pair(tmp_path, waits=True) as pair, trio.open_nursery() as nursery:
        await pair.a.client.open()
        bound = bind("127.0.0.1", 0)
        port = bound.getsockname()[1]
        nursery.start_soon(serve_http, pair.b.client.app, bound)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:

            async def ask(id: int) -> Any:
                await stream.send_all(request(pair.a.client.session or "", id, ""))
                return (await pair.at_a.hears("tools/call"))["id"]

            async def told(words: str) -> bytes:
                received = b""
                while words.encode() not in received:
                    more = await stream.receive_some()
                    assert more, "the connection has ended"
                    received += more
                return received

            with trio.fail_after(10):
                for id in (1, 2):
                    pair.at_a.says(await ask(id), {"content": [{"type": "text", "text": f"answer {id}"}]})
                    await told(f"answer {id}")
                await ask(3)
                (streams,) = pair.b.connections.values()
                (to_home,) = streams._open.values()
                pair.b.world.memory.revoke(lambda of: TOKEN_WITHDRAWN)
                to_home.add(b"HTTP/1.1 200 \r\ncontent-length: 4\r\ndate: now\r\n\r\nlate")
                assert b"late" not in await told(TOKEN_WITHDRAWN)
                pair.at_a.says(await ask(4), {"content": [{"type": "text", "text": "answer 4"}]})
                await told("answer 4")
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_token_that_is_withdrawn_ends_the_way_of_the_requests_that_had_it(tmp_path: Path) -> None:
    """Also of those that repeat a head that was let in before."""
    listen = Listen(auth=Auth({"desk": Secret("desk-0123456789abcdef")}))
    async with open_pair(tmp_path, listen=listen) as pair:
        pair.a.client.headers["authorization"] = "Bearer desk-0123456789abcdef"
        await pair.a.client.open()
        bound = bind("127.0.0.1", 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http, pair.b.client.app, bound)
            said = request(pair.a.client.session or "", 1, "x").replace(
                b"mcp-session-id", b"authorization: Bearer desk-0123456789abcdef\r\nmcp-session-id"
            )
            statuses = []
            async with await trio.open_tcp_stream("127.0.0.1", bound.getsockname()[1]) as stream:
                for number in range(4):
                    if number == 3:
                        pair.b.client.change_access(Listen(auth=Auth({})), Addresses())
                    await stream.send_all(said)
                    statuses.append((await stream.receive_some())[9:12])
            assert statuses == [b"200", b"200", b"200", b"401"]
            nursery.cancel_scope.cancel()
