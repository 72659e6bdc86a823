#!/usr/bin/env bash
# A FastMCP server whose HTTP requests are traced too no longer belongs to the trace of the host that calls it.
#
# Packages: PyPI fastmcp 4.2.3, mcp 2.3.0, opentelemetry-sdk 1.45.2, opentelemetry-instrumentation-asgi 0.66b2. Needs
# Python 3.11 with venv. It listens on a free port of the loopback address.
#
# Expected: a client puts the context of its trace into `_meta` (SEP-414), and may send no header with it: the official
# one sends none. The span of the server is a child of that context, and may have a link to the span around it
# (semantic-conventions-genai v0.1.0, MCP, "Context propagation"). An operator who adds the usual middleware sees more.
#
# Seen on 2026-11-30: FastMCP reads `_meta` only if no span is current (`extract_trace_context`, fastmcp/telemetry.py).
# The middleware begins one for each request, with a header or without, so with it each call is the beginning of a trace
# of its own, and what the tool does is in there. The host sees its call and nothing below it, the operator a tool that
# nobody seems to have called, and no link between the two. The sampler of the host no longer decides for the server. A
# server of the official SDK stays in the trace of the call. A host that sends the context in a header as well is
# spared.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check fastmcp==4.2.3 mcp==2.3.0 \
    opentelemetry-sdk==1.45.2 opentelemetry-instrumentation-asgi==0.66b2 2>/dev/null

cat >check.py <<'PY'
import logging

import anyio
import uvicorn
from fastmcp import FastMCP
from mcp import Client
from mcp.server import MCPServer
from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

logging.disable(logging.CRITICAL)
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("check")


def work() -> str:
    with tracer.start_as_current_span("work of the tool"):
        return "done"


async def call(title: str, app: object, mode: str) -> None:
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        port = http.servers[0].sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as client:
            version = client.session.protocol_version
            spans.clear()
            with tracer.start_as_current_span("turn of the host"):
                await client.call_tool("work", {})
        http.should_exit = True
    found = spans.get_finished_spans()
    roots = {span.context.trace_id: span.name for span in found if span.parent is None}
    (tool,) = [span for span in found if span.name == "work of the tool"]
    links = [span for span in found if span.links]
    print(f"{title}, {version}: the tool is in the trace that begins with {roots[tool.context.trace_id]!r}", end="")
    print(f", spans with links: {len(links)}")


async def main() -> None:
    for traced in (False, True):
        for mode in ("legacy", "auto"):
            official = MCPServer("server", log_level="CRITICAL")
            official.tool()(work)
            other = FastMCP("server")
            other.tool()(work)
            for name, app in ("mcp", official.streamable_http_app()), ("FastMCP", other.http_app()):
                title = f"{name}, HTTP traced too" if traced else name
                await call(title, OpenTelemetryMiddleware(app) if traced else app, mode)


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
host="the tool is in the trace that begins with 'turn of the host', spans with links: 0"
own="the tool is in the trace that begins with 'POST /mcp', spans with links: 0"
[ "$seen" = "mcp, 2025-11-25: $host
FastMCP, 2025-11-25: $host
mcp, 2026-07-28: $host
FastMCP, 2026-07-28: $host
mcp, HTTP traced too, 2025-11-25: $host
FastMCP, HTTP traced too, 2025-11-25: $own
mcp, HTTP traced too, 2026-07-28: $host
FastMCP, HTTP traced too, 2026-07-28: $own" ]
