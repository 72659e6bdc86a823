"""A token with a home leads there, and nobody makes or changes one."""

from __future__ import annotations

import re
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.fleet.tokens import FORMAT, HomedSeal, Homes
from host.seal import InvalidSeal, Seal

KEY = bytes(range(32))
A, B = (Homes(Seal(KEY), boot) for boot in ("aaaaaaaa", "bbbbbbbb"))
OF_ANOTHER_FLEET = Homes(Seal(bytes(32)), A.boot)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_every_process_of_the_fleet_reads_where_a_token_belongs(token: str) -> None:
    assert B.read(A.name(token)) == (A.boot, token)
    assert B.read(B.name(token)) == (B.boot, token)


def test_a_session_id_with_a_home_fits_into_its_header() -> None:
    id = A.name(secrets.token_urlsafe(24))
    assert re.fullmatch(r"f1\.[A-Za-z0-9_.-]+", id)
    assert len(id) <= 128
    assert A.boot not in id


def test_no_long_token_is_remembered() -> None:
    """States of requests may have half a million characters, and servers choose how many clients bring back."""
    long, short = (A.name("x" * length) for length in (100_000, 100))
    assert [B.read(each) is not None for each in (long, short)] == [True, True]
    assert long not in B._known
    assert short in B._known


@given(st.data())
def test_a_changed_token_has_no_home(data: st.DataObject) -> None:
    """Not with one character changed, in its home or in itself."""
    text = A.name("a token")
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters(exclude_categories=[])) + text[at + 1 :]
    assert changed == text or B.read(changed) is None


@given(st.text())
def test_what_is_no_token_of_the_fleet_has_no_home(text: str) -> None:
    assert A.read(text) is None
    assert A.read(FORMAT + text) is None


def test_a_home_goes_with_no_other_token_and_comes_from_no_other_fleet() -> None:
    mine, other = A.name("mine"), A.name("other")
    home, _, _ = mine.removeprefix(FORMAT).partition(".")
    assert A.read(f"{FORMAT}{home}.{other.rpartition('.')[2]}") is None
    assert A.read(OF_ANOTHER_FLEET.name("mine")) is None


def test_a_sealed_text_names_its_home_and_opens_at_each_process() -> None:
    at_a, at_b = HomedSeal(Seal(KEY), A), HomedSeal(Seal(KEY), B)
    text = at_a.seal("cursor", b"alice", b"12.0.1", 60)
    assert at_b.unseal("cursor", b"alice", text) == b"12.0.1"
    found = at_b.homes.read(text)
    assert found is not None
    assert found.home == A.boot
    for purpose, binding, changed in (
        ("state", b"alice", text),
        ("cursor", b"bob", text),
        ("cursor", b"alice", found.token),
        ("cursor", b"alice", at_a.seal("cursor", b"alice", b"12.0.1", -1)),
    ):
        with pytest.raises(InvalidSeal):
            at_b.unseal(purpose, binding, changed)


def test_a_process_has_ended_that_the_fleet_does_not_have() -> None:
    present = {B.boot}
    seal = HomedSeal(Seal(KEY), A, present.__contains__)
    assert [seal.has_ended(boot) for boot in (A.boot, B.boot, "cccccccc")] == [False, False, True]
    present.clear()
    assert [seal.has_ended(boot) for boot in (A.boot, B.boot)] == [False, True]
