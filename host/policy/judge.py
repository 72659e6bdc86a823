"""The judge of calls of one entry by one caller, of which only the arguments differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Raw, Struct

from config import Verdict
from host.jsonrpc.raw import EMPTY_OBJECT
from host.policy.argument_names import find_twin, hide_parsed
from host.policy.conditions import LongArguments, decode_arguments
from host.policy.rules import RuleDecision


class Judge(Struct, frozen=True, eq=False):
    """The rules for the entry, and the definition by which its server reads the arguments. It holds while the policy
    epoch, the definition and its approval stay as they are."""

    decide: Callable[[object], RuleDecision]
    """The decision on a call with these arguments, as in `Rules.evaluate`."""
    paths: frozenset[str] | None
    """The arguments that conditions name, as JSON pointers; None if no rule judges the arguments of this caller."""
    definition: bytes
    """Empty if the entry has none."""

    def decode(self, raw_arguments: Raw) -> object:
        """The decoded arguments, as the server may read them."""
        return hide_parsed(decode_arguments(raw_arguments), self.definition)

    def decode_judged(self, raw_arguments: Raw) -> object:
        """The decoded arguments; None if no rule judges them."""
        return None if self.paths is None else self.decode(raw_arguments)

    def search_for_twins(
        self, raw_arguments: Raw, decision: RuleDecision, arguments: object = None
    ) -> Callable[[], str | None] | None:
        """A function that finds the first of the arguments that some readers take for another one; None if neither a
        condition judges them nor a person has to confirm them. `arguments`: decoded, if they were."""
        if raw_arguments == EMPTY_OBJECT or (self.paths is None and decision.verdict is not Verdict.ASK):
            return None
        found = arguments.members if isinstance(arguments, LongArguments) else None
        return partial(find_twin, raw_arguments, self.definition, self.paths or frozenset(), found)
