"""Requests of a stateless client (2026-07-28) over HTTP, for clients of any library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.kit.asgi import IO, LATEST, NAMED


def stateless_request(
    method: str, params: Mapping[str, Any], *, id: object = 1
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the headers and the body of a request that declares no capability (Streamable HTTP, Sending Messages)."""
    meta = {f"{IO}protocolVersion": LATEST, f"{IO}clientCapabilities": {}}
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": LATEST,
        "mcp-method": method,
    }
    if method in NAMED:
        headers["mcp-name"] = params[NAMED[method]]
    return headers, {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}
