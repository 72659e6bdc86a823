"""Bodies that a server compresses although nobody asked: what is read, and what is refused before it grows."""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import SimpleNamespace

import httpx
import pytest

from host.wire.content_coding import FREE, MAX_PIECE, MAX_RATIO, DecodedBody, UnreadableCoding, decoded
from host.wire.http_errors import Broken, OverLimit
from host.wire.http_transport import HttpResponse
from host.wire.link import LinkLost
from host.wire.sse import EventParser, SseEvent, format_event
from tests.host.wire.http_servers import answered

TEXT = b'{"a": "' + bytes(random.Random(1).choices(b"abcdefgh", k=300_000)) + b'"}'


def raw_deflate(text: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(text) + made.flush()


CODED = [("gzip", gzip.compress), ("X-GZip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)]


class Pieces:
    """A body that comes in these pieces."""

    has_length = True

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._left = iter(pieces)

    def take_whole(self) -> None:
        return None

    async def read(self) -> bytes:
        return next(self._left, b"")


async def read(body: DecodedBody | None) -> tuple[bytes, int]:
    """The text, and the size of its longest piece."""
    assert body is not None
    parts: list[bytes] = []
    while piece := await body.read():
        parts.append(piece)
    return b"".join(parts), max(map(len, parts), default=0)


@pytest.mark.few(3)
@pytest.mark.parametrize(("coding", "compress"), CODED)
@pytest.mark.parametrize("step", [1, 1000, 10**9])
async def test_a_body_is_read_in_whatever_pieces_it_comes(
    coding: str, compress: Callable[[bytes], bytes], step: int
) -> None:
    data = compress(TEXT)
    text, longest = await read(decoded(Pieces(data[at : at + step] for at in range(0, len(data), step)), coding))
    assert text == TEXT
    assert longest <= MAX_PIECE


@pytest.mark.few(2)
@pytest.mark.parametrize(("coding", "compress"), CODED)
async def test_a_body_that_is_cut_is_told_from_a_whole_one(coding: str, compress: Callable[[bytes], bytes]) -> None:
    data = compress(TEXT)
    for cut in (1, 2, len(data) // 2, len(data) - 1):
        with pytest.raises(Broken):
            await read(decoded(Pieces([data[:cut]]), coding))


@pytest.mark.parametrize(("coding", "compress"), CODED)
@pytest.mark.parametrize("apart", [False, True])
async def test_nothing_may_follow_a_body(coding: str, compress: Callable[[bytes], bytes], apart: bool) -> None:
    """Not even another compressed one: some readers would take both, some the first."""
    data = compress(b"{}")
    for more in (b"x", data):
        with pytest.raises(UnreadableCoding, match=f"not valid {coding.lower()}"):
            await read(decoded(Pieces([data, more] if apart else [data + more]), coding))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("data", [TEXT, b"\xff" * 50, b"\x1f\x8b\x08\x00" + b"\xff" * 50])
async def test_a_coding_that_lies_is_named(coding: str, data: bytes) -> None:
    with pytest.raises(UnreadableCoding) as caught:
        await read(decoded(Pieces([data]), coding))
    assert "path" not in caught.value.with_remedy
    assert caught.value.with_remedy.endswith("switch off compression at the server, or at the proxy before it")


@pytest.mark.few(1)
@pytest.mark.parametrize("megabytes", [2, 100])
async def test_a_bomb_is_refused_before_it_has_grown(megabytes: int) -> None:
    data = gzip.compress(b"\0" * (megabytes << 20))
    body = decoded(Pieces(data[at : at + MAX_PIECE] for at in range(0, len(data), MAX_PIECE)), "gzip")
    assert body is not None
    given: list[bytes] = []

    async def read_all() -> None:
        while piece := await body.read():
            given.append(piece)

    with pytest.raises(OverLimit, match="more than 200 times its compressed size"):
        await read_all()
    assert sum(map(len, given)) <= max(FREE, MAX_RATIO * len(data))


async def test_a_short_body_may_consist_of_the_same_words() -> None:
    text, _ = await read(decoded(Pieces([gzip.compress(b" " * FREE)]), "gzip"))
    assert text == b" " * FREE


@pytest.mark.parametrize("header", ["", " ", "identity", "Identity, ,identity"])
async def test_a_body_without_a_coding_is_as_it_came(header: str) -> None:
    assert decoded(Pieces([]), header) is None


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("gzip, gzip", "gzip and gzip"),
        ("br", "br"),
        ("ZSTD", "zstd"),
        ("compress", "compress"),
        ("x" * 99, "an unknown coding"),
        ("\x1b[31mred", "an unknown coding"),
        ("a/b, gzip, gzip", "an unknown coding and gzip"),
    ],
)
async def test_other_codings_are_named(header: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("brotli", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnreadableCoding) as caught:
        decoded(Pieces([]), header)
    assert str(caught.value) == f"its body is compressed ({named}) although none was asked for"
    assert caught.value.answered


class _Brotli:
    """As `brotli.Decompressor`: it says that it takes more bytes while it has text left, and refuses what follows."""

    def __init__(self) -> None:
        self._made = zlib.decompressobj()

    def process(self, data: bytes, output_buffer_limit: int) -> bytes:
        if self._made.eof:
            raise ValueError
        return self._made.decompress(self._made.unconsumed_tail + data, output_buffer_limit)

    def can_accept_more_data(self) -> bool:
        return True

    def is_finished(self) -> bool:
        return self._made.eof


class _Zstd(_Brotli):
    """As `ZstdDecompressor` of Python 3.14."""

    def __init__(self, options: dict[int, int]) -> None:
        super().__init__()
        assert options == {100: 23}
        self.needs_input = True

    def decompress(self, data: bytes, max_length: int) -> bytes:
        text = self.process(data, max_length)
        self.needs_input = not self._made.unconsumed_tail and len(text) < max_length
        return text

    @property
    def eof(self) -> bool:
        return self._made.eof

    @property
    def unused_data(self) -> bytes:
        return self._made.unused_data


BROTLI = SimpleNamespace(Decompressor=_Brotli, error=ValueError)
ZSTD = SimpleNamespace(
    ZstdDecompressor=_Zstd, ZstdError=zlib.error, DecompressionParameter=SimpleNamespace(window_log_max=100)
)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("coding", "package", "made"),
    [("br", "brotli", BROTLI), ("zstd", "compression.zstd", ZSTD), ("zstd", "backports.zstd", ZSTD)],
)
async def test_what_an_installed_package_reads_is_read(
    coding: str, package: str, made: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("brotli", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, made if name == package else None)
    data = zlib.compress(TEXT)
    for step in (1000, 10**9):
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        assert (await read(decoded(Pieces(pieces), coding)))[0] == TEXT
    with pytest.raises(Broken):
        await read(decoded(Pieces([data[:-9]]), coding))
    with pytest.raises(OverLimit):
        await read(decoded(Pieces([zlib.compress(b"\0" * (4 << 20))]), coding))


async def test_an_older_brotli_would_make_a_bomb_grow_and_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "brotli", SimpleNamespace(Decompressor=object))
    with pytest.raises(UnreadableCoding):
        decoded(Pieces([]), "br")


# In a response.


def compressed(text: bytes, kind: str = "application/json", data: bytes | None = None) -> httpx.Response:
    """A response of this text, whose bytes on the wire are those of gzip or `data`."""
    body = gzip.compress(text) if data is None else data
    headers = {"content-type": kind, "content-encoding": "gzip"}
    return httpx.Response(200, headers=headers, stream=_Stream([body]))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


async def whole(text: bytes, **more: object) -> HttpResponse:
    response = compressed(text, **more)  # type: ignore[arg-type]
    response.headers["transfer-encoding"] = "chunked"
    return await answered(response)


async def test_the_limit_of_a_message_is_that_of_its_text() -> None:
    answer = await whole(TEXT)
    answer._max_body = len(TEXT) - 1
    with pytest.raises(OverLimit, match=r"limits\.message"):
        await answer.body()
    answer = await whole(TEXT)
    answer._max_body = len(TEXT)
    assert (answer.media_type, await answer.body()) == ("application/json", TEXT)


async def test_an_event_stream_may_be_compressed() -> None:
    events: list[object] = []

    def take(event: object) -> Iterator[bool]:
        events.append(event)
        yield False

    answer = await whole(format_event(b"{}") * 2, kind="text/event-stream")
    await answer.read_events(EventParser(), take)
    assert events == [SseEvent(b"{}"), SseEvent(b"{}")]
    answer = await whole(b"", kind="text/event-stream", data=b"data: {}\n\n")
    with pytest.raises(LinkLost, match="not valid gzip"):
        await answer.read_events(EventParser(), take)
