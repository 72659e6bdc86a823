"""The proxy for a URL, as the environment names it: `HTTPS_PROXY`, and `NO_PROXY` with its exceptions.

Pure. Only https goes through a proxy, and in a tunnel, so that the proxy sees the host and port and nothing else. An
address of this machine is never reached through one: the request, with its credentials, would leave the machine.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import unquote_to_bytes

from config import is_loopback
from host.url import Url

_PORT = re.compile(r":([0-9]{1,5})$")
_NUMBERS = re.compile(r"[0-9a-fx.]+")


class InvalidProxy(ValueError):
    """`HTTPS_PROXY` cannot be used."""


def proxy_for(url: Url, environ: Mapping[str, str]) -> Url | None:
    """The proxy to use for this URL; None to connect directly.

    Raises:
        InvalidProxy: the variable has no URL of an HTTP proxy.
    """
    named = _variable(environ, "https_proxy").strip()
    if url.scheme != "https" or not named or _is_loopback(url.host) or _is_exempt(url, environ):
        return None
    try:
        proxy = Url.parse(named if "://" in named else f"http://{named}")
    except ValueError:
        raise InvalidProxy from None
    if proxy.scheme not in ("http", "https"):
        raise InvalidProxy
    return proxy


def authorization_of(proxy: Url) -> str | None:
    """The `Proxy-Authorization` with user and password in the URL of a proxy; None without them."""
    if not proxy.userinfo:
        return None
    user, _, password = proxy.userinfo.partition(":")
    return f"Basic {b64encode(unquote_to_bytes(user) + b':' + unquote_to_bytes(password)).decode()}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    # Most programs read both spellings, and the lower-case one first.
    return environ.get(name) or environ.get(name.upper()) or ""


def _is_loopback(host: str) -> bool:
    host = host.removesuffix(".")  # the root of all names
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    if address is None and _NUMBERS.fullmatch(host):  # connecting takes all of these for addresses, such as 127.1
        with suppress(OSError):
            address = ipaddress.IPv4Address(socket.inet_aton(host))
    return address is not None and (is_loopback(address) or int(address) == 0)


def _is_exempt(url: Url, environ: Mapping[str, str]) -> bool:
    return any(_matches(entry, url) for entry in re.split(r"[,\s]+", _variable(environ, "no_proxy")) if entry)


def _matches(entry: str, url: Url) -> bool:
    """Whether an entry of `NO_PROXY` covers the URL: `*`, a name with all below it, an address, or a network, each with
    or without a port."""
    entry = entry.lower()
    if entry == "*":
        return True
    if _address(entry) is None and (port := _PORT.search(entry)):
        if int(port[1]) != url.connect_port:
            return False
        entry = entry[: port.start()]
    entry = entry.removeprefix("[").removesuffix("]")
    address = _address(url.host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name = entry.removeprefix("*").removeprefix(".")
    return bool(name) and (url.host == name or url.host.endswith(f".{name}"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
