"""A server of the official SDK behind OAuth: it takes the tokens that the issuer says are for it.

python protected.py PORT ISSUER [SCOPE...]
"""

from __future__ import annotations

import json
import sys
import urllib.parse
import urllib.request

import anyio.to_thread
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer

PORT, ISSUER, *SCOPES = sys.argv[1:]
URL = f"http://127.0.0.1:{PORT}/mcp"


class Introspection:
    """Asks the issuer about each token (RFC 7662)."""

    async def verify_token(self, token: str) -> AccessToken | None:
        found = await anyio.to_thread.run_sync(self._ask, token)
        if not found.get("active") or found.get("aud") != URL:
            return None
        scopes = found.get("scope", "").split()
        return AccessToken(token=token, client_id=found["client_id"], scopes=scopes, resource=URL)

    def _ask(self, token: str) -> dict[str, str]:
        form = urllib.parse.urlencode({"token": token, "client_id": "resource", "client_secret": "resource-secret"})
        with urllib.request.urlopen(f"{ISSUER}/token/introspection", form.encode(), timeout=5) as answer:
            found: dict[str, str] = json.load(answer)
            return found


server = MCPServer(
    "protected",
    token_verifier=Introspection(),
    # As texts: a URL object would get a slash at its end, and be another issuer.
    auth=AuthSettings.model_validate(
        {"issuer_url": ISSUER, "resource_server_url": URL, "required_scopes": SCOPES or None}
    ),
    log_level="WARNING",
)


@server.tool()
def note(text: str) -> str:
    """Gives the text back."""
    return f"noted: {text}"


if __name__ == "__main__":
    print(URL, flush=True)
    server.run("streamable-http", host="127.0.0.1", port=int(PORT))
