"""Rows that people are shown: definitions, grants and verdicts, as plain data."""

from __future__ import annotations

from typing import TypedDict


class GrantRow(TypedDict):
    """A grant, in plain data. `live`: it can be used now; else `why` not. `made` and `expires` are Unix time."""

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
    """A definition that is held, in plain data: its difference from the approved one, and all of it."""

    ready: bool
    server: str
    kind: str
    name: str
    standing: str
    fingerprint: str
    since: float
    rejected: bool
    trust: str
    diff: list[DiffPiece]
    text: str


class TriedRule(TypedDict):
    """A rule that was tried on a call."""

    rule: str
    verdict: str
    matched: bool
    why: str


class Explanation(TypedDict):
    """The expected outcome of a call: the verdict and its rule, every rule that was tried, the state of the definition,
    the grant that would be used, the limits of the server, whether clients see the entry, and all of it in a
    sentence."""

    verdict: str
    rule: str
    tried: list[TriedRule]
    standing: str
    fingerprint: str
    grant: GrantRow | None
    limits: dict[str, str]
    shown: bool
    sentence: str
