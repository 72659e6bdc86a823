"""Random scripts for machines that play them: steps by their names, each with two numbers to mean what it likes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from hypothesis import strategies as st

Step: TypeAlias = tuple[str, int, int]
"""The name of a step, and two numbers."""


def scripts(
    steps: Mapping[str, int], *, first: int = 7, second: int = 7, min_size: int = 10, max_size: int
) -> st.SearchStrategy[list[Step]]:
    """Scripts of these steps, each as often as its weight says; numbers go from 0 up to `first` and `second`."""
    names = st.sampled_from([name for name, weight in steps.items() for _ in range(weight)])
    return st.lists(
        st.tuples(names, st.integers(0, first), st.integers(0, second)), min_size=min_size, max_size=max_size
    )
