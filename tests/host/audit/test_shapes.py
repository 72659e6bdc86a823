"""Shapes show the form of arguments and none of their values."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from host.audit.shapes import shape_of, shape_of_long
from host.jsonrpc.raw import members
from host.policy.conditions import decode_arguments


def test_shapes_say_what_it_looks_like() -> None:
    arguments = {
        "title": "x" * 42,
        "labels": ["a", "b"],
        "n": 1,
        "f": 1.5,
        "b": True,
        "none": None,
        "deep": {"a": {"b": "c"}},
    }
    assert shape_of(arguments) == {
        "title": "str[42]",
        "labels": "arr[2]",
        "n": "num",
        "f": "num",
        "b": "bool",
        "none": "null",
        "deep": "obj[1]",
    }
    assert [shape_of(each) for each in (None, "text", [1], 1, False, object())] == [
        "null",
        "str[4]",
        "arr[1]",
        "num",
        "bool",
        "unreadable",
    ]


def test_decoded_numbers_are_numbers_however_written() -> None:
    numbers = ("1", "-0", "1.5", "1.0", "-0.0", "1e5", "1e400", "1" * 30)
    text = "{" + ",".join(f'"{at}":{each}' for at, each in enumerate(numbers)) + "}"
    assert shape_of(decode_arguments(Raw(text.encode()))) == {str(at): "num" for at in range(len(numbers))}
    assert shape_of(decode_arguments(Raw(b"1.5"))) == "num"


def test_long_arguments_have_a_shape_that_costs_little() -> None:
    small = b'{"title":"abc","labels":[1,2],"fill":"%b"}' % (b"x" * 100_000)
    shape = {"title": "str[3]", "labels": "arr[2]", "fill": "str[100002 bytes]"}
    assert shape_of_long(Raw(small)) == shape_of_long(Raw(small), members(small)) == shape
    many = b"{" + b",".join(b'"%d":1' % n for n in range(190_000)) + b"}"
    assert shape_of_long(Raw(many)) == f"obj[{len(many)} bytes]"
    commas = b'{"fill":"%b"}' % (b"," * 100_000)
    assert shape_of_long(Raw(commas)) == f"obj[{len(commas)} bytes]"
    assert shape_of_long(Raw(commas), members(commas)) == {"fill": "str[100002 bytes]"}
    huge = b'{"fill":"%b"}' % (b"x" * 1024 * 1024)
    assert shape_of_long(Raw(huge), members(huge)) == shape_of_long(Raw(huge)) == f"obj[{len(huge)} bytes]"
    assert shape_of_long(Raw(rb'{"a":"\ud800"}')) == {"a": "unreadable"}
    lone = rb'{"a":"\ud800%b"}' % (b"x" * 100_000)
    assert shape_of_long(Raw(lone)) == f"obj[{len(lone)} bytes]"


def test_shapes_are_small_and_in_ascii() -> None:
    shape = shape_of({f"{number}\n\u202e{'x' * 500}": number for number in range(100)})
    assert isinstance(shape, dict)
    assert len(shape) == 33
    assert shape["..."] == "obj[100]"
    assert all(len(name) <= 64 and name.isprintable() and name.isascii() for name in shape)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(values)
def test_no_value_is_in_a_shape(value: object) -> None:
    secret = "hunter2-0451"
    for holder in (secret, [secret], {"password": secret, "other": value}, {"deep": {"in": [secret]}}):
        assert secret not in json.dumps(shape_of(holder))
