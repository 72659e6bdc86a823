"""A shim that makes the address of all servers look like one server: it undoes the names that Colonnade gives.

Requests get the prefix of the server put before names and URIs, in the body and in `Mcp-Name`; responses lose it again,
and the entries of other servers with it. It knows where names stand and nothing of what they mean. A client that leaves
is noticed, and the request behind it is cancelled, as without a shim.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

NAMED = frozenset({"name", "uri", "uriTemplate"})
LISTS = ("tools", "prompts", "resources", "resourceTemplates")
HOP_BY_HOP = frozenset({b"connection", b"transfer-encoding", b"content-length", b"keep-alive", b"date", b"server"})


class Shim:
    """An ASGI app before `url`, where the server `id` is one of several. With `searching`, tools are called through
    call_tool."""

    def __init__(self, url: str, id: str, *, searching: bool = False) -> None:
        self._url = url
        self._searching = searching
        self._place = urlsplit(url).netloc.encode()
        self.own_place = b""
        self._name, self._uri = f"{id}__", f"{id}+"
        self._http = httpx.AsyncClient(trust_env=False, limits=httpx.Limits())  # with no end, as streams have none

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        is_call = (b"mcp-method", b"tools/call") in scope["headers"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait_left, receive, nursery.cancel_scope)
            headers = [self._header(*each, is_call=is_call) for each in scope["headers"] if each[0] not in HOP_BY_HOP]
            request = httpx.Request(scope["method"], self._url, headers=headers, content=self.asked(body))
            answer = await self._http.send(request, stream=True)
            try:
                await self._pass_on(answer, send)
            finally:
                with trio.CancelScope(shield=True):
                    await answer.aclose()
            nursery.cancel_scope.cancel()

    def _header(self, name: bytes, value: bytes, *, is_call: bool) -> tuple[bytes, bytes]:
        if name == b"host" and value == self.own_place:
            return name, self._place
        if name == b"mcp-name" and is_call and self._searching:
            return name, b"call_tool"
        if name == b"mcp-name":
            return name, (self._uri if b":" in value else self._name).encode() + value
        return name, value

    async def _pass_on(self, answer: httpx.Response, send: ASGISendCallable) -> None:
        headers = [each for each in answer.headers.raw if each[0].lower() not in HOP_BY_HOP]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers, "trailers": False})
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            rest = b""
            async for data in answer.aiter_raw():
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    lines = [self._line(line) for line in event.split(b"\n")]
                    await _send_part(send, b"\n".join(lines) + b"\n\n", more=True)
            await _send_part(send, rest, more=False)
        else:
            await _send_part(send, self.answered(await answer.aread()), more=False)

    def _line(self, line: bytes) -> bytes:
        return b"data: " + self.answered(line[5:].strip()) if line.startswith(b"data:") else line

    def asked(self, body: bytes) -> bytes:
        """The body of a request, with the prefixes that Colonnade expects."""
        message = _read(body)
        params = message.get("params") if isinstance(message, dict) else None
        if not isinstance(params, dict) or message["method"] == "initialize":
            return body
        for holder in (params, params.get("ref"), params.get("notifications")):
            if not isinstance(holder, dict):
                continue
            if isinstance(name := holder.get("name"), str):
                holder["name"] = self._name + name
            if isinstance(uri := holder.get("uri"), str):
                holder["uri"] = self._uri + uri
            if isinstance(uris := holder.get("resourceSubscriptions"), list):
                holder["resourceSubscriptions"] = [self._uri + each for each in uris]
        if self._searching and message["method"] == "tools/call":
            inner = {name: params.pop(name) for name in ("name", "arguments") if name in params}
            params |= {"name": "call_tool", "arguments": inner}
        return json.dumps(message).encode()

    def answered(self, body: bytes) -> bytes:
        """A message to the client, with the server's own names, and without the entries of others."""
        message = _read(body)
        if not isinstance(message, dict):
            return body
        result = message["result"] if isinstance(message.get("result"), dict) else {}
        for entries in LISTS:
            if entries in result:
                result[entries] = [each for each in result[entries] if self._stripped(each) != each]
        return json.dumps(self._stripped(message)).encode()

    def _stripped(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._stripped(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self._stripped(each, key) for each in value]
        if isinstance(value, str) and (key in NAMED or key == "resourceSubscriptions"):
            return value.removeprefix(self._name).removeprefix(self._uri)
        return value


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


async def _send_part(send: ASGISendCallable, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _wait_left(receive: ASGIReceiveCallable, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


@asynccontextmanager
async def open_shim(url: str, id: str, *, searching: bool = False) -> AsyncIterator[str]:
    """The shim for the server `id` before the address of all servers, for the time of the block; its own URL."""
    shim = Shim(url, id, searching=searching)
    config = Config()
    config.bind = ["127.0.0.1:0"]
    async with trio.open_nursery() as nursery:
        config.errorlog = None  # which would say that the app has no lifespan
        (address,) = await nursery.start(serve, shim, config)
        place = urlsplit(address).netloc
        shim.own_place = place.encode()
        yield urlunsplit(urlsplit(url)._replace(netloc=place))
        nursery.cancel_scope.cancel()
