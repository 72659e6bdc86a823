"""The memory budget: what is held never exceeds it, and who has to give way."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from host.memory import FRESH, Budget, Holding, OverBudget, Owner, Use, client, server

ADA, BOB, GH = client("ada"), client("bob"), server("gh")


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Asked:
    """Holdings that can be dropped, by name; `dropped` has the names in order."""

    def __init__(self, total: int) -> None:
        self.clock = Clock()
        self.budget = Budget(total, self.clock)
        self.held: dict[str, Holding] = {}
        self.dropped: list[str] = []

    def hold(self, name: str, owner: Owner, size: int) -> None:
        def drop() -> None:
            self.dropped.append(name)
            self.held.pop(name).release()

        holding = self.held[name] = self.budget.hold(owner, Use.REQUESTS, drop=drop)
        try:
            holding.grow(size)
        except OverBudget:
            self.held.pop(name).release()
            raise


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False)])
def test_no_more_is_held_than_the_budget_has(size: int, fits: bool) -> None:
    asked = Asked(100)
    if fits:
        asked.hold("a", ADA, size)
        assert asked.budget.used == size
        return
    with pytest.raises(OverBudget):
        asked.hold("a", ADA, size)
    assert (asked.budget.used, asked.budget.by_owner()) == (0, {})


def test_what_is_free_may_be_borrowed_and_is_given_back_to_an_owner_below_its_share() -> None:
    asked = Asked(100)
    for n in range(10):
        asked.hold(f"a{n}", ADA, 10)
    asked.hold("b", BOB, 50)
    assert asked.budget.by_owner() == {ADA: 50 - asked.budget.total // 32 // 10 * 10, BOB: 50}
    assert set(asked.dropped) <= {f"a{n}" for n in range(10)}


def test_who_holds_most_is_refused_more() -> None:
    asked = Asked(320)
    asked.hold("b", BOB, 100)
    asked.hold("a", ADA, 220)
    with pytest.raises(OverBudget):
        asked.held["a"].grow(1)
    assert asked.dropped == []
    assert asked.held["a"].size == 220


def test_what_stands_still_goes_before_what_moves() -> None:
    """A large answer whose client reads it outlives smaller ones whose clients do not."""
    asked = Asked(100)
    asked.hold("stalled", ADA, 40)
    asked.hold("read", ADA, 60)
    for _ in range(20):
        asked.clock.time += 0.1
        asked.held["read"].moves()
    asked.hold("new", ADA, 10)
    assert asked.dropped == ["stalled"]


def test_what_is_only_kept_in_case_goes_before_what_moves() -> None:
    asked = Asked(100)
    asked.hold("kept", ADA, 45)
    asked.held["kept"].spare = True
    asked.hold("read", ADA, 50)
    asked.hold("new", ADA, 50)
    assert asked.dropped == ["kept"]


def test_a_small_holding_goes_last_however_old() -> None:
    """Also among the holdings of one owner: clients without a token are all one."""
    asked = Asked(1000)
    asked.hold("small", ADA, 1)
    asked.clock.time = 3600
    for n in range(100):
        asked.hold(f"large{n}", ADA, 300)
        asked.clock.time += FRESH
        if n % 10 == 0:
            asked.hold(f"call{n}", ADA, 1)
    assert "small" in asked.held
    assert [name for name in asked.dropped if name.startswith("call")] == []


def test_a_client_that_trickles_does_not_keep_what_it_withholds() -> None:
    """Two hundred bodies of which a byte comes now and then leave room for small requests."""
    asked = Asked(256)
    for n in range(64):
        asked.hold(f"withheld{n}", ADA, 4)
    for n in range(200):
        asked.clock.time += 0.05
        for name, holding in list(asked.held.items()):
            if name.startswith("withheld") and n % 5 == 0:
                holding.moves()
        asked.hold("good", ADA, 1)
        asked.held.pop("good").release()
    assert "good" not in asked.dropped


def test_what_cannot_be_dropped_takes_a_quarter_for_one_owner_and_half_for_all() -> None:
    budget = Budget(100)
    kept = budget.hold(GH, Use.LISTS, 25)
    with pytest.raises(OverBudget):
        kept.grow(1)
    budget.hold(server("b"), Use.LISTS, 25)
    with pytest.raises(OverBudget):
        budget.hold(server("c"), Use.LISTS, 1)
    asked = budget.hold(ADA, Use.REQUESTS, drop=lambda: None)
    asked.grow(50)
    with pytest.raises(OverBudget):
        asked.grow(1)
    assert budget.by_use() == {each.value: 0 for each in Use} | {"lists": 50, "requests": 50}


def test_nothing_is_dropped_for_a_charge_that_could_not_fit_at_all() -> None:
    asked = Asked(100)
    asked.hold("a", ADA, 60)
    with pytest.raises(OverBudget):
        asked.hold("b", BOB, 101)
    assert asked.dropped == []


def test_a_dropped_holding_holds_nothing_more_and_is_released_once() -> None:
    asked = Asked(100)
    asked.hold("a", ADA, 60)
    holding = asked.held["a"]
    asked.hold("b", BOB, 50)
    assert holding.dropped
    with pytest.raises(OverBudget):
        holding.grow(1)
    holding.grow(-5)
    holding.release()
    holding.release()
    assert asked.budget.used == 50


def test_a_holding_is_released_with_its_block() -> None:
    budget = Budget(100)
    with budget.hold(ADA, Use.TASKS, 10) as held:
        held.resize(5)
        assert budget.used == 5
    assert (budget.used, budget.released, budget.by_owner()) == (0, 10, {})


def test_a_smaller_budget_takes_effect_with_the_next_charge() -> None:
    asked = Asked(100)
    asked.hold("a", ADA, 80)
    asked.budget.total = 50
    asked.hold("b", BOB, 10)
    assert (asked.dropped, asked.budget.used) == (["a"], 10)


OWNERS = st.sampled_from([client(None), ADA, BOB, GH])


class Machine(RuleBasedStateMachine):
    """Charges, releases and drops in any order: the sums agree and the budget holds."""

    fair = False
    """Everything that is dropped is given back at once: then an equal share can always be had."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.budget = Budget(1000, self.clock)
        self.live: list[tuple[Owner, Holding]] = []

    def begin(self, owner: Owner, size: int, gives: float | None) -> None:
        def drop() -> None:
            if gives == 1:
                held.release()
            else:
                held.grow(-int(held.size * (gives or 0)))

        held = self.budget.hold(owner, Use.REQUESTS, drop=None if gives is None else drop)
        self.live.append((owner, held))
        self.grow(owner, held, size)

    def grow(self, owner: Owner, held: Holding, more: int) -> None:
        before, owners = held.size, self.budget.by_owner()
        share = self.budget.total // max(len(owners), 1)
        try:
            held.grow(more)
        except OverBudget:
            assert held.dropped or owners[owner] + more > share or not self.fair
            assert held.size == before
        else:
            assert held.size == (0 if held.dropped else before + more)

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data(), size=st.integers(0, 600))
    def resize(self, data: st.DataObject, size: int) -> None:
        owner, held = data.draw(st.sampled_from(self.live))
        self.grow(owner, held, size - held.size)

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.live))
        self.live.remove(chosen)
        chosen[1].release()

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.clock.time += seconds

    @invariant()
    def sums_agree(self) -> None:
        held = [(owner, holding) for owner, holding in self.live if not holding.dropped]
        assert self.budget.used == sum(self.budget.by_use().values()) <= self.budget.total
        by_owner: Counter[Owner] = Counter()
        for owner, holding in held:
            assert holding.size >= 0
            by_owner[owner] += holding.size
        assert self.budget.by_owner() == dict(by_owner)
        assert self.budget.used == sum(by_owner.values())

    def teardown(self) -> None:
        for _, held in self.live:
            held.release()
        assert (self.budget.used, self.budget.by_owner()) == (0, {})


class AnyMachine(Machine):
    @rule(owner=OWNERS, size=st.integers(0, 600), gives=st.sampled_from([None, 0.0, 0.5, 1.0]))
    def hold(self, owner: Owner, size: int, gives: float | None) -> None:
        self.begin(owner, size, gives)


class FairMachine(Machine):
    fair = True

    @rule(owner=OWNERS, size=st.integers(0, 600))
    def hold(self, owner: Owner, size: int) -> None:
        self.begin(owner, size, 1.0)


TestAnyMachine = AnyMachine.TestCase
TestFairMachine = FairMachine.TestCase
TestAnyMachine.settings = TestFairMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
