"""Fingerprints of definitions, launch identities of servers, and differences between definitions.

A fingerprint covers the whole definition; the order of members, whitespace and the encoding of characters do not
matter. These functions do not wait and keep no state; only the resolution of a command reads the file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import rfc8785

from config import HttpServer, ServerSpec
from host.jsonrpc.numbers import is_exact, read_float
from host.sanitize import visible
from host.wire.process import child_environment

Diff = list[tuple[str, str]]
"""Pieces of text, each `same`, `added` or `removed`. Line feeds in them come from the layout."""

Pieces = list[tuple[str, list[str]]]
"""A difference whose words are not joined yet."""

ELLIPSIS = "⋯"
"""Replaces, on a line of its own, an unchanged stretch that was left out."""

_AS_IT_IS = b"\x00as it is\x00"
"""Prefix of the bytes of a text without canonical form. No JSON begins with NUL, so the two kinds of digests cannot
collide."""
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
        if _marks(raw) <= most and not _is_too_deep(value := _parse(raw)):
            return rfc8785.dumps(value)
    except (ValueError, RecursionError):
        pass
    return _AS_IT_IS + raw


def _marks(raw: bytes) -> int:
    """Upper limit of the number of values in JSON text."""
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _parse(raw: bytes) -> Any:
    """The parsed value. Raises ValueError if parsers may disagree about the text."""
    return json.loads(raw.decode(), object_pairs_hook=_each_once, parse_float=_exactly, parse_constant=_no_constant)


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
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


@dataclass(frozen=True)
class Launch:
    """Launch identity of a server: the program to start, or the URL to connect to.

    `declared` is a digest of the owner's configuration: command, arguments, names of variables and directory, or the
    URL. `program` is the real path of the file that the command resolves to; None for a URL, and if there is no such
    file.
    """

    declared: str
    program: str | None = None


def launch_of(spec: ServerSpec) -> Launch:
    """The launch identity of a server at this moment; reads the file system."""
    if isinstance(spec, HttpServer):
        return Launch(_declared(["url", spec.url.reveal()]))
    words = [word.reveal() for word in spec.command]
    env = child_environment({name: value.reveal() for name, value in spec.env.items()})
    declared = spec.declared or _declared(["command", words, sorted(spec.env), str(spec.cwd)])
    return Launch(declared, _resolved(words[0], env, str(spec.cwd)))


def _declared(parts: list[object]) -> str:
    # Text from the environment may not be valid UTF-8; such bytes are escaped.
    return f"sha256:{hashlib.sha256(json.dumps(parts).encode('ascii')).hexdigest()}"


def _resolved(command: str, env: dict[str, str], cwd: str) -> str | None:
    """The path as `subprocess.Popen` in the keeper finds it: a name without a slash in the child's PATH, a relative
    path from the child's directory; files that cannot be executed are skipped."""
    folders = [""] if os.path.dirname(command) else os.get_exec_path(env)
    for folder in folders:
        path = os.path.join(cwd, folder, command)
        try:
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return os.path.realpath(path)
        except ValueError:  # the path contains a NUL: the keeper cannot start it either
            return None
    return None


# For people


def pretty(raw: bytes) -> str:
    """JSON text laid out for people: one member a line, sorted by name, invisible characters made visible. Text that is
    not JSON is shown as it is."""
    return _shown(_laid_out(raw))


def difference(before: bytes | None, after: bytes) -> Diff:
    """Difference of two definitions, word by word, laid out as by `pretty`.

    Unchanged stretches are cut to the neighbourhood of a change, with ELLIPSIS for the rest; changed text is never cut.
    If too much differs, whole lines are compared; if even these are too many, everything is shown as removed and added.
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
        (op, _shown(_cut(text, at == 0, at == last) if op == "same" else text)) for at, (op, text) in enumerate(pieces)
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
    """The difference of two texts, as fine as the time limit permits."""
    if len(old) + len(new) <= _MOST_WORDS:
        edits = _edits(_WORD.findall(old), _WORD.findall(new))
        if edits is not None and len(_joined(edits)) <= _MOST_PIECES:
            return edits
    edits = _edits(old.splitlines(keepends=True), new.splitlines(keepends=True))
    if edits is not None and len(_joined(edits)) <= _MOST_PIECES:
        return edits
    return [("removed", [old]), ("added", [new])]


def _shown(text: str) -> str:
    """`visible` for long texts: one pass over the characters, keeping the line feeds of the layout."""
    table = {ord(char): shown for char in set(text) if char != "\n" and (shown := visible(char)) != char}
    return text.translate(table) if table else text


class _Number(NamedTuple):
    """A number in its original spelling."""

    text: str


class _Object(NamedTuple):
    """An object with all its members, including duplicates."""

    pairs: list[tuple[str, object]]


def _laid_out(raw: bytes) -> str:
    try:
        if _marks(raw) > _MOST_LAID_OUT:
            raise ValueError("too long to be laid out")
        value = json.loads(
            raw.decode(), object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
        parts: list[str] = []
        _lay_out(value, "\n", parts)
    except (ValueError, RecursionError):
        return raw.decode(errors="backslashreplace")
    return "".join(parts)


def _lay_out(value: object, line: str, parts: list[str]) -> None:
    """Append the layout of a value to `parts`. `line`: a line feed and the indent of the current line."""
    inner = f"{line}  " if len(line) <= 2 * _DEEPEST_INDENT else line
    if isinstance(value, _Number):
        parts.append(value.text)
    elif isinstance(value, _Object) and value.pairs:
        parts.append("{")
        for at, (name, each) in enumerate(sorted(value.pairs, key=lambda pair: pair[0])):
            parts.append(f"{',' if at else ''}{inner}{_string(name)}: ")
            _lay_out(each, inner, parts)
        parts.append(line + "}")
    elif isinstance(value, _Object):
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


def _edits(old: list[str], new: list[str]) -> Pieces | None:
    """The shortest list of removed and added words (E. Myers, "An O(ND) Difference Algorithm and Its Variations",
    1986), each as (op, words); None if it takes more than _EFFORT steps.

    Not difflib, whose time for repetitive texts grows with the cube of their length.
    """
    if not old or not new:
        return [("removed", old), ("added", new)]
    reach = {1: 0}  # the furthest position in `old` on each diagonal
    rounds: list[dict[int, int]] = []
    steps = 0
    for edits in range(len(old) + len(new) + 1):
        steps += edits + len(reach)
        if steps > _EFFORT:
            return None
        rounds.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            start = x
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x += 1
            steps += x - start
            reach[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _walked_back(old, new, rounds)
    raise AssertionError("as many edits as words are always enough")


def _walked_back(old: list[str], new: list[str], rounds: list[dict[int, int]]) -> Pieces:
    x, y = len(old), len(new)
    found: Pieces = []
    for edits in range(len(rounds) - 1, 0, -1):
        reach, diagonal = rounds[edits], x - y
        down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        from_x = reach[before]
        from_y = from_x - before
        at = from_x if down else from_x + 1
        found.append(("same", old[at:x]))
        found.append(("added", new[from_y : from_y + 1]) if down else ("removed", old[from_x : from_x + 1]))
        x, y = from_x, from_y
    found.append(("same", old[:x]))
    return found[::-1]


def _cut(text: str, first: bool, last: bool) -> str:
    """An unchanged stretch with its middle left out; the `first` without its beginning, the `last` without its end."""
    head = "" if first else "\n".join(text.split("\n", _CONTEXT_LINES)[:_CONTEXT_LINES])[:_CONTEXT]
    tail = "" if last else "\n".join(text.rsplit("\n", _CONTEXT_LINES)[-_CONTEXT_LINES:])[-_CONTEXT:]
    if len(head) + len(tail) + len(ELLIPSIS) + 2 >= len(text):
        return text
    return f"{head}{'' if first else chr(10)}{ELLIPSIS}{'' if last else chr(10)}{tail}"
