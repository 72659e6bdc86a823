"""The stricter of two consents, evaluated by the rules of the host, and the rules of servers under each answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConsentWord
from config.desktop.importing.tool_consent import NOTHING_PASSED, ToolConsent, asked_tools, stricter, with_consent
from config.document import Plain
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


# The answers

READS, CHANGES = {"name": "*", "claims": "read-only"}, {"name": "a", "claims": "destructive"}


@pytest.mark.parametrize(
    ("tools", "passed", "read_only", "careful", "nothing"),
    [
        (ToolConsent(), NOTHING_PASSED, {"default": "ask", "allow": [READS]}, "ask", None),
        (
            ToolConsent(deny=("b",), ask=("c",)),
            ToolConsent("ask", allow=("b", "d")),
            {"default": "ask", "allow": [READS, "d"], "ask": ["c"], "deny": ["b"]},
            {"default": "ask", "allow": ["d"], "ask": ["c"], "deny": ["b"]},
            {"ask": ["c"], "deny": ["b"]},
        ),
        # A file says that the host asks about everything.
        (ToolConsent("ask"), NOTHING_PASSED, "ask", "ask", "ask"),
        # Where only some are permitted, a rule with claims alone would deny those that claim something else.
        (
            ToolConsent("deny", allow=("a", "b")),
            NOTHING_PASSED,
            {"allow": [{**READS, "name": "a"}], "ask": [CHANGES, "b"]},
            {"default": "deny", "ask": ["a", "b"]},
            {"allow": ["a", "b"]},
        ),
        (ToolConsent(deny=("b",)), ToolConsent("allow"), {"deny": ["b"]}, {"deny": ["b"]}, {"deny": ["b"]}),
    ],
)
def test_each_answer(
    tools: ToolConsent, passed: ToolConsent, read_only: object, careful: object, nothing: object
) -> None:
    reading = {"a", "x"}
    assert asked_tools(ConsentWord.READ_ONLY, tools, passed, reading).written() == read_only
    assert asked_tools(ConsentWord.CAREFUL, tools, passed, reading).written() == careful
    assert asked_tools(None, tools, passed, reading).written() == nothing


def test_the_consent_is_left_out_where_the_file_says_the_same() -> None:
    word, tools = ConsentWord.READ_ONLY, asked_tools(ConsentWord.READ_ONLY, ToolConsent(), NOTHING_PASSED)
    assert with_consent({"command": "x"}, tools, word, word) == {"command": "x"}
    assert with_consent({"command": "x"}, tools, word, None) == {"command": "x", "consent": "read-only"}
    assert with_consent({}, tools, word, {"tools": "allow"}) == {"consent": "read-only"}
    written = {"default": "ask", "allow": [READS]}
    own = {"consent": {"resources": "deny"}}
    assert with_consent(own, tools, word, word) == {"consent": {"tools": written, "resources": "deny"}}


def test_what_is_unrestricted_is_written_where_a_default_would_restrict_it() -> None:
    assert with_consent({}, ToolConsent(), None, None) == {}
    assert with_consent({}, ToolConsent(), None, "careful") == {"consent": {"tools": "allow"}}
    assert with_consent({}, ToolConsent(deny=("b",)), None, "careful") == {"consent": {"tools": {"deny": ["b"]}}}


def test_what_a_default_denies_is_written_where_a_consent_replaces_it() -> None:
    word, tools = ConsentWord.READ_ONLY, asked_tools(ConsentWord.READ_ONLY, ToolConsent(deny=("b",)), NOTHING_PASSED)
    default = {"tools": {"deny": ["d*"], "ask": ["a"], "default": "ask"}, "resources": "deny", "prompts": "allow"}
    written = {"default": "ask", "allow": [READS], "ask": ["a"], "deny": ["b", "d*"]}
    assert with_consent({}, tools, word, default) == {"consent": {"tools": written, "resources": "deny"}}
    kinds = dict.fromkeys(("resources", "prompts", "sampling", "elicitation", "roots"), "deny")
    assert with_consent({}, ToolConsent(), None, "closed") == {"consent": {"tools": "allow", **kinds}}
    assert with_consent({}, ToolConsent("ask"), word, "ask") == {
        "consent": {"tools": "ask", "resources": "ask", "prompts": "ask"}
    }
