"""Stems are those of Porter's algorithm, which SQLite has too."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from host.search.stems import stem

ROOT = Path(__file__).parents[3]
SUFFIXES = (
    *("ational", "tional", "enci", "anci", "izer", "abli", "alli", "entli", "eli", "ousli", "ization", "ation", "ator"),
    *("alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "icate", "ative", "alize", "iciti", "ical"),
    *(
        "ful",
        "ness",
        "logi",
        "ology",
        "bly",
        "al",
        "ance",
        "ence",
        "er",
        "ic",
        "able",
        "ible",
        "ant",
        "ement",
        "ment",
        "ent",
        "ion",
        "ou",
    ),
    *("ism", "ate", "iti", "ous", "ive", "ize", "sses", "ies", "s", "eed", "ed", "ing", "y", "e", "ll"),
)


def sqlite_stems(words: list[str]) -> list[str]:
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE VIRTUAL TABLE text USING fts5(word, tokenize='porter unicode61')")
        database.execute("CREATE VIRTUAL TABLE stem USING fts5vocab(text, 'instance')")
        database.executemany("INSERT INTO text(rowid, word) VALUES (?, ?)", enumerate(words, 1))
        found = dict(database.execute("SELECT doc, term FROM stem"))
    return [found[number] for number in range(1, len(words) + 1)]


def test_the_words_of_the_documents_have_the_stems_of_sqlite() -> None:
    text = " ".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md")).lower()
    words = sorted(set(re.findall(r"\b[a-z]{1,19}\b", text)))
    assert len(words) > 3000
    assert [stem(word) for word in words] == sqlite_stems(words)


WORDS = st.builds(
    lambda start, ends: start + "".join(ends),
    st.from_regex(r"[a-eilrsty]{1,6}", fullmatch=True),
    st.lists(st.sampled_from(SUFFIXES), max_size=2),
)


@given(st.lists(WORDS.filter(lambda word: "yy" not in word and len(word) > 4), min_size=1, max_size=50))
def test_random_words_have_the_stems_of_sqlite(words: list[str]) -> None:
    """But for two y in a row, which no English word has, and for endings without a beginning."""
    assert [stem(word) for word in words] == sqlite_stems(words)


def test_words_of_other_languages_stay() -> None:
    assert [stem(word) for word in ("größe", "файлы", "ab", "")] == ["größe", "файлы", "ab", ""]
