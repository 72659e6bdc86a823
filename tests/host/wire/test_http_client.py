"""The HTTP link against scripted servers: real sockets where bytes and connections matter, an httpx transport and
virtual time where waiting matters."""

from __future__ import annotations

import json
import socket
import struct
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Never

import httpx
import pytest
import trio
from msgspec import Raw
from trio.testing import wait_all_tasks_blocked

from host.jsonrpc.messages import ErrorBody, Failure, Id, Malformed, Notification, Request, Success
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import InFlight, Peer, open_peer
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY
from host.wire import http_transport
from host.wire.http_client import MIN_RETRY_PAUSE, STEADY_STREAM, STREAM_GRACE, HttpLink, SessionEnded, open_http
from host.wire.http_errors import AuthNeeded, HttpRefused
from host.wire.http_pool import Pool
from host.wire.http_transport import open_origin
from host.wire.link import LinkLost, Parcel, ReceivedMessage
from host.wire.sse import format_event
from host.wire.turns import Turns
from tests.host.wire.http_servers import (
    INITIALIZED,
    JSON,
    NOTE,
    SSE,
    Heard,
    Script,
    Wire,
    answer,
    ask,
    in_memory,
    serving,
    streaming,
    success,
    until,
)
from tests.kit.memory import NullHandler


@dataclass
class Linked:
    link: HttpLink
    arrived: list[ReceivedMessage] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    lost: LinkLost | None = None
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def messages(self) -> list[object]:
        return [arrival.message for arrival in self.arrived]

    async def run(self) -> None:
        try:
            await self.link.run(self.arrived.append)
        except LinkLost as lost:
            self.lost = lost
            self.over.set()


@asynccontextmanager
async def linked(
    url: str,
    served: Pool | None = None,
    headers: Mapping[str, str] | None = None,
    max_message: int | None = None,
) -> AsyncIterator[Linked]:
    dropped: list[tuple[str, str]] = []
    async with (
        open_origin(url, headers or {}, served or Pool(Turns()), max_message=max_message) as origin,
        open_http(origin, lambda what, detail: dropped.append((what, detail))) as link,
    ):
        found = Linked(link, dropped=dropped)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            yield found
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[HttpLink]:
    async with open_origin(url, {}) as origin, open_http(origin, lambda *_: None) as link:
        yield link


# --- real sockets ---------------------------------------------------------------------------------------------------


def scripted(post: Script, session: str | None = None) -> Script:
    """A server that answers POSTs of requests as `post` does, and everything else as the simplest server would."""

    async def script(heard: Heard, wire: Wire) -> None:
        body = json.loads(heard.body) if heard.body else {}
        if heard.method != "POST":
            await wire.say(405)
        elif "id" not in body or "method" not in body:
            await wire.say(202)
        elif body["method"] == "initialize" and session is not None:
            await wire.say(200, answer(body["id"]), mcp_session_id=session)
        else:
            await post(heard, wire)

    return script


def saying(status: int, body: bytes = b"", kind: str = JSON, **headers: str) -> Script:
    async def post(heard: Heard, wire: Wire) -> None:
        await wire.say(status, body, kind, **headers)

    return scripted(post)


async def test_a_json_answer_is_delivered_before_send_returns() -> None:
    """`Accept` names JSON and event streams (rule 31)."""
    async with serving(saying(200, answer())) as server, linked(server.url) as found:
        await found.link.send(ask())
        assert found.arrived == [ReceivedMessage(success(), 1)]
        heard = server.heard[0]
        assert heard.headers["accept"] == "application/json, text/event-stream"
        assert heard.headers["content-type"] == JSON
        assert heard.headers["accept-encoding"] == "identity"
        assert heard.headers["user-agent"].startswith("colonnade/")
        assert json.loads(heard.body) == {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@pytest.mark.parametrize("kind", ["Application/JSON ; charset=utf-8", "application/json;x"])
async def test_the_content_type_is_read_in_any_spelling(kind: str) -> None:
    async with serving(saying(201, answer(), kind)) as server, linked(server.url) as found:
        await found.link.send(ask())
        assert found.messages == [success()]


async def test_every_event_of_a_posts_stream_is_delivered_as_it_comes_about_its_request() -> None:
    """The stream has a comment, an event without data, and events with and without a name (rule 31)."""
    note = Notification("notifications/message", Raw(b"{}"))
    go_on = trio.Event()

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(b": hello\n\nid: 1\ndata:\n\n")
        await wire.chunk(
            format_event(b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}', event="message")
        )
        await go_on.wait()
        await wire.chunk(format_event(answer(3)))
        await wire.end()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.link.send, ask(3))
            await until(lambda: found.arrived)
            assert found.arrived == [ReceivedMessage(note, 3)]
            go_on.set()
        assert found.arrived == [ReceivedMessage(note, 3), ReceivedMessage(success(3), 3)]
        await found.link.send(Parcel(Notification("notifications/x")))
        assert server.connections == 1, "a stream that ended at once leaves its connection for the next"


async def test_a_stream_that_does_not_end_after_the_answer_is_closed() -> None:
    closed = trio.Event()

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(format_event(answer()))
        await wire.wait_closed()
        closed.set()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        await found.link.send(ask())
        assert found.messages == [success()]
        with trio.fail_after(5):
            await closed.wait()


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_a_notification_needs_a_receipt_only_and_keeps_its_connection(status: int) -> None:
    """Any 2xx will do, for an answer of ours too (rule 31)."""

    async def script(heard: Heard, wire: Wire) -> None:
        await (wire.write(b"HTTP/1.1 204 X\r\n\r\n") if status == 204 else wire.say(status))

    async with serving(script) as server, linked(server.url) as found:
        await found.link.send(Parcel(Notification("a")))
        await found.link.send(Parcel(success()))
        assert (len(server.heard), server.connections) == (2, 1)


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_the_session_and_the_revision_are_on_everything_later_and_the_session_is_given_back(
    revision: str,
) -> None:
    """On requests, responses, the standalone stream and the DELETE (rule 32) (rule 33) (rule 34)."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.say(200, answer(2))

    async with serving(scripted(post, session="s-1")) as server:
        async with linked(server.url) as found:
            await found.link.send(ask(1, "initialize"))
            found.link.settle(LEGACY[revision])
            await found.link.send(INITIALIZED)
            await found.link.send(ask(2))
            await found.link.send(Parcel(success(9)))
            await until(lambda: "GET" in server.methods)
        first, *later = server.heard
        assert "mcp-session-id" not in first.headers
        assert "mcp-protocol-version" not in first.headers
        assert sorted(each.method for each in later) == ["DELETE", "GET", "POST", "POST", "POST"]
        assert {each.headers["mcp-session-id"] for each in later} == {"s-1"}
        assert {each.headers["mcp-protocol-version"] for each in later} == {revision}
        assert server.methods[-1] == "DELETE"


@pytest.mark.parametrize("session", ["with space", "a\tb", "caf\xe9"])
async def test_a_session_id_of_other_characters_is_refused(session: str) -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {JSON}\r\ncontent-length: {len(answer())}\r\nmcp-session-id: "
        await wire.write(head.encode() + session.encode("latin-1") + b"\r\n\r\n" + answer())

    async with serving(script) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="visible ASCII"):
            await found.link.send(ask(1, "initialize"))


async def send_until_lost(link: HttpLink, parcel: Parcel, outcomes: list[LinkLost]) -> None:
    """Send, and keep the error if the link ends meanwhile."""
    try:
        await link.send(parcel)
    except LinkLost as lost:
        outcomes.append(lost)


@pytest.mark.virtual_time
async def test_a_server_that_has_forgotten_a_session_may_say_so_of_each_request() -> None:
    """Also of those that were sent before it said so of the first (rule 32)."""

    async def post(heard: Heard, wire: Wire) -> None:
        await trio.sleep(0.2 * json.loads(heard.body)["id"])
        await wire.say(404)

    outcomes: list[LinkLost] = []
    async with serving(scripted(post, session="s-1")) as server, linked(server.url) as found:
        await found.link.send(ask(1, "initialize"))
        async with trio.open_nursery() as nursery:
            for id in (1, 2, 3):
                nursery.start_soon(send_until_lost, found.link, ask(id), outcomes)
        assert [(type(each), each.nothing_begun) for each in outcomes] == [(SessionEnded, True)] * 3


async def test_a_404_with_a_session_ends_the_link_and_every_exchange_on_it() -> None:
    """Nothing is asked in that session any more; a new link knows nothing of it (rule 32)."""

    async def post(heard: Heard, wire: Wire) -> None:
        if json.loads(heard.body)["id"] == 2:
            await trio.sleep_forever()
        await wire.say(404, b'{"jsonrpc":"2.0","id":3,"error":{"code":-32001,"message":"Session not found"}}')

    outcomes: list[LinkLost] = []
    async with serving(scripted(post, session="s-1")) as server, linked(server.url) as found:
        await found.link.send(ask(1, "initialize"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_until_lost, found.link, ask(2), outcomes)
            await until(lambda: len(server.heard) == 2)
            nursery.start_soon(send_until_lost, found.link, ask(3), outcomes)
        with trio.fail_after(5):
            await found.over.wait()
        assert isinstance(found.lost, SessionEnded)
        assert [type(each) for each in outcomes] == [SessionEnded, SessionEnded]
        # The server did not process the request that it refused; of the other one nothing is known.
        assert sorted(each.nothing_begun for each in outcomes) == [False, True]
        with pytest.raises(SessionEnded) as unsent:
            await found.link.send(ask(4))
        assert unsent.value.nothing_begun
    assert "DELETE" not in server.methods


@dataclass
class Forgetful:
    """A server that says `refusal` to everything in a session that it does not know. Over real sockets."""

    refusal: tuple[int, object] = (400, None)
    as_stream: bool = False
    """Its responses come as event streams."""
    kind: str = JSON
    """The type of its errors."""
    accepts: bool = True
    """It accepts `initialize`."""
    known: set[str] = field(default_factory=set)
    refused_calls: Mapping[int, tuple[int, object]] = field(default_factory=dict)
    """The refusals of single calls in a session that it knows, by id."""
    got: list[tuple[str, str | None]] = field(default_factory=list)
    """Method and session of what it got."""

    async def __call__(self, heard: Heard, wire: Wire) -> None:
        body = json.loads(heard.body) if heard.body else {}
        session = heard.headers.get("mcp-session-id")
        self.got.append((body.get("method", heard.method), session))
        if heard.method == "DELETE":
            self.known.discard(session or "")
            await wire.say(200)
        elif heard.method != "POST":
            await wire.say(405)
        elif body["method"] == "initialize" and session is None and self.accepts:
            self.known.add(f"s{len(self.got)}")
            await self._answer(wire, body["id"], mcp_session_id=f"s{len(self.got)}")
        elif session not in self.known:
            await self._refuse(wire, self.refusal, body.get("id"))
        elif "id" not in body:
            await wire.say(202)
        elif body["id"] in self.refused_calls:
            await self._refuse(wire, self.refused_calls[body["id"]], body["id"])
        else:
            await self._answer(wire, body["id"])

    async def _answer(self, wire: Wire, id: Id, **headers: str) -> None:
        if self.as_stream:
            await wire.say(200, format_event(answer(id)), SSE, **headers)
        else:
            await wire.say(200, answer(id), JSON, **headers)

    async def _refuse(self, wire: Wire, refusal: tuple[int, object], id: Id | None) -> None:
        status, error = refusal
        said = {"jsonrpc": "2.0", "error": error, "id": id}
        await wire.say(status, b"" if error is None else json.dumps(said).encode(), self.kind)

    def count(self, method: str) -> int:
        return [each for each, _ in self.got].count(method)


async def begin_session(found: Linked) -> None:
    await found.link.send(ask(1, "initialize"))
    found.link.settle(LATEST_LEGACY)
    await found.link.send(INITIALIZED)


NO_SESSION = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
NOT_INITIALIZED = {"code": -32000, "message": "Bad Request: Server not initialized"}
INTERNAL = {"code": -32603, "message": "Internal error"}


@pytest.mark.parametrize("as_stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "nothing_begun"),
    [
        ((400, NO_SESSION), True),
        ((400, NOT_INITIALIZED), True),
        ((400, None), None),
        ((400, INTERNAL), None),
        ((403, None), None),
        ((422, NO_SESSION), None),
        ((500, None), None),
        ((503, NO_SESSION), None),
        ((200, NO_SESSION), None),
        ((200, None), None),
        ((401, None), None),
    ],
)
async def test_a_session_is_over_that_the_server_refuses_while_it_opens_another_one(
    refusal: tuple[int, object], nothing_begun: bool | None, as_stream: bool
) -> None:
    """A refused request may be sent again only if the server said that it was the session: `nothing_begun`."""
    outcomes: list[LinkLost] = []
    peer = Forgetful(refusal, as_stream)
    async with serving(peer) as server, linked(server.url) as found:
        await begin_session(found)
        peer.known.clear()
        await send_until_lost(found.link, ask(2), outcomes)
        with trio.fail_after(5):
            await found.over.wait()
        assert isinstance(found.lost, SessionEnded)
        assert str(found.lost) == f"the server has ended the session (HTTP {refusal[0]})"
        if nothing_begun:
            assert [(type(each), each.nothing_begun) for each in outcomes] == [(SessionEnded, True)]
        assert all(not each.ended_session for each in outcomes) or nothing_begun
        assert all(not each.nothing_begun for each in outcomes) or refusal[0] < 500
    assert (peer.count("ping"), peer.count("initialize")) == (1, 2)
    assert peer.known == set(), "the session of the check is deleted"


@pytest.mark.parametrize("kind", [JSON, "text/plain; charset=utf-8"])
async def test_calls_that_meet_the_loss_of_a_session_at_once_have_one_check(kind: str) -> None:
    outcomes: list[LinkLost] = []
    peer = Forgetful((400, NO_SESSION), kind=kind)
    async with serving(peer) as server, linked(server.url) as found:
        await begin_session(found)
        peer.known.clear()
        async with trio.open_nursery() as nursery:
            for id in range(2, 8):
                nursery.start_soon(send_until_lost, found.link, ask(id), outcomes)
        assert [(type(each), each.nothing_begun) for each in outcomes] == [(SessionEnded, True)] * 6
    assert (peer.count("ping"), peer.count("initialize")) == (1, 2)


@pytest.mark.parametrize("refusal", [(400, NO_SESSION), (400, INTERNAL), (400, None), (500, None), (403, None)])
async def test_a_session_goes_on_whose_server_refuses_single_requests(refusal: tuple[int, object]) -> None:
    """A ping of the session tells it from one that is over."""
    peer = Forgetful(refused_calls=dict.fromkeys(range(2, 5), refusal))
    async with serving(peer) as server, linked(server.url) as found:
        await begin_session(found)
        for id in range(2, 5):
            await send_until_lost(found.link, ask(id), [])
        await found.link.send(ask(12))
        assert found.messages[-1] == success(12)
        assert found.lost is None
    assert (peer.count("initialize"), peer.count("DELETE")) == (1, 1)
    assert peer.count("ping") <= 3


async def test_a_ping_whose_stream_breaks_is_not_refused() -> None:
    class Breaks(Forgetful):
        async def __call__(self, heard: Heard, wire: Wire) -> None:
            if b'"ping"' in heard.body:
                self.got.append(("ping", None))
                await wire.say(200, b": a comment\n\n", SSE)
            else:
                await super().__call__(heard, wire)

    peer = Breaks(refused_calls={2: (400, NO_SESSION)})
    async with serving(peer) as server, linked(server.url) as found:
        await begin_session(found)
        await send_until_lost(found.link, ask(2), [])
        await found.link.send(ask(3))
        assert found.messages[-1] == success(3)
    assert (peer.count("ping"), peer.count("initialize")) == (1, 1)


@pytest.mark.parametrize("refusal", [(401, None), (429, None)])
async def test_no_session_is_doubted_because_a_server_is_busy_or_wants_a_login(refusal: tuple[int, object]) -> None:
    """A login that a person has to make is another matter; see the tests of logins."""
    outcomes: list[LinkLost] = []
    peer = Forgetful(refusal, accepts=False)
    async with serving(peer) as server:
        async with linked(server.url) as found:
            peer.accepts = True
            await begin_session(found)
            peer.accepts = False
            peer.known.clear()
            await send_until_lost(found.link, ask(2), outcomes)
            await trio.sleep(0.1)
            assert found.lost is None
    assert peer.count("ping") == (0 if refusal[0] == 429 else 1)


async def test_a_server_that_refuses_everything_is_asked_ever_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """In the end the link is given up, since another server may be there. No request is sent again."""
    heard: list[str] = []

    async def serve(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        heard.append(body.get("method", request.method))
        await trio.lowlevel.checkpoint()
        if heard.count("initialize") == 1 and body.get("method") in ("initialize", "notifications/initialized"):
            headers = {"mcp-session-id": "s", "content-type": JSON}
            return httpx.Response(200 if "id" in body else 202, headers=headers, content=answer(body.get("id", 0)))
        if request.method == "GET":
            return httpx.Response(405)
        said = {"jsonrpc": "2.0", "error": NO_SESSION, "id": None}
        return httpx.Response(400, json=said)

    async with linked("http://example.com/mcp", in_memory(serve)) as found:
        await begin_session(found)
        second = 0
        while found.lost is None:
            with pytest.raises(LinkLost):
                await found.link.send(ask(second + 2))
            second += 1
            await trio.sleep(1)
    assert str(found.lost) == "it refuses its session, and opens no other one"
    assert heard.count("tools/list") in (second, second - 1)
    assert (heard.count("ping"), heard.count("initialize")) == (4, 5)


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (401, AuthNeeded, "the server wants credentials (HTTP 401)"),
        (403, AuthNeeded, "the server refuses access (HTTP 403)"),
        (404, HttpRefused, "does not serve MCP there (HTTP 404)"),
        (405, HttpRefused, "does not serve MCP there (HTTP 405)"),
        (421, HttpRefused, "does not answer for the host name in its url (HTTP 421)"),
        (501, HttpRefused, "does not serve MCP there (HTTP 501)"),
        (400, HttpRefused, "the server refused the request (HTTP 400)"),
        (307, HttpRefused, "the server redirects (HTTP 307)"),
        (500, HttpRefused, "the server failed (HTTP 500)"),
    ],
)
async def test_a_status_becomes_a_fixed_sentence_and_leaves_the_link_usable(
    status: int, kind: type[HttpRefused], text: str
) -> None:
    """(rule 99)"""

    async def post(heard: Heard, wire: Wire) -> None:
        if len(server.heard) == 1:
            await wire.say(status, b"<h1>secret</h1>", "text/html", location="http://127.0.0.1:1/")
        else:
            await wire.say(200, answer(2))

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(kind) as caught:
            await found.link.send(ask())
        assert text in str(caught.value)
        assert "secret" not in str(caught.value)
        assert caught.value.said == ("http://127.0.0.1:1/" if status == 307 else "secret")
        assert caught.value.status == status
        await found.link.send(ask(2))
        assert found.messages == [success(2)]
        assert found.lost is None


CHECK = b"<html><title>Just a moment...</title><script>x</script>Enable JavaScript and cookies to continue"
PASS = "have its owner let this machine or its headers pass without that check"
LOGIN = "set credentials under headers, or configure a URL for programs"
HOST = "correct the host there, or add the name at the server"


@pytest.mark.parametrize(
    ("status", "body", "kind", "headers", "told", "said"),
    [
        (403, CHECK, "text/html", {}, f"a firewall before the server wants a browser (HTTP 403): {PASS}", "Just a mo"),
        (503, b"", "text/html", {"cf_mitigated": "challenge"},
         f"a firewall before the server wants a browser (HTTP 503): {PASS}", ""),
        (403, b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"Invalid Host header"},"id":null}', JSON, {},
         f"the server does not answer for the host name in its url (HTTP 403): {HOST}", "message: Invalid Host header"),
        (403, b"Access is only allowed at localhost:8931", "text/plain", {},
         f"the server does not answer for the host name in its url (HTTP 403): {HOST}", "Access is only"),
        (403, b'{"message":"This key is not on the plan"}', JSON, {},
         "the server refuses access (HTTP 403): see what it says, or set headers that may use it",
         "message: This key is"),
        (400, b"The plain HTTP request was sent to HTTPS port", "text/html", {},
         "the server refused the request (HTTP 400): if the server speaks TLS, begin its url with https://", "The"),
        (400, b"no tenant header", "text/plain", {}, "the server refused the request (HTTP 400)", "no tenant header"),
        (404, b"<title>404 | My App</title>", "text/html", {},
         "the server does not serve MCP there (HTTP 404): correct the path in its url", "404 | My App"),
        (407, b"", "text/html", {},
         "a proxy on the way to the server wants credentials of its own (HTTP 407): look at that proxy, or reach the "
         "server without it", ""),
        (502, b"<h1>Bad Gateway</h1>", "text/html", {},
         "a gateway before the server got no valid response from it (HTTP 502): look whether the server runs behind it",
         "Bad Gateway"),
        (307, b"moved", "text/plain", {"location": "https://127.0.0.1/mcp?token=x#y"},
         "the server redirects to TLS (HTTP 307): begin its url with https://", "https://127.0.0.1/mcp"),
        (302, b"", "text/html", {"location": "https://id.example/oauth2/authorize?state=x"},
         f"the server redirects to a login page (HTTP 302): {LOGIN}", "https://id.example/oauth2/authorize"),
        (301, b"", "text/html", {"location": "https://mcp.example/mcp"},
         "the server redirects (HTTP 301): configure the URL that it redirects to", "https://mcp.example/mcp"),
        (302, b"", "text/html", {"location": "http://[::1"},
         "the server redirects to no valid URL (HTTP 302): look at its configuration", "http://[::1"),
        (200, b"<title>Sign in</title><form>", "text/html", {},
         f"it responded with a login page, and not with JSON or an event stream: {LOGIN}", "Sign in"),
        (200, CHECK, "text/html", {},
         "it responded with the web page of a firewall that wants a browser, and not with JSON or an event stream: "
         + PASS, "Just a moment"),
        (200, b"<title>My App</title>", "text/html", {},
         "it responded with a web page, and not with JSON or an event stream: correct the path in its url", "My App"),
        (200, b'{"ok":false,"error":"unknown_method"}', JSON, {},
         "it responded with JSON that is not a response to the request: correct the path in its url",
         "error: unknown_method, ok: False"),
    ],
)  # fmt: skip
async def test_the_sentence_follows_from_what_the_response_shows(
    status: int, body: bytes, kind: str, headers: dict[str, str], told: str, said: str
) -> None:
    """The words are ours in each case; what the response says stands apart."""
    async with serving(saying(status, body, kind, **headers)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert caught.value.with_remedy == told
        assert caught.value.said.startswith(said)
        assert bool(caught.value.said) == bool(said)


@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_where_initialize_was_answered_no_refusal_speaks_of_the_path(status: int) -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        if len(server.heard) == 1:
            await wire.say(200, answer(1))
        else:
            await wire.say(status, b"no", "text/plain")

    async with serving(scripted(post)) as server, linked(server.url) as found:
        await found.link.send(Parcel(Request(1, "initialize")))
        with pytest.raises(HttpRefused) as caught:
            await found.link.send(ask(2))
        assert caught.value.with_remedy.startswith(f"the server refused the request (HTTP {status})")
        assert not caught.value.may_be_http_sse


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("5", 5.0),
        ("99999999", 60.0),
        ("9" * 40, None),
        ("soon", None),
        ("-1", None),
        ("", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 9998 07:28:00 GMT", 60.0),
        ("Wed, 21 Oct 9999 07:28:00 +9999", None),
    ],
)
async def test_retry_after_is_read_and_kept_within_a_minute(said: str, seconds: float | None) -> None:
    async with serving(saying(503, b"", retry_after=said)) as server, linked(server.url) as found:
        with pytest.raises(HttpRefused) as caught:
            await found.link.send(ask())
        assert caught.value.retry_after == seconds


async def test_an_error_of_the_request_itself_with_status_400_is_its_answer() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}'
    async with serving(saying(400, body)) as server, linked(server.url) as found:
        await found.link.send(ask())
        assert [type(each) for each in found.messages] == [Failure]
        with pytest.raises(HttpRefused):
            await found.link.send(ask(2))  # the same body is not about this one
        assert len(found.messages) == 1


async def test_a_byte_order_mark_before_a_body_is_nothing() -> None:
    long = json.dumps({"text": "x" * 200_000})
    async with serving(saying(200, BOM_UTF8 + answer(1, long))) as server, linked(server.url) as found:
        await found.link.send(ask())
        assert len(found.arrived) == 1


async def test_the_type_of_an_unknown_body_is_told_to_people_only() -> None:
    async with serving(saying(200, b"hello", "text/plain; charset=utf-8")) as server, linked(server.url) as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert caught.value.said == "text/plain: hello"
        assert "text/plain" not in str(caught.value)


@pytest.mark.parametrize("body", [answer(2), answer("2"), answer("01"), b"[]", b"nonsense", b""])
async def test_a_body_that_does_not_answer_is_delivered_and_fails_the_request(body: bytes) -> None:
    async with serving(saying(200, body or b" ")) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="not a response to the request") as caught:
            await found.link.send(ask())
        assert caught.value.answered
        assert len(found.arrived) == 1
        assert found.lost is None


@pytest.mark.parametrize(
    ("kind", "headers", "why"),
    [
        ("text/html", {}, "it responded with a web page, and not with JSON or an event stream"),
        ("application/jsonx", {}, "it responded with neither JSON nor an event stream"),
        (JSON, {"content_encoding": "compress"}, "its body is compressed (compress) although none was asked for"),
        (JSON, {"content_encoding": "gzip"}, "its body is not valid gzip, which its Content-Encoding says it is"),
    ],
)
async def test_other_kinds_of_body_fail_the_request(kind: str, headers: dict[str, str], why: str) -> None:
    async with serving(saying(200, answer(), kind, **headers)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert str(caught.value) == why
        assert (caught.value.said == "") == bool(headers)
        assert caught.value.answered
        assert found.arrived == []


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("result", ["{}", json.dumps({"text": "x" * 200_000})])
async def test_an_id_that_comes_back_as_text_answers(streams: bool, result: str) -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        if not streams:
            return await wire.say(200, answer("1", result))
        await wire.begin()
        await wire.chunk(format_event(answer("1", result)))

    async with serving(scripted(post)) as server, linked(server.url) as found:
        await found.link.send(ask())
        assert len(found.arrived) == 1


BROKEN = [
    b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"x":[-Infinity,1]}}',
    b'{"jsonrpc":"2.0","result":{"x":NaN},"id":1}',
    b'{"id":1,"result":NaN,"jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":"1","result":{"x":NaN}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"x":"\xff"}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"\xe4"}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"x":"\xff","y":"%b"}}' % (b"y" * 200_000),
    b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN,"y":"%b"}}' % (b"y" * 200_000),
]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_is_no_json_fails_its_request_at_once(text: bytes, streams: bool) -> None:
    """A stream stays open after it."""

    async def post(heard: Heard, wire: Wire) -> None:
        if not streams:
            return await wire.say(200, text)
        await wire.begin()
        await wire.chunk(format_event(text))

    async with serving(scripted(post)) as server, opened(server.url) as link:
        async with open_peer(link, NullHandler()) as peer:
            with trio.fail_after(10), pytest.raises(BrokenAnswer, match=r"^not (UTF-8|JSON: it has NaN or Infinity)$"):
                await peer.request("tools/list")


@pytest.mark.parametrize("kind", ["", JSON, "text/plain"])
@pytest.mark.parametrize("status", [200, 202])
async def test_a_receipt_is_no_answer_to_a_request(status: int, kind: str) -> None:
    """It shows that the server is there."""
    headers = {"content_type": kind} if kind else {}
    async with serving(saying(status, b"", JSON, **headers)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert caught.value.answered
        assert not caught.value.nothing_begun


async def test_a_server_that_is_not_there_and_one_that_breaks_off_have_not_answered() -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
        await wire.close()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert not caught.value.answered
    async with linked(server.url) as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert not caught.value.answered


async def test_a_message_over_the_limit_on_the_standing_stream_ends_nothing() -> None:
    """The stream goes on, and the request that the message answers gets to know."""
    opened = trio.Event()

    async def script(heard: Heard, wire: Wire) -> None:
        if heard.method == "GET":
            await wire.begin()
            opened.set()
            await wire.chunk(b'data: {"id":7,"method":"x","params":["' + b"x" * 2000 + b'"]}\n\n' + NOTE)
            await wire.wait_closed()
        else:
            await wire.say(202)

    async with serving(script) as server, linked(server.url, max_message=1000) as found:
        found.link.settle(LATEST_LEGACY)
        await found.link.send(INITIALIZED)
        await until(lambda: len(found.arrived) == 2)
        first, second = found.messages
        assert first == Malformed(413, "the message has more than 1000 bytes (limits.message)", 7, False, size=2037)
        assert second == Notification("notifications/tools/list_changed")
        assert server.methods.count("GET") == 1
        assert found.dropped == []


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
async def test_the_limit_of_a_message_holds_for_a_body(size: int, fits: bool) -> None:
    body = answer(1, '"' + "x" * (size - len(answer(1, '""'))) + '"')
    async with serving(saying(200, body)) as server, linked(server.url, max_message=1000) as found:
        if fits:
            await found.link.send(ask())
            return
        with pytest.raises(LinkLost, match=r"more than 1000 bytes in one response \(limits.message\)") as caught:
            await found.link.send(ask())
        assert caught.value.too_large


async def test_a_body_over_the_limit_fails_the_request_and_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is bounded (rule 5)."""
    monkeypatch.setattr(http_transport, "MAX_BODY", 1000)
    closed = trio.Event()

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n")
        await wire.write(b" " * 2000)
        await wire.wait_closed()
        closed.set()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="more than 1000 bytes"):
            await found.link.send(ask())
        with trio.fail_after(5):
            await closed.wait()


async def test_an_event_over_the_limit_fails_the_request() -> None:
    """The limit holds for events too (rule 5)."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(format_event(b'{"jsonrpc":"2.0","method":"a"}'))
        await wire.chunk(b"data: ")
        while True:
            await wire.chunk(b"x" * 1_000_000)

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="an event of more than"):
            await found.link.send(ask())
        assert found.messages == [Notification("a")]
        assert found.lost is None


@pytest.mark.parametrize("end", ["politely", "abruptly", "in an event"])
async def test_a_stream_that_ends_without_the_answer_fails_its_request_only(end: str) -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        if json.loads(heard.body)["id"] == 2:
            await wire.say(200, answer(2))
            return
        await wire.begin()
        await wire.chunk(format_event(b'{"jsonrpc":"2.0","method":"a"}'))
        if end == "in an event":
            await wire.chunk(format_event(answer())[:-1])
        await (wire.end() if end == "politely" else wire.close())

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="without the response"):
            await found.link.send(ask())
        assert found.messages == [Notification("a")]
        await found.link.send(ask(2))
        assert found.lost is None
        assert "GET" not in server.methods


SHORT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n" + answer()
"""Less of a body than was announced."""


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nconte", b"nonsense\r\n\r\n", SHORT])
async def test_a_connection_that_breaks_fails_its_request_only_and_nothing_is_sent_twice(
    said: bytes, method: str
) -> None:
    """Least of all a call (rule 38)."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.write(said)
        await wire.close()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="before the end of the response"):
            await found.link.send(ask(1, method))
        assert len(server.heard) == 1
        assert (found.lost, found.arrived) == (None, [])


HEAD = b"HTTP/1.%d 200 OK\r\ncontent-type: application/json\r\n\r\n"


@pytest.mark.parametrize("minor", [0, 1])
async def test_json_may_end_with_the_connection(minor: int) -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        await wire.write(HEAD % minor + answer()[:9])
        await trio.sleep(0.01)
        await wire.write(answer()[9:])
        await wire.close()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        await found.link.send(ask())
        assert found.messages == [success()]
        await found.link.send(ask())
        assert (server.connections, found.lost) == (2, None)


@pytest.mark.parametrize(
    "body",
    [
        *(answer(result='{"a": {"b": [1, 2]}}')[:cut] for cut in (0, 1, 20, -1, -2, -3)),
        answer() + b"x",
        answer() + answer(),
        answer() + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"{" * 100_000,
        b"[" * 100_000,
        BOM_UTF8 + answer()[:-1],
        b"12",
        b'"text"',
    ],
)
async def test_of_json_that_ends_with_the_connection_a_part_is_no_answer(body: bytes) -> None:
    """Nor is more than one: what follows belongs to nobody, whatever it looks like."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.write(HEAD % 1 + body)
        await wire.close()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="not complete JSON"):
            await found.link.send(ask(1, "tools/call"))
        assert found.arrived == []
        assert (len(server.heard), server.connections) == (1, 1)


async def test_of_json_that_ends_with_a_reset_nothing_is_taken() -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        await wire.write(HEAD % 1 + answer())
        reset = struct.pack("ii", 1, 0)
        wire._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)  # type: ignore[attr-defined]
        await trio.sleep(0.01)
        await wire.close()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        with pytest.raises(LinkLost, match="broke"):
            await found.link.send(ask())
        assert found.arrived == []


LONG_NAME = "message" * 1000


async def test_what_is_no_message_is_delivered_as_such_and_other_events_are_dropped() -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(
            format_event(b"nonsense") + format_event(b"/x", event="endpoint") + format_event(b"{}", event=LONG_NAME)
        )
        await wire.chunk(format_event(answer()))
        await wire.end()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        await found.link.send(ask())
        broken, last = found.messages
        assert isinstance(broken, Malformed)
        assert last == success()
        assert found.dropped == [("unexpected event", "'endpoint'"), ("unexpected event", f"'{LONG_NAME[:79]}")]


def batch(*messages: bytes) -> bytes:
    return b"[" + b",".join(messages) + b"]"


A_NOTICE = b'{"jsonrpc":"2.0","method":"a"}'


@pytest.mark.parametrize("way", [JSON, SSE])
async def test_each_message_of_a_batch_arrives_by_itself_where_the_revision_has_batches(way: str) -> None:
    """In the response to a POST, as JSON or as an event stream (rule 6)."""

    async def post(heard: Heard, wire: Wire) -> None:
        body = batch(A_NOTICE, b"1", answer(1))
        await wire.say(200, body if way == JSON else format_event(body), way)

    async with serving(scripted(post)) as server, linked(server.url) as found:
        found.link.settle(LEGACY["2025-03-26"])
        await found.link.send(ask())
        notice, broken, last = found.arrived
        assert (notice, last) == (ReceivedMessage(Notification("a"), 1), ReceivedMessage(success(), 1))
        assert isinstance(broken.message, Malformed)


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_a_batch_in_another_revision_is_no_answer(revision: str) -> None:
    """Other revisions have no batches (rule 6)."""
    async with serving(saying(200, batch(answer()))) as server, linked(server.url) as found:
        found.link.settle(LEGACY[revision])
        with pytest.raises(LinkLost, match="not a response to the request"):
            await found.link.send(ask())
        assert [type(message) for message in found.messages] == [Malformed]


async def test_a_server_that_has_moved_within_itself_is_found_and_one_that_sends_elsewhere_is_not_followed() -> None:
    """Neither the message nor its headers go to another port (rule 40)."""

    async def script(heard: Heard, wire: Wire) -> None:
        if heard.target == "/mcp/":
            await wire.say(200, answer())
        elif json.loads(heard.body)["id"] == 1:
            await wire.say(308, b"<h1>moved</h1>", "text/html", location="/mcp/")
        else:
            await wire.say(308, location=elsewhere.url)

    headers = {"Authorization": "Bearer x"}
    async with serving(saying(200, answer(2))) as elsewhere, serving(script) as server:
        async with linked(server.url, headers=headers) as found:
            await found.link.send(ask())
            assert found.messages == [success()]
            assert [each.target for each in server.heard] == ["/mcp?key=secret", "/mcp/"]
            assert server.heard[0].body == server.heard[1].body
            assert server.connections == 1
        async with linked(server.url, headers=headers) as found:
            with pytest.raises(HttpRefused, match="the server redirects"):
                await found.link.send(ask(2))
    assert elsewhere.connections == 0


@pytest.mark.parametrize("stage", ["before the head", "in the body", "in a stream"])
async def test_a_send_that_is_cancelled_closes_its_connection_at_once(stage: str) -> None:
    holds, closed = trio.Event(), trio.Event()

    async def post(heard: Heard, wire: Wire) -> None:
        if json.loads(heard.body)["id"] == 2:
            await wire.say(200, answer(2))
            return
        if stage == "in the body":
            await wire.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{")
        elif stage == "in a stream":
            await wire.begin()
            await wire.chunk(format_event(b'{"jsonrpc":"2.0","method":"a"}'))
        holds.set()
        await wire.wait_closed()
        closed.set()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.link.send, ask())
            await holds.wait()
            await wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await closed.wait()
        await found.link.send(ask(2))
        assert found.messages[-1] == success(2)


async def test_a_connection_that_the_server_closed_while_idle_is_replaced_without_anyone_noticing() -> None:
    closed = trio.Event()

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.say(200, answer())
        if wire.number == 1:
            await wire.close()
            closed.set()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        await found.link.send(ask())
        await closed.wait()
        await found.link.send(ask())
        assert (len(server.heard), server.connections) == (2, 2)


async def test_a_server_that_listens_no_more_ends_the_link() -> None:
    (gone,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = gone.socket.getsockname()[1]
    await gone.aclose()
    async with linked(f"http://127.0.0.1:{port}/mcp?key=secret") as found:
        with pytest.raises(LinkLost) as caught:
            await found.link.send(ask())
        assert str(caught.value) == "it cannot be reached: connection refused"
        with trio.fail_after(5):
            await found.over.wait()
        assert found.lost is caught.value


async def test_a_server_that_stops_may_still_answer_what_it_has_taken() -> None:
    (door,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = door.socket.getsockname()[1]
    may_answer = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            wire = Wire(stream, 1)
            await wire.hear()
            await door.aclose()
            await may_answer.wait()
            await wire.say(200, answer(1))

    async with linked(f"http://127.0.0.1:{port}/") as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.link.send, ask(1))
        nursery.start_soon(serve, await door.accept())
        await until(lambda: door.socket.fileno() < 0)
        with pytest.raises(LinkLost, match="connection refused"):
            await found.link.send(ask(2))
        assert not found.over.is_set()
        may_answer.set()
        await until(lambda: found.messages == [success(1)])
        with pytest.raises(LinkLost, match="connection refused"):
            await found.link.send(ask(3))
        with trio.fail_after(5):
            await found.over.wait()


class NoNames(trio.abc.HostnameResolver):
    """Knows no name."""

    async def getaddrinfo(self, *args: object) -> Never:
        raise socket.gaierror(socket.EAI_NONAME, "10.0.0.53 does not know it")

    async def getnameinfo(self, *args: object) -> Never:
        raise NotImplementedError


@pytest.mark.parametrize("host", ["example.com", "a" * 70 + ".example.com"])
async def test_a_name_that_is_not_found_ends_the_link(host: str) -> None:
    trio.socket.set_custom_hostname_resolver(NoNames())
    async with linked(f"http://{host}/") as found:
        with pytest.raises(LinkLost, match=r"^it cannot be reached: name not found$"):
            await found.link.send(ask())
        with trio.fail_after(5):
            await found.over.wait()


async def test_a_server_without_tls_at_an_https_address_ends_the_link() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        async with linked(f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}/") as found:
            with pytest.raises(LinkLost, match="TLS: the handshake failed"):
                await found.link.send(ask())
        nursery.cancel_scope.cancel()


async def test_headers_of_the_configuration_are_sent_but_for_those_that_are_ours() -> None:
    headers = {"Authorization": "Bearer x", "Accept": "a", "HOST": "b", "Mcp-Session-Id": "c", "User-Agent": "me"}
    async with serving(saying(200, answer())) as server, linked(server.url, headers=headers) as found:
        await found.link.send(ask())
        sent = server.heard[0].headers
        assert sent["authorization"] == "Bearer x"
        assert sent["user-agent"] == "me"
        assert sent["accept"].startswith(JSON)
        assert sent["host"].startswith("127.0.0.1")
        assert "mcp-session-id" not in sent


@pytest.mark.parametrize(("url", "value"), [("http://[::1", "x"), ("http://a/", "é"), ("http://a\x00/", "x")])
async def test_a_url_or_header_that_cannot_be_used_is_refused(url: str, value: str) -> None:
    with pytest.raises(LinkLost, match="its URL is invalid, or its headers are not ASCII"):
        async with open_origin(url, {"X": value}):
            pass


async def test_an_address_of_another_scheme_cannot_be_reached() -> None:
    async with linked("ftp://a/") as found:
        with pytest.raises(LinkLost, match=r"^it cannot be reached: no connection$"):
            await found.link.send(ask())


class Deaf:
    """A handler that offers nothing."""

    def owner_of(self, subject: None) -> None:
        return None

    def on_request(self, peer: Peer[None], request: Request, in_flight: InFlight[None]) -> Never:
        raise NotImplementedError

    def on_notification(self, notice: Notification, in_flight: InFlight[None]) -> None:
        raise NotImplementedError

    def refuses(self, method: str) -> ErrorBody | None:
        return None

    def on_dropped(
        self, what: str, detail: str, size: int = 0, *, awaited: bool = False, answers: str = "", text: bytes = b""
    ) -> None:
        return


async def test_a_peer_on_the_link_asks_in_parallel_and_calls_off_what_it_no_longer_waits_for() -> None:
    async def post(heard: Heard, wire: Wire) -> None:
        body = json.loads(heard.body)
        if body["method"] == "slow":
            await wire.begin()
            await wire.wait_closed()
        elif body["method"] == "broken":
            await wire.say(200, b'{"jsonrpc":"2.0","id":%d,"result":{},"error":1}' % body["id"])
        elif body["method"] == "bad":
            await wire.say(400, b'{"jsonrpc":"2.0","id":%d,"error":{"code":7,"message":"no"}}' % body["id"])
        else:
            await wire.say(200, answer(body["id"], f"[{body['id']}]"))

    async with serving(scripted(post)) as server:
        async with opened(server.url) as link, open_peer(link, Deaf()) as peer:
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(peer.request, "fast")
            with trio.move_on_after(0.05):  # long enough for the request to be with the server
                await peer.request("slow")
            assert json.loads(server.heard[-1].body)["method"] == "notifications/cancelled"
            with pytest.raises(PeerError):
                await peer.request("bad")
            with pytest.raises(BrokenAnswer):
                await peer.request("broken")
            assert bytes(await peer.request("fast")) == b"[24]"
            assert peer.outstanding_count == 0


# --- the stateless way ----------------------------------------------------------------------------------------------

MIRRORED = (("MCP-Protocol-Version", LATEST.name), ("Mcp-Method", "tools/call"), ("Mcp-Name", "add"))


def ask_statelessly(id: Id = 1) -> Parcel:
    return Parcel(Request(id, "tools/call"), headers=MIRRORED)


async def test_the_headers_of_a_parcel_are_sent_with_it_and_with_nothing_else() -> None:
    """Beside the usual ones (rule 31) (rule 35)."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.say(200, answer(json.loads(heard.body)["id"]), mcp_session_id="s-1")

    async with serving(scripted(post)) as server:
        async with linked(server.url) as found:
            await found.link.send(ask_statelessly(1))
            found.link.settle(LATEST)
            await found.link.send(ask_statelessly(2))
            await found.link.send(ask(3))
        first, second, third = server.heard
        for heard in (first, second):
            assert [heard.headers[name.lower()] for name, _ in MIRRORED] == [text for _, text in MIRRORED]
            assert heard.headers["accept"] == "application/json, text/event-stream"
            assert heard.headers["content-type"] == JSON
        assert not third.headers.keys() & {name.lower() for name, _ in MIRRORED}
        assert found.messages == [success(1), success(2), success(3)]


async def test_every_stateless_request_has_its_own_headers() -> None:
    """Also those that are kept for the next request of the same tool, after another session id and revision."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.say(200, answer(json.loads(heard.body)["id"]))

    def call(id: int) -> Parcel:
        values = (("Mcp-Param-A", str(id)),) if id % 3 == 0 else ()
        return Parcel(Request(id, "tools/call"), headers=(*MIRRORED[:2], ("Mcp-Name", f"t{id % 5}"), *values))

    async with serving(scripted(post)) as server, linked(server.url) as found:
        for id in range(30):
            if id == 15:
                found.link.settle(LATEST)
            await found.link.send(call(id))
        names = ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-a"]
        for id, heard in enumerate(server.heard):
            assert [heard.headers[name] for name in names if name in heard.headers] == [
                text for _, text in call(id).headers
            ]


async def test_a_stateless_server_has_no_session_no_stream_and_no_farewell() -> None:
    """Even if the server sends a session id."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.say(200, answer(json.loads(heard.body)["id"]), mcp_session_id="s-1")

    async with serving(scripted(post, session="s-0")) as server:
        async with linked(server.url) as found:
            await found.link.send(ask(1, "initialize"))
            found.link.settle(LATEST)
            await found.link.send(INITIALIZED)
            await found.link.send(ask_statelessly(2))
            await trio.sleep(0.05)  # in which a stream would be opened
        assert server.methods == ["POST", "POST", "POST"]
        assert not any("mcp-session-id" in heard.headers for heard in server.heard)
        assert "mcp-protocol-version" not in server.heard[1].headers


async def test_a_404_to_a_stateless_request_ends_no_session() -> None:
    async with serving(saying(404, b"<h1>", "text/html")) as server, linked(server.url) as found:
        found.link.settle(LATEST)
        with pytest.raises(HttpRefused) as caught:
            await found.link.send(ask_statelessly())
        assert caught.value.answered
        assert found.lost is None


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("settled", [True, False])
async def test_a_stateless_request_is_called_off_by_closing_its_post(settled: bool, begun: bool) -> None:
    """At once and without a notification, even before the era is settled (rule 37) (rule 45)."""
    closed = trio.Event()

    async def post(heard: Heard, wire: Wire) -> None:
        if begun:
            await wire.begin()
            await wire.chunk(b": working\n\n")
        await wire.wait_closed()
        closed.set()

    async with serving(scripted(post)) as server:
        async with opened(server.url) as link, open_peer(link, Deaf()) as peer:
            if settled:
                link.settle(LATEST)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(peer.request, "tools/call", headers=MIRRORED))
                await until(lambda: server.heard)
                await trio.sleep(0.02)  # so that the client has read what there is
                assert not closed.is_set()
                nursery.cancel_scope.cancel()
            with trio.fail_after(1):
                await closed.wait()
        assert [json.loads(heard.body)["method"] for heard in server.heard] == ["tools/call"]


async def test_a_server_that_turned_out_to_have_sessions_is_told_of_what_is_called_off() -> None:
    """A stateless request came first, and it was not for it (rule 45)."""

    async def post(heard: Heard, wire: Wire) -> None:
        if "mcp-method" in heard.headers:
            await wire.say(400)
        else:
            await wire.begin()
            await wire.wait_closed()

    async with serving(scripted(post, session="s-1")) as server, linked(server.url) as found:
        with pytest.raises(HttpRefused):
            await found.link.send(ask_statelessly(1))
        await found.link.send(ask(2, "initialize"))
        found.link.settle(LEGACY["2025-11-25"])
        await found.link.send_cancel(3, Notification("notifications/cancelled"))
        assert server.heard[-1].headers["mcp-session-id"] == "s-1"
        assert json.loads(server.heard[-1].body)["method"] == "notifications/cancelled"


@pytest.mark.parametrize("settled", [True, False])
async def test_the_stream_of_a_stateless_request_is_not_resumed(settled: bool) -> None:
    """Even if its events have ids; the request is not sent again either (rule 38)."""

    async def post(heard: Heard, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(b"id: 1\nretry: 1\ndata:\n\n")
        await wire.end()

    async with serving(scripted(post)) as server, linked(server.url) as found:
        if settled:
            found.link.settle(LATEST)
        with pytest.raises(LinkLost, match="without the response") as caught:
            await found.link.send(ask() if settled else ask_statelessly())
        assert server.methods == ["POST"]
        assert not caught.value.answered


@pytest.mark.parametrize("message", [success("é" * 100), Failure(ErrorBody(-32601, "no"), 9)])
async def test_a_stateless_server_is_not_answered(message: Success | Failure) -> None:
    """Such a server must not send requests, and accepts no responses (rule 37)."""
    async with serving(saying(200, answer())) as server, linked(server.url) as found:
        found.link.settle(LATEST)
        await found.link.send(Parcel(message))
        assert server.heard == []
        ((what, detail),) = found.dropped
        assert what == "unexpected response"
        assert len(detail) < 150


@pytest.mark.parametrize("id", [b'"id":1,', b'"id":null,', b""])
@pytest.mark.parametrize("code", [-32020, -32021, -32022, -32601, -32602])
@pytest.mark.parametrize("status", [400, 404])
async def test_an_error_with_status_400_or_404_answers_a_stateless_request(status: int, code: int, id: bytes) -> None:
    """An error without an id too, because the POST had no other request."""
    body = b'{"jsonrpc":"2.0",%s"error":{"code":%d,"message":"no","data":{"supported":[]}}}' % (id, code)
    async with serving(saying(status, body)) as server, linked(server.url) as found:
        await found.link.send(ask_statelessly())
        assert found.arrived == [ReceivedMessage(Failure(ErrorBody(code, "no", Raw(b'{"supported":[]}')), 1), 1)]


@pytest.mark.parametrize(
    ("status", "id"),
    [(400, b'"id":2,'), (400, b'"id":"01",'), (429, b""), (405, b'"id":null,'), (403, b""), (500, b"")],
)
async def test_no_other_error_without_its_id_does(status: int, id: bytes) -> None:
    """An intermediary may return such an error without having read the request."""
    body = b'{"jsonrpc":"2.0",%s"error":{"code":-32000,"message":"no"}}' % id
    async with serving(saying(status, body)) as server, linked(server.url) as found:
        with pytest.raises(HttpRefused) as caught:
            await found.link.send(ask_statelessly())
        assert caught.value.answered is (status in (400, 405))
        assert found.arrived == []


async def test_an_error_without_an_id_is_not_the_answer_of_a_server_with_sessions() -> None:
    """The server may be one that supports only HTTP+SSE."""
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no session"}}'
    async with serving(saying(400, body)) as server, linked(server.url) as found:
        with pytest.raises(HttpRefused) as caught:
            await found.link.send(ask(1, "initialize"))
        assert caught.value.may_be_http_sse
        assert found.arrived == []


# --- virtual time ---------------------------------------------------------------------------------------------------


class Theatre:
    """A server in memory: what it heard, when, and what it says next to a GET."""

    def __init__(
        self, *gets: httpx.Response | Callable[[], httpx.Response], post: httpx.Response | None = None
    ) -> None:
        self.heard: list[tuple[float, Heard]] = []
        self._gets = list(gets)
        self._post = post
        self._began = trio.current_time()
        self.transport = in_memory(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        heard = Heard(request.method, dict(request.headers), request.content)
        self.heard.append((trio.current_time() - self._began, heard))
        await trio.lowlevel.checkpoint()
        body = json.loads(request.content or b"{}")
        if request.method == "GET":
            if not self._gets:
                await trio.sleep_forever()
            says = self._gets.pop(0)
            return says() if callable(says) else says
        if request.method == "DELETE" or "id" not in body:
            return httpx.Response(202)
        if body["method"] == "initialize":
            return httpx.Response(
                200, headers={"mcp-session-id": "s", "content-type": JSON}, content=answer(body["id"])
            )
        if body["method"] == "ping":
            return httpx.Response(200, headers={"content-type": JSON}, content=answer(body["id"]))
        assert self._post is not None
        return self._post

    @property
    def gets(self) -> list[Heard]:
        return [heard for _, heard in self.heard if heard.method == "GET"]

    @property
    def times(self) -> list[float]:
        """Times of the GET requests, in seconds."""
        return [round(when, 3) for when, heard in self.heard if heard.method == "GET"]

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[Linked]:
        """A link whose handshake is over."""
        async with linked("http://example.com/mcp", self.transport) as found:
            await found.link.send(ask(1, "initialize"))
            found.link.settle(LEGACY["2025-11-25"])
            found.arrived.clear()
            await found.link.send(INITIALIZED)
            yield found


async def test_the_first_request_waits_a_moment_for_that_stream(autojump_clock: trio.testing.MockClock) -> None:
    """Servers drop what they want to say while it is not open, questions included. One that does not open it in time
    holds nobody up."""
    began = trio.current_time()
    theatre = Theatre(streaming(NOTE, 1000.0))
    async with theatre.joined() as found:
        assert len(theatre.gets) == 1
        assert found.link.hears_unasked
        assert trio.current_time() == began
    async with Theatre().joined():
        assert trio.current_time() - began == STREAM_GRACE


async def test_the_stream_for_what_is_said_unasked_waits_for_the_end_of_the_handshake(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not all revisions have the version header (rule 33) (rule 34)."""
    theatre = Theatre(streaming(NOTE, 1000.0))
    async with linked("http://example.com/", theatre.transport) as found:
        await found.link.send(ask(1, "initialize"))
        found.link.settle(LEGACY["2025-03-26"])
        await trio.sleep(1)
        assert theatre.gets == []
        await found.link.send(INITIALIZED)
        await trio.sleep(1)
        assert found.arrived[1:] == [ReceivedMessage(Notification("notifications/tools/list_changed"), None)]
        assert theatre.gets[0].headers["accept"] == SSE
        assert "mcp-protocol-version" not in theatre.gets[0].headers


@pytest.mark.parametrize("status", [405, 404, 400, 401, 302, 200])
async def test_a_server_without_that_stream_is_asked_once(status: int, autojump_clock: trio.testing.MockClock) -> None:
    """Everything else works with such a server (rule 33)."""
    theatre = Theatre(httpx.Response(status, headers={"content-type": "text/html"}, content=b"<p>"))
    async with theatre.joined() as found:
        await trio.sleep(1000)
        assert len(theatre.gets) == 1
        assert not found.link.hears_unasked
        assert found.lost is None  # not even by 404: that the session has ended only a POST can tell


async def test_a_stream_that_was_there_is_asked_for_again_whatever_is_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A server may refuse it while it has not noticed the end of the former one (rule 33)."""
    theatre = Theatre(streaming(NOTE), httpx.Response(409), httpx.Response(404), streaming(NOTE))
    async with theatre.joined() as found:
        await trio.sleep(10)
        assert len(theatre.gets) >= 4
        assert found.lost is None


async def test_a_stream_that_a_proxy_ends_each_time_is_opened_again_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each of them was open for a while, so the pause does not grow: changes would be heard of ever later."""
    theatre = Theatre(*(streaming(STEADY_STREAM) for _ in range(50)))
    async with theatre.joined():
        await trio.sleep(50 * (STEADY_STREAM + MIN_RETRY_PAUSE))
        assert len(theatre.gets) >= 50


async def test_what_was_said_while_the_stream_was_broken_is_asked_for_by_reading_all_lists(
    autojump_clock: trio.testing.MockClock,
) -> None:
    theatre = Theatre(streaming(b": hello\n\n"), streaming(b": hello\n\n", 1000.0))
    async with theatre.joined() as found:
        await trio.sleep(5)
        told = [message.method for message in found.messages if isinstance(message, Notification)]
        assert told == [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources", "tools")]


async def test_the_stream_is_opened_again_from_where_it_was_after_the_time_it_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Within bounds (rule 33)."""
    theatre = Theatre(
        streaming(b"retry: 5000\nid: a\n" + NOTE),
        streaming(b"id: b\n" + NOTE, b"id: c\ndata: cut off", broken=True),
        streaming(b"retry: 0\n", NOTE),
        streaming(b"retry: 99999999\n", NOTE),
    )
    async with theatre.joined() as found:
        await trio.sleep(200)
        assert theatre.times == [0, 5, 10, 11, 71]
        assert [get.headers.get("last-event-id") for get in theatre.gets] == [None, "a", "b", "b", "b"]
        assert len(found.arrived) == 4


@pytest.mark.parametrize(
    ("statuses", "last"),
    [([400], [None, "a", None]), ([404], [None, "a", None]), ([500, 500], [None, "a", "a", None])],
)
async def test_a_stream_that_the_server_cannot_resume_begins_anew(
    statuses: list[int], last: list[str | None], autojump_clock: trio.testing.MockClock
) -> None:
    """What was said meanwhile is lost, so all lists count as changed. With the id it would be refused for ever."""
    refused = [httpx.Response(status) for status in statuses]
    theatre = Theatre(streaming(b"id: a\n" + NOTE), *refused, streaming(b": hello\n\n", 1000.0))
    async with theatre.joined() as found:
        await trio.sleep(30)
        assert [get.headers.get("last-event-id") for get in theatre.gets] == last
        told = [message.method for message in found.messages[1:] if isinstance(message, Notification)]
        assert told == [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources", "tools")]


async def test_a_stream_is_resumed_once_the_end_of_the_former_one_was_noticed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    theatre = Theatre(streaming(b"id: a\n" + NOTE), httpx.Response(409), streaming(b": hello\n\n", 1000.0))
    async with theatre.joined():
        await trio.sleep(30)
        assert [get.headers.get("last-event-id") for get in theatre.gets] == [None, "a", "a"]


async def test_a_stream_that_fails_or_brings_nothing_is_tried_less_and_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    theatre = Theatre(*[lambda: httpx.Response(500), streaming] * 4, streaming(NOTE), streaming(), streaming())
    async with theatre.joined():
        await trio.sleep(400)
        assert theatre.times == [0, 1, 3, 7, 15, 31, 63, 123, 183, 184, 185, 187]


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(autojump_clock: trio.testing.MockClock) -> None:
    theatre = Theatre(httpx.Response(429, headers={"retry-after": "30"}), streaming(NOTE))
    async with theatre.joined() as found:
        await trio.sleep(40)
        assert theatre.times == [0, 30, 31]
        assert len(found.arrived) == 1


async def test_a_stream_that_breaks_in_the_making_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    def refuse() -> httpx.Response:
        raise httpx.ReadError("10.0.0.1")

    theatre = Theatre(refuse, streaming(NOTE))
    async with theatre.joined() as found:
        await trio.sleep(1.5)
        assert theatre.times == [0, 1]
        assert found.dropped == [("event stream broken", "the connection broke before the end of the response")]
        assert found.lost is None


async def test_an_answer_that_broke_is_resumed_by_the_id_of_its_stream(autojump_clock: trio.testing.MockClock) -> None:
    """The request itself is sent once (rule 33) (rule 38)."""
    theatre = Theatre(
        post=streaming(b"retry: 3000\nid: p1\ndata:\n\n", 10.0, b"id: p2\n" + NOTE, broken=True),
    )
    async with linked("http://example.com/", theatre.transport) as found:
        theatre._gets[:] = [streaming(b"id: p3\n" + NOTE), streaming(format_event(answer(7), id="p4"), 9.0)]
        await found.link.send(ask(7))
        assert theatre.times == [13, 16]
        assert [get.headers["last-event-id"] for get in theatre.gets] == ["p2", "p3"]
        assert [arrival.about for arrival in found.arrived] == [7, 7, 7]
        assert found.messages[-1] == success(7)
        assert trio.current_time() - theatre._began < 17, "nobody waits for the end of a stream that has answered"
        assert [heard.method for _, heard in theatre.heard].count("POST") == 1


async def test_an_answer_is_resumed_by_the_id_before_one_that_is_too_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    theatre = Theatre(
        streaming(format_event(answer(7))),
        post=streaming(b"id: p1\n" + NOTE, b"id: p2" + b"x" * 2000 + b"\n" + NOTE, broken=True),
    )
    async with linked("http://example.com/", theatre.transport) as found:
        await found.link.send(ask(7))
        assert [get.headers["last-event-id"] for get in theatre.gets] == ["p1"]
        assert found.messages[-1] == success(7)


async def test_the_pause_before_resuming_ends_with_the_link(autojump_clock: trio.testing.MockClock) -> None:
    gone = trio.Event()

    async def handle(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        if request.method == "GET":
            return httpx.Response(405)
        if (body := json.loads(request.content))["method"] == "initialize":
            headers = {"mcp-session-id": "s", "content-type": JSON}
            return httpx.Response(200, headers=headers, content=answer(body["id"]))
        return streaming(b"retry: 30000\nid: 1\ndata:\n\n") if body["id"] == 7 else httpx.Response(404)

    async def wait(link: HttpLink) -> None:
        with pytest.raises(SessionEnded):
            await link.send(ask(7))
        gone.set()

    async with linked("http://example.com/", in_memory(handle)) as found, trio.open_nursery() as nursery:
        await found.link.send(ask(1, "initialize"))
        nursery.start_soon(wait, found.link)
        await trio.sleep(5)
        assert not gone.is_set()
        with pytest.raises(SessionEnded):
            await found.link.send(ask(8))
        before = trio.current_time()
        await gone.wait()
        assert trio.current_time() == before


@pytest.mark.parametrize(
    ("resume", "times"),
    [(streaming, [1, 2, 3, 4, 5]), (lambda: httpx.Response(405), [1])],
    ids=["nothing new", "it cannot resume"],
)
async def test_resuming_is_given_up_after_a_few_times_without_anything_new(
    resume: Callable[[], httpx.Response], times: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    theatre = Theatre(*[resume() for _ in range(9)], post=streaming(b"id: 1\ndata:\n\n"))
    async with linked("http://example.com/", theatre.transport) as found:
        with pytest.raises(LinkLost, match="without the response"):
            await found.link.send(ask(7))
        assert theatre.times == times
        assert found.lost is None


@pytest.mark.parametrize("id", ["é", "a\x1bb", "x" * 2000, " "])
async def test_an_id_that_fits_into_no_header_is_not_resumed_after(
    id: str, autojump_clock: trio.testing.MockClock
) -> None:
    theatre = Theatre(post=streaming(f"id: {id}\ndata:\n\n".encode()))
    async with linked("http://example.com/", theatre.transport) as found:
        with pytest.raises(LinkLost, match="without the response"):
            await found.link.send(ask(7))
        assert theatre.gets == []


async def test_calling_off_and_giving_back_the_session_take_two_seconds_at_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A server that is stuck does not keep us from stopping (rule 33)."""

    async def stall(request: httpx.Request) -> httpx.Response:
        if b"initialize" not in request.content:
            await trio.sleep_forever()
        return httpx.Response(200, headers={"mcp-session-id": "s", "content-type": JSON}, content=answer())

    async with linked("http://example.com/", in_memory(stall)) as found:
        await found.link.send(ask(1, "initialize"))
        began = trio.current_time()
        await found.link.send_cancel(1, Notification("notifications/cancelled"))
        assert trio.current_time() - began == pytest.approx(2.0)
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(2.0)
