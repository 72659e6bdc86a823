"""The head of a request to a proxy: where it leads to, and what is passed on there. Pure.

CONNECT asks for a tunnel. A request for an http URL is passed on as one to that server, for one answer: with
`Connection: close`, so that a client that would ask for another host begins a new connection.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple

_CONNECT = re.compile(rb"CONNECT ([!-~]+) HTTP/1\.[01]")
_ABSOLUTE = re.compile(rb"([A-Z]{1,20}) http://([!-.0-~]+?)((?:[/?][!-~]*)?) (HTTP/1\.[01])", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]{0,251}[a-z0-9_])?)\.?(?::([0-9]{1,5}))?")
_HOP = {b"connection", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"upgrade"}
"""Fields that are for the proxy."""


class InvalidProxyHead(ValueError):
    """It is no request to a proxy."""


class ProxyHead(NamedTuple):
    """`host`: a name in lower case, or an IP address in its short form. `passed_on`: the head for the server; None for
    a tunnel."""

    host: str
    port: int
    passed_on: bytes | None


def read_proxy_head(head: bytes) -> ProxyHead:
    """Read a head with its empty line.

    Raises:
        InvalidProxyHead: it is none of the two forms.
    """
    line, *fields = head.rstrip(b"\r\n").split(b"\r\n")
    if found := _CONNECT.fullmatch(line):
        return ProxyHead(*_read_authority(found[1], None), None)
    if not (found := _ABSOLUTE.fullmatch(line)) or any(each[:1] in (b" ", b"\t") for each in fields):
        raise InvalidProxyHead
    method, authority, path, version = found.groups()
    host, port = _read_authority(authority, 80)
    first = b"%s %s%s %s" % (method, b"" if path.startswith(b"/") else b"/", path, version)
    return ProxyHead(host, port, b"\r\n".join([first, *_kept(fields), b"Connection: close", b"", b""]))


def _kept(fields: list[bytes]) -> list[bytes]:
    named = [(each.partition(b":")[0].strip().lower(), each) for each in fields]
    dropped = _HOP | {
        word.strip().lower()
        for name, each in named
        if name == b"connection"
        for word in each.partition(b":")[2].split(b",")
    }
    return [each for name, each in named if name not in dropped]


def _read_authority(authority: bytes, default: int | None) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(authority.decode("latin-1").lower())
    port = 0 if found is None else int(found[2] or default or 0)
    if found is None or not 0 < port < 65536:
        raise InvalidProxyHead
    host = found[1]
    try:
        return ip_address(host.strip("[]")).compressed, port
    except ValueError:
        if host.startswith("["):
            raise InvalidProxyHead from None
        return host, port
