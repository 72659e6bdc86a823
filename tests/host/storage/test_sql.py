"""What every store does, whatever the database: each test runs over SQLite and over PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from host.storage import sql as module
from host.storage.sql import Cursor, Store, Transaction
from host.storage.store import (
    ApprovedDefinition,
    CredentialKey,
    OfferedDefinition,
    RememberedServer,
    Revisions,
    StateError,
    StoredCredential,
    StoredDefinitions,
    StoredGrant,
    StoredItem,
    StoredSession,
    TrimPlace,
)
from host.subject import Item, Subject
from tests.kit.awaited import awaited
from tests.kit.stores import Stores

APPROVED = StoredItem(ApprovedDefinition("sha256:1", b"{}", 1.5, "console"))


def puts(name: str, item: StoredItem | None = APPROVED, server: str = "a") -> Callable[[Transaction], None]:
    def change(transaction: Transaction) -> None:
        transaction.put_items(server, "tool", {name: item})

    return change


def stored(store: Store, since: int = 0) -> dict[str, StoredItem]:
    """The tools of the server `a`."""
    found = store.load_definitions() if since == 0 else changes(store, since)
    return found.items.get(("a", "tool"), {})


def changes(store: Store, since: int) -> StoredDefinitions:
    found = awaited(store.read_definitions(lambda: since))
    assert found is not None
    return found


def grant(id: str, expires: float | None = None) -> StoredGrant:
    subject = Subject(Item("a", "tool", "x"), None, None, "sha256:1", "", "tools.ask: x")
    return StoredGrant(id, subject, "[]", "always", 1.0, expires, "console", False)


def session(id: str, touched: float, sealed: str = "c1.sealed") -> StoredSession:
    return StoredSession(id, sealed, touched)


class Counted:
    """A connection of which is noted how many rows each statement has removed, or passed over."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.removed: list[int] = []
        self.passed: list[int] = []

    def execute(self, query: str, values: Sequence[Any] = ()) -> Cursor:
        cursor: Cursor = self._database.execute(query, values)
        if query.startswith("DELETE"):
            self.removed.append(cursor.rowcount)
        elif "OFFSET" in query:
            self.passed.append(values[-1] + 1)
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def trim(store: Store, most: int, used_before: float) -> tuple[list[int], list[int]]:
    """Remove sessions, step by step. Returns how many rows each statement has removed, and has passed over."""
    removed, passed = list[int](), list[int]()

    def step(place: TrimPlace, transaction: Transaction) -> TrimPlace | None:
        assert isinstance(transaction, Transaction)
        transaction._database = counted = Counted(transaction._database)
        found = transaction.trim_sessions(most, used_before, place)
        removed.extend(counted.removed)
        passed.extend(counted.passed)
        assert len(counted.removed + counted.passed) <= 2
        return found

    place: TrimPlace | None = TrimPlace()
    while place is not None:
        place = awaited(store.write(partial(step, place)))
    return removed, passed


def remembers(server: str, remembered: RememberedServer) -> Callable[[Transaction], None]:
    return lambda transaction: transaction.put_remembered(server, remembered)


def test_what_is_remembered_of_a_server_is_read_as_it_was_stored(stores: Stores) -> None:
    with stores.opened() as store:
        assert awaited(store.read_remembered("a", "id")) is None
        awaited(store.write(remembers("a", RememberedServer("id", "{}", {"tool": b"1\n2", "prompt": b""}))))
        awaited(store.write(remembers("a", RememberedServer("id", '{"x":1}', {"prompt": b"3"}))))
        awaited(store.write(remembers("b", RememberedServer("id", "{}", {}))))
    with stores.opened() as store:
        stored = RememberedServer("id", '{"x":1}', {"tool": b"1\n2", "prompt": b"3"})
        assert awaited(store.read_remembered("a", "id")) == stored


def test_each_of_the_last_identities_of_a_server_has_lists_of_its_own(stores: Stores) -> None:
    def found() -> list[int]:
        stored = [awaited(store.read_remembered("a", f"id {number}")) for number in range(5)]
        return [number for number, each in enumerate(stored) if each and each.lists == {"tool": b"%d" % number}]

    with stores.opened() as store:
        for number in range(4):
            awaited(store.write(remembers("a", RememberedServer(f"id {number}", "{}", {"tool": b"%d" % number}))))
        assert found() == [0, 1, 2, 3]
        awaited(store.write(remembers("a", RememberedServer("id 0", "{}", {}))))
        awaited(store.write(remembers("a", RememberedServer("id 4", "{}", {"tool": b"4"}))))
        assert found() == [0, 2, 3, 4]


def test_a_damaged_list_is_not_remembered(stores: Stores) -> None:
    with stores.opened() as store:
        awaited(store.write(remembers("a", RememberedServer("id", "{}", {"tool": b"1"}))))
    stores.execute("UPDATE remembered_list SET entries = substr(entries, 1, 1)")
    with stores.opened() as store:
        assert awaited(store.read_remembered("a", "id")) is None


NOTES, FILES = CredentialKey("notes"), CredentialKey("files", "tess")
SEALED = StoredCredential("https://mcp.example/mcp", "https://login.example", "sealed")


def test_credentials_are_those_of_one_server_and_owner(stores: Stores) -> None:
    with stores.opened() as one, stores.opened() as other:
        awaited(one.write(lambda transaction: transaction.put_credential(NOTES, SEALED)))
        awaited(one.write(lambda transaction: transaction.put_credential(FILES, SEALED)))
        stored = awaited(other.read_credentials())
        stores.settle(other)
        assert {key: each._replace(revision=0) for key, each in stored.items()} == {NOTES: SEALED, FILES: SEALED}
        assert stored[NOTES].revision < stored[FILES].revision == other.poll().credentials
        awaited(other.write(lambda transaction: transaction.remove_credential(NOTES)))
        assert list(awaited(one.read_credentials())) == [FILES]


def test_another_login_takes_the_place_of_the_former_one(stores: Stores) -> None:
    """Also one at another issuer."""
    elsewhere = SEALED._replace(issuer="https://other.example", resource="https://mcp.example")
    with stores.opened() as store:
        first = awaited(store.write(lambda transaction: transaction.put_credential(NOTES, SEALED)))
        second = awaited(store.write(lambda transaction: transaction.put_credential(NOTES, elsewhere)))
        assert awaited(store.read_credentials()) == {NOTES: second}
        assert second.revision > first.revision
        assert second._replace(revision=0) == elsewhere


def test_a_lease_is_for_one_holder_until_it_ends(stores: Stores) -> None:
    def lease(store: Store, holder: str, seconds: float = 60) -> bool:
        return awaited(store.write(lambda transaction: transaction.lease_credential(NOTES, holder, seconds)))

    with stores.opened() as one, stores.opened() as other:
        assert not lease(one, "one"), "there is nothing to refresh"
        awaited(one.write(lambda transaction: transaction.put_credential(NOTES, SEALED)))
        before = one.poll().credentials
        assert lease(one, "one")
        assert not lease(other, "other")
        assert lease(one, "one", 0), "its holder may have it again, here for no time"
        assert lease(other, "other")
        awaited(one.write(lambda transaction: transaction.end_lease(NOTES, "one")))
        assert not lease(one, "one"), "it is not its own to end"
        awaited(other.write(lambda transaction: transaction.end_lease(NOTES, "other")))
        assert lease(one, "one")
        assert one.poll().credentials == before, "a lease changes no credentials"
        awaited(other.write(lambda transaction: transaction.put_credential(NOTES, SEALED)))
        assert lease(other, "other"), "credentials are stored without a lease"


_NUMBERS = count()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.floats(0, 2**40)
ITEMS = st.builds(
    StoredItem,
    st.none() | st.builds(ApprovedDefinition, TEXTS, st.none() | TEXTS.map(str.encode), TIMES, TEXTS),
    st.none() | st.builds(OfferedDefinition, TEXTS, st.none() | TEXTS.map(str.encode), TIMES),
    st.none() | TEXTS,
    st.booleans(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.dictionaries(TEXTS, ITEMS, max_size=5), data=st.data())
def test_items_come_back_as_they_were_stored(stores: Stores, items: dict[str, StoredItem], data: st.DataObject) -> None:
    """Any text as a name, any value; and what is taken out is out."""
    gone = data.draw(st.sets(st.sampled_from(sorted(items)))) if items else set()
    name = f"c{next(_NUMBERS)}"
    with stores.opened(name) as store:
        awaited(store.write(lambda transaction: transaction.put_items("a", "tool", items)))
        assert stored(store) == items
        awaited(store.write(lambda transaction: transaction.put_items("a", "tool", dict.fromkeys(gone))))
        with stores.opened(name) as other:
            assert stored(other) == {name: item for name, item in items.items() if name not in gone}


def test_a_reader_gets_what_changed_and_all_of_it_after_a_removal(stores: Stores) -> None:
    with stores.opened() as store, stores.opened() as other:
        awaited(store.write(puts("x")))
        known = other.load_definitions().revision
        awaited(store.write(puts("y")))
        stores.settle(other)
        assert other.poll().definitions == known + 1
        found = changes(other, known)
        assert ([*found.items["a", "tool"]], found.complete) == (["y"], False)
        awaited(store.write(puts("x", None)))
        stores.settle(other)
        found = changes(other, known + 1)
        assert ([*found.items["a", "tool"]], found.complete) == (["y"], True)


def test_a_change_sees_what_others_changed_since_a_revision(stores: Stores) -> None:
    with stores.opened() as store, stores.opened() as other:
        awaited(store.write(puts("x")))
        known = store.poll().definitions
        awaited(other.write(puts("y", server="b")))
        seen = awaited(
            store.write(
                lambda transaction: (
                    transaction.changed_since(known, "a", "tool"),
                    transaction.changed_since(known, "b", "tool"),
                    transaction.item("b", "tool", "y"),
                    transaction.revision(),
                )
            )
        )
        assert seen == (False, True, APPROVED, known + 1)


def test_configurations_do_not_see_each_other(stores: Stores) -> None:
    with stores.opened("one") as one, stores.opened("two") as two:
        before = two.poll()
        awaited(one.write(puts("x")))
        awaited(one.write(lambda transaction: transaction.put_grant(grant("g"))))
        awaited(one.write(lambda transaction: transaction.put_sessions([session("s", 1.0)])))
        awaited(two.write(lambda transaction: transaction.remove_sessions(["s"])))
        trim(two, 0, 2.0)
        assert (stored(two), two.read_grants(), two.poll()) == ({}, [], before)
        assert (awaited(two.read_session("s")), awaited(one.read_session("s"))) == (None, session("s", 1.0))


def test_grants_are_stored_taken_out_and_cleared_away_when_they_are_over(stores: Stores) -> None:
    with stores.opened() as store, stores.opened() as other:
        for each in (grant("a"), grant("b", 10.0), grant("c", 20.0)):
            awaited(store.write(lambda transaction, each=each: transaction.put_grant(each)))  # type: ignore[misc]
        stores.settle(other)
        assert other.read_grants() == [grant("a"), grant("b", 10.0), grant("c", 20.0)]
        before = other.poll()
        awaited(store.write(lambda transaction: transaction.remove_grants(frozenset("a"), 15.0)))
        stores.settle(other)
        assert other.poll() == Revisions(before.definitions, before.grants + 1)
        assert other.read_grants() == [grant("c", 20.0)]


def test_sessions_are_stored_with_their_last_use_and_move_no_revision(stores: Stores) -> None:
    with stores.opened() as store, stores.opened() as other:
        before = store.poll()
        awaited(store.write(lambda change: change.put_sessions([session("a", 1.5), session("b", 2.5)])))
        assert awaited(other.read_session("a")) == session("a", 1.5)
        assert awaited(other.read_session("c")) is None
        awaited(other.write(lambda change: change.put_sessions([session("a", 3.0, "c1.later")])))
        stale = [session("a", 2.9, "c1.stale")]
        awaited(store.write(lambda change: change.put_sessions(stale)))
        awaited(store.write(lambda change: change.renew_sessions(stale)))
        assert awaited(store.read_session("a")) == session("a", 3.0, "c1.later"), "another process had it later"
        awaited(store.write(lambda change: change.remove_sessions(["b", "c"])))
        assert awaited(store.read_session("b")) is None
        assert store.poll() == before


def test_a_session_that_was_removed_is_not_renewed(stores: Stores) -> None:
    with stores.opened() as store:
        awaited(store.write(lambda change: change.put_sessions([session("a", 1.0), session("b", 1.0)])))
        awaited(store.write(lambda change: change.remove_sessions(["a"])))
        renewed = [session("a", 2.0, "c1.later"), session("b", 2.0, "c1.later")]
        awaited(store.write(lambda change: change.renew_sessions(renewed)))
        assert [awaited(store.read_session(each)) for each in "ab"] == [None, session("b", 2.0, "c1.later")]


def test_sessions_that_are_old_or_too_many_are_removed(stores: Stores) -> None:
    with stores.opened() as store:
        awaited(store.write(lambda change: change.put_sessions([session(str(at), at) for at in range(6)])))
        for _ in range(2):
            trim(store, 2, 3.0)
            left = [id for id in map(str, range(6)) if awaited(store.read_session(id)) is not None]
            assert left == ["4", "5"], "3 is too many, 0 to 2 are too old"


def test_no_statement_removes_or_looks_at_more_sessions_than_a_few(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of however many that have expired, or stay; in transactions of their own, between which others have theirs."""
    monkeypatch.setattr(module, "TRIM_BATCH", 10)
    monkeypatch.setattr(module, "TRIM_PAGE", 20)
    with stores.opened() as store:
        rows = [session(f"{at:03}", at) for at in range(400)]
        awaited(store.write(lambda change: change.put_sessions(rows)))
        removed, passed = trim(store, 75, 200.0)
        assert sum(removed) == 325
        assert max(removed) == 10
        assert (sum(passed), max(passed)) == (75, 20)
        assert awaited(store.read_session("324")) is None
        assert awaited(store.read_session("325")) is not None


def test_sessions_that_were_used_at_one_time_stay_together(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRIM_PAGE", 2)
    with stores.opened() as store:
        rows = [session(f"{at}", at // 4) for at in range(12)]
        awaited(store.write(lambda change: change.put_sessions(rows)))
        trim(store, 4, -1.0)
        assert [awaited(store.read_session(f"{at}")) is not None for at in (0, 3, 4, 11)] == [False, False, True, True]


def test_a_change_that_raises_changes_nothing(stores: Stores) -> None:
    def change(transaction: Transaction) -> None:
        puts("x")(transaction)
        raise LookupError("no")

    with stores.opened() as store:
        before = store.poll()
        with pytest.raises(LookupError):
            awaited(store.write(change))
        assert (stored(store), store.poll()) == ({}, before)


async def test_changes_that_wait_together_are_one_transaction_and_confirmed_in_order(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    order: list[str] = []

    with stores.threaded() as store:
        commit = store._commit

        def counted(batch: Sequence[Any]) -> None:
            commits.append(len(batch))
            commit(batch)

        monkeypatch.setattr(store, "_commit", counted)
        begun, go = trio.Event(), threading.Event()
        token = trio.lowlevel.current_trio_token()

        def first(transaction: Transaction) -> None:
            token.run_sync_soon(begun.set)
            assert go.wait(10)
            puts("first")(transaction)

        def fails(transaction: Transaction) -> None:
            puts("never")(transaction)
            raise LookupError("no")

        async def write(name: str, change: Callable[[Transaction], None]) -> None:
            with pytest.raises(LookupError) if change is fails else nullcontext():
                await store.write(change, lambda result, revisions: order.append(name))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, "first", first)
            await begun.wait()
            for name in ("a", "b", "never", "c"):
                nursery.start_soon(write, name, fails if name == "never" else puts(name))
                await wait_all_tasks_blocked()
            go.set()
        assert commits == [1, 4], "the first, and all that came while it was stored"
        assert order == ["first", "a", "b", "c"]
        assert set(stored(store)) == {"first", "a", "b", "c"}


async def test_a_change_that_cannot_be_stored_fails_alone(stores: Stores) -> None:
    """The database's own error with one of several (here, a name that is no Unicode) keeps the others stored."""
    failed: list[str] = []
    with stores.threaded() as store:

        async def write(name: str) -> None:
            try:
                await store.write(puts(name))
            except StateError:
                failed.append(name)

        async with trio.open_nursery() as nursery:
            await store._turn.acquire()
            for name in ("a", "\ud800", "b"):
                nursery.start_soon(write, name)
            await wait_all_tasks_blocked()
            assert len(store._queue) == 3
            store._turn.release()
        assert failed == ["\ud800"]
        assert set(stored(store)) == {"a", "b"}


async def test_a_change_that_is_called_off_is_not_begun(stores: Stores) -> None:
    with stores.threaded() as store:
        await store._turn.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.write, puts("x"))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        store._turn.release()
        await store.write(puts("y"))
        assert set(stored(store)) == {"y"}


async def test_who_is_cancelled_when_its_turn_comes_stores_what_the_others_wait_for(stores: Stores) -> None:
    """It has taken their changes into its transaction: they would otherwise count as stored, and be nowhere."""
    with stores.threaded() as store:
        await store._turn.acquire()
        async with trio.open_nursery() as nursery:
            leading = trio.CancelScope()

            async def lead() -> None:
                with leading:
                    await store.write(puts("a"))

            nursery.start_soon(lead)
            await wait_all_tasks_blocked()
            nursery.start_soon(store.write, puts("b"))
            await wait_all_tasks_blocked()
            store._turn.release()
            leading.cancel()
        assert "b" in stored(store)
