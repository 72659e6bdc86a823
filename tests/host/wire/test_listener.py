"""The listener over real sockets and the real clock, because the kernel's part in a connection matters."""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import re
import resource
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import h2.connection
import pytest
import trio
import trio.testing

from host.wire import hypercorn_listener, listener
from host.wire.acceptor import GRACE, MANY_CONNECTIONS, MAX_CONNECTIONS, RESUME_SPREAD, Limits, affordable_connections
from host.wire.asgi import PEER, ASGIApp, Receive, Scope, Send, claim, examine_sender, until_disconnect
from host.wire.head import MAX_HEAD
from host.wire.port import bind, bind_unix
from host.wire.slots import EXTRA, INCOMPLETE_TIMEOUT, MANY_HEADS

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = b"x" * 65536
SOON = 10.0
"""Seconds: far below the timeouts that a test must not depend on, far above what a busy machine takes."""
STAYS = 0.1
"""Seconds for which a connection that must stay is watched."""


serve_http = listener.serve_http


@pytest.fixture(autouse=True, params=[listener, hypercorn_listener], ids=["own", "hypercorn"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Both servers pass every test."""
    monkeypatch.setattr(sys.modules[__name__], "serve_http", request.param.serve_http)
    module: ModuleType = request.param
    return module


class Site:
    """A listener that serves, and how it is stopped."""

    def __init__(self, port: int, scope: trio.CancelScope) -> None:
        self.port = port
        self.scope = scope
        self.stop = trio.Event()
        self.ended = trio.Event()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@asynccontextmanager
async def serving(app: ASGIApp, *, grace: float = GRACE, **limits: Any) -> AsyncIterator[Site]:
    bound = bind("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        site = Site(bound.getsockname()[1], nursery.cancel_scope)

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await serve_http(app, bound, stop=site.stop, grace=grace, limits=Limits(**limits), task_status=task_status)
            site.ended.set()

        await nursery.start(serve)
        yield site
        nursery.cancel_scope.cancel()


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, answers with its size."""
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        size += len(event["body"])
        if not event["more_body"]:
            break
    answer = b"got %4d" % size
    length = str(len(answer)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": answer})


async def begin(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})


async def part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def finish(send: Send, data: bytes = b"done") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": data})


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def everything(stream: trio.SocketStream, patience: float = SOON) -> bytes:
    """All that comes until the server closes; a reset ends it as well."""
    received = b""
    with trio.fail_after(patience):
        try:
            while data := await stream.receive_some():
                received += data
        except trio.BrokenResourceError:
            pass
    return received


async def read_to(stream: trio.SocketStream, end: bytes) -> bytes:
    received = b""
    with trio.fail_after(5):
        while end not in received:
            data = await stream.receive_some()
            assert data, received
            received += data
    return received


async def ask(site: Site, request: bytes, patience: float = SOON) -> bytes:
    async with await site.connect() as stream:
        await stream.send_all(request)
        return await everything(stream, patience)


async def lives_on(site: Site) -> None:
    answer = await ask(site, b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n12345")
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert answer.endswith(b"got    5")


def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def connections_of(server: ModuleType) -> dict[int, Any]:
    """The objects of all connections, also of former tests."""
    return {id(each): each for each in gc.get_objects() if type(each) is server._Connection}


class Flood:
    """An app that sends until it is stuck, and says so."""

    def __init__(self) -> None:
        self.sent = 0
        self.gone = trio.Event()
        self.ended = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/flood":
            await hello(scope, receive, send)
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, receive, nursery.cancel_scope)
                await begin(send)
                while True:
                    await part(send, BIG)
                    self.sent += 1
        finally:
            self.ended.set()

    async def _watch(self, receive: Receive, scope: trio.CancelScope) -> None:
        await until_gone(receive)
        self.gone.set()
        scope.cancel()

    async def stuck(self) -> None:
        """Wait until no more goes into the buffers of the kernel."""
        with trio.fail_after(5):
            sent = -1
            while sent < self.sent:
                sent = self.sent
                await trio.sleep(0.1)  # the kernel moves bytes between two sockets in its own time


FLOOD = b"GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n"


# Answering


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with serving(hello) as site, await site.connect() as stream:
        for size in (0, 3, 4000):
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            assert (await read_to(stream, b"got %4d" % size)).startswith(b"HTTP/1.1 200")


async def test_the_scope_carries_the_path_as_it_was_sent() -> None:
    scopes = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await hello(scope, receive, send)

    async with serving(app) as site:
        answer = await ask(site, b"GET /a%2Fb?c=d HTTP/1.1\r\nHost: x\r\nX-A: \xe9\r\nConnection: close\r\n\r\n")
    assert b"\r\nserver:" not in answer.lower()
    (scope,) = scopes
    assert (scope["type"], scope["method"], scope["http_version"]) == ("http", "GET", "1.1")
    assert (scope["raw_path"], scope["path"], scope["query_string"]) == (b"/a%2Fb", "/a/b", b"c=d")
    assert (b"x-a", b"\xe9") in scope["headers"]
    assert scope["client"][0] == "127.0.0.1"


async def test_at_a_unix_socket_the_app_learns_which_process_asks_and_at_a_port_it_does_not(tmp_path: Path) -> None:
    async def who(scope: Scope, receive: Receive, send: Send) -> None:
        pid = examine_sender(scope).pid if PEER in scope["extensions"] else 0
        await finish(send, b"%04d" % (pid % 10_000))

    async with serving(who) as site:
        assert (await ask(site, GET + b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")).count(b"0000") == 2
    path = tmp_path / "1.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, who, bind_unix(path)))
        async with await trio.open_unix_socket(path) as stream:
            await stream.send_all(GET + b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
            assert (await everything(stream)).count(b"%04d" % (os.getpid() % 10_000)) == 2
        nursery.cancel_scope.cancel()


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    def post(body: bytes, *fields: bytes) -> bytes:
        return b"".join([b"POST / HTTP/1.1\r\nHost: a\r\n", *fields, b"Content-Length: %d\r\n\r\n" % len(body), body])

    async with serving(hello) as site:
        answers = await ask(site, post(b"a") + GET + post(b"x" * 100_000) + post(b"abc", b"Connection: close\r\n"))
    assert re.findall(rb"got +(\d+)", answers) == [b"1", b"0", b"100000", b"3"]


async def test_an_answer_without_reading_the_body_reaches_a_client_that_still_sends_it() -> None:
    """Closing on unread bytes would reset the connection, and the answer with it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await finish(send)

    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_500_000)
        answer = await everything(stream)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert answer.endswith(b"done")


@pytest.mark.slow
async def test_a_client_that_reads_slowly_gets_a_long_answer_whole() -> None:
    size = 8 * 1024 * 1024

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"\xee" * size})

    async with serving(app, write_timeout=0.5) as site, await site.connect() as stream:
        await stream.send_all(GET)
        received, started = 0, trio.current_time()
        while data := await stream.receive_some(1024 * 1024):
            received += data.count(b"\xee")
            await trio.sleep(0.05)  # its slowness
        assert received == size
        assert trio.current_time() - started > 0.5, "longer than one write may take"


@pytest.mark.slow
async def test_an_app_that_reads_slowly_holds_the_client_back() -> None:
    go = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await hello(scope, receive, send)

    async with serving(app) as site, await site.connect() as stream:
        size = 64 * 1024 * 1024
        sent = 0

        async def upload() -> None:
            nonlocal sent
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
            while sent < size:
                await stream.send_all(BIG)
                sent += len(BIG)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload)
            await trio.sleep(0.3)  # what fits into the buffers of the kernel goes there meanwhile
            assert sent < size / 2
            go.set()
        assert (await read_to(stream, b"got")).startswith(b"HTTP/1.1 200")


async def test_expect_continue_is_answered() -> None:
    async with serving(hello) as site, await site.connect() as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await read_to(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await stream.send_all(b"xx")
        await read_to(stream, b"got    2")


# Bytes that nobody serves. Where an exception is named, it ends a server of hypercorn 0.18 alone


def settings(value: bytes) -> bytes:
    return (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
        + value
        + b"\r\n\r\n"
    )


def prior_knowledge(path: bytes) -> bytes:
    client = h2.connection.H2Connection()
    client.config.header_encoding = None
    client.config.validate_outbound_headers = False
    client.initiate_connection()
    headers = [(b":method", b"GET"), (b":path", path), (b":scheme", b"http"), (b":authority", b"a")]
    client.send_headers(1, headers, end_stream=True)
    return client.data_to_send()


WEBSOCKET = (
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CRASHES = {
    "h2c, binascii.Error": (settings(b"A"), 426),
    "h2c, InvalidFrameError": (settings(b"AAMA"), 426),
    "h2c, InvalidSettingsValueError": (settings(b"AAIAAAAF"), 426),
    "h2c, settings beyond ASCII": (settings(b"\xff\xfe"), 426),
    "h2c, well-formed": (settings(b"AAMAAABkAAQAAP__"), 426),
    "h2c, non-ASCII field": (settings(b"AAMAAABkAAQAAP__")[:-2] + b"X: \xff\r\n\r\n", 426),
    "websocket": (WEBSOCKET + b"\r\n", 426),
    "websocket and a byte, LocalProtocolError": (WEBSOCKET + b"\r\n\x00", 426),
    "websocket, UnicodeDecodeError": (WEBSOCKET + b"Sec-WebSocket-Protocol: \xff\r\n\r\n", 426),
    "HTTP/1.0 and more, no Host": (b"GET / HTTP/1.0\r\n\r\ngarbage", 400),
    "HTTP/1.0 and more": (b"GET / HTTP/1.0\r\nHost: a\r\n\r\ngarbage", None),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/2 raw path, UnicodeDecodeError": (prior_knowledge(b"/caf\xc3\xa9"), 505),
    "raw path": (b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "non-ASCII name": (b"GET / HTTP/1.1\r\nHost: a\r\nX-\xff: a\r\n\r\n", 400),
    "non-ASCII connection": (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, \xff\r\n\r\n", 200),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
    "TLS": (bytes.fromhex("16030100c8010000c40303"), 400),
    "connect": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\nmore", 400),
    "encoding": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "chunk": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "huge chunk": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 21 + b"\r\n", 400),
    "endless head": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 17000, 431),
    "long head at once": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431),
    "many fields": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 101 + b"\r\n", 431),
    "both framings": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
}


@pytest.mark.parametrize("name", CRASHES)
async def test_bytes_that_nobody_serves_end_their_connection_only(name: str) -> None:
    """The client is refused and closed on, other connections keep streaming, new ones are served."""
    request, status = CRASHES[name]
    seen: list[str] = []
    go = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])
        if scope["path"] == "/slow":
            await begin(send)
            await part(send, b"one")
            await go.wait()
            await part(send, b"two")
        await hello(scope, receive, send)

    async with serving(app) as site, await site.connect() as other:
        await other.send_all(GET.replace(b"/ ", b"/slow "))
        await read_to(other, b"one")
        answer = await ask(site, request)
        if status is not None:
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        if status not in (None, 200):
            assert b"close" in answer
            assert b"Traceback" not in answer
        await lives_on(site)
        go.set()
        await read_to(other, b"two")
    assert set(seen) == {"http"}


async def test_no_mutation_of_known_bytes_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """A seeded fuzz: what it finds belongs into the table above."""
    chance = random.Random(20260101)
    corpus = [*(request for request, _ in CRASHES.values() if len(request) < 2000), GET, GET + GET]

    def mutate() -> bytes:
        data = bytearray(chance.choice(corpus))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + chance.randrange(1, 9)]
                case 2:
                    data[at:at] = data[chance.randrange(len(data)) :][: chance.randrange(1, 30)]
                case _:
                    data[at:at] = chance.choice([b"\r\n", b"\n", b"\x00", b"\xff", b":", b" ", b"0", b"%00"])
            data = data or bytearray(b"\r")
        return bytes(data)

    async def attack(site: Site, request: bytes, limit: trio.CapacityLimiter) -> None:
        async with limit:
            try:
                async with await site.connect() as stream:
                    await stream.send_all(request)
                    await stream.send_eof()
                    await everything(stream)
            except (trio.BrokenResourceError, OSError):
                pass  # it was refused before all of it was sent

    async with serving(hello) as site:
        limit = trio.CapacityLimiter(20)
        async with trio.open_nursery() as nursery:
            for _ in range(400):
                nursery.start_soon(attack, site, mutate(), limit)
        await lives_on(site)
    assert [record.getMessage() for record in caplog.records] == []


# The app's failures


async def test_an_app_that_fails_is_answered_for_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/early":
            raise ValueError("secret words")
        if scope["path"] == "/late":
            await begin(send)
            await part(send, b"one")
            raise ExceptionGroup("several", [ValueError("secret words")])
        if scope["path"] == "/nothing":
            return
        await hello(scope, receive, send)

    async with serving(app) as site:
        for path, start in ((b"early", b"HTTP/1.1 500 "), (b"nothing", b"HTTP/1.1 500 "), (b"late", b"HTTP/1.1 200 ")):
            answer = await ask(site, b"GET /" + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            assert answer.startswith(start)
            assert b"secret" not in answer
            assert b"Traceback" not in answer
            assert not answer.endswith(b"0\r\n\r\n"), "an answer that was broken off must not look whole"
        await lives_on(site)
    assert [(record.name, record.levelno) for record in caplog.records] == [("colonnade.listener", logging.ERROR)] * 2


async def test_an_app_that_breaks_its_promise_of_length_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await hello(scope, receive, send)
        else:
            await finish(send, b"too much" if scope["path"] == "/long" else b"")

    async with serving(app) as site:
        for path in (b"/long", b"/short"):
            await ask(site, b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            await lives_on(site)
    assert {record.name for record in caplog.records} == {"colonnade.listener"}


# Deadlines


@pytest.mark.slow
async def test_a_head_that_comes_slowly_is_cut() -> None:
    async with serving(hello, head_timeout=0.4) as site, await site.connect() as stream:
        started = trio.current_time()

        async def dribble() -> None:
            for byte in GET * 10:
                await stream.send_all(bytes([byte]))
                await trio.sleep(0.1)  # the slowness is the attack

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dribble)
            assert await everything(stream) == b""
            nursery.cancel_scope.cancel()
        assert 0.3 < trio.current_time() - started < 1


@pytest.mark.slow
async def test_of_many_incomplete_heads_those_beyond_a_number_get_little_time() -> None:
    async with serving(hello, head_timeout=60) as site, clients(site) as connect:
        first, *others = [await connect() for _ in range(MANY_HEADS + 10)]
        for stream in (first, *others):
            await stream.send_all(GET[:10])
            await trio.sleep(0.001)  # so that they are read in this order
        for stream in others[-9:]:
            assert await everything(stream) == b""
        await first.send_all(GET[10:])
        assert b" 200 " in await read_to(first, b"got    0")


async def test_a_head_that_comes_byte_by_byte_is_answered_and_so_is_what_follows_it() -> None:
    """Parts of a line are kept from the parser: none is lost, and none is left over for the next request."""
    long = GET.replace(b"\r\n\r\n", b"\r\nX-Long: " + b"a" * 200 + b"\r\n\r\n")
    async with serving(hello) as site, await site.connect() as stream:
        for request in (GET, long, GET):
            for byte in request:
                await stream.send_all(bytes([byte]))
                await trio.lowlevel.checkpoint()
            assert b" 200 " in await read_to(stream, b"got    0")


async def test_connections_that_end_at_once_are_gone_soon() -> None:
    async with serving(hello) as site:
        await lives_on(site)
        before = len(os.listdir("/proc/self/fd"))
        streams = [await site.connect() for _ in range(2 * MANY_CONNECTIONS)]
        for stream in streams:
            await stream.send_all(GET)
            await read_to(stream, b"got    0")
        for stream in streams:
            await stream.aclose()
        with trio.fail_after(5):
            while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110 - the listener tells nobody
                await trio.sleep(RESUME_SPREAD / 5)
        await lives_on(site)


async def test_a_connection_that_has_ended_is_gone_without_the_collector_of_garbage(server: ModuleType) -> None:
    """Otherwise the collector would stop the event loop to find thousands of ended connections."""

    gc.disable()
    try:
        others = connections_of(server)  # of tests before this one
        async with serving(hello) as site:
            for _ in range(3):
                async with await site.connect() as stream:
                    await stream.send_all(GET)
                    await read_to(stream, b"got    0")
            with trio.fail_after(5):
                while connections_of(server).keys() - others.keys():  # noqa: ASYNC110 - see above
                    await trio.sleep(0.01)
    finally:
        gc.enable()


@pytest.mark.slow
async def test_the_next_head_has_its_own_deadline_and_the_time_before_it_another() -> None:
    async with serving(hello, head_timeout=0.2, idle_timeout=0.6) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await read_to(stream, b"got    0")
        await trio.sleep(0.4)  # longer than a head may take, shorter than idleness
        await stream.send_all(GET)
        await read_to(stream, b"got    0")
        await stream.send_all(GET[:10])
        started = trio.current_time()
        assert await everything(stream) == b""
        assert trio.current_time() - started < 0.4
    async with serving(hello, head_timeout=0.2, idle_timeout=0.4) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await read_to(stream, b"got    0")
        started = trio.current_time()
        assert await everything(stream) == b""
        assert 0.3 < trio.current_time() - started < 0.8


@pytest.mark.slow
async def test_a_silent_stream_has_no_deadline() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        await trio.sleep(0.8)  # far longer than the deadlines below
        await part(send, b"late")

    async with serving(app, head_timeout=0.1, idle_timeout=0.1, write_timeout=0.1) as site:
        async with await site.connect() as stream:
            await stream.send_all(GET)
            await read_to(stream, b"late")


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_dropped() -> None:
    app = Flood()
    async with serving(app, write_timeout=0.5) as site, await site.connect() as stream:
        await stream.send_all(FLOOD)
        with trio.fail_after(SOON):
            await app.gone.wait()
            await app.ended.wait()
        assert app.sent < 200, "what the kernel holds for one client is bounded"
        await lives_on(site)


# The client leaves


def leaves_with_fin(stream: trio.SocketStream) -> None:
    stream.socket.close()


def half_closes(stream: trio.SocketStream) -> None:
    stream.socket.shutdown(socket.SHUT_WR)


LEAVING: list[Callable[[trio.SocketStream], None]] = [leaves_with_fin, half_closes, reset]


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize(
    "after", [GET, GET + GET, GET + GET[:10], b"POST" + GET[3:-2] + b"Content-Length: 9\r\n\r\n12"]
)
@pytest.mark.parametrize("streams", [True, False])
async def test_the_disconnect_is_heard_at_once(
    leave: Callable[[trio.SocketStream], None], after: bytes, streams: bool
) -> None:
    """In an event stream or before the answer, with a pipelined request waiting, or in the middle of a body."""
    ready, gone = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if streams:
            await begin(send)
            await part(send, b": hello\n\n")
        ready.set()
        await until_gone(receive)
        assert (await receive())["type"] == "http.disconnect", "it stays true"
        gone.set()

    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(after)
        await ready.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        leave(stream)
        with trio.fail_after(SOON):
            await gone.wait()


@pytest.mark.parametrize("leave", [leaves_with_fin, reset])
async def test_the_disconnect_is_heard_by_an_app_that_is_stuck_in_sending(
    leave: Callable[[trio.SocketStream], None],
) -> None:
    app = Flood()
    async with serving(app, write_timeout=60) as site, await site.connect() as stream:
        await stream.send_all(FLOOD)
        await app.stuck()
        leave(stream)
        with trio.fail_after(SOON):
            await app.gone.wait()
            await app.ended.wait()


@pytest.mark.parametrize("leave", LEAVING)
async def test_an_app_whose_client_left_goes_on(leave: Callable[[trio.SocketStream], None]) -> None:
    ready, go, ended = trio.Event(), trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            ready.set()
            await go.wait()
            await finish(send)
            ended.set()
        else:
            await hello(scope, receive, send)

    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await ready.wait()
        leave(stream)
        await lives_on(site)
        assert not ended.is_set()
        go.set()
        with trio.fail_after(SOON):
            await ended.wait()
        if leave is half_closes:
            assert (await everything(stream)).endswith(b"done"), "it can still be told"


async def test_an_app_may_give_up_sending_and_the_connection_breaks_with_it() -> None:
    """Half a message must not be followed by another."""
    gave_up = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/flood":
            await hello(scope, receive, send)
            return
        await begin(send)
        with trio.move_on_after(0.3):
            while True:
                await part(send, BIG)
        gave_up.set()
        await part(send, b"after")

    async with serving(app, write_timeout=60) as site, await site.connect() as stream:
        await stream.send_all(FLOOD)
        with trio.fail_after(SOON):
            await gave_up.wait()
        assert b"after" not in await everything(stream)
        await lives_on(site)


async def test_a_send_that_was_cancelled_before_it_began_does_no_harm() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        with trio.CancelScope() as cancelled:
            cancelled.cancel()
            await part(send, b"first")
        assert cancelled.cancelled_caught
        await part(send, b"second")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(GET)
        answer = await read_to(stream, b"0\r\n\r\n")
        assert b"first" not in answer
        assert b"second" in answer


# Stopping


async def test_stop_lets_a_request_end_and_closes_the_rest_at_once() -> None:
    ready, go = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            ready.set()
            await go.wait()
        await finish(send)

    async with serving(app, grace=5) as site, await site.connect() as idle, await site.connect() as busy:
        await idle.send_all(GET)
        await read_to(idle, b"done")
        await busy.send_all(GET.replace(b"/ ", b"/slow "))
        await ready.wait()
        site.stop.set()
        assert await everything(idle) == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await site.connect()
        assert not site.ended.is_set()
        go.set()
        answer = await everything(busy)
        assert answer.endswith(b"done")
        assert b"connection: close" in answer
        with trio.fail_after(SOON):
            await site.ended.wait()


@pytest.mark.slow
async def test_stop_cuts_what_does_not_end_within_the_grace() -> None:
    flood = Flood()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/flood":
            await flood(scope, receive, send)
        await begin(send)
        await part(send, b"one")
        await trio.sleep_forever()

    async with serving(app, grace=0.5, write_timeout=60) as site:
        async with await site.connect() as stalled, await site.connect() as silent:
            await stalled.send_all(FLOOD)
            await silent.send_all(GET)
            await read_to(silent, b"one")
            await flood.stuck()
            started = trio.current_time()
            site.stop.set()
            with trio.fail_after(SOON):
                await site.ended.wait()
            assert trio.current_time() - started > 0.4
            await everything(silent)


async def test_cancelling_ends_everything_at_once() -> None:
    app = Flood()
    async with serving(app, write_timeout=60) as site:
        async with await site.connect() as stalled, await site.connect() as idle:
            await stalled.send_all(FLOOD)
            await idle.send_all(GET)
            await app.stuck()
            started = trio.current_time()
            site.scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(SOON):
                await app.ended.wait()
            assert trio.current_time() - started < SOON


# Accepting


async def by_name(scope: Scope, receive: Receive, send: Send) -> None:
    """Serves those who name themselves in the query, and others where there is room; /slow holds its request until its
    client leaves."""
    name = scope["query_string"].decode() or None
    if not claim(scope, name, reserved=scope["path"] == "/console"):
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"full"})
    elif scope["path"] == "/slow":
        await begin(send)
        await part(send, b"begun")
        await until_gone(receive)
    else:
        await hello(scope, receive, send)


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


@asynccontextmanager
async def clients(site: Site) -> AsyncIterator[Callable[..., Awaitable[trio.SocketStream]]]:
    """Opens connections, and closes them at the end of the block. What one sends is answered before it is given."""
    async with AsyncExitStack() as stack:

        async def connect(request: bytes = b"", answer: bytes = b"got    0") -> trio.SocketStream:
            stream = await stack.enter_async_context(await site.connect())
            if request:
                await stream.send_all(request)
                await read_to(stream, answer)
            return stream

        yield connect


async def is_closed(stream: trio.SocketStream, patience: float = SOON) -> bool:
    """Whether the server closes the connection within so many seconds."""
    with trio.move_on_after(patience):
        return await everything(stream) == b""
    return False


async def test_the_longest_idle_connection_makes_room_and_none_that_is_in_use() -> None:
    """A connection with a stream stays open, and one whose request has arrived but was not read yet."""
    async with serving(by_name, max_connections=4) as site, clients(site) as connect:
        streaming = await connect(get("/slow"), b"begun")
        first, second, silent = await connect(get("/")), await connect(get("/")), await connect()
        await connect(get("/"))
        assert await is_closed(first)
        assert not await is_closed(silent, STAYS)
        await connect()
        assert (await ask(site, get("/"))).endswith(b"got    0")
        assert await is_closed(second)
        assert not await is_closed(streaming, STAYS)


async def test_a_request_that_arrives_as_its_connection_is_chosen_is_served() -> None:
    """All of them send at once with as many newcomers; whoever is closed had sent nothing."""
    async with serving(by_name, max_connections=8) as site, clients(site) as connect:
        for _ in range(5):
            old = [await connect() for _ in range(8)]
            for each in old[::2]:
                each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await trio.testing.wait_all_tasks_blocked(0.01)
            # Both without a checkpoint: the listener finds the requests and the newcomers in one pass of the loop.
            for each in old[::2]:
                assert os.write(each.socket.fileno(), GET) == len(GET)
            new = [_connect_now(site) for _ in range(4)]
            for each in old[::2]:
                await read_to(each, b"got    0")
            for newcomer in new:
                newcomer.close()


def _connect_now(site: Site) -> socket.socket:
    """A connection that is in the backlog when this returns."""
    return socket.create_connection(("127.0.0.1", site.port))


async def test_of_pipelined_requests_little_is_held(server: ModuleType) -> None:
    """While a request is worked on, no more than a head of the next ones: no budget counts them. All of them are
    answered."""
    working, go_on = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        async with until_disconnect(receive):
            working.set()
            await go_on.wait()
        await finish(send)

    others = connections_of(server)
    request = b"GET / HTTP/1.1\r\nhost: x\r\npad: " + b"p" * 4000 + b"\r\n\r\n"
    async with serving(app) as site, await site.connect() as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, request * 200)
        await working.wait()
        await trio.sleep(0.1)  # the kernel takes its time
        (connection,) = (each for id, each in connections_of(server).items() if id not in others)
        if server is listener:
            held = [connection.buffer]
        else:
            held = [connection._pipelined, connection._protocol.connection.trailing_data[0]]
        assert len(held[0]) > 0
        assert all(len(each) <= MAX_HEAD for each in held)
        go_on.set()
        heard = b""
        with trio.fail_after(20):
            while heard.count(b"done") < 200:
                heard += await stream.receive_some()


async def test_pipelined_requests_hold_no_anonymous_connection_open_while_the_listener_is_nearly_full() -> None:
    async with serving(by_name, max_connections=2) as site, clients(site) as connect:
        await connect()
        for target, answered in (("/", 1), ("/?laptop", 3)):
            stream = await connect()
            last = get(target).replace(b"a\r\n", b"a\r\nConnection: close\r\n")
            await stream.send_all(get(target) + get(target) + last)
            answers = await everything(stream)
            assert answers.count(b"got    0") == answered
            assert answers.lower().count(b"connection: close") == 1


async def test_anonymous_connections_of_a_nearly_full_listener_end_with_their_answer() -> None:
    async with serving(by_name, max_connections=10) as site, clients(site) as connect:
        for _ in range(8):
            await connect()
        ninth = await connect(get("/"))
        await ninth.send_all(get("/"))
        assert b"connection: close" not in await read_to(ninth, b"got    0")
        tenth = await connect()
        await tenth.send_all(get("/"))
        assert b"connection: close" in await everything(tenth)
        named = await connect(get("/?laptop"))
        await named.send_all(get("/?laptop"))
        assert b"connection: close" not in await read_to(named, b"got    0")


async def test_a_listener_whose_connections_are_all_in_use_refuses_who_has_no_name_and_serves_who_has() -> None:
    async with serving(by_name, max_connections=4) as site, clients(site) as connect:
        for _ in range(4):
            await connect(get("/slow?greedy"), b"begun")
        assert (await ask(site, get("/"))).startswith(b"HTTP/1.1 503 ")
        assert (await ask(site, get("/?greedy"))).startswith(b"HTTP/1.1 503 ")
        answer = await ask(site, get("/?laptop"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer
        assert (await ask(site, get("/console"))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
async def test_silent_connections_beyond_the_limit_keep_nobody_out() -> None:
    """Every slot is in use, and the extra ones are taken by clients that send nothing, or one byte."""
    async with serving(by_name, max_connections=4, head_timeout=120) as site, clients(site) as connect:
        for _ in range(4):
            await connect(get("/slow?greedy"), b"begun")
        for _ in range(2 * EXTRA):
            await connect()
        assert (await ask(site, get("/?laptop"), 30)).startswith(b"HTTP/1.1 200 ")
        for _ in range(2 * EXTRA):
            await (await connect()).send_all(b"G")
        assert (await ask(site, get("/?laptop"), 30)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
async def test_incomplete_requests_keep_nobody_out() -> None:
    """Heads that do not end, and bodies that do not come: after a second they make room."""
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"
    for sent in (GET[:-2], body):
        async with serving(by_name, max_connections=40, head_timeout=120) as site, clients(site) as connect:
            incomplete = [await connect() for _ in range(40 + EXTRA)]
            for each in incomplete:
                with suppress(trio.BrokenResourceError):
                    await each.send_all(sent)
            await trio.sleep(INCOMPLETE_TIMEOUT)  # the slowness is the attack
            for _ in range(10):
                assert (await ask(site, get("/"), 30)).startswith(b"HTTP/1.1 200 "), (
                    "long before the deadline of a head"
                )


async def test_a_refused_client_that_still_sends_gets_its_answer() -> None:
    async with serving(by_name, max_connections=1) as site, clients(site) as connect:
        await connect(get("/slow"), b"begun")
        stream = await connect()
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_500_000)
        assert (await everything(stream)).endswith(b"full")


async def test_a_client_behind_many_others_is_accepted_after_a_few_passes_of_the_loop() -> None:
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with serving(by_name) as site, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        before = [_connect_now(site) for _ in range(200)]
        async with trio.SocketStream(trio.socket.from_stdlib_socket(_connect_now(site))) as last:
            await last.send_all(get("/"))
            passes = 0
            await read_to(last, b"got    0")
        for each in before:
            each.close()
        assert passes < 100
        nursery.cancel_scope.cancel()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of a thousand connections are open in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def flood(site: Site) -> AsyncIterator[Callable[[int], Awaitable[list[socket.socket]]]]:
    """Opens many connections, from a thread of its own, and closes them at the end of the block."""
    attack: list[socket.socket] = []

    async def connect(count: int) -> list[socket.socket]:
        more = await trio.to_thread.run_sync(lambda: [_connect_now(site) for _ in range(count)])
        attack.extend(more)
        return more

    try:
        yield connect
    finally:
        for each in attack:
            each.close()


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("sent", [b"", GET[:-2]])
async def test_more_than_a_thousand_connections_that_send_no_request_keep_nobody_out(sent: bytes) -> None:
    async with serving(by_name, head_timeout=120) as site, flood(site) as attack:
        for each in await attack(MAX_CONNECTIONS + 2 * EXTRA):
            with suppress(OSError):
                each.send(sent)
        if sent:
            await trio.sleep(INCOMPLETE_TIMEOUT + 0.5)  # a head counts as slow so long after it has been read
        async with await site.connect() as anybody:
            await anybody.send_all(get("/"))
            answer = await read_to(anybody, b"got    0")
        assert (b"connection: close" in answer) is not bool(sent), (
            "full of those that sent nothing; the others are gone"
        )
        async with await site.connect() as good:
            for _ in range(3):
                await good.send_all(get("/?laptop"))
                await read_to(good, b"got    0")


@pytest.mark.usefixtures("many_files")
async def test_clients_are_served_while_an_attacker_connects_again_and_again() -> None:
    """Three times as many connections as there are slots. A named client keeps its connection all the time."""
    async with serving(by_name, max_connections=200) as site, clients(site) as connect, flood(site) as attack:
        named = await connect(get("/?laptop"))
        for _ in range(6):
            await attack(100)
            assert (await ask(site, get("/").replace(b"a\r\n", b"a\r\nConnection: close\r\n"), 30)).endswith(
                b"got    0"
            )
            await named.send_all(get("/?laptop"))
            assert b"connection: close" not in await read_to(named, b"got    0")


@pytest.mark.parametrize(
    ("files", "connections"),
    [(resource.RLIM_INFINITY, 1000), (20_000, 1000), (1304, 1000), (1303, 999), (1024, 720), (256, 64)],
)
def test_a_process_that_may_open_few_files_has_fewer_connections(files: int, connections: int) -> None:
    assert affordable_connections(MAX_CONNECTIONS, files) == connections


async def test_idle_connections_give_back_their_descriptors_when_there_are_no_more() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(by_name) as site, clients(site) as connect:
        idle = [await connect(get("/")) for _ in range(10)]
        good = socket.socket()
        good.setblocking(False)
        try:
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
            spare = _fill_up()
            assert good.connect_ex(("127.0.0.1", site.port)) == errno.EINPROGRESS
            assert await is_closed(idle[0])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in spare:
                os.close(fd)
            good.close()
        for stream in idle[5:]:
            await stream.send_all(get("/"))
            await read_to(stream, b"got    0")


@pytest.mark.slow
async def test_running_out_of_file_descriptors_is_survived_without_spinning(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(hello) as site:
        clients = [socket.socket() for _ in range(3)]
        try:
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
            spare = _fill_up()
            for client in clients:
                client.setblocking(False)
                assert client.connect_ex(("127.0.0.1", site.port)) == errno.EINPROGRESS
            used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            await trio.sleep(0.5)  # accept fails all that time
            assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - used < 0.2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in spare:
                os.close(fd)
            for client in clients:
                client.close()
        await trio.sleep(0.15)  # the listener pauses so long before it tries again
        await lives_on(site)
    assert "EMFILE" in caplog.text


def _fill_up() -> list[int]:
    taken: list[int] = []
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return taken


async def test_many_clients_that_reset_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(hello) as site:
        await lives_on(site)
        before = len(os.listdir("/proc/self/fd"))
        for sent in (b"", GET[:9], GET, GET + GET):
            for _ in range(30):
                stream = await site.connect()
                await stream.send_all(sent)
                reset(stream)
        await lives_on(site)
        await trio.sleep(0.1)  # the kernel reports the last resets in its own time
        assert len(os.listdir("/proc/self/fd")) <= before
    assert caplog.records == []


async def test_the_port_is_free_after_the_block() -> None:
    async with serving(hello) as site:
        await lives_on(site)
        port = site.port
    with bind("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port
