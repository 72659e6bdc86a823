"""The return of a browser from a login: a listener on loopback that is open only while a person logs in.

    GET /oauth/start/NONCE    sets a cookie and leads to the issuer
    GET /oauth/callback       takes the issuer's answer, from the browser with the cookie alone

The cookie binds the answer to the browser in which the login began, so that nobody can have a person's browser finish a
login that somebody else began. Nothing in a request is repeated in an answer, and there is no redirect but the one to
the issuer.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from hmac import compare_digest

import trio

from host.oauth.authorization import CALLBACK_PATH, MAX_ANSWER, ForeignAnswer
from host.oauth.problem import OAuthProblem
from host.wire.asgi import Headers, Receive, Scope, Send, respond

START_PATH = "/oauth/start/"
_COOKIE = "colonnade_login"

_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "content-type": "text/plain; charset=utf-8",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Callback:
    """The app of one login. Its address is that of `bound`, which the caller owns.

    Args:
        authorization_url: where the browser is sent.
        take: takes the query of the answer; raises OAuthProblem if it is not a good one.
    """

    def __init__(self, bound: socket.socket, authorization_url: str, take: Callable[[str], None]) -> None:
        address, port = bound.getsockname()[:2]
        self.origin = f"http://{f'[{address}]' if ':' in address else address}:{port}"
        self._authorization_url = authorization_url
        self._take = take
        self._nonce = secrets.token_urlsafe(24)
        self._cookie: str | None = None
        self.finished = trio.Event()
        """Set when the answer was taken, and the browser was told."""

    @property
    def begun(self) -> bool:
        """Whether a browser has begun the login here."""
        return self._cookie is not None

    @property
    def start_url(self) -> str:
        """The address that begins the login in a browser of this machine."""
        return f"{self.origin}{START_PATH}{self._nonce}"

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        headers = Headers(scope["headers"])
        path = scope["raw_path"].decode("latin-1")
        # A page elsewhere whose name leads to loopback would send its own name (DNS rebinding).
        if (headers.one("host") or "").lower() != self.origin.removeprefix("http://") or scope["method"] != "GET":
            await _say(send, 403, "This address is for the end of a login only.")
        elif path.startswith(START_PATH) and compare_digest(path[len(START_PATH) :].encode(), self._nonce.encode()):
            await self._start(send)
        elif path == CALLBACK_PATH:
            await self._finish(headers, scope["query_string"], send)
        else:
            await _say(send, 404, "There is nothing here.")

    async def _start(self, send: Send) -> None:
        """Only the first browser gets the cookie; so a link that leaked afterwards is worth nothing."""
        if self._cookie is not None:
            await _say(send, 409, "This login has already begun, in this browser or in another one.")
            return
        self._cookie = secrets.token_urlsafe(24)
        cookie = f"{_COOKIE}={self._cookie}; HttpOnly; SameSite=Lax; Path={CALLBACK_PATH}; Max-Age=900"
        await respond(send, 303, {**_HEADERS, "location": self._authorization_url, "set-cookie": cookie})

    async def _finish(self, headers: Headers, query: bytes, send: Send) -> None:
        cookies = [each.strip() for line in headers.all("cookie") for each in line.split(";")]
        expected = None if self._cookie is None else f"{_COOKIE}={self._cookie}".encode()
        if expected is None or not any(compare_digest(each.encode("utf-8", "replace"), expected) for each in cookies):
            await _say(send, 403, "This login did not begin in this browser, so its answer is not used.")
            return
        if len(query) > MAX_ANSWER:
            await _say(send, 400, "The answer is too long.")
            return
        try:
            self._take(query.decode("latin-1"))
        except ForeignAnswer as problem:
            await _say(send, 400, f"{problem}.")
            return
        except OAuthProblem as problem:
            await _say(send, 400, f"The login failed: {problem}.")
        else:
            await _say(send, 200, "The answer has come. You can close this page; the terminal says how the login went.")
        self.finished.set()


async def _say(send: Send, status: int, text: str) -> None:
    await respond(send, status, _HEADERS, f"{text}\n".encode())
