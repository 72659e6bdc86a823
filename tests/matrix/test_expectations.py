"""The pure part of the matrix: which verdict a cell has, and that every cell has one."""

from __future__ import annotations

import pytest

from tests.matrix.expectations import R24, R25A, R25B, R25C, R26, Cell, Feature, cells, expected, refusal


def cell(feature: Feature, client: str, server: str) -> Cell:
    return Cell(client, "http", server, "stdio", feature)


def test_there_are_as_many_cells_as_there_are_combinations() -> None:
    assert len(set(cells())) == len(list(cells())) == (4 * 3 + 2) * (4 * 3 + 2 + 1) * 15


@pytest.mark.parametrize(
    ("feature", "client", "server", "verdict"),
    [
        (Feature.CALL, R25C, R24, "W"),
        (Feature.CALL, R24, R24, "W"),
        (Feature.CALL, R24, R25A, "T1"),
        (Feature.CALL, R24, R25C, "T1,2"),
        (Feature.GET, R25A, R25B, "T2"),
        (Feature.SAMPLING, R25C, R25C, "W"),
        (Feature.SAMPLING, R25B, R25C, "W5"),
        (Feature.SAMPLING, R24, R25C, "W4,5"),
        (Feature.FORM, R25C, R25B, "W"),
        (Feature.FORM, R25B, R25C, "T3"),
        (Feature.FORM, R25A, R25C, "I6"),
        (Feature.FORM, R25C, R25A, "I8"),
        (Feature.URL, R25C, R25C, "W"),
        (Feature.URL, R25B, R25C, "I7"),
        (Feature.URL, R25C, R25B, "I9"),
        (Feature.ROOTS, R24, R25C, "W"),
        (Feature.CALL, R25C, R26, "T10"),
        (Feature.CALL, R24, R26, "T1,2,10"),
        (Feature.GET, R25C, R26, "W"),
        (Feature.SUBSCRIBE, R26, R25C, "T11"),
        (Feature.LIST_CHANGED, R25A, R26, "T12"),
        (Feature.LOG, R26, R24, "T13"),
        (Feature.LOG, R24, R26, "T14"),
        (Feature.LOG, R26, R26, "W"),
        (Feature.ROOTS, R26, R24, "T15"),
        (Feature.ROOTS, R24, R26, "T16"),
        (Feature.SAMPLING, R25B, R26, "T16,17"),
        (Feature.SAMPLING, R24, R26, "T16,17,18"),
        (Feature.FORM, R26, R25B, "T15"),
        (Feature.FORM, R25B, R26, "T3,16,18"),
        (Feature.FORM, R25A, R26, "I17"),
        (Feature.FORM, R26, R25A, "I8"),
        (Feature.URL, R26, R25C, "T15,19"),
        (Feature.URL, R25C, R26, "T16,19"),
        (Feature.URL, R25B, R26, "I17"),
        (Feature.URL, R26, R26, "W"),
        (Feature.TASK, R25C, R25C, "W"),
        (Feature.TASK, R26, R25C, "T20"),
        (Feature.TASK, R25B, R26, "I21"),
        (Feature.TASK, R26, R25B, "I22"),
        (Feature.TASK_TOOL, R24, R25C, "T23"),
        (Feature.TASK_TOOL, R26, R26, "T23"),
        (Feature.TASK_TOOL, R26, R25B, "I22"),
    ],
)
def test_a_cell_follows_from_both_revisions(feature: Feature, client: str, server: str, verdict: str) -> None:
    assert str(expected(cell(feature, client, server))) == verdict


@pytest.mark.parametrize(
    ("client", "server", "code"), [(R24, R25C, -32601), (R25B, R25C, -32602), (R24, R25B, -32602), (R25C, R24, -32601)]
)
def test_a_mode_is_refused_otherwise_than_all_of_elicitation(client: str, server: str, code: int) -> None:
    assert refusal(cell(Feature.URL, client, server)) == code
