#!/usr/bin/env bash
# A tool that fails at each call has a rate of errors of 0, 50 or 100 percent, as one asks the client, the server, or
# another package.
#
# Packages: PyPI mcp 2.3.0, mcp 1.30.0, fastmcp 4.2.3, logfire 5.4.0, opentelemetry-instrumentation-mcp 0.62.4,
# sentry-sdk 2.75.0, opentelemetry-sdk 1.45.2. Needs Python 3.11 with venv. Nothing is sent.
#
# Expected: a call has one span at each end, and if its result says `isError`, `error.type` of both is `tool_error`
# (semantic-conventions-genai v0.1.0, MCP, client and server). Who counts spans with errors counts failed calls.
#
# Seen on 2026-11-30: the official SDK says so in the span of its server, and in that of its client the call is a good
# one, as in both of Logfire's. A client of FastMCP has two spans for a call, its own and that of the SDK below it, so
# that calls count twice and half of them succeed. Sentry's integration reports a call of version 1 of the SDK as
# failed, and the same call of version 2 as a good one (it looks for an exception, where the SDK has already made a
# result of it); the exception itself is there, as a line of the log. An alert on failing tools is silent after such an
# upgrade.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
more=(logfire==5.4.0 opentelemetry-instrumentation-mcp==0.62.4 sentry-sdk==2.75.0 opentelemetry-sdk==1.45.2)
python3 -m venv 1.30.0
1.30.0/bin/pip install --quiet --disable-pip-version-check mcp==1.30.0 "${more[@]}" 2>/dev/null
python3 -m venv 2.3.0
2.3.0/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 fastmcp==4.2.3 \
    sentry-sdk==2.75.0 opentelemetry-sdk==1.45.2 2>/dev/null

cat >check.py <<'PY'
"""Calls a tool that fails, and counts the spans of the call; its arguments: what makes the spans, of which server."""

import logging
import sys
from importlib.metadata import version

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

maker, package = sys.argv[1:]
logging.disable(logging.CRITICAL)
spans = InMemorySpanExporter()
transactions: list[dict] = []
if maker == "logfire":
    import logfire

    logfire.configure(
        send_to_logfire=False, console=False, additional_span_processors=[SimpleSpanProcessor(spans)]
    )
    logfire.instrument_mcp()
elif maker == "sentry-sdk":
    import sentry_sdk

    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        before_send=lambda event, hint: None,
        before_send_transaction=lambda event, hint: transactions.append(event),
    )
else:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    if maker == "opentelemetry-instrumentation-mcp":
        from opentelemetry.instrumentation.mcp import McpInstrumentor

        McpInstrumentor().instrument()


def delete() -> str:
    raise ValueError("no such item")


async def main() -> None:
    if package == "fastmcp":
        from fastmcp import Client, FastMCP

        server = FastMCP("server")
        server.tool()(delete)
        async with Client(server) as client:
            assert (await client.call_tool("delete", {}, raise_on_error=False)).is_error
    elif version("mcp").startswith("2."):
        from mcp import Client
        from mcp.server import MCPServer

        server = MCPServer("server", log_level="CRITICAL")
        server.tool()(delete)
        async with Client(server, mode="legacy") as client:
            assert (await client.call_tool("delete", {})).is_error
    else:
        from mcp.server.fastmcp import FastMCP
        from mcp.shared.memory import create_connected_server_and_client_session

        server = FastMCP("server", log_level="CRITICAL")
        server.tool()(delete)
        async with create_connected_server_and_client_session(server) as client:
            assert (await client.call_tool("delete", {})).isError


anyio.run(main)
failed: dict[str, list[bool]] = {"client": [], "server": []}
for span in spans.get_finished_spans():
    if "tools/call" in span.name or span.name == "delete.tool":
        end = "server" if span.kind is trace.SpanKind.SERVER or "server" in span.name else "client"
        failed[end].append(span.status.status_code is trace.StatusCode.ERROR)
for event in transactions:
    if event["transaction"] == "tools/call delete":
        failed["server"].append(event["contexts"]["trace"].get("status", "ok") != "ok")
title = f"{package} {version(package)}"
if maker != package:
    title = f"{maker} {version(maker)} at {title}"
for end, seen in failed.items():
    if seen:
        print(f"{title}, {end}: {len(seen)} for one call, {sum(seen)} failed")
PY
seen=$(
    {
        2.3.0/bin/python check.py mcp mcp
        2.3.0/bin/python check.py fastmcp fastmcp
        1.30.0/bin/python check.py logfire mcp
        1.30.0/bin/python check.py opentelemetry-instrumentation-mcp mcp
        1.30.0/bin/python check.py sentry-sdk mcp
        2.3.0/bin/python check.py sentry-sdk mcp
    } 2>/dev/null
)
echo "$seen"
[ "$seen" = 'mcp 2.3.0, client: 1 for one call, 0 failed
mcp 2.3.0, server: 1 for one call, 1 failed
fastmcp 4.2.3, client: 2 for one call, 1 failed
fastmcp 4.2.3, server: 1 for one call, 1 failed
logfire 5.4.0 at mcp 1.30.0, client: 1 for one call, 0 failed
logfire 5.4.0 at mcp 1.30.0, server: 1 for one call, 0 failed
opentelemetry-instrumentation-mcp 0.62.4 at mcp 1.30.0, client: 1 for one call, 1 failed
sentry-sdk 2.75.0 at mcp 1.30.0, server: 1 for one call, 1 failed
sentry-sdk 2.75.0 at mcp 2.3.0, server: 1 for one call, 0 failed' ]
