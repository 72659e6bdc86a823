"""Conditions on arguments: what they say of plain values, and that no spelling of a path or a host gets past one."""

from __future__ import annotations

import os.path
from itertools import product
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from config import Check, Condition
from config.globs import MAX_LENGTH
from config.model import CheckValue
from host.policy.conditions import (
    LONGEST_DECODED,
    UNREADABLE,
    LongArguments,
    conditions_hold,
    decode_arguments,
    display_path,
    explain_conditions,
    parse_address,
)
from tests.kit.examples import examples


def said(op: str, wanted: CheckValue, *value: object) -> bool | None:
    """What one check says of an argument, or of a missing one."""
    return conditions_hold((Condition("/a", (Check(op, wanted),)),), {"a": value[0]} if value else {})


# Single tests


@pytest.mark.parametrize(
    ("op", "wanted", "value", "answer"),
    [
        ("eq", 1, 1, True),
        ("eq", 1, 1.0, True),
        ("eq", 1.0, 1, True),
        ("eq", 1, 2, False),
        ("eq", 1, "1", None),
        ("eq", "1", 1, None),
        ("eq", 1, True, None),
        ("eq", True, 1, None),
        ("eq", True, "true", None),
        ("eq", True, True, True),
        ("eq", False, True, False),
        ("eq", 0, False, None),
        ("eq", 0, None, None),
        ("eq", "", None, None),
        ("eq", None, None, True),
        ("eq", None, "x", False),
        ("eq", None, 0, False),
        ("eq", "a", "a", True),
        ("eq", "a", "A", False),
        ("eq", "a", ["a"], None),
        ("eq", "a", {"a": "a"}, None),
        ("eq", 2**53, 2**53 + 1, None),
        ("in", ("a", "b"), "b", True),
        ("in", ("a", "b"), "c", False),
        ("in", ("a", 1), 1.0, True),
        ("in", ("a", 1), "1", None),
        ("in", (1, 2), "1", None),
        ("in", (None, "a"), None, True),
        ("in", (None, "a"), "b", False),
        ("in", (0,), False, None),
        ("in", (), "a", False),
        ("prefix", "draft-", "draft-1", True),
        ("prefix", "draft-", "Draft-1", False),
        ("prefix", "1", 1, None),
        ("prefix", "a", ["a"], None),
        ("suffix", ".md", "a.md", True),
        ("suffix", ".md", "a.md\n", False),
        ("suffix", ".md", None, None),
        ("glob", "a*c", "a/b\nc", True),
        ("glob", "a?c", "abc", True),
        ("glob", "a", "ab", False),
        ("glob", "*", 1, None),
        ("glob", "*", "x" * MAX_LENGTH, True),
        ("glob", "*", "x" * (MAX_LENGTH + 1), None),
        ("range", (1, 3), 1, True),
        ("range", (1, 3), 3.0, True),
        ("range", (1, 3), 3.0001, False),
        ("range", (1, 3), 0, False),
        ("range", (None, 3), -(10**30), None),
        ("range", (1, None), 10**400, None),
        ("range", (1, None), 2**53, True),
        ("range", (1, None), 2**53 + 1, None),
        ("range", (1, 2**53 + 1), 2**53, None),
        ("in", (1, 2**53 + 1), 2**53 + 1, None),
        ("in", (1, 2**53 + 1), 2**53, None),
        ("in", (1, 2**53 + 1), 2**53 - 1, False),
        ("type", "integer", 10**30, True),
        ("range", (None, None), 0, True),
        ("range", (0, 1), True, None),
        ("range", (0, 1), "1", None),
        ("range", (0, 1), None, None),
        ("range", (0, 1), float("nan"), None),
        ("max_len", 3, "äöü", True),
        ("max_len", 3, "abcd", False),
        ("max_len", 2, [1, 2], True),
        ("max_len", 2, [1, 2, 3], False),
        ("max_len", 2, {}, None),
        ("max_len", 2, 1, None),
        ("absent", True, None, False),
        ("absent", True, "x", False),
    ],
)
def test_what_a_check_says(op: str, wanted: CheckValue, value: object, answer: bool | None) -> None:
    assert said(op, wanted, value) is answer


@pytest.mark.parametrize(
    ("value", "types"),
    [
        ("x", {"string"}),
        (1, {"number", "integer"}),
        (1.0, {"number", "integer"}),
        (1.5, {"number"}),
        (True, {"boolean"}),
        (None, {"null"}),
        ([], {"array"}),
        ({}, {"object"}),
    ],
)
def test_types_are_those_of_json(value: object, types: set[str]) -> None:
    every = ("string", "number", "integer", "boolean", "null", "array", "object")
    assert {each: said("type", each, value) for each in every} == {each: each in types for each in every}


@pytest.mark.parametrize(
    "op", ["eq", "in", "prefix", "suffix", "glob", "range", "max_len", "type", "path_under", "host_in"]
)
def test_of_what_is_missing_nothing_is_known(op: str) -> None:
    several: dict[str, CheckValue] = {
        "in": ("x",),
        "range": (0, 1),
        "max_len": 1,
        "path_under": ("/",),
        "host_in": ("h",),
    }
    wanted = several.get(op, "x")
    assert said(op, wanted) is None
    when = (Condition("/a", (Check(op, wanted),)),)
    for arguments in (None, {}, {"b": 1}, UNREADABLE, [], "x", 1):
        assert conditions_hold(when, arguments) is None


def test_what_is_absent() -> None:
    when = (Condition("/a", (Check("absent", True),)),)
    assert conditions_hold(when, {}) is conditions_hold(when, None) is True
    assert conditions_hold(when, {"a": None}) is False
    assert conditions_hold(when, UNREADABLE) is conditions_hold(when, []) is None


def test_a_check_that_nobody_knows_says_nothing() -> None:
    assert said("regex", "x", "x") is None


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/owner", True),
        ("owner", True),
        ("/deep/er/0/x", True),
        ("/list/1", True),
        ("/list/01", None),
        ("/list/2", None),
        ("/list/-", None),
        ("/list/-1", None),
        ("/list/١", None),
        ("/list/" + "9" * 5000, None),
        ("/a~1b", True),
        ("/m~0n", True),
        ("/~01", True),
        ("/", True),
        ("/owner/", None),
        ("/owner/0", None),
        ("/Owner", None),
        ("", None),
    ],
)
def test_a_place_is_found_by_its_pointer(path: str, answer: bool | None) -> None:
    deep = {"er": [{"x": "x"}]}
    names = {"owner": "x", "a/b": "x", "m~n": "x", "~1": "x", "": "x", "0": "no"}
    given = {"deep": deep, "list": ["y", "x"], **names}
    assert conditions_hold((Condition(path, (Check("eq", "x"),)),), given) is answer


def test_all_must_hold_and_one_that_does_not_settles_it() -> None:
    true, false, unknown = Check("eq", "x"), Check("eq", "y"), Check("eq", 1)
    for answer, checks in (
        (True, (true, true)),
        (False, (true, false)),
        (None, (true, unknown)),
        (False, (unknown, false)),
        (True, ()),
    ):
        assert conditions_hold((Condition("/a", checks),), {"a": "x"}) is answer
        assert conditions_hold(tuple(Condition("/a", (each,)) for each in checks), {"a": "x"}) is answer


def test_closed_conditions_know_all_arguments() -> None:
    """Row by row: nothing is sure where there are others, not even that a test does not hold."""
    when = (Condition("/a", (Check("eq", "x"),)), Condition("/b/c", (Check("type", "number"),)))
    assert conditions_hold(when, {"a": "x", "b": {"c": 1, "d": 2}}, closed=True) is True
    assert conditions_hold(when, {"a": "y", "b": {"c": 1}}, closed=True) is False
    assert conditions_hold(when, {"a": "x", "b": {"c": 1}, "d": 1}, closed=True) is None
    assert conditions_hold(when, {"a": "y", "b": {"c": 1}, "d": 1}, closed=True) is None
    assert conditions_hold(when, {"a": "x", "b": {"c": 1}, "d": 1}) is True
    assert conditions_hold((), {}, closed=True) is conditions_hold((), None, closed=True) is True
    assert conditions_hold((), {"": 1}, closed=True) is conditions_hold((), UNREADABLE, closed=True) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0"]), below, max_size=3),
    max_leaves=6,
)
CHECKS = st.sampled_from(
    [
        *(Check("eq", each) for each in (1, "1", True, None, 0.5)),
        *(
            Check("in", (1, "a")),
            Check("prefix", "a"),
            Check("suffix", "a"),
            Check("glob", "a*"),
            Check("range", (0, None)),
        ),
        *(Check("max_len", 2), Check("type", "integer"), Check("absent", True), Check("path_under", ("/a", "/b/c"))),
        *(
            Check("host_in", ("a", "::1")),
            Check("path_under", ("nonsense", "/../x")),
            Check("host_in", ("*.a", "ä.b", "")),
        ),
    ]
)
WHEN = st.lists(
    st.builds(
        lambda path, checks: Condition(path, tuple(checks)),
        st.sampled_from(["/a", "/a/b", "/a/0", "/b", ""]),
        st.lists(CHECKS, max_size=2),
    ),
    max_size=3,
).map(tuple)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(WHEN, ANYTHING, st.booleans())
def test_any_conditions_judge_any_arguments(when: tuple[Condition, ...], arguments: object, closed: bool) -> None:
    answer = conditions_hold(when, arguments, closed=closed)
    assert answer in (True, False, None)
    why = explain_conditions(when, arguments, closed=closed)
    if arguments is None or isinstance(arguments, dict):
        assert (why == "all conditions hold") is (answer is True)
    if closed and isinstance(arguments, dict):
        assert conditions_hold(when, {**arguments, "other": 1}, closed=True) is None
        assert answer is None or answer is conditions_hold(when, arguments)


# Why


@pytest.mark.parametrize(
    ("arguments", "closed", "why"),
    [
        ({"owner": "acme", "n": 1}, False, "all conditions hold"),
        ({"owner": "x", "n": 1}, False, "owner: in does not hold"),
        ({"owner": "x", "n": "1"}, False, "owner: in does not hold"),
        ({"owner": "acme"}, False, "n is missing"),
        ({"owner": "acme", "n": "1"}, False, "n: range cannot be told of this value"),
        ({}, False, "owner is missing; n is missing"),
        (None, False, "owner is missing; n is missing"),
        (UNREADABLE, False, "the arguments cannot be read"),
        ({"owner": "acme", "n": 1, "x": 1}, True, "there are other arguments than those named"),
    ],
)
def test_why_conditions_hold_or_not(arguments: object, closed: bool, why: str) -> None:
    when = (Condition("/owner", (Check("in", ("acme",)),)), Condition("/n", (Check("range", (0, 9)),)))
    assert explain_conditions(when, arguments, closed=closed) == why


@pytest.mark.parametrize(
    ("path", "shown"), [("/a", "a"), ("/a/b", "/a/b"), ("/a~1b", "/a~1b"), ("a", "a"), ("/", "/"), ("", "")]
)
def test_a_place_is_shown_as_people_write_it(path: str, shown: str) -> None:
    assert display_path(path) == shown


# Paths

ROOT = "/home/me/project"

DOTS = [
    *(
        "..",
        "%2e%2e",
        "%2E%2e",
        ".%2e",
        "%2e.",
        "%252e%252e",
        "%c0%ae%c0%ae",
        "%u002e%u002e",
        "..%00",
        "..\0",
        "．．",
        "‥",
    ),
    *("..\u200b", ".. ", "...", "....", "..%20", "~", "~root", "%7e", "..\ud800"),
]
SEPARATORS = ["/", "//", "/./", "%2f", "%2F", "\\", "%5c", "%5C", "%252f", "／", "\u2215", "/\\/"]
CLIMBING = [f"{ROOT}{slash}{dots}{slash}secret" for dots, slash in product(DOTS, SEPARATORS)]

OUTSIDE = [
    *(
        "/home/me/project-evil",
        "/home/me/project-evil/x",
        "/home/me/projec",
        "/home/me",
        "/home",
        "/",
        "",
        ".",
        "..",
        "x",
    ),
    *(
        "/home/me/Project/x",
        "/HOME/me/project/x",
        "/home/me/project./x",
        "/home/me/project /x",
        "/home/me/project%20/x",
    ),
    *("home/me/project/x", "./home/me/project/x", "~/project/x", "~me/project/x", "$HOME/project/x", "${HOME}/project"),
    *("file:///home/me/project/x", "file:/home/me/project/x", "FILE:///home/me/project", "//home/me/project/x"),
    *(
        "//server/share/home/me/project/x",
        "\\\\server\\home\\me\\project",
        "\\home\\me\\project",
        "/home\\me\\project\\x",
    ),
    *("///home/me/project/x", "C:/home/me/project", "C:\\home\\me\\project", "/C:/home/me/project", "\\\\?\\C:\\home"),
    *("/../home/me/project", "/home/../../home/me/project/x", "/home/me/project/../../../../home/me/project", "/.."),
    *("/%2e%2e/home/me/project/x", "/home/me/project/..", "/home/me/project/x/../..", "/home/me/project/./.."),
    *("/home/me/project/%2e%2e", "/home/me/project/../project-evil", "/home/me/project/x/%2e%2e/../../you"),
    *(
        "/home/me/project\0/x",
        "/home/me/project/x\0",
        "/home/me/project%00",
        "/home/me/project/\n",
        "/home/me/project/\x1b[0m",
    ),
    *("/home/me/project/%0a", "/home/me/pro\u200bject", "/home/me/project/\u202ex", "/home/me/project/\ufeffx"),
    *(
        "/home/me%2fproject%2f..%2fsecret",
        "/home/me/%70roject-evil",
        "%2fhome%2fme%2fproject%2fx",
        "/home/me/project/%ff",
    ),
    *(
        "/home/me/project/%c3",
        "/home/me/project/%c1%9c",
        "/home/me/project/%e0%80%af..",
        "/home/me/project/%f0%80%80%ae",
    ),
    *(
        "/home/me/project/%252e%252e/x",
        "/home/me/project/%25%32%65",
        "/home/me/project/%uff0e",
        "/home/me/project/..\u2024",
    ),
    *(
        "/proc/self/cwd/x",
        "/proc/self/root/home/me/project/x",
        "/dev/fd/3",
        "/home/me/ｐroject/x",
        "/home/me/project/\u2024.",
    ),
    *(
        "/home/me/project/" + "x" * MAX_LENGTH,
        "/home/me/project;/x",
        "/home/me/project?x",
        "/home/me/project#x",
        " /home/me/project",
    ),
    *("/home/me/project%2f..", "/home/me/project%5c..", "/home/me/project/a/b/../../../c", "/home/me/project/~"),
]

INSIDE = [
    *(
        ROOT,
        ROOT + "/",
        ROOT + "/x",
        ROOT + "/x/y.txt",
        ROOT + "/.env",
        ROOT + "/.git/config",
        ROOT + "/a b",
        ROOT + "/a.b.",
    ),
    *(ROOT + "/x~", ROOT + "/..x", ROOT + "/x..", ROOT + "/a..b/c", ROOT + "/été/日本", ROOT + "/x%", ROOT + "/100%25"),
    *(
        ROOT + "//x",
        ROOT + "/./x",
        ROOT + "/x/../y",
        ROOT + "/x/%2e%2e/y",
        ROOT + "/a%20b",
        ROOT + "/a%2fb",
        ROOT + "/File.TXT",
    ),
    *(
        "/home//me/project/x",
        "/home/./me/project",
        "/home/me/../me/project/x",
        "/home/me/proj%65ct/../project/x",
        ROOT + "/%41",
    ),
    *(
        ROOT + "/-rf",
        ROOT + "/$x",
        ROOT + "/*",
        ROOT + "/x:y",
        ROOT + "/" + "x" * 4000,
        ROOT + "/straße",
        ROOT + "/a+b=c,d;e",
    ),
]


def test_the_corpus_of_paths_is_large() -> None:
    assert len({*CLIMBING, *OUTSIDE, *INSIDE}) >= 300


def test_no_spelling_of_a_path_outside_is_under_a_root() -> None:
    for path in (*CLIMBING, *OUTSIDE):
        assert said("path_under", (ROOT,), path) is not True, path
        assert said("path_under", ("/srv", ROOT + "/"), path) is not True, path


def test_plain_paths_below_a_root_are_under_it() -> None:
    for path in INSIDE:
        assert said("path_under", (ROOT,), path) is True, path
        assert said("path_under", ("/srv", ROOT), path) is True, path
        assert said("path_under", ("/",), path) is True, path
        assert said("path_under", ("/srv", "/home/me/project-evil"), path) is False, path


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/etc/passwd",
            "/etc",
            "/etc/",
            "//etc/passwd",
            "/etc//passwd",
            "/./etc/passwd",
            "/x/../etc/passwd",
            "/%65tc/passwd",
        ),
        *(
            "/%2e/etc/passwd",
            "/x/%2e%2e/etc/passwd",
            "/x%2f..%2fetc/passwd",
            "/etc%2fpasswd",
            "%2fetc%2fpasswd",
            "/ETC/passwd",
        ),
        *("/../etc/passwd", "../../etc/passwd", "~/../../etc/passwd", "\\etc\\passwd", "/x\\..\\etc", "/etc./passwd"),
        *(
            "/etc\0/passwd",
            "/ｅtc/passwd",
            "/x/．．/etc/passwd",
            "/et\u200bc/passwd",
            "/%2565tc/passwd",
            "/%u0065tc/passwd",
        ),
        *("/e%74%63/passwd", "/x/.. /etc/passwd", "file:///etc/passwd", "/etc /passwd", "///etc", "/%c1%a5tc"),
        *("/" + "x/../" * 2000 + "etc/passwd", "etc/passwd"),
    ],
)
def test_no_spelling_of_a_path_is_surely_outside_of_what_it_leads_to(path: str) -> None:
    """What denies needs no certainty."""
    assert said("path_under", ("/etc",), path) is not False


@pytest.mark.parametrize("path", ["/home/me/x", "/etcetera", "/home/etc", "/home/me/a%20b", "/"])
def test_plain_paths_outside_are_surely_outside(path: str) -> None:
    assert said("path_under", ("/etc",), path) is False


def test_each_reading_may_be_under_another_root() -> None:
    assert said("path_under", ("/a/b c", "/a/b%20c"), "/a/b%20c/x") is True
    assert said("path_under", ("/a/b c",), "/a/b%20c/x") is None


@pytest.mark.parametrize("root", ["nonsense", "/..", "/a\\b", ""])
def test_a_root_that_is_no_path_has_nothing_surely_under_it(root: str) -> None:
    assert said("path_under", (root,), "/x") is None
    assert said("path_under", (root, "/x"), "/x") is True


PIECES = st.sampled_from(
    [
        "/",
        "/",
        "/home",
        "/me",
        "/project",
        "..",
        ".",
        "%2e",
        "%2F",
        "%25",
        "\\",
        "x",
        "~",
        " ",
        "\0",
        "．",
        "//",
        "-evil",
        "％",
    ]
)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(st.lists(PIECES, max_size=9).map("".join))
@example("/../../x")
def test_what_is_under_a_root_is_so_for_the_system_too(tail: str) -> None:
    path = ROOT + tail
    if said("path_under", (ROOT,), path):
        for written in (path, unquote(path), unquote(unquote(path))):
            real = os.path.normpath(written)
            assert real == ROOT or real.startswith(ROOT + "/")


@settings(max_examples=examples(200))
@given(st.lists(st.text("abcXYZ019_-+ é.~", min_size=1, max_size=8), max_size=4))
def test_plain_names_below_a_root_are_always_under_it(names: list[str]) -> None:
    kept = [name for name in names if name.strip(". ") and not name.startswith("~")]
    assert said("path_under", (ROOT,), "/".join([ROOT, *kept])) is True


@pytest.mark.parametrize("value", [1, None, True, [ROOT], {"path": ROOT}])
def test_only_text_is_a_path(value: object) -> None:
    assert said("path_under", (ROOT,), value) is None


# Hosts

HOST = "example.com"

ELSEWHERE = [
    *(
        "https://evil.org/",
        "https://example.com.evil.org/",
        "https://evil.org/example.com",
        "https://evil.org?example.com",
    ),
    *(
        "https://evil.org#example.com",
        "https://notexample.com/",
        "https://sub.example.com/",
        "https://com/",
        "example.co",
    ),
    *(
        "https://example.com@evil.org/",
        "https://example.com:80@evil.org/",
        "https://user@example.com/",
        "https://@example.com/",
    ),
    *(
        "https://user:example.com@evil.org/",
        "https://evil.org@example.com@evil.org/",
        "https://example.com%40evil.org/",
    ),
    *(
        "https://evil.org\\@example.com/",
        "https://example.com\\@evil.org/",
        "https:\\\\example.com/",
        "https:/\\example.com/",
    ),
    *(
        "https://evil.org\\.example.com/",
        "https://evil.org/\\example.com",
        "https://example.com\\.evil.org/",
        "\\\\example.com\\x",
    ),
    *(
        "https:///example.com/",
        "https:////example.com",
        "https:example.com",
        "https:/example.com",
        "//example.com/",
        "/example.com",
    ),
    *(
        "https://exam\tple.com/",
        "https://exam\nple.com/",
        "https://exam\rple.com",
        " https://example.com/",
        "https://example.com /",
    ),
    *(
        "https://example.com\n.evil.org/",
        "\x00https://example.com",
        "https://example.com\x00.evil.org/",
        "ht\ttps://example.com/",
    ),
    *(
        "https://example.com\u3002evil.org/",
        "https://example\u3002com/",
        "https://example\uff0ecom/",
        "https://example\uff61com/",
    ),
    *(
        "https://ex\u0430mple.com/",
        "https://\uff45xample.com/",
        "https://exampl\u00e9.com/",
        "https://example.com\uff0fevil.org",
    ),
    *(
        "https://example\u00ad.com/",
        "https://exam\u200bple.com/",
        "https://example.com\u202e/",
        "https://ex\u1ea1mple.com/",
    ),
    *(
        "https://xn--exmple-cua.com/",
        "https://xn--xample-9uf.com/",
        "https://example.xn--com-/",
        "https://xn--example-.com/",
    ),
    *(
        "https://example.com..",
        "https://example..com/",
        "https://.example.com/",
        "https://example.com..evil.org",
        "https://./",
    ),
    *("https://example.com:/", "https://example.com:x/", "https://example.com:99999/", "https://example.com:80:80/"),
    *(
        "https://example.com:-1",
        "https://example.com:８０/",
        "https://example.com:٨٠/",
        "https://example.com:443@evil.org:443/",
    ),
    *(
        "https://[example.com]/",
        "https://[::1%25example.com]/",
        "https://[::1]example.com/",
        "https://example.com[::1]/",
    ),
    *(
        "https://exam%70le.com/",
        "https://example.com%2eevil.org/",
        "https://example.com%2f@evil.org/",
        "https://example.com%00/",
    ),
    *(
        "https://example.com;evil.org/",
        "https://example.com,evil.org",
        "https://example.com|evil.org",
        "https://example.com&@evil.org",
    ),
    *(
        "https://evil.org#@example.com/",
        "https://example.com#@evil.org/",
        "https://example.com?@evil.org/",
        "https://evil.org?@example.com",
    ),
    *(
        "javascript://example.com/%0aalert(1)",
        "file://example.com/x",
        "data:example.com",
        "mailto:x@example.com",
        "custom://example.com",
    ),
    *(
        "example.com/x",
        "example.com@evil.org",
        "example.com:80@evil.org",
        "example.com evil.org",
        "",
        ".",
        ":80",
        "https://",
        "https://:80/",
    ),
    *(
        "https://https://example.com/",
        "url:https://example.com/",
        "view-source:https://example.com/",
        "https://example.com" + "." * 300,
    ),
    *(
        "https://example.com/" + "x" * MAX_LENGTH,
        "https://" + "a" * 64 + ".com/",
        "https://example.com/\ud800",
        "https://example.com /x",
    ),
    *(
        "https://*.com/",
        "https://{host}/",
        "https://$HOST/",
        "https://example.com'/",
        "<https://example.com>",
        "https://exámple.com/",
    ),
]

HERE = [
    *("example.com", "EXAMPLE.com", "example.com:80", "example.com.", "example.com.:443", "https://example.com"),
    *("https://example.com/", "http://example.com/a/b?c=d#e", "HTTPS://Example.COM/x", "https://example.com:8443/x"),
    *(
        "https://example.com./x",
        "wss://example.com/x",
        "ftp://example.com/x",
        "https://example.com?x=1",
        "https://example.com#x",
    ),
    *(
        "https://example.com/@user",
        "https://example.com/a:b@c",
        "https://example.com/?u=https://evil.org/",
        "https://example.com/ä",
    ),
    *("https://example.com/%2e%2e/x", "https://example.com//evil.org/", "https://example.com:0443/"),
]


def test_the_corpus_of_hosts_is_large() -> None:
    assert len({*ELSEWHERE, *HERE}) >= 110


def test_no_spelling_of_another_host_is_taken_for_ours() -> None:
    for url in ELSEWHERE:
        assert said("host_in", (HOST,), url) is not True, url
        assert said("host_in", ("other.example", HOST), url) is not True, url


def test_plain_urls_of_a_host_are_its_own() -> None:
    for url in HERE:
        assert said("host_in", (HOST,), url) is True, url
        assert said("host_in", ("evil.org", "Example.Com"), url) is True, url
        assert said("host_in", ("evil.org", "sub.example.com", "127.0.0.1"), url) is False, url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://127.0.0.1/",
            "127.0.0.1:80",
            "http://127.0.0.1./",
            "http://127.1/",
            "http://127.0.1",
            "http://2130706433/",
        ),
        *(
            "http://0x7f.0.0.1/",
            "http://0x7f000001/",
            "http://0X7F.1",
            "http://017700000001/",
            "http://0177.0.0.1/",
            "http://127.0.0.01",
        ),
        *(
            "http://127.0.0.1.:80",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[::127.0.0.1]/",
            "http://[::1]/",
        ),
        *(
            "http://[0:0:0:0:0:0:0:1]/",
            "http://[64:ff9b::127.0.0.1]/",
            "http://[2002:7f00:1::]/",
            "http://localhost/",
            "http://0/",
        ),
        *(
            "http://0.0.0.0/",
            "http://LOCALHOST:80",
            "http://a.localhost/",
            "http://①②⑦.⓪.⓪.①/",
            "http://127。0。0。1/",
            "http://user@127.0.0.1",
        ),
        *(
            "http:127.0.0.1",
            "http:\\\\127.0.0.1",
            "http://127.0.0.1\t/",
            "http://%31%32%37.0.0.1/",
            "http://[::1%25lo]/",
            "http://[::]",
        ),
        *(
            "http://localhost./",
            "//127.0.0.1/",
            "gopher://127.0.0.1/",
            "http://4294967297/",
            "http://127.0.0.256",
            "http://0x/",
        ),
    ],
)
def test_no_spelling_of_an_address_is_surely_another(url: str) -> None:
    """What denies needs no certainty."""
    assert said("host_in", ("127.0.0.1",), url) is not False


@pytest.mark.parametrize(
    ("wanted", "url", "answer"),
    [
        ("192.0.2.1", "http://192.0.2.1:80/x", True),
        ("192.0.2.1", "http://192.0.2.2/", False),
        ("192.0.2.1", "https://example.com/", False),
        ("::1", "http://[::1]:80/", True),
        ("[::1]", "http://[0:0::1]/", True),
        ("2001:db8::1", "[2001:DB8:0::1]:443", True),
        ("2001:db8::1", "http://[2001:db8::2]/", False),
        ("2001:db8::1", "2001:db8::1", None),
        ("2001:db8::1", "http://[fe80::1%25eth0]/", None),
        ("xn--bcher-kva.example", "https://XN--BCHER-KVA.example/", True),
        ("xn--bcher-kva.example", "https://bücher.example/", None),
        ("bücher.example", "https://xn--bcher-kva.example/", None),
        ("*.example.com", "https://a.example.com/", None),
        ("localhost", "http://127.0.0.1/", None),
        ("a_b.example", "https://a_b.example/", True),
        ("1.2.3", "http://1.2.3/", None),
    ],
)
def test_hosts_of_every_kind(wanted: str, url: str, answer: bool | None) -> None:
    assert said("host_in", (wanted,), url) is answer


@settings(max_examples=examples(400))
@given(
    st.lists(
        st.sampled_from(
            [
                "https://",
                "//",
                "/",
                "\\",
                "@",
                ":",
                "example.com",
                "evil.org",
                ".",
                "?",
                "#",
                "80",
                "%40",
                "\t",
                "[",
                "]",
            ]
        ),
        max_size=8,
    ).map("".join)
)
def test_a_host_that_is_ours_is_so_for_other_parsers_too(text: str) -> None:
    if said("host_in", (HOST,), text):
        found = urlsplit(text if "://" in text else f"//{text}").hostname
        assert found is not None
        assert found.removesuffix(".") == HOST


@pytest.mark.parametrize("value", [1, None, True, [HOST], {"host": HOST}])
def test_only_text_is_a_host(value: object) -> None:
    assert said("host_in", (HOST,), value) is None


def test_an_address_tells_whether_it_is_this_machine() -> None:
    here = ("http://localhost", "http://127.0.0.1:80/", "http://127.9.9.9", "http://[::1]/", "localhost:80")
    there = ("http://example.com", "http://127.0.0.1.example.com", "http://localhost.example.com", "http://10.0.0.1")
    for text in (*here, *there):
        address = parse_address(text)
        assert address is not None
        assert address.is_loopback() is (text in here)


# Long arguments

LONG = {
    "a string": (b'"acme"', "eq", "acme", True),
    "an escape": (rb'"\u0061cme"', "eq", "acme", True),
    "another string": (b'"evil"', "eq", "acme", False),
    "a number": (b"7", "range", (1, 9), True),
    "a long integer": (b"7" * 4200, "range", (None, 9), None),
    "a rounded number": (b"0.10000000000000001", "range", (0, 0.1), None),
    "a decimal number": (b"0.1", "range", (0, 0.1), True),
    "a number that is rounded to an integer": (b"1.00000000000000001", "type", "integer", None),
    "a number in another spelling": (b"1.0e1", "eq", 10, True),
    "an integer beyond floats": (b"9007199254740993", "in", (9007199254740993, 1), None),
    "a list": (b"[1,2,3]", "max_len", 3, True),
    "a longer list": (b"[1,2,3]", "max_len", 2, False),
    "a list and its type": (b"[1]", "type", "array", True),
    "an object and its type": (b'{"b":1}', "type", "object", True),
    "a list in place of a string": (b"[]", "eq", "acme", None),
    "an object in place of a string": (b"{}", "eq", "acme", None),
    "null": (b"null", "eq", None, True),
}


@pytest.mark.parametrize("size", [0, LONGEST_DECODED])
@pytest.mark.parametrize(("value", "op", "wanted", "answer"), LONG.values(), ids=LONG)
def test_long_arguments_are_evaluated_like_short_ones(
    value: bytes, op: str, wanted: CheckValue, answer: bool | None, size: int
) -> None:
    """Wherever the value stands."""
    deep = b'{"a":%b,"b":[0,{"c/d":%b}],"fill":"%b"}' % (value, value, b"x" * size)
    arguments = decode_arguments(Raw(deep))
    assert isinstance(arguments, LongArguments) == bool(size)
    for path in ("/a", "/b/1/c~1d"):
        conditions = (Condition(path, (Check(op, wanted),)),)
        assert conditions_hold(conditions, arguments) is answer
        assert conditions_hold(conditions, arguments, closed=True) is None
    for path in ("/c", "/b/2", "/b/x", "/a/b/c", "/b/01"):
        assert conditions_hold((Condition(path, (Check("absent", None),)),), arguments) is True


@pytest.mark.parametrize("size", [0, LONGEST_DECODED])
def test_other_arguments_are_seen_in_long_ones_too(size: int) -> None:
    arguments = decode_arguments(Raw(b'{"a":"%b","b":1}' % (b"x" * size)))
    one, other = (Condition(path, (Check("type", kind),)) for path, kind in (("/a", "string"), ("/b", "number")))
    assert conditions_hold((one, other), arguments, closed=True) is True
    assert conditions_hold((one,), arguments, closed=True) is None


@pytest.mark.parametrize("size", [0, LONGEST_DECODED])
@pytest.mark.parametrize("text", [b'["%b"]', rb'{"a":1,"b":"\ud800%b"}', b'"%b"'])
def test_nothing_is_known_of_arguments_that_cannot_be_read(text: bytes, size: int) -> None:
    arguments = decode_arguments(Raw(text % (b"x" * size)))
    assert conditions_hold((Condition("/a", (Check("eq", 1),)),), arguments) is None
    assert conditions_hold((Condition("/a", (Check("absent", None),)),), arguments) is None
