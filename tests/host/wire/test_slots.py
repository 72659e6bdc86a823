"""Choice of the connection that is closed for a new one, with a clock that the tests step and fake connections."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from host.wire.slots import EXTRA, INCOMPLETE_TIMEOUT, RECENT_WINDOW, RESERVED, SERVED_EXTRA, Phase, Slots
from tests.kit.examples import examples


class Played:
    """A connection as the listener has it: `unread` and `answering` are what the listener knows beyond its phase."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.unread = False
        self.answering = False
        self.closed = False

    def __repr__(self) -> str:
        return self.name

    def waits_for_client(self) -> bool:
        return not (self.closed or self.unread or self.answering)

    def close(self) -> None:
        self.closed = True


class Line:
    """Slots on a clock of their own: each step takes one second."""

    def __init__(self, regular: int) -> None:
        self.slots: Slots[Played] = Slots(regular)
        self.now = 0.0

    def connect(self, name: str = "") -> Played | None:
        """A connection that is accepted, if one more may be."""
        self.now += 1
        if self.slots.full and not self.slots.make_room(self.now):
            return None
        connection = Played(name)
        self.slots.add(connection, self.now)
        return connection

    def open(self, name: str = "") -> Played:
        connection = self.connect(name)
        assert connection is not None
        return connection

    def turn(self, connection: Played, phase: Phase) -> None:
        self.now += 1
        self.slots.set_phase(connection, phase, self.now)

    def asks(self, connection: Played, owner: Hashable = None, *, reserved: bool = False) -> bool:
        """A whole request comes, and is claimed; whether it is served."""
        self.turn(connection, Phase.REQUEST)
        connection.answering = self.slots.claim(connection, owner, self.now, reserved=reserved)
        return connection.answering

    def answered(self, connection: Played) -> None:
        connection.answering = False
        self.turn(connection, Phase.IDLE)

    def busy(self, owner: Hashable = None) -> Played:
        connection = self.open(str(owner))
        assert self.asks(connection, owner)
        return connection

    def idle(self, owner: Hashable = None) -> Played:
        connection = self.busy(owner)
        self.answered(connection)
        return connection


# Room for one more


def test_nothing_is_closed_before_all_regular_slots_are_taken() -> None:
    line = Line(3)
    first, second, third = (line.open() for _ in range(3))
    assert [each.closed for each in (first, second, third)] == [False, False, False]
    line.open()
    assert (first.closed, second.closed, third.closed) == (True, False, False)


def test_the_connections_that_are_idle_lately_are_told_from_older_ones() -> None:
    slots: Slots[Played] = Slots(4)
    assert not slots.idle_since(0)
    old, new = Played(), Played()
    slots.add(old, 1)
    slots.add(new, 5)
    assert (slots.idle_since(4), slots.idle_since(5)) == (True, False)
    slots.set_phase(new, Phase.REQUEST, 6)
    assert (slots.idle_since(0.5), slots.idle_since(1)) == (True, False)
    slots.set_phase(new, Phase.IDLE, 7)
    assert slots.idle_since(6)


def test_the_longest_idle_anonymous_connection_goes_whether_it_was_used_or_not() -> None:
    line = Line(3)
    a, b, c = line.idle(), line.open(), line.idle()
    line.asks(a)
    line.answered(a)
    for victim in (b, c, a):
        assert not victim.closed
        line.open()
        assert victim.closed


def test_a_connection_in_use_or_with_unread_bytes_is_never_closed() -> None:
    line = Line(3)
    busy, unread, idle = line.busy(), line.idle(), line.idle()
    unread.unread = True
    newest = [line.open() for _ in range(100)]
    assert [each.closed for each in (busy, unread, idle, newest[-2], newest[-1])] == [False, False, True, True, False]


def test_a_thousand_connections_that_come_again_and_again_never_close_one_that_was_used_meanwhile() -> None:
    """The connection must be used once before a thousand others have come."""
    line = Line(1000)
    good = line.idle()
    for n in range(5_000):
        line.open()
        if n % 900 == 0:
            assert line.asks(good)
            line.answered(good)
    assert not good.closed
    assert len(line.slots) == 1000


def test_an_old_incomplete_head_goes_first_and_a_young_one_not_at_all() -> None:
    line = Line(2)
    idle, head = line.open(), line.open()
    line.turn(head, Phase.HEAD)
    line.now += INCOMPLETE_TIMEOUT - 1.01
    extra = line.open()
    assert (idle.closed, head.closed, extra.closed) == (True, False, False)
    line.open()
    assert (head.closed, extra.closed) == (True, False)


def test_incomplete_heads_are_counted_whoever_owned_the_connection_before() -> None:
    line = Line(4)
    for connection in (line.open(), line.idle("a"), line.idle("b")):
        line.turn(connection, Phase.HEAD)
    line.idle("a")
    assert line.slots.incomplete_heads == 3
    line.asks(connection, "b")
    assert line.slots.incomplete_heads == 2


def test_bytes_that_trickle_in_make_no_head_younger() -> None:
    line = Line(2)
    head, idle = line.open(), line.open()
    line.turn(head, Phase.HEAD)
    line.turn(head, Phase.HEAD)
    line.open()
    assert (head.closed, idle.closed) == (True, False)


def test_an_incomplete_body_goes_last_and_only_when_it_is_old() -> None:
    line = Line(2)
    body, idle = line.busy(), line.open()
    body.answering = False
    line.open()
    assert (body.closed, idle.closed) == (False, True)
    (other,) = (each for each in line.slots if each is not body)
    other.unread = True
    line.open()
    assert [each.closed for each in (body, other)] == [True, False]


def test_a_connection_that_only_discards_input_goes_before_any_other() -> None:
    line = Line(2)
    line.open()
    ending = line.busy("laptop")
    line.asks(ending, None)
    ending.answering = False
    line.turn(ending, Phase.ENDING)
    line.open()
    assert ending.closed


def test_a_connection_that_was_just_accepted_has_a_moment_to_send_before_it_is_closed_for_another() -> None:
    """Unless a complete request needs its slot."""
    line = Line(1)
    fresh = line.open()
    line.slots.add(young := Played(), line.now + 0.05)
    before = fresh.closed
    assert line.slots.claim(young, None, line.now + 0.05, reserved=False)
    assert [before, fresh.closed] == [False, True]


# Whose connections


def test_anonymous_connections_make_no_room_at_the_cost_of_named_ones() -> None:
    line = Line(2)
    named = line.idle("laptop"), line.idle("desk")
    newcomers = [line.open() for _ in range(EXTRA)]
    assert not line.asks(newcomers[-1])
    assert line.open() is not None, "the longest idle of the newcomers went"
    assert newcomers[0].closed
    assert not any(each.closed for each in named)


def test_a_named_newcomer_gets_the_slot_of_the_owner_with_the_most_once_no_anonymous_one_is_idle() -> None:
    line = Line(6)
    desk = line.idle("desk")
    laptop = [line.idle("laptop") for _ in range(4)]
    anonymous = line.idle()
    line.now += RECENT_WINDOW
    line.busy("phone")
    assert anonymous.closed
    line.busy("phone")
    assert [each.closed for each in (desk, *laptop)] == [False, True, False, False, False]
    line.asks(line.open(), "phone")
    assert [each.closed for each in (desk, *laptop)] == [False, True, False, False, False], "three are not fewer"


def test_owners_with_one_connection_each_never_take_it_from_each_other() -> None:
    """Three anonymous connections are being answered: nothing else could be closed."""
    line = Line(5)
    for _ in range(3):
        line.busy()
    desk, laptop = line.idle("desk"), line.idle("laptop")
    line.now += RECENT_WINDOW
    assert line.asks(line.open(), "phone"), "in an extra slot"
    assert [each.closed for each in (desk, laptop)] == [False, False]


def test_an_owner_gives_up_an_idle_connection_of_its_own() -> None:
    line = Line(3)
    first, second = line.idle("laptop"), line.idle("laptop")
    line.busy()
    line.now += RECENT_WINDOW
    assert line.asks(line.open(), "laptop")
    assert [each.closed for each in (first, second)] == [True, False]


@pytest.mark.parametrize(("since", "closed"), [(RECENT_WINDOW - 0.01, False), (RECENT_WINDOW, True)])
def test_no_named_connection_is_closed_within_seconds_of_its_use(since: float, closed: bool) -> None:
    line = Line(4)
    laptop = [line.idle("laptop") for _ in range(4)]
    newcomer = line.open()
    line.turn(newcomer, Phase.REQUEST)
    used = line.slots._slots[laptop[0]].since
    assert line.slots.claim(newcomer, "phone", used + since, reserved=False)
    assert [each.closed for each in laptop] == [closed, False, False, False]


def test_a_connection_belongs_to_the_owner_of_its_last_request() -> None:
    line = Line(2)
    shared, other = line.idle("laptop"), line.idle("laptop")
    line.asks(shared)
    line.answered(shared)
    line.open()
    assert (shared.closed, other.closed) == (True, False)


def test_the_owner_of_all_slots_gets_no_more_and_another_one_does() -> None:
    line = Line(10)
    for _ in range(10):
        line.busy("laptop")
    assert not line.asks(line.open(), "laptop")
    assert not line.asks(line.open(), None)
    served = [line.asks(line.open(), "desk") for _ in range(10)]
    assert served == [True] * 5 + [False] * 5, "half of ten"
    assert line.asks(line.open(), "phone")


def test_refused_requests_of_one_owner_leave_the_extra_slots_to_others() -> None:
    line = Line(100)
    for _ in range(100):
        line.busy("laptop")
    for _ in range(2 * SERVED_EXTRA):
        refused = line.open()
        assert not line.asks(refused, "laptop")
        line.turn(refused, Phase.ENDING)
    assert line.asks(line.open(), "desk")


def test_extra_connections_that_are_served_leave_some_to_read_heads() -> None:
    line = Line(1000)
    for _ in range(1000):
        line.busy("laptop")
    served = [line.asks(line.open(), "desk") for _ in range(EXTRA)]
    assert served == [True] * SERVED_EXTRA + [False] * (EXTRA - SERVED_EXTRA)


# Extra and reserved slots


def test_extra_connections_are_accepted_up_to_their_number() -> None:
    line = Line(4)
    for _ in range(4):
        line.busy()
    extra = [line.open() for _ in range(EXTRA)]
    for each in extra:
        each.unread = True
    assert line.connect() is None
    extra[0].unread = False
    assert line.connect() is not None
    assert extra[0].closed


def test_an_extra_connection_gets_the_slot_that_was_freed() -> None:
    line = Line(1)
    busy = line.busy()
    first, second = line.open(), line.open()
    assert not line.asks(second)
    line.slots.remove(busy)
    assert line.asks(first, "laptop")
    assert not line.slots.ends_after_answer(first)
    assert line.slots.ends_after_answer(second)


def test_an_extra_connection_with_a_request_closes_an_idle_one() -> None:
    line = Line(1)
    busy = line.busy()
    extra = line.open()
    line.answered(busy)
    assert line.asks(extra)
    assert busy.closed


def test_a_marked_request_is_served_although_all_connections_are_in_use() -> None:
    line = Line(4)
    for _ in range(4):
        line.busy()
    console = line.open()
    assert line.asks(console, None, reserved=True)
    for _ in range(RESERVED - 1):
        assert line.asks(line.open(), None, reserved=True)
    assert not console.closed
    assert line.asks(line.open(), "person", reserved=True)
    assert console.closed, "even in the middle of a request: nobody knows whose it is"


def test_named_marked_requests_keep_their_slots() -> None:
    line = Line(4)
    for _ in range(4):
        line.busy()
    persons = [line.open() for _ in range(RESERVED)]
    for each in persons:
        assert line.asks(each, "person", reserved=True)
    assert not line.asks(line.open(), None, reserved=True)
    assert not any(each.closed for each in persons)


def test_anonymous_answers_end_their_connections_above_nine_tenths() -> None:
    line = Line(100)
    connections = [line.open() for _ in range(90)]
    assert not line.slots.ends_after_answer(connections[0])
    line.open()
    assert line.slots.ends_after_answer(connections[0])
    line.asks(connections[0], "laptop")
    assert not line.slots.ends_after_answer(connections[0])


def test_a_connection_that_was_closed_to_make_room_claims_nothing() -> None:
    line = Line(1)
    first = line.open()
    line.open()
    assert first.closed
    assert not line.slots.claim(first, "laptop", line.now, reserved=True)
    line.turn(first, Phase.REQUEST)
    line.slots.remove(first)
    assert len(line.slots) == 1


OWNERS = st.sampled_from([None, "laptop", "desk"])


class AnyLife(RuleBasedStateMachine):
    """Random actions of connections in any order: the limits hold, and no connection in use is closed."""

    REGULAR = 5

    def __init__(self) -> None:
        super().__init__()
        self.line = Line(self.REGULAR)
        self.open: list[Played] = []

    def _some(self, number: int) -> Played:
        return self.open[number % len(self.open)]

    @rule()
    def connect(self) -> None:
        connection = self.line.connect()
        if connection is not None:
            self.open.append(connection)
        else:
            assert not any(
                self.line.slots._slots[each].owner is None and each.waits_for_client() for each in self.open
            ) or any(self.line.slots._slots[each].phase in (Phase.HEAD, Phase.REQUEST) for each in self.open)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 99), owner=OWNERS, reserved=st.booleans())
    def request(self, number: int, owner: str | None, reserved: bool) -> None:
        connection = self._some(number)
        connection.unread = False
        if not self.line.asks(connection, owner, reserved=reserved):
            self.line.turn(connection, Phase.ENDING)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 99), phase=st.sampled_from(Phase), unread=st.booleans())
    def turn(self, number: int, phase: Phase, unread: bool) -> None:
        connection = self._some(number)
        connection.answering, connection.unread = False, unread
        self.line.turn(connection, phase)

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 99))
    def leave(self, number: int) -> None:
        self.line.slots.remove(self._some(number))

    @invariant()
    def numbers_hold(self) -> None:
        slots = self.line.slots
        kinds = {kind.name: len(members) for kind, members in slots._kinds.items()}
        assert kinds["REGULAR"] <= self.REGULAR
        assert kinds["EXTRA"] <= EXTRA
        assert kinds["RESERVED"] <= RESERVED
        assert sum(kinds.values()) == len(slots)
        assert sum(len(each) for phases in slots._phases.values() for each in phases.values()) == len(slots)
        if kinds["EXTRA"] or kinds["RESERVED"]:
            assert kinds["REGULAR"] == self.REGULAR, "a free slot is given to one that waits for it"

    @invariant()
    def none_in_use_is_closed(self) -> None:
        for connection in self.open:
            if connection.closed:
                assert connection not in self.line.slots._slots
        self.open = [each for each in self.open if each in self.line.slots._slots]


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=examples(20), stateful_step_count=50)
