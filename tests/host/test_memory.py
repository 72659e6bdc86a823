"""The memory budget: what is held never exceeds it, and who has to give way."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from host.memory import MIN_IDLE, Budget, Holding, OverBudget, Owner, Use, client_owner, server_owner
from tests.kit.examples import examples

ADA, BOB, GH = client_owner("ada"), client_owner("bob"), server_owner("gh")


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
        asked.held["read"].touch()
    asked.hold("new", ADA, 10)
    assert asked.dropped == ["stalled"]


def test_what_is_only_kept_in_case_goes_before_what_moves() -> None:
    asked = Asked(100)
    asked.hold("kept", ADA, 45)
    asked.held["kept"].idle = True
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
        asked.clock.time += MIN_IDLE
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
                holding.touch()
        asked.hold("good", ADA, 1)
        asked.held.pop("good").release()
    assert "good" not in asked.dropped


def test_what_cannot_be_dropped_takes_a_quarter_for_one_owner_and_half_for_all() -> None:
    budget = Budget(100)
    kept = budget.hold(GH, Use.LISTS, 25)
    with pytest.raises(OverBudget):
        kept.grow(1)
    budget.hold(server_owner("b"), Use.LISTS, 25)
    with pytest.raises(OverBudget):
        budget.hold(server_owner("c"), Use.LISTS, 1)
    asked = budget.hold(ADA, Use.REQUESTS, drop=lambda: None)
    asked.grow(50)
    with pytest.raises(OverBudget):
        asked.grow(1)
    assert budget.by_use() == {each.value: 0 for each in Use} | {"lists": 50, "requests": 50}


class Kept:
    """What servers keep, by the name of the server and a number; `displaced` has what gave way, in order."""

    def __init__(self, total: int) -> None:
        self.budget = Budget(total, Clock())
        self.held: dict[tuple[str, int], Holding] = {}
        self.displaced: list[tuple[str, int]] = []

    def ask(self, name: str, size: int, number: int = 0) -> bool:
        """Whether there is room for so much."""
        key = (name, number)

        def drop() -> None:
            self.displaced.append(key)
            self.held.pop(key).release()

        if key not in self.held:
            self.held[key] = self.budget.hold(server_owner(name), Use.LISTS, drop=drop, firm=True)
        try:
            self.held[key].resize(size)
        except OverBudget:
            return False
        return True

    def size(self, name: str) -> int:
        return sum(each.size for (of, _), each in self.held.items() if of == name)


def test_the_largest_that_is_kept_gives_way_to_one_that_keeps_less() -> None:
    """The largest of its holdings, and what clients do is in nobody's way."""
    kept = Kept(1000)
    assert kept.ask("a", 50, 1)
    assert kept.ask("a", 200, 2)
    assert kept.ask("b", 240)
    kept.budget.hold(ADA, Use.REQUESTS, 500, drop=lambda: None)
    assert kept.ask("late", 20)
    assert kept.displaced == [("a", 2)]
    assert (kept.size("a"), kept.size("b"), kept.size("late")) == (50, 240, 20)


def test_two_that_are_large_do_not_displace_one_another() -> None:
    """Nobody gives way for who would keep as much or more, nor for one that is refused all the same."""
    kept = Kept(1000)
    assert kept.ask("a", 250)
    assert kept.ask("b", 250)
    assert kept.ask("late", 20)
    assert kept.displaced == [("a", 0)]
    for _ in range(3):
        assert not kept.ask("a", 250)
        assert kept.ask("b", 250)
    assert kept.displaced == [("a", 0)]
    assert kept.ask("a", 240), "it is the smaller one now"
    assert not kept.ask("b", 250)
    assert kept.displaced == [("a", 0), ("b", 0)]


def test_room_for_what_is_kept_is_only_borrowed_by_others() -> None:
    """Also by many who each hold less than an equal share of all."""
    asked = Asked(1000)
    for n in range(100):
        asked.hold(f"c{n}", client_owner(str(n)), 10)
    kept = asked.budget.hold(GH, Use.LISTS, 100, drop=lambda: None, firm=True)
    assert kept.size == 100
    assert asked.budget.used <= 1000
    with pytest.raises(OverBudget):
        asked.hold("late", client_owner("late"), 1000)
    assert kept.size == 100


def test_a_smaller_budget_leaves_half_of_it_to_what_is_not_kept() -> None:
    kept = Kept(1000)
    for name in ("a", "b", "c"):
        assert kept.ask(name, {"a": 100, "b": 150, "c": 200}[name])
    kept.budget.total = 400
    asked = kept.budget.hold(ADA, Use.REQUESTS, drop=lambda: None)
    asked.grow(200)
    assert kept.displaced == [("c", 0), ("b", 0)]
    assert kept.budget.used == 300


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(data=st.data(), count=st.integers(1, 50), noise=st.lists(st.integers(1, 300), max_size=30))
def test_an_equal_share_of_what_may_be_kept_can_be_had_in_any_order(
    data: st.DataObject, count: int, noise: list[int]
) -> None:
    """Servers, clients and sizes as they come: whoever wants no more than its share gets it and keeps it; the total is
    never more than the budget. Those who want more settle: in the end nobody gives way to anybody."""
    total = 10_000
    share = min(total // 2 // count, total // 4)
    sizes = data.draw(
        st.lists(
            st.lists(st.integers(0, share) | st.integers(0, total // 4), min_size=1, max_size=3).map(tuple),
            min_size=count,
            max_size=count,
        )
    )
    lists = [(name, number, size) for name, each in enumerate(sizes) for number, size in enumerate(each)]
    modest = {str(name) for name, each in enumerate(sizes) if sum(each) <= share}
    kept = Kept(total)
    held: list[Holding] = []
    for size in noise:
        with suppress(OverBudget):
            held.append(kept.budget.hold(client_owner(str(len(held))), Use.REQUESTS, drop=lambda: None))
            held[-1].drop = held[-1].release
            held[-1].grow(size)

    def in_turn(order: list[tuple[int, int, int]]) -> None:
        for name, number, size in order:
            fits = kept.ask(str(name), size, number)
            assert fits or str(name) not in modest
            assert kept.budget.used <= total
            assert kept.budget.used - sum(each.size for each in held) <= total // 2

    in_turn(data.draw(st.permutations(lists)))
    in_turn(data.draw(st.permutations(lists)))
    assert not modest & {name for name, _ in kept.displaced}
    for name in modest:
        assert kept.size(name) == sum(sizes[int(name)])


@settings(max_examples=examples(40))
@given(sizes=st.lists(st.integers(1, 250), min_size=2, max_size=12), order=st.randoms(use_true_random=False))
def test_who_wants_more_than_there_is_asks_in_vain_and_disturbs_nobody(sizes: list[int], order: random.Random) -> None:
    """However often, and in whatever order they ask again."""
    kept = Kept(1000)
    names = list(range(len(sizes)))
    for _ in range(2 * len(sizes)):
        order.shuffle(names)
        for name in names:
            kept.ask(str(name), sizes[name])
    settled = len(kept.displaced)
    for _ in range(5):
        order.shuffle(names)
        for name in names:
            kept.ask(str(name), sizes[name])
    assert len(kept.displaced) == settled


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


OWNERS = st.sampled_from([client_owner(None), ADA, BOB, GH])


class Machine(RuleBasedStateMachine):
    """Charges, releases and drops in any order: the sums agree and the budget holds."""

    fair = False
    """Everything that is dropped is given back at once: then an equal share can always be had."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.budget = Budget(1000, self.clock)
        self.live: list[tuple[Owner, Holding]] = []

    def begin(self, owner: Owner, size: int, gives: float | None, *, firm: bool = False) -> None:
        def drop() -> None:
            if gives == 1:
                held.release()
            else:
                held.grow(-int(held.size * (gives or 0)))

        held = self.budget.hold(owner, Use.REQUESTS, drop=None if gives is None else drop, firm=firm)
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
    @rule(owner=OWNERS, size=st.integers(0, 600), gives=st.sampled_from([None, 0.0, 0.5, 1.0]), firm=st.booleans())
    def hold(self, owner: Owner, size: int, gives: float | None, firm: bool) -> None:
        self.begin(owner, size, gives, firm=firm and gives in (None, 1.0))


class FairMachine(Machine):
    fair = True

    @rule(owner=OWNERS, size=st.integers(0, 600))
    def hold(self, owner: Owner, size: int) -> None:
        self.begin(owner, size, 1.0)


TestAnyMachine = AnyMachine.TestCase
TestFairMachine = FairMachine.TestCase
TestAnyMachine.settings = TestFairMachine.settings = settings(max_examples=examples(30), stateful_step_count=30)


def test_what_is_held_for_a_part_of_an_owner_can_be_revoked() -> None:
    budget = Budget(1000)
    dropped: list[str] = []

    def hold(of: str | None) -> Holding:
        def drop() -> None:
            dropped.append(of or "nothing")
            holding.release()

        holding = budget.hold(client_owner("laptop"), Use.REQUESTS, 10, drop, of=of)
        return holding

    one, two, other = hold("one"), hold("two"), hold(None)
    budget.revoke(lambda of: "its view is another" if of == "one" else "")
    assert dropped == ["one"]
    assert [(each.revoked, each.dropped) for each in (one, two, other)] == [
        ("its view is another", True),
        ("", False),
        ("", False),
    ]
    assert budget.used == 20
