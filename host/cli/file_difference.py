"""The difference of two contents of a host's file, for a terminal, without the secrets of the file.

Whether a text is a secret can only be guessed. All values of variables and headers count as secrets, and so do texts
under names such as token, arguments that follow such a name, the query of a URL, and long texts of letters and digits.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from host.sanitize import visible

HIDDEN = "***"
_MAPS = frozenset({"env", "envs", "environment", "headers", "http_headers"})
_NAMES = re.compile(r"(?!.*env_var$).*(token|secret|passw|key|credential|auth|pin$)", re.IGNORECASE)
_REFERENCE = re.compile(r"[A-Za-z]* ?(\$\w+|\$?\{[^}]*\}|\$\{\{[^}]*\}\})")
_RANDOM = re.compile(r"(?=[^\s/]*\d)(?=[^\s/]*[A-Za-z])[\w.+~=-]{20,}")
_QUERY = re.compile(r"https?://[^\s/]*@|https?://[^\s?]*\?(.+)")
_MIN_LENGTH = 5
"""A shorter secret is hidden only where it is a whole value; anywhere else it would hide parts of words."""


def difference(path: str, before: str, after: str, values: list[object], more: str = "") -> list[str]:
    """The lines of a unified difference. `values` are those of both contents, and `more` is another secret."""
    secrets = sorted({secret for value in values for secret in _secrets(value)} | {more} - {""}, key=len, reverse=True)
    old, new = (_masked(text, secrets).splitlines() for text in (before, after))
    lines = difflib.unified_diff(old, new, path, path, lineterm="")
    return [visible(line, lines=True) for line in lines]


def _masked(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        for written in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            if len(written) >= _MIN_LENGTH:
                text = text.replace(written, HIDDEN)
            else:
                whole = rf"""(?m)(["'])({re.escape(written)})\1|(?<=[:=] )({re.escape(written)})[ \t]*$"""
                text = re.sub(whole, lambda match: f"{match[1] or ''}{HIDDEN}{match[1] or ''}", text)
    return text


def _secrets(value: object, key: str = "", *, is_secret: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _secrets(below, str(name), is_secret=is_secret or key in _MAPS)
    elif isinstance(value, list):
        before = ""
        for item in value:
            yield from _secrets(item, before if isinstance(item, str) else key, is_secret=is_secret)
            before = item if isinstance(item, str) and item.startswith("-") and "=" not in item else ""
    elif isinstance(value, str) and value and not _REFERENCE.fullmatch(value):
        if is_secret or key in _MAPS or _NAMES.search(key):
            yield value
            return
        if (query := _QUERY.match(value)) is not None:
            yield query[1] or query[0]
        name, equals, rest = value.partition("=")
        if equals and _NAMES.search(name) and rest and not _REFERENCE.fullmatch(rest):
            yield rest
        if not value.startswith(("/", "~", ".")):
            yield from _RANDOM.findall(value)
