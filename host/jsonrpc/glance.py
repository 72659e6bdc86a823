"""The envelope of a long message, from its first and last bytes (`edges`): a message that nobody waits for is not read
at all, and of a long result one look is enough.

Text in another order is read as a whole. An `id` in the middle is not seen: such a request is dropped as a
notification, and such a response counts as one to another request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from host.errors import TOO_LARGE
from host.jsonrpc.edges import END, VERSION, closing, long_object, members_after, opening
from host.jsonrpc.envelope import STEP, Envelope, EnvelopeScanner
from host.jsonrpc.messages import (
    MAX_SURROGATE_BYTES,
    PARSE_ERROR,
    Malformed,
    Message,
    Success,
    not_json,
    read,
    read_each,
    read_id,
    read_unless_slow,
    why_not_utf8,
)
from host.jsonrpc.outline import outline_soon
from host.jsonrpc.raw import is_accepted, may_hold_surrogates, string

LONG = MAX_SURROGATE_BYTES
"""Bytes of a message beyond which its envelope is looked at first. Reading a shorter one takes less than a
millisecond."""
_OUTLINED = 16 * 1024
"""Bytes beyond which looking at a result once saves more than telling its envelope takes, some 5 µs."""
_OBJECT, _ARRAY = re.compile(rb"[ \t\r\n]*+\{"), re.compile(rb"[ \t\r\n]*+\[")


class LongMessage(Struct, frozen=True):
    """A message that has not been read, with its envelope."""

    text: bytes
    envelope: Envelope

    def read(self) -> Message | Malformed:
        """Read the message; see `messages.read`."""
        message = read_outlined(self.text) or read_unless_slow(self.text)
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
    that is no message, or that begins with more space than its first END bytes, is not searched for the id of a
    request that it may answer."""
    if _OUTLINED < len(data) <= LONG and (success := read_outlined(data)) is not None:
        return [success]
    if len(data) <= LONG or (batches and _ARRAY.match(data, 0, END) is not None):
        found = read_each(data, batches) if batches else [read(data)]
        first = found[0]
        if isinstance(first, Malformed) and first.code == PARSE_ERROR and len(found) == 1:
            return [_with_id(first, data)]
        return found
    envelope = glance(data)
    if envelope is not None:
        return [LongMessage(data, envelope)]
    if _OBJECT.match(data, 0, END) is None:
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
    if (begin := opening(text)) is None:
        return None
    short, is_answer = begin.short, begin.name != b"params"
    if b"id" not in short or (not is_answer and b"method" not in short):
        if (end := closing(text, begin.at)) is None:
            return None
        short |= members_after(end)
    id = read_id(short[b"id"]) if b"id" in short else None
    if is_answer == (b"method" in short) or (id is None and (is_answer or b"id" in short)):
        return None
    try:
        return Envelope(id, is_answer, "" if is_answer else string(short[b"method"]))
    except ValueError:  # the method is a number, or not UTF-8
        return None


def read_outlined(text: bytes) -> Success | None:
    """Read a message with a long result, as `messages.read` does, together with the outline of the result, which is
    made anyway: that one look at the result shows that it is JSON. None of any other text, which is to be read as a
    whole."""
    found = long_object(text)
    if found is None or found.name != b"result":
        return None
    short, result = found.short, found.value
    id = read_id(short.get(b"id", b""))
    if id is None or len(short) != 2 or short.get(b"jsonrpc") != VERSION:
        return None
    outlined = outline_soon(result)
    if (outlined is result and not is_accepted(result)) or why_not_utf8(text) is not None:
        return None
    success = Success(id, result)
    success.__dict__["outline"] = outlined
    return success
