"""Responses of HTTP/1.1 read by the built-in client and by h11, as a client: what h11 refuses is refused, and what is
accepted says the same to both.

A response number N is made of one of the corpus by random changes that follow from the seed and N alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import h11

from host.wire.http_parser import BadResponse, ResponseParser
from tests.fuzz.explore import seeds
from tests.fuzz.mutations import mutate

FRAMING = (
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 199 X\r\n",
    b"HTTP/1.1 204 X\r\n",
    b"HTTP/1.1 304 X\r\n",
    b"HTTP/1.0 ",
    b"Content-Length: 0\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: x\r\n",
    b"\r\n",
    b"5\r\nhello\r\n",
    b"5;a=b\r\nhello\r\n",
    b"0\r\n\r\n",
    b"\x0b",
    b"\x7f",
)
"""Bytes that decide where a response ends, for mutations beside those of `mutate`."""

_LINE_END = re.compile(rb"\r\n")
_LEADING_ZEROS = re.compile(r"illegal chunk header: bytearray\(b'0{5}[0-9a-fA-F]{16,}")
"""The one exception: h11 refuses a chunk size of more than 20 digits. httptools refuses only sizes that are too large,
so those with many zeros before them pass. Both know the same size."""


@dataclass
class Reading:
    """A parser's reading of the bytes of a connection. `complete`: one final response was read to its end."""

    status: int = 0
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False
    reusable: bool = False
    """Whether the connection may be used for another request."""
    refused: str = ""


def built_in(data: bytes, step: int) -> Reading:
    """The reading of the built-in client, which gets the bytes in pieces."""
    parser, reading = ResponseParser(), Reading()
    try:
        for at in range(0, len(data), step):
            if parser.complete:
                reading.reusable = False  # a client that looks at the connection sees them
                break
            parser.feed(data[at : at + step])
            reading.body += parser.take_body()
            reading.complete = parser.complete
            reading.reusable = parser.reusable and parser.complete
    except BadResponse as problem:
        reading.body += parser.take_body()
        reading.complete = reading.reusable = False
        reading.refused = str(problem)
    if parser.head_done:
        reading.status = parser.status
        reading.fields = [
            (name, value.lower() if name == b"transfer-encoding" else value)
            for name, value in sorted(parser.fields.items())
        ]
    return reading


def by_h11(data: bytes) -> Reading:
    """The reading of h11, the parser in httpx."""
    connection, reading = h11.Connection(h11.CLIENT), Reading()
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    ended = False
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                reading.status = event.status_code
                joined: dict[bytes, bytes] = {}
                for name, value in event.headers:
                    joined[name] = joined[name] + b", " + value if name in joined else value  # codings in lower case
                reading.fields = sorted(joined.items())
            elif isinstance(event, h11.Data):
                reading.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                reading.complete = True
                # Blank lines after a response are dropped by every parser.
                reading.reusable = connection.their_state is h11.DONE and not connection.trailing_data[0].strip(b"\r\n")
                return reading
            elif event is h11.NEED_DATA and not ended:
                ended = True
                connection.receive_data(b"")
            elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return reading
    except h11.RemoteProtocolError as problem:
        reading.refused = str(problem)
    return reading


def compare(data: bytes) -> None:
    """Read the bytes in both ways, and in two cuts.

    Raises:
        AssertionError: the readings contradict each other.
    """
    ours, theirs = built_in(data, len(data) or 1), by_h11(data)
    cut = built_in(data, data[0] % 7 + 1 if data else 1)
    assert (ours.complete, ours.status) == (cut.complete, cut.status), f"{ours} is in pieces {cut}"
    if _LEADING_ZEROS.search(theirs.refused):
        return
    if ours.complete:
        assert not theirs.refused, f"h11 refuses: {theirs.refused}"
        same = (ours.status, ours.fields, ours.body) == (theirs.status, theirs.fields, theirs.body)
        assert same, f"{ours} is to h11 {theirs}"
        assert (cut.fields, cut.body) == (ours.fields, ours.body)
        assert theirs.complete
        assert theirs.reusable or not ours.reusable, "h11 would close the connection"
    else:
        assert ours.body.startswith(theirs.body) or theirs.body.startswith(ours.body)


def _mutated(random: Random, corpus: Sequence[bytes]) -> bytes:
    data = random.choice(corpus)
    if random.random() < 0.7:
        data = mutate(data, random, corpus)
    for _ in range(random.randrange(4)):
        # Between two lines more often than elsewhere: within one, most of them only spoil it.
        lines = [0, *(found.end() for found in _LINE_END.finditer(data))]
        at = random.choice(lines) if random.random() < 0.8 else random.randrange(len(data) + 1)
        data = data[:at] + random.choice(FRAMING) + data[at:]
    return data


@dataclass
class Compared:
    """The result of many comparisons; `faults` is empty if none contradicted."""

    tried: int = 0
    accepted: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def compare_many(cases: int, seed: int, first: int = 0) -> Compared:
    """Compare so many mutated responses, up to the first contradiction."""
    outcome, corpus, began = Compared(), seeds("responses"), time.monotonic()
    for number in range(first, first + cases):
        data = _mutated(Random(f"{seed}/{number}"), corpus)
        outcome.tried += 1
        try:
            compare(data)
        except AssertionError as fault:
            outcome.faults.append(f"response {number}, {data!r}: {fault}")
            break
        outcome.accepted += built_in(data, len(data) or 1).complete
    outcome.seconds = time.monotonic() - began
    return outcome
