"""Client of a running endpoint, for the command line. It works with any MCP server over Streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import trio
from msgspec import Raw

from host.catalog import param_headers_in
from host.exchange import ProgressCallback
from host.jsonrpc.messages import METHOD_NOT_FOUND, ErrorBody, Notification, Request
from host.jsonrpc.raw import EMPTY_OBJECT, is_object, members
from host.peer.peer import InFlight, Peer, open_peer
from host.protocol.methods import LIST_METHODS, PING, TOOLS_CALL, Kind
from host.protocol.negotiated import NegotiatedServer
from host.protocol.param_headers import ParamHeader
from host.protocol.stateless import strip_hop_fields
from host.protocol.versions import STATELESS
from host.upstream.negotiate import Dialect, internal_request, negotiate
from host.upstream.pages import read_list
from host.wire.http_client import fetch_json, open_http

TIMEOUT = 15.0
"""Seconds for the negotiation with a server, or for the status of a host."""


@dataclass(frozen=True, slots=True)
class McpClient:
    peer: Peer[None]
    negotiated: NegotiatedServer

    async def request(self, method: str, params: Raw | None, report: ProgressCallback | None = None) -> Raw:
        """Send a request; return the result in the common form of all revisions. `report` gets the server's progress;
        None for none.

        Raises:
            PeerError, BrokenAnswer, LinkLost: see `Peer.request`.
        """
        with self.peer.progress_token(report) if report is not None else nullcontext() as token:
            return await self._request(method, params, token)

    async def _request(self, method: str, params: Raw | None, token: int | None) -> Raw:
        revision = self.negotiated.revision
        repeats_arguments = revision.era is STATELESS and method == TOOLS_CALL.name
        param_headers = await self._param_headers(params) if repeats_arguments else ()
        result = await internal_request(
            self.peer, revision, {}, method, params, param_headers=param_headers, token=token
        )
        return strip_hop_fields(result) if revision.era is STATELESS and is_object(result) else result

    async def _param_headers(self, params: Raw | None) -> tuple[ParamHeader, ...]:
        """The arguments of the tool that headers must repeat."""
        tool_name = members(params or b"{}").get("name")
        definitions: list[Raw] = []
        await read_list(
            self.request, LIST_METHODS[Kind.TOOL], definitions, [], lambda why: None, cursors_may_be_empty=True
        )
        return next((param_headers_in(each) for each in definitions if members(each).get("name") == tool_name), ())


class _ResponsesOnly:
    """Message handler that takes responses only."""

    def owner_of(self, subject: None) -> Hashable:
        return None

    def on_request(self, peer: Peer[None], request: Request, in_flight: InFlight[None]) -> Raw | ErrorBody:
        if request.method == PING:
            return EMPTY_OBJECT
        return ErrorBody(METHOD_NOT_FOUND, "this client does not offer that method")

    def refuses(self, method: str) -> ErrorBody | None:
        return None

    def on_notification(self, notice: Notification, in_flight: InFlight[None]) -> None:
        return

    def on_dropped(self, what: str, detail: str, size: int = 0, *, awaited: bool = False) -> None:
        return


@asynccontextmanager
async def open_mcp_client(url: str, headers: Mapping[str, str]) -> AsyncIterator[McpClient]:
    """A connected client, for the block.

    Raises:
        LinkLost, PeerError, BrokenAnswer, ValueError, trio.TooSlowError: there is no usable MCP server at the URL.
    """
    handler = _ResponsesOnly()
    async with open_http(url, headers, handler.on_dropped) as link, open_peer(link, handler) as peer:
        with trio.fail_after(TIMEOUT):
            negotiated = await negotiate(link, peer, {}, Dialect(), is_process=False)
        yield McpClient(peer, negotiated)


async def fetch_status(url: str, headers: Mapping[str, str]) -> object | None:
    """Fetch `GET /status` of the host behind `url`, for all servers or for the one whose own endpoint `url` is; None if
    it is not a Colonnade host."""
    parts = urlsplit(url)
    with trio.move_on_after(TIMEOUT):
        status = await fetch_json(urlunsplit((parts.scheme, parts.netloc, "/status", "", "")), headers)
        if isinstance(status, dict) and "colonnade" in status:
            selected = [server for server in status["servers"] if server["id"] == parts.path.rpartition("/")[2]]
            return {**status, "servers": selected} if selected else status
    return None
