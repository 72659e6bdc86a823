"""Notes that live as long as the server: tools to add and find them, and each note as a resource."""

import threading

from small_server import Refusal, SmallServer, text, tool

notes = []
adding = threading.Lock()

TOOLS = [
    tool("add", "Write a note down", {"text": {"type": "string"}}, ["text"]),
    tool("find", "Find the notes that hold a word", {"word": {"type": "string"}}, ["word"]),
]
PROMPTS = [
    {
        "name": "summarise",
        "description": "Ask for a summary of all notes",
        "arguments": [{"name": "style", "description": "How it should sound", "required": False}],
    }
]
STYLES = ["plain", "playful", "pirate"]


def call_tool(params, call):
    arguments = params.get("arguments", {})
    if params["name"] == "add":
        with adding:
            notes.append(str(arguments["text"]))
            number = len(notes)
        server.notify("notifications/resources/list_changed")
        return text(f"Note {number} is written down.")
    if params["name"] == "find":
        found = [f"{number}: {note}" for number, note in enumerate(notes, 1) if str(arguments["word"]) in note]
        return text("\n".join(found) or "No note holds that word.")
    raise Refusal(-32602, f"Unknown tool: {params['name']}")


def list_resources(params, call):
    return {"resources": [{"uri": f"note:///{n}", "name": f"Note {n}"} for n in range(1, len(notes) + 1)]}


def read_resource(params, call):
    number = params["uri"].removeprefix("note:///")
    if not number.isdigit() or not 1 <= int(number) <= len(notes):
        raise Refusal(-32002, "Resource not found")
    return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": notes[int(number) - 1]}]}


def get_prompt(params, call):
    style = params.get("arguments", {}).get("style", "plain")
    everything = "\n".join(f"- {note}" for note in notes) or "- there are no notes yet"
    said = f"Summarise these notes in a {style} style:\n{everything}"
    return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}


def complete(params, call):
    values = [style for style in STYLES if style.startswith(params["argument"]["value"])]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


server = SmallServer(
    "notes",
    {"tools": {}, "resources": {"listChanged": True}, "prompts": {}, "completions": {}},
    {
        "tools/list": lambda params, call: {"tools": TOOLS},
        "tools/call": call_tool,
        "resources/list": list_resources,
        "resources/templates/list": lambda params, call: {
            "resourceTemplates": [{"uriTemplate": "note:///{number}", "name": "A note by its number"}]
        },
        "resources/read": read_resource,
        "prompts/list": lambda params, call: {"prompts": PROMPTS},
        "prompts/get": get_prompt,
        "completion/complete": complete,
    },
    instructions="Notes are numbered from 1 and forgotten when the server stops.",
)

if __name__ == "__main__":
    server.run()
