"""Members that some readers take for one another."""

from __future__ import annotations

import pytest

from host.errors import InvalidParams
from host.jsonrpc.twins import NO_NAMES, KnownNames, describe_twin, fold_name, refuse_twins

KNOWN = KnownNames("name", "arguments", "requestedSchema")


@pytest.mark.parametrize(
    "twin",
    [
        "Name",
        "NAME",
        "name\0",
        "name\0more",
        "ｎame",  # full-width n
        "argumentſ",  # long s
        "requestedschema",
        "RequestedſChema",
    ],
)
def test_a_member_that_folds_to_a_known_name_is_found(twin: str) -> None:
    assert KNOWN.twin_in(["_meta", twin]) == twin
    assert KNOWN.twin_in([twin, "name", "arguments", "requestedSchema"]) == twin


@pytest.mark.parametrize("names", [["id", "ID"], ["Straße", "strasse"], ["a\0b", "a"], ["\u212a", "k"], ["\0a", "\0b"]])
def test_two_unknown_members_that_are_equal_after_folding_are_found(names: list[str]) -> None:
    assert NO_NAMES.twin_in(names) == names[1]


def test_known_names_and_all_others_pass() -> None:
    assert KNOWN.twin_in(["name", "arguments", "requestedSchema"]) is None
    assert KNOWN.twin_in(["name", "names", "Nam", "n\u0430me", "x-Name", "", " name"]) is None  # with a Cyrillic a
    assert KNOWN.twin_in([]) is None


def test_known_names_may_not_be_twins() -> None:
    with pytest.raises(ValueError, match="two known names"):
        KnownNames("uri", "URI")


def test_declared_names_that_are_twins_may_each_be_there_alone() -> None:
    declared = KnownNames.declared(["id", "ID", "other"])
    assert declared.twin_in(["id", "other"]) is None
    assert declared.twin_in(["ID", "other"]) is None
    assert declared.twin_in(["id", "ID"]) == "ID"
    assert declared.twin_in(["Id"]) == "Id"
    assert declared.twin_in(["other", "Other"]) == "Other"


def test_refusing_names_the_member() -> None:
    refuse_twins(KNOWN, ["name", "x"])
    with pytest.raises(InvalidParams, match="the member 'Name'"):
        refuse_twins(KNOWN, ["name", "Name"])


def test_folding_ends_at_nul() -> None:
    assert fold_name("\uff35RL\0rest") == "url"


def test_the_reason_shows_the_member_escaped_and_cut() -> None:
    assert describe_twin("Name\0") == "some readers take the member 'Name\\x00' for another one"
    assert len(describe_twin("N" * 1000)) < 200
