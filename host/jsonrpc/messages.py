"""JSON-RPC 2.0 messages as MCP uses them, and the only ways in and out: `read` and its kin, and `write`.

An envelope is decoded strictly, once; `params` and `result` stay text (`Raw`). No reader raises: what is no message
comes back as a `Malformed` that says why. Nothing here knows MCP methods, revisions or transports; whether somebody may
send batches is for the caller to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct, field

from host.errors import TOO_LARGE
from host.jsonrpc.raw import (
    DECODE_ERRORS,
    has_no_lone_surrogate,
    is_object,
    items,
    may_hold_surrogates,
    members,
    pick,
    string,
    without_surrogates,
)
from host.jsonrpc.strict import MAX_TOKENS, count_tokens, count_tokens_outside_strings, flaw

Id: TypeAlias = int | str

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

# Limits of one message (docs/operations.md lists them); the structural ones, for what clients send, are in strict.py.
MAX_ID_BYTES = 256
MAX_BATCH = 100
MAX_OTHER_TOKENS = 10_000
"""Structural characters of params, besides `arguments` and outside strings. The rest of params is opened again and
again on the event loop; arguments are only passed on."""
MAX_OTHER_SURROGATES = 64 * 1024
"""Bytes of params besides the `arguments` of a request up to which these may hold escaped lone surrogates: msgspec
refuses them, and the way around it is slow."""
MAX_SERVER_BATCH = 1000
MAX_SURROGATE_BYTES = 128 * 1024
"""Bytes of a server's message that may hold escaped lone surrogates; in a batch, of all such messages together."""


def _members_of(params: Raw | None) -> Mapping[str, Raw] | None:
    try:
        return {} if params is None else members(params)
    except ValueError:
        return None


class Request(Struct, frozen=True, dict=True, tag_field="jsonrpc", tag="2.0", omit_defaults=True):
    id: Id
    method: str
    params: Raw | None = None

    @cached_property
    def params_members(self) -> Mapping[str, Raw] | None:
        """The members of the params, opened once; None if the params are no object."""
        return _members_of(self.params)


class Notification(Struct, frozen=True, dict=True, tag_field="jsonrpc", tag="2.0", omit_defaults=True):
    method: str
    params: Raw | None = None

    @cached_property
    def params_members(self) -> Mapping[str, Raw] | None:
        """The members of the params, opened once; None if the params are no object."""
        return _members_of(self.params)


class Success(Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    id: Id
    result: Raw


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    code: int
    message: str
    data: Raw | None = None


class Failure(Struct, frozen=True, tag_field="jsonrpc", tag="2.0", omit_defaults=True):
    """An error response. `id` is None where the request's id could not be read; it is then left out on the wire."""

    error: ErrorBody
    id: Id | None = None


class Malformed(Struct, frozen=True):
    """Bytes that are no message. `code` is PARSE_ERROR, INVALID_REQUEST or INVALID_PARAMS, or TOO_LARGE for a message
    that was discarded because of its length; `id` is echoed where it could be read; `answers` marks a broken response,
    whose request must not wait for ever."""

    code: int
    why: str
    id: Id | None = None
    answers: bool = False


Message: TypeAlias = Request | Notification | Success | Failure


_ABSENT = Raw(b"")
"""Of no length, as no JSON is. (msgspec would decode `Raw | None` as if only null could stand there.)"""


class _Envelope(Struct):
    jsonrpc: Raw = _ABSENT
    id: Raw = _ABSENT
    method: Raw = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


class _Error(Struct):
    code: int
    message: str
    data: Raw = _ABSENT


class _Skimmed(Struct):
    """An envelope as `without_surrogates` leaves it."""

    id: Raw = field(name="ic", default=_ABSENT)
    method: Raw = field(name="methoc", default=_ABSENT)


_envelope = msgspec.json.Decoder(_Envelope)
_skimmed = msgspec.json.Decoder(_Skimmed)
_id = msgspec.json.Decoder(Id)
_error = msgspec.json.Decoder(_Error)
_encoder = msgspec.json.Encoder()


def write(message: Message) -> bytes:
    """The message as JSON text. It may hold line ends where a payload did: framings take them out."""
    return _encoder.encode(message)


def read(data: bytes) -> Message | Malformed:
    """The message in `data`, which a server sent. Payloads are taken as they come.

    A message with an id that has neither a method nor an answer counts as a broken response: the request with that id
    must not wait until its deadline.
    """
    return _read(data, bare_id_answers=True, max_slow_bytes=MAX_SURROGATE_BYTES)


def read_id(data: bytes) -> Id | None:
    """The id that `data` is the JSON text of; None if no request can have it."""
    try:
        id = _id.decode(data)
    except DECODE_ERRORS:
        return None
    return id if _is_valid_id(id) else None


def _read(data: bytes, *, bare_id_answers: bool, max_slow_bytes: float = math.inf) -> Message | Malformed:
    """
    Args:
        slowly: bytes up to which a message may be read the slow way.
    """
    try:
        data.decode()  # msgspec does not check the text inside a Raw
    except UnicodeDecodeError:
        return Malformed(PARSE_ERROR, "not UTF-8")
    try:
        envelope = _envelope.decode(data)
    except DECODE_ERRORS as problem:
        return _reread(data, problem, bare_id_answers, max_slow_bytes)
    return _classify(envelope, bare_id_answers)


class ParsedInput(NamedTuple):
    """What a client sent, read in both ways: whether it may send batches is known only later."""

    message: Message | Malformed
    """The one message."""
    batch: list[Message | Malformed] | None
    """The messages of the batch; None if the text is no array."""


class MalformedMessages(NamedTuple):
    """Which messages of a `ParsedInput` are none; None stands for each that is one."""

    message: Malformed | None
    batch: list[Malformed | None] | None


def find_malformed(data: bytes) -> MalformedMessages:
    """The messages of `data` that `receive` refuses. Of its work, only this takes long where the text is long."""
    found = receive(data)
    batch = None if found.batch is None else [_if_malformed(each) for each in found.batch]
    return MalformedMessages(_if_malformed(found.message), batch)


def _if_malformed(message: Message | Malformed) -> Malformed | None:
    return message if isinstance(message, Malformed) else None


def receive_checked(data: bytes, malformed: MalformedMessages) -> ParsedInput:
    """The same as `receive(data)`, given the refusals of `data`; params are opened."""
    message = malformed.message or _read_from_client(data)
    batch: list[Message | Malformed] | None = None
    if malformed.batch is not None:
        read = _read_items(data, MAX_BATCH, _read_from_client) if None in malformed.batch else []
        batch = [why or read[at] for at, why in enumerate(malformed.batch)]
    for each in (message, *(batch or ())):
        if isinstance(each, Request | Notification):
            _ = each.params_members
    return ParsedInput(message, batch)


def receive(data: bytes) -> ParsedInput:
    """Read what a client sent: it must be bounded, with nothing that two parsers could read differently.

    Refused besides what is no JSON: more than MAX_DEPTH levels or MAX_TOKENS structural characters, duplicate members
    anywhere, numbers that are not finite, integers of more than MAX_DIGITS digits. A batch that breaks these bounds, an
    empty one, and one of more than MAX_BATCH messages are one `Malformed`.
    """
    array = _is_array(data)
    why = flaw(data)
    if why is not None:
        malformed = Malformed(PARSE_ERROR, why)
        return ParsedInput(malformed, [malformed] if array else None)
    if not array:
        return ParsedInput(_check_params_size(_read_from_client(data)), None)
    found = _read_items(data, MAX_BATCH, _read_from_client)
    return ParsedInput(_read_from_client(data), [_check_params_size(each) for each in found])


def _read_from_client(data: bytes) -> Message | Malformed:
    return _read(data, bare_id_answers=False)  # it may also be a request that lacks its method


def _check_params_size(message: Message | Malformed) -> Message | Malformed:
    if not isinstance(message, Request | Notification) or message.params is None or not is_object(message.params):
        return message
    marks = count_tokens(bytes(message.params))
    if marks > MAX_OTHER_TOKENS:
        marks = count_tokens_outside_strings(bytes(message.params))  # a text may hold any number of commas
    if marks > MAX_OTHER_TOKENS:
        marks -= count_tokens_outside_strings(bytes(_arguments(message.params)))
    id = message.id if isinstance(message, Request) else None
    if marks > MAX_OTHER_TOKENS:
        why = f"params hold more than {MAX_OTHER_TOKENS} structural characters besides arguments"
        return Malformed(INVALID_PARAMS, why, id)
    if len(message.params) > MAX_OTHER_SURROGATES and _is_slow(message):
        why = f"params besides arguments hold a lone surrogate and more than {MAX_OTHER_SURROGATES} bytes"
        return Malformed(INVALID_PARAMS, why, id)
    return message


def _is_slow(message: Request | Notification) -> bool:
    """Whether the params, which this opens, hold too much that takes long to open again."""
    exempt = "arguments" if isinstance(message, Request) else None
    beside = {name: each for name, each in (message.params_members or {}).items() if name != exempt}
    size = sum(len(name) + len(each) for name, each in beside.items())
    return size > MAX_OTHER_SURROGATES and not has_no_lone_surrogate(beside)


def _arguments(params: Raw) -> Raw:
    try:
        found = pick(params, frozenset(("arguments",)))
    except ValueError:  # for a lone surrogate
        found = members(params)
    return found.get("arguments", _ABSENT)


def read_strictly(data: bytes) -> Message | Malformed:
    """The one message in `data`, which a client sent; see `receive`."""
    return receive(data).message


def read_batch_strictly(data: bytes) -> list[Message | Malformed] | None:
    """The messages of the batch in `data`, which a client sent; see `receive`."""
    return receive(data).batch


def read_batch(data: bytes) -> list[Message | Malformed] | None:
    """The messages of the batch in `data`, which a server sent; None if it is no array. Each is judged as by `read`.

    An empty batch, one that is no JSON, and one of more than MAX_SERVER_BATCH messages or MAX_TOKENS commas are one
    `Malformed`.
    """
    if not _is_array(data):
        return None
    if data.count(b",") > MAX_TOKENS:  # before anything is made of them: items may be two bytes each
        return [Malformed(INVALID_REQUEST, "a batch of too many parts")]
    left = MAX_SURROGATE_BYTES

    def read_item(item: bytes) -> Message | Malformed:
        nonlocal left
        message = _read(item, bare_id_answers=True, max_slow_bytes=left)
        if may_hold_surrogates(item):
            left -= len(item)
        return message

    return _read_items(data, MAX_SERVER_BATCH, read_item)


def read_each(data: bytes, batches: bool) -> list[Message | Malformed]:
    """What a server sent in one line, body or event: a message or, where it may send `batches`, those of one."""
    message = read(data)
    if batches and isinstance(message, Malformed):
        return read_batch(data) or [message]
    return [message]


def _is_array(data: bytes) -> bool:
    return data.lstrip(b" \t\r\n")[:1] == b"["


def _read_items(data: bytes, most: int, read_item: Callable[[bytes], Message | Malformed]) -> list[Message | Malformed]:
    try:
        found = items(data)
    except ValueError:
        return [Malformed(PARSE_ERROR, "not JSON: a batch that cannot be taken apart")]
    if not found:
        return [Malformed(INVALID_REQUEST, "a batch without messages")]
    if len(found) > most:
        return [Malformed(INVALID_REQUEST, f"a batch of more than {most} messages")]
    return [read_item(bytes(each)) for each in found]


def _reread(data: bytes, problem: Exception, bare_id_answers: bool, max_slow_bytes: float) -> Message | Malformed:
    """The slow way, for text that JSON allows and msgspec does not, and for saying what is wrong."""
    if len(data) > max_slow_bytes:
        return _skim(data) or _no_object(data, problem)
    try:
        found = members(data)
    except ValueError:
        return _no_object(data, problem)
    envelope = _Envelope(**{name: found[name] for name in _Envelope.__struct_fields__ if name in found})
    return _classify(envelope, bare_id_answers)


def _no_object(data: bytes, problem: Exception) -> Malformed:
    if _is_array(data):
        return Malformed(INVALID_REQUEST, "a JSON-RPC message is one object: batches are not accepted")
    if isinstance(problem, msgspec.ValidationError):
        return Malformed(INVALID_REQUEST, "a JSON-RPC message is one object")
    return Malformed(PARSE_ERROR, f"not JSON: {type(problem).__name__}")


def _skim(data: bytes) -> Malformed | None:
    """Whose answer it is, of a text that is too long for the slow way; None if it is no object at all."""
    try:
        found = _skimmed.decode(without_surrogates(data))
    except DECODE_ERRORS:
        return None
    id = read_id(bytes(found.id))
    if isinstance(id, str):  # it may be another one now
        id = None
    why = f"messages of more than {MAX_SURROGATE_BYTES} bytes hold an escape of half a surrogate pair"
    return Malformed(TOO_LARGE, why, id, answers=not len(found.method))


def _classify(envelope: _Envelope, bare_id_answers: bool) -> Message | Malformed:
    id: Id | None = None
    if len(envelope.id):
        try:
            id = _id.decode(envelope.id)
        except DECODE_ERRORS:
            return _unreadable_id(envelope)
        if not _is_valid_id(id):
            return Malformed(INVALID_REQUEST, "the id is out of bounds")
    is_answer = not len(envelope.method) and bool(len(envelope.result) or len(envelope.error))
    answers = is_answer or (bare_id_answers and id is not None and not len(envelope.method))
    if bytes(envelope.jsonrpc) != b'"2.0"':
        return Malformed(INVALID_REQUEST, 'expected "jsonrpc": "2.0"', id, answers)
    if len(envelope.method):
        if len(envelope.result) or len(envelope.error):
            return Malformed(INVALID_REQUEST, "a message has either a method or an answer", id, True)
        return _read_call(envelope, id)
    if is_answer:
        return _read_response(envelope, id)
    return Malformed(INVALID_REQUEST, "neither a method nor an answer", id, answers)


def _read_call(envelope: _Envelope, id: Id | None) -> Message | Malformed:
    try:
        method = string(envelope.method)
    except ValueError:
        return Malformed(INVALID_REQUEST, "the method is not a string", id)
    params = envelope.params if len(envelope.params) else None
    if id is None:
        return Notification(method, params)
    return Request(id, method, params)


def _read_response(envelope: _Envelope, id: Id | None) -> Message | Malformed:
    if len(envelope.result) and len(envelope.error):
        return Malformed(INVALID_REQUEST, "both a result and an error", id, True)
    if len(envelope.result):
        if id is None:
            return Malformed(INVALID_REQUEST, "a result without an id", None, True)
        return Success(id, envelope.result)
    try:
        error = _read_error(envelope.error)
    except (ValueError, KeyError):
        return Malformed(INVALID_REQUEST, "the error has no integer code and string message", id, True)
    return Failure(ErrorBody(error.code, error.message, error.data if len(error.data) else None), id)


def _read_error(raw: Raw) -> _Error:
    try:
        return _error.decode(raw)
    except DECODE_ERRORS:  # perhaps only for what JSON allows and msgspec does not
        found = members(raw)
        code = msgspec.json.decode(found["code"], type=int)
        return _Error(code, string(found["message"]), found.get("data", _ABSENT))


def _unreadable_id(envelope: _Envelope) -> Message | Malformed:
    """`id: null` is lawful on an error response whose request could not be read (JSON-RPC 2.0, section 5)."""
    if bytes(envelope.id) == b"null" and not len(envelope.method) and len(envelope.error):
        return _read_response(envelope, None)
    return Malformed(INVALID_REQUEST, "the id is neither a string nor an integer")


def _is_valid_id(id: Id) -> bool:
    if isinstance(id, str):
        return len(id.encode()) <= MAX_ID_BYTES
    return -(2**63) <= id < 2**63
