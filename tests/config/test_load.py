"""Whole files in our own form: what they come to, and that everything wrong is said at once and keeps its secrets."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import config
from config import (
    Address,
    Config,
    ConfigError,
    Consent,
    KindConsent,
    Listen,
    PromptConsent,
    Rule,
    UriConsent,
    UriRule,
    Verdict,
)
from config.load import problems_of_server
from config.references import Expander
from tests.config.kit import http, lines, load_text, stdio
from tests.kit.cost import assert_costs_less, least_cost
from tests.kit.examples import examples

WHOLE = """\
listen: {address: "127.0.0.1:8808", path: /mcp, origins: [], hosts: []}
start_grace: 3s
servers:
  time:   {command: [uvx, mcp-server-time], env: {TZ: UTC}}
  git:    {command: uvx, args: [mcp-server-git]}
  notes:  {command: "python3 servers/notes.py", cwd: "."}
  remote: {url: "http://127.0.0.1:9000/mcp", headers: {Authorization: "Bearer ${env:TOKEN}"}, timeout: 90s}
  gh:
    url: https://example.com/mcp
    consent: {tools: {allow: ["get_*"], deny: ["delete_*"]}, resources: {deny: ["file://**"]}, prompts: deny}
    title: GitHub
    disabled: true
    start_timeout: 2m
"""


def test_whole_file(tmp_path: Path) -> None:
    """Every part of the file is where the host looks for it, in the order of the file."""
    made = load_text(tmp_path, WHOLE, {"TOKEN": "t1"})
    assert (made.source, made.listen, made.start_grace, made.notices) == (tmp_path / "c.yaml", Listen(), 3.0, ())
    assert list(made.servers) == ["time", "git", "notes", "remote", "gh"]
    notes = stdio(made, "notes")
    assert ([word.reveal() for word in notes.command], notes.cwd) == (["python3", "servers/notes.py"], tmp_path)
    assert stdio(made, "time").env["TZ"].reveal() == "UTC"
    assert [word.reveal() for word in stdio(made, "git").command] == ["uvx", "mcp-server-git"]
    remote = http(made, "remote")
    assert (remote.url.reveal(), remote.headers["Authorization"].reveal()) == ("http://127.0.0.1:9000/mcp", "Bearer t1")
    assert (remote.timeout, remote.start_timeout, remote.disabled, remote.title) == (90.0, 60.0, False, None)
    gh = http(made, "gh")
    assert (gh.timeout, gh.start_timeout, gh.disabled, gh.title) == (60.0, 120.0, True, "GitHub")
    assert gh.consent == Consent(
        KindConsent((Rule("get_*"),), (), (Rule("delete_*"),)),
        UriConsent(deny=(UriRule("file://**"),)),
        PromptConsent(default=Verdict.DENY),
    )
    assert made == load_text(tmp_path, WHOLE, {"TOKEN": "t1"})
    assert made != load_text(tmp_path, WHOLE, {"TOKEN": "t2"})


def test_defaults(tmp_path: Path) -> None:
    """The smallest file."""
    made = load_text(tmp_path, "servers: {a: {command: x}}")
    assert made.listen == Listen(
        auth=None, address=Address("127.0.0.1", 8808), path="/mcp", origins=(), hosts=(), sse=True
    )
    assert made.start_grace is None
    assert stdio(made, "a").consent == Consent()


def test_environment_of_the_process_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping, `${env:...}` reads the real environment."""
    monkeypatch.setenv("COLONNADE_TEST_WORD", "w")
    file = tmp_path / "c.yaml"
    file.write_text("servers: {a: {command: '${env:COLONNADE_TEST_WORD}'}}")
    assert stdio(config.load(str(file)), "a").program.reveal() == "w"


def test_yaml_surprises_stay_text_where_text_is_expected(tmp_path: Path) -> None:
    """No truth, no number, no base 60, no octal."""
    text = "servers: {a: {command: x, args: [yes, 1.50, 0x10], env: {A: no, B: 1.10, C: 12:30:45, D: 012, E: 'null'}}}"
    spec = stdio(load_text(tmp_path, text), "a")
    revealed = {name: value.reveal() for name, value in spec.env.items()}
    assert revealed == {"A": "no", "B": "1.10", "C": "12:30:45", "D": "012", "E": "null"}
    assert [word.reveal() for word in spec.command] == ["x", "yes", "1.50", "0x10"]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("command: [npx, -y, some server]", ["npx", "-y", "some server"]),
        ("command: npx -y 'some server' \"b c\" d\\ e", ["npx", "-y", "some server", "b c", "d e"]),
        ("command: my program, args: [a b]", ["my program", "a b"]),
        ("command: my program, args: []", ["my program"]),
        ("command: 'run ${env:SPACES}'", ["run", "a b; rm c"]),
        ("command: 'run *.py $HOME | cat'", ["run", "*.py", "$HOME", "|", "cat"]),
        ("command: ['${env:SPACES}', '']", ["a b; rm c", ""]),
    ],
)
def test_commands(tmp_path: Path, server: str, words: list[str]) -> None:
    """The three forms; a filled-in value stays one word, and no shell ever sees it."""
    spec = stdio(load_text(tmp_path, f"servers: {{a: {{{server}}}}}", {"SPACES": "a b; rm c"}), "a")
    assert [word.reveal() for word in spec.command] == words


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the working directory is, and however the file was named."""
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)
    text = """\
servers:
  a: {command: [./bin/run, ./x], cwd: ../data}
  b: {command: [/usr/bin/run], cwd: /tmp}
  c: {command: [run]}
"""
    (tmp_path / "conf" / "c.yaml").write_text(text)
    made = config.load("conf/c.yaml", {})
    assert made.source == tmp_path / "conf" / "c.yaml"
    a, b, c = (stdio(made, server) for server in "abc")
    assert (a.program.reveal(), a.command[1].reveal()) == (str(tmp_path / "conf/bin/run"), "./x")
    assert os.path.normpath(a.cwd) == str(tmp_path / "data")
    assert (b.program.reveal(), str(b.cwd)) == ("/usr/bin/run", "/tmp")
    assert (c.program.reveal(), c.cwd) == ("run", tmp_path / "conf")


WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\x85\u2028\u2029\ufeff"))


@given(st.lists(WORDS, min_size=1).filter(lambda words: words[0][:1] not in ("", "~")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
def test_a_quoted_command_line_gives_its_words_back(tmp_path: Path, words: list[str]) -> None:
    """A command is split as a shell would split it; `${` is written `$${`."""
    line = shlex.join(words).replace("${", "$${")
    text = "servers:\n  a:\n    command: '" + line.replace("'", "''") + "'\n"
    spec = stdio(load_text(tmp_path, text), "a")
    program = str(tmp_path / words[0]) if "/" in words[0] else words[0]
    assert [word.reveal() for word in spec.command] == [program, *words[1:]]


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    """One run, all problems, in the order of the file, each with its remedy."""
    text = """\
listn: {}
servers:
  Time:   {command: [uvx], env: {A: }}
  git:    {command: uvx, args: server, timeuot: 3s}
  notes:  {command: "python3 'notes.py"}
  remote: {url: "http://127.0.0.1/", timeout: 60}
  gh:     {url: "https://h/", consent: {tools: {alow: []}, promts: allow}, disabled: yes}
  bare:   hello
  none:   {}
"""
    assert lines(tmp_path, text) == [
        '1:1: listn: unknown key; did you mean "listen"?',
        "3:3: servers.Time: a server id is at most 20 lower-case letters and digits, with single dashes between, "
        'and begins with a letter, for instance "time"',
        '3:36: servers.Time.env.A: expected text, found nothing; write "" for empty text',
        "4:32: servers.git.args: expected a list such as [one, two], found text",
        '4:40: servers.git.timeuot: unknown key; did you mean "timeout"?',
        "5:21: servers.notes.command: this cannot be split into words (no closing quotation); write it as a list",
        "6:47: servers.remote.timeout: expected a duration such as 500ms, 60s, 5m or 1h, "
        'found "60"; give the unit, for instance 60s',
        '7:49: servers.gh.consent.tools.alow: unknown key; did you mean "allow"?',
        '7:60: servers.gh.consent.promts: unknown key; did you mean "prompts"?',
        '7:86: servers.gh.disabled: expected true or false, found "yes"; write true',
        "8:11: servers.bare: expected a map, found text; known keys: command, url, consent, trust, limits, start, "
        "sandbox, prefix, title, timeout, timeout_total, start_timeout, protocol, eras, isolation, max_instances, "
        "idle_timeout, idle, disabled, overrides, args, env, cwd, headers, headers_helper, oauth",
        "9:3: servers.none: expected exactly one of command and url, found neither",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("names: {limit: 31}", '1:16: names.limit: expected a whole number from 32 to 128, found "31"'),
        ("names: 48", "1:8: names: expected a map, found text; known keys: limit"),
        ("names: {longest: 48}", "1:9: names.longest: unknown key; known keys: limit"),
    ],
)
def test_wrong_limits_for_names(tmp_path: Path, text: str, expected: str) -> None:
    assert lines(tmp_path, f"{text}\nservers: {{a: {{command: x}}}}") == [expected]


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("a: {command: x, prefix: b}, b: {command: y}", "a.prefix: this is the id of another server; give a another"),
        ("a: {command: x, prefix: b}, b: {command: y, prefix: c}", "a.prefix: this is the id of another server"),
        ("a: {command: x, prefix: p}, b: {url: 'http://h/', prefix: p}", "b.prefix: the server a has this prefix too"),
        ("a: {command: x, prefix: P}", "a.prefix: a server id is at most 20 lower-case letters and digits"),
        ("a: {command: x, prefix: a__b}", "a.prefix: a server id is at most 20"),
        ("a: {command: x, prefix: ''}", "a.prefix: a server id is at most 20"),
    ],
)
def test_a_prefix_is_that_of_one_server(tmp_path: Path, servers: str, expected: str) -> None:
    [line] = lines(tmp_path, f"servers: {{{servers}}}")
    assert f"servers.{expected}" in line


def test_names_of_a_file(tmp_path: Path) -> None:
    text = "servers: {a: {command: x, prefix: a}, b: {url: 'http://h/', prefix: p, disabled: true}, c: {command: x}}"
    made = load_text(tmp_path, f"names: {{limit: 48}}\n{text}").servers
    assert [(each.outward_prefix, each.longest_name) for each in made.values()] == [("a", 48), ("p", 48), ("c", 48)]
    assert [each.longest_name for each in load_text(tmp_path, text).servers.values()] == [64, 64, 64]
    [notice] = load_text(
        tmp_path, "servers: {a: {command: x, prefix: p, consent: {tools: {deny: [p__t, a__t]}}}}"
    ).notices
    assert notice.endswith('"p__t" is not the server\'s own name; without p__ it would be')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: {}", '1:1: servers: the key "servers" is missing'),
        ("server: {}", '1:1: server: unknown key; did you mean "servers"?'),
        ("servers: {}", "1:10: servers: there is no server to serve"),
        ("servers:", "1:9: servers: expected a map such as {name: value}, found nothing"),
        ("servers: [a]", "1:10: servers: expected a map such as {name: value}, found a list"),
        ("servers: {a__b: {command: x}}", "1:11: servers.a__b: a server id"),
        ("servers: {abcdefghijklmnopqrstu: {command: x}}", "1:11: servers.abcdefghijklmnopqrstu: a server id"),
        ("servers: {a-: {command: x}}", "1:11: servers.a-: a server id"),
        ("servers: {1a: {command: x}}", "1:11: servers.1a: a server id"),
        ("servers: {'': {command: x}}", "1:11: servers.: a server id"),
        ("servers: {a: {trust: yes}}", "1:11: servers.a: expected exactly one of command and url, found neither"),
        ("servers: {a: {ulr: 'http://h'}}", '1:15: servers.a.ulr: unknown key; did you mean "url"?'),
        ("servers: {a: {command: x, url: 'http://h'}}", "1:27: servers.a.url: expected exactly one of"),
        (
            "servers: {a: {command: x, headers: {}}}",
            "1:27: servers.a.headers: headers belongs to a server with a url; a program gets its secrets in env",
        ),
        ("servers: {a: {url: 'http://h', client: httpx}}", "1:32: servers.a.client: former key; remove it: one client"),
        ("servers: {client: {url: 'http://h', httpx: x}}", "1:37: servers.client.httpx: unknown key; known keys: "),
        ("servers: {a: {url: 'http://h', args: []}}", "1:32: servers.a.args: args belongs to a server with a command"),
        ("servers: {a: {command: [x], args: []}}", "1:24: servers.a.command: command is a list already"),
        ("servers: {a: {command: x, cwd: ~/data}}", "1:32: servers.a.cwd: a ~ is not expanded; write ${env:HOME}"),
        *(
            (f"servers: {{a: {{command: x, {key}: {value}}}}}", f"1:{column}: {where}: ${{client:...}} has one place")
            for key, value, column, where in (
                ("cwd", "'${client:folder}/x'", 32, "servers.a.cwd"),
                ("cwd", "'${client:home}'", 32, "servers.a.cwd"),
                ("args", "['${client:folder}']", 34, "servers.a.args[0]"),
                ("title", "'${client:folder}'", 34, "servers.a.title"),
            )
        ),
        ("servers: {a: {command: [~/x]}}", "1:24: servers.a.command: a ~ is not expanded"),
        (
            "servers: {a: {command: x, env: {A: '${env:MISSING}'}}}",
            "1:36: servers.a.env.A: the environment variable MI",
        ),
        ("servers: {a: {command: x, env: {A: '${file:none}'}}}", "1:36: servers.a.env.A: ${file:none} cannot be read"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, expected: str) -> None:
    """The first problem of each is at the right place and in the right words."""
    assert lines(tmp_path, text)[0].startswith(expected)


KINDS = ["tools: {}", "resources: {}", "prompts: {}", "roots: {}", "elicitation: {{url: {}}}"]
CONSENT = "servers: {{a: {{command: x, consent: {{{}}}}}}}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{allow: [b, c], deny: [c]}", "allow[1]: this rule is under deny too, which wins; remove one"),
        ("{ask: [c], deny: [b, c]}", "ask[0]: this rule is under deny too, which wins; remove one"),
        ("{allow: [c], ask: [c]}", "allow[0]: this rule is under ask too, which wins; remove one"),
        ("{allow: [c, b, c]}", "allow[2]: this rule is in the list twice; remove one"),
        ("{ask: [c, c]}", "ask[1]: this rule is in the list twice; remove one"),
        ("{deny: [c, c]}", "deny[1]: this rule is in the list twice; remove one"),
    ],
)
def test_a_rule_that_stands_twice(tmp_path: Path, kind: str, written: str, said: str) -> None:
    """The second one has no effect, in its own list or beside a stronger one; it is reported with its place."""
    found = lines(tmp_path, CONSENT.format(kind.format(written)))
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "written",
    [
        "{allow: ['b*'], ask: [bc], deny: [bd]}",
        "{allow: ['b*'], deny: ['*c']}",
        "{allow: ['b*', bc]}",
        "{allow: ['*'], ask: ['**/x']}",
        "{allow: [bc], deny: ['b*']}",
        "{deny: ['*'], default: allow}",
    ],
)
def test_overlapping_rules(tmp_path: Path, kind: str, written: str) -> None:
    """Patterns may overlap in any way: the stronger list wins."""
    load_text(tmp_path, CONSENT.format(kind.format(written)))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{allow: [{name: b, when: {c: d}}], deny: [{name: b, when: {c: {eq: d}}}]}", "is under deny too"),
        ("{allow: [{name: b, when: {c: 1, d: 2}}, {name: b, when: {d: 2, /c: {eq: 1}}}]}", "is in the list twice"),
        ("{allow: [b], deny: [{name: b, when: {c: d}}]}", ""),
        ("{allow: [{name: b, when: {c: d}}], deny: [{name: b, when: {c: e}}]}", ""),
        ("{allow: [{name: b, when: {c: 1}}, {name: b, when: {c: true}}, {name: b, when: {c: '1'}}]}", ""),
        ("{allow: [{name: b, when: {c: d}}, {name: b, when: {c: d}, closed: true}]}", ""),
    ],
)
def test_rules_with_conditions_are_compared_with_them(tmp_path: Path, written: str, said: str) -> None:
    text = CONSENT.format(f"tools: {written}")
    if said:
        assert said in lines(tmp_path, text)[0]
    else:
        load_text(tmp_path, text)


@pytest.mark.slow
def test_three_hundred_servers_take_no_longer_each_than_thirty(tmp_path: Path) -> None:
    """They take 2 ms each where nothing else runs. One wrong server among them is found."""
    entry = "  s{}: {{command: [python3, s.py, '${{env:T}}'], env: {{A: b}}, consent: {{tools: {{allow: [a, b]}}}}}}\n"
    few, text = ("servers:\n" + "".join(entry.format(n) for n in range(count)) for count in (30, 300))
    assert len(load_text(tmp_path, text, {"T": "t"}).servers) == 300
    of_few = least_cost(lambda: load_text(tmp_path, few, {"T": "t"}))
    assert_costs_less(lambda: load_text(tmp_path, text, {"T": "t"}), 10 * 2 * of_few)
    assert lines(tmp_path, f"{text}  S1: {{command: x}}\n", {"T": "t"})[0].startswith("302:3: servers.S1")


ANSWERED_AT = "listen.address: clients are answered at URLs with localhost, 127.0.0.1, [::1]"


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("{auth: {tokens: {me: '${env:T}'}}}", []),
        ("{auth: {tokens: {me: '${env:NONE:-0123456789abcdef}'}}}", []),
        (
            "{auth: {tokens: {me: 0123456789abcdef}}}",
            ["listen.auth.tokens.me: written in the file itself, so everyone who can read the file has it"],
        ),
        (
            "{auth: {tokens: {me: '${env:T}'}}, address: '192.168.1.2:1'}",
            [f"{ANSWERED_AT} and 192.168.1.2 only, and get HTTP 421 at others"],
        ),
        (
            "{auth: {tokens: {me: '${env:T}'}}, address: '[::]:1'}",
            [f"{ANSWERED_AT} only, and get HTTP 421 at others"],
        ),
        ("{auth: {tokens: {me: '${env:T}'}}, address: '[::]:1', hosts: [h.example]}", []),
    ],
)
def test_what_is_told_of_an_endpoint(tmp_path: Path, listen: str, said: list[str]) -> None:
    """Nothing that keeps the host from starting, all of it worth a line."""
    made = load_text(tmp_path, f"servers: {{a: {{command: x}}}}\nlisten: {listen}", {"T": "abcdef0123456789"})
    assert [notice.partition(";")[0] for notice in made.notices] == said


_FOLDER = Path(__file__).parents[2] / "examples"
CONFIGURATIONS = sorted(_FOLDER.rglob("colonnade.yaml"))
EXAMPLES = [file for file in CONFIGURATIONS if not file.is_relative_to(_FOLDER / "deploy")]
"""Those that start on this machine: tests/test_deploy.py loads the others."""


def test_every_example_is_in_its_own_folder() -> None:
    assert {file.parent.name for file in EXAMPLES} >= {"quickstart", "tokens", "isolation"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.parent.name)
def test_examples(file: Path) -> None:
    """Each loads as it is, its programs are there, and it gives no cause for a notice."""
    made = config.load(file, {"LAPTOP_TOKEN": "0123456789abcdef", "CI_TOKEN": "abcdef0123456789"})
    assert made.notices == ()
    for name in made.servers:
        script = stdio(made, name).command[-1].reveal()
        assert (stdio(made, name).cwd / script).is_file()


SECRET = "s3cr3t-w0rd"

EVERYWHERE = """\
servers:
  a:
    command: ["/opt/${env:S}/run-${env:S}", "--key=${env:S}"]
    env: {A: "${env:S}", B: s3cr3t-w0rd}
    cwd: "/srv/${env:S}"
    title: "t ${env:S}"
    consent: {tools: {deny: ["${env:S}"]}}
  b:
    url: "https://h.example/${env:S}/mcp?key=s3cr3t-w0rd&k=${env:S}"
    headers: {Authorization: "Bearer ${env:S}", X-Key: "${file:key}", X-Plain: s3cr3t-w0rd}
  c: {command: "run s3cr3t-w0rd --x"}
  d: {command: "${env:S}"}
"""


def test_secrets_are_not_in_what_a_config_says(tmp_path: Path) -> None:
    """Neither text nor repr of the whole, a server, its maps or its notices hold a value from outside or from env."""
    (tmp_path / "key").write_text(SECRET)
    made = load_text(tmp_path, EVERYWHERE, {"S": SECRET})
    said = [str(made), repr(made), *made.notices]
    for spec in made.servers.values():
        said += [str(spec), repr(spec), spec.describe(), f"{spec}"]
    a, b = stdio(made, "a"), http(made, "b")
    said += [repr(a.program), repr(a.command), repr(a.env), str(b.url), repr(b.url), repr(b.headers), str(b.headers)]
    assert [text for text in said if SECRET in text] == []
    assert a.command[1].reveal() == f"--key={SECRET}"
    assert [made.servers[name].describe() for name in "abcd"] == [
        "run-*** (1 argument)",
        "https://h.example/***/mcp",
        "run (2 arguments)",
        "*** (0 arguments)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "servers: {a: {command: '${env:S}', bad: '${env:S}', env: [s3cr3t-w0rd]}}",
        "servers: {a: {url: '${env:S}'}}",
        "servers: {a: {url: 'https://u:s3cr3t-w0rd@h/'}}",
        "servers: {a: {url: 'https://h/#s3cr3t-w0rd'}}",
        "servers: {a: {url: 'https://h/', headers: {A: \"s3cr3t-w0rd\\n\"}}}",
        "servers: {a: {url: 'https://h/', headers: {'A: s3cr3t-w0rd': x, 'A: s3cr3t-w0rd': '${env:NO}'}}}",
        "servers: {a: {url: 'https://h/', headers: s3cr3t-w0rd}}",
        "servers: {a: {command: x, env: {'A=s3cr3t-w0rd': x}}}",
        "servers: {a: {command: x, 'A: s3cr3t-w0rd': y}}",
        "servers: {a: {command: x, env: {'A=s3cr3t-w0rd': }}}",
        "servers: {a: {command: x, env: {A: '${env:NO}s3cr3t-w0rd'}}}",
        "servers: {a: {command: x, env: {A: '${s3cr3t-w0rd}'}}}",
        'servers: {a: {command: "x \'s3cr3t-w0rd"}}',
        "servers: {a: {command: x, timeout: '${env:S}', disabled: '${env:S}', consent: {tools: {allow: ['']}}}}",
        "{listen: {address: '${env:S}', path: '${env:S}', origins: ['/${env:S}'], hosts: ['/${env:S}']}, servers: {}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {s3cr3t-w0rd-0123: x, me: 's3cr3t-w0rd ', you: x}}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: [s3cr3t-w0rd]}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {a: s3cr3t-w0rd-and-more, b: '${env:S}-and-more'}}}",
        "servers: {a: {command: x, env: {A: !s s3cr3t-w0rd, B: &b s3cr3t-w0rd, C: *b}}}",
        "servers: {a: {command: x, env: {A: s3cr3t-w0rd: x}}}",
        'servers: {a: {command: x, env: {A: "s3cr3t-w0rd\n',
        '{"servers": {"a": {"env": {"A": "s3cr3t-w0rd\\x"}}}}',
        '{"servers": {"a": {"env": {"A": s3cr3t-w0rd}}}}',
    ],
)
def test_secrets_are_not_in_what_an_error_says(tmp_path: Path, text: str) -> None:
    """A refused file never shows a value that may be secret, wherever it stands."""
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text, {"S": SECRET})
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert SECRET not in repr(caught.value.problems)


def test_switch_from_the_environment(tmp_path: Path) -> None:
    """A true or false may come from outside."""
    text = "servers: {a: {command: x, disabled: '${env:OFF:-false}'}}"
    assert [load_text(tmp_path, text, env).servers["a"].disabled for env in ({}, {"OFF": "true"})] == [False, True]


def test_the_result_is_frozen(tmp_path: Path) -> None:
    """A configuration cannot be changed once it is read."""
    made: Config = load_text(tmp_path, "servers: {a: {command: x}}")
    with pytest.raises(AttributeError):
        made.start_grace = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        made.servers["b"] = made.servers["a"]  # type: ignore[index]


def test_rules_that_are_not_in_the_servers_own_names_are_noticed(tmp_path: Path) -> None:
    """They are no errors: a server may have such names. But they would match nothing, and deny nothing."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "servers:\n  a:\n    command: x\n    consent:\n      tools: {deny: [a__rm, rm, b__rm]}\n"
        "      resources: {deny: [/srv/secret/**, file:///srv/secret/**, '**/.env']}\n"
        "      roots: {allow: [/home/me]}\n"
    )
    assert [notice.partition(" ")[0] for notice in config.load(file).notices] == [
        "servers.a.consent.tools:",
        "servers.a.consent.resources:",
        "servers.a.consent.roots:",
    ]


@pytest.mark.parametrize("kind", ["tools", "resources", "prompts", "roots"])
def test_a_list_of_rules_that_does_not_say_what_it_is_for_is_shown_the_form(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"servers:\n  a:\n    command: x\n    consent: {{{kind}: ['x*']}}\n")
    with pytest.raises(ConfigError, match=r"say what it is for, as in \{allow: \[...\]\}"):
        config.load(file)


def test_problems_of_one_server(tmp_path: Path) -> None:
    """Sentences as for a whole file, and no secret in them."""

    def found(id: str, **server: object) -> list[str]:
        return problems_of_server(id, dict(server), Expander({}, tmp_path))

    assert found("a", command=["x"], env={"A": "s3cr3t"}) == []
    assert found("a", command=["x"], consent={"tools": {"alow": ["s3cr3t"]}}, env={"A": "${env:NONE}"}) == [
        'consent.tools.alow: unknown key; did you mean "allow"?',
        "env.A: the environment variable NONE is not set; set it or write ${env:NONE:-default}",
    ]
    assert found("A b", command=["x"])[0].startswith("a server id is at most 20")
    assert found("a") == ["expected exactly one of command and url, found neither"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("type: http", "remove it: which transport a url speaks is found out, and a command speaks over stdio"),
        ("transport: sse", "remove it: which transport a url speaks"),
        ("transportType: streamable-http", "remove it: which transport a url speaks"),
        ("enabled: false", 'write "disabled: true" to switch a server off'),
        ("disabledTools: [a]", "write consent: {tools: {deny: [NAME]}}"),
        ("tools: ['*']", "write consent: {tools: {allow: [NAME]}}"),
        ("autoApprove: [a]", "write consent: {tools: {allow: [NAME], default: ask}}"),
    ],
)
def test_a_key_of_hosts_leaves_the_file_ours(tmp_path: Path, key: str, said: str) -> None:
    """All mistakes are told with their lines, also a variable that is not set, which some hosts take for empty text."""
    name = key.partition(":")[0]
    text = f"servers:\n  tracker:\n    {key}\n    url: https://h/mcp?k=${{env:UNSET}}\n  b: {{command: [x]}}\n"
    found = lines(tmp_path, text)
    assert len(found) == 2
    assert found[0].startswith(f"3:5: servers.tracker.{name}: unknown key; {said}")
    assert found[1].startswith("4:10: servers.tracker.url: the environment variable UNSET is not set")


def test_another_name_of_the_url_is_the_only_mistake(tmp_path: Path) -> None:
    found = lines(tmp_path, "servers:\n  a: {serverUrl: 'https://h/mcp'}\n")
    assert found == ['2:7: servers.a.serverUrl: unknown key; did you mean "url"?']
