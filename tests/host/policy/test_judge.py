"""The arguments as a judge reads them, and its search for members that other readers take for others."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from config import Verdict
from host.policy.conditions import LONGEST_DECODED, UNREADABLE
from host.policy.judge import Judge
from host.policy.rules import RuleDecision

DEFINITION = json.dumps({"inputSchema": {"properties": {"a": {"type": "string"}, "b": {}}}}).encode()
TITLE = frozenset(("/title",))
TWINS = Raw(b'{"title":"x","Title":"y"}')


def judge(paths: frozenset[str] | None, definition: bytes = b"") -> Judge:
    return Judge(lambda _: decision(Verdict.ALLOW), paths, definition)


def decision(verdict: Verdict) -> RuleDecision:
    return RuleDecision(verdict, "rule", False)


def test_arguments_are_read_as_the_server_reads_them_by_its_definition() -> None:
    given = Raw(b'{"a":"[1]","b":"[1]","c":2}')
    assert judge(TITLE, DEFINITION).decode_judged(given) == {"a": "[1]", "b": UNREADABLE, "c": 2}
    assert judge(None, DEFINITION).decode_judged(given) is None
    assert judge(None, DEFINITION).decode(given) == {"a": "[1]", "b": UNREADABLE, "c": 2}


@pytest.mark.parametrize(
    ("paths", "verdict", "given", "searches"),
    [
        (None, Verdict.ALLOW, TWINS, False),
        (None, Verdict.ASK, TWINS, True),
        (TITLE, Verdict.ALLOW, TWINS, True),
        (frozenset(), Verdict.ALLOW, TWINS, True),
        (TITLE, Verdict.ASK, Raw(b"{}"), False),
    ],
)
@pytest.mark.parametrize("size", [0, LONGEST_DECODED])
def test_twins_are_searched_where_arguments_are_judged_or_confirmed(
    paths: frozenset[str] | None, verdict: Verdict, given: Raw, searches: bool, size: int
) -> None:
    given = Raw(bytes(given).replace(b'"y"', b'"' + b"y" * size + b'"'))
    made = judge(paths)
    search = made.search_for_twins(given, decision(verdict), made.decode_judged(given))
    assert (search is not None) is searches
    assert search is None or search() == "Title"
