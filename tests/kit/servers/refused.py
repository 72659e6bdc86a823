"""A server over stdio with definitions that official clients refuse, and with them the list, beside good ones."""

from __future__ import annotations

import json
import sys
from typing import Any

OBJECT: dict[str, Any] = {"type": "object"}
FIRST: dict[str, Any] = {"named": {"$id": "https://example.com/result", "required": ["a"]}}
PROMISING: dict[str, Any] = {
    "namesake": {"$id": "https://example.com/result"},
    "pattern": {"properties": {"a": {"pattern": "^a\\-"}}},
    "reference": {"properties": {"a": {"$ref": "#/$defs/missing"}}},
    "keyword": {"properties": {"a": {"type": "strng"}}},
    "dialect": {"$schema": "http://json-schema.org/draft-04/schema#"},
    "inner": {"properties": {"a": {"$id": "https://example.com/inner"}}},
    "inner_namesake": {"properties": {"a": {"$id": "https://example.com/inner", "type": "string"}}},
}
"""Output schemas that clients cannot compile, or take for another of the same name. All results are empty objects."""
WRITTEN: dict[str, dict[str, Any]] = {
    "none": {},
    "null": {"inputSchema": None},
    "any": {"inputSchema": True},
    "typeless": {"inputSchema": {"properties": {"a": {"type": "string"}}}},
    "listed": {"inputSchema": {"type": ["object", "null"]}},
    "boolean": {"inputSchema": {**OBJECT, "properties": {"a": True, "b": {"not": False}}}},
    "php": {"inputSchema": {**OBJECT, "properties": [], "required": None}, "annotations": [], "_meta": []},
    "nulls": {"inputSchema": OBJECT, "title": None, "description": None, "icons": None, "outputSchema": None},
    **{name: {"inputSchema": OBJECT, "outputSchema": OBJECT | more} for name, more in (FIRST | PROMISING).items()},
}
"""Tools that have an equivalent form, or one without an output schema that clients cannot compile."""
LEFT_OUT: dict[str, dict[str, Any]] = {"text": {"inputSchema": {"type": "string"}}, "five": {"inputSchema": 5}}
LISTS: dict[str, list[dict[str, Any]]] = {
    "tools": [
        {"name": "first", "inputSchema": OBJECT},
        *({"name": name, **more} for name, more in (WRITTEN | LEFT_OUT).items()),
        {"name": "last", "inputSchema": OBJECT},
    ],
    "resources": [
        {"uri": "memo:first", "name": "first"},
        {"uri": "memo:size", "name": "size", "size": "5", "mimeType": None, "annotations": {"lastModified": "today"}},
        {"uri": "memo:nameless"},
        {"uri": "memo", "name": "no URI"},
        {"uri": "memo:last", "name": "last"},
    ],
    "resourceTemplates": [{"uriTemplate": "memo:{a}"}, {"uriTemplate": "note:{a}", "name": "last", "icons": {}}],
    "prompts": [
        {"name": "first", "arguments": None},
        {"name": "nameless", "arguments": [{"description": "x"}]},
        {"name": "last", "arguments": [{"name": "a", "required": None}]},
    ],
}
METHODS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


def answer(method: str) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
            "serverInfo": {"name": "refused", "version": "1"},
        }
    if method in METHODS:
        return {METHODS[method]: LISTS[METHODS[method]]}
    called = {"content": [{"type": "text", "text": "called"}], "structuredContent": {}}
    return called if method == "tools/call" else {}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message["method"])}), flush=True)


if __name__ == "__main__":
    main()
