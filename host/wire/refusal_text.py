"""The text of a response that is no message of MCP, for a person: the words of a web page, the members of JSON, or the
text itself.

Such responses come from proxies, gateways and login pages, and say what the status does not. The text is a stranger's:
it is shown cut and marked (`sanitize.quoted`), and read by no program.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from html import unescape

from host.jsonrpc.messages import ErrorBody
from host.jsonrpc.raw import value

MAX_SAID = 16 * 1024
"""Bytes of a body that are read. Of a longer one only the title of a page counts: the end of what was read may be the
beginning of a secret, which would not be recognised."""

# Each alternative ends at the next angle bracket at the latest, so that no page is searched twice.
_PIECE = re.compile(r"<(/?)([A-Za-z!?][^\s<>/]*)[^<>]*>?|([^<]+)|<+")
_UNSHOWN = ("script", "style", "svg", "template")
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<>]{1,1000})</title", re.IGNORECASE)
_MESSAGES = ("message", "error_description", "detail", "error", "title", "reason")
"""Members of JSON that hold the sentence, in the order in which they are shown before all others."""
_MAX_MEMBERS = 20


def said_of(error: ErrorBody) -> str:
    """The message of a JSON-RPC error; empty if it is longer than a body that is read."""
    return error.message if len(error.message) <= MAX_SAID else ""


def readable_text(body: bytes, *, whole: bool = True) -> str:
    """The text of a body, of which MAX_SAID bytes are read; empty if it is nothing that a person could read.

    Args:
        whole: this is all of the body.
    """
    text = body[:MAX_SAID].decode(errors="replace").lstrip("\ufeff \t\r\n")
    if not whole or len(body) > MAX_SAID:
        found = _TITLE.search(text)
        return unescape(found[1]) if found is not None else ""
    if text.startswith("<"):
        return unescape(" ".join(_shown(text)))
    try:
        return ", ".join(_members(value(text.encode())))
    except ValueError:
        return "" if "\ufffd" in text or "\x00" in text else text


_BROWSER_WANTED = re.compile(
    r"just a moment|checking (?:if|your browser)|enable javascript and cookies|attention required|captcha|are human",
    re.IGNORECASE,
)
_HOST_NAMED = re.compile(
    r"(?:invalid|unknown|blocked|allowed|disallowed|permitted|trusted)\b.{0,60}\b(?:host|hostname|localhost)\b"
    r"|\bhost(?:name)?\b.{0,80}\b(?:invalid|unknown|blocked|not (?:allowed|permitted|trusted))",
    re.IGNORECASE,
)
_LOGIN_WANTED = re.compile(r"\b(?:sign|log)[ -]?(?:in|on)\b|\bsso\b|\boauth2?\b|\bsaml\b", re.IGNORECASE)
_TLS_NAMED = re.compile(r"\b(?:https|ssl|tls)\b", re.IGNORECASE)
_LOOKED_AT = 500
"""Characters of a text in which a cause is looked for: what comes later is seldom about it."""


def wants_browser(text: str) -> bool:
    """Whether the text is the check of a firewall that only a browser passes."""
    return _BROWSER_WANTED.search(text, 0, _LOOKED_AT) is not None


def names_host(text: str) -> bool:
    """Whether the text says that the host name of the request is not accepted."""
    return _HOST_NAMED.search(text, 0, _LOOKED_AT) is not None


def wants_login(text: str) -> bool:
    """Whether a page, or the address of one, is a login page."""
    return _LOGIN_WANTED.search(text, 0, _LOOKED_AT) is not None


def names_tls(text: str) -> bool:
    """Whether the text says that TLS is expected."""
    return _TLS_NAMED.search(text, 0, _LOOKED_AT) is not None


def _shown(page: str) -> Iterator[str]:
    """The texts of HTML or XML between its tags."""
    unshown = ""
    for end, tag, text in _PIECE.findall(page):
        name = tag.lower()
        if unshown:
            if end and name == unshown:
                unshown = ""
        elif name in _UNSHOWN and not end:
            unshown = name
        elif text and not text.isspace():
            yield text


def _members(found: object) -> list[str]:
    """The members of a JSON value that hold a text or a number, those with a sentence first."""
    members: list[tuple[str, str]] = []
    waiting: deque[tuple[str, object]] = deque([("", found)])
    while waiting and len(members) < _MAX_MEMBERS:
        name, each = waiting.popleft()
        if isinstance(each, dict):
            waiting += each.items()
        elif isinstance(each, list):
            waiting += ((name, item) for item in each)
        elif isinstance(each, str | int | float) and name != "jsonrpc":
            members.append((name, str(each)))
    members.sort(key=lambda member: _MESSAGES.index(member[0]) if member[0] in _MESSAGES else len(_MESSAGES))
    return [f"{name}: {text}" if name else text for name, text in members]
