"""A server made with the official SDK, with one of everything it can offer.

python sdk_server.py [LOG]                  over standard input and output
python sdk_server.py [LOG] --http PORT      over Streamable HTTP on 127.0.0.1; prints its URL
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    CallToolResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel

LOG = Path(sys.argv[1]) if len(sys.argv) > 1 and not sys.argv[1].startswith("--") else None
COLOURS = ["red", "green", "grey"]

server = MCPServer("sdk", version="7.1", instructions="Ask for the weather first.", log_level="WARNING")


class Weather(BaseModel):
    city: str
    degrees: float


@server.tool(
    title="The weather",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    meta={"io.example/rank": 3},
)
def weather(city: str) -> Weather:
    """Tell the weather."""
    return Weather(city=city, degrees=21.5)


@server.tool()
def marked(ctx: Context) -> Annotated[CallToolResult, Any]:
    """Gives back the `_meta` of the request as that of the result."""
    meta = dict(ctx.request_context.meta or {})
    return CallToolResult(content=[TextContent(type="text", text="marked")], _meta=meta)


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Reports progress, and waits a moment after each report."""
    for step in range(1, count + 1):
        await ctx.report_progress(step, count, f"step {step}")
        await anyio.sleep(0.05)  # a client can see only then that reports come one by one
    return "done"


@server.tool()
async def hang(ctx: Context) -> str:
    """Waits until it is cancelled, and writes that down."""
    _note("hanging")
    await ctx.report_progress(1)
    try:
        await anyio.sleep_forever()
    finally:
        _note("cancelled")
    return ""


@server.tool()
async def grow(name: str, ctx: Context, announces: bool = True) -> str:
    """Adds a tool while the server runs."""
    server.add_tool(lambda: name, name=name, description="New.")
    if not announces:
        return "grown"
    await ctx.session.send_tool_list_changed()
    await ctx.notify_tools_changed()  # the way of the stateless revision
    return "grown"


class Guests(BaseModel):
    guests: int


@server.tool()
async def table(ctx: Context) -> str:
    """Asks its client in the middle of the call, which takes a session."""
    answer = await ctx.elicit("How many guests?", Guests)
    return f"a table for {answer.data.guests}" if answer.action == "accept" else "no table"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it did not work")


@server.resource("memo://first", mime_type="text/plain")
def first() -> str:
    """The first memo."""
    return "the first memo"


@server.resource("memo://numbered/{number}")
def numbered(number: str) -> str:
    """Any other memo."""
    return f"memo number {number}"


@server.prompt()
def paint(colour: str) -> str:
    """Asks for a picture."""
    return f"Paint it {colour}."


@server.completion()  # type: ignore[no-untyped-call,untyped-decorator]  # the SDK left its types out
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion | None:
    if isinstance(ref, PromptReference) and ref.name == "paint":
        return Completion(values=[colour for colour in COLOURS if colour.startswith(argument.value)])
    if isinstance(ref, ResourceTemplateReference) and ref.uri == "memo://numbered/{number}":
        return Completion(values=[argument.value + "0"])
    return None


def _note(what: str) -> None:
    if LOG is not None:
        with LOG.open("a") as log:
            log.write(what + "\n")


if __name__ == "__main__":
    if "--http" in sys.argv:
        port = int(sys.argv[-1])
        print(f"http://127.0.0.1:{port}/mcp", flush=True)
        server.run("streamable-http", host="127.0.0.1", port=port)
    else:
        server.run()
