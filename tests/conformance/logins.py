"""The scenarios about logins (`auth/`): Colonnade logs in at the suite's issuers, as a person with a browser has it.

The suite serves a protected server at a URL and its issuers elsewhere. A host with that one server runs; whenever it
says that it needs a login, `colonnade login` is started, and a browser follows the link that it prints. Then the SDK's
client lists the tools and calls the first one, which may need a login for more scopes. A few logins are enough for any
scenario: that there are no more of them is what some look for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import trio
from mcp import Client
from mcp.types import TextContent

from tests.conformance.tap import keep, open_tap
from tests.real.oauth.browser import Browser
from tests.real.oauth.fixtures import login_command
from tests.real.running import Running, serving, until, write_config

LOGINS = "auth/"
"""The beginning of the names of these scenarios."""
SERVER = "suite"
MAX_LOGINS = 4
SETTLE_SECONDS = 15.0
STEPS_SECONDS = 15.0
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The Client ID Metadata Document that the suite takes for its client's."""


def configured(context: dict[str, Any]) -> dict[str, Any]:
    """`oauth` of the server: the client that the suite has registered, if there is one."""
    if "client_id" in context:
        return {"client_id": context["client_id"], "client_secret": context["client_secret"]}
    return {"client_metadata_url": CLIENT_DOCUMENT}


def use_protected(way: str, folder: Path, url: str) -> int:
    """Log in as often as the server wants it, and call its tool; the exit status, 0 if the call has an answer."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    file = write_config(folder, {SERVER: {"url": url, "trust": "trusted", "oauth": configured(context)}})
    with serving(file) as host:
        for _ in range(MAX_LOGINS):
            state = state_of(host)
            if state == "ready":
                said = trio.run(call_first_tool, way, f"{host.url}/{SERVER}", folder)
                print(said)
                if "colonnade login" not in said:
                    return 0
            elif state != "needs login":
                return 1
            if not log_in(file):
                return 1
    return 1


def state_of(host: Running) -> str:
    """The state of the server, once it is settled."""

    def settled() -> str | None:
        state: str = host.status()[SERVER]["state"]
        return None if state == "starting" else state

    time.sleep(1.5)  # noqa: TID251 - a login reaches the host within a second
    found: str = until(settled, "the server settles", SETTLE_SECONDS)
    return found


def log_in(file: Path) -> bool:
    """Log in as a person with a browser does. An issuer that has changed is accepted."""
    try:
        with login_command(file, SERVER, "--yes") as command:
            page = Browser().log_in(command.start_link())
            print(page.text)
            status = command.end()
            print(command.said)
            return status == 0
    except AssertionError as ended:  # before there was a link
        print(ended, file=sys.stderr)
        return False


async def call_first_tool(way: str, url: str, folder: Path) -> str:
    """The text that the first tool gives, or the error. What the host sends meanwhile is kept in the folder."""
    mode = "legacy" if way.endswith("handshake") else "auto"
    with trio.fail_after(STEPS_SECONDS):
        async with open_tap(url, "client", f"{folder.name}, {way}") as (tapped, to_client):
            async with Client(tapped, mode=mode, cache=None) as client:
                name = (await client.list_tools()).tools[0].name
                result = await client.call_tool(name)
            keep(folder, to_client)
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text
