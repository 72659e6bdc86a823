"""Bodies that a server compresses although `Accept-Encoding` asks for none (RFC 9110, "Content Codings").

gzip and deflate are read always, br and zstd if `brotli` (1.2), `compression.zstd` (Python 3.14) or `backports.zstd` is
installed. Text is made in pieces of MAX_PIECE bytes, so that a bomb is refused before it has grown.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

import trio

from host.wire.http_errors import CONNECTION_BROKE, Broken, OverLimit
from host.wire.link import LinkLost

MAX_PIECE = 64 * 1024
"""Bytes that are decompressed at once."""
FREE = 1024 * 1024
"""Bytes of a body for which no ratio holds: a short one may consist of the same few words."""
MAX_RATIO = 200
"""Bytes of text for each compressed one, in a longer body. Lists of tools have about 10; gzip allows 1,032."""
MAX_WINDOW_LOG = 23
"""A window of 8 MiB, for zstd (RFC 9659, "Window Size")."""

_NAME = re.compile(r"[a-z0-9_-]{1,20}")
_REMEDY = "switch off compression at the server, or at the proxy before it"


class UnreadableCoding(LinkLost):
    """The body is compressed in a way that is not read here, or is not what its `Content-Encoding` says."""

    answered = True
    remedy = _REMEDY


class Steps(Protocol):
    """A decompressor of one body."""

    errors: tuple[type[Exception], ...]

    def step(self, data: bytes) -> tuple[bytes, bool]:
        """Take these bytes. Returns text, of MAX_PIECE bytes or a little more, and whether further bytes are needed to
        get more; none may be given before. Raises one of `errors`."""

    @property
    def has_ended(self) -> bool: ...

    @property
    def rest(self) -> bytes:
        """Bytes that were given after the end."""


class _Zlib:
    errors: tuple[type[Exception], ...] = (zlib.error,)

    def __init__(self, window: int) -> None:
        self._made = zlib.decompressobj(window)
        self._begin: bytes | None = b"" if window == zlib.MAX_WBITS else None
        """The first bytes of deflate, of which some servers leave out the frame of zlib; None once that is known."""

    def step(self, data: bytes) -> tuple[bytes, bool]:
        if self._begin is not None:
            data = self._begin + data
            if len(data) < 2:
                self._begin = data
                return b"", True
            self._begin = None
            if data[0] & 15 != 8 or int.from_bytes(data[:2], "big") % 31:  # RFC 1950, "Data format"
                self._made = zlib.decompressobj(-zlib.MAX_WBITS)
        text = self._made.decompress(self._made.unconsumed_tail + data, MAX_PIECE)
        return text, not self._made.unconsumed_tail and len(text) < MAX_PIECE

    @property
    def has_ended(self) -> bool:
        return self._made.eof

    @property
    def rest(self) -> bytes:
        return self._made.unused_data


class _Brotli:
    def __init__(self, brotli: Any) -> None:
        self._made = brotli.Decompressor()
        self.errors: tuple[type[Exception], ...] = (brotli.error,)

    def step(self, data: bytes) -> tuple[bytes, bool]:
        text = bytes(self._made.process(data, output_buffer_limit=MAX_PIECE))
        return text, len(text) < MAX_PIECE and bool(self._made.can_accept_more_data())

    @property
    def has_ended(self) -> bool:
        return bool(self._made.is_finished())

    @property
    def rest(self) -> bytes:
        return b""  # `process` raises for them


class _Zstd:
    def __init__(self, zstd: Any) -> None:
        self._made = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})
        self.errors: tuple[type[Exception], ...] = (zstd.ZstdError,)

    def step(self, data: bytes) -> tuple[bytes, bool]:
        return bytes(self._made.decompress(data, MAX_PIECE)), bool(self._made.needs_input)

    @property
    def has_ended(self) -> bool:
        return bool(self._made.eof)

    @property
    def rest(self) -> bytes:
        return bytes(self._made.unused_data)


def _brotli() -> Steps | None:
    found = _installed("brotli")
    # Older ones make all the text at once, however long it is.
    return _Brotli(found) if hasattr(getattr(found, "Decompressor", None), "can_accept_more_data") else None


def _zstd() -> Steps | None:
    found = _installed("compression.zstd") or _installed("backports.zstd")
    return None if found is None else _Zstd(found)


def _installed(name: str) -> Any | None:
    try:
        return import_module(name)
    except ImportError:
        return None


_MAKERS: dict[str, Callable[[], Steps | None]] = {
    "gzip": lambda: _Zlib(16 + zlib.MAX_WBITS),
    "x-gzip": lambda: _Zlib(16 + zlib.MAX_WBITS),
    "deflate": lambda: _Zlib(zlib.MAX_WBITS),
    "br": _brotli,
    "zstd": _zstd,
}


class ResponseBody(Protocol):
    """The response whose body is read; see `http_pool.PooledResponse`."""

    @property
    def has_length(self) -> bool: ...

    def take_whole(self) -> bytes | None: ...

    async def read(self) -> bytes: ...


class DecodedBody:
    """The body of a response without its coding."""

    def __init__(self, source: ResponseBody, coding: str, steps: Steps) -> None:
        self._source = source
        self._coding = coding
        self._steps = steps
        self._pieces: Iterator[bytes] = iter(())
        self._taken = self._given = 0

    @property
    def has_length(self) -> bool:
        return self._source.has_length

    def take_whole(self) -> None:
        """None: the text is made while it is read."""

    async def read(self) -> bytes:
        """Wait for a piece of the text; none at its end.

        Raises:
            Broken: the connection broke, or ended before the text did.
            OverLimit: the text is too long for its compressed form.
            UnreadableCoding: it is not what its `Content-Encoding` says.
        """
        try:
            while (piece := next(self._pieces, None)) is None:
                data = await self._source.read()
                if not data:
                    if self._taken and not self._steps.has_ended:
                        raise Broken(CONNECTION_BROKE)
                    return b""
                self._taken += len(data)
                self._pieces = self._feed(data)
        except (OverLimit, UnreadableCoding):
            # A response that is left half read must be cancelled inside a read (http_transport.py).
            with trio.CancelScope() as ending, suppress(Broken):
                ending.cancel()
                await self._source.read()
            raise
        await trio.lowlevel.checkpoint()
        return piece

    def _feed(self, data: bytes) -> Iterator[bytes]:
        needs_input = False
        while not needs_input:
            if self._steps.has_ended and data:
                raise self._unreadable()
            try:
                text, needs_input = self._steps.step(data)
            except self._steps.errors:
                raise self._unreadable() from None
            data = b""
            self._given += len(text)
            if self._given > max(FREE, MAX_RATIO * self._taken):
                raise OverLimit(f"it sent a body ({self._coding}) of more than {MAX_RATIO} times its compressed size")
            if text:
                yield text
            if self._steps.has_ended:
                if self._steps.rest:
                    raise self._unreadable()
                return

    def _unreadable(self) -> UnreadableCoding:
        return UnreadableCoding(f"its body is not valid {self._coding}, which its Content-Encoding says it is")


def decoded(source: ResponseBody, header: str) -> DecodedBody | None:
    """The body of the response with this `Content-Encoding`, without its coding; None if it has none.

    Raises:
        UnreadableCoding: it has several, or one that is not read here.
    """
    codings = [each for each in (part.strip().lower() for part in header.split(",")) if each not in ("", "identity")]
    if not codings:
        return None
    steps = _MAKERS[codings[0]]() if len(codings) == 1 and codings[0] in _MAKERS else None
    if steps is None:
        named = " and ".join(each if _NAME.fullmatch(each) else "an unknown coding" for each in codings[:2])
        raise UnreadableCoding(f"its body is compressed ({named}) although none was asked for")
    return DecodedBody(source, codings[0], steps)
