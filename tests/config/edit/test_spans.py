"""The terms of changes of a text."""

from __future__ import annotations

from config.edit.spans import indentation, inserted, line_end, line_start, without


def test_spans_are_taken_out_in_any_order() -> None:
    assert without("abcdef", [(4, 5), (0, 2), (2, 3)]) == "df"
    assert inserted("ad", 1, "bc") == ("abcd", 1, "bc")


def test_lines() -> None:
    assert line_end("a\r\nb\n") == "\r\n"
    assert line_end("a") == "\n"
    assert line_start("a\n  b", 4) == 2
    assert indentation("a\n \tb", 4) == " \t"
