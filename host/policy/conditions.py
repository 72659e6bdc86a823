"""Conditions on the arguments of a call. A condition holds, does not hold, or is unknown.

It is unknown if the argument is missing, has another type, or is written so that servers may read it in more than one
way. An allow rule applies only if its conditions hold; an ask or deny rule applies unless one of its conditions does
not hold. A text that a server may parse as JSON (`argument_names.hide_parsed`) is such a value too.

Types are JSON's and are not converted: 1 is neither "1" nor true, but equals 1.0. A number is compared only if every
reader takes its text for the same number (`host/jsonrpc/numbers.py`). A path is compared as text; links are
not followed. It is read as written, percent-decoded once, and folded as a file system may fold it that ignores case or
equates similar characters; a condition on it holds only if all three readings agree. A host must be one that every URL
parser finds in the text; otherwise the condition is unknown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple, cast
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from config import Check, Condition
from config.address_zones import is_loopback, readings
from config.globs import MAX_LENGTH, Globs
from host.jsonrpc.numbers import compare, is_comparable, read_float
from host.jsonrpc.raw import (
    DECODE_ERRORS,
    has_only,
    is_array,
    is_object,
    is_string,
    items,
    may_hold_surrogates,
    members,
    pick,
)
from host.jsonrpc.strict import LIGHT_BYTES
from host.policy.file_names import UNSEEN, is_odd, loosened
from host.protocol.schema_value import type_of

UNREADABLE: Final = object()
"""Value for arguments that could not be decoded; every condition on them is unknown."""

LONGEST_DECODED = 16 * 1024
"""Bytes of arguments that are decoded as a whole."""

_MISSING: Final = object()
_INDEX = re.compile(r"0|[1-9][0-9]*")
_ESCAPE = re.compile(r"%(?:u[0-9A-Fa-f]{4}|[0-9A-Fa-f]{2})")
_WIDE_ESCAPE = re.compile(r"%u[0-9A-Fa-f]{4}")

_URL = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*)://)?([^/?#]*)(.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,2})(?:\.(?:0|[1-9][0-9]{0,2})){3}")
_WEB_SCHEMES = ("http", "https", "ws", "wss", "ftp")

_TEXT_OR_NULL = frozenset((str, type(None)))

Host = str | IPv4Address | IPv6Address
Names = tuple[str, ...]
"""Names of folders along a path, from the root."""


class SchemeAndHost(NamedTuple):
    """The parts of a URL on which all parsers agree: scheme (lower-case; empty for a host alone) and host."""

    scheme: str
    host: Host

    def is_loopback(self) -> bool:
        """Whether the host is this machine."""
        return self.host == "localhost" if isinstance(self.host, str) else is_loopback(self.host)


class Roots(NamedTuple):
    """The folders of a condition, as written and folded; None for one that is no path."""

    exact: frozenset[Names | None]
    folded: frozenset[Names | None]
    depth: int
    """Names in the longest one."""


class LongArguments:
    """Arguments that are too long to be decoded on the event loop. Only the members that conditions name are decoded;
    of an array or object only the type and the number of items."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._found: dict[tuple[str, ...], object] = {}
        self.is_parsed: Callable[[str, str], bool] = lambda name, text: False
        """Whether a server may parse the text of the argument of this name."""
        self.members = _members_of(raw)
        """The members, undecoded, if they are decoded at all: those of longer arguments may be very many."""

    def at(self, tokens: tuple[str, ...]) -> object:
        """The value at a JSON pointer."""
        if tokens not in self._found:
            try:
                found = self._look_up(tokens)
            except ValueError:
                found = UNREADABLE
            if len(tokens) == 1 and isinstance(found, str) and self.is_parsed(tokens[0], found):
                found = UNREADABLE
            self._found[tokens] = found
        return self._found[tokens]

    def are_within(self, names: frozenset[str]) -> bool:
        """Whether there are no other arguments than these."""
        return has_only(self._raw, names) if self.members is None else self.members.keys() <= names

    def _look_up(self, tokens: tuple[str, ...]) -> object:
        raw = self._raw
        if not is_object(raw):
            return UNREADABLE
        for depth, token in enumerate(tokens):
            if is_object(raw):
                at_root = self.members if depth == 0 else None
                found = pick(raw, frozenset((token,))) if at_root is None else at_root
                if token not in found:
                    return _MISSING
                raw = found[token]
            else:
                index = int(token) if _INDEX.fullmatch(token) and len(token) < 10 else -1
                if depth == 1 and is_string(raw) and self.at(tokens[:1]) is UNREADABLE:
                    return UNREADABLE
                inner = items(raw) if index >= 0 and is_array(raw) else []
                if not 0 <= index < len(inner):
                    return _MISSING
                raw = inner[index]
        if is_object(raw):
            return {}
        if is_array(raw):
            return [None] * len(items(raw))
        try:
            return _value.decode(raw)
        except DECODE_ERRORS:
            return UNREADABLE


def _members_of(raw: Raw) -> Mapping[str, Raw] | None:
    if len(raw) > LIGHT_BYTES or not is_object(raw) or may_hold_surrogates(bytes(raw)):
        return None
    try:
        return members(raw)
    except ValueError:
        return None


_value = msgspec.json.Decoder(float_hook=read_float)


def decode_arguments(given: Raw) -> object:
    """The decoded arguments of a request, for conditions; UNREADABLE if they cannot be decoded."""
    if len(given) > LONGEST_DECODED:
        return LongArguments(given)
    try:
        return _value.decode(given)
    except DECODE_ERRORS:
        return UNREADABLE


def conditions_hold(conditions: tuple[Condition, ...], arguments: object, *, closed: bool = False) -> bool | None:
    """Whether all conditions hold: True, False, or None if none is false and some are unknown.

    `arguments` is a decoded JSON object, or None if the request has none; with any other value all conditions are
    unknown. With `closed`, arguments that no condition names make the result unknown.
    """
    given = {} if arguments is None else arguments
    if closed and not _within(conditions, given):
        return None
    holds: bool | None = True
    for condition in conditions:
        value = argument_at(condition.path, given)
        for check in condition.checks:
            answer = _test(check, value)
            if answer is False:
                return False
            if answer is None:
                holds = None
    return holds


def explain_conditions(conditions: tuple[Condition, ...], arguments: object, *, closed: bool = False) -> str:
    """The result of `conditions_hold` as a clause: 'owner: in does not hold'. It contains no values of the
    arguments."""
    given = {} if arguments is None else arguments
    if not isinstance(given, dict | LongArguments):
        return "the arguments cannot be read"
    if closed and not _within(conditions, given):
        return "there are other arguments than those named"
    false: list[str] = []
    unknown: list[str] = []
    for condition in conditions:
        value = argument_at(condition.path, given)
        for check in condition.checks:
            answer = _test(check, value)
            if answer is False:
                false.append(f"{display_path(condition.path)}: {check.op} does not hold")
            elif answer is None and value is _MISSING:
                unknown.append(f"{display_path(condition.path)} is missing")
            elif answer is None:
                unknown.append(f"{display_path(condition.path)}: {check.op} cannot be told of this value")
    return "; ".join(dict.fromkeys(false or unknown)) or "all conditions hold"


def display_path(path: str) -> str:
    """A JSON pointer as in the configuration file: the bare name for a top-level argument."""
    name = path.removeprefix("/")
    return path if not name or name == path or "/" in name or "~" in name else name


def parse_address(text: str) -> SchemeAndHost | None:
    """The address in a URL, or in `host[:port]`; None if there is none or parsers may disagree about it.

    Parsers may disagree if the text has a user name, escapes, backslashes, blanks, invisible characters, letters beyond
    ASCII before the path, an IPv4 address that is not four decimal numbers, or a scheme other than the web's.
    """
    if len(text) > MAX_LENGTH or "\\" in text or " " in text or not text.isprintable():
        return None
    scheme, authority, rest = _URL.fullmatch(text).groups("")  # type: ignore[union-attr]  # the pattern matches any text
    if (scheme and scheme.lower() not in _WEB_SCHEMES) or (rest and not scheme):
        return None
    if rest[:1] in ("?", "#") and "@" in rest:  # some parsers end the user name here
        return None
    found = _AUTHORITY.fullmatch(authority)
    if found is None or int(found[2] or 0) > 0xFFFF:
        return None
    host = _host(found[1])
    return None if host is None else SchemeAndHost(scheme.lower(), host)


# Looking up


def argument_at(path: str, arguments: object) -> object:
    """The value at a JSON pointer; UNREADABLE if the arguments are not an object, and inside a value that is
    UNREADABLE."""
    if isinstance(arguments, LongArguments):
        return arguments.at(pointer_tokens(path))
    if not isinstance(arguments, dict):
        return UNREADABLE
    found: object = arguments
    for token in pointer_tokens(path):
        if isinstance(found, dict) and token in found:
            found = found[token]
        elif isinstance(found, list) and _INDEX.fullmatch(token) and len(token) < 10 and int(token) < len(found):
            found = found[int(token)]
        else:
            return UNREADABLE if found is UNREADABLE else _MISSING
    return found


@lru_cache(maxsize=4096)
def pointer_tokens(path: str) -> tuple[str, ...]:
    """The names that a JSON pointer leads along; a path without a slash is one name."""
    if not path.startswith("/"):
        return (path,) if path else ()
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in path[1:].split("/"))


def _within(conditions: tuple[Condition, ...], arguments: object) -> bool:
    named = frozenset(tokens[0] for condition in conditions if (tokens := pointer_tokens(condition.path)))
    if isinstance(arguments, LongArguments):
        return arguments.are_within(named)
    if not isinstance(arguments, dict):
        return False
    return arguments.keys() <= named


# Three answers


def _unanimous(answers: Iterable[bool | None]) -> bool | None:
    """Combined result of all checks: False if one is false, None if one is unknown."""
    found = set(answers)
    return found.pop() if len(found) == 1 else None


# Tests


def _test(check: Check, value: object) -> bool | None:
    if value is UNREADABLE:
        return None
    if check.op == "absent":
        return value is _MISSING
    test = _TESTS.get(check.op)
    return None if value is _MISSING or test is None else test(check.value, value)


def _eq(wanted: object, value: object) -> bool | None:
    if wanted is None:
        return value is None  # no server takes any other value for null
    if type_of(value) != type_of(wanted):
        return None
    if isinstance(value, int | float) and isinstance(wanted, int | float) and not isinstance(value, bool):
        order = compare(value, wanted) if is_comparable(value) else None
        return None if order is None else order == 0
    return value == wanted


def _in(wanted: object, value: object) -> bool | None:
    values = cast(Sequence[object], wanted)
    if isinstance(value, str):  # one look at each, as there may be hundreds
        return True if value in values else None if not _TEXT_OR_NULL.issuperset(map(type, values)) else False
    answers = {_eq(each, value) for each in values}
    return True if True in answers else None if None in answers else False


def _prefix(wanted: object, value: object) -> bool | None:
    return value.startswith(cast(str, wanted)) if isinstance(value, str) else None


def _suffix(wanted: object, value: object) -> bool | None:
    return value.endswith(cast(str, wanted)) if isinstance(value, str) else None


def _glob(wanted: object, value: object) -> bool | None:
    if not isinstance(value, str) or len(value) > MAX_LENGTH:
        return None
    return _compiled(cast(str, wanted)).match(value)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Globs:
    return Globs((pattern,), uris=False)


def _range(wanted: object, value: object) -> bool | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_comparable(value):
        return None
    low, high = cast(Sequence[float | None], wanted)
    above = 1 if low is None else compare(value, low)
    below = -1 if high is None else compare(value, high)
    if (above is not None and above < 0) or (below is not None and below > 0):
        return False
    return None if above is None or below is None else True


def _max_len(wanted: object, value: object) -> bool | None:
    return len(value) <= cast(int, wanted) if isinstance(value, str | list) else None


def _type(wanted: object, value: object) -> bool | None:
    if wanted != "integer":
        return type_of(value) == wanted
    if isinstance(value, float):
        return value.is_integer() if is_comparable(value) else None
    return isinstance(value, int) and not isinstance(value, bool)


# Paths


def _path_under(wanted: object, value: object) -> bool | None:
    """Whether every reading of the path is one of the roots or below one; None if the readings differ or one is no
    path."""
    if not isinstance(value, str) or len(value) > MAX_LENGTH:
        return None
    roots = read_roots(tuple(cast(Sequence[str], wanted)))
    return _unanimous(
        _is_under(some, names, roots.depth)
        for reading in path_readings(value)
        for some, names in zip((roots.exact, roots.folded), reading, strict=True)
    )


def _is_under(roots: frozenset[Names | None], names: Names | None, depth: int) -> bool | None:
    if names is None:
        return None
    if any(names[:at] in roots for at in range(min(depth, len(names)) + 1)):
        return True
    return None if None in roots else False


@lru_cache(maxsize=1024)
def read_roots(roots: tuple[str, ...]) -> Roots:
    """The names of each root; see `path_readings`."""
    exact, folded = ([_segments(form(root)) for root in roots] for form in (str, loosened))
    depth = max((len(names) for names in (*exact, *folded) if names), default=0)
    return Roots(frozenset(exact), frozenset(folded), depth)


def path_readings(path: str) -> Iterator[tuple[Names | None, Names | None]]:
    """The names along a path from the root, as written and folded, in each way that servers may decode it; None for
    what is no path."""
    return ((_segments(text), _segments(loosened(text))) for text in _written(path))


def _written(value: str) -> Iterator[str]:
    """The path as written and percent-decoded once. A path that decodes to no text, or can be decoded twice, yields a
    value that is no path."""
    yield value
    if "%" in value:
        try:
            decoded = unquote(value, errors="strict")
        except UnicodeDecodeError:
            decoded = ""
        yield "" if _WIDE_ESCAPE.search(value) or _ESCAPE.search(decoded) else decoded


def _segments(path: str) -> Names | None:
    """The names of an absolute path from the root, with `.` and `..` resolved. None if the path is relative, climbs
    beyond the root, or has characters with a meaning on some system: `~`, a backslash, invisible characters, three dots
    or more."""
    if not path.startswith("/") or path.startswith("//") or "\\" in path:
        return None
    if not path.isprintable() and any(unicodedata.category(char) in UNSEEN for char in path):
        return None
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            if not kept:
                return None
            kept.pop()
        elif segment in ("", "."):
            continue
        elif segment.startswith("~") or is_odd(segment):
            return None
        else:
            kept.append(segment)
    return tuple(kept)


# Hosts


def _host_in(wanted: object, value: object) -> bool | None:
    if not isinstance(value, str) or (found := parse_address(value)) is None:
        return None
    return _is_one_of(read_hosts(tuple(cast(Sequence[str], wanted))), found.host)


def _is_one_of(hosts: frozenset[Host | None], host: Host) -> bool | None:
    if host in hosts:
        return True
    here = is_here(host)
    if isinstance(host, str) and not here:
        return None if None in hosts else False
    return None if any(each is None or may_be_the_same(each, host, here) for each in hosts) else False


@lru_cache(maxsize=1024)
def read_hosts(texts: tuple[str, ...]) -> frozenset[Host | None]:
    """Hosts as written in the configuration file, where an IPv6 address may have brackets; None for what is no host."""
    written = [f"[{each}]" if each.count(":") > 1 and not each.startswith("[") else each for each in texts]
    return frozenset(_host(each) if _AUTHORITY.fullmatch(each) else None for each in written)


def _host(text: str) -> Host | None:
    """A host of letters, digits, dots and hyphens, or an IP address; the dot that ends a complete name is removed."""
    if text.startswith("["):
        try:
            return IPv6Address(text[1:-1])
        except AddressValueError:
            return None
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    if not _NUMERIC.fullmatch(labels[-1]):
        return name
    try:
        return IPv4Address(name) if _DECIMAL.fullmatch(name) else None
    except AddressValueError:
        return None


def may_be_the_same(one: Host, other: Host, other_is_here: bool) -> bool:
    """Whether two different hosts may be the same machine, as far as their text shows it: both are loopback, or one is
    an IPv6 address that embeds the other."""
    if other_is_here and is_here(one):
        return True
    if isinstance(other, IPv4Address):
        one, other = other, one
    return isinstance(one, IPv4Address) and isinstance(other, IPv6Address) and one.packed in other.packed


def is_here(host: Host) -> bool:
    """Whether a host is this machine, as far as its text shows it."""
    if isinstance(host, str):
        return host == "localhost" or host.endswith(".localhost")
    return any(is_loopback(each) or int(each) == 0 for each in readings(host))


_TESTS: dict[str, Callable[[object, object], bool | None]] = {
    "eq": _eq,
    "in": _in,
    "prefix": _prefix,
    "suffix": _suffix,
    "glob": _glob,
    "range": _range,
    "max_len": _max_len,
    "type": _type,
    "path_under": _path_under,
    "host_in": _host_in,
}
