"""The table of synonyms, and what a query asks for."""

from __future__ import annotations

import pytest

from host.search.stems import stem
from host.search.synonyms import SYNONYM, intent_of, read_synonyms, terms_of
from tests.kit.awaited import awaited


@pytest.fixture(autouse=True)
def table() -> None:
    awaited(read_synonyms())


def test_synonyms_stand_for_a_word_and_count_less() -> None:
    (term,) = terms_of("ticket")
    assert term["ticket"] == 1
    assert term[stem("issue")] == SYNONYM
    (back,) = terms_of("issue")
    assert back["ticket"] == SYNONYM


def test_some_words_stand_for_others_one_way() -> None:
    (docx,) = terms_of("docx")
    assert docx["word"] == SYNONYM
    (word,) = terms_of("word")
    assert "docx" not in word


def test_a_word_counts_once() -> None:
    assert len(terms_of("issue issues Issue")) == 1


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("PROJ-17", "issue"),
        ("see notes.md", "file"),
        ("open https://example.org", "url"),
        ("budget.xlsx", "excel"),
        ("10.0.0.1", "ip"),
        ("is 1.2.3 old", "version"),
        ("#ff8800", "color"),
        ("tell #general", "channel"),
        ("a@example.org", "user"),
    ],
)
def test_what_has_a_form_of_its_own_stands_for_its_kind(query: str, word: str) -> None:
    assert any(term.get(stem(word)) == 1 for term in terms_of(query))


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("delete_issue", "delete"),
        ("repository_create", "create"),
        ("Please show me the log", "read"),
        ("did the build pass", "read"),
        ("which branches exist", "read"),
        ("rename a file", "update"),
        ("sequentialthinking", None),
        ("", None),
    ],
)
def test_the_intent_is_that_of_the_first_verb(text: str, intent: str | None) -> None:
    assert intent_of(text) == intent
