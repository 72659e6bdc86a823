"""System calls that Python's standard library does not have."""

from __future__ import annotations

import ctypes
import errno
import os

_libc = ctypes.CDLL(None, use_errno=True)


class KernelRefused(OSError):
    """The kernel refused a step. `step`: which one, for the person who mends it."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(number, os.strerror(number))
        self.step = step


def call(step: str, name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call a function of the C library, and return what it returns.

    Args:
        step: what is done by it, in words.
        arguments: numbers are passed as the 64 bits that system calls take.

    Raises:
        KernelRefused: it returned -1, or the library has no such function.
    """
    try:
        function = getattr(_libc, name)
    except AttributeError:
        raise KernelRefused(step, errno.ENOSYS) from None
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(function(*passed))
    if result < 0:
        raise KernelRefused(step, ctypes.get_errno())
    return result
