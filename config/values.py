"""The values of the file: one reader per kind, and what an editor is told about it.

A reader takes a node, fills in its references with the `Expander` of the validation context and raises a sentence
that says what was expected. Values that may be secret are never quoted; others only if they were written in the
file. Which key holds which kind is not known here.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
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
MAX_INSTANCES = 1000
MAX_CONCURRENT = 1000
SHORTEST_ASK = 1.0
LONGEST_ASK = 3600.0
MAX_RATE_COUNT = 1_000_000_000
LONGEST_RATE = 30 * 86400
SMALLEST_RESULT = 1024
LARGEST_RESULT = 64 * 1024 * 1024
SHORTEST_AUDIT, LONGEST_AUDIT = 3600.0, 3650 * 86400.0
SMALLEST_AUDIT, LARGEST_AUDIT = 128 * 1024**2, 1024**4
SMALLEST_MEMORY = 32 * 1024 * 1024
LARGEST_MEMORY = 64 * 1024 * 1024 * 1024
LONGEST_ARGUMENT = 1_000_000_000
SHORTEST_TOKEN = 16
LONGEST_TOKEN = 4096  # the whole head of a request has 16 KiB
RESERVED_PATHS = ("/status", "/healthz", "/console", "/sse", "/message")
TOKEN_NAME = r"[A-Za-z0-9._@-]{1,64}"

Json = dict[str, Any]

_DURATION = r"[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d)"
_ENDPOINT_PATH = r"(?:/[A-Za-z0-9._~-]+)+"
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_HOST_AND_PORT = rf"{_HOST}(?::[0-9]{{1,5}})?"
_ORIGIN = rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST_AND_PORT}"
_ADDRESS = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ENV_NAME = re.compile(r"[!-<>-~]+")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = r"[0-9]{1,10}/[0-9]{0,7}(?:s|min|h|day)"
_RATE_SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86400}
_RATE_UNIT_HINTS = {
    "sec": "s",
    "second": "s",
    "m": "min",
    "minute": "min",
    "hour": "h",
    "hr": "h",
    "d": "day",
    "days": "day",
}
_SIZE = r"[0-9]{1,9}(?:\.[0-9]{1,9})?(?:B|KB|MB|KiB|MiB)"
_LARGE_SIZE = _SIZE.replace("MiB", "MiB|GB|GiB")
_BYTES = {"B": 1, "KB": 1000, "MB": 1000_000, "GB": 1000_000_000, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# What YAML readers, some or all, take for a truth, nothing or a number, and JSON does not: who knows what is meant?
_NEARLY_JSON = re.compile(
    r"~|(?i:true|false|null)|[+-]?(?:(?i:\.inf|\.nan|0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+)"
    r"|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)"
)
_NAMED_HOST = re.compile(r"(?!.*\.\.)[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class InvalidValue(PydanticCustomError):
    """A value that is not what was expected; the sentence is complete and holds nothing secret."""

    def __new__(cls, text: str) -> InvalidValue:
        return super().__new__(cls, "config", text)


def expected(what: str, found: str, remedy: str = "") -> InvalidValue:
    text = f"expected {what}, found {found}"
    return InvalidValue(f"{text}; {remedy}" if remedy else text)


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
        raise InvalidValue(str(error)) from None


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
        raise InvalidValue("expected one line of at most 100 characters to show as the name")
    return title.text


def _read_header_value(value: object, info: ValidationInfo) -> Expanded:
    header = _read(value, info, "the value of a header")
    if "\n" in header.text or "\r" in header.text:
        raise InvalidValue("a header value may not hold a line break")
    if not header.text.isascii() or not header.text.replace("\t", " ").isprintable():
        raise InvalidValue("a header value may hold printable ASCII characters only")
    if header.text != header.text.strip():
        raise InvalidValue("a header value may not begin or end with a space")
    return header


def _read_duration(value: object, info: ValidationInfo) -> float:
    what = "a duration such as 500ms, 60s, 5m or 1h"
    duration = _read(value, info, what)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", duration.text)
    if match is None:
        bare = duration.literal and re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", duration.text)
        raise expected(what, _quote(duration), f"give the unit, for instance {duration.text}s" if bare else "")
    return float(match[1]) * _SECONDS[match[2]]


def _within(minimum: float, maximum: float, text: str) -> Callable[[float], float]:
    def check(seconds: float) -> float:
        if not minimum <= seconds <= maximum:
            raise InvalidValue(f"expected a duration {text}")
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


def _whole_number(minimum: int, maximum: int) -> Callable[[object, ValidationInfo], int]:
    """A reader of whole numbers, decimal whatever they begin with."""
    what = f"a whole number from {minimum} to {maximum}"

    def read(value: object, info: ValidationInfo) -> int:
        scalar = _scalar(value, what)
        count = _expand(scalar.text, info)
        if not re.fullmatch(r"[0-9]{1,10}", count.text) or not minimum <= int(count.text) <= maximum:
            raise expected(what, _quote(count))
        if count.literal and not scalar.plain:
            raise expected(what, "text in quotes", f"write {int(count.text)} without quotes")
        return int(count.text)

    return read


def did_you_mean(found: str, words: Iterable[str]) -> str:
    """The remedy for a word that is nearly one of those that may stand here; empty if it is near none."""
    meant = difflib.get_close_matches(found.lower(), tuple(words), 1)
    return f"did you mean {meant[0]}?" if meant else ""


_NO_HINTS: Mapping[str, str] = MappingProxyType({})
_TRUST_HINTS = MappingProxyType(dict.fromkeys(("true", "yes", "on"), "standard"))
"""Whoever writes a switch for `trust` is not led to the word that allows everything."""


def _one_of(words: type[StrEnum], hints: Mapping[str, str] = _NO_HINTS) -> Callable[[object], StrEnum]:
    """A reader of one word as it is written. `hints` holds words whose nearest one would be a wrong guess."""

    *most, last = words
    what = f"{', '.join(most)} or {last}"

    def read(value: object) -> StrEnum:
        word = _scalar(value, what)
        if word.text in list(words):
            return words(word.text)
        known = hints.get(word.text.lower())
        remedy = f"did you mean {known}?" if known else did_you_mean(word.text, words)
        raise expected(what, f'"{word.shown}"', remedy)

    return read


def _read_rate(value: object, info: ValidationInfo) -> model.Rate:
    what = "a rate such as 5/s, 60/min, 100/5min, 20/h or 100000/day"
    rate = _read(value, info, what)
    count, _, per = rate.text.partition("/")
    match = re.fullmatch(r"([0-9]{0,7})([a-zA-Z]*)", per)
    if not re.fullmatch(_RATE, rate.text) or match is None:
        unit = _RATE_UNIT_HINTS.get(match[2].lower()) if match is not None else None
        remedy = "say per what, for instance 60/min" if count == rate.text else f"write {unit}" if unit else ""
        raise expected(what, _quote(rate), remedy)
    seconds = int(match[1] or 1) * _RATE_SECONDS[match[2]]
    if not 1 <= int(count) <= MAX_RATE_COUNT:
        raise InvalidValue(f"expected a rate of 1 to {MAX_RATE_COUNT}; for none at all, write deny under consent")
    if not 1 <= seconds <= LONGEST_RATE:
        raise InvalidValue("expected a rate per 1s to 30day")
    return model.Rate(int(count), float(seconds))


def _read_bytes(
    value: object, info: ValidationInfo, what: str = "a size such as 64KiB or 1MiB", form: str = _SIZE
) -> int:
    size = _read(value, info, what)
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]+)", size.text)
    if match is None or not re.fullmatch(form, size.text):
        bare = size.literal and re.fullmatch(r"[0-9]{1,9}", size.text)
        near = match and next((unit for unit in _BYTES if unit.lower() == match[2].lower()), None)
        remedy = f"give the unit, for instance {size.text}B" if bare else f"write {near}" if near else ""
        raise expected(what, _quote(size), remedy)
    return int(float(match[1]) * _BYTES[match[2]])


def _read_size(value: object, info: ValidationInfo) -> int:
    bytes_ = _read_bytes(value, info)
    if not SMALLEST_RESULT <= bytes_ <= LARGEST_RESULT:
        raise InvalidValue("expected a size from 1KiB to 64MiB")
    return bytes_


def _read_memory(value: object, info: ValidationInfo) -> int:
    bytes_ = _read_bytes(value, info)
    if not SMALLEST_MEMORY <= bytes_ <= LARGEST_MEMORY:
        raise InvalidValue("expected a size from 32MiB to 65536MiB")
    return bytes_


def _read_audit_size(value: object, info: ValidationInfo) -> int:
    bytes_ = _read_bytes(value, info, "a size such as 512MiB or 1GiB", _LARGE_SIZE)
    if not SMALLEST_AUDIT <= bytes_ <= LARGEST_AUDIT:
        raise InvalidValue("expected a size from 128MiB to 1024GiB")
    return bytes_


# Readers of conditions on arguments. Types are those of JSON: `1` is a number and `"1"` is text.


def _read_number(scalar: Scalar) -> int | float | None:
    """The number that a plain scalar writes as JSON does; None if it writes none."""
    match = _JSON_NUMBER.fullmatch(scalar.text) if scalar.plain else None
    if match is None:
        return None
    if len(scalar.text) > 300:
        raise InvalidValue("this number has more than 300 digits")
    number = int(match[0]) if match[1] is None and match[2] is None else float(match[0])
    if not math.isfinite(number):
        raise InvalidValue("this number is too large")
    return number


def _read_json_scalar(value: object, info: ValidationInfo) -> Any:
    what = "text, a number, true, false or null"
    if isinstance(value, Scalar) and value.plain:
        if value.text in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[value.text]
        number = _read_number(value)
        if number is not None:
            return number
        if not value.text:
            raise expected(what, "nothing", 'write "" for empty text, or null')
        if _NEARLY_JSON.fullmatch(value.text):
            word = value.text.lower()
            meant = f"{word} or " if word in ("true", "false", "null") else "a number as JSON writes it, or "
            raise expected(what, f'"{value.shown}"', f"write {meant}the text in quotes")
    if not isinstance(value, Scalar):
        raise expected(what, "a map" if isinstance(value, dict) else "a list")
    return _expand(value.text, info).text


def _read_json_scalars(value: object, info: ValidationInfo) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise expected("a list of values", kind_of(value) if isinstance(value, Scalar) else "a map")
    if not value:
        raise expected("at least one value", "an empty list", "nothing is in it, so the rule would never hold")
    return tuple(_read_json_scalar(item, info) for item in value)


def _read_part(value: object, info: ValidationInfo) -> str:
    part = _read(value, info, "text")
    if not part.text:
        raise expected("text", "empty text", "every text begins and ends with it")
    return part.text


def _read_range(value: object) -> tuple[int | float | None, int | float | None]:
    what = "a list of two numbers such as [1, 100], null where it is open"
    if not isinstance(value, list):
        raise expected(what, kind_of(value) if isinstance(value, Scalar) else "a map")
    if len(value) != 2:
        raise expected(what, f"a list of {len(value)}")
    low, high = (_read_bound(item, what) for item in value)
    if low is None and high is None:
        raise expected(what, "two open ends", "every number is between them; write type: number")
    if low is not None and high is not None and low > high:
        raise expected(what, "the larger one first", "turn them round")
    return low, high


def _read_bound(value: object, what: str) -> int | float | None:
    if not isinstance(value, Scalar):
        raise expected(what, "a map in it" if isinstance(value, dict) else "a list in it")
    if value.plain and value.text == "null":
        return None
    number = _read_number(value)
    if number is None:
        remedy = "write the number without quotes" if not value.plain and _JSON_NUMBER.fullmatch(value.text) else ""
        raise expected(what, f'"{value.shown}" in it', remedy)
    return number


def _read_type(value: object) -> str:
    if isinstance(value, Scalar) and value.text == "null":
        return "null"  # the word, although YAML reads nothing from it
    return _one_of(JsonType)(value).value


def _read_absent(value: object, info: ValidationInfo) -> bool:
    if not _read_bool(value, info):
        raise InvalidValue(
            "absent is either true or not said; for an argument that must be there, say what it has to be"
        )
    return True


def _one_or_more(value: object, info: ValidationInfo, what: str, read: Callable[[Expanded], str]) -> tuple[str, ...]:
    """One text, or a list of texts that is not empty."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise expected(what, "an empty list", "nothing is in it, so the rule would never hold")
    return tuple(dict.fromkeys(read(_read(item, info, what)) for item in items))


def _read_paths(value: object, info: ValidationInfo) -> tuple[str, ...]:
    what = "an absolute path such as /srv/project"

    def read(path: Expanded) -> str:
        segments = path.text.removesuffix("/").split("/")
        if segments[0] or not path.text:
            raise expected(what, _quote(path), "a ~ is not expanded; write ${env:HOME}" if segments[0] == "~" else "")
        if not {"", ".", ".."}.isdisjoint(segments[1:]) or "\\" in path.text:
            raise expected(what, _quote(path), "without . or .. or empty parts, and without a backslash")
        return "/".join(segments) or "/"

    return _one_or_more(value, info, what, read)


def _read_hosts(value: object, info: ValidationInfo) -> tuple[str, ...]:
    what = "the name of a host such as api.example.com"

    def read(host: Expanded) -> str:
        text = host.text.lower()
        try:
            return ipaddress.ip_address(text.removeprefix("[").removesuffix("]")).compressed
        except ValueError:
            pass
        if not text.isascii():
            raise expected(what, _quote(host), "write it in its ASCII form, which begins with xn--")
        if not _NAMED_HOST.fullmatch(text) or text.rpartition(".")[2].isdecimal():
            remedy = (
                "each host by its full name; there is no *" if "*" in text else "no scheme, port, path or final dot"
            )
            raise expected(what, _quote(host), remedy)
        return text

    return _one_or_more(value, info, what, read)


def _read_argument(name: str) -> str:
    if not name or "${" in name:
        raise InvalidValue("expected the name of an argument, or a JSON pointer such as /user/name")
    if name.startswith("/") and re.search(r"~(?![01])", name):
        raise InvalidValue("in a JSON pointer ~ is written ~0, and / within a name ~1")
    return name


def pointer(argument: str) -> str:
    """The JSON pointer for an argument as the file names it: by its name, or by a pointer already."""
    return argument if argument.startswith("/") else "/" + argument.replace("~", "~0").replace("/", "~1")


class JsonType(StrEnum):
    """The types of JSON Schema."""

    STRING = "string"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    NULL = "null"
    ARRAY = "array"
    OBJECT = "object"


class AuditDetail(StrEnum):
    """What the audit keeps of the arguments of calls."""

    DIGEST = "digest"
    FULL = "full"


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
        raise InvalidValue(f"this cannot be split into words ({str(error).lower()}); write it as a list") from None


def _read_url(value: object, info: ValidationInfo) -> Expanded:
    what = "a URL such as https://example.com/mcp"
    url = _read(value, info, what)
    if not url.text.isprintable() or " " in url.text or "\\" in url.text:
        raise InvalidValue(f"expected {what}; spaces, backslashes and control characters may not stand in it")
    try:
        parts = urlsplit(url.text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidValue(f"expected {what}; its host or port cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise InvalidValue(f"expected {what}; only http and https are spoken")
    if not host:
        raise InvalidValue(f"expected {what}; this one has no host")
    if "@" in parts.netloc:
        raise InvalidValue("a URL may not hold a user or password; send them in headers, as Authorization")
    if "#" in url.text:
        raise InvalidValue("a URL may not have a fragment; take away # and what follows it")
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


def _read_loopback(value: object, info: ValidationInfo) -> tuple[str, int]:
    host, port = _read_address(value, info)
    if not model.is_loopback(host):
        raise InvalidValue(
            "at the console one approves what runs, so it is for this machine only: "
            f"expected a loopback address such as {model.DEFAULT_HOST}:0; from elsewhere, reach it through ssh -L"
        )
    return host, port


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
        raise InvalidValue("a token is printable ASCII without spaces and line breaks")
    if not SHORTEST_TOKEN <= len(token.text) <= LONGEST_TOKEN:
        raise InvalidValue(
            f"a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters; `openssl rand -hex 32` makes one"
        )
    return token


def _read_token_name(name: str) -> str:
    if not re.fullmatch(TOKEN_NAME, name):
        raise InvalidValue("a token's name is 1 to 64 letters, digits and . _ @ -; the token stands after the colon")
    return name


def _read_id(name: str) -> str:
    if re.fullmatch(ID_PATTERN, name) and len(name) <= LONGEST_ID:
        return name
    suggestion = make_id(name)
    hint = f', for instance "{suggestion}"' if suggestion else ""
    raise InvalidValue(
        f"a server id is at most {LONGEST_ID} lower-case letters and digits, with single dashes between, "
        f"and begins with a letter{hint}"
    )


def _read_env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name) or "${" in name:
        raise InvalidValue(
            "a variable's name is printable ASCII without spaces and =; the value stands after the colon"
        )
    return name


def _read_header_name(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name) or "${" in name:
        raise InvalidValue("a header's name is letters, digits and dashes; the value stands after the colon")
    if model.is_protocol_header(name):
        raise InvalidValue("this header is set by Colonnade itself; take it away")
    return name


# What an editor is told about them.


def _text_schema(pattern: str | None = None) -> Json:
    """Text as YAML writes it. An editor takes `8080` for a number and `true` for a truth; both are fine."""
    if pattern is None:
        return {"type": ["string", "number", "boolean"]}
    return {"type": "string", "pattern": rf"^(?:{pattern})$|\$\{{"}


def _count_schema(minimum: int, maximum: int) -> WithJsonSchema:
    number = {"type": "integer", "minimum": minimum, "maximum": maximum}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": r"\$\{"}]})


def _words(words: type[StrEnum]) -> WithJsonSchema:
    return WithJsonSchema({"enum": [word.value for word in words]})


_BOOL_SCHEMA: Json = {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\$\{"}]}
_NOT_EMPTY_SCHEMA: Json = {"type": ["string", "number", "boolean"], "minLength": 1}
_ONE_OR_MORE_SCHEMA: Json = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    ]
}
SCALAR_SCHEMA: Json = {"type": ["string", "number", "boolean", "null"]}
SCALARS_SCHEMA: Json = {"type": "array", "items": SCALAR_SCHEMA, "minItems": 1}
_RANGE_SCHEMA: Json = {"type": "array", "items": {"type": ["number", "null"]}, "minItems": 2, "maxItems": 2}
_TOKEN_SCHEMA: Json = _text_schema(f"[!-~]{{{SHORTEST_TOKEN},{LONGEST_TOKEN}}}")
_COMMAND_SCHEMA: Json = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": _text_schema(), "minItems": 1}]
}

Text = Annotated[Expanded, PlainValidator(_read_text), WithJsonSchema(_text_schema())]
Title = Annotated[str, PlainValidator(_read_title), WithJsonSchema(_text_schema())]
HeaderValue = Annotated[Expanded, PlainValidator(_read_header_value), WithJsonSchema(_text_schema())]
Duration = Annotated[float, PlainValidator(_read_duration), WithJsonSchema(_text_schema(_DURATION))]
CallTime = Annotated[Duration, AfterValidator(_within(1e-6, LONGEST_CALL, "above zero and at most 600s"))]
Grace = Annotated[Duration, AfterValidator(_within(0, LONGEST_GRACE, "of at most 60s"))]
Idle = Annotated[Duration, AfterValidator(_within(SHORTEST_IDLE, LONGEST_IDLE, "from 1s to 24h"))]
AskTime = Annotated[Duration, AfterValidator(_within(SHORTEST_ASK, LONGEST_ASK, "from 1s to 1h"))]
Count = Annotated[int, PlainValidator(_whole_number(1, MAX_INSTANCES)), _count_schema(1, MAX_INSTANCES)]
Concurrency = Annotated[int, PlainValidator(_whole_number(1, MAX_CONCURRENT)), _count_schema(1, MAX_CONCURRENT)]
Rate = Annotated[model.Rate, PlainValidator(_read_rate), WithJsonSchema(_text_schema(_RATE))]
Memory = Annotated[int, PlainValidator(_read_memory), WithJsonSchema(_text_schema(_SIZE))]
AuditAge = Annotated[Duration, AfterValidator(_within(SHORTEST_AUDIT, LONGEST_AUDIT, "from 1h to 3650d"))]
AuditSize = Annotated[int, PlainValidator(_read_audit_size), WithJsonSchema(_text_schema(_LARGE_SIZE))]
Size = Annotated[int, PlainValidator(_read_size), WithJsonSchema(_text_schema(_SIZE))]
Verdict = Annotated[model.Verdict, PlainValidator(_one_of(model.Verdict)), _words(model.Verdict)]
Channel = Annotated[model.Channel, PlainValidator(_one_of(model.Channel)), _words(model.Channel)]
AuditArguments = Annotated[AuditDetail, PlainValidator(_one_of(AuditDetail)), _words(AuditDetail)]
Argument = Annotated[str, AfterValidator(_read_argument)]
JsonScalar = Annotated[Any, PlainValidator(_read_json_scalar), WithJsonSchema(SCALAR_SCHEMA)]
JsonScalars = Annotated[tuple[Any, ...], PlainValidator(_read_json_scalars), WithJsonSchema(SCALARS_SCHEMA)]
NonEmptyText = Annotated[str, PlainValidator(_read_part), WithJsonSchema(_NOT_EMPTY_SCHEMA)]
Range = Annotated[tuple[Any, Any], PlainValidator(_read_range), WithJsonSchema(_RANGE_SCHEMA)]
Length = Annotated[int, PlainValidator(_whole_number(0, LONGEST_ARGUMENT)), _count_schema(0, LONGEST_ARGUMENT)]
TypeName = Annotated[str, PlainValidator(_read_type), WithJsonSchema({"enum": [*JsonType, None]})]
Absent = Annotated[bool, PlainValidator(_read_absent), WithJsonSchema({"const": True})]
Paths = Annotated[tuple[str, ...], PlainValidator(_read_paths), WithJsonSchema(_ONE_OR_MORE_SCHEMA)]
Hosts = Annotated[tuple[str, ...], PlainValidator(_read_hosts), WithJsonSchema(_ONE_OR_MORE_SCHEMA)]
Trust = Annotated[model.Trust, PlainValidator(_one_of(model.Trust, _TRUST_HINTS)), _words(model.Trust)]
Protocol = Annotated[model.Protocol, PlainValidator(_one_of(model.Protocol)), _words(model.Protocol)]
Isolation = Annotated[model.Isolation, PlainValidator(_one_of(model.Isolation)), _words(model.Isolation)]
Token = Annotated[Expanded, PlainValidator(_read_token), WithJsonSchema(_TOKEN_SCHEMA)]
TokenName = Annotated[str, AfterValidator(_read_token_name)]
Flag = Annotated[bool, PlainValidator(_read_bool), WithJsonSchema(_BOOL_SCHEMA)]
Command = Annotated[tuple[Expanded, ...], PlainValidator(_read_command), WithJsonSchema(_COMMAND_SCHEMA)]
Url = Annotated[Expanded, PlainValidator(_read_url), WithJsonSchema(_text_schema("https?://[^#]+"))]
Address = Annotated[tuple[str, int], PlainValidator(_read_address), WithJsonSchema(_text_schema(_ADDRESS))]
LoopbackAddress = Annotated[tuple[str, int], PlainValidator(_read_loopback), WithJsonSchema(_text_schema(_ADDRESS))]
EndpointPath = Annotated[str, PlainValidator(_read_endpoint_path), WithJsonSchema(_text_schema(_ENDPOINT_PATH))]
Origin = Annotated[str, PlainValidator(_read_origin), WithJsonSchema(_text_schema(_ORIGIN))]
Host = Annotated[str, PlainValidator(_read_host), WithJsonSchema(_text_schema(_HOST_AND_PORT))]
Pattern = Annotated[str, PlainValidator(_read_pattern), WithJsonSchema({"type": "string", "minLength": 1})]
ServerId = Annotated[str, AfterValidator(_read_id)]
EnvName = Annotated[str, AfterValidator(_read_env_name)]
HeaderName = Annotated[str, AfterValidator(_read_header_name)]
