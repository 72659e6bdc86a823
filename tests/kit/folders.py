"""Empty folders: in memory where the machine has such a place, since nobody looks at them again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MEMORY = "/dev/shm"


@contextmanager
def folder(*, of_programs: bool = False) -> Iterator[Path]:
    """An empty folder for the block.

    Args:
        of_programs: what is written there may be started, which the memory of most containers does not permit.
    """
    is_good = os.access(_IN_MEMORY, os.W_OK) and not (of_programs and os.statvfs(_IN_MEMORY).f_flag & os.ST_NOEXEC)
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if is_good else None) as made:
        yield Path(made)
