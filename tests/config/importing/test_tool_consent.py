"""The stricter of two consents, evaluated by the rules of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.document import Plain
from config.importing.tool_consent import ToolConsent, stricter
from config.references import Expander
from config.schema import ConfigFile
from host.policy.conditions import UNREADABLE
from host.policy.rules import Rules
from host.protocol.methods import Kind

TOOLS = ["a", "ab", "b", "ba", "c"]
ARGUMENTS: list[object] = [None, {}, {"x": "1"}, {"x": "2"}, UNREADABLE]
LEVELS = ["allow", "ask", "deny"]


def rules_of(tools: object) -> Rules:
    """The rules of a server with this consent, as a file with it is read."""
    server: dict[str, object] = {"command": ["x"], **({} if tools is None else {"consent": {"tools": tools}})}
    spec = ConfigFile.model_validate({"servers": {"s": server}}, context=Expander({}, Path("/"))).root.servers["s"]
    return Rules(spec.consent, spec.trust)


patterns: st.SearchStrategy[Any] = st.sampled_from(["a", "ab", "b", "a*", "*b", "?", "*"]) | st.sampled_from(
    [{"name": "a", "when": {"x": "1"}}, {"name": "a*", "when": {"x": "2"}}]
)


@st.composite
def consents(draw: st.DrawFn) -> ToolConsent:
    rules = draw(st.lists(patterns, max_size=5, unique_by=repr))
    lists: dict[str, list[object]] = {"allow": [], "ask": [], "deny": []}
    for rule in rules:
        lists[draw(st.sampled_from(LEVELS))].append(rule)
    return ToolConsent(draw(st.sampled_from(LEVELS)), **{name: tuple(found) for name, found in lists.items()})


@given(consents(), consents())
def test_no_call_has_a_laxer_verdict_than_by_either(one: ToolConsent, other: ToolConsent) -> None:
    made = rules_of(stricter(one, other).written())
    both = [rules_of(each.written()) for each in (one, other)]
    for tool in TOOLS:
        for arguments in ARGUMENTS:
            verdict = LEVELS.index(made.evaluate(Kind.TOOL, tool, arguments).verdict)
            assert verdict >= max(LEVELS.index(each.evaluate(Kind.TOOL, tool, arguments).verdict) for each in both)


@given(consents())
def test_a_consent_is_written_as_it_was_read(one: ToolConsent) -> None:
    again = ToolConsent.read(one.written())
    assert stricter(one, one) == one
    made, before = rules_of(again.written()), rules_of(one.written())
    assert all(
        made.evaluate(Kind.TOOL, tool, arguments).verdict is before.evaluate(Kind.TOOL, tool, arguments).verdict
        for tool in TOOLS
        for arguments in ARGUMENTS
    )


@pytest.mark.parametrize(
    ("one", "other", "made"),
    [
        (None, None, None),
        (None, "ask", "ask"),
        ({"deny": ["x"]}, None, {"deny": ["x"]}),
        ({"deny": ["x"]}, "ask", {"default": "ask", "deny": ["x"]}),
        ({"allow": ["a", "b"]}, "ask", {"default": "deny", "ask": ["a", "b"]}),
        ({"allow": ["a", "b"]}, {"allow": ["b", "c"]}, {"allow": ["b"], "deny": ["a", "c"]}),
        ({"allow": ["a", "b"]}, {"deny": ["a"]}, {"allow": ["b"], "deny": ["a"]}),
        (
            {"default": "ask", "allow": ["a", "b"]},
            {"default": "ask", "allow": ["b"]},
            {"default": "ask", "allow": ["b"], "ask": ["a"]},
        ),
        ({"allow": []}, {"allow": ["a"]}, {"default": "deny", "deny": ["a"]}),
        ({"allow": ["get_*"]}, {"ask": ["get_x"]}, {"allow": ["get_*"], "ask": ["get_x"]}),
    ],
)
def test_what_becomes_of_two(one: object, other: object, made: object) -> None:
    assert stricter(ToolConsent.read(one), ToolConsent.read(other)).written() == made


def test_the_default_of_an_untrusted_server_is_to_ask() -> None:
    assert ToolConsent.read({"deny": ["x"]}, "untrusted") == ToolConsent("ask", deny=("x",))
    assert ToolConsent.read(None, "untrusted").written() == Plain("ask")
