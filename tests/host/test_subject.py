from __future__ import annotations

from itertools import product

from host.protocol.methods import Kind
from host.subject import Item


def test_each_part_tells_items_apart() -> None:
    parts = list(product(("a", "b"), ("tool", "launch"), ("", "x")))
    assert len({Item(*each) for each in parts}) == len(parts)


def test_a_kind_is_its_word() -> None:
    assert {Item("a", Kind.TOOL, "x")} == {Item("a", "tool", "x")}
