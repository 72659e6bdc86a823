"""What was approved stays usable, what was not never is, whatever a server does and however often a host is started."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from trio.testing import MockClock

from config import Trust
from host.policy import pin_rules as module
from host.policy import pins as pins_module
from host.policy.fingerprint import Launch, fingerprint
from host.policy.pin_rules import Pinnable, PinnedKind, PinStatus, columns_of
from host.policy.pins import HeldItem, Pins, StaleDecision
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Aspect, AspectRef, EntryRef, Source, launch_ref
from host.storage.directory import open_state
from host.storage.sql import Store
from host.storage.sqlite import SqliteStore, open_store
from host.storage.store import StateError
from host.subject import Item
from tests.kit.awaited import Paused, awaited
from tests.kit.cost import ATTEMPTS, assert_costs_less, cost
from tests.kit.examples import examples
from tests.kit.gates import SOURCE, locked, store_opener

APPROVED, NEW, CHANGED, UNKNOWN = PinStatus.APPROVED, PinStatus.NEW, PinStatus.CHANGED, PinStatus.UNKNOWN
TRUSTED, STANDARD, UNTRUSTED = Trust.TRUSTED, Trust.STANDARD, Trust.UNTRUSTED

TOOL = {
    "name": "create_issue",
    "title": "Create an issue",
    "description": "Creates an issue.\nNever do more than that: see https://example.com/rules.",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "owner": {"type": "string", "description": "Whose repository", "minLength": 1, "maxLength": 39},
            "labels": {"type": "array", "items": {"type": "string", "enum": ["bug", "idea"]}, "uniqueItems": True},
            "weight": {"type": "number", "minimum": 0.5, "maximum": 10, "default": 1},
            "draft": {"type": ["boolean", "null"], "default": False, "x-mcp-header": "Draft"},
        },
        "required": ["owner", "labels"],
        "additionalProperties": False,
    },
    "outputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    "annotations": {
        "title": "Create",
        "readOnlyHint": False,
        "destructiveHint": False,
        "idempotentHint": False,
        "openWorldHint": True,
    },
    "icons": [
        {"src": "https://example.com/a.png", "mimeType": "image/png", "sizes": ["16x16", "48x48"], "theme": "light"},
        {"src": "data:image/svg+xml;base64,AA==", "mimeType": "image/svg+xml", "sizes": ["any"]},
    ],
    "execution": {"taskSupport": "optional"},
    "_meta": {"example.com/build": {"number": 17, "flags": [1, True, None, "1", 0]}, "ui": {"resourceUri": "ui://a"}},
    "unknown": {"tomorrow": [{"nested": {"deep": "er"}}]},
}
PROMPT = {
    "name": "review",
    "title": "Review",
    "description": "Reviews code",
    "arguments": [
        {"name": "code", "title": "Code", "description": "What to review", "required": True},
        {"name": "style", "description": "How", "required": False},
    ],
    "icons": [{"src": "https://example.com/r.png", "sizes": ["any"]}],
    "_meta": {"example.com/v": [1, 2, {"a": None}]},
}
RESOURCE = {
    "uri": "repo://acme/readme",
    "name": "readme",
    "title": "Readme",
    "description": "What it is",
    "mimeType": "text/markdown",
    "size": 1024,
    "annotations": {"audience": ["user", "assistant"], "priority": 0.8, "lastModified": "2025-01-12T15:00:58Z"},
    "icons": [{"src": "https://example.com/f.png", "mimeType": "image/png"}],
    "_meta": {"example.com/etag": "x"},
}
TEMPLATE = {
    "uriTemplate": "repo://acme/{path}",
    "name": "files",
    "title": "Files",
    "description": "Any file",
    "mimeType": "text/plain",
    "annotations": {"audience": ["assistant"], "priority": 1},
    "_meta": {"example.com/root": {"depth": 3}},
}
SPOKEN = "Use create_issue for issues. Ask before you close one."
STARTED = {"declared": "sha256:" + "0" * 64, "program": "/usr/bin/server"}
DEFINITIONS: dict[PinnedKind, object] = {
    Kind.TOOL: TOOL,
    Kind.PROMPT: PROMPT,
    Kind.RESOURCE: RESOURCE,
    Kind.TEMPLATE: TEMPLATE,
    Aspect.INSTRUCTIONS: SPOKEN,
    Aspect.LAUNCH: STARTED,
}
NAMES: dict[PinnedKind, str] = {
    Kind.TOOL: "create_issue",
    Kind.PROMPT: "review",
    Kind.RESOURCE: "repo://acme/readme",
    Kind.TEMPLATE: "repo://acme/{path}",
}
T = TypeVar("T")
A, B = Source("a", Era.SESSION), Source("b", Era.SESSION)

LOOKALIKES = str.maketrans({"a": "а", "e": "е", "o": "ο", "i": "і", "c": "с", "p": "р", "A": "Α"})  # noqa: RUF100


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def changes(value: object) -> Iterator[object]:
    """Everything that comes of a value if one thing in it is changed."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {other: each for other, each in value.items() if other != name}
            yield {(name + "\u200b" if other == name else other): each for other, each in value.items()}
            for changed in changes(inner):
                yield {**value, name: changed}
        yield {**value, "": None}
        yield {**value, "added": "x"}
        yield list(value)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield value[:at] + value[at + 1 :]
            for changed in changes(inner):
                yield [*value[:at], changed, *value[at + 1 :]]
        if value != value[::-1]:
            yield value[::-1]
        yield [*value, None]
        yield [value]
    elif isinstance(value, bool):
        yield from (not value, int(value), str(value).lower(), None)
    elif isinstance(value, int | float):
        yield from (value + 1, -value - 1, str(value), bool(value), [value], None, value + 2**60)
    elif isinstance(value, str):
        yield from (value + " ", value + "\u200b", value + "\u202e", value + "\U000e0041", value[:-1], value.swapcase())
        yield from (f"\ufeff{value}", None, [value], {"text": value}, len(value))
        if value.translate(LOOKALIKES) != value:
            yield value.translate(LOOKALIKES)
    else:
        yield from ("", False, 0, "null", [], {})


def single_changes(kind: PinnedKind) -> list[object]:
    value = DEFINITIONS[kind]
    if kind is Aspect.LAUNCH:  # the rest of it is the owner's
        return [{**STARTED, "program": each} for each in changes(STARTED["program"]) if isinstance(each, str)]
    seen = {dumped(value).decode()}
    found: list[object] = []
    for each in changes(value):
        text = json.dumps(each)
        if text not in seen:
            seen.add(text)
            found.append(each)
    return found


CHANGES = {kind: single_changes(kind) for kind in DEFINITIONS}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.05)
    return tmp_path / "state"


Opener = Callable[..., Pins]


@pytest.fixture
def open_pins(state: Path) -> Iterator[Opener]:
    """The pins as a host that was just started has them."""
    with store_opener(state) as opened:
        yield lambda trust=STANDARD, **more: Pins(opened(), {"a": trust, **more})


@contextmanager
def while_storing(
    pins: Pins, before: Callable[[], Coroutine[Any, Any, object]], after: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """For the block, what others do just before and after the store of this process is changed."""
    store = pins._db
    assert isinstance(store, Store)
    run, began = store._run_in_thread, list[bool]()

    async def run_between(work: Callable[[], T], /) -> T:
        if began:
            return await run(work)
        began.append(True)
        await before()
        found = await run(work)
        after()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_run_in_thread", run_between)
        yield


def ref(source: Source, kind: PinnedKind, name: str = "") -> Pinnable:
    return AspectRef(source, kind) if isinstance(kind, Aspect) else EntryRef(source, kind, name)


def offer(pins: Pins, kind: PinnedKind, value: object, source: Source = A) -> str:
    """Offer one definition of a kind; its fingerprint."""
    if kind is Aspect.LAUNCH:
        assert isinstance(value, dict)
        awaited(pins.observe_launch(source.server, Launch(value["declared"], value["program"])))
    else:
        awaited(pins.observe(source, kind, {NAMES.get(kind, ""): dumped(value)}))
    found = pins.fingerprint(ref(source, kind, NAMES.get(kind, "")))
    assert found is not None
    return found


def standing(pins: Pins, kind: PinnedKind) -> PinStatus:
    return pins.status(ref(A, kind, NAMES.get(kind, "")))


def tools(**offered: object) -> dict[str, bytes]:
    return {name: dumped({"name": name, "description": value}) for name, value in offered.items()}


def stood(pins: Pins, *names: str) -> list[PinStatus]:
    return [pins.status(ref(A, Kind.TOOL, name)) for name in names]


# First sight, by trust


def test_what_a_standard_server_offers_at_first_sight_is_pinned_also_later(open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    assert stood(pins, "x") == [UNKNOWN]
    found = awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
    assert [(each.item.name, each.status, each.first, each.was) for each in found] == [
        ("x", APPROVED, True, None),
        ("y", APPROVED, True, None),
    ]
    [later] = awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1, z=1)))
    assert (later.item.name, later.status, later.first) == ("z", APPROVED, True)
    assert later.fingerprint == fingerprint(tools(z=1)["z"]) == pins.fingerprint(ref(A, Kind.TOOL, "z"))
    assert {each.by for each in pins.pinned()} == {"first sight"}
    assert pins.held() == []


def test_a_definition_that_is_offered_as_it_is_stored_is_in_memory_once(open_pins: Opener) -> None:
    awaited(open_pins(STANDARD).observe(A, Kind.TOOL, tools(x=1)))
    pins, x = open_pins(STANDARD), ref(A, Kind.TOOL, "x")
    for _ in range(2):
        assert awaited(pins.prepare(A, Kind.TOOL, tools(x=1))).offered["x"] is pins.approved_definition(x)
        awaited(pins.observe(A, Kind.TOOL, tools(x=1)))


def test_what_an_untrusted_server_offers_waits_until_a_person_approves_it(open_pins: Opener) -> None:
    pins = open_pins(UNTRUSTED)
    [change] = awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    assert (change.status, change.first) == (NEW, True)
    assert stood(pins, "x") == [NEW]
    [held] = pins.held()
    assert (held.item.server, held.item.kind, held.item.name, held.status, held.rejected) == (
        "a",
        "tool",
        "x",
        NEW,
        False,
    )
    assert (held.offered, held.approved) == (tools(x=1)["x"], None)
    awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    assert stood(pins, "x") == stood(open_pins(UNTRUSTED), "x") == [APPROVED]
    assert pins.held() == []
    [pinned] = pins.pinned()
    assert (pinned.item.name, pinned.definition, pinned.by) == ("x", tools(x=1)["x"], "console")


def test_what_a_trusted_server_changes_is_approved_and_told(open_pins: Opener) -> None:
    pins = open_pins(TRUSTED)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    [change] = awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    assert (change.status, change.first, change.was) == (APPROVED, False, fingerprint(tools(x=1)["x"]))
    assert stood(pins, "x") == [APPROVED]
    lowered = open_pins(STANDARD)
    assert awaited(lowered.observe(A, Kind.TOOL, tools(x=2))) == []
    assert stood(lowered, "x") == [APPROVED]
    awaited(lowered.observe(A, Kind.TOOL, tools(x=1)))
    assert stood(lowered, "x") == [CHANGED]


def test_a_server_that_nobody_configured_is_untrusted(open_pins: Opener) -> None:
    pins = open_pins()
    awaited(pins.observe(B, Kind.TOOL, tools(x=1)))
    assert pins.status(ref(B, Kind.TOOL, "x")) is NEW


def test_kinds_and_servers_have_names_of_their_own(open_pins: Opener) -> None:
    pins = open_pins(STANDARD, b=STANDARD)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    awaited(pins.observe(A, Kind.PROMPT, tools(x=2)))
    awaited(pins.observe(B, Kind.TOOL, tools(x=3)))
    assert pins.status(ref(A, Kind.TOOL, "x")) is pins.status(ref(A, Kind.PROMPT, "x")) is APPROVED
    assert pins.status(ref(B, Kind.TOOL, "x")) is APPROVED
    awaited(pins.observe(A, Kind.PROMPT, tools(x=1)))
    assert [pins.status(ref(*each, "x")) for each in ((A, Kind.TOOL), (A, Kind.PROMPT), (B, Kind.TOOL))] == [
        APPROVED,
        CHANGED,
        APPROVED,
    ]


# Every change of every kind


def test_there_are_enough_single_changes_and_each_is_one() -> None:
    assert sum(len(each) for each in CHANGES.values()) >= 300
    assert {kind: len(each) >= 5 for kind, each in CHANGES.items()} == dict.fromkeys(DEFINITIONS, True)
    for kind, found in CHANGES.items():
        prints = {fingerprint(dumped(each)) for each in found}
        assert len(prints) == len(found)
        assert fingerprint(dumped(DEFINITIONS[kind])) not in prints


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEFINITIONS)
@pytest.mark.parametrize("trust", [STANDARD, UNTRUSTED])
def test_every_single_change_is_held_back_and_only_the_exact_return_is_not(
    kind: PinnedKind, trust: Trust, open_pins: Opener
) -> None:
    original = DEFINITIONS[kind]
    pins = open_pins(trust)
    first = offer(pins, kind, original)
    if standing(pins, kind) is not APPROVED:
        awaited(pins.approve(Item("a", kind, NAMES.get(kind, "")), first, "console"))
    for changed in CHANGES[kind]:
        assert standing(pins, kind) is APPROVED
        offer(pins, kind, changed)
        assert standing(pins, kind) is CHANGED, changed
        [held] = pins.held()
        assert json.loads(held.offered) == changed
        assert held.approved is not None
        assert json.loads(held.approved) == original
        offer(pins, kind, original)
    assert standing(pins, kind) is APPROVED
    assert pins.held() == []


@pytest.mark.slow
@pytest.mark.parametrize("trust", [STANDARD, UNTRUSTED])
def test_every_single_change_stays_held_back_over_a_restart(trust: Trust, open_pins: Opener) -> None:
    """All of them at once: each is an item of its own."""
    kinds = [kind for kind in DEFINITIONS if kind in NAMES]
    pins = open_pins(trust)
    for kind in kinds:
        count = len(CHANGES[kind])
        awaited(pins.observe(A, kind, {str(at): dumped(DEFINITIONS[kind]) for at in range(count)}))
    awaited(pins.approve_all("a", [(held.item, held.fingerprint) for held in pins.held()], "terminal"))
    for kind in kinds:
        told = awaited(pins.observe(A, kind, {str(at): dumped(each) for at, each in enumerate(CHANGES[kind])}))
        assert {each.status for each in told} == {CHANGED}
        assert len(told) == len(CHANGES[kind])
    again = open_pins(trust)
    total = sum(len(CHANGES[kind]) for kind in kinds)
    assert total >= 300
    assert len(again.held()) == total, "also before anything is offered"
    for kind in kinds:
        offered = {str(at): dumped(each) for at, each in enumerate(CHANGES[kind])}
        assert awaited(again.observe(A, kind, offered)) == [], "nothing that was not told before"
        assert {again.status(ref(A, kind, name)) for name in offered} == {CHANGED}
        assert all(again.fingerprint(ref(A, kind, name)) == fingerprint(raw) for name, raw in offered.items())


# No false alarms


def shuffled(value: object, order: random.Random) -> object:
    if isinstance(value, dict):
        members = [(name, shuffled(each, order)) for name, each in value.items()]
        order.shuffle(members)
        return dict(members)
    return [shuffled(each, order) for each in value] if isinstance(value, list) else value


def spelled(value: object, order: random.Random) -> bytes:
    return json.dumps(
        shuffled(value, order),
        indent=order.choice([None, 0, 1, 4]),
        ensure_ascii=order.random() < 0.5,
        separators=order.choice([(",", ":"), (", ", ": "), (" , ", "\t:\r\n")]),
    ).encode()


@pytest.mark.slow
@pytest.mark.parametrize("trust", [STANDARD, UNTRUSTED])
def test_a_thousand_reconnects_raise_no_false_alarm(trust: Trust, state: Path) -> None:
    order = random.Random(4)
    offered: dict[PinnedKind, dict[str, object]] = {
        kind: {name if at == 0 else f"{name}{at}": {**value, "at": at} for at in range(3)}
        for kind, name in NAMES.items()
        if isinstance(value := DEFINITIONS[kind], dict)
    }
    everything: dict[PinnedKind, dict[str, object]] = {**offered, Aspect.INSTRUCTIONS: {"": SPOKEN}}

    def connect(pins: Pins, names: Callable[[PinnedKind], list[str]]) -> int:
        awaited(pins.observe_launch("a", Launch(STARTED["declared"], order.choice([STARTED["program"], None]))))
        return sum(
            len(awaited(pins.observe(A, kind, {name: spelled(items[name], order) for name in names(kind)})))
            for kind, items in everything.items()
        )

    host = ExitStack()

    def start() -> tuple[Pins, SqliteStore]:
        host.close()
        store = host.enter_context(store_opener(state))()
        return Pins(store, {"a": trust}), store

    pins, store = start()
    awaited(pins.observe_launch("a", Launch(**STARTED)))
    connect(pins, lambda kind: list(everything[kind]))
    for held in pins.held():
        awaited(pins.approve(held.item, held.fingerprint, "console"))
    written = store.poll()

    def some(kind: PinnedKind) -> list[str]:
        names = list(everything[kind])
        return order.sample(names, order.choice([0, 1, len(names), len(names)]))

    for _ in range(1000):
        if order.random() < 0.2:
            pins, store = start()
        assert connect(pins, some) == 0
        assert pins.held() == []
        for kind, items in everything.items():
            assert {pins.status(ref(A, kind, name)) for name in items} == {APPROVED}
        assert pins.status(launch_ref("a")) is APPROVED
    assert store.poll() == written, "nothing was new, so nothing was written"
    host.close()


# What releases and what does not


@pytest.mark.parametrize("trust", [STANDARD, UNTRUSTED])
def test_neither_vanishing_nor_a_restart_nor_another_change_releases(trust: Trust, open_pins: Opener) -> None:
    pins = open_pins(trust)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"]), "console"))
    awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    for _ in range(3):
        awaited(pins.observe(A, Kind.TOOL, {}))
        assert stood(pins, "x") == [CHANGED], "what is not there stands as it did"
        assert pins.fingerprint(ref(A, Kind.TOOL, "x")) is None
        pins = open_pins(trust)
        assert stood(pins, "x") == [CHANGED]
        awaited(pins.observe(A, Kind.TOOL, tools(y=1)))
        awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
        assert stood(pins, "x") == [CHANGED]
        awaited(pins.observe(A, Kind.TOOL, tools(x=3)))
        assert stood(pins, "x") == [CHANGED]
        pins.set_trust_levels({"a": trust})
        awaited(pins.reread())
        assert stood(pins, "x") == [CHANGED]
    [change] = awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    assert (change.status, change.first, change.was) == (APPROVED, False, fingerprint(tools(x=3)["x"]))


def test_only_the_return_to_what_was_approved_last_releases(open_pins: Opener) -> None:
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=2)["x"]), "console"))
    assert stood(pins, "x") == [APPROVED]
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    assert stood(pins, "x") == stood(open_pins(), "x") == [CHANGED]


def test_what_changed_while_it_was_looked_at_is_not_approved(open_pins: Opener) -> None:
    pins = open_pins(UNTRUSTED)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    shown = pins.held()[0].fingerprint
    awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    for decide in (partial(pins.approve, by="console"), pins.reject):
        with pytest.raises(StaleDecision, match="has changed since it was shown"):
            awaited(decide(Item("a", "tool", "x"), shown))
        with pytest.raises(StaleDecision, match="is not offered"):
            awaited(decide(Item("a", "tool", "other"), shown))
    with pytest.raises(StaleDecision, match="is not approved"):
        awaited(pins.revoke(Item("a", "tool", "x")))
    assert stood(pins, "x") == [NEW]


def test_many_are_approved_at_once_or_none(open_pins: Opener) -> None:
    pins = open_pins(UNTRUSTED)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
    awaited(pins.observe(A, Kind.PROMPT, tools(x=1)))
    shown = [(held.item, held.fingerprint) for held in pins.held()]
    awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=2)))
    with pytest.raises(StaleDecision, match="'y' has changed"):
        awaited(pins.approve_all("a", shown, "console"))
    assert stood(pins, "x", "y") == [NEW, NEW]
    awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
    awaited(pins.approve_all("a", shown, "console"))
    assert stood(pins, "x", "y") == [APPROVED, APPROVED]
    assert pins.status(ref(A, Kind.PROMPT, "x")) is APPROVED


def test_what_is_refused_stays_held_back_and_marked(open_pins: Opener) -> None:
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    with pytest.raises(StaleDecision, match="is approved as it is"):
        awaited(pins.reject(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"])))
    awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    awaited(pins.reject(Item("a", "tool", "x"), fingerprint(tools(x=2)["x"])))
    for each in (pins, open_pins()):
        assert [held.rejected for held in each.held()] == [True]
        assert stood(each, "x") == [CHANGED]
    awaited(pins.observe(A, Kind.TOOL, tools(x=3)))
    assert [held.rejected for held in pins.held()] == [False]
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    assert stood(pins, "x") == [APPROVED]
    awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    assert [held.rejected for held in pins.held()] == [True]
    awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=2)["x"]), "console"))
    assert stood(pins, "x") == [APPROVED]


def test_an_approval_that_was_taken_back_does_not_come_again_by_itself(open_pins: Opener) -> None:
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    awaited(pins.revoke(Item("a", "tool", "x")))
    for again in (pins, open_pins()):
        pins = again
        for value in (1, 2, 1):
            awaited(pins.observe(A, Kind.TOOL, {}))
            awaited(pins.observe(A, Kind.TOOL, tools(x=value)))
            assert stood(pins, "x") == [NEW]
    assert [held.offered for held in pins.held()] == [tools(x=1)["x"]]
    awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"]), "console"))
    assert stood(pins, "x") == [APPROVED]


# Trust that changes


def test_more_trust_approves_what_is_new_with_the_next_look_and_nothing_else(open_pins: Opener) -> None:
    pins = open_pins(UNTRUSTED)
    offered = tools(approved=1, changed=1, refused=1, revoked=1, waiting=1)
    awaited(pins.observe(A, Kind.TOOL, offered))
    for name in ("approved", "changed", "revoked"):
        awaited(pins.approve(Item("a", "tool", name), fingerprint(offered[name]), "console"))
    offered.update(tools(changed=2))
    awaited(pins.observe(A, Kind.TOOL, offered))
    awaited(pins.reject(Item("a", "tool", "refused"), fingerprint(offered["refused"])))
    awaited(pins.revoke(Item("a", "tool", "revoked")))
    before = [APPROVED, CHANGED, NEW, NEW, NEW]
    assert stood(pins, *offered) == before
    pins.set_trust_levels({"a": STANDARD})
    assert stood(pins, *offered) == before
    [change] = awaited(pins.observe(A, Kind.TOOL, offered))
    assert (change.item.name, change.status, change.first) == ("waiting", APPROVED, False)
    assert stood(pins, *offered) == [APPROVED, CHANGED, NEW, NEW, APPROVED]


def test_less_trust_leaves_what_a_person_approved_and_nothing_else(open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    awaited(pins.observe(A, Kind.TOOL, tools(w=1, x=1)))
    awaited(pins.observe(A, Kind.TOOL, tools(w=1, x=2)))
    awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=2)["x"]), "console"))
    for trusts in ({"a": UNTRUSTED}, {}):
        pins.set_trust_levels(trusts)
        awaited(pins.observe(A, Kind.TOOL, tools(w=1, x=2, y=1)))
        assert stood(pins, "w", "x", "y") == [NEW, APPROVED, NEW]
    assert {held.item.name for held in pins.held()} == {"w", "y"}
    awaited(pins.approve(Item("a", "tool", "w"), fingerprint(tools(w=1)["w"]), "console"))
    assert stood(pins, "w") == [APPROVED]


def test_what_a_person_refused_counts_again_once_a_server_is_not_trusted_any_more(open_pins: Opener) -> None:
    pins = open_pins(UNTRUSTED)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    awaited(pins.reject(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"])))
    pins.set_trust_levels({"a": TRUSTED})
    assert stood(pins, "x") == [APPROVED]
    awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    assert stood(pins, "x") == [APPROVED]
    pins.set_trust_levels({"a": STANDARD})
    awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    assert stood(pins, "x") == [NEW]


# Launch


@pytest.mark.parametrize("trust", [STANDARD, UNTRUSTED])
def test_the_same_text_that_comes_to_another_program_is_held_back(trust: Trust, open_pins: Opener) -> None:
    pins = open_pins(trust)
    assert pins.launch("a") == ""
    [first] = awaited(pins.observe_launch("a", Launch("d", "/one")))
    assert (first.item.kind, first.item.name, first.status, first.first) == (Aspect.LAUNCH, "", APPROVED, True)
    one = pins.launch("a")
    assert one == first.fingerprint
    [change] = awaited(pins.observe_launch("a", Launch("d", "/two")))
    assert (change.status, change.was) == (CHANGED, one)
    assert pins.launch("a") == change.fingerprint
    [held] = pins.held()
    assert json.loads(held.offered) == {"declared": "d", "program": "/two"}
    again = open_pins(trust)
    assert awaited(again.observe_launch("a", Launch("d", "/two"))) == []
    assert again.status(launch_ref("a")) is CHANGED
    awaited(again.approve(Item("a", Aspect.LAUNCH, ""), held.fingerprint, "terminal"))
    assert awaited(pins.reread()) == {"a"}
    assert pins.status(launch_ref("a")) is APPROVED
    awaited(pins.observe_launch("a", Launch("d", "/one")))
    assert pins.status(launch_ref("a")) is CHANGED


def test_what_a_confined_program_starts_with_is_shown_and_pinned(open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    awaited(pins.observe_launch("a", Launch("d", "/one", "reads /a")))
    assert awaited(pins.observe_launch("a", Launch("d", "/one", "reads /a"))) == []
    [change] = awaited(pins.observe_launch("a", Launch("d", "/one", "reads /b")))
    assert change.status is CHANGED
    [held] = pins.held()
    assert json.loads(held.offered) == {"declared": "d", "program": "/one", "sandbox": "reads /b"}


def test_a_trusted_server_may_be_another_program(open_pins: Opener) -> None:
    pins = open_pins(TRUSTED)
    awaited(pins.observe_launch("a", Launch("d", "/one")))
    [change] = awaited(pins.observe_launch("a", Launch("d", "/two")))
    assert change.status is APPROVED


@pytest.mark.parametrize("trust", list(Trust))
def test_what_the_owner_edits_is_recorded_and_not_held_back(trust: Trust, open_pins: Opener) -> None:
    pins = open_pins(trust)
    awaited(pins.observe_launch("a", Launch("d", "/one")))
    [change] = awaited(pins.observe_launch("a", Launch("e", "/two")))
    assert (change.status, change.first) == (APPROVED, False)
    [pinned] = pins.pinned()
    assert (pinned.item.kind, pinned.fingerprint, pinned.by) == (Aspect.LAUNCH, change.fingerprint, "configuration")
    awaited(pins.observe_launch("a", Launch("e", "/three")))
    [change] = awaited(pins.observe_launch("a", Launch("f", None)))
    assert change.status is APPROVED


@pytest.mark.parametrize("trust", list(Trust))
def test_a_command_that_comes_to_nothing_changes_nothing(trust: Trust, open_pins: Opener) -> None:
    pins = open_pins(trust)
    awaited(pins.observe_launch("a", Launch("d", None)))
    [found] = awaited(pins.observe_launch("a", Launch("d", "/one")))
    assert found.status is APPROVED, "the first program that it comes to"
    assert awaited(pins.observe_launch("a", Launch("d", None))) == []
    assert pins.launch("a") == found.fingerprint
    again = open_pins(trust)
    assert awaited(again.observe_launch("a", Launch("d", None))) == []
    awaited(again.observe_launch("a", Launch("d", "/two")))
    assert again.status(launch_ref("a")) is (APPROVED if trust is TRUSTED else CHANGED)


def test_a_program_whose_name_is_no_text_has_its_pin_too(open_pins: Opener) -> None:
    pins = open_pins()
    awaited(pins.observe_launch("a", Launch("d", "/\udcff")))
    assert awaited(open_pins().observe_launch("a", Launch("d", "/\udcff"))) == []
    awaited(pins.observe_launch("a", Launch("d", "/\udcfe")))
    assert pins.status(launch_ref("a")) is CHANGED


# Without a host, and several hosts


def test_what_is_held_back_can_be_shown_and_approved_without_a_host(open_pins: Opener) -> None:
    host = open_pins(UNTRUSTED)
    awaited(host.observe(A, Kind.TOOL, tools(x=1, y=1)))
    command = open_pins(UNTRUSTED)
    held = {each.item.name: each for each in command.held()}
    assert {name: each.offered for name, each in held.items()} == tools(x=1, y=1)
    awaited(command.approve(Item("a", "tool", "x"), held["x"].fingerprint, "terminal"))
    awaited(command.reject(Item("a", "tool", "y"), held["y"].fingerprint))
    later = open_pins(UNTRUSTED)
    assert awaited(later.observe(A, Kind.TOOL, tools(x=1, y=1))) == []
    assert stood(later, "x", "y") == [APPROVED, NEW]
    awaited(command.revoke(Item("a", "tool", "x")))
    assert stood(command, "x") == [NEW]


def test_a_running_host_sees_what_another_process_decided(open_pins: Opener) -> None:
    host, command = open_pins(UNTRUSTED, b=UNTRUSTED), open_pins(UNTRUSTED, b=UNTRUSTED)
    awaited(host.observe(A, Kind.TOOL, tools(x=1)))
    awaited(host.observe(B, Kind.TOOL, tools(x=1)))
    assert awaited(host.reread()) == set()
    assert awaited(command.reread()) == {"a", "b"}
    awaited(command.approve(Item("a", "tool", "x"), command.held()[0].fingerprint, "terminal"))
    awaited(host.observe(B, Kind.TOOL, tools(x=2)))
    assert awaited(host.reread()) == {"a"}, "also if something else read the file first"
    assert awaited(host.reread()) == set()
    assert stood(host, "x") == [APPROVED]


async def test_what_another_process_decided_is_seen_also_if_the_task_that_read_it_is_cancelled(
    open_pins: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, command = open_pins(UNTRUSTED), open_pins(UNTRUSTED)
    await host.observe(A, Kind.TOOL, tools(x=1))
    await command.reread()
    await command.approve(Item("a", "tool", "x"), command.held()[0].fingerprint, "terminal")
    scope = trio.CancelScope()

    async def pause() -> None:
        if stood(host, "x") == [APPROVED]:
            scope.cancel()
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(pins_module, "pause", pause)
    with scope:
        await host.prepare(A, Kind.TOOL, tools(x=2))
    assert scope.cancelled_caught
    assert await host.reread() == {"a"}


def test_an_approval_is_for_what_was_shown_also_if_the_host_offers_something_else_by_then(open_pins: Opener) -> None:
    host, command = open_pins(UNTRUSTED), open_pins(UNTRUSTED)
    awaited(host.observe(A, Kind.TOOL, tools(x=1)))
    awaited(command.reread())
    shown = command.held()[0].fingerprint
    awaited(host.observe(A, Kind.TOOL, tools(x=2)))
    with pytest.raises(StaleDecision):
        awaited(command.approve(Item("a", "tool", "x"), shown, "terminal"))
    assert awaited(host.reread()) == set()
    assert stood(host, "x") == [NEW]


def test_two_hosts_that_are_offered_different_things_each_hold_back_their_own(open_pins: Opener) -> None:
    one, two = open_pins(), open_pins()
    awaited(one.observe(A, Kind.TOOL, tools(x=1)))
    awaited(two.observe(A, Kind.TOOL, tools(x=2)))
    assert (stood(one, "x"), stood(two, "x")) == ([APPROVED], [CHANGED])
    awaited(two.approve(Item("a", "tool", "x"), fingerprint(tools(x=2)["x"]), "console"))
    assert awaited(one.reread()) == {"a"}
    assert (stood(one, "x"), stood(two, "x")) == ([CHANGED], [APPROVED])
    awaited(one.approve(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"]), "console"))
    awaited(two.reread())
    assert (stood(one, "x"), stood(two, "x")) == ([APPROVED], [CHANGED])


HOST = """
import json, sys
from pathlib import Path
from config import Trust
from host.policy.pin_rules import PinStatus
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.protocol.versions import SESSION
from host.source import Source
from host.subject import Item
from tests.kit.awaited import awaited
from tests.kit.gates import store_opener
own, count = sys.argv[2], int(sys.argv[3])
with store_opener(Path(sys.argv[1])) as opened:
    pins = Pins(opened(), {own: Trust.UNTRUSTED})
    offered = {}
    for at in range(count):
        offered[f"t{at}"] = json.dumps({"name": f"t{at}", "of": own}).encode()
        awaited(pins.observe(Source(own, SESSION), Kind.TOOL, offered))
        for held in pins.held():
            if held.item.server == own and at % 2 == 0:
                awaited(pins.approve(Item(own, "tool", held.item.name), held.fingerprint, own))
        assert pins.problem is None, pins.problem
"""


@pytest.mark.slow
def test_processes_that_decide_at_once_lose_nothing_of_each_other(tmp_path: Path, open_pins: Opener) -> None:
    names, each = ("b", "c", "d"), 25
    open_pins()
    hosts = [subprocess.Popen([sys.executable, "-c", HOST, tmp_path / "state", name, str(each)]) for name in names]
    assert [host.wait(50) for host in hosts] == [0] * len(names)
    pins = open_pins()
    assert pins.problem is None
    assert {(pin.item.server, pin.item.name, pin.by) for pin in pins.pinned()} == {
        (name, f"t{at}", name) for name in names for at in range(each)
    }


# When the store cannot be used


@pytest.mark.sqlite
@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_store_that_vanishes_under_a_host_leaves_nothing_approved(how: str, state: Path, open_pins: Opener) -> None:
    pins = open_pins(STANDARD, b=TRUSTED)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
    awaited(pins.observe(B, Kind.TOOL, tools(x=1)))
    vanish(state, how)
    assert awaited(pins.reread()) == {"a", "b"}
    assert awaited(pins.reread()) == set()
    assert "was removed or replaced" in str(pins.problem)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1, z=1)))
    assert stood(pins, "x", "y", "z") == [NEW, NEW, NEW]
    assert pins.status(ref(B, Kind.TOOL, "x")) is NEW
    assert [each.item.name for each in pins.held() if each.item.server == "a"] == ["x", "y", "z"]
    with pytest.raises(StateError, match="start it again"):
        awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"]), "console"))
    assert stood(pins, "x") == [NEW]


@pytest.mark.sqlite
def test_a_store_that_was_deleted_while_no_host_ran_approves_nothing(state: Path) -> None:
    """Nobody knows any more what was approved, so a person looks at all of it again."""
    with store_opener(state) as opened:
        awaited(Pins(opened(), {"a": STANDARD, "b": TRUSTED}).observe(A, Kind.TOOL, tools(x=1, y=1)))
    vanish(state, "removed")
    with store_opener(state) as opened:
        Pins(opened(), {"a": STANDARD})
        lost: list[str] = []
        pins = Pins(opened(), {"a": STANDARD, "b": TRUSTED}, on_lost=lost.append)
        for _ in range(2):
            awaited(pins.observe(A, Kind.TOOL, tools(x=2, y=1)))
            awaited(pins.observe(B, Kind.TOOL, tools(x=1)))
            assert lost == [pins.problem], "it is told once"
            assert stood(pins, "x", "y") == [NEW, NEW]
            assert pins.status(ref(B, Kind.TOOL, "x")) is NEW
            assert "is gone; nothing is approved" in str(pins.problem)
        awaited(pins.observe_launch("a", Launch("d", "/one")))
        assert pins.status(launch_ref("a")) is NEW
        awaited(pins.approve(Item("a", "tool", "y"), fingerprint(tools(y=1)["y"]), "console"))
        assert pins.problem is None
        assert stood(pins, "x", "y") == [NEW, APPROVED]
        assert pins.status(launch_ref("a")) is NEW
        assert pins.status(ref(B, Kind.TOOL, "x")) is APPROVED, "trust needs no store"
        for again in (pins, Pins(opened(), {"a": STANDARD, "b": TRUSTED})):
            awaited(again.observe(A, Kind.TOOL, tools(x=2, y=1, later=1)))
            assert stood(again, "x", "y", "later") == [NEW, APPROVED, NEW], "what was known may come back changed"


@pytest.mark.sqlite
def test_a_first_decision_after_a_loss_may_be_a_rejection(state: Path, open_pins: Opener) -> None:
    awaited(open_pins().observe(A, Kind.TOOL, tools(x=1)))
    vanish(state, "removed")
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    awaited(pins.reject(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"])))
    assert pins.problem is None
    assert [(held.item.name, held.rejected) for held in pins.held()] == [("x", True)]


def vanish(state: Path, how: str) -> None:
    path = state / "colonnade.db"
    if how == "removed":
        path.unlink()
    else:
        other = path.with_name("other.db")
        other.write_bytes(b"")
        other.replace(path)


@pytest.mark.sqlite
def test_what_cannot_be_stored_is_not_approved_by_itself(state: Path, open_pins: Opener) -> None:
    pins = open_pins(STANDARD, b=TRUSTED)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    with locked(state):
        awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
        awaited(pins.observe(B, Kind.TOOL, tools(x=1)))
        assert stood(pins, "x", "y") == [APPROVED, NEW]
        assert pins.status(ref(B, Kind.TOOL, "x")) is APPROVED
        assert "held back" in str(pins.problem)
        with pytest.raises(StateError, match="another process has held"):
            awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"]), "console"))
    [change] = awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
    assert (change.item.name, change.status) == ("y", APPROVED)
    awaited(pins.observe(B, Kind.TOOL, tools(x=1)))
    assert pins.problem is None


@pytest.mark.sqlite
@pytest.mark.parametrize("occasion", ["a look at the store", "a decision about something else"])
def test_what_could_not_be_stored_is_stored_once_that_is_possible(
    occasion: str, state: Path, open_pins: Opener
) -> None:
    """Not only when the server lists it again: until then nobody could decide about it."""
    pins = open_pins(UNTRUSTED)
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    with locked(state):
        awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
        awaited(pins.observe(A, Kind.PROMPT, tools(p=1)))
    awaited(pins.observe(A, Kind.RESOURCE, tools(r=1)))  # of another kind, and possible
    assert "are held back" in str(pins.problem)
    assert {each.item.name for each in pins.held()} == {"x", "r"}
    if occasion == "a look at the store":
        awaited(pins.reread())
        assert {each.item.name for each in pins.held()} == {"x", "y", "p", "r"}
    else:
        awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"]), "console"))
        assert {each.item.name for each in pins.held()} == {"y", "p", "r"}
    assert pins.problem is None
    awaited(pins.approve(Item("a", "tool", "y"), fingerprint(tools(y=1)["y"]), "console"))


@pytest.mark.sqlite
def test_first_sight_that_could_not_be_stored_counts_once_that_is_possible(state: Path, open_pins: Opener) -> None:
    pins = open_pins()
    with locked(state):
        awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
        assert stood(pins, "x") == [NEW]
    assert awaited(pins.reread()) == {"a"}
    assert stood(pins, "x") == [APPROVED]


def test_what_is_stored_right_after_another_process_stored_is_known_at_once(open_pins: Opener) -> None:
    pins, other = open_pins(UNTRUSTED), open_pins(UNTRUSTED)
    with while_storing(pins, partial(other.observe, A, Kind.PROMPT, tools(p=1))):
        assert pins.commit(awaited(pins.prepare(A, Kind.TOOL, tools(x=1, y=1)))) is not None
    assert {each.item.name for each in pins.held()} == {"x", "y"}
    awaited(pins.reread())
    assert {each.item.name for each in pins.held()} == {"x", "y", "p"}
    awaited(pins.approve(Item("a", "tool", "x"), fingerprint(tools(x=1)["x"]), "console"))


@pytest.mark.sqlite
def test_what_was_stored_is_known_at_once_while_another_process_writes(state: Path, open_pins: Opener) -> None:
    """What it wrote just before is not read yet, and what it writes now keeps everybody from reading."""
    one, two = open_pins(), open_pins(b=UNTRUSTED)

    async def store_other() -> None:
        await two.observe(B, Kind.TOOL, tools(y=len(two.held())))

    with ExitStack() as lock, while_storing(one, store_other, lambda: lock.enter_context(locked(state))):
        prepared = awaited(one.prepare(A, Kind.TOOL, tools(x=1)))
        assert prepared.status("x") is APPROVED
        assert [each.status for each in prepared.changes] == [APPROVED]
    assert one.commit(prepared) is not None
    awaited(one.observe(A, Kind.TOOL, tools(x=2)))
    with ExitStack() as lock, while_storing(one, store_other, lambda: lock.enter_context(locked(state))):
        awaited(one.approve(Item("a", "tool", "x"), one.fingerprint(ref(A, Kind.TOOL, "x")) or "", "console"))
        assert stood(one, "x") == [APPROVED]
    assert awaited(one.reread()) == {"b"}, "the other process changed nothing else"


@pytest.mark.sqlite
@pytest.mark.parametrize("decision", ["reject", "revoke"])
def test_what_is_held_back_is_so_at_once_and_stays_so_if_it_cannot_be_stored(
    decision: str, state: Path, open_pins: Opener
) -> None:
    pins, other = open_pins(), open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    if decision == "reject":
        awaited(pins.observe(A, Kind.TOOL, tools(x=2)))
    shown = pins.fingerprint(ref(A, Kind.TOOL, "x")) or ""

    item, told = Item("a", "tool", "x"), list[HeldItem]()

    def on_held() -> None:
        told.extend(pins.held())

    with locked(state):
        with pytest.raises(StateError):
            awaited(pins.reject(item, shown, on_held) if decision == "reject" else pins.revoke(item, on_held))
        [held] = told
        assert (held.item.name, held.rejected) == ("x", decision == "reject")
        assert [each.item.name for each in pins.held()] == ["x"]
    awaited(other.reread())
    assert stood(other, "x") == [CHANGED if decision == "reject" else APPROVED], "what is not stored nobody else knows"
    if decision == "revoke":  # it is new by now
        with pytest.raises(StaleDecision, match="is not approved"):
            awaited(pins.revoke(item))
    awaited(pins.approve(Item("a", "tool", "x"), shown, "console"))
    awaited(other.reread())
    assert (stood(pins, "x"), stood(other, "x")) == ([APPROVED], [APPROVED])


@pytest.mark.sqlite
@pytest.mark.few(2)
@pytest.mark.parametrize("decision", ["reject", "revoke"])
@pytest.mark.parametrize("meanwhile", ["nothing", "another process changes the item", "another approves another item"])
def test_what_was_held_back_and_not_stored_is_stored_once_that_is_possible(
    meanwhile: str, decision: str, state: Path, open_pins: Opener
) -> None:
    """It holds in memory all the time, whatever else is read."""
    pins, other = open_pins(), open_pins()
    for each in (pins, other):
        awaited(each.observe(A, Kind.TOOL, tools(x=1, y=1)))
    if decision == "reject":
        for each in (pins, other):
            awaited(each.observe(A, Kind.TOOL, tools(x=2, y=2)))
    shown = pins.fingerprint(ref(A, Kind.TOOL, "x")) or ""
    storing = (
        pins.reject(Item("a", "tool", "x"), shown) if decision == "reject" else pins.revoke(Item("a", "tool", "x"))
    )
    with locked(state), pytest.raises(StateError):
        awaited(storing)
    assert "is not stored, so another host may allow it" in str(pins.problem)
    if meanwhile != "nothing":
        name = "x" if meanwhile == "another process changes the item" else "y"
        awaited(other.observe(A, Kind.TOOL, tools(x=3, y=3)))
        awaited(other.approve(Item("a", "tool", name), other.fingerprint(ref(A, Kind.TOOL, name)) or "", "console"))
    awaited(pins.observe(A, Kind.PROMPT, tools(p=1)))
    assert stood(pins, "x") != [APPROVED]
    awaited(pins.reread())
    assert pins.problem is None
    assert stood(pins, "x") != [APPROVED]
    if meanwhile != "another process changes the item":
        third = open_pins()
        awaited(third.observe(A, Kind.TOOL, tools(x=2 if decision == "reject" else 1, y=1)))
        assert stood(third, "x") != [APPROVED]
        assert {each.item.name: each.rejected for each in third.held()}["x"] is (decision == "reject")


@pytest.mark.sqlite
def test_an_approval_counts_more_than_a_former_rejection_that_was_not_stored(state: Path, open_pins: Opener) -> None:
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    with locked(state), pytest.raises(StateError):
        awaited(pins.revoke(Item("a", "tool", "x")))
    awaited(pins.approve(Item("a", "tool", "x"), pins.fingerprint(ref(A, Kind.TOOL, "x")) or "", "console"))
    awaited(pins.reread())
    assert stood(pins, "x") == stood(open_pins(), "x") == [APPROVED]


# Bounds


def test_no_more_of_a_server_is_kept_than_is_said(monkeypatch: pytest.MonkeyPatch, open_pins: Opener) -> None:
    monkeypatch.setattr(module, "MOST_ITEMS", 3)
    pins = open_pins(STANDARD, b=UNTRUSTED)
    offered = {f"t{at}": dumped(at) for at in range(5)}
    told = awaited(pins.observe(A, Kind.TOOL, offered))
    assert [each.status for each in told] == [APPROVED] * 3 + [NEW] * 2
    assert stood(pins, *offered) == [APPROVED] * 3 + [NEW] * 2
    assert pins.held() == []
    with pytest.raises(StaleDecision, match="more is offered than is kept"):
        awaited(pins.approve(Item("a", "tool", "t4"), fingerprint(offered["t4"]), "console"))
    assert awaited(pins.observe(A, Kind.TOOL, {"t0": offered["t0"], "t4": offered["t4"]})) == []
    assert stood(pins, "t4") == [NEW], "pins that nobody offers any more do not make room"
    awaited(pins.observe(B, Kind.TOOL, offered))
    assert len(pins.held()) == 3
    awaited(pins.observe(B, Kind.TOOL, {"t3": offered["t3"], "t4": offered["t4"]}))
    assert {each.item.name for each in pins.held()} == {"t3", "t4"}, "but what nobody decided about does"


def test_a_definition_that_is_too_long_to_keep_is_held_back(monkeypatch: pytest.MonkeyPatch, open_pins: Opener) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x="short", y="long" * 60)))
    assert stood(pins, "x", "y") == [APPROVED, NEW]
    awaited(pins.observe(A, Kind.TOOL, tools(x="long" * 60)))
    again = open_pins()
    for each in (pins, again):
        assert stood(each, "x", "y") == [CHANGED, NEW], "its fingerprint is kept"
        assert each.held() == []
    with pytest.raises(StaleDecision):
        awaited(pins.approve(Item("a", "tool", "x"), pins.fingerprint(ref(A, Kind.TOOL, "x")) or "", "console"))


@pytest.mark.slow
def test_a_thousand_tools_that_are_the_same_take_no_time(open_pins: Opener) -> None:
    """The goals are 5 ms and 1 µs; a busy machine gets more."""
    pins = open_pins()
    offered = {f"t{at}": dumped({**TOOL, "name": f"t{at}"}) for at in range(1000)}
    awaited(pins.observe(A, Kind.TOOL, offered))
    copies = iter([{name: bytes(bytearray(raw)) for name, raw in offered.items()} for _ in range(ATTEMPTS)])
    assert_costs_less(lambda: awaited(pins.observe(A, Kind.TOOL, next(copies))), 0.02)
    assert pins.held() == []
    assert_costs_less(lambda: [pins.status(ref(A, Kind.TOOL, "t7")) for _ in range(20000)], 20000 * 5e-6)


# Any history


class History(RuleBasedStateMachine):
    """A server that offers what it likes, a person who decides, hosts that start anew; beside them what must come of
    it, told in another way: for each item the one definition that was approved last, and whether anybody ever said no.
    """

    names = st.sampled_from(["x", "y"])
    values = st.sampled_from([1, 2, 3])

    @initialize(trust=st.sampled_from([STANDARD, UNTRUSTED, TRUSTED]))
    def begin(self, trust: Trust) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.host = ExitStack()
        self.trust = trust
        self.start()
        self.offered: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.approved: dict[str, int] = {}
        self.looked: set[str] = set()
        """Those of them that a person approved as they are."""
        self.refused: set[str] = set()
        self.look({})

    def start(self) -> None:
        self.host.close()
        opened = self.host.enter_context(store_opener(Path(self.folder.name) / "state"))
        self.pins, self.other = Pins(opened(), {"a": self.trust}), Pins(opened(), {"a": self.trust})

    def look(self, offered: dict[str, int]) -> None:
        self.offered = offered
        awaited(self.pins.observe(A, Kind.TOOL, tools(**offered)))
        for name, value in offered.items():
            self.last[name] = value
            if name in self.refused:
                continue
            if self.trust is TRUSTED or (self.trust is STANDARD and name not in self.approved):
                if self.approved.get(name) != value:
                    self.looked.discard(name)
                self.approved[name] = value

    def passes(self, name: str) -> bool:
        if self.trust is TRUSTED:
            return True
        seen = name in self.looked or self.trust is not UNTRUSTED
        return seen and self.approved.get(name) == self.last[name]

    def print_of(self, name: str) -> str:
        return fingerprint(tools(**{name: self.last[name]})[name])

    @rule(offered=st.dictionaries(names, values))
    def offer(self, offered: dict[str, int]) -> None:
        self.look(offered)

    @rule()
    def reconnect(self) -> None:
        self.look(dict(reversed(self.offered.items())))

    @rule()
    def restart(self) -> None:
        self.start()

    @rule(trust=st.sampled_from(list(Trust)))
    def edit(self, trust: Trust) -> None:
        self.trust = trust
        self.pins.set_trust_levels({"a": trust})
        self.other.set_trust_levels({"a": trust})
        self.look(self.offered)

    @rule(name=names, elsewhere=st.booleans())
    def approve(self, name: str, elsewhere: bool) -> None:
        self.decide(name, elsewhere, "approve")

    @rule(name=names, elsewhere=st.booleans())
    def reject(self, name: str, elsewhere: bool) -> None:
        self.decide(name, elsewhere, "reject")

    def decide(self, name: str, elsewhere: bool, decision: str) -> None:
        pins = self.other if elsewhere else self.pins
        awaited(pins.reread())
        if name not in self.last:
            with pytest.raises(StaleDecision):
                awaited(pins.approve(Item("a", "tool", name), "sha256:0", "console"))
            return
        if decision == "approve":
            awaited(pins.approve(Item("a", "tool", name), self.print_of(name), "console"))
            self.approved[name] = self.last[name]
            self.looked.add(name)
            self.refused.discard(name)
        elif self.approved.get(name) != self.last[name] or not self.passes(name):
            awaited(pins.reject(Item("a", "tool", name), self.print_of(name)))
            if self.approved.get(name) == self.last[name]:
                del self.approved[name]
            self.refused.add(name)
        awaited(self.pins.reread())

    @rule(name=names, value=values)
    def approve_what_is_not_offered(self, name: str, value: int) -> None:
        if self.last.get(name) != value:
            with pytest.raises(StaleDecision):
                awaited(
                    self.pins.approve(Item("a", "tool", name), fingerprint(tools(**{name: value})[name]), "console")
                )

    @rule(name=names, elsewhere=st.booleans())
    @precondition(lambda self: self.approved)
    def revoke(self, name: str, elsewhere: bool) -> None:
        if name in self.approved:
            awaited((self.other if elsewhere else self.pins).revoke(Item("a", "tool", name)))
            del self.approved[name]
            self.looked.discard(name)
            self.refused.add(name)
            awaited(self.pins.reread())

    @invariant()
    def stands_as_it_must(self) -> None:
        for name in ("x", "y"):
            found = self.pins.status(ref(A, Kind.TOOL, name))
            if name not in self.last:
                assert found is UNKNOWN
            elif self.passes(name):
                assert found is APPROVED
            else:
                unseen = self.trust is UNTRUSTED and name not in self.looked
                assert found is (NEW if unseen or name not in self.approved else CHANGED)
        assert {held.item.name for held in self.pins.held()} == {name for name in self.last if not self.passes(name)}
        assert {pin.item.name: pin.fingerprint for pin in self.pins.pinned()} == {
            name: fingerprint(tools(**{name: value})[name]) for name, value in self.approved.items()
        }
        assert self.pins.problem is None

    def teardown(self) -> None:
        self.host.close()
        self.folder.cleanup()


@pytest.mark.slow
def test_in_any_history_only_what_was_approved_last_may_be_used() -> None:
    run_state_machine_as_test(History, settings=settings(max_examples=examples(150), stateful_step_count=30))


def test_what_was_prepared_does_not_hold_if_a_person_decided_meanwhile(open_pins: Opener) -> None:
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
    for decide in (
        lambda: awaited(pins.revoke(Item("a", "tool", "x"))),
        lambda: pins.set_trust_levels({"a": UNTRUSTED}),
        lambda: awaited(pins.observe(A, Kind.TOOL, tools(x=3))),
    ):
        pins.set_trust_levels({"a": STANDARD})
        prepared = awaited(pins.prepare(A, Kind.TOOL, tools(x=1, y=1, new=1)))
        decide()
        assert pins.commit(prepared) is None
        again = awaited(pins.prepare(A, Kind.TOOL, tools(x=1, y=1, new=1)))
        assert pins.commit(again) is not None


def test_what_a_host_stores_itself_is_no_decision_of_others(open_pins: Opener) -> None:
    """A host looks at the store at its own times, also between storing what a server offers and publishing it."""
    pins = open_pins(STANDARD)

    async def look() -> None:
        assert await pins.reread() == set()

    with while_storing(pins, look):
        reading = awaited(pins.prepare(A, Kind.TOOL, tools(one=TOOL)))
    assert awaited(pins.reread()) == set()
    assert pins.commit(reading)
    assert stood(pins, "one") == [APPROVED]
    assert awaited(pins.reread()) == set()


@pytest.mark.sqlite
@pytest.mark.parametrize("others_decide", [False, True])
async def test_a_start_of_many_servers_reads_nothing_that_it_stored_and_every_decision_of_others(
    others_decide: bool, state: Path, open_pins: Opener, autojump_clock: MockClock
) -> None:
    """Whatever is looked at, or decided, after a batch was stored and before this host knows so."""
    order, servers = random.Random(1), {f"s{number}": STANDARD for number in range(30)}
    command, revoked, moved, statements = open_pins(), set[str](), set[str](), list[str]()

    async def run_slowly(work: Callable[[], T], /) -> T:
        result = work()
        if others_decide and trio.current_time() < 5:
            await command.reread()
            item = next((pin.item for pin in command.pinned() if pin.item.name == "x"), None)
            if item is not None and order.randrange(2):
                await command.revoke(item)
                revoked.add(item.server)
        await trio.sleep(order.random())
        return result

    async def start(server: str) -> None:
        await trio.sleep(order.random() * 5)
        await pins.observe(Source(server, Era.SESSION), Kind.PROMPT, tools(p=1))
        await pins.observe(Source(server, Era.SESSION), Kind.TOOL, tools(x=1, y=2))

    async def look() -> None:
        while True:
            moved.update(await pins.reread())
            await trio.sleep(order.random() / 4)

    with open_store(open_state(state), SOURCE, run_in_thread=run_slowly) as store:
        pins = Pins(store, servers)
        store._writer.set_trace_callback(statements.append)
        async with trio.open_nursery() as looking:
            looking.start_soon(look)
            async with trio.open_nursery() as nursery:
                for server in servers:
                    nursery.start_soon(start, server)
            looking.cancel_scope.cancel()
        moved |= await pins.reread()
    assert moved == revoked
    assert {pin.item.server for pin in pins.pinned() if pin.item.name == "x"} == servers.keys() - revoked
    assert sum("INTO item" in each for each in statements) == 3 * len(servers)
    assert bool(revoked) is others_decide
    if not others_decide:
        assert not any(each.startswith("SELECT server, kind, name") for each in statements), "nothing is read again"


def test_the_first_sight_of_a_list_is_told_also_if_it_had_to_be_prepared_twice(open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    awaited(pins.prepare(A, Kind.TOOL, tools(x=1)))
    again = awaited(pins.prepare(A, Kind.TOOL, tools(x=1)))
    [change] = pins.commit(again) or []
    assert (change.item.name, change.first, change.status) == ("x", True, APPROVED)


def test_what_another_process_writes_meanwhile_is_not_lost(open_pins: Opener) -> None:
    pins, other = open_pins(), open_pins()
    preparing = Paused(pins.prepare(A, Kind.TOOL, tools(x=1)))
    next(preparing)
    awaited(other.observe(A, Kind.TOOL, tools(y=1)))
    assert pins.commit(preparing.rest()) is not None
    assert {(pin.item.kind, pin.item.name) for pin in open_pins().pinned()} == {("tool", "x"), ("tool", "y")}


@pytest.mark.slow
def test_what_does_not_fit_costs_no_more_than_what_does(open_pins: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a server is full, each name of its next list was once held against all of them."""

    def seconds(count: int) -> float:
        monkeypatch.setattr(module, "MOST_ITEMS", count)
        pins = open_pins(UNTRUSTED)
        *former, last = [{f"t{turn}_{at}": b'{"x":%d}' % at for at in range(count)} for turn in range(3)]
        for offered in former:
            awaited(pins.observe(A, Kind.TOOL, offered))
        took = cost(lambda: awaited(pins.observe(A, Kind.TOOL, last)))
        assert {held.item.name for held in pins.held()} >= last.keys()
        return took

    # Eight times as many: eight times the work where each costs the same, 64 times where each is held against all.
    of_few = min(seconds(500) for _ in range(3))
    assert min(seconds(4000) for _ in range(3)) < 24 * of_few


# What is remembered from an earlier process


def test_what_is_remembered_approves_nothing_and_tells_nothing(open_pins: Opener) -> None:
    pins = open_pins()
    assert awaited(pins.observe(A, Kind.TOOL, tools(x=1), remembered=True)) == []
    assert stood(pins, "x") == [NEW]
    assert awaited(open_pins().observe(A, Kind.TOOL, tools(x=2)))[0].status is APPROVED
    [change] = awaited(pins.observe(A, Kind.TOOL, tools(x=1)))
    assert change.status is CHANGED


def test_a_remembered_list_that_is_older_than_what_is_held_is_held_too(open_pins: Opener) -> None:
    """A host that is killed has stored what is held, and perhaps not yet the list."""
    pins = open_pins()
    awaited(pins.observe(A, Kind.TOOL, tools(x=1, y=1)))
    awaited(pins.observe(A, Kind.TOOL, tools(x=2, y=1)))
    later = open_pins()
    awaited(later.observe(A, Kind.TOOL, tools(x=1, y=1), remembered=True))
    assert stood(later, "x", "y") == [CHANGED, APPROVED]
    [held] = later.held()
    assert (held.item.name, held.offered, held.approved) == ("x", tools(x=2)["x"], tools(x=1)["x"])


# Two sources of a server


OVER_STATELESS = Source("a", Era.STATELESS)


def sides(pins: Pins, name: str = "x") -> list[PinStatus]:
    """The status of the tool over a session, and over a stateless connection."""
    return [pins.status(EntryRef(source, Kind.TOOL, name)) for source in (A, OVER_STATELESS)]


def offer_both(pins: Pins, session: object, stateless: object) -> None:
    for source, value in ((A, session), (OVER_STATELESS, stateless)):
        if value is not None:
            awaited(pins.observe(source, Kind.TOOL, tools(x=value)))


def test_each_side_has_a_first_sight_and_may_differ(open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    offer_both(pins, 1, 2)
    assert sides(pins) == sides(open_pins(STANDARD)) == [APPROVED, APPROVED]
    assert list(pins.names("a", Kind.TOOL)) == ["x"]
    assert {(each.item.kind, each.item.name) for each in pins.pinned()} == {("tool", "x")}


def test_another_era_brings_no_other_definition_of_what_a_person_approved(open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    offer_both(pins, 1, None)
    offer_both(pins, 2, None)
    [held] = pins.held()
    awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    offer_both(pins, None, 3)
    assert sides(pins) == [APPROVED, NEW]


@pytest.mark.parametrize("changed", [0, 1])
def test_a_change_holds_one_side(changed: int, open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    offer_both(pins, 1, 2)
    offer_both(pins, *((3, 2) if changed == 0 else (1, 3)))
    assert sides(pins) == [CHANGED if side == changed else APPROVED for side in range(2)]
    [held] = pins.held()
    assert (held.item.kind, held.offered) == ("tool", tools(x=3)["x"])
    awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    assert sides(pins) == [APPROVED, APPROVED]


def test_what_one_side_was_approved_as_may_come_to_the_other_and_nothing_else(open_pins: Opener) -> None:
    """A server that adds an era, or changes to another, needs no second answer for the same definition."""
    pins = open_pins(UNTRUSTED)
    offer_both(pins, 1, None)
    [held] = pins.held()
    awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    offer_both(pins, None, 1)
    assert sides(pins) == [APPROVED, APPROVED]
    assert {each.by for each in pins.pinned()} == {"console"}
    offer_both(pins, None, 2)
    assert sides(pins) == [APPROVED, CHANGED]


def test_one_answer_is_for_both_sides(open_pins: Opener) -> None:
    pins = open_pins(UNTRUSTED)
    offer_both(pins, 1, 1)
    [held] = pins.held()
    assert held.offered == tools(x=1)["x"]
    awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    assert sides(pins) == [APPROVED, APPROVED]
    offer_both(pins, 2, 3)
    [held] = pins.held()
    assert held.status is CHANGED
    assert held.approved is not None
    for shown, session, stateless in ((held.offered, 2, 3), (held.approved, 1, 1)):
        both = {"with a session": tools(x=session)["x"], "without a session": tools(x=stateless)["x"]}
        assert json.loads(shown) == {side: json.loads(raw) for side, raw in both.items()}
    offer_both(pins, None, 4)
    with pytest.raises(StaleDecision):
        awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    [held] = pins.held()
    awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    assert sides(pins) == [APPROVED, APPROVED]
    assert pins.held() == []


@pytest.mark.parametrize("trust", [STANDARD, UNTRUSTED])
def test_a_rejection_is_for_both_sides_and_stays(trust: Trust, open_pins: Opener) -> None:
    pins = open_pins(trust)
    offer_both(pins, 1, 1)
    if trust is UNTRUSTED:
        [held] = pins.held()
        awaited(pins.approve(Item("a", "tool", "x"), held.fingerprint, "console"))
    offer_both(pins, 2, 3)
    [held] = pins.held()
    awaited(pins.reject(Item("a", "tool", "x"), held.fingerprint))
    [held] = pins.held()
    assert held.rejected
    assert sides(pins) == sides(open_pins(trust)) == [CHANGED, CHANGED]


def test_an_approval_is_taken_back_on_both_sides(open_pins: Opener) -> None:
    pins = open_pins(STANDARD)
    offer_both(pins, 1, 2)
    awaited(pins.revoke(Item("a", "tool", "x")))
    assert sides(pins) == sides(open_pins(STANDARD)) == [NEW, NEW]
    offer_both(pins, 2, 1)
    assert sides(pins) == [NEW, NEW]


@pytest.mark.parametrize("how", ["changed", "rejected", "revoked"])
def test_what_is_held_on_one_side_has_no_first_sight_on_the_other(how: str, open_pins: Opener) -> None:
    """Or a server could bring a changed definition past a person by adding an era."""
    pins = open_pins(STANDARD)
    offer_both(pins, 1, None)
    if how == "revoked":
        awaited(pins.revoke(Item("a", "tool", "x")))
    else:
        offer_both(pins, 2, None)
    if how == "rejected":
        [held] = pins.held()
        awaited(pins.reject(Item("a", "tool", "x"), held.fingerprint))
    offer_both(pins, None, 2)
    assert sides(pins)[1] is NEW
    offer_both(pins, None, 3)
    assert sides(pins)[1] is NEW
    offer_both(pins, None, 1)  # as it was approved on the other side, unless that was taken back
    assert sides(pins)[1] is (NEW if how == "revoked" else APPROVED)


def test_an_item_waits_once_for_each_login(open_pins: Opener) -> None:
    pins = open_pins(UNTRUSTED)
    offered = {owner: b'{"name":"x","description":"%b"}' % owner.encode() for owner in ("ann", "bob")}
    for owner, raw in offered.items():
        for era in Era:
            awaited(pins.observe(Source("a", era, owner), Kind.TOOL, {"x": raw}))
    assert [held.offered for held in pins.held()] == list(offered.values())


def test_a_launch_has_one_side(open_pins: Opener) -> None:
    assert columns_of((launch_ref("a").source, Aspect.LAUNCH)) == ("launch",)
    pins = open_pins(STANDARD)
    offer(pins, Aspect.LAUNCH, STARTED)
    offer(pins, Aspect.LAUNCH, {**STARTED, "program": "/usr/bin/other"})
    assert [held.item.kind for held in pins.held()] == [Aspect.LAUNCH]


def test_the_other_process_may_decide_about_the_other_side(open_pins: Opener) -> None:
    """A definition that it rejected is no first sight here, although this process has not looked since."""
    pins, other = open_pins(STANDARD), open_pins(STANDARD)
    offer_both(pins, 1, None)
    offer_both(other, 2, None)
    [held] = other.held()
    awaited(other.reject(Item("a", "tool", "x"), held.fingerprint))
    offer_both(pins, None, 3)
    assert sides(pins)[1] is NEW
