"""Small things to do with text; `forget` is there to be denied by the configuration beside this file."""

import string

from small_server import Refusal, SmallServer, text, tool

WORD = {"text": {"type": "string"}}
TOOLS = [
    tool("count", "Count words and characters", WORD, ["text"]),
    tool("turn", "Turn a text around", WORD, ["text"]),
    tool("forget", "Forget everything (the configuration denies this one)", {}),
]


def call_tool(params, call):
    said = str(params.get("arguments", {}).get("text", ""))
    if params["name"] == "count":
        counts = {"words": len(said.split()), "characters": len(said)}
        return {**text(f"{counts['words']} words, {counts['characters']} characters"), "structuredContent": counts}
    if params["name"] == "turn":
        return text(said[::-1])
    raise Refusal(-32602, f"Unknown tool: {params['name']}")


server = SmallServer(
    "words",
    {"tools": {}, "resources": {}},
    {
        "tools/list": lambda params, call: {"tools": TOOLS},
        "tools/call": call_tool,
        "resources/list": lambda params, call: {
            "resources": [{"uri": "words://alphabet", "name": "The alphabet", "mimeType": "text/plain"}]
        },
        "resources/templates/list": lambda params, call: {"resourceTemplates": []},
        "resources/read": lambda params, call: {
            "contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": string.ascii_lowercase}]
        },
    },
)

if __name__ == "__main__":
    server.run()
