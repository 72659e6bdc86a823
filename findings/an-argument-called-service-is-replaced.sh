#!/usr/bin/env bash
# Semantic Kernel puts objects of its own in place of a tool's arguments `service`, `kernel` and `arguments`.
#
# Packages: PyPI semantic-kernel 1.45.0, mcp 1.30.0, openai 2.54.0. Needs Python 3.11 with venv. No model is asked.
#
# Expected: the names of arguments are in the tool's input schema, which its server has written, and the arguments of a
# call reach the server as they are. `kernel`, `service`, `execution_settings` and `arguments` are names by which a
# Python function of a plugin gets objects of the framework; a tool of a server has no use for those.
#
# Seen on 2026-11-30: the functions that are made of MCP tools get them as well, and what the model gave is dropped. So
# `restart(service)` and `boot(kernel)` are never sent, because the client of a model is no JSON. For `arguments`, the
# value is all arguments of the call: a tool that takes an object there, as the tools of gateways do that call others,
# gets them one level too deep, accepts them, and does something else than it was asked. The framework shows the name to
# the model all the same, and reports no conflict.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check semantic-kernel==1.45.0 mcp==1.30.0 openai==2.54.0 2>/dev/null

cat >server.py <<'PY'
from typing import Any

from mcp.server.fastmcp import FastMCP

server = FastMCP("server", log_level="CRITICAL")


@server.tool()
def stop(name: str) -> str:
    return f"stopped {name}"


@server.tool()
def restart(service: str) -> str:
    return f"restarted {service}"


@server.tool()
def boot(kernel: str) -> str:
    return f"booted {kernel}"


@server.tool()
def call(tool: str, arguments: dict[str, Any]) -> str:
    return f"called {tool} with {arguments}"


server.run()
PY
cat >check.py <<'PY'
import asyncio
import logging
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.connectors.mcp import MCPStdioPlugin
from semantic_kernel.functions import KernelArguments

logging.disable(logging.CRITICAL)
CALLS = {
    "stop": {"name": "web"},
    "restart": {"service": "web"},
    "boot": {"kernel": "6.12"},
    "call": {"tool": "find", "arguments": {"text": "a"}},
}


def last_cause(error: BaseException) -> str:
    while error.__cause__:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


async def main() -> None:
    async with stdio_client(StdioServerParameters(command=sys.executable, args=["server.py"])) as streams:
        async with ClientSession(*streams) as session:
            await session.initialize()
            for name, arguments in CALLS.items():
                print(f"mcp: {(await session.call_tool(name, arguments)).content[0].text}")
    kernel = Kernel()
    kernel.add_service(OpenAIChatCompletion(ai_model_id="none", api_key="none"))
    async with MCPStdioPlugin(name="tools", command=sys.executable, args=["server.py"]) as plugin:
        kernel.add_plugin(plugin)
        for name, arguments in CALLS.items():
            function = kernel.plugins["tools"][name]
            shown = ", ".join(parameter.name for parameter in function.parameters)
            try:
                outcome = (await kernel.invoke(function, KernelArguments(**arguments))).value[0].text
            except Exception as error:
                outcome = last_cause(error)
            print(f"semantic-kernel, {name}({shown}): {outcome}")


asyncio.run(main())
PY
seen=$(venv/bin/python -W ignore check.py 2>/dev/null)
echo "$seen"
error='PydanticSerializationError: Unable to serialize unknown type:'
[ "$seen" = "mcp: stopped web
mcp: restarted web
mcp: booted 6.12
mcp: called find with {'text': 'a'}
semantic-kernel, stop(name): stopped web
semantic-kernel, restart(service): $error <class 'openai.AsyncOpenAI'>
semantic-kernel, boot(kernel): $error <class 'semantic_kernel.services.ai_service_selector.AIServiceSelector'>
semantic-kernel, call(tool, arguments): called find with {'tool': 'find', 'arguments': {'text': 'a'}}" ]
