"""HTTP/2: requests, their ends, and what hostile clients may try. The client is the library h2, or raw frames
where that would refuse to send them."""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes
from hyperframe.frame import ContinuationFrame, HeadersFrame, PingFrame, PriorityFrame, SettingsFrame
from hypothesis import given
from hypothesis import strategies as st

from host.wire.asgi import ASGIApp, Receive, Scope, Send, claim, until_disconnect
from host.wire.certificate import Certificate
from host.wire.http2 import MAX_STREAMS, MAX_UNTAKEN, PATIENCE, RESET, Frames, serve_http2
from tests.fuzz.mutations import mutate
from tests.kit.certificates import write_certificate

from . import sites
from .sites import GET, SOON, Site, begin, finish, hello, part, until_gone

pytestmark = pytest.mark.slow


class Client:
    """A connection with HTTP/2. Its events are read with `next_of`, or all of them with `until_closed`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        config = h2.config.H2Configuration(header_encoding=None, validate_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.events: list[h2.events.Event] = []
        self.bodies: dict[int, bytes] = {}

    async def send(self, raw: bytes = b"") -> None:
        """Send what is queued, and these bytes."""
        await self.stream.send_all(self.h2.data_to_send() + raw)

    async def begin(self, path: str = "/", *more: tuple[bytes, bytes], method: str = "GET", end: bool = True) -> int:
        """Send a request; the id of its stream."""
        id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(id, headers_of(path, *more, method=method), end_stream=end)
        await self.send()
        return id

    async def _receive(self) -> bool:
        try:
            data = await self.stream.receive_some()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        for event in self.h2.receive_data(data) if data else ():
            self.events.append(event)
            if isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + (event.data or b"")
                self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        if data:
            with suppress(trio.BrokenResourceError):
                await self.send()
        return bool(data)

    async def next_of(self, kind: type[Any], id: int | None = None) -> Any:
        """Wait for an event of this kind, of this stream if it is given."""
        with trio.fail_after(SOON):
            while True:
                for at, event in enumerate(self.events):
                    if isinstance(event, kind) and id in (None, getattr(event, "stream_id", None)):
                        return self.events.pop(at)
                assert await self._receive(), f"closed before {kind.__name__}"

    async def response(self, id: int) -> tuple[int, bytes]:
        """The status and the body of a response."""
        headers = dict((await self.next_of(h2.events.ResponseReceived, id)).headers)
        await self.next_of(h2.events.StreamEnded, id)
        return int(headers[b":status"]), self.bodies.get(id, b"")

    async def until_closed(self) -> ErrorCodes | int | None:
        """Wait until the server closes the connection; the code of its GOAWAY, if there was one."""
        with trio.fail_after(SOON):
            while await self._receive():
                pass
        codes = [each.error_code for each in self.events if isinstance(each, h2.events.ConnectionTerminated)]
        return codes[-1] if codes else None


def headers_of(path: str, *more: tuple[bytes, bytes], method: str = "GET") -> list[tuple[bytes, bytes]]:
    return [
        (b":method", method.encode()),
        (b":path", path.encode("latin-1")),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        *more,
    ]


@asynccontextmanager
async def connect(site: Site, cert: Path, window: int | None = None) -> AsyncIterator[Client]:
    context = ssl.create_default_context(cafile=cert)
    context.set_alpn_protocols(["h2", "http/1.1"])
    stream = trio.SSLStream(await site.connect(), context, server_hostname="localhost", https_compatible=True)
    with trio.fail_after(SOON):
        await stream.do_handshake()
    assert stream.selected_alpn_protocol() == "h2"
    async with speaking(stream, window) as client:
        yield client


@asynccontextmanager
async def speaking(stream: trio.abc.Stream, window: int | None = None) -> AsyncIterator[Client]:
    client = Client(stream)
    if window is not None:
        client.h2.local_settings[h2.settings.SettingCodes.INITIAL_WINDOW_SIZE] = window
        client.h2.local_settings.acknowledge()
    client.h2.initiate_connection()
    await client.send()
    try:
        yield client
    finally:
        await trio.aclose_forcefully(stream)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_certificate(tmp_path)


@asynccontextmanager
async def serving(app: ASGIApp, files: tuple[Path, Path], **settings: Any) -> AsyncIterator[Site]:
    async with sites.serving(app, serve_http2, certificate=Certificate(*files), **settings) as site:
        yield site
        await lives_on(site, files)


async def lives_on(site: Site, files: tuple[Path, Path]) -> None:
    """A new connection is served, whatever happened to others."""
    if site.stop.is_set():
        return
    async with connect(site, files[0]) as client:
        status, body = await client.response(await client.begin("/good"))
        assert (status, body[:3]) == (200, b"got")


async def by_path(scope: Scope, receive: Receive, send: Send) -> None:
    """/slow streams until its client leaves; /early answers without its body; the others read it."""
    if scope["path"] == "/slow":
        await begin(send)
        await part(send, b"begun")
        await until_gone(receive)
    elif scope["path"] == "/early":
        await finish(send)
    else:
        await hello(scope, receive, send)


# Requests and responses


async def test_requests_are_answered_side_by_side_on_one_connection(files: tuple[Path, Path]) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await by_path(scope, receive, send)

    async with serving(app, files) as site, connect(site, files[0]) as client:
        slow = await client.begin("/slow")
        await client.next_of(h2.events.DataReceived, slow)
        plain = await client.begin("/a%2Fb?c=d", (b"x-a", b"caf\xe9"))
        assert await client.response(plain) == (200, b"got    0")
        scope = scopes[-1]
        assert (scope["type"], scope["http_version"], scope["scheme"]) == ("http", "2", "https")
        assert (scope["raw_path"], scope["path"], scope["query_string"]) == (b"/a%2Fb", "/a/b", b"c=d")
        assert scope["headers"] == [(b"host", b"localhost"), (b"x-a", b"caf\xe9")]


@pytest.mark.parametrize("size", [1, 65_535, 1_000_000])
async def test_a_body_of_any_size_reaches_the_app(size: int, files: tuple[Path, Path]) -> None:
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        id = await client.begin("/", method="POST", end=False)
        await _upload(client, id, size)
        assert await client.response(id) == (200, b"got %4d" % size)


async def _upload(client: Client, id: int, size: int) -> None:
    while size:
        room = min(size, client.h2.local_flow_control_window(id), client.h2.max_outbound_frame_size)
        if not room:
            await client.next_of(h2.events.WindowUpdated)
            continue
        size -= room
        client.h2.send_data(id, b"x" * room, end_stream=not size)
        await client.send()


async def test_a_long_answer_arrives_whole(files: tuple[Path, Path]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/good":
            await hello(scope, receive, send)
            return
        await begin(send)
        for _ in range(40):
            await part(send, b"x" * 65536)
        await send({"type": "http.response.body", "body": b"end", "more_body": False})

    async with serving(app, files) as site, connect(site, files[0]) as client:
        status, body = await client.response(await client.begin())
        assert (status, len(body), body[-3:]) == (200, 40 * 65536 + 3, b"end")


async def test_an_answer_without_the_body_leaves_the_connection_usable(files: tuple[Path, Path]) -> None:
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        for _ in range(3):
            id = await client.begin("/early", method="POST", end=False)
            await client.next_of(h2.events.ResponseReceived, id)
            await _upload(client, id, 100_000)
            await client.next_of(h2.events.StreamEnded, id)
            assert client.bodies[id] == b"done"
        assert await client.response(await client.begin()) == (200, b"got    0")


async def test_an_app_that_fails_is_answered_for_and_in_the_middle_of_a_response_ends_the_connection(
    files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/early":
            raise ValueError("secret words")
        if scope["path"] == "/late":
            await begin(send)
            await part(send, b"one")
            raise ValueError("secret words")
        if scope["path"] == "/nothing":
            return
        await hello(scope, receive, send)

    async with serving(app, files) as site:
        async with connect(site, files[0]) as client:
            for path in ("/early", "/nothing"):
                assert await client.response(await client.begin(path)) == (500, b"")
            await client.begin("/late")
            assert await client.until_closed() is None
    assert [(record.name, record.levelno) for record in caplog.records] == [("colonnade.listener", logging.ERROR)] * 2


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_request_whose_client_leaves_hears_it_and_others_do_not(how: str, files: tuple[Path, Path]) -> None:
    gone: dict[str, trio.Event] = {"/a": trio.Event(), "/b": trio.Event()}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/good":
            await hello(scope, receive, send)
            return
        await begin(send)
        await part(send, b"begun")
        await until_gone(receive)
        gone[scope["path"]].set()

    async with serving(app, files) as site, connect(site, files[0]) as client:
        first, second = await client.begin("/a"), await client.begin("/b")
        for id in (first, second):
            await client.next_of(h2.events.DataReceived, id)
        if how == "reset":
            client.h2.reset_stream(first, ErrorCodes.CANCEL)
            await client.send()
        else:
            await trio.aclose_forcefully(client.stream)
        with trio.fail_after(SOON):
            await gone["/a"].wait()
            if how == "close":
                await gone["/b"].wait()
        if how == "reset":
            assert not gone["/b"].is_set()
            assert await client.response(await client.begin("/good")) == (200, b"got    0")


async def test_thousands_of_requests_that_were_reset_or_answered_leave_nothing_behind(files: tuple[Path, Path]) -> None:
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        for number in range(1200):
            id = await client.begin("/slow" if number % 10 == 0 else "/")
            if number % 10 == 0:
                await client.next_of(h2.events.DataReceived, id)
                client.h2.reset_stream(id, ErrorCodes.CANCEL)
                await client.send()
            else:
                assert await client.response(id) == (200, b"got    0")
            client.events.clear()


async def test_a_client_that_takes_no_byte_loses_its_connection(files: tuple[Path, Path]) -> None:
    """Little waits for it until then."""
    sent, ended = 0, trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/good":
            await hello(scope, receive, send)
            return
        nonlocal sent
        await begin(send)
        try:
            async with until_disconnect(receive):
                while True:
                    await part(send, b"x" * 65536)
                    sent += 65536
        finally:
            ended.set()

    async with serving(app, files, write_timeout=0.4) as site:
        async with connect(site, files[0], window=0) as client:
            await client.begin("/flood")
            assert await client.until_closed() is None
            with trio.fail_after(SOON):
                await ended.wait()
            assert sent < 4 * MAX_UNTAKEN


@pytest.mark.parametrize("does", ["pings", "asks"])
async def test_a_client_that_takes_no_byte_gains_no_time_by_other_frames(does: str, files: tuple[Path, Path]) -> None:
    """Its deadline is not moved, and its app does not wait for ever for a body that nobody takes."""
    ended = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/flood":
            await hello(scope, receive, send)
            return
        try:
            await begin(send)
            for _ in range(8):
                await part(send, b"x" * 65536)
        finally:
            ended.set()

    async with serving(app, files, write_timeout=0.4) as site:
        async with connect(site, files[0], window=0) as client, trio.open_nursery() as nursery:

            async def go_on() -> None:
                with suppress(trio.BrokenResourceError):  # once the host has ended the connection
                    while True:
                        await trio.sleep(0.05)
                        if does == "pings":
                            client.h2.ping(b"12345678")
                        else:
                            await client.begin("/good")
                        await client.send()

            await client.begin("/flood")
            nursery.start_soon(go_on)
            with trio.fail_after(SOON), suppress(trio.BrokenResourceError):
                await ended.wait()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("end", [False, True])
async def test_a_connection_ends_on_which_a_websocket_was_asked_for(end: bool, files: tuple[Path, Path]) -> None:
    """Hypercorn offers them, and nobody serves them."""
    async with serving(hello, files, grace=10 * SOON) as site:
        async with connect(site, files[0]) as client:
            await client.response(await client.begin("/good"))  # it has told what it offers
            asked = [(b":protocol", b"websocket"), (b"sec-websocket-version", b"13")]
            id = client.h2.get_next_available_stream_id()
            client.h2.send_headers(id, headers_of("/", *asked, method="CONNECT"), end_stream=end)
            await client.send()
            await client.next_of(h2.events.ResponseReceived, id)
        site.stop.set()
        with trio.fail_after(SOON):
            await site.ended.wait()


@pytest.mark.parametrize("leaves", [trio.aclose_forcefully, trio.SSLStream.aclose])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_answer_without_the_body_ends_with_a_client_that_takes_nothing_of_it(
    method: str, leaves: Callable[[trio.abc.Stream], Awaitable[None]], files: tuple[Path, Path]
) -> None:
    """Its request may not keep its connection from ending: anybody could take all connections in this way."""
    begun, ended = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/good":
            await hello(scope, receive, send)
            return
        begun.set()
        try:
            await finish(send)
        finally:
            ended.set()

    async with serving(app, files) as site:
        async with connect(site, files[0], window=0) as client:
            id = await client.begin("/", method=method, end=method == "GET")
            if method == "POST":
                client.h2.send_data(id, b"x" * 16384)
                client.h2.send_data(id, b"x" * 16384, end_stream=True)
                await client.send()
            await begun.wait()
            await leaves(client.stream)
            with trio.fail_after(SOON):
                await ended.wait()


async def test_an_app_that_does_not_read_holds_back_its_client(files: tuple[Path, Path]) -> None:
    go = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stuck":
            await go.wait()
        await hello(scope, receive, send)

    async with serving(app, files) as site, connect(site, files[0]) as client:
        stuck = await client.begin("/stuck", method="POST", end=False)
        client.h2.send_data(stuck, b"x" * 16384)
        with trio.move_on_after(0.3) as waiting:
            await _upload(client, stuck, 1_000_000)
        assert waiting.cancelled_caught
        assert client.h2.local_flow_control_window(stuck) == 0
        go.set()
        client.h2.reset_stream(stuck, ErrorCodes.CANCEL)
        await client.send()
        assert await client.response(await client.begin()) == (200, b"got    0")


async def test_stop_lets_requests_end_and_closes_idle_connections(files: tuple[Path, Path]) -> None:
    ready, go = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            ready.set()
            await go.wait()
        await hello(scope, receive, send)

    async with serving(app, files, grace=5) as site:
        async with connect(site, files[0]) as idle, connect(site, files[0]) as client:
            assert await idle.response(await idle.begin()) == (200, b"got    0")
            id = await client.begin("/slow")
            await ready.wait()
            site.stop.set()
            await idle.until_closed()
            go.set()
            assert await client.response(id) == (200, b"got    0")
            assert await client.until_closed() in (None, ErrorCodes.NO_ERROR)
            with trio.fail_after(SOON):
                await site.ended.wait()


async def test_a_response_that_closes_the_connection_ends_it_after_the_others(files: tuple[Path, Path]) -> None:
    go = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await go.wait()
        if scope["path"] == "/close":
            await send({"type": "http.response.start", "status": 413, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b"no"})
        else:
            await hello(scope, receive, send)

    async with serving(app, files) as site, connect(site, files[0]) as client:
        slow, closing = await client.begin("/slow"), await client.begin("/close")
        assert await client.response(closing) == (413, b"no")
        go.set()
        assert await client.response(slow) == (200, b"got    0")
        assert await client.until_closed() in (None, ErrorCodes.NO_ERROR)


async def test_a_full_listener_closes_idle_connections_and_none_with_a_request(files: tuple[Path, Path]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert claim(scope, None)
        await by_path(scope, receive, send)

    async with serving(app, files, max_connections=2) as site:
        async with connect(site, files[0]) as idle, connect(site, files[0]) as busy:
            await idle.response(await idle.begin())
            id = await busy.begin("/slow")
            await busy.next_of(h2.events.DataReceived, id)
            await trio.sleep(0.2)  # longer than an idle connection is kept while others wait
            await lives_on(site, files)
            await idle.until_closed()
            with trio.move_on_after(0.1) as waiting:
                await busy.until_closed()
            assert waiting.cancelled_caught


# Clients without HTTP/2, or without TLS


@pytest.mark.parametrize("is_secure", [True, False])
@pytest.mark.parametrize(
    "sent",
    [GET, b"PRI * HTTP/2.0\r\n\r\nSO\r\n\r\n", GET[:-2] + b"Upgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n", b"\0" * 30],
    ids=["HTTP/1.1", "nearly HTTP/2", "an upgrade", "zeros"],
)
async def test_a_client_that_begins_otherwise_is_told_what_is_served_here(
    sent: bytes, is_secure: bool, files: tuple[Path, Path]
) -> None:
    certificate = Certificate(*files) if is_secure else None
    async with sites.serving(refuse_all, serve_http2, certificate=certificate) as site:
        stream: trio.abc.Stream = await site.connect()
        if is_secure:
            context = ssl.create_default_context(cafile=files[0])
            context.set_alpn_protocols(["http/1.1"])
            stream = trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)
        await stream.send_all(sent)
        received = b""
        with trio.fail_after(SOON), suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                received += data
        assert received.startswith(b"HTTP/1.1 505 ")
        assert b"HTTP/2 only" in received
        await trio.aclose_forcefully(stream)


async def refuse_all(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError(scope)


async def test_a_client_that_knows_it_speaks_http2_without_tls() -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await hello(scope, receive, send)

    async with sites.serving(app, serve_http2) as site, speaking(await site.connect()) as client:
        id = await client.begin("/", method="POST", end=False)
        await _upload(client, id, 100_000)
        assert await client.response(id) == (200, b"got 100000")
    assert (scopes[0]["scheme"], scopes[0]["client"][0]) == ("http", "127.0.0.1")


async def test_a_connection_needs_no_folder_that_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    """Many systems remove what is old from the folder of temporary files."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    async with serving(hello, files) as site:
        for each in temporary.iterdir():
            each.rmdir()
        async with connect(site, files[0]) as client:
            assert await client.response(await client.begin("/good")) == (200, b"got    0")
            assert list(temporary.iterdir()) == []


async def test_a_client_that_sends_nothing_is_cut() -> None:
    async with sites.serving(refuse_all, serve_http2, head_timeout=0.3) as site, await site.connect() as stream:
        with trio.fail_after(SOON):
            assert await stream.receive_some() == b""


@given(st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 9), st.integers(0, 255)), max_size=5), st.data())
def test_frames_are_found_however_their_bytes_come(made: list[tuple[int, int, int]], data: st.DataObject) -> None:
    sent = b"".join(
        length.to_bytes(3, "big") + bytes([kind, flags]) + (5).to_bytes(4, "big") + b"x" * length
        for length, kind, flags in made
    )
    frames, found = Frames(), []
    while sent:
        step = data.draw(st.integers(1, len(sent)))
        found += frames.take(sent[:step])
        sent = sent[step:]
    assert found == [(*each, 5) for each in made]
    assert frames.is_between


# Requests that are refused


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (headers_of("/caf\xc3\xa9"), None),
        (headers_of("/%00"), 400),
        (headers_of("/a#b"), 400),
        (headers_of("http://localhost/"), 400),
        (headers_of("*", method="OPTIONS"), 400),
        (headers_of("/", method="BREW"), 400),
        (headers_of("/", *[(b"x", b"a")] * 101), 431),
        (headers_of("/", (b"content-length", b"+5")), None),
        (headers_of("/", (b"x", b"a\x01b")), 400),
        (headers_of("/", (b"x", b"a\r\nb: c")), None),
        (headers_of("/", (b"x\xff", b"a")), None),
        (headers_of("/ HTTP/1.1\r\nx: y"), None),
        (headers_of("/", (b"host", b"other")), None),
        (headers_of("/", (b"connection", b"close")), None),
        (headers_of("/", (b"transfer-encoding", b"chunked")), None),
        (headers_of("/", (b"Upper", b"a")), None),
        (headers_of("/")[1:], None),
        (headers_of("/")[:-1], None),
        ([*headers_of("/"), (b":path", b"/other")], None),
        ([(b":method", b"CONNECT"), (b":authority", b"a:80")], None),
        ([*headers_of("/", method="CONNECT"), (b":protocol", b"websocket")], None),
    ],
    ids=lambda value: "" if isinstance(value, int) or value is None else str(value[-1]),
)
async def test_a_malformed_request_reaches_no_app(
    headers: list[tuple[bytes, bytes]], status: int | None, files: tuple[Path, Path]
) -> None:
    """It is refused, or its connection ends where the library finds the fault."""
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["raw_path"])
        await hello(scope, receive, send)

    async with serving(app, files) as site, connect(site, files[0]) as client:
        if status is None:
            block = client.h2.encoder.encode(headers)
            await client.send(HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"]).serialize())
            await client.send(PingFrame(0, b"12345678").serialize())
            await _until_pong(client)
        else:
            id = client.h2.get_next_available_stream_id()
            client.h2.send_headers(id, headers, end_stream=True)
            await client.send()
            assert (await client.response(id))[0] == status
            assert await client.response(await client.begin("/good")) == (200, b"got    0")
    assert set(seen) == {b"/good"}


async def _until_pong(client: Client) -> None:
    """Read until the server answers a ping, or closes the connection."""
    received = b""
    with trio.fail_after(SOON), suppress(trio.BrokenResourceError):
        while PingFrame(0, b"12345678", flags=["ACK"]).serialize() not in received:
            data = await client.stream.receive_some()
            received += data
            if not data:
                return


# Floods


async def _is_calmed(client: Client, frames: bytes, rounds: int) -> bool:
    """Whether the server ends the connection of a client that sends these frames again and again."""
    try:
        for _ in range(rounds):
            await client.send(frames)
            await trio.lowlevel.checkpoint()
    except trio.BrokenResourceError:
        return True
    return await client.until_closed() in (ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.PROTOCOL_ERROR, None)


async def test_rapid_reset_ends_the_connection(files: tuple[Path, Path]) -> None:
    started = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal started
        started += 1
        await hello(scope, receive, send) if scope["path"] == "/good" else await trio.sleep_forever()

    async with serving(app, files) as site, connect(site, files[0]) as client:
        with suppress(trio.BrokenResourceError):
            for _ in range(2000):
                id = client.h2.get_next_available_stream_id()
                client.h2.send_headers(id, headers_of("/"), end_stream=True)
                client.h2.reset_stream(id, ErrorCodes.CANCEL)
                await client.send()
        await client.until_closed()
        assert started <= PATIENCE / RESET + 50


@pytest.mark.parametrize(
    "frame",
    [
        PingFrame(0, b"12345678"),
        SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 100}),
        PriorityFrame(1, depends_on=3, stream_weight=5),
    ],
    ids=["ping", "settings", "priority"],
)
async def test_frames_that_ask_for_nothing_end_the_connection_after_many(frame: Any, files: tuple[Path, Path]) -> None:
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        assert await _is_calmed(client, frame.serialize() * 100, PATIENCE // 100 + 5)


async def test_empty_parts_of_a_body_end_the_connection_after_many(files: tuple[Path, Path]) -> None:
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        id = await client.begin("/", method="POST", end=False)
        for _ in range(100):
            client.h2.send_data(id, b"")
        frames = client.h2.data_to_send()
        assert await _is_calmed(client, frames, PATIENCE // 100 + 5)


async def test_a_flood_of_continuations_ends_the_connection(files: tuple[Path, Path]) -> None:
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        block = client.h2.encoder.encode(headers_of("/"))
        await client.send(HeadersFrame(1, block, flags=["END_STREAM"]).serialize())
        assert await _is_calmed(client, ContinuationFrame(1, b"").serialize() * 10, 100)


async def test_headers_that_unpack_to_megabytes_end_the_connection(files: tuple[Path, Path]) -> None:
    """One byte of a header block can stand for a header of 4 KiB."""
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        await client.response(await client.begin("/", (b"x", b"a" * 4000)))
        bomb = client.h2.encoder.encode([*headers_of("/"), *[(b"x", b"a" * 4000)] * 10_000])
        assert len(bomb) < 16_384
        await client.send(HeadersFrame(3, bomb, flags=["END_HEADERS", "END_STREAM"]).serialize())
        await client.until_closed()


async def test_more_streams_than_permitted_end_the_connection(files: tuple[Path, Path]) -> None:
    async with serving(by_path, files) as site, connect(site, files[0]) as client:
        await client.next_of(h2.events.RemoteSettingsChanged)
        assert client.h2.remote_settings.max_concurrent_streams == MAX_STREAMS
        client.h2.remote_settings._settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS].clear()
        client.h2.remote_settings._settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS].append(10_000)
        for _ in range(MAX_STREAMS + 1):
            await client.begin("/slow")
        assert await client.until_closed() == ErrorCodes.PROTOCOL_ERROR


async def test_a_silent_connection_ends_with_the_time_for_a_head(files: tuple[Path, Path]) -> None:
    """Pings do not keep it open."""
    async with serving(by_path, files, head_timeout=0.5) as site, connect(site, files[0]) as client:
        started = trio.current_time()
        client.h2.ping(b"12345678")
        await client.send()
        await client.until_closed()
        assert trio.current_time() - started < 5


async def test_no_mutation_of_frames_ends_the_server(
    files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A seeded fuzz of what a client sends after its handshake."""
    random = Random(20260102)

    async with serving(by_path, files, head_timeout=1) as site:
        before = len(os.listdir("/proc/self/fd"))

        async def attack(limit: trio.CapacityLimiter) -> None:
            async with limit, connect(site, files[0]) as client:
                for path in random.sample(["/", "/early", "/slow"], 2):
                    id = client.h2.get_next_available_stream_id()
                    client.h2.send_headers(id, headers_of(path, method="POST"))
                    client.h2.send_data(id, b"hello", end_stream=random.random() < 0.5)
                frames = client.h2.data_to_send() + PingFrame(0, b"12345678").serialize()
                data = mutate(frames, random, [frames])
                with suppress(trio.BrokenResourceError):
                    await client.stream.send_all(data)
                    with trio.move_on_after(0.05):
                        while await client.stream.receive_some():
                            pass

        async with trio.open_nursery() as nursery:
            limit = trio.CapacityLimiter(10)
            for _ in range(300):
                nursery.start_soon(attack, limit)
        with trio.fail_after(SOON):  # nothing waits for ever for hypercorn
            while len(os.listdir("/proc/self/fd")) > before + 4:  # noqa: ASYNC110 - when the kernel has told them
                await trio.sleep(0.05)
    said = [record.getMessage() for record in caplog.records]
    assert all(each.startswith("a connection was ended by ") for each in said)
