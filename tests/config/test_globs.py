"""Patterns agree with the plainest matcher there is; a list covers a pattern exactly if no text says otherwise."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.globs import Globs, covers, normalize_case
from tests.kit.cost import assert_costs_less

NAMES, URIS = False, True


def matches(pattern: str, text: str, *, uris: bool) -> bool:
    return Globs((pattern,), uris=uris).match(text)


def naive(pattern: str, text: str, *, uris: bool) -> bool:
    """Tries everything: correct by looking at it."""

    @cache
    def rest(at: int, place: int) -> bool:
        if at == len(pattern):
            return place == len(text)
        if pattern[at] == "*":
            end = at
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            crosses = not uris or end - at > 1
            return rest(end, place) or (place < len(text) and (crosses or text[place] != "/") and rest(at, place + 1))
        if place == len(text):
            return False
        if pattern[at] == "?":
            return (not uris or text[place] != "/") and rest(at + 1, place + 1)
        return pattern[at] == text[place] and rest(at + 1, place + 1)

    return rest(0, 0)


@settings(max_examples=400)
@given(st.text("ab/*?", min_size=1, max_size=9), st.text("ab/", max_size=12), st.booleans())
def test_a_pattern_agrees_with_a_naive_matcher(pattern: str, text: str, uris: bool) -> None:
    assert matches(pattern, text, uris=uris) == naive(pattern, text, uris=uris)


@settings(max_examples=120)
@given(st.lists(st.text("ab/*?", min_size=1, max_size=6), max_size=4), st.text("ab/", max_size=9), st.booleans())
def test_a_list_matches_what_one_of_its_patterns_matches(patterns: list[str], text: str, uris: bool) -> None:
    expected = any(naive(pattern, text, uris=uris) for pattern in patterns)
    assert Globs(tuple(patterns), uris=uris).match(text) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "uris", "found"),
    [
        ("get_*", "get_issue", NAMES, True),
        ("get_*", "get_", NAMES, True),
        ("get_*", "forget_x", NAMES, False),
        ("get", "get_issue", NAMES, False),
        ("get", "GET", NAMES, False),
        ("*", "", NAMES, True),
        ("*", "a/b\nc", NAMES, True),
        ("a*", "a/b", NAMES, True),
        ("?", "/", NAMES, True),
        ("?", "\n", NAMES, True),
        ("?", "ab", NAMES, False),
        ("a.c", "abc", NAMES, False),
        ("[ab]", "a", NAMES, False),
        ("[ab]", "[ab]", NAMES, True),
        ("a|b", "a", NAMES, False),
        ("(a", "(a", NAMES, True),
        ("\\*", "\\x", NAMES, True),
        ("é*", "éa", NAMES, True),
        ("x://a/*", "x://a/b", URIS, True),
        ("x://a/*", "x://a/b/c", URIS, False),
        ("x://a/*", "x://a/", URIS, True),
        ("x://a/**", "x://a/b/c", URIS, True),
        ("x://a/**", "x://a", URIS, False),
        ("**/c", "x://a/b/c", URIS, True),
        ("x://a/***", "x://a/b/c", URIS, True),
        ("x://?/b", "x:////b", URIS, False),
        ("https://EX?MPLE.org/A", "https://example.org/A", URIS, True),
    ],
)
def test_what_a_pattern_stands_for(pattern: str, text: str, uris: bool, found: bool) -> None:
    assert matches(pattern, text, uris=uris) is found


@pytest.mark.parametrize(
    "pattern",
    ["**a*a*a*b", "**a*b**c", "**a*b**a*b**c", "**a?*?b**c", "*a" * 20 + "*b", "**a" * 20 + "**b", "?" * 9000, "**"],
)
@pytest.mark.parametrize("text", ["a" * 8000, "a/" * 4000, "ab" * 4000 + "a"])
def test_no_pattern_and_no_text_take_long(pattern: str, text: str) -> None:
    assert matches(pattern, text, uris=URIS) is (pattern == "**")
    assert_costs_less(lambda: (matches(pattern, text, uris=URIS), matches(pattern, text, uris=NAMES)), 0.2)


def test_an_empty_list_matches_nothing() -> None:
    assert not Globs((), uris=NAMES).match("")
    assert not Globs((), uris=URIS).match("x")


def test_the_patterns_that_match_are_told_by_their_numbers() -> None:
    globs = Globs(["a*", "b", "*", "ab", "a*"], uris=NAMES)
    assert globs.matches("ab") == [0, 2, 3, 4]
    assert globs.matches("b") == [1, 2]
    assert Globs(["a", "b"], uris=NAMES).matches("c") == []


@pytest.mark.parametrize(
    ("text", "lower"),
    [
        ("HTTPS://Host/X", "https://host/X"),
        ("Repo://Acme/X", "repo://Acme/X"),
        ("FILE:///X", "file:///X"),
        ("*://Host", "*://Host"),
        ("X", "X"),
    ],
)
def test_only_what_is_the_same_in_upper_and_lower_case_is_lowered(text: str, lower: str) -> None:
    assert normalize_case(text) == lower


# Covering

TEXTS = ["".join(letters) for length in range(8) for letters in product("ab/", repeat=length)]
PATTERN = st.text("a/*?", max_size=4)  # no pattern names the `b` of the texts: so it stands for all other characters


@settings(max_examples=250)
@given(st.lists(PATTERN, max_size=3), PATTERN, st.booleans())
def test_covering_agrees_with_trying_all_short_texts(stronger: list[str], weaker: str, uris: bool) -> None:
    one, many = Globs([weaker], uris=uris), Globs(stronger, uris=uris)
    assert covers(stronger, weaker, uris=uris) == all(many.match(text) for text in TEXTS if one.match(text))


@pytest.mark.parametrize(
    ("stronger", "weaker", "uris", "covered"),
    [
        (["delete_*"], "delete_repo", NAMES, True),
        (["delete_*"], "delete_*", NAMES, True),
        (["delete_?*"], "delete_*", NAMES, False),
        (["*"], "get_*", NAMES, True),
        (["get_*"], "*", NAMES, False),
        ([], "x", NAMES, False),
        (["?", "??*", ""], "*", NAMES, True),
        (["?", "???*", ""], "*", NAMES, False),
        (["*a", "*b"], "*", NAMES, False),
        (["x*", "*y"], "x*y", NAMES, True),
        (["*a*", "*b*"], "*a*b*", NAMES, True),
        (["x://a/*"], "x://a/**", URIS, False),
        (["x://a/**"], "x://a/*/*", URIS, True),
        (["x://a/*", "x://a/*/**"], "x://a/**", URIS, True),
        (["**"], "anything/?", URIS, True),
        (["HTTPS://HOST/**"], "https://host/x", URIS, True),
        (["X://Host/**"], "x://host/x", URIS, False),
    ],
)
def test_what_covers_what(stronger: list[str], weaker: str, uris: bool, covered: bool) -> None:
    assert covers(stronger, weaker, uris=uris) is covered


def test_a_long_list_is_covered_quickly() -> None:
    many = [f"{verb}_{noun}_*" for verb in ("get", "list", "read") for noun in map(str, range(60))]

    def compare() -> None:
        assert covers(many, "read_17_of_these", uris=NAMES)
        assert covers([*many, "read_*"], "read_17_*", uris=NAMES)
        assert not covers(many, "read_*", uris=NAMES)

    assert_costs_less(compare, 0.5)


def test_what_would_take_too_long_is_not_covered() -> None:
    """In truth it is: but which of the last characters were an `a` can be in very many ways."""
    assert covers(["*a" + "?" * 5], "x*a" + "?" * 5, uris=NAMES)
    assert not covers(["*a" + "?" * 30], "x*a" + "?" * 30, uris=NAMES)
    assert_costs_less(lambda: covers(["*a" + "?" * 30], "x*a" + "?" * 30, uris=NAMES), 0.5)
