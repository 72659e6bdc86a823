"""Patterns against the globs that decide about calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from config.globs import Globs
from config.patterns import after_prefix, common, covered, covers, overlap, widest

PATTERNS = st.text("ab_*?", max_size=6)
NAMES = st.text("ab_", max_size=6)


def match(pattern: str, name: str) -> bool:
    # The globs have no empty pattern.
    return Globs([pattern], uris=False).match(name) if pattern else not name


@given(PATTERNS, PATTERNS, NAMES)
def test_a_pattern_that_covers_matches_all_that_the_other_does(wide: str, narrow: str, name: str) -> None:
    if covers(wide, narrow) and match(narrow, name):
        assert match(wide, name)


@given(PATTERNS, NAMES)
def test_a_name_is_covered_exactly_if_it_matches(pattern: str, name: str) -> None:
    assert covers(pattern, name) is match(pattern, name)
    assert covered(name, {pattern}) is match(pattern, name)


@given(PATTERNS)
def test_everything_covers_everything(pattern: str) -> None:
    assert covers("*", pattern)
    assert covers(pattern, pattern)


@given(PATTERNS, PATTERNS, NAMES)
def test_patterns_that_match_a_name_both_overlap(one: str, other: str, name: str) -> None:
    if match(one, name) and match(other, name):
        assert overlap(one, other)


@given(PATTERNS, NAMES)
def test_a_pattern_overlaps_a_name_exactly_if_it_matches(pattern: str, name: str) -> None:
    assert overlap(pattern, name) is match(pattern, name)
    assert overlap(name, pattern) is match(pattern, name)


@given(st.sets(PATTERNS, max_size=3), st.sets(PATTERNS, max_size=3), NAMES)
def test_common_patterns_match_nothing_else(some: set[str], others: set[str], name: str) -> None:
    if any(match(pattern, name) for pattern in common(some, others)):
        assert any(match(pattern, name) for pattern in some)
        assert any(match(pattern, name) for pattern in others)


@given(st.sets(NAMES, max_size=4), st.sets(NAMES, max_size=4))
def test_common_names_are_those_of_both(some: set[str], others: set[str]) -> None:
    assert common(some, others) == some & others


@given(st.sets(PATTERNS, max_size=4), NAMES)
def test_the_widest_match_the_same(patterns: set[str], name: str) -> None:
    kept = widest(patterns)
    assert kept <= patterns
    assert any(match(pattern, name) for pattern in kept) is any(match(pattern, name) for pattern in patterns)
    assert not any(covers(one, other) for one in kept for other in kept - {one})


@given(PATTERNS, NAMES, NAMES.filter(bool))
def test_rests_match_exactly_the_names_after_the_prefix(pattern: str, prefix: str, name: str) -> None:
    assert any(match(rest, name) for rest in after_prefix(pattern, prefix)) is match(pattern, prefix + name)
