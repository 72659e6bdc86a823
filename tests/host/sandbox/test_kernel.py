"""Calls of the C library: what they return, and how they fail."""

from __future__ import annotations

import errno
import os

import pytest

from host.sandbox.kernel import KernelRefused, call


def test_what_it_returns() -> None:
    assert call("a number", "getpid") == os.getpid()


@pytest.mark.parametrize(
    ("name", "arguments", "number"),
    [("close", (-1,), errno.EBADF), ("no_such_function", (), errno.ENOSYS), ("chdir", (b"/nowhere",), errno.ENOENT)],
)
def test_a_refusal_has_its_step_and_its_reason(name: str, arguments: tuple[int | bytes, ...], number: int) -> None:
    with pytest.raises(KernelRefused) as caught:
        call("a step", name, *arguments)
    assert (caught.value.step, caught.value.errno) == ("a step", number)
    assert caught.value.strerror == os.strerror(number)
