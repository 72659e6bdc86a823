"""How problems are put into words."""

from __future__ import annotations

from config.problems import ConfigError, Problem, clip


def test_problem_in_one_line() -> None:
    """Place, setting, sentence; without a setting the colon goes too."""
    assert str(Problem("c.yaml", 3, 5, "servers.a", "wrong")) == "c.yaml:3:5: servers.a: wrong"
    assert str(Problem("c.yaml", 3, 5, "", "wrong")) == "c.yaml:3:5: wrong"


def test_error_lists_problems_in_order() -> None:
    """Sorted by line and column, one a line."""
    later, sooner = Problem("c", 9, 1, "", "b"), Problem("c", 2, 7, "", "a")
    error = ConfigError([later, sooner])
    assert error.problems == (sooner, later)
    assert str(error) == "c:2:7: a\nc:9:1: b"


def test_clipped_words_are_one_short_line() -> None:
    """Escape sequences and line breaks do not reach a terminal."""
    assert clip("a\x1b[31m\nb") == "a?[31m?b"
    assert len(clip("x" * 100)) == 40
