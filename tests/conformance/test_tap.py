"""A tap before a server of a few canned responses."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import trio

from tests.conformance.schemas import Receiver
from tests.conformance.tap import Conversations, Exchange, keep, kept_below, open_tap

CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "x"}}
OPENING = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2024-11-05"}}
OPENED = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-03-26"}}
QUESTION = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}}
ANSWER = {"jsonrpc": "2.0", "id": "q", "result": {"action": "accept"}}
RESULT = {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}
REFUSAL = {"jsonrpc": "2.0", "id": 7, "error": {"code": -32020, "message": "no"}}


def response(*messages: object, status: int = 200, session: str = "") -> bytes:
    """One message as JSON, several as a stream of events, none as 202."""
    head = f"HTTP/1.1 {status} Said\r\n" + (f"Mcp-Session-Id: {session}\r\n" if session else "")
    if len(messages) > 1:
        body = "".join(f"id: 1\ndata: {json.dumps(each)}\n\n" for each in messages)
        kind = "text/event-stream"
    else:
        body, kind = "".join(json.dumps(each) for each in messages), "application/json"
    return f"{head}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@asynccontextmanager
async def tapped(receiver: Receiver, *responses: bytes) -> AsyncIterator[tuple[httpx.AsyncClient, str, Conversations]]:
    """A client, the address of a tap, and what it writes down; the server responds so to one request after another."""
    left = list(responses)

    async def serve(stream: trio.SocketStream) -> None:
        heard = b""
        async for data in stream:
            heard += data
            head, _, body = heard.partition(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if len(body) >= (int(size[1]) if size else 0):
                heard = b""
                await stream.send_all(left.pop(0))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        async with open_tap(url, receiver, "here") as (address, conversations), httpx.AsyncClient() as http:
            yield http, address, conversations
        nursery.cancel_scope.cancel()


async def test_what_clients_get_is_written_down_with_the_request_that_it_answers() -> None:
    async with tapped("client", response(OPENED, session="s"), response(QUESTION, RESULT)) as (http, url, found):
        assert (await http.post(url, json=OPENING)).json() == OPENED
        answer = await http.post(url, json=CALL, headers={"mcp-session-id": "s"})
        assert answer.text.count("data:") == 2
    assert [(each.message, each.answers, each.revision) for each in found.sent] == [
        (OPENED, "initialize", "2025-03-26"),
        (QUESTION, None, "2025-03-26"),
        (RESULT, "tools/call", "2025-03-26"),
    ]


async def test_what_servers_get_is_written_down_with_the_question_that_it_answers() -> None:
    session = {"mcp-session-id": "s", "mcp-protocol-version": "2025-11-25"}
    async with tapped("server", response(QUESTION, RESULT), response(status=202)) as (http, url, found):
        await http.post(url, json=CALL, headers=session)
        await http.post(url, json=ANSWER, headers=session)
    assert [(each.message, each.answers) for each in found.sent] == [(CALL, None), (ANSWER, "elicitation/create")]
    assert {each.revision for each in found.sent} == {"2025-11-25"}


async def test_an_error_that_one_revision_has_is_of_that_revision() -> None:
    async with tapped("client", response(REFUSAL, status=400)) as (http, url, found):
        await http.post(url, json=CALL)
    assert [(each.revision, each.answers) for each in found.sent] == [("2026-07-28", "tools/call")]


async def test_a_body_that_is_no_json_is_written_down_as_it_is() -> None:
    async with tapped("client", response().replace(b"Length: 0\r\n\r\n", b"Length: 2\r\n\r\n{n")) as (http, url, found):
        await http.post(url, json=CALL)
    assert [each.message for each in found.sent] == ["{n"]


async def test_what_is_no_http_passes_all_the_same() -> None:
    async with tapped("client", b"anything", response(RESULT)) as (_, url, found):
        place = httpx.URL(url)
        async with await trio.open_tcp_stream(place.host, place.port or 0) as stream:
            await stream.send_all(b"\0\r\n\r\n")
            assert await stream.receive_some() == b"anything"
    assert found.sent == []


async def test_what_was_written_down_is_kept_beside_what_was(tmp_path: Path) -> None:
    found = Conversations("client", "here")
    found.to_client(Exchange(), json.dumps(RESULT).encode())
    (tmp_path / "scenario").mkdir()
    keep(tmp_path / "scenario", found)
    keep(tmp_path / "scenario", found, found)
    assert kept_below(tmp_path) == found.sent * 3
