"""Names of members that some readers take for one another.

JSON names are compared exactly (RFC 8259, 8.3), but some readers ignore case (Go's `encoding/json`, the web defaults of
.NET), equate forms of letters, or end a name at its first NUL (C strings). An object that policy judges, or that a
person is shown, must mean the same to all of them: no two of its members are equal after folding, and none folds to a
known name except that name itself, spelled exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from unicodedata import normalize

from host.errors import AmbiguousMembers


def fold_name(name: str) -> str:
    """The name as the laxest reader compares it: cut at NUL, NFKC, without case."""
    if name.isascii() and "\0" not in name:  # as nearly all are
        return name.lower()
    return normalize("NFKC", name.partition("\0")[0]).casefold()


class KnownNames:
    """Names that an object may have, spelled exactly. Raises ValueError if two of them are equal after folding."""

    __slots__ = ("_exact", "_folds")

    def __init__(self, *names: str) -> None:
        self._exact = frozenset(names)
        self._folds = frozenset(map(fold_name, self._exact))
        if len(self._folds) != len(self._exact):
            raise ValueError(f"two known names are equal after folding: {sorted(names)}")

    @classmethod
    def declared(cls, names: Iterable[str]) -> KnownNames:
        """Names that a peer declares, two of which may be equal after folding: an object may have either of them, and
        not both."""
        made = cls()
        made._exact = frozenset(names)
        made._folds = frozenset(map(fold_name, made._exact))
        return made

    def twin_in(self, names: Collection[str]) -> str | None:
        """The first of these distinct names that a reader may take for another of them or for a known name; None if
        there is none."""
        exact, folds = self._exact, self._folds
        alike = len(folds) != len(exact)
        if not alike and exact.issuperset(names):
            return None  # as nearly always
        found: set[str] = set()
        for name in names:
            if name in exact:
                if not alike:
                    continue
                folded = fold_name(name)
            else:
                folded = fold_name(name)
                if folded in folds:
                    return name
            if folded in found:
                return name
            found.add(folded)
        return None


NO_NAMES: Final = KnownNames()
"""For an object whose members have no known names: only its own are compared."""


def describe_twin(name: str) -> str:
    """The reason to refuse an object with this member, worded for the peer."""
    return f"some readers take the member {name[:80]!a} for another one"


def refuse_twins(known: KnownNames, names: Collection[str]) -> None:
    """Refuse an object with members of these names.

    Raises:
        AmbiguousMembers: some readers take one of them for another of them, or for a known one.
    """
    twin = known.twin_in(names)
    if twin is not None:
        raise AmbiguousMembers(describe_twin(twin))
