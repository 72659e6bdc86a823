"""The exact limits of the definitions and results that clients can parse."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.jsonrpc.readable import MAX_RESULT_DEPTH, why_unreadable, why_unreadable_result
from host.jsonrpc.strict import MAX_DEPTH, MAX_DIGITS
from tests.kit.examples import examples

CALM = settings(max_examples=examples(100))
LONE = [
    rb'"\ud800"',
    rb'"\uDBFFx"',
    rb'"\udc00"',
    rb'"\ud800\ud800"',
    rb'"\\\ud800"',
    rb'{"\udfff":1}',
    rb'"\ud800\u0041"',
]
WHOLE = [rb'"\ud83d\ude00"', rb'"\\ud800"', rb'"\uD83D\uDE00"', '"\U0001f600"'.encode(), b'"ud800"']


@pytest.mark.parametrize("judge", [why_unreadable, why_unreadable_result])
def test_a_lone_surrogate_cannot_be_read_and_a_pair_can(judge: Callable[[bytes], str | None]) -> None:
    for text in LONE:
        assert "surrogate" in str(judge(b'{"a":[%b]}' % text)), text
    for text in WHOLE:
        assert judge(b'{"a":[%b]}' % text) is None, text


@pytest.mark.parametrize(("judge", "most"), [(why_unreadable, MAX_DEPTH), (why_unreadable_result, MAX_RESULT_DEPTH)])
@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"[":', b"}"), (b'["]","\\"[",', b"]")])
def test_a_text_of_so_many_levels_can_be_read_and_no_deeper_one(
    judge: Callable[[bytes], str | None], most: int, opened: bytes, closed: bytes
) -> None:
    for levels in (most - 1, most):
        assert judge(opened * levels + b"1" + closed * levels) is None
    assert "deeper" in str(judge(opened * (most + 1) + b"1" + closed * (most + 1)))


@pytest.mark.parametrize("judge", [why_unreadable, why_unreadable_result])
@pytest.mark.parametrize("form", [b"%b", b"-%b", b"[1,%b,2]"])
def test_an_integer_of_so_many_digits_can_be_read_and_no_longer_one(
    judge: Callable[[bytes], str | None], form: bytes
) -> None:
    for digits in (MAX_DIGITS - 1, MAX_DIGITS):
        assert judge(b'{"n":%b}' % (form % (b"7" * digits))) is None
    assert "number" in str(judge(b'{"n":%b}' % (form % (b"7" * (MAX_DIGITS + 1)))))
    assert judge(b'{"n":["%b"]}' % (b"7" * (MAX_DIGITS + 1))) is None, "a string may have as many as it likes"


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b'{"a":1e999}', b'{"a":NaN}', b'{"a":\xff}', b"{"])
def test_a_definition_must_be_what_a_client_may_send(text: bytes) -> None:
    assert why_unreadable(text) is not None


TREES = st.recursive(
    st.sampled_from([1, "[", "]", "{}", "\\\\", '"', '\\"[', ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["[", "}", '\\"', "a"]), inner, max_size=2)
    ),
    max_leaves=20,
)


def levels_of(tree: object) -> int:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
    return 0 if inner is None else 1 + max(map(levels_of, inner), default=0)


@CALM
@given(TREES, st.integers(min_value=0, max_value=MAX_RESULT_DEPTH))
def test_levels_are_counted_as_a_parser_would(tree: object, around: int) -> None:
    """Brackets inside strings do not count, whatever is before the quotation marks."""
    text = b"[" * around + json.dumps(tree).encode() + b"]" * around
    assert (why_unreadable_result(text) is None) == (levels_of(tree) + around <= MAX_RESULT_DEPTH)
