"""The envelope of a message that is too long to be kept: the scanner agrees with a JSON parser, however it is fed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.jsonrpc.envelope import Envelope, EnvelopeScanner
from host.jsonrpc.messages import MAX_ID_BYTES, Failure, Malformed, Notification, Request, Success, read
from tests.kit.examples import examples

CALM = settings(max_examples=examples(500))


def scanned(*pieces: bytes) -> Envelope | None:
    scanner = EnvelopeScanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner.envelope()


def cut(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    for start, end in pairwise([0, *sorted(each % (len(data) + 1) for each in cuts), len(data)]):
        yield data[start:end]


def parsed(data: bytes) -> Envelope | None:
    """The envelope by the standard library's parser."""
    found: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found[:] = pairs  # the outermost object is the last one
        return dict(pairs)

    text = json.JSONDecoder(object_pairs_hook=keep).decode(data.decode())
    if not isinstance(text, dict):
        return None
    ids = [value for name, value in found if name == "id"]
    names = {name for name, _ in found}
    is_answer = "result" in names or "error" in names or "method" not in names
    if not ids:
        return None if is_answer else Envelope(None, False)
    id = ids[0]
    fits = isinstance(id, str) and _is_utf8(id) and len(id.encode()) <= MAX_ID_BYTES
    fits = fits or (type(id) is int and -(2**63) <= id < 2**63)
    return Envelope(id, is_answer) if fits and len(ids) == 1 else None


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def spelled(text: str, escape: int) -> bytes:
    """A JSON string in which the characters whose bit is set are written as escapes."""
    chars = [
        f"\\u{ord(char):04x}"
        if escape >> at & 1 and ord(char) < 0x10000
        else json.dumps(char, ensure_ascii=False)[1:-1]
        for at, char in enumerate(text)
    ]
    return ('"' + "".join(chars) + '"').encode()


NAMES = ["id", "method", "result", "error", "params", "jsonrpc", "ID", "i", "idd", "", 'i"d', "\\", "é"]
CHARS = 'a"\\{}[],:\n id\u2028é😀'
PLAIN = [b"true", b"false", b"null", b"1.5", b"-0", b"1e9", b"12345678901234567890123"]


def blank(chance: Random) -> bytes:
    return chance.choice([b"", b"", b" ", b"\t\r\n "])


def value(chance: Random, deep: int) -> bytes:
    match chance.randrange(6 if deep else 4):
        case 0:
            return str(chance.choice([7, -(2**63), 2**63, chance.getrandbits(66)])).encode()
        case 1:
            return chance.choice(PLAIN)
        case 2:
            return spelled("".join(chance.choices(CHARS, k=chance.randrange(8))), chance.getrandbits(8))
        case 3:
            return spelled(chance.choice(NAMES), chance.getrandbits(8))
        case 4:
            return b"[" + b" ,".join(value(chance, deep - 1) for _ in range(chance.randrange(4))) + b"]"
        case _:
            return text_object(chance, deep - 1)


def text_object(chance: Random, deep: int = 3) -> bytes:
    """An object with members of the envelope and others, in any order, spelling and spacing."""
    members = []
    for _ in range(chance.randrange(6)):
        key = spelled(chance.choice(NAMES), chance.choice([0, 0, 0, 1, 2, 255]))
        parts = [blank(chance), key, blank(chance), b":", blank(chance), value(chance, deep), blank(chance)]
        members.append(b"".join(parts))
    return b"{" + b",".join(members) + b"}"


# Made from a seed: a strategy for the grammar takes a hundred times longer.
OBJECTS = st.integers(0, 2**64).map(lambda seed: text_object(Random(seed)))


@CALM
@given(OBJECTS, st.lists(st.integers(0, 2000), max_size=12))
def test_any_cut_of_any_object_gives_what_a_parser_finds(data: bytes, cuts: list[int]) -> None:
    assert scanned(*cut(data, cuts)) == parsed(data)


@CALM
@given(OBJECTS)
def test_byte_by_byte_gives_what_a_parser_finds(data: bytes) -> None:
    assert scanned(*(data[at : at + 1] for at in range(len(data)))) == parsed(data)


@CALM
@given(OBJECTS)
def test_it_agrees_with_the_reader_of_messages_where_that_takes_the_message(data: bytes) -> None:
    found = scanned(data)
    match read(data):
        case Request(id, _, _):
            assert found in (Envelope(id, False), None)  # None: the id stands there twice
        case Notification():
            assert found == Envelope(None, False)
        case Success(id, _):
            assert found in (Envelope(id, True), None)
        case Failure(_, id):
            assert found in (Envelope(id, True), None)
        case Malformed():
            pass


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_what_is_no_json_does_no_harm(data: bytes, cuts: list[int]) -> None:
    assert scanned(*cut(data, cuts)) == scanned(data)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"id":8,"x":[{"id":9}]}}', Envelope(7, True)),
        (b'{"result":["\\"}","id",{"id":1}],"\\u0069d":"a"}', Envelope("a", True)),
        (b'{"\\u006d\\u0065\\u0074\\u0068\\u006f\\u0064":"x","id":1}', Envelope(1, False)),
        (b'{"method":"x","params":{"id":1}}', Envelope(None, False)),
        (b'{"id":1,"result":1,"id":1}', None),
        (b'{"id":1,"result":1,"\\u0069\\u0064":2}', None),
        (b'{"id":[1],"result":1}', None),
        (b'{"id":null,"method":"x"}', None),
        (b'{"id":1.5,"result":1}', None),
        (b'{"id":true,"result":1}', None),
        (b'{"result":{"id":1}}', None),
        (b'[{"id":1,"result":1}]', None),
        (b'{"id":1,"result":"', None),
        (b'{"id":1,"result":1}}', None),
        (b'{"id":1}', Envelope(1, True)),
        (b'{"id":"%s"}' % (b"x" * MAX_ID_BYTES), Envelope("x" * MAX_ID_BYTES, True)),
        (b'{"id":"%s"}' % (b"x" * (MAX_ID_BYTES + 1)), None),
        (b'{"id":"%s"}' % (b"x" * 100_000), None),
        (b'{"%s":1,"id":1}' % (b"x" * 100_000), Envelope(1, True)),
    ],
)
def test_only_one_id_at_the_top_level_counts(data: bytes, found: Envelope | None) -> None:
    assert scanned(data) == found


def test_no_more_is_kept_than_a_key_and_an_id() -> None:
    scanner = EnvelopeScanner()
    for _ in range(100):
        scanner.feed(b'{"id":"' if not scanner._in_string else b"x" * 10_000)
        assert len(scanner._kept or b"") <= 6 * MAX_ID_BYTES
