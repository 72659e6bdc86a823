"""TOML as a document. The parser gives no places, so a value stands where the header of its table does."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from config.document import MAX_DEPTH, TOO_DEEP, Document, Place, Plain
from config.problems import ConfigError, KeyPath, Mark

_HEADER = re.compile(r"^[ \t]*\[{1,2}([^\[\]#\n]+)\]", re.MULTILINE)
_KEY = re.compile(r"""^[ \t]*([\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*=""", re.MULTILINE)
_KEY_PART = re.compile(r"""[\w-]+|"[^"\n]*"|'[^'\n]*'""")


def read_toml(text: str, document: Document) -> dict[str, object]:
    """The values of a TOML file, with scalars as texts.

    Raises:
        ConfigError: the text is not TOML.
    """
    failed: ConfigError
    try:
        values = tomllib.loads(text)
        marks = _marks(text)
        root: dict[str, object] = {}
        document.places[()] = Place(Mark(1, 1))
        for name, value in values.items():
            root[name] = _value(value, (name,), Mark(1, 1), marks, document)
        return root
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        mark = Mark(int(place[1]), int(place[2])) if place else Mark(text.count("\n") + 1, 1)
        what = re.sub(r" \(at .*\)$", "", str(error))
        what = what[:1].lower() + what[1:] if "'" not in what and '"' not in what else "a line is not as expected"
        failed = document.fatal(mark, f"this is not TOML: {what}")
    except RecursionError:
        failed = document.fatal(Mark(1, 1), TOO_DEEP)
    raise failed


def _value(value: Any, path: KeyPath, above: Mark, marks: dict[KeyPath, Mark], document: Document) -> object:
    mark = marks.get(path, above)
    document.places[path] = Place(mark, mark)
    if len(path) > MAX_DEPTH:
        raise document.fatal(mark, TOO_DEEP)
    if isinstance(value, dict):
        return {name: _value(below, (*path, name), mark, marks, document) for name, below in value.items()}
    if isinstance(value, list):
        return [_value(below, (*path, n), mark, marks, document) for n, below in enumerate(value)]
    if isinstance(value, str):
        return value
    return Plain(str(value).lower() if isinstance(value, bool) else str(value))


def _marks(text: str) -> dict[KeyPath, Mark]:
    """The marks of the headers of tables and of the keys below them, as far as they are written in the usual way."""
    found: dict[KeyPath, Mark] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = tuple(part.strip("\"'") for part in _KEY_PART.findall(header[1]))
            found.setdefault(table, Mark(number, header.start(1) + 1))
        elif key := _KEY.match(line):
            found.setdefault((*table, key[1].strip("\"'")), Mark(number, key.start(1) + 1))
    return found
