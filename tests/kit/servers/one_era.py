"""A server that speaks either with a handshake or without a session, never both, and asks its client in mid-call.

    one_era.py handshake               over standard input and output
    one_era.py stateless --http PORT   over HTTP on 127.0.0.1; prints its URL (port 0: a free one)

It is made with the official SDK, which would speak both; what belongs to the other era is refused here as a server
refuses it that has never heard of it. Two tools: `add`, and `book_table`, which asks two questions one after the other,
the second made of the answer to the first. What was answered before travels in the request state where there is no
session to keep it: a state that is lost on the way makes the first question come again.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

Context = ServerRequestContext[Any, Any]

TOOLS = [
    types.Tool(
        name="add",
        description="Adds two numbers.",
        input_schema={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    ),
    types.Tool(
        name="book_table",
        description="Books a table, and asks what it has to know for that.",
        input_schema={"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
    ),
]
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "guests": ("How many will come on {day}?", {"type": "integer", "minimum": 1}),
    "name": ("In whose name, for {guests} on {day}?", {"type": "string"}),
}


async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    said = params.arguments or {}
    if params.name == "add":
        return text(str(said["a"] + said["b"]))
    if params.name == "book_table":
        return await book_table(ctx, params, str(said["day"]))
    raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")


async def book_table(
    ctx: Context, params: types.CallToolRequestParams, day: str
) -> types.CallToolResult | types.InputRequiredResult:
    """Ask until everything is known: of the client while it waits, or by giving the call back to it."""
    known: dict[str, Any] = json.loads(params.request_state or "{}")
    given = dict(params.input_responses or {})
    for key in QUESTIONS:
        if key in known:
            continue
        answer: object = given.get(key)
        if answer is None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return types.InputRequiredResult(
                input_requests={key: types.ElicitRequest(params=form(key, day, known))},
                request_state=json.dumps(known),
            )
        if answer is None:
            asked = form(key, day, known)
            answer = await ctx.session.elicit_form(asked.message, asked.requested_schema, ctx.request_id)
        if not isinstance(answer, types.ElicitResult):
            raise MCPError(types.INVALID_PARAMS, f"This is no answer to a form: {answer!r}")
        if answer.action != "accept":
            return text(f"{day}: no table ({answer.action})")
        known[key] = (answer.content or {})[key]
    return text(f"{day}: a table for {known['guests']}, {known['name']}")


def form(key: str, day: str, known: dict[str, Any]) -> types.ElicitRequestFormParams:
    message, schema = QUESTIONS[key]
    return types.ElicitRequestFormParams(
        message=message.format(day=day, **known),
        requested_schema={"type": "object", "properties": {key: schema}, "required": [key]},
    )


def text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=words)])


def create() -> Server[dict[str, Any]]:
    server = Server("one-era", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    # Seals the state: a retry that carries another one, or one of another call, is refused.
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="one-era"))
    return server


# ---------------------------------------------------------------------------------------------------------------------
# One era over stdio
# ---------------------------------------------------------------------------------------------------------------------


async def serve_handshake_over_stdio() -> None:
    server = create()
    async with server.lifespan(server) as state, stdio_server() as (reads, writes):
        await serve_loop(server, reads, writes, lifespan_state=state)


async def serve_stateless_over_stdio() -> None:
    server = create()
    async with stdio_server() as (reads, writes), without_handshakes(reads, writes) as others:
        await server.run(others, writes, server.create_initialization_options())


@asynccontextmanager
async def without_handshakes(reads: Any, writes: Any) -> AsyncIterator[Any]:
    """Everything that comes in, but for `initialize`, which is refused on the spot."""
    send, others = anyio.create_memory_object_stream[Any]()

    async def sort() -> None:
        async with send:
            async for item in reads:
                message = item.message if isinstance(item, SessionMessage) else None
                if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
                    error = types.ErrorData(**refusal((message.params or {}).get("protocolVersion")))
                    refused = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                    await writes.send(SessionMessage(refused))
                else:
                    await send.send(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sort)
        yield others
        tasks.cancel_scope.cancel()


def refusal(requested: object) -> dict[str, Any]:
    """The error of a server that is asked for a handshake and has none."""
    return {
        "code": types.UNSUPPORTED_PROTOCOL_VERSION,
        "message": "Only requests that name their protocol version are served",
        "data": {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": str(requested)},
    }


# ---------------------------------------------------------------------------------------------------------------------
# One era over HTTP
# ---------------------------------------------------------------------------------------------------------------------


class OneEra:
    """Lets requests of one era through to the app, and answers the others as a server of that era does."""

    def __init__(self, app: ASGIApp, stateless: bool) -> None:
        self._app = app
        self._stateless = stateless

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        version = request.headers.get("mcp-protocol-version")
        if self._stateless == (version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS):
            await self._app(scope, receive, send)
            return
        refused = await self._refuse(request, version)
        await refused(scope, receive, send)

    async def _refuse(self, request: Request, version: str | None) -> JSONResponse:
        if request.method != "POST":
            return JSONResponse(None, 405, {"Allow": "POST"})
        message = await request.json()
        id = message.get("id")
        if self._stateless:
            error = refusal(version or message.get("params", {}).get("protocolVersion"))
        else:
            error = {"code": types.INVALID_REQUEST, "message": f"Bad Request: Unsupported protocol version: {version}"}
        return JSONResponse({"jsonrpc": "2.0", "id": id, "error": error}, 400)


def serve_over_http(stateless: bool, port: int) -> None:
    app = OneEra(create().streamable_http_app(), stateless)
    with socket.create_server(("127.0.0.1", port)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    stateless = sys.argv[1] == "stateless"
    if "--http" in sys.argv:
        serve_over_http(stateless, int(sys.argv[-1]))
    else:
        anyio.run(serve_stateless_over_stdio if stateless else serve_handshake_over_stdio)
