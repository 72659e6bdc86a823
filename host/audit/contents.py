"""The arguments and results of calls in records, for the history: in full, or without what must not be kept.

Redaction replaces, and leaves everything else, the names of members included:

- secrets of the configuration, which the caller of this module knows, and what literal secrets look like in a
  configuration (`config.literal_secrets`): values under the name of a secret, options, assignments, parameters of URLs
- words that have the form of credentials: with the prefix of an issuer, or 20 letters and digits in a row
- texts of more than LONGEST_TEXT characters, by their length

A secret in the middle of a sentence has no such sign, and stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import lru_cache

from msgspec import Raw

from config.literal_secrets import is_secret_name, secrets_in_argument
from config.references import HIDDEN
from host.jsonrpc.strict import may_have_more_tokens

MOST_KEPT = 32 * 1024
"""Bytes of arguments, or of a result, that a record has at most. More is left out."""
LONGEST_TEXT = 200
"""Characters of a text that redaction leaves."""
_MOST_TOKENS = 5_000
"""Structural characters of what is redacted, some 10 ms."""
_LONGEST_NAME = 64
"""Characters of a name that are looked at."""
_CREDENTIAL = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|\b(?i:bearer) +[^\s\"']{8,}|\b(?i:basic) +(?=[A-Za-z]+[A-Z\d+/=])[A-Za-z\d+/]{8,}={0,2}"
    r"|\b(?:gh[opsur]_|github_pat_|glpat-|sk-|[rs]k_(?:live|test)_|xox[a-z]-|hf_|npm_|pypi-|dckr_pat_|ya29\.|AIza|eyJ)"
    r"[\w.+/=-]{8,}"
    r"|(?<![A-Za-z\d+])(?=[A-Za-z+]*\d)(?=[\d+]*[A-Za-z])[A-Za-z\d+]{20,}={0,2}",
    re.DOTALL,
)
_SPACES = re.compile(r"(\s+)")
_MAY_BE_ARGUMENT = re.compile("=|://")
_AROUND_NAMES = ":\"'{[(,;"
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

Secrets = Callable[[], Collection[str]]


class Contents:
    """The form in which records have arguments and results.

    Args:
        secrets: returns those of the configuration, the longest first; None to keep everything.
    """

    def __init__(self, secrets: Secrets | None) -> None:
        self._secrets = secrets

    def of(self, raw: Raw) -> dict[str, str]:
        """A member for the record: `json`, the text itself; `redacted`, where something of it was replaced; or
        `left_out`, the reason why neither is there. Never raises."""
        if len(raw) > MOST_KEPT:
            return {"left_out": f"longer than {MOST_KEPT // 1024} KiB"}
        if self._secrets is None:
            return {"json": bytes(raw).decode(errors="replace")}
        if may_have_more_tokens(raw, _MOST_TOKENS):
            return {"left_out": f"more than {_MOST_TOKENS:,} values"}
        try:
            value = json.loads(bytes(raw))
            redaction = _Redaction(self._secrets(), _encode(value))
            text = _encode(redaction.redacted(value))
        except (ValueError, RecursionError):
            return {"left_out": "unreadable"}
        return {"redacted" if redaction.has_replaced else "json": text}


class _Redaction:
    """One JSON value while it is redacted.

    Args:
        encoded: the value, encoded as the secrets are here: most secrets need not be looked for in each of its texts.
    """

    def __init__(self, secrets: Collection[str], encoded: str) -> None:
        self.has_replaced = False
        self._secrets = secrets
        self._present = [each for each in secrets if _encode(each)[1:-1] in encoded]

    def redacted(self, value: object, *, is_secret: bool = False, before: str = "") -> object:
        """A decoded value without what must not be kept.

        Args:
            is_secret: it is under the name of a secret.
            before: the text before it in a list, which may be the option whose value it is.
        """
        if isinstance(value, str):
            shown = HIDDEN if is_secret and value else self._text(value, before)
            self.has_replaced |= shown != value
            return shown
        if isinstance(value, dict):
            return {
                self.redacted(name): self.redacted(each, is_secret=is_secret or _is_secret(name[:_LONGEST_NAME]))
                for name, each in value.items()
            }
        if isinstance(value, list):
            texts = ["", *(each if isinstance(each, str) else "" for each in value)]
            return [self.redacted(each, is_secret=is_secret, before=texts[n]) for n, each in enumerate(value)]
        if is_secret and not (value is None or isinstance(value, bool)):
            self.has_replaced = True
            return HIDDEN
        return value

    def _text(self, text: str, before: str) -> str:
        if len(text) > LONGEST_TEXT:
            return f"str[{len(text)}]"  # as in shapes
        for secret in self._present:
            text = text.replace(secret, HIDDEN)
        if text[:1] in ("{", "["):  # results repeat their structured content as text
            inner = Contents(lambda: self._secrets).of(Raw(text.encode(errors="surrogatepass")))
            if "redacted" in inner:
                return inner["redacted"]
        text = _CREDENTIAL.sub(HIDDEN, text)
        if "\0" in before + text:  # a mark of `secrets_in_argument`
            return text
        return _without_secret_words(before[:LONGEST_TEXT], text)


def _without_secret_words(before: str, text: str) -> str:
    """A text, which may be one argument or a whole command line, without secrets in arguments and what follows the name
    of a secret with a colon."""
    if before.startswith("-"):
        text = _without_secrets(before, text)
    words = _SPACES.split(text)  # and what is between them
    for at in range(0, len(words), 2):
        word, former = words[at], words[at - 2] if at else ""
        if former.endswith(":") and _is_secret(former.strip(_AROUND_NAMES)[-_LONGEST_NAME:]):
            words[at] = HIDDEN
        elif former.startswith("-") or _MAY_BE_ARGUMENT.search(word):
            words[at] = _without_secrets(former, word)
    return "".join(words)


def _without_secrets(before: str, text: str) -> str:
    if not (is_named := before.startswith("-") and _is_secret(before.lstrip("-")[:_LONGEST_NAME])):
        is_named = any(_is_secret(each[-_LONGEST_NAME:]) for each in text.split("=")[:-1])
    for secret in secrets_in_argument(before, text) if is_named or "://" in text else ():
        text = text.replace(secret, HIDDEN)
    return text


_is_secret = lru_cache(1024)(is_secret_name)
