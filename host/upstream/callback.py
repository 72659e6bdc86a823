"""The return of a browser from a login: a listener on loopback that is open only while a person logs in.

    GET /oauth/login/NONCE    shows what the login is for, where the person has not seen that elsewhere
    GET /oauth/start/NONCE    sets a cookie and leads to the issuer; later only the browser with the cookie
    GET /oauth/callback       takes the issuer's answer, from the browser with the cookie alone

The cookie binds the answer to the browser in which the login began, so that nobody can have a person's browser finish a
login that somebody else began. Nothing in a request is repeated in an answer, and there is no redirect but the one to
the issuer.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from hmac import compare_digest
from html import escape
from typing import Protocol

import trio

from host.oauth.authorization import CALLBACK_PATH, MAX_ANSWER, ForeignAnswer
from host.oauth.problem import OAuthProblem
from host.wire.asgi import Headers, Receive, Scope, Send, respond

LOGIN_PATH = "/oauth/login/"
START_PATH = "/oauth/start/"
_COOKIE = "colonnade_login"
_COOKIE_PATH = "/oauth/"

_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "content-type": "text/plain; charset=utf-8",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class LinkedLogin(Protocol):
    """A login that a browser may begin, and ends."""

    async def show(self) -> Mapping[str, str]:
        """The purpose of the login, in words; raises OAuthProblem if there can be none."""

    async def begin(self) -> str:
        """The address of the issuer's page; raises OAuthProblem if there is none, or nobody was shown what the login
        is for."""

    def take(self, query: str) -> None:
        """Take the query of the answer; raises OAuthProblem if it is not a good one."""

    async def wait_outcome(self) -> str:
        """Wait for the end of a login whose answer has come, and return a sentence about it."""


class Callback:
    """The app of one login. Its address is that of `bound`, which the caller owns.

    Attributes:
        is_read: whether a browser waits for a page, or is at the issuer.
        finished: set when the answer was taken, or the login failed, and the browser was told.
    """

    def __init__(self, bound: socket.socket, login: LinkedLogin) -> None:
        address, port = bound.getsockname()[:2]
        self.origin = f"http://{f'[{address}]' if ':' in address else address}:{port}"
        self._login = login
        self._nonce = secrets.token_urlsafe(24)
        self._cookie: str | None = None
        self._issuer_page: str | None = None
        self.is_read = False
        self.finished = trio.Event()

    @property
    def begun(self) -> bool:
        """Whether a browser has begun the login here."""
        return self._cookie is not None

    @property
    def start_url(self) -> str:
        """The address that begins the login in a browser of this machine."""
        return f"{self.origin}{START_PATH}{self._nonce}"

    @property
    def login_url(self) -> str:
        """The address that shows what the login is for, and leads to `start_url`."""
        return f"{self.origin}{LOGIN_PATH}{self._nonce}"

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        headers = Headers(scope["headers"])
        path = scope["raw_path"].decode("latin-1")
        # A page elsewhere whose name leads to loopback would send its own name (DNS rebinding).
        if (headers.one("host") or "").lower() != self.origin.removeprefix("http://") or scope["method"] != "GET":
            await _say(send, 403, "This address is for the end of a login only.")
        elif self._is_link(path, START_PATH):
            await self._start(headers, send)
        elif self._is_link(path, LOGIN_PATH):
            await self._show(send)
        elif path == CALLBACK_PATH:
            await self._finish(headers, scope["query_string"], send)
        else:
            await _say(send, 404, "There is nothing here.")

    def _is_link(self, path: str, before: str) -> bool:
        return path.startswith(before) and compare_digest(path[len(before) :].encode(), self._nonce.encode())

    async def _show(self, send: Send) -> None:
        self.is_read = True
        try:
            purpose = await self._login.show()
        except OAuthProblem as problem:
            await self._fail(f"There can be no login: {problem.told}.", send)
            return
        self.is_read = self.begun
        page = _page(purpose, f"{START_PATH}{self._nonce}")
        await respond(send, 200, {**_HEADERS, "content-type": "text/html; charset=utf-8"}, page.encode())

    async def _fail(self, text: str, send: Send) -> None:
        await _say(send, 400, text)
        self.finished.set()

    async def _start(self, headers: Headers, send: Send) -> None:
        """Only the first browser gets the cookie; so a link that leaked afterwards is worth nothing. That browser may
        come again: its person may have lost the issuer's page."""
        if self._issuer_page is not None and self._has_cookie(headers):
            await respond(send, 303, {**_HEADERS, "location": self._issuer_page})
            return
        if self._cookie is not None:
            said = "This login has already begun in another browser."
            await _say(send, 409, f"{said} If the issuer's page is lost, begin another login: colonnade login.")
            return
        self._cookie = secrets.token_urlsafe(24)  # before the login is waited for: another browser may come meanwhile
        self.is_read = True
        try:
            page = await self._login.begin()
        except OAuthProblem as problem:
            await self._fail(f"There can be no login: {problem.told}.", send)
            return
        self._issuer_page = page
        cookie = f"{_COOKIE}={self._cookie}; HttpOnly; SameSite=Lax; Path={_COOKIE_PATH}; Max-Age=900"
        await respond(send, 303, {**_HEADERS, "location": page, "set-cookie": cookie})

    def _has_cookie(self, headers: Headers) -> bool:
        """Whether the request comes from the browser in which the login began."""
        if self._cookie is None:
            return False
        cookies = [each.strip() for line in headers.all("cookie") for each in line.split(";")]
        expected = f"{_COOKIE}={self._cookie}".encode()
        return any(compare_digest(each.encode("utf-8", "replace"), expected) for each in cookies)

    async def _finish(self, headers: Headers, query: bytes, send: Send) -> None:
        if not self._has_cookie(headers):
            await _say(send, 403, "This login did not begin in this browser, so its answer is not used.")
            return
        if len(query) > MAX_ANSWER:
            await _say(send, 400, "The answer is too long.")
            return
        try:
            self._login.take(query.decode("latin-1"))
        except ForeignAnswer as problem:
            await _say(send, 400, f"{problem}.")
            return
        except OAuthProblem as problem:
            await self._fail(f"The login failed: {problem.told}.", send)
            return
        await _say(send, 200, f"The answer has come. {await self._login.wait_outcome()} You can close this page.")
        self.finished.set()


def _page(purpose: Mapping[str, str], link: str) -> str:
    """A page that shows what a login is for. The texts are of an issuer or a server."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd><bdi>{escape(text)}</bdi></dd>" for name, text in purpose.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Colonnade: a login</title>'
        f"<h1>A server wants a login</h1><p>This is what Colonnade would get:</p><dl>{rows}</dl>"
        f'<p><a href="{escape(link)}" rel="noreferrer">Go on to the issuer</a></p>'
        "<p>If you did not expect this, close this page: nobody has logged in yet.</p></html>\n"
    )


async def _say(send: Send, status: int, text: str) -> None:
    await respond(send, status, _HEADERS, f"{text}\n".encode())
