"""URLs: what is read of them, which are refused, and where references lead."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.url import MAX_URL, Url

BASE = Url.parse("http://a/b/c/d?q")


@pytest.mark.parametrize(
    ("text", "authority", "target", "port"),
    [
        ("https://example.com", "example.com", "/", 443),
        ("HTTPS://EXAMPLE.com:443/mcp?key=secret#part", "example.com", "/mcp?key=secret", 443),
        ("http://example.com:8080/", "example.com:8080", "/", 8080),
        ("http://example.com:/", "example.com", "/", 80),
        ("http://[::1]:9/x", "[::1]:9", "/x", 9),
        ("http://[0:0:0:0:0:0:0:1]/", "[::1]", "/", 80),
        ("http://127.0.0.1/", "127.0.0.1", "/", 80),
        ("https://me:pass@example.com/", "example.com", "/", 443),
        ("http://a_b.example/", "a_b.example", "/", 80),
        ("http://bücher.example/", "xn--bcher-kva.example", "/", 80),
        ("http://a/é ü%20%zz%", "a", "/%C3%A9%20%C3%BC%20%25zz%25", 80),
        ("http://a/x{}`<>?{}`'<>", "a", "/x%7B%7D%60%3C%3E?{}`'%3C%3E", 80),
        ("http://a/b/../c/./d", "a", "/c/d", 80),
        ("http://a/../..", "a", "/", 80),
        ("http://a?x", "a", "/?x", 80),
    ],
)
def test_what_is_read_of_a_url(text: str, authority: str, target: str, port: int) -> None:
    url = Url.parse(text)
    assert (url.authority, url.target, url.connect_port) == (authority, target, port)
    assert Url.parse(str(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        *("", "example.com", "/mcp", "http:", "http://", "http:///x", "http:/x", "http://:80/", "//example.com/"),
        *("http://[::1", "http://[::1]x/", "http://[g::]/", "http://::1/", "http://a:b/", "http://a:65536/"),
        *("http://a\x00/", "http://a/\n", "http://a b/", "http://a%41/", "http://a\\b/", "http://256.1.1.1/"),
        *("http://xn--\N{SNOWMAN}-.\N{SNOWMAN}/", "http://a/" + "x" * MAX_URL),
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Url.parse(text)


# RFC 3986, 5.4: examples of references, without those of other schemes.
REFERENCES = {
    "g": "http://a/b/c/g",
    "./g": "http://a/b/c/g",
    "g/": "http://a/b/c/g/",
    "/g": "http://a/g",
    "//g": "http://g/",
    "?y": "http://a/b/c/d?y",
    "g?y": "http://a/b/c/g?y",
    "#s": "http://a/b/c/d?q",
    "g#s": "http://a/b/c/g",
    "": "http://a/b/c/d?q",
    ".": "http://a/b/c/",
    "./": "http://a/b/c/",
    "..": "http://a/b/",
    "../g": "http://a/b/g",
    "../..": "http://a/",
    "../../../g": "http://a/g",
    "/./g": "http://a/g",
    "/../g": "http://a/g",
    "g.": "http://a/b/c/g.",
    "..g": "http://a/b/c/..g",
    "./g/.": "http://a/b/c/g/",
    "g/../h": "http://a/b/c/h",
    "g?y/../x": "http://a/b/c/g?y/../x",
    "https://b/c": "https://b/c",
}


@pytest.mark.parametrize("reference", REFERENCES)
def test_where_a_reference_leads(reference: str) -> None:
    assert str(BASE.join(reference)) == REFERENCES[reference]


@pytest.mark.parametrize("reference", ["http:g", "file:///etc/passwd", "javascript:1", "//", "//a b/", "\x01", "///x"])
def test_a_reference_that_leads_nowhere(reference: str) -> None:
    with pytest.raises(ValueError):
        BASE.join(reference)


def test_a_reference_keeps_the_user_only_within_its_authority() -> None:
    base = Url.parse("https://me:pass@example.com/x")
    assert base.join("/y").userinfo == "me:pass"
    assert base.join("//example.com/y").userinfo == ""


@given(st.text(st.sampled_from("abAB01./:@?#[]%\\ \té-"), max_size=14))
def test_a_url_that_is_accepted_names_the_host_that_httpx_reads(rest: str) -> None:
    """Never another one: it gets the credentials."""
    try:
        found = Url.parse(f"http://{rest}")
    except ValueError:
        return
    theirs = httpx.URL(f"http://{rest}")
    assert (found.host, found.port) == (theirs.raw_host.decode(), theirs.port)
    assert found.userinfo == "" or theirs.userinfo != b""
