"""Reading and writing JSON-RPC messages: what is refused and why, and that payloads keep their bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from host.errors import TOO_LARGE
from host.jsonrpc.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    MAX_BATCH,
    MAX_ID_BYTES,
    MAX_OTHER_SURROGATES,
    MAX_OTHER_TOKENS,
    MAX_SERVER_BATCH,
    MAX_SURROGATE_BYTES,
    PARSE_ERROR,
    ErrorBody,
    Failure,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    Success,
    read,
    read_batch,
    read_each,
    receive,
    receive_at_once,
    write,
)
from host.jsonrpc.raw import EMPTY_OBJECT, is_object, members
from host.jsonrpc.strict import LIGHT_TOKENS, MAX_DEPTH, MAX_DIGITS, MAX_TOKENS
from tests.fuzz.mutations import mutate
from tests.host.jsonrpc.test_strict import DOCUMENTS
from tests.kit.cost import assert_costs_less, least_cost
from tests.kit.examples import examples

Reader = Callable[[bytes], Message | Malformed]
CALM = settings(max_examples=examples(100))


def read_strictly(data: bytes) -> Message | Malformed:
    """One message of a client."""
    return receive(data).message


def read_batch_strictly(data: bytes) -> list[Message | Malformed] | None:
    """A batch of a client."""
    return receive(data).batch


BOTH = pytest.mark.parametrize("reader", [read, read_strictly])


def call(params: bytes = b"{}", id: bytes = b"1") -> bytes:
    return b'{"jsonrpc":"2.0","id":' + id + b',"method":"m","params":' + params + b"}"


def refused(data: bytes) -> tuple[int, Id | None]:
    """The code and id with which a client's message is refused."""
    found = read_strictly(data)
    assert isinstance(found, Malformed), found
    return found.code, found.id


# What is no JSON, or not the same JSON to everybody. The id is never echoed: nothing in it can be relied on.

BAD_JSON = {
    "nothing": b"",
    "blanks": b" \n",
    "a word": b"hello",
    "cut off": b'{"jsonrpc":"2.0","id":1,"method":"m"',
    "cut off in a string": b'{"jsonrpc":"2.0","id":1,"method":"m',
    "two documents": b'{"jsonrpc":"2.0","id":1,"method":"m"} {}',
    "text after the end": call() + b"x",
    "comma before the end": b'{"jsonrpc":"2.0","id":1,"method":"m",}',
    "single quotes": b"{'jsonrpc':'2.0','id':1,'method':'m'}",
    "a comment": b'{"jsonrpc":"2.0","id":1,/**/"method":"m"}',
    "invalid UTF-8 in a payload": call(b'{"a":"\xff"}'),
    "an overlong slash": call(b'{"a":"\xc0\xaf"}'),
    "a surrogate in UTF-8": call(b'{"a":"\xed\xa0\x80"}'),
    "UTF-16": call().decode().encode("utf-16"),
    "UTF-16 without a mark": call().decode().encode("utf-16-le"),
    "UTF-32": call().decode().encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf" + call(),
    "65 levels": call(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
    "65 levels of objects": call(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH),
    "100,000 levels": call(b"[" * 100_000 + b"]" * 100_000),
    "100,000 levels without an end": b"[" * 100_000,
    "5,000 digits": call(b'{"a":' + b"9" * 5000 + b"}"),
    "NaN": call(b'{"a":NaN}'),
    "Infinity": call(b'{"a":Infinity}'),
    "-Infinity": call(b'{"a":-Infinity}'),
    "1e400": call(b'{"a":1e400}'),
    "-1e400": call(b'{"a":-1e400}'),
    "a leading zero": call(b'{"a":01}'),
    "a plus": call(b'{"a":+1}'),
    "a bare point": call(b'{"a":1.}'),
    "doubled members of the envelope": b'{"jsonrpc":"2.0","id":1,"method":"m","method":"n"}',
    "doubled members of params": call(b'{"name":"a","name":"b"}'),
    "doubled members deep inside": call(b'{"a":[{"b":{"c":1,"c":1}}]}'),
    "doubled members by an escape": call(b'{"name":"a","n\\u0061me":"b"}'),
    "a line end in a string": call(b'{"a":"\n"}'),
    "a NUL in a string": call(b'{"a":"\x00"}'),
    "a tab in a string": call(b'{"a":"\t"}'),
    "an unknown escape": call(b'{"a":"\\x41"}'),
    "half an escape": call(b'{"a":"\\u00"}'),
    "a blank that JSON does not know": b"\xc2\xa0" + call(),
    "too many commas": call(b"[" + b"1," * MAX_TOKENS + b"1]"),
    "too many objects": call(b"[" + b"{}," * (MAX_TOKENS // 2) + b"{}]"),
}


@pytest.mark.parametrize("data", BAD_JSON.values(), ids=BAD_JSON)
def test_a_client_may_not_send(data: bytes) -> None:
    assert refused(data) == (PARSE_ERROR, None)


def test_a_doubled_member_is_named_and_escaped() -> None:
    found = read_strictly(call('{"é\\n":1,"é\\n":2}'.encode()))
    assert found == Malformed(PARSE_ERROR, r"duplicate member '\xe9\n' in one object")


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1), id="64 levels with the envelope"),
        pytest.param(b"[" + b"1," * (MAX_TOKENS - 5) + b"1]", id="just as many structural characters as may be"),
        pytest.param(b'"' + b"[" * (MAX_DEPTH + 10) + b'"', id="brackets in a string are no levels"),
        pytest.param(b'"\\"' + b"{" * (MAX_DEPTH + 10) + b'\\\\"', id="escaped quotes do not end a string"),
        pytest.param(b"[" + b"[]," * 100 + b"1]", id="many brackets side by side"),
        pytest.param(b"9" * 4000, id="4,000 digits"),
        pytest.param(b"1.7e308", id="the largest of floats"),
    ],
)
def test_a_client_may_send(params: bytes) -> None:
    found = read_strictly(call(params))
    assert isinstance(found, Request)
    assert found.params is not None
    assert bytes(found.params) == params


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"[" * 65 + b'"' + b'\\"' * 2_000_000, id="a string without an end, full of quotes"),
        pytest.param(b"[" * 65 + b'"' + b"\\\\" * 2_000_000 + b"\\", id="a string without an end, full of backslashes"),
        pytest.param(b"[" * 65 + b"]" * 4_000_000, id="ends without beginnings"),
        pytest.param(
            b"{" + b",".join(b'"%x":1' % n for n in range(100_000)) + b',"1869f":1}', id="a hundred thousand members"
        ),
        pytest.param(b"[" + b"{}," * 1_300_000 + b"{}]", id="a million objects"),
        pytest.param(b"[" * 4_000_000, id="a million levels"),
        pytest.param(b'{"a":"' + b"x" * 4_000_000, id="one long string without an end"),
    ],
)
def test_a_bomb_is_found_out_in_a_fraction_of_a_second(data: bytes) -> None:
    assert isinstance(read_strictly(data), Malformed)
    assert_costs_less(lambda: read_strictly(data), 1)


HALF = b'{"x":"' + rb"\ud800" * 30_000 + b'"}'
HALF_TOO_LONG = f"the message has an escape of half a surrogate pair and more than {MAX_SURROGATE_BYTES} bytes"


@pytest.mark.parametrize(
    ("message", "id", "answers"),
    [
        (b'{"jsonrpc":"2.0","result":%b,"id":7}' % HALF, 7, True),
        (b'{"id":7,"error":{"code":1,"message":"m","data":%b},"jsonrpc":"2.0"}' % HALF, 7, True),
        (b'{"jsonrpc":"2.0","method":"m","id":7,"params":%b}' % HALF, 7, False),
        (b'{"jsonrpc":"2.0","method":"m","params":%b}' % HALF, None, False),
        (b'{"jsonrpc":"2.0","result":%b,"id":"d"}' % HALF, None, True),
        (b'{"jsonrpc":"2.0","result":%b,"id":{}}' % HALF, None, True),
    ],
)
def test_a_long_message_with_half_characters_is_refused_under_its_id(
    message: bytes, id: int | None, answers: bool
) -> None:
    assert read(message) == Malformed(TOO_LARGE, HALF_TOO_LONG, id, answers)


def test_a_long_text_with_half_characters_that_is_no_json_is_not_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("host.jsonrpc.raw._SurrogateMask")
    found = read(b'{"jsonrpc":"2.0","method":"m","params":%b' % HALF)
    assert isinstance(found, Malformed)
    assert found.code == PARSE_ERROR


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"Server started", "not JSON"), (b'{"a": ', "not JSON"), (b'{"a":' * 100_000, "nested too deep")],
)
def test_a_refused_text_of_a_server_is_explained_in_plain_words(text: bytes, why: str) -> None:
    assert read(text) == Malformed(PARSE_ERROR, why)


# What is JSON and no message


@pytest.mark.parametrize("text", [b"1", b'"m"', b"null", b"true", b"1.5"])
@BOTH
def test_json_that_is_no_object_is_an_invalid_request(reader: Reader, text: bytes) -> None:
    assert reader(text) == Malformed(INVALID_REQUEST, "a JSON-RPC message is one object")


@pytest.mark.parametrize("text", [b"[]", b"[" + call() + b"]", b" [" + call() + b"," + call() + b"]", b"[1]"])
@BOTH
def test_a_batch_is_an_invalid_request(reader: Reader, text: bytes) -> None:
    """The readers of one message refuse an array (rule 6)."""
    found = reader(text)
    assert isinstance(found, Malformed)
    assert (found.code, found.id) == (INVALID_REQUEST, None)
    assert "batch" in found.why


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'{"jsonrpc":"2.0","id":7,"Method":"m"}', id="Method"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"METHOD":"m"}', id="METHOD"),
        pytest.param('{"jsonrpc":"2.0","id":7,"methoԁ":"m"}'.encode(), id="a letter that looks alike"),
        pytest.param(b'{"JSONRPC":"2.0","id":7,"method":"m"}', id="JSONRPC"),
        pytest.param(b'{"id":7,"method":"m"}', id="no jsonrpc"),
        pytest.param(b'{"jsonrpc":"1.0","id":7,"method":"m"}', id="jsonrpc 1.0"),
        pytest.param(b'{"jsonrpc":2.0,"id":7,"method":"m"}', id="jsonrpc is a number"),
        pytest.param(b'{"jsonrpc":null,"id":7,"method":"m"}', id="jsonrpc is null"),
        pytest.param(b'{"jsonrpc":["2.0"],"id":7,"method":"m"}', id="jsonrpc is an array"),
        pytest.param(b'{"jsonrpc":"2.0","id":7}', id="neither method nor answer"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":1}', id="the method is a number"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":null}', id="the method is null"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":{}}', id="the method is an object"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"\\ud800"}', id="the method is half an emoji"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m","result":{}}', id="method and result"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m","error":{"code":1,"message":""}}', id="method and error"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1,"message":""}}', id="result and error"),
    ],
)
@BOTH
def test_a_wrong_envelope_is_an_invalid_request_and_its_id_is_echoed(reader: Reader, text: bytes) -> None:
    found = reader(text)
    assert isinstance(found, Malformed)
    assert (found.code, found.id) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    ("members", "found"),
    [
        (b'"result":{"a":1},"error":null', Success(7, Raw(b'{"a":1}'))),
        (b'"error":null,"result":null', Success(7, Raw(b"null"))),
        (b'"result":null,"error":{"code":1,"message":"m"}', Failure(ErrorBody(1, "m"), 7)),
    ],
)
def test_null_in_the_place_of_the_other_half_of_an_answer_is_nothing(members: bytes, found: Message) -> None:
    assert read(b'{"jsonrpc":"2.0","id":7,%b}' % members) == found
    assert isinstance(read(b'{"jsonrpc":"2.0","id":7,"method":"m",%b}' % members), Malformed)


def test_a_long_s_does_not_make_params() -> None:
    assert read_strictly('{"jsonrpc":"2.0","id":7,"method":"m","paramſ":{}}'.encode()) == Request(7, "m", None)


# Batches

Taker = Callable[[bytes], list[Message | Malformed] | None]
BATCHES: tuple[Taker, Taker] = (read_batch, read_batch_strictly)
TAKERS = pytest.mark.parametrize("taker", BATCHES)


@pytest.mark.parametrize("text", [call(), b"", b" ", b"1", b'"[]"', b"nonsense", b"\xff"])
@TAKERS
def test_what_is_no_array_is_no_batch(taker: Taker, text: bytes) -> None:
    assert taker(text) is None


@TAKERS
def test_the_items_of_a_batch_are_evaluated_one_by_one(taker: Taker) -> None:
    """In their order; a batch inside a batch is refused (rule 6)."""
    found = taker(b" [" + call(b"[1.0]") + b', {"jsonrpc":"2.0","method":"n"},1, [' + call() + b"] ]\n")
    assert found is not None
    assert [type(each) for each in found] == [Request, Notification, Malformed, Malformed]
    assert found[0] == Request(1, "m", Raw(b"[1.0]"))
    assert [each.code for each in found if isinstance(each, Malformed)] == [INVALID_REQUEST, INVALID_REQUEST]


@pytest.mark.parametrize("text", [b"[]", b" [ ] "])
@TAKERS
def test_a_batch_of_nothing_is_one_invalid_request(taker: Taker, text: bytes) -> None:
    """An empty batch gets one error (rule 6)."""
    assert taker(text) == [Malformed(INVALID_REQUEST, "the batch has no messages")]


@pytest.mark.parametrize(
    "text", [b"[", b"[" + call(), b"[" + call() + b",]", b"[" + call() + b"] x", b"[NaN", b"[" * 999]
)
@TAKERS
def test_a_batch_that_is_no_json_is_one_parse_error(taker: Taker, text: bytes) -> None:
    found = taker(text)
    assert found is not None
    (only,) = found
    assert isinstance(only, Malformed)
    assert only.code == PARSE_ERROR


@pytest.mark.parametrize(("params", "kind"), [(b'"\xff"', Malformed), (b'{"\\ud83d":"\\ud83d"}', Request)])
def test_a_strange_item_of_a_server_does_not_spoil_the_batch(params: bytes, kind: type) -> None:
    found = read_batch(b"[" + call(params) + b"," + call() + b"]")
    assert found is not None
    assert [type(each) for each in found] == [kind, Request]


@pytest.mark.parametrize(
    "item", [call(b'{"a":1,"a":2}'), call(b"1e400"), call(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))]
)
def test_what_is_refused_in_a_clients_message_refuses_its_whole_batch(item: bytes) -> None:
    """The batch itself counts as a level (rule 5)."""
    found = read_batch_strictly(b"[" + call() + b"," + item + b"]")
    assert found is not None
    (only,) = found
    assert isinstance(only, Malformed)
    assert (only.code, only.id) == (PARSE_ERROR, None)


def test_a_client_may_send_a_hundred_messages_at_once_and_no_more() -> None:
    """A batch is bounded (rule 5)."""
    most = b",".join([call()] * MAX_BATCH)
    found = read_batch_strictly(b"[" + most + b"]")
    assert found is not None
    assert len(found) == MAX_BATCH == 100
    assert read_batch_strictly(b"[" + most + b"," + call() + b"]") == [
        Malformed(INVALID_REQUEST, "the batch has more than 100 messages")
    ]


@pytest.mark.parametrize("taker", BATCHES)
def test_a_batch_of_millions_is_refused_before_it_is_made(taker: Taker) -> None:
    """From a client and from a server (rule 5)."""
    batch = b"[" + b"1," * 4_000_000 + b"1]"
    found = taker(batch)
    assert found is not None
    assert len(found) == 1
    assert_costs_less(lambda: taker(batch), 1)


def test_the_messages_of_a_batch_together_are_bounded_as_one_message_is_that_holds_half_characters() -> None:
    half = b'{"x":"' + rb"\ud800" * (MAX_SURROGATE_BYTES // 15) + b'"}'
    answer, request, told = b'"result":%b,"id":7' % half, b'"method":"m","id":8,"params":%b' % half, b'"method":"n"'
    items = [b'{"jsonrpc":"2.0",%b}' % each for each in (answer, answer, answer, request, told)]
    found = read_batch(b"[" + b" , ".join(items) + b"]")
    assert found == [
        Success(7, Raw(half)),
        Success(7, Raw(half)),
        Malformed(TOO_LARGE, HALF_TOO_LONG, 7, answers=True),
        Malformed(TOO_LARGE, HALF_TOO_LONG, 8),
        Notification("n"),
    ]


def test_a_long_batch_with_half_characters_costs_little_more_than_one_without() -> None:
    plain, half = (
        b"[" + b",".join([b'{"jsonrpc":"2.0","method":"x","params":{"a":"%b"}}' % (text * 5_000)] * 68) + b"]"
        for text in (rb"\uc800", rb"\ud800")
    )
    assert least_cost(lambda: read_each(half, True)) < 3 * least_cost(lambda: read_each(plain, True))


def test_a_server_is_heard_in_batches_only_where_it_may_send_them() -> None:
    """The negotiated revision decides (rule 6)."""
    message, array = read(call()), b"[" + call() + b"," + call() + b"]"
    assert read_each(call(), True) == read_each(call(), False) == [message]
    assert read_each(array, True) == [message, message]
    assert read_each(array, False) == [read(array)]
    assert read_each(b"nonsense", True) == [read(b"nonsense")]


# Ids

BAD_IDS = [
    b"null",
    b"true",
    b"false",
    b"1.5",
    b"1.0",
    b"1e3",
    b"-0.0",
    b"{}",
    b"[]",
    b'"' + b"a" * (MAX_ID_BYTES + 1) + b'"',
    '"{}"'.format("é" * (MAX_ID_BYTES // 2 + 1)).encode(),
    b'"\\ud800"',
    str(2**63).encode(),
    str(-(2**63) - 1).encode(),
    str(2**64).encode(),
    b"9" * 4000,
]


@pytest.mark.parametrize("id", BAD_IDS)
@BOTH
def test_an_id_that_is_refused_is_not_echoed(reader: Reader, id: bytes) -> None:
    """Null is no id (rule 7)."""
    found = reader(call(id=id))
    assert isinstance(found, Malformed)
    assert (found.code, found.id) == (INVALID_REQUEST, None)


GOOD_IDS: list[tuple[bytes, Id]] = [
    (b"0", 0),
    (b"1", 1),
    (b"-1", -1),
    (b'"1"', "1"),
    (b'"01"', "01"),
    (b'""', ""),
    (b'"a\\u0000"', "a\0"),
    (b'"' + b"a" * MAX_ID_BYTES + b'"', "a" * MAX_ID_BYTES),
    (str(2**63 - 1).encode(), 2**63 - 1),
    (str(-(2**63)).encode(), -(2**63)),
]


@pytest.mark.parametrize(("text", "id"), GOOD_IDS)
@BOTH
def test_an_id_keeps_its_type(reader: Reader, text: bytes, id: Id) -> None:
    """An id goes out as it came in (rule 7)."""
    found = reader(call(id=text))
    assert isinstance(found, Request)
    assert (type(found.id), found.id) == (type(id), id)
    assert json.loads(write(Success(found.id, Raw(b"{}"))))["id"] == id


# The four kinds of messages


def test_a_method_with_an_id_is_a_request() -> None:
    assert read(b'{"jsonrpc":"2.0","id":1,"method":"m"}') == Request(1, "m", None)


def test_a_method_without_an_id_is_a_notification() -> None:
    assert read(b'{"method":"m","jsonrpc":"2.0"}') == Notification("m", None)


def test_a_result_with_an_id_is_a_success() -> None:
    found = read(b'{"jsonrpc":"2.0","id":"a","result":{"x": 1.0}}')
    assert isinstance(found, Success)
    assert (found.id, bytes(found.result)) == ("a", b'{"x": 1.0}')


def test_an_error_is_a_failure() -> None:
    found = read(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":[ 1.0 ],"more":1}}')
    assert isinstance(found, Failure)
    assert (found.id, found.error.code, found.error.message) == (1, -32000, "no")
    assert found.error.data is not None
    assert bytes(found.error.data) == b"[ 1.0 ]"


@pytest.mark.parametrize("id", [b"", b'"id":null,'])
def test_an_error_may_be_about_no_id(id: bytes) -> None:
    """Such an error ends no request, but is a valid message (rule 7)."""
    found = read(b'{"jsonrpc":"2.0",' + id + b'"error":{"code":-32700,"message":"no"}}')
    assert found == Failure(ErrorBody(-32700, "no"), None)


@pytest.mark.parametrize("beside", [b"", b',"data":null'])
def test_null_is_a_value_and_not_missing(beside: bytes) -> None:
    params = read(b'{"jsonrpc":"2.0","id":1,"method":"m","params":null}')
    result = read(b'{"jsonrpc":"2.0","id":1,"result":null}')
    assert isinstance(params, Request)
    assert isinstance(result, Success)
    assert params.params is not None
    assert (bytes(params.params), bytes(result.result)) == (b"null", b"null")
    failure = read(b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"' + beside + b"}}")
    assert isinstance(failure, Failure)
    assert (failure.error.data is None) == (beside == b"")


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (b'{"jsonrpc":"2.0","id":3,"error":null}', 3),
        (b'{"jsonrpc":"2.0","id":3,"error":"no"}', 3),
        (b'{"jsonrpc":"2.0","id":3,"error":{"code":"1","message":"m"}}', 3),
        (b'{"jsonrpc":"2.0","id":3,"error":{"code":1.5,"message":"m"}}', 3),
        (b'{"jsonrpc":"2.0","id":3,"error":{"code":1}}', 3),
        (b'{"jsonrpc":"2.0","id":3,"error":{"message":"m"}}', 3),
        (b'{"jsonrpc":"2.0","id":3,"result":1,"error":{"code":1,"message":"m"}}', 3),
        (b'{"jsonrpc":"1.0","id":3,"result":1}', 3),
        (b'{"id":3,"result":1}', 3),
        (b'{"jsonrpc":"2.0","id":3,"method":"m","result":1}', 3),
        (b'{"jsonrpc":"2.0","result":1}', None),
    ],
)
def test_a_broken_answer_says_so_that_its_request_does_not_wait(text: bytes, id: Id | None) -> None:
    found = read(text)
    assert isinstance(found, Malformed)
    assert (found.code, found.id, found.answers) == (INVALID_REQUEST, id, True)


def test_a_result_for_null_answers_nobody() -> None:
    found = read(b'{"jsonrpc":"2.0","id":null,"result":{}}')
    assert isinstance(found, Malformed)
    assert found.id is None


# What servers send is taken as it comes

LENIENT = {
    "doubled members": b'{"a":1,"a":2}',
    "65 levels": b"[" * 65 + b"]" * 65,
    "5,000 digits": b"9" * 5000,
    "1e400": b"1e400",
    "half an emoji": b'{"a":"\\ud83d"}',
    "half an emoji in a name": b'{"\\ud83d":1}',
    "NUL as an escape": b'"\\u0000"',
}


@pytest.mark.parametrize("result", LENIENT.values(), ids=LENIENT)
@pytest.mark.parametrize("beside", [b"", b',"\\ud83d":0'], ids=["fast", "slow"])
def test_a_server_may_send(result: bytes, beside: bytes) -> None:
    found = read(b'{"jsonrpc":"2.0","id":1,"result":' + result + beside + b"}")
    assert isinstance(found, Success)
    assert bytes(found.result) == result


@pytest.mark.parametrize(
    "result", [b"NaN", b"[Infinity]", b'"\xff"', b'"\n"', b"01", b"{]", b'"\\ud83d', b"[" * 100_000]
)
@pytest.mark.parametrize("beside", [b"", b',"\\ud83d":0'], ids=["fast", "slow"])
def test_even_a_server_may_not_send_what_is_no_json(result: bytes, beside: bytes) -> None:
    found = read(b'{"jsonrpc":"2.0","id":1,"result":' + result + beside + b"}")
    assert isinstance(found, Malformed)
    assert found.code == PARSE_ERROR


@pytest.mark.parametrize("escape", [b"\\u0000", b"\\ud800", b"\\udc00\\ud800", b"\\/", b"\\u2028"])
def test_escapes_of_a_client_are_sent_on_as_they_are(escape: bytes) -> None:
    params = b'{"arguments":{"text":"' + escape + b'"}}'
    found = read_strictly(call(params))
    assert isinstance(found, Request)
    assert write(found) == call(params)


@pytest.mark.parametrize("number", [b"0.12345678901234567890123", b"1.0", b"-0.0", b"10000000000000000000001", b"1E2"])
def test_numbers_of_a_client_are_sent_on_as_they_are(number: bytes) -> None:
    params = b'{"z": ' + number + b', "a": [' + number + b"]}"
    found = read_strictly(call(params))
    assert isinstance(found, Request)
    assert write(found) == call(params)


# Out, and in again

IDS = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20).filter(lambda text: len(text.encode()) <= MAX_ID_BYTES)
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)
).map(lambda document: Raw(json.dumps(document).encode()))
MAYBE = st.none() | PAYLOADS
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Request, IDS, st.text(), MAYBE),
    st.builds(Notification, st.text(), MAYBE),
    st.builds(Success, IDS, PAYLOADS),
    st.builds(Failure, st.builds(ErrorBody, st.integers(-(2**53), 2**53), st.text(), MAYBE), st.none() | IDS),
)


@CALM
@given(MESSAGES)
def test_what_is_written_is_read_back(message: Message) -> None:
    data = write(message)
    assert write_back(read(data)) == data
    assert write_back(read_strictly(data)) == data
    assert json.loads(data)["jsonrpc"] == "2.0"


def write_back(found: Message | Malformed) -> bytes:
    assert not isinstance(found, Malformed), found
    return write(found)


@CALM
@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_nothing_makes_the_readers_raise(data: bytes) -> None:
    assert read(data) is not None
    assert read_strictly(data) is not None


@CALM
@given(
    st.lists(
        st.sampled_from(
            [
                *(b"{", b"}", b"[", b"]", b",", b":", b" ", b'"', b"\\", b"\xff"),
                *(b"1", b"null", b"NaN", b'"\\ud800"', b'"2.0"'),
                *(b'"id"', b'"method"', b'"jsonrpc"', b'"result"', b'"error"'),
            ]
        ),
        max_size=25,
    ).map(b"".join)
)
def test_nothing_like_a_message_makes_the_readers_raise(data: bytes) -> None:
    found = read_strictly(data)
    if not isinstance(found, Malformed):
        assert json.loads(data)["jsonrpc"] == "2.0"
    assert read(data) is not None
    for reader in BATCHES:
        found_in = reader(data)
        assert (found_in is None) == (data.lstrip(b" ")[:1] != b"[")
        assert found_in != []


def test_the_data_of_an_error_may_hold_half_an_emoji() -> None:
    """(rule 3)"""
    data = b'{"s":"\\ud83d"}'
    found = read(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m","data":%b}}' % data)
    assert isinstance(found, Failure)
    assert found.error.data is not None
    assert bytes(found.error.data) == data


@pytest.mark.parametrize("error", [b'{"code":"1","message":"m"}', b'{"code":1}', b'{"code":1,"message":2}', b"[]"])
def test_an_error_without_its_members_is_none(error: bytes) -> None:
    found = read(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error)
    assert isinstance(found, Malformed)
    assert found.answers


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("arguments", [b"", b',"arguments":{"a":[1,2,3]}'])
def test_params_besides_arguments_are_bounded(arguments: bytes, more: int) -> None:
    beside = (
        MAX_OTHER_TOKENS - 1 + more - arguments.startswith(b",")
    )  # beside two brackets, and the comma before arguments
    found = read_strictly(call(b'{"_meta":[' + b",".join([b"1"] * beside) + b"]" + arguments + b"}"))
    if more > 0:
        assert isinstance(found, Malformed)
        assert (found.code, found.id) == (INVALID_PARAMS, 1)
    else:
        assert isinstance(found, Request)


@CALM
@given(DOCUMENTS, st.sampled_from([b"%b", b'{"a":%b}', b'[{"b":%b},{"a":"%b"}]']), st.sampled_from([b"}", b" }"]))
def test_a_long_text_among_arguments_changes_no_verdict(document: bytes, arguments: bytes, end: bytes) -> None:
    """Only the outline of a message with one is looked at, if it is written as encoders write."""
    long = rb"\u00e9, \"{[" * (LIGHT_TOKENS // 8)
    for params in (b'{"arguments":{"x":%b,"long":"%%b"}%b', b'{"name":%b,"arguments":{"long":"%%b"}%b'):
        filled = arguments.replace(b"%b", document.replace(b"%", b"%%"))
        texts = [call(params % (filled, end) % each) for each in (long, b"")]
        found, without = map(receive, texts)
        assert receive_at_once(texts[0]) == found
        if isinstance(without.message, Request):
            assert found.message == replace(without.message, params=members(texts[0])["params"])
        else:
            assert isinstance(found.message, Malformed)


@given(st.integers())
def test_a_changed_long_message_is_read_the_same_with_its_outline_and_without(seed: int) -> None:
    """A blank behind it prevents that its outline is checked instead."""
    text = call(b'{"name":"a","arguments":{"l":"%b","o":[{"n":1}],"t":true},"_meta":{"t":"b"}}' % (b"x" * LIGHT_TOKENS))
    parts = (text, b'},"id":8}', b'"params":{}', b'},"method":"n","x":{', b'"', b"\\", rb"\ud800", b"\xff", b"\n")
    random = Random(seed)
    for changed in (text, *(mutate(text, random, parts) for _ in range(20))):
        found, other = receive(changed).message, receive(changed + b" ").message
        if isinstance(found, Malformed):  # of a text that was cut, the place of the flaw moves
            assert isinstance(other, Malformed)
            assert (found.code, found.id) == (other.code, other.id)
        else:
            assert found == other
        if isinstance(found, Request) and (opened := found.params_members):
            assert opened == members(found.params or b"")
            arguments = opened.get("arguments", EMPTY_OBJECT)
            assert found.members_of_arguments(arguments) in (None, members(arguments) if is_object(arguments) else None)
            assert found.members_of_arguments(Raw(bytes(arguments))) is None, "which others may have put in their place"


@pytest.mark.parametrize(
    "flaws",
    [
        b'{"b":1,"b":2,"y":{"a":1,"a":2}}',
        b'{"y":{"a":1,"a":2},"b":1,"b":2}',
        b'[{"a":1,"a":2},1e999]',
        b"[1e999,%b]" % (b"1" * (MAX_DIGITS + 1)),
        b'[{"a":1,"a":2},%b]' % (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
    ],
)
def test_of_several_flaws_the_same_is_named_however_a_long_message_is_written(flaws: bytes) -> None:
    one, other = (
        call(b'{"arguments":{"x":%b,"long":"%b"}%b' % (flaws, b"x" * 2 * LIGHT_TOKENS, end)) for end in (b"}", b" }")
    )
    assert isinstance(receive(one).message, Malformed)
    assert receive(one) == receive(other)
    assert receive_at_once(one) == receive(one)


@pytest.mark.parametrize(("text", "at_once"), [(b"x", True), (b"{", False), (b":", False), (b",", True)])
def test_a_message_of_a_mebibyte_is_read_at_once_unless_it_may_be_full_of_objects(text: bytes, at_once: bool) -> None:
    data = call(b'{"arguments":{"a":"%b"}}' % (text * (MAX_TOKENS - 6)))
    assert receive_at_once(data) == (receive(data) if at_once else None)
    long = call(b'{"arguments":{"a":"%b%b"}}' % (b"x" * 1024 * 1024, text * (MAX_TOKENS + 1)))
    assert (receive_at_once(long) is not None) == (text == b"x")


def test_commas_in_texts_are_no_structure() -> None:
    text = rb"\\" + rb"\"," * (MAX_OTHER_TOKENS + 1)
    data = call(b'{"inputResponses":{"a":{"content":"%b"}},"arguments":{"a":[%b1]}}' % (text, b"1," * MAX_OTHER_TOKENS))
    assert isinstance(read_strictly(data), Request)


@pytest.mark.parametrize("more", [0, 1])
def test_large_params_beside_arguments_hold_no_lone_surrogate(more: int) -> None:
    name, surrogate = "_meta", rb"\ud800"
    text = surrogate + b"x" * (MAX_OTHER_SURROGATES + more - len(name) - len(surrogate) - len('""'))
    found = read_strictly(call(b'{"%b":"%b","arguments":"%b"}' % (name.encode(), text, text * 2)))
    if more:
        assert isinstance(found, Malformed)
        assert (found.code, found.id) == (INVALID_PARAMS, 1)
    else:
        assert isinstance(found, Request)


@pytest.mark.parametrize("surrogate", [b"", rb'"\ud800",'])
def test_arguments_are_as_large_as_a_message_may_be(surrogate: bytes) -> None:
    data = call(b'{"arguments":[' + surrogate + b"1," * (MAX_TOKENS - 10) + b"1]}")
    assert isinstance(read_strictly(data), Request)


@pytest.mark.parametrize("envelope", [{"jsonrpc": "2.0"}, {}, {"jsonrpc": "1.0"}, {"jsonrpc": "2.0", "params": {}}])
def test_an_id_alone_is_a_broken_answer_of_a_server_and_a_broken_request_of_a_client(envelope: dict[str, str]) -> None:
    """A request must not wait for the rest of such a response; from a client, the method may be missing instead."""
    data = json.dumps({**envelope, "id": 7}).encode()
    (of_server,) = read_each(data, batches=False)
    assert isinstance(of_server, Malformed)
    assert (of_server.id, of_server.answers) == (7, True)
    of_client = read_strictly(data)
    assert isinstance(of_client, Malformed)
    assert (of_client.id, of_client.answers) == (7, False)
    batch = b"[%s]" % data
    assert [each.answers for each in read_batch(batch) or () if isinstance(each, Malformed)] == [True]
    assert [each.answers for each in read_batch_strictly(batch) or () if isinstance(each, Malformed)] == [False]


@pytest.mark.parametrize(("count", "fits"), [(MAX_SERVER_BATCH - 1, True), (MAX_SERVER_BATCH, True), (1001, False)])
def test_a_servers_batch_is_bounded(count: int, fits: bool) -> None:
    found = read_batch(b"[" + b",".join([b"1"] * count) + b"]")
    assert found is not None
    assert len(found) == (count if fits else 1)
