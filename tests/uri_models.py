"""What servers make of a URI, by the documented algorithms of four languages: a second opinion on `host/policy/uris.py`
that shares no code with it.

Python is the real `urllib.parse`. Go is `net/url.Parse` with `path.Clean`. Node.js and Rust follow the WHATWG URL
standard, with `url.fileURLToPath` and `Url::to_file_path`. Where Node.js is installed, `tests/host/policy/test_uris.py`
compares its model with the original.

An identity is what a server that uses the library finds an entry by, without query and fragment: `file:///path`,
`scheme://host/path` or `scheme:path`. Percent-encoding is decoded, and the path is resolved as an operating system
resolves it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from unicodedata import category, normalize
from urllib.parse import unquote, unquote_to_bytes, urlparse, urlsplit
from urllib.request import url2pathname

HEX = "0123456789abcdefABCDEF"


def identities(uri: str) -> dict[str, list[str]]:
    """By language, what its servers may take the URI for; nothing where the library refuses it."""
    return {
        "python": sorted(set(python(uri))),
        "go": sorted(set(go(uri))),
        "node": sorted(set(node(uri))),
        "rust": sorted(set(rust(uri))),
    }


def lax(path: str) -> str:
    """The path with its names as file systems compare them that ignore case, forms of letters, joiners, and dots and
    blanks at the end."""
    seen = "".join(char for char in path if category(char) not in ("Cf", "Cc", "Cs"))
    for _ in range(2):
        seen = normalize("NFKC", seen).casefold()
    return "/".join(
        name.rstrip(" .") if name.strip(" .") and name.rstrip(" .")[-1] not in "*?" else name
        for name in normalize("NFKC", seen).split("/")
    )


def on_lax_disk(identity: str) -> str:
    """The identity of a file on such a file system; any other identity as it is."""
    scheme, _, path = identity.partition(":")
    return f"file://{on_disk('/' + lax(path).lstrip('/'))}" if scheme == "file" else identity


def understood(uri: str) -> list[str]:
    """All identities, and what is left of the URI where it is cut at its fragment or its query."""
    cut = [uri.partition(mark)[0] for mark in "#?" if mark in uri]
    return sorted({*cut, *(each for found in identities(uri).values() for each in found)})


def identity(scheme: str, host: str, path: str) -> str:
    return f"{scheme}://{host}{on_disk(path)}"


def on_disk(path: str) -> str:
    """The path as the kernel resolves it, symbolic links aside."""
    resolved = posixpath.normpath(path) if path else ""
    return "/" + resolved.lstrip("/") if path.startswith("/") else resolved


# Python


def python(uri: str) -> Iterator[str]:
    """`urlparse` and `urlsplit`, decoded after, before or not at all; `url2pathname`; the host as the first folder."""
    for text in (uri, unquote(uri)):
        for split in (urlparse, urlsplit):
            try:
                parts = split(text)
            except ValueError:
                continue
            if not parts.scheme:
                continue
            for path in (parts.path, unquote(parts.path), url2pathname(parts.path)):
                if parts.scheme == "file":
                    if path.startswith("/"):
                        yield identity("file", "", path)
                elif path.startswith("/") or parts.netloc:
                    yield identity(parts.scheme, parts.netloc, path)
                    yield identity(parts.scheme, parts.netloc.rpartition("@")[2], path)
                    if parts.netloc:
                        yield f"{parts.scheme}://{on_disk(parts.netloc + path)}"
                else:
                    yield f"{parts.scheme}:{on_disk(path)}"


def paths(uri: str) -> Iterator[str]:
    """What a server takes the URI for that looks at paths alone, relative or not: all of the text, or what `urlsplit`
    calls the path of a text without scheme. Of a scheme that `urlsplit` knows, rules for paths say nothing."""
    for text in (uri, unquote(uri)):
        yield on_disk(text)
        yield on_disk(before_query(text))
        try:
            parts = urlsplit(text)
        except ValueError:
            continue
        if not parts.scheme:
            yield on_disk(parts.path)
            yield on_disk(unquote(parts.path))


# Go


def go(uri: str) -> Iterator[str]:
    """`url.Parse`, and `path.Clean` of the Path, or the Opaque part."""
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in uri):
        return
    text, _, _ = uri.partition("#")
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)", text)
    if scheme is None:
        return
    rest, _, _ = text[scheme.end() + 1 :].partition("?")
    name = scheme[0].lower()
    if not rest.startswith("/"):
        yield f"{name}:{on_disk(rest)}"
        if go_unescapes(rest):
            yield f"{name}:{on_disk(unquote(rest))}"
        return
    host = ""
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        userinfo, at, host = authority.rpartition("@")
        if at and not re.fullmatch(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", userinfo):
            return
        if not go_takes_host(host):
            return
        host = unquote(host)
    if go_unescapes(rest):
        yield identity(name, "" if name == "file" else host, unquote(rest))


def go_unescapes(text: str) -> bool:
    return all(re.match(r"%[0-9a-fA-F]{2}", text[at.start() :]) for at in re.finditer("%", text))


def go_takes_host(host: str) -> bool:
    """Only bytes beyond ASCII may be percent-encoded in a host; a port is digits."""
    if not re.fullmatch(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"]|[^\x00-\x7f]|%[89a-fA-F][0-9a-fA-F])*", host):
        return False
    if host.startswith("["):
        return bool(re.fullmatch(r"\[[^\]]*\](?::[0-9]*)?", host))
    _, colon, port = host.rpartition(":")
    return not colon or port == "" or port.isdigit()


# WHATWG: Node.js and Rust

SPECIAL = {"file": None, "ftp": 21, "http": 80, "https": 443, "ws": 80, "wss": 443}
CONTROLS = "".join(map(chr, range(0x21)))
FORBIDDEN_IN_HOST = set("\0\t\n\r #/:<>?@[\\]^|")
FORBIDDEN_IN_DOMAIN = FORBIDDEN_IN_HOST | set(map(chr, range(0x20))) | {"%", "\x7f"}
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Whatwg:
    """A URL record, without what nobody finds a file by. `segments` is None for an opaque path, which is `opaque`."""

    scheme: str
    host: str
    segments: tuple[str, ...] | None
    opaque: str = ""

    @property
    def pathname(self) -> str:
        return self.opaque if self.segments is None else "".join(f"/{each}" for each in self.segments)


class Unmodelled(Exception):
    """A host whose canonical form takes more than this file has (IPv4 numbers, IPv6, names beyond ASCII)."""


def whatwg(uri: str, *, keep_dots: bool = False) -> Whatwg | None:
    """The basic URL parser of the standard; None for a failure. With `keep_dots`, dot segments are left in the path."""
    text = re.sub("[\t\n\r]", "", uri.strip(CONTROLS))
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", text)
    if found is None:
        return None
    scheme = found[1].lower()
    rest = text[found.end() :]
    if scheme == "file":
        return whatwg_file(rest, keep_dots)
    if scheme in SPECIAL:
        while rest[:1] in ("/", "\\") and rest:
            rest = rest[1:]
        return whatwg_with_authority(scheme, rest, keep_dots)
    if rest.startswith("//"):
        return whatwg_with_authority(scheme, rest[2:], keep_dots)
    if rest.startswith("/"):
        return Whatwg(scheme, "", whatwg_path(scheme, before_query(rest)[1:], keep_dots))
    return Whatwg(scheme, "", None, before_query(rest))


def before_query(text: str) -> str:
    return re.split("[?#]", text, maxsplit=1)[0]


def whatwg_file(rest: str, keep_dots: bool) -> Whatwg | None:
    rest = before_query(rest)
    if rest[:1] not in ("/", "\\"):
        return Whatwg("file", "", whatwg_path("file", rest, keep_dots))
    rest = rest[1:]
    if rest[:1] not in ("/", "\\"):
        return Whatwg("file", "", whatwg_path("file", rest, keep_dots))
    rest = rest[1:]
    end = min((at for mark in "/\\" if (at := rest.find(mark)) >= 0), default=len(rest))
    host = rest[:end]
    if is_drive(host):
        return Whatwg("file", "", whatwg_path("file", rest, keep_dots))
    parsed = whatwg_host("file", host) if host else ""
    if parsed is None:
        return None
    return Whatwg("file", "" if parsed == "localhost" else parsed, whatwg_path("file", rest[end + 1 :], keep_dots))


def whatwg_with_authority(scheme: str, rest: str, keep_dots: bool) -> Whatwg | None:
    special = scheme in SPECIAL
    marks = "/\\?#" if special else "/?#"
    end = min((at for mark in marks if (at := rest.find(mark)) >= 0), default=len(rest))
    host, tail = rest[:end].rpartition("@")[2], before_query(rest[end:])
    if "@" in rest[:end] and not host:
        return None
    port = ""
    if not host.endswith("]") and ":" in host:
        host, _, port = host.rpartition(":")
        if ":" in host and not host.startswith("["):
            return None
        if not host or not re.fullmatch("[0-9]*", port) or (port and int(port) > 65535):
            return None
    parsed = whatwg_host(scheme, host)
    if parsed is None or (special and not parsed):
        return None
    if port and int(port) != SPECIAL.get(scheme):
        parsed += f":{int(port)}"
    segments: tuple[str, ...] = ()
    if tail or special:
        segments = whatwg_path(scheme, tail[1:], keep_dots)
    return Whatwg(scheme, parsed, segments)


def whatwg_host(scheme: str, host: str) -> str | None:
    if host.startswith("["):
        raise Unmodelled(host)
    if scheme not in SPECIAL:
        return None if set(host) & FORBIDDEN_IN_HOST else host
    try:
        name = unquote_to_bytes(host.encode("utf-8", "surrogatepass")).decode("ascii").lower()
    except UnicodeDecodeError:
        raise Unmodelled(host) from None
    if set(name) & FORBIDDEN_IN_DOMAIN:
        return None
    if name.removesuffix(".").rpartition(".")[2][:1].isdigit() or "xn--" in name:
        raise Unmodelled(host)
    return name


def whatwg_path(scheme: str, text: str, keep_dots: bool) -> tuple[str, ...]:
    """The path state; `text` is what comes after the first slash."""
    segments = re.split(r"[/\\]" if scheme in SPECIAL else "/", text)
    kept: list[str] = []
    for at, segment in enumerate(segments):
        name = segment.lower().replace("%2e", ".")
        if name in (".", "..") and not keep_dots:
            if name == ".." and kept and not (scheme == "file" and len(kept) == 1 and is_drive(kept[0], colon=True)):
                kept.pop()
            if at == len(segments) - 1:
                kept.append("")
        else:
            if scheme == "file" and not kept and is_drive(segment):
                segment = f"{segment[0]}:"
            kept.append(segment)
    return tuple(kept)


def is_drive(text: str, *, colon: bool = False) -> bool:
    return len(text) == 2 and text[0] in LETTERS and text[1] in (":" if colon else ":|")


def node(uri: str) -> Iterator[str]:
    """`url.fileURLToPath`, and the decoded `pathname` that programs use in its place, also that of a decoded URI. The
    parser of Node.js 20 leaves dot segments, against the standard, where another name in the path begins with a dot."""
    for text in (uri, unquote(uri)):
        for keep_dots in (False, True):
            try:
                url = whatwg(text, keep_dots=keep_dots)
            except Unmodelled:
                continue
            if url is None:
                continue
            for path in (url.pathname, decode_uri_component(url.pathname)):
                if path is None:
                    continue
                if url.scheme == "file":
                    yield identity("file", "", path)
                elif url.segments is None:
                    yield f"{url.scheme}:{on_disk(path)}"
                else:
                    yield identity(url.scheme, url.host, path)


def file_url_to_path(url: Whatwg) -> str | None:
    """`url.fileURLToPath` on POSIX; None if it throws."""
    if url.scheme != "file" or url.host or re.search("%2f", url.pathname, re.IGNORECASE):
        return None
    return decode_uri_component(url.pathname)


def decode_uri_component(text: str) -> str | None:
    """As in JavaScript, which refuses what is malformed."""
    if any(not re.match(r"%[0-9a-fA-F]{2}", text[at.start() :]) for at in re.finditer("%", text)):
        return None
    try:
        return unquote_to_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8")
    except UnicodeDecodeError:
        return None


def rust(uri: str) -> Iterator[str]:
    """`Url::to_file_path`: each segment is decoded, and may hold slashes then."""
    try:
        url = whatwg(uri)
    except Unmodelled:
        return
    if url is None or url.segments is None:
        return
    path = "".join("/" + unquote(each) for each in url.segments)
    if url.scheme != "file":
        yield identity(url.scheme, url.host, path)
    elif not url.host:
        yield identity("file", "", path or "/")


# Spellings

ENDS = (
    *("?", "?x=1", "?a=b/../c", "?/../..", "??", "?#", "#", "#frag", "##", "#a?b", "?a#b", "#/../x", "/", "/.", "//"),
    *("/./", "/././/", "/x/..", "/x/../", "/%2e", "/%2E/", "%2F", "%2f.", "%2f..%2f.env", ".", "..", "...", "/..."),
    *("%00", "%00.md", "\0", ";x", ";x=1?y", ";", "%3Bx", "%20", "%20?x", " ", "\t", "\n", "%09", "%0a", "%3F", "%3Fx"),
    *("%23", "%23x", "%253Fx", "%2523", "%252F", "\\", "\\.", "%5c", "%5C.", "/x%2f..", "/%2e%2e/.env", "?.md", "#.md"),
    *("/..%2f.env", "%3F/../x", "{?x}", "/;x", "/?", "/#", "/.?x", "/./#f", "&x", "=", "|", "^", "`", '"', "<>"),
)
STEPS = (
    *("/./", "//", "///", "/x/../", "/x/./../", "/%2e/", "/%2E/", "/x/%2e%2e/", "/x/.%2e/", "/x/%2E./", "/x%2f../"),
    *(
        "/x%2F%2e%2e/",
        "/x//../",
        "/x//../../",
        "/a%5cb%2f../",
        "/a%5cb/../",
        "/a\\b/../",
        "\\",
        "\\x\\..\\",
        "%2f",
        "%5c",
    ),
    *(
        "/?/../",
        "/#/../",
        "/x?/../",
        "/x%3F/../",
        "/x%23/../",
        "/%3F/../",
        "/\t/",
        "/\t./",
        "/.\t./",
        "/%09/../",
        "/;/",
    ),
    *(
        "/x;y/../",
        "/../",
        "/../../",
        "/%2e%2e/",
        "/..%2f",
        "/%252e%252e/",
        "/%252f",
        "/..;/",
        "/.;/",
        "/%00/../",
        "/ /",
    ),
    *(
        "/a%2fb/../",
        "/a%2fb/../../",
        "/a%2fb/%2e%2e/%2e%2e/",
        "/c:/../",
        "/C|/../",
        "/./../",
        "/.../",
        "/%2f/",
        "/%2f../",
    ),
)
FILE_BEGINNINGS = (
    *(
        "file:///",
        "FILE:///",
        "File:/",
        "file:/",
        "file:",
        "file:////",
        "file://///",
        "file:\\\\\\",
        "file:\\",
        "file:/\\",
    ),
    *("file://localhost/", "file://LOCALHOST/", "file://localhost:80/", "file://%6cocalhost/", "file://evil/"),
    *("file://127.0.0.1/", "file://a@b/", "file://.", "file://./", "file://../", "file://c:/../", "file://c|/../"),
    *(
        " file:///",
        "\tfile:///",
        "\x01file:///",
        "fi\nle:///",
        "file\t:///",
        "file:///./",
        "file:///x/../",
        "file:///c:/../",
    ),
    *(
        "file:///%2e/",
        "file:///%2f",
        "file:///\\",
        "file:%2f%2f%2f",
        "file%3a///",
        "file:?/",
        "file:#/",
        "file:///c|/../",
    ),
)
PATH_BEGINNINGS = (
    *("", "/", "//", "///", "//h/", "//h/x/../", "//../", "//u@h:80/", "./", "h/../", "/h/../", "?/../", "#/../"),
    *("x:/../", "1:/../", "x:/h/../../", "x://h/../../", "x://../../", "file:/../", "file:///../", ":/../", "x:y/../"),
    *("x:/../x:/../", " x:/../", " //h/", "x:/./../", "x%3a/../", "//h%2f", "x:\\..\\", "/\t/h/", "x:/../1:/../"),
)
PORTS = ("", "80", "443")
BEGINNINGS = (
    "upper",
    " ",
    "\x01",
    "one slash",
    "three slashes",
    "no slashes",
    "backslashes",
    "userinfo",
    "port",
    "host",
)


def spelling(random: Random, uri: str) -> str:
    """The URI, written in another way that may or may not mean the same."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        uri = random.choice((ended, ended, ended, stepped, stepped, escaped, begun, loosened))(random, uri)
    return uri


def ended(random: Random, uri: str) -> str:
    return uri + random.choice(ENDS)


def stepped(random: Random, uri: str) -> str:
    slashes = [at.start() for at in re.finditer("/", uri)]
    if not slashes:
        return uri
    at = random.choice(slashes)
    return uri[:at] + random.choice(STEPS) + uri[at + 1 :]


def escaped(random: Random, uri: str) -> str:
    """Some characters percent-encoded, once or twice."""
    chance = random.choice((0.05, 0.1, 0.3, 1.0))
    begin = random.choice((0, uri.find(":") + 1, uri.rfind("/") + 1))
    form = random.choice(("%{:02x}", "%{:02X}", "%{:02x}", "%25{:02x}"))
    return uri[:begin] + "".join(
        "".join(form.format(byte) for byte in char.encode()) if random.random() < chance else char
        for char in uri[begin:]
    )


LOOKALIKES = {"e": "\uff45", "d": "\uff24", "s": "\u017f", "a": "\uff21", ".": "\uff0e", "/": "\uff0f", "k": "\u212a"}


def loosened(random: Random, uri: str) -> str:
    """Another case, other forms of letters, joiners in names of files, or dots behind them."""
    path = uri.rfind(":") + 1
    if not uri.startswith("file:///"):
        return uri
    way = random.choice(("case", "case", "forms", "joiner", "dots"))
    made = ""
    for char in uri[path:]:
        if random.random() > 0.2:
            made += char
        elif way == "case":
            made += char.swapcase()
        elif way == "forms":
            made += LOOKALIKES.get(char, char)
        elif way == "joiner":
            made += f"{char}\u200d" if char.isalnum() else char
        else:
            made += f"{random.choice('. ')}/" if char == "/" and made.strip("/") else char
    return uri[:path] + made


def begun(random: Random, uri: str) -> str:
    """Another way to write scheme and host."""
    if uri.startswith("file:///"):
        return random.choice(FILE_BEGINNINGS) + uri[len("file:///") :]
    if uri.startswith("/"):
        return random.choice(PATH_BEGINNINGS) + uri[1:]
    scheme, colon, rest = uri.partition("://")
    if not colon:
        return uri
    host, slash, path = rest.partition("/")
    hosts = (host.upper(), f"x/../{host}", "".join(f"%{ord(char):x}" for char in host[:1]) + host[1:])
    written = {
        "upper": f"{scheme.upper()}://{rest}",
        " ": f" {uri} ",
        "\x01": f"\x01{uri}",
        "one slash": f"{scheme}:/{rest}",
        "three slashes": f"{scheme}:///{rest}",
        "no slashes": f"{scheme}:{rest}",
        "backslashes": f"{scheme}:\\\\{rest}",
        "userinfo": f"{scheme}://me:x@{rest}",
        "port": f"{scheme}://{host}:{random.choice(PORTS)}{slash}{path}",
        "host": f"{scheme}://{random.choice(hosts)}{slash}{path}",
    }
    return written[random.choice(BEGINNINGS)]
