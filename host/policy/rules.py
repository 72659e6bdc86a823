"""The judge: may this entry of this server be reached? One pure function for listing, calling, reading, getting and
completing.

Patterns are anchored globs over the server's own names and URIs. In names `*` stands for any characters; in URIs it
stops at `/`, and `**` does not. `?` is one character (in URIs not `/`). Deny wins; where an allow list stands, what it
does not name is denied. A URI is judged as it is written and in every form a server may take it for (`readings`): any
of them suffices to deny, all are needed to allow, so that `repo://acme/../evil` or `%2e%2e` opens nothing that the
plain spelling would not.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from config import Consent, KindConsent
from host.protocol.methods import Kind

MAX_LENGTH = 8192
"""Where patterns stand, longer names and URIs are denied: judging one takes time that grows with its length."""

_PARTS = re.compile(r"([^:/?#]*:)?(//[^/?#]*)?([^?#]*)(.*)", re.DOTALL)
_PREFIX = re.compile(r"((?:[^:/?#]*:)?(?://)?)(.*)", re.DOTALL)
_TOKEN = re.compile(r"\*+|.", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.*?-]*:")
_HOSTED = re.compile(r"(?:file|ftp|https?|wss?)://[^/?#]*", re.IGNORECASE)
_DEFAULT_PORTS = {"file": "", "ftp": ":21", "http": ":80", "https": ":443", "ws": ":80", "wss": ":443"}
_EMPTY_PORT = re.compile(r"^([^/?#]*//[^/?#]*):(?=[/?#]|$)")
_FILE = re.compile(r"(?://([^/]*))?/?(.*)", re.DOTALL)
_BLANKS = "".join(map(chr, range(0x21)))
_LINE_ENDS = str.maketrans({"\t": None, "\r": None, "\n": None})
# The URL parser of browsers and of Node.js takes a backslash for a slash and leaves tabs and line ends out.
_AS_BROWSERS_DO = str.maketrans({"\\": "/", "\t": None, "\r": None, "\n": None})


class Rules:
    """The compiled consent of one server."""

    def __init__(self, consent: Consent) -> None:
        self._lists = {
            Kind.TOOL: _Lists(consent.tools, uris=False),
            Kind.PROMPT: _Lists(consent.prompts, uris=False),
            Kind.RESOURCE: _Lists(consent.resources, uris=True),
        }
        # A template is judged like the resources it makes.
        self._lists[Kind.TEMPLATE] = self._lists[Kind.RESOURCE]

    def allow(self, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed and reached. `name` is the server's own name, URI or URI template."""
        return self._lists[kind].allow(name)


class _Lists:
    def __init__(self, consent: KindConsent, *, uris: bool) -> None:
        self._uris = uris
        self._everything = consent.allow is None and not consent.deny
        self._allow = None if consent.allow is None else Globs(consent.allow, uris=uris)
        self._deny = Globs(consent.deny, uris=uris)

    def allow(self, name: str) -> bool:
        if self._everything:
            return True
        if len(name) > MAX_LENGTH:
            return False
        return all(self._allows(each) for each in (readings(name) if self._uris else {name}))

    def _allows(self, name: str) -> bool:
        return not self._deny.match(name) and (self._allow is None or self._allow.match(name))


class Globs:
    """A list of patterns as one automaton: a bit for every place in every pattern, moved along by every character.

    Its time grows with the text and with nothing in it: no pattern and no text make it try anything twice.
    """

    def __init__(self, patterns: tuple[str, ...], *, uris: bool) -> None:
        self._start = self._end = 0
        if uris:
            patterns = tuple(_lowered(pattern) for pattern in patterns)
        literals: dict[str, int] = {}  # the places that a character may leave for the next
        any_one = any_run = run_in_segment = 0  # the places of `?`, and of the two kinds of stars
        at = 1
        for pattern in patterns:
            self._start |= at
            for token in _TOKEN.findall(pattern):
                if token == "*" and uris:
                    run_in_segment |= at
                elif token[0] == "*":
                    any_run |= at
                else:
                    if token == "?":
                        any_one |= at
                    else:
                        literals[token] = literals.get(token, 0) | at
                    at <<= 1
            self._end |= at
            at <<= 1
        self._others = (any_one, any_run | run_in_segment)
        self._moves = {char: (places | any_one, any_run | run_in_segment) for char, places in literals.items()}
        if uris:
            self._moves["/"] = (literals.get("/", 0), any_run)

    def match(self, text: str) -> bool:
        """Whether one of the patterns names the whole of `text`."""
        places = self._start
        for char in text:
            leaving, staying = self._moves.get(char, self._others)
            places = (places & leaving) << 1 | places & staying
            if not places:
                return False
        return bool(places & self._end)


def readings(uri: str) -> set[str]:
    """The URI as it is written, and what servers may take it for: as their URL parser writes it, split before or after
    it is decoded, or, where it climbs with `..`, a path that begins right after the scheme (its first segment is no
    host, and `?` ends nothing). What is the same in upper and lower case (RFC 3986, 3.1 and 3.2.2) is lower-case here,
    as it is in patterns."""
    found: set[str] = set()
    for written in {uri, _as_parsers_write(uri), _as_parsers_write(_decoded(uri))}:
        scheme, authority, path, rest = (_decoded(part) for part in _split(written))
        found |= {written, normal_form(written), f"{scheme}{authority}{_resolved(path)}{rest}"}
        prefix, everything = _PREFIX.fullmatch(_decoded(written)).groups()  # type: ignore[union-attr]  # it always does
        if ".." in everything.split("/"):
            found.add(prefix + _resolved(everything))
    return {_lowered(reading) for reading in found}


def _lowered(text: str) -> str:
    """A URI or a pattern with what is the same in upper and lower case in lower case: the scheme, and the host of those
    schemes that have host names."""
    found = _HOSTED.match(text) or _SCHEME.match(text)
    return text if found is None else found[0].lower() + text[found.end() :]


def _as_parsers_write(uri: str) -> str:
    """The URI as the URL parser of browsers and Node.js writes it down (WHATWG URL, "URL writing"), as far as that can
    make two spellings one: servers look resources up by it."""
    cleaned = uri.translate(_LINE_ENDS).strip(_BLANKS)
    scheme, colon, rest = cleaned.partition(":")
    scheme = scheme.lower()
    if scheme not in _DEFAULT_PORTS or not colon:
        return _EMPTY_PORT.sub(r"\1", cleaned)
    rest = rest.replace("\\", "/")
    if scheme == "file":
        host, path = _FILE.fullmatch(rest).groups("")  # type: ignore[union-attr]  # the pattern matches any text
        return f"file://{'' if host.lower() == 'localhost' else host.lower()}/{path}"
    host, slash, path = rest.lstrip("/").partition("/")
    host = host.lower().removesuffix(":").removesuffix(_DEFAULT_PORTS[scheme])
    return f"{scheme}://{host}{slash}{path}"


def normal_form(uri: str) -> str:
    """The URI percent-decoded once, its path without `.`, `..` and empty segments."""
    scheme, authority, path, rest = _split(_decoded(uri))
    return f"{scheme}{authority}{_resolved(path)}{rest}"


def _split(uri: str) -> tuple[str, ...]:
    """Scheme, authority, path, and query with fragment: together the URI again."""
    return _PARTS.fullmatch(uri).groups("")  # type: ignore[union-attr]  # the pattern matches any text


def _decoded(text: str) -> str:
    return unquote(text).translate(_AS_BROWSERS_DO)


def _resolved(path: str) -> str:
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
