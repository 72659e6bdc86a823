"""Values as YAML text for people, which `config.yaml` reads as the same values.

A scalar has quotes wherever YAML, or an editor with another version of it, could take it for something else. Short
lists stay on one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from config.document import Plain, is_null
from config.problems import printable

LINE = 100
"""Characters of a line up to which a list or map stays on one."""
COMMENT_LINE = 110
"""Characters of a line of comment."""

_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[./@+-]+[A-Za-z0-9_]+)*|/[A-Za-z0-9_./+-]+|--?[A-Za-z][A-Za-z0-9-]*")
_SAFE_PLAIN = re.compile(r"[A-Za-z0-9_.+-]+")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def entry(name: str, value: object, indent: str = "") -> str:
    """A key with its value, as whole lines."""
    flow = f"{indent}{scalar(name)}: {_flow(value)}"
    if not isinstance(value, dict | list) or not value or (_may_be_flow(value) and len(flow) <= LINE):
        return flow + "\n"
    lines = f"{indent}{scalar(name)}:\n"
    below = indent + "  "
    if isinstance(value, dict):
        return lines + entries(value, below)
    return lines + "".join(f"{below}- {_flow(item)}\n" for item in value)


def entries(values: Mapping[str, object], indent: str = "") -> str:
    """The entries of a map, as whole lines."""
    return "".join(entry(name, value, indent) for name, value in values.items())


def comment(text: str, indent: str = "") -> str:
    """Text as comment lines, broken between words."""
    lines, line = [], ""
    for word in printable(text).split():
        if line and len(indent) + len(line) + len(word) + 3 > COMMENT_LINE:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "".join(f"{indent}# {each}\n" for each in (*lines, line))


def commented_out(lines: str, indent: str = "") -> str:
    """The lines as comments, at the same indentation."""
    return "".join(f"{indent}# {line.removeprefix(indent)}\n" for line in lines.splitlines())


def scalar(value: str) -> str:
    """A scalar, in quotes where it needs them. A plain one may need to stay plain, as `true` and `3` do."""
    if isinstance(value, Plain) and not is_null(value) and _SAFE_PLAIN.fullmatch(value):
        return str(value)
    if _SAFE.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(name)}: {_flow(below)}" for name, below in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return scalar(str(value) if not isinstance(value, str) else value)


def _may_be_flow(value: dict[str, object] | list[object]) -> bool:
    """Whether a value is not too deep for one line: a list or map of scalars and their lists, or around one such."""
    if isinstance(value, dict) and len(value) == 1:
        (below,) = value.values()
        return not isinstance(below, dict) or _may_be_flow(below)
    return not any(isinstance(item, dict) for item in (value.values() if isinstance(value, dict) else value))
