"""One whole login through the web console: a real host, a real issuer (oidc-provider), and a real browser."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from host.audit.read import records
from tests.real.oauth.fixtures import Provider, protected_server, run_colonnade, running_provider

from .running import START, Running, serving, until, write_config
from .test_console import browsing
from .test_console_host import link

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(400),  # npm may have to install the issuer
]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(START * 1000)
    yield context
    context.close()


def fill_in(page: Page) -> None:
    """Log in at the issuer, and permit what Colonnade asks for."""
    page.get_by_placeholder("Enter any login").fill("tess")
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


@contextmanager
def needing_login(
    tmp_path: Path, provider: Provider, context: BrowserContext
) -> Iterator[tuple[Running, Page, Path, str]]:
    """A host whose server `notes` needs a login, its console, its configuration, and the URL of the server."""
    with protected_server(provider.issuer, "notes") as url:
        file = write_config(tmp_path, {"notes": {"url": url}})
        with serving(file) as host:
            until(lambda: host.status()["notes"]["state"] == "needs login", "the server needs a login")
            console = context.new_page()
            console.goto(link(tmp_path / "state"))
            yield host, console, file, url


def test_a_login_through_the_console(tmp_path: Path, provider: Provider, context: BrowserContext) -> None:
    with needing_login(tmp_path, provider, context) as (host, console, file, url):
        servers = console.locator("#servers")
        servers.get_by_role("button", name="Connect notes").scroll_into_view_if_needed()
        console.set_viewport_size({"width": 1000, "height": 420})
        servers.get_by_role("button", name="Connect notes").click()
        card = console.get_by_role("region", name="Login for notes")
        expect(card.get_by_role("link", name="Go on to the issuer")).to_be_in_viewport()
        for shown in (provider.issuer, url, "notes", "/oauth/callback"):
            expect(card).to_contain_text(shown)
        assert not [each for each in provider.events() if "registered" in each], "nobody has gone on yet"
        with context.expect_page() as opened:
            card.get_by_role("link", name="Go on to the issuer").click()
        issuer = opened.value
        assert issuer.url.startswith(provider.issuer)
        assert issuer.evaluate("document.referrer") == ""
        assert issuer.evaluate("window.opener") is None
        fill_in(issuer)
        expect(issuer.get_by_text("You are logged in.")).to_be_visible()
        expect(card).to_have_count(0)
        expect(servers.get_by_text("ready", exact=True)).to_be_visible()
        expect(console.locator("#say")).to_have_text("notes needs no login any more.")
        expect(console.locator("#activity").get_by_text(f"logged in at {provider.issuer} (console)")).to_be_visible()
        done = run_colonnade(file, "call", "notes__note", json.dumps({"text": "hello"}))
        assert done.stdout.strip() == "noted: hello", done
        assert not host.state_lines("notes", "failed")
    (record,) = records(tmp_path / "state" / "audit", kind="login")
    facts = {name: record[name] for name in ("server", "issuer", "resource", "scopes", "by")}
    assert facts == {
        "server": "notes",
        "issuer": provider.issuer,
        "resource": url,
        "scopes": ["notes"],
        "by": "console",
    }


def test_a_login_that_a_person_denies(tmp_path: Path, provider: Provider, context: BrowserContext) -> None:
    with needing_login(tmp_path, provider, context) as (_, console, _, _):
        console.get_by_role("button", name="Connect notes").click()
        card = console.get_by_role("region", name="Login for notes")
        with context.expect_page() as opened:
            card.get_by_role("link", name="Go on to the issuer").click()
        opened.value.get_by_role("link", name="Cancel").click()
        expect(opened.value.get_by_text("The login failed: the login was denied")).to_be_visible()
        expect(card).to_have_count(0)
        expect(console.get_by_text("The last login came to nothing: the login was denied")).to_be_visible()


def test_an_open_login_ends_with_its_server_and_with_the_host(
    tmp_path: Path, provider: Provider, context: BrowserContext
) -> None:
    with needing_login(tmp_path, provider, context) as (_, console, file, _):
        connect = console.get_by_role("button", name="Connect notes")
        go_on = console.get_by_role("link", name="Go on to the issuer")
        connect.click()
        first = go_on.get_attribute("href")
        assert run_colonnade(file, "disable", "notes").returncode == 0
        expect(go_on).to_have_count(0)
        until(lambda: not is_open(first), "nobody listens for the browser")
        assert run_colonnade(file, "enable", "notes").returncode == 0
        connect.click()
        second = go_on.get_attribute("href")
        assert is_open(second)
    assert not is_open(second)


def is_open(link: str | None) -> bool:
    """Whether something listens at the address of a link."""
    address = urlsplit(link)
    assert isinstance(address.hostname, str)
    assert address.port is not None
    try:
        socket.create_connection((address.hostname, address.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True
