"""A ledger (`ledger.py`) behind OAuth, with an issuer that takes each refresh token once.

    python rotating.py EVENTS LOG PORT      over HTTP on 127.0.0.1 (port 0: a free one); prints its URL

Anybody is logged in. An access token is good for LIFETIME seconds. EVENTS gets a line of JSON for each use of a refresh
token: `what` is one of

    refreshed     by the present token, which ends with that
    asked again   by the one before, while nobody has shown what took its place: that answer may have been lost
    reused        by one whose successor was in use already; it is refused

`at` is the Unix time at which the request came. A line `begun` comes before each of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import secrets
import sys
import threading
import time
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.kit.servers.ledger import Handler, Ledger, Server

LIFETIME = 3.0
SLOWEST = 0.4
"""Seconds that the issuer takes at most, before it has decided and again after that."""


class Issuer:
    def __init__(self, events: str) -> None:
        self._events = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._codes: dict[str, str] = {}
        """The challenge of each code."""
        self._expires: dict[str, float] = {}
        """By access token."""
        self._present = self._former = ""
        """The refresh token that is good, and the one before."""
        self._newest = ""
        self._is_known = True
        """Whether somebody has shown what came with the present token."""

    def authorize(self, challenge: str) -> str:
        code = secrets.token_hex(16)
        self._codes[code] = challenge
        return code

    def exchange(self, code: str, verifier: str) -> dict[str, object] | None:
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        with self._lock:
            return self._tokens() if self._codes.pop(code, None) == challenge else None

    def refresh(self, token: str) -> dict[str, object] | None:
        came = time.time()
        self._note("begun", came)
        _take_time()
        with self._lock:
            if token == self._present:
                self._note("refreshed", came)
                self._former = token
            elif token == self._former and not self._is_known:
                self._note("asked again", came)
            else:
                self._note("reused", came)
                return None
            answer = self._tokens()
        _take_time()
        return answer

    def takes(self, token: str) -> bool:
        with self._lock:
            self._is_known = self._is_known or token == self._newest
            return time.time() < self._expires.get(token, 0)

    def _tokens(self) -> dict[str, object]:
        self._newest, self._present = secrets.token_hex(16), secrets.token_hex(16)
        self._expires[self._newest] = time.time() + LIFETIME
        self._is_known = False
        tokens = {"access_token": self._newest, "refresh_token": self._present}
        return {**tokens, "token_type": "Bearer", "expires_in": LIFETIME}

    def _note(self, what: str, came: float) -> None:
        os.write(self._events, json.dumps({"what": what, "at": came}).encode() + b"\n")


def _take_time() -> None:
    threading.Event().wait(random.uniform(0, SLOWEST))


class Guarded(Handler):
    server: RotatingServer

    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        url, base = urlsplit(self.path), f"http://127.0.0.1:{self.server.server_address[1]}"
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/.well-known/oauth-protected-resource/mcp":
            self._json({"resource": f"{base}/mcp", "authorization_servers": [base]})
        elif url.path == "/.well-known/oauth-authorization-server":
            names = {"authorization": "authorize", "token": "token", "registration": "register"}
            ends = {f"{name}_endpoint": f"{base}/{path}" for name, path in names.items()}
            known = {"code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": ["none"]}
            self._json({"issuer": base, **ends, **known})
        elif url.path == "/authorize":
            answer = {"code": self.server.issuer.authorize(asked["code_challenge"]), "state": asked["state"]}
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{urlencode(answer)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self._is_let_in():
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802
        if self.path == "/register":
            wanted = json.loads(self._form())
            self._json({**wanted, "client_id": secrets.token_hex(8)}, 201)
        elif self.path == "/token":
            form = {name: values[0] for name, values in parse_qs(self._form()).items()}
            if form["grant_type"] == "refresh_token":
                answer = self.server.issuer.refresh(form["refresh_token"])
            else:
                answer = self.server.issuer.exchange(form["code"], form["code_verifier"])
            self._json(answer or {"error": "invalid_grant"}, 200 if answer else 400)
        elif self.path == "/touch" or self._is_let_in():
            super().do_POST()

    def _is_let_in(self) -> bool:
        if self.server.issuer.takes((self.headers["Authorization"] or "").removeprefix("Bearer ")):
            return True
        self._form()
        base = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.send_response(401)
        where = f"{base}/.well-known/oauth-protected-resource/mcp"
        self.send_header("WWW-Authenticate", f'Bearer resource_metadata="{where}"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def _form(self) -> str:
        return self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()

    def _json(self, answer: object, status: int = 200) -> None:
        self._send(status, json.dumps(answer).encode())


class RotatingServer(Server):
    issuer: Issuer


if __name__ == "__main__":
    with RotatingServer(("127.0.0.1", int(sys.argv[3])), Guarded) as server:
        server.ledger, server.issuer = Ledger(sys.argv[2]), Issuer(sys.argv[1])
        print(f"http://127.0.0.1:{server.server_address[1]}/mcp", flush=True)
        server.serve_forever()
