"""Foreign text, made fit for people (`visible`) and for models (`sanitize`, `sanitize_json`).

People see everything: an invisible character is shown as its number. Models get less: characters that no human reader
would see are removed, because a model reads them all the same. This module defines which characters these are; its
callers decide whose text is sanitized.

Removed for models everywhere: control characters (except line feed and tab), whole terminal escapes, characters for the
direction of writing, zero-width ones, soft hyphens, fillers, invisible operators, format marks for music, shorthand,
hieroglyphs and annotations, everything that Unicode declares ignorable, private use, lone surrogates and noncharacters.
Unassigned characters stay: they may be new letters. An invisible character that shapes its neighbours is kept only
beside them: a joiner between two letters of a script that is written with joiners, a selector after an emoji, a joiner
between two emoji, the selector of a keycap, and the tags of the three flags that are written with them (England,
Scotland, Wales). All other selectors are removed, including those of Han and Mongolian letters, because 256 of them can
encode invisible bytes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby

ELLIPSIS = "…"
"""Replaces text that was cut."""
MAX_CHANGED = 200_000
"""Strings of one JSON text that are changed, some 20 µs each. A definition cannot contain as many."""
MAX_QUOTED = 200
"""Characters of a text of a server or an issuer that a sentence for people repeats."""

# Characters that are invisible, or look like a space, although their category says otherwise.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")

_TERMINAL = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # CSI
    # OSC, DCS, SOS, PM, APC up to their terminator
    "|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x18\x1a\x1b\x80-\x9f]*+(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*+[0-~]"  # all the short ones, and the beginning of a long one that does not end
)
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")
_ALWAYS = (  # in the basic plane, and beyond
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0d\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff",
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e0fff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 15))
    + "\U000f0000-\U0010ffff",
)
_SHAPING = ("\u200c\u200d\ufe0e\ufe0f", "\U000e0020-\U000e007f")
# Two classes, because a class of the basic plane alone is looked up in a table, and any other one is searched linearly.
_NEVER = re.compile(f"(?:[{_ALWAYS[0]}]|[{_ALWAYS[1]}])+")
_ODD = re.compile(f"[\r\x85\u2028\u2029{_ALWAYS[0]}{_SHAPING[0]}]")
_ODD_BEYOND = re.compile(f"[{_ALWAYS[1]}{_SHAPING[1]}]")

_EMOJI = (
    "(?:[\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23f3"
    "\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c"
    "\u2b50\u2b55\u3030\u303d\u3297\u3299]|[\U0001f004\U0001f0cf\U0001f170-\U0001f19a\U0001f1e6-\U0001f251"
    "\U0001f300-\U0001f64f\U0001f680-\U0001f6ff\U0001f7e0-\U0001f7f0\U0001f90c-\U0001f9ff\U0001fa70-\U0001faff])"
)
_JOINING_BLOCKS = (
    (0x0600, 0x08FF),  # Arabic, Syriac, Thaana, N'Ko, Samaritan, Mandaic
    (0x0900, 0x0DFF),  # Devanagari to Sinhala
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1800, 0x18AF),  # Mongolian
    (0x1B00, 0x1C4F),  # Balinese, Sundanese, Batak, Lepcha
    (0xA800, 0xA8FF),  # Syloti Nagri, Phags-pa, Saurashtra, Devanagari
    (0xA980, 0xAAFF),  # Javanese, Myanmar, Cham, Meetei Mayek
    (0xABC0, 0xABFF),  # Meetei Mayek
    (0xFB50, 0xFDFF),  # Arabic
    (0xFE70, 0xFEFE),  # Arabic
    (0x10AC0, 0x10BAF),  # Manichaean to Psalter Pahlavi
    (0x10D00, 0x10D3F),  # Hanifi Rohingya
    (0x10F30, 0x10FDF),  # Sogdian, Old Uyghur, Chorasmian
    (0x11000, 0x1193F),  # Brahmi and what comes of it
    (0x1E900, 0x1E95F),  # Adlam
)


_FLAGS = tuple(
    "".join(chr(0xE0000 + ord(char)) for char in word) + "\U000e007f" for word in ("gbeng", "gbsct", "gbwls")
)


def _joining() -> str:
    """The letters and marks of scripts that are written with joiners, as an expression for one of them."""
    classes = ["", ""]
    for first, last in _JOINING_BLOCKS:
        for letter, run in groupby(map(chr, range(first, last + 1)), _is_letter):
            if letter:
                chars = list(run)
                classes[first > 0xFFFF] += f"{chars[0]}-{chars[-1]}"
    return "(?:[{}]|[{}])".format(*classes)


def _is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM" and not _ODD.match(char)


@cache  # few texts need it, and it takes 4 ms of a start
def _stray() -> re.Pattern[str]:
    """Characters that are invisible and shape nothing at their place. A character that justifies an invisible one is
    never removed itself, so one pass is enough."""
    joining = _joining()
    at_home = [
        f"(?<={_EMOJI}[\ufe0e\ufe0f])",
        f"(?<={_EMOJI}\u200d)(?={_EMOJI})",
        f"(?<={_EMOJI}[\ufe0e\ufe0f]\u200d)(?={_EMOJI})",
        "(?<=[0-9#*]\ufe0f)(?=\u20e3)",
        f"(?<={joining}[\u200c\u200d])(?={joining})",
        *(
            f"(?<=\U0001f3f4{flag[:place]})" + (f"(?={flag[place:]})" if place < len(flag) else "")
            for flag in _FLAGS
            for place in range(1, len(flag) + 1)
        ),
    ]
    return re.compile(f"[{''.join(_SHAPING)}](?!{'|'.join(at_home)})")


def visible(text: str, *, lines: bool = False) -> str:
    """The text for people. Every character that is invisible, moves others or is an unusual space is shown as
    `⟨U+202E⟩`; with `lines`, line feed and tab stay."""
    if text.isprintable() and (text.isascii() or not _BLANK.search(text)):
        return text
    return "".join(
        char if (char.isprintable() and not _BLANK.match(char)) or (lines and char in "\n\t") else _numbered(char)
        for char in text
    )


def shortened(text: str, limit: int) -> str:
    """The text in at most `limit` characters, the last of them an ellipsis if it was cut."""
    return text if len(text) <= limit else text[: limit - len(ELLIPSIS)] + ELLIPSIS


def visible_output(line: str) -> str:
    """A line that a program wrote for a terminal, for people: without terminal escapes and what a carriage return
    overwrote, with spaces for tabs."""
    shown = line.rstrip("\r").rpartition("\r")[2]
    return visible(_TERMINAL.sub("", shown).expandtabs(4))


def quoted(text: str, redact: Callable[[str], str], speaker: str = "the server") -> str:
    """A text of a peer in a sentence for people, on one line, cut to MAX_QUOTED characters and marked as theirs: `the
    server says: "…"`. Empty if nothing of it is left.

    It is never part of what a client is answered: a server must not speak to a model in our name, and what refused us
    may know more than a client may.

    Args:
        redact: replaces the secrets that the peer was given.
    """
    said = " ".join(_TERMINAL.sub("", redact(text)).split())
    # Once more, because a secret may have been in parts. Before the cut, which would leave the beginning of one.
    said = visible(redact(said)).replace('"', "'")
    return f'{speaker} says: "{shortened(said, MAX_QUOTED)}"' if said else ""


def with_said(why: str, said: str) -> str:
    """A reason for people, with what a peer says about it, which is `quoted`."""
    return f"{why}; {said}" if said else why


_DIRECTORY = re.compile(
    r"(?:\b(?:file|unix)://|(?<![\w/.…~+-])(?!(?<=:)//))~?/"
    r"(?:(?<=['\"`]/)[^'\"`\n]*/(?=[^'\"`/\n]+['\"`])|(?:[^\s/'\"`:;,()\[\]{}<>]+/)*)(?=[\w.@~+-])"
)


def without_directories(text: str) -> str:
    """A text about this machine for a peer: of absolute paths, the last part is left (`…/server.py`). URLs stay."""
    return _DIRECTORY.sub("…/", text)


def _numbered(char: str) -> str:
    return f"⟨U+{ord(char):04X}⟩"


def sanitize(text: str, *, limit: int | None = None) -> str:
    """The text for models, without invisible characters, and of at most `limit` characters, the last of them an
    ellipsis if it was cut. Other line ends become line feeds. Sanitizing twice changes nothing."""
    if _may_change(text):
        text = _sanitized(text)
    if limit is None or len(text) <= limit:
        return text
    # A cut in the middle of an emoji leaves a joiner at the end.
    return _stray().sub("", text[: limit - 1]) + ELLIPSIS if limit > 0 else ""


def _may_change(text: str) -> bool:
    if text.isascii():
        return not text.isprintable() and _ODD.search(text) is not None
    return _ODD.search(text) is not None or _ODD_BEYOND.search(text) is not None


def _sanitized(text: str) -> str:
    return _stray().sub("", _NEVER.sub("", _LINE_END.sub("\n", _TERMINAL.sub("", text))))


# Bytes of JSON text that may need a change; a few harmless neighbours are included. Searching one byte costs next to
# nothing, and so do expressions that begin with one.
_ODD_BYTES = bytes((*range(0x09), *range(0x0B, 0x20), 0x7F, 0xEE, *range(0xF1, 0x100)))
_ODD_BYTE = re.compile(b"[" + re.escape(_ODD_BYTES) + b"]")
_ODD_ESCAPE = re.compile(rb"\\[ubfr]")
_ODD_SEQUENCES = tuple(
    map(
        re.compile,
        (
            rb"\xc2[\x80-\x9f\xad]",
            rb"\xcd\x8f",
            rb"\xd8\x9c",
            rb"\xe1(?:\x85[\x9f\xa0]|\x9e[\xb4\xb5]|\xa0[\x8b-\x8f])",
            rb"\xe2(?:\x80[\x8b-\x8f\xa8-\xae]|\x81[\xa0-\xaf])",
            rb"\xe3\x85\xa4",
            rb"\xef(?:[\x80-\xa3]|\xb7[\x90-\xaf]|\xb8[\x80-\x8f]|\xbb\xbf|\xbe\xa0|\xbf[\xb0-\xbf])",
            rb"\xf0(?:\x93\x90[\xb0-\xbf]|\x9b\xb2|\x9d\x85|[\x90-\xbf]\xbf[\xbe\xbf])",
        ),
    )
)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OPEN, _CLOSE = b"{}"
_TOKEN = re.compile(rb'[{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NAME_FOLLOWS = re.compile(rb"[ \t\r\n]*+:")
_DATA = re.compile(r"(?:data:[\x21-\x2b\x2d-\x7e]*,)?[A-Za-z0-9+/_-]*={0,2}")
"""Base64, perhaps as a `data:` URI, which cutting would destroy."""

_LIGHT_BYTES = 16 * 1024
_LIGHT_QUOTES = 2_000
"""Each changed string takes ten microseconds, and each removed character half of one."""

# Made once: `json.loads` and `json.dumps` would make them for each string.
_lenient = json.JSONDecoder(strict=False)
_writer = json.JSONEncoder(ensure_ascii=False)

_Span = tuple[int, int]


def sanitize_json(raw: bytes, *, limit: int | None = None) -> bytes:
    """JSON text with every string, including names of members, sanitized and cut as by `sanitize`. Everything else is
    kept byte for byte; without any change the same object is returned. Base64 is never cut.

    If a changed name would equal that of another member of the object, it gets a number (`name~2`), so that the
    original keeps its name.

    Args:
        raw: valid JSON text in UTF-8.
        limit: maximum of characters in one string.

    Raises:
        ValueError: more than MAX_CHANGED strings would be changed.
    """
    odd = sorted(_odd_places(raw))
    if not odd and (limit is None or len(raw) <= limit + 2):
        return raw
    longest = len(raw) if limit is None else limit + 2
    changes: dict[_Span, str] = {}
    names: set[_Span] = set()
    odd.append(len(raw))
    ahead = iter(odd)
    place = next(ahead)
    for found in _STRING.finditer(raw):
        start, stop = span = found.span()
        if stop <= place and stop - start <= longest:
            continue
        text = _decoded(raw[start:stop])
        fit = _fit(text, limit)
        if fit != text:
            if len(changes) == MAX_CHANGED:
                raise ValueError(f"more than {MAX_CHANGED} texts of it hold characters that are not passed on")
            changes[span] = fit
            if _NAME_FOLLOWS.match(raw, stop):
                names.add(span)
        while place < stop:
            place = next(ahead)
    if names:
        _make_names_unique(raw, names, changes, limit)
    return _changed(raw, changes)


def is_light(raw: bytes) -> bool:
    """Whether `sanitize_json` without a limit takes some milliseconds at most: the text is short, or needs no
    change."""
    return (len(raw) <= _LIGHT_BYTES and raw.count(b'"') <= _LIGHT_QUOTES) or next(_odd_places(raw), None) is None


def _odd_places(raw: bytes) -> Iterator[int]:
    """The places in JSON text that may need a change, in no order, without exception."""
    is_ascii = raw.isascii()
    # Strings of JSON have no control characters but DEL, which is found in a tenth of the time.
    if 0x7F in raw if is_ascii else len(raw.translate(None, _ODD_BYTES)) != len(raw):
        yield from (found.start() for found in _ODD_BYTE.finditer(raw))
    if b"\\" in raw:
        yield from (found.start() for found in _ODD_ESCAPE.finditer(raw))
    if not is_ascii:
        for sequence in _ODD_SEQUENCES:
            yield from (found.start() for found in sequence.finditer(raw))


def _fit(text: str, limit: int | None) -> str:
    fit = sanitize(text)
    return fit if limit is None or len(fit) <= limit or _DATA.fullmatch(fit) else sanitize(fit, limit=limit)


def _decoded(string: bytes) -> str:
    if b"\\" not in string:
        return string[1:-1].decode()
    # Not msgspec: it refuses lone surrogates, which are among the characters to find.
    found: str = _lenient.decode(string.decode())
    return found


def _changed(raw: bytes, changes: dict[_Span, str]) -> bytes:
    if not changes:
        return raw
    pieces: list[bytes] = []
    end = 0
    for (start, stop), text in changes.items():
        pieces += raw[end:start], _writer.encode(text).encode()
        end = stop
    return b"".join((*pieces, raw[end:]))


def _make_names_unique(raw: bytes, names: set[_Span], changes: dict[_Span, str], limit: int | None) -> None:
    """Number the changed names that equal the name of another member of their object."""
    left = len(names)
    objects: list[list[_Span]] = []  # the names of each open object
    for found in _TOKEN.finditer(raw):
        start, stop = span = found.span()
        if raw[start] == _OPEN:
            objects.append([])
        elif raw[start] == _CLOSE:
            own = objects.pop()
            changed = [span for span in own if span in names]
            if changed:
                taken = {_decoded(raw[slice(*span)]) for span in own if span not in names}
                _number(changed, taken, changes, limit)
                left -= len(changed)
                if not left:
                    return
        elif _NAME_FOLLOWS.match(raw, stop):
            objects[-1].append(span)


def _number(changed: list[_Span], taken: set[str], changes: dict[_Span, str], limit: int | None) -> None:
    numbers: dict[str, int] = {}
    for span in changed:
        fit = name = changes[span]
        while name in taken:
            numbers[fit] = numbers.get(fit, 1) + 1
            number = f"~{numbers[fit]}"
            name = (fit if limit is None else sanitize(fit, limit=max(limit - len(number), 0))) + number
        taken.add(name)
        changes[span] = name
