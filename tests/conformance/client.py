"""The client that the conformance suite starts and tests: Colonnade, with a client of the official SDK in front.

    python -m tests.conformance.client WAY FOLDER URL    # from the project's root, with the suite's environment

The suite serves at `URL` and names the scenario in `MCP_CONFORMANCE_SCENARIO`. A `colonnade serve` with that one
server does all the talking to it, so that every verdict is on the side of Colonnade that faces servers; the SDK's
client only makes it talk, through `/mcp/suite`, where names are the server's own. `WAY` is how it does: with a
`handshake`, or `stateless`. With `direct-` before that there is no Colonnade, which shows what the steps are worth.

It knows what each scenario wants done (`STEPS`). It refuses to know what the suite looks for in it. It owns the host it
starts, which has ended when this ends. The exit status is 0 when the steps could be done, the server was never given up
meanwhile, and the host ended cleanly; `FOLDER` then has the configuration, what the host wrote to standard error, and
the messages that it sent to either side.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, MCPError
from mcp.client.context import ClientRequestContext
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.conformance.logins import LOGINS, use_protected
from tests.conformance.tap import keep, open_tap
from tests.real.running import serving, write_config

SERVER = "suite"
STEPS_SECONDS = 15.0  # the slowest scenario makes its client wait for half a second


class User:
    """Who answers forms: changes nothing in them, so that every field has the schema's default.

    Answers at once, but for a while between `hesitate` and `decide`; `was_asked` is set from the first form on.
    """

    def __init__(self) -> None:
        self.was_asked = trio.Event()
        self._decided = trio.Event()
        self._decided.set()

    def hesitate(self) -> None:
        """Answer nothing until `decide`."""
        self._decided = trio.Event()

    def decide(self) -> None:
        """Answer what was asked meanwhile, and what comes, at once."""
        self._decided.set()

    async def answer(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """The SDK's callback for elicitation."""
        self.was_asked.set()
        await self._decided.wait()
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


async def names_of(client: Client) -> list[str]:
    """The tools that there are."""
    return [tool.name for tool in (await client.list_tools()).tools]


async def be_told_of_nothing(client: Client, user: User) -> None:
    """A server that declares nothing has no lists at its own endpoint, though this one would answer them."""
    with pytest.raises(MCPError) as refused:
        await names_of(client)
    assert refused.value.code == -32601


async def add_numbers(client: Client, user: User) -> None:
    """A call with arguments, and its answer."""
    (name,) = await names_of(client)
    assert text_of(await client.call_tool(name, {"a": 5, "b": 3})) == "The sum of 5 and 3 is 8"


async def call_across_a_break(client: Client, user: User) -> None:
    """A call whose stream the server closes: its answer comes on the stream that takes it up again."""
    (name,) = await names_of(client)
    assert text_of(await client.call_tool(name)) == "Reconnection test completed successfully"


async def be_asked(client: Client, user: User) -> None:
    """A call in the course of which the server asks the user."""
    (name,) = await names_of(client)
    assert text_of(await client.call_tool(name)).startswith("Elicitation completed")


async def return_schema(client: Client, user: User) -> None:
    """The schema of one tool, as it arrived, is the argument of a call of the other."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    echo = tools.pop("json_schema_echo")
    (other,) = tools.values()
    assert text_of(await client.call_tool(echo.name, {"schema": other.input_schema})) == "echoed"


async def list_remote_schema(client: Client, user: User) -> None:
    """A tool whose schema refers to an address that nobody may open."""
    assert await names_of(client) == ["lookup_user"]


async def be_asked_in_rounds(client: Client, user: User) -> None:
    """Calls that go round by the user, and one that does not and comes between the rounds of another."""
    await names_of(client)
    user.hesitate()
    said = []

    async def call(name: str) -> None:
        said.append(text_of(await client.call_tool(name)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "test_mrtr_echo_state")
        await user.was_asked.wait()
        await call("test_mrtr_unrelated")
        user.decide()
    await call("test_mrtr_no_state")
    await call("test_mrtr_no_result_type")
    assert said == ["unrelated-ok", "echo-state-ok", "no-state-ok", "no-result-type-test-ok"]


async def use_everything(client: Client, user: User) -> None:
    """One of each kind that has a name in its headers."""
    for name in await names_of(client):
        assert text_of(await client.call_tool(name)) == "Headers test completed"
    for resource in (await client.list_resources()).resources:
        await client.read_resource(resource.uri)
    for prompt in (await client.list_prompts()).prompts:
        await client.get_prompt(prompt.name)


async def call_as_told(client: Client, user: User) -> None:
    """The calls that the suite names, whose arguments go into headers too."""
    await names_of(client)
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        assert text_of(await client.call_tool(call["name"], call["arguments"])) == "Custom headers test completed"


async def call_what_is_left(client: Client, user: User) -> None:
    """The one tool that is fit for use among many that are not; those are not even seen."""
    assert await names_of(client) == ["valid_tool"]
    assert text_of(await client.call_tool("valid_tool", {"region": "here"})) == "Tool call received"


Steps = Callable[[Client, User], Awaitable[None]]
STEPS: dict[str, Steps] = {
    # of 2025-11-25
    "initialize": be_told_of_nothing,
    "sse-retry": call_across_a_break,
    "elicitation-sep1034-client-defaults": be_asked,
    # of both revisions
    "tools_call": add_numbers,
    "json-schema-2020-12-preservation": return_schema,
    # of 2026-07-28
    "request-metadata": be_told_of_nothing,
    "sep-2322-client-request-state": be_asked_in_rounds,
    "http-standard-headers": use_everything,
    "http-custom-headers": call_as_told,
    "http-invalid-tool-headers": call_what_is_left,
    "json-schema-ref-no-deref": list_remote_schema,
}


async def walk(steps: Steps, way: str, url: str) -> None:
    """Do the steps with a client connected to `url`."""
    user = User()
    mode = "legacy" if way.endswith("handshake") else "auto"
    with trio.fail_after(STEPS_SECONDS):
        async with Client(url, mode=mode, elicitation_callback=user.answer, cache=None) as client:
            assert (client.protocol_version in MODERN_PROTOCOL_VERSIONS) == (mode == "auto"), client.protocol_version
            await steps(client, user)


async def walk_through_colonnade(steps: Steps, way: str, folder: Path, url: str) -> None:
    """Do the steps with Colonnade before `url`, and a tap on either side of it."""
    scenario = folder.name
    async with open_tap(url, "server", f"{scenario}, {way}") as (server, to_server):
        # Servers of 2026-07-28 hold an initialize, by which a session would be tried, to the rules of that revision.
        spec = {"url": server, "trust": "trusted", "eras": "one"}
        host = serving(write_config(folder, {SERVER: spec}), SERVER)
        # In a thread, since the tap has to be there for the host that is waited for.
        running = await trio.to_thread.run_sync(host.__enter__)
        try:
            async with open_tap(f"{running.url}/{SERVER}", "client", f"{scenario}, {way}") as (url, to_client):
                await walk(steps, way, url)
            # The suite cannot tell a client that goes on from one that gives up, and is started anew.
            assert not (failed := running.state_lines(SERVER, "failed")), failed
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(host.__exit__, *sys.exc_info())
    keep(folder, to_server, to_client)


def main(way: str, folder: Path, url: str) -> int:
    """Do what the scenario wants done; the exit status."""
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    if scenario.startswith(LOGINS):
        return use_protected(way, folder, url)
    steps = STEPS.get(scenario)
    if steps is None:
        print(f"{Path(__file__).name} has no steps for the scenario {scenario}.", file=sys.stderr)
        return 2
    if way.startswith("direct-"):
        trio.run(walk, steps, way, url)
    else:
        trio.run(walk_through_colonnade, steps, way, folder, url)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
