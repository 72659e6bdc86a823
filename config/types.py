"""The leaf types of the configuration: how each value is written, and what an editor is told about it.

A validator takes a value as `config.read` read it, fills in its references with the `Expander` of the validation
context and raises `InvalidValue` with a sentence that says what was expected. Values that may be secret are never
quoted; others only if they are written in the file itself. Which key holds which type is for `config.model` to say.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_args
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainValidator, ValidationError, ValidationInfo, WithJsonSchema
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from config.address_zones import Zone, is_loopback, zone_of
from config.document import Plain, as_found, is_null, kind_of
from config.naming import ID_PATTERN, LONGEST_ID, make_id
from config.problems import clip, did_you_mean
from config.references import CLIENT_FOLDER, CannotExpandError, Expanded, Expander, Secret

DEFAULT_HOST = "127.0.0.1"
MAX_RATE_COUNT = 1_000_000_000
LONGEST_RATE = 30 * 86400
"""Seconds that a rate may be for."""
SHORTEST_TOKEN = 16
"""Characters of an access token; a shorter one can be guessed."""
SHORTEST_LIMIT = 32
LONGEST_LIMIT = 128
"""Characters of a name of a tool, at most. The shorter one holds a prefix of LONGEST_ID, the separator, a character and
the digest of a cut name; the longer one is the longest name that the protocol knows."""
LONGEST_TOKEN = 4096  # the whole head of a request has 16 KiB
RESERVED_PATHS = ("/status", "/healthz", "/readyz", "/console", "/sse", "/message")
TOKEN_NAME = r"[A-Za-z0-9._@-]{1,64}"
NEW_NAME = rf"[A-Za-z0-9_-]{{1,{LONGEST_LIMIT}}}"
"""A name that a person gives a tool; such a name is never cleaned."""
LONGEST_TEXT = 10_000
"""Characters of a description or of instructions."""

Json = dict[str, Any]
_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_PROTOCOL_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "transfer-encoding",
    }
)


def is_protocol_header(name: str) -> bool:
    """Whether a header of requests to a server is set by the protocol, and so not for the file to set."""
    return name.lower() in _PROTOCOL_HEADERS or name.lower().startswith("mcp-")


# Errors.


class InvalidValue(PydanticCustomError):
    """A value that is not what was expected; the sentence is complete and holds nothing secret."""

    def __new__(cls, text: str) -> InvalidValue:
        return super().__new__(cls, "config", text)


class InvalidKey(PydanticCustomError):
    """A key that may not stand where it does; the sentence is complete and holds nothing secret."""

    def __new__(cls, text: str) -> InvalidKey:
        return super().__new__(cls, "config_key", text)


def expected(what: str, found: str, remedy: str = "") -> InvalidValue:
    text = f"expected {what}, found {found}"
    return InvalidValue(f"{text}; {remedy}" if remedy else text)


def errors_below(problems: Iterable[tuple[tuple[str | int, ...], PydanticCustomError]]) -> None:
    """Raise what is wrong with values taken together at the places below where it shows. Nothing if nothing is."""
    lines = [InitErrorDetails(type=error, loc=path, input=None) for path, error in problems]
    if lines:
        raise ValidationError.from_exception_data("configuration", lines, hide_input=True)


_WRONG_KINDS = {
    "dataclass_type": "a map",
    "dict_type": "a map such as {name: value}",
    "mapping_type": "a map such as {name: value}",
    "tuple_type": "a list such as [one, two]",
}


def sentence(details: ErrorDetails, value: object, keys: Iterable[str] = ()) -> str:
    """The sentence for an error.

    `value` is what was read at its place; only a word in the place of one is quoted. `keys` are those that a map may
    have there.
    """
    what = _WRONG_KINDS.get(details["type"])
    if what is not None:
        known = ", ".join(keys)
        return str(expected(what, kind_of(value), f"known keys: {known}" if known else ""))
    if details["type"] not in ("enum", "literal_error"):
        return details["msg"]
    words = re.findall("'(.*?)'", details["ctx"]["expected"])
    found = as_found(value)
    remedy = did_you_mean(value, words) if isinstance(value, str) else ""
    return str(expected(f"{', '.join(words[:-1])} or {words[-1]}", found, remedy))


# Text, and what is written as text.


def fill_in(value: object, info: ValidationInfo, what: str = "text") -> Expanded:
    """The text of a value with its references filled in. Refuses maps, lists and nothing."""
    if not isinstance(value, str) or is_null(value):
        empty = 'write "" for empty text' if what == "text" else "give a value, or remove it"
        raise expected(what, kind_of(value), empty if is_null(value) else "")
    expander = info.context
    assert isinstance(expander, Expander)
    try:
        return expander.expand(value)
    except CannotExpandError as error:
        raise InvalidValue(str(error)) from None


def _reads(what: str) -> Callable[[Callable[[Expanded], _T]], Callable[[object, ValidationInfo], _T]]:
    """Make a validator of a function that takes the text with its references filled in."""

    def decorate(parse: Callable[[Expanded], _T]) -> Callable[[object, ValidationInfo], _T]:
        return lambda value, info: parse(fill_in(value, info, what))

    return decorate


def _quote(value: Expanded) -> str:
    """The value, if the file itself has it; the text that a reference gave may be secret."""
    return f'"{clip(value.text)}"' if value.literal else "something else from ${...}"


def _fits(pattern: str, what: str, remedy: str) -> BeforeValidator:
    """A validator of text of one form."""

    @_reads(what)
    def read(text: Expanded) -> str:
        if not re.fullmatch(pattern, text.text):
            raise expected(what, _quote(text), remedy)
        return text.text

    return BeforeValidator(read)


@_reads("text")
def _read_secret(text: Expanded) -> Secret:
    return Secret(text.text, filled=text.filled, kept=text.kept)


@_reads("a folder")
def _read_folder(folder: Expanded) -> Path:
    refuse_tilde(folder.text)
    return Path(folder.text)


def _read_start_folder(value: object, info: ValidationInfo) -> Path:
    return Path(CLIENT_FOLDER) if value == CLIENT_FOLDER else _read_folder(value, info)


@_reads("the path of a file")
def _read_file_path(path: Expanded) -> Path:
    refuse_tilde(path.text)
    if not path.text or "\0" in path.text:
        raise expected("the path of a file", _quote(path))
    return Path(path.text)


def _from_folder(path: Path, info: ValidationInfo) -> Path:
    folder: Path = cast(Expander, info.context).folder
    return folder / path


def _read_confined_path(value: object, info: ValidationInfo) -> str:
    """The path of what a confined program may use: not all of the machine, nor what the kernel makes up."""
    written = fill_in(value, info, "a path such as /srv/data")
    text = os.path.expanduser(written.text) if re.match("~(/|$)", written.text) else written.text
    if not text or "\0" in text:
        raise expected("a path such as /srv/data", _quote(written))
    path = with_one_slash(os.path.normpath(str(_from_folder(Path(text), info))))
    if path == "/" or re.match("/(proc|sys|dev)(/|$)", path):
        raise InvalidValue(
            "this is more than a program can be confined to; name folders below /, and none in /proc, /sys or /dev"
        )
    return path


def with_one_slash(path: str) -> str:
    """The path with one slash at its beginning instead of several, of which normpath keeps two; it means the same."""
    return re.sub("^//+", "/", path)


def refuse_tilde(path: str) -> None:
    """Raise for a path that a shell would begin at home, which nothing here does."""
    if path == "~" or path.startswith("~/"):
        raise InvalidValue("a ~ is not expanded; write ${env:HOME}")


@_reads("a name to show")
def _read_title(title: Expanded) -> str:
    if not title.text.strip() or not title.text.isprintable() or len(title.text) > 100:
        raise InvalidValue("expected one line of at most 100 characters to show as the name")
    return title.text


@_reads("the value of a header")
def _read_header_value(header: Expanded) -> Secret:
    if "\n" in header.text or "\r" in header.text:
        raise InvalidValue("a header value may not contain a line break")
    if not header.text.isascii() or not header.text.replace("\t", " ").isprintable():
        raise InvalidValue("a header value may contain only printable ASCII characters")
    if header.text != header.text.strip():
        raise InvalidValue("a header value may not begin or end with a space")
    return Secret(header.text, filled=header.filled, kept=header.kept)


@_reads("a token")
def _read_token(token: Expanded) -> Secret:
    if not re.fullmatch(r"[!-~]*", token.text):
        raise InvalidValue("a token is printable ASCII without spaces and line breaks")
    if not SHORTEST_TOKEN <= len(token.text) <= LONGEST_TOKEN:
        raise InvalidValue(
            f"a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters; `openssl rand -hex 32` makes one"
        )
    return Secret(token.text)


@_reads("a pattern")
def _read_pattern(pattern: Expanded) -> str:
    if not pattern.text:
        raise expected("a pattern", "empty text", "* matches everything")
    return pattern.text


@_reads("text")
def _read_affix(affix: Expanded) -> str:
    if not affix.text:
        raise expected("text", "empty text", "every text begins and ends with that")
    return affix.text


# Durations, rates, sizes, counts, switches.


_DURATION = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_A_DURATION = "a duration such as 500ms, 60s, 5m or 1h"
_RATE = r"[0-9]{1,10}/[0-9]{0,7}(?:s|min|h|day)"
_RATE_SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86400}
_A_RATE = "a rate such as 5/s, 60/min, 100/5min, 20/h or 100000/day"
_RATE_HINTS = {"s": ("sec", "second"), "min": ("m", "minute"), "h": ("hour", "hr"), "day": ("d", "days")}
MOST_MEMORY, MOST_PROCESSES, MOST_OPEN_FILES = 64 * 1024**3, 10_000, 65536
"""The most of a confined program: bytes, a number with threads, and a number of each process."""
_SIZE = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(B|KB|MB|KiB|MiB)"
_LARGE_SIZE = _SIZE.replace("MiB", "MiB|GB|GiB")
_BYTES = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


@_reads(_A_DURATION)
def _read_duration(duration: Expanded) -> float:
    match = re.fullmatch(_DURATION, duration.text)
    if match is None:
        bare = duration.literal and re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", duration.text)
        raise expected(_A_DURATION, _quote(duration), f"give the unit, for instance {duration.text}s" if bare else "")
    return float(match[1]) * _SECONDS[match[2]]


@_reads("a duration from 1s to 24h, or never")
def _read_lingering(duration: Expanded) -> float:
    if duration.text == "never":
        return math.inf
    match = re.fullmatch(_DURATION, duration.text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match is not None else 0
    if not 1 <= seconds <= 24 * 3600:
        raise expected("a duration from 1s to 24h, or never", _quote(duration))
    return seconds


def _within(minimum: float, maximum: float, what: str) -> AfterValidator:
    def check(number: float) -> float:
        if not minimum <= number <= maximum:
            raise InvalidValue(f"expected {what}")
        return number

    return AfterValidator(check)


@dataclass(frozen=True)
class Rate:
    """A largest count within a number of seconds."""

    count: int
    seconds: float


@_reads(_A_RATE)
def _read_rate(rate: Expanded) -> Rate:
    count, _, per = rate.text.partition("/")
    match = re.fullmatch(r"([0-9]{0,7})([a-zA-Z]*)", per)
    if not re.fullmatch(_RATE, rate.text) or match is None:
        wrong = match[2].lower() if match is not None else ""
        unit = next((unit for unit, words in _RATE_HINTS.items() if wrong in words), "")
        remedy = "say per what, for instance 60/min" if count == rate.text else f"write {unit}" if unit else ""
        raise expected(_A_RATE, _quote(rate), remedy)
    seconds = int(match[1] or 1) * _RATE_SECONDS[match[2]]
    if not 1 <= int(count) <= MAX_RATE_COUNT:
        raise InvalidValue(f"expected a rate of 1 to {MAX_RATE_COUNT}; to allow none, write deny under consent")
    if not 1 <= seconds <= LONGEST_RATE:
        raise InvalidValue("expected a rate per 1s to 30day")
    return Rate(int(count), float(seconds))


def _read_size(what: str, pattern: str) -> BeforeValidator:
    """A validator of sizes in the units of a pattern."""

    @_reads(what)
    def read(size: Expanded) -> int:
        match = re.fullmatch(pattern, size.text)
        if match is None:
            bare = size.literal and re.fullmatch(r"[0-9]{1,9}", size.text)
            unit = re.fullmatch(r"[0-9.]+([A-Za-z]+)", size.text)
            near = unit and next((known for known in _BYTES if known.lower() == unit[1].lower()), None)
            remedy = f"give the unit, for instance {size.text}B" if bare else f"write {near}" if near else ""
            raise expected(what, _quote(size), remedy)
        return int(float(match[1]) * _BYTES[match[2]])

    return BeforeValidator(read)


def _whole_number(minimum: int, maximum: int) -> BeforeValidator:
    """A validator of whole numbers, which are decimal even if they begin with 0."""
    what = f"a whole number from {minimum} to {maximum}"

    def read(value: object, info: ValidationInfo) -> int:
        count = fill_in(value, info, what)
        if not re.fullmatch(r"[0-9]{1,10}", count.text) or not minimum <= int(count.text) <= maximum:
            raise expected(what, _quote(count))
        if count.literal and not isinstance(value, Plain):
            raise expected(what, "text in quotes", f"write {int(count.text)} without quotes")
        return int(count.text)

    return BeforeValidator(read)


def _read_flag(value: object, info: ValidationInfo) -> bool:
    what = "true or false"
    flag = fill_in(value, info, what)
    if flag.text in ("true", "false"):
        if flag.literal and not isinstance(value, Plain):
            raise expected(what, "text in quotes", f"write {flag.text} without quotes")
        return flag.text == "true"
    meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    word = flag.text.lower()
    remedy = meant.get(word) or (word if word in ("true", "false") else "")
    raise expected(what, _quote(flag), f"write {remedy}" if remedy and flag.literal else "")


# URLs and addresses.


class Address(NamedTuple):
    """An IP address without brackets, and a port; port 0 is for a free one."""

    host: str
    port: int

    def excludes(self, other: Address) -> bool:
        """Whether nobody can listen at both."""
        one, two = (ipaddress.ip_address(each.host) for each in (self, other))
        covers = one.version == two.version and (one.is_unspecified or two.is_unspecified)
        return 0 != self.port == other.port and (covers or one == two)


_ENDPOINT_PATH = r"(?:/[A-Za-z0-9._~-]+)+"
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_HOST_AND_PORT = rf"{_HOST}(?::[0-9]{{1,5}})?"
_ORIGIN = rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST_AND_PORT}"
_ADDRESS = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
_IMAGE = (
    r"(?:sha256:[0-9a-f]{64}"
    r"|(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/)?[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?)"
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_A_URL = "a URL such as https://example.com/mcp"
_AN_IMAGE = "the name of an image such as ghcr.io/acme/server@sha256:… or localhost/server:1"
_AN_ADDRESS = "an address such as 127.0.0.1:8808"
_A_METADATA_URL = "a public https URL such as https://example.com/colonnade.json"
_SCOPE = r"[\x21\x23-\x5b\x5d-\x7e]{1,200}"  # RFC 6749, 3.3
_AN_ISSUER = "the identifier of an issuer such as https://login.example"
_ISSUER = r"https://[A-Za-z0-9.\-:\[\]]+(?:/[A-Za-z0-9._~%:@!$&'()*+,;=/-]*)?"
_A_RESOURCE = "none, or the resource that the issuer knows, such as https://notes.example/mcp"
_RESOURCE = r"[a-z][a-z0-9+.-]{0,20}:[!-\"$-~]{1,1000}"
_OWN_PARAMETERS = frozenset(
    {
        *("response_type", "response_mode", "client_id", "client_secret", "redirect_uri", "scope", "state", "nonce"),
        *("code", "code_challenge", "code_challenge_method", "code_verifier", "resource", "request", "request_uri"),
        *("registration", "client_assertion", "client_assertion_type", "grant_type", "id_token_hint"),
        *("web_message_uri", "dpop_jkt", "authorization_details"),
    }
)
"""Parameters of an authorization request that no configuration sets: ours, those that replace them or send the answer
elsewhere (RFC 6749, 4.1.1; RFC 9101; OAuth 2.0 Multiple Response Types), and those of extensions that are not
supported."""

_A_PATH = "a path such as /mcp"
_AN_ORIGIN = "an origin such as https://example.com:8443"
_A_HOST = "a host such as example.com or example.com:8808"


@_reads(_A_URL)
def _read_url(url: Expanded) -> Secret:
    if not url.is_complete:  # nothing connects to it
        return Secret(f"https://unset.invalid/{quote(url.text, safe='')}", url.shown.partition("?")[0])
    if not url.text.isprintable() or " " in url.text or "\\" in url.text:
        raise InvalidValue(f"expected {_A_URL}; it may not contain spaces, backslashes or control characters")
    try:
        parts = urlsplit(url.text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidValue(f"expected {_A_URL}; its host or port cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise InvalidValue(f"expected {_A_URL}; only http and https are supported")
    if not host:
        raise InvalidValue(f"expected {_A_URL}; this one has no host")
    if "@" in parts.netloc:
        raise InvalidValue("a URL may not contain a user or password; send them in headers, as Authorization")
    if "#" in url.text:
        raise InvalidValue("a URL may not have a fragment; remove # and everything after it")
    return Secret(url.text, url.shown.partition("?")[0], url.filled, url.kept)


@_reads(_A_METADATA_URL)
def _read_metadata_url(url: Expanded) -> str:
    """A URL at which an issuer finds what there is to know of a client: others must be able to get there."""
    try:
        parts = urlsplit(url.text)
        host = parts.hostname or ""
    except ValueError:
        raise InvalidValue(f"expected {_A_METADATA_URL}; its host or port cannot be read") from None
    if parts.scheme != "https" or not host or not re.fullmatch(r"[!-~]+", url.text):
        raise expected(_A_METADATA_URL, _quote(url))
    if "@" in parts.netloc or "#" in url.text or parts.path in ("", "/"):
        raise InvalidValue(f"expected {_A_METADATA_URL}, with a path, and without a user or a fragment")
    if host == "localhost" or host.endswith(".localhost") or _is_address_inside(host):
        raise InvalidValue("the issuer has to reach this URL, so it cannot be on this machine or in a private network")
    return url.text


def _is_address_inside(host: str) -> bool:
    try:
        return zone_of(host) is not Zone.PUBLIC
    except ValueError:
        return False


@_reads(_A_RESOURCE)
def _read_resource(resource: Expanded) -> str:
    """The resource of a login; empty for `none`."""
    if resource.text == "none":
        return ""
    if not re.fullmatch(_RESOURCE, resource.text):  # RFC 8707, 2
        raise expected(_A_RESOURCE, _quote(resource), "an absolute URI without a fragment")
    return resource.text


def _refuse_own_parameter(name: str) -> str:
    if name.lower() in _OWN_PARAMETERS:
        raise InvalidValue(f"Colonnade sets {name} itself, and the login is not safe otherwise; remove it")
    return name


@_reads("text")
def _read_parameter(text: Expanded) -> str:
    if len(text.text) > 200 or not (text.text.isascii() and text.text.isprintable()):
        raise InvalidValue(
            "expected at most 200 printable ASCII characters; they stand in the address of the login page"
        )
    return text.text


@_reads(_AN_ADDRESS)
def _read_address(address: Expanded) -> Address:
    host, colon, port = address.text.rpartition(":")
    if not re.fullmatch(_ADDRESS, address.text) or int(port) > 65535:
        remedy = "give the port too" if not colon else "put an IPv6 address in brackets" if ":" in host else ""
        raise expected(_AN_ADDRESS, _quote(address), remedy)
    host = host.removeprefix("[").removesuffix("]")
    host = DEFAULT_HOST if host.lower() == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise expected(_AN_ADDRESS, _quote(address), "the host is an IP address or localhost") from None
    return Address(host, int(port))


def _only_loopback(address: Address) -> Address:
    if not is_loopback(address.host):
        raise InvalidValue(
            "the console can approve programs, so only this machine may reach it: expected a loopback address such as "
            f"{DEFAULT_HOST}:0; from elsewhere, use ssh -L"
        )
    return address


@_reads(_A_PATH)
def _read_endpoint_path(path: Expanded) -> str:
    segments = path.text.split("/")[1:]
    if not re.fullmatch(_ENDPOINT_PATH, path.text) or not {".", ".."}.isdisjoint(segments):
        remedy = "it begins with /, does not end with /, and contains only letters, digits, - . _ ~ and single /"
        raise expected(_A_PATH, _quote(path), remedy)
    if f"/{segments[0]}" in RESERVED_PATHS:
        raise expected(_A_PATH, _quote(path), f"/{segments[0]} is used by Colonnade itself")
    return path.text


@_reads(_AN_ORIGIN)
def _read_origin(origin: Expanded) -> str:
    if not re.fullmatch(_ORIGIN, origin.text):
        raise expected(_AN_ORIGIN, _quote(origin), "scheme, host and port only, without a path or a final /")
    scheme, _, rest = origin.text.lower().partition("://")
    # A browser leaves out the default port of the scheme: with it, the entry would match nothing.
    return f"{scheme}://{rest.removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}"


# Keys that the file chooses.


def _id_of(what: str) -> AfterValidator:
    """A validator of names in the form of a server id."""

    def check(name: str) -> str:
        if re.fullmatch(ID_PATTERN, name) and len(name) <= LONGEST_ID:
            return name
        suggestion = make_id(name)
        hint = f', for instance "{suggestion}"' if suggestion else ""
        raise InvalidValue(
            f"{what} is at most {LONGEST_ID} lower-case letters and digits, with single dashes between, "
            f"and begins with a letter{hint}"
        )

    return AfterValidator(check)


def _matches(pattern: str, text: str) -> AfterValidator:
    """A validator of keys without references."""

    def check(name: str) -> str:
        if not re.fullmatch(pattern, name) or "${" in name:
            raise InvalidValue(text)
        return name

    return AfterValidator(check)


def _refuse_protocol_header(name: str) -> str:
    if is_protocol_header(name):
        raise InvalidValue("this header is set by Colonnade itself; remove it")
    return name


def _read_argument(name: str) -> str:
    if not name or "${" in name:
        raise InvalidValue("expected the name of an argument, or a JSON pointer such as /user/name")
    if name.startswith("/") and re.search(r"~(?![01])", name):
        raise InvalidValue("in a JSON pointer ~ is written ~0, and / within a name ~1")
    return name


def pointer(argument: str) -> str:
    """The JSON pointer for an argument as the file names it: by its name, or by a pointer already."""
    return argument if argument.startswith("/") else "/" + argument.replace("~", "~0").replace("/", "~1")


def _read_entry_name(name: str) -> str:
    if not name or "${" in name:
        raise InvalidValue("expected the name as the server has it")
    return name


def _read_token_ref(value: object) -> str:
    what = "the name of a token under listen.auth.tokens"
    if not isinstance(value, str) or is_null(value):
        raise expected(what, kind_of(value))
    if not re.fullmatch(TOKEN_NAME, value):  # perhaps the token itself
        raise expected(what, "something else", "write the token there, and its name here")
    return str(value)


@_reads("a name")
def _read_new_name(name: Expanded) -> str:
    if not re.fullmatch(NEW_NAME, name.text):
        raise expected(f"a name of 1 to {LONGEST_LIMIT} letters, digits, _ and -", _quote(name))
    return name.text


@_reads("text")
def _read_paragraphs(text: Expanded) -> str:
    _refuse_other_bytes(text.text)
    if not text.text.strip() or len(text.text) > LONGEST_TEXT:
        raise InvalidValue(f"expected text of at most {LONGEST_TEXT} characters")
    return text.text


def _refuse_other_bytes(text: str) -> None:
    # Python has other bytes of an environment variable as halves of surrogate pairs.
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise InvalidValue("this holds bytes that are no text in UTF-8")


# Values of arguments. Types are those of JSON: `1` is a number and `"1"` is text.


_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# What YAML readers, some or all, take for a truth, nothing or a number, and JSON does not: who knows what is meant?
_NEARLY_JSON = re.compile(
    r"~|(?i:true|false|null)|[+-]?(?:(?i:\.inf|\.nan|0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+)"
    r"|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)"
)
_NAMED_HOST = re.compile(r"(?!.*\.\.)[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?")
_JSON_WORDS = MappingProxyType({"true": True, "false": False, "null": None})
_A_FOLDER = "an absolute path such as /srv/project"
_A_HOST_NAME = "the name of a host such as api.example.com"

JsonType = Literal["string", "number", "integer", "boolean", "null", "array", "object"]


def _read_number(text: str) -> int | float | None:
    """The number that a text without quotes writes as JSON does; None if it writes none."""
    match = _JSON_NUMBER.fullmatch(text) if isinstance(text, Plain) else None
    if match is None:
        return None
    if len(text) > 300:
        raise InvalidValue("this number has more than 300 digits")
    number = int(match[0]) if match[1] is None and match[2] is None else float(match[0])
    if not math.isfinite(number):
        raise InvalidValue("this number is too large")
    return number


def _read_processors(value: object, info: ValidationInfo) -> float:
    what = "a number of processors from 0.01 to 1000, such as 1.5"
    number = fill_in(value, info, what)
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,2})?", number.text) or not 0.01 <= float(number.text) <= 1000:
        raise expected(what, _quote(number))
    return float(number.text)


def _read_json_scalar(value: object, info: ValidationInfo) -> str | int | float | bool | None:
    what = "text, a number, true, false or null"
    if not isinstance(value, str):
        raise expected(what, kind_of(value))
    if isinstance(value, Plain):
        if value in _JSON_WORDS:
            return _JSON_WORDS[value]
        number = _read_number(value)
        if number is not None:
            return number
        if not value:
            raise expected(what, "nothing", 'write "" for empty text, or null')
        if _NEARLY_JSON.fullmatch(value):
            word = "null" if value == "~" else value.lower()
            meant = f"{word} or " if word in _JSON_WORDS else "a number as JSON writes it, or "
            raise expected(what, f'"{clip(value)}"', f"write {meant}the text in quotes")
        value = str(value)  # text like any other, which may look like nothing no longer
    return fill_in(value, info).text


def _read_json_text(value: object, info: ValidationInfo) -> bytes:
    return json.dumps(_read_json(value, info), ensure_ascii=False, separators=(",", ":")).encode()


def _read_json(value: object, info: ValidationInfo) -> object:
    if isinstance(value, dict):
        return {name: _read_json(each, info) for name, each in value.items()}
    if isinstance(value, list):
        return [_read_json(each, info) for each in value]
    scalar = _read_json_scalar(value, info)
    if isinstance(scalar, str):
        _refuse_other_bytes(scalar)
    return scalar


def _refuse_no_values(value: object) -> object:
    if not isinstance(value, list):
        raise expected("a list of values", kind_of(value))
    if not value:
        raise expected("at least one value", "an empty list", "the rule would never match")
    return value


def _read_range(value: object) -> tuple[int | float | None, int | float | None]:
    what = "a list of two numbers such as [1, 100], null where it is open"
    if not isinstance(value, list):
        raise expected(what, kind_of(value))
    if len(value) != 2:
        raise expected(what, f"a list of {len(value)}")
    low, high = (_read_bound(item, what) for item in value)
    if low is None and high is None:
        raise expected(what, "two open ends", "to match every number, write type: number")
    if low is not None and high is not None and low > high:
        raise expected(what, "the larger one first", "swap them")
    return low, high


def _read_bound(value: object, what: str) -> int | float | None:
    if not isinstance(value, str):
        raise expected(what, f"{kind_of(value)} in it")
    if isinstance(value, Plain) and value == "null":
        return None
    number = _read_number(value)
    if number is None:
        quoted = not isinstance(value, Plain) and _JSON_NUMBER.fullmatch(value)
        raise expected(what, f'"{clip(value)}" in it', "write the number without quotes" if quoted else "")
    return number


def _only_true(flag: bool) -> bool:
    if not flag:
        raise InvalidValue("absent can only be true; for an argument that must be present, write a check of its value")
    return flag


def _one_or_more(what: str) -> BeforeValidator:
    """A validator that takes a single value for a list of one and refuses an empty list."""

    def read(value: object) -> object:
        if value == []:
            raise expected(what, "an empty list", "the rule would never match")
        return value if isinstance(value, list) else [value]

    return BeforeValidator(read)


@_reads(_A_FOLDER)
def _read_absolute_path(path: Expanded) -> str:
    segments = path.text.removesuffix("/").split("/")
    if segments[0] or not path.text:
        raise expected(_A_FOLDER, _quote(path), "a ~ is not expanded; write ${env:HOME}" if segments[0] == "~" else "")
    if not {"", ".", ".."}.isdisjoint(segments[1:]) or "\\" in path.text:
        raise expected(_A_FOLDER, _quote(path), "without . or .. or empty parts, and without a backslash")
    return "/".join(segments) or "/"


@_reads(_A_HOST_NAME)
def _read_host_name(host: Expanded) -> str:
    text = host.text.lower()
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]")).compressed
    except ValueError:
        pass
    if not text.isascii():
        raise expected(_A_HOST_NAME, _quote(host), "write it in its ASCII form, which begins with xn--")
    if not _NAMED_HOST.fullmatch(text) or text.rpartition(".")[2].isdecimal():
        remedy = "each host by its full name; there is no *" if "*" in text else "no scheme, port, path or final dot"
        raise expected(_A_HOST_NAME, _quote(host), remedy)
    return text


_DESTINATION = r"[^/\s]+:[1-9][0-9]{0,4}"
_A_DESTINATION = 'a host with its port such as "api.example.com:443"'


@_reads(_A_DESTINATION)
def _read_destination(destination: Expanded) -> str:
    """A host, all hosts below a name, or an address, with a port; in lower case, and an address in its short form."""
    host, colon, port = destination.text.lower().rpartition(":")
    if not colon or not re.fullmatch("[1-9][0-9]{0,4}", port) or int(port) > 65535:
        raise expected(_A_DESTINATION, _quote(destination), "no scheme and no path; the port is from 1 to 65535")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return f"{_check_destination_name(host, destination)}:{port}"
    if (":" in host) is not host.startswith("["):
        raise expected(_A_DESTINATION, _quote(destination), "put an IPv6 address in brackets")
    if address.is_unspecified or address.is_multicast or "%" in host or getattr(address, "ipv4_mapped", None):
        raise expected(_A_DESTINATION, _quote(destination), "this is no address of one host")
    return f"[{address.compressed}]:{port}" if address.version == 6 else f"{address}:{port}"


def _check_destination_name(host: str, written: Expanded) -> str:
    name = host.removeprefix("*.")
    if not name.isascii():
        raise expected(_A_DESTINATION, _quote(written), "write it in its ASCII form, which begins with xn--")
    if not _NAMED_HOST.fullmatch(name) or name.rpartition(".")[2].isdecimal() or len(name) > 253:
        remedy = "* stands for what is before a name, as in *.example.com" if "*" in name else "no final dot"
        raise expected(_A_DESTINATION, _quote(written), remedy)
    if name != host and "." not in name:
        raise expected(_A_DESTINATION, _quote(written), "a * stands before a name with a dot, as in *.example.com")
    if name.endswith(".localhost"):
        raise expected(_A_DESTINATION, _quote(written), "write localhost")
    return host


def empty_map() -> Mapping[Any, Any]:
    """The default of a map."""
    return MappingProxyType({})


# The descriptions for editors, and the types themselves.


def _text(pattern: str | None = None) -> WithJsonSchema:
    """Text as YAML writes it. An editor takes `8080` for a number and `true` for a truth; both are fine."""
    if pattern is None:
        return WithJsonSchema({"type": ["string", "number", "boolean"]})
    return WithJsonSchema({"type": "string", "pattern": rf"^(?:{pattern})$|\$\{{"})


def _number(minimum: int, maximum: int) -> WithJsonSchema:
    number = {"type": "integer", "minimum": minimum, "maximum": maximum}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": r"\$\{"}]})


_NOT_EMPTY = WithJsonSchema({"type": ["string", "number", "boolean"], "minLength": 1})
_NOT_EMPTY_STRING: Json = {"type": "string", "minLength": 1}
_NOT_EMPTY_STRINGS: Json = {"type": "array", "items": _NOT_EMPTY_STRING, "minItems": 1}
_ONE_OR_MORE_STRINGS = WithJsonSchema({"anyOf": [_NOT_EMPTY_STRING, _NOT_EMPTY_STRINGS]})
_SCALAR: Json = {"type": ["string", "number", "boolean", "null"]}
_RANGE = {"type": "array", "items": {"type": ["number", "null"]}, "minItems": 2, "maxItems": 2}

FrozenMap = Annotated[Mapping[_K, _V], AfterValidator(MappingProxyType)]
EachOnce = Annotated[tuple[_K, ...], AfterValidator(lambda values: tuple(dict.fromkeys(values)))]

SecretText = Annotated[Secret, BeforeValidator(_read_secret), _text()]
Title = Annotated[str, BeforeValidator(_read_title), _text()]
HeaderValue = Annotated[Secret, BeforeValidator(_read_header_value), _text()]
Token = Annotated[Secret, BeforeValidator(_read_token), _text(f"[!-~]{{{SHORTEST_TOKEN},{LONGEST_TOKEN}}}")]
StartFolder = Annotated[Path, BeforeValidator(_read_start_folder), _text()]
FilePath = Annotated[Path, BeforeValidator(_read_file_path), AfterValidator(_from_folder), _NOT_EMPTY]
ConfinedPath = Annotated[str, BeforeValidator(_read_confined_path), _NOT_EMPTY]
DestinationText = Annotated[str, BeforeValidator(_read_destination), _text(_DESTINATION)]
ConfinedDescriptors = Annotated[int, _whole_number(16, MOST_OPEN_FILES), _number(16, MOST_OPEN_FILES)]
ConfinedProcesses = Annotated[int, _whole_number(1, MOST_PROCESSES), _number(1, MOST_PROCESSES)]
ConfinedProcessors = Annotated[
    float,
    BeforeValidator(_read_processors),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0.01, "maximum": 1000}, {"type": "string"}]}),
]
ImageName = Annotated[str, _fits(_IMAGE, _AN_IMAGE, "options and transports have no place there"), _text(_IMAGE)]
Pattern = Annotated[str, BeforeValidator(_read_pattern), WithJsonSchema(_NOT_EMPTY_STRING)]
Affix = Annotated[str, BeforeValidator(_read_affix), _NOT_EMPTY]
Duration = Annotated[float, BeforeValidator(_read_duration), _text(_DURATION)]
StartTime = Annotated[Duration, _within(1e-6, 600, "a duration above zero and at most 600s")]
CallTime = Annotated[Duration, _within(1e-6, 24 * 3600, "a duration above zero and at most 24h")]
Grace = Annotated[Duration, _within(0, 60, "a duration of at most 60s")]
DrainTime = Annotated[Duration, _within(0, 600, "a duration of at most 10m")]
Idle = Annotated[Duration, _within(1, 24 * 3600, "a duration from 1s to 24h")]
Lingering = Annotated[float, BeforeValidator(_read_lingering), _text(f"never|{_DURATION}")]
AuditAge = Annotated[Duration, _within(3600, 3650 * 86400, "a duration from 1h to 3650d")]
AskTime = Annotated[Duration, _within(1, 3600, "a duration from 1s to 1h")]
RateText = Annotated[Rate, BeforeValidator(_read_rate), _text(_RATE)]
Size = Annotated[int, _read_size("a size such as 64KiB or 1MiB", _SIZE), _text(_SIZE)]
LargeSize = Annotated[int, _read_size("a size such as 512MiB or 1GiB", _LARGE_SIZE), _text(_LARGE_SIZE)]
MessageSize = Annotated[Size, _within(1024, 64 * 1024**2, "a size from 1KiB to 64MiB")]
Memory = Annotated[Size, _within(32 * 1024**2, 64 * 1024**3, "a size from 32MiB to 65536MiB")]
ConfinedMemory = Annotated[LargeSize, _within(64 * 1024**2, MOST_MEMORY, "a size from 64MiB to 64GiB")]
ConfinedTemporary = Annotated[LargeSize, _within(1024**2, MOST_MEMORY, "a size from 1MiB to 64GiB")]
HistorySize = Annotated[LargeSize, _within(16 * 1024**2, 1024**4, "a size from 16MiB to 1024GiB")]
AuditSize = Annotated[LargeSize, _within(128 * 1024**2, 1024**4, "a size from 128MiB to 1024GiB")]
Instances = Annotated[int, _whole_number(1, 1000), _number(1, 1000)]
Places = Annotated[int, _whole_number(16, 100_000), _number(16, 100_000)]
StreamPlaces = Annotated[int, _whole_number(16, 80_000), _number(16, 80_000)]
Concurrency = Annotated[int, _whole_number(1, 1000), _number(1, 1000)]
Length = Annotated[int, _whole_number(0, 10**9), _number(0, 10**9)]
NameLength = Annotated[int, _whole_number(SHORTEST_LIMIT, LONGEST_LIMIT), _number(SHORTEST_LIMIT, LONGEST_LIMIT)]
Flag = Annotated[
    bool,
    BeforeValidator(_read_flag),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\$\{"}]}),
]
Url = Annotated[Secret, BeforeValidator(_read_url), _text("https?://[^#]+")]
AddressText = Annotated[Address, BeforeValidator(_read_address), _text(_ADDRESS)]
LoopbackAddress = Annotated[AddressText, AfterValidator(_only_loopback)]
EndpointPath = Annotated[str, BeforeValidator(_read_endpoint_path), _text(_ENDPOINT_PATH)]
Origin = Annotated[str, BeforeValidator(_read_origin), _text(_ORIGIN)]
Host = Annotated[
    str,
    _fits(_HOST_AND_PORT, _A_HOST, "no scheme and no path; put an IPv6 address in brackets"),
    AfterValidator(str.lower),
    _text(_HOST_AND_PORT),
]

MetadataUrl = Annotated[str, BeforeValidator(_read_metadata_url), _text("https://[^#]+")]
Scope = Annotated[
    str, _fits(_SCOPE, "a scope such as files:read", "one scope is a word of printable ASCII"), _NOT_EMPTY
]
IssuerName = Annotated[str, _fits(_ISSUER, _AN_ISSUER, "without a user, a query and a fragment"), _text(_ISSUER)]
ResourceName = Annotated[str, BeforeValidator(_read_resource), _text(f"none|{_RESOURCE}")]
ParameterName = Annotated[
    str,
    _matches(
        "[A-Za-z][A-Za-z0-9_.-]{0,63}", "a parameter's name is letters, digits and _ . -; its value follows the colon"
    ),
    AfterValidator(_refuse_own_parameter),
]
ParameterValue = Annotated[str, BeforeValidator(_read_parameter), _text()]
Port = Annotated[int, _whole_number(1, 65535), _number(1, 65535)]

ServerId = Annotated[str, _id_of("a server id")]
ViewName = Annotated[str, _id_of("a view's name")]
FleetName = Annotated[str, _id_of("a fleet's name")]
NamePrefix = Annotated[
    str,
    _id_of("a server id"),
    WithJsonSchema({"type": "string", "pattern": f"^{ID_PATTERN}$", "maxLength": LONGEST_ID}),
]
TokenName = Annotated[
    str, _matches(TOKEN_NAME, "a token's name is 1 to 64 letters, digits and . _ @ -; the token follows the colon")
]
VariableName = Annotated[str, _matches("[!-<>-~]+", "a variable's name is printable ASCII without spaces and =")]
EnvName = Annotated[
    str,
    _matches("[!-<>-~]+", "a variable's name is printable ASCII without spaces and =; its value follows the colon"),
]
HeaderName = Annotated[
    str,
    _matches(
        r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "a header's name is letters, digits and dashes; its value follows the colon"
    ),
    AfterValidator(_refuse_protocol_header),
]
Argument = Annotated[str, AfterValidator(_read_argument)]
CallerName = Annotated[
    str,
    _matches(TOKEN_NAME, "a caller's name is 1 to 64 letters, digits and . _ @ -"),
]
TokenRef = Annotated[
    str, PlainValidator(_read_token_ref), WithJsonSchema({"type": "string", "pattern": f"^{TOKEN_NAME}$"})
]
EntryName = Annotated[str, AfterValidator(_read_entry_name)]
NewName = Annotated[str, BeforeValidator(_read_new_name), _text(NEW_NAME)]
Paragraphs = Annotated[str, BeforeValidator(_read_paragraphs), _NOT_EMPTY]
TokenCount = Annotated[int, _whole_number(0, 10**9), _number(0, 10**9)]

JsonText = Annotated[bytes, PlainValidator(_read_json_text), WithJsonSchema({})]

JsonScalar = Annotated[Any, PlainValidator(_read_json_scalar), WithJsonSchema(_SCALAR)]
JsonScalars = Annotated[
    tuple[JsonScalar, ...],
    BeforeValidator(_refuse_no_values),
    WithJsonSchema({"type": "array", "items": _SCALAR, "minItems": 1}),
]
Range = Annotated[tuple[Any, Any], PlainValidator(_read_range), WithJsonSchema(_RANGE)]
# The word null is a type here, although YAML reads nothing from it.
TypeName = Annotated[
    JsonType,
    BeforeValidator(lambda value: "null" if value == "null" else value),
    WithJsonSchema({"enum": [*get_args(JsonType), None]}),
]
Absent = Annotated[Flag, AfterValidator(_only_true), WithJsonSchema({"const": True})]
AbsolutePaths = Annotated[
    EachOnce[Annotated[str, BeforeValidator(_read_absolute_path)]], _one_or_more(_A_FOLDER), _ONE_OR_MORE_STRINGS
]
HostNames = Annotated[
    EachOnce[Annotated[str, BeforeValidator(_read_host_name)]], _one_or_more(_A_HOST_NAME), _ONE_OR_MORE_STRINGS
]
