"""Outward names and URIs of servers' entries, and the way back. Pure functions of text, without catalog and policy;
`Names` applies them to the servers of a configuration.

Tools and prompts are exported as `<prefix>__<name>`; the prefix is the server's id if the file gives it no other. Names
that some client cannot take (characters other than `A-Za-z0-9_-`, or more in all than the limit of the file) are
cleaned, cut at the right and get a hash of the original, so that they are stable across restarts and independent of
other entries.

Resources and templates are exported as `<prefix>+<original URI>`, joined as text, so that opaque URIs and template
expressions survive; the way back cuts at the first `+`. Two exceptions: `ui://page` becomes `ui://<prefix>+page`,
because hosts recognize app pages by their scheme, and `http(s)://` stays as it is, because clients may fetch it
themselves.

A view may have plain names, without a prefix; then two entries may have the same one.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from config import ServerSpec
from config.model import LONGEST_NAME
from host.protocol.links import PAGE
from host.protocol.methods import LIST_METHODS, Kind

SEPARATOR = "__"
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


def outward_name(prefix: str, name: str, longest: int = LONGEST_NAME) -> str:
    """The outward name of a tool or prompt: at most `longest` characters of `A-Za-z0-9_-`."""
    exported = f"{prefix}{SEPARATOR}{name}"
    if len(exported) <= longest and _PLAIN.fullmatch(name):
        return exported
    return f"{prefix}{SEPARATOR}{_marked(prefix, name, longest - len(prefix) - len(SEPARATOR))}"


def plain_name(prefix: str, name: str, longest: int = LONGEST_NAME) -> str:
    """The outward name of a tool or prompt where names show no server; otherwise as `outward_name`."""
    return name if len(name) <= longest and _PLAIN.fullmatch(name) else _marked(prefix, name, longest)


def _marked(prefix: str, name: str, longest: int) -> str:
    """A name that clients can take for one that they cannot, with a hash of it."""
    # A lone surrogate in a name is permitted: it must not keep other entries from being listed.
    digest = hashlib.sha256(f"{prefix}\0{name}".encode(errors="surrogatepass")).digest()
    mark = base64.b32encode(digest).decode()[:_HASH].lower()
    return f"{_OTHER.sub('_', name)[: longest - len(mark) - 1]}_{mark}"


def split_name(exported: str) -> tuple[str | None, str]:
    """The prefix at the beginning of an exported name, or None, and the name after it. Prefixes contain no `_`, so the
    first one ends them."""
    prefix, _, rest = exported.partition(SEPARATOR)
    return prefix if rest and "_" not in prefix else None, rest


def outward_uri(prefix: str, uri: str) -> str:
    """The outward form of a URI (or a URI template)."""
    if uri.startswith(PAGE):
        return f"{PAGE}{prefix}+{uri[len(PAGE) :]}"
    if is_web(uri):
        return uri
    return f"{prefix}+{uri}"


def split_uri(exported: str) -> tuple[str | None, str]:
    """The text in the place of the prefix of an exported URI, and the server's own URI; None and the whole for a URI
    that shows none, such as a web URI."""
    head, rest = ("", exported)
    if exported.startswith(PAGE):
        head, rest = PAGE, exported[len(PAGE) :]
    prefix, plus, uri = rest.partition("+")
    return (prefix, head + uri) if plus else (None, exported)


def is_web(uri: str) -> bool:
    """Whether it is a web URI, which shows no server."""
    return _WEB.match(uri) is not None


class Names:
    """The outward names of the servers of one configuration, in one view. A server that is not in it has its id as its
    prefix.

    Args:
        plain: the names of tools and prompts show no server.
        limit: characters of such a name; None: as the configuration says.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerSpec] = MappingProxyType({}),
        *,
        plain: bool = False,
        limit: int | None = None,
    ) -> None:
        self.plain = plain
        self._limits = {id: limit or spec.longest_name for id, spec in servers.items()}
        self._prefixes = {id: spec.outward_prefix for id, spec in servers.items()}
        self._servers = {prefix: id for id, prefix in self._prefixes.items()}

    def style_of(self, server: str) -> tuple[bool, str, int]:
        """The values that the names of the server's tools and prompts depend on."""
        return self.plain, self._prefixes.get(server, server), self._limits.get(server, LONGEST_NAME)

    def shows_servers(self, kind: Kind) -> bool:
        """Whether each outward name of the kind shows its server, but for web URIs."""
        return not self.plain or LIST_METHODS[kind].key != "name"

    def outward_name(self, server: str, name: str) -> str:
        """The outward name of a tool or prompt of `server`."""
        make = plain_name if self.plain else outward_name
        return make(self._prefixes.get(server, server), name, self._limits.get(server, LONGEST_NAME))

    def outward_uri(self, server: str, uri: str) -> str:
        """The outward form of a URI (or a URI template) of `server`."""
        return outward_uri(self._prefixes.get(server, server), uri)

    def inward_name(self, exported: str) -> tuple[str | None, str]:
        """The server that an exported name shows, or None, and the name after its prefix."""
        if self.plain:
            return None, exported
        prefix, rest = split_name(exported)
        return self._server(prefix), rest

    def inward_uri(self, exported: str, servers: Container[str]) -> tuple[str, str] | None:
        """The server and its own URI for an exported one; None if the text shows none of these servers."""
        prefix, uri = split_uri(exported)
        server = self._server(prefix)
        return (server, uri) if server is not None and server in servers else None

    def _server(self, prefix: str | None) -> str | None:
        if prefix is None or prefix in self._servers:
            return self._servers.get(prefix or "")
        return None if prefix in self._prefixes else prefix


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
