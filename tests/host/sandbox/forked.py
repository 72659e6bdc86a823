"""Children, in which what holds for ever for a process is tried."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_a_child(work: Callable[[], object]) -> str:
    """The result of the function in a child process, or what it raises, as text."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = str(work())
        except OSError as problem:
            said = f"{type(problem).__name__}: {problem}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said
