"""The server's side of TLS, without a socket: whatever way its bytes come."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from host.wire.buffered_tls import OVERHEAD, BufferedTls
from host.wire.certificate import Certificate
from tests.kit.certificates import write_certificate


class Client:
    """The other side, of the standard library."""

    def __init__(self, cert: Path) -> None:
        context = ssl.create_default_context(cafile=cert)
        context.set_alpn_protocols(["h2", "http/1.1"])
        self.received, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.received, self.sent, server_hostname="localhost")

    def shake_hands(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def meets(self, server: BufferedTls, step: int = 65536) -> None:
        """Both shake hands. The server gets `step` bytes at a time."""
        is_done = False
        while not is_done:
            self.shake_hands()
            while (data := self.sent.read(step)) and not is_done:
                is_done = server.shake_hands(data)
                self.received.write(server.take_output())
        assert self.shake_hands()


@pytest.fixture
def cert(tmp_path: Path) -> Path:
    write_certificate(tmp_path)
    return tmp_path / "cert.pem"


def made(cert: Path, protocol: str = "http/1.1") -> BufferedTls:
    return BufferedTls(Certificate(cert, cert.parent / "key.pem").contexts[protocol])


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
def test_each_listener_offers_its_own_protocol(protocol: str, cert: Path) -> None:
    client = Client(cert)
    client.meets(made(cert, protocol))
    assert client.tls.selected_alpn_protocol() == protocol


@pytest.mark.parametrize("step", [1, 100, 65536])
def test_content_comes_when_its_record_is_complete(step: int, cert: Path) -> None:
    client, server = Client(cert), made(cert)
    client.meets(server, step)
    client.tls.write(b"x" * 40_000 + b"end")
    records = client.sent.read()
    parts = [server.decrypt(records[at : at + step]) for at in range(0, len(records), step)]
    assert b"".join(parts) == b"x" * 40_000 + b"end"
    client.tls.write(b"short")
    assert len(client.sent.read()) <= 5 + OVERHEAD
    assert server.take_output() == b""


def test_what_is_sent_is_read_by_the_client_in_its_order(cert: Path) -> None:
    client, server = Client(cert), made(cert)
    client.meets(server)
    client.received.write(server.encrypt(b"one") + server.encrypt(b"y" * 100_000))
    received = b""
    while len(received) < 100_003:
        received += client.tls.read(65536)
    assert received == b"one" + b"y" * 100_000


def test_the_end_that_a_client_announces_is_no_error(cert: Path) -> None:
    client, server = Client(cert), made(cert)
    client.meets(server)
    client.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    assert server.decrypt(client.sent.read()) == b"last"
    assert server.has_ended


def test_bytes_that_are_no_tls_raise_and_leave_a_word_for_the_client(cert: Path) -> None:
    server = made(cert)
    with pytest.raises(ssl.SSLError):
        server.shake_hands(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    client, server = Client(cert), made(cert)
    client.meets(server)
    with pytest.raises(ssl.SSLError):
        server.decrypt(b"\x17\x03\x03\x00\x20" + b"\x00" * 32)
    assert server.take_output()
