#!/usr/bin/env bash
# A question of a tool whose text differs each time it is made is asked ten times, and then its call fails.
#
# Packages: PyPI mcp 2.3.0. Needs Python 3.11 with venv.
#
# Expected: a tool asks for its missing value once, whatever its text says. The answer comes back under the key of the
# question, in the next round of the call (2026-07-28), as it comes back to the request in a session (2025-11-25).
#
# Seen on 2026-11-28: in 2026-07-28 nothing waits on the server, so the function that makes the question runs again in
# each round. The SDK keeps a digest of the question in `requestState`, and discards an answer to a question that has
# another text now. A time, a price or a number of free places in the text is enough: a person accepts ten times, and
# the client gives up with InputRequiredRoundsExceededError. The same tool asks once in a session, and for a text that
# stays the same. Client and server of the newest SDK agree on 2026-07-28 unless told otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null

cat >check.py <<'PY'
import itertools
from typing import Annotated, Any

import anyio
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ElicitRequestParams, ElicitResult
from pydantic import BaseModel

server = MCPServer("tickets")
free = itertools.count(90, -1)


class Consent(BaseModel):
    ok: bool


def same() -> Elicit[Consent]:
    return Elicit("Book a seat?", Consent)


def other() -> Elicit[Consent]:
    return Elicit(f"Book one of the {next(free)} free seats?", Consent)


@server.tool()
def book(consent: Annotated[Consent, Resolve(same)]) -> str:
    return "booked"


@server.tool()
def book_one(consent: Annotated[Consent, Resolve(other)]) -> str:
    return "booked"


async def main() -> None:
    for mode in ("legacy", "auto"):
        asked = 0

        async def accept(context: Any, params: ElicitRequestParams) -> ElicitResult:
            nonlocal asked
            asked += 1
            return ElicitResult(action="accept", content={"ok": True})

        async with Client(server, mode=mode, elicitation_callback=accept) as client:
            for tool in ("book", "book_one"):
                asked = 0
                try:
                    outcome = (await client.call_tool(tool, {})).content[0].text
                except Exception as error:
                    outcome = type(error).__name__
                print(f"{client.protocol_version} {tool}: asked {asked}, {outcome}")


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = '2025-11-25 book: asked 1, booked
2025-11-25 book_one: asked 1, booked
2026-07-28 book: asked 1, booked
2026-07-28 book_one: asked 10, InputRequiredRoundsExceededError' ]
