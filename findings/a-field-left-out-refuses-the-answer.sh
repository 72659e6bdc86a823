#!/usr/bin/env bash
# FastMCP's client refuses the answer of its own handler if a field of the form that may be left out is left out.
#
# Packages: PyPI fastmcp 4.2.3, mcp 2.3.0. Needs Python 3.11 with venv.
#
# Expected: a form says by `required` which fields an answer must have; the others may be missing (2025-11-25,
# Elicitation, "Requested Schema"). The client makes a dataclass of the form and hands it to the handler, which returns
# an instance. An instance that can be made is an answer that can be sent.
#
# Seen on 2026-11-30: a field that is not required gets the default None, and a name that is none in Python another
# name. The instance is sent with all of its fields, under the names of the dataclass, and checked by the form just
# before: null is no string, and `first-name` is missing. So, after a person has filled in the form, the call fails. In
# 2025-11-25 the server gets the error -32603 in place of the answer; in 2026-07-28 it gets nothing. No instance passes
# unless each field has a value. A handler that returns a dictionary can answer each form. FastMCP's own servers refuse
# to ask for a field that may be None, so tests with client and server of FastMCP do not show it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check fastmcp==4.2.3 mcp==2.3.0 2>/dev/null

cat >server.py <<'PY'
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TEXT = {"type": "string"}
FORMS: dict[str, dict[str, Any]] = {
    "required": {"properties": {"name": TEXT, "note": TEXT}, "required": ["name", "note"]},
    "optional": {"properties": {"name": TEXT, "note": TEXT}, "required": ["name"]},
    "hyphen": {"properties": {"first-name": TEXT}, "required": ["first-name"]},
}


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in FORMS])


async def call_tool(context: Any, params: types.CallToolRequestParams) -> Any:
    form = {"type": "object", **FORMS[params.name]}
    if context.session.protocol_version >= "2026":
        if not params.input_responses:
            question = types.ElicitRequest(
                params=types.ElicitRequestFormParams(message="Your name?", requested_schema=form)
            )
            return types.InputRequiredResult(input_requests={"question": question})
        answer = params.input_responses["question"]
    else:
        answer = await context.session.elicit_form("Your name?", form, context.request_id)
    return types.CallToolResult(content=[types.TextContent(type="text", text=f"{answer.action} {answer.content}")])


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
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import PythonStdioTransport

logging.disable(logging.CRITICAL)
FIELDS = {"required": {"name": "Ada", "note": "first"}, "optional": {"name": "Ada"}, "hyphen": {"first-name": "Ada"}}


async def main() -> None:
    for mode in ("legacy", "auto"):
        for tool, fields in FIELDS.items():
            for kind in ("instance", "dict"):

                async def ask(message: str, response_type: Any, params: Any, context: Any) -> Any:
                    if kind == "dict":
                        return fields
                    return response_type(**{name.replace("-", "_"): value for name, value in fields.items()})

                program = PythonStdioTransport("server.py", python_cmd=sys.executable)
                async with Client(program, elicitation_handler=ask, mode=mode) as client:
                    try:
                        outcome = (await client.call_tool(tool)).content[0].text
                    except Exception as error:
                        outcome = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    print(f"{client.session.protocol_version}, {tool}, {kind}: {outcome}")


asyncio.run(main())
PY
seen=$(venv/bin/python check.py)
echo "$seen"
[ "$seen" = "2025-11-25, required, instance: accept {'name': 'Ada', 'note': 'first'}
2025-11-25, required, dict: accept {'name': 'Ada', 'note': 'first'}
2025-11-25, optional, instance: MCPError: None is not of type 'string'
2025-11-25, optional, dict: accept {'name': 'Ada'}
2025-11-25, hyphen, instance: MCPError: 'first-name' is a required property
2025-11-25, hyphen, dict: accept {'first-name': 'Ada'}
2026-07-28, required, instance: accept {'name': 'Ada', 'note': 'first'}
2026-07-28, required, dict: accept {'name': 'Ada', 'note': 'first'}
2026-07-28, optional, instance: MCPError: None is not of type 'string'
2026-07-28, optional, dict: accept {'name': 'Ada'}
2026-07-28, hyphen, instance: MCPError: 'first-name' is a required property
2026-07-28, hyphen, dict: accept {'first-name': 'Ada'}" ]
