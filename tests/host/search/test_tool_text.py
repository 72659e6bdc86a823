"""The words of one tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.search.synonyms import read_synonyms
from host.search.tool_text import MAX_ARGUMENTS, MAX_TEXT, MAX_WORDS, ToolText, read_tool_text
from tests.kit.awaited import awaited


def text(name: str = "get_item", server: str = "shop", **members: Any) -> ToolText:
    awaited(read_synonyms())
    return awaited(read_tool_text(server, name, json.dumps({"name": name, **members}).encode()))


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_a_tool_has_the_words_of_all_its_fields() -> None:
    found = text(
        title="Basket",
        description="Fetches one thing. Costs nothing.",
        inputSchema=schema(
            colour={"enum": ["purple", None, 1]}, number={"description": "its rank", "anyOf": [{"enum": ["odd"]}]}
        ),
    )
    words = ("get", "item", "shop", "basket", "fetch", "cost", "colour", "number", "purpl", "rank", "odd")
    assert set(words) <= found.strengths.keys()
    assert all(0 < strength < 1 for strength in found.strengths.values())
    assert found.name == ("get", "item")


def test_a_name_is_stronger_than_a_description_and_its_first_sentence_than_the_rest() -> None:
    strengths = text(description="Alpha beta for the many uses of a long text. Gamma delta.").strengths
    assert strengths["item"] > strengths["alpha"] > strengths["gamma"]


def test_a_long_description_does_not_make_its_words_stronger() -> None:
    short, long = text(description="Sells."), text(description="Sells " + "much " * 300)
    assert short.strengths["sell"] > long.strengths["sell"]
    assert "end" not in text(description="x" * MAX_TEXT + " end").strengths


def test_a_server_cannot_fill_the_index() -> None:
    values = {f"choice{at}": {"enum": [f"value{at}n{each}" for each in range(50)]} for at in range(100)}
    assert len(text(inputSchema=schema(**values)).strengths) < MAX_ARGUMENTS + MAX_WORDS + 10


def test_the_intent_is_that_of_the_name_or_of_the_claim() -> None:
    assert text("remove_item").intent == "delete"
    assert text("items", annotations={"readOnlyHint": True}).intent == "read"
    assert text("items", annotations={"readOnlyHint": False}).intent is None


@pytest.mark.parametrize("member", ["title", "description", "annotations", "inputSchema"])
@pytest.mark.parametrize(
    "value", [None, 1, [], ["x"], {}, "", {"title": 1, "properties": [1]}, {"properties": {"a": 1}}]
)
def test_what_has_another_form_counts_for_nothing(member: str, value: object) -> None:
    members: dict[str, Any] = {member: value}
    assert {"get", "item"} <= text(**members).strengths.keys()


def test_a_lone_surrogate_costs_the_text_that_has_it() -> None:
    definition = rb'{"name": "get_item", "description": "\ud800 thing", "title": "basket"}'
    strengths = awaited(read_tool_text("shop", "get_item", definition)).strengths
    assert "basket" in strengths
    assert "thing" not in strengths


MEMBERS = st.sampled_from(["title", "description", "properties", "enum", "anyOf", "a"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    )
)
def test_any_schema_can_be_read(value: Any) -> None:
    text(inputSchema=value, description=value)
