"""`docs/obligations.md` has every number that a test names, and the tests of each."""

from __future__ import annotations

import re

import pytest

from tests.obligations import HEADING, PAGE, held_by_tests, numbers_in, written


def test_the_page_is_up_to_date() -> None:
    """If this fails, a test that names an obligation was added or renamed: run `python -m tests.obligations`."""
    page = PAGE.read_text("utf-8")
    assert written(page, held_by_tests()) == page


def test_every_number_that_a_test_names_is_on_the_page() -> None:
    numbers = [int(number) for number in HEADING.findall(PAGE.read_text("utf-8"))]
    assert numbers == list(range(1, len(numbers) + 1))
    assert set(held_by_tests()) <= set(numbers)


def test_each_obligation_has_a_source_and_tests_or_the_reason_why_there_are_none() -> None:
    parts = HEADING.split(PAGE.read_text("utf-8"))
    for number, text in zip(parts[1::2], parts[2::2], strict=True):
        assert re.search(r"\n\n\*Source: [^*]+\.\*\n", text), number
        assert ("\n- `tests/" in text) != ("\nNot tested here: " in text), number


def test_lines_are_replaced_and_the_rest_is_kept() -> None:
    page = "# Top\n\n## A\n\n### Rule 1\nOne.\n\n- `tests/old.py`: `test_old`\n\n## B\n\n### Rule 2\nTwo.\n"
    expected = "# Top\n\n## A\n\n### Rule 1\nOne.\n\n## B\n\n### Rule 2\nTwo.\n\n- `tests/new.py`: `test_new`\n"
    held = {2: ["- `tests/new.py`: `test_new`"]}
    assert written(page, held) == expected
    assert written(expected, held) == expected


def test_a_number_belongs_to_the_function_that_names_it() -> None:
    source = "def test_a():\n    # rules 3, 4 and 5, rule 6\n\n    pass\n\nasync def test_b():\n    pass  # rule 7\n"
    assert list(numbers_in(source)) == [(3, "test_a"), (4, "test_a"), (5, "test_a"), (6, "test_a"), (7, "test_b")]
    with pytest.raises(ValueError, match="outside of any test"):
        list(numbers_in("A = 1  # rule 8\n"))
