"""PostgreSQL: what is refused at a start, what is believed of its rows, and what holds while it does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from config import Fleet, Secret
from host.storage import postgres as module
from host.storage.migrate import migrate
from host.storage.postgres import GRACE, Macs, PostgresStore, StoreConnection, open_postgres
from host.storage.sql import Database, Transaction, Write
from host.storage.store import CredentialKey, StateError, StoredItem, uptime
from tests.host.storage.test_sql import APPROVED, SEALED, changes, grant, puts, session, stored, trim
from tests.kit.awaited import awaited
from tests.kit.gates import run_here
from tests.kit.postgres import KEY, PostgresServer, needs_postgres, own_server

pytestmark = [needs_postgres, pytest.mark.slow]
OTHER_KEY = Secret("a5" * 32)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as name:
        yield name


@contextmanager
def opened(fleet: Fleet) -> Iterator[PostgresStore]:
    with open_postgres(fleet, run_in_thread=run_here) as store:
        yield store


def until(holds: Callable[[], object]) -> None:
    """Wait for what another thread does; the test's own limit of time is the only one."""
    while not holds():
        threading.Event().wait(0.005)


# At a start


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:hidden@/x?host={folder}&no_such_hidden=x", "fleet.store is not a URL that PostgreSQL's"),
        ("postgresql://u:hidden@/x?host={folder}", 'cannot be used: .*database "x" does not exist'),
        ("postgresql://postgres:hidden@/hidden?host={folder}", "cannot be used: "),
        ("postgresql://u:hidden@127.0.0.1:1/x", "cannot be used: .*127.0.0.1"),
    ],
)
def test_a_database_that_cannot_be_reached_is_told_without_its_password(
    postgres: PostgresServer, url: str, said: str
) -> None:
    fleet = Fleet("acme", Secret(url.format(folder=postgres.folder).replace("u:", "postgres:")), (KEY,))
    before = set(threading.enumerate())  # other tests leave some that write
    with pytest.raises(StateError, match=said) as caught, opened(fleet):
        pass
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert not [each for each in set(threading.enumerate()) - before if "colonnade" in each.name]


def test_a_pooler_that_passes_on_no_notices_is_refused(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes LISTEN and gives another connection to the next transaction."""
    monkeypatch.setattr(StoreConnection, "listen", lambda self, channel: None)
    monkeypatch.setattr(module, "PROBE_LIMIT", 0.1)
    with (
        pytest.raises(StateError, match=r"passes on no notices \(LISTEN\): a pooler"),
        opened(postgres.fleet(database)),
    ):
        pass


def test_a_database_of_bytes_is_refused(postgres: PostgresServer) -> None:
    name = "bytes_only"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    try:
        with (
            pytest.raises(StateError, match="has the encoding SQL_ASCII; make one with UTF8"),
            opened(postgres.fleet(name)),
        ):
            pass
    finally:
        postgres.execute(f"DROP DATABASE {name}")


# What is believed


@pytest.mark.parametrize(
    "change",
    [
        "approved_fingerprint = 'sha256:2', approved_definition = '{}'",
        "approved_by = 'somebody'",
        "closed = 0, rejected = NULL",
        "offered_fingerprint = 'sha256:2', offered_since = 1, offered_definition = '{}'",
        "server = 'c'",
        "name = 'y'",
        "mac = ''",
    ],
)
def test_a_definition_that_was_written_without_the_key_allows_nothing(
    postgres: PostgresServer, database: str, change: str
) -> None:
    rejected = StoredItem(APPROVED.approved, None, "sha256:2", closed=True)
    with opened(postgres.fleet(database)) as store:
        awaited(store.write(puts("x", rejected)))
        postgres.execute(f"UPDATE colonnade.item SET {change}", database=database)
        ((_, items),) = store.load_definitions().items.items()
        (item,) = items.values()
        assert (item.approved, item.offered, item.closed) == (None, None, True)


@pytest.mark.parametrize(
    "change", ["rule = 'tools.ask: *'", "caller = 'eve'", "expires = NULL", "digest = 'x'", "conditions = '[ ]'"]
)
def test_a_grant_that_was_written_without_the_key_is_none(postgres: PostgresServer, database: str, change: str) -> None:
    fleet = postgres.fleet(database)
    with opened(fleet) as store:
        awaited(store.write(lambda transaction: transaction.put_grant(grant("g", 9.0))))
        assert store.read_grants() == [grant("g", 9.0)]
        postgres.execute(f"UPDATE colonnade.person_grant SET {change}", database=database)
        assert store.load_grants()[0] == []
    with opened(fleet) as store:
        assert store.read_grants() == []


@pytest.mark.parametrize("change", ["server = 'b'", "chosen = 1", "mac = ''"])
def test_a_program_stays_unconfined_by_what_was_written_with_the_key_alone(
    postgres: PostgresServer, database: str, change: str
) -> None:
    with opened(postgres.fleet(database)) as store:
        awaited(store.write(lambda transaction: transaction.put_unconfined("a", False)))
        assert store.load_definitions().unconfined == {"a": False}
        postgres.execute(f"UPDATE colonnade.unconfined SET {change}", database=database)
        assert store.load_definitions().unconfined == {}


def test_rows_of_one_fleet_are_nothing_to_another_with_the_same_key(postgres: PostgresServer, database: str) -> None:
    postgres.execute("INSERT INTO colonnade.config VALUES ('other', 0, 0, 0, 0, NULL)", database=database)
    with opened(postgres.fleet(database)) as store:
        awaited(store.write(puts("x")))
    postgres.execute("UPDATE colonnade.item SET config = 'other'", database=database)
    with pytest.raises(StateError, match="with none of them the definitions of fleet other"):
        opened(postgres.fleet(database, "other")).__enter__()


def test_a_key_is_changed_in_steps(postgres: PostgresServer, database: str) -> None:
    with opened(postgres.fleet(database, "acme", KEY)) as store:
        awaited(store.write(puts("x")))
    with opened(postgres.fleet(database, "acme", OTHER_KEY, KEY)) as store:
        awaited(store.write(puts("y")))
        assert stored(store) == {"x": APPROVED, "y": APPROVED}
    with opened(postgres.fleet(database, "acme", OTHER_KEY)) as store:
        assert {name: item.approved is not None for name, item in stored(store).items()} == {"x": False, "y": True}


def test_a_process_with_keys_of_another_fleet_does_not_start(postgres: PostgresServer, database: str) -> None:
    """It would store that all is held. That is so before anything was approved, too."""
    with pytest.raises(StateError, match=r"fleet\.keys: .*write the keys that its other processes have"):
        opened(postgres.fleet(database, "acme", OTHER_KEY)).__enter__()
    with opened(postgres.fleet(database, "acme", KEY)) as store:
        awaited(store.write(puts("x")))
        with pytest.raises(StateError, match=r"fleet\.keys: .*write the keys that its other processes have"):
            opened(postgres.fleet(database, "acme", OTHER_KEY)).__enter__()
        followers = [thread for thread in threading.enumerate() if thread.name == "colonnade store"]
        assert followers == [store._thread], "that of the refused process has ended, or was not begun"
        assert stored(store) == {"x": APPROVED}


def test_a_fleet_that_was_made_with_a_wrong_key_is_made_again_while_it_has_served_nothing(
    postgres: PostgresServer,
) -> None:
    with postgres.database(template=None) as name:
        right, wrong = (postgres.fleet(name, "acme", key) for key in (KEY, OTHER_KEY))
        migrate(wrong)
        with pytest.raises(StateError, match="as long as it has served nothing, run colonnade migrate with these"):
            opened(right).__enter__()
        migrate(right)
        with opened(right) as store:
            awaited(store.write(puts("x")))
        migrate(wrong)
        with pytest.raises(StateError, match="with none of them the definitions"):
            opened(wrong).__enter__()
        with opened(right) as store:
            assert stored(store) == {"x": APPROVED}


def test_values_cannot_be_moved_from_one_column_to_the_next() -> None:
    macs = Macs(Fleet("acme", Secret("postgresql://localhost/x"), (KEY,)))
    made = macs.make("item", ("a", "b", None, 1))
    assert macs.is_right("item", ("a", "b", None, 1), made)
    for values in (("ab", "", None, 1), ("a", "b", "", 1), ("a", "b", None, "1"), ("a", "b", None, 1, None)):
        assert not macs.is_right("item", values, made)
    assert not macs.is_right("grant", ("a", "b", None, 1), made)


# Between processes


def test_what_was_written_without_a_notice_shows_all_the_same(postgres: PostgresServer, database: str) -> None:
    with opened(postgres.fleet(database)) as store:
        awaited(store.write(lambda transaction: transaction.put_grant(grant("g"))))
        known = store.poll()
        postgres.execute(
            "DELETE FROM colonnade.person_grant", "UPDATE colonnade.config SET grants = grants + 1", database=database
        )
        until(lambda: store.poll() != known)
        assert store.read_grants() == []


def test_an_older_copy_counts_from_then_on(postgres: PostgresServer, database: str) -> None:
    """A standby that had not everything took the place of the database: nothing that it does not hold is believed."""
    with opened(postgres.fleet(database)) as store:
        for name in ("x", "y"):
            awaited(store.write(puts(name)))
            awaited(store.write(lambda transaction, name=name: transaction.put_grant(grant(name))))  # type: ignore[misc]
        known = store.poll()
        postgres.execute(
            "DELETE FROM colonnade.item WHERE name = 'y'",
            "DELETE FROM colonnade.person_grant WHERE id = 'y'",
            "UPDATE colonnade.config SET definitions = 1, grants = 1",
            database=database,
        )
        until(lambda: store.poll() != known)
        found = changes(store, known.definitions)
        assert ([*found.items["a", "tool"]], found.complete) == (["x"], True)
        assert store.read_grants() == [grant("x")]


def test_a_fleet_whose_row_is_gone_holds_nothing_until_the_next_start(postgres: PostgresServer, database: str) -> None:
    with opened(postgres.fleet(database)) as store:
        awaited(store.write(puts("x")))
        postgres.execute("DELETE FROM colonnade.config", database=database)
        until(lambda: store.problem)
        assert "does not hold the fleet acme any more" in str(store.problem)
        assert not store.is_reliable
        with pytest.raises(StateError, match="does not hold the fleet acme any more"):
            awaited(store.write(puts("y")))


def test_sessions_wait_for_no_decision_and_decisions_not_without_end(postgres: PostgresServer, database: str) -> None:
    with (
        opened(postgres.fleet(database)) as store,
        psycopg.connect(postgres.url(database)) as other,
    ):
        other.execute("SELECT 1 FROM colonnade.config FOR UPDATE")
        awaited(store.write(lambda transaction: transaction.put_sessions([session("s", 1.0)])))
        assert awaited(store.read_session("s")) == session("s", 1.0)
        with pytest.raises(StateError, match=r"another process of the fleet has held its database for 0\.8 s"):
            awaited(store.write(puts("x")))
        other.rollback()
        awaited(store.write(puts("x")))


def test_a_session_is_not_waited_for_behind_a_long_reading(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client waits for it; the definitions of thousands of servers take up to half a minute."""
    monkeypatch.setattr(module, "TURN_LIMIT", 0.01)
    with opened(postgres.fleet(database)) as store:
        awaited(store.write(lambda transaction: transaction.put_sessions([session("s", 1.0)])))

        def reads_long(database: Database, config: str, what: None) -> None:
            with pytest.raises(StateError, match="in use by this process for"):
                awaited(store.read_session("s"))

        store._select(reads_long, None)
        assert awaited(store.read_session("s")) == session("s", 1.0)


def test_a_change_after_a_failed_one_has_the_lock_again(postgres: PostgresServer, database: str) -> None:
    """It was taken within what was undone, which ends it."""
    failed = threading.Event()

    def fails(transaction: Transaction) -> None:
        puts("never")(transaction)
        raise LookupError("no")

    def change(transaction: Transaction) -> None:
        transaction.revision()
        with psycopg.connect(postgres.url(database)) as other, pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("SELECT 1 FROM colonnade.config FOR UPDATE NOWAIT")
        failed.set()

    with opened(postgres.fleet(database)) as store:
        batch = [Write(fails, None), Write(change, None)]
        store._commit_or_split(batch)
        assert isinstance(batch[0].error, LookupError)
        assert (batch[1].error, failed.is_set()) == (None, True)


# While it does not answer


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    with own_server() as server:
        yield server


@pytest.mark.parametrize("away", [PostgresServer.paused, PostgresServer.crashed])
def test_grants_do_not_hold_without_answers_and_hold_again_with_them(
    own: PostgresServer, away: Callable[[PostgresServer], Iterator[None]]
) -> None:
    """And nothing waits without end: whoever stores gets a sentence, once the database is known to be away at once."""
    with own.database() as name, opened(own.fleet(name)) as store:
        awaited(store.write(puts("x")))
        awaited(store.write(lambda transaction: transaction.put_grant(grant("g"))))
        with away(own):  # type: ignore[attr-defined]
            with pytest.raises(StateError, match="the fleet's database"):
                awaited(store.write(puts("y")))
            until(lambda: not store.is_reliable)
            assert store.problem is None, "what was approved holds for longer"
            with pytest.raises(StateError, match="the fleet's database"):
                awaited(store.read_definitions(lambda: store.poll().definitions))
        until(lambda: store.is_reliable)
        until(lambda: stores_again(store))
        assert store.read_grants() == [grant("g")]
        assert set(stored(store)) == {"x", "z"}


def test_grants_hold_only_as_long_as_the_others_take_this_process_for_there(
    postgres: PostgresServer, database: str
) -> None:
    with opened(postgres.fleet(database)) as store:
        assert store.is_reliable
        store.has_lease = lambda: False
        assert (store.is_reliable, store.problem) == (False, None)


def test_a_revision_is_never_known_without_its_grants(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process learns of it in a transaction that changes nothing, before it has looked. The others, which wait
    until it has taken the revision over, would take a grant for revoked here, too."""
    fleet = postgres.fleet(database)
    with opened(fleet) as store, opened(fleet) as other:
        awaited(other.write(lambda transaction: transaction.put_grant(grant("g"))))
        until(lambda: store.read_grants() == [grant("g")])
        monkeypatch.setattr(store, "look", lambda: None)
        awaited(other.write(lambda transaction: transaction.remove_grants(frozenset("g"), 0.0)))
        awaited(store.write(lambda transaction: transaction.lease_credential(CredentialKey("s"), "x", 1.0)))
        assert store.poll() == other.poll()
        assert store.read_grants() == []


def test_the_clock_of_the_database_is_known_up_to_the_time_that_it_took_to_say_it(
    postgres: PostgresServer, database: str
) -> None:
    with opened(postgres.fleet(database)) as store:
        for _ in range(20):
            before = store.now()
            ((there,),) = postgres.execute("SELECT extract(epoch FROM clock_timestamp())::float8", database=database)
            assert before <= there <= store.now() + store.lag


def test_a_machine_that_slept_believes_nothing_that_was_read_before(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its monotonic clock stood still, and the other one did not."""
    with opened(postgres.fleet(database)) as store:
        awaited(store.write(lambda transaction: transaction.put_grant(grant("g"))))
        with store._lock:  # nothing is taken over
            slept = time.clock_gettime
            monkeypatch.setattr(time, "clock_gettime", lambda clock: slept(clock) + 60 * (clock == time.CLOCK_BOOTTIME))
            assert not store.is_reliable


def test_a_process_that_was_stopped_for_a_minute_counts_nothing_at_its_first_look(
    postgres: PostgresServer, database: str
) -> None:
    """It made no attempt meanwhile, and knows the time alone."""
    stopped = [0.0]
    opening = open_postgres(postgres.fleet(database), run_in_thread=run_here, monotonic=lambda: uptime() + stopped[0])
    with opening as store:
        awaited(store.write(puts("x")))
        known = store.poll().definitions
        with store._lock:  # its thread takes over nothing yet
            stopped[0] = GRACE
            assert "does not answer for 75 s; nothing that it holds counts" in str(store.problem)
        until(lambda: reads_again(store, known))
        until(lambda: store.is_reliable)
        assert store.problem is None


def stores_again(store: PostgresStore) -> bool:
    try:
        awaited(store.write(puts("z")))
    except StateError:
        return False
    return True


def test_after_a_while_nothing_holds_until_it_was_read_again(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.5)
    with own.database() as name, opened(own.fleet(name)) as store:
        awaited(store.write(puts("x")))
        known = store.poll().definitions
        with own.crashed():
            until(lambda: store.problem)
            assert "does not answer for 0.5 s; nothing that it holds counts until it does" in str(store.problem)
            with pytest.raises(StateError):
                awaited(store.write(puts("y")))
        until(lambda: reads_again(store, known))
        assert store.problem is None
        assert store.is_reliable
        awaited(store.write(puts("y")))


def reads_again(store: PostgresStore, known: int) -> bool:
    try:
        found = awaited(store.read_definitions(lambda: known))
    except StateError:
        return False
    assert found is not None
    assert (found.complete, [*found.items["a", "tool"]]) == (True, ["x"]), "all of it: nothing of it is known any more"
    return True


def test_credentials_are_there_after_a_crash(own: PostgresServer) -> None:
    """What was confirmed is on disk, as far as the operating system goes on."""
    notes = CredentialKey("notes")
    with own.database() as name:
        fleet = own.fleet(name)
        with opened(fleet) as store:
            awaited(store.write(lambda transaction: transaction.put_credential(notes, SEALED)))
        with own.crashed():
            pass
        began = time.monotonic()
        while True:
            try:
                with opened(fleet) as store:
                    assert list(awaited(store.read_credentials())) == [notes]
                break
            except StateError:
                assert time.monotonic() - began < 30


def test_many_sessions_are_trimmed_without_a_look_at_each_for_each(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there is too little memory for a set of those that stay. They are not looked at where the database says
    that they are fewer."""
    count, kept = 20_000, 15_000
    may_have, said = module.FleetTransaction.may_have_sessions, list[bool]()

    def says(transaction: module.FleetTransaction, count: int) -> bool:
        said.append(may_have(transaction, count))
        return said[-1]

    def rows(most: int) -> int:
        trim(store, most, 0.0)
        ((left,),) = postgres.execute("SELECT count(*) FROM colonnade.session", database=database)
        return int(left)

    monkeypatch.setattr(module.FleetTransaction, "may_have_sessions", says)
    postgres.execute(
        f"ALTER DATABASE {database} SET work_mem = '64kB'",
        "INSERT INTO colonnade.session (config, id, sealed, touched) "
        f"SELECT 'acme', sha256(n::text::bytea)::text, '', n FROM generate_series(1, {count}) AS n",
        "ANALYZE colonnade.session",
        database=database,
    )
    with opened(postgres.fleet(database)) as store:
        assert [rows(count), rows(kept), rows(kept)] == [count, kept, kept]
        postgres.execute("ANALYZE colonnade.session", database=database)
        assert [rows(count), rows(1000)] == [kept, 1000]
    assert said == [True, True, True, False, True]
