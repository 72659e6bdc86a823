"""The rules of pins. Their effect over time, in a store, is held in test_pins.py."""

from __future__ import annotations

import json

import pytest

from config import Trust
from host.jsonrpc.withheld import WITHHELD
from host.policy.pin_rules import (
    BY_FIRST_SIGHT,
    FIRST_SIGHT_FOR,
    KINDS,
    Items,
    ListKey,
    Offer,
    PinStatus,
    column_of,
    columns_of,
    definitions_by_era,
    definitions_in,
    items_after,
    list_in,
    offer_of,
    status_of,
)
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Aspect, Source
from host.storage.store import ApprovedDefinition, OfferedDefinition, StoredItem
from tests.kit.awaited import awaited

NOW = 1e9
"""Unix time."""


def tools(era: Era) -> ListKey:
    return Source("a", era), Kind.TOOL


def after(key: ListKey, offers: dict[str, bytes], lists: dict[ListKey, Items], trust: Trust = Trust.STANDARD) -> Items:
    """The changed items, none of which is removed."""
    offered = {name: Offer(raw, raw.hex()) for name, raw in offers.items()}
    changed = awaited(items_after(key, offered, lists, trust, NOW, is_closed=False))
    return {name: item for name, item in changed.items() if item is not None}


def approved(raw: bytes, by: str = BY_FIRST_SIGHT, ago: float = 0.0) -> StoredItem:
    return StoredItem(approved=ApprovedDefinition(raw.hex(), raw, NOW - ago, by))


def test_the_store_has_a_column_for_each_list() -> None:
    """And one for the launch, which is no connection's."""
    columns = [
        *("tool", "prompt", "resource", "template", "instructions"),
        *("stateless tool", "stateless prompt", "stateless resource", "stateless template", "stateless instructions"),
    ]
    keys = [(Source("a", era), kind) for era in Era for kind in KINDS if kind is not Aspect.LAUNCH]
    assert [column_of(key) for key in keys] == columns
    assert [list_in("a", column) for column in columns] == keys
    assert list_in("a", "launch") == (Source("a", Era.SESSION), Aspect.LAUNCH)
    assert list_in("a", "stateless launch") is None
    compared = [columns_of((Source("a", era), kind)) for era in Era for kind in KINDS]
    assert {column for each in compared for column in each} == {*columns, "launch"}
    assert columns_of(keys[0]) == ("tool", "stateless tool")


@pytest.mark.parametrize(
    ("known", "passes"),
    [
        (None, True),
        (approved(b"1", ago=FIRST_SIGHT_FOR), True),
        (approved(b"1", ago=FIRST_SIGHT_FOR + 1), False),
        (approved(b"1", by="console"), False),
        (approved(b"2", by="console", ago=FIRST_SIGHT_FOR + 1), True),
        (StoredItem(offered=OfferedDefinition("31", b"1", NOW)), False),
        (StoredItem(closed=True), False),
    ],
)
@pytest.mark.parametrize("eras", [tuple(Era), tuple(reversed(Era))])
def test_a_first_sight_depends_on_the_other_source(
    known: StoredItem | None, passes: bool, eras: tuple[Era, Era]
) -> None:
    """A server could otherwise change a definition unseen by taking up another era."""
    key, other = map(tools, eras)
    items = {} if known is None else {"x": known}
    assert (after(key, {"x": b"2"}, {other: items})["x"].approved is not None) == passes


@pytest.mark.parametrize("trust", Trust)
@pytest.mark.parametrize("item", [None, approved(b"1"), approved(b"2", by="console")])
def test_a_definition_in_which_a_secret_was_withheld_is_held_at_every_trust_level(
    trust: Trust, item: StoredItem | None
) -> None:
    raw = f'"{WITHHELD}"'.encode()
    expected = PinStatus.NEW if item is None else PinStatus.CHANGED
    assert status_of(item, offer_of(Kind.TOOL, raw, "2"), trust, lost=False) is expected
    assert status_of(item, offer_of(Kind.PROMPT, raw, "32"), trust, lost=False) is expected
    assert not offer_of(Aspect.INSTRUCTIONS, raw, "2").has_secret
    offers = {"x": offer_of(Kind.TOOL, raw, "3")}
    changed = awaited(items_after(tools(Era.SESSION), offers, {}, trust, NOW, is_closed=False))
    assert changed["x"] is not None
    assert changed["x"].approved is None


def test_nothing_of_an_untrusted_server_is_approved_at_first_sight() -> None:
    assert after(tools(Era.SESSION), {"x": b"2"}, {}, Trust.UNTRUSTED)["x"].approved is None


def test_a_definition_that_is_not_text_is_not_approved() -> None:
    changed = after(tools(Era.SESSION), {"\ud800": b"{}", "x": b'"\xff"', "y": b"{}"}, {})
    assert {name: item.approved is not None for name, item in changed.items()} == {"x": False, "y": True}


def test_definitions_that_wait_together_are_told_apart_again() -> None:
    one, other = b'{"name":"x"}', b'{"name":"x","annotations":{"readOnlyHint":true}}'
    sources = Source("a", Era.SESSION), Source("a", Era.STATELESS)
    assert definitions_in(definitions_by_era(dict(zip(sources, (one, other), strict=True)))) == [one, other]
    for alone in (one, b"{}", b"[1]", b"text", b'{"with a session":{},"name":"x"}'):
        assert definitions_in(alone) == [alone]


# Launches


def launch(**members: str) -> bytes:
    return json.dumps({"declared": "d", "program": "/bin/npx", "sandbox": "strict", **members}).encode()


WAITS = launch(installs="a from registry.test by npm")
FIRST, SECOND = launch(installed="a 1 (sha256:1)"), launch(installed="a 2 (sha256:2)")
LAUNCHES: ListKey = (Source("a", Era.SESSION), Aspect.LAUNCH)


def passes(offered: bytes, stored: StoredItem | None, trust: Trust = Trust.STANDARD) -> bool:
    """Whether a launch may be used that is offered after this one."""
    lists: dict[ListKey, Items] = {} if stored is None else {LAUNCHES: {"": stored}}
    item = after(LAUNCHES, {"": offered}, lists, trust).get("", stored)
    return status_of(item, Offer(offered, offered.hex()), trust, lost=False) is PinStatus.APPROVED


@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
def test_an_installation_waits_for_a_person(trust: Trust) -> None:
    """Whatever came before, and also if the owner has edited the command."""
    before = (None, approved(launch()), approved(FIRST), approved(launch(declared="x")), approved(WAITS, "person"))
    for stored in before[:-1]:
        assert not passes(WAITS, stored, trust)
        assert not passes(launch(declared="y", installs="b from registry.test by npm"), stored, trust)
        assert passes(WAITS, stored, Trust.TRUSTED)
    assert passes(WAITS, before[-1], trust)


@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
def test_what_came_of_an_installation_is_approved_with_it(trust: Trust) -> None:
    assert passes(FIRST, approved(WAITS, "person"), trust)
    held = StoredItem(offered=OfferedDefinition(WAITS.hex(), WAITS, NOW))
    assert not passes(FIRST, held, trust)
    assert not passes(launch(declared="y", installed="a 1 (sha256:1)"), approved(WAITS, "person"), trust)


@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
def test_another_version_or_digest_waits_for_a_person(trust: Trust) -> None:
    """Also if the owner edits the arguments at the same time. Other arguments alone are the owner's decision."""
    stored = approved(FIRST, "person")
    for other in (SECOND, launch(installed="a 1 (sha256:3)"), launch(declared="y", installed="a 2 (sha256:2)")):
        assert not passes(other, stored, trust)
        assert passes(other, stored, Trust.TRUSTED)
    assert passes(launch(declared="y", installed="a 1 (sha256:1)"), stored, trust)
    assert passes(FIRST, stored, trust)
