"""Requests to one server: permitted and refused targets, and the meaning of responses. Servers are in memory here;
what happens on sockets is shown by the tests of the two links."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import MockClock

from host.jsonrpc.messages import Malformed
from host.memory import Budget, Holding, Use, client_owner, server_owner
from host.wire import http_transport
from host.wire.http_errors import (
    CONNECTION_BROKE,
    NOT_HTTP,
    READS_NOTHING,
    TLS_REMEDY,
    AuthNeeded,
    Broken,
    HttpRefused,
    aborted,
)
from host.wire.http_pool import Pool, PooledResponse
from host.wire.http_transport import (
    LINGER,
    MAX_REDIRECTS,
    SAID_TIMEOUT,
    Authorization,
    Header,
    HttpExchanges,
    HttpResponse,
    Origin,
    open_origin,
)
from host.wire.link import LinkLost
from host.wire.refusal_text import MAX_SAID
from host.wire.sse import MAX_EVENT, EventParser, SseEvent
from host.wire.turns import Turns
from tests.host.wire.http_servers import (
    Heard,
    Wire,
    answered,
    in_memory,
    serving,
    serving_tcp,
    streaming,
)
from tests.kit.certificates import write_certificate

HOME = "https://example.com/mcp?key=secret"


@asynccontextmanager
async def asking(
    answers: Callable[[httpx.Request], httpx.Response], url: str = HOME
) -> AsyncIterator[tuple[Origin, list[httpx.Request]]]:
    """An origin, and what its server has heard."""
    heard: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request)
        return answers(request)

    async with open_origin(url, {"Authorization": "Bearer x"}, in_memory(answer)) as origin:
        yield origin, heard


def moved(status: int, *locations: str, path: str = "/mcp") -> Callable[[httpx.Request], httpx.Response]:
    """A server that sends away whoever comes to `path`, and serves all others."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != path:
            return httpx.Response(200, content=b"here")
        return httpx.Response(status, headers=[("location", each) for each in locations], content=b"<h1>moved</h1>")

    return answer


async def ask(origin: Origin, method: str = "POST") -> HttpResponse:
    answer = await origin.request(method, origin.headers([("Accept", "*/*")]), b"{}" if method == "POST" else None)
    await answer.discard()
    return answer


@pytest.mark.parametrize(
    ("method", "status", "followed"),
    [
        *(("GET", status, True) for status in (301, 302, 303, 307, 308)),
        *((method, status, True) for method in ("POST", "DELETE") for status in (307, 308)),
        *((method, status, False) for method in ("POST", "DELETE") for status in (301, 302, 303)),
        *((method, status, False) for method in ("GET", "POST") for status in (300, 304, 305, 306, 309)),
    ],
)
async def test_a_redirect_is_followed_where_it_keeps_the_request_as_it_is(
    method: str, status: int, followed: bool
) -> None:
    """A GET has nothing that could be left out (rule 40)."""
    async with asking(moved(status, "/mcp/")) as (origin, heard):
        answer = await ask(origin, method)
        assert answer.status == (200 if followed else status)
        assert [each.url.path for each in heard] == (["/mcp", "/mcp/"] if followed else ["/mcp"])
        assert {each.method for each in heard} == {method}
        assert {each.content for each in heard} == {b"{}" if method == "POST" else b""}
        assert {each.headers["authorization"] for each in heard} == {"Bearer x"}


ELSEWHERE = [
    "https://evil.example/mcp",
    "//evil.example/mcp",
    "http://example.com/mcp/",
    "https://example.com:8443/mcp/",
    "https://example.com./mcp/",
    "https://sub.example.com/mcp/",
    "https://me@example.com/mcp/",
    "https://example.com@evil.example/",
    "https://example.com\\@evil.example/",
    "https://127.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "https://[::ffff:10.0.0.1]/",
    "https://0x7f.1/",
    "file:///etc/passwd",
    "javascript:1",
    "https:////evil.example/",
    "https://[::1",
    "https://example.com:port/",
]


@pytest.mark.parametrize("location", ELSEWHERE)
@pytest.mark.parametrize(("method", "status"), [("GET", 302), ("GET", 307), ("POST", 307), ("POST", 308)])
async def test_nothing_is_sent_to_another_origin(method: str, status: int, location: str) -> None:
    """Every form of the `Location` header is tried (rule 40)."""
    async with asking(moved(status, location)) as (origin, heard):
        answer = await ask(origin, method)
        assert answer.status == status
        assert len(heard) == 1
        refusal = answer.refusal()
        assert str(refusal) == f"the server redirects (HTTP {status}): configure the URL that it redirects to"


@pytest.mark.parametrize("reference", ["/mcp/\x01", "/mcp/\x7f", "\n/mcp", "https://example.com/\0"])
async def test_a_reference_with_control_characters_leads_nowhere(reference: str) -> None:
    """A header cannot have them; the event that names an endpoint can (rule 40)."""
    async with asking(lambda request: httpx.Response(200)) as (origin, _):
        assert origin.locate(reference) is None


@pytest.mark.parametrize("locations", [[], ["/a", "/b"]])
async def test_a_redirect_that_does_not_say_where_to_is_not_followed(locations: list[str]) -> None:
    """Without one clear target, the redirect is the response (rule 40)."""
    async with asking(moved(308, *locations)) as (origin, heard):
        assert (await ask(origin)).status == 308
        assert len(heard) == 1


@pytest.mark.parametrize("base", ["https://example.com/mcp", "https://EXAMPLE.com:443/mcp"])
@pytest.mark.parametrize(
    "location", ["/x", "x", "?s=1", "//example.com/x", "https://Example.COM/x", "https://example.com:443/x"]
)
async def test_one_origin_has_many_spellings(base: str, location: str) -> None:
    """Case and the usual port make no difference (rule 40)."""
    async with asking(lambda request: httpx.Response(200), base) as (origin, _):
        found = origin.locate(location)
        assert found is not None
        assert (found.scheme, found.host, found.port) == ("https", "example.com", None)


async def test_the_user_of_the_url_is_no_reason_to_refuse_a_relative_one() -> None:
    async with asking(lambda request: httpx.Response(200), "https://me:secret@example.com/mcp") as (origin, _):
        assert origin.locate("/x") is not None
        assert origin.locate("https://example.com/x") is not None
        assert origin.locate("https://you@example.com/x") is None


async def test_redirects_are_followed_three_times_and_no_further() -> None:
    """Each step is looked at (rule 40)."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(307, headers={"location": f"{request.url.path}x"})

    async with asking(answer) as (origin, heard):
        assert (await ask(origin)).status == 307
        assert [each.url.path for each in heard] == ["/mcp", "/mcpx", "/mcpxx", "/mcpxxx"]
        assert len(heard) == MAX_REDIRECTS + 1


async def test_a_second_step_may_not_lead_out_either() -> None:
    """A second redirect must not change the scheme either (rule 40)."""

    def answer(request: httpx.Request) -> httpx.Response:
        there = "/a" if request.url.path == "/mcp" else "http://example.com/b"
        return httpx.Response(307, headers={"location": there})

    async with asking(answer) as (origin, heard):
        assert (await ask(origin)).status == 307
        assert [str(each.url) for each in heard] == [HOME, "https://example.com/a"]


async def test_where_a_redirect_ended_is_remembered_for_its_method() -> None:
    async with asking(moved(307, "/mcp/")) as (origin, heard):
        for method in ("POST", "POST", "GET", "GET"):
            await ask(origin, method)
        assert [(each.method, each.url.path) for each in heard] == [
            *(("POST", "/mcp"), ("POST", "/mcp/"), ("POST", "/mcp/")),
            *(("GET", "/mcp"), ("GET", "/mcp/"), ("GET", "/mcp/")),
        ]


async def test_a_redirect_that_ends_nowhere_is_not_remembered() -> None:
    async with asking(moved(307, "/mcp")) as (origin, heard):
        for _ in range(2):
            assert (await ask(origin)).status == 307
        assert len(heard) == 2 * (MAX_REDIRECTS + 1)


async def test_another_address_of_the_server_is_asked_by_name() -> None:
    async with asking(moved(307, "/elsewhere", path="/messages")) as (origin, heard):
        endpoint = origin.locate("/messages?s=1")
        for _ in range(2):
            await origin.request("POST", origin.headers([]), b"{}", endpoint)
        await ask(origin)
        assert [each.url.path for each in heard] == ["/messages", "/elsewhere", "/elsewhere", "/mcp"]


@pytest.mark.parametrize(
    ("status", "older", "holds", "passing"),
    [
        (400, True, True, False),
        (401, False, False, False),
        (403, False, False, False),
        (404, True, True, False),
        (405, True, True, False),
        (406, True, True, False),
        (408, False, True, True),
        (415, True, True, False),
        (429, False, True, True),
        (307, False, False, False),
        (500, False, False, True),
        (503, False, False, True),
    ],
)
async def test_what_a_status_says_of_the_server(status: int, older: bool, holds: bool, passing: bool) -> None:
    async with asking(lambda _: httpx.Response(status)) as (origin, _):
        refusal = origin.refusal(await ask(origin))
    assert refusal.status == status
    assert (refusal.may_be_http_sse, refusal.may_hold_answer, refusal.is_transient) == (older, holds, passing)
    assert refusal.answered is older
    assert isinstance(refusal, AuthNeeded) == (status in (401, 403))
    assert isinstance(refusal, HttpRefused)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"content-type": "Application/JSON ; charset=x"}, "application/json"),
        ({"content-type": "text/event-stream", "content-encoding": "Identity"}, "text/event-stream"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "application/json"),
        ({"content-type": "application/json", "content-encoding": "gzip, gzip"}, ""),
        ({"content-type": "application/json", "content-encoding": "compress"}, ""),
        ({}, ""),
    ],
)
async def test_the_kind_of_a_body(said: dict[str, str], kind: str) -> None:
    answer = await answered(httpx.Response(200, headers=said))
    assert answer.media_type == kind
    await answer.discard()


async def test_what_a_refusal_says_is_read_for_a_short_time_and_up_to_its_limit(autojump_clock: MockClock) -> None:
    assert await (await answered(streaming(b"<title>No</title>", b"<p>way"))).said() == "No way"
    assert await (await answered(streaming(b"<title>No</title>", *[b"x" * MAX_SAID] * 9))).said() == "No"
    assert await (await answered(streaming(b"no", broken=True))).said() == ""
    began = trio.current_time()
    assert await (await answered(streaming(b"<title>Wait</title> in", 10.0))).said() == "Wait"
    assert trio.current_time() - began == SAID_TIMEOUT
    packed = httpx.Response(403, headers={"content-encoding": "gzip"}, content=b"x")
    assert await (await answered(packed)).said() == ""


async def test_a_body_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing beyond the limit is read (rule 5)."""
    monkeypatch.setattr(http_transport, "MAX_BODY", 10)
    assert await (await answered(streaming(b"01234", b"56789"))).body() == b"0123456789"
    with pytest.raises(LinkLost, match="more than 10 bytes"):
        await (await answered(streaming(b"01234", b"56789", b"x"))).body()
    with pytest.raises(LinkLost, match="the connection broke"):
        await (await answered(streaming(b"0", broken=True))).body()


@pytest.mark.parametrize(("size", "fits"), [(999, True), (1000, True), (1001, False)])
async def test_a_body_is_charged_while_it_is_read(size: int, fits: bool) -> None:
    budget = Budget(1000)

    def hold(drop: Callable[[], None]) -> Holding:
        return budget.hold(server_owner("a"), Use.MESSAGES, drop=drop)

    answer = await answered(streaming(b"x" * (size - 1), 0.001, b"y"), hold)
    if fits:
        assert len(await answer.body()) == size
    else:
        with pytest.raises(LinkLost) as caught:
            await answer.body()
        assert (caught.value.too_large, str(caught.value)) == (True, "there is no memory for its message (memory)")
    assert (budget.used, budget.released) == (0, min(size, 1000) if fits else size - 1)


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
async def test_an_event_is_charged_while_it_is_read(size: int, fits: bool) -> None:
    budget = Budget(1000)
    seen: list[SseEvent | Malformed] = []

    def hold(drop: Callable[[], None]) -> Holding:
        return budget.hold(server_owner("a"), Use.MESSAGES, drop=drop)

    def take(event: SseEvent | Malformed) -> Iterator[bool]:
        seen.append(event)
        yield False

    answer = await answered(streaming(b"data:" + b"x" * (size - 5), 0.001, b"\n\n"), hold)
    if fits:
        await answer.read_events(EventParser(), take)
        assert len(seen) == 1
    else:
        with pytest.raises(LinkLost, match="no memory for its message"):
            await answer.read_events(EventParser(), take)
    assert budget.used == 0


@pytest.mark.parametrize("streams", [True, False])
async def test_what_is_read_gives_way(streams: bool) -> None:
    """When the memory is needed elsewhere, reading ends with an error that says so."""
    budget = Budget(1000)

    def hold(drop: Callable[[], None]) -> Holding:
        return budget.hold(server_owner("a"), Use.MESSAGES, drop=drop)

    async def endless() -> AsyncIterator[bytes]:
        yield b"data:" + b"x" * 900
        budget.hold(client_owner(None), Use.REQUESTS, 400, lambda: None)
        await trio.sleep(math.inf)

    answer = await answered(httpx.Response(200, content=endless()), hold)
    with pytest.raises(LinkLost, match="no memory for its message"), trio.fail_after(5):
        await (answer.read_events(EventParser(), lambda event: iter(())) if streams else answer.body())
    assert budget.used == 400


# A server that speaks TLS, at a URL with http://


async def test_a_server_with_tls_is_suspected_until_it_responds_without(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(tmp_path))

    async def handshake(stream: trio.SocketStream) -> None:
        await trio.SSLStream(stream, context, server_side=True).do_handshake()

    async with serving_tcp(handshake) as port, open_origin(f"http://127.0.0.1:{port}/mcp", {}, Pool(Turns())) as origin:
        with pytest.raises(Broken) as caught:
            await ask(origin)
        assert caught.value.remedy == TLS_REMEDY


async def test_a_server_that_sends_an_alert_of_tls_is_suspected() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await wire.write(b"\x15\x03\x01\x00\x02\x02\x46")  # RFC 8446, "Alert Protocol": protocol_version
        await wire.close()

    async with serving(script) as server, open_origin(server.url, {}, Pool(Turns())) as origin:
        with pytest.raises(Broken) as caught:
            await ask(origin)
        assert (str(caught.value), caught.value.remedy) == (NOT_HTTP, TLS_REMEDY)


async def test_a_server_that_has_responded_without_tls_is_not_suspected() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        if wire.number == 1:
            await wire.say(200, connection="close")
        await wire.close()

    async with serving(script) as server, open_origin(server.url, {}, Pool(Turns())) as origin:
        await ask(origin)
        with pytest.raises(Broken) as caught:
            await ask(origin)
        assert caught.value.remedy == ""


@pytest.mark.parametrize(
    ("url", "kind", "remedy"),
    [
        ("http://example.com/", "text/html", TLS_REMEDY),
        ("http://example.com/", "application/json", ""),
        ("https://example.com/", "text/html", ""),
    ],
)
async def test_a_server_that_says_400_in_words_for_people_is_suspected(url: str, kind: str, remedy: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, headers={"content-type": kind})

    async with asking(answer, url) as (origin, _):
        assert origin.refusal(await ask(origin)).remedy == remedy


async def test_a_server_that_has_responded_is_not_suspected_because_of_a_400() -> None:
    statuses = [202, 400]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(statuses.pop(0))

    async with asking(answer, "http://example.com/") as (origin, _):
        await ask(origin)
        assert origin.refusal(await ask(origin)).remedy == ""


class Failing(Pool):
    """Connections whose requests all fail for this reason."""

    def __init__(self, why: str) -> None:
        super().__init__(Turns())
        self._why = why

    async def request(self, *_: object, **__: object) -> PooledResponse:
        raise Broken(self._why)


@pytest.mark.parametrize(
    ("url", "why", "remedy"),
    [
        ("http://example.com/", NOT_HTTP, TLS_REMEDY),
        ("http://example.com/", CONNECTION_BROKE, TLS_REMEDY),
        ("http://example.com/", READS_NOTHING, ""),
        ("https://example.com/", NOT_HTTP, ""),
    ],
)
async def test_tls_is_suspected_where_the_url_and_the_failure_permit_it(url: str, why: str, remedy: str) -> None:
    async with open_origin(url, {}, Failing(why)) as origin:
        with pytest.raises(Broken) as caught:
            await ask(origin)
    assert (str(caught.value), caught.value.remedy) == (why, remedy)


@pytest.mark.parametrize("broken", [True, False])
async def test_a_stream_is_followed_to_its_end(broken: bool) -> None:
    seen: list[bytes] = []

    def take(event: SseEvent | Malformed) -> Iterator[bool]:
        assert isinstance(event, SseEvent)
        seen.append(event.data)
        yield False

    await (await answered(streaming(b"data: a\n\nda", b"ta: b\n\ndata: c", broken=broken))).read_events(
        EventParser(), take
    )
    assert seen == [b"a", b"b"]


async def test_a_stream_of_which_nothing_more_is_wanted_may_end_by_itself_for_a_moment(
    autojump_clock: MockClock,
) -> None:
    seen: list[bytes] = []

    def take(event: SseEvent | Malformed) -> Iterator[bool]:
        assert isinstance(event, SseEvent)
        seen.append(event.data)
        yield event.data == b"a"

    began = trio.current_time()
    await (await answered(streaming(b"data: a\n\n", LINGER / 2, b"data: b\n\n", 1000.0, b"data: c\n\n"))).read_events(
        EventParser(), take
    )
    assert seen == [b"a", b"b"]
    assert trio.current_time() - began == pytest.approx(LINGER)


async def test_an_event_without_an_end_ends_the_stream() -> None:
    """The rest of the event is not read (rule 5)."""
    response = await answered(streaming(b"data: ", *[b"x" * (MAX_EVENT // 4)] * 5, 1000.0))
    with pytest.raises(LinkLost, match="an event of more than"):
        await response.read_events(EventParser(), lambda event: iter(()))


async def test_what_is_not_wanted_is_read_for_a_moment(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    await (await answered(streaming(b"x", 1000.0))).discard()
    assert trio.current_time() - began == pytest.approx(LINGER)


async def test_exchanges_end_with_their_link_for_one_reason() -> None:
    aborted = trio.Event()
    exchanges = HttpExchanges(aborted.set)
    ended: list[str] = []

    async def work() -> None:
        try:
            with exchanges:
                await aborted.wait()
                raise Broken("the connection was closed")
        except LinkLost as lost:
            ended.append(str(lost))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        assert len(exchanges) == 2
        first = LinkLost("first")
        assert exchanges.connection_lost(first) is exchanges.connection_lost(LinkLost("second")) is first
    assert ended == ["first", "first"]
    assert len(exchanges) == 0


@pytest.mark.parametrize("is_written", [True, False])
async def test_an_exchange_that_its_link_ends_tells_whether_anything_was_sent(is_written: bool) -> None:
    exchanges = HttpExchanges(lambda: None)

    def end() -> None:
        exchanges.connection_lost(LinkLost("first"))
        raise Broken("the connection was closed") if is_written else aborted()

    with pytest.raises(LinkLost, match="first") as lost, exchanges:
        end()
    assert lost.value.nothing_begun is not is_written


async def test_nothing_begins_on_a_link_that_has_ended() -> None:
    exchanges = HttpExchanges(lambda: None)
    exchanges.connection_lost(LinkLost("first"))
    with pytest.raises(LinkLost, match="first"):
        with exchanges:
            raise AssertionError("nothing begins any more")


async def test_what_the_configuration_says_is_sent_but_for_what_is_ours() -> None:
    heard: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request)
        return httpx.Response(200)

    headers = {"X-Key": "k", "Accept": "a", "Mcp-Session-Id": "s"}
    async with open_origin(HOME, headers, in_memory(answer)) as origin:
        await ask(origin)
    sent = heard[0].headers
    assert (sent["x-key"], sent["accept"], sent["accept-encoding"]) == ("k", "*/*", "identity")
    assert "mcp-session-id" not in sent
    assert sent["user-agent"].startswith("colonnade/")


@pytest.mark.parametrize(("url", "value"), [("http://[::1", "x"), ("http://a/", "é"), ("http://a\x00/", "x")])
async def test_a_url_or_header_that_cannot_be_used_is_refused(url: str, value: str) -> None:
    with pytest.raises(LinkLost, match="its URL is invalid, or its headers are not ASCII"):
        async with open_origin(url, {"X": value}):
            pass


# Refused credentials


class Tokens(Authorization):
    """A login with these tokens, one after the other; None stands for none."""

    def __init__(self, *tokens: str | None) -> None:
        self.log_in(*tokens)
        self.refused: list[Header | None] = []
        self.missing: list[str] = []

    def log_in(self, *tokens: str | None) -> None:
        self._tokens = [None if each is None else (b"Authorization", f"Bearer {each}".encode()) for each in tokens]

    @property
    def remedy(self) -> str:
        return "log in"

    def note_missing(self, scopes: Sequence[str]) -> None:
        self.missing += scopes

    @property
    def is_absent(self) -> bool:
        return self._tokens == [None]

    def current(self) -> Header | None:
        return self._tokens[0]

    async def renew(self, refused: Header | None) -> Header | None:
        await trio.lowlevel.checkpoint()
        self.refused.append(refused)
        if refused is not None:
            self._tokens.pop(0)
        return self._tokens[0]


@asynccontextmanager
async def logged_in(
    authorization: Authorization | None,
    *accepted: str,
    challenge: str = "Bearer",
    headers: dict[str, str] | None = None,
) -> AsyncIterator[tuple[Origin, list[str | None]]]:
    """An origin of a server that takes these tokens; the `Authorization` headers that it has heard."""
    heard: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request.headers.get("authorization"))
        if (heard[-1] or "").removeprefix("Bearer ") in accepted:
            return httpx.Response(200, content=b"here")
        return httpx.Response(401, headers={"www-authenticate": challenge} if challenge else {})

    async with open_origin(HOME, headers or {}, in_memory(answer), authorization=authorization) as origin:
        yield origin, heard


async def test_the_token_joins_every_request() -> None:
    async with logged_in(Tokens("a"), "a") as (origin, heard):
        for method in ("POST", "GET", "DELETE"):
            assert (await ask(origin, method)).status == 200
        assert heard == ["Bearer a"] * 3


async def test_a_refused_token_is_replaced_once() -> None:
    tokens = Tokens("a", "b")
    async with logged_in(tokens, "b") as (origin, heard):
        assert (await ask(origin)).status == 200
        assert (await ask(origin)).status == 200
        assert heard == ["Bearer a", "Bearer b", "Bearer b"]
        assert tokens.refused == [(b"Authorization", b"Bearer a")]


REFUSED_TOKEN = 'Bearer error="invalid_token", error_description="expired"'


@pytest.mark.parametrize("status", [400, 403])
async def test_a_token_that_is_refused_with_another_status_is_replaced_too(status: int) -> None:
    """The challenge says so. A server that wants scopes may look for these first, and one may count an expired token as
    a bad request."""
    heard: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request.headers.get("authorization"))
        if heard[-1] == "Bearer b":
            return httpx.Response(200, content=b"here")
        return httpx.Response(status, headers={"www-authenticate": REFUSED_TOKEN})

    async with open_origin(HOME, {}, in_memory(answer), authorization=Tokens("a", "b")) as origin:
        assert (await ask(origin)).status == 200
    assert heard == ["Bearer a", "Bearer b"]
    async with open_origin(HOME, {}, in_memory(answer), authorization=Tokens("a", None)) as origin:
        refusal = origin.refusal(await ask(origin))
    assert isinstance(refusal, AuthNeeded)
    assert (refusal.status, refusal.lost_login, refusal.ends_connection) == (status, True, True)


@pytest.mark.parametrize(
    ("status", "challenge"),
    [
        (403, ""),
        (403, "Bearer"),
        (403, 'Basic error="invalid_token"'),
        (403, 'Bearer error="insufficient_scope"'),
        (400, 'Bearer error="invalid_request"'),
        (404, REFUSED_TOKEN),
        (500, REFUSED_TOKEN),
    ],
)
async def test_no_token_is_spent_on_another_refusal(status: int, challenge: str) -> None:
    """A server that refuses what was asked, or that may have done it, gets no second request."""
    tokens, heard = Tokens("a", "b"), 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal heard
        heard += 1
        return httpx.Response(status, headers={"www-authenticate": challenge})

    async with open_origin(HOME, {}, in_memory(answer), authorization=tokens) as origin:
        assert (await ask(origin)).status == status
    assert (heard, tokens.refused) == (1, [])


async def test_there_is_no_third_attempt() -> None:
    async with logged_in(Tokens("a", "b", "c"), "c") as (origin, heard):
        assert (await ask(origin)).status == 401
        assert heard == ["Bearer a", "Bearer b"]


async def test_a_request_that_finds_the_login_to_be_over_is_not_sent() -> None:
    """The end of the login ends the connection, and could hit it on the way."""

    class Over(Tokens):
        is_absent = False

    async with logged_in(Over(None)) as (origin, heard):
        with pytest.raises(AuthNeeded, match="the login is over") as lost:
            await ask(origin)
        assert (lost.value.lost_login, lost.value.nothing_begun, lost.value.ends_connection) == (True, True, True)
        assert heard == []


@pytest.mark.parametrize(
    ("tokens", "is_lost"),
    [
        (["a", None], True),  # there is no other one
        (["a", "b"], False),  # the server may refuse this request only
    ],
)
@pytest.mark.parametrize("challenge", ["Bearer", ""])
async def test_a_request_that_finds_the_login_to_be_over_tells_so(
    tokens: list[str | None], is_lost: bool, challenge: str
) -> None:
    async with logged_in(Tokens(*tokens), challenge=challenge) as (origin, _):
        refusal = origin.refusal(await ask(origin))
        assert isinstance(refusal, AuthNeeded)
        assert refusal.lost_login is is_lost


async def test_nobody_waits_for_a_login_that_is_absent() -> None:
    class Absent(Tokens):
        is_absent = True

    tokens = Absent(None)
    async with logged_in(tokens) as (origin, heard):
        assert (await ask(origin)).status == 401
        assert (heard, tokens.refused) == ([None], [])


async def test_a_token_that_cannot_be_had_fails_the_request() -> None:
    class Unavailable(Tokens):
        is_absent = False

        async def renew(self, refused: Header | None) -> Header | None:
            raise LinkLost("the issuer gave no answer")

    for tokens, count in ((Unavailable(None), 0), (Unavailable("a"), 1)):
        async with logged_in(tokens) as (origin, heard):
            with pytest.raises(LinkLost, match="no answer"):
                await ask(origin)
            assert len(heard) == count


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_token_does_not_follow_a_redirect_to_another_origin(status: int) -> None:
    places = ("https://evil.example/mcp", "http://example.com/mcp", "https://example.com:444/mcp", "//evil.example/")
    heard: list[str] = []
    for place in places:

        def answer(request: httpx.Request, place: str = place) -> httpx.Response:
            heard.append(f"{request.url.scheme}://{request.url.netloc.decode()}")
            return httpx.Response(status, headers={"location": place})

        async with open_origin(HOME, {}, in_memory(answer), authorization=Tokens("a")) as origin:
            assert (await ask(origin)).status == status
            assert (await ask(origin, "GET")).status == status
    assert set(heard) == {"https://example.com"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_token_does_not_go_along_a_redirect_within_the_origin_either(status: int) -> None:
    """Also not along one that was followed, and is remembered, from before the login: another path may be another
    tenant's."""
    heard: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append((request.url.path, request.headers.get("authorization")))
        if request.url.path == "/tenant/mcp":
            return httpx.Response(200, content=b"here")
        return httpx.Response(status, headers={"location": "/tenant/mcp"})

    tokens = Tokens(None)
    async with open_origin(HOME, {}, in_memory(answer), authorization=tokens) as origin:
        assert (await ask(origin, "GET")).status == 200
        tokens.log_in("a")
        refused = await ask(origin, "GET")
        assert (await ask(origin)).status == status
        assert "configure the URL that it redirects to" in str(origin.refusal(refused))
    assert heard == [("/mcp", None), ("/tenant/mcp", None), ("/mcp", "Bearer a"), ("/mcp", "Bearer a")]


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_nobody_logs_in_for_a_token_that_cannot_be_used(method: str) -> None:
    """The first 401 says already what to configure, and so does each further one."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/mcp/":
            return httpx.Response(401, headers={"www-authenticate": "Bearer"})
        return httpx.Response(307, headers={"location": "/mcp/"})

    async with open_origin(HOME, {}, in_memory(answer), authorization=Tokens(None)) as origin:
        for _ in range(2):
            refusal = origin.refusal(await ask(origin, method))
            assert isinstance(refusal, AuthNeeded)
            assert not refusal.needs_login
            assert "tokens go along no redirect (HTTP 401)" in str(refusal)
            assert refusal.remedy == "configure the URL that it redirects to"


async def test_a_second_token_does_not_go_along_a_redirect_either() -> None:
    heard: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append((request.url.path, request.headers.get("authorization")))
        if heard[-1][1] == "Bearer a":
            return httpx.Response(401)
        return httpx.Response(307, headers={"location": "/tenant/mcp"})

    async with open_origin(HOME, {}, in_memory(answer), authorization=Tokens("a", "b")) as origin:
        assert (await ask(origin)).status == 307
    assert heard == [("/mcp", "Bearer a"), ("/mcp", "Bearer b")]


async def test_the_headers_with_a_token_are_made_once() -> None:
    """The pool keeps what it has made of a list of headers."""
    sent: list[object] = []

    class Keeping(Pool):
        async def request(self, *arguments: object, **_: object) -> PooledResponse:
            sent.append(arguments[2])
            raise LinkLost("that is enough")

    tokens = Tokens("a", "b")
    async with open_origin(HOME, {}, Keeping(Turns()), authorization=tokens) as origin:
        headers = origin.headers([])
        for _ in range(2):
            with pytest.raises(LinkLost):
                await origin.request("POST", headers)
        await tokens.renew(tokens.current())
        with pytest.raises(LinkLost):
            await origin.request("POST", headers)
    assert sent[0] is sent[1]
    assert sent[2] is not sent[0]


METADATA = 'Bearer resource_metadata="https://mcp.example/.well-known/oauth-protected-resource"'


@pytest.mark.parametrize(
    ("challenge", "said", "needs_login"),
    [
        (METADATA, "the server wants a login (HTTP 401): log in", True),
        ('Bearer realm="x"', "the server wants credentials (HTTP 401): log in, or set them under headers", True),
        ("", "the server wants credentials (HTTP 401): log in, or set them under headers", True),
        ("Basic realm=x", "the server wants credentials (HTTP 401)", False),
    ],
)
async def test_a_server_without_credentials_needs_a_login(challenge: str, said: str, needs_login: bool) -> None:
    async with logged_in(Tokens(None), challenge=challenge) as (origin, _):
        refusal = origin.refusal(await ask(origin))
        assert isinstance(refusal, AuthNeeded)
        assert (str(refusal), refusal.needs_login) == (said, needs_login)
        assert refusal.lasting
    async with logged_in(None, challenge=challenge) as (origin, _):
        refusal = origin.refusal(await ask(origin))
        assert isinstance(refusal, AuthNeeded)
        assert not refusal.needs_login


async def test_a_missing_scope_needs_another_login() -> None:
    challenge = 'Bearer error="insufficient_scope", scope="a b"'

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(403, headers={"www-authenticate": challenge})

    tokens = Tokens("a")
    async with open_origin(HOME, {}, in_memory(answer), authorization=tokens) as origin:
        refusal = origin.refusal(await ask(origin))
    assert isinstance(refusal, AuthNeeded)
    assert refusal.needs_login
    assert tokens.missing == ["a", "b"]
    assert refusal.challenge is not None
    assert refusal.challenge.scopes == ("a", "b")
    assert str(refusal) == "the login lacks a scope (HTTP 403): log in"


@pytest.mark.parametrize(
    ("status", "challenge", "text"),
    [
        (401, "", "the server refused the configured Authorization (HTTP 401)"),
        (401, 'Basic realm="x"', "the server refused the configured Authorization (HTTP 401)"),
        (401, "Bearer", "the server refused the configured Authorization (HTTP 401)"),
        (401, METADATA, "the server refused the configured Authorization and wants OAuth (HTTP 401)"),
        (403, "", "the server refuses access (HTTP 403)"),
        (403, 'Bearer error="insufficient_scope"', "the token under headers lacks a scope (HTTP 403)"),
    ],
)
async def test_refused_credentials_of_the_configuration(status: int, challenge: str, text: str) -> None:
    """There is no login beside them."""
    answer = httpx.Response(status, headers={"www-authenticate": challenge})
    async with asking(lambda _: answer) as (origin, heard):
        refusal = origin.refusal(await ask(origin))
    assert isinstance(refusal, AuthNeeded)
    assert (str(refusal), refusal.remedy != "", len(heard)) == (text, True, 1)
    assert not refusal.needs_login
