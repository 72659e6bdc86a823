"""Checks on request heads before any app sees them (RFC 9112; RFC 9110, "Upgrade"). Pure: the bytes of one head.

Refuses heads that the HTTP parser accepts although two parsers could read them differently (request smuggling), or
although they request something that is not served here. Malformed names, values and body framing are refused by the
parser; access is decided by the app.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_HEAD = 16 * 1024
"""Bytes of request line and fields together, including the empty line at the end."""
MAX_FIELDS = 100
ADDED_BYTES, ADDED_FIELDS = 512, 3
"""The most that a head has more when another process of the fleet hands it over (host/fleet/forwarding.py): the fields
of the hop, a length, the address of the process, and a space in each field. The client's own head was within its
limits."""
MAX_LENGTH_DIGITS = 20
"""Digits of a Content-Length, in requests and responses: leading zeros too, about whose number parsers disagree."""

_METHODS = (b"POST", b"GET", b"DELETE", b"OPTIONS", b"HEAD", b"PUT", b"PATCH", b"TRACE")
"""The methods of which an app may say whether it permits them. CONNECT and those of other protocols are not among them.
"""

_END = re.compile(rb"\n\r?\n")


class HeadRefusal(NamedTuple):
    """The response to a refused request: its status, and one sentence that repeats nothing from the client."""

    status: int
    why: str


class HeadLimits(NamedTuple):
    """The most bytes and fields of a head."""

    size: int = MAX_HEAD
    fields: int = MAX_FIELDS


OF_CLIENTS = HeadLimits()
OF_MEMBERS = HeadLimits(MAX_HEAD + ADDED_BYTES, MAX_FIELDS + ADDED_FIELDS)


def head_end(received: bytes, searched: int = 0) -> int | None:
    """The number of bytes of the head at the start of `received`, including its empty line; None while it is not
    complete. The first `searched` bytes were searched before."""
    end = _END.search(received, max(0, searched - 2))
    return None if end is None else end.end()


def too_long(limits: HeadLimits) -> HeadRefusal:
    return HeadRefusal(431, f"the request head has more than {limits.size} bytes")


def check_head(head: bytes, limits: HeadLimits = OF_CLIENTS) -> HeadRefusal | None:
    """The reason to refuse this complete head, or None."""
    if len(head) > limits.size:
        return too_long(limits)
    # Where parsers disagree about a lone CR or LF, one of them sees a header that the other does not.
    line_ends = head.count(b"\r\n")
    if head.count(b"\n") != line_ends or head.count(b"\r") != line_ends:
        return HeadRefusal(400, "a line of the request head does not end with CR LF")
    request_line, *fields = head[:-4].split(b"\r\n")
    if len(fields) > limits.fields:
        return HeadRefusal(431, f"the request has more than {limits.fields} header fields")
    method, _, rest = request_line.partition(b" ")
    target, _, version = rest.partition(b" ")
    return _refuse_request_line(method, target, version) or _refuse_fields(fields, version)


def _refuse_request_line(method: bytes, target: bytes, version: bytes) -> HeadRefusal | None:
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if version.startswith(b"HTTP/"):
            return HeadRefusal(505, "only HTTP/1.1 is supported")
        return HeadRefusal(400, "the request line is not one of HTTP/1.1")
    if method not in _METHODS:
        return HeadRefusal(400, "unknown HTTP method")
    if not target.startswith(b"/"):
        return HeadRefusal(400, "the request target is not a path, which begins with a slash")
    if b"%00" in target or b"#" in target:
        return HeadRefusal(400, "the request target has a NUL or a fragment")
    return None


def _refuse_fields(fields: Iterable[bytes], version: bytes) -> HeadRefusal | None:
    seen: dict[bytes, list[bytes]] = {}
    for line in fields:
        if line.startswith((b" ", b"\t")):
            return HeadRefusal(400, "a header field spans several lines")
        name, _, value = line.partition(b":")
        seen.setdefault(name.lower(), []).append(value.strip(b" \t"))
    if b"upgrade" in seen:
        return HeadRefusal(426, "only HTTP/1.1 is supported, without upgrades")
    if len(seen.get(b"host", ())) != 1:
        return HeadRefusal(400, "the request needs exactly one Host header")
    lengths = seen.get(b"content-length", [])
    if len(lengths) > 1 or not all(length.isdigit() and len(length) <= MAX_LENGTH_DIGITS for length in lengths):
        return HeadRefusal(400, f"Content-Length is not one number of at most {MAX_LENGTH_DIGITS} digits")
    encodings = seen.get(b"transfer-encoding", [])
    if encodings and (lengths or version == b"HTTP/1.0"):
        return HeadRefusal(400, "Transfer-Encoding is only permitted in HTTP/1.1 and without Content-Length")
    if encodings and [each.lower() for each in encodings] != [b"chunked"]:
        return HeadRefusal(501, "the only supported transfer encoding is chunked")
    return None
