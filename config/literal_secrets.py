"""Secrets that stand in the keys of a server as they are, and their replacement by references.

A text is a secret, or a part of it is, by its name or by its form:

- The value of a variable, a header, a query parameter, an option (`--api-key X`, `--api-key=X`) or an argument `NAME=X`
  is a secret if a word of the name is one of `_WORDS`, unless its last word says that the value only leads to a secret
  or describes it (`_HARMLESS_ENDS`), or the value is true, false or a short number.
- So is the value of a setting in a connection string (`Password=X;`) and of a member in JSON with such a name.
- Behind `Bearer`, `Basic` and the like, the rest is a secret; in a URL with a user and in `USER:PASSWORD@HOST`, the
  password is.
- A text with the prefix of a known kind of token, a private key, or a run of letters and digits that looks random is a
  secret. Paths and digests of images are none.

In doubt a text is a secret: it does no harm to keep one that is none elsewhere. References in a text stay, and the
secrets beside them are kept one by one. A reference with a secret as its default becomes one without a default if its
variable is set, else the default is kept and the variable no longer read: our form has no reference with another one as
its default.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from config.references import default_of, without_references

Keep = Callable[[str, str], str]
"""Keeps a secret under a name, and gives the reference to it."""

_WORDS = frozenset(
    {
        *("key", "keys", "apikey", "token", "tokens", "secret", "secrets", "auth", "authorization", "authentication"),
        *("credential", "credentials", "creds", "cookie", "cookies", "pat", "jwt", "bearer", "dsn", "signature", "sig"),
        *("private", "salt", "otp"),
    }
)
_PASSWORDS = frozenset({"password", "passwd", "pwd", "pass", "passphrase", "passcode", "pin", "pw"})
_GLUED = re.compile(r"(?:token|secret|passw(?:or)?d|(?<!by|om|es)pass|apikey|accesskey|authkey)$")
_CONNECTION = frozenset({"connection", "string"})
_HARMLESS_ENDS = frozenset(
    {
        *("file", "path", "dir", "directory", "folder", "url", "uri", "endpoint", "host", "name", "id", "type"),
        *("limit", "size", "count", "length", "ttl", "timeout", "expiry", "mode", "method", "region", "prefix"),
        *("header", "env", "var", "scope", "scopes", "user", "username", "email"),
    }
)
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TRIVIAL = re.compile(r"(?i:true|false|yes|no|on|off|none|null)|[0-9]{0,6}")

_SCHEME_WORD = re.compile(r"(?i:bearer|basic|token|bot|apikey|api-key|digest|negotiate)[ \t]+")
_SCHEME = re.compile(rf"{_SCHEME_WORD.pattern}(\S{{8,}})")
_PASSWORD_IN_URL = re.compile(r"://[^/?#@\s:]*:([^/?#\s]+)@")
_HOST_AFTER = (
    r"(?:\[|(?:tcp|unix)\(|localhost\b|[A-Za-z0-9][\w-]*(?:\.[\w-]+)*(?:\.[A-Za-z]{2,}|:\d|/)|\d+\.\d+\.\d+\.\d+)"
)
_PASSWORD = re.compile(rf"(?<![^\s\"'=(,;])(?!npm:)[\w.+-]{{1,80}}:([^\s:@/]{{1,200}})@(?!sha\d){_HOST_AFTER}")
_PARAMETER = re.compile(r"(?<![^?&;])([^=&;#?\s:/]+)=([^&;#\s]*)")
_NAME = r"[A-Za-z][\w.-]*+"
_SETTING = re.compile(rf"(?<![^;,&\s])({_NAME}(?: {_NAME})?)\s*+=\s*+")
_QUOTED = r"\"([^\"]++)\"|'([^']++)'"
_SETTING_VALUE = re.compile(rf"{_QUOTED}|((?:{_SCHEME_WORD.pattern})?[^\s,&]*+(?:[,&](?!{_NAME}=)[^\s,&]*+)*+)")
_LISTED_VALUE = re.compile(rf"{_QUOTED}|([^;]*+)")
"""The value of a setting among those with a semicolon between them."""
_MEMBER = re.compile(r'"([^"\\\s]{1,80})"\s*+:\s*+"((?:[^"\\]|\\.)++)"', re.DOTALL)
_ODD_MEMBER = re.compile(r"""(\\{1,3}"|')([^"'\\\s]{1,80})\1\s*+:\s*+\1([^"'\\]++)\1""")
"""One in JSON within a text of JSON, or with single quotes."""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}|(?:sk|pk|rk)[-_][\w-]{16,}"
    r"|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}|A(?:KI|SI)A[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{10,}|hf_\w{16,}"
    r"|npm_\w{16,}|pypi-[\w-]{16,}|SG\.[\w-]{8,}\.[\w-]{8,}|eyJ[\w-]{8,2000}+\.[\w-]{8,}(?:\.[\w-]*)?)"
)
# Behind `@` or the name of a digest, a word says which version is meant.
_FREE_WORD = re.compile(r"(?<![\w@-])(?<!sha256:)(?<!sha512:)[\w-]++")
_RUN = re.compile(r"(?:[a-zA-Z]++[_-])*+([A-Za-z0-9]{20,}+)")
_LOWER, _UPPER, _DIGIT, _LETTER = (re.compile(each) for each in ("[a-z]", "[A-Z]", "[0-9]", "[A-Za-z]"))
_LONG = 32
"""Characters from which on a word with letters of both cases and digits looks random."""
_ENOUGH = re.compile(r"[A-Za-z0-9](?:[^A-Za-z0-9]*+[A-Za-z0-9]){4}")
_IS_PATH = re.compile(r"(?:~|\.{1,2})?/")
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)")
_ASSIGNMENT = re.compile(r"(?:--?)?([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)", re.DOTALL)
_HEADER_OPTIONS = frozenset({"-H", "--header", "--headers"})


class _Target(NamedTuple):
    """The server whose secrets are kept, and how."""

    id: str
    keep: Keep
    secret_variables: Container[str]
    set_variables: Container[str]


class _Span(NamedTuple):
    """A secret in a text, and a name for it; empty if the place of the text is name enough."""

    start: int
    end: int
    name: str = ""


def is_secret_name(name: str) -> bool:
    """Whether the value under a name is a secret, whatever its form."""
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    if not words or words[-1] in _HARMLESS_ENDS:
        return False
    found = set(words)
    return bool(found & (_WORDS | _PASSWORDS)) or found >= _CONNECTION or any(map(_GLUED.search, words))


def secrets_in_argument(before: str, text: str) -> list[str]:
    """The secrets in an argument that stands behind another one."""
    return [text[span.start : span.end] for span in _in_argument(before, text)]


def without_secrets(
    ours: dict[str, object],
    id: str,
    keep: Keep,
    secret_variables: Container[str] = (),
    set_variables: Container[str] = (),
) -> dict[str, object]:
    """The keys of a server in our form with references in the place of literal secrets.

    Args:
        secret_variables: variables whose values are secrets in any case.
        set_variables: variables of the environment that have a value.
    """
    target = _Target(id, keep, secret_variables, set_variables)
    return {key: _REPLACED[key](value, target) if key in _REPLACED else value for key, value in ours.items()}


def set_variables(environ: Mapping[str, str]) -> set[str]:
    """The variables that have a value. A reference takes its default for an empty one."""
    return {name for name, value in environ.items() if value}


def _variables(value: object, target: _Target) -> object:
    if not isinstance(value, dict):
        return value
    made = {}
    for name, text in value.items():
        find = _whole if name in target.secret_variables else partial(_in_value, name)
        made[name] = _replaced(text, find, name, target)
    return made


def _headers(value: object, target: _Target) -> object:
    if not isinstance(value, dict):
        return value
    return {name: _replaced(text, partial(_in_value, name), name, target) for name, text in value.items()}


def _url(value: object, target: _Target) -> object:
    return _replaced(value, _in_text, "url", target)


def _words(value: object, target: _Target) -> object:
    """The words of a command line."""
    if not isinstance(value, list):
        return value
    made: list[object] = []
    before = ""
    for n, word in enumerate(value):
        made.append(_replaced(word, partial(_in_argument, before), f"argument-{n}", target))
        before = word if isinstance(word, str) else ""
    return made


def _client(value: object, target: _Target) -> object:
    """`oauth` without its secret."""
    if not isinstance(value, dict):
        return value
    names = ("client_secret", "private_key")
    return {key: _replaced(each, _whole, key, target) if key in names else each for key, each in value.items()}


_REPLACED: dict[str, Callable[[object, _Target], object]] = {
    "env": _variables,
    "headers": _headers,
    "url": _url,
    "command": _words,
    "args": _words,
    "headers_helper": _words,
    "oauth": _client,
}
"""The keys that may hold secrets."""


def _replaced(value: object, find: Callable[[str], list[_Span]], name: str, target: _Target) -> object:
    """A text with references in the place of the secrets in it."""
    if not isinstance(value, str):
        return value
    text, written = without_references(value)
    references = {at: _without_default(text, at, reference, find, target) for at, reference in written.items()}
    found = [piece for span in find(text) for piece in _around(span, references)]
    if not found and references == written:
        return value
    made, at = "", 0
    for span in found:
        start = span.start
        while start > at and text[start - 1] == "$":  # `$` and a reference would be an escape
            start -= 1
        made += _written(text, at, start, references)
        made += target.keep(f"{target.id}.{span.name or name}", text[start : span.end])
        at = span.end
    return made + _written(text, at, len(text), references)


def _without_default(text: str, at: int, reference: str, find: Callable[[str], list[_Span]], target: _Target) -> str:
    """A reference without a default that is a secret, by the name of the variable or where it stands in a text."""
    variable, default = default_of(reference)
    end = at + len(default)
    found = find(text[:at] + default + text[at + 1 :]) if default else []
    if not any(span.start < end and span.end > at for span in found) and not _in_value(variable, default):
        return reference
    if variable in target.set_variables:
        return f"${{env:{variable}}}"
    return target.keep(f"{target.id}.{variable}", default)


def _around(span: _Span, references: Container[int]) -> Iterator[_Span]:
    """The pieces of a secret beside the references in it."""
    start = span.start
    for at in range(span.start, span.end + 1):
        if at == span.end or at in references:
            if start < at:
                yield span._replace(start=start, end=at)
            start = at + 1


def _written(text: str, start: int, end: int, references: dict[int, str]) -> str:
    """A part of a literal text in our form, with its references."""
    made = ""
    for piece in _around(_Span(start, end), references):
        made += "".join(references[at] for at in range(start, piece.start))
        made += text[piece.start : piece.end].replace("${", "$${")
        start = piece.end
    return made + "".join(references[at] for at in range(start, end))


def _whole(text: str) -> list[_Span]:
    return [_Span(0, len(text))]


def _in_value(name: str, text: str) -> list[_Span]:
    """The secrets in the value of a variable, a header or an option. A NUL stands for a reference."""
    if scheme := _SCHEME.fullmatch(text):
        return [_Span(*scheme.span(1))]
    found = _in_text(text)
    if "\0" in text:
        return found or (_beside_references(text) if is_secret_name(name) and "://" not in text else [])
    if is_secret_name(name) and _is_worth_it(name, text):
        return _whole(text)
    if found and "://" not in text and not re.search(r"\s", text):
        return _whole(text)
    return found


def _beside_references(text: str) -> list[_Span]:
    """The parts of a secret that are long enough to be more than signs between references."""
    scheme = _SCHEME_WORD.match(text)
    start = 0 if scheme is None else scheme.end()
    parts = (_Span(*part.span()) for part in re.compile(r"[^\0]+").finditer(text, start))
    return [part for part in parts if _ENOUGH.search(text, part.start, part.end)]


def _is_worth_it(name: str, text: str) -> bool:
    if not _TRIVIAL.fullmatch(text):
        return True
    return bool(text) and any(word.lower() in _PASSWORDS for word in _NAME_WORD.findall(name))


def _in_argument(before: str, text: str) -> list[_Span]:
    """The secrets in an argument that stands behind another one."""
    if before in _HEADER_OPTIONS and (header := _HEADER.fullmatch(text)):
        return _moved(_in_value(header[1], header[2]), header.start(2), header[1])
    if assignment := _ASSIGNMENT.fullmatch(text):
        return _moved(_in_value(assignment[1], assignment[2]), assignment.start(2), assignment[1])
    option = _OPTION.fullmatch(before)
    if option and is_secret_name(option[1]) and not text.startswith("-") and (found := _in_value(option[1], text)):
        return _moved(found, 0, option[1])
    return _in_text(text)


def _moved(found: list[_Span], by: int, name: str) -> list[_Span]:
    return [_Span(span.start + by, span.end + by, span.name or name) for span in found]


def _in_text(text: str) -> list[_Span]:
    """The secrets in a text without a name, by its form."""
    if _PRIVATE_KEY.search(text):
        return _whole(text)
    return _without_overlaps(_candidates(text))


def _candidates(text: str) -> Iterator[_Span]:
    for password in _PASSWORD_IN_URL.finditer(text):
        yield _Span(*password.span(1))
    if "://" in text:
        for parameter in _PARAMETER.finditer(text):
            if parameter[2] and is_secret_name(parameter[1]) and _is_worth_it(parameter[1], parameter[2]):
                yield _Span(*parameter.span(2), parameter[1])
    else:
        for password in _PASSWORD.finditer(text):
            yield _Span(*password.span(1))
        yield from _settings(text)
    for member in _MEMBER.finditer(text):
        if is_secret_name(member[1]) and _is_worth_it(member[1], member[2]):
            yield _Span(*member.span(2), member[1])
    for member in _ODD_MEMBER.finditer(text):
        if is_secret_name(member[2]) and _is_worth_it(member[2], member[3]):
            yield _Span(*member.span(3), member[2])
    for token in _TOKEN.finditer(text):
        yield _Span(*token.span())
    if not _IS_PATH.match(text):
        for word in _FREE_WORD.finditer(text):
            if length := _random_part(word[0]):
                yield _Span(word.start(), word.start() + length)


def _settings(text: str) -> Iterator[_Span]:
    """The secrets among settings `NAME=VALUE`, as in a connection string."""
    pattern = _LISTED_VALUE if ";" in text else _SETTING_VALUE
    for setting in _SETTING.finditer(text):
        if is_secret_name(setting[1]) and (value := pattern.match(text, setting.end())):
            found = value[value.lastindex or 0]
            if found and _is_worth_it(setting[1], found):
                yield _Span(*value.span(value.lastindex or 0), setting[1])


def _random_part(word: str) -> int:
    """The length of the part of a word that looks random: a run of letters and digits that holds both, behind words of
    letters, or a longer one, with dashes too, that holds both cases and digits."""
    run = _RUN.match(word)
    if run is not None and _DIGIT.search(run[1]) and _LETTER.search(run[1]):
        return run.end()
    is_random = len(word) >= _LONG and all(sign.search(word) for sign in (_LOWER, _UPPER, _DIGIT))
    return len(word) if is_random else 0


def _without_overlaps(found: Iterator[_Span]) -> list[_Span]:
    """The spans in their order, without those that overlap one that was found before."""
    kept: list[_Span] = []
    for span in found:
        at = bisect(kept, span)
        is_free = (at == 0 or kept[at - 1].end <= span.start) and (at == len(kept) or kept[at].start >= span.end)
        if is_free:
            kept.insert(at, span)
    return kept
