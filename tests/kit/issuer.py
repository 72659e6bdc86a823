"""An authorization server that a test scripts, with a server that it protects, on real sockets of loopback.

async with open_issuer() as issuer:
    issuer.tokens = [{"access_token": "a"}]      # what the token endpoint answers, one after the other
    issuer.documents["/metadata"] = {...}        # documents by their paths
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import trio

from config import HttpServer, OAuth
from config.references import Secret
from host.wire.asgi import Headers, Receive, Scope, Send, read_body, respond
from host.wire.listener import serve_http
from host.wire.port import bind

RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"
ISSUER_METADATA = "/.well-known/oauth-authorization-server"


@dataclass(frozen=True)
class Asked:
    """A request that came. `form`: the members of its body."""

    method: str
    path: str
    headers: Headers
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))


Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Issuer:
    """`id` is the issuer, `url` that of the protected server, which takes the tokens in `accepted`."""

    id: str
    documents: dict[str, Any] = field(default_factory=dict)
    tokens: list[Any] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    challenge: str | None = "Bearer"
    registration: dict[str, Any] = field(default_factory=dict)
    before_token: trio.Event | None = None
    """If it is there, the token endpoint waits for it."""

    @property
    def url(self) -> str:
        return f"{self.id}/mcp"

    oauth: OAuth | None = None
    """That of the server's configuration."""

    @property
    def spec(self) -> HttpServer:
        return HttpServer(id="notes", url=Secret(self.url), oauth=self.oauth)

    def paths(self, path: str) -> list[Asked]:
        """The requests to this path."""
        return [each for each in self.asked if each.path == path]

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Asked(scope["method"], scope["path"], Headers(scope["headers"]), await read_body(receive, 1 << 20))
        self.asked.append(asked)
        status, headers, body = await self._reply(asked)
        await respond(send, status, headers, body)

    async def _reply(self, asked: Asked) -> Reply:
        if asked.path in self.documents:
            found = self.documents[asked.path]
            if isinstance(found, tuple):
                return found
            return 200, {"content-type": "application/json"}, json.dumps(found).encode()
        if asked.path == "/mcp":
            return self._protected(asked)
        if asked.path == "/token":
            if self.before_token is not None:
                await self.before_token.wait()
            answer = self.tokens.pop(0) if self.tokens else {"error": "invalid_grant"}
            if isinstance(answer, tuple):
                return answer
            return (400 if "error" in answer else 200), {}, json.dumps({"token_type": "Bearer", **answer}).encode()
        if asked.path == "/register":
            wanted = json.loads(asked.body)
            answer = {"client_id": f"client-{len(self.paths('/register'))}", **wanted, **self.registration}
            return 201, {"content-type": "application/json"}, json.dumps(answer).encode()
        if asked.path == "/revoke":
            return 200, {}, b""
        return 404, {}, b"{}"

    def _protected(self, asked: Asked) -> Reply:
        token = (asked.headers.one("authorization") or "").removeprefix("Bearer ")
        if token in self.accepted:
            return 200, {"content-type": "application/json"}, b'{"jsonrpc":"2.0","id":1,"result":{}}'
        return 401, {} if self.challenge is None else {"www-authenticate": self.challenge}, b""


@asynccontextmanager
async def open_issuer() -> AsyncIterator[Issuer]:
    """An issuer at a free port, for the block."""
    bound = bind("127.0.0.1", 0)
    issuer = Issuer(f"http://127.0.0.1:{bound.getsockname()[1]}")
    issuer.documents = {
        RESOURCE_METADATA: {"resource": issuer.url, "authorization_servers": [issuer.id]},
        ISSUER_METADATA: {
            "issuer": issuer.id,
            "authorization_endpoint": f"{issuer.id}/authorize",
            "token_endpoint": f"{issuer.id}/token",
            "registration_endpoint": f"{issuer.id}/register",
            "revocation_endpoint": f"{issuer.id}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
        },
    }
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, issuer.serve, bound))
        yield issuer
        nursery.cancel_scope.cancel()
