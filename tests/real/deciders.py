"""A process that decides over a state directory, one thing after another, until it is killed.

It writes a line before each decision and one after it, so that its killer knows what was confirmed and what was under
way. What the store must hold then is computed from these lines alone, by rules that are written down here a second time
(`step_of`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import trio

from config import Fleet, Secret, Trust
from host.policy.fingerprint import fingerprint
from host.policy.grants import Grant, Grants, Scope, new_id
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Source
from host.storage.choice import open_chosen_store
from host.storage.directory import open_state
from host.storage.store import StateError
from host.subject import Item as PinnedItem
from host.subject import Subject
from tests.kit.gates import SOURCE, entry

MOST_ITEMS = 12
"""Tools of one server, and grants of one process: few, so that each is decided about often."""
PAGES = "x" * 10_000
"""So that each change is one of several pages of the database."""


@dataclass(frozen=True)
class Item:
    """A tool, by versions of its definition; and how it must stand."""

    approved: int | None
    offered: int
    rejected: bool

    @property
    def status(self) -> str:
        if self.approved is None:
            return "new"
        return "approved" if self.approved == self.offered else "changed"


Known = dict[str, Item | bool]
"""By `<server>/<tool>` an item, by `<process>:<grant>` whether the grant is there; what is not there is not known."""


def definition(name: str, version: int) -> bytes:
    described = {"name": name, "description": f"{version}", "inputSchema": {"type": "object", "title": PAGES}}
    return json.dumps(described).encode()


def version_of(raw: bytes) -> int:
    return int(json.loads(raw)["description"])


def trusts(owners: tuple[str, ...]) -> dict[str, Trust]:
    """Each process has servers of its own, one of each trust that pins."""
    return {f"{owner}-{trust.value}": trust for owner in owners for trust in (Trust.STANDARD, Trust.UNTRUSTED)}


@contextmanager
def opened(state: Path, owners: tuple[str, ...]) -> Iterator[tuple[Pins, Grants]]:
    """The store of the state directory, or of the fleet whose URL stands in it."""
    url = state / "fleet"
    fleet = Fleet("acme", Secret(url.read_text()), (Secret("5a" * 32),)) if url.exists() else None
    with open_chosen_store(fleet, open_state(state), SOURCE) as store:
        yield Pins(store, trusts(owners)), Grants(store, wall=store.now)


def stored(state: Path, owners: tuple[str, ...]) -> Known:
    """What is stored, as the next host finds it."""
    known: Known = {}
    with opened(state, owners) as (pins, grants):
        assert pins.problem is None
        approved = {(each.item.server, each.item.name): version_of(each.definition or b"") for each in pins.pinned()}
        for (server, name), version in approved.items():
            assert pins.status(entry(server, Kind.TOOL, name)).value in ("approved", "changed")
            known[f"{server}/{name}"] = Item(version, version, rejected=False)
        for held in pins.held():
            item = Item(approved.get((held.item.server, held.item.name)), version_of(held.offered), held.rejected)
            assert held.status.value == item.status
            known[f"{held.item.server}/{held.item.name}"] = item
        for grant in grants.all():
            assert grants.why_unusable(grant) is None
            known[grant.id] = True
    return known


@dataclass(frozen=True)
class Step:
    """What a decision is about, and how that must stand then; None if it is gone."""

    what: str
    key: str
    after: Item | bool


def step_of(draw: Random, owner: str, known: Known) -> Step:
    """Something that can be done now, and that changes something."""
    if draw.random() < 0.2:
        live = [key for key, value in known.items() if value is True and key.startswith(f"{owner}:")]
        if len(live) == MOST_ITEMS or (live and draw.random() < 0.5):
            return Step("revoke grant", draw.choice(live), after=False)
        return Step("grant", f"{owner}:{new_id()}", after=True)
    server, trust = draw.choice(list(trusts((owner,)).items()))
    key = f"{server}/t{draw.randrange(MOST_ITEMS)}"
    item = known.get(key)
    if not isinstance(item, Item):
        return Step("offer", key, Item(1 if trust is Trust.STANDARD else None, 1, rejected=False))
    ways = ["offer", "revoke"] if item.approved == item.offered else ["offer", "approve"]
    if item.status == "changed":
        ways.append("revoke")
    if item.status != "approved" and not item.rejected:
        ways.append("reject")
    what = draw.choice(ways)
    after = {
        "offer": replace(item, offered=item.offered + 1, rejected=False),
        "approve": Item(item.offered, item.offered, rejected=False),
        "revoke": replace(item, approved=None),
        "reject": replace(item, rejected=True),
    }
    return Step(what, key, after[what])


async def carry_out(step: Step, pins: Pins, grants: Grants, known: Known) -> None:
    """Do it; what it is about stands otherwise when this returns, also after a kill."""
    server, _, name = step.key.partition("/")
    shown = fingerprint(definition(name, step.after.offered)) if isinstance(step.after, Item) else ""
    if step.what == "grant":
        subject = Subject(PinnedItem("s", "tool", "t"), None, None, "sha256:", "", "tools.ask: *")
        grant = Grant(step.key, subject, (), Scope.ALWAYS, time.time(), None, "terminal")
        await grants.add(grant)
    elif step.what == "revoke grant":
        assert await grants.revoke(step.key), step
    elif step.what == "offer":
        await observe(server, pins, {**known, step.key: step.after})
    elif step.what == "approve":
        await pins.approve(PinnedItem(server, "tool", name), shown, "terminal")
    elif step.what == "reject":
        await pins.reject(PinnedItem(server, "tool", name), shown)
    else:
        await pins.revoke(PinnedItem(server, "tool", name))
    if isinstance(step.after, Item):
        assert pins.status(entry(server, Kind.TOOL, name)).value == step.after.status, step


async def observe(server: str, pins: Pins, known: Known) -> int:
    """The server lists all that it has; how much of it is news."""
    offered = {}
    for key, item in known.items():
        of, _, name = key.partition("/")
        if of == server and isinstance(item, Item):
            offered[name] = definition(name, item.offered)
    changes = await pins.observe(Source(server, Era.SESSION), Kind.TOOL, offered)
    if pins.problem is not None:  # it is held, and not stored
        raise StateError(pins.problem)
    return len(changes)


def decide_until_killed(state: Path, log: Path, owner: str, known: Known, seed: int) -> None:
    trio.run(decide, state, log, owner, known, seed)


async def decide(state: Path, log: Path, owner: str, known: Known, seed: int) -> None:
    """Nothing that is known is news."""
    draw = Random(seed)
    with log.open("ab", buffering=0) as said, opened(state, (owner,)) as (pins, grants):
        for server in trusts((owner,)):
            assert await observe(server, pins, known) == 0
        while True:
            step = step_of(draw, owner, known)
            said.write(json.dumps({"begun": asdict(step)}).encode() + b"\n")
            await carry_out(step, pins, grants, known)
            said.write(json.dumps({"done": time.time()}).encode() + b"\n")
            known = {**known, step.key: step.after}


def outcome(log: Path, known: Known) -> tuple[int, Step | None]:
    """How many decisions a killed process confirmed, all of which `known` then has; and the one that was under way."""
    count, under_way = 0, None
    for line in log.read_bytes().splitlines() if log.exists() else []:
        said = json.loads(line)
        if "begun" in said:
            found = said["begun"]
            after = Item(**found["after"]) if isinstance(found["after"], dict) else bool(found["after"])
            under_way = Step(found["what"], found["key"], after)
        elif under_way is not None:
            known[under_way.key] = under_way.after
            count, under_way = count + 1, None
    return count, under_way
