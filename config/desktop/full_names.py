"""Rules for tools of servers by their full names, `mcp__SERVER__TOOL`, as Claude Code and Qwen Code have them.

The host puts `_` in the place of all characters of a name but letters, digits, `_` and `-`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from config.globs import rests


def cleaned(name: str) -> str:
    """A name of a server as it stands in full names."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def tools_restricted(rules: Iterable[str], server: str) -> set[str]:
    """The patterns for tools of a server in rules that restrict. `_` may stand for another character there."""
    return {tool.replace("_", "?") for tool in _tools_of(rules, server)}


def tools_allowed(rules: Iterable[str], server: str) -> set[str]:
    """The patterns for tools of a server in rules that permit: those without a condition that name the server."""
    named = (rule for rule in rules if "(" not in rule and rule.startswith(f"mcp__{server}"))
    return set(_tools_of(named, server))


def _tools_of(rules: Iterable[str], server: str) -> Iterator[str]:
    """The patterns for tools of a server in rules, whatever arguments they are for."""
    for rule in rules:
        pattern = rule.partition("(")[0]
        if "" in rests(pattern, f"mcp__{server}"):
            yield "*"
        else:
            yield from rests(pattern, f"mcp__{server}__") - {""}
