"""Queries with the tools that do what they ask for, and how well an order of tools meets them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FIRST = 5
"""Tools of an answer that count."""
SAMPLES = 10_000


@dataclass(frozen=True)
class Query:
    text: str
    right: frozenset[str]
    """Tools as `server/tool`; one of them is enough."""


@dataclass(frozen=True)
class Figures:
    """What a search finds of some queries: the parts whose first tool is right, and one of the first five; the mean of
    1 / the place of the first right tool (mean reciprocal rank)."""

    recall_1: float
    recall_5: float
    reciprocal: float


def read_queries(name: str) -> list[Query]:
    """The queries of a file: lines of a query, a tab, and the right tools with spaces between."""
    lines = (HERE / name).read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [Query(text, frozenset(right.split())) for text, right in rows]


def place_of_right(query: Query, order: Sequence[str]) -> int | None:
    """The place of the first right tool, from 1; None if there is none."""
    return next((place for place, tool in enumerate(order, 1) if tool in query.right), None)


def figures(queries: Sequence[Query], orders: Mapping[str, Sequence[str]]) -> Figures:
    """How well orders of tools, by the text of their query, meet the queries."""
    places = [place_of_right(query, orders[query.text]) for query in queries]
    count = len(places)
    return Figures(
        sum(place == 1 for place in places) / count,
        sum(place is not None and place <= FIRST for place in places) / count,
        sum(1 / place for place in places if place is not None) / count,
    )


def difference(
    queries: Sequence[Query], one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]
) -> tuple[float, float]:
    """The bounds within which recall@5 of one search minus that of another is in 95 of 100 samples of the queries
    (paired bootstrap). The samples are the same in each run."""
    found = [_is_found(query, one) - _is_found(query, other) for query in queries]
    drawn = random.Random(1)
    means = sorted(sum(drawn.choices(found, k=len(found))) / len(found) for _ in range(SAMPLES))
    return means[SAMPLES * 25 // 1000], means[SAMPLES * 975 // 1000]


def _is_found(query: Query, orders: Mapping[str, Sequence[str]]) -> int:
    place = place_of_right(query, orders[query.text])
    return place is not None and place <= FIRST
