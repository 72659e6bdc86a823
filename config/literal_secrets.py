"""Literal secrets in the keys of a server, and their replacement by references.

These texts are secrets, whatever they look like:

- each value of a variable or header, but for a word such as `Bearer` before it. Of a variable, the scheme and the host
  of a URL stay, and so does a value without a password whose name ends in one of `_HARMLESS_ENDS`, or which is the path
  of something that is there: servers print these rightly, and what is kept is withheld from their messages
- the value of an option (`--api-key X`, `--api-key=X`), of an argument `NAME=X` or `--env=NAME=X`, and of a query
  parameter whose name is that of a secret; the value of an option for headers; the password in a URL
- the secret and the private key of an OAuth client

References stay, and the literal parts beside them are kept one by one. Where the name is that of a secret, a reference
loses its default: if its variable is set it stays without, else the default is kept and the variable is no longer read.
Our form has no reference with another one as its default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial

from config.references import default_of, with_references, without_references

Keep = Callable[[str, str], str]
"""Keeps a secret under a name, and gives the reference to it."""

_SECRET_WORDS = frozenset(
    {
        *("key", "keys", "apikey", "token", "tokens", "secret", "secrets", "auth", "authorization", "authentication"),
        *("credential", "credentials", "creds", "cookie", "cookies", "pat", "jwt", "bearer", "dsn", "signature", "sig"),
        *("private", "salt", "otp", "password", "passwd", "pwd", "pass", "passphrase", "passcode", "pin", "pw"),
    }
)
_GLUED = re.compile(r"(?:token|secret|passw(?:or)?d|(?<!by|om|es)pass|apikey|accesskey|authkey)$")
_HARMLESS_ENDS = frozenset(
    {
        *("file", "path", "dir", "directory", "folder", "url", "uri", "endpoint", "host", "name", "id", "type"),
        *("limit", "size", "count", "length", "ttl", "timeout", "expiry", "mode", "method", "region", "prefix"),
        *("header", "env", "var", "scope", "scopes", "user", "username", "email"),
    }
)
"""The last words of names whose values only lead to a secret or describe it."""
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s$]+(?=[/?#]|\Z)")
_USER = re.compile(r"[^/?#@\s:]*:[^/?#\s]+@")
_PASSWORD = re.compile(r"(?<=://)([^/?#@\s:]*:)([^/?#\s]+)(?=@)")
_PARAMETER = re.compile(r"(?<=[?&;])([^=&;#?\s:/]+)=([^&;#\s]+)")
_SCHEME = re.compile(r"(?i:bearer|basic|token|bot|apikey|api-key|digest|negotiate)[ \t]+")
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)")
_ASSIGNMENT = re.compile(r"(?:--?)?([A-Za-z_][\w.-]*)=(.+)", re.DOTALL)
_OPTION_ASSIGNMENT = re.compile(r"--?[A-Za-z][\w.-]*=([A-Za-z_][\w.-]*)=(.+)", re.DOTALL)
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*")
_HEADER_OPTIONS = frozenset({"H", "header", "headers"})
_MARK = re.compile(r"\0(\d+)\0")


def is_secret_name(name: str) -> bool:
    """Whether the value under a name is a secret."""
    words = _words(name)
    if not words or words[-1] in _HARMLESS_ENDS:
        return False
    return not _SECRET_WORDS.isdisjoint(words) or {"connection", "string"} <= {*words} or any(map(_GLUED.search, words))


def without_secrets(
    ours: Mapping[str, object], id: str, keep: Keep, environ: Mapping[str, str] = {}
) -> dict[str, object]:
    """The keys of a server in our form with references in the place of literal secrets."""
    server = _Replacer(id, keep, environ)
    named = {"env": server.variable, "headers": server.header, "oauth": server.client}
    made = dict(ours)
    for key, value in ours.items():
        if key in named and isinstance(value, dict):
            made[key] = {name: server.replaced(text, partial(named[key], name)) for name, text in value.items()}
        elif key in ("command", "args", "headers_helper") and isinstance(value, list):
            before = ["", *map(str, value)]
            made[key] = [server.replaced(word, partial(server.argument, before[n])) for n, word in enumerate(value)]
        elif key == "url":
            made[key] = server.replaced(value, server.url)
    return made


def secrets_in_argument(before: str, text: str) -> list[str]:
    """The secrets in an argument that stands behind another one."""
    found: list[str] = []

    def keep(name: str, secret: str) -> str:
        found.append(secret)
        return ""

    server = _Replacer("", keep, {})
    server.replaced(text, partial(server.argument, before))
    return found


class _Replacer:
    """A server while its secrets are replaced. In its texts, marks of `without_references` stand for references."""

    def __init__(self, id: str, keep: Keep, environ: Mapping[str, str]) -> None:
        self._id = id
        self._keep = keep
        self._environ = environ
        self._references: list[str] = []

    def replaced(self, value: object, change: Callable[[str], str]) -> object:
        """A text with references in the place of what `change` hides; any other value as it is."""
        if not isinstance(value, str):
            return value
        text, written = without_references(value)
        self._references = [self._without_default(each, False) for each in written]
        changed = change(text)
        return value if changed == text and self._references == written else with_references(changed, self._references)

    def variable(self, name: str, text: str) -> str:
        if origin := _ORIGIN.match(text):
            return self._hide(name, text, origin.end())
        has_password = "://" in text or _USER.match(text)
        is_shown = not has_password and not _HARMLESS_ENDS.isdisjoint(_words(name)[-1:])
        return text if is_shown or (text.startswith("/") and os.path.exists(text)) else self.header(name, text)

    def header(self, name: str, text: str, start: int = 0) -> str:
        scheme = _SCHEME.match(text, start)
        return self._hide(name, text, scheme.end() if scheme else start)

    def client(self, name: str, text: str) -> str:
        """A key of `oauth`."""
        return self._hide(name, text) if name in ("client_secret", "private_key") else text

    def argument(self, before: str, text: str) -> str:
        """An argument that stands behind another one."""
        option = _OPTION.fullmatch(before)
        found = (_ASSIGNMENT.fullmatch(text), _OPTION_ASSIGNMENT.fullmatch(text))
        assignment = next((each for each in found if each and _is_secret_option(each[1])), None)
        if option and not text.startswith("-") and _is_secret_option(option[1]):
            name, start = option[1], 0
        elif assignment:
            name, start = assignment[1], assignment.start(2)
        else:
            return self.url(text)
        if name in _HEADER_OPTIONS and (header := _HEADER.match(text, start)):
            return self.header(header[1], text, header.end())
        return self._hide(name, text, start)

    def url(self, text: str) -> str:
        text = _PASSWORD.sub(lambda found: found[1] + self._hide("password", found[2]), text)
        return _PARAMETER.sub(self._parameter, text) if "://" in text else text

    def _parameter(self, found: re.Match[str]) -> str:
        return f"{found[1]}={self._hide(found[1], found[2])}" if is_secret_name(found[1]) else found[0]

    def _hide(self, name: str, text: str, start: int = 0) -> str:
        """A text with marks in the place of the literal parts behind `start`, but for signs beside other parts."""
        made, at = text[:start], start
        for mark in (*_MARK.finditer(text, start), None):
            part = text[at : mark.start() if mark else len(text)]
            if part and (part == text or re.search(r"\w", part)):
                self._references.append(self._keep(f"{self._id}.{name}", part))
                part = f"\0{len(self._references) - 1}\0"
            made += part
            if mark:
                number, at = int(mark[1]), mark.end()
                self._references[number] = self._without_default(self._references[number], is_secret_name(name))
                made += mark[0]
        return made

    def _without_default(self, reference: str, is_secret: bool) -> str:
        """A reference without its default, if that is a secret by the name of the variable or where it stands."""
        variable, default = default_of(reference)
        if not default or not (is_secret or is_secret_name(variable)):
            return reference
        return f"${{env:{variable}}}" if self._environ.get(variable) else self._keep(f"{self._id}.{variable}", default)


def _is_secret_option(name: str) -> bool:
    return name in _HEADER_OPTIONS or is_secret_name(name)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _NAME_WORD.findall(name)]
