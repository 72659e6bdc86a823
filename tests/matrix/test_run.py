"""The matrix's own clients and servers, without a host between them: where both speak the same, everything works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.transcripts import keep
from tests.matrix.checks import CHECKS
from tests.matrix.expectations import REVISIONS, Cell, Feature, cells
from tests.matrix.run import (
    BEGIN,
    END,
    REVISIONS_PAGE,
    Results,
    block,
    directly_wanted,
    document,
    failures,
    often_different,
    run_directly,
    summary,
    with_summary,
)


@pytest.mark.slow
def test_clients_and_servers_of_one_revision_understand_each_other() -> None:
    """Every possible feature, in every revision, over every transport."""
    assert failures(run_directly(list(Feature)), [cell for cell in cells() if directly_wanted(cell)]) == []


def test_every_feature_has_a_check() -> None:
    """The lists that change are not checked cell by cell: they concern every client at once."""
    assert {*CHECKS, Feature.LIST_CHANGED} == set(Feature)


def test_a_cell_that_was_not_run_has_failed() -> None:
    (wrong,) = failures(Results(), [Cell(REVISIONS[0], "stdio", REVISIONS[0], "stdio", Feature.READ)])
    assert wrong == "read: client 2024-11-05 over stdio, server 2024-11-05 over stdio: expected W; it was not run"


def test_the_table_shows_what_is_wrong_and_where() -> None:
    results = Results(dict.fromkeys(cells()))
    assert "X" not in block(Feature.READ, results)
    results.seen[Cell("2025-03-26", "http", "2025-11-25", "sse", Feature.READ)] = "nothing came"
    (row,) = [line for line in block(Feature.READ, results).splitlines() if "X" in line]
    assert row.split() == ["2025-03-26", "http", *["W"] * 11, "X", "W", "W", "W"]


def test_the_sum_shows_all_that_there_is_between_two_kinds() -> None:
    results = Results(dict.fromkeys(cells()))
    results.seen[Cell("2025-03-26", "http", "2026-07-28", "stdio", Feature.READ)] = "nothing came"
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in summary(results).splitlines()]
    assert rows[0][1:3] == ["handshake, handshake", "handshake, stateless"]
    assert ["read", "W", "W X", "W", "W"] in rows
    assert ["task", "W I", "T I", "T I", "W"] in rows


def test_the_sum_has_its_place_in_the_readme() -> None:
    results = Results(dict.fromkeys(cells()))
    assert with_summary(f"a\n{BEGIN}\nold\n{END}\nb\n", results) == f"a\n{BEGIN}\n{summary(results)}\n{END}\nb\n"
    assert with_summary(REVISIONS_PAGE.read_text(), results) == REVISIONS_PAGE.read_text()


def test_the_page_is_the_same_for_the_same_verdicts() -> None:
    assert document(Results(dict.fromkeys(cells()))) == document(Results(dict.fromkeys(reversed(list(cells())))))


def test_a_transcript_counts_as_different_if_it_is_so_twice(tmp_path: Path) -> None:
    """A message that is late in one run is no change of behaviour."""
    kept = tmp_path / "kept.json"
    keep([{"read": ["a"], "call": ["b"]}], kept)
    first, again = (
        Results(transcripts={"read": ["x"], "call": ["b"]}),
        Results(transcripts={"read": ["a"], "call": ["y"]}),
    )
    assert often_different(first, lambda: again, kept) == []
    assert often_different(first, lambda: first, kept) == ["read\n- a\n+ x"]
    runs = iter([first, again])
    assert often_different(first, lambda: next(runs), kept) == [], "not in the third run"
