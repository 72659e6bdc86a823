"""HTTP headers of stateless requests that repeat parts of the body, so that intermediaries can route requests.

Which headers a request needs, how values are encoded, and when a header and the body disagree. Independent of an HTTP
library: headers are read through a function and written as pairs. Source: 2026-07-28, "Streamable HTTP", for the
standard headers and for those of tool parameters.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from msgspec import Raw, Struct

from host.errors import HeaderMismatch, InvalidParams
from host.jsonrpc.raw import is_object, members_if_object, pick, string
from host.jsonrpc.strict import count_tokens
from host.protocol.json_schema import SUBSCHEMA, SUBSCHEMA_LISTS, SUBSCHEMA_MAPS
from host.protocol.methods import TARGETED, required_text
from host.protocol.versions import Revision

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
PARAM_PREFIX = "mcp-param-"

ANNOTATION = "x-mcp-header"
"""Keyword of a property in a tool's `inputSchema` whose value is repeated in a header."""

Header = Callable[[str], Sequence[str]]
"""Returns all values of the header with this name (in lower case); none if it is missing."""

_VERSION, _METHOD, _NAME, _PARAM = "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Param-"
_NAMED = {each.name: each.target for each in TARGETED.values()} | dict.fromkeys(
    ("tasks/get", "tasks/update", "tasks/cancel"), "taskId"
)
_KINDS = ("string", "integer", "boolean")

_BLANK = " \t"
_OPENS, _CLOSES = "=?base64?", "?="
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, section 5.6.2
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_EXACT = 2**53 - 1
"""The largest integer that every JSON library reads exactly."""

_MAX_SLOW_BYTES = 16 * 1024
_MAX_SLOW_TOKENS = 1000
"""Largest object that is decoded whole to find an argument in it, which is necessary if it has a lone surrogate."""

_CACHED_NAMES, _CACHED_NAME = 1024, 256
"""The headers of requests that are kept, and the characters of a name in them."""
_CACHED_SCHEMAS = 256
_CACHED_BYTES = 65_536


# Encoding of values


def encode_header(text: str) -> str:
    """Encode text as a value of `Mcp-Name` or `Mcp-Param-*`: unchanged if it is plain ASCII, else in base64.

    Text that looks like base64 in its marks is encoded too, so that decoding gives it back.

    Raises:
        ValueError: the text has a lone surrogate.
    """
    plain = text.isascii() and text.isprintable() and text == text.strip(_BLANK)
    if plain and not (text.startswith(_OPENS) and text.endswith(_CLOSES)):
        return text
    return f"{_OPENS}{b64encode(text.encode()).decode()}{_CLOSES}"


_encode_header_once = lru_cache(maxsize=_CACHED_NAMES)(encode_header)


def decode_header(header: str) -> str:
    """Decode a value of `Mcp-Name` or `Mcp-Param-*`.

    Raises:
        ValueError: the value has characters that must be in base64, or base64 that is invalid, not canonical, or not
            UTF-8.
    """
    text = header.strip(_BLANK)  # RFC 9110, section 5.5: white space around a value does not belong to it
    if not (text.isascii() and text.isprintable()):
        raise ValueError("a header value that is not plain ASCII must be in base64")
    # A value with only one of the marks, or with both sharing one question mark, is plain text.
    if len(text) < len(_OPENS + _CLOSES) or not (text.startswith(_OPENS) and text.endswith(_CLOSES)):
        return text
    payload = text[len(_OPENS) : -len(_CLOSES)]
    decoded = b64decode(payload, validate=True)
    # An intermediary compares text: two encodings of one value would be two values to it.
    if b64encode(decoded).decode() != payload:
        raise ValueError("the base64 is not canonical")
    return decoded.decode()


# Annotations of a tool's parameters


class ParamHeader(Struct, frozen=True):
    """A parameter of a tool that is repeated in a header."""

    header: str
    """The full name of the header, in lower case."""
    spelling: str
    """The full name of the header, as the server spells it."""
    path: tuple[str, ...]
    """The names of the properties that lead to the parameter, from the root of the arguments."""
    kind: str
    """Type of the parameter: "string", "integer" or "boolean"."""


def param_headers_of(schema: Raw) -> tuple[ParamHeader, ...]:
    """The annotated parameters of an `inputSchema`. Cheap for a schema without annotations.

    Raises:
        ValueError: an annotation is invalid, which makes the tool unusable over HTTP; the text says which one and why.
    """
    text = bytes(schema)
    if ANNOTATION.encode() not in text and b"\\u" not in text:  # any letter may be written as an escape
        return ()
    return _read(text) if len(text) > _CACHED_BYTES else _read_once(text)


def _read(text: bytes) -> tuple[ParamHeader, ...]:
    found: dict[str, ParamHeader] = {}
    for path, annotated in _annotated(_decoded(text)):
        param_header = _param_header(path, annotated)
        if param_header.header in found:
            other = found[param_header.header].path
            raise ValueError(f"{ANNOTATION} of {_path_text(path)} names the same header as that of {_path_text(other)}")
        found[param_header.header] = param_header
    return tuple(found.values())


_read_once = lru_cache(maxsize=_CACHED_SCHEMAS)(_read)


def _decoded(text: bytes) -> object:
    try:
        return json.loads(text, parse_int=_no_number, parse_float=_no_number)
    except RecursionError:
        raise ValueError("the schema is nested too deep to be searched for annotations") from None


def _no_number(text: str) -> None:
    """Discard a number: annotations have none, and a number may have any size."""


_Path = tuple[str, ...] | None
"""The properties that lead to a schema; None if it is reached through any other keyword."""


def _annotated(root: object) -> Iterator[tuple[_Path, dict[str, object]]]:
    """Every schema in `root` with an annotation. A property that is named like the annotation does not count, nor does
    anything inside `default`, `const`, `enum` and `examples`."""
    waiting: deque[tuple[_Path, object]] = deque([((), root)])
    while waiting:
        path, schema = waiting.popleft()
        if not isinstance(schema, dict):
            continue
        if ANNOTATION in schema:
            yield path, schema
        for keyword, inner in schema.items():
            waiting.extend(_inside(path, keyword, inner))


def _inside(path: _Path, keyword: str, inner: object) -> Iterator[tuple[_Path, object]]:
    if isinstance(inner, dict) and keyword in SUBSCHEMA_MAPS:
        for name, each in inner.items():
            yield ((*path, name) if path is not None and keyword == "properties" else None), each
    elif isinstance(inner, dict) and keyword in SUBSCHEMA:
        yield None, inner
    elif isinstance(inner, list) and keyword in SUBSCHEMA_LISTS:
        yield from ((None, each) for each in inner)


def _param_header(path: _Path, annotated: dict[str, object]) -> ParamHeader:
    if not path:
        raise ValueError(f"{ANNOTATION} is only permitted on a property that is reached through `properties` alone")
    name, kind = annotated[ANNOTATION], annotated.get("type")
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError(f"{ANNOTATION} of {_path_text(path)} is not a valid name of a header")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{ANNOTATION} of {_path_text(path)} is not on a string, an integer or a boolean")
    return ParamHeader(PARAM_PREFIX + name.lower(), _PARAM + name, path, kind)


def _path_text(path: _Path) -> str:
    return f"{'.'.join(path or ())[:80]!a}"


# Our requests


def name_of(method: str, params: Mapping[str, Raw]) -> str | None:
    """The value of `Mcp-Name` for a request; None for methods without this header.

    Raises:
        InvalidParams: the member that the header repeats is missing or not a string.
    """
    member = _NAMED.get(method)
    return None if member is None else required_text(params, member)


def headers_for(
    method: str, params: Mapping[str, Raw], revision: Revision, param_headers: Sequence[ParamHeader] = ()
) -> tuple[tuple[str, str], ...]:
    """The headers of a request to a server.

    Args:
        param_headers: the annotated parameters of the tool that the request calls.

    Raises:
        InvalidParams: a value that a header must repeat is missing, cannot be encoded, or is in an object with a lone
            surrogate that is too large to be decoded.
    """
    name = name_of(method, params)
    standard = _standard_headers if name is not None and len(name) > _CACHED_NAME else _standard_headers_once
    made = standard(revision.name, method, name)
    for param_header, argument in _arguments(params, param_headers) if param_headers else ():
        text = None if argument is None else _header_text(argument, param_header)
        if text is not None:
            made += ((param_header.spelling, encode_header(text)),)
    return made


def _standard_headers(version: str, method: str, name: str | None) -> tuple[tuple[str, str], ...]:
    made = (_VERSION, version), (_METHOD, method)
    return made if name is None else (*made, (_NAME, encode_header(name)))


_standard_headers_once = lru_cache(maxsize=_CACHED_NAMES)(_standard_headers)


# Clients' requests


def check_version(version: str, header: Header) -> None:
    """Compare `MCP-Protocol-Version` with the `version` in the body.

    Raises:
        HeaderMismatch: the header is missing, repeated, or different.
    """
    if header(VERSION_HEADER) != [version] and _single_value(_VERSION, header) != version:
        raise _mismatch(_VERSION)


def check(method: str, params: Mapping[str, Raw], header: Header) -> None:
    """Compare `Mcp-Method` and `Mcp-Name` with the body.

    Raises:
        HeaderMismatch: a header is missing, repeated, malformed, or different.
        InvalidParams: the body lacks the name that the method needs.
    """
    if header(METHOD_HEADER) != [method] and _single_value(_METHOD, header) != method:
        raise _mismatch(_METHOD)
    name = name_of(method, params)
    if name is None:
        return
    encode = encode_header if len(name) > _CACHED_NAME else _encode_header_once
    if header(NAME_HEADER) == [encode(name)]:
        return
    if _decoded_header(_NAME, _single_value(_NAME, header)) != name:
        raise _mismatch(_NAME)


def check_params(params: Mapping[str, Raw], param_headers: Sequence[ParamHeader], header: Header) -> None:
    """Compare the `Mcp-Param-*` headers of a tool call with its arguments. Headers without an annotation are ignored.
    Arguments that are arrays or objects have no header; the server decides whether they are valid.

    Raises:
        HeaderMismatch: an argument has no header, or a header has no argument, is repeated, malformed, or different.
        InvalidParams: an argument with a header cannot be encoded, or is in an object with a lone surrogate that is too
            large to be decoded.
    """
    for param_header, argument in _arguments(params, param_headers):
        expected = None if argument is None else _header_text(argument, param_header)
        if expected is not None:
            value = _decoded_header(param_header.spelling, _single_value(param_header.spelling, header))
            if not _equal_values(value, expected, param_header.kind):
                raise _mismatch(param_header.spelling)
        elif header(param_header.header):
            raise HeaderMismatch(f"the header {param_header.spelling} has no argument in the body")


def _single_value(spelling: str, header: Header) -> str:
    values = header(spelling.lower())
    if not values:
        raise HeaderMismatch(f"the header {spelling} is missing")
    if len(values) > 1:
        raise HeaderMismatch(f"the header {spelling} is repeated")
    return values[0].strip(_BLANK)


def _decoded_header(spelling: str, value: str) -> str:
    try:
        return decode_header(value)
    except ValueError:
        raise HeaderMismatch(f"the header {spelling} is malformed") from None


def _mismatch(spelling: str) -> HeaderMismatch:
    return HeaderMismatch(f"the header {spelling} differs from the body")


# Arguments


def _arguments(
    params: Mapping[str, Raw], param_headers: Sequence[ParamHeader]
) -> Iterator[tuple[ParamHeader, Raw | None]]:
    """Each parameter with the argument at its path, or None if there is none. Each object is decoded once."""
    wanted: dict[tuple[str, ...], set[str]] = {}
    for param_header in param_headers:
        for depth, name in enumerate(param_header.path):
            wanted.setdefault(param_header.path[:depth], set()).add(name)
    opened: dict[tuple[str, ...], dict[str, Raw]] = {}
    for param_header in param_headers:
        found: Mapping[str, Raw] = params
        for depth, name in enumerate(("arguments", *param_header.path[:-1])):
            outer = param_header.path[:depth]
            if outer not in opened:
                opened[outer] = _opened(found.get(name), frozenset(wanted[outer]))
            found = opened[outer]
        yield param_header, found.get(param_header.path[-1])


def _opened(raw: Raw | None, names: frozenset[str]) -> dict[str, Raw]:
    """The members with these names; none if `raw` is missing or not an object.

    Raises:
        InvalidParams: the object has a lone surrogate and is too large to be decoded the slow way.
    """
    if raw is None:
        return {}
    try:
        return pick(raw, names)
    except ValueError:  # perhaps only because of a lone surrogate
        if is_object(raw) and (len(raw) > _MAX_SLOW_BYTES or count_tokens(bytes(raw)) > _MAX_SLOW_TOKENS):
            raise InvalidParams(
                f"an object with arguments that headers repeat has a lone surrogate and more than {_MAX_SLOW_BYTES}"
                f" bytes or {_MAX_SLOW_TOKENS} members"
            ) from None
        return members_if_object(raw)


def _header_text(argument: Raw, param_header: ParamHeader) -> str | None:
    """The header value for an argument before encoding; None for null, arrays and objects, which have no header."""
    text = bytes(argument).strip(b" \t\r\n")
    if text[:1] == b'"':
        try:
            return string(text)
        except ValueError:
            raise InvalidParams(
                f"the argument {_path_text(param_header.path)} cannot be repeated in a header: it is not valid Unicode"
            ) from None
    if text in (b"true", b"false"):
        return text.decode()
    if text[:1] not in (b"n", b"[", b"{"):
        return _integer(text.decode()) if param_header.kind == "integer" else text.decode()
    return None


def _integer(text: str) -> str:
    """The number without fraction and exponent if it is whole, for servers that read only plain integers."""
    number = _number(text)
    whole = number is not None and -_EXACT <= number <= _EXACT and number == int(number)
    return str(int(number)) if whole and number is not None else text


def _equal_values(header_value: str, expected: str, kind: str) -> bool:
    if header_value == expected:
        return True
    # Integers are compared as numbers (2026-07-28, "Streamable HTTP / Server Validation"), but only plain decimals:
    # not every intermediary reads an exponent as a number.
    number = _number(header_value) if kind == "integer" and _DECIMAL.fullmatch(header_value) else None
    return number is not None and number == _number(expected)


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that is too large
        return None
