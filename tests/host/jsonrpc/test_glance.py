"""The envelope of a long message is the one that reading it would find, without reading it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.errors import TOO_LARGE
from host.jsonrpc.envelope import Envelope
from host.jsonrpc.glance import LONG, LongMessage, glance, read_outlined, read_unless_long
from host.jsonrpc.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Failure,
    Malformed,
    Notification,
    Request,
    Success,
    read,
    read_each,
)
from host.jsonrpc.outline import outline_soon
from tests.fuzz.mutations import mutate
from tests.kit.cost import least_cost

JSON = '{"jsonrpc":"2.0",'


@pytest.mark.parametrize(
    ("text", "envelope"),
    [
        ('{"jsonrpc":"2.0","method":"n","params":{@}}', Envelope(None, False, "n")),
        ('{"method":"n","params":[@],"jsonrpc":"2.0"}', Envelope(None, False, "n")),
        ('{"params":{@},"method":"n"}', Envelope(None, False, "n")),
        ('{"jsonrpc":"2.0","id":7,"method":"m","params":{@}}', Envelope(7, False, "m")),
        ('{"method":"m","params":{@},"jsonrpc":"2.0","id":"q"}', Envelope("q", False, "m")),
        ('{"jsonrpc":"2.0","id":7,"result":{@}}', Envelope(7, True)),
        (' \n{ "result" : {@} , "jsonrpc" : "2.0" , "id" : 7 } \r\n', Envelope(7, True)),
        ('{"error":{@},"id":-1}', Envelope(-1, True)),
        ('{"result":{@,"id":5},"id":7}', Envelope(7, True)),
        ('{"result":{@,"id":5}}', None),
        ('{"result":{@},"id":null}', None),
        ('{"result":{@},"id":1.5}', None),
        ('{"result":{@},"id":99999999999999999999999}', None),
        ('{"id":7,"method":"m","result":{@}}', None),
        ('{"method":7,"params":{@}}', None),
        ('{"params":{@}}', None),
        ('{"more":{@},"id":7,"result":1}', None),
        ('[{"id":7,"result":{@}}]', None),
        ("@", None),
    ],
)
def test_the_short_members_may_stand_before_or_after_the_long_one(text: str, envelope: Envelope | None) -> None:
    assert glance(text.replace("@", '"x":"' + "y" * LONG + '"').encode()) == envelope


names = st.sampled_from(["a", '"', ',"id":1}', "\\", "id", "\u00e9"])
ids = st.one_of(st.integers(-(2**63), 2**63 - 1), names)
payloads = st.recursive(
    names | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(names, inner)
)


def test_an_id_with_an_escape_behind_the_long_member_is_not_overlooked() -> None:
    text = b'{"jsonrpc":"2.0","params":{"x":"%b"},"id":"\\"","method":"a"}' % (b"z" * 600)
    assert glance(text) is None
    assert isinstance(read(text), Request)


@given(st.permutations(["jsonrpc", "id", "method", "long"]), st.data())
def test_a_glance_finds_what_reading_finds(order: list[str], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["params", "result", "error", "told"]))
    long: Any = {"x": data.draw(payloads), "y": "z" * 600, "z": data.draw(payloads)}
    values = {"jsonrpc": "2.0", "id": data.draw(ids), "method": data.draw(names)}
    if kind == "error":
        long = {"code": 1, "message": "", "data": long}
    left_out = {"params": "", "told": "id"}.get(kind, "method")
    member = "params" if kind == "told" else kind
    members = {member if name == "long" else name: long if name == "long" else values[name] for name in order}
    members.pop(left_out, None)
    text = json.dumps(members).encode()
    found = glance(text)
    message = read(text)
    if found is None:  # a name or an id with an escape is not decoded
        assert "\\" in json.dumps(values)
    elif found.is_answer:
        assert isinstance(message, Success | Failure)
        assert message.id == found.id
    elif found.id is None:
        assert isinstance(message, Notification)
        assert message.method == found.method
    else:
        assert isinstance(message, Request)
        assert (message.id, message.method) == (found.id, found.method)


BLOCKS = '{"content":[{"type":"text","text":"@"}],"structuredContent":{"n":1.0,"m":null},"isError":false}'


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (f'{JSON}"id":7,"result":{BLOCKS}}}', True),
        (f'{{"result":{BLOCKS},"jsonrpc":"2.0","id":"q"}}', True),
        (f'{{ "id" : 7 , "jsonrpc" : "2.0" , "result" : {BLOCKS} }}\r\n', True),
        (f'{JSON}"id":7,"result":{{ "content": "@" }}}}', True),
        (f'{JSON}"id":7,"result":{{"a":1,"a":"@"}}}}', True),
        (f'{JSON}"id":7,"result":{{}}}}', True),
        (f'{JSON}"id":7,"result":{{"x":"\n@"}}}}', False),
        (f'{JSON}"id":7,"result":{{"x":"\\ud800@"}}}}', False),
        (f'{JSON}"id":7,"result":{{"x":"\\x@"}}}}', False),
        (f'{JSON}"id":7,"result":{{"x":"@"}}}}}}', False),
        (f'{JSON}"id":7,"result":{{"x":"@"}},"y":{{}}}}', False),
        (f'{JSON}"id":7,"result":"@","error":{{}}}}', False),
        (f'{JSON}"id":7,"result":[{{"x":"@"}}]}}', False),
        (f'{JSON}"id":7,"error":{BLOCKS}}}', False),
        (f'{JSON}"id":7,"method":"m","result":{BLOCKS}}}', False),
        (f'{{"id":7,"result":{BLOCKS}}}', False),
        (f'{{"jsonrpc":"2.1","id":7,"result":{BLOCKS}}}', False),
        (f'{JSON}"id":07,"result":{BLOCKS}}}', False),
        (f'{JSON}"result":{BLOCKS}}}', False),
        (f'{JSON}"id":7,"result":', False),
    ],
)
def test_a_usual_result_is_read_with_its_outline(text: str, is_read: bool) -> None:
    data = text.replace("@", "x" * 2000).encode()
    success = read_outlined(data)
    assert (success is not None) == is_read
    if success is not None:
        assert success == read(data)
        assert success.outline == outline_soon(success.result)
        assert "@" not in text or read_outlined(data.replace(b"xx", b"\xff", 1)) is None, "it is not UTF-8"


@given(st.integers(), st.permutations(["jsonrpc", "id", "result"]), payloads)
def test_a_changed_result_is_read_as_ever_or_not_with_its_outline(seed: int, order: list[str], payload: object) -> None:
    blocks = {**json.loads(BLOCKS.replace("@", "x" * 2000)), "_meta": {"p": payload}}
    members = {"jsonrpc": "2.0", "id": 7, "result": blocks}
    text = json.dumps({name: members[name] for name in order}, separators=(",", ":"), ensure_ascii=False).encode()
    assert read_outlined(text) == read(text)
    random = Random(seed)
    for _ in range(20):
        changed = mutate(text, random, (text, b'},"id":8}', b'"result":{}', b'"', b"\\", b'"}}'))
        assert read_outlined(changed) in (None, read(changed))


def test_only_a_long_message_is_left_unread() -> None:
    short = f'{JSON}"id":1,"result":"@"}}'.encode()
    fits = short.replace(b"@", b"x" * (LONG - len(short) + 1))
    assert read_unless_long(fits, False) == read_each(fits, False)
    longer = fits.replace(b"x", b"xx", 1)
    assert read_unless_long(longer, False) == [LongMessage(longer, Envelope(1, True))]
    batch = b"[" + longer + b"]"
    assert read_unless_long(batch, True) == read_each(batch, True)


@pytest.mark.parametrize(
    ("end", "code"),
    [(b'"}', None), (b'"', PARSE_ERROR), (rb'\ud800"}', TOO_LARGE), (b'","error":{}}', INVALID_REQUEST)],
)
def test_what_was_left_unread_is_read_as_ever_and_its_failure_has_its_id(end: bytes, code: int | None) -> None:
    text = b'{"jsonrpc":"2.0","id":7,"result":"' + b"x" * LONG + end
    (long,) = read_unless_long(text, False)
    assert isinstance(long, LongMessage)
    message = long.read()
    if code is None:
        assert message == read(text)
    else:
        assert isinstance(message, Malformed)
        assert (message.code, message.id, message.answers) == (code, 7, True)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":NaN}', 7),
        (b'{"jsonrpc":"2.0","id":"7","error":{"message":"\xff"}}', "7"),
        (b'{"jsonrpc":"2.0","other":[1,2],"result":Infinity,"id":7}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":', 7),  # a line end within its text
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":NaN}}', None),
        (b'{"jsonrpc":"2.0","method":"m","params":{"a":NaN}}', None),
        (b'{"jsonrpc":"2.0","result":{"id":7,"a":NaN}}', None),
        (b'{"jsonrpc":"2.0","id":NaN,"result":{}}', None),
        (b'"id":7,"result":NaN', None),
        (b'[{"jsonrpc":"2.0","id":7,"result":NaN}]', None),
        (b"\xff\xfe", None),
    ],
)
def test_an_answer_that_is_no_json_has_its_id(text: bytes, id: object) -> None:
    """A request has none: what is wrong with it must not end one of ours."""
    (broken,) = read_unless_long(text, False)
    assert isinstance(broken, Malformed)
    assert (broken.id, broken.answers) == (id, id is not None)


def test_a_glance_costs_the_same_however_long_the_message_is() -> None:
    texts = [b'{"jsonrpc":"2.0","method":"n","params":[1' + b",1" * (size // 2) + b"]}" for size in (LONG, 50 * LONG)]
    assert least_cost(lambda: glance(texts[1])) < 5 * least_cost(lambda: glance(texts[0]))


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("end", [b"", b"[]", b"{}"])
def test_so_does_text_that_is_mostly_space(end: bytes, batches: bool) -> None:
    shorter, longer = (b" " * size + end for size in (LONG, 50 * LONG))
    (refused,) = read_unless_long(longer, batches)
    assert isinstance(refused, Malformed)
    assert least_cost(lambda: read_unless_long(longer, batches)) < 5 * least_cost(
        lambda: read_unless_long(shorter + b" ", batches)
    )
