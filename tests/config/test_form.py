"""Each kind of value: what is read, what is refused, and that the schema says the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

import config
from config import Consent, KindConsent
from tests.config.kit import http, lines, load_text, stdio
from tests.config.test_load import EVERYWHERE, WHOLE

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
LISTEN = "servers: {{a: {{command: x}}}}\nlisten: {{{}}}"
STDIO = "servers: {{a: {{command: x, {}}}}}"
HTTP = "servers: {{a: {{url: 'http://h/', {}}}}}"


@pytest.mark.parametrize(
    ("written", "seconds"), [("500ms", 0.5), ("60s", 60.0), ("1.5s", 1.5), ("10m", 600.0), ("0.1h", 360.0)]
)
def test_durations(tmp_path: Path, written: str, seconds: float) -> None:
    """A number and its unit."""
    assert load_text(tmp_path, STDIO.format(f"timeout: {written}")).servers["a"].timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", ["60", "1.5", "s", "60 s", "60S", "-1s", "1e3s", "0s", "601s", "1h", "1d", "''", "[60s]", "~", "９s"]
)
@pytest.mark.parametrize("key", ["timeout", "start_timeout"])
def test_wrong_durations(tmp_path: Path, key: str, written: str) -> None:
    """Without a unit, below or above the limits, or no duration at all."""
    found = lines(tmp_path, STDIO.format(f"{key}: {written}"))
    assert len(found) == 1
    assert f"servers.a.{key}: expected a duration" in found[0]


def test_braces_in_a_value_are_quoted_as_they_are(tmp_path: Path) -> None:
    """A message is no template."""
    assert 'found "{x}{0}"' in lines(tmp_path, STDIO.format("timeout: '{x}{0}'"))[0]


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
    assert (listen.host, listen.port) == (host, port)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("0.0.0.0:8808", "expected a loopback address, since there are no access tokens yet"),
        ("[::]:8808", "expected a loopback address, since there are no access tokens yet"),
        ("192.168.1.2:8808", "expected a loopback address"),
        ("example.com:8808", "expected a loopback address"),
        ("localhost.example:1", "expected a loopback address"),
        ("127.0.0.1", "give the port too"),
        ("::1:8808", "an IPv6 address stands in brackets"),
        ("127.0.0.1:65536", "expected an address such as"),
        ("127.0.0.1:", "expected an address such as"),
        (":8808", "expected an address such as"),
        ("[::1%lo]:1", "expected an address such as"),
        ("127.0.0.1:８", "expected an address such as"),
        ("8808", "give the port too"),
    ],
)
def test_wrong_addresses(tmp_path: Path, written: str, said: str) -> None:
    """Nothing but loopback is served in this version."""
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


ALLOW, DENY = KindConsent(), KindConsent(())


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("allow", Consent()),
        ("deny", Consent(DENY, DENY, DENY)),
        ("{}", Consent()),
        ("{tools: deny}", Consent(DENY, ALLOW, ALLOW)),
        ("{tools: allow, prompts: {allow: []}}", Consent(ALLOW, ALLOW, DENY)),
        ("{resources: {allow: ['a*', b], deny: [c]}}", Consent(ALLOW, KindConsent(("a*", "b"), ("c",)), ALLOW)),
        ("{tools: {deny: ['*']}}", Consent(KindConsent(None, ("*",)), ALLOW, ALLOW)),
        ("{tools: {deny: [no, 1.10]}}", Consent(KindConsent(None, ("no", "1.10")), ALLOW, ALLOW)),
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
            'consent: expected allow, deny, or a map of tools, resources and prompts, found "alow"; did you mean a',
        ),
        ("yes", 'found "yes"'),
        ("[allow]", "consent: expected a map, found a list"),
        ("{tool: allow}", 'consent.tool: unknown key; did you mean "tools"?'),
        ("{tools: denied}", 'found "denied"; did you mean deny?'),
        ("{tools: {alow: []}}", 'consent.tools.alow: unknown key; did you mean "allow"?'),
        ("{tools: {allow: a}}", "consent.tools.allow: expected a list, found text"),
        ("{tools: {allow: ['']}}", "consent.tools.allow[0]: expected a pattern, found empty text"),
        ("{tools: {allow: [{a: b}]}}", "consent.tools.allow[0]: expected a pattern, found a map"),
        ("{tools: }", "consent.tools: expected allow, deny, or a map of patterns"),
    ],
)
def test_wrong_consent(tmp_path: Path, written: str, said: str) -> None:
    """A rule that would silently do nothing is refused."""
    assert said in lines(tmp_path, STDIO.format(f"consent: {written}"))[0]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://h/", "only http and https"),
        ("h.example/mcp", "only http and https"),
        ("http:///mcp", "has no host"),
        ("http://u@h/", "may not hold a user or password"),
        ("http://u:p@h/", "may not hold a user or password"),
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
        ('A: "x\\ny"', "may not hold a line break"),
        ("A: '${env:LINES}'", "may not hold a line break"),
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
    """What could split a request, or is not the file's to say."""
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
        ("command: [a, [b]]", "expected text in item 2 of the list, found a list"),
        ("command: [a, ~]", "expected text in item 2 of the list, found nothing"),
        ("command: a, args: {b: c}", "args: expected a list, found a map"),
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


# The schema.


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(config.schema())


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
    assert len(objects) == 5
    for node in objects:
        assert node["additionalProperties"] is False
        for name, key in node["properties"].items():
            assert "description" in key, name
    assert not [node for node in maps_of(made) if node.get("type") == "null" or node.get("default", "") is None]


def test_schema_takes_what_the_loader_takes(tmp_path: Path) -> None:
    """Example files, those of the documentation among them."""
    (tmp_path / "key").write_text("k")
    files = [WHOLE, EVERYWHERE, *documented()]
    assert len(files) > 5
    for text in files:
        load_text(tmp_path, text, dict.fromkeys(("TOKEN", "S", "HOME", "GITHUB_TOKEN"), "w"))
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
        "servers: {a: {command: x}}\nlisten: {path: mcp}",
        "servers: {a: {command: x}}\nlisten: {address: here}",
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
