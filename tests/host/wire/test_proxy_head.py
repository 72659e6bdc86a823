"""Heads of requests to a proxy: what they ask for, and what is passed on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.wire.proxy_head import InvalidProxyHead, ProxyHead, read_proxy_head


@pytest.mark.parametrize(
    ("authority", "host", "port"),
    [
        (b"api.Example.com:443", "api.example.com", 443),
        (b"api.example.com.:443", "api.example.com", 443),
        (b"10.0.0.5:5432", "10.0.0.5", 5432),
        (b"[0:0::1]:80", "::1", 80),
        (b"a_b:80", "a_b", 80),
    ],
)
def test_a_tunnel(authority: bytes, host: str, port: int) -> None:
    head = b"CONNECT %s HTTP/1.1\r\nHost: elsewhere\r\nProxy-Connection: keep-alive\r\n\r\n" % authority
    assert read_proxy_head(head) == ProxyHead(host, port, None)


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        (b"http://a.com/", "a.com", 80, b"/"),
        (b"http://a.com", "a.com", 80, b"/"),
        (b"http://a.com?x=1", "a.com", 80, b"/?x=1"),
        (b"HTTP://A.com:8080/x?y=//z", "a.com", 8080, b"/x?y=//z"),
        (b"http://[::1]:81/x", "::1", 81, b"/x"),
    ],
)
def test_a_request_for_a_url_is_passed_on_for_one_answer(url: bytes, host: str, port: int, path: bytes) -> None:
    head = (
        b"POST %s HTTP/1.1\r\nHost: a.com\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nProxy-Authorization: b\r\n"
        b"Proxy-Connection: keep-alive\r\nContent-Length: 3\r\n\r\n" % url
    )
    passed_on = b"POST %s HTTP/1.1\r\nHost: a.com\r\nContent-Length: 3\r\nConnection: close\r\n\r\n" % path
    assert read_proxy_head(head) == ProxyHead(host, port, passed_on)


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"GET https://a.com/ HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"GET http://user@a.com/ HTTP/1.1",
        b"GET http://a.com/\x00 HTTP/1.1",
        b"GET http://a.com/ HTTP/2",
        b"GET http://a.com/",
        b"CONNECT a.com HTTP/1.1",
        b"CONNECT a.com:0 HTTP/1.1",
        b"CONNECT a.com:65536 HTTP/1.1",
        b"CONNECT a.com:443 HTTP/3",
        b"CONNECT ::1:443 HTTP/1.1",
        b"CONNECT [a.com]:443 HTTP/1.1",
        b"CONNECT a.com:443/x HTTP/1.1",
        b"CONNECT http://a.com:443 HTTP/1.1",
        b"CONNECT -a.com:443 HTTP/1.1",
        b"CONNECT \xc3\xbc.com:443 HTTP/1.1",
        b"CONNECT *.a.com:443 HTTP/1.1",
        b"",
    ],
)
def test_what_is_no_request_to_a_proxy(line: bytes) -> None:
    with pytest.raises(InvalidProxyHead):
        read_proxy_head(line + b"\r\nHost: a.com\r\n\r\n")


def test_a_folded_field_is_refused() -> None:
    with pytest.raises(InvalidProxyHead):
        read_proxy_head(b"GET http://a.com/ HTTP/1.1\r\nConnection: x\r\n y\r\n\r\n")


@given(
    st.binary(max_size=200) | st.from_regex(rb"(CONNECT|GET) (http://)?[!-~]{1,30} HTTP/1\.1\r\n[!-~]{0,20}\r\n\r\n")
)
def test_whatever_comes_it_is_read_or_refused(head: bytes) -> None:
    try:
        found = read_proxy_head(head)
    except InvalidProxyHead:
        return
    assert 0 < found.port < 65536
    assert found.host == found.host.lower()
    assert not {*found.host} & {*" /@\r\n*"}
    if found.passed_on is not None:
        assert found.passed_on.endswith(b"Connection: close\r\n\r\n")
