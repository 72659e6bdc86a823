"""What the conformance suite starts as the client it tests: Colonnade, with a client of the official SDK in front.

    python -m tests.conformance.client FOLDER URL        # from the project's root, with the suite's environment

The suite serves at `URL` and names the scenario in `MCP_CONFORMANCE_SCENARIO`. A `colonnade serve` with that one
server does all the talking to it, so that every verdict is on the side of Colonnade that faces servers; the SDK's
client only makes it talk, through `/mcp/suite`, where names are the server's own.

It knows what each scenario wants done (`STEPS`). It refuses to know what the suite looks for in it. It owns the host it
starts, which has ended when this ends. The exit status is 0 when the steps could be done and the host ended cleanly;
`FOLDER` then has the configuration, and what the host wrote to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent

from tests.real.running import serving, write_config

SERVER = "suite"
STEPS_SECONDS = 15.0  # the slowest scenario makes its client wait for half a second


async def accept_defaults(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """A user who changes nothing in the form: every field has the schema's default."""
    if not isinstance(params, ElicitRequestFormParams):
        return ElicitResult(action="decline")
    fields: dict[str, Any] = params.requested_schema["properties"]
    return ElicitResult(
        action="accept", content={name: field["default"] for name, field in fields.items() if "default" in field}
    )


def text_of(result: CallToolResult) -> str:
    """The text of a result that is one text and no error."""
    assert not result.is_error, result
    (block,) = result.content
    assert isinstance(block, TextContent), block
    return block.text


async def list_nothing(client: Client) -> None:
    """A server that offers nothing is there all the same."""
    assert (await client.list_tools()).tools == []


async def add_numbers(client: Client) -> None:
    """A call with arguments, and its answer."""
    (tool,) = (await client.list_tools()).tools
    assert text_of(await client.call_tool(tool.name, {"a": 5, "b": 3})) == "The sum of 5 and 3 is 8"


async def call_across_a_break(client: Client) -> None:
    """A call whose stream the server closes: its answer comes on the stream that takes it up again."""
    (tool,) = (await client.list_tools()).tools
    assert text_of(await client.call_tool(tool.name)) == "Reconnection test completed successfully"


async def be_asked(client: Client) -> None:
    """A call in the course of which the server asks the user."""
    (tool,) = (await client.list_tools()).tools
    assert text_of(await client.call_tool(tool.name)).startswith("Elicitation completed")


async def return_schema(client: Client) -> None:
    """The schema of one tool, as it arrived, is the argument of a call of the other."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    echo = tools.pop("json_schema_echo")
    (other,) = tools.values()
    assert text_of(await client.call_tool(echo.name, {"schema": other.input_schema})) == "echoed"


STEPS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "initialize": list_nothing,
    "tools_call": add_numbers,
    "sse-retry": call_across_a_break,
    "elicitation-sep1034-client-defaults": be_asked,
    "json-schema-2020-12-preservation": return_schema,
}


async def walk(steps: Callable[[Client], Awaitable[None]], url: str) -> None:
    """Do the steps with a client connected to `url`."""
    with trio.fail_after(STEPS_SECONDS):
        async with Client(url, mode="legacy", elicitation_callback=accept_defaults, cache=None) as client:
            await steps(client)


def main(folder: Path, url: str) -> int:
    """Do what the scenario wants done; the exit status."""
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    steps = STEPS.get(scenario)
    if steps is None:
        print(f"{Path(__file__).name} has no steps for the scenario {scenario}.", file=sys.stderr)
        return 2
    with serving(write_config(folder, {SERVER: {"url": url, "trust": "trusted"}}), SERVER) as host:
        trio.run(walk, steps, f"{host.url}/{SERVER}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
