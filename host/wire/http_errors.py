"""Failures of HTTP exchanges with a server, in fixed words: no text from the server, which stands in `said` alone, and
no part of the URL."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import trio

from host.oauth.challenge import Challenge
from host.wire.http_parser import MAX_INTERIM
from host.wire.link import ConnectStage, LinkLost

CONNECT_TIMEOUT = 10.0
"""Seconds for a connection, with the tunnel through a proxy and the handshake of TLS."""
WRITE_TIMEOUT = 10.0
"""Seconds in which a server must take the next MAX_WRITE bytes (http_connection.py)."""
MAX_RETRY_PAUSE = 60.0
"""Seconds; the most that a server can ask for with `retry` or `Retry-After`."""

NOT_HTTP = "it closed the connection before the end of the response, or does not speak HTTP"
PATH_REMEDY = "correct the path in its url"
OLDER_REMEDY = "write an older revision under protocol, one that it names"
HEADERS_REMEDY = "set headers that may use it"
LET_PASS = "have its owner let this machine or its headers pass without that check"
LOGIN_PAGE_REMEDY = "set credentials under headers, or configure a URL for programs"
TLS_REMEDY = "if the server speaks TLS, begin its url with https://"
CONNECTION_BROKE = "the connection broke before the end of the response"
READS_NOTHING = f"it read no data for {WRITE_TIMEOUT:.0f} s"
TOO_MANY_INTERIM = (
    f"it sent more than {MAX_INTERIM} interim responses (1xx), or an endless one, instead of the response"
)


class ProxyRefused(OSError):
    """The proxy opened no tunnel. `status`: with which it refused; 0 if it did otherwise."""

    def __init__(self, status: int = 0) -> None:
        super().__init__("the proxy opened no tunnel")
        self.status = status


class ProxyUnreachable(OSError):
    """No connection to the proxy could be made, because of the exception that it is raised from."""


class Unreachable(LinkLost):
    """A connection to the server could not be made; nothing was sent."""

    nothing_begun = True

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


class HttpRefused(LinkLost):
    """The server returned an error status. `retry_after`: seconds from its header, at most MAX_RETRY_PAUSE, or None."""

    def __init__(self, status: int, what: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(_sentence(status, what, remedy))
        self.status = status
        # A server that fails, or a gateway that gets no response from it (502, 504), may have executed the request.
        self.nothing_begun = status < 500 or status in (501, 503, 505)
        self.retry_after = retry_after
        # 2025-11-25, "Transports / Backwards Compatibility" names 400, 404 and 405; the revisions before it, any 4xx.
        self.may_be_http_sse = 400 <= status < 500 and status not in (401, 403, 407, 408, 421, 429)
        self.answered = self.may_be_http_sse
        if self.may_be_http_sse:
            self.reached = ConnectStage.NOTHING if status in (404, 405) else ConnectStage.REFUSED
        self.remedy = "its own log says more" if status >= 500 and not remedy else ""
        self.lasting = 300 <= status < 400 or status in (401, 403, 404, 405, 407, 421, 501)

    def restate(self, what: str, remedy: str) -> None:
        """Say another cause, which the response has shown."""
        self.args = (_sentence(self.status, what, remedy),)
        self.remedy = ""

    @property
    def may_hold_answer(self) -> bool:
        """Whether servers use this status together with a JSON-RPC error response."""
        return 400 <= self.status < 500 and self.status not in (401, 403)

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 429) or self.status >= 500


class OverLimit(LinkLost):
    """The server's response is over a limit."""

    too_large = True


class AuthNeeded(HttpRefused):
    """The server needs credentials, or refused the present ones.

    `needs_login`: a person has to log in, or to log in again with the scopes of the `challenge`. `lost_login`: this
    request found the login to be over."""

    def __init__(
        self,
        status: int,
        what: str,
        remedy: str = "",
        challenge: Challenge | None = None,
        *,
        needs_login: bool = False,
        lost_login: bool = False,
    ) -> None:
        # A call that is refused is told the command for a login; the rest is for the person who runs the host.
        super().__init__(status, what, remedy if needs_login else "")
        self.remedy = "" if needs_login else remedy
        self.challenge = challenge
        self.needs_login = needs_login
        self.lost_login = lost_login

    def restate(self, what: str, remedy: str) -> None:
        super().restate(what, "")
        self.remedy = remedy

    @property
    def ends_connection(self) -> bool:
        """Whether there is nothing to connect for before a person logs in."""
        lacks_scope = self.challenge is not None and self.challenge.lacks_scope
        return self.needs_login and (self.status == 401 or not lacks_scope)


class Broken(LinkLost):
    """The connection broke during an exchange, or what came is no HTTP.

    Args:
        unanswered: no byte of a response came.
    """

    unwritten = False
    """The request was not sent, because the server had closed the connection before, or no more are made."""

    def __init__(self, why: str, *, unanswered: bool = False) -> None:
        super().__init__(why)
        self.unanswered = unanswered

    def suspect_tls(self) -> None:
        """Add the remedy for a server that has never responded without TLS. One that speaks TLS closes the connection,
        with an alert or without."""
        if str(self) in (NOT_HTTP, CONNECTION_BROKE):
            self.remedy = TLS_REMEDY


def aborted() -> Broken:
    """The error for a request for which no connection is made any more."""
    made = Broken(CONNECTION_BROKE)
    made.unwritten = True
    return made


_MISNAMED = (62, 64)
"""OpenSSL's codes for a certificate of another name or address (X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH)."""
_NOT_YET_VALID, _EXPIRED = 9, 10
"""Its codes for one whose time has not come, or is over (X509_V_ERR_CERT_NOT_YET_VALID, _CERT_HAS_EXPIRED)."""
_BELOW_RFC_5280 = range(80, 94)
"""Its codes for one that Python refuses from 3.13 on, since it has less than RFC 5280 requires (from
X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA to _EXTENSIONS_REQUIRE_VERSION_3)."""


_ALERTS = ("SSLV3_ALERT", "TLSV1")
"""The beginnings of OpenSSL's names of alerts."""


def _sentence(status: int, what: str, remedy: str) -> str:
    return f"{what} (HTTP {status}): {remedy}" if remedy else f"{what} (HTTP {status})"


_START_OR_CORRECT = "start the server, or correct its url"


def bad_proxy() -> Unreachable:
    """The error for a proxy that the environment names and that cannot be used."""
    return Unreachable("it cannot be reached: HTTPS_PROXY is not the URL of an HTTP proxy", "correct HTTPS_PROXY")


def bad_authorities() -> Unreachable:
    """The error for certificates of authorities that the environment names and that cannot be used."""
    why = "SSL_CERT_FILE is not a file with certificates in PEM format that can be read"
    return Unreachable(f"it cannot be reached: {why}", "correct SSL_CERT_FILE")


def unreachable(problem: BaseException) -> Unreachable:
    """The error for an exception that was raised in place of a connection; its words are those of `connect_failure`."""
    why, remedy = connect_failure(problem)
    return Unreachable(f"it cannot be reached: {why}", remedy)


def connect_failure(problem: BaseException) -> tuple[str, str]:
    """The reason why a connection could not be made, and what to do, in fixed words, so that they contain no
    address."""
    causes = list(causes_of(problem))
    for cause in causes:
        if isinstance(cause, ProxyRefused):
            if cause.status == 407:
                return (
                    "its proxy wants credentials (HTTP 407)",
                    "write them into HTTPS_PROXY: http://user:password@host",
                )
            return "its proxy opened no connection to it", "look at HTTPS_PROXY and NO_PROXY, and at the proxy's log"
        if isinstance(cause, ProxyUnreachable) and cause.__cause__ is not None:
            why, _ = connect_failure(cause.__cause__)
            return f"its proxy cannot be reached: {why}", "start the proxy, or correct HTTPS_PROXY or NO_PROXY"
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _MISNAMED:
                return "TLS: the certificate is for another name", "correct the host in its url"
            if cause.verify_code == _NOT_YET_VALID:
                return "TLS: the certificate is not valid yet", "look at this machine's clock"
            if cause.verify_code == _EXPIRED:
                return "TLS: certificate expired", "renew it at the server, and look at this machine's clock"
            if cause.verify_code in _BELOW_RFC_5280:
                return (
                    "TLS: a certificate has less than RFC 5280 requires",
                    "make it, or that of its authority, anew with the uses of its key and with key identifiers",
                )
            return "TLS: certificate not trusted", "name the certificate of its authority with SSL_CERT_FILE"
        if isinstance(cause, ssl.SSLError):
            if (getattr(cause, "reason", None) or "").startswith(_ALERTS):  # so the server does speak TLS
                return "TLS: the server refused the handshake", "look which clients and host names it accepts"
            return "TLS: the handshake failed", "if the server speaks no TLS, begin its url with http://"
        if isinstance(cause, socket.gaierror | UnicodeError):
            return "name not found", "correct the host in its url, or look at the network"
    if isinstance(problem, trio.TooSlowError):
        return f"timed out after {CONNECT_TIMEOUT:.0f} s", f"{_START_OR_CORRECT}, or look at the network"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "connection refused", _START_OR_CORRECT
    return "no connection", f"{_START_OR_CORRECT}, or look at the network"


def causes_of(problem: BaseException) -> Iterator[BaseException]:
    """The exception and everything it was raised from."""
    yield problem
    if isinstance(problem, BaseExceptionGroup):
        for each in problem.exceptions:
            yield from causes_of(each)
    if (cause := problem.__cause__ or problem.__context__) is not None:
        yield from causes_of(cause)
