"""How lax file systems compare names."""

from __future__ import annotations

import pytest

from host.policy.file_names import is_odd, loosened, loosened_pattern, without_unseen


@pytest.mark.parametrize(
    ("path", "folded"),
    [
        ("/Users/ME", "/users/me"),
        ("/\uff33ecret", "/secret"),
        ("/a./b /c", "/a/b/c"),
        ("/a/./../...", "/a/./../..."),
        ("/\ufb01le", "/file"),
        ("/stra\u00dfe", "/strasse"),
    ],
)
def test_paths_that_a_lax_file_system_takes_for_the_same_are_folded_alike(path: str, folded: str) -> None:
    assert loosened(path) == folded
    assert loosened_pattern(path) == folded


def test_joiners_and_controls_are_dropped() -> None:
    assert without_unseen("/se\u200dcr\u00adet\u0007") == "/secret"
    assert without_unseen("/plain") == "/plain"
    assert loosened_pattern("/Se\u200dcret/**") == "/secret/**"


@pytest.mark.parametrize("pattern", ["/x/*.", "/x/a?.", "/x/* "])
def test_a_dot_behind_a_star_stays_in_a_pattern(pattern: str) -> None:
    assert loosened_pattern(pattern) == pattern


def test_names_of_dots_and_blanks_are_odd() -> None:
    assert [is_odd(name) for name in ("", ".", "..", ". .", "a.", ".a")] == [True, True, True, True, False, False]
