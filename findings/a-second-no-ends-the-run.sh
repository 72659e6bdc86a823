#!/usr/bin/env bash
# An agent of Pydantic AI that is told twice in a row that something does not exist ends, with all that it has done.
#
# Packages: PyPI pydantic-ai-slim[mcp] 2.68.0 (which includes fastmcp-slim), fastmcp-slim 4.2.3, mcp 2.3.0. Needs Python
# 3.11 with venv. No model is asked.
#
# Expected: a failed result (`isError`) is for the model, which may then do something else (2025-11-25, Tools, "Error
# Handling"). "No such file" is an answer as good as any to one who looks for a file, and an agent may get as many of
# them as its run has steps. A limit on retries is for calls that are repeated.
#
# Seen on 2026-12-01: each failed result counts as a failed attempt of that tool, also if the next call has other
# arguments, and one is allowed. The second in a row raises UnexpectedModelBehavior out of `agent.run()`: the model does
# not see that result, there is no answer, and what the run has done before stays done. A call of the tool that succeeds
# sets the count back, one of another tool between the two does not, and two that fail in the same step count as one. So
# it depends on the order of the model's steps whether a run ends, and a server that reports what it did not find as an
# ordinary text ends none. With `MCPToolset(…, tool_error_behavior="failed")` the model sees each of them, and no run
# ends.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check \
    "pydantic-ai-slim[mcp]==2.68.0" fastmcp-slim==4.2.3 mcp==2.3.0 2>/dev/null

cat >check.py <<'PY'
import asyncio
import logging
from typing import Any

from mcp.server import MCPServer
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

logging.disable(logging.CRITICAL)
server = MCPServer("server", log_level="CRITICAL")


@server.tool()
def find(name: str) -> str:
    if name != "c":
        raise ValueError(f"no file {name}")
    return f"found {name}"


@server.tool()
def note(name: str) -> str:
    return f"noted {name}"


def model(steps: list[str]) -> FunctionModel:
    """A model that looks for one file after another, or for several in one step; it notes what is in capitals."""
    left = iter(steps)

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = next(left, None)
        if step is None:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("note" if n.isupper() else "find", {"name": n}) for n in step])

    return FunctionModel(respond)


async def play(steps: list[str], **options: Any) -> None:
    async with Agent(model(steps), toolsets=[MCPToolset(server, **options)]) as agent:
        try:
            outcome = (await agent.run("go")).output
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error).split('. ')[0]}"
    print(f"{', '.join([*steps, *options.values()])}: {outcome}")


async def main() -> None:
    for steps in (["a", "c"], ["a", "b", "c"], ["a", "c", "b", "c"], ["a", "N", "b", "c"], ["ab", "c"]):
        await play(steps)
    await play(["a", "b", "c"], tool_error_behavior="failed")


asyncio.run(main())
PY
seen=$(venv/bin/python -W ignore check.py 2>/dev/null)
echo "$seen"
ended="UnexpectedModelBehavior: Tool 'find' exceeded max retries count of 1"
[ "$seen" = "a, c: done
a, b, c: $ended
a, c, b, c: done
a, N, b, c: $ended
ab, c: done
a, b, c, failed: done" ]
