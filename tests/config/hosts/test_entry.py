"""The rules for the keys of a server, and that no key of any host passes without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.document import Plain
from config.hosts import GENERIC, HOSTS, DesktopHost
from config.hosts.entry import (
    OWN_KEYS,
    CannotUse,
    Rule,
    ServerEntry,
    approved_tools,
    call_timeout,
    number,
    only_tools,
    own_trust,
    program,
    same,
)

ALL = (*HOSTS, GENERIC)
TESTS = Path(__file__).parent
VALUES = st.recursive(st.text(max_size=3) | st.booleans() | st.integers(), lambda below: st.lists(below, max_size=2))
WORDS = ("tools", "mode", "permissions", "deny", "allowed", "blocked", "sandbox", "scope", "readOnly", "enabledTools")


def entry(values: dict[str, object], rules: Mapping[str, Rule] = {}, base: Path = Path("/b")) -> ServerEntry:
    """A server whose keys were read by these rules."""
    made = ServerEntry("a", "a", ("a",), values, lambda text: text, base)
    made.apply(dict(rules))
    return made


def by_name(host: DesktopHost) -> str:
    return host.name


@pytest.mark.parametrize("host", ALL, ids=by_name)
@given(key=st.text(min_size=1, max_size=12) | st.sampled_from(WORDS), value=VALUES)
def test_no_unknown_key_passes_silently(host: DesktopHost, key: str, value: object) -> None:
    """It could be a restriction: the server has a problem, whatever the value is."""
    if key in host.rules or key in OWN_KEYS:
        return
    found = entry({key: value}, host.rules)
    assert len(found.problems) == 1
    assert "is not known here and could restrict it" in found.problems[0]


@pytest.mark.parametrize("host", ALL, ids=by_name)
def test_a_misspelt_key_does_not_pass_silently(host: DesktopHost) -> None:
    for key in host.rules:
        for misspelt in (key + "s", key.upper(), f"{key} "):
            if misspelt not in host.rules and misspelt not in OWN_KEYS:
                assert entry({misspelt: "x"}, host.rules).problems, misspelt


@pytest.mark.parametrize("host", ALL, ids=by_name)
def test_each_key_has_a_test(host: DesktopHost) -> None:
    """The test file of each host names every key that the host has a rule for."""
    text = (TESTS / f"test_{host.name.replace('-', '_')}.py").read_text()
    assert [key for key in host.rules if not re.search(rf'\b{key}["=:]', text)] == []


# Lists of tools as rules.


def consent(change: Callable[[ServerEntry], object]) -> object:
    made = entry({})
    change(made)
    return made.consent_for_tools()


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (lambda made: None, None),
        (lambda made: made.ask(), "ask"),
        (lambda made: (made.ask(), made.deny_all()), "deny"),
        (lambda made: (made.only({"a", "b"}), made.only({"b", "c"})), {"allow": ["b"]}),
        (lambda made: (made.only({"a", "b"}), made.ask()), {"allow": [], "ask": ["a", "b"]}),
        (lambda made: (made.only({"a", "b"}), made.ask({"a", "c"})), {"allow": ["b"], "ask": ["a"]}),
        (lambda made: (made.only({"read", "list"}), made.ask({"r*"})), {"allow": ["list"], "ask": ["read"]}),
        (
            lambda made: (made.only({"a", "b"}), made.ask(), made.deny({"a"})),
            {"allow": [], "ask": ["b"], "deny": ["a"]},
        ),
        (lambda made: (made.only({"a"}), made.deny_all()), {"allow": []}),
        (lambda made: (made.ask({"a*"}), made.deny({"a*", "b"})), {"deny": ["a*", "b"]}),
        (lambda made: (made.ask(), made.deny({"b"})), {"default": "ask", "deny": ["b"]}),
    ],
)
def test_restrictions_together(change: Callable[[ServerEntry], object], rules: object) -> None:
    """A tool can do no more than each of them permits."""
    assert consent(change) == rules


def test_a_list_that_permits_names_tools_literally() -> None:
    assert "would match more here" in entry({"only": ["a*"]}, {"only": only_tools}).problems[0]


def test_approvals_are_only_noted() -> None:
    """A name with a star would be more tools here."""
    made = entry({"ok": ["a", "b*", "?"], "trust": Plain("true")}, {"ok": approved_tools, "trust": own_trust})
    assert (made.approved, made.approves_all, made.consent_for_tools()) == (["a"], True, None)


# Values.


@pytest.mark.parametrize(
    ("value", "unit", "timeout"),
    [
        ("90", 1, "90s"),
        ("1500", 0.001, "1.5s"),
        ("5", 0.001, "1s"),
        ("0", 1, "1s"),
        ("3600", 1, "600s"),
        ("1.5", 60, "90s"),
    ],
)
def test_timeouts(value: str, unit: float, timeout: str) -> None:
    """Ours is at most ten minutes."""
    assert entry({"t": Plain(value)}, {"t": call_timeout(unit)}).ours == {"timeout": timeout}


@pytest.mark.parametrize("value", ["90", Plain("-1"), Plain("true"), Plain("1e9"), [], {}])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(CannotUse, match=r'its key "t" is .*; expected a number'):
        number("t", value)


@pytest.mark.parametrize(
    ("values", "ours"),
    [
        ({"command": "x"}, {"command": "x", "args": [], "cwd": "/b$${c"}),
        ({"command": "./x", "cwd": "d"}, {"command": "/b$${c/x", "args": [], "cwd": "/b$${c/d"}),
        ({"command": "/x", "cwd": "/d"}, {"command": "/x", "args": [], "cwd": "/d"}),
        ({"command": "${env:A}/x", "cwd": "~/d"}, {"command": "${env:A}/x", "args": [], "cwd": "~/d"}),
        ({"command": "x", "cwd": ["d"]}, {"command": "x", "args": [], "cwd": ["d"]}),
        ({}, {}),
    ],
)
def test_paths_from_the_base(values: dict[str, object], ours: dict[str, object]) -> None:
    made = entry(values, {"command": program, "cwd": same}, Path("/b${c"))
    made.start_in_base()
    assert made.ours == ours


def test_a_file_of_variables(tmp_path: Path) -> None:
    """It starts from the base too, and the entry's own variables replace those of the file."""
    (tmp_path / "a.env").write_text("A=1\nB='${x}'\n")
    made = entry({"env": {"A": "2"}}, {"env": same}, tmp_path)
    made.set_env_file("a.env", "file")
    made.finish()
    assert made.ours["env"] == {"A": "2", "B": "$${x}"}
