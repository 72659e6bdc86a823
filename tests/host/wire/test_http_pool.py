"""Connections that are kept for the next request: which one is used, when one is given up, and what is sent twice."""

from __future__ import annotations

import base64
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import MockClock

from host.url import Url
from host.wire.http_client import open_http
from host.wire.http_connection import ByteChannel, PlainChannel
from host.wire.http_errors import Broken, Unreachable
from host.wire.http_pool import BURST_EXPIRY, IDLE_EXPIRY, MAX_HEADS, MAX_IDLE, Pool, render_head, with_length
from host.wire.http_transport import HttpResponse, open_origin
from host.wire.link import LinkLost
from host.wire.turns import Turns
from tests.host.wire.http_servers import (
    Heard,
    Script,
    Server,
    Wire,
    answer,
    ask,
    in_memory,
    serving,
    serving_tcp,
    tunnelling,
    until,
)
from tests.kit.certificates import server_settings

HEADERS = [(b"Accept", b"*/*")]


async def get(pool: Pool, url: str, *, repeatable: bool = False, body: bytes | None = b"{}") -> tuple[int, bytes]:
    method = "GET" if body is None else "POST"
    response = HttpResponse(await pool.request(method, Url.parse(url), HEADERS, body, repeatable=repeatable))
    return response.status, await response.body()


@asynccontextmanager
async def opened(script: Script) -> AsyncIterator[tuple[Pool, Server]]:
    """A server, and connections to it."""
    async with serving(script) as server:
        pool = Pool(Turns())
        try:
            yield pool, server
        finally:
            pool.abort()


async def number_of_connection(heard: Heard, wire: Wire) -> None:
    await wire.say(200, b"%d" % wire.number)


# --- which connection ------------------------------------------------------------------------------------------------


async def test_the_connection_that_was_used_last_is_used_first() -> None:
    """Those that a burst needed grow old, and are given up."""
    async with opened(number_of_connection) as (pool, server):
        url = Url.parse(server.url)
        held = [await pool.request("POST", url, HEADERS, b"{}") for _ in range(3)]
        assert [await each.read() for each in held] == [b"1", b"2", b"3"]
        for each in (held[0], held[2], held[1]):
            each.close()
        assert [(await get(pool, server.url))[1] for _ in range(3)] == [b"2"] * 3
        assert server.connections == 3


async def test_each_request_has_its_own_head_however_many_there_were() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(200, f"{heard.method} {heard.target} {heard.headers['x']}".encode())

    async with opened(script) as (pool, server):
        lists = [[(b"X", b"%d" % number)] for number in range(2 * MAX_HEADS)]
        urls = [Url.parse(f"{server.url}/{letter}") for letter in "ab"]
        for _ in range(2):
            for number, headers in enumerate(lists):
                for method, url in product(("GET", "POST"), urls):
                    response = HttpResponse(await pool.request(method, url, headers, b"{}"))
                    assert await response.body() == f"{method} {url.target} {number}".encode()


@pytest.mark.parametrize("how", ["closes", "sends something"])
async def test_a_connection_on_which_the_server_did_something_meanwhile_is_not_used(how: str) -> None:
    done = trio.Event()

    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(200, b"%d" % wire.number)
        if wire.number == 1:
            await (wire.close() if how == "closes" else wire.write(b"HTTP/1.1 408 X\r\nContent-Length: 0\r\n\r\n"))
            done.set()

    async with opened(script) as (pool, server):
        assert await get(pool, server.url) == (200, b"1")
        await done.wait()
        await trio.sleep(0.01)
        assert await get(pool, server.url) == (200, b"2")
        assert len(server.heard) == 2


@pytest.mark.parametrize(
    ("head", "reused"),
    [
        (b"HTTP/1.1 204 X\r\n\r\n", True),
        (b"HTTP/1.1 200 X\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 X\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 204 X\r\n\r\nbody", False),
        (b"HTTP/1.1 304 X\r\n\r\nbody", False),
    ],
)
async def test_when_a_connection_is_used_again(head: bytes, reused: bool) -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await (wire.write(head) if len(server.heard) == 1 else wire.say(200, b"ok"))

    async with opened(script) as (pool, server):
        await HttpResponse(await pool.request("POST", Url.parse(server.url), HEADERS, b"{}")).discard()
        assert await get(pool, server.url) == (200, b"ok")
        assert server.connections == (1 if reused else 2)


@pytest.mark.parametrize(
    ("said", "pause", "reused"),
    [
        (None, 59.0, True),
        (None, 60.5, False),
        ("timeout=5", 3.5, True),
        ("timeout=5, max=100", 4.5, False),
        ("timeout=1", 0.1, False),
        ("timeout=0", 0.0, False),
        ("timeout=3600", 59.0, True),
        ("timeout=3600", 60.5, False),
    ],
)
async def test_a_connection_is_given_up_before_the_server_does(
    said: str | None, pause: float, reused: bool, autojump_clock: MockClock
) -> None:
    connections = 0
    headers = {} if said is None else {"keep-alive": said}
    served = in_memory(lambda request: httpx.Response(200, headers=headers, content=b"ok"))
    assert isinstance(served, Pool)
    inner = served._connect

    async def connect(url: Url) -> ByteChannel:
        nonlocal connections
        connections += 1
        return await inner(url)

    served._connect = connect
    await get(served, "http://example.com/")
    await trio.sleep(pause)
    await get(served, "http://example.com/")
    assert connections == (1 if reused else 2)
    served.abort()


async def test_what_many_calls_opened_is_kept_while_it_is_used_and_closed_afterwards(
    autojump_clock: MockClock,
) -> None:
    served = in_memory(lambda request: httpx.Response(200, content=b"ok"))
    assert isinstance(served, Pool)
    url = Url.parse("http://example.com/")
    held = [await served.request("POST", url, HEADERS, b"{}") for _ in range(MAX_IDLE + 5)]
    for each in held:
        while await each.read():
            pass
    assert len(served._idle) == MAX_IDLE + 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.close_idle)
        await trio.sleep(BURST_EXPIRY + 0.1)
        assert len(served._idle) == MAX_IDLE
        await trio.sleep(50)
        await get(served, "http://example.com/")
        assert len(served._idle) == MAX_IDLE
        await trio.sleep(12)
        assert len(served._idle) == 1
        await trio.sleep(IDLE_EXPIRY)
        assert not served._idle
        await get(served, "http://example.com/")
        await trio.sleep(IDLE_EXPIRY + BURST_EXPIRY)
        assert not served._idle
        nursery.cancel_scope.cancel()
    served.abort()


async def test_a_body_that_nobody_read_is_not_that_of_the_next_response() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(200, b"body %d" % len(server.heard))

    async with opened(script) as (pool, server):
        (await pool.request("POST", Url.parse(server.url), HEADERS, b"{}")).close()
        assert await get(pool, server.url) == (200, b"body 2")


async def test_the_end_closes_all_connections_also_those_in_use() -> None:
    closed = 0

    async def script(heard: Heard, wire: Wire) -> None:
        nonlocal closed
        if len(server.heard) == 1:
            await wire.begin()
        else:
            await wire.say(200, b"ok")
        await wire.wait_closed()
        closed += 1

    async with opened(script) as (pool, server):
        response = await pool.request("POST", Url.parse(server.url), HEADERS, b"{}")
        assert await get(pool, server.url) == (200, b"ok")
        assert closed == 0
        pool.abort()
        await until(lambda: closed == 2)
        response.close()


async def test_a_connection_that_is_there_is_taken_by_who_sends_and_reads_itself() -> None:
    async with opened(number_of_connection) as (pool, server):
        request = with_length(render_head("POST", Url.parse(server.url), HEADERS), b"{}")
        assert pool.take() is None
        assert await get(pool, server.url) == (200, b"1")
        for _ in range(2):
            connection = pool.take()
            assert connection is not None
            assert pool.take() is None
            assert connection.channel.send(*request) is None
            assert (await connection.channel.receive()).endswith(b"1")
            pool.release(connection)
        connection = pool.take()
        assert connection is not None
        assert connection.channel.send(*request) is None
        response = HttpResponse(await pool.read(connection))
        assert (response.status, await response.body()) == (200, b"1")
        assert server.connections == 1


async def test_a_connection_that_ends_instead_of_an_answer_is_told_by_who_reads_it() -> None:
    async with opened(leaving(2)) as (pool, server):
        assert await get(pool, server.url) == (200, b"1")
        connection = pool.take()
        assert connection is not None
        assert connection.channel.send(*with_length(render_head("POST", Url.parse(server.url), HEADERS), b"{}")) is None
        with pytest.raises(Broken) as problem:
            await pool.read(connection)
        assert not problem.value.unwritten
        assert await get(pool, server.url) == (200, b"3")


# --- what is sent again ----------------------------------------------------------------------------------------------


def leaving(at: int, *, also_new: bool = False) -> Script:
    """A server that takes request number `at` and closes the connection without an answer, and each later one too if
    `also_new`."""
    count = 0

    async def script(heard: Heard, wire: Wire) -> None:
        nonlocal count
        count += 1
        if count == at or (also_new and count > at):
            await wire.close()
        else:
            await wire.say(200, b"%d" % count)

    return script


async def test_a_request_that_only_reads_is_sent_once_more_if_a_kept_connection_ends_without_an_answer() -> None:
    async with opened(leaving(2)) as (pool, server):
        assert await get(pool, server.url, repeatable=True) == (200, b"1")
        assert await get(pool, server.url, repeatable=True) == (200, b"3")
        assert (len(server.heard), server.connections) == (3, 2)


async def test_a_request_that_may_do_something_is_never_sent_again() -> None:
    """Whether the server executed it is unknown (rule 38)."""
    async with opened(leaving(2)) as (pool, server):
        assert await get(pool, server.url) == (200, b"1")
        with pytest.raises(Broken):
            await get(pool, server.url)
        assert len(server.heard) == 2


async def test_it_is_sent_twice_at_the_most() -> None:
    """And only if the connection was not a new one (rule 38)."""
    async with opened(leaving(2, also_new=True)) as (pool, server):
        assert await get(pool, server.url, repeatable=True) == (200, b"1")
        with pytest.raises(Broken):
            await get(pool, server.url, repeatable=True)
        assert len(server.heard) == 3


async def test_on_a_new_connection_nothing_is_sent_twice() -> None:
    """A server that ends it has seen the request (rule 38)."""
    async with opened(leaving(1)) as (pool, server):
        with pytest.raises(Broken):
            await get(pool, server.url, repeatable=True)
        assert len(server.heard) == 1


async def test_a_response_that_began_is_not_asked_for_again() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        if len(server.heard) == 1:
            await wire.say(200, b"ok")
        else:
            await wire.write(b"H")
            await wire.close()

    async with opened(script) as (pool, server):
        await get(pool, server.url, repeatable=True)
        with pytest.raises(Broken):
            await get(pool, server.url, repeatable=True)
        assert len(server.heard) == 2


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        *(("tools/list", 2), ("resources/list", 2), ("resources/templates/list", 2), ("prompts/list", 2)),
        *(("resources/read", 2), ("prompts/get", 2), ("server/discover", 2)),
        *(("tools/call", 1), ("completion/complete", 1), ("resources/subscribe", 1), ("ping", 1), ("initialize", 1)),
    ],
)
async def test_which_requests_a_link_sends_again(method: str, sent: int) -> None:
    """Those that change nothing (rule 38)."""

    async def script(heard: Heard, wire: Wire) -> None:
        if len(server.heard) == 2:
            await wire.close()
        else:
            await wire.say(200, answer(len(server.heard) - (len(server.heard) > 2)))

    async with (
        serving(script) as server,
        open_origin(server.url, {}) as origin,
        open_http(origin, lambda *_: None) as link,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run, lambda message: None)
            await link.send(ask(1))
            if sent == 2:
                await link.send(ask(2, method))
            else:
                with pytest.raises(LinkLost, match="closed the connection"):
                    await link.send(ask(2, method))
            nursery.cancel_scope.cancel()
        assert len(server.heard) == 1 + sent
        assert len({each.body for each in server.heard[1:]}) == 1


# --- requests and responses ------------------------------------------------------------------------------------------


async def test_the_head_of_a_request() -> None:
    async with opened(number_of_connection) as (pool, server):
        for url, headers in (
            (server.url, [(b"A", b"1")]),
            (server.url, [(b"A", b"2"), (b"a", b"")]),
            (f"{server.url}&more=caf%C3%A9", [(b"A", b"2")]),
        ):
            response = await pool.request("POST", Url.parse(url), headers, b"{}")
            await HttpResponse(response).body()
        await HttpResponse(await pool.request("DELETE", Url.parse(server.url), [], None)).body()
        port = server.url.split(":")[2].split("/")[0]
        assert [each.target for each in server.heard] == ["/mcp?key=secret"] * 2 + [
            "/mcp?key=secret&more=caf%C3%A9",
            "/mcp?key=secret",
        ]
        assert [each.headers.get("a") for each in server.heard] == ["1", "", "2", None]
        assert {each.headers["host"] for each in server.heard} == {f"127.0.0.1:{port}"}
        assert [each.headers.get("content-length") for each in server.heard] == ["2", "2", "2", None]
        assert server.connections == 1


@pytest.mark.parametrize(
    "field", [(b"A", b"b\r\nC: d"), (b"A", b"b\nc"), (b"A\r\nB", b"c"), (b"A", b"\0"), (b"", b"x")]
)
async def test_a_header_that_would_be_another_one_is_not_sent(field: tuple[bytes, bytes]) -> None:
    async with opened(number_of_connection) as (pool, server):
        with pytest.raises(LinkLost):
            await pool.request("POST", Url.parse(server.url), [field], b"{}")
        assert server.heard == []


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_json_whose_end_only_the_connection_shows_is_an_error(version: bytes) -> None:
    """Unless it is complete: half of a response is not."""
    whole = answer()

    async def script(heard: Heard, wire: Wire) -> None:
        body = whole[: len(whole) - len(server.heard) + 1]
        await wire.write(b"HTTP/%b 200 OK\r\nContent-Type: application/json\r\n\r\n%b" % (version, body))
        await wire.close()

    async with opened(script) as (pool, server):
        assert (await get(pool, server.url))[1] == whole
        with pytest.raises(Broken, match="how long"):
            await get(pool, server.url)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nbytes of x",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nA: \0\r\nContent-Length: 3\r\n\r\nabc",
        b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 099 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000 + b"\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;" + b"x" * 200_000 + b"\r\nabc\r\n0\r\n\r\n",
    ],
)
async def test_a_response_that_is_not_clear_fails_its_request(said: bytes) -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        if len(server.heard) == 1:
            await wire.write(said)
            await wire.close()
        else:
            await wire.say(200, b"ok")

    async with opened(script) as (pool, server):
        with pytest.raises(Broken, match=r"does not speak HTTP|connection broke"):
            await get(pool, server.url)
        assert await get(pool, server.url) == (200, b"ok")
        assert server.connections == 2


async def test_connecting_has_a_limit_of_time(autojump_clock: MockClock) -> None:
    async def never(url: Url) -> ByteChannel:
        await trio.sleep_forever()
        raise AssertionError

    began = trio.current_time()
    with pytest.raises(Unreachable, match=r"^it cannot be reached: timed out after 10 s$"):
        await get(Pool(Turns(), never), "http://example.com/")
    assert trio.current_time() - began == pytest.approx(10)


# --- TLS and proxies -------------------------------------------------------------------------------------------------


async def answer_all(stream: trio.abc.Stream, number: int, heard: list[Heard] | None = None) -> None:
    wire = Wire(stream, number)
    while (request := await wire.hear()) is not None:
        if heard is not None:
            heard.append(request)
        await wire.say(200, b"%d" % number + b"x" * 100_000)


async def test_what_waits_over_tls_ends_when_all_connections_are_aborted(
    tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    context, file = server_settings(tmp_path, "127.0.0.1")
    trusting(file)
    begun, ended = trio.Event(), trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        await Wire(trio.SSLStream(stream, context, server_side=True, https_compatible=True), 1).hear()
        begun.set()
        await trio.sleep_forever()

    async def wait(pool: Pool, url: str) -> None:
        with pytest.raises(Broken):
            await get(pool, url)
        ended.set()

    async with serving_tcp(serve) as port, trio.open_nursery() as nursery:
        pool = Pool(Turns())
        nursery.start_soon(wait, pool, f"https://127.0.0.1:{port}/")
        await begun.wait()
        pool.abort()
        with trio.fail_after(5):
            await ended.wait()
        pool.abort()


async def test_calls_over_tls_on_one_connection(tmp_path: Path, trusting: Callable[[Path], None]) -> None:
    context, file = server_settings(tmp_path, "127.0.0.1")
    trusting(file)
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        await answer_all(trio.SSLStream(stream, context, server_side=True, https_compatible=True), connections)

    async with serving_tcp(serve) as port:
        pool = Pool(Turns())
        for _ in range(3):
            status, body = await get(pool, f"https://127.0.0.1:{port}/mcp", body=b"{}" * 100_000)
            assert (status, body[:2], len(body)) == (200, b"1x", 100_001)
        pool.abort()
    assert connections == 1


@pytest.mark.parametrize("waits_for", ["the response", "the rest of the body", "the request to be read"])
async def test_what_waits_at_a_connection_ends_when_all_are_aborted(waits_for: str) -> None:
    begun, ended = trio.Event(), trio.Event()

    async def script(heard: Heard, wire: Wire) -> None:
        if waits_for == "the rest of the body":
            await wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun")
        begun.set()
        await trio.sleep_forever()

    async def serve(stream: trio.SocketStream) -> None:
        begun.set()
        await trio.sleep_forever()

    async def wait(pool: Pool, url: str) -> None:
        with pytest.raises(Broken):
            await get(pool, url, body=b"x" * 20_000_000 if waits_for == "the request to be read" else b"{}")
        ended.set()

    async with opened(script) as (pool, server), serving_tcp(serve) as deaf, trio.open_nursery() as nursery:
        url = f"http://127.0.0.1:{deaf}/" if waits_for == "the request to be read" else server.url
        nursery.start_soon(wait, pool, url)
        await begun.wait()
        await trio.sleep(0.05)
        assert not ended.is_set()
        pool.abort()
        with pytest.raises(Broken):
            await get(pool, server.url)
        with trio.fail_after(5):
            await ended.wait()
        assert len(server.heard) <= 1


async def test_a_connection_ends_if_it_is_cancelled_to_discard_its_response() -> None:
    ended = trio.Event()

    async def script(heard: Heard, wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun")
        await wire.wait_closed()
        ended.set()

    async with opened(script) as (pool, server):
        response = HttpResponse(await pool.request("GET", Url.parse(server.url), [], None))
        with trio.CancelScope() as scope:
            scope.cancel()
            await response.discard()
        with trio.fail_after(5):
            await ended.wait()


async def test_connecting_ends_when_all_connections_are_aborted(autojump_clock: MockClock) -> None:
    async def connect(url: Url) -> ByteChannel:
        await trio.sleep_forever()
        raise AssertionError

    pool = Pool(Turns(), connect)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(Broken, match="the connection broke") as broken:  # and not that it timed out
                await get(pool, "http://example.com/")
            assert broken.value.unwritten

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        pool.abort()
    assert trio.current_time() == began


async def test_a_connection_that_is_made_as_all_are_aborted_is_not_used() -> None:
    ours, theirs = socket.socketpair()

    async def connect(url: Url) -> ByteChannel:
        await trio.lowlevel.checkpoint()
        pool.abort()  # another task that runs between the end of the wait and this one
        return PlainChannel(ours)

    pool = Pool(Turns(), connect)
    with theirs, pytest.raises(Broken) as broken:
        await get(pool, "http://example.com/")
    assert broken.value.unwritten
    assert ours.fileno() == -1


@pytest.mark.parametrize("trusts", [True, False])
async def test_a_certificate_is_checked(trusts: bool, tmp_path: Path, trusting: Callable[[Path], None]) -> None:
    context, file = server_settings(tmp_path, "other.example")
    if trusts:
        trusting(file)
    else:
        (tmp_path / "more").mkdir()
        trusting(server_settings(tmp_path / "more", "127.0.0.1")[1])

    async def serve(stream: trio.SocketStream) -> None:
        await trio.SSLStream(stream, context, server_side=True).do_handshake()

    async with serving_tcp(serve) as port:
        pool = Pool(Turns())
        why = "the certificate is for another name" if trusts else "certificate not trusted"
        with pytest.raises(Unreachable, match=f"TLS: {why}"):
            await get(pool, f"https://127.0.0.1:{port}/")
        pool.abort()


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
async def test_authorities_that_cannot_be_read_are_named(
    content: bytes | None, tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_bytes(content)
    trusting(file)

    async def serve(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with serving_tcp(serve) as port:
        pool = Pool(Turns())
        with pytest.raises(Unreachable, match="SSL_CERT_FILE is not a file with certificates") as caught:
            await get(pool, f"https://127.0.0.1:{port}/")
        assert caught.value.remedy == "correct SSL_CERT_FILE"
        pool.abort()


@pytest.mark.parametrize("how", ["politely", "abruptly"])
async def test_a_tls_connection_that_the_server_closed_is_replaced(
    how: str, tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    context, file = server_settings(tmp_path, "127.0.0.1")
    trusting(file)
    connections, closed = 0, trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        wire = Wire(secured, connections)
        await wire.hear()
        await wire.say(200, b"%d" % connections)
        await (secured.aclose() if how == "politely" else stream.aclose())
        closed.set()

    async with serving_tcp(serve) as port:
        pool = Pool(Turns())
        assert await get(pool, f"https://127.0.0.1:{port}/") == (200, b"1")
        await closed.wait()
        await trio.sleep(0.01)
        assert await get(pool, f"https://127.0.0.1:{port}/") == (200, b"2")
        pool.abort()


class Held(trio.abc.Stream):
    """A stream that sends everything in one piece when it is told to."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.held: bytearray | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.held is None:
            await self._stream.send_all(data)
        else:
            self.held += data

    async def release(self) -> None:
        assert self.held is not None
        data, self.held = self.held, None
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        return


@pytest.mark.parametrize("what", ["nothing", "a response", "the end of TLS"])
async def test_a_tls_connection_with_unread_records_is_not_used(
    what: str, tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    """Something came with the last record of the response, and its bytes were read from the socket together: a response
    to no request would be taken for that to the next one."""
    context, file = server_settings(tmp_path, "127.0.0.1")
    trusting(file)
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        number, held = connections, Held(stream)
        secured = trio.SSLStream(held, context, server_side=True)
        wire = Wire(secured, number)
        while await wire.hear() is not None:
            held.held = bytearray()
            await wire.say(200, b"%d" % number)
            if what == "a response":
                await wire.say(408, b"nobody asked")
            elif what == "the end of TLS":
                await secured.aclose()  # its end only: the stream below is open
            await held.release()
            if what == "the end of TLS":
                await trio.sleep_forever()

    async with serving_tcp(serve) as port:
        with trio.fail_after(4):
            pool = Pool(Turns())
            assert await get(pool, f"https://127.0.0.1:{port}/") == (200, b"1")
            expected = b"1" if what == "nothing" else b"2"
            assert await get(pool, f"https://127.0.0.1:{port}/") == (200, expected)
            pool.abort()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_tunnel_through_a_proxy(
    scheme: str, tmp_path: Path, trusting: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy learns where to connect and who asks, and nothing of the request."""
    context, file = server_settings(tmp_path, "127.0.0.1", "mcp.example.com")
    trusting(file)
    asked: list[Heard] = []
    heard: list[Heard] = []

    async def serve(outer: trio.abc.Stream) -> None:
        await answer_all(trio.SSLStream(outer, context, server_side=True, https_compatible=True), 1, heard)

    async with serving_tcp(tunnelling(context, scheme, asked, serve)) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:p%40ss@127.0.0.1:{port}")
        pool = Pool(Turns())
        for _ in range(2):
            status, body = await get(pool, "https://mcp.example.com/mcp?key=secret")
            assert (status, len(body)) == (200, 100_001)
        pool.abort()
    (request,) = asked
    assert (request.method, request.target, request.headers["host"]) == (
        "CONNECT",
        "mcp.example.com:443",
        "mcp.example.com:443",
    )
    assert request.headers["proxy-authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert {each.target for each in heard} == {"/mcp?key=secret"}
    assert all("proxy-authorization" not in each.headers for each in heard)


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 407 X\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 502 X\r\n\r\n", b"", b"no\r\n"]
)
async def test_a_proxy_that_opens_no_tunnel(
    said: bytes, trusting: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await Wire(stream, 1).hear()
        await stream.send_all(said)
        await stream.aclose()

    async with serving_tcp(serve) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        pool = Pool(Turns())
        why = r"its proxy wants credentials \(HTTP 407\)" if b"407" in said else "its proxy opened no connection to it"
        with pytest.raises(LinkLost, match=why):
            await get(pool, "https://mcp.example.com/")
        pool.abort()


async def test_a_proxy_that_cannot_be_used_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    pool = Pool(Turns())
    with pytest.raises(Unreachable, match="HTTPS_PROXY is not the URL of an HTTP proxy"):
        await get(pool, "https://mcp.example.com/")
    pool.abort()


@pytest.mark.parametrize(
    ("proxy", "why"),
    [("http://127.0.0.1:1", "connection refused"), ("http://proxy.invalid:80", "name not found")],
)
async def test_a_proxy_that_is_away_is_not_taken_for_the_server(
    proxy: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    pool = Pool(Turns())
    with pytest.raises(Unreachable, match=f"^it cannot be reached: its proxy cannot be reached: {why}") as caught:
        await get(pool, "https://mcp.example.com/")
    assert caught.value.remedy == "start the proxy, or correct HTTPS_PROXY or NO_PROXY"
    pool.abort()


async def test_this_machine_is_reached_without_a_proxy(
    tmp_path: Path, trusting: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, file = server_settings(tmp_path, "127.0.0.1")
    trusting(file)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    async def serve(stream: trio.SocketStream) -> None:
        await answer_all(trio.SSLStream(stream, context, server_side=True, https_compatible=True), 1)

    async with serving_tcp(serve) as port:
        pool = Pool(Turns())
        assert (await get(pool, f"https://127.0.0.1:{port}/"))[0] == 200
        pool.abort()
