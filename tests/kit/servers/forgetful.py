"""The server of `sdk_server.py` over Streamable HTTP, which forgets its sessions on demand: `forgetful.py LOG PORT`.

While the file LOG.forgets exists, requests of a session are answered with 404, as behind a balancer without affinity.
If it contains `once`, the first such request removes it, and only its session is forgotten. LOG gets each method that
was answered so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import uvicorn
from sdk_server import server  # type: ignore[import-not-found]  # it lies beside this program
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

LOG = Path(sys.argv[1])
FORGETS = Path(f"{LOG}.forgets")


class Forgetful:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._forgotten: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = Request(scope).headers.get("mcp-session-id") if scope["type"] == "http" else None
        if session is None or not self._forgets(session, scope["method"]):
            await self._app(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        _note(json.loads(body)["method"] if body else scope["method"])
        await Response(status_code=404)(scope, receive, send)

    def _forgets(self, session: str, method: str) -> bool:
        if method == "POST" and session not in self._forgotten and FORGETS.exists():
            self._forgotten.add(session)
            if FORGETS.read_text() == "once":
                FORGETS.unlink()
        return session in self._forgotten


def _note(method: str) -> None:
    with LOG.open("a") as log:
        log.write(method + "\n")


if __name__ == "__main__":
    port = int(sys.argv[2])
    print(f"http://127.0.0.1:{port}/mcp", flush=True)
    uvicorn.run(Forgetful(server.streamable_http_app()), host="127.0.0.1", port=port, log_level="warning")
