"""Conditions that a person writes as JSON: read as in the file, refused in its words."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import Check, Condition, WhenError, read_when
from tests.config.kit import load_text
from tests.kit.examples import examples


def test_conditions() -> None:
    """By name or by pointer; `${...}` is text like any other, and no variable is looked up."""
    when = {"owner": {"in": ["acme", 1, True, None]}, "/user/name": "${env:HOME}", "n": {"range": [1, None]}}
    assert read_when(when) == (
        Condition("/n", (Check("range", (1, None)),)),
        Condition("/owner", (Check("in", ("acme", 1, True, None)),)),
        Condition("/user/name", (Check("eq", "${env:HOME}"),)),
    )


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
CHECKS = st.fixed_dictionaries(
    {},
    optional={
        "eq": VALUES,
        "in": st.lists(VALUES, min_size=1),
        "prefix": st.sampled_from(["a", "1", "true"]),
        "max_len": st.integers(0, 99),
        "type": st.sampled_from(["string", "null", "object"]),
        "path_under": st.just(["/srv", "/tmp/"]),
    },
).filter(bool)


@given(st.dictionaries(st.sampled_from(["a", "b", "/c/d", "e f"]), CHECKS | VALUES, min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
def test_they_are_what_the_file_would_make_of_them(tmp_path: Path, when: dict[str, object]) -> None:
    """The same object in a rule of a file gives the same conditions."""
    rules = [{"name": "t", "when": when}]
    text = json.dumps({"servers": {"a": {"command": "x", "consent": {"tools": {"ask": rules}}}}})
    made = load_text(tmp_path, text).servers["a"].consent.tools.ask[0].when
    assert repr(read_when(when)) == repr(made)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({}, "expected a map of arguments, found an empty map"),
        ({"a": {}}, "a: expected at least one check, found an empty map"),
        ({"a": {"prefx": "x"}}, "a.prefx: there is no such check; did you mean prefix?"),
        ({"a": {"min": 1}}, "a.min: there is no such check; did you mean range?"),
        ({"a": {"zzzz": "x"}}, "a.zzzz: there is no such check; there are eq, in, prefix"),
        ({"a": []}, "a.in: expected at least one value"),
        ({"a": {"eq": {}}}, "a.eq: expected text, a number, true, false or null, found a map"),
        ({"a": {"max_len": "5"}}, "a.max_len: expected a whole number"),
        ({"a": {"type": "text"}, "b": {"glob": ""}}, "; b.glob: expected a pattern"),
        ({"": 1}, "expected the name of an argument"),
        ({"/~": 1}, "/~: in a JSON pointer ~ is written ~0"),
        ({"a": 1, "/a": 2}, '"a" and "/a" are the same argument'),
        ({"a": 10**400}, "a.eq: this number has more than 300 digits"),
        ({"a": 10**5000}, "a number has too many digits"),
        ({"a\u202e": {"x": 1}}, "a?.x: there is no such check"),
    ],
)
def test_wrong_conditions(when: dict[str, object], said: str) -> None:
    """All that is wrong, in one sentence that may be shown."""
    with pytest.raises(WhenError) as caught:
        read_when(when)
    assert said in str(caught.value)


def test_no_planted_secret_is_in_an_error_of_conditions() -> None:
    """Arguments of a call, from which a person makes conditions, may hold secrets."""
    secret = "l1teral-canary-0123"
    wrong: list[dict[str, object]] = [
        {"a": {"prefix": [secret]}},
        {"a": {"range": [1, 2, secret]}},
        {"a": {"path_under": [[secret]]}},
        {"a": {"max_len": {"x": secret}}},
        {"a": {"eq": [secret]}},
    ]
    for when in wrong:
        with pytest.raises(WhenError) as caught:
            read_when(when)
        assert secret not in "".join(traceback.format_exception(caught.value))
