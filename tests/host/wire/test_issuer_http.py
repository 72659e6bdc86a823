"""Requests to an issuer: their limits, and the addresses that they never go to."""

from __future__ import annotations

import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from config import Zone
from host.oauth.problem import OAuthProblem
from host.oauth.token_forms import Form
from host.url import Url
from host.wire import issuer_http, single_request
from host.wire.http_errors import unreachable
from host.wire.issuer_http import MAX_DOCUMENT, IssuerHttp, IssuerUnreachable, find_home
from tests.host.wire.http_servers import Wire
from tests.kit.issuer import ISSUER_METADATA, open_issuer


class Names(trio.abc.HostnameResolver):
    """Answers for names as the test says, each time with the next answer."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the resolver's own word
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name.replace(".", "").isdigit() or ":" in name:
            raise AssertionError(f"{name} is an address, which is not looked up here")
        self.asked.append(name)
        answers = self._answers[name.partition(".")[0]]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in found]
        return [(kind, socket.SOCK_STREAM, 6, "", (each, port)) for kind, each in zip(families, found, strict=True)]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The hosts and addresses that connections were made to; each is refused."""
    made: list[tuple[str, str | None]] = []

    async def send(method: str, url: Url, *_: object, address: str | None, **__: object) -> Any:
        await trio.lowlevel.checkpoint()
        made.append((url.host, address))
        raise unreachable(ConnectionRefusedError())

    monkeypatch.setattr(single_request, "send", send)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    return made


@asynccontextmanager
async def answering(answer: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server that answers each request with these bytes, and knows no HTTP."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await Wire(stream, 1).hear()
            with suppress(trio.BrokenResourceError):
                await answer(stream)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        nursery.cancel_scope.cancel()


async def get(url: str, home: Zone = Zone.PUBLIC) -> bytes | None:
    return await IssuerHttp(home).get(Url.parse(url))


async def test_a_document_is_read() -> None:
    async with open_issuer() as issuer:
        found = await get(issuer.id + ISSUER_METADATA, Zone.LOOPBACK)
        assert found is not None
        assert issuer.id.encode() in found
        assert await get(f"{issuer.id}/nothing", Zone.LOOPBACK) is None
        assert issuer.asked[0].headers.one("authorization") is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with open_issuer() as issuer:
        issuer.documents["/moved"] = (status, {"location": ISSUER_METADATA}, b"")
        assert await get(f"{issuer.id}/moved", Zone.LOOPBACK) is None
        answer = await IssuerHttp(Zone.LOOPBACK).post(f"{issuer.id}/moved", Form([], b"code=secret"))
        assert answer.status == status
        assert [each.path for each in issuer.asked] == ["/moved", "/moved"]


@pytest.mark.parametrize("size", [MAX_DOCUMENT, MAX_DOCUMENT + 1])
async def test_a_document_has_a_limit(size: int) -> None:
    async with open_issuer() as issuer:
        document = b'"' + b"x" * (size - 2) + b'"'
        issuer.documents["/long"] = (200, {}, document)
        if size <= MAX_DOCUMENT:
            assert await get(f"{issuer.id}/long", Zone.LOOPBACK) == document
            return
        with pytest.raises(OAuthProblem, match="more than 64 KiB"):
            await get(f"{issuer.id}/long", Zone.LOOPBACK)


@pytest.mark.parametrize(
    "body",
    [
        b"<!doctype html><html></html>",
        b"",
        b"ok",
        b'{"issuer": "https://a',
        b"{'issuer': 1}",
        b'{"a": NaN}',
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf\r\n<html>" + b"x" * (2 * MAX_DOCUMENT),
    ],
)
async def test_what_is_not_json_is_no_document(body: bytes) -> None:
    """A web application answers each path with its page. Of a long one, the rest is not read."""
    async with open_issuer() as issuer:
        issuer.documents["/page"] = (200, {"content-type": "application/json"}, body)
        assert await get(f"{issuer.id}/page", Zone.LOOPBACK) is None


@pytest.mark.parametrize("body", [b"[]", b"null", b'"ok"', b"{}", b"[" * 60_000 + b"]" * 5, b" " * 70_000 + b"{"])
async def test_json_is_a_document_whatever_it_says(body: bytes) -> None:
    async with open_issuer() as issuer:
        issuer.documents["/json"] = (200, {"content-type": "text/html"}, body)
        if len(body) > MAX_DOCUMENT:
            with pytest.raises(OAuthProblem, match="more than 64 KiB"):
                await get(f"{issuer.id}/json", Zone.LOOPBACK)
        else:
            assert await get(f"{issuer.id}/json", Zone.LOOPBACK) == body


ENDLESS = [
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n"),
    (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1024),
    (b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 1024 + b"\r\n"),
    (b"HTTP/1.1 200 OK", b" OK" * 1024),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("head", "more"), ENDLESS)
async def test_an_answer_without_an_end_is_cut_off(head: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interim responses by time alone."""
    monkeypatch.setattr(issuer_http, "TIMEOUT", 0.5 if not head else issuer_http.TIMEOUT)
    sent = 0

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal sent
        await stream.send_all(head)
        while sent < 100 * MAX_DOCUMENT:
            await stream.send_all(more)
            sent += len(more)

    async with answering(answer) as url:
        with trio.fail_after(4), pytest.raises(OAuthProblem):
            await get(url, Zone.LOOPBACK)
    assert sent < 50 * MAX_DOCUMENT, "the rest of it is in the buffers of the system"


async def test_an_answer_that_comes_in_drops_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the whole answer, not of one read."""
    monkeypatch.setattr(issuer_http, "TIMEOUT", 0.3)

    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
        while True:
            await stream.send_all(b"x")
            await trio.sleep(0.02)

    async with answering(answer) as url:
        with trio.fail_after(4), pytest.raises(IssuerUnreachable, match="did not answer within"):
            await get(url, Zone.LOOPBACK)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_failing_issuer_may_answer_later(status: int) -> None:
    async with open_issuer() as issuer:
        issuer.documents["/x"] = (status, {}, b"a secret of the issuer")
        for asking in (
            get(f"{issuer.id}/x", Zone.LOOPBACK),
            IssuerHttp(Zone.LOOPBACK).post(f"{issuer.id}/x", Form([], b"")),
        ):
            with pytest.raises(IssuerUnreachable, match=f"HTTP {status}"):
                await asking


async def test_an_issuer_that_says_nothing_is_not_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> Any:
        await trio.sleep_forever()

    monkeypatch.setattr(single_request, "send", silent)
    trio.socket.set_custom_hostname_resolver(Names(login=[["93.184.216.34"]]))
    began = trio.current_time()
    http = IssuerHttp(Zone.PUBLIC)
    with pytest.raises(IssuerUnreachable, match="did not answer within 5 s"):
        await http.get(Url.parse("https://login.example/"))
    assert trio.current_time() - began == pytest.approx(issuer_http.TIMEOUT)


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://localhost/",
        "https://10.1.2.3/",
        "https://169.254.169.254/latest/",
        "https://[fd00::1]/",
        "https://[::ffff:169.254.169.254]/",
        "https://user@login.example/",
    ],
)
async def test_nothing_is_sent_to_an_address_that_is_not_permitted(
    url: str, connected: list[tuple[str, str | None]]
) -> None:
    with pytest.raises(OAuthProblem):
        await get(url)
    with pytest.raises(OAuthProblem):
        await IssuerHttp(Zone.PUBLIC).post(url, Form([], b"code=secret"))
    assert connected == []


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["93.184.216.34", "10.0.0.1"], ["fe80::1"]]
)
async def test_a_name_that_leads_inside_is_refused(
    addresses: list[str], connected: list[tuple[str, str | None]]
) -> None:
    """Also if only one of its addresses does (rule 40)."""
    trio.socket.set_custom_hostname_resolver(Names(login=[addresses]))
    with pytest.raises(OAuthProblem, match="nothing is sent there"):
        await get("https://login.example/")
    assert connected == []


@pytest.mark.parametrize("host", ["0x7f.1", "0x7f000001", "2130706433", "127.1", "017700000001", "0xa9fea9fe"])
async def test_an_address_in_another_spelling_is_refused(host: str, connected: list[tuple[str, str | None]]) -> None:
    """As the system itself reads it; nothing is looked up in the network."""
    with pytest.raises(OAuthProblem, match="nothing is sent there"):
        await get(f"https://{host}/")
    assert connected == []


async def test_a_name_is_looked_up_again_for_each_request(connected: list[tuple[str, str | None]]) -> None:
    """It led to a public address when the metadata were read, and leads inside when the code is sent."""
    trio.socket.set_custom_hostname_resolver(Names(login=[["93.184.216.34"], ["10.0.0.1"]]))
    with pytest.raises(IssuerUnreachable):
        await get("https://login.example/")
    with pytest.raises(OAuthProblem, match="nothing is sent there"):
        await IssuerHttp(Zone.PUBLIC).post("https://login.example/token", Form([], b"code=secret"))
    assert connected == [("login.example", "93.184.216.34")]


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    connected: list[tuple[str, str | None]],
) -> None:
    """A name that changes its address between the two is looked up once."""
    names = Names(login=[["93.184.216.34", "93.184.216.35"], ["127.0.0.1"]])
    trio.socket.set_custom_hostname_resolver(names)
    with pytest.raises(IssuerUnreachable):
        await get("https://login.example/")
    assert names.asked == ["login.example"]
    assert connected == [("login.example", "93.184.216.34"), ("login.example", "93.184.216.35")]


async def test_a_proxy_looks_names_up_itself(
    connected: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    trio.socket.set_custom_hostname_resolver(Names())
    with pytest.raises(IssuerUnreachable):
        await get("https://login.example/")
    with pytest.raises(OAuthProblem, match="private"):
        await get("https://10.0.0.1/")
    assert connected == [("login.example", None)]


@pytest.mark.parametrize(
    ("url", "addresses", "home"),
    [
        ("http://127.0.0.1:9/mcp", [], Zone.LOOPBACK),
        ("https://10.0.0.1/mcp", [], Zone.PRIVATE),
        ("https://mcp.example/mcp", ["93.184.216.34"], Zone.PUBLIC),
        ("https://mcp.example/mcp", ["10.0.0.1", "10.0.0.2"], Zone.PRIVATE),
        ("https://mcp.example/mcp", ["10.0.0.1", "93.184.216.34"], Zone.PUBLIC),
        ("https://mcp.example/mcp", ["127.0.0.1"], Zone.PUBLIC),
        ("https://mcp.example/mcp", ["169.254.169.254"], Zone.PUBLIC),
    ],
)
async def test_the_home_of_a_server(url: str, addresses: list[str], home: Zone) -> None:
    """A name that leads to loopback has not become a server of this machine."""
    trio.socket.set_custom_hostname_resolver(Names(mcp=[addresses]))
    assert await find_home(Url.parse(url)) is home


async def test_a_server_that_has_left_its_zone_is_not_asked(connected: list[tuple[str, str | None]]) -> None:
    """Its name leads inside while its zone is looked at, and outside for its metadata: these could name an issuer
    inside."""
    server = Url.parse("https://mcp.example/mcp")
    names = Names(mcp=[["10.0.0.1"], ["93.184.216.34"], ["10.0.0.1"]], login=[["93.184.216.34"]])
    trio.socket.set_custom_hostname_resolver(names)
    http = await IssuerHttp.of(server)
    with pytest.raises(OAuthProblem, match="leads elsewhere now"):
        await http.get(server)
    assert connected == []
    for url, address in ((server, "10.0.0.1"), (Url.parse("https://login.example/"), "93.184.216.34")):
        with pytest.raises(IssuerUnreachable):
            await http.get(url)
        assert connected.pop() == (url.host, address)


async def test_a_server_whose_name_is_not_known() -> None:
    trio.socket.set_custom_hostname_resolver(Names(mcp=[[]]))
    with pytest.raises(IssuerUnreachable, match="cannot be looked up"):
        await find_home(Url.parse("https://mcp.example/mcp"))


# Bodies that are compressed, and those without a length.


def saying(body: bytes, *fields: str) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A server whose answer ends with the connection."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all("\r\n".join(["HTTP/1.1 200 X", *fields, "", ""]).encode() + body)

    return answer


async def test_a_document_may_be_compressed_though_nobody_asked() -> None:
    async with answering(saying(gzip.compress(b'{"issuer":"x"}'), "content-encoding: gzip")) as url:
        assert await get(url, Zone.LOOPBACK) == b'{"issuer":"x"}'


@pytest.mark.parametrize(
    ("body", "coding", "why"),
    [
        (gzip.compress(b"[" + b"1," * 5_000_000 + b"1]"), "gzip", "KiB"),
        (gzip.compress(b'{"issuer":"x"}')[:-4], "gzip", "broke"),
        (b"{}", "gzip", "not valid gzip"),
        (b"{}", "compress", r"compressed \(compress\)"),
    ],
    ids=["too-long", "cut", "no-gzip", "unknown-coding"],  # compressed bytes have a time in them
)
async def test_a_document_that_cannot_be_unpacked_is_none(body: bytes, coding: str, why: str) -> None:
    async with answering(saying(body, f"content-encoding: {coding}")) as url:
        with pytest.raises((IssuerUnreachable, OAuthProblem), match=why):
            await get(url, Zone.LOOPBACK)


async def test_of_tokens_without_a_length_only_complete_json_counts() -> None:
    """A part of another form looks like the whole: a token that was cut would be kept."""
    for body in (b"access_token=abc", b'{"access_token":"abc"', b""):
        async with answering(saying(body)) as url:
            with pytest.raises(IssuerUnreachable, match="no length"):
                await IssuerHttp(Zone.LOOPBACK).post(url, Form([], b"code=x"))
    async with answering(saying(b'{"access_token":"abc"}')) as url:
        answer = await IssuerHttp(Zone.LOOPBACK).post(url, Form([], b"code=x"))
        assert answer.body == b'{"access_token":"abc"}'
