"""Signal handlers while the program is loaded. test_start.py has them in real processes."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest

from host.cli.signals import end_loading, end_on_interrupt


@pytest.fixture(autouse=True)
def _handler_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_raises_only_when_all_is_imported() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_on_interrupt()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    end_loading()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    """As that of a shell's background job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_on_interrupt()
    end_loading()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_garbage_is_collected_when_all_is_imported() -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        end_loading()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
