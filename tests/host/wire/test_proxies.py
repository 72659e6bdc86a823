"""Which proxy the environment names for a URL."""

from __future__ import annotations

from base64 import b64encode

import pytest

from host.url import Url
from host.wire.proxies import InvalidProxy, authorization_of, proxy_for

PROXY = "http://proxy.corp:3128"


def goes_through(url: str, exempt: str = "", **more: str) -> str | None:
    found = proxy_for(Url.parse(url), {"HTTPS_PROXY": PROXY, "NO_PROXY": exempt, **more})
    return None if found is None else str(found)


def test_only_https_goes_through_a_proxy() -> None:
    assert goes_through("https://example.com/mcp") == f"{PROXY}/"
    assert goes_through("http://example.com/mcp", HTTP_PROXY=PROXY, ALL_PROXY=PROXY) is None
    assert proxy_for(Url.parse("https://example.com/"), {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}) is None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "a.localhost",
        "a.localhost.",
        "127.0.0.1",
        "127.9.9.9",
        "127.0.0.1.",
        "127.1",
        "0x7f.1",
        "2130706433",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
    ],
)
def test_this_machine_is_never_reached_through_a_proxy(host: str) -> None:
    assert goes_through(f"https://{host}:8443/mcp") is None


@pytest.mark.parametrize("host", ["localhost.example", "notlocalhost", "128.0.0.1", "128.1", "10.0.0.1", "127", "face"])
def test_what_only_looks_like_this_machine_is(host: str) -> None:
    assert goes_through(f"https://{host}/") is not None


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("example.com", "example.com", True),
        ("EXAMPLE.com", "example.COM", True),
        ("example.com", "mcp.example.com", True),
        (".example.com", "mcp.example.com", True),
        (".example.com", "example.com", True),
        ("*.example.com", "mcp.example.com", True),
        ("example.com", "notexample.com", False),
        ("mcp.example.com", "example.com", False),
        ("a.b, example.com ,c.d", "example.com", True),
        ("a.b example.com", "example.com", True),
        ("*", "example.com", True),
        ("", "example.com", False),
        (",", "example.com", False),
        (".", "example.com", False),
        ("example.com:443", "example.com", True),
        ("example.com:8443", "example.com", False),
        ("example.com:8443", "example.com:8443", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.1:443", "10.0.0.1", True),
        ("10.0.0.1:8443", "10.0.0.1", False),
        ("2001:db8::/32", "[2001:db8::1]", True),
        ("2001:db8::1", "[2001:db8::1]", True),
        ("[2001:db8::1]:443", "[2001:db8::1]", True),
        ("[2001:db8::1]:444", "[2001:db8::1]", False),
        ("10.0.0.0/8", "[::ffff:10.1.1.1]", True),
        ("0.1", "10.0.0.1", False),
    ],
)
def test_exceptions(no_proxy: str, host: str, direct: bool) -> None:
    assert (goes_through(f"https://{host}/", no_proxy) is None) is direct


def test_names_in_lower_case_come_first() -> None:
    assert goes_through("https://example.com/", https_proxy="http://other:1") == "http://other:1/"
    assert goes_through("https://example.com/", no_proxy="x", NO_PROXY="example.com") is not None


@pytest.mark.parametrize(("written", "read"), [("proxy:3128", "http://proxy:3128/"), ("https://p", "https://p/")])
def test_a_proxy_without_a_scheme_is_one_of_http(written: str, read: str) -> None:
    assert goes_through("https://example.com/", https_proxy=written) == read


@pytest.mark.parametrize("written", ["socks5://proxy:1080", "http://", "http://a b/", "http://[::1"])
def test_what_is_no_http_proxy_is_refused(written: str) -> None:
    """Connecting directly instead would show the request to a network that it should not reach."""
    with pytest.raises(InvalidProxy):
        goes_through("https://example.com/", https_proxy=written)


def test_authorization_of_a_proxy() -> None:
    assert authorization_of(Url.parse("http://me:p%40ss:x@proxy/")) == "Basic " + b64encode(b"me:p@ss:x").decode()
    assert authorization_of(Url.parse("http://me@proxy/")) == "Basic bWU6"
    assert authorization_of(Url.parse(PROXY)) is None
