"""The definitions that servers offer: shown to a person with the claims of tools, and approved as they were shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from host.cli.common import counted

if TYPE_CHECKING:
    from host.cli.targets import DecisionTarget
    from host.policy.rows import DefinitionRow
    from host.storage.directory import State

Offers = Mapping[str, Sequence["DefinitionRow"]]
"""The definitions that servers offer, by server."""
MOST_AT_ONCE = 500
"""Definitions in one request: a host reads 64 KiB."""
_LONGEST_LINE = 100
"""Characters of a description in a list."""


def reading(offers: Sequence[DefinitionRow]) -> frozenset[str]:
    """The names of the tools that claim to be read-only."""
    return frozenset(row["name"] for row in offers if row["kind"] == "tool" and "read-only" in row["claims"])


def show_offers(offers: Offers, *, whole: bool = False) -> None:
    """Show what servers offer: each tool with what it claims about itself, each definition with the first line of its
    description, or as a whole. One that is held is shown as a whole in any case, since clients see it once it is
    approved."""
    for id, rows in offers.items():
        print(f"  {id}:")
        for row in rows:
            what = row["name"] if row["kind"] == "tool" else f"{row['kind']} {row['name']}".rstrip()
            if row["kind"] == "instructions":
                what = "instructions for the model"
            show_definition(f"    {what}", row, whole=whole or row["standing"] != "approved")
            if row["problem"]:
                print(f"        It cannot be approved: {row['problem']}.")


def show_definition(label: str, row: DefinitionRow, *, whole: bool) -> None:
    """Show one definition after its label, which may begin with blanks: a tool with what it claims about itself, then
    the first line of the description, or the whole definition if it is there."""
    from host.policy.claims import describe_claims

    claims = f"  ({describe_claims(row['claims'])})" if row["claims"] else ""
    print(f"{label}{claims}")
    indent = " " * (len(label) - len(label.lstrip()) + 4)
    lines = row["text"].split("\n") if whole and row["text"] else [_cut(row["description"].split("\n")[0])]
    for line in filter(None, lines):
        print(f"{indent}{line}")


def _cut(line: str) -> str:
    """A line of at most _LONGEST_LINE characters, which ends with a word if it was cut."""
    if len(line) <= _LONGEST_LINE:
        return line
    head = line[: _LONGEST_LINE - 1]
    words, blank, _ = head.rpartition(" ")
    return f"{words.rstrip() if blank else head}…"


def are_approved(rows: Sequence[DefinitionRow]) -> bool:
    """Whether a person has approved all that can be approved of what a server offers, as it was shown."""
    return any(row["counts"] for row in rows) and all(row["counts"] or row["problem"] for row in rows)


def approve_offers(file: Path, offers: Offers, state: State) -> None:
    """Approve the definitions of servers of a configuration, as they were shown. Print what comes of it."""
    from host.admin.schema import AdminError
    from host.cli.exit_codes import CommandFailed
    from host.cli.targets import StoredTarget

    target = StoredTarget(state, file)
    count = 0
    for id, rows in offers.items():
        if are_approved(rows):
            print(f"The definitions of {id} are approved already.")
            continue
        shown = [row["fingerprint"] for row in rows if not row["problem"]]
        try:
            for _ in approve_shown(target, id, shown):
                pass
            count += len(shown)
        except (AdminError, CommandFailed) as problem:
            print(f"The definitions of {id} are not approved: {problem}", file=sys.stderr)
    if count:
        print(f"{counted(count, 'definition')} approved.")


def approve_shown(target: DecisionTarget, server: str, fingerprints: Sequence[str]) -> Iterator[str]:
    """Approve definitions of a server, by the fingerprints that were shown, some at a time. Yields a sentence for each
    request.

    Raises:
        AdminError, CommandFailed: a request was refused; those before it hold.
    """
    for first in range(0, len(fingerprints), MOST_AT_ONCE):
        part = fingerprints[first : first + MOST_AT_ONCE]
        yield target.post("definitions/decide-all", server=server, fingerprints=part, decision="approve")["done"]
