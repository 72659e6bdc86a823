"""The comparison of searches: its files, and how it counts. The servers run in `make search`."""

from __future__ import annotations

import pytest

from tests.published.servers import SERVERS
from tests.search.orders import colonnade, sqlite_fts5
from tests.search.queries import Query, difference, figures, place_of_right, read_queries
from tests.search.run import BEGIN, END, PAGE, read_sets
from tests.search.tools import PACKAGES, Tools

TOOLS: Tools = {
    "git/git_log": {"description": "Shows the commit logs", "inputSchema": {"properties": {"count": {}}}},
    "git/git_add": {"description": "Adds file contents", "inputSchema": {}},
    "tracker/create_issue": {"inputSchema": {"properties": {"title": {"description": "The headline"}}}},
}


def queries(*right: str) -> list[Query]:
    return [Query(f"query {at}", frozenset(each.split())) for at, each in enumerate(right)]


@pytest.mark.parametrize(("name", "count"), [("queries.tsv", 200), ("colloquial.tsv", 100), ("unseen.tsv", 100)])
def test_tasks_are_written_once_and_have_one_to_four_right_tools(name: str, count: int) -> None:
    read = read_queries(name)
    assert len({query.text for query in read}) == len(read) == count
    assert {name.partition("/")[0] for query in read for name in query.right} == PACKAGES.keys()
    assert all(1 <= len(query.right) <= 4 for query in read)


def test_no_task_counts_twice() -> None:
    texts = [query.text.lower() for queries in read_sets().values() for query in queries]
    assert len(set(texts)) == len(texts) >= 390


def test_the_servers_are_published_ones() -> None:
    assert set(PACKAGES.values()) <= {server.package for server in SERVERS}
    assert len(set(PACKAGES.values())) == len(PACKAGES) >= 12


def test_the_page_has_a_place_for_the_figures() -> None:
    text = PAGE.read_text("utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index(END)


def test_figures_count_the_first_right_tool() -> None:
    asked = queries("a", "b c", "d", "e")
    orders = {"query 0": ["a"], "query 1": ["x", "c", "b"], "query 2": [*"vwxyz", "d"], "query 3": []}
    assert [place_of_right(query, orders[query.text]) for query in asked] == [1, 2, 6, None]
    found = figures(asked, orders)
    assert (found.recall_1, found.recall_5) == (0.25, 0.5)
    assert found.reciprocal == pytest.approx((1 + 1 / 2 + 1 / 6) / 4)


def test_a_difference_is_that_of_the_same_tasks() -> None:
    asked = queries(*"a" * 100)
    all_found = {query.text: ["a"] for query in asked}
    half = {query.text: ["a"] if at % 2 else [] for at, query in enumerate(asked)}
    assert difference(asked, all_found, all_found) == (0, 0)
    low, high = difference(asked, all_found, half)
    assert 0.35 < low < 0.5 < high < 0.65
    assert difference(asked, half, all_found) == pytest.approx((-high, -low), abs=0.02)


def test_the_searches_get_the_same_tools() -> None:
    for search in (colonnade, sqlite_fts5):
        found = search(TOOLS, ["commit logs", "headline", "zyzzyva"])
        assert [list(found[query])[:1] for query in found] == [["git/git_log"], ["tracker/create_issue"], []]


def test_a_query_with_signs_is_no_expression_of_sqlite() -> None:
    assert sqlite_fts5(TOOLS, ['logs" OR (', "AND"]) == {'logs" OR (': ["git/git_log"], "AND": []}
