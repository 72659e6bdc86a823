"""HTTP requests for a login: to authorization servers, and for the metadata of a protected resource.

A server names these addresses, so they are not trusted: https outside loopback, no redirects, MAX_DOCUMENT bytes and
TIMEOUT seconds for an answer, and only addresses that `host.oauth.addresses` permits. A name is looked up once, each of
its addresses is checked, and the connection is made to a checked one, so that a name that changes its address leads
nowhere else. Behind a proxy (`HTTPS_PROXY`) it is the proxy that looks names up. Nothing of a request or an answer is
in an error.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

import trio

from config import Zone, zone_of
from host.oauth.addresses import check_url, check_zone, literal_zone
from host.oauth.problem import OAuthProblem
from host.oauth.token_forms import Form
from host.url import Url
from host.version import VERSION
from host.wire.http_connection import STREAM_ERRORS, ByteChannel
from host.wire.http_pool import Headers, Pool, open_channel
from host.wire.link import LinkLost
from host.wire.proxies import InvalidProxy, proxy_for
from host.wire.turns import Turns

MAX_DOCUMENT = 64 * 1024
TIMEOUT = 5.0
TOKEN_TIMEOUT = 10.0
"""Seconds for a request to a token endpoint: some issuers look something up for it."""

_COMMON: Headers = [(b"User-Agent", f"colonnade/{VERSION}".encode()), (b"Accept-Encoding", b"identity")]


class IssuerUnreachable(OAuthProblem):
    """The issuer gave no answer; a later attempt may succeed."""


class Answer(NamedTuple):
    status: int
    body: bytes


class IssuerHttp:
    """Requests for the login at one configured server.

    Args:
        home: the zone of that server; see `find_home`.
        host: the host of that server, which has to stay in its zone: otherwise a name could lead inside while its zone
            is looked at, and outside for the documents that name an issuer inside.
    """

    def __init__(self, home: Zone, host: str = "") -> None:
        self.home = home
        self._host = host

    @classmethod
    async def of(cls, server: Url) -> IssuerHttp:
        """Those for the login at this server.

        Raises:
            IssuerUnreachable: its name cannot be looked up.
        """
        return cls(await find_home(server), server.host)

    async def get(self, url: Url) -> bytes | None:
        """A JSON document; None if there is none.

        Raises:
            IssuerUnreachable: there was no answer, or one that may be another one later.
            OAuthProblem: the address is not permitted, or the answer too long.
        """
        headers = [*_COMMON, (b"Accept", b"application/json")]
        answer = await self._request("GET", url, headers, None, TIMEOUT)
        if answer.status == 429 or answer.status >= 500:
            raise IssuerUnreachable(f"the issuer's server failed (HTTP {answer.status})")
        return answer.body if answer.status == 200 else None

    async def post(self, url: str, form: Form) -> Answer:
        """Post a form, or another body, to an endpoint of an issuer.

        Raises:
            IssuerUnreachable, OAuthProblem: as in `get`.
        """
        answer = await self._request("POST", Url.parse(url), [*_COMMON, *form.headers], form.body, TOKEN_TIMEOUT)
        if answer.status == 429 or answer.status >= 500:
            raise IssuerUnreachable(f"the issuer's server failed (HTTP {answer.status})")
        return answer

    async def _request(self, method: str, url: Url, headers: Headers, body: bytes | None, timeout: float) -> Answer:
        check_url(url, self.home)
        pool = Pool(Turns(), self._connect)
        try:
            with trio.fail_after(timeout):
                response = await pool.request(method, url, headers, body)
                data = bytearray()
                while piece := await response.read():
                    data += piece
                    if len(data) > MAX_DOCUMENT:
                        raise OAuthProblem(f"the issuer sent more than {MAX_DOCUMENT // 1024} KiB")
                return Answer(response.status, bytes(data))
        except trio.TooSlowError:
            raise IssuerUnreachable(f"the issuer did not answer within {timeout:.0f} s") from None
        except LinkLost as problem:
            raise IssuerUnreachable(f"the issuer gave no answer: {problem}") from None
        finally:
            await pool.aclose()

    async def _connect(self, url: Url) -> ByteChannel:
        try:
            if proxy_for(url, os.environ) is not None:
                return await open_channel(url)
        except InvalidProxy:
            return await open_channel(url)  # which says so
        addresses = await _look_up(url)
        for address in addresses:
            zone = zone_of(address)
            check_zone(zone, self.home)
            if url.host == self._host and zone is not self.home:
                raise OAuthProblem("the name of the server leads elsewhere now: nothing is sent there")
        for address in addresses[:-1]:
            try:
                return await open_channel(url, address)
            except STREAM_ERRORS:
                continue
        return await open_channel(url, addresses[-1])


async def find_home(server: Url) -> Zone:
    """The zone of a configured server: that of its address, or of the addresses of its name. A name that leads to
    loopback is not there unless it is loopback's own: its owner could have any name lead there.

    Raises:
        IssuerUnreachable: the name cannot be looked up.
    """
    literal = literal_zone(server.host)
    if literal is not None:
        return literal
    try:
        if proxy_for(server, os.environ) is not None:
            return Zone.PUBLIC
        zones = {zone_of(address) for address in await _look_up(server)}
    except (OSError, UnicodeError, InvalidProxy):
        raise IssuerUnreachable("the name of the server cannot be looked up") from None
    return Zone.PRIVATE if zones == {Zone.PRIVATE} else Zone.PUBLIC


async def _look_up(url: Url) -> list[str]:
    found = await trio.socket.getaddrinfo(url.host, url.connect_port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
