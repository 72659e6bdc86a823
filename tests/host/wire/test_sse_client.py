"""The HTTP+SSE link against scripted servers: in memory with virtual time, once on real sockets, and once against a
server that somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import pytest
import trio
import uvicorn
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.sse import SseServerTransport
from mcp_types import ListToolsResult, Tool
from msgspec import Raw
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Mount, Route
from trio.testing import MockClock, wait_all_tasks_blocked

from host.jsonrpc.conversation import cancel_notification
from host.jsonrpc.messages import Malformed, Notification, Request, Success
from host.protocol.versions import LEGACY
from host.wire.framing import DISCARD_WINDOW
from host.wire.http_errors import AuthNeeded, HttpRefused, Unreachable
from host.wire.http_pool import Pool
from host.wire.http_transport import open_origin
from host.wire.link import LinkLost, Parcel, ReceivedMessage
from host.wire.sse import MAX_EVENT, format_event
from host.wire.sse_client import ENDPOINT_TIMEOUT, SseLink
from host.wire.turns import Turns
from tests.host.wire.http_servers import (
    INITIALIZED,
    JSON,
    NOTE,
    SSE,
    Heard,
    Wire,
    answer,
    ask,
    in_memory,
    serving,
    streaming,
    success,
    until,
)

URL = "http://example.com/sse?key=secret"
CHANGED = ReceivedMessage(Notification("notifications/tools/list_changed"))


def endpoint(where: str = "/messages?session=1") -> bytes:
    return b"event: endpoint\ndata: " + where.encode() + b"\n\n"


@dataclass
class Linked:
    link: SseLink
    dropped: list[tuple[str, str]]
    arrived: list[ReceivedMessage] = field(default_factory=list)
    lost: LinkLost | None = None
    over: trio.Event = field(default_factory=trio.Event)

    async def run(self) -> None:
        try:
            await self.link.run(self.arrived.append)
        except LinkLost as lost:
            self.lost = lost
            self.over.set()

    async def wait_lost(self) -> LinkLost:
        with trio.fail_after(100):
            await self.over.wait()
        assert self.lost is not None
        return self.lost


@asynccontextmanager
async def linked(
    url: str, served: Pool | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Linked]:
    dropped: list[tuple[str, str]] = []
    async with open_origin(url, headers or {}, served or Pool(Turns())) as origin:
        found = Linked(SseLink(origin, lambda what, detail: dropped.append((what, detail))), dropped)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            yield found
            nursery.cancel_scope.cancel()


class Stage:
    """A server in memory, which says on its stream what the test has it say, and takes what is POSTed."""

    def __init__(self, post: Callable[[httpx.Request], Awaitable[httpx.Response]] | None = None) -> None:
        self.heard: list[httpx.Request] = []
        self._post = post
        self._says, self._said = trio.open_memory_channel[bytes](100)
        self.transport = in_memory(self._answer)

    def says(self, *parts: bytes) -> None:
        for part in parts:
            self._says.send_nowait(part)

    def ends(self) -> None:
        self._says.close()

    @property
    def posts(self) -> list[httpx.Request]:
        return [each for each in self.heard if each.method == "POST"]

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.heard.append(request)
        await trio.lowlevel.checkpoint()
        if request.method == "POST":
            return httpx.Response(202, content=b"Accepted") if self._post is None else await self._post(request)
        return httpx.Response(200, headers={"content-type": SSE}, content=self._play())

    async def _play(self) -> AsyncIterator[bytes]:
        async for part in self._said:
            yield part

    @asynccontextmanager
    async def joined(self, headers: Mapping[str, str] | None = None) -> AsyncIterator[Linked]:
        """A link that knows its endpoint."""
        self.says(endpoint())
        async with linked(URL, self.transport, headers) as found:
            await wait_all_tasks_blocked()
            yield found


async def test_what_is_posted_goes_to_the_endpoint_and_what_is_said_comes_on_the_stream() -> None:
    stage = Stage()
    async with stage.joined() as found:
        await found.link.send(ask(1))
        assert found.arrived == []
        stage.says(NOTE, b": ping\n\n", b"event: message\n" + format_event(answer(1)))
        await wait_all_tasks_blocked()
        assert found.arrived == [CHANGED, ReceivedMessage(success(1))]
        opened, posted = stage.heard
        assert (opened.method, str(opened.url), opened.headers["accept"]) == ("GET", URL, SSE)
        assert (posted.method, str(posted.url)) == ("POST", "http://example.com/messages?session=1")
        assert posted.headers["content-type"] == JSON
        assert json.loads(posted.content) == {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


async def test_headers_of_the_configuration_are_on_the_stream_and_on_every_message() -> None:
    stage = Stage()
    async with stage.joined({"Authorization": "Bearer x", "Accept": "mine"}) as found:
        await found.link.send(ask())
        assert [each.headers["authorization"] for each in stage.heard] == ["Bearer x", "Bearer x"]
        assert [each.headers["accept"] for each in stage.heard] == [SSE, "*/*"]


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("/m?s=1", "http://example.com/m?s=1"),
        ("m", "http://example.com/m"),
        ("?s=1", "http://example.com/sse?s=1"),
        ("http://example.com/m", "http://example.com/m"),
        ("http://EXAMPLE.com:80/m", "http://example.com/m"),
        ("//example.com/m", "http://example.com/m"),
    ],
)
async def test_the_endpoint_may_be_absolute_or_relative(said: str, where: str) -> None:
    stage = Stage()
    stage.says(endpoint(said))
    async with linked(URL, stage.transport) as found:
        await found.link.send(ask())
        assert [str(each.url) for each in stage.posts] == [where]


@pytest.mark.parametrize(
    "said",
    [
        b"https://example.com/m",
        b"http://example.com:8080/m",
        b"http://evil.example/m",
        b"//evil.example/m",
        b"http://me@example.com/m",
        b"http://example.com@evil.example/m",
        b"http://127.0.0.1/m",
        b"file:///etc/passwd",
        b"javascript:alert(1)",
        b"http://[::1",
        b"/m\x01",
        b"/\xff",
    ],
)
async def test_an_endpoint_elsewhere_ends_the_link_and_nothing_is_sent_there(
    said: bytes, autojump_clock: MockClock
) -> None:
    """Nothing is sent anywhere, and the sentence does not repeat the server's text, which people are shown beside it
    (rule 39)."""
    stage = Stage()
    stage.says(b"event: endpoint\ndata: " + said + b"\n\n" + NOTE, endpoint())
    async with linked(URL, stage.transport, {"Authorization": "Bearer x"}) as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert str(caught.value) == "its endpoint for messages is refused, because it is not within its own origin"
        assert caught.value.said == said.decode(errors="replace").partition("?")[0]
        assert caught.value.remedy.startswith("tell the server, or the proxy before it, the URL")
        assert repr(await found.wait_lost()) == repr(caught.value)
        assert found.arrived == []
        assert [each.method for each in stage.heard] == ["GET"]


@pytest.mark.parametrize(
    ("status", "body", "told", "said"),
    [
        (404, b"Cannot POST /messages",
         "nothing takes messages at the address that its endpoint event names (HTTP 404): "
         "tell the server, or the proxy before it, the URL at which it is reached from here",
         "/messages: Cannot POST /messages"),
        (405, b"", "nothing takes messages at the address that its endpoint event names (HTTP 405): "
         "tell the server, or the proxy before it, the URL at which it is reached from here", "/messages"),
        (404, b"Session not found", "the server does not know the session that it has just opened (HTTP 404): have all "
         "requests of one client reach the same instance of it", "/messages: Session not found"),
        (400, b"no", "the server refused the request (HTTP 400)", "no"),
    ],
)  # fmt: skip
async def test_the_first_message_that_is_refused_is_told_with_the_address_that_the_server_named(
    status: int, body: bytes, told: str, said: str
) -> None:
    statuses = [status, 202, status]

    async def post(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        return httpx.Response(statuses.pop(0), content=body)

    stage = Stage(post)
    async with stage.joined() as found:
        with pytest.raises(HttpRefused) as caught:
            await found.link.send(ask())
        assert (caught.value.with_remedy, caught.value.said) == (told, said)
        await found.link.send(ask(2))
        with pytest.raises(HttpRefused) as caught:
            await found.link.send(ask(3))
        assert "refused the request" in str(caught.value)  # the address is right


async def test_a_second_endpoint_and_other_events_are_dropped_and_pings_are_normal() -> None:
    """The first endpoint counts (rule 39)."""
    stage = Stage()
    async with stage.joined() as found:
        stage.says(
            endpoint("http://evil.example/"),
            endpoint("/other"),
            b"event: error\ndata: secret\n\n",
            format_event(b"{}", event="message" * 1000),
            b"event: ping\ndata: 2025\n\n",
            b"event: message\ndata:\n\n",
            format_event(b"nonsense"),
            NOTE,
        )
        await wait_all_tasks_blocked()
        await found.link.send(ask())
        assert [each.url.path for each in stage.posts] == ["/messages"]
        names = ["'endpoint'", "'endpoint'", "'error'", "'" + ("message" * 1000)[:79]]
        assert found.dropped == [("unexpected event", name) for name in names]
        broken, last = found.arrived
        assert isinstance(broken.message, Malformed)
        assert last == CHANGED


async def test_whoever_sends_before_the_endpoint_is_known_waits_for_it() -> None:
    stage = Stage()
    async with linked(URL, stage.transport) as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.link.send, ask(1))
        await wait_all_tasks_blocked()
        assert stage.posts == []
        stage.says(endpoint())
        await wait_all_tasks_blocked()
        assert len(stage.posts) == 1


async def test_a_stream_that_names_no_endpoint_ends_the_link_after_a_while(autojump_clock: MockClock) -> None:
    """Signs of life do not help (rule 39)."""
    stage = Stage()
    stage.says(b": hello\n\n", b"event: ping\ndata: x\n\n")
    began = trio.current_time()
    async with linked(URL, stage.transport) as found:
        with pytest.raises(LinkLost, match=r"^it named no endpoint for messages within 10 s$"):
            await found.link.send(ask())
        assert trio.current_time() - began == pytest.approx(ENDPOINT_TIMEOUT)
        await found.wait_lost()


async def test_a_server_that_never_begins_to_answer_ends_the_link_too(autojump_clock: MockClock) -> None:
    async def stall(request: httpx.Request) -> httpx.Response:
        await trio.sleep_forever()
        raise AssertionError

    async with linked(URL, in_memory(stall)) as found:
        assert "named no endpoint" in str(await found.wait_lost())


async def test_silence_after_the_endpoint_is_normal(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.joined() as found:
        await trio.sleep(10_000)
        assert found.lost is None
        await found.link.send(ask())


@pytest.mark.parametrize("end", ["politely", "abruptly"])
async def test_the_end_of_the_stream_is_the_end_of_the_link_and_of_everything_on_it(
    end: str, autojump_clock: MockClock
) -> None:
    """Only a new link begins a new session (rule 39)."""
    asked: list[str] = []

    async def serve(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        await trio.lowlevel.checkpoint()
        if request.method == "GET":
            return streaming(endpoint(), 5.0, NOTE[:-1], broken=end == "abruptly")
        await trio.sleep_forever()
        raise AssertionError

    outcomes: list[str] = []

    async def send(link: SseLink) -> None:
        try:
            await link.send(ask())
        except LinkLost as lost:
            outcomes.append(str(lost))

    async with linked(URL, in_memory(serve)) as found:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, found.link)
            nursery.start_soon(send, found.link)
        text = "its event stream ended, and the session with it"
        assert outcomes == [text, text]
        assert str(await found.wait_lost()) == text
        assert found.arrived == []
        with pytest.raises(LinkLost, match="its event stream ended"):
            await found.link.send(ask())
        assert asked == ["GET", "POST", "POST"]


async def test_an_event_without_an_end_ends_the_link() -> None:
    """An event is bounded (rule 5)."""
    stage = Stage()
    async with stage.joined() as found:
        stage.says(b"data: ", *[b"x" * (MAX_EVENT // 4)] * 5)
        assert "an event of more than" in str(await found.wait_lost())


async def test_an_answer_over_the_limit_on_the_shared_stream_fails_its_own_request_alone() -> None:
    stage = Stage()
    async with stage.joined() as found:
        stage.says(b'data: {"jsonrpc":"2.0","id":7,"result":"', *[b"x" * (MAX_EVENT // 4)] * 5, b'"}\n\n')
        stage.says(format_event(answer(8)))
        with trio.fail_after(20):
            while len(found.arrived) < 2:
                await trio.lowlevel.checkpoint()
        first, second = (arrival.message for arrival in found.arrived)
        why = f"the message has more than {MAX_EVENT} bytes (limits.message)"
        assert first == Malformed(413, why, 7, True, size=5 * (MAX_EVENT // 4) + 38)
        assert second == success(8)
        assert found.lost is None


async def test_a_message_over_the_limit_must_end_in_time(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.joined() as found:
        began = trio.current_time()
        stage.says(b'data: {"jsonrpc":"2.0","id":7,"result":"', *[b"x" * (MAX_EVENT // 4)] * 5)
        assert "did not end it in time" in str(await found.wait_lost())
        assert trio.current_time() - began == pytest.approx(DISCARD_WINDOW, abs=1)


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (401, AuthNeeded, "the server wants credentials (HTTP 401)"),
        (404, HttpRefused, "the server does not serve MCP there (HTTP 404): correct the path in its url"),
        (302, HttpRefused, "the server redirects (HTTP 302): configure the URL that it redirects to"),
        (503, HttpRefused, "the server failed (HTTP 503)"),
        (200, HttpRefused, "the server has no event stream there (HTTP 200): correct the path in its url"),
    ],
)
async def test_a_server_without_the_stream_ends_the_link_for_the_reason_it_has(
    status: int, kind: type[HttpRefused], text: str
) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"content-type": "text/html"}, content=b"<h1>secret</h1>")

    async with linked(URL, in_memory(refuse)) as found:
        with pytest.raises(kind) as caught:
            await found.link.send(ask())
        assert str(caught.value) == text
        assert caught.value.said == ("" if status == 200 else "secret")
        assert repr(await found.wait_lost()) == repr(caught.value)


async def test_a_message_that_is_refused_is_its_senders_failure_only() -> None:
    statuses = [403, 404, 500, 202]

    async def post(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        return httpx.Response(statuses.pop(0), content=b"secret")

    stage = Stage(post)
    async with stage.joined() as found:
        for kind, text in ((AuthNeeded, "403"), (HttpRefused, "404"), (HttpRefused, "500")):
            with pytest.raises(kind, match=text):
                await found.link.send(ask())
        await found.link.send(ask())
        assert found.lost is None


@pytest.mark.parametrize(
    "answers",
    [
        [(404, b"Could not find session")],
        [(400, b"No transport found for sessionId")],
        [(404, b""), (404, b"")],
        [(404, b""), (410, b"")],
    ],
)
async def test_a_session_that_the_server_has_forgotten_ends_though_its_stream_is_open(
    answers: list[tuple[int, bytes]],
) -> None:
    """A proxy holds the stream open, and another instance of the server takes the messages."""
    left = [(202, b""), *answers]

    async def post(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        status, body = left.pop(0)
        return httpx.Response(status, content=body)

    stage = Stage(post)
    async with stage.joined() as found:
        await found.link.send(ask())
        for _ in answers:
            assert found.lost is None
            with pytest.raises(HttpRefused):  # the sender's failure; nothing is sent again
                await found.link.send(ask())
        lost = await found.wait_lost()
        assert lost.ended_session
        assert "does not know the session any more" in str(lost)


async def test_messages_that_are_not_found_now_and_then_end_no_session() -> None:
    statuses = [202, 404, 202, 404, 500, 404, 429, 202]

    async def post(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        return httpx.Response(statuses.pop(0), content=b"no such thing")

    stage = Stage(post)
    async with stage.joined() as found:
        while statuses:
            with suppress(HttpRefused):
                await found.link.send(ask())
        assert found.lost is None


async def test_a_message_that_breaks_on_the_way_is_not_sent_again() -> None:
    """The server may have accepted it (rule 38)."""

    async def post(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        raise httpx.ReadError("10.0.0.1")

    stage = Stage(post)
    async with stage.joined() as found:
        with pytest.raises(LinkLost):
            await found.link.send(ask(1, "tools/call"))
        assert len(stage.posts) == 1
        assert found.lost is None


async def test_redirects_are_followed_within_the_origin_only() -> None:
    """Neither the stream nor a message leaves it (rule 40)."""
    asked: list[str] = []
    targets = {"/sse": "/sse/", "/messages": "/messages/", "/messages/": "http://evil.example/"}

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.host}{request.url.path}")
        if request.url.path in targets:
            return httpx.Response(307, headers={"location": targets[request.url.path]})
        return streaming(endpoint(), 1000.0)

    async with linked(URL, in_memory(serve)) as found:
        with pytest.raises(HttpRefused, match="the server redirects"):
            await found.link.send(ask())
    assert asked == [
        "GET example.com/sse",
        "GET example.com/sse/",
        "POST example.com/messages",
        "POST example.com/messages/",
    ]


@pytest.mark.parametrize(("revision", "named"), [("2024-11-05", None), ("2025-03-26", None), ("2025-06-18", True)])
async def test_the_revision_is_named_from_the_handshake_on_where_it_has_a_header(
    revision: str, named: bool | None
) -> None:
    """Servers speak later revisions over this transport, too (rule 34)."""
    stage = Stage()
    async with stage.joined() as found:
        await found.link.send(ask(1, "initialize"))
        found.link.settle(LEGACY[revision])
        await found.link.send(INITIALIZED)
        await found.link.send(Parcel(success(9)))
        headers = [each.headers.get("mcp-protocol-version") for each in stage.posts]
        assert headers == [None, *[revision if named else None] * 2]


@pytest.mark.parametrize(("revision", "count"), [("2024-11-05", 1), ("2025-03-26", 2), ("2025-06-18", 1)])
async def test_each_message_of_a_batch_arrives_by_itself_where_the_revision_has_batches(
    revision: str, count: int
) -> None:
    """Elsewhere an array is no message (rule 6)."""
    stage = Stage()
    async with stage.joined() as found:
        found.link.settle(LEGACY[revision])
        stage.says(format_event(b"[" + answer(1) + b"," + answer(2) + b"]"))
        await wait_all_tasks_blocked()
        assert len(found.arrived) == count
        assert isinstance(found.arrived[0].message, Malformed) == (count == 1)


async def test_calling_off_tells_the_server_and_takes_two_seconds_at_most(autojump_clock: MockClock) -> None:
    async def stall(request: httpx.Request) -> httpx.Response:
        await trio.sleep_forever()
        raise AssertionError

    stage = Stage(stall)
    async with stage.joined() as found:
        began = trio.current_time()
        await found.link.send_cancel(7, cancel_notification(7, "gone"))
        assert trio.current_time() - began == pytest.approx(2.0)
        assert json.loads(stage.posts[0].content)["params"] == {"requestId": 7, "reason": "gone"}
        stage.ends()
        await found.wait_lost()
        await found.link.send_cancel(7, cancel_notification(7, "gone"))


async def test_a_send_that_is_cancelled_leaves_the_link_as_it_was() -> None:
    holds = trio.Event()

    async def post(request: httpx.Request) -> httpx.Response:
        if not holds.is_set():
            holds.set()
            await trio.sleep_forever()
        return httpx.Response(202)

    stage = Stage(post)
    async with stage.joined() as found:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.link.send, ask(1))
            await holds.wait()
            nursery.cancel_scope.cancel()
        await found.link.send(ask(2))
        assert found.lost is None


async def test_a_link_whose_owner_has_left_is_over() -> None:
    stage = Stage()
    stage.says(endpoint())
    async with open_origin(URL, {}, stage.transport) as origin:
        link = SseLink(origin, lambda what, detail: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run, lambda arrival: None)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(LinkLost, match="the connection was closed"):
            await link.send(ask())


# --- real sockets ---------------------------------------------------------------------------------------------------


async def test_a_whole_session_on_real_sockets_ends_with_its_stream() -> None:
    streams: list[Wire] = []
    gone = trio.Event()

    async def script(heard: Heard, wire: Wire) -> None:
        if heard.method == "GET":
            streams.append(wire)
            await wire.begin()
            await wire.chunk(endpoint("/messages?session=1"))
            await wire.wait_closed()
            gone.set()
            return
        body = json.loads(heard.body)
        await wire.say(202, b"Accepted", "text/plain")
        if "id" in body:
            await streams[0].chunk(b"event: message\n" + format_event(answer(body["id"])))

    async with serving(script) as server:
        async with linked(server.url) as found:
            for id in (1, 2):
                await found.link.send(ask(id))
            await found.link.send(INITIALIZED)
            await until(lambda: len(found.arrived) == 2)
            assert found.arrived == [ReceivedMessage(success(1)), ReceivedMessage(success(2))]
            assert [each.target for each in server.heard] == ["/mcp?key=secret", *["/messages?session=1"] * 3]
            assert server.connections == 2, "one for the stream, one for all messages"
            assert found.lost is None
        with trio.fail_after(5):
            await gone.wait()


async def test_a_server_that_is_not_there_ends_the_link() -> None:
    (nobody,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = nobody.socket.getsockname()[1]
    await nobody.aclose()
    async with linked(f"http://127.0.0.1:{port}/sse") as found:
        with pytest.raises(Unreachable, match="it cannot be reached: connection refused"):
            await found.link.send(ask())


def sdk_app() -> Starlette:
    """A server of the SDK with one tool, at /sse."""
    transport = SseServerTransport("/messages/")

    async def list_tools(context: object, params: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="x", input_schema={"type": "object"})])

    server = SdkServer("old", on_list_tools=list_tools)

    async def stream(request: StarletteRequest) -> StarletteResponse:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return StarletteResponse()

    return Starlette(routes=[Route("/sse", stream), Mount("/messages/", transport.handle_post_message)])


@asynccontextmanager
async def sdk_serving() -> AsyncIterator[str]:
    """The SDK's server, in a thread of its own, at this URL."""
    server = uvicorn.Server(uvicorn.Config(sdk_app(), port=0, log_level="critical", timeout_graceful_shutdown=1))

    async def run() -> None:
        await trio.to_thread.run_sync(server.run)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            await until(lambda: server.started)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/sse"
        finally:
            server.should_exit = True


async def test_a_session_with_the_servers_of_the_sdk() -> None:
    params = Raw(b'{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"a","version":"1"}}')
    async with sdk_serving() as url, linked(url) as found:
        await found.link.send(Parcel(Request(1, "initialize", params)))
        await until(lambda: found.arrived)
        found.link.settle(LEGACY["2024-11-05"])
        await found.link.send(INITIALIZED)
        await found.link.send(ask(2))
        await until(lambda: len(found.arrived) == 2)
        last = found.arrived[1].message
        assert isinstance(last, Success)
        assert json.loads(bytes(last.result))["tools"][0]["name"] == "x"
