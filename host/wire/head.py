"""Which request heads are refused before any app sees them (RFC 9112; RFC 9110, "Upgrade").

Knows the bytes of one head and nothing else: no socket, no clock, no parser state. It judges only what the HTTP
parser behind it lets pass although two readers could take it differently, or although nothing here serves it. Names,
values and body framing that are plainly malformed are the parser's business; who may ask for what is the app's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_HEAD = 16 * 1024
"""Bytes of request line and fields together, the empty line at the end included."""
MAX_FIELDS = 100

_END = re.compile(rb"\n\r?\n")


class Refusal(NamedTuple):
    """What is answered instead: the status, and one sentence that repeats nothing the client sent."""

    status: int
    why: str


def head_of(received: bytes) -> bytes | None:
    """The head at the start of `received`, up to and with its empty line; None while it is not complete."""
    end = _END.search(received)
    return None if end is None else received[: end.end()]


def check_head(head: bytes) -> Refusal | None:
    """Why this complete head is not served, or None when it is."""
    if len(head) > MAX_HEAD:
        return Refusal(431, f"the head of a request has at most {MAX_HEAD} bytes")
    line_ends = head.count(b"\r\n")
    if head.count(b"\n") != line_ends or head.count(b"\r") != line_ends:
        return Refusal(400, "every line ends with CR LF, and neither stands alone")
    request_line, *fields = head[:-4].split(b"\r\n")
    if len(fields) > MAX_FIELDS:
        return Refusal(431, f"a request has at most {MAX_FIELDS} header fields")
    method, _, rest = request_line.partition(b" ")
    target, _, version = rest.partition(b" ")
    return _refuse_request_line(method, target, version) or _refuse_fields(fields, version)


def _refuse_request_line(method: bytes, target: bytes, version: bytes) -> Refusal | None:
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if version.startswith(b"HTTP/"):
            return Refusal(505, "HTTP/1.1 is what is spoken here")
        return Refusal(400, "this is no request line of HTTP/1.1")
    if method == b"CONNECT" or method != method.upper():
        return Refusal(400, "this method is not known")
    if not target.startswith(b"/"):
        return Refusal(400, "the request target is a path, which starts with a slash")
    if b"%00" in target or b"#" in target:
        return Refusal(400, "the request target holds no NUL and no fragment")
    return None


def _refuse_fields(fields: Iterable[bytes], version: bytes) -> Refusal | None:
    seen: dict[bytes, list[bytes]] = {}
    for line in fields:
        if line.startswith((b" ", b"\t")):
            return Refusal(400, "a header field stands on one line")
        name, _, value = line.partition(b":")
        seen.setdefault(name.lower(), []).append(value.strip(b" \t"))
    if b"upgrade" in seen:
        return Refusal(426, "HTTP/1.1 is what is spoken here, and no connection is switched to anything else")
    if len(seen.get(b"host", ())) != 1:
        return Refusal(400, "exactly one Host is needed")
    lengths = seen.get(b"content-length", [])
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        return Refusal(400, "Content-Length is one number")
    if b"transfer-encoding" in seen and (lengths or version == b"HTTP/1.0"):
        return Refusal(400, "Transfer-Encoding stands alone, without Content-Length, in HTTP/1.1 only")
    return None
