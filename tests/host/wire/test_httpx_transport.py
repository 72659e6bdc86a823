"""The client `httpx`: chosen for a server by its `client`, and imported for nothing else. The tests of the links and of
the pool run over it too."""

from __future__ import annotations

import logging
import subprocess
import sys

import httpx
import pytest
import trio

from config import HttpClient, HttpServer, Secret
from host.journal import Journal
from host.upstream.connect import open_http_link, open_sse_link
from host.url import Url
from host.wire.http_errors import Broken, Unreachable
from host.wire.http_transport import HttpResponse
from host.wire.httpx_transport import MAX_IDLE, HttpxTransport
from host.wire.turns import Turns
from tests.host.wire.http_servers import Heard, Wire, answer, ask, serving

URL = Url.parse("http://example.com/mcp")


@pytest.mark.slow
def test_a_host_imports_it_only_for_a_server_that_wants_it() -> None:
    """The import takes 45 ms, and h11 comes with it."""
    code = "import sys, host.app; print(sorted({'httpx', 'httpcore'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("client", list(HttpClient))
async def test_a_server_is_reached_by_the_client_that_its_configuration_names(client: HttpClient) -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        await (wire.say(200, answer()) if heard.method == "POST" else wire.say(405))

    async with serving(script) as server:
        spec = HttpServer(id="a", url=Secret(server.url), client=client)
        async with open_http_link(spec, Journal()) as link, trio.open_nursery() as nursery:
            nursery.start_soon(link.run, lambda message: None)
            await link.send(ask())
            assert isinstance(link._origin._transport, HttpxTransport) is (client is HttpClient.HTTPX)
            nursery.cancel_scope.cancel()
        async with open_sse_link(spec, Journal()) as older:
            assert isinstance(older._origin._transport, HttpxTransport) is (client is HttpClient.HTTPX)


async def test_few_idle_connections_are_kept() -> None:
    """At every request, httpcore's pool iterates over all of them."""
    everyone = trio.Event()

    async def script(heard: Heard, wire: Wire) -> None:
        if len(server.heard) == MAX_IDLE + 5:
            everyone.set()
        await everyone.wait()
        await wire.say(200, b"ok")

    async with serving(script) as server:
        transport = HttpxTransport(Turns())

        async def get() -> None:
            response = await transport.request("POST", Url.parse(server.url), [], b"{}")
            assert await HttpResponse(response).body() == b"ok"

        async with trio.open_nursery() as nursery:
            for _ in range(MAX_IDLE + 5):
                nursery.start_soon(get)
        assert transport._transport is not None
        assert len(transport._transport._pool.connections) == MAX_IDLE  # type: ignore[attr-defined]
        await transport.aclose()


@pytest.mark.parametrize(
    ("problem", "kind", "text"),
    [
        (httpx.ConnectError("10.0.0.1"), Unreachable, "it cannot be reached: no connection"),
        (httpx.ConnectTimeout("10.0.0.1"), Unreachable, "it cannot be reached: timed out after 10 s"),
        (httpx.ProxyError("407 10.0.0.1"), Unreachable, "it cannot be reached: its proxy opened no connection to it"),
        (httpx.ReadError("10.0.0.1"), Broken, "the connection broke before the end of the response"),
        (httpx.WriteTimeout("10.0.0.1"), Broken, "it read no data for 10 s"),
        (
            httpx.RemoteProtocolError("<h1>"),
            Broken,
            "it closed the connection before the end of the response, or does not speak HTTP",
        ),
    ],
)
async def test_what_goes_wrong_is_one_of_few_sentences(problem: Exception, kind: type[Exception], text: str) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise problem

    transport = HttpxTransport(Turns(), httpx.MockTransport(fail))
    with pytest.raises(kind) as caught:
        await transport.request("POST", URL, [], b"{}")
    assert (type(caught.value), str(caught.value)) == (kind, text)


async def test_connecting_and_writing_have_a_limit_of_time_and_reading_has_none() -> None:
    seen: list[object] = []

    def look(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        return httpx.Response(200)

    await HttpxTransport(Turns(), httpx.MockTransport(look)).request("POST", URL, [], b"{}")
    assert seen == [{"connect": 10.0, "write": 10.0, "read": None, "pool": None}]


def test_it_logs_no_headers() -> None:
    """They contain session ids."""
    assert not logging.getLogger("httpcore").isEnabledFor(logging.DEBUG)
