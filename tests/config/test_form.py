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
from config import Consent, Isolation, KindConsent, Protocol, Trust
from tests.config.kit import lines, load_text
from tests.config.test_load import EVERYWHERE, WHOLE

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
LISTEN = "servers: {{a: {{command: x}}}}\nlisten: {{{}}}"
STDIO = "servers: {{a: {{command: x, {}}}}}"
TOKEN = "0123456789abcdef"


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
    assert len(objects) == 6
    for node in objects:
        assert node["additionalProperties"] is False
        for name, key in node["properties"].items():
            assert "description" in key, name
    assert not [node for node in maps_of(made) if node.get("type") == "null" or node.get("default", "") is None]


def test_schema_takes_what_the_loader_takes(tmp_path: Path) -> None:
    """Example files, those of the documentation among them."""
    (tmp_path / "key").write_text("k")
    (tmp_path / "ci.token").write_text(f"{TOKEN}-ci\n")
    files = [WHOLE, EVERYWHERE, *documented()]
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
