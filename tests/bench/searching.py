"""The load generator of fixed/load.py, whose calls go another way.

    searching.py direct|call_tool|search_tools URL ERA CONNECTIONS [OPTION VALUE]...

With `call_tool`, each call of the server's tool comes through call_tool. With `search_tools`, each is a search instead,
in words of which many tools of the server have one. At a URL with https, each connection has TLS.
"""

from __future__ import annotations

import ssl
import sys
from typing import Any

import trio

from tests.bench.fixed import load

QUERY = "give back the same text"


def main() -> None:
    way = sys.argv.pop(1)
    settings = ssl.create_default_context()
    settings.check_hostname, settings.verify_mode = False, ssl.CERT_NONE

    class TlsClient(load.Client):
        async def _exchange(self, *request: Any, **how: Any) -> load.Response:
            if self._stream is None and self._where.scheme == "https":
                host, port = str(self._where.hostname), self._where.port or 443
                stream = await trio.open_ssl_over_tcp_stream(host, port, ssl_context=settings, https_compatible=True)
                self._stream = stream  # type: ignore[assignment]  # it has what the client uses
            return await super()._exchange(*request, **how)

    class Client(TlsClient):
        async def post(self, message: Any, headers: dict[str, str], to_its_end: bool = True) -> load.Response:
            if message["method"] == "tools/call" and way != "direct":
                params = message["params"]
                inner = {"name": params["name"], "arguments": params["arguments"]}
                message["params"] = {**params, "name": way, "arguments": inner}
                headers = {**headers, "Mcp-Name": way} if "Mcp-Name" in headers else headers
            return await super().post(message, headers, to_its_end)

    class Searching(TlsClient):
        async def call(self, id: int) -> bool:
            stateless = self._options.era == "stateless"
            arguments = {"query": f"{QUERY} {id}", "limit": 5}
            params = {**(load.META if stateless else {}), "name": way, "arguments": arguments}
            headers = self._version()
            headers |= {"Mcp-Method": "tools/call", "Mcp-Name": way} if stateless else {}
            response = await self.post({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}, headers)
            found = response.message()["result"]["structuredContent"]["tools"]
            return bool(len(found) == arguments["limit"])

    load.Client = Searching if way == "search_tools" else Client  # type: ignore[misc]  # the clients that `main` makes
    trio.run(load.main)


if __name__ == "__main__":
    main()
