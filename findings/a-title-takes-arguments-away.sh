#!/usr/bin/env bash
# A gateway of FastMCP that gives a tool a title no longer lets all of its arguments through.
#
# Packages: PyPI fastmcp 4.2.3, mcp 2.3.0. Needs Python 3.11 with venv.
#
# Expected: ToolTransformConfig(title="…") changes the title. No argument is named in it, so the input schema stays as
# the server wrote it, and the server gets what the client sends. So it is without the transform, and with Namespace.
#
# Seen on 2026-11-29: each transform of one tool, also of its title, name or description alone, writes a new input
# schema with `type`, `properties`, `required`, `$defs`, and `additionalProperties: false`. Everything else at the root
# is gone. A tool that takes further arguments, or those of a pattern, shows a schema without them, and its call is
# refused before it reaches the server: "Got unexpected keyword argument(s)". The list no longer says that one of two
# arguments is needed. `definitions` of draft 7 are gone too, and the `$ref` to them stays, to nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check fastmcp==4.2.3 mcp==2.3.0 2>/dev/null

cat >server.py <<'PY'
import json
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

SCHEMAS: dict[str, dict[str, Any]] = {
    "insert": {"properties": {"table": {"type": "string"}}, "required": ["table"], "additionalProperties": True},
    "label": {"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
    "find": {
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    },
    "draw": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"at": {"$ref": "#/definitions/point"}},
        "definitions": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    },
}


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    tools = [types.Tool(name=name, input_schema={"type": "object", **schema}) for name, schema in SCHEMAS.items()]
    return types.ListToolsResult(tools=tools)


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    text = f"server got {json.dumps(params.arguments)}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def main() -> None:
    server = Server("server", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
PY
cat >check.py <<'PY'
import asyncio
import logging
import sys

from fastmcp import Client
from fastmcp.client.transports import PythonStdioTransport
from fastmcp.server import create_proxy
from fastmcp.server.transforms import Namespace, ToolTransform
from fastmcp.tools.tool_transform import ToolTransformConfig

logging.disable(logging.CRITICAL)
CALLS = {
    "insert": {"table": "cities", "city": "Turin"},
    "label": {"x-team": "red"},
    "find": {"name": "Turin"},
    "draw": {"at": {"x": 1}},
}
TRANSFORMS = {
    "none": None,
    "namespace": Namespace("db"),
    "title": ToolTransform({name: ToolTransformConfig(title="A title") for name in CALLS}),
}


async def main() -> None:
    for title, transform in TRANSFORMS.items():
        gateway = create_proxy(PythonStdioTransport("server.py", python_cmd=sys.executable))
        if transform:
            gateway.add_transform(transform)
        async with Client(gateway) as client:
            for tool in await client.list_tools():
                schema = tool.input_schema
                more = schema.get("additionalProperties", "unsaid")
                result = await client.call_tool(tool.name, CALLS[tool.name.removeprefix("db_")], raise_on_error=False)
                print(f"{title}, {tool.name}: {', '.join(sorted(schema))}; more: {more}")
                print(f"  {result.content[0].text}")
                if "$ref" in schema.get("properties", {}).get("at", {}):
                    print(f"  at: {schema['properties']['at']}")


asyncio.run(main())
PY
seen=$(venv/bin/python check.py)
echo "$seen"
refused='Got unexpected keyword argument(s)'
[ "$seen" = "none, insert: additionalProperties, properties, required, type; more: True
  server got {\"table\": \"cities\", \"city\": \"Turin\"}
none, label: additionalProperties, patternProperties, type; more: False
  server got {\"x-team\": \"red\"}
none, find: anyOf, properties, type; more: unsaid
  server got {\"name\": \"Turin\"}
none, draw: \$schema, definitions, properties, type; more: unsaid
  server got {\"at\": {\"x\": 1}}
namespace, db_insert: additionalProperties, properties, required, type; more: True
  server got {\"table\": \"cities\", \"city\": \"Turin\"}
namespace, db_label: additionalProperties, patternProperties, type; more: False
  server got {\"x-team\": \"red\"}
namespace, db_find: anyOf, properties, type; more: unsaid
  server got {\"name\": \"Turin\"}
namespace, db_draw: \$schema, definitions, properties, type; more: unsaid
  server got {\"at\": {\"x\": 1}}
title, insert: additionalProperties, properties, required, type; more: False
  Error calling tool 'insert': $refused: city
title, label: additionalProperties, properties, required, type; more: False
  Error calling tool 'label': $refused: x-team
title, find: additionalProperties, properties, required, type; more: False
  server got {\"name\": \"Turin\"}
title, draw: additionalProperties, properties, required, type; more: False
  server got {\"at\": {\"x\": 1}}
  at: {'\$ref': '#/definitions/point'}" ]
