"""Texts are found however JSON writes them, and nothing else changes."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.jsonrpc.withheld import WITHHELD, Withheld, is_withheld_in

TOKEN = "tok/en+0123456789=="


def replaced(data: bytes, *texts: str) -> Any:
    withheld = Withheld(texts)
    found = withheld.replaced(data)
    assert withheld.may_be_in(data) or found is data
    return json.loads(found)


@pytest.mark.parametrize(
    "written",
    [
        TOKEN,
        TOKEN.replace("/", "\\/"),
        TOKEN.replace("+", "\\u002B").replace("=", "\\u003d"),
        "".join(f"\\u{ord(char):04x}" for char in TOKEN),
        "".join(f"\\u{ord(char):04X}" for char in TOKEN),
    ],
)
@pytest.mark.parametrize("around", ["", "before \\n%s after", "%s%s", "\\\\%s", "\\u00e4%s\\ud83d"])
def test_a_text_is_found_in_every_spelling(written: str, around: str) -> None:
    text = (around or "%s").replace("%s", written)
    data = json.loads(f'"{text}"')
    expected = data.replace(TOKEN, WITHHELD)
    assert TOKEN not in expected
    assert replaced(f'{{"a": [1, "{text}"]}}'.encode(), TOKEN) == {"a": [1, expected]}
    assert replaced(f'{{"{text}": {{}}}}'.encode(), TOKEN) == {expected: {}}


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"tok/en"}',
        b'["tok\\/en", "+0123456789=="]',
        b'[ 1.50, "\\\\u002B\\u00e4", null ]',
        b'["\\tok/en+0123456789=="]',  # a tab, and the rest of it
        b'["\\u0074\\u006f\\u006b"]',
    ],
)
def test_other_text_keeps_its_bytes(data: bytes) -> None:
    withheld = Withheld([TOKEN])
    assert withheld.replaced(data) is data


def test_numbers_are_no_strings() -> None:
    assert Withheld(["1234567890123456"]).replaced(b'[1234567890123456, "1234567890123456"]') == (
        b'[1234567890123456, "%b"]' % WITHHELD.encode()
    )


def test_a_text_that_has_another_one_in_it_is_replaced_as_a_whole() -> None:
    assert Withheld(["secret", "my secret 2"]).replaced(b'["my secret 2 secret"]') == (
        b'["%b %b"]' % (WITHHELD.encode(), WITHHELD.encode())
    )


def test_without_texts_nothing_is_searched() -> None:
    nothing = Withheld(["", ""])
    assert nothing.texts == ()
    assert not nothing.may_be_in(b'"\\u0041"')


def test_what_was_replaced_is_recognised() -> None:
    assert is_withheld_in(Withheld(["abc"]).replaced(b'{"a":"xabcx"}'))
    assert not is_withheld_in(b'{"a":"xabcx"}')


def test_it_goes_to_other_processes() -> None:
    again = pickle.loads(pickle.dumps(Withheld([TOKEN])))
    assert again.replaced(json.dumps([TOKEN]).encode()) == json.dumps([WITHHELD]).encode()


SECRETS = st.text('ab\\"/\n\0é😀\ud83dx', min_size=2, max_size=6)


@given(SECRETS, st.text('ab\\"/\n\0é😀\ud83dx', max_size=20), st.data())
def test_it_agrees_with_a_whole_parser(secret: str, text: str, data: st.DataObject) -> None:
    """However each character is written."""
    parts: list[str] = []
    for unit in [text[at] for at in range(len(text))]:
        plain = json.dumps(unit, ensure_ascii=False)[1:-1]
        escaped = json.dumps(unit)[1:-1] if ord(unit) > 0x7F else f"\\u{ord(unit):04x}"
        must_escape = "\ud800" <= unit <= "\udfff"
        parts.append(escaped if must_escape or data.draw(st.booleans()) else plain)
    written = f'{{"k": "{"".join(parts)}"}}'
    decoded = json.loads(written)["k"]
    found = replaced(written.encode(), secret)["k"]
    assert found == decoded.replace(secret, WITHHELD)
