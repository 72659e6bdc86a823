"""The reason why a program ended: the last line that it wrote, but for frames of stacks, advice and chatter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from host.sanitize import shortened

MAX_REASON = 300
"""Characters of a reason."""
MAX_DETAILS = 3
"""Lines before the last one that are part of the reason, if the last one is indented below them."""

_DRAWN = " \t|+-×╰╭├│─▶>•*╮╯"
"""The signs that error groups of Python, and tools such as uv, draw around a line."""
_TIME = re.compile(r"^\W?(\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d\S*\s+")
_UNNOTICED = re.compile(r"Exception ignored |Task exception was never retrieved")
"""Begins tracebacks that ended nothing."""
_FRAME = re.compile(
    r"\s*(at|from|thrown in|\.\.\.|\|?\s*File \".+\", line) .+|node:internal.*|(Node\.js|Bun) v\d.*|goroutine \d+ .*"
    r"|\s+\S.*/\S+:\d+.*|\s*#?\d+[: |].*|\[signal .*|\S+\(\)|---.*---"
    r"|\s+(\|\s{2,}\S.*|[\"']?\w+[\"']?: .*|(throw|raise)\b.*|\w\S*\(.*\)|\w+\($)"
)
"""Frames of stacks, the source in them, and the members of an error that is printed."""
_ASIDE = re.compile(
    r"(see|run|try|use|for (more|help|further)|usage|hint|help|note|tip|exit status|(native )?stack trace|installed"
    r"|info|debug|warn(ing)?|npm (error|err!)\s+(code|errno|syscall|path|command|network (this|in)|a complete log))\b.*"
    r"|npm (error|err!)(\s+404(\s+(note|tarball)\b.*)?)?|.{0,40}[\s\[|(-](INFO|DEBUG|TRACE|WARN|WARNING)\b.*"
    r"|.*\w+Warning: .*|.*:|.*\b(exited with code|command failed)\b.*",
    re.IGNORECASE,
)
"""Advice, headings, warnings, and the sentences of the starters of programs after the error of the program itself."""
_LISTED = re.compile(r"\s*[-*•] ")
_ERROR = re.compile(r"\W*([\w.]*(error|exception)|fatal|panic)\b", re.IGNORECASE)


def find_reason(lines: Sequence[str], status: int = 1) -> str | None:
    """The words that say why the program ended; None if no line says anything. A program that ends with status 0 has
    only reasons that begin like an error."""
    lines = list(takewhile(lambda line: not _UNNOTICED.match(line), lines))
    for at in range(len(lines) - 1, -1, -1):
        if not _says_something(lines[at]) or _ASIDE.fullmatch(_text(lines[at])):
            continue
        begin = at
        while 0 < begin > at - MAX_DETAILS and _is_indented(lines[begin]) and _says_something(lines[begin - 1]):
            begin -= 1
        reason = " ".join(map(_text, lines[begin : at + 1]))
        return shortened(reason, MAX_REASON) if status or _ERROR.match(reason) else None
    return None


def _text(line: str) -> str:
    return _TIME.sub("", line).strip(_DRAWN)


def _says_something(line: str) -> bool:
    return any(map(str.isalpha, line)) and not _FRAME.fullmatch(line) and not _LISTED.match(line)


def _is_indented(line: str) -> bool:
    return line.startswith("  ") and line.lstrip()[0] not in "|│"
