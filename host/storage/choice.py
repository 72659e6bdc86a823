"""The store of a configuration, and the keys of what is in it: those of its fleet, or of the state directory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from config import Fleet
from host.seal import derive_key, fleet_keys
from host.storage.directory import State
from host.storage.sql import Store
from host.storage.sqlite import open_store
from host.storage.store import not_installed


def open_chosen_store(fleet: Fleet | None, state: State, source: Path) -> AbstractContextManager[Store]:
    """The store of the configuration file `source`, for the block.

    Raises:
        StateError: it cannot be opened.
    """
    if fleet is None:
        return open_store(state, source)
    import_postgres()
    from host.storage.postgres import open_postgres

    return open_postgres(fleet)


def import_postgres() -> None:
    """Import what only fleets need: 22 MB, and a tenth of a second.

    Raises:
        StateError: it is not installed.
    """
    try:
        import psycopg  # noqa: F401
    except ImportError as problem:
        raise not_installed("fleet.store", "psycopg", "postgres", problem) from None


def keys_for(use: bytes, fleet: Fleet | None, state: State) -> tuple[bytes, ...]:
    """The keys for one use of what is stored; the first one is for what is stored from now on.

    Raises:
        StateError: that of the state directory cannot be read or made.
    """
    return (derive_key(state.key(), use),) if fleet is None else fleet_keys(use, fleet)
