"""Rows for people: definitions, grants and verdicts as plain data."""

from __future__ import annotations

from typing import TypedDict


class GrantRow(TypedDict):
    """A grant. `live`: it can be used now; `why`: the reason if not. `made` and `expires` are Unix time."""

    id: str
    caller: str
    server: str
    kind: str
    name: str
    scope: str
    arguments: str
    made: float
    expires: float | None
    by: str
    live: bool
    why: str


class DiffPiece(TypedDict):
    """A piece of a text that stayed the `same`, or was `added` or `removed`."""

    op: str
    text: str


class HeldRow(TypedDict):
    """A held definition: its difference from the approved one, and its full text. `problem`: why it cannot be approved;
    empty if it can."""

    ready: bool
    server: str
    kind: str
    name: str
    standing: str
    fingerprint: str
    since: float
    rejected: bool
    problem: str
    trust: str
    diff: list[DiffPiece]
    text: str


class ChangeRow(TypedDict):
    """A change of the configuration that waits for a person, because it permits more: of one server, or with an empty
    `server` of the host. `widens` are sentences; `diff` is the difference of what the file says, with secrets left out.
    `id` is the same for all changes of one reading of the file."""

    id: str
    server: str
    widens: list[str]
    diff: list[DiffPiece]


class TriedRule(TypedDict):
    """A rule that was tried on a call."""

    rule: str
    verdict: str
    matched: bool
    why: str


class Explanation(TypedDict):
    """The expected outcome of a call: verdict and rule, every rule tried, status of the definition, grant that would be
    used, limits of the server, visibility of the entry, and a sentence that sums it up."""

    verdict: str
    rule: str
    tried: list[TriedRule]
    standing: str
    fingerprint: str
    grant: GrantRow | None
    limits: dict[str, str]
    shown: bool
    sentence: str
