"""The authorization server that a server behind OAuth names: who issues the tokens that it accepts.

Read only to tell a person. A server names its metadata in the challenge of a 401 (RFC 9728, 5.1) or serves it at a
well-known path (2025-11-25, "Authorization / Protected Resource Metadata Discovery Requirements"); before 2025-06-18 it
served those of its authorization server itself (2025-03-26, "Authorization / Server Metadata Discovery"). This file
sends nothing: `fetch` decides which addresses may be reached. Metadata that are missing or wrong leave the issuer out.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator

from host.jsonrpc.raw import items, members, string

MAX_METADATA = 64 * 1024
"""Bytes of one metadata document."""
FIND_TIMEOUT = 3.0
"""Seconds for all of them."""
_MAX_URL = 200

_BEARER = re.compile(r"(?:^|,)\s*bearer(?:[\s,]|$)", re.IGNORECASE)
_METADATA = re.compile(r'\bresource_metadata\s*=\s*(?:"([^"\s]*)"|([^\s",]+))', re.IGNORECASE)
_INSUFFICIENT = re.compile(r'\berror\s*=\s*"?insufficient_scope\b', re.IGNORECASE)
# No user, query or fragment, and nothing that reads as a sentence.
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.\-:\[\]]+(?:/[A-Za-z0-9._~%/-]*)?")

_PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
_AUTHORIZATION_SERVER = "/.well-known/oauth-authorization-server"

Fetch = Callable[[str], Awaitable[bytes | None]]
"""Gets a document by a reference relative to the server's URL; None if it may not, or cannot, be had."""


def wants_token(challenge: str) -> bool:
    """Whether a `WWW-Authenticate` header asks for a bearer token, as OAuth does."""
    return _BEARER.search(challenge) is not None


def lacks_scope(challenge: str) -> bool:
    """Whether a `WWW-Authenticate` header says that the token has too few scopes."""
    return _INSUFFICIENT.search(challenge) is not None


async def find_issuer(challenge: str, path: str, covers: Callable[[str], bool], fetch: Fetch) -> str | None:
    """The first authorization server that the metadata name; None if there is none.

    Args:
        challenge: the `WWW-Authenticate` header.
        path: the path of the server's URL.
        covers: whether a resource identifier is about the server's URL; metadata of another one must not be used
            (RFC 9728, 3.3).
    """
    for reference in _references(challenge, path):
        data = await fetch(reference)
        issuer = None if data is None else _read_issuer(data, covers)
        if issuer is not None:
            return issuer
    return None


def _references(challenge: str, path: str) -> Iterator[str]:
    named = _METADATA.search(challenge)
    if named:
        yield named[1] or named[2] or ""
    if path.strip("/"):
        yield _PROTECTED_RESOURCE + path
    yield _PROTECTED_RESOURCE
    yield _AUTHORIZATION_SERVER


def _read_issuer(data: bytes, covers: Callable[[str], bool]) -> str | None:
    try:
        metadata = members(data)
        if "resource" in metadata:
            if not covers(string(metadata["resource"])):
                return None
            issuer = string(items(metadata["authorization_servers"])[0])
        else:
            issuer = string(metadata["issuer"])
    except (ValueError, KeyError, IndexError):
        return None
    return issuer if len(issuer) <= _MAX_URL and _PLAIN_URL.fullmatch(issuer) else None
