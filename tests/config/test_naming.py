"""The rule that makes an id of any name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.naming import ID_PATTERN, LONGEST_ID, make_id


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("github", "github"),
        ("GitHub", "github"),
        ("my_server", "my-server"),
        ("  My  Server! ", "my-server"),
        ("1password", "s1password"),
        ("a__b", "a-b"),
        ("--a--", "a"),
        ("awslabs.aws-documentation-mcp-server", "awslabs-aws-d-c94c58"),
        ("abcdefghijkl mnopqrstuvw", "abcdefghijkl-258e12"),
        ("日本", ""),
        ("", ""),
    ],
)
def test_examples(name: str, made: str) -> None:
    """The examples of the documentation; a changed hash would rename people's servers."""
    assert make_id(name) == made


@given(st.text())
def test_result_is_an_id_or_empty(name: str) -> None:
    """Whatever the name, also half surrogate pairs, the result is valid and always the same."""
    made = make_id(name)
    assert made == make_id(name)
    assert made == "" or (re.fullmatch(ID_PATTERN, made) and len(made) <= LONGEST_ID)


@pytest.mark.slow
@given(st.from_regex(ID_PATTERN, fullmatch=True).filter(lambda name: len(name) <= LONGEST_ID))
def test_an_id_stays_itself(name: str) -> None:
    """A name that is an id already is not renamed."""
    assert make_id(name) == name


@given(st.text(alphabet="abc-_ 1", min_size=30), st.text(alphabet="abc-_ 1", min_size=30))
def test_long_names_stay_apart(first: str, second: str) -> None:
    """Two long names with a common beginning do not become one id."""
    if first != second and len(make_id(first)) == LONGEST_ID == len(make_id(second)):
        assert make_id(first) != make_id(second)
