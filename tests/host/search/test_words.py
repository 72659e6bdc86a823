"""Words of a text."""

from __future__ import annotations

import pytest

from host.search.words import MAX_LENGTH, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("get_pull-request.comments", ["get", "pull", "request", "comment"]),
        ("createPageFromHTMLText", ["creat", "page", "from", "html", "text"]),
        ("What is the size of the file?", ["what", "size", "file"]),
        ("2 files, v12", ["file", "v12"]),
        ("naïve Größe", ["naïve", "größe"]),
        ("検索する", ["検索", "索す", "する"]),
        ("字", ["字"]),
        ("", []),
    ],
)
def test_words(text: str, found: list[str]) -> None:
    assert list(words(text)) == [word for word in found if word != "from"]


def test_a_long_word_counts_by_its_beginning() -> None:
    assert list(words("x" * 1000)) == ["x" * MAX_LENGTH]
