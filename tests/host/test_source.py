from __future__ import annotations

from host.protocol.era import Era
from host.protocol.methods import Kind
from host.source import EntryRef, Source


def test_equal_identities_are_one_key() -> None:
    first, again = (EntryRef(Source("a", Era.SESSION), Kind.TOOL, "x") for _ in range(2))
    assert {first: 1}[again] == 1


def test_each_part_tells_entries_apart() -> None:
    sources = [Source(server, era, owner) for server in "ab" for era in Era for owner in ("", "ann")]
    entries = {EntryRef(source, kind, name) for source in sources for kind in Kind for name in ("x", "y")}
    assert len(entries) == len(sources) * len(Kind) * 2
