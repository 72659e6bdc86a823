"""Checks of text from clients: both ways give one verdict, and no legal body is refused or takes long."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.jsonrpc import strict
from host.jsonrpc.messages import Request, receive
from host.jsonrpc.strict import (
    LIGHT_BYTES,
    LIGHT_TOKENS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_TOKENS,
    count_tokens,
    flaw,
    has_more_tokens,
    is_heavy,
    pieces,
)
from tests.kit.bodies import ARGUMENTS, LONGEST, call
from tests.kit.cost import least_cost
from tests.kit.examples import examples

CALM = settings(max_examples=examples(150))

NAMES = st.sampled_from(["a", "b", "é", "\\", '"', "\ud800", "a\\", "{", ":", ""])
NUMBERS = st.sampled_from(
    [
        *("0", "-0", "1.5", "1e308", "1e400", "-1e400", "1e-400", "1E+0309", "1e0000000001"),
        *("9" * 308 + ".5", "9" * 310 + "e-9", "9" * 310 + ".0", "9" * 310, "0." + "9" * 5000),
        *("9" * MAX_DIGITS, "-" + "9" * MAX_DIGITS, "9" * (MAX_DIGITS + 1), "-" + "9" * (MAX_DIGITS + 1)),
    ]
)
LEAVES = st.one_of(NUMBERS, st.text(st.characters(exclude_categories=()), max_size=4).map(json.dumps))


def spelled(name: str, escaped: bool) -> str:
    """The name as a JSON string, perhaps with every character as an escape."""
    return f'"{"".join(f"{chr(92)}u{ord(char):04x}" for char in name)}"' if escaped else json.dumps(name)


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(NAMES, st.booleans(), inner).map(lambda each: f"{spelled(*each[:2])} :{each[2]}")
    return st.lists(pairs, max_size=4).map(lambda found: "{" + ",".join(found) + "}")


DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4).map(lambda found: f"[{', '.join(found)}]") | objects(inner)
).map(str.encode)
"""JSON text that may break any rule of values, and none of the grammar."""


DAMAGE = [b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\xff", b"\xfe", b"\n", b"1", b"e9", b"."]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A document with a few bytes changed."""
    text = bytearray(draw(DOCUMENTS))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(DAMAGE))
    return bytes(text)


def refused(check: Callable[[bytes], None], data: bytes) -> bool:
    try:
        check(data)
    except (ValueError, RecursionError):
        return True
    return False


@pytest.mark.slow
@CALM
@given(damaged(), st.integers(1, 9))
def test_decoding_and_scanning_come_to_the_same_verdict(data: bytes, step: int) -> None:
    """The size of the steps does not matter."""
    former, strict._STEP = strict._STEP, step
    try:
        assert refused(strict._scan, data) == refused(strict._decode, data)
    finally:
        strict._STEP = former


@pytest.mark.slow
@CALM
@given(damaged())
def test_the_verdict_on_a_long_text_is_that_on_a_short_one(data: bytes) -> None:
    padded = b"[" + b" " * 2000 + data + b"]"  # long enough to be scanned
    assert (flaw(padded) is None) == (flaw(b"[" + data + b"]") is None)


TWICE = "duplicate member 'a' in one object"
FLAWS = {
    "a doubled member": (b'{"a":1,"a":2}', TWICE),
    "a doubled member by an escape": (rb'{"\u0061":1,"a":2}', TWICE),
    "a doubled member around an object": (b'{"a":{"b":[{"a":1}]},"b":{},"a":2}', TWICE),
    "a doubled backslash": (rb'{"\\":1,"\u005c":2}', r"duplicate member '\\' in one object"),
    "a number that is not finite": (b"1e309", "a number is too large for a 64-bit float"),
    "one below zero that is not finite": (b"-1e309", "a number is too large for a 64-bit float"),
    "an integer part beyond floats": (b"9" * 310 + b".0", "a number is too large for a 64-bit float"),
    "a long integer": (b"9" * (MAX_DIGITS + 1), f"a number has more than {MAX_DIGITS} digits"),
    "too many levels": (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "nested deeper than 64 levels"),
    "no UTF-8": (b'"\xff"', "not UTF-8"),
}


@pytest.mark.parametrize(("text", "why"), FLAWS.values(), ids=FLAWS)
@pytest.mark.parametrize("blanks", [0, 2000])
def test_a_flaw_is_said_alike_both_ways(text: bytes, why: str, blanks: int) -> None:
    assert flaw(b"[" + b" " * blanks + text + b"]") == why


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"a":{"a":1},"b":2},"b":{"a":1}}',
        rb'{"a":1,"\\u0061":2,"\"":3,"\\\"":4}',
        b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1),
        b"9" * MAX_DIGITS,
        b"-" + b"9" * MAX_DIGITS,
        b"1e308",
        b"0." + b"9" * 100_000,
        b"9" * 400 + b"e-200",
        rb'{"\ud800":1,"\udc00":"\uD800\\ud800"}',
    ],
)
@pytest.mark.parametrize("blanks", [0, 2000])
def test_what_is_at_a_limit_has_no_flaw(text: bytes, blanks: int) -> None:
    assert flaw(b"[" + b" " * blanks + text + b"]") is None


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_two_hundred_thousand_structural_characters_are_legal(more: int) -> None:
    data = b"[" + b",".join([b"1"] * (MAX_TOKENS + more)) + b"]"
    assert count_tokens(data) == MAX_TOKENS + more
    assert (flaw(data) is None) == (more <= 0)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_body_is_heavy_beyond_its_bytes_or_its_structural_characters(more: int) -> None:
    assert is_heavy(b" " * (LIGHT_BYTES + more)) == (more > 0)
    assert is_heavy(b"," * (LIGHT_TOKENS + more)) == (more > 0)


def test_text_is_scanned_until_it_holds_too_much_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"[" + b'"",' * 1_000_000 + b"1]"
    scanned = 0

    def counted(data: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
        nonlocal scanned
        for each in pieces(data):
            scanned += 1
            yield each

    assert has_more_tokens(data, 1_000_000)
    assert not has_more_tokens(data, 1_000_001)
    monkeypatch.setattr(strict, "pieces", counted)
    assert has_more_tokens(data, 10_000)
    assert scanned == 1


@pytest.mark.few(4)
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_the_bodies_of_an_attack_are_legal_and_keep_their_bytes(arguments: Callable[[], bytes]) -> None:
    made = arguments()
    data = call(made)
    assert LONGEST * 0.05 < len(data) <= LONGEST
    found = receive(data).message
    assert isinstance(found, Request)
    assert found.params is not None
    assert bytes(found.params).endswith(b'"arguments":' + made + b"}")


@pytest.mark.slow
def test_the_time_of_a_check_grows_with_the_text_and_not_faster() -> None:
    """For every kind of text; the larger text is four times the smaller one."""

    for make in (
        lambda size: b'["' + b"\\n" * size + b'"]',
        lambda size: b"[" + b",".join([b"7" * 4000] * (size // 4000)) + b"]",
        lambda size: b"[1" + b"0" * 4000 + b"e-4000" + b",1" * (size // 8) + b"]",
        lambda size: b"{" + b",".join(b'"%d":{}' % n for n in range(size // 16)) + b"}",
        lambda size: b'["' + b'","'.join([b"x"] * (size // 8)) + b'"]',
    ):
        small, large = make(250_000), make(1_000_000)
        assert flaw(large) is flaw(small) is None
        assert least_cost(partial(flaw, large)) < 4 * 3 * max(least_cost(partial(flaw, small)), 0.001)
