"""HTTP/1.1 over TLS, over real sockets: what differs from plain HTTP, which test_listener.py and test_acceptor.py are
about."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from host.wire import client_socket
from host.wire.asgi import Begun, Immediate, Receive, Scope, Send, immediate, respond
from host.wire.buffered_tls import BufferedTls
from host.wire.certificate import Certificate
from host.wire.client_socket import ClientSocket
from tests.kit.certificates import write_certificate

from .sites import (
    GET,
    SOON,
    Flood,
    Site,
    begin,
    finish,
    half_closes,
    hello,
    leaves_with_fin,
    reset,
    serving,
    until_gone,
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_certificate(tmp_path)


async def connect(site: Site, cert: Path, *protocols: str) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context(cafile=cert)
    context.set_alpn_protocols(protocols or ("http/1.1",))
    stream = trio.SSLStream(await site.connect(), context, server_hostname="localhost", https_compatible=True)
    with trio.fail_after(SOON):
        await stream.do_handshake()
    return stream


async def read_to(stream: trio.SSLStream[trio.SocketStream], end: bytes) -> bytes:
    received = b""
    with trio.fail_after(SOON):
        while end not in received:
            data = await stream.receive_some()
            assert data, received
            received += data
    return received


async def ends(stream: trio.abc.ReceiveStream) -> bool:
    with trio.fail_after(SOON), suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    return True


async def test_who_is_told_to_go_on_does_so_though_its_client_sends_a_part_of_a_record(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in one pass of the event loop: nobody waits for the socket as it is told."""
    app, decrypt = Begins(), ClientSocket.decrypt

    def tell(connection: ClientSocket, tls: BufferedTls, data: bytes) -> bytes:
        if data == PART_OF_RECORD:
            app.at_once.end_begun(in_task=True)
        return decrypt(connection, tls, data)

    monkeypatch.setattr(ClientSocket, "decrypt", tell)
    async with serving(app.serve, certificate=Certificate(*files)) as site:
        stream = await connect(site, files[0])
        await stream.send_all(GET)
        with trio.fail_after(SOON):
            await app.has_begun.wait()
        await stream.transport_stream.send_all(PART_OF_RECORD)
        await read_to(stream, b"by the task")
        await trio.aclose_forcefully(stream)


PART_OF_RECORD = b"\x17\x03\x03"


class Begins:
    """An app that begins each request, and answers it in its task."""

    at_once: Immediate

    def __init__(self) -> None:
        self.has_begun = trio.Event()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        assert at_once.repeat(self.begin)

    def begin(self, at_once: Immediate, body: bytes) -> Begun:
        self.at_once = at_once
        self.has_begun.set()
        return self

    async def go_on(self) -> None:
        await respond(self.at_once.send, 200, {}, b"by the task")

    def give_up(self) -> None:
        return


async def lives_on(site: Site, cert: Path) -> None:
    stream = await connect(site, cert)
    await stream.send_all(GET)
    await read_to(stream, b"got    0")
    await stream.transport_stream.aclose()


async def test_requests_follow_each_other_over_tls(files: tuple[Path, Path]) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await hello(scope, receive, send)

    async with serving(app, certificate=Certificate(*files)) as site:
        stream = await connect(site, files[0])
        for size in (0, 3, 200_000):
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            assert (await read_to(stream, b"got %4d" % size)).startswith(b"HTTP/1.1 200")
        await stream.transport_stream.aclose()
    assert {(scope["scheme"], scope["http_version"]) for scope in scopes} == {("https", "1.1")}


async def test_a_renewed_certificate_is_for_the_next_connection(tmp_path: Path, files: tuple[Path, Path]) -> None:
    certificate = Certificate(*files)
    async with serving(hello, certificate=certificate) as site:
        old = await connect(site, files[0])
        write_certificate(tmp_path)
        assert certificate.read()
        new = await connect(site, files[0])
        for stream in (old, new):
            await stream.send_all(GET)
            await read_to(stream, b"got    0")
        assert old.getpeercert(binary_form=True) != new.getpeercert(binary_form=True)
        for stream in (old, new):
            await stream.transport_stream.aclose()


@pytest.mark.parametrize(
    "sent",
    [
        GET,
        b"\x00" * 300,
        bytes.fromhex("16030100c8010000c40303"),
        b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["plain HTTP", "zeros", "half a hello", "a huge record", "HTTP/2 without TLS"],
)
async def test_bytes_that_are_no_tls_end_their_connection_only(
    sent: bytes, files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(hello, certificate=Certificate(*files), head_timeout=1) as site:
        async with await site.connect() as stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(sent)
            assert await ends(stream)
        await lives_on(site, files[0])
    assert caplog.records == []


async def test_bytes_that_are_no_tls_right_behind_the_handshake(
    files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context(cafile=files[0]).wrap_bio(received, sent, server_hostname="localhost")
    async with serving(hello, certificate=Certificate(*files)) as site, await site.connect() as stream:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await stream.send_all(sent.read())
                received.write(await stream.receive_some())
        await stream.send_all(sent.read() + b"\x00" * 300)
        assert await ends(stream)
        await lives_on(site, files[0])
    assert caplog.records == []


async def test_a_handshake_that_does_not_go_on_is_cut(files: tuple[Path, Path]) -> None:
    async with (
        serving(hello, certificate=Certificate(*files), head_timeout=0.4) as site,
        await site.connect() as silent,
    ):
        started = trio.current_time()
        assert await ends(silent)
        assert trio.current_time() - started > 0.3
        await lives_on(site, files[0])


async def test_an_old_version_of_tls_is_refused(files: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=files[0])
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(hello, certificate=Certificate(*files)) as site:
        stream = trio.SSLStream(await site.connect(), context, server_hostname="localhost")
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        await stream.transport_stream.aclose()
        await lives_on(site, files[0])


@pytest.mark.parametrize("leave", [leaves_with_fin, half_closes, reset])
async def test_the_disconnect_is_heard_at_once(
    leave: Callable[[trio.SocketStream], None], files: tuple[Path, Path]
) -> None:
    ready, gone = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        ready.set()
        await until_gone(receive)
        gone.set()

    async with serving(app, certificate=Certificate(*files)) as site:
        stream = await connect(site, files[0])
        await stream.send_all(GET)
        await ready.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        leave(stream.transport_stream)
        with trio.fail_after(SOON):
            await gone.wait()
        await stream.transport_stream.aclose()


async def test_a_client_that_does_not_read_is_dropped(files: tuple[Path, Path]) -> None:
    app = Flood()
    async with serving(app, certificate=Certificate(*files), write_timeout=0.5) as site:
        stream = await connect(site, files[0])
        await stream.send_all(GET.replace(b"/ ", b"/flood "))
        with trio.fail_after(SOON):
            await app.gone.wait()
            await app.ended.wait()
        await stream.transport_stream.aclose()
        await lives_on(site, files[0])


async def test_nothing_is_written_into_the_middle_of_a_part_that_is_sent_as_its_client_sends(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL may have to answer what the client sent, while the rest of the part waits for its task."""
    size, waiting, taken = 8 * 1024 * 1024, list[Immediate](), list[bool]()
    wait_readable, take_output = trio.lowlevel.wait_readable, BufferedTls.take_output

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await begin(send)
        waiting.append(at_once)
        assert await at_once.wait_client(60, b"")
        assert await at_once.wait_client(60, b"")
        taken.append(True)
        await send({"type": "http.response.body", "body": b"c"})

    async def send_before_the_reader_runs(fd: int) -> None:
        await wait_readable(fd)
        if waiting:
            taken.append(waiting.pop().send_part(b"b" * size))

    def answer_at_once(tls: BufferedTls) -> bytes:
        return b"no record" if taken == [False] else take_output(tls)

    async with serving(app, certificate=Certificate(*files)) as site:
        stream = await connect(site, files[0])
        monkeypatch.setattr(trio.lowlevel, "wait_readable", send_before_the_reader_runs)
        monkeypatch.setattr(BufferedTls, "take_output", answer_at_once)
        await stream.send_all(GET)
        await read_to(stream, b"\r\n\r\n")
        await stream.transport_stream.send_all(b"\x17")  # the beginning of a record
        received = bytearray()
        with trio.fail_after(SOON), suppress(trio.BrokenResourceError):
            while not received.endswith(b"1\r\nc\r\n0\r\n\r\n") and (data := await stream.receive_some(1024 * 1024)):
                received += data
        assert received.count(b"b") == size
        assert taken == [False, True]
        await stream.transport_stream.aclose()


async def test_a_sign_of_life_that_openssl_refuses_to_encrypt_ends_its_connection_alone(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent by the clock of all deadlines, which must go on."""
    encrypt, left = BufferedTls.encrypt, trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        at_once = immediate(scope)
        assert at_once is not None
        await begin(send)
        if scope["path"] == "/refused":
            assert not await at_once.wait_client(0.05, b"sign")
            left.set()
        else:
            assert not await at_once.wait_client(0.05, b"other")

    def refuse(tls: BufferedTls, content: bytes | memoryview) -> bytes:
        if b"sign" in bytes(content):
            raise ssl.SSLError("no more records")
        return encrypt(tls, content)

    monkeypatch.setattr(client_socket, "ALARMS_A_SECOND", 100)
    monkeypatch.setattr(BufferedTls, "encrypt", refuse)
    async with serving(app, certificate=Certificate(*files)) as site:
        other, refused = await connect(site, files[0]), await connect(site, files[0])
        await other.send_all(GET)
        await refused.send_all(GET.replace(b"/ ", b"/refused "))
        with trio.fail_after(SOON):
            await left.wait()
        await read_to(other, b"other" + b"\r\n5\r\nother" * 2)
        for stream in (other, refused):
            await stream.transport_stream.aclose()


async def test_an_answer_to_a_client_that_still_sends_reaches_it(files: tuple[Path, Path]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await finish(send)

    async with serving(app, certificate=Certificate(*files)) as site:
        stream = await connect(site, files[0])
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 500_000)
        assert b"connection: close" in await read_to(stream, b"done")
        assert await ends(stream)
        await stream.transport_stream.aclose()


async def test_a_long_answer_is_written_whole_before_the_connection_is_closed(files: tuple[Path, Path]) -> None:
    size = 4 * 1024 * 1024

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"\xee" * size})

    async with serving(app, certificate=Certificate(*files)) as site:
        stream = await connect(site, files[0])
        await stream.send_all(GET)
        received = 0
        with trio.fail_after(SOON):
            while data := await stream.receive_some():
                received += data.count(b"\xee")
        assert received == size
        await stream.transport_stream.aclose()


async def test_stop_lets_a_request_end_and_closes_the_rest_at_once(files: tuple[Path, Path]) -> None:
    ready, go = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            ready.set()
            await go.wait()
        await finish(send)

    async with serving(app, certificate=Certificate(*files), grace=5) as site:
        idle, busy = await connect(site, files[0]), await connect(site, files[0])
        await idle.send_all(GET)
        await read_to(idle, b"done")
        await busy.send_all(GET.replace(b"/ ", b"/slow "))
        await ready.wait()
        site.stop.set()
        assert await ends(idle)
        go.set()
        assert b"connection: close" in await read_to(busy, b"done")
        with trio.fail_after(SOON):
            await site.ended.wait()
        for stream in (idle, busy):
            await stream.transport_stream.aclose()


async def test_cancelling_ends_everything_at_once(files: tuple[Path, Path]) -> None:
    app = Flood()
    async with serving(app, certificate=Certificate(*files), write_timeout=60) as site:
        stream = await connect(site, files[0])
        await stream.send_all(GET.replace(b"/ ", b"/flood "))
        await app.stuck()
        site.scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(SOON):
            await app.ended.wait()
    await stream.transport_stream.aclose()
