"""The reason why a server ended, found in the lines that it wrote.

Programs write the reason in different places: Python below its last traceback, Node.js above the stack, Docker above
the advice, npm and uv behind a word for errors, Java and Rust with a cause further down. A message that goes on in the
next lines is joined. Without such a message, the last line that says something counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

MAX_REASON = 300
"""Characters of a reason."""
MAX_DETAILS = 9
"""Lines with which a message goes on."""

_DRAWN_BEFORE, _DRAWN_AFTER = " \t|+-×╰╭├│─▶>•*", " \t│─╮╯"
"""The signs that error groups of Python, and tools such as uv, draw around a line."""
_TIME = re.compile(r"^\W?(\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d\S*\s+")
_TRACEBACK = re.compile(r"(Exception Group )?Traceback \(most recent call last\)(:| ─)")
_UNNOTICED = re.compile(r"Exception ignored |Task exception was never retrieved")
"""Begins tracebacks that ended nothing."""
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(:|$)")
_GROUP = re.compile(r"([\w.]+\.)?(Base)?ExceptionGroup:")
_STACK_FRAME = re.compile(
    r"\s*at .+|\s*File \".+\", line \d+.*|node:internal.*|(Node\.js|Bun) v\d.*|\s*[~^]+\s*|goroutine \d+ .*"
    r"|\s*from \S+:\d+.*"
)
_ADVICE = re.compile(
    r"(see|run|try|use|for (more|help|further)|usage|hint|help|note|tip|exit status|a complete log of this run)\b.*",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"(\S+:\s+)?(php\s+)?((uncaught|unhandled)\s+)?([\w.]*(error|exception)(\s\[\w+\])?|fatal|panic)\b.*"
    r"|npm (error|err!)\s+\S.*|ERR_PNPM_\w+\s.*|what\(\):.*|\[UnhandledPromiseRejection\b.*",
    re.IGNORECASE,
)
_ERROR_LEVEL = re.compile(r"[^a-z]{0,3}.{0,60}?[\s\[|(-](ERROR|CRITICAL|FATAL)\b.*\w")
_NPM_DETAIL = re.compile(
    r"npm (error|err!)\s+(code|errno|syscall|path|dest|signal|command|a complete log)\b.*", re.IGNORECASE
)
_CONSEQUENCE = re.compile(r"npm (error|err!)|.*\b(exited with|exit code|exit status|command failed)\b", re.IGNORECASE)
"""The sentences of the starters of programs after the error of the program itself."""
_CAUSE = re.compile(r"(Caused by:|\[cause\]:)\s*(.*)")
_HEADING = re.compile(r"\W*error\W*", re.IGNORECASE)
"""Only a heading: the message stands in the next line."""
_PANIC = re.compile(r"thread '[^']*'[^']* panicked at (?:'(.+)', \S+|\S+:)")
_RUBY = re.compile(r"\S+:\d+:in [`'][^']+': (.+ \([A-Z][\w:]*\))")
_BECAUSE = re.compile(r"\s*[├╰]─▶ ")
"""Begins a cause that uv names."""
_PROMISE = re.compile(r'The promise rejected with the reason ".+"')
_CHATTER = re.compile(
    r".{0,40}(?:^|[\s\[|(-])(INFO|DEBUG|TRACE|WARN|WARNING)\b.*|(info|debug|warning|npm (warn|notice))\b.*"
    r"|.*\b\w+Warning: .*|.*:|[A-Z][a-z]+ed in [\d.]+ ?m?s"
)
_LISTED = re.compile(r"\s*[-*•] ")
_LOGFMT = re.compile(r'\blevel="?(error|fatal)"?\b.*?\bmsg=("(?:[^"\\]|\\.)*"|\S+)(.*)', re.IGNORECASE)


def find_reason(lines: Sequence[str], status: int = 1) -> str | None:
    """The words that say why the program ended; None if no line says anything. A program that ends with status 0 has
    only reasons that begin like an error."""
    reason = _of_python(lines) or _of_error_line(lines) or (last_line(lines) if status else None)
    return None if reason is None else _cut(reason)


def last_line(lines: Sequence[str]) -> str | None:
    """The last line that says something: no bracket, no frame of a stack, no advice, no heading and no warning."""
    for line in reversed(lines):
        text = _text(line)
        is_text = any(each.isalpha() for each in text) and not _LISTED.match(line)
        if is_text and not any(each.fullmatch(text) for each in (_STACK_FRAME, _ADVICE, _CHATTER)):
            return _cut(text)
    return None


def _text(line: str) -> str:
    return _TIME.sub("", line).lstrip(_DRAWN_BEFORE).rstrip(_DRAWN_AFTER)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


def _of_python(lines: Sequence[str]) -> str | None:
    """The exception of the last traceback; of an error group, the last exception in it."""
    noticed = unnoticed = None
    for start, line in enumerate(lines):
        if _TRACEBACK.search(line):
            before = lines[max(start - 2, 0) : start]  # asyncio names the task in between
            if any(map(_UNNOTICED.search, before)):
                unnoticed = _exception_below(lines, start) or unnoticed
            else:
                noticed = _exception_below(lines, start) or noticed
    return noticed or unnoticed


def _exception_below(lines: Sequence[str], start: int) -> str | None:
    group = None
    in_group, in_box = lines[start].lstrip(" +").startswith(("Exception Group", "|")), "─" in lines[start]
    for at in range(start + 1, len(lines)):
        line, text = lines[at], _text(lines[at])
        # The signs of error groups stand in front of everything.
        is_source = line.lstrip().startswith(("│", "╭", "╰")) if in_box else line[:1].isspace() and "|" not in line
        if in_group and "|" not in line:
            continue
        if is_source or _STACK_FRAME.fullmatch(text) or not _PYTHON_ERROR.match(text):
            continue
        if not _GROUP.match(text):
            return _with_details(lines, at, text, indented=not in_group)
        group = group or text
    return group


def _of_error_line(lines: Sequence[str]) -> str | None:
    """The last line that begins like an error, with its cause; of several lines of npm, the first."""
    found = cause = None
    for at, line in enumerate(lines):
        text = _text(line)
        if found is not None and (caused := _CAUSE.fullmatch(text)):
            said = caused[2] or "".join(map(_text, lines[at + 1 : at + 2]))
            cause = f"{caused[1]} {said}"
        elif found is not None and _BECAUSE.match(line):
            cause = _with_wrapped(lines, at)
        elif (message := _error_message(lines, at, text)) and not (found is not None and _CONSEQUENCE.match(message)):
            found, cause = message, None
    return found if cause is None or found is None else f"{found.rstrip(':')}; {cause}"


def _error_message(lines: Sequence[str], at: int, text: str) -> str | None:
    """The message of a line that begins like an error; None for any other line."""
    if text.startswith("{") and text.endswith("}"):
        return _of_json(text)
    if logged := _LOGFMT.search(text):
        return logged[2].strip('"') + logged[3]
    if panic := _PANIC.match(text):
        return panic[1] or next(map(_text, lines[at + 1 : at + 2]), None)
    if raised := _RUBY.fullmatch(text):
        return raised[1]
    if _HEADING.fullmatch(text):
        return next(map(_text, lines[at + 1 : at + 2]), None)
    if lines[at].lstrip().startswith("× "):
        return _with_wrapped(lines, at)
    if _NPM_DETAIL.fullmatch(text) or _ADVICE.fullmatch(text):
        return None
    if not _ERROR.fullmatch(text) and not _ERROR_LEVEL.match(text):
        return None
    promise = _PROMISE.search(text)
    return promise[0] if promise else _with_details(lines, at, text, indented=False)


def _of_json(text: str) -> str | None:
    """The message of a log line in JSON, if it is about an error."""
    try:
        logged = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = str(logged.get("level", logged.get("severity", "")))
    if level.lower() not in ("error", "fatal", "critical", "50", "60"):
        return None
    said = [logged.get(name) for name in ("msg", "message", "event", "error")]
    return " ".join(each for each in said if isinstance(each, str)) or None


def _with_details(lines: Sequence[str], at: int, text: str, *, indented: bool) -> str:
    """The message with the lines in which it goes on: any if it is not complete, else at most `indented` ones."""
    goes_on = text.endswith((":", "[", "{")) or "validation error" in text
    parts = [text]
    for line in lines[at + 1 : at + 1 + MAX_DETAILS]:
        further = _text(line)
        if _STACK_FRAME.fullmatch(line) or _TRACEBACK.search(line) or _CAUSE.match(further) or _PANIC.match(further):
            break
        if not goes_on and not (indented and line.startswith("  ")):
            break
        if not _ADVICE.fullmatch(further) and any(each.isalnum() for each in further):
            parts.append(further)
    return " ".join(parts)


def _with_wrapped(lines: Sequence[str], at: int) -> str:
    """A message of uv, which is wrapped to the width of a terminal."""
    parts = [_text(lines[at])]
    for line in lines[at + 1 :]:
        if not line.startswith("      ") or _ADVICE.fullmatch(_text(line)):
            break
        parts.append(_text(line))
    return " ".join(parts)
