"""An issue tracker that forgets everything when it ends, for trying out consent. Nothing but the standard library."""

import json
import sys
from collections.abc import Mapping
from typing import Any

OWNER = {"owner": {"type": "string"}}
TITLE = {"title": {"type": "string"}}


def tool(name: str, description: str, properties: Mapping[str, object]) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "inputSchema": schema}


TOOLS = [
    tool("list_issues", "List the issues of an owner", OWNER),
    tool("create_issue", "Open an issue", {**OWNER, **TITLE}),
    tool("delete_issue", "Delete an issue for good", {**OWNER, **TITLE}),
]
issues: dict[str, list[str]] = {}


def call(name: str, arguments: dict[str, Any]) -> str:
    titles = issues.setdefault(arguments["owner"], [])
    if name == "list_issues":
        return "\n".join(titles) or "There are no issues."
    title = arguments["title"]
    if name == "create_issue":
        titles.append(title)
        return f"Issue {len(titles)} of {arguments['owner']}: {title}"
    titles.remove(title)
    return f"{title!r} is deleted."


def answer(method: str, params: dict[str, Any]) -> dict[str, object]:
    """What the server says to a request (2025-11-25, "Lifecycle", "Tools")."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tracker", "version": "1.0.0"},
            "instructions": "Ask for the owner before you open an issue.",
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        said = call(params["name"], params.get("arguments", {}))
        return {"content": [{"type": "text", "text": said}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message or "id" not in message:
        continue
    said: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] in ("initialize", "ping", "tools/list", "tools/call"):
        try:
            said["result"] = answer(message["method"], message.get("params", {}))
        except (KeyError, ValueError) as problem:
            said["error"] = {"code": -32602, "message": f"this does not fit: {problem}"}
    else:
        said["error"] = {"code": -32601, "message": f"there is no method {message['method']}"}
    print(json.dumps(said), flush=True)
