from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from config import CallerSpec, ViewSpec, load
from config.views import ALL
from host.addresses import Addresses, addresses_of
from host.source import SHARED, Endpoint

CALLERS = {"laptop": CallerSpec("l"), "ci": CallerSpec("c")}
VIEWS = {
    "open": ViewSpec(),
    "coding": ViewSpec(callers=("laptop",), servers={"git": ALL}),
    "both": ViewSpec(callers=("ci", "laptop")),
    "small": ViewSpec(servers={"git": ALL}),
}
PLACES = (
    "",
    "git",
    "jira",
    "@open",
    "@coding",
    "@both",
    "@small",
    "@none",
    "@",
    "@git",
    "@open/git",
    "@@open",
)


def reached(addresses: Addresses, identity: str | None) -> dict[str, Endpoint]:
    return {each: found for each in PLACES if (found := addresses.at(identity, each)) is not None}


def test_a_caller_that_views_name_reaches_these_and_its_first_one_is_its_usual_one() -> None:
    for default in (None, "small", "both"):
        addresses = Addresses(VIEWS, CALLERS, default)
        assert reached(addresses, "l") == {
            "": Endpoint(view="coding"),
            "git": Endpoint("git", "coding"),
            "@coding": Endpoint(view="coding"),
            "@both": Endpoint(view="both"),
        }
        assert reached(addresses, "c") == {
            "": Endpoint(view="both"),
            "git": Endpoint("git", "both"),
            "jira": Endpoint("jira", "both"),
            "@both": Endpoint(view="both"),
        }


@pytest.mark.parametrize("identity", [None, "other", "laptop"])
def test_without_a_default_all_others_get_everything_and_each_view(identity: str | None) -> None:
    """The name of a caller is none of a token."""
    assert reached(Addresses(VIEWS, CALLERS), identity) == {
        "": SHARED,
        "git": Endpoint("git"),
        "jira": Endpoint("jira"),
        **{f"@{each}": Endpoint(view=each) for each in VIEWS},
    }


@pytest.mark.parametrize("identity", [None, "other"])
def test_a_default_is_the_boundary_of_all_others(identity: str | None) -> None:
    assert reached(Addresses(VIEWS, CALLERS, "small"), identity) == {
        "": Endpoint(view="small"),
        "git": Endpoint("git", "small"),
        "@small": Endpoint(view="small"),
        "@open": Endpoint(view="open"),
    }
    assert reached(Addresses(VIEWS, CALLERS, "both"), identity) == {
        "": Endpoint(view="both"),
        "git": Endpoint("git", "both"),
        "jira": Endpoint("jira", "both"),
        "@both": Endpoint(view="both"),
        "@open": Endpoint(view="open"),
        "@small": Endpoint(view="small"),
    }


def test_a_default_that_is_not_there_is_a_boundary_with_nothing_in_it() -> None:
    """Where a person took the view out while the key waits for another one."""
    assert reached(Addresses({"open": ViewSpec(), **VIEWS}, CALLERS, "gone"), None) == {
        "": Endpoint(view="gone"),
        "@open": Endpoint(view="open"),
        "@small": Endpoint(view="small"),
    }
    assert Addresses({}, {}, "gone").own("") == Endpoint(view="gone")


def test_a_caller_is_told_apart_only_if_a_rule_names_it() -> None:
    addresses = Addresses({}, CALLERS, None, ["ci"])
    assert addresses.at("c", "git") == Endpoint("git", caller="ci")
    assert addresses.at("l", "") == addresses.at(None, "") == SHARED


def test_whoever_is_known_by_a_token_that_the_file_has_no_more_is_a_stranger() -> None:
    views = {"coding": ViewSpec(callers=("gone",))}
    assert Addresses(views, {}, None).at("l", "") == SHARED


def test_over_stdio_every_view_can_be_chosen() -> None:
    for default in (None, "small"):
        addresses = Addresses(VIEWS, CALLERS, default)
        assert addresses.own("") == Endpoint(view=default or "")
        assert {each: addresses.own(each) for each in VIEWS} == {each: Endpoint(view=each) for each in VIEWS}
        assert addresses.own("none") is addresses.own("@open") is None


def test_an_endpoint_is_kept_while_each_address_of_it_leads_there() -> None:
    before = Addresses(VIEWS, CALLERS)
    first = {"both": VIEWS["both"], **VIEWS}
    later = Addresses(first, CALLERS)
    assert [before.keeps(later, "l", each) for each in reached(before, "l").values()] == [False, False, False, True]
    for identity in ("c", "other", None):
        assert all(before.keeps(later, identity, each) for each in reached(before, identity).values())
    narrower = Addresses({**VIEWS, "coding": ViewSpec(callers=("laptop",), servers={"jira": ALL})}, CALLERS)
    assert [each for each in reached(before, "l").values() if not before.keeps(narrower, "l", each)] == [
        Endpoint("git", "coding")
    ]


def test_what_is_not_kept_is_what_leads_elsewhere() -> None:
    """For every change between a few configurations, against the addresses themselves."""
    some: list[tuple[dict[str, ViewSpec], str | None]] = [
        (VIEWS, None),
        (VIEWS, "open"),
        (dict(reversed(VIEWS.items())), "both"),
        ({"open": VIEWS["open"]}, None),
        ({}, None),
    ]
    files = [Addresses(views, CALLERS, default, ruled) for views, default in some for ruled in ((), ("ci",))]
    for before, after in itertools.product(files, files):
        for identity in ("l", "c", "other", None):
            for place, endpoint in reached(before, identity).items():
                if after.at(identity, place) != endpoint:
                    assert not before.keeps(after, identity, endpoint)
                assert before.keeps(before, identity, endpoint)


def test_the_addresses_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text("""
listen: {auth: {tokens: {l: "${env:A}", c: "${env:B}"}}}
callers: {laptop: {token: l}, ci: {token: c}}
views: {coding: {callers: [laptop]}, rest: {}}
default_view: rest
servers: {git: {command: x, consent: {tools: {ask: [{name: "*", callers: [ci]}]}}}}
""")
    addresses = addresses_of(load(file, {"A": "a" * 16, "B": "b" * 16}))
    assert addresses.at("l", "") == Endpoint(view="coding")
    assert addresses.at("c", "") == Endpoint(view="rest", caller="ci")
