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


class OutlinePiece(TypedDict):
    """A piece of JSON text, or a `mark` that stands in it for a text: `text 1`, `patch 2`, `edit 3: removed`."""

    text: str
    mark: bool


class ArgumentText(TypedDict):
    """A text of arguments: a `text` of several lines, a `patch`, which is a text that is a difference itself, or an
    `edit`, the difference of two texts. `name`: that of its member; of an edit, both. Each piece is whole lines: there
    is a line feed between two pieces."""

    kind: str
    name: str
    pieces: list[DiffPiece]


class HeldRow(TypedDict):
    """A held definition: its difference from the approved one, and its full text. `problem`: why it cannot be approved;
    empty if it can. `order`: a sentence with the remedy if only its order differs from the approved one; else empty."""

    ready: bool
    server: str
    kind: str
    name: str
    standing: str
    fingerprint: str
    since: float
    rejected: bool
    problem: str
    order: str
    trust: str
    diff: list[DiffPiece]
    text: str


class DefinitionRow(TypedDict):
    """A definition that a server offers.

    `standing`: approved, new or changed. `by`: who approved it; `first sight` and `trust` are no persons. `counts`:
    what it claims counts in rules. `claims`: what a tool claims, in the words of rules; of definitions of two eras that
    wait together, what either claims. `verdict` and `rule`: of a call without arguments; empty for instructions and
    launches. `denied`: the rules deny it whatever it claims, so nobody needs to approve it. `text`: the whole
    definition; empty if the whole list is too long to be shown at once. `problem`: as of `HeldRow`.
    """

    server: str
    kind: str
    name: str
    standing: str
    fingerprint: str
    by: str
    counts: bool
    claims: list[str]
    verdict: str
    rule: str
    denied: bool
    description: str
    text: str
    problem: str


class RuleRow(TypedDict):
    """A rule of a server, or what decides where none applies. `about`: the key of `consent`; `origin`: the key of
    `defaults` that it is from, empty if it is not from there."""

    about: str
    verdict: str
    rule: str
    origin: str


class ChangeRow(TypedDict):
    """A change of the configuration that waits for a person: of one server, or with an empty `server` of the host.
    `widens` are sentences; `diff` is the difference of what the file says, with secrets left out. `id` is the same for
    all changes of one reading of the file."""

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
    """The expected outcome of a call: verdict and rule, the key of `defaults` that the rule is from (empty if it is not
    from there), every rule tried, status of the definition and who approved it (`by`, as in `DefinitionRow`), grant
    that would be used, limits of the server, visibility of the entry in the `view` that the caller is in (empty for
    that of everything), a sentence that sums it up, and all `callers` that the file names."""

    verdict: str
    rule: str
    origin: str
    tried: list[TriedRule]
    standing: str
    by: str
    fingerprint: str
    grant: GrantRow | None
    limits: dict[str, str]
    shown: bool
    view: str
    sentence: str
    callers: list[str]
