"""Whether only the order of the words of a definition differs from the approved one, and what makes that order stay.

A Python program that writes a set into a description writes it in another order at each start. Such a definition stays
held like any other that changed: "never delete, always ask" has the words of "never ask, always delete". But a person
is told.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal, InvalidOperation

from config import HttpServer, StdioServer
from config.container_run import client_program
from host.policy.fingerprint import each_once

LONGEST = 32 * 1024
"""Bytes of a definition that is compared: some milliseconds."""
ORDER_DIFFERS = (
    "only the order of words or of listed texts differs from what was approved; another order can say something else"
)
HASH_SEED = "PYTHONHASHSEED"
"""The variable that gives the sets of Python the same order in each process. Source: Python, "Command line and
environment", PYTHONHASHSEED."""

_PIECE = re.compile(r"\w+|\W")
_NOT_PYTHON = frozenset(
    {
        *("node", "nodejs", "npx", "npm", "pnpm", "pnpx", "yarn", "bun", "bunx", "deno", "tsx", "ts-node"),
        *("java", "dotnet", "ruby", "php", "go", "cargo", "perl"),
    }
)
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})


def is_reordered(before: bytes | None, after: bytes) -> bool:
    """Whether two definitions, JSON text, have the same members and values but for the order of the words and signs
    within each text, or of the texts in each array. False if one is too long to be compared, or has a name twice. Never
    raises."""
    if before is None or max(len(before), len(after)) > LONGEST:
        return False
    try:
        return _is_same(_parse(before), _parse(after))
    except (ValueError, RecursionError, InvalidOperation):
        return False


def _parse(text: bytes) -> object:
    return json.loads(text, object_pairs_hook=each_once, parse_float=Decimal)


def _is_same(before: object, after: object) -> bool:
    if type(before) is not type(after):
        return False
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_is_same(before[name], after[name]) for name in before)
    if isinstance(before, list) and isinstance(after, list):
        if all(isinstance(each, str) for each in (*before, *after)) and Counter(before) == Counter(after):
            return True
        return len(before) == len(after) and all(map(_is_same, before, after))
    if isinstance(before, str) and isinstance(after, str):
        return before == after or (
            len(before) == len(after) and Counter(_PIECE.findall(before)) == Counter(_PIECE.findall(after))
        )
    return before == after


def order_remedy(spec: StdioServer | HttpServer) -> str:
    """The remedy by which a server writes the same order at each start, as a sentence without its end."""
    if isinstance(spec, HttpServer):
        return f"if it is another one at each start, its operator can set {HASH_SEED}=0 where it is a Python program"
    words = [word.reveal() for word in spec.command]
    program = words[client_program(words)].rpartition("/")[2]
    if HASH_SEED in spec.env:
        return f"approve it once with {HASH_SEED}; if it is still another one at each start, its author can fix it"
    if program in _NOT_PYTHON:
        return "if it is another one at each start, its author can give it a fixed order"
    if program in _CONTAINERS:
        return f"if it is another one at each start, add -e {HASH_SEED}=0 to the arguments of {program} run"
    line = f'env: {{{"…, " if spec.env else ""}{HASH_SEED}: "0"}}'
    return f"if it is another one at each start, as with sets of Python, write {line} and approve it once more"
