"""The model alone: what may be built without a file, and what it says about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import Consent, HttpServer, KindConsent, Listen, Secret, StdioServer, is_loopback


def test_servers_can_be_built_by_hand() -> None:
    """A host embedded in a program needs no file; the defaults are those of the file."""
    child = StdioServer(id="a", program=Secret("/bin/x", shown="x"), args=(Secret("k"),), cwd=Path("/"))
    remote = HttpServer(id="b", url=Secret("http://h/?k", shown="http://h/"))
    assert repr(child) == "<StdioServer a: x (1 argument)>"
    assert repr(remote) == "<HttpServer b: http://h/>"
    assert (child.timeout, child.start_timeout, child.disabled) == (60.0, 60.0, False)
    assert (child.env, remote.headers, remote.consent) == ({}, {}, Consent())
    assert (child.trust, child.isolation, child.max_instances, child.idle_timeout) == ("standard", "shared", 16, 300.0)
    assert (child.protocol, remote.protocol) == ("auto", "auto")
    assert child == StdioServer(id="a", program=Secret("/bin/x"), args=(Secret("k"),), cwd=Path("/"))
    assert len({child, child}) == 1


def test_an_endpoint_asks_nobody_by_default() -> None:
    """What it knows of tokens is safe to show."""
    assert Listen().tokens == {}
    assert Listen().sse
    assert "t0ken" not in repr(Listen(tokens={"me": Secret("t0ken")}))


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_loopback(host: str, answer: bool) -> None:
    """All of 127/8; an address that stands for all is none."""
    assert is_loopback(host) is answer


def test_consent_allows_by_default() -> None:
    """None is no list at all; an empty list is a list that names nothing."""
    assert Consent().tools == KindConsent(allow=None, deny=())
