"""A browser that logs in: it follows redirects, keeps cookies, and fills in the forms of `provider.mjs`."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPMessage
from http.cookiejar import CookieJar
from typing import IO, NamedTuple

MAX_PAGES = 20
_FORM = re.compile(r'<form[^>]* action="([^"]+)"')
_PROMPT = re.compile(r'name="prompt" value="(\w+)"')
_GO_ON = re.compile(r'<a href="(/oauth/start/[\w-]+)"')


class Page(NamedTuple):
    url: str
    status: int
    text: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class Browser:
    """`visited` has every page that it was at, `cookies` those that it was given."""

    def __init__(self, user: str = "tess") -> None:
        self.visited: list[Page] = []
        self.cookies = CookieJar()
        self._user = user
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self.cookies), _NoRedirects, urllib.request.ProxyHandler({})
        )

    def log_in(self, url: str, *, until: str = "") -> Page:
        """Open the link and log in. The last page; with `until`, the first address that begins with it, unopened."""
        form: dict[str, str] | None = None
        for _ in range(MAX_PAGES):
            if until and url.startswith(until):
                return Page(url, 0, "")
            page, further = self.fetch(url, form)
            form = None
            if further is not None:
                url = urllib.parse.urljoin(url, further)
                continue
            action, prompt = _FORM.search(page.text), _PROMPT.search(page.text)
            if action is None or prompt is None:
                return page
            url = urllib.parse.urljoin(url, action[1])
            form = {"prompt": prompt[1], "login": self._user, "password": "any"}
        raise AssertionError(f"the login does not end: {self.visited}")

    def go_on(self, url: str) -> Page:
        """Open the page that shows what a login is for, go on to the issuer, and log in. The last page."""
        page, further = self.fetch(url)
        assert (page.status, further) == (200, None), page
        found = _GO_ON.search(page.text)
        assert found is not None, page
        return self.log_in(urllib.parse.urljoin(url, found[1]))

    def fetch(self, url: str, form: dict[str, str] | None = None) -> tuple[Page, str | None]:
        """One page, and where it leads on to."""
        body = None if form is None else urllib.parse.urlencode(form).encode()
        try:
            answer = self._opener.open(url, body, timeout=10)
        except urllib.error.HTTPError as problem:
            answer = problem
        with answer:
            page = Page(url, answer.status, answer.read().decode())
        self.visited.append(page)
        return page, answer.headers.get("location")
