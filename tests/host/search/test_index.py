"""The order of tools for a query, and what an update reads."""

from __future__ import annotations

import gc
import json
from weakref import WeakValueDictionary

from hypothesis import given
from hypothesis import strategies as st

from host.search.index import MAX_QUERY, PART, Index, Tool, ToolTexts
from tests.kit.awaited import Paused, awaited

TOOLS = {
    ("git", "git_log"): "Shows the commit logs",
    ("git", "git_add"): "Adds file contents to the staging area",
    ("tracker", "create_issue"): "Create a new issue in a project",
    ("tracker", "delete_issue"): "Delete an issue",
    ("tracker", "get_issue"): "Get details of one issue",
    ("tracker", "list_issue_watchers"): "List who is notified of changes of an issue",
    ("phone", "take_screenshot"): "Take a picture of the screen",
}


def tool(server: str, name: str, description: str = "") -> Tool:
    return server, name, json.dumps({"name": name, "description": description}).encode()


def tools() -> list[Tool]:
    return [tool(server, name, description) for (server, name), description in TOOLS.items()]


def index(*held: Tool) -> Index:
    made = Index()
    awaited(made.update(held or tools()))
    return made


def names(searched: Index, query: str, server: str | None = None, limit: int = 5) -> list[str]:
    return [hit.name for hit in awaited(searched.search(query, server, limit))]


def test_the_tool_that_fits_is_the_first() -> None:
    searched = index()
    assert names(searched, "file a bug")[0] == "create_issue"
    assert names(searched, "remove the ticket")[0] == "delete_issue"
    assert names(searched, "which commits were made")[0] == "git_log"
    assert names(searched, "show ticket PROJ-17")[0] == "get_issue"


def test_hits_can_be_of_one_server_and_are_not_more_than_wanted() -> None:
    searched = index()
    assert names(searched, "issue", limit=2) == names(searched, "issue")[:2]
    assert names(searched, "issue", "git") == []
    assert set(names(searched, "issue git", "tracker")) <= {name for server, name in TOOLS if server == "tracker"}


def test_a_tool_of_a_server_that_the_query_names_comes_before_an_equal_one() -> None:
    searched = index(tool("apple", "add_note"), tool("pear", "add_note"), tool("fig", "add_note"))
    assert awaited(searched.search("add a note in pear"))[0].server == "pear"


def test_a_query_without_a_known_word_finds_nothing() -> None:
    for query in ("", "the of", "zyzzyva", "\ud800", "x " * 1000):
        assert names(index(), query) == []
    assert names(index(), "y " * MAX_QUERY + "issue") == []


def test_equal_tools_have_an_order_of_their_own() -> None:
    held = [tool("b", "ping"), tool("a", "ping"), tool("a", "ping", "Pings.")]
    assert [(hit.server, hit.name) for hit in awaited(index(*held).search("ping"))] == [
        (hit.server, hit.name) for hit in awaited(index(*reversed(held)).search("ping"))
    ]


def test_a_tool_that_is_not_held_has_no_part_in_the_order() -> None:
    """What a viewer does not see is not in its index, so it cannot show by the scores of what it sees."""
    searched = index()
    before = awaited(searched.search("create issue"))
    awaited(searched.update([*tools(), tool("secret", "create_issue_of_another", "Create an issue")]))
    assert awaited(searched.search("create issue")) != before
    awaited(searched.update(tools()))
    assert awaited(searched.search("create issue")) == before


@given(st.lists(st.sets(st.integers(0, len(TOOLS) - 1)), max_size=5))
def test_after_any_updates_an_index_is_that_of_the_last(states: list[set[int]]) -> None:
    searched = Index()
    for state in states:
        awaited(searched.update(tools()[at] for at in state))
    last = [tools()[at] for at in (states[-1] if states else ())]
    fresh = Index()
    awaited(fresh.update(last))
    assert len(searched) == len(last)
    for query in ("create issue", "picture", "log"):
        assert awaited(searched.search(query)) == awaited(fresh.search(query))


def test_a_tool_is_read_once_for_all_indexes_and_forgotten_with_the_last() -> None:
    texts: ToolTexts = WeakValueDictionary()
    one, two = Index(texts), Index(texts)
    awaited(one.update(tools()))
    read = dict(texts)
    steps = sum(1 for _ in Paused(two.update(tools())))
    assert all(texts[key] is text for key, text in read.items())
    assert steps < 3 * len(TOOLS) + 2  # no words were read
    assert sum(1 for _ in Paused(one.update([*tools()[:-1], tool("phone", "take_screenshot", "Another text")]))) < 40
    del read
    for each in (one, two):
        awaited(each.update(()))
    gc.collect()
    assert not texts


def test_a_search_goes_on_beside_an_update() -> None:
    searched = index()
    search, update = Paused(searched.search("issue")), searched.update(tools()[:1])
    for _ in range(3):
        next(search)
    awaited(update)
    assert search.rest() == []


def test_work_that_grows_with_the_tools_is_done_in_steps() -> None:
    many = [
        tool(f"s{at // 10}", f"get_item_{at}", f"Gets item {at}, which is word{at} of the list.") for at in range(300)
    ]
    searched = Index()
    assert sum(1 for _ in Paused(searched.update(many))) > 300 * 8
    few = sum(1 for _ in Paused(searched.search("get an item of the list")))
    awaited(searched.update([*many, *(tool("s", f"get_item_{at}") for at in range(300, 5 * PART))]))
    assert (
        sum(1 for _ in Paused(searched.search("get an item of the list"))) >= few + 3 * 4
    )  # get, item, and all tools found
    assert sum(1 for _ in Paused(searched.update(()))) >= 5 * PART


def test_tools_are_charged_and_one_without_memory_is_left_out() -> None:
    held = 0

    def charge(words: int) -> bool:
        nonlocal held
        if held + words > 4:
            return False
        held += words
        return True

    searched = Index(charge=charge)
    awaited(searched.update([tool("s", "alpha_thing"), tool("s", "beta_thing"), tool("s", "gamma_thing")]))
    assert (held, len(searched)) == (4, 2)
    assert (names(searched, "beta"), names(searched, "gamma")) == (["beta_thing"], [])
    awaited(searched.update([tool("s", "gamma_thing")]))
    assert (held, names(searched, "gamma")) == (2, ["gamma_thing"])
    awaited(searched.update(()))
    assert held == 0
