"""Patterns agree with the plainest matcher there is."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.globs import Globs, normalize_case, rests
from tests.kit.cost import assert_costs_less
from tests.kit.examples import examples

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


@settings(max_examples=examples(400))
@given(st.text("ab/*?", min_size=1, max_size=9), st.text("ab/", max_size=12), st.booleans())
def test_a_pattern_agrees_with_a_naive_matcher(pattern: str, text: str, uris: bool) -> None:
    assert matches(pattern, text, uris=uris) == naive(pattern, text, uris=uris)


@settings(max_examples=examples(120))
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


# What matches everything

TEXTS = ["".join(letters) for length in range(8) for letters in product("ab/", repeat=length)]
PATTERN = st.text("a/*?", max_size=4)  # no pattern names the `b` of the texts: so it stands for all other characters


@settings(max_examples=examples(250))
@given(st.lists(PATTERN, max_size=4), st.booleans())
def test_matching_everything_agrees_with_trying_all_short_texts(patterns: list[str], uris: bool) -> None:
    globs = Globs(patterns, uris=uris)
    assert globs.matches_everything() == all(globs.match(text) for text in TEXTS)


@pytest.mark.parametrize(
    ("patterns", "uris", "everything"),
    [
        ([], NAMES, False),
        (["*"], NAMES, True),
        (["*"], URIS, False),
        (["**"], URIS, True),
        (["*", "*/**"], URIS, True),
        (["?", "??*", ""], NAMES, True),
        (["?", "???*", ""], NAMES, False),
        (["*a", "*b"], NAMES, False),
        (["?*"], NAMES, False),
    ],
)
def test_what_matches_everything(patterns: list[str], uris: bool, everything: bool) -> None:
    assert Globs(patterns, uris=uris).matches_everything() is everything


def test_many_patterns_that_might_together_match_everything_take_no_long() -> None:
    """The automaton has very many states: one for each choice of the last characters that were an `a`."""
    globs = Globs(["*a" + "?" * 30, "?*"], uris=NAMES)
    assert_costs_less(lambda: globs.matches_everything(), 0.5)


@pytest.mark.parametrize(
    ("pattern", "prefix", "left"),
    [
        ("a__*", "a__", {"*"}),
        ("a__get", "a__", {"get"}),
        ("*", "a__", {"*"}),
        ("a*", "a__", {"*"}),
        ("?__b", "a__", {"b"}),
        ("*__get_*", "a__", {"*__get_*", "_get_*", "get_*"}),
        ("a", "a", {""}),
        ("b__get", "a__", set()),
        ("", "", {""}),
        ("", "a", set()),
    ],
)
def test_what_may_follow_a_prefix(pattern: str, prefix: str, left: set[str]) -> None:
    assert rests(pattern, prefix) == left


@given(pattern=st.text("ab*?", max_size=8), prefix=st.text("ab", max_size=4), rest=st.text("ab", max_size=4))
def test_the_rests_match_what_the_pattern_matches(pattern: str, prefix: str, rest: str) -> None:
    matched = any(Globs([left], uris=False).match(rest) for left in rests(pattern, prefix))
    assert matched is Globs([pattern], uris=False).match(prefix + rest)
