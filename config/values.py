"""The values of the file: one reader per kind, and what an editor is told about it.

A reader takes a node, fills in its references with the `Expander` of the validation context and raises a sentence
that says what was expected. Values that may be secret are never quoted; others only if they were written in the
file. Which key holds which kind is not known here.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, PlainValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from config import model
from config.interpolate import CannotExpandError, Expanded, Expander
from config.naming import ID_PATTERN, LONGEST_ID, make_id
from config.problems import clip
from config.source import Scalar, kind_of

LONGEST_CALL = 600.0
LONGEST_GRACE = 60.0
SHORTEST_IDLE = 1.0
LONGEST_IDLE = 24 * 3600.0
MOST_INSTANCES = 1000
SHORTEST_TOKEN = 16
LONGEST_TOKEN = 4096  # the whole head of a request has 16 KiB
RESERVED_PATHS = ("/status", "/healthz", "/console", "/sse", "/message")
TOKEN_NAME = r"[A-Za-z0-9._@-]{1,64}"

Json = dict[str, Any]

_DURATION = r"[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h)"
_ENDPOINT_PATH = r"(?:/[A-Za-z0-9._~-]+)+"
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_HOST_AND_PORT = rf"{_HOST}(?::[0-9]{{1,5}})?"
_ORIGIN = rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST_AND_PORT}"
_ADDRESS = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ENV_NAME = re.compile(r"[!-<>-~]+")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Wrong(PydanticCustomError):
    """A value that is not what was expected; the sentence is complete and holds nothing secret."""

    def __new__(cls, text: str) -> Wrong:
        return super().__new__(cls, "config", text)


def expected(what: str, found: str, remedy: str = "") -> Wrong:
    text = f"expected {what}, found {found}"
    return Wrong(f"{text}; {remedy}" if remedy else text)


def _scalar(value: object, what: str) -> Scalar:
    if isinstance(value, Scalar) and not value.is_null:
        return value
    found = "a map" if isinstance(value, dict) else "a list" if isinstance(value, list) else kind_of(value)
    remedy = 'write "" for empty text' if found == "nothing" else ""
    raise expected(what, found, remedy)


def _expand(raw: str, info: ValidationInfo) -> Expanded:
    expander = info.context
    assert isinstance(expander, Expander)
    try:
        return expander.expand(raw)
    except CannotExpandError as error:
        raise Wrong(str(error)) from None


def _read(value: object, info: ValidationInfo, what: str) -> Expanded:
    return _expand(_scalar(value, what).text, info)


def _quote(value: Expanded) -> str:
    """What was found, if the file itself says so; what came from outside stays unsaid."""
    return f'"{clip(value.text)}"' if value.literal else "something else in what ${...} gave"


# Readers, one per kind of value.


def _read_text(value: object, info: ValidationInfo) -> Expanded:
    return _read(value, info, "text")


def _read_title(value: object, info: ValidationInfo) -> str:
    title = _read(value, info, "a name to show")
    if not title.text.strip() or not title.text.isprintable() or len(title.text) > 100:
        raise Wrong("expected one line of at most 100 characters to show as the name")
    return title.text


def _read_header_value(value: object, info: ValidationInfo) -> Expanded:
    header = _read(value, info, "the value of a header")
    if "\n" in header.text or "\r" in header.text:
        raise Wrong("a header value may not hold a line break")
    if not header.text.isascii() or not header.text.replace("\t", " ").isprintable():
        raise Wrong("a header value may hold printable ASCII characters only")
    if header.text != header.text.strip():
        raise Wrong("a header value may not begin or end with a space")
    return header


def _read_duration(value: object, info: ValidationInfo) -> float:
    what = "a duration such as 500ms, 60s, 5m or 1h"
    duration = _read(value, info, what)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", duration.text)
    if match is None:
        bare = duration.literal and re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", duration.text)
        raise expected(what, _quote(duration), f"give the unit, for instance {duration.text}s" if bare else "")
    return float(match[1]) * _SECONDS[match[2]]


def _up_to(least: float, most: float, text: str) -> Callable[[float], float]:
    def check(seconds: float) -> float:
        if not least <= seconds <= most:
            raise Wrong(f"expected a duration {text}")
        return seconds

    return check


def _read_bool(value: object, info: ValidationInfo) -> bool:
    what = "true or false"
    scalar = _scalar(value, what)
    flag = _expand(scalar.text, info)
    if flag.text in ("true", "false"):
        if flag.literal and not scalar.plain:
            raise expected(what, "text in quotes", f"write {flag.text} without quotes")
        return flag.text == "true"
    meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    word = flag.text.lower()
    remedy = meant.get(word) or (word if word in ("true", "false") else "")
    raise expected(what, _quote(flag), f"write {remedy}" if remedy and flag.literal else "")


def _read_count(value: object, info: ValidationInfo) -> int:
    what = f"a whole number from 1 to {MOST_INSTANCES}"
    scalar = _scalar(value, what)
    count = _expand(scalar.text, info)
    if not re.fullmatch(r"[0-9]{1,4}", count.text) or not 1 <= int(count.text) <= MOST_INSTANCES:
        raise expected(what, _quote(count))
    if count.literal and not scalar.plain:
        raise expected(what, "text in quotes", f"write {int(count.text)} without quotes")
    return int(count.text)


def did_you_mean(found: str, words: Iterable[str]) -> str:
    """The remedy for a word that is nearly one of those that may stand here; empty if it is near none."""
    meant = difflib.get_close_matches(found.lower(), tuple(words), 1)
    return f"did you mean {meant[0]}?" if meant else ""


_NO_WORDS: Mapping[str, str] = MappingProxyType({})
_NO_MORE_THAN_USUAL = MappingProxyType(dict.fromkeys(("true", "yes", "on"), "standard"))
"""Whoever writes a switch for `trust` is not led to the word that allows everything."""


def _one_of(words: type[StrEnum], meant: Mapping[str, str] = _NO_WORDS) -> Callable[[object], StrEnum]:
    """A reader of one word as it is written. `meant` holds words whose nearest one would be a wrong guess."""

    *most, last = words
    what = f"{', '.join(most)} or {last}"

    def read(value: object) -> StrEnum:
        word = _scalar(value, what)
        if word.text in list(words):
            return words(word.text)
        known = meant.get(word.text.lower())
        remedy = f"did you mean {known}?" if known else did_you_mean(word.text, words)
        raise expected(what, f'"{word.shown}"', remedy)

    return read


@dataclass(frozen=True)
class CommandLine:
    """A command that stands alone in one string and is to be split into words."""

    node: Scalar


def _read_command(value: object, info: ValidationInfo) -> tuple[Expanded, ...]:
    what = "a program, or a list of a program and its arguments"
    if isinstance(value, list):
        words = tuple(_read(item, info, f"text in item {n} of the list") for n, item in enumerate(value, 1))
    elif isinstance(value, CommandLine):
        # Split before the references are filled in: what they give stays one word whatever it holds.
        words = tuple(_expand(word, info) for word in _split(_scalar(value.node, what).text))
    else:
        words = (_read(value, info, what),)
    if not words or not words[0].text:
        raise expected(what, "no program")
    return words


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise Wrong(f"this cannot be split into words ({str(error).lower()}); write it as a list") from None


def _read_url(value: object, info: ValidationInfo) -> Expanded:
    what = "a URL such as https://example.com/mcp"
    url = _read(value, info, what)
    if not url.text.isprintable() or " " in url.text or "\\" in url.text:
        raise Wrong(f"expected {what}; spaces, backslashes and control characters may not stand in it")
    try:
        parts = urlsplit(url.text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise Wrong(f"expected {what}; its host or port cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise Wrong(f"expected {what}; only http and https are spoken")
    if not host:
        raise Wrong(f"expected {what}; this one has no host")
    if "@" in parts.netloc:
        raise Wrong("a URL may not hold a user or password; send them in headers, as Authorization")
    if "#" in url.text:
        raise Wrong("a URL may not have a fragment; take away # and what follows it")
    return url


def _read_address(value: object, info: ValidationInfo) -> tuple[str, int]:
    what = "an address such as 127.0.0.1:8808"
    address = _read(value, info, what)
    host, colon, port = address.text.rpartition(":")
    if not re.fullmatch(_ADDRESS, address.text) or int(port) > 65535:
        remedy = "give the port too" if not colon else "an IPv6 address stands in brackets" if ":" in host else ""
        raise expected(what, _quote(address), remedy)
    host = host.removeprefix("[").removesuffix("]")
    host = model.DEFAULT_HOST if host.lower() == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise expected(what, _quote(address), "the host is an IP address or localhost") from None
    return host, int(port)


def _read_endpoint_path(value: object, info: ValidationInfo) -> str:
    what = "a path such as /mcp"
    path = _read(value, info, what)
    segments = path.text.split("/")[1:]
    if not re.fullmatch(_ENDPOINT_PATH, path.text) or not {".", ".."}.isdisjoint(segments):
        remedy = "it begins with /, does not end with one, and holds letters, digits, - . _ ~ and single / only"
        raise expected(what, _quote(path), remedy)
    if f"/{segments[0]}" in RESERVED_PATHS:
        raise expected(what, _quote(path), f"/{segments[0]} is taken by Colonnade itself")
    return path.text


def _read_origin(value: object, info: ValidationInfo) -> str:
    what = "an origin such as https://example.com:8443"
    origin = _read(value, info, what)
    if not re.fullmatch(_ORIGIN, origin.text):
        raise expected(what, _quote(origin), "scheme, host and port only, without a path or a / at the end")
    scheme, _, rest = origin.text.lower().partition("://")
    # A browser never sends the port that goes without saying: with it, the entry would match nothing.
    return f"{scheme}://{rest.removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}"


def _read_host(value: object, info: ValidationInfo) -> str:
    what = "a host such as example.com or example.com:8808"
    host = _read(value, info, what)
    if not re.fullmatch(_HOST_AND_PORT, host.text):
        raise expected(what, _quote(host), "no scheme and no path; an IPv6 address stands in brackets")
    return host.text.lower()


def _read_pattern(value: object, info: ValidationInfo) -> str:
    pattern = _read(value, info, "a pattern")
    if not pattern.text:
        raise expected("a pattern", "empty text", "* stands for everything")
    return pattern.text


def _read_token(value: object, info: ValidationInfo) -> Expanded:
    token = _read(value, info, "a token")
    if not re.fullmatch(r"[!-~]*", token.text):
        raise Wrong("a token is printable ASCII without spaces and line breaks")
    if not SHORTEST_TOKEN <= len(token.text) <= LONGEST_TOKEN:
        raise Wrong(f"a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters; `openssl rand -hex 32` makes one")
    return token


def _read_token_name(name: str) -> str:
    if not re.fullmatch(TOKEN_NAME, name):
        raise Wrong("a token's name is 1 to 64 letters, digits and . _ @ -; the token stands after the colon")
    return name


def _read_id(name: str) -> str:
    if re.fullmatch(ID_PATTERN, name) and len(name) <= LONGEST_ID:
        return name
    suggestion = make_id(name)
    hint = f', for instance "{suggestion}"' if suggestion else ""
    raise Wrong(
        f"a server id is at most {LONGEST_ID} lower-case letters and digits, with single dashes between, "
        f"and begins with a letter{hint}"
    )


def _read_env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name) or "${" in name:
        raise Wrong("a variable's name is printable ASCII without spaces and =; the value stands after the colon")
    return name


def _read_header_name(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name) or "${" in name:
        raise Wrong("a header's name is letters, digits and dashes; the value stands after the colon")
    if model.is_protocol_header(name):
        raise Wrong("this header is set by Colonnade itself; take it away")
    return name


# What an editor is told about them.


def _text_schema(pattern: str | None = None) -> Json:
    """Text as YAML writes it. An editor takes `8080` for a number and `true` for a truth; both are fine."""
    if pattern is None:
        return {"type": ["string", "number", "boolean"]}
    return {"type": "string", "pattern": rf"^(?:{pattern})$|\$\{{"}


def _words(words: type[StrEnum]) -> WithJsonSchema:
    return WithJsonSchema({"enum": [word.value for word in words]})


_BOOL_SCHEMA: Json = {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\$\{"}]}
_COUNT_SCHEMA: Json = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_INSTANCES}, {"type": "string", "pattern": r"\$\{"}]
}
_TOKEN_SCHEMA: Json = _text_schema(f"[!-~]{{{SHORTEST_TOKEN},{LONGEST_TOKEN}}}")
_COMMAND_SCHEMA: Json = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": _text_schema(), "minItems": 1}]
}

Text = Annotated[Expanded, PlainValidator(_read_text), WithJsonSchema(_text_schema())]
Title = Annotated[str, PlainValidator(_read_title), WithJsonSchema(_text_schema())]
HeaderValue = Annotated[Expanded, PlainValidator(_read_header_value), WithJsonSchema(_text_schema())]
Duration = Annotated[float, PlainValidator(_read_duration), WithJsonSchema(_text_schema(_DURATION))]
CallTime = Annotated[Duration, AfterValidator(_up_to(1e-6, LONGEST_CALL, "above zero and at most 600s"))]
Grace = Annotated[Duration, AfterValidator(_up_to(0, LONGEST_GRACE, "of at most 60s"))]
Idle = Annotated[Duration, AfterValidator(_up_to(SHORTEST_IDLE, LONGEST_IDLE, "from 1s to 24h"))]
Count = Annotated[int, PlainValidator(_read_count), WithJsonSchema(_COUNT_SCHEMA)]
Trust = Annotated[model.Trust, PlainValidator(_one_of(model.Trust, _NO_MORE_THAN_USUAL)), _words(model.Trust)]
Protocol = Annotated[model.Protocol, PlainValidator(_one_of(model.Protocol)), _words(model.Protocol)]
Isolation = Annotated[model.Isolation, PlainValidator(_one_of(model.Isolation)), _words(model.Isolation)]
Token = Annotated[Expanded, PlainValidator(_read_token), WithJsonSchema(_TOKEN_SCHEMA)]
TokenName = Annotated[str, AfterValidator(_read_token_name)]
Flag = Annotated[bool, PlainValidator(_read_bool), WithJsonSchema(_BOOL_SCHEMA)]
Command = Annotated[tuple[Expanded, ...], PlainValidator(_read_command), WithJsonSchema(_COMMAND_SCHEMA)]
Url = Annotated[Expanded, PlainValidator(_read_url), WithJsonSchema(_text_schema("https?://[^#]+"))]
Address = Annotated[tuple[str, int], PlainValidator(_read_address), WithJsonSchema(_text_schema(_ADDRESS))]
EndpointPath = Annotated[str, PlainValidator(_read_endpoint_path), WithJsonSchema(_text_schema(_ENDPOINT_PATH))]
Origin = Annotated[str, PlainValidator(_read_origin), WithJsonSchema(_text_schema(_ORIGIN))]
Host = Annotated[str, PlainValidator(_read_host), WithJsonSchema(_text_schema(_HOST_AND_PORT))]
Pattern = Annotated[str, PlainValidator(_read_pattern), WithJsonSchema({"type": "string", "minLength": 1})]
ServerId = Annotated[str, AfterValidator(_read_id)]
EnvName = Annotated[str, AfterValidator(_read_env_name)]
HeaderName = Annotated[str, AfterValidator(_read_header_name)]
