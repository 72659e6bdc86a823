"""Ordered rules of hosts against a reading of them one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.globs import Globs
from config.hosts.entry import CannotUse, ServerEntry
from config.hosts.ordered import MAX_RULES, STRICTNESS, ToolRule, apply_ordered, of_server
from tests.config.hosts.kit import decide, new_entry

VERDICTS = st.sampled_from(sorted(STRICTNESS))
PATTERNS = st.text("ab*?", min_size=1, max_size=4)
RULES = st.lists(st.builds(ToolRule, PATTERNS, VERDICTS), max_size=5)
NAMES = st.text("ab", min_size=1, max_size=4)


def last_match(rules: Sequence[ToolRule], default: str, name: str) -> str:
    decided = default
    for rule in rules:
        if Globs([rule.pattern], uris=False).match(name):
            decided = rule.verdict
    return decided


def applied(rules: Sequence[ToolRule], default: str, cleaned: re.Pattern[str] | None = None) -> ServerEntry:
    entry = new_entry()
    apply_ordered(entry, rules, default, cleaned)
    return entry


@given(RULES, VERDICTS, NAMES)
def test_never_wider_than_the_last_rule_that_matches(rules: list[ToolRule], default: str, name: str) -> None:
    entry = applied(rules, default)
    assert STRICTNESS[decide(entry, name)] >= STRICTNESS[last_match(rules, default, name)]


@given(RULES, VERDICTS, NAMES)
def test_exact_without_a_note(rules: list[ToolRule], default: str, name: str) -> None:
    """Except that approvals are noted as such, and asked for."""
    entry = applied(rules, default)
    if not entry.notes:
        expected = last_match(rules, default, name)
        decided = decide(entry, name)
        assert decided == expected or (decided == "ask" and expected == "allow" and entry.approved)


@given(RULES, RULES, VERDICTS, NAMES)
def test_two_lists_hold_both(one: list[ToolRule], other: list[ToolRule], default: str, name: str) -> None:
    entry = applied(one, default)
    apply_ordered(entry, other)
    strictest = max(STRICTNESS[last_match(one, default, name)], STRICTNESS[last_match(other, "allow", name)])
    assert STRICTNESS[decide(entry, name)] >= strictest


@given(st.lists(st.builds(ToolRule, PATTERNS, VERDICTS, st.booleans()), max_size=5), NAMES, st.data())
def test_uncertain_rules_hold_whether_or_not_their_condition_does(
    rules: list[ToolRule], name: str, data: st.DataObject
) -> None:
    holding = [rule for rule in rules if rule.is_certain or data.draw(st.booleans())]
    assert STRICTNESS[decide(applied(rules, "allow"), name)] >= STRICTNESS[last_match(holding, "allow", name)]


@given(
    st.lists(st.builds(ToolRule, st.text("a_.*?", min_size=1, max_size=4), VERDICTS), max_size=5),
    VERDICTS,
    st.text("a_.", min_size=1, max_size=4),
)
def test_names_whose_characters_the_host_replaces(rules: list[ToolRule], default: str, name: str) -> None:
    entry = applied(rules, default, re.compile("[a_*?]*"))
    assert STRICTNESS[decide(entry, name)] >= STRICTNESS[last_match(rules, default, name.replace(".", "_"))]


@pytest.mark.parametrize(
    ("rules", "consent", "approved"),
    [
        ([("*", "allow")], None, []),
        ([("x", "deny"), ("y", "ask")], {"deny": ["x"], "ask": ["y"]}, []),
        ([("*", "ask"), ("x*", "deny"), ("y", "allow")], {"default": "ask", "deny": ["x*"]}, ["y"]),
        ([("*", "deny"), ("x_*", "allow"), ("x_b", "ask")], {"allow": ["x_*"], "ask": ["x_b"]}, []),
        ([("x", "deny"), ("x", "allow")], None, []),
        ([("*", "deny")], {"allow": []}, []),
    ],
)
def test_usual_lists(rules: list[tuple[str, str]], consent: object, approved: list[str]) -> None:
    entry = applied([ToolRule(*rule) for rule in rules], "allow")
    assert (entry.consent_for_tools(), entry.approved, entry.notes) == (consent, approved, [])


def test_a_permission_within_a_restriction_is_not_taken_over() -> None:
    entry = applied([ToolRule("x*", "deny"), ToolRule("xy", "allow")], "allow")
    assert entry.consent_for_tools() == {"deny": ["x*"]}
    assert "they are stricter here" in entry.notes[0]


def test_a_condition_is_kept() -> None:
    entry = applied([ToolRule("x", "deny", False, {"a": {"glob": "b*"}})], "allow")
    assert entry.consent_for_tools() == {"deny": [{"name": "x", "when": {"a": {"glob": "b*"}}}]}
    assert not entry.notes


def test_rules_for_full_names() -> None:
    rules = [ToolRule("notes_*", "ask"), ToolRule("*_delete", "deny"), ToolRule("other_x", "deny")]
    assert of_server(rules, "notes_") == [
        ToolRule("*", "ask"),
        ToolRule("*_delete", "deny"),
        ToolRule("delete", "deny"),
    ]


def test_too_many_rules_stop_the_server() -> None:
    with pytest.raises(CannotUse, match="more than 1000 rules"):
        applied([ToolRule("x", "deny")] * (MAX_RULES + 1), "allow")
