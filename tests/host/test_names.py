"""Names outside and inside: no two of them meet, every client can take them, and the way back is exact."""

from __future__ import annotations

import hashlib
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import HttpServer, Secret
from config.model import LONGEST_NAME
from config.types import LONGEST_LIMIT, SHORTEST_LIMIT
from host.names import (
    MAX_MATCHED_LENGTH,
    Names,
    matching_templates,
    outward_name,
    outward_uri,
    split_name,
    split_uri,
    template_matches,
)
from tests.kit.cost import assert_costs_less
from tests.kit.examples import examples

CALM = settings(max_examples=examples(80))
ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too
SERVERS = st.from_regex(r"[a-z][a-z0-9]{0,4}(-[a-z0-9]{1,4}){0,3}", fullmatch=True).filter(lambda id: len(id) <= 20)
LONGEST = "abcdefghij-klmnopqrs"


def test_a_plain_name_stays_readable() -> None:
    assert outward_name("gh", "create_issue") == "gh__create_issue"
    assert outward_name("a-b", "x-Y_9") == "a-b__x-Y_9"


@pytest.mark.parametrize("length", [63, 64, 65, 1000])
def test_a_name_is_whole_up_to_the_limit_and_hashed_beyond(length: int) -> None:
    name = "n" * (length - len("gh__"))
    exported = outward_name("gh", name)
    assert (exported == f"gh__{name}") == (length <= LONGEST_NAME)
    assert len(exported) == min(length, LONGEST_NAME)


def test_a_hashed_name_never_changes() -> None:
    assert outward_name("gh", "read file") == "gh__read_file_psz2moea"


@CALM
@given(SERVERS, ANY_TEXT)
def test_every_client_can_take_an_exported_name(server: str, name: str) -> None:
    exported = outward_name(server, name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", exported)
    assert exported.startswith(f"{server}__")


@CALM
@given(SERVERS, ANY_TEXT.filter(bool))
def test_an_exported_name_tells_its_server(server: str, name: str) -> None:
    assert split_name(outward_name(server, name))[0] == server


def adversarial_pairs() -> set[tuple[str, str]]:
    """A hundred thousand pairs that differ as little as pairs can."""
    servers = ["a", "b", "a-b", "ab", "a0", LONGEST, LONGEST[:-1] + "t"]
    stems = ["x", "_x", "__x", "-x", "b__x", "x y", "x_y", "x.y", "x/y", "x\0y", "é", "e\u0301", "\ud800", "A", "a", ""]
    tails = ["", "_", "__", " ", ".", "\0", "é", "n" * 36, "n" * 41, "n" * 42, "n" * 43, "n" * 60, "n" * 61, "n" * 200]
    pairs = set(itertools.product(servers, (stem + tail for stem in stems for tail in tails)))
    pairs |= {(server, f"{'n' * 60}{number}") for server in servers for number in range(7_000)}
    pairs |= {(server, chr(number) + "!") for server in servers for number in range(7_000)}
    pairs |= {(server, hashlib.md5(b"%d" % number).hexdigest() * 2) for server in servers for number in range(500)}
    return pairs


@CALM
@given(SERVERS, ANY_TEXT, st.integers(SHORTEST_LIMIT, LONGEST_LIMIT))
def test_every_limit_holds_the_prefix_and_the_whole_digest(prefix: str, name: str, limit: int) -> None:
    exported = outward_name(prefix, name, limit)
    assert len(exported) <= limit
    assert split_name(exported)[0] == prefix
    if exported != f"{prefix}__{name}":
        assert re.fullmatch("_[a-z2-7]{8}", exported[-9:])


@pytest.mark.slow
def test_no_two_of_a_hundred_thousand_alike_pairs_meet() -> None:
    pairs = adversarial_pairs()
    assert len(pairs) > 100_000
    exported = {outward_name(server, name) for server, name in pairs}
    assert len(exported) == len(pairs)
    assert max(map(len, exported)) <= LONGEST_NAME


@pytest.mark.parametrize(
    ("exported", "server"),
    [
        ("gh__x", "gh"),
        ("gh___x", "gh"),
        ("gh____", "gh"),
        ("gh__a__b", "gh"),
        ("gh__", None),
        ("gh_x", None),
        ("ghx", None),
        ("", None),
        ("g_h__x", None),
        ("__x", ""),
    ],
)
def test_the_first_two_underscores_end_the_server(exported: str, server: str | None) -> None:
    assert split_name(exported)[0] == server


# The servers of a configuration


def server(id: str, prefix: str | None = None, limit: int = LONGEST_NAME) -> HttpServer:
    return HttpServer(id=id, url=Secret("http://h/"), prefix=prefix, longest_name=limit)


def test_names_begin_with_the_prefix_and_lead_back_to_the_server() -> None:
    names = Names({"github": server("github", "gh", 48), "notes": server("notes")})
    assert names.outward_name("github", "search") == "gh__search"
    assert len(names.outward_name("github", "x" * 100)) == 48
    assert names.outward_uri("github", "file:///a") == "gh+file:///a"
    assert names.inward_name("gh__search") == ("github", "search")
    assert names.inward_uri("ui://gh+page", {"github"}) == ("github", "ui://page")
    assert names.inward_name("notes__a__b") == ("notes", "a__b")


def test_the_id_of_a_server_with_another_prefix_names_nothing() -> None:
    names = Names({"github": server("github", "gh")})
    assert names.inward_name("github__search") == (None, "search")
    assert names.inward_uri("github+file:///a", {"github"}) is None
    names = Names({"github": server("github")})
    assert names.inward_name("github__search") == ("github", "search")
    assert names.inward_name("gh__search") == ("gh", "search")  # of a server that is not configured
    assert names.inward_uri("gh+x", {"github"}) is None


# URIs


@pytest.mark.parametrize(
    ("uri", "exported"),
    [
        ("file:///a", "gh+file:///a"),
        ("repo://a+b/{path}", "gh+repo://a+b/{path}"),
        ("", "gh+"),
        ("+", "gh++"),
        ("ui://page/x", "ui://gh+page/x"),
        ("UI://page", "gh+UI://page"),
        ("http://h/x", "http://h/x"),
        ("HTTPS://h/x", "HTTPS://h/x"),
        ("http:/h", "gh+http:/h"),
        ("ui:page", "gh+ui:page"),
    ],
)
def test_a_uri_outside(uri: str, exported: str) -> None:
    assert outward_uri("gh", uri) == exported


URIS = ANY_TEXT | st.builds(
    str.__add__, st.sampled_from(["ui://", "ui:/", "+", "gh+", "ui://gh+", "x://", "http:", "UI://", "http+"]), ANY_TEXT
)


@CALM
@given(SERVERS, URIS)
def test_every_uri_comes_back_exactly(server: str, uri: str) -> None:
    """Without a list: the text tells whose it is (rules 65, 67)"""
    exported = outward_uri(server, uri)
    if re.match("https?://", uri, re.IGNORECASE):
        assert exported == uri
    else:
        assert split_uri(exported) == (server, uri)


@CALM
@given(SERVERS, SERVERS, URIS, URIS)
def test_two_uris_meet_outside_only_if_both_are_the_same_web_address(a: str, b: str, x: str, y: str) -> None:
    if outward_uri(a, x) == outward_uri(b, y):
        assert (a, x) == (b, y) or (x == y and re.match("https?://", x, re.IGNORECASE))


@pytest.mark.parametrize(
    "exported", ["", "x", "http://h/x", "no+x", "GH+x", "+x", "ui://x", "ui://no+x", "x gh+x", "gh"]
)
def test_a_text_that_names_none_of_the_servers_tells_nothing(exported: str) -> None:
    assert Names().inward_uri(exported, {"gh"}) is None


# Templates


def naive(template: str, uri: str) -> bool:
    literals = [re.escape(literal) for literal in re.split(r"\{[^{}]*\}", template)]
    return re.fullmatch(".*".join(literals), uri, re.DOTALL) is not None


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(["a", "b", "ab", "{x}", "{+y}", "{", "}"]), max_size=8), st.text("ab{}", max_size=10))
def test_templates_agree_with_a_naive_matcher(parts: list[str], uri: str) -> None:
    template = "".join(parts)
    assert template_matches(template, uri) == naive(template, uri)


@pytest.mark.parametrize(
    ("template", "uri", "makes"),
    [
        ("file:///{path}", "file:///a/b", True),
        ("file:///{path}", "file:///", True),
        ("file:///{path}", "file://", False),
        ("a{x}a", "a", False),
        ("a{x}a", "aa", True),
        ("{x}", "", True),
        ("{a}/{b}.md", "x/y.md", True),
        ("{a}/{b}.md", "x.md", False),
        ("x", "x", True),
        ("x", "X", False),
        ("{?q,r}", "anything\n", True),
        ("{unclosed", "{unclosed", True),
    ],
)
def test_what_a_template_makes(template: str, uri: str, makes: bool) -> None:
    """(rule 67)"""
    assert template_matches(template, uri) is makes


def test_no_template_takes_long() -> None:
    def compare() -> None:
        assert not template_matches("{x}a" * 2000 + "b{y}", "a" * 8000)
        assert not template_matches("{" * 8000, "a" * 8000)
        assert template_matches("{x}a" * 2000, "a" * 8000)

    assert_costs_less(compare, 0.2)


@given(st.lists(st.sampled_from(["a", "a{x}", "{x}", "b{x}a", "a{x}b{y}"]), max_size=5), st.text("ab{}", max_size=6))
def test_the_makers_of_a_uri_are_the_templates_that_make_it(templates: list[str], uri: str) -> None:
    assert matching_templates(templates, (uri, "b")) == [
        each for text in (uri, "b") for each in templates if template_matches(each, text) or each == text
    ]


@pytest.mark.parametrize("more", [0, 1])
def test_templates_that_begin_as_the_uri_does_are_tried_up_to_a_bound(more: int) -> None:
    others = [f"x://{n}/{{y}}" for n in range(20_000)]
    template = "x://a/{y}" + "/{z}" * 10
    count = MAX_MATCHED_LENGTH // len(template) + more
    found = matching_templates([*others, *[template] * count], ("x://a/" + "/" * 20,))
    assert found is None if more else found == [template] * count
