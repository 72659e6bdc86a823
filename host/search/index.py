"""The tools that one viewer sees, in the order in which they fit a query.

An index holds no text and decides nothing: who uses it gives it what the viewer sees, and takes from it the names of
tools. Its work pauses; meanwhile tools may come and go. An update reads only tools that are new.

Words are weighed as BM25 does: a word that few tools have says more. All that stand for one word count as one word,
which as many tools have as have any of them; else a rare synonym would count more than the word itself. Where a tool
has the word itself, half of what that says is by the tools that have it, too: "scrape" is rare though "page" is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import TypeAlias
from weakref import WeakValueDictionary

from msgspec import Struct

from host.search.synonyms import intent_of, read_synonyms, terms_of
from host.search.tool_text import ToolText, read_tool_text
from host.slices import pause

MAX_QUERY = 400
"""Characters of a query that count."""
PART = 1000
"""Tools between two pauses of a search."""
LIKELY = 100
"""Tools beside those wanted whose name, server and intent are looked at: of others, the words say too little."""
COVERED = 0.8
"""The part of a score that a tool has only with all words of the query."""
NAMED = 0.35
"""The part that it has only if the query has all words of its name."""
SAME_INTENT, OTHER_INTENT = 1.1, 0.9
"""Factors for a tool that does what the query begins with, and for one that does something else."""
SERVER_NAMED = 0.7
"""The addition to the factor 1 of a tool whose server the query names."""

Tool: TypeAlias = tuple[str, str, bytes]
"""The id of its server, its name there, and its definition: what a viewer is shown of it."""
ToolTexts: TypeAlias = WeakValueDictionary[Tool, ToolText]
"""The texts that were read of tools, for all indexes that hold them."""


class Hit(Struct, frozen=True, gc=False):
    """A tool that was found."""

    server: str
    name: str
    """Its name at the server."""
    score: float
    """Greater than 0; comparable within one search only."""


class Index:
    """The tools of one viewer.

    Args:
        texts: shared with other indexes, so that a tool is read once for all.
        charge: called with the words of each tool before it is held, and below zero when it is not any more. If it says
            False, the tool is left out.
    """

    def __init__(self, texts: ToolTexts | None = None, charge: Callable[[int], bool] = lambda words: True) -> None:
        self._texts = WeakValueDictionary() if texts is None else texts
        self._charge = charge
        self._numbers: dict[Tool, int] = {}
        self._held: dict[int, tuple[Tool, ToolText]] = {}
        """By number, which no second tool gets."""
        self._strengths: dict[str, dict[int, float]] = {}
        """By stem and number of the tool."""
        self._last = 0

    def __len__(self) -> int:
        return len(self._held)

    async def update(self, tools: Iterable[Tool]) -> None:
        """Hold these tools and no others. Only one update may run at a time. The memory of a long index is given back
        by an update with none, with pauses too."""
        await read_synonyms()
        wanted: dict[Tool, None] = {}
        for tool in tools:
            await pause()
            wanted[tool] = None
        for tool in list(self._numbers):
            await pause()
            if tool not in wanted:
                self._remove(tool)
        for tool in wanted:
            await pause()
            if tool not in self._numbers:
                text = self._texts.get(tool)
                if text is None:
                    text = await read_tool_text(*tool)
                    self._texts[tool] = text
                if self._charge(len(text.strengths)):
                    self._add(tool, text)

    async def search(self, query: str, server: str | None = None, limit: int = 5) -> list[Hit]:
        """The tools that fit best, the best first; none if no tool has any of the query's words.

        Args:
            server: the id of the server that must have it.
        """
        query = query[:MAX_QUERY]
        terms = terms_of(query)
        total = 0.0
        scores: dict[int, float] = {}
        covered: dict[int, float] = {}
        weights: dict[str, float] = {}
        for term in terms:
            found: dict[int, float] = {}
            exact: dict[int, float] = {}
            for word, weight in term.items():
                weights[word] = max(weight, weights.get(word, 0.0))
                strengths = self._strengths.get(word, {})
                if weight == 1:
                    exact = strengths
                for part in _parts(strengths):
                    await pause()
                    for number, strength in part:
                        if (fits := strength * weight) > found.get(number, 0.0):
                            found[number] = fits
            rarity = self._rarity(len(found))
            own_rarity = (rarity + self._rarity(len(exact))) / 2
            total += rarity
            for part in _parts(found):
                await pause()
                for number, fits in part:
                    added = max(fits * rarity, exact.get(number, 0.0) * own_rarity)
                    scores[number] = scores.get(number, 0.0) + added
                    covered[number] = covered.get(number, 0.0) + rarity
        likely: list[tuple[float, int]] = []
        for part in _parts(scores):
            await pause()
            for number, score in part:
                held = self._held.get(number)
                if held is not None and (server is None or held[0][0] == server):
                    likely.append((-score * (1 - COVERED + COVERED * covered[number] / total), number))
            likely = nsmallest(limit + LIKELY, likely)
        intent = intent_of(query)
        hits: list[tuple[float, str, str]] = []
        for score, number in likely:
            held = self._held.get(number)
            if held is not None:
                (its_server, name, _), text = held
                hits.append((score * _factor(text, weights, intent), its_server, name))
        return [Hit(its_server, name, -score) for score, its_server, name in nsmallest(limit, hits)]

    def _rarity(self, having: int) -> float:
        """How much a word says that so many tools have."""
        return math.log1p((len(self._held) - having + 0.5) / (having + 0.5)) if having else 0.0

    def _add(self, tool: Tool, text: ToolText) -> None:
        self._last += 1
        self._numbers[tool] = self._last
        self._held[self._last] = tool, text
        for word, strength in text.strengths.items():
            self._strengths.setdefault(word, {})[self._last] = strength

    def _remove(self, tool: Tool) -> None:
        number = self._numbers.pop(tool)
        _, text = self._held.pop(number)
        self._charge(-len(text.strengths))
        for word in text.strengths:
            numbers = self._strengths[word]
            del numbers[number]
            if not numbers:
                del self._strengths[word]


def _factor(text: ToolText, weights: Mapping[str, float], intent: str | None) -> float:
    """How well the name, the server and the intent of a tool fit a query, whose stems count what `weights` say."""
    named = sum(weights.get(word, 0.0) for word in text.name) / max(len(text.name), 1)
    factor = 1 - NAMED + NAMED * named
    factor *= 1 + SERVER_NAMED * min((weights.get(word, 0.0) for word in text.server), default=0.0)
    if intent is not None and text.intent is not None:
        factor *= SAME_INTENT if intent == text.intent else OTHER_INTENT
    return factor


def _parts(numbers: Mapping[int, float]) -> Iterator[list[tuple[int, float]]]:
    """The items of this moment, in lists that take less than a millisecond."""
    items = list(numbers.items())
    return (items[at : at + PART] for at in range(0, len(items), PART))
