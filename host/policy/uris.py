"""Variants of a URI: the URIs that servers may take one URI for.

Servers find a file or an entry by its URI in many ways: they decode before or after splitting, drop query, fragment or
host, and resolve dot segments in the text or in the decoded path. `uri_variants` returns the URI as each of them may
read it, so that a rule for `x://a/b` applies to every spelling that some server takes for `x://a/b`. The variants
depend on the text alone, not on rules, files or servers.

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
from host.policy.file_names import loosened, without_unseen

MAX_VARIANTS = 128
"""Variants of one URI. URIs in use have far fewer; only crafted ones reach the limit."""
MAX_VARIANTS_LENGTH = 3 * (MAX_LENGTH + len("file://"))
"""Characters of all variants of one URI together, since each is matched against every pattern. The longest path without
a scheme has three variants."""
MAX_ESCAPES = 1024
"""Percent signs in a URI that is not plain, as in a path of some hundred characters beyond ASCII."""
MAX_WORK = 48 * 1024
"""Characters processed for the variants of one URI, where a slash or an escape counts as _PART_WORK characters and each
text as _TEXT_WORK more."""

_PART_WORK = 16
_TEXT_WORK = 384
_REMEMBERED = 64
"""Results kept. One request evaluates the same URI several times: for rules, held definitions and the audit."""

_PARTS = re.compile(r"([^:/?#]*:)?(//[^/?#]*)?([^?#]*)(.*)", re.DOTALL)
_DEFAULT_PORTS = {"file": "", "ftp": ":21", "http": ":80", "https": ":443", "ws": ":80", "wss": ":443"}
_EMPTY_PORT = re.compile(r"^([^/?#]*//[^/?#]*):(?=[/?#]|$)")
_FILE = re.compile(r"(?://(?![A-Za-z][:|](?:[/?#]|$))([^/?#]*))?/?(.*)", re.DOTALL)
_HOST = re.compile(r"([^/?#]*)(.*)", re.DOTALL)
_DRIVE = re.compile(r"[A-Za-z][:|]")
_ESCAPED_DOT = re.compile("%2e", re.IGNORECASE)
_CONTROLS = "".join(map(chr, range(0x21)))
# Further characters that `str.strip` of Python, `trim` of JavaScript and `url.parse` of Node.js remove
_BLANKS = _CONTROLS + "".join(filter(str.isspace, map(chr, range(0x21, 0x3001)))) + "\ufeff"
_LINE_ENDS = str.maketrans({"\t": None, "\r": None, "\n": None})
# All parsers but Go's remove tabs and line ends; WHATWG parsers also take a backslash for a slash.
_AS_BROWSERS_DO = str.maketrans({"\\": "/", "\t": None, "\r": None, "\n": None})
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_DECODABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\t\r\n]")
# Schemes for which `urllib.parse.urlparse` splits parameters, from a `;` in the last segment, from the path
_PARAMETERS = ("ftp:", "hdl:", "http:", "https:", "prospero:", "rtsp:", "rtspu:", "sftp:", "shttp:", "sip:", "sips:")
# URIs that every parser reads alike: nothing encoded, no empty segment, no dot at the end, no query or fragment
_PLAIN = re.compile(
    r"(?:file://|(?!file:)[a-z][a-z0-9+-]*://[a-z0-9-]+(?:\.[a-z0-9-]+)*)"
    r"(?:/(?!\.\.?(?:/|$))[\w.~!$&'()*+,=:@-]+)+(?<!\.)",
    re.IGNORECASE,
)

_Parts = tuple[str, str, str, str]
"""Scheme with its colon, authority with its slashes, path, and query with fragment: together the URI."""


class UriVariant(NamedTuple):
    """One reading of a URI. Scheme and host are in lower case, as in patterns."""

    text: str
    cut_at: str = ""
    """`?`, `#`, `;` or NUL, if this reading ends before such a character; empty if it is not cut."""
    trimmed: bool = False
    """Whether slashes at the end of the path are removed."""
    restrict_only: bool = False
    """Whether so few servers read the URI like this that an allow rule need not match this variant."""
    loosened: bool = False
    """Whether the name of the file is folded as lax file systems compare it."""

    @property
    def is_whole(self) -> bool:
        """Whether the variant is the whole URI, which an allow rule must match."""
        return not (self.cut_at or self.trimmed or self.restrict_only)


class TooManyVariants(ValueError):
    """The URI has more variants than the limits permit."""


def uri_variants(uri: str) -> tuple[UriVariant, ...]:
    """The URI as written, and as servers may read it. The order depends on the URI alone.

    Raises:
        TooManyVariants: there are more variants than the limits permit.
    """
    found = _variants(uri)
    if found is None:
        raise TooManyVariants("this URI can be read in too many ways")
    return found


def restricting_variants(uri: str) -> tuple[UriVariant, ...]:
    """The variants of the URI, and the loosened ones of files, which match folded patterns (`loosened_pattern`).

    Raises:
        TooManyVariants: see `uri_variants`.
    """
    variants = uri_variants(uri)
    forms = dict.fromkeys(form for each in variants for form in loosened_forms(each.text))
    return (*variants, *(UriVariant(form, restrict_only=True, loosened=True) for form in forms))


def loosened_forms(text: str) -> tuple[str, ...]:
    """What a lax file system may take the file of this variant for; nothing for a URI of another scheme."""
    if not text.startswith("file:"):
        return ()
    scheme, authority, path, rest = _split(loosened(without_unseen(text)))
    resolved = _resolved(path)
    forms = [f"{scheme}{authority}{each}{rest}" for each in (resolved, resolved.rstrip("/"))]
    # A server that splits off no query takes a slash after it for the end of a folder's name.
    return tuple(dict.fromkeys((*forms, forms[0].rstrip("/"))))


def is_plain(uri: str) -> bool:
    """Whether all parsers read the URI alike, by a quick test of its form."""
    return _PLAIN.fullmatch(uri) is not None


@lru_cache(_REMEMBERED)
def _variants(uri: str) -> tuple[UriVariant, ...] | None:
    """See `uri_variants`; None if there are too many (the cache does not keep exceptions)."""
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
        """Account for the work on a text before it is done.

        Raises:
            TooManyVariants: the limit is exceeded.
        """
        self._work -= _TEXT_WORK + len(text) + _PART_WORK * (text.count("/") + text.count("%"))
        if self._work < 0:
            raise TooManyVariants

    def reduced(self) -> tuple[UriVariant, ...]:
        """All variants, without those that a stricter variant of the same text makes redundant."""
        whole = {each.text for each in self._found if each.is_whole}
        needed = {each.text for each in self._found if not each.restrict_only}
        return tuple(
            each
            for each in self._found
            if not (each.text in whole and (each.cut_at or each.trimmed))
            and not (each.restrict_only and each.text in needed)
        )

    def add_forms(self, parts: _Parts, cut_at: str, restrict_only: bool) -> None:
        """Add a URI, and its forms with the path resolved, trimmed, and in other places."""
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
            # A server that does not parse the URI takes all of it for a path: the host is a folder, and `?` ends
            # nothing.
            begin, everything = f"{scheme}{authority[:2]}", _resolved(everything)
            self._add(begin + everything, cut_at, restrict_only=restrict_only)
            self._add(begin + everything.rstrip("/"), cut_at, restrict_only=True)
            # The scheme is then a folder like any other, and `..` can leave it.
            if path != text and ".." in text.split("/"):
                self.add_forms(("", "", _resolved(text), ""), cut_at, restrict_only=True)

    def _add_path(self, scheme: str, authority: str, path: str, rest: str, cut_at: str, restrict_only: bool) -> None:
        def add(path: str, *, trimmed: bool = False, restrict_only: bool = restrict_only) -> None:
            self._add(f"{scheme}{authority}{path}{rest}", cut_at, trimmed=trimmed, restrict_only=restrict_only)

        add(path)
        trimmed = path.rstrip("/")
        if trimmed != path:
            # The slash of a root is not a trailing one. Servers that keep the query mostly keep the slash before it.
            add(trimmed, trimmed=True, restrict_only=restrict_only or not trimmed or bool(rest))
        elif not path and authority:
            add("/", restrict_only=True)
        bare = path.rstrip(f"/.{_BLANKS}")  # Windows ignores dots and blanks at the end of a name
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
    """The URI as written, decoded, and decoded twice, each in its own form and as WHATWG parsers write it; with whether
    it was decoded twice."""
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
    """The percent-decoded text, as it is and with the characters replaced that parsers replace."""
    if not _DECODABLE.search(text):
        return ()
    decoded = _unquoted(text)
    return decoded, decoded.translate(_LINE_ENDS), decoded.translate(_AS_BROWSERS_DO)


def _unquoted(text: str) -> str:
    """The text as `urllib.parse.unquote` decodes it; that function takes a hundred times as long for `%` without
    digits."""
    return _ESCAPES.sub(lambda found: unquote_to_bytes(found[0]).decode("utf-8", "replace"), text)


def _decoded_parts(parts: _Parts) -> Iterator[_Parts]:
    """The parts, each decoded separately; see `_decoded`. Some programs do not decode the authority."""
    if any(map(_DECODABLE.search, parts)):
        scheme, authority, path, rest = map(_unquoted, parts)
        yield scheme, parts[1], path, rest
        yield scheme, authority, path, rest
        scheme, authority, path, rest = (part.translate(_AS_BROWSERS_DO) for part in (scheme, authority, path, rest))
        yield scheme, authority, path, rest


def _heads(text: str) -> Iterator[tuple[str, str, bool]]:
    """The text, and its beginnings before each character at which servers may split: with that character, and whether
    splitting there is unusual."""
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
    before, nul, _ = text.partition("\0")  # NUL ends a path in C
    if nul:
        yield before, nul, False


def _as_parsers_write(cleaned: str) -> str:
    """The URI, without characters that parsers drop, as WHATWG parsers write it ("URL writing"), as far as this can
    equate two spellings: servers look resources up by it. Dot segments stay."""
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
    """The URI with its path resolved as WHATWG parsers do: before decoding, but `%2e` counts as a dot; `..` also
    removes empty segments; a drive letter is written with a colon, and `..` does not remove it."""
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
    """Other schemes and authorities, each with its path, for which a server may take the URI. `authority` begins with
    `//`, or is empty; `path` is resolved."""
    host = authority[2:]
    if "@" in host:
        yield scheme, f"//{host.rpartition('@')[2]}", path
    # Most programs ignore the host; some take everything after `file://` for the path
    if scheme.lower() == "file:" and host:
        yield scheme, "//", path
        yield scheme, "//", f"/{host}{path}"
    elif not scheme and host:  # likewise for a text that may be a path, before which many programs put `file://`
        for each in (path or "/", f"/{host}{path}"):
            yield "", "", each
            yield "file:", "//", each
    elif not host and (authority or path.startswith("/")):
        if not authority or scheme.lower() != "file:":
            yield scheme, "" if authority else "//", path or "/"
        if not scheme:
            yield "file:", "//", path or "/"
    elif path and not authority:
        if scheme.lower() == "file:":  # a relative one, which the working folder of the server may make absolute
            yield scheme, "//", f"/{path}"
        if scheme:
            yield scheme, f"//{path.partition('/')[0]}", "".join(path.partition("/")[1:])
        else:  # a path relative to a folder of the server's choice
            yield "", "", f"/{path}"


def _split(uri: str) -> _Parts:
    scheme, authority, path, rest = _PARTS.fullmatch(uri).groups("")  # type: ignore[union-attr]  # it matches any text
    return scheme, authority, path, rest


def _resolved(path: str) -> str:
    """The path without `.`, `..` and empty segments, as `path.Clean` and operating systems resolve it, but with its
    trailing slash."""
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
