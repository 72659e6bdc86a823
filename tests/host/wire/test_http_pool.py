"""Connections that are kept for the next request: which one is used, when one is given up, and what is sent twice."""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import product
from pathlib import Path

import httpx
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from trio.testing import MockClock

from host.url import Url
from host.wire import http_pool
from host.wire.http_client import open_http
from host.wire.http_connection import ByteChannel, PlainChannel
from host.wire.http_errors import Broken, Unreachable
from host.wire.http_pool import BURST_EXPIRY, IDLE_EXPIRY, MAX_HEADS, MAX_IDLE, Pool, tls_context
from host.wire.http_transport import HttpResponse, Transport
from host.wire.link import LinkLost
from host.wire.turns import Turns
from tests.host.wire.http_servers import (
    BOTH_CLIENTS,
    Heard,
    Script,
    Server,
    Wire,
    answer,
    ask,
    in_memory,
    only,
    serving,
    serving_tcp,
    transport,
    until,
)

HEADERS = [(b"Accept", b"*/*")]


async def get(pool: Transport, url: str, *, repeatable: bool = False, body: bytes | None = b"{}") -> tuple[int, bytes]:
    method = "GET" if body is None else "POST"
    response = HttpResponse(await pool.request(method, Url.parse(url), HEADERS, body, repeatable=repeatable))
    return response.status, await response.body()


@asynccontextmanager
async def opened(script: Script) -> AsyncIterator[tuple[Transport, Server]]:
    """A server, and connections to it."""
    async with serving(script) as server:
        pool = transport()
        try:
            yield pool, server
        finally:
            await pool.aclose()


async def number_of_connection(heard: Heard, wire: Wire) -> None:
    await wire.say(200, b"%d" % wire.number)


# --- which connection ------------------------------------------------------------------------------------------------


@only("built-in")
async def test_the_connection_that_was_used_last_is_used_first() -> None:
    """Those that a burst needed grow old, and are given up."""
    async with opened(number_of_connection) as (pool, server):
        url = Url.parse(server.url)
        held = [await pool.request("POST", url, HEADERS, b"{}") for _ in range(3)]
        assert [await each.read() for each in held] == [b"1", b"2", b"3"]
        for each in (held[0], held[2], held[1]):
            await each.aclose()
        assert [(await get(pool, server.url))[1] for _ in range(3)] == [b"2"] * 3
        assert server.connections == 3


@BOTH_CLIENTS
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


@pytest.mark.parametrize(
    ("client", "how"),
    [("built-in", "closes"), ("httpx", "closes"), ("built-in", "sends something")],
    indirect=["client"],
)
async def test_a_connection_on_which_the_server_did_something_meanwhile_is_not_used(how: str, client: str) -> None:
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


@BOTH_CLIENTS
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
async def test_when_a_connection_is_used_again(head: bytes, reused: bool, client: str) -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await (wire.write(head) if len(server.heard) == 1 else wire.say(200, b"ok"))

    async with opened(script) as (pool, server):
        await HttpResponse(await pool.request("POST", Url.parse(server.url), HEADERS, b"{}")).discard()
        if client == "httpx" and head.endswith(b"body"):
            return  # h11 takes the body for the beginning of the next response, which fails
        assert await get(pool, server.url) == (200, b"ok")
        assert server.connections == (1 if reused else 2)


@only("built-in")
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
    await served.aclose()


@only("built-in")
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
    await served.aclose()


@BOTH_CLIENTS
async def test_a_body_that_nobody_read_is_not_that_of_the_next_response() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(200, b"body %d" % len(server.heard))

    async with opened(script) as (pool, server):
        await (await pool.request("POST", Url.parse(server.url), HEADERS, b"{}")).aclose()
        assert await get(pool, server.url) == (200, b"body 2")


@BOTH_CLIENTS
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
        await pool.aclose()
        await until(lambda: closed == 2)
        await response.aclose()


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


@only("built-in")
async def test_a_request_that_only_reads_is_sent_once_more_if_a_kept_connection_ends_without_an_answer() -> None:
    async with opened(leaving(2)) as (pool, server):
        assert await get(pool, server.url, repeatable=True) == (200, b"1")
        assert await get(pool, server.url, repeatable=True) == (200, b"3")
        assert (len(server.heard), server.connections) == (3, 2)


@BOTH_CLIENTS
async def test_a_request_that_may_do_something_is_never_sent_again(client: str) -> None:
    """Whether the server executed it is unknown (rule 38)."""
    async with opened(leaving(2)) as (pool, server):
        assert await get(pool, server.url) == (200, b"1")
        with pytest.raises(Broken):
            await get(pool, server.url)
        assert len(server.heard) == 2


@BOTH_CLIENTS
async def test_it_is_sent_twice_at_the_most(client: str) -> None:
    """Only by the built-in client, which knows that the connection was not a new one (rule 38)."""
    async with opened(leaving(2, also_new=True)) as (pool, server):
        assert await get(pool, server.url, repeatable=True) == (200, b"1")
        with pytest.raises(Broken):
            await get(pool, server.url, repeatable=True)
        assert len(server.heard) == (3 if client == "built-in" else 2)


@BOTH_CLIENTS
async def test_on_a_new_connection_nothing_is_sent_twice() -> None:
    """A server that ends it has seen the request (rule 38)."""
    async with opened(leaving(1)) as (pool, server):
        with pytest.raises(Broken):
            await get(pool, server.url, repeatable=True)
        assert len(server.heard) == 1


@BOTH_CLIENTS
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


@only("built-in")
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

    async with serving(script) as server, open_http(server.url, {}, lambda *_: None) as link:
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


@BOTH_CLIENTS
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


@BOTH_CLIENTS
@pytest.mark.parametrize(
    "field", [(b"A", b"b\r\nC: d"), (b"A", b"b\nc"), (b"A\r\nB", b"c"), (b"A", b"\0"), (b"", b"x")]
)
async def test_a_header_that_would_be_another_one_is_not_sent(field: tuple[bytes, bytes]) -> None:
    async with opened(number_of_connection) as (pool, server):
        with pytest.raises(LinkLost):
            await pool.request("POST", Url.parse(server.url), [field], b"{}")
        assert server.heard == []


@BOTH_CLIENTS
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_json_whose_end_only_the_connection_shows_is_an_error(version: bytes) -> None:
    """It could as well be half of the response."""

    async def script(heard: Heard, wire: Wire) -> None:
        await wire.write(b"HTTP/%b 200 OK\r\nContent-Type: application/json\r\n\r\n%b" % (version, answer()))
        await wire.close()

    async with opened(script) as (pool, server):
        with pytest.raises(Broken, match="how long"):
            await get(pool, server.url)


@BOTH_CLIENTS
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


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """The settings of a server with a certificate for these names, and the file to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    alternatives: list[x509.GeneralName] = []
    for each in names:
        try:
            alternatives.append(x509.IPAddress(ip_address(each)))
        except ValueError:
            alternatives.append(x509.DNSName(each))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    pem = made.public_bytes(serialization.Encoding.PEM)
    file.write_bytes(pem)
    whole = folder / "server.pem"
    whole.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + pem
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(whole)
    return context, file


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Trusts a certificate as a person would have Colonnade do it."""
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)

    def trust(file: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        tls_context.cache_clear()

    monkeypatch.setattr(http_pool, "tls_context", tls_context)  # so that the cache is cleared after the test, too
    return trust


async def answer_all(stream: trio.abc.Stream, number: int, heard: list[Heard] | None = None) -> None:
    wire = Wire(stream, number)
    while (request := await wire.hear()) is not None:
        if heard is not None:
            heard.append(request)
        await wire.say(200, b"%d" % number + b"x" * 100_000)


@BOTH_CLIENTS
async def test_what_waits_over_tls_ends_when_all_connections_are_aborted(
    tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    context, file = certificate(tmp_path, "127.0.0.1")
    trusting(file)
    begun, ended = trio.Event(), trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        await Wire(trio.SSLStream(stream, context, server_side=True, https_compatible=True), 1).hear()
        begun.set()
        await trio.sleep_forever()

    async def wait(pool: Transport, url: str) -> None:
        with pytest.raises(Broken):
            await get(pool, url)
        ended.set()

    async with serving_tcp(serve) as port, trio.open_nursery() as nursery:
        pool = transport()
        nursery.start_soon(wait, pool, f"https://127.0.0.1:{port}/")
        await begun.wait()
        pool.abort()
        with trio.fail_after(5):
            await ended.wait()
        await pool.aclose()


@BOTH_CLIENTS
async def test_calls_over_tls_on_one_connection(tmp_path: Path, trusting: Callable[[Path], None]) -> None:
    context, file = certificate(tmp_path, "127.0.0.1")
    trusting(file)
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        await answer_all(trio.SSLStream(stream, context, server_side=True, https_compatible=True), connections)

    async with serving_tcp(serve) as port:
        pool = transport()
        for _ in range(3):
            status, body = await get(pool, f"https://127.0.0.1:{port}/mcp", body=b"{}" * 100_000)
            assert (status, body[:2], len(body)) == (200, b"1x", 100_001)
        await pool.aclose()
    assert connections == 1


@pytest.mark.parametrize(
    ("client", "waits_for"),
    [
        ("built-in", "the response"),
        ("httpx", "the response"),
        ("built-in", "the rest of the body"),
        ("httpx", "the rest of the body"),
        ("built-in", "the request to be read"),  # httpx leaves its generator of the body open
    ],
    indirect=["client"],
)
async def test_what_waits_at_a_connection_ends_when_all_are_aborted(waits_for: str, client: str) -> None:
    begun, ended = trio.Event(), trio.Event()

    async def script(heard: Heard, wire: Wire) -> None:
        if waits_for == "the rest of the body":
            await wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun")
        begun.set()
        await trio.sleep_forever()

    async def serve(stream: trio.SocketStream) -> None:
        begun.set()
        await trio.sleep_forever()

    async def wait(pool: Transport, url: str) -> None:
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


@BOTH_CLIENTS
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


@only("built-in")
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


@only("built-in")
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


@BOTH_CLIENTS
@pytest.mark.parametrize("trusts", [True, False])
async def test_a_certificate_is_checked(trusts: bool, tmp_path: Path, trusting: Callable[[Path], None]) -> None:
    context, file = certificate(tmp_path, "other.example")
    if trusts:
        trusting(file)
    else:
        (tmp_path / "more").mkdir()
        trusting(certificate(tmp_path / "more", "127.0.0.1")[1])

    async def serve(stream: trio.SocketStream) -> None:
        await trio.SSLStream(stream, context, server_side=True).do_handshake()

    async with serving_tcp(serve) as port:
        pool = transport()
        why = "the certificate is for another name" if trusts else "certificate not trusted"
        with pytest.raises(Unreachable, match=f"TLS: {why}"):
            await get(pool, f"https://127.0.0.1:{port}/")
        await pool.aclose()


@BOTH_CLIENTS
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
        pool = transport()
        with pytest.raises(Unreachable, match="SSL_CERT_FILE is not a file with certificates") as caught:
            await get(pool, f"https://127.0.0.1:{port}/")
        assert caught.value.remedy == "correct SSL_CERT_FILE"
        await pool.aclose()


@BOTH_CLIENTS
@pytest.mark.parametrize("how", ["politely", "abruptly"])
async def test_a_tls_connection_that_the_server_closed_is_replaced(
    how: str, tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    context, file = certificate(tmp_path, "127.0.0.1")
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
        pool = transport()
        assert await get(pool, f"https://127.0.0.1:{port}/") == (200, b"1")
        await closed.wait()
        await trio.sleep(0.01)
        assert await get(pool, f"https://127.0.0.1:{port}/") == (200, b"2")
        await pool.aclose()


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


@only("built-in")
@pytest.mark.parametrize("what", ["nothing", "a response", "the end of TLS"])
async def test_a_tls_connection_with_unread_records_is_not_used(
    what: str, tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    """Something came with the last record of the response, and its bytes were read from the socket together: a response
    to no request would be taken for that to the next one."""
    context, file = certificate(tmp_path, "127.0.0.1")
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
            pool = transport()
            assert await get(pool, f"https://127.0.0.1:{port}/") == (200, b"1")
            expected = b"1" if what == "nothing" else b"2"
            assert await get(pool, f"https://127.0.0.1:{port}/") == (200, expected)
            await pool.aclose()


@BOTH_CLIENTS
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_tunnel_through_a_proxy(
    scheme: str, tmp_path: Path, trusting: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy learns where to connect and who asks, and nothing of the request."""
    context, file = certificate(tmp_path, "127.0.0.1", "mcp.example.com")
    trusting(file)
    asked: list[Heard] = []
    heard: list[Heard] = []

    async def serve(stream: trio.SocketStream) -> None:
        outer: trio.abc.Stream = stream
        if scheme == "https":
            outer = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        wire = Wire(outer, 1)
        request = await wire.hear()
        assert request is not None
        asked.append(request)
        await wire.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await answer_all(trio.SSLStream(outer, context, server_side=True, https_compatible=True), 1, heard)

    async with serving_tcp(serve) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:p%40ss@127.0.0.1:{port}")
        pool = transport()
        for _ in range(2):
            status, body = await get(pool, "https://mcp.example.com/mcp?key=secret")
            assert (status, len(body)) == (200, 100_001)
        await pool.aclose()
    (request,) = asked
    assert (request.method, request.target, request.headers["host"]) == (
        "CONNECT",
        "mcp.example.com:443",
        "mcp.example.com:443",
    )
    assert request.headers["proxy-authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert {each.target for each in heard} == {"/mcp?key=secret"}
    assert all("proxy-authorization" not in each.headers for each in heard)


@BOTH_CLIENTS
@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 407 X\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 502 X\r\n\r\n", b"", b"no\r\n"]
)
async def test_a_proxy_that_opens_no_tunnel(
    said: bytes, client: str, trusting: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await Wire(stream, 1).hear()
        await stream.send_all(said)
        await stream.aclose()

    async with serving_tcp(serve) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        pool = transport()
        # httpx does not tell a proxy that speaks no HTTP from a server that does not.
        why = "does not speak HTTP" if client == "httpx" and len(said) < 9 else "its proxy opened no connection to it"
        with pytest.raises(LinkLost, match=why):
            await get(pool, "https://mcp.example.com/")
        await pool.aclose()


@BOTH_CLIENTS
async def test_a_proxy_that_cannot_be_used_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    pool = transport()
    with pytest.raises(Unreachable, match="HTTPS_PROXY is not the URL of an HTTP proxy"):
        await get(pool, "https://mcp.example.com/")
    await pool.aclose()


@BOTH_CLIENTS
@pytest.mark.parametrize(
    ("proxy", "why"),
    [("http://127.0.0.1:1", "connection refused"), ("http://proxy.invalid:80", "name not found")],
)
async def test_a_proxy_that_is_away_is_not_taken_for_the_server(
    proxy: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    pool = transport()
    with pytest.raises(Unreachable, match=f"^it cannot be reached: its proxy cannot be reached: {why}") as caught:
        await get(pool, "https://mcp.example.com/")
    assert caught.value.remedy == "start the proxy, or correct HTTPS_PROXY or NO_PROXY"
    await pool.aclose()


@BOTH_CLIENTS
async def test_this_machine_is_reached_without_a_proxy(
    tmp_path: Path, trusting: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, file = certificate(tmp_path, "127.0.0.1")
    trusting(file)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    async def serve(stream: trio.SocketStream) -> None:
        await answer_all(trio.SSLStream(stream, context, server_side=True, https_compatible=True), 1)

    async with serving_tcp(serve) as port:
        pool = transport()
        assert (await get(pool, f"https://127.0.0.1:{port}/"))[0] == 200
        await pool.aclose()
