"""Which store a configuration has, and whose keys."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from config import Fleet, Secret
from host.storage.choice import keys_for, open_chosen_store
from host.storage.directory import open_state
from host.storage.sqlite import SqliteStore
from host.storage.store import StateError
from tests.kit.gates import SOURCE

FLEET = Fleet("acme", Secret("postgresql://127.0.0.1:1/x"), (Secret("5a" * 32), Secret("a5" * 32)))


def test_without_a_fleet_it_is_that_of_the_state_directory(tmp_path: Path) -> None:
    with open_chosen_store(None, open_state(tmp_path / "state"), SOURCE) as store:
        assert isinstance(store, SqliteStore)


def test_a_fleet_that_cannot_be_reached_is_not_replaced_by_it(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    with (
        pytest.raises(StateError, match="the fleet's database cannot be used"),
        open_chosen_store(FLEET, state, SOURCE),
    ):
        pass
    assert not (state.path / "colonnade.db").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        StateError,
        match=r"needs the package psycopg .*pip install -e '\.\[postgres\]' .*uv tool install '\.\[postgres\]'",
    ):
        open_chosen_store(FLEET, open_state(tmp_path / "state"), SOURCE)


def test_keys_are_those_of_the_fleet_one_for_each_use_and_name(tmp_path: Path) -> None:
    one, other = (open_state(tmp_path / name) for name in ("one", "other"))
    assert keys_for(b"use", None, one) == keys_for(b"use", None, one) != keys_for(b"use", None, other)
    assert keys_for(b"use", FLEET, one) == keys_for(b"use", FLEET, other)
    named = Fleet("b", FLEET.store, FLEET.keys)
    found = {*keys_for(b"use", FLEET, one), *keys_for(b"other", FLEET, one), *keys_for(b"use", named, one)}
    assert len(found) == 6
