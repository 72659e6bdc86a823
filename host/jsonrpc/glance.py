"""The envelope of a long message, from its first and last bytes: a message that nobody waits for is not read at all.

The short members of a message (`jsonrpc`, `id`, `method`) stand before or after its long one (`params`, `result` or
`error`), as every library writes them. Text in another order is read as a whole. An `id` in the middle is not seen:
such a request is dropped as a notification, and such a response counts as one to another request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from host.errors import TOO_LARGE
from host.jsonrpc.envelope import STEP, Envelope, EnvelopeScanner
from host.jsonrpc.messages import (
    MAX_ID_BYTES,
    MAX_SURROGATE_BYTES,
    PARSE_ERROR,
    Malformed,
    Message,
    not_json,
    read,
    read_each,
    read_id,
    read_unless_slow,
)
from host.jsonrpc.raw import may_hold_surrogates, string

LONG = MAX_SURROGATE_BYTES
"""Bytes of a message beyond which its envelope is looked at first. Reading a shorter one takes less than a
millisecond."""
_END = 512
"""Bytes of the beginning and of the end that are looked at."""

_SPACE = rb"[ \t\r\n]*+"
_PAIR = rb'"(jsonrpc|id|method)"%b:%b("[^"\\]{0,%d}+"|-?[0-9]{1,19}+)' % (_SPACE, _SPACE, MAX_ID_BYTES)
_OPENING = re.compile(rb"%b\{%b" % (_SPACE, _SPACE))
_ARRAY = re.compile(rb"%b\[" % _SPACE)
_BEFORE = re.compile(rb"%b%b,%b" % (_PAIR, _SPACE, _SPACE))
_LONG_MEMBER = re.compile(rb'"(params|result|error)"%b:' % _SPACE)
_AFTER = re.compile(rb",%b%b" % (_SPACE, _PAIR))
# In valid JSON this cannot begin inside a string: its first quote would end the string, before a name. The bracket ends
# the long member: otherwise a short one that is not understood, such as an id with an escape, would be overlooked.
_CLOSING = re.compile(rb"[\]}]%b(?:%b%b)++\}%b\Z" % (_SPACE, _AFTER.pattern.replace(b"(", b"(?:"), _SPACE, _SPACE))
_NOTHING_AFTER = re.compile(rb"[\]}]%b\}%b\Z" % (_SPACE, _SPACE))


class LongMessage(Struct, frozen=True):
    """A message that has not been read, with its envelope."""

    text: bytes
    envelope: Envelope

    def read(self) -> Message | Malformed:
        """Read the message; see `messages.read`."""
        message = read_unless_slow(self.text)
        if message is None:
            halves = may_hold_surrogates(self.text)
            code, why = (
                (TOO_LARGE, f"it has an escape of half a surrogate pair, or is not JSON, and more than {LONG} bytes")
                if halves
                else (PARSE_ERROR, not_json(self.text))
            )
            return Malformed(code, why, self.envelope.id, self.envelope.is_answer)
        if isinstance(message, Malformed) and message.code == PARSE_ERROR:
            return Malformed(message.code, message.why, self.envelope.id, self.envelope.is_answer)
        return message


def read_unless_long(data: bytes, batches: bool) -> Sequence[Message | Malformed | LongMessage]:
    """Read one line, body or event of a server as `read_each` does, but of a long message only the envelope. Long text
    that is no message, or that begins with more space than its first _END bytes, is not searched for the id of a
    request that it may answer."""
    if len(data) <= LONG or (batches and _ARRAY.match(data, 0, _END) is not None):
        found = read_each(data, batches) if batches else [read(data)]
        first = found[0]
        if isinstance(first, Malformed) and first.code == PARSE_ERROR and len(found) == 1:
            return [_with_id(first, data)]
        return found
    envelope = glance(data)
    if envelope is not None:
        return [LongMessage(data, envelope)]
    if _OPENING.match(data, 0, _END) is None:
        return [Malformed(PARSE_ERROR, "not a JSON object")]
    return [read_unless_slow(data) or Malformed(PARSE_ERROR, "not JSON")]


def _with_id(broken: Malformed, text: bytes) -> Malformed:
    """The refusal of text that is no JSON, such as a result with NaN or with bytes that are not UTF-8: with its id, if
    it is a response with one, so that its request fails at once."""
    envelope = glance(text)
    if envelope is None and len(text) <= STEP:
        scanner = EnvelopeScanner()
        scanner.feed(text)
        envelope = scanner.envelope()
    return broken if envelope is None or not envelope.is_answer else replace(broken, id=envelope.id, answers=True)


def glance(text: bytes) -> Envelope | None:
    """The envelope of a long message; None if it cannot be told from the first and last bytes. Never raises."""
    opening = _OPENING.match(text, 0, _END)
    if opening is None:
        return None
    short: dict[bytes, bytes] = {}
    at = opening.end()
    while (pair := _BEFORE.match(text, at, _END)) is not None:
        short[pair[1]] = pair[2]
        at = pair.end()
    long_member = _LONG_MEMBER.match(text, at, _END)
    if long_member is None:
        return None
    is_answer = long_member[1] != b"params"
    if b"id" not in short or (not is_answer and b"method" not in short):
        end = max(long_member.end(), len(text) - _END)
        if (closing := _CLOSING.search(text, end)) is not None:
            short |= {pair[1]: pair[2] for pair in _AFTER.finditer(closing[0])}
        elif _NOTHING_AFTER.search(text, end) is None:
            return None
    id = read_id(short[b"id"]) if b"id" in short else None
    if is_answer == (b"method" in short) or (id is None and (is_answer or b"id" in short)):
        return None
    try:
        return Envelope(id, is_answer, "" if is_answer else string(short[b"method"]))
    except ValueError:  # the method is a number, or not UTF-8
        return None
