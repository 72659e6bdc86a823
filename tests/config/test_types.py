"""Each kind of value: what is read and what is refused, in which words."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import Check, Isolation, Protocol, Rate, Trust
from tests.config.kit import http, lines, load_text, stdio
from tests.kit.examples import examples

LISTEN = "servers: {{a: {{command: x}}}}\nlisten: {{{}}}"
STDIO = "servers: {{a: {{command: x, {}}}}}"
HTTP = "servers: {{a: {{url: 'http://h/', {}}}}}"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("60s", 60.0), ("1.5s", 1.5), ("10m", 600.0), ("0.1h", 360.0), ("30m", 1800.0), ("24h", 86400.0)],
)
def test_durations(tmp_path: Path, written: str, seconds: float) -> None:
    """A number and its unit."""
    assert load_text(tmp_path, STDIO.format(f"timeout: {written}")).servers["a"].timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", ["60", "1.5", "s", "60 s", "60S", "-1s", "1e3s", "0s", "24.1h", "2d", "''", "[60s]", "~", "９s"]
)
@pytest.mark.parametrize("key", ["timeout", "start_timeout", "timeout_total"])
def test_wrong_durations(tmp_path: Path, key: str, written: str) -> None:
    """Without a unit, below or above the limits, or no duration at all."""
    found = lines(tmp_path, STDIO.format(f"{key}: {written}"))
    assert len(found) == 1
    assert f"servers.a.{key}: expected a duration" in found[0]


@pytest.mark.parametrize("written", ["601s", "11m", "1h"])
def test_a_start_takes_ten_minutes_at_most(tmp_path: Path, written: str) -> None:
    (found,) = lines(tmp_path, STDIO.format(f"start_timeout: {written}"))
    assert found.endswith("servers.a.start_timeout: expected a duration above zero and at most 600s")


@pytest.mark.parametrize(("written", "seconds"), [("1s", 1.0), ("1000ms", 1.0), ("5m", 300.0), ("24h", 86400.0)])
def test_idle_times(tmp_path: Path, written: str, seconds: float) -> None:
    """From a second to a day."""
    made = load_text(tmp_path, STDIO.format(f"isolation: per-call, idle_timeout: {written}"))
    assert made.servers["a"].idle_timeout == seconds


@pytest.mark.parametrize("written", ["0s", "999ms", "24.1h", "25h"])
def test_wrong_idle_times(tmp_path: Path, written: str) -> None:
    found = lines(tmp_path, STDIO.format(f"isolation: per-call, idle_timeout: {written}"))
    assert found[0].endswith("servers.a.idle_timeout: expected a duration from 1s to 24h")


@pytest.mark.parametrize(("written", "count"), [("1", 1), ("1000", 1000), ("08", 8), ("'${env:MOST}'", 7)])
def test_counts(tmp_path: Path, written: str, count: int) -> None:
    """Decimal whatever it begins with, and possibly from outside."""
    made = load_text(tmp_path, STDIO.format(f"isolation: per-call, max_instances: {written}"), {"MOST": "7"})
    assert made.servers["a"].max_instances == count


@pytest.mark.parametrize(
    ("written", "said"),
    [
        *(("0", 'found "0"'), ("1001", 'found "1001"'), ("-1", 'found "-1"'), ("1.0", 'found "1.0"')),
        *(("1e2", 'found "1e2"'), ("0x10", 'found "0x10"'), ("٣", 'found "٣"'), ("many", 'found "many"')),
        *(
            ("", "found nothing"),
            ("[1]", "found a list"),
            ("'${env:MANY}'", "found something else from ${...}"),
        ),
        ("'16'", "found text in quotes; write 16 without quotes"),
    ],
)
def test_wrong_counts(tmp_path: Path, written: str, said: str) -> None:
    found = lines(tmp_path, STDIO.format(f"isolation: per-call, max_instances: {written}"), {"MANY": "s3cr3t"})
    assert len(found) == 1
    assert f"servers.a.max_instances: expected a whole number from 1 to 1000, {said}" in found[0]


@pytest.mark.parametrize(("trust", "isolation", "protocol"), [*zip(cycle(Trust), cycle(Isolation), Protocol)])
def test_words(tmp_path: Path, trust: Trust, isolation: Isolation, protocol: Protocol) -> None:
    """Each is written as it is called, with or without quotes."""
    said = f"trust: {trust}, isolation: '{isolation}', protocol: {protocol}"
    made = load_text(tmp_path, STDIO.format(said)).servers["a"]
    assert (made.trust, made.isolation, made.protocol) == (trust, isolation, protocol)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("isolation: per_client", 'found "per_client"; did you mean per-client?'),
        ("isolation: perCall", 'found "perCall"; did you mean per-call?'),
        ("isolation: Shared", 'found "Shared"; did you mean shared?'),
        ("isolation: none", 'expected shared, per-client or per-call, found "none"'),
        ("isolation: ", "found nothing"),
        ("isolation: {}", "found a map"),
        ("isolation: '${env:HOW}'", 'found "${env:HOW}"'),
        ("trust: trust", 'found "trust"; did you mean trusted?'),
        ("trust: Standard", 'found "Standard"; did you mean standard?'),
        ("trust: Untrusted", 'found "Untrusted"; did you mean untrusted?'),
        ("trust: not-trusted", 'found "not-trusted"; did you mean untrusted?'),
        ("trust: true", 'expected trusted, standard or untrusted, found "true"; did you mean standard?'),
        ("protocol: Auto", 'found "Auto"; did you mean auto?'),
        (
            "protocol: stateless",
            "expected auto, legacy, modern, 2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26 or 2024-11-05, "
            'found "stateless"',
        ),
        ("protocol: 2025-11-26", 'found "2025-11-26"'),
        ("protocol: ", "found nothing"),
        ("protocol: '${env:HOW}'", 'found "${env:HOW}"'),
    ],
)
def test_wrong_words(tmp_path: Path, written: str, said: str) -> None:
    """The nearest word is offered, and trust to nobody who said the opposite."""
    found = lines(tmp_path, STDIO.format(written), {"HOW": "shared"})
    assert len(found) == 1
    assert found[0].partition(";")[0].endswith(said.partition(";")[0])
    assert said in found[0]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("x" * 15, "a token has 16 to 4096 characters"),
        ("x" * 4097, "a token has 16 to 4096 characters"),
        ("''", "a token has 16 to 4096 characters"),
        ("0123456789 abcdef", "printable ASCII without spaces"),
        ("0123456789abcdefé", "printable ASCII without spaces"),
        ('"0123456789abcdef\\n"', "printable ASCII without spaces"),
        ("~", "expected a token, found nothing"),
        ("[0123456789abcdef]", "expected a token, found a list"),
    ],
)
def test_wrong_token_texts(tmp_path: Path, written: str, said: str) -> None:
    """Tokens that could not be sent in a header, or would be guessed too soon."""
    found = lines(tmp_path, f"servers: {{a: {{command: x}}}}\nlisten:\n  auth:\n    tokens:\n      me: {written}\n")
    assert len(found) == 1
    assert said in found[0]
    assert "0123456789" not in found[0]


@pytest.mark.parametrize("token", ["x" * 16, "x" * 4096, "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"])
def test_token_texts(tmp_path: Path, token: str) -> None:
    """Every character that a header can carry."""
    listen = load_text(tmp_path, LISTEN.format("auth: {tokens: {me: '${env:T}'}}"), {"T": token}).listen
    assert listen.tokens["me"].reveal() == token


def test_braces_in_a_value_are_quoted_as_they_are(tmp_path: Path) -> None:
    """A message is no template."""
    assert 'found "{x}{0}"' in lines(tmp_path, STDIO.format("timeout: '{x}{0}'"))[0]


def test_a_drain_may_be_none_at_all(tmp_path: Path) -> None:
    assert load_text(tmp_path, "servers: {a: {command: x}}").drain == 30.0
    assert load_text(tmp_path, "drain: 0s\nservers: {a: {command: x}}").drain == 0.0
    (problem,) = lines(tmp_path, "drain: 1h\nservers: {a: {command: x}}")
    assert problem.endswith("1:8: drain: expected a duration of at most 10m")


def test_start_grace_may_be_none_at_all(tmp_path: Path) -> None:
    """Zero means: answer at once; more than a minute is refused."""
    assert load_text(tmp_path, "start_grace: 0s\nservers: {a: {command: x}}").start_grace == 0.0
    assert "at most 60s" in lines(tmp_path, "start_grace: 61s\nservers: {a: {command: x}}")[0]


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("127.0.0.1:8808", "127.0.0.1", 8808),
        ("127.9.9.9:0", "127.9.9.9", 0),
        ("[::1]:65535", "::1", 65535),
        ("localhost:80", "127.0.0.1", 80),
        ("127.0.0.1:${env:PORT}", "127.0.0.1", 99),
    ],
)
def test_addresses(tmp_path: Path, written: str, host: str, port: int) -> None:
    """Loopback in either family; the brackets of IPv6 are the file's, not the host's."""
    listen = load_text(tmp_path, LISTEN.format(f'address: "{written}"'), {"PORT": "99"}).listen
    assert listen.address == (host, port)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("example.com:8808", "the host is an IP address or localhost"),
        ("localhost.example:1", "the host is an IP address or localhost"),
        ("127.1:1", "the host is an IP address or localhost"),
        ("[::1::]:1", "the host is an IP address or localhost"),
        ("127.0.0.1", "give the port too"),
        ("::1:8808", "put an IPv6 address in brackets"),
        ("127.0.0.1:65536", "expected an address such as"),
        ("127.0.0.1:", "expected an address such as"),
        (":8808", "expected an address such as"),
        ("[::1%lo]:1", "expected an address such as"),
        ("127.0.0.1:８", "expected an address such as"),
        ("8808", "give the port too"),
    ],
)
def test_wrong_addresses(tmp_path: Path, written: str, said: str) -> None:
    """A name could mean another address tomorrow: only literal ones are taken."""
    assert said in lines(tmp_path, LISTEN.format(f'address: "{written}"'))[0]


@pytest.mark.parametrize("written", ["/mcp", "/a/b", "/A-1._~x", "/mcp/status", "/statuses"])
def test_endpoint_paths(tmp_path: Path, written: str) -> None:
    """Plain segments; the reserved words count at the beginning only."""
    assert load_text(tmp_path, LISTEN.format(f"path: {written}")).listen.path == written


@pytest.mark.parametrize(
    "written",
    [
        *(
            "mcp",
            "/",
            "/mcp/",
            "//mcp",
            "/a//b",
            "/a%20b",
            "/a?b",
            "/a#b",
            "/a b",
            "/é",
            "/..",
            "/a/./b",
            '"/a\\n"',
            "''",
        ),
        *("/status", "/healthz", "/console", "/sse", "/message", "/console/x"),
    ],
)
def test_wrong_endpoint_paths(tmp_path: Path, written: str) -> None:
    """No escapes, no query, no end slash, none that Colonnade keeps for itself."""
    text = f"servers: {{a: {{command: x}}}}\nlisten:\n  path: {written if '#' not in written else repr(written)}\n"
    found = lines(tmp_path, text)
    assert len(found) == 1
    assert "listen.path: expected a path such as /mcp" in found[0]


def test_origins_and_hosts_are_normalised(tmp_path: Path) -> None:
    """Lower-case, each once, and without a port that browsers leave out."""
    text = LISTEN.format(
        "origins: ['HTTPS://Example.com', 'https://example.com:443', 'http://h:80', 'http://h:8080', "
        "'vscode-webview://a1', 'http://[::1]:80'], hosts: [Example.com, 'h:1', '[::1]:2']"
    )
    listen = load_text(tmp_path, text).listen
    assert listen.origins == (
        *("https://example.com", "http://h", "http://h:8080", "vscode-webview://a1"),
        "http://[::1]",
    )
    assert listen.hosts == ("example.com", "h:1", "[::1]:2")


@pytest.mark.parametrize(
    "written", ["https://h/", "https://h/x", "h", "*", "null", "https://*", "https://u@h", "https://"]
)
def test_wrong_origins(tmp_path: Path, written: str) -> None:
    """An origin has no path, no user and no wildcard."""
    assert "listen.origins[0]: expected an origin" in lines(tmp_path, LISTEN.format(f"origins: ['{written}']"))[0]


@pytest.mark.parametrize("written", ["http://h", "h/x", "*", "", "::1", "h:", "u@h"])
def test_wrong_hosts(tmp_path: Path, written: str) -> None:
    """A host is what stands in the Host header."""
    assert "listen.hosts[0]: expected a host" in lines(tmp_path, LISTEN.format(f"hosts: ['{written}']"))[0]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("yes", 'found "yes"; write true'),
        ("on", 'found "on"; write true'),
        ("True", 'found "True"; write true'),
        ("no", 'found "no"; write false'),
        ("0", 'found "0"; write false'),
        ("'true'", "found text in quotes; write true without quotes"),
        ("maybe", 'found "maybe"'),
        ("~", "found nothing"),
        ("[]", "found a list"),
        ("{}", "found a map"),
    ],
)
def test_only_true_and_false_are_truths(tmp_path: Path, written: str, said: str) -> None:
    """Everything else that looks like one is refused with the word to write."""
    found = lines(tmp_path, STDIO.format(f"disabled: {written}"))[0]
    assert found.endswith(said) or f"{said};" in found


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://h/", "only http and https"),
        ("h.example/mcp", "only http and https"),
        ("http:///mcp", "has no host"),
        ("http://u@h/", "may not contain a user or password"),
        ("http://u:p@h/", "may not contain a user or password"),
        ("http://h/#", "may not have a fragment"),
        ("http://h:x/", "cannot be read"),
        ("http://h:99999/", "cannot be read"),
        ("http://[::1/", "cannot be read"),
        ("http://h/a b", "spaces"),
        ("http://h\\@g/", "backslashes"),
    ],
)
def test_wrong_urls(tmp_path: Path, url: str, said: str) -> None:
    """The sentence says which part is wrong without repeating the URL."""
    found = lines(tmp_path, f"servers: {{a: {{url: '{url}'}}}}")[0]
    assert said in found
    assert url not in found


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ('A: "x\\ny"', "may not contain a line break"),
        ("A: '${env:LINES}'", "may not contain a line break"),
        ('A: "x\\ey"', "printable ASCII"),
        ("A: é", "printable ASCII"),
        ("A: ' x'", "begin or end with a space"),
        ("A: [x]", "expected the value of a header, found a list"),
        ("'A B': x", "a header's name is letters"),
        ("'${env:A}': x", "a header's name is letters"),
        ("a: x, A: y", "differ only in upper and lower case"),
        ("Content-Length: 1", "set by Colonnade itself"),
        ("mcp-session-id: 1", "set by Colonnade itself"),
    ],
)
def test_wrong_headers(tmp_path: Path, header: str, said: str) -> None:
    """Headers that could split a request, or that the file may not set."""
    assert said in lines(tmp_path, HTTP.format(f"headers: {{{header}}}"), {"LINES": "a\nb", "A": "a"})[0]


def test_env_values_may_hold_line_breaks_and_no_nul(tmp_path: Path) -> None:
    """A private key has lines; NUL ends a string in C and so is refused."""
    made = load_text(tmp_path, STDIO.format("env: {A: '${env:LINES}', npm_config_//r/:_auth: t}"), {"LINES": "a\nb"})
    assert stdio(made, "a").env["A"].reveal() == "a\nb"
    assert "NUL" in lines(tmp_path, STDIO.format('env: {A: "x\\0y"}'))[0]
    assert "NUL" in lines(tmp_path, 'servers: {a: {command: ["x\\0y"]}}')[0]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("command: ''", "found no program"),
        ("command: []", "found no program"),
        ("command: ['']", "found no program"),
        ("command: {a: b}", "found a map"),
        ("command: ~", "found nothing"),
        ("command: [a, [b]]", "command[1]: expected text, found a list"),
        ("command: [a, ~]", "command[1]: expected text, found nothing"),
        ("command: a, args: {b: c}", "args: expected a list such as [one, two], found a map"),
        ("command: a, args: [[b]]", "args[0]: expected text, found a list"),
        ("command: a, title: ''", "title: expected one line"),
        ('command: a, title: "x\\ny"', "title: expected one line"),
        ("command: a, env: {'': x}", "env: a variable's name"),
        ("command: a, env: {'A B': x}", "env: a variable's name"),
    ],
)
def test_wrong_programs(tmp_path: Path, written: str, said: str) -> None:
    """A command names a program, and all its words are text."""
    assert said in lines(tmp_path, f"servers: {{a: {{{written}}}}}")[0]


def test_url_keeps_its_query_to_itself(tmp_path: Path) -> None:
    """The request gets it, the description does not."""
    spec = http(load_text(tmp_path, "servers: {a: {url: 'https://h:1/x?key=1'}}"), "a")
    assert (spec.url.reveal(), spec.describe()) == ("https://h:1/x?key=1", "https://h:1/x")


# Limits.


@pytest.mark.parametrize(
    ("written", "count", "seconds"),
    [
        *(("5/s", 5, 1), ("60/min", 60, 60), ("20/h", 20, 3600), ("100000/day", 100_000, 86400)),
        *(("10/10s", 10, 10), ("100/5min", 100, 300), ("007/1h", 7, 3600), ("1/30day", 1, 2_592_000)),
        ("'${env:RATE}'", 3, 60),
    ],
)
def test_rates(tmp_path: Path, written: str, count: int, seconds: float) -> None:
    """A number per time, or per several of them."""
    made = load_text(tmp_path, STDIO.format(f"limits: {{calls: {written}}}"), {"RATE": "3/min"})
    assert made.servers["a"].limits.calls == Rate(count, seconds)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("60", 'found "60"; say per what, for instance 60/min'),
        ("60/m", 'found "60/m"; write min'),
        ("60/minute", "; write min"),
        ("60/Min", 'found "60/Min"'),
        ("60/5m", "; write min"),
        ("60 / min", 'found "60 / min"'),
        ("60/week", 'found "60/week"'),
        ("1.5/s", 'found "1.5/s"'),
        ("-1/s", 'found "-1/s"'),
        ("٣/s", 'found "٣/s"'),
        ("/s", 'found "/s"'),
        ("5/", 'found "5/"'),
        ("''", 'found ""'),
        ("", "found nothing"),
        ("[5/s]", "found a list"),
        ("'${env:RATE}'", "found something else from ${...}"),
        ("0/s", "expected a rate of 1 to 1000000000; to allow none, write deny"),
        ("1000000001/s", "expected a rate of 1 to 1000000000"),
        ("5/0s", "expected a rate per 1s to 30day"),
        ("5/31day", "expected a rate per 1s to 30day"),
    ],
)
@pytest.mark.parametrize("key", ["calls", "sampling", "sampling_tokens"])
def test_wrong_rates(tmp_path: Path, key: str, written: str, said: str) -> None:
    found = lines(tmp_path, STDIO.format(f"limits: {{{key}: {written}}}"), {"RATE": "s3cr3t"})
    assert len(found) == 1
    assert f"servers.a.limits.{key}: expected a rate" in found[0]
    assert said in found[0]


@pytest.mark.parametrize(
    ("written", "size"),
    [
        *(("1KiB", 1024), ("1024B", 1024), ("2KB", 2000), ("1MB", 1_000_000), ("1MiB", 1_048_576)),
        *(("1.5MiB", 1_572_864), ("64MiB", 67_108_864), ("67108864B", 67_108_864)),
    ],
)
def test_sizes(tmp_path: Path, written: str, size: int) -> None:
    """Units of 1000 and of 1024."""
    assert load_text(tmp_path, STDIO.format(f"limits: {{result: {written}}}")).servers["a"].limits.result == size


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("1024", 'found "1024"; give the unit, for instance 1024B'),
        ("1mib", 'found "1mib"; write MiB'),
        ("1kB", "; write KB"),
        ("1M", 'found "1M"'),
        ("1GiB", 'found "1GiB"'),
        ("1..5MiB", 'found "1..5MiB"'),
        ("1 MiB", 'found "1 MiB"'),
        ("-1MiB", 'found "-1MiB"'),
        ("{}", "found a map"),
        ("1023B", "expected a size from 1KiB to 64MiB"),
        ("64.001MiB", "expected a size from 1KiB to 64MiB"),
    ],
)
def test_wrong_sizes(tmp_path: Path, written: str, said: str) -> None:
    found = lines(tmp_path, STDIO.format(f"limits: {{result: {written}}}"))
    assert len(found) == 1
    assert "servers.a.limits.result: expected a size" in found[0]
    assert said in found[0]


@pytest.mark.parametrize("written", ["0", "1001", "1.5", "'8'"])
def test_wrong_concurrency(tmp_path: Path, written: str) -> None:
    found = lines(tmp_path, STDIO.format(f"limits: {{concurrent: {written}}}"))
    assert "servers.a.limits.concurrent: expected a whole number from 1 to 1000" in found[0]


# Conditions on arguments.

WHEN = "servers: {{a: {{command: x, consent: {{tools: {{ask: [{{name: t, when: {{a: {}}}}}]}}}}}}}}"
ENV = {"A": "true", "N": "12", "P": "/srv/x/", "H": "A.Example"}


def checks(folder: Path, written: str) -> tuple[Check, ...]:
    (condition,) = load_text(folder, WHEN.format(written), ENV).servers["a"].consent.tools.ask[0].when
    return condition.checks


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(("acme", "acme"), ("'true'", "true"), ('"12"', "12"), ("''", ""), ("no", "no"), ("on", "on")),
        *(("true", True), ("false", False), ("null", None), ("'null'", "null"), ("'~'", "~")),
        *(("12", 12), ("-0", 0), ("1.10", 1.1), ("1e2", 100.0), ("-1.5E-3", -0.0015), ("'012'", "012")),
        *(("12:30:45", "12:30:45"), ("2026-07-28", "2026-07-28"), ("1.2.3", "1.2.3"), ("12ab", "12ab")),
        *(("'${env:A}'", "true"), ("'${env:N}'", "12"), ("'$${A}'", "${A}"), ("0-1", "0-1"), ("True-ish", "True-ish")),
    ],
)
def test_values_of_conditions(tmp_path: Path, written: str, value: object) -> None:
    """The type is JSON's: what is in quotes or comes from outside is text whatever it looks like."""
    for form in (written, f"{{eq: {written}}}"):
        (check,) = checks(tmp_path, form)
        assert (check.op, check.value, type(check.value)) == ("eq", value, type(value))
    (check,) = checks(tmp_path, f"[{written}]")
    assert isinstance(check.value, tuple)
    assert (check.op, check.value, type(check.value[0])) == ("in", (value,), type(value))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        *((word, f'"{word}"; write {word.lower()} or the text in quotes') for word in ("True", "FALSE", "Null")),
        ("~", '"~"; write null or the text in quotes'),
        *(
            (word, f'"{word}"; write a number as JSON writes it, or the text in quotes')
            for word in ("012", ".5", "5.", "+1", "0x1F", "0o17", "1_000", ".inf", "-.Inf", ".NaN", "01.5", "1.e3")
        ),
        ("1e999", "this number is too large"),
        ("1" * 301, "this number has more than 300 digits"),
        ("{eq: }", 'found nothing; write "" for empty text, or null'),
        ("{eq: {b: c}}", "a.eq: expected text, a number, true, false or null, found a map"),
        ("{eq: [b]}", "a.eq: expected text, a number, true, false or null, found a list"),
        ("[[b]]", "a.in: expected text, a number, true, false or null, found a list"),
        ("[]", "a: expected at least one value, found an empty list"),
        ("{in: b}", "a.in: expected a list of values, found text"),
        ("{in: []}", "a.in: expected at least one value, found an empty list"),
        ("'${env:NONE}'", "the environment variable NONE is not set"),
    ],
)
def test_wrong_values_of_conditions(tmp_path: Path, written: str, said: str) -> None:
    """Words that one reader takes for a number or a boolean, and another for text, are refused."""
    found = lines(tmp_path, WHEN.format(written))
    assert len(found) == 1
    assert said.removeprefix("a.in").removeprefix("a:") in found[0]


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.lists(VALUES, min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
def test_json_comes_back_as_it_was_written(tmp_path: Path, values: list[object]) -> None:
    """In a file in JSON every value has the type it is written with; 1 and 1.0, too, stay apart."""
    clean = json.loads(json.dumps(values).replace("$", "S").replace("\\u0000", "0"))
    rules = [{"name": "t", "when": {"a": clean}}]
    text = json.dumps({"servers": {"a": {"command": "x", "consent": {"tools": {"allow": rules}}}}})
    made = load_text(tmp_path, text).servers["a"].consent.tools.allow
    assert made is not None
    assert repr(made[0].when[0].checks) == repr((Check("in", tuple(clean)),))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("{range: [1, 100]}", (1, 100)),
        ("{range: [-1.5, null]}", (-1.5, None)),
        ("{range: [null, 0]}", (None, 0)),
        ("{range: [5, 5]}", (5, 5)),
        ("{max_len: 0}", 0),
        ("{max_len: '${env:N}'}", 12),
        ("{max_len: 1000000000}", 1_000_000_000),
        ("{prefix: 12}", "12"),
        ("{suffix: '${env:A}'}", "true"),
        ("{glob: 'a*?'}", "a*?"),
        ("{absent: true}", True),
        ("{type: null}", "null"),
        ("{type: 'null'}", "null"),
        ("{type: integer}", "integer"),
        ("{path_under: /}", ("/",)),
        ("{path_under: /srv/project/}", ("/srv/project",)),
        ("{path_under: [/srv, '${env:P}', /srv/]}", ("/srv", "/srv/x")),
        ("{path_under: /srv/.git/..x}", ("/srv/.git/..x",)),
        ("{host_in: API.Example.com}", ("api.example.com",)),
        (
            "{host_in: ['${env:H}', localhost, xn--bcher-kva.example]}",
            ("a.example", "localhost", "xn--bcher-kva.example"),
        ),
        ("{host_in: [127.0.0.1, '[2001:DB8:0::1]', '::1']}", ("127.0.0.1", "2001:db8::1", "::1")),
    ],
)
def test_checks(tmp_path: Path, written: str, value: object) -> None:
    """Each with its own kind of value."""
    (check,) = checks(tmp_path, written)
    assert (check.value, type(check.value)) == (value, type(value))
    assert check.op == written[1:].partition(":")[0]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{range: 5}", "a.range: expected a list of two numbers such as [1, 100], null where it is open, found text"),
        ("{range: {min: 1}}", "found a map"),
        ("{range: [1]}", "found a list of 1"),
        ("{range: [1, 2, 3]}", "found a list of 3"),
        ("{range: [2, 1]}", "found the larger one first; swap them"),
        ("{range: [null, null]}", "found two open ends"),
        ("{range: ['1', 2]}", 'found "1" in it; write the number without quotes'),
        ("{range: [1, true]}", 'found "true" in it'),
        ("{range: [1, ]}", "found a list of 1"),
        ("{range: [1, ~]}", 'found "~" in it'),
        ("{range: [[1], 2]}", "found a list in it"),
        ("{max_len: -1}", "a.max_len: expected a whole number from 0 to 1000000000"),
        ("{max_len: 1000000001}", "a.max_len: expected a whole number from 0 to 1000000000"),
        ("{prefix: ''}", "a.prefix: expected text, found empty text; every text begins and ends with that"),
        ("{suffix: [a]}", "a.suffix: expected text, found a list"),
        ("{glob: ''}", "a.glob: expected a pattern, found empty text; * matches everything"),
        ("{absent: false}", "a.absent: absent can only be true"),
        ("{absent: yes}", "a.absent: expected true or false"),
        ("{type: text}", "a.type: expected string, number, integer, boolean, null, array or object"),
        ("{type: bool}", "did you mean boolean?"),
        ("{type: [string, number]}", "found a list"),
        ("{type: '${env:A}'}", 'found "${env:A}"'),
        ("{path_under: srv}", "a.path_under: expected an absolute path such as /srv/project, found"),
        ("{path_under: ''}", "expected an absolute path"),
        ("{path_under: ~/x}", "a ~ is not expanded; write ${env:HOME}"),
        ("{path_under: /srv/../etc}", "without . or .. or empty parts"),
        ("{path_under: /srv//x}", "without . or .. or empty parts"),
        ("{path_under: //srv}", "without . or .. or empty parts"),
        ("{path_under: '/srv\\x'}", "without a backslash"),
        ("{path_under: []}", "found an empty list"),
        ("{path_under: [[/srv]]}", "found a list"),
        ("{path_under: '${env:A}'}", "found something else from ${...}"),
        ("{host_in: https://a.example}", "a.host_in: expected the name of a host such as api.example.com, found"),
        ("{host_in: a.example:80}", "no scheme, port, path or final dot"),
        ("{host_in: a.example.}", "no scheme, port, path or final dot"),
        ("{host_in: a..b}", "no scheme, port, path or final dot"),
        ("{host_in: 127.1}", "no scheme, port, path or final dot"),
        ("{host_in: '*.example'}", "each host by its full name; there is no *"),
        ("{host_in: bücher.example}", "write it in its ASCII form, which begins with xn--"),
        ("{host_in: []}", "found an empty list"),
    ],
)
def test_wrong_checks(tmp_path: Path, written: str, said: str) -> None:
    """Checks that would never hold, always hold, or hold for something else than they say."""
    found = lines(tmp_path, WHEN.format(written), ENV)
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("written", "size"),
    [("32MiB", 32 << 20), ("33554431B", None), ("33554432B", 32 << 20), ("65536MiB", 64 << 30), ("65537MiB", None)],
)
def test_memory_has_bounds(tmp_path: Path, written: str, size: int | None) -> None:
    text = f"memory: {written}\nservers: {{a: {{command: x}}}}"
    if size is not None:
        assert load_text(tmp_path, text).memory == size
    else:
        assert "expected a size from 32MiB to 65536MiB" in lines(tmp_path, text)[0]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("capacity: {sessions: 15}", 'capacity.sessions: expected a whole number from 16 to 100000, found "15"'),
        ("capacity: {streams: 15}", 'capacity.streams: expected a whole number from 16 to 80000, found "15"'),
        ("capacity: {streams: 80001}", 'capacity.streams: expected a whole number from 16 to 80000, found "80001"'),
        (
            "capacity: {streams: 900}",
            "capacity.streams: 900 streams leave too few of 1000 connections for messages; expected at most 800, "
            "or set capacity.connections to 1125 or more",
        ),
        (
            "capacity: {sessions: 20000, connections: 20000}",
            "capacity: so many idle clients need 394MiB, which is more than half of memory; set memory to 787MiB or "
            "more, or expect fewer",
        ),
    ],
)
def test_a_capacity_that_cannot_be_had_is_refused(tmp_path: Path, written: str, problem: str) -> None:
    (line,) = lines(tmp_path, f"{written}\nservers: {{a: {{command: x}}}}")
    assert line.endswith(problem)


def test_idle_clients_have_a_part_of_memory_and_those_of_the_default_do_not(tmp_path: Path) -> None:
    plain, large = (
        load_text(tmp_path, f"{written}\nservers: {{a: {{command: x}}}}")
        for written in ("memory: 32MiB", "memory: 1024MiB\ncapacity: {sessions: 20000, connections: 20000}")
    )
    assert plain.message_memory(plain.capacity) == 32 * 1024**2
    assert (plain.capacity.most_streams, large.capacity.most_streams) == (800, 16_000)
    assert large.message_memory(plain.capacity) == 1024**3
    assert 1024**3 // 2 <= large.message_memory(large.capacity) < 1024**3 - 300 * 1024**2
    assert plain.message_memory(large.capacity) == 16 * 1024**2, "a file that was saved while more clients fit"
