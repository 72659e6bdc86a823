"""The URIs that a server may take one URI for.

Servers find a file or an entry by a URI in many ways: they decode it before or after they split it, drop the query, the
fragment or the host, resolve dot segments on the text or on the decoded path. `uri_variants` gives the URI as each of
them may understand it, so that a rule for `x://a/b` holds for every spelling that some server takes for `x://a/b`. Text
alone: no rule, no file system and no server is known here.

The parsers considered are those of Python (`urllib.parse`), Go (`net/url` with `path.Clean`), and Node.js, browsers and
Rust (the WHATWG URL standard).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from config.globs import MAX_LENGTH, normalize_case

MAX_VARIANTS = 128
"""Variants of one URI. No URI in use comes near it; only text made for it does."""
MAX_VARIANTS_LENGTH = 3 * (MAX_LENGTH + len("file://"))
"""Characters of all variants of one URI together: each of them is matched against every pattern. The longest path
without a scheme has three."""
MAX_ESCAPES = 1024
"""Percent signs in a URI that is not plain: a path of some hundred characters beyond ASCII has as many."""
MAX_WORK = 48 * 1024
"""Characters taken apart for the variants of one URI, where a slash or an escape counts as _PART_WORK characters and a
text as _TEXT_WORK more."""

_PART_WORK = 16
_TEXT_WORK = 384
_REMEMBERED = 64
"""Requests judge the same URI several times: for the rules, for what is held back, and for the audit."""

_PARTS = re.compile(r"([^:/?#]*:)?(//[^/?#]*)?([^?#]*)(.*)", re.DOTALL)
_DEFAULT_PORTS = {"file": "", "ftp": ":21", "http": ":80", "https": ":443", "ws": ":80", "wss": ":443"}
_EMPTY_PORT = re.compile(r"^([^/?#]*//[^/?#]*):(?=[/?#]|$)")
_FILE = re.compile(r"(?://(?![A-Za-z][:|](?:[/?#]|$))([^/?#]*))?/?(.*)", re.DOTALL)
_HOST = re.compile(r"([^/?#]*)(.*)", re.DOTALL)
_DRIVE = re.compile(r"[A-Za-z][:|]")
_ESCAPED_DOT = re.compile("%2e", re.IGNORECASE)
_CONTROLS = "".join(map(chr, range(0x21)))
# What `str.strip` of Python, `trim` of JavaScript and `url.parse` of Node.js take off besides.
_BLANKS = _CONTROLS + "".join(filter(str.isspace, map(chr, range(0x21, 0x3001)))) + "\ufeff"
_LINE_ENDS = str.maketrans({"\t": None, "\r": None, "\n": None})
# All parsers but Go's leave tabs and line ends out; those of WHATWG take a backslash for a slash besides.
_AS_BROWSERS_DO = str.maketrans({"\\": "/", "\t": None, "\r": None, "\n": None})
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_DECODABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\t\r\n]")
# Schemes whose parameters, from a `;` in the last segment, `urllib.parse.urlparse` takes off the path.
_PARAMETERS = ("ftp:", "hdl:", "http:", "https:", "prospero:", "rtsp:", "rtspu:", "sftp:", "shttp:", "sip:", "sips:")
# What every parser reads in one way: nothing encoded, no empty segment, no dot at the end, no query or fragment.
_PLAIN = re.compile(
    r"(?:file://|(?!file:)[a-z][a-z0-9+-]*://[a-z0-9-]+(?:\.[a-z0-9-]+)*)"
    r"(?:/(?!\.\.?(?:/|$))[\w.~!$&'()*+,=:@-]+)+(?<!\.)",
    re.IGNORECASE,
)

_Parts = tuple[str, str, str, str]
"""Scheme with its colon, authority with its slashes, path, and query with fragment: together the URI."""


class UriVariant(NamedTuple):
    """A URI as some servers understand another one. Scheme and host are in lower case, as they are in patterns."""

    text: str
    cut_at: str = ""
    """`?`, `#`, `;` or NUL, if the URI is left out from such a character on. Empty: nothing is left out."""
    trimmed: bool = False
    """Whether slashes at the end of the path are left out."""
    restrict_only: bool = False
    """Whether this is the understanding of too few servers to be needed for an allow rule to hold."""

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the URI, as an allow rule has to allow it."""
        return not (self.cut_at or self.trimmed or self.restrict_only)


class TooManyVariants(ValueError):
    """The URI can be understood in more ways than the limits of this file admit."""


def uri_variants(uri: str) -> tuple[UriVariant, ...]:
    """The URI as it is written, and as servers may understand it. The order depends on nothing but the URI.

    Raises:
        TooManyVariants: there are too many to look at each of them.
    """
    found = _variants(uri)
    if found is None:
        raise TooManyVariants("this URI can be read in too many ways")
    return found


def is_plain(uri: str) -> bool:
    """Whether the URI is of the form that everybody reads in one way, which takes little time to find out."""
    return _PLAIN.fullmatch(uri) is not None


@lru_cache(_REMEMBERED)
def _variants(uri: str) -> tuple[UriVariant, ...] | None:
    """See `uri_variants`; None if there are too many. An exception would not be remembered."""
    if is_plain(uri):
        return (UriVariant(normalize_case(uri)),)
    if uri.count("%") > MAX_ESCAPES:
        return None
    try:
        return _found(uri)
    except TooManyVariants:
        return None


def _found(uri: str) -> tuple[UriVariant, ...]:
    found = _Variants()
    for text, twice in _written(uri):
        for head, cut_at, unusual in _heads(text):
            restrict_only = unusual or (twice and cut_at != "")
            found.spend(head)
            for resolved in dict.fromkeys((head, _without_dot_segments(head))):
                parts = _split(resolved)
                found.add_forms(parts, cut_at, restrict_only)
                if not twice:
                    for decoded in _decoded_parts(parts):
                        found.add_forms(decoded, cut_at, restrict_only)
    return found.reduced()


class _Variants:
    def __init__(self) -> None:
        self._found: dict[UriVariant, None] = {}
        self._seen: set[tuple[_Parts, str, bool]] = set()
        self._room = MAX_VARIANTS_LENGTH
        self._work = MAX_WORK

    def spend(self, text: str) -> None:
        """Account for the work that a text makes before it is done.

        Raises:
            TooManyVariants: there was too much of it.
        """
        self._work -= _TEXT_WORK + len(text) + _PART_WORK * (text.count("/") + text.count("%"))
        if self._work < 0:
            raise TooManyVariants

    def reduced(self) -> tuple[UriVariant, ...]:
        """All variants but those that another one of the same text makes superfluous."""
        whole = {each.text for each in self._found if each.is_whole}
        needed = {each.text for each in self._found if not each.restrict_only}
        return tuple(
            each
            for each in self._found
            if not (each.text in whole and (each.cut_at or each.trimmed))
            and not (each.restrict_only and each.text in needed)
        )

    def add_forms(self, parts: _Parts, cut_at: str, restrict_only: bool) -> None:
        """Add a URI, and it with its path resolved, trimmed and in the other places where it may be."""
        if (parts, cut_at, restrict_only) in self._seen:
            return
        self._seen.add((parts, cut_at, restrict_only))
        text = "".join(parts)
        self.spend(text)
        self._add(text, cut_at, restrict_only=restrict_only)
        scheme, authority, path, rest = parts
        resolved = _resolved(path)
        self._add_path(scheme, authority, resolved, rest, cut_at, restrict_only)
        for other_scheme, other_authority, other_path in _other_places(scheme, authority, resolved):
            self._add_path(other_scheme, other_authority, other_path, rest, cut_at, restrict_only=True)
        everything = f"{authority[2:]}{path}{rest}"
        if not {".", ".."}.isdisjoint(everything.split("/")):
            # A server that does not parse the URI takes all of it for a path: the host is a folder, `?` ends nothing.
            begin, everything = f"{scheme}{authority[:2]}", _resolved(everything)
            self._add(begin + everything, cut_at, restrict_only=restrict_only)
            self._add(begin + everything.rstrip("/"), cut_at, restrict_only=True)
            if path != text and ".." in text.split("/"):  # the scheme is a folder as any other then, and can be left
                self.add_forms(("", "", _resolved(text), ""), cut_at, restrict_only=True)

    def _add_path(self, scheme: str, authority: str, path: str, rest: str, cut_at: str, restrict_only: bool) -> None:
        def add(path: str, *, trimmed: bool = False, restrict_only: bool = restrict_only) -> None:
            self._add(f"{scheme}{authority}{path}{rest}", cut_at, trimmed=trimmed, restrict_only=restrict_only)

        add(path)
        trimmed = path.rstrip("/")
        if trimmed != path:
            # The slash of a root is no trailing slash; and who keeps the query mostly keeps the slash before it.
            add(trimmed, trimmed=True, restrict_only=restrict_only or not trimmed or bool(rest))
        elif not path and authority:
            add("/", restrict_only=True)
        bare = path.rstrip(f"/.{_BLANKS}")  # the file systems of Windows ignore dots and blanks at the end of a name
        if bare != trimmed:
            add(bare, restrict_only=True)

    def _add(self, text: str, cut_at: str, *, trimmed: bool = False, restrict_only: bool = False) -> None:
        variant = UriVariant(normalize_case(text), cut_at, trimmed, restrict_only)
        if variant in self._found:
            return
        self._found[variant] = None
        self._room -= len(text)
        if len(self._found) > MAX_VARIANTS or self._room < 0:
            raise TooManyVariants


def _written(uri: str) -> Iterator[tuple[str, bool]]:
    """The URI, decoded and decoded twice, as it stands and as WHATWG parsers write it; with whether it is decoded
    twice."""
    decoded = _decoded(uri)
    once = [each for text in (uri, *decoded) for each in _spelled(text)]
    yield from ((text, False) for text in dict.fromkeys(once))
    again = dict.fromkeys(each for text in decoded for each in _decoded(text))
    yield from ((text, True) for text in again if text not in once)


def _spelled(text: str) -> Iterator[str]:
    yield text
    for blanks in (_CONTROLS, _BLANKS):
        cleaned = text.translate(_LINE_ENDS).strip(blanks)
        yield cleaned
        yield _as_parsers_write(cleaned)


def _decoded(text: str) -> tuple[str, ...]:
    """The text percent-decoded, as it stands and with the characters replaced that parsers replace."""
    if not _DECODABLE.search(text):
        return ()
    decoded = _unquoted(text)
    return decoded, decoded.translate(_LINE_ENDS), decoded.translate(_AS_BROWSERS_DO)


def _unquoted(text: str) -> str:
    """The text as `urllib.parse.unquote` decodes it, which takes a hundred times as long for `%` without digits."""
    return _ESCAPES.sub(lambda found: unquote_to_bytes(found[0]).decode("utf-8", "replace"), text)


def _decoded_parts(parts: _Parts) -> Iterator[_Parts]:
    """The parts, each decoded for itself; see `_decoded`. Some programs leave the authority as it is."""
    if any(map(_DECODABLE.search, parts)):
        scheme, authority, path, rest = map(_unquoted, parts)
        yield scheme, parts[1], path, rest
        yield scheme, authority, path, rest
        scheme, authority, path, rest = (part.translate(_AS_BROWSERS_DO) for part in (scheme, authority, path, rest))
        yield scheme, authority, path, rest


def _heads(text: str) -> Iterator[tuple[str, str, bool]]:
    """The text, and what is left of it before a character at which it may be split: with that character, and whether
    that is unusual."""
    yield text, "", False
    for mark in "#?":
        first, last = text.find(mark), text.rfind(mark)
        if first >= 0:
            yield text[:first], mark, False
        if last > first:
            yield text[:last], mark, True
    scheme, authority, path, _ = _split(text)
    parameters = path.find(";", path.rfind("/") + 1)
    if parameters >= 0:
        begin = f"{scheme}{authority}{path[:parameters]}"
        yield begin, ";", scheme.lower() not in _PARAMETERS
    before, nul, _ = text.partition("\0")  # ends a path in C
    if nul:
        yield before, nul, False


def _as_parsers_write(cleaned: str) -> str:
    """The URI, stripped of what parsers leave out, as WHATWG parsers write it down ("URL writing"), as far as that can
    make two spellings one: servers look resources up by it. Dot segments are left."""
    scheme, colon, rest = cleaned.partition(":")
    scheme = scheme.lower()
    if scheme not in _DEFAULT_PORTS or not colon:
        return _EMPTY_PORT.sub(r"\1", cleaned)
    rest = rest.replace("\\", "/")
    if scheme == "file":
        host, path = _FILE.fullmatch(rest).groups("")  # type: ignore[union-attr]  # the pattern matches any text
        return f"file://{'' if host.lower() == 'localhost' else host.lower()}/{path}"
    host, path = _HOST.fullmatch(rest.lstrip("/")).groups()  # type: ignore[union-attr]  # it always does
    host = host.lower().removesuffix(":").removesuffix(_DEFAULT_PORTS[scheme])
    return f"{scheme}://{host}{'/' if path.startswith(('?', '#')) else ''}{path}"


def _without_dot_segments(uri: str) -> str:
    """The URI as WHATWG parsers resolve its path: before it is decoded, but `%2e` is a dot; `..` goes back over empty
    segments as over others; a drive letter of a file is written with a colon, and `..` does not go back over it."""
    scheme, authority, path, rest = _split(uri)
    if not path.startswith("/"):
        return uri
    is_file = scheme.lower() == "file:"
    kept: list[str] = []
    segments = path[1:].split("/")
    for segment in segments:
        name = _ESCAPED_DOT.sub(".", segment)
        if name == "..":
            if kept and not (is_file and len(kept) == 1 and _DRIVE.fullmatch(kept[0])):
                kept.pop()
        elif name != ".":
            drive = is_file and not kept and _DRIVE.fullmatch(segment)
            kept.append(f"{segment[0]}:" if drive else segment)
    if _ESCAPED_DOT.sub(".", segments[-1]) in (".", ".."):
        kept.append("")
    return f"{scheme}{authority}/{'/'.join(kept)}{rest}"


def _other_places(scheme: str, authority: str, path: str) -> Iterator[tuple[str, str, str]]:
    """Other schemes and authorities, each with its path, that a server may take the URI to have. `authority` begins
    with `//`, or is empty; `path` is resolved."""
    host = authority[2:]
    if "@" in host:
        yield scheme, f"//{host.rpartition('@')[2]}", path
    if scheme.lower() == "file:" and host:  # most programs ignore it; some take all after `file://` for the path
        yield scheme, "//", path
        yield scheme, "//", f"/{host}{path}"
    elif not scheme and host:  # the same of a text that may be a path, and that many put `file://` before
        for each in (path or "/", f"/{host}{path}"):
            yield "", "", each
            yield "file:", "//", each
    elif not host and (authority or path.startswith("/")):
        if not authority or scheme.lower() != "file:":
            yield scheme, "" if authority else "//", path or "/"
        if not scheme:
            yield "file:", "//", path or "/"
    elif path and not authority:
        if scheme:
            yield scheme, f"//{path.partition('/')[0]}", "".join(path.partition("/")[1:])
        else:  # a path, relative to a folder that the server knows
            yield "", "", f"/{path}"


def _split(uri: str) -> _Parts:
    scheme, authority, path, rest = _PARTS.fullmatch(uri).groups("")  # type: ignore[union-attr]  # it matches any text
    return scheme, authority, path, rest


def _resolved(path: str) -> str:
    """The path without `.`, `..` and empty segments, as `path.Clean` and operating systems resolve it, but with its
    slash at the end."""
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment not in ("", "."):
            kept.append(segment)
    lead = "/" if path.startswith("/") else ""
    trail = "/" if kept and segments[-1] in ("", ".", "..") else ""
    return f"{lead}{'/'.join(kept)}{trail}"
