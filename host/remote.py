"""A client of an endpoint that runs somewhere, for the command line: any MCP server over Streamable HTTP will do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import trio
from msgspec import Raw

from host.asking import PeerError
from host.catalog import param_headers_in
from host.jsonrpc.messages import METHOD_NOT_FOUND, ErrorBody, Notification, Request
from host.jsonrpc.raw import EMPTY_OBJECT, is_object, members
from host.peer import Behind, Peer, open_peer
from host.protocol.methods import CALL, LISTINGS, PING, Kind
from host.protocol.mirror import Mirror
from host.protocol.offer import ServerOffer
from host.protocol.stateless import bare
from host.upstream.begin import Manner, ask, begin
from host.upstream.listing import read_list
from host.wire.http_client import fetch_json, open_http

PATIENCE = 15.0


@dataclass(frozen=True, slots=True)
class Remote:
    peer: Peer[None]
    offer: ServerOffer

    async def ask(self, method: str, params: Raw | None) -> Raw:
        """The result, in the form that all revisions share.

        Raises:
            PeerError, BrokenAnswer, LinkLost: see `Peer.request`.
        """
        revision = self.offer.revision
        if not revision.stateless:
            return await self.peer.request(method, params)
        mirrors = await self._mirrors(params) if method == CALL.name else ()
        result = await ask(self.peer, revision, {}, method, params, mirrors=mirrors)
        return bare(result) if is_object(result) else result

    async def _mirrors(self, params: Raw | None) -> tuple[Mirror, ...]:
        """What headers must repeat of the arguments of the tool that is to be called."""
        wanted = members(params or b"{}").get("name")
        found: list[Raw] = []
        await read_list(self.ask, LISTINGS[Kind.TOOL], found, [], lambda why: None, cursors_may_be_empty=True)
        return next((param_headers_in(each) for each in found if members(each).get("name") == wanted), ())


class _OneQuestion:
    """Hears nothing but the answer."""

    def whose(self, subject: None) -> Hashable:
        return None

    def called(self, peer: Peer[None], request: Request, behind: Behind[None]) -> Callable[[], Awaitable[Raw]]:
        return _pong if request.method == PING else _refuse

    def told(self, notice: Notification, behind: Behind[None]) -> None:
        return

    def dropped(self, what: str, detail: str) -> None:
        return


async def _pong() -> Raw:
    return EMPTY_OBJECT


async def _refuse() -> Raw:
    raise PeerError(ErrorBody(METHOD_NOT_FOUND, "this client does not offer that method"))


@asynccontextmanager
async def open_remote(url: str, headers: Mapping[str, str]) -> AsyncIterator[Remote]:
    """A connected client for the block.

    Raises:
        LinkLost, PeerError, BrokenAnswer, ValueError, trio.TooSlowError: there is no MCP server to talk to.
    """
    handler = _OneQuestion()
    async with open_http(url, headers, handler.dropped) as link, open_peer(link, handler) as peer:
        with trio.fail_after(PATIENCE):
            offered = await begin(link, peer, {}, Manner(), exits=False)
        yield Remote(peer, offered)


async def fetch_status(url: str, headers: Mapping[str, str]) -> object | None:
    """What `GET /status` of the host behind `url` says, of all its servers or of the one whose own endpoint `url` is;
    None if that is no Colonnade."""
    parts = urlsplit(url)
    with trio.move_on_after(PATIENCE):
        found = await fetch_json(urlunsplit((parts.scheme, parts.netloc, "/status", "", "")), headers)
        if isinstance(found, dict) and "colonnade" in found:
            one = [server for server in found["servers"] if server["id"] == parts.path.rpartition("/")[2]]
            return {**found, "servers": one} if one else found
    return None
