"""Scripted servers that make tasks of calls: one of a handshake revision, and one that is stateless.

server = shaking()
async with open_world(server) as world, trio.open_nursery() as nursery:
    call = later(nursery, (await world.client()).call, "a__x")
    await begins(server)
    await completes(server)
"""

from __future__ import annotations

from typing import Any

import trio

from config import Trust
from host.protocol.versions import LATEST
from tests.kit.world import Reply, ScriptedServer, tool

IO = "io.modelcontextprotocol/"
EXTENSION = f"{IO}tasks"
RELATED = f"{IO}related-task"
TASK_CAPABILITIES: dict[str, Any] = {
    "tools": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
EXTENSION_CAPABILITIES: dict[str, Any] = {"tools": {}, "prompts": {}, "extensions": {EXTENSION: {}}}
OK: dict[str, Any] = {"content": [{"type": "text", "text": "ok"}]}


def handshake_server(support: str | None = "required", **more: Any) -> ScriptedServer:
    """A handshake server whose one tool is called `x`."""
    found: dict[str, Any] = {"capabilities": TASK_CAPABILITIES, "trust": Trust.TRUSTED, **more}
    return ScriptedServer("a", tools=[tool_with_support("x", support)], **found)


def extension_server(**more: Any) -> ScriptedServer:
    """A stateless server with the extension."""
    found: dict[str, Any] = {"capabilities": EXTENSION_CAPABILITIES, "trust": Trust.TRUSTED, **more}
    return ScriptedServer("a", tools=["x"], prompts=["p"], revision=LATEST.name, **found)


def tool_with_support(name: str, support: str | None) -> dict[str, Any]:
    return tool(name, **({} if support is None else {"execution": {"taskSupport": support}}))


def status(standing: str = "working", poll: object = 500, id: str = "t1", **more: Any) -> dict[str, Any]:
    """A task as a handshake server has it."""
    found = {"taskId": id, "status": standing, "createdAt": "", "lastUpdatedAt": "", "ttl": None, **more}
    return found if poll is None else {**found, "pollInterval": poll}


def extension_status(
    standing: str = "working", poll: object = 500, id: str = "t1", kind: str = "complete", **more: Any
) -> Any:
    """A task as the extension has it."""
    found = {"taskId": id, "status": standing, "createdAt": "", "lastUpdatedAt": "", "ttlMs": None, **more}
    return {"resultType": kind, **found} if poll is None else {"resultType": kind, **found, "pollIntervalMs": poll}


async def begins(server: ScriptedServer, id: str = "t1", poll: object = 500) -> dict[str, Any]:
    """The server makes a task of the call that it hears: the params of that call."""
    asked = await server.hears("tools/call")
    made = extension_status(id=id, poll=poll, kind="task") if server.stateless else {"task": status(id=id, poll=poll)}
    server.says(asked["id"], made)
    return asked


async def says_status(server: ScriptedServer, standing: str = "working", *, id: str = "t1", **more: Any) -> None:
    """The server is asked how its task stands, and says it."""
    asked = await server.hears("tasks/get")
    assert asked["taskId"] == id
    server.says(asked["id"], (extension_status if server.stateless else status)(standing, id=id, **more))


async def says_result(server: ScriptedServer, result: object = OK) -> None:
    asked = await server.hears("tasks/result")
    assert asked["taskId"] == "t1"
    server.says(asked["id"], result)


async def completes(server: ScriptedServer) -> None:
    """The server is asked once more, and all is well."""
    if server.stateless:
        await says_status(server, "completed", result=OK)
    else:
        await says_status(server, "completed")
        await says_result(server)


def still_working(server: ScriptedServer, poll: object, times: list[float]) -> Reply:
    """Answers every question about a task: it is still at work. Notes when."""

    async def reply(params: dict[str, Any]) -> object:
        times.append(trio.current_time())
        return (extension_status if server.stateless else status)(poll=poll)

    return reply
