"""The rules of pins. Their effect over time, in a store, is held in test_pins.py."""

from __future__ import annotations

import pytest

from config import Trust
from host.jsonrpc.withheld import WITHHELD
from host.policy.pin_rules import (
    BY_FIRST_SIGHT,
    FIRST_SIGHT_FOR,
    KINDS,
    LAUNCH,
    SIDES,
    Items,
    Offer,
    PinStatus,
    items_after,
    kind_of,
    offer_of,
    side_of,
    sides_of,
    status_of,
)
from host.slices import run_inline
from host.storage.store import ApprovedDefinition, OfferedDefinition, StoredItem

NOW = 1e9
"""Unix time."""


def after(side: str, offers: dict[str, bytes], kinds: dict[str, Items], trust: Trust = Trust.STANDARD) -> Items:
    """The changed items, none of which is removed."""
    offered = {name: Offer(raw, raw.hex()) for name, raw in offers.items()}
    changed = run_inline(items_after(side, offered, kinds, trust, NOW, is_closed=False))
    return {name: item for name, item in changed.items() if item is not None}


def approved(raw: bytes, by: str = BY_FIRST_SIGHT, ago: float = 0.0) -> StoredItem:
    return StoredItem(approved=ApprovedDefinition(raw.hex(), raw.decode(), NOW - ago, by))


def test_every_kind_but_the_launch_has_two_sides() -> None:
    assert {kind_of(side) for side in SIDES} == set(KINDS)
    assert {side_of(kind, stateless=stateless) for kind in KINDS for stateless in (False, True)} == set(SIDES)
    assert [len(sides_of(kind)) for kind in KINDS] == [1 if kind == LAUNCH else 2 for kind in KINDS]


@pytest.mark.parametrize(
    ("known", "passes"),
    [
        (None, True),
        (approved(b"1", ago=FIRST_SIGHT_FOR), True),
        (approved(b"1", ago=FIRST_SIGHT_FOR + 1), False),
        (approved(b"1", by="console"), False),
        (approved(b"2", by="console", ago=FIRST_SIGHT_FOR + 1), True),
        (StoredItem(offered=OfferedDefinition("31", "1", NOW)), False),
        (StoredItem(closed=True), False),
    ],
)
@pytest.mark.parametrize("stateless", [False, True])
def test_a_first_sight_depends_on_the_other_side(known: StoredItem | None, passes: bool, stateless: bool) -> None:
    """A server could otherwise change a definition unseen by taking up another era."""
    side, other = (side_of("tool", stateless=each) for each in (stateless, not stateless))
    items = {} if known is None else {"x": known}
    assert (after(side, {"x": b"2"}, {other: items})["x"].approved is not None) == passes


@pytest.mark.parametrize("trust", Trust)
@pytest.mark.parametrize("item", [None, approved(b"1"), approved(b"2", by="console")])
def test_a_definition_in_which_a_secret_was_withheld_is_held_at_every_trust_level(
    trust: Trust, item: StoredItem | None
) -> None:
    raw = f'"{WITHHELD}"'.encode()
    expected = PinStatus.NEW if item is None else PinStatus.CHANGED
    assert status_of(item, offer_of("tool", raw, "2"), trust, lost=False) is expected
    assert status_of(item, offer_of("stateless prompt", raw, "32"), trust, lost=False) is expected
    assert not offer_of("stateless instructions", raw, "2").has_secret
    changed = run_inline(items_after("tool", {"x": offer_of("tool", raw, "3")}, {}, trust, NOW, is_closed=False))
    assert changed["x"] is not None
    assert changed["x"].approved is None


def test_nothing_of_an_untrusted_server_is_approved_at_first_sight() -> None:
    assert after("tool", {"x": b"2"}, {}, Trust.UNTRUSTED)["x"].approved is None


def test_a_definition_that_is_not_text_is_not_approved() -> None:
    changed = after("tool", {"\ud800": b"{}", "x": b'"\xff"', "y": b"{}"}, {})
    assert {name: item.approved is not None for name, item in changed.items()} == {"x": False, "y": True}
