"""HTTP/1.1 over real sockets and the real clock."""

from __future__ import annotations

import gc
import logging
import os
import random
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from weakref import ref

import h2.connection
import pytest
import trio
import trio.testing

from host.wire import client_socket, listener
from host.wire.acceptor import MANY_CONNECTIONS, RESUME_SPREAD
from host.wire.asgi import (
    FINDINGS,
    PEER,
    Begun,
    Immediate,
    Receive,
    Scope,
    Send,
    examine_sender,
    immediate,
    of_head,
    respond,
    until_disconnect,
)
from host.wire.client_socket import Buffer, ClientSocket
from host.wire.head import MAX_HEAD
from host.wire.port import bind_unix
from host.wire.slots import MANY_HEADS
from tests.fuzz.mutations import mutate

from .sites import (
    BIG,
    FLOOD,
    GET,
    SOON,
    Flood,
    Site,
    ask,
    begin,
    clients,
    connection_beside,
    connections_of,
    everything,
    finish,
    half_closes,
    hello,
    leaves_with_fin,
    lives_on,
    part,
    read_to,
    reset,
    serving,
    until_gone,
)

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
        await nursery.start(partial(listener.serve_http, who, bind_unix(path)))
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
        assert b"connection: close" in answer.lower()
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


async def test_of_pipelined_requests_little_is_held() -> None:
    """While a request is worked on, no more than a head of the next ones: no budget counts them. All of them are
    answered."""
    working, go_on = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        async with until_disconnect(receive):
            working.set()
            await go_on.wait()
        await finish(send)

    others = connections_of()
    request = b"GET / HTTP/1.1\r\nhost: x\r\npad: " + b"p" * 4000 + b"\r\n\r\n"
    async with serving(app) as site, await site.connect() as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, request * 200)
        await working.wait()
        await trio.sleep(0.1)  # the kernel takes its time
        connection = connection_beside(others)
        assert 0 < len(connection.buffer) <= MAX_HEAD
        go_on.set()
        heard = b""
        with trio.fail_after(20):
            while heard.count(b"done") < 200:
                heard += await stream.receive_some()


# Bytes that nobody serves. Where an exception is named, it has ended another server


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
                nursery.start_soon(attack, site, mutate(chance.choice(corpus), chance, corpus) or b"\r", limit)
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
            assert await everything(stream) == b"", "the whole head, which takes seconds, was waited for"
            nursery.cancel_scope.cancel()
        assert trio.current_time() - started > 0.3


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


async def test_a_connection_that_has_ended_is_gone_without_the_collector_of_garbage() -> None:
    """Otherwise the collector would stop the event loop to find thousands of ended connections."""

    gc.disable()
    try:
        others = connections_of()  # of tests before this one
        async with serving(hello) as site:
            for _ in range(3):
                async with await site.connect() as stream:
                    await stream.send_all(GET)
                    await read_to(stream, b"got    0")
            with trio.fail_after(5):
                while connections_of().keys() - others.keys():  # noqa: ASYNC110 - see above
                    await trio.sleep(0.01)
    finally:
        gc.enable()


@pytest.mark.slow
async def test_the_next_head_has_its_own_deadline_and_the_time_before_it_another() -> None:
    async with serving(hello, head_timeout=0.2, idle_timeout=1_000) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await read_to(stream, b"got    0")
        await trio.sleep(0.6)  # longer than a head may take
        await stream.send_all(GET)
        await read_to(stream, b"got    0")
        await stream.send_all(GET[:10])
        with trio.fail_after(SOON):
            assert await everything(stream) == b""
    async with serving(hello, head_timeout=0.1, idle_timeout=1.0) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await read_to(stream, b"got    0")
        started = trio.current_time()
        with trio.fail_after(SOON):
            assert await everything(stream) == b""
        assert trio.current_time() - started > 0.9, "not by the deadline of a head"


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


async def test_bodies_in_chunks_are_read_and_what_follows_them_is_answered() -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"5;a=b\r\nhello\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"
    async with serving(hello) as site, await site.connect() as stream:
        await stream.send_all(chunked + body + GET)
        assert b"got   15" in await read_to(stream, b"got    0")
        for byte in chunked + body + GET[:-1]:
            await stream.send_all(bytes([byte]))
            await trio.lowlevel.checkpoint()
        await read_to(stream, b"got   15")
        await stream.send_all(GET[-1:])
        await read_to(stream, b"got    0")


@pytest.mark.parametrize(
    "sent",
    [
        GET[:20],
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n123",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123",
    ],
    ids=["head", "body", "chunk"],
)
async def test_a_request_that_ends_in_its_middle_is_refused(sent: bytes) -> None:
    async with serving(hello) as site, await site.connect() as stream:
        await stream.send_all(sent)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await stream.send_eof()
        assert (await everything(stream)).startswith(b"HTTP/1.1 400 ")


async def test_a_body_that_breaks_off_malformed_ends_its_request_and_its_connection() -> None:
    """Before the response begins the client is told; after that only the end of the connection tells it."""
    gone = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/begun":
            await begin(send)
            await part(send, b"one")
        await until_gone(receive)
        gone.set()

    chunked = b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    for path, answer in ((b"/", b"HTTP/1.1 400 "), (b"/begun", b"HTTP/1.1 200 ")):
        async with serving(app) as site, await site.connect() as stream:
            await stream.send_all(chunked % path)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_all(b"zz\r\n" + GET)
            answers = await everything(stream)
            assert answers.startswith(answer)
            assert answers.count(b"HTTP/1.1 ") == 1
            with trio.fail_after(SOON):
                await gone.wait()
        gone = trio.Event()


async def test_a_response_to_head_has_no_body() -> None:
    async with serving(hello) as site, await site.connect() as stream:
        await stream.send_all(GET.replace(b"GET", b"HEAD") + GET)
        answers = await read_to(stream, b"got    0")
        assert answers.count(b"content-length: 8") == 2
        assert answers.count(b"got") == 1


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_its_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        await part(send, b"one")
        await send({"type": "http.response.body", "body": b"two"})

    async with serving(app) as site:
        answer = await ask(site, b"GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"\r\n\r\nonetwo")


async def test_a_header_that_would_split_the_response_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0"), (b"x", b"a\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async with serving(app) as site:
        answer = await ask(site, GET)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert len(caplog.records) == 1


# Writes, and what is kept of a head


async def test_a_short_answer_is_one_write_and_so_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write_now(self: listener.ClientConnection, data: bytes) -> int:
        written.append(bytes(data))
        return listener_write(self, data)

    listener_write = listener.ClientConnection._write_now
    monkeypatch.setattr(listener.ClientConnection, "_write_now", write_now)
    async with serving(hello) as site:
        await lives_on(site)
        await ask(site, b"nonsense\r\n\r\n")
    assert [each[:13] for each in written] == [b"HTTP/1.1 200 ", b"HTTP/1.1 400 "]


async def test_a_client_waits_for_leave_to_send_its_body_only_if_the_app_wants_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await receive()
        await finish(send)

    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    async with serving(app) as site:
        async with await site.connect() as stream:
            await stream.send_all(head % b"/")
            assert await read_to(stream, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await stream.send_all(b"xx")
            await read_to(stream, b"done")
        answer = await ask(site, head % b"/unread")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()


async def test_heads_that_are_repeated_are_read_like_others() -> None:
    scopes: list[Scope] = []
    found: list[object] = []

    def find(scope: Scope) -> object:
        return scope["path"], dict(scope["headers"]).get(b"x")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        found.append(of_head(scope, find))
        await hello(scope, receive, send)

    head = b"POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length: 3\r\n\r\n"
    others = (head.replace(b"/a", b"/b"), head.replace(b"X: 1\r\n", b""), head.replace(b"X: 1", b"X: 12"))
    async with serving(app) as site, await site.connect() as stream:
        for each in (head, head, *others, head):
            await stream.send_all(each + b"abc" + each)
            await read_to(stream, b"got    3")
            await stream.send_all(b"abc")
            await read_to(stream, b"got    3")
        await stream.send_all(head.replace(b"Length: 3", b"Length: 4321") + b"x" * 4321)
        await read_to(stream, b"got 4321")
    assert dict(scopes.pop()["headers"])[b"content-length"] == b"4321"
    assert found.pop() is found[-1], "a repeated head, but for the length"
    read = [find(scope) for scope in scopes]
    expected = [("/a", b"1"), ("/a", b"1"), ("/b", b"1"), ("/a", None), ("/a", b"12"), ("/a", b"1")]
    assert read == found == [each for each in expected for _ in range(2)]


async def test_tasks_that_an_app_left_behind_disturb_no_later_request() -> None:
    """One waits for the disconnect. What another one still sends is dropped, and it hears nothing either."""
    late: list[str] = []
    go = trio.Event()

    async def hear(receive: Receive) -> None:
        late.append((await receive())["type"])

    async def speak(receive: Receive, send: Send) -> None:
        await go.wait()
        await finish(send, b"late")
        late.append("sent")
        await hear(receive)

    async with trio.open_nursery() as nursery:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            if scope["path"] == "/":
                nursery.start_soon(hear, receive)
                nursery.start_soon(speak, receive, send)
                await trio.testing.wait_all_tasks_blocked(0.01)
            await finish(send)

        async with serving(app) as site, await site.connect() as stream:
            for _ in range(3):
                await stream.send_all(GET)
                assert b"late" not in await read_to(stream, b"done")
            go.set()
            await stream.send_all(GET.replace(b"/ ", b"/last "))
            assert b"late" not in await read_to(stream, b"done")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert (late.count("http.disconnect"), late.count("sent")) == (6, 3)


def _nothing() -> None:
    """Parts that are taken mean nothing here."""


async def test_a_response_that_another_listener_wrote_is_passed_on_and_keeps_the_connection_if_the_client_does() -> (
    None
):
    response = b"HTTP/1.1 200 \r\ncontent-length: 4\r\ndate: now\r\n\r\ndone"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await trio.lowlevel.checkpoint()
        assert at_once.pass_on(response, len(response) - 4) is None
        with pytest.raises(RuntimeError, match="begun"):
            at_once.pass_on(response, len(response) - 4)

    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await read_to(stream, response)
        await stream.send_all(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await everything(stream)
    assert answer == response.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


async def test_a_body_that_came_with_its_head_can_be_taken_at_once_and_answered() -> None:
    taken: list[bytes | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        body = at_once.take_body(8)
        taken.append(body)
        if body is None:
            await hello(scope, receive, send)
        else:
            assert at_once.take_body(8) is None, "once"
            assert at_once.begin_response(200, (), body, _nothing) is None
            with pytest.raises(RuntimeError, match="begun"):
                at_once.begin_response(200, (), body, _nothing)
            taken.append((await receive())["type"].encode())

    def post(body: bytes) -> bytes:
        return b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async with serving(app) as site:
        async with await site.connect() as stream:
            await stream.send_all(post(b"part")[:-2])
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_all(b"rt")
            await read_to(stream, b"got    4")
            await stream.send_all(post(b"too long!"))
            await read_to(stream, b"got    9")
            await stream.send_all(post(b"") + post(b"whole"))
            await read_to(stream, b"HTTP/1.1 200 \r\ncontent-length: 0\r\n")
            await stream.send_eof()
            answer = await everything(stream)
    assert answer.count(b"HTTP/1.1 200 ") == 1
    assert answer.endswith(b"\r\n\r\nwhole")
    assert taken == [None, None, b"", b"http.disconnect", b"whole", b"http.disconnect"]


async def test_an_answer_that_the_client_does_not_take_at_once_is_sent_while_the_app_waits() -> None:
    size, rests, moved = 32 * 1024 * 1024, [], list[str]()
    given_up = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        body = b"x" * size
        rest = at_once.begin_response(200, (), body, partial(moved.append, scope["path"]))
        assert rest is not None
        rests.append(rest)
        if scope["path"] == "/given-up":
            with trio.move_on_after(0.05):
                await rest
            given_up.set()
        else:
            await rest

    async with serving(app) as site:
        async with await site.connect() as stream:
            await stream.send_all(GET)
            received = len(await read_to(stream, b"\r\n\r\n"))
            while received < size:
                received += len(await stream.receive_some(1024 * 1024))
        assert len(moved) > 100, "parts of what did not fit"
        async with await site.connect() as stream:
            await stream.send_all(GET.replace(b"/ ", b"/given-up "))
            await given_up.wait()  # a client that reads before gets all of it
            assert len(await everything(stream)) < size, "it breaks its connection"
    assert len(rests) == 2


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("path", [b"/behind ", b"/dropped "])
async def test_an_answer_that_is_not_sent_when_its_request_ends_is_followed_by_nothing(path: bytes) -> None:
    """Another answer in its middle, or in its place, would be taken for its own."""
    size = 32 * 1024 * 1024

    async with trio.open_nursery() as nursery:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            at_once = immediate(scope)
            assert at_once is not None
            if scope["path"] == "/":
                await finish(send, b"next")
                return
            rest = at_once.begin_response(200, (), b"x" * size, _nothing)
            assert rest is not None
            if scope["path"] == "/behind":
                nursery.start_soon(partial(_await, rest))
                await trio.lowlevel.checkpoint()

        async with serving(app) as site, await site.connect() as stream:
            await stream.send_all(GET.replace(b"/ ", path) + GET)
            answer = await everything(stream)
    assert answer.count(b"HTTP/1.1 200 ") == 1
    assert answer.count(b"x") < size


async def _await(rest: Awaitable[None]) -> None:
    await rest


async def test_a_part_that_the_client_does_not_take_at_once_is_sent_before_anything_else() -> None:
    """Or breaks its connection."""
    size, taken = 32 * 1024 * 1024, list[bool]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        taken.extend(at_once.send_part(part) for part in (b"a", b"b" * size))
        if scope["path"] == "/given-up":
            return
        if scope["path"] == "/waits":
            taken.append(await at_once.wait_client(60, b""))
        await send({"type": "http.response.body", "body": b"c"})

    async with serving(app) as site:
        for path in (b"/waits ", b"/sends ", b"/given-up "):
            async with await site.connect() as stream:
                await stream.send_all(GET.replace(b"/ ", path))
                received = bytearray()
                with suppress(trio.BrokenResourceError):
                    while not received.endswith(b"0\r\n\r\n") and (data := await stream.receive_some(1024 * 1024)):
                        received += data
                whole = path != b"/given-up "
                assert (received.count(b"b") >= size) == whole
                assert received.endswith(b"1\r\nc\r\n0\r\n\r\n") == whole
    assert taken == [True, False, True, True, False, True, False]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of connections are looked at a hundred times a second."""
    monkeypatch.setattr(client_socket, "ALARMS_A_SECOND", 100)


@pytest.mark.usefixtures("soon")
async def test_an_app_that_waits_for_its_client_is_told_why_the_wait_ends() -> None:
    """A request that follows meanwhile ends no wait, and is answered. Signs of life are sent without it."""
    ends: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert at_once.send_part(b"x")
        if not ends:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, at_once.wake)
                ends.append(await at_once.wait_client(0.05, b"s"))
            at_once.wake()
            ends.append(await at_once.wait_client(60, b"t"))
        else:
            ends.append(await at_once.wait_client(60, b"t"))
        await send({"type": "http.response.body", "body": b"y"})

    signs = trio.Event()

    async def call(wake: Callable[[], None]) -> None:
        await signs.wait()
        wake()

    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(GET * 2)
        await read_to(stream, b"1\r\nx\r\n" + 2 * b"1\r\ns\r\n")
        signs.set()
        await read_to(stream, b"1\r\ny\r\n0\r\n\r\n")
        assert ends == [True, True]
        await stream.send_eof()
        await everything(stream)
    assert ends[2:] == [False]


@pytest.mark.usefixtures("soon")
async def test_what_follows_a_sign_of_life_that_the_client_does_not_take_is_sent_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_now, torn, taken = ClientSocket._write_now, trio.Event(), list[bool]()

    def write_little_of_a_sign(connection: ClientSocket, data: Buffer, more: bytes = b"") -> int:
        if b"sign" in bytes(data):
            torn.set()
            data = data[:4]
        return write_now(connection, data, more)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})

        async def send_behind() -> None:
            await torn.wait()
            taken.extend(at_once.send_part(part) for part in (b"1", b"2"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_behind)
            for _ in range(2):
                taken.append(await at_once.wait_client(0.05, b"sign"))
        await send({"type": "http.response.body", "body": b"3"})

    monkeypatch.setattr(ClientSocket, "_write_now", write_little_of_a_sign)
    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await read_to(stream, b"4\r\nsign\r\n1\r\n1\r\n1\r\n2\r\n1\r\n3\r\n0\r\n\r\n")
    assert sorted(taken) == [False, False, True, True]


@pytest.mark.usefixtures("soon")
async def test_a_client_that_takes_no_sign_of_life_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buffers are full, or it has vanished behind them. The app that waits for it is told."""
    write_now, left = ClientSocket._write_now, trio.Event()

    def write_no_sign(connection: ClientSocket, data: Buffer, more: bytes = b"") -> int:
        return 0 if b"sign" in bytes(data) and not connection._closed else write_now(connection, data, more)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while await at_once.wait_client(0.05, b"sign"):
            pass
        left.set()

    monkeypatch.setattr(ClientSocket, "_write_now", write_no_sign)
    async with serving(app, write_timeout=0.1) as site, await site.connect() as stream:
        await stream.send_all(GET)
        await read_to(stream, b"\r\n\r\n")
        assert await everything(stream) == b""
        with trio.fail_after(5):
            await left.wait()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_an_app_does_not_read_is_not_held_while_it_waits_for_its_client(*, chunked: bool) -> None:
    ends: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ends.append(await at_once.wait_client(60, b""))

    size, count = 1024 * 1024, 16
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (size * count)
    piece = b"%x\r\n%b\r\n" % (size, b"x" * size) if chunked else b"x" * size
    others = connections_of()
    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % framing)
        await read_to(stream, b"\r\n\r\n")
        connection = connection_beside(others)
        for _ in range(count):
            await stream.send_all(piece)
            assert len(connection.buffer) <= MAX_HEAD
        await stream.send_all(b"no size\r\n" if chunked else GET)
        if not chunked:  # with it, what follows is malformed
            await stream.send_eof()
        await everything(stream)
    assert ends == [False]


async def test_a_stream_that_goes_on_after_its_app_holds_nothing_of_the_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And it ends, or fails, as one in the app does."""

    class Held:
        pass

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        scope["held"] = Held()
        scope["extensions"][FINDINGS]["held"] = found = Held()
        left = [ref(scope["held"]), ref(found)]
        fails = scope["path"] == "/fails"

        async def serve() -> None:
            assert [each() for each in left] == [None, None]
            if fails:
                raise ValueError("no such state")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})

        at_once.go_on(serve)

    async with serving(app) as site:
        async with await site.connect() as stream:
            for _ in range(2):
                await stream.send_all(GET)
                assert (await read_to(stream, b"0\r\n\r\n")).endswith(b"1\r\nx\r\n0\r\n\r\n")
            await stream.send_all(GET.replace(b"/ ", b"/fails "))
            assert b" 500 " in await everything(stream)
    assert "the app failed on GET b'/fails'" in caplog.text


async def test_nothing_is_sent_at_once_after_the_end_of_a_request() -> None:
    kept: list[Immediate] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        kept.append(at_once)
        if len(kept) > 1:
            assert kept[0].take_body(8) is None
            assert kept[0].begin_response(200, (), b"late", _nothing) is None
        await finish(send)

    async with serving(app) as site, await site.connect() as stream:
        for _ in range(2):
            await stream.send_all(GET)
            assert b"late" not in await read_to(stream, b"done")


async def test_a_client_that_always_has_another_request_lets_others_in_between() -> None:
    """Its requests are there before each answer, and the app never waits."""
    passes = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await finish(send)

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with serving(app) as site, await site.connect() as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            nursery.start_soon(stream.send_all, GET * 300)
            heard = b""
            while heard.count(b"done") < 300:
                heard += await stream.receive_some()
            nursery.cancel_scope.cancel()
    assert passes >= 290


async def test_an_app_that_only_sends_to_a_client_that_left_lets_others_run_and_can_be_cancelled() -> None:
    ended = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with trio.move_on_after(0.2):
            await begin(send)
            while True:
                await part(send, b"x")
        ended.set()

    async with serving(app) as site:
        async with await site.connect() as stream:
            await stream.send_all(GET)
            await stream.receive_some()
        with trio.fail_after(SOON):
            await ended.wait()


async def test_an_app_that_fails_before_the_first_byte_of_its_answer_was_sent_is_answered_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        raise ValueError("secret words")

    async with serving(app) as site:
        answer = await ask(site, GET)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert len(caplog.records) == 1


async def test_an_answer_with_a_header_that_it_must_not_have_is_answered_for_and_none_takes_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        at_once.begin_response(200, (("a", "b\r\nc: d"),) if scope["path"] == "/bad" else (), b"next", _nothing)

    async with serving(app) as site:
        answer = await ask(site, GET.replace(b"/ ", b"/bad ") + GET)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert len(caplog.records) == 1


async def test_little_is_read_beyond_the_end_of_a_body() -> None:
    """The budget of memory counts what the app reads, and nothing that waits behind it."""
    read = go_on = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        read.set()
        await go_on.wait()
        await finish(send)

    framings = (
        b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000,
        b"Transfer-Encoding: chunked\r\n\r\n186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n",
    )
    for framing in framings:
        read, go_on = trio.Event(), trio.Event()
        others = connections_of()
        async with serving(app) as site, await site.connect() as stream:
            async with trio.open_nursery() as nursery:
                post = b"POST / HTTP/1.1\r\nHost: a\r\n" + framing
                nursery.start_soon(stream.send_all, post + GET * 10_000)
                await read.wait()
                connection = connection_beside(others)
                assert len(connection.buffer) <= MAX_HEAD
                nursery.cancel_scope.cancel()
            go_on.set()


async def test_a_malformed_body_is_not_read_on_by_an_app_that_waits_for_the_end() -> None:
    waiting = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        await until_gone(receive)
        waiting.set()
        await trio.sleep_forever()

    others = connections_of()
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(app) as site, await site.connect() as stream:
        await stream.send_all(chunked)
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"zz\r\n" + b"x" * 8_000_000)
            with trio.fail_after(SOON):
                await waiting.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            connection = connection_beside(others)
            assert len(connection.buffer) <= MAX_HEAD
            nursery.cancel_scope.cancel()


async def test_the_connection_that_had_a_descriptor_before_wakes_nobody_who_has_it_now() -> None:
    others = connections_of()
    async with serving(hello) as site:
        async with await site.connect() as stream:
            await stream.send_all(GET)
            await read_to(stream, b"got    0")
            connection = connection_beside(others)
        await trio.testing.wait_all_tasks_blocked(0.01)
        with ExitStack() as opened:
            for _ in range(8):
                for each in socket.socketpair():
                    opened.enter_context(each)
                    if each.fileno() == connection._fd:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(trio.lowlevel.wait_readable, each)
                            await trio.testing.wait_all_tasks_blocked()
                            connection.wake_reader()
                            await trio.testing.wait_all_tasks_blocked()
                            assert nursery.child_tasks
                            nursery.cancel_scope.cancel()
                        return
    raise AssertionError("nobody got the descriptor")


class Answering:
    """An app that has each request begun, and answered by `answer`. `kinds` says what became of each."""

    def __init__(self) -> None:
        self.begun: list[tuple[Immediate, bytes]] = []
        self.kinds: list[str] = []

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.kinds.append("app")
        at_once = immediate(scope)
        assert at_once is not None
        if not at_once.repeat(self.begin):
            await hello(scope, receive, send)

    def begin(self, at_once: Immediate, body: bytes) -> Begun | None:
        if body == b"for the app":
            return None
        self.begun.append((at_once, body))
        return self

    def answer(self, at: int = -1) -> None:
        at_once, body = self.begun[at]
        head = b"HTTP/1.1 200 \r\ncontent-length: %d\r\ndate: now\r\n\r\n" % len(body)
        assert at_once.pass_on(head + body, len(head)) is None
        at_once.end_begun()

    async def go_on(self) -> None:
        self.kinds.append("task")
        await respond(self.begun[-1][0].send, 200, {}, b"by the task")

    def give_up(self) -> None:
        self.kinds.append("given up")

    async def wait_begun(self, count: int) -> None:
        with trio.fail_after(5):
            while len(self.begun) < count:  # noqa: ASYNC110 - by looks
                await trio.sleep(0.001)


def post(body: bytes, more: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)


async def test_a_request_that_repeats_a_head_is_begun_without_the_app_and_answered_by_another_task() -> None:
    def requests() -> int:
        return sum(type(each) is listener.ServedRequest for each in gc.get_objects())

    gc.collect()
    app, before = Answering(), requests()
    async with serving(app.serve) as site, await site.connect() as stream:
        for number in range(3):
            await stream.send_all(post(b"body %d" % number))
            await app.wait_begun(number + 1)
            app.answer()
            assert (await read_to(stream, b"body")).startswith(b"HTTP/1.1 200")
        await stream.send_all(post(b"for the app"))
        await read_to(stream, b"got   11")
        await stream.send_all(post(b"another head", b"X-More: 1\r\n"))
        await app.wait_begun(4)
        app.answer()
        await read_to(stream, b"another head")
        assert app.kinds == ["app", "app", "app"]
        app.begun.clear()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert requests() == before, "no cycle is left to the garbage collector"


@pytest.mark.parametrize("following", [post(b"for the app"), b"PO"], ids=["whole", "part"])
async def test_the_task_of_a_connection_goes_on_with_a_begun_request_when_its_client_sends_more(
    following: bytes,
) -> None:
    app = Answering()
    async with serving(app.serve) as site, await site.connect() as stream:
        await stream.send_all(post(b"x"))
        await app.wait_begun(1)
        await stream.send_all(following)
        answers = b"" if following != b"PO" else await read_to(stream, b"by the task")
        await stream.send_all(b"" if following != b"PO" else post(b"for the app")[2:])
        answers += await read_to(stream, b"got   11")
        assert b"by the task" in answers
        assert app.kinds == ["app", "task", "app"]


async def test_the_task_of_a_connection_goes_on_with_a_begun_request_when_its_client_leaves_or_it_is_told_to() -> None:
    app = Answering()
    async with serving(app.serve) as site:
        async with await site.connect() as stream:
            await stream.send_all(post(b"x"))
            await app.wait_begun(1)
            await stream.send_eof()
            assert (await everything(stream)).endswith(b"by the task")
        async with await site.connect() as stream:
            await stream.send_all(post(b"x"))
            await app.wait_begun(2)
            app.begun[-1][0].end_begun(in_task=True)
            await read_to(stream, b"by the task")
            await stream.send_all(post(b"for the app"))
            await read_to(stream, b"got   11")
        assert app.kinds[:4] == ["app", "task", "app", "task"]


async def test_a_begun_request_is_given_up_when_its_listener_is_cancelled() -> None:
    app = Answering()
    async with serving(app.serve) as site, await site.connect() as stream:
        await stream.send_all(post(b"x"))
        await app.wait_begun(1)
        site.scope.cancel()
    assert app.kinds == ["app", "given up"]


@pytest.mark.parametrize("stops", [False, True], ids=["it asks for it", "the listener leaves"])
async def test_a_connection_ends_with_the_answer_of_a_begun_request(stops: bool) -> None:
    app = Answering()
    async with serving(app.serve) as site, await site.connect() as stream:
        await stream.send_all(post(b"x", b"" if stops else b"Connection: close\r\n"))
        await app.wait_begun(1)
        if stops:
            site.leaving.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
        app.answer()
        answer = await everything(stream)
    assert b"connection: close" in answer
    assert app.kinds == ["app"]
