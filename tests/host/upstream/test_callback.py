"""The listener of a login: what browsers and others may do with it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from host.oauth.authorization import ForeignAnswer
from host.oauth.problem import OAuthProblem
from host.upstream.callback import Callback
from host.upstream.login import bind_callback, serve_callback
from host.wire.listener import serve_http

LINK = "https://login.example/authorize?state=x"


@dataclass
class Seen:
    status: int
    headers: dict[str, str]
    text: str


class Page:
    """One login's listener, and the answers that it took."""

    def __init__(self, callback: Callback, taken: list[str]) -> None:
        self.callback = callback
        self.taken = taken
        self._port = int(callback.origin.rpartition(":")[2])

    async def get(
        self, path: str, *, cookie: str | None = None, host: str | None = None, method: str = "GET", origin: str = ""
    ) -> Seen:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self._port}'}", "Connection: close"]
        lines += [f"Cookie: {cookie}"] if cookie is not None else []
        lines += [f"Origin: {origin}"] if origin else []
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with stream:
            await stream.send_all("\r\n".join([*lines, "", ""]).encode())
            data = b"".join([piece async for piece in stream]).decode()
        head, _, body = data.partition("\r\n\r\n")
        status, *fields = head.split("\r\n")
        headers = {name.lower(): text.strip() for name, _, text in (field.partition(":") for field in fields)}
        return Seen(int(status.split()[1]), headers, body)

    async def start(self) -> str:
        """Begin the login in a browser; its cookie."""
        page = await self.get(self.callback.start_url.removeprefix(self.callback.origin))
        assert (page.status, page.headers["location"]) == (303, LINK)
        return page.headers["set-cookie"].partition(";")[0]


class Linked:
    """A login whose parts the test sets."""

    def __init__(self, *, ended: bool = False, **purpose: str) -> None:
        self.purpose = purpose
        self.problem: OAuthProblem | None = None
        self.refusal: OAuthProblem | None = None
        self.calls: list[str] = []
        self.taken: list[str] = []
        self.waiting, self.ended = trio.Event(), trio.Event()
        if ended:
            self.ended.set()

    async def show(self) -> dict[str, str]:
        await self._note("show")
        return self.purpose

    async def begin(self) -> str:
        await self._note("begin")
        return LINK

    def take(self, query: str) -> None:
        self.taken.append(query)
        if self.refusal is not None:
            raise self.refusal

    async def wait_outcome(self) -> str:
        self.waiting.set()
        await self.ended.wait()
        return "You are logged in."

    async def _note(self, what: str) -> None:
        await trio.lowlevel.checkpoint()
        self.calls.append(what)
        if self.problem is not None:
            raise self.problem


@asynccontextmanager
async def opened(problem: OAuthProblem | None = None, login: Linked | None = None) -> AsyncIterator[Page]:
    login = login or Linked(ended=True)
    login.refusal = problem
    with bind_callback() as bound:
        callback = Callback(bound, login)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_http, callback.serve, bound)
            yield Page(callback, login.taken)
            nursery.cancel_scope.cancel()


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with opened() as made:
        yield made


async def test_the_browser_that_began_brings_the_answer(page: Page) -> None:
    cookie = await page.start()
    seen = await page.get("/oauth/callback?code=c0de&state=st4te", cookie=f"other=1; {cookie}")
    assert seen.status == 200
    assert page.taken == ["code=c0de&state=st4te"]
    assert page.callback.finished.is_set()
    assert not re.search("c0de|st4te", seen.text + str(seen.headers))


async def test_the_cookie_is_for_the_login_alone(page: Page) -> None:
    seen = await page.get(page.callback.start_url.removeprefix(page.callback.origin))
    _, *attributes = seen.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", "Path=/oauth/"} <= set(attributes)
    assert seen.headers["referrer-policy"] == "no-referrer"
    assert seen.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("cookie", [None, "", "colonnade_login=", "colonnade_login=guess", "x=y"])
async def test_another_browser_cannot_end_the_login(page: Page, cookie: str | None) -> None:
    """Login CSRF: somebody sends a person a link with an answer of their own."""
    assert (await page.get("/oauth/callback?code=c&state=s", cookie=cookie)).status == 403
    await page.start()
    assert (await page.get("/oauth/callback?code=c&state=s", cookie=cookie)).status == 403
    assert page.taken == []
    assert not page.callback.finished.is_set()


@pytest.mark.parametrize("order", [0, 1])
async def test_a_cookie_that_another_page_has_set_changes_nothing(page: Page, order: int) -> None:
    """Pages at other ports of 127.0.0.1 share its cookies: theirs does not end the login, and does not stop it."""
    cookie, forged = await page.start(), "colonnade_login=forged"
    assert (await page.get("/oauth/callback?code=evil&state=s", cookie=forged)).status == 403
    both = "; ".join((cookie, forged) if order else (forged, cookie))
    assert (await page.get("/oauth/callback?code=c&state=s", cookie=both)).status == 200
    assert page.taken == ["code=c&state=s"]


async def test_no_other_page_can_read_what_is_here(page: Page) -> None:
    start = page.callback.start_url.removeprefix(page.callback.origin)
    for path in (start, "/oauth/callback?code=c", "/"):
        seen = await page.get(path, origin="https://evil.example")
        assert not [name for name in seen.headers if name.startswith("access-control-")]
    assert page.taken == []


async def test_a_login_begins_in_one_browser(page: Page) -> None:
    """Another program that saw the link later cannot begin in its own browser. A person may have lost the page."""
    cookie, link = await page.start(), page.callback.start_url.removeprefix(page.callback.origin)
    for foreign in (None, "colonnade_login=forged"):
        again = await page.get(link, cookie=foreign)
        assert (again.status, "begin another login: colonnade login" in again.text) == (409, True)
    again = await page.get(link, cookie=cookie)
    assert (again.status, again.headers["location"], "set-cookie" in again.headers) == (303, LINK, False)
    assert (await page.get("/oauth/callback?code=c", cookie=cookie)).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "127.0.0.1:1"])
async def test_a_name_that_leads_here_is_refused(page: Page, host: str) -> None:
    """DNS rebinding."""
    start = page.callback.start_url.removeprefix(page.callback.origin)
    assert (await page.get(start, host=host)).status == 403
    assert not page.callback.begun


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/oauth/start/",
        "/oauth/start/guess",
        "/oauth/callback/x",
        "/oauth/callback%2F",
        "//evil.example/oauth/callback",
        "/oauth/callback/../start/",
        "/console",
        "/mcp",
        "/api/v1/state",
    ],
)
async def test_there_is_nothing_else(page: Page, path: str) -> None:
    seen = await page.get(path)
    assert seen.status == 404
    assert "location" not in seen.headers


@pytest.mark.parametrize(
    "query", ["redirect=https://evil.example", "next=//evil.example", "error_uri=https://evil.example"]
)
async def test_the_callback_is_no_open_redirect(query: str) -> None:
    async with opened(OAuthProblem("the login was denied")) as page:
        cookie = await page.start()
        seen = await page.get(f"/oauth/callback?{query}", cookie=cookie)
        assert seen.status == 400
        assert "location" not in seen.headers
        assert "evil" not in seen.text + str(seen.headers)


async def test_a_page_runs_nothing_and_is_in_no_frame() -> None:
    async with opened(OAuthProblem("it failed")) as page:
        cookie = await page.start()
        seen = await page.get("/oauth/callback?error=%3Cscript%3Ealert(1)%3C/script%3E", cookie=cookie)
        assert seen.headers["content-type"].startswith("text/plain")
        assert "default-src 'none'" in seen.headers["content-security-policy"]
        assert (seen.headers["x-frame-options"], seen.headers["x-content-type-options"]) == ("DENY", "nosniff")
        assert "script" not in seen.text


async def test_a_foreign_answer_leaves_the_login_open() -> None:
    async with opened(ForeignAnswer("the answer does not belong to this login")) as page:
        cookie = await page.start()
        assert (await page.get("/oauth/callback?code=c&state=other", cookie=cookie)).status == 400
        assert not page.callback.finished.is_set()


@pytest.mark.parametrize("method", ["POST", "HEAD", "OPTIONS", "DELETE"])
async def test_only_get_is_answered(page: Page, method: str) -> None:
    assert (await page.get("/oauth/callback?code=c", method=method)).status == 403
    assert page.taken == []


async def test_a_long_answer_is_refused(page: Page) -> None:
    cookie = await page.start()
    assert (await page.get(f"/oauth/callback?code={'c' * 9000}", cookie=cookie)).status == 400
    assert page.taken == []


# A login that begins in the browser


def path_of(page: Page) -> str:
    return page.callback.login_url.removeprefix(page.callback.origin)


async def test_a_link_shows_what_the_login_is_for_and_leads_to_the_issuer() -> None:
    login = Linked(issuer="https://login.example", scopes="<b>all</b>")
    async with opened(login=login) as page:
        seen = await page.get(path_of(page))
        assert (seen.status, seen.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert seen.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert "set-cookie" not in seen.headers, "a link that was only looked at binds no browser"
        assert "<bdi>https://login.example</bdi>" in seen.text
        assert "<bdi>&lt;b&gt;all&lt;/b&gt;</bdi>" in seen.text
        start = page.callback.start_url.removeprefix(page.callback.origin)
        assert f'href="{start}"' in seen.text
        assert login.calls == ["show"]
        assert await page.start()
        assert (await page.get(start)).status == 409
        assert login.calls == ["show", "begin"]


@pytest.mark.parametrize("path", ["login_url", "start_url"])
async def test_a_login_that_cannot_be_says_why_in_the_browser(path: str) -> None:
    login = Linked()
    login.problem = OAuthProblem("the issuer has no PKCE")
    async with opened(login=login) as page:
        seen = await page.get(getattr(page.callback, path).removeprefix(page.callback.origin))
        assert (seen.status, seen.text) == (400, "There can be no login: the issuer has no PKCE.\n")
        assert page.callback.finished.is_set()


async def test_only_the_link_itself_begins_anything() -> None:
    login = Linked()
    async with opened(login=login) as page:
        for path in ("/oauth/login/", "/oauth/login/guess", "/oauth/start/", f"{path_of(page)}x"):
            assert (await page.get(path)).status == 404
        assert (await page.get(path_of(page), host="evil.example")).status == 403
        assert (await page.get(path_of(page), method="POST")).status == 403
        assert login.calls == []


async def test_the_browser_is_told_how_the_login_went() -> None:
    login = Linked()
    async with opened(login=login) as page, trio.open_nursery() as nursery:
        cookie = await page.start()
        seen: list[Seen] = []

        async def come_back() -> None:
            seen.append(await page.get("/oauth/callback?code=c0de&state=st4te", cookie=cookie))

        nursery.start_soon(come_back)
        await login.waiting.wait()
        assert not page.callback.finished.is_set()
        login.ended.set()
        await page.callback.finished.wait()
    assert [each.text for each in seen] == ["The answer has come. You are logged in. You can close this page.\n"]


async def test_nobody_listens_after_the_login() -> None:
    with bind_callback() as bound:
        callback = Callback(bound, Linked())
        port = int(callback.origin.rpartition(":")[2])
        async with serve_callback(callback, bound):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
                assert b" 403 " in await stream.receive_some()
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        await trio.open_tcp_stream("127.0.0.1", port)
