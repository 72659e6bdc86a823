"""Keys and what belongs together: what is read, what is refused, and that the schema says the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

import config
from config import (
    AskSpec,
    Channel,
    Check,
    Condition,
    Consent,
    ConsoleSpec,
    Isolation,
    KindConsent,
    Limits,
    Protocol,
    Rate,
    Rule,
    Trust,
    Verdict,
)
from tests.config.kit import lines, load_text
from tests.config.test_load import EVERYWHERE, WHOLE

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
LISTEN = "servers: {{a: {{command: x}}}}\nlisten: {{{}}}"
STDIO = "servers: {{a: {{command: x, {}}}}}"
TOKEN = "0123456789abcdef"


ALLOW, ASK, DENY = (KindConsent(default=verdict) for verdict in Verdict)
RULES = tuple(Rule(pattern) for pattern in ("a", "b*"))


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("allow", Consent(ALLOW, ALLOW, ALLOW)),
        ("ask", Consent(ASK, ASK, ASK)),
        ("deny", Consent(DENY, DENY, DENY)),
        ("{}", Consent()),
        ("{tools: {}}", Consent()),
        ("{tools: deny}", Consent(tools=DENY)),
        ("{tools: 'ask', prompts: {allow: []}}", Consent(tools=ASK, prompts=KindConsent(()))),
        (
            "{resources: {allow: [a, 'b*'], ask: ['a/**'], deny: [c]}}",
            Consent(resources=KindConsent(RULES, (Rule("a/**"),), (Rule("c"),))),
        ),
        ("{resources: {allow: [{uri: a}, 'b*']}}", Consent(resources=KindConsent(RULES))),
        ("{tools: {allow: [{name: a}, 'b*'], default: ask}}", Consent(tools=KindConsent(RULES, default=Verdict.ASK))),
        ("{tools: {ask: [a, 'b*']}}", Consent(tools=KindConsent(ask=RULES))),
        ("{tools: {default: deny}}", Consent(tools=DENY)),
        ("{tools: {deny: ['*']}}", Consent(tools=KindConsent(deny=(Rule("*"),)))),
        ("{tools: {deny: [no, 1.10]}}", Consent(tools=KindConsent(deny=(Rule("no"), Rule("1.10"))))),
        ("{sampling: ask}", Consent(sampling=Verdict.ASK)),
        ("{elicitation: deny}", Consent(form=Verdict.DENY, url=DENY)),
        ("{elicitation: {form: allow}}", Consent(form=Verdict.ALLOW)),
        ("{elicitation: {url: ask}}", Consent(url=ASK)),
        ("{elicitation: {url: {allow: [a, {uri: 'b*'}]}}}", Consent(url=KindConsent(RULES))),
        ("{roots: allow}", Consent(roots=ALLOW)),
        ("{roots: {deny: [a, 'b*'], default: allow}}", Consent(roots=KindConsent(deny=RULES, default=Verdict.ALLOW))),
    ],
)
def test_consent(tmp_path: Path, written: str, made: Consent) -> None:
    """One word for all, one word for a kind, or lists; an empty allow list lets nothing through."""
    assert load_text(tmp_path, STDIO.format(f"consent: {written}")).servers["a"].consent == made


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "alow",
            "consent: expected allow, ask, deny, or a map of tools, resources, prompts, sampling, elicitation and",
        ),
        ("alow", 'found "alow"; did you mean allow?'),
        ("yes", 'found "yes"'),
        ("[allow]", "consent: expected a map, found a list"),
        ("{tool: allow}", 'consent.tool: unknown key; did you mean "tools"?'),
        ("{tools: denied}", 'found "denied"; did you mean deny?'),
        ("{tools: {alow: []}}", 'consent.tools.alow: unknown key; did you mean "allow"?'),
        ("{roots: {alow: []}}", 'consent.roots.alow: unknown key; did you mean "allow"?'),
        ("{elicitation: {forms: ask}}", 'consent.elicitation.forms: unknown key; did you mean "form"?'),
        ("{elicitation: {form: {allow: []}}}", "consent.elicitation.form: expected allow, ask or deny, found a map"),
        ("{elicitation: {url: {aks: []}}}", 'consent.elicitation.url.aks: unknown key; did you mean "ask"?'),
        ("{elicitation: always}", "consent.elicitation: expected allow, ask, deny, or a map of form and url"),
        ("{sampling: {allow: []}}", "consent.sampling: expected allow, ask or deny, found a map"),
        ("{sampling: asks}", 'consent.sampling: expected allow, ask or deny, found "asks"; did you mean ask?'),
        ("{tools: {default: none}}", 'consent.tools.default: expected allow, ask or deny, found "none"'),
        ("{tools: {allow: a}}", "consent.tools.allow: expected a list, found text"),
        ("{tools: {allow: ['']}}", "consent.tools.allow[0]: expected a pattern, found empty text"),
        ("{tools: {ask: [{name: ''}]}}", "consent.tools.ask[0].name: expected a pattern, found empty text"),
        ("{roots: {deny: ['']}}", "consent.roots.deny[0]: expected a pattern, found empty text"),
        ("{tools: {allow: [[a]]}}", "consent.tools.allow[0]: expected a pattern, or a map of name and when, found a l"),
        (
            "{resources: {allow: [[a]]}}",
            "consent.resources.allow[0]: expected a pattern, or a map of uri, found a list",
        ),
        ("{tools: {allow: [{when: {a: b}}]}}", 'consent.tools.allow[0].name: the key "name" is missing; it is the pat'),
        ("{tools: {allow: [{name: a, wen: {}}]}}", 'consent.tools.allow[0].wen: unknown key; did you mean "when"?'),
        ("{resources: {ask: [{name: a, uri: b}]}}", "consent.resources.ask[0].name: unknown key; known are uri"),
        (
            "{resources: {ask: [{uri: a, when: {b: c}}]}}",
            "consent.resources.ask[0].when: a URI is all there is to judge: it has no arguments that when c",
        ),
        ("{roots: {ask: [{uri: a, closed: true}]}}", "consent.roots.ask[0].closed: a URI is all there is to judge"),
        ("{elicitation: {url: {ask: [{uri: a, when: {b: c}}]}}}", "consent.elicitation.url.ask[0].when: a URI is all"),
        ("{tools: }", "consent.tools: expected allow, ask, deny, or a map of rules, found nothing"),
    ],
)
def test_wrong_consent(tmp_path: Path, written: str, said: str) -> None:
    """A rule that would silently do nothing is refused."""
    found = lines(tmp_path, STDIO.format(f"consent: {written}"))
    assert any(said in line for line in found), found


# Conditions on arguments.

TOOL = "servers: {{a: {{command: x, consent: {{tools: {{allow: [{{name: t, {}}}]}}}}}}}}"


def rule(folder: Path, written: str) -> Rule:
    made = load_text(folder, TOOL.format(written)).servers["a"].consent.tools
    assert made.allow is not None
    return made.allow[0]


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("owner: acme", [Condition("/owner", (Check("eq", "acme"),))]),
        ("owner: {eq: acme}", [Condition("/owner", (Check("eq", "acme"),))]),
        ("owner: [acme, 1]", [Condition("/owner", (Check("in", ("acme", 1)),))]),
        ("owner: {in: [acme]}", [Condition("/owner", (Check("in", ("acme",)),))]),
        ("/user/name: a", [Condition("/user/name", (Check("eq", "a"),))]),
        ("user/name: a", [Condition("/user~1name", (Check("eq", "a"),))]),
        ("a~b: a", [Condition("/a~0b", (Check("eq", "a"),))]),
        ("/a~0b: a", [Condition("/a~0b", (Check("eq", "a"),))]),
        ("/: a", [Condition("/", (Check("eq", "a"),))]),
        ("b: x, a: y", [Condition("/a", (Check("eq", "y"),)), Condition("/b", (Check("eq", "x"),))]),
        (
            "a: {suffix: .md, max_len: 40, prefix: draft-}",
            [Condition("/a", (Check("prefix", "draft-"), Check("suffix", ".md"), Check("max_len", 40)))],
        ),
    ],
)
def test_when(tmp_path: Path, written: str, made: list[Condition]) -> None:
    """By name or by pointer; a value by itself is eq, a list is in; the order in the file means nothing."""
    assert rule(tmp_path, f"when: {{{written}}}") == Rule("t", tuple(made))


@pytest.mark.parametrize(("written", "closed"), [("", False), (", closed: false", False), (", closed: true", True)])
def test_closed(tmp_path: Path, written: str, closed: bool) -> None:
    """It stands beside when."""
    assert rule(tmp_path, f"when: {{a: b}}{written}") == Rule("t", (Condition("/a", (Check("eq", "b"),)),), closed)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "when: {}",
            "allow[0].when: expected a map of arguments, found an empty map; take it away, or name an argument",
        ),
        ("when: a", "allow[0].when: expected a map, found text"),
        ("when: [a]", "allow[0].when: expected a map, found a list"),
        ("when: {a: {}}", "allow[0].when.a: expected at least one check, found an empty map"),
        ("when: {a: {prefx: b}}", 'allow[0].when.a.prefx: unknown key; did you mean "prefix"?'),
        ("when: {a: {_in: [b]}}", 'allow[0].when.a._in: unknown key; did you mean "in"?'),
        ("when: {a: {in_: [b]}}", 'allow[0].when.a.in_: unknown key; did you mean "in"?'),
        ("when: {a: {regex: b}}", "allow[0].when.a.regex: unknown key; "),
        ("when: {a: {absent: true, type: string}}", "allow[0].when.a: what is absent can be nothing else"),
        ("when: {'': b}", "allow[0].when.: expected the name of an argument, or a JSON pointer"),
        ("when: {'${env:A}': b}", "expected the name of an argument, or a JSON pointer"),
        ("when: {/a~b: b}", "allow[0].when./a~b: in a JSON pointer ~ is written ~0"),
        ("when: {a: 1, /a: 2}", 'allow[0].when: "a" and "/a" are the same argument; keep one'),
        ("closed: true", "allow[0].closed: closed is about arguments that when does not name"),
    ],
)
def test_wrong_when(tmp_path: Path, written: str, said: str) -> None:
    """What would test nothing, or something else than it says."""
    found = lines(tmp_path, TOOL.format(written))
    assert len(found) == 1
    assert said in found[0]


def test_a_wrong_when_is_the_only_problem_of_a_closed_rule(tmp_path: Path) -> None:
    found = lines(tmp_path, TOOL.format("when: {a: {eqq: 1}}, closed: true"))
    assert ["when.a.eqq: unknown key" in line for line in found] == [True]


# Limits.


def test_limits(tmp_path: Path) -> None:
    """Each is none unless the file says it."""
    written = (
        "{calls: 60/min, concurrent: 8, result: 1MiB, sampling: 20/h, sampling_tokens: 100000/day, message: 64MiB}"
    )
    made = load_text(tmp_path, f"servers: {{a: {{command: x, limits: {written}}}, b: {{command: x, limits: {{}}}}}}")
    assert made.servers["a"].limits == Limits(
        Rate(60, 60.0), 8, 1048576, Rate(20, 3600.0), Rate(100_000, 86400.0), 64 * 1048576
    )
    assert made.servers["b"].limits == Limits()
    assert 'limits.call: unknown key; did you mean "calls"?' in lines(tmp_path, STDIO.format("limits: {call: 1/s}"))[0]
    assert "limits: expected a map, found text" in lines(tmp_path, STDIO.format("limits: 1/s"))[0]


# Who answers, the console, the audit.

TOP = "servers: {{a: {{command: x}}}}\n{}"


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("", AskSpec()),
        ("ask: {}", AskSpec((Channel.CONSOLE, Channel.TERMINAL), 50.0)),
        ("ask: {answers: [client], timeout: 1s}", AskSpec((Channel.CLIENT,), 1.0)),
        ("ask: {answers: [client, console], timeout: 1h}", AskSpec((Channel.CLIENT, Channel.CONSOLE), 3600.0)),
    ],
)
def test_ask(tmp_path: Path, written: str, made: AskSpec) -> None:
    assert load_text(tmp_path, TOP.format(written)).ask == made


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{answers: []}", "ask.answers: nobody could answer; name at least one of console, terminal, client"),
        ("{answers: [client, client]}", "ask.answers: one of them stands twice; keep one"),
        ("{answers: console}", "ask.answers: expected a list, found text"),
        ("{answers: [consol]}", "ask.answers[0]: expected console, terminal or client, found"),
        ("{timeout: 0s}", "ask.timeout: expected a duration from 1s to 1h"),
        ("{timeout: 61m}", "ask.timeout: expected a duration from 1s to 1h"),
        ("{answer: [client]}", 'ask.answer: unknown key; did you mean "answers"?'),
        ("console", "ask: expected a map, found text"),
    ],
)
def test_wrong_ask(tmp_path: Path, written: str, said: str) -> None:
    found = lines(tmp_path, TOP.format(f"ask: {written}"))
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("", ConsoleSpec()),
        ("console: on", ConsoleSpec()),
        ("console: true", ConsoleSpec()),
        ("console: {}", ConsoleSpec()),
        ("console: off", None),
        ("console: 'off'", None),
        ("console: false", None),
        ("console: {address: 'localhost:0'}", ConsoleSpec(("127.0.0.1", 0))),
        ("console: {address: '[::1]:9000'}", ConsoleSpec(("::1", 9000))),
    ],
)
def test_console(tmp_path: Path, written: str, made: ConsoleSpec | None) -> None:
    """On, off, or somewhere on this machine."""
    assert load_text(tmp_path, TOP.format(written)).console == made


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("offf", 'console: expected on, off, or a map with an address, found "offf"; did you mean off?'),
        ("", "console: expected on, off, or a map with an address, found nothing"),
        ("[off]", "console: expected a map, found a list"),
        ("{adress: '127.0.0.1:1'}", 'console.adress: unknown key; did you mean "address"?'),
        ("{address: '127.0.0.1'}", "console.address: expected an address such as 127.0.0.1:8808"),
        ("{address: '0.0.0.0:1'}", "console.address: at the console one approves what runs, so it is for this machine"),
        ("{address: '10.1.2.3:1'}", "expected a loopback address such as 127.0.0.1:0"),
    ],
)
def test_wrong_consoles(tmp_path: Path, written: str, said: str) -> None:
    """No other machine reaches it, not even with tokens."""
    tokens = f"listen: {{auth: {{tokens: {{a: '${{env:T}}'}}}}}}\nconsole: {written}"
    found = lines(tmp_path, TOP.format(tokens), {"T": TOKEN})
    assert len(found) == 1
    assert said in found[0]


def test_nobody_answers_at_a_console_that_is_off(tmp_path: Path) -> None:
    """Whoever names it means it to be there; by default it is simply not."""
    found = lines(tmp_path, TOP.format("ask: {answers: [terminal, console]}\nconsole: off"))
    assert found == ["2:27: ask.answers[1]: the console is off, so nobody can answer there; take it from the list"]
    assert load_text(tmp_path, TOP.format("console: off")).console is None


def test_audit(tmp_path: Path) -> None:
    """What calls were given is not kept unless the file says so."""
    written = ("", "audit: {}", "audit: {arguments: digest}", "audit: {arguments: full}")
    made = [load_text(tmp_path, TOP.format(said)).audit_arguments for said in written]
    assert made == [False, False, False, True]
    found = lines(tmp_path, TOP.format("audit: {arguments: all}"))
    assert found == ['2:20: audit.arguments: expected digest or full, found "all"']
    assert 'did you mean "arguments"?' in lines(tmp_path, TOP.format("audit: {argument: full}"))[0]


# Trust, isolation and protocol.


@pytest.mark.parametrize("server", ["command: x", "url: 'http://h/'"])
def test_a_server_says_whom_it_trusts_and_who_shares_it(tmp_path: Path, server: str) -> None:
    """Both kinds of server take all four, and the defaults are the same for both."""
    own = "trust: trusted, isolation: per-call, max_instances: 3, idle_timeout: 2h"
    made = load_text(tmp_path, f"servers: {{a: {{{server}}}, b: {{{server}, {own}}}}}").servers
    assert [(s.trust, s.isolation, s.max_instances, s.idle_timeout) for s in made.values()] == [
        (Trust.STANDARD, Isolation.SHARED, 16, 300.0),
        (Trust.TRUSTED, Isolation.PER_CALL, 3, 7200.0),
    ]


@pytest.mark.parametrize("server", ["command: x", "url: 'http://h/'"])
def test_a_server_says_how_to_begin_with_it(tmp_path: Path, server: str) -> None:
    """Both kinds of server, and by default it is found out."""
    made = load_text(tmp_path, f"servers: {{a: {{{server}}}, b: {{{server}, protocol: legacy}}}}").servers
    assert [s.protocol for s in made.values()] == [Protocol.AUTO, Protocol.LEGACY]


@pytest.mark.parametrize("isolation", ["", "isolation: shared, "])
@pytest.mark.parametrize("key", ["max_instances: 4", "idle_timeout: 5m"])
def test_a_shared_server_has_no_instances_to_count_or_stop(tmp_path: Path, isolation: str, key: str) -> None:
    """A key that would do nothing is refused, with what to write instead."""
    found = lines(tmp_path, STDIO.format(isolation + key))
    assert len(found) == 1
    name = key.partition(":")[0]
    assert f"servers.a.{name}: {name}" in found[0]
    assert found[0].endswith(
        "dedicated instances, and a shared server has none; write isolation: per-client or per-call"
    )


def test_a_misspelt_isolation_is_not_taken_for_none(tmp_path: Path) -> None:
    """What only follows from a mistake is not said beside it."""
    found = lines(tmp_path, STDIO.format("isolation: per-clint, max_instances: 4"))
    assert len(found) == 1
    assert found[0].endswith('found "per-clint"; did you mean per-client?')


# Tokens.


def test_tokens(tmp_path: Path) -> None:
    """By name, from outside or from the file, without the line break that ends a file."""
    (tmp_path / "desk.token").write_text(f"{TOKEN}-desk\n")
    tokens = f"{{laptop: '${{env:T}}', desk: '${{file:desk.token}}', a.b_c@D-1: {TOKEN}-own}}"
    made = load_text(tmp_path, LISTEN.format(f"auth: {{tokens: {tokens}}}"), {"T": TOKEN})
    assert {name: token.reveal() for name, token in made.listen.tokens.items()} == {
        "laptop": TOKEN,
        "desk": f"{TOKEN}-desk",
        "a.b_c@D-1": f"{TOKEN}-own",
    }
    assert TOKEN not in repr(made.listen) + str(made.listen) + repr(made)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{tokens: {}}", "listen.auth.tokens: there is no token, so nobody could come in; name one, for instance"),
        ("{}", 'listen.auth.tokens: the key "tokens" is missing; it names who may come in'),
        ("", "listen.auth: expected a map, found nothing"),
        ("secret", "listen.auth: expected a map, found text"),
        (f"{{tokens: [{TOKEN}]}}", "listen.auth.tokens: expected a map, found a list"),
        (f"{{tokens: {TOKEN}}}", "listen.auth.tokens: expected a map, found text"),
        (f"{{tokens: {{a b: {TOKEN}}}}}", "listen.auth.tokens: a token's name is 1 to 64 letters"),
        (f"{{tokens: {{'': {TOKEN}}}}}", "listen.auth.tokens: a token's name is 1 to 64 letters"),
        (f"{{tokens: {{{'a' * 65}: {TOKEN}}}}}", "listen.auth.tokens: a token's name is 1 to 64 letters"),
        ("{tokens: {a: short}}", "listen.auth.tokens.a: a token has 16 to 4096 characters; `openssl"),
        ("{tokens: {a: '${env:NONE}'}}", "listen.auth.tokens.a: the environment variable NONE is not set"),
        (f"{{tokens: {{a: {TOKEN}, b: '${{env:T}}'}}}}", 'listen.auth.tokens: "a" and "b" have the same token'),
    ],
)
def test_wrong_tokens(tmp_path: Path, written: str, said: str) -> None:
    """Each in its place and its words, and never with the token."""
    text = f"servers: {{a: {{command: x}}}}\nlisten:\n  auth: {written}\n"
    found = lines(tmp_path, text, {"T": TOKEN})
    assert len(found) == 1
    assert said in found[0]
    assert TOKEN not in found[0]


def test_a_misspelt_tokens(tmp_path: Path) -> None:
    """What is missing is said, and which key it may be."""
    assert [line.partition(": ")[2] for line in lines(tmp_path, LISTEN.format("auth: {token: {}}"))] == [
        'listen.auth.tokens: the key "tokens" is missing; it names who may come in',
        'listen.auth.token: unknown key; did you mean "tokens"?',
    ]


def test_a_token_in_the_place_of_a_name_is_not_repeated(tmp_path: Path) -> None:
    """Whoever writes the two the wrong way round does not find the token in a log."""
    found = lines(tmp_path, LISTEN.format(f"auth: {{tokens: {{{TOKEN}: laptop}}}}"))
    assert len(found) == 1
    assert "listen.auth.tokens: a token has 16 to 4096 characters" in found[0]
    assert TOKEN not in found[0]


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.168.1.2:1", "[2001:db8::1]:1"])
def test_an_address_beyond_loopback_needs_tokens(tmp_path: Path, address: str) -> None:
    """In whichever order the two stand; without tokens the sentence says how to name one."""
    auth = f"auth: {{tokens: {{a: {TOKEN}}}}}"
    for both in (f'{auth}, address: "{address}"', f'address: "{address}", {auth}'):
        listen = load_text(tmp_path, LISTEN.format(both)).listen
        assert listen.host == address.removesuffix(":1").strip("[]")
    found = lines(tmp_path, LISTEN.format(f'address: "{address}"'))
    assert len(found) == 1
    assert "listen.address: an address beyond loopback is open to other machines, so it needs access tokens" in found[0]
    assert 'listen.auth.tokens; name one, for instance auth: {tokens: {laptop: "${env:LAPTOP_TOKEN}"}}' in found[0]


def test_a_wrong_token_is_the_only_problem_of_an_address_beyond_loopback(tmp_path: Path) -> None:
    """The address would be fine with it."""
    found = lines(tmp_path, LISTEN.format('address: "0.0.0.0:1", auth: {tokens: {a: short}}'))
    assert ["listen.auth.tokens.a" in line for line in found] == [True]


def test_the_older_transport_can_be_switched_off(tmp_path: Path) -> None:
    """It is served unless the file says otherwise."""
    made = [load_text(tmp_path, LISTEN.format(said)).listen.sse for said in ("", "sse: true", "sse: false")]
    assert made == [True, True, False]


# The schema.


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(config.schema())


EVERY_RULE = """\
ask: {answers: [console, terminal, client], timeout: 5m}
console: {address: "127.0.0.1:0"}
audit: {arguments: full}
servers:
  a:
    command: x
    limits: {calls: 100/5min, concurrent: 8, result: 64KiB, sampling: 20/h, sampling_tokens: 100000/day}
    consent:
      tools:
        allow:
          - plain
          - name: "*"
            when:
              a: text
              b: 1
              c: true
              d: null
              e: [x, 1.5, "1", false, null]
              /f/g: {eq: -1, in: [1], prefix: "1", suffix: a, glob: "a*", range: [null, 1.5], max_len: 0}
              h: {type: null, path_under: /srv, host_in: a.example}
              i: {type: array, path_under: [/srv, /tmp], host_in: ["::1", 127.0.0.1]}
              j: {absent: true}
              k: {prefix: "${env:S}"}
            closed: true
        ask: [{name: "plain?"}]
        deny: ["plain??"]
        default: ask
      resources: {allow: ["a://**"], ask: [{uri: "b://**"}]}
      prompts: ask
      sampling: deny
      elicitation: {form: ask, url: {allow: ["https://a.example/**"]}}
      roots: {deny: ["file:///etc/**"]}
  b: {command: x, consent: ask}
  c: {command: x, consent: {elicitation: allow, roots: deny}}
"""


def documented() -> list[str]:
    """The YAML files that the documentation shows."""
    return re.findall(r"```yaml\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)


def test_schema_is_a_schema() -> None:
    """It passes the metaschema, and every call gives a dictionary of its own."""
    jsonschema.Draft202012Validator.check_schema(config.schema())
    config.schema().clear()
    assert config.schema()["required"] == ["servers"]


def maps_of(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from maps_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from maps_of(value)


def test_schema_describes_and_closes_everything() -> None:
    """Every key has a description, no map takes unknown keys, and nothing of Python shows."""
    made = config.schema()
    forms = [made, *made["$defs"].values()]
    objects = [node for form in forms for node in (form, *form.get("anyOf", [])) if "properties" in node]
    assert len(objects) == 15
    for node in objects:
        assert node["additionalProperties"] is False
        for name, key in node["properties"].items():
            assert "description" in key, name
    assert not [node for node in maps_of(made) if node.get("type") == "null" or node.get("default", "") is None]


def test_schema_takes_what_the_loader_takes(tmp_path: Path) -> None:
    """Example files, those of the documentation among them."""
    (tmp_path / "key").write_text("k")
    (tmp_path / "ci.token").write_text(f"{TOKEN}-ci\n")
    files = [WHOLE, EVERYWHERE, EVERY_RULE, TOP.format("console: off"), *documented()]
    assert len(files) > 5
    for text in files:
        load_text(tmp_path, text, dict.fromkeys(("TOKEN", "S", "HOME", "GITHUB_TOKEN"), "w") | {"LAPTOP_TOKEN": TOKEN})
        assert [error.message for error in validator().iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "servers: {}",
        "servers: {A: {command: x}}",
        "servers: {abcdefghijklmnopqrstu: {command: x}}",
        "servers: {a: {}}",
        "servers: {a: {command: x, url: 'http://h/'}}",
        "servers: {a: {command: x, headers: {}}}",
        "servers: {a: {url: 'http://h/', env: {}}}",
        "servers: {a: {url: 'ftp://h/'}}",
        "servers: {a: {command: [x], args: []}}",
        "servers: {a: {command: []}}",
        "servers: {a: {command: x, timeout: 60}}",
        "servers: {a: {command: x, timeout: 60x}}",
        "servers: {a: {command: x, disabled: 'true'}}",
        "servers: {a: {command: x, consent: maybe}}",
        "servers: {a: {command: x, consent: {tools: {alow: []}}}}",
        "servers: {a: {command: x, consent: {tools: {allow: ['']}}}}",
        "servers: {a: {command: x, consent: {tools: {default: maybe}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{when: {a: b}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, closed: true}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: []}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {prefx: c}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {prefix: ''}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {range: [1]}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {range: ['1', 2]}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {max_len: -1}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {type: text}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {absent: false}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {absent: true, type: null}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {path_under: []}}}]}}}}",
        "servers: {a: {command: x, consent: {resources: {ask: [{uri: a, when: {b: c}}]}}}}",
        "servers: {a: {command: x, consent: {sampling: {allow: []}}}}",
        "servers: {a: {command: x, consent: {elicitation: {form: {allow: []}}}}}",
        "servers: {a: {command: x, limits: {calls: 60}}}",
        "servers: {a: {command: x, limits: {calls: 60/week}}}",
        "servers: {a: {command: x, limits: {concurrent: 0}}}",
        "servers: {a: {command: x, limits: {result: 1024}}}",
        "servers: {a: {command: x}}\nask: {answers: []}",
        "servers: {a: {command: x}}\nask: {answers: [client, client]}",
        "servers: {a: {command: x}}\nask: {answers: [phone]}",
        "servers: {a: {command: x}}\nask: {timeout: 50}",
        "servers: {a: {command: x}}\nconsole: maybe",
        "servers: {a: {command: x}}\nconsole: {address: here}",
        "servers: {a: {command: x}}\naudit: {arguments: none}",
        "servers: {a: {command: x}}\nlisten: {path: mcp}",
        "servers: {a: {command: x}}\nlisten: {address: here}",
        "servers: {a: {command: x}}\nlisten: {auth: {}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {}}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {a: short}}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {a b: 0123456789abcdef}}}",
        "servers: {a: {command: x}}\nlisten: {sse: 1}",
        "servers: {a: {command: x, trust: none}}",
        "servers: {a: {command: x, protocol: 2026-07-28}}",
        "servers: {a: {command: x, isolation: per_client}}",
        "servers: {a: {command: x, max_instances: 4}}",
        "servers: {a: {url: 'http://h/', isolation: shared, idle_timeout: 5m}}",
        "servers: {a: {command: x, isolation: per-call, max_instances: 0}}",
        "servers: {a: {command: x, isolation: per-call, max_instances: 1001}}",
        "servers: {a: {command: x, isolation: per-call, max_instances: '4'}}",
        "servers: {a: {command: x}}\nother: 1",
    ],
)
def test_schema_refuses_what_the_loader_refuses(tmp_path: Path, text: str) -> None:
    """An editor underlines what a start would refuse."""
    assert lines(tmp_path, text)
    assert list(validator().iter_errors(yaml.safe_load(text)))


def test_every_key_is_documented() -> None:
    """The reference names each key of the form."""
    page = DOCS.read_text("utf-8")
    made = config.schema()
    keys = {key for node in maps_of(made) for key in node.get("properties", {})}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
