"""Text that goes out in the background, to streams that take it, take it slowly, or are gone."""

from __future__ import annotations

import io
import threading

import pytest

from host.non_blocking import MAX_QUEUED, NonBlockingStream


class Slow(io.StringIO):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait()
        return super().write(text)


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_what_was_written_is_out_after_close_and_in_order() -> None:
    real = io.StringIO()
    stream = NonBlockingStream(real)
    for n in range(1000):
        stream.write(f"{n}\n")
    stream.close()
    assert real.getvalue() == "".join(f"{n}\n" for n in range(1000))


@pytest.mark.slow
def test_a_slow_reader_holds_up_neither_the_writer_nor_the_end() -> None:
    real = Slow()
    stream = NonBlockingStream(real)
    for _ in range(2 * MAX_QUEUED):
        stream.write("x")
    stream.close()
    real.go.set()  # not before: `close` did not wait for it


def test_a_reader_that_is_gone_is_nobodys_trouble() -> None:
    stream = NonBlockingStream(Gone())
    stream.write("x")
    stream.flush()
    stream.write("y")
    stream.close()
    assert not stream.isatty()
