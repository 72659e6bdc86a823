"""The default listener's reading of requests, compared with that of h11, an independent parser.

What h11 refuses must be refused: a proxy in front may read as h11 does, and then one of the two would see a request
that the other does not. What both accept must be read alike: method, target, headers, body, and where the next request
begins. The listener may refuse more.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import h11

from host.wire.chunked import BadChunk, ChunkedBody
from host.wire.head import MAX_HEAD, HeadRefusal
from host.wire.request_head import find_head, parse_head
from tests.fuzz.mutations import mutate

FRAMING = (
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Host: b\r\n",
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"RTSP/1.0",
    b"http://a/",
    b"CONNECT",
    b"chunked",
    b"0\r\n\r\n",
    b"5;a=b\r\n",
    b"\x0b",
    b"\x7f",
    b"\x85",
    b"\x01",
)
"""Bytes that decide where a request ends, for mutations beside those of `mutate`."""


class Reading(NamedTuple):
    """A request, as far as it is complete. `rest`: what follows a complete one."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bool
    rest: bytes


class Refused(NamedTuple):
    why: str


INCOMPLETE = Refused("the head is not complete")
"""Neither read nor refused yet."""


def read_by_listener(data: bytes) -> Reading | Refused:
    """The first request in these bytes, as `listener.py` reads it."""
    end = find_head(data, 0) if data else None
    if end is None:
        return INCOMPLETE
    head = end if isinstance(end, HeadRefusal) else parse_head(data[:end])
    if isinstance(head, HeadRefusal):
        return Refused(head.why)
    assert isinstance(end, int)
    target = head.raw_path + (data[:end].split(b" ", 2)[1][len(head.raw_path) :])
    assert target in (head.raw_path, head.raw_path + b"?" + head.query)
    body, rest = data[end:], b""
    if head.length is None:
        chunked = ChunkedBody()
        try:
            body, rest = chunked.take(body)
        except BadChunk:
            return Refused("malformed chunks")
        whole = chunked.ended
    else:
        body, rest = body[: head.length], body[head.length :]
        whole = len(body) == head.length
    return Reading(head.method.encode(), target, head.headers, body, whole, rest if whole else b"")


def read_by_h11(data: bytes) -> Reading | Refused:
    """The first request in these bytes, as h11 reads it."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    connection.receive_data(data) if data else None
    request: h11.Request | None = None
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif request is None:
                return INCOMPLETE
            else:
                whole = isinstance(event, h11.EndOfMessage)
                rest = connection.trailing_data[0] if whole else b""
                headers = [(bytes(name), bytes(value)) for name, value in request.headers]
                return Reading(bytes(request.method), bytes(request.target), headers, body, whole, rest)
    except h11.RemoteProtocolError as error:
        return Refused(str(error))


def compare(data: bytes) -> bool:
    """Whether the listener accepts the request. Raises AssertionError if the two readings contradict each other."""
    ours, theirs = read_by_listener(data), read_by_h11(data)
    if isinstance(ours, Reading):
        assert isinstance(theirs, Reading), f"h11 refuses it: {theirs.why}"
        assert _comparable(ours) == _comparable(theirs), f"{ours} and not {theirs}"
    elif ours == INCOMPLETE:
        assert theirs == INCOMPLETE, f"h11 has decided: {theirs}"
    return isinstance(ours, Reading)


def _comparable(reading: Reading) -> Reading:
    """h11 writes the names of transfer encodings in lower case."""
    headers = [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in reading.headers]
    return reading._replace(headers=headers)


def mutated(number: int, seed: int, corpus: Sequence[bytes]) -> bytes:
    """Case `number` of a seed: a request of the corpus with random changes."""
    random = Random(f"{seed}/{number}")
    data = bytearray(mutate(random.choice(corpus), random, corpus) if random.random() < 0.7 else random.choice(corpus))
    for _ in range(random.randrange(3)):
        at = random.randrange(len(data) + 1)
        data[at:at] = random.choice(FRAMING)
    return bytes(data)


def compare_many(cases: int, seed: int, corpus: Sequence[bytes]) -> list[str]:
    """Compare so many mutated requests. Returns the contradictions, each with its bytes; and one if hardly any request
    was accepted, since then nothing was compared."""
    faults: list[str] = []
    accepted = 0
    for number in range(cases):
        data = mutated(number, seed, corpus)
        try:
            accepted += compare(data)
        except AssertionError as contradiction:
            faults.append(f"case {number} of seed {seed}, {data!r}: {contradiction}")
    if accepted < cases / 100:
        faults.append(f"only {accepted} of {cases} requests were accepted")
    return faults
