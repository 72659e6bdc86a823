"""A fixed piece of work for one processor, by which figures of different moments and machines are compared."""

from __future__ import annotations

import time

STEPS = 16000
REFERENCE = 0.019
"""Seconds that it takes on the machine to which all figures are scaled."""


def yardstick() -> float:
    """The seconds of processor time that the work takes here and now."""
    began = time.thread_time()
    table: dict[int, bytes] = {}
    for step in range(STEPS):
        text = b"%d," % step * 8
        for part in text.split(b","):
            if part:
                table[int(part) & 255] = part
    assert len(table) == 256
    return time.thread_time() - began
