"""Which changes of views, callers and overrides wait for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from config import (
    ArgumentOverride,
    Auth,
    CallerSpec,
    Config,
    Consent,
    HistoryAccess,
    KindConsent,
    Listen,
    Override,
    Rule,
    Secret,
    StdioServer,
    Verdict,
    ViewServer,
    ViewSpec,
    load,
)
from host.addresses import Addresses
from host.policy.rules import Rules, callers_in_rules
from host.policy.view_widening import Offers, compare_offers, compare_overrides, offers_of
from host.policy.widening import widenings, without_widenings
from host.protocol.methods import Kind
from tests.kit.examples import examples

TOKENS = ("laptop", "ci", "phone")
NO_RULES: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
TOP = 'listen: {auth: {tokens: {laptop: "0123456789abcdef", ci: "123456789abcdef0", phone: "23456789abcdef01"}}}\n'
CALLERS = f"{TOP}callers: {{laptop: {{token: laptop}}, ci: {{token: ci}}}}\n"
SERVERS = "servers: {git: {command: [git]}, mail: {command: [mail]}}\n"


def read(folder: Path, text: str) -> Config:
    file = folder / "c.yaml"
    file.write_text(text)
    return load(file)


def compared(folder: Path, before: str, after: str, top: str = CALLERS + SERVERS) -> tuple[list[str], Config, Config]:
    """What waits, and the configurations that are read and taken. Nothing of the one that is taken waits."""
    old, new = read(folder, top + before), read(folder, top + after)
    taken = without_widenings(old, new)
    assert widenings(old, taken) == {}
    found = widenings(old, new)
    assert set(found) <= {""}
    if not found:
        assert offers_of(taken) == offers_of(new)
    return list(found.get("", ())), new, taken


# Who is offered what.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "views: {few: {callers: [laptop], servers: {git: all}}}"),
        ("", "views: {few: {servers: {git: {tools: x}}}}\ndefault_view: few"),
        ("views: {few: {callers: [laptop]}}", "views: {few: {callers: [laptop, ci]}}"),
        ("views: {few: {callers: [laptop]}}", "views: {few: {callers: [laptop], servers: {git: {tools: a*}}}}"),
        (
            "views: {few: {callers: ci, servers: {git: {tools: ['a*', b], resources: 'a://**'}}}}",
            "views: {few: {callers: ci, servers: {git: {tools: [ab, 'a*c'], resources: 'a://**'}}}}",
        ),
        ("views: {a: {callers: ci}, b: {callers: ci}}", "views: {b: {callers: ci}}"),
        (
            "views: {a: {servers: {git: all}}, b: {}}\ndefault_view: a",
            "views: {a: {servers: {git: all}}}\ndefault_view: a",
        ),
        (
            "views: {a: {}, b: {servers: {git: all}}}\ndefault_view: a",
            "views: {a: {}, b: {servers: {git: all}}}\ndefault_view: b",
        ),
        ("views: {a: {names: {limit: 48}}}", "views: {a: {names: {limit: 64}}}"),
        ("views: {a: {search: on}}", "views: {a: {search: auto}}"),
        ("views: {a: {search: auto, pinned: [x]}}", "views: {a: {search: 'off'}}"),
        ("views: {a: {instructions: Read this.}}", "views: {a: {}}"),
        ("views: {a: {}}", "views: {a: {overrides: {git: {t: {arguments: {x: hidden}}}}}}"),
    ],
)
def test_a_narrower_offer_holds_at_once(tmp_path: Path, before: str, after: str) -> None:
    found, _, _ = compared(tmp_path, before, after)
    assert found == []


EVERYTHING = "views: callers that no view names would be offered everything"


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        ("views: {a: {callers: ci}}", "views: {a: {}}", ["views: ci would be offered everything"]),
        ("views: {a: {}}\ndefault_view: a", "views: {a: {}}", [EVERYTHING]),
        (
            "views: {a: {callers: ci, servers: {git: {tools: [a]}}}}",
            "views: {a: {callers: ci, servers: {git: {tools: [a, b]}}}}",
            ["views.a would offer more to ci"],
        ),
        (
            "views: {a: {callers: ci, servers: {git: {tools: all}}}}",
            "views: {a: {callers: ci, servers: {git: all}}}",
            ["views.a would offer more to ci"],
        ),
        (
            "views: {a: {callers: ci, servers: {git: {resources: 'a://*'}}}}",
            "views: {a: {callers: ci, servers: {git: {resources: 'a://b'}}}}",  # is certain for names alone
            ["views.a would offer more to ci"],
        ),
        (
            "views: {a: {callers: ci, servers: {git: all}}, b: {}}",
            "views: {a: {callers: ci, servers: {git: all}}, b: {callers: [ci, laptop]}}",
            ["views.b would offer more to ci"],
        ),
        (
            "views: {a: {servers: {git: all}}}\ndefault_view: a",
            "views: {a: {servers: {git: all}}, b: {servers: {mail: all}}}\ndefault_view: a",
            ["views.b would offer more to callers that no view names"],
        ),
    ],
)
def test_a_wider_offer_waits(tmp_path: Path, before: str, after: str, waits: list[str]) -> None:
    found, _, taken = compared(tmp_path, before, after)
    assert found == waits
    assert offers_of(taken).views.keys() <= read(tmp_path, CALLERS + SERVERS + before).views.keys() | {"b"}


def test_one_caller_is_offered_less_at_once_though_another_one_would_be_offered_more(tmp_path: Path) -> None:
    found, new, taken = compared(
        tmp_path,
        "views: {a: {callers: ci, servers: {git: all}}, b: {callers: laptop, servers: {git: all}}}",
        "views: {a: {callers: ci}, b: {callers: laptop, servers: {git: {tools: log}}}}",
    )
    assert found == ["views.a would offer more to ci"]
    assert taken.views["a"].part("mail") is None
    assert taken.views["b"] == new.views["b"]


def test_the_first_view_of_a_caller_is_that_of_the_file_though_another_change_waits(tmp_path: Path) -> None:
    found, _, taken = compared(
        tmp_path,
        "views: {a: {callers: ci}, b: {callers: laptop, servers: {git: {tools: x}}}}",
        "views: {c: {callers: ci, servers: {git: all}}, a: {callers: ci}, b: {callers: laptop, servers: {git: all}}}",
    )
    assert found == ["views.b would offer more to laptop"]
    assert taken.views["b"].part("git") == ViewServer(("x",))
    assert list(taken.views) == ["c", "a", "b"]


def test_what_a_new_view_calls_things_waits_and_its_boundary_does_not(tmp_path: Path) -> None:
    found, new, taken = compared(
        tmp_path, "", "views: {a: {callers: ci, servers: {git: all}, search: on, pinned: x, instructions: Do.}}"
    )
    assert found == [
        "views.a: instructions have changed",
        "views.a: a search calls tools that a host then does not see by their names",
    ]
    assert (taken.views["a"].servers, taken.views["a"].callers) == (new.views["a"].servers, ("ci",))
    assert (taken.views["a"].search, taken.views["a"].instructions) == ("off", None)


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        ("{}", "{names: {style: plain}}", "names are plain: a host may permit tools by their names"),
        ("{names: {style: plain}}", "{}", "names are prefixed: a host may permit tools by their names"),
        ("{instructions: A}", "{instructions: B}", "instructions have changed"),
        ("{search: auto}", "{search: auto, search_above: 5}", "a search calls tools that a host then does not see by "),
        ("{}", "{overrides: {git: {t: {title: T}}}}", "overrides.git.t has changed"),
        ("{overrides: {git: {t: {arguments: {x: hidden}}}}}", "{}", "overrides.git.t has changed"),
    ],
)
def test_another_form_of_what_is_offered_waits(tmp_path: Path, before: str, after: str, waits: str) -> None:
    [found], _, taken = compared(tmp_path, f"views: {{a: {before}}}", f"views: {{a: {after}}}")
    assert found.startswith(f"views.a: {waits}")
    assert taken.views == read(tmp_path, f"{CALLERS}{SERVERS}views: {{a: {before}}}").views


HIDING = "servers: {git: all}, overrides: {git: {t: {arguments: {x: hidden, y: {value: 1}}}}}"


@pytest.mark.parametrize(
    ("other", "waiting"),
    [
        (HIDING, ["views.b: overrides.git.t has changed"]),  # since y is sent
        ("servers: {git: all}", ["views.b would offer more to ci"]),
        (HIDING.replace("x: hidden, ", ""), ["views.b: overrides.git.t has changed", "views.b would offer more to ci"]),
        ("servers: {}", []),
    ],
)
def test_a_view_under_another_name_takes_out_the_same_arguments(tmp_path: Path, other: str, waiting: list[str]) -> None:
    found, _, taken = compared(
        tmp_path, f"views: {{a: {{callers: ci, {HIDING}}}}}", f"views: {{b: {{callers: ci, {other}}}}}"
    )
    assert found == waiting
    for name, view in taken.views.items():
        if "ci" in view.callers and view.part("git") is not None:
            assert name == "a"
            assert view.overrides["git"]["t"].arguments["x"].hidden


# Callers.


RULE = "servers: {git: {command: [git], consent: {tools: {deny: [{name: x, callers: ci}]}}}}\n"
NO_RULE = "servers: {git: {command: [git]}}\n"


def test_a_caller_that_rules_name_gets_no_other_token_at_once(tmp_path: Path) -> None:
    found, _, taken = compared(tmp_path, "callers: {ci: {token: ci}}", "callers: {ci: {token: phone}}", TOP + RULE)
    assert found == ["callers.ci: the rules that name it would be those of another token"]
    assert taken.callers == {"ci": CallerSpec("ci")}


def test_a_caller_that_no_rule_names_gets_another_token_at_once(tmp_path: Path) -> None:
    found, _, _ = compared(tmp_path, "callers: {ci: {token: ci}}", "callers: {ci: {token: phone}}", TOP + SERVERS)
    assert found == []


def test_a_rule_for_a_caller_that_is_new_denies_at_once(tmp_path: Path) -> None:
    old, new = read(tmp_path, TOP + NO_RULE), read(tmp_path, f"{TOP}callers: {{ci: {{token: ci}}}}\n{RULE}")
    assert widenings(old, new) == {}
    assert without_widenings(old, new).callers == {"ci": CallerSpec("ci")}


def test_a_caller_stays_for_as_long_as_a_rule_that_names_it(tmp_path: Path) -> None:
    """The rule waits, so its caller does."""
    old, new = read(tmp_path, f"{TOP}callers: {{ci: {{token: ci}}}}\n{RULE}"), read(tmp_path, TOP + NO_RULE)
    assert widenings(old, new) == {"git": ("the rules for tools permit more",)}
    assert without_widenings(old, new).callers == {"ci": CallerSpec("ci")}


def test_a_token_under_another_name_may_lose_a_view(tmp_path: Path) -> None:
    view = "views: {a: {callers: NAME, servers: {git: all}}}\n"
    found, _, taken = compared(
        tmp_path,
        f"callers: {{ci: {{token: ci}}}}\n{view.replace('NAME', 'ci')}",
        f"callers: {{other: {{token: phone}}}}\n{view.replace('NAME', 'other')}",
        TOP + SERVERS,
    )
    assert found == ["views: ci would be offered everything"]
    assert taken.callers["ci"] == CallerSpec("ci")
    assert "ci" in taken.views["a"].callers


@pytest.mark.parametrize(
    ("before", "after", "waits", "kept"),
    [
        ("{token: ci}", "{token: ci, history: own}", True, None),
        ("{token: ci, history: own}", "{token: ci, history: all}", True, HistoryAccess.OWN),
        ("{token: ci, history: all}", "{token: ci, history: own}", False, HistoryAccess.OWN),
        ("{token: ci, history: all}", "{token: ci}", False, None),
        ("{token: ci, history: own}", "{token: phone, history: own}", True, None),
        ("{token: phone}", "{token: ci, history: all}", True, None),
    ],
)
def test_more_of_the_history_waits_and_less_holds_at_once(
    before: str, after: str, waits: bool, kept: HistoryAccess | None, tmp_path: Path
) -> None:
    """Of a token: a caller with another one has none of what the former one showed."""
    found, _, taken = compared(tmp_path, f"callers: {{ci: {before}}}", f"callers: {{ci: {after}}}", TOP + SERVERS)
    assert found == ["callers.ci.history: it sees more calls of the past"] * waits
    assert taken.callers["ci"].history is kept


def test_a_caller_that_stays_for_a_rule_or_a_view_sees_what_the_file_says(tmp_path: Path) -> None:
    caller = "callers: {ci: {token: ci, history: all}}\n"
    old, new = read(tmp_path, f"{TOP}{caller}{RULE}"), read(tmp_path, TOP + NO_RULE)
    assert without_widenings(old, new).callers == {"ci": CallerSpec("ci")}
    view = "views: {a: {callers: ci, servers: {git: all}}}\n"
    old, new = read(tmp_path, TOP + caller + view + SERVERS), read(tmp_path, TOP + SERVERS)
    assert without_widenings(old, new).callers["ci"] == CallerSpec("ci")
    old, new = read(tmp_path, TOP + caller + RULE), read(tmp_path, TOP + caller.replace("ci:", "new:") + NO_RULE)
    assert all(each.history is None for each in without_widenings(old, new).callers.values())
    new = read(tmp_path, f"{TOP}callers: {{ci: {{token: phone, history: all}}, other: {{token: ci}}}}\n{RULE}")
    assert without_widenings(old, new).callers["ci"] == CallerSpec("ci")


# Overrides.


@pytest.mark.parametrize(
    ("before", "after", "is_waiting"),
    [
        (None, Override(name="u"), True),
        (Override(name="u"), None, True),
        (None, Override(title="T"), True),
        (Override(title="T", description="D"), Override(description="D"), False),
        (Override(description="D"), None, False),
        (Override(description="D"), Override(description="E"), True),
        (None, ArgumentOverride(hidden=True), False),
        (ArgumentOverride(hidden=True), None, True),
        (None, ArgumentOverride(value=b"1"), True),
        (ArgumentOverride(value=b"1"), ArgumentOverride(value=b"true"), True),
        (ArgumentOverride(value=b"1"), ArgumentOverride(hidden=True), True),
        (ArgumentOverride(value=b"1"), None, True),
        (None, ArgumentOverride(default=b"1"), True),
        (ArgumentOverride(default=b"1"), ArgumentOverride(hidden=True), False),
        (ArgumentOverride(description="D"), None, False),
        (ArgumentOverride(description="D"), ArgumentOverride(hidden=True), False),
    ],
)
def test_an_override_waits_if_it_gives_something_else(
    before: Override | ArgumentOverride | None, after: Override | ArgumentOverride | None, is_waiting: bool
) -> None:
    def made(each: Override | ArgumentOverride | None) -> Mapping[str, Override]:
        override = Override(arguments={"x": each}) if isinstance(each, ArgumentOverride) else each
        return {"same": Override(title="S")} | ({} if override is None else {"t": override})

    waiting, taken = compare_overrides(made(before), made(after))
    assert waiting == (["t"] if is_waiting else [])
    assert taken == (made(before) if is_waiting else made(after))


def test_the_overrides_of_a_server_wait_one_by_one(tmp_path: Path) -> None:
    server = "servers: {git: {command: [git], overrides: {a: {arguments: {x: ARGUMENT}}, b: {title: TITLE}}}}"
    old = read(tmp_path, server.replace("ARGUMENT", "{default: 1}").replace("TITLE", "B"))
    new = read(tmp_path, server.replace("ARGUMENT", "hidden").replace("TITLE", "C"))
    assert widenings(old, new) == {"git": ("overrides.b has changed",)}
    taken = without_widenings(old, new).servers["git"].overrides
    assert taken == {"a": new.servers["git"].overrides["a"], "b": old.servers["git"].overrides["b"]}


# Any change.


PARTS = (
    ViewServer(("*",), ("**",), ("*",)),
    ViewServer(("a*",)),
    ViewServer(("ab",)),
    ViewServer(("b", "a*")),
    ViewServer((), (), ("*",)),
)
NAMES = ("one", "two", "three")
views = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        ViewSpec,
        callers=st.lists(st.sampled_from(("x", "y")), unique=True, max_size=2).map(lambda names: tuple(sorted(names))),
        servers=st.none() | st.dictionaries(st.sampled_from(("git", "mail")), st.sampled_from(PARTS)),
    ),
    max_size=3,
)
callers = st.dictionaries(st.sampled_from(("x", "y")), st.sampled_from(TOKENS), max_size=2).filter(
    lambda tokens: len(set(tokens.values())) == len(tokens)
)


@st.composite
def offers(draw: st.DrawFn) -> Offers:
    made = draw(views)
    who = {name: CallerSpec(token) for name, token in draw(callers).items()}
    return Offers(who, made, draw(st.none() | st.sampled_from(sorted(made))) if made else None)


def things(view: ViewSpec) -> Iterator[tuple[str, ...]]:
    """What of a few tools and prompts a view has."""
    for server in ("git", "mail", "other"):
        if (part := view.part(server)) is not None:
            for kind, patterns in (("tool", part.tools), ("prompt", part.prompts)):
                for name in ("a", "ab", "b", "c"):
                    if any(fnmatchcase(name, pattern) for pattern in patterns):
                        yield server, kind, name


def offered(token: str | None, made: Offers) -> set[tuple[str, ...]]:
    """All that a caller may get, at any address."""
    name = next((name for name, caller in made.callers.items() if caller.token == token), None)
    named = [view for view in made.views.values() if name in view.callers]
    default = None if made.default_view is None else made.views.get(made.default_view)
    if named:
        usable = named
    elif made.default_view is not None:
        usable = [*([default] if default else []), *(view for view in made.views.values() if not view.callers)]
    else:
        usable = [ViewSpec()]
    return {thing for view in usable for thing in things(view)}


def found(token: str | None, made: Offers) -> set[tuple[str, ...]]:
    """The same, as the endpoint gives it."""
    addresses = Addresses(made.views, made.callers, made.default_view)
    there: set[tuple[str, ...]] = set()
    for suffix in ("", "git", "mail", "other", *(f"@{name}" for name in NAMES)):
        if (endpoint := addresses.at(token, suffix)) is not None:
            view = made.views.get(endpoint.view) if endpoint.view else ViewSpec()
            there |= {each for each in (things(view) if view else ()) if endpoint.server in (None, each[0])}
    return there


@given(offers())
def test_what_is_compared_is_what_the_endpoint_gives(made: Offers) -> None:
    for token in (None, *TOKENS):
        assert found(token, made) == offered(token, made)


in_rules = st.tuples(*[st.frozensets(st.sampled_from(("x", "y"))) for _ in range(2)])


@given(offers(), offers(), in_rules)
@settings(max_examples=examples(500))
def test_nobody_is_offered_more_without_a_person(
    old: Offers, new: Offers, rules: tuple[frozenset[str], frozenset[str]]
) -> None:
    waiting, taken = compare_offers(old, new, TOKENS, rules)
    names = [caller.token for caller in taken.callers.values()]
    assert len(set(names)) == len(names), "a token has one caller"
    for token in (None, *TOKENS):
        assert found(token, taken) <= found(token, old)
        if not waiting and not rules[1]:
            assert found(token, new) <= found(token, old)
    if not waiting and not rules[1]:
        assert taken == new
    assert compare_offers(old, taken, TOKENS, rules) == ([], taken)


@given(offers(), st.data())
def test_one_view_less_or_narrower_holds_at_once(old: Offers, data: Any) -> None:
    """But for one by which a caller that it named falls back to more."""
    name = data.draw(st.sampled_from(sorted(old.views))) if old.views else None
    if name is None:
        return
    changed: ViewSpec = old.views[name]
    narrower = ViewSpec(callers=changed.callers, servers=MappingProxyType({}))
    new = old._replace(views={**old.views, name: narrower})
    assert compare_offers(old, new, TOKENS, NO_RULES) == ([], new)


# Rules, by the caller of each token.


LISTEN = Listen(auth=Auth(MappingProxyType({token: Secret(token * 4) for token in TOKENS})))
STRICTNESS = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}
rule = st.builds(
    Rule,
    st.sampled_from(("a", "b", "*")),
    callers=st.sampled_from(((), ("x",), ("y",), ("x", "y"))),
)
rules_of_tools = st.builds(
    KindConsent,
    allow=st.none() | st.lists(rule, max_size=2).map(tuple),
    ask=st.lists(rule, max_size=2).map(tuple),
    deny=st.lists(rule, max_size=2).map(tuple),
    default=st.none() | st.sampled_from(list(Verdict)),
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    consent = Consent(tools=draw(rules_of_tools))
    who = {name: CallerSpec(token) for name, token in draw(callers).items()}
    assume(callers_in_rules([consent]) <= who.keys())
    server = StdioServer(id="s", command=(Secret("x"),), consent=consent)
    return Config(listen=LISTEN, callers=who, servers={"s": server})


def verdicts(config: Config) -> dict[tuple[str | None, str], int]:
    names = {caller.token: name for name, caller in config.callers.items()}
    judge = Rules(config.servers["s"].consent, config.servers["s"].trust)
    return {
        (token, tool): STRICTNESS[judge.evaluate(Kind.TOOL, tool, {}, None, names.get(token or "", "")).verdict]
        for token in (None, *TOKENS)
        for tool in ("a", "b", "c")
    }


@given(configs(), configs(), configs())
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_no_token_gets_a_laxer_verdict_without_a_person(first: Config, second: Config, third: Config) -> None:
    """Also where what is in effect has a rule for a caller that waits."""
    present = first
    for new in (second, third):
        taken = without_widenings(present, new)
        before, after = verdicts(present), verdicts(new if not widenings(present, new) else taken)
        assert all(after[call] >= before[call] for call in before)
        present = taken
