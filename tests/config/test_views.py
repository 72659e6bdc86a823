"""Views, callers and overrides: what is read from a file, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import (
    ArgumentOverride,
    CallerSpec,
    HistoryAccess,
    NameStyle,
    Override,
    OverrideKind,
    Search,
    ViewNames,
    ViewServer,
    ViewSpec,
    load,
)
from config.views import ALL
from tests.config.kit import lines, load_text

TOKENS = 'listen: {auth: {tokens: {laptop: "0123456789abcdef", ci: "123456789abcdef0"}}}\n'
CALLERS = f"{TOKENS}callers: {{laptop: {{token: laptop}}, ci: {{token: ci}}}}\n"
SERVERS = "servers: {git: {command: [git]}, github: {url: https://example.com/mcp}}\n"


def view(folder: Path, text: str) -> ViewSpec:
    """The view of these keys, in a file with callers and servers."""
    return load_text(folder, f"{CALLERS}{SERVERS}views: {{coding: {text}}}\n").views["coding"]


def wrong(folder: Path, text: str) -> list[str]:
    """The problems of a view of these keys, without their places."""
    return said(folder, f"{CALLERS}{SERVERS}views: {{coding: {text}}}\n")


def override(folder: Path, text: str) -> Override:
    return load_text(folder, f"servers: {{a: {{command: [a], overrides: {{t: {text}}}}}}}").servers["a"].overrides["t"]


def wrong_override(folder: Path, text: str) -> list[str]:
    return said(folder, f"servers: {{a: {{command: [a], overrides: {text}}}}}")


def said(folder: Path, text: str) -> list[str]:
    return [each.split(": ", 1)[1] for each in lines(folder, text)]


# Callers.


def test_a_caller_is_whoever_has_a_token(tmp_path: Path) -> None:
    config = load_text(tmp_path, CALLERS + SERVERS)
    assert config.callers == {"laptop": CallerSpec("laptop"), "ci": CallerSpec("ci")}
    text = (CALLERS + SERVERS).replace("{token: ci}", "{token: ci, history: own}")
    assert load_text(tmp_path, text).callers["ci"] == CallerSpec("ci", HistoryAccess.OWN)


@pytest.mark.parametrize(
    ("callers", "problem"),
    [
        (
            "{ci: {token: nobody}}",
            "callers.ci.token: expected the name of a token under listen.auth.tokens, found something else; "
            "name the token, and write it there",
        ),
        (
            '{ci: {token: "${env:CI}"}}',
            "callers.ci.token: expected the name of a token under listen.auth.tokens, found something else; "
            "write the token there, and its name here",
        ),
        ("{ci: {token: ci, history: mine}}", 'callers.ci.history: expected own or all, found "mine"'),
        ("{ci: {token: ci, history: true}}", 'callers.ci.history: expected own or all, found "true"'),
        (
            "{a: {token: ci}, b: {token: ci}}",
            "callers.b.token: this is the token of a too; give each caller its own",
        ),
        ("{ci: {}}", 'callers.ci.token: the key "token" is missing; it names the caller\'s token under '),
        ("{a b: {token: ci}}", "callers.a b: a caller's name is 1 to 64 letters, digits and . _ @ -"),
    ],
)
def test_a_caller_has_a_token_of_its_own(tmp_path: Path, callers: str, problem: str) -> None:
    found = said(tmp_path, f"{TOKENS}{SERVERS}callers: {callers}")
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_a_token_in_the_place_of_its_name_is_not_repeated(tmp_path: Path) -> None:
    [problem] = said(tmp_path, f"{TOKENS}{SERVERS}callers: {{ci: {{token: 123456789abcdef0}}}}")
    assert "123456789abcdef0" not in problem


def test_rules_name_callers_in_any_order(tmp_path: Path) -> None:
    consent = "{tools: {allow: [{name: x, callers: [laptop, ci]}], deny: [{name: y, callers: ci}]}}"
    config = load_text(tmp_path, f"{CALLERS}servers: {{a: {{command: [a], consent: {consent}}}}}")
    tools = config.servers["a"].consent.tools
    assert tools.allow is not None
    assert [rule.callers for rule in (*tools.allow, *tools.deny)] == [("ci", "laptop"), ("ci",)]


@pytest.mark.parametrize(
    ("consent", "where"),
    [
        ("{tools: {allow: [x, {name: y, callers: [cy]}]}}", "tools.allow[1]"),
        ("{prompts: {ask: [{name: y, callers: cy}]}}", "prompts.ask[0]"),
        ("{resources: {deny: [{uri: y:z, callers: cy}]}}", "resources.deny[0]"),
        ("{roots: {deny: [{uri: y:z, callers: cy}]}}", "roots.deny[0]"),
        ("{elicitation: {url: {deny: [{uri: y:z, callers: cy}]}}}", "elicitation.url.deny[0]"),
    ],
)
def test_a_rule_names_callers_of_the_file(tmp_path: Path, consent: str, where: str) -> None:
    text = 'expected the name of a caller under callers, found "cy"; there are laptop, ci'
    assert said(tmp_path, f"{CALLERS}servers: {{a: {{command: [a], consent: {consent}}}}}") == [
        f"servers.a.consent.{where}.callers: {text}"
    ]
    assert said(tmp_path, f"{CALLERS}defaults: {{consent: {consent}}}\n{SERVERS}") == [
        f"defaults.consent.{where}.callers: {text}"
    ]


def test_a_file_without_callers_has_none_to_name(tmp_path: Path) -> None:
    [problem] = said(tmp_path, "servers: {a: {command: [a], consent: {tools: {ask: [{name: x, callers: ci}]}}}}")
    assert problem.endswith('expected the name of a caller under callers, found "ci"; there is none')


# Views.


def test_a_view_of_nothing_but_its_name_has_everything(tmp_path: Path) -> None:
    made = view(tmp_path, "{}")
    assert made == ViewSpec()
    assert (made.servers, made.part("git"), made.search_above) == (None, ALL, 10_000)
    assert view(tmp_path, "{servers: all}") == made


def test_a_view_has_servers_as_a_whole_or_by_kind(tmp_path: Path) -> None:
    made = view(tmp_path, '{servers: {git: all, github: {tools: ["get_*", create_issue], resources: all}}}')
    assert made.servers == {"git": ALL, "github": ViewServer(("get_*", "create_issue"), ("**",), ())}
    assert (made.part("git"), made.part("other")) == (ALL, None)


def test_a_view_may_have_no_server(tmp_path: Path) -> None:
    assert view(tmp_path, "{servers: {}}").part("git") is None


def test_the_keys_of_a_view(tmp_path: Path) -> None:
    made = view(
        tmp_path,
        "{callers: [laptop, ci], names: {style: plain, limit: 48}, instructions: Be brief., search: auto, "
        "search_above: 500, pinned: [git__log]}",
    )
    assert (made.callers, made.names) == (("ci", "laptop"), ViewNames(NameStyle.PLAIN, 48))
    assert (made.instructions, made.search, made.search_above) == ("Be brief.", Search.AUTO, 500)
    assert made.pinned == ("git__log",)


@pytest.mark.parametrize(("word", "search"), [("off", "off"), ("on", "on"), ("true", "on"), ("false", "off")])
def test_a_search_is_on_or_off_as_editors_write_it(tmp_path: Path, word: str, search: str) -> None:
    assert view(tmp_path, f"{{search: {word}}}").search == search


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{callers: lapto}",
            'callers: expected the name of a caller under callers, found "lapto"; did you mean ',
        ),
        (
            "{callers: []}",
            "callers: expected at least one caller, found an empty list; name one of callers, or remove ",
        ),
        ("{callers: [ci, ci]}", "callers: a caller is in the list twice; remove one"),
        ("{servers: {gti: all}}", 'servers.gti: expected the name of a server, found "gti"; did you mean git?'),
        (
            "{servers: [git]}",
            "servers: expected all, or a map, found a list; a list of tools is written {tools: [...]}",
        ),
        ("{servers: {git: al}}", 'servers.git: expected all, or a map, found "al"; a list of tools is written '),
        ("{servers: {git: {}}}", "servers.git: expected all, or a map of tools, resources and prompts, found an empty"),
        ("{servers: {git: {tool: all}}}", 'servers.git.tool: unknown key; did you mean "tools"?'),
        ("{names: {style: plan}}", 'names.style: expected prefixed or plain, found "plan"; did you mean plain?'),
        ("{names: {limit: 20}}", 'names.limit: expected a whole number from 32 to 128, found "20"'),
        ("{search: of}", 'search: expected off, on or auto, found "of"; did you mean off?'),
        ("{search: on, search_above: 5}", "search_above: search_above is for search: auto; write that, or remove it"),
        ("{pinned: [x]}", "pinned: without a search all tools are listed; write search: on or auto, or remove it"),
        ('{instructions: ""}', "instructions: expected text of at most 10000 characters"),
        ("{overrides: {gti: {t: {title: T}}}}", 'overrides.gti: expected the name of a server, found "gti"; did you '),
        (
            "{servers: {git: all}, overrides: {github: {t: {title: T}}}}",
            "overrides.github: the view does not have this server; add it to servers, or remove this",
        ),
    ],
)
def test_what_is_wrong_with_a_view(tmp_path: Path, text: str, problem: str) -> None:
    found = wrong(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(f"views.coding.{problem}")


def test_the_name_of_a_view_has_the_form_of_a_server_id(tmp_path: Path) -> None:
    [problem] = said(tmp_path, f"{SERVERS}views: {{My Code: {{}}}}")
    assert problem == (
        "views.My Code: a view's name is at most 20 lower-case letters and digits, with single dashes between, and "
        'begins with a letter, for instance "my-code"'
    )


def test_the_default_view_is_one_of_the_file(tmp_path: Path) -> None:
    assert load_text(tmp_path, f"{SERVERS}views: {{few: {{}}}}\ndefault_view: few").default_view == "few"
    assert said(tmp_path, f"{SERVERS}views: {{few: {{}}}}\ndefault_view: fwe") == [
        'default_view: expected the name of a view under views, found "fwe"; did you mean few?'
    ]


# Overrides.


def test_an_override_changes_texts_and_arguments(tmp_path: Path) -> None:
    text = '{name: new_issue, title: New, description: "Two\\nlines.", arguments: {a: {value: acme}, b: hidden}}'
    assert override(tmp_path, text) == Override(
        OverrideKind.TOOL,
        "new_issue",
        "New",
        "Two\nlines.",
        {"a": ArgumentOverride(value=b'"acme"'), "b": ArgumentOverride(hidden=True)},
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", b"1"),
        ("1.50", b"1.5"),
        ("true", b"true"),
        ("null", b"null"),
        ('"1"', b'"1"'),
        ("é", '"é"'.encode()),
        ("{a: [1, {b: null}]}", b'{"a":[1,{"b":null}]}'),
        ("[]", b"[]"),
        ("${env:WORD}", b'"from outside"'),
    ],
)
def test_a_value_is_any_json(tmp_path: Path, text: str, value: bytes) -> None:
    config = load_text(
        tmp_path,
        f'servers: {{a: {{command: [a], overrides: {{t: {{arguments: {{x: {{value: "{text}"}}}}}}}}}}}}'
        if "$" in text
        else f"servers: {{a: {{command: [a], overrides: {{t: {{arguments: {{x: {{value: {text}}}}}}}}}}}}}",
        {"WORD": "from outside"},
    )
    assert config.servers["a"].overrides["t"].arguments["x"] == ArgumentOverride(value=value)


def test_what_clients_do_not_see_is_taken_out() -> None:
    assert ArgumentOverride(value=b"null").is_taken_out
    assert ArgumentOverride(hidden=True).is_taken_out
    assert not ArgumentOverride(default=b"1", description="One.").is_taken_out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{t: {}}", "t: expected at least one of name, title, description and arguments, found none of them"),
        ("{t: {kind: resource, title: T}}", 't.kind: expected tool or prompt, found "resource"'),
        ("{t: {name: a.b}}", 't.name: expected a name of 1 to 128 letters, digits, _ and -, found "a.b"'),
        ("{t: {arguments: {a: {}}}}", "t.arguments.a: expected value, default, description or the word hidden, found "),
        ("{t: {arguments: {a: acme}}}", "t.arguments.a: expected hidden, or a map of value, default or description, "),
        (
            "{t: {arguments: {a: {value: 1, default: 2}}}}",
            "t.arguments.a: with a value, clients do not see the argument; remove default and description",
        ),
        ("{t: {arguments: {a: {hidden: true}}}}", "t.arguments.a.hidden: unknown key; "),
        (
            "{t: {kind: prompt, arguments: {a: {value: 1}}}}",
            "t.arguments.a.value: the arguments of prompts are texts; put it in quotes",
        ),
        ("{t: {name: u}, u: {title: U}}", 'u: it would be named "u", like t; give each its own name'),
        ("{t: {arguments: {a: {value: True}}}}", "t.arguments.a.value: "),
    ],
)
def test_what_is_wrong_with_an_override(tmp_path: Path, text: str, problem: str) -> None:
    found = wrong_override(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(f"servers.a.overrides.{problem}")


def test_two_overrides_may_swap_names(tmp_path: Path) -> None:
    config = load_text(tmp_path, "servers: {a: {command: [a], overrides: {t: {name: u}, u: {name: t}}}}")
    assert [each.name for each in config.servers["a"].overrides.values()] == ["u", "t"]


def test_an_override_on_another_one_changes_what_it_names() -> None:
    below = Override(name="n", title="T", arguments={"a": ArgumentOverride(hidden=True), "b": ArgumentOverride(b"1")})
    above = Override(title="U", arguments={"a": ArgumentOverride(description="A.")})
    assert above.on(None) is above
    assert above.on(below) == Override(
        name="n", title="U", arguments={"a": ArgumentOverride(description="A."), "b": ArgumentOverride(b"1")}
    )


def test_the_overrides_of_a_view_fit_those_of_the_server(tmp_path: Path) -> None:
    def problem(of_view: str) -> list[str]:
        servers = "servers: {a: {command: [a], overrides: {t: {name: u}, p: {kind: prompt, title: P}}}}\n"
        return said(tmp_path, f"{servers}views: {{v: {{overrides: {{a: {of_view}}}}}}}")

    assert problem("{p: {title: Q}}") == [
        "views.v.overrides.a.p: the override of the server is for a prompt; write the same kind here"
    ]
    assert problem("{x: {name: u}}") == ['views.v.overrides.a.x: it would be named "u", like t; give each its own name']
    assert problem("{t: {name: x}, x: {title: X}}") == [
        'views.v.overrides.a.x: it would be named "x", like t; give each its own name'
    ]


@pytest.mark.parametrize("argument", ["{default: 1}", "{description: Text.}"])
def test_a_view_takes_an_argument_out_as_the_server_does(tmp_path: Path, argument: str) -> None:
    for below in ("hidden", "{value: 1}"):
        servers = f"servers: {{a: {{command: [a], overrides: {{t: {{arguments: {{x: {below}}}}}}}}}}}\n"
        text = f"{servers}views: {{v: {{overrides: {{a: {{t: {{arguments: {{x: ARGUMENT}}}}}}}}}}}}"
        assert said(tmp_path, text.replace("ARGUMENT", argument)) == [
            "views.v.overrides.a.t.arguments.x: the override of the server takes this argument out; write a value or "
            "hidden here, or remove it"
        ]
        assert load_text(tmp_path, text.replace("ARGUMENT", "{value: 2}")).views["v"].overrides["a"]


def test_a_view_may_have_servers_that_wait_for_variables(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "servers: {a: {command: [a]}, b: {command: [b], limits: {calls: '${env:RATE}'}}}\n"
        "views: {v: {servers: {a: all, b: all}, overrides: {b: {t: {title: T}}}}}\n"
    )
    made = load(file, {}, in_background=True)
    assert made.servers["b"].problem
    assert made.views["v"].part("b") == ALL


def test_names_that_are_probably_not_the_servers_own_are_noticed(tmp_path: Path) -> None:
    made = load_text(
        tmp_path,
        "servers: {a: {command: [a], overrides: {a__t: {title: T}}}}\n"
        "views: {v: {servers: {a: {tools: 'a__*', resources: notes}}, overrides: {a: {a__u: {title: U}}}}}\n",
    )
    own = "is not the server's own name; without a__ it would be"
    assert list(made.notices) == [
        f'servers.a.overrides: "a__t" {own}',
        f'views.v.servers.a.tools: "a__*" {own}',
        'views.v.servers.a.resources: "notes" has no scheme, as URIs have; a file is file:///path',
        f'views.v.overrides.a: "a__u" {own}',
    ]


MISTAKES = {
    "callers": [
        ("{token: ci}", "{token: nobody}"),
        ("history: own", "history: mine"),
        ("callers: ci}", "callers: cy}"),
    ],
    "views": [("[laptop]", "[lapto]"), ("git: all", "gti: all"), ("default_view: small", "default_view: smal")],
    "overrides": [("name: new_issue", "name: new issue"), ("limit: {default: 20}", "limit: 20")],
}


@pytest.mark.parametrize("section", MISTAKES)
def test_the_documented_errors_are_those_of_the_documented_files(tmp_path: Path, section: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
    text = page.partition(f"\n## `{section}`\n")[2].partition("\n## ")[0]
    file, said = (text.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("yaml", "text"))
    (tmp_path / "ci.token").write_text("123456789abcdef0")
    found = []
    for written, wrong in MISTAKES[section]:
        assert written in file
        found += lines(tmp_path, file.replace(written, wrong, 1), {"LAPTOP_TOKEN": "0123456789abcdef"})
    assert [f"colonnade.yaml:{each}" for each in found] == said.splitlines()
