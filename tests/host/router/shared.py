"""Scripted servers, requests and revisions that several tests of the router use."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from host.jsonrpc.messages import ErrorBody
from host.peer.outstanding import PeerError
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer

REVISION = LATEST_LEGACY.name


async def echo(params: dict[str, Any]) -> object:
    return {
        "content": [{"type": "text", "text": json.dumps(params.get("arguments"))}],
        "_meta": {"saw": params["name"]},
    }


ODD = (
    b'{"z":1,"a":1.50,"e":1E400,"n":123456789012345678901234567890,"f":-0.0,"s":"\\ud83d","u":"\\u00e9 \xe2\x80\xa8",'
    b'"$ref":"#/$defs/x","x-mcp-header":"A","uri":"memo:1","name":"a__x","":{"deep":[[[{}]]]},  "spaced" :[ 1 ,2 ]}'
)
"""JSON that a library would write differently: order, number text, escapes, spaces."""
READABLE = ODD.replace(b"\\ud83d", b"\\u00e9")
"""The same without half of an emoji, which clients do not get: many could not read the message."""


REVISIONS = list(LEGACY)
OLDER = REVISIONS[:2]
REACHING: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "a__x"}),
    ("prompts/get", {"name": "a__x"}),
    ("resources/read", {"uri": "a+x:1"}),
    ("resources/subscribe", {"uri": "a+x:1"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__x"}, "argument": {}}),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a+x:1"}, "argument": {}}),
]
"""Every request that one server answers."""


def refusing(code: int, message: str, data: object = None, **spec: Any) -> ScriptedServer:
    """A server that refuses whatever reaches it."""

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(code, message, None if data is None else Raw(json.dumps(data).encode())))

    return ScriptedServer(
        "a",
        tools=["x"],
        prompts=["x"],
        resources=["x:1"],
        capabilities={"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}},
        answers={method: refuse for method, _ in REACHING},
        **spec,
    )


COMPLETION = "completion/complete"


async def told(client: ScriptedClient, method: str, params: object) -> str:
    """The error that a request ends with, or the text of a tool's: `code message data`; or the completed values."""
    try:
        result = await client.request(method, params)
    except Refusal as refusal:
        return f"{refusal.code} {refusal.message} {refusal.data}"
    if method == COMPLETION:
        return str(result["completion"]["values"])
    assert result["isError"] is True
    return f"isError {result['content'][0]['text']} None"


NEW = LATEST.name
