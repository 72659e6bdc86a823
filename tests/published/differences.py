"""The documented differences between a server and the same server through Colonnade, at `/mcp/<server>`: each makes of
what a client sees directly what it must see through."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from tests.published.looks import NO_SUCH, Seen


@dataclass(frozen=True)
class Difference:
    """A difference: a sentence for docs/servers.md, and what makes the one of the other, in place."""

    sentence: str
    apply: Callable[[Seen, str], None]


def _execution(seen: Seen, mode: str) -> None:
    for tool in seen["tools"].values():
        support = tool.pop("execution", {}).get("taskSupport", "forbidden")
        if mode == "legacy" and support != "forbidden":
            tool["execution"] = {"taskSupport": "optional"}


def _unknown_tool(seen: Seen, _: str) -> None:
    seen["unknown tool"] = {"error": -32602, "message": f"Unknown tool: {NO_SUCH}"}


def _unknown_prompt(seen: Seen, _: str) -> None:
    seen["unknown prompt"] = {"error": -32602, "message": f"Unknown prompt: {NO_SUCH}"}


def _failed_lists(seen: Seen, _: str) -> None:
    absent = {"": {"error": -32601}}
    for kind in ("tools", "resources", "templates", "prompts"):
        # One capability declares both resources and templates.
        if seen[kind] != absent or (kind == "templates" and seen["resources"] != absent):
            seen[kind].pop("", None)


DIFFERENCES = (
    Difference(
        "`execution` of a tool is left out, but `taskSupport: optional` to handshake clients whose call may be a task",
        _execution,
    ),
    Difference("A tool that is not offered is refused with -32602", _unknown_tool),
    Difference("A prompt that is not offered is refused with -32602", _unknown_prompt),
    Difference(
        "A list that the server refuses though it declares its capability is empty; the log says why", _failed_lists
    ),
)


def expected(direct: Seen, mode: str) -> tuple[Seen, list[int]]:
    """The look through Colonnade that must come of a direct one in this mode, and the numbers of the differences."""
    seen, numbers = copy.deepcopy(direct), []
    for number, difference in enumerate(DIFFERENCES, 1):
        before = copy.deepcopy(seen)
        difference.apply(seen, mode)
        if seen != before:
            numbers.append(number)
    return seen, numbers
