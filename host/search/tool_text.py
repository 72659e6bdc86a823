"""One tool as a search sees it: its words, each with the strength that says how much of the tool it is.

The strength is that of BM25F (Robertson, Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009): the
fields of a tool have weights, and long fields count less. Their usual lengths are constants, so a tool's strengths do
not depend on other tools, and stay what they are when these change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from msgspec import Raw, Struct

from host.jsonrpc.raw import is_array, is_object, is_string, items, members, string
from host.search.synonyms import READ, intent_of
from host.search.words import words
from host.slices import pause

SATURATION = 3.0
"""The weight of a word at which its strength is a half."""
LENGTH = 0.6
"""How much the length of a field counts, from 0 to 1."""
MAX_TEXT = 2000
"""Characters of a description that count: a tool is not found more easily because its server writes more."""
MAX_ARGUMENT_TEXT = 300
MAX_ARGUMENTS = 50
MAX_WORDS = 400
"""Words of each field."""


class ToolText(Struct, frozen=True, weakref=True):
    """The words of one tool."""

    strengths: dict[str, float]
    """By stem, from 0 to 1."""
    name: tuple[str, ...]
    """The stems of its name."""
    server: tuple[str, ...]
    """Those of its server's id."""
    intent: str | None
    """Its purpose: see `intent_of`."""


class _Field(NamedTuple):
    weight: float
    length: int
    """Words that are usual; shorter names are not better ones."""


_NAME, _SERVER, _TITLE = _Field(3.0, 3), _Field(6.0, 1), _Field(2.0, 3)
_SENTENCE, _DESCRIPTION = _Field(2.5, 12), _Field(0.4, 40)
_ARGUMENTS, _ARGUMENT_TEXTS, _VALUES = _Field(1.0, 5), _Field(0.2, 40), _Field(0.6, 10)

_FIRST_SENTENCE = re.compile(r".*?(?:[.!?:](?=\s|$)|\n\s*\n)|.*", re.DOTALL)


async def read_tool_text(server: str, name: str, definition: bytes) -> ToolText:
    """The words of a tool.

    Args:
        name: the tool's name at that server.
        definition: the tool's definition, JSON. What has another form than the schema's (2025-11-25, `Tool`) counts for
            nothing.
    """
    tool = members(definition)
    annotations = _object(tool.get("annotations"))
    description = _text(tool.get("description"))[:MAX_TEXT].strip()
    found = _FIRST_SENTENCE.match(description)
    first = found[0] if found is not None else ""
    arguments = _object(_object(tool.get("inputSchema")).get("properties"))
    texts: list[str] = []
    values: list[str] = []
    for schema in islice(arguments.values(), MAX_ARGUMENTS):
        await pause()
        found_texts, found_values = _argument(schema)
        texts += found_texts
        values += found_values
    weights: dict[str, float] = {}
    for field, parts in (
        (_NAME, [name]),
        (_SERVER, [server]),
        (_TITLE, [_text(tool.get("title")) or _text(annotations.get("title"))]),
        (_SENTENCE, [first]),
        (_DESCRIPTION, [description[len(first) :]]),
        (_ARGUMENTS, islice(arguments, MAX_ARGUMENTS)),
        (_ARGUMENT_TEXTS, texts),
        (_VALUES, values),
    ):
        await _weigh(field, parts, weights)
    intent = intent_of(name) or (READ if annotations.get("readOnlyHint") == Raw(b"true") else None)
    strengths = {word: weight / (SATURATION + weight) for word, weight in weights.items()}
    return ToolText(strengths, tuple(dict.fromkeys(words(name))), tuple(words(server)), intent)


async def _weigh(field: _Field, parts: Iterable[str], weights: dict[str, float]) -> None:
    counts: dict[str, int] = {}
    length = 0
    for word in islice((word for part in parts for word in words(part)), MAX_WORDS):
        await pause()
        counts[word] = counts.get(word, 0) + 1
        length += 1
    norm = 1 - LENGTH + LENGTH * max(length / field.length, 0.3)
    for word, count in counts.items():
        weights[word] = weights.get(word, 0.0) + field.weight * count / norm


def _argument(schema: Raw) -> tuple[list[str], list[str]]:
    """The description of an argument, and the words that it may be."""
    found = _object(schema)
    values: list[str] = []
    for each in (found, *(_object(one) for one in _array(found.get("anyOf")))):
        values += (_text(one)[:MAX_ARGUMENT_TEXT] for one in _array(each.get("enum")))
    return [_text(found.get("description"))[:MAX_ARGUMENT_TEXT]], values


def _object(raw: Raw | None) -> dict[str, Raw]:
    return members(raw) if raw is not None and is_object(raw) else {}


def _array(raw: Raw | None) -> list[Raw]:
    return items(raw)[:MAX_ARGUMENTS] if raw is not None and is_array(raw) else []


def _text(raw: Raw | None) -> str:
    """The text of a JSON string; empty for other values and for one with a lone surrogate."""
    try:
        return string(raw) if raw is not None and is_string(raw) else ""
    except ValueError:
        return ""
