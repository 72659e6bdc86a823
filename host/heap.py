"""The heap: garbage is collected when that is cheap, and freed memory goes back to the system.

Python makes a full collection of garbage for every 70,000 objects that stay, which takes 120 ms beside a thousand
connections, and 200 ms beside 200 servers with 50 tools each. Nearly all cycles die young, so here a full one is made
while few tasks run, or for three times as many objects. In place of the first of these, beside a start of many servers,
what is there is left out of all later ones.

Python takes objects of more than 512 bytes from the C library. That of GNU keeps what was freed, and once a large block
was freed it no longer maps large blocks one by one (mallopt(3), M_MMAP_THRESHOLD). Measured: of 400 MiB that a host had
held, nothing came back. With a fixed threshold every large block goes back when it is freed, and what smaller blocks
leave behind goes with `malloc_trim`. Other C libraries are left as they are.
"""

from __future__ import annotations

import ctypes
import gc
import time
from functools import cache, partial

import trio

from host.memory import Budget

LARGE = 256 * 1024
"""Bytes from which on a block is mapped by itself. A map costs page faults, 0.2 ms for a mebibyte."""
KEPT = 2 * 1024 * 1024
"""Free bytes at the end of the heap beyond which they go back at once. With the 128 KiB of the C library, every third
call with 100 KiB shrank the heap, and a later one faulted its pages in again."""
ARENAS = 2
"""Heaps for all threads together: each keeps what its threads freed."""
LOOK_EVERY = 1.0
"""Seconds between two looks at what has been released."""
WORTH_IT = 8 * 1024 * 1024
"""Bytes that must have been released since the heap was trimmed last."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


YOUNG = 3_000
"""Objects more than at the last collection of young ones from which on there is another, which takes half a
millisecond. What calls in flight hold comes and goes by thousands: with Python's 700, every 16th call of sixteen
clients ran a collection that found nothing."""
FEW_TASKS = 256
"""Tasks up to which a full collection takes some milliseconds."""
COLLECT_EVERY = 1.0
"""Seconds between two looks at whether one is due."""
SHARE = 0.005
"""Largest part of the time that collections may take: beside a list of 10,000 tools one takes 15 ms."""


MANY = 23
"""Collections of young objects after which a full one is due: some 200,000 objects have stayed."""
STARTING = 60.0
"""Seconds in which what stays is mostly what a start made: definitions, servers and their connections."""


def spare_collections() -> None:
    """Collect garbage from now on, with fewer full collections; to be called once all is imported."""
    gc.freeze()  # what was imported stays: a collection need not look at it
    gc.set_threshold(YOUNG, 2, 3 * MANY)  # a full one by itself only where `collect` gets no turn
    gc.enable()


def tune() -> None:
    """Set the heap up, before threads are started. No effect where the C library is another."""
    library = _glibc()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGE)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT)
        library.mallopt(_M_ARENA_MAX, ARENAS)


async def collect() -> None:
    """Collect garbage while few tasks run, or when much has stayed, until cancelled."""
    began = due = trio.current_time()
    is_frozen = False
    while True:
        await trio.sleep(COLLECT_EVERY)
        now, survivors = trio.current_time(), gc.get_count()[2]
        is_quiet = now >= due and trio.lowlevel.current_statistics().tasks_living <= FEW_TASKS
        if survivors >= MANY and not is_quiet and now < began + STARTING and not is_frozen:
            # Once only: of what is left out, cycles that end later are never freed.
            gc.freeze()
            is_frozen = True
        elif survivors >= MANY or (survivors > 0 and is_quiet):
            started = time.perf_counter()
            gc.collect()
            due = now + (time.perf_counter() - started) / SHARE


async def give_back(memory: Budget) -> None:
    """Return freed memory to the system after much was released, until cancelled. Returns where there is nothing to
    do."""
    library = _glibc()
    if library is None:
        return
    trimmed = memory.released
    while True:
        await trio.sleep(LOOK_EVERY)
        if memory.released - trimmed >= WORTH_IT:
            trimmed = memory.released
            # It takes milliseconds for each 100 MiB of heap, without the interpreter's lock.
            await trio.to_thread.run_sync(partial(library.malloc_trim, 0))


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    library.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    return library
