"""JSON-RPC 2.0 messages as MCP uses them, and the functions that read and write them.

`read` and its variants decode the envelope strictly, once; `params` and `result` stay text (`Raw`). No reader raises:
text that is not a message is returned as a `Malformed` with the reason. Methods, revisions and transports are unknown
here, so the caller decides whether a peer may send batches. Text from clients (`receive`) must also keep the limits of
`strict.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from host.errors import TOO_LARGE
from host.jsonrpc.edges import VERSION, long_object
from host.jsonrpc.outline import outline_object, takes_long
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
from host.jsonrpc.strict import (
    LIGHT_TOKENS,
    MAX_TOKENS,
    count_tokens,
    count_tokens_outside_strings,
    flaw,
    is_heavy,
    may_have_more_tokens,
)

Id: TypeAlias = int | str

# JSON-RPC 2.0, "Error object"
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

# Limits of one message (docs/operations.md lists them). The structural limits for clients are in strict.py.
MIN_ID, MAX_ID = -(2**63), 2**63 - 1
MAX_ID_BYTES = 256
"""Bytes of an id that is text; it also bounds what is kept of a message that is discarded (envelope.py)."""
MAX_BATCH = 100
"""Messages in a batch of a client."""
MAX_OTHER_TOKENS = 10_000
"""Structural characters outside strings of params, not counting `arguments`. Arguments are only passed on; the rest of
params is decoded several times on the event loop."""
MAX_OTHER_SURROGATES = 64 * 1024
"""Bytes of params, not counting the `arguments` of a request, that may contain escaped lone surrogates. msgspec refuses
such escapes, and decoding them nevertheless is slow."""
_ALWAYS_LIGHT = min(MAX_OTHER_TOKENS, MAX_OTHER_SURROGATES)
MAX_SERVER_BATCH = 1000
"""Messages in a batch of a server, all of which are read before anything else runs."""
MAX_SURROGATE_BYTES = 128 * 1024
"""Bytes of a server's message that may contain escaped lone surrogates; in a batch, of all such messages together."""


def _members_of(message: Request | Notification) -> Mapping[str, Raw] | None:
    """The members of the params, decoded once; None if the params are not an object."""
    kept: dict[str, Mapping[str, Raw] | None] = message.__dict__  # `cached_property` takes a lock
    if "members" not in kept:
        try:
            kept["members"] = {} if message.params is None else members(message.params)
        except ValueError:
            kept["members"] = None
    return kept["members"]


class Request(Struct, frozen=True, dict=True, tag_field="jsonrpc", tag="2.0", omit_defaults=True):
    id: Id
    method: str
    params: Raw | None = None

    params_members = property(_members_of)

    def members_of_arguments(self, arguments: Raw) -> Mapping[str, Raw] | None:
        """The members of the `arguments` of the params, if they were found when a long message was read, and if these
        are those."""
        found: Mapping[str, Raw] | None = self.__dict__.get("arguments")
        return found if found is not None and self.__dict__["members"]["arguments"] is arguments else None


class Notification(Struct, frozen=True, dict=True, tag_field="jsonrpc", tag="2.0", omit_defaults=True):
    method: str
    params: Raw | None = None

    params_members = property(_members_of)


class Success(Struct, frozen=True, dict=True, tag_field="jsonrpc", tag="2.0"):
    id: Id
    result: Raw

    @property
    def outline(self) -> Raw | None:
        """The outline of the result (`outline_soon`), if it was made when the message was read. No member of it."""
        outline: Raw | None = self.__dict__.get("outline")
        return outline


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    code: int
    message: str
    data: Raw | None = None


class Failure(Struct, frozen=True, tag_field="jsonrpc", tag="2.0", omit_defaults=True):
    """An error response. `id` is None if the id of the request could not be read. It is then left out on the wire:
    JSON-RPC 2.0 sends null, which the schemas of 2025-11-25 and 2026-07-28 do not permit."""

    error: ErrorBody
    id: Id | None = None


class Malformed(Struct, frozen=True):
    """Text that is not a message, with the error to respond with. `code`: PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS,
    or TOO_LARGE for a message that was discarded because of its length. `id`: the id, if it could be read. `answers`:
    the text is a broken response, so the request with this id must fail instead of waiting for its deadline. `size`:
    bytes of a message that was discarded while it arrived."""

    code: int
    why: str
    id: Id | None = None
    answers: bool = False
    size: int = 0


Message: TypeAlias = Request | Notification | Success | Failure


_ABSENT = Raw(b"")
"""Marks a missing member: no JSON text is empty. (In a field of type `Raw | None`, msgspec accepts only null.)"""


class _Envelope(Struct):
    jsonrpc: Raw = _ABSENT
    id: Raw = _ABSENT
    method: Raw = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


_UsualId: TypeAlias = Annotated[int, Meta(ge=MIN_ID, le=MAX_ID)] | Annotated[str, Meta(max_length=MAX_ID_BYTES // 4)]
"""Ids that are certainly valid: a character has at most four bytes."""


class _UsualEnvelope(Struct):
    """An envelope with an id and a method of the right types."""

    jsonrpc: Raw = _ABSENT
    id: _UsualId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


_VERSION = Raw(VERSION)


class _Error(Struct):
    code: int
    message: str
    data: Raw = _ABSENT


class _Skimmed(Struct):
    """An envelope after `without_surrogates`, which replaces every d by c, in names too."""

    id: Raw = field(name="ic", default=_ABSENT)
    method: Raw = field(name="methoc", default=_ABSENT)


_envelope = msgspec.json.Decoder(_Envelope)
_usual = msgspec.json.Decoder(_UsualEnvelope)
_skimmed = msgspec.json.Decoder(_Skimmed)
_id = msgspec.json.Decoder(Id)
_error = msgspec.json.Decoder(_Error)


write: Callable[[Message], bytes] = msgspec.json.Encoder().encode
"""The message as JSON text. Payloads may contain line ends between tokens; the framings remove them."""


def read_unless_slow(data: bytes) -> Message | Malformed | None:
    """Read one message of a server as `read` does. None if msgspec refuses it: the slow way, and finding the id for a
    refusal, take ten times as long."""
    if (why := why_not_utf8(data)) is not None:
        return why
    try:
        return _classify(_envelope.decode(data), bare_id_answers=True)
    except DECODE_ERRORS:
        return None


def why_not_utf8(data: bytes) -> Malformed | None:
    if not data.isascii():  # which no copy is made for
        try:
            data.decode()  # msgspec does not check that the text of a `Raw` is UTF-8
        except UnicodeDecodeError:
            return Malformed(PARSE_ERROR, "not UTF-8")
    return None


def read_id(data: bytes) -> Id | None:
    """Decode the JSON text of an id; None if it is not a valid id."""
    try:
        id = _id.decode(data)
    except DECODE_ERRORS:
        return None
    return id if _is_valid_id(id) else None


def read(
    data: bytes, *, bare_id_answers: bool = True, max_slow_bytes: float = MAX_SURROGATE_BYTES
) -> Message | Malformed:
    """Read one message, by default of a server, where a bare id fails its request at once instead of at its deadline.
    Payloads are not checked.

    Args:
        bare_id_answers: an id without method, result and error is a broken response, not a request without its method.
        max_slow_bytes: bytes up to which a message that msgspec refuses is decoded the slow way.
    """
    if not data.isascii() and (why := why_not_utf8(data)) is not None:
        return why
    try:
        usual = _usual.decode(data)
    except DECODE_ERRORS:
        return _read_unusual(data, bare_id_answers, max_slow_bytes)
    id, method, result = usual.id, usual.method, usual.result
    if usual.jsonrpc == _VERSION and usual.error is _ABSENT:
        if method is UNSET:
            if result is not _ABSENT and id is not UNSET:
                return Success(id, result)
        elif result is _ABSENT:
            params = None if usual.params is _ABSENT else usual.params
            return Notification(method, params) if id is UNSET else Request(id, method, params)
    return _read_unusual(data, bare_id_answers, max_slow_bytes)


def _read_unusual(data: bytes, bare_id_answers: bool, max_slow_bytes: float) -> Message | Malformed:
    """`read` of what is no request, notification or result, or lacks something."""
    try:
        envelope = _envelope.decode(data)
    except DECODE_ERRORS as problem:
        return _reread(data, problem, bare_id_answers, max_slow_bytes)
    return _classify(envelope, bare_id_answers)


_read_from_client = partial(read, bare_id_answers=False, max_slow_bytes=math.inf)
"""An id alone may also be a request without its method."""


class ParsedInput(Struct, frozen=True):
    """Text from a client, read both as one message and as a batch: whether the client may send batches is known only
    later, from its revision."""

    message: Message | Malformed
    """The text read as one message."""
    batch: list[Message | Malformed] | None
    """The text read as a batch; None if it is not an array."""


class MalformedMessages(Struct, frozen=True):
    """The refusals of a `ParsedInput`, with None in the place of each valid message."""

    message: Malformed | None
    batch: list[Malformed | None] | None


def find_malformed(data: bytes) -> MalformedMessages:
    """The refusals of `receive(data)`. This part of its work is slow for long text; `receive_checked` does the rest."""
    found = receive(data)
    batch = None if found.batch is None else [_if_malformed(each) for each in found.batch]
    return MalformedMessages(_if_malformed(found.message), batch)


def _if_malformed(message: Message | Malformed) -> Malformed | None:
    return message if isinstance(message, Malformed) else None


def receive_checked(data: bytes, malformed: MalformedMessages) -> ParsedInput:
    """The result of `receive(data)`, given the refusals that `find_malformed(data)` returned. Opens the params, so that
    no later caller has to."""
    message = malformed.message or _read_from_client(data)
    batch: list[Message | Malformed] | None = None
    if malformed.batch is not None:
        read = _read_items(data, MAX_BATCH, _read_from_client) if None in malformed.batch else []
        batch = [why or read[at] for at, why in enumerate(malformed.batch)]
    for each in (message, *(batch or ())):
        if isinstance(each, Request | Notification):
            _ = each.params_members
    return ParsedInput(message, batch)


def receive_at_once(data: bytes) -> ParsedInput | None:
    """`receive(data)`; None if it may take more than a few milliseconds."""
    if len(data) <= LIGHT_TOKENS:
        return _receive_whole(data)
    return _receive_outlined(data, takes_long) or (None if is_heavy(data) else _receive_whole(data))


def receive(data: bytes) -> ParsedInput:
    """Read text from a client, which must be bounded and unambiguous.

    Besides invalid JSON, refuses more than MAX_DEPTH levels or MAX_TOKENS structural characters, duplicate members,
    numbers that are not finite, and integers of more than MAX_DIGITS digits. A batch that breaks one of these limits,
    is empty, or has more than MAX_BATCH messages is refused as a whole, with one `Malformed`.
    """
    outlined = _receive_outlined(data) if len(data) > LIGHT_TOKENS else None
    return _receive_whole(data) if outlined is None else outlined


def _receive_whole(data: bytes) -> ParsedInput:
    array = data[:1] != b"{" and _is_array(data)
    why = flaw(data)
    if why is not None:
        malformed = Malformed(PARSE_ERROR, why)
        return ParsedInput(malformed, [malformed] if array else None)
    if not array:
        message = _read_from_client(data)
        return ParsedInput(message if len(data) <= _ALWAYS_LIGHT else _check_params_size(message), None)
    found = _read_items(data, MAX_BATCH, _read_from_client)
    return ParsedInput(_read_from_client(data), [_check_params_size(each) for each in found])


def _receive_outlined(data: bytes, refuses: Callable[[Raw], bool] = lambda params: False) -> ParsedInput | None:
    """`receive(data)` of a request or notification of which the outline can be checked instead; None of anything else,
    of params that `refuses` names, if even the outline is heavy, and if it has a flaw: which of several is named
    depends on the length of the text."""
    message = None if may_have_more_tokens(data, MAX_TOKENS) or why_not_utf8(data) is not None else _read_edges(data)
    if message is None or message.params is None or refuses(message.params):
        return None
    params = outline_object(message.params)
    if params.outline is message.params:
        return None
    outlined = replace(message, params=params.outline)
    text = write(outlined)
    # By these lengths, the envelope has no other members.
    is_whole = len(text) - len(params.outline) + len(message.params) == len(data)
    if not is_whole or is_heavy(text) or flaw(text) is not None:
        return None
    checked = _check_params_size(outlined)
    if checked is not outlined:
        return ParsedInput(checked, None)
    message.__dict__.update(members=params.members, arguments=params.inner.get("arguments"))
    return ParsedInput(message, None)


def _read_edges(data: bytes) -> Request | Notification | None:
    """The request or notification in a long text, of whose params nothing is known yet. None if they are no object, or
    if the other members do not stand at its ends."""
    found = long_object(data)
    if found is None or found.name != b"params" or found.short.get(b"jsonrpc") != VERSION:
        return None
    try:
        method = string(found.short[b"method"])
    except (KeyError, ValueError):
        return None
    if b"id" not in found.short:
        return Notification(method, found.value)
    id = read_id(found.short[b"id"])
    return None if id is None else Request(id, method, found.value)


def _check_params_size(message: Message | Malformed) -> Message | Malformed:
    if not isinstance(message, Request | Notification) or message.params is None:
        return message
    if len(message.params) <= _ALWAYS_LIGHT or not is_object(message.params):
        return message
    marks = count_tokens(bytes(message.params))
    if marks > MAX_OTHER_TOKENS:
        marks = count_tokens_outside_strings(bytes(message.params))  # strings may have any number of commas
    if marks > MAX_OTHER_TOKENS:
        marks -= count_tokens_outside_strings(bytes(_arguments(message.params)))
    id = message.id if isinstance(message, Request) else None
    if marks > MAX_OTHER_TOKENS:
        why = f"params have more than {MAX_OTHER_TOKENS} structural characters besides arguments"
        return Malformed(INVALID_PARAMS, why, id)
    if len(message.params) > MAX_OTHER_SURROGATES and _is_slow(message):
        why = f"params besides arguments have a lone surrogate and more than {MAX_OTHER_SURROGATES} bytes"
        return Malformed(INVALID_PARAMS, why, id)
    return message


def _is_slow(message: Request | Notification) -> bool:
    """Whether the params besides `arguments` have lone surrogates and are too large for the slow way of decoding."""
    exempt = "arguments" if isinstance(message, Request) else None
    others = {name: each for name, each in (message.params_members or {}).items() if name != exempt}
    size = sum(len(name) + len(each) for name, each in others.items())
    return size > MAX_OTHER_SURROGATES and not has_no_lone_surrogate(others)


def _arguments(params: Raw) -> Raw:
    try:
        found = pick(params, frozenset(("arguments",)))
    except ValueError:  # because of a lone surrogate
        found = members(params)
    return found.get("arguments", _ABSENT)


def read_batch(data: bytes) -> list[Message | Malformed] | None:
    """Read a batch of a server, each message as `read` does; None if the text is not an array.

    A batch that is empty, is not JSON, or has more than MAX_SERVER_BATCH messages or MAX_TOKENS commas is refused as a
    whole, with one `Malformed`.
    """
    if not _is_array(data):
        return None
    if data.count(b",") > MAX_TOKENS:  # counted before the items are made: they may be two bytes each
        return [Malformed(INVALID_REQUEST, f"the batch has more than {MAX_TOKENS} commas")]
    left = MAX_SURROGATE_BYTES

    def read_item(item: bytes) -> Message | Malformed:
        nonlocal left
        message = read(item, max_slow_bytes=left)
        if may_hold_surrogates(item):
            left -= len(item)
        return message

    return _read_items(data, MAX_SERVER_BATCH, read_item)


def read_each(data: bytes, batches: bool) -> list[Message | Malformed]:
    """Read one line, body or event of a server: one message or, if the server may send `batches`, those of a batch."""
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
        return [Malformed(PARSE_ERROR, "not JSON: the items of the batch cannot be read")]
    if not found:
        return [Malformed(INVALID_REQUEST, "the batch has no messages")]
    if len(found) > most:
        return [Malformed(INVALID_REQUEST, f"the batch has more than {most} messages")]
    return [read_item(bytes(each)) for each in found]


def _reread(data: bytes, problem: Exception, bare_id_answers: bool, max_slow_bytes: float) -> Message | Malformed:
    """Read a message that msgspec refused: the slow way if JSON allows it, else with the reason to refuse it."""
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
    return Malformed(PARSE_ERROR, "nested too deep" if isinstance(problem, RecursionError) else not_json(data))


def not_json(data: bytes) -> str:
    """The reason to refuse text that is not JSON, in words."""
    # Written by encoders of several languages for numbers that JSON does not have.
    return "not JSON: it has NaN or Infinity" if b"NaN" in data or b"Infinity" in data else "not JSON"


def _skim(data: bytes) -> Malformed | None:
    """The refusal of a message that is too long for the slow way, with its id; None if the text is not an object."""
    try:
        found = _skimmed.decode(without_surrogates(data))
    except DECODE_ERRORS:
        return None
    id = read_id(bytes(found.id))
    if isinstance(id, str):  # the replacement of d by c may have made another id of it
        id = None
    why = f"the message has an escape of half a surrogate pair and more than {MAX_SURROGATE_BYTES} bytes"
    return Malformed(TOO_LARGE, why, id, answers=not len(found.method))


def _classify(envelope: _Envelope, bare_id_answers: bool) -> Message | Malformed:
    id: Id | None = None
    if len(envelope.id):
        try:
            id = _id.decode(envelope.id)
        except DECODE_ERRORS:
            whole = _whole_number(envelope) if bare_id_answers else None
            if whole is None:
                return _unreadable_id(envelope)
            id = whole
        if not _is_valid_id(id):
            return Malformed(INVALID_REQUEST, f"the id is not a 64-bit integer or is longer than {MAX_ID_BYTES} bytes")
    is_answer = not len(envelope.method) and bool(len(envelope.result) or len(envelope.error))
    answers = is_answer or (bare_id_answers and id is not None and not len(envelope.method))
    if envelope.jsonrpc != _VERSION:
        return Malformed(INVALID_REQUEST, 'expected "jsonrpc": "2.0"', id, answers)
    if len(envelope.method):
        if len(envelope.result) or len(envelope.error):
            return Malformed(INVALID_REQUEST, "a message has either a method or a result or error", id, True)
        return _read_call(envelope, id)
    if is_answer:
        return _read_response(envelope, id)
    return Malformed(INVALID_REQUEST, "the message has no method, result or error", id, answers)


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
    has_result, has_error = len(envelope.result) > 0, len(envelope.error) > 0
    if has_result and has_error:  # libraries that write all members have null for the other one, as JSON-RPC 1.0 has
        has_error = bytes(envelope.error) != b"null"
        has_result = not has_error or bytes(envelope.result) != b"null"
    if has_result and has_error:
        return Malformed(INVALID_REQUEST, "both a result and an error", id, True)
    if has_result:
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
    except DECODE_ERRORS:  # perhaps only because of an escaped lone surrogate
        found = members(raw)
        code = msgspec.json.decode(found["code"], type=int)
        return _Error(code, string(found["message"]), found.get("data", _ABSENT))


def _unreadable_id(envelope: _Envelope) -> Message | Malformed:
    """Classify a message whose id is neither a string nor an integer. An error response may have `"id": null`, if the
    id of its request could not be read (JSON-RPC 2.0, section 5)."""
    if bytes(envelope.id) == b"null" and not len(envelope.method) and len(envelope.error):
        return _read_response(envelope, None)
    return Malformed(INVALID_REQUEST, "the id is neither a string nor an integer")


def _whole_number(envelope: _Envelope) -> int | None:
    """The id of a response as a number, if it is written as one like `1.0`: some languages have no integers."""
    if len(envelope.method):
        return None
    try:
        number = msgspec.json.decode(envelope.id, type=float)
    except DECODE_ERRORS:
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else None


def _is_valid_id(id: Id) -> bool:
    if isinstance(id, str):
        return len(id.encode()) <= MAX_ID_BYTES
    return MIN_ID <= id <= MAX_ID
