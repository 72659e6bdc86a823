"""The difference of two contents of a host's file, for a terminal, without the secrets of the file.

Only what changes is looked at, with a few lines around it. A host may keep everything in one line of megabytes: long
lines are broken at the signs of JSON, and nothing is shown around their changes, which may be anything.

Whether a text is a secret can only be guessed. All values of variables and headers count as secrets, and so do texts
under names such as token, arguments that follow such a name, the query of a URL, and long texts of letters and digits.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from config.edit.both_changes import shared_start
from config.literal_secrets import is_secret_name, secrets_in_argument
from host.sanitize import visible

HIDDEN = "***"
_MAPS = frozenset({"env", "envs", "environment", "headers", "http_headers"})
_NAMES = re.compile(r"(?!.*env_var$).*(token|secret|passw|key|credential|auth|pin$)", re.IGNORECASE)
_REFERENCE = re.compile(r"[A-Za-z]* ?(\$\w+|\$\{[^}]*\}|\{(?:env|file):[^}]*\}|\$\{\{[^}]*\}\})")
_HOLDERS = re.compile(r"auth|token|secret|credential", re.IGNORECASE)
_WORD = re.compile(r"[^\s/]+")
_LONG_WORD = re.compile(r"[\w.+~=-]{20,}+")
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[A-Za-z]")
_QUERY = re.compile(r"https?://[^\s/]*@|https?://[^\s?]*\?(.+)")
_LINE_END = re.compile(r"\r\n|\r|\n")
_PIECE = re.compile(r'(?:"(?:[^"\\]|\\.)*+"?|[^",{}\[\]])*+[,{}\[\]]?', re.DOTALL)
_LONG_LINE = 200
_CONTEXT = 3
_MIN_LENGTH = 5
"""A shorter secret is hidden only where it is a whole value; anywhere else it would hide parts of words."""


def difference(path: str, before: str, after: str, values: list[object], more: str = "") -> list[str]:
    """The lines of a unified difference. `values` are those of both contents, and `more` is another secret."""
    context = _CONTEXT
    old, new, first = _around_changes(_lines(before), _lines(after), context)
    if any(len(line) > _LONG_LINE for line in (*old, *new)):
        context = 0
        old, new, _ = _around_changes(_broken(old), _broken(new), context)
    lines = list(difflib.unified_diff(old, new, path, path, lineterm="", n=context))
    if not lines:
        return []
    shown = [_moved(line, first) if context else "@@" if line.startswith("@@") else line for line in lines[2:]]
    text = _masked("\n".join(shown), {secret for value in values for secret in _secrets(value)} | {more})
    return [visible(_cut(line), lines=True) for line in (*lines[:2], *text.split("\n"))]


def _lines(text: str) -> list[str]:
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def _around_changes(old: list[str], new: list[str], context: int) -> tuple[list[str], list[str], int]:
    """The lines from the first change to the last with some around them, and the number left out at the beginning."""
    start = shared_start(old, new)
    end = shared_start(old[start:][::-1], new[start:][::-1])
    first, last = max(start - context, 0), max(end - context, 0)
    return old[first : len(old) - last], new[first : len(new) - last], first


def _broken(lines: list[str]) -> list[str]:
    """The lines, of which long ones are broken behind the signs of JSON."""
    broken: list[str] = []
    for line in lines:
        pieces = (match[0].strip() for match in _PIECE.finditer(line))
        broken += [line] if len(line) <= _LONG_LINE else filter(None, pieces)
    return broken


def _moved(line: str, by: int) -> str:
    """The head of a block with the line numbers of the whole file; any other line as it is."""
    if not line.startswith("@@"):
        return line
    return re.sub(r"(?<=[-+])\d+", lambda match: str(int(match[0]) + by), line)


def _cut(line: str) -> str:
    return line if len(line) <= _LONG_LINE else line[:_LONG_LINE] + "…"


def _masked(text: str, secrets: set[str]) -> str:
    # A secret of several lines is one line each in YAML.
    parts = {part for secret in secrets for part in (secret, *map(str.strip, secret.splitlines()))} - {""}
    for secret in sorted(parts, key=len, reverse=True):
        for written in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            if written not in text:
                continue
            if len(written) >= _MIN_LENGTH:
                text = text.replace(written, HIDDEN)
            else:
                whole = rf"""(?m)(["'])({re.escape(written)})\1|(?<=[:=] )({re.escape(written)})[ \t]*$"""
                text = re.sub(whole, lambda match: f"{match[1] or ''}{HIDDEN}{match[1] or ''}", text)
    return text


def _secrets(value: object, key: str = "", *, is_secret: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        is_secret = is_secret or key in _MAPS or _HOLDERS.search(key) is not None
        for name, below in value.items():
            yield from _secrets(below, str(name), is_secret=is_secret)
    elif isinstance(value, list):
        before = ""
        for item in value:
            yield from _secrets(item, before if isinstance(item, str) else key, is_secret=is_secret)
            before = item if isinstance(item, str) and item.startswith("-") and "=" not in item else ""
    elif isinstance(value, str) and value and not _REFERENCE.fullmatch(value):
        if is_secret or key in _MAPS or _is_secret_name(key):
            yield value
            return
        if (query := _QUERY.match(value)) is not None:
            yield query[1] or query[0]
        name, equals, rest = value.partition("=")
        if equals and _is_secret_name(name) and rest and not _REFERENCE.fullmatch(rest):
            yield rest
        yield from secrets_in_argument(key, value)
        if not value.startswith(("/", "~", ".")):
            for word in _WORD.findall(value):
                if len(word) >= 20 and _DIGIT.search(word) and _LETTER.search(word):
                    yield from _LONG_WORD.findall(word)


def _is_secret_name(name: str) -> bool:
    return _NAMES.search(name) is not None or is_secret_name(name)
