"""The page for a person who opens the endpoint's address in a browser."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import pytest

from config import Listen
from config.model import Auth
from config.references import Secret
from host.downstream.http.front_page import HEADERS, front_page

TOKEN = "laptop-0123456789abcdef"
GUARDED = Listen(auth=Auth({"laptop": Secret(TOKEN)}))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:8808", "http://127.0.0.1:8808/mcp"),
        ("localhost:1", "http://localhost:1/mcp"),
        ("[::1]:8808", "http://[::1]:8808/mcp"),
        ("[::1]", "http://[::1]/mcp"),
        ("mcp.example.com", "<code>/mcp</code> at this address"),
        ("192.0.2.1:8808", "<code>/mcp</code> at this address"),
    ],
)
def test_it_names_the_endpoint(host: str, url: str) -> None:
    page = front_page(Listen(), host, console=None).decode()
    assert url in page
    assert ("mcpServers" in page) is url.startswith("http")
    assert "It needs no access token." in page


def test_it_says_that_a_token_is_needed_and_holds_none() -> None:
    page = front_page(GUARDED, "localhost:1", console="/console").decode()
    assert "listen.auth.tokens" in page
    assert "Bearer &lt;token&gt;" in page
    assert TOKEN not in page
    assert "laptop" not in page


def test_nothing_in_it_runs_and_its_style_is_the_only_one() -> None:
    page = front_page(Listen(), "localhost:1", console="/console").decode()
    assert "<script" not in page
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in HEADERS["content-security-policy"]
    assert "frame-ancestors 'none'" in HEADERS["content-security-policy"]


@pytest.mark.parametrize(("console", "leads"), [("/console", True), ("", False), (None, False)])
def test_it_leads_to_the_console_where_there_is_one(console: str | None, leads: bool) -> None:
    page = front_page(Listen(), "localhost:1", console=console).decode()
    assert ('href="/console"' in page) is leads
    assert ("colonnade console" in page) is (console is not None)


def test_without_the_older_transport_it_does_not_name_it() -> None:
    assert "/sse" in front_page(Listen(), "localhost:1", console=None).decode()
    assert "/sse" not in front_page(Listen(sse=False), "localhost:1", console=None).decode()
