"""The claims of tools about themselves (`annotations`), as rules and people read them.

They are a server's own words, and clients must not trust them unless they trust the server (2025-03-26, Tool). Here
they count for a definition that a person has approved, or a server whose trust level is `trusted`.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from config import ToolClaim
from host.jsonrpc.raw import members

MAX_LINE = 200
"""Characters of a claim that people see."""


class ToolClaims(Struct, frozen=True):
    """The claims of one tool. Only JSON `true` makes it read-only, and only `false` keeps it from being destructive or
    open-world: the protocol's defaults (2025-03-26, ToolAnnotations). `lines`: all annotations, one line each."""

    held: frozenset[ToolClaim]
    """The words that hold. A tool may be neither read-only nor destructive."""
    lines: tuple[str, ...] = ()


NO_CLAIMS = ToolClaims(frozenset((ToolClaim.DESTRUCTIVE, ToolClaim.OPEN_WORLD)))
"""The claims of a tool without annotations."""
POSSIBLE_CLAIMS = tuple(
    ToolClaims(frozenset((world, *effect)))
    for world in (ToolClaim.OPEN_WORLD, ToolClaim.CLOSED_WORLD)
    for effect in ((ToolClaim.READ_ONLY,), (ToolClaim.DESTRUCTIVE,), ())
)
"""All that a tool can claim, as far as rules tell it apart."""


def claims_in(definition: bytes) -> ToolClaims:
    """The claims in a tool's definition; NO_CLAIMS if its annotations cannot be read."""
    if b"nnotations" not in definition and b"\\u" not in definition:  # a key may be written with escapes
        return NO_CLAIMS
    try:
        found = members(members(definition)["annotations"])
    except (KeyError, ValueError):
        return NO_CLAIMS
    said = {name: bytes(each).strip() for name, each in found.items()}
    held = {ToolClaim.CLOSED_WORLD if said.get("openWorldHint") == b"false" else ToolClaim.OPEN_WORLD}
    if said.get("readOnlyHint") == b"true":
        held.add(ToolClaim.READ_ONLY)
    elif said.get("destructiveHint") != b"false":
        held.add(ToolClaim.DESTRUCTIVE)
    return ToolClaims(frozenset(held), tuple(f"{name}: {each.decode()}"[:MAX_LINE] for name, each in said.items()))


def describe_claims(held: Collection[str]) -> str:
    """The claims of a tool in people's words; `held` are the words of rules that hold."""
    effect = "may change something"
    if ToolClaim.READ_ONLY in held:
        effect = "only reads"
    elif ToolClaim.DESTRUCTIVE in held:
        effect = "may destroy"
    return f"{effect}, open world" if ToolClaim.OPEN_WORLD in held else effect


def claims_hold(wanted: Collection[ToolClaim], claims: ToolClaims | None) -> bool | None:
    """Whether a tool makes all of these claims. `claims` is None if nothing that the tool claims counts: then the
    answer is None (unknown), unless nothing is wanted."""
    if not wanted:
        return True
    return None if claims is None else claims.held.issuperset(wanted)


def explain_claims(wanted: Collection[ToolClaim], claims: ToolClaims | None) -> str:
    """The result of `claims_hold` as a clause."""
    if claims is None:
        return "no person has approved its definition, so its claims do not count"
    missing = [claim for claim in wanted if claim not in claims.held]
    return f"it is not {' and '.join(missing)} by its claims" if missing else "it claims to be so"
