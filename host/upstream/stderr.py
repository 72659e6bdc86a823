"""The reason why a server ended, found in the lines that it wrote to its standard error.

Programs write the reason in different places: Python in the last line of a traceback, Node.js above the stack, Docker
above the advice, npm and uv behind a word for errors. Without such a line, the last one that says something counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_DECORATION = re.compile(r"^[\s|+\-×╰╭│─▶>•*]+")
"""What error groups of Python, and tools such as uv, draw in front of a line."""
_TRACEBACK = re.compile(r"(Exception Group )?Traceback \(most recent call last\):")
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(:|$)")
_STACK_FRAME = re.compile(r"\s*at .+|\s*File \".+\", line \d+.*|node:internal.*|Node\.js v\d.*|\s*[~^]+\s*")
_ADVICE = re.compile(
    r"(see|run|try|use|for more|for help|usage|hint|note|tip|a complete log of this run)\b.*", re.IGNORECASE
)
_ERROR = re.compile(
    r"(\S+:\s+)?(uncaught\s+)?(\w*(error|exception)(\s\[\w+\])?|fatal|panic)\b.*|npm (error|err!)\s+\S.*", re.IGNORECASE
)
_NPM_DETAIL = re.compile(
    r"npm (error|err!)\s+(code|errno|syscall|path|dest|signal|command|a complete log)\b.*", re.IGNORECASE
)


def find_reason(lines: Sequence[str], status: int = 1) -> str | None:
    """The line that says why the program ended; None if no line says anything. A program that ends with status 0 has
    only reasons that begin like an error."""
    return _of_python(lines) or _of_error_line(lines) or (_last_line(lines) if status else None)


def _of_python(lines: Sequence[str]) -> str | None:
    """The exception of the last traceback; of an error group, the last exception in it."""
    starts = [number for number, line in enumerate(lines) if _TRACEBACK.search(line)]
    for line in lines[starts[-1] + 1 :] if starts else ():
        text = _DECORATION.sub("", line).rstrip()
        is_source = line[:1].isspace() and "|" not in line  # what error groups draw is in front of everything
        if not is_source and not _STACK_FRAME.fullmatch(text) and _PYTHON_ERROR.match(text):
            return text
    return None


def _of_error_line(lines: Sequence[str]) -> str | None:
    """The last line that begins like an error; of several lines of npm, the first."""
    found: str | None = None
    for line in lines:
        text = _DECORATION.sub("", line).strip()
        is_error = _ERROR.fullmatch(text) and not _NPM_DETAIL.fullmatch(text) and not _ADVICE.fullmatch(text)
        if is_error and not (found is not None and text.lower().startswith("npm")):
            found = text
    return found


def _last_line(lines: Sequence[str]) -> str | None:
    """The last line that is no bracket, no frame of a stack and no advice."""
    for line in reversed(lines):
        text = _DECORATION.sub("", line).strip()
        if any(each.isalpha() for each in text) and not _STACK_FRAME.fullmatch(line) and not _ADVICE.fullmatch(text):
            return text
    return None
