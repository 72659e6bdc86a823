"""Outward names and URIs of servers' entries, and the way back. Pure functions of text, without catalog, servers or
policy.

Tools and prompts are exported as `<server>__<name>`. Names that some client cannot take (characters other than
`A-Za-z0-9_-`, or more than 64 in all) are cleaned, cut at the right and get a hash of the original, so that they are
stable across restarts and independent of other entries.

Resources and templates are exported as `<server>+<original URI>`, joined as text, so that opaque URIs and template
expressions survive; the way back cuts at the first `+`. Two exceptions: `ui://page` becomes `ui://<server>+page`,
because hosts recognize app pages by their scheme, and `http(s)://` stays as it is, because clients may fetch it
themselves.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Container, Iterable
from functools import lru_cache

from host.protocol.links import PAGE

SEPARATOR = "__"
MAX_NAME = 64
_HASH = 8

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_WEB = re.compile(r"https?://", re.IGNORECASE)
_EXPRESSION = re.compile(r"\{[^{}]*\}")

MAX_MATCHED_LENGTH = 64 * 1024
"""Characters of all URI templates that are tried on one URI; some hundred templates with a common beginning reach
it."""
_SHORT = 256
"""Characters of a template whose literals are cached."""
_short_literals = lru_cache(maxsize=1024)(_EXPRESSION.split)


def outward_name(server: str, name: str) -> str:
    """The outward name of a tool or prompt of `server`: at most MAX_NAME characters of `A-Za-z0-9_-`."""
    exported = f"{server}{SEPARATOR}{name}"
    if len(exported) <= MAX_NAME and _PLAIN.fullmatch(name):
        return exported
    # A lone surrogate in a name is permitted: it must not keep other entries from being listed.
    digest = hashlib.sha256(f"{server}\0{name}".encode(errors="surrogatepass")).digest()
    mark = base64.b32encode(digest).decode()[:_HASH].lower()
    room = MAX_NAME - len(server) - len(SEPARATOR) - len(mark) - 1
    return f"{server}{SEPARATOR}{_OTHER.sub('_', name)[:room]}_{mark}"


def split_name(exported: str) -> tuple[str | None, str]:
    """The server id at the beginning of an exported name, or None, and the name after it. Ids contain no `_`, so the
    first one ends them."""
    server, _, rest = exported.partition(SEPARATOR)
    return server if rest and "_" not in server else None, rest


def outward_uri(server: str, uri: str) -> str:
    """The outward form of a URI (or a URI template) of `server`."""
    if uri.startswith(PAGE):
        return f"{PAGE}{server}+{uri[len(PAGE) :]}"
    if _WEB.match(uri):
        return uri
    return f"{server}+{uri}"


def inward_uri(exported: str, servers: Container[str]) -> tuple[str, str] | None:
    """The server and its own URI for an exported one; None if the text does not show them (a web URI, or not
    exported)."""
    head, rest = ("", exported)
    if exported.startswith(PAGE):
        head, rest = PAGE, exported[len(PAGE) :]
    server, plus, uri = rest.partition("+")
    return (server, head + uri) if plus and server in servers else None


def template_matches(template: str, uri: str) -> bool:
    """Whether `uri` could be an expansion of the URI template: its literals in order, with any text for an expression.

    This finds the owner of a URI and does not parse it, so the operators of RFC 6570 make no difference. Time is
    linear: since any text may lie between, the leftmost match of each literal suffices.
    """
    first, *middle = _short_literals(template) if len(template) <= _SHORT else _EXPRESSION.split(template)
    if not middle:
        return uri == template
    last = middle.pop()
    if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
        return False
    at, end = len(first), len(uri) - len(last)
    for literal in middle:
        at = uri.find(literal, at, end)
        if at < 0:
            return False
        at += len(literal)
    return True


def matching_templates(templates: Iterable[str], uris: Iterable[str]) -> list[str] | None:
    """The templates that could generate one of these URIs, or are equal to one. None if testing would take too long:
    those with the beginning of a URI have more than MAX_MATCHED_LENGTH characters."""
    found: list[str] = []
    tried = 0
    for uri in uris:
        for template in templates:
            if not uri.startswith(template.partition("{")[0]):  # this test alone decides for most of many templates
                continue
            tried += len(template)
            if tried > MAX_MATCHED_LENGTH:
                return None
            if template_matches(template, uri) or template == uri:
                found.append(template)
    return found
