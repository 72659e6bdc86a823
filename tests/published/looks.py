"""A server as the official SDK's client sees it: its lists, and the outcomes of some requests."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import trio
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.types import ErrorData, ListRootsResult

PATIENCE = 60.0
NO_SUCH = "no-such-entry"
Seen = dict[str, Any]
"""By kind: lists by the names of their entries, outcomes as results or errors."""


async def look(target: str | StdioServerParameters, mode: str, *calls: tuple[str, Mapping[str, Any]]) -> Seen:
    """Look at a server with a client.

    Args:
        target: a URL, or a program to start.
        mode: `auto` or `legacy`.
        calls: tools and their arguments; what becomes of the first one with wrong arguments is looked at, too.
    """
    with trio.fail_after(4 * PATIENCE):
        async with Client(
            target,
            mode=mode,
            cache=None,
            read_timeout_seconds=PATIENCE,
            elicitation_callback=_refuse,
            sampling_callback=_refuse,
            list_roots_callback=_no_roots,
        ) as client:
            seen: Seen = {"revision": client.protocol_version, "instructions": client.instructions or ""}
            for kind, key, method, name in (
                ("tools", "tools", client.list_tools, "name"),
                ("resources", "resources", client.list_resources, "uri"),
                ("templates", "resourceTemplates", client.list_resource_templates, "uriTemplate"),
                ("prompts", "prompts", client.list_prompts, "name"),
            ):
                seen[kind] = await _list(method, key, name)
            seen["calls"] = [
                await _outcome(partial(client.call_tool, tool, dict(arguments))) for tool, arguments in calls
            ]
            seen["wrong arguments"] = await _outcome(lambda: client.call_tool(calls[0][0], {"nothing": [1]}))
            seen["unknown tool"] = await _outcome(lambda: client.call_tool(NO_SUCH, {}))
            seen["unknown prompt"] = await _outcome(lambda: client.get_prompt(NO_SUCH))
            for uri in [uri for uri in seen["resources"] if uri][:1]:
                seen["read"] = await _outcome(lambda: client.read_resource(uri))  # noqa: B023 - awaited at once
    return seen


async def _refuse(context: ClientRequestContext, params: object) -> ErrorData:
    """The client declares what servers may ask for, since some show certain tools only then."""
    return ErrorData(code=-32603, message="nobody is there")


async def _no_roots(context: ClientRequestContext) -> ListRootsResult:
    return ListRootsResult(roots=[])


async def _list(method: Callable[..., Awaitable[Any]], key: str, name: str) -> dict[str, Any]:
    """All pages of a list; under "" an error, whose words count for nothing if the server does not have the list."""
    found: dict[str, Any] = {}
    cursor: str | None = None
    while True:
        try:
            page = _plain(await method(cursor=cursor))
        except MCPError as error:
            return {"": {"error": -32601}} if error.code == -32601 else {"": _error(error)}
        found |= {each[name]: each for each in page[key]}
        cursor = page.get("nextCursor")
        if not cursor:
            return found


async def _outcome(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return _plain(await ask())
    except MCPError as error:
        return _error(error)
    except (RuntimeError, ValueError) as problem:  # the SDK refuses what the server sent
        return {"refused": str(problem)}


def _error(error: MCPError) -> dict[str, Any]:
    return {"error": error.code, "message": error.message, **({"data": error.data} if error.data is not None else {})}


def _plain(result: Any) -> dict[str, Any]:
    made: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    meta = made.get("_meta", {})
    if meta.pop("io.modelcontextprotocol/serverInfo", None) is not None and not meta:  # who answers: of each hop
        del made["_meta"]
    return made


def differing(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Where two values differ: lines for people."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differing(one.get(key), other.get(key), f"{at}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (mine, yours) in enumerate(zip(one, other, strict=True)):
            yield from differing(mine, yours, f"{at}/{place}")
    elif one != other:
        yield f"{at}: {_short(one)} became {_short(other)}"


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) < 300 else f"{text[:300]}…"


def without_places(seen: Seen, folder: str, port: int, varies: str) -> Seen:
    """The same without what differs from run to run: the folder, the port, and numbers after a word."""
    text = json.dumps(seen).replace(json.dumps(folder)[1:-1], "{folder}")
    if port:
        text = re.sub(rf"\b{port}\b", "{port}", text)
    if varies:
        text = re.sub(rf"({varies}\W+)[\d.]+", r"\g<1>0", text)
    made: Seen = json.loads(text)
    return made
