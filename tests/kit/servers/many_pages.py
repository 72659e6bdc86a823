"""A server whose list of tools does not end: page after page of tools with large descriptions, over standard input and
output.

    python3 -I -S many_pages.py PAGES BYTES       so many pages of so many bytes each

Nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = 512 * 1024


def page(number: int, pages: int, size: int) -> dict[str, Any]:
    """One page of the list: tools of at most half a mebibyte each, since larger definitions are left out one by one."""
    tools = [
        {
            "name": f"t{number}-{n}",
            "description": "d" * min(TOOL, size - start),
            "inputSchema": {"type": "object"},
        }
        for n, start in enumerate(range(0, size, TOOL))
    ]
    return {"tools": tools, **({"nextCursor": str(number + 1)} if number + 1 < pages else {})}


def main(pages: int, size: int) -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        answer: dict[str, Any] = {"result": {}}
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "many pages", "version": "1"}
            version = params["protocolVersion"]
            answer = {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}}
        elif method == "tools/list":
            answer = {"result": page(int(params.get("cursor", "0")), pages, size)}
        elif method != "ping":
            answer = {"error": {"code": -32601, "message": "Method not found"}}
        sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
