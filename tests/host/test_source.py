from __future__ import annotations

from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import SHARED, Aspect, AspectRef, Endpoint, EntryRef, Source, launch_ref
from host.subject import Item


def test_equal_identities_are_one_key() -> None:
    first, again = (EntryRef(Source("a", Era.SESSION), Kind.TOOL, "x") for _ in range(2))
    assert {first: 1}[again] == 1


def test_each_part_tells_entries_apart() -> None:
    sources = [Source(server, era, owner) for server in "ab" for era in Era for owner in ("", "ann")]
    entries = {EntryRef(source, kind, name) for source in sources for kind in Kind for name in ("x", "y")}
    assert len(entries) == len(sources) * len(Kind) * 2


def test_an_entry_is_one_item_from_whatever_source() -> None:
    sources = [Source("a", era, owner) for era in Era for owner in ("", "ann")]
    assert {EntryRef(source, Kind.TOOL, "x").item for source in sources} == {Item("a", "tool", "x")}


def test_each_source_has_instructions_and_its_server_one_launch() -> None:
    refs = {AspectRef(Source("a", era), Aspect.INSTRUCTIONS) for era in Era}
    assert len(refs) == len(Era)
    assert launch_ref("a") == launch_ref("a") != launch_ref("b")


def test_the_source_of_another_era_has_the_same_login() -> None:
    assert Source("a", Era.SESSION, "one").in_era(Era.STATELESS) == Source("a", Era.STATELESS, "one")


def test_at_a_servers_own_endpoint_it_alone_answers() -> None:
    assert SHARED.includes("a")
    assert Endpoint("a", view="v").includes("a")
    assert not Endpoint("a").includes("b")
    assert len({SHARED, Endpoint("a"), Endpoint(view="a"), Endpoint(caller="a")}) == 4, "each is another endpoint"
