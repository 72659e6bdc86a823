"""Reading all pages of a list: what cursors and entries may be like, and where reading ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from host.protocol.methods import LIST_METHODS, Kind
from host.protocol.stateless import Freshness
from host.upstream.pages import MAX_PAGES, MAX_REPEATED_PAGES, read_list

END = object()
"""The cursor of a last page: there is none."""

Page = tuple[Sequence[Any], object]
"""Names of tools, or whole definitions, and the next cursor."""


class Pages:
    """A server that answers each request with `of` the cursor. `asked` has the cursors, None for none."""

    def __init__(self, of: Any, *, stateless: bool = False) -> None:
        self._of = of
        self._stateless = stateless
        self.asked: list[object] = []
        self.problems: list[str] = []

    async def _answer(self, method: str, params: Raw | None) -> Raw:
        cursor = None if params is None else json.loads(bytes(params))["cursor"]
        self.asked.append(cursor)
        if len(self.asked) > MAX_PAGES:
            raise AssertionError("reading does not end")
        entries, following = self._of(cursor, len(self.asked))
        tools = [each if isinstance(each, dict) else {"name": each} for each in entries]
        return Raw(json.dumps({"tools": tools} | ({} if following is END else {"nextCursor": following})).encode())

    async def read(self) -> list[str]:
        found: list[Raw] = []
        hints: list[Freshness] = []
        tools = LIST_METHODS[Kind.TOOL]
        await read_list(self._answer, tools, found, hints, self.problems.append, cursors_may_be_empty=self._stateless)
        return [json.loads(bytes(each))["name"] for each in found]


SAME_CURSOR = "the same cursor twice"
MORE_THAN_ONCE = "more than once"


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize(
    ("pages", "listed", "requests", "problem"),
    [
        pytest.param([("ab", "8"), ("ab", "8")], "ab", 2, SAME_CURSOR, id="the same page and cursor for ever"),
        pytest.param([("ab", "8"), ("cd", "8"), ("e", END)], "abcde", 3, None, id="the same cursor with new entries"),
        pytest.param([("ab", "8"), ("cd", "8"), ("cd", "8")], "abcd", 3, SAME_CURSOR, id="the last page for ever"),
        pytest.param([("", "8"), ("", "8")], "", 2, SAME_CURSOR, id="empty pages with the same cursor"),
        pytest.param([("", "8"), ("", "9"), ("a", END)], "a", 3, None, id="empty pages that lead to one that is not"),
        pytest.param([("a", 8), ("a", 8)], "a", 2, SAME_CURSOR, id="a number as a cursor"),
        pytest.param([("a", {"p": 2}), ("b", END)], "ab", 2, None, id="an object as a cursor"),
        pytest.param([("a", None)], "a", 1, None, id="null as a cursor"),
        pytest.param([("ab", "2"), ("bc", "3"), ("cd", END)], "abcd", 3, MORE_THAN_ONCE, id="pages that overlap"),
        pytest.param([("aab", END)], "ab", 1, MORE_THAN_ONCE, id="an entry twice on one page"),
        pytest.param(
            [("a", "1"), ("b", "2"), ("a", "1"), ("b", "2")], "ab", 3, SAME_CURSOR, id="a circle of two cursors"
        ),
    ],
)
async def test_a_list_is_read_to_its_end_whatever_its_cursors_are_like(
    pages: list[Page], listed: str, requests: int, problem: str | None, stateless: bool
) -> None:
    """(rule 94) Whatever comes twice counts once, and is told."""
    server = Pages(lambda cursor, turn: pages[turn - 1], stateless=stateless)
    assert "".join(await server.read()) == listed
    assert len(server.asked) == requests
    assert [problem is not None and problem in each for each in server.problems] == [True] * (problem is not None)


@pytest.mark.parametrize(
    ("pages", "rest"),
    [
        ([("ab", END)], b"{}"),
        ([("ab", "")], b'{"nextCursor":""}'),
        ([("ab", "1"), ("c", END)], None),
        ([("ab", "1"), ("ab", "1")], None),
        ([("abcde", END)], None),
    ],
)
async def test_what_a_page_has_beside_is_given_if_it_is_the_whole_list(
    pages: list[Page], rest: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.upstream.pages.MAX_ENTRIES", 4)
    server = Pages(lambda cursor, turn: pages[turn - 1])
    assert await read_list(server._answer, LIST_METHODS[Kind.TOOL], [], [], server.problems.append) == rest


async def test_a_page_without_its_entries_counts_as_empty_and_is_told_once() -> None:
    answers = [b'{"nextCursor":"1"}', b'{"tools":[{"name":"a"}],"nextCursor":"2"}', b"{}"]
    found, problems = list[Raw](), list[str]()

    async def answer(method: str, params: Raw | None) -> Raw:
        return Raw(answers.pop(0))

    await read_list(answer, LIST_METHODS[Kind.TOOL], found, [], problems.append)
    assert found == [Raw(b'{"name":"a"}')]
    assert problems == ["tools/list returned a page without 'tools', which counts as empty"]


async def test_entries_of_one_name_that_differ_are_all_passed_on() -> None:
    """The catalog leaves them out: it cannot be known which of them is meant."""
    server = Pages(lambda cursor, turn: ([{"name": "a"}, {"name": "a", "title": "A"}, {"name": "a"}], END))
    assert await server.read() == ["a", "a"]


@pytest.mark.parametrize(("stateless", "requests"), [(False, 1), (True, 2)])
async def test_an_empty_cursor_for_ever(stateless: bool, requests: int) -> None:
    server = Pages(lambda cursor, turn: ("ab", ""), stateless=stateless)
    assert await server.read() == ["a", "b"]
    assert server.asked == [None, ""][:requests]


async def test_a_server_that_ignores_cursors_and_always_has_a_new_one_is_not_asked_a_hundred_times() -> None:
    server = Pages(lambda cursor, turn: ("ab", str(turn)))
    assert await server.read() == ["a", "b"]
    assert len(server.asked) == MAX_REPEATED_PAGES + 1
    assert f"nothing new on {MAX_REPEATED_PAGES} pages" in server.problems[0]


async def test_new_cursors_for_ever_end_at_the_limit() -> None:
    for entries in (lambda turn: [f"t{turn}"], lambda turn: []):
        server = Pages(lambda cursor, turn, entries=entries: (entries(turn), str(turn)))
        await server.read()
        assert len(server.asked) == MAX_PAGES
        assert "the rest is left out" in server.problems[0]


_CURSORS = st.sampled_from(["a", "b", "c", "d", 1, END])


@given(st.dictionaries(_CURSORS, st.tuples(st.lists(st.sampled_from("uvwxyz"), max_size=4), _CURSORS)), st.booleans())
def test_whatever_pages_refer_to_each_other_all_that_can_be_reached_is_listed_once(
    pages: Mapping[object, Page], stateless: bool
) -> None:
    first: Page = (["t"], "a")
    server = Pages(lambda cursor, turn: first if cursor is None else pages.get(cursor, ([], END)), stateless=stateless)
    listed = trio.run(server.read)
    reached, seen, page = list[str](), set[object](), first
    while True:
        reached += page[0]
        if page[1] is END or page[1] in seen:
            break
        seen.add(page[1])
        page = pages.get(page[1], ([], END))
    assert listed == list(dict.fromkeys(reached))
