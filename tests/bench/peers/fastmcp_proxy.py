"""The proxy of FastMCP, run with a Python that has it.

    fastmcp_proxy.py default|tuned PORT URL
    fastmcp_proxy.py default|tuned PORT COMMAND ...

`default` is what its documentation shows first. `tuned` has every setting of it that makes a call cheaper: one session
to the server for all clients, no sessions for clients, answers without streams, no access log.
"""

import sys
from typing import Any

import anyio
from fastmcp import Client  # type: ignore[import-not-found]  # it is in an environment of its own
from fastmcp.client.transports import StdioTransport  # type: ignore[import-not-found]
from fastmcp.server import create_proxy  # type: ignore[import-not-found]


async def main(kind: str, port: str, where: list[str]) -> None:
    target: Any = where[0] if where[0].startswith("http") else StdioTransport(where[0], where[1:])
    options: dict[str, Any] = {"transport": "http", "host": "127.0.0.1", "port": int(port), "show_banner": False}
    if kind == "default":
        await create_proxy(target).run_async(**options)
        return
    options |= {"stateless_http": True, "json_response": True, "log_level": "error"}
    async with Client(target) as client:
        await create_proxy(client).run_async(**options, uvicorn_config={"access_log": False})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3:])
