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
from contextlib import suppress
from typing import NamedTuple

import msgspec
import trio

from config import Zone, zone_of
from host.oauth.addresses import check_url, check_zone, literal_zone
from host.oauth.problem import OAuthProblem
from host.oauth.token_forms import Form
from host.url import Url
from host.version import VERSION
from host.wire.http_errors import Unreachable, unreachable
from host.wire.http_pool import Headers
from host.wire.link import LinkLost
from host.wire.proxies import InvalidProxy, proxy_for

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
        """A JSON document; None if there is none, as where a web application answers each path with its page.

        Raises:
            IssuerUnreachable: there was no answer, or one that may be another one later.
            OAuthProblem: the address is not permitted, or the answer too long.
        """
        headers = [*_COMMON, (b"Accept", b"application/json")]
        answer = await self._request("GET", url, headers, None, TIMEOUT)
        if answer.status == 429 or answer.status >= 500:
            raise IssuerUnreachable(f"the issuer's server failed (HTTP {answer.status})")
        return answer.body if answer.status == 200 and _is_json(answer.body) else None

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
        from host.wire.single_request import send  # most hosts have no login, and importing httpx takes 45 ms

        check_url(url, self.home)
        try:
            with trio.fail_after(timeout):
                *others, last = await self._addresses(url)
                answer = None
                for address in others:
                    with suppress(Unreachable):
                        answer = await send(method, url, headers, body, limit=MAX_DOCUMENT, address=address)
                        break
                answer = answer or await send(method, url, headers, body, limit=MAX_DOCUMENT, address=last)
        except trio.TooSlowError:
            raise IssuerUnreachable(f"the issuer did not answer within {timeout:.0f} s") from None
        except LinkLost as problem:
            raise IssuerUnreachable(f"the issuer gave no answer: {problem}") from None
        data = answer.body
        if len(data) > MAX_DOCUMENT and (method == "POST" or data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"<"):
            raise OAuthProblem(f"the issuer sent more than {MAX_DOCUMENT // 1024} KiB")
        # Only of JSON, a part can be told from the whole. A page that is no metadata may end as it likes.
        if method == "POST" and not answer.has_length and not _is_json(data):
            raise IssuerUnreachable("the issuer's answer had no length, and is not complete JSON")
        return Answer(answer.status, data)

    async def _addresses(self, url: Url) -> list[str | None]:
        """The permitted addresses to connect to, one after the other. None: the proxy looks the name up."""
        try:
            if proxy_for(url, os.environ) is not None:
                return [None]
        except InvalidProxy:
            return [None]  # `send` says so
        try:
            addresses = await _look_up(url)
        except (OSError, UnicodeError) as problem:
            raise unreachable(problem) from problem
        for address in addresses:
            zone = zone_of(address)
            check_zone(zone, self.home)
            if url.host == self._host and zone is not self.home:
                raise OAuthProblem("the name of the server leads elsewhere now: nothing is sent there")
        return [*addresses]


def _is_json(body: bytes) -> bool:
    """Whether it is JSON in UTF-8 (which `raw.is_json` takes for granted), also if it is nested too deep to be read."""
    try:
        msgspec.json.decode(body)
    except ValueError:
        return False
    except RecursionError:
        pass
    return True


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
