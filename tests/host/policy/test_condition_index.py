"""The index leaves out no rule that applies, whatever the arguments, and of hundreds it leaves few to look at."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import Check, Condition, Consent, KindConsent, Rule
from config.globs import MAX_LENGTH
from host.jsonrpc.numbers import read_float
from host.policy.condition_index import ConditionIndex, Indexed
from host.policy.conditions import UNREADABLE, conditions_hold
from host.policy.rules import Rules
from host.protocol.methods import Kind
from tests.kit.examples import examples

NUMBERS = (0, 1, 1.0, 1.5, 2, -1, True, 2**53, 2**53 + 1, 2**53 + 2, 10**400, float("inf"))
FOLDERS = ("", "a", "/", "/a", "/a/b", "/a//./B", "/a/%62", "/a/../..", "//a", "/a/~b", "/Ä", "/ä", "/a\\b", "/a/B/c")
HOSTS = (
    "a.b",
    "A.b.",
    "localhost",
    "x.localhost",
    "127.0.0.1",
    "::ffff:127.0.0.1",
    "1.2.3.4",
    "::ffff:1.2.3.4",
    "1",
    "ä.b",
)
URLS = ("https://a.b/x", "http://localhost", "[::1]:8", "http://[::ffff:1.2.3.4]/")
TEXTS = (
    "ab",
    "aba",
    "b",
    "*",
    "a*",
    "*a",
    "?b",
    "a*b",
    "1",
    "/a".ljust(MAX_LENGTH, "b"),
    "/a".ljust(MAX_LENGTH + 1, "b"),
)
SCALARS = (None, False, *NUMBERS, *TEXTS, *FOLDERS, *HOSTS)
BOUNDS = (None, *NUMBERS)
EACH_CHECK = [
    *(Check("eq", each) for each in SCALARS),
    *(
        Check("in", each)
        for each in ((), ("a", "b"), (1, 2), (1, "a"), (None, "a"), (None, 1), (1, 2**53 + 1), (0, True))
    ),
    *(Check(op, each) for op in ("prefix", "suffix", "glob") for each in (*TEXTS, *FOLDERS)),
    *(Check("range", each) for each in product(BOUNDS, BOUNDS)),
    *(
        Check(op, (each, *more))
        for op, some in (("path_under", FOLDERS), ("host_in", HOSTS))
        for each in some
        for more in ((), some[1:5])
    ),
    *(Check("absent", True), Check("type", "string"), Check("max_len", 2)),
    *(Check(op, ()) for op in ("path_under", "host_in")),  # no file has such a check
]
EACH_VALUE = (
    *SCALARS,
    *URLS,
    read_float("1.00"),
    read_float("1e0"),
    read_float("1." + "0" * 60),
    UNREADABLE,
    ["a"],
    {"a": 1},
)
PIECES = st.text("ab*?/.", max_size=4)
TEXT = st.sampled_from((*TEXTS, *FOLDERS, *HOSTS, *URLS)) | PIECES
NUMBER = st.sampled_from(NUMBERS) | st.integers(-3, 3) | st.floats(allow_nan=False)
SCALAR = st.none() | NUMBER | TEXT
CHECKS = st.sampled_from(EACH_CHECK) | st.one_of(
    st.builds(Check, st.just("eq"), SCALAR),
    *(st.builds(Check, st.just("in"), st.lists(some, max_size=3).map(tuple)) for some in (SCALAR, TEXT, NUMBER)),
    st.builds(Check, st.sampled_from(("prefix", "suffix", "glob")), TEXT),
)
PATHS = st.sampled_from(("/a", "/b", "/c/0", ""))
CONDITIONS = st.builds(Condition, PATHS, st.lists(CHECKS, max_size=3).map(tuple))
RULES = st.builds(Indexed, st.lists(CONDITIONS, max_size=3).map(tuple), st.booleans(), st.booleans())
VALUE = SCALAR | st.sampled_from(EACH_VALUE) | st.lists(TEXT, max_size=2) | st.dictionaries(st.just("0"), SCALAR)
ARGUMENTS = st.none() | st.just(UNREADABLE) | st.lists(TEXT) | st.dictionaries(st.sampled_from("abcd"), VALUE)


def applying(rules: list[Indexed], arguments: object) -> list[int]:
    """The rules that apply, one by one, by what their conditions say."""
    said = [conditions_hold(rule.when, arguments, closed=rule.closed) for rule in rules]
    return [
        at
        for at, (rule, holds) in enumerate(zip(rules, said, strict=True))
        if holds or (holds is None and not rule.surely)
    ]


def assert_none_left_out(rules: list[Indexed], index: ConditionIndex, arguments: object) -> None:
    assert set(applying(rules, arguments)) <= index.candidates(arguments)


@pytest.mark.parametrize(("closed", "surely"), [*product((False, True), repeat=2)])
@pytest.mark.parametrize("op", sorted({check.op for check in EACH_CHECK}))
def test_no_check_is_taken_for_one_that_does_not_hold(op: str, closed: bool, surely: bool) -> None:
    rules = [Indexed((Condition("/a", (check,)),), closed, surely) for check in EACH_CHECK if check.op == op]
    index = ConditionIndex(rules)
    for value in EACH_VALUE:
        assert_none_left_out(rules, index, {"a": value})
        assert_none_left_out(rules, index, {"a": value, "other": 1})
    for rule in rules:
        alone = ConditionIndex([rule])
        for value in EACH_VALUE:
            assert_none_left_out([rule], alone, {"a": value})


@settings(max_examples=examples(400))
@given(st.lists(RULES, max_size=8), ARGUMENTS)
def test_no_rule_is_left_out_that_applies(rules: list[Indexed], arguments: object) -> None:
    assert_none_left_out(rules, ConditionIndex(rules), arguments)


LISTS = st.lists(
    st.builds(Rule, st.sampled_from(("t", "t*", "?")), st.lists(CONDITIONS, max_size=2).map(tuple), st.booleans()),
    max_size=4,
).map(tuple)


@settings(max_examples=examples(400))
@given(LISTS, LISTS, LISTS, ARGUMENTS)
def test_the_first_rule_decides_that_is_explained_to_match(
    allow: tuple[Rule, ...], ask: tuple[Rule, ...], deny: tuple[Rule, ...], arguments: object
) -> None:
    """An explanation tries the rules one by one."""
    rules = Rules(Consent(tools=KindConsent(allow, ask, deny)))
    tried = rules.of_kind[Kind.TOOL].explain("t", arguments)
    first = next(trial for trial in tried if trial.matched)
    decision = rules.evaluate(Kind.TOOL, "t", arguments)
    assert (decision.rule, decision.verdict) == (first.rule, first.verdict)


@pytest.mark.parametrize("surely", [True, False])
@pytest.mark.parametrize(
    ("op", "wanted", "value"),
    [
        ("eq", "name {}", "name {}"),
        ("eq", int, int),
        ("in", ("a {}", "b {}"), "b {}"),
        ("in", (int,), int),
        ("prefix", "{}/", "{}/x"),
        ("suffix", "/{}", "x/{}"),
        ("glob", "a*-{}-?", "ab-{}-c"),
        ("range", (int, int), int),
        ("path_under", ("/a/{}", "/b/{}"), "/b/{}/c"),
        ("host_in", ("{}.a.example", "{}.b.example"), "https://{}.b.example/x"),
    ],
)
def test_of_hundreds_one_is_left(op: str, wanted: object, value: object, surely: bool) -> None:
    def checks(number: int) -> tuple[Check, ...]:
        return Check("max_len", 99), Check(op, filled(wanted, number)), Check("type", "string")  # type: ignore[arg-type]

    index = ConditionIndex([Indexed((Condition("/a", checks(number)),), False, surely) for number in range(300)])
    assert index.candidates({"a": filled(value, 17)}) == {17}
    assert index.candidates({"a": filled(value, 300)}) == set()
    for unknown in ({}, {"a": []}, {"a": True}, UNREADABLE):
        assert index.candidates(unknown) == (set() if surely else set(range(300)))


def filled(pattern: object, number: int) -> object:
    if isinstance(pattern, tuple):
        return tuple(filled(each, number) for each in pattern)
    return pattern.format(number) if isinstance(pattern, str) else number


def test_a_rule_is_found_by_the_check_that_few_others_have() -> None:
    rules = [
        Indexed(
            (Condition("/a", (Check("eq", "same"),)), Condition("/b", (Check("prefix", f"{number} "),))), False, False
        )
        for number in range(300)
    ]
    assert ConditionIndex(rules).candidates({"a": "same", "b": "17 x"}) == {17}
