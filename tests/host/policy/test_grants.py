"""A grant is good for exactly what a person allowed, for as long as was said. Where nobody can tell, for nothing."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import fields

from config import Check, Condition
from host.policy.conditions import UNREADABLE
from host.policy.fingerprint import arguments_digest
from host.policy.grants import AccessRequest, Grant, Grants, Scope, new_id
from host.storage.sqlite import SqliteStore
from host.storage.store import StateError
from host.subject import Item, Subject
from tests.kit.awaited import awaited
from tests.kit.cost import assert_costs_less
from tests.kit.gates import altered, locked, store_opener

ONCE, SESSION, TIME, ALWAYS = Scope
START = 1_700_000_000.0
RAW = b'{"owner": "acme", "title": "x"}'
ACME = (Condition("/owner", (Check("in", ("acme", "ours")),)),)


class Clocks:
    """The two clocks of a machine; the wall clock can be set."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 50.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.05)
    return tmp_path / "state"


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


Opener = Callable[[], Grants]


@pytest.fixture
def open_grants(state: Path, clocks: Clocks) -> Iterator[Opener]:
    """The grants as a host that was just started has them."""
    with store_opener(state, monotonic=lambda: clocks.monotonic) as opened:
        yield lambda: Grants(opened(), wall=lambda: clocks.wall, monotonic=lambda: clocks.monotonic)


@pytest.fixture
def grants(open_grants: Opener) -> Grants:
    return open_grants()


ACCESS = AccessRequest(
    Subject(
        Item("github", "tool", "create_issue"),
        caller="alice",
        session=7,
        fingerprint="sha256:tool",
        launch="sha256:launch",
        rule="tools.ask: create_*",
        digest=arguments_digest(RAW),
    ),
    arguments={"owner": "acme", "title": "x"},
)


def granted(scope: Scope = ONCE, **other: object) -> Grant:
    """A grant for exactly WISH, but for what is said."""
    subject = structs.replace(ACCESS.subject, session=ACCESS.subject.session if scope is SESSION else None)
    grant = Grant(new_id(), subject, (), scope, START, START + 900 if scope is TIME else None, "console")
    return altered(grant, **other)


def add(grants: Grants, scope: Scope = ONCE, **other: object) -> Grant:
    grant = granted(scope, **other)
    awaited(grants.add(grant))
    return grant


# What a grant fits


@pytest.mark.parametrize("scope", list(Scope))
def test_a_grant_fits_the_call_that_it_was_given_for(scope: Scope, grants: Grants) -> None:
    assert grants.find(ACCESS) is None
    grant = add(grants, scope)
    assert grants.find(ACCESS) == grant
    assert grants.why_unusable(grant) is None
    assert grants.use(grant, ACCESS)


OTHER_ACCESSES = {
    "caller": "bob",
    "server": "gitlab",
    "kind": "prompt",
    "name": "create_issues",
    "fingerprint": "sha256:other",
    "launch": "sha256:other",
    "rule": "tools.default",
    "digest": arguments_digest(RAW.replace(b"acme", b"acmf")),
}


@pytest.mark.parametrize("field", [*OTHER_ACCESSES, "nobody"])
@pytest.mark.parametrize("scope", list(Scope))
def test_a_grant_fits_nothing_that_differs_in_one_thing(field: str, scope: Scope, grants: Grants) -> None:
    changed: dict[str, Any] = {"caller": None} if field == "nobody" else {field: OTHER_ACCESSES[field]}
    other = altered(ACCESS, **changed)
    grant = add(grants, scope)
    assert grants.find(other) is None
    assert not grants.use(grant, other)
    assert grants.use(grant, ACCESS), "and that did not use it up"


def test_callers_without_a_name_are_all_one_and_nobody_else(grants: Grants) -> None:
    grant = add(grants, ALWAYS, caller=None)
    assert grants.find(ACCESS) is None
    assert grants.find(altered(ACCESS, caller="")) is None
    assert grants.find(altered(ACCESS, caller=None, session=8)) == grant


def test_every_field_of_an_access_request_is_looked_at() -> None:
    looked_at = {*OTHER_ACCESSES, "session", "arguments", "retry"}
    looked_at.add("ref")  # by the fingerprint
    looked_at.add("through")  # by the rule: where a search tool makes a difference, another one decides
    of_subject = {*Item.__struct_fields__, *Subject.__struct_fields__} - {"item"}
    assert {field.name for field in fields(AccessRequest)} - {"subject"} | of_subject == looked_at


def test_a_grant_for_any_arguments_fits_any(grants: Grants) -> None:
    grant = add(grants, ALWAYS, digest=None)
    assert grants.find(altered(ACCESS, digest="sha256:any", arguments=UNREADABLE)) == grant


def test_a_grant_for_going_on_is_none_for_beginning(grants: Grants) -> None:
    on = add(grants, ONCE, retry=True)
    assert grants.find(ACCESS) is None
    assert not grants.use(on, ACCESS)
    assert grants.use(on, altered(ACCESS, retry=True))
    plain = add(grants, ALWAYS)
    assert grants.find(altered(ACCESS, retry=True)) == plain


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"owner": "acme"}, True),
        ({"owner": "ours", "more": 1}, True),
        ({"owner": "others"}, False),
        ({"owner": 1}, False),
        ({"owner": ["acme"]}, False),
        ({}, False),
        (None, False),
        ([], False),
        (UNREADABLE, False),
    ],
)
def test_conditions_must_be_true_unknown_is_not_enough(arguments: object, fits: bool, open_grants: Opener) -> None:
    grant = add(open_grants(), ALWAYS, digest=None, when=ACME)
    again = open_grants()
    access = altered(ACCESS, digest="sha256:any", arguments=arguments)
    assert again.find(access) == (grant if fits else None)
    assert again.use(grant, access) is fits


@pytest.mark.parametrize(
    "check",
    [
        Check("unheard of", "x"),
        Check("", None),
        Check("range", "x"),
        Check("range", (1,)),
        Check("max_len", None),
        Check("max_len", "9"),
        Check("glob", 5),
        Check("path_under", None),
        Check("host_in", 7),
        Check("prefix", None),
        Check("type", ("string", None)),
    ],
)
def test_a_check_that_nobody_understands_never_matches(check: Check, open_grants: Opener) -> None:
    """As another version may have stored it (row P10)."""
    add(open_grants(), ALWAYS, digest=None, when=(Condition("/owner", (check,)),))
    grants = open_grants()
    assert grants.problem is None
    arguments: list[object] = [{"owner": value} for value in ("/a", "a", 5, "x.example", ["a"], None, True, 1.5)]
    for value in [*arguments, {}, None]:
        access = altered(ACCESS, arguments=value)
        assert grants.find(access) is None


def test_of_those_that_fit_the_narrowest_is_taken(grants: Grants) -> None:
    narrow_to_broad = [
        granted(ONCE),
        granted(SESSION),
        granted(TIME),
        granted(ALWAYS),
        granted(ALWAYS, digest=None, when=(*ACME, Condition("/title", (Check("type", "string"),)))),
        granted(ALWAYS, digest=None, when=ACME),
        granted(SESSION, digest=None),
        granted(ALWAYS, digest=None),
    ]
    for grant in reversed(narrow_to_broad):
        awaited(grants.add(grant))
    for grant in narrow_to_broad:
        assert grants.find(ACCESS) == grant
        assert awaited(grants.revoke(grant.id))
    assert grants.find(ACCESS) is None


# How often, and in which session


def test_once_is_once(grants: Grants, open_grants: Opener) -> None:
    """Row P7: not again, not with one byte changed, not for somebody else."""
    grant = add(grants)
    changed = altered(ACCESS, digest=arguments_digest(RAW.replace(b"x", b"y")))
    for access in (changed, altered(ACCESS, caller="bob"), altered(ACCESS, caller=None)):
        assert grants.find(access) is None
        assert not grants.use(grant, access)
    assert open_grants().find(ACCESS) is None, "it is in this process only"
    assert grants.use(grant, ACCESS)
    for access in (ACCESS, changed, altered(ACCESS, retry=True)):
        assert grants.find(access) is None
        assert not grants.use(grant, access)
    assert grants.all() == []
    assert open_grants().all() == [], "and a crash gives nobody another use"


def test_what_was_found_for_two_calls_is_used_by_one(grants: Grants) -> None:
    add(grants)
    first, second = grants.find(ACCESS), grants.find(ACCESS)
    assert first is not None
    assert second is not None
    assert [grants.use(first, ACCESS), grants.use(second, ACCESS)] == [True, False]


def test_the_others_are_not_used_up(grants: Grants) -> None:
    for scope in (SESSION, TIME, ALWAYS):
        grant = add(grants, scope)
        assert [grants.use(grant, ACCESS) for _ in range(3)] == [True] * 3


def test_a_grant_that_was_never_added_is_none(grants: Grants) -> None:
    grant = add(grants, ALWAYS)
    assert not grants.use(granted(ALWAYS), ACCESS)
    assert not grants.use(altered(grant, name="other"), altered(ACCESS, name="other"))
    assert grants.why_unusable(granted(ALWAYS)) == "it is not there any more"


def test_a_session_is_one_session_and_over_with_it(grants: Grants, open_grants: Opener) -> None:
    grant = add(grants, SESSION)
    once = add(grants, ONCE, session=7, name="other")
    always = add(grants, ALWAYS, name="third")
    other = add(grants, SESSION, session=8)
    for session in (8, None, "7"):
        assert grants.find(altered(ACCESS, session=session)) == (other if session == 8 else None)
        assert not grants.use(grant, altered(ACCESS, session=session))
    assert grants.find(altered(ACCESS, name="other", session=8)) is None
    assert open_grants().all() == [always]
    grants.end_session(7)
    assert grants.find(ACCESS) is None
    assert not grants.use(grant, ACCESS)
    assert not grants.use(once, altered(ACCESS, name="other"))
    assert grants.all() == [other, always]


def test_a_grant_says_for_how_long(grants: Grants) -> None:
    for wrong in (
        granted(SESSION, session=None),
        granted(TIME, expires=None),
        granted(TIME, session=7),
        granted(ALWAYS, session=7),
    ):
        with pytest.raises(ValueError, match="a grant for"):
            awaited(grants.add(wrong))
    assert grants.all() == []


# Time


@pytest.mark.parametrize("scope", list(Scope))
def test_a_grant_with_an_end_ends_then(scope: Scope, grants: Grants, clocks: Clocks) -> None:
    grant = add(grants, scope, expires=START + 900)
    clocks.passes(899.5)
    assert grants.find(ACCESS) == grant
    clocks.passes(0.5)
    assert grants.find(ACCESS) is None
    assert not grants.use(grant, ACCESS)
    assert grants.why_unusable(grant) == "its time is over"
    assert grants.all() == [grant]


@pytest.mark.parametrize("scope", list(Scope))
def test_setting_the_clock_back_gives_nobody_more_time(
    scope: Scope, grants: Grants, open_grants: Opener, clocks: Clocks
) -> None:
    """Row P10: both clocks have to say that it is not over."""
    clocks.passes(100)
    grant = add(grants, scope, made=START + 100, expires=START + 1000)
    clocks.passes(800)
    clocks.wall -= 600
    assert grants.find(ACCESS) == grant
    clocks.passes(100)
    assert clocks.wall < START + 1000
    assert grants.find(ACCESS) is None
    assert grants.why_unusable(grant) == "its time is over"
    clocks.wall = START
    for each in (grants, open_grants()):
        assert each.find(ACCESS) is None
        assert not each.use(grant, ACCESS)
    assert grants.why_unusable(grant) == "it was made in the future: the clock of this machine was set back"


def test_setting_the_clock_forward_ends_what_ends(grants: Grants, clocks: Clocks) -> None:
    """As a machine that slept: its monotonic clock stood still."""
    timed, always = add(grants, TIME), add(grants, ALWAYS, digest=None)
    clocks.wall += 86400
    assert not grants.use(timed, ACCESS)
    assert grants.find(ACCESS) == always


def test_after_a_start_the_rest_of_the_time_is_left(open_grants: Opener, clocks: Clocks) -> None:
    grant = add(open_grants(), TIME)
    clocks.wall += 600
    clocks.monotonic = 3.0
    again = open_grants()
    assert again.find(ACCESS) == grant
    clocks.monotonic += 299
    assert again.find(ACCESS) == grant
    clocks.monotonic += 1
    assert again.find(ACCESS) is None
    clocks.wall += 300
    assert open_grants().find(ACCESS) is None


def test_what_is_over_is_cleared_away_when_something_is_written(
    grants: Grants, open_grants: Opener, clocks: Clocks
) -> None:
    add(grants, TIME)
    clocks.passes(1000)
    kept = add(grants, ALWAYS, made=clocks.wall)
    assert grants.all() == open_grants().all() == [kept]


# Taking back


@pytest.mark.parametrize("scope", list(Scope))
def test_what_is_taken_back_is_not_there_any_more(scope: Scope, grants: Grants, open_grants: Opener) -> None:
    grant = add(grants, scope)
    assert not awaited(grants.revoke("other"))
    assert awaited(grants.revoke(grant.id))
    assert not awaited(grants.revoke(grant.id))
    assert grants.find(ACCESS) is None
    assert not grants.use(grant, ACCESS)
    assert open_grants().all() == []


def test_what_is_not_to_be_kept_is_void(grants: Grants, open_grants: Opener) -> None:
    given = {scope: [add(grants, scope), add(grants, scope, rule="tools.default")] for scope in Scope}
    void = grants.revoke_unless(lambda grant: grant.subject.rule == "tools.default")
    awaited(grants.store_revocations())
    assert sorted(void, key=str) == sorted((each[0] for each in given.values()), key=str)
    assert grants.find(ACCESS) is None
    assert not any(grants.use(grant, ACCESS) for grant in void)
    left = [each[1] for each in given.values()]
    assert sorted(grants.all(), key=str) == sorted(left, key=str)
    assert sorted(open_grants().all(), key=str) == sorted(left[2:], key=str)
    assert grants.revoke_unless(lambda grant: True) == []


# Several hosts


def test_what_one_host_grants_or_takes_back_holds_in_the_other(open_grants: Opener) -> None:
    one, two = open_grants(), open_grants()
    grant = add(one, ALWAYS)
    assert two.find(ACCESS) == grant
    assert awaited(two.revoke(grant.id))
    assert not one.use(grant, ACCESS), "also between finding it and using it"
    assert one.find(ACCESS) is None
    timed, other = add(one, TIME), add(two, TIME, name="other")
    assert set(one.all()) | {other} == set(two.all()) | {timed}
    one.reread()
    two.reread()
    assert set(one.all()) == set(two.all()) == {timed, other}
    assert two.revoke_unless(lambda grant: False) == [timed, other]
    awaited(two.store_revocations())
    assert one.find(ACCESS) is None


HOST = """
import sys
from pathlib import Path
from host.policy.grants import Grant, Grants, Scope
from tests.kit.awaited import awaited
from host.subject import Item, Subject
from tests.kit.gates import store_opener
subject = Subject(Item("a", "tool", "x"), None, None, "f", "l", "r", "d")
with store_opener(Path(sys.argv[1])) as opened:
    grants = Grants(opened())
    for at in range(int(sys.argv[3])):
        id = f"{sys.argv[2]}{at}"
        grant = Grant(id, subject, (), Scope.ALWAYS, 0.0, None, "console")
        awaited(grants.add(grant))
        if at % 2:
            assert awaited(grants.revoke(id))
        grants.reread()
        assert grants.problem is None, grants.problem
"""


@pytest.mark.slow
def test_processes_that_grant_at_once_lose_nothing_of_each_other(tmp_path: Path, open_grants: Opener) -> None:
    open_grants()
    names, each = ("b", "c", "d"), 40
    hosts = [subprocess.Popen([sys.executable, "-c", HOST, tmp_path / "state", name, str(each)]) for name in names]
    assert [host.wait(50) for host in hosts] == [0] * len(names)
    grants = open_grants()
    assert grants.problem is None
    assert {grant.id for grant in grants.all()} == {f"{name}{at}" for name in names for at in range(0, each, 2)}


# When the store cannot be used


@pytest.mark.sqlite
def test_no_stored_grant_holds_once_the_store_is_gone(state: Path, grants: Grants) -> None:
    stored, once = add(grants, ALWAYS), add(grants, ONCE, name="other")
    (state / "colonnade.db").unlink()
    assert not grants.use(stored, ACCESS)
    assert grants.all() == [once]
    assert "no stored grant holds" in str(grants.problem)
    with pytest.raises(StateError):
        add(grants, ALWAYS, digest=None)
    assert grants.all() == [once]


@pytest.mark.sqlite
def test_while_the_store_is_locked_stored_grants_hold_for_two_seconds(
    state: Path, grants: Grants, clocks: Clocks
) -> None:
    stored = add(grants, ALWAYS)
    session = add(grants, SESSION, name="other")
    with locked(state):
        assert grants.find(ACCESS) == stored
        clocks.passes(1.9)
        assert grants.use(stored, ACCESS)
        clocks.passes(0.2)
        assert grants.find(ACCESS) is None
        assert not grants.use(stored, ACCESS)
        assert grants.all() == [session]
        assert "locked" in str(grants.problem)
    assert grants.find(ACCESS) == stored
    assert grants.problem is None


@pytest.mark.sqlite
def test_a_grant_is_not_said_to_be_none_because_the_store_is_locked(state: Path, clocks: Clocks) -> None:
    """Neither when a host starts beside one that is just writing, nor when it takes back what that one granted."""
    with store_opener(state, monotonic=lambda: clocks.monotonic) as opened:
        one, store = Grants(opened(), wall=lambda: START), opened()
        with locked(state), pytest.raises(StateError, match="another process"):
            Grants(store, wall=lambda: START)
        two = Grants(store, wall=lambda: START)
        grant = add(one, ALWAYS)
        with locked(state), pytest.raises(StateError, match="another process"):
            awaited(two.revoke(grant.id))
        assert awaited(two.revoke(grant.id))


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "change",
    ["expires = NULL", "scope = 'once'", "scope = 'session'", "scope = 'ever'", "conditions = '[{\"path\": 1}]'"],
)
def test_a_grant_that_nobody_understands_does_not_hold(change: str, state: Path, open_grants: Opener) -> None:
    add(open_grants(), TIME)
    sound = add(open_grants(), ALWAYS, name="sound")
    with closing(sqlite3.connect(state / "colonnade.db")) as other, other:
        other.execute(f"UPDATE person_grant SET {change} WHERE name = ?", (ACCESS.subject.item.name,))
    assert open_grants().all() == [sound]


@pytest.mark.sqlite
def test_what_cannot_be_stored_does_not_hold(state: Path, grants: Grants, open_grants: Opener) -> None:
    old, voided = add(grants, ALWAYS), add(grants, ALWAYS, name="other")
    with locked(state):
        with pytest.raises(StateError):
            add(grants, TIME)
        assert grants.find(ACCESS) == old
        with pytest.raises(StateError):
            awaited(grants.revoke(old.id))
        assert grants.revoke_unless(lambda grant: grant.subject.item.name != "other") == [voided]
        with pytest.raises(StateError):
            awaited(grants.store_revocations())
        assert "are still stored" in str(grants.problem)
        assert grants.all() == [], "here they hold no longer"
        assert grants.find(ACCESS) is None
    assert set(open_grants().all()) == {old, voided}
    assert grants.find(ACCESS) is None
    new = add(grants, TIME)
    assert grants.problem is None
    assert grants.all() == open_grants().all() == [new], "with the next change they are gone everywhere"


# What is stored


SCALARS = st.text(st.characters(codec="utf-8"), max_size=5) | st.integers(-9, 9) | st.booleans() | st.floats(-9, 9)
CONDITIONS = st.builds(
    Condition,
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.lists(
        st.builds(Check, st.sampled_from(["eq", "in", "range"]), SCALARS | st.none() | st.tuples(SCALARS, st.none())),
        max_size=2,
    ).map(tuple),
)


@pytest.fixture(scope="module")
def one_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], SqliteStore]]:
    with store_opener(tmp_path_factory.mktemp("one") / "state") as opened:
        one, two = opened(), opened()
        yield itertools.cycle((one, two)).__next__


@given(when=st.lists(CONDITIONS, max_size=2).map(tuple), expires=st.none() | st.floats(START + 1, START + 1e6))
def test_a_stored_grant_comes_back_as_it_was(
    one_place: Callable[[], SqliteStore], when: tuple[Condition, ...], expires: float | None
) -> None:
    grants = Grants(one_place(), wall=lambda: START)
    for former in grants.all():
        awaited(grants.revoke(former.id))
    grant = add(grants, ALWAYS, when=when, expires=expires, digest=None, caller=None)
    [found] = Grants(one_place(), wall=lambda: START).all()
    assert found == grant
    assert repr(found) == repr(grant), "1 is not True is not 1.0"


@pytest.mark.slow
def test_a_thousand_grants_are_searched_in_no_time(grants: Grants) -> None:
    for at in range(1000):
        add(grants, ONCE, name=f"tool{at}")
    assert grants.find(ACCESS) is None
    assert_costs_less(lambda: grants.find(ACCESS), 0.02)
