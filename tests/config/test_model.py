"""The model alone: what may be built without a file, and what it says about itself."""

from __future__ import annotations

from pathlib import Path

from config import Consent, HttpServer, KindConsent, Secret, StdioServer


def test_servers_can_be_built_by_hand() -> None:
    """A host embedded in a program needs no file; the defaults are those of the file."""
    child = StdioServer("a", Secret("/bin/x", shown="x"), (Secret("k"),), Path("/"))
    remote = HttpServer("b", Secret("http://h/?k", shown="http://h/"))
    assert repr(child) == "<StdioServer a: x (1 argument)>"
    assert repr(remote) == "<HttpServer b: http://h/>"
    assert (child.timeout, child.start_timeout, child.disabled) == (60.0, 60.0, False)
    assert (child.env, remote.headers, remote.consent) == ({}, {}, Consent())
    assert child == StdioServer("a", Secret("/bin/x"), (Secret("k"),), Path("/"))
    assert len({child, child}) == 1


def test_consent_allows_by_default() -> None:
    """None is no list at all; an empty list is a list that names nothing."""
    assert Consent().tools == KindConsent(allow=None, deny=())
