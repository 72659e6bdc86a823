"""Names of members that some readers take for one another.

JSON names are compared exactly (RFC 8259, 8.3), but some readers ignore case (Go's `encoding/json`, the web defaults of
.NET), equate forms of letters, or end a name at its first NUL (C strings). An object that policy judges, or that a
person is shown, must mean the same to all of them: no two of its members are equal after folding, and none folds to a
known name except that name itself, spelled exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from unicodedata import normalize


def fold_name(name: str) -> str:
    """The name as the laxest reader compares it: cut at NUL, NFKC, without case."""
    return normalize("NFKC", name.partition("\0")[0]).casefold()


class KnownNames:
    """Names that an object may have, spelled exactly. Raises ValueError if two of them are equal after folding."""

    __slots__ = ("_by_fold", "_exact")

    def __init__(self, *names: str) -> None:
        self._exact = frozenset(names)
        self._by_fold = {fold_name(name): name for name in self._exact}
        if len(self._by_fold) != len(self._exact):
            raise ValueError(f"two known names are equal after folding: {sorted(names)}")

    def twin_in(self, names: Iterable[str]) -> str | None:
        """The first of these distinct names that a reader may take for another of them or for a known name; None if
        there is none."""
        unknown = [name for name in names if name not in self._exact]
        found: set[str] = set()
        for name in unknown:
            folded = fold_name(name)
            if folded in self._by_fold or folded in found:
                return name
            found.add(folded)
        return None


NO_NAMES: Final = KnownNames()
"""For an object whose members have no known names: only its own are compared."""


def describe_twin(name: str) -> str:
    """The reason to refuse an object with this member, worded for the peer."""
    return f"some readers take the member {name[:80]!a} for another one"
