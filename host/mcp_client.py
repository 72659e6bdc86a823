"""Client of a running endpoint, for the command line: of any MCP server over Streamable HTTP, or of the host of a
configuration over its socket for relays."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import trio
from msgspec import Raw, Struct

from host.addresses import VIEW_MARK
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
from host.relay import HELLO_TIMEOUT, MAX_HELLO, connect, first_line, socket_path
from host.upstream.negotiate import Dialect, internal_request, negotiate
from host.upstream.pages import read_list
from host.wire.descent import credentials
from host.wire.http_client import fetch_json, open_http
from host.wire.http_transport import open_origin
from host.wire.link import Link, LinkLost
from host.wire.stdio import StdioLink

TIMEOUT = 15.0
"""Seconds for the negotiation with a server, or for the status of a host."""
SOCKET_TIMEOUT = 10.0
"""Seconds in which the socket of a running host must be there: it follows its port, and another host may still have
it."""
_SOCKET_PAUSE = 0.05


class McpClient(Struct, frozen=True):
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

    def on_dropped(
        self, what: str, detail: str, size: int = 0, *, awaited: bool = False, answers: str = "", text: bytes = b""
    ) -> None:
        return


@asynccontextmanager
async def open_mcp_client(url: str, headers: Mapping[str, str]) -> AsyncIterator[McpClient]:
    """A connected client, for the block.

    Raises:
        LinkLost, PeerError, BrokenAnswer, ValueError, trio.TooSlowError: there is no usable MCP server at the URL.
    """
    handler = _ResponsesOnly()
    async with (
        open_origin(url, headers) as origin,
        open_http(origin, handler.on_dropped) as link,
        _open(link, handler) as client,
    ):
        yield client


@asynccontextmanager
async def open_own_client(
    config: str, state: Path, command: str, folder: str, view: str
) -> AsyncIterator[tuple[McpClient, int]]:
    """A client of the running host of a configuration, for the block, and the process of that host. It comes as a
    command of the host's owner, by the socket for relays, whatever tokens and certificates the host has besides.

    Args:
        config: the real path of the configuration.
        folder: the real path of the folder in which the command runs.
        view: the view to use; empty for none.

    Raises:
        LinkLost, PeerError, BrokenAnswer, trio.TooSlowError: there is none, or it refuses.
    """
    deadline = trio.current_time() + SOCKET_TIMEOUT
    while (connection := connect(socket_path(str(state), config))) is None:
        if trio.current_time() > deadline:
            raise LinkLost("it has ended, or its socket for commands cannot be reached")
        await trio.sleep(_SOCKET_PAUSE)
    pid, _ = credentials(connection)
    await trio.to_thread.run_sync(_introduce, connection, config, command, folder, view)
    async with trio.SocketStream(trio.socket.from_stdlib_socket(connection)) as stream:
        link = StdioLink(stream, stream.socket.fileno(), trio.sleep_forever)
        async with _open(link, _ResponsesOnly()) as client:
            yield client, pid


def _introduce(connection: socket.socket, config: str, command: str, folder: str, view: str) -> None:
    """Exchange the first lines. It blocks. Raises LinkLost; the connection is closed then."""
    try:
        text = Path(config).read_bytes()
    except OSError:  # a host that has read a pipe needs no variables of ours
        text = b""
    line = first_line(config, text, os.environ, command=command, folder=folder, view=view)
    try:
        connection.settimeout(HELLO_TIMEOUT)
        here = os.open(folder or "/", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
        try:
            socket.send_fds(connection, [line[:1]], [here])
        finally:
            os.close(here)
        connection.sendall(line[1:])
        answer = b""
        while not answer.endswith(b"\n") and len(answer) <= MAX_HELLO and (data := connection.recv(64 * 1024)):
            answer += data
        said = json.loads(answer or b"{}")
        if "accepted" not in said:
            raise LinkLost(str(said.get("refused", "it ends")))
    except (OSError, ValueError) as problem:
        connection.close()
        raise LinkLost(f"it does not answer ({problem})") from problem
    except BaseException:
        connection.close()
        raise


@asynccontextmanager
async def _open(link: Link, handler: _ResponsesOnly) -> AsyncIterator[McpClient]:
    async with open_peer(link, handler) as peer:
        with trio.fail_after(TIMEOUT):
            negotiated = await negotiate(link, peer, {}, Dialect(), is_process=False)
        yield McpClient(peer, negotiated)


async def fetch_status(url: str, headers: Mapping[str, str]) -> object | None:
    """Fetch `GET /status` of the host behind `url`, for all servers of the view, or for the one whose own endpoint
    `url` is; None if it is not a Colonnade host."""
    parts = urlsplit(url)
    last = parts.path.rstrip("/").rpartition("/")[2]
    path = f"/status/{last}" if last.startswith(VIEW_MARK) else "/status"
    with trio.move_on_after(TIMEOUT):
        status = await fetch_json(urlunsplit((parts.scheme, parts.netloc, path, "", "")), headers)
        if isinstance(status, dict) and "colonnade" in status:
            selected = [server for server in status["servers"] if server["id"] == last]
            return {**status, "servers": selected} if selected else status
    return None
