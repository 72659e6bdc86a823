"""A server of the official SDK behind OAuth: it takes the tokens that are for it. It looks into those that are JWTs
(RFC 9068), and asks the issuer about the others.

python protected.py PORT ISSUER [SCOPE...]
"""

from __future__ import annotations

import json
import sys
import urllib.parse
import urllib.request
from typing import Any

import anyio.to_thread
import jwt
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer

PORT, ISSUER, *SCOPES = sys.argv[1:]
URL = f"http://127.0.0.1:{PORT}/mcp"


class Verifier:
    def __init__(self) -> None:
        self._keys = jwt.PyJWKClient(f"{ISSUER}/jwks")

    async def verify_token(self, token: str) -> AccessToken | None:
        found = self._read(token) if token.count(".") == 2 else await anyio.to_thread.run_sync(self._ask, token)
        if not found.get("active") or found.get("aud") != URL:
            return None
        scopes = found.get("scope", "").split()
        return AccessToken(token=token, client_id=found["client_id"], scopes=scopes, resource=URL)

    def _read(self, token: str) -> dict[str, Any]:
        try:
            key = self._keys.get_signing_key_from_jwt(token).key
            claims = jwt.decode(token, key, algorithms=["RS256"], audience=URL, issuer=ISSUER)
        except jwt.PyJWTError:
            return {}
        return {"active": True, **claims}

    def _ask(self, token: str) -> dict[str, Any]:
        """The issuer's introspection of a token (RFC 7662)."""
        form = urllib.parse.urlencode({"token": token, "client_id": "resource", "client_secret": "resource-secret"})
        with urllib.request.urlopen(f"{ISSUER}/token/introspection", form.encode(), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


server = MCPServer(
    "protected",
    token_verifier=Verifier(),
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
