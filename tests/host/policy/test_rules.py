"""The judge: its patterns agree with the plainest matcher there is, and no spelling of a URI gets around them."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import Consent, KindConsent
from host.policy.rules import MAX_LENGTH, Globs, Rules, normal_form, readings
from host.protocol.methods import Kind

NAMES, URIS = False, True


def matches(pattern: str, text: str, *, uris: bool) -> bool:
    return Globs((pattern,), uris=uris).match(text)


def rules(kind: Kind, allow: tuple[str, ...] | None = None, deny: tuple[str, ...] = ()) -> Rules:
    lists = KindConsent(allow, deny)
    return Rules(
        Consent(
            tools=lists if kind is Kind.TOOL else KindConsent(),
            prompts=lists if kind is Kind.PROMPT else KindConsent(),
            resources=lists if kind in (Kind.RESOURCE, Kind.TEMPLATE) else KindConsent(),
        )
    )


def allows(uri: str, allow: tuple[str, ...] | None = None, deny: tuple[str, ...] = ()) -> bool:
    return rules(Kind.RESOURCE, allow, deny).allow(Kind.RESOURCE, uri)


# Patterns


def naive(pattern: str, text: str, *, uris: bool) -> bool:
    """Tries everything: correct by looking at it."""

    @cache
    def rest(at: int, place: int) -> bool:
        if at == len(pattern):
            return place == len(text)
        if pattern[at] == "*":
            end = at
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            crosses = not uris or end - at > 1
            return rest(end, place) or (place < len(text) and (crosses or text[place] != "/") and rest(at, place + 1))
        if place == len(text):
            return False
        if pattern[at] == "?":
            return (not uris or text[place] != "/") and rest(at + 1, place + 1)
        return pattern[at] == text[place] and rest(at + 1, place + 1)

    return rest(0, 0)


@settings(deadline=None, max_examples=400)
@given(st.text("ab/*?", min_size=1, max_size=9), st.text("ab/", max_size=12), st.booleans())
def test_a_pattern_agrees_with_a_naive_matcher(pattern: str, text: str, uris: bool) -> None:
    assert matches(pattern, text, uris=uris) == naive(pattern, text, uris=uris)


@settings(deadline=None, max_examples=120)
@given(st.lists(st.text("ab/*?", min_size=1, max_size=6), max_size=4), st.text("ab/", max_size=9), st.booleans())
def test_a_list_matches_what_one_of_its_patterns_matches(patterns: list[str], text: str, uris: bool) -> None:
    expected = any(naive(pattern, text, uris=uris) for pattern in patterns)
    assert Globs(tuple(patterns), uris=uris).match(text) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "uris", "found"),
    [
        ("get_*", "get_issue", NAMES, True),
        ("get_*", "get_", NAMES, True),
        ("get_*", "forget_x", NAMES, False),
        ("get", "get_issue", NAMES, False),
        ("get", "GET", NAMES, False),
        ("*", "", NAMES, True),
        ("*", "a/b\nc", NAMES, True),
        ("a*", "a/b", NAMES, True),
        ("?", "/", NAMES, True),
        ("?", "\n", NAMES, True),
        ("?", "ab", NAMES, False),
        ("a.c", "abc", NAMES, False),
        ("[ab]", "a", NAMES, False),
        ("[ab]", "[ab]", NAMES, True),
        ("a|b", "a", NAMES, False),
        ("(a", "(a", NAMES, True),
        ("\\*", "\\x", NAMES, True),
        ("é*", "éa", NAMES, True),
        ("x://a/*", "x://a/b", URIS, True),
        ("x://a/*", "x://a/b/c", URIS, False),
        ("x://a/*", "x://a/", URIS, True),
        ("x://a/**", "x://a/b/c", URIS, True),
        ("x://a/**", "x://a", URIS, False),
        ("**/c", "x://a/b/c", URIS, True),
        ("x://a/***", "x://a/b/c", URIS, True),
        ("x://?/b", "x:////b", URIS, False),
    ],
)
def test_what_a_pattern_stands_for(pattern: str, text: str, uris: bool, found: bool) -> None:
    assert matches(pattern, text, uris=uris) is found


@pytest.mark.parametrize(
    "pattern",
    ["**a*a*a*b", "**a*b**c", "**a*b**a*b**c", "**a?*?b**c", "*a" * 20 + "*b", "**a" * 20 + "**b", "?" * 9000, "**"],
)
@pytest.mark.parametrize("text", ["a" * 8000, "a/" * 4000, "ab" * 4000 + "a"])
def test_no_pattern_and_no_text_take_long(pattern: str, text: str) -> None:
    begun = time.process_time()
    assert matches(pattern, text, uris=URIS) is (pattern == "**")
    matches(pattern, text, uris=NAMES)
    assert time.process_time() - begun < 0.2


def test_an_empty_list_matches_nothing() -> None:
    assert not Globs((), uris=NAMES).match("")
    assert not Globs((), uris=URIS).match("x")


# Verdicts


@pytest.mark.parametrize("kind", list(Kind))
def test_without_patterns_everything_may_be_reached(kind: Kind) -> None:
    assert Rules(Consent()).allow(kind, "any\0thing" * 5000)


@pytest.mark.parametrize("kind", list(Kind))
def test_an_empty_allow_list_allows_nothing(kind: Kind) -> None:
    assert not rules(kind, allow=()).allow(kind, "x")
    assert not rules(kind, allow=()).allow(kind, "")


@pytest.mark.parametrize("kind", list(Kind))
def test_what_the_allow_list_does_not_name_is_denied(kind: Kind) -> None:
    judge = rules(kind, allow=("a*", "b"))
    assert [name for name in ("a", "ax", "b", "bx", "c") if judge.allow(kind, name)] == ["a", "ax", "b"]


@pytest.mark.parametrize("kind", list(Kind))
def test_deny_wins(kind: Kind) -> None:
    judge = rules(kind, allow=("a*",), deny=("*x", "ab"))
    assert [name for name in ("a", "ax", "ab", "abc", "x") if judge.allow(kind, name)] == ["a", "abc"]


@pytest.mark.parametrize("kind", list(Kind))
def test_with_only_a_deny_list_the_rest_is_allowed(kind: Kind) -> None:
    judge = rules(kind, deny=("a*",))
    assert not judge.allow(kind, "a1")
    assert judge.allow(kind, "b")


def test_a_kind_is_judged_by_its_own_lists() -> None:
    judge = rules(Kind.TOOL, allow=())
    assert [kind for kind in Kind if judge.allow(kind, "x")] == [Kind.RESOURCE, Kind.TEMPLATE, Kind.PROMPT]


def test_a_template_is_judged_like_the_resources_it_makes() -> None:
    judge = rules(Kind.TEMPLATE, allow=("repo://acme/**",))
    assert judge.allow(Kind.TEMPLATE, "repo://acme/{+path}{?ref,at}")
    assert judge.allow(Kind.TEMPLATE, "repo://acme/{owner}/{name}{/more*}")
    assert not judge.allow(Kind.TEMPLATE, "repo://{owner}/x")


def test_names_are_never_decoded() -> None:
    judge = rules(Kind.TOOL, deny=("a/b",))
    assert judge.allow(Kind.TOOL, "a%2fb")
    assert judge.allow(Kind.TOOL, "a/./b")


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_longer_than_the_limit_is_denied_where_patterns_stand(kind: Kind) -> None:
    judge = rules(kind, deny=("never",))
    assert judge.allow(kind, "a" * MAX_LENGTH)
    assert not judge.allow(kind, "a" * (MAX_LENGTH + 1))


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


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("file:///a/b", "file:///a/b"),
        ("file:///a/../b/./c//d", "file:///b/c/d"),
        ("file:///../../b", "file:///b"),
        ("file:///a/..", "file:///"),
        ("file:///a/b/", "file:///a/b/"),
        ("file:///a/b/.", "file:///a/b/"),
        ("file:///a/b/..", "file:///a/"),
        ("x://h", "x://h"),
        ("x://h/..?q/../r#f", "x://h/?q/../r#f"),
        ("x:a/../b", "x:b"),
        ("a/./b", "a/b"),
        ("", ""),
        ("..", ""),
    ],
)
def test_the_normal_form_of_a_path(uri: str, normal: str) -> None:
    assert normal_form(uri) == normal


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("x://h/%61", "x://h/a"),
        ("x://h/%2561", "x://h/%61"),
        ("x://h/%252e%252e/b", "x://h/%2e%2e/b"),
        ("x://h/a%252f..%252fb", "x://h/a%2f..%2fb"),
        ("x://h/%", "x://h/%"),
        ("x://h/%zz%6", "x://h/%zz%6"),
        ("x://h/%ff", "x://h/\ufffd"),
        ("x://h/%c3%a9", "x://h/é"),
    ],
)
def test_percent_is_decoded_once_and_once_only(uri: str, normal: str) -> None:
    assert normal_form(uri) == normal


URI_TEXT = st.lists(st.sampled_from(["/", "//", ".", "..", "a", "b:", "?", "#", "\\", " ", "é", "{x}", "\t"])).map(
    "".join
)


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(["x://", "x:", "file:///", "x://h/"]), URI_TEXT)
def test_a_normal_form_is_its_own(scheme: str, text: str) -> None:
    normal = normal_form(scheme + text)
    assert normal_form(normal) == normal


@settings(deadline=None, max_examples=120)
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
            assert Globs((pattern,), uris=URIS).match(normal_form(plain))


@settings(deadline=None, max_examples=120)
@given(st.text())
def test_any_text_can_be_read_as_a_uri(text: str) -> None:
    assert text in readings(text)
    assert normal_form(text) in readings(text)
    assert len(readings(text)) <= 12  # three ways to write it, each with at most four readings


def test_a_plain_uri_has_one_reading() -> None:
    assert readings("file:///home/me/a.txt") == {"file:///home/me/a.txt"}


def test_the_longest_uri_is_judged_in_time() -> None:
    uri = ("x://h/" + "%2e%2e/a?/" * 820)[:MAX_LENGTH]
    begun = time.process_time()
    allows(uri, allow=tuple(f"x://h/**a*b**{number}" for number in range(20)), deny=("**a*b**c",) * 20)
    assert time.process_time() - begun < 0.5


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
    rules = Rules(Consent(resources=KindConsent(deny=patterns)))
    assert not rules.allow(Kind.RESOURCE, spelling)


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [("Memo:*", "Memo:1"), ("Memo:*", "memo:1"), ("repo://Acme/**", "repo://Acme/x"), ("https://H/x*", "https://H/xy")],
)
def test_what_is_the_same_in_upper_and_lower_case_is_allowed_as_well(pattern: str, uri: str) -> None:
    assert Rules(Consent(resources=KindConsent(allow=(pattern,)))).allow(Kind.RESOURCE, uri)


def test_what_is_not_the_same_in_upper_and_lower_case_is_not() -> None:
    assert not Rules(Consent(resources=KindConsent(allow=("repo://Acme/**",)))).allow(Kind.RESOURCE, "repo://acme/x")
