"""Policies of servers: what a reload leaves, and when an epoch begins."""

from __future__ import annotations

from config import Consent, Trust
from host.policy.policies import Policies

from .servers import ASKING, STRICT, spec


def test_rules_that_are_written_as_before_stay_and_the_others_are_named() -> None:
    policies = Policies({"a": spec("a", STRICT), "b": spec("b", STRICT), "c": spec("c")}, {})
    former = policies.rules("a")
    assert policies.replace({"a": spec("a", STRICT), "b": spec("b", ASKING), "d": spec("d")}, {}) == ["b", "d"]
    assert policies.rules("a") is former
    assert [policies.has_server(each) for each in "abcd"] == [True, True, False, True]
    assert policies.rules_of("c") is None


async def test_what_is_used_of_limits_stays_with_a_server_that_stays() -> None:
    policies = Policies({"a": spec("a")}, {})
    meter = policies.meter("a")
    assert policies.meter("a") is meter
    policies.replace({"a": spec("a", STRICT)}, {})
    assert policies.meter("a") is not meter
    policies.replace({}, {})
    assert policies.trust("a") is Trust.UNTRUSTED


def test_each_epoch_is_told_once_it_has_begun() -> None:
    policies = Policies({"a": spec("a", Consent())}, {})
    begun: list[int] = []
    policies.on_epoch.append(lambda: begun.append(policies.epoch))
    policies.begin_epoch()
    policies.begin_epoch()
    assert begun == [1, 2]


def test_the_texts_of_an_untrusted_server_are_cleaned() -> None:
    policies = Policies({"a": spec("a", trust=Trust.UNTRUSTED), "b": spec("b")}, {})
    hidden = "x\u202ey"
    assert policies.sanitize_text("a", hidden) != hidden
    assert policies.sanitize_text("b", hidden) == hidden
    assert [policies.shows_apps(each) for each in "ab"] == [False, True]
