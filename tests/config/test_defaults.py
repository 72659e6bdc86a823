"""Defaults of servers: what a server lacks it has from there, as if it were written in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import Config, Difference, difference, load
from config.defaults import DEFAULT_KEYS, has_defaults, with_defaults
from config.model import BaseServer, ConsentWord, Defaults
from host.policy.rules import Rules
from host.policy.widening import widenings, without_widenings
from host.protocol.methods import Kind
from host.protocol.server_requests import ServerRequest
from tests.config.kit import lines, load_text
from tests.kit.examples import examples

WORDS = st.sampled_from(["allow", "ask", "deny"])
PATTERNS = st.lists(st.sampled_from(["get", "g*", "*", "put"]), max_size=2, unique=True)
LISTS = st.fixed_dictionaries({}, optional={"default": WORDS}) | PATTERNS.map(lambda names: {"ask": names})
CONSENTS = (WORDS | st.sampled_from(list(ConsentWord)).map(str)) | st.fixed_dictionaries(
    {}, optional={"tools": WORDS | LISTS, "prompts": WORDS, "resources": WORDS, "sampling": WORDS, "roots": WORDS}
)
KEYS = st.fixed_dictionaries(
    {},
    optional={
        "consent": CONSENTS,
        "trust": st.sampled_from(["trusted", "standard", "untrusted"]),
        "limits": st.fixed_dictionaries({}, optional={"calls": st.just("5/min"), "concurrent": st.just(2)}),
        "start": st.sampled_from(["eager", "lazy"]),
        "sandbox": st.sampled_from(["off", "strict"]) | st.just({"network": "all"}),
    },
)


def read(root: dict[str, Any]) -> Config:
    with TemporaryDirectory() as folder:
        path = Path(folder, "c.json")
        path.write_text(json.dumps(root))
        return load(path, {})


def decisions(spec: BaseServer) -> list[object]:
    rules = Rules(spec.consent, spec.trust)
    entries = [rules.evaluate(kind, name) for kind in Kind for name in ("get", "put", "x://y")]
    return [*entries, *(rules.evaluate_server_request(request) for request in ServerRequest)]


@given(KEYS, KEYS, KEYS)
@settings(max_examples=examples(200), deadline=None)
def test_a_default_is_a_key_of_each_server_that_lacks_it(
    defaults: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    """A key of the server replaces it as a whole: no list and no map is joined."""
    other.pop("sandbox", None)  # it confines programs alone
    of_url = {key: value for key, value in defaults.items() if key != "sandbox"}
    servers = {"one": {"command": "x", **one}, "other": {"url": "http://h/", **other}}
    short = read({"defaults": defaults, "servers": servers}).servers
    full = read({"servers": {"one": {**defaults, **servers["one"]}, "other": {**of_url, **servers["other"]}}}).servers
    for id, own, usable in (("one", one, defaults), ("other", other, of_url)):
        fields = [each.name for each in dataclasses.fields(full[id]) if each.compare and each.name != "cwd"]
        assert [getattr(short[id], name) for name in fields] == [getattr(full[id], name) for name in fields]
        assert decisions(short[id]) == decisions(full[id])
        assert short[id].defaulted == usable.keys() - own.keys()


def test_every_key_of_the_model_is_one_of_servers() -> None:
    assert (
        {*DEFAULT_KEYS}
        == {each.name for each in dataclasses.fields(Defaults)}
        < {each.name for each in dataclasses.fields(BaseServer)}
    )


def test_what_has_another_shape_is_left_for_the_model() -> None:
    roots: list[dict[str, Any]] = [{}, {"defaults": []}, {"defaults": {}, "servers": []}, {"defaults": "x"}]
    for root in roots:
        assert with_defaults(root) == (root, {})
    merged, keys = with_defaults({"defaults": {"trust": "trusted", "color": "red"}, "servers": {"a": "x", "b": {}}})
    assert merged["servers"] == {"a": "x", "b": {"trust": "trusted"}}
    assert keys == {"b": frozenset({"trust"})}


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        ("[x]", "2:11: defaults: expected a map, found a list; known keys: consent, trust, limits, start"),
        ("{timeout: 5s}", "2:12: defaults.timeout: unknown key; known keys: consent, trust, limits, start"),
        ("{trust: true}", '2:19: defaults.trust: expected trusted, standard or untrusted, found "true"; did you mean'),
        ("{limits: {calls: 60}}", "2:28: defaults.limits.calls: expected a rate"),
        ("{consent: {tools: {ask: [a, a]}}}", "2:39: defaults.consent.tools.ask[1]: this rule is in the list twice"),
        ("{consent: {promts: ask}}", '2:22: defaults.consent.promts: unknown key; did you mean "prompts"?'),
    ],
)
def test_a_mistake_is_said_once_and_where_it_stands(tmp_path: Path, defaults: str, expected: str) -> None:
    """Also if two servers have it from there, or none."""
    for servers in (
        "a: {command: x}, b: {url: 'http://h/'}",
        "a: {command: x, trust: trusted, consent: {}, limits: {}}",
    ):
        [line] = lines(tmp_path, f"servers: {{{servers}}}\ndefaults: {defaults}")
        assert line.startswith(expected)


def test_a_change_counts_for_the_servers_that_it_reaches(tmp_path: Path) -> None:
    """It restarts them, waits for a person, or neither, as the same key of the server would."""
    servers = "servers: {a: {command: x}, b: {command: y, trust: standard, consent: {}, limits: {}, start: eager}}\n"
    plain = load_text(tmp_path, servers)

    def changed(defaults: str) -> tuple[Config, Difference, dict[str, tuple[str, ...]]]:
        new = load_text(tmp_path, f"{servers}defaults: {defaults}")
        return new, difference(plain, new), widenings(plain, new)

    stricter, found, wider = changed("{consent: ask}")
    assert (found, wider) == (Difference(policy_changed=("a",)), {})
    assert widenings(stricter, plain) == {
        "a": (
            *(
                f"the rules for {kind} permit more: {kind} that no rule names would be allowed instead of asked about"
                for kind in ("tools", "resources", "prompts")
            ),
        )
    }
    assert without_widenings(stricter, plain).servers["a"].consent == stricter.servers["a"].consent
    assert changed("{trust: trusted}")[1:] == (
        Difference(restart=("a",), policy_changed=("a",)),
        {"a": ("trust rises from standard to trusted",)},
    )
    assert changed("{start: lazy}")[1:] == (Difference(restart=("a",)), {})
    assert changed("{limits: {message: 1MiB}}")[1:] == (Difference(restart=("a",), policy_changed=("a",)), {})
    assert changed("{}")[1:] == (Difference(), {})
    # A default that reaches no server changes nothing.
    alone = servers.replace("a: {command: x}, ", "")
    assert load_text(tmp_path, f"{alone}defaults: {{consent: deny}}") == load_text(tmp_path, alone)


def test_a_person_compares_the_keys_of_the_server(tmp_path: Path) -> None:
    made = load_text(tmp_path, "defaults: {consent: ask}\nservers: {a: {command: x}}")
    assert json.loads(made.written["a"].reveal()) == {"consent": "ask", "command": "x"}


def test_a_server_that_is_untrusted_here_is_not_allowed_unseen(tmp_path: Path) -> None:
    """The consent of the defaults holds for it as well, which its trust alone would ask about."""
    text = "servers: {a: {command: x, trust: untrusted}}\ndefaults: "
    [notice] = load_text(tmp_path, f"{text}{{consent: {{tools: {{allow: [get]}}}}}}").notices
    assert notice.startswith("servers.a.trust: untrusted asks only about what consent does not mention")
    for defaults in ("{consent: deny}", "{consent: {prompts: ask}}", "{limits: {calls: 1/min}}"):
        assert load_text(tmp_path, text + defaults).notices == ()
    own = text.replace("untrusted}", "untrusted, consent: {}}")
    assert load_text(tmp_path, f"{own}{{consent: allow}}").notices == ()
    every = "servers: {a: {command: x}, b: {command: y}}\ndefaults: {trust: untrusted, consent: allow}"
    assert load_text(tmp_path, every).notices == ()


@pytest.mark.parametrize(
    ("defaults", "own", "said"),
    [
        (
            "consent: read-only",
            "consent: {tools: {deny: [reset]}}",
            "(read-only): tools that no rule names are allowed",
        ),
        ("consent: read-only", "consent: {prompts: deny}", "(read-only): tools that no rule names are allowed"),
        ("consent: {tools: deny}", "consent: {tools: {ask: [x]}}", "consent: tools that no rule names are allowed"),
        ("consent: closed", "consent: {prompts: ask}", "(closed): tools, resources that no rule names are allowed"),
        (
            "consent: deny",
            "consent: {prompts: ask}, trust: untrusted",
            "tools, resources that no rule names are asked about",
        ),
        ("consent: read-only", "consent: {tools: {deny: [reset]}}, trust: untrusted", ""),
        ("consent: read-only", "consent: {tools: {deny: [reset], default: ask}}", ""),
        ("consent: read-only", "consent: {tools: {allow: [x]}}", ""),
        ("consent: read-only", "consent: {}", ""),
        ("trust: untrusted", "consent: {prompts: deny}", ""),
        ("limits: {calls: 5/s, result: 1MiB}", "limits: {calls: 1/s}", "defaults.limits: there is no limit of result"),
        ("limits: {calls: 5/s, result: 1MiB}", "limits: {}", ""),
    ],
)
def test_what_passes_since_an_own_key_replaces_the_default_is_noticed(
    tmp_path: Path, defaults: str, own: str, said: str
) -> None:
    made = load_text(tmp_path, f"defaults: {{{defaults}}}\nservers: {{a: {{command: x, {own}}}, b: {{command: y}}}}")
    if not said:
        assert made.notices == made.servers["a"].replaced == ()
        return
    [notice] = made.notices
    assert notice == f"servers.a: {made.servers['a'].replaced[0]}"
    assert notice.endswith(said)
    assert made.servers["b"].replaced == ()


def test_a_notice_of_the_defaults_is_said_once(tmp_path: Path) -> None:
    text = "servers: {a: {command: x}, b: {command: y}}\ndefaults: {consent: {resources: {deny: [etc]}}}"
    assert load_text(tmp_path, text).notices == (
        'defaults.consent.resources: "etc" has no scheme, as URIs have; a file is file:///path',
    )


def test_a_variable_of_the_defaults_is_of_the_host_alone(tmp_path: Path) -> None:
    """No client may set what permits or limits something."""
    (tmp_path / "c.yaml").write_text("servers: {a: {command: x}}\ndefaults: {limits: {calls: '${env:RATE}'}}")
    made = load(tmp_path / "c.yaml", {"RATE": "5/min"})
    assert made.own_variables == {"RATE"}
    assert made.servers["a"].variables == {}


def test_a_default_that_lacks_a_variable_in_the_background_stops_the_servers_that_have_it(tmp_path: Path) -> None:
    text = "servers: {a: {command: x}, b: {command: y, limits: {}}}\ndefaults: {limits: {calls: '${env:RATE}'}}"
    (tmp_path / "c.yaml").write_text(text)
    made = load(tmp_path / "c.yaml", {}, in_background=True).servers
    assert made["a"].problem.startswith("the environment variable RATE is not set; a rule, a limit or the endpoint")
    assert made["b"].problem == ""
    [line] = lines(tmp_path, text)
    assert line.startswith("2:28: defaults.limits.calls: the environment variable RATE is not set")


@pytest.mark.parametrize(
    ("defaults", "is_ours"),
    [
        ({"trust": "x"}, True),
        ({"consent": 1, "start": 2}, True),
        ({}, False),
        ({"trust": 1, "m": 2}, False),
        (1, False),
    ],
)
def test_the_key_of_another_program_is_not_ours(defaults: object, is_ours: bool) -> None:
    assert has_defaults({"defaults": defaults}) is is_ours
