"""One request over a connection of its own: where it goes, what it says there, and how much of an answer is read."""

from __future__ import annotations

import gc
import logging
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from host.url import Url
from host.wire.http_errors import Broken, Unreachable
from host.wire.http_pool import Headers
from host.wire.link import LinkLost
from host.wire.single_request import send
from tests.host.wire.http_servers import Heard, Wire, serving, serving_tcp, tunnelling
from tests.kit.certificates import server_settings

HEADERS: Headers = [(b"X-Key", b"hidden")]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def over_tls(context: ssl.SSLContext, heard: list[Heard]) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    """A server that answers one request."""

    async def serve(stream: trio.abc.Stream) -> None:
        wire = Wire(trio.SSLStream(stream, context, server_side=True, https_compatible=True), 1)
        request = await wire.hear()
        assert request is not None
        heard.append(request)
        await wire.say(200, b"ok")

    return serve


@pytest.mark.slow
def test_a_host_imports_httpx_only_for_a_request() -> None:
    """The import takes 45 ms, and h11 comes with it."""
    code = "import sys, host.app; print(sorted({'httpx', 'httpcore'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "target", ["/", "/a?key=secret", "/a%2Fb/./../c?d=%7e%20'\"", "/?", "//a", "/a;b=(c)*!$&,:@|^`{}[]~", "/%C3%A9?%zz"]
)
async def test_the_request(target: str) -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(201, b"answer", x="y")

    async with serving(script) as server:
        url = Url.parse(server.url).join(target if target != "//a" else "/.//a")
        answer = await send("POST", url, HEADERS, b"body", limit=100)
        assert answer == (201, b"answer", True)
        assert await send("GET", url, HEADERS, None, limit=100) == answer
        (post, get) = server.heard
        assert (post.method, post.target, post.body) == ("POST", url.target, b"body")
        assert post.headers == {"host": url.authority, "x-key": "hidden", "content-length": "4"}
        assert (get.method, get.target, get.headers) == ("GET", url.target, {"host": url.authority, "x-key": "hidden"})


async def test_the_given_address_is_connected_to_under_the_name_of_the_url(
    tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    context, file = server_settings(tmp_path, "login.example")
    trusting(file)
    heard: list[Heard] = []
    names: list[str] = []
    context.sni_callback = lambda connection, name, _: names.append(name)
    async with serving_tcp(over_tls(context, heard)) as port:
        url = Url.parse(f"https://login.example:{port}/token?a=b")
        assert (await send("GET", url, HEADERS, None, limit=10, address="127.0.0.1")).body == b"ok"
        assert (heard[0].headers["host"], heard[0].target) == (f"login.example:{port}", "/token?a=b")
        assert names == ["login.example"]


@pytest.mark.parametrize("names", [["other.example"], ["127.0.0.1"]])
async def test_a_certificate_is_for_the_name_and_not_for_the_address(
    names: list[str], tmp_path: Path, trusting: Callable[[Path], None]
) -> None:
    context, file = server_settings(tmp_path, *names)
    trusting(file)
    heard: list[Heard] = []
    async with serving_tcp(failing_tls(context)) as port:
        url = Url.parse(f"https://login.example:{port}/")
        with pytest.raises(Unreachable, match="the certificate is for another name"):
            await send("GET", url, HEADERS, None, address="127.0.0.1")
    assert heard == []


def failing_tls(context: ssl.SSLContext) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    async def serve(stream: trio.abc.Stream) -> None:
        await trio.SSLStream(stream, context, server_side=True).do_handshake()
        raise AssertionError("the client went on")

    return serve


async def test_a_certificate_that_nobody_trusts(tmp_path: Path) -> None:
    context, _ = server_settings(tmp_path, "127.0.0.1")
    async with serving_tcp(failing_tls(context)) as port:
        with pytest.raises(Unreachable, match="TLS: certificate not trusted"):
            await send("GET", Url.parse(f"https://127.0.0.1:{port}/"), HEADERS, None)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_tunnel_through_a_proxy(
    scheme: str, tmp_path: Path, trusting: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy learns where to connect and who asks, and nothing of the request."""
    context, file = server_settings(tmp_path, "127.0.0.1", "login.example")
    trusting(file)
    asked: list[Heard] = []
    heard: list[Heard] = []

    async with serving_tcp(tunnelling(context, scheme, asked, over_tls(context, heard))) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:p%40ss@127.0.0.1:{port}")
        answer = await send("GET", Url.parse("https://login.example/a?key=secret"), HEADERS, None, limit=10)
        assert answer.body == b"ok"
    (request,) = asked
    assert (request.method, request.target) == ("CONNECT", "login.example:443")
    assert request.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
    assert "x-key" not in request.headers
    assert heard[0].target == "/a?key=secret"
    assert "proxy-authorization" not in heard[0].headers


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 407 X\r\nContent-Length: 0\r\n\r\n", r"its proxy wants credentials \(HTTP 407\)"),
        (b"HTTP/1.1 502 X\r\n\r\n", "its proxy opened no connection to it"),
        (b"", "does not speak HTTP"),
        (b"no\r\n", "does not speak HTTP"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel(said: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await Wire(stream, 1).hear()
        await stream.send_all(said)
        await stream.aclose()

    async with serving_tcp(serve) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(LinkLost, match=why):
            await send("GET", Url.parse("https://login.example/"), HEADERS, None)


@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        ("http://127.0.0.1:1", "its proxy cannot be reached: connection refused"),
        ("socks5://127.0.0.1:1", "HTTPS_PROXY is not the URL of an HTTP proxy"),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_not_left_out(
    proxy: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(Unreachable, match=f"^it cannot be reached: {why}"):
        await send("GET", Url.parse("https://login.example/"), HEADERS, None)


async def test_no_other_variable_of_the_environment_names_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one apply to plain HTTP, or to an address that was given."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(200, b"ok")

    async with serving(script) as server:
        assert (await send("GET", Url.parse(server.url), HEADERS, None)).status == 200
    with pytest.raises(Unreachable, match="connection refused"):
        await send("GET", Url.parse("https://login.example:1/"), HEADERS, None, address="127.0.0.1")


async def test_a_redirect_is_an_answer_like_any_other() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(307, b"", location="/other")

    async with serving(script) as server:
        assert (await send("POST", Url.parse(server.url), HEADERS, b"{}")).status == 307
        assert server.methods == ["POST"]


@pytest.mark.parametrize("ends", ["at once", "before the end", "as something else"])
async def test_an_exchange_that_breaks_is_one_of_few_sentences(ends: str) -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        if ends == "before the end":
            await wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        elif ends == "as something else":
            await wire.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        await wire.close()

    async with serving(script) as server:
        why = "^it closed the connection before the end of the response, or does not speak HTTP$"
        with pytest.raises(Broken, match=why):
            await send("GET", Url.parse(server.url), HEADERS, None, limit=10)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_request_that_is_cancelled_closes_its_connection_at_once(scheme: str) -> None:
    """Also in a handshake of TLS, where httpx leaves that to the garbage collector."""
    begun, ended = trio.Event(), trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        begun.set()
        while await stream.receive_some():
            pass
        ended.set()

    gc.disable()
    try:
        async with serving_tcp(silent) as port, trio.open_nursery() as nursery:
            url = Url.parse(f"{scheme}://login.example:{port}/")
            nursery.start_soon(partial(send, "GET", url, HEADERS, None, address="127.0.0.1"))
            await begun.wait()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(5):
                await ended.wait()
    finally:
        gc.enable()


@pytest.mark.parametrize("host", [".login.example", "a" * 300])
async def test_a_name_that_tls_cannot_have(host: str) -> None:
    async with serving_tcp(failing_tls(ssl.create_default_context())) as port:
        with pytest.raises(Unreachable):
            await send("GET", Url.parse(f"https://{host}:{port}/"), HEADERS, None, address="127.0.0.1")


@pytest.mark.parametrize("chunked", [True, False])
async def test_of_a_long_body_no_more_is_read_than_is_wanted(chunked: bool) -> None:
    """And nothing is left behind: what is collected would be told as a warning, which is an error here."""
    sent = 0

    async def script(heard: Heard, wire: Wire) -> None:
        nonlocal sent
        if chunked:
            await wire.begin()
        else:
            await wire.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await (wire.chunk(b"x" * 1000) if chunked else wire.write(b"x" * 1000))
            sent += 1000

    async with serving(script) as server:
        answer = await send("GET", Url.parse(server.url), HEADERS, None, limit=20_000)
        assert 20_000 < len(answer.body) < 120_000
        assert answer.has_length is chunked
    gc.collect()


async def test_a_body_that_nobody_wants_is_not_waited_for() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 204 No Content\r\n\r\n" if heard.method == "GET" else b"HTTP/1.1 200 OK\r\n\r\nx")
        await trio.sleep_forever()

    async with serving(script) as server:
        with trio.fail_after(5):
            assert await send("POST", Url.parse(server.url), HEADERS, b"{}") == (200, b"", False)
            assert await send("GET", Url.parse(server.url), HEADERS, None) == (204, b"", True)
    gc.collect()


@pytest.mark.parametrize(
    ("head", "noise", "count"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 2_000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 4_000),
    ],
    ids=["chunks", "interim responses"],
)
async def test_others_run_while_useless_bytes_are_read(head: bytes, noise: bytes, count: int) -> None:
    """A pass has at most 128 chunks, or what a small buffer of the system holds."""
    last = b"0\r\n\r\n" if head else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    passes = 0

    async def others() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async def script(heard: Heard, wire: Wire) -> None:
        await wire.write(head + noise * count + last)

    async with serving(script) as server, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await send("GET", Url.parse(server.url), HEADERS, None, limit=100_000)
        nursery.cancel_scope.cancel()
    assert passes >= (count / 128 if head else len(noise) * count / 16_384)


async def test_nothing_of_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def script(heard: Heard, wire: Wire) -> None:
        await wire.say(200, b"ok", x_secret="s")

    async with serving(script) as server:
        await send("GET", Url.parse(server.url), HEADERS, None)
    assert [each.name for each in caplog.records if each.name.startswith("http")] == []
