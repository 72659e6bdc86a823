"""The sentences for connections that cannot be made: fixed words, whatever the operating system says."""

from __future__ import annotations

import socket
import ssl

import pytest
import trio

from host.errors import copy_of
from host.wire.http_errors import Broken, HttpRefused, ProxyRefused, bad_proxy, connect_failure


def certificate(code: int) -> ssl.SSLError:
    problem = ssl.SSLCertVerificationError("10.0.0.1 is not welcome")
    problem.verify_code = code
    return problem


def alert(reason: str) -> ssl.SSLError:
    problem = ssl.SSLError("10.0.0.1 is not welcome")
    problem.reason = reason
    return problem


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (certificate(10), "TLS: certificate expired"),
        (certificate(62), "TLS: the certificate is for another name"),
        (certificate(64), "TLS: the certificate is for another name"),
        (certificate(18), "TLS: certificate not trusted"),
        (certificate(92), "TLS: a certificate has less than RFC 5280 requires"),
        (ssl.SSLError("wrong version number"), "TLS: the handshake failed"),
        (socket.gaierror(socket.EAI_NONAME, "10.0.0.53"), "name not found"),
        (UnicodeError("label too long"), "name not found"),
        (trio.TooSlowError(), "timed out after 10 s"),
        (ConnectionRefusedError(111, "10.0.0.1"), "connection refused"),
        (ProxyRefused(403), "its proxy opened no connection to it"),
        (ProxyRefused(407), "its proxy wants credentials (HTTP 407)"),
        (certificate(9), "TLS: the certificate is not valid yet"),
        (alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "TLS: the server refused the handshake"),
        (alert("TLSV1_UNRECOGNIZED_NAME"), "TLS: the server refused the handshake"),
        (alert("WRONG_VERSION_NUMBER"), "TLS: the handshake failed"),
        (OSError("10.0.0.1"), "no connection"),
    ],
)
@pytest.mark.parametrize("nested", ["", "cause", "group"])
def test_a_failure_is_one_of_few_sentences(problem: Exception, why: str, nested: str) -> None:
    """Wherever the cause is among the exceptions."""
    raised: Exception = problem
    if nested == "cause":
        raised = trio.BrokenResourceError("10.0.0.1")
        raised.__cause__ = problem
    elif nested == "group":
        raised = OSError("all attempts to connect to 10.0.0.1 failed")
        raised.__cause__ = ExceptionGroup("multiple", [OSError("x"), problem])
    if nested and isinstance(problem, trio.TooSlowError):
        return  # only the time for connecting counts
    found, remedy = connect_failure(raised)
    assert found == why
    assert remedy
    assert "10.0.0" not in found + remedy


def test_a_copy_of_a_broken_exchange_says_the_same() -> None:
    """It ends the other exchanges of a link."""
    broken = Broken("why", unanswered=True)
    broken.unwritten = True
    copied = copy_of(broken)
    assert (str(copied), copied.unanswered, copied.unwritten) == ("why", True, True)


def test_what_can_be_mended_says_how() -> None:
    assert bad_proxy().remedy == "correct HTTPS_PROXY"
    assert HttpRefused(500, "the server failed").with_remedy == "the server failed (HTTP 500): its own log says more"
    assert HttpRefused(501, "it has no POST", "correct it").with_remedy == "it has no POST (HTTP 501): correct it"
