"""Patterns: what passes is compiled by Python here, and by JavaScript in `make eras`."""

from __future__ import annotations

import re
import warnings

import pytest

from host.protocol.patterns import is_portable
from tests.kit.output_schemas import OutputSchemas


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        r"^ticket-\d+$",
        r"^[A-Z]{2}[0-9]{3,}?$",
        r"^\S+@\S+\.\S+$",
        r"^(?:a|b)*(?=c)(?!d)e+?$",
        r"[\w.-]+[-a][a-][\-a][^^a][!-/]",
        r"[a[(*.]",
        r"^(([^<>()[\]\\.,;:\s@]+(\.[^<>()[\]\\.,;:\s@]+)*))$",
        r"[\x20-\x7e\u00e9-\u00ff]\/\}",
        "a{1000,2000}|()|",
        "\u00e9\U0001f600[\U0001f600-\U0001f64f]\n/",
        r"^(?:(?:\d\d[2468][048]|\d\d0[48])-02-29|\d{4}-(?:0[1-9]|1[0-2]))$",
    ],
)
def test_a_plain_pattern_is_portable(pattern: str) -> None:
    assert is_portable(pattern)
    re.compile(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"ticket\-", r"\_", r"\@", r"\Z", r"\A", r"\a", "\\", r"\x4", r"\u004", r"\ud83d\ude00"),
        *(r"\p{L}", r"\u{41}", r"\cA", r"\0", r"(a)\1"),
        *("(?P<a>b)", "(?<a>b)", "(?i)a", "(?<=a)b", "(?#a)", "(?>a)"),
        *("{", "}", "]", "a{,3}", "a{3", "a{3,2}", "a{99999}"),
        *("*", "+a", "a**", "a++", "^*", "$+", r"\b?", "(?=a)*", "|*", "(*a)"),
        *("(", ")", "a)", "((a)", "[", "[a", "[]", "[^]", "[]a]", "[a\\]"),
        *("[z-a]", r"[\w-.]", r"[a-\d]", "[\U0001f64f-\U0001f600]", "[b-\\x41]"),
        "a" * 2001,
    ],
)
def test_what_one_client_does_not_compile_is_not(pattern: str) -> None:
    assert not is_portable(pattern)


def test_python_compiles_every_portable_pattern() -> None:
    schemas = OutputSchemas(1)
    patterns = [schemas.pattern() for _ in range(20_000)]
    portable = [each for each in patterns if is_portable(each)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a future Python may read otherwise
        for each in portable:
            re.compile(each)
    assert 2_000 < len(portable) < 18_000
