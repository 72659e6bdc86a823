"""An office with 500 tools: ten things to do with fifty kinds of papers. Each tool only says what it was asked for."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "quickstart"))

from small_server import Refusal, SmallServer, text, tool

PAPERS = (
    "account appointment asset audit bill branch budget campaign card claim client complaint contract course customer "
    "delivery deposit device discount document employee event expense form holiday incident invoice lead lease letter "
    "licence loan meeting message offer order partner payment permit policy product project quote receipt refund "
    "report shipment supplier survey ticket"
)
ONE = {"id": {"type": "string", "description": "Which one"}}
SOME = {
    "customer": {"type": "string", "description": "Only those of this customer"},
    "limit": {"type": "integer", "description": "How many at most", "minimum": 1, "maximum": 500},
    "archived": {"type": "boolean", "description": "Whether to include archived ones"},
}
SUBJECT = {"subject": {"type": "string"}}
ENTRY = {"customer": {"type": "string", "description": "Whose it is"}, **SUBJECT}
COLLEAGUE = {"colleague": {"type": "string"}}
TOOLS = [
    made
    for paper in PAPERS.split()
    for made in (
        tool(f"list_{paper}s", f"List {paper}s, the newest first", SOME),
        tool(f"count_{paper}s", f"Count {paper}s", SOME),
        tool(f"get_{paper}", f"Get one {paper} with all that belongs to it", ONE, ["id"]),
        tool(f"create_{paper}", f"Create a new {paper}", ENTRY, ["customer", "subject"]),
        tool(f"update_{paper}", f"Change an existing {paper}", {**ONE, **ENTRY}, ["id"]),
        tool(
            f"rename_{paper}",
            f"Give a {paper} another subject",
            {**ONE, "subject": ENTRY["subject"]},
            ["id", "subject"],
        ),
        tool(
            f"share_{paper}",
            f"Send a {paper} to a colleague",
            {**ONE, "colleague": {"type": "string"}},
            ["id", "colleague"],
        ),
        tool(f"export_{paper}", f"Export a {paper} as a PDF", ONE, ["id"]),
        tool(f"archive_{paper}", f"Archive a {paper}", ONE, ["id"]),
        tool(f"delete_{paper}", f"Delete a {paper} for good", ONE, ["id"]),
    )
]
NAMES = {each["name"] for each in TOOLS}


def call_tool(params, call):
    if params["name"] not in NAMES:
        raise Refusal(-32602, f"Unknown tool: {params['name']}")
    return text(f"{params['name']} {json.dumps(params.get('arguments', {}), sort_keys=True)}")


server = SmallServer(
    "office",
    {"tools": {}},
    {"tools/list": lambda params, call: {"tools": TOOLS}, "tools/call": call_tool},
)

if __name__ == "__main__":
    server.run()
