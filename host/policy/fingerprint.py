"""Fingerprints of definitions, launch identities of servers, and differences between definitions.

A fingerprint covers the whole definition; the order of members, whitespace and the encoding of characters do not
matter. These functions do not wait and keep no state; only the resolution of a command reads the file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import Match, SequenceMatcher
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

import rfc8785
from msgspec import Struct

from config import HttpServer, ServerSpec, StdioServer
from host.jsonrpc.numbers import is_exact, read_float
from host.relay_start import resolve_program
from host.sanitize import visible
from host.wire.process import child_environment

Diff = list[tuple[str, str]]
"""Pieces of text, each `same`, `added` or `removed`. Line feeds in them come from the layout."""

Pieces = list[tuple[str, list[str]]]
"""A difference whose words are not joined yet."""

Stretches = list[tuple[list[str], list[str]]]
"""The words of two texts that stand in the place of each other."""

ELLIPSIS = "⋯"
"""Replaces, on a line of its own, an unchanged stretch that was left out."""

_AS_IT_IS = b"\x00as it is\x00"
"""Prefix of the bytes of a text without canonical form. No JSON begins with NUL, so the two kinds of digests cannot
collide."""
_MOST_EXACT = 2**53 - 1
_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_ORDERED_BY_UNITS = re.compile(rb"[\xf0-\xf4]|\\u[dD]")
"""Characters beyond U+FFFF, as they are or escaped: the canonical form orders names by UTF-16, and Python by
characters."""
_DEEPEST = 100
"""Levels. A deeper value has no canonical form, however much of Python's own recursion limit is left."""
_MOST_MARKS = 20_000
"""Commas and opening brackets. A text with more has no canonical form, because parsing takes some 4 µs for each."""
_MOST_ARGUMENTS = 2_000
"""The same limit for arguments."""
_MANY_MARKS = 1_500
_MANY_BYTES = 256 * 1024
"""Commas and opening brackets, and bytes; longer definitions are fingerprinted in a worker process."""
_EFFORT = 60_000
"""Steps of a comparison, some 10 ms, before a coarser one is made."""
_MOST_WORDS = 200_000
"""Characters up to which texts are compared word by word."""
_MOST_LAID_OUT = 10_000
"""Commas and opening brackets; a text with more is not laid out, because that would take too long and nobody would read
it."""
_DEEPEST_INDENT = 24
"""Levels; deeper values are not indented further."""
_MOST_PIECES = 2_000
"""Differences; a longer list is not readable word by word."""
_CONTEXT_LINES = 3
_CONTEXT = 240
"""Characters of unchanged text that are shown beside a change."""

_STARTS_WITH = "starts with "
_PARTS = frozenset(("bin", "lib", "lib64", "libexec", "pyvenv.cfg"))
"""The names by which the parts of an installation are shown together."""

_WORD = re.compile(r"\n *|\\.|\w+| +|.", re.DOTALL)


# Fingerprints


def fingerprint(raw: bytes) -> str:
    """`sha256:` and the digest of the JSON text in canonical form (RFC 8785); of the bytes, if it has none."""
    return f"sha256:{hashlib.sha256(_canonical(raw)).hexdigest()}"


def is_long(raw: bytes) -> bool:
    """Whether the fingerprint may take more than some 5 ms."""
    return len(raw) > _MANY_BYTES or (len(raw) > _MANY_MARKS and _MANY_MARKS < _marks(raw) <= _MOST_MARKS)


def arguments_digest(raw: bytes | None, others: bytes = b"") -> str:
    """Fingerprint of a call's arguments, None if it has none, and of the members that are sent beside them, empty if
    there are none. It is computed on the event loop, so the limit for a canonical form is lower."""
    found = hashlib.sha256(_canonical(raw or b"", _MOST_ARGUMENTS)).hexdigest()
    if others:  # of no arguments alone: JSON has no NUL
        beside = hashlib.sha256(_canonical(others, _MOST_ARGUMENTS)).hexdigest()
        found = hashlib.sha256(f"\0{found} beside {beside}".encode()).hexdigest()
    return f"sha256:{found}"


def _canonical(raw: bytes, most: int = _MOST_MARKS) -> bytes:
    try:
        if _marks(raw) <= most:
            floats: list[float] = []
            value = _parse(raw, floats)
            if raw.count(b"[") + raw.count(b"{") < _DEEPEST or not _is_too_deep(value):
                # Python's own writer, in a third of the time, where it writes the same
                is_same = not floats and _ORDERED_BY_UNITS.search(raw) is None
                return _ENCODER.encode(value).encode() if is_same else rfc8785.dumps(value)
    except (ValueError, RecursionError):
        pass
    return _AS_IT_IS + raw


def _marks(raw: bytes) -> int:
    """Upper limit of the number of values in JSON text."""
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _parse(raw: bytes, floats: list[float]) -> Any:
    """The parsed value; its numbers with a point or an exponent are added to `floats`. Raises ValueError if parsers may
    disagree about the text."""

    def take(text: str) -> float:
        floats.append(_exactly(text))
        return floats[-1]

    return json.loads(
        raw.decode(), object_pairs_hook=each_once, parse_float=take, parse_int=_whole, parse_constant=_no_constant
    )


def each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Raises ValueError for duplicate names, of which some parsers take the first and some the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member is there twice")
    return found


def _exactly(text: str) -> float:
    """Raises ValueError for a number that some parsers read with other digits."""
    value = read_float(text)
    if not is_exact(value):
        raise ValueError("the number is none that every reader can hold")
    return float(value)


def _whole(text: str) -> int:
    """Raises ValueError for a number that not all readers can hold."""
    value = int(text)
    if not -_MOST_EXACT <= value <= _MOST_EXACT:
        raise ValueError("the number is none that every reader can hold")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for each in level if isinstance(each, dict | list) for inner in _inner(each)]
        if not level:
            return False
    return True


def _inner(value: dict[str, object] | list[object]) -> Sequence[object]:
    return list(value.values()) if isinstance(value, dict) else value


# Launch identity


class Launch(Struct, frozen=True):
    """Launch identity of a server: the program to start, or the URL to connect to.

    `declared` is a digest of the owner's configuration: command, arguments, names of variables, directory (the words
    `${client:folder}` as they are) and sandbox, or the URL. `program` is the real path of the file that the command
    resolves to; None for a URL, and if there is no such file. `sandbox`: what a confined program is given, in words,
    with the files that its command names.

    Of a confined program whose command installs packages: `installs`, what is to be installed before it can be started;
    `installed`, the version and digest of what was.
    """

    declared: str
    program: str | None = None
    sandbox: str = ""
    installs: str = ""
    installed: str = ""

    @property
    def files(self) -> list[str]:
        """`starts with …`, for each file and folder that its command names."""
        return [_STARTS_WITH + path for path in self.sandbox.split(f"; {_STARTS_WITH}")[1:]]


def not_as_approved(launch: Launch) -> str:
    """Why a server is held, about its command. The launch of a confined program changes with each of its files."""
    if launch.installs:
        return "installs packages, which a person approves first"
    if launch.installed:
        return "starts with other packages or files than the approved ones"
    if launch.sandbox:
        return "starts with other files than the approved ones"
    return "resolves to another program than the approved one"


def launch_of(spec: ServerSpec, packages: Path | None = None) -> Launch:
    """The launch identity of a server at this moment; reads the file system. `packages`: the folder of what is
    installed for it; None if nothing is."""
    declared = declared_by(spec)
    if isinstance(spec, HttpServer):
        return Launch(declared)
    if spec.sandbox is None:
        return Launch(declared, program_of(spec))
    return _confined_launch(spec, declared, packages)


def declared_by(spec: ServerSpec) -> str:
    """`Launch.declared` of a server."""
    if isinstance(spec, HttpServer):
        return _declared(["url", spec.url.reveal()])
    declared = unconfined_launch(spec)
    return declared if spec.sandbox is None else _declared([declared, spec.sandbox.beside_strict()])


def unconfined_launch(spec: StdioServer) -> str:
    """`Launch.declared` of a program without its sandbox."""
    words = [word.reveal() for word in spec.command]
    return spec.declared or _declared(["command", words, sorted(spec.env), str(spec.cwd)])


def program_of(spec: StdioServer) -> str | None:
    """The program of a launch alone, which takes a part of the time for a confined one."""
    env, cwd = _environment(spec), str(spec.cwd)
    if spec.takes_client_folder:  # it is one launch for all folders: none of them decides which program it is
        env, cwd = {**env, "PATH": absolute_search_path(env)}, "/"
    return resolve_program(spec.started_words[0], env, cwd)


def _environment(spec: StdioServer) -> dict[str, str]:
    return child_environment({name: value.reveal() for name, value in spec.env.items()})


def _confined_launch(spec: StdioServer, declared: str, packages: Path | None) -> Launch:
    from host.sandbox.installed import ProgramStart, start_of
    from host.sandbox.packages import NotInstallable
    from host.sandbox.plan import needed

    assert spec.sandbox is not None
    if spec.runtime:  # its files are in its image
        return Launch(declared, program_of(spec), spec.sandbox.describe())
    env, words = _environment(spec), tuple(word.reveal() for word in spec.command)
    start = ProgramStart(words)
    if packages is not None:
        with suppress(NotInstallable):  # which its start says
            start = start_of(spec, packages, env, os.environ)
    files = (_STARTS_WITH + path for path in needed(start, env, str(spec.cwd)))
    return Launch(
        declared,
        program_of(spec),
        "; ".join([spec.sandbox.describe(), *files]),
        "" if start.missing is None else str(start.missing),
        "" if start.record is None else str(start.record),
    )


def launch_for_people(definition: bytes, spec: ServerSpec | None) -> bytes:
    """The definition of a launch with its sandbox as a list, which has a line for each group, path and installation,
    and with its command as the file writes it, without secrets, if it is the launch of this server."""
    try:
        launch = json.loads(definition)
        declared, sandbox = launch["declared"], launch.get("sandbox", "")
    except (ValueError, KeyError, TypeError):  # it is none
        return definition
    more: dict[str, object] = {}
    if sandbox:
        given, *paths = sandbox.split(f"; {_STARTS_WITH}")
        more["sandbox"] = [*given.split("; "), *(_STARTS_WITH + path for path in _folded(paths))]
    if isinstance(spec, StdioServer) and spec.written_words and declared == declared_by(spec):
        more["command"] = shlex.join(spec.written_words)
    return json.dumps({**launch, **more}).encode() if more else definition


def _folded(paths: Iterable[str]) -> Iterator[str]:
    """Paths with those of one installation together: `bin, lib in /opt/python`."""
    for folder, group in groupby(paths, lambda path: os.path.dirname(path) if os.path.basename(path) in _PARTS else ""):
        found = list(group)
        if folder and len(found) > 1:
            yield f"{', '.join(map(os.path.basename, found))} in {folder}"
        else:
            yield from found


def absolute_search_path(env: dict[str, str]) -> str:
    """The PATH of an environment without folders that are relative, and so depend on where a program is started."""
    return os.pathsep.join(filter(os.path.isabs, os.get_exec_path(env))) or os.defpath


def _declared(parts: list[object]) -> str:
    # Text from the environment may not be valid UTF-8; such bytes are escaped.
    return f"sha256:{hashlib.sha256(json.dumps(parts, sort_keys=True).encode('ascii')).hexdigest()}"


# For people


def pretty(raw: bytes) -> str:
    """JSON text laid out for people: one member a line, sorted by name, invisible characters made visible. Text that is
    not JSON is shown as it is."""
    return visible_lines(_laid_out(raw))


def difference(before: bytes | None, after: bytes) -> Diff:
    """Difference of two definitions, word by word, laid out as by `pretty`.

    Unchanged stretches are cut to the neighbourhood of a change, with ELLIPSIS for the rest; changed text is never cut.
    Where too much differs, whole lines are shown; if even these are too many, everything is shown as removed and added.
    """
    if before is None:
        return [("added", pretty(after))]
    old, new = _laid_out(before), _laid_out(after)
    head = _common(old, new, min(len(old), len(new)))
    head = max(old.rfind(" ", 0, head), old.rfind("\n", 0, head)) + 1
    tail = _common(old[::-1], new[::-1], min(len(old), len(new)) - head)
    tail -= min((at for char in " \n" if (at := old[len(old) - tail :].find(char)) >= 0), default=0)
    middle = _middle(old[head : len(old) - tail], new[head : len(new) - tail])
    pieces = _joined([("same", [old[:head]]), *middle, ("same", [old[len(old) - tail :]])])
    last = len(pieces) - 1
    return [
        (op, visible_lines(_cut(text, at == 0, at == last) if op == "same" else text))
        for at, (op, text) in enumerate(pieces)
    ]


def _common(old: str, new: str, most: int) -> int:
    """Number of equal characters at the beginning, up to `most`."""
    least = 0
    while least < most:
        at = (least + most + 1) // 2
        if old[least:at] == new[least:at]:
            least = at
        else:
            most = at - 1
    return least


def _middle(old: str, new: str) -> Pieces:
    """The difference of two texts: line by line, and word by word where lines differ, as fine as the limits permit."""
    lines = find_stretches(old.splitlines(keepends=True), new.splitlines(keepends=True))
    words: Stretches = []
    for before, after in lines:
        removed, added = "".join(before), "".join(after)
        if before == after or (size := len(removed) + len(added)) > _MOST_WORDS:
            words.append((before, after))
        else:
            effort = _EFFORT * size // (len(old) + len(new))
            words += find_stretches(_WORD.findall(removed), _WORD.findall(added), effort)
    found = (pieces_of(each) for each in (words, lines))
    return next((pieces for pieces in found if len(pieces) <= _MOST_PIECES), [("removed", [old]), ("added", [new])])


def visible_lines(text: str, kept: str = "\n") -> str:
    """`visible` for long texts: one pass over the characters, keeping the line feeds of the layout."""
    table = {ord(char): shown for char in set(text) if char not in kept and (shown := visible(char)) != char}
    return text.translate(table) if table else text


class Verbatim(NamedTuple):
    """A piece that stands in the layout as it is: a number in its original spelling."""

    text: str


class Members(NamedTuple):
    """An object with all its members, including duplicates."""

    pairs: list[tuple[str, object]]

    def in_order(self) -> list[tuple[str, object]]:
        """The members in the order in which they are laid out."""
        return sorted(self.pairs, key=lambda pair: pair[0])


def parse_for_layout(raw: bytes) -> object:
    """JSON text as `lay_out` takes it. Raises ValueError or RecursionError if it cannot be laid out."""
    if _marks(raw) > _MOST_LAID_OUT:
        raise ValueError("too long to be laid out")
    return json.loads(
        raw.decode(), object_pairs_hook=Members, parse_int=Verbatim, parse_float=Verbatim, parse_constant=Verbatim
    )


def lay_out(value: object) -> str:
    """JSON text with one member a line, sorted by name. Control characters are escaped in all strings."""
    parts: list[str] = []
    _lay_out(value, "\n", parts)
    return "".join(parts)


def _laid_out(raw: bytes) -> str:
    try:
        return lay_out(parse_for_layout(raw))
    except (ValueError, RecursionError):
        return raw.decode(errors="backslashreplace")


def _lay_out(value: object, line: str, parts: list[str]) -> None:
    """Append the layout of a value to `parts`. `line`: a line feed and the indent of the current line."""
    inner = f"{line}  " if len(line) <= 2 * _DEEPEST_INDENT else line
    if isinstance(value, Verbatim):
        parts.append(value.text)
    elif isinstance(value, Members) and value.pairs:
        parts.append("{")
        for at, (name, each) in enumerate(value.in_order()):
            parts.append(f"{',' if at else ''}{inner}{_string(name)}: ")
            _lay_out(each, inner, parts)
        parts.append(line + "}")
    elif isinstance(value, Members):
        parts.append("{}")
    elif isinstance(value, list) and value:
        parts.append("[")
        for at, each in enumerate(value):
            parts.append(f"{',' if at else ''}{inner}")
            _lay_out(each, inner, parts)
        parts.append(line + "]")
    else:
        parts.append(_string(value))


def _string(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _joined(pieces: Pieces) -> Diff:
    """The pieces, without empty ones, and with neighbours of the same kind joined."""
    found: list[tuple[str, list[str]]] = []
    for op, words in pieces:
        if not any(words):
            continue
        if found and found[-1][0] == op:
            found[-1][1].extend(words)
        else:
            found.append((op, list(words)))
    return [(op, "".join(words)) for op, words in found]


class _TooMuch(Exception):
    """A comparison takes too long."""


class _Matcher(SequenceMatcher[str]):
    """Raises _TooMuch before it takes more than `effort` steps: the time of a comparison of repetitive texts grows with
    the cube of their length."""

    def __init__(self, old: list[str], new: list[str], effort: int) -> None:
        super().__init__(None, old, new)
        places: Mapping[str, Sequence[int]] = self.b2j  # type: ignore[attr-defined]  # typeshed lacks it
        self._steps = list(accumulate((1 + len(places.get(each, ())) for each in old), initial=0))
        self._left = effort

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        self._left -= self._steps[-1 if ahi is None else ahi] - self._steps[alo]
        if self._left < 0:
            raise _TooMuch
        return super().find_longest_match(alo, ahi, blo, bhi)


def find_stretches(old: list[str], new: list[str], effort: int = _EFFORT) -> Stretches:
    """The stretches of two lists of words or lines that are equal, and those that differ, in turns; a single one if
    finding them takes more than `effort` steps."""
    try:
        codes = _Matcher(old, new, effort).get_opcodes()
    except _TooMuch:
        return [(old, new)]
    return [(old[begin:end], new[new_begin:new_end]) for _, begin, end, new_begin, new_end in codes]


def pieces_of(stretches: Stretches) -> Pieces:
    """Stretches as pieces of a difference: what was removed before what was added."""
    found: Pieces = []
    for before, after in stretches:
        found += [("same", before)] if before == after else [("removed", before), ("added", after)]
    return [(op, words) for op, words in found if words]


def _cut(text: str, first: bool, last: bool) -> str:
    """An unchanged stretch with its middle left out; the `first` without its beginning, the `last` without its end."""
    head = "" if first else "\n".join(text.split("\n", _CONTEXT_LINES)[:_CONTEXT_LINES])[:_CONTEXT]
    tail = "" if last else "\n".join(text.rsplit("\n", _CONTEXT_LINES)[-_CONTEXT_LINES:])[-_CONTEXT:]
    if len(head) + len(tail) + len(ELLIPSIS) + 2 >= len(text):
        return text
    return f"{head}{'' if first else chr(10)}{ELLIPSIS}{'' if last else chr(10)}{tail}"
