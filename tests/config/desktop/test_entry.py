"""The rules for the keys of a server, that no key of any host passes without one, and restrictions said in several
ways as one set of rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.desktop.desktop_host import DesktopHost
from config.desktop.entry import (
    CannotUse,
    Rule,
    ServerEntry,
    approved_tools,
    approves_all,
    call_timeout,
    denied_tools,
    duration,
    env_file,
    number,
    only_tools,
    program,
    same,
)
from config.desktop.generic import FORMS, GENERIC, OWN_KEYS
from config.desktop.hosts import HOSTS
from config.document import Plain
from config.globs import Globs
from tests.config.desktop.kit import decide, new_entry

ALL = (*HOSTS, *FORMS)
TESTS = Path(__file__).parent
STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}
PATTERNS = st.text("ab*?", min_size=1, max_size=4)
LITERALS = st.text("ab", min_size=1, max_size=3)
NAMES = st.text("ab", min_size=1, max_size=4)
RESTRICTIONS = st.one_of(
    st.tuples(st.just("only"), st.sets(LITERALS, max_size=3)),
    st.tuples(st.just("permit"), st.sets(PATTERNS, max_size=3)),
    st.tuples(st.just("deny"), st.sets(PATTERNS, max_size=3)),
    st.tuples(st.just("ask"), st.sets(PATTERNS, max_size=3)),
    st.tuples(st.just("ask_all"), st.just(set())),
    st.tuples(st.sampled_from(["deny_all", "approve"]), st.just(set())),
)
VALUES = st.recursive(
    st.text(max_size=3) | st.sampled_from([Plain("null"), Plain("true"), Plain("1")]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=3), below, max_size=2),
)
WORDS = (
    *OWN_KEYS,
    "trust",
    "tools",
    "mode",
    "permissions",
    "deny",
    "allowed",
    "blocked",
    "sandbox",
    "scope",
    "readOnly",
    "enabledTools",
)


def by_name(host: DesktopHost) -> str:
    return host.name


@given(host=st.sampled_from(ALL), key=st.text(min_size=1, max_size=12) | st.sampled_from(WORDS), value=VALUES)
def test_no_unknown_key_passes_silently(host: DesktopHost, key: str, value: object) -> None:
    """It could be a restriction: the server has a problem, whatever the value is."""
    if key in host.rules:
        return
    found = new_entry({key: value}, host.rules)
    assert len(found.problems) == 1
    assert "is not known here and could restrict it" in found.problems[0]


def test_a_hosts_file_gives_itself_nothing_by_keys_of_ours() -> None:
    """Such a file may be a stranger's, who would raise its own trust."""
    for host in (host for host in ALL if host is not GENERIC):
        for key, value in {**dict.fromkeys(OWN_KEYS, "x"), "trust": "trusted"}.items():
            found = new_entry({key: value}, host.rules)
            assert (bool(found.problems), found.ours) == (True, {}), (host.name, key)


def test_a_misspelt_key_does_not_pass_silently() -> None:
    for host in ALL:
        for misspelt in {
            each for key in host.rules for each in (f"{key}s", key.upper(), f"{key} ")
        } - host.rules.keys():
            assert new_entry({misspelt: "x"}, host.rules).problems, (host.name, misspelt)


@pytest.mark.parametrize("host", ALL, ids=by_name)
def test_each_key_has_a_test(host: DesktopHost) -> None:
    """The test file of each host names every key that the host has a rule for."""
    module = {"continue": "continue_dev"}.get(host.name, host.name.replace("-", "_"))  # a keyword of Python
    module = "generic" if host in FORMS else module
    text = (TESTS / f"test_{module}.py").read_text()
    # In TOML, a key may also be the name of a table, and stand at the beginning of a line.
    named = r'(?:(?<!\w)|\\n){0}(?: ?["=:]|\.\w)|\.{0}\]'
    assert [key for key in host.rules if not re.search(named.format(re.escape(key)), text)] == []


# Lists of tools as rules.


def consent(change: Callable[[ServerEntry], object]) -> object:
    made = new_entry({})
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
        (lambda made: (made.only({"a"}), made.deny_all()), "deny"),
        (lambda made: (made.ask({"a*"}), made.deny({"a*", "b"})), {"deny": ["a*", "b"]}),
        (lambda made: (made.ask(), made.deny({"b"})), {"default": "ask", "deny": ["b"]}),
    ],
)
def test_restrictions_together(change: Callable[[ServerEntry], object], rules: object) -> None:
    """A tool can do no more than each of them permits."""
    assert consent(change) == rules


def test_a_list_that_permits_names_tools_literally() -> None:
    assert "would match more here" in new_entry({"only": ["a*"]}, {"only": only_tools}).problems[0]


def test_approvals_are_only_noted() -> None:
    """A name with a star would be more tools here."""
    for trust in ("true", "false"):
        values = {"ok": ["a", "b*", "?"], "trust": Plain(trust)}
        made = new_entry(values, {"ok": approved_tools, "trust": approves_all})
        assert (made.approved, made.approves_all, made.consent_for_tools()) == (["a"], trust == "true", None)


def restrict(entry: ServerEntry, restriction: tuple[str, set[str]]) -> None:
    word, tools = restriction
    match word:
        case "ask_all":
            entry.ask()
        case "deny_all":
            entry.deny_all()
        case "approve":
            entry.approve()
        case _:
            getattr(entry, word)(tools)


def said(restriction: tuple[str, set[str]], tool: str) -> str:
    """The verdict of one restriction alone."""
    word, tools = restriction
    matched = Globs(tools, uris=False).match(tool) if tools else False
    match word:
        case "only" | "permit":
            return "allow" if matched else "deny"
        case "deny":
            return "deny" if matched else "allow"
        case "ask":
            return "ask" if matched else "allow"
        case "ask_all":
            return "ask"
        case "deny_all":
            return "deny"
        case _:
            return "allow"


@given(st.lists(RESTRICTIONS, max_size=5), NAMES)
def test_never_wider_than_what_all_restrictions_permit(restrictions: list[tuple[str, set[str]]], tool: str) -> None:
    entry = new_entry()
    for restriction in restrictions:
        restrict(entry, restriction)
    assert STRICTNESS[decide(entry, tool)] >= max((STRICTNESS[said(each, tool)] for each in restrictions), default=0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["only", "deny", "ask"]), st.sets(LITERALS, max_size=3)),
            st.tuples(st.just("ask_all"), st.just(set())),
        ),
        max_size=5,
    ),
    NAMES,
)
def test_lists_of_names_are_exact(restrictions: list[tuple[str, set[str]]], tool: str) -> None:
    entry = new_entry()
    for restriction in restrictions:
        restrict(entry, restriction)
    assert STRICTNESS[decide(entry, tool)] == max((STRICTNESS[said(each, tool)] for each in restrictions), default=0)


def test_names_in_restrictions_are_no_references() -> None:
    entry = new_entry({"command": "x"})
    entry.deny(["${env:HOME}"])
    entry.finish()
    assert entry.ours["consent"] == {"tools": {"deny": ["$${env:HOME}"]}}


def test_a_permitted_name_with_a_wildcard_stops_the_server() -> None:
    entry = new_entry()
    entry.attempt(ServerEntry.only, ["a*"])
    assert entry.problems == ['the tool "a*" is permitted by a name with * or ?, which would match more here']


def test_an_unknown_key_stops_the_server_once() -> None:
    rules: dict[str, Rule] = {"command": program, "disabledTools": denied_tools, "cwd": same}
    entry = new_entry({"comand": Plain("x"), "disabledTools": ["a"], "cwd": Plain("null")}, rules)
    entry.apply(rules)
    assert entry.problems == ['its key "comand" is not known here and could restrict it; did you mean "command"?']


def test_a_server_that_is_off_needs_no_references() -> None:
    entry = new_entry({"command": "${env:A}", "env": {"A": "$${env:B}"}, "args": ["${env:C}"]})
    entry.apply({"command": program, "env": same, "args": same})
    entry.switch_off()
    entry.finish()
    assert entry.served["env"] == {"A": "$${env:B}"}
    assert (entry.served["command"], entry.served["args"]) == ("$${env:A}", ["$${env:C}"])
    assert (entry.ours["command"], entry.ours["args"], entry.ours["disabled"]) == ("${env:A}", ["${env:C}"], "true")


# Values.


@pytest.mark.parametrize(
    ("value", "unit", "timeout"),
    [
        ("90", 1, "90s"),
        ("1500", 0.001, "1.5s"),
        ("5", 0.001, "1s"),
        ("0", 1, "1s"),
        ("3600", 1, "3600s"),
        ("43200000", 0.001, "43200s"),
        ("100000000", 0.001, "86400s"),
        ("999999999999999", 1, "86400s"),
        ("1.5", 60, "90s"),
    ],
)
def test_timeouts(value: str, unit: float, timeout: str) -> None:
    """Ours is at most a day."""
    assert new_entry({"t": Plain(value)}, {"t": call_timeout(unit)}).ours == {"timeout": timeout}


def test_the_timeout_of_a_start_is_at_most_ten_minutes() -> None:
    assert new_entry({"t": Plain("3600")}, {"t": duration("start_timeout", 1)}).ours == {"start_timeout": "600s"}


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
    made = new_entry(values, {"command": program, "cwd": same}, Path("/b${c"))
    made.start_in_base()
    assert made.ours == ours


def test_a_file_of_variables(tmp_path: Path) -> None:
    """It starts from the base too, and the entry's own variables replace those of the file."""
    (tmp_path / "a.env").write_text("A=1\nB='${x}'\n")
    made = new_entry({"env": {"A": "2"}}, {"env": same}, tmp_path)
    made.set_env_file("a.env", "file")
    made.finish()
    assert made.ours["env"] == {"A": "2", "B": "$${x}"}


def test_empty_names_make_no_rule() -> None:
    entry = new_entry()
    entry.deny([""])
    entry.ask(["", "b"])
    assert entry.consent_for_tools() == {"ask": ["b"]}


def test_what_is_detected_may_forbid_calls_if_one_of_its_findings_may() -> None:
    entry = new_entry()
    entry.detect("a", may_forbid=False)
    assert not entry.may_be_forbidden
    entry.detect("a")
    entry.detect("a", may_forbid=False)
    assert (entry.may_be_forbidden, entry.detected) == (True, {"a": True})


def test_restrictions_are_those_without_confirmation_of_all() -> None:
    entry = new_entry()
    entry.ask()
    assert (entry.restrictions(), entry.consent_for_tools()) == (None, "ask")
    entry.deny(["a"])
    entry.ask(["b"])
    assert entry.restrictions() == {"ask": ["b"], "deny": ["a"]}
    entry.only(["b", "c"])
    assert entry.restrictions() == {"allow": ["c"], "ask": ["b"], "deny": ["a"]}
    assert entry.consent_for_tools() == {"allow": [], "ask": ["b", "c"], "deny": ["a"]}


def test_a_device_is_no_file_of_variables() -> None:
    """One such as /dev/zero has no end."""
    entry = new_entry({"envFile": "/dev/null"}, {"envFile": env_file})
    assert entry.problems == ['the file that its key "envFile" names cannot be read']


@pytest.mark.parametrize(
    ("restrictions", "consent"),
    [
        ([], None),
        ([("approve", set())], None),
        ([("only", set())], {"allow": []}),
        ([("only", {"a", "b"}), ("deny", {"b"})], {"allow": ["a"], "deny": ["b"]}),
        ([("only", {"a", "b"}), ("ask", {"*"})], {"allow": [], "ask": ["a", "b"]}),
        ([("only", {"a", "b"}), ("ask_all", set())], {"allow": [], "ask": ["a", "b"]}),
        ([("permit", {"a*"}), ("ask", {"ab", "*c"})], {"allow": [], "ask": ["a*"]}),
        ([("permit", {"a*"}), ("ask", {"ab", "c"})], {"allow": ["a*"], "ask": ["ab"]}),
        ([("ask", {"a"}), ("ask_all", set())], "ask"),
        ([("ask_all", set()), ("deny", {"a"})], {"default": "ask", "deny": ["a"]}),
        ([("deny", {"*"}), ("ask", {"a"})], "deny"),
        ([("deny_all", set()), ("only", {"a"})], "deny"),
        ([("deny", {"a*", "ab"})], {"deny": ["a*"]}),
    ],
)
def test_usual_restrictions(restrictions: list[tuple[str, set[str]]], consent: object) -> None:
    entry = new_entry()
    for restriction in restrictions:
        restrict(entry, restriction)
    assert entry.consent_for_tools() == consent
