from __future__ import annotations

from itertools import product

from msgspec import structs

from host.protocol.methods import Kind
from host.subject import Item, Subject


def test_each_part_tells_items_apart() -> None:
    parts = list(product(("a", "b"), ("tool", "launch"), ("", "x")))
    assert len({Item(*each) for each in parts}) == len(parts)


def test_a_kind_is_its_word() -> None:
    assert {Item("a", Kind.TOOL, "x")} == {Item("a", "tool", "x")}


SUBJECT = Subject(Item("a", "tool", "x"), "laptop", "s1", "f", "l", "tools.ask: x", "d")


def test_a_permission_covers_its_own_subject_and_none_that_differs() -> None:
    assert SUBJECT.covers(SUBJECT)
    for field in Subject.__struct_fields__:
        assert not SUBJECT.covers(structs.replace(SUBJECT, **{field: "other"})), field


def test_a_permission_of_no_session_or_digest_covers_all_of_them_and_not_the_reverse() -> None:
    for field in ("session", "digest"):
        wide = structs.replace(SUBJECT, **{field: None})
        assert wide.covers(SUBJECT)
        assert not SUBJECT.covers(wide)
