"""The keys of the file, and the frozen objects that they become: what is read, what is refused, and what may be built
without a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config import (
    Address,
    AskSpec,
    AuditDetail,
    AuditPlace,
    Auth,
    Channel,
    Check,
    Condition,
    ConfigError,
    Consent,
    ConsoleSpec,
    Elicitation,
    HistoryDetail,
    HistorySpec,
    HttpServer,
    Isolation,
    KindConsent,
    Limits,
    Listen,
    MetricsSpec,
    Notice,
    OAuth,
    OAuthGrant,
    Pkce,
    PromptConsent,
    Protocol,
    Rate,
    Rule,
    Secret,
    StdioServer,
    Tls,
    ToolClaim,
    TracesSpec,
    Trust,
    UriConsent,
    UriRule,
    Verdict,
    is_loopback,
    load,
)
from config.model import DEFAULT_ADDRESS
from config.references import GivenAddress
from tests.config.kit import lines, load_text, stdio

LISTEN = "servers: {{a: {{command: x}}}}\nlisten: {{{}}}"
STDIO = "servers: {{a: {{command: x, {}}}}}"
TOKEN = "0123456789abcdef"


ALLOW, ASK, DENY = (KindConsent(default=verdict) for verdict in Verdict)
ALLOW_PROMPTS, ASK_PROMPTS, DENY_PROMPTS = (PromptConsent(default=verdict) for verdict in Verdict)
ALLOW_URIS, ASK_URIS, DENY_URIS = (UriConsent(default=verdict) for verdict in Verdict)
READERS = KindConsent((Rule("*", claims=(ToolClaim.READ_ONLY,)),), default=Verdict.ASK)
RULES = tuple(Rule(pattern) for pattern in ("a", "b*"))
URI_RULES = tuple(UriRule(pattern) for pattern in ("a", "b*"))


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("allow", Consent(ALLOW, ALLOW_URIS, ALLOW_PROMPTS)),
        ("ask", Consent(ASK, ASK_URIS, ASK_PROMPTS)),
        ("deny", Consent(DENY, DENY_URIS, DENY_PROMPTS)),
        ("{}", Consent()),
        ("{tools: {}}", Consent()),
        ("{tools: deny}", Consent(tools=DENY)),
        ("{tools: 'ask', prompts: {allow: []}}", Consent(tools=ASK, prompts=PromptConsent(()))),
        (
            "{resources: {allow: [a, 'b*'], ask: ['a/**'], deny: [c]}}",
            Consent(resources=UriConsent(URI_RULES, (UriRule("a/**"),), (UriRule("c"),))),
        ),
        ("{resources: {allow: [{uri: a}, 'b*']}}", Consent(resources=UriConsent(URI_RULES))),
        ("{tools: {allow: [{name: a}, 'b*'], default: ask}}", Consent(tools=KindConsent(RULES, default=Verdict.ASK))),
        ("{tools: {ask: [a, 'b*']}}", Consent(tools=KindConsent(ask=RULES))),
        ("{tools: {default: deny}}", Consent(tools=DENY)),
        ("{tools: {deny: ['*']}}", Consent(tools=KindConsent(deny=(Rule("*"),)))),
        ("{tools: {deny: [no, 1.10]}}", Consent(tools=KindConsent(deny=(Rule("no"), Rule("1.10"))))),
        (
            "{tools: {ask: [{name: a, claims: [open-world, destructive]}, {name: a, claims: destructive}]}}",
            Consent(
                tools=KindConsent(
                    ask=(
                        Rule("a", claims=(ToolClaim.DESTRUCTIVE, ToolClaim.OPEN_WORLD)),
                        Rule("a", claims=(ToolClaim.DESTRUCTIVE,)),
                    )
                )
            ),
        ),
        ("read-only", Consent(READERS, ALLOW_URIS, ALLOW_PROMPTS)),
        ("careful", Consent(ASK, ALLOW_URIS, ALLOW_PROMPTS)),
        (
            "closed",
            Consent(DENY, DENY_URIS, DENY_PROMPTS, Verdict.DENY, Elicitation(Verdict.DENY, DENY_URIS), DENY_URIS),
        ),
        ("{sampling: ask}", Consent(sampling=Verdict.ASK)),
        ("{elicitation: deny}", Consent(elicitation=Elicitation(form=Verdict.DENY, url=DENY_URIS))),
        ("{elicitation: {form: allow}}", Consent(elicitation=Elicitation(form=Verdict.ALLOW))),
        ("{elicitation: {url: ask}}", Consent(elicitation=Elicitation(url=ASK_URIS))),
        (
            "{elicitation: {url: {allow: [a, {uri: 'b*'}]}}}",
            Consent(elicitation=Elicitation(url=UriConsent(URI_RULES))),
        ),
        ("{roots: allow}", Consent(roots=ALLOW_URIS)),
        (
            "{roots: {deny: [a, 'b*'], default: allow}}",
            Consent(roots=UriConsent(deny=URI_RULES, default=Verdict.ALLOW)),
        ),
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
            "consent: expected allow, ask, deny, read-only, careful, closed, or a map of tools, resources, prompts, sa",
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
        ("{tools: {allow: a}}", "consent.tools.allow: expected a list such as [one, two], found text"),
        ("{tools: {allow: ['']}}", "consent.tools.allow[0]: expected a pattern, found empty text"),
        ("{tools: {ask: [{name: ''}]}}", "consent.tools.ask[0].name: expected a pattern, found empty text"),
        ("{roots: {deny: ['']}}", "consent.roots.deny[0]: expected a pattern, found empty text"),
        ("{tools: {allow: [[a]]}}", "consent.tools.allow[0]: expected a pattern, or a map of name, when and claims"),
        (
            "{resources: {allow: [[a]]}}",
            "consent.resources.allow[0]: expected a pattern, or a map of uri, found a list",
        ),
        ("{tools: {allow: [{when: {a: b}}]}}", 'consent.tools.allow[0].name: the key "name" is missing; it is the pat'),
        ("{tools: {allow: [{name: a, wen: {}}]}}", 'consent.tools.allow[0].wen: unknown key; did you mean "when"?'),
        ("{resources: {ask: [{name: a, uri: b}]}}", "consent.resources.ask[0].name: unknown key; known keys: uri"),
        (
            "{resources: {ask: [{uri: a, when: {b: c}}]}}",
            "consent.resources.ask[0].when: a URI has no arguments, so when has no meaning here; remove it",
        ),
        (
            "{roots: {ask: [{uri: a, closed: true}]}}",
            "consent.roots.ask[0].closed: a URI has no arguments, so closed has no meaning here",
        ),
        ("{elicitation: {url: {ask: [{uri: a, when: {b: c}}]}}}", "consent.elicitation.url.ask[0].when: a URI has"),
        ("{tools: {allow: [{name: a, claims: readonly}]}}", "claims: expected read-only, destructive, closed-world"),
        ("{tools: {allow: [{name: a, claims: readonly}]}}", 'found "readonly"; did you mean read-only?'),
        (
            "{tools: {allow: [{name: a, claims: []}]}}",
            "claims: expected at least one claim, found an empty list; known",
        ),
        ("{tools: {allow: [{name: a, claims: [read-only, read-only]}]}}", "claims: a claim is in the list twice"),
        ("{tools: {ask: [{name: a, claims: [read-only, destructive]}]}}", "no tool is both read-only and destructive"),
        (
            "{prompts: {deny: [{name: a, claims: destructive}]}}",
            "consent.prompts.deny[0].claims: only tools claim something about themselves, so claims has no meaning",
        ),
        (
            "{roots: {deny: [{uri: a, claims: destructive}]}}",
            "consent.roots.deny[0].claims: only tools claim something",
        ),
        ("{tools: read-only}", 'consent.tools: expected allow, ask, deny, or a map of rules, found "read-only"'),
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
    """The key stands beside when."""
    assert rule(tmp_path, f"when: {{a: b}}{written}") == Rule("t", (Condition("/a", (Check("eq", "b"),)),), closed)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "when: {}",
            "allow[0].when: expected a map of arguments, found an empty map; remove it, or name an argument",
        ),
        ("when: a", "allow[0].when: expected a map such as {name: value}, found text"),
        ("when: [a]", "allow[0].when: expected a map such as {name: value}, found a list"),
        ("when: {a: {}}", "allow[0].when.a: expected at least one check, found an empty map"),
        ("when: {a: {prefx: b}}", 'allow[0].when.a.prefx: unknown key; did you mean "prefix"?'),
        ("when: {a: {_in: [b]}}", 'allow[0].when.a._in: unknown key; did you mean "in"?'),
        ("when: {a: {in_: [b]}}", 'allow[0].when.a.in_: unknown key; did you mean "in"?'),
        ("when: {a: {regex: b}}", "allow[0].when.a.regex: unknown key; "),
        ("when: {a: {min: 1}}", 'allow[0].when.a.min: unknown key; did you mean "range"?'),
        ("when: {a: {max: 1}}", 'allow[0].when.a.max: unknown key; did you mean "range"?'),
        ("when: {a: {absent: true, type: string}}", "allow[0].when.a: an absent argument has no value to check"),
        ("when: {'': b}", "allow[0].when.: expected the name of an argument, or a JSON pointer"),
        ("when: {'${env:A}': b}", "expected the name of an argument, or a JSON pointer"),
        ("when: {/a~b: b}", "allow[0].when./a~b: in a JSON pointer ~ is written ~0"),
        ("when: {a: 1, /a: 2}", 'allow[0].when: "a" and "/a" are the same argument; remove one'),
        ("closed: true", "allow[0].closed: closed refuses arguments that when does not name"),
    ],
)
def test_wrong_when(tmp_path: Path, written: str, said: str) -> None:
    """Conditions that would test nothing, or something else than they say."""
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
        ("ask: {notify: []}", AskSpec(notify=())),
        ("ask: {notify: [desktop, desktop]}", AskSpec(notify=(Notice(),))),
        ("ask: {notify: [browser]}", AskSpec(notify=(Notice(opens_page=True),))),
        ("ask: {notify: [desktop, browser]}", AskSpec(notify=(Notice(opens_page=True),))),
    ],
)
def test_ask(tmp_path: Path, written: str, made: AskSpec) -> None:
    assert load_text(tmp_path, TOP.format(written)).ask == made


def test_who_is_told_may_be_a_program_or_a_webhook(tmp_path: Path) -> None:
    ask = "ask: {notify: [{command: [./tell, 1]}, {webhook: 'https://h/hook?key=k', headers: {X-Key: k}}]}"
    command, webhook = load_text(tmp_path, TOP.format(ask)).ask.notify
    assert command.command is not None
    assert webhook.webhook is not None
    assert ([word.reveal() for word in command.command], command.folder) == (["./tell", "1"], tmp_path)
    assert (webhook.webhook.reveal(), webhook.headers["X-Key"].reveal()) == ("https://h/hook?key=k", "k")
    assert "key=k" not in repr(webhook)
    assert not command.is_desktop
    assert not webhook.is_desktop


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{answers: []}", "ask.answers: nobody could confirm; name at least one of console, terminal, client"),
        ("{answers: [client, client]}", "ask.answers: a name is in the list twice; remove one"),
        ("{answers: console}", "ask.answers: expected a list such as [one, two], found text"),
        ("{answers: [consol]}", "ask.answers[0]: expected console, terminal or client, found"),
        ("{timeout: 0s}", "ask.timeout: expected a duration from 1s to 1h"),
        ("{timeout: 61m}", "ask.timeout: expected a duration from 1s to 1h"),
        ("{answer: [client]}", 'ask.answer: unknown key; did you mean "answers"?'),
        ("console", "ask: expected a map, found text"),
        ("{notify: desktop}", "ask.notify: expected a list such as [one, two], found text"),
        (
            "{notify: [phone]}",
            "ask.notify[0]: expected desktop, browser, or a map with either command or webhook, found",
        ),
        (
            "{notify: [{}]}",
            "ask.notify[0]: expected desktop, browser, or a map with either command or webhook, found a map",
        ),
        (
            "{notify: [{command: [a], webhook: 'https://h'}]}",
            "ask.notify[0]: expected desktop, browser, or a map with either",
        ),
        (
            "{notify: [{command: []}]}",
            "ask.notify[0].command: expected a list of a program and its arguments, found an",
        ),
        ("{notify: [{command: tell}]}", "ask.notify[0].command: expected a list such as [one, two], found text"),
        ("{notify: [{command: [a], headers: {A: b}}]}", "ask.notify[0].headers: headers are sent to a webhook"),
        ("{notify: [{webhook: 'ftp://h'}]}", "ask.notify[0].webhook: expected a URL such as"),
        (
            "{notify: [{webhook: 'https://h', header: {}}]}",
            'ask.notify[0].header: unknown key; did you mean "headers"?',
        ),
        ("{answers: [client], notify: [desktop]}", "ask.notify: whoever is told could not answer; add console or"),
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
        ("console: {address: 'localhost:0'}", ConsoleSpec(Address("127.0.0.1", 0))),
        ("console: {address: '[::1]:9000'}", ConsoleSpec(Address("::1", 9000))),
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
        (
            "{address: '0.0.0.0:1'}",
            "console.address: the console can approve programs, so only this machine may reach it",
        ),
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
    """An answer that names the console needs it; the default answers do not."""
    found = lines(tmp_path, TOP.format("ask: {answers: [terminal, console]}\nconsole: off"))
    assert found == ["2:27: ask.answers[1]: the console is off, so nobody can confirm there; remove it from the list"]
    for ask in ("", "ask: {}\n", "ask: {timeout: 5m}\n", "ask: {answers: [client]}\n"):
        assert load_text(tmp_path, TOP.format(f"{ask}console: off")).console is None


def test_audit(tmp_path: Path) -> None:
    """Arguments of calls are not kept in full unless the file says so."""
    written = ("", "audit: {}", "audit: {arguments: digest}", "audit: {arguments: full}")
    made = [load_text(tmp_path, TOP.format(said)).audit.arguments for said in written]
    assert made == [AuditDetail.DIGEST, AuditDetail.DIGEST, AuditDetail.DIGEST, AuditDetail.FULL]


def test_history(tmp_path: Path) -> None:
    written = ("", "history: {}", "history: {keep: 7d, max: 64MiB}", "history: {arguments: redacted}")
    made = [load_text(tmp_path, TOP.format(said)).history for said in written]
    week, redacted = HistorySpec(7 * 86400.0, 64 * 1024**2), HistorySpec(arguments=HistoryDetail.REDACTED)
    assert made == [None, HistorySpec(30 * 86400.0, 1024**3), week, redacted]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("history: {keep: 59m}", "history.keep: expected a duration from 1h to 3650d"),
        ("history: {max: 15MiB}", "history.max: expected a size from 16MiB to 1024GiB"),
        ("history: {arguments: all}", 'history.arguments: expected redacted or full, found "all"'),
        ("history: {argument: full}", 'history.argument: unknown key; did you mean "arguments"?'),
        ("history: on", "history: expected a map, found text; known keys: keep, max, arguments"),
        (
            "audit: {to: stdout}\nhistory: {}",
            "history: with audit.to: stdout there is no history, since it is made of the audit's files; remove it",
        ),
    ],
)
def test_wrong_histories(tmp_path: Path, written: str, said: str) -> None:
    (found,) = lines(tmp_path, TOP.format(written))
    assert said in found


def test_the_audit_goes_to_files_or_to_standard_output(tmp_path: Path) -> None:
    """How long lines are kept there is said where they are collected."""
    written = ("", "audit: {to: files, keep: 1h}", "audit: {to: stdout, arguments: full}")
    made = [load_text(tmp_path, TOP.format(said)).audit.to for said in written]
    assert made == [AuditPlace.FILES, AuditPlace.FILES, AuditPlace.STDOUT]
    assert lines(tmp_path, TOP.format("audit: {to: stdin}")) == [
        '2:13: audit.to: expected files or stdout, found "stdin"'
    ]
    why = "lines on standard output are kept as long as whoever collects them says"
    assert lines(tmp_path, TOP.format("audit: {keep: 90d, to: stdout,\n  max: 1GiB}")) == [
        f"2:9: audit.keep: {why}; remove keep",
        f"3:3: audit.max: {why}; remove max",
    ]


@pytest.mark.parametrize(
    ("written", "keep", "size"),
    [
        ("{}", 90 * 86400.0, 1 << 30),
        ("{keep: 1h, max: 128MiB}", 3600.0, 128 << 20),
        ("{keep: 3650d, max: 1024GiB}", 3650 * 86400.0, 1 << 40),
        ("{max: 1GB}", 90 * 86400.0, 1_000_000_000),
    ],
)
def test_how_much_of_the_audit_is_kept(tmp_path: Path, written: str, keep: float, size: int) -> None:
    made = load_text(tmp_path, TOP.format(f"audit: {written}")).audit
    assert (made.keep, made.max) == (keep, size)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{keep: 59m}", "audit.keep: expected a duration from 1h to 3650d"),
        ("{keep: 3651d}", "audit.keep: expected a duration from 1h to 3650d"),
        ("{max: 127MiB}", "audit.max: expected a size from 128MiB to 1024GiB"),
        ("{max: 1gib}", 'audit.max: expected a size such as 512MiB or 1GiB, found "1gib"; write GiB'),
    ],
)
def test_wrong_sizes_and_ages_of_the_audit(tmp_path: Path, written: str, said: str) -> None:
    found = lines(tmp_path, TOP.format(f"audit: {written}"))
    assert len(found) == 1
    assert said in found[0]
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


@pytest.mark.parametrize(
    ("keys", "both"),
    [
        ("url: 'http://h/'", True),
        ("url: 'http://h/', eras: one", False),
        ("url: 'http://h/', protocol: legacy", False),
        ("url: 'http://h/', protocol: modern", False),
        ("command: x", False),
        ("command: x, eras: both", True),
        ("command: x, eras: one", False),
    ],
)
def test_a_server_says_in_which_eras_it_is_used(tmp_path: Path, keys: str, both: bool) -> None:
    """At a URL in both, unless it says otherwise; a program in one, because another era needs another process."""
    assert load_text(tmp_path, f"servers: {{a: {{{keys}}}}}").servers["a"].may_use_both_eras is both


@pytest.mark.parametrize("protocol", ["legacy", "modern"])
def test_one_protocol_has_one_era(tmp_path: Path, protocol: str) -> None:
    (found,) = lines(tmp_path, STDIO.format(f"protocol: {protocol}, eras: both"))
    assert f"protocol: {protocol} permits one era only; remove one of the two keys" in found


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


def test_a_server_may_run_once_per_folder_of_a_client(tmp_path: Path) -> None:
    """Only these words, as they are written, are no folder of this machine, and they are one launch."""
    word = "'${client:folder}'"
    written = [word, "'$${client:folder}'", "'${env:F}'", "'${env:G}'"]
    first, escaped, filled, other = (
        stdio(load_text(tmp_path, STDIO.format(f"cwd: {cwd}"), {"F": "${client:folder}", "G": "g"}), "a")
        for cwd in written
    )
    assert (first.takes_client_folder, str(first.cwd)) == (True, "${client:folder}")
    assert [each.takes_client_folder for each in (escaped, filled, other)] == [False] * 3
    assert escaped.cwd == filled.cwd == tmp_path / "${client:folder}"
    assert first.declared not in (escaped.declared, filled.declared)
    assert filled.declared == other.declared
    made = stdio(load_text(tmp_path, STDIO.format(f"max_instances: 4, idle_timeout: 1m, cwd: {word}")), "a")
    assert (made.isolation, made.max_instances, made.idle_timeout) == ("shared", 4, 60.0)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("isolation: per-call", "servers.a.isolation: an instance for each call cannot stay in a folder"),
        ("eras: both", "servers.a.eras: eras: both would start the program twice in a folder of a client"),
    ],
)
def test_one_process_per_folder_excludes_more_of_them(tmp_path: Path, key: str, text: str) -> None:
    (found,) = lines(tmp_path, STDIO.format(f"cwd: '${{client:folder}}', {key}"))
    assert text in found


def test_a_misspelt_isolation_is_not_taken_for_none(tmp_path: Path) -> None:
    """A problem that only follows from a mistake is not reported beside it."""
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
        (
            "{tokens: {}}",
            "listen.auth.tokens: there is no token, so every request would be refused; name one, for instance",
        ),
        ("{}", 'listen.auth.tokens: the key "tokens" is missing; it names who may use the endpoint'),
        ("", "listen.auth: expected a map, found nothing"),
        ("secret", "listen.auth: expected a map, found text"),
        (f"{{tokens: [{TOKEN}]}}", "listen.auth.tokens: expected a map such as {name: value}, found a list"),
        (f"{{tokens: {TOKEN}}}", "listen.auth.tokens: expected a map such as {name: value}, found text"),
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
    """One error: the misspelling explains why the key is missing."""
    assert [line.partition(": ")[2] for line in lines(tmp_path, LISTEN.format("auth: {token: {}}"))] == [
        'listen.auth.token: unknown key; did you mean "tokens"?',
    ]


def test_a_token_in_the_place_of_a_name_is_not_repeated(tmp_path: Path) -> None:
    """A token written where its name belongs does not get into a log."""
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
        assert listen.address.host == address.removesuffix(":1").strip("[]")
    found = lines(tmp_path, LISTEN.format(f'address: "{address}"'))
    assert len(found) == 1
    assert "listen.address: an address beyond loopback is open to other machines, so it needs access tokens" in found[0]
    assert 'listen.auth.tokens; name one, for instance auth: {tokens: {laptop: "${env:LAPTOP_TOKEN}"}}' in found[0]


def test_a_wrong_token_is_the_only_problem_of_an_address_beyond_loopback(tmp_path: Path) -> None:
    """The address would be fine with it."""
    found = lines(tmp_path, LISTEN.format('address: "0.0.0.0:1", auth: {tokens: {a: short}}'))
    assert ["listen.auth.tokens.a" in line for line in found] == [True]


def test_the_older_transport_can_be_switched_off(tmp_path: Path) -> None:
    """HTTP+SSE is served unless the file says otherwise."""
    made = [load_text(tmp_path, LISTEN.format(said)).listen.sse for said in ("", "sse: true", "sse: false")]
    assert made == [True, True, False]


def test_the_certificate_is_named_by_paths_from_the_folder_of_the_file(tmp_path: Path) -> None:
    """The scheme follows from it."""
    listen = load_text(
        tmp_path, LISTEN.format("tls: {cert: certs/c.pem, key: '${env:KEYS}/k.pem'}"), {"KEYS": "/k"}
    ).listen
    assert listen.tls == Tls(tmp_path / "certs" / "c.pem", Path("/k/k.pem"))
    assert (listen.scheme, Listen().scheme) == ("https", "http")


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ("{cert: c.pem}", 'listen.tls.key: the key "key" is missing; it names the file with the private key'),
        ("{cert: '', key: k}", 'listen.tls.cert: expected the path of a file, found ""'),
        ("{cert: ~/c.pem, key: k}", "listen.tls.cert: a ~ is not expanded"),
        ("{cert: c, key: k, keys: x}", 'listen.tls.keys: unknown key; did you mean "key"?'),
        ("true", "listen.tls: expected a map"),
    ],
)
def test_a_certificate_that_is_not_named_right(tmp_path: Path, tls: str, said: str) -> None:
    found = lines(tmp_path, LISTEN.format(f"tls: {tls}"))
    assert len(found) == 1
    assert said in found[0]


def test_http2_has_an_address_of_its_own(tmp_path: Path) -> None:
    listen = load_text(tmp_path, LISTEN.format("http2: localhost:9443")).listen
    assert listen.addresses == (listen.address, Address("127.0.0.1", 9443))
    assert listen.is_local
    assert load_text(tmp_path, LISTEN.format("address: '127.0.0.1:0', http2: '127.0.0.1:0'")).listen.http2


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("http2: on", 'listen.http2: expected an address such as 127.0.0.1:8808, found "on"; give the port too'),
        ("http2: '0.0.0.0:9443'", "listen.http2: an address beyond loopback is open to other machines"),
        ("http2: '127.0.0.1:8808'", "listen.http2: listen.address has this port; expected another"),
        ("server: hypercorn", "listen.server: former key; remove it: HTTP/1.1 has one server, and HTTP/2 an address"),
        ("server: built-in", "listen.server: former key; remove it"),
    ],
)
def test_an_address_of_http2_that_is_not_written_right(tmp_path: Path, written: str, said: str) -> None:
    found = lines(tmp_path, LISTEN.format(written))
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("one", "two", "excluded"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "0.0.0.0:1", True),
        ("[::]:1", "[::1]:1", True),
        ("[::1]:1", "[0:0:0:0:0:0:0:1]:1", True),
        ("[::]:1", "127.0.0.1:1", False),  # an IPv6 socket of ours accepts IPv6 alone
    ],
)
def test_an_address_excludes_those_that_one_socket_has_already(one: str, two: str, excluded: bool) -> None:
    found = [Address(host.strip("[]"), int(port)) for host, _, port in (each.rpartition(":") for each in (one, two))]
    assert [found[0].excludes(found[1]), found[1].excludes(found[0])] == [excluded, excluded]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("listen: {metrics: '127.0.0.1:8808'}", "2:19: listen.metrics: listen.address"),
        ("listen: {metrics: '127.0.0.1:9', address: '0.0.0.0:9', auth: AUTH}", "2:19: listen.metrics: listen.address"),
        ("listen: {address: '0.0.0.0:9', auth: AUTH, http2: '127.0.0.1:9'}", "listen.http2: listen.address"),
        ("listen: {http2: '127.0.0.1:9', metrics: '127.0.0.1:9'}", "listen.metrics: listen.http2"),
        ("console: {address: '127.0.0.1:8808'}", "2:20: console.address: listen.address"),
        (
            "listen: {metrics: '127.0.0.1:9'}\nconsole: {address: '127.0.0.1:9'}",
            "3:20: console.address: listen.metrics",
        ),
        ("console: {address: '127.0.0.1:9'}\nfleet: FLEET", "2:20: console.address: fleet.inner.listen"),
        ("listen: {metrics: '127.0.0.1:9'}\nfleet: FLEET", "fleet.inner.listen: listen.metrics"),
    ],
)
def test_two_listeners_have_two_ports(tmp_path: Path, written: str, said: str) -> None:
    """One problem, at the second of the two in whichever order the file has them."""
    inner = "{listen: '0.0.0.0:9', address: '10.0.0.7:9', cert: c, key: k, ca: a}"
    fleet = f"{{name: f, store: 'postgresql://u@localhost/d', keys: ['{'0' * 64}'], inner: {inner}}}"
    text = written.replace("AUTH", f"{{tokens: {{a: '{TOKEN}'}}}}").replace("FLEET", fleet)
    (found,) = lines(tmp_path, TOP.format(text))
    assert f"{said} has this port; expected another" in found


@pytest.mark.parametrize(
    ("given", "written", "said"),
    [
        ((None, 9), "listen: {metrics: '127.0.0.1:9'}", "2:19: listen.metrics: --port has"),
        ((None, 9), "listen: {address: '127.0.0.1:7', http2: '127.0.0.1:9'}", "2:41: listen.http2: --port has"),
        (("127.0.0.2", None), "listen: {metrics: '127.0.0.2:8808'}", "2:19: listen.metrics: listen.address has"),
        ((None, 9), "console: {address: '127.0.0.1:9'}", "2:20: console.address: --port has"),
        (("0.0.0.0", None), "console: on", "0.0.0.0 (--host) is open to other machines"),
        (("0.0.0.0", None), "listen: {path: /x}", "2:9: listen: 0.0.0.0 (--host) is open to other machines"),
    ],
)
def test_the_address_that_is_given_counts(tmp_path: Path, given: GivenAddress, written: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(TOP.format(written))
    with pytest.raises(ConfigError) as caught:
        load(file, {}, given_address=given)
    (problem,) = caught.value.problems
    assert said in str(problem)


@pytest.mark.parametrize(
    ("given", "written", "address"),
    [
        ((None, 9), "listen: {metrics: '127.0.0.1:8808'}", Address("127.0.0.1", 9)),
        ((None, 0), "console: {address: '127.0.0.1:8808'}", Address("127.0.0.1", 0)),
        (("127.0.0.2", None), "listen: {address: '0.0.0.0:7', http2: '127.0.0.1:7'}", Address("127.0.0.2", 7)),
        (("::1", 9), "", Address("::1", 9)),
        ((None, None), "", DEFAULT_ADDRESS),
    ],
)
def test_a_file_needs_to_be_right_only_with_the_address_that_is_given(
    tmp_path: Path, given: GivenAddress, written: str, address: Address
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(TOP.format(written))
    made = load(file, {}, given_address=given)
    assert (made.given_address, made.listen.address) == (given, address)


@pytest.mark.parametrize(
    ("port", "given", "more", "name"),
    [
        (8808, None, "", "listen.address"),
        (7, 7, "", "--port"),
        (9, None, "listen: {metrics: '127.0.0.1:9'}", "listen.metrics"),
        (9, None, "console: {address: '127.0.0.1:9'}", "console.address"),
        (9, None, "listen: {metrics: '127.0.0.2:9'}", ""),
        (8808, 7, "", ""),
    ],
)
def test_a_login_that_ends_at_a_port_of_the_host_is_told(
    tmp_path: Path, port: int, given: int | None, more: str, name: str
) -> None:
    """It can be done while no host listens there, so the file is valid."""
    file = tmp_path / "c.yaml"
    file.write_text(f"servers: {{a: {{url: 'http://h/mcp', oauth: {{redirect_port: {port}}}}}}}\n{more}")
    why = f"servers.a.oauth.redirect_port: {name} has this port; expected another; no login can begin while a host"
    told = [each.startswith(why) for each in load(file, {}, given_address=(None, given)).notices]
    assert told == ([True] if name else [])


def test_a_client_that_needs_no_person_has_no_port_of_logins(tmp_path: Path) -> None:
    oauth = "{redirect_port: 8808, grant: client_credentials, client_id: a, client_secret: b}"
    assert load_text(tmp_path, f"servers: {{a: {{url: 'http://h/mcp', oauth: {oauth}}}}}").notices == ()


METRICS = "metrics: '{}:9464'"


def test_metrics_have_an_address_and_beyond_loopback_a_token(tmp_path: Path) -> None:
    plain = load_text(tmp_path, LISTEN.format(METRICS.format("127.0.0.1")))
    assert plain.listen.metrics == Address("127.0.0.1", 9464)
    assert plain.listen.addresses == (plain.listen.address,)
    assert plain.metrics == MetricsSpec()
    token = "metrics: {token: 0123456789abcdef, tools: true}\n"
    guarded = load_text(tmp_path, token + LISTEN.format(METRICS.format("0.0.0.0")))
    assert guarded.metrics == MetricsSpec(tools=True, token=Secret("0123456789abcdef"))
    assert [each.split(":")[0] for each in guarded.notices] == ["metrics.token", "listen.metrics"]


@pytest.mark.parametrize(
    ("metrics", "address", "said"),
    [
        (
            "",
            "0.0.0.0",
            "listen.metrics: an address beyond loopback is open to other machines, so it needs a token;",
        ),
        ("metrics: {tools: yes}\n", "127.0.0.1", "metrics.tools: expected true or false"),
        ("metrics: {token: short}\n", "0.0.0.0", "metrics.token: a token has 16 to 4096 characters"),
        ("metrics: on\n", "127.0.0.1", "metrics: expected a map"),
    ],
)
def test_metrics_that_are_not_written_right(tmp_path: Path, metrics: str, address: str, said: str) -> None:
    found = lines(tmp_path, metrics + LISTEN.format(METRICS.format(address)))
    assert len(found) == 1
    assert said in found[0]


def test_traces_are_off_unless_they_are_asked_for(tmp_path: Path) -> None:
    made = [load_text(tmp_path, TOP.format(said)).traces for said in ("", "traces: off", "traces: on")]
    assert made == [None, None, TracesSpec()]
    assert load_text(tmp_path, TOP.format("traces: {content: true}")).traces == TracesSpec(content=True)
    for written, said in (
        ("traces: otlp", 'traces: expected on, off, or a map with content, found "otlp"'),
        ("traces: {content: some}", "traces.content: expected true or false"),
        ("traces: {endpoint: x}", "traces.endpoint: unknown key; known keys: content"),
    ):
        (found,) = lines(tmp_path, TOP.format(written))
        assert said in found


# Objects that are built without a file.


def test_servers_can_be_built_by_hand() -> None:
    """A host embedded in a program needs no file; the defaults are those of the file."""
    child = StdioServer(id="a", command=(Secret("/bin/x", shown="x"), Secret("k")), cwd=Path("/"))
    remote = HttpServer(id="b", url=Secret("http://h/?k", shown="http://h/"))
    assert repr(child) == "<StdioServer a: x (1 argument)>"
    assert repr(remote) == "<HttpServer b: http://h/>"
    assert (child.timeout, child.start_timeout, child.disabled) == (60.0, 60.0, False)
    assert (child.env, remote.headers, remote.consent) == ({}, {}, Consent())
    assert (child.trust, child.isolation, child.max_instances, child.idle_timeout) == ("standard", "shared", 16, 300.0)
    assert (child.protocol, remote.protocol) == ("auto", "auto")
    assert child == StdioServer(id="a", command=(Secret("/bin/x"), Secret("k")), cwd=Path("/"))
    assert len({child, child}) == 1


def test_an_endpoint_asks_nobody_by_default() -> None:
    """The default needs no token, and a repr shows none."""
    assert Listen().tokens == {}
    assert Listen().sse
    assert "t0ken" not in repr(Listen(auth=Auth({"me": Secret("t0ken")})))


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_loopback(host: str, answer: bool) -> None:
    """All of 127/8; an address that stands for all is none."""
    assert is_loopback(host) is answer


def test_consent_allows_by_default() -> None:
    """None is no list at all; an empty list is a list that names nothing."""
    assert Consent().tools == KindConsent(allow=None, deny=())


OAUTH = "servers: {{a: {{url: 'https://h/', {}}}}}"


def test_the_client_of_a_login_is_read(tmp_path: Path) -> None:
    keys = "client_id: c, client_secret: '${env:S}', scopes: [a, a, 'b:c'], redirect_port: 8765"
    text = f"oauth: {{{keys}, grant: client_credentials}}"
    made = load_text(tmp_path, OAUTH.format(text), {"S": "s3cret"}).servers["a"]
    assert isinstance(made, HttpServer)
    own = OAuthGrant.CLIENT_CREDENTIALS
    assert made.oauth == OAuth(Secret("c"), Secret("s3cret"), scopes=("a", "b:c"), redirect_port=8765, grant=own)
    assert "s3cret" not in repr(made.oauth)
    document = load_text(tmp_path, OAUTH.format("oauth: {client_metadata_url: 'https://me.example/c.json'}")).servers[
        "a"
    ]
    assert isinstance(document, HttpServer)
    assert document.oauth == OAuth(client_metadata_url="https://me.example/c.json")


def test_the_names_and_parameters_of_an_issuer_are_read(tmp_path: Path) -> None:
    names = "issuers: ['https://slack.com', 'https://mcp.slack.com', 'https://slack.com']"
    text = f"oauth: {{{names}, parameters: {{access_type: '${{env:A}}', prompt: '', audience: 'https://a b'}}}}"
    made = load_text(tmp_path, OAUTH.format(text), {"A": "offline"}).servers["a"]
    assert isinstance(made, HttpServer)
    assert made.oauth is not None
    assert made.oauth.issuers == ("https://slack.com", "https://mcp.slack.com")
    assert made.oauth.parameters == {"access_type": "offline", "prompt": "", "audience": "https://a b"}
    assert hash(made.oauth) == hash(OAuth(issuers=made.oauth.issuers))


@pytest.mark.parametrize(
    ("keys", "resource", "pkce", "warnings"),
    [
        ("client_id: c", "https://h/mcp", Pkce.ADVERTISED, []),
        ("resource: none", "", Pkce.ADVERTISED, ["bound to no server"]),
        ("resource: 'api://1'", "api://1", Pkce.ADVERTISED, ["those of oauth.resource, api://1"]),
        ("pkce: assume", "https://h/mcp", Pkce.ASSUME, ["may ignore PKCE"]),
        ("pkce: advertised", "https://h/mcp", Pkce.ADVERTISED, []),
        ("resource: none, pkce: assume", "", Pkce.ASSUME, ["bound to no server", "may ignore PKCE"]),
    ],
)
def test_what_an_issuer_refuses_or_does_not_say(
    tmp_path: Path, keys: str, resource: str, pkce: Pkce, warnings: list[str]
) -> None:
    made = load_text(tmp_path, OAUTH.format(f"oauth: {{{keys}}}")).servers["a"]
    assert isinstance(made, HttpServer)
    assert made.oauth is not None
    assert (made.oauth.indicator("https://h/mcp"), made.oauth.pkce) == (resource, pkce)
    for text, warning in zip(warnings, made.oauth.warnings, strict=True):
        assert text in warning


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("oauth: {client_secret: s}", "client_secret belongs to a client_id"),
        ("oauth: {grant: client_credentials}", "needs client_id, and client_secret or private_key"),
        ("oauth: {grant: client_credentials, client_id: c}", "needs client_id, and client_secret or private_key"),
        ("oauth: {private_key: k}", "private_key belongs to a client_id"),
        ("oauth: {client_id: c, client_secret: s, private_key: k}", "a client_secret or a private_key; remove one"),
        ("oauth: {grant: password}", "expected authorization_code or client_credentials"),
        ("oauth: {scopes: ['a b']}", "expected a scope"),
        ("oauth: {scopes: ['']}", "expected a scope"),
        ("oauth: {redirect_port: 0}", "expected a whole number from 1 to 65535"),
        ("oauth: {redirect_port: 65536}", "expected a whole number from 1 to 65535"),
        ("oauth: {client: x}", "unknown key"),
        ("oauth: {issuers: ['login.example']}", "the identifier of an issuer such as https://login.example, found"),
        ("oauth: {issuers: ['http://login.example']}", "without a user, a query and a fragment"),
        ("oauth: {issuers: ['https://u@login.example']}", "without a user, a query and a fragment"),
        ("oauth: {issuers: ['https://login.example/?a=b']}", "without a user, a query and a fragment"),
        *(
            (f"oauth: {{parameters: {{{name}: x}}}}", f"Colonnade sets {name} itself")
            for name in ("state", "redirect_uri", "Scope", "code_challenge", "response_mode", "request_uri", "resource")
        ),
        *(
            (f"oauth: {{resource: {each}}}", "expected none, or the resource")
            for each in ("x", "''", "'a:b#c'", "'a: b'")
        ),
        ("oauth: {pkce: none}", "expected advertised or assume"),
        ("oauth: {parameters: {'a b': x}}", "a parameter's name is letters, digits and _ . -"),
        ("oauth: {parameters: {'${env:A}': x}}", "a parameter's name is letters, digits and _ . -"),
        ('oauth: {parameters: {a: "x\\ny"}}', "at most 200 printable ASCII characters"),
        ("oauth: {client_metadata_url: 'http://me.example/c.json'}", "a public https URL"),
        ("oauth: {client_metadata_url: 'https://me.example'}", "with a path"),
        ("oauth: {client_metadata_url: 'https://u@me.example/c'}", "without a user"),
        ("oauth: {client_metadata_url: 'https://localhost/c'}", "cannot be on this machine"),
        ("oauth: {client_metadata_url: 'https://127.0.0.1/c'}", "cannot be on this machine"),
        ("oauth: {client_metadata_url: 'https://[::1]/c'}", "cannot be on this machine"),
        ("oauth: {client_metadata_url: 'https://192.168.1.1/c'}", "cannot be on this machine"),
        ("oauth: {client_metadata_url: 'https://[/c'}", "cannot be read"),
        ("headers: {Authorization: x}, oauth: {client_id: c}", "has its credentials under headers"),
        ("headers_helper: [x], oauth: {client_id: c}", "has its credentials under headers"),
    ],
)
def test_a_client_of_a_login_that_cannot_be(tmp_path: Path, keys: str, why: str) -> None:
    (line,) = lines(tmp_path, OAUTH.format(keys))
    assert why in line


def test_a_secret_of_a_login_is_text(tmp_path: Path) -> None:
    """It goes into forms. An environment variable may hold any bytes."""
    keys = "oauth: {client_id: c, client_secret: '${env:S}'}"
    (line,) = lines(tmp_path, OAUTH.format(keys), {"S": "k3y\udcff"})
    assert line.endswith("client_secret holds bytes that are no text in UTF-8"), line


def test_a_program_has_no_login(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, STDIO.format("oauth: {client_id: c}"))
    assert "servers.a.oauth: oauth belongs to a server with a url" in line


@pytest.mark.parametrize(
    ("keys", "call", "total", "wait"),
    [
        ("", 60, 600, 60),
        ("timeout: 10m", 600, 600, 600),
        ("timeout: 30m", 1800, 1800, 600),
        ("timeout_total: 2h", 60, 7200, 60),
        ("timeout: 24h, timeout_total: 24h", 86400, 86400, 600),
        ("timeout: 2m, timeout_total: 2m", 120, 120, 120),
    ],
)
def test_the_times_of_a_call(tmp_path: Path, keys: str, call: float, total: float, wait: float) -> None:
    made = stdio(load_text(tmp_path, STDIO.format(keys)), "a")
    assert (made.timeout, made.longest_call, made.longest_wait) == (call, total, wait)


@pytest.mark.parametrize("keys", ["timeout_total: 30s", "timeout: 30m, timeout_total: 29.9m"])
def test_no_call_ends_before_its_timeout(tmp_path: Path, keys: str) -> None:
    (found,) = lines(tmp_path, STDIO.format(keys))
    assert re.search(r"timeout_total: a call may take (60|1800)s without progress \(timeout\); expected no less", found)


def test_settings_are_told_as_they_are_in_effect_and_without_what_may_be_secret(tmp_path: Path) -> None:
    text = """
defaults: {limits: {calls: 60/min, concurrent: 4}}
servers:
  a: {command: [/opt/tool, --key, hidden-1], env: {KEY: hidden-2}, timeout: 15m, isolation: per-call}
  b: {url: "https://example.com/mcp?key=hidden-3", headers: {X-Key: hidden-4}, limits: {}, idle: 1m}
"""
    a, b = (spec.describe_settings() for spec in load_text(tmp_path, text).servers.values())
    assert a[0] == "tool (2 arguments)"
    of_limits = ["limits.calls: 60 in 60s", "limits.concurrent: 4"]
    assert {"prefix: a", "start: eager", "idle: never", "timeout: 900s", "timeout_total: 900s", *of_limits} < {*a}
    assert a[-1] == "env: KEY"
    assert {"trust: standard", "isolation: per-call", "max_instances: 16", "idle_timeout: 300s", "eras: one"} < {*a}
    assert b[0] == "https://example.com/mcp"
    assert {"idle: 60s", "timeout_total: 600s", "eras: both", "isolation: shared"} < {*b}
    assert b[-1] == "headers: X-Key"
    assert not any("hidden" in each or "limits" in each or "max_instances" in each for each in b)
    assert "hidden" not in "".join(a)
