"""Transcripts of the matrix: kept in `transcripts.json`, and held against a later run.

For each cell the messages that reach the client, in their order, with the HTTP status of each response; for each server
the set of messages that reach it, with the MCP headers. Identifiers, times, ports and the texts of errors are replaced:
they may differ from run to run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.kit.transcripts import Transcript

FILE = Path(__file__).with_name("transcripts.json")
PLACEHOLDER = "..."
VARYING = frozenset(
    {
        *("taskId", "cursor", "nextCursor", "requestState", "progressToken", "requestId", "elicitationId"),
        *("createdAt", "lastUpdatedAt", "io.modelcontextprotocol/subscriptionId", "mcp-session-id", "last-event-id"),
    }
)
"""Members whose value is another one in each run."""
TASK = re.compile(r"[0-9a-f]{32}")
MEANWHILE = ("notifications/resources/updated", "notifications/elicitation/complete")
"""Notifications that a server sends beside its answers: they come before those or after them."""
BEGUN = '{"status": 200}'
"""The line of a stream that has begun."""
PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+")
SERVER = re.compile(r"v[\d-]+-(http|sse|stdio|both)(__|\+)")
"""The prefixes of a server's tools and prompts, and of the URIs of its resources."""
CLIENT = re.compile(r"client-[\d-]+-(http|sse|stdio)")


def transcript(received: Sequence[tuple[int | None, Mapping[str, Any]]], server: str = "") -> Transcript:
    """The messages that a client received: the streams of its requests one after the other, then what came on none.
    Streams are independent of each other, and so is what happens meanwhile, so no order is kept there. Nor is how often
    something was repeated; nor whether a task that was asked for was still being worked on; nor whether the stream of a
    call that gets no answer was begun before it was cancelled; nor which lists changed, whoever changed them."""
    streams: dict[int, list[str]] = {}
    standing, meanwhile = list[str](), list[str]()
    early = {about for about, message in received if _is_still_working(message)} - {None}
    for about, message in received:
        method = str(message.get("method"))
        if method.endswith("/list_changed") or _is_still_working(message) or about in early:
            continue
        stream = standing if about is None else streams.setdefault(about, [])
        (meanwhile if method in MEANWHILE else stream).append(normalised(message, server))
    begun = [streams[id] for id in sorted(streams) if streams[id] != [BEGUN]]
    ordered = [*begun, standing, sorted(meanwhile)]
    return [each for lines, _ in groupby(ordered) for each, _ in groupby(lines)]


def _is_still_working(message: Mapping[str, Any]) -> bool:
    """Whether it answers who asked too early for a task that has begun. How soon one asks is a matter of time."""
    result = message.get("result", {})
    return bool(result.get("status") == "working" and result.get("resultType") != "task")


def normalised(message: Mapping[str, Any], server: str) -> str:
    """One message as text that is the same in each run, and for each server."""
    return json.dumps(_normal(message, server), sort_keys=True)


def _normal(value: Any, server: str) -> Any:
    if isinstance(value, dict):
        return _object(value, server)
    if isinstance(value, list):
        return [_normal(each, server) for each in value if not _is_of_another(each, server)]
    if isinstance(value, str):
        return _text(value, server)
    return value


def _object(value: Mapping[str, Any], server: str) -> dict[str, Any]:
    found = {
        _text(name, server): PLACEHOLDER if name in VARYING and each is not None else _normal(each, server)
        for name, each in value.items()
    }
    if "jsonrpc" in value and "id" in value and value["id"] is not None:
        found["id"] = PLACEHOLDER
    if "code" in value and "message" in value:
        found["message"] = PLACEHOLDER
    if value.get("isError") is True:
        found["content"] = PLACEHOLDER
    if value.get("name") == "colonnade" and "version" in value:
        found["version"] = PLACEHOLDER
    return found


def _is_of_another(value: object, server: str) -> bool:
    """Whether it is listed for another server than that of the cell, or comes and goes."""
    if not isinstance(value, dict) or not server:
        return False
    name = str(value.get("uri", value.get("uriTemplate", value.get("name"))))
    return "__grown-" in name or (SERVER.match(name) is not None and not name.startswith(server))


def _text(value: str, server: str) -> str:
    if value.startswith("{"):
        with suppress(ValueError):
            return normalised(json.loads(value), server)
    if server:
        value = value.replace(server, "SERVER")
    return TASK.sub("TASK", CLIENT.sub("CLIENT", PORT.sub("PORT", value)))
