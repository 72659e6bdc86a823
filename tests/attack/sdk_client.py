"""The official SDK's client: for each line on standard input, a new session that lists all tools; a script.

    python sdk_client.py URL

Answers with a line `{"tools": [NAME, …]}` or `{"error": "…"}`.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings

import trio
from mcp import Client

PATIENCE = 10.0


async def tools(url: str) -> list[str]:
    async with Client(url, mode="legacy", cache=None, read_timeout_seconds=PATIENCE) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


def main() -> None:
    warnings.simplefilter("ignore")  # it leaves event streams half read, which trio warns about
    logging.disable()  # and logs with a traceback what it raises as well
    for _ in sys.stdin:
        try:
            answer: object = {"tools": trio.run(tools, sys.argv[1])}
        except Exception as problem:  # noqa: BLE001 - whatever keeps the client from its list is what is looked for
            answer = {"error": " ".join(repr(problem).split())[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
