"""The inner listener serves members of the fleet alone, and takes nothing from them but a client's request."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from struct import pack, unpack

import pytest
import trio

from config import Auth, Listen, Secret
from host.fleet.inner import CLIENT, HOP, MemberConnection
from host.fleet.streams import DATA, END
from host.journal import AttemptRefused
from host.wire.asgi import Receive, Scope, Send, respond
from host.wire.certificate import STREAMS
from host.wire.http_parser import ResponseParser
from host.wire.listener import serve_http
from host.wire.port import bind
from tests.kit.asgi import MCP_HEADERS
from tests.kit.certificates import Authority
from tests.kit.fleet import FleetFiles, FleetSite, open_site
from tests.kit.world import ScriptedServer

pytestmark = pytest.mark.slow

A, B = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
DENIED = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__nothing", "arguments": {}}}
BEARER = {"authorization": "Bearer correct-horse-battery-staple"}
TOKENS = Listen(
    auth=Auth({"desk": Secret("correct-horse-battery-staple"), "laptop": Secret("another-token-of-another")})
)


def context(files: tuple[Path, Path] | None, ca: Path) -> ssl.SSLContext:
    """That of somebody who has a certificate, or none, and trusts this authority."""
    made = ssl.create_default_context(cafile=str(ca))
    made.set_alpn_protocols(["http/1.1"])  # as an earlier version of Colonnade
    made.check_hostname = False
    if files is not None:
        made.load_cert_chain(*files)
    return made


async def ask(
    site: FleetSite,
    shown: ssl.SSLContext,
    method: str = "POST",
    path: str = "/mcp",
    body: object = PING,
    headers: Mapping[str, str] = {HOP: A},
) -> tuple[int, Mapping[bytes, bytes], bytes]:
    """What the inner listener of a member answers; raises BrokenResourceError if there is no TLS with it."""
    data = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**MCP_HEADERS, **headers}.items())]
    head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode()
    stream = await trio.open_tcp_stream("127.0.0.1", site.port)
    async with trio.SSLStream(stream, shown, https_compatible=True) as secured:
        with trio.fail_after(5):
            await secured.send_all(head + data)
            parser, answer = ResponseParser(), b""
            while not parser.complete:
                received = bytes(await secured.receive_some(65536))
                if not received:
                    raise trio.BrokenResourceError("it ended without an answer")
                parser.feed(received)
                answer += parser.take_body()
    return parser.status, parser.fields, answer


async def test_only_who_shows_a_certificate_of_the_fleet_is_served(tmp_path: Path) -> None:
    """One of its authority, with a name of the fleet. All others get no HTTP at all."""
    files = FleetFiles(tmp_path)
    ca, foreign = files.authority.ca, Authority(tmp_path / "foreign")
    strangers = {
        "none": None,
        "of another authority": foreign.sign("same-name", "acme.internal"),
        "of another service": files.authority.sign("other", "billing.internal", "127.0.0.1"),
    }
    async with open_site(files, A) as site:
        assert (await ask(site, context(files.files, ca), headers={HOP: A}))[0] == 400  # no session is named
        for who, shown in strangers.items():
            with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
                print(who, await ask(site, context(shown, ca)))


async def test_a_member_sends_nothing_to_an_address_with_a_foreign_certificate(tmp_path: Path) -> None:
    """Somebody who took the address of a member over."""
    files = FleetFiles(tmp_path)
    stranger = FleetFiles(tmp_path / "stranger")
    stranger.directory = files.directory
    server = ScriptedServer("s", tools=["x"])
    async with open_site(files, B) as b, open_site(stranger, A, server) as a:
        await a.client.open()
        await b.members.wait_list()
        with trio.move_on_after(1):
            answer = await b.client.another(a.client.session).get("POST", body=PING)
            raise AssertionError(f"{answer.status} came from a process with a foreign certificate")


async def test_it_serves_what_is_for_this_process_on_the_paths_of_mcp(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path)
    shown = context(files.files, files.authority.ca)
    async with open_site(files, A) as site:
        await site.client.open()
        mine = {"mcp-session-id": site.client.session or ""}
        assert (await ask(site, shown, headers={HOP: A, **mine}))[0] == 200
        for wrong in ({}, {HOP: B}, {HOP: f"{A}, {B}"}, {HOP: ""}):
            status, fields, _ = await ask(site, shown, headers={**wrong, **mine})
            assert status == 421
            assert fields[HOP.encode()] == A.encode()
        for path in ("/status", "/console", "/api/v1/status", "/", "/healthz", "/sse", "/mcpx", "/mcp/../status"):
            assert (await ask(site, shown, "GET", path))[0] == 404, path


async def test_a_member_proves_nothing_about_the_client(tmp_path: Path) -> None:
    """Its token is examined here, and its session is its own here too."""
    files = FleetFiles(tmp_path)
    shown = context(files.files, files.authority.ca)
    async with open_site(files, A, listen=TOKENS) as site:
        site.client.headers = BEARER
        await site.client.open()
        mine = {HOP: A, "mcp-session-id": site.client.session or ""}
        assert (await ask(site, shown, headers={**mine, **BEARER}))[0] == 200
        assert (await ask(site, shown, headers=mine))[0] == 401
        assert (await ask(site, shown, headers={**mine, "authorization": "Bearer wrong"}))[0] == 401
        other = {**mine, "authorization": "Bearer another-token-of-another"}
        assert (await ask(site, shown, headers=other))[0] == 404
        assert (await ask(site, shown, path="/mcp/s", headers={**mine, **BEARER}))[0] == 404
        assert (await ask(site, shown, headers={**mine, **BEARER, "origin": "https://evil.example"}))[0] == 403


async def test_what_was_forwarded_goes_no_further(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path)
    shown = context(files.files, files.authority.ca)
    async with open_site(files, A) as a, open_site(files, B) as b:
        await a.client.open()
        await b.members.wait_list()
        session = {"mcp-session-id": a.client.session or ""}
        assert (await ask(b, shown, headers={HOP: B, **session}))[0] == 421
        assert (await ask(b, shown, "DELETE", headers={HOP: B, **session}))[0] == 421
        assert (await b.client.another(a.client.session).get("POST", body=PING)).status == 200


async def test_the_address_of_a_client_comes_from_members_alone(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path)
    shown = context(files.files, files.authority.ca)
    async with open_site(files, A) as a, open_site(files, B) as b:
        await a.client.open()
        await b.members.wait_list()
        session = {"mcp-session-id": a.client.session or ""}
        a.world.events.clear()
        said = {HOP: A, CLIENT: "10.9.8.7"}
        assert (await ask(a, shown, body=DENIED, headers={**said, **session}))[0] == 200
        at_b = b.client.another(a.client.session)
        assert (await at_b.get("POST", body=DENIED, headers={CLIENT: "10.9.8.7", HOP: "c" * 16})).status == 200
        assert (await a.client.get("POST", body=DENIED, headers={CLIENT: "10.9.8.7"})).status == 200
        a.world.gate.decision_log.flush_attempts()
        refused = [each for each in a.world.events if isinstance(each, AttemptRefused)]
        assert {each.attempt.address for each in refused} == {"10.9.8.7", "127.0.0.1"}, refused


async def test_a_forged_token_leads_nowhere(tmp_path: Path) -> None:
    """One of another fleet, which names a member of this one."""
    files = FleetFiles(tmp_path)
    async with open_site(files, A) as a, open_site(files, B) as b:
        await a.client.open()
        await b.members.wait_list()
        session = a.client.session or ""
        for forged in (session[:-1], session + "x", session.replace("f1.", "f2."), f"f1.{'A' * 70}.x"):
            assert (await b.client.another(forged).get("POST", body=PING)).status == 404


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (pack(">BII", DATA, 7, 1) + b"x", b""),
        (pack(">BII", DATA, 1, 2**31), b""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        (pack(">BII", DATA, 1, 12) + b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
    ],
    ids=["a number that is not the next", "a frame without end", "HTTP in place of frames", "a stream of no HTTP"],
)
async def test_a_member_that_breaks_the_rules_loses_its_connection_or_its_stream_and_no_other_one(
    tmp_path: Path, sent: bytes, expected: bytes
) -> None:
    files = FleetFiles(tmp_path)
    shown = context(files.files, files.authority.ca)
    speaks_streams = context(files.files, files.authority.ca)
    speaks_streams.set_alpn_protocols([STREAMS])
    async with open_site(files, A) as a:
        await a.client.open()
        stream = await trio.open_tcp_stream("127.0.0.1", a.port)
        async with trio.SSLStream(stream, speaks_streams, https_compatible=True) as secured:
            with trio.fail_after(5):
                await secured.send_all(sent)
                received = bytes(await secured.receive_some())
                while expected and END not in [kind for kind, _, _ in frames(received)]:
                    received += await secured.receive_some()
            assert b"".join(content for _, _, content in frames(received)).startswith(expected)
        assert (await ask(a, shown, headers={HOP: A, "mcp-session-id": a.client.session or ""}))[0] == 200


async def test_a_process_that_stops_sends_what_it_has_answered_to_a_member_that_reads_late(tmp_path: Path) -> None:
    """More than the socket takes at once."""
    files, streams, answer = FleetFiles(tmp_path), range(1, 41), b"x" * 60_000
    speaks_streams = context(files.files, files.authority.ca)
    speaks_streams.set_alpn_protocols([STREAMS])
    stop, bound = trio.Event(), bind("127.0.0.1", 0)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)
    served = list[Scope]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(scope)
        await respond(send, 200, {}, answer)

    serve = partial(
        serve_http,
        app,
        bound,
        certificate=files.certificate(A),
        stop=stop,
        connection=MemberConnection,
        grace=lambda: 60,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        stream = await trio.open_tcp_stream("127.0.0.1", bound.getsockname()[1])
        async with trio.SSLStream(stream, speaks_streams, https_compatible=True) as secured:
            asked = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            await secured.send_all(b"".join(pack(">BII", DATA, id, len(asked)) + asked for id in streams))
            with trio.fail_after(20):
                while len(served) < len(streams):  # noqa: ASYNC110 - by looks
                    await trio.sleep(0.01)
                stop.set()
                while bound.fileno() >= 0:  # noqa: ASYNC110 - by looks
                    await trio.sleep(0.01)
                received = bytearray()
                while part := await secured.receive_some(65536):
                    received += part
    found = frames(bytes(received))
    assert {id for kind, id, _ in found if kind == END} == set(streams)
    for id in streams:
        assert b"".join(content for _, stream, content in found if stream == id).endswith(b"\r\n\r\n" + answer)


def frames(received: bytes) -> list[tuple[int, int, bytes]]:
    """The kind, the stream and the content of each whole frame."""
    found = []
    while len(received) >= 9:
        kind, stream, number = unpack(">BII", received[:9])
        size = number if kind == DATA else 0
        found.append((kind, stream, received[9 : 9 + size]))
        received = received[9 + size :]
    return found
