"""The judge: deny before ask before allow for every kind, conditions, defaults, and no spelling of a URI gets around a
rule. A second judge, written without the first, agrees on as many random cases as fit."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, permutations
from random import Random, SystemRandom
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import Check, Condition, Consent, Elicitation, KindConsent, Rule, ToolClaim, Trust, Verdict
from config.globs import MAX_LENGTH, Globs
from host.policy import rules as module
from host.policy.claims import ToolClaims, claims_in
from host.policy.rules import HTTPS_PAGES_ONLY, NO_TOOL_RULES, UNREADABLE, RuleDecision, Rules
from host.protocol.methods import Kind
from host.protocol.search_tools import CALL_TOOL, READ_TOOL
from host.protocol.server_requests import ServerRequest
from tests import reference
from tests.kit.cost import assert_costs_less
from tests.kit.examples import examples

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY
FROM_ACME = (Condition("/owner", (Check("in", ("acme",)),)),)


def listed(*patterns: str | Rule) -> tuple[Rule, ...]:
    return tuple(Rule(each) if isinstance(each, str) else each for each in patterns)


def rules(kind: Kind, allow: tuple[str, ...] | None = None, deny: tuple[str, ...] = ()) -> Rules:
    return judge_of(kind, KindConsent(None if allow is None else listed(*allow), (), listed(*deny)))


def judge_of(kind: Kind, lists: KindConsent, trust: Trust = Trust.STANDARD) -> Rules:
    if kind is Kind.TOOL:
        return Rules(Consent(tools=lists), trust)
    return Rules(Consent(prompts=lists) if kind is Kind.PROMPT else Consent(resources=lists), trust)


def may(judge: Rules, kind: Kind, name: str) -> bool:
    """Whether the entry may be used; without conditions, that is whether it is shown."""
    allowed = judge.evaluate(kind, name).verdict is ALLOW
    assert judge.is_visible(kind, name) is allowed
    return allowed


def allows(uri: str, allow: tuple[str, ...] | None = None, deny: tuple[str, ...] = ()) -> bool:
    return may(rules(Kind.RESOURCE, allow, deny), Kind.RESOURCE, uri)


# Verdicts


@pytest.mark.parametrize("kind", list(Kind))
def test_without_patterns_everything_may_be_reached(kind: Kind) -> None:
    assert may(Rules(Consent()), kind, "any\0thing" * 5000)


@pytest.mark.parametrize("kind", list(Kind))
def test_an_empty_allow_list_allows_nothing(kind: Kind) -> None:
    assert not may(rules(kind, allow=()), kind, "x")
    assert not may(rules(kind, allow=()), kind, "")


@pytest.mark.parametrize("kind", list(Kind))
def test_what_the_allow_list_does_not_name_is_denied(kind: Kind) -> None:
    judge = rules(kind, allow=("a*", "b"))
    assert [name for name in ("a", "ax", "b", "bx", "c") if may(judge, kind, name)] == ["a", "ax", "b"]


@pytest.mark.parametrize("kind", list(Kind))
def test_deny_wins(kind: Kind) -> None:
    judge = rules(kind, allow=("a*",), deny=("*x", "ab"))
    assert [name for name in ("a", "ax", "ab", "abc", "x") if may(judge, kind, name)] == ["a", "abc"]


@pytest.mark.parametrize("kind", list(Kind))
def test_with_only_a_deny_list_the_rest_is_allowed(kind: Kind) -> None:
    judge = rules(kind, deny=("a*",))
    assert not may(judge, kind, "a1")
    assert may(judge, kind, "b")


def test_a_kind_is_evaluated_by_its_own_lists() -> None:
    judge = rules(Kind.TOOL, allow=())
    assert [kind for kind in Kind if may(judge, kind, "x")] == [Kind.RESOURCE, Kind.TEMPLATE, Kind.PROMPT]


def test_a_template_is_evaluated_like_the_resources_it_makes() -> None:
    judge = rules(Kind.TEMPLATE, allow=("repo://acme/**",))
    assert may(judge, Kind.TEMPLATE, "repo://acme/{+path}{?ref,at}")
    assert may(judge, Kind.TEMPLATE, "repo://acme/{owner}/{name}{/more*}")
    assert not may(judge, Kind.TEMPLATE, "repo://{owner}/x")


def test_names_are_never_decoded() -> None:
    judge = rules(Kind.TOOL, deny=("a/b",))
    assert may(judge, Kind.TOOL, "a%2fb")
    assert may(judge, Kind.TOOL, "a/./b")


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_longer_than_the_limit_is_denied_where_patterns_stand(kind: Kind) -> None:
    judge = rules(kind, deny=("never",))
    assert may(judge, kind, "a" * MAX_LENGTH)
    assert not may(judge, kind, "a" * (MAX_LENGTH + 1))


def verdicts(judge: Rules, kind: Kind, *names: str) -> list[Verdict]:
    return [judge.evaluate(kind, name).verdict for name in names]


@pytest.mark.parametrize("kind", list(Kind))
def test_deny_wins_over_ask_and_ask_over_allow_in_any_order(kind: Kind) -> None:
    for order in permutations(("a", "ab", "abc")):
        lists = KindConsent(listed("*", *order), listed("ab*", *order[:1]), listed("abc*"))
        found = verdicts(judge_of(kind, lists), kind, "x", "abx", "abcx")
        assert found == [ALLOW, ASK, DENY]


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    ("lists", "trusted", "standard", "untrusted"),
    [
        (KindConsent(), ALLOW, ALLOW, ASK),
        (KindConsent(ask=listed("a")), ALLOW, ALLOW, ASK),
        (KindConsent(deny=listed("a")), ALLOW, ALLOW, ASK),
        (KindConsent(allow=listed("a")), DENY, DENY, DENY),
        (KindConsent(allow=()), DENY, DENY, DENY),
        (KindConsent(allow=(), default=ASK), ASK, ASK, ASK),
        (KindConsent(default=ALLOW), ALLOW, ALLOW, ALLOW),
        (KindConsent(deny=listed("a"), default=DENY), DENY, DENY, DENY),
    ],
)
def test_what_no_list_names(
    kind: Kind, lists: KindConsent, trusted: Verdict, standard: Verdict, untrusted: Verdict
) -> None:
    expected = {Trust.TRUSTED: trusted, Trust.STANDARD: standard, Trust.UNTRUSTED: untrusted}
    found = {trust: judge_of(kind, lists, trust).evaluate(kind, "x").verdict for trust in Trust}
    assert found == expected
    assert {trust: judge_of(kind, lists, trust).is_visible(kind, "x") for trust in Trust} == {
        trust: verdict is not DENY for trust, verdict in expected.items()
    }


def test_a_server_that_nobody_spoke_of_is_a_standard_one() -> None:
    assert Rules(Consent()).evaluate(Kind.TOOL, "x") == RuleDecision(ALLOW, "trust: standard", False)


# Conditions

CREATE = KindConsent(
    allow=listed("get_*", Rule("create_*", FROM_ACME)),
    ask=listed(Rule("create_*", (Condition("/draft", (Check("eq", False),)),))),
    deny=listed(Rule("*", (Condition("/owner", (Check("eq", "evil"),)),)), "delete_*"),
)


@pytest.mark.parametrize(
    ("name", "arguments", "verdict", "conditional"),
    [
        ("create_x", {"owner": "acme", "draft": True}, ALLOW, True),
        ("create_x", {"owner": "acme", "draft": False}, ASK, True),
        ("create_x", {"owner": "acme"}, ASK, True),  # what is missing counts against the caller
        ("create_x", {"owner": "acme", "draft": "no"}, ASK, True),
        ("create_x", {"owner": "other", "draft": True}, DENY, True),
        ("create_x", {"owner": "evil", "draft": True}, DENY, True),
        ("create_x", {"owner": ["acme"], "draft": True}, DENY, True),
        ("create_x", {}, DENY, True),
        ("create_x", None, DENY, True),
        ("create_x", UNREADABLE, DENY, True),
        ("create_x", ["owner"], DENY, True),
        ("get_x", {"owner": "acme"}, ALLOW, False),
        ("get_x", {"owner": "evil"}, DENY, True),
        ("get_x", {}, DENY, True),
        ("delete_x", {"owner": "acme"}, DENY, False),
        ("delete_x", {"owner": "evil"}, DENY, False),
        ("hidden", {"owner": "evil"}, DENY, False),  # no call of it could pass: it is as if it were not there
        ("hidden", {"owner": "acme"}, DENY, False),
    ],
)
def test_arguments_decide(name: str, arguments: object, verdict: Verdict, conditional: bool) -> None:
    for kind in (Kind.TOOL, Kind.PROMPT):
        found = judge_of(kind, CREATE).evaluate(kind, name, arguments)
        assert (found.verdict, found.conditional) == (verdict, conditional)


def test_what_some_call_may_do_is_shown() -> None:
    judge = judge_of(Kind.TOOL, CREATE)
    shown = [name for name in ("get_x", "create_x", "delete_x", "hidden") if judge.is_visible(Kind.TOOL, name)]
    assert shown == ["get_x", "create_x"]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_closed_rule_knows_all_arguments(verdict: Verdict) -> None:
    rule = Rule("x", FROM_ACME, closed=True)
    lists = KindConsent(
        allow=(rule,) if verdict is ALLOW else None,
        ask=(rule,) if verdict is ASK else (),
        deny=(rule,) if verdict is DENY else (),
        default=DENY if verdict is ALLOW else ALLOW,
    )
    judge = judge_of(Kind.TOOL, lists)

    def matched(arguments: object) -> bool:
        return judge.evaluate(Kind.TOOL, "x", arguments).rule.startswith(f"tools.{verdict}: ")

    assert matched({"owner": "acme"})
    assert matched({"owner": "acme", "more": 1}) is (verdict is not ALLOW)
    assert matched({"owner": "other", "more": 1}) is (verdict is not ALLOW)
    assert not matched({"owner": "other"})


def test_only_where_a_condition_stands_are_arguments_read() -> None:
    judge = Rules(Consent(tools=CREATE, prompts=KindConsent(deny=(Rule("x", closed=True),))))
    assert [kind for kind in Kind if judge.of_kind[kind].reads_arguments] == [Kind.TOOL, Kind.PROMPT]
    assert not Rules(Consent(tools=KindConsent(deny=listed("x")))).of_kind[Kind.TOOL].reads_arguments


# The texts of rules


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule("create_*"), "create_*"),
        (Rule("create_issue", FROM_ACME), 'create_issue when {"owner": {"in": ["acme"]}}'),
        (Rule("x", FROM_ACME, True), 'x when {"owner": {"in": ["acme"]}} and nothing else'),
        (Rule("x", closed=True), "x when {} and nothing else"),
        (Rule("a b"), '"a b"'),
        (Rule('"a"'), '"\\"a\\""'),
        (Rule(""), '""'),
        (Rule("a\u202eb"), '"a\\u202eb"'),
        (Rule("é*"), "é*"),
        (
            Rule("x", (Condition("/b/c", (Check("range", (None, 5)), Check("eq", 1.0))), Condition("/a~1b", ()))),
            'x when {"/a~1b": {}, "/b/c": {"eq": 1.0, "range": [null, 5]}}',
        ),
    ],
)
def test_a_rule_is_written_out(rule: Rule, text: str) -> None:
    arguments = {"owner": "acme", "b": {"c": 1}, "a/b": 0}
    given = {} if rule == Rule("x", closed=True) else {"owner": "acme"} if rule.when == FROM_ACME else arguments
    name = rule.pattern.replace("*", "y")
    assert judge_of(Kind.TOOL, KindConsent(ask=(rule,))).evaluate(Kind.TOOL, name, given).rule == f"tools.ask: {text}"


def test_no_two_rules_have_the_same_text() -> None:
    conditions = [
        (),
        *(
            (Condition(path, (Check("eq", value),)),)
            for path in ("/a", "a", "/a/b", "")
            for value in (1, 1.0, "1", True)
        ),
        (Condition("/a", (Check("in", ("x",)),)),),
        (Condition("/a", (Check("in", ("x", "y")),)),),
        (Condition("/a", (Check("prefix", "x"),)),),
        (Condition("/a", (Check("prefix", "x"), Check("suffix", "x"))),),
        (Condition("/a", (Check("prefix", "x"),)), Condition("/b", (Check("suffix", "x"),))),
        (Condition("/", (Check("eq", 1),)),),
    ]
    patterns = ["x", "x ", '"x"', 'x when {"a": {"eq": 1}}', "x and nothing else", "nothing else", "x\n", "x\\n"]
    many = [Rule(pattern, when, closed) for pattern in patterns for when in conditions for closed in (False, True)]
    judges = [Rules(Consent(tools=KindConsent(ask=(rule,)))) for rule in many]
    asked = {text for judge in judges for text in judge.of_kind[Kind.TOOL].texts()}
    assert len(asked) == len(many) - len(patterns) * 2 * 4  # /a and a are one place, whichever way it is written
    assert "tools.ask: nothing else" not in asked


def test_the_order_of_the_file_changes_no_text() -> None:
    several = (Rule("*", FROM_ACME), Rule("create_*"), Rule("*"), Rule("create_x"))
    for order in permutations(several):
        judge = judge_of(Kind.TOOL, KindConsent(ask=order))
        assert judge.evaluate(Kind.TOOL, "create_x", {}).rule == "tools.ask: *"
    first, second = Condition("/a", (Check("eq", 1), Check("type", "number"))), Condition("/b", (Check("eq", 1),))
    turned = Condition("/a", tuple(reversed(first.checks)))
    texts = {
        judge_of(Kind.TOOL, KindConsent(ask=(Rule("x", when),))).evaluate(Kind.TOOL, "x", {}).rule
        for when in ((first, second), (second, first), (turned, second))
    }
    assert len(texts) == 1


def test_of_many_readings_one_rule_is_named_whatever_their_order() -> None:
    judge = judge_of(Kind.RESOURCE, KindConsent(ask=listed("x://h/b", "x://h/a/../b", "x://h/**"), deny=listed("z")))
    assert judge.evaluate(Kind.RESOURCE, "x://h/a/../b").rule == "resources.ask: x://h/**"
    judge = judge_of(Kind.RESOURCE, KindConsent(allow=listed("x://h/a/**"), ask=listed("x://h/b")))
    assert judge.evaluate(Kind.RESOURCE, "x://h/a/../b") == RuleDecision(ASK, "resources.ask: x://h/b", False)
    assert judge.evaluate(Kind.RESOURCE, "x://h/a/../c") == RuleDecision(DENY, "resources.allow: nothing else", False)


def test_whether_a_person_may_still_be_asked_by_a_rule() -> None:
    judge = Rules(
        Consent(tools=CREATE, prompts=KindConsent(default=ASK), elicitation=Elicitation(form=ASK)), Trust.STANDARD
    )
    assert judge.has_rule('tools.ask: create_* when {"draft": {"eq": false}}')
    assert judge.has_rule("prompts.default")
    assert judge.has_rule("elicitation.form: ask")
    assert judge.has_rule("trust: standard")  # for sampling
    assert not judge.has_rule('tools.allow: create_* when {"owner": {"in": ["acme"]}}')
    assert not judge.has_rule("tools.default")
    assert not judge.has_rule("trust: untrusted")
    assert not Rules(Consent(), Trust.TRUSTED).has_rule("trust: trusted")


# Explaining


def test_every_rule_that_was_tried_is_told_with_the_reason() -> None:
    found = judge_of(Kind.TOOL, CREATE).of_kind[Kind.TOOL].explain("create_x", {"owner": "acme", "draft": "no"})
    assert [(each.rule, each.matched, each.why) for each in found] == [
        ("tools.deny: delete_*", False, "the name does not fit"),
        ('tools.deny: * when {"owner": {"eq": "evil"}}', False, "the name fits, and owner: eq does not hold"),
        (
            'tools.ask: create_* when {"draft": {"eq": false}}',
            True,
            "the name fits, and draft: eq cannot be told of this value",
        ),
        ("tools.allow: get_*", False, "the name does not fit"),
        ('tools.allow: create_* when {"owner": {"in": ["acme"]}}', True, "the name fits, and all conditions hold"),
        ("tools.allow: nothing else", False, "another rule matches"),
    ]


def test_readings_of_a_uri_are_explained() -> None:
    judge = judge_of(Kind.RESOURCE, KindConsent(allow=listed("x://h/a/**")))
    first, rest = judge.of_kind[Kind.RESOURCE].explain("x://h/a/../b")
    assert (first.matched, first.why) == (True, "the URI fits in 1 of the 2 ways it may be read")
    assert (rest.matched, rest.why) == (True, "no other rule matches every reading of the URI")
    assert rest.verdict is DENY


def test_a_name_that_is_too_long_is_explained() -> None:
    (only,) = judge_of(Kind.TOOL, CREATE).of_kind[Kind.TOOL].explain("x" * (MAX_LENGTH + 1))
    assert (only.verdict, only.matched) == (DENY, True)


def test_nothing_of_the_arguments_is_in_an_explanation() -> None:
    secret = "hunter2"
    rule = Rule("x", (*FROM_ACME, Condition("/n/0", (Check("max_len", 1),))), closed=True)
    judge = judge_of(Kind.TOOL, KindConsent(deny=(rule,), ask=(replace(rule, closed=False),)))
    for arguments in ({"owner": secret}, {"owner": [secret], "n": [secret]}, {secret: 1}, {"n": {secret: 1}}):
        assert secret not in str(judge.of_kind[Kind.TOOL].explain("x", arguments))


# Rules for nothing


def unmatched(judge: Rules, kind: Kind, names: Iterable[str]) -> list[str]:
    left = set(judge.of_kind[kind].texts()).difference(*(judge.of_kind[kind].matching(name) for name in names))
    return [text for text in judge.of_kind[kind].texts() if text in left]


@pytest.mark.parametrize(
    ("kind", "names", "left"),
    [
        (Kind.TOOL, ("get_x", "delete_y"), ["tools.ask: create_*", 'tools.allow: o when {"owner": {"in": ["acme"]}}']),
        (Kind.TOOL, ("o", "create_x", "x" * (MAX_LENGTH + 1)), ["tools.deny: delete_*", "tools.allow: get_*"]),
        (Kind.RESOURCE, ("x://h/a/../b", "x://h/%2ea"), ["resources.deny: x://h/c"]),
        (Kind.RESOURCE, (), ["resources.deny: x://h/c", "resources.ask: x://h/.a", "resources.allow: x://h/b"]),
        (Kind.PROMPT, ("x",), []),
    ],
)
def test_rules_that_match_nothing_are_told(kind: Kind, names: tuple[str, ...], left: list[str]) -> None:
    consent = Consent(
        tools=KindConsent(listed("get_*", Rule("o", FROM_ACME)), listed("create_*"), listed("delete_*"), ASK),
        resources=KindConsent(listed("x://h/b"), listed("x://h/.a"), listed("x://h/c")),
        prompts=KindConsent(default=ASK),
    )
    assert unmatched(Rules(consent), kind, names) == left


# What servers ask

PAGE = "https://example.com/login"


@pytest.mark.parametrize(
    ("question", "trusted", "standard", "untrusted"),
    [
        (ServerRequest.SAMPLING, ALLOW, ASK, DENY),
        (ServerRequest.FORM, ALLOW, ALLOW, DENY),
        (ServerRequest.URL, ALLOW, ASK, DENY),
        (ServerRequest.ROOTS, ALLOW, ALLOW, DENY),
    ],
)
def test_what_a_server_may_ask_goes_by_trust(
    question: ServerRequest, trusted: Verdict, standard: Verdict, untrusted: Verdict
) -> None:
    expected = {Trust.TRUSTED: trusted, Trust.STANDARD: standard, Trust.UNTRUSTED: untrusted}
    for uri in (None, PAGE):
        found = {trust: Rules(Consent(), trust).evaluate_server_request(question, uri) for trust in Trust}
        assert found == {trust: RuleDecision(verdict, f"trust: {trust}", False) for trust, verdict in expected.items()}
    assert {trust: Rules(Consent(), trust).allows_server_request(question) for trust in Trust} == {
        trust: verdict is not DENY for trust, verdict in expected.items()
    }


def test_a_word_replaces_the_trust_level() -> None:
    judge = Rules(
        Consent(sampling=ALLOW, elicitation=Elicitation(form=DENY, url=KindConsent(default=ALLOW))), Trust.UNTRUSTED
    )
    assert judge.evaluate_server_request(ServerRequest.SAMPLING) == RuleDecision(ALLOW, "sampling: allow", False)
    assert judge.evaluate_server_request(ServerRequest.FORM) == RuleDecision(DENY, "elicitation.form: deny", False)
    assert judge.evaluate_server_request(ServerRequest.URL, PAGE) == RuleDecision(
        ALLOW, "elicitation.url.default", False
    )


NO_PAGES = [
    *("javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "vbscript:x", "about:blank", "blob:https://h/x"),
    *("http://example.com/", "ftp://example.com/", "ws://example.com/", "//example.com/", "example.com", "", "https:"),
    *("https:///example.com", "https://", "https:example.com", "https:/example.com", "https://user@example.com/"),
    *("https://user:pass@example.com/", "https://example.com\\@evil.org/", "https://evil.org#@example.com/"),
    *("https://exam\tple.com/", " https://example.com/", "https://example.com/ x", "https://exam%70le.com/"),
    *("https://ex\u0430mple.com/", "https://example\uff0ecom/", "https://example.com:99999/", "https://[::1%25lo]/"),
    *(
        "http://127.1/",
        "http://0x7f000001/",
        "http://localhost.evil.org/",
        "http://127.0.0.1.evil.org/",
        "http://10.0.0.1",
    ),
    *("jAvAsCrIpT:x", "java\nscript:x", "https://example.com\u202e/", "https://" + "a" * 9000 + "/"),
]


@pytest.mark.parametrize("uri", NO_PAGES)
def test_nobody_is_sent_to_what_is_no_safe_page(uri: str) -> None:
    for trust in (Trust.STANDARD, Trust.UNTRUSTED):
        for lists in (
            KindConsent(),
            KindConsent(default=ALLOW),
            KindConsent(allow=listed("**")),
            KindConsent(listed(uri)),
        ):
            assert Rules(Consent(elicitation=Elicitation(url=lists)), trust).evaluate_server_request(
                ServerRequest.URL, uri
            ) == RuleDecision(DENY, HTTPS_PAGES_ONLY, False)
    assert Rules(Consent(), Trust.TRUSTED).evaluate_server_request(ServerRequest.URL, uri).verdict is ALLOW
    if uri and len(uri) <= MAX_LENGTH:
        denied = Rules(
            Consent(elicitation=Elicitation(url=KindConsent(deny=listed(uri)))), Trust.TRUSTED
        ).evaluate_server_request(ServerRequest.URL, uri)
        assert denied.verdict is DENY


@pytest.mark.parametrize(
    "uri",
    [
        *(
            PAGE,
            "HTTPS://EXAMPLE.COM/login",
            "https://example.com:8443/a?b=c&d=https://x/@y#z",
            "https://xn--e1afmkfd.com/",
        ),
        *(
            "https://192.0.2.1/",
            "https://[2001:db8::1]:8443/",
            "http://localhost:8080/x",
            "http://127.0.0.1/",
            "http://[::1]/",
        ),
        *("https://example.com/@user", "https://example.com/ä"),
    ],
)
def test_a_page_may_be_asked_for(uri: str) -> None:
    assert Rules(Consent()).evaluate_server_request(ServerRequest.URL, uri) == RuleDecision(
        ASK, "trust: standard", False
    )
    assert (
        Rules(Consent(elicitation=Elicitation(url=KindConsent(default=ALLOW))))
        .evaluate_server_request(ServerRequest.URL, uri)
        .verdict
        is ALLOW
    )


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "https://evil.org/",
            "https://evil.org/.example.com/",
            "https://evil.org?.example.com/",
            "https://evil.org#.example.com/",
        ),
        *(
            "https://api.example.com/ok/../../x",
            "https://api.example.com.evil.org/ok/",
            "https://api.example.com/%2e%2e/x",
        ),
    ],
)
def test_no_spelling_leads_to_another_page(uri: str) -> None:
    judge = Rules(
        Consent(
            elicitation=Elicitation(
                url=KindConsent(allow=listed("https://*.example.com/ok/**", "https://*.example.com/"))
            )
        )
    )
    assert judge.evaluate_server_request(ServerRequest.URL, "https://api.example.com/ok/x").verdict is ALLOW
    assert judge.evaluate_server_request(ServerRequest.URL, uri).verdict is DENY


def test_pages_and_roots_are_evaluated_by_their_patterns() -> None:
    judge = Rules(
        Consent(
            elicitation=Elicitation(url=KindConsent(allow=listed("https://a.example/**"), deny=listed("**/admin/**"))),
            roots=KindConsent(allow=listed("file:///home/me/project"), ask=listed("file:///home/me/*")),
        )
    )
    assert (
        judge.evaluate_server_request(ServerRequest.URL, "https://a.example/x").rule
        == "elicitation.url.allow: https://a.example/**"
    )
    assert judge.evaluate_server_request(ServerRequest.URL, "https://a.example/admin/x").verdict is DENY
    assert judge.evaluate_server_request(ServerRequest.URL, "https://a.example/%61dmin/x").verdict is DENY
    found = [
        judge.evaluate_server_request(ServerRequest.ROOTS, f"file:///home/me/{name}").verdict
        for name in ("project", "x", "x/y")
    ]
    assert found == [ASK, ASK, DENY]


@pytest.mark.parametrize(
    ("lists", "verdict"),
    [
        (KindConsent(), ASK),
        (KindConsent(allow=()), DENY),
        (KindConsent(allow=listed("https://h/**")), ALLOW),
        (KindConsent(ask=listed("https://h/**"), default=DENY), ASK),
        (KindConsent(deny=listed("https://h/**")), ASK),
        (KindConsent(deny=listed("**"), default=ALLOW), DENY),
        (KindConsent(deny=listed("*", "*/**"), default=ALLOW), DENY),
        (KindConsent(deny=listed("**"), default=DENY), DENY),
    ],
)
def test_without_a_page_it_is_the_one_that_pleases_most(lists: KindConsent, verdict: Verdict) -> None:
    judge = Rules(Consent(elicitation=Elicitation(url=lists)))
    assert judge.evaluate_server_request(ServerRequest.URL).verdict is verdict
    assert judge.allows_server_request(ServerRequest.URL) is (verdict is not DENY)


def test_roots_are_told_apart_by_rules_alone() -> None:
    assert Rules(Consent(roots=KindConsent(deny=listed("file:///etc/**")))).has_root_rules
    assert not Rules(Consent(roots=KindConsent(default=ASK))).has_root_rules


# The second judge

KINDS = {"tools": Kind.TOOL, "prompts": Kind.PROMPT, "resources": Kind.RESOURCE}
QUESTIONS = {
    "sampling": ServerRequest.SAMPLING,
    "form": ServerRequest.FORM,
    "url": ServerRequest.URL,
    "roots": ServerRequest.ROOTS,
}
TITLES = {"form": "elicitation.form", "url": "elicitation.url"}
STRICTEST_FIRST = (DENY, ASK, ALLOW)


def compare(seed: int, count: int) -> None:
    consent, judge = None, Rules(Consent())
    for number, case in enumerate(islice(reference.cases(Random(seed)), count)):
        if case.consent is not consent:
            consent, judge = case.consent, Rules(case.consent, case.trust)
        told = case.annotations if case.counts else reference.UNTOLD
        caller = case.caller
        expected = reference.opinion(case.consent, case.trust, case.word, case.name, case.given, told, caller)
        claims = claims_in(json.dumps({"annotations": case.annotations}).encode()) if case.counts else None
        kind = KINDS.get(case.word)
        if kind is None:
            request = QUESTIONS[case.word]
            found = judge.evaluate_server_request(request, case.name, caller)
            agreed = not found.conditional
            if found.verdict is not DENY:
                agreed = agreed and all(judge.allows_server_request(request, each) for each in (caller, None))
        else:
            found = judge.evaluate(kind, case.name, case.given, claims, caller)
            shown = judge.is_visible(kind, case.name, claims, caller)
            agreed = shown == expected.shown and found.conditional == _by_arguments(expected)
            agreed = agreed and shown == judge.is_visible_cached(kind, case.name, claims, caller)
            agreed = agreed and (
                not shown or (judge.may_be_visible(kind, case.name) and judge.of_kind[kind].may_show(caller))
            )
        agreed = agreed and found.verdict == expected.verdict and found.rule.startswith(_texts(case, expected))
        if not expected.exact:
            # Servers differ over this URI. The judge counts all of them, the reference some: it may be the stricter.
            agreed = STRICTEST_FIRST.index(found.verdict) <= STRICTEST_FIRST.index(expected.verdict)
        if kind is not None and number % 8 == 0:
            agreed = agreed and _is_explained(judge, kind, case, claims)
        assert agreed, f"case {number} of seed {seed}: {case}\n{found}\n{expected}"


def _is_explained(judge: Rules, kind: Kind, case: reference.Case, claims: ToolClaims | None) -> bool:
    """Whether the rule that decided is told among those that match, and none that is stricter."""
    found = judge.evaluate(kind, case.name, case.given, claims, case.caller)
    matched = [each for each in judge.of_kind[kind].explain(case.name, case.given, claims, case.caller) if each.matched]
    strictest = min((each.verdict for each in matched), key=[DENY, ASK, ALLOW].index)
    return strictest is found.verdict and found.rule in [each.rule for each in matched]


def _by_arguments(expected: reference.Opinion) -> bool:
    if expected.verdict == "deny":
        return expected.shown
    return bool(expected.rules) and all(reference.is_conditional(rule) for rule in expected.rules)


def _texts(case: reference.Case, expected: reference.Opinion) -> tuple[str, ...]:
    """How the text of the rule that decided may begin."""
    title = TITLES.get(case.word, case.word)
    if expected.rules:
        patterns = [rule.pattern for rule in expected.rules]
        return tuple(
            f"{title}.{expected.verdict}: {text}" for each in patterns for text in (each or '""', json.dumps(each))
        )
    said = {
        "default": f"{title}.default",
        "list": f"{title}.allow: nothing else",
        "trust": f"trust: {case.trust}",
        "word": f"{title}: {expected.verdict}",
        "length": "longer than 8192 characters",
        "page": HTTPS_PAGES_ONLY,
    }
    return (said[expected.said],)


PARTS = int(os.environ.get("COLONNADE_POLICY_PARTS", "2"))
"""Ten thousand cases each; ten of them in `make consent`."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_second_judge_agrees_on_ten_thousand_cases(part: int) -> None:
    compare(20_261_121 + part, 10_000)


@pytest.mark.slow
def test_a_second_judge_agrees_on_cases_that_are_new_each_time() -> None:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    compare(seed, 5_000)


# Spellings of URIs

TRAVERSALS = [
    "x://acme/public/../secret",
    "x://acme/public/../public/../secret",
    "x://acme/./secret",
    "x://acme//secret",
    "x://acme///.//secret",
    "x://acme/%2e%2e/acme/../secret",
    "x://acme/public/%2e%2e/secret",
    "x://acme/public/%2E%2E/secret",
    "x://acme/public/.%2e/secret",
    "x://acme/public/%2e./secret",
    "x://acme/public%2f..%2fsecret",
    "x://acme/public%2F%2E%2E%2Fsecret",
    "x://acme/%2fsecret",
    "x://acme%2fsecret",
    "x://acme/%73ecret",
    "x://acme/public/..//./secret",
    "x://acme/public/a%3F/../../secret",
    "x://acme/public/a%23/../../secret",
    "x://acme/public/a?/../../secret",
    "x://acme/public/a#/../../secret",
    "x://acme\\secret",
    "x://acme/public\\..\\secret",
    "x://acme/public%5c..%5csecret",
    "x://acme/public/.\t./secret",
    "x://acme/se\ncret",
    "x://acme/se%0acret",
    "x://public/../acme/secret",
    "x://acme/../acme/secret",
    "x://acme/../secret",
    "x://acme%2f..%2fsecret",
]


@pytest.mark.parametrize("uri", TRAVERSALS)
def test_no_spelling_reaches_what_is_denied(uri: str) -> None:
    assert not allows(uri, deny=("x://acme/secret",))


@pytest.mark.parametrize("uri", TRAVERSALS)
def test_no_spelling_climbs_out_of_what_is_allowed(uri: str) -> None:
    assert not allows(uri, allow=("x://acme/public/**", "x://public/**"))


@pytest.mark.parametrize(
    "uri",
    [
        "repo://acme/../evil",
        "repo://acme/%2e%2e/evil",
        "repo://acme/x/../../evil",
        "repo://acme/..%2fevil",
        "repo://acme\\..\\evil",
        "repo://acme/?/../../../evil",
        "repo://acme/..",
    ],
)
def test_a_host_that_a_server_takes_for_a_folder_cannot_be_left(uri: str) -> None:
    assert not allows(uri, allow=("repo://acme/**",))
    assert not allows(uri, deny=("repo://evil", "repo://"))


@pytest.mark.parametrize(
    "uri",
    [
        "repo://acme/public",
        "repo://acme/a/b.txt",
        "repo://acme/a b/%20",
        "repo://acme/a/../b",
        "repo://acme/...",
        "repo://acme/a..b",
        "repo://acme/?q=http://h//x",
        "repo://acme/é/{path}",
        "repo://acme/",
        "repo://acme/a/",
    ],
)
def test_a_decent_uri_is_still_allowed(uri: str) -> None:
    assert allows(uri, allow=("repo://acme/**",))
    assert allows(uri, deny=("repo://evil/**",))


URI_TEXT = st.lists(st.sampled_from(["/", "//", ".", "..", "a", "b:", "?", "#", "\\", " ", "é", "{x}", "\t"])).map(
    "".join
)


def normal_form(uri: str) -> str:
    """A URI of x://h, decoded once, its path without `.`, `..` and empty segments."""
    path = unquote(uri.removeprefix("x://h")).replace("\\", "/").replace("\t", "")
    resolved = posixpath.normpath(path).strip("/")
    return f"x://h/{resolved}{'/' if resolved and path.split('/')[-1] in ('', '.', '..') else ''}"


@settings(max_examples=examples(120))
@given(URI_TEXT, st.lists(st.integers(0, 30)))
def test_escaping_any_characters_of_a_path_changes_no_verdict(text: str, places: list[int]) -> None:
    text = text.replace("?", "").replace("#", "")
    spelled = "".join(
        "".join(f"%{byte:02x}" for byte in char.encode()) if place in places else char
        for place, char in enumerate(text)
    )
    plain, escaped = f"x://h/{text}", f"x://h/{spelled}"
    assert normal_form(escaped) == normal_form(plain)
    for pattern in ("x://h/a", "x://h/a/**", "x://h/*", "x://a"):
        if not allows(plain, deny=(pattern,)):
            assert not allows(escaped, deny=(pattern,))
        # A pattern may be written so that it fits the one spelling only: so it is never more than the plain one.
        if allows(escaped, allow=(pattern,)):
            assert Globs((pattern,), uris=True).match(normal_form(plain))


@pytest.mark.parametrize("piece", ["%2e%2e/a?/", "a%2f../", "/?#;%3f%23%5c..", "%25%2e"])
def test_the_longest_uri_is_evaluated_in_time(piece: str) -> None:
    uri = ("x://h/" + piece * MAX_LENGTH)[:MAX_LENGTH]
    allow = tuple(f"x://h/**a*b**{number}" for number in range(20))
    assert_costs_less(lambda: allows(uri, allow=allow, deny=("**a*b**c",) * 20), 0.5)


@pytest.mark.parametrize(
    "spelling",
    [
        *("NOTES://secret", " notes://secret", "notes://secret ", "\x01notes://secret", "no\ttes://secret"),
        *("FILE:///etc/passwd", "file:/etc/passwd", "file:etc/passwd", "file://localhost/etc/passwd"),
        *("file:////etc//passwd", "file:\\etc\\passwd", "file:%2Fetc/passwd", "file://LOCALHOST/etc/./passwd"),
        *("VAULT://private/k", "vault://private:/k"),
        *("https://HOST/x", "https:host/x", "https://host:443/x", "HTTPS:\\\\host\\x", "https://host:/x"),
    ],
)
def test_other_spellings_of_a_denied_uri_are_denied(spelling: str) -> None:
    """What a URL parser makes of them is what servers look resources up by."""
    patterns = ("notes://secret", "file:///etc/**", "vault://private/**", "https://Host/x")
    assert not allows(spelling, deny=patterns)


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [("Memo:*", "Memo:1"), ("Memo:*", "memo:1"), ("repo://Acme/**", "repo://Acme/x"), ("https://H/x*", "https://H/xy")],
)
def test_what_is_the_same_in_upper_and_lower_case_is_allowed_as_well(pattern: str, uri: str) -> None:
    assert allows(uri, allow=(pattern,))


def test_what_is_not_the_same_in_upper_and_lower_case_is_not() -> None:
    assert not allows("repo://acme/x", allow=("repo://Acme/**",))


PATTERN = "file:///srv/d/**"
ENDS = ("?", "?x=1", "#", "#frag", "/", "/.")


@pytest.mark.parametrize("end", [*ENDS, "//", "/./", "?#", "/?x", "/.#f", "%3F", "%3Fx", "%23x", "%2F", "\\", "%00.md"])
def test_what_is_denied_is_denied_with_anything_behind_it_that_a_server_may_leave_out(end: str) -> None:
    for deny in ("**/.env", "file:///srv/d/.env", "file:///srv/d/.e*"):
        judge = rules(Kind.RESOURCE, (PATTERN,), (deny,))
        assert judge.evaluate(Kind.RESOURCE, "file:///srv/d/.env" + end).rule == f"resources.deny: {deny}"
        assert not judge.is_visible(Kind.RESOURCE, "file:///srv/d/.env" + end)
    judge = judge_of(
        Kind.RESOURCE, KindConsent(allow=listed("x://**"), ask=listed("x://h/pay"), deny=listed("x://h/s"))
    )
    assert judge.evaluate(Kind.RESOURCE, "x://h/s" + end).verdict is DENY
    assert judge.evaluate(Kind.RESOURCE, "x://h/pay" + end).verdict is ASK


@pytest.mark.parametrize("end", ["?", "?x=1", "#", "#frag", "?#", "%3F", "%23", "%00"])
def test_what_is_not_allowed_is_not_either_with_anything_behind_it(end: str) -> None:
    """Be it that only the longer form has what the pattern wants."""
    for pattern in (
        "file:///srv/d/*.md",
        "file:///srv/d/a?*",
        "file:///srv/d/a#*",
        "file:///srv/d/a/",
        "x://h/**/*.md",
    ):
        uri = pattern.split("//")[0] + ("//h/srv/key" if pattern[0] == "x" else "///srv/d/key") + end + ".md"
        assert not allows(uri, allow=(pattern,))


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [
        *(("x://list?*", "x://list?a=1"), ("x://list?*", "x://list?a=1&b=c%20d"), ("x://list/?*", "x://list/?a=1")),
        *(("x://h/d?v=2", "x://h/d?v=2"), ("x://h/d#*", "x://h/d#part"), ("x://h/d?*#*", "x://h/d?a#b")),
        *(("https://h/cb?*", "https://h/cb?code=1"), ("x://h/**", "x://h/d?a=1#b"), ("x://h/**", "x://h/a/?x")),
        *(("file:///d/**", "file:///d/a?x"), ("file:///d/**", "file:///d/a/"), ("file:///d/", "file:///d/")),
        *(("file:///d/a", "file:///d/a"), ("file:///d/{path}", "file:///d/{path}"), ("x://h/d/", "x://h/d/")),
        *(("x://{id}{?q}", "x://{id}{?q}"), ("http://h/*;v=*", "http://h/a;v=1"), ("memo:*", "memo:1")),
    ],
)
def test_what_a_pattern_names_in_full_is_allowed(pattern: str, uri: str) -> None:
    assert allows(uri, allow=(pattern,))


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [
        *(("x://list?*", "x://list#a"), ("x://h/f?le/**.md", "x://h/file/key?.md"), ("x://h/**.md", "x://h/key#.md")),
        *(("x://h/d?*.md", "x://h/d?key#.md"), ("file:///d/a?*", "file:///d/a?x")),
        ("http://h/*.md", "http://h/key;.md"),
        *(
            ("file:///d/pub/**", "file:///d/pub/a%2fb/../../key"),
            ("file:///d/pub/**", "file:///d/pub/a%5cb%2f../../key"),
        ),
        *(
            ("**.md", "x://h/key%00.md"),
            ("file:///d/*.md", "file:///d/key%3F.md"),
            ("file:///d/*.md", "file:///d/key#.md"),
        ),
    ],
)
def test_what_a_server_may_take_for_something_else_is_not_allowed_by_a_pattern_for_the_longer_text(
    pattern: str, uri: str
) -> None:
    assert not allows(uri, allow=(pattern,))


def test_pages_and_roots_may_end_in_a_slash() -> None:
    judge = Rules(
        Consent(
            elicitation=Elicitation(
                url=KindConsent(allow=listed("https://h/ok/**", "https://h/cb?*"), deny=listed("https://h/ok/admin"))
            ),
            roots=KindConsent(allow=listed("file:///home/me/**"), deny=listed("file:///home/me/.ssh")),
        )
    )
    for page in ("https://h/ok/", "https://h/ok/#top", "https://h/ok/a/?b=c", "https://h/cb?code=1"):
        assert judge.evaluate_server_request(ServerRequest.URL, page).verdict is ALLOW
    for page in ("https://h/ok/admin/", "https://h/ok/admin?x", "https://h/ok/admin/.#y", "https://h/ok/x/..%2fadmin"):
        assert judge.evaluate_server_request(ServerRequest.URL, page).verdict is DENY
    for root in ("file:///home/me/", "file:///home/me/project/", "file:///home/me/project"):
        assert judge.evaluate_server_request(ServerRequest.ROOTS, root).verdict is ALLOW
    for root in (
        "file:///home/me/.ssh/",
        "file:///home/me/.ssh?",
        "file://x/home/me/.ssh",
        "file:///home/me/a/../.ssh/.",
    ):
        assert judge.evaluate_server_request(ServerRequest.ROOTS, root).verdict is DENY


def test_a_uri_that_can_be_read_in_too_many_ways_is_denied() -> None:
    uri = "http://me@h:80/a%5cb%2f../x;y?q%3f/../a%2523?z#%2523#;%09/./a\\b%2f..;" + "%255c/..%252f?#;" * 9
    judge = judge_of(Kind.RESOURCE, KindConsent(allow=listed("**")))
    assert judge.evaluate(Kind.RESOURCE, uri) == RuleDecision(DENY, "readable in too many ways", False)
    assert not judge.is_visible(Kind.RESOURCE, uri)
    (only,) = judge.of_kind[Kind.RESOURCE].explain(uri)
    assert (only.verdict, only.matched, only.rule) == (DENY, True, "readable in too many ways")
    assert unmatched(judge, Kind.RESOURCE, [uri]) == ["resources.allow: **"]


def test_a_rule_that_decides_by_a_part_of_a_uri_matches_something() -> None:
    lists = KindConsent(allow=listed("x://list?*", "x://list"), deny=listed("x://h/key", "x://other"))
    judge = judge_of(Kind.RESOURCE, lists)
    assert unmatched(judge, Kind.RESOURCE, ["x://list?a", "x://h/key?v=1"]) == [
        "resources.deny: x://other",
        "resources.allow: x://list",
    ]


def test_what_is_left_of_a_uri_is_explained() -> None:
    judge = judge_of(Kind.RESOURCE, KindConsent(allow=listed("file:///d/**"), deny=listed("**/.env")))
    deny, allow, rest = judge.of_kind[Kind.RESOURCE].explain("file:///d/.env?x")
    assert (deny.matched, deny.why) == (True, "the URI fits in 1 of the 2 ways it may be read")
    assert (allow.matched, allow.why, rest.matched) == (True, "the URI fits", False)


def test_what_is_remembered_for_lists_is_what_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more is remembered than may be."""
    monkeypatch.setattr(module, "MAX_CACHED_NAMES", 3)
    rules = Rules(Consent(tools=KindConsent(allow=(Rule("get_*"),), deny=(Rule("*_all"),))))
    for name in ("get_x", "get_all", "wipe", "get_x", "get_y", "get_z", "get_all"):
        for _ in range(2):
            assert rules.is_visible_cached(Kind.TOOL, name) == rules.is_visible(Kind.TOOL, name)
        assert len(rules._visibility_cache) <= 3


# Calls through a search tool

READS = ToolClaims(frozenset((ToolClaim.READ_ONLY, ToolClaim.OPEN_WORLD)))
CHANGES = ToolClaims(frozenset((ToolClaim.OPEN_WORLD,)))


@pytest.mark.parametrize("claims", [None, CHANGES, READS])
@pytest.mark.parametrize("trust", list(Trust))
def test_through_call_tool_only_tools_that_read_pass_unasked_without_a_rule(
    trust: Trust, claims: ToolClaims | None
) -> None:
    judge = Rules(Consent(), trust)
    direct = judge.evaluate(Kind.TOOL, "t")
    expected = direct if claims is READS or trust is Trust.UNTRUSTED else NO_TOOL_RULES
    assert judge.narrow(direct, CALL_TOOL, claims) == expected
    assert judge.has_rule(NO_TOOL_RULES.rule, "tool")
    assert not judge.has_rule(NO_TOOL_RULES.rule, "prompt")


@pytest.mark.parametrize("consent", [KindConsent(listed("t")), KindConsent(default=ALLOW)])
def test_a_rule_for_tools_decides_through_call_tool_too(consent: KindConsent) -> None:
    judge = Rules(Consent(tools=consent))
    direct = judge.evaluate(Kind.TOOL, "t")
    assert direct.verdict is ALLOW
    assert judge.narrow(direct, CALL_TOOL, None) == direct
    assert not judge.has_rule(NO_TOOL_RULES.rule, "tool")


def test_rules_for_other_kinds_say_nothing_of_tools() -> None:
    judge = Rules(Consent(resources=KindConsent(default=ALLOW)))
    assert judge.narrow(judge.evaluate(Kind.TOOL, "t"), CALL_TOOL, None) == NO_TOOL_RULES


@pytest.mark.parametrize("lists", [KindConsent(), KindConsent(ask=listed("t")), KindConsent(default=ALLOW)])
def test_read_tool_reaches_only_tools_that_claim_to_read(lists: KindConsent) -> None:
    judge = Rules(Consent(tools=lists))
    direct = judge.evaluate(Kind.TOOL, "t")
    assert judge.narrow(direct, READ_TOOL, READS) == direct
    for claims in (CHANGES, None):
        denied = judge.narrow(direct, READ_TOOL, claims)
        assert (denied.verdict, denied.conditional) == (DENY, True)  # the client knows the tool


@pytest.mark.parametrize("through", [CALL_TOOL, READ_TOOL])
@pytest.mark.parametrize("claims", [None, CHANGES, READS])
def test_what_is_denied_stays_denied_in_the_same_way(through: str, claims: ToolClaims | None) -> None:
    judge = Rules(Consent(tools=KindConsent(deny=listed("t"))))
    denied = judge.evaluate(Kind.TOOL, "t")
    assert judge.narrow(denied, through, claims) == denied
