#!/usr/bin/env bash
# Pydantic AI says that a server can never call the model and the form that it was given, and the server calls both.
#
# Packages: PyPI pydantic-ai-slim[mcp] 2.68.0 (which includes fastmcp-slim), fastmcp-slim 4.2.3, mcp 2.3.0. Needs Python
# 3.11 with venv.
#
# Expected: `MCPToolset(…, sampling_model=…, elicitation_handler=…)` lets the server use that model, and ask that
# handler. If the connection cannot do so, a warning says it, and then it holds: the model costs nothing there, and
# nobody is asked.
#
# Seen on 2026-11-30: with a server of 2026-07-28, the warning comes at each connection: both "will never be called",
# because such a session "holds no connection for the server to issue sampling or elicitation requests over". But the
# server asks in its result (`input_required`), the client of FastMCP below answers by means of both, and the call goes
# on. So the model is paid for, and the handler decides, for a server that was said to be without them. Who takes the
# warning at its word and leaves them out takes away what works, and where warnings are errors no connection is made.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check \
    "pydantic-ai-slim[mcp]==2.68.0" fastmcp-slim==4.2.3 mcp==2.3.0 2>/dev/null

cat >server.py <<'PY'
"""A server whose tool asks the client's model and its user."""

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp_types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("server", log_level="CRITICAL")


class Name(BaseModel):
    name: str


def ask_user() -> Elicit[Name]:
    return Elicit("Who are you?", Name)


def ask_model() -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(text="Greet."))], max_tokens=10)


@server.tool()
async def greet(
    user: Annotated[Name, Resolve(ask_user)], greeting: Annotated[CreateMessageResult, Resolve(ask_model)]
) -> str:
    return f"{greeting.content.text}, {user.name}"
PY
cat >check.py <<'PY'
import asyncio
import logging
import warnings
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from server import server

logging.disable(logging.CRITICAL)
called: list[str] = []


def sample(messages: Any, info: Any) -> ModelResponse:
    called.append("the model")
    return ModelResponse(parts=[TextPart("Good day")])


async def answer(message: str, response_type: Any, params: Any, context: Any) -> dict[str, str]:
    called.append("the handler")
    return {"name": "Ann"}


async def play(action: str) -> None:
    called.clear()
    output = "no answer"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action, UserWarning)
        toolset = MCPToolset(server, sampling_model=FunctionModel(sample), elicitation_handler=answer)
        try:
            async with Agent(TestModel(), toolsets=[toolset]) as agent:
                output = (await agent.run("go")).output
        except UserWarning as warning:
            print(f"raised: {str(warning).split(':')[0]}")
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            print(f"warned: {str(warning.message).split(':')[0]}")
    print(f"called: {' and '.join(sorted(called)) or 'nothing'}; {output}")


async def main() -> None:
    await play("always")
    await play("error")


asyncio.run(main())
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = 'warned: `sampling_model`, `elicitation_handler` will never be called
called: the handler and the model; {"greet":"Good day, Ann"}
raised: `sampling_model`, `elicitation_handler` will never be called
called: nothing; no answer' ]
